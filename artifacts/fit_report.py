"""The output of `python fit.py`: lines, warnings, numbers as JSON, pictures."""
import json
from pathlib import Path

import numpy as np

from artifacts.figures import plot_compare, plot_rolling, plot_run, save
from artifacts.readers import read_curves
from fit import (LAST, PAPER_GRID, SAME_A, BadInput, compare, fit_curve, fit_table, forecast,
                 held_out, pool_diagnostics, rival_lines, rolling)


def refitter(args):
    """fit_curve with the settings of the command line."""
    options = {name: getattr(args, name) for name in (
        "law", "method", "R0", "c_min", "bootstrap", "seed", "A_range", "B_range", "C_mid_range",
        "A_step")}
    if args.R0 not in (None, "fit"):
        try:
            options["R0"] = float(args.R0)
        except ValueError:
            raise BadInput(f"--R0 is a number or `fit`, got {args.R0}") from None
    if args.C_mid_nodes:
        if not args.C_mid_range:
            raise BadInput("--C-mid-nodes needs --C-mid-range LO HI")
        options["C_mid_nodes"] = np.linspace(*args.C_mid_range, args.C_mid_nodes)
    if args.paper_grid:
        options |= PAPER_GRID
    return lambda C, R, **more: fit_curve(C, R, **(options | more))


def report_run(args, refit, curve):
    """Fit one run and describe it -> {label: Fit}, lines, numbers for --json, warnings, and what
    `rolling` gives."""
    label, C, R = curve.label, curve.C, curve.R
    fit, last, rolled = refit(C, R), R[-LAST:].mean(), None
    print(f"{label}: {R.size} evaluations of {curve.y} against {curve.x}; R0 {fit.R0:.3f} "
          f"({fit.R0_from}); last evaluation {last:.3f} (mean of the last {min(LAST, R.size)})")
    print(*(f"  note: {note}\n" for note in curve.notes), sep="", end="")
    fits, summary = {label: fit}, dict(x=curve.x, y=curve.y, last=last, fit=fit.record())
    warnings = [*curve.warnings, *fit.warnings, *pool_diagnostics(fit, curve.seeds)]
    lines, summary["forecast"] = forecast(fit, args.predict, args.target)
    if args.until is not None:
        cut = args.until * C[-1] if args.until <= 1 else args.until
        if not cut >= C[C > 0][0]:
            raise BadInput(f"--until {args.until:g} leaves nothing to fit: up to 1 it is a share "
                           f"of the run, above 1 it is {curve.x} (here to {C[-1]:.3g})")
        early = fits[f"{label}, up to {cut:.3g}"] = refit(C, R, c_max=cut)
        more, summary["held_out"] = held_out(C, R, early)
        lines, summary["early"] = more + lines, early.record()
        warnings += [f"up to {cut:.3g}: {warning}" for warning in early.warnings]
    if args.rolling:      # 40 fits: 200 replicates each are enough for a band
        few = min(200, args.bootstrap)
        rolled = rolling(C, R, lambda C, R, c_max: refit(C, R, c_max=c_max, bootstrap=few),
                         args.c_min)
        summary["known_from"] = known = rolled[-1]
        when = "never settled" if known is None else \
            f"settled at {known:.3g} ({known / C[-1]:.0%} of the compute)"
        lines.append(f"the prediction {when}: within {SAME_A} of the outcome and staying there")
    return fits, lines, summary, warnings, rolled


def report(args):
    """Everything about one run, or about several and their comparison -> exit code."""
    refit = refitter(args)
    curves, notes = read_curves(args.runs, args.x, args.y, args.x_scale, args.x_label,
                                args.reward_range)
    print(*(f"note: {note}\n" for note in notes), sep="", end="")
    table, lines, pictures, record = {}, [], [], dict(runs={}, warnings=[])
    several = len(curves) > 1
    for curve in curves:
        fits, more, record["runs"][curve.label], warnings, rolled = report_run(args, refit, curve)
        table |= fits
        lines += [f"{curve.label}: {line}" for line in more] if several else more
        record["warnings"] += [f"{curve.label}: {warning}" for warning in warnings]
        out = Path(args.out) if args.out else curve.picture
        if not several:
            pictures.append((out, lambda: plot_run(curve, *fits.values())))
        if rolled:
            name = f"_rolling_{curve.label.replace('/', '-')}" if several else "_rolling"
            pictures.append((out.with_stem(out.stem + name),
                             lambda curve=curve, rolled=rolled: plot_rolling(curve, rolled)))
    if several:
        own = {curve.label: table[curve.label] for curve in curves}
        more, record["comparison"], compared = compare(curves, own, refit)
        lines += more
        pictures.append((Path(args.out or "compare.png"), lambda: plot_compare(curves, compared)))
    lines += [f"warning: {warning}" for warning in record["warnings"]]
    print(*fit_table(table), *rival_lines(table), *lines, sep="\n")
    if args.json:             # numpy's numbers as Python's; nan and inf, unknown to JSON, as null
        text = json.dumps(record, default=lambda value: value.tolist())
        text = json.dumps(json.loads(text, parse_constant=lambda name: None), indent=1)
        Path(args.json).write_text(text + "\n")
    for path, draw in pictures if args.out != "none" else ():
        save(draw(), path)
        print(f"picture: {path}")
    return 3 if args.strict and record["warnings"] else 0
