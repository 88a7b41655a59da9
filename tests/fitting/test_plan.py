"""The bound of a forecast, against simulated fits, and what the plan says of it."""
import numpy as np
import pytest
from scipy.optimize import least_squares

from fit import fit_curve, sigmoid
from fitting import plan
from fitting.command import main
from made_runs import made, write_run

THETA = dict(A=0.8, B=1.8, C_mid=0.4, R0=0.25)


def test_the_bound_is_the_scatter_of_fits_to_many_answers():
    """Simulated: 200 noisy runs, fitted by scipy with all four parameters free. A slope of the
    wrong scale (B for log B) or a forgotten R0 would move it by tens of percent."""
    rng, C = np.random.default_rng(), np.linspace(0, 0.9, 13)
    answers = 400_000
    p = sigmoid(C, **THETA)
    sd = np.sqrt(p * (1 - p) / answers)
    ends = []
    for _ in range(200):
        R = p + sd * rng.standard_normal(13)
        found = least_squares(lambda x: (sigmoid(C, x[0], np.exp(x[1]), np.exp(x[2]), x[3]) - R)
                              / sd, [0.8, np.log(1.8), np.log(0.4), 0.25])
        A, B, C_mid, R0 = found.x
        ends.append(sigmoid(1.5, A, np.exp(B), np.exp(C_mid), R0))
    assert plan.deviation(THETA, C, 1.5, answers) == pytest.approx(np.std(ends), rel=0.25)


def test_four_times_the_answers_halve_the_width_and_the_plan_meets_it():
    C = np.linspace(0, 0.5, 11)
    one, four = (plan.deviation(THETA, C, 1.0, answers) for answers in (300, 1200))
    assert one == pytest.approx(2 * four, rel=1e-6)
    _, _, half = plan.plan_lines(THETA, 1.0, 0.03)
    assert half == list(plan.plan_lines(THETA, 1.0, 0.03, 0.5))[1]
    width = 1.6449 * plan.deviation(THETA, np.linspace(0, 0.5, 11), 1.0, 1000)
    found = float(half.split("in 10: ")[1].split(", ")[0].replace(",", ""))
    assert found == pytest.approx(1000 * (width / 0.03) ** 2, rel=0.01)


def test_the_command_plans_for_the_curve_of_a_run(tmp_path, capsys):
    run = write_run(tmp_path / "r", *made(n=21))
    assert main([str(run), "--plan", "0.02", "--bootstrap", "20", "--out", "none"]) == 0
    f = fit_curve(*made(n=21), bootstrap=0)
    lines = plan.plan_lines(dict(A=f.A, B=f.B, C_mid=f.C_mid, R0=f.R0), 16_000, 0.02)
    assert "\n".join(lines) in capsys.readouterr().out


def test_two_recipes_that_lie_apart_by_the_planned_difference_are_told_apart_in_80_percent():
    """Simulated: ends known to +-w scatter by w / 1.645; the 90% interval of their difference
    leaves out 0. To promise w sqrt(2) instead, the naive form, finds it in half of the pairs."""
    width, pairs = 0.02, np.random.default_rng().normal(0, 0.02 / 1.6449, (20_000, 2))
    for apart, share in ((plan.APART * width, 0.80), (2 ** 0.5 * width, 0.50)):
        difference = pairs[:, 0] - pairs[:, 1] + apart
        assert (difference > 2 ** 0.5 * width).mean() == pytest.approx(share, abs=0.02)


def test_the_plan_answers_before_there_is_a_run(capsys):
    """Who plans has no run yet: of a typical one."""
    assert main(["--plan", "0.02"]) == 0 and plan.TYPICAL == THETA
    assert capsys.readouterr().out == "\n".join(plan.plan_lines(THETA, 1, 0.02)) + "\n"
    assert main(["--apart", "0.05", "--until", "0.4"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert "two recipes 0.05 apart" in first and [line[:11] for line in rest] == ["  from 40% "]
    lines = plan.plan_lines(dict(A=1, B=1.8, C_mid=0.4, R0=0), 1, 0.02)         # no noise at 0
    assert "nan" not in "".join(lines)


@pytest.mark.parametrize("words", [[], ["--plan", "2"], ["--plan", "0.1", "--until", "3"]])
def test_a_plan_for_no_curve_is_refused_in_a_sentence(words, capsys):
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "--plan" in said and said.count("\n") == 1
