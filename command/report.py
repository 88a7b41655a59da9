"""One page about one run, a file without scripts, fonts or links: python scalerl.py --report RUN"""
import io
import tomllib
from base64 import b64encode
from html import escape
from pathlib import Path

import matplotlib
import numpy as np

import fit
from command import symptoms
from fitting import figures

PAGE = Path(__file__).with_name("page.html").read_text("utf-8")
BINS = 150                      # points of a chart at most: means over equally many steps
CHARTS = tomllib.loads(Path(__file__).with_name("charts.toml").read_text("utf-8"))


def write_report(folder):
    """Write FOLDER/report.html from the run's logs. Returns lines: its path, the symptoms. Raises
    fit.BadInput: there are no steps, or a damaged line that is not the last."""
    folder, rows = Path(folder), symptoms.read(folder)
    steps = [row for row in rows if "pass_rate" in row]
    if not steps:
        why = "has no finished step yet" if rows else "is not there, or empty"
        raise fit.BadInput(f"nothing to report: {folder}/metrics.jsonl {why}")
    last, told = steps[-1], symptoms.told(rows)
    with matplotlib.rc_context({"svg.fonttype": "none"}):       # letters stay letters: small files
        body = [
            f"<h1>{escape(folder.name)}</h1><p>{len(steps)} steps, the last {last['step']:.0f}; "
            f"{sum(row.get('time/step_s', 0) for row in steps) / 3600:.2f} h in steps; "
            f"{last.get('compute/flops', 0):.3g} FLOPs; {last.get('compute/tokens', 0):,.0f} "
            f"tokens generated. Last step: pass rate {last['pass_rate']:.3f}.</p>",
            "<h2>Is it working?</h2>", *(f"<p>{escape(line)}</p>" for line in told)]
        picture = folder / "curve.png"              # as the run, or fit.py, has last drawn it
        if picture.is_file():
            body.append("<h2>What would more compute buy?</h2><img alt=\"\" src=\"data:image/png;"
                        f"base64,{b64encode(picture.read_bytes()).decode()}\">")
        body += charts(rows)
    path = folder / "report.html"
    page = PAGE.replace("{title}", escape(folder.name)).replace("{body}", "\n".join(body))
    path.write_text(page, "utf-8")
    return str(path), *told


def charts(rows):
    """A chart of each column that the log has, grouped by question."""
    for question, columns in CHARTS.items():
        drawn = [chart(column, np.array(points, float)) for column in columns.split()
                 if (points := [(row["step"], row[column]) for row in rows if column in row])]
        if drawn:
            yield f"<h2>{question}</h2><div class=charts>{''.join(drawn)}</div>"


def chart(title, points):
    """A column by step, as wide as a phone: SVG without XML header and the link to its DTD."""
    figure, ((ax,),) = figures.empty(3.4, 1.9, 1, 1)
    size = -(-len(points) // BINS)
    means = np.array([part.mean(0) for part in np.split(points, range(size, len(points), size))])
    ax.plot(*means.T, ".-", color=figures.BLUE, linewidth=1, markersize=2)
    ax.set_title(title, fontsize=10, loc="left")
    ax.locator_params(nbins=4)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.12g}")   # no sum or factor beside it
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    figure.savefig(file := io.StringIO(), format="svg")
    return file.getvalue()[file.getvalue().index("<svg"):]
