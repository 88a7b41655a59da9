"""One page about one run: python scalerl.py --report runs/demo

Writes RUN/report.html, a single file without scripts, fonts or links, to be mailed, archived and
opened offline years later: the fitted curve with the first half's prediction (fit.py), a small
chart for each thing that can go wrong in training, samples, settings and versions.

Charts are SVG drawn by matplotlib. Samples are text by a language model, and a page is read by a
browser: everything that did not come from this file goes through html.escape.
"""

import io
import tomllib
from html import escape
from pathlib import Path

import numpy as np

import fit
from artifacts import figures, fit_report, readers, symptoms

SAMPLES_SHOWN = 8               # of the first, the last, and the last interrupted ones, each
# {title, with the healthy range: columns}. A column that ends in "/lag_" stands for all its lags.
# docs/metrics.md explains the columns.
CHARTS = {
    "Pass rate; filtered groups, below 0.8": ["pass_rate", "frac_reward_zero_std"],
    "Reward, length penalty included": ["reward/mean", "reward/std"],
    "Tokens a sample: no explosion, no collapse": ["completions/mean_length"],
    "Interrupted; truncated, below 0.05": [
        "completions/interrupted_frac", "completions/truncated_frac"],
    "Lag of the weights in optimizer steps": ["lag/mean", "lag/max"],
    "Ratio trainer / sampler by lag: 1.00 ± 0.02": ["ratio/mean/lag_"],
    "KL of sampler to trainer by lag: below 0.015 at 0": ["mismatch/kl_k3/lag_"],
    "Effective sample size: above 0.9": ["ess"],
    "Entropy per token: falls, predicts nothing": ["entropy"],
    "Gradient norm before clipping: no spikes": ["grad_norm"],
    "Prompts still asked, prompts learned": ["curriculum/active", "curriculum/retired"],
    "Tokens a step": ["tokens/generated", "tokens/trained", "tokens/forced"],
    "Seconds a step": ["time/step_s", "time/generate_s", "time/train_s", "time/verify_s",
                       "time/sync_s"],
}


def write_report(folder):
    """Write FOLDER/report.html from the run's logs and return its path.

    A last line that a running or killed run left half-written is left out, as is said on the page.
    Raises fit.BadInput: no such run, no steps in its log, or a damaged line.
    """
    folder = Path(folder)
    if not (folder / "metrics.jsonl").is_file():
        raise fit.BadInput(f"no run to report in {str(folder)!r}: it has no metrics.jsonl")
    logs, notes = {}, []
    for name in ("metrics", "evals", "samples"):
        path = folder / f"{name}.jsonl"
        logs[name], more = readers.read_jsonl(path) if path.is_file() else ([], [])
        notes += more
    steps = [row for row in logs["metrics"] if "pass_rate" in row]
    if not steps:
        raise fit.BadInput(f"nothing to report yet: {folder}/metrics.jsonl has no finished step")
    last = steps[-1]
    files = {name: (folder / name).read_text() if (folder / name).is_file() else ""
             for name in ("config.toml", "versions.json")}
    phrase = tomllib.loads(files["config.toml"]).get("interrupt_phrase", "")
    body = [
        f"<h1>{escape(folder.name)}</h1><p>{len(steps)} steps, the last {last['step']:d}; "
        f"{sum(row.get('time/step_s', 0) for row in steps) / 3600:.2f} h in steps; "
        f"{last.get('compute/flops', 0):.3g} FLOPs; {last.get('compute/tokens', 0):,d} tokens "
        f"generated. Last step: pass rate {last['pass_rate']:.3f}.</p>",
        *(f"<p class=note>{escape(note)}</p>" for note in notes),
        "<h2>Is it working?</h2>", *(f"<p>{escape(line)}</p>" for line in symptoms.told(folder)),
        "<h2>What would more compute buy?</h2>",
        *(curves(folder, logs["evals"]) if logs["evals"] else ["<p>No evaluation yet.</p>"]),
        "<h2>The training</h2><div class=charts>", *charts(steps), "</div>",
        "<h2>Samples</h2>", *shown_samples(logs["samples"], phrase), "<h2>Settings</h2>",
        *(f"<h3>{name}</h3><pre>{escape(text)}</pre>" for name, text in files.items())]
    path = folder / "report.html"
    page = PAGE.format(title=escape(folder.name), body="\n".join(body))
    path.write_text(page, "utf-8", "replace")   # a sample may hold half a character
    return path


def curves(folder, evals):
    """A figure and a table for each task that was evaluated, or the sentence that says why not."""
    columns = sorted({key for row in evals for key in row if "/mean@" in key})
    for column in columns:
        yield f"<h3>{escape(column)}</h3>"
        fits, early = {}, None
        try:
            curve = readers.load(str(folder), y=column)
            fits["all"] = fit.fit_curve(curve.C, curve.R)
            early = fits["first half"] = fit.fit_curve(curve.C, curve.R, c_max=curve.C[-1] / 2)
            lines = fit_report.held_out_lines(fit.held_out(curve.C, curve.R, early))
        except fit.BadInput as error:
            lines = [("No prediction from the first half: " if fits else "") + str(error)]
        if fits:
            yield svg(figures.plot_run(curve, fits["all"], early))
            lines = [*fit_report.fit_table(fits), *lines]
        lines += [f"warning: {name}: {text}" for name, f in fits.items() for text in f.warnings]
        yield f"<pre>{escape(chr(10).join(lines))}</pre>"


def charts(steps):
    """A line chart for each of CHARTS that has data. Many steps are averaged in 300 bins."""
    for title, columns in CHARTS.items():
        names = {key for row in steps for key in row for column in columns
                 if key == column or column.endswith("/lag_") and key.startswith(column)}
        figure, ((axes,),) = figures.empty(4.6, 2.6, 1, 1)
        for name in sorted(names, key=lambda name: (len(name), name)):      # lag_2 before lag_10
            points = [(row["step"], row[name]) for row in steps if row.get(name) is not None]
            if points:
                bins = np.array_split(np.array(points, float), min(len(points), 300))
                axes.plot(*np.array([part.mean(0) for part in bins]).T, linewidth=1.1, label=name,
                          marker="." if len(bins) == 1 else None)
        if axes.get_lines():
            axes.set_title(title, fontsize=10, loc="left")
            axes.set_xlabel("step", fontsize=8)
            axes.tick_params(labelsize=8)
            axes.legend(fontsize=7, frameon=False)
            yield svg(figure)


def svg(figure):
    """A figure as inline SVG, without the XML header and the link to its DTD."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()[file.getvalue().index("<svg"):]


def shown_samples(samples, phrase):
    """The first and the last samples of the log and the last interrupted ones, as tables; the
    forced phrase is marked."""
    interrupted = [row for row in samples if row["interrupted"]]
    phrase = escape(phrase)
    for title, part in (("First", samples[:SAMPLES_SHOWN]), ("Last", samples[-SAMPLES_SHOWN:]),
                        ("Last interrupted", interrupted[-SAMPLES_SHOWN:])):
        yield f"<h3>{title}</h3><table><tr><th>step<th>reward<th>end<th>prompt and output</tr>"
        for row in part:
            output = escape(row["output"])
            if phrase:
                output = output.replace(phrase, f"<mark>{phrase}</mark>")
            end = "interrupted, " * bool(row["interrupted"]) + escape(str(row["finish_reason"]))
            yield (f"<tr><td>{row['step']:d}<td>{row['reward']:+g}<td>{end}<td class=text>"
                   f"<span class=note>{escape(row['prompt'])}</span>{output}</tr>")
        yield "</table>" if part else "</table><p>None.</p>"


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 15px/1.5 sans-serif; max-width: 1040px; margin: 2em auto; }}
svg {{ max-width: 100%; height: auto; }}
.charts {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); }}
.note {{ color: #777; }} mark {{ background: #ffe9a8; }}
pre {{ background: #f6f6f6; padding: .8em; overflow-x: auto; font-size: 12.5px; }}
td {{ vertical-align: top; padding: .3em .6em; border-top: 1px solid #ddd; }}
.text {{ font-family: monospace; white-space: pre-wrap; overflow-wrap: anywhere; }}
</style></head><body>
{body}
</body></html>
"""
