"""problems.py: a forecast from the right samples of each problem (`--by-problem`). Ours.

An item response model. x = compute / the last compute; a share p of problem i's samples is right:

    logit p = u_i + v_i x^b       u_i normal, log v_i normal, correlated;  p = 0 for a share of them

All are fitted together by their marginal likelihood, u and v over 15 x 15 Gauss-Hermite nodes.
There is no ceiling: it promises too much to a run that levels off."""
import re
from contextlib import suppress
from pathlib import Path

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logsumexp

from fit import LAST, RIVAL, BadInput, interval
from fitting.readers import read_jsonl

_z, _w = np.polynomial.hermite_e.hermegauss(15)
NODES = np.stack(np.meshgrid(_z, _z)).reshape(2, -1)                                   # (2, 225)
LOG_WEIGHTS = np.log(np.outer(_w, _w) / _w.sum() ** 2).ravel()
# Means and sds of the weak priors of: mean u, log sd u, mean log v, log sd log v, the correlation
# (as its artanh), log b, logit of the share never solved.
PRIOR = np.array([[0, 2], [0.5, 0.7], [1, 1], [-0.5, 0.7], [0, 0.5], [0, 0.3], [-3, 1.5]])
LAW_ERROR = 0.3             # this law's own error, as a share of a promised rise


def read_counts(folder, x="compute/flops", y=""):
    """The right samples of each problem in RUN/evals.jsonl -> C (n,) of x, (n, problems), k. Of
    several tasks those of the column y."""
    path = Path(folder, "evals.jsonl") if Path(folder).is_dir() else Path(folder)
    rows = [] if path.suffix.lower() in (".csv", ".tsv") else read_jsonl(path)[0]
    columns = sorted({name for row in rows for name in row if re.search(r"/right@\d+$", name)})
    columns = [c for c in columns if c.rpartition("/")[0] == y.rpartition("/")[0]] or columns
    if len(columns) != 1:
        raise BadInput(f"{path} has {len(columns)} columns eval/<task>/right@k, not just one")
    rows, k = [row for row in rows if columns[0] in row], int(columns[0].rpartition("@")[2])
    with suppress(KeyError, TypeError, ValueError):
        rows.sort(key=lambda row: row[x])
        C, right = (np.array([row[name] for row in rows]) for name in (x, columns[0]))
        if right.ndim == 2 and ((0 <= right) & (right <= k)).all():
            return C, right, k
    raise BadInput(f"{path}: --by-problem takes {x} in each evaluation, and in {columns[0]} for "
                   f"each problem a count from 0 to {k}")


def log_odds(theta, x):
    """logit p of each node (225,) at x (n,) -> (n, 225)."""
    theta = np.clip(theta, *(PRIOR[:, 0] + [[-5], [5]] * PRIOR[:, 1]))      # else exp may overflow
    log_v = np.tanh(theta[4]) * NODES[0] + NODES[1] / np.cosh(theta[4])
    v = np.exp(theta[2] + np.exp(theta[3]) * log_v)
    return theta[0] + np.exp(theta[1]) * NODES[0] + v * x[:, None] ** np.exp(theta[5])


def posterior(theta, x, right, k):
    """log p of each problem's counts right (n, N) -> (N,); the share of every node for it (N, 225):
    what is missing to 1 is the chance that it is never solved."""
    odds = log_odds(theta, x)
    each = (right.T @ log_expit(odds) + (k - right.T) @ log_expit(-odds) + LOG_WEIGHTS
            + log_expit(-theta[6]))                                                    # (N, 225)
    never = np.where(right.any(0), -np.inf, log_expit(theta[6]))                       # (N,)
    total = np.logaddexp(logsumexp(each, 1), never)
    return total, np.exp(each - total[:, None])


def by_problem(C, right, k, C_at, draws=100, seed=0):
    """The forecast for the mean of evaluations at C_at (m,) from counts right (n, N) of k samples
    at compute C (n,) -> (value, low, high), the share not solved so far. The interval: parameters
    of the normal distribution at the best ones, LAW_ERROR, the samples' noise. BadInput: n < 3."""
    if np.unique(C).size < 3:
        raise BadInput(f"{np.unique(C).size} evaluations: --by-problem takes three")
    x, ahead = C / C[-1], np.concatenate([[C[-1]], C_at]) / C[-1]
    def loss(theta):
        return -posterior(theta, x, right, k)[0].sum() + (
            ((theta - PRIOR[:, 0]) / PRIOR[:, 1]) ** 2).sum() / 2
    def forecast(theta):                        # now, and at C_at
        p = (expit(log_odds(theta, ahead)) @ posterior(theta, x, right, k)[1].T).mean(1)
        return p[0], p[1:].mean()
    found, rng = minimize(loss, PRIOR[:, 0], method="BFGS"), np.random.default_rng(seed)
    many = rng.multivariate_normal(found.x, (found.hess_inv + found.hess_inv.T) / 2, draws)
    now, then = np.array([forecast(theta) for theta in many]).T
    value = min(forecast(found.x)[1], 1.0)
    noise = np.sqrt(value * (1 - value) / (right.shape[1] * k * min(C_at.size, LAST)))
    then = then + (then - now) * rng.normal(0, LAW_ERROR, draws) + noise * rng.normal(size=draws)
    return (value, *interval(np.clip(then, 0, 1))), float((~right.any(0)).mean())


def by_problem_lines(curve, scale, cut, fit):
    """The forecast of a run's end from the part up to `cut` of a Curve's compute (None: of twice
    its compute from all), and the problems never solved, in words."""
    C, right, k = read_counts(curve.path, curve.x.split(" times ")[0], curve.y)
    seen = C * scale <= (np.inf if cut is None else cut)
    C_at = np.full(LAST, 2 * C[-1]) if cut is None else C[~seen][-LAST:]
    if not right[seen].any():
        return f"by problem: no forecast, none of {right.shape[1]} problems was solved so far"
    if fit.rivals["constant"]["delta_aic"] < RIVAL:
        return "by problem: no forecast, a constant fits as well: there is no rise"
    (value, low, high), unsolved = by_problem(C[seen], right[seen], k, C_at)
    told = (f"by problem: {value:.3f} [{low:.3f}, {high:.3f}]; {unsolved:.1%} of {right.shape[1]} "
            "problems were not solved so far")
    if cut is not None:
        later, never = right[~seen][-LAST:] / k, ~right[seen].any(0)
        told += f"; measured {later.mean():.3f}, error {value - later.mean():+.3f}"
        if never.any():
            told += f"; at the end {later[:, never].mean():.1%} of their samples were right"
    return told
