"""compare.py: are two recipes the same? Ceilings by the paper's rule, steepness at a shared one."""
import numpy as np

from fit import RIVAL, SAME_A, THETA, interval
from fitting.figures import FORMS, span, with_interval

NEAR = SAME_A + 1e-9        # .61 - .59 is above .02 in floating point


def difference(name, a, b):
    """a - b in parameter `name` ("A", "B") with its interval, as text; either may have no draws.
    The bootstrap does not know how much seeds of one recipe differ: there take the paper's 0.02."""
    ours, theirs = (fit.pool[0].draws[:, THETA.index(name)] for fit in (a, b))
    ends, form = interval(ours[:len(theirs)] - theirs[:len(ours)]), f"+{FORMS[name]}"
    return f"{getattr(a, name) - getattr(b, name):{form}} {span(*ends, form)}"


def ceiling_doubt(fit):
    """Why this ceiling cannot be compared with another one, or ""."""
    (low, high), (law, rival) = fit.ci["A"], next(iter(fit.rivals.items()))
    if high - low > 0.1:
        return f"its interval is {high - low:.2f} wide"
    if rival["delta_aic"] < RIVAL and abs(rival["A"] - fit.A) > SAME_A:
        return f"the {law} law fits as well and has the ceiling {rival['A']:.3f}"
    return ""


def clearly_apart(a, b):
    """Do the ceilings differ by more than 0.02 in 90% of the replicates of both laws together?"""
    ours, theirs = (np.concatenate([each.draws[:, 0] for each in fit.pool]) for fit in (a, b))
    low, high = interval(ours[:len(theirs)] - theirs[:len(ours)])
    return low > NEAR or high < -NEAR


def compare_lines(curves, fits, refits):
    """Ceilings against the first run's; then, if all are known and the same, steepness with the
    mean A, as B means little without A. fits: {label: Fit}; refits: {label: fit_curve as asked}"""
    base, A = next(iter(fits)), np.array([fit.A for fit in fits.values()])
    doubts = {label: why for label, fit in fits.items() if (why := ceiling_doubt(fit))}
    yield f"ceilings, {A.mean():.3f} in the mean:"
    for label, fit in list(fits.items())[1:]:
        rule = ("differ" if clearly_apart(fit, fits[base]) else
                "undetermined" if {label, base} & doubts.keys() else
                "same" if abs(fit.A - fits[base].A) <= NEAR else "differ")
        yield (f"  A({label}) - A({base}) = {difference('A', fit, fits[base])}: {rule} by the "
               f"paper's {SAME_A}")
    yield from (f"  A({label}) is not determined: {doubt}" for label, doubt in doubts.items())
    if doubts or np.ptp(A) > NEAR:
        yield f"B is not compared: {'a ceiling is not determined' if doubts else 'ceilings differ'}"
        return
    yield f"steepness at the shared ceiling {A.mean():.3f}:"
    shared = {curve.label: refits[curve.label](curve.C, curve.R, A_range=(A.mean(), A.mean()))
              for curve in curves}
    for label, fit in shared.items():
        yield f"  B({label}) = {with_interval(fit, 'B')}" + (
            f"; {difference('B', fit, shared[base])} against {base}" if label != base else "")
