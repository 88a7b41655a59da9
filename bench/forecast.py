"""The forecast on runs that no setting was chosen on: results/forecast/PROTOCOL.md.

    python bench/forecast.py                            the tables below, from results/forecast
    python bench/forecast.py --keep runs/demo-toy20-seed30 runs/calm-toy20-seed32 ...

--keep writes what is read of the runs' logs into results/forecast/evals.csv: compute, pass rate,
and the right samples of each held-out problem, a digit each. Printed are, for each group of runs
and each cut, the mean absolute error for the last five evaluations and how many 90% intervals hold:
of fit.py, of the naive forecast (the last three fitted evaluations carried forward), of a line in
log(compute), of fit.py with one earlier run (`--like`), of the model of single problems.
"""
import argparse
import csv
import re
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from fit import LAST, BadInput, fit_curve, held_out
from fitting.forecast import judge, line_at
from fitting.like import disagree, fit_like, learn
from fitting.problems import by_problem, read_counts
from fitting.readers import read_curves

KEPT = Path(__file__).parent.parent / "results/forecast/evals.csv"
CUTS = (0.3, 0.5)


def keep(folders):
    """The runs' evaluations as rows of KEPT."""
    with open(KEPT, "w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["run", "compute/flops", "pass_rate", "samples", "right"])
        for folder in folders:
            (curve,) = read_curves([str(folder)])
            C, right, k = read_counts(folder)
            assert np.array_equal(C, curve.C) and k < 10
            for c, rate, row in zip(C, curve.R, right):
                out.writerow([Path(folder).name, f"{c:.0f}", rate, k, "".join(map(str, row))])


def read():
    """{run: (C (n,), R (n,), right (n, problems), k)}, in the order of the protocol: the first seed
    of all toys, then the second."""
    runs = {}
    with open(KEPT, newline="") as file:
        for row in csv.DictReader(file):
            runs.setdefault(row["run"], []).append(row)
    order = sorted(runs, key=lambda run: (run.split("-")[0], re.findall(r"\d+", run)[::-1]))
    return {run: (np.array([float(row["compute/flops"]) for row in runs[run]]),
                  np.array([float(row["pass_rate"]) for row in runs[run]]),
                  np.array([[*map(int, row["right"])] for row in runs[run]]),
                  int(runs[run][0]["samples"])) for run in order}


def measure(run, C, R, right, k, cut, earlier, stranger):
    """The forecasts of one run at one cut -> {what: (error, low, high)}, and what else is told.
    earlier, stranger: (C, R) of a run of the same group and of another."""
    early = fit_curve(C, R, c_max=cut * C[-1])
    seen, told = C <= early.C[-1], held_out(C, R, early)
    ahead, measured = C[~seen][-LAST:], told["measured"]
    found = {"sigmoid": (told["error"], told["lo"], told["hi"]),
             "naive": (told["naive_error"], np.nan, np.nan),
             "line": (line_at(early.C, early.R, ahead).mean() - measured, np.nan, np.nan)}
    alarms = {}
    for name, other in (("like", earlier), ("like another", stranger)):
        like = fit_like(early, learn([fit_curve(*other, bootstrap=0)]))
        with_it = held_out(C, R, like)
        found[name] = with_it["error"], with_it["lo"], with_it["hi"]
        alarms[name] = bool(disagree(early, like))
    (value, low, high), unsolved = by_problem(C[seen], right[seen], k, ahead)
    found["by problem"] = value - measured, low, high
    never = ~right[seen].any(0)
    later = right[~seen][-LAST:, never].mean() / k if never.any() else np.nan
    return found, {"run": run, "measured": measured, "verdict": judge(early, ahead)["verdict"],
                   "unsolved": unsolved, "later": later, "alarms": alarms}


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--keep", nargs="+", metavar="RUN", help="write the table from run folders")
    args = p.parse_args()
    if args.keep:
        keep(args.keep)
    runs = read()
    groups = {name: [run for run in runs if run.startswith(name)] for name in ("demo", "calm")}
    for name, members in groups.items():
        others = groups["calm" if name == "demo" else "demo"]
        for cut in CUTS:
            rows, refused = [], []
            for i, run in enumerate(members):
                try:
                    rows.append(measure(run, *runs[run], cut, runs[members[i - 1]][:2],
                                        runs[others[i % len(others)]][:2]))
                except BadInput as error:
                    refused.append(f"{run}: {error}")
            print(f"\n{name}, cut {cut}, n = {len(rows)}", *refused, sep="\n  refused: ")
            if not rows:
                continue
            for what in rows[0][0]:
                errors = np.array([found[what] for found, _ in rows])
                measured = np.array([told["measured"] for _, told in rows])
                has = ~np.isnan(errors[:, 1])
                held = (errors[has, 1] <= measured[has]) & (measured[has] <= errors[has, 2])
                print(f"  {what:13} mean absolute error {np.abs(errors[:, 0]).mean():.3f}, largest "
                      f"{np.abs(errors[:, 0]).max():.3f}"
                      + (f"; {held.sum()} of {has.sum()} intervals hold, mean width "
                         f"{np.ptp(errors[has, 1:], axis=1).mean():.3f}" if has.any() else ""))
            for what in ("like", "like another"):
                print(f"  disagreement told, {what}: {sum(t['alarms'][what] for _, t in rows)}")
            usable = [abs(found["sigmoid"][0]) for found, told in rows
                      if told["verdict"] == "forecast usable"]
            print(f"  called usable: {len(usable)}; their median error "
                  f"{np.median(usable) if usable else np.nan:.3f}")
            print(f"  never solved so far {np.mean([t['unsolved'] for _, t in rows]):.1%} of the "
                  f"problems; of their samples right at the end "
                  f"{np.nanmean([t['later'] for _, t in rows]):.1%}")
            for found, told in rows:
                print(f"    {told['run']:20} {told['measured']:.3f} " + "  ".join(
                    f"{what} {error:+.3f}" for what, (error, _, _) in found.items()))


if __name__ == "__main__":
    main()
