"""What step_log.py shows of an evaluation, and what it writes down of the time of a sample."""

import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import ROOT, rollouts_of
from made_runs import made, write_run

from artifacts import step_log
from artifacts.run_folder import Progress
from config import ConfigError
from engines import accept
from fit import sigmoid
from fitting import readers
from fitting.forecast import forecast_line
from sampler import Interruption, Request, TransformersSampler
from study import toy
from tasks import Problem


def evaluations(folder, rates, step=25, tasks=("toy",)):
    """The log of a run whose evaluations cost a trillion FLOPs each, more from the fourth on."""
    flops = [1e12 * i + 5e11 * max(0, i - 3) for i in range(len(rates))]
    (folder / "evals.jsonl").write_text("".join(json.dumps(
        {"step": step * i, "compute/flops": C} | {f"eval/{task}/mean@4": R - .01 * j
                                                  for j, task in enumerate(tasks)}) + "\n"
        for i, (C, R) in enumerate(zip(flops, rates))))
    return flops


@pytest.mark.days(4, turn=3)
def test_an_evaluation_is_one_line_with_its_gain_its_compute_and_from_the_sixth_on_the_forecast(
        tmp_path, capsys):
    """The end of the run is where its steps would lead at the price of the last ones."""
    rates = sigmoid(np.arange(9) * 1e12, .81, 1.7, 3e12, .2)
    for n in range(1, 9):
        flops = evaluations(tmp_path, rates[:n])
        step_log.show_evaluation(tmp_path, 600)
        (line,) = capsys.readouterr().out.splitlines()
        gain = f" ({rates[n - 1] - rates[n - 2]:+.3f})" if n > 1 else ""
        where = f"evaluation at step {25 * n - 25}/600"
        assert line.startswith(f"{where}: toy {rates[n - 1]:.3f}{gain} ")
        assert line.endswith(f" at {flops[-1]:.3g} FLOPs")
        assert ("naive" in line) == (n >= 6)
    end = flops[-1] + (600 - 175) / 25 * 1.5e12
    assert forecast_line(flops, rates[:8], end) in line
    evaluations(tmp_path, rates[:8], tasks=("hf:a/b", "toy"))
    step_log.show_evaluation(tmp_path, 175)             # its last step: nothing to forecast
    (line,) = capsys.readouterr().out.splitlines()
    assert f"hf:a/b {rates[7]:.3f}" in line and f"toy {rates[7] - .01:.3f}" in line
    assert "naive" not in line


@pytest.mark.days(4, turn=3)
def test_the_curve_is_drawn_again_once_a_minute(tmp_path, capsys, monkeypatch):
    picture = tmp_path / "curve.png"
    rates = sigmoid(np.arange(12) * 1e12, .8, 1.7, 3e12, .2)
    evaluations(tmp_path, rates[:2])
    step_log.show_evaluation(tmp_path, 600)             # too few to fit: a line, and no picture
    assert not picture.exists() and capsys.readouterr().out.count("\n") == 1
    evaluations(tmp_path, rates[:9])
    step_log.show_evaluation(tmp_path, 600)
    first = picture.read_bytes()
    evaluations(tmp_path, rates)
    step_log.show_evaluation(tmp_path, 600)
    assert picture.read_bytes() == first
    os.utime(picture, (time.time() - step_log.REDRAW_S - 1,) * 2)
    step_log.show_evaluation(tmp_path, 600)
    assert picture.read_bytes() != first
    assert "warning" not in capsys.readouterr().out     # what fit.py says is for those who ask it
    # What servers and signals say meanwhile is heard.
    os.utime(picture, (time.time() - step_log.REDRAW_S - 1,) * 2)

    def plot(*_):
        print("a server is lost", file=sys.stderr)
        raise ValueError("nor does a picture that fails end a run")
    monkeypatch.setattr("fitting.figures.plot_runs", plot)
    step_log.show_evaluation(tmp_path, 600)
    assert "a server is lost" in capsys.readouterr().err
    monkeypatch.undo()
    picture.unlink()
    evaluations(tmp_path, rates, tasks=("hf:a/b", "toy"))
    step_log.show_evaluation(tmp_path, 600)
    assert picture.exists()                             # of two tasks, the first one's


def test_the_line_of_an_evaluation_says_what_could_not_be_judged(tmp_path, capsys):
    """A reward of one's own that fails on every answer gave 0.000 and, far above, one message."""
    whole = " (100% of the answers could not be judged)"
    for name, frac, told in (("error", 0.01, ""), ("error", 1.0, whole), ("timeout", 1.0, whole)):
        (tmp_path / "evals.jsonl").write_text(json.dumps({
            "step": 0, "compute/flops": 0, "eval/toy/mean@4": 0,
            f"eval/verifier/{name}_frac": frac}))
        step_log.show_evaluation(tmp_path, 20)
        line = capsys.readouterr().out
        assert line == f"evaluation at step 0/20: toy 0.000 at 0 FLOPs{told}\n"


def test_a_reward_that_fails_on_all_it_is_asked_about_ends_the_run_where_a_text_is_empty(tmp_path):
    """An empty text is wrong unasked: one among the first answers, and the run trained on."""
    problem = Problem("mine/1", "mine", "Say it.", "()", kind="reward")
    config = SimpleNamespace(task="mine.py", max_unusable=.02, eval_samples=5)
    problems = SimpleNamespace(heldout={problem.id: problem})
    run = SimpleNamespace(step=0, config=config, problems=problems)
    rollouts = [SimpleNamespace(finish_reason="stop")] * 10
    metrics = {f"verifier/{name}_frac": frac for name, frac in (
        ("slow", .9), ("error", .6), ("timeout", .3), ("bad_reward", 0))}
    with pytest.raises(ConfigError, match="mine.py.*: 100% of the first answers could not be judg"):
        step_log.log_evaluation(run, rollouts, Counter(), {}, 0.0, metrics, 1.0)


@pytest.mark.parametrize("cut,told", [(0.05, ""), (0.5, " (50% of the answers were cut off)")])
def test_the_line_of_an_evaluation_says_how_many_were_cut_off(cut, told, tmp_path, capsys):
    """Budgets for sums, questions of words: half of the answers were -1 unread, no line said so."""
    (tmp_path / "evals.jsonl").write_text(json.dumps({
        "step": 0, "compute/flops": 0, "eval/toy/mean@4": 0.1, "eval/truncated_frac": cut}))
    step_log.show_evaluation(tmp_path, 20)
    assert capsys.readouterr().out == f"evaluation at step 0/20: toy 0.100 at 0 FLOPs{told}\n"


def test_the_line_of_an_evaluation_stays_above_the_moving_one(tmp_path, monkeypatch, capfd):
    """The bar is cleared, the line is written, and the bar is drawn again below it."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    evaluations(tmp_path, [.5])
    with Progress(20) as progress:
        progress.refresh()
        capfd.readouterr()
        step_log.show_evaluation(tmp_path, 20)
        shown = capfd.readouterr()
    assert shown.out == "evaluation at step 0/20: toy 0.500 at 0 FLOPs\n"
    assert "0/20" in shown.err and shown.err.startswith("\r")


def test_runs_of_versions_and_the_forced_phrase_are_those_of_the_tokens(seed):
    rollouts = rollouts_of(3, 4, random.Random(seed))
    for rollout in rollouts:
        rollout.ended = random.randrange(1, 99)
        told = step_log.decoded(rollout)
        assert told["ended"] == rollout.ended
        assert [v for v, n in told["versions"] for _ in range(n)] == rollout.versions
        sampled = [True] * len(rollout.sampled)
        for t in range(told["forced"][0], sum(told["forced"])) if told["forced"] else ():
            sampled[t] = False
        assert sampled == rollout.sampled
        assert all(a[0] != b[0] for a, b in zip(told["versions"], told["versions"][1:]))


def test_the_engine_says_at_which_of_its_decode_steps_a_sample_ended(micro, seed):
    """Counted by the caller. A sample has a token of each step from its first one on, so a picture
    can be drawn from its end alone."""
    tokenizer = toy.make_tokenizer()
    model = accept.prepare(toy.make_model(tokenizer, seed % 1000, hidden=32, layers=1))
    sampler = TransformersSampler(
        model, tokenizer, Interruption(3, 9, 4, (7, 8, 9)), slots=5, prompt_tokens=6, seed=seed,
        eos_ids=[tokenizer.eos_token_id])
    steps, begun = 0, {}
    for i in range(7):
        sampler.submit(Request(i, f"p{i}", (5, 6, 7), 1 + i % 3))
    while sampler.in_flight:
        waiting = {request.group_id for request in sampler.waiting}
        rollouts = sampler.step()
        steps += 1
        for group in range(7):
            if group not in begun and group in waiting - {r.group_id for r in sampler.waiting}:
                begun[group] = steps
        if steps == 4:
            assert sampler.log()["decode/clock"] == 4
        for rollout in rollouts:
            assert rollout.ended == steps
            assert rollout.ended - len(rollout.output_ids) + 1 == begun[rollout.group_id]
    log = sampler.log()
    assert log["decode/clock"] == steps and log["decode/steps"] == steps - 4


def test_the_lines_of_the_documents_send_a_run_to_tensorboard(tmp_path):
    """And `fit.py` still reads the run's own logs, not the event files beside them."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    script = re.search(r"^```python\n(import json, sys.*?)^```",
                       (ROOT / "docs" / "metrics.md").read_text(), re.M | re.S)[1]
    run = write_run(tmp_path / "r", *made(n=9))
    before = readers.load(str(run)).C
    rows = [{"step": i, "reward/mean": i / 7 - 0.5, "note": "text", "lists": [1]} for i in range(4)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = subprocess.run([sys.executable, "-c", script, str(run)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    events = accumulator.EventAccumulator(str(run / "tensorboard")).Reload()
    found = events.Scalars("reward/mean")
    assert [each.step for each in found] == [row["step"] for row in rows]
    assert [each.value for each in found] == pytest.approx([row["reward/mean"] for row in rows])
    assert len(events.Scalars("compute/flops")) == 9 and "note" not in events.Tags()["scalars"]
    assert (readers.load(str(run)).C == before).all()
