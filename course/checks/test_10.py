"""Public checks of exercise 10, bets on a run's end (course/10_bets.md). Run: make check EX=10"""
from pathlib import Path

import numpy as np

from course import bets

RUNS = bets.runs_of(Path(__file__).parents[2] / "results" / "demo" / "evals.csv",
                    names=[f"toy{n}-" for n in range(8, 13)])


def test_a_bet_is_a_pass_rate_and_the_same_when_it_is_asked_again():
    for C, R in [*RUNS.values()][::5]:
        C, R, later, _ = bets.question(C, R)
        found = bets.forecast(C, R, later)
        assert np.shape(found) == () and 0 <= found <= 1, f"a number from 0 to 1, and not {found!r}"
        assert bets.forecast(C, R, later) == found


def test_on_the_runs_that_you_have_the_bets_beat_the_naive_forecast():
    """The 25 runs of your points are others: their settings differ, their ends spread wider."""
    errors = []
    for C, R in RUNS.values():
        C, R, later, end = bets.question(C, R)
        errors.append([abs(bets.forecast(C, R, later) - end), abs(R[-1] - end)])
    mine, naive = np.mean(errors, 0)
    assert mine <= 0.6 * naive, f"mean absolute error {mine:.3f}, of the naive forecast {naive:.3f}"


def test_three_evaluations_are_enough_for_a_bet():
    C, R, later, _ = bets.question(*RUNS["toy8-seed15"])
    assert 0 <= bets.forecast(C[:3], R[:3], later) <= 1
