"""Exercise 1 by values: sizes, temperatures and chunks are drawn; plain log-softmax is the truth.

Memory is measured by a limit: for [T, V] at two bytes a number it is not enough.
"""
import numpy as np
import torch

from course.hidden.values import close, equal, holds, parts

PARTS, part = parts()
MEMORY = 140 << 20      # bytes beside the libraries; in fp16 LARGE has 160 MB of logits, a chunk 5
LARGE = dict(T=2_000, H=4, V=40_000)    # few tokens: nobody checks the speed of a loop


def case(rng, dtype=np.float64, T=None, H=None, V=None):
    T, H, V = T or rng.integers(41, 79), H or rng.integers(6, 11), V or rng.integers(90, 130)
    chunk = next(c for c in rng.permutation(np.arange(2, 13)) if T % c)
    return dict(hidden=rng.normal(size=(T, H)).astype(dtype),
                weight=rng.normal(size=(V, H)).astype(dtype),
                targets=rng.integers(V, size=T), g=rng.normal(size=T).astype(dtype),
                temperature=float(rng.uniform(0.4, 1.8)), chunk_tokens=int(chunk))


def truth(hidden, weight, targets, g, temperature, chunk_tokens=0, dtype=torch.float64):
    """log-probs, entropies, and both gradients by hand."""
    hidden, weight, g = (torch.from_numpy(x).to(dtype) for x in (hidden, weight, g))
    z = hidden @ weight.T / temperature
    log_p, at = z.log_softmax(1), (torch.arange(len(z)), torch.from_numpy(targets))
    dz = -g[:, None] * log_p.exp()
    dz[at] += g
    return (log_p[at], -(log_p.exp() * log_p).sum(1), dz @ weight / temperature,
            dz.T @ hidden / temperature)


@part("log-probs and entropies", 3, 12)
def forward(rng, ask):
    for _ in range(4):
        given = case(rng)
        logprobs, entropy, *_ = truth(**given)
        given.pop("g")
        found = ask("head_forward", **given)
        yield close("log-probs", found[0], logprobs, 1e-7, 1e-9)
        yield close("entropies", found[1], entropy, 1e-7, 1e-9)
        yield equal("two results", len(found), 2)


@part("gradients", 3.5, 12)
def gradients(rng, ask):
    for _ in range(4):
        given = case(rng)
        given["g"][rng.integers(len(given["g"]))] = 0
        *_, of_hidden, of_weight = truth(**given)
        found = ask("head", **given)
        yield close("gradient of hidden", found["hidden"], of_hidden, 1e-7, 1e-9)
        yield close("gradient of weight", found["weight"], of_weight, 1e-7, 1e-9)
        yield equal("the entropy carries a gradient", found["carries"], False)


def large(rng):
    given = case(rng, np.float32, **LARGE) | dict(chunk_tokens=32)
    rows = rng.integers(LARGE["T"], size=60)
    some = {name: x[rows] if name in ("hidden", "targets", "g") else x for name, x in given.items()}
    return given, rows, truth(**some)


@part("log-probs without a [T, V] tensor", 1.5, 1)
def forward_in_memory(rng, ask):
    given, rows, right = large(rng)
    given.pop("g")
    yield close("log-probs of 2,000 tokens", ask("head_forward", **given)[0][rows], right[0],
                1e-4, 1e-4)


@part("gradients without a [T, V] tensor", 2, 2)
def backward_in_memory(rng, ask):
    given, rows, right = large(rng)
    given["g"] /= 100
    right = truth(**{name: x[rows] if name in ("hidden", "targets", "g") else x
                     for name, x in given.items()})
    found = ask("head", **given)
    yield close("log-probs", found["logprobs"][rows], right[0], 1e-4, 1e-4)
    yield close("gradient of hidden", found["hidden"][rows], right[2], 1e-3, 1e-4)


@part("bf16 operands: fp32 logits, a gradient summed in fp32", 1, 4)
def precision(rng, ask):
    given = case(rng, np.float32)
    for name in ("hidden", "weight"):
        given[name] = torch.from_numpy(given[name]).bfloat16().float().numpy()
    found = ask("head", **given, bf16=True)
    yield equal("dtype of the log-probs", found["dtype"], "torch.float32")
    yield close("log-probs of bf16 operands", found["logprobs"], truth(**given)[0], 1e-4, 1e-4)
    dtype, gradient = ask("head_sum", tokens=2049)
    yield equal("dtype of the gradient of a bf16 weight", dtype, "torch.bfloat16")
    yield close("gradient of 2,049 chunks, 0.8 each", gradient[0], [2049 * 0.8] * 3, 2**-7)


@part("garbage without gradient, a bf16 head, a kept graph, a frozen operand", 1, 9)
def odd(rng, ask):
    given = case(rng)
    dead = rng.random(len(given["g"])) < 0.5
    dead[:2] = True, False
    given["hidden"][dead], given["g"][dead] = np.inf, 0
    found = ask("head", **given)
    *_, of_hidden, of_weight = truth(**{name: x[~dead] if name in ("hidden", "targets", "g") else x
                                        for name, x in given.items()})
    yield close("gradient of hidden beside garbage", found["hidden"][~dead], of_hidden)
    yield close("gradient of weight beside garbage", found["weight"], of_weight)
    yield holds("tokens with g = 0 have a gradient", bool((found["hidden"][dead] == 0).all()))
    given = case(rng)
    *_, of_hidden, of_weight = truth(**given)
    found = ask("head", **given, twice=True)
    yield close("a second backward pass", found["weight"], of_weight)
    yield close("with weight frozen", ask("head", **given, frozen="weight")["hidden"], of_hidden)
    yield close("with hidden frozen", ask("head", **given, frozen="hidden")["weight"], of_weight)
    given = {name: x.astype(np.float32) if getattr(x, "dtype", None) == np.float64 else x
             for name, x in given.items()}
    found, peak = ask("head", **given, head_fp32=False), float(of_weight.abs().max())
    yield close("head_fp32=False", found["weight"], of_weight, 0, 0.1 * peak)
    big = ask("head_forward", hidden=np.full((3, 2), 1e4), weight=np.ones((7, 2)),
              targets=np.array([0, 3, 6]))
    yield close("equal logits of 20,000", big[0], [-np.log(7)] * 3, 1e-3)
    empty = ask("head_forward", hidden=np.zeros((0, 5)), weight=np.ones((7, 5)),
                targets=np.zeros(0, np.int64))
    yield equal("no tokens", [len(x) for x in empty], [0, 0])
