"""The x of the curve: FLOPs against torch's own count of them."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from engines.compute import Compute, ModelFlops


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", [(LlamaForCausalLM, LlamaConfig),
                                    (Qwen3ForCausalLM, Qwen3Config)], ids=["llama", "qwen3"])
def test_flops_are_those_of_a_model_that_reads_token_by_token(family, tied):
    """To look up an embedding is no matrix product; a tied head, the same weight, is one. Grouped
    heads: every head of the query attends, however many have keys of their own."""
    make, config = family
    with torch.device("meta"):
        model = make(config(
            vocab_size=997, hidden_size=96, intermediate_size=176, num_hidden_layers=3, head_dim=24,
            num_attention_heads=6, num_key_value_heads=2, tie_word_embeddings=tied,
            attn_implementation="eager"))

    def counted(prompt, output):
        """By torch, with a cache; what is left out below is per token, and less than 1%."""
        cache = DynamicCache()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            for _ in range(prompt + output):
                model(torch.zeros(1, 1, dtype=torch.long, device="meta"), past_key_values=cache)
        return counter.get_total_flops()
    flops = ModelFlops(model)
    one, many = counted(1, 0), counted(3, 6)
    assert flops.of_group(1, []) == pytest.approx(one, rel=0.01)
    assert flops.of_group(3, [6]) == pytest.approx(many, rel=0.01)
    # Attention alone: what a sequence costs beyond its tokens, exactly.
    assert flops.of_group(3, [6]) - 9 * flops.of_group(1, []) == many - 9 * one > 0
    # A group's prompt is computed once.
    assert flops.of_group(5, [24, 2]) == (
        flops.of_group(5, [24]) + flops.of_group(5, [2]) - flops.of_group(5, []))


def test_compute_goes_on_from_its_state(llama):
    compute = Compute(llama, 3, "gpu")
    compute.flops, compute.tokens, compute.hours = 5, 7, 0.25
    other = Compute(llama, 3, "gpu")
    other.load_state(compute.state())
    assert other.log() == compute.log() == {
        "compute/flops": 5, "compute/tokens": 7, "compute/gpu_hours": 0.25}
