"""A task that is a Python file: its problems, and a function that judges answers (ours).

    problems = [{"question": "Write a word of 5 letters.", "n": 5}, ...]    # or a function of none
    def reward(problem, answer_text): ...           # problem: a table; the text after the thinking
    def reward_func(prompts, completions, **columns): ...       # or this: TRL's, with lists of one

Pass rate, retirement and the curve are about right and wrong, and so is the paper's reward. So an
answer is right if its reward is True or above 0, whatever the size, and then it earns +1, else -1.

The file is the user's own code and is trusted; what it makes of a model's text is not. It runs once
in the trainer, which takes the problems, and once in each worker of the verifier, where the
function has a deadline and 4 GiB of memory.
"""

import ast
import functools
import inspect
import reprlib
import runpy
import sys
import traceback
from pathlib import Path

FUNCTIONS = ("reward", "reward_func")  # the names are also the problems' kinds
TOLD = set()  # what this process has already complained about


@functools.cache
def run_file(path):
    """What the file defines. Files beside it can be imported."""
    sys.path.append(str(Path(path).parent))  # last: nothing of ours is hidden
    return runpy.run_path(path, run_name="task_file")


@functools.cache
def problems_of(path):
    """(function's name, questions, packed problems, for `judge`) of a file. Raises ValueError with
    the rest of a sentence that begins with its name."""
    if not Path(path).is_file():
        raise ValueError("is not there")
    path = str(Path(path).resolve())  # a worker is started in another folder
    try:
        offered = run_file(path)
        problems = offered.get("problems")
        problems = list(problems() if callable(problems) else problems or [])
    except (Exception, SystemExit) as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
        where = f" in line {lines[-1]}" if lines else ""
        raise ValueError(f"cannot be run: {type(error).__name__}{where}: {error}") from error
    names = [name for name in FUNCTIONS if callable(offered.get(name))]
    if len(names) != 1:
        raise ValueError("must define one function of reward(problem, answer_text) and "
                         f"reward_func(prompts, completions, **columns), and has {names}")
    if not problems:
        raise ValueError("must define problems, a list of tables, or a function that returns it")
    for number, problem in enumerate(problems, start=1):
        text = question(problem) if isinstance(problem, dict) else None
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f'has a problem without a text as "question": number {number}, '
                             f"{str(problem)[:60]!r}")
        try:
            same = ast.literal_eval(repr(problem)) == problem
            positional, named = arguments(names[0], problem, "")
            inspect.signature(offered[names[0]]).bind(*positional, **named)
        except (SyntaxError, ValueError):
            same = False
        except TypeError as error:
            raise ValueError(f"has a {names[0]} that cannot be called for problem {number}: "
                             f"{error}") from None
        if not same:
            raise ValueError(f"has a problem with more than numbers, texts, lists and tables: "
                             f"number {number}, {str(problem)[:60]!r}")
    return names[0], [question(p) for p in problems], [repr((path, p)) for p in problems]


def question(problem):
    return problem.get("question", problem.get("prompt"))


def arguments(name, problem, text):
    """What the function is called with: its own copy of the columns, or lists of one, as in TRL."""
    if name == "reward":
        return (problem, text), {}
    columns = {key: [value] for key, value in problem.items()
               if key not in ("prompt", "completion")}
    return (), columns | {"prompts": [question(problem)], "completions": [text]}


def load(packed):
    """Run the file of a packed problem, so that `judge` finds it done: it may take seconds."""
    run_file(ast.literal_eval(packed)[0])


def judge(name, packed, text):
    """The reason for a text: "correct" or "wrong"; "bad reward": no number from -1 to 1; "error":
    the function has raised. The last two are told, each once in this process."""
    path, problem = ast.literal_eval(packed)  # a copy: the function may write into it
    positional, named = arguments(name, problem, text)
    try:
        value = run_file(path)[name](*positional, **named)
        if name == "reward_func":
            (value,) = value
        value = value.item() if hasattr(value, "item") else value  # NumPy's, torch's
    except Exception as error:  # whatever it is, it is one answer's: the run goes on
        tell(path, type(error).__name__, traceback.format_exc())
        return "error"
    if not isinstance(value, int | float) or not -1 <= value <= 1:  # nan neither
        tell(path, type(value).__name__,
             f"a reward is True, False, or from -1 to 1: got {reprlib.repr(value)}")
        return "bad reward"
    return "correct" if value > 0 else "wrong"


def tell(path, what, sentence):
    if (path, what) not in TOLD:
        TOLD.add((path, what))
        print(f"{path}: counted as an error, and told once: {sentence}", file=sys.stderr)
