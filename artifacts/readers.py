"""Logs of this project and of other trainers -> compute and pass rates (C, R) that fit.py can fit.

Every tool writes rows of names and numbers, some rows with an evaluation and most without.  So a
reader only has to make rows; which columns are compute and reward is decided in one place, `load`.
"""
import csv
import fnmatch
import io
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fit import BadInput, checked

# Tried in this order when --x or --y is not given; the choice is always printed.  FLOPs come first
# because they are the same on every machine and every day, which hours are not.
X_COLUMNS = ("compute/flops", "compute/gpu_hours", "compute/core_hours", "compute/tokens",
             "gpu_hours", "num_tokens", "step", "_step", "Step", "training/global_step")
Y_COLUMNS = ("eval/*/mean@*", "eval/*/avg@*", "val-core/*/mean@*", "eval*pass_rate*",
             "eval/*reward*", "eval_reward", "eval_rewards/*/mean", "*pass_rate*")
STEP_COLUMNS = ("step", "_step", "Step", "global_step", "training/global_step")
# No pass rates, unless they are asked for; the last two are Weights & Biases'.
SPREADS = ("*std*", "*[_/]min", "*[_/]max", "*__MIN", "*__MAX")
LOGS = ("evals.jsonl", "metrics.jsonl", "trainer_state.json", "checkpoint-*/trainer_state.json",
        "**/*tfevents*", "*.jsonl", "*.csv", "*.tsv", "*/evals.jsonl", "*/metrics.jsonl",
        "*/trainer_state.json")
# "1,000" is a thousand in English and one in German: see `without_commas`.
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?")
DECIMAL = re.compile(r"[+-]?\d+,\d*([eE][+-]?\d+)?")
UNCLEAR = re.compile(r"[+-]?[1-9]\d{0,2}([.,]\d{3})+")


@dataclass(frozen=True)
class Curve:
    """Rewards against compute, read from one run or pooled from several seeds of one recipe."""
    label: str
    C: np.ndarray
    R: np.ndarray
    x: str                    # what C is called
    y: str
    picture: Path             # where its picture goes unless --out says otherwise
    seeds: tuple = ()         # (label, C, R) of each, if there are several
    columns: tuple = ()       # (log, its column of C, its column of R) of each log
    notes: tuple = ()         # facts worth a line
    warnings: tuple = ()      # reasons to doubt a fit of it (--strict)


# ---------------------------------------------------------------- 1. a log -> rows of numbers
def read_rows(path):
    """A log or a run's folder -> (rows {column: number or text}, the file read, notes)."""
    if not path.exists():
        raise BadInput(f"there is no file or folder {path}")
    folder, notes = path.is_dir(), []
    path = log_in(path) if folder else path
    if "tfevents" in path.name:               # a folder may hold several files of one resumed run
        rows = read_tensorboard(path.parent if folder else path)
    elif path.suffix in (".csv", ".tsv"):
        rows, notes = read_table(path)
    elif path.suffix == ".json":              # TRL, transformers: trainer_state.json
        try:
            rows = json.loads(text_of(path))
            rows = rows if isinstance(rows, list) else rows["log_history"]
        except (json.JSONDecodeError, KeyError):
            raise BadInput(f"{path} is neither a whole list of objects nor a trainer_state.json "
                           "with a log_history") from None
    else:                                     # ours, verl, prime-rl
        rows, notes = read_jsonl(path)
    if not all(isinstance(row, dict) for row in rows):
        raise BadInput(f"{path} holds lines that are not JSON objects")
    return [flat(row) for row in rows], path, notes


def log_in(folder):
    """The log in a run folder; the evaluations, if they have a file of their own."""
    for pattern in LOGS:
        found = sorted(folder.glob(pattern),
                       key=lambda p: [int(digits) for digits in re.findall(r"\d+", p.parent.name)])
        # One run's checkpoints repeat each other, the latest holds all.  Else a second log is
        # another run.  TensorBoard writes a new file into the same folder when a run is resumed.
        logs = {p.parent if "tfevents" in pattern else p for p in found}
        if len(logs) > 1 and not pattern.startswith("checkpoint"):
            names = ", ".join(sorted(str(log.relative_to(folder)) for log in logs))
            raise BadInput(f"{folder} holds several logs: {names}; name one of them")
        if found:
            return found[-1]
    raise BadInput(f"{folder} holds no log that can be read: {', '.join(LOGS)}")


def text_of(path):
    """Excel puts an invisible mark in front, and its "Unicode text" is UTF-16."""
    utf_16 = path.read_bytes()[:2] in (b"\xff\xfe", b"\xfe\xff")
    return path.read_text("utf-16" if utf_16 else "utf-8-sig", "replace")


def read_table(path):
    """(rows, notes) of a table with a header, whose cells are separated by , ; or tab."""
    text = text_of(path).lstrip("\r\n")
    header = re.sub('"[^"]*"', "", text.partition("\n")[0])
    delimiter = max(",;\t", key=header.count)
    rows = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter,
                               skipinitialspace=True))
    rows = [{name: cell.strip() if isinstance(cell, str) else cell for name, cell in row.items()}
            for row in rows]
    for i, row in enumerate(rows, 2):
        if any(row.pop(None, ())):                # where DictReader puts what is left over
            raise BadInput(f"{path}, row {i} has more cells than the header: a number with a comma "
                           "in it has to stand in quotes")
    notes = [] if text.endswith("\n") else [
        f"the last line of {path.name} has no end: if its number is cut off, it is wrong"]
    return without_commas(rows, delimiter, path), notes


def without_commas(rows, delimiter, path):
    """Cells like 1,000 or 0,25 -> text that float() reads.

    If commas separate the cells, a comma inside of one separates thousands.  In other tables it is
    a decimal comma; refused are tables in which all of them look like thousands (1,000), or numbers
    without one do (1.000).
    """
    cells = {cell for row in rows for cell in row.values() if cell}
    decimal = {cell for cell in cells if DECIMAL.fullmatch(cell)}
    unclear = {cell for cell in cells if UNCLEAR.fullmatch(cell)}
    if delimiter == ",":
        plain = {cell: cell.replace(",", "") for cell in cells if THOUSANDS.fullmatch(cell)}
    elif decimal and (unclear - decimal or decimal <= unclear):
        raise BadInput(f"{path}: {min(unclear - decimal or unclear)} may mean two things: write "
                       "all numbers without separators of thousands and with a decimal point")
    else:
        plain = {cell: cell.replace(",", ".") for cell in decimal}
    return [{name: plain.get(cell, cell) for name, cell in row.items()} for row in rows]


def read_jsonl(path):
    """(rows, notes) of a log with one JSON object a line; its last line may be half-written."""
    rows, lines = [], [line for line in text_of(path).split("\n") if line.strip()]
    for i, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if i == len(lines):
                return rows, [f"the last line of {path.name} is cut off (being written?): left out"]
            raise BadInput(f"{path}, line {i} is not JSON ({error.msg})") from None
    return rows, []


def read_tensorboard(path):
    """The scalars of an event file, or of all event files in a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()   # 0: keep all
    return [{"step": event.step, tag: event.value}
            for tag in events.Tags()["scalars"] for event in events.Scalars(tag)]


def flat(row):
    """{"step": 3, "data": {"a": 1}} (verl's shape) -> {"step": 3.0, "a": 1.0}.  Text that is no
    number stays text, so that `evaluations` can name it.

    An empty cell is an evaluation that was not made, not a zero.
    """
    cells = {}
    for name, value in row.items():
        if isinstance(value, dict):
            cells |= {k if name == "data" else f"{name}/{k}": v for k, v in flat(value).items()}
        elif isinstance(value, int | float | str):        # else null, a list
            try:
                cells[name] = float(value)
            except ValueError:
                if value.strip():
                    cells[name] = value.strip()
    return cells


# ----------------------------------------------------------- 2. rows -> compute and pass rates
def pick(rows, wanted, patterns, option, path):
    """The column to use, and a note if others would have done."""
    names = [*dict.fromkeys(name for row in rows for name in row)]
    numbers = {name for row in rows for name, cell in row.items() if isinstance(cell, float)}
    columns = [name for name in names if name in numbers]
    if wanted not in columns:                   # a spread is taken if it is asked for by its name
        columns = [c for c in columns if not any(fnmatch.fnmatchcase(c, s) for s in SPREADS)]
    for pattern in [wanted] if wanted else patterns:
        found = [pattern] if pattern in columns else \
            [c for c in columns if fnmatch.fnmatchcase(metric(c), pattern)]
        others = ", ".join(found[1:])
        if others and wanted:
            raise BadInput(f"{option} {wanted} fits several columns: {found[0]}, {others}")
        if found:
            return found[0], [f"{option} is {found[0]}, not {others}"] if others else []
    shown = [name if name in numbers else f"{name} (text)" for name in sorted(names)]
    raise BadInput(f"{path} has no column for {option} {wanted or ''}; it has: "
                   + (", ".join(shown) or "no numbers yet"))


def metric(column):
    """Weights & Biases exports call a column "run - metric"."""
    return column.split(" - ")[-1]


def one_column(option, logs, meant):
    """logs [(path, column)] that are pooled or compared -> a note if their columns differ.  Chosen
    by us, such columns are refused: FLOPs beside tokens look like any two runs.  `meant`: --x-label
    or a pattern says that they are the same quantity."""
    first, column = logs[0]
    for other, another in logs:
        if metric(another) != metric(column):
            both = f"{option} is {column} in {first} and {another} in {other}"
            if meant:
                return [f"{both}, compared because you say so"]
            raise BadInput(f"{both}, which do not compare: name a column that both have; for --x, "
                           "--x-label may say what both are")
    return []


def evaluations(rows, x, y, path, repeats):
    """The rows of one run -> compute and reward (n,) of columns x and y, notes, warnings.

    Trainers log a step several times (training, evaluation), so rows of one step share their
    compute.  Two rewards of one step are two runs in one file, or a restarted run.
    """
    compute, found = {}, []                 # {step: compute}, [(step, reward)]
    for i, row in enumerate(rows):
        steps = [row[name] for name in STEP_COLUMNS if isinstance(row.get(name), float)]
        step = steps[0] if steps else f"row {i}"
        compute.setdefault(step, 0.0 if step == 0 else None)         # no compute spent yet
        if x in row:
            compute[step] = row[x]
        if y in row:
            found.append((step, row[y]))
    lost = [str(reward) for _, reward in found if isinstance(reward, str) or np.isnan(reward)]
    pairs = [(compute[step], reward) for step, reward in found if str(reward) not in lost]
    used = [(C, reward) for C, reward in pairs if isinstance(C, float)]
    warnings = [f"{count} of {len(found)} evaluations in {path} have {what}: left out"
                for count, what in ((len(lost), f"{y} = {', '.join(sorted(set(lost)))}"),
                                    (len(pairs) - len(used), f"no number in {x}")) if count]
    if not used:
        raise BadInput(f"{path} has no evaluation with both {x} and {y}")
    rewards = {}                            # {compute: [its different rewards]}
    for C, reward in dict.fromkeys(used):
        rewards.setdefault(C, []).append(reward)
    differ = [C for C in rewards if len(rewards[C]) > 1]
    if differ and repeats != "last":
        raise BadInput(
            f"{path} has several different {y} at {len(differ)} of {len(rewards)} values of {x} "
            f"(first {', '.join(f'{r:g}' for r in rewards[differ[0]])} at {differ[0]:g}): "
            "--repeats COLUMN names the column that tells seeds apart, --repeats last keeps the "
            "last (a restart)")
    note = f"{path} repeats {x} with another {y} {len(differ)} times: the last evaluation counts"
    # dict keeps the place of the first and the value of the last
    C, R = np.array([*dict(used).items()]).T
    return C, R, [note] if differ else [], warnings


def seeds_in(rows, label, y, path, repeats):
    """{label of a seed: its rows}; one seed, unless `repeats` is the column that tells them apart.
    """
    if repeats in (None, "last"):
        return {label: rows}
    groups = {}
    for row in rows:
        if y in row and repeats not in row:
            raise BadInput(f"{path} has an evaluation without --repeats {repeats}; its columns: "
                           + ", ".join(sorted(row)))
        if y in row:
            value = row[repeats] if isinstance(row[repeats], str) else f"{row[repeats]:g}"
            groups.setdefault(f"{label} {repeats} {value}", []).append(row)
    return groups


def load(spec, x=None, y=None, x_scale=1.0, x_label=None, reward_range=(0.0, 1.0),
         repeats=None) -> Curve:
    """Read "PATH", or "NAME=PATH,PATH,..." or "NAME=FOLDER" (seeds of one recipe, pooled).

    x, y: column names or globs; None: the first of X_COLUMNS, Y_COLUMNS.  x_scale multiplies
    compute (steps into GPU-hours); reward_range is mapped onto [0, 1] ((-1, 1) for +-1 rewards).
    repeats: "last", or the column that tells the seeds in one file apart.
    """
    name, _, paths = spec.rpartition("=")
    lo, hi = reward_range
    if not x_scale > 0:
        raise BadInput(f"--x-scale must be above 0, got {x_scale:g}")
    if not lo < hi:
        raise BadInput(f"--reward-range takes LO < HI, got {lo:g} {hi:g}")
    if not all(paths.split(",")):
        raise BadInput(f"a run is PATH or NAME=PATH,PATH,..., got {spec!r}")
    seeds, columns, notes, warnings = [], [], [], []
    places = [Path(path) for path in paths.split(",")]
    if name and len(places) == 1:                   # NAME=FOLDER of several runs: all are seeds
        places = sorted(log.parent for log in places[0].glob("*/evals.jsonl")) or places
    for given in places:
        rows, path, more = read_rows(given)
        y_name, others = pick(rows, y, Y_COLUMNS, "--y", path)
        x_name, _ = pick(rows, x, X_COLUMNS, "--x", path)
        columns.append((path, x_name, y_name))
        notes += more + others
        label = given.absolute().name if given.is_dir() else given.stem
        for seed, part in seeds_in(rows, label, y_name, path, repeats).items():
            C, R, more, doubts = evaluations(part, x_name, y_name, path, repeats)
            seeds.append((seed, *checked(C * x_scale, (R - lo) / (hi - lo))))
            notes, warnings = notes + more, warnings + doubts
    C, R = (np.concatenate(parts) for parts in list(zip(*seeds))[1:])
    order = np.argsort(C, kind="stable")
    picture = given / "curve.png" if given.is_dir() else given.with_name(f"{given.stem}_curve.png")
    return Curve(name or label, C[order], R[order], x_label or x_name, y_name, picture,
                 tuple(seeds) if len(seeds) > 1 else (), tuple(columns), tuple(notes),
                 tuple(warnings))


def read_curves(runs, x=None, y=None, x_scale=1.0, x_label=None, reward_range=(0.0, 1.0),
                repeats=None):
    """Several runs, and several columns y of each -> (curves with labels that differ, notes)."""
    tasks = y or [None]
    curves = [load(run, x, task, x_scale, x_label, reward_range, repeats)
              for run in runs for task in tasks]
    if len(tasks) > 1:                                        # one label a run will not do
        curves = [replace(curve, label=f"{curve.label} {curve.y}" if len(runs) > 1 else curve.y)
                  for curve in curves]
    elif len({curve.label for curve in curves}) < len(curves):   # folders of one name: by path
        curves = [replace(curve, label=run) for curve, run in zip(curves, runs)]
    notes = one_column("--x", [(log, column) for curve in curves for log, column, _ in
                               curve.columns], x or x_label)
    for i, task in enumerate(tasks):
        notes += one_column("--y", [(log, column) for curve in curves[i::len(tasks)]
                                    for log, _, column in curve.columns], task)
    return curves, notes
