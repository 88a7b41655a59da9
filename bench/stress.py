"""What staleness does to the losses: one line for each run of `make stress`  (results/stress)

    python bench/stress.py results/stress/*/ --csv results/stress/runs.csv
    python bench/stress.py runs/*-toy*/ --keep results/stress      # the logs, as far as read here

Run folders are named RECIPE-toyT-seedS. A run's end is the mean of its last three evaluations, its
best that of its best three in a row; it has collapsed if the end is below half of the best.
"""
import argparse
import re
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from fitting.readers import read_curves, read_rows
from held_out import write_csv
from study.logs import COLUMNS as LOGGED
from study.logs import ends, keep

COLUMNS = ("recipe", "toy", "seed", "start", "best", "end", "collapsed", "lag", "ess_least",
           "ess_median", "clipped_most")


def row_of(folder):
    """The row of one run, as a dict of COLUMNS."""
    name = Path(folder).name
    recipe, toy, seed = re.fullmatch(r"(\w+)-toy(\d+)-seed(\d+)", name).groups()
    (curve,) = read_curves([str(folder)])
    steps, _, _ = read_rows(Path(folder) / "metrics.jsonl")
    lag, ess, clipped = (np.array([step[column] for step in steps if column in step])
                         for column in LOGGED[2:])
    numbers = (*ends(curve.R).values(), lag[10:].mean(), ess.min(), np.median(ess), clipped.max())
    return dict(zip(COLUMNS, (recipe, int(toy), int(seed), *(round(float(x), 3) for x in numbers)),
                    strict=True))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("runs", nargs="+")
    p.add_argument("--csv", help="write the rows to this file")
    p.add_argument("--keep", help="copy the logs to this folder")
    args = p.parse_args()
    for folder in args.runs if args.keep else ():
        keep(folder, Path(args.keep) / Path(folder).name)
    rows = sorted(map(row_of, args.runs), key=lambda row: (row["recipe"], row["seed"]))
    print(*(f"{name:>17}" for name in COLUMNS))
    for row in rows:
        print(*(f"{value:>17}" for value in row.values()))
    for recipe in dict.fromkeys(row["recipe"] for row in rows):
        ends = [row["end"] for row in rows if row["recipe"] == recipe]
        fell = sum(row["collapsed"] for row in rows if row["recipe"] == recipe)
        print(f"{recipe:>17}: end {np.mean(ends):.3f} on average, {min(ends):.3f} to "
              f"{max(ends):.3f}, collapsed {fell:g} of {len(ends)}")
    if args.csv:
        write_csv(args.csv, rows)


if __name__ == "__main__":
    main()
