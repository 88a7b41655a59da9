"""Exercise 3: CISPO against PPO's clip, GRPO and GSPO.

The truth is loops over Python lists, with the gradient written out by hand. Axes: N samples, T
tokens; A (N, T) is each token's advantage.
"""

import math
import statistics
from functools import partial

import pytest
import torch

from course.checks import compare
from loss import _capped, _clipped, _sequence_log_ratio, policy_loss

N, T = 7, 5
same = partial(compare.same, rtol=1e-6, atol=1e-9)
check = partial(compare.check, hint="Read the function's docstring again.", rtol=1e-6,
                atol=1e-9)

# Every check has new random inputs; pytest shows their seed when one fails.
pytestmark = pytest.mark.usefixtures("seed")


def tokens(dtype=torch.float64):
    """log π (with a gradient), log ρ of it, A, both (N, T); ratios on both sides of each bound."""
    log_pi = (-0.1 - 3 * torch.rand(N, T, dtype=dtype)).requires_grad_()
    shift = torch.linspace(-1, 1, N * T, dtype=dtype)[torch.randperm(N * T)].view(N, T)
    A = torch.where(torch.rand(N, T) < 0.5, 1, -1) * (0.5 + torch.rand(N, T, dtype=dtype))
    # The four corners are always there: likelier and less likely, good and bad.
    shift[0, :4] = torch.tensor([0.9, -0.9, 0.9, -0.9])
    A[0, :4] = torch.tensor([1.1, 1.2, -1.3, -1.4])
    return log_pi, log_pi - (log_pi.detach() - shift), A


IN_PLACE = ("log_rho itself was changed: detach() shares its memory, and exp_() writes there. Use "
            "exp(): the caller still needs log ρ.")


def gradient(value, x):
    if not value.requires_grad:
        return torch.zeros_like(x)
    found, = torch.autograd.grad(value.sum(), x, retain_graph=True, allow_unused=True)
    return torch.zeros_like(x) if found is None else found


def by_token(function, *tensors):
    """A (N, T) tensor of function(x, y, ..) at every token, in plain Python."""
    return torch.tensor([[float(function(*numbers)) for numbers in zip(*rows)]
                         for rows in zip(*(x.tolist() for x in tensors))], dtype=torch.float64)


# ------------------------------------------------------------------------------------------- CISPO
def test_cispo_weighs_the_gradient_by_the_capped_ratio():
    """d/dlogπ [sg(min(ρ, ε)) Â log π] = min(ρ, ε) Â."""
    log_pi, log_rho, A = tokens()
    cap = 1.3
    rho = log_rho.detach().exp()
    objective, _ = _capped(log_pi, log_rho, A, cap)
    assert log_rho.detach().exp().equal(rho), IN_PLACE
    ppo = ((rho > cap) & (A > 0)) | ((rho < 2 - cap) & (A < 0))
    found = gradient(objective, log_pi)
    least = (found / A).flatten()[rho.argmin()].item()          # the smallest ratio's weight
    check("CISPO's gradient", found,
          by_token(lambda r, a: min(r, cap) * a, rho, A), {
        "it is zero: the objective must contain log π, with its gradient.": torch.zeros(N, T),
        "the ratio is not detached, so the gradient goes through it as well. It is a weight: "
        "log_rho.detach().exp().":
            torch.where(rho < cap, rho * A * (1 + log_pi), cap * A),
        "this is the gradient of min(ρ, ε) Â, PPO's form: over the cap it is zero. CISPO's is "
        "that of sg(min(ρ, ε)) Â log π, and a capped token keeps the weight ε.":
            torch.where(rho < cap, rho * A, 0),
        "the cap is on the wrong side: the ratio is at least ε instead of at most.":
            rho.clamp(min=cap) * A,
        "no cap acts: a token over ε must have the weight ε.": rho * A,
        "the ratio is missing: this is REINFORCE, Â log π.": A,
        "ratios are capped at 1 + ε. eps_max caps the ratio itself.": rho.clamp(max=1 + cap) * A,
        f"there is a lower cap as well: no weight is below {least:.3g}. CISPO has none, a small "
        "ratio is a small weight.": rho.clamp(least, cap) * A,
        "tokens that PPO would clip have no gradient. CISPO keeps every token.":
            torch.where(ppo, 0, rho * A),
        "capped tokens have no gradient: the cap is their weight, do not mask them.":
            torch.where(rho > cap, 0, rho * A),
        "min(ρ Â, ε Â) is not min(ρ, ε) Â: for a negative advantage it takes the larger "
        "ratio.": torch.minimum(rho * A, cap * A),
        "the cap acts on ρ Â, it must act on ρ alone.": (rho * A).clamp(max=cap),
        "the sign is wrong: the terms of J are to be maximized, policy_loss puts the minus.":
            -rho.clamp(max=cap) * A,
        "log ρ is the weight: take its exp.": log_rho.clamp(max=cap) * A,
    })


def test_cispo_returns_the_terms_of_j():
    log_pi, log_rho, A = tokens()
    rho = log_rho.detach().exp()
    objective, _ = _capped(log_pi, log_rho, A, 1.3)
    least = (objective / A / log_pi).flatten()[rho.argmin()].item()
    check("CISPO's terms", objective, by_token(
        lambda r, a, l: min(r, 1.3) * a * l, rho, A, log_pi), {
        "log π is missing: each term is min(ρ, ε) Â log π.": rho.clamp(max=1.3) * A,
        f"there is a lower cap as well, {least:.3g}: CISPO has none.":
            rho.clamp(least, 1.3) * A * log_pi,
        "the sign is wrong: they are to be maximized, policy_loss puts the minus.":
            -rho.clamp(max=1.3) * A * log_pi})


def test_cispo_says_where_the_cap_acts():
    log_pi, log_rho, A = tokens()
    for eps in (1.3, 2.0):
        found = _capped(log_pi, log_rho, A, eps)[1]
        assert found.dtype == torch.bool, f"`where the cap acts` must be bool, it is {found.dtype}."
        over = log_rho > math.log(eps)
        assert not (found.equal(over & (A > 0)) and not found.equal(over)), (
            "the cap is said to act on good tokens alone. It acts wherever ρ > ε.")
        assert found.equal(over), (
            f"with ε = {eps} the cap is said to act on {int(found.sum())} tokens, and "
            f"{int(over.sum())} have ρ > ε.")
    none = torch.zeros(N, T, dtype=torch.float64)
    assert not _capped(log_pi, none, A, 1.0)[1].any(), (
        "ρ = ε is not capped: ε_max 1 without lag would report every token. Use >, not >=.")


# --------------------------------------------------------------------------------------- PPO's clip
LOW, HIGH = 0.8, 1.26


def test_ppos_clip_silences_only_tokens_that_have_moved_the_way_their_advantage_points():
    """min(ρ Â, clip(ρ) Â): clipped are ρ > high with Â > 0, and ρ < low with Â < 0. A good
    token that became unlikely, or a bad one that became likely, is still pulled back."""
    log_pi, log_rho, A = tokens()
    rho = log_rho.detach().exp()
    objective, _ = _clipped(log_rho, A, LOW, HIGH)
    assert log_rho.detach().exp().equal(rho), IN_PLACE
    inside = (rho >= LOW) & (rho <= HIGH)
    check("the gradient of PPO's clip", gradient(objective, log_pi), by_token(
        lambda r, a: 0 if (a > 0 and r > HIGH) or (a < 0 and r < LOW) else r * a, rho, A), {
        "it is zero: the ratio must keep its gradient here. Only CISPO detaches it.":
            torch.zeros(N, T),
        "both sides are clipped, whatever the advantage: this is clip(ρ) Â without the min. A "
        "bad token that became likely would never be pulled back.": torch.where(inside, rho * A, 0),
        "max instead of min: it silences the tokens that must be pulled back, and lets the others "
        "run away.": torch.where(((rho > HIGH) & (A < 0)) | ((rho < LOW) & (A > 0)), 0, rho * A),
        "min(ρ, clip(ρ)) Â: the min must be of the two products with Â. For a negative "
        "advantage it is the other side.": torch.where(rho > HIGH, 0, rho * A),
        "no token is clipped.": rho * A,
        "clipped at low and high as distances from 1. They are the bounds themselves.":
            torch.where(((rho > 1 + HIGH) & (A > 0)) | ((rho < 1 - LOW) & (A < 0)), 0, rho * A),
        "this is CISPO's gradient: a clipped token must have none.": rho.clamp(LOW, HIGH) * A,
        "the ratio is missing: ∇ρ = ρ ∇log π.": torch.where(
            ((rho > HIGH) & (A > 0)) | ((rho < LOW) & (A < 0)), 0, A),
        "the sign is wrong: the terms of J are to be maximized, policy_loss puts the minus.":
            torch.where(((rho > HIGH) & (A > 0)) | ((rho < LOW) & (A < 0)), 0, -rho * A),
    })
    check("the terms of PPO's clip", objective, by_token(
        lambda r, a: min(r * a, min(max(r, LOW), HIGH) * a), rho, A), {
            "a clipped token's term is its bound times Â, not 0.": torch.where(
                ((rho > HIGH) & (A > 0)) | ((rho < LOW) & (A < 0)), 0, rho * A)})


def test_ppos_clip_says_where_it_takes_the_gradient():
    _, log_rho, A = tokens()
    A[1] = 0
    rho = log_rho.detach().exp()
    found = _clipped(log_rho, A, LOW, HIGH)[1]
    truth = ((rho > HIGH) & (A > 0)) | ((rho < LOW) & (A < 0))
    assert found.dtype == torch.bool, f"`clipped` must be bool, it is {found.dtype}."
    assert not found.equal((rho > HIGH) | (rho < LOW)), (
        "`clipped` counts every ratio outside of the bounds. Half of them keep their gradient: "
        "only where ρ > high and Â > 0, or ρ < low and Â < 0, is it taken.")
    assert not found.equal(truth | (A == 0)), (
        "`clipped` holds the tokens with Â = 0. They have no gradient, and no clip has taken it.")
    assert found.equal(truth), (f"`clipped` is true at {int(found.sum())} tokens, and the clip "
                                f"takes the gradient of {int(truth.sum())}.")


def test_a_huge_ratio_makes_no_nan():
    """e^90 is inf in fp32. A clipped token has no gradient, but 0 · inf is nan."""
    log_rho = torch.tensor([[90.0, 90.0, -90.0, -90.0, 90.0]], requires_grad=True)
    A = torch.tensor([[1.0, 0.0, 1.0, -1.0, 1.0]])
    objective, _ = _clipped(log_rho, A, LOW, HIGH)
    found = gradient(objective, log_rho)
    terms, slopes = ([f"{x:.3g}" for x in row.tolist()[0]] for row in (objective, found))
    assert not objective.isnan().any() and not found.isnan().any(), (
        f"log-ratios of ±90 give the terms {terms} and the gradients {slopes}. e^90 is inf, and "
        "0 · inf is nan: where no gradient passes (clipped, or Â = 0) put 0 in place of log ρ "
        "before exp, with torch.where.")
    log_rho = torch.tensor([[25.0]], requires_grad=True)
    objective, _ = _clipped(log_rho, torch.tensor([[-1.0]]), LOW, HIGH)
    assert same(gradient(objective, log_rho) / -math.exp(25), [[1.0]]), (
        "with Â < 0 a ratio of e^25 keeps its term and its gradient, -e^25: do not clamp log ρ.")
    log_pi = torch.full((1, 2), -1.0, requires_grad=True)
    objective, _ = _capped(log_pi, torch.tensor([[90.0, -90.0]]), torch.ones(1, 2), 5.0)
    assert gradient(objective, log_pi).isfinite().all(), "CISPO's cap must also hold e^90 = inf."


# -------------------------------------------------------------------------------------------- GSPO
def sequences():
    """(N, T) log ratios, 0 off the mask, and the mask: ragged, with holes; row 3 has no token."""
    mask = torch.arange(T) < torch.randint(2, T + 1, (N, 1))
    mask[0] = torch.tensor([True, False, True, False, False])
    mask[1], mask[3] = True, False
    return torch.where(mask, torch.randn(N, T).double(), 0).requires_grad_(), mask


def test_gspos_ratio_is_one_for_a_sequence_the_mean_of_its_log_ratios():
    log_ratio, mask = sequences()
    found = _sequence_log_ratio(log_ratio, mask)
    assert found.shape == (N, T), (
        f"the shape is {tuple(found.shape)}: repeat a sequence's number for its T tokens, {N, T}.")
    rows = [[x for x, m in zip(xs, ms) if m] for xs, ms in zip(log_ratio.tolist(), mask.tolist())]
    repeat = lambda numbers: torch.tensor(numbers, dtype=torch.float64)[:, None].expand(N, T)
    truth = repeat([statistics.fmean(row or [0]) for row in rows])
    assert not found.isnan().any(), "a row without a trained token gives nan: its |y| is 0."
    check("GSPO's log ratio", found * mask, truth * mask, {name: x * mask for name, x in {
        "the product without its root: divide the sum by |y|.": repeat([sum(row) for row in rows]),
        "divided by the padded length T. |y| counts the trained tokens: mask.sum(1).":
            repeat([sum(row) / T for row in rows]),
        "the mean of the ratios, then a log. GSPO's is the geometric mean: the mean of the logs.":
            repeat([math.log(statistics.fmean(map(math.exp, row or [0]))) for row in rows]),
        "the ratio itself. Return its log.": truth.exp(),
        "these are the tokens' own: every token of a row has its sequence's.": log_ratio,
        "the mean over samples (dim 0). A sequence is a row.":
            (log_ratio.sum(0) / mask.sum(0).clamp(min=1)).expand(N, T),
        "one number for the whole batch. Every sequence has its own.":
            (log_ratio.sum() / mask.sum()).expand(N, T),
    }.items()})
    assert found.requires_grad, "the sequence's ratio has lost its gradient: do not detach it."
    moved = gradient(found[1], log_ratio)
    assert same(moved[1], torch.ones(T)) and not moved[0].any(), (
        "the gradient of a sequence's ratio must be shared equally by its tokens.")


# -------------------------------------------------------------------------------- the whole losses
@pytest.mark.parametrize("loss", ["cispo", "grpo", "dapo", "gspo"])
def test_the_loss_of_a_step_and_its_gradient(loss):
    """Your functions inside of policy_loss, which masks, weighs and adds: against loops."""
    log_pi, log_rho, _ = tokens()
    behavior_logprobs, A = (log_pi - log_rho).detach(), torch.randn(N)
    _, mask = sequences()
    weights = mask / mask.sum()
    high = 1.26 if loss == "dapo" else 1.2
    value, stats = policy_loss(log_pi, behavior_logprobs, A, weights, loss=loss, eps_max=1.3,
                               eps_low=0.2, eps_high=high - 1)
    expected, truth, clipped = 0.0, torch.zeros(N, T, dtype=torch.float64), 0.0
    for n in range(N):
        alive, a = [t for t in range(T) if mask[n, t]], A[n].item()
        logs = {t: (log_pi[n, t] - behavior_logprobs[n, t]).item() for t in alive}
        for t in alive:
            w = weights[n, t].item()
            r = math.exp(statistics.fmean(logs.values()) if loss == "gspo" else logs[t])
            if loss == "cispo":
                expected -= w * min(r, 1.3) * a * log_pi[n, t].item()
                truth[n, t] -= w * min(r, 1.3) * a
                clipped += w * (r > 1.3)
                continue
            expected -= w * min(r * a, min(max(r, 0.8), high) * a)
            if (a > 0 and r > high) or (a < 0 and r < 0.8):
                clipped += w
            else:
                follow = alive if loss == "gspo" else [t]
                for u in follow:
                    truth[n, u] -= w * a * r / len(follow)
    assert value.item() == pytest.approx(expected, rel=1e-4), (
        f"the {loss} loss of a step is {value.item():.6f}, and must be {expected:.6f}. Mend what "
        "the checks of the single functions say first.")
    found = gradient(value, log_pi)
    assert (found - truth).abs().max() < 1e-6, (
        f"the gradient of the {loss} loss is off by {(found - truth).abs().max():.2g}, although "
        "its value is right: something is detached that must not be, or the other way round.")
    assert stats[""]["ratio/clipped_frac"] == pytest.approx(clipped, abs=1e-6), (
        f"{loss}: ratio/clipped_frac is {stats['']['ratio/clipped_frac']:.4f}, must be "
        f"{clipped:.4f}. It is the second result of your function.")
