"""The preflight: it tries what a run will need, names what fails, and changes no number."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import arguments, lines

import scalerl
from command import preflight as tried
from command.main import main

PARTS = ["disk", "checkpoint", "longest rows", "read back", "push"]


def without_time(records):
    return [{k: v for k, v in record.items() if not k.startswith(("time/", "throughput/"))
             and k != "compute/core_hours"} for record in records]


def told(text):
    return [line[11:24].strip() for line in text.splitlines() if line.startswith("Preflight: ")]


def test_a_run_with_a_preflight_writes_the_numbers_of_one_without(micro, tmp_path, monkeypatch,
                                                                  capsys):
    """Its step leaves weights, Adam's moments and random numbers as they were; and it is done once,
    before the first evaluation."""
    monkeypatch.chdir(tmp_path)
    words = arguments(micro, steps=2, eval_every=1)
    assert main([*words, "--name", "a"]) == 0
    out = capsys.readouterr().out
    assert told(out) == PARTS and out.index("Preflight: push") < out.index("Self-test")
    assert re.search(r"Preflight: longest rows +\d+\.\d s  \d+ samples of \d+ tokens, forward", out)
    assert re.search(r"2 checkpoints of \S+ GB, one being written, best and model: \S+ GB, \S+ GB "
                     "free", out)
    assert main([*words, "--name", "b", "--no-preflight"]) == 0
    assert not told(capsys.readouterr().out)
    for name in ("metrics.jsonl", "evals.jsonl", "samples.jsonl"):
        a, b = (without_time(lines(tmp_path / "runs" / run, name)) for run in "ab")
        assert a == b and a
    assert {path.name for path in (tmp_path / "runs" / "a" / "checkpoints").iterdir()} == {
        "step_1", "step_2", "best"}


def fails(*_, **__):
    raise OSError("no space left")


def too_large(*_, **__):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB\nand more")


@pytest.mark.parametrize("name, where, what, how, sentence", [
    ("disk", tried.shutil, "disk_usage", lambda _: SimpleNamespace(free=10),
     "disk: 2 checkpoints of .* GB, 1e-08 GB free; put runs/ on a larger disk"),
    ("checkpoint", scalerl.Trainer, "save", fails, "checkpoint: no space left; all trainers"),
    ("longest rows", scalerl.Policy, "forward", too_large,
     "longest rows: CUDA out of memory. Tried to allocate 3 GiB; set recompute_layers = true, or "),
    ("read back", scalerl.Trainer, "load", fails, "read back: no space left; all trainers"),
    ("push", scalerl.Run, "push_weights", fails, "push: no space left; look at the servers"),
])
def test_what_fails_ends_the_run_with_what_to_change_and_is_tried_again(
        name, where, what, how, sentence, micro, tmp_path, monkeypatch, capsys):
    """Hours before the evaluation would have met it."""
    monkeypatch.chdir(tmp_path)
    words = arguments(micro, name="r", steps=1, eval_every=1)
    with monkeypatch.context() as patch:
        patch.setattr(where, what, how)
        assert main(words) == 1
    error = capsys.readouterr().err
    assert re.match(f"scalerl.py: step 1: preflight, {sentence}", error)
    assert "--no-preflight begins without it" in error and "Traceback" not in error
    assert not os.listdir(tmp_path / "runs" / "r" / "checkpoints")
    assert main(words) == 0
    assert told(capsys.readouterr().out) == PARTS


def test_the_rows_are_as_long_as_any_and_fill_a_micro_batch_of_every_trainer(
        monkeypatch):
    run = SimpleNamespace(
        config=SimpleNamespace(samples_per_prompt=4, prompts_per_step=3, micro_batch_tokens=600),
        trainer=SimpleNamespace(tokenizer=None, model=None), team=SimpleNamespace(size=2),
        problems=SimpleNamespace(prompt_tokens=30))
    monkeypatch.setattr(tried.load, "longest_tokens", lambda *_: (80, None))
    rollouts, rewards = tried.longest_rows(run)
    assert (len(rollouts), rewards.shape) == (12, (3, 4))       # 6 for each of two trainers
    assert rewards.std(1, correction=0).tolist() == [1, 1, 1]   # every group has a gradient
    assert {(len(r.prompt_ids), len(r.output_ids)) for r in rollouts} == {(30, 80)}
    run.config.micro_batch_tokens = 100                         # one sample is never cut
    assert len(tried.longest_rows(run)[0]) == 4
    run.config.micro_batch_tokens = 10 ** 6                     # a step has no more
    assert len(tried.longest_rows(run)[0]) == 12


def asked(numel, servers=()):
    """A run whose parts all do, for a model of so many numbers; its `save` writes nothing."""
    r = SimpleNamespace(prompt_ids=(1,), output_ids=[1])
    return SimpleNamespace(
        config=SimpleNamespace(), push_weights=lambda: None, team=SimpleNamespace(size=1),
        sampler=SimpleNamespace(pool=SimpleNamespace(servers=servers)),
        folder=SimpleNamespace(path=Path(), checkpoints=Path("none")),
        trainer=SimpleNamespace(
            model=torch.nn.Linear(1, numel, bias=False), device="cpu", dtype=torch.bfloat16,
            save=lambda folder: None, load=lambda folder: None, update=lambda *_: None)), r


@pytest.mark.parametrize("short", [True, False])
def test_the_disk_must_hold_three_checkpoints_and_two_models(short, monkeypatch, capsys):
    """Two are kept while a third is written: weights and two moments in fp32 each; `best` and
    `model` have weights alone. 3 x 12 + 2 x 4 bytes a number."""
    run, r = asked(1013)
    monkeypatch.setattr(tried, "longest_rows", lambda _: ([r], None))
    monkeypatch.setattr(tried.shutil, "disk_usage",
                        lambda _: SimpleNamespace(free=44 * 1013 + (-1 if short else 1)))
    if short:
        with pytest.raises(RuntimeError, match="preflight, disk: 2 checkpoints of"):
            tried.preflight(run)
    else:
        tried.preflight(run)
        assert told(capsys.readouterr().out) == PARTS


def test_a_server_that_did_not_take_the_push_ends_the_run_with_its_reason(monkeypatch):
    """It would be asked again at every step; here its log still has the first words."""
    run, r = asked(3, [SimpleNamespace(url="http://a", state="ready", why=""),
                       SimpleNamespace(url="http://b", state="stale", why="no room for weights")])
    monkeypatch.setattr(tried, "longest_rows", lambda _: ([r], None))
    with pytest.raises(RuntimeError, match="preflight, push: http://b: no room for weights; look"):
        tried.preflight(run)
