"""The test with which each run begins: do sampler and trainer compute alike?"""

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
