"""The README's picture of a step, docs/timeline.png, from a run that has recorded some.

    python bench/timeline.py runs/demo --out docs/timeline.png

Of the steps whose samples' times the run has written down (every tenth; vLLM does not tell them) it
is the first one that most versions of the weights have written.
"""
import argparse
import sys
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

sys.path.insert(0, str(Path(__file__).parent.parent))

from artifacts.step_log import TIMELINE_EVERY  # noqa: E402
from command import symptoms  # noqa: E402
from fitting import figures, readers  # noqa: E402

ROWS = 128                      # samples in the picture at most, evenly chosen


def one_step(path, steps):
    """(figure, sentence) of the recorded step with samples of most versions, or (None, why)."""
    lines = readers.read_jsonl(path)[0] if path.is_file() else ()
    if recorded := [line for line in lines if "timeline" in line]:
        return timeline(max(recorded, key=lambda line: len(
            {v for sample in line["timeline"] for v, _ in sample["versions"]})), steps)
    return None, f"There is no picture of a step: every {TIMELINE_EVERY}th has one, none of vLLM's."


def timeline(trained, steps):
    """(figure, sentence) of a step's line of groups.jsonl, with a "timeline" (step_log.py) in it.
    steps: the rows of metrics.jsonl, with the "decode/clock" at which each pushed its weights."""
    samples = trained["timeline"]
    bars = [(sample["ended"] - sum(n for _, n in sample["versions"]), sample)
            for sample in samples[::-(-len(samples) // ROWS)]]
    bars.sort(key=lambda bar: (bar[0], bar[1]["ended"]))
    zero = bars[0][0]
    versions = sorted({v for _, sample in bars for v, _ in sample["versions"]})
    shade = dict(zip(versions, matplotlib.colormaps["viridis"](np.linspace(0, 1, len(versions)))))

    figure, ((ax,),) = figures.empty(5.6, 2.2 + 0.032 * len(bars), 1, 1)
    for y, (start, sample) in enumerate(bars):
        x = start - zero
        if sample["forced"]:
            first, number = sample["forced"]
            ax.barh(y, number, left=x + first, height=0.4, color="black", zorder=3)
        for version, number in sample["versions"]:
            ax.barh(y, number, 1, x, color=shade[version], edgecolor="white", linewidth=0.4)
            x += number
    for row in steps:
        if zero < row.get("decode/clock", 0) and row["step"] <= trained["step"]:
            ax.axvline(row["decode/clock"] - zero, color=figures.ORANGE, linewidth=1, zorder=2)
    ax.set(xlabel="decode steps: one token of every running sample", yticks=[], xlim=(0, None),
           ylabel="samples, oldest below", ylim=(-1, len(bars)))
    ax.grid(False)
    shown = versions[::-(-len(versions) // 6)]
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, frameon=False, fontsize=9,
              handles=[*(Patch(color=shade[v], label=f"weights {v}") for v in shown),
                       Line2D([], [], color="black", linewidth=2.5, label="forced phrase"),
                       Line2D([], [], color=figures.ORANGE, label="end of a step")])
    across = sum(len(sample["versions"]) > 1 for sample in samples)
    return figure, (f"Step {trained['step']} was trained on {len(samples)} samples: a bar over the "
                    f"time in which each was decoded, in the colors of its weights. {across} went "
                    f"on while weights changed. {len(bars)} are drawn.")


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("run", type=Path, metavar="RUN", help="a run's folder")
    p.add_argument("--out", default="docs/timeline.png", help="docs/timeline.png")
    args = p.parse_args(argv)
    rows = symptoms.read(args.run)
    figure, sentence = one_step(args.run / "groups.jsonl", rows)
    if not rows:
        p.exit(2, f"timeline.py: {args.run} has no log of a run\n")
    if figure is None:
        p.exit(2, f"timeline.py: {args.run}: {sentence}\n")
    try:
        figure.savefig(args.out, dpi=130)
    except OSError as error:
        p.exit(2, f"timeline.py: {error}\n")
    print(f"{args.out}: {sentence}")


if __name__ == "__main__":
    main()
