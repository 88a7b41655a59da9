"""What report.py promises: one page, offline, true to the log, and safe from what it shows."""

import json
import random
import re
import shutil
import subprocess
from pathlib import Path
from base64 import b64encode
from html.parser import HTMLParser

import numpy as np
import pytest

import fit
from command import report, symptoms
from command.main import main


@pytest.fixture
def run(tmp_path, seed):
    """A made run of 23 steps and 12 evaluations on two tasks."""
    rng, folder = random.Random(seed), tmp_path / "made <b>run"
    folder.mkdir()
    metrics = [{"step": 0, "version": 0, "mismatch/fp32_head/kl_k3": 0.0}]
    for step in range(1, 24):
        metrics.append({
            "step": step, "pass_rate": rng.random(), "frac_reward_zero_std": rng.random(),
            "completions/mean_length": 30 + rng.random(), "lag/mean": 1.5, "lag/max": 4,
            "ratio/mean/lag_0": 1.0, "ratio/mean/lag_3": rng.random(), "ess": None,
            "entropy": rng.random(),
            "time/generate_s": 0.5, "time/train_s": 0.25, "time/step_s": 1.0,
            "compute/flops": step * 1e12, "compute/tokens": step * 999})
    evals = [{"step": 2 * i, "compute/flops": 2e12 * i,
              "eval/toy/mean@4": fit.sigmoid(2e12 * i, 0.7, 2.0, 6e12, 0.2) + rng.gauss(0, 0.003),
              "eval/other/mean@4": fit.sigmoid(2e12 * i, 0.5, 1.5, 8e12, 0.1), "held_out": i / 12}
             for i in range(12)]
    for name, rows in (("metrics", metrics), ("evals", evals)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def rng(seed):
    return np.random.default_rng(seed)


class Page(HTMLParser):
    """All tags and attributes of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs


def test_the_page_refers_to_nothing_outside_itself(run):
    page = Page(Path(report.write_report(run)[0]).read_text())
    assert not {"script", "iframe", "object", "embed"} & set(page.tags)
    links = [value for name, value in page.attributes if name in ("href", "src", "xlink:href")]
    assert links and all(value.startswith(("#", "data:")) for value in links)
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_the_curve_is_there_and_each_column_has_its_chart(run):
    """Letters stay letters in a picture."""
    (run / "curve.png").write_bytes(b"drawn by the run")
    text = Path(report.write_report(run)[0]).read_text()
    page = Page(text)
    assert f"data:image/png;base64,{b64encode(b'drawn by the run').decode()}" in text
    charts = ("held_out", "pass_rate", "frac_reward_zero_std", "completions/mean_length",
              "lag/mean", "lag/max", "entropy", "time/step_s", "time/generate_s", "time/train_s")
    for column in charts:
        assert f">{column}</text>" in text
    assert page.tags.count("svg") == len(charts)
    assert ">ess<" not in text and " ess " not in text      # no number in it


def test_charts_stand_under_the_question_that_they_answer(run):
    """Each column that a symptom is seen in has its place."""
    text = Path(report.write_report(run)[0]).read_text()
    questions = [text.index(f"<h2>{question}") for question in report.CHARTS]
    assert questions == sorted(questions)
    for column, question in ((">pass_rate<", 0), (">lag/max<", 1), (">entropy<", 2)):
        assert questions[question] < text.index(column) < questions[question + 1]
    shown = " ".join(report.CHARTS.values()).split()
    assert len(shown) == len(set(shown))
    read = {column for s in symptoms.SYMPTOMS for column in re.findall(r'\("(.+?)"', s.rule)}
    assert (read | {s.column for s in symptoms.SYMPTOMS}) - {"step"} <= set(shown)


def test_a_chart_is_as_wide_as_a_phone_and_its_numbers_are_whole(rng, monkeypatch):
    """matplotlib writes 1.00002 as 2e-5 with "+1" in a corner that nobody reads."""
    steps, empty, made = np.arange(700.), report.figures.empty, []
    monkeypatch.setattr(report.figures, "empty", lambda *a: made.append(empty(*a)) or made[-1])
    for start, size in ((1, 1e-5), (0, 3e-6), (0, 3e-14), (1e9, 100)):
        numbers = start + size * rng.random(700)
        assert report.chart("x", np.stack([steps, numbers], 1)).startswith("<svg")
        figure, _ = made.pop()
        figure.canvas.draw()
        (ax,) = figure.axes
        assert not ax.yaxis.get_offset_text().get_text() and figure.get_figwidth() <= 3.6
        ticks = [float(label.get_text().replace("\N{MINUS SIGN}", "-"))
                 for label in ax.get_yticklabels()]
        assert len(set(ticks)) == len(ticks) and ticks == pytest.approx(list(ax.get_yticks()))
        drawn = ax.lines[0].get_xydata()
        assert len(drawn) == 140                        # means of five
        assert drawn[:, 1] == pytest.approx([numbers[i:i + 5].mean() for i in range(0, 700, 5)])


def test_the_name_of_a_run_is_shown_and_never_obeyed(run):
    text = Path(report.write_report(run)[0]).read_text()
    assert "made &lt;b&gt;run" in text and "<b>" not in text


def test_a_half_written_last_line_is_left_out(run):
    whole = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(whole + '{"step": 24, "pass_')
    text = Path(report.write_report(run)[0]).read_text()
    assert "23 steps, the last 23" in text


@pytest.mark.parametrize("damage, sentence", [
    (lambda run: shutil.rmtree(run), "metrics.jsonl is not there"),
    (lambda run: (run / "metrics.jsonl").write_text(""), "no finished step"),
    (lambda run: (run / "metrics.jsonl").write_text('{"step": 1}\nnoise\n{"step": 2}\n'),
     "line 2 is not JSON"),
    (lambda run: (run / "metrics.jsonl").write_text('{"loss": 1}\n'), "a line without a step"),
    (lambda run: (run / "metrics.jsonl").write_text('[1, 2]\n'), "a line without a step"),
    (lambda run: (run / "metrics.jsonl").write_text('{"step": 1.5, "pass_rate": 0}\n'),
     "a step that is a whole number"),
])
def test_no_report_without_a_log(run, damage, sentence, capsys):
    damage(run)
    assert main(["--report", str(run)]) == 2
    assert sentence in capsys.readouterr().err


def test_a_browser_loads_the_page_without_errors(run):
    """Chromium, headless, with every host name unresolvable: what it draws is the page, the title
    is still ours, and its console stays empty."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser",
                                                   "google-chrome"))), None)
    if browser is None:
        pytest.skip("needs Chromium: apt-get install chromium (.ci/run does)")
    path = Path(report.write_report(run)[0])
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
         "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={run}/profile", "--dump-dom",
         path.as_uri()], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    page = Page(done.stdout)
    assert page.tags.count("svg") == Page(path.read_text()).tags.count("svg")
    assert "<title>made &lt;b&gt;run</title>" in done.stdout
    assert "CONSOLE" not in done.stderr, done.stderr
