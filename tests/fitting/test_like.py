"""Earlier runs as a prior: what is learned from them, and what that does to a fit."""
import re

import numpy as np
import pytest

import fit
from fit import fit_curve, sigmoid
from fitting import like
from fitting.command import main
from made_runs import made, write_run


def early(n=9, sd=0.003, **truth):
    return fit_curve(*made(3000, n=n, sd=sd, seed=np.random.SeedSequence().entropy, **truth),
                     bootstrap=20)


def test_one_run_teaches_its_own_share_and_steepness():
    """The share of the possible gain, not the ceiling: another task starts elsewhere."""
    whole = fit_curve(*made(sd=0), bootstrap=0)
    mean, sd = like.learn([whole])["sigmoid"]
    assert mean == pytest.approx([(0.61 - 0.35) / 0.65, np.log(1.92)], rel=1e-3)
    assert sd == pytest.approx([0.1 * 2 ** 0.5, 0.25 * 2 ** 0.5])       # the guess alone
    many = like.learn([fit_curve(*made(sd=0, A=A), bootstrap=0) for A in (0.5, 0.6, 0.7, 0.8)])
    shares = np.array([0.15, 0.25, 0.35, 0.45]) / 0.65
    spread = np.sqrt((3 * 0.01 + ((shares - shares.mean()) ** 2).sum()) / 6 * 5 / 4)
    assert many["sigmoid"][0][0] == pytest.approx(shares.mean(), rel=1e-3)
    assert many["sigmoid"][1][0] == pytest.approx(spread, rel=1e-2)


def test_a_sure_prior_decides_and_a_vague_one_says_nothing():
    """Weights of prior and data could be swapped, or the noise forgotten in one of them."""
    f = early()
    sure = like.fit_like(f, {law: (np.array([0.7, 0.5]), np.full(2, 1e-4)) for law in fit.POOLED})
    assert (sure.A - sure.R0) / (1 - sure.R0) == pytest.approx(0.7, abs=1e-2)
    assert np.log(sure.B) == pytest.approx(0.5, abs=1e-2)
    vague = like.fit_like(f, {law: (np.array([0.5, 0.5]), np.full(2, 1e3)) for law in fit.POOLED})
    C = f.C[-1]
    assert vague.curve(C) == pytest.approx(f.curve(C), abs=0.01)
    assert vague.rmse == f.rmse


def test_the_steepness_under_the_prior_is_the_best_compromise():
    """By brute force: no curve of a dense table has a lower sum of squares with the prior's."""
    f, mean, sd = early(sd=0.01), np.array([0.4, 0.65]), np.array([0.1, 0.25])
    found = like.fit_like(f, {law: (mean, sd) for law in fit.POOLED})

    def loss(A, B, C_mid, noise):
        curve = sigmoid(f.C, A, B, C_mid, f.R0)
        share = (A - f.R0) / (1 - f.R0)
        return (((f.R - curve) / noise) ** 2).sum() + ((share - mean[0]) / sd[0]) ** 2 \
            + ((np.log(B) - mean[1]) / sd[1]) ** 2
    noise = found.pool[0].noise.std()           # of 200 draws; the fit's own is within a tenth
    rng = np.random.default_rng()
    ours = loss(found.A, found.B, found.C_mid, noise)
    for _ in range(3000):
        A, B, C_mid = np.array([found.A, found.B, found.C_mid]) * np.exp(rng.normal(0, 0.1, 3))
        assert ours <= loss(min(A, 1), B, C_mid, noise) + 0.3


def test_earlier_runs_are_named_and_doubted_where_they_disagree(tmp_path, capsys):
    """What `--like` is for; and a prior from another task must not pass in silence."""
    run = write_run(tmp_path / "new", *made(8000, n=17, sd=0.004, seed=1))
    old = write_run(tmp_path / "old", *made(sd=0.004, seed=2))
    other = write_run(tmp_path / "other", *made(sd=0.002, seed=3, A=0.99, B=6.0))
    words = [str(run), "--until", "0.5", "--out", "none", "--bootstrap", "60", "--like"]
    assert main([*words, str(old)]) == 0
    told = capsys.readouterr().out
    assert "(with earlier runs)" in told and "without earlier runs: " in told
    assert "disagree" not in told
    main([*words, str(other)])
    assert "your earlier runs disagree with this one" in capsys.readouterr().out


def test_earlier_runs_are_read_in_the_columns_of_the_new_one_and_told(tmp_path, capsys):
    """A mix logs its toy first; learned from was whatever column came first."""
    run = write_run(tmp_path / "new", *made(8000, n=17, sd=0.004, seed=1))
    old = write_run(tmp_path / "old", *made(sd=0.004, seed=2), **{"eval/a/mean@4": 0.5})
    words = [str(run), "--out", "none", "--bootstrap", "60", "--like", str(old)]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("earlier run: old: eval/toy/mean@4\n")
    assert main([*words, "--y", "eval/toy/mean@4", "--y", "eval/toy/pass@4"]) == 2
    assert "--like takes one --y" in capsys.readouterr().err
    assert main([*words, "--answers", "10"]) == 2       # it changed nothing
    assert "no --answers" in capsys.readouterr().err


def test_a_prediction_with_earlier_runs_is_that_of_the_verdict(tmp_path, capsys):
    C, R = made(4000, n=9, sd=0.004, seed=1)
    run, old = write_run(tmp_path / "new", C, R), write_run(tmp_path / "old", *made(A=0.8))
    main([str(run), "--out", "none", "--predict", str(3 * C[-1]), "--like", str(old)])
    with_it = like.fit_like(fit_curve(C, R), like.learn([fit_curve(*made(A=0.8), bootstrap=0)]))
    said = re.search(r"at compute .*: (\S+) ", capsys.readouterr().out)[1]
    assert float(said) == pytest.approx(float(with_it.curve(3 * C[-1])), abs=6e-4)


def test_a_fit_with_earlier_runs_has_its_own_intervals_and_a_fall_no_overflow(recwarn):
    """The picture shows them; those of the fit without earlier runs left the ceiling out. Where the
    data say nothing of C_mid, its draws were e^1000."""
    prior = like.learn([fit_curve(*made(seed=1), bootstrap=0)])
    found = like.fit_like(early(), prior)
    assert all(low <= getattr(found, name) <= high for name, (low, high) in found.ci.items())
    C = np.arange(0, 21.0)
    falling = fit_curve(C, 0.8 - C / 50, bootstrap=20)
    assert np.isfinite(like.fit_like(falling, prior).futures([40.0])).all()
    assert not [each for each in recwarn if issubclass(each.category, RuntimeWarning)]
