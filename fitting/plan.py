"""plan.py: how much evaluation a forecast takes (`--plan`): the bound of Cramer and Rao. Ours.

No unbiased forecast is surer than the Fisher information of the evaluations allows, even if the law
is the true one. A prior is not counted."""
import numpy as np
from scipy.special import ndtri

from fit import LEVEL, THETA, sigmoid


def deviation(theta, C, C_at, answers):
    """The least standard deviation of a forecast for C_at from evaluations of so many answers at
    compute C (n,), step 0 among them; theta: {"A": .., "B": .., "C_mid": .., "R0": ..}."""
    def slopes(C):                                                                    # (4, ...)
        steps = {name: 1e-5 * (theta[name] if name == "C_mid" else 1) for name in THETA}
        return np.array([(sigmoid(C, **theta | {name: theta[name] + step}) -
                          sigmoid(C, **theta | {name: theta[name] - step})) / 2e-5
                         for name, step in steps.items()])
    p, ahead = sigmoid(C, **theta), slopes(C_at)
    information = slopes(C) / (p * (1 - p) / answers) @ slopes(C).T
    return float(np.sqrt(ahead @ np.linalg.pinv(information, rcond=1e-14) @ ahead))


def plan_lines(theta, end, width, shares=(0.3, 0.5)):
    """The answers that intervals of +-width at the run's end take, by the share that is seen."""
    yield (f"answers an evaluation (problems x samples) for {LEVEL:.0%} intervals of +-{width:g} "
           f"at the end, or to tell two recipes {width * 2 ** .5:.3g} apart; law known, no prior")
    for share in shares:
        needed = [(n, (ndtri((1 + LEVEL) / 2) / width * deviation(
            theta, np.linspace(0, share * end, n + 1), end, 1)) ** 2) for n in (5, 10, 20, 40)]
        yield f"  from {share:.0%} of the run: " + ", ".join(
            f"{n} evaluations {answers:,.0f}" for n, answers in needed)
