"""Training on a group several times is that many steps of ScaleRL, and generation costs most."""

import copy
import random

import torch
from conftest import packed_copy, rollouts_of

import scalerl
from config import Config
from scaleout.team import Alone
from study import reuse


def test_three_uses_are_three_plain_updates_on_the_same_samples(llama, tmp_path, monkeypatch, seed):
    llama.config.save_pretrained(tmp_path)
    config = Config(model=str(tmp_path), gpus=0, interrupt_phrase="", lr=1e-3, steps=40,
                    micro_batch_tokens=10_000, think_min=5, think_max=17, answer_tokens=3)
    rewards, first = torch.tensor([[1.0, -1, 1], [-1, -1, 1]]), copy.deepcopy(llama)
    rollouts = rollouts_of(2, 3, random.Random(seed), version=7)
    found = []
    for kind, times in (scalerl.Trainer, 3), (reuse.ReuseTrainer, 1):
        monkeypatch.setattr(scalerl.load, "load_model", lambda *_: (packed_copy(first), None))
        monkeypatch.setattr(reuse.ReuseTrainer, "uses", 3)
        trainer = kind(config, Alone(config))
        for _ in range(times):
            stepped, log = trainer.update(rollouts, rewards, 7)
        found.append((stepped, log, [p.detach() for p in trainer.policy.model.parameters()]))
    assert found[0][:2] == found[1][:2] and found[0][0] == 1
    for p, q in zip(found[0][2], found[1][2], strict=True):
        assert torch.equal(p, q)
    assert not torch.equal(p, next(reversed([*first.parameters()])))


def test_generation_counts_twelvefold_and_each_use_is_paid(llama, monkeypatch, seed):
    rollouts = rollouts_of(2, 3, random.Random(seed))
    plain = [scalerl.Compute(packed_copy(llama), 1, "cpu") for _ in range(2)]
    plain[0].add_step(rollouts, [], 3, 5, 1.0)
    plain[1].add_step([], rollouts[:3], 3, 5, 1.0)
    monkeypatch.setattr(reuse.ReuseTrainer, "uses", 4)
    ours = reuse.ReuseCompute(packed_copy(llama), 1, "cpu")
    ours.add_step(rollouts, rollouts[:3], 3, 5, 1.0)
    assert ours.flops == 12 * plain[0].flops + 4 * plain[1].flops
    assert ours.tokens == 5
