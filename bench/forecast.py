"""The forecast on runs that no setting was chosen on: results/forecast/PROTOCOL.md.

    python bench/forecast.py                            the tables below, from results/forecast
    python bench/forecast.py --keep runs/demo-toy20-seed30 runs/calm-toy20-seed32 ...
    python bench/forecast.py --study                    the study's first round, into study.csv
    python bench/forecast.py --study --tables           the tables of the kept study.csv alone
    python bench/forecast.py --later [--tables]         the study's later runs, study_later.csv
    python bench/forecast.py --settings                 what the third round was chosen from

--keep writes what is read of the runs' logs into results/forecast/evals.csv: compute, pass rate,
and how many of the k samples of each held-out problem were right (`packed`). Printed are, for each
group of runs and each cut, the mean absolute error for the last five evaluations and how many 90%
intervals hold: of fit.py (intervals as they were from the third to the ninth round, of the
eleventh's runs as they are today; "before": until the third), of the naive forecast (the last three
fitted evaluations carried forward), of a line in log(compute), of fit.py with one earlier run
(`--like`), of the model of single problems.
"""
import argparse
import csv
import re
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench import public
from bench.public import before, moved
from fit import LAST, BadInput, fit_curve, held_out, interval, line_at
from fitting.forecast import judge
from fitting.like import disagree, fit_like, learn
from fitting.problems import by_problem, read_counts
from fitting.readers import read_curves
from study import logs
from study.figures import curve

STUDY = Path(__file__).parent.parent / "results/study"
COLUMNS = ("run", "task", "base", "collapsed", "cut", "measured", "error", "naive", "line", "lo",
           "hi", "lo_tried", "hi_tried", "lo_today", "hi_today")
FIRST_ROUND = range(20, 25)                 # seeds of the study's runs that the protocol names
ANSWERS = {"mix": 1024, "smollm2": 320}     # problems times samples of an evaluation; others 512
KEPT = Path(__file__).parent.parent / "results/forecast/evals.csv"
CUTS = (0.3, 0.5)
ROUNDS = {range(70, 74): ", third round", range(90, 93): ", eleventh round"}      # by seeds


def keep(folders):
    """The runs' evaluations as rows of KEPT, in place of those of runs of these names."""
    if bad := [name for name in folders if not re.search(r"-seed\d+$", Path(name).name)]:
        sys.exit(f"{bad[0]}: its name does not end with -seedS")
    with open(KEPT, newline="") as file:
        rows = [row for row in csv.reader(file)
                if row[0] not in {Path(name).name for name in folders}]
    for folder in folders:
        (curve,) = read_curves([str(folder)])
        C, right, k = read_counts(folder)
        assert np.array_equal(C, curve.C) and k < 10
        rows += [[Path(folder).name, f"{c:.0f}", rate, k, packed(row, k)]
                 for c, rate, row in zip(C, curve.R, right)]
    with open(KEPT, "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def packed(counts, k):
    """Counts from 0 to k, as the digits of one number of base k + 1 after a 1; written in base 36,
    which takes half of the bytes."""
    return np.base_repr(int("1" + "".join(map(str, counts)), k + 1), 36)


def unpacked(text, k):
    return [*map(int, np.base_repr(int(text, 36), k + 1)[1:])]


def read():
    """{run: (C (n,), R (n,), right (n, problems), k)}, in the order of the protocol: the first seed
    of all toys, then the second."""
    runs = {}
    with open(KEPT, newline="") as file:
        for row in csv.DictReader(file):
            runs.setdefault(row["run"], []).append(row)
    order = sorted(runs, key=lambda run: (      # group, seed, toy
        *re.sub(r"-toy\d+", "", run).rpartition("-seed"), run))
    return {run: (np.array([float(row["compute/flops"]) for row in runs[run]]),
                  np.array([float(row["pass_rate"]) for row in runs[run]]),
                  np.array([unpacked(row["right"], int(row["samples"])) for row in runs[run]]),
                  int(runs[run][0]["samples"])) for run in order}


def measure(run, C, R, right, k, cut, earlier, stranger, of_then=moved):
    """The forecasts of one run at one cut -> {what: (error, low, high)}, and what else is told.
    earlier, stranger: (C, R) of a run of the same group and of another. of_then makes a Fit one
    with the interval of its round."""
    early = of_then(fit_curve(C, R, c_max=cut * C[-1]))
    seen, told = C <= early.C[-1], held_out(C, R, early)
    ahead, measured = C[~seen][-LAST:], told["measured"]
    with before():
        earlier_rule = held_out(C, R, early)
    found = {"sigmoid": (told["error"], told["lo"], told["hi"]),
             "before": (told["error"], earlier_rule["lo"], earlier_rule["hi"]),
             "naive": (told["naive_error"], np.nan, np.nan),
             "line": (cut_line(early, ahead).mean() - measured, np.nan, np.nan)}
    alarms = {}
    for name, other in (("like", earlier), ("like another", stranger)):
        like = fit_like(early, learn([fit_curve(*other, bootstrap=0)]))     # a Moved, as early is
        with_it = held_out(C, R, like)
        found[name] = with_it["error"], with_it["lo"], with_it["hi"]
        with before():
            with_it = held_out(C, R, like)
        found[f"{name}, before"] = with_it["error"], with_it["lo"], with_it["hi"]
        alarms[name] = bool(disagree(early, like))
    (value, low, high), unsolved = by_problem(C[seen], right[seen], k, ahead)
    found["by problem"] = value - measured, low, high
    never = ~right[seen].any(0)
    later = right[~seen][-LAST:, never].mean() / k if never.any() else np.nan
    return found, {"run": run, "measured": measured, "verdict": judge(early, ahead)["verdict"],
                   "unsolved": unsolved, "later": later, "alarms": alarms}


def cut_line(fit, C):
    """The line in log C through what was fitted, at C (k,) -> (k,), cut to [0, 1]."""
    return np.clip(line_at(fit.C, fit.R, C), 0, 1)


# ------------------------------------------------------------------ the third round: its choice
def chosen_from(fit, C, law_error, run_error, every):
    """The interval of `Fit.futures` of then with errors of these sizes; every so many-th replicate
    rises beyond the data as the line in log C does (0: none)."""
    now, paths = fit.paths(fit.C[-1:]), fit.paths(C)
    rise, noise = paths - now, fit.paths(C, noise=True) - paths
    if every:
        line = cut_line(fit, np.append(fit.C[-1:], C))
        rise[::every] = line[1:] - line[0]
    of_law, of_run = np.random.default_rng(1).normal(0, 1, (2, *now.shape))
    ahead = now + rise * (1 + law_error * of_law) + run_error * of_run + noise
    return interval(np.clip(ahead, 0, 1).mean(1))


def settings():
    """What was looked at before the third round, and how many intervals hold by each setting."""
    demo = logs.read(Path(__file__).parent.parent / "results/demo/evals.csv")
    runs = [("25 demo", *curve(demo[run]), LAST) for run in sorted(demo) if "seed1" in run]
    runs += [(f"{group} of the first round", C, R, LAST) for run, (C, R, _, _) in read().items()
             for group in ("demo", "calm") if re.match(rf"{group}-toy\d+-seed3\d$", run)]
    curves, sources = public.curves()
    runs += [("published", x, y, max(3, y.size // 5)) for run, (x, y) in curves.items()
             if sources[run]["round"] in "12"]
    grid = [(law, run, every) for law in (0.3, 0.5) for run in (0, 0.01, 0.015, 0.02)
            for every in (0, 3)]
    held = {setting: {} for setting in grid}
    for group, C, R, last in runs:
        for cut in CUTS:
            try:
                early = fit_curve(C, R, c_max=cut * C[-1])
            except BadInput:
                continue
            fell = group == "published" and public.collapses(R, (C <= cut * C[-1]).sum(), last)
            if early.no_interval or fell:
                continue
            for setting in grid:
                low, high = chosen_from(early, C[-last:], *setting)
                held[setting].setdefault((group, cut), []).append(low <= R[-last:].mean() <= high)
    columns = list(held[grid[0]])
    print("| law's error | run's error | line | "
          + " | ".join(f"{group}, {cut:g}" for group, cut in columns) + " |\n|--:|--:|---|"
          + "--:|" * len(columns))
    for (law, run, every), found in held.items():
        print(f"| {law:g} | {run:g} | {'a third' if every else 'none'} | " + " | ".join(
            f"{sum(found[column])} of {len(found[column])}" for column in columns) + " |")


# ---------------------------------------------------------------- the second round: results/study
def tried(fit, C):
    """The interval of the protocol's second round, from the same fit: every third replicate rises
    beyond the data as the line in log C does, each rise times N(1, .5); its forecast is inside."""
    if fit.no_interval:
        return np.nan, np.nan
    (low, high), value = chosen_from(fit, C, 0.5, 0, 3), fit.curve(C).mean()
    return min(low, value), max(high, value)


def study(later=False):
    """Every run of the study's first round (later: of the others), task and cut -> a row of
    numbers, the empty ones as ""."""
    with open(STUDY / "runs.csv", newline="") as file:
        fell = {f"{row['base']}-{row['variant']}-toy{row['toy']}-seed{row['seed']}".replace(
            "toy-", ""): row["collapsed"] for row in csv.DictReader(file)}
    tasks = {}
    for run, rows in logs.read(STUDY / "evals.csv").items():
        # (`words` and `fast` are of the fifth part: their seeds happen to be the same.)
        first = int(run.rpartition("seed")[2]) in FIRST_ROUND
        if first != later and not run.startswith(("words", "fast")):
            for row in rows:
                for name in (name for name in row if "/mean@" in name):
                    tasks.setdefault((run, name), []).append((row["compute/flops"], row[name]))
    for (run, task), points in tasks.items():
        C, R = np.array(points).T
        for cut in CUTS:
            base = run.split("-")[0]
            row = dict(run=run, task=task, base=base, collapsed=fell[run], cut=cut)
            try:
                early = moved(fit_curve(C, R, c_max=cut * C[-1], answers=ANSWERS.get(base, 512)))
            except BadInput:
                yield row
                continue
            with before():
                told, ahead = held_out(C, R, early), C[C > early.C[-1]][-LAST:]
            low, high = tried(early, ahead)
            today = held_out(C, R, early)
            line = cut_line(early, ahead).mean() - told["measured"]
            numbers = dict(measured=told["measured"], error=told["error"], lo=told["lo"],
                           hi=told["hi"], naive=told["naive_error"], line=line, lo_tried=low,
                           hi_tried=high, lo_today=today["lo"], hi_today=today["hi"])
            yield row | {name: round(float(n), 4) for name, n in numbers.items() if n == n}


def study_tables(rows):
    """A line for each regime and cut, collapsed runs apart; then for each toy of two regimes."""
    print("| runs | cut | n | fitted | error | naive | line | intervals | fit.py: hold, median "
          "width, mean score | tried | today |\n|---|" + "--:|" * 10)
    groups, after = {}, []
    for row in rows:
        fell = ", collapsed" if row["collapsed"] == "1.0" else ""
        groups.setdefault((row["base"] + fell, row["cut"]), []).append(row)
    for row in rows:
        if row["collapsed"] != "1.0":
            groups.setdefault(("all without a collapse", row["cut"]), []).append(row)
    for row in rows:
        if row["base"] in ("calm", "stress") and row["collapsed"] != "1.0":
            toy = re.search(r"toy\d+", row["run"])[0]
            groups.setdefault((f"{row['base']}, {toy}", row["cut"]), []).append(row)
    for (name, cut), members in groups.items():
        fitted = [row for row in members if row.get("measured")]
        errors = np.abs([[float(row[way]) for way in ("error", "naive", "line")] for row in fitted])
        has, cells = [row for row in fitted if row["lo"]], []
        for end in ("", "_tried", "_today"):
            y, low, high = np.array([[float(row[name]) for name in (
                "measured", "lo" + end, "hi" + end)] for row in has]).reshape(-1, 3).T
            miss = np.maximum(low - y, 0) + np.maximum(y - high, 0)
            cells.append(f"{(miss == 0).sum()} of {len(has)}, {np.median(high - low):.3f}, "
                         f"{(high - low + 20 * miss).mean():.3f}" if has else "")
        means = [f"{mean:.3f}" for mean in errors.mean(0)] if fitted else ["", "", ""]
        print("|", " | ".join([name, cut, str(len(members)), str(len(fitted)), *means,
                               str(len(has)), *cells]), "|")
        toys = {}
        for row, held in zip(has, miss == 0, strict=True):
            toys.setdefault(re.search(r"toy-?\d+|$", row["run"])[0], []).append(held)
        if name.startswith("all") and len(toys) > 1:
            rng, held = np.random.default_rng(0), [*toys.values()]
            shares = [np.concatenate([held[i] for i in rng.integers(len(held), size=len(held))])
                      .mean() for _ in range(10_000)]
            low, high = np.percentile(shares, [5, 95])
            after.append(f"{name}, {cut}: today's hold {np.concatenate(held).mean():.1%} "
                  f"[{low:.1%}, {high:.1%}], by a bootstrap over {len(held)} toys")
    print(*after, sep="\n")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--keep", nargs="+", metavar="RUN", help="write the table from run folders")
    p.add_argument("--study", action="store_true", help="the study's runs, into study.csv")
    p.add_argument("--settings", action="store_true", help="the third round's choice")
    p.add_argument("--later", action="store_true", help="its later runs, into study_later.csv")
    p.add_argument("--tables", action="store_true", help="with these two: of the kept file")
    args = p.parse_args()
    if args.study or args.later:
        path = KEPT.with_name("study_later.csv" if args.later else "study.csv")
        if not args.tables:
            rows = [*study(args.later)]             # minutes: a stop leaves the old file
            with open(path, "w", newline="") as file:
                out = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                out.writeheader()
                out.writerows(rows)
        with open(path, newline="") as file:
            study_tables(list(csv.DictReader(file)))
        return
    if args.settings:
        return settings()
    if args.keep:
        keep(args.keep)
    runs = read()
    groups = {}
    for run in runs:
        name, _, seed = re.sub(r"-toy\d+", "", run).rpartition("-seed")
        of_round = [told for seeds, told in ROUNDS.items() if int(seed) in seeds] or [""]
        groups.setdefault(name + of_round[0], []).append(run)
    for name, members in groups.items():
        kind, comma, of_round = name.partition(", ")
        other = "calm" if kind == "demo" else "demo"
        others = groups.get(other + comma + of_round) or groups[other]
        of_then = (lambda fit: fit) if of_round == "eleventh round" else moved
        for cut in CUTS:
            rows, refused = [], []
            for i, run in enumerate(members):
                try:
                    rows.append(measure(run, *runs[run], cut, runs[members[i - 1]][:2],
                                        runs[others[i % len(others)]][:2], of_then))
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
                print(f"  {what:20} mean absolute error {np.abs(errors[:, 0]).mean():.3f}, largest "
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
