"""The controls change what a step is rewarded for, and not how an evaluation is graded."""

from types import SimpleNamespace

import pytest
import torch

import scalerl
from artifacts.resume import Stopped
from artifacts.run_folder import RunFolder
from course import random_rewards
from sampler import Group, Rollout
from study import controls

TEXTS = ["1+1=2</think>2", "</think> -17 ", "</think>2 or 3", "no end 2", "a</think>b</think>4",
         "</think>", "</think>5"]


class Letters:
    def decode(self, ids, skip_special_tokens):
        return TEXTS[ids[0]]


def run_of(kind, step, monkeypatch, seed=41):
    monkeypatch.setattr(controls.ControlRun, "kind", kind)
    run = object.__new__(controls.ControlRun)
    run.config = SimpleNamespace(samples_per_prompt=7, think_close="</think>", seed=seed,
                                 length_penalty=0)
    run.problems = SimpleNamespace(train={})
    run.trainer = SimpleNamespace(tokenizer=Letters())
    run.curriculum, run.step = scalerl.Curriculum(["a"], 0.9, 0), step
    run.verifier = SimpleNamespace(rewards=lambda rollouts, *_: ([-1.0] * len(rollouts), {"n": 1}))
    return run


def group():
    found = Group(0, "a", 0, 7)
    found.rollouts = [Rollout("a", 0, [1], [i], [0.0], [0], [True],
                              "length" if i == 6 else "stop", False, "toy") for i in range(7)]
    return found


def test_a_stopped_step_of_coins_takes_from_the_curriculum_what_was_noted(monkeypatch):
    """The course's control took back the coins, where the truth had been noted: "13 of 8"."""
    monkeypatch.setattr(RunFolder, "bad_step", RunFolder.bad_step)
    monkeypatch.setattr(scalerl.Run, "reward", scalerl.Run.reward)
    random_rewards.reward_by_coins()
    run = object.__new__(scalerl.Run)
    run.config = SimpleNamespace(samples_per_prompt=7, length_penalty=0, seed=3)
    run.problems, run.trainer = SimpleNamespace(train={}), SimpleNamespace(tokenizer=None)
    run.curriculum, run.step = scalerl.Curriculum(["a"], 0.9, 0), 5
    run.pacer = SimpleNamespace(groups={}, collecting=False)
    run.verifier = SimpleNamespace(rewards=lambda rollouts, *_: ([1.0] * len(rollouts), {}))
    found = group()
    rollouts, coins, log = run.reward([found])
    assert run.curriculum.history["a"] == [7, 7] and log["pass_rate"] == 1
    assert {*coins.flatten().tolist()} == {-1.0, 1.0}
    with pytest.raises(Stopped), RunFolder.bad_step(None, run, [found], coins, rollouts):
        raise Stopped
    assert run.curriculum.history["a"] == [0, 0]


def test_the_format_alone_is_paid_and_a_truncated_sample_is_not(monkeypatch):
    run = run_of("format", 0, monkeypatch)
    judge = run.verifier
    _, rewards, log = run.reward([group()])
    assert rewards.tolist() == [[1, 1, -1, -1, 1, -1, -1]]
    assert log["pass_rate"] == pytest.approx(3 / 7) and run.curriculum.history["a"] == [3, 7]
    assert run.verifier is judge                # evaluations ask the verifier


def test_the_even_ones_alone_are_paid(monkeypatch):
    assert run_of("even", 0, monkeypatch).reward([group()])[1].tolist() == [
        [1, -1, -1, -1, 1, -1, -1]]


def test_a_coin_is_fair_and_a_resumed_run_tosses_alike(monkeypatch, seed):
    rewards = [run_of("random", step, monkeypatch, seed).reward([group()])[1]
               for step in range(200)]
    again = run_of("random", 150, monkeypatch, seed).reward([group()])[1]
    assert torch.equal(rewards[150], again)
    # Seven coins fall alike in 1 of 128 pairs of steps, so one pair shows nothing.
    assert not all(torch.equal(rewards[0], other) for other in rewards)
    share = (torch.cat(rewards) > 0).float().mean().item()
    assert abs(share - 0.5) < 5 * 0.5 / 1400 ** 0.5


def test_the_right_reward_is_the_verifiers(monkeypatch):
    _, rewards, log = run_of("right", 0, monkeypatch).reward([group()])
    assert (rewards == -1).all() and log["n"] == 1


def test_a_reward_that_fails_leaves_the_verifier_in_its_place(monkeypatch):
    run = run_of("random", 0, monkeypatch)
    judge, found = run.verifier, group()
    run.trainer.tokenizer = None
    with pytest.raises(AttributeError):
        run.reward([found])
    assert run.verifier is judge
