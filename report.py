"""One page about one run: python scalerl.py --report runs/demo

Writes RUN/report.html, a single file without scripts, fonts or links to anywhere, so that it can be
mailed, archived and opened offline years later. In the order of the page:

1. The question   the fitted curve, and what the first half predicted for the second (fit.py)
2. The training   one small chart for each thing that can go wrong, with its healthy range
3. The samples    what the model wrote: first, last, and last interrupted, the forced phrase marked
4. The settings   the run's config.toml and the versions it ran with

Charts are SVG drawn by matplotlib. Samples are text by a language model, and a page is read by a
browser: everything that did not come from this file goes through html.escape.

The page is ours; the paper has no such thing. Columns and healthy ranges: README, "A run folder".
"""

import html
import io
import tomllib
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import fit

COLORS = ("#1f4e79", "#d9822b", "#6b8e23", "#8e4585", "#7f7f7f", "#b22222")
SAMPLES_SHOWN = 8               # of the first, the last, and the last interrupted ones, each

# (title, columns, how to read it). A column that ends in "/lag_" stands for all its lags.
CHARTS = [
    ("Pass rate", ["pass_rate", "frac_reward_zero_std"],
     "Of the step's samples; the share of groups with equal rewards, which are filtered. Above 0.8 "
     "filtered, a step teaches little."),
    ("Reward", ["reward/mean", "reward/std"],
     "Of the step's samples, +1 or -1 each, length penalty included."),
    ("Length", ["completions/mean_length"], "Tokens a sample. No explosion, no collapse."),
    ("Cut and truncated", ["completions/interrupted_frac", "completions/truncated_frac"],
     "Thinking interrupted by the forced phrase; ran out of the answer's budget too. The paper saw "
     "instability at 0.10 to 0.15 truncated."),
    ("Lag", ["lag/mean", "lag/max"],
     "Optimizer steps between a token's weights and the trainer's."),
    ("Ratio by lag", ["ratio/mean/lag_"], "Trainer's probability over the sampler's: 1.00 ± 0.02."),
    ("Mismatch by lag", ["mismatch/kl_k3/lag_"], "KL of sampler to trainer; below 0.015 at lag 0."),
    ("Effective sample size", ["ess"], "Of the ratios, as a share. Above 0.9."),
    ("Entropy", ["entropy"], "Per token. It falls, and predicts nothing (paper)."),
    ("Gradient norm", ["grad_norm"], "Before clipping. No spikes."),
    ("Curriculum", ["curriculum/active", "curriculum/retired"],
     "Prompts still asked, and prompts that the model has learned."),
    ("Tokens", ["tokens/generated", "tokens/trained", "tokens/forced"],
     "A step: written by the model, trained on, forced by interruptions."),
]
TIMES = ["time/generate_s", "time/train_s", "time/verify_s", "time/sync_s"]


def write_report(folder):
    """Write FOLDER/report.html from the run's logs and return its path.

    A last line that a running or killed run left half-written is left out, as is said on the page.
    Raises fit.BadInput with a sentence: no such run, no steps in its log, or a damaged line.
    """
    folder = Path(folder)
    if not (folder / "metrics.jsonl").is_file():
        raise fit.BadInput(f"no run to report in {str(folder)!r}: it has no metrics.jsonl")
    notes = []
    steps = [row for row in read_lines(folder / "metrics.jsonl", notes) if "pass_rate" in row]
    if not steps:
        raise fit.BadInput(f"nothing to report yet: {folder}/metrics.jsonl has no finished step")
    samples = read_lines(folder / "samples.jsonl", notes)
    body = [
        f"<h1>{html.escape(folder.name)}</h1>", f"<p>{summary(steps)}</p>",
        *(f"<p class=note>{html.escape(note)}</p>" for note in notes),
        "<h2>What would more compute buy?</h2>", *curves(folder),
        "<h2>The training</h2><div class=charts>", *charts(steps), times(steps), "</div>",
        "<h2>Samples</h2>", *shown_samples(samples, phrase_of(folder)),
        "<h2>Settings</h2>", *(pre(folder / name) for name in ("config.toml", "versions.json")),
    ]
    path = folder / "report.html"
    page = PAGE.format(title=html.escape(folder.name), body="\n".join(body))
    path.write_text(page, "utf-8", "replace")   # a sample may hold half a character
    return path


def read_lines(path, notes):
    """The rows of a JSONL file; [] if there is none. Says in `notes` what was left out."""
    rows, more = fit.read_jsonl(path) if path.is_file() else ([], [])
    notes += more
    return [row for row in rows if row]


def summary(steps):
    """Where the run stands, in one sentence."""
    last = steps[-1]
    hours = sum(row.get("time/step_s", 0) for row in steps) / 3600
    return html.escape(
        f"{len(steps)} steps, the last {last['step']}; {hours:.2f} h in steps; "
        f"{last.get('compute/flops', 0):.3g} FLOPs; {last.get('compute/tokens', 0):,} tokens "
        f"generated. Last step: pass rate {last['pass_rate']:.3f}.")


# ------------------------------------------------------------------------------------------------
# 1. The question


def curves(folder):
    """A figure and a table for each task that was evaluated, or the sentence that says why not."""
    evals = read_lines(folder / "evals.jsonl", [])
    columns = sorted({key for row in evals for key in row if "/mean@" in key})
    if not columns:
        yield "<p>No evaluation yet.</p>"
    for column in columns:
        yield f"<h3>{html.escape(column)}</h3>"
        try:
            curve = fit.load(str(folder), y=column)
            whole = fit.fit_curve(curve.C, curve.R)
        except fit.BadInput as error:
            yield f"<p class=note>{html.escape(str(error))}</p>"
            continue
        early, lines = None, [f"{column}: last {curve.R[-1]:.3f}"]
        try:
            early = fit.fit_curve(curve.C, curve.R, c_max=0.5 * curve.C[-1])
            lines = fit.held_out(curve, early)[0]
        except fit.BadInput as error:
            lines.append(f"No prediction from the first half: {error}")
        yield svg(fit.plot_run(curve, whole, early))
        fits = {"all": whole} | ({"first half": early} if early else {})
        yield "<pre>" + html.escape("\n".join([*fit.fit_table(fits), *lines])) + "</pre>"
        for name, one in fits.items():
            for warning in one.warnings:
                yield f"<p class=note>{html.escape(f'{name}: {warning}')}</p>"


# ------------------------------------------------------------------------------------------------
# 2. The training


def charts(steps):
    """One <figure> for each of CHARTS that has data."""
    for title, columns, words in CHARTS:
        series = {}
        for column in columns:
            names = [column]
            if column.endswith("/lag_"):
                names = sorted({k for row in steps for k in row if k.startswith(column)},
                               key=lambda name: int(name.rpartition("_")[2]))
            for name in names:
                points = [(row["step"], row[name]) for row in steps if row.get(name) is not None]
                if points:
                    series[name.removeprefix(column) if name != column else name] = points
        if series:
            yield f"<figure>{svg(lines_figure(title, series))}<figcaption>{html.escape(words)}" \
                  "</figcaption></figure>"


def lines_figure(title, series):
    """A small line chart of {label: [(step, value), ...]}. Many steps are averaged in 300 bins."""
    figure = Figure(figsize=(4.6, 2.6), layout="constrained")
    axes = figure.subplots()
    for i, (label, points) in enumerate(series.items()):
        x, y = np.array(points, dtype=float).T
        bins = np.array_split(np.arange(len(x)), min(len(x), 300))
        axes.plot([x[b].mean() for b in bins], [y[b].mean() for b in bins], linewidth=1.1,
                  color=COLORS[i % len(COLORS)], linestyle=("-", "--", ":")[i // len(COLORS) % 3],
                  label=label, marker="." if len(x) == 1 else None)
    tidy(axes, title)
    if len(series) > 1:
        axes.legend(fontsize=7, frameon=False)
    return figure


def times(steps):
    """Where the seconds went: what is left of a step is bookkeeping."""
    figure = Figure(figsize=(4.6, 2.6), layout="constrained")
    axes = figure.subplots()
    x = [row["step"] for row in steps]
    parts = [[row.get(name, 0.0) for row in steps] for name in TIMES]
    rest = [max(0.0, row.get("time/step_s", 0.0) - sum(part[i] for part in parts))
            for i, row in enumerate(steps)]
    labels = [name.removeprefix("time/").removesuffix("_s") for name in TIMES] + ["rest"]
    axes.stackplot(x, *parts, rest, labels=labels, colors=COLORS)
    tidy(axes, "Seconds a step")
    axes.legend(fontsize=7, frameon=False)
    return (f"<figure>{svg(figure)}<figcaption>Generation, training, marks, weight push, rest."
            "</figcaption></figure>")


def tidy(axes, title):
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel("step", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.01)


def svg(figure):
    """A figure as inline SVG, without the XML header and the link to its DTD."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    return text[text.index("<svg"):]


# ------------------------------------------------------------------------------------------------
# 3. The samples, 4. the settings


def phrase_of(folder):
    """The run's interruption phrase, or "" where that cannot be known or none was used."""
    try:
        settings = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError):
        return ""
    return settings.get("interrupt_phrase", "")


def shown_samples(samples, phrase):
    """The first and the last samples of the log and the last interrupted ones, as tables."""
    if not samples:
        yield "<p>None logged.</p>"
        return
    interrupted = [row for row in samples if row["interrupted"]]
    for title, part in (("First", samples[:SAMPLES_SHOWN]), ("Last", samples[-SAMPLES_SHOWN:]),
                        ("Last interrupted", interrupted[-SAMPLES_SHOWN:])):
        if not part:
            yield "<p>None was interrupted.</p>"
            return
        yield f"<h3>{title}</h3><table><tr><th>step<th>reward<th>end<th>prompt and output</tr>"
        for row in part:
            reward = float(row["reward"])
            end = "interrupted, " * bool(row["interrupted"]) + str(row["finish_reason"])
            yield (f"<tr><td>{int(row['step'])}<td class={'right' if reward > 0 else 'wrong'}>"
                   f"{reward:+g}<td>{html.escape(end)}<td class=text><span class=prompt>"
                   f"{html.escape(row['prompt'])}</span>{marked(row['output'], phrase)}</tr>")
        yield "</table>"


def marked(output, phrase):
    """An output as HTML, the forced phrase in <mark>."""
    output, phrase = html.escape(output), html.escape(phrase)
    return output.replace(phrase, f"<mark>{phrase}</mark>") if phrase else output


def pre(path):
    text = path.read_text("utf-8", "replace") if path.is_file() else "(missing)"
    return f"<h3>{html.escape(path.name)}</h3><pre>{html.escape(text)}</pre>"


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy"
      content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 1040px; margin: 2em auto; padding: 0 1em;
       color: #222; }}
svg {{ max-width: 100%; height: auto; }}
.charts {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 1em; }}
figure {{ margin: 0; }}
figcaption, .note {{ color: #666; font-size: 13px; }}
pre {{ background: #f6f6f6; padding: .8em; overflow-x: auto; font-size: 12.5px; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; vertical-align: top; padding: .3em .6em;
         border-bottom: 1px solid #ddd; }}
.text {{ font-family: monospace; font-size: 13px; white-space: pre-wrap; overflow-wrap: anywhere; }}
.prompt {{ color: #888; }} .right {{ color: #2e7d32; }} .wrong {{ color: #b22222; }}
mark {{ background: #ffe9a8; }}
</style></head><body>
{body}
</body></html>
"""
