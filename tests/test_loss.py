"""What the mathematics promises, one claim a test, in the order of loss.py.

Oracles are plain Python loops or float64 autograd, never a stored number. All sizes are odd and
pairwise different, so that no swapped axis can pass. Inputs are fresh in every run; a failure shows
its seed, and `LOSS_SEED=<seed> pytest tests/test_loss.py` repeats it. Where a mistake is common,
the mistaken form stands beside ours and the test shows what it would have done.

Axes: P prompts, G samples of each, N = P·G samples, T tokens, H hidden, V vocabulary.
"""

import doctest
import itertools
import json
import math
import os
import random
import statistics
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import loss as loss_module
from engines import head
from loss import (
    AGGREGATIONS, LOSSES, NORMS, advantages, head_logits, k3, length_penalty, merge_stats,
    policy_loss, token_logprobs, token_weights, zero_variance,
)


@pytest.fixture(autouse=True)
def seed():
    seed = int(os.environ.get("LOSS_SEED", random.randrange(2**31)))
    print(f"LOSS_SEED={seed}")
    random.seed(seed)
    torch.manual_seed(seed)
    return seed


def plain_logprobs(hidden, weight, targets, temperature=1.0):
    """The five lines everybody writes, with their (T, V) tensor: right, and too large."""
    logits = F.linear(hidden, weight) / temperature
    return logits.log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1)


def gradients(output, inputs, upstream=None):
    return torch.autograd.grad(output, inputs, upstream, retain_graph=True)


def assert_all_close(ours, theirs, **tolerance):
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, **tolerance)


# --------------------------------------------------------------------------------------------------
# 1. log π
# --------------------------------------------------------------------------------------------------
def head_inputs(T=13, H=5, V=31, dtype=torch.float64):
    hidden = torch.randn(T, H, dtype=dtype, requires_grad=True)
    weight = torch.randn(V, H, dtype=dtype, requires_grad=True)
    return hidden, weight, torch.randint(V, (T,)), torch.randn(T, dtype=dtype)


def test_logprobs_and_entropy_equal_their_definitions_in_plain_python():
    hidden, weight, targets, _ = head_inputs()
    temperature = 0.7
    logprobs, entropy = token_logprobs(hidden, weight, targets, temperature=temperature)
    for t, h in enumerate(hidden.tolist()):
        scores = [sum(a * b for a, b in zip(h, w)) / temperature for w in weight.tolist()]
        Z = sum(math.exp(z) for z in scores)
        p = [math.exp(z) / Z for z in scores]
        assert logprobs[t].item() == pytest.approx(math.log(p[targets[t]]))
        assert entropy[t].item() == pytest.approx(-sum(q * math.log(q) for q in p))


@pytest.mark.parametrize("chunk_tokens", [1, 4, 12, 13, 1024])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_any_chunking_has_the_gradient_of_plain_autograd(chunk_tokens, temperature, monkeypatch):
    """A last chunk that is shorter, a chunk of one, cache blocks of three rows: none may show."""
    monkeypatch.setitem(head.BLOCK_ELEMENTS, "cpu", 3 * 31)
    hidden, weight, targets, g = head_inputs()
    ours, _ = token_logprobs(
        hidden, weight, targets, temperature=temperature, chunk_tokens=chunk_tokens)
    plain = plain_logprobs(hidden, weight, targets, temperature)
    torch.testing.assert_close(ours, plain)
    assert_all_close(gradients(ours, (hidden, weight), g), gradients(plain, (hidden, weight), g))


def test_the_backward_pass_agrees_with_finite_differences():
    hidden, weight, targets, _ = head_inputs(T=5, H=3, V=7)
    logprobs = lambda h, w: token_logprobs(h, w, targets, temperature=0.8, chunk_tokens=2)[0]
    assert torch.autograd.gradcheck(logprobs, (hidden, weight))


@pytest.mark.parametrize("chunk_tokens", [4, 13])
def test_a_graph_that_is_kept_can_be_used_twice(chunk_tokens):
    """The backward pass begins with logits that the forward pass left behind, and destroys them.
    A second one must compute them again, not take what is left for logits."""
    hidden, weight, targets, g = head_inputs()
    ours, _ = token_logprobs(hidden, weight, targets, chunk_tokens=chunk_tokens)
    first, second = (gradients(ours, (hidden, weight), g) for _ in range(2))
    assert_all_close(first, second)
    assert_all_close(first, gradients(plain_logprobs(hidden, weight, targets), (hidden, weight), g))


def test_a_head_that_has_its_gradient_keeps_no_copy_of_the_weight():
    """The loss keeps the graph until all layers below have theirs: a rounded copy of the head of
    Qwen3-8B, 1.2 GB, would lie there all the while."""
    hidden, weight, targets, _ = head_inputs()
    ours, _ = token_logprobs(hidden, weight, targets, head_fp32=False)
    (loss := ours.sum()).backward()
    (node, _), *_ = loss.grad_fn.next_functions
    while "TokenLogprobs" not in node.name():
        (node, _), *_ = node.next_functions
    assert node.settings
    for value in vars(node).values():
        kept = (value, *getattr(value, "__dict__", {}).values())
        assert not any(isinstance(x, torch.Tensor) for x in kept)


def test_only_the_wanted_gradients_are_computed():
    """A frozen head, or a probe on frozen features: the other gradient is still right."""
    hidden, weight, targets, g = head_inputs()
    both = gradients(plain_logprobs(hidden, weight, targets), (hidden, weight), g)
    ours, _ = token_logprobs(hidden, weight.detach(), targets, chunk_tokens=4)
    assert_all_close(gradients(ours, (hidden,), g), both[:1])
    ours, _ = token_logprobs(hidden.detach(), weight, targets, chunk_tokens=4)
    assert_all_close(gradients(ours, (weight,), g), both[1:])
    with torch.no_grad():
        assert not token_logprobs(hidden, weight, targets)[0].requires_grad


def test_a_causal_model_is_scored_by_the_state_before_the_token():
    """hidden[:, t] predicts token t + 1. The slices that express this are views with gaps, and an
    off-by-one here trains the model to predict the token it has just read."""
    N, T, H, V = 3, 7, 5, 11
    hidden, weight = torch.randn(N, T, H, requires_grad=True), torch.randn(V, H)
    tokens = torch.randint(V, (N, T))
    logprobs, entropy = token_logprobs(hidden[:, :-1], weight, tokens[:, 1:], chunk_tokens=4)
    assert logprobs.shape == entropy.shape == (N, T - 1)
    for n, t in itertools.product(range(N), range(T - 1)):
        row = (weight @ hidden[n, t]).log_softmax(0)
        torch.testing.assert_close(logprobs[n, t], row[tokens[n, t + 1]])
    logprobs.sum().backward()
    assert (hidden.grad[:, -1] == 0).all() and (hidden.grad[:, :-1] != 0).any(-1).all()


class LargestTensor(TorchDispatchMode):
    """Notes the largest tensor that any operation returns, forward and backward."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        tensors = result if isinstance(result, (tuple, list)) else (result,)
        sizes = [x.untyped_storage().nbytes() // x.itemsize for x in tensors
                 if isinstance(x, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return result


def test_no_tensor_of_tokens_times_vocabulary_is_ever_made():
    T, H, V, chunk = 97, 3, 211, 8
    hidden, weight, targets, g = head_inputs(T, H, V)
    sizes = {}
    for name, logprobs in {
        "ours": lambda: token_logprobs(hidden, weight, targets, chunk_tokens=chunk)[0],
        "plain": lambda: plain_logprobs(hidden, weight, targets),
    }.items():
        with LargestTensor() as largest:
            out = logprobs()
            for _ in range(2):  # the second backward pass finds no logits left by the forward pass
                gradients(out, (hidden, weight), g)
        sizes[name] = largest.elements
    assert sizes == {"ours": chunk * V, "plain": T * V}
    hidden, weight, targets, g = head_inputs(2051, H, 17)
    with LargestTensor() as largest:  # and nobody has to ask for chunks
        gradients(token_logprobs(hidden, weight, targets)[0], (hidden, weight), g)
    assert largest.elements == 1024 * 17


def test_large_logits_neither_overflow_nor_cost_the_entropy_its_digits():
    hidden, weight, targets, _ = head_inputs(dtype=torch.float32)
    shifted = torch.cat([hidden, torch.full((len(hidden), 1), 1e3)], 1).detach()
    ones = torch.cat([weight, torch.ones(len(weight), 1)], 1).detach()  # every logit + 1000
    ours = token_logprobs(shifted, ones, targets)
    exact = token_logprobs(hidden.double().detach(), weight.double().detach(), targets)
    assert_all_close([x.double() for x in ours], exact, atol=2e-3, rtol=0)  # 1000 · 2^-24 · terms


def test_an_empty_selection_gives_zero_gradients_not_missing_ones():
    """On many ranks a missing gradient is a collective that one rank never joins: a hang."""
    hidden, weight = torch.randn(0, 5, requires_grad=True), torch.randn(31, 5, requires_grad=True)
    logprobs, entropy = token_logprobs(hidden, weight, torch.zeros(0, dtype=torch.int64))
    assert logprobs.shape == entropy.shape == (0,)
    logprobs.sum().backward()
    assert hidden.grad.shape == (0, 5) and (weight.grad == 0).all()


def test_garbage_in_a_token_without_gradient_does_not_reach_the_head():
    """0 · nan is nan: multiplying by the mask at the end would spoil every row of the head."""
    hidden, weight, targets, g = head_inputs()
    dead = torch.arange(len(g)) % 3 == 1
    with torch.no_grad():
        hidden[dead] = math.nan
    g[dead] = 0
    ours, _ = token_logprobs(hidden, weight, targets, chunk_tokens=4)
    grad_hidden, grad_weight = gradients(ours, (hidden, weight), g)
    alive = ~dead
    clean = plain_logprobs(hidden[alive], weight, targets[alive])
    clean_hidden, clean_weight = gradients(clean, (hidden, weight), g[alive])
    assert_all_close((grad_hidden, grad_weight), (clean_hidden, clean_weight))
    assert (grad_hidden[dead] == 0).all()
    plain = plain_logprobs(hidden, weight, targets)
    assert gradients(plain, (weight,), g)[0].isnan().all()


def test_gradients_accumulate_over_micro_batches_and_over_a_tied_embedding():
    T, H, V = 13, 5, 31
    embedding, mix = torch.randn(V, H), torch.randn(H, H)
    tokens, targets, g = torch.randint(V, (T,)), torch.randint(V, (T,)), torch.randn(T)

    def gradient(logprobs, splits, dtype):
        E, M = embedding.to(dtype, copy=True).requires_grad_(), mix.to(dtype)
        for x, y, upstream in zip(tokens.split(splits), targets.split(splits), g.split(splits)):
            (logprobs(torch.tanh(E[x] @ M), E, y) * upstream).sum().backward()
        return E.grad.float()

    ours = lambda h, w, y: token_logprobs(h, w, y, chunk_tokens=4)[0]
    exact = gradient(plain_logprobs, T, torch.float64)
    torch.testing.assert_close(gradient(ours, T, torch.float32), exact)
    torch.testing.assert_close(gradient(ours, [7, 1, 5], torch.float32), exact)


def test_entropy_is_a_diagnostic_and_carries_no_gradient():
    hidden, weight, targets, _ = head_inputs()
    logprobs, entropy = token_logprobs(hidden, weight, targets)
    assert logprobs.requires_grad and not entropy.requires_grad


def test_temperature_is_part_of_the_policy():
    """The trainer must divide by the sampler's temperature. Left out, the two are different
    policies, and KL(μ ‖ π) is not zero however exact both engines are."""
    hidden, weight, _, _ = head_inputs()
    V = len(weight)
    every_target = torch.arange(V).expand(len(hidden), V)
    every_hidden = hidden[:, None].expand(-1, V, -1)
    behavior_logprobs = (hidden @ weight.T / 0.6).log_softmax(-1)  # the sampler, at temperature 0.6
    kl = {}
    for temperature in (0.6, 1.0):
        log_pi, _ = token_logprobs(every_hidden, weight, every_target, temperature=temperature)
        terms = behavior_logprobs.exp() * (behavior_logprobs - log_pi)
        kl[temperature] = terms.sum(-1).mean().item()
    assert abs(kl[0.6]) < 1e-12 < 1e-3 < kl[1.0]


# Precision. A number type with 8 bits of mantissa rounds a logit of 10 to multiples of 1/16.
def test_bf16_operands_are_multiplied_into_fp32_logits():
    """The fp32 head is exact for the operands it is given, however these were rounded."""
    hidden, weight, targets, _ = head_inputs(H=65)
    hidden, weight = hidden.detach().bfloat16(), weight.detach().bfloat16()
    ours, _ = token_logprobs(hidden, weight, targets, chunk_tokens=4)
    exact = plain_logprobs(hidden.double(), weight.double(), targets)
    rounded = plain_logprobs(hidden, weight, targets).double()
    assert ours.dtype == torch.float32
    assert (ours - exact).abs().max() < 2e-5 < 5e-3 < (rounded - exact).abs().max()


def test_operands_of_two_dtypes_meet_in_the_wider_one():
    """Rounding an fp32 head to the bf16 of the states would be the one-sided head, unasked."""
    hidden, weight, targets, _ = head_inputs(H=65, dtype=torch.float32)
    for h, w in ((hidden.bfloat16(), weight), (hidden, weight.bfloat16())):
        ours, _ = token_logprobs(h, w, targets, chunk_tokens=4)
        exact = plain_logprobs(h.double(), w.double(), targets)
        torch.testing.assert_close(ours.double(), exact, atol=2e-5, rtol=1e-5)


def test_the_bf16_ablation_rounds_as_a_bf16_linear_layer_does():
    hidden, weight, targets, g = head_inputs(H=65, dtype=torch.float32)
    ours, _ = token_logprobs(hidden, weight, targets, head_fp32=False, chunk_tokens=4)
    logits = F.linear(hidden.bfloat16(), weight.bfloat16()).float()
    plain = logits.log_softmax(-1).gather(-1, targets[:, None]).squeeze(-1)
    torch.testing.assert_close(ours, plain)
    assert ours.dtype == torch.float32
    # bf16 gradients of two implementations agree to a few units of bf16, 2^-8 each.
    for a, b in zip(gradients(ours, (hidden, weight), g), gradients(plain, (hidden, weight), g)):
        assert (a - b).norm() < 0.02 * b.norm()


def two_engines(sampler_fp32, trainer_fp32):
    """KL(μ ‖ π) and mean |Δ log p| of two engines that share bf16 weights and differ in their head
    only: the same states to within fp32 rounding, each head in its own precision."""
    T, H, V = 41, 129, 257
    weight = (torch.randn(V, H) * 2 / H**0.5).bfloat16()
    hidden = (torch.randn(T, H) * 2).bfloat16()
    targets = torch.arange(V).expand(T, V)
    log_p = [
        token_logprobs(hidden[:, None].expand(T, V, H), weight, targets, head_fp32=fp32)[0]
        for fp32 in (sampler_fp32, trainer_fp32)
    ]
    behavior_logprobs, log_pi = log_p
    kl = (behavior_logprobs.exp() * (behavior_logprobs - log_pi)).sum(-1).mean().item()
    return kl, (behavior_logprobs.exp() * (behavior_logprobs - log_pi).abs()).sum(-1).mean().item()


def test_a_bf16_head_biases_the_ratio_and_a_one_sided_fp32_head_does_not_cure_it():
    """fp32 on one side only, whichever, leaves the ratio off by the other side's rounding. The
    paper's gain (A .52 -> .61) needs it in the trainer and in the generator."""
    assert two_engines(True, True) == (0, 0)
    for one_sided in ((True, False), (False, True)):
        kl, dlogp = two_engines(*one_sided)
        assert kl > 1e-6 and dlogp > 2e-3


def test_two_bf16_heads_disagree_although_both_round_alike():
    """Why "bf16 on both sides" is no cure either: two engines never add in the same order, and the
    last digits of fp32 decide which way bf16 rounds. Here their states differ by 3 parts in 10^6:
    fp32 logits hardly notice, while some bf16 logits jump by a whole step of 1/128 or more."""
    T, H, V = 201, 129, 257
    weight, hidden = torch.randn(V, H) * 2 / H**0.5, torch.randn(T, H) * 2
    nudged = hidden * (1 + 3e-6 * torch.randn(T, H))
    jump = {}
    for name, rounding in {"fp32": lambda z: z, "bf16": lambda z: z.bfloat16().float()}.items():
        a, b = (rounding(head_logits(h, weight)).log_softmax(-1) for h in (hidden, nudged))
        jump[name] = (a - b).abs().max().item()
    assert jump["fp32"] < 2e-4 < 1e-3 < jump["bf16"]


@pytest.mark.parametrize("states", [torch.float32, torch.bfloat16])
def test_autocast_rounds_the_operands_but_neither_the_logits_nor_the_gradient(states):
    """fp32 masters under bf16 autocast, forward and backward inside the region: the head sees what
    a bf16 generator sees, and its gradient still arrives in fp32."""
    _, weight, targets, g = head_inputs(H=65, dtype=torch.float32)
    hidden = torch.randn(len(g), 65, dtype=states, requires_grad=True)  # a bf16 body gives bf16
    with torch.autocast("cpu", torch.bfloat16):
        logprobs, entropy = token_logprobs(hidden, weight, targets, chunk_tokens=4)
        grad_hidden, grad_weight = gradients(logprobs, (hidden, weight), g)
    assert logprobs.dtype == entropy.dtype == grad_weight.dtype == torch.float32
    rounded = [x.detach().bfloat16().double().requires_grad_() for x in (hidden, weight)]
    log_p = F.linear(*rounded).log_softmax(-1)
    exact = log_p.gather(-1, targets[:, None]).squeeze(-1)
    exact_hidden, exact_weight = gradients(exact, rounded, g.double())
    torch.testing.assert_close(logprobs.double(), exact, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(
        entropy.double(), -(log_p.exp() * log_p).sum(-1), atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(grad_weight.double(), exact_weight, atol=2e-5, rtol=1e-4)
    half_a_step = 2**-8 if states == torch.bfloat16 else 1e-4  # one rounding, at the very end
    torch.testing.assert_close(grad_hidden.double(), exact_hidden, atol=2e-5, rtol=half_a_step)
    assert (grad_weight.bfloat16().float() != grad_weight).any()


def test_the_gradient_of_a_bf16_head_is_summed_in_fp32():
    """Adding chunk after chunk in bf16 loses them: from 256 on, adding 1 changes nothing."""
    T, H, V = 2049, 3, 5
    hidden = torch.ones(T, H).bfloat16()
    weight = torch.zeros(V, H).bfloat16().requires_grad_()
    logprobs, _ = token_logprobs(hidden, weight, torch.zeros(T, dtype=torch.int64), chunk_tokens=1)
    logprobs.sum().backward()  # each token adds 1 - 1/V to the target's row
    exact = T * (1 - 1 / V)
    assert weight.grad.dtype == torch.bfloat16
    assert weight.grad[0, 0].item() == pytest.approx(exact, rel=2**-8)
    naive = torch.zeros(()).bfloat16()
    for _ in range(T):
        naive += 1 - 1 / V
    assert naive.item() < exact / 3


@pytest.mark.gpu_rehearsal
def test_cudas_products_of_bf16_into_fp32_give_the_same_gradient_without_a_copy_of_the_head(
        monkeypatch):
    """Only CUDA multiplies bf16 into fp32. As torch documents it, in plain lines: operands of one
    dtype, and an `out` of the other. What a chunk adds to the head's gradient must go right there:
    as a tensor of its own it would be as large as the head, 2.5 GB at V 152k and H 4,096."""
    T, H, V = 13, 5, 31
    hidden, weight, targets, g = head_inputs(T, H, V, dtype=torch.float32)
    inputs = hidden.detach().bfloat16().requires_grad_(), weight
    with torch.autocast("cpu", torch.bfloat16):         # operands in bf16, sums in fp32
        logprobs, _ = token_logprobs(*inputs, targets, chunk_tokens=4)
    expected = gradients(logprobs, inputs, g)
    mm, shapes = torch.mm, []

    def product(a, b, *, out_dtype=None, out=None, added=0):
        if out_dtype is None:
            return mm(a, b) if out is None else mm(a, b, out=out)
        assert a.dtype == b.dtype == torch.bfloat16 and out.dtype == out_dtype == torch.float32
        shapes.append((added is out, *out.shape))
        return out.copy_(added + mm(a.float(), b.float()))
    monkeypatch.setattr(torch, "mm", product)
    monkeypatch.setattr(torch, "addmm", lambda added, a, b, **more: product(
        a, b, **more, added=added))
    monkeypatch.setattr(head.Head, "widen", property(lambda _: False, lambda *_: None),
                        raising=False)
    with torch.autocast("cpu", torch.bfloat16):
        logprobs, _ = token_logprobs(*inputs, targets, chunk_tokens=4)
    found = gradients(logprobs, inputs, g)
    assert [shape for shape in shapes if shape[1:] == (V, H)] == 4 * [(True, V, H)]
    assert set(shapes) == {(True, V, H), (False, 4, V), (False, 1, V)}
    assert found[1].dtype == torch.float32
    for a, b in zip(found, expected):
        assert (a - b).norm() < 0.01 * b.norm()         # each logit's gradient is rounded to bf16


def test_the_sampler_draws_from_the_logits_the_trainer_scores():
    """In all dtypes: bf16 states that meet an fp32 head are not to round it in one of the two."""
    hidden, weight, targets, _ = head_inputs(H=65, dtype=torch.float32)
    dtypes = torch.float32, torch.bfloat16
    for of_hidden, of_weight, head_fp32 in itertools.product(dtypes, dtypes, (True, False)):
        h, w = hidden.detach().to(of_hidden), weight.detach().to(of_weight)
        sampler = head_logits(h, w, head_fp32=head_fp32).log_softmax(-1)
        trainer, _ = token_logprobs(h, w, targets, head_fp32=head_fp32, chunk_tokens=4)
        torch.testing.assert_close(sampler.gather(-1, targets[:, None]).squeeze(-1), trainer)


def _fsdp2_rank(rank, world_size, port, seed, path):
    """Two ranks, the head and its log-probs inside the root's forward, as the trainer does it."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    model, tokens, targets = _tiny_model(seed)
    exact = _tiny_model(seed)[0]
    fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (world_size,)))
    rows = slice(0, 2) if rank == 0 else slice(2, 5)  # unequal shares of the batch
    model(tokens[rows], targets[rows]).sum().mul(world_size).backward()  # FSDP means over ranks
    plain_logprobs(exact.body(exact.embedding(tokens)), exact.head.weight, targets).sum().backward()
    worst = 0.0
    for ours, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        assert isinstance(ours.grad, DTensor)
        worst = max(worst, (ours.grad.full_tensor() - theirs.grad).abs().max().item())
    if rank == 0:
        with open(path, "w") as file:
            json.dump(worst, file)
    torch.distributed.destroy_process_group()


class _TinyModel(torch.nn.Module):
    def __init__(self, H=5, V=31):
        super().__init__()
        self.embedding = torch.nn.Embedding(V, H)
        self.body = torch.nn.Linear(H, H)
        self.head = torch.nn.Linear(H, V, bias=False)

    def forward(self, tokens, targets):
        hidden = self.body(self.embedding(tokens))
        return token_logprobs(hidden, self.head.weight, targets, chunk_tokens=4)[0]


def _tiny_model(seed, N=5, T=7):
    torch.manual_seed(seed)
    model = _TinyModel().double()
    return model, torch.randint(31, (N, T)), torch.randint(31, (N, T))


@pytest.mark.days(4, turn=1)
def test_the_head_may_be_sharded_by_fsdp2_when_used_in_the_roots_forward(seed, tmp_path):
    """There the weight is whole and its gradient is reduced by FSDP. Two gloo ranks, no GPU."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(
        _fsdp2_rank, (2, port, seed, str(tmp_path / "worst.json")), nprocs=2)
    assert json.loads((tmp_path / "worst.json").read_text()) < 1e-12


def test_settings_that_make_no_sense_are_refused_by_name():
    hidden, weight, targets, _ = head_inputs()
    with pytest.raises(ValueError, match="temperature = 0"):
        token_logprobs(hidden, weight, targets, temperature=0)
    with pytest.raises(ValueError, match="chunk_tokens = 0"):
        token_logprobs(hidden, weight, targets, chunk_tokens=0)


# --------------------------------------------------------------------------------------------------
# 2. Â
# --------------------------------------------------------------------------------------------------
def random_rewards(P=7, G=5):
    """±1 with a different chance of success for each prompt, no prompt all right or all wrong. The
    first prompt has one success and the second has two: chance alone gave all prompts the same std
    in one draw of 64, and then the group's std passed for the batch's."""
    rewards = torch.where(torch.rand(P, G) < torch.rand(P, 1), 1.0, -1.0)
    rewards[:, 0], rewards[:, 1] = 1.0, -1.0
    rewards[0, 2:], rewards[1, 2], rewards[1, 3:] = -1.0, 1.0, -1.0
    return rewards


@pytest.mark.parametrize("norm", NORMS)
def test_advantages_equal_their_definition_in_plain_python(norm):
    rewards = random_rewards(G=33)      # one success of 33: no floor is under the pass rate
    rows = rewards.tolist()
    centered = [[r - statistics.fmean(row) for r in row] for row in rows]
    batch_std = statistics.pstdev(itertools.chain(*centered))
    for ours, row in zip(advantages(rewards, norm=norm).tolist(), centered, strict=True):
        # Of rewards 0 and 1 the centered ones are half as large, and their mean is the pass rate.
        twice_pass_rate = 2 * sum(a > 0 for a in row) / len(row)
        scale = {"batch": batch_std, "prompt": statistics.pstdev(row), "mean": twice_pass_rate,
                 "none": 1.0}[norm]
        assert ours == pytest.approx([a / scale for a in row], rel=1e-5)


def test_the_std_is_the_batch_s_of_advantages_neither_the_groups_nor_the_rewards():
    """Three stds that are easily confused. With prompts of unequal difficulty the rewards spread
    more than the advantages: TRL's "batch" divides by the std of the rewards, and by another
    estimator (n - 1, plus 1e-4), so its advantages are smaller than the paper's."""
    rewards = torch.tensor([[1.0, -1, -1, -1, -1], [1, 1, 1, 1, -1], [1, 1, -1, -1, -1]])
    ours = advantages(rewards, norm="batch")
    assert ours.std(correction=0).item() == pytest.approx(1)
    assert ours[0].std(correction=0) < 0.95 < 1.05 < ours[2].std(correction=0)  # not the group's
    centered = rewards - rewards.mean(1, keepdim=True)
    of_rewards = centered / rewards.std(correction=0)
    assert (of_rewards.abs() < ours.abs() - 0.05).all()


def test_equal_rewards_give_exact_zeros_although_their_float_mean_differs():
    """Partial credits of 0.1 are not exact floats. The naive quotient of two rounding errors makes
    advantages of size one out of nothing."""
    G = 7
    for value in (0.1, 1 / 3, 0.7, 1e-3, 123.4):
        rewards = torch.full((1, G), value)
        for norm in NORMS:
            assert advantages(rewards, norm=norm).tolist() == [[0.0] * G]
    naive = []
    for value in torch.rand(200).tolist():
        centered = torch.full((1, G), value)
        centered = centered - centered.mean()
        naive.append((centered / centered.square().mean().sqrt().clamp(min=1e-12)).abs().max())
    assert max(naive) == 1


@pytest.mark.parametrize("norm", ["batch", "prompt"])
def test_advantages_do_not_depend_on_the_unit_of_the_rewards(norm):
    """A floor under the std, or a term beside it, makes close rewards teach less."""
    rewards = random_rewards()
    ours = advantages(1e-4 * rewards, norm=norm)
    torch.testing.assert_close(ours, advantages(rewards, norm=norm), rtol=1e-4, atol=0)


def test_a_group_that_taught_nothing_dilutes_the_std_unless_it_leaves_first():
    rewards = torch.cat([random_rewards(P=3), torch.ones(4, 5)])
    kept = ~zero_variance(rewards)
    assert kept.tolist() == [True] * 3 + [False] * 4
    filtered = advantages(rewards[kept], norm="batch")
    diluted = advantages(rewards, norm="batch")[kept]
    torch.testing.assert_close(diluted, filtered * math.sqrt(7 / 3))  # louder by sqrt(P / P kept)


def test_zero_variance_has_a_tolerance_and_means_equal_not_zero():
    rewards = torch.tensor([[0.5, 0.5 + 5e-7], [0.5, 0.50001], [-1.0, -1.0], [-1.0, 1.0]])
    assert zero_variance(rewards).tolist() == [True, False, True, False]
    assert zero_variance(rewards, tol=1e-2).tolist() == [True, True, True, False]
    assert zero_variance(rewards, tol=0).tolist() == [False, False, True, False]


@pytest.mark.parametrize("norm", NORMS)
def test_groups_of_one_and_batches_of_none_are_no_special_case(norm):
    assert advantages(torch.tensor([[1.0], [-1.0], [0.3]]), norm=norm).tolist() == [[0.0]] * 3
    assert advantages(torch.zeros(0, 5), norm=norm).shape == (0, 5)
    assert advantages(torch.tensor([[1, -1, -1]]), norm=norm).dtype == torch.float32  # int rewards


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_named(bad):
    """One of them would make the advantages of the whole batch nan."""
    rewards = random_rewards()
    rewards[4, 3] = bad
    with pytest.raises(ValueError, match=f"prompt 4, sample 3 is {bad}:"):
        advantages(rewards)


def test_length_penalty_is_free_then_linear_then_minus_one():
    lengths = [0, 1200, 1201, 1300, 1399, 1400, 5000]
    ours = length_penalty(torch.tensor(lengths), l_max=1400, l_cache=200).tolist()
    plain = [min(0.0, max(-1.0, (1400 - n) / 200 - 1)) for n in lengths]
    assert ours == pytest.approx(plain)
    assert plain[:2] == [0, 0] and plain[3] == -0.5 and plain[-2:] == [-1, -1]


# --------------------------------------------------------------------------------------------------
# 3. Token weights
# --------------------------------------------------------------------------------------------------
def ragged_mask(N, T):
    """Lengths from 1 to T, with holes: a forced phrase is inside the answer but not trained."""
    mask = torch.arange(T) < torch.randint(1, T + 1, (N, 1))
    holes = torch.rand(N, T) < 0.2
    holes[:, 0] = False  # every sample keeps a token
    return mask & ~holes


def plain_weights(mask, prompt_index, aggregation):
    """token_weights as nested loops over lists."""
    mask, prompt_index = mask.tolist(), prompt_index.tolist()
    pool = {"token": lambda n: 0, "sample": lambda n: n, "prompt": lambda n: prompt_index[n]}
    pool_of = [pool[aggregation](n) for n in range(len(mask))]
    tokens = defaultdict(int)
    for n, row in enumerate(mask):
        tokens[pool_of[n]] += sum(row)
    pools = sum(count > 0 for count in tokens.values())
    return [[m / tokens[pool_of[n]] / pools if m else 0.0 for m in row]
            for n, row in enumerate(mask)]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_weights_equal_their_definition_wherever_a_prompts_samples_lie(aggregation):
    """Samples come back in the order they finish. Code that assumes prompts to be contiguous, or
    repeats prompts in one order and answers in another, pools the tokens of strangers. A prompt
    or a sample without a trained token is not counted, or the others would get less than 1; one
    with a single token is."""
    N, T = 20, 7
    mask, prompt_index = ragged_mask(N, T), torch.tensor([40, 7, 1003, 2]).repeat(5)
    prompt_index = prompt_index[torch.randperm(N)]
    mask[(prompt_index == 1003) | (prompt_index == 2)] = False
    mask[(prompt_index == 2).nonzero()[3], 1] = True
    mask[(prompt_index == 7).nonzero()[2]] = False
    weights = token_weights(mask, prompt_index, aggregation=aggregation)
    assert weights.dtype == torch.float32 and weights.sum().item() == pytest.approx(1)
    expected = torch.tensor(plain_weights(mask, prompt_index, aggregation))
    torch.testing.assert_close(weights, expected)
    order = torch.randperm(N)
    shuffled = token_weights(mask[order], prompt_index[order], aggregation=aggregation)
    torch.testing.assert_close(shuffled, weights[order])


def test_the_three_averages_rank_the_same_tokens_differently():
    """Prompt 0 answers with 1 and 9 tokens, prompt 1 with 2 and 2. Ask each average what share of
    the step it gives to a token of the long answer and to prompt 1: no two agree."""
    lengths, prompts = torch.tensor([1, 9, 2, 2]), torch.tensor([0, 0, 1, 1])
    mask = torch.arange(9) < lengths[:, None]
    share = {}
    for aggregation in AGGREGATIONS:
        w = token_weights(mask, prompts, aggregation=aggregation)
        share[aggregation] = w[1, 0].item(), w[2:].sum().item()
    assert share["prompt"] == pytest.approx((1 / 20, 1 / 2))
    assert share["sample"] == pytest.approx((1 / 36, 1 / 2))
    assert share["token"] == pytest.approx((1 / 14, 4 / 14))


def test_two_batches_are_ranked_in_opposite_order_by_two_averages():
    """One batch has a long right answer and two short wrong ones, the other two short right ones
    and a long wrong one. Which is better is not a matter of taste but of the denominator."""

    def value(lengths, A, aggregation, prompts):
        mask = torch.arange(9) < torch.tensor(lengths)[:, None]
        w = token_weights(mask, torch.tensor(prompts), aggregation=aggregation)
        return (w * torch.tensor(A)[:, None]).sum().item()

    def first_is_better(aggregation, prompts):
        first = value([9, 1, 1], [1.0, -1.0, -1.0], aggregation, prompts)
        return first > value([2, 2, 9], [1.0, 1.0, -1.0], aggregation, prompts)

    same, different = [0, 0, 0], [0, 1, 2]
    assert first_is_better("token", same) and first_is_better("token", different)
    assert first_is_better("prompt", same) and not first_is_better("prompt", different)
    assert not first_is_better("sample", same) and not first_is_better("sample", different)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_padding_changes_nothing(aggregation):
    """Divided by the padded length, a loss shrinks when a neighbor in the batch talks more."""
    N, T = 9, 7
    mask, prompts = ragged_mask(N, T), torch.arange(N) // 3
    padded = F.pad(mask, (0, 4))
    weights = token_weights(padded, prompts, aggregation=aggregation)
    assert (weights[:, T:] == 0).all()
    torch.testing.assert_close(
        weights[:, :T], token_weights(mask, prompts, aggregation=aggregation))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_last_token_counts_like_any_other(aggregation):
    """It is the end token: masked out, the model never learns to stop."""
    mask = torch.arange(7) < torch.tensor([3, 7, 5])[:, None]
    weights = token_weights(mask, torch.tensor([0, 0, 1]), aggregation=aggregation)
    for row, length in zip(weights, (3, 7, 5)):
        assert (row[:length] == row[0]).all() and row[0] > 0 and (row[length:] == 0).all()


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_step_without_tokens_weighs_nothing_and_divides_by_nothing(aggregation):
    for N in (3, 0):
        nothing = torch.zeros(N, 5, dtype=torch.bool)
        weights = token_weights(nothing, torch.arange(N), aggregation=aggregation)
        assert weights.shape == (N, 5) and (weights == 0).all()


# --------------------------------------------------------------------------------------------------
# 4. The loss
# --------------------------------------------------------------------------------------------------
def random_step(P=3, G=5, T=7, spread=0.5, aggregation="prompt", norm="batch", dtype=torch.float64):
    """A step with ratios on both sides of every clip, ragged answers, holes, shuffled prompts."""
    N = P * G
    order = torch.randperm(N)
    A = advantages(random_rewards(P, G), norm=norm).flatten()[order]
    mask = ragged_mask(N, T)
    prompt_index = torch.arange(P).repeat_interleave(G)[order]
    weights = token_weights(mask, prompt_index, aggregation=aggregation)
    behavior_logprobs = -3 * torch.rand(N, T, dtype=dtype) - 0.1
    log_pi = (behavior_logprobs + spread * torch.randn(N, T, dtype=dtype)).requires_grad_()
    return SimpleNamespace(log_pi=log_pi, behavior_logprobs=behavior_logprobs, A=A, weights=weights,
                           mask=mask, lags=torch.randint(3, (N, T)),
                           arguments=(log_pi, behavior_logprobs, A, weights))


def plain_policy_loss(step, loss, eps_max=5.0, eps_low=0.2, eps_high=0.2):
    """Loss and d loss / d log π, by loops and by hand, from policy_loss's docstring."""
    log_pi, behavior_logprobs, A, weights = (x.tolist() for x in step.arguments)
    value, gradient = 0.0, [[0.0] * len(row) for row in log_pi]
    for n, row in enumerate(weights):
        alive = [t for t, w in enumerate(row) if w]
        s = math.exp(statistics.fmean(
            [log_pi[n][t] - behavior_logprobs[n][t] for t in alive] or [0]))
        for t in alive:
            w, rho = row[t], math.exp(log_pi[n][t] - behavior_logprobs[n][t])
            if loss == "cispo":
                value -= w * min(rho, eps_max) * A[n] * log_pi[n][t]
                gradient[n][t] -= w * min(rho, eps_max) * A[n]
            elif loss == "cispo_masked":
                if A[n] < 0 and -math.log(s) > eps_high:  # -log s: the mean of log μ/π
                    continue
                value -= w * min(rho, eps_max) * A[n] * log_pi[n][t]
                gradient[n][t] -= w * min(rho, eps_max) * A[n]
            elif loss == "dppo":
                moved = math.exp(log_pi[n][t]) - math.exp(behavior_logprobs[n][t])
                if moved > eps_high and A[n] > 0 or moved < -eps_low and A[n] < 0:
                    continue
                value -= w * rho * A[n]
                gradient[n][t] -= w * rho * A[n]
            elif loss == "reinforce":
                value -= w * A[n] * log_pi[n][t]
                gradient[n][t] -= w * A[n]
            else:
                assert loss in ("grpo", "dapo", "gspo"), f"write {loss} here, in plain lines"
                ratio = s if loss == "gspo" else rho
                bounded = min(max(ratio, 1 - eps_low), 1 + eps_high)
                value -= w * min(ratio * A[n], bounded * A[n])
                if ratio * A[n] <= bounded * A[n]:  # not clipped: follow the ratio
                    follows = alive if loss == "gspo" else [t]
                    for u in follows:
                        gradient[n][u] -= w * A[n] * ratio / len(follows)
    return value, torch.tensor(gradient, dtype=torch.float64)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_and_its_gradient_equal_the_formula(loss, aggregation, norm):
    step = random_step(aggregation=aggregation, norm=norm)
    settings = dict(eps_max=1.3, eps_low=0.1, eps_high=0.26)  # three bounds, none symmetric
    value, stats = policy_loss(*step.arguments, loss=loss, **settings)
    value.backward()
    expected, gradient = plain_policy_loss(step, loss, **settings)
    assert value.item() == pytest.approx(expected)
    torch.testing.assert_close(step.log_pi.grad, gradient)
    assert merge_stats([stats])["loss"] == pytest.approx(expected)


def test_cispo_differs_from_ppo_exactly_on_clipped_tokens():
    """Inside the clip both push with ρ Â. A token that PPO clips falls silent, and those are the
    rare and decisive ones ("wait", "but"); CISPO keeps them with a bounded weight."""
    step = random_step(P=11, G=9)               # 693 tokens, so that there are some of each kind
    eps = dict(eps_max=1.2, eps_low=0.2, eps_high=0.2)
    ppo, cispo = (gradients(policy_loss(*step.arguments, loss=loss, **eps)[0], step.log_pi)[0]
                  for loss in ("grpo", "cispo"))
    rho, A = (step.log_pi - step.behavior_logprobs).exp(), step.A[:, None].expand_as(step.log_pi)
    alive = step.weights > 0
    silenced = alive & (((rho > 1.2) & (A > 0)) | ((rho < 0.8) & (A < 0)))
    capped = alive & (rho > 1.2)
    assert (silenced & capped).any() and (silenced & ~capped).any() and (capped & ~silenced).any()
    assert ((ppo - cispo).abs() > 1e-9).equal(silenced | capped)
    assert (ppo[silenced] == 0).all() and (cispo[silenced] != 0).all()
    torch.testing.assert_close(cispo[capped], (-step.weights * 1.2 * A)[capped].double())


def test_the_clip_is_on_the_side_the_advantage_points_to():
    """A good token that became unlikely, or a bad one that became likely, must still be pulled
    back, however far it went. A clip on both sides would leave it there for good."""
    behavior_logprobs = torch.zeros(4, 1)
    log_pi = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]], requires_grad=True)
    A, weights = torch.tensor([1.0, 1.0, -1.0, -1.0]), torch.full((4, 1), 0.25)
    value, stats = policy_loss(log_pi, behavior_logprobs, A, weights, loss="grpo")
    value.backward()
    e = math.e
    assert log_pi.grad.flatten().tolist() == pytest.approx([0, -1 / e / 4, e / 4, 0])
    assert merge_stats([stats])["ratio/clipped_frac"] == 0.5


def test_the_ratio_is_a_weight_and_gets_no_gradient_of_its_own():
    """Without the stop-gradient, ∇(ρ Â log π) = ρ Â (1 + log π) ∇log π: it changes its sign where
    log π < -1, and every unlikely right token would be made less likely."""
    log_pi = torch.tensor([[-2.0]], requires_grad=True)
    one = torch.ones(1, 1)
    value, _ = policy_loss(log_pi, torch.tensor([[-2.0]]), one[0], one, loss="cispo")
    assert gradients(value, log_pi)[0].item() == pytest.approx(-1)
    naive = -((log_pi + 2).exp() * log_pi).sum()
    assert gradients(naive, log_pi)[0].item() == pytest.approx(+1)


def test_importance_weights_make_stale_samples_unbiased_and_reinforce_does_not():
    """A bandit, enumerated: the expected CISPO gradient over the sampler's draws is the gradient of
    the policy's expected reward (while the cap does not bite); without a ratio it is another's."""
    V = 7
    theta = torch.randn(V, dtype=torch.float64, requires_grad=True)
    mu = torch.randn(V, dtype=torch.float64).softmax(0)
    reward = torch.randn(V).double()
    true = gradients(-(theta.softmax(0) * reward).sum(), theta)[0]
    log_pi, each = theta.log_softmax(0)[:, None], mu[:, None]  # one draw of each, weighted by μ
    found = {loss: gradients(policy_loss(log_pi, mu.log()[:, None], reward, each, loss=loss,
                                         eps_max=1e9)[0], theta)[0]
             for loss in ("cispo", "reinforce")}
    torch.testing.assert_close(found["cispo"], true)
    assert (found["reinforce"] - true).norm() > 0.01 * true.norm()


@pytest.mark.parametrize("loss", [name for name in LOSSES
                                  if name not in ("reinforce", "cispo_masked")])
def test_recomputed_old_logprobs_make_the_clip_inert(loss):
    """The denominator of ρ is what the sampler recorded. A trainer that recomputes it before the
    step gets ρ = 1 and never clips; however stale the samples, the statistics look perfect."""
    step = random_step(spread=1.5)
    bounds = dict(eps_max=1.01, eps_low=0.01, eps_high=0.01)    # outside: nearly every sequence
    recorded = merge_stats([policy_loss(*step.arguments, loss=loss, **bounds)[1]])
    recomputed = (step.log_pi, step.log_pi.detach(), step.A, step.weights)
    inert = merge_stats([policy_loss(*recomputed, loss=loss, **bounds)[1]])
    assert recorded["ratio/clipped_frac"] > 0 and recorded["ess"] < 0.99
    assert inert["ratio/clipped_frac"] == 0 and inert["ess"] == pytest.approx(1)


@pytest.mark.parametrize("loss", LOSSES)
def test_bounds_of_no_width_leave_a_ratio_of_one_and_a_token_without_advantage_unclipped(loss):
    """They are allowed, and 1 lies within. Clipped is what has gone too far along its advantage."""
    bounds = dict(loss=loss, eps_max=1.0, eps_low=0.0, eps_high=0.0)
    step = random_step()
    log_pi = step.behavior_logprobs.clone().requires_grad_()
    value, stats = policy_loss(log_pi, *step.arguments[1:], **bounds)
    expected = -step.weights.double() * step.A.double()[:, None]
    torch.testing.assert_close(gradients(value, log_pi)[0], expected)
    assert merge_stats([stats])["ratio/clipped_frac"] == 0
    if loss != "cispo":                 # its cap is on every ratio
        step.A.zero_()
        stats = policy_loss(*step.arguments, **bounds)[1]
        assert merge_stats([stats])["ratio/clipped_frac"] == 0


def test_dppo_goes_by_how_far_the_probability_moved_where_ppo_goes_by_the_ratio():
    """A rare token that became five times likelier has hardly moved the policy, and learns on; PPO
    silences it. A likely one may move by .24 within PPO's clip; DPPO silences it."""
    behavior_logprobs = torch.tensor([[0.001], [0.7]]).log()
    log_pi = torch.tensor([[0.005], [0.94]]).log().requires_grad_()
    one = torch.ones(2, 1)
    bounds = dict(eps_low=0.36, eps_high=0.36)
    ppo, = gradients(policy_loss(log_pi, behavior_logprobs, one[:, 0], one, loss="grpo",
                                 **bounds)[0], log_pi)
    dppo, = gradients(policy_loss(log_pi, behavior_logprobs, one[:, 0], one, loss="dppo",
                                  eps_low=0.2, eps_high=0.2)[0], log_pi)
    assert ppo.flatten().tolist() == pytest.approx([0, -0.94 / 0.7])
    assert dppo.flatten().tolist() == pytest.approx([-5, 0])


def test_the_sequence_mask_silences_whole_wrong_samples_that_the_policy_has_left_and_no_other():
    """By the mean of a sample, not by tokens: sample 1 has one likelier token and is silent as a
    whole. A right sample that the policy has left is what it should come back to."""
    behavior_logprobs = torch.full((4, 2), -1.0)
    log_pi = torch.tensor([[-2.0, -2.0], [-3.0, -0.5], [-1.1, -1.1], [-0.5, -0.5]])
    log_pi.requires_grad_()
    A, weights = torch.tensor([1.0, -1.0, -1.0, -1.0]), torch.full((4, 2), 1 / 8)
    value, stats = policy_loss(log_pi, behavior_logprobs, A, weights, loss="cispo_masked")
    plain, _ = policy_loss(log_pi, behavior_logprobs, A, weights, loss="cispo")
    masked, cispo = (gradients(x, log_pi)[0] for x in (value, plain))
    assert masked[1].tolist() == [0, 0] and (cispo[1] != 0).all()
    assert masked[[0, 2, 3]].equal(cispo[[0, 2, 3]])
    assert merge_stats([stats])["ratio/clipped_frac"] == 0.25


def test_gspo_at_1e_4_clips_almost_everything():
    """Noise of a token averages out over its sequence, so the sequence's ratio stays within some
    1e-3 of 1. There is the paper's working ε; at 1e-4 nearly every sequence has no gradient."""
    N, T = 133, 401
    A = torch.where(torch.arange(N) % 2 == 0, 1.0, -1.0)
    weights = torch.full((N, T), 1 / (N * T))
    behavior_logprobs = -torch.rand(N, T)
    # After some updates tokens have moved by 5%, on average 2e-3 along the advantage.
    log_pi = (behavior_logprobs + 0.002 * A[:, None] + 0.02 * torch.randn(N, T)).requires_grad_()
    silent = {}
    for eps in (1e-4, 8e-3):
        value, stats = policy_loss(
            log_pi, behavior_logprobs, A, weights, loss="gspo", eps_low=eps, eps_high=eps)
        no_gradient = (gradients(value, log_pi)[0] == 0).float().mean().item()
        silent[eps] = merge_stats([stats])["ratio/clipped_frac"]
        assert silent[eps] == pytest.approx(no_gradient, abs=1e-6)
    assert silent[1e-4] > 0.85 and silent[8e-3] < 0.15
    token_level = policy_loss(log_pi, behavior_logprobs, A, weights, loss="grpo")[1]
    assert merge_stats([token_level])["ratio/clipped_frac"] < 1e-3


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_micro_batches_add_up_to_the_gradient_of_the_step(loss, aggregation):
    """Splits of unequal size, one of them empty. The mean over each split under the name of a token
    mean, as it is often written, weighs the tokens of a small split more."""
    step = random_step(aggregation=aggregation)
    whole, _ = policy_loss(*step.arguments, loss=loss)
    whole_gradient = gradients(whole, step.log_pi)[0]
    splits = [7, 0, 2, 6]
    parts = [policy_loss(*(x.split(splits)[k] for x in step.arguments), loss=loss)[0]
             for k in range(4)]
    assert sum(parts).item() == pytest.approx(whole.item())
    torch.testing.assert_close(gradients(sum(parts), step.log_pi)[0], whole_gradient)
    naive = sum(p / w.sum() for p, w in zip(parts, step.weights.split(splits)) if w.sum() > 0) / 3
    naive_gradient = gradients(naive, step.log_pi)[0]
    assert (naive_gradient - whole_gradient).norm() > 1e-3 * whole_gradient.norm()


def test_a_group_of_equal_rewards_has_no_gradient_but_is_not_free():
    """Kept, it adds exactly nothing to the gradient and still dilutes the others' mean: hence the
    filter before the denominators, not after."""
    rewards = torch.cat([random_rewards(P=2), torch.full((1, 5), 0.1)])
    mask, prompts = ragged_mask(15, 7), torch.arange(3).repeat_interleave(5)
    behavior_logprobs = -torch.rand(15, 7)
    log_pi = (behavior_logprobs + 0.1 * torch.randn(15, 7)).requires_grad_()
    A = advantages(rewards, norm="none").flatten()

    def gradient(rows):
        w = token_weights(mask[rows], prompts[rows])
        value, _ = policy_loss(log_pi[rows], behavior_logprobs[rows], A[rows], w)
        return gradients(value, log_pi)[0]

    kept, filtered = gradient(slice(0, 15)), gradient(slice(0, 10))
    assert (kept[10:] == 0).all()
    torch.testing.assert_close(filtered[:10], kept[:10] * 3 / 2)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_log_ratio_of_80_either_way_stays_finite(loss):
    """e^80 fits a float32 and its square does not; nothing may turn into nan, and CISPO's gradient
    is bounded by its cap where the others' is not."""
    log_pi = torch.tensor([[-1.0, -81.0], [-1.0, -81.0], [-0.5, -0.5]], requires_grad=True)
    behavior_logprobs = torch.tensor([[-81.0, -1.0], [-81.0, -1.0], [-0.5, -0.5]])
    A, weights = torch.tensor([1.0, -1.0, 0.0]), torch.full((3, 2), 1 / 6)
    value, stats = policy_loss(log_pi, behavior_logprobs, A, weights, loss=loss)
    value.backward()
    metrics = merge_stats([stats])
    assert value.isfinite() and log_pi.grad.isfinite().all() and (log_pi.grad[2] == 0).all()
    assert all(math.isfinite(x) for x in metrics.values()) and 0 < metrics["ess"] <= 1
    assert metrics["mismatch/max_abs_dlogp"] == 80
    if loss == "cispo":
        assert log_pi.grad.abs().max().item() == pytest.approx(5 / 6)
    if loss in ("grpo", "dapo"):  # a bad token that became likely: pulled back with all its ratio
        assert log_pi.grad[1, 0].item() == pytest.approx(math.exp(80) / 6, rel=1e-4)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("x", [90.0, 100.0, 104.0, -104.0])
def test_beyond_what_exp_can_hold_a_clipped_token_is_silent_and_none_is_nan(loss, x):
    """e^89 is inf in fp32, and a clip after exp lets 0 · inf = nan into the gradient of a finite
    loss. The oracle computes in float64. Where its ratio is no fp32 and is not clipped (a bad token
    that became likely), ours is an honest inf, at which a run stops."""
    step = random_step(dtype=torch.float32)
    step.A[:3] = torch.tensor([-0.7, 0.0, 1.3])     # a bad, an indifferent and a good sample,
    with torch.no_grad():                           # all their tokens, for gspo's sake
        step.log_pi[:3] = step.behavior_logprobs[:3] + x
    value, stats = policy_loss(*step.arguments, loss=loss)
    value.backward()
    expected, gradient = plain_policy_loss(step, loss)
    assert not step.log_pi.grad.isnan().any() and not value.isnan()
    for mine, oracle in ((step.log_pi.grad, gradient), (value.detach(), torch.tensor(expected))):
        oracle = torch.where(oracle.abs() > 1e30, oracle.sign() * math.inf, oracle).float()
        torch.testing.assert_close(mine, oracle, rtol=1e-3, atol=1e-4)
    assert merge_stats([stats])["mismatch/max_abs_dlogp"] == pytest.approx(abs(x), rel=1e-4)


def test_ratios_too_small_for_float64_leave_the_metrics_finite():
    """(e^-400)^2 is 0 there: the tokens of one lag, in a policy that has moved far away."""
    logprobs = torch.tensor([[-400.0, -500.0, -1.2]], requires_grad=True)
    value, stats = policy_loss(logprobs, torch.full((1, 3), -1.0), torch.tensor([1.0]),
                               torch.full((1, 3), 1 / 3), lags=torch.tensor([[3, 3, 0]]))
    metrics = merge_stats([stats])
    assert value.isfinite() and all(map(math.isfinite, metrics.values()))
    assert metrics["ess/lag_3"] == 0 and metrics["ess/lag_0"] == pytest.approx(1)
    assert metrics["ess"] == pytest.approx(1 / 3)           # one of three tokens counts


def test_k3_is_never_negative_and_has_the_digits_of_the_series():
    """As it is often written, exp(x) - 1 - x in fp32, a mismatch of 1e-6 comes out as noise of
    either sign, and so does its mean."""
    x = 1e-6 * torch.randn(1001)
    naive, ours = x.exp() - 1 - x, k3(x)
    exact = x.double() ** 2 / 2 + x.double() ** 3 / 6
    assert (naive < 0).any() and (ours >= 0).all() and ours.dtype == x.dtype
    torch.testing.assert_close(ours, exact.float(), rtol=1e-5, atol=1e-24)
    for big in (3.0, -20.0):
        assert k3(torch.tensor(big)).item() == pytest.approx(math.exp(big) - 1 - big)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
def test_tokens_of_weight_zero_do_not_exist(loss, garbage):
    """Padding, forced phrases, a padded column, the prompt of an empty sample: whatever they hold
    reaches neither the loss nor a statistic nor a gradient. Multiplying by a mask is not enough."""
    step = random_step(dtype=torch.float32)
    with torch.no_grad():  # sample 4 has no token left, column 6 is padding for all
        step.mask[4], step.mask[:, 6] = False, False
        step.weights *= step.mask
    clean_value, clean_stats = policy_loss(*step.arguments, loss=loss, lags=step.lags)
    clean_gradient = gradients(clean_value, step.log_pi)[0]
    dead = step.weights == 0
    log_pi, behavior_logprobs = step.log_pi.detach().clone(), step.behavior_logprobs.clone()
    log_pi[dead], behavior_logprobs[dead] = garbage, garbage
    A, lags, entropy = step.A.clone(), step.lags.clone(), torch.rand_like(log_pi)
    A[4], lags[dead], entropy[dead] = garbage, -9, garbage
    log_pi.requires_grad_()
    value, stats = policy_loss(log_pi, behavior_logprobs, A, step.weights, loss=loss, lags=lags)
    assert value.equal(clean_value) and stats == clean_stats
    assert gradients(value, log_pi)[0].equal(clean_gradient)
    with_entropy = policy_loss(log_pi, behavior_logprobs, A, step.weights, loss=loss,
                               entropy=entropy)[1]
    expected = (step.weights * entropy)[~dead].sum() / step.weights.sum()
    assert merge_stats([with_entropy])["entropy"] == pytest.approx(expected.item(), rel=1e-5)
    if loss != "reinforce" and garbage != 1e30:
        assert (step.weights * (log_pi - behavior_logprobs).exp()).sum().isnan()  # the naive mask


@pytest.mark.parametrize("bad", [-math.inf, math.nan])
@pytest.mark.parametrize("which", [0, 1])
def test_an_impossible_token_is_an_error_that_names_the_sample(which, bad):
    """-inf from the sampler says that it drew what it held impossible: top-p log-probs, or a
    softmax in low precision. The ratio would be infinite, be capped, and train on."""
    step = random_step()
    step.weights[11, 3] = 0.01
    tensors = [x.detach().clone() for x in step.arguments]
    tensors[which][11, 3] = bad
    name = ("logprobs", "behavior_logprobs")[which]
    with pytest.raises(ValueError, match=f"^{name} of sample 11, token 3 is {bad}"):
        policy_loss(*tensors)


def test_an_advantage_that_is_not_finite_is_an_error_too():
    step = random_step()
    step.A[5] = math.nan
    with pytest.raises(ValueError, match="advantages of sample 5"):
        policy_loss(*step.arguments)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_smallest_steps_work(loss):
    """One token, and none at all: the loss of an empty micro-batch is a zero with a gradient, so
    that every rank can call backward."""
    one = torch.ones(1, 1)
    log_pi = (-one).requires_grad_()
    policy_loss(log_pi, -one, one[0], one, loss=loss)[0].backward()
    assert log_pi.grad.item() == -1
    for N, T in ((3, 5), (0, 5), (3, 0)):
        log_pi = torch.zeros(N, T, requires_grad=True)
        value, stats = policy_loss(log_pi, torch.zeros(N, T), torch.zeros(N), torch.zeros(N, T),
                                   loss=loss, lags=torch.zeros(N, T).long())
        value.backward()
        assert value.item() == 0 and (log_pi.grad == 0).all() and merge_stats([stats]) == {}


def test_forced_tokens_inside_an_answer_have_no_loss_and_no_ratio():
    """think think | phrase phrase | answer: the phrase was put in, not drawn. Counted, its tiny
    probability under the policy would dominate ρ, and GSPO's length would include it."""
    mask = torch.tensor([[True, True, False, False, True]])
    weights = token_weights(mask, torch.tensor([0]))
    behavior_logprobs = torch.tensor([[-1.0, -1.0, 0.0, 0.0, -1.0]])
    log_pi = torch.tensor([[-0.9, -0.9, -30.0, -30.0, -0.9]], requires_grad=True)
    for loss in ("cispo", "gspo"):
        value, stats = policy_loss(log_pi, behavior_logprobs, torch.ones(1), weights, loss=loss)
        metrics = merge_stats([stats])
        assert metrics["ratio/mean"] == pytest.approx(math.exp(0.1), rel=1e-5)
        assert metrics["mismatch/max_abs_dlogp"] == pytest.approx(0.1, rel=1e-5)
        assert gradients(value, log_pi)[0][0, 2:4].tolist() == [0, 0]


def test_inputs_are_never_written_to():
    """A mask shifted in place through a view once made a trainer divide by the padded length."""
    rewards, mask, prompts = random_rewards(), ragged_mask(15, 7), torch.arange(15) // 5
    hidden, weight, targets, g = head_inputs()
    step = random_step()
    tensors = [rewards, mask, prompts, hidden, weight, targets, g, *step.arguments, step.lags]
    before = [x.detach().clone() for x in tensors]
    versions = [x._version for x in tensors]
    for norm in NORMS:
        advantages(rewards, norm=norm), zero_variance(rewards)
    for aggregation in AGGREGATIONS:
        token_weights(mask, prompts, aggregation=aggregation)
    for loss in LOSSES:
        policy_loss(*step.arguments, loss=loss, lags=step.lags)[0].backward()
    gradients(token_logprobs(hidden, weight, targets, temperature=0.5)[0], (hidden, weight), g)
    assert [x._version for x in tensors] == versions
    assert all(x.equal(y) for x, y in zip(tensors, before))


def test_a_loss_without_a_branch_trains_nothing(monkeypatch):
    """Its name was known, its branch misspelled, and PPO's clip was trained without a word."""
    monkeypatch.setattr("loss.LOSSES", (*LOSSES, "mine"))
    with pytest.raises(UnboundLocalError):
        policy_loss(*random_step().arguments, loss="mine")


def test_only_the_trainers_logprobs_receive_a_gradient():
    """The sampler's, the advantages and the weights are data. A gradient through them reaches
    whatever computed them, a value head or a shared trunk, without a word."""
    step = random_step()
    data = [x.detach().double().clone().requires_grad_() for x in
            (step.behavior_logprobs, step.A, step.weights)]
    behavior_logprobs, A, weights = data
    for loss in LOSSES:
        value, _ = policy_loss(step.log_pi, behavior_logprobs, A, weights, loss=loss)
        assert torch.autograd.grad(value, data, allow_unused=True) == (None,) * 3


def test_the_defaults_are_the_papers():
    """Left out, a setting must mean ScaleRL: CISPO capped at 5, prompt average, batch std. Ours,
    for the rivals: clips of 0.2 on both sides."""
    rewards, step = random_rewards(), random_step(spread=1.5)
    assert advantages(rewards).equal(advantages(rewards, norm="batch"))
    by_prompt = token_weights(step.mask, torch.arange(15) // 5, aggregation="prompt")
    assert token_weights(step.mask, torch.arange(15) // 5).equal(by_prompt)
    said = policy_loss(*step.arguments, loss="cispo", eps_max=5.0)[0]
    assert policy_loss(*step.arguments)[0].equal(said)
    for loss in ("grpo", "dapo", "gspo"):
        said = policy_loss(*step.arguments, loss=loss, eps_low=0.2, eps_high=0.2)[0]
        assert policy_loss(*step.arguments, loss=loss)[0].equal(said)


@pytest.mark.parametrize("call, message", [
    (lambda s: advantages(torch.zeros(3, 5), norm="group"),
     "norm = 'group': give one of 'batch', 'prompt', 'mean', 'none'"),
    (lambda s: token_weights(s.mask, torch.arange(15), aggregation="promt"),
     "aggregation = 'promt': give one of 'prompt', 'sample', 'token'"),
    (lambda s: policy_loss(*s.arguments, loss="ppo"), "loss = 'ppo': give one of 'cispo'"),
    (lambda s: policy_loss(*s.arguments, eps_max=0.2), "eps_max = 0.2: it caps the ratio itself"),
    (lambda s: policy_loss(*s.arguments, loss="cispo_masked", eps_max=0.2), "eps_max = 0.2: it"),
    (lambda s: policy_loss(*s.arguments, loss="dapo", eps_low=1.26), "eps_low = 1.26"),
    (lambda s: policy_loss(*s.arguments, loss="dapo", eps_high=-0.1), "eps_high = -0.1"),
])
def test_a_wrong_setting_ends_in_a_sentence_with_field_value_and_remedy(call, message):
    with pytest.raises(ValueError) as error:
        call(random_step())
    assert message in str(error.value)


# --------------------------------------------------------------------------------------------------
# 5. Statistics
# --------------------------------------------------------------------------------------------------
def plain_metrics(step, chosen, clipped):
    """The metrics over the tokens for which chosen(n, t), by loops over lists."""
    log_pi, behavior_logprobs, A, weights = (x.tolist() for x in step.arguments)
    tokens = [(w, log_pi[n][t] - behavior_logprobs[n][t], A[n]) for n, row in enumerate(weights)
              for t, w in enumerate(row) if w and chosen(n, t)]
    total = sum(w for w, _, _ in tokens)
    mean = lambda f: sum(w * f(math.exp(x), x, a) for w, x, a in tokens) / total
    ratios, distances = [math.exp(x) for _, x, _ in tokens], [abs(x) for _, x, _ in tokens]
    return {
        "ratio/mean": mean(lambda rho, x, a: rho),
        "ratio/min": min(ratios), "ratio/max": max(ratios),
        "ratio/clipped_frac": mean(lambda rho, x, a: clipped(rho, a)),
        "ess": mean(lambda rho, x, a: rho) ** 2 / mean(lambda rho, x, a: rho**2),
        "mismatch/kl_k3": mean(lambda rho, x, a: rho - 1 - x),
        "mismatch/mean_abs_dlogp": mean(lambda rho, x, a: abs(x)),
        "mismatch/max_abs_dlogp": max(distances),
    }


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("loss, clipped", [
    ("cispo", lambda rho, a: rho > 1.3),
    ("dapo", lambda rho, a: (rho > 1.26 and a > 0) or (rho < 0.9 and a < 0)),
    ("reinforce", lambda rho, a: False),
])
def test_statistics_are_weighted_as_the_loss_is_and_split_by_lag_token_by_token(
        loss, clipped, aggregation):
    """A sample that was running when weights were pushed has tokens of several versions. One
    version stamped on the whole of it would put them all under one lag."""
    step = random_step(aggregation=aggregation)
    value, stats = policy_loss(*step.arguments, loss=loss, eps_max=1.3, eps_low=0.1, eps_high=0.26,
                               lags=step.lags)
    lags = step.lags.tolist()
    expected = {"loss": value.item()} | plain_metrics(step, lambda n, t: True, clipped)
    for lag in set(step.lags[step.weights > 0].tolist()):
        by_lag = plain_metrics(step, lambda n, t: lags[n][t] == lag, clipped)
        expected |= {f"{name}/lag_{lag}": x for name, x in by_lag.items()}
    assert merge_stats([stats]) == pytest.approx(expected)


def test_gspo_reports_the_ratio_it_uses_and_the_mismatch_of_tokens():
    step = random_step()
    _, stats = policy_loss(*step.arguments, loss="gspo")
    metrics = merge_stats([stats])
    log_ratio = torch.where(step.weights > 0, step.log_pi - step.behavior_logprobs, 0).detach()
    s = (log_ratio.sum(1) / (step.weights > 0).sum(1)).exp()
    assert metrics["ratio/max"] == pytest.approx(s.max().item())
    assert metrics["ratio/mean"] == pytest.approx((step.weights.sum(1) * s).sum().item())
    assert metrics["mismatch/max_abs_dlogp"] == pytest.approx(log_ratio.abs().max().item())


@pytest.mark.parametrize("loss", LOSSES)
def test_statistics_of_micro_batches_merge_to_those_of_the_step(loss):
    """In any split and order, an empty one among them. Neither the last micro-batch's numbers nor
    the mean of all of them are the step's, and both have been logged as such."""
    step = random_step(aggregation="token")
    entropy = torch.rand_like(step.weights)
    arguments = (*step.arguments, step.lags, entropy)

    def stats_of(split):
        return policy_loss(*split[:4], loss=loss, lags=split[4], entropy=split[5])[1]

    whole = merge_stats([stats_of(arguments)])
    splits = [7, 0, 2, 6]
    parts = [stats_of([x.split(splits)[k] for x in arguments]) for k in range(4)]
    random.shuffle(parts)
    as_sent_between_ranks = json.loads(json.dumps(parts))  # plain floats, no tensors
    assert merge_stats(as_sent_between_ranks) == pytest.approx(whole)
    each = [merge_stats([p]) for p in parts if p]
    assert sum(m["loss"] for m in each) == pytest.approx(whole["loss"])
    for name in ("mismatch/kl_k3", "mismatch/mean_abs_dlogp", "entropy", "ratio/mean"):
        # 1e-12: two random numbers are nearer than 1e-6 by chance, once in some thousand runs.
        assert each[-1][name] != pytest.approx(whole[name], rel=1e-12)
        assert statistics.fmean(m[name] for m in each) != pytest.approx(whole[name], rel=1e-12)


def test_ess_is_one_without_lag_and_the_share_of_one_token_when_it_dominates():
    N = 9
    weights, zeros = torch.full((N, 1), 1 / N), torch.zeros(N, 1)
    ess = lambda log_pi: merge_stats([policy_loss(log_pi, zeros, torch.ones(N), weights)[1]])["ess"]
    assert ess(zeros) == pytest.approx(1)
    one = zeros.clone()
    one[4] = 50.0
    assert ess(one) == pytest.approx(1 / N)


def test_the_examples_in_the_header_run():
    failed, attempted = doctest.testmod(loss_module)
    assert attempted and not failed


# --------------------------------------------------------------------------------------------------
# 6. Agreement with TRL
# --------------------------------------------------------------------------------------------------
# TRL's own code is called, GRPOTrainer._compute_loss, on an object that has just the attributes it
# reads; the log-probs are given instead of computed by a model. Where the definitions differ:
#   - TRL's CISPO averages over all tokens ("token"); the prompt average of the paper it has not.
#   - Its cap is `epsilon_high`, taken as the ratio itself, with a default of 0.2.
#   - Its "batch" std is that of the rewards, with n - 1 and + 1e-4 (see the test in section 2).
#   - A sample without tokens counts as a zero in its sample average; ours leaves the average.
def trl_loss(step, loss_type, *, epsilon_low=0.2, epsilon_high=0.2, level="token"):
    GRPOTrainer = pytest.importorskip("trl", reason="TRL is an oracle only").GRPOTrainer
    log_pi, behavior_logprobs, A, weights = step.arguments
    mask = (weights > 0).long()
    N, T = mask.shape
    accelerator = SimpleNamespace(num_processes=1, gather=lambda x: x,
                                  gather_for_metrics=lambda x: x, reduce=lambda x, reduction: x)
    trainer = SimpleNamespace(
        loss_type=loss_type, epsilon_low=epsilon_low, epsilon_high=epsilon_high, beta=0.0,
        importance_sampling_level=level, accelerator=accelerator,
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        model=SimpleNamespace(training=True), current_gradient_accumulation_steps=1,
        top_entropy_quantile=1.0, off_policy_mask_threshold=None, aux_loss_enabled=False,
        use_vllm=False, vllm_importance_sampling_correction=False, _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *a, **k: (log_pi, torch.zeros_like(log_pi), None),
    )
    ids = torch.zeros(N, T, dtype=torch.int64)
    inputs = dict(prompt_ids=ids[:, :1], prompt_mask=ids[:, :1] + 1, completion_ids=ids,
                  completion_mask=mask, advantages=A, old_per_token_logps=behavior_logprobs,
                  ref_per_token_logps=None, num_items_in_batch=mask.sum())
    return GRPOTrainer._compute_loss(trainer, None, inputs), trainer._metrics["train"]


@pytest.mark.parametrize("loss, aggregation, ours, loss_type, theirs", [
    ("cispo", "token", dict(eps_max=1.3), "cispo", dict(epsilon_high=1.3)),
    ("grpo", "sample", dict(), "grpo", dict()),
    ("dapo", "token", dict(eps_high=0.26), "dapo", dict(epsilon_high=0.26)),
    ("gspo", "sample", dict(eps_low=0.03, eps_high=0.04), "grpo",
     dict(epsilon_low=0.03, epsilon_high=0.04, level="sequence")),
    ("grpo", "token", dict(), "bnpo", dict()),
])
def test_losses_agree_with_trl_where_the_definitions_coincide(
        loss, aggregation, ours, loss_type, theirs):
    step = random_step(aggregation=aggregation)
    value, stats = policy_loss(*step.arguments, loss=loss, **ours)
    trl_value, trl_metrics = trl_loss(step, loss_type, **theirs)
    # A loss may nearly cancel: then rounding is large beside it.
    assert value.item() == pytest.approx(trl_value.item(), rel=1e-5, abs=1e-7)
    assert_all_close(gradients(value, step.log_pi),
                     gradients(trl_value, step.log_pi), atol=1e-8, rtol=1e-5)
    if loss == "dapo":
        [clipped] = trl_metrics["clip_ratio/region_mean"]
        assert merge_stats([stats])["ratio/clipped_frac"] == pytest.approx(clipped, rel=1e-5)
