"""compare.py: are two recipes the same? Ceilings by the paper's rule, steepness at a shared one."""
import numpy as np

from fit import RIVAL, SAME_A, THETA, interval


def difference(name, a, b):
    """a - b in parameter `name` ("A", "B"), with its interval. The bootstrap does not know how much
    seeds of one recipe differ: for recipes use the paper's 0.02."""
    size, column = min(len(a.draws), len(b.draws)), THETA.index(name)
    low, high = interval(a.draws[:size, column] - b.draws[:size, column])
    return dict(d=getattr(a, name) - getattr(b, name), lo=low, hi=high)


def same_ceiling(A):
    """The paper's rule for ceilings A (k,). .61 - .59 is above .02 in floating point: 1e-9."""
    return bool(np.ptp(A) <= SAME_A + 1e-9)


def ceiling_doubt(fit):
    """Why this ceiling cannot be compared with another one, or ""."""
    (low, high), (law, rival) = fit.ci["A"], fit.rival
    if high - low > 0.1:
        return f"its interval is {high - low:.2f} wide"
    if rival["delta_aic"] < RIVAL and abs(rival["A"] - fit.A) > SAME_A:
        return f"the {law} law fits as well and has the ceiling {rival['A']:.3f}"
    return ""


def compare(curves, fits, refits):
    """Ceilings against the first run's, then steepness with all runs refitted at the mean A, if all
    ceilings are known and the same by the paper's rule: B means little without A.

    curves: each with label, C, R; fits {label: Fit}; refits {label: a function that fits (C, R) as
    the command asks} -> numbers"""
    base, A = next(iter(fits)), np.array([fit.A for fit in fits.values()])
    doubts = {label: why for label, fit in fits.items() if (why := ceiling_doubt(fit))}
    told = dict(first=base, A_mean=A.mean(), doubts=doubts, A={}, B={})
    for label, fit in list(fits.items())[1:]:
        rule = ("undetermined" if {label, base} & doubts.keys() else
                "same" if same_ceiling([fit.A, fits[base].A]) else "differ")
        told["A"][label] = difference("A", fit, fits[base]) | dict(rule=rule)
    if same_ceiling(A) and not doubts:
        at_mean = {curve.label: refits[curve.label](curve.C, curve.R, A_range=(A.mean(), A.mean()))
                   for curve in curves}
        told["B"] = {label: difference("B", fit, at_mean[base]) | dict(B=fit.B, ci=fit.ci["B"])
                     for label, fit in at_mean.items()}
    return told
