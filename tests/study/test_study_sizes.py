"""Four sizes: what three curves say of the fourth's."""

import numpy as np
import pytest

from fit import sigmoid
from study import figures, sizes

N = np.array([*sizes.MILLIONS.values()])


def planted(rng, A_slope, power, B=2.0):
    """Curves without noise whose A is a line in log N, and whose C_mid is a power of N."""
    R0, C_mid = rng.uniform(0.1, 0.3), 1e12 * rng.uniform(1, 3) * N ** power
    curves = []
    for n, middle in zip(N, C_mid):
        C = np.linspace(0, 4 * middle, 15)
        curves.append((C, sigmoid(C, 0.85 + A_slope * np.log(n), B, middle, R0)))
    return curves


def test_a_line_in_log_parameters_foretells_curves_that_lie_on_it_exactly(seed):
    rng = np.random.default_rng(seed)
    found = sizes.errors(planted(rng, 0.02, rng.uniform(0.5, 1.5)), N)
    assert all(abs(error) < 2e-3 for error in found["line"].values()), found["line"]


def test_the_rivals_carry_over_what_their_names_say(seed):
    """With C_mid as parameters "same samples" is right; "same" is off by their ratio; both miss the
    rise of A by its slope."""
    found = sizes.errors(planted(np.random.default_rng(seed), 0.02, 1.0), N)
    ratio = np.log(N[-1] / N[-2])
    assert found["same samples"]["log C_mid"] == pytest.approx(0, abs=2e-3)
    assert found["same"]["log C_mid"] == pytest.approx(-ratio, abs=2e-3)
    for way in "same", "same samples":
        assert found[way]["A"] == pytest.approx(-0.02 * ratio, abs=2e-3)
    assert found["same"]["end"] > found["same samples"]["end"]      # its middle comes too early


def test_the_table_has_mean_absolute_errors_and_the_paired_difference(seed):
    rng = np.random.default_rng(seed)
    toys = [planted(rng, slope, 1.0) for slope in (0.01, 0.02, 0.03)]
    row = sizes.table(toys, figures.paired, figures.told).split("\n")[2]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    name, line, same, samples, against, twin, other = cells
    missed = 0.02 * np.log(N[-1] / N[-2])
    assert name == "A" and float(line) < 2e-3 and float(same) == pytest.approx(missed, abs=2e-3)
    assert samples == same and float(against.split()[0]) == pytest.approx(-missed, abs=3e-3)
    assert float(twin.split()[0]) == 0 and float(other.split()[0]) == pytest.approx(
        missed, abs=3e-3)
