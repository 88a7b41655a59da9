"""What staleness does to the losses: one line for each run of `make stress`  (results/stress)

    python bench/stress.py --csv results/stress/runs.csv           # what is kept in results/stress
    python bench/stress.py runs/scalerl-toy*/ --keep results/stress    # keep these first

Run folders are named RECIPE-toyT-seedS; what is kept of them is in evals.csv and steps.csv. A run's
end is the mean of its last three evaluations, its best that of its best three in a row; it has
collapsed if the end is below half of the best.
"""
import argparse
import re
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from held_out import write_csv
from study import logs

KEPT = Path(__file__).parent.parent / "results" / "stress"
COLUMNS = ("recipe", "toy", "seed", "start", "best", "end", "collapsed", "lag", "ess_least",
           "ess_median", "clipped_most")


NAME = re.compile(r"(\w+)-toy(\d+)-seed(\d+)")


def row_of(name, evals, steps):
    """The row of one run, as a dict of COLUMNS, from its rows of both tables."""
    recipe, toy, seed = NAME.fullmatch(name).groups()
    R = np.array([row["eval/toy/mean@1"] for row in evals])
    lag, ess, clipped = (np.array([step[column] for step in steps if column in step])
                         for column in logs.STEPS)
    numbers = (*logs.ends(R).values(), lag[10:].mean(), ess.min(), np.median(ess), clipped.max())
    return dict(zip(COLUMNS, (recipe, int(toy), int(seed), *(round(float(x), 3) for x in numbers)),
                    strict=True))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("runs", nargs="*", type=Path, help="run folders, to be kept first")
    p.add_argument("--csv", help="write the rows to this file")
    p.add_argument("--keep", type=Path, default=KEPT, help="the folder of the tables")
    args = p.parse_args()
    for run in args.runs:           # all of them, before one is kept
        if not NAME.fullmatch(run.name) or not (run / "evals.jsonl").is_file():
            p.error(f"{run} is no run with the name RECIPE-toyT-seedS and a log")
    for run in args.runs:
        logs.keep(run, args.keep, run.name)
    evals, steps = (logs.read(args.keep / f"{name}.csv") for name in ("evals", "steps"))
    rows = sorted((row_of(name, evals[name], steps[name]) for name in evals),
                  key=lambda row: (row["recipe"], row["seed"]))
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
