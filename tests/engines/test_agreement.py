"""The test with which each run begins: do sampler and trainer compute alike?"""

import math
from types import SimpleNamespace

import pytest
import torch
from conftest import WORDS, drain
from transformers import LlamaConfig, LlamaForCausalLM

from config import Config
from engines import accept
from engines.agreement import HEALTHY_KL, self_test
from sampler import Interruption, Request, TransformersSampler
from scalerl import Policy


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.9])
def test_a_wrong_temperature_is_seen_where_the_policy_is_nearly_uniform(temperature, seed):
    """An untrained model says nearly the same at every temperature: its KL is far below what a
    healthy run in 16 bits may have. In fp32 both sides agree to rounding, or they are wrong."""
    model = accept.prepare(LlamaForCausalLM(LlamaConfig(
        vocab_size=37, hidden_size=24, intermediate_size=40, num_hidden_layers=2, head_dim=6,
        num_attention_heads=4, num_key_value_heads=2)))
    sampler = TransformersSampler(model, WORDS, Interruption(9, 17, 4), slots=16, prompt_tokens=13,
                                  eos_ids={1}, temperature=temperature)
    policy = torch.no_grad()(Policy(model))
    requests = [Request(i, f"p{i}", tuple(torch.randint(2, 37, (5 + i,)).tolist()), 2)
                for i in range(8)]
    run = SimpleNamespace(
        config=Config(), problems=SimpleNamespace(heldout=dict.fromkeys("abcdefgh")),
        eval_sampler=sampler, answers=lambda *_, **__: drain(sampler, requests),
        trainer=SimpleNamespace(logprobs=lambda rollouts: policy(rollouts)[0], dtype=torch.float32))
    if temperature == 1:
        log = self_test(run)
        assert log["mismatch/fp32_head/mean_abs_dlogp"] < 1e-5
        return
    with pytest.raises(RuntimeError, match=f"healthy is below {HEALTHY_KL}; mean difference 0.0"):
        self_test(run)
    run.config.allow_mismatch = True
    assert self_test(run)["mismatch/fp32_head/kl_k3"] < HEALTHY_KL


@pytest.mark.parametrize("kl, ends", [(0.0145, False), (0.0155, True)])
def test_a_kl_above_015_ends_a_run_in_16_bits(kl, ends, seed):
    """k3 = e^d - 1 - d, so that d near sqrt(2 kl) gives it: found here by Newton's steps."""
    distance = math.sqrt(2 * kl)
    for _ in range(20):
        distance -= (math.expm1(distance) - distance - kl) / math.expm1(distance)
    rollout = SimpleNamespace(behavior_logprobs=[-2.0] * 7, sampled=[True] * 7)
    run = SimpleNamespace(
        config=Config(), problems=SimpleNamespace(heldout={"a": None}),
        eval_sampler=SimpleNamespace(log=dict), answers=lambda *_, **__: [rollout],
        trainer=SimpleNamespace(logprobs=lambda _: torch.full((1, 7), distance - 2.0),
                                dtype=torch.bfloat16))
    if ends:
        with pytest.raises(RuntimeError, match="healthy is below 0.015"):
            self_test(run)
    else:
        assert self_test(run)["mismatch/fp32_head/kl_k3"] == pytest.approx(kl, rel=1e-3)
