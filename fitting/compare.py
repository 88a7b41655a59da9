"""compare.py: are two recipes the same? Ceilings by the paper's rule, steepness at a shared one."""
import numpy as np

from fit import RIVAL, SAME_A, THETA, interval
from fitting.figures import span, with_interval

NEAR = SAME_A + 1e-9        # .61 - .59 is above .02 in floating point


def apart(name, a, b, laws=1):
    """The interval of a - b in parameter `name` ("A", "B"), nan if either has no replicates.
    It does not know how much seeds of one recipe differ: there take the paper's 0.02."""
    ours, theirs = (np.concatenate([each.draws[:, THETA.index(name)] for each in fit.pool[:laws]])
                    for fit in (a, b))
    return interval(ours[:len(theirs)] - theirs[:len(ours)])


def ceiling_doubt(fit):
    """Why this ceiling cannot be compared with another one, or ""."""
    (low, high), (law, rival) = fit.ci["A"], next(iter(fit.rivals.items()))
    if high - low > 0.1:
        return f"its interval is {high - low:.2f} wide"
    if rival["delta_aic"] < RIVAL and abs(rival["A"] - fit.A) > SAME_A:
        return f"the {law} law fits as well and has the ceiling {rival['A']:.3f}"
    return ""


def compare_lines(curves, fits, refits):
    """Ceilings against the first run's; then, if all are known and the same, steepness with the
    mean A, as B means little without A. fits: {label: Fit}; refits: {label: fit_curve as asked}"""
    (base, first), *others = fits.items()
    A = np.array([fit.A for fit in fits.values()])
    doubts = {label: why for label, fit in fits.items() if (why := ceiling_doubt(fit))}
    yield f"ceilings, {A.mean():.3f} in the mean:"
    for label, fit in others:
        low, high = apart("A", fit, first, laws=2)
        rule = ("differ" if low > NEAR or high < -NEAR else
                "undetermined" if {label, base} & doubts.keys() else
                "same" if abs(fit.A - first.A) <= NEAR else "differ")
        yield (f"  A({label}) - A({base}) = {fit.A - first.A:+.3f} "
               f"{span(*apart('A', fit, first), '+.3f')}: {rule} by the paper's {SAME_A}")
    yield from (f"  A({label}) is not determined: {doubt}" for label, doubt in doubts.items())
    if doubts or np.ptp(A) > NEAR:
        yield f"B is not compared: {'a ceiling is not determined' if doubts else 'ceilings differ'}"
        return
    yield f"steepness at the shared ceiling {A.mean():.3f}:"
    shared = {curve.label: refits[curve.label](curve.C, curve.R, A_range=(A.mean(), A.mean()))
              for curve in curves}
    for label, fit in shared.items():
        against = (f"; {fit.B - shared[base].B:+.2f} {span(*apart('B', fit, shared[base]), '+.2f')}"
                   f" against {base}")
        yield f"  B({label}) = {with_interval(fit, 'B')}" + against * (label != base)
