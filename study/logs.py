"""logs.py: what is kept of runs, in four tables of a folder; and how a run ended.

    evals.csv     a row an evaluation: run, step, compute, pass rate of each task, lengths
    steps.csv     a row a step: run (in its first row alone), step and the columns of STEPS
    right.csv     where an evaluation has MANY samples a problem: run, step, right samples of each
    failed.csv    a row for each run that failed: run, why
"""
import csv
import json
import re
from pathlib import Path

import numpy as np

MANY = 128
STEPS = ("lag/mean", "ess", "ratio/clipped_frac")
# Of an evaluation: pass@k, shares of the verifier and clocks are read by nobody afterwards.
EVALS = re.compile(r"step|compute/(flops|tokens)|eval/.*/mean@\d+|"
                   r"eval/(truncated_frac|mean_length)")


def read(path):
    """{run: [{column: number}]} of a table; {} if there is none."""
    runs, name = {}, ""
    if Path(path).exists():
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                name = row.pop("run") or name
                runs.setdefault(name, []).append(
                    {column: float(cell) for column, cell in row.items() if cell})
    return runs


def read_right(path):
    """{run: {step: (k, [right samples of k for each problem])}} of right.csv."""
    found = {}
    if Path(path).exists():
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                found.setdefault(row["run"], {})[int(row["step"])] = (
                    int(row["k"]), [*map(int, row["right"].split())])
    return found


def read_failed(folder):
    """{run: its last words} of the runs that failed."""
    path = Path(folder) / "failed.csv"
    if not path.exists():
        return {}
    with open(path, newline="") as file:
        return {row["run"]: row["why"] for row in csv.DictReader(file)}


def write(path, rows):
    """A table of dicts, each with its `run`; an empty cell where a row lacks a column. A kill
    leaves the old table or the new one."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = dict.fromkeys(name for row in rows for name in row)
    aside = path.with_suffix(".tmp")
    with open(aside, "w", newline="") as file:
        out = csv.DictWriter(file, columns, lineterminator="\n")
        out.writeheader()
        out.writerows(rows)
    aside.rename(path)


def add(path, run, rows, once=False):
    """Put the rows of a run into a table, in the place of those that it had there. once: the name
    stands in the first row alone; a table of steps is half as large."""
    runs = read(path) | {run: rows}
    write(path, [{"run": "" if once and i else name}
                 | {column: short(value) for column, value in row.items()}
                 for name, lines in runs.items() for i, row in enumerate(lines)])


def short(value):
    """Whole numbers without a point."""
    return int(value) if float(value).is_integer() and abs(value) < 2**53 else value


def keep(run, folder, name, digits=17):
    """Put the run folder `run` into the tables of `folder`, as `name`. digits: of steps.csv."""
    run, folder = Path(run), Path(folder)
    steps, evals = ([json.loads(line) for line in (run / f"{log}.jsonl").read_text().splitlines()]
                    for log in ("metrics", "evals"))
    add(folder / "steps.csv", name, [
        {"step": step["step"]} | {column: float(f"{step[column]:.{digits}g}") for column in STEPS
                                  if column in step} for step in steps if "pass_rate" in step],
        once=True)
    right = read_right(folder / "right.csv")
    for row in evals:
        for column, counts in row.items():
            k = column.rpartition("/right@")[2]
            if k != column and int(k) >= MANY:
                right.setdefault(name, {})[row["step"]] = int(k), counts
    if right:
        write(folder / "right.csv", [
            {"run": run, "step": step, "k": k, "right": " ".join(map(str, counts))}
            for run, found in right.items() for step, (k, counts) in found.items()])
    add(folder / "evals.csv", name, [            # last: with it the run counts as kept
        {column: value for column, value in row.items() if EVALS.fullmatch(column)}
        for row in evals])


def ends(R):
    """What a run's evaluations R (n,) say of its end, as {name: number}: the mean of the last three
    is its end, that of the best three in a row its best; it has collapsed below half of that. Of
    fewer than six evaluations the last alone."""
    n = 3 if len(R) >= 6 else 1
    best, end = np.convolve(R, np.ones(n) / n, "valid").max(), R[-n:].mean()
    return dict(start=R[0], best=best, end=end, collapsed=float(end < best / 2))
