"""What report.py promises: one page, offline, true to the log, and safe from what it shows."""

import json
import random
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

import fit
from command import report
from command.main import main
from config import Config

HOSTILE = '</pre><script>document.title = "hacked"</script><img src=x onerror="alert(1)">'


@pytest.fixture
def run(tmp_path, seed):
    """A made run of 23 steps and 12 evaluations on two tasks, with hostile text in its samples.

    Interrupted are samples in its middle alone, which are neither among the first nor the last 8.
    """
    rng, folder = random.Random(seed), tmp_path / "made <b>run"
    folder.mkdir()
    metrics = [{"step": 0, "version": 0, "mismatch/fp32_head/kl_k3": 0.0}]
    for step in range(1, 24):
        metrics.append({
            "step": step, "pass_rate": rng.random(), "frac_reward_zero_std": rng.random(),
            "completions/mean_length": 30 + rng.random(), "lag/mean": 1.5, "lag/max": 4,
            "ratio/mean/lag_0": 1.0, "ratio/mean/lag_3": rng.random(), "ess": None,
            "time/generate_s": 0.5, "time/train_s": 0.25, "time/step_s": 1.0,
            "compute/flops": step * 1e12, "compute/tokens": step * 999})
    samples = [{"step": step, "reward": rng.choice([-1.0, 1.0]), "prompt": f"p{step} {HOSTILE}",
                "output": f"6+3=9;{Config.interrupt_phrase * (9 <= step < 16)}9",
                "interrupted": 9 <= step < 16, "finish_reason": "stop"} for step in range(1, 24)]
    evals = [{"step": 2 * i, "compute/flops": 2e12 * i,
              "eval/toy/mean@4": fit.sigmoid(2e12 * i, 0.7, 2.0, 6e12, 0.2) + rng.gauss(0, 0.003),
              "eval/other/mean@4": fit.sigmoid(2e12 * i, 0.5, 1.5, 8e12, 0.1)} for i in range(12)]
    for name, rows in (("metrics", metrics), ("samples", samples), ("evals", evals)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "config.toml").write_text(
        f'model = "models/<toy>"\ninterrupt_phrase = {json.dumps(Config.interrupt_phrase)}\n')
    return folder


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
    page = Page(report.write_report(run).read_text())
    assert not {"script", "img", "iframe", "object", "embed"} & set(page.tags)
    links = [value for name, value in page.attributes if name in ("href", "src", "xlink:href")]
    assert links and all(value.startswith(("#", "data:")) for value in links)
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_each_evaluated_task_has_its_curve_and_each_column_its_chart(run):
    text = report.write_report(run).read_text()
    page = Page(text)
    assert "eval/toy/mean@4" in text and "eval/other/mean@4" in text
    assert page.tags.count("svg") == 2 + 1                  # two curves; all charts are one figure
    for column in ("held_out", "pass_rate", "completions/mean_length", "lag/mean"):
        assert f"<!-- {column} -->" in text
    assert "<!-- ess -->" not in text                       # no number in it
    assert text.count("predicted from the first part for the last 5 evaluations") == 2


def test_a_run_whose_first_half_is_too_short_has_the_curve_of_all(run):
    lines = (run / "evals.jsonl").read_text().splitlines()
    (run / "evals.jsonl").write_text("\n".join([lines[0], *lines[-4:]]) + "\n")
    text = report.write_report(run).read_text()
    assert Page(text).tags.count("svg") == 2 + 1 and "predicted from the first part" not in text
    (run / "evals.jsonl").write_text(lines[0] + "\n")
    assert "fit.py: " in report.write_report(run).read_text()


def test_the_samples_are_spread_over_the_whole_run(run):
    """And it is said which were interrupted."""
    text = report.write_report(run).read_text()
    assert text.count("<td>interrupted, stop<td>") == 7
    assert all(f">p{step} &lt;" in text for step in range(1, 24))
    lines = (run / "samples.jsonl").read_text().splitlines()
    (run / "samples.jsonl").write_text("".join(line + "\n" for line in lines for _ in range(5)))
    text = report.write_report(run).read_text()
    assert 12 < text.count("<span class=note>") <= 24
    assert ">p1 &lt;" in text and ">p23 &lt;" in text


def test_half_a_character_in_a_sample_does_not_lose_the_page(run):
    """A model of bytes may end in the middle of one; JSON keeps it as a lone surrogate."""
    with open(run / "samples.jsonl", "a") as file:
        file.write(json.dumps({"step": 24, "reward": 1.0, "prompt": "p", "output": "so \ud83d?",
                               "interrupted": False, "finish_reason": "stop"}) + "\n")
    assert "so ??" in report.write_report(run).read_text(encoding="utf-8")


def test_text_of_the_model_is_shown_and_never_obeyed(run):
    text = report.write_report(run).read_text()
    assert "&lt;script&gt;document.title" in text and "<script>" not in text


def test_a_half_written_last_line_is_left_out(run):
    whole = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(whole + '{"step": 24, "pass_')
    text = report.write_report(run).read_text()
    assert "23 steps, the last 23" in text


@pytest.mark.parametrize("damage, sentence", [
    (lambda run: shutil.rmtree(run), "metrics.jsonl is not there"),
    (lambda run: (run / "metrics.jsonl").write_text(""), "no finished step"),
    (lambda run: (run / "metrics.jsonl").write_text('{"step": 1}\nnoise\n{"step": 2}\n'),
     "line 2 is not JSON"),
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
    path = report.write_report(run)
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
         "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={run}/profile", "--dump-dom",
         path.as_uri()], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    page = Page(done.stdout)
    assert page.tags.count("svg") == Page(path.read_text()).tags.count("svg")
    assert "<title>made &lt;b&gt;run</title>" in done.stdout
    assert "CONSOLE" not in done.stderr, done.stderr
