"""Exercise 10: how will this run end? `forecast` is for the student.

    python -m course.bets          its errors on the 25 runs of results/demo, from the first 30%
"""
import csv
from pathlib import Path

import numpy as np

CUT, LAST = 0.3, 5          # share of the compute that a bet sees; evaluations that are the end


def runs_of(path, column="eval/toy/mean@", names=()):
    """{run: (C, R)} of a table of evaluations; the runs that begin with one of these names."""
    found = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            R = [row[name] for name in row if name.startswith(column) and row[name]]
            if R and row["run"].startswith(tuple(names) or ""):
                found.setdefault(row["run"], []).append((float(row["compute/flops"]), float(R[0])))
    return {name: np.array(rows).T for name, rows in found.items()}


def question(C, R):
    """What a bet is about: (C, R of the first part, compute of the last evaluations, their mean
    pass rate)."""
    seen = C <= CUT * C[-1]
    return C[seen], R[seen], C[-LAST:], R[-LAST:].mean()


def forecast(C, R, later):
    """The mean pass rate that a run will have at its end, a number from 0 to 1.

    C      compute of the evaluations of its first 30%, (n,); the first is 0, before training
    R      their pass rates, (n,)
    later  compute of its last five evaluations, (5,)
    """
    from scipy.optimize import least_squares
    R0, c, r = R[0], np.log(C[1:]), R[1:]

    def curve(p, c):                    # Eq. 1; p: logit of A, log C_mid, log B
        A = 1 / (1 + np.exp(-p[0]))
        return R0 + (A - R0) / (1 + np.exp(np.clip(-np.exp(p[2]) * (c - p[1]), -500, 500)))

    def residuals(p):
        """Evaluations have a noise of .015. What other runs were like counts as two more points:
        a ceiling near .85 and a steepness near 1.6 (chosen on results/demo)."""
        return [*(curve(p, c) - r) / 0.015, (p[2] - np.log(1.6)) / 0.5, p[0] - np.log(0.85 / 0.15)]
    starts = [[1.7, c[-1] + shift, np.log(1.6)] for shift in (-0.7, 0.0, 1.0)]
    best = min((least_squares(residuals, start) for start in starts), key=lambda fit: fit.cost)
    return float(curve(best.x, np.log(later)).mean())


def main():
    table = Path(__file__).resolve().parents[1] / "results" / "demo" / "evals.csv"
    errors = []
    for name, (C, R) in runs_of(table, names=[f"toy{n}-" for n in range(8, 13)]).items():
        C, R, later, end = question(C, R)
        bet = forecast(C, R, later)
        errors.append([bet - end, R[-1] - end])
        print(f"{name:14} bet {bet:.3f}   end {end:.3f}   error {bet - end:+.3f}   "
              f"naive {R[-1] - end:+.3f}")
    print("mean absolute error {:.3f}, of the naive forecast {:.3f}".format(
        *np.abs(errors).mean(0)))


if __name__ == "__main__":
    main()
