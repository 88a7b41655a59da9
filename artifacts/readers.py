"""Logs of this project and of other trainers -> compute and pass rates (C, R) that fit.py can fit.

Every tool writes rows of names and numbers, some rows with an evaluation and most without.  So a
reader only has to make rows; which columns are compute and reward is decided in one place, `load`.
"""
import csv
import fnmatch
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
SPREADS = ("*std*", "*[_/]min", "*[_/]max")        # no pass rates, unless they are asked for
LOGS = ("evals.jsonl", "metrics.jsonl", "trainer_state.json", "checkpoint-*/trainer_state.json",
        "**/*tfevents*", "*.jsonl", "*.csv", "*/evals.jsonl", "*/metrics.jsonl",
        "*/trainer_state.json")


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
    x_column: str = ""        # what the log calls C, whatever --x-label says
    notes: tuple = ()         # facts worth a line
    warnings: tuple = ()      # reasons to doubt a fit of it (--strict)


# ---------------------------------------------------------------- 1. a log -> rows of numbers
def read_rows(path):
    """A log or a run's folder -> (rows {column: number}, one a step; the file read; notes)."""
    if not path.exists():
        raise BadInput(f"there is no file or folder {path}")
    given, path, notes = path, log_in(path) if path.is_dir() else path, []
    if "tfevents" in path.name:               # a folder may hold several files of one resumed run
        rows = read_tensorboard(path if given == path else path.parent)
    elif path.suffix == ".csv":
        text = text_of(path)
        rows = list(csv.DictReader(text.splitlines()))
        if not text.endswith("\n"):
            notes = [f"the last line of {path.name} has no end: if its number is cut off, it is "
                     "wrong"]
    elif path.suffix == ".json":              # TRL, transformers: trainer_state.json
        try:
            rows = json.loads(text_of(path))["log_history"]
        except (json.JSONDecodeError, KeyError, TypeError):
            raise BadInput(f"{path} has no log_history: of .json files trainer_state.json is "
                           "read, when it is whole") from None
    else:                                     # ours, verl, prime-rl
        rows, notes = read_jsonl(path)
    if not all(isinstance(row, dict) for row in rows):
        raise BadInput(f"{path} holds lines that are not JSON objects")
    # Trainers log a step several times (training, evaluation, again after a resume), so rows of
    # one step are merged and later values win.
    merged = {}
    for i, row in enumerate(map(flat, rows)):
        step = next((row[name] for name in STEP_COLUMNS if name in row), ("row", i))
        merged.setdefault(step, {}).update(row)
    return list(merged.values()), path, notes


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
    raise BadInput(f"{folder} holds no log that can be read: evals.jsonl, metrics.jsonl, "
                   "trainer_state.json, TensorBoard events, *.jsonl or *.csv")


def text_of(path):
    return path.read_text("utf-8-sig", "replace")        # Excel puts an invisible mark in front


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
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise BadInput("TensorBoard files need one more package: pip install tensorboard") from None
    events = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()   # 0: keep all
    return [{"step": event.step, tag: event.value}
            for tag in events.Tags()["scalars"] for event in events.Scalars(tag)]


def flat(row):
    """{"step": 3, "data": {"a": 1}} (verl's shape) -> {"step": 3.0, "a": 1.0}: numbers only.

    An empty cell is an evaluation that was not made, not a zero; the "__MIN" and "__MAX" columns
    of Weights & Biases are no evaluations either.
    """
    numbers = {}
    for name, value in row.items():
        if isinstance(value, dict):
            numbers |= {k if name == "data" else f"{name}/{k}": v for k, v in flat(value).items()}
        elif not name.endswith(("__MIN", "__MAX")):
            try:
                numbers[name] = float(value)
            except (ValueError, TypeError):
                pass                          # a name, a date, an empty cell, a list
    return numbers


# ----------------------------------------------------------- 2. rows -> compute and pass rates
def pick(columns, wanted, patterns, option, path):
    """The column to use, and a note if others would have done."""
    if not wanted:
        columns = [c for c in columns if not any(fnmatch.fnmatchcase(c, s) for s in SPREADS)]
    for pattern in [wanted] if wanted else patterns:
        found = [c for c in columns if c == pattern] or \
            [c for c in columns if fnmatch.fnmatchcase(metric(c), pattern)]
        if found[1:] and wanted:
            raise BadInput(f"{option} {wanted} fits several columns: {', '.join(found)}")
        if found:
            return found[0], [f"{option} is {found[0]}, not {', '.join(found[1:])}"] * bool(
                found[1:])
    raise BadInput(f"{path} has no column for {option}" + (f" {wanted}" if wanted else "")
                   + f"; it has: {', '.join(sorted(columns)) or 'no numbers yet'}")


def metric(column):
    """Weights & Biases exports call a column "run - metric"."""
    return column.split(" - ")[-1]


def one_column(option, runs, meant):
    """runs [(name, column)] that go into one fit or one comparison -> a note if their columns
    differ.  Chosen by us, such columns are refused: FLOPs beside tokens look like any two runs.
    `meant`: --x-label or a pattern says that they are the same quantity."""
    first, column = runs[0]
    for other, another in runs:
        if metric(another) != metric(column):
            both = f"{option} is {column} in {first} and {another} in {other}"
            if not meant:
                raise BadInput(f"{both}, which do not compare: name a column that both have with "
                               f"{option}" + ", or what both are with --x-label"
                               * (option == "--x"))
            return [f"{both}, compared because you say so"]
    return []


def load(spec, x=None, y=None, x_scale=1.0, x_label=None, reward_range=(0.0, 1.0)) -> Curve:
    """Read "PATH", or "NAME=PATH,PATH,..." (seeds of one recipe, pooled).

    x, y: column names or globs; None: the first of X_COLUMNS, Y_COLUMNS.  x_scale multiplies
    compute (steps into GPU-hours); reward_range is mapped onto [0, 1] ((-1, 1) for +-1 rewards).
    """
    name, _, paths = spec.rpartition("=")
    lo, hi = reward_range
    if not lo < hi:
        raise BadInput(f"--reward-range takes LO < HI, got {lo:g} {hi:g}")
    if not 0 < x_scale < np.inf:
        raise BadInput(f"--x-scale takes a number above 0, got {x_scale:g}")
    if not all(paths.split(",")):
        raise BadInput(f"a run is PATH or NAME=PATH,PATH,..., got {spec!r}")
    seeds, notes, warnings, x_names, y_names = [], [], [], [], []
    for given in map(Path, paths.split(",")):
        rows, path, more = read_rows(given)
        columns = dict.fromkeys(column for row in rows for column in row)
        y_name, others = pick(columns, y, Y_COLUMNS, "--y", path)
        x_name, _ = pick(columns, x, X_COLUMNS, "--x", path)
        x_names.append((path, x_name))
        y_names.append((path, y_name))
        notes += more + others
        rows = [row for row in rows if y_name in row]
        for row in rows:          # before the first step no compute has been spent, logged or not
            if any(row.get(step) == 0 for step in STEP_COLUMNS):
                row.setdefault(x_name, 0.0)
        for lost, why in ((sum(np.isnan(row[y_name]) for row in rows), f"have {y_name} = nan"),
                          (sum(x_name not in row for row in rows), f"have no {x_name}")):
            if lost:
                warnings.append(f"{lost} of {len(rows)} evaluations in {path} {why}: left out")
        pairs = [(row[x_name], row[y_name]) for row in rows
                 if x_name in row and not np.isnan(row[y_name])]
        if not pairs:
            raise BadInput(f"{path} has no evaluation with both {x_name} and {y_name}")
        C, R = np.array([*dict(pairs).items()]).T                # the same compute twice: the later
        if len(C) < len(pairs):
            notes.append(f"{path} repeats {x_name} {len(pairs) - len(C)} times: the later "
                         "evaluation counts")
        label = given.absolute().name if given.is_dir() else given.stem
        seeds.append((label, *checked(C * x_scale, (R - lo) / (hi - lo))))
    notes += [*one_column("--x", x_names, x or x_label), *one_column("--y", y_names, y)]
    C, R = (np.concatenate(parts) for parts in list(zip(*seeds))[1:])
    order = np.argsort(C, kind="stable")
    picture = given / "curve.png" if given.is_dir() else given.with_name(f"{given.stem}_curve.png")
    return Curve(name or label, C[order], R[order], x_label or x_name, y_name, picture,
                 tuple(seeds) if len(seeds) > 1 else (), x_name, tuple(notes), tuple(warnings))


def read_curves(runs, x=None, y=None, x_scale=1.0, x_label=None, reward_range=(0.0, 1.0)):
    """Several runs, and several columns y of each -> (curves with labels that differ, notes)."""
    tasks = y or [None]
    curves = [load(run, x, task, x_scale, x_label, reward_range) for run in runs for task in tasks]
    if len(tasks) > 1:                                        # one label a run will not do
        curves = [replace(curve, label=f"{curve.label} {curve.y}" if len(runs) > 1 else curve.y)
                  for curve in curves]
    elif len({curve.label for curve in curves}) < len(curves):   # folders of one name: by path
        curves = [replace(curve, label=run) for curve, run in zip(curves, runs)]
    notes = one_column("--x", [(curve.label, curve.x_column) for curve in curves], x or x_label)
    for i, task in enumerate(tasks):
        notes += one_column("--y", [(c.label, c.y) for c in curves[i::len(tasks)]], task)
    return curves, notes
