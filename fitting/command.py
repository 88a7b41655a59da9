"""command.py: the command of fit.py: options, lines, warnings, JSON, tables, pictures."""
import argparse
import csv
import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
from scipy.stats import ttest_ind

from fit import (LAST, LAWS, LEVEL, SAME_A, BadInput, compute_needed, fit_curve, held_out,
                 interval)
from fitting.compare import compare
from fitting.figures import FORMS, plot_compare, plot_run, save, span, with_interval
from fitting.readers import read_curves

ABOUT = """fit.py: the curve of an RL run, and what more compute would buy.

    python fit.py runs/demo                                 # law, intervals, warnings, picture
    python fit.py runs/demo --until 0.5                     # fit the first half, predict the second
    python fit.py runs/demo --predict 1e15 --target 0.9     # what compute buys; what a reward costs
    python fit.py ours=runs/s1,runs/s2 grpo=runs/g1         # compare recipes; pool seeds of one

The law is Eq. 1 of ScaleRL (arXiv 2510.13786); appendix A.5 tells how the paper fits it:

    R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B)

    C      the compute that the run has used: FLOPs, GPU-hours or steps
    R      the reward: the pass rate on held-out problems
    R0     the pass rate before training
    A      the ceiling: no amount of compute brings a higher pass rate
    B      the steepness: how fast the ceiling is approached (the paper's "compute efficiency")
    C_mid  the compute at which half of the gain A - R0 is reached"""
NOTES = """\
RUN is a run folder, a log of verl, prime-rl, TRL, Weights & Biases or TensorBoard, any CSV with a
header, or wandb:ENTITY/PROJECT/RUN. NAME=A,B,C pools the seeds A, B, C of one recipe. --x may be
steps if every step costs the same: --x step --x-scale 0.4 --x-label GPU-hours

Read the warnings first. A ceiling fitted before the bend is a guess, and R0 moves everything:
evaluate at step 0. --until is the test that counts.
Exit codes: 0 well; 2 input that cannot be used; 3 there are warnings, with --strict."""


# ------------------------------------------------------------------------- 1. numbers as text
def table_rows(fits):
    """{label: Fit} -> the rows of the table, its header first: every number with its interval."""
    return [("fitted on", "n", "A (ceiling)", "B (steepness)", "C_mid", "R0", "rmse")] + [
        (label, str(f.n), *(with_interval(f, name) for name in FORMS),
         f"{f.R0:.3f} ({f.R0_from})", f"{f.rmse:.4f}") for label, f in fits.items()]


def fit_table(fits):
    """{label: Fit} -> lines: a row a fit."""
    rows = table_rows(fits)
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows]


def write_table(path, fits):
    """--table, as .csv: every number in a cell of its own."""
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        ends = [f"{name}{end}" for name in FORMS for end in ("", "_low", "_high")]
        out.writerow(["fitted on", "n", *ends, "R0", "rmse"])
        for label, f in fits.items():
            cells = [value for name in FORMS for value in (getattr(f, name), *f.ci[name])]
            out.writerow([label, f.n, *cells, f.R0, f.rmse])


def record(fit):
    """The numbers, intervals and warnings of a fit, without data and replicates."""
    return {name: v for name, v in vars(fit).items() if name not in ("C", "R", "pool")}


# --------------------------------------------------------------------------- 2. lines to read
def rival_lines(fits):
    """{label: Fit} -> a line for each: the other laws' ceilings, and whether they fit better."""
    for label, fit in fits.items():
        (law, rival), constant = fit.rival, fit.rivals["constant"]
        yield (f"rivals of {label}: {law}, ceiling {rival['A']:.3f}, AIC "
               f"{rival['delta_aic']:+.1f}; a constant, AIC {constant['delta_aic']:+.1f} "
               "(below 0: fits better)")


def held_out_lines(told):
    """What `held_out` measured, in words."""
    low, high, measured = told["lo"], told["hi"], told["measured"]
    where = "" if np.isnan(low) else ", in the interval" if low <= measured <= high else \
        ", outside the interval"
    return [f"predicted from the first part for the last {told['evaluations']} evaluations: "
            f"{told['predicted']:.3f} {span(low, high, '.3f')}; measured {measured:.3f}; "
            f"error {told['error']:+.3f}{where}",
            f"naive forecast, the last 3 fitted evaluations carried forward: {told['naive']:.3f}; "
            f"error {told['naive_error']:+.3f}",
            f"error in range {told['rmse_in_range']:.4f} (rmse of {told['n_in_range']} fitted), "
            f"held out {told['rmse_held_out']:.4f} (rmse of {told['n_held_out']} predicted)"]


def forecast(fit, predict, target):
    """--predict: the reward at a compute; --target: the reverse -> lines, numbers for --json."""
    lines, summary = [], {"predict": [], "target": None}
    for C in predict:
        mean, low, high = fit.predict(C)
        summary["predict"].append(dict(C=C, mean=mean, lo=low, hi=high))
        lines.append(f"at compute {C:.3g} ({C / fit.C[-1]:.2g} times the data): {mean:.3f} "
                     f"{span(low, high, '.3f')}")
    if target is not None:
        C, draws = fit.compute_for(target), np.concatenate([
            compute_needed(each.law, target, *each.draws.T) for each in fit.pool])
        low, high = interval(draws)
        summary["target"] = dict(R=target, C=C, lo=low, hi=high, never=np.isinf(draws).mean())
        lines.append(
            f"to reach {target:g} takes compute {C:.3g} {span(low, high)}" if np.isfinite(C) else
            f"{target:g} is never reached: the ceiling is {fit.A:.3f} {span(*fit.ci['A'], '.3f')}")
    return lines, summary


def compare_lines(told):
    """What `compare` found, in words."""
    base, shared = told["first"], f"{told['A_mean']:.3f}"
    yield (f"ceilings: mean {shared}, farthest from it {told['A_spread']:.3f} "
           "(three seeds of one recipe in the paper: 0.015)")
    for label, d in told["A"].items():
        yield (f"  A({label}) - A({base}) = {d['d']:+.3f} {span(d['lo'], d['hi'], '+.3f')}: "
               f"{d['rule']} by the paper's {SAME_A}, {d['bootstrap']} by the bootstrap")
    for label, doubt in told["doubts"].items():
        yield f"  A({label}) is not determined: {doubt}"
    if not told["B"]:
        yield ("a ceiling is not determined: B is not compared" if told["doubts"] else
               f"the ceilings span {told['A_span']:.3f}, more than {SAME_A}: B is not compared")
        return
    yield f"steepness at the shared ceiling {shared}:"
    for label, d in told["B"].items():
        yield f"  B({label}) = {d['B']:.2f} {span(*d['ci'], '.2f')}" + (
            f"; {d['d']:+.2f} {span(d['lo'], d['hi'], '+.2f')} against {base}: {d['bootstrap']}"
            if label != base else "")


def pool_warnings(fit, seeds):
    """Do the seeds (label, C, R) of a pooled fit differ by more than noise?  Then its intervals are
    too narrow: three seeds of 80 evaluations are three pieces of evidence, not 240."""
    for label, C, R in seeds:
        shift = (R - fit.curve(C))[C > 0]
        if shift.size and abs(shift.mean()) > 3 * fit.rmse / np.sqrt(shift.size):
            yield (f"seed {label} lies {shift.mean():+.4f} from the pooled curve, more than noise: "
                   "compare the seeds as separate runs and look at the spread of A")


# ------------------------------------------------------------------------------ 3. the command
def refitter(args, run=0):
    """fit_curve with the settings of the command line. Each run has a seed of its own: with one
    seed for two runs their replicates would move together, and differences would look sure."""
    options = {name: getattr(args, name) for name in (
        "law", "method", "R0", "c_min", "bootstrap", "A_range", "C_mid_range")} | dict(seed=run)
    if args.R0 not in (None, "fit"):
        try:
            options["R0"] = float(args.R0)
        except ValueError:
            raise BadInput(f"--R0 is a number or `fit`, got {args.R0}") from None
    if args.C_mid_nodes is not None:
        if args.C_mid_nodes < 1 or not args.C_mid_range:
            raise BadInput(f"--C-mid-nodes {args.C_mid_nodes}: it takes a number above 0, and "
                           "--C-mid-range LO HI")
        options["C_mid_nodes"] = np.linspace(*args.C_mid_range, args.C_mid_nodes)
    return partial(fit_curve, **options)


def report_run(args, refit, curve):
    """Fit one run and describe it -> {label: Fit}, lines, numbers for --json, warnings."""
    label, C, R = curve.label, curve.C, curve.R
    fit, last = refit(C, R), R[-LAST:].mean()
    print(f"{label}: {R.size} evaluations of {curve.y} against {curve.x}; R0 {fit.R0:.3f} "
          f"({fit.R0_from}); last evaluation {last:.3f} (mean of the last {min(LAST, R.size)})")
    print(*(f"  note: {note}\n" for note in curve.notes), sep="", end="")
    fits, summary = {label: fit}, dict(x=curve.x, y=curve.y, last=last, fit=record(fit))
    warnings = [*curve.warnings, *fit.warnings, *pool_warnings(fit, curve.seeds)]
    lines, summary["forecast"] = forecast(fit, args.predict, args.target)
    if args.until is not None:
        cut = args.until * C[-1] if args.until <= 1 else args.until
        early = fits[f"{label}, up to {cut:.3g}"] = refit(C, R, c_max=cut)
        summary["held_out"], summary["early"] = held_out(C, R, early), record(early)
        lines = held_out_lines(summary["held_out"]) + lines
        warnings += [f"up to {cut:.3g}: {warning}" for warning in early.warnings]
    return fits, lines, summary, warnings


def ahead_lines(curves):
    """Who is ahead at equal compute, by the seeds alone: no law is fitted. Ours.

    Seeds are interpolated; the difference of two recipes' means has Welch's 90% interval."""
    pooled = [curve for curve in curves if curve.seeds]
    for curve in pooled[1:]:
        first = pooled[0]
        end = min(C[-1] for _, C, _ in first.seeds + curve.seeds)
        C_at = end * np.array([0.25, 0.5, 0.75, 1])
        theirs, ours = ([np.interp(C_at, C, R) for _, C, R in one.seeds] for one in (curve, first))
        d = np.mean(theirs, 0) - np.mean(ours, 0)
        low, high = ttest_ind(theirs, ours, equal_var=False).confidence_interval(LEVEL)
        yield (f"{curve.label} - {first.label} at equal compute, {len(theirs)} and {len(ours)} "
               "seeds: " + ", ".join(f"{value:+.3f} {span(lo, hi, '+.3f')} at {C:.2g}"
                                     for value, lo, hi, C in zip(d, low, high, C_at, strict=True)))
        ahead = (low > 0).astype(int) - (high < 0)          # 1: curve, -1: first, 0: nobody
        if ahead[-1]:
            begun = 1 + max(np.flatnonzero(ahead != ahead[-1]), default=-1)
            winner = curve if ahead[-1] > 0 else first
            yield f"  {winner.label} is ahead from {C_at[begun]:.2g} on"
        else:
            half = (high[-1] - low[-1]) / 2
            needed = np.ceil((len(theirs) + len(ours)) / 2 * (half / SAME_A) ** 2)
            yield (f"  nobody is ahead at the end: these seeds show what is above {half:.3f}"
                   + (f"; for {SAME_A} it takes about {needed:.0f} each" if half > SAME_A else ""))


def arguments(argv):
    """The options of `python fit.py`."""
    p = argparse.ArgumentParser(prog="fit.py", description=ABOUT, epilog=NOTES,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    add, pair = p.add_argument, dict(type=float, nargs=2, metavar=("LO", "HI"))
    add("runs", nargs="+", metavar="RUN", help="a log, a run folder, or NAME=LOG,LOG,...")
    add("--x", help="column of compute")
    add("--y", action="append", help="column of the pass rate; twice for two tasks of a run")
    add("--x-scale", type=float, default=1.0, metavar="K", help="multiply --x: GPU-hours a step")
    add("--x-label", help="name of the compute axis")
    add("--repeats", choices=("last",), help="of two rewards at one compute (a restarted run)")
    add("--reward-range", **pair, default=(0.0, 1.0), help="map these rewards onto [0, 1]")
    add("--law", choices=LAWS, default="sigmoid", help="only sigmoid and power are the paper's")
    add("--method", choices=("free", "grid"), default="free", help="grid is the paper's A.5")
    add("--R0", metavar="R|fit", help="pass rate before training, or `fit` (default: step 0)")
    add("--A-range", **pair, help="default: R0 to 1; equal numbers hold A")
    add("--C-mid-range", **pair, help="default: from the data")
    add("--C-mid-nodes", type=int, metavar="N", help="grid method: N linear nodes in --C-mid-range")
    add("--c-min", type=float, help="leave out earlier evaluations (the paper: about one epoch)")
    add("--until", type=float, metavar="C", help="fit up to C (a share if <= 1), predict the rest")
    add("--predict", type=float, nargs="+", default=[], metavar="C", help="pass rate at compute C")
    add("--target", type=float, metavar="R", help="compute that this pass rate takes")
    add("--bootstrap", type=int, default=1000, metavar="S", help="replicates (1000)")
    add("--strict", action="store_true", help="exit code 3 if there is any warning")
    add("--json", metavar="FILE", help="the numbers, for programs")
    add("--table", metavar="FILE", help="the table as .csv")
    add("--title", help="of the pictures")
    add("--out", metavar="FILE", help="picture (.png, .pdf, .svg); `none` for none")
    return p.parse_args(argv)


def report(args):
    """Everything about one run, or about several and their comparison -> exit code."""
    curves = read_curves(args.runs, args.x, args.y, args.x_scale, args.x_label, args.reward_range,
                         args.repeats)
    refits = {curve.label: refitter(args, i) for i, curve in enumerate(curves)}
    table, lines, record, several = {}, [], dict(runs={}, warnings=[]), len(curves) > 1
    for curve in curves:
        fits, more, record["runs"][curve.label], warnings = report_run(
            args, refits[curve.label], curve)
        table |= fits
        lines += [f"{curve.label}: {line}" for line in more] if several else more
        record["warnings"] += [f"{curve.label}: {warning}" for warning in warnings]
    if several:
        own = {curve.label: table[curve.label] for curve in curves}
        record["comparison"], compared = compare(curves, own, refits)
        lines += [*compare_lines(record["comparison"]), *ahead_lines(curves)]
    lines += [f"warning: {warning}" for warning in record["warnings"]]
    print(*fit_table(table), *rival_lines(table), *lines, sep="\n")
    if args.table:
        write_table(Path(args.table), table)
    if args.json:             # numpy's numbers as Python's; nan and inf, unknown to JSON, as null
        text = json.dumps(record, default=lambda value: value.tolist())
        text = json.dumps(json.loads(text, parse_constant=lambda name: None), indent=1)
        Path(args.json).write_text(text + "\n")
    if args.out != "none":
        path = Path(args.out or ("compare.png" if several else curve.picture))
        save(plot_compare(curves, compared, args.title) if several else
             plot_run(curve, *fits.values(), title=args.title), path)
        print(f"picture: {path}")
    return 3 if args.strict and record["warnings"] else 0


def main(argv=None):
    """The command: reads logs, prints, draws. Returns the exit code, see NOTES."""
    try:
        return report(arguments(argv))
    except (BadInput, OSError, ImportError) as error:         # a reader's package is not there
        print(f"fit.py: {error}", file=sys.stderr)
        return 2
