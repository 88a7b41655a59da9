"""command.py: the command of fit.py: options, lines, warnings, tables, pictures."""
import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

import fit as law
from fit import LAST, LAWS, RIVAL, THETA, BadInput, compute_needed, fit_curve, held_out, interval
from fitting.compare import compare_lines
from fitting.figures import FORMS, plot_runs, span, with_interval
from fitting.forecast import judge, verdict_line, with_ends
from fitting.like import disagree, fit_like, learn
from fitting.plan import APART, TYPICAL, plan_lines
from fitting.problems import by_problem_lines
from fitting.readers import metric, read_curves

ABOUT = law.__doc__.partition("For `from")[0] + """
    python fit.py runs/demo                                 # verdict, law, intervals, picture
    python fit.py runs/demo --predict 5e12 --target 0.9     # what compute buys; what a reward costs
    python fit.py runs/new --until 0.3 --like runs/old      # what an earlier run of its kind adds
    python fit.py ours=runs/s1,runs/s2 grpo=runs/g1 --out compared.png    # recipes; pooled seeds"""
NOTES = """\
RUN is a run folder, a log of verl, prime-rl, TRL, Weights & Biases or TensorBoard, any CSV with a
header, or wandb:ENTITY/PROJECT/RUN. NAME=A,B,C pools the seeds A, B, C of one recipe.
Read the verdict first, then --why. --until is the test that counts. Exit codes: 0; 2: bad input"""


def fit_table(fits):
    """{label: Fit} -> lines, a row a fit: every number with its interval."""
    rows = [("fitted on", "n", "A (ceiling)", "B (steepness)", "C_mid", "R0", "rmse")] + [
        (label, str(f.n), *(with_interval(f, name) for name in FORMS),
         f"{f.R0:.3f} ({f.R0_from})", f"{f.rmse:.4f}") for label, f in fits.items()]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows]


def held_out_lines(told, value):
    law, low, high, seen = (told[name] for name in ("predicted", "lo", "hi", "measured"))
    where = "" if np.isnan(low) else f", {'in' if low <= seen <= high else 'outside'} the interval"
    return [f"predicted from the first part for the last {told['evaluations']} evaluations: "
            f"{with_ends(law, low, high)}; measured {seen:.3f}; error {law - seen:+.3f}{where}",
            f"naive forecast, the last 3 fitted evaluations carried forward: {told['naive']:.3f}; "
            f"error {told['naive_error']:+.3f}"] + [
            f"the middle of three, {value:.3f}: error {value - seen:+.3f}"] * bool(value != law)


def ahead_lines(fit, predict, target):
    """--predict: the reward at a compute; --target: the reverse."""
    for C in predict:
        times, told = C / fit.C[-1], with_ends(*np.clip(fit.predict(C), 0, 1))   # power: below 0
        yield f"at compute {C:.3g} ({times:.2g} times the data): {told}"
    if target is not None:
        C, draws = fit.compute_for(target), np.concatenate([
            compute_needed(each.law, target, *each.draws.T) for each in fit.pool])
        why = fit.no_interval or f"the curve's ceiling is {with_interval(fit, 'A')}"
        yield (f"to reach {target:g} takes compute {C:.3g} {span(*interval(draws))}" if C < np.inf
               else f"no forecast of {target:g}: {why}; the best evaluation has {fit.R.max():.3f}")


def report_run(args, refit, curve, prior=None):
    """Fit one run and print what it tells -> {label: Fit}, the Fit that was judged."""
    label, C, R, cut = curve.label, curve.C, curve.R, None
    judged = fit = refit(C, R)
    fits, lines = {label: fit}, []
    ahead, where = np.full(LAST, 2 * C[-1]), "at twice the compute"     # without --until
    if args.until is not None:
        cut = args.until * C[-1] if args.until <= 1 else args.until
        judged = fits[f"{label}, up to {cut:.3g}"] = refit(C, R, c_max=cut)
        ahead, where = C[C > cut][-LAST:], "at the end"
    alone, judged = judged, fit_like(judged, prior) if prior else judged
    later = cut and held_out(C, R, judged)      # before `judge`: it refuses a cut with nothing left
    told = judge(judged, ahead)
    if prior:
        lines += filter(None, [disagree(alone, judged), "without earlier runs: "
                               + verdict_line(judge(alone, ahead), where)])
        where += " (with earlier runs)"
    lines += held_out_lines(later, told["value"]) if cut else []
    if args.by_problem:
        lines.insert(0, by_problem_lines(curve, args.x_scale, cut, [*fits.values()][-1]))
    lines += ["of the whole run: " * bool(cut) + line for line in ahead_lines(
        fit if cut else judged, args.predict, args.target)]
    if args.plan:
        theta = {name: getattr(fit, name) for name in THETA}
        lines += plan_lines(theta, C[-1], args.plan, cut and cut / C[-1]) if fit.A > fit.R0 else [
            "no plan: the curve of this run does not rise"]
    print(f"{label}: {R.size} evaluations of {curve.y} against {curve.x}; R0 {fit.R0:.3f} "
          f"({fit.R0_from}); mean of the last {min(LAST, R.size)} evaluations "
          f"{R[-LAST:].mean():.3f}", *(f"  note: {note}" for note in curve.notes),
          verdict_line(told, where, args.why), *lines, sep="\n")
    return fits, judged


def arguments(argv):
    p = argparse.ArgumentParser(prog="fit.py", description=ABOUT, epilog=NOTES,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    add, plan = p.add_argument, p.add_mutually_exclusive_group().add_argument
    add("runs", nargs="*", metavar="RUN", help="a log, a run folder, or NAME=LOG,LOG,...")
    add("--x", help="column of compute")
    add("--y", action="append", help="column of the pass rate; twice for two tasks of a run")
    add("--x-scale", type=float, default=1.0, metavar="K", help="multiply: --x step --x-scale .4")
    add("--reward-range", type=float, nargs=2, metavar=("LO", "HI"), default=(0.0, 1.0),
        help="map these rewards onto [0, 1]")
    add("--law", choices=LAWS, default="sigmoid", help="only sigmoid and power are the paper's")
    add("--method", choices=("free", "grid"), default="free", help="grid is the paper's A.5")
    add("--R0", type=float, help="pass rate before training (default: step 0, else it is fitted)")
    add("--c-min", type=float, default=0.0, help="leave out less compute (paper has an epoch)")
    add("--until", type=float, metavar="C", help="fit up to C (a share if <= 1), predict the rest")
    add("--like", nargs="+", metavar="EARLIER", help="learn from whole runs of its task and recipe")
    add("--by-problem", action="store_true", help="also from the counts of each problem (right@k)")
    add("--predict", type=float, nargs="+", default=[], metavar="C", help="pass rate at compute C")
    add("--target", type=float, metavar="R", help="compute that this rate takes, in [0, 1]")
    plan("--plan", type=float, metavar="W", help="answers for a forecast of +-W, of RUN or typical")
    plan("--apart", type=float, metavar="D", help="in place of --plan: to tell two recipes D apart")
    add("--answers", type=float, metavar="N", help="problems x samples of one: the least noise")
    add("--bootstrap", type=int, default=200, metavar="S", help="replicates (200)")
    add("--why", action="store_true", help="all reasons to doubt; the rival laws")
    add("--out", metavar="FILE", help="picture (.png, .pdf, .svg); `none`; of one run curve.png")
    args = p.parse_args(argv)
    for n, low, high in (
            ("plan", 1e-4, 1), ("apart", 1e-4, 1), ("answers", 1, 1e15), ("x-scale", 1e-300, 1e300),
            ("predict", 0, 1e300), ("target", 0, 1), ("bootstrap", 0, 1e6)):
        for value in np.ravel(getattr(args, n.replace("-", "_"))):
            if value is not None and not low <= value <= high:
                raise BadInput(f"--{n} takes a number from {low:g} to {high:g}, got {value:g}")
    args.plan = args.apart / APART if args.apart else args.plan
    return args


def report(args):
    """Everything about one run, or about several and their comparison; without a run, the plan."""
    if (args.like or args.plan) and args.law != "sigmoid":
        raise BadInput(f"--like, --plan are of the sigmoid, not of --law {args.law}")
    if not args.runs:
        if not args.plan:
            raise BadInput("it takes a RUN, before --like; or --plan W, or --apart D alone")
        return print(*plan_lines(TYPICAL, 1, args.plan, args.until), sep="\n")
    columns = (args.x, args.y, args.x_scale, args.reward_range)
    if args.like and (args.answers or len(args.y or ()) > 1):
        raise BadInput("--like takes one --y, as tasks differ, and no --answers: it guesses noise")
    curves = read_curves(args.runs, *columns)
    same = args.x or metric(curves[0].x), args.y or [metric(curves[0].y)], *columns[2:]
    if args.x_scale != 1:                           # no longer what the column is called
        curves = [replace(each, x=f"{each.x} times {args.x_scale:g}") for each in curves]
    earlier = read_curves(args.like, *same) if args.like else []
    for each in earlier:
        print(f"earlier run: {each.label}: {each.y}", *each.notes, sep="; ")
    prior = args.like and learn([fit_curve(each.C, each.R, bootstrap=0) for each in earlier])
    old, new = ([{*zip(each.C, each.R)} for each in runs] for runs in (earlier, curves))
    if any(one <= two or two <= one for one in old for two in new):
        raise BadInput("--like: an earlier run is the run itself, and knows its end")
    several, fits = len(curves) > 1, {}
    if args.by_problem and (several or curves[0].path is None):
        raise BadInput(f"--by-problem takes one run of one task, not {len(curves)}, nor pooled")
    options = {n: getattr(args, n) for n in "law method R0 c_min bootstrap answers".split()}
    # A seed for each run: else replicates would move together, and differences would look sure.
    refits = {curve.label: partial(fit_curve, **options, seed=i) for i, curve in enumerate(curves)}
    for curve in curves:
        found, judged = report_run(args, refits[curve.label], curve, prior)
        fits |= found
    whole = {curve.label: fits[curve.label] for curve in curves}
    if several:
        print(*["whole runs:"] * bool(args.until), *compare_lines(curves, whole, refits), sep="\n")
    print(*fit_table(fits), sep="\n")
    for label, fit in fits.items():
        other, = fit.rivals.keys() - {"constant"}
        rival, constant = fit.rivals[other], fit.rivals["constant"]
        if args.why or rival["delta_aic"] < -RIVAL:     # of a constant the verdict says it
            print(f"rivals of {label}: {other}, ceiling {rival['A']:.3f}, AIC "
                  f"{rival['delta_aic']:+.1f}; a constant, AIC {constant['delta_aic']:+.1f} "
                  "(below 0: fits better)")
    if args.out != "none" and (args.out or not several):
        path, part = Path(args.out or curve.picture), "with earlier runs" if prior else "first part"
        early = None if several or judged is whole[curve.label] else judged
        plot_runs(curves, [*whole.values()], early, part).savefig(path, dpi=150)
        print(f"picture: {path.with_suffix(path.suffix or '.png')}" + ", whole runs" * several)


def main(argv=None):
    """The command: reads logs, prints, draws. Returns the exit code: 2 for unusable input."""
    try:
        return report(arguments(argv)) or 0
    except (ValueError, OSError, ImportError, RecursionError) as error:     # the last: deep JSON
        package = {"google": "protobuf"}.get(name := getattr(error, "name", None), name)
        print(f"fit.py: {error}" + (f": pip install {package}" if package else ""), file=sys.stderr)
        return 2
