"""The pictures of fit.py: one run, and several runs.

`Figure` objects, never pyplot: no window, no global state, nothing to close. Each color goes with
a marker, a dash or a fill of its own, so that a print in grey says the same.
"""
import re

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from fit import LEVEL, BadInput

BLUE, ORANGE, GREY = "#15406f", "#d9822b", "#777777"
COLORS, MARKERS, DASHES = colormaps["tab10"].colors, "osD^vPX*<>", ("-", "--", "-.", ":")
NAMES = {"compute/flops": "compute (FLOPs)", "compute/gpu_hours": "compute (GPU-hours)"}
FORMS = {"A": ".3f", "B": ".2f", "C_mid": ".3g"}          # how the parameters of a fit are printed


def span(low, high, form=".3g"):
    """[low, high] as it is printed everywhere."""
    return f"[{low:{form}}, {high:{form}}]"


def with_interval(fit, name):
    """A parameter of a fit and its interval, as text."""
    form = FORMS[name]
    return f"{getattr(fit, name):{form}} {span(*fit.ci[name], form)}"


def empty(width, height, rows, columns, **options):
    """A Figure with rows x columns of plain axes."""
    fig = Figure(figsize=(width, height), layout="constrained")
    axes = fig.subplots(rows, columns, squeeze=False, **options)
    for ax in axes.flat:
        ax.grid(alpha=0.25, linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
    return fig, axes


def human(column):
    """A column of a log -> the name of an axis; columns of other people's keep theirs.

    >>> print(human("eval/toy/mean@4"), human("compute/flops"), human("accuracy"), sep="; ")
    pass rate on toy (mean of 4 samples); compute (FLOPs); accuracy
    """
    task = re.fullmatch(r"(?:eval|val-core)/(.+)/(?:mean|avg)@(\d+)", column)
    if task:
        return f"pass rate on {task[1]} (mean of {task[2]} samples)"
    return NAMES.get(column, column)


def log_axis(axis):
    """A logarithmic axis whose labels can be read. Below two decades matplotlib labels two ticks,
    or so many that they stand one upon the other."""
    low, high = axis.get_view_interval()
    decades = np.log10(high / low)
    if decades < 2:
        axis.set_major_locator(MaxNLocator(4, steps=(1, 2, 5, 10)) if decades < 0.9 else
                               LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def save(figure, path):
    """Write a figure as .png, .pdf or .svg."""
    if path.suffix not in (".png", ".pdf", ".svg"):
        raise BadInput(f"--out {path} should end in .png, .pdf or .svg")
    figure.savefig(path, dpi=150)


def plot_run(curve, fit, early=None, title=None):
    """Linear and log compute above, residuals below. With `early`, band, dashes and residuals are
    its prediction, and the points that it had not seen are hollow."""
    fig, axes = empty(10, 5.6, 2, 2, sharex="col", height_ratios=[3, 1])
    shown, end, trained = early or fit, curve.C[-1], curve.C > 0
    seen = np.isin(curve.C, shown.C) & trained
    # Heights from the data and the ceiling: the power law dives to -inf at small compute.
    floor, roof = min(curve.R.min(), fit.R0), max(curve.R.max(), shown.A)
    height = max(roof - floor, 0.02)
    for log, (top, low) in enumerate(axes.T):
        C = np.geomspace(curve.C[trained][0] * 0.7, 1.5 * end, 500) if log else \
            np.linspace(end / 2000, 1.05 * end, 500)
        top.fill_between(C, *shown.predict(C)[1:], color=ORANGE if early else BLUE, alpha=0.22,
                         linewidth=0, label=f"{LEVEL:.0%} interval")
        if early:
            top.plot(C, early.curve(C), "--", color=ORANGE, linewidth=2,
                     label="fit of the first part")
            for ax in (top, low):
                ax.axvline(early.C[-1], color=GREY, linestyle=":", linewidth=1.2)
        top.plot(C, fit.curve(C), color=BLUE, linewidth=1.3, label="fit of all" if early else "fit")
        top.axhline(fit.R0, color=GREY, linewidth=0.8, linestyle=(0, (1, 3)))
        top.axhline(shown.A, color=GREY, linewidth=0.8, linestyle=(0, (6, 4)),
                    label=f"ceiling A = {shown.A:.3f}")
        low.axhline(0, color=GREY, linewidth=0.8)
        for group, fill, name in ((seen, "full", "evaluation, fitted"),
                                  (trained & ~seen, "none", "evaluation, left out")):
            if group.any():
                dots = dict(marker="o", linestyle="none", color=BLUE, markersize=4, fillstyle=fill)
                top.plot(curve.C[group], curve.R[group], label=name, **dots)
                low.plot(curve.C[group], curve.R[group] - shown.curve(curve.C[group]), **dots)
        top.set_ylim(floor - 0.1 * height, roof + 0.08 * height)
        low.set_xlabel(human(curve.x) + (", log scale" if log else ""))
    axes[0, 1].set_xscale("log")
    log_axis(axes[1, 1].xaxis)
    axes[0, 0].plot(0, fit.R0, "D", color=GREY, markersize=5, label=f"R0 ({fit.R0_from})")
    axes[0, 0].legend(loc="lower right", bbox_to_anchor=(1, 0.08), fontsize=8.5, frameon=False)
    axes[0, 0].set_ylabel(human(curve.y))
    axes[1, 0].set_ylabel("residual")
    numbers = ", ".join(f"{name} {with_interval(shown, name)}" for name in FORMS)
    name = f"{curve.label}{', first part' if early else ''}: {numbers}"
    fig.suptitle(name if title is None else f"{title}\n{name}", fontsize=10.5)
    return fig


def plot_compare(curves, fits, title=None):
    """Left: the curves. Right: the paper's leave-one-out plot, on log axes,

        F(R) = C_mid^B / ((A - R0) / (R - R0) - 1) = C^B        a line of slope B

    with C in units of the first run's C_mid (ours), so that all lines cross at 1 and their slopes
    can be compared by eye. Points outside R0 < R < A have no F: they stand hollow on their line.
    Intervals are drawn for up to four runs.
    """
    # The legend stands below both plots, two runs a row, so it may be long.
    fig, ((left, right),) = empty(11, 4.4 + 0.21 * ((len(curves) + 1) // 2), 1, 2)
    unit, ceilings = fits[curves[0].label].C_mid, [fits[curve.label].A for curve in curves]
    shared = np.ptp(ceilings) == 0                            # by `compare`
    for i, curve in enumerate(curves):
        fit, trained = fits[curve.label], curve.C > 0
        color, dash = COLORS[i % 10], DASHES[i % 4]
        dots = dict(color=color, marker=MARKERS[i % 10], markersize=4, linestyle="none")
        C = np.geomspace(curve.C[trained][0], 2 * curve.C[-1], 300)
        if len(curves) <= 4:                  # more bands hide each other
            left.fill_between(C, *fit.predict(C)[1:], color=color, alpha=0.18, linewidth=0)
        left.plot(C, fit.curve(C), dash, color=color)
        left.plot(curve.C[trained], curve.R[trained], **dots,
                  label=f"{curve.label}: A {fit.A:.3f}, B {fit.B:.2f}")
        right.plot(C / unit, (C / unit) ** fit.B, dash, color=color)
        line = (curve.R > fit.R0) & (curve.R < fit.A) & trained
        F = (fit.C_mid / unit) ** fit.B / ((fit.A - fit.R0) / (curve.R[line] - fit.R0) - 1)
        right.plot(curve.C[line] / unit, F, **dots)
        off = curve.C[trained & ~line] / unit
        right.plot(off, off ** fit.B, **dots, fillstyle="none")
    left.set(xscale="log", xlabel=f"{human(curves[0].x)}, log scale",
             ylabel=human(curves[0].y) if len({curve.y for curve in curves}) == 1 else "pass rate")
    right.set(xscale="log", yscale="log", ylabel="F(R), log scale; its slope is B",
              xlabel=f"{human(curves[0].x)} / {unit:.3g}, log scale")
    for axis in (left.xaxis, right.xaxis):
        log_axis(axis)
    told = f"all refitted at the shared ceiling A = {ceilings[0]:.3f}" if shared else None
    fig.legend(loc="outside lower center", ncols=2, fontsize=8.5, frameon=False, title=told)
    fig.suptitle(title or "", fontsize=10.5)
    return fig
