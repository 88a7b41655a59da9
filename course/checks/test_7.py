"""Public checks of exercise 7, the fit (course/7_sigmoid.md). Run: make check EX=7"""

import csv
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import least_squares

import fit
from fit import Replicates, Search, fit_curve, law_at, points_to_fit, replicates

DEMO = Path(__file__).parents[2] / "results" / "demo"


def plain_law(law, C, A, B, C_mid, R0):
    """The laws as they are printed, for one number C."""
    if law == "sigmoid":
        return R0 + (A - R0) / (1 + (C_mid / C) ** B)
    if law == "stretched":
        return R0 + (A - R0) * (1 - 2 ** -((C / C_mid) ** B))
    if law == "power":
        return A - (A - R0) * C_mid ** B / C ** B
    return R0 + (A - R0) / (1 + math.exp(-B / C_mid * (C - C_mid)))


def made(n=24, sd=0.01, seed=0, A=0.8, B=1.9, C_mid=300.0, R0=0.25, end=900.0):
    """A made run: compute and noisy pass rates of a known sigmoid, step 0 included."""
    C = np.linspace(0, end, n + 1)
    R = [R0] + [plain_law("sigmoid", c, A, B, C_mid, R0) for c in C[1:]]
    return C, np.clip(R + np.random.default_rng(seed).normal(0, sd, n + 1), 0, 1)


def search_of(C, R0, law="sigmoid", A_range=None, fit_R0=None):
    box = [np.log((C[0] / 100, C[-1] * 10)), np.log((0.1, 20))]
    return Search(law, C, A_range or (R0, 1.0), np.array(box + ([fit_R0] if fit_R0 else [])))


# -- law_at ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("law", fit.LAWS)
def test_the_laws_are_the_printed_ones(law):
    theta = dict(A=0.71, B=1.4, C_mid=250.0, R0=0.23)
    C = np.array([60.0, 250.0, 900.0, 4e4])
    found = law_at(law, C, **theta)
    right = np.array([plain_law(law, c, **theta) for c in C])
    hints = {"R0 is forgotten: the curve starts at R0 and only the rest, A - R0, is gained.":
                 theta["A"] * share_of_gain(law, C, theta),
             "The gain is A - R0, not A.": theta["R0"] + theta["A"] * share_of_gain(law, C, theta)}
    hint = "".join(text for text, wrong in hints.items() if np.allclose(found, wrong))
    assert np.allclose(found, right), (
        f"{law}: at C = {C} you give {found}, it should be {right.round(4)}. {hint}")


def share_of_gain(law, C, theta):
    """The share of the gain."""
    return (np.array([plain_law(law, c, **theta) for c in C]) - theta["R0"]) / (
        theta["A"] - theta["R0"])


def test_the_law_is_R0_at_no_compute_and_broadcasts():
    for B in (0.1, 20.0):
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            ends = law_at("sigmoid", np.array([0.0, 1e-9, 1e22, 1e30]), 0.6, B, 1e22, 0.2)
        assert np.isfinite(ends).all() and ends[0] == 0.2, (
            f"C = 0, 1e-9, 1e22, 1e30 with B = {B} give {ends}: it should be R0 = .2 at C = 0, and "
            "finite everywhere.")
        assert not raised, (
            f"B = {B}, C = 0 to 1e30: numpy warns, {raised[0].message}. C = 0 has no logarithm: "
            "use "
            "1e-300 in its place.")
    ones = np.ones((3, 1))
    many = law_at("sigmoid", np.ones(5), 0.6 * ones, ones, ones, 0.2)
    assert np.shape(many) == (3, 5) and np.allclose(many, 0.4), (
        "C (5,) and A, B, C_mid (3, 1) of ones broadcast to (3, 5), here all R0 + (A - R0) / 2 = "
        ".4.")


# -- points_to_fit ---------------------------------------------------------------------------------

C6 = np.array([0.0, 0, 0, 10, 20, 30, 40, 50])
R6 = np.array([0.3, 0.1, 0.23, 0.4, 0.5, 0.6, 0.66, 0.7])


def test_R0_is_measured_at_step_0():
    C, R, R0, where, count = points_to_fit(C6, R6, None, "sigmoid", 0.0, np.inf)
    assert where == "step 0", (f"There are three evaluations at C = 0, and R0 is {where!r}. R0 is "
                               "measured, "
                               "not fitted: nothing moves the other numbers more.")
    assert R0 == pytest.approx(0.21) and count == 3, (
        f"R0 is {R0:.3f} from {count} evaluations; it should be the mean of the three at C = 0, "
        ".21.")
    assert C.tolist() == [10, 20, 30, 40, 50] and R.tolist() == R6[3:].tolist(), (
        f"Fitted are C = {C}. At C = 0 the law is R0 whatever A, B and C_mid: these points are not "
        "fitted again.")


def test_only_the_window_is_fitted_and_R0_is_from_before_it():
    C, R, R0, where, count = points_to_fit(C6, R6, None, "sigmoid", 20.0, 40.0)
    assert C.tolist() == [20, 30, 40], (
        f"From c_min = 20 to c_max = 40, C = {C} are fitted: it should be 20, 30, 40, both ends "
        "included. "
        "A fit that has seen what it predicts predicts nothing.")
    assert R.tolist() == R6[4:7].tolist(), "R does not belong to C any more."
    assert (where, count) == ("step 0", 3) and R0 == pytest.approx(0.21), (
        "With c_min = 20, R0 is still that of C = 0: take it before you cut the window.")


def test_R0_given_fitted_or_unused():
    C, _, R0, where, count = points_to_fit(C6, R6, 0.2, "sigmoid", 0.0, np.inf)
    assert (R0, where, count, C[0]) == (0.2, "given", 0, 10), (
        f"R0 = .2 is given. You return R0 {R0}, {where!r}, the mean of {count} evaluations, and "
        "fit "
        f"from C = {C[0]:g} on; it should be .2, 'given', of 0 evaluations, from C = 10 on.")
    C, _, R0, where, count = points_to_fit(C6, R6, "fit", "sigmoid", 15.0, np.inf)
    assert (R0, where, count) == (0.0, "fitted", 0), f"'fit': got R0 {R0}, {where!r}, {count}."
    assert C.tolist() == [0, 0, 0, 20, 30, 40, 50], (
        f"A fitted R0 needs the evaluations at C = 0, from before c_min too; fitted are C = {C}.")
    without = points_to_fit(C6[3:], R6[3:], None, "sigmoid", 0.0, np.inf)
    assert without[2:] == (0.0, "fitted", 0), "No evaluation at C = 0 and R0 = None: it is fitted."
    without = points_to_fit(C6[3:], R6[3:], None, "power", 0.0, np.inf)
    assert without[2:] == (0.0, "unused", 0), "The power law has no start: R0 is 0.0, 'unused'."


# -- Search.at -------------------------------------------------------------------------------------

def by_hand(search, x, R, R0):
    """(A, B, C_mid, R0) and residual for one list of angles x; A by trying 20,001 of them."""
    values = [low + (high - low) * (math.sin(angle) + 1) / 2
              for angle, (low, high) in zip(x, search.box)]
    C_mid, B = math.exp(values[0]), math.exp(values[1])
    R0 = values[2] if len(values) > 2 else R0
    g = np.array([plain_law(search.law, c, 1.0, B, C_mid, 0.0) for c in search.C])
    low, high = max(search.A_range[0], min(R0, search.A_range[1])), search.A_range[1]
    A = np.linspace(low, high, 20_001)
    sse = ((R - R0 - (A[:, None] - R0) * g) ** 2).sum(1)
    A = A[sse.argmin()]
    return (A, B, C_mid, R0), R - R0 - (A - R0) * g, g


def check_at(search, x, R, R0):
    theta, residual, g = by_hand(search, x, R, R0)
    found, left = search.at(np.array(x), R, R0)
    names = ("A", "B", "C_mid", "R0")
    values = dict(zip(names, map(float, found)))
    if not np.isclose(values["C_mid"], theta[2]):
        hint = "The box is in logarithms: exp is missing." if np.isclose(
            values["C_mid"], math.log(theta[2])) else (
                "x[0] and box[0] are C_mid's: exp of low + (high - low) (sin x + 1) / 2.")
        pytest.fail(f"C_mid is {values['C_mid']:.5g}, it should be {theta[2]:.5g}. "
                    f"{hint}", pytrace=False)
    assert np.isclose(values["B"], theta[1]), (
        f"B is {values['B']:.5g}, it should be {theta[1]:.5g}: x[1], box[1], a logarithm as well.")
    assert np.isclose(values["R0"], theta[3]), (
        f"R0 is {values['R0']:.4f}, it should be {theta[3]:.4f}: with three rows in the box it is "
        "x[2]'s, "
        "and not a logarithm; with two rows it is the argument.")
    if abs(values["A"] - theta[0]) > 1e-4:
        free = theta[3] + ((R - theta[3]) * g).sum() / (g * g).sum()
        no_R0 = (R * g).sum() / (g * g).sum()
        hint = (f"That is the best A without its range [max(R0, {search.A_range[0]:.2f}), "
                f"{search.A_range[1]:.2f}]: a pass rate is at most 1, a ceiling not below R0."
                if np.isclose(values["A"], free) else
                "R0 is forgotten: the regression is of the gains R - R0 on g."
                if np.isclose(values["A"], no_R0) or np.isclose(values["A"], no_R0 + theta[3]) else
                "Given g it is a regression through the origin of the gains R - R0 on g.")
        pytest.fail(f"A is {values['A']:.4f}, the best one is {theta[0]:.4f}. "
                    f"{hint}", pytrace=False)
    assert np.shape(left) == search.C.shape and np.allclose(left, residual, atol=1e-4), (
        "A, B, C_mid and R0 are right, the residual is not R - R(C), one number an evaluation.")


@pytest.mark.parametrize("law", ["sigmoid", "stretched"])
def test_given_its_angles_a_curve_has_the_best_ceiling(law):
    C, R = made()
    search = search_of(C[1:], R[0], law)
    for x in ([0.4, -0.3], [0.1, 0.2], [4.0, -0.9]):
        check_at(search, x, R[1:], R[0])


def test_the_ceiling_stays_in_its_range():
    C, R = made(end=250.0)                          # no bend yet: the best ceiling is above 1
    check_at(search_of(C[1:], R[0]), [1.2, -0.2], R[1:], R[0])
    check_at(search_of(C[1:], 0.6), [0.2, 0.1], np.full(24, 0.3), 0.6)      # it falls: A = R0
    check_at(search_of(C[1:], R[0], A_range=(0.5, 0.55)), [0.1, 0.1], R[1:], R[0])
    check_at(search_of(C[1:], R[0], A_range=(0.9, 0.9)), [0.1, 0.1], R[1:], R[0])


def test_R0_may_be_fitted():
    C, R = made()
    check_at(search_of(C[1:], 0.0, fit_R0=(0.0, 0.5)), [0.3, -0.2, 0.7], R[1:], 0.0)


def test_many_angles_at_once():
    C, R = made()
    search = search_of(C[1:], R[0])
    x = np.random.default_rng(0).uniform(-1, 1, (2, 7))
    found, residual = search.at(x, R[1:], R[0])
    assert np.shape(residual) == (7, 24), (
        f"Angles (2, 7) and 24 evaluations give residuals {np.shape(residual)}: it should be (7, "
        "24).")
    for i in range(7):
        theta, left, _ = by_hand(search, x[:, i], R[1:], R[0])
        assert np.allclose([np.broadcast_to(each, 7)[i] for each in found], theta, rtol=1e-3), (
            "Angles one by one give other parameters than all at once.")
        assert np.allclose(residual[i], left, atol=1e-4)


# -- Search.starts ---------------------------------------------------------------------------------

def test_the_search_starts_at_four_places():
    C, R = made()
    for fitted in (None, (0.0, 0.5)):
        search = search_of(C[1:], R[0], fit_R0=fitted)
        x = np.asarray(search.starts(R[1:], R[0]))
        assert x.shape == (4, len(search.box)), f"starts has shape {x.shape}: four rows of angles."
        C_mid = {round(math.sin(row[0]), 6) for row in x}
        hint = ("All are one start, like the default of curve_fit: it ends in the valley where it "
                "happens to begin." if len(C_mid) == 1 else
                "The best four nodes of a table are often neighbors: take the best of each C_mid.")
        assert len(C_mid) == 4, f"The four starts have {len(C_mid)} different C_mid. {hint}"
        best = min((search.at(row, R[1:], R[0])[1] ** 2).sum() for row in x)
        rng = np.random.default_rng(0).uniform(-1.4, 1.4, (200, len(search.box)))
        luck = np.median([(search.at(row, R[1:], R[0])[1] ** 2).sum() for row in rng])
        assert best < luck / 4, (
            "Your starts fit no better than random ones: take the table's best nodes.")


def test_the_search_finds_the_deepest_valley():
    """Runs of all lengths and noises; a dense table in plain numpy may find none lower."""
    rng, lost = np.random.default_rng(4), []
    for trial in range(60):
        n, end, B = rng.integers(5, 50), 10 ** rng.uniform(0, 20), rng.uniform(0.5, 6)
        C = np.geomspace(end / 100, end, n)
        R0, gain, C_mid = rng.uniform(0, 0.5), rng.uniform(0.1, 0.5), end * rng.uniform(0.03, 2)
        R = R0 + gain / (1 + (C_mid / C) ** B) + rng.normal(0, rng.choice([0.003, 0.03]), n)
        R = np.clip(R, 0, 1)
        search = search_of(C, R0)
        starts = search.starts(R, R0)
        places = {round(math.sin(row[0]), 6) for row in starts}
        assert len(places) == 4, (
            f"In run {trial} the four starts have {len(places)} different C_mid: the best four "
            "nodes of a table are often neighbors. Take the best of each C_mid.")
        (A, B, C_mid, _), _ = search.solve(R, R0, starts)
        sse = ((R - R0 - (A - R0) / (1 + (C_mid / C) ** B)) ** 2).sum()
        nodes = np.geomspace(C[0] / 100, C[-1] * 10, 200)[:, None, None]
        g = 1 / (1 + (nodes / C) ** np.geomspace(0.1, 20, 70)[:, None])
        best = np.clip(R0 + ((R - R0) * g).sum(-1) / (g * g).sum(-1), R0, 1)
        table = ((R - R0 - (best - R0)[..., None] * g) ** 2).sum(-1)
        lost += [trial] * bool(sse > 1.001 * table.min() + 1e-9)
    assert len(lost) < 2, (f"In {len(lost)} of 60 made runs the search ended in a valley that is "
                           "not the deepest: "
                           "least squares goes downhill from where it starts. Do your starts cover "
                           "the box, and is your table fine enough in log C_mid? At B = 20 a "
                           "valley is as narrow as the gap between two evaluations.")


# -- the fit as a whole ----------------------------------------------------------------------------

def reference(C, R, R0):
    """The sum of squares that scipy finds with plain parameters and bounds, from 40 starts."""
    def residual(t):
        return R - (R0 + (t[0] - R0) / (1 + (math.exp(t[2]) / C) ** math.exp(t[1])))
    low, high = [R0, math.log(0.1), math.log(C[0] / 100)], [1, math.log(20), math.log(C[-1] * 10)]
    starts = np.random.default_rng(0).uniform(low, high, (40, 3))
    return 2 * min(least_squares(residual, x, bounds=(low, high)).cost for x in starts)


def test_a_known_curve_is_found():
    f = fit_curve(*made(sd=0.0005), bootstrap=0)
    assert (f.A, f.B, f.C_mid) == pytest.approx((0.8, 1.9, 300), rel=0.01), (
        f"A run made with A .8, B 1.9, C_mid 300 is fitted with A {f.A:.3f}, B {f.B:.3f}, "
        f"C_mid {f.C_mid:.1f}.")


@pytest.mark.parametrize("name", ["toy8-seed15", "toy12-seed19"])
def test_the_first_half_of_a_real_run_is_fitted_as_scipy_does(name):
    with open(DEMO / "evals.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["run"] == name]
    C = np.array([float(row["compute/flops"]) for row in rows])
    R = np.array([float(row["eval/toy/mean@4"]) for row in rows])
    half = (C > 0) & (C <= C.max() / 2)
    f = fit_curve(C, R, c_max=C.max() / 2, bootstrap=0)
    assert f.n == half.sum(), f"{f.n} evaluations are fitted, {half.sum()} lie in the first half."
    assert f.R0 == R[0], f"R0 is {f.R0}, step 0 measured {R[0]}."
    assert f.rmse ** 2 * f.n <= reference(C[half], R[half], R[0]) * 1.00001, (
        f"{name}: scipy finds a better curve than yours (rmse {f.rmse:.5f}).")


# -- compare_laws ----------------------------------------------------------------------------------

def test_rivals_are_compared_by_akaikes_criterion():
    C, R = made(sd=0.02)
    C, R, R0 = C[1:], R[1:], R[0]
    ours, theirs = (0.8, 1.9, 300.0, R0), (0.7, 1.3, 280.0, R0)
    search, rival = search_of(C, R0), search_of(C, R0, "stretched")
    told = fit.compare_laws(search, np.array(ours), rival, np.array(theirs), R)

    def mse(law, theta):
        return np.mean([(r - plain_law(law, c, *theta)) ** 2 for c, r in zip(C, R)])
    aic = {"sigmoid": 24 * math.log(mse("sigmoid", ours)) + 2 * 3,
           "stretched": 24 * math.log(mse("stretched", theirs)) + 2 * 3,
           "constant": 24 * math.log(np.var(R)) + 2 * 1}
    assert set(told) == {"stretched", "constant"}, (
        f"The rivals are the other law and 'constant', not {set(told)}.")
    for name in told:
        right, found = aic[name] - aic["sigmoid"], told[name]["delta_aic"]
        hint = ("The sign: it is the rival's minus ours, below 0 if the rival fits better."
                if np.isclose(found, -right, rtol=1e-3) else
                "The parameters are not counted: 3 for a law, 1 for a constant."
                if np.isclose(found, right + 2 * 2 * (name == "constant"), rtol=1e-3) else
                "It is n times the logarithm of the mean squared error, plus 2 for each parameter.")
        assert found == pytest.approx(right, rel=1e-3), (
            f"delta_aic of {name} is {found:.2f}, it should be {right:.2f}. {hint}")
    assert told["stretched"]["A"] == 0.7 and told["constant"]["A"] == pytest.approx(R.mean()), (
        "A: the rival's ceiling; of a constant the mean.")


# -- replicates ------------------------------------------------------------------------------------

def bootstrapped(monkeypatch, step_0, n=24, bootstrap=300, seed=0, A_range=None):
    """What `replicates` gives, and every (rewards, R0) that it fitted again."""
    C, R = made(n=n, sd=0.02, seed=3)
    C, R, R0 = C[1:], R[1:], R[0]
    search = search_of(C, R0, A_range=A_range)
    theta, angles = np.array([0.8, 1.9, 300.0, R0]), np.array([0.1, -0.1])
    asked, real = [], Search.solve

    def solve(self, R, R0, starts):
        asked.append((np.array(R), float(R0)))
        return np.array([0.7 + len(asked) / 1e4, 1.5, 290.0, R0]), angles
    monkeypatch.setattr(Search, "solve", solve)
    found = replicates(search, theta, angles, R, bootstrap, seed, step_0)
    monkeypatch.setattr(Search, "solve", real)
    curve = np.array([plain_law("sigmoid", c, *theta) for c in C])
    return found, asked, curve, R - curve, R0


def widths(residual, p):
    """The factors by which residuals are made wider."""
    n = len(residual)
    rho = sum(a * b for a, b in zip(residual, residual[1:])) / sum(residual ** 2) + p / n
    rho = min(max(rho, 0), 0.8)
    return (math.sqrt(n / (n - p)), stats.t(n - p).ppf(0.95) / stats.norm.ppf(0.95),
            math.sqrt((1 + rho) / (1 - rho)))


@pytest.mark.parametrize("n", [9, 24])
def test_residuals_are_made_wider_before_they_are_drawn(n, monkeypatch):
    found, _, _, residual, _ = bootstrapped(monkeypatch, 1, n=n)
    centered = residual - residual.mean()
    freedom, student, neighbors = widths(residual, 3)
    ratio = np.std(found.noise) / np.std(centered)
    hints = {1: "They are not made wider at all.",
             student * neighbors: "sqrt(n / (n - p)) is missing: the fit has followed the noise.",
             freedom * neighbors: "Student's t over the normal distribution is missing.",
             freedom * student: "The correlation of neighbors is missing.",
             freedom: "Student's t and the correlation of neighbors are missing."}
    hint = "".join(text for wrong, text in hints.items() if np.isclose(ratio, wrong, rtol=1e-3))
    if not np.isclose(ratio, freedom * student * neighbors, rtol=1e-3):
        pytest.fail(f"{n} residuals, 3 parameters: `noise` is {ratio:.3f} times as wide as the "
                    f"residuals; it should be {freedom:.3f} (n / (n - p)) * {student:.3f} (t / z) "
                    f"* {neighbors:.3f} (neighbors). {hint}", pytrace=False)
    assert np.allclose(np.sort(found.noise), np.sort(centered * freedom * student * neighbors)), (
        "noise is the residuals minus their mean, times one factor.")


def test_a_replicate_is_the_curve_plus_noise_that_is_drawn(monkeypatch):
    found, asked, curve, residual, _ = bootstrapped(monkeypatch, 0)
    assert len(asked) == 300, f"300 replicates are asked for, {len(asked)} were fitted."
    assert np.shape(found.draws) == (300, 4)
    drawn = np.array([rewards for rewards, _ in asked]) - curve
    near = np.abs(drawn[:, :, None] - found.noise).min(-1).max()
    if near > 1e-9:
        data = np.array([rewards for rewards, _ in asked]) - (curve + residual)
        twice = np.abs(data[:, :, None] - found.noise).min(-1).max() < 1e-9
        pytest.fail("The rewards of a replicate are not the fitted curve plus values of `noise`. "
                    + ("You add the noise to the data: they have noise already." if twice else
                       "The curve is that of theta; evaluations are not drawn, noise "
                       "is."), pytrace=False)
    assert not np.allclose(np.sort(drawn, 1), np.sort(found.noise)), (
        "Each replicate has every residual once: draw with replacement.")
    assert len({row.tobytes() for row in drawn}) == 300, "Replicates have the same noise."
    assert abs(drawn.std() / found.noise.std() - 1) < 0.1
    again = bootstrapped(monkeypatch, 0)[1]
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(asked, again)), "One seed, two results."
    other = bootstrapped(monkeypatch, 0, seed=1)[1]
    assert not np.array_equal(asked[0][0], other[0][0]), "`seed` is not used."
    assert np.allclose(found.draws[:, 0], 0.7 + np.arange(1, 301) / 1e4), (
        "draws: the fits, in their order.")


def test_a_measured_R0_is_noisy_too(monkeypatch):
    for step_0 in (1, 4):
        found, asked, _, _, R0 = bootstrapped(monkeypatch, step_0, bootstrap=2000)
        spread, right = np.std([r for _, r in asked]), np.std(found.noise) / math.sqrt(step_0)
        assert spread > 1e-9, ("Every replicate has the same R0. It is the mean of noisy "
                               "evaluations, "
                            "and nothing "
                            "moves the curve more: draw it too, or the interval of B is too "
                            "narrow.")
        hint = "It is a mean of step_0 evaluations." if np.isclose(
            spread, np.std(found.noise), rtol=0.1) else ""
        assert abs(spread / right - 1) < 0.1, (
            f"R0 from {step_0} evaluations scatters by {spread:.4f}, it should be {right:.4f}. "
            f"{hint}")
        assert abs(np.mean([r for _, r in asked]) - R0) < right / 10
        assert min(r for _, r in asked) >= 0
    _, asked, _, _, R0 = bootstrapped(monkeypatch, 0)
    assert {r for _, r in asked} == {R0}, "step_0 = 0: R0 is given and has no noise."


def test_a_curve_through_every_point_has_no_replicates(monkeypatch):
    found, *_ = bootstrapped(monkeypatch, 1, n=3)
    assert np.shape(found.draws) == (0, 4), (
        "3 evaluations, 3 parameters: the residuals are 0, and an interval of no width would say "
        "\"certain\". There are no replicates then.")


# -- Replicates.paths ------------------------------------------------------------------------------

def test_paths_are_the_curves_and_with_noise_single_evaluations():
    rng = np.random.default_rng(0)
    draws = np.stack([rng.uniform(0.7, 0.9, 400), rng.uniform(1, 3, 400),
                      rng.uniform(200, 400, 400), rng.uniform(0.2, 0.3, 400)], 1)
    one = Replicates("sigmoid", draws, np.array([-0.03, 0.01, 0.02]))
    C = [100.0, 500.0, 900.0, 1300.0, 2000.0]
    curves = np.array([[plain_law("sigmoid", c, *row) for c in C] for row in draws])
    assert np.shape(one.paths(C)) == (400, 5), (
        f"5 amounts of compute: paths {np.shape(one.paths(C))}.")
    assert np.allclose(one.paths(C), curves), "paths(C) are the curves of the draws, a row each."
    added = one.paths(C, noise=True) - curves
    assert not np.allclose(added, 0), (
        "noise=True adds nothing. What will be measured is a noisy evaluation: without its noise "
        "the "
        "interval of a prediction is too narrow.")
    assert np.abs(added[:, :, None] - one.noise).min(-1).max() < 1e-9, (
        "Noise is drawn from self.noise.")
    assert np.std(added, 1).max() > 1e-6, (
        "All evaluations of a path have the same noise: draw for each one.")
    assert np.std(added, 0).max() > 1e-6, "All paths have the same noise."
    shares = [np.isclose(added, value).mean() for value in one.noise]
    assert max(shares) < 0.4, f"The values of noise are drawn with shares {np.round(shares, 2)}."
