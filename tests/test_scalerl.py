"""The parts of the loop, each by itself: curriculum, pacers, the step's batch, trainer, evaluation;
and how wrong input is refused. The loop itself is in test_run.py."""

import copy
import inspect
import itertools
import json
import math
import os
import random
import shutil
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from conftest import SMALL, packed_copy, plain_logprobs, rollouts_of

import scalerl
from artifacts.step_log import log_evaluation, pass_at_k
from command.main import main
from config import Config
from engines.packed import micro_batches
from loss import policy_loss
from sampler import Rollout
from scalerl import (Curriculum, PipelinePacer, Policy, PPOPacer, Trainer, effective_batch,
                     mean_at_k)
from scaleout.team import Alone
from tasks import Problem

# ---------------------------------------------------------------------------------------------
# Curriculum


def test_an_epoch_visits_every_prompt_once_in_a_new_order():
    curriculum = Curriculum([f"p{i}" for i in range(23)], 0.9, seed=1)
    epochs = [[curriculum.next() for _ in range(23)] for _ in range(3)]
    assert all(sorted(e) == sorted(epochs[0]) for e in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_order_depends_on_the_seed_and_on_nothing_else(seed):
    def order(seed):
        curriculum = Curriculum([f"p{i}" for i in range(23)], 0.9, seed)
        random.random()
        return [curriculum.next() for _ in range(46)]
    assert order(seed) == order(seed) != order(seed + 1)


def test_a_learned_prompt_retires_from_the_next_epoch_on_and_the_end_is_graceful():
    """0.9 is reached, not passed: 9 of 10 retires, 17 of 19 does not. All samples count, so one
    lucky group is not enough; and when nobody is left the answer is None, not a crash."""
    curriculum = Curriculum(["a", "b", "c"], 0.9, seed=0)
    first = curriculum.next()
    curriculum.record("a", 9, 10)
    curriculum.record("b", 8, 10)
    curriculum.record("b", 9, 9)
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


def test_three_seeds_have_nine_different_orders_in_three_epochs():
    """An order made from seed + epoch would give seed 1 the order that seed 0 has an epoch later:
    two runs that should be independent would ask the same prompts."""
    orders = set()
    for seed in range(3):
        curriculum = Curriculum([f"p{i}" for i in range(23)], 0.9, seed)
        orders |= {tuple(curriculum.next() for _ in range(23)) for _ in range(3)}
    assert len(orders) == 9


# ---------------------------------------------------------------------------------------------
# Pacer


def simulate(pacer_class, k, P, rng, steps=40, G=2):
    """Groups finish in a random order that has nothing to do with their start; some linger. Now
    and then the run ends, and a new pacer goes on from the old one's state."""
    pacer, version, lags, waited = pacer_class(k, P), 0, [], 0
    sample = Rollout("p", 0, (1, 2), [3], [-0.5], [0], [True], "stop", False)
    while version < steps:
        if rng.random() < 0.05:
            old, pacer = pacer, pacer_class(k, P)
            vars(pacer).update(copy.deepcopy(vars(old)))
        while pacer.may_admit():
            pacer.admit(f"p{pacer.admitted}", version, G)
        assert len(pacer.groups) <= (k + 1) * P
        taken = pacer.take(version)
        if taken is None:
            waited += 1
            assert waited < 100_000, "deadlock"
            open_groups = [g for g in pacer.groups.values() if not g.finished]
            rng.choice(open_groups).rollouts.append(sample)
            continue
        assert len(taken) == P and all(g.rollouts == [sample] * G for g in taken)
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
        lags, pacer = simulate(PipelinePacer, k, P, rng)
        assert max(lags) <= k
        assert pacer.admitted == len(lags) + len(pacer.groups)
        if k > 1 and P > 1:
            assert max(lags) > 0                    # it does run ahead


@pytest.mark.parametrize("k", [1, 2, 5])
def test_ppo_generates_k_steps_with_frozen_weights_then_takes_k_steps(k, seed):
    lags, _ = simulate(PPOPacer, k, 3, random.Random(seed), steps=4 * k)
    assert lags == [lag for _ in range(4) for lag in range(k) for _ in range(3)]


def test_the_trainer_waits_for_a_group_that_would_become_too_old():
    """k = 1, P = 1: group 0 lingers while group 1 is done. Taking group 1 is allowed at version
    0; at version 1 group 0 is at its last chance, and the trainer must wait for it."""
    pacer = PipelinePacer(1, 1)
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
    pacer = PipelinePacer(2, 1)
    slow, slower, quick = (pacer.admit(p, 0, 1) for p in "abc")
    quick.rollouts.append(None)
    assert pacer.take(0) == [quick]
    pacer.admit("d", 1, 1).rollouts.append(None)
    assert pacer.take(1) is None
    slow.rollouts.append(None)
    assert pacer.take(1) == [slow]


def test_ppo_trains_on_a_last_round_that_is_not_full_when_the_prompts_have_run_out():
    """k = 2, P = 2: three groups of four, then no more prompts. A step is two of them."""
    pacer = PPOPacer(2, 2)
    groups = [pacer.admit(p, 0, 1) for p in "abc"]
    for group in groups:
        group.rollouts.append(None)
    assert pacer.take(0) is None and pacer.may_admit()
    pacer.no_more_prompts()
    assert pacer.take(0) == groups[:2]
    assert pacer.take(1) is None                        # one group is no step


def test_ppo_takes_no_step_before_its_whole_round_has_finished():
    """A step would move the weights under the groups that are still generated."""
    pacer = PPOPacer(2, 1)
    groups = [pacer.admit(p, 0, 1) for p in "ab"]
    groups[0].rollouts.append(None)
    assert pacer.take(0) is None
    groups[1].rollouts.append(None)
    assert [pacer.take(version) for version in (0, 1)] == [groups[:1], groups[1:]]


def test_groups_given_back_by_a_step_that_was_stopped_are_the_first_again():
    """`RunFolder.bad_step` puts them behind the others, and they have the earliest deadlines."""
    pacer = PipelinePacer(2, 1)
    old, young, younger = (pacer.admit(p, version, 1) for version, p in enumerate("abc"))
    pacer.groups[old.group_id] = pacer.groups.pop(old.group_id)
    young.rollouts.append(None)
    assert pacer.leaves_enough_time([young], 1) and not pacer.leaves_enough_time([young], 2)
    old.rollouts.append(None)
    assert pacer.take(1) == [old]


# ---------------------------------------------------------------------------------------------
# The step's batch, and one step of the trainer


def test_groups_with_equal_rewards_leave_the_batch_and_are_counted():
    """Among them one whose rewards differ by a length penalty alone."""
    rollouts = [f"group {p}, sample {i}" for p in range(4) for i in range(3)]
    rewards = torch.tensor([[1., 0, -1], [1, 1, 1], [-1, -1, -1], [0.25, -1, 0.5]])
    kept, kept_rewards, log = effective_batch(rollouts, rewards, Config(model="x"))
    assert kept == rollouts[:3] + rollouts[9:]
    assert torch.equal(kept_rewards, rewards[[0, 3]])
    assert log.pop("reward/std") == pytest.approx(rewards.flatten().std().item())
    assert log == pytest.approx({
        "reward/mean": -0.25 / 12, "frac_reward_zero_std": 0.5, "prompts/consumed": 4,
        "prompts/trained": 2})
    kept, kept_rewards, log = effective_batch(
        rollouts, rewards, Config(model="x", zero_variance_filter=False))
    assert kept == rollouts and torch.equal(kept_rewards, rewards)
    assert log["frac_reward_zero_std"] == 0.5 and log["prompts/trained"] == 4


def test_micro_batches_hold_every_sample_once_within_the_budget(seed):
    rng = random.Random(seed)
    rollouts = rollouts_of(7, 5, rng)
    batches = micro_batches(rollouts, 60)
    assert sorted(i for batch in batches for i in batch) == list(range(35)) and len(batches) > 3
    for batch in batches:
        prompts = {rollouts[i].group_id: len(rollouts[i].prompt_ids) for i in batch}
        assert sum(prompts.values()) + sum(len(rollouts[i].output_ids) for i in batch) <= 60
    assert micro_batches(rollouts, 1) and all(len(b) == 1 for b in micro_batches(rollouts, 1))


def trainer_of(model, config, optimizer):
    """A Trainer of one process around a model that is there already."""
    trainer = Trainer.__new__(Trainer)
    trainer.config, trainer.team = config, Alone(config)
    trainer.model, trainer.device = model, "cpu"
    trainer.team.version = 3
    trainer.policy = Policy(model, temperature=config.temperature, head_fp32=config.head_fp32)
    trainer.optimizer = optimizer
    return trainer


def take_step(model, rollouts, rewards, **settings):
    """Gradients and log of one step without moving the weights (learning rate 0, no clipping)."""
    config = Config(model="x", lr=1e-30, grad_clip=1e9, warmup_steps=0, **settings)
    seen = {}
    optimizer = SimpleNamespace(param_groups=[{}], zero_grad=lambda set_to_none: None)
    optimizer.step = lambda: seen.update({n: p.grad.clone() for n, p in model.named_parameters()})
    model.zero_grad()
    batch, batch_rewards, log = effective_batch(rollouts, rewards, config)
    stepped, trained = trainer_of(model, config, optimizer).update(batch, batch_rewards, 3)
    assert stepped == bool(seen)
    log |= trained | {"optimizer_step": stepped}
    assert log["tokens/trained"] == sum(sum(r.sampled) for r in batch) or config.overlong_filter
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
    average over sampled tokens, the capped ratio against the recorded log-prob; no gradient of
    truncated samples, which stay in the std."""
    rollouts = rollouts_of(4, 3, random.Random(seed))
    assert rollouts[8].finish_reason == "length"        # of a group that stays
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
        tokens = sum(sum(r.sampled) for r in group if r.finish_reason == "stop")
        for rollout, a in zip(group, centered[p]):
            ids = [*rollout.prompt_ids, *rollout.output_ids]
            logprobs = llama(torch.tensor([ids])).logits[0].log_softmax(-1)
            for t, token in enumerate(rollout.output_ids):
                if rollout.sampled[t] and rollout.finish_reason == "stop":
                    logprob = logprobs[len(rollout.prompt_ids) + t - 1, token]
                    ratio = min(math.exp(logprob.item() - rollout.behavior_logprobs[t]), 2.0)
                    objective = objective + ratio * a / std * logprob / tokens / len(kept)
    (-objective).backward()
    for name, parameter in llama.named_parameters():
        error = (ours[name] - parameter.grad).norm() / parameter.grad.norm()
        assert error < 1e-3, f"{name}: {error}"


@pytest.mark.parametrize("base, change", [
    *(({}, change) for change in (
        {"loss": "grpo"}, {"loss": "dapo"}, {"loss": "gspo"}, {"loss": "reinforce"},
        {"loss": "dppo"}, {"loss": "cispo_masked"}, {"advantage_norm": "mean"},
        {"behavior": "recomputed"}, {"eps_max": 1.5}, {"aggregation": "sample"},
        {"aggregation": "token"}, {"advantage_norm": "prompt"}, {"advantage_norm": "none"},
        {"temperature": 0.7}, {"head_fp32": False})),
    *(({"loss": loss}, clip) for loss in ("grpo", "dapo")
      for clip in ({"eps_low": 1.0}, {"eps_high": 1e20}))], ids=str)
def test_every_setting_of_the_objective_reaches_the_gradient(base, change, llama, seed):
    """That each is right is shown in test_loss.py; here, that none is lost on the way."""
    rollouts = rollouts_of(3, 4, random.Random(seed))
    rollouts[0].behavior_logprobs[0] = -30.0    # of a good sample: a ratio above every bound
    rewards = torch.tensor([[1., -1, -1, -1], [1, 1, -1, -1], [-1, 1, 1, 1]])
    default, _ = take_step(packed_copy(llama), rollouts, rewards, **base)
    changed, _ = take_step(packed_copy(llama), rollouts, rewards, **base | change)
    moved = max((default[name] - changed[name]).norm() / default[name].norm() for name in default)
    assert moved > 1e-4, moved


def test_an_update_gives_the_loss_every_setting_that_it_takes(llama, seed, monkeypatch):
    """A coefficient that is forgotten there trains with its default, whatever the config says."""
    names = {*inspect.signature(policy_loss).parameters} & {*vars(Config())}
    given, real = {}, scalerl.policy_loss

    def spy(*tensors, **options):
        given.update(options)
        return real(*tensors, **options)
    monkeypatch.setattr(scalerl, "policy_loss", spy)
    forward, given_to_policy = Policy.forward, []
    monkeypatch.setattr(Policy, "forward", lambda self, rollouts: given_to_policy.append(rollouts)
                        or forward(self, rollouts))
    take_step(packed_copy(llama), rollouts_of(2, 2, random.Random(seed)),
              torch.tensor([[1., -1], [-1, 1]]), eps_max=3.5)
    assert names <= {*given} and len(names) >= 4 and given["eps_max"] == 3.5
    # FSDP2's hooks walk a list, and each token of each sample in it: not a deque.
    assert given_to_policy and not any(isinstance(x, (list, tuple)) for x in given_to_policy)


def test_numbers_by_lag_are_about_tokens_and_not_about_samples(llama, seed):
    """The tokens of one sample come from several versions, so they have several lags."""
    rollouts = rollouts_of(3, 4, random.Random(seed))
    rollouts[0].versions[0], rollouts[0].versions[-1], rollouts[0].sampled[-1] = 0, 2, True
    rewards = torch.tensor([[1., -1, -1, -1], [1, 1, -1, -1], [-1, 1, 1, 1]])
    _, log = take_step(packed_copy(llama), rollouts, rewards, aggregation="token",
                       overlong_filter=False)
    ratios = {}
    for r in rollouts:
        for ours, theirs, version, sampled in zip(
                plain_logprobs(llama, r).tolist(), r.behavior_logprobs, r.versions, r.sampled):
            if sampled:
                ratios.setdefault(f"ratio/mean/lag_{3 - version}", []).append(
                    math.exp(ours - theirs))
    assert {name: x for name, x in log.items() if name.startswith("ratio/mean/")} == pytest.approx(
        {name: sum(of_lag) / len(of_lag) for name, of_lag in ratios.items()}, rel=1e-3)


def test_the_learning_rate_warms_up_and_the_gradient_is_clipped(llama, seed):
    rollouts, rewards = rollouts_of(2, 2, random.Random(seed)), torch.tensor([[1., -1], [-1, 1]])
    config = Config(model="x", lr=8e-4, warmup_steps=5, grad_clip=0.01)
    model, rates = packed_copy(llama), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for version in (0, 3, 4, 9):
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        _, log = trainer_of(model, config, optimizer).update(rollouts, rewards, version)
        moved = math.sqrt(sum(((p.detach() - before[n]) ** 2).sum().item()
                              for n, p in model.named_parameters()))
        assert log["grad_norm"] > 0.01                       # as it was before the clip
        assert moved == pytest.approx(log["lr"] * 0.01, rel=0.05)
        rates.append(log["lr"])
    assert rates == pytest.approx([8e-4 / 5, 8e-4 * 4 / 5, 8e-4, 8e-4])


def test_each_step_has_a_gradient_of_its_own(llama, seed):
    """Nothing is left over from the step before: the norm is that of a trainer which only sees the
    second batch. With the clip the weights would hide it, they move as far as the learning rate."""
    first, second = (rollouts_of(2, 3, random.Random(seed + i)) for i in (0, 1))
    rewards = torch.tensor([[1., -1, -1], [-1, 1, 1]])
    model = packed_copy(llama)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    twice = trainer_of(model, Config(model="x", lr=0.0), optimizer)
    twice.update(first, rewards, 3)
    _, log = twice.update(second, rewards, 3)
    _, alone = take_step(packed_copy(llama), second, rewards)
    assert log["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-4)


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
    masked, log = take_step(packed_copy(llama), rollouts, rewards)      # the default, the paper's
    assert log["tokens/trained"] == sum(sum(r.sampled) for r in rollouts
                                        if r.finish_reason == "stop") > 0
    for i in (1, 3):
        rollouts[i].sampled = [False] * len(rollouts[i].sampled)
    by_hand, _ = take_step(packed_copy(llama), rollouts, rewards)
    unmasked, _ = take_step(packed_copy(llama), rollouts_of(2, 3, random.Random(seed)), rewards,
                            overlong_filter=False)
    for name, gradient in masked.items():
        torch.testing.assert_close(gradient, by_hand[name])
    assert any((masked[name] - unmasked[name]).norm() > 1e-3 * unmasked[name].norm()
               for name in masked)


def test_interrupted_samples_stay_in_the_step_whatever_the_overlong_filter_does(llama, seed):
    """They have answered within their budget. Only `finish_reason` says that a sample was cut."""
    rollouts, rewards = rollouts_of(2, 3, random.Random(seed)), torch.tensor(
        [[1., -1, -1], [-1, 1, 1]])
    for r in rollouts:
        r.finish_reason, r.interrupted = "stop", True
    _, log = take_step(packed_copy(llama), rollouts, rewards, overlong_filter=True)
    assert log["tokens/trained"] == sum(sum(r.sampled) for r in rollouts) > 0


def test_a_step_whose_samples_are_all_truncated_moves_no_weight_under_the_overlong_filter(
        llama, seed):
    """AdamW would move every weight by its decay and its momentum, with a gradient of zero too."""
    rollouts, rewards = rollouts_of(2, 2, random.Random(seed)), torch.tensor([[1., -1], [-1, 1]])
    config = Config(model="x", lr=1e-2, warmup_steps=0, overlong_filter=True)
    model = packed_copy(llama)
    trainer = trainer_of(model, config, torch.optim.AdamW(model.parameters(), lr=1e-2))
    assert trainer.update(rollouts, rewards, 3)[0] == 1             # with momentum from now on
    before = copy.deepcopy(model.state_dict())
    for r in rollouts:
        r.finish_reason = "length"
    assert trainer.update(rollouts, rewards, 4) == (0, {"tokens/trained": 0})
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


def test_an_infinite_log_prob_in_any_micro_batch_ends_the_step(llama, seed):
    """Of several micro-batches, and not only of the last one, whatever the loss would make of it:
    PPO's clip turns a ratio of 0 into a constant."""
    for loss in ("cispo", "grpo"):
        rollouts = rollouts_of(5, 3, random.Random(seed))
        rollouts[4].behavior_logprobs[0] = -math.inf
        rewards = torch.tensor([[1., -1, -1]] * 5)
        model = packed_copy(llama)
        assert len(micro_batches(rollouts, 40)) > 2
        with pytest.raises(FloatingPointError, match="^version 3: behavior_logprobs of sample"):
            take_step(model, rollouts, rewards, loss=loss, micro_batch_tokens=40)


@pytest.mark.parametrize("what", ["logprobs of sample", "gradient norm nan", "loss nan"])
def test_a_number_that_is_not_finite_stops_the_step_and_the_version_is_named(what, llama, seed,
                                                                             monkeypatch):
    model = packed_copy(llama)
    if "norm" in what:
        monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: torch.tensor(math.nan))
    elif "loss" in what:
        monkeypatch.setattr(scalerl, "merge_stats", lambda stats: {"loss": math.nan})
    else:
        with torch.no_grad():
            model.model.layers[1].mlp.down_proj.weight[0, 0] = torch.inf
    with pytest.raises(FloatingPointError, match=f"^version 3: .*{what}"):
        take_step(model, rollouts_of(2, 2, random.Random(seed)), torch.tensor([[1., -1], [-1, 1]]))


@pytest.fixture
def make_trainer(llama, tmp_path, monkeypatch):
    """A Trainer with these settings, made as command.main makes it, of the weights of `llama`; it
    has no tokenizer."""
    llama.config.save_pretrained(tmp_path / "llama")
    monkeypatch.setattr(scalerl.load, "load_model", lambda *_: (packed_copy(llama), None))

    def make(**settings):
        config = Config(**{"model": str(tmp_path / "llama"), "gpus": 0, "interrupt_phrase": "",
                           "think_min": 5, "think_max": 17, "answer_tokens": 3} | settings)
        return Trainer(config, Alone(config))
    return make


def test_the_optimizer_is_the_papers_adamw_and_holds_every_setting_of_it(make_trainer, llama, seed):
    """Its epsilon is not torch's 1e-8, beside which the square root of a small gradient's second
    moment would vanish; betas are ours."""
    def held(**settings):
        optimizer = make_trainer(**settings).optimizer
        group, = optimizer.param_groups
        assert type(optimizer) is torch.optim.AdamW
        assert sum(p.numel() for p in group["params"]) == llama.num_parameters()
        return (group["lr"], *group["betas"], group["eps"], group["weight_decay"])

    assert held() == (5e-7, 0.9, 0.95, 1e-15, 0.01) and Config(model="x").warmup_steps == 100
    rng = random.Random(seed)
    fresh = {name: rng.random() for name in ("lr", "beta1", "beta2", "adam_eps", "weight_decay")}
    assert held(**fresh) == tuple(fresh.values())


def test_the_policy_computes_in_the_dtype_of_the_settings(make_trainer):
    for dtype in (torch.float32, torch.bfloat16):
        trainer = make_trainer(dtype=str(dtype).removeprefix("torch."))
        assert trainer.policy.dtype == trainer.dtype == dtype


# ---------------------------------------------------------------------------------------------
# Evaluation


def test_an_evaluation_is_the_pass_rate_of_each_task(seed, tmp_path):
    """pass@k by its meaning: the share of all choices of k samples that hold a right one, which
    is unbiased. The naive 1 - (1 - mean)**k draws with replacement, and is too low."""
    rng = random.Random(seed)
    right = {"m": [0, 2, 5, 3], "n": [4, 1, 0]}                  # of 5 samples of each problem
    problems = {f"{task}/{i}": Problem(f"{task}/{i}", task, "?", "7")
                for task, counts in right.items() for i in range(len(counts))}
    samples = [(f"{task}/{i}", 1.0 if n < count else -1.0)
               for task, counts in right.items() for i, count in enumerate(counts)
               for n in range(5)]
    rng.shuffle(samples)
    rollouts = [SimpleNamespace(
        prompt_id=prompt_id, output_ids=[0] * (3 + i),
        finish_reason="length" if i in (2, 3, 11) else "stop")
        for i, (prompt_id, _) in enumerate(samples)]
    correct = Counter(prompt_id for prompt_id, reward in samples if reward > 0)
    means = mean_at_k(correct, problems, 5)
    assert means == pytest.approx({"m": 10 / 20, "n": 5 / 15})

    logged = []

    def append(name, line):
        logged.append((name, line))
        (tmp_path / name).write_text(json.dumps(line) + "\n")
    run = SimpleNamespace(
        config=SimpleNamespace(eval_samples=5, steps=9), step=7,
        problems=SimpleNamespace(heldout=problems), version=6,
        compute=SimpleNamespace(log=lambda: {"compute/flops": 99}),
        sampler=SimpleNamespace(devices=2, log=lambda: {"servers/losses": 4}),
        folder=SimpleNamespace(append=append, path=tmp_path))
    log_evaluation(run, rollouts, correct, means, 5 / 15,
                   {"verifier/error_frac": 0.1, "time/x": 3}, 2.5)
    expected = {"step": 7, "version": 6, "compute/flops": 99, "eval/verifier/error_frac": 0.1,
                "time/eval_s": 2.5, "servers/losses": 4, "held_out": 5 / 15,
                "eval/truncated_frac": 3 / 35, "eval/mean_length": 3 + 34 / 2}
    for task, counts in right.items():
        expected[f"eval/{task}/mean@5"] = sum(counts) / 5 / len(counts)
        for k in (2, 4, 5):
            choices = [list(itertools.combinations([True] * n + [False] * (5 - n), k))
                       for n in counts]
            expected[f"eval/{task}/pass@{k}"] = sum(
                sum(map(any, of_one)) / len(of_one) for of_one in choices) / len(counts)
    (name, line), = logged
    logged_right = {task: line.pop(f"eval/{task}/right@5") for task in right}
    assert logged_right == {task: list(counts) for task, counts in right.items()}
    assert name == "evals.jsonl" and line == pytest.approx(expected)


@pytest.mark.parametrize("n, correct, k", [(5, 2, 3), (7, 0, 4), (6, 6, 1), (6, 4, 3), (8, 1, 8)])
def test_pass_at_k_counts_the_subsets_that_hold_a_right_sample(n, correct, k):
    """The naive 1 - (1 - correct/n)**k draws with replacement, and is too low."""
    samples = [True] * correct + [False] * (n - correct)
    subsets = list(itertools.combinations(samples, k))
    expected = sum(map(any, subsets)) / len(subsets)
    assert pass_at_k(n, correct, k) == pytest.approx(expected)
    assert 1 - (1 - correct / n) ** k <= expected + 1e-12


# ---------------------------------------------------------------------------------------------
# Bad input


# What config.py refuses by itself is in test_config.py; here is what only a run can know.
BAD_INPUT = {
    "zero steps": (["--steps", "0"], "steps = 0: must be above zero"),
    "unknown key": (["--config", "bad.toml"], "bad.toml: unknown key 'epsmax'; --help"),
    "no model": (["--model", "nowhere"], "model = 'nowhere'"),
    "not a model": (["--model", "."], "no folder with config.json"),
    "a model without a tokenizer": (["--model", "mute"], "'mute': cannot be read: no tokenizer in"),
    "a model that was cut off": (["--model", "cut"], "model = 'cut': cannot be read"),
    "unknown task": (["--task", "tic-tac-toe"], "tic-tac-toe"),
    "task with a typo": (["--task", "polaris"], "task 'polaris' is unknown: use toy,"),
    "unknown evaluation": (["--eval-tasks", "aime24"], "task 'aime24' is unknown: use toy,"),
    "two curves of one name": (["--eval-tasks", "toy"], "task and eval_tasks name 'toy' twice"),
    "programs without tests": (["--task-options", "{}", "--task", "code.jsonl"],
                               "no unit tests in 'answer'"),
    "empty task": (["--task", "empty.jsonl"], "empty.jsonl"),
    "gold fails": (["--task", "gold.jsonl"], "gold"),
    "too long": (["--think-max", "500"], "the model has 256"),
    "long prompt": (["--prompt-tokens", "3"], "prompt_tokens = 3"),
    "report": (["--report", "nowhere"], "nothing to report: nowhere"),
    "a GPU that is not there": (["--gpus", "1"], "gpus = 1: torch finds "),
    "GPUs that are not there": (["--gpus", "8", "--engine", "vllm"],
                                "gpus = 8: torch finds 0 here"),
    "servers of two minds": (["--engine", "vllm", "--servers", "1", "--vllm-url",
                              "http://127.0.0.1:1"],
                             "servers = 1: vllm_url names servers that others have started"),
    "an engine that serves nobody": (["--servers", "1"], "servers are vLLM's"),
    "another machine's address": (["--engine", "vllm", "--serve-only", "192.0.2.1"],
                                  "--serve-only 192.0.2.1: give an address of this machine"),
    "run exists": (["--name", "taken"], "runs/taken exists with other settings"),
}
# Off Linux the sentence on the platform comes first.
ON_LINUX = ("GPUs that are not there", "servers of two minds", "an engine that serves nobody",
            "another machine's address")


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_ends_in_one_clear_sentence_and_exit_code_2(case, micro, tmp_path, monkeypatch,
                                                              capsys):
    arguments, sentence = BAD_INPUT[case]
    if case in ON_LINUX and sys.platform != "linux":
        sentence = "Linux"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("epsmax = 4.0\n")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "gold.jsonl").write_text(json.dumps(
        {"question": "Name a number.", "answer": "no number at all"}) + "\n")
    (tmp_path / "code.jsonl").write_text(json.dumps(
        {"question": "Add.", "answer": "3", "kind": "code"}) + "\n")
    if "mute" in arguments:
        (tmp_path / "mute").mkdir()
        shutil.copy(micro / "config.json", tmp_path / "mute")
    if "cut" in arguments:
        shutil.copytree(micro, tmp_path / "cut")
        os.truncate(tmp_path / "cut" / "model.safetensors", 10_000)
    (tmp_path / "runs" / "taken").mkdir(parents=True)
    (tmp_path / "runs" / "taken" / "config.toml").touch()
    (tmp_path / "runs" / "taken" / "metrics.jsonl").touch()
    base = SMALL | {"model": str(micro), "heldout_prompts": 8}
    if "--name" not in arguments:
        base["name"] = "bad"
    if arguments[-1].endswith(".jsonl"):
        base["heldout_prompts"] = 1
    given = {a.lstrip("-").replace("-", "_") for a in arguments}
    words = [w for name, value in base.items() if name not in given
             for w in (f"--{name.replace('_', '-')}", str(value))]
    assert main([*words, *arguments]) == 2
    message = capsys.readouterr().err
    assert sentence in message and message.startswith("scalerl.py: ")
    assert len(message.strip().splitlines()) == 1 and "Traceback" not in message
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["taken"]     # nothing left behind
