"""How well do the demo's first parts predict the rest?  (results/demo/PROTOCOL.md)

    python bench/held_out.py 'results/demo/evals.csv:*seed1?' --csv results/demo/errors.csv
    python bench/held_out.py 'results/demo/evals.csv:*seed1?' --law stretched
    python bench/held_out.py runs/demo --beside results/demo/errors.csv     # one run among them

Reads the evaluations of each run folder toyT-seedS, or of the runs of a table whose names fit the
pattern, and prints a row for each run and cut: the error of fit.py's prediction for the last
evaluations, and that of carrying the last value forward.
"""
import argparse
import csv
import re
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from fit import fit_curve, held_out
from fitting.readers import places_of, read_curves

CUTS = (0.3, 0.5)
COLUMNS = ("toy", "seed", "cut", "predicted", "lo", "hi", "measured", "error", "naive_error")


def rows_of(folder, law="sigmoid"):
    """The two rows of one run (a folder, or TABLE:RUN), as dicts of COLUMNS."""
    named = re.search(r"toy(\d+)-seed(\d+)$", str(folder))
    if not named:
        sys.exit(f"{folder}: its name does not end with toyT-seedS (fit.py --until 0.5 takes any)")
    toy, seed = map(int, named.groups())
    (curve,) = read_curves([str(folder)])
    for cut in CUTS:
        early = fit_curve(curve.C, curve.R, c_max=cut * curve.C[-1], law=law)
        found = held_out(curve.C, curve.R, early)
        yield {"toy": toy, "seed": seed, "cut": cut} | {
            name: round(float(found[name]), 4) for name in COLUMNS[3:]}


def summary(rows, cut):
    """Mean absolute errors, of the law and the naive forecast, and the share of intervals that hold
    what was measured."""
    rows = [row for row in rows if row["cut"] == cut]
    law, naive = (np.abs([row[name] for row in rows]).mean() for name in ("error", "naive_error"))
    return len(rows), law, naive, np.mean([row["lo"] <= row["measured"] <= row["hi"]
                                           for row in rows])


def write_csv(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def beside(folder, path, cut=0.5):
    """A sentence: where the error of this run's first part stands among those in a CSV of ours."""
    (curve,) = read_curves([str(folder)])
    early = fit_curve(curve.C, curve.R, c_max=cut * curve.C[-1])
    error = held_out(curve.C, curve.R, early)["error"]
    with open(path, newline="") as file:
        others = np.abs([float(row["error"]) for row in csv.DictReader(file)
                         if float(row["cut"]) == cut])
    return (f"error {error:+.3f}: {(others >= abs(error)).mean():.0%} of the {others.size} runs in "
            f"{path} cut at {cut:g} have one as large or larger (median {np.median(others):.3f})")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("runs", nargs="+")
    p.add_argument("--csv", help="write the rows to this file")
    p.add_argument("--law", default="sigmoid", help="that predicts [sigmoid]")
    p.add_argument("--beside", metavar="CSV", help="rank the one run's error among those there")
    args = p.parse_args()
    if args.beside:
        return print(beside(args.runs[0], args.beside))
    runs = sorted(f"{path}:{run}" if run else str(path)
                  for text in args.runs for path, run in places_of(text))
    rows = [row for run in runs for row in rows_of(run, args.law)]
    print(*(f"{name:>11}" for name in COLUMNS))
    for row in rows:
        print(*(f"{row[name]:11.3g}" for name in COLUMNS))
    for cut in CUTS:
        n, law, naive, held = summary(rows, cut)
        print(f"cut {cut}: n = {n}, mean absolute error {law:.3f} (naive {naive:.3f}, ratio "
              f"{law / naive:.2f}), 90% intervals hold in {held:.0%}; too low: "
              f"{sum(row['error'] < 0 for row in rows if row['cut'] == cut)}")
    if args.csv:
        write_csv(args.csv, rows)


if __name__ == "__main__":
    main()
