"""The one line of a forecast: when there is one, and that it says what the fit says."""
import re

import numpy as np
import pytest

from fit import fit_curve
from fitting.forecast import forecast_line
from made_runs import made


def test_the_line_names_the_end_its_interval_and_the_last_value():
    """A reader of a running log acts on this line alone."""
    C, R = made(8000, n=11, sd=0.01, seed=np.random.SeedSequence().entropy)
    line = forecast_line(C, R, 16_000)
    value, low, high, naive = map(float, re.fullmatch(
        r"end (\.\d\d) \[(\.\d\d), (1?\.\d\d)\] · naive (\.\d\d)", line).groups())
    assert value == pytest.approx(fit_curve(C, R, bootstrap=0).curve(16_000), abs=0.006)
    assert 0 <= low < value < high <= 1 and naive == pytest.approx(R[-3:].mean(), abs=0.006)


def test_there_is_no_line_before_the_sixth_evaluation_nor_without_a_later_end():
    """Five points and three parameters foretell nothing; and a run that has ended needs none."""
    C, R = made(n=7)
    assert forecast_line(C[:5], R[:5], 16_000) == "" != forecast_line(C[:6], R[:6], 16_000)
    for end in (C[-1], np.nan, np.inf, 0):
        assert forecast_line(C, R, end) == ""
    assert forecast_line([], [], 1) == "" == forecast_line([1, 1, 1, 1, 1, 1], [1] * 6, 2)
