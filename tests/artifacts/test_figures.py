"""What the pictures of fit.py claim: they show what was fitted and touch nothing else."""
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fit
from artifacts import figures, readers
from conftest import ROOT
from fit import fit_curve
from made_runs import made, write_run


@pytest.mark.parametrize("ending", ["png", "pdf", "svg"])
def test_pictures_are_written_in_each_format(ending, tmp_path, capsys):
    """People put the curve in a paper (pdf), a page (svg) and a chat (png)."""
    run, out = write_run(tmp_path / "r", *made()), tmp_path / f"x.{ending}"
    words = [str(run), "--until", "0.5", "--rolling", "--bootstrap", "20", "--out", str(out)]
    assert fit.main(words) == 0
    said = capsys.readouterr().out
    for path in (out, tmp_path / f"x_rolling.{ending}"):
        assert path.stat().st_size > 5000 and f"picture: {path}" in said
    fit.main([str(run), "--bootstrap", "20"])
    assert (run / "curve.png").exists()


def test_hollow_points_are_the_ones_left_out():
    """The eye believes filled points: a held-out one drawn filled would claim to be fitted."""
    C, R = made()
    curve = readers.Curve("r", C, R, "x", "y", Path("."))
    whole, early = fit_curve(C, R, bootstrap=20), fit_curve(C, R, c_max=8000, bootstrap=20)
    lines = figures.plot_run(curve, whole, early).axes[0].get_lines()
    dots = {line.get_label(): line for line in lines if line.get_marker() == "o"}
    hollow, full = dots["evaluation, left out"], dots["evaluation, fitted"]
    assert hollow.get_fillstyle() == "none" and hollow.get_xdata().tolist() == C[C > 8000].tolist()
    assert full.get_fillstyle() == "full" and full.get_xdata().tolist() == C[1:41].tolist()


def test_leave_one_out_plot_is_a_line_of_slope_B_with_masked_points_hollow():
    """F is undefined where R >= A or R <= R0; dropping such points would hide the noisy end."""
    C, R = made(end=60_000, sd=0.004)
    curve, f = readers.Curve("r", C, R, "x", "y", Path(".")), fit_curve(C, R, bootstrap=20)
    right = figures.plot_compare([curve], {"r": f}).axes[1]
    line, full, hollow = right.get_lines()
    x, y = np.log(line.get_xdata()), np.log(line.get_ydata())
    np.testing.assert_allclose(np.diff(y) / np.diff(x), f.B, rtol=1e-9)
    masked = ((R <= f.R0) | (R >= f.A))[1:].sum()
    assert masked > 3 and hollow.get_xdata().size == masked and hollow.get_fillstyle() == "none"
    assert full.get_xdata().size == 80 - masked
    exact = (full.get_xdata() * f.C_mid, full.get_ydata())
    naive = f.C_mid ** f.B / ((f.A - f.R0) / (R[(R > f.R0) & (R < f.A) & (C > 0)] - f.R0) - 1)
    np.testing.assert_allclose(exact[1] * f.C_mid ** f.B, naive, rtol=1e-9)


def test_drawing_touches_no_global_state(tmp_path):
    """In somebody's notebook an imported fit.py must not close their figures or change backends."""
    run = write_run(tmp_path / "r", *made())
    code = (f"import sys, fit; fit.main([{str(run)!r}, '--bootstrap', '20']); "
            "print('matplotlib.pyplot' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          cwd=ROOT)
    assert done.stdout.strip().endswith("False") and done.returncode == 0, done.stderr
