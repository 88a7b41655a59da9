"""Exercise 3 by values: random ratios and bounds; the formulas under autograd are the truth."""
import numpy as np
import torch

from course.hidden.values import close, equal, holds, parts

PARTS, part = parts()


def drawn(rng, spread=1.0):
    N, T = rng.integers(9, 16), rng.integers(16, 24)
    log_pi = -5 * rng.random((N, T))
    behavior = log_pi - spread * rng.normal(size=(N, T))
    A = np.repeat(rng.normal(size=(N, 1)), T, 1)
    mask = rng.random((N, T)) < 0.7
    mask[0] = False
    return log_pi, behavior, A, mask


def t(*arrays):
    return [torch.from_numpy(x) for x in arrays]


def grad(value, x):
    return torch.autograd.grad(value.sum(), x)[0]


@part("CISPO's cap", 4, 15)
def cispo(rng, ask):
    for cap in (*rng.uniform(1, 3, 4), 1.0):
        log_pi, behavior, A, _ = drawn(rng)
        if cap == 1:
            behavior[:3] = log_pi[:3]               # ratios of exactly one are not capped
        terms, where, slope = ask("capped", log_pi=log_pi, behavior=behavior, A=A, cap=float(cap))
        rho = np.exp(log_pi - behavior)
        yield close("CISPO's terms", terms, np.minimum(rho, cap) * A * log_pi, 1e-6, 1e-9)
        yield close("CISPO's gradient", slope, np.minimum(rho, cap) * A, 1e-6, 1e-9)
        yield equal("where the cap acts", where, rho > cap)


@part("PPO's clip", 4, 16)
def ppo(rng, ask):
    for _ in range(5):
        log_pi, behavior, A, _ = drawn(rng)
        A[1] = 0
        low, high = float(rng.uniform(0.5, 0.95)), float(rng.uniform(1.05, 1.6))
        log_rho = log_pi - behavior
        terms, where, slope = ask("clipped", log_rho=log_rho, A=A, low=low, high=high)
        x, a = t(log_rho, A)
        ratio = x.requires_grad_().exp()
        right = torch.minimum(ratio * a, ratio.clamp(low, high) * a)
        yield close("the clip's terms", terms, right.detach(), 1e-6, 1e-9)
        yield close("the clip's gradient", slope, grad(right, x), 1e-6, 1e-9)
        rho = np.exp(log_rho)
        acts = ((rho > high) & (A > 0)) | ((rho < low) & (A < 0))
        yield equal("where it is clipped", where, acts)
    kinds = {np.asarray(where).any(), not np.asarray(where).all()}
    yield holds("some tokens are clipped, some are not", kinds == {True})


@part("GSPO's ratio", 2, 8)
def gspo(rng, ask):
    for _ in range(4):
        log_pi, behavior, _, mask = drawn(rng)
        log_ratio, g = np.where(mask, log_pi - behavior, 0), rng.normal(size=mask.shape) * mask
        found, slope = ask("sequence_ratio", log_ratio=log_ratio, mask=mask, g=g)
        count = np.maximum(mask.sum(1, keepdims=True), 1)
        right = log_ratio.sum(1, keepdims=True) / count
        # Off the mask nobody looks at it, but it must be a number: a row may have no token.
        yield close("GSPO's log ratio", np.where(mask, found, np.isfinite(found) - 1.0),
                    np.where(mask, right, 0), 1e-6, 1e-9)
        yield close("its gradient", np.where(mask, slope, 0),
                    np.where(mask, g.sum(1, keepdims=True) / count, 0), 1e-6, 1e-9)


@part("the losses of a step", 1.5, 12)
def losses(rng, ask):
    for loss in ("cispo", "grpo", "dapo", "gspo"):
        log_pi, behavior, A, mask = drawn(rng, 0.4)
        weights = rng.random(mask.shape) * mask
        low, high, cap = rng.uniform(0.02, 0.3), rng.uniform(0.02, 0.3), rng.uniform(1, 1.5)
        found = ask("policy_loss", log_pi=log_pi, behavior=behavior, A=A[:, 0].copy(),
                    weights=weights, loss=loss, eps_max=float(cap), eps_low=float(low),
                    eps_high=float(high))
        x, b, a, w, m = t(log_pi, behavior, A, weights, mask)
        log_rho = x.requires_grad_() - b
        if loss == "gspo":
            log_rho = ((log_rho * m).sum(1) / m.sum(1).clamp(min=1))[:, None].expand_as(x)
        ratio = log_rho.exp()
        right = (ratio.detach().clamp(max=cap) * a * x if loss == "cispo" else
                 torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + high) * a))
        right = -(w * right).sum()
        acts = (ratio > cap if loss == "cispo" else
                ((ratio > 1 + high) & (a > 0)) | ((ratio < 1 - low) & (a < 0)))
        yield close(f"the loss {loss}", found[0], right.item(), 1e-5)
        yield close(f"its gradient, {loss}", found[1], grad(right, x), 1e-6, 1e-9)
        yield close(f"its clipped share, {loss}", found[2],
                    (w * acts).sum().item(), 1e-4, 1e-6)


@part("ratios of e^90", 0.5, 6)
def extreme(rng, ask):
    for size in (89.0, 200.0):
        log_rho = np.array([[size, size, -size, -size, 0.1]], np.float32)
        A = np.array([[1.0, 0.0, 1.0, -1.0, 2.0]], np.float32)
        terms, where, slope = ask("clipped", log_rho=log_rho, A=A, low=0.8, high=1.26)
        e = float(np.exp(0.1))
        yield close("the terms of large ratios", terms, [[1.26, 0, np.exp(-size), -0.8, 2 * e]],
                    1e-5, 1e-7)
        yield close("their gradient", slope, [[0, 0, np.exp(-size), 0, 2 * e]], 1e-5, 1e-7)
        log_pi = np.full((1, 2), -1.0, np.float32)
        *_, slope = ask("capped", log_pi=log_pi, behavior=log_pi - log_rho[:, 1:3],
                        A=np.ones((1, 2), np.float32), cap=5.0)
        yield close("CISPO's gradient", slope, [[5.0, np.exp(-size)]], 1e-5, 1e-7)
