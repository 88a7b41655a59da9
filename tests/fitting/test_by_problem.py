"""A forecast from the counts of single problems: its likelihood, its forecast, its input."""
import json

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm

from fitting import problems
from fitting.command import main
from fitting.problems import by_problem, posterior, read_counts

THETA = np.array([-0.3, 0.2, 0.6, -0.8, 0.4, 0.1, -1.5])


def made(N=300, n=10, ahead=5, k=6, never=0.1, seed=None):
    """Counts of N problems of which some are never solved, at n evaluations in the first half of
    the compute and some at its end: (C, right, C_at, the mean at the end)."""
    rng = np.random.default_rng(seed)
    u, v = rng.normal(-1, 1.5, N), np.exp(rng.normal(1, 0.4, N))
    solvable = rng.random(N) > never
    C = np.concatenate([np.linspace(0, 1, n), np.linspace(1.8, 2, ahead)])
    p = solvable * expit(u + v * C[:, None])
    right = rng.binomial(k, p)
    return C[:n] * 1e9, right[:n], C[n:] * 1e9, right[n:].mean() / k


def test_the_likelihood_is_the_integral_over_the_problems_strengths():
    """On a fine grid of both normal variables, in plain loops over problems and evaluations."""
    rng = np.random.default_rng()
    x, k, right = np.array([0.0, 0.3, 0.7, 1.0]), 3, rng.integers(0, 4, (4, 5))
    right[:, 2] = 0
    total, share = posterior(THETA, x, right, k)
    grid = np.linspace(-6, 6, 241)
    z1, z2 = np.meshgrid(grid, grid)
    weight = norm.pdf(z1) * norm.pdf(z2) * (grid[1] - grid[0]) ** 2
    rho = np.tanh(THETA[4])
    u = THETA[0] + np.exp(THETA[1]) * z1
    v = np.exp(THETA[2] + np.exp(THETA[3]) * (rho * z1 + (1 - rho ** 2) ** 0.5 * z2))
    hopeless = 1 / (1 + np.exp(-THETA[6]))
    for i in range(5):
        likelihood = np.ones_like(z1)
        for t in range(4):
            p = 1 / (1 + np.exp(-(u + v * x[t] ** np.exp(THETA[5]))))
            likelihood *= p ** right[t, i] * (1 - p) ** (k - right[t, i])
        solvable = (1 - hopeless) * (weight * likelihood).sum()
        plain = solvable + hopeless * (not right[:, i].any())
        assert total[i] == pytest.approx(np.log(plain), abs=0.02)
        assert share[i].sum() == pytest.approx(solvable / plain, abs=0.02)


@pytest.mark.days(4, turn=3)
def test_counts_of_half_a_run_foretell_its_end_where_the_last_value_is_far_from_it():
    """Three of five draws at least: the interval is of 90%, and holds the mean at the end."""
    held, errors, naive = 0, [], []
    for _ in range(5):
        C, right, C_at, end = made()
        (value, low, high), unsolved = by_problem(C, right, 6, C_at)
        assert 0 <= low <= value <= high <= 1
        assert unsolved == (right.sum(0) == 0).mean()
        held += low <= end <= high
        errors.append(abs(value - end))
        naive.append(abs(right[-3:].mean() / 6 - end))
    assert held >= 3 and np.mean(errors) < 0.5 * np.mean(naive)


def write(path, C, right, k, **more):
    path.write_text("".join(json.dumps({
        "step": i, "compute/flops": c, f"eval/toy/mean@{k}": row.mean() / k,
        f"eval/toy/right@{k}": row.tolist()} | more) + "\n" for i, (c, row) in
        enumerate(zip(C, right))))


@pytest.mark.days(4, turn=2)
def test_the_command_prints_it_and_says_what_became_of_the_unsolved(tmp_path, capsys):
    C, right, C_at, end = made()
    rest = np.concatenate([right, np.repeat(right[-1:], 5, 0)])
    rest[-5:, ~right.any(0)] = [[3]] * 5                # of six: half of the samples are right
    write(tmp_path / "evals.jsonl", np.concatenate([C, C_at]), rest, 6)
    options = [str(tmp_path), "--until", "0.5", "--out", "none"]
    assert main(options) == 0
    assert "by problem" not in capsys.readouterr().out
    assert main([*options, "--by-problem"]) == 0
    lines = capsys.readouterr().out.splitlines()
    line, = (line for line in lines if line.startswith("by problem: "))
    assert f"measured {rest[-5:].mean() / 6:.3f}" in line
    assert "at the end 50.0% of their samples were right" in line
    assert any(line.startswith("naive forecast") for line in lines)
    assert main([*options[:1], "--by-problem", "--out", "none"]) == 0
    assert "measured" not in next(line for line in capsys.readouterr().out.splitlines()
                                  if line.startswith("by problem: "))


@pytest.mark.parametrize("text, message", [
    ("no json\n", "has 0 columns"),
    ('{"compute/flops": 1, "eval/toy/mean@2": 0.5}\n', "has 0 columns eval/<task>/right@k"),
    ('{"compute/flops": 1, "eval/a/right@2": [1], "eval/b/right@2": [2]}\n', "has 2 columns"),
])
def test_a_log_without_counts_of_one_task_is_refused_in_a_sentence(tmp_path, text, message):
    (tmp_path / "evals.jsonl").write_text(text)
    with pytest.raises(problems.BadInput, match=message):
        read_counts(tmp_path)


def test_of_a_run_of_two_tasks_the_counts_are_those_of_y(tmp_path, capsys):
    """It was refused: "2 columns eval/<task>/right@k, not just one"."""
    C, right, *_ = made()
    write(tmp_path / "evals.jsonl", C, right, 6)
    lines = (tmp_path / "evals.jsonl").read_text().splitlines()
    (tmp_path / "evals.jsonl").write_text("".join(json.dumps(json.loads(line) | {
        "eval/b/right@6": [i // 2, 1, 0], "eval/b/mean@6": (i // 2 + 1) / 18}) + "\n"
        for i, line in enumerate(lines)))
    assert main([str(tmp_path), "--y", "eval/b/mean@6", "--by-problem", "--out", "none"]) == 0
    assert " of 3 problems were not solved so far" in capsys.readouterr().out
    assert read_counts(tmp_path, y="eval/toy/mean@6")[1].shape == right.shape


@pytest.mark.parametrize("key, value", [
    ("eval/toy/right@6", [7] * 300), ("eval/toy/right@6", [-1] * 300),
    ("eval/toy/right@6", [0] * 299), ("eval/toy/right@6", ["1"] * 300),
    ("eval/toy/right@6", None), ("compute/flops", None), ("compute/flops", ...)])
def test_counts_that_cannot_be_are_refused_in_a_sentence(key, value, tmp_path):
    """They gave nan, numpy's words or a traceback."""
    C, right, *_ = made()
    write(tmp_path / "evals.jsonl", C, right, 6)
    *lines, last = (tmp_path / "evals.jsonl").read_text().splitlines()
    row = json.loads(last) | {key: value}
    row = {name: cell for name, cell in row.items() if cell is not ...}
    (tmp_path / "evals.jsonl").write_text("\n".join([*lines, json.dumps(row)]))
    with pytest.raises(problems.BadInput, match="takes compute/flops in each evaluation, and in "
                       "eval/toy/right@6 for each problem a count from 0 to 6$"):
        read_counts(tmp_path)


@pytest.mark.days(4, turn=0)
def test_evaluations_are_read_in_order_of_compute_and_cut_where_the_fit_is(tmp_path, capsys):
    """The last row of the file was taken for the largest compute, --x and its scale were not
    heeded: the two forecasts of one report were of two different parts."""
    C, right, C_at, _ = made()
    C, right = np.concatenate([C, C_at]), np.concatenate([right, right[-5:]])
    write(tmp_path / "evals.jsonl", C, right, 6)
    found = []
    lines = (tmp_path / "evals.jsonl").read_text().splitlines(keepends=True)
    for order in (lines, lines[::-1]):
        (tmp_path / "evals.jsonl").write_text("".join(order))
        main([str(tmp_path), "--by-problem", "--until", "0.5", "--out", "none"])
        found.append(capsys.readouterr().out)
    assert found[0] == found[1] and "by problem: 0." in found[0]
    for cut in (["9"], ["3.6", "--x-scale", "0.4"]):            # of 14 steps
        main([str(tmp_path), "--by-problem", "--x", "step", "--until", *cut, "--out", "none"])
        line, = (line for line in capsys.readouterr().out.splitlines() if "by problem" in line)
        (value, low, high), _ = by_problem(np.arange(10.0), right[:10], 6, np.arange(10.0, 15))
        assert line.startswith(f"by problem: {value:.3f} [{low:.3f}, {high:.3f}]")


def test_a_run_without_a_rise_is_promised_none_by_problem(tmp_path, capsys):
    """Its law has no ceiling: it foretold .555 [.539, .576] to a run that had stayed at .51."""
    right = np.tile(np.arange(7), (10, 43))
    right[::2, :9] -= right[::2, :9] > 0
    write(tmp_path / "evals.jsonl", np.arange(10.0), right, 6)
    for cut in ([], ["--until", "0.6"]):
        assert main([str(tmp_path), "--by-problem", "--out", "none", *cut]) == 0
        told = capsys.readouterr().out
        assert "by problem: no forecast, a constant fits as well" in told


@pytest.mark.days(4, turn=1)
@pytest.mark.parametrize("cut", [["--until", "0.3"], ["--bootstrap", "0"]])
def test_a_forecast_by_problem_needs_no_interval_of_the_law(cut, tmp_path, capsys):
    """Three evaluations are enough for it, and it draws for itself."""
    C, right, *_ = made(N=4000, n=12)       # of 1,000 problems, 7 sets in 2,000 show no rise by 30%
    write(tmp_path / "evals.jsonl", C, right, 6)
    assert main([str(tmp_path), "--by-problem", "--out", "none", *cut]) == 0
    assert "by problem: 0." in capsys.readouterr().out


def flat(seed=3, n=12):
    """Evaluations of 512 problems with chances beta(1, 1)."""
    rng = np.random.default_rng(seed)
    return rng.binomial(4, rng.beta(1.0, 1.0, 512), (n, 512))


@pytest.mark.days(4, turn=0)
@pytest.mark.parametrize("right", [flat(), 4 * (np.arange(6)[:, None] == np.full(100, 5))])
def test_a_forecast_by_problem_is_a_number(right):
    """exp() overflowed to nan; a mean of 1 + 2e-16 had no square root."""
    C = np.arange(len(right)) * 1.0
    (value, low, high), _ = by_problem(C, right, 4, np.full(5, 2 * C[-1]), draws=20)
    assert 0 <= low <= high <= 1 and 0 <= value <= 1


@pytest.mark.days(4, turn=3)
def test_a_run_that_solved_nothing_has_no_forecast_by_problem(tmp_path, capsys):
    """[0, 0] promised that it never will. And a table has no counts of problems."""
    C, right, *_ = made()
    write(tmp_path / "evals.jsonl", C, 0 * right, 6)
    assert main([str(tmp_path), "--by-problem", "--until", "0.5", "--out", "none"]) == 0
    assert ("by problem: no forecast, none of 300 problems was solved so far\n"
            in capsys.readouterr().out)
    (tmp_path / "a.csv").write_text("step,pass_rate\n" + "".join(
        f"{i},{i / 10}\n" for i in range(8)))
    assert main([str(tmp_path / "a.csv"), "--by-problem", "--out", "none"]) == 2
    assert "a.csv has 0 columns eval/<task>/right@k" in capsys.readouterr().err


def test_two_evaluations_are_too_few_and_two_runs_too_many(tmp_path, capsys):
    C, right, C_at, _ = made()
    with pytest.raises(problems.BadInput, match="2 evaluations: --by-problem takes three"):
        by_problem(C[:2], right[:2], 6, C_at)
    for name in "ab":
        (tmp_path / name).mkdir()
        write(tmp_path / name / "evals.jsonl", C, right, 6)
    assert main([str(tmp_path / "a"), str(tmp_path / "b"), "--by-problem"]) == 2
    assert "--by-problem takes one run of one task, not 2" in capsys.readouterr().err
    assert main([f"{tmp_path / 'a'},{tmp_path / 'b'}", "--by-problem", "--out", "none"]) == 2
    assert "--by-problem takes one run of one task, not 1, nor pooled" in capsys.readouterr().err
