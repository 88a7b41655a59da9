"""A run: its steps and evaluations counted by hand over fakes, then whole runs, which are stopped,
killed and damaged, and go on as if nothing had been."""

import contextlib
import copy
import functools
import json
import math
import os
import pickle
import random
import re
import resource
import shlex
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from conftest import (ROOT, SMALL, SPAWN, THOROUGH, arguments, drain, lines, requests,
                      run_command)
from test_scalerl import make_trainer                                             # noqa: F401
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import scalerl
from artifacts import checkpoint, step_log
from artifacts.run_folder import RunFolder, load_state, state_of
from artifacts.settings import make_config, read_toml
from command import main as command_main
from command.main import main
from command import make_run as making
from command.make_run import make_run
from config import Config
from engines.agreement import self_test
from sampler import Rollout, TransformersSampler
from scalerl import Group, Run
from scaleout.supervise import SIGNALS
from scaleout.team import Alone, Stopped
from servers.server import ServerError
from tasks import Problem, Verifier
from study import toy

# ---------------------------------------------------------------------------------------------
# 1. Over fakes


class FakeSampler:
    """Every sample ends in the step after its request came, with random tokens."""
    devices = 0

    def __init__(self, free_slots, version=0):
        self.free_slots, self.version = free_slots, version
        self.requests, self.heard = [], []      # what is waiting; what has been called

    @property
    def in_flight(self):
        return sum(request.samples for request in self.requests)

    def submit(self, request):
        self.requests.append(request)
        self.free_slots -= request.samples

    def step(self):
        rollouts = [sample(request.group_id, prompt_id=request.prompt_id,
                           tokens=random.randrange(1, 20), version=self.version)
                    for request in self.requests for _ in range(request.samples)]
        self.free_slots += len(rollouts)
        self.requests.clear()
        return rollouts

    def finished(self):
        return []

    def push_weights(self, weights, version):
        self.heard.append(("push", list(weights), version))
        self.version = version

    def reseed(self, seed):
        self.heard.append(("reseed", seed))

    def log(self):
        return {"decode/steps": 7}

    def state(self):
        return {"cache": torch.arange(3), "version": self.version}

    def load_state(self, state):
        self.heard.append(("load", state["cache"].tolist(), state["version"]))


def sample(group, tokens=5, *, prompt_id=None, prompt=3, versions=None, version=0, forced=0,
           finish="stop"):
    """A rollout of so many tokens, the last `forced` of which were forced."""
    return Rollout(prompt_id or f"p{group}", group, tuple(range(prompt)), list(range(tokens)),
                   [-1.0] * tokens, versions or [version] * tokens,
                   [t < tokens - forced for t in range(tokens)], finish, forced > 0)


@pytest.fixture
def by_hand(monkeypatch, tmp_path, llama):
    """A Run that generates, verifies and trains nothing.

    rewards    lists of rewards, one for each call of the verifier
    optimizer  what `Trainer.update` will say of its steps: 1, or 0 for none
    """
    def make(rewards=(), optimizer=(), free_slots=0, heldout=(), curve_tasks=("m",), **settings):
        config = Config(model="x", **settings)
        rewards, optimizer = iter(rewards), iter(optimizer)
        logs, trained, saved = {}, [], []

        def update(rollouts, rewards, version):
            trained.append((rollouts, rewards.tolist(), version))
            return next(optimizer), {"tokens/trained": 1000}
        trainer = SimpleNamespace(
            model=llama, device="cpu", dtype=torch.float32, team=Alone(config), update=update,
            weights=lambda dtype=None: iter([("weights of", len(trained))]),
            tokenizer=SimpleNamespace(decode=str), save=lambda *_, **__: None)

        def append(name, *rows):
            logs.setdefault(name, []).extend(rows)
            with open(tmp_path / name, "a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
        folder = SimpleNamespace(
            append=append, path=tmp_path, checkpoints=tmp_path, save=lambda *_: None,
            save_model=lambda _, name: saved.append(name.rpartition("/")[2]))
        folder.bad_step = functools.partial(RunFolder.bad_step, folder)
        verifier = SimpleNamespace(rewards=lambda rollouts, problems, tokenizer: (
            list(map(float, next(rewards))), {"verifier/timeout_frac": 0.25, "time/check_ms": 2}))
        problems = SimpleNamespace(
            train={f"p{i}": Problem(f"p{i}", "m", "?", "7") for i in range(20)},
            heldout={p.id: p for p in heldout}, curve_tasks=set(curve_tasks), prompt_tokens=3,
            prompts={**{f"p{i}": (0, 1, 2) for i in range(20)}, **{p.id: (0,) for p in heldout}})
        run = Run(config, trainer, problems, verifier, FakeSampler(free_slots), FakeSampler(0),
                  folder)
        run.logs, run.trained, run.saved = logs, trained, saved
        return run
    return make


def train_on(run, groups):
    """A step of these groups, as if they had just been generated. Returns its line in the log."""
    generate, run.generate = run.generate, lambda: groups
    try:
        return run.train_step()
    finally:
        run.generate = generate


def flops_by_hand(model, groups):
    """Of one forward pass, token by token; a group's prompt is computed once. model: tied."""
    c, total = model.config, 0
    for group in groups:
        prompt = len(group[0].prompt_ids)
        for attended in [*range(1, prompt + 1), *(
                prompt + t for r in group for t in range(1, len(r.output_ids) + 1))]:
            total += 2 * model.num_parameters() + attended * (
                4 * c.num_hidden_layers * c.num_attention_heads * c.head_dim)
    return total


def test_a_step_is_logged_as_counted_by_hand(by_hand, llama):
    """Three groups of two, the middle one of equal rewards, and a fourth that is not finished."""
    run = by_hand([[1, -1, 1, 1, -1, 1]], [1], prompts_per_step=3, samples_per_prompt=2,
                  off_policy="pipeline-3")
    run.version, run.step, run.sampler.version = 4, 9, 4
    groups = [[sample(0, 2, prompt=3, version=1), sample(0, 9, prompt=3, forced=2,
                                                         versions=[1, 1, 1, 2, 2, 2, 2, 4, 4])],
              [sample(1, 4, prompt=5, version=2, finish="length"), sample(1, 5, prompt=5,
                                                                          version=2)],
              [sample(2, 7, prompt=4, version=3, forced=3, finish="length"),
               sample(2, 3, prompt=4, version=4)],
              [sample(3, 6, prompt=2, version=4)]]
    for start, group in zip((1, 2, 3, 4), groups):
        run.pacer.admit(group[0].prompt_id, start, 2)
    run.collect([r for group in groups for r in group])
    line = train_on(run, run.pacer.take(4))

    (batch, rewards, version), = run.trained
    assert batch == groups[0] + groups[2] and rewards == [[1, -1], [-1, 1]] and version == 4
    generated = 2 + 7 + 4 + 5 + 4 + 3 + 6                       # the forced ones were not
    lags = [3] * 2 + [3, 3, 3, 2, 2, 2, 2, 0, 0] + [2] * 9 + [1] * 7 + [0] * 3
    expected = {
        "step": 10, "version": 5, "optimizer_step": 1,
        "lag/mean": sum(lags) / len(lags), "lag/max": 3,
        "pass_rate": 4 / 6, "prompts/consumed": 3, "prompts/trained": 2,
        "completions/mean_length": 30 / 6,
        "completions/std_length": math.sqrt(sum((n - 5) ** 2 for n in (2, 9, 4, 5, 7, 3)) / 6),
        "completions/longest_of_group": (9 + 5 + 7) / 3,
        "completions/truncated_frac": 2 / 6, "completions/interrupted_frac": 2 / 6,
        "tokens/generated": generated, "tokens/forced": 5, "tokens/trained": 1000,
        "compute/tokens": generated,
        "compute/flops": flops_by_hand(llama, groups[:3])
        + 3 * flops_by_hand(llama, [groups[0], groups[2]]),
        "off_policy/in_flight": 0, "off_policy/outstanding": 1,
        "curriculum/active": 20, "curriculum/retired": 0, "curriculum/epoch": 0,
        "verifier/timeout_frac": 0.25, "decode/steps": 7}
    assert {name: line[name] for name in expected} == pytest.approx(expected)
    assert run.logs["metrics.jsonl"] == [line]
    assert run.logs["groups.jsonl"] == [{"step": 10, "groups": [
        {"id": i, "prompt_id": f"p{i}", "start": i + 1, "rewards": rewards}
        for i, rewards in enumerate(([1, -1], [1, 1], [-1, 1]))]}]
    assert run.sampler.heard == [("push", [("weights of", 1)], 5)]
    assert run.generated == 0
    assert run.folder.training_s == line["time/step_s"] - line["time/generate_s"]   # no save in it
    assert run.curriculum.history == {"p0": [1, 2], "p1": [2, 2], "p2": [1, 2]}


def test_a_step_without_an_optimizer_step_leaves_the_version_and_costs_no_training(by_hand, llama):
    run = by_hand([[1, 1], [-1, 1]], [0, 1], prompts_per_step=1, samples_per_prompt=2)
    groups = [Group(i, f"p{i}", 0, 2, [sample(i, 4), sample(i, 3 + i)]) for i in range(2)]
    first = train_on(run, groups[:1])
    assert (first["step"], first["version"]) == (1, 0) == (run.step, run.version)
    assert first["compute/flops"] == flops_by_hand(llama, [groups[0].rollouts])
    second = train_on(run, groups[1:])
    assert (second["step"], second["version"]) == (2, 1) == (run.step, run.version)
    assert second["compute/flops"] == first["compute/flops"] + 4 * flops_by_hand(
        llama, [groups[1].rollouts])
    assert [version for _, _, version in run.sampler.heard] == [0, 1]


def test_groups_that_were_kept_but_not_trained_on_cost_no_training(by_hand, llama):
    """Their samples were all truncated, say, and the overlong filter is on."""
    run = by_hand([[1, -1]], [0], prompts_per_step=1, samples_per_prompt=2)
    rollouts = [sample(0, 4, finish="length"), sample(0, 3, finish="length")]
    line = train_on(run, [Group(0, "p0", 0, 2, rollouts)])
    assert line["prompts/trained"] == 1 and line["optimizer_step"] == 0
    assert line["compute/flops"] == flops_by_hand(llama, [rollouts])


def test_an_error_of_the_loss_ends_the_run_as_a_number_that_is_not_finite_does(by_hand, tmp_path):
    """A reward that is not finite, say: `advantages` refuses it by name."""
    run = by_hand([[1, -1]], prompts_per_step=1, samples_per_prompt=2)

    def update(*_):
        raise ValueError("reward of prompt 0, sample 1 is inf: it must be finite")
    run.trainer.update = update
    with pytest.raises(RuntimeError, match="^reward of prompt 0, sample 1 is inf"):
        train_on(run, [Group(0, "p0", 0, 2, [sample(0), sample(0)])])
    assert len(lines(tmp_path, "bad_step.jsonl")) == 2


@pytest.mark.parametrize("off_policy", ["pipeline-2", "ppo-3"])
def test_no_token_may_be_older_than_k_in_the_middle_of_a_sample_either(off_policy, by_hand):
    run = by_hand([[1, -1]], [1], prompts_per_step=1, samples_per_prompt=2, off_policy=off_policy)
    run.version = 4
    rollouts = [sample(0, 3, versions=[2, 3, 4]), sample(0, 3, versions=[1, 2, 4])]
    with pytest.raises(AssertionError, match="^lag 3, at most 2"):
        train_on(run, [Group(0, "p0", 1, 2, rollouts)])
    assert not run.trained


def test_a_group_starts_when_all_its_samples_have_slots_and_knows_the_version_it_starts_at(by_hand):
    """Of the weights: a step in which no group had anything to teach has not made a new one."""
    run = by_hand(free_slots=11, samples_per_prompt=4, prompts_per_step=9)
    run.step, run.version = 5, 3
    run.admit()
    assert [request.samples for request in run.sampler.requests] == [4, 4]
    assert run.sampler.free_slots == 3
    assert [group.start for group in run.pacer.groups.values()] == [3, 3]
    assert [(r.group_id, r.prompt_id) for r in run.sampler.requests] == [
        (group.group_id, group.prompt_id) for group in run.pacer.groups.values()]
    run.sampler.free_slots = 4
    run.admit()
    assert len(run.pacer.groups) == 3


def test_only_right_samples_pay_for_their_length(by_hand):
    """No one pays for up to think_max + answer_tokens - length_penalty = 6 tokens."""
    run = by_hand([[1, 1, 1, 1, -1, -1]], samples_per_prompt=3, think_max=5, answer_tokens=5,
                  length_penalty=4)
    lengths = (6, 7, 10, 11, 8, 12)
    groups = [Group(i, f"p{i}", 0, 3, [sample(i, n) for n in lengths[3 * i: 3 * i + 3]])
              for i in range(2)]
    rollouts, rewards, _ = run.reward(groups)
    assert [len(r.output_ids) for r in rollouts] == list(lengths)
    assert rewards.tolist() == [[1, 0.75, 0], [0, -1, -1]]
    # A right sample that has paid is right all the same: its prompt is as well known.
    assert run.curriculum.history == {"p0": [3, 3], "p1": [1, 3]}


def test_nobody_pays_for_the_tokens_of_the_forced_phrase(by_hand):
    """As in the loss: |y| is what the policy wrote. 8 tokens, 2 of them forced, are within 6."""
    run = by_hand([[1, 1]], samples_per_prompt=2, think_max=5, answer_tokens=5, length_penalty=4)
    interrupted = sample(0, 8)
    interrupted.sampled = [True] * 5 + [False] * 2 + [True]
    _, rewards, _ = run.reward([Group(0, "p0", 0, 2, [interrupted, sample(0, 8)])])
    assert rewards.tolist() == [[1, 0.5]]


@pytest.mark.parametrize("broken", ["verifier", "sampler", "folder"])
def test_a_part_that_fails_to_close_keeps_no_other_open(by_hand, broken):
    run, closed = by_hand([[1, -1]], prompts_per_step=1, samples_per_prompt=2), []

    def close(name):
        closed.append(name)
        if name == broken:
            raise OSError(name)
    for name in ("verifier", "sampler", "folder"):
        setattr(run, name, SimpleNamespace(close=functools.partial(close, name)))
    with pytest.raises(OSError, match=broken):
        run.close()
    assert closed == ["verifier", "sampler", "folder"]


def test_a_number_that_is_not_finite_names_the_step_and_the_file_of_its_samples(by_hand, tmp_path):
    run = by_hand([[1, 1, 1, -1]], prompts_per_step=2, samples_per_prompt=2)

    def step(*_):
        raise FloatingPointError("version 0: gradient norm nan")
    run.trainer.update = step
    with pytest.raises(RuntimeError, match="^version 0: gradient norm nan; the "
                                           f"samples of step 1 are in {tmp_path}/bad_step.jsonl$"):
        train_on(run, [Group(i, f"p{i}", 0, 2, [sample(i), sample(i)]) for i in range(2)])
    # Of the group that was trained on: equal rewards had left the batch.
    assert [r["prompt_id"] for r in lines(tmp_path, "bad_step.jsonl")] == ["p1", "p1"]


def test_an_evaluation_asks_all_problems_and_the_best_model_is_kept_by_the_curves_alone(by_hand):
    """Three problems of the curve's task m, and a further evaluation set t, which is only shown.
    An answer that could not be verified counts as wrong, so the share of these is shown as well."""
    heldout = [Problem(f"{'mmmt'[i]}/{i}", "mmmt"[i], "?", "7") for i in range(4)]
    right = [(1, 0, 0, 1, 0, 0), (0, 0, 0, 0, 0, 0), (1, 0, 0, 0, 0, 1), (1, 1, 1, 0, 0, 0)]
    shown = ((0, 0), (1, 1), (1, 1), (1, 0))
    rewards = [[2 * x - 1 for x in (*m, *t)] for m, t in zip(right, shown)]
    run = by_hand(rewards, heldout=heldout, curve_tasks="m", eval_samples=2, seed=5)
    seen = []
    step = run.eval_sampler.step

    def kept():
        rollouts = step()
        rollouts[1].finish_reason = "length"
        seen.append(rollouts)
        return rollouts
    run.eval_sampler.step = kept
    for run.step in (0, 10, 20, 30):
        run.version = run.step // 2
        run.evaluate()
    logs = run.logs["evals.jsonl"]
    assert [(line["step"], line["version"]) for line in logs] == [(0, 0), (10, 5), (20, 10),
                                                                 (30, 15)]
    assert [line["eval/m/mean@2"] for line in logs] == pytest.approx([2 / 6, 0, 2 / 6, 3 / 6])
    assert [line["eval/m/pass@2"] for line in logs] == pytest.approx([2 / 3, 0, 2 / 3, 2 / 3])
    assert [line["eval/t/mean@2"] for line in logs] == [0, 1, 1, 0.5]
    assert run.saved == ["best", "best"] and run.best == 0.5        # of steps 0 and 30
    for line, rollouts in zip(logs, seen):
        assert len(rollouts) == 8 and line["eval/truncated_frac"] == 1 / 8
        assert line["eval/mean_length"] == sum(len(r.output_ids) for r in rollouts) / 8
        assert line["eval/verifier/timeout_frac"] == 0.25 and "eval/time/check_ms" not in line
        assert line["compute/flops"] == line["compute/tokens"] == 0     # it costs none
    # The weights of that moment, and new random numbers each time, which a resumed run repeats.
    heard = run.eval_sampler.heard
    assert [call for call in heard if call[0] == "push"] == [
        ("push", [("weights of", 0)], version) for version in (0, 5, 10, 15)]
    seeds = [call[1] for call in heard if call[0] == "reseed"]
    assert seeds == [seeds[0] + step for step in (0, 10, 20, 30)]   # versions may stay as they are
    assert seeds[0] > 5 + 30        # neither training's seed nor that of a neighbor's early steps
    assert [call[0] for call in heard] == ["push", "reseed"] * 4    # `KeptAnswers` asks the version


def test_the_curve_is_the_mean_over_its_tasks_and_not_over_their_problems(by_hand):
    heldout = [Problem(f"{'mmn'[i]}/{i}", "mmn"[i], "?", "7") for i in range(3)]
    run = by_hand([[1, 1, 1, -1, -1, -1]], heldout=heldout, curve_tasks="mn", eval_samples=2)
    run.evaluate()
    assert run.best == pytest.approx((3 / 4 + 0) / 2)


def test_the_first_evaluation_is_the_best_so_far_though_no_answer_is_right(by_hand):
    run = by_hand([[-1, -1]], heldout=[Problem("m/0", "m", "?", "7")], eval_samples=2)
    run.evaluate()
    assert run.saved == ["best"] and run.best == 0


def test_a_reward_of_0_is_wrong_to_the_trainer_and_to_the_curve(by_hand):
    """Of one's own reward: right is above 0."""
    run = by_hand([[0, 0.1, 0], [0, 0.1, 0]], heldout=[Problem("m/0", "m", "?", "7")],
                  samples_per_prompt=3, eval_samples=3)
    _, rewards, log = run.reward([Group(0, "p0", 0, 3, [sample(0)] * 3)])
    assert rewards.tolist() == [[-1, 1, -1]] and run.curriculum.history == {"p0": [1, 3]}
    run.evaluate()
    assert log["pass_rate"] == pytest.approx(1 / 3) == run.best


def test_samplers_get_the_weights_in_the_dtype_that_the_trainer_computes_in(by_hand):
    """An fp32 copy in a sampler is another policy than the bf16 one that is trained."""
    run = by_hand()
    run.trainer.dtype, run.trainer.weights = torch.bfloat16, lambda dtype=None: [dtype]
    run.push_weights()
    run.push_weights(run.eval_sampler)
    assert run.sampler.heard == run.eval_sampler.heard == [("push", [torch.bfloat16], 0)]


def test_samples_that_have_finished_while_the_trainer_trained_are_in_the_next_step(by_hand):
    """Servers go on in the meantime, and hand them over only once."""
    run = by_hand(free_slots=6, prompts_per_step=2, samples_per_prompt=3, off_policy="pipeline-0")
    run.admit()
    finished = run.sampler.step()
    run.sampler.finished = lambda: finished
    assert [r for group in run.generate() for r in group.rollouts] == finished
    assert run.generated == sum(len(r.output_ids) for r in finished)


def test_the_last_round_of_ppo_is_trained_on_though_the_prompts_have_run_out(by_hand):
    run = by_hand([[1, -1]], [1], off_policy="ppo-3", prompts_per_step=1, samples_per_prompt=2,
                  free_slots=9)
    prompts = iter(["p5"])
    run.curriculum.next = lambda: next(prompts, None)
    assert run.train_step()["step"] == 1 and run.train_step() is None


def test_a_resumed_run_is_where_the_saved_one_was(by_hand, tmp_path):
    """The sampler gets the trained weights at once: it may have a copy of its own. What curriculum
    and pacer keep has to be readable: a generator as an attribute spoiled every checkpoint."""
    run = by_hand([[1, -1], [1, 1, 1, 1]], [1], samples_per_prompt=2, prompts_per_step=1,
                  off_policy="ppo-2", free_slots=4, eval_samples=4,
                  heldout=[Problem("m/0", "m", "?", "7")])
    run.train_step()
    run.evaluate()
    run.generated = 31
    assert run.best == 1 and len(run.pacer.groups) == 1
    with checkpoint.replacing(tmp_path / "step_1") as aside:
        torch.save(state_of(run), aside / "state.pt")
    state = checkpoint.read_state(tmp_path / "step_1")
    random_number = torch.rand(1)

    other = by_hand(samples_per_prompt=2, prompts_per_step=1, off_policy="ppo-2", free_slots=4)
    load_state(other, state)
    assert torch.rand(1) == random_number
    assert [getattr(other, name) for name in ("step", "version", "best", "evaluated", "generated")
            ] == [1, 1, 1, 1, 31]
    assert other.pacer.groups == run.pacer.groups and other.pacer.admitted == 2
    assert not other.pacer.may_admit()                  # the second half of a round of two steps
    assert other.curriculum.history == run.curriculum.history and other.curriculum.epoch == 1
    assert [other.curriculum.next() for _ in range(25)] == [run.curriculum.next()
                                                            for _ in range(25)]
    assert other.compute.log() == run.compute.log() and other.compute.flops > 0
    assert other.sampler.heard == [("load", [0, 1, 2], 1), ("push", [("weights of", 0)], 1)]


def test_groups_of_a_checkpoint_are_read_without_running_code_and_those_of_an_older_one_too(
        by_hand, tmp_path):
    run = by_hand([[1, -1], [1, 1, 1, 1]], [1], samples_per_prompt=2, prompts_per_step=1,
                  off_policy="ppo-2", free_slots=4)
    run.train_step()
    state = copy.deepcopy(state_of(run))
    other = by_hand(samples_per_prompt=2, prompts_per_step=1, off_policy="ppo-2", free_slots=4)
    load_state(other, state | {"pacer": state["pacer"] | {"groups": run.pacer.groups}})
    assert len(other.pacer.groups) == 1 and other.pacer.groups == run.pacer.groups

    class Trap:
        def __reduce__(self):
            return open, (str(tmp_path / "ran"), "w")
    trap = torch.frombuffer(bytearray(pickle.dumps({0: Trap()})), dtype=torch.uint8)
    with pytest.raises(KeyError, match="open"):
        load_state(other, state | {"pacer": state["pacer"] | {"groups": trap}})
    assert not (tmp_path / "ran").exists()


def test_device_hours_are_the_steps_seconds_on_all_devices_and_no_evaluations(by_hand, monkeypatch):
    """The x of the curve, by a clock that this test plays: 11 s to generate, 3 to verify, 50 to
    train and 7 to push, twice, on 6 devices; what passes between two steps is not counted."""
    spent = [0.0]
    monkeypatch.setattr(step_log, "time", SimpleNamespace(perf_counter=lambda: sum(spent)))
    monkeypatch.setattr(FakeSampler, "devices", 5)
    run = by_hand([[1, -1]] * 2, [1, 0], prompts_per_step=1, samples_per_prompt=2, free_slots=9,
                  off_policy="pipeline-0")

    def takes(seconds, method):
        def wrapped(*arguments):
            spent.append(seconds)
            return method(*arguments)
        return wrapped
    run.sampler.step = takes(11, run.sampler.step)
    run.trainer.update = takes(50, run.trainer.update)
    run.verifier.rewards = takes(3, run.verifier.rewards)
    run.sampler.push_weights = takes(7, run.sampler.push_weights)
    for _ in range(2):
        spent.append(1000.0)                                    # an evaluation, perhaps
        line = run.train_step()
    assert line["compute/core_hours"] == pytest.approx(2 * 6 * (11 + 3 + 50 + 7) / 3600)
    assert [line[f"time/{part}_s"] for part in ("generate", "verify", "train", "sync", "step")] == [
        11, 3, 50, 7, 71]


def test_a_last_checkpoint_that_fails_is_told_with_the_cause_of_the_end(by_hand):
    run = by_hand()
    run.evaluated, run.folder.track = 0, lambda: None

    def broken(error):
        raise error
    run.train = lambda: broken(ServerError("no server is ready"))
    run.folder.save = lambda run: broken(OSError("the disk is full"))
    with pytest.raises(OSError, match="the disk is full") as caught:
        command_main.trained(run)
    assert "no server is ready" in str(caught.value.__context__)
    run.train = lambda: broken(Stopped())                   # a stop is no failure: the disk is
    with pytest.raises(OSError, match="the disk is full"):
        command_main.trained(run)


def test_the_verifier_is_told_what_opens_and_closes_this_models_thinking(monkeypatch, tmp_path):
    told = []
    monkeypatch.setattr(making, "Verifier", lambda **options: told.append(options))
    trainer = SimpleNamespace(tokenizer=None)
    monkeypatch.setattr(making, "load_problems", lambda *_: sys.exit())
    for settings in ({}, {"think_open": "[r]\n", "think_close": "[/r]"}):
        trainer.team = Alone(Config())
        with pytest.raises(SystemExit):
            make_run(Config(**settings), trainer, SimpleNamespace(path=tmp_path))
    assert told == [{"think_tags": ("<think>", "</think>")}, {"think_tags": ("[r]", "[/r]")}]


@pytest.mark.parametrize("head_fp32", [True, False])
def test_samplers_and_trainer_compute_log_probs_at_one_temperature_and_with_one_head(
        head_fp32, make_trainer, llama, seed, monkeypatch, tmp_path, capsys):   # noqa: F811
    """And both are those of the settings, by plain forwards of transformers' model."""
    trainer = make_trainer(temperature=0.7, head_fp32=head_fp32, engine="transformers", slots=16,
                           think_min=5, think_max=17, answer_tokens=3, prompt_tokens=13)
    trainer.model.generation_config.eos_token_id = 1
    trainer.tokenizer = SimpleNamespace(eos_token_id=1)
    monkeypatch.setattr(making, "load_problems", lambda *_: SimpleNamespace(
        train={"p": None}, heldout=dict.fromkeys("abc"), prompt_tokens=13,
        prompts={name: tuple(range(2, 4 + i)) for i, name in enumerate("abc")}))
    run = make_run(trainer.config, trainer, SimpleNamespace(
        path=tmp_path, close=lambda: None))
    log = self_test(run)
    mean = log[f"mismatch/{'fp32' if head_fp32 else 'bf16'}_head/mean_abs_dlogp"]
    assert mean < (1e-5 if head_fp32 else 1e-3) and len(log) == 3
    assert "no lag" in capsys.readouterr().out

    @torch.no_grad()
    def by_transformers(rollout, fp32):
        ids = torch.tensor([*rollout.prompt_ids, *rollout.output_ids])
        hidden, head = llama.model(ids[None]).last_hidden_state[0, :-1], llama.lm_head.weight
        logits = hidden @ head.T if fp32 else (hidden.bfloat16() @ head.bfloat16().T).float()
        logprobs = (logits / 0.7).log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        return logprobs[-len(rollout.output_ids):]
    for sampler in (run.sampler, run.eval_sampler):
        rollouts = drain(sampler, requests(3))
        right, other = (torch.cat([by_transformers(r, fp32) for r in rollouts])
                        for fp32 in (head_fp32, not head_fp32))
        table = trainer.policy(rollouts)[0].detach()
        trained = torch.cat([row[: len(r.output_ids)] for row, r in zip(table, rollouts)])
        for found in (torch.tensor([x for r in rollouts for x in r.behavior_logprobs]), trained):
            # Mean, not maximum: the last bit of a hidden state may turn the bf16 of a logit.
            assert (found - right).abs().mean() < 0.1 * (other - right).abs().mean()
    run.close()


def test_the_self_test_is_about_sampled_tokens_alone():
    """Forced tokens have no log-prob, and padding is no token: both would count as agreement."""
    rollouts = [sample(0, 3, forced=1), sample(1, 5)]
    trained = torch.full((2, 5), -1.5)
    trained[0, 2:] = torch.tensor([7.0, 8.0, 9.0])          # a forced token, and two of padding
    run = SimpleNamespace(
        config=Config(allow_mismatch=True), problems=SimpleNamespace(heldout={"a": None}),
        eval_sampler=SimpleNamespace(log=dict), answers=lambda *_, **__: rollouts,
        trainer=SimpleNamespace(logprobs=lambda _: trained, dtype=torch.float32))
    log = self_test(run)
    for name in ("mean_abs_dlogp", "max_abs_dlogp"):
        assert log[f"mismatch/fp32_head/{name}"] == 0.5
    assert log["mismatch/fp32_head/kl_k3"] == pytest.approx(math.exp(-0.5) - 1 + 0.5)
    run.config.allow_mismatch = False
    with pytest.raises(RuntimeError, match=r"disagree before the first step .mean k3 KL 0\.107, "):
        self_test(run)
    trained[0, 0] = math.nan
    with pytest.raises(RuntimeError, match="KL nan"):
        self_test(run)


@pytest.mark.parametrize("allowed", [False, True])
def test_a_run_whose_sampler_and_trainer_disagree_ends_before_it_begins(
        allowed, micro, tmp_path, monkeypatch, capsys):
    """The ratio would be wrong before anything is stale, and the curve that of another method."""
    init = TransformersSampler.__init__
    monkeypatch.setattr(TransformersSampler, "__init__", lambda self, *args, **settings: init(
        self, *args, **(settings | {"temperature": 3.0})))
    words = arguments(micro, name="r", steps=1, allow_mismatch=str(allowed).lower())
    assert train(tmp_path, words, monkeypatch) == (0 if allowed else 1)
    said = capsys.readouterr().err
    assert "Traceback" not in said and said.count("disagree before the first step") == 1
    assert ("warning: " in said) == allowed and ("--allow-mismatch true" in said) != allowed
    assert (tmp_path / "runs" / "r" / "metrics.jsonl").exists() == allowed
    if not allowed:                         # what the sentence says is true
        assert train(tmp_path, [*words[:-1], "true"], monkeypatch) == 0


def test_a_run_starts_over_but_not_for_ranks_of_another_launcher(
        micro, tmp_path, monkeypatch, capsys):
    """A job that Slurm queues again has --fresh again, and would never come to its end."""
    words = arguments(micro, name="r", steps=1)
    assert train(tmp_path, words, monkeypatch) == 0
    first = (tmp_path / "runs/r/metrics.jsonl").read_text()
    with monkeypatch.context() as patch:
        patch.setenv("RANK", "0")
        assert train(tmp_path, [*words, "--fresh"], monkeypatch) == 2
    assert "--fresh: not for ranks that others start" in capsys.readouterr().err
    assert train(tmp_path, [*words, "--fresh"], monkeypatch) == 0
    assert "runs/r starts over; what it was is now runs/r-old-1." in capsys.readouterr().out
    assert (tmp_path / "runs/r-old-1/metrics.jsonl").read_text() == first
    assert [r["step"] for r in lines(tmp_path / "runs/r")] == [0, 1]


def test_two_seeds_share_neither_order_nor_samples_nor_the_draws_of_an_evaluation(
        make_trainer, seed, tmp_path, monkeypatch):                             # noqa: F811
    """Or they would be no replicates: noise that all seeds of a recipe have in common is missing
    from an interval over them. One seed, twice, is one run."""
    asked = requests(5, samples=3, length=7)

    def drawn(seed):
        trainer = make_trainer(seed=seed, engine="transformers", slots=16, eval_samples=4)
        trainer.model.generation_config.eos_token_id = 1
        trainer.tokenizer = SimpleNamespace(eos_token_id=1)
        train = {f"p{i}": None for i in range(23)}
        heldout = {name: Problem(name, "m", "?", "7") for name in "abc"}
        monkeypatch.setattr(making, "load_problems", lambda *_: SimpleNamespace(
            train=train, heldout=heldout, curve_tasks={"m"}, prompt_tokens=13,
            prompts={name: tuple(range(2, 4 + i)) for i, name in enumerate("abc")}))
        evaluated = []
        with monkeypatch.context() as patch:
            patch.setattr(Verifier, "rewards", lambda _, rollouts, *__: (
                evaluated.extend(r.output_ids for r in rollouts) or [-1.0] * len(rollouts), {}))
            patch.setattr(step_log, "show_evaluation", lambda *_: None)     # there is no log
            run = make_run(trainer.config, trainer, SimpleNamespace(
                append=lambda *_: None, save_model=lambda *_: None, close=lambda: None,
                path=tmp_path))
            order = [run.curriculum.next() for _ in train]
            sampled = [r.output_ids for r in drain(run.sampler, asked)]
            run.evaluate()
        run.close()
        assert sorted(order) == sorted(train) and len(sampled) == 15 and len(evaluated) == 12
        return order, sampled, evaluated
    first, again, other = map(drawn, (seed, seed, seed + 1))
    assert first == again
    for one, two in zip(first, other):
        assert one != two


# ---------------------------------------------------------------------------------------------
# 2. Whole runs


def train(folder, words, monkeypatch):
    """`scalerl.py` with these words, in this process and this folder. Returns the exit code."""
    monkeypatch.chdir(folder)
    return main(list(map(str, words)))


@pytest.fixture(autouse=True)
def signal_handlers():
    """A run sets its own. They are as they were after each test."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def without_time(records):
    """What a killed and resumed run must reproduce: all but clocks."""
    clocks = ("time/", "throughput/", "compute/core_hours")
    return [{k: v for k, v in record.items() if not k.startswith(clocks)} for record in records]


LOGS = ("metrics.jsonl", "evals.jsonl", "samples.jsonl", "groups.jsonl")


def same_logs(folder, other):
    for name in LOGS:
        assert without_time(lines(folder, name)) == without_time(lines(other, name)), name
    return True


@pytest.fixture(scope="module")
def reference(micro, tmp_path_factory):
    """The small run, by the command that a user types."""
    cwd = tmp_path_factory.mktemp("reference")
    done = run_command([ROOT / "scalerl.py", *arguments(micro, name="r")], cwd)
    assert done.returncode == 0, done.stderr
    assert "Self-test: sampler and trainer differ" in done.stdout
    assert "Done: 8 steps." in done.stdout
    return cwd / "runs" / "r"


def test_every_part_of_the_recipe_leaves_a_trace_in_the_log(reference):
    records = lines(reference)
    assert [r["step"] for r in records] == list(range(9))          # 0 is the start-up self-test
    mean, largest, kl = (records[0][f"mismatch/fp32_head/{name}"] for name in (
        "mean_abs_dlogp", "max_abs_dlogp", "kl_k3"))
    assert mean < 1e-5 and mean ** 2 / 2 < 1.01 * kl < 1.03 * mean * largest / 2   # a mean square
    steps = records[1:]
    total = Counter()
    for r in steps:
        total.update({k: v for k, v in r.items() if isinstance(v, (int, float))})
        assert r["lag/max"] <= 2
        assert r["completions/mean_length"] <= r["completions/longest_of_group"] <= (
            SMALL["think_max"] + 20 + SMALL["answer_tokens"])       # the phrase takes about 15
        assert 0 < r["decode/batch"] <= SMALL["slots"]
    decoded = sum(r["decode/steps"] * r["decode/batch"] for r in steps)
    assert decoded >= total["tokens/generated"]                     # forced and unfinished ones too
    assert total["lag/max"] > 0                                     # in-flight updates happened
    assert any("ratio/mean/lag_1" in r for r in steps)              # versions are per token
    assert total["completions/interrupted_frac"] > 0 and total["tokens/forced"] > 0
    assert 0 < total["frac_reward_zero_std"] < len(steps)           # some groups filtered
    assert steps[-1]["curriculum/retired"] > 0
    assert steps[-1]["curriculum/epoch"] > 1
    evals = lines(reference, "evals.jsonl")
    assert [e["step"] for e in evals] == [0, 3, 6, 8]
    flops = [e["compute/flops"] for e in evals]
    assert flops[0] == 0 and flops == sorted(set(flops))
    assert all(0 <= e["eval/toy/mean@2"] <= e["eval/toy/pass@2"] <= 1 for e in evals)


def test_docs_metrics_md_names_every_column_of_a_run(reference):
    """Thirty were missing. `NAME/...` stands for all that begin so, TASK, K and N for what they
    say; a column by lag is that of all lags."""
    text = re.sub("```.*?```", "", (ROOT / "docs" / "metrics.md").read_text(), flags=re.S)
    named = {re.sub("TASK", "toy", re.sub(r"@[KN]$", "@2", name))
             for name in re.findall("`([^`]+)`", text)}
    begun = tuple(name[:-3] for name in named if name.endswith("/..."))
    columns = {re.sub(r"/lag_\d+$", "", column) for name in ("metrics.jsonl", "evals.jsonl")
               for line in lines(reference, name) for column in line}
    assert {c for c in columns if not c.startswith(begun)} - named == {
        "step", "version", "mismatch/fp32_head/mean_abs_dlogp", "mismatch/fp32_head/max_abs_dlogp"}


@pytest.mark.days(4, turn=0)
def test_a_sampler_with_weights_of_its_own_gets_the_new_ones_after_each_step(
        micro, tmp_path, monkeypatch):
    """The run above generates with the trainer's own tensors, where no push can be missing. With a
    copy each push matters: without them, tokens that seem to have no lag differ."""
    init, push = TransformersSampler.__init__, TransformersSampler.push_weights

    def apart(self, model, *args, **settings):
        init(self, copy.deepcopy(model), *args, **settings)
    monkeypatch.setattr(TransformersSampler, "__init__", apart)

    def farthest(name):
        words = arguments(micro, name=name, off_policy="pipeline-0", prompts_per_step=12,
                          slots=48, task_options='{"size": 60}')
        assert train(tmp_path, words, monkeypatch) == 0
        found = [r[column] for r in lines(tmp_path / "runs" / name)
                 if (column := "mismatch/mean_abs_dlogp/lag_0") in r]
        assert len(found) > 2
        return max(found)
    assert farthest("pushed") < 1e-5
    monkeypatch.setattr(TransformersSampler, "push_weights", lambda self, weights, version: push(
        self, iter(()), version))
    assert farthest("stale") > 1e-3


def test_a_finished_run_can_be_read_and_its_settings_given_again(reference):
    assert make_config(read_toml(reference / "config.toml")).steps == 8
    assert [p.name for p in sorted((reference / "checkpoints").iterdir())] == [
        "best", "step_6", "step_8"]                                  # the last two, and the best
    sample = lines(reference, "samples.jsonl")[0]
    assert sample["prompt"].endswith("<think>") and sample["reward"] in (-1, 1)


def test_the_final_model_is_an_ordinary_folder(reference):
    model = AutoModelForCausalLM.from_pretrained(reference / "model")
    tokenizer = AutoTokenizer.from_pretrained(reference / "model")
    ids = tokenizer("3+4+5<think>", return_tensors="pt")["input_ids"]
    assert model.generate(ids, max_new_tokens=3, do_sample=False).shape == (1, ids.shape[1] + 3)
    assert "packed" not in (reference / "model" / "config.json").read_text()
    checkpoint.check(reference / "model")
    # Every tensor of it is the trainer's, as its last checkpoint has it.
    trained = load_file(reference / "checkpoints" / "step_8" / "model.safetensors")
    for name, tensor in model.named_parameters():
        assert torch.equal(tensor, trained[name]), name


def main_in(folder, words, log, largest_file=None):
    """command.main as a command of its own, its output in a file."""
    if largest_file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    os.setsid()
    os.chdir(folder)
    with open(log, "a") as out:
        for stream in (1, 2):
            os.dup2(out.fileno(), stream)
    torch.set_num_threads(1)
    sys.exit(main(words))


def test_killed_at_ten_random_moments_and_resumed_it_writes_the_same_metrics(reference, micro,
                                                                             tmp_path, seed):
    """The command is only repeated. SIGKILL to the whole process tree, or a scheduler's signal to
    one process: while it starts or resumes, in the middle of a step, of an evaluation, of a
    checkpoint. Metrics, evaluations and samples are those of the run that was
    never killed, time fields apart, and so is the set of (prompt, sample) pairs trained: none
    lost, none twice. A cache not restored or a generator not continued would show as well."""
    rng, folder, log = random.Random(seed), tmp_path / "runs" / "r", tmp_path / "log"

    def step_reached():
        text = (folder / "metrics.jsonl").read_text() if (folder / "metrics.jsonl").exists() else ""
        return text.count("\n") - 1
    # Of 8 steps, a checkpoint every 3. A step that is in the log already: killed while resuming.
    moments = [(rng.choice([4, rng.randint(0, 7)]), rng.random() * rng.choice([0.1, 1]))
               for _ in range(10)]
    resumable = False                           # a run was ended early and has a checkpoint
    for step, delay in [*sorted(moments), (None, 0)]:
        process = SPAWN.Process(target=main_in, args=(tmp_path, arguments(micro, name="r"), log),
                                daemon=True)
        process.start()
        deadline = time.monotonic() + 240
        while step is not None and step_reached() < step:
            assert process.is_alive() and time.monotonic() < deadline, log.read_text()
            time.sleep(0.005)
        if step is not None:
            moment = time.monotonic() + delay       # two steps later at the most, however fast
            while time.monotonic() < moment and step_reached() < step + 2:
                time.sleep(0.005)
            how = rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1])
            with contextlib.suppress(psutil.NoSuchProcess):         # it may have reached its end
                tree = psutil.Process(process.pid)
                for victim in (*tree.children(recursive=True), tree):
                    if how == signal.SIGKILL or victim is tree:
                        victim.send_signal(how)
        process.join(300)
        # -how: killed, or signaled before Python had loaded what heeds the signal.
        assert process.exitcode in ((0, 75, -how) if step is not None else (0,)), log.read_text()
        resumable |= process.exitcode != 0 and any(folder.glob("checkpoints/step_*"))
    assert process.exitcode == 0, log.read_text()
    assert ("Resumed runs/r/checkpoints/step_" in log.read_text()) == resumable
    assert same_logs(folder, reference)
    trained = [group for line in lines(folder, "groups.jsonl") for group in line["groups"]]
    assert len({group["id"] for group in trained}) == len(trained) == 8 * SMALL["prompts_per_step"]
    assert all(len(group["rewards"]) == SMALL["samples_per_prompt"] for group in trained)


DIGITS = '''"""Digits in the answer: a random model can learn to write them."""
problems = [{"question": f"{a}+{b}=", "n": a} for a in range(30) for b in range(10)]
def reward(problem, text):
    return sum(map(text.count, "0123456789")) > 0.12 * len(text)
'''


@pytest.mark.skipif(not THOROUGH, reason="the slow way, killed: THOROUGH=1 takes two minutes more")
def test_killed_at_five_random_moments_the_slow_way_writes_the_same_metrics(tmp_path, seed):
    """A Qwen3.5 of four layers, three of them linear attention: its weights move in most steps
    while samples are in flight, which go on over states that older weights have written."""
    rng, tokenizer = random.Random(seed), toy.make_tokenizer()
    AutoModelForCausalLM.from_config(AutoConfig.for_model(
        "qwen3_5_text", vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96,
        num_hidden_layers=4, layer_types=["linear_attention"] * 3 + ["full_attention"],
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, linear_num_key_heads=2,
        linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
        max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "task.py").write_text(DIGITS)
    words = ["--no-preflight", *arguments(
        tmp_path / "model", name="r", task=tmp_path / "task.py", steps=40, eval_every=5,
        eval_samples=4, slots=40, think_max=30, answer_tokens=4, lr=3e-3, off_policy="pipeline-3",
        retire_at=1.5, save_minutes=0.03, seed=1, task_options="{}")]

    def run(name, until=None):
        """The command in the folder `name`; from so many lines of metrics on, it is killed soon."""
        (tmp_path / name).mkdir(exist_ok=True)
        metrics = tmp_path / name / "runs" / "r" / "metrics.jsonl"
        process = SPAWN.Process(target=main_in, daemon=True, args=(
            tmp_path / name, words, tmp_path / f"{name}.log"))
        process.start()
        while until and process.is_alive() and not (
                metrics.exists() and metrics.read_text().count("\n") >= until):
            time.sleep(0.01)
        if until:
            time.sleep(rng.random() / 2)
            process.kill()
        process.join(300)
        return process.exitcode

    assert run("whole") == 0
    for kill in range(5):
        assert run("killed", until=2 + 5 * kill + rng.randint(0, 4)) == -signal.SIGKILL
    assert run("killed") == 0
    whole, killed = (tmp_path / name / "runs" / "r" for name in ("whole", "killed"))
    assert (tmp_path / "killed.log").read_text().count("Resumed") == 5
    assert same_logs(killed, whole)
    steps = lines(whole)[1:]
    assert sum(line["optimizer_step"] for line in steps) > 20
    assert max(line["lag/max"] for line in steps) == 3
    shares = [line["eval/task/mean@4"] for line in lines(whole, "evals.jsonl")]
    print(f"{sum(line['optimizer_step'] for line in steps)} optimizer steps, mean lag "
          f"{sum(line['lag/mean'] for line in steps) / 40:.2f}; evaluations {shares}")


def test_a_damaged_checkpoint_is_named_and_a_run_goes_on_from_the_one_before(
        reference, micro, tmp_path, monkeypatch, capsys):
    shutil.copytree(reference.parent.parent, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "runs" / "r"
    best = folder / "checkpoints" / "best"
    assert set(json.loads((best / "checksums.json").read_text())) == {
        path.name for path in best.iterdir()} - {"checksums.json"}
    path = folder / "checkpoints" / "step_8" / "model.safetensors"
    newest = bytearray(path.read_bytes())
    newest[len(newest) // 2] ^= 1                                   # one bit
    path.write_bytes(newest)
    assert train(tmp_path, ["--config", "runs/r/config.toml"], monkeypatch) == 0
    assert capsys.readouterr().out == ("runs/r is finished. Done: 8 steps. The same command "
                                       "with --steps N, N above 8, trains on; --fresh starts "
                                       "over.\n")
    (folder / "done").unlink()
    assert train(tmp_path, ["--config", "runs/r/config.toml"], monkeypatch) == 0
    checkpoint.check(best)
    told = capsys.readouterr()
    assert "step_8/model.safetensors does not match its checksum; it is now runs/r/" in told.err
    assert "Resumed runs/r/checkpoints/step_6" in told.out
    assert same_logs(folder, reference)
    assert checkpoint.saved(folder / "checkpoints") == [
        folder / "checkpoints" / "step_8", folder / "checkpoints" / "step_6"]
    assert checkpoint.read_state(folder / "checkpoints" / "step_8")["step"] == 8


def test_a_number_that_is_not_finite_stops_the_run_and_leaves_the_samples(micro, tmp_path,
                                                                          monkeypatch, capsys):
    def broken(sampler, step=TransformersSampler.step):
        rollouts = step(sampler)
        for rollout in rollouts:
            rollout.behavior_logprobs[0] = -math.inf
        return rollouts
    monkeypatch.setattr(TransformersSampler, "step", broken)
    monkeypatch.setattr(scalerl, "self_test", lambda run: {})
    assert train(tmp_path, arguments(micro, name="n", heldout_prompts=2), monkeypatch) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.match(r"scalerl.py: step \d: version 0: behavior_logprobs", error)
    assert re.search(r"; the samples of step \d are in runs/n/bad_step.jsonl; the same command goes"
                     " on from", error)
    assert lines(tmp_path / "runs" / "n", "bad_step.jsonl")[0]["behavior_logprobs"][0] == -math.inf


def test_a_disk_that_is_full_leaves_the_checkpoint_before_whole_and_says_so(reference, micro,
                                                                            tmp_path):
    shutil.copytree(reference.parent.parent, tmp_path, dirs_exist_ok=True)
    checkpoints, log = tmp_path / "runs" / "r" / "checkpoints", tmp_path / "log"
    words = arguments(micro, name="r", steps=9)
    process = SPAWN.Process(target=main_in, args=(tmp_path, words, log, 60_000), daemon=True)
    process.start()
    process.join(120)
    assert process.exitcode == 1
    last = log.read_text().strip().splitlines()[-1]
    assert "runs/r/checkpoints/step_9 could not be written: " in last
    assert last.endswith("; the same command goes on from runs/r/checkpoints/step_8")
    assert "Traceback" not in log.read_text()
    assert sorted(path.name for path in checkpoints.iterdir()) == ["best", "step_6", "step_8"]
    assert checkpoint.read_state(checkpoints / "step_8")["step"] == 8


@pytest.mark.parametrize("how, where, step", [
    ("Ctrl-C", "self_test", 0), ("no servers", "evaluate", 0), ("SIGTERM", "evaluate", 3),
    ("no servers", "evaluate", 6), ("Ctrl-C", "generate", 4), ("no servers", "generate", 5)])
def test_a_run_that_stops_between_two_tokens_goes_on_as_if_it_had_not(
        how, where, step, reference, micro, tmp_path, monkeypatch, capsys):
    """Somebody has had enough, or all servers are gone: not a token more is decoded, and what is in
    flight goes into a checkpoint. Resumed, the run writes the logs of one that never stopped: no
    sample lost, no evaluation left out; nor is one there twice if the resumed run is killed before
    its next checkpoint."""
    decode, calls = TransformersSampler.step, []
    holder = scalerl if where == "self_test" else scalerl.Run
    whole = getattr(holder, where)

    def broken(run):
        def step_of(sampler):
            calls.append(1)
            if len(calls) == 2 and how == "no servers":
                raise ServerError("no server answers")
            if len(calls) == 2:
                os.kill(os.getpid(), signal.SIGINT if how == "Ctrl-C" else signal.SIGTERM)
            return decode(sampler)
        with monkeypatch.context() as patch:
            if run.step == step:
                patch.setattr(TransformersSampler, "step", step_of)
            return whole(run)
    with monkeypatch.context() as patch:
        patch.setattr(holder, where, broken)
        code = train(tmp_path, arguments(micro, name="r"), patch)
    assert code == {"no servers": 1, "Ctrl-C": 130, "SIGTERM": 75}[how] and len(calls) == 2
    folder, said = tmp_path / "runs" / "r", "".join(capsys.readouterr())
    assert (f"the same command goes on from runs/r/checkpoints/step_{step}" if step
            else "the same command goes on from the first step") in said
    assert ("no server answers" in said) == (how == "no servers")
    heeded = "\nstopping, with a checkpoint if an evaluation has ended; a second signal" in said
    assert heeded == (how != "no servers")
    if step and where == "evaluate":
        with monkeypatch.context() as patch, pytest.raises(SystemExit):
            patch.setattr(scalerl.Run, "generate", lambda run: sys.exit())      # a kill: no word
            train(tmp_path, ["--config", "runs/r/config.toml"], patch)
    assert train(tmp_path, ["--config", "runs/r/config.toml"], monkeypatch) == 0
    assert where != "generate" or re.search("[1-9][0-9]* unfinished samples go on where they were",
                                            capsys.readouterr().out)
    assert same_logs(folder, reference)


@pytest.mark.days(4)
@pytest.mark.parametrize("where, save_minutes, step", [
    ("evaluate", 15, 3), ("evaluate", 15, 8), ("admit", 1e-9, 4)])
def test_a_checkpoint_is_written_before_an_evaluation_and_by_the_clock(
        where, save_minutes, step, reference, micro, tmp_path, monkeypatch):
    """Killed without a word in the evaluation after step 3, in that of the end, or long after the
    last evaluation."""
    whole = getattr(scalerl.Run, where)
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(scalerl.Run, where,
                      lambda run: sys.exit() if run.step == step else whole(run))
        train(tmp_path, arguments(micro, name="r", save_minutes=save_minutes), patch)
    folder = tmp_path / "runs" / "r"
    assert RunFolder.newest(SimpleNamespace(checkpoints=folder / "checkpoints")).name == \
        f"step_{step}"
    assert train(tmp_path, ["--config", "runs/r/config.toml"], monkeypatch) == 0
    assert same_logs(folder, reference)


@pytest.mark.days(4, turn=2)
def test_a_step_longer_than_the_clock_is_saved_in_its_middle(reference, micro, tmp_path,
                                                             monkeypatch):
    """Killed without a word when samples of step 5 have finished: they are in the checkpoint."""
    collect, calls = scalerl.Run.collect, []

    def killed(run, rollouts):
        if run.step == 4 and rollouts:
            calls.append(run.generated)
            if len(calls) == 4:
                sys.exit()
        return collect(run, rollouts)
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(scalerl.Run, "collect", killed)
        train(tmp_path, arguments(micro, name="r", save_minutes=1e-9), patch)
    folder = tmp_path / "runs" / "r"
    assert checkpoint.read_state(folder / "checkpoints" / "step_4")["generated"] == calls[-1] > 0
    assert train(tmp_path, arguments(micro, name="r"), monkeypatch) == 0
    assert same_logs(folder, reference)


@pytest.mark.days(4)
@pytest.mark.parametrize("off_policy", ["pipeline-2", "ppo-2"])
def test_a_signal_in_a_long_training_step_is_heeded_between_two_micro_batches(
        off_policy, micro, tmp_path, monkeypatch, capsys):
    """A step of an 8B model trains for minutes, and a scheduler waits 30 s. The groups of the step
    are untrained again: resumed, the run writes what one that was never stopped writes."""
    words = [*arguments(micro, name="r", micro_batch_tokens=60, off_policy=off_policy, steps=6),
             "--no-preflight"]
    for folder in ("whole", "stopped"):
        (tmp_path / folder).mkdir()
    assert train(tmp_path / "whole", words, monkeypatch) == 0
    loss, calls = scalerl.policy_loss, []

    def counted(*args, **kwargs):
        calls.append(len(lines(Path("runs/r"))) - 1)
        if calls.count(2) == 2:                 # the second micro-batch of step 3
            os.kill(os.getpid(), signal.SIGUSR1)
        return loss(*args, **kwargs)
    with monkeypatch.context() as patch:
        patch.setattr(scalerl, "policy_loss", counted)
        assert train(tmp_path / "stopped", words, patch) == 75
    assert calls.count(2) == 2 and calls[-1] == 2           # not one micro-batch more
    assert "Stopped at step 2; the same command goes on from runs/r/checkpoints/step_2" in (
        capsys.readouterr().out)
    assert train(tmp_path / "stopped", words, monkeypatch) == 0
    assert same_logs(*(tmp_path / folder / "runs" / "r" for folder in ("stopped", "whole")))


def test_a_run_that_is_stopped_again_and_again_within_one_step_keeps_what_has_finished(
        reference, micro, tmp_path, monkeypatch):
    """A step may take longer than a scheduler lends the machine: each time it has to come nearer.
    The logs are those of a run that was never stopped."""
    collect = scalerl.Run.collect

    def stopping(run, rollouts):
        collect(run, rollouts)
        if run.step == 4 and rollouts:
            os.kill(os.getpid(), signal.SIGTERM)
    kept = []
    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(scalerl.Run, "collect", stopping)
            assert train(tmp_path, arguments(micro, name="r"), patch) == 75
        kept.append(checkpoint.read_state(tmp_path / "runs/r/checkpoints/step_4")["generated"])
    assert 0 < kept[0] < kept[1] < kept[2]
    assert train(tmp_path, arguments(micro, name="r"), monkeypatch) == 0
    assert same_logs(tmp_path / "runs" / "r", reference)


def test_a_stop_in_which_no_sample_has_finished_keeps_the_tokens_that_were_decoded(
        micro, tmp_path, monkeypatch):
    """A sample may take longer than a scheduler lends the machine."""
    decode, kept, calls = scalerl.Run.decode, [], []

    def stopping(run, sampler):
        calls.append(run.evaluated is not None)         # before that it is the self-test
        if calls[-1] and calls.count(True) % 3 == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return decode(run, sampler)
    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(scalerl.Run, "evaluate", lambda run: setattr(run, "evaluated", run.step))
            patch.setattr(scalerl.Run, "train_step", lambda run: run.generate())
            patch.setattr(scalerl.Run, "decode", stopping)
            patch.setattr(making.load, "end_ids", lambda *_: set())         # none ends early
            assert train(tmp_path, [*arguments(micro, name="r", think_min=30, think_max=40),
                                    "--no-preflight"], patch) == 75
        state = checkpoint.read_state(next(iter(checkpoint.saved(tmp_path / "runs/r/checkpoints"))))
        assert state["generated"] == 0
        kept.append(state["sampler"]["decoded"]["clock"])
    assert kept[0] < kept[1] < kept[2]


def test_a_signal_while_the_last_model_is_written_leaves_a_finished_run_finished(
        micro, tmp_path, monkeypatch, capsys):
    """With exit code 75 a scheduler would queue it again, and a loop would go round once more."""
    save_model = RunFolder.save_model

    def signalled(folder, trainer, name):
        if name == "model":
            os.kill(os.getpid(), signal.SIGTERM)
        save_model(folder, trainer, name)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_model", signalled)
        assert train(tmp_path, arguments(micro, name="r", steps=2), patch) == 0
    said = capsys.readouterr().out
    assert "Done: 2 steps." in said and (tmp_path / "runs/r/done").exists()


@pytest.mark.days(4, turn=3)
def test_a_run_that_has_lost_its_settings_is_not_begun_again_into_its_logs(micro, tmp_path,
                                                                         monkeypatch, capsys):
    """Two runs, of other seeds even, in one log: nothing would show it."""
    assert train(tmp_path, arguments(micro, name="r", steps=2), monkeypatch) == 0
    folder = tmp_path / "runs" / "r"
    before = (folder / "metrics.jsonl").read_bytes()
    (folder / "config.toml").unlink()
    (folder / "done").unlink()
    assert train(tmp_path, arguments(micro, name="r", steps=2, seed=9), monkeypatch) == 2
    assert "runs/r has logs and no config.toml: choose another --name" in capsys.readouterr().err
    assert (folder / "metrics.jsonl").read_bytes() == before


def own_task(tmp_path, reward):
    """A file of 30 problems, whose reward is this."""
    path = tmp_path / "mine.py"
    path.write_text("problems = [{'question': f'{n}+1'} for n in range(30)]\n"
                    f"def reward(problem, answer_text):\n    return {reward}\n")
    return path


@pytest.mark.days(4, turn=1)
def test_a_run_says_that_the_file_of_its_own_reward_has_changed(micro, tmp_path, monkeypatch,
                                                                capsys):
    """Its curve is of two rewards then; but a mended bug should not cost the run."""
    own = own_task(tmp_path, "1")
    words = arguments(micro, name="r", task=own, task_options="{}", steps=2)
    assert train(tmp_path, words, monkeypatch) == 0
    assert train(tmp_path, [*words, "--steps", 3], monkeypatch) == 0
    assert "has changed" not in capsys.readouterr().err
    own.write_text(own.read_text().replace("return 1", "return -1"))
    assert train(tmp_path, [*words, "--steps", 4], monkeypatch) == 0
    assert f"warning: {own} has changed since this run began" in capsys.readouterr().err


def test_a_run_says_that_the_method_has_changed_since_it_began(micro, tmp_path, monkeypatch,
                                                               capsys):
    """A sign that was turned in loss.py, while a run was stopped, went in without a word."""
    words = arguments(micro, name="r", steps=2)
    assert train(tmp_path, words, monkeypatch) == 0
    kept = tmp_path / "runs" / "r" / "source" / "loss.py"
    kept.write_text(kept.read_text() + "\n# as it was then\n")
    assert train(tmp_path, [*words, "--steps", 3], monkeypatch) == 0
    told = capsys.readouterr().err
    assert f"warning: {ROOT / 'loss.py'} has changed since this run began" in told
    assert "what it was: runs/r/source/loss.py" in told and told.count("has changed") == 1
    assert "\nsteps = 3\n" in (tmp_path / "runs" / "r" / "config.toml").read_text()   # of now
    changed = kept.with_name("loss.py.changed")             # it stays, if it is changed back
    assert changed.read_text() == (ROOT / "loss.py").read_text() != kept.read_text()


@pytest.mark.days(4, turn=3)
def test_a_run_without_a_step_keeps_the_code_that_makes_its_first(micro, tmp_path, monkeypatch,
                                                                  capsys):
    """A reward that judged nothing stood in source/, and the right one was said to have changed."""
    own = own_task(tmp_path, "1 / 0")
    words = arguments(micro, name="r", task=own, task_options="{}", steps=2)
    assert train(tmp_path, words, monkeypatch) == 2
    own.write_text(own.read_text().replace("1 / 0", "1"))
    assert train(tmp_path, words, monkeypatch) == 0
    assert train(tmp_path, [*words, "--steps", 3], monkeypatch) == 0
    assert "has changed" not in capsys.readouterr().err
    (kept,) = (tmp_path / "runs" / "r" / "source" / "own").rglob("mine.py")
    assert kept.read_text() == own.read_text()


@pytest.mark.parametrize("reward", ["1 / 0", "10", "None"])
def test_a_reward_that_judges_none_of_the_first_answers_ends_the_run(reward, micro, tmp_path,
                                                                     monkeypatch, capsys):
    """It trained to its end on "wrong" alone: 600 steps of nothing, and exit code 0."""
    own = own_task(tmp_path, reward)
    words = arguments(micro, name="r", task=own, task_options="{}", steps=2)
    assert train(tmp_path, words, monkeypatch) == 2
    assert "of the first answers could not be judged" in capsys.readouterr().err
    assert not (tmp_path / "runs" / "r" / "evals.jsonl").exists()
    own.write_text(own.read_text().replace(f"return {reward}", "return 1"))
    assert train(tmp_path, words, monkeypatch) == 0         # the same command, once it is mended


def test_when_every_prompt_has_retired_the_run_ends_well(micro, tmp_path, monkeypatch, capsys):
    words = arguments(micro, name="e", retire_at=0.0001, steps=60, eval_every=100,
                      task_options='{"size": 8, "min_digits": 2, "max_digits": 2}')
    assert train(tmp_path, words, monkeypatch) == 0
    assert "every prompt has retired" in capsys.readouterr().out
    log = lines(tmp_path / "runs" / "e")
    assert log[-1]["step"] < 60
    # Nor does the same command train it again: its end is a checkpoint, whatever eval_every says.
    for done in (True, False):
        (tmp_path / "runs" / "e" / "done").unlink() if not done else None
        assert train(tmp_path, words, monkeypatch) == 0
        assert "every prompt has retired" in capsys.readouterr().out
        assert lines(tmp_path / "runs" / "e") == log


@pytest.mark.days(4, turn=2)
@pytest.mark.parametrize("change, trace", [
    ({"off_policy": "pipeline-0"}, lambda r: r.get("lag/max", 0) == 0),
    ({"off_policy": "ppo-2"}, lambda r: r.get("lag/max", 0) <= 1),
    ({"behavior": "recomputed"}, lambda r: r.get("ratio/max", 1) == r.get("ratio/min", 1) == 1),
    ({"interrupt_phrase": ""}, lambda r: r["completions/interrupted_frac"] == 0),
    ({"zero_variance_filter": "false"}, lambda r: r["prompts/trained"] == 4),
    ({"retire_at": 1.5}, lambda r: r["curriculum/retired"] == 0),
    ({"length_penalty": 20},
     lambda r: not 0 < r["pass_rate"] == pytest.approx((r["reward/mean"] + 1) / 2)),
    ({"loss": "gspo", "eps_low": 1e-3, "eps_high": 1e-3, "aggregation": "token",
      "advantage_norm": "none", "overlong_filter": "false"}, None),
    ({"dtype": "bfloat16", "head_fp32": "false"},
     lambda r: r.get("mismatch/mean_abs_dlogp/lag_0", 1) > 1e-4),
], ids=lambda value: next(iter(value.items())) if isinstance(value, dict) else "")
def test_each_part_of_the_recipe_is_one_setting_that_swaps_it(change, trace, micro, tmp_path,
                                                              reference, monkeypatch):
    words = arguments(micro, **{"name": "s", "steps": 4, "heldout_prompts": 2} | change)
    assert train(tmp_path, words, monkeypatch) == 0
    records = lines(tmp_path / "runs" / "s")[1:]
    assert len(records) == 4 and all(math.isfinite(r["reward/mean"]) for r in records)
    if trace:
        assert all(trace(r) for r in records)
        assert not all(trace(r) for r in lines(reference)[1:])        # the default does differ


def test_each_task_has_its_own_curve_and_evaluation_sets_are_never_trained_on(
        micro, tmp_path, monkeypatch):
    """A mix of sums and programs, as the paper's math and code, and a further set beside it."""
    sums = [{"question": f"{a}+{b}", "answer": str((a + b) % 10), "kind": "exact"}
            for a in range(10) for b in range(10)]
    tests = {"inputs": ["1"], "outputs": ["2"]}
    code = [{"question": f"{a}+1", "answer": tests, "kind": "code"} for a in range(30)]
    for name, records in (("sums", sums), ("code", code), ("extra", sums[:25])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    words = arguments(micro, name="mix", task="sums.jsonl+code.jsonl", heldout_prompts=20,
                      eval_tasks="extra.jsonl", eval_samples=3, steps=2, task_options="{}")
    monkeypatch.setattr("tasks.problems.which_walls", lambda: None)   # no program is written
    with pytest.warns(UserWarning) as warned:
        assert train(tmp_path, words, monkeypatch) == 0
    assert any("leave training: they are evaluated" in str(each.message) for each in warned)
    folder = tmp_path / "runs" / "mix"
    for record in lines(folder, "evals.jsonl"):
        for task in ("sums", "code", "extra"):
            at = [record[f"eval/{task}/{metric}"] for metric in ("mean@3", "pass@2", "pass@3")]
            assert 0 <= at[0] <= at[1] <= at[2] <= 1
            assert task != "code" or at[2] == 0             # the toy model cannot program
        assert "eval/sums/pass@16" not in record
        assert {"eval/verifier/error_frac", "eval/verifier/timeout_frac"} <= set(record)
    prompts = {r["prompt"] for r in lines(folder, "samples.jsonl")}
    assert prompts and not any(q["question"] + "=" in p for q in sums[:25] for p in prompts)
    assert {"verifier/error_frac", "verifier/timeout_frac", "time/check_ms"} <= set(
        lines(folder)[-1])


def test_the_readmes_command_for_a_file_of_ones_own_works_as_written(micro, tmp_path, monkeypatch):
    """With another model, and one step: what a reader does second must not fail."""
    readme = (ROOT / "README.md").read_text().replace("\\\n", " ")
    command, = re.findall(r"^\.venv/bin/python (.* my_problems\.jsonl .*)$", readme, re.M)
    example, = re.findall(r"`my_problems.jsonl` holds lines like `(\{[^`]*\})`", readme)
    (tmp_path / "my_problems.jsonl").write_text("".join(
        json.dumps(json.loads(example) | {"question": f"{json.loads(example)['question']} ({i})"})
        + "\n" for i in range(29)))
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    script, *words = shlex.split(command)
    assert script == "scalerl.py"
    assert train(tmp_path, [*words, "--model", micro, "--steps", 1], monkeypatch) == 0
    assert lines(tmp_path / "runs" / "mine")[0]["problems/train"] == 9
    assert "eval/my_problems/mean@8" in lines(tmp_path / "runs" / "mine", "evals.jsonl")[-1]
