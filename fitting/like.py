"""like.py: a forecast that knows earlier runs of the same task and recipe (`--like`). Ours.

Before the bend, evaluations determine little more than a slope. Earlier runs tell the rest: a prior
of (A - R0) / (1 - R0), the share of the gain, and one of log B. Each is one more residual."""
from dataclasses import replace

import numpy as np
from scipy.optimize import least_squares

from fit import POOLED, RIVAL, THETA, BadInput, Replicates, fit_curve, law_at

SPREAD, WORTH = np.array([0.1, 0.25]), 3    # of both numbers from run to run: a guess, worth 3 runs
NOISE, NOISE_WORTH = 0.02, 6                # of an evaluation: a guess, worth 6 residuals


def learn(runs):
    """Whole earlier runs [Fit, ...] -> {law: (mean (2,), sd (2,))} of the next run's numbers."""
    prior = {}
    if flat := [i for i, run in enumerate(runs, 1) if run.rivals["constant"]["delta_aic"] < RIVAL]:
        raise BadInput(f"--like: earlier run {flat[0]} shows no rise, nor its B: leave it out")
    for law in POOLED:
        fits = [fit_curve(run.C, run.R, run.R0, law=law, bootstrap=0) for run in runs]
        x = np.array([((f.A - f.R0) / max(1 - f.R0, 1e-3), np.log(f.B)) for f in fits])   # (n, 2)
        variance = (WORTH * SPREAD ** 2 + ((x - x.mean(0)) ** 2).sum(0)) / (WORTH + len(x) - 1)
        prior[law] = x.mean(0), np.sqrt(variance * (1 + 1 / len(x)))
    return prior


def fit_like(early, prior, draws=400, seed=0):
    """`early`, a Fit of the first part, fitted again with the prior of `learn` -> Fit. Its pool is
    drawn from the normal distribution that the Jacobian gives, for each law."""
    C, R, R0, rng = early.C, early.R, early.R0, np.random.default_rng(seed)
    pool, best = [], {}
    for law in POOLED:
        mean, sd = prior[law]
        def parameters(x):
            return R0 + x[..., 0] * (1 - R0), np.exp(x[..., 1]), C[-1] * np.exp(x[..., 2]), R0
        def residuals(x):
            return np.append((R - law_at(law, C, *parameters(x))) / noise, (x[:2] - mean) / sd)
        noise = NOISE
        for _ in range(2):                      # the noise: from the residuals and the guess
            found = min((least_squares(residuals, [np.clip(mean[0], 0.01, 0.99), mean[1], log_C],
                                       bounds=([0, -3, -7], [1, 3, 4]))
                         for log_C in (-1.5, 0, 1.5)), key=lambda each: each.cost)
            squares = ((R - law_at(law, C, *parameters(found.x))) ** 2).sum()
            noise = np.sqrt((squares + NOISE_WORTH * NOISE ** 2) / (R.size + NOISE_WORTH))
        x = rng.multivariate_normal(found.x, np.linalg.pinv(found.jac.T @ found.jac), draws)
        x = x.clip([0, -50, -50], [1, 50, 50])          # exp() of more is no number
        theta = np.stack(np.broadcast_arrays(*parameters(x)), -1)                     # (S, 4)
        pool.append(Replicates(law, theta, noise * rng.standard_normal(200)))
        best[law] = dict(zip(THETA, map(float, parameters(found.x)[:3])))
    rivals = early.rivals | {"constant": early.rivals["constant"] | {"delta_aic": np.inf}}
    return replace(early, law="sigmoid", **best["sigmoid"], pool=tuple(pool), rivals=rivals)


def disagree(early, like):
    """A sentence if earlier runs make the fit worse by more than chance (noise >= .01), or ""."""
    ours, theirs = (((each.R - each.curve(each.C)) ** 2).mean() + 1e-4 for each in (early, like))
    worse = early.n * np.log(theirs / ours)
    return f"your earlier runs disagree with this one (AIC {worse:+.1f})" if worse > RIVAL else ""
