"""A task that is a Python file: its problems, and a function that judges answers (ours).

    problems = [{"question": "Write a word of 5 letters.", "n": 5}, ...]    # or a function of none
    def reward(problem, answer_text): ...           # problem: a table; the text after the thinking
    def reward_func(prompts, completions, **columns): ...       # or TRL's, with lists of one

An answer is right if its reward, a number from -1 to 1, is above 0: it earns +1, else -1, as in the
paper. The file runs once in the trainer, for its problems, and once in each worker."""
import ast
import contextlib
import functools
import reprlib
import runpy
import sys
import traceback
from pathlib import Path

FUNCTIONS = ("reward", "reward_func")  # the names are also the problems' kinds
TOLD = set()  # what this process has already complained about
HINT = {"reward_func": "completions are texts, or messages where \"prompt\" is a list of messages"}


class TaskError(ValueError):
    """Bad task, option or problem: one sentence with the field, its value, what would be right."""


@functools.cache
def run_file(path):
    """What the file defines. Files beside it can be imported."""
    sys.path.append(str(Path(path).parent))  # last: nothing of ours is hidden
    return runpy.run_path(path, run_name="task_file")


@functools.cache
def problems_of(path):
    """(function's name, [(question, packed problem for `judge`)]) of a file. Raises TaskError."""
    name, path = path, str(Path(path).resolve())  # one path for one file
    try:
        offered = run_file(path)
        problems = offered.get("problems")
        problems = list(problems() if callable(problems) else problems or [])
    except (Exception, SystemExit) as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
        where = "".join(f", line {line}" for line in lines[-1:])
        raise TaskError(f"{name!r} cannot be run: {type(error).__name__}: "
                        f"{' '.join(str(error).split())}{where}") from error
    names = [function for function in FUNCTIONS if callable(offered.get(function))]
    if len(names) != 1 or not problems:
        raise TaskError(f"{name!r} must define problems (it has {len(problems)}) and one function "
                        f"of {', '.join(FUNCTIONS)} (it has {', '.join(names) or 'none'})")
    for number, problem in enumerate(problems, start=1):
        with contextlib.suppress(AttributeError, SyntaxError, ValueError):  # the last: no UTF-8
            if question(problem).strip().encode() and ast.literal_eval(repr(problem)) == problem:
                continue
        raise TaskError(f"{name!r} has a problem that is no table of numbers, texts, lists and "
                        f'tables, with a "question": number {number}, {str(problem)[:60]!r}')
    return names[0], [(question(problem), repr((path, problem))) for problem in problems]


def text_of(value):
    """A number as text; of messages system's, user's; the entry of a list of one; others as is."""
    if not isinstance(value, list) or not value:
        return str(value) if type(value) in (int, float) and abs(value) < float("inf") else value
    if all(isinstance(entry, dict) and "role" in entry for entry in value):
        said = [entry.get("content") for entry in value if entry["role"] in ("system", "user")]
        # Of a longer conversation, the question is only a part; so is the text beside an image.
        once = [entry["role"] for entry in value].count("user") == 1
        return "\n\n".join(said) if once and all(isinstance(x, str) for x in said) else None
    return text_of(value[0]) if len(value) == 1 else value


def question(problem):  # messages in "prompt", as TRL's data sets have them, go first
    prompt = problem.get("prompt")
    return text_of(prompt if isinstance(prompt, list) else problem.get("question", prompt))


def judge(name, packed, text):
    """The reason for a text: "correct" or "wrong"; "bad reward": no number from -1 to 1; "error":
    the function has raised. The last two are told, each once in this process."""
    path, problem = ast.literal_eval(packed)  # a copy: the function may write into it
    try:
        if name == "reward":
            value = run_file(path)[name](problem, text)
        else:  # lists of one, as in TRL: to a prompt of messages a message is the answer
            columns = {k: [v] for k, v in problem.items() if k not in ("prompt", "completion")}
            asked = problem.get("prompt")
            chat = isinstance(asked, list) and isinstance(asked[0], dict)
            columns |= {"prompts": [asked if chat else question(problem)],
                        "completions": [[dict(role="assistant", content=text)] if chat else text]}
            (value,) = run_file(path)[name](**columns)
        value = value.item() if hasattr(value, "item") else value  # NumPy's, torch's
    except Exception as error:  # whatever it is, it is one answer's: the run goes on
        tell(path, type(error).__name__, traceback.format_exc() + HINT.get(name, ""))
        return "error"
    if not isinstance(value, int | float) or not -1 <= value <= 1:  # nan neither
        tell(path, type(value).__name__, f"{reprlib.repr(value)} is no reward from -1 to 1")
        return "bad reward"
    if value not in (-1, 0, 1):
        tell(path, "part", f"{value:g}: above 0 is right; subtract a threshold", "cut at 0")
    return "correct" if value > 0 else "wrong"


def tell(path, what, sentence, counted="counted as an error"):
    if (path, what) not in TOLD:
        TOLD.add((path, what))
        print(f"{path}: {counted}, and told once: {sentence}", file=sys.stderr)
