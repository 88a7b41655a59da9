"""Exercise 12 by values: exact fractions, and a paired bootstrap beside one of our own."""
from fractions import Fraction
from math import comb

import numpy as np

from course.hidden.values import close, holds, numbers, parts

PARTS, part = parts()


def exact(right, samples, k):
    return [float(1 - Fraction(comb(samples - int(c), k), comb(samples, k))) for c in right]


@part("pass_at_k", 3, 12)
def estimator(rng, ask):
    for samples, k in [(4, 4), (7, 3), (16, 1), (256, 256), (1024, 256), (300, 299)]:
        for P in rng.integers(5, 60, 2):
            right = rng.integers(samples + 1, size=int(P))
            right[:4] = 0, samples, 1, min(2, samples)
            yield close(f"pass@{k} of {samples}", ask(
                "pass_at_k", right=right, samples=samples, k=k), exact(right, samples, k), 1e-9,
                1e-12)


@part("gain, with its interval", 3, 12)
def gain(rng, ask):
    """Most of the spread over problems is common to before and after: unpaired, the interval would
    be several times as wide. Its ends are random by 2% of its width."""
    for k in (1, 8, 64):
        samples, P = 256, int(rng.integers(150, 250))
        rate = rng.beta(0.4, 0.6, P)
        before = rng.binomial(samples, rate)
        after = rng.binomial(samples, np.clip(rate + rng.normal(0.03, 0.02, P), 0, 1))
        d = np.subtract(exact(after, samples, k), exact(before, samples, k))
        draws = d[np.random.default_rng(rng.integers(1 << 30)).integers(P, size=(6000, P))].mean(1)
        low, high = np.quantile(draws, [0.05, 0.95])
        found = numbers(ask("gain", before=before, after=after, samples=samples, k=k,
                            resamples=6000, seed=int(rng.integers(1 << 30))))
        yield holds("three numbers: mean, low, high", found.shape == (3,))
        yield close(f"the gain in pass@{k}", found[0], d.mean(), 1e-9, 1e-12)
        for name, mine, end in zip(("low", "high"), found[1:], (low, high)):
            yield holds(f"the interval's {name} end is {mine:.4f}, and must be {end:.4f} within "
                        "its noise", abs(mine - end) < 0.12 * (high - low))
