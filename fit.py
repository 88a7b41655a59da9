"""fit.py: the curve of an RL run, its fit, and what more compute would buy.

    python fit.py runs/demo --until 0.5     fit the first half of the compute, predict the second

The law is Eq. 1 of ScaleRL (arXiv 2510.13786; appendix A.5 has the paper's fit):

    R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B)

    C      the compute used so far: FLOPs, GPU-hours (the paper's) or steps
    R      the reward: the pass rate on held-out problems
    R0     the pass rate before training
    A      the ceiling: no amount of compute brings a higher pass rate. A fit at 1, the end of its
           range, does not promise 100%: mostly the data do not show yet where the curve bends
    B      the steepness (the paper's "compute efficiency"): from 10% to 90% of the gain, compute
           grows by 81^(1/B), 81 times for B = 1 and 9 times for B = 2
    C_mid  the compute at which half of the gain A - R0 is reached

For `from fit import fit_curve` this file, numpy and scipy are enough; the command is in fitting/.
Ours, not the paper's: R0 is the evaluation at step 0; all later ones are fitted (the paper leaves
out the first epoch or so: c_min); A, B and C_mid need no grid; 90% intervals; the law "stretched".
The law cannot fall: 59 of 396 published runs did, in their second half (results/public).
Axes: n evaluations, S bootstrap replicates, m nodes of C_mid, k values of C."""
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import leastsq
from scipy.special import expit, logit, ndtri, stdtrit

# Skip these at first. SAME_A and A_STEP are the paper's, others ours; SAME_A, FEW: for fitting/.
SAME_A = 0.02             # closer ceilings count as equal (A of the paper's three seeds: +-.015)
A_STEP = 0.005            # method "grid": from one A to the next
LEVEL = 0.90              # of every interval
B_RANGE = 0.1, 20         # where B is searched; published: 1.09-4.55
FEW = 6                   # with fewer evaluations (step 0 counts) a run prints no forecast
LAST = 5                  # a run's end is the mean of its last 5 evaluations: one is too noisy
RIVAL = 4                 # laws fit equally well if their AIC differs by less
THETA = ("A", "B", "C_mid", "R0")         # theta: the parameters of a curve
POOLED = ("sigmoid", "stretched")         # nobody knows which is true: forecasts mix both
RHO_MAX = 0.8             # a larger autocorrelation of residuals counts as .8
NOISE = 0.002             # about the least noise (std) of one evaluation
LAW_ERROR = 0.5           # no law is exact: see `futures`
RUN_ERROR = 0.02          # no run is smooth: see `futures`


class BadInput(ValueError):
    """Input that cannot be used. The text is one sentence for the user."""


# -------------------------------------------------------------------------------------- 1. laws
# Every law is R = R0 + (A - R0) g(c), c = C / C_mid. g is the share of the gain A - R0 that is
# reached: 0 at C = 0, 1/2 at C_mid. (The power law's g is far below 0 at C = 0, and 0 at C_mid.)
LAWS = {                    # g for a given c, and c for a given g
    "sigmoid": (lambda c, B: expit(B * np.log(c)),              # Eq. 1: 1 / (1 + c^-B)
                lambda g, B: np.exp(logit(g) / B)),
    "stretched": (lambda c, B: -np.expm1(-np.log(2) * c ** B),  # ours: 1 - 2^-(c^B)
                  lambda g, B: (-np.log1p(-g) / np.log(2)) ** (1 / B)),
    "power": (lambda c, B: np.maximum(1 - c ** -B, -1e150),     # A.4: A - D / C^B, with
              lambda g, B: (1 - g) ** (-1 / B)),                # D = (A - R0) C_mid^B
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
    """The C at which the law reaches R: 0 if R <= R0 (of the power law, too), inf if R >= A."""
    with np.errstate(all="ignore"):           # outside R0 < R < A there is no inverse
        C = C_mid * LAWS[law][1](np.divide(R - R0, A - R0), B)
    return np.where(R <= R0, 0.0, np.where(R >= A, np.inf, C))


# ------------------------------------------------------------------------------ 2. least squares
# Skip parts 2 and 3 at first. Two tricks. (1) A needs no search. If B, C_mid and R0 are given,
# R - R0 is (A - R0) times g. So A - R0 is the slope of a line through 0, and the best slope has a
# formula. (2) Each parameter has a range, but `leastsq` knows no bounds. So it searches an angle x,
# which may be any number. The parameter, low + (high - low) (sin(x) + 1) / 2, never leaves its
# range. (scipy's `least_squares` has bounds, but takes twice the time.)
@dataclass(frozen=True)
class Search:
    """Where least squares looks: a law and the ranges of its parameters."""
    law: str
    C: np.ndarray             # (n,) compute
    A_range: tuple            # (low, high); equal numbers fix A
    box: np.ndarray           # (2 or 3, 2): ranges of log C_mid, log B and, if fitted, R0
    least: float = NOISE      # the least noise of one evaluation

    @property
    def parameters(self):
        """The number of free parameters."""
        return sum(bool(low < high) for low, high in (self.A_range, *self.box))

    def at(self, x, R, R0):
        """From angles to curves, each with the best A for the rewards R (n,).

        x is (2, ...): angles of log C_mid and log B. If R0 is fitted, x is (3, ...), and the
        argument R0 is unused. `solve` asks for one curve, x (2,); `starts` for (2 or 3, 48, ...).
        -> theta: A, B, C_mid, R0, each (...); residuals (..., n)"""
        log_C_mid, log_B, *fitted = [low + (high - low) * (np.sin(angle) + 1) / 2
                                     for angle, (low, high) in zip(x, self.box)]
        C_mid, B, R0 = np.exp(log_C_mid), np.exp(log_B), np.asarray(fitted[0] if fitted else R0)
        # With A = 1 and R0 = 0 the law is g.
        g = law_at(self.law, self.C, 1.0, B[..., None], C_mid[..., None], 0.0)       # (..., n)
        # The best A (trick 1). A slope below 0, where R falls, counts as 0.
        gain = R - R0[..., None]                                                     # (..., n)
        slope = (gain * g).sum(-1) / np.maximum((g * g).sum(-1), 1e-30)              # (...)
        A = np.clip(R0 + np.maximum(slope, 0), *self.A_range)
        return (A, B, C_mid, R0), gain - (A - R0)[..., None] * g

    def starts(self, R, R0):
        """The best nodes of a coarse table, at its four best C_mid -> list of angles (2 or 3,). One
        start alone may lead to a valley that is not the deepest."""
        nodes = (48, 24, 5)[:len(self.box)]                                   # of C_mid, B, R0
        axes = [np.arcsin(np.linspace(-0.98, 0.98, count)) for count in nodes]  # at +-1 sin is flat
        x = np.stack(np.meshgrid(*axes, indexing="ij")).reshape(len(axes), 48, -1)
        sse = (self.at(x, R, R0)[1] ** 2).sum(-1)         # (48, 24 or 120): a row for each C_mid
        return [x[:, row, sse[row].argmin()] for row in np.argsort(sse.min(1))[:4]]

    def solve(self, R, R0, starts):
        """The best fit that the starts lead to -> theta (4,), angles (2 or 3,)."""
        # full_output: without it leastsq warns where it stops early.
        ends = [leastsq(lambda x: self.at(x, R, R0)[1], start, full_output=True)[0]
                for start in starts]
        best = min(ends, key=lambda x: (self.at(x, R, R0)[1] ** 2).sum())
        return np.array(self.at(best, R, R0)[0]), best

    def fit(self, R, R0):
        """The best fit -> as `solve`. Starts are found on at most 200 means of neighbors, to save
        memory: 30,000 evaluations could take more than 1 GB."""
        parts = np.array_split(np.arange(R.size), min(R.size, 200))
        C, means = (np.array([values[part].mean() for part in parts]) for values in (self.C, R))
        return self.solve(R, R0, replace(self, C=C).starts(means, R0))


def grid_search(search, R, R0, A_nodes, C_mid_nodes):
    """A.5: find the best B for each A and each C_mid (m,) -> theta of the best pair."""
    def sse(A, log_B):                                                          # (m,) -> (m,)
        curve = law_at(search.law, search.C, A, np.exp(log_B)[:, None], C_mid_nodes[:, None], R0)
        return ((R - curve) ** 2).sum(1)

    best = (np.inf,)
    for A in A_nodes:
        low, high = (np.full(len(C_mid_nodes), end) for end in search.box[1])   # of log B
        for _ in range(25):     # each round keeps the 52% that hold the minimum
            middle, step = (low + high) / 2, 0.02 * (high - low)
            lower = sse(A, middle - step) < sse(A, middle + step)
            low, high = np.where(lower, low, middle - step), np.where(lower, middle + step, high)
        at_middle = sse(A, middle)
        i = at_middle.argmin()
        best = min(best, (at_middle[i], A, np.exp(middle[i]), C_mid_nodes[i], R0))
    return np.array(best[1:])


def compare_laws(search, theta, rival, its_theta, R):
    """How well another law (rival, its_theta) and a constant fit the rewards R (n,).
    -> {rival.law: {"A": its ceiling, "delta_aic": its AIC minus this law's}, "constant": the same}
    A lower AIC (Akaike's) is better."""
    def aic(curve, parameters):               # 1e-12: log(0) is -inf
        return R.size * np.log(((R - curve) ** 2).mean() + 1e-12) + 2 * parameters
    own = aic(law_at(search.law, search.C, *theta), search.parameters)
    theirs = aic(law_at(rival.law, rival.C, *its_theta), rival.parameters)
    return {rival.law: dict(A=float(its_theta[0]), delta_aic=float(theirs - own)),
            "constant": dict(A=float(R.mean()), delta_aic=float(aic(R.mean(), 1) - own))}


# ------------------------------------------------------------------------------ 3. the bootstrap
# How far could chance have moved the fit? `replicates` adds noise to the fitted curve and fits it
# again, S times. `widened` makes this noise from the residuals. `Replicates` holds the S curves. An
# interval is the middle 90% of them.
def interval(values):
    """The middle 90% over the first axis (S, ...) -> (2, ...); nan if S = 0. Nothing is
    interpolated, because some values may be `inf`."""
    if not len(values):
        return np.full((2, *values.shape[1:]), np.nan)
    return np.percentile(values, [50 * (1 - LEVEL), 50 * (1 + LEVEL)], axis=0, method="nearest")


def autocorrelation(r):
    """Of neighbors among residuals r (n,)."""
    return (r[1:] * r[:-1]).sum() / np.maximum((r ** 2).sum(), 1e-30)


@dataclass(frozen=True)
class Replicates:
    """The S curves of one law, each fitted to other noise."""
    law: str
    draws: np.ndarray         # (S, 4) theta of each
    noise: np.ndarray         # (n,) the `widened` residuals

    def paths(self, C, noise=False):
        """Each curve at C (k,) -> (S, k); `noise` adds draws of `self.noise`."""
        paths = law_at(self.law, np.asarray(C, float), *self.draws.T[:, :, None])
        if noise:   # for k = n seed 0 would repeat the draws of `replicates`
            rng = np.random.default_rng((1, 1) if len(paths.T) == len(self.noise) else 0)
            paths = paths + rng.choice(self.noise, paths.shape)
        return paths


def widened(residual, parameters, least=NOISE):
    """Residuals (n,) of a fit with p parameters -> (n,), larger, to be drawn as noise. As they are,
    they would make intervals too narrow. Three factors correct this:

    sqrt(n / (n - p))     the fit has followed some of the noise
    t / z                 its size is estimated: Student's t replaces the normal z (right at 90%)
    sqrt((1 + rho) / (1 - rho))   neighbors are alike (AR(1), correlation rho): their mean varies
                          more. The fit lowers rho by about p / n, which is added back"""
    n, p, tail = residual.size, parameters, (1 + LEVEL) / 2
    freedom = max(n - p, 1)
    rho = np.clip(autocorrelation(residual) + p / n, 0, RHO_MAX)
    t, z = stdtrit(freedom, tail), ndtri(tail)
    noise = (residual - residual.mean()) * (np.sqrt(n / freedom * (1 + rho) / (1 - rho)) * t / z)
    # A flat curve may leave residuals near 0. Then take normal noise of size `least`.
    return noise if noise.std() >= least else least * ndtri((np.arange(n) + 0.5) / n)


def replicates(search, theta, angles, R, bootstrap, seed, step_0):
    """The residual bootstrap of a fit (theta, angles) to R (n,) -> Replicates. (To draw evaluations
    would lose early ones.) A measured R0, the mean of `step_0` evaluations, gets noise too."""
    curve, n = law_at(search.law, search.C, *theta), R.size
    if n + bool(step_0) <= search.parameters + 1:   # too few evaluations, step 0 included
        bootstrap = 0
    noise = widened(R - curve, search.parameters, search.least)
    rng = np.random.default_rng(seed)
    rewards = curve + rng.choice(noise, (bootstrap, n))                              # (S, n)
    R0 = np.full(bootstrap, theta[3])
    if step_0:
        R0 = np.clip(R0 + rng.choice(noise, (step_0, bootstrap)).mean(0), 0, 1)      # (S,)
    # Start at the fitted curve. Its angles, within +-pi / 2, avoid the ends, where sin is flat.
    start = np.clip(np.arcsin(np.sin(angles)), -1.4, 1.4)
    draws = np.reshape([search.solve(*each, [start])[0] for each in zip(rewards, R0)], (-1, 4))
    return Replicates(search.law, draws, noise)


# ----------------------------------------------------------------------------------- 4. the fit
def checked(C, R):
    """Float arrays in order of compute, or BadInput."""
    C, R = np.ravel(np.asarray(C, float)), np.ravel(np.asarray(R, float))
    if C.size != R.size:
        raise BadInput(f"compute has {C.size} values and reward has {R.size}: they must pair up")
    if (bad := C[~((0 <= C) & (C < np.inf))]).size:
        raise BadInput(f"compute {bad[0]:g} is not a finite number >= 0")
    if (bad := R[~((0 <= R) & (R <= 1 + 1e-9))]).size:
        raise BadInput(f"reward {bad[0]:g} is not a pass rate in [0, 1]: map other scales onto it")
    order = np.argsort(C, kind="stable")
    return C[order], np.minimum(R[order], 1)


def points_to_fit(C, R, R0, law, c_min, c_max):
    """Choose the evaluations to fit -> C, R (n,); R0 (0.0: fitted or unused); Fit.R0_from; how many
    step-0 evaluations R0 is the mean of."""
    step_0, R0_from = R[C == 0], "given"
    if R0 == "fit" or (R0 is None and not step_0.size):
        R0, R0_from = 0.0, "unused" if law == "power" else "fitted"
    elif R0 is None:
        R0, R0_from = float(step_0.mean()), "step 0"
    use = (c_min <= C) & (C <= c_max)
    # At C = 0 Eq. 1 is R0, whatever A, B, C_mid: step 0 is fitted only if R0 is.
    use = (use | (C == 0)) if R0_from == "fitted" else (use & (C > 0))
    return C[use], R[use], R0, R0_from, step_0.size if R0_from == "step 0" else 0


@dataclass(frozen=True)
class Fit:
    """One fitted curve with its uncertainty."""
    A: float
    B: float
    C_mid: float
    R0: float
    R0_from: str              # "step 0", "given", "fitted", or (power law) "unused"
    law: str
    n: int
    rmse: float               # sqrt(mean(residual^2))
    C: np.ndarray = field(repr=False)       # (n,) what was fitted, ascending
    R: np.ndarray = field(repr=False)       # (n,)
    pool: tuple = field(repr=False)         # Replicates of this law; if in POOLED, the other's too
    rivals: dict              # from compare_laws

    def curve(self, C):
        """The fitted law at C (any shape)."""
        return law_at(self.law, np.asarray(C, float), self.A, self.B, self.C_mid, self.R0)

    @property
    def ci(self):
        """{"A": (low, high), ...}: 90% intervals, if this law were exact."""
        return dict(zip(THETA, zip(*interval(self.pool[0].draws).tolist())))

    @property
    def no_interval(self):
        """Why no forecast has an interval, or ""."""
        if not len(self.pool[0].draws):
            return f"{self.n} evaluations, too few for the parameters, or no bootstrap"
        flat = self.rivals["constant"]["delta_aic"] < RIVAL
        return "a constant fits as well: the fitted evaluations show no rise" if flat else ""

    def paths(self, C, noise=False):
        """The curves of all laws in the pool at C (k,) -> (S or 2 S, k)."""
        return np.concatenate([each.paths(C, noise) for each in self.pool])

    def futures(self, C, noise=False):
        """What may come at C (k,) -> (S or 2 S, k) in [0, 1]; no rows if `no_interval`. With
        `noise`, that of an evaluation, too.

        The bootstrap alone is too narrow: no law is exact, no run is smooth. So each replicate
        draws two standard normals, z1 and z2. Beyond the last fitted C it is moved by
            z1 * LAW_ERROR * (its rise since that C) + z2 * RUN_ERROR * (doublings of C since then)
        Ours, chosen by coverage of real runs (results/forecast)."""
        C, end = np.asarray(C, float), self.C[-1:]
        if self.no_interval:
            return np.empty((0, C.size))
        ahead, now = np.maximum(C, end), self.paths(end)
        z1, z2 = np.random.default_rng(1).normal(0, 1, (2, *now.shape))
        rise, doublings = self.paths(ahead) - now, np.log2(ahead / end)
        errors = LAW_ERROR * z1 * rise + RUN_ERROR * z2 * doublings
        return np.clip(self.paths(C, noise) + errors, 0, 1)

    def predict(self, C):
        """(curve, low, high) at C, each of C's shape: this law; ends of the interval, or nan."""
        return self.curve(C), *interval(self.futures(np.ravel(C))).reshape(2, *np.shape(C))

    def compute_for(self, R):
        """The compute at which the curve reaches R."""
        return float(compute_needed(self.law, R, self.A, self.B, self.C_mid, self.R0))


def fit_curve(C, R, R0=None, *, method="free", law="sigmoid", c_min=None, c_max=None,
              answers=None, bootstrap=200, seed=0, A_range=None, C_mid_nodes=None) -> Fit:
    """Fit pass rates R (n,) against compute C (n,).

    R0          a number, held fixed; "fit": fitted; None: the mean of R at C = 0, held fixed, or
                "fit" if there is none
    method      "free", or "grid": A.5's way, on nodes of ours
    law         "sigmoid" (Eq. 1), "stretched" (ours), "power" (A.4)
    c_min, c_max  evaluations with less or more compute are not fitted; C = 0 still gives R0
    answers     problems times samples of an evaluation: noise is their binomial error or more
    bootstrap   replicates; 0: no intervals
    A_range     (low, high); None: (R0, 1), or (0, 1) if R0 is fitted; equal numbers fix A
    C_mid_nodes for "grid"; None: 400 nodes
    Raises BadInput (a ValueError)."""
    C, R = checked(C, R)
    if law not in LAWS or method not in ("free", "grid"):
        raise BadInput(f"law {law!r}, method {method!r}: it takes {', '.join(LAWS)}; free, grid")
    C, R, R0, R0_from, step_0 = points_to_fit(
        C, R, R0, law, c_min or 0, np.inf if c_max is None else c_max)
    if not 0 <= R0 <= 1:
        raise BadInput(f"R0 is a pass rate in [0, 1], got {R0:g}")
    amounts = np.unique(C[C > 0])
    if amounts.size < 3:
        raise BadInput(f"only {amounts.size} different amounts of compute can be fitted (step 0 "
                       "only gives R0; c_min and a cut leave out others): take 3, better 20")
    first, last = amounts[[0, -1]]
    low, high = A_range or (R0, 1.0)
    if not 0 <= low <= high <= 1:
        raise BadInput(f"A_range ({low:g}, {high:g}) is not usable: 0 <= low <= high <= 1")
    box = [np.log((first / 100, 10 * last)), np.log(B_RANGE)]               # of C_mid and B
    if R0_from in ("fitted", "unused"):       # if "unused", the rival fits R0
        box.append((0.0, R.mean()))           # a curve that rises starts below the mean

    least = max(NOISE, np.sqrt(R.mean() * (1 - R.mean()) / answers) if answers else 0)
    search = Search(law, C, (low, high), np.array(box), least)
    rival = replace(search, law="sigmoid" if law == "stretched" else "stretched")
    if law == "power":        # no R0 to fit; C_mid may lie long before the data
        search = replace(search, box=np.array([box[0] - [np.log(1e4), 0], box[1]]))
    theta, angles = search.fit(R, R0)
    its_theta, its_angles = rival.fit(R, R0)
    pool = [replicates(search, theta, angles, R, bootstrap, seed, step_0)]
    if law in POOLED:
        pool.append(replicates(rival, its_theta, its_angles, R, bootstrap, seed, step_0))
    rivals = compare_laws(search, theta, rival, its_theta, R)

    # Only theta is the grid's: intervals and rivals stay those of the free fit. (1e-9: for an R0
    # of .28 the first node is 56 A_STEP, although .28 / .005 is 56.00000000000001.)
    if method == "grid":
        first_node = low if A_range else np.ceil(theta[3] / A_STEP - 1e-9) * A_STEP
        A_nodes = np.arange(first_node, high + 1e-9, A_STEP).round(12)
        if C_mid_nodes is None:
            C_mid_nodes = np.geomspace(first / (1e5 if law == "power" else 10), 2 * last, 400)
        theta = grid_search(search, R, theta[3], A_nodes, np.asarray(C_mid_nodes, float))

    rmse = float(np.sqrt(((R - law_at(law, C, *theta)) ** 2).mean()))
    fit = Fit(*map(float, theta), R0_from, law, n=R.size, rmse=rmse, C=C, R=R, pool=tuple(pool),
              rivals=rivals)
    if fit.no_interval:     # a flat curve: any B and C_mid would fit
        risen = R0_from in ("step 0", "given") and R.mean() - R0 > 3 * pool[0].noise.std()
        fit.pool[0].draws[:, (1 if risen else 0):3] = np.nan    # and any A, if R has not risen
    return fit


# ------------------------------------------------------------------------------ 5. prediction
# Three parameters fit any rising run: a small error on the fitted evaluations proves nothing.
def line_at(C, R, C_at):
    """A straight line in log C, at C_at (k,) -> (k,), for fitting/. It is fitted to the last half
    of the amounts of compute after step 0, and to three at least."""
    amounts = np.unique(C[C > 0])
    late = C >= amounts[-max(3, amounts.size // 2):][0]
    return np.polyval(np.polyfit(np.log(C[late]), R[late], 1), np.log(C_at))


def held_out(C, R, early):
    """How well `early`, a fit to the first part of C, R (n,), predicted the end. To compare, the
    naive forecast is the mean of its last three evaluations."""
    k = min(LAST, (C > early.C[-1]).sum())
    if not k:
        raise BadInput(f"the cut leaves nothing to predict: data end at {C[-1]:.3g}, a share at 1")
    naive, measured, predicted = early.R[-3:].mean(), R[-k:].mean(), early.curve(C[-k:]).mean()
    # What is measured is the mean of k noisy evaluations.
    low, high = interval(early.futures(C[-k:], noise=True).mean(1))
    return dict(evaluations=k, predicted=predicted, lo=low, hi=high, measured=measured,
                error=predicted - measured, naive=naive, naive_error=naive - measured)


if __name__ == "__main__":
    from fitting.command import main
    raise SystemExit(main())
