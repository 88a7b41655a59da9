"""Hidden checks of exercise 3: other sizes and bounds; the truth is the formula under autograd."""

import random

import pytest
import torch

from loss import _capped, _clipped, _sequence_log_ratio, policy_loss


@pytest.fixture(autouse=True)
def fresh_inputs(seed):
    random.seed(seed)


def case(spread=1.0):
    N, T = random.randint(9, 15), random.randint(16, 23)
    log_pi = (-5 * torch.rand(N, T, dtype=torch.float64)).requires_grad_()
    behavior_logprobs = log_pi.detach() - spread * torch.randn(N, T).double()
    A = torch.randn(N, 1).double().expand(N, T)
    mask = torch.rand(N, T) < 0.7
    mask[0] = False
    return log_pi, behavior_logprobs, A, mask


def grad(value, x):
    return torch.autograd.grad(value.sum(), x, retain_graph=True)[0]


def agree(name, found, truth):
    assert found.shape == truth.shape and torch.allclose(found, truth, 1e-6, 1e-9), (
        f"{name} is off by {(found - truth).abs().max():.2g}.")


@pytest.mark.parametrize("number", range(3))
def test_cispo_at_a_random_cap(number):
    log_pi, behavior_logprobs, A, _ = case()
    cap = random.uniform(1, 3)
    objective, capped = _capped(log_pi, log_pi - behavior_logprobs, A, cap)
    rho = (log_pi - behavior_logprobs).detach().exp()
    weight = torch.minimum(rho, torch.full_like(rho, cap))
    agree("CISPO's term", objective.detach(), (weight * A * log_pi).detach())
    agree("CISPO's gradient", grad(objective, log_pi), weight * A)
    assert capped.equal(rho > cap), "CISPO: where the cap acts is ρ > ε_max."


@pytest.mark.parametrize("number", range(3))
def test_ppos_clip_between_random_bounds(number):
    log_pi, behavior_logprobs, A, _ = case()
    low, high = random.uniform(0.5, 0.95), random.uniform(1.05, 1.6)
    objective, clipped = _clipped(log_pi - behavior_logprobs, A, low, high)
    ratio = (log_pi - behavior_logprobs).exp()
    truth = torch.minimum(ratio * A, ratio.clamp(low, high) * A)
    agree("the clip's term", objective.detach(), truth.detach())
    found = grad(objective, log_pi)
    agree("the clip's gradient", found, grad(truth, log_pi))
    assert clipped.equal(found == 0), "`clipped` is where the gradient is taken."


def test_gspos_ratio():
    log_pi, behavior_logprobs, _, mask = case()
    log_ratio = torch.where(mask, log_pi - behavior_logprobs, 0)
    found = _sequence_log_ratio(log_ratio, mask)
    assert found.shape == mask.shape, "one number a token, equal along a sequence."
    for n, row in enumerate(mask):
        if row.any():
            truth = log_ratio[n][row].mean()
            agree(f"GSPO's log ratio of a sequence of {int(row.sum())}", found[n][row],
                  truth.expand(int(row.sum())))
    assert found[0].isfinite().all(), "a sequence without tokens: 0, not nan."


@pytest.mark.parametrize("loss", ["cispo", "grpo", "dapo", "gspo"])
def test_a_step_in_micro_batches_has_the_gradient_of_the_formula(loss):
    log_pi, behavior_logprobs, A, mask = case(0.4)
    weights = torch.rand(mask.shape) * mask
    low, high, cap = random.uniform(0.02, 0.3), random.uniform(0.02, 0.3), random.uniform(1, 1.5)
    settings = dict(loss=loss, eps_max=cap, eps_low=low, eps_high=high)
    cut = random.randint(2, len(mask) - 2)
    value = sum(policy_loss(*(x[rows] for x in (log_pi, behavior_logprobs, A[:, 0], weights)),
                            **settings)[0]
                for rows in (slice(0, cut), slice(cut, None)))
    log_rho = log_pi - behavior_logprobs
    if loss == "gspo":
        log_rho = ((log_rho * mask).sum(1) / mask.sum(1).clamp(min=1))[:, None].expand_as(log_pi)
    ratio = log_rho.exp()
    truth = (ratio.detach().clamp(max=cap) * A * log_pi if loss == "cispo" else
             torch.minimum(ratio * A, ratio.clamp(1 - low, 1 + high) * A))
    truth = -(weights * truth).sum()
    assert value.item() == pytest.approx(truth.item(), rel=1e-5), f"the value of {loss}"
    agree(f"the gradient of {loss}", grad(value, log_pi), grad(truth, log_pi))


@pytest.mark.parametrize("x", [89.0, 200.0, -104.0])
def test_extreme_ratios_make_no_nan(x):
    for A in (1.0, -1.0, 0.0):
        log_rho = torch.full((2, 3), x, requires_grad=True)
        objective, _ = _clipped(log_rho, torch.full((2, 3), A), 0.7, 1.3)
        if not (A < 0 and x > 0):           # a bad token that became likely: an honest inf
            assert objective.isfinite().all(), f"log ratio {x}, Â {A}: {objective[0, 0]}"
            assert grad(objective, log_rho).isfinite().all(), f"log ratio {x}, Â {A}: the gradient"
        assert not objective.isnan().any() and not grad(objective, log_rho).isnan().any()
        log_pi = torch.full((2, 3), -2.0, requires_grad=True)
        objective, _ = _capped(log_pi, torch.full((2, 3), x), torch.full((2, 3), A), 5.0)
        assert grad(objective, log_pi).abs().max() <= 5.0, "CISPO's gradient is at most ε_max |Â|."
