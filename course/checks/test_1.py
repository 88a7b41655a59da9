"""Exercise 1: the log-probs of a head, without a tensor of tokens times vocabulary.

The truth is the plain lines: all logits at once, in float64, differentiated by autograd. Axes: T
tokens, c tokens of a chunk, H hidden, V vocabulary; no two are equal.
"""

import weakref
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from course.checks import compare
from loss import token_logprobs

HERE = "engines/head.py, TokenLogprobs"
same = partial(compare.same, rtol=1e-6, atol=1e-6)
check = partial(compare.check, hint=f"Look at {HERE}.", rtol=1e-6, atol=1e-6)
FIRST = "wrong already with all tokens in one chunk of float64: mend what earlier checks say first."

# Every check has new random inputs; pytest shows their seed when one fails.
pytestmark = pytest.mark.usefixtures("seed")


def inputs(T=13, H=5, V=31, dtype=torch.float64):
    hidden = torch.randn(T, H, dtype=dtype, requires_grad=True)
    weight = torch.randn(V, H, dtype=dtype, requires_grad=True)
    return hidden, weight, torch.randint(V, (T,)), torch.randn(T, dtype=dtype)


def plain(hidden, weight, targets, temperature=1.0):
    """(T,) log-probs, (T,) entropies: right, and too large."""
    log_p = (hidden @ weight.T / temperature).log_softmax(-1)
    return log_p.gather(-1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


# --------------------------------------------------------------------------------- the forward pass
def test_log_probs_are_normalized_logits():
    hidden, weight, targets, _ = inputs()
    logits = (hidden @ weight.T)[torch.arange(13), targets]
    truth, _ = plain(hidden, weight, targets)
    check("log-probs", token_logprobs(hidden, weight, targets)[0], truth, {
        "these are the logits of the targets. Subtract log Σ_v exp z_v of the row.": logits,
        "these are probabilities: take their log.": truth.exp(),
        "the sign is wrong: log π(y) = z_y - log Z is never above zero.": -truth,
    })


def test_the_temperature_divides_the_logits_once():
    hidden, weight, targets, _ = inputs()
    found = token_logprobs(hidden, weight, targets, temperature=0.7)[0]
    check("log-probs at temperature 0.7", found, plain(hidden, weight, targets, 0.7)[0], {
        "the temperature is left out: these are the log-probs at 1. `Head` divides the logits by "
        "the temperature that it is given.": plain(hidden, weight, targets, 1.0)[0],
        "divided by the temperature twice: `Head.logits` has done it already.":
            plain(hidden, weight, targets, 0.49)[0],
        "the logits are multiplied by the temperature.": plain(hidden, weight, targets, 1 / 0.7)[0],
        "the log-probs are divided by the temperature: divide the logits, before the softmax.":
            plain(hidden, weight, targets, 1.0)[0] / 0.7,
    })


def test_the_entropy_is_that_of_the_whole_row_and_has_no_gradient():
    hidden, weight, targets, _ = inputs()
    logprobs, entropy = token_logprobs(hidden, weight, targets, temperature=0.7)
    _, truth = plain(hidden, weight, targets, 0.7)
    check("entropies at temperature 0.7", entropy, truth, {
        "the sign is wrong: an entropy is -Σ p log p, never below zero.": -truth,
        "in bits: use the natural logarithm.": truth / torch.tensor(2.0).log(),
        "this is -log π of the target. The entropy is a mean over all V tokens, -Σ p log p.":
            -logprobs.detach(),
        "this is the entropy at temperature 1: its logits are divided by the temperature too.":
            plain(hidden, weight, targets, 1.0)[1],
    })
    assert not entropy.requires_grad, (
        "the entropy asks for a gradient, and backward has none for it: call "
        "ctx.mark_non_differentiable(entropy) in forward.")


def test_a_last_chunk_that_is_shorter_is_scored_like_the_others():
    """13 tokens in chunks of 4: the last one has a single token."""
    hidden, weight, targets, _ = inputs()
    truth = plain(hidden, weight, targets)
    for c in (50, 13, 4, 1, 12):
        try:
            ours = token_logprobs(hidden, weight, targets, chunk_tokens=c)
        except RuntimeError as error:
            raise AssertionError(f"13 tokens with chunk_tokens = {c} fail: {error}. The last chunk "
                                 f"has {13 - 12 // c * c}.") from error
        for name, found, right in zip(("log-probs", "entropies"), ours, truth):
            assert c < 13 or same(found, right), FIRST
            bad = [] if same(found, right) else [
                t for t in range(13) if not same(found[t], right[t])]
            assert not bad, (
                f"with chunk_tokens = {c} the {name} of tokens {bad} are wrong. The last chunk has "
                f"{13 - 12 // c * c} tokens: slice the buffers to its length, `logits[:n]`.")


def test_no_tokens_give_empty_results():
    hidden, weight, targets, _ = inputs()
    try:
        sizes = [len(x) for x in token_logprobs(hidden[:0], weight, targets[:0])]
    except (RuntimeError, ValueError) as error:
        raise AssertionError(f"T = 0 fails ({error}): return two results of shape (0,).") from error
    assert sizes == [0, 0], f"T = 0 gives results of {sizes} elements, they must be empty."


def test_large_logits_do_not_overflow():
    hidden, weight, targets, _ = inputs()
    one_more = torch.cat([hidden, torch.full((13, 1), 1e3)], 1).float().detach()
    ones = torch.cat([weight, torch.ones(31, 1)], 1).float().detach()       # all logits + 1000
    logprobs, entropy = token_logprobs(one_more, ones, targets)
    assert logprobs.isfinite().all() and entropy.isfinite().all(), (
        "with logits near 1000 the results are inf or nan, because exp(1000) overflows. Subtract "
        "the row's largest logit before exp (or use torch.logsumexp).")
    truth, entropies = plain(one_more.double(), ones.double(), targets)
    check("log-probs of logits near 1000", logprobs, truth, {}, rtol=5e-3, atol=5e-3)
    check("entropies of logits near 1000", entropy, entropies, {}, rtol=5e-3, atol=5e-3)


def test_bf16_operands_are_multiplied_into_fp32_logits():
    """The paper's fp32 head: what is rounded are the operands, never the logits."""
    hidden, weight, targets, _ = (x.detach() for x in inputs(H=65, dtype=torch.float32))
    hidden, weight = hidden.bfloat16(), weight.bfloat16()
    found = token_logprobs(hidden, weight, targets)[0]
    assert found.dtype == torch.float32, f"log-probs of bf16 operands are {found.dtype}, not fp32."
    truth = plain(hidden.double(), weight.double(), targets)[0]
    assert same(token_logprobs(hidden.double(), weight.double(), targets)[0], truth), FIRST
    assert same(found, truth, rtol=1e-4, atol=1e-4), (
        f"log-probs of bf16 operands are off by {(found - truth).abs().max():.1g}: the logits were "
        "rounded to bf16, which cost the paper's runs before CISPO .09 of their ceiling. Take them "
        "from `Head.logits`, and keep them in Head.dtype.")


# -------------------------------------------------------------------------------- the backward pass
def gradients(temperature=1.0, chunk_tokens=1024, **sizes):
    """(of hidden, of weight), ours and the plain lines', with what they were computed from."""
    hidden, weight, targets, g = inputs(**sizes)
    ours = token_logprobs(hidden, weight, targets, temperature=temperature,
                          chunk_tokens=chunk_tokens)[0]
    truth = plain(hidden, weight, targets, temperature)[0]
    return (torch.autograd.grad(ours, (hidden, weight), g),
            torch.autograd.grad(truth, (hidden, weight), g), hidden, weight, targets, g)


def test_the_gradient_is_the_upstream_gradient_times_onehot_minus_softmax():
    ours, truth, hidden, weight, targets, g = gradients()
    p = (hidden @ weight.T).softmax(-1).detach()
    onehot = torch.nn.functional.one_hot(targets, 31).double()
    for name, found, right, of in zip(("gradient of hidden", "gradient of weight"), ours, truth, (
            lambda dz: dz @ weight, lambda dz: dz.T @ hidden)):
        check(name, found, right, {
            "the sign is wrong: dz = g · (onehot(y) - softmax(z)).": -right,
            "g is left out: multiply by the upstream gradient of each token.": of(onehot - p),
            "the + g · onehot(y) is missing.": of(-g[:, None] * p),
            "the - g · softmax(z) is missing.": of(g[:, None] * onehot),
            "one-hot enters without g: g multiplies both terms.": of(onehot - g[:, None] * p),
        })


def test_the_gradient_is_divided_by_the_temperature_once():
    """z = h Wᵀ / temperature, so dh = dz W / temperature."""
    ours, truth, hidden, weight, targets, g = gradients(temperature=0.5)
    one = torch.nn.functional.one_hot(targets, 31).double() - (hidden @ weight.T).softmax(-1)
    at_one = [(2 * g[:, None] * one).detach() @ weight, (2 * g[:, None] * one).T.detach() @ hidden]
    assert all(map(same, *gradients()[:2])), "wrong already at temperature 1: mend that first."
    for name, found, right, wrong in zip(("hidden", "weight"), ours, truth, at_one):
        check(f"gradient of {name} at temperature 0.5", found, right, {
            "the softmax in backward is of logits that are not divided by the temperature.": wrong,
            "half of what it must be: dh = dz W / temperature. The softmax is taken of divided "
            "logits, and the gradient is divided once more.": right / 2,
            "double: you divide by the temperature twice.": right * 2,
            "a quarter of what it must be: you multiply by the temperature, divide.": right / 4,
        })


def test_the_gradients_of_all_chunks_are_there():
    """13 tokens in chunks of 4."""
    for c in (4, 12, 1):
        ours, truth, hidden, weight, targets, g = gradients(chunk_tokens=c)
        p = (hidden @ weight.T).softmax(-1).detach()
        dz = g[:, None] * (torch.nn.functional.one_hot(targets, 31).double() - p)
        bad = [t for t in range(13) if not same(ours[0][t], truth[0][t])]
        assert len(bad) < 13, FIRST
        assert not bad, (f"with chunk_tokens = {c} the gradient of the hidden states of tokens "
                         f"{bad} is wrong. Each chunk fills its own rows of the result.")
        last, rest = slice((12 // c) * c, 13), slice(0, (12 // c) * c)
        check(f"gradient of weight with chunk_tokens = {c}", ours[1], truth[1], {
            "only the last chunk's is left: add the chunks up, do not overwrite.":
                dz[last].T @ hidden[last],
            "only the first chunk's is there.": dz[:c].T @ hidden[:c],
            "the last, shorter chunk is missing.": dz[rest].T @ hidden[rest],
        })


def test_a_kept_graph_can_be_used_twice():
    hidden, weight, targets, g = inputs()
    ours = token_logprobs(hidden, weight, targets, chunk_tokens=4)[0]
    twice = [torch.autograd.grad(ours, (hidden, weight), g, retain_graph=True) for _ in range(2)]
    assert all(same(a, b) for a, b in zip(*twice)), (
        "a second backward pass of the same graph gives another gradient: the first one has "
        "changed, in place, something that forward saved.")


def test_a_frozen_operand_does_not_disturb_the_other():
    hidden, weight, targets, g = inputs()
    truth = torch.autograd.grad(plain(hidden, weight, targets)[0], (hidden, weight), g)
    ours = token_logprobs(hidden, weight, targets)[0]
    assert all(map(same, torch.autograd.grad(ours, (hidden, weight), g), truth)), FIRST
    for i, name in enumerate(("weight", "hidden")):
        operands = [x if k == i else x.detach() for k, x in enumerate((hidden, weight))]
        ours = token_logprobs(*operands, targets, chunk_tokens=4)[0]
        found, = torch.autograd.grad(ours, operands[i], g)
        assert same(found, truth[i]), f"where {name} needs no gradient, the other one is wrong."


def test_backward_works_with_a_bf16_head_too():
    """head_fp32=False rounds operands and logits to bf16: two digits are right."""
    assert all(map(same, *gradients()[:2])), FIRST
    hidden, weight, targets, g = inputs(dtype=torch.float32)
    truth = torch.autograd.grad(plain(hidden, weight, targets, 0.7)[0], (hidden, weight), g)
    ours = token_logprobs(hidden, weight, targets, temperature=0.7, chunk_tokens=4,
                          head_fp32=False)[0]
    try:
        found = torch.autograd.grad(ours, (hidden, weight), g)
    except RuntimeError as error:
        raise AssertionError(
            f"backward with head_fp32=False fails ({error}): there head.weight is bf16, and dz or "
            "the hidden states are not. Cast both with `head.operand` before the products, dz once "
            "it has its factor g / temperature.") from None
    for name, ours, right in zip(("hidden", "weight"), found, truth):
        assert (ours - right).abs().max() <= 0.1 * right.abs().max(), (
            f"with head_fp32=False the gradient of {name} is off by "
            f"{(ours - right).abs().max():.2g}, and rounding to bf16 does not explain so much.")


def test_the_gradient_of_a_bf16_weight_is_added_up_in_fp32():
    """1,000 chunks of one token. In bf16 256 + 0.8 is 256: the sum stops growing there."""
    hidden = torch.ones(1000, 3).bfloat16()
    weight = torch.zeros(5, 3).bfloat16().requires_grad_()          # every softmax is 1/5
    logprobs = token_logprobs(hidden, weight, torch.zeros(1000).long(), chunk_tokens=1)[0]
    found, = torch.autograd.grad(logprobs.sum(), weight)
    assert found.dtype == torch.bfloat16, f"the gradient of a bf16 weight is {found.dtype}."
    assert found[0, 0] > 0, FIRST
    assert abs(found[0, 0] / 800 - 1) < 0.02, (
        f"1,000 chunks that give a bf16 weight a gradient of 0.8 each are {found[0, 0]:.0f} "
        "together, must be 800: you add them up in weight.dtype, and in bf16 256 + 0.8 is 256. Add "
        "up in head.dtype (`torch.zeros_like(weight, dtype=head.dtype)`), round at the end.")


def test_a_token_without_gradient_cannot_spoil_the_head():
    """g = 0 and a hidden state of nan: 0 · nan is nan, so such a token must be left out."""
    hidden, weight, targets, g = inputs()
    dead = torch.arange(13) % 3 == 1
    with torch.no_grad():
        hidden[dead] = torch.nan
    g[dead] = 0
    ours = token_logprobs(hidden, weight, targets, chunk_tokens=4)[0]
    found = torch.autograd.grad(ours, (hidden, weight), g)
    assert found[1].isfinite().all() and found[0].isfinite().all(), (
        "tokens with an upstream gradient of 0 and a hidden state of nan make the gradient nan: "
        "0 · nan is nan. Select the tokens with g != 0 first, and leave zeros for the others.")
    assert all(map(same, *gradients()[:2])), FIRST
    clean = plain(hidden[~dead], weight, targets[~dead])[0]
    truth = torch.autograd.grad(clean, (hidden, weight), g[~dead])
    check("gradient of hidden where a third of g is 0", found[0], truth[0], {})
    check("gradient of weight where a third of g is 0", found[1], truth[1], {})


# ----------------------------------------------------------------------------------------- memory
class Memory(TorchDispatchMode):
    """The largest tensor that any operation makes, and the most elements alive at a time."""

    def __init__(self):
        super().__init__()
        self.alive, self.largest, self.peak = {}, 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, torch.Tensor):
                storage = x.untyped_storage()
                if storage._cdata not in self.alive:
                    weakref.finalize(storage, self.alive.pop, storage._cdata, None)
                self.alive[storage._cdata] = storage.nbytes() // x.itemsize
                self.largest = max(self.largest, self.alive[storage._cdata])
        self.peak = max(self.peak, sum(self.alive.values()))
        return result


@pytest.mark.parametrize("passes", ["forward", "backward"])
def test_no_tensor_of_tokens_times_vocabulary_is_ever_made(passes):
    T, H, V, c = 397, 3, 211, 8
    hidden, weight, targets, g = inputs(T, H, V)
    with Memory() as memory:
        logprobs = token_logprobs(hidden, weight, targets, chunk_tokens=c)[0]
        if passes == "backward":
            torch.autograd.grad(logprobs, (hidden, weight), g, retain_graph=True)
            torch.autograd.grad(logprobs, (hidden, weight), g)
    assert memory.largest < T * V, (
        f"the {passes} pass made a tensor of {memory.largest:,} elements: [T, V] has {T * V:,}. "
        f"With chunk_tokens = {c} none of tokens x vocabulary may have more than {c} rows, "
        f"c·V = {c * V:,} elements. Loop over chunks.")
    assert memory.largest <= c * V, (
        f"the {passes} pass made a tensor of {memory.largest:,} elements: with chunk_tokens = {c} "
        f"no tensor of tokens x vocabulary may have more than {c} rows, c·V = {c * V:,} elements.")
    assert memory.peak < T * V / 4, (
        f"{memory.peak:,} elements were alive at a time in the {passes} pass, and [T, V] has "
        f"{T * V:,}: every chunk is small, but they are all kept. Forward keeps (T,) numbers; "
        "backward computes the logits again.")
