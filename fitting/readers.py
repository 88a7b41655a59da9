"""Logs of this project and of other trainers -> compute and pass rates (C, R) that fit.py can fit.
A reader only makes rows; which columns are compute and reward is decided in one place, `load`."""
import ast
import contextlib
import csv
import fnmatch
import json
import os
import re
import struct
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fit import BadInput, checked

NAMES = tomllib.loads(Path(__file__).with_name("columns.toml").read_text("utf-8"))
STEP_COLUMNS, Y_COLUMNS, LOGS, LIKELY = (NAMES[k] for k in ("steps", "rewards", "logs", "likely"))
RE = {name: re.compile(pattern) for name, pattern in NAMES["patterns"].items()}
WINDOWS = {0xDC00 + b: bytes([b]).decode("cp1252", "replace") for b in range(128, 256)}
csv.field_size_limit(2 ** 31 - 1)      # by default 131,072 characters a cell


@dataclass(frozen=True)
class Curve:
    """Rewards against compute, read from one run or pooled from several seeds of one recipe."""
    label: str
    C: np.ndarray
    R: np.ndarray
    x: str                    # what C is called
    y: str
    picture: Path             # where its picture goes unless --out says otherwise
    notes: tuple = ()         # facts worth a line
    path: Path = None         # the log or folder; None: pooled from several


# ---------------------------------------------------------------- 1. a log -> rows of numbers
def places_of(text):
    """A path -> [(path, "")]; TABLE:RUN, a name or a pattern -> [(path, run), ...], or BadInput."""
    if os.path.exists(text) or not (found := re.fullmatch(r"(?i)(.+?\.[ct]sv):(.+)", text)):
        return [(Path(text), "")]
    path = Path(found[1])
    runs = dict.fromkeys(str(row["run"]) for row in read_rows(path)[0] if "run" in row)
    if not (chosen := [found[2]] if found[2] in runs else fnmatch.filter(runs, found[2])):
        raise BadInput(f"{path} has no run {found[2]!r} in a column run: {', '.join(runs) or None}")
    return [(path, run) for run in chosen]


def read_rows(path):
    """A log, a run's folder, wandb:... -> (rows {column: number or text}, the file read, notes)."""
    notes, path = [], log_in(path) if path.is_dir() else path
    suffix = path.suffix.lower()
    if str(path).startswith("wandb:"):
        import wandb
        try:
            rows = list(wandb.Api().run(str(path)[6:]).scan_history())
        except wandb.Error as error:                  # no key, no such run
            raise BadInput(f"{path}: {error}") from None
    elif suffix == ".wandb":
        rows = read_wandb_file(path.read_bytes())
    elif path.is_dir() or "tfevents" in path.name:
        rows = read_tensorboard(path)
    elif suffix in (".csv", ".tsv"):
        rows = read_table(path)
    elif suffix in (".json", ".jsonl", ".ipynb") or '{"' in (text := read_text(path))[:5]:
        rows, notes = read_jsonl(path)
    elif not (rows := read_console(text) or RE["header"].match(text) and read_table(path)):
        raise BadInput(f"{path} has no line `step:1 - a:1`, `{{'a': 1}}`, `Step 1 | Reward: 0.5`")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadInput(f"{path} holds values that are not JSON objects")
    return [flat(row) for row in rows], path, notes


def log_in(folder):
    """The log in a run folder; the evaluations, if they have a file of their own."""
    for pattern in LOGS:
        # TensorBoard writes a new file into the same folder when a run is resumed.
        logs = {p.parent if "tfevents" in pattern else p for p in folder.glob(pattern)
                if p.parent == folder or not RE["hparams"].fullmatch(p.parent.name)}
        if len(logs) > 1 and not pattern.startswith("checkpoint"):
            names = ", ".join(sorted(str(log.relative_to(folder)) for log in logs))
            raise BadInput(f"{folder} holds several logs: {names}; name one of them")
        if logs:    # by length first: checkpoint-1000 is after checkpoint-900, and has its log too
            return max(logs, key=lambda p: (len(p.parent.name), p.parent.name))
    raise BadInput(f"{folder} holds no log that can be read: {', '.join(LOGS)}")


def read_text(path):
    """A file's text. PowerShell's > writes UTF-16 (FF FE), Excel a mark (sig) or Windows 1252."""
    if (raw := path.read_bytes()).startswith(b"version https://git-lfs"):
        raise BadInput(f"{path} only says where Git LFS keeps the file: git lfs pull brings it")
    kind = ("utf-16", "replace") if raw[:1] > b"\xfd" else ("utf-8-sig", "surrogateescape")
    return re.sub("\r\n?", "\n", raw.decode(*kind).translate(WINDOWS))    # what is no UTF-8


def read_table(path):
    """The rows of a table with a header; , separates cells, or ; or tab: then 0,5 is .5."""
    mark = max(",;\t", key=(lines := read_text(path).lstrip("\n").split("\n"))[0].count)
    lines = [RE["quoted"].sub(lambda x: x[0].replace(",", "").strip(), line) for line in lines]
    if mark != "," and any(map(RE["decimal"].search, lines)):         # 1.234,5
        lines = [re.sub(r"(?<=\d),(?=\d)", ".", RE["thousand"].sub("", line)) for line in lines]
    table = csv.DictReader(lines, delimiter=mark, skipinitialspace=True, strict=True)
    try:
        rows, names = list(table), table.fieldnames or ()
    except csv.Error as error:                              # a quote that nothing closes
        raise BadInput(f"{path}, after line {table.line_num}: {error}") from None
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise BadInput(f"{path} has several columns {twice[0]}: give them names of their own")
    if long := [i for i, row in enumerate(rows, 2) if any(row.pop(None, ()))]:   # cells left over
        raise BadInput(f"{path}, row {long[0]} has more cells than the header (of 1,000 for 1000?)")
    kinds = [name for name in names if name and name.lower() in NAMES["runs"]
             and 3 * len({row[name] for row in rows}) <= len(rows)]     # not a checkpoint's name
    if "run" not in names and kinds:
        rows = [row | {"run": " ".join(row[name] or "" for name in kinds).strip()} for row in rows]
    return rows


def read_jsonl(path):
    """(rows, notes) of a log with an object a line, the last perhaps half-written (ours, verl,
    prime-rl); or of a whole list, columns, a trainer_state.json (TRL), a notebook."""
    rows, lines = [], list(filter(str.strip, read_text(path).split("\n")))
    with contextlib.suppress(json.JSONDecodeError):             # lines of objects
        whole = json.loads("\n".join(lines))
        if not isinstance(whole, dict):
            return whole, []
        if path.suffix == ".ipynb":
            return read_notebook(whole.get("cells", ())), []
        sizes = {isinstance(column, list) and len(column) for column in whole.values()}
        if "log_history" not in whole and len(sizes) == 1 and any(sizes):
            return [dict(zip(whole, row)) for row in zip(*whole.values())], []
        return whole.get("log_history", [whole]), []
    for i, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if i == len(lines):
                return rows, [f"the last line of {path.name} is cut off (being written?): left out"]
            raise BadInput(f"{path}, line {i} is not JSON ({error.msg})") from None
    return rows, []


def read_console(text):
    """Rows printed among other text: `step:12 - a/b:0.53 - ...` (verl), else `step 12: {'reward':
    .53}` (slime; TRL: no step), JSON, or `Step 28 | Reward: 1` (prime-rl): of rewards, or more."""
    lines, dicts, bare, first = [], [], [], {}
    for line in re.split(r"[\r\n]", RE["unread"].sub(r"\1", text)):
        if found := re.search(r"\bstep:\d+ - .*", line):
            row = dict(cell.rsplit(":", 1) for cell in found[0].split(" - ") if ":" in cell)
            lines.append(first | row if row["step"] == "0" else row)
        elif found := RE["table"].search(line):
            with contextlib.suppress(SyntaxError, ValueError):  # a dict of other things
                row = ast.literal_eval(RE["nan"].sub(r": '\1'", RE["null"].sub(": None", found[2])))
                if "Initial validation metrics" in line:        # verl's step 0, the oldest: no val/
                    first = {re.sub("^test_s", "val/test_s", name): row[name] for name in row}
                elif isinstance(row, dict):
                    dicts.append({"step": found[1]} | row if found[1] else row)
        elif (found := RE["plain"].search(line)) and RE["rate"].search(line):
            bare.append(dict(RE["cell"].findall(line[found.end():])) | {"step": found[1]})
    return lines or max(dicts, bare, key=lambda r: len(r) > 1 and ("eward" in str(r) or len(r)/1e9))


def read_notebook(cells):
    """The rows of the tables that transformers shows in a notebook, or of what is printed there."""
    rows, outputs = [], [output for cell in cells or () for output in cell.get("outputs") or ()]
    for output in outputs:
        html = "".join((output.get("data") or {}).get("text/html") or "").replace(" / ", "/")
        names, *table = [re.findall(r"<t[hd]>\s*(.*?)\s*</t[hd]>", row)
                         for row in html.split("<tr")[1:]] or [[]]
        rows += [dict(zip(names, row)) for row in table if names[:1] in (["Step"], ["Epoch"])]
    return rows or read_console("\n".join("".join(o.get("text") or "") for o in outputs))


def read_tensorboard(path):
    """The scalars of an event file, or of all event files in a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray
    log = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0}).Reload()  # 0: all
    return [{"step": event.step, tag: event.value}
            for tag in log.Tags()["scalars"] for event in log.Scalars(tag)] + [
        {"step": event.step, tag: make_ndarray(event.tensor_proto).item()}      # TensorFlow 2's
        for tag in log.Tags()["tensors"] for event in log.Tensors(tag)
        if not event.tensor_proto.tensor_shape.dim]


def read_wandb_file(data):
    """The history in run-ID.wandb: protobuf's Records, in LevelDB's pieces; the last may be cut."""
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.unknown_fields import UnknownFieldSet
    def values(message, number):
        return [field.data for field in UnknownFieldSet(Empty.FromString(message))
                if field.field_number == number]
    rows, record, at = [], b"", 7                     # 7 bytes: the header of the file
    while at + 7 <= len(data):                        # a piece: checksum, length, kind, its bytes
        length, kind = struct.unpack_from("<HB", data, at + 4)
        record, at = record + data[at + 7:at + 7 + length], at + 7 + length
        if kind in (1, 4) and at <= len(data):        # a whole record, or the last piece of one
            rows += [{"/".join(map(bytes.decode, values(item, 1) + values(item, 2))):
                      json.loads(values(item, 16)[0]) for item in values(history, 1)}
                     for history in values(record, 2)]
            record = b""
        at += -at % 32768 if -at % 32768 < 7 else 0   # the rest of a block with no place for one
    return rows


def flat(row):
    """{"step": 3, "data": {"a": 1}} (verl's shape) -> {"step": 3.0, "a": 1.0}. Text that is no
    number stays, so that a warning can name it; an empty cell is an evaluation not made."""
    cells = {}
    for name, value in row.items():
        if isinstance(value, dict):
            cells |= {k if name == "data" else f"{name}/{k}": v for k, v in flat(value).items()}
        elif name == "run" and value not in (None, ""):   # "007" is a name
            cells[name] = str(value).strip()
        elif isinstance(value, int | float | str):        # else null, a list
            try:
                cells[name] = float(str(value).rstrip("%")) / (100 if "%" in str(value) else 1)
            except ValueError:
                cells |= {name: text} if (text := str(value).strip()) else {}
    return cells


# ----------------------------------------------------------- 2. rows -> compute and pass rates
def pick(rows, wanted, patterns, option, path):
    """The column to use, and a note if others would have done."""
    numbers = {name: 1 for row in rows for name, v in row.items() if isinstance(v, float)}
    usual = [name for name in numbers if not RE["spread"].search(metric(name))]
    for pattern in [wanted] if wanted else patterns:
        found = [pattern] if pattern in numbers else [
            name for name in usual if fnmatch.fnmatchcase(metric(name), pattern)]
        others = ", ".join(found[1:])
        if others and wanted:
            raise BadInput(f"{option} {wanted} fits several columns: {found[0]}, {others}")
        if found:
            return found[0], [f"{option} is {found[0]}, not {others}"] if others else []
    likely = [name for name in usual if re.search(LIKELY[option], name.lower())]
    sure = [name for name in likely if not RE["training"].search(name)]
    if len(sure) == 1 and not wanted:
        return sure[0], [f"{option} is {sure[0]}, by its name"]
    shown = ", ".join(name if name in numbers else f"{name} (text)"
                      for name in sorted({name for row in rows for name in row}))
    raise BadInput(f"{path} has no column for {' '.join(filter(None, (option, wanted)))}; it has: "
                   + (shown or "no numbers yet") + f"; likely: {', '.join(likely)}" * bool(likely))


def metric(column):
    """Weights & Biases exports call a column "run - metric"."""
    return column if column.startswith("eval/") else column.split(" - ")[-1]    # a task's own " - "


def evaluations(rows, x, y, path, steps=STEP_COLUMNS):
    """The rows of one run -> compute and reward (n,) of columns x and y, notes. A row without
    compute has that of its step, of rows with y; a row twice counts once."""
    compute, found = {}, []                 # {step: compute}, [(step, compute or None, reward)]
    for i, row in enumerate(rows):
        step = next((row[s] for s in steps if isinstance(row.get(s), float)), f"row {i}")
        compute.setdefault(step, 0.0 if step == 0 else None)         # no compute spent yet
        compute |= {step: row[x]} if x in row else {}
        found += [(step, row.get(x), row[y], str(row))] if y in row else []  # of nan, too
    found = [(step, compute[step] if own is None else own, *more) for step, own, *more in found]
    kept = dict.fromkeys(row for row in found if all(
        isinstance(v, float) and np.isfinite(v) for v in row[1:3]))
    if x == "epoch" and not re.match("eval|val|test", y) and any(0 < C <= .01 for _, C, *_ in kept):
        kept = {row: None for row in kept if row[1]}        # TRL prints .004 as 0.0: no step 0
    lost = [f"{x} = {row[1]}, {y} = {row[2]}" for row in found if row not in kept]
    notes = [f"{len(lost)} of {len(found)} evaluations in {path} have no usable {x} or {y}: "
             f"left out (the first: {lost[0]})"] if lost else []
    back = min(map([a[1] > b[1] for a, b in zip(kept, [*kept][1:])].count, (0, 1)))  # or forward
    if (again := len(kept) - len({row[1] for row in kept})) or back:
        how = f"repeats {x} {again} times" if again else f"goes back in {x} {back} times"
        notes.append(f"{path} {how}, and all are fitted: several runs (of a CSV with a column run, "
                     "TABLE:RUN is one), a restart, a rounded column, or rows in another order?")
    return *np.array([row[1:3] for row in kept]).reshape(-1, 2).T, notes


def load(spec, x=None, y=None, x_scale=1.0, reward_range=(0.0, 1.0)) -> Curve:
    """Read "PATH", or "NAME=PATH,..." (seeds of a recipe, pooled); PATH may be TABLE:RUN, or
    wandb:ENTITY/PROJECT/RUN. x, y: columns or globs; None: the first of columns.toml that the first
    log has, x in most evaluations; all need it. x_scale multiplies C; reward_range -> [0, 1]."""
    ways = ("", spec), spec.partition("=")[::2], spec.rpartition("=")[::2]
    name, paths = next((way for way in ways if os.path.exists(way[1]) or all(os.path.exists(
        re.sub(r"(?i)(\.[ct]sv):.*", r"\1", part)) for part in way[1].split(","))), ways[2])
    paths = [paths] if os.path.exists(paths) else paths.split(",")
    lo, hi = reward_range
    if not all(paths):
        raise BadInput(f"a run is PATH or NAME=PATH,PATH,..., got {spec!r}")
    seeds, notes, places = [], [], [place for path in paths for place in places_of(path)]
    if len({(given.resolve(), run) for given, run in places}) < len(places):
        raise BadInput(f"{spec!r} names one run twice: its noise would count as another seed's")
    for given, run in places:
        rows, path, more = read_rows(given)
        more += ["rows without a run's name: left out"] * any(run and "run" not in r for r in rows)
        rows = [row for row in rows if str(row.get("run")) == run] if run else rows
        if path.suffix[-2:] == "sv" and not run and len({r["run"] for r in rows if "run" in r}) > 1:
            raise BadInput(f"{path} has several runs: TABLE:RUN names one, NAME=TABLE:* pools all")
        y_name, others = pick(rows, y, Y_COLUMNS, "--y", path)
        steps = [s for s in STEP_COLUMNS if any(s in row for row in rows if y_name in row)]
        near = rows if x or steps else [row for row in rows if y_name in row]
        names = [*NAMES["compute"], *steps, "episode", "epoch"]
        S = evaluations(rows, steps[0], y_name, path, steps)[0] if steps and not x else np.empty(0)
        _, at = np.unique(S, return_inverse=True)           # seeds may have the same steps
        while True:
            x_name, _ = pick(near, x, names, "--x", path)
            C, R, doubts = evaluations(rows, x_name, y_name, path, steps)
            back = C.size == S.size > 0 and (
                np.diff(np.bincount(at, C) / np.bincount(at)) < 0).sum() > 0.2 * at.max()
            if not S.size or C.size >= 0.8 * S.size and not back:
                break           # else tokens of one step, or TRL's, in rows of training alone
            notes.append(f"--x is not {x_name}: " + (
                "it falls" if back else f"{C.size} of {S.size} evaluations have it"))
            names = names[names.index(metric(x_name)) + 1:]
        x, y = x or metric(x_name), y or metric(y_name)
        if not C.size:
            raise BadInput(f"{path} has no evaluation with both {x_name} and {y_name}; {doubts[0]}")
        more += [f"read from {path}"] * (given.is_dir() and path != given / LOGS[0])
        notes += more + others + doubts
        mapped, slip = (lo, hi) != (0, 1), R.size > 4 and 0 < 10 * np.sort(R)[-2] < min(10, R.max())
        if percent := not (mapped or slip or RE["graded"].search(y_name)) and 1.05 < R.max() <= 100:
            notes.append(f"{y_name} goes up to {R.max():g}: it is read as percent, not as counts "
                         "(--reward-range 0 N)")
        notes += [f"{y_name} is mapped from [{lo:g}, {hi:g}] onto [0, 1]"] * mapped
        rates = R / 100 if percent else (R - lo) / ((hi - lo) or np.nan)
        if not 0 <= rates.min() <= rates.max() <= 1 + 1e-9:
            found = [row for row in rows if y_name in row]
            better = [name for name in found[0] if re.search(LIKELY["--y"], name.lower()) and all(
                isinstance(row.get(name), float) and 0 <= row[name] <= 1 for row in found)
                and not RE["spread"].search(metric(name))]
            raise BadInput(f"{y_name} goes from {R.min():g} to {R.max():g}, not from {lo:g} to "
                           f"{hi:g}: a pass rate lies in [0, 1], --reward-range LO HI (least, most)"
                           " maps others" + f"; or --y {' or '.join(better[:3])}" * bool(better))
        seeds.append((C * x_scale, rates))
    label = seeds[1:] and name or run or (given.absolute().name if given.is_dir() else given.stem)
    picture = given / "curve.png" if given.is_dir() and not seeds[1:] else Path("" if (
        seeds[1:] or "wandb:" in paths[0]) else given.parent, f"{label.replace(*'/_')}_curve.png")
    label += f" and {len(seeds) - 1} more" if len(seeds) > 1 else ""
    return Curve(name or label, *checked(*map(np.concatenate, zip(*seeds))), x_name, y_name,
                 picture, tuple(notes), given if len(seeds) == 1 else None)


def read_curves(runs, x=None, y=None, *others):
    """Several runs, several columns y of each -> curves; what the first has, the others need."""
    curves, tasks = [], [*dict.fromkeys(y or [None])]
    for run in runs:
        curves += [load(run, x, task, *others) for task in tasks]
        x, tasks = x or metric(curves[0].x), y or [metric(curves[0].y)]
    labels = [curve.label for curve in curves[::len(tasks)]]
    labels = labels if len({*labels}) == len(runs) else runs  # folders of one name: by path
    if len({*labels}) < len(runs):
        raise BadInput(f"a run is named twice: {', '.join(runs)}")
    if len(tasks) > 1:                                        # one label a run will not do
        labels = [f"{label} {curve.y}" if len(runs) > 1 else curve.y
                  for label, curve in zip(np.repeat(labels, len(tasks)), curves)]
    return [replace(curve, label=label) for curve, label in zip(curves, labels)]
