r"""Reasoning Gym's problems, judged by the rules of their own generators (ours, not the paper's).

A sudoku has one solution and a countdown many, and only the generator knows. Only full credit
counts, since a reward is +1 or -1 (paper, sec. 2). The rule is code of others, fed with what a
model wrote: it runs in a worker process with a deadline. Some rules call `eval` on the answer, so
those see nothing but plain formulas; some pay wrong answers, which is mended here.

    >>> sums = pack("products", {}, {"question": "6 * 7?", "answer": "42", "metadata": {}})
    >>> gold_answer(sums), score("42.0", sums), score("41", sums)
    ('42', True, False)
"""

import ast
import contextlib
import functools
import math
import re
from fractions import Fraction


def pack(generator, options, entry):
    """The entry (question, answer, metadata) and where it is from, as Python literals. Not JSON:
    some rules tell a tuple from a list, or have numbers as keys."""
    return repr({"generator": generator, "options": options, "entry": plain(entry)})


def plain(value):
    """The same value of Python's own types: generators leave NumPy's and fractions in metadata."""
    if isinstance(value, dict):
        return {plain(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set):
        return type(value)(map(plain, value))
    value = value.item() if hasattr(value, "item") else value
    return value if isinstance(value, int | float | None) else str(value)


def gold_answer(packed):
    """A right answer as text; None where the generator tells none (many ways out of a maze)."""
    job = ast.literal_eval(packed)
    answer = job["entry"]["answer"]
    return answer if answer is not None and is_allowed(answer, job["generator"]) else None


@functools.lru_cache(maxsize=32)
def generator_of(name, options):
    """The generator, for its rule alone. options: as text, since a dict cannot be cached."""
    import reasoning_gym

    return reasoning_gym.create_dataset(name, seed=0, size=1, **ast.literal_eval(options))


def score(answer, packed):
    """Whether the text `answer` gets full credit for the packed entry. Without a deadline."""
    job = ast.literal_eval(packed)
    name, entry = job["generator"], job["entry"]
    if not is_allowed(answer, name):
        return False
    source = generator_of(name, repr(job["options"]))
    try:
        with contextlib.redirect_stdout(None):  # some print what they think of an answer
            full = source.score_answer(answer, entry) == 1
        return full and (name not in MENDED or MENDED[name](answer, entry))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return False  # rules trip over answers of a shape that they did not expect


# No quotes, brackets, underscores or attributes: nothing to call but these functions. SymPy's
# Integral is not among them: with it the question itself would be a right answer.
FORMULA = re.compile(
    r"(?:[-+*/^(),\s0-9]|\.(?=[0-9])|(?<![A-Za-z])(?:a?(?:sin|cos|tan)h?|exp|log|ln|sqrt|[A-Za-z])"
    r"(?![A-Za-z]))*"
)
WORDS = re.compile(r"[\w\s]*")  # for rules that evaluate only to give partial credit
# The generators whose rule evaluates the answer, in reasoning_gym 0.1.25: a test reads its source.
EVALUATED = {
    "countdown": FORMULA, "puzzle24": FORMULA, "polynomial_multiplication": FORMULA,
    "simple_integration": FORMULA, "intermediate_integration": FORMULA,
    "binary_matrix": WORDS, "n_queens": WORDS, "spiral_matrix": WORDS, "string_insertion": WORDS,
}  # fmt: skip


def is_allowed(answer, generator):
    """Whether the generator's rule may see this text: most may see any."""
    return generator not in EVALUATED or EVALUATED[generator].fullmatch(answer) is not None


# Rules of 0.1.25 that a constant can please: "0" any coin, "nan" any complex number, "x" any game
# of life, 4*6*1*1 any puzzle of 24. They are asked first, then these.
MENDED = {
    # To three digits; the rule asks for four decimals, of which 0 has some.
    "coin_flip": lambda answer, entry: math.isclose(
        Fraction(answer), Fraction(entry["answer"]), rel_tol=1e-3),
    "complex_arithmetic": lambda answer, entry: "nan" not in answer.lower(),
    "game_of_life_halting": lambda answer, entry: answer.strip().lower() == entry["answer"].lower(),
    "puzzle24": lambda answer, entry: (
        sorted(map(int, re.findall("[0-9]+", answer))) == sorted(entry["metadata"]["numbers"])),
}
