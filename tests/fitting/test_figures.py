"""What the pictures of fit.py claim: they show what was fitted and touch nothing else."""
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fit
from fitting.command import main
from fitting import figures, readers
from conftest import ROOT
from fit import fit_curve
from made_runs import made, write_run


@pytest.mark.days(4)
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
    capsys.readouterr()
    assert main([*words[:-1], str(tmp_path / "plain")]) == 0       # matplotlib adds .png
    assert f"picture: {tmp_path / 'plain.png'}\n" in capsys.readouterr().out
    assert (tmp_path / "plain.png").exists()


def test_hollow_points_are_the_ones_left_out():
    """The eye believes filled points: a held-out one drawn filled would claim to be fitted."""
    C, R = made()
    curve = readers.Curve("r", C, R, "x", "y", Path("."))
    whole, early = fit_curve(C, R, bootstrap=20), fit_curve(C, R, c_max=8000, bootstrap=20)
    lines = figures.plot_runs([curve], [whole], early).axes[0].get_lines()
    dots = {line.get_label(): line for line in lines if line.get_marker() == "o"}
    hollow, full = dots["evaluation, left out"], dots["evaluation, fitted"]
    assert hollow.get_fillstyle() == "none" and hollow.get_xdata().tolist() == C[C > 8000].tolist()
    assert full.get_fillstyle() == "full" and full.get_xdata().tolist() == C[1:41].tolist()


@pytest.mark.parametrize("share", [None, 0.3])
@pytest.mark.parametrize("A,R0", [(0.9, 0.1), (0.2, 0.7)])
def test_the_legend_covers_no_point(share, A, R0):
    """A curve that rises has its last points above on the right, one that falls below on it."""
    C = np.geomspace(1e12, 1e14, 20)
    R = R0 + (A - R0) / (1 + 1e13 / C)
    curve = readers.Curve("r", C, R, "compute/flops", "y", Path("."))
    fits = [fit_curve(C, R, R0, bootstrap=5)]
    fits += [fit_curve(C, R, R0, c_max=share * C[-1], bootstrap=5)] if share else []
    figure = figures.plot_runs([curve], fits[:1], *fits[1:])
    figure.draw_without_rendering()
    (legend,), box = figure.legends, figure.legends[0].get_window_extent()
    assert not any(box.overlaps(ax.get_window_extent()) or ax.get_legend() for ax in figure.axes)
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1 and figure.bbox.y0 <= box.y0
    named = [text.get_text() for text in legend.get_texts()]
    assert len(named) == len(set(named)) and "evaluation, fitted" in named


@pytest.mark.parametrize("first,last", [(1e13, 1.6e13), (2.1e12, 4.8e12), (3e12, 2e13)])
def test_a_short_logarithmic_axis_has_labels_that_do_not_touch(first, last):
    """Of these three matplotlib labels two ticks, four, and seven that touch each other."""
    C = np.linspace(first, last, 12)
    R = fit.sigmoid(C, 0.6, 3, C[5], 0.3)
    curve = readers.Curve("r", C, R, "compute/flops", "y", Path("."))
    figure = figures.plot_runs([curve], [fit_curve(C, R, 0.3, bootstrap=5)])
    figure.draw_without_rendering()
    axis = figure.axes[1].xaxis
    low, high = axis.get_view_interval()
    shown = [label for label in axis.get_ticklabels(which="both") if label.get_text()
             and low <= label.get_position()[0] <= high]
    edges = sorted((label.get_window_extent().x0, label.get_window_extent().x1) for label in shown)
    assert len(shown) >= 3 and all(a[1] < b[0] for a, b in zip(edges, edges[1:]))


def test_the_picture_is_of_the_fit_that_is_judged_and_claims_no_interval_where_there_is_none():
    """With --like it showed the fit without earlier runs; of a constant run an empty patch."""
    C, R = made(n=21)
    curve = readers.Curve("r", C, R, "x", "y", Path("."))
    whole, like = fit_curve(C, R, bootstrap=20), fit_curve(C, R, A_range=(0.9, 0.9), bootstrap=20)
    figure = figures.plot_runs([curve], [whole], like, "with earlier runs")
    shown = {line.get_label(): line for line in figure.axes[0].get_lines()}
    dashes = shown["fit, with earlier runs"]
    assert dashes.get_ydata() == pytest.approx(like.curve(dashes.get_xdata()))
    assert figure.get_suptitle().startswith("r, with earlier runs\nA 0.900 [0.900, 0.900]")
    for fits, has in (((whole,), True), ((fit_curve(C, R, bootstrap=0),), False)):
        figure = figures.plot_runs([curve], fits[:1], *fits[1:])
        named = [text.get_text() for text in figure.legends[0].get_texts()]
        assert ("90% interval" in named) == has
        assert ("no interval" in figure.get_suptitle()) != has


@pytest.mark.days(4, turn=0)
def test_several_runs_are_drawn_together_where_out_names_a_file(tmp_path, capsys):
    """The paper's figures compare recipes. Each has a color and a marker of its own, more than
    there are colors, too, and one legend entry; two columns both name the axis."""
    runs = [str(write_run(tmp_path / name, *made(c_mid))) for name, c_mid in
            zip("abcdefg", range(2000, 9000, 1000))]
    assert main([*runs, "--bootstrap", "20"]) == 0 and not [*tmp_path.rglob("*.png")]
    assert main([*runs, "--bootstrap", "20", "--out", str(tmp_path / "all.png")]) == 0
    assert (tmp_path / "all.png").stat().st_size > 5000
    assert f"picture: {tmp_path / 'all.png'}" in capsys.readouterr().out
    curves = readers.read_curves(runs)
    fits = [fit_curve(curve.C, curve.R, bootstrap=20) for curve in curves]
    figure = figures.plot_runs(curves, fits)
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert [text.partition(": A 0.")[0] for text in texts] == [*"abcdefg"]
    dots = [line for line in figure.axes[0].get_lines() if line.get_label() in texts]
    assert len({(dot.get_color(), dot.get_marker()) for dot in dots}) == 7
    assert figure.axes[0].get_ylabel() == curves[0].y
    other = replace(curves[1], y="eval/other")
    both = figures.plot_runs([curves[0], other], fits[:2]).axes[0].get_ylabel()
    assert both == f"{curves[0].y} / eval/other"
    for curve, dot in zip(curves, dots):
        assert dot.get_ydata().tolist() == curve.R[1:].tolist()


@pytest.mark.days(4, turn=2)
def test_drawing_touches_no_global_state(tmp_path):
    """In somebody's notebook an imported fit.py must not close their figures or change backends."""
    run = write_run(tmp_path / "r", *made())
    code = ("import sys; from fitting.command import main; "
            f"main([{str(run)!r}, '--bootstrap', '20']); print('matplotlib.pyplot' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          cwd=ROOT)
    assert done.stdout.strip().endswith("False") and done.returncode == 0, done.stderr
