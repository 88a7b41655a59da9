"""Where problems come from: generators, files, data sets of the Hugging Face hub.

load_pool chooses among toy_problems, reasoning_gym_problems, and record_problems, which reads files
and data sets. No randomness that is not seeded, and no problem is left out in silence.
"""

import csv
import hashlib
import io
import json
import math
import random
import re
import warnings
from dataclasses import dataclass, fields, replace
from pathlib import Path

from config import did_you_mean
from tasks.answers import BOX, plain_number
from tasks.generated import pack
from tasks.sandbox import read_tests
from tasks.verifier import TaskError, accepted


@dataclass(frozen=True)
class Problem:
    """One question with its gold answer. Frozen: many rollouts point at the same record."""

    id: str  # "task/hash of the question": the same in every run, whatever the seed or file order
    task: str  # the name evaluation is reported under
    question: str
    answer: str | tuple  # the gold one or accepted ones; of "code" and "gym" what judges it
    kind: str = "math"  # which rule of `verify` judges it
    level: int = 0  # graded difficulty, 0 where nobody graded it
    trace: str | None = None  # a correct completion, "thinking</think>answer", for warm starts

    def shorter_than(self, characters):
        """The same question with the smoke reward of docs/is-it-working.md: what is written counts
        for nothing, only that it ends and has fewer characters."""
        return replace(self, task=f"short:{self.task}", kind="short", answer=str(characters),
                       trace=None)


def make_problem(task, question, answer, **fields):
    """A Problem with its id. 48 bits of hash: 10,000 problems collide with chance 2e-7."""
    return Problem(f"{task}/{question_hash(question)}", task, question, answer, **fields)


def question_hash(question):
    """12 hex digits of the question, spacing apart: "1  + 2" and "1 + 2" are one."""
    return hashlib.sha256(" ".join(question.split()).encode()).hexdigest()[:12]


class Unusable:
    """What a run cannot use, a sentence for each. A gold answer that its verifier cannot recognize
    gives -1 to every completion; a file of which half is bad was read in a wrong way."""

    def __init__(self):
        self.sentences = {"bad_records": [], "bad_gold": [], "too_long": []}
        self.read = 0  # problems that had a question and an answer

    def check(self, max_unusable):
        """{cause: count}, with a warning if there are any. Raises TaskError: too many."""
        counts = {cause: len(sentences) for cause, sentences in self.sentences.items()}
        out, total = sum(counts.values()), self.read + counts["bad_records"]
        if out:
            told = (f"{out} of {total} problems cannot be used {counts}; the first: "
                    f"{next(filter(None, self.sentences.values()))[0]}")
            if out > max_unusable * total:
                raise TaskError(f"max_unusable = {max_unusable:g}: {told}")
            warnings.warn(told, stacklevel=3)
        return counts


FILES = (".jsonl", ".json", ".csv", ".parquet")


def load_pool(name, heldout, seed, options, unusable):
    """All distinct problems of one task, training and held-out together. Raises TaskError."""
    options = dict(options)
    limit = options.pop("shorter_than", None)  # of any task: the smoke reward instead of its own
    if limit is not None and not (type(limit) is int and limit > 1):
        raise TaskError(f"task option shorter_than = {limit!r} of {name!r} must be a whole number "
                        "above 1, in characters")
    try:
        if name == "toy":
            problems = toy_problems(heldout, seed, **checked_options(name, options, TOY_OPTIONS))
        elif name.startswith("reasoning_gym:"):
            problems = reasoning_gym_problems(name, heldout, seed, options)
        elif name in PRESETS or name.startswith("hf:") or name.lower().endswith(FILES):
            problems = record_problems(name, options, unusable)
        else:
            raise TaskError(
                f"task {name!r} is unknown" + did_you_mean(name, ["toy", *PRESETS], otherwise=":")
                + f" use toy, reasoning_gym:NAME, {', '.join(PRESETS)}, hf:OWNER/NAME, a file "
                f"({', '.join(FILES)}), or a mix such as toy:0.7+my.jsonl:0.3")
    except ImportError as error:
        raise TaskError(f"task {name!r} needs a package: pip install {error.name}") from error
    unusable.read += len(problems)
    return problems if limit is None else [p.shorter_than(limit) for p in problems]


def checked_options(name, options, defaults):
    """Defaults with the given options over them. Raises TaskError: an option without a default, or
    not of its default's type (None: any)."""
    for key, value in options.items():
        if key not in defaults:
            raise TaskError(f"task option {key!r} is unknown to {name!r}"
                            + did_you_mean(key, defaults, otherwise=":")
                            + f" it takes {', '.join(defaults)}")
        default = defaults[key]
        if isinstance(default, int):
            right, wanted = type(value) is int and value > 0, "a whole number above 0"
        elif key in CHOICES:
            right, wanted = value in CHOICES[key], f"one of {', '.join(CHOICES[key])}"
        else:
            right, wanted = default is None or isinstance(value, str), "text"
        if not right:
            raise TaskError(f"task option {key} = {value!r} of {name!r} must be {wanted}")
    return defaults | options


# Short chains: where five steps must all be right, the curve begins late and ends suddenly.
TOY_OPTIONS = {"size": 2500, "min_digits": 2, "max_digits": 4}


def toy_problems(heldout, seed, *, size, min_digits, max_digits):
    """Running sums modulo 10, "6+3+9+2" -> "0"; the level is the number of digits. Modulo 10 every
    number is one token, and the steps of a long sum are no harder than those of a short one."""
    if not 2 <= min_digits <= max_digits:
        raise TaskError(f"task options min_digits = {min_digits}, max_digits = {max_digits} of "
                        "'toy' must satisfy 2 <= min_digits <= max_digits")
    rng, problems = random.Random(f"toy {seed}"), []
    levels = range(min_digits, max_digits + 1)
    for i, level in enumerate(levels):
        # An equal part of the pool for each level; a short level has only 10**level questions.
        count = (size + heldout) * (i + 1) // len(levels) - (size + heldout) * i // len(levels)
        for number in rng.sample(range(10**level), min(count, 10**level)):
            terms = f"{number:0{level}d}"
            steps, total = worked_steps(" + ".join(terms), modulus=10)
            question, trace = "+".join(terms), ";".join(steps).replace(" ", "") + f"</think>{total}"
            problems.append(make_problem(
                "toy", question, str(total), kind="exact", level=level, trace=trace))
    return problems


def worked_steps(expression, modulus=None):
    """A chain of sums written out, and its result.

    >>> worked_steps("6 + 3 - 10")
    (['6 + 3 = 9', '9 - 10 = -1'], -1)
    """
    first, *rest = expression.split()
    total, steps = int(first), []
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        after = total + int(sign + term)
        after = after if modulus is None else after % modulus
        steps.append(f"{total} {sign} {term} = {after}")
        total = after
    return steps, total


def reasoning_gym_problems(name, heldout, seed, options):
    """Problems of one Reasoning Gym generator, with its own options. Questions repeat where there
    are few ("two one-digit terms": 200), so it asks for four times as many as are wanted."""
    import reasoning_gym
    from reasoning_gym.factory import DATASETS, ProceduralDataset

    generator = name.removeprefix("reasoning_gym:")
    if generator not in DATASETS or generator == "composite":  # it only deals out others
        near = did_you_mean(generator, DATASETS, "'reasoning_gym:{}'", otherwise=":")
        raise TaskError(f"task {name!r} is unknown{near} there are {len(DATASETS) - 1} generators "
                        "such as chain_sum, countdown and sudoku; for composite write a mix")
    defaults = {field.name: None for field in fields(DATASETS[generator][1])} | {"size": 2000}
    del defaults["seed"]
    wanted = checked_options(name, options, defaults)["size"] + heldout
    options = {key: value for key, value in options.items() if key != "size"}
    try:
        # The generator draws problem i from seed + i, so neighboring seeds would share nearly all
        # of their problems: keep them a million apart (NumPy takes 32 bits).
        source = reasoning_gym.create_dataset(
            generator, seed=1_000_000 * seed % 2**31, size=4 * wanted, **options)
    except (TypeError, ValueError, AssertionError) as error:  # how its configurations refuse
        raise TaskError(f"task options {options} are refused by {name!r}: {error}") from error

    own_rule = type(source).score_answer is not ProceduralDataset.score_answer
    problems = {}
    for entry in source:
        answer, kind, level, trace = entry["answer"], "math", 0, None
        # Numbers are compared by value, in microseconds; the rest is the generator's business.
        if not re.fullmatch("[-+]?[0-9]+", answer or "") and (
                own_rule or answer is None or plain_number(answer) is None):
            answer, kind = pack(generator, options, entry), "gym"
        if generator == "chain_sum":  # its level is the number of terms
            steps, total = worked_steps(entry["metadata"]["expression"])
            level, trace = len(steps) + 1, "; ".join(steps) + f"</think>{total}"
        found = make_problem(name, entry["question"], answer, kind=kind, level=level, trace=trace)
        problems.setdefault(found.id, found)
        if len(problems) == wanted:
            return list(problems.values())
    warnings.warn(f"task {name!r} has only {len(problems)} distinct problems with options "
                  f"{options}, {wanted} were asked for", stacklevel=2)
    return list(problems.values())


# What stands before or around the answer inside its column: nothing, GSM8K's, MATH's.
FORMS = {"plain": ("", ""), "####": ("####", " after ####"),
         "boxed": (r"\boxed", r" in the last \boxed{}")}
CHOICES = {"form": list(FORMS), "kind": ["math", "exact", "code"]}  # other kinds are made here
# Which column holds what; "a.b" looks into a table, "a.0" into a list; "" is found out.
COLUMNS = {
    "question": "",  # text, or a list of messages
    "answer": "",  # text or a number; of kind "code" the unit tests
    "form": "",  # one of FORMS
    "kind": "math",  # a column "kind" with one of CHOICES goes before it
    "level": "level",  # a number, or a text with one: "Level 5", "3/8"
    "trace": "trace",  # a worked solution; of kind "code" a program
}
# The usual names, in the order in which they are looked for: MATH-500 has an answer beside its
# solution, DAPO-17k a prompt beside its list of messages.
USUAL = {"question": ("question", "problem", "prompt", "messages"),
         "answer": ("answer", "reward_model.ground_truth", "solution", "messages")}
# What data sets write where there is no answer. As a gold answer, "\boxed{proof}" would score.
NO_ANSWERS = {"proof", "see proof", "n/a", "notfound", "not found", "unknown", "see solution"}
PRESETS = {  # repository, configuration, split, columns; the paper trains on the first two
    "polaris-53k": ("POLARIS-Project/Polaris-Dataset-53K", "", "train", {"level": "difficulty"}),
    "deepcoder": ("agentica-org/DeepCoder-Preview-Dataset", "primeintellect+taco+lcbv5", "train", {
        "question": "problem", "answer": "tests", "kind": "code", "trace": "solutions"}),
    "gsm8k": ("openai/gsm8k", "main", "train", {}),
    "gsm8k-test": ("openai/gsm8k", "main", "test", {}),
    "math": ("DigitalLearningGmbH/MATH-lighteval", "", "train", {}),
    "math-500": ("HuggingFaceH4/MATH-500", "", "test", {}),
    "dapo-17k": ("open-r1/DAPO-Math-17k-Processed", "en", "train", {}),
    "aime-24": ("HuggingFaceH4/aime_2024", "", "train", {}),
    "aime-25": ("math-ai/aime25", "", "test", {}),
}


def file_records(name):
    """{place: record} of a local file: JSON, an object a line or one array, CSV, or Parquet. Not by
    `datasets`: there one bad line loses the whole file, and the CSV answer "007" becomes 7.0."""
    try:
        if name.lower().endswith(".parquet"):
            import pyarrow.parquet

            with open(name, "rb") as file:
                rows = pyarrow.parquet.read_table(file).to_pylist()
        else:
            text = Path(name).read_text("utf-8-sig")  # with or without a byte-order mark
            if name.lower().endswith(".csv"):
                csv.field_size_limit(2**31 - 1)  # unit tests are long
                rows = list(csv.DictReader(io.StringIO(text, newline="")))
            elif not isinstance(rows := json_value(text), list):
                return {f"line {i}": json_value(line)
                        for i, line in enumerate(text.split("\n"), start=1) if line.strip()}
    except (OSError, ValueError) as error:
        raise TaskError(f"task {name!r} cannot be read: {error}") from error
    return {f"row {i}": row for i, row in enumerate(rows, start=1)}


def json_value(text):
    """The value; the text itself where it is no JSON, and so no record."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # no JSON; a number too long, or lists too deep
        return text


def hub_records(name, repository, configs, split):
    """{place: record} of a data set of the Hugging Face hub, or of a folder of that name here."""
    import datasets  # 0.8 s

    datasets.disable_progress_bars()
    records = {}
    for config in configs.split("+"):
        try:
            part = datasets.load_dataset(repository, config or None, split=split)
        except (OSError, ValueError) as error:
            cause = str(error).strip().splitlines()[0]
            raise TaskError(f"task {name!r} cannot be loaded: {cause}") from error
        records |= {f"{config or 'row'} {i}": row for i, row in enumerate(part, start=1)}
    return records


def record_problems(name, options, unusable):
    """The problems of a file or data set, each question once; tells how they are read."""
    if name.lower().endswith(FILES):
        task, columns = Path(name).stem, checked_options(name, options, COLUMNS)
        records = file_records(name)
    else:
        repository = name.removeprefix("hf:")
        repository, config, split, usual = PRESETS.get(name, (repository, "", "train", {}))
        task = name.removeprefix("hf:").rpartition("/")[2]
        columns = checked_options(name, options, COLUMNS | usual | {
            "repository": repository, "config": config, "split": split})
        records = hub_records(name, columns["repository"], columns["config"], columns["split"])
    columns = recognize(name, records, columns)
    problems, bad = {}, []
    for place, record in records.items():
        try:
            problem = record_problem(record, task, columns)
            problems.setdefault(problem.id, problem)
        except TaskError as error:
            bad.append(f"{name!r}, {place} {error}")
    unusable.sentences["bad_records"] += bad
    if not problems:
        raise TaskError(f"no record can be used; the first: {bad[0]}")
    several = sum(isinstance(problem.answer, tuple) for problem in problems.values())
    print(f"{name}: {len(problems)} problems in {len(records)} records, read as "
          f"{columns['question']}, {columns['answer']}{FORMS[columns['form']][1]}"
          + f", {columns['level']}" * any(problem.level for problem in problems.values())
          + f"; {several} with several accepted answers" * (several > 0))
    return list(problems.values())


def recognize(name, records, columns):
    """`columns` with the open ones found out from the records."""
    rows = [record for record in records.values() if isinstance(record, dict)]
    if not rows:
        raise TaskError(f'task {name!r} holds no record like {{"question": "2+3", "answer": "5"}}')
    chosen = dict(columns)
    for role, usual in USUAL.items():
        there = (path for path in usual if any(text_of(column(row, path), role) for row in rows))
        chosen[role] = columns[role] or next(there, None)
        if chosen[role] is None:
            raise TaskError(f"task {name!r} has no column of a usual name for the {role}: it has "
                            f"{', '.join(map(str, rows[0]))}; name it by the task option {role}")
    if not chosen["form"]:
        texts = [str(text_of(column(row, chosen["answer"]), "answer")) for row in rows]
        marked = {form: sum(mark in text for text in texts)
                  for form, (mark, _) in FORMS.items() if mark}
        most = max(marked, key=marked.get)
        usual = columns["kind"] == "math" and 2 * marked[most] > len(rows)
        chosen["form"] = most if usual else "plain"
    return chosen


def record_problem(record, task, columns):
    """The Problem of one record. Raises TaskError with the rest of a sentence on its place."""
    if not isinstance(record, dict):
        raise TaskError(f"is no JSON object: {str(record)[:60]!r}")
    kind = record.get("kind")
    kind = kind if kind in CHOICES["kind"] else columns["kind"]
    question, answer = (text_of(column(record, columns[role]), role) for role in USUAL)
    trace = column(record, columns["trace"])
    if kind == "code":
        try:
            tests = read_tests(column(record, columns["answer"]), record.get("metadata"))
            question = code_question(question, record.get("starter_code"), tests.fn_name)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise TaskError(f"has a bad field {columns['answer']!r}: unit tests must be in a known "
                            f"form ({error!r})") from None
        answer = tests.to_json()
        trace = trace[0] if isinstance(trace, list) and trace else trace
        if isinstance(trace, str) and "```" not in trace:
            trace = f"</think>```python\n{trace}\n```"
    elif (mark := FORMS[columns["form"]][0]) and isinstance(answer, str):
        parts = BOX.findall(answer) if columns["form"] == "boxed" else answer.split(mark)[1:]
        if not parts:
            raise TaskError(f"has no {mark} in its field {columns['answer']!r}")
        answer = parts[-1].strip()
    for role, value in [("question", question), *(("answer", gold) for gold in accepted(answer))]:
        if not isinstance(value, str) or not value.strip():
            raise TaskError(f"has a field {columns[role]!r} that is {value!r} and must be text, "
                            "not empty")
        if role == "answer" and kind == "math" and value.lower().strip(" .\n") in NO_ANSWERS:
            raise TaskError(f"has {value!r} for an answer, and no verifier can compare that")
    level = re.search("[0-9]+", str(column(record, columns["level"])))
    return make_problem(task, question, answer, kind=kind, level=int(level[0]) if level else 0,
                        trace=trace if isinstance(trace, str) else None)


def text_of(value, role):
    """A number as text; a list of one as its entry, of accepted answers as a tuple, of messages as
    the part that is the question or the answer; any other value as it is."""
    if type(value) in (int, float) and math.isfinite(value):
        return str(value)
    if not isinstance(value, list) or not value:
        return value
    if all(isinstance(entry, dict) and "role" in entry for entry in value):
        said = {who: [str(m.get("content") or "") for m in value if m["role"] == who]
                for who in ("system", "user", "assistant")}
        if role == "answer":
            return "".join(said["assistant"][-1:])
        # Of a longer conversation, the question is only a part.
        return "\n\n".join(said["system"] + said["user"]) if len(said["user"]) == 1 else None
    first, *others = texts = tuple(text_of(entry, role) for entry in value)
    several = role == "answer" and all(isinstance(text, str) for text in texts)
    return (texts if several else value) if others else first


def column(record, path):
    """The value at "a", "a.b" or "a.0" of a record; None where there is none."""
    try:
        for key in path.split("."):
            record = record[int(key) if isinstance(record, list) else key]
        return record
    except (LookupError, TypeError, ValueError):
        return None


def code_question(question, starter_code, name):
    """The question, and what data sets do not say: what is called, where the program must stand."""
    wanted = "that reads standard input and writes standard output" if name is None else (
        f"with the function `{name}`, alone or as a method of a class `Solution`")
    given = f"\n\nStart from this:\n```python\n{starter_code.rstrip()}\n```" if starter_code else ""
    return (f"{question.rstrip()}{given}\n\nWrite a Python program {wanted}. Put all of it in one "
            "```python block.")
