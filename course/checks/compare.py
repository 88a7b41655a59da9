"""How checks compare what came out with the truth, and with what usual mistakes would give."""

import pytest
import torch


def same(found, truth, rtol, atol):
    """Have they one shape, and equal numbers? truth: a tensor, or nested lists."""
    truth = torch.as_tensor(truth, dtype=torch.float64)
    return found.shape == truth.shape and torch.allclose(
        found.detach().double(), truth.detach(), rtol, atol)


def check(name, found, truth, mistakes, hint, rtol, atol):
    """`mistakes` {what the student may have done: what would then have come out}."""
    __tracebackhide__ = True
    assert isinstance(found, torch.Tensor), f"{name}: {type(found).__name__} is no tensor. {hint}"
    truth = torch.as_tensor(truth, dtype=torch.float64)
    assert found.shape == truth.shape, (
        f"{name} has the shape {tuple(found.shape)}, it must be {tuple(truth.shape)}.")
    if same(found, truth, rtol, atol):
        return
    for sentence, wrong in mistakes.items():
        if same(found, wrong, rtol, atol):
            pytest.fail(f"{name}: {sentence}", pytrace=False)
    bad = ~((found - truth).abs() <= rtol * truth.abs() + atol)
    where = tuple(bad.nonzero()[0].tolist())
    pytest.fail(f"{name}: wrong in {int(bad.sum())} of {bad.numel()} places; the first, {where}, "
                f"is {found[where].item():.6g} and must be {truth[where].item():.6g}. {hint}",
                pytrace=False)
