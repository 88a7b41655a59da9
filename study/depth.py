"""Compute to a fixed pass rate against the number of steps of a problem: a power law?

    python -m study.depth runs/study-reuse-scalerl-*      -> results/study/depth.csv

The toy's problems are sums in 2, 3 or 4 steps (`Problem.level`). A line of the log of evaluations
has the right samples of each held-out problem. This keeps, for each run, evaluation and level, how
many were right and asked; figures.py fits the law of fit.py to each level, reads off the compute at
which it reaches PASS_RATE, and fits compute = a * steps^b to the levels of each run.
"""
import argparse
import json
from pathlib import Path

import numpy as np

from artifacts.settings import make_config, read_toml
from fit import fit_curve
from study import logs
from study.run import KEPT
from tasks.problems import load_splits

PASS_RATE = 0.7         # chosen on toys 30 to 34, of other runs


def by_level(folder):
    """[{step, compute/flops, level, right, asked}] of a run folder of the task `toy`."""
    config = make_config(read_toml(folder / "config.toml"))
    heldout = load_splits(config.task, heldout=config.heldout_prompts,
                          options=config.task_options, eval_spec=config.eval_tasks)[1]
    levels = np.array([problem.level for problem in heldout])
    rows = map(json.loads, (folder / "evals.jsonl").read_text().splitlines())
    return [{"step": row["step"], "compute/flops": row["compute/flops"], "level": level,
             "right": int(right[levels == level].sum()),
             "asked": int((levels == level).sum()) * config.eval_samples}
            for row in rows for level in np.unique(levels).tolist()
            for right in [np.array(row[f"eval/{config.task}/right@{config.eval_samples}"])]]


def compute_by_level(rows):
    """{level: the compute at which its fitted curve reaches PASS_RATE} of a run's kept rows."""
    found = {}
    for level in sorted({row["level"] for row in rows}):
        C, R = np.array([(row["compute/flops"], row["right"] / row["asked"]) for row in rows
                         if row["level"] == level]).T
        found[level] = fit_curve(C, R, bootstrap=0).compute_for(PASS_RATE)
    return found


def exponent(compute):
    """b of compute = a * level^b, least squares in logarithms, of {level: compute}. A level that
    was there before training (0), or never comes there (inf), says nothing."""
    log = np.log([pair for pair in compute.items() if 0 < pair[1] < np.inf])
    return np.polyfit(*log.T, 1)[0]


def table(found, paired, told):
    """Compute to a pass rate by the steps of a problem, a line a run. found: {run: what
    `compute_by_level` gives}; paired, told: of study/figures.py."""
    levels = sorted(next(iter(found.values())))
    lines = ["| run | " + " | ".join(f"{level:g} steps" for level in levels) + " | exponent |",
             "|---|" + "--:|" * (len(levels) + 1)]
    exponents = [exponent(compute) for compute in found.values()]
    lines += [f"| `{run}` | " + " | ".join(f"{compute[level]:.3g}" for level in levels)
              + f" | {b:.2f} |" for (run, compute), b in zip(found.items(), exponents, strict=True)]
    return "\n".join([*lines, f"| mean |{' |' * len(levels)} {told(paired(exponents), '.2f')} |"])


def plot(found, paired, figures):
    """Compute to the pass rate by the steps of a problem, both on log axes: thin lines are runs,
    the thick one has the mean exponent and goes through the runs' geometric mean."""
    fig, ((ax,),) = figures.empty(6.5, 3.6, 1, 1)
    logs_of = []
    for compute in found.values():
        level, flops = np.array([pair for pair in compute.items() if 0 < pair[1] < np.inf]).T
        ax.plot(level, flops, "o-", color=figures.BLUE, markersize=3.5, linewidth=0.7, alpha=0.7,
                label=None if logs_of else "a run")
        logs_of.append((np.log(level).mean(), np.log(flops).mean()))
    (x, y), levels = np.mean(logs_of, 0), np.array(sorted(next(iter(found.values()))))
    b, low, high, _ = paired([exponent(compute) for compute in found.values()])
    for slope, dash, name in ((b, "-", f"steps^{b:.1f}, mean exponent"),
                              (low, ":", f"90% interval of the exponent alone: {low:.1f} to "
                                         f"{high:.1f}"),
                              (high, ":", None)):
        ax.plot(levels, np.exp(y + slope * (np.log(levels) - x)), dash, color=figures.ORANGE,
                linewidth=2.2 if slope == b else 1.2, label=name)
    ax.set(xscale="log", yscale="log", xlabel="steps of a problem",
           ylabel=f"compute (FLOPs) to a pass rate of {PASS_RATE:g}")
    ax.set_xticks(levels, [f"{level:g}" for level in levels])
    ax.xaxis.minorticks_off()
    figures.log_axis(ax.yaxis)
    ax.legend(frameon=False, fontsize=8.5)
    return fig


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("runs", nargs="+", type=Path)
    for folder in p.parse_args().runs:
        logs.add(KEPT / "depth.csv", folder.name.removeprefix("study-"), by_level(folder))


if __name__ == "__main__":
    main()
