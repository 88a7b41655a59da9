"""The story: pacing, curriculum, the step's batch, and a run that survives what happens to runs."""

import contextlib
import dataclasses
import fcntl
import functools
import html
import itertools
import json
import math
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from types import SimpleNamespace

import psutil
import pytest
import torch
from conftest import ROOT, SPAWN, packed_copy, run_command
from transformers import AutoModelForCausalLM, AutoTokenizer

import checkpoint
import run_folder
import scalerl
import verify
from policy import Policy, micro_batches
from ranks import Ranks
from sampler import Rollout, TransformersSampler
from sandbox import UnitTests
from config import Config, documented_fields, make_config, parse, read_toml, to_toml
from scalerl import Curriculum, Pacer, train_step
from tasks import Problem
from verify import Marker

# ---------------------------------------------------------------------------------------------
# Curriculum


def test_an_epoch_visits_every_prompt_once_in_a_new_order():
    curriculum = Curriculum([f"p{i}" for i in range(23)], 0.9, seed=1)
    epochs = [[curriculum.next() for _ in range(23)] for _ in range(3)]
    assert all(sorted(e) == sorted(epochs[0]) for e in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_learned_prompt_retires_from_the_next_epoch_on_and_the_end_is_graceful():
    """0.9 is reached, not passed: 9 of 10 retires, 17 of 19 does not. All samples count, so one
    lucky group is not enough; and when nobody is left the answer is None, not a crash."""
    curriculum = Curriculum(["a", "b", "c"], 0.9, seed=0)
    first = curriculum.next()
    curriculum.record("a", 9, 10)
    curriculum.record("b", 9, 9)
    curriculum.record("b", 8, 10)
    assert {first, curriculum.next(), curriculum.next()} == {"a", "b", "c"}     # this epoch: all
    second = {curriculum.next(), curriculum.next()}
    assert second == {"b", "c"}
    curriculum.record("b", 100, 100)
    curriculum.record("c", 1, 1)
    assert curriculum.next() is None and curriculum.next() is None


def test_above_one_nobody_retires():
    curriculum = Curriculum(["a"], 1.1, seed=0)
    curriculum.record("a", 5, 5)
    assert [curriculum.next() for _ in range(4)] == ["a"] * 4


# ---------------------------------------------------------------------------------------------
# Pacer


def simulate(scheme, k, P, rng, steps=40, G=2):
    """Groups finish in a random order that has nothing to do with their start; some linger."""
    pacer, version, lags, waited = Pacer(scheme, k, P), 0, [], 0
    while version < steps:
        while pacer.may_admit():
            pacer.admit(f"p{pacer.admitted}", version, G)
        assert len(pacer.groups) <= (k + 1) * P
        taken = pacer.take(version)
        if taken is None:
            waited += 1
            assert waited < 100_000, "deadlock"
            open_groups = [g for g in pacer.groups.values() if not g.finished]
            rng.choice(open_groups).rollouts.append(None)
            continue
        assert len(taken) == P
        assert [(g.start, g.group_id) for g in taken] == sorted((g.start, g.group_id)
                                                               for g in taken)
        left = [(g.start, g.group_id) for g in pacer.groups.values() if g.finished]
        assert not left or max((g.start, g.group_id) for g in taken) < min(left)
        lags += [version - g.start for g in taken]
        version += 1
    return lags, pacer


@pytest.mark.parametrize("k", [0, 1, 3, 8])
def test_no_token_is_ever_more_than_k_versions_old_and_nothing_is_dropped(k, seed):
    rng = random.Random(seed)
    for P in (1, 4, 7):
        lags, pacer = simulate("pipeline", k, P, rng)
        assert max(lags) <= k
        assert pacer.admitted == len(lags) + len(pacer.groups)
        if k > 1 and P > 1:
            assert max(lags) > 0                    # it does run ahead


@pytest.mark.parametrize("k", [1, 2, 5])
def test_ppo_generates_k_steps_with_frozen_weights_then_takes_k_steps(k, seed):
    lags, _ = simulate("ppo", k, 3, random.Random(seed), steps=4 * k)
    assert lags == [lag for _ in range(4) for lag in range(k) for _ in range(3)]


def test_the_trainer_waits_for_a_group_that_would_become_too_old():
    """k = 1, P = 1: group 0 lingers while group 1 is done. Taking group 1 is allowed at version
    0; at version 1 group 0 is at its last chance, and the trainer must wait for it."""
    pacer = Pacer("pipeline", 1, 1)
    groups = [pacer.admit(p, 0, 1) for p in "ab"]
    groups[1].rollouts.append(None)
    assert pacer.take(0) == [groups[1]]
    late = pacer.admit("c", 1, 1)
    late.rollouts.append(None)
    assert pacer.take(1) is None
    groups[0].rollouts.append(None)
    assert pacer.take(1) == [groups[0]]


def test_quick_groups_may_not_overtake_until_slow_ones_reach_their_last_chance_together():
    """k = 2, P = 1, and two of the first three groups linger. The naive rule, to wait only for
    groups at their last chance, steps on at version 1 with a young group and then has two groups
    for the single step at version 2: one token would be 3 versions old."""
    pacer = Pacer("pipeline", 2, 1)
    slow, slower, quick = (pacer.admit(p, 0, 1) for p in "abc")
    quick.rollouts.append(None)
    assert pacer.take(0) == [quick]
    pacer.admit("d", 1, 1).rollouts.append(None)
    assert pacer.take(1) is None
    slow.rollouts.append(None)
    assert pacer.take(1) == [slow]


# ---------------------------------------------------------------------------------------------
# The step's batch


def rollouts_of(P, G, rng, vocab=30, version=3):
    """Groups of random samples with random provenance; some tokens forced."""
    rollouts = []
    for p in range(P):
        prompt = tuple(rng.randrange(vocab) for _ in range(rng.randrange(3, 9)))
        for _ in range(G):
            n = rng.randrange(2, 15)
            sampled = [True] + [rng.random() < 0.8 for _ in range(n - 1)]
            rollouts.append(Rollout(
                f"p{p}", p, prompt, [rng.randrange(vocab) for _ in range(n)],
                [-rng.random() * 5 if s else 0.0 for s in sampled],
                sorted(rng.randrange(version) for _ in range(n)), sampled, "stop", False))
    return rollouts


def test_micro_batches_hold_every_sample_once_within_the_budget(seed):
    rng = random.Random(seed)
    rollouts = rollouts_of(7, 5, rng)
    batches = micro_batches(rollouts, 90)
    assert sorted(i for batch in batches for i in batch) == list(range(35)) and len(batches) > 3
    for batch in batches:
        prompts = {rollouts[i].group_id: len(rollouts[i].prompt_ids) for i in batch}
        assert sum(prompts.values()) + sum(len(rollouts[i].output_ids) for i in batch) <= 90
    assert micro_batches(rollouts, 1) and all(len(b) == 1 for b in micro_batches(rollouts, 1))


def take_step(model, rollouts, rewards, **settings):
    """Gradients and log of one step without moving the weights (learning rate 0, no clipping)."""
    config = Config(model="x", lr=1e-30, grad_clip=1e9, warmup_steps=0, **settings)
    seen = {}
    optimizer = SimpleNamespace(param_groups=[{}], zero_grad=lambda set_to_none: None)
    optimizer.step = lambda: seen.update({n: p.grad.clone() for n, p in model.named_parameters()})
    model.zero_grad()
    policy = Policy(model, temperature=config.temperature, head_fp32=config.head_fp32)
    log, kept = train_step(policy, optimizer, rollouts, rewards, 3, config, Ranks())
    trained = sum(sum(r.sampled) for r in kept)
    assert log["tokens/trained"] == trained or config.overlong_filter
    return seen, log


@pytest.mark.parametrize("aggregation", ["prompt", "sample", "token"])
def test_the_gradient_does_not_depend_on_how_the_step_is_cut_into_micro_batches(
        llama, seed, aggregation):
    rollouts = rollouts_of(5, 3, random.Random(seed))
    rewards = torch.where(torch.rand(5, 3) < 0.5, 1.0, -1.0)
    rewards[:, 0], rewards[:, 1] = 1, -1                         # no group is left out
    model = packed_copy(llama)
    whole, log = take_step(model, rollouts, rewards, aggregation=aggregation)
    parts, log_parts = take_step(model, rollouts, rewards, aggregation=aggregation,
                                 micro_batch_tokens=40)
    for name, gradient in whole.items():
        error = (gradient - parts[name]).norm() / gradient.norm()
        assert error < 1e-4, f"{name}: {error}"
    for name in ("loss", "ratio/mean", "ess", "mismatch/kl_k3", "entropy"):
        assert math.isclose(log[name], log_parts[name], rel_tol=1e-4, abs_tol=1e-6), name


def test_a_step_has_the_gradient_of_the_formula_in_the_paper(llama, seed):
    """Equation by equation in plain Python over plain forwards: the filter, batch std, prompt
    average over sampled tokens, the capped ratio against the recorded log-prob."""
    rollouts = rollouts_of(4, 3, random.Random(seed))
    rewards = torch.tensor([[1., -1, -1], [1, 1, 1], [-1, 1, 1], [-1, -1, 1]])
    ours, log = take_step(packed_copy(llama), rollouts, rewards, eps_max=2.0)
    assert log["prompts/trained"] == 3 and log["frac_reward_zero_std"] == 0.25

    kept = [0, 2, 3]
    centered = {p: [r - sum(rewards[p].tolist()) / 3 for r in rewards[p].tolist()] for p in kept}
    every = [a for row in centered.values() for a in row]
    std = math.sqrt(sum(a * a for a in every) / len(every))
    objective = 0.0
    for p in kept:
        group = rollouts[3 * p: 3 * p + 3]
        tokens = sum(sum(r.sampled) for r in group)
        for rollout, a in zip(group, centered[p]):
            ids = [*rollout.prompt_ids, *rollout.output_ids]
            logprobs = llama(torch.tensor([ids])).logits[0].log_softmax(-1)
            for t, token in enumerate(rollout.output_ids):
                if rollout.sampled[t]:
                    logprob = logprobs[len(rollout.prompt_ids) + t - 1, token]
                    ratio = min(math.exp(logprob.item() - rollout.logprobs[t]), 2.0)
                    objective = objective + ratio * a / std * logprob / tokens / len(kept)
    (-objective).backward()
    for name, parameter in llama.named_parameters():
        error = (ours[name] - parameter.grad).norm() / parameter.grad.norm()
        assert error < 1e-3, f"{name}: {error}"


@pytest.mark.parametrize("base, change", [
    *(({}, change) for change in (
        {"loss": "grpo"}, {"loss": "dapo"}, {"loss": "gspo"}, {"loss": "reinforce"},
        {"behavior": "recomputed"}, {"eps_max": 1.5}, {"aggregation": "sample"},
        {"aggregation": "token"}, {"advantage_norm": "prompt"}, {"advantage_norm": "none"},
        {"temperature": 0.7}, {"head_fp32": False})),
    *(({"loss": loss}, clip) for loss in ("grpo", "dapo")
      for clip in ({"eps_low": 1.0}, {"eps_high": 1e20}))], ids=str)
def test_every_setting_of_the_objective_reaches_the_gradient(base, change, llama, seed):
    """That each is right is shown in test_loss.py; here, that none is lost on the way."""
    rollouts = rollouts_of(3, 4, random.Random(seed))
    rollouts[0].logprobs[0] = -30.0             # of a good sample: a ratio above every bound
    rewards = torch.tensor([[1., -1, -1, -1], [1, 1, -1, -1], [-1, 1, 1, 1]])
    default, _ = take_step(packed_copy(llama), rollouts, rewards, **base)
    changed, _ = take_step(packed_copy(llama), rollouts, rewards, **base | change)
    moved = max((default[name] - changed[name]).norm() / default[name].norm() for name in default)
    assert moved > 1e-4, moved


def test_the_learning_rate_warms_up_and_the_gradient_is_clipped(llama, seed):
    rollouts, rewards = rollouts_of(2, 2, random.Random(seed)), torch.tensor([[1., -1], [-1, 1]])
    config = Config(model="x", lr=8e-4, warmup_steps=5, grad_clip=0.01)
    model, rates = packed_copy(llama), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for version in (0, 3, 4, 9):
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        log, _ = train_step(Policy(model), optimizer, rollouts, rewards, version, config, Ranks())
        moved = math.sqrt(sum(((p.detach() - before[n]) ** 2).sum().item()
                              for n, p in model.named_parameters()))
        assert log["grad_norm"] > 0.01                       # as it was before the clip
        assert moved == pytest.approx(log["lr"] * 0.01, rel=0.05)
        rates.append(log["lr"])
    assert rates == pytest.approx([8e-4 / 5, 8e-4 * 4 / 5, 8e-4, 8e-4])


def test_flops_are_those_counted_by_hand(llama, seed):
    """Token by token: two a weight, and 4 x layers x heads x head size a token looked at."""
    rng = random.Random(seed)
    rollouts = rollouts_of(2, 3, rng)
    compute, passes = scalerl.Compute(llama, 2, "core"), 4
    compute.add(rollouts, 3, passes)
    weights = sum(p.numel() for p in llama.parameters())    # the head is tied to the embedding
    c, total = llama.config, 0
    for start in (0, 3):
        group = rollouts[start: start + 3]
        prompt = len(group[0].prompt_ids)
        seen = [i + 1 for i in range(prompt)]               # once for all samples of the prompt
        for rollout in group:
            seen += [prompt + i + 1 for i in range(len(rollout.output_ids))]
        for looked_at in seen:
            total += 2 * weights + 4 * c.num_hidden_layers * c.num_attention_heads * \
                c.head_dim * looked_at
    assert compute.flops == passes * total


def test_a_step_whose_groups_all_agree_takes_no_optimizer_step(llama, seed):
    rollouts = rollouts_of(3, 2, random.Random(seed))
    rewards = torch.tensor([[1., 1], [-1, -1], [1, 1]])
    gradients, log = take_step(packed_copy(llama), rollouts, rewards)
    assert gradients == {} and log["optimizer_step"] == 0 and log["prompts/trained"] == 0
    _, log = take_step(packed_copy(llama), rollouts, rewards, zero_variance_filter=False)
    assert log["optimizer_step"] == 1 and log["grad_norm"] < 1e-6


def test_the_overlong_filter_takes_truncated_samples_out_of_the_gradient(llama, seed):
    """They stay in their group's baseline: the step is that of the same advantages without them."""
    rollouts = rollouts_of(2, 3, random.Random(seed))
    for i in (1, 3):
        rollouts[i].finish_reason = "length"
    rewards = torch.tensor([[1., -1, -1], [-1, 1, 1]])
    masked, log = take_step(packed_copy(llama), rollouts, rewards, overlong_filter=True)
    assert log["tokens/trained"] == sum(sum(r.sampled) for r in rollouts
                                        if r.finish_reason == "stop") > 0
    for i in (1, 3):
        rollouts[i].sampled = [False] * len(rollouts[i].sampled)
    by_hand, _ = take_step(packed_copy(llama), rollouts, rewards)
    unmasked, _ = take_step(packed_copy(llama), rollouts_of(2, 3, random.Random(seed)), rewards)
    for name, gradient in masked.items():
        torch.testing.assert_close(gradient, by_hand[name])
    assert any((masked[name] - unmasked[name]).norm() > 1e-3 * unmasked[name].norm()
               for name in masked)


def test_a_non_finite_loss_stops_the_step_and_names_the_version(llama, seed):
    model = packed_copy(llama)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = torch.inf
    with pytest.raises((FloatingPointError, ValueError), match="version 3|logprobs of sample"):
        take_step(model, rollouts_of(2, 2, random.Random(seed)), torch.tensor([[1., -1], [-1, 1]]))


# ---------------------------------------------------------------------------------------------
# Config


def test_every_field_survives_toml_and_command_line(tmp_path):
    config = Config(model="m", name="n", lr=5e-7, task_options={"max_terms": 2, "s": ['a"b']})
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config))
    assert make_config(read_toml(path)) == config
    changed, asked = parse([
        "--config", str(path), "--name", "none", "--lr", "1e-4", "--head-fp32", "false",
        "--task-options", '{"a": 1}', "--resume"])
    assert (changed.lr, changed.head_fp32, changed.task_options, asked.resume) == (
        1e-4, False, {"a": 1}, True)


def test_of_several_config_files_the_later_wins_and_the_command_line_last(tmp_path):
    for name, text in (("a", "lr = 1e-3\nsteps = 7\nseed = 1\n"), ("b", "steps = 9\nseed = 2\n")):
        (tmp_path / f"{name}.toml").write_text(text)
    files = [w for name in "ab" for w in ("--config", str(tmp_path / f"{name}.toml"))]
    config, _ = parse([*files, "--seed", "3"])
    assert (config.lr, config.steps, config.seed) == (1e-3, 9, 3)


CONFIGS = sorted((ROOT / "configs").rglob("*.toml"))
# Fields that are one decision of the recipe together.
DECISIONS = {"loss": "loss", "eps_low": "loss", "eps_high": "loss", "eps_max": "loss",
             "length_penalty": "length", "interrupt_phrase": "length"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_shipped_config_is_valid_and_repeats_no_default(path):
    config, _ = parse([] if path.parent.name == "configs" else [
        "--config", str(ROOT / "configs" / "scalerl.toml"), "--config", str(path)])
    make_config(dataclasses.asdict(config) | {"model": "m"} | read_toml(path)).check()
    for name, value in tomllib.loads(path.read_text()).items():
        assert value != getattr(Config(), name), f"{name} repeats the default"


def test_a_leave_one_out_config_changes_one_decision_and_each_a_different_one():
    """Two decisions changed at once would show neither's effect (paper, sec. 5)."""
    changed = {path.stem: {DECISIONS.get(name, name) for name in read_toml(path)}
               for path in CONFIGS if path.parent.name == "loo"}
    assert len(changed) == 9 and all(len(decisions) == 1 for decisions in changed.values())
    assert len(set.union(*changed.values())) == 9
    names = {name for path in CONFIGS if path.parent.name == "rivals" for name in read_toml(path)}
    assert {DECISIONS.get(name, name) for name in names} < set.union(*changed.values())


def test_the_help_explains_every_setting_and_says_whose_default_it_is(capsys):
    """The comments of Config are the help: a setting without one would have no help either."""
    groups = documented_fields()
    fields = [f.name for _, entries in groups for f, _ in entries]
    assert fields == [f.name for f in dataclasses.fields(Config)]
    assert len(groups) >= 8
    for _, entries in groups:
        for f, comment in entries:
            assert "paper" in comment or "ours" in comment, f.name
    with pytest.raises(SystemExit, match="^0$"):
        parse(["--help"])
    shown = capsys.readouterr().out
    for title, entries in groups:
        assert f"\n{title}:\n" in shown
        assert all(f"--{f.name.replace('_', '-')} " in shown for f, _ in entries)


BAD_INPUT = {
    "unknown key": (["--config", "bad.toml"], "unknown key 'epsmax', did you mean 'eps_max'?"),
    "wrong type": (["--steps", "many"], "steps = 'many': should be of type int"),
    "broken file": (["--config", "broken.toml"], "not valid TOML"),
    "missing file": (["--config", "none.toml"], "No such file"),
    "unknown option": (["--learning-rate", "1"], "unknown argument '--learning-rate'"),
    "typo": (["--stepz", "1"], "did you mean --steps?"),
    "typo of what is asked": (["--resumee"], "'--resumee', did you mean --resume?"),
    "typo of a longer one": (["--print-confg"], "did you mean --print-config?"),
    "typo without its dash": (["--dryrun"], "did you mean --dry-run?"),
    "typo of the file": (["--confg", "a.toml"], "did you mean --config?"),
    "typo with a near setting": (["--reprot", "runs/a"], "did you mean --report?"),
    "no model": (["--model", "nowhere"], "model = 'nowhere'"),
    "a model with a typo": (["--name", "damaged", "--model", "damagde"], "mean 'damaged'?"),
    "not a model": (["--model", "."], "has no config.json"),
    "a damaged model": (["--model", "damaged"], "config.json does not match its checksum"),
    "a model without a tokenizer": (["--model", "mute"], "model = 'mute': cannot be read"),
    "a model that was cut off": (["--model", "cut"], "model = 'cut': cannot be read"),
    "unknown task": (["--task", "tic-tac-toe"], "tic-tac-toe"),
    "task with a typo": (["--task", "polaris"], "did you mean 'polaris-53k'?"),
    "unknown evaluation": (["--eval-tasks", "aime24"], "did you mean 'aime-24'?"),
    "two curves of one name": (["--eval-tasks", "toy"], "eval_tasks names 'toy' as well"),
    "phrase without the tag": (["--think-close", "</r>"], "must hold think_close = '</r>'"),
    "programs without tests": (["--task-options", "{}", "--task", "code.jsonl"],
                               "code.jsonl', line 1: field 'answer'"),
    "what to do with long ones": (["--long-prompts", "cut"], "use one of refuse, skip"),
    "empty task": (["--task", "empty.jsonl"], "empty.jsonl"),
    "gold fails": (["--task", "gold.jsonl"], "gold"),
    "top-p": (["--top-p", "0.9"], "top_p = 0.9: must be 1"),
    "zero steps": (["--steps", "0"], "steps = 0: must be above zero"),
    "loss": (["--loss", "ppo"], "loss = 'ppo': use one of cispo"),
    "dapo without its clip": (["--loss", "dapo"], "eps_high = 0.2: dapo's upper clip is"),
    "gspo with grpo's clip": (["--loss", "gspo"], "give eps_low and eps_high of about 1e-3"),
    "retirement": (["--retire-at", "nan"], "retire_at = nan: must be above zero"),
    "bad gold": (["--max-bad-gold", "-1"], "max_bad_gold = -1.0: must be a share"),
    "no group": (["--samples-per-prompt", "1"], "an advantage compares samples"),
    "less than no thinking": (["--eval-think-tokens", "-5"],
                              "eval_think_tokens = -5: must be zero or above"),
    "threads": (["--threads", "-1"], "threads = -1: must be zero or above"),
    "beta": (["--beta1", "1.5"], "beta1 = 1.5: must lie in [0, 1)"),
    "cap": (["--eps-max", "0.5"], "eps_max = 0.5: must be 1 or above"),
    "no thinking": (["--think-min", "0"], "think_min = 0: must lie in 1..think_max"),
    "null": (["--template-options", '{"a": null}'], "options cannot hold null"),
    "schedule": (["--off-policy", "async"], "off_policy = 'async'"),
    "too long": (["--think-max", "500"], "the model has 256"),
    "long prompt": (["--prompt-tokens", "3"], "prompt_tokens = 3"),
    "tracker": (["--log-with", "wandb"], "log_with = 'wandb': needs a package"),
    "report": (["--report", "nowhere"], "no run to report in 'nowhere'"),
    "a kernel of GPUs": (["--attention", "flash"], 'attention = "flash": its kernel needs a GPU'),
    "the launcher's as well": (["--attention", "flash", "--engine", "vllm", "--servers", "1"],
                               'attention = "flash": its kernel needs a GPU'),
    "no compiler": (["--compile-layers", "true"],
                    "compile_layers = true: torch.compile does not work here (InvalidCxxCompiler"),
    "GPUs that are not there": (["--gpus", "8"], "gpus = 8: torch finds 0 here"),
    "fewer than no GPUs": (["--gpus", "-2"], "gpus = -2: use -1"),
    "servers of two minds": (["--engine", "vllm", "--servers", "1", "--vllm-url",
                              "http://127.0.0.1:1"],
                             "servers = 1: vllm_url names servers that others have started"),
    "an engine that serves nobody": (["--servers", "1"], "engine = 'transformers': it works in"),
    "open servers": (["--engine", "vllm", "--hosts", "10.0.0.1,10.0.0.2"],
                     "other machines can reach need tls"),
    "a node too many": (["--engine", "vllm", "--hosts", "10.0.0.1,10.0.0.2", "--node-rank", "2"],
                        "one of 0..1"),
    "no certificates": (["--engine", "vllm", "--hosts", "10.0.0.1", "--tls", "nowhere"],
                        "key.pem (make certs) cannot be read"),
    "run exists": (["--name", "taken"], "exists: add --resume"),
    "a name that leads elsewhere": (["--name", "../x"], "must name one folder"),
    "nothing to resume": (["--name", "new", "--resume"], "nothing to resume"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_ends_in_one_clear_sentence_and_exit_code_2(case, micro, tmp_path, monkeypatch,
                                                              capsys):
    arguments, sentence = BAD_INPUT[case]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("epsmax = 4.0\n")
    (tmp_path / "broken.toml").write_text("steps = = 3\n")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "gold.jsonl").write_text(json.dumps(
        {"question": "Name a number.", "answer": "no number at all"}) + "\n")
    (tmp_path / "code.jsonl").write_text(json.dumps(
        {"question": "Add.", "answer": "3", "kind": "code"}) + "\n")
    if "damaged" in arguments:
        shutil.copytree(micro, tmp_path / "damaged")
        checkpoint.write_checksums(tmp_path / "damaged", {"config.json": "0"})
    if "mute" in arguments:
        (tmp_path / "mute").mkdir()
        shutil.copy(micro / "config.json", tmp_path / "mute")
    if "cut" in arguments:
        shutil.copytree(micro, tmp_path / "cut")
        os.truncate(tmp_path / "cut" / "model.safetensors", 10_000)
    (tmp_path / "runs" / "taken").mkdir(parents=True)
    (tmp_path / "runs" / "taken" / "config.toml").touch()
    base = SMALL | {"model": str(micro), "heldout_prompts": 8}
    if "--name" not in arguments:
        base["name"] = "bad"
    if arguments[-1].endswith(".jsonl"):
        base["heldout_prompts"] = 1
    given = {a.lstrip("-").replace("-", "_") for a in arguments}
    words = [w for name, value in base.items() if name not in given
             for w in (f"--{name.replace('_', '-')}", str(value))]
    # With --compile-layers: pytest's own patch would delete the option afterwards.
    with torch._inductor.config.patch({"cpp.cxx": ("nowhere",)}):
        assert scalerl.main([*words, *arguments]) == 2
    message = capsys.readouterr().err
    assert sentence in message and message.startswith("scalerl.py: ")
    assert len(message.strip().splitlines()) == 1 and "Traceback" not in message
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["taken"]     # nothing left behind


# ---------------------------------------------------------------------------------------------
# Whole runs

# As small as a run can be in which every part of the recipe has something to do.
SMALL = {"prompts_per_step": 4, "samples_per_prompt": 4, "slots": 24, "think_min": 8,
         "think_max": 22, "answer_tokens": 3, "prompt_tokens": 40, "heldout_prompts": 64,
         "eval_prompts": 8, "eval_samples": 2, "eval_every": 4, "checkpoint_every": 3,
         "lr": 1e-3, "warmup_steps": 2, "steps": 8, "off_policy": "pipeline-2",
         "retire_at": 0.25, "task_options": '{"size": 24}', "threads": 1,
         "engine": "transformers"}         # whose runs repeat bit for bit, killed or not


def arguments(micro, **changes):
    settings = SMALL | {"model": micro} | changes
    return [w for name, value in settings.items()
            for w in (f"--{name.replace('_', '-')}", str(value))]


def start(micro, cwd, **changes):
    return run_command([ROOT / "scalerl.py", *arguments(micro, **changes)], cwd)


def lines(folder, name="metrics.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def without_time(records):
    """What a killed and resumed run must reproduce: all but clocks."""
    clocks = ("time/", "throughput/", "compute/core_hours")
    return [{k: v for k, v in record.items() if not k.startswith(clocks)} for record in records]


@pytest.fixture(scope="module")
def reference(micro, tmp_path_factory):
    cwd = tmp_path_factory.mktemp("reference")
    done = start(micro, cwd, name="r")
    assert done.returncode == 0, done.stderr
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
    assert [e["step"] for e in evals] == [0, 4, 8]
    assert evals[0]["compute/flops"] == 0 < evals[1]["compute/flops"] < evals[2]["compute/flops"]
    assert all(0 <= e["eval/toy/mean@2"] <= e["eval/toy/pass@2"] <= 1 for e in evals)


def test_a_run_folder_holds_what_is_needed_to_know_what_was_run(reference):
    assert make_config(read_toml(reference / "config.toml")).steps == 8
    assert (reference / "source" / "loss.py").read_text() == (ROOT / "loss.py").read_text()
    versions = json.loads((reference / "versions.json").read_text())
    assert "torch" in versions and ("git" in versions) == bool(run_folder.commit())
    assert [p.name for p in sorted((reference / "checkpoints").iterdir())] == [
        "best", "step_6", "step_8"]                                  # the last two, and the best
    sample = lines(reference, "samples.jsonl")[0]
    assert sample["prompt"].endswith("<think>") and sample["reward"] in (-1, 1)


def test_a_checkout_is_known_by_its_commit_and_what_is_none_says_nothing(tmp_path, monkeypatch):
    """A copy of the code inside another repository must not be given that one's commit."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", tmp_path]
    copy = tmp_path / "copy"
    copy.mkdir()
    (tmp_path / "loss.py").write_text("1")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"], ["tag", "v1"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    for code, changed, found in ((tmp_path, "1", {"git": head}), (copy, "1", {}),
                                 (tmp_path, "2", {"git": f"{head}-dirty"})):
        (tmp_path / "loss.py").write_text(changed)
        monkeypatch.setattr(run_folder, "CODE", code)
        assert run_folder.commit() == found
    monkeypatch.setenv("PATH", "")
    assert run_folder.commit() == {}


def test_the_final_model_is_an_ordinary_folder(reference):
    model = AutoModelForCausalLM.from_pretrained(reference / "model")
    tokenizer = AutoTokenizer.from_pretrained(reference / "model")
    ids = tokenizer("3+4+5<think>", return_tensors="pt")["input_ids"]
    assert model.generate(ids, max_new_tokens=3, do_sample=False).shape == (1, ids.shape[1] + 3)
    assert "packed" not in (reference / "model" / "config.json").read_text()
    checkpoint.check(reference / "model")


def test_the_same_seed_writes_the_same_metrics(reference, micro, tmp_path):
    assert start(micro, tmp_path, name="r").returncode == 0
    again = tmp_path / "runs" / "r"
    assert without_time(lines(again)) == without_time(lines(reference))


def main_in(folder, words, log, largest_file=None):
    """scalerl.main as a command of its own, its output in a file."""
    if largest_file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    os.setsid()
    os.chdir(folder)
    with open(log, "a") as out:
        for stream in (1, 2):
            os.dup2(out.fileno(), stream)
    torch.set_num_threads(1)
    sys.exit(scalerl.main(words))


def test_killed_at_ten_random_moments_and_resumed_it_writes_the_same_metrics(reference, micro,
                                                                             tmp_path, seed):
    """SIGKILL to the whole process tree: while it starts or resumes, in the middle of a step, of
    an evaluation, of a checkpoint. Metrics, evaluations and samples are those of the run that was
    never killed, time fields apart, and so is the set of (prompt, sample) pairs trained: none
    lost, none twice. A cache not restored or a generator not continued would show as well."""
    rng, folder, log = random.Random(seed), tmp_path / "runs" / "r", tmp_path / "log"

    def step_reached():
        text = (folder / "metrics.jsonl").read_text() if (folder / "metrics.jsonl").exists() else ""
        return text.count("\n") - 1
    # Of 8 steps, a checkpoint every 3. A step that is in the log already: killed while resuming.
    moments = [(rng.randint(0, 7), rng.random() * rng.choice([0.1, 1])) for _ in range(10)]
    for step, delay in [*sorted(moments), (None, 0)]:
        words = [*arguments(micro, name="r"),
                 *(["--resume"] if (folder / "config.toml").exists() else [])]
        process = SPAWN.Process(target=main_in, args=(tmp_path, words, log), daemon=True)
        process.start()
        deadline = time.monotonic() + 240
        while step is not None and step_reached() < step:
            assert process.is_alive() and time.monotonic() < deadline, log.read_text()
            time.sleep(0.005)
        if step is not None:
            time.sleep(delay)
            with contextlib.suppress(psutil.NoSuchProcess):         # it may have reached its end
                tree = psutil.Process(process.pid)
                for victim in (*tree.children(recursive=True), tree):
                    victim.kill()
        process.join(300)
    assert process.exitcode == 0, log.read_text()
    assert "Resumed runs/r/checkpoints/step_" in log.read_text()
    for name in ("metrics.jsonl", "evals.jsonl", "samples.jsonl", "groups.jsonl"):
        assert without_time(lines(folder, name)) == without_time(lines(reference, name)), name
    trained = [group for line in lines(folder, "groups.jsonl") for group in line["groups"]]
    assert len({group["id"] for group in trained}) == len(trained) == 8 * SMALL["prompts_per_step"]
    assert all(len(group["rewards"]) == SMALL["samples_per_prompt"] for group in trained)


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(reference, micro, tmp_path):
    shutil.copytree(reference.parent.parent, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "runs" / "r"
    best = folder / "checkpoints" / "best"
    assert set(json.loads((best / "checksums.json").read_text())) == {
        path.name for path in best.iterdir()} - {"checksums.json"}
    for path in (folder / "checkpoints" / "step_8", best):
        data = bytearray((path / "model.safetensors").read_bytes())
        data[len(data) // 2] ^= 1                                   # one bit
        (path / "model.safetensors").write_bytes(data)
        if path != best:
            newest = data
    command = [ROOT / "scalerl.py", *arguments(micro, name="r"), "--resume"]
    done = run_command(command, tmp_path)
    assert done.returncode == 0, done.stderr
    # The evaluation of step 8, made again, is the first since: whatever its score.
    assert "checkpoints/best/model.safetensors does not match its checksum; it is now " \
        "best.damaged" in done.stderr
    assert (best.with_name("best.damaged") / "model.safetensors").read_bytes() == data
    checkpoint.check(best)
    model = AutoModelForCausalLM.from_pretrained(best).state_dict()
    last = AutoModelForCausalLM.from_pretrained(folder / "model").state_dict()
    assert all(torch.equal(model[name], last[name]) for name in last)
    assert "step_8/model.safetensors does not match its checksum" in done.stderr
    assert "Resumed runs/r/checkpoints/step_6" in done.stdout
    assert without_time(lines(folder)) == without_time(lines(reference))
    # It is out of the way: not one of the last two, nor taken for the step's own.
    assert "checkpoints/step_8 is now step_8.damaged" in done.stderr
    assert checkpoint.saved(folder / "checkpoints") == [
        folder / "checkpoints" / "step_8", folder / "checkpoints" / "step_6"]
    assert checkpoint.read_state(folder / "checkpoints" / "step_8")["step"] == 8
    assert (folder / "checkpoints" / "step_8.damaged" / "model.safetensors").read_bytes() == newest

    for path, damage in zip(checkpoint.saved(folder / "checkpoints"), (b"[]", b"\xff"),
                            strict=True):
        (path / "checksums.json").write_bytes(damage)
    done = run_command(command, tmp_path)
    assert done.returncode == 2 and "no whole checkpoint" in done.stderr
    assert re.search("step_8 cannot be read .*step_6 cannot be read ", done.stderr)
    assert lines(folder)                                            # and nothing was lost


@pytest.mark.parametrize("what", ["checkpoint", "model"])
def test_killed_at_any_point_of_a_replacement_one_of_the_two_is_there_whole(what, tmp_path,
                                                                            monkeypatch):
    """The folder before, or the new one: killed just before each removal and each renaming."""
    class Killed(BaseException):
        pass

    def write(folder, number):
        def pretrained(path, **_):
            path.mkdir(exist_ok=True, parents=True)
            (path / "state.json").write_text(json.dumps(number))
        if what == "checkpoint":
            checkpoint.save(folder, {"model": {"w": torch.full((3,), number)}}, Ranks(),
                            plain=number)
        else:
            pretend = SimpleNamespace(save_pretrained=pretrained)
            checkpoint.save_model(pretend, pretend, [], folder)
    found = []
    for moment in itertools.count():
        folder, acts = tmp_path / str(moment) / "step_5", []

        def act(*args, do, **options):
            acts.append(do)                                                     # noqa: B023
            if len(acts) > moment:                                              # noqa: B023
                raise Killed
            return do(*args, **options)
        write(folder, 1)
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            patch.setattr(type(folder), "rename",
                          functools.partialmethod(act, do=type(folder).rename))
            patch.setattr(shutil, "rmtree", functools.partial(act, do=shutil.rmtree))
            write(folder, 2)
        checkpoint.recover(folder.parent)
        found.append(json.loads((folder / "state.json").read_text()))
        if what == "checkpoint":
            assert checkpoint.read_state(folder)
        left = {path.name for path in folder.parent.iterdir()}
        assert left == {"step_5"}
        if len(acts) <= moment:
            break
    assert found == sorted(found) and found[0] == 1 and moment > 2


@pytest.mark.parametrize("what", ["behavior_logprobs of sample", "gradient norm nan"])
def test_a_number_that_is_not_finite_stops_the_run_and_leaves_the_samples(
        what, micro, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if "norm" in what:
        monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: torch.tensor(math.nan))
    else:
        def broken(sampler, slot, rollout=TransformersSampler._rollout):
            found = rollout(sampler, slot)
            found.logprobs[0] = -math.inf
            return found
        monkeypatch.setattr(TransformersSampler, "_rollout", broken)
        monkeypatch.setattr(scalerl.Run, "self_test", lambda run: None)
    assert scalerl.main(arguments(micro, name="n", checkpoint_every=1)) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.match(r"scalerl.py: step \d: step \d stopped: ", error) and what in error
    assert "; its samples are in runs/n/bad_step.jsonl; " in error
    assert len(lines(tmp_path / "runs" / "n", "bad_step.jsonl")) == 16


def test_a_disk_that_is_full_leaves_the_checkpoint_before_whole_and_says_so(reference, micro,
                                                                            tmp_path):
    shutil.copytree(reference.parent.parent, tmp_path, dirs_exist_ok=True)
    checkpoints, log = tmp_path / "runs" / "r" / "checkpoints", tmp_path / "log"
    words = [*arguments(micro, name="r", steps=10, eval_every=100), "--resume"]
    process = SPAWN.Process(target=main_in, args=(tmp_path, words, log, 60_000), daemon=True)
    process.start()
    process.join(120)
    assert process.exitcode == 1
    last = log.read_text().strip().splitlines()[-1]
    assert "checkpoint runs/r/checkpoints/step_9 could not be written (rank 0: " in last
    assert last.endswith("; --resume goes on from runs/r/checkpoints/step_8")
    assert "Traceback" not in log.read_text()
    assert sorted(path.name for path in checkpoints.iterdir()) == ["best", "step_6", "step_8"]
    assert checkpoint.read_state(checkpoints / "step_8")["step"] == 8


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_or_sigterm_writes_a_checkpoint_first_and_resume_goes_on(number, micro, tmp_path):
    command = [sys.executable, ROOT / "scalerl.py", *arguments(micro, name="c", steps=500)]
    process = subprocess.Popen(list(map(str, command)), cwd=tmp_path, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
    for line in process.stdout:
        if line.startswith("step    4"):
            process.send_signal(number)
            if number == signal.SIGTERM:        # from a scheduler, and through the launcher
                process.send_signal(signal.SIGINT)
            break
    rest = process.stdout.read()
    assert process.wait(timeout=120) in (128 + number, 130) and "the checkpoint is written" in rest
    last = lines(tmp_path / "runs" / "c")[-1]["step"]
    assert (tmp_path / "runs" / "c" / "checkpoints" / f"step_{last}").exists()
    # The run knows its own settings; some may change, the ones built into its state may not.
    command = [ROOT / "scalerl.py", "--name", "c", "--resume"]
    refused = run_command([*command, "--seed", "5"], tmp_path)
    assert refused.returncode == 2 and "seed = 5: runs/c was made with 0" in refused.stderr
    done = run_command([*command, "--steps", str(last + 1)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert lines(tmp_path / "runs" / "c")[-1]["step"] == last + 1


def test_a_checkpoint_of_another_kind_of_device_is_refused_in_a_sentence(reference, micro, tmp_path,
                                                                         monkeypatch, capsys):
    """A GPU's random numbers have a state of 16 bytes, which no CPU can go on from."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(reference, tmp_path / "runs" / reference.name)
    load = scalerl.checkpoint.load_tensors

    def other(folder, name):
        return load(folder, name) | ({"generator": torch.zeros(16, dtype=torch.uint8)}
                                     if name == "sampler" else {})
    monkeypatch.setattr(scalerl.checkpoint, "load_tensors", other)
    words = ["--name", reference.name, "--steps", "60", "--resume"]
    assert scalerl.main(words) == 2
    error = capsys.readouterr().err
    assert "its sampler's random numbers" in error and len(error.splitlines()) == 1


def test_a_run_that_another_process_trains_is_left_alone(reference, micro, tmp_path, monkeypatch,
                                                         capsys):
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(reference, tmp_path / "runs" / reference.name)
    with open(folder / ".lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert scalerl.main(arguments(micro, name=reference.name) + ["--resume"]) == 2
    assert "another process is training it" in capsys.readouterr().err
    assert lines(folder) == lines(reference)


def test_a_second_ctrl_c_stops_at_once_in_a_sentence(micro, tmp_path, monkeypatch, capsys):
    def interrupted(run):
        raise KeyboardInterrupt
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scalerl.Run, "generate", interrupted)
    assert scalerl.main(arguments(micro, name="k")) == 130
    assert "step 1: stopped at once; there is no checkpoint yet" in capsys.readouterr().err


def test_ctrl_c_while_a_run_is_still_being_built_is_one_sentence(micro, monkeypatch, capsys):
    """Servers take a minute to come up: the moment in which people change their minds."""
    def interrupted(*_):
        raise KeyboardInterrupt
    monkeypatch.setattr(scalerl, "Run", interrupted)
    assert scalerl.main(arguments(micro, name="i")) == 130
    assert capsys.readouterr().err == ("scalerl.py: interrupted before the run had begun: nothing "
                                       "to save\n")


def test_when_the_servers_are_gone_for_good_the_run_ends_with_a_checkpoint(
        reference, micro, tmp_path, monkeypatch, capsys):
    """At the deadline the client gives up in the middle of a step's samples: no work is lost, and
    what it has cost is counted."""
    monkeypatch.chdir(tmp_path)
    step = scalerl.TransformersSampler.step

    def gone(self):
        if self.version == 3:
            raise scalerl.ServerError("no server answers")
        return step(self)
    with monkeypatch.context() as patch:
        patch.setattr(scalerl.TransformersSampler, "step", gone)
        assert scalerl.main(arguments(micro, name="g")) == 1
    folder = tmp_path / "runs" / "g"
    last = lines(folder)[-1]["step"]
    assert f"no server answers; --resume goes on from runs/g/checkpoints/step_{last}" \
        in capsys.readouterr().err
    assert 0 < last < 8 and (folder / "checkpoints" / f"step_{last}").exists()
    assert scalerl.main(arguments(micro, name="g") + ["--resume"]) == 0
    assert without_time(lines(folder)) == without_time(lines(reference))


@pytest.mark.parametrize("how", ["gone", "ctrl-c"])
@pytest.mark.parametrize("where, step", [("self_test", 0), ("evaluate", 0), ("evaluate", 4)])
def test_a_run_that_ends_in_an_evaluation_on_servers_makes_it_up_when_resumed(
        how, where, step, reference, micro, tmp_path, monkeypatch, capsys):
    """Whether the servers are gone or somebody has had enough: then not a step more is decoded.
    Resumed, its logs are those of the run that was never ended, no evaluation left out; nor is it
    there twice if the resumed run dies before its next checkpoint."""
    monkeypatch.chdir(tmp_path)
    decode, whole, calls = TransformersSampler.step, getattr(scalerl.Run, where), []

    def broken(run):
        def step_of(sampler):
            calls.append(1)
            if len(calls) == 2 and how == "gone":
                raise scalerl.ServerError("no server answers")
            if len(calls) == 2:
                run.stop, run.fleet = signal.SIGINT, SimpleNamespace(close=lambda: None)
            return decode(sampler)
        with monkeypatch.context() as patch:
            if run.step == step:
                patch.setattr(TransformersSampler, "step", step_of)
            whole(run)
    with monkeypatch.context() as patch:
        patch.setattr(scalerl.Run, where, broken)
        assert scalerl.main(arguments(micro, name="r")) == (1 if how == "gone" else 130)
    assert len(calls) == 2
    said = "".join(capsys.readouterr())
    if step:
        assert ("goes on from runs/r/checkpoints/step_4" if how == "gone"
                else "the checkpoint is written") in said
    else:
        assert "--resume starts" in said and not list(tmp_path.rglob("step_*"))
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(scalerl.Run, "generate", lambda run: sys.exit())      # as a kill: no word
        scalerl.main(arguments(micro, name="r") + ["--resume"])
    assert scalerl.main(arguments(micro, name="r") + ["--resume"]) == 0
    for name in ("metrics.jsonl", "evals.jsonl", "groups.jsonl"):
        assert without_time(lines(tmp_path / "runs" / "r", name)) == without_time(
            lines(reference, name)), name


def test_when_every_prompt_has_retired_the_run_ends_well(micro, tmp_path):
    done = start(micro, tmp_path, name="e", retire_at=0.0001, steps=60,
                 task_options='{"size": 8, "min_digits": 2, "max_digits": 2}', eval_every=100)
    assert done.returncode == 0, done.stderr
    assert "every prompt has retired" in done.stdout
    log = lines(tmp_path / "runs" / "e")
    assert log[-1]["step"] < 60
    # Nor does --resume train it again: its end is a checkpoint, whatever checkpoint_every says.
    again = run_command([ROOT / "scalerl.py", "--name", "e", "--resume"], tmp_path)
    assert again.returncode == 0 and "every prompt has retired" in again.stdout
    assert lines(tmp_path / "runs" / "e") == log


@pytest.mark.parametrize("change, trace", [
    ({"off_policy": "pipeline-0"}, lambda r: r.get("lag/max", 0) == 0),
    ({"off_policy": "ppo-2"}, lambda r: r.get("lag/max", 0) <= 1),
    ({"behavior": "recomputed"}, lambda r: r.get("ratio/max", 1) == r.get("ratio/min", 1) == 1),
    ({"interrupt_phrase": ""}, lambda r: r["completions/interrupted_frac"] == 0),
    ({"zero_variance_filter": "false"}, lambda r: r["prompts/trained"] == 4),
    ({"retire_at": 1.5}, lambda r: r["curriculum/retired"] == 0),
    ({"length_penalty": 20},
     lambda r: not (r["reward/mean"] + 1) / 2 == pytest.approx(r["pass_rate"])),
    ({"overlong_filter": "true"}, None),
    ({"loss": "grpo", "aggregation": "sample", "advantage_norm": "prompt"}, None),
    ({"loss": "gspo", "eps_low": 1e-3, "eps_high": 1e-3, "aggregation": "token",
      "advantage_norm": "none"}, None),
    ({"head_fp32": "false"}, None),
    ({"dtype": "bfloat16"}, None),
], ids=lambda value: next(iter(value.items())) if isinstance(value, dict) else "")
def test_each_part_of_the_recipe_is_one_setting_that_swaps_it(change, trace, micro, tmp_path,
                                                              reference, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = arguments(micro, **{"name": "s", "steps": 4, "eval_prompts": 2} | change)
    assert scalerl.main(words) == 0
    records = lines(tmp_path / "runs" / "s")[1:]
    assert len(records) == 4 and all(math.isfinite(r["reward/mean"]) for r in records)
    if trace:
        assert all(trace(r) for r in records)
        assert not all(trace(r) for r in lines(reference)[1:])        # the default does differ


def test_each_task_has_its_own_curve_and_evaluation_sets_are_never_trained_on(micro, tmp_path):
    """A mix of sums and programs, as the paper's math and code, and a further set beside it."""
    sums = [{"question": f"{a}+{b}", "answer": str((a + b) % 10), "kind": "exact"}
            for a in range(10) for b in range(10)]
    tests = UnitTests(("1",), ("2",)).to_json()
    code = [{"question": f"{a}+1", "answer": tests, "kind": "code"} for a in range(30)]
    for name, records in (("sums", sums), ("code", code), ("extra", sums[:25])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    done = start(micro, tmp_path, name="mix", task="sums.jsonl:0.7+code.jsonl:0.3",
                 heldout_prompts=20, eval_tasks="extra.jsonl", eval_samples=3, eval_prompts=20,
                 eval_think_tokens=12, steps=2, unsafe_code="true", task_options="{}")
    assert done.returncode == 0, done.stderr
    assert "are questions of an evaluation set" in done.stderr
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


def test_the_readmes_command_for_a_file_of_ones_own_works_as_written(micro, tmp_path):
    """With another model, and one step: what a reader does second must not fail."""
    readme = (ROOT / "README.md").read_text().replace("\\\n", " ")
    command, = re.findall(r"^\.venv/bin/python (.* my_problems\.jsonl .*)$", readme, re.M)
    example, = re.findall(r"`(\{.*\})`, some more than are held\s+out", readme)
    (tmp_path / "my_problems.jsonl").write_text("".join(
        json.dumps(json.loads(example) | {"question": f"{json.loads(example)['question']} ({i})"})
        + "\n" for i in range(29)))
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    script, *words = shlex.split(command)
    done = run_command([ROOT / script, *words, "--model", micro, "--steps", "1", "--threads", "1"],
                       tmp_path)
    assert done.returncode == 0, done.stderr
    assert lines(tmp_path / "runs" / "mine")[0]["problems/train"] == 9
    assert "eval/my_problems/mean@8" in lines(tmp_path / "runs" / "mine", "evals.jsonl")[-1]


def test_an_evaluation_says_what_share_of_its_marks_could_not_be_given(monkeypatch):
    """A timeout is a -1 too: without its share in the log, the curve would sink for no reason."""
    texts = [r"\boxed{2x}", r"\boxed{x+y}", r"\boxed{z}", "7"]
    rollouts = [Rollout(prompt_id=f"m:{i}", group_id=i, prompt_ids=[0], output_ids=[i, 9],
                        logprobs=[-1.0, -1.0], versions=[0, 0], sampled=[True, True],
                        finish_reason="stop", interrupted=False, task="m") for i in range(4)]
    problems = {f"m:{i}": Problem(f"m:{i}", "m", "?", "x+x" if i < 3 else "7")
                for i in range(4)}
    tokenizer = SimpleNamespace(decode=lambda ids: "".join(texts[i] for i in ids))
    sampler = SimpleNamespace(in_flight=4, submit=lambda request: None,
                              generator=SimpleNamespace(manual_seed=lambda seed: None))

    def decode(sampler):
        sampler.in_flight = 0
        return rollouts

    verdicts = iter(("timeout", "error", "correct"))
    monkeypatch.setattr(verify.Worker, "ask", lambda self, key, deadline_s: next(verdicts))
    with Marker(workers=1) as marker:
        result = scalerl.evaluate(sampler, decode, problems, dict.fromkeys(problems, [0]),
                                  tokenizer, marker, 1, 0)
    assert result["eval/m/mean@1"] == 0.5
    assert result["eval/verifier/timeout_frac"] == result["eval/verifier/error_frac"] == 0.25


@pytest.mark.parametrize("n, correct, k", [(5, 2, 3), (7, 0, 4), (6, 6, 1), (6, 4, 3), (8, 1, 8)])
def test_pass_at_k_counts_the_subsets_that_hold_a_right_sample(n, correct, k):
    """The naive 1 - (1 - correct/n)**k draws with replacement, and is too low."""
    samples = [True] * correct + [False] * (n - correct)
    subsets = list(itertools.combinations(samples, k))
    expected = sum(map(any, subsets)) / len(subsets)
    assert scalerl.pass_at_k(n, correct, k) == pytest.approx(expected)
    assert 1 - (1 - correct / n) ** k <= expected + 1e-12


def test_long_prompts_are_left_out_and_counted_when_told_so(micro, tmp_path, monkeypatch, capsys):
    """A question without its end cannot be answered, so none is cut; and none goes in silence."""
    monkeypatch.chdir(tmp_path)
    words = arguments(micro, name="long", prompt_tokens=12)
    whole = scalerl.Run(parse(arguments(micro, name="whole"))[0], False).questions
    limit = sorted(map(len, whole.prompts.values()))[len(whole.prompts) // 2]
    with pytest.raises(scalerl.ConfigError, match=r'none is cut .* long_prompts = "skip"'):
        scalerl.Run(parse([*words, "--prompt-tokens", str(limit)])[0], False)
    capsys.readouterr()
    run = scalerl.Run(parse(
        [*words, "--prompt-tokens", str(limit), "--long-prompts", "skip"])[0], False).questions
    long = [i for i, ids in whole.prompts.items() if len(ids) > limit]
    assert f"{len(long)} of {len(whole.prompts)} problems are left out" in capsys.readouterr().err
    assert run.counts["problems/too_long"] == len(long)
    assert set(run.train) == set(whole.train) - set(long) and long
    assert max(len(run.prompts[i]) for i in (*run.train, *run.heldout)) == limit
    assert run.prompt_tokens == limit


def test_thinking_that_the_prompt_has_opened_is_still_thinking():
    """Some templates end the prompt with <think>: a text that never closes it has no answer."""
    tokenizer = SimpleNamespace(decode=lambda ids: "".join(map(chr, ids)))
    problems = {"p": SimpleNamespace(answer="7", kind="math")}
    def reward(prompt, output, tags):
        rollout = SimpleNamespace(
            prompt_ids=tuple(map(ord, prompt)), output_ids=[*map(ord, output), 0], prompt_id="p",
            finish_reason="stop")
        with Marker(think_tags=tags) as marker:
            return scalerl.mark([rollout], problems, tokenizer, marker)[0][0]
    usual, own = ("<think>", "</think>"), ("[r]", "[/r]")
    assert reward("3+4?", "7", usual) == 1
    assert reward("3+4?<think>\n", "7", usual) == -1
    assert reward("3+4?<think>\n", "8</think>7", usual) == 1
    assert reward("3+4?[r]", "7", own) == -1
    assert reward("3+4?[r]", "8[/r]7", own) == 1
    assert reward("3+4?", "8[/r]7</think>", own) == 1      # another model's tag is only a text


def test_a_run_stopped_in_its_first_evaluation_does_not_repeat_it(micro, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = arguments(micro, name="s", steps=2, instruction="Think \U0001f600 \"now\":")
    self_test = scalerl.Run.self_test

    def stop(run):
        self_test(run)
        run.stop = signal.SIGTERM
    monkeypatch.setattr(scalerl.Run, "self_test", stop)
    assert scalerl.main(words) == 143
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert scalerl.main([*words, "--resume"]) == 0
    folder = tmp_path / "runs" / "s"
    assert [r["step"] for r in lines(folder, "metrics.jsonl")] == [0, 1, 2]
    assert [r["step"] for r in lines(folder, "evals.jsonl")] == [0, 2]


def test_a_tracker_gets_what_the_folder_gets(micro, tmp_path):
    """TensorBoard's files hold every evaluation of evals.jsonl, at its step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    done = start(micro, tmp_path, name="tracked", log_with="tensorboard", steps=4)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "tracked"
    events = [path for path in folder.rglob("events.out.tfevents.*")]
    found, texts = {}, []
    for path in events:
        log = EventAccumulator(str(path.parent))
        log.Reload()
        texts += [e.tensor_proto.string_val[0].decode() for tag in log.Tags()["tensors"]
                  if tag.startswith("samples") for e in log.Tensors(tag)]
        for tag in log.Tags()["scalars"]:
            found.setdefault(tag, {}).update({e.step: e.value for e in log.Scalars(tag)})
    shown = [r for r in lines(folder, "samples.jsonl") if r["step"] == 4]
    assert shown and all(r["prompt_id"] in texts[-1] for r in shown)
    assert "| --- |" in texts[-1] and "&lt;/think&gt;" in texts[-1] and "</think>" not in texts[-1]
    for file, column in (("evals.jsonl", "eval/toy/mean@2"), ("metrics.jsonl", "pass_rate")):
        ours = {r["step"]: r[column] for r in lines(folder, file) if column in r}
        assert len(ours) >= 2 and found[column] == pytest.approx(ours)


def test_samples_are_a_table_where_the_tracker_has_tables():
    """As Markdown elsewhere: a cell with a bar or a line break must not break its row."""
    tables, texts = [], []
    rows = [{"step": 3, "output": "a|b\n<think>"}, {"step": 3, "output": "c"}]
    run_folder.track_samples([
        SimpleNamespace(log_table=lambda name, **table: tables.append((name, table))),
        SimpleNamespace(log=lambda values, step: texts.append((values["samples"], step)))], rows, 3)
    assert tables == [("samples", {"columns": ["step", "output"], "step": 3,
                                   "data": [["3", "a|b\n<think>"], ["3", "c"]]})]
    (text, step), = texts
    assert step == 3 and [line.count("|") for line in text.splitlines()] == [3] * 4
    assert html.unescape(text.splitlines()[2]) == "| 3 | a|b<br><think> |"


@pytest.mark.parametrize("how", ["stopped", "failed"])
def test_a_tracker_ends_however_the_run_does(how, micro, tmp_path, monkeypatch):
    """wandb and trackio send in the background: unless they are ended, the last lines are lost."""
    monkeypatch.chdir(tmp_path)
    ended, train_on = [], scalerl.Run.train_on
    tracker = SimpleNamespace(trackers=[], log=lambda *_, **__: None,
                              end_training=lambda: ended.append(how))
    monkeypatch.setattr(run_folder.RunFolder, "track",
                        lambda folder: setattr(folder, "tracker", tracker))

    def end(run, groups):
        train_on(run, groups)
        run.stop = signal.SIGINT
        if how == "failed":
            raise RuntimeError("the disk is on fire")
    monkeypatch.setattr(scalerl.Run, "train_on", end)
    words = arguments(micro, name="t", log_with="tensorboard")
    assert scalerl.main(words) == (1 if how == "failed" else 130)
    assert ended == [how]


def test_the_optimizer_is_the_papers_adamw_and_holds_every_setting_of_it(llama, seed):
    """Its epsilon is not torch's 1e-8, beside which the square root of a small gradient's second
    moment would vanish; betas are ours."""
    def held(**settings):
        trainer = scalerl.Trainer.__new__(scalerl.Trainer)
        trainer.model, trainer.ranks, trainer.device = packed_copy(llama), Ranks(), "cpu"
        trainer.config, trainer.dtype = Config(model="x", **settings), torch.float32
        trainer.prepare()
        group, = trainer.optimizer.param_groups
        assert type(trainer.optimizer) is torch.optim.AdamW
        return (group["lr"], *group["betas"], group["eps"], group["weight_decay"])

    assert held() == (5e-7, 0.9, 0.95, 1e-15, 0.01) and Config(model="x").warmup_steps == 100
    rng = random.Random(seed)
    fresh = {name: rng.random() for name in ("lr", "beta1", "beta2", "adam_eps", "weight_decay")}
    assert held(**fresh) == tuple(fresh.values())


def test_device_hours_are_the_steps_seconds_on_all_devices_and_no_evaluations(llama, seed,
                                                                              monkeypatch):
    """The x of the curve, by a clock that this test plays: 11 s to generate, 3 to mark, 50 to train
    and 7 to push, twice, on 6 devices; what passes between two steps is not counted."""
    spent = [0.0]
    takes = lambda seconds, result=None: lambda *_: spent.append(seconds) or result # noqa: E731
    monkeypatch.setattr(scalerl, "time", SimpleNamespace(perf_counter=lambda: sum(spent)))
    groups = [scalerl.Group(i, "p", 0, 2, rollouts_of(1, 2, random.Random(seed))) for i in range(3)]
    nothing = lambda *_: {}                                                         # noqa: E731
    run = SimpleNamespace(
        config=Config(model="x", samples_per_prompt=2), step=0, version=3, k=8, fleet=None,
        compute=scalerl.Compute(llama, 6, "gpu"), counters=Counter(), heed_stop=nothing,
        admit=takes(11), pacer=SimpleNamespace(take=lambda version: groups), sampler=None,
        reward=takes(3, (torch.zeros(3, 2), {})), push=takes(7),
        take_step=takes(50, ({"optimizer_step": 0, "tokens/trained": 5}, [])),
        run_numbers=nothing, samples=nothing,
        folder=SimpleNamespace(append=nothing, append_samples=nothing))
    for _ in range(2):
        spent.append(1000.0)                                    # an evaluation, perhaps
        scalerl.Run.train_on(run, scalerl.Run.generate(run))
    assert run.record["compute/gpu_hours"] == pytest.approx(2 * 6 * (11 + 3 + 50 + 7) / 3600)
