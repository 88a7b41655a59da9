"""Exercise 7 by values: random runs and boxes; printed formulas, scipy's bounded least squares, and
the project's own bootstrap are the truth."""
import math

import numpy as np
from scipy import stats
from scipy.optimize import least_squares

import fit
from course.hidden.values import close, equal, holds, numbers, parts

PARTS, part = parts()
CHANCE = 1e-8                                       # of a right solution to fail a test of draws


def plain_law(law, C, A, B, C_mid, R0):
    C = np.asarray(C, float)
    if law == "power":
        return A - (A - R0) * C_mid ** B / C ** B
    if law == "stretched":
        return R0 + (A - R0) * (1 - 2 ** -((C / C_mid) ** B))
    with np.errstate(divide="ignore"):          # C = 0: C_mid / C is infinite, and all is R0
        return R0 + (A - R0) / (1 + (C_mid / C) ** B)


def random_run(rng, n, sd):
    """(C, R, truth): three step-0 evaluations, then n more."""
    end = 10 ** rng.uniform(1, 18)
    truth = dict(A=rng.uniform(0.6, 0.9), B=rng.uniform(1.2, 3), C_mid=end * rng.uniform(0.2, 0.4),
                 R0=rng.uniform(0.1, 0.35))
    C = np.concatenate([[0, 0, 0], np.sort(rng.uniform(end / 50, end, n))])
    R = plain_law("sigmoid", C, **truth) + rng.normal(0, sd, n + 3)
    return C, np.clip(R, 0, 1), {name: float(x) for name, x in truth.items()}


def box_of(C):
    return np.log([(C[0] / 100, C[-1] * 10), (0.1, 20)])


@part("law_at", 1, 14)
def laws(rng, ask):
    for law in ("sigmoid", "stretched", "power") * 4:
        A, B, R0 = (float(rng.uniform(*ends)) for ends in ((0.5, 1), (0.3, 4), (0, 0.4)))
        C_mid = float(10 ** rng.uniform(0, 20))
        C = C_mid * 10 ** rng.uniform(-1, 0.5, (3, 5))
        yield close(law, ask("law_at", law=law, C=C, A=A, B=B, C_mid=C_mid, R0=R0),
                    plain_law(law, C, A, B, C_mid, R0), 1e-6, 1e-9)
    ends = ask("law_at", law="sigmoid", C=np.array([0.0, 1e-9, 1e22, 1e30]), A=0.6, B=20.0,
               C_mid=1e22, R0=0.2)
    yield close("no compute, and a lot", ends, [0.2, 0.2, 0.4, 0.6])
    B = rng.uniform(1, 3, (3, 1))
    C = rng.uniform(1, 9, 5)
    yield close("arguments that broadcast", ask("law_at", law="sigmoid", C=C, A=0.7, B=B,
                                                C_mid=2 * B, R0=0.2),
                [plain_law("sigmoid", C, 0.7, b, 2 * b, 0.2) for b in B[:, 0]])


@part("points_to_fit", 1.5, 13)
def points(rng, ask):
    def of(C, R, R0, law, first, last):
        found = ask("points_to_fit", C=C, R=R, R0=R0, law=law, first=first, last=last)
        return [np.asarray(found[0]).tolist(), np.asarray(found[1]).tolist(),
                round(float(numbers(found[2])), 9), found[3], int(numbers(found[4]))]
    for _ in range(2):
        C, R, _ = random_run(rng, int(rng.integers(12, 30)), 0.02)
        first, last = map(float, sorted(rng.choice(C[3:], 2, replace=False)))
        inside, none = (first <= C) & (C <= last), C == 0
        step_0 = round(float(R[:3].mean()), 9)
        for R0, law, use, right in (
                (None, "sigmoid", inside, [step_0, "step 0", 3]),
                ("fit", "stretched", inside | none, [0.0, "fitted", 0]),
                (0.17, "sigmoid", inside, [0.17, "given", 0]),
                (None, "power", inside, [step_0, "step 0", 3])):
            yield equal(f"R0 = {R0}, {law}", of(C, R, R0, law, first, last),
                        [C[use].tolist(), R[use].tolist(), *right])
        later = (0 < C) & (C <= last)
        yield equal("from the start, without step 0", of(C, R, None, "sigmoid", 0.0, last),
                    [C[later].tolist(), R[later].tolist(), step_0, "step 0", 3])
    for law, name in (("sigmoid", "fitted"), ("power", "unused"), ("stretched", "fitted")):
        yield equal("no evaluation at C = 0", of(C[3:], R[3:], None, law, 0.0, math.inf),
                    [C[3:].tolist(), R[3:].tolist(), 0.0, name, 0])


@part("Search.at", 3, 36)
def at(rng, ask):
    for trial in range(6):
        C, R, truth = random_run(rng, int(rng.integers(5, 40)), 0.03)
        C, R, R0 = C[3:], R[3:], truth["R0"]
        low, high = (R0, 1.0) if trial < 4 else map(float, sorted(rng.uniform(0.4, 0.8, 2)))
        box = box_of(C)
        if trial % 2:
            box = np.concatenate([box, [(0.0, 0.5)]])
        x = rng.uniform(-4, 4, (len(box), 6))
        law = "stretched" if trial == 2 else "sigmoid"
        found, residual = ask("search_at", law=law, C=C, A_range=[low, high], box=box, x=x, R=R,
                              R0=R0)
        equal("residuals, a row for each angle", numbers(residual).shape, (6, C.size))
        for i in range(6):
            values = [lo + (hi - lo) * (math.sin(a) + 1) / 2 for a, (lo, hi) in zip(x[:, i], box)]
            B, C_mid, start = math.exp(values[1]), math.exp(values[0]), (*values, R0)[2]
            g = plain_law(law, C, 1.0, B, C_mid, 0.0)
            A, *mine = (float(np.broadcast_to(numbers(each), 6)[i]) for each in found)
            close("B, C_mid, R0", mine, [B, C_mid, start], 1e-6)

            def sse(A):
                return ((R - start - np.multiply.outer(A - start, g)) ** 2).sum(-1)
            best = sse(np.linspace(min(max(low, start), high), high, 4001)).min()
            holds(f"A = {A:.4f} is not the best one", sse(A) <= best * (1 + 1e-9) + 1e-12)
            holds(f"A = {A:.4f} is outside of its range",
                  start > high or min(low, 1) - 1e-9 <= A <= high + 1e-9)
            yield close("the residual", numbers(residual)[i], R - start - (A - start) * g, 1e-6)


@part("Search.starts", 2.5, 32)
def starts(rng, ask):
    lost = near = 0
    nodes = np.arcsin(np.linspace(-0.95, 0.95, 20)), np.arcsin(np.linspace(-0.95, 0.95, 10))
    small = np.stack(np.meshgrid(*nodes)).reshape(2, -1)
    for _ in range(30):
        n, end, B = rng.integers(5, 50), 10 ** rng.uniform(0, 20), rng.uniform(0.5, 6)
        C = np.geomspace(end / 100, end, n)
        R0, gain, C_mid = rng.uniform(0, 0.5), rng.uniform(0.1, 0.5), end * rng.uniform(0.03, 2)
        R = plain_law("sigmoid", C, R0 + gain, B, C_mid, R0)
        R = np.clip(R + rng.normal(0, rng.choice([0.003, 0.03]), n), 0, 1)
        x, theta = ask("starts", law="sigmoid", C=C, A_range=[float(R0), 1.0], box=box_of(C), R=R,
                       R0=float(R0))
        x = numbers(x)
        yield holds("four rows of angles, at four C_mid", x.shape == (4, 2) and len(
            {round(math.sin(row[0]), 6) for row in x}) == 4)
        ours = fit.Search("sigmoid", C, (float(R0), 1.0), box_of(C))
        best, node = ((ours.at(angles, R, R0)[1] ** 2).sum(-1).min() for angles in (x.T, small))
        near += bool(best <= 2 * node)
        theta = numbers(theta).tolist()
        sse = ((R - plain_law("sigmoid", C, *theta)) ** 2).sum()
        nodes = np.log(np.geomspace(C[0] / 100, C[-1] * 10, 200))[:, None, None]
        g = 1 / (1 + np.exp((nodes - np.log(C)) * np.geomspace(0.1, 20, 70)[:, None]))
        best = np.clip(R0 + ((R - R0) * g).sum(-1) / (g * g).sum(-1), R0, 1)
        table = ((R - R0 - (best - R0)[..., None] * g) ** 2).sum(-1)
        lost += bool(sse > 1.001 * table.min() + 1e-9)
    yield holds(f"in {lost} of 30 runs the search ended in a valley that is not the deepest",
                lost < 5)
    yield holds(f"in {near} of 30 runs a start is as good as the best node of a small table",
                near >= 24)


@part("fits of whole runs", 1.5, 12)
def fits(rng, ask):
    runs = [random_run(rng, int(rng.integers(9, 40)), 0.012) for _ in range(4)]
    found = ask("fit_runs", runs=[[C, R] for C, R, _ in runs])
    for (C, R, _), (n, R0, A, B, C_mid, _) in zip(runs, found, strict=True):
        x, y, right = C[3:], R[3:], R[:3].mean()

        def residual(t):
            return y - plain_law("sigmoid", x / x[-1], t[0], math.exp(t[1]), math.exp(t[2]), right)
        low, high = [right, math.log(0.1), math.log(x[0] / x[-1] / 100)], [1, math.log(20),
                                                                          math.log(10)]
        best = 2 * min(least_squares(residual, start, bounds=(low, high)).cost
                       for start in rng.uniform(low, high, (20, 3)))
        yield close("n and R0", [n, R0], [len(x), right])
        sse = ((y - plain_law("sigmoid", x, *map(float, (A, B, C_mid, R0)))) ** 2).sum()
        yield holds(f"scipy finds a lower sum of squares, {best:.6f} against {sse:.6f}",
                    sse <= best * 1.0001 + 1e-12)
        yield holds("a ceiling between R0 and 1", right - 1e-9 <= A <= 1 + 1e-9)


@part("compare_laws", 1, 10)
def rivals(rng, ask):
    for _ in range(5):
        C, R, truth = random_run(rng, int(rng.integers(8, 40)), 0.02)
        C, R, n = C[3:], R[3:], len(C) - 3
        theta = [truth[name] for name in fit.THETA]
        other = [theta[0] - 0.05, theta[1] * 1.2, theta[2] * 0.9, theta[3]]
        found = ask("compare_laws", law="sigmoid", C=C, A_range=[theta[3], 1.0], box=box_of(C),
                    theta=theta, rival="stretched", its_theta=other, R=R)

        def aic(curve, p):
            return n * math.log(np.mean((R - curve) ** 2) + 1e-12) + 2 * p
        ours = aic(plain_law("sigmoid", C, *theta), 3)
        right = {"stretched": (other[0], aic(plain_law("stretched", C, *other), 3) - ours),
                 "constant": (R.mean(), aic(R.mean(), 1) - ours)}
        yield equal("the rivals", sorted(found), sorted(right))
        yield close("[A, delta_aic] of each",
                    [[found[name]["A"], found[name]["delta_aic"]] for name in sorted(right)],
                    [right[name] for name in sorted(right)], 1e-4, 1e-4)


@part("replicates", 2.5, 19)
def bootstrap(rng, ask):
    for trial in range(2):
        n, step_0 = int(rng.integers(12, 30)), (1, 3)[trial]
        C, R, _ = random_run(rng, n, 0.02)
        C, R, R0 = C[3:], R[3:], float(R[:3].mean())
        A_range = [R0, 1.0]
        search = fit.Search("sigmoid", C, tuple(A_range), box_of(C))
        theta, angles = search.solve(R, R0, search.starts(R, R0))
        given = dict(law="sigmoid", C=C, A_range=A_range, box=box_of(C), theta=theta,
                     angles=angles, R=R)
        draws, noise, law = ask("replicates", **given, bootstrap=300, seed=5, step_0=step_0)
        right = fit.replicates(search, theta, angles, R, 300, 6, step_0)
        yield equal("the law", law, "sigmoid")
        yield close("the noise", np.sort(numbers(noise)), np.sort(right.noise), 1e-6, 1e-9)
        yield equal("draws (S, 4)", numbers(draws).shape, (300, 4))
        # Also the size of the rise: chance moves A and R0 together.
        for name, mine, theirs in zip((*fit.THETA, "A - R0"),
                                      (*numbers(draws).T, np.subtract(*numbers(draws).T[[0, 3]])),
                                      (*right.draws.T, np.subtract(*right.draws.T[[0, 3]]))):
            yield holds(f"{name} of the replicates is distributed otherwise than it must be",
                        stats.ks_2samp(mine, theirs).pvalue > CHANCE)
    again, other = (ask("replicates", **given, bootstrap=20, seed=seed, step_0=1)[0]
                    for seed in (5, 8))
    twice = ask("replicates", **given, bootstrap=20, seed=5, step_0=1)[0]
    yield holds("one seed, one result; two seeds, two", numbers(again).tolist()
                == numbers(twice).tolist() != numbers(other).tolist())
    fixed = ask("replicates", **given, bootstrap=20, seed=5, step_0=0)[0]
    yield holds("a given R0 has no noise", bool((numbers(fixed)[:, 3] == theta[3]).all()))
    few = dict(given, C=C[:3], R=R[:3])
    yield equal("a curve through every point has no replicates",
                numbers(ask("replicates", **few, bootstrap=20, seed=5, step_0=1)[0]).shape, (0, 4))


@part("Replicates.paths", 1, 10)
def paths(rng, ask):
    S = 900
    draws = np.stack([rng.uniform(0.7, 0.9, S), rng.uniform(1, 3, S), rng.uniform(2, 4, S),
                      rng.uniform(0.2, 0.3, S)], 1)
    values, C = rng.normal(0, 0.02, 5), rng.uniform(1, 9, 3)
    curves = np.array([plain_law("sigmoid", C, *draw) for draw in draws])
    given = dict(law="sigmoid", draws=draws, noise=values, C=C)
    yield close("the curve of each draw", ask("paths", **given, with_noise=False), curves)
    added = numbers(ask("paths", **given, with_noise=True)) - curves
    which = np.abs(added[:, :, None] - values)
    yield holds("noise is drawn from `noise`", which.min(-1).max() < 1e-9)
    which = which.argmin(-1)
    for column in which.T:
        yield holds("all values of noise are drawn alike", stats.chisquare(
            np.bincount(column, minlength=5)).pvalue > CHANCE)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        table = np.histogram2d(which[:, i], which[:, j], (5, 5))[0]
        yield holds("each number has noise of its own",
                    stats.chisquare(table.ravel()).pvalue > CHANCE)
    yield close("one amount of compute", ask("paths", **dict(given, C=C[:1]), with_noise=False),
                curves[:, :1])
    late = ask("paths", **dict(given, law="stretched"), with_noise=False)
    yield close("another law", late, [plain_law("stretched", C, *draw) for draw in draws])
