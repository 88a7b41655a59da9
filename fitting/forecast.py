"""forecast.py: what the end of a run will be: a verdict, reasons to doubt, one line. Ours."""
import numpy as np

from fit import FEW, LAST, SAME_A, BadInput, autocorrelation, fit_curve, interval, line_at

USABLE, RANGE, LAST_VALUE = ("forecast usable", "only a range", "no better than the last value")
WIDEST = 0.5                                    # a wider interval is of no use
FALLS = "if this run does not fall (59 of 396 published ones did)"


def with_ends(value, low, high):
    """A forecast and its interval, as text. The interval is of two laws: one may lie outside."""
    outside = " (of two laws; this one is outside)" if value < low or value > high else ""
    return f"{value:.3f} {'no interval' if np.isnan(low) else f'[{low:.3f}, {high:.3f}]'}{outside}"


def falls(fit):
    """True if the last mean of k neighbors is below the best by over 0.02 and 3 standard errors."""
    R = np.append(fit.R0, fit.R) if fit.n < FEW and fit.R0_from == "step 0" else fit.R   # if short
    k = max(3, R.size // 5)
    means = np.convolve(R, np.ones(k) / k, "valid")
    sigma = np.median(np.abs(np.diff(R))) / 0.954           # .954 = .6745 sqrt(2)
    return R.size >= 2 * k and means.max() - means[-1] > max(0.02, 3 * sigma * np.sqrt(2 / k))


def doubts(fit):
    """Reasons to doubt a fit that can make a forecast; the rules are ours."""
    noisy = fit.R0_from == "step 0" and fit.rmse > 0.05         # a training log: .08 and more
    if noisy or fit.R0_from == "fitted" and fit.C[0] > 0:
        yield f"{'noise' if noisy else 'no evaluation'} at step 0: R0 is a guess; it moves the rest"
    if (not fit.no_interval and fit.law != "power" and fit.C[-1] < 2 * fit.C_mid
            and fit.A - fit.curve(fit.C[-1]) > 0.1 * (fit.A - fit.R0)):
        yield "the bend towards the ceiling has hardly been seen"
    # The noise of a good fit is independent: neighbors correlate at about -3 / n +- 1 / sqrt(n).
    rho = min(autocorrelation(fit.R - fit.curve(fit.C)) + 3 / fit.n, 1)
    if fit.n >= 10 and fit.rmse > 1e-6 and rho > 2 / np.sqrt(fit.n):
        yield (f"the residuals have a trend (neighbors correlate at {rho:.2f}): the law misses "
               "part of the shape, or the noise lasts")


def judge(fit, C):
    """The forecast for the mean of evaluations at C (k,), beyond the fitted ones.
    -> {verdict, reasons (sentences), fell, narrow, value, law, lo, hi, naive, line}: value is law
    if usable, naive if narrow, else the middle of law, naive and line; lo and hi are law's"""
    law, naive = float(fit.curve(C).mean()), float(fit.R[-3:].mean())
    ends = line_at(fit.C, fit.R, C)
    line = float(np.clip(ends, 0, 1).mean())                  # told; the rule takes it as it is
    low, high = map(float, interval(fit.futures(C, noise=True).mean(1)))
    reasons, verdict, narrow = [], USABLE, fit.C[-1] < 2 * fit.C[fit.C > 0][0]
    if narrow:                                  # twice a clock's time is of no use, nor a line
        verdict, reasons = LAST_VALUE, ["compute does not double: is it counted from the start?"]
    elif fit.no_interval:
        verdict, reasons = LAST_VALUE, [fit.no_interval]
    elif abs(law - naive) <= SAME_A:
        verdict, reasons = LAST_VALUE, ["the curve ends within 0.02 of the last value"]
    elif abs(law - ends.mean()) >= abs(law - naive):
        verdict, reasons = RANGE, ["the line is no nearer to the curve than the last value is"]
    elif not high - low <= WIDEST:              # nor if C is empty, or no number
        verdict, reasons = RANGE, [f"the interval is {high - low:.2f} wide"]
    if fell := falls(fit):
        verdict, reasons = LAST_VALUE, ["the reward falls, and no law here does", *reasons]
    value = law if verdict == USABLE else float(np.median([law, naive, naive if narrow else line]))
    return dict(verdict=verdict, reasons=[*reasons, *doubts(fit)], fell=fell, value=value, law=law,
                lo=low, hi=high, naive=naive, line=line, narrow=narrow)


def verdict_line(told, where, why=False):
    """What `judge` told, in one line, and a line for each of two reasons, with `why` of all."""
    curve, usable = with_ends(told["law"], told["lo"], told["hi"]), told["verdict"] == USABLE
    how = "the last value" if told["narrow"] else "middle of three"
    first = curve if usable else f"expect {told['value']:.3f} ({how})"
    other, link = ("", "but") if usable else (f"the curve says {curve}, ", "because")
    return (f"{told['verdict']}: {first} {where}" + f", {FALLS}" * (not told["fell"]) + f"; {other}"
            f"the last value is {told['naive']:.3f}, the line in log C {told['line']:.3f}"
            + "".join(f"\n  {link} {reason}" for reason in told["reasons"][:None if why else 2]))


def forecast_line(C, R, end):
    """The forecast at compute `end`, from C and R (n,) with step 0 -> "end .84 [.71, .96] · naive
    .70 (forecast usable)"; "" before the sixth evaluation, at the run's end, and without a fit."""
    if len(C) < FEW or not max(C) < end < np.inf:
        return ""
    try:
        told = judge(fit_curve(C, R, bootstrap=100), np.full(LAST, end))
    except BadInput:
        return ""
    value, low, high, naive = (f"{told[n]:.2f}".lstrip("0") for n in ("value", "lo", "hi", "naive"))
    where = f" [{low}, {high}]" if told["lo"] <= told["value"] <= told["hi"] else ""  # the law's
    return f"end {value}{where} · naive {naive} ({told['verdict']})"
