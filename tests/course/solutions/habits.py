"""A third way for the electives: pandas' habits, averages of forecasts, Beta functions."""
# file: course/late_push.py
import numpy as np


def which_pushed_late(logs):
    """The correlation of what lies at lag 0 with what the step before moved."""
    import pandas as pd
    apart = "mismatch/mean_abs_dlogp/lag_"
    frames = [pd.DataFrame(log) for log in logs]
    shares = [(f[apart + "0"] / f[apart + "1"]).replace([np.inf, -np.inf], np.nan).median()
              if {apart + "0", apart + "1"} <= {*f.columns} else 0.0 for f in frames]
    return int(pd.Series(shares).idxmax())
# file: course/bets.py
def forecast(C, R, later):
    """The mean of all sigmoids, each with the weight of its likelihood."""
    rng = np.random.default_rng(0)
    A = 1 / (1 + np.exp(-rng.normal(np.log(0.85 / 0.15), 1, 200_000)))
    B = np.exp(rng.normal(np.log(1.6), 0.5, A.size))
    mid = rng.uniform(-2.5, 4, A.size)
    fit = np.zeros(A.size)
    for x, r in zip(np.log(C[1:] / C[-1]), R[1:]):
        fit -= ((R[0] + (A - R[0]) / (1 + np.exp(-B * (x - mid))) - r) / 0.02) ** 2 / 2
    weight = np.exp(fit - fit.max())
    ends = [R[0] + (A - R[0]) / (1 + np.exp(-B * (x - mid))) for x in np.log(later / C[-1])]
    return float(np.mean([np.average(end, weights=weight) for end in ends]))
# file: course/pass_at_k.py
from scipy.special import betaln


def pass_at_k(right, samples, k):
    """C(w, k) / C(n, k), by logarithms of the Beta function."""
    wrong = samples - np.asarray(right, float)
    enough = wrong >= k
    w = np.where(enough, wrong, k)

    def log_comb(n):
        return -betaln(n - k + 1, k + 1) - np.log(n + 1)
    return np.where(enough, -np.expm1(log_comb(w) - log_comb(samples)), 1.0)


def gain(before, after, samples, k, resamples, seed):
    table = np.stack([pass_at_k(x, samples, k) for x in (before, after)], 1)
    rng, means = np.random.default_rng(seed), []
    while len(means) < resamples:
        rows = table[rng.integers(len(table), size=len(table))].mean(0)
        means.append(rows[1] - rows[0])
    before, after = table.mean(0)
    return np.array([after - before, *np.percentile(means, [5, 95])])
