"""lr × sqrt(ESS) is what study/ess_rate.py changes, and nothing else."""

import copy
import random

import pytest
import torch
from conftest import packed_copy, rollouts_of

import scalerl
from config import Config
from scaleout.team import Alone
from study import ess_rate


def test_a_step_is_the_plain_one_with_its_rate_times_the_root_of_the_ess(
        llama, tmp_path, monkeypatch, seed):
    """One AdamW step from zero moments moves each weight in proportion to its rate (weight decay
    is proportional to it as well). The ESS here is far from 1: log μ are random numbers."""
    llama.config.save_pretrained(tmp_path)
    config = Config(model=str(tmp_path), gpus=0, interrupt_phrase="", lr=1e-3, steps=40,
                    warmup_steps=0, micro_batch_tokens=10_000, think_min=5, think_max=17,
                    answer_tokens=3)
    rewards, first = torch.tensor([[1.0, -1, 1], [-1, -1, 1]]), copy.deepcopy(llama)
    rollouts = rollouts_of(2, 3, random.Random(seed), version=7)
    moves, logs = [], []
    for kind in (scalerl.Trainer, ess_rate.EssTrainer):
        monkeypatch.setattr(scalerl.load, "load_model", lambda *_: (packed_copy(first), None))
        monkeypatch.setattr(scalerl, "merge_stats", ess_rate.MERGE_STATS)
        trainer = kind(config, Alone(config))
        before = [p.detach().clone() for p in trainer.policy.model.parameters()]
        logs.append(trainer.update(rollouts, rewards, 7)[1])
        after = trainer.policy.model.parameters()
        moves.append(torch.cat([(q.detach() - p).flatten().double()
                                for p, q in zip(before, after, strict=True)]))
    assert logs[0] == logs[1]
    ess = logs[0]["ess"]
    assert 0 < ess < 0.98
    ratio = (moves[0] @ moves[1]) / moves[0].square().sum()
    assert ratio.item() == pytest.approx(ess ** 0.5, rel=1e-3)
    torch.testing.assert_close(moves[1], ess ** 0.5 * moves[0], rtol=1e-2, atol=1e-6)
