"""The x of the curve: FLOPs against torch's own count of them."""

import copy
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import (AutoConfig, AutoModelForCausalLM, DynamicCache, LlamaConfig,
                          LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig)

from conftest import ROOT

from engines import accept
from engines.compute import Compute, ModelFlops, attended
from engines.own_forward import hidden_states
from sampler import Rollout
from scalerl import Policy
from study import toy

sys.path.append(str(ROOT / "bench"))      # last: bench/fit.py is not fit.py
import families                                                                # noqa: E402


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


@pytest.mark.parametrize("kind, own", [
    ("qwen3_moe", {"moe_intermediate_size": 40}), ("mixtral", {"num_local_experts": 10}),
    ("qwen2_moe", {"moe_intermediate_size": 40, "shared_expert_intermediate_size": 72}),
    ("qwen3_moe", {"moe_intermediate_size": 40, "mlp_only_layers": [1]})],
    ids=["qwen3_moe", "mixtral", "a shared expert", "a dense layer"])
def test_of_the_experts_those_count_that_a_token_is_sent_to(kind, own, seed):
    """torch counts what a token really does when each expert is a loop of its own. To count all
    of ten experts, where three work, would be about three times too much."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(
        kind, vocab_size=97, hidden_size=64, intermediate_size=112, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=10,
        num_experts_per_tok=3, tie_word_embeddings=False, eos_token_id=1, bos_token_id=1,
        pad_token_id=None, **own), attn_implementation="eager", experts_implementation="eager")
    packed = accept.prepare(copy.deepcopy(model))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 1, dtype=torch.long))
    found, counted = ModelFlops(packed).of_group(1, []), counter.get_total_flops()
    assert found == pytest.approx(counted, rel=0.01)
    assert 2 * sum(p.numel() for p in model.parameters()) > 1.7 * counted


DELTA_RULES = {"torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule",
               "chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"}


def delta_rule(query, key, value, g, beta, initial_state=None, **_):
    """These, token by token, with what the state is read by as matrix products. query, key (B, T,
    H, K), value (B, T, H, V), g (B, T, H) or (B, T, H, K), beta (B, T, H), state (B, H, K, V)."""
    query, key = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (query, key))
    B, _, H, K = key.shape
    state = torch.zeros(B, H, K, value.shape[-1]) if initial_state is None else initial_state
    outputs = []
    for q, k, v, decay, b in zip(*(x.unbind(1) for x in (query, key, value, g, beta))):
        state = state * decay.exp().view(B, H, -1, 1)
        new = (v - (k[:, :, None] @ state)[:, :, 0]) * b[..., None]
        state = state + k[..., None] * new[:, :, None]
        outputs.append((q[:, :, None] @ state)[:, :, 0] / k.shape[-1] ** 0.5)
    return torch.stack(outputs, 1), state


@pytest.mark.days(4)
@pytest.mark.parametrize("family", [
    "qwen3_5_text", "qwen3_5", "qwen3_5_moe", "qwen3_next", "kimi_linear", "lfm2", "lfm2_moe",
    "falcon_h1", "granitemoehybrid", "nemotron_h", "jamba", "olmo_hybrid", "gemma2", "gemma3",
    "gemma4", "gemma4_text", "gpt_oss", "olmo3", "cohere2", "mistral", "ministral", "deepseek_v2",
    "deepseek_v3"])
def test_each_layer_counts_as_what_it_is(family, seed, monkeypatch):
    """Linear attention, convolutions and Mamba attend to nothing, a window of 8 to no more; torch
    counts token by token with the model's own cache (MLA: in one pass, for its cache holds no
    keys, which each step makes again). As attention over all tokens they would be up to a third off
    here, and a hundred times over at length. transformers writes the delta rule in element-wise
    products, which torch does not count: of the tiny Kimi it would miss a third."""
    monkeypatch.setitem(families.ALSO, "mistral", {})               # with a window, as version 0.1
    model = accept.prepare(families.build(family)[0])
    flops = ModelFlops(model)
    head = model.get_output_embeddings().weight
    if any(".experts." in name for name, _ in model.named_parameters()):
        model.set_experts_implementation("eager")
    model.set_attn_implementation("eager")
    code = sys.modules[type(model).__module__]
    ids = torch.randint(90, (1, 9))
    before = hidden_states(model, ids)[0]
    for name in DELTA_RULES & vars(code).keys():
        monkeypatch.setattr(code, name, delta_rule)
    torch.testing.assert_close(hidden_states(model, ids)[0], before, atol=1e-3, rtol=1e-3)

    def counted(n):
        mla = getattr(model.config, "kv_lora_rank", None)
        pieces = [torch.zeros(1, n)] if mla else torch.zeros(n, 1, 1)
        cache = True
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            for ids in pieces:
                states, cache = hidden_states(model, ids.long(), cache)
                states @ head.T
        return counter.get_total_flops()
    found = flops.of_group(24, []) - flops.of_group(4, [])          # without the cost of a start
    assert found == pytest.approx(counted(24) - counted(4), rel=0.05)


def test_a_window_is_attended_to_and_no_more():
    for n, window in (5, 3), (3, 5), (7, None), (0, 4), (4, 4):
        assert attended(n, window) == sum(min(i, window or i) for i in range(1, n + 1))


def test_a_token_of_qwen3_30b_a3b_meets_3_of_its_30_billion_weights():
    """Counted by hand from its published config: of 128 experts 8 work; the router, attention and
    the untied head do so for every token, the embedding is looked up."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(Qwen3MoeConfig(
            vocab_size=151936, hidden_size=2048, intermediate_size=6144, num_hidden_layers=48,
            num_attention_heads=32, num_key_value_heads=4, head_dim=128, num_experts=128,
            num_experts_per_tok=8, moe_intermediate_size=768, tie_word_embeddings=False))
    expert, router = 3 * 2048 * 768, 128 * 2048
    attention = 2 * 2048 * 32 * 128 + 2 * 2048 * 4 * 128
    norms = 2 * 2048 + 2 * 128                          # of a layer; and one at the end
    table = 151936 * 2048
    whole = 48 * (attention + norms + router + 128 * expert) + 2048 + 2 * table
    assert whole == sum(p.numel() for p in model.parameters()) == 30_532_122_624
    active = 48 * (attention + norms + router + 8 * expert) + 2048 + table
    assert ModelFlops(model).per_token == 2 * active and 3.0e9 < active < 3.1e9


def test_the_counted_forward_pass_is_a_tenth_more_than_the_one_that_runs_at_14_tokens():
    """docs/metrics.md: an output's last token, and the head of all but sampled tokens, are counted
    and not computed. torch counts what runs."""
    model = toy.make_model(toy.make_tokenizer(), 3).eval()
    accept.prepare(model)
    P, G, n = 30, 8, 14
    rollouts = [Rollout("p", 0, tuple(range(3, 3 + P)), [5] * n, [0.0] * n, [0] * n, [True] * n,
                        "stop", False) for _ in range(G)]
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        Policy(model)(rollouts)
    told = ModelFlops(model).of_group(P, [n] * G)
    head = 2 * model.config.vocab_size * model.config.hidden_size
    weights = 2 * sum(p.numel() for p in model.parameters() if p.dim() == 2)     # tied: head once
    runs = (weights - head) * (P + G * (n - 1)) + head * G * n
    assert counted.get_total_flops() == pytest.approx(runs, rel=0.03)
    assert told / counted.get_total_flops() == pytest.approx(1.106, abs=0.02)
    assert "on the toy, with outputs of 14 tokens, it is about 1.1 times what is computed;" in (
        ROOT / "docs" / "metrics.md").read_text()
