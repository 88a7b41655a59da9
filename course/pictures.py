"""pictures.py: what course/tour.ipynb draws. Nothing is computed here that the tour is about.

Every function takes what the five files have made, draws it, and returns the figure. A print in
grey says the same: shades differ in brightness, and every shade that matters has a number, a hatch
or a marker beside it.
"""

import matplotlib.pyplot as plt
from matplotlib.patches import Patch, Rectangle

from fitting.figures import BLUE, GREY, ORANGE, log_axis

plt.rcParams.update({"figure.constrained_layout.use": True, "axes.spines.top": False,
                     "axes.spines.right": False})


def tokens(rollouts, decode, title, versions=False):
    """One row a sample, one box a token: its text, or with `versions` the number of the weights
    that wrote it, the newer the darker. Tokens that the policy did not choose are hatched."""
    longest = max(len(r.output_ids) for r in rollouts)
    tall = 0.34 if versions else 0.95
    figure, ax = plt.subplots(figsize=(0.7 + 0.27 * longest, 1.1 + tall * len(rollouts)))
    new = max(max(r.versions) for r in rollouts)
    old = min(min(r.versions) for r in rollouts)
    for row, r in enumerate(rollouts):
        for t, (token, version, sampled) in enumerate(zip(r.output_ids, r.versions, r.sampled)):
            shade = 0.95 - 0.75 * (version - old) / max(1, new - old) if versions else 1.0
            ax.add_patch(Rectangle((t, row), 1, 0.9, facecolor=str(shade), edgecolor=GREY,
                                   linewidth=0.6, hatch=None if sampled else "////"))
            text = str(version) if versions else decode([token]).strip() or "_"
            ax.text(t + 0.5, row + 0.45, text, ha="center", va="center", fontsize=8,
                    rotation=90 if len(text) > 2 else 0,
                    color="white" if sampled and shade < 0.5 else "black",
                    bbox=None if sampled else dict(facecolor="white", edgecolor="none", pad=0.8))
    ax.set(xlim=(0, longest + 0.1), ylim=(len(rollouts), 0), title=title,
           xlabel="token of the output, counted from 0",
           yticks=[row + 0.45 for row in range(len(rollouts))],
           yticklabels=[f"sample {row}" for row in range(len(rollouts))])
    if not all(all(r.sampled) for r in rollouts):
        ax.legend(handles=[Patch(facecolor="white", edgecolor=GREY, hatch="////",
                                 label="forced: not trained on")],
                  loc="upper right", bbox_to_anchor=(1, 0), fontsize=8, frameon=False,
                  borderaxespad=2.2)
    return figure


def packed_row(seen, names, lengths):
    """seen (T, T), True where the token of a row looks at that of a column; names and lengths of
    the pieces of the row, in their order."""
    figure, ax = plt.subplots(figsize=(7.2, 6.4))
    ax.imshow(seen, cmap="Greys", vmin=0, vmax=1.6, interpolation="nearest")
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    for end in ends[:-1]:
        ax.axhline(end - 0.5, color=GREY, linewidth=0.7)
        ax.axvline(end - 0.5, color=GREY, linewidth=0.7)
    middles = [end - length / 2 - 0.5 for end, length in zip(ends, lengths)]
    ax.set(xticks=middles, yticks=middles, yticklabels=names,
           xlabel=f"... looks at this one (dark), of {len(seen)} tokens in the row",
           ylabel="a token of this piece ...", title="One row, and who may look at whom")
    ax.set_xticklabels(names, rotation=35, ha="right", rotation_mode="anchor")
    ax.tick_params(length=0)
    return figure


def advantages(rewards, kept, advantage):
    """rewards (P, G); kept (P,) bool; advantage (number of kept groups, G)."""
    P, G = rewards.shape
    figure, ax = plt.subplots(figsize=(1.8 + 0.62 * G, 1.2 + 0.36 * P))
    row_of = {p: i for i, p in enumerate(kept.nonzero()[:, 0].tolist())}
    for p in range(P):
        for g in range(G):
            ax.add_patch(Rectangle((g, p), 0.94, 0.9, edgecolor=GREY, linewidth=0.6,
                                   facecolor="white" if rewards[p, g] > 0 else "0.8",
                                   hatch=None if p in row_of else "////"))
            if p in row_of:
                ax.text(g + 0.47, p + 0.45, f"{advantage[row_of[p], g]:+.2f}", ha="center",
                        va="center", fontsize=8)
    ax.set(xlim=(0, G), ylim=(P, 0), xlabel="sample of the prompt", ylabel="prompt of the step",
           xticks=[g + 0.47 for g in range(G)], xticklabels=range(G),
           yticks=[p + 0.45 for p in range(P)], yticklabels=range(P),
           title="Advantages (white: right answer, grey: wrong, hatched: left out)")
    ax.title.set_fontsize(10)
    return figure


def token_weights(lengths, weights):
    """lengths (N,) trained tokens of the samples; weights {aggregation: (N,) weight of a token}."""
    figure, ax = plt.subplots(figsize=(6.4, 3.6))
    for (name, weight), marker, color in zip(weights.items(), "o+x", (BLUE, ORANGE, "black")):
        ax.plot(lengths, 1000 * weight, marker, color=color, fillstyle="none",
                label=f'aggregation = "{name}"')
    ax.set(xlabel="trained tokens of the sample", ylabel="weight of one token, in 1/1000",
           title="How much one token counts in the step's loss")
    ax.legend(fontsize=8, frameon=False)
    return figure


def ratios(ratio, lag, stats, eps_max):
    """ratio, lag (tokens,); stats: the columns of `loss.merge_stats` for the same tokens."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
    lags = sorted(set(lag.tolist()))
    left.boxplot([ratio[lag == k].numpy() for k in lags], positions=lags, widths=0.6, whis=(1, 99),
                 flierprops=dict(marker=".", markersize=3), medianprops=dict(color="black"))
    left.axhline(eps_max, color=ORANGE, linestyle="--", label=f"CISPO's cap, eps_max = {eps_max:g}")
    left.axhline(1, color=GREY, linewidth=0.8)
    left.set(yscale="log", xlabel="lag of the token (optimizer steps)",
             ylabel="ratio: trainer / sampler, log scale",
             title="Ratios (box: middle half, whiskers: 98%)")
    left.legend(fontsize=8, frameon=False, loc="lower left")
    log_axis(left.yaxis)
    right.bar(lags, [stats[f"ess/lag_{k}"] for k in lags], color="0.75", edgecolor="black",
              width=0.6)
    right.axhline(stats["ess"], color=BLUE, linestyle="--",
                  label=f"of all tokens: {stats['ess']:.3f}")
    right.set(xlabel="lag of the token (optimizer steps)", ylabel="effective share of the tokens",
              ylim=(0, 1.15), title="Effective sample size (ess)")
    right.legend(fontsize=8, frameon=False, loc="upper right")
    return figure


def log(lines, k):
    """lines: of metrics.jsonl, one a step; k: the bound of the lag."""
    step = [line["step"] for line in lines]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
    for name, style in (("lag/max", ":"), ("lag/mean", "-")):
        left.plot(step, [line[name] for line in lines], style, color=BLUE, label=name)
    left.axhline(k, color=ORANGE, linestyle="--", label=f"the bound, k = {k}")
    left.set(ylabel="lag (optimizer steps)", ylim=(0, k + 2.5), title="How old the samples are")
    for name, style, color in (("frac_reward_zero_std", "-", BLUE),
                               ("completions/interrupted_frac", ":", "black")):
        right.plot(step, [line[name] for line in lines], style, color=color, label=name)
    right.set(ylabel="share", ylim=(0, 1.3), title="Groups left out, samples interrupted")
    for ax in (left, right):
        ax.set_xlabel("training step")
        ax.legend(fontsize=8, frameon=False, loc="upper left", ncols=2 if ax is left else 1)
    return figure


def errors(names, law, naive):
    """A row a run: the errors of its prediction by the law, and of the naive forecast."""
    figure, ax = plt.subplots(figsize=(6.4, 0.9 + 0.24 * len(names)))
    rows = range(len(names))
    ax.axvline(0, color=GREY, linewidth=0.8)
    ax.plot(naive, rows, "x", color="black", label="naive: it stays as it was at the cut")
    ax.plot(law, rows, "o", color=BLUE, label="the law, fitted to the first half")
    ax.set(yticks=rows, yticklabels=names, xlabel="predicted minus measured pass rate",
           title=f"Errors of predictions, {len(names)} runs")
    ax.invert_yaxis()
    ax.legend(fontsize=8, frameon=False, loc="lower center", ncols=2, bbox_to_anchor=(0.4, -0.27))
    return figure
