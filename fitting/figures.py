"""The pictures of fit.py. `Figure` objects, never pyplot: no window, no global state. Each color
goes with a marker, a dash or a fill of its own, so that a print in grey says the same."""
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from fit import B_RANGE, LEVEL

BLUE, ORANGE, GREY = "#15406f", "#d9822b", "#777777"
COLORS = (BLUE, "#b3392f", "#3a7d44", "#7b4a9e", "#8a6d1f")       # of several runs
FORMS = {"A": ".3f", "B": ".2f", "C_mid": ".3g"}          # how the parameters of a fit are printed


def span(low, high, form=".3g"):
    return "no interval" if np.isnan(low) else f"[{low:{form}}, {high:{form}}]"


def with_interval(fit, name):
    """A parameter of a fit and its interval, as text; A or B at the end of its range: "bound"."""
    value, most = getattr(fit, name), {"A": 1.0, "B": B_RANGE[1]}.get(name, np.inf)
    bound = " (bound)" * (value > most - 1e-6)
    return f"{value:{FORMS[name]}}{bound} {span(*fit.ci[name], FORMS[name])}"


def empty(width, height, rows, columns, **options):
    """A Figure with rows x columns of plain axes."""
    fig = Figure(figsize=(width, height), layout="constrained")
    axes = fig.subplots(rows, columns, squeeze=False, **options)
    for ax in axes.flat:
        ax.grid(alpha=0.25, linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
    return fig, axes


def log_axis(axis):
    """A logarithmic axis with labels to read: below two decades matplotlib has two, or a heap."""
    if (decades := np.ptp(np.log10(axis.get_view_interval()))) < 2:
        axis.set_major_locator(MaxNLocator(4, steps=(1, 2, 5, 10)) if decades < 0.9 else
                               LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def plot_runs(curves, fits, early=None, part="first part"):
    """Curves over log compute, residuals below, each with its Fit. With `early`, one run's fit of a
    part, band, dashes and residuals are its prediction, and what it had not seen is hollow."""
    fig, ((top,), (low,)) = empty(8, 5.6, 2, 1, sharex=True, height_ratios=[3, 1])
    heights, several = [], len(curves) > 1
    for curve, fit, color, marker in zip(curves, fits, 9 * COLORS, 12 * "o^sD"):
        shown, trained, grey = early or fit, curve.C > 0, color if several else GREY
        seen = np.isin(curve.C, shown.C) & trained
        numbers = ", ".join(f"{name} {with_interval(shown, name)}" for name in FORMS)
        heights += [*curve.R, fit.R0, shown.A]      # no curve's: the power law dives to -inf
        C = np.geomspace(curve.C[trained][0] * 0.7, 1.5 * curve.C[-1], 500)
        top.fill_between(C, *shown.predict(C)[1:], color=ORANGE if early else color, alpha=0.22,
                         linewidth=0, label=None if shown.no_interval else f"{LEVEL:.0%} interval")
        if early:
            top.plot(C, early.curve(C), "--", color=ORANGE, linewidth=2, label=f"fit, {part}")
            for ax in (top, low):
                ax.axvline(early.C[-1], color=GREY, linestyle=":", linewidth=1.2)
        top.plot(C, fit.curve(C), color=color, lw=1.3, label="fit of all" if early else "fit")
        for value, dash, name in ((shown.A, (0, (6, 4)), f"ceiling A = {shown.A:.3f}"),
                                  (fit.R0, (0, (1, 3)), f"R0 ({fit.R0_from})")):
            top.axhline(value, color=grey, linewidth=0.8, linestyle=dash, label=name)
        for group, fill, name in ((seen, "full", "evaluation, fitted"),
                                  (trained & ~seen, "none", "evaluation, left out")):
            if group.any():
                dots = dict(marker=marker, linestyle="none", color=color, ms=4, fillstyle=fill)
                name = f"{curve.label}: {numbers}" if several and group is seen else name
                top.plot(curve.C[group], curve.R[group], label=name, **dots)
                low.plot(curve.C[group], curve.R[group] - shown.curve(curve.C[group]), **dots)
    low.axhline(0, color=GREY, linewidth=0.8)
    floor, height = min(heights), max(np.ptp(heights), 0.02)
    top.set(ylim=(floor - 0.1 * height, floor + 1.08 * height), xscale="log",
            ylabel=" / ".join(dict.fromkeys(each.y for each in curves)))
    low.set(xlabel=f"{curve.x}, log scale", ylabel="residual")
    log_axis(low.xaxis)
    runs = [line for line in top.get_lines() if ": A " in line.get_label()] or None     # or all
    fig.legend(handles=runs, loc="outside lower center", ncols=1 if runs else 4, fontsize=8.5,
               frameon=False)                           # outside: it hides nothing
    fig.suptitle("" if several else f"{curve.label}{f', {part}' if early else ''}\n{numbers}",
                 fontsize=10.5)
    return fig
