"""fit.py: the curve of an RL run, and what more compute would buy.

    python fit.py runs/demo                       # law, intervals, warnings, picture
    python fit.py runs/demo --until 0.5           # fit the first half, predict the second
    python fit.py runs/a runs/b runs/c            # which recipe has the higher ceiling

Stands alone (numpy, scipy, matplotlib): any log with a column of compute and a column of pass rates
will do.  The law is Eq. 1 of ScaleRL (arXiv 2510.13786), the procedure its appendix A.5:

    R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B)

    A      the ceiling: the pass rate that no amount of compute exceeds
    B      the steepness: how quickly the ceiling is approached (the paper's "compute efficiency")
    C_mid  the compute at which half of the gain A - R0 has been bought
    R0     the pass rate before training

Where this differs from the paper, or the paper is silent ("ours"):
  1. R0 is the measured step-0 evaluation, held fixed in the fit.  The paper does not say how R0
     enters, and nothing moves the answer more: on a curve with A .61 and R0 .35, fitting with
     R0 = 0 gives A .665, B .89.  So R0 is printed with every fit, and its noise enters the intervals.
  2. The default method, `free`, is bounded least squares in A, log B, log C_mid from many starts.
     `grid` is the paper's: nodes of A and C_mid, B by least squares at each.  Both agree to a node.
  3. The printed C_mid nodes, linspace(100, 40000, 100), cannot have made the paper's own tables
     (the step is 403; the published 2542, 2818, 2936, 3054 are nodes of linspace(100, 4000, 100)).
     The nodes are a setting here, from the data by default; `--paper-grid` is the printed text.
  4. Intervals: residual bootstrap, 90%.  The paper gives +-0.015 on A from three seeds instead.
  5. The power law is A.4's.  The logistic law in linear compute is from a popular article about
     the paper, not from the paper; it is here so that the two can be compared.
Three layers: laws and fits (1-4), logs (5), what is said and drawn (6-8).  Axes: S problems solved
side by side (starts, bootstrap replicates), n evaluations, m nodes of a table, 4 parameters.
"""
import argparse
import csv
import fnmatch
import json
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit

# ---------------------------------------------------------------------------- 0. knobs, all ours
LEVEL = 0.90              # of every interval
SAME_A = 0.02             # the paper's rule: ceilings closer than this are the same (three seeds
                          # moved A by up to 0.015)
FEW = 6                   # fewer evaluations than this do not hold three parameters
LAST = 5                  # "the last evaluation" means the mean of the last 5: one is too noisy
A_STEP = 0.005            # the paper's A nodes
B_RANGE = (0.1, 20.0)     # published B's lie in 1.09-4.55
C_MID_REACH = (0.01, 10)  # C_mid from 1/100 of the first to 10 times the last compute in the data
PAPER_GRID = dict(method="grid", A_range=(0.45, 0.80), A_step=0.005,
                  C_mid_nodes=np.linspace(100, 40_000, 100))     # A.5, to the letter
# Tried in this order when --x or --y is not given; the choice is always printed.
X_COLUMNS = ("compute/flops", "compute/gpu_hours", "compute/core_hours", "compute/tokens",
             "gpu_hours", "num_tokens", "step", "_step", "Step", "training/global_step")
Y_COLUMNS = ("eval/*/mean@*", "eval/*/avg@*", "val-core/*/mean@*", "eval/*pass_rate*",
             "eval_*pass_rate*", "eval/*reward*", "eval_reward", "eval_rewards/*/mean", "*pass_rate*")
STEP_COLUMNS = ("step", "_step", "Step", "global_step", "training/global_step")


class BadInput(ValueError):
    """Input that cannot be used; its text is one sentence for the person who gave it."""


# -------------------------------------------------------------------------------- 1. laws
# Every law here is R = R0 + (A - R0) g(u): g is the share of the gain that compute has bought.
#   sigmoid    g = 1 / (1 + e^-u)    u = B (log C - log C_mid)    Eq. 1, in the form that is stable
#   power      g = 1 - e^-u          u = B (log C - log C_mid)    A.4: R = A - D / C^B with
#                                                                 D = (A - R0) C_mid^B; R0 at C_mid
#   logistic   g = 1 / (1 + e^-u)    u = B (C / C_mid - 1)        not the paper's; k = B / C_mid
# One form means one table, one optimizer and one inverse for all three; and given B and C_mid the
# reward is linear in A, which section 2 lives on.
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
        tail = np.exp(-np.maximum(u, -60))      # below C_mid the law dives; e^60 is deep enough
        return 1 - tail, tail * u, tail * du_dmid
    g = expit(u)
    return g, g * (1 - g) * u, g * (1 - g) * du_dmid


def sigmoid(C, A, B, C_mid, R0):
    """Eq. 1: the pass rate after compute C >= 0 (any shape).  R(0) = R0, R(C_mid) halfway to A."""
    return R0 + (A - R0) * _share("sigmoid", np.asarray(C, float), np.log(B), np.log(C_mid))[0]


def compute_needed(law, R, A, B, C_mid, R0):
    """The C at which the law reaches R: 0 if it starts there, inf if its ceiling is not above R."""
    g = (R - R0) / np.where(A > R0, A - R0, np.nan)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        u = -np.log1p(-g) if law == "power" else logit(g)
        C = C_mid * (1 + u / B) if law == "logistic" else C_mid * np.exp(u / B)
    return np.where(R <= R0, 0.0, np.where(R >= A, np.inf, np.maximum(C, 0)))


# ---------------------------------------------------------------- 2. least squares, side by side
# scipy solves one problem at a time and spends 1 ms on each call's Python.  A fit with its
# bootstrap is 1,000 problems of three parameters, so they are solved together as arrays:
# first a table of (B, C_mid) nodes finds the right valley for each problem (the sum of squares has
# several; curve_fit from its default start ends with a median error in A of 0.125, against 0.0035),
# then Levenberg-Marquardt walks to its floor.
# `free` walks in A, log B, log C_mid.  `grid` pins A and C_mid to nodes and walks in log B alone,
# which is the paper's procedure without visiting the nodes that cannot win.

@dataclass(frozen=True)
class Space:
    """Where the optimizer may look."""
    law: str
    A_range: tuple                # (lo, hi); equal: held
    A_step: float                 # distance of the A nodes, 0: continuous (`free`)
    B_nodes: np.ndarray           # start values, ascending; ends are the bounds
    C_nodes: np.ndarray           # start values (`free`) or the only values (`grid`)
    fit_R0: bool


def _table(space, C, Y, R0, keep):
    """The best `keep` C_mid nodes of each problem -> starts (S, keep, 4), from closed forms only.

    With a = A - R0 the sum of squares at a node is a^2 gg - 2 a yg + const, a parabola in a: its
    least value on the A nodes is at the node nearest its vertex yg / gg.  So A needs no search.
    """
    log_B, log_C = np.log(space.B_nodes), np.log(space.C_nodes)
    G = _share(space.law, C, log_B[None, :, None], log_C[:, None, None])[0]      # (c, b, n)
    G = G.reshape(-1, C.size)                                                    # (m, n)
    gg = np.maximum((G * G).sum(1), 1e-30)
    starts = []
    for rows in range(0, len(Y), 64):                            # 64 x 20,000 nodes: 10 MB a table
        r0 = R0[rows:rows + 64, None]
        yg = (Y[rows:rows + 64] - r0) @ G.T                                      # (s, m)
        lo, hi = space.A_range
        A = yg / gg + r0
        if space.A_step:
            A = lo + space.A_step * np.round((A - lo) / space.A_step)
        A = np.clip(A, lo, hi)
        a = A - r0
        sse = (a * a * gg - 2 * a * yg).reshape(len(a), len(log_C), len(log_B))
        best_B = sse.argmin(2)                                                   # (s, c)
        best_C = np.argsort(sse.min(2), axis=1)[:, :keep]                        # (s, keep)
        best_B = np.take_along_axis(best_B, best_C, 1)
        A = np.take_along_axis(A, best_C * len(log_B) + best_B, 1)
        starts.append(np.stack([A, log_B[best_B], log_C[best_C], np.broadcast_to(r0, A.shape)], -1))
    return np.concatenate(starts)


def _residual_and_slopes(law, C, Y, theta):
    """theta (S, 4) = A, log B, log C_mid, R0 -> residual (S, n), slopes of the curve (S, 4, n)."""
    A, log_B, log_C_mid, R0 = theta.T[:, :, None]                                # (S, 1) each
    g, g_B, g_C = _share(law, C, log_B, log_C_mid)
    return Y - R0 - (A - R0) * g, np.stack([g, (A - R0) * g_B, (A - R0) * g_C, 1 - g], 1)


def _walk(law, C, Y, theta, lo, hi, steps=100):
    """Bounded Levenberg-Marquardt on S problems at once; theta, lo, hi (S, 4) -> theta, sse (S,).

    A parameter that stands on a bound and is pushed against it is pinned for the step: that is the
    whole treatment of bounds, and lo == hi holds a parameter for good.  A step that makes the sum
    of squares worse is not taken, and its problem gets ten times the damping.
    """
    theta = np.clip(theta, lo, hi)
    residual, slopes = _residual_and_slopes(law, C, Y, theta)
    sse, damping = (residual ** 2).sum(1), np.full(len(Y), 1e-3)
    todo = np.arange(len(Y))                                     # problems not at their floor yet
    for _ in range(steps):
        t, r, J = theta[todo], residual[todo], slopes[todo]
        pull = (J @ r[:, :, None])[:, :, 0]                                      # (S, 4) downhill
        pinned = ((t <= lo[todo]) & (pull <= 0)) | ((t >= hi[todo]) & (pull >= 0))
        J = np.where(pinned[:, :, None], 0, J)
        H = J @ J.transpose(0, 2, 1)                                             # (S, 4, 4)
        i = np.arange(4)
        H[:, i, i] = H[:, i, i] * (1 + damping[todo, None]) + np.where(pinned, 1, 1e-14)
        step = np.linalg.solve(H, np.where(pinned, 0, pull)[:, :, None])[:, :, 0]
        trial = np.clip(t + np.clip(step, -2, 2), lo[todo], hi[todo])            # 2 in log: a factor 7
        r, J = _residual_and_slopes(law, C, Y[todo], trial)
        trial_sse = (r ** 2).sum(1)
        better = trial_sse <= sse[todo]
        settled = better & (sse[todo] - trial_sse <= 1e-12 * sse[todo] + 1e-30)
        took = todo[better]
        theta[took], residual[took], slopes[took] = trial[better], r[better], J[better]
        sse[took] = trial_sse[better]
        damping[todo] = np.where(better, damping[todo] / 10, damping[todo] * 10)
        todo = todo[~settled & (damping[todo] < 1e10)]
        if not todo.size:
            break
    return theta, sse


def _solve(space, C, Y, R0, keep):
    """The best fit of each row of Y (S, n) with its R0 (S,) -> theta (S, 4)."""
    # With R0 fitted too, the table needs a guess of it: the lowest reward, and half of that.
    guesses = (Y.min(1), Y.min(1) / 2) if space.fit_R0 else (R0,)
    theta = np.concatenate([_table(space, C, Y, guess, keep) for guess in guesses], 1)
    A_lo, A_hi = space.A_range
    if space.A_step:       # the neighbors too: B was only on its nodes when A was rounded
        theta = np.concatenate([theta + [d * space.A_step, 0, 0, 0] for d in (-1, 0, 1)], 1)
        theta[..., 0] = np.clip(theta[..., 0], A_lo, A_hi)
    S, k, _ = theta.shape
    theta = theta.reshape(S * k, 4)
    lo, hi = theta.copy(), theta.copy()                                          # all held, but:
    lo[:, 1], hi[:, 1] = np.log(space.B_nodes[[0, -1]])
    if not space.A_step:
        lo[:, 0], hi[:, 0] = A_lo, A_hi
        if A_lo < A_hi:                                          # a ceiling below R0 is no ceiling
            lo[:, 0] = np.clip(theta[:, 3], A_lo, A_hi)
        lo[:, 2], hi[:, 2] = np.log(space.C_nodes[[0, -1]])
    if space.fit_R0:       # floor below the mean reward, ceiling above it: a falling law is no law
        mean = np.repeat(Y.mean(1), k)
        lo[:, 3], hi[:, 3] = 0, mean
        lo[:, 0] = np.clip(mean, A_lo, A_hi)
    theta, sse = _walk(space.law, C, np.repeat(Y, k, 0), theta, lo, hi)
    return theta.reshape(S, k, 4)[np.arange(S), sse.reshape(S, k).argmin(1)]


# -------------------------------------------------------------------------------- 3. the fit
@dataclass(frozen=True)
class Fit:
    """One fitted curve with its uncertainty.  `draws` (S, 4) holds A, B, C_mid, R0 of the bootstrap
    replicates; `ci` their 90% intervals; `warnings` what stands against believing it."""
    A: float
    B: float
    C_mid: float
    R0: float
    R0_from: str                  # "step 0" | "given" | "fitted"
    law: str
    method: str
    n: int
    rmse: float                   # of the fitted points: sqrt(mean(residual^2))
    C: np.ndarray                 # (n,) what was fitted, ascending
    R: np.ndarray
    draws: np.ndarray = field(repr=False)
    noise: np.ndarray = field(repr=False)        # (n,) residuals, widened for the parameters used
    ci: dict = field(default_factory=dict)
    warnings: tuple = ()

    def curve(self, C, draws=None):
        """The law at C (n,) -> (n,); with `draws` (S, 4) -> (S, n)."""
        A, B, C_mid, R0 = (self.A, self.B, self.C_mid, self.R0) if draws is None else draws.T[:, :, None]
        return R0 + (A - R0) * _share(self.law, np.asarray(C, float), np.log(B), np.log(C_mid))[0]

    def predict(self, C, *, noise=False):
        """(mean, lo, hi) at C, each of C's shape.  lo, hi hold the curve with 90%; with `noise=True`
        a single evaluation at C, which scatters about the curve.  nan without a bootstrap."""
        C = np.asarray(C, float)
        paths = self.paths(C.reshape(-1), noise)
        lo, hi = np.percentile(paths, [50 * (1 - LEVEL), 50 * (1 + LEVEL)], axis=0) if len(paths) \
            else np.full((2, C.size), np.nan)
        return self.curve(C), lo.reshape(C.shape), hi.reshape(C.shape)

    def paths(self, C, noise=False):
        """The curve of every replicate at C (n,) -> (S, n)."""
        paths = self.curve(C, self.draws)
        if noise:
            paths = paths + np.random.default_rng(0).choice(self.noise, paths.shape)
        return paths

    def compute_for(self, R):
        """The compute at which the curve reaches R; inf if the ceiling is not above R."""
        return float(compute_needed(self.law, R, self.A, self.B, self.C_mid, self.R0))


def fit_curve(C, R, R0=None, *, method="free", law="sigmoid", c_min=None, c_max=None, bootstrap=1000,
              seed=0, A_range=None, B_range=B_RANGE, C_mid_range=None, A_step=A_STEP,
              C_mid_nodes=None) -> Fit:
    """Fit pass rates R (n,) against compute C (n,).

    R0          the pass rate before training: a number (held), "fit", or None: the evaluation at
                C = 0 (the mean of several), held; fitted if there is none
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
    if R0 is None:
        R0 = float(start.mean()) if start.size else "fit"
        R0_from = "step 0" if start.size else "fitted"
    else:
        R0_from = "fitted" if R0 == "fit" else "given"
    if R0 == "fit" and law == "power":        # A - D / C^B has no floor: R0 only names its C_mid
        R0, R0_from = 0.0, "given"
    fit_R0 = R0 == "fit"
    if fit_R0 and method == "grid":
        raise BadInput("the grid method holds R0: give the log a step-0 evaluation, or pass R0")
    if not fit_R0 and not 0 <= R0 <= 1:
        raise BadInput(f"R0 is a pass rate in [0, 1], got {R0}")
    # At C = 0 the law is R0 whatever A, B and C_mid are: such points say nothing more once R0 is held.
    use = (C >= (c_min or 0)) & (C <= (np.inf if c_max is None else c_max)) & ((C > 0) | fit_R0)
    C, R = C[use], R[use]
    free = 3 + fit_R0
    if np.unique(C).size < 3:
        raise BadInput(f"{np.unique(C).size} different amounts of compute are left to fit "
                       f"(c_min {c_min}, c_max {c_max}; step 0 only gives R0); it takes 3, better 20")
    space = _space(C[C > 0], R0, law, method, fit_R0, A_range, B_range, C_mid_range, A_step, C_mid_nodes)
    R0_row = np.array([0.0 if fit_R0 else R0])
    theta = _solve(space, C, R[None], R0_row, keep=32 if method == "grid" else 8)
    fitted = R[None] - _residual_and_slopes(law, C, R[None], theta)[0]           # (1, n)
    # Residuals are smaller than the noise they came from by sqrt((n - p) / n): p parameters were
    # bent towards them.  They are recentered and widened before they are drawn again.
    noise = (R - fitted[0] - (R - fitted[0]).mean()) * np.sqrt(R.size / max(R.size - free, 1))
    rng = np.random.default_rng(seed)
    Y = fitted + rng.choice(noise, (bootstrap, R.size))                          # (S, n)
    R0_rows = np.repeat(R0_row, bootstrap)
    if R0_from == "step 0":                   # R0 was measured with the same noise, so it moves too
        R0_rows = R0_rows + rng.choice(noise, (start.size, bootstrap)).mean(0)
        R0_rows = np.clip(R0_rows, 0, 1)
    draws = _solve(space, C, Y, R0_rows, keep=2) if bootstrap else np.empty((0, 4))
    draws, theta = (np.column_stack([t[:, 0], np.exp(t[:, 1]), np.exp(t[:, 2]), t[:, 3]])
                    for t in (draws, theta))
    A, B, C_mid, R0 = map(float, theta[0])
    ends = np.percentile(draws, [50 * (1 - LEVEL), 50 * (1 + LEVEL)], axis=0) if bootstrap \
        else np.full((2, 4), np.nan)
    fit = Fit(A, B, C_mid, R0, R0_from, law, method, R.size,
              float(np.sqrt(((R - fitted) ** 2).mean())), C, R, draws, noise,
              {name: (float(lo), float(hi)) for name, lo, hi in zip(("A", "B", "C_mid", "R0"), *ends)})
    object.__setattr__(fit, "warnings", tuple(doubts(fit, space)))
    return fit


def _checked(C, R):
    """Arrays of floats in order of compute, or a sentence."""
    C, R = np.asarray(C, float).reshape(-1), np.asarray(R, float).reshape(-1)
    if C.size != R.size:
        raise BadInput(f"compute has {C.size} values and reward {R.size}: they must pair up")
    for name, values, top in (("compute", C, np.inf), ("reward", R, 1 + 1e-9)):
        wrong = ~np.isfinite(values) | (values < 0) | (values > top)
        if wrong.any():
            hint = "; --reward-range LO HI maps another scale onto it" if name == "reward" else ""
            raise BadInput(f"{name} {values[wrong][0]:g} (evaluation {np.flatnonzero(wrong)[0]}) is not "
                           + ("a pass rate in [0, 1]" + hint if hint else "a finite number >= 0"))
    order = np.argsort(C, kind="stable")
    return C[order], R[order]


def _space(C, R0, law, method, fit_R0, A_range, B_range, C_mid_range, A_step, C_mid_nodes):
    """The search space of one fit, from its settings and from the compute C > 0 in the data."""
    for name, span, positive in (("A_range", A_range, False), ("B_range", B_range, True),
                                 ("C_mid_range", C_mid_range, True)):
        if span is not None and not (span[0] <= span[1] and (span[0] > 0 or not positive)):
            raise BadInput(f"{name} {tuple(span)} is not (lo, hi)" + (" above 0" if positive else ""))
    C_lo, C_hi = C_mid_range or (C.min() * C_MID_REACH[0], C.max() * C_MID_REACH[1])
    grid = method == "grid"
    if A_range is None:       # (R0, 1); the grid's nodes are round numbers: .450, .455, ...
        A_range = (0.0 if fit_R0 else np.ceil(R0 / A_step) * A_step if grid else R0, 1.0)
    # Nodes of B: only starts for `free` (a factor 1.25 apart), nearly the answer for `grid` (1.06).
    B_nodes = np.geomspace(*B_range, 90 if grid else 24)
    if not grid:
        C_mid_nodes = np.geomspace(C_lo, C_hi, 48)
    elif C_mid_nodes is None:                 # a factor 1.02 apart; the paper's 100 are linear
        lo, hi = C_mid_range or (C.min(), 2 * C.max())
        C_mid_nodes = np.geomspace(lo, hi, 250)
    return Space(law, tuple(A_range), A_step if grid else 0.0, B_nodes, np.asarray(C_mid_nodes, float),
                 fit_R0)


# ------------------------------------------------------------------------------ 4. honesty
def doubts(fit, space):
    """What stands against believing the fit: sentences, each with its numbers.  Rules are ours."""
    lo_hi = {"A": space.A_range, "B": (space.B_nodes[0], space.B_nodes[-1]),
             "C_mid": (space.C_nodes[0], space.C_nodes[-1])}
    for name, (lo, hi) in lo_hi.items():
        value = getattr(fit, name)
        if lo < hi and min(abs(value - lo), abs(value - hi)) <= 1e-6 * abs(value):
            yield (f"{name} = {value:.4g} sits on the edge of its range [{lo:.4g}, {hi:.4g}]: "
                   "the data do not determine it")
    end, n = fit.C[-1], fit.n
    if fit.law != "power" and end < 2 * fit.C_mid:
        yield (f"the data end at {end:.3g}, before 2 C_mid = {2 * fit.C_mid:.3g}: "
               "the bend towards the ceiling has hardly been seen")
    if n < FEW:
        yield f"{n} evaluations for {3 + space.fit_R0} parameters: at least {FEW}, better 20"
    if fit.R0_from == "fitted":
        yield "there is no evaluation at zero compute, so R0 is fitted; it moves every other number"
    # Collapse: the last fifth against the best stretch of that length.  The noise comes from
    # neighbors (median |difference| is .954 sigma), since a fit to a collapse has no honest residual.
    k = max(3, n // 5)
    if n >= 2 * k:
        level = np.convolve(fit.R, np.ones(k) / k, "valid")                      # running means
        sigma = np.median(np.abs(np.diff(fit.R))) / 0.954
        if level.max() - level[-1] > max(0.02, 3 * sigma * np.sqrt(2 / k)):
            yield (f"the reward falls at the end: {level[-1]:.3f} over the last {k} evaluations, "
                   f"{level.max():.3f} at its best; the law only rises and cannot describe a collapse")
    residual = fit.R - fit.curve(fit.C)
    if n >= 10 and (residual ** 2).sum() > 1e-12 * n:
        # Neighboring residuals of a good fit are independent; 2.5 / sqrt(n) is passed by 1 in 200.
        lag_1 = (residual[1:] * residual[:-1]).sum() / (residual ** 2).sum()
        if lag_1 > 2.5 / np.sqrt(n):
            yield (f"the residuals have a trend (neighbors correlate at {lag_1:.2f}): the law misses "
                   "part of the shape, and the intervals are too narrow")
    lo, hi = fit.ci["A"]
    remaining = fit.A - float(fit.curve(end))
    if hi - lo > max(2 * SAME_A, remaining):
        yield (f"the ceiling is only known to lie in [{lo:.3f}, {hi:.3f}], wider than the gain of "
               f"{remaining:.3f} that it promises beyond the data")


def pool_doubts(fit, seeds):
    """Do the seeds of a pooled fit differ by more than noise?  Then its intervals are too narrow."""
    for label, C, R in seeds:
        residual = (R - fit.curve(C))[C > 0]
        shift, limit = residual.mean(), 3 * fit.rmse / np.sqrt(max(residual.size, 1))
        if abs(shift) > limit:
            yield (f"seed {label} lies {shift:+.4f} from the pooled curve, more than noise ({limit:.4f}): "
                   "fit the seeds one by one and look at the spread of A")


# -------------------------------------------------------------------------------- 5. logs
@dataclass(frozen=True)
class Curve:
    """What was read from one run, or from several seeds of one recipe: rewards against compute."""
    label: str
    C: np.ndarray
    R: np.ndarray
    x: str
    y: str
    home: Path                    # where its picture goes
    seeds: tuple = ()             # (label, C, R) of each, if there are several
    notes: tuple = ()             # facts worth a line
    warnings: tuple = ()          # facts that count against the fit (--strict)


def read_rows(path):
    """Any supported log -> (rows of {column: number}, the file read, notes).  One reader a format."""
    path = Path(path)
    if path.is_dir():
        path = _log_in(path)
    if not path.exists():
        raise BadInput(f"{path} does not exist")
    notes = []
    if path.suffix == ".json":                # TRL / transformers: trainer_state.json
        history = json.loads(path.read_text()).get("log_history")
        if history is None:
            raise BadInput(f"{path} has no log_history: of JSON files only trainer_state.json is read")
        rows = history
    elif path.suffix == ".csv":               # any CSV with a header; Weights & Biases exports
        with path.open(newline="") as file:
            rows = [dict(row) for row in csv.DictReader(file)]
    elif "tfevents" in path.name:
        rows = _tensorboard(path.parent)
    else:                                     # one JSON object a line: ours, verl, prime-rl, ...
        lines = [line for line in path.read_text().split("\n") if line.strip()]
        rows = []
        for number, line in enumerate(lines, 1):
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError as error:
                if number < len(lines):
                    raise BadInput(f"{path}, line {number} is not JSON ({error.msg})") from None
                notes.append(f"the last line of {path.name} is cut off (a run still writing?): left out")
    return _merged([_flat(row) for row in rows]), path, notes


def _log_in(folder):
    """The log in a run folder: the evaluations if they have a file of their own."""
    for pattern in ("evals.jsonl", "metrics.jsonl", "trainer_state.json", "checkpoint-*/trainer_state.json",
                    "**/*tfevents*", "*.jsonl", "*.csv"):
        found = sorted(folder.glob(pattern), key=lambda p: [int(n) for n in re.findall(r"\d+", p.parent.name)])
        if found:
            return found[-1]                  # of several checkpoints the latest: it holds the others
    raise BadInput(f"{folder} holds no log that can be read (evals.jsonl, metrics.jsonl, "
                   "trainer_state.json, TensorBoard events, *.jsonl, *.csv)")


def _tensorboard(folder):
    """Scalars of the event files in a folder.  Needs the tensorboard package."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise BadInput("TensorBoard event files need the tensorboard package: "
                       "pip install tensorboard") from None
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()   # 0: keep them all
    return [{"step": event.step, tag: event.value}
            for tag in events.Tags()["scalars"] for event in events.Scalars(tag)]


def _flat(row):
    """{"step": 3, "data": {"a": 1}} (verl) -> {"step": 3, "a": 1}: numbers only.

    Empty cells are absent evaluations, not zeros.  "run - metric" is how Weights & Biases names the
    column of one run, with "__MIN" and "__MAX" beside it: the name stays, the two go.
    """
    flat = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= {k if name == "data" else f"{name}/{k}": v for k, v in _flat(value).items()}
        elif name and not name.endswith(("__MIN", "__MAX")) and not isinstance(value, (list, type(None))):
            try:
                flat[name] = float(value)
            except ValueError:
                pass                          # text: a run's name, a date, an empty cell
    return flat


def _merged(rows):
    """One row a step.  Trainers log the same step several times (training, evaluation, once more
    after a resume): later values win."""
    merged = {}
    for i, row in enumerate(rows):
        step = next((row[name] for name in STEP_COLUMNS if name in row), ("row", i))
        merged.setdefault(step, {}).update(row)
    return list(merged.values())


def _pick(columns, wanted, patterns, option, path):
    """The column to use, and a note if others would have done.  Weights & Biases' prefix is ignored."""
    for pattern in [wanted] if wanted else patterns:
        found = [c for c in columns if c == pattern] or \
            [c for c in columns if fnmatch.fnmatchcase(c.split(" - ")[-1], pattern)]
        if len(found) > 1 and wanted:
            raise BadInput(f"{option} {wanted} fits several columns of {path}: {', '.join(found)}")
        if found:
            return found[0], [f"{option} is {found[0]}; there are also {', '.join(found[1:])}"] * (len(found) > 1)
    raise BadInput(f"no column for {option} in {path}; give {option} one of: {', '.join(sorted(columns))}")


def load(spec, x=None, y=None, x_scale=1.0, reward_range=(0.0, 1.0)) -> Curve:
    """Read "PATH", or "NAME=PATH,PATH,..." (the seeds of one recipe, pooled) into a Curve.

    x, y: column names or globs, None: the first of X_COLUMNS, Y_COLUMNS.  x_scale multiplies compute
    (steps into GPU-hours); reward_range (lo, hi) is mapped onto [0, 1] (-1 1 for rewards of +-1).
    """
    name, _, paths = spec.rpartition("=")
    seeds, notes, warnings = [], [], []
    for path in paths.split(","):
        rows, path, more = read_rows(path)
        columns = dict.fromkeys(c for row in rows for c in row)
        y_name, y_notes = _pick(columns, y, Y_COLUMNS, "--y", path)
        x_name, x_notes = _pick(columns, x, X_COLUMNS, "--x", path)
        notes += more + y_notes + x_notes * bool(x)
        rows = [row for row in rows if y_name in row]
        pairs = {row[x_name]: row[y_name] for row in rows if x_name in row and not np.isnan(row[y_name])}
        C, R = (np.array(list(v), float) for v in (pairs.keys(), pairs.values()))
        if not np.all(np.diff(C) > 0):
            notes.append(f"{path.name} is not in order of {x_name}: sorted")
        for lost, why in ((sum(np.isnan(row[y_name]) for row in rows), f"have {y_name} = nan"),
                          (sum(x_name not in row for row in rows), f"have no {x_name}")):
            if lost:
                warnings.append(f"{lost} of {len(rows)} evaluations in {path} {why} and are left out")
        lo, hi = reward_range
        C, R = _checked(C * x_scale, (R - lo) / (hi - lo))
        seeds.append((path.parent.name or path.stem, C, R))
        home = path.parent / "curve.png" if path.name == "evals.jsonl" else path.with_name(path.stem + "_curve.png")
    label = name or (seeds[0][0] if path.name in ("evals.jsonl", "metrics.jsonl", "trainer_state.json")
                     else path.stem)
    C, R = np.concatenate([s[1] for s in seeds]), np.concatenate([s[2] for s in seeds])
    order = np.argsort(C, kind="stable")
    return Curve(label, C[order], R[order], x_name, y_name, home, tuple(seeds) if len(seeds) > 1 else (),
                 tuple(notes), tuple(warnings))


# ------------------------------------------------------------------------ 6. what is said
def number(value, digits=3):
    return f"{value:.{digits}g}"


def fit_table(fits):
    """{label: Fit} -> lines: one row a fit, every number with its interval."""
    rows = [("fitted on", "n", "A (ceiling)", "B (steepness)", "C_mid", "R0", "rmse")]
    for label, fit in fits.items():
        cells = [f"{fit.A:.3f} [{fit.ci['A'][0]:.3f}, {fit.ci['A'][1]:.3f}]",
                 f"{fit.B:.2f} [{fit.ci['B'][0]:.2f}, {fit.ci['B'][1]:.2f}]",
                 f"{number(fit.C_mid)} [{', '.join(map(number, fit.ci['C_mid']))}]"]
        rows.append((label, str(fit.n), *cells, f"{fit.R0:.3f}", f"{fit.rmse:.4f}"))
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def held_out(curve, early):
    """How the fit of the first part did on the rest -> (lines, record)."""
    rest = curve.C > early.C[-1]
    C, R = curve.C[rest], curve.R[rest]
    if not C.size:
        raise BadInput(f"--until leaves nothing to predict: the data end at {curve.C[-1]:.3g}")
    last = min(LAST, C.size)
    paths = early.paths(C[-last:], noise=True).mean(1)           # the mean of as many evaluations
    lo, hi = np.percentile(paths, [50 * (1 - LEVEL), 50 * (1 + LEVEL)]) if len(paths) else (np.nan,) * 2
    predicted, measured = early.curve(C[-last:]).mean(), R[-last:].mean()
    error = R - early.curve(C)
    record = dict(predicted=predicted, lo=lo, hi=hi, measured=measured, error=predicted - measured,
                  evaluations=last, rmse_in_range=early.rmse, rmse_held_out=np.sqrt((error ** 2).mean()),
                  mean_held_out=-error.mean(), n_held_out=C.size)
    return [f"predicted from the first part for the last {last} evaluations: {predicted:.3f} "
            f"[{lo:.3f}, {hi:.3f}]; measured {measured:.3f}; error {predicted - measured:+.3f}",
            f"error in range {early.rmse:.4f} (rmse, {early.n} fitted); held out "
            f"{record['rmse_held_out']:.4f} (rmse, {C.size} predicted; mean {-error.mean():+.4f})"], record


def forecast(fit, predict, target):
    """--predict and --target -> (lines, record)."""
    lines, record = [], {}
    for C in predict:
        mean, lo, hi = map(float, fit.predict(C))
        beyond = f", {C / fit.C[-1]:.1f} times the data" if C > fit.C[-1] else ""
        lines.append(f"at compute {number(C)}{beyond}: {mean:.3f} [{lo:.3f}, {hi:.3f}]")
        record.setdefault("predict", []).append(dict(C=C, mean=mean, lo=lo, hi=hi))
    if target is not None:
        C = fit.compute_for(target)
        draws = compute_needed(fit.law, target, *fit.draws.T)
        # inf sorts last, and interpolating with it gives nan: take the draws themselves.
        lo, hi = np.percentile(draws, [50 * (1 - LEVEL), 50 * (1 + LEVEL)], method="nearest") \
            if len(draws) else (np.nan,) * 2
        never = np.isinf(draws).mean() if len(draws) else np.nan
        name = lambda c: "never" if np.isinf(c) else number(c)
        lines.append(f"to reach {target:g} takes compute {number(C)} [{name(lo)}, {name(hi)}]" if np.isfinite(C)
                     else f"{target:g} is never reached: the ceiling A = {fit.A:.3f} is not above it "
                          f"(nor in {never:.0%} of the replicates)")
        record["target"] = dict(R=target, C=C, lo=lo, hi=hi, share_never=never)
    return lines, record


def rolling(curve, refit, tolerance=SAME_A):
    """Refit at every evaluation as if the run ended there -> (cuts (k,), A and the prediction of
    the run's last evaluations, each (3, k) = value, lo, hi, measured, compute from which the
    prediction stayed within `tolerance`, or None)."""
    C = np.unique(curve.C[curve.C > 0])
    last, measured = curve.C[-LAST:], curve.R[-LAST:].mean()
    cuts = C[np.unique(np.linspace(FEW - 1, C.size - 1, 40).astype(int))] if C.size >= FEW else C[:0]
    if not cuts.size:
        raise BadInput(f"--rolling needs {FEW} evaluations, {curve.label} has {C.size}")
    A, ahead = np.empty((2, 3, cuts.size))
    for i, cut in enumerate(cuts):
        fit = refit(curve.C, curve.R, c_max=cut)
        A[:, i], ahead[0, i] = (fit.A, *fit.ci["A"]), fit.curve(last).mean()
        ahead[1:, i] = np.percentile(fit.paths(last).mean(1), [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    wrong = np.flatnonzero(np.abs(ahead[0] - measured) > tolerance)
    first = wrong[-1] + 1 if wrong.size else 0
    return cuts, A, ahead, measured, float(cuts[first]) if first < cuts.size else None


def advice(curve, refit, min_gain):
    """For a run that still runs -> (sentences, left the band?, nothing left to gain?)."""
    recent = 3                                # by chance all three leave on one side 1 time in 4,000
    if np.unique(curve.C[curve.C > 0]).size < FEW + recent:
        return [f"{curve.C.size} evaluations so far, {FEW + recent} are needed"], False, False
    before, now = refit(curve.C, curve.R, c_max=curve.C[-recent - 1]), refit(curve.C, curve.R)
    C, R = curve.C[-recent:], curve.R[-recent:]
    _, lo, hi = before.predict(C, noise=True)
    side = "below" if np.all(R < lo) else "above" if np.all(R > hi) else ""
    gain = now.draws[:, 0] - now.curve(C[-1:], now.draws)[:, 0]
    most = np.percentile(gain, 50 * (1 + LEVEL))
    lines = [f"compute {number(C[-1])}: reward {R[-1]:.3f}, ceiling {now.A:.3f} "
             f"[{now.ci['A'][0]:.3f}, {now.ci['A'][1]:.3f}], at most {most:.3f} still to gain"]
    if side:
        lines.append(f"the last {recent} evaluations lie {side} the band predicted before them: "
                     + ("look for a fault" if side == "below" else "the earlier fit was too low"))
    if most < min_gain:
        lines.append(f"less than {min_gain:g} is left to gain: more compute on this run buys little")
    return lines, bool(side), bool(most < min_gain)


# ------------------------------------------------------------------------ 7. several runs
def leaders(fits, C_lo, C_hi):
    """Which curve is highest from where to where -> [(label, from, to, share of replicates)]."""
    labels, C = list(fits), np.geomspace(C_lo, C_hi, 2000)
    best = np.argmax([fit.curve(C) for fit in fits.values()], axis=0)
    edges = [C_lo]
    for i in np.flatnonzero(np.diff(best)):
        a, b = fits[labels[best[i]]], fits[labels[best[i + 1]]]
        edges.append(brentq(lambda c: float(a.curve(c) - b.curve(c)), C[i], C[i + 1]))
    spans, at = [], np.append(np.flatnonzero(np.diff(best)), C.size - 1)
    for lo, hi, i in zip(edges, edges[1:] + [C_hi], at):
        middle = [fit.paths(np.array([np.sqrt(lo * hi)]))[:, 0] for fit in fits.values()]
        size = min(map(len, middle))
        share = np.mean(np.argmax([m[:size] for m in middle], 0) == best[i]) if size else np.nan
        spans.append((labels[best[i]], lo, hi, float(share)))
    return spans


def compare(curves, fits, refit):
    """Ceilings, then steepness at a shared ceiling, then who leads where -> (lines, record).

    The first run is the reference.  If every A is within the paper's 0.02 of their mean, all are
    refitted at that mean and B is compared, as in the paper's leave-one-out table.
    """
    (base, first), *others = fits.items()
    A = np.array([fit.A for fit in fits.values()])
    spread = np.abs(A - A.mean()).max()
    lines = [f"ceilings: mean {A.mean():.3f}, farthest from it {spread:.3f} "
             "(the paper's three seeds of one recipe: 0.015)"]
    record = dict(A_mean=A.mean(), A_spread=spread, ceilings=[], shared={}, leaders=[])

    def difference(name, a, b):
        size = min(len(a.draws), len(b.draws))
        column = ("A", "B").index(name)
        draws = a.draws[:size, column] - b.draws[:size, column]
        lo, hi = np.percentile(draws, [50 * (1 - LEVEL), 50 * (1 + LEVEL)]) if size else (np.nan,) * 2
        return getattr(a, name) - getattr(b, name), lo, hi

    def verdict(lo, hi):
        return "no bootstrap" if np.isnan(lo) else "differ" if lo > 0 or hi < 0 else "same"

    for label, fit in others:
        d, lo, hi = difference("A", fit, first)
        rule = "same" if abs(d) <= SAME_A else "differ"
        lines.append(f"  A({label}) - A({base}) = {d:+.3f} [{lo:+.3f}, {hi:+.3f}]: {rule} by the "
                     f"paper's rule of {SAME_A}, {verdict(lo, hi)} by the bootstrap")
        record["ceilings"].append(dict(run=label, d=d, lo=lo, hi=hi, rule=rule, bootstrap=verdict(lo, hi)))
    shared = None
    if spread <= SAME_A:
        shared = {c.label: refit(c.C, c.R, A_range=(A.mean(),) * 2) for c in curves}
        lines.append(f"refitted at the shared ceiling {A.mean():.3f}:")
        for label, fit in shared.items():
            d, lo, hi = difference("B", fit, shared[base])
            lines.append(f"  B({label}) = {fit.B:.2f} [{fit.ci['B'][0]:.2f}, {fit.ci['B'][1]:.2f}]" + (
                f", {d:+.2f} [{lo:+.2f}, {hi:+.2f}] against {base}: {verdict(lo, hi)}" if label != base else ""))
            record["shared"][label] = dict(B=fit.B, ci=fit.ci["B"])
    else:
        lines.append(f"some ceiling is farther than {SAME_A} from the mean: B is not compared at a shared one")
    seen = min(fit.C[-1] for fit in fits.values())
    for label, lo, hi, share in leaders(fits, max(fit.C[0] for fit in fits.values()), 10 * seen):
        lines.append(f"  ahead from {number(lo)} to {number(hi)}: {label} ({share:.0%} of replicates at the middle)"
                     + " beyond the data" * bool(lo >= seen))
        record["leaders"].append(dict(run=label, C_from=lo, C_to=hi, share=share))
    return lines, record, shared


# ------------------------------------------------------------------------------ 8. figures
# `Figure` objects, never pyplot: no window, no global state, nothing to close.  Everything that
# color tells is also told by marker, dash or fill, so a print in grey says the same.
BLUE, ORANGE, GREY = "#15406f", "#d9822b", "#777777"


def _figure(width, height, rows, columns, **kind):
    from matplotlib.figure import Figure      # here: half a second that --help need not wait for
    fig = Figure(figsize=(width, height), layout="constrained")
    axes = fig.subplots(rows, columns, squeeze=False, **kind)
    for ax in axes.flat:
        ax.grid(alpha=0.25, linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
    return fig, axes


def plot_run(curve, fit, early=None, x_label=None):
    """Linear and log compute above, residuals below.  With `early`, its band and dashed line are
    the prediction, hollow points what it had not seen."""
    fig, axes = _figure(10, 5.6, 2, 2, sharex="col", height_ratios=[3, 1])
    shown = early or fit
    positive = curve.C > 0
    seen = np.isin(curve.C, shown.C)
    last = curve.C[-1]
    for column, (top, low) in enumerate(axes.T):
        C = np.linspace(last / 2000, 1.05 * last, 500) if column == 0 else \
            np.geomspace(curve.C[positive][0] * 0.7, 1.5 * last, 500)
        _, lo, hi = shown.predict(C)
        top.fill_between(C, lo, hi, color=ORANGE if early else BLUE, alpha=0.22, linewidth=0,
                         label=f"{LEVEL:.0%} interval")
        if early:
            top.plot(C, early.curve(C), "--", color=ORANGE, linewidth=2, label="fit of the first part")
            for ax in (top, low):
                ax.axvline(early.C[-1], color=GREY, linestyle=":", linewidth=1.2)
            top.annotate("fitted ", (early.C[-1], 0.03), xycoords=("data", "axes fraction"), ha="right",
                         color=GREY, fontsize=9)
            top.annotate(" predicted", (early.C[-1], 0.03), xycoords=("data", "axes fraction"),
                         color=GREY, fontsize=9)
        top.plot(C, fit.curve(C), color=BLUE, linewidth=1.3, label="fit of all evaluations" if early else "fit")
        top.axhline(fit.R0, color=GREY, linewidth=0.8, linestyle=(0, (1, 3)))
        top.axhline(shown.A, color=GREY, linewidth=0.8, linestyle=(0, (6, 4)))
        top.plot(curve.C[seen], curve.R[seen], "o", color=BLUE, markersize=4, label="evaluation, fitted")
        hollow = positive & ~seen
        top.plot(curve.C[hollow], curve.R[hollow], "o", color=BLUE, markersize=4.5, fillstyle="none",
                 label="evaluation, held out")
        if column == 0:
            top.plot(curve.C[~positive], curve.R[~positive], "D", color=GREY, markersize=5, clip_on=False,
                     label=f"R0 ({fit.R0_from})")
            top.annotate(f"ceiling A = {shown.A:.3f} ", (1, shown.A), xycoords=("axes fraction", "data"),
                         ha="right", va="bottom", color=GREY, fontsize=9)
        else:
            top.set_xscale("log")
        low.axhline(0, color=GREY, linewidth=0.8)
        for mask, fill in ((seen & positive, "full"), (hollow, "none")):
            low.plot(curve.C[mask], (curve.R - shown.curve(curve.C))[mask], "o", color=BLUE, markersize=3.5,
                     fillstyle=fill)
        low.set_xlabel((x_label or curve.x) + (", log scale" if column else ""))
    axes[0, 0].set_ylabel(curve.y)
    axes[1, 0].set_ylabel("residual")
    handles = [h for h in zip(*axes[0, 0].get_legend_handles_labels())
               if h[1] != "evaluation, held out" or (positive & ~seen).any()]
    axes[0, 0].legend(*zip(*handles), loc="center right", fontsize=8.5, frameon=False)
    words = ", ".join(f"{n} {number(getattr(shown, n))} [{', '.join(map(number, shown.ci[n]))}]"
                      for n in ("A", "B", "C_mid"))
    fig.suptitle(f"{curve.label}: {words}", fontsize=10.5)
    return fig


def plot_compare(curves, fits, x_label=None):
    """Left: the curves.  Right: log F against log C, F = C_mid^B / ((A - R0)/(R - R0) - 1), which Eq. 1
    makes a line of slope B (the paper's leave-one-out plot).  Points outside R0 < R < A have no F:
    they are drawn hollow, on their line."""
    fig, axes = _figure(11, 4.4, 1, 2)
    left, right = axes[0]
    from matplotlib import colormaps
    for i, curve in enumerate(curves):
        fit = fits[curve.label]
        # cividis rises evenly in lightness, so the order survives a print in grey.
        style = dict(color=colormaps["cividis"](0.85 * i / max(len(curves) - 1, 1)), marker="osD^vPX*"[i % 8],
                     markersize=4, linestyle="none")
        dash = ("-", "--", "-.", ":")[i % 4]
        keep = curve.C > 0
        C = np.geomspace(curve.C[keep][0], 2 * curve.C[-1], 300)
        _, lo, hi = fit.predict(C)
        left.fill_between(C, lo, hi, color=style["color"], alpha=0.18, linewidth=0)
        left.plot(C, fit.curve(C), dash, color=style["color"])
        left.plot(curve.C[keep], curve.R[keep], **style,
                  label=f"{curve.label}: A {fit.A:.3f}, B {fit.B:.2f}, C_mid {number(fit.C_mid)}")
        right.plot(C, C ** fit.B, dash, color=style["color"])
        line = (curve.R > fit.R0) & (curve.R < fit.A) & keep
        F = fit.C_mid ** fit.B / ((fit.A - fit.R0) / (curve.R[line] - fit.R0) - 1)
        right.plot(curve.C[line], F, **style, label=f"{curve.label}: slope {fit.B:.2f}")
        off = keep & ~line
        right.plot(curve.C[off], curve.C[off] ** fit.B, **style, fillstyle="none")
    left.set_xscale("log")
    right.set_xscale("log")
    right.set_yscale("log")
    for ax in (left, right):
        ax.set_xlabel((x_label or curves[0].x) + ", log scale")
        ax.legend(fontsize=8.5, frameon=False)
    left.set_ylabel(curves[0].y)
    right.set_ylabel("F(R) = C$^B$ (hollow: outside R0 < R < A)")
    return fig


def plot_rolling(curve, rolled, x_label=None):
    """What the fit would have said had the run ended at each point: when could you have known?"""
    cuts, A, ahead, measured, known = rolled
    fig, axes = _figure(7, 5.6, 2, 1, sharex=True)
    for ax, (value, lo, hi), name in zip(axes[:, 0], (ahead, A), (f"predicted for the last {LAST}", "ceiling A")):
        ax.fill_between(cuts, lo, hi, color=ORANGE, alpha=0.22, linewidth=0, label=f"{LEVEL:.0%} interval")
        ax.plot(cuts, value, "o--", color=ORANGE, markersize=3.5, label=name)
        ax.plot(curve.C, curve.R, ".", color=BLUE, alpha=0.6, label="evaluations")
        if known is not None:
            ax.axvline(known, color=GREY, linestyle=":")
        ax.set_ylabel(name)
    axes[0, 0].axhspan(measured - SAME_A, measured + SAME_A, color=GREY, alpha=0.25, linewidth=0,
                       label=f"measured ± {SAME_A}")
    axes[0, 0].legend(fontsize=8.5, frameon=False, loc="lower right")
    axes[1, 0].set_xlabel(f"{x_label or curve.x} at which the run is cut")
    return fig


# -------------------------------------------------------------------------- 9. command line
TEACH = """
what it reads   a run folder of ours, verl's and prime-rl's JSONL, TRL's trainer_state.json, any CSV
                with a header, CSV exports of Weights & Biases, TensorBoard event files.  NAME=A,B,C
                pools the seeds A, B, C of one recipe; several runs are compared.
which columns   --y a pass rate in [0, 1] on held-out problems, --x the compute.  Steps will do if
                every step costs the same: --x step --x-scale 0.4 --x-label GPU-hours
what to trust   read the warnings first.  A ceiling fitted before the bend is a guess, and R0 moves
                everything: have a step-0 evaluation.  --until is the test: does the first half of your
                run predict the second?

examples
  fit.py runs/demo --until 0.5                          predict the second half from the first
  fit.py runs/demo --predict 1e15 --target 0.9          what more compute buys; what a reward costs
  fit.py ours=runs/s1,runs/s2 grpo=runs/g1,runs/g2      two recipes, their seeds pooled
  fit.py trainer_state.json --y eval_reward --reward-range -1 1
  fit.py runs/demo --watch 60 --min-gain 0.01           ends when more compute buys little

exit codes      0 well; 2 input that cannot be used; 3 with --strict, if there is any warning
"""


def arguments(argv):
    p = argparse.ArgumentParser(prog="fit.py", description=__doc__.split("\n\n")[0], epilog=TEACH,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    add = p.add_argument
    pair = dict(type=float, nargs=2, metavar=("LO", "HI"))
    add("runs", nargs="+", metavar="RUN", help="a log, a run folder, or NAME=LOG,LOG,...")
    add("--x", help="column of compute")
    add("--y", help="column of the pass rate")
    add("--x-scale", type=float, default=1.0, metavar="K", help="multiply --x, e.g. GPU-hours a step")
    add("--x-label", help="name of the compute axis")
    add("--reward-range", **pair, default=(0.0, 1.0), help="map this range of rewards onto [0, 1]")
    add("--law", choices=LAWS, default="sigmoid", help="logistic is not the paper's")
    add("--method", choices=("free", "grid"), default="free", help="grid is the paper's A.5")
    add("--paper-grid", action="store_true", help="the printed grid of A.5: A .45-.80, C_mid 100-40000")
    add("--R0", metavar="R|fit", help="pass rate before training, or `fit` (default: step 0)")
    add("--A-range", **pair, help="default: R0 to 1; equal numbers hold A")
    add("--B-range", **pair, default=B_RANGE)
    add("--C-mid-range", **pair)
    add("--A-step", type=float, default=A_STEP, help="of the grid method")
    add("--C-mid-nodes", type=int, metavar="N", help="N linear nodes in --C-mid-range, grid method")
    add("--c-min", type=float, help="leave out what was measured earlier (the paper: about one epoch)")
    add("--until", type=float, metavar="C", help="fit up to here, predict the rest; up to 1 a fraction")
    add("--predict", type=float, nargs="+", default=[], metavar="C", help="pass rate at this compute")
    add("--target", type=float, metavar="R", help="compute that this pass rate takes")
    add("--rolling", action="store_true", help="when could you have known? a second picture")
    add("--watch", type=float, metavar="SECONDS", help="follow a running log")
    add("--min-gain", type=float, default=0.01, metavar="R", help="--watch ends below this (default .01)")
    add("--bootstrap", type=int, default=1000, metavar="S")
    add("--seed", type=int, default=0)
    add("--strict", action="store_true", help="exit code 3 if there is any warning")
    add("--json", metavar="FILE", help="the numbers, for programs")
    add("--out", metavar="FILE", help="picture (.png, .pdf, .svg); `none` for none")
    return p.parse_args(argv)


def settings(args):
    """The keywords of fit_curve that the command line asks for."""
    options = dict(law=args.law, method=args.method, R0=args.R0, c_min=args.c_min, bootstrap=args.bootstrap,
                   seed=args.seed, A_range=args.A_range, B_range=args.B_range, C_mid_range=args.C_mid_range,
                   A_step=args.A_step)
    if args.R0 not in (None, "fit"):
        try:
            options["R0"] = float(args.R0)
        except ValueError:
            raise BadInput(f"--R0 is a number or `fit`, got {args.R0}") from None
    if args.C_mid_nodes:
        if not args.C_mid_range:
            raise BadInput("--C-mid-nodes needs --C-mid-range")
        options["C_mid_nodes"] = np.linspace(*args.C_mid_range, args.C_mid_nodes)
    return options | (PAPER_GRID if args.paper_grid else {})


def refitter(options):
    return lambda C, R, **more: fit_curve(C, R, **(options | more))


def record_of(fit):
    """A fit as JSON holds it: numbers, intervals, warnings; not the data nor the replicates."""
    names = ("A", "B", "C_mid", "R0", "R0_from", "law", "method", "n", "rmse", "ci", "warnings")
    return {name: getattr(fit, name) for name in names} | {"C_first": fit.C[0], "C_last": fit.C[-1]}


def watch(args, options):
    """Print advice at each new evaluation until little is left to gain (or, with --strict, until the
    run leaves its predicted band).  Ctrl-C ends it."""
    seen = 0
    while True:
        curve = load(args.runs[0], args.x, args.y, args.x_scale, args.reward_range)
        if curve.C.size != seen:
            seen = curve.C.size
            lines, left, done = advice(curve, refitter(options), args.min_gain)
            print(*lines, sep="\n", flush=True)
            if done or (left and args.strict):
                return 3 if left and args.strict else 0
        time.sleep(args.watch)


def report(args, options):
    """Everything that is said about one run or several -> exit code."""
    refit = refitter(options)
    curves = [load(run, args.x, args.y, args.x_scale, args.reward_range) for run in args.runs]
    if len({curve.label for curve in curves}) < len(curves):     # same folder name: tell them by path
        curves = [Curve(**(vars(c) | {"label": run})) for c, run in zip(curves, args.runs)]
    warnings, record, pictures, table = [], {"runs": {}}, {}, {}
    for curve in curves:
        fit = refit(curve.C, curve.R)
        last = min(LAST, curve.R.size)
        print(f"{curve.label}: {curve.R.size} evaluations of {curve.y} against {args.x_label or curve.x}; "
              f"R0 {fit.R0:.3f} ({fit.R0_from}); last {curve.R[-last:].mean():.3f} (mean of {last})")
        print(*(f"  note: {note}" for note in curve.notes), sep="\n", end="\n" * bool(curve.notes))
        table[curve.label] = fit
        early, extra = None, {}
        if args.until:
            cut = args.until * curve.C[-1] if args.until <= 1 else args.until
            early = refit(curve.C, curve.R, c_max=cut)
            table[f"{curve.label}, up to {number(cut)}"] = early
            warnings += [f"{curve.label}, up to {number(cut)}: {w}" for w in early.warnings]
            lines, extra["held_out"] = held_out(curve, early)
            extra["early"] = record_of(early)
        more, forecasts = forecast(fit, args.predict, args.target)
        extra["said"] = (lines if early else []) + more
        warnings += [f"{curve.label}: {w}" for w in
                     (*curve.warnings, *fit.warnings, *pool_doubts(fit, curve.seeds))]
        record["runs"][curve.label] = dict(x=curve.x, y=curve.y, fit=record_of(fit)) | extra | forecasts
        if len(curves) == 1:
            pictures[Path(args.out or curve.home)] = plot_run(curve, fit, early, args.x_label)
        if args.rolling:
            rolled = rolling(curve, refitter(options | {"bootstrap": min(200, args.bootstrap)}))
            home = Path(args.out) if args.out else curve.home
            pictures[home.with_stem(f"{home.stem}_rolling_{curve.label}" if len(curves) > 1
                                    else f"{home.stem}_rolling")] = plot_rolling(curve, rolled, args.x_label)
            extra["said"].append(
                f"the prediction stayed within {SAME_A} of the outcome from {number(rolled[4])} on "
                f"({rolled[4] / curve.C[-1]:.0%} of the compute)" if rolled[4] is not None
                else f"the prediction never settled within {SAME_A} of the outcome")
    print(*fit_table(table), sep="\n")
    for label, run in record["runs"].items():
        print(*(f"{label}: {line}" if len(curves) > 1 else line for line in run.pop("said")), sep="\n",
              end="\n" if args.until or args.predict or args.target or args.rolling else "")
    if len(curves) > 1:
        fits = {curve.label: table[curve.label] for curve in curves}
        lines, record["comparison"], shared = compare(curves, fits, refit)
        print(*lines, sep="\n")
        pictures[Path(args.out or "compare.png")] = plot_compare(curves, shared or fits, args.x_label)
    print(*(f"warning: {w}" for w in warnings), sep="\n", end="\n" * bool(warnings))
    record["warnings"] = warnings
    if args.json:
        Path(args.json).write_text(json.dumps(record, indent=1, default=lambda v: v.item()) + "\n")
    if args.out != "none":
        for path, fig in pictures.items():
            try:
                fig.savefig(path, dpi=150)
            except ValueError as error:                          # an ending that matplotlib does not know
                raise BadInput(f"--out {path}: {error}") from None
            print(f"picture: {path}")
    return 3 if args.strict and warnings else 0


def main(argv=None):
    args = arguments(argv)
    try:
        options = settings(args)
        return watch(args, options) if args.watch else report(args, options)
    except (BadInput, OSError) as error:      # OSError: a file that cannot be read or written
        print(f"fit.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0 if args.watch else 130


if __name__ == "__main__":
    sys.exit(main())
