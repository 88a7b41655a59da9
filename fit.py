"""fit.py: the curve of an RL run, and what more compute would buy.

    python fit.py runs/demo                       # law, intervals, warnings, picture
    python fit.py runs/demo --until 0.5           # fit the first half, predict the second
    python fit.py runs/a runs/b runs/c            # which recipe has the higher ceiling

Stands alone (numpy, scipy, matplotlib): any log with a column of compute and a column of pass
rates will do.  The law is Eq. 1 of ScaleRL (arXiv 2510.13786), the procedure its appendix A.5:

    R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B)

    A      the ceiling: the pass rate that no amount of compute exceeds
    B      the steepness: how fast the ceiling is approached (the paper's "compute efficiency")
    C_mid  the compute at which half of the gain A - R0 has been bought
    R0     the pass rate before training

Where this differs from the paper, or the paper is silent ("ours"):
  1. R0 is the measured step-0 evaluation, held fixed in the fit.  The paper does not say how R0
     enters, and nothing moves the answer more: an exact curve with A .61, B 1.92, R0 .35, fitted
     from 1.5k to 8k GPU-hours, gives A .659, B .95 with R0 = 0, and A .596, B 2.61 with R0 = .4.
     So R0 is printed with every fit, and its noise is in the intervals.
  2. The default method, `free`, is bounded least squares in A, log B, log C_mid from many starts.
     `grid` is the paper's: nodes of A and C_mid, B by least squares at each.
  3. The printed C_mid nodes, linspace(100, 40000, 100), cannot have made the paper's own tables:
     their step is 403, and the published 2542, 2818, 2936, 3054 are nodes of linspace(100, 4000,
     100).  So the nodes are a setting, by default from the data; --paper-grid is the printed text.
  4. Intervals: residual bootstrap, 90%, the residuals widened by Student's t.  The paper gives
     +-0.015 on A, from three seeds.
  5. Every evaluation is fitted.  The paper leaves out the first 1.5k GPU-hours (about an epoch), as
     --c-min does here: what an epoch is in compute, no log says.
  6. The power law is A.4's.  The logistic law in linear compute comes from a popular article about
     the paper, not from the paper; it is here so that the two can be compared.

Three layers: laws and fits (1-4), logs (5), what is said and drawn (6-9).  Axes: S problems solved
side by side (starts, bootstrap replicates), n evaluations, m nodes of a table, 4 parameters.
"""
import argparse
import csv
import fnmatch
import json
import re
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit, ndtri, stdtrit

# -------------------------------------------------------------------------- 0. knobs, all ours
LEVEL = 0.90              # of every interval
SAME_A = 0.02             # the paper's rule: ceilings closer than this are the same, because three
                          # seeds of one recipe moved A by up to 0.015
FEW = 6                   # fewer evaluations than this do not hold three parameters
LAST = 5                  # "the last evaluation" is the mean of the last 5: one alone is too noisy
A_STEP = 0.005            # the paper's A nodes
B_RANGE = (0.1, 20.0)     # published B's lie in 1.09-4.55
C_MID_REACH = (0.01, 10)  # C_mid from 1/100 of the first to 10 times the last compute in the data
PAPER_GRID = dict(method="grid", A_range=(0.45, 0.80), A_step=0.005,      # A.5, to the letter
                  C_mid_nodes=np.linspace(100, 40_000, 100))
# Tried in this order when --x or --y is not given; the choice is always printed.  FLOPs come first
# because they are the same on every machine and every day, which hours are not.
X_COLUMNS = ("compute/flops", "compute/gpu_hours", "compute/core_hours", "compute/tokens",
             "gpu_hours", "num_tokens", "step", "_step", "Step", "training/global_step")
Y_COLUMNS = ("eval/*/mean@*", "eval/*/avg@*", "val-core/*/mean@*", "eval*pass_rate*",
             "eval/*reward*", "eval_reward", "eval_rewards/*/mean", "*pass_rate*")
STEP_COLUMNS = ("step", "_step", "Step", "global_step", "training/global_step")


class BadInput(ValueError):
    """Input that cannot be used.  The text is one sentence for the person who gave it."""


class NotYet(BadInput):
    """A log without an evaluation: of no use to a fit, but --watch waits for the first one."""


# -------------------------------------------------------------------------------------- 1. laws
# Every law here is R = R0 + (A - R0) g(u), where g is the share of the gain that C has bought:
#   sigmoid    g = 1 / (1 + e^-u)    u = B (log C - log C_mid)   Eq. 1; this form cannot overflow
#   power      g = 1 - e^-u          u = B (log C - log C_mid)   A.4: A - D / C^B, with
#                                                                D = (A - R0) C_mid^B; R0 at C_mid
#   logistic   g = 1 / (1 + e^-u)    u = B (C / C_mid - 1)       not the paper's; k = B / C_mid
# One form gives one table, one optimizer and one inverse for all three.  And with B and C_mid given
# the reward is linear in A, which is what makes section 2 fast.
LAWS = ("sigmoid", "power", "logistic")


def _share(law, C, log_B, log_C_mid):
    """g, dg/dlog B, dg/dlog C_mid; the arguments broadcast.  C = 0 gives g = 0 in the sigmoid."""
    B = np.exp(log_B)
    if law == "logistic":
        x = C * np.exp(-log_C_mid)
        u, du_dmid = B * (x - 1), -B * x
    else:
        u, du_dmid = B * (np.log(np.maximum(C, 1e-300)) - log_C_mid), -B
    if law == "power":
        tail = np.exp(-np.maximum(u, -60))   # below C_mid this law dives; e^60 is deep enough
        return 1 - tail, tail * u, tail * du_dmid
    g = expit(u)
    return g, g * (1 - g) * u, g * (1 - g) * du_dmid


def sigmoid(C, A, B, C_mid, R0):
    """Eq. 1: the pass rate after compute C >= 0 (any shape).

    >>> print(sigmoid([0, 1000, 1e9], A=0.6, B=2.0, C_mid=1000, R0=0.4).round(3))
    [0.4 0.5 0.6]
    """
    return R0 + (A - R0) * _share("sigmoid", np.asarray(C, float), np.log(B), np.log(C_mid))[0]


def compute_needed(law, R, A, B, C_mid, R0):
    """The C at which the law reaches R: 0 if it starts there, inf if its ceiling is not above R."""
    g = (R - R0) / np.where(A > R0, A - R0, np.nan)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        u = -np.log1p(-g) if law == "power" else logit(g)
        C = C_mid * (1 + u / B) if law == "logistic" else C_mid * np.exp(u / B)
    return np.where(R <= R0, 0.0, np.where(R >= A, np.inf, np.maximum(C, 0)))


# ---------------------------------------------------------------- 2. least squares, side by side
# scipy solves one problem a call and spends about a millisecond in Python on each.  A fit with its
# bootstrap is 1,000 problems of three parameters, so here they are solved together, as arrays.
# First a table over (B, C_mid) finds the right valley for each problem.  The sum of squares has
# several: curve_fit from its default start ends with a median error in A of 0.125, where 0.0035 is
# possible.  Then Levenberg-Marquardt walks to the valley's floor.
# `free` walks in A, log B and log C_mid: B and C_mid are scales, so a step means "twice", not "plus
# one", and neither can turn negative.  `grid` pins A and C_mid to nodes and walks in log B alone:
# the paper's procedure, except that nodes which cannot win are not visited.

@dataclass(frozen=True)
class Space:
    """Where the optimizer may look."""
    law: str
    A_range: tuple            # (lo, hi); equal: A is held
    A_step: float             # distance of the A nodes; 0: continuous (`free`)
    B_nodes: np.ndarray       # start values, ascending; the ends are the bounds
    C_nodes: np.ndarray       # start values (`free`), the only values (`grid`)
    fit_R0: bool

    @property
    def parameters(self):
        """How many the fit bends: those that are not held."""
        spans = self.A_range, self.B_nodes[[0, -1]], self.C_nodes[[0, -1]]
        return sum(bool(lo < hi) for lo, hi in spans) + self.fit_R0


def _table(space, C, Y, R0, keep, shift):
    """Starts (S, keep, 4) for rewards Y (S, n) with R0 (S,): the best `keep` nodes of C_mid.
    The A nodes of problem i are moved by shift[i].

    Closed forms only.  With a = A - R0 the sum of squares at a node is a^2 gg - 2 a yg + const, a
    parabola in a.  Its least value among the A nodes is at the node nearest to its vertex yg / gg.
    """
    log_B, log_C = np.log(space.B_nodes), np.log(space.C_nodes)
    G = _share(space.law, C, log_B[None, :, None], log_C[:, None, None])[0].reshape(-1, C.size)
    gg = np.maximum((G * G).sum(1), 1e-30)                                         # (m,)
    starts = []
    for rows in range(0, len(Y), 64):         # in slices: 64 x 24,000 nodes of the grid are 12 MB
        r0 = R0[rows:rows + 64, None]
        yg = (Y[rows:rows + 64] - r0) @ G.T                                        # (s, m)
        A = yg / gg + r0
        if space.A_step:
            node = space.A_range[0] + shift[rows:rows + 64, None]
            A = node + space.A_step * np.round((A - node) / space.A_step)
        A = np.clip(A, *space.A_range)
        sse = ((A - r0) ** 2 * gg - 2 * (A - r0) * yg).reshape(len(A), log_C.size, log_B.size)
        c = np.argsort(sse.min(2), axis=1)[:, :keep]                               # (s, keep)
        b = np.take_along_axis(sse.argmin(2), c, 1)
        A = np.take_along_axis(A, c * log_B.size + b, 1)
        starts.append(np.stack([A, log_B[b], log_C[c], np.broadcast_to(r0, A.shape)], -1))
    return np.concatenate(starts) if starts else np.empty((0, keep, 4))


def _residual_and_slopes(law, C, Y, theta):
    """theta (S, 4) = A, log B, log C_mid, R0 -> residual (S, n), slopes of the curve (S, 4, n)."""
    A, log_B, log_C_mid, R0 = theta.T[:, :, None]                                  # (S, 1) each
    g, g_B, g_C = _share(law, C, log_B, log_C_mid)
    return Y - R0 - (A - R0) * g, np.stack([g, (A - R0) * g_B, (A - R0) * g_C, 1 - g], 1)


def _walk(law, C, Y, theta, lo, hi, steps=100):
    """Bounded Levenberg-Marquardt on S problems at once; theta, lo, hi (S, 4) -> theta, sse (S,).

    A parameter that stands on a bound and is pushed against it is pinned for that step.  This is
    the whole treatment of bounds, and lo == hi holds a parameter for good.  A step that would make
    the sum of squares worse is not taken; its problem gets ten times the damping instead.
    """
    theta, diagonal = np.clip(theta, lo, hi), np.arange(4)
    residual, slopes = _residual_and_slopes(law, C, Y, theta)
    sse, damping = (residual ** 2).sum(1), np.full(len(Y), 1e-3)
    todo = np.arange(len(Y))                                 # problems not yet at their floor
    for _ in range(steps):
        t, J = theta[todo], slopes[todo]
        pull = (J @ residual[todo][:, :, None])[:, :, 0]                           # (s, 4) downhill
        pinned = ((t <= lo[todo]) & (pull <= 0)) | ((t >= hi[todo]) & (pull >= 0))
        J = np.where(pinned[:, :, None], 0, J)
        H = J @ J.transpose(0, 2, 1)                                               # (s, 4, 4)
        H[:, diagonal, diagonal] *= 1 + damping[todo, None]
        H[:, diagonal, diagonal] += np.where(pinned, 1, 1e-14)                     # never singular
        step = np.linalg.solve(H, np.where(pinned, 0, pull)[:, :, None])[:, :, 0]
        trial = np.clip(t + np.clip(step, -2, 2), lo[todo], hi[todo])   # 2 in a log: a factor of 7
        r, J = _residual_and_slopes(law, C, Y[todo], trial)
        trial_sse = (r ** 2).sum(1)
        better = trial_sse <= sse[todo]
        settled = better & (sse[todo] - trial_sse <= 1e-12 * sse[todo] + 1e-30)
        took = todo[better]
        theta[took], residual[took], slopes[took] = trial[better], r[better], J[better]
        sse[took] = trial_sse[better]
        damping[todo] *= np.where(better, 0.1, 10)
        todo = todo[~settled & (damping[todo] < 1e10)]
        if not todo.size:
            break
    return theta, sse


def _solve(space, C, Y, R0, keep, shift=0.0):
    """The best fit of each row of Y (S, n) with its R0 (S,) -> theta (S, 4).  `shift`: see _table.
    """
    shift = np.broadcast_to(shift, len(Y))
    # When R0 is fitted too, the table needs a guess of it: the lowest reward, and half of that.
    guesses = (Y.min(1), Y.min(1) / 2) if space.fit_R0 else (R0,)
    theta = np.concatenate([_table(space, C, Y, guess, keep, shift) for guess in guesses], 1)
    A_lo, A_hi = space.A_range
    if space.A_step:       # the neighbors too: A was rounded while B stood on its nodes
        theta = np.concatenate([theta + [d * space.A_step, 0, 0, 0] for d in (-1, 0, 1)], 1)
        theta[..., 0] = np.clip(theta[..., 0], A_lo, A_hi)
    S, k, _ = theta.shape
    theta = theta.reshape(S * k, 4)
    lo, hi = theta.copy(), theta.copy()                      # everything is held, except:
    lo[:, 1], hi[:, 1] = np.log(space.B_nodes[[0, -1]])
    if not space.A_step:
        lo[:, 2], hi[:, 2] = np.log(space.C_nodes[[0, -1]])
        lo[:, 0], hi[:, 0] = A_lo, A_hi
        if A_lo < A_hi:                                      # a ceiling below R0 is no ceiling
            lo[:, 0] = np.clip(theta[:, 3], A_lo, A_hi)
    if space.fit_R0:       # floor below the mean reward, ceiling above it: the law only rises
        lo[:, 3], hi[:, 3] = 0, np.repeat(Y.mean(1), k)
        lo[:, 0] = np.clip(hi[:, 3], A_lo, A_hi)
    theta, sse = _walk(space.law, C, np.repeat(Y, k, 0), theta, lo, hi)
    return theta.reshape(S, k, 4)[np.arange(S), sse.reshape(S, k).argmin(1)]


# ----------------------------------------------------------------------------------- 3. the fit
def interval(values):
    """The 90% interval over the first axis (S, ...) -> (2, ...); nan if there are no replicates.
    Order statistics, not interpolation: `inf` (a reward never reached) may be among the values."""
    if not len(values):
        return np.full((2, *values.shape[1:]), np.nan)
    return np.percentile(values, [50 * (1 - LEVEL), 50 * (1 + LEVEL)], axis=0, method="nearest")


@dataclass(frozen=True)
class Fit:
    """One fitted curve with its uncertainty and what stands against believing it."""
    A: float
    B: float
    C_mid: float
    R0: float
    R0_from: str              # "step 0" | "given" | "fitted" | "unused" (power law, no step 0)
    law: str
    method: str
    n: int
    rmse: float               # of the fitted points: sqrt(mean(residual^2))
    C: np.ndarray             # (n,) the compute that was fitted, ascending
    R: np.ndarray             # (n,)
    noise: np.ndarray = field(repr=False)        # (n,) residuals, widened (fit_curve says why)
    draws: np.ndarray = field(repr=False)        # (S, 4) A, B, C_mid, R0 of the replicates
    ci: dict                  # {"A": (lo, hi), ...}: their 90% intervals
    warnings: tuple = ()      # sentences

    def curve(self, C, draws=None):
        """The law at C (n,) -> (n,); for `draws` (S, 4) -> (S, n)."""
        theta = (self.A, self.B, self.C_mid, self.R0) if draws is None else draws.T[:, :, None]
        A, B, C_mid, R0 = theta
        return R0 + (A - R0) * _share(self.law, np.asarray(C, float), np.log(B), np.log(C_mid))[0]

    def paths(self, C, noise=False):
        """Each replicate's curve at C (n,) -> (S, n); with `noise`, an evaluation on each."""
        paths = self.curve(C, self.draws)
        if noise:
            paths = paths + np.random.default_rng(0).choice(self.noise, paths.shape)
        return paths

    def predict(self, C, *, noise=False):
        """(mean, lo, hi) at C, each of C's shape.  lo and hi hold the curve; with `noise` they hold
        a single evaluation, which scatters about the curve.  nan without a bootstrap."""
        C = np.asarray(C, float)
        lo, hi = interval(self.paths(C.reshape(-1), noise))
        return self.curve(C), lo.reshape(C.shape), hi.reshape(C.shape)

    def compute_for(self, R):
        """The compute at which the curve reaches R; inf if the ceiling is not above R."""
        return float(compute_needed(self.law, R, self.A, self.B, self.C_mid, self.R0))


def fit_curve(C, R, R0=None, *, method="free", law="sigmoid", c_min=None, c_max=None,
              bootstrap=1000, seed=0, A_range=None, B_range=B_RANGE, C_mid_range=None,
              A_step=A_STEP, C_mid_nodes=None) -> Fit:
    """Fit pass rates R (n,) against compute C (n,).

    R0          the pass rate before training: a number (held), "fit", or None: the evaluation at
                C = 0 (the mean, if there are several), held; fitted if there is none
    method      "free": A, log B, log C_mid within bounds; "grid": the paper's A.5
    law         "sigmoid" (Eq. 1), "power" (A.4), "logistic" (not the paper's)
    c_min       leave out what was measured earlier (the paper: 1.5k GPU-hours, about one epoch);
    c_max       or later.  R0 is taken from C = 0 all the same
    bootstrap   replicates for the intervals, 0: none; `seed` makes them repeatable
    A_range     (lo, hi), by default (R0, 1); lo == hi holds A.  B_range, C_mid_range likewise
    A_step, C_mid_nodes   nodes of the grid method: a distance, and an ascending array

    Raises BadInput (a ValueError) with a sentence.
    """
    C, R = _checked(C, R)
    if law not in LAWS or method not in ("free", "grid"):
        raise BadInput(f"law is one of {', '.join(LAWS)} and method one of free, grid; "
                       f"got law {law!r}, method {method!r}")
    start = R[C == 0]
    R0_from = "fitted" if R0 == "fit" or (R0 is None and not start.size) else \
        "given" if R0 is not None else "step 0"
    if R0_from == "fitted" and law == "power":     # A - D / C^B has no floor: R0 only names C_mid
        R0, R0_from = 0.0, "unused"
    fit_R0 = R0_from == "fitted"
    R0 = 0.0 if fit_R0 else float(start.mean()) if R0_from == "step 0" else R0
    if fit_R0 and method == "grid":
        raise BadInput("the grid method holds R0: give the log a step-0 evaluation, or give R0")
    if not 0 <= R0 <= 1 or bootstrap < 0 or seed < 0:
        raise BadInput(f"R0 is a pass rate in [0, 1], bootstrap and seed are at least 0; "
                       f"got R0 {R0:g}, bootstrap {bootstrap}, seed {seed}")
    # At C = 0 the law is R0, whatever A, B and C_mid: with R0 held, such points say nothing more.
    use = (C >= (c_min or 0)) & (C <= (np.inf if c_max is None else c_max)) & ((C > 0) | fit_R0)
    C, R = C[use], R[use]
    if np.unique(C).size < 3:
        window = (f"no {name}" if C_end is None else f"{name} {C_end:g}"
                  for name, C_end in (("--c-min", c_min), ("--until", c_max)))
        raise BadInput(f"only {np.unique(C).size} different amounts of compute are left to fit "
                       f"({', '.join(window)}; step 0 only gives R0): take 3, better 20")
    space = _space(C[C > 0], R0, law, method, fit_R0, A_range, B_range, C_mid_range, A_step,
                   C_mid_nodes)
    theta = _solve(space, C, R[None], np.array([R0]), keep=32 if method == "grid" else 8)
    residual = _residual_and_slopes(law, C, R[None], theta)[0][0]                  # (n,)
    # The bootstrap: curve + residuals drawn with replacement, fitted again, 1,000 times.  Residuals
    # and not evaluations are drawn, because a draw without the few early ones says nothing about B.
    # Residuals are smaller than the noise they come from, by sqrt((n - p) / n): p parameters were
    # bent towards them.  And n - p of them tell the size of the noise only roughly, so Student's t
    # takes the place of the normal distribution: without it 90% intervals held the truth in 86% of
    # runs at n = 12 and in 65% at n = 4.  So residuals are recentered and widened twice.
    freedom, tail = R.size - space.parameters, (1 + LEVEL) / 2
    if freedom < 1:
        freedom, bootstrap = 1, 0             # a curve through every point: no noise to be seen
    widen = np.sqrt(R.size / freedom) * stdtrit(freedom, tail) / ndtri(tail)
    noise = (residual - residual.mean()) * widen
    rng = np.random.default_rng(seed)
    Y = R - residual + rng.choice(noise, (bootstrap, R.size))                      # (S, n)
    R0_rows = np.full(bootstrap, R0)
    if R0_from == "step 0":       # R0 was measured with the same noise, so it moves as well: ours
        R0_rows = np.clip(R0 + rng.choice(noise, (start.size, bootstrap)).mean(0), 0, 1)
    # Each replicate has its own A nodes, moved by a random part of a step (ours).  On good data all
    # replicates would land on one node, and A would look exact because the grid is coarse.
    shift = rng.uniform(-0.5, 0.5, bootstrap) * space.A_step
    theta = np.concatenate([theta, _solve(space, C, Y, R0_rows, 2, shift)])        # (1 + S, 4)
    theta[:, 1:3] = np.exp(theta[:, 1:3])
    if method == "grid":          # .61 and not .6100000000000001, which lies outside [.60, .61]
        theta[:, 0] = theta[:, 0].round(12)
    A, B, C_mid, R0 = map(float, theta[0])
    ci = dict(zip(("A", "B", "C_mid", "R0"), map(tuple, interval(theta[1:]).T.tolist())))
    fit = Fit(A, B, C_mid, R0, R0_from, law, method, R.size,
              float(np.sqrt((residual ** 2).mean())), C, R, noise, theta[1:], ci)
    return replace(fit, warnings=tuple(doubts(fit, space)))


def _checked(C, R):
    """Float arrays in order of compute, or a sentence."""
    C, R = np.asarray(C, float).reshape(-1), np.asarray(R, float).reshape(-1)
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


def _space(C, R0, law, method, fit_R0, A_range, B_range, C_mid_range, A_step, C_mid_nodes):
    """The search space, from the settings of fit_curve and the compute C > 0 in the data."""
    for name, span, least, most in (
            ("A_range", A_range, 0, 1), ("B_range", B_range, 1e-12, np.inf),
            ("C_mid_range", C_mid_range, 1e-300, np.inf), ("A_step", (A_step, 1), 1e-4, 1)):
        if span is not None and not least <= span[0] <= span[1] <= most:
            top = "" if most == np.inf else f" <= {most}"
            raise BadInput(f"{name} {span} is not usable: it takes {least} <= lo <= hi{top}")
    if method == "free":
        lo, hi = C_mid_range or (C.min() * C_MID_REACH[0], C.max() * C_MID_REACH[1])
        return Space(law, tuple(A_range or (0.0 if fit_R0 else R0, 1.0)), 0.0,
                     np.geomspace(*B_range, 24), np.geomspace(lo, hi, 48), fit_R0)
    # The grid: A on round numbers (.450, .455, ...), and C_mid's a factor of about 1.013 apart.
    # With 1.02 the interval of C_mid was two nodes wide on clean data and held the truth 79% of the
    # time instead of 90%.
    lo, hi = C_mid_range or (C.min() / 10, 2 * C.max())
    nodes = np.geomspace(lo, hi, 400) if C_mid_nodes is None else np.asarray(C_mid_nodes, float)
    if nodes.min() <= 0 or np.any(np.diff(nodes) <= 0):
        raise BadInput("C_mid_nodes is an ascending array above 0")
    return Space(law, tuple(A_range or (np.ceil(R0 / A_step) * A_step, 1.0)), A_step,
                 np.geomspace(*B_range, 60), nodes, False)


# ---------------------------------------------------------------------------------- 4. honesty
def doubts(fit, space):
    """What stands against believing the fit: sentences, with their numbers.  The rules are ours."""
    for name, lo, hi in (("A", *space.A_range), ("B", *space.B_nodes[[0, -1]]),
                         ("C_mid", *space.C_nodes[[0, -1]])):
        value = getattr(fit, name)
        if lo < hi and min(abs(value - lo), abs(value - hi)) <= 1e-6 * abs(value):
            yield (f"{name} = {value:.4g} sits on the edge of its range [{lo:.4g}, {hi:.4g}]: "
                   "the data do not determine it")
    end, n = fit.C[-1], fit.n
    if fit.law != "power" and end < 2 * fit.C_mid:
        yield (f"the data end at {end:.3g}, before 2 C_mid = {2 * fit.C_mid:.3g}: the bend towards "
               "the ceiling has hardly been seen")
    if n < FEW:
        yield (f"{n} evaluations for {space.parameters} parameters: at least {FEW}, better 20"
               + ("; they leave nothing to see the noise by, so there are no intervals"
                  if n <= space.parameters else ""))
    if fit.R0_from == "fitted":
        yield "R0 is fitted, not measured, and it moves every other number: evaluate at step 0"
    # Collapse: the last fifth against the best stretch of the same length.  The noise comes from
    # neighbors (median |difference| = .954 sigma): a law fitted to a collapse has residuals that
    # are no noise.
    k = max(3, n // 5)
    if n >= 2 * k:
        means = np.convolve(fit.R, np.ones(k) / k, "valid")
        sigma = np.median(np.abs(np.diff(fit.R))) / 0.954
        if means.max() - means[-1] > max(0.02, 3 * sigma * np.sqrt(2 / k)):
            yield (f"the reward falls at the end: {means[-1]:.3f} over the last {k} evaluations, "
                   f"{means.max():.3f} at its best; no law here describes a collapse")
    residual = fit.R - fit.curve(fit.C)
    if n >= 10 and (residual ** 2).mean() > 1e-12:
        # Neighboring residuals of a good fit are independent: 1 in 200 passes 2.5 / sqrt(n).
        neighbors = (residual[1:] * residual[:-1]).sum() / (residual ** 2).sum()
        if neighbors > 2.5 / np.sqrt(n):
            yield (f"the residuals have a trend (neighbors correlate at {neighbors:.2f}): the law "
                   "misses part of the shape and the intervals are too narrow")
    if fit.method == "grid":
        i = np.abs(space.C_nodes - fit.C_mid).argmin()
        (lo, hi), gap = fit.ci["C_mid"], np.ptp(space.C_nodes[max(i - 1, 0):i + 1])
        if hi - lo < gap:
            yield (f"the C_mid nodes are {gap:.3g} apart and the replicates agree on one: its "
                   "interval only says which node is nearest, take finer --C-mid-nodes")
    (lo, hi), remaining = fit.ci["A"], fit.A - float(fit.curve(end))
    if hi - lo > max(2 * SAME_A, remaining):
        yield (f"the ceiling is only known to lie in [{lo:.3f}, {hi:.3f}], wider than the gain of "
               f"{remaining:.3f} that it promises beyond the data")


def pool_doubts(fit, seeds):
    """Do the seeds of a pooled fit differ by more than noise?  Then its intervals are too narrow:
    the bootstrap draws evaluations, and three seeds are three pieces of evidence, not 240."""
    for label, C, R in seeds:
        shift = (R - fit.curve(C))[C > 0]
        if shift.size and abs(shift.mean()) > 3 * fit.rmse / np.sqrt(shift.size):
            yield (f"seed {label} lies {shift.mean():+.4f} from the pooled curve, more than noise: "
                   "compare the seeds as separate runs and look at the spread of A")


# ------------------------------------------------------------------------------------- 5. logs
# Every tool writes rows of names and numbers, some rows with an evaluation and most without.  So a
# reader only has to make rows; which columns are compute and reward is decided in one place.
@dataclass(frozen=True)
class Curve:
    """Rewards against compute, read from one run or pooled from several seeds of one recipe."""
    label: str
    C: np.ndarray
    R: np.ndarray
    x: str                    # what C is called
    y: str
    picture: Path             # where its picture goes unless --out says otherwise
    seeds: tuple = ()         # (label, C, R) of each, if there are several
    x_column: str = ""        # what the log calls C, whatever --x-label says
    notes: tuple = ()         # facts worth a line
    warnings: tuple = ()      # facts that stand against the fit (--strict)


def read_rows(path):
    """A log or a run's folder -> (rows {column: number}, one a step; the file read; notes)."""
    if not path.exists():
        raise BadInput(f"there is no file or folder {path}")
    path, notes = _log_in(path) if path.is_dir() else path, []
    if "tfevents" in path.name:
        rows = _tensorboard(path.parent)
    elif path.suffix == ".csv":               # any CSV with a header; Weights & Biases exports
        text = _text(path)
        rows = list(csv.DictReader(text.splitlines()))
        if rows and not text.endswith("\n"):
            notes.append(f"the last line of {path.name} has no end (being written?): "
                         "if its number is cut off, it is wrong")
    elif path.suffix == ".json":              # TRL, transformers: trainer_state.json
        rows = _json(_text(path), path)
        rows = rows.get("log_history") if isinstance(rows, dict) else None
        if rows is None:
            raise BadInput(f"{path} has no log_history; of .json files trainer_state.json is read")
    else:                                     # ours, verl, prime-rl
        rows, notes = read_jsonl(path)
    if not all(isinstance(row, dict) for row in rows):
        raise BadInput(f"{path} holds lines that are not JSON objects")
    # Trainers log a step several times (training, evaluation, again after a resume), so rows of
    # one step are merged and later values win.
    merged = {}
    for i, row in enumerate(map(_flat, rows)):
        step = next((row[name] for name in STEP_COLUMNS if name in row), ("row", i))
        merged.setdefault(step, {}).update(row)
    return list(merged.values()), path, notes


def _text(path):
    try:
        return path.read_text(encoding="utf-8-sig")      # Excel puts an invisible mark in front
    except UnicodeDecodeError:
        raise BadInput(f"{path} is no text: is it a log?") from None


def read_jsonl(path):
    """(rows, notes) of a log with one JSON object a line; its last line may be half-written."""
    *lines, last = [line for line in _text(path).split("\n") if line.strip()] or ["{}"]
    rows = [_json(line, f"{path}, line {i}") for i, line in enumerate(lines, 1)]
    try:
        return [*rows, json.loads(last)], []
    except json.JSONDecodeError:
        return rows, [f"the last line of {path.name} is cut off (being written?): left out"]


def _json(text, where):
    """One JSON value, or a sentence that says where it is broken."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInput(f"{where} is not JSON ({error.msg})") from None


def _log_in(folder):
    """The log in a run folder; the evaluations, if they have a file of their own."""
    for pattern in ("evals.jsonl", "metrics.jsonl", "trainer_state.json",
                    "checkpoint-*/trainer_state.json", "**/*tfevents*", "*.jsonl", "*.csv"):
        found = sorted(folder.glob(pattern),
                       key=lambda p: [int(digits) for digits in re.findall(r"\d+", p.parent.name)])
        if found:
            return found[-1]                  # of several checkpoints the latest: it holds all
    raise NotYet(f"{folder} holds no log that can be read: evals.jsonl, metrics.jsonl, "
                 "trainer_state.json, TensorBoard events, *.jsonl or *.csv")


def _tensorboard(folder):
    """The scalars of the event files in a folder."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise BadInput("TensorBoard files need one more package: pip install tensorboard") from None
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()   # 0: keep all
    return [{"step": event.step, tag: event.value}
            for tag in events.Tags()["scalars"] for event in events.Scalars(tag)]


def _flat(row):
    """{"step": 3, "data": {"a": 1}} (verl's shape) -> {"step": 3.0, "a": 1.0}: numbers only.

    An empty cell is an evaluation that was not made, not a zero.  Weights & Biases puts "__MIN" and
    "__MAX" columns beside each metric; they are no evaluations either.
    """
    flat = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= {k if name == "data" else f"{name}/{k}": v for k, v in _flat(value).items()}
        elif isinstance(value, (int, float, str)) and not name.endswith(("__MIN", "__MAX")):
            try:
                flat[name] = float(value)
            except ValueError:
                pass                          # text: a run's name, a date, an empty cell
    return flat


def _pick(columns, wanted, patterns, option, path):
    """The column to use and a note if others would have done."""
    def fits(pattern):
        return [c for c in columns if c == pattern] or \
            [c for c in columns if fnmatch.fnmatchcase(_metric(c), pattern)]
    for pattern in [wanted] if wanted else patterns:
        found = fits(pattern)
        if found[1:] and wanted:
            raise BadInput(f"{option} {wanted} fits several columns: {', '.join(found)}")
        if found:
            others = [f"{option} is {found[0]}, not {', '.join(found[1:])}"] if found[1:] else []
            return found[0], others
    # With no pass rate at all the first one may still come; a name misspelled never will.
    wait = option == "--y" and not any(map(fits, patterns))
    raise (NotYet if wait else BadInput)(
        f"{path} has no column for {option}" + (f" {wanted}" if wanted else "")
        + f"; it has: {', '.join(sorted(columns)) or 'no numbers yet'}")


def _metric(column):
    """Weights & Biases exports call a column "run - metric"."""
    return column.split(" - ")[-1]


def _one_column(option, runs, meant):
    """runs [(name, column)] that go into one fit or one comparison -> a note if their columns
    differ.  Chosen by us, such columns are refused: FLOPs beside tokens look like any two runs.
    `meant`: --x-label or a pattern says that they are the same quantity."""
    (first, column), *_ = runs
    for other, another in runs:
        if _metric(another) != _metric(column):
            both = f"{option} is {column} in {first} and {another} in {other}"
            if not meant:
                raise BadInput(f"{both}, which do not compare: name a column that both have with "
                               f"{option}" + (", or what both are with --x-label"
                                              if option == "--x" else ""))
            return [f"{both}, compared because you say so"]
    return []


def load(spec, x=None, y=None, x_scale=1.0, x_label=None, reward_range=(0.0, 1.0)) -> Curve:
    """Read "PATH", or "NAME=PATH,PATH,..." (seeds of one recipe, pooled).

    x, y: column names or globs; None: the first of X_COLUMNS, Y_COLUMNS.  x_scale multiplies
    compute (steps into GPU-hours); reward_range is mapped onto [0, 1] ((-1, 1) for +-1 rewards).
    """
    name, _, paths = spec.rpartition("=")
    lo, hi = reward_range
    if not lo < hi:
        raise BadInput(f"--reward-range takes LO < HI, got {lo:g} {hi:g}")
    if not 0 < x_scale < np.inf:
        raise BadInput(f"--x-scale takes a number above 0, got {x_scale:g}")
    if not all(paths.split(",")):
        raise BadInput(f"a run is PATH or NAME=PATH,PATH,..., got {spec!r}")
    seeds, notes, warnings, columns_used = [], [], [], []
    for given in map(Path, paths.split(",")):
        rows, path, more = read_rows(given)
        columns = dict.fromkeys(column for row in rows for column in row)
        y_name, others = _pick(columns, y, Y_COLUMNS, "--y", path)
        x_name, _ = _pick(columns, x, X_COLUMNS, "--x", path)
        notes += more + others
        columns_used.append((path, x_name, y_name))
        rows = [row for row in rows if y_name in row]
        for row in rows:          # before the first step no compute has been spent, logged or not
            if any(row.get(step) == 0 for step in STEP_COLUMNS):
                row.setdefault(x_name, 0.0)
        for lost, why in ((sum(np.isnan(row[y_name]) for row in rows), f"have {y_name} = nan"),
                          (sum(x_name not in row for row in rows), f"have no {x_name}")):
            if lost:
                warnings.append(f"{lost} of {len(rows)} evaluations in {path} {why}: left out")
        rows = [row for row in rows if x_name in row and not np.isnan(row[y_name])]
        if not rows:
            raise NotYet(f"{path} has no evaluation with both {x_name} and {y_name}")
        pairs = {row[x_name]: row[y_name] for row in rows}       # the same compute twice: the later
        C, R = np.array([*pairs.keys()], float), np.array([*pairs.values()], float)
        if len(pairs) < len(rows) or np.any(np.diff(C) < 0):
            notes.append(f"{path} is out of order (sorted) or repeats {x_name} "
                         f"({len(rows) - len(pairs)} times; the later evaluation counts)")
        label = given.absolute().name if given.is_dir() else given.stem
        seeds.append((label, *_checked(C * x_scale, (R - lo) / (hi - lo))))
    paths, x_names, y_names = zip(*columns_used)
    notes += [*_one_column("--x", [*zip(paths, x_names)], x or x_label),
              *_one_column("--y", [*zip(paths, y_names)], y)]
    C, R = (np.concatenate(parts) for parts in list(zip(*seeds))[1:])
    order = np.argsort(C, kind="stable")
    picture = given / "curve.png" if given.is_dir() else given.with_name(f"{given.stem}_curve.png")
    return Curve(name or label, C[order], R[order], x_label or x_name, y_name, picture,
                 tuple(seeds) if len(seeds) > 1 else (), x_name, tuple(notes), tuple(warnings))


# --------------------------------------------------------------------------- 6. what is said
# No number without its interval, no error in range without the error held out beside it: a curve
# of three parameters fits any rising run, so the error in range proves nothing.
# Each of these returns (lines for people, numbers for --json).
def span(lo, hi, form=".3g"):
    """[lo, hi] as it is printed everywhere."""
    return f"[{lo:{form}}, {hi:{form}}]"


def numbers(fit):
    """A, B and C_mid as words, each with its interval."""
    return [f"{getattr(fit, name):{form}} {span(*fit.ci[name], form)}"
            for name, form in (("A", ".3f"), ("B", ".2f"), ("C_mid", ".3g"))]


def fit_table(fits):
    """{label: Fit} -> lines: a row a fit, every number with its interval."""
    rows = [("fitted on", "n", "A (ceiling)", "B (steepness)", "C_mid", "R0", "rmse")]
    for label, f in fits.items():
        rows.append((label, str(f.n), *numbers(f), f"{f.R0:.3f} ({f.R0_from})", f"{f.rmse:.4f}"))
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows]


def held_out(curve, early):
    """How the fit of the first part did on the rest."""
    rest = curve.C > early.C[-1]
    if not rest.any():
        raise BadInput(f"--until leaves nothing to predict: the data end at {curve.C[-1]:.3g}")
    C, R, k = curve.C[rest], curve.R[rest], min(LAST, rest.sum())
    error = early.curve(C) - R
    # The interval is for the mean of k noisy evaluations, because that is what is measured.
    lo, hi = interval(early.paths(C[-k:], noise=True).mean(1))
    said = dict(evaluations=k, predicted=early.curve(C[-k:]).mean(), lo=lo, hi=hi,
                measured=R[-k:].mean(), error=error[-k:].mean(), rmse_in_range=early.rmse,
                rmse_held_out=np.sqrt((error ** 2).mean()), n_held_out=C.size)
    return [f"predicted from the first part for the last {k} evaluations: {said['predicted']:.3f} "
            f"{span(lo, hi, '.3f')}; measured {said['measured']:.3f}; error {said['error']:+.3f}"
            + ("" if np.isnan(lo) else ", in the interval" if lo <= said["measured"] <= hi else
               ", outside the interval"),
            f"error in range {early.rmse:.4f} (rmse of {early.n} fitted), held out "
            f"{said['rmse_held_out']:.4f} (rmse of {C.size} predicted)"], said


def forecast(fit, predict, target):
    """--predict: the reward at a compute.  --target: the compute for a reward."""
    lines, said = [], {"predict": [], "target": None}
    for C in predict:
        if not C >= 0:
            raise BadInput(f"--predict takes compute >= 0, got {C:g}")
        mean, lo, hi = fit.predict(C)
        said["predict"].append(dict(C=C, mean=mean, lo=lo, hi=hi))
        lines.append(f"at compute {C:.3g} ({C / fit.C[-1]:.2g} times the data): {mean:.3f} "
                     f"{span(lo, hi, '.3f')}")
    if target is not None:
        if not 0 <= target <= 1:
            raise BadInput(f"--target takes a pass rate in [0, 1], got {target:g}")
        C, draws = fit.compute_for(target), compute_needed(fit.law, target, *fit.draws.T)
        lo, hi = interval(draws)
        said["target"] = dict(R=target, C=C, lo=lo, hi=hi, never=np.isinf(draws).mean())
        lines.append(
            f"to reach {target:g} takes compute {C:.3g} {span(lo, hi)}" if np.isfinite(C) else
            f"{target:g} is never reached: the ceiling is {fit.A:.3f} {span(*fit.ci['A'], '.3f')}")
    return lines, said


def amounts(curve, c_min):
    """The different amounts of compute (k,) that a fit of the whole curve is made of, ascending."""
    return np.unique(curve.C[(curve.C > 0) & (curve.C >= (c_min or 0))])


def rolling(curve, refit, c_min=None):
    """When could you have known?  Refit at up to 40 cuts (k,) as if the run had ended there.

    -> cuts; the ceiling (3, k) = value, lo, hi; the prediction (3, k) of the run's last
    evaluations; what they measured; the cut from which on the prediction stayed within 0.02 of
    that for good, or None.  A prediction that was right once and wrong later was luck.
    """
    C = amounts(curve, c_min)
    if C.size < FEW:
        raise BadInput(f"--rolling needs {FEW} evaluations, {curve.label} has {C.size}"
                       + (f" from --c-min {c_min:g} on" if c_min else ""))
    cuts = C[np.unique(np.linspace(FEW - 1, C.size - 1, 40).astype(int))]
    last, measured = curve.C[-LAST:], curve.R[-LAST:].mean()
    A, ahead = np.empty((2, 3, cuts.size))
    for i, cut in enumerate(cuts):
        fit = refit(curve.C, curve.R, c_max=cut)
        A[:, i] = fit.A, *fit.ci["A"]
        ahead[:, i] = fit.curve(last).mean(), *interval(fit.paths(last).mean(1))
    wrong = np.flatnonzero(np.abs(ahead[0] - measured) > SAME_A)
    first = wrong[-1] + 1 if wrong.size else 0
    return cuts, A, ahead, measured, cuts[first] if first < cuts.size else None


def advice(curve, refit, min_gain, c_min=None):
    """For a run that still runs -> (lines, has it left its band?, is little left to gain?).

    Left: the last three evaluations are on one side of the band predicted before them.  Little
    left: even the upper end of the interval of A - R(now) is below min_gain.
    """
    recent = 3                    # by chance all three leave on one side once in 4,000 times
    count = amounts(curve, c_min).size
    if count < FEW + recent:
        return [f"{count} evaluations to fit so far; advice needs {FEW + recent}"], False, False
    before, now = refit(curve.C, curve.R, c_max=curve.C[-recent - 1]), refit(curve.C, curve.R)
    C, R = curve.C[-recent:], curve.R[-recent:]
    _, lo, hi = before.predict(C, noise=True)
    side = "below" if np.all(R < lo) else "above" if np.all(R > hi) else ""
    most = interval(now.draws[:, 0] - now.paths(C[-1:])[:, 0])[1]
    lines = [f"compute {C[-1]:.3g}: reward {R[-1]:.3f}, ceiling {now.A:.3f} "
             f"{span(*now.ci['A'], '.3f')}, at most {most:.3f} still to gain"]
    if side:
        lines.append(f"the last {recent} evaluations lie {side} the band predicted before them: "
                     + ("look for a fault" if side == "below" else "the earlier fit was too low"))
    if most < min_gain:
        lines.append(f"less than {min_gain:g} is left to gain: more compute here buys little")
    return lines, bool(side), bool(most < min_gain)


# ---------------------------------------------------------------------------- 7. several runs
def difference(name, a, b):
    """a - b in parameter `name` ("A", "B"): its value, interval, and what the bootstrap says.

    The runs are independent, so replicate i of one may be set against replicate i of the other.
    What differs between two seeds of one recipe is not in a single run's replicates: the paper's
    0.02 is the better rule for A, and the bootstrap's "differ" means "these two runs".
    """
    size, column = min(len(a.draws), len(b.draws)), ("A", "B").index(name)
    lo, hi = interval(a.draws[:size, column] - b.draws[:size, column])
    verdict = "unknown" if np.isnan(lo) else "differ" if lo > 0 or hi < 0 else "same"
    return dict(d=getattr(a, name) - getattr(b, name), lo=lo, hi=hi, bootstrap=verdict)


def leaders(fits, C_lo, C_hi):
    """Which curve is highest, from where to where, and in what share of the replicates (mid-span).

    A recipe with a low C_mid often leads early and loses to a higher ceiling later: the answer to
    "which is better" is a budget.  Near 1 / number of runs the share says "nobody knows".
    """
    labels, C = list(fits), np.geomspace(C_lo, C_hi, 2000)
    best = np.argmax([fit.curve(C) for fit in fits.values()], axis=0)
    turns, edges = np.flatnonzero(np.diff(best)), [C_lo]
    for i in turns:
        a, b = fits[labels[best[i]]], fits[labels[best[i + 1]]]
        edges.append(brentq(lambda c: float(a.curve(c) - b.curve(c)), C[i], C[i + 1]))
    for i, lo, hi in zip([*turns, C.size - 1], edges, [*edges[1:], C_hi]):
        paths = [fit.paths(np.array([np.sqrt(lo * hi)]))[:, 0] for fit in fits.values()]
        size = min(map(len, paths))
        share = (np.argmax([p[:size] for p in paths], 0) == best[i]).mean() if size else np.nan
        yield dict(run=labels[best[i]], C_from=lo, C_to=hi, share=share)


def compare(curves, fits, refit):
    """Ceilings against the first run's, steepness at a shared ceiling, then who leads where.

    B means little without A, so it is compared only if all ceilings are the same by the paper's
    rule: then all runs are refitted at the mean A, as for the paper's leave-one-out table.
    -> lines, numbers, the fits to draw
    """
    (base, first), *others = fits.items()
    A = np.array([fit.A for fit in fits.values()])
    mean, spread = A.mean(), np.abs(A - A.mean()).max()
    lines = [f"ceilings: mean {mean:.3f}, farthest from it {spread:.3f} "
             "(three seeds of one recipe in the paper: 0.015)"]
    said = dict(A_mean=mean, A_spread=spread, A={}, B={})
    alike = np.ptp(A) <= SAME_A + 1e-9            # .590-.610, the paper's own case, must pass
    for label, fit in others:
        d = said["A"][label] = difference("A", fit, first)
        d["rule"] = "same" if abs(d["d"]) <= SAME_A else "differ"
        lines.append(f"  A({label}) - A({base}) = {d['d']:+.3f} {span(d['lo'], d['hi'], '+.3f')}: "
                     f"{d['rule']} by the paper's {SAME_A}, {d['bootstrap']} by the bootstrap")
    if alike:
        fits = {curve.label: refit(curve.C, curve.R, A_range=(mean, mean)) for curve in curves}
        lines.append(f"steepness at the shared ceiling {mean:.3f}:")
        for label, fit in fits.items():
            d = said["B"][label] = difference("B", fit, fits[base]) | dict(B=fit.B, ci=fit.ci["B"])
            lines.append(f"  B({label}) = {fit.B:.2f} {span(*fit.ci['B'], '.2f')}" + (
                f"; {d['d']:+.2f} {span(d['lo'], d['hi'], '+.2f')} against {base}: {d['bootstrap']}"
                if label != base else ""))
    else:
        lines.append(f"the ceilings span more than {SAME_A}: B is not compared")
    start, seen = max(fit.C[0] for fit in fits.values()), min(fit.C[-1] for fit in fits.values())
    said["leaders"] = list(leaders(fits, start, 10 * seen)) if start < 10 * seen else []
    if not said["leaders"]:
        lines.append(f"  who is ahead is not told: one run ends at {seen:.3g}, where another has "
                     f"not begun ({start:.3g})")
    for d in said["leaders"]:
        lines.append(f"  ahead from {d['C_from']:.3g} to {d['C_to']:.3g}: {d['run']} "
                     f"({d['share']:.0%} of replicates, mid-span)"
                     + (" beyond the data" if d["C_from"] >= seen else ""))
    return lines, said, fits


# -------------------------------------------------------------------------------- 8. figures
# `Figure` objects, never pyplot: no window, no global state, nothing to close.  What color tells
# is also told by marker, dash or fill, so that a print in grey says the same.
BLUE, ORANGE, GREY = "#15406f", "#d9822b", "#777777"


def _figure(width, height, rows, columns, **options):
    from matplotlib.figure import Figure      # here: --help need not wait half a second for it
    fig = Figure(figsize=(width, height), layout="constrained")
    axes = fig.subplots(rows, columns, squeeze=False, **options)
    for ax in axes.flat:
        ax.grid(alpha=0.25, linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
    return fig, axes


def plot_run(curve, fit, early=None):
    """Linear and log compute above, residuals below.  With `early`, band, dashes and residuals are
    its prediction, and the points that it had not seen are hollow."""
    fig, axes = _figure(10, 5.6, 2, 2, sharex="col", height_ratios=[3, 1])
    shown, end = early or fit, curve.C[-1]
    trained = curve.C > 0
    seen = np.isin(curve.C, shown.C) & trained
    groups = [(seen, "full", "evaluation, fitted"),
              (trained & ~seen, "none", "evaluation, left out")]
    for log, (top, low) in enumerate(axes.T):
        C = np.geomspace(curve.C[trained][0] * 0.7, 1.5 * end, 500) if log else \
            np.linspace(end / 2000, 1.05 * end, 500)
        _, lo, hi = shown.predict(C)
        top.fill_between(C, lo, hi, color=ORANGE if early else BLUE, alpha=0.22, linewidth=0,
                         label=f"{LEVEL:.0%} interval")
        if early:
            top.plot(C, early.curve(C), "--", color=ORANGE, linewidth=2,
                     label="fit of the first part")
            for words, side in (("fitted ", "right"), (" predicted", "left")):
                top.annotate(words, (early.C[-1], 0.02), xycoords=("data", "axes fraction"),
                             ha=side, color=GREY, fontsize=9)
            for ax in (top, low):
                ax.axvline(early.C[-1], color=GREY, linestyle=":", linewidth=1.2)
        top.plot(C, fit.curve(C), color=BLUE, linewidth=1.3, label="fit of all" if early else "fit")
        top.axhline(fit.R0, color=GREY, linewidth=0.8, linestyle=(0, (1, 3)))
        top.axhline(shown.A, color=GREY, linewidth=0.8, linestyle=(0, (6, 4)),
                    label=f"ceiling A = {shown.A:.3f}")
        low.axhline(0, color=GREY, linewidth=0.8)
        for group, fill, name in groups:
            if group.any():
                dots = dict(marker="o", linestyle="none", color=BLUE, markersize=4, fillstyle=fill)
                top.plot(curve.C[group], curve.R[group], label=name, **dots)
                low.plot(curve.C[group], curve.R[group] - shown.curve(curve.C[group]), **dots)
        if log:
            top.set_xscale("log")
        else:
            top.plot(0, fit.R0, "D", color=GREY, markersize=5, label=f"R0 ({fit.R0_from})")
            # A rising curve leaves this corner empty.
            top.legend(loc="lower right", bbox_to_anchor=(1, 0.08), fontsize=8.5, frameon=False)
        low.set_xlabel(curve.x + (", log scale" if log else ""))
        # Heights from the data and the ceiling: the power law dives to -inf at small compute.
        floor, roof = min(curve.R.min(), fit.R0), max(curve.R.max(), shown.A)
        height = max(roof - floor, 0.02)
        top.set_ylim(floor - 0.1 * height, roof + 0.08 * height)
    axes[0, 0].set_ylabel(curve.y)
    axes[1, 0].set_ylabel("residual")
    fig.suptitle("{}{}: A {}, B {}, C_mid {}".format(
        curve.label, ", first part" if early else "", *numbers(shown)), fontsize=10.5)
    return fig


def plot_compare(curves, fits):
    """Left: the curves.  Right: the paper's leave-one-out plot, on log axes,

        F(R) = C_mid^B / ((A - R0) / (R - R0) - 1) = C^B        a line of slope B

    with C in units of the first run's C_mid (ours), so that all lines cross at 1 and their slopes
    can be compared by eye.  Points outside R0 < R < A have no F: they stand hollow on their line.
    """
    from matplotlib import colormaps
    fig, axes = _figure(11, 4.4, 1, 2)
    left, right = axes[0]
    unit, ceilings = fits[curves[0].label].C_mid, [fits[curve.label].A for curve in curves]
    shared = len(curves) > 1 and np.ptp(ceilings) == 0        # by `compare`
    for i, curve in enumerate(curves):
        fit, trained = fits[curve.label], curve.C > 0
        # cividis rises evenly in lightness, so the order of runs survives a print in grey.
        color = colormaps["cividis"](0.75 * i / max(len(curves) - 1, 1))
        dash = ("-", "--", "-.", ":")[i % 4]
        dots = dict(color=color, marker="osD^vPX*"[i % 8], markersize=4, linestyle="none")
        C = np.geomspace(curve.C[trained][0], 2 * curve.C[-1], 300)
        _, lo, hi = fit.predict(C)
        left.fill_between(C, lo, hi, color=color, alpha=0.18, linewidth=0)
        left.plot(C, fit.curve(C), dash, color=color)
        left.plot(curve.C[trained], curve.R[trained], **dots,
                  label=curve.label if shared else f"{curve.label}: A {fit.A:.3f}")
        right.plot(C / unit, (C / unit) ** fit.B, dash, color=color)
        line = (curve.R > fit.R0) & (curve.R < fit.A) & trained
        F = (fit.C_mid / unit) ** fit.B / ((fit.A - fit.R0) / (curve.R[line] - fit.R0) - 1)
        right.plot(curve.C[line] / unit, F, **dots, label=f"{curve.label}: B {fit.B:.2f}")
        off = curve.C[trained & ~line] / unit
        right.plot(off, off ** fit.B, **dots, fillstyle="none")
    left.set(xscale="log", xlabel=f"{curves[0].x}, log scale",
             ylabel=curves[0].y if len({curve.y for curve in curves}) == 1 else "reward")
    right.set(xscale="log", yscale="log", xlabel=f"{curves[0].x} / {unit:.3g}, log scale",
              ylabel="F(R), log scale; its slope is B")
    # Ceilings may lie anywhere, so the left legend stands above; a rising line leaves its corner.
    title = f"all refitted at the shared ceiling A = {ceilings[0]:.3f}" if shared else None
    left.legend(loc="lower left", bbox_to_anchor=(0, 1), fontsize=8.5, frameon=False, title=title,
                title_fontsize=10, alignment="left")
    right.legend(loc="upper left", fontsize=8.5, frameon=False)
    return fig


def plot_rolling(curve, rolled):
    """What the fit would have said had the run ended at each cut."""
    cuts, A, ahead, measured, known = rolled
    fig, axes = _figure(7, 5.6, 2, 1, sharex=True)
    names = (f"mean of the last {LAST}", "ceiling A")
    for ax, (value, lo, hi), name in zip(axes[:, 0], (ahead, A), names):
        ax.fill_between(cuts, lo, hi, color=ORANGE, alpha=0.22, linewidth=0,
                        label=f"its {LEVEL:.0%} interval")
        ax.plot(cuts, value, "s--", color=ORANGE, markersize=3.5, label="predicted at the cut")
        ax.plot(curve.C, curve.R, ".", color=BLUE, label="evaluations")
        ax.axhspan(measured - SAME_A, measured + SAME_A, facecolor="none", edgecolor=GREY,
                   linestyle="--", label=f"outcome ± {SAME_A}")
        if known is not None:
            ax.axvline(known, color=GREY, linestyle=":", label="stays within it from here")
        # Heights from the predictions: the first evaluations lie far below and would flatten them.
        ax.set_ylim(min(value.min() - SAME_A, measured - 3 * SAME_A),
                    max(value.max() + SAME_A, measured + 3 * SAME_A))
        ax.set_ylabel(name)
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3,
               fontsize=8.5, frameon=False)
    axes[1, 0].set_xlabel(f"{curve.x} at which the run is cut")
    return fig


# -------------------------------------------------------------------------- 9. command line
TEACH = """
what it reads   A run folder of ours; JSONL of verl and prime-rl; trainer_state.json of TRL; any
                CSV with a header; CSV exports of Weights & Biases; TensorBoard event files.
                NAME=A,B,C pools the seeds A, B, C of one recipe.  Several runs are compared.
which columns   --y is a pass rate in [0, 1] on held-out problems, --x the compute.  Steps will do
                if every step costs the same: --x step --x-scale 0.4 --x-label GPU-hours
what to trust   Read the warnings first.  A ceiling fitted before the bend is a guess, and R0 moves
                everything: evaluate at step 0.  --until is the test that counts: does the first
                half of the run predict the second?

examples
  fit.py runs/demo --until 0.5                          predict the second half from the first
  fit.py runs/demo --predict 1e15 --target 0.9          what compute buys; what a reward costs
  fit.py ours=runs/s1,runs/s2 grpo=runs/g1,runs/g2      two recipes, their seeds pooled
  fit.py trainer_state.json --y eval_reward --reward-range -1 1
  fit.py runs/mix --y eval/toy/mean@4 --y eval/math/mean@4     two tasks of a run, a curve each
  fit.py runs/demo --watch 60 --min-gain 0.01           ends when more compute buys little

exit codes      0 well; 2 input that cannot be used; 3 there are warnings, with --strict
"""


def arguments(argv):
    p = argparse.ArgumentParser(prog="fit.py", description=__doc__.split("\n\n")[0], epilog=TEACH,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    add, pair = p.add_argument, dict(type=float, nargs=2, metavar=("LO", "HI"))
    add("runs", nargs="+", metavar="RUN", help="a log, a run folder, or NAME=LOG,LOG,...")
    add("--x", help="column of compute")
    add("--y", action="append", help="column of the pass rate; twice for two tasks of a run")
    add("--x-scale", type=float, default=1.0, metavar="K", help="multiply --x: GPU-hours a step")
    add("--x-label", help="name of the compute axis")
    add("--reward-range", **pair, default=(0.0, 1.0), help="map these rewards onto [0, 1]")
    add("--law", choices=LAWS, default="sigmoid", help="logistic is not the paper's")
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
    add("--rolling", action="store_true", help="when could you have known? a second picture")
    add("--watch", type=float, metavar="SECONDS", help="follow a running log")
    add("--min-gain", type=float, default=0.01, metavar="R", help="--watch ends below it (.01)")
    add("--bootstrap", type=int, default=1000, metavar="S", help="replicates (1000)")
    add("--seed", type=int, default=0)
    add("--strict", action="store_true", help="exit code 3 if there is any warning")
    add("--json", metavar="FILE", help="the numbers, for programs")
    add("--out", metavar="FILE", help="picture (.png, .pdf, .svg); `none` for none")
    return p.parse_args(argv)


def refitter(args):
    """fit_curve with the settings of the command line."""
    options = {name: getattr(args, name) for name in (
        "law", "method", "R0", "c_min", "bootstrap", "seed", "A_range", "B_range", "A_step")}
    options["C_mid_range"] = args.C_mid_range
    if args.R0 not in (None, "fit"):
        try:
            options["R0"] = float(args.R0)
        except ValueError:
            raise BadInput(f"--R0 is a number or `fit`, got {args.R0}") from None
    if args.C_mid_nodes:
        if not args.C_mid_range:
            raise BadInput("--C-mid-nodes needs --C-mid-range LO HI")
        options["C_mid_nodes"] = np.linspace(*args.C_mid_range, args.C_mid_nodes)
    if args.paper_grid:
        options |= PAPER_GRID
    return lambda C, R, **more: fit_curve(C, R, **(options | more))


def plain(value):
    """For JSON: numpy numbers as Python's, and nan or inf, which JSON does not have, as null."""
    if isinstance(value, dict):
        return {name: plain(v) for name, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    value = value.item() if isinstance(value, (np.generic, np.ndarray)) else value
    return None if isinstance(value, float) and not np.isfinite(value) else value


def record_of(fit):
    """A fit as numbers, intervals and warnings: without its data and replicates."""
    arrays = ("C", "R", "draws", "noise")
    return {name: value for name, value in vars(fit).items() if name not in arrays}


def report_run(args, refit, curve):
    """Fit one run, say what it is -> ({label: Fit}, lines, numbers, warnings, {path: figure})."""
    label, last = curve.label, curve.R[-LAST:]
    fit, early = refit(curve.C, curve.R), None
    print(f"{label}: {curve.R.size} evaluations of {curve.y} against {curve.x}; R0 {fit.R0:.3f} "
          f"({fit.R0_from}); last evaluation {last.mean():.3f} (mean of the last {last.size})")
    print(*(f"  note: {note}\n" for note in curve.notes), sep="", end="")
    fits, said = {label: fit}, dict(x=curve.x, y=curve.y, last=last.mean(), fit=record_of(fit))
    doubted = [*curve.warnings, *fit.warnings, *pool_doubts(fit, curve.seeds)]
    lines, said["forecast"] = forecast(fit, args.predict, args.target)
    if args.until is not None:
        cut = args.until * curve.C[-1] if args.until <= 1 else args.until
        if not cut >= curve.C[curve.C > 0][0]:
            raise BadInput(f"--until {args.until:g} leaves nothing to fit: up to 1 it is a share "
                           f"of the run, above 1 it is {curve.x} (here to {curve.C[-1]:.3g})")
        early = fits[f"{label}, up to {cut:.3g}"] = refit(curve.C, curve.R, c_max=cut)
        more, said["held_out"] = held_out(curve, early)
        lines, said["early"] = more + lines, record_of(early)
        doubted += [f"up to {cut:.3g}: {warning}" for warning in early.warnings]
    out = Path(args.out) if args.out else curve.picture
    alone = len(args.runs) * len(args.y or [None]) == 1
    figures = {out: plot_run(curve, fit, early)} if alone else {}
    if args.rolling:      # 40 fits: 200 replicates each are enough for a band
        few = min(200, args.bootstrap)
        rolled = rolling(curve, lambda C, R, c_max: refit(C, R, c_max=c_max, bootstrap=few),
                         args.c_min)
        name = f"{out.stem}_rolling" + ("" if alone else f"_{label.replace('/', '-')}")
        figures[out.with_stem(name)] = plot_rolling(curve, rolled)
        said["known_from"] = known = rolled[-1]
        when = "never settled" if known is None else \
            f"settled at {known:.3g} ({known / curve.C[-1]:.0%} of the compute)"
        lines.append(f"the prediction {when}: within {SAME_A} of the outcome and staying there")
    who = "" if alone else f"{label}: "
    return fits, [who + line for line in lines], said, [f"{label}: {w}" for w in doubted], figures


def report(args, refit, read):
    """Everything about one run, or about several and their comparison -> exit code."""
    tasks = args.y or [None]
    curves = [read(run, y) for run in args.runs for y in tasks]
    if len(tasks) > 1:                                        # one label a run will not do
        curves = [replace(curve, label=f"{curve.label} {curve.y}" if len(args.runs) > 1 else
                          curve.y) for curve in curves]
    elif len({curve.label for curve in curves}) < len(curves):   # folders of one name: by path
        curves = [replace(curve, label=run) for curve, run in zip(curves, args.runs)]
    notes = _one_column("--x", [(curve.label, curve.x_column) for curve in curves],
                        args.x or args.x_label)
    for i, y in enumerate(tasks):
        notes += _one_column("--y", [(curve.label, curve.y) for curve in curves[i::len(tasks)]], y)
    print(*(f"note: {note}\n" for note in notes), sep="", end="")
    table, lines, figures, record = {}, [], {}, dict(runs={}, warnings=[])
    for curve in curves:
        fits, more, record["runs"][curve.label], doubted, drawn = report_run(args, refit, curve)
        table, figures, lines = table | fits, figures | drawn, lines + more
        record["warnings"] += doubted
    if len(curves) > 1:
        own = {curve.label: table[curve.label] for curve in curves}
        more, record["comparison"], drawn = compare(curves, own, refit)
        figures[Path(args.out or "compare.png")] = plot_compare(curves, drawn)
        lines += more
    print(*fit_table(table), *lines, *(f"warning: {w}" for w in record["warnings"]), sep="\n")
    if args.json:
        Path(args.json).write_text(json.dumps(plain(record), indent=1) + "\n")
    for path, figure in figures.items() if args.out != "none" else ():
        if path.suffix not in (".png", ".pdf", ".svg"):
            raise BadInput(f"--out {path} should end in .png, .pdf or .svg")
        figure.savefig(path, dpi=150)
        print(f"picture: {path}")
    return 3 if args.strict and record["warnings"] else 0


def watch(args, refit, read):
    """Print advice at each new evaluation, until little is left to gain or the run is over; with
    --strict also until it leaves its predicted band (exit code 3)."""
    if len(args.runs) > 1 or len(args.y or []) > 1:
        raise BadInput(f"--watch follows one curve, got {len(args.runs)} runs and "
                       f"{len(args.y or [None])} columns")
    if not args.watch > 0:
        raise BadInput(f"--watch takes the seconds between two looks, got {args.watch:g}")
    seen, waiting = 0, False
    while True:
        over = (Path(args.runs[0]) / "model").is_dir()      # a run of this project ends with it
        try:
            curve, why = read(args.runs[0], *(args.y or [None])), "no new evaluation"
        except NotYet as error:
            if over:
                raise
            curve, why = None, f"no evaluation so far ({error})"
        if curve and curve.C.size != seen:
            seen = curve.C.size
            lines, left, done = advice(curve, refit, args.min_gain, args.c_min)
            print(*lines, sep="\n", flush=True)
            if done or (left and args.strict):
                return 3 if left and args.strict else 0
            waiting = False
        elif over:
            print("the run is over, its final model is written: nothing more to watch")
            return 0
        elif not waiting:         # said once: the run may be slow, or another trainer's and over
            print(f"{why}; still watching, Ctrl-C ends it", flush=True)
            waiting = True
        time.sleep(args.watch)


def main(argv=None):
    args = arguments(argv)

    def read(spec, y):
        return load(spec, args.x, y, args.x_scale, args.x_label, args.reward_range)
    try:
        return (report if args.watch is None else watch)(args, refitter(args), read)
    except (BadInput, OSError) as error:
        print(f"fit.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
