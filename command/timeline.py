"""timeline.py: one step of a run as a picture: when its samples were decoded, and by which weights.

A sample is a bar over the decode steps of its engine, in each of which every running sequence gets
one token. So the bars show PipelineRL: at a push of new weights they change color and go on.
"""

from matplotlib import colormaps
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fitting import figures

ROWS = 128                      # samples drawn at most, evenly chosen: thinner bars cannot be seen


def timeline(trained, steps):
    """(figure, sentence) of a step's line of groups.jsonl, with a "timeline" (step_log.py) in it.

    steps: the rows of metrics.jsonl; "decode/clock" is where a step ended and pushed its weights.
    """
    samples = trained["timeline"]
    bars = [(sample["ended"] - sum(n for _, n in sample["versions"]), sample)
            for sample in samples[::-(-len(samples) // ROWS)]]
    bars.sort(key=lambda bar: (bar[0], bar[1]["ended"]))
    zero = bars[0][0]
    versions = sorted({v for _, sample in bars for v, _ in sample["versions"]})
    shade = dict(zip(versions, colormaps["viridis"].resampled(len(versions))(range(len(versions)))))

    figure, ((ax,),) = figures.empty(5.6, 2.2 + 0.032 * len(bars), 1, 1)
    for y, (start, sample) in enumerate(bars):
        x = start - zero
        if sample["forced"]:
            first, number = sample["forced"]
            ax.barh(y, number, left=x + first, height=0.4, color="black", zorder=3)
        for version, number in sample["versions"]:
            ax.barh(y, number, left=x, height=1, color=shade[version],
                    edgecolor="white", linewidth=0.4)
            x += number
    for row in steps:
        if zero < row.get("decode/clock", 0) and row["step"] <= trained["step"]:
            ax.axvline(row["decode/clock"] - zero, color=figures.ORANGE, linewidth=1, zorder=2)
    ax.set(xlabel="decode steps: one token of every running sample", yticks=[], xlim=(0, None),
           ylabel="samples, oldest below", ylim=(-1, len(bars)))
    ax.grid(False)
    shown = versions if len(versions) <= 6 else versions[::-(-len(versions) // 6)]
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, frameon=False, fontsize=9,
              handles=[*(Patch(color=shade[v], label=f"weights {v}") for v in shown),
                       Line2D([], [], color="black", linewidth=2.5, label="forced phrase"),
                       Line2D([], [], color=figures.ORANGE, label="end of a step")])
    across = sum(len(sample["versions"]) > 1 for sample in samples)
    return figure, (
        f"Step {trained['step']} was trained on {len(samples)} samples. Each is a bar over the "
        f"time in which it was decoded, in the color of the weights that wrote it; {across} of "
        "them went on while weights changed. Black: the phrase that interrupts a sample's "
        "thinking. Orange: the end of a step, when new weights are pushed." + (
            f" {len(bars)} of the samples are drawn." if len(bars) < len(samples) else ""))
