"""Where problems come from: generators, files, data sets of the Hugging Face hub.

No randomness that is not seeded, and no problem is left out in silence."""
import contextlib
import csv
import hashlib
import json
import random
import re
import tomllib
import warnings
from dataclasses import dataclass
from pathlib import Path

from tasks.answers import BOX, RE
from tasks.own_reward import TaskError, problems_of, text_of
from tasks.sandbox import read_tests


@dataclass(frozen=True)
class Problem:
    """One question with its gold answer. Frozen: many rollouts point at the same record."""
    id: str  # "task/hash of the question": the same in every run, whatever the seed or file order
    task: str  # the name evaluation is reported under
    question: str
    answer: str  # the gold one; of other kinds what judges it
    kind: str = "math"  # which rule of `verify` judges it
    level: int = 0  # graded difficulty, 0 where nobody graded it


def make_problem(task, question, answer, **fields):
    return Problem(f"{task}/{question_hash(question)}", task, question, answer, **fields)


def question_hash(question):
    """12 hex digits of a question, spacing apart; two of 10,000 collide with chance 2e-7."""
    return hashlib.sha256(" ".join(question.split()).encode()).hexdigest()[:12]


def load_pool(name, heldout, seed, options):
    """(all distinct problems of one task; a sentence for each bad record). Raises TaskError."""
    try:
        if name == "toy":
            return toy_problems(heldout, seed, **checked_options(name, options, TOY_OPTIONS)), []
        if name.startswith("reasoning_gym:"):
            return reasoning_gym_problems(name, heldout, seed, **options)
        if name in PRESETS or name.startswith("hf:") or name.lower().endswith(FILES):
            known = COLUMNS | ({} if name.lower().endswith(FILES) else HUB) | PRESETS.get(name, {})
            return record_problems(name, checked_options(name, options, known))
    except ImportError as error:
        package = str(error.name).partition(".")[0]
        raise TaskError(f"task {name!r} needs a package: pip install {package}") from error
    if name.endswith(".py"):
        checked_options(name, options, {})  # its options are its own constants
        return own_problems(name), []
    raise TaskError(f"task {name!r} is unknown: use toy, reasoning_gym:NAME, {', '.join(PRESETS)}, "
                    f"hf:OWNER/NAME, a file ({', '.join(FILES)}, .py), or a mix: toy+my.jsonl")


def checked_options(name, options, defaults):
    """Defaults with the given options over them. Raises TaskError: another option or type."""
    for key, value in options.items():
        if key not in defaults or type(value) is not type(defaults[key]):
            raise TaskError(f"task option {key} = {value!r} is not one of {name!r}: {defaults}; if "
                            "it is of a --config, --task-options '{}' drops it")
    return defaults | options


TOY_OPTIONS = {"size": 2500, "min_digits": 2, "max_digits": 4}


def toy_problems(heldout, seed, *, size, min_digits, max_digits):
    """Running sums modulo 10, "6+3+9+2" -> "0"; the level is the number of digits. Modulo 10 every
    number is one token, and the steps of a long sum are no harder than those of a short one."""
    if size < 1 or not 2 <= min_digits <= max_digits <= 18:
        raise TaskError("options of 'toy': size is at least 1, 2 <= min_digits <= max_digits <= 18")
    rng, problems = random.Random(f"toy {seed}"), []
    levels, total = range(min_digits, max_digits + 1), size + heldout
    for i, level in enumerate(levels):
        # An equal part of the pool for each level; a short level has only 10**level questions.
        count = total * (i + 1) // len(levels) - total * i // len(levels)
        for number in rng.sample(range(10**level), min(count, 10**level)):
            terms = f"{number:0{level}d}"
            problems.append(make_problem("toy", "+".join(terms), str(sum(map(int, terms)) % 10),
                                         kind="exact", level=level))
    return problems


def reasoning_gym_problems(name, heldout, seed, /, *, size=2000, **options):
    """(`size` problems of one Reasoning Gym generator and those held out, or fewer; a sentence for
    each of the few whose answer is no whole number). Raises TaskError: more than a few."""
    import reasoning_gym
    generator, problems, bad = name.removeprefix("reasoning_gym:"), {}, []
    try:
        wanted = size + heldout
        # It draws problem i from seed + i, and some again: keep seeds a million apart (of 32 bits).
        source = reasoning_gym.create_dataset(
            generator, seed=1_000_000 * seed % 2**31, size=4 * wanted, **options)
    except (TypeError, ValueError, AssertionError) as error:  # how its configurations refuse
        raise TaskError(f"task {name!r} with options {options}, size {size!r}: {error}") from error
    for entry in source:
        answer, level = entry["answer"], 0
        if not re.fullmatch("[-+]?[0-9]+", answer or ""):
            bad.append(f"task {name!r} has answers that are no whole numbers, such as {answer!r}: "
                       "judge them in a task of a Python file (docs/tasks.md)")
            if len(bad) > 10 + len(problems) // 10:     # it is of another kind
                raise TaskError(bad[0])
            continue
        if generator == "chain_sum":  # its level is the number of terms
            level = len(entry["metadata"]["expression"].split()) // 2 + 1
        found = make_problem(name, entry["question"], answer, level=level)
        problems.setdefault(found.id, found)
        if len(problems) == wanted:
            break
    else:
        warnings.warn(f"task {name!r} has only {len(problems)} distinct problems with options "
                      f"{options}, {wanted} were asked for", stacklevel=2)
    return list(problems.values()), bad


def own_problems(path):
    """The problems of a file for own_reward.py, each question once. Raises TaskError."""
    (kind, problems), made = problems_of(path), {}
    for problem in (make_problem(Path(path).stem, *each, kind=kind) for each in problems):
        if made.setdefault(problem.id, problem) != problem:
            raise TaskError(f"{path!r} asks {problem.question[:60]!r} again, with other fields")
    return list(made.values())


FILES = (".jsonl", ".json", ".csv", ".parquet")
KINDS = ("math", "exact", "code")
HUB = {"config": "", "split": "train"}  # of data sets
# What stands before or around the answer inside its column, and how it is told: GSM8K's, MATH's.
MARKS = {"####": " after ####", r"\boxed": r" in the last \boxed{}"}
PRESETS = tomllib.loads(Path(__file__).with_name("presets.toml").read_text())
USUAL, COLUMNS = PRESETS.pop("usual"), PRESETS.pop("columns")  # of a file; and their defaults


def read_records(name, options):
    """The records of a file, or of a data set of the hub (or of a folder of that name here).
    JSON and CSV not by `datasets`, for which the CSV answer "007" is 7.0. Raises TaskError."""
    if (ending := Path(name).suffix.lower()) not in (".csv", ".json", ".jsonl"):
        import datasets  # 0.8 s
        import pyarrow.parquet
    try:
        if ending == ".csv":
            csv.field_size_limit(2**31 - 1)  # unit tests may be longer than 128 KiB
            with open(name, encoding="utf-8-sig", newline="") as file:  # byte-order mark or not
                mark = max(",;\t", key=file.readline().count)
                file.seek(0)
                rows = csv.DictReader(file, delimiter=mark, strict=True)  # no quote is left open
                if twice := [n for n in rows.fieldnames or () if rows.fieldnames.count(n or 0) > 1]:
                    raise TaskError(f"its first line has the column {twice[0]!r} twice")
                return list(rows)
        if ending in (".json", ".jsonl"):
            text = Path(name).read_text("utf-8-sig")
            lines = ending == ".jsonl" or re.match(r"\s*\{.*\}\s*\n\s*\{", text)  # an object a line
            if not lines or re.fullmatch(r"\s*\[.*\]\s*", text, re.S):
                found = json.loads(text)
                parts = found.values() if isinstance(found, dict) else [found]  # {"data": [...]}
                return next((part for part in parts if isinstance(part, list)), [])
            records = [line if line.strip() else ... for line in text.split("\n")]
            for i, line in enumerate(records):  # one that is no JSON stays a text
                with contextlib.suppress(TypeError, ValueError, RecursionError):
                    records[i] = json.loads(line)
            return records
        if ending == ".parquet":
            return pyarrow.parquet.ParquetFile(name).read().to_pylist()
        repository = options.get("repository") or name.removeprefix("hf:")
        return [record for config in options["config"].split("+") for record in
                datasets.load_dataset(repository, config or None, split=options["split"])]
    except Exception as error:  # other people's programs: errors of any class
        place = f"after line {rows.line_num}: " if isinstance(error, csv.Error) else ""
        cause = place + (str(error).strip() or repr(error)).splitlines()[0] + (
            ": save it as UTF-8" * isinstance(error, UnicodeError))
        raise TaskError(f"task {name!r} cannot be read: {cause}") from error


def record_problems(name, options):
    """(the problems of a file or data set, each question once; a sentence for each bad record).
    What the options leave open is found out from the first ones and printed. Raises TaskError."""
    if options["kind"] not in KINDS:
        raise TaskError(f"task option kind = {options['kind']!r} must be one of {', '.join(KINDS)}")
    records = read_records(name, options)
    if (first := next((r for r in records if isinstance(r, dict)), None)) is None:
        raise TaskError(f'task {name!r} holds no record like {{"question": "2+3", "answer": "5"}}')
    columns = dict(options)
    for role, usual in [*USUAL.items(), *[("level", ())] * (options["level"] not in ("", "level"))]:
        paths, seen = ([options[role]], records) if options[role] else (usual, records[:9])
        columns[role] = next((path for path in paths if any(
            column(r, path) is not None for r in seen)), None)
        if columns[role] is None:
            raise TaskError(f"task {name!r} has no column "
                            f"{options[role] or 'of a usual name for the ' + role}: it has "
                            f"{', '.join(map(str, first))}; name it by --task-options "
                            f"""'{{"{role}": "ITS COLUMN"}}'""")
    answer = str(next(filter(None, (column(r, columns["answer"]) for r in records)), ""))
    mark = next((m for m in MARKS if m in answer and columns["kind"] == "math"), "")
    task = Path(name).stem if name.lower().endswith(FILES) else name.rpartition("/")[2]
    problems, bad = {}, []
    place = "line" if name.lower().endswith(".jsonl") else "record"
    for number, record in enumerate(records, start=1):
        try:
            if record is not ...:  # a line that is empty
                problem = record_problem(record, task, columns, mark)
                first = problems.setdefault(problem.id, problem)
                if first.answer != problem.answer:
                    raise TaskError(f"asks again, with another answer: {problem.answer[:40]!r}")
        except (ValueError, RecursionError) as error:
            cause = error if isinstance(error, TaskError) else f"cannot be read: {error}"
            bad.append(f"{name!r}, {place} {number} {cause}")
    if not problems:
        raise TaskError(f"no record can be used; the first: {bad[0]}")
    level = f", {columns['level']}" if any(p.level for p in problems.values()) else ""
    print(f"{name}: {len(problems)} problems in {len(records) - records.count(...)} records, read "
          f"as {columns['question']}, {columns['answer']}{MARKS.get(mark, '')}{level}")
    return list(problems.values()), bad


def record_problem(record, task, columns, mark):
    """The Problem of one record. Raises TaskError with the rest of a sentence on its place."""
    if not isinstance(record, dict):
        raise TaskError(f"is no JSON object: {str(record)[:60]!r}")
    if None in record:
        raise TaskError(f"has more fields than the first line: {str(record[None])[:60]}")
    kind = record["kind"] if record.get("kind") in KINDS else columns["kind"]
    question, answer = (text_of(column(record, columns[role])) for role in USUAL)
    if kind == "code":
        try:
            tests = read_tests(column(record, columns["answer"]), record.get("metadata"))
            question = code_question(question, record.get("starter_code"), tests.fn_name)
            answer = json.dumps(tests)
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise TaskError(f"has no unit tests in {columns['answer']!r}: {error!r}") from None
    elif mark and isinstance(answer, str):
        parts = BOX.findall(answer) if mark == r"\boxed" else answer.split(mark)[1:]
        if not parts:
            raise TaskError(f"has no {mark} in its field {columns['answer']!r}, as the first has")
        answer = parts[-1].strip()
    for role, value in (("question", question), ("answer", answer)):
        if not isinstance(value, str) or not value.strip():
            raise TaskError(f"has no text in {columns[role]!r}: {value!r}")
    if RE.no_gold.fullmatch(answer):
        raise TaskError(f"has {answer!r} for an answer")
    if record.get("choices") or record.get("options") or (
            {"A", "B", "C"} <= record.keys() and answer.strip() in tuple("ABCDE")):
        raise TaskError("has options of multiple choice: write them into the question")
    if kind == "math" and not mark and RE.ambiguous.fullmatch(answer):
        raise TaskError(f"has the answer {answer!r}: a decimal is 12.5, and a list 12, 5")
    level = re.search("[0-9]+", str(column(record, columns["level"])))
    return make_problem(task, question, answer, kind=kind, level=int(level[0]) if level else 0)


def column(record, path):
    """The value at "a", "a.b" or "a.0" of a record; None where there is none."""
    try:
        for key in [path] if path in record else path.split("."):
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
