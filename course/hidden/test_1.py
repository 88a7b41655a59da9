"""Hidden checks of exercise 1: other sizes and settings in every run, the gradient by hand."""

import random

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from loss import token_logprobs


@pytest.fixture(autouse=True)
def fresh_inputs(seed):
    random.seed(seed)


def case(dtype=torch.float64):
    """Sizes, a temperature and a chunk that divides T with a rest."""
    T, H, V, c = random.randint(41, 79), random.randint(6, 11), random.randint(90, 130), 0
    while c < 2 or T % c == 0:
        c = random.randint(2, 12)
    hidden, weight = torch.randn(T, H, dtype=dtype), torch.randn(V, H, dtype=dtype)
    return (hidden.requires_grad_(), weight.requires_grad_(), torch.randint(V, (T,)),
            random.uniform(0.4, 1.8), c, torch.randn(T, dtype=dtype))


def by_hand(hidden, weight, targets, temperature, g):
    """log-probs, entropies, and the two gradients."""
    z = (hidden @ weight.T / temperature).detach()
    log_z = z.logsumexp(1, keepdim=True)
    p = (z - log_z).exp()
    logprobs = (z - log_z)[torch.arange(len(z)), targets]
    dz = -g[:, None] * p
    dz[torch.arange(len(z)), targets] += g
    return (logprobs, log_z[:, 0] - (p * z).sum(1), dz @ weight.detach() / temperature,
            dz.T @ hidden.detach() / temperature)


@pytest.mark.parametrize("number", range(4))
def test_results_and_gradients_at_random_sizes_temperatures_and_chunks(number):
    hidden, weight, targets, temperature, c, g = case()
    g[random.randrange(len(g))] = 0
    logprobs, entropy = token_logprobs(hidden, weight, targets, temperature=temperature,
                                       chunk_tokens=c)
    found = logprobs, entropy, *torch.autograd.grad(logprobs, (hidden, weight), g)
    for name, a, b in zip(("log-probs", "entropies", "gradient of hidden", "gradient of weight"),
                          found, by_hand(hidden, weight, targets, temperature, g)):
        assert torch.allclose(a.detach(), b, 1e-7, 1e-9), (
            f"{name} are off by {(a - b).abs().max():.2g} with T {len(g)}, V {len(weight)}, "
            f"chunk_tokens {c}, temperature {temperature:.2f}.")
    assert not entropy.requires_grad, "the entropy carries a gradient."


class Largest(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.made = self.large = 0
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, torch.Tensor):
                self.elements = max(self.elements, x.untyped_storage().nbytes() // x.itemsize)
        return result


def test_the_largest_tensor_grows_with_the_chunk_and_not_with_the_tokens():
    H, V = 3, random.randint(150, 250)
    for T, c in ((random.randint(300, 500), 7), (random.randint(600, 900), 11)):
        hidden, weight = (torch.randn(n, H, requires_grad=True) for n in (T, V))
        with Largest() as largest:
            out = token_logprobs(hidden, weight, torch.randint(V, (T,)), chunk_tokens=c)[0]
            torch.autograd.grad(out, (hidden, weight), torch.randn(T))
        allowed = max(c * V, T * H, V * H)
        assert largest.elements <= allowed, (
            f"a tensor of {largest.elements:,} elements for T {T}, V {V}, chunk_tokens {c}: no "
            f"more than {allowed:,} are needed.")


def test_what_forward_keeps_is_of_the_size_of_its_inputs():
    """Hidden states, weight, targets, log Z, and at most the buffer of one chunk."""
    T, H, V, c = random.randint(400, 600), 3, 199, 5
    hidden, weight = torch.randn(T, H, requires_grad=True), torch.randn(V, H, requires_grad=True)
    out = token_logprobs(hidden, weight, torch.randint(V, (T,)), chunk_tokens=c)[0]
    node = out.grad_fn
    while "TokenLogprobs" not in type(node).__name__:
        node = node.next_functions[0][0]

    def elements(x):
        if isinstance(x, torch.Tensor):
            return x.numel()
        return sum(map(elements, x.values() if isinstance(x, dict) else x)) if isinstance(
            x, (list, tuple, dict)) else 0
    kept = elements(node.saved_tensors) + elements(dict(vars(node)))
    assert kept < T * V / 4, f"{kept:,} elements are kept for backward; [T, V] has {T * V:,}."


def test_the_logits_of_bf16_operands_are_fp32_and_the_gradient_is_summed_in_fp32():
    hidden, weight, targets, temperature, c, g = case(torch.float32)
    rounded = [x.detach().bfloat16().requires_grad_() for x in (hidden, weight)]
    found = token_logprobs(*rounded, targets, temperature=temperature, chunk_tokens=c)[0]
    exact = by_hand(*(x.double() for x in rounded), targets, temperature, g.double())
    assert found.dtype == torch.float32 and torch.allclose(found.double(), exact[0], 1e-4, 1e-4), (
        "log-probs of bf16 operands: the logits were rounded.")
    ones = torch.ones(2049, 3).bfloat16()
    head = torch.zeros(5, 3).bfloat16().requires_grad_()
    token_logprobs(ones, head, torch.zeros(2049).long(), chunk_tokens=1)[0].sum().backward()
    assert head.grad.dtype == torch.bfloat16 and abs(head.grad[0, 0] / (2049 * 0.8) - 1) < 2**-7, (
        "the gradient of a bf16 weight: added up in bf16 it stops growing after some 256 chunks. "
        "Add up in Head.dtype, return weight.dtype.")


def test_garbage_without_gradient_reaches_nothing_and_large_logits_stay_finite():
    hidden, weight, targets, temperature, c, g = case()
    dead = torch.rand(len(g)) < 0.5
    dead[0], dead[1] = True, False
    with torch.no_grad():
        hidden[dead] = torch.inf
    g[dead] = 0
    out = token_logprobs(hidden, weight, targets, temperature=temperature, chunk_tokens=c)[0]
    of_hidden, of_weight = torch.autograd.grad(out, (hidden, weight), g)
    *_, a, b = by_hand(hidden[~dead], weight, targets[~dead], temperature, g[~dead])
    assert torch.allclose(of_hidden[~dead], a) and torch.allclose(of_weight, b), (
        "tokens with g = 0 and a hidden state of inf change the gradient of the others.")
    assert (of_hidden[dead] == 0).all(), "the gradient of tokens with g = 0 is not 0."
    big = token_logprobs(1e4 * torch.ones(3, 2), torch.ones(7, 2), torch.tensor([0, 3, 6]))[0]
    assert torch.allclose(big, -torch.tensor(7.0).log(), 1e-3), "equal logits of 20,000: log(1/7)."
    empty = token_logprobs(torch.zeros(0, 5), torch.ones(7, 5), torch.zeros(0).long())
    assert [len(x) for x in empty] == [0, 0], "no tokens: two empty results."
