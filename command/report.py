"""One page about one run: python scalerl.py --report runs/demo

Writes RUN/report.html, a single file without scripts, fonts or links: one step as a picture, the
symptoms, the fitted curve with the first half's prediction (fit.py), charts of the log, samples,
settings and versions. Samples are text by a language model, and a page is read by a browser:
everything that did not come from this file goes through html.escape.
"""

import contextlib
import io
import tempfile
from html import escape
from pathlib import Path

import matplotlib
import numpy as np

import fit
from command import symptoms, timeline
from fitting import command as fitting_command
from fitting import figures, readers

SAMPLES_SHOWN = 24              # at most
BINS = 150                      # points of a chart at most: means over equally many steps
CHARTS = {                      # question -> columns of the log
    "Does it learn?": "held_out pass_rate frac_reward_zero_std optimizer_step curriculum/active "
    "curriculum/retired completions/mean_length completions/truncated_frac "
    "completions/interrupted_frac",
    "How stale are its samples?": "lag/mean lag/max off_policy/in_flight",
    "Is it stable?": "ess ratio/mean ratio/min ratio/max ratio/clipped_frac mismatch/kl_k3/lag_0 "
    "mismatch/fp32_head/mean_abs_dlogp entropy grad_norm lr tokens/trained",
    "What does it cost?": "time/step_s time/generate_s time/train_s time/verify_s time/eval_s "
    "throughput/generated_tok_s verifier/timeout_frac"}


def write_report(folder):
    """Write FOLDER/report.html from the run's logs and return its path.

    A last line that a running or killed run left half-written is left out.
    Raises fit.BadInput: no such run, no steps in its log, or a damaged line.
    """
    folder = Path(folder)
    rows = symptoms.read(folder)
    steps = [row for row in rows if "pass_rate" in row]
    if not steps:
        raise fit.BadInput(f"nothing to report: {folder}/metrics.jsonl is not there, or has no "
                           "finished step yet")
    last, files = steps[-1], [folder / "config.toml", folder / "versions.json"]
    files = {path.name: path.read_text() for path in files if path.is_file()}
    with matplotlib.rc_context({"svg.fonttype": "none"}):       # letters stay letters: small files
        body = [
            f"<h1>{escape(folder.name)}</h1><p>{len(steps)} steps, the last {last['step']:d}; "
            f"{sum(row.get('time/step_s', 0) for row in steps) / 3600:.2f} h in steps; "
            f"{last.get('compute/flops', 0):.3g} FLOPs; {last.get('compute/tokens', 0):,d} tokens "
            f"generated. Last step: pass rate {last['pass_rate']:.3f}.</p>",
            *one_step(folder / "groups.jsonl", steps), "<h2>Is it working?</h2>",
            *(f"<p>{escape(line)}</p>" for line in symptoms.told(folder)),
            "<h2>What would more compute buy?</h2>", *curves(folder, rows), *charts(rows),
            "<h2>Samples</h2>", *shown_samples(folder / "samples.jsonl"), "<h2>Settings</h2>",
            *(f"<h3>{name}</h3><pre>{escape(text)}</pre>" for name, text in files.items())]
    path = folder / "report.html"
    page = PAGE.format(title=escape(folder.name), body="\n".join(body))
    path.write_text(page, "utf-8", "replace")   # a sample may hold half a character
    return path


def one_step(path, steps):
    """The recorded step whose samples were written by most versions of the weights, as a picture.
    None is recorded where vLLM generates."""
    lines, _ = readers.read_jsonl(path) if path.is_file() else ([], [])
    recorded = [line for line in lines if "timeline" in line]
    if recorded:
        figure, text = timeline.timeline(max(recorded, key=lambda line: len(
            {v for sample in line["timeline"] for v, _ in sample["versions"]})), steps)
        yield f"<h2>One step</h2>{inline(figure)}<p>{text}</p>"


def curves(folder, rows):
    """What `fit.py FOLDER --until 0.5` draws and says of each task that was evaluated."""
    for column in sorted({key for row in rows for key in row if "/mean@" in key}):
        yield f"<h3>{escape(column)}</h3>"
        with tempfile.TemporaryDirectory() as aside:
            picture = Path(aside, "curve.svg")
            words = [str(folder), "--y", column, "--out", str(picture)]
            for half in (["--until", "0.5"], []):       # half of a short run cannot be fitted
                with contextlib.redirect_stdout(io.StringIO()) as said, \
                        contextlib.redirect_stderr(said):
                    fitting_command.main(words + half)
                if picture.exists():
                    yield f"<div class=wide>{inline(picture.read_text())}</div>"
                    break
            yield f"<pre>{escape(said.getvalue().partition('picture: ')[0])}</pre>"


def charts(rows):
    """The columns of the log, grouped by question: what changes as a chart, the rest as text."""
    for question, columns in CHARTS.items():
        drawn, constant = [], []
        for column in columns.split():
            points = np.array([(row["step"], row[column]) for row in rows if column in row], float)
            if len(points) and np.ptp(points[:, 1]) <= 1e-9 * abs(points[0, 1]):
                constant.append(f"{column} {points[0, 1]:g}")
            elif len(points):
                drawn.append(inline(chart(column, points)))
        if drawn or constant:
            yield f"<h2>{question}</h2><div class=charts>{''.join(drawn)}</div>"
        if constant:
            yield f"<p>The same in every step: {', '.join(constant)}.</p>"


def chart(title, points):
    """A figure of a column by step, as wide as a phone."""
    figure, ((ax,),) = figures.empty(3.4, 1.9, 1, 1)
    size = -(-len(points) // BINS)
    parts = np.split(points, range(size, len(points), size))
    ax.plot(*np.array([part.mean(0) for part in parts]).T, ".-", color=figures.BLUE, linewidth=1,
            markersize=2)
    ax.set_title(title, fontsize=10, loc="left")
    ax.locator_params(nbins=4)
    ax.ticklabel_format(useOffset=False, style="plain")     # no sum or factor beside the axis
    return figure


def inline(picture):
    """A figure, or the text of an SVG file, as SVG without XML header and the link to its DTD."""
    if not isinstance(picture, str):
        file = io.StringIO()
        picture.savefig(file, format="svg")
        picture = file.getvalue()
    return picture[picture.index("<svg"):]


def shown_samples(path):
    """A table of samples, evenly spread over the log."""
    samples, _ = readers.read_jsonl(path) if path.is_file() else ([], [])
    yield "<table><tr><th>step<th>reward<th>end<th>prompt and output</tr>"
    for row in samples[::-(-len(samples) // SAMPLES_SHOWN) or 1]:
        end = ("interrupted, " if row["interrupted"] else "") + escape(str(row["finish_reason"]))
        yield (f"<tr><td>{row['step']:d}<td>{row['reward']:+g}<td>{end}<td>"
               f"<span class=note>{escape(row['prompt'])}</span>{escape(row['output'])}</tr>")
    yield "</table>"


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 15px/1.5 sans-serif; max-width: 1040px; margin: 1em auto; padding: 0 .6em; }}
.charts {{ display: flex; flex-wrap: wrap; gap: .5em; }}
svg {{ max-width: 100%; height: auto; }}
.wide {{ overflow-x: auto; }}
.wide svg {{ min-width: 640px; }}
.note {{ color: #777; }}
pre {{ background: #f6f6f6; padding: .8em; white-space: pre-wrap; font-size: 12.5px; }}
td {{ vertical-align: top; padding: .3em .6em; overflow-wrap: anywhere; white-space: pre-wrap; }}
</style></head><body>
{body}
</body></html>
"""
