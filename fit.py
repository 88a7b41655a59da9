"""fit.py: the curve of an RL run, and what more compute would buy.

    python fit.py runs/demo                       # law, intervals, warnings, picture
    python fit.py runs/demo --until 0.5           # fit the first half, predict the second
    python fit.py runs/a runs/b runs/c            # which recipe has the higher ceiling

The law is Eq. 1 of ScaleRL (arXiv 2510.13786), the procedure its appendix A.5:

    R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B)

    A      the ceiling: no amount of compute brings a higher pass rate
    B      the steepness: how fast the ceiling is approached (the paper's "compute efficiency")
    C_mid  the compute at which half of the gain A - R0 has been bought
    R0     the pass rate before training

This file can be copied and used alone: `from fit import fit_curve` needs numpy and scipy.  Only
the command needs the folder artifacts/ beside it, and matplotlib for its pictures.

Where this differs from the paper, or the paper is silent ("ours"):
  1. R0 is the measured step-0 evaluation, held fixed in the fit.  The paper does not say how R0
     enters, and nothing moves the answer more: an exact curve with A .61, B 1.92, R0 .35, fitted
     from 1.5k to 8k GPU-hours, gives A .659, B .95 with R0 = 0, and A .596, B 2.61 with R0 = .4.
  2. The default method, `free`, is least squares with A, B and C_mid anywhere in their ranges.
     `grid` is the paper's: a grid of A and C_mid, and for each pair of them the best B.
  3. The printed C_mid nodes, linspace(100, 40000, 100), cannot have made the paper's own tables:
     the published 2542, 2818, 2936, 3054 are nodes of linspace(100, 4000, 100).  So the nodes are
     a setting, by default from the data; --paper-grid is the printed text.
  4. The 90% intervals are ours: a residual bootstrap of the `free` fit, the residuals made wider by
     Student's t and by their own correlation.  The interval of a prediction pools the replicates
     of two laws: sigmoid and stretched.  The paper gives +-0.015 on A, from three seeds.
  5. Every evaluation after step 0 is fitted.  The paper leaves out the first 1.5k GPU-hours (about
     an epoch).  No log says how much compute an epoch is, so here you give it: --c-min.
  6. --law takes three other laws: the power law is the paper's own (A.4), the stretched exponential
     is ours, the logistic law in linear compute comes from a popular article about the paper.

Read on: artifacts/readers.py turns logs into (C, R), artifacts/fit_report.py puts into words,
artifacts/figures.py draws, and bench/fit.py measures how often the intervals hold the truth.

Axes: n evaluations, S bootstrap replicates, m nodes of a grid.
"""
import argparse
import inspect
import operator
import sys
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import leastsq
from scipy.special import expit, logit, ndtri, stdtrit

# ----------------------------------------------------------------------- 0. constants, all ours
LEVEL = 0.90              # of every interval
SAME_A = 0.02             # the paper's rule: ceilings closer than this are the same, because three
                          # seeds of one recipe moved A by up to 0.015
FEW = 6                   # fewer evaluations than this do not determine three parameters
LAST = 5                  # "the last evaluation" is the mean of the last 5: one alone is too noisy
RIVAL = 4                 # a rival law whose AIC is lower by this much raises a warning; one whose
                          # AIC is not higher by this much fits as well
POOLED = ("sigmoid", "stretched")         # the two laws behind the interval of a prediction
TREND = 0.02              # a warning if a smaller share of replicates has residuals so correlated
RHO_MAX = 0.8             # the highest correlation of neighbors for which intervals are widened
WIDE_A = 0.1              # a ceiling with a wider interval is not compared with another
WIDE_RATIO = 4            # an interval of B or C_mid with ends farther apart is worth a warning
A_STEP = 0.005            # the paper's A nodes
B_RANGE = (0.1, 20.0)     # published B's lie in 1.09-4.55
C_MID_REACH = (0.01, 10)  # C_mid from 1/100 of the first to 10 times the last compute in the data
PAPER_GRID = dict(method="grid", A_range=(0.45, 0.80), A_step=0.005,      # A.5, to the letter
                  C_mid_nodes=np.linspace(100, 40_000, 100))


class BadInput(ValueError):
    """Input that cannot be used.  The text is one sentence for the person who gave it."""


# -------------------------------------------------------------------------------------- 1. laws
# Every law is R = R0 + (A - R0) g(c): g is the fraction of the gain that has been bought at
# c = C / C_mid.  C_mid is where half of the gain has been bought, except in the power law, which
# has no start: there the reward is R0 at C_mid and falls without end below it.
LAWS = {                    # g(c), and its inverse c(g)
    "sigmoid": (lambda c, B: expit(B * np.log(c)),              # Eq. 1: 1 / (1 + c^-B)
                lambda g, B: np.exp(logit(g) / B)),
    "stretched": (lambda c, B: -np.expm1(-np.log(2) * c ** B),  # ours: 1 - 2^-(c^B)
                  lambda g, B: (-np.log1p(-g) / np.log(2)) ** (1 / B)),
    "power": (lambda c, B: 1 - c ** -B,                         # A.4: A - D / C^B, with
              lambda g, B: (1 - g) ** (-1 / B)),                # D = (A - R0) C_mid^B
    "logistic": (lambda c, B: expit(B * (c - 1)),               # not the paper's; k = B / C_mid
                 lambda g, B: 1 + logit(g) / B),
}


def law_at(law, C, A, B, C_mid, R0):
    """The pass rate after compute C; the arguments broadcast."""
    with np.errstate(over="ignore"):                            # c^B or c^-B may be inf
        g = LAWS[law][0](np.maximum(C / C_mid, 1e-300), B)      # C = 0 has no logarithm
    return R0 + (A - R0) * g


def sigmoid(C, A, B, C_mid, R0):
    """Eq. 1: the pass rate after compute C >= 0 (any shape).

    >>> print(sigmoid([0, 1000, 1e9], A=0.6, B=2.0, C_mid=1000, R0=0.4).round(3))
    [0.4 0.5 0.6]
    """
    return law_at("sigmoid", np.asarray(C, float), A, B, C_mid, R0)


def compute_needed(law, R, A, B, C_mid, R0):
    """The C at which the law reaches R: 0 if R is not above R0, inf if R is not below A."""
    with np.errstate(all="ignore"):           # outside R0 < R < A there is no inverse: see below
        C = C_mid * LAWS[law][1]((R - R0) / np.where(A > R0, A - R0, np.nan), B)
    return np.where(R <= R0, 0.0, np.where(R >= A, np.inf, np.maximum(C, 0)))


# ------------------------------------------------------------------------------ 2. least squares
# Given B, C_mid and R0 the law is linear in A, so the best A is a formula (a regression of the
# gains R - R0 on g) and scipy only has to search for the others.  This is called variable
# projection.  It makes the search more robust, and A can stand exactly on the edge of its range.
#
# The search must be fast: a fit with its intervals searches about 2,000 times.  MINPACK's
# Levenberg-Marquardt (`leastsq`) needs less than half of the time of `least_squares(bounds=...)`:
# 0.3 s instead of 0.7 s for 1,000 searches with 80 evaluations (bench/fit.py speed).
# `leastsq` knows no bounds, so it searches an angle x for each parameter: low + (high - low)
# (sin x + 1) / 2 never leaves the range.  For B and C_mid, low and high are logarithms.
@dataclass(frozen=True)
class Search:
    """Where least squares looks: one law, one set of evaluations, one box."""
    law: str
    C: np.ndarray             # (n,) compute
    A_range: tuple            # (low, high); equal numbers fix A
    box: np.ndarray           # (2 or 3, 2): low and high of log C_mid, log B and, if fitted, R0

    @property
    def parameters(self):
        """The number of free parameters."""
        return sum(bool(low < high) for low, high in (self.A_range, *self.box))

    def at(self, x, R, R0):
        """Angles x (2 or 3, ...), rewards R (n,) -> (A, B, C_mid, R0), each (...), and the residual
        (..., n).  If R0 is fitted, it is in x, and the argument R0 is ignored."""
        low, high = self.box.T
        C_mid, B, *fitted = (low + (high - low) * (np.sin(x.T) + 1) / 2).T           # (...) each
        C_mid, B, R0 = np.exp(C_mid), np.exp(B), np.asarray(fitted[0] if fitted else R0)
        g = law_at(self.law, self.C, 1.0, B[..., None], C_mid[..., None], 0.0)       # (..., n)
        gain = R - R0[..., None]
        slope = (gain * g).sum(-1) / np.maximum((g * g).sum(-1), 1e-30)              # (...)
        low, high = self.A_range                     # a ceiling below R0 is no ceiling, so A >= R0
        A = np.minimum(np.maximum(R0 + np.maximum(slope, 0), low), high)
        return (A, B, C_mid, R0), gain - (A - R0)[..., None] * g

    def starts(self, R, R0):
        """A coarse table of the whole box -> the angles (4, 2 or 3) of its best nodes.

        The sum of squares has several valleys: curve_fit from its default start ends with a median
        error in A of 0.125, where 0.0035 is possible.  The four nodes are the best ones at four
        different C_mid.  In 300 artificial runs of all kinds, four starts always find the best
        known valley, two starts in 299, and 40 starts spread evenly, without the table, in 296.
        """
        axes = [np.arcsin(np.linspace(-0.98, 0.98, k)) for k in (48, 24, 5)[:len(self.box)]]
        x = np.stack(np.meshgrid(*axes, indexing="ij")).reshape(len(axes), -1)
        sse = (self.at(x, R, R0)[1] ** 2).sum(-1).reshape(48, -1)        # a row for each C_mid
        rows = np.argsort(sse.min(1))[:4]
        return x.reshape(len(axes), 48, -1)[:, rows, sse[rows].argmin(1)].T

    def solve(self, R, R0, starts):
        """The best fit found from the starts (k, 2 or 3) -> A, B, C_mid, R0 and the angles."""
        ends = [leastsq(lambda x: self.at(x, R, R0)[1], start, full_output=True)[0]
                for start in starts]
        best = min(ends, key=lambda x: (self.at(x, R, R0)[1] ** 2).sum())
        return np.array(self.at(best, R, R0)[0]), best


def grid_search(search, R, R0, A_nodes, C_mid_nodes):
    """A.5: the pair of A and C_mid with the least sum of squares.  Golden section search finds the
    best B of each pair, for all C_mid nodes (m,) at once -> A, B, C_mid, R0."""
    def sse(A, log_B):
        curve = law_at(search.law, search.C, A, np.exp(log_B)[:, None], C_mid_nodes[:, None], R0)
        return ((R - curve) ** 2).sum(1)                                             # (m,)

    golden, best = (5 ** 0.5 - 1) / 2, (np.inf,)
    for A in A_nodes:
        low, high = (np.full(len(C_mid_nodes), end) for end in search.box[1])        # log B
        left, right = high - golden * (high - low), low + golden * (high - low)
        at_left, at_right = sse(A, left), sse(A, right)
        for _ in range(38):                                      # brackets shrink to 1e-8
            go = at_left < at_right                              # the minimum is left of `right`
            low, high = np.where(go, low, left), np.where(go, right, high)
            new = np.where(go, high - golden * (high - low), low + golden * (high - low))
            at_new = sse(A, new)
            left, right = np.where(go, new, right), np.where(go, left, new)
            at_left, at_right = np.where(go, at_new, at_right), np.where(go, at_left, at_new)
        i = at_left.argmin()
        best = min(best, (at_left[i], A, np.exp(left[i]), C_mid_nodes[i], R0))
    return np.array(best[1:])


def rival_fit(search, R, R0):
    """The same evaluations by another law: the stretched one, and for a stretched fit the sigmoid
    -> (its Search, its theta = (A, B, C_mid, R0), its angles)."""
    rival = replace(search, law="sigmoid" if search.law == "stretched" else "stretched")
    return rival, *rival.solve(R, R0, rival.starts(R, R0))


def compare_laws(search, theta, rival, its_theta, R):
    """{rival: {"A": ceiling, "delta_aic": number}} of the rival law, and of a constant.

    Akaike's criterion is n log(mean squared error) + 2 parameters: the lower, the better.
    delta_aic is the rival's minus ours.  If the stretched law wins, the bend is sharper, and the
    ceiling may be lower than ours.  If the constant wins, the data do not show a rise.
    """
    def aic(curve, parameters):               # an exact curve has residuals of 0: floored at 1e-6
        return R.size * np.log(((R - curve) ** 2).mean() + 1e-12) + 2 * parameters

    ours = aic(law_at(search.law, search.C, *theta), search.parameters)
    found = {rival.law: (its_theta[0], law_at(rival.law, rival.C, *its_theta), rival.parameters),
             "constant": (R.mean(), R.mean(), 1)}
    return {name: dict(A=float(A), delta_aic=float(aic(curve, parameters) - ours))
            for name, (A, curve, parameters) in found.items()}


# ----------------------------------------------------------------------------------- 3. the fit
def interval(values):
    """The 90% interval over the first axis (S, ...) -> (2, ...); nan if there are no replicates.
    Order statistics, not interpolation: `inf` (a reward never reached) may be among the values."""
    if not len(values):
        return np.full((2, *values.shape[1:]), np.nan)
    return np.percentile(values, [50 * (1 - LEVEL), 50 * (1 + LEVEL)], axis=0, method="nearest")


@dataclass(frozen=True)
class Replicates:
    """The bootstrap of one law: S curves, each fitted to other noise."""
    law: str
    draws: np.ndarray         # (S, 4) A, B, C_mid, R0
    noise: np.ndarray         # (n,) the widened residuals that were drawn from
    neighbors: np.ndarray     # (S,) correlation of neighboring residuals, after each fit

    def paths(self, C, noise=False):
        """Each curve at C (k,) -> (S, k); `noise` adds the noise of one evaluation."""
        paths = law_at(self.law, np.asarray(C, float), *self.draws.T[:, :, None])
        if noise:
            paths = paths + np.random.default_rng(0).choice(self.noise, paths.shape)
        return paths


@dataclass(frozen=True)
class Fit:
    """One fitted curve with its uncertainty and the reasons to doubt it."""
    A: float
    B: float
    C_mid: float
    R0: float
    R0_from: str              # "step 0" | "given" | "fitted" | "unused" (power law, not measured)
    law: str
    method: str
    n: int
    rmse: float               # of the fitted evaluations: sqrt(mean(residual^2))
    C: np.ndarray             # (n,) the compute that was fitted, ascending
    R: np.ndarray             # (n,)
    pool: tuple = field(repr=False)              # Replicates of this law, and of its rival
    ci: dict                  # {"A": (low, high), ...}: 90% intervals, from this law's replicates
    rivals: dict              # {law: {"A": its ceiling, "delta_aic": below 0 if it fits better}}
    warnings: tuple = ()      # sentences

    def curve(self, C):
        """The fitted law at C (any shape)."""
        return law_at(self.law, np.asarray(C, float), self.A, self.B, self.C_mid, self.R0)

    @property
    def draws(self):
        """A, B, C_mid, R0 (S, 4) of this law's replicates."""
        return self.pool[0].draws

    def paths(self, C, noise=False):
        """The curves of all laws in the pool at C (k,), one below the other -> (2 S, k)."""
        return np.concatenate([each.paths(C, noise) for each in self.pool])

    def predict(self, C):
        """(mean, low, high) at C, each of C's shape.  The mean is this law's, the interval that of
        the pool.  It is the curve's: single evaluations scatter more.  Without a bootstrap, low
        and high are nan."""
        low, high = interval(self.paths(np.ravel(C)))
        return self.curve(C), low.reshape(np.shape(C)), high.reshape(np.shape(C))

    def compute_for(self, R):
        """The compute at which the curve reaches R; inf if the ceiling is not above R."""
        return float(compute_needed(self.law, R, self.A, self.B, self.C_mid, self.R0))

    def compute_draws(self, R):
        """The same for each curve of the pool -> (2 S,)."""
        return np.concatenate([compute_needed(each.law, R, *each.draws.T) for each in self.pool])

    def record(self):
        """The numbers, intervals and warnings, without data and replicates."""
        return {name: v for name, v in vars(self).items() if name not in ("C", "R", "pool")}


def fit_curve(C, R, R0=None, *, method="free", law="sigmoid", c_min=None, c_max=None,
              bootstrap=1000, seed=0, A_range=None, B_range=B_RANGE, C_mid_range=None,
              A_step=A_STEP, C_mid_nodes=None) -> Fit:
    """Fit pass rates R (n,) against compute C (n,).

    R0          the pass rate before training: a number, which stays fixed; "fit"; or None: the mean
                of the evaluations at C = 0, fixed, and if there are none, "fit" (not for "grid")
    method      "free": anywhere in the ranges; "grid": the paper's A.5
    law         "sigmoid" (Eq. 1), "stretched" (ours), "power" (A.4), "logistic" (not the paper's)
    c_min       evaluations with less compute are left out (the paper: 1.5k GPU-hours, an epoch),
                but R0 is still taken from C = 0
    c_max       evaluations with more compute are left out
    bootstrap   replicates for the intervals, 0: none; `seed` makes them repeatable
    A_range     (low, high), by default (R0, 1); equal numbers fix A
    B_range, C_mid_range  the same for B and C_mid
    A_step      grid method: the distance of the A nodes
    C_mid_nodes grid method: an ascending array; by default 400 nodes, evenly in log C, over
                C_mid_range if given, else from 1/10 of the first to twice the last compute

    Raises BadInput (a ValueError) with a sentence.
    """
    C, R = checked(C, R)
    if law not in list(LAWS) or method not in ("free", "grid"):
        raise BadInput(f"law is one of {', '.join(LAWS)} and method one of free, grid; "
                       f"got law {law!r}, method {method!r}")
    try:
        R0 = R0 if R0 is None or isinstance(R0, str) and R0 == "fit" else float(R0)
        first, last = float(c_min or 0), float(np.inf if c_max is None else c_max)
        bootstrap, seed = operator.index(bootstrap), operator.index(seed)
        C_mid_nodes = None if C_mid_nodes is None else np.asarray(C_mid_nodes, float)
    except (TypeError, ValueError) as error:
        raise BadInput("R0, c_min, c_max and C_mid_nodes are numbers, bootstrap and seed whole "
                       f"numbers: {error}") from None
    C, R, R0, R0_from, step_0 = points_to_fit(C, R, R0, law, first, last)
    fit_R0 = R0_from == "fitted"
    if fit_R0 and method == "grid":
        raise BadInput("the grid method holds R0: give the log a step-0 evaluation, or give R0")
    if not 0 <= R0 <= 1 or bootstrap < 0 or seed < 0:
        raise BadInput(f"R0 is a pass rate in [0, 1], bootstrap and seed are at least 0; "
                       f"got R0 {R0:g}, bootstrap {bootstrap}, seed {seed}")
    if np.unique(C[C > 0]).size < 3:
        window = (f"no {name}" if C_end is None else f"{name} {C_end:g}"
                  for name, C_end in (("--c-min", c_min), ("--until", c_max)))
        raise BadInput(f"only {np.unique(C[C > 0]).size} different amounts of compute are left to "
                       f"fit ({', '.join(window)}; step 0 only gives R0): take 3, better 20")
    ranges = checked_ranges(C[C > 0], R0, A_range, B_range, C_mid_range, A_step)
    box = [np.log(ranges["C_mid"]), np.log(ranges["B"])]
    if fit_R0:
        ranges["R0"] = 0.0, R.mean()
        box.append(ranges["R0"])
    search = Search(law, C, ranges["A"], np.array(box))
    theta, angles = search.solve(R, R0, search.starts(R, R0))
    rival = rival_fit(search, R, R0)
    settings = R, bootstrap, seed, step_0
    pool = (replicates(search, theta, angles, *settings),)
    pool += (replicates(*rival, *settings),) if law in POOLED else ()
    ci = dict(zip(("A", "B", "C_mid", "R0"), map(tuple, interval(pool[0].draws).T.tolist())))
    grid = {}
    if method == "grid":          # A.5 has no intervals: they stay those of `free`
        low = ranges["A"][0] if A_range else np.ceil(R0 / A_step) * A_step       # .450, .455, ...
        A_nodes = np.arange(low, ranges["A"][1] + 1e-9, A_step).round(12)
        if C_mid_nodes is None:
            C_mid_nodes = np.geomspace(*(C_mid_range or (C[C > 0][0] / 10, 2 * C[-1])), 400)
        if not C_mid_nodes.size or C_mid_nodes[0] <= 0 or np.any(np.diff(C_mid_nodes) <= 0):
            raise BadInput("C_mid_nodes is an ascending array above 0")
        grid = dict(A=A_nodes, C_mid=C_mid_nodes)
        ranges |= {name: nodes[[0, -1]] for name, nodes in grid.items()}
        theta = grid_search(search, R, R0, A_nodes, C_mid_nodes)
    rmse = float(np.sqrt(((R - law_at(law, C, *theta)) ** 2).mean()))
    fit = Fit(*map(float, theta), R0_from, law, method, R.size, rmse, C, R, pool, ci,
              compare_laws(search, theta, *rival[:2], R))
    return replace(fit, warnings=tuple(diagnostics(fit, ranges, search.parameters, grid)))


def points_to_fit(C, R, R0, law, first, last):
    """Of all evaluations C, R, in order of compute, those that are fitted, and R0.

    R0 (a number, "fit" or None) and law as in `fit_curve`; first is its c_min, last its c_max.
    -> C, R (n,), R0 (0.0 if fitted or unused), `Fit.R0_from`, and of how many step-0 evaluations R0
    is the mean (0: it is not measured).
    """
    step_0 = R[C == 0]
    R0_from = "given"
    if R0 == "fit" or (R0 is None and not step_0.size):
        R0, R0_from = 0.0, "unused" if law == "power" else "fitted"      # A - D / C^B has no start
    elif R0 is None:
        R0, R0_from = float(step_0.mean()), "step 0"
    # At C = 0 Eq. 1 is R0, whatever A, B and C_mid: if R0 is fixed, such points say nothing more.
    # The logistic law has begun to rise there, so it is fitted to them as well.
    use = (C >= first) & ((C > 0) | (law == "logistic")) | (C == 0) & (R0_from == "fitted")
    use &= C <= last
    return C[use], R[use], R0, R0_from, step_0.size if R0_from == "step 0" else 0


def neighbors(residual):
    """The correlation of neighboring residuals (..., n) -> (...)."""
    return (residual[..., 1:] * residual[..., :-1]).sum(-1) / \
        np.maximum((residual ** 2).sum(-1), 1e-30)


def replicates(search, theta, angles, R, bootstrap, seed, step_0):
    """The residual bootstrap of a fit -> Replicates.

    A replicate is the fitted curve plus residuals drawn with replacement; each one is fitted again.
    (A draw of evaluations would often have none of the few early ones, which determine B.)

    The residuals are made wider, for three reasons:
    The fit of p parameters follows the noise, so they are smaller by sqrt((n - p) / n).
    Few residuals tell the size of the noise only roughly, so Student's t takes the place of the
    normal distribution: without it 90% intervals held the truth in 65% of runs at n = 4.
    If neighbors correlate by rho, the mean of many is noisier by sqrt((1 + rho) / (1 - rho)), and
    so is a curve.  The fit follows the noise here too: independent noise leaves residuals with a
    correlation of about -p / n (measured: -.25 for 12 evaluations, -.10 for 24), which is added.

    A measured R0 is the mean of `step_0` evaluations, with the same noise.  So it is drawn too.
    """
    n, R0, p = R.size, theta[3], search.parameters
    curve = law_at(search.law, search.C, *theta)
    residual, freedom, tail = R - curve, n - p, (1 + LEVEL) / 2
    if freedom < 1:
        freedom, bootstrap = 1, 0             # a curve through every point: no noise to be seen
    rho = np.clip(neighbors(residual) + p / n, 0, RHO_MAX)
    widen = np.sqrt(n / freedom * (1 + rho) / (1 - rho)) * stdtrit(freedom, tail) / ndtri(tail)
    noise = (residual - residual.mean()) * widen
    rng = np.random.default_rng(seed)
    rewards = curve + rng.choice(noise, (bootstrap, n))                              # (S, n)
    R0 = np.full(bootstrap, R0)
    if step_0:
        R0 = np.clip(R0 + rng.choice(noise, (step_0, bootstrap)).mean(0), 0, 1)      # (S,)
    # Each replicate starts at the fitted curve.  At the very edge of a range sin is flat and the
    # search would stay there, so it starts a little inside.
    start = np.clip(np.arcsin(np.sin(angles)), -1.4, 1.4)
    draws = np.array([search.solve(*pair, [start])[0] for pair in zip(rewards, R0)]).reshape(-1, 4)
    fitted = law_at(search.law, search.C, *draws.T[:, :, None])                      # (S, n)
    return Replicates(search.law, draws, noise, neighbors(rewards - fitted))


def checked(C, R):
    """Float arrays in order of compute, or BadInput with a sentence."""
    try:
        C, R = np.asarray(C, float).reshape(-1), np.asarray(R, float).reshape(-1)
    except (TypeError, ValueError) as error:
        raise BadInput(f"compute and reward are lists of numbers: {error}") from None
    if C.size != R.size:
        raise BadInput(f"compute has {C.size} values and reward has {R.size}: they must pair up")
    for values, top, rule in (
            (C, np.inf, "compute {} (evaluation {}) is not a finite number >= 0"),
            (R, 1 + 1e-9, "reward {} (evaluation {}) is not a pass rate in [0, 1]; "
                          "--reward-range LO HI maps another scale onto it")):
        wrong = np.flatnonzero(~np.isfinite(values) | (values < 0) | (values > top))
        if wrong.size:
            raise BadInput(rule.format(f"{values[wrong[0]]:g}", wrong[0]))
    order = np.argsort(C, kind="stable")
    return C[order], R[order]


def checked_ranges(C, R0, A_range, B_range, C_mid_range, A_step):
    """The ranges of A, B and C_mid, or BadInput.  C_mid's default follows the compute C > 0."""
    ranges = dict(A=(R0, 1.0) if A_range is None else A_range, B=B_range,
                  C_mid=(C[0] * C_MID_REACH[0], C[-1] * C_MID_REACH[1]) if C_mid_range is None
                  else C_mid_range)
    for name, pair, least, most in (
            ("A_range", ranges["A"], 0, 1), ("B_range", B_range, 1e-12, np.inf),
            ("C_mid_range", ranges["C_mid"], 1e-300, np.inf), ("A_step", (A_step, 1), 1e-4, 1)):
        try:
            low, high = map(float, pair)
        except (TypeError, ValueError):
            raise BadInput(f"{name} is made of numbers, got {pair!r}") from None
        if not least <= low <= high <= most:
            top = "" if most == np.inf else f" <= {most}"
            raise BadInput(f"{name} {pair} is not usable: it takes {least} <= low <= high{top}")
    return ranges


# ----------------------------------------------------------------------------- 4. diagnostics
def diagnostics(fit, ranges, parameters, grid):
    """The reasons to doubt a fit: sentences, with their numbers.  The rules are ours."""
    for name, (low, high) in ranges.items():
        value = getattr(fit, name)
        near = 1e-3 * (1 if name == "R0" else abs(value))       # R0 may stand at 0
        if low < high and min(abs(value - low), abs(value - high)) <= near:
            yield (f"{name} = {value:.4g} sits on the edge of its range [{low:.4g}, {high:.4g}]: "
                   "the data do not determine it")
    end, n = fit.C[-1], fit.n
    if fit.law != "power" and end < 2 * fit.C_mid:
        yield (f"the data end at {end:.3g}, before 2 C_mid = {2 * fit.C_mid:.3g}: the bend towards "
               "the ceiling has hardly been seen")
    if n < FEW:
        yield (f"{n} evaluations for {parameters} parameters: at least {FEW}, better 20"
               + ("; they leave nothing to see the noise by, so there are no intervals"
                  if n <= parameters else ""))
    if fit.R0_from == "fitted" and fit.C[0] > 0:
        yield "R0 is fitted, not measured, and it moves every other number: evaluate at step 0"
    # Collapse: the last fifth is compared with the best stretch of the same length.  The noise is
    # measured between neighbors: median |difference| = .954 sigma.
    k = max(3, n // 5)
    if n >= 2 * k:
        means = np.convolve(fit.R, np.ones(k) / k, "valid")
        sigma = np.median(np.abs(np.diff(fit.R))) / 0.954
        if means.max() - means[-1] > max(0.02, 3 * sigma * np.sqrt(2 / k)):
            yield (f"the reward falls at the end: {means[-1]:.3f} over the last {k} evaluations, "
                   f"{means.max():.3f} at its best; no law here describes a collapse")
    # The residuals of a replicate have no trend but the one that the fit itself makes.
    ours, theirs = neighbors(fit.R - fit.curve(fit.C)), fit.pool[0].neighbors
    share = (1 + (theirs >= ours).sum()) / (1 + theirs.size)
    if n >= 10 and fit.rmse > 1e-6 and share < TREND:
        yield (f"the residuals have a trend (neighbors correlate at {ours:.2f}, in replicates at "
               f"{theirs.mean():.2f}): the law misses part of the shape, or the noise lasts")
    (law, rival), constant = next(iter(fit.rivals.items())), fit.rivals["constant"]
    if n >= FEW and rival["delta_aic"] < -RIVAL:
        yield (f"the {law} law fits better (AIC {rival['delta_aic']:+.1f}) and has the ceiling "
               f"{rival['A']:.3f}: the true one may lie outside of our interval")
    if n >= FEW and constant["delta_aic"] < RIVAL:
        yield (f"a constant fits about as well (AIC {constant['delta_aic']:+.1f}): these "
               "evaluations do not show that the reward rises")
    for name, nodes in grid.items():
        i = np.abs(nodes - getattr(fit, name)).argmin()
        (low, high), gap = fit.ci[name], np.ptp(nodes[max(i - 1, 0):i + 1])
        if high - low < gap:
            yield (f"the {name} nodes are {gap:.3g} apart, more than the whole interval of {name}: "
                   "take finer ones")
    for name in ("B", "C_mid"):
        low, high = fit.ci[name]
        if high > WIDE_RATIO * low:
            yield f"{name} is only known to lie in [{low:.3g}, {high:.3g}]: nearly any value fits"
    (low, high), remaining = fit.ci["A"], fit.A - float(fit.curve(end))
    if high - low > max(2 * SAME_A, remaining):
        yield (f"the ceiling is only known to lie in [{low:.3f}, {high:.3f}], wider than the gain "
               f"of {remaining:.3f} that it promises beyond the data")


# ------------------------------------------------------------------------------ 5. prediction
# A curve of three parameters fits any rising run, so a small error on the fitted evaluations
# proves nothing.  held_out puts beside it the error on evaluations that were not fitted.
def held_out(C, R, early):
    """How well `early`, fitted to the first part of C, R (n,), predicted the rest; and how well the
    naive forecast does, which carries the last three fitted evaluations forward -> numbers."""
    rest = C > early.C[-1]
    if not rest.any():
        raise BadInput(f"--until leaves nothing to predict: the data end at {C[-1]:.3g}")
    C, R, k = C[rest], R[rest], min(LAST, rest.sum())
    error, naive, measured = early.curve(C) - R, early.R[-3:].mean(), R[-k:].mean()
    # The interval is for the mean of k noisy evaluations, because that is what is measured.
    low, high = interval(early.paths(C[-k:], noise=True).mean(1))
    return dict(evaluations=k, predicted=early.curve(C[-k:]).mean(), lo=low, hi=high,
                measured=measured, error=error[-k:].mean(), rmse_in_range=early.rmse,
                n_in_range=early.n, rmse_held_out=np.sqrt((error ** 2).mean()),
                n_held_out=C.size, naive=naive, naive_error=naive - measured)


# ------------------------------------------------------------------------------ 6. comparison
def difference(name, a, b):
    """a - b in parameter `name` ("A", "B"): its value, its interval, the verdict of the bootstrap.

    The replicates of a single run do not show how much two seeds of one recipe differ.  So the
    bootstrap's "differ" is about these two runs; for recipes the paper's 0.02 on A is better.
    """
    size, column = min(len(a.draws), len(b.draws)), ("A", "B").index(name)
    low, high = interval(a.draws[:size, column] - b.draws[:size, column])
    verdict = "unknown" if np.isnan(low) else "differ" if low > 0 or high < 0 else "same"
    return dict(d=getattr(a, name) - getattr(b, name), lo=low, hi=high, bootstrap=verdict)


def same_ceiling(A):
    """The paper's rule for ceilings A (k,).  Its own case, .590 and .610, must pass."""
    return bool(np.ptp(A) <= SAME_A + 1e-9)


def ceiling_doubt(fit):
    """Why this ceiling cannot be compared with another one, or ""."""
    (low, high), (law, rival) = fit.ci["A"], next(iter(fit.rivals.items()))
    if high - low > WIDE_A:
        return f"its interval is {high - low:.2f} wide"
    if rival["delta_aic"] < RIVAL and abs(rival["A"] - fit.A) > SAME_A:
        return f"the {law} law fits as well and has the ceiling {rival['A']:.3f}"
    return ""


def compare(curves, fits, refits):
    """Ceilings against the first run's, then steepness at a shared ceiling.

    B means little without A, so it is compared only at a shared ceiling: if all are known and the
    same by the paper's rule, all runs are refitted at the mean A.
    curves; fits and refits {label: ...} -> numbers, and the fits to draw.
    """
    (base, first), *others = fits.items()
    A, doubts = np.array([fit.A for fit in fits.values()]), {}
    for label, fit in fits.items():
        if ceiling_doubt(fit):
            doubts[label] = ceiling_doubt(fit)
    summary = dict(first=base, A_mean=A.mean(), A_spread=np.abs(A - A.mean()).max(),
                   A_span=np.ptp(A), doubts=doubts, A={}, B={})
    for label, fit in others:
        rule = "undetermined" if doubts.keys() & {label, base} else \
            "same" if same_ceiling([fit.A, first.A]) else "differ"
        summary["A"][label] = difference("A", fit, first) | dict(rule=rule)
    if same_ceiling(A) and not doubts:
        fits = {curve.label: refits[curve.label](curve.C, curve.R, A_range=(A.mean(), A.mean()))
                for curve in curves}
        summary["B"] = {label: difference("B", fit, fits[base]) | dict(B=fit.B, ci=fit.ci["B"])
                        for label, fit in fits.items()}
    return summary, fits


# ------------------------------------------------------------------------------ 7. the command
def arguments(argv):
    """what it reads  A run folder of ours; JSONL of verl and prime-rl; trainer_state.json of TRL;
                   any CSV with a header; CSV exports of Weights & Biases; TensorBoard event files.
                   NAME=A,B,C pools the seeds A, B, C of one recipe, NAME=FOLDER the runs in FOLDER.
               Several runs are compared.
    which columns  --y is a pass rate in [0, 1] on held-out problems, --x the compute.  Steps will
                   do if every step costs the same: --x step --x-scale 0.4 --x-label GPU-hours
    what to trust  Read the warnings first.  A ceiling fitted before the bend is a guess, and R0
                   moves everything: evaluate at step 0.  --until is the test that counts: does the
                   first half of the run predict the second?

    examples
      fit.py runs/demo --until 0.5                          predict the second half from the first
      fit.py runs/demo --predict 1e15 --target 0.9          what compute buys; what a reward costs
      fit.py ours=runs/s1,runs/s2 grpo=runs/g1,runs/g2      two recipes, their seeds pooled
      fit.py trainer_state.json --y eval_reward --reward-range -1 1
      fit.py runs/mix --y eval/toy/mean@4 --y eval/math/mean@4     two tasks of a run, a curve each
      watch -n 60 python fit.py runs/demo                   follow a run while it trains

    exit codes     0 well; 2 input that cannot be used; 3 there are warnings, with --strict
    """
    p = argparse.ArgumentParser(prog="fit.py", description=__doc__.split("\n\n")[0],
                                epilog=inspect.cleandoc(arguments.__doc__),
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    add, pair = p.add_argument, dict(type=float, nargs=2, metavar=("LO", "HI"))
    add("runs", nargs="+", metavar="RUN", help="a log, a run folder, or NAME=LOG,LOG,...")
    add("--x", help="column of compute")
    add("--y", action="append", help="column of the pass rate; twice for two tasks of a run")
    add("--x-scale", type=float, default=1.0, metavar="K", help="multiply --x: GPU-hours a step")
    add("--x-label", help="name of the compute axis")
    add("--reward-range", **pair, default=(0.0, 1.0), help="map these rewards onto [0, 1]")
    add("--law", choices=LAWS, default="sigmoid", help="only sigmoid and power are the paper's")
    add("--method", choices=("free", "grid"), default="free", help="grid is the paper's A.5")
    add("--paper-grid", action="store_true", help="A.5 as printed: A .45-.80, C_mid 100-40000")
    add("--R0", metavar="R|fit", help="pass rate before training, or `fit` (default: step 0)")
    add("--A-range", **pair, help="default: R0 to 1; equal numbers hold A")
    add("--B-range", **pair, default=B_RANGE)
    add("--C-mid-range", **pair, help="default: from the data")
    add("--A-step", type=float, default=A_STEP, help="grid method: distance of the A nodes")
    add("--C-mid-nodes", type=int, metavar="N", help="grid method: N linear nodes in --C-mid-range")
    add("--c-min", type=float, help="leave out earlier evaluations (the paper: about one epoch)")
    add("--until", type=float, metavar="C", help="fit up to here, predict the rest; to 1: a share")
    add("--predict", type=float, nargs="+", default=[], metavar="C", help="pass rate at compute C")
    add("--target", type=float, metavar="R", help="compute that this pass rate takes")
    add("--beside", metavar="CSV", help="with --until: how good is the error among those of CSV")
    add("--bootstrap", type=int, default=1000, metavar="S", help="replicates (1000)")
    add("--seed", type=int, default=0)
    add("--strict", action="store_true", help="exit code 3 if there is any warning")
    add("--json", metavar="FILE", help="the numbers, for programs")
    add("--table", metavar="FILE", help="the table as .csv or .tex")
    add("--title", help="of the pictures")
    add("--out", metavar="FILE", help="picture (.png, .pdf, .svg); `none` for none")
    return p.parse_args(argv)


def main(argv=None):
    try:
        args = arguments(argv)
        from artifacts.fit_report import report        # here: the rest of this file works without
        return report(args)
    except (BadInput, OSError) as error:
        print(f"fit.py: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"fit.py: the command needs {error.name} (artifacts/ is a folder of this project, "
              "matplotlib a package); `from fit import fit_curve` works without", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    import fit                    # the readers import this file as `fit`, and BadInput must be one
    sys.exit(fit.main())
