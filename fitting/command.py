"""The output of `python fit.py`: lines, warnings, numbers as JSON, tables, pictures."""
import csv
import json
import re
from functools import partial
from pathlib import Path

import numpy as np
from scipy.stats import ttest_ind

from fitting.figures import FORMS, plot_compare, plot_run, save, span, with_interval
from fitting.readers import read_curves, read_rows
from fit import LAST, LEVEL, SAME_A, BadInput, compare, fit_curve, held_out, interval


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
    """--table: .tex for a paper; any other, .csv: every number in a cell of its own."""
    if path.suffix == ".tex":
        header, *rows = [" & ".join(re.sub("([_%&#$])", r"\\\1", cell) for cell in row) + r" \\"
                         for row in table_rows(fits)]
        text = "\n".join([r"\begin{tabular}{lrllllr}", r"\hline", header, r"\hline", *rows,
                          r"\hline", r"\end{tabular}", ""])
        path.write_text(re.sub(r"([\d.]+)e([+-]\d+)",                        # 1.4e+12
                               lambda power: rf"${power[1]}\cdot10^{{{int(power[2])}}}$", text))
        return
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        ends = [f"{name}{end}" for name in FORMS for end in ("", "_low", "_high")]
        out.writerow(["fitted on", "n", *ends, "R0", "rmse"])
        for label, f in fits.items():
            cells = [value for name in FORMS for value in (getattr(f, name), *f.ci[name])]
            out.writerow([label, f.n, *cells, f.R0, f.rmse])


# --------------------------------------------------------------------------- 2. lines to read
def rival_lines(fits):
    """{label: Fit} -> a line for each: the other laws' ceilings, and whether they fit better."""
    for label, fit in fits.items():
        (law, rival), (_, constant) = fit.rivals.items()
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
        C, draws = fit.compute_for(target), fit.compute_draws(target)
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


def beside(path, error, cut):
    """--beside: rank this run's error among those in a CSV -> a line.  A row is a run, with columns
    `error` and `cut`, the share that was fitted."""
    others = np.abs([row["error"] for row in read_rows(path)[0]
                     if row.get("cut") == cut and isinstance(row.get("error"), float)])
    if not others.size:
        raise BadInput(f"--beside {path} has no run cut at {cut:g} (column cut) and its error")
    return (f"error {error:+.3f}: no worse than {(others >= abs(error)).mean():.0%} of the "
            f"{others.size} runs in {path} cut at {cut:g} (median {np.median(others):.3f})")


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
    """fit_curve with the settings of the command line.  Each run has a seed of its own: with one
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
    fits, summary = {label: fit}, dict(x=curve.x, y=curve.y, last=last, fit=fit.record())
    warnings = [*curve.warnings, *fit.warnings, *pool_warnings(fit, curve.seeds)]
    lines, summary["forecast"] = forecast(fit, args.predict, args.target)
    if args.until is not None:
        cut = args.until * C[-1] if args.until <= 1 else args.until
        early = fits[f"{label}, up to {cut:.3g}"] = refit(C, R, c_max=cut)
        summary["held_out"], summary["early"] = held_out(C, R, early), early.record()
        lines = held_out_lines(summary["held_out"]) + lines
        warnings += [f"up to {cut:.3g}: {warning}" for warning in early.warnings]
        if args.beside:
            lines.append(beside(Path(args.beside), summary["held_out"]["error"], args.until))
    return fits, lines, summary, warnings


def ahead_lines(curves):
    """Who is ahead at equal compute, by the seeds alone: no law is fitted.  Ours.

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


def report(args):
    """Everything about one run, or about several and their comparison -> exit code."""
    if args.beside and args.until is None:
        raise BadInput("--beside compares errors of predictions: it needs --until")
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
