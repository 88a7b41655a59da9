"""Public checks of exercise 12, pass@k (course/12_pass_at_k.md). Run: make check EX=12"""
import itertools

import numpy as np
import pytest

from course.pass_at_k import gain, pass_at_k


@pytest.mark.parametrize("samples, k", [(5, 1), (6, 2), (7, 4), (4, 4)])
def test_it_is_the_share_of_all_choices_of_k_that_hold_a_right_sample(samples, k):
    """The oracle tries all of them."""
    right = np.arange(samples + 1)
    truth = [np.mean([min(choice) < c for choice in itertools.combinations(range(samples), k)])
             for c in right]
    assert pass_at_k(right, samples, k) == pytest.approx(np.array(truth), abs=1e-12)


def test_k_of_256_of_1024_samples_is_a_number():
    found = pass_at_k(np.array([0, 1, 3, 1024]), 1024, 256)
    assert found == pytest.approx([0, 0.25, 1 - 768 * 767 * 766 / (1024 * 1023 * 1022), 1])


def test_the_mean_over_draws_is_the_chance_of_fresh_samples():
    """1 - (1 - c/n)^k is too low: over many draws of n samples its mean is not the truth."""
    rng, p, n, k = np.random.default_rng(), 0.1, 16, 8
    right = rng.binomial(n, p, 40_000)
    assert pass_at_k(right, n, k).mean() == pytest.approx(1 - (1 - p) ** k, abs=0.012)


def test_the_gain_is_paired():
    """Problems differ by far more than training moves them."""
    rng = np.random.default_rng(4)
    before = rng.integers(0, 200, 90)
    after = before + rng.integers(8, 13, 90)
    mean, low, high = gain(before, after, 256, 1, 2000, 0)
    assert mean == pytest.approx(np.mean(after - before) / 256)
    assert low < mean < high and high - low < 0.003


def test_of_no_change_the_gain_is_nothing():
    same = np.array([0, 3, 250, 256])
    assert gain(same, same, 256, 16, 100, 1) == pytest.approx((0, 0, 0))
