"""plan.py: how much evaluation a forecast takes (`--plan`). Ours, by the bound of Cramer and Rao:
no unbiased forecast is surer than the Fisher information of the evaluations allows."""
import numpy as np
from scipy.special import ndtri

from fit import LEVEL, THETA, BadInput, sigmoid

Z, POWER = ndtri((1 + LEVEL) / 2), 0.8
# Ends known to +-D / APART tell runs D apart: in 80% of pairs the difference's interval excludes 0.
APART = 2 ** 0.5 * (Z + ndtri(POWER)) / Z
TYPICAL = dict(A=0.8, B=1.8, C_mid=0.4, R0=0.25)        # C_mid as a share of the run


def deviation(theta, C, C_at, answers):
    """The least standard deviation of a forecast for C_at from evaluations of so many answers at
    compute C (n,), step 0 among them; theta: {"A": .., "B": .., "C_mid": .., "R0": ..}."""
    def slopes(C):                                                                    # (4, ...)
        steps = {name: 1e-5 * (theta[name] if name == "C_mid" else 1) for name in THETA}
        return np.array([(sigmoid(C, **theta | {name: theta[name] + step}) - sigmoid(
            C, **theta | {name: theta[name] - step})) / 2e-5 for name, step in steps.items()])
    p, ahead = np.clip(sigmoid(C, **theta), 0.01, 0.99), slopes(C_at)    # none is sure at R0 = 0
    information = slopes(C) / (p * (1 - p) / answers) @ slopes(C).T
    return float(np.sqrt(ahead @ np.linalg.pinv(information, rcond=1e-14) @ ahead))


def plan_lines(theta, end, width, share=None):
    """The answers that intervals of +-width at the run's end take, by the share that is seen (None:
    .3 and .5). Raises BadInput: no rise, or no such width or share."""
    A, B, C_mid, R0 = (theta[name] for name in THETA)
    if not (R0 < A and 0 < width < 1 and 0 < (share or 1) <= 1):
        raise BadInput("--plan takes a curve that rises, a width and a share within 0 and 1")
    yield (f"answers an evaluation (problems x samples) for {LEVEL:.0%} intervals of +-{width:.2g} "
           f"at the end of a run with A {A:.3g}, B {B:.3g}, C_mid {C_mid / end:.2g} of the run, R0 "
           f"{R0:.3g}; or to tell two recipes {width * APART:.2g} apart in {POWER:.0%} of the "
           "pairs; law known, no prior")
    for share in (share,) if share else (0.3, 0.5):
        needed = [(n, (Z / width * deviation(theta, np.linspace(0, share * end, n + 1), end, 1))
                   ** 2) for n in (5, 10, 20, 40)]
        yield f"  from {share:.0%} of the run, seen " + ", ".join(
            f"in {n}{' evaluations' * (n == 5)}: {answers:,.0f}" for n, answers in needed)
