"""make study-figures: every table and figure of results/study, from the tables that are kept there.

Writes results/study/runs.csv (a row for each run), the figures, and the tables of
results/study/README.md between their marks <!-- NAME --> and <!-- end -->. The text around them is
written by hand; tests/study holds that the tables are those of the logs.
"""
import argparse
import functools
import io
import re
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.stats import t as student

from artifacts.step_log import pass_at_k
from fitting import figures
from bench.held_out import write_csv
from fit import LEVEL, SAME_A, fit_curve
from study import depth, logs, sizes
from study.run import HERE, KEPT, done, experiments

PAGE = HERE.parent / "results/study/README.md"
BASELINE = "scalerl"
CALM = "calm"
FITTED = (CALM, "reuse", "few", "calm_clip")       # the bases whose curves are fitted
FORECASTS = ("sigmoid", "stretched", "mean of both", "naive")
CUTS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
SECOND_ROUND = ("11_trust_region", "12_ess_rate", "13_lag_trust_region", "14_reuse", "15_controls",
                "16_horizon", "17_four_sizes", "18_words", "19_review")
COMPUTE_TO = {"14_reuse": "reuse", "19_review": "retirement"}   # tables of compute to a pass rate
VISIBLE = 0.05                # of the second round: a coarser design is "underpowered"


# ------------------------------------------------------------------------- 1. a run -> a row
def kept(table):
    """{run: rows} of a table of results/study, read once."""
    return read_table(KEPT / table, (KEPT / table).stat().st_mtime_ns)


@functools.cache
def read_table(path, written):
    return logs.read(path)


def curve_of(job, task=None):
    """(C, R) of a kept run: FLOPs and the pass rate on a task, by default its first."""
    return curve(kept("evals.csv")[job.name], task)


def curve(rows, task=None):
    column = next(name for name in rows[0] if re.fullmatch(
        rf"eval/{re.escape(task) if task else '.*'}/mean@[0-9]+", name))
    return tuple(np.array([row[name] for row in rows]) for name in ("compute/flops", column))


def row_of(job):
    """What a run gave, as numbers. nan: it has no such number (a run that failed, an unfit curve).
    """
    row = dict(base=job.base, variant=job.variant, toy=job.toy, seed=job.seed, failed=0) | \
        dict.fromkeys(("start", "best", "end", "collapsed", "lag", "ess_least", "A", "B", "C_mid"),
                      np.nan)
    if job.name not in kept("evals.csv"):
        return row | {"failed": 1}
    C, R = curve_of(job)
    steps = kept("steps.csv")[job.name]
    lag, ess = (np.array([step[name] for step in steps if name in step])
                for name in ("lag/mean", "ess"))
    row |= logs.ends(R) | dict(lag=lag.mean(), ess_least=ess.min())
    if job.base in FITTED:
        fit = fit_curve(C, R, bootstrap=0)
        row |= dict(A=fit.A, B=fit.B, C_mid=fit.C_mid)
    return row


def shared_B(first, second, A):
    """log B of two runs of a pair, second minus first, both refitted at the ceiling A."""
    log_B = [np.log(fit_curve(*curve_of(job), bootstrap=0, A_range=(A, A)).B)
             for job in (first, second)]
    return log_B[1] - log_B[0]


# ------------------------------------------------------------------------- 2. paired comparison
def paired(differences):
    """(mean, low, high, pairs) of paired differences (n,): Student's 90% interval of PLAN.md."""
    d = np.asarray(differences, float)
    d = d[np.isfinite(d)]
    if d.size < 2:
        return (d.mean() if d.size else np.nan), np.nan, np.nan, d.size
    half = student.ppf((1 + LEVEL) / 2, d.size - 1) * d.std(ddof=1) / np.sqrt(d.size)
    return d.mean(), d.mean() - half, d.mean() + half, d.size


def verdict(d, low, high, bound=SAME_A, visible=np.inf):
    """The rule of PLAN.md. visible: of its second round; half of an interval's width is the
    smallest difference that the pairs could have shown, and should not be more than this.

    >>> verdict(-.05, -.08, -.02), verdict(.01, .0, .019), verdict(.05, -.01, .11)
    ('differs', 'same', 'not decided')
    >>> verdict(.05, -.01, .11, visible=.05)
    'underpowered'
    """
    if abs(d) > bound and (low > 0 or high < 0):
        return "differs"
    if -bound <= low and high <= bound:
        return "same"
    return "underpowered" if (high - low) / 2 > visible else "not decided"


def of_finished_bases(planned, ended):
    """The jobs {name: job} of the bases whose runs have all ended: by the plan of the second round
    nothing else is told."""
    unfinished = {job.base for name, job in planned.items() if name not in ended}
    return {name: job for name, job in planned.items() if job.base not in unfinished}


def compared(names, jobs, rows):
    """{(base, variant): {"end", "A", "log B", "log C_mid": (d, low, high, pairs)}} of the named
    runs, against the baseline of the same base, toy and seed. jobs, rows: {name of a run: ...}, of
    all runs."""
    groups = {}
    for job in map(jobs.get, names):
        first = f"{job.base}-{BASELINE}-{job.pair}"
        if job.variant == BASELINE or first not in rows:
            continue
        found = groups.setdefault((job.base, job.variant),
                                  {"end": [], "A": [], "log B": [], "log C_mid": []})
        for name in ("end", "A"):
            found[name].append(rows[job.name][name] - rows[first][name])
        if np.isfinite(found["A"][-1]):
            A = np.mean([rows[first]["A"], rows[job.name]["A"]])
            found["log B"].append(shared_B(jobs[first], job, A))
            found["log C_mid"].append(np.log(rows[job.name]["C_mid"] / rows[first]["C_mid"]))
    return {key: {name: paired(values) for name, values in found.items()}
            for key, found in groups.items()}


# ------------------------------------------------------------------------- 3. tables
def number(value, form):
    return "" if np.isnan(value) else format(value, form)


def told(comparison, form="+.3f"):
    d, low, high, n = comparison
    return f"{number(d, form)} [{number(low, form)}, {number(high, form)}]" if n > 1 else ""


def table_of(jobs, rows, comparisons, visible=np.inf):
    """An experiment: a line for each base and variant. visible: of `verdict`."""
    lines = ["| base | variant | n | end | against `scalerl` | | A | against `scalerl` | | "
             "log B at a shared A | C_mid, factor | lag | collapsed |",
             "|---|---|--:|--:|--:|---|--:|--:|---|--:|--:|--:|--:|"]
    for base, variant in dict.fromkeys((job.base, job.variant) for job in jobs.values()):
        mine = [rows[job.name] for job in jobs.values()
                if (job.base, job.variant) == (base, variant)]

        def mean(name):
            values = [row[name] for row in mine if np.isfinite(row[name])]      # noqa: B023
            return np.mean(values) if values else np.nan
        found = comparisons.get((base, variant))
        end, A, B, C_mid = (found[name] if found else (np.nan, np.nan, np.nan, 0)
                            for name in ("end", "A", "log B", "log C_mid"))
        same_A = A[3] > 1 and verdict(*A[:3]) != "differs"
        edge = sum(row["A"] > 0.9999 for row in mine)       # of its range: not a ceiling seen
        lines.append(" | ".join([
            f"| {base}", f"`{variant}`", str(len(mine)), number(mean("end"), ".3f"), told(end),
            verdict(*end[:3], visible=visible) if end[3] > 1 else "",
            number(mean("A"), ".3f"), told(A),
            verdict(*A[:3]) + (f" ({edge} of {len(mine)} at 1)" if edge else "")
            if A[3] > 1 else "", told(B, "+.2f") if same_A else "",
            told((*np.exp(C_mid[:3]), C_mid[3]), ".2f"),
            number(mean("lag"), ".1f"),
            f"{sum(row['collapsed'] == 1 for row in mine)}"
            + (f", {sum(row['failed'] for row in mine)} failed" if any(
                row["failed"] for row in mine) else "") + " |"]))
    return "\n".join(lines)


def grid_of(jobs, rows):
    """Learning rates by lags: the mean end of each cell, with its least one and its collapses."""
    bases, variants = ({getattr(job, name): None for job in jobs.values()}
                       for name in ("base", "variant"))
    lines = ["| learning rate | " + " | ".join(f"`{variant}`" for variant in variants) + " |",
             "|---|" + "--:|" * len(variants)]
    for base in bases:
        cells = [f"`{base}`"]
        for variant in variants:
            cell = [rows[job.name] for job in jobs.values()
                    if (job.base, job.variant) == (base, variant)]
            ends = [row["end"] for row in cell if not row["failed"]]
            fell = sum(row["collapsed"] == 1 or row["failed"] for row in cell)
            lag = np.mean([row["lag"] for row in cell if not row["failed"]]) if ends else np.nan
            cells.append((f"{np.mean(ends):.3f} (least {min(ends):.3f}), lag {lag:.1f}" if ends
                          else "") + (f", **{fell} of {len(cell)} fell**" if fell else ""))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


SIZES = {"hidden_96": 0.28, BASELINE: 0.78, "hidden_320": 3.1, "hidden_576": 10.0}  # M parameters


def sizes_of(jobs, rows):
    """Do smaller models foretell a larger one's end? Straight line in log(parameters) through all
    smaller toys of a pair (two at least), and the next smaller one's end carried over."""
    pairs = {}
    for job in jobs.values():
        pairs.setdefault(job.toy, {})[job.variant] = rows[job.name]["end"]
    lines = ["| size | toys | ends | the line's error, mean absolute | the naive error |",
             "|--:|--:|---|--:|--:|"]
    log_N = np.log([*SIZES.values()])
    for k in range(2, len(SIZES)):
        ends = np.array([[found.get(name, np.nan) for name in SIZES] for found in pairs.values()])
        ends = ends[np.isfinite(ends[:, :k + 1]).all(1)]
        if len(ends):
            line = [np.polyval(np.polyfit(log_N[:k], row[:k], 1), log_N[k]) for row in ends]
            errors = (np.abs(foretold - ends[:, k]).mean() for foretold in (line, ends[:, k - 1]))
            lines.append(f"| {[*SIZES.values()][k]:g}M | {len(ends)} | "
                         + ", ".join(f"{end:.3f}" for end in ends[:, k]) + " | "
                         + " | ".join(f"{error:.3f}" for error in errors) + " |")
    return "\n".join(lines)


TASKS = ("toy", "reasoning_gym:chain_sum")


def tasks_of(jobs):
    """Two tasks in one run, a curve each: (the table, {what: [(toy, C, R), ...]} for
    `extrapolation_errors`)."""
    lines = ["| task | n | before | end | A | B |", "|---|--:|--:|--:|--:|--:|"]
    curves = {}
    for task in TASKS:
        found = curves[f"two tasks: {task}"] = [(job.toy, *curve_of(job, task))
                                                for job in jobs.values()]
        fits = [fit_curve(C, R, bootstrap=0) for _, C, R in found]
        cells = [told(paired(values), ".3f") for values in (
            [R[0] for *_, R in found], [R[-3:].mean() for *_, R in found],
            [fit.A for fit in fits], [fit.B for fit in fits])]
        lines.append(f"| `{task}` | {len(found)} | " + " | ".join(cells) + " |")
    return "\n".join(lines), curves


def compute_to(jobs):
    """Fitted curves compared where C_mid cannot, as each A is another: the compute to a pass rate
    as a share of the baseline's, and the difference at the compute at which the baseline ends."""
    lines = ["| variant | compute to .7 | compute to .8 | at equal compute |", "|---|--:|--:|--:|"]
    fits = {job: fit_curve(*curve_of(job), bootstrap=0) for job in jobs.values()}
    for variant in dict.fromkeys(job.variant for job in jobs.values() if job.variant != BASELINE):
        pairs = [(fits[jobs[f"{job.base}-{BASELINE}-{job.pair}"]], fit)
                 for job, fit in fits.items() if job.variant == variant]
        shares = [paired([np.log(fit.compute_for(rate) / first.compute_for(rate))
                          for first, fit in pairs]) for rate in (0.7, 0.8)]
        ends = paired([float(fit.curve(first.C[-1]) - first.curve(first.C[-1]))
                       for first, fit in pairs])
        cells = [told((*np.exp(share[:3]), share[3]), ".2f") + (
            f", in {share[3]} of {len(pairs)}: the rest never reaches it"
            if share[3] < len(pairs) else "") for share in shares]
        lines.append(f"| `{variant}` | {' | '.join(cells)} | {told(ends)} |")
    return "\n".join(lines)


KS = (1, 4, 16, 64, 256)


def pass_at(ks, k, right):
    """pass@n of each problem for each n of `ks` -> (problems, ks); right: of k samples each."""
    return np.array([[pass_at_k(k, c, n) for n in ks] for c in right])


def controls_of(jobs, draws=2000):
    """pass@k before and after, for each reward: a line each with the mean over the toys; the gain
    with Student's interval over the toys, and that of a bootstrap over problems (each toy's drawn
    anew)."""
    rng, lines = np.random.default_rng(0), [
        "| reward | n | | " + " | ".join(f"pass@{n}" for n in KS) + " |",
        "|---|--:|---|" + "--:|" * len(KS)]
    found = kept_right()
    for variant in dict.fromkeys(job.variant for job in jobs.values()):
        pairs = [[pass_at(KS, *found[job.name][step]) for step in
                  (min(found[job.name]), max(found[job.name]))]
                 for job in jobs.values() if job.variant == variant and job.name in found]
        before, after = (np.array([pair[i].mean(0) for pair in pairs]) for i in (0, 1))
        resampled = np.mean([[(b - a)[rng.integers(len(a), size=len(a))].mean(0) for a, b in pairs]
                             for _ in range(draws)], axis=1)                    # (draws, ks)
        tails = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        rows = {"before": [f"{x:.3f}" for x in before.mean(0)],
                "after": [f"{x:.3f}" for x in after.mean(0)],
                "gain, over toys": [told(paired(d)) for d in (after - before).T],
                "gain, over problems": [f"[{low:+.3f}, {high:+.3f}]" for low, high in tails.T]}
        lines += [f"| `{variant}` | {len(pairs)} | {what} | " + " | ".join(cells) + " |"
                  for what, cells in rows.items()]
    return "\n".join(lines)


def kept_right():
    return logs.read_right(KEPT / "right.csv")


def extrapolation_errors(curves):
    """How well the first share of each run foretells its end (the mean of its last three
    evaluations): {name: {cut: {toy: [absolute errors (4,), ...]}}}, in the order of FORECASTS.

    curves: {name: [(toy, C, R), ...]}."""
    found = {}
    for name, runs in curves.items():
        for cut in CUTS:
            errors = {}
            for toy, C, R in runs:
                early = C <= cut * C[-1]
                if np.unique(C[early & (C > 0)]).size < 3:
                    continue
                laws = [fit_curve(C[early], R[early], law=law, bootstrap=0).curve(C[-3:]).mean()
                        for law in FORECASTS[:2]]
                errors.setdefault(toy, []).append(np.abs(
                    np.array([*laws, np.mean(laws), R[early][-3:].mean()]) - R[-3:].mean()))
            if errors:
                found.setdefault(name, {})[cut] = errors
    return found


def extrapolation(found):
    """The mean over the runs of each of `extrapolation_errors`."""
    return "\n".join([
        "| runs | n | cut | " + " | ".join(FORECASTS) + " |", "|---|" + "--:|" * 6,
        *(f"| {name} | {len(errors)} | {cut:g} | "
          + " | ".join(f"{error:.3f}" for error in errors.mean(0)) + " |"
          for name, by_cut in found.items() for cut, by_toy in by_cut.items()
          for errors in [np.concatenate([*by_toy.values()])])])


# ------------------------------------------------------------------------- 4. figures
def plot_comparisons(comparisons, columns):
    """A dot and its interval for each variant: the difference from `scalerl`, in three measures."""
    variants = list(dict.fromkeys(variant for (_, variant), found in comparisons.items()
                                  if found["end"][3] > 1))
    fig, (axes,) = figures.empty(11, 1.2 + 0.28 * len(variants), 1, len(columns), sharey=True)
    for ax, (base, name, label) in zip(axes, columns, strict=True):
        if name != "log B":
            ax.axvspan(-SAME_A, SAME_A, color=figures.GREY, alpha=0.18, linewidth=0)
        ax.axvline(0, color=figures.GREY, linewidth=0.8)
        for i, variant in enumerate(variants):
            d, low, high, n = comparisons.get((base, variant), {name: (np.nan,) * 4})[name]
            if n > 1:
                ax.plot([low, high], [i, i], color=figures.BLUE, linewidth=1.4)
                sure = low > 0 or high < 0
                ax.plot(d, i, "o", color=figures.BLUE, fillstyle="full" if sure else "none")
        ax.set_yticks(range(len(variants)), [
            f"{name} ({SIZES[name]:g}M)" if name in SIZES else name for name in variants])
        ax.set_ylim(len(variants) - 0.5, -0.5)
        ax.set_xlabel(label)
        ax.locator_params(axis="x", nbins=5)
    return fig


def plot_lag(rows):
    """Where runs end, by k and scheme, in each base: dots are runs, lines their means."""
    bases = list(dict.fromkeys(row["base"] for row in rows))
    k_of = {"on_policy": (0, ""), BASELINE: (8, "pipeline"), "ppo_off_policy": (8, "ppo")}
    fig, (axes,) = figures.empty(10, 3.6, 1, len(bases), sharey=True)
    for ax, base in zip(axes, bases, strict=True):
        shown = set()
        for scheme, color, marker, dash in (("pipeline", figures.BLUE, "o", "-"),
                                            ("ppo", figures.ORANGE, "s", "--")):
            points = {}
            for row in (row for row in rows if row["base"] == base):
                name, _, k = row["variant"].rpartition("_")
                k, name = k_of.get(row["variant"]) or (int(k), name)
                if name in ("", scheme):
                    points.setdefault(k, []).append(row["end"])
            ks = sorted(points)
            shown |= points.keys()
            for at, k in enumerate(ks):
                ax.plot([at + (0.06 if scheme == "ppo" else -0.06)] * len(points[k]), points[k],
                        marker, color=color, markersize=3.5, linestyle="none", fillstyle="none")
            ax.plot(range(len(ks)), [np.nanmean(points[k]) for k in ks], dash, color=color,
                    marker=marker,
                    label={"pipeline": "PipelineRL-k", "ppo": "PPO-off-policy-k"}[scheme])
        ax.set_xticks(range(len(shown)), sorted(shown))     # a shorter scheme ends earlier
        ax.set(title=base, xlabel="k")
    axes[0].set_ylabel("end: pass rate, last three evaluations")
    axes[0].legend(frameon=False, fontsize=8.5)
    return fig


def plot_grid(jobs, rows):
    """Where runs end, by their mean lag, a line for each learning rate: dots are runs."""
    fig, ((ax,),) = figures.empty(6.5, 3.6, 1, 1)
    for color, base in zip((figures.BLUE, figures.ORANGE, figures.GREY, "black"), dict.fromkeys(
            job.base for job in jobs.values())):
        runs = {}
        for job in jobs.values():
            if job.base == base and not rows[job.name]["failed"]:
                runs.setdefault(job.variant, []).append(
                    (rows[job.name]["lag"], rows[job.name]["end"]))
        ax.plot(*np.concatenate([*runs.values()]).T, "o", color=color, markersize=3.5,
                fillstyle="none")
        ax.plot(*np.array([np.mean(run, 0) for run in runs.values()]).T, color=color, label=base)
    ax.set(xlabel="mean lag (optimizer steps)", ylabel="end: pass rate, last three evaluations")
    ax.legend(frameon=False, fontsize=8.5, title="learning rate", title_fontsize=8.5)
    return fig


def plot_curves(jobs):
    """Pass rate against compute: a thin line for each run, a thick one for a variant's mean."""
    bases = list(dict.fromkeys(job.base for job in jobs))
    fig, (axes,) = figures.empty(6.5 * len(bases), 3.6, 1, len(bases))
    styles = ((figures.BLUE, "o", "-"), (figures.ORANGE, "s", "--"))
    variants = dict.fromkeys(job.variant for job in jobs)
    for ax, base in zip(axes, bases):
        for variant, (color, marker, dash) in zip(variants, styles, strict=True):
            style = dict(color=color, linestyle=dash)
            curves = [curve_of(job) for job in jobs if (job.base, job.variant) == (base, variant)]
            for C, R in curves:
                ax.plot(C, R, linewidth=0.7, alpha=0.6, **style)
            ax.plot(*np.mean(curves, 0), linewidth=2.2, marker=marker, label=variant, **style)
        ax.set(xlabel="compute (FLOPs)", ylabel="pass rate on held-out problems",
               title=base if len(bases) > 1 else "")
        ax.legend(frameon=False)
    return fig


def plot_controls(jobs):
    """pass@k against k for each reward, after the run, and before it in grey; means over toys."""
    fig, ((ax,),) = figures.empty(6.5, 3.6, 1, 1)
    found, styles = kept_right(), ((figures.BLUE, "o", "-"), (figures.ORANGE, "s", "--"),
                                   ("black", "^", ":"), ("#7a9e3a", "s", "-."))
    variants = dict.fromkeys(job.variant for job in jobs.values())
    ks = [2**i for i in range(9)]
    for variant, (color, marker, dash) in zip(variants, styles, strict=True):
        runs = [found[job.name] for job in jobs.values() if job.variant == variant]
        first, last = (np.mean([pass_at(ks, *run[pick(run)]).mean(0) for run in runs], 0)
                       for pick in (min, max))
        if variant == BASELINE:                 # all begin from the same models
            ax.plot(ks, first, color=figures.GREY, marker="x", label="before")
        ax.plot(ks, last, dash, color=color, marker=marker, label=f"after: {variant}")
    ax.set_xscale("log", base=2)
    ax.set(xlabel="k", ylabel="pass@k on held-out problems")
    ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return fig


def plot_tasks(curves):
    """Two tasks in one run: a thin line for each run, dots and band for a task's mean with its 90%
    interval over the runs, dashes for the mean of the runs' fitted curves."""
    fig, (axes,) = figures.empty(10, 3.6, 1, len(curves), sharey=True)
    for ax, (name, runs) in zip(axes, curves.items(), strict=True):
        C, R = (np.array([run[i] for run in runs]) for i in (1, 2))              # (runs, n) each
        ax.plot(C.T, R.T, color=figures.BLUE, linewidth=0.7, alpha=0.6)
        mean, low, high, _ = np.transpose([paired(rates) for rates in R.T])
        ax.fill_between(C.mean(0), low, high, color=figures.BLUE, alpha=0.18, linewidth=0,
                        label="90% interval of the mean")
        ax.plot(C.mean(0), mean, "o", color=figures.BLUE, markersize=3.5, label="mean")
        ax.plot(C.mean(0), np.mean([fit_curve(*run, bootstrap=0).curve(run[0])
                                    for run in zip(C, R)], 0), "--", color=figures.ORANGE,
                linewidth=2, label="mean of the runs' sigmoids")
        ax.set(title=name, xlabel="compute (FLOPs)", ylim=(0, 1))
    axes[0].set_ylabel("pass rate on held-out problems")
    axes[0].legend(frameon=False, fontsize=8.5, loc="upper left")
    return fig


def plot_extrapolation(found):
    """The mean absolute error of each forecast by the share of compute that it has seen, a panel
    for each set of runs. The band is Student's 90% interval of the sigmoid's error over the toys,
    since runs of one toy are alike."""
    fig, axes = figures.empty(10, 5.6, 2, 2, sharex=True, sharey=True)
    styles = ((figures.BLUE, "o", "-"), (figures.ORANGE, "s", "--"), ("#7a9e3a", "^", "-."),
              ("black", "x", ":"))
    for ax, (name, by_cut) in zip(axes.flat, found.items(), strict=True):
        means = np.array([np.concatenate([*by_toy.values()]).mean(0) for by_toy in by_cut.values()])
        sigmoid = [paired([np.mean(errors, 0)[0] for errors in by_toy.values()])
                   for by_toy in by_cut.values()]
        runs = [sum(map(len, by_toy.values())) for by_toy in by_cut.values()]
        runs = f"{max(runs)} runs" + (f", {runs[0]} at .3" if runs[0] < max(runs) else "")
        ax.fill_between([*by_cut], [low for _, low, _, _ in sigmoid],
                        [high for _, _, high, _ in sigmoid], color=figures.BLUE, alpha=0.18,
                        linewidth=0)
        for mean, forecast, (color, marker, dash) in zip(means.T, FORECASTS, styles, strict=True):
            ax.plot([*by_cut], mean, dash, color=color, marker=marker, markersize=4, label=forecast)
        ax.set_title(f"{name} ({runs}, {len(by_cut[max(by_cut)])} toys)", fontsize=10)
    axes[0, 0].set_ylim(bottom=0)
    axes[0, 0].legend(frameon=False, fontsize=8.5)
    for ax in axes[1]:
        ax.set_xlabel("share of the compute that was seen")
    for ax in axes[:, 0]:
        ax.set_ylabel("mean absolute error")
    return fig


# ------------------------------------------------------------------------- 5. the page
def filled(page, tables):
    """The page with each table between its marks."""
    for name, text in tables.items():
        mark = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.S)
        if not mark.search(page):
            raise SystemExit(f"{PAGE} has no <!-- {name} --> ... <!-- end -->")
        page = mark.sub(lambda found, text=text: f"{found[1]}{text}\n{found[2]}", page)
    return page


def results():
    """(rows, tables, figures) from what is kept: all that the page shows."""
    planned = experiments()
    ended = set().union(*done())
    found = {stem: {job.name: job for job in jobs if job.name in ended}
             for stem, jobs in planned.items()}
    rows = {name: row_of(job) for jobs in found.values() for name, job in jobs.items()}
    everything = {name: job for jobs in found.values() for name, job in jobs.items()}
    tables, plots, other_curves = {}, {}, {}
    for stem, jobs in found.items():
        if stem in SECOND_ROUND:
            jobs = of_finished_bases({job.name: job for job in planned[stem]}, ended)
        if stem == "9_two_tasks":
            tables[stem], other_curves = tasks_of(
                {name: job for name, job in jobs.items() if not rows[name]["failed"]})
            plots[stem] = plot_tasks(other_curves)
            continue
        comparisons = compared(jobs, everything, rows)
        if not comparisons:                                 # runs of others, at most
            continue
        tables[stem] = table_of(jobs, rows, comparisons,
                                VISIBLE if stem in SECOND_ROUND else np.inf)
        if stem == "8_sizes":
            tables["sizes"] = sizes_of(jobs, rows)
        if stem in COMPUTE_TO:
            tables[COMPUTE_TO[stem]] = compute_to(jobs)
        if stem == "3_lag":
            plots[stem] = plot_lag([rows[name] for name in jobs])
        elif stem == "4_lr_lag":
            tables[stem] = grid_of(jobs, rows)
            plots[stem] = plot_grid(jobs, rows)
        elif stem == "17_four_sizes":
            toys = [curves for pair in dict.fromkeys(job.pair for job in jobs.values())
                    if len(curves := [curve_of(jobs[f"{CALM}-{name}-{pair}"])
                                      for name in sizes.MILLIONS
                                      if not rows[f"{CALM}-{name}-{pair}"]["failed"]]) == 4]
            tables["four_sizes"] = sizes.table(toys, paired, told)
            plots[stem] = sizes.plot(toys, figures)
        elif stem == "15_controls":
            tables[stem] = controls_of(jobs)
            plots[stem] = plot_controls(jobs)
        elif stem in ("10_smollm2", "16_horizon", "18_words"):
            plots[stem] = plot_curves(jobs.values())
        else:
            bases = dict.fromkeys(base for base, _ in comparisons)
            columns = [(base, "end", f"end, {base}") for base in bases]
            for base in bases:
                if base in FITTED:
                    columns += [(base, "A", f"A, {base}"),
                                (base, "log B", f"log B at a shared A, {base}")]
            plots[stem] = plot_comparisons(comparisons, columns)
    if by_level := logs.read(KEPT / "depth.csv"):
        by_run = {run: depth.compute_by_level(rows_of) for run, rows_of in by_level.items()}
        tables["depth"] = depth.table(by_run, paired, told)
        plots["depth"] = depth.plot(by_run, paired, figures)
    calm = [(job.toy, *curve_of(job))
            for job in {**found["1_leave_one_out"], **found["2_rivals"]}.values()
            if job.base == CALM and not rows[job.name]["failed"]]
    demo = logs.read(HERE.parent / "results/demo/evals.csv")
    errors = extrapolation_errors(
        {"calm, all recipes": calm,
         "demo": [(run.partition("-")[0], *curve(demo[run])) for run in sorted(demo)
                  if "seed1" in run]}
        | other_curves)
    tables["extrapolation"] = extrapolation(errors)
    plots["extrapolation"] = plot_extrapolation(errors)
    return rows, tables, plots


def main():
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    rows, tables, plots = results()
    write_csv(KEPT / "runs.csv", [
        {name: round(value, 4) if isinstance(value, float) else value
         for name, value in row.items()} for row in rows.values()])
    for name, plot in plots.items():
        plot.savefig(picture := io.BytesIO(), dpi=120)
        # 64 colors: a third of the bytes, and no difference that can be seen.
        Image.open(picture).convert("RGB").quantize(64).save(KEPT / f"{name}.png", optimize=True)
    PAGE.write_text(filled(PAGE.read_text(), tables))
    for name, text in tables.items():
        print(f"{name}\n{text}\n")


if __name__ == "__main__":
    main()
