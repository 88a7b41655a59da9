"""The record's clock: what it counts, when it stops, and that its recipe may be entered."""

import json
import random
import sys
import tomllib
from types import SimpleNamespace

import pytest
from conftest import ROOT

from artifacts.settings import check, make_config

sys.path.append(str(ROOT / "bench"))      # last: bench/fit.py is not fit.py
import record                                                               # noqa: E402


def logs(rates, seconds, every=5):
    evals = [{"step": i * every, "eval/toy/mean@1": rate, "time/eval_s": 9.0}
             for i, rate in enumerate(rates)]
    steps = [{"step": 0}] + [{"step": i + 1, "time/step_s": s} for i, s in enumerate(seconds)]
    return evals, steps


def test_the_clock_stops_at_the_first_of_two_evaluations_above_and_counts_training_alone():
    seconds = [random.uniform(0.5, 2) for _ in range(25)]
    evals, steps = logs([0.3, 0.81, 0.79, 0.80, 0.86, 0.7], seconds)
    assert record.seconds_to(0.8, evals, steps) == pytest.approx(sum(seconds[:15]))
    assert record.seconds_to(0.2, evals, steps) == 0                # before any step


def test_one_lucky_evaluation_is_no_record():
    evals, steps = logs([0.3, 0.85, 0.6, 0.85], [1.0] * 15)
    assert record.seconds_to(0.8, evals, steps) is None


@pytest.mark.parametrize("model", record.RECORD)
def test_the_records_recipes_keep_the_rules(model):
    """Their evaluation is the rules', and the command line's options win over a config's."""
    *below, told = (tomllib.loads((ROOT / path).read_text()) for path in record.RECORD[model])
    check(make_config({name: value for layer in (*below, told) for name, value in layer.items()}))
    ruled = {option[2:].replace("-", "_") for option in record.RULES[model][::2]}
    # A lower temperature solves more before any training (.69 for .25 at .3, toy), and so do sums
    # of fewer digits; servers would generate for nothing while the clock stands.
    assert ruled >= {"task", "heldout_prompts", "eval_samples", "eval_every", "temperature",
                     "task_options", "eval_tasks", "servers", "trainers", "gpus", "vllm_url"}
    assert not (ruled | {"seed"}) & set(told)


@pytest.mark.parametrize("found", (512, 24))
def test_a_run_that_was_evaluated_on_fewer_problems_is_no_entry(found, tmp_path, monkeypatch):
    """`prompt_tokens = 5` left the 24 short ones, which are easy."""
    monkeypatch.chdir(tmp_path)
    evals, steps = logs([0.3, 0.85, 0.9], [1.0] * 15)
    steps[0]["problems/heldout"] = found

    def train(*_, **__):
        folder = tmp_path / "runs" / "record-mine-3"
        folder.mkdir(parents=True)
        for name, rows in (("evals", evals), ("metrics", steps)):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return SimpleNamespace(returncode=0)
    monkeypatch.setattr(record.subprocess, "run", train)

    def enter():
        return record.run(("mine.toml",), "models/toy-3", 3, record.RULES[record.TOY])
    if found == 512:
        assert enter() == pytest.approx(5.0)
        return
    with pytest.raises(SystemExit, match="^record-mine-3: it was evaluated on 24 problems, and"):
        enter()
    monkeypatch.setattr(record.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=2))
    with pytest.raises(SystemExit, match="^record-mine-3 ended with an error$"):
        enter()
