"""Exercise 12: pass@k up to 256, and what a gain is worth beside a random-reward control. Both
functions are for the student."""
import numpy as np


def pass_at_k(right, samples, k):
    """For each problem the chance that k of its samples, drawn without replacement, hold a right
    one (Chen et al. 2021, arXiv 2107.03374) -> (P,) float64.

    right    how many of a problem's samples are right, (P,) int
    samples  samples of each problem, at least k; with 1,024 of them factorials overflow
    """
    wrong = samples - np.asarray(right)[:, None] - np.arange(k)             # (P, k)
    return 1 - np.prod(np.maximum(wrong, 0) / (samples - np.arange(k)), 1)


def gain(before, after, samples, k, resamples, seed):
    """(mean, low, high): by how much pass@k of a set of problems has risen, after minus before,
    with a 90% interval from `resamples` draws of problems, with replacement. A problem keeps its
    two numbers together. Random numbers: np.random.default_rng(seed), in any order.

    before, after   right samples of the same problems, (P,) int
    """
    d = pass_at_k(after, samples, k) - pass_at_k(before, samples, k)
    drawn = np.random.default_rng(seed).integers(len(d), size=(resamples, len(d)))
    low, high = np.quantile(d[drawn].mean(1), [0.05, 0.95])
    return d.mean(), low, high
