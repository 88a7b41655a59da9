"""One row of tokens gives what one forward a sequence gives.

The oracle is transformers itself: each prompt with each of its outputs as a plain sequence of its
own, eager attention, no padding, no sharing.
"""

import copy
import json
import random
import sys
import weakref

import pytest
import torch
from conftest import ROOT, packed_copy, random_llama
from test_scalerl import rollouts_of
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config

from engines import packed
from engines.packed import uses_flash
from scalerl import Policy, padded

sys.path.append(str(ROOT / "bench"))      # last: bench/fit.py is not fit.py
import gpu                                                                     # noqa: E402


def ragged_batch(vocab=37):
    """3 prompts and 7 outputs of random lengths; one output of a single token, one prompt unused
    by the first outputs, and prompts of different lengths."""
    length = lambda low, high: int(torch.randint(low, high, ()))               # noqa: E731
    tokens = lambda n: torch.randint(0, vocab, (n,)).tolist()                  # noqa: E731
    prompts = [tokens(n) for n in (length(2, 5), length(5, 9), length(9, 14))]
    outputs = [tokens(n) for n in (1, *(length(2, 17) for _ in range(6)))]
    return prompts, outputs, [2, 0, 1, 1, 2, 0, 1]


def plain_logprobs(model, prompt, output):
    """log p(output token | all before it), one plain forward, ten plain lines or fewer."""
    logits = model(torch.tensor([prompt + output])).logits[0]
    logprobs = logits.log_softmax(-1)
    return torch.stack([logprobs[len(prompt) + t - 1, token] for t, token in enumerate(output)])


def pack_logprobs(model, pack):
    hidden = packed.forward(model, pack.input_ids, pack.position_ids, pack.attend)
    logits = hidden[pack.predict] @ model.get_output_embeddings().weight.T
    return logits.log_softmax(-1).gather(1, pack.targets[:, None])[:, 0]


def random_qwen3():
    """Norms on queries and keys, and heads whose sizes do not add up to the hidden size."""
    model = random_llama(family=Qwen3Config, hidden=52, head_dim=10)
    for name, parameter in model.named_parameters():
        if "q_norm" in name or "k_norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def random_model(family, std=0.3, **sizes):
    """A small random model of any of transformers' families."""
    config = AutoConfig.for_model(family, **{
        "vocab_size": 37, "hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 256} | sizes)
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():            # the default init predicts almost nothing
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=std)
    return model


def random_qwen3_moe():
    return random_model("qwen3_moe", num_experts=5, num_experts_per_tok=2, head_dim=10,
                        moe_intermediate_size=24)


@pytest.mark.parametrize("make", [random_llama, random_qwen3, random_qwen3_moe])
def test_a_row_gives_every_output_the_logprobs_of_a_forward_of_its_own(make, seed):
    """A mask that leaks, a position off by one, or a token predicted by the wrong place shows
    here as an error of order one; the two sides round differently by 1e-5."""
    llama = make()
    prompts, outputs, prompt_of = ragged_batch()
    pack = packed.Pack(prompts, outputs, prompt_of)
    ours = pack_logprobs(packed_copy(llama), pack)
    for i, output in enumerate(outputs):
        expected = plain_logprobs(llama, prompts[prompt_of[i]], output)
        mine = ours[pack.sample == i]
        assert pack.column[pack.sample == i].tolist() == list(range(len(output)))
        torch.testing.assert_close(mine, expected, atol=1e-4, rtol=0)


def test_gradients_through_a_row_are_those_of_the_plain_forwards(seed):
    """A prompt's keys serve several outputs: its gradient is their sum. In float64, as far
    as transformers goes: its norms and its eager softmax round to fp32 on the way."""
    llama = random_llama(dtype=torch.float64)
    twin = packed_copy(llama)
    prompts, outputs, prompt_of = ragged_batch()
    pack = packed.Pack(prompts, outputs, prompt_of, dtype=torch.float64)
    weights = torch.randn(len(pack.targets), dtype=torch.float64)
    (weights * pack_logprobs(twin, pack)).sum().backward()
    plain = torch.cat([plain_logprobs(llama, prompts[p], o) for p, o in zip(prompt_of, outputs)])
    (weights * plain).sum().backward()
    for (name, a), b in zip(twin.named_parameters(), llama.parameters()):
        error = (a.grad - b.grad).norm() / b.grad.norm()
        assert error < 1e-5, f"{name}: {error}"


def plain_varlen(q, k, v, ends_q, ends_k, max_q, max_k, *, scale, window_size, enable_gqa):
    """What torch.nn.attention.varlen documents, a sequence at a time: causal from the end."""
    assert window_size == (-1, 0) and enable_gqa == (q.shape[1] != k.shape[1])
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    out = []
    for q0, q1, k0, k1 in zip(ends_q, ends_q[1:], ends_k, ends_k[1:]):
        assert 0 < q1 - q0 <= max_q and q1 - q0 <= k1 - k0 <= max_k
        scores = torch.einsum("qhd,khd->hqk", q[q0:q1], k[k0:k1]) * scale
        seen = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool).tril(int(k1 - k0 - (q1 - q0)))
        probabilities = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        out.append(torch.einsum("hqk,khd->qhd", probabilities, v[k0:k1]))
    assert ends_q[-1] == len(q) and ends_k[-1] == len(k) == len(v)
    return torch.cat(out)


def test_the_kernel_without_masks_is_taken_where_there_is_one():
    for dtype, device, can in ((torch.bfloat16, "cuda", True), (torch.float32, "cuda", False),
                               (torch.bfloat16, "cpu", False)):
        assert uses_flash(dtype, device) == can
    for head, can in ((256, True), (8, True), (20, False), (264, False)):
        assert uses_flash(torch.bfloat16, "cuda", head) == can


def test_gpus_older_than_the_kernel_have_masks_instead(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, can in (((7, 5), False), ((8, 0), True), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
        assert uses_flash(torch.float16, "cuda") == can


@pytest.mark.gpu_rehearsal
@pytest.mark.parametrize("outputs", [None, [[1], [2], [3]]])
def test_the_gpus_kernel_is_told_the_same_as_the_masks_say(seed, monkeypatch, outputs):
    """The attention mask as indices; the kernel itself is replaced by what its documentation
    promises, because it runs on GPUs alone."""
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", plain_varlen)
    llama = random_llama(dtype=torch.float64)
    prompts, more, prompt_of = ragged_batch()
    batch = (prompts, outputs or more, prompt_of[: len(outputs or more)])
    gradients = []
    for flash in (False, True):
        twin = packed_copy(llama)
        monkeypatch.setattr(packed, "uses_flash", lambda *_, flash=flash: flash)
        pack = packed.Pack(*batch, dtype=torch.float64)
        logprobs = pack_logprobs(twin, pack)
        (logprobs * torch.arange(len(logprobs))).sum().backward()
        gradients.append([logprobs] + [p.grad for p in twin.parameters()])
    for dense, flash in zip(*gradients):
        torch.testing.assert_close(flash, dense, atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel runs on GPUs alone")
@pytest.mark.parametrize("kv_heads", [2, 6])
def test_the_kernel_of_a_gpu_is_as_near_to_float64_as_masks_in_16_bits_are(seed, kv_heads):
    """And its gradient. (On a GPU: pytest tests/engines/test_packed.py -k kernel_of_a_gpu)"""
    llama = random_llama(kv_heads=kv_heads, dtype=torch.float64)
    batch, found = ragged_batch(), []
    for device, dtype in (("cpu", torch.float64), ("cpu", torch.bfloat16),
                          ("cuda", torch.bfloat16)):
        twin = packed_copy(llama).to(device, torch.float64 if not found else torch.float32)
        pack = packed.Pack(*batch, dtype=dtype, device=device)
        with torch.autocast(device, torch.bfloat16, enabled=bool(found)):
            hidden = packed.forward(twin, pack.input_ids, pack.position_ids, pack.attend)
        logits = hidden[pack.predict].to(twin.lm_head.weight.dtype) @ twin.lm_head.weight.T
        logprobs = logits.log_softmax(-1).gather(1, pack.targets[:, None])[:, 0]
        logprobs.mean().backward()
        found.append([x.detach().cpu().double() for x in
                      (logprobs, *(p.grad for p in twin.parameters()))])
    for exact, masks, kernel in zip(*found):
        assert (kernel - exact).norm() < 2 * (masks - exact).norm()


def test_the_padded_rows_that_packing_is_measured_against_compute_the_same(llama):
    """Else the bench would compare two different things."""
    rollouts = rollouts_of(3, 4, random.Random(7))
    packed_logprobs, _ = Policy(packed_copy(llama))(rollouts)
    padded_logprobs, _ = gpu.Padded(copy.deepcopy(llama))(rollouts)
    assert packed_logprobs.shape == padded_logprobs.shape
    sampled = padded(rollouts, "sampled", torch.bool)
    torch.testing.assert_close(padded_logprobs[sampled], packed_logprobs[sampled], atol=1e-4,
                               rtol=0)


def test_each_prompt_and_each_output_is_in_the_row_once_and_nothing_else():
    prompts, outputs, prompt_of = ragged_batch()
    pack = packed.Pack(prompts, outputs, prompt_of)
    assert len(pack.input_ids) == sum(map(len, prompts)) + sum(len(o) - 1 for o in outputs)
    assert pack.targets.tolist() == [token for output in outputs for token in output]


def test_outputs_of_one_token_each_need_no_row_of_their_own(llama):
    pack = packed.Pack([[5, 6, 7], [8, 9]], [[1], [2], [3]], [1, 0, 1])
    ours = pack_logprobs(packed_copy(llama), pack)
    expected = [plain_logprobs(llama, p, o)[0] for p, o in
                [([8, 9], [1]), ([5, 6, 7], [2]), ([8, 9], [3])]]
    torch.testing.assert_close(ours, torch.stack(expected), atol=1e-4, rtol=0)


def test_a_forward_without_packed_attention_is_refused(llama):
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'attend'"):
        packed_copy(llama)(torch.tensor([[1, 2, 3]]))


@pytest.mark.gpu_rehearsal
def test_a_rounded_copy_turns_late_positions_as_its_model_does(llama):
    """`.to(bfloat16)` rounds the rotary frequencies too: at position 10,000 to other angles."""
    late = torch.tensor([[10_000]])
    turns = [model.model.rotary_emb(torch.ones(1, 1, 1), late)[0] for model in (
        llama, packed.rounded_copy(llama, torch.bfloat16), copy.deepcopy(llama).bfloat16())]
    assert torch.equal(turns[1], turns[0]) and (turns[2] - turns[0]).abs().max() > 0.5
    twin = packed.rounded_copy(llama, torch.bfloat16)
    assert {p.dtype for p in twin.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in llama.parameters()} == {torch.float32}
    assert twin.lm_head.weight is twin.model.embed_tokens.weight


def test_a_row_of_the_bench_that_fails_loses_no_other_and_none_keeps_the_one_before(
        tmp_path, monkeypatch):
    """vLLM's errors may be of any class. Layers that recompute are in cycles, and without a
    collection the next row's peak would hold them too."""
    alive, timings = [], gpu.timings

    def fail(*_, **__):
        raise KeyError("no such\nversion")

    def note(trainer, *args):
        assert not any(module() for module in alive)
        alive.extend(weakref.ref(module) for module in trainer.model.modules())
        return timings(trainer, *args)
    monkeypatch.setattr(gpu.vllm_inprocess, "VllmSampler", fail)
    monkeypatch.setattr(gpu, "timings", note)
    monkeypatch.setattr(sys, "argv", [
        "gpu.py", *"--device cpu --hidden 128 --layers 1 --vocab 50 --lengths 24 --tokens 50 "
        "--steps 1 --choices recompute_layers default".split(), gpu.VLLM, "--out", str(tmp_path)])
    gpu.main()
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert ["error" in row for row in rows] == [False, False, True] and alive
    assert rows[2]["error"] == "KeyError: 'no such\\nversion'"


def test_no_sequence_is_padded_to_more_than_twice_its_queries_or_its_keys(seed):
    """In a single block the longest of 256 samples would set the price of all.
    Counted: what attention computes is at most four times what is asked, whatever the lengths."""
    lengths = [int(3 * 90 ** torch.rand(()).item()) for _ in range(61)]
    prompts = [[1] * int(torch.randint(2, 40, ())) for _ in range(7)]
    prompt_of = [i % 7 for i in range(61)]
    pack = packed.Pack(prompts, [[1] * n for n in lengths], prompt_of)
    computed = sum(q.numel() * k.shape[1] for q, k in zip(pack.attend.queries, pack.attend.keys))
    own = [len(x) for x in prompts], [n - 1 for n in lengths]
    asked = sum(n * n for n in own[0]) + sum(
        n * (n + own[0][p]) for n, p in zip(own[1], prompt_of))
    assert asked <= computed < 4 * asked
    padded = sum(own[0]) * max(own[0]) + 61 * max(own[1]) * (max(own[0]) + max(own[1]))
    assert computed < padded / 2            # in a block for the prompts and one for the outputs
