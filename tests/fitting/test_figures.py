"""What the pictures of fit.py claim: they show what was fitted and touch nothing else."""
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fit
from fitting.command import main
from fitting import figures, readers
from conftest import ROOT
from fit import fit_curve
from made_runs import made, write_run


@pytest.mark.parametrize("ending", ["png", "pdf", "svg"])
def test_pictures_are_written_in_each_format(ending, tmp_path, capsys):
    """People put the curve in a paper (pdf), a page (svg) and a chat (png)."""
    run, out = write_run(tmp_path / "r", *made()), tmp_path / f"x.{ending}"
    words = [str(run), "--until", "0.5", "--bootstrap", "20", "--out", str(out)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert out.stat().st_size > 5000 and f"picture: {out}" in said
    main([str(run), "--bootstrap", "20"])
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


def test_ten_runs_can_be_told_apart():
    """Ten curves in two colors and eight markers are a ball of wool; and each is in the legend."""
    curves = [readers.Curve(f"r{i}", *made(n=9, B=1 + i / 9), "compute/flops", "eval/a/mean@4",
                            Path(".")) for i in range(10)]
    fits = {curve.label: fit_curve(curve.C, curve.R, bootstrap=5) for curve in curves}
    figure = figures.plot_compare(curves, fits, title="Ten")
    dots = [line for line in figure.axes[0].get_lines() if line.get_marker() != "None"]
    assert len({line.get_color() for line in dots}) == 10
    assert len({line.get_marker() for line in dots}) == 10
    assert len(figure.legends[0].get_texts()) == 10 and figure.get_suptitle() == "Ten"
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert not any(ax.get_tightbbox().overlaps(box) for ax in figure.axes)


@pytest.mark.parametrize("first,last", [(1e13, 1.6e13), (2.1e12, 4.8e12), (3e12, 2e13)])
def test_a_short_logarithmic_axis_has_labels_that_do_not_touch(first, last):
    """Of these three matplotlib labels two ticks, four, and seven that touch each other."""
    C = np.linspace(first, last, 12)
    R = fit.sigmoid(C, 0.6, 3, C[5], 0.3)
    curve = readers.Curve("r", C, R, "compute/flops", "y", Path("."))
    figure = figures.plot_run(curve, fit_curve(C, R, 0.3, bootstrap=5))
    figure.draw_without_rendering()
    axis = figure.axes[3].xaxis
    low, high = axis.get_view_interval()
    shown = [label for label in axis.get_ticklabels(which="both") if label.get_text()
             and low <= label.get_position()[0] <= high]
    edges = sorted((label.get_window_extent().x0, label.get_window_extent().x1) for label in shown)
    assert len(shown) >= 3 and all(a[1] < b[0] for a, b in zip(edges, edges[1:]))


def test_axes_have_human_names():
    """`compute/flops` and `eval/toy/mean@4` mean nothing in a paper; a foreign name stays."""
    C, R = made(n=9)
    curve = readers.Curve("r", C, R, "compute/gpu_hours", "eval/toy/mean@4", Path("."))
    top = figures.plot_run(curve, fit_curve(C, R, bootstrap=5), title="My run").axes
    assert top[0].get_ylabel() == "pass rate on toy (mean of 4 samples)"
    assert top[2].get_xlabel() == "compute (GPU-hours)"
    assert top[0].figure.get_suptitle().startswith("My run\nr: A 0.6")
    assert figures.human("accuracy") == "accuracy"


def test_drawing_touches_no_global_state(tmp_path):
    """In somebody's notebook an imported fit.py must not close their figures or change backends."""
    run = write_run(tmp_path / "r", *made())
    code = ("import sys; from fitting.command import main; "
            f"main([{str(run)!r}, '--bootstrap', '20']); print('matplotlib.pyplot' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          cwd=ROOT)
    assert done.stdout.strip().endswith("False") and done.returncode == 0, done.stderr
