"""forecast.py: what the end of a run will be: a verdict, two reasons, one line; ours. Where the law
is not usable, the forecast is the middle one of law, last value and line (results/public)."""
import numpy as np

from fit import FEW, LAST, SAME_A, BadInput, diagnostics, falls, fit_curve, interval

USABLE, RANGE, LAST_VALUE = ("forecast usable", "only a range", "no better than the last value")
WIDEST = 0.5                                    # a wider interval is of no use
FALLS = "if this run does not fall (59 of 396 published ones did)"


def line_at(C, R, C_at):
    """The line in log C through the last half of the amounts of compute after step 0, three at
    least, at C_at (k,) -> (k,); it may leave [0, 1]. It needs two amounts."""
    amounts = np.unique(C[C > 0])                             # step 0 has no logarithm
    late = C >= amounts[-max(3, amounts.size // 2):][0]
    return np.polyval(np.polyfit(np.log(C[late]), R[late], 1), np.log(C_at))


def with_ends(value, low, high):
    """A forecast and its interval, as text. The interval is of two laws: one may lie outside."""
    outside = " (of two laws; this one is outside)" if value < low or value > high else ""
    return f"{value:.3f} {'no interval' if np.isnan(low) else f'[{low:.3f}, {high:.3f}]'}{outside}"


def judge(fit, C):
    """The forecast for the mean of evaluations at C (k,), beyond the fitted ones.
    -> {"verdict", "reasons" (two sentences at most), "value", "law", "lo", "hi", "naive", "line"}:
    value is what to expect, law what the curve says, with its interval"""
    law, naive = float(fit.curve(C).mean()), float(fit.R[-3:].mean())
    ends = line_at(fit.C, fit.R, C)
    line = float(np.clip(ends, 0, 1).mean())                  # told; the rule takes it as it is
    low, high = map(float, interval(fit.futures(C, noise=True).mean(1)))
    reasons, verdict = [], USABLE
    if fit.no_interval:
        verdict, reasons = LAST_VALUE, [fit.no_interval]
    elif abs(law - naive) <= SAME_A:
        verdict, reasons = LAST_VALUE, ["the curve ends within 0.02 of the last value"]
    elif abs(law - ends.mean()) >= abs(law - naive):
        verdict, reasons = RANGE, ["the line is no nearer to the curve than the last value is"]
    elif not high - low <= WIDEST:              # nor if C is empty, or no number
        verdict, reasons = RANGE, [f"the interval is {high - low:.2f} wide"]
    if falls(fit):
        verdict, reasons = LAST_VALUE, ["the reward falls, and no law here does", *reasons]
    if fit.R0_from == "fitted" and fit.C[0] > 0:
        reasons.append("no evaluation at step 0: R0 is a guess")
    if not fit.no_interval and any("the bend" in warning for warning in diagnostics(fit)):
        reasons.append("the bend towards the ceiling has hardly been seen")
    value = law if verdict == USABLE else float(np.median([law, naive, line]))
    return dict(verdict=verdict, reasons=reasons[:2], value=value, law=law, lo=low, hi=high,
                naive=naive, line=line)


def verdict_line(told, where):
    """What `judge` told, in one line, and a line for each reason."""
    first, other, link = with_ends(told["law"], told["lo"], told["hi"]), "", "but"
    if told["verdict"] != USABLE:
        other, link = f"the curve says {first}, ", "because"
        first = f"expect {told['value']:.3f} (middle of three)"
    return (f"{told['verdict']}: {first} {where}, {FALLS}; {other}the last value is "
            f"{told['naive']:.3f}, the line in log C {told['line']:.3f}"
            + "".join(f"\n  {link} {reason}" for reason in told["reasons"]))


def forecast_line(C, R, end):
    """The forecast at compute `end`, from C and R (n,) with step 0 -> "end .84 [.71, .96] · naive
    .70 (forecast usable)"; "" before the sixth evaluation, at the run's end, and without a fit."""
    if len(C) < FEW or not max(C) < end < np.inf:
        return ""
    try:
        told = judge(fit_curve(C, R, bootstrap=100), np.full(LAST, end))
    except BadInput:
        return ""
    value, low, high, naive = (f"{told[name]:.2f}".removeprefix("0")
                               for name in ("value", "lo", "hi", "naive"))
    where = f" [{low}, {high}]" if told["lo"] <= told["value"] <= told["hi"] else ""  # the law's
    return f"end {value}{where} · naive {naive} ({told['verdict']})"
