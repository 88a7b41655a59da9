"""Problems, prompts and marks: what the model is asked and how its answer is judged.

The paper (sec. 2) trains on math problems, reward +1 for a correct answer and -1 for any other,
judged from the text after `</think>`, and holds 1,000 problems out to draw its curve (sec. 3).
What is here, in the order a problem lives:

1. Problem        one record: question, gold answer, and which verifier marks it
2. load_task      a spec such as "toy", "reasoning_gym:chain_sum", "polaris-53k", "hf:OWNER/NAME",
                  "my.jsonl" or "a:0.7+b:0.3" becomes a list of problems; the held-out ones are
                  chosen by a hash of the question
3. sources        where problems come from
4. prompt_ids     the question in the model's own chat format
5. check_gold     the gold answers, marked by their own verifier before the first step
6. questions_of   all of this for a run: what it trains on, what it is evaluated on, and the prompts

The mark itself is in verify.py. Differences from the paper, all ours: the toy task and the
generated problems.

No torch here, no randomness that is not seeded, and no problem is dropped without a word.

    >>> load_task("toy", "train", heldout=512)[0].trace  # doctest: +SKIP
    '1+7=8;8+3=1;1+9=0</think>0'
"""

import difflib
import hashlib
import json
import math
import random
import re
import sys
import warnings
from collections import defaultdict
from dataclasses import dataclass, fields, replace
from pathlib import Path

from generated import gold_answer, pack
from sandbox import SandboxError, check_box, parse_tests
from verify import TaskError, boxed_parts, read_number, verify

# The paper's words (sec. 4), forced into the output when the thinking budget is spent. They live
# here, beside prompts and marks, because toy.py has to teach its model the same words that the
# sampler will use.
INTERRUPTION_PHRASE = (
    "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"
)
SPLITS = ("train", "heldout")
SOLUTIONS_CHECKED = 32


# ------------------------------------------------------------------------------------------------
# 1. One problem


@dataclass(frozen=True)
class Problem:
    """One question with its gold answer. Frozen: many rollouts point at the same record."""

    id: str  # "task/hash of the question": the same in every run, whatever the seed or file order
    task: str  # the name evaluation is reported under
    question: str
    answer: str  # the gold answer, as text; of kinds "code" and "gym" what the verifier needs
    kind: str = "math"  # which rule of `verify` marks it
    level: int = 0  # graded difficulty, 0 where nobody graded it
    trace: str | None = None  # a correct completion, "thinking</think>answer", for warm starts


def make_problem(task, question, answer, **fields):
    """A Problem with its id. 48 bits of hash: 10,000 problems collide with chance 2e-7."""
    return Problem(f"{task}/{question_hash(question)}", task, question, answer, **fields)


def question_hash(question):
    """12 hex digits of the question, spacing apart: "1  + 2" and "1 + 2" are one."""
    return hashlib.sha256(" ".join(question.split()).encode()).hexdigest()[:12]


# ------------------------------------------------------------------------------------------------
# 2. From a spec to a list of problems


def load_task(spec, split, **options):
    """The problems of one split of a task, "train" or "heldout"; all else as in load_splits."""
    if split not in SPLITS:
        raise TaskError(f'split = {split!r} is unknown: use "train" or "heldout"')
    return load_splits(spec, splits=(split,), **options)[0]


def load_splits(spec, *, heldout=1000, seed=0, options=None, splits=SPLITS):
    """[training problems, held-out ones] of a task, read once. Each list is in a fixed order, and
    any prefix of it is a fair sample.

    spec: "toy", "reasoning_gym:NAME", a preset (see PRESETS), "hf:OWNER/NAME", a path ending in
        .jsonl or .parquet, or a mix. "a+b" trains on all problems of both; "a:0.7+b:0.3" keeps as
        many as it can in these shares.
    heldout: how many problems are held out in total; a mix divides them by its shares (equally,
        when it has none), so that the plain mean over them is the pass rate of the mix.
    seed: which problems a generator draws. It does not touch a file, nor the hash of a question.
    options: the generator's own options and "size", the number of training problems (default
        2,000); for files and data sets see COLUMNS. For a mix, a dict from part to options:
        {"reasoning_gym:chain_sum": {...}}.
    splits: which of the two lists are wanted.

    The paper holds out 1,000 of its training distribution. Raises TaskError.
    """
    if not isinstance(heldout, int) or heldout < 0:
        raise TaskError(f"heldout = {heldout!r} must be a whole number, 0 or more")
    weights = parse_mix(spec)
    options = options_by_part(options or {}, list(weights))
    shares = {part: weight or 1.0 for part, weight in weights.items()}
    scale = sum(shares.values())

    train, held = {}, {}
    for part, share in shares.items():
        part_heldout = round(heldout * share / scale)
        pool = load_pool(part, part_heldout, seed, options[part])
        train[part], held[part] = split_pool(part, pool, part_heldout)

    # Two files may share questions, and each file holds out its own: what any part holds out
    # leaves the training problems of all parts.
    leaks = {question_hash(p.question) for part in held.values() for p in part}
    for part, problems in train.items():
        train[part] = [p for p in problems if question_hash(p.question) not in leaks]
    if None not in weights.values():
        whole = min(len(train[part]) / share for part, share in shares.items())
        for part, share in shares.items():
            count = round(whole * share)
            if "train" in splits and count < len(train[part]):
                warnings.warn(f"task {spec!r}: {len(train[part]) - count} of {len(train[part])} "
                              f"problems of {part!r} are left out to keep the shares", stacklevel=2)
            train[part] = train[part][:count]

    chosen = [dealt((train if split == "train" else held).values()) for split in splits]
    for split, problems in zip(splits, chosen):
        if not problems:
            raise TaskError(f"task {spec!r} has no {split} problems with heldout = {heldout}")
        if len({p.id for p in problems}) < len(problems):
            raise TaskError(
                f"task {spec!r} has two parts of the same name: rename one of the files")
    return chosen


def dealt(parts):
    """The parts of a mix in one list, each spread evenly over it: a prefix has all of them."""
    places = [((i + 0.5) / len(part), k, p) for k, part in enumerate(parts)
              for i, p in enumerate(part)]
    return [p for _, _, p in sorted(places, key=lambda place: place[:2])]


def load_evaluation(spec, options=None):
    """All problems of a task that is only evaluated, such as "aime-24"; spec as in load_task.

    Its questions may still be among the training problems: see `without`. Raises TaskError.
    """
    parts = list(parse_mix(spec))
    options = options_by_part(options or {}, parts)
    return [p for part in parts for p in load_pool(part, 0, 0, options[part])]


def without(train, evaluation):
    """The training problems whose question is in none of the evaluation's; says how many are."""
    asked = {question_hash(problem.question) for problem in evaluation}
    kept = [problem for problem in train if question_hash(problem.question) not in asked]
    if len(kept) < len(train):
        warnings.warn(
            f"{len(train) - len(kept)} of {len(train)} training problems are questions of an "
            "evaluation set; they are left out of training",
            stacklevel=2,
        )
    return kept


def parse_mix(spec):
    """{part: weight or None} of "a", "a+b" or "a:0.7+b:0.3"."""
    if not isinstance(spec, str) or not spec.strip():
        raise TaskError(f"task = {spec!r} must be text, as \"toy\" or \"reasoning_gym:chain_sum\"")
    weights = {}
    for part in spec.split("+"):
        weighted = re.fullmatch(r"(.+):([0-9]*\.?[0-9]+)", part.strip())
        name, weight = weighted.groups() if weighted else (part.strip(), None)
        if name in weights:
            raise TaskError(f"task = {spec!r} names {name!r} twice: give each part once")
        weights[name] = None if weight is None else float(weight)
    if 0.0 in weights.values() or len({weight is None for weight in weights.values()}) > 1:
        raise TaskError(f"task = {spec!r}: give every part a weight above 0, or none of them")
    return weights


def options_by_part(options, parts):
    """One options dict per part; a single task takes its options directly."""
    if not isinstance(options, dict):
        raise TaskError(f'task options = {options!r} must be a table such as {{"max_terms": 2}}')
    if len(parts) == 1:
        return {parts[0]: options}
    unknown = [key for key in options if key not in parts or not isinstance(options[key], dict)]
    if unknown:
        raise TaskError(
            f"task option {unknown[0]!r}: a mix takes options by part, a table for each of {parts}"
        )
    return {part: options.get(part, {}) for part in parts}


def load_pool(name, heldout, seed, options):
    """All distinct problems of one task, training and held-out together."""
    if name == "toy":
        return toy_problems(heldout, seed, **checked_options(name, options, TOY_OPTIONS))
    if name.startswith("reasoning_gym:"):
        return reasoning_gym_problems(name, heldout, seed, options)
    if name.endswith((".jsonl", ".parquet")):
        return file_problems(Path(name), column_options(name, options, COLUMNS))
    if name in PRESETS:
        preset = COLUMNS | HUB | PRESETS[name]
        return hub_problems(name, name, column_options(name, options, preset))
    if name.startswith("hf:"):
        repository = name.removeprefix("hf:")
        known = [preset for preset in PRESETS.values() if preset["repository"] == repository]
        preset = COLUMNS | HUB | {"repository": repository} | (known[0] if known else {})
        task = repository.rpartition("/")[2]
        return hub_problems(name, task, column_options(name, options, preset))
    raise TaskError(
        f"task {name!r} is unknown" + did_you_mean(name, ["toy", *PRESETS], otherwise=":")
        + ' use "toy", "reasoning_gym:NAME", "hf:OWNER/NAME", a path ending in .jsonl or .parquet, '
        f"one of {', '.join(PRESETS)}, or a mix such as \"toy:0.7+my.jsonl:0.3\""
    )


def split_pool(name, pool, heldout):
    """(train, heldout): the same share of every level is held out, lowest hashes first.

    Why a hash and not a shuffle: a question is then on the same side in (nearly) every run. With
    another seed or size the border moves by a fraction of a percent, and a smaller `heldout` is a
    subset of a larger one, so a warm start on one pool does not see the held-out questions of
    another. Levels are ranked apart, else the held-out pass rate would carry the luck of the draw
    of levels (a few hundred problems over 7 levels: 0.01, as large as what the curve must show).
    """
    if heldout >= len(pool):
        raise TaskError(
            f"heldout = {heldout} leaves nothing to train on: {name!r} has {len(pool)} distinct "
            f"problems, so choose heldout below {len(pool)}"
        )
    levels = defaultdict(list)
    for problem in pool:
        levels[problem.level].append(problem)
    ranked = []  # (quantile of the hash within the level, problem): levels interleave evenly
    for problems in levels.values():
        problems.sort(key=lambda p: p.id)
        ranked += [((i + 0.5) / len(problems), p.level, p) for i, p in enumerate(problems)]
    order = [p for _, _, p in sorted(ranked, key=lambda entry: entry[:2])]
    return order[heldout:], order[:heldout]


def did_you_mean(word, known, form="{!r}", otherwise=""):
    """The question to add to "... is unknown", with the nearest of the known; else `otherwise`.

    >>> did_you_mean("toi", ["toy", "math"])
    ", did you mean 'toy'?"
    """
    near = difflib.get_close_matches(word, known, 1)
    return f", did you mean {form.format(near[0])}?" if near else otherwise


def known_options(name, options, defaults):
    """Raises TaskError, with the nearest name, if one of the options is none of the defaults."""
    for key in options:
        if key not in defaults:
            raise TaskError(f"task option {key!r} is unknown to {name!r}"
                            + did_you_mean(key, defaults, otherwise=":")
                            + f" it takes {', '.join(defaults)}")


def checked_options(name, options, defaults):
    """Defaults with the given options over them; unknown names and non-integers are errors."""
    known_options(name, options, defaults)
    for key, value in options.items():
        if type(value) is not int or value < 1:
            wanted = "must be a whole number above 0"
            raise TaskError(f"task option {key} = {value!r} of {name!r} {wanted}")
    return {**defaults, **options}


def column_options(name, options, defaults):
    """Defaults with the given options over them: names of columns, so all of them are text."""
    known_options(name, options, defaults)
    for key, value in options.items():
        if not isinstance(value, str):
            raise TaskError(f"task option {key} = {value!r} of {name!r} must be text")
    chosen = defaults | options
    if chosen["kind"] not in FILE_KINDS:
        wanted = f"use one of {FILE_KINDS}"
        raise TaskError(f"task option kind = {chosen['kind']!r} of {name!r}: {wanted}")
    if chosen["form"] not in FORMS:
        raise TaskError(f"task option form = {chosen['form']!r} of {name!r}: use one of {FORMS}")
    return chosen


# ------------------------------------------------------------------------------------------------
# 3. Sources

# 3 to 9 digits: 2 to 8 steps. Shorter chains are solved by luck, longer ones hardly ever at first,
# and the mean trace is 32 tokens, which is what a step may cost on two cores.
TOY_OPTIONS = {"size": 2000, "min_digits": 3, "max_digits": 9}


def toy_problems(heldout, seed, *, size, min_digits, max_digits):
    """Running sums modulo 10, "6+3+9+2" -> "0"; the level is the number of digits.

    Modulo 10 keeps every number one digit: one token a number, and a step's difficulty does not
    depend on the step. The answer is marked "exact": one digit and nothing else after </think>.
    """
    if not 2 <= min_digits <= max_digits:
        raise TaskError(
            f"task options min_digits = {min_digits}, max_digits = {max_digits} of 'toy' must "
            "satisfy 2 <= min_digits <= max_digits"
        )
    rng = random.Random(f"toy {seed}")
    levels = range(min_digits, max_digits + 1)
    problems = []
    for i, level in enumerate(levels):
        # An equal part of the pool for each level; a short level has only 10**level questions.
        count = (size + heldout) * (i + 1) // len(levels) - (size + heldout) * i // len(levels)
        for number in rng.sample(range(10**level), min(count, 10**level)):
            terms = [int(digit) for digit in f"{number:0{level}d}"]
            steps, total = worked_steps(terms[0], [("+", term) for term in terms[1:]], modulus=10)
            trace = ";".join(steps).replace(" ", "") + f"</think>{total}"
            question = "+".join(str(term) for term in terms)
            problems.append(
                make_problem("toy", question, str(total), kind="exact", level=level, trace=trace)
            )
    return problems


def worked_steps(total, rest, modulus=None):
    """A chain of sums written out, and its result.

    >>> worked_steps(6, [("+", 3), ("-", 10)])
    (['6 + 3 = 9', '9 - 10 = -1'], -1)
    """
    steps = []
    for operator, term in rest:
        after = total + term if operator == "+" else total - term
        after = after if modulus is None else after % modulus
        steps.append(f"{total} {operator} {term} = {after}")
        total = after
    return steps, total


def reasoning_gym_problems(name, heldout, seed, options):
    """Problems of one Reasoning Gym generator, with its own options.

    Asks for further problems until size + heldout distinct questions are found, at most four times
    as often: small settings have few questions ("two one-digit terms" about 200), and a question
    that occurs twice must not count twice.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS, ProceduralDataset
    except ImportError as error:
        sentence = f"task {name!r} needs a package: pip install 'reasoning-gym<0.2'"
        raise TaskError(sentence) from error
    generator = name.removeprefix("reasoning_gym:")
    if generator not in DATASETS:
        raise TaskError(
            f"task {name!r} is unknown"
            + did_you_mean(generator, DATASETS, "'reasoning_gym:{}'", otherwise=":")
            + f" Reasoning Gym has {len(DATASETS)} generators, among them chain_sum, countdown and "
            "sudoku"
        )
    if generator == "composite":
        raise TaskError(f"task {name!r} only deals out others: name them in a mix, such as "
                        '"reasoning_gym:chain_sum:0.7+reasoning_gym:sudoku:0.3"')
    settings = {f.name: 0 for f in fields(DATASETS[generator][1]) if f.name != "seed"}
    known_options(name, options, settings)
    options = dict(options)
    size = checked_options(name, {"size": options.pop("size", 2000)}, {"size": 2000})["size"]
    wanted = size + heldout
    try:
        # The generator draws problem i from seed + i, so neighboring seeds would share nearly all
        # of their problems: keep them a million apart (NumPy takes 32 bits).
        source = reasoning_gym.create_dataset(
            generator, seed=1_000_000 * seed % 2**31, size=4 * wanted, **options
        )
    except (TypeError, ValueError, AssertionError) as error:  # how its configurations refuse
        raise TaskError(f"task options {options} are refused by {name!r}: {error}") from error

    own_rule = type(source).score_answer is not ProceduralDataset.score_answer
    problems = {}
    for i in range(4 * wanted):
        if len(problems) == wanted:
            break
        entry = source[i]
        answer, kind = entry["answer"], "math"
        # Whole numbers, and all numbers that have no rule of their own, are compared by value, in
        # microseconds; the rest is the generator's business.
        if not re.fullmatch("[-+]?[0-9]+", answer or "") and (
                own_rule or answer is None or read_number(answer) is None):
            answer, kind = pack(generator, options, entry), "gym"
        level, trace = chain_sum_trace(entry) if generator == "chain_sum" else (0, None)
        problem = make_problem(
            name, entry["question"], answer, kind=kind, level=level, trace=trace
        )
        problems.setdefault(problem.id, problem)
    if len(problems) < wanted:
        warnings.warn(
            f"task {name!r} has only {len(problems)} distinct problems with options {options}; "
            f"{size} to train on and {heldout} held out were asked for",
            stacklevel=2,
        )
    return list(problems.values())


def chain_sum_trace(entry):
    """(level, trace) of a chain_sum entry: number of terms, and the sum worked left to right."""
    first, *rest = entry["metadata"]["expression"].split()
    steps, total = worked_steps(
        int(first), [(op, int(term)) for op, term in zip(rest[::2], rest[1::2], strict=True)]
    )
    return len(rest) // 2 + 1, "; ".join(steps) + f"</think>{total}"


# Files and data sets. Which column holds what; "a.b" looks into a table, "a.0" into a list.
FORMS = ("plain", "####", "boxed")
FILE_KINDS = ("math", "exact", "code")  # the others are made here
COLUMNS = {
    "question": "question",
    "answer": "answer",  # text or a number; of kind "code" the unit tests
    "form": "plain",  # where in that column the answer is: all of it, after "####", in \\boxed{}
    "kind": "math",  # a column "kind" with one of FILE_KINDS goes before it
    "level": "level",  # a number, or a text with one: "Level 5", "3/8"
    "trace": "trace",  # a worked solution; of kind "code" a program
}
HUB = {"repository": "", "config": "", "split": "train"}
# The paper trains on the first two. Their columns are as the data sets' own pages describe them.
PRESETS = {
    "polaris-53k": {
        "repository": "POLARIS-Project/Polaris-Dataset-53K",
        "question": "problem",
        "level": "difficulty",
    },
    "deepcoder": {
        "repository": "agentica-org/DeepCoder-Preview-Dataset",
        "config": "primeintellect+taco+lcbv5",
        "question": "problem",
        "answer": "tests",
        "kind": "code",
        "trace": "solutions",
    },
    "gsm8k": {"repository": "openai/gsm8k", "config": "main", "form": "####"},
    "gsm8k-test": {"repository": "openai/gsm8k", "config": "main", "split": "test", "form": "####"},
    "math": {
        "repository": "DigitalLearningGmbH/MATH-lighteval",
        "question": "problem",
        "answer": "solution",
        "form": "boxed",
    },
    "math-500": {"repository": "HuggingFaceH4/MATH-500", "split": "test", "question": "problem"},
    "dapo-17k": {
        "repository": "open-r1/DAPO-Math-17k-Processed",
        "config": "en",
        "question": "prompt",
        "answer": "solution",
    },
    "aime-24": {"repository": "HuggingFaceH4/aime_2024", "question": "problem"},
    "aime-25": {"repository": "math-ai/aime25", "split": "test", "question": "problem"},
}


def file_problems(path, columns):
    """Problems of a local file, one record a line or row; `columns` as in COLUMNS.

    Strict, since the file is its owner's to correct: every error names the line.
    """
    where = f"task {str(path)!r}"
    try:
        records = parquet_records(path) if path.suffix == ".parquet" else jsonl_records(path, where)
    except FileNotFoundError:
        raise TaskError(f"{where}: there is no such file") from None
    except (OSError, ValueError) as error:
        if isinstance(error, TaskError):
            raise
        raise TaskError(f"{where} cannot be read: {error}") from error
    problems, first_line, repeated = {}, {}, 0
    for number, record in enumerate(records, start=1):
        problem = record_problem(record, path.stem, columns, f"{where}, line {number}")
        same = problems.setdefault(problem.id, problem)
        if same.answer != problem.answer:
            raise TaskError(
                f"{where}, lines {first_line[problem.id]} and {number}: one question, "
                f"two answers, {same.answer!r} and {problem.answer!r}"
            )
        repeated += number != first_line.setdefault(problem.id, number)
    if not problems:
        raise TaskError(f"{where} is empty: it needs one problem a line")
    tell_unused(where, records, columns)
    if repeated:
        warnings.warn(
            f"{where}: {repeated} of {len(records)} lines repeat a question; kept once",
            stacklevel=2,
        )
    return list(problems.values())


def jsonl_records(path, where):
    """The records of a file with one {"question": ..., "answer": ...} a line."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise TaskError(f"{where} cannot be read as UTF-8 text: {error}") from error
    if lines[-1] == "":  # the newline that ends the last line
        lines.pop()
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise TaskError(f"{where}, line {number} is not JSON: {error}") from error
    return records


def parquet_records(path):
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise TaskError(f"task {str(path)!r} needs a package: pip install pyarrow") from error
    return pyarrow.parquet.read_table(path).to_pylist()


def hub_problems(name, task, options):
    """Problems of a data set of the Hugging Face hub, or of a folder of that name here.

    Lenient, since nobody here can correct it: records without question or answer, and questions
    with two answers, are left out, with a warning that counts them and names the first.
    """
    try:
        import datasets
    except ImportError as error:
        raise TaskError(f"task {name!r} needs a package: pip install 'datasets>=5.2,<6'") from error
    datasets.disable_progress_bars()
    records = []
    for config in options["config"].split("+"):
        try:
            part = datasets.load_dataset(
                options["repository"], config or None, split=options["split"]
            )
        except (OSError, ValueError) as error:
            cause = str(error).strip().splitlines()[0]
            raise TaskError(f"task {name!r} cannot be loaded: {cause}") from error
        records += [(f"{config or 'row'} {i}", record) for i, record in enumerate(part, start=1)]
    tell_unused(f"task {name!r}", [record for _, record in records], options)
    problems, left_out, clash = {}, [], set()
    for where, record in records:
        try:
            problem = record_problem(record, task, options, where)
        except TaskError as error:
            left_out.append(str(error))
            continue
        if problem.kind == "code":
            request = code_request(problem.answer)
            problem = replace(problem, question=f"{problem.question.rstrip()}\n\n{request}")
        if problems.setdefault(problem.id, problem).answer != problem.answer:
            left_out.append(f"{where}: one question, two answers")
            clash.add(problem.id)
    problems = [problem for problem in problems.values() if problem.id not in clash]
    if not problems:
        raise TaskError(f"task {name!r} has no problem that can be used; the first: {left_out[0]}")
    if left_out:
        warnings.warn(
            f"task {name!r}: {len(left_out)} of {len(records)} records are left out; "
            f"the first: {left_out[0]}",
            stacklevel=2,
        )
    return problems


def code_request(answer):
    """What a problem of a data set leaves unsaid: what is called, and where the program is looked
    for. In a mix the instruction cannot say it, since math gets the same one."""
    name = parse_tests(answer).fn_name
    wanted = "that reads standard input and writes standard output" if name is None else (
        f"with the function `{name}`, alone or as a method of a class `Solution`")
    return f"Write a Python program {wanted}. Put all of it in one ```python block."


def record_problem(record, task, columns, where):
    """The Problem of one record; `where` names file and line for the error."""
    if not isinstance(record, dict):
        raise TaskError(f'{where} must be an object such as {{"question": "2+3", "answer": "5"}}')
    kind = record.get("kind")
    kind = kind if kind in FILE_KINDS else columns["kind"]
    question = column(record, columns["question"])
    answer = column(record, columns["answer"])
    if type(answer) in (int, float) and math.isfinite(answer):
        answer = str(answer)
    if kind == "code" and answer is not None:
        try:
            answer = unit_tests(answer).to_json()
        except ValueError as error:
            raise TaskError(f"{where}: field {columns['answer']!r}: {error}") from None
    elif columns["form"] != "plain" and isinstance(answer, str):
        parts = boxed_parts(answer) if columns["form"] == "boxed" else answer.split("####")[1:]
        if not parts:
            wanted = {"boxed": "\\boxed{}", "####": "####"}[columns["form"]]
            raise TaskError(f"{where}: field {columns['answer']!r} has no {wanted}")
        answer = parts[-1].strip()
    for field, value in ((columns["question"], question), (columns["answer"], answer)):
        if not isinstance(value, str) or not value.strip():
            raise TaskError(f"{where}: field {field!r} is {value!r} and must be text, not empty")
    level, trace = column(record, columns["level"]), column(record, columns["trace"])
    if level is not None and level_number(level) is None and columns["level"] != COLUMNS["level"]:
        raise TaskError(f"{where}: field {columns['level']!r} is {level!r} and has no whole number")
    if kind == "code" and isinstance(trace, list):
        trace = trace[0] if trace else None
    if trace is not None and not isinstance(trace, str):
        raise TaskError(f"{where}: field {columns['trace']!r} is {trace!r} and must be text")
    if kind == "code" and trace is not None and "```" not in trace:
        trace = f"</think>```python\n{trace}\n```"
    level = level_number(level) or 0
    return make_problem(task, question, answer, kind=kind, level=level, trace=trace)


def level_number(level):
    """5 of 5, "Level 5" or "5/8"; None where there is no whole number."""
    found = re.search("[0-9]+", level) if isinstance(level, str) else None
    return int(found.group()) if found else level if type(level) is int else None


def tell_unused(where, records, columns):
    """A warning about columns "kind" and "level" that nobody named, and that mean something else.

    Many data sets have them: "kind": "algebra", "level": "easy". A typo would look the same.
    """
    tests = {"kind": lambda value: value in FILE_KINDS}
    if columns["level"] == COLUMNS["level"]:
        tests["level"] = lambda value: level_number(value) is not None
    for name, ours in tests.items():
        values = [record.get(name) for record in records if isinstance(record, dict)]
        others = [value for value in values if value is not None and not ours(value)]
        if others:
            warnings.warn(f"{where}: {name!r} of {len(others)} of {len(records)} records is not "
                          f"used, since it is none that we know, such as {others[0]!r}",
                          stacklevel=3)


def column(record, path):
    """The value at "a", "a.b" or "a.0" of a record; None where there is none."""
    for key in path.split("."):
        if isinstance(record, list) and key.isdecimal() and int(key) < len(record):
            record = record[int(key)]
        elif isinstance(record, dict):
            record = record.get(key)
        else:
            return None
    return record


MOST_TESTS = 15  # DeepCoder's: a problem's longest inputs; all of them would take minutes


def unit_tests(value):
    """UnitTests of the forms that data sets have. Raises ValueError with a sentence.

    TACO, APPS:          {"inputs": [...], "outputs": [...], "fn_name": "f"}
    PrimeIntellect:      [{"type": "function_call", "fn_name": "f", "input": [1], "output": 2}, ...]
    LiveCodeBench:       [{"testtype": "functional", "metadata": {"func_name": "f"}, "input": "1",
                           "output": "2"}, ...], with one JSON value a line
    Codeforces:          [{"input": "1", "output": "2"}, ...]
    """
    if isinstance(value, str):
        value = json.loads(value)
    name = None
    if isinstance(value, list):
        names = {called_function(test) for test in value}
        if len(names) != 1:
            raise ValueError(f"unit tests call {len(names)} functions: {sorted(map(str, names))}")
        name = names.pop()
        pairs = [(test.get("input"), test.get("output")) for test in value]
        if name is not None and isinstance(pairs[0][0], str):  # LiveCodeBench
            pairs = [([json.loads(x) for x in i.splitlines()], json.loads(o)) for i, o in pairs]
    elif isinstance(value, dict) and isinstance(value.get("inputs"), list):
        name = value.get("fn_name")
        pairs = list(zip(value["inputs"], value.get("outputs") or [], strict=True))
    else:
        raise ValueError('unit tests must be a list, or a table with "inputs" and "outputs"')
    if name is None:  # some have a list of lines
        pairs = [tuple("\n".join(x) if isinstance(x, list) else x for x in p) for p in pairs]
    pairs.sort(key=lambda pair: -len(json.dumps(pair[0])))
    inputs, outputs = zip(*pairs[:MOST_TESTS], strict=True) if pairs else ((), ())
    tests = {"inputs": list(inputs), "outputs": list(outputs), "fn_name": name}
    return parse_tests(json.dumps(tests))


def called_function(test):
    """The name of the function that one test calls; None for standard input."""
    if not isinstance(test, dict):
        raise ValueError(f"a unit test is {test!r}, and must be a table")
    metadata = test.get("metadata") or {}
    if isinstance(metadata, str):
        metadata = json.loads(metadata)
    functional = test.get("type") == "function_call" or test.get("testtype") == "functional"
    return (test.get("fn_name") or metadata.get("func_name")) if functional else None


# ------------------------------------------------------------------------------------------------
# 4. The prompt


def prompt_ids(tokenizer, problem, instruction="", *, think_open="", template_options=None):
    """Token ids of the question in the model's own chat format, ready for the model's turn.

    instruction: goes in front: as the system message where the chat template has a place for it,
        else before the question. Templates disagree: some raise on a system message, some drop it
        without a word, so we look whether its text arrived.
    think_open: ends the prompt, so that the model starts out thinking; not twice, if the template
        itself ends with it.
    template_options: the template's own switches, such as {"enable_thinking": True} of Qwen3.

    A tokenizer without a template (a base model) gets "question, blank line, Answer:" (ours).
    Special tokens at the start come once: from the template, or without one from the tokenizer.
    Never truncated: a prompt that is too long for the model is for the caller to refuse or to leave
    out, who knows the budget of the answer as well.
    """
    prefixed = f"{instruction}\n\n{problem.question}" if instruction else problem.question
    if tokenizer.chat_template is None:
        ids = list(tokenizer(f"{prefixed}\n\nAnswer:")["input_ids"])
        if ids and ids[-1] == tokenizer.eos_token_id:  # some end every text, T5's and its like
            ids.pop()
    else:
        user = {"role": "user", "content": problem.question}
        messages = [{"role": "system", "content": instruction}, user] if instruction else [user]
        if instruction and not arrives(tokenizer, messages, instruction):
            messages = [{"role": "user", "content": prefixed}]
        ids = list(
            tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_dict=False, **(template_options or {})
            )
        )
    if think_open and not tokenizer.decode(ids).rstrip().endswith(think_open.strip()):
        ids += tokenizer(think_open, add_special_tokens=False)["input_ids"]
    return ids


def arrives(tokenizer, messages, text):
    """Whether the chat template takes these messages and shows this text."""
    from jinja2.exceptions import TemplateError

    try:
        return text.strip() in tokenizer.apply_chat_template(messages, tokenize=False)
    except TemplateError:
        return False


# ------------------------------------------------------------------------------------------------
# 5. The gold answers


def check_gold(problems, marker=None, max_dropped=0.0):
    """Marks every gold answer, and the answer of every worked trace, with its own verifier.

    A verifier that cannot recognize the gold answer gives -1 to every completion, and the run
    would learn nothing for days. Microseconds a problem for numbers, 0.01 to 0.2 s for formulas.
    Of programs only the form of the tests is looked at, and the first 32 solutions, if there are
    any, are run.

    marker: a verify.Marker, whose workers have a deadline; without one, this process does it.
    max_dropped: the share of problems that may be left out with a warning. 0 for problems of our
        own; data sets of this world have some answers that nobody can check ("see figure").

    Returns the problems that passed, in their order. Raises TaskError with the first problem that
    fails, if they are too many, and for an empty list, of which nothing can be said.
    """
    if not problems:
        raise TaskError("the task is empty: there is no problem to check")
    for problem in problems:
        if problem.kind == "code":
            try:
                parse_tests(problem.answer)
            except ValueError as error:
                raise TaskError(f"problem {problem.id}: {error}") from None
    # The gold answer of a program is its unit tests; with a solution, in `trace`, they are run. A
    # data set has thousands of them at up to a second each: the first few show a broken form.
    code = [p.id for p in problems if p.kind == "code" and p.trace is not None]
    unchecked = set(code[SOLUTIONS_CHECKED:])
    claims = [
        (i, "answer", output)
        for i, p in enumerate(problems)
        if p.kind != "code" and (output := as_output(p)) is not None
    ]
    claims += [
        (i, "trace", p.trace)
        for i, p in enumerate(problems)
        if p.trace is not None and p.id not in unchecked
    ]
    items = [(text, problems[i].answer, problems[i].kind) for i, _, text in claims]
    reasons = marker.mark(items).reasons if marker else [verify(*item)[1] for item in items]
    failed = {}
    for (i, field, text), reason in sorted(zip(claims, reasons, strict=True)):
        if reason != "correct":
            failed.setdefault(i, (field, text, reason))
    if failed:
        i, (field, text, reason) = next(iter(failed.items()))
        problem = problems[i]
        sentence = (
            f"problem {problem.id}: its own {field} {text!r} is marked {reason!r} by the "
            f"verifier {problem.kind!r}"
        )
        if len(failed) > max_dropped * len(problems):
            raise TaskError(f"{sentence}; correct it, or set another kind of {FILE_KINDS}")
        warnings.warn(
            f"{len(failed)} of {len(problems)} problems are left out, since their gold answers "
            f"cannot be marked; the first: {sentence}",
            stacklevel=2,
        )
    return [problem for i, problem in enumerate(problems) if i not in failed]


def as_output(problem):
    """The gold answer as a model would give it; None where a generator tells none."""
    if problem.kind == "gym":
        return gold_answer(problem.answer)
    return rf"\boxed{{{problem.answer}}}" if problem.kind == "math" else problem.answer


# ------------------------------------------------------------------------------------------------
# 6. What a run asks


@dataclass
class Questions:
    """The problems of one run, by id, and their prompts."""

    train: dict  # id -> Problem
    heldout: dict  # id -> Problem, to evaluate on: held-out ones, then those of evaluation sets
    curve_tasks: set  # of the held-out ones: their pass rate is the curve, the others are shown
    prompts: dict  # id -> token ids
    counts: dict  # what was kept and what was left out, for the log

    @property
    def prompt_tokens(self):
        """Tokens of the longest prompt: it sizes the cache."""
        return max(len(self.prompts[i]) for i in [*self.train, *self.heldout])


def questions_of(config, tokenizer, marker):
    """The Questions that a run's settings ask for. Raises TaskError, which names the setting."""
    try:
        parts, bad = sound_problems(config, marker)
    except (TaskError, SandboxError) as error:
        raise TaskError(f"task = {config.task!r}: {error}") from None
    prompts = {
        p.id: tuple(prompt_ids(tokenizer, p, config.instruction, think_open=config.think_open,
                               template_options=config.template_options))
        for part in parts for p in part
    }
    limit = config.prompt_tokens
    long = {i: len(ids) for i, ids in prompts.items() if len(ids) > limit}
    if long and config.long_prompts == "refuse":
        raise TaskError(f"prompt_tokens = {limit}: {len(long)} prompts of {config.task!r} are "
                        f"longer, up to {max(long.values())} tokens; none is cut in silence, but "
                        'long_prompts = "skip" leaves them out')
    if long:
        print(f"{len(long)} of {len(prompts)} problems are left out: their prompts are longer "
              f"than {limit} tokens", file=sys.stderr)
    train, heldout, extra = ([p for p in part if p.id not in long] for part in parts)
    heldout = heldout[: config.eval_prompts]
    for problems, what in ((train, "training"), (heldout, "held-out")):
        if not problems:
            raise TaskError(f"prompt_tokens = {limit}: no {what} problem of {config.task!r} is "
                            "that short")
    asked, evaluated = {p.id: p for p in train}, {p.id: p for p in heldout + extra}
    return Questions(asked, evaluated, {p.task for p in heldout}, prompts, {
        "problems/train": len(asked), "problems/heldout": len(evaluated),
        "problems/bad_gold": bad, "problems/too_long": len(long)})


def sound_problems(config, marker):
    """([training, held-out, evaluation sets'] problems whose gold answers can be marked, how many
    cannot)."""
    # The same problems for every seed: seeds of one recipe share their held-out set.
    train, heldout = load_splits(config.task, heldout=config.heldout_prompts,
                                 options=config.task_options)
    extra = load_evaluation(config.eval_tasks, config.eval_task_options) \
        if config.eval_tasks else []
    both = {p.task for p in heldout} & {p.task for p in extra}
    if both:
        raise TaskError(f"eval_tasks names {both.pop()!r} as well: its held-out problems "
                        "are evaluated already, and two curves need two names")
    parts = [without(train, extra), heldout, extra]
    problems = [p for part in parts for p in part]
    if any(p.kind == "code" for p in problems):
        check_box(config.unsafe_code)
    sound = {p.id for p in check_gold(problems, marker, config.max_bad_gold)}
    return ([[p for p in part if p.id in sound] for part in parts],
            sum(p.id not in sound for p in problems))
