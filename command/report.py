"""One page about one run: python scalerl.py --report runs/demo

Writes RUN/report.html, a single file without scripts, fonts or links, to be mailed, archived and
opened offline years later: the fitted curve with the first half's prediction (fit.py), a chart of
each column that a symptom is seen in, samples, settings and versions.

Charts are SVG drawn by matplotlib. Samples are text by a language model, and a page is read by a
browser: everything that did not come from this file goes through html.escape.
"""

import contextlib
import io
import tempfile
from html import escape
from pathlib import Path

import numpy as np

import fit
from command import symptoms
from fitting import command as fitting_command
from fitting import figures, readers

SAMPLES_SHOWN = 24              # at most


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
    body = [
        f"<h1>{escape(folder.name)}</h1><p>{len(steps)} steps, the last {last['step']:d}; "
        f"{sum(row.get('time/step_s', 0) for row in steps) / 3600:.2f} h in steps; "
        f"{last.get('compute/flops', 0):.3g} FLOPs; {last.get('compute/tokens', 0):,d} tokens "
        f"generated. Last step: pass rate {last['pass_rate']:.3f}.</p>",
        "<h2>Is it working?</h2>", *(f"<p>{escape(line)}</p>" for line in symptoms.told(folder)),
        "<h2>What would more compute buy?</h2>", *curves(folder, rows),
        "<h2>The training, by step</h2>", charts(rows),
        "<h2>Samples</h2>", *shown_samples(folder / "samples.jsonl"), "<h2>Settings</h2>",
        *(f"<h3>{name}</h3><pre>{escape(text)}</pre>" for name, text in files.items())]
    path = folder / "report.html"
    page = PAGE.format(title=escape(folder.name), body="\n".join(body))
    path.write_text(page, "utf-8", "replace")   # a sample may hold half a character
    return path


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
                    yield inline(picture.read_text())
                    break
            yield f"<pre>{escape(said.getvalue().partition('picture: ')[0])}</pre>"


def charts(rows):
    """A figure with a chart for each column that a symptom is seen in. Many steps are averaged in
    300 bins."""
    columns = [column for column in dict.fromkeys(c for s in symptoms.SYMPTOMS for c in s.columns)
               if column != "step" and any(column in row for row in rows)]
    height = -(-len(columns) // 4)
    figure, axes = figures.empty(12, 2 * height, height, 4)
    for ax, column in zip(axes.flat, columns):
        points = [(row["step"], row[column]) for row in rows if column in row]
        bins = np.array_split(np.array(points, float), min(len(points), 300))
        ax.plot(*np.array([part.mean(0) for part in bins]).T, ".-", linewidth=1, markersize=2)
        ax.set_title(column, fontsize=8, loc="left")
        ax.tick_params(labelsize=8)
    for ax in axes.flat[len(columns):]:
        ax.set_axis_off()
    file = io.StringIO()
    figure.savefig(file, format="svg")
    return inline(file.getvalue())


def inline(svg):
    """An SVG without its XML header and the link to its DTD."""
    return svg[svg.index("<svg"):]


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
<style>
body {{ font: 15px/1.5 sans-serif; max-width: 1040px; margin: 2em auto; }}
svg {{ max-width: 100%; height: auto; }}
.note {{ color: #777; }}
pre {{ background: #f6f6f6; padding: .8em; overflow-x: auto; font-size: 12.5px; }}
td {{ vertical-align: top; padding: .3em .6em; overflow-wrap: anywhere; white-space: pre-wrap; }}
</style></head><body>
{body}
</body></html>
"""
