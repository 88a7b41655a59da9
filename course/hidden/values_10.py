"""Exercise 10 by values: 25 runs that no student has, seen up to 30% of their compute, against
what is at hand: the naive forecast (it stays as it is), fit.py, and the best constant of all, which
only hindsight knows."""
import functools
from pathlib import Path

import numpy as np

from course import bets
from course.hidden.values import holds, numbers, parts
from fit import fit_curve

PARTS, part = parts()
ROOT = Path(__file__).resolve().parents[2]
# Five settings whose runs end at different heights, five toys each. A new term: other ones.
RUNS = [f"{recipe}-toy{toy}-" for toy in range(13, 18) for recipe in (
    "calm-grpo", "calm-think_14", "calm-gspo_loss", "calm-batch_32", "double-on_policy")]

ERROR = {}                      # {of whom the forecasts are: their mean absolute error}


@functools.cache
def questions():
    found = [bets.question(C, R) for C, R in bets.runs_of(
        ROOT / "results" / "study" / "evals.csv", names=RUNS).values()]
    assert len(found) == len(RUNS)
    return found


@functools.cache
def others():
    """{name: mean absolute error} of what a bet is held against."""
    ends = np.array([end for *_, end in questions()])
    found = {"naive": [R[-1] for _, R, _, _ in questions()], "best constant": np.median(ends),
             "fit.py": [np.mean(fit_curve(C, R, bootstrap=0).predict(later)[0])
                        for C, R, later, _ in questions()]}
    return {name: float(np.abs(found[name] - ends).mean()) for name in found}


def error(rng, ask):
    if ask in ERROR:                            # both parts are about the same forecasts
        return ERROR[ask]
    total = 0.0
    for i in rng.permutation(len(RUNS)):        # each run by itself, in an order that tells nothing
        C, R, later, end = questions()[i]
        bet = numbers(ask("forecast", C=C, R=R, later=later))
        holds("a forecast is one number from 0 to 1", bet.shape == () and 0 <= bet <= 1)
        total += abs(float(bet) - end) / len(RUNS)
    ERROR.clear()
    return ERROR.setdefault(ask, total)


def told(mine):
    return f"mean absolute error {mine:.3f}; " + ", ".join(
        f"{name} {other:.3f}" for name, other in others().items())


@part("forecasts: at most six tenths of the naive forecast's error", 2, 1)
def naive(rng, ask):
    mine = error(rng, ask)
    yield f"note: forecasts: {told(mine)}"
    yield holds(told(mine), mine <= 0.6 * others()["naive"])


@part("forecasts: as good as fit.py, and as the best constant", 1, 1)
def tool(rng, ask):
    mine = error(rng, ask)
    yield holds(told(mine), mine <= min(others()["fit.py"], others()["best constant"]))
