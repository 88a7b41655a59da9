"""compare.py: are two recipes the same? Ceilings by the paper's rule, steepness at a shared one."""
import numpy as np

from fit import FEW, SAME_A, THETA, interval
from fitting.figures import span, with_interval

NEAR, WIDEST = SAME_A + 1e-9, 0.1       # .61 - .59 is above .02; a wider interval tells nothing


def apart(name, a, b, laws=1):
    """The interval of a - b in parameter `name` ("A", "B"), by so many laws; nan: no replicates."""
    ours, theirs = (np.concatenate([each.draws[:, THETA.index(name)] for each in fit.pool[:laws]])
                    for fit in (a, b))
    return interval(ours[:len(theirs)] - theirs[:len(ours)])


def verdict(a, b):
    """Two ceilings: "same", "differ" or "undetermined"; the interval of a.A - b.A, of both laws."""
    low, high = apart("A", a, b, laws=2)
    known = min(a.n, b.n) >= FEW - 1 and (          # few points lie on a curve by chance
        low > NEAR or high < -NEAR or high - low <= WIDEST)                 # not if they are nan
    rule = "undetermined" if not known else "same" if abs(a.A - b.A) <= NEAR else "differ"
    return rule, low, high


def compare_lines(curves, fits, refits):
    """Ceilings against the first run's; if the same, B at their mean A: alone B means little."""
    (base, first), *others = fits.items()
    A, found = np.array([fit.A for fit in fits.values()]), set()
    yield f"ceilings, {A.mean():.3f} in the mean (no interval knows how far seeds differ):"
    for label, fit in others:
        rule, low, high = verdict(fit, first)
        found.add(rule)
        yield (f"  A({label}) - A({base}) = {fit.A - first.A:+.3f} {span(low, high, '+.3f')}: "
               f"{rule} by the paper's {SAME_A}")
    if found != {"same"} or np.ptp(A) > NEAR:
        yield "B is not compared: the ceilings are not all the same"
        return
    yield f"steepness at the shared ceiling {A.mean():.3f}:"
    shared = {curve.label: refits[curve.label](curve.C, curve.R, A_range=(A.mean(), A.mean()))
              for curve in curves}
    for label, fit in shared.items():
        change, ends = fit.B - shared[base].B, apart("B", fit, shared[base])
        yield f"  B({label}) = {with_interval(fit, 'B')}" + (
            f"; {change:+.2f} {span(*ends, '+.2f')} against {base}" * (label != base))
