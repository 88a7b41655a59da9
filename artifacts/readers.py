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
SPREADS = ("*std*", "*[_/]min", "*[_/]max")        # no pass rates, unless they are asked for
LOGS = ("evals.jsonl", "metrics.jsonl", "trainer_state.json", "checkpoint-*/trainer_state.json",
        "**/*tfevents*", "*.jsonl", "*.csv", "*.tsv", "*/evals.jsonl", "*/metrics.jsonl",
        "*/trainer_state.json")
# "1,000" is a thousand in English and one in German.  Some cells can only be the one or the other.
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?")
DECIMAL = re.compile(r"[+-]?\d+,\d*([eE][+-]?\d+)?")
DOTS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d*)?")     # 1.000,5


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
    """A log or a run's folder -> (rows {column: number or text}, the file read, notes)."""
    if not path.exists():
        raise BadInput(f"there is no file or folder {path}")
    given, path, notes, comma = path, log_in(path) if path.is_dir() else path, [], False
    if "tfevents" in path.name:               # a folder may hold several files of one resumed run
        rows = read_tensorboard(path if given == path else path.parent)
    elif path.suffix in (".csv", ".tsv"):
        rows, notes, comma = read_table(path)
    elif path.suffix == ".json":              # TRL, transformers: trainer_state.json
        try:
            rows = json.loads(text_of(path))
            rows = rows if isinstance(rows, list) else rows["log_history"]
        except (json.JSONDecodeError, KeyError, TypeError):
            raise BadInput(f"{path} is no list and has no log_history: of .json files a list of "
                           "objects and trainer_state.json are read, when they are whole") from None
    else:                                     # ours, verl, prime-rl
        rows, notes = read_jsonl(path)
    if not all(isinstance(row, dict) for row in rows):
        raise BadInput(f"{path} holds lines that are not JSON objects")
    return [*map(flat, without_commas(rows, path, comma))], path, notes


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
                   "trainer_state.json, TensorBoard events, *.jsonl, *.csv or *.tsv")


def text_of(path):
    """Excel puts an invisible mark in front, and its "Unicode text" is UTF-16."""
    utf_16 = path.read_bytes()[:2] in (b"\xff\xfe", b"\xfe\xff")
    return path.read_text("utf-16" if utf_16 else "utf-8-sig", "replace")


def read_table(path):
    """(rows, notes, whether cells are separated by commas) of a table with a header."""
    text = text_of(path).lstrip("\r\n")
    header = re.sub('"[^"]*"', "", text.partition("\n")[0])
    delimiter = max(",;\t", key=header.count)
    rows = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, restkey=""))
    for i, row in enumerate(rows, 2):
        if any(row.get("", ())):
            raise BadInput(f"{path}, row {i} has more cells than the header: a number with a comma "
                           "in it has to stand in quotes")
    return rows, [] if text.endswith("\n") else [
        f"the last line of {path.name} has no end: if its number is cut off, it is wrong"
        ], delimiter == ","


def without_commas(rows, path, comma):
    """Cells like 1,000 or 0,25 -> text that float() reads.  The whole file says what its commas
    mean.  `comma`: they separate its cells too, so inside a cell they are not decimal."""
    cells = {cell.strip() for row in rows for cell in row.values() if isinstance(cell, str)}
    decimal, thousands = ({cell for cell in cells if pattern.fullmatch(cell)}
                          for pattern in (DECIMAL, THOUSANDS))
    either, decimal, thousands = decimal & thousands, decimal - thousands, thousands - decimal
    if either and not decimal | thousands and not comma:
        raise BadInput(f"{path}: is {min(either)} a thousand or about one? Write it without comma")
    if decimal:
        for odd in [*thousands, *filter(DOTS.fullmatch, cells)]:
            raise BadInput(f"{path}: {min(decimal)} has a decimal comma, but {odd} does not look "
                           "like it: write both without commas and dots of thousands")
    pattern, point = (DECIMAL, ".") if decimal else (THOUSANDS, "")
    return [{name: cell.replace(",", point)
             if isinstance(cell, str) and pattern.fullmatch(cell.strip()) else cell
             for name, cell in row.items()} for row in rows]


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
    """{"step": 3, "data": {"a": 1}} (verl's shape) -> {"step": 3.0, "a": 1.0}.  Text that is no
    number stays text, so that `evaluations` can name it.

    An empty cell is an evaluation that was not made, not a zero; the "__MIN" and "__MAX" columns
    of Weights & Biases are no evaluations either.
    """
    cells = {}
    for name, value in row.items():
        if isinstance(value, dict):
            cells |= {k if name == "data" else f"{name}/{k}": v for k, v in flat(value).items()}
        elif not name.endswith(("__MIN", "__MAX")):
            try:
                cells[name] = float(value)
            except ValueError:
                if value.strip():
                    cells[name] = value.strip()
            except TypeError:
                pass                          # null, a list
    return cells


# ----------------------------------------------------------- 2. rows -> compute and pass rates
def pick(cells, wanted, patterns, option, path):
    """The column to use, and a note if others would have done.  cells {column: a number if it has
    one, else a text}: columns of text are not taken, but named."""
    columns = [column for column, cell in cells.items() if isinstance(cell, float)]
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
                   + f"; it has: {', '.join(sorted(columns)) or 'no numbers yet'}"
                   + "".join(f"; {column} holds text: {cell}" for column, cell in cells.items()
                             if isinstance(cell, str))[:200])


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


def evaluations(rows, x, y, path, repeats):
    """The rows of one run -> compute and reward (n,) of columns x and y, notes, warnings.

    Trainers log a step several times (training, evaluation), so rows of one step share their
    compute.  Two rewards of one step are two runs in one file, or a restarted run.
    """
    steps, found = {}, []
    for i, row in enumerate(rows):
        names = [name for name in STEP_COLUMNS if isinstance(row.get(name), float)]
        step = row[names[0]] if names else ("row", i)
        same = steps.setdefault(step, {"x": 0.0} if step == 0 else {})   # no compute spent yet
        if x in row:
            same["x"] = row[x]
        if y in row:
            found.append((same, row[y]))
    lost = [str(reward) for _, reward in found if isinstance(reward, str) or np.isnan(reward)]
    pairs = [(same.get("x"), reward) for same, reward in found if str(reward) not in lost]
    used = [(C, reward) for C, reward in pairs if isinstance(C, float)]
    warnings = [f"{count} of {len(found)} evaluations in {path} have {what}: left out"
                for count, what in ((len(lost), f"{y} = {', '.join(sorted(set(lost)))}"),
                                    (len(pairs) - len(used), f"no number in {x}")) if count]
    if not used:
        raise BadInput(f"{path} has no evaluation with both {x} and {y}")
    at = {}
    for C, reward in dict.fromkeys(used):
        at.setdefault(C, []).append(reward)
    differ = [C for C, rewards in at.items() if rewards[1:]]
    if differ and repeats != "last":
        raise BadInput(
            f"{path} has several different {y} at {len(differ)} of {len(at)} values of {x} (first "
            f"{', '.join(f'{r:g}' for r in at[differ[0]])} at {differ[0]:g}); --repeats COLUMN "
            "names the column that tells seeds apart, --repeats last keeps the last (a restart)")
    note = f"{path} repeats {x} with another {y} {len(differ)} times: the last evaluation counts"
    # dict keeps the place of the first and the value of the last
    C, R = np.array([*dict(used).items()]).T
    return C, R, [note] * bool(differ), warnings


def seeds_in(rows, label, y, path, repeats):
    """{label of a seed: its rows}; one seed, unless `repeats` is the column that tells them apart.
    """
    if repeats in (None, "last"):
        return {label: rows}
    groups = {}
    for row in (row for row in rows if y in row):
        if repeats not in row:
            raise BadInput(f"{path} has an evaluation without --repeats {repeats}; its columns: "
                           + ", ".join(sorted(row)))
        value = row[repeats]
        value = f"{value:g}" if isinstance(value, float) else value
        groups.setdefault(f"{label} {repeats} {value}", []).append(row)
    return groups


def load(spec, x=None, y=None, x_scale=1.0, x_label=None, reward_range=(0.0, 1.0),
         repeats=None) -> Curve:
    """Read "PATH", or "NAME=PATH,PATH,..." (seeds of one recipe, pooled).

    x, y: column names or globs; None: the first of X_COLUMNS, Y_COLUMNS.  x_scale multiplies
    compute (steps into GPU-hours); reward_range is mapped onto [0, 1] ((-1, 1) for +-1 rewards).
    repeats: "last", or the column that tells the seeds in one file apart.
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
        cells = {}
        for column, value in (cell for row in rows for cell in row.items()):
            if column not in cells or isinstance(value, float):
                cells[column] = value
        y_name, others = pick(cells, y, Y_COLUMNS, "--y", path)
        x_name, _ = pick(cells, x, X_COLUMNS, "--x", path)
        x_names.append((path, x_name))
        y_names.append((path, y_name))
        notes += more + others
        label = given.absolute().name if given.is_dir() else given.stem
        for seed, part in seeds_in(rows, label, y_name, path, repeats).items():
            C, R, more, doubts = evaluations(part, x_name, y_name, path, repeats)
            seeds.append((seed, *checked(C * x_scale, (R - lo) / (hi - lo))))
            notes, warnings = notes + more, warnings + doubts
    notes += [*one_column("--x", x_names, x or x_label), *one_column("--y", y_names, y)]
    C, R = (np.concatenate(parts) for parts in list(zip(*seeds))[1:])
    order = np.argsort(C, kind="stable")
    picture = given / "curve.png" if given.is_dir() else given.with_name(f"{given.stem}_curve.png")
    return Curve(name or label, C[order], R[order], x_label or x_name, y_name, picture,
                 tuple(seeds) if len(seeds) > 1 else (), x_name, tuple(notes), tuple(warnings))


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
    notes = one_column("--x", [(curve.label, curve.x_column) for curve in curves], x or x_label)
    for i, task in enumerate(tasks):
        notes += one_column("--y", [(c.label, c.y) for c in curves[i::len(tasks)]], task)
    return curves, notes
