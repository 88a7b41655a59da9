"""The mathematics of ScaleRL (arXiv 2510.13786, section 4).

    J = E_x [ 1/Σ_i|y_i| · Σ_i Σ_t  sg(min(ρ_it, ε_max)) · Â_i · log π(y_it) ]
    ρ_it = π(y_it) / μ(y_it)

x is a prompt, y_i one of its G samples, Â_i its advantage, sg the stop-gradient (`detach`): a term
has the gradient min(ρ, ε_max) Â ∇log π. π is the trainer's present policy: log π is `logprobs`.
μ is the policy that drew the token: log μ is `behavior_logprobs`. Policy gradient: steps along
Â ∇log π raise the mean reward if π drew the tokens. μ did: ρ corrects for it, up to the cap.

Where the paper is silent ("ours"):
 1. The std is over the kept groups, and from a mean of squares over n, not over n - 1.
 2. Forced tokens (sampler.py) have weight zero and are not counted in |y|.
 3. E_x is a mean over the prompts that have a trained token.

Axes: P prompts, G samples each, N samples (P·G or a micro-batch), T tokens, H hidden, V vocabulary.

From rewards to a gradient, for two prompts with two samples each:

>>> rewards = torch.tensor([[1.0, -1.0], [1.0, 1.0]])                # (P, G)
>>> kept = ~zero_variance(rewards)                                   # only prompt 0 is kept
>>> A = advantages(rewards[kept], norm="batch").flatten()            # (N,)
>>> A.tolist()
[1.0, -1.0]
>>> mask = torch.tensor([[True, True, False], [True, True, True]])   # (N, T) of its samples
>>> w = token_weights(mask, torch.tensor([0, 0]), aggregation="prompt")
>>> w.mul(10).tolist()                               # each of the 5 tokens weighs 1/5 (times 10)
[[2.0, 2.0, 0.0], [2.0, 2.0, 2.0]]
>>> behavior_logprobs = torch.full((2, 3), -1.0)
>>> logprobs = behavior_logprobs.clone().requires_grad_()            # here every ratio is 1
>>> loss, stats = policy_loss(logprobs, behavior_logprobs, A, w, loss="cispo", eps_max=5.0)
>>> loss.backward()
>>> logprobs.grad.mul(10).tolist()          # -ρ·w·Â: a step against it makes right answers likelier
[[-2.0, -2.0, 0.0], [2.0, 2.0, 2.0]]
"""

import torch

from engines.head import Head, TokenLogprobs
from engines.loss_stats import k3, merge_stats, statistics  # noqa: F401  (for importers)

AGGREGATIONS = ("prompt", "sample", "token")
NORMS = ("batch", "prompt", "mean", "none")
LOSSES = ("cispo", "cispo_masked", "dppo", "grpo", "dapo", "gspo", "reinforce")


# -- 1. log π, with fp32 logits --------------------------------------------------------------------

def token_logprobs(hidden, weight, targets, *, temperature=1.0, chunk_tokens=1024, head_fp32=True,
                   softcap=None):
    """log π(target) and the entropy of π at every token, from the last hidden states.

    hidden   (..., H)  float; the state that predicts the target (the caller shifts by one)
    weight   (V, H)    float; the head
    targets  (...)     int64 in [0, V)
    temperature        the sampler's
    chunk_tokens       logits exist for this many tokens at a time
    head_fp32          True: logits are summed and kept in fp32, even of bf16 operands (ours).
                       False: bf16 logits. Paper: with GRPO-like losses the ceiling is .52, with
                       fp32 .61 (sec. 3.2); with all else of ScaleRL no difference (sec. 4).
    softcap            c: logits are c tanh(h W' / c), in a few models; None: h W'
    Returns (logprobs, entropy), each (...), float32 (float64 if an operand is). The entropy has no
    gradient. The same in plain lines:

    >>> hidden, weight, targets = torch.randn(7, 5), torch.randn(11, 5), torch.randint(11, (7,))
    >>> logits = hidden @ weight.T / 0.8                                                # (T, V)
    >>> log_p = logits.log_softmax(-1)
    >>> logprobs = log_p.gather(-1, targets[:, None])[:, 0]                             # (T,)
    >>> entropy = -(log_p.exp() * log_p).sum(-1)                                        # (T,)
    >>> both = token_logprobs(hidden, weight, targets, temperature=0.8)
    >>> [torch.allclose(a, b, atol=1e-4) for a, b in zip(both, (logprobs, entropy))]
    [True, True]

    These lines hold (T, V) logits: 10 GB for 16,384 tokens and a vocabulary of 152k. The code below
    does not (engines/head.py)."""
    assert hidden.shape[:-1] == targets.shape, (hidden.shape, targets.shape)
    assert weight.ndim == 2 and weight.shape[1] == hidden.shape[-1], (weight.shape, hidden.shape)
    if not temperature > 0:
        raise ValueError(f"temperature = {temperature}: it divides the logits, give one above 0")
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens = {chunk_tokens}: give at least 1")

    device = hidden.device.type
    if not head_fp32:
        operand_dtype = torch.bfloat16
    elif torch.is_autocast_enabled(device):
        operand_dtype = torch.get_autocast_dtype(device)
    else:
        operand_dtype = torch.promote_types(hidden.dtype, weight.dtype)

    with torch.autocast(device, enabled=False):  # else it would round the fp32 logits to bf16
        logprobs, entropy = TokenLogprobs.apply(  # by position: autograd knows no keywords
            hidden.reshape(-1, hidden.shape[-1]), weight, targets.reshape(-1),  # (T, H) (V, H) (T,)
            temperature, chunk_tokens, operand_dtype, head_fp32, softcap)
    return logprobs.view(targets.shape), entropy.view(targets.shape)


def head_logits(hidden, weight, *, head_fp32=True, softcap=None):
    """(n, H), (V, H) -> (n, V) logits, for samplers, as in `token_logprobs` outside autocast.
    Trainer and sampler must round alike, else the ratio is not 1 even without a lag: with bf16
    autocast in the trainer, a sampler has bf16 weights."""
    operand_dtype = torch.promote_types(hidden.dtype, weight.dtype) if head_fp32 else torch.bfloat16
    head = Head(weight, 1.0, operand_dtype, head_fp32, softcap)     # 1.0: the caller divides
    return head.logits(hidden, out=hidden.new_empty(len(hidden), head.V, dtype=head.dtype))


# -- 2. Â: from rewards to advantages --------------------------------------------------------------

def length_penalty(lengths, *, l_max, l_cache):
    """clip((L_max - |y|) / L_cache - 1, -1, 0), added to the reward of a correct sample. An
    ablation in the paper (L_max 14k, L_cache 2k): ScaleRL interrupts instead."""
    return ((l_max - lengths) / l_cache - 1).clamp(-1, 0)


def zero_variance(rewards, tol=1e-6):
    """(P, G) -> (P,) bool: True where all samples of a prompt earned the same, within tol (ours).

    Such a prompt has no gradient. It leaves the batch before any mean over tokens (paper, sec. 3.2)
    and before the std (ours). The tolerance is for rounding (0.1 + 0.2 is not 0.3)."""
    assert rewards.ndim == 2, rewards.shape
    return rewards.amax(1) - rewards.amin(1) <= tol


def advantages(rewards, *, norm="batch"):
    """Â = (r - mean(group)) / scale: (P, G) -> (P, G). The scale is, by norm:

    "batch"   the std of r - mean(group) over all groups here (ScaleRL): one divisor for all.
              Very easy and very hard prompts have a smaller sum of |Â| than by "prompt".
    "prompt"  the std of the group (GRPO). One success among 16 gets Â = sqrt(15) = 3.9.
    "mean"    2 p, with p the group's pass rate, for rewards ±1 (MaxRL, 2602.02710).
    "none"    1 (Dr. GRPO).
    Groups of equal rewards get zeros, which make the batch's std smaller: remove them first.
    Raises ValueError for an unknown norm or a reward that is not finite."""
    _check_choice("norm", norm, NORMS)
    assert rewards.ndim == 2, rewards.shape
    rewards = rewards if rewards.is_floating_point() else rewards.float()
    if not rewards.isfinite().all():
        p, g = (~rewards.isfinite()).nonzero()[0].tolist()
        raise ValueError(f"reward of prompt {p}, sample {g} is {rewards[p, g]}: it must be finite")

    centered = rewards - rewards.mean(1, keepdim=True)
    # For equal rewards rounding may leave 1e-8: divided by a std of 1e-8, an advantage of 1.
    centered = centered.masked_fill(zero_variance(rewards)[:, None], 0)
    if norm == "none":
        return centered
    if norm == "mean":  # 2 p = 1 + mean
        return centered / (1 + rewards.mean(1, keepdim=True)).clamp(min=1e-6)
    # The mean is zero now, so the std is the root mean square.
    variance = centered.square().mean((0, 1) if norm == "batch" else 1, keepdim=True)
    return centered / torch.where(variance > 0, variance, 1).sqrt()


# -- 3. 1/Σ|y|: how much each token counts ---------------------------------------------------------

def token_weights(mask, prompt_index, *, aggregation="prompt"):
    """Each token's share of the step's loss: (N, T) float32, summing to 1 (0 if none is trained).

    mask          (N, T) bool; True: trained on; False for forced tokens and padding
    prompt_index  (N,) int64; equal for the samples of one prompt
    aggregation   "prompt"  mean over the tokens of all samples of a prompt, then over prompts:
                            1/Σ|y| in J (ScaleRL, DAPO)
                  "sample"  mean over a sample's tokens, then over samples (GRPO): each token
                            of a long wrong answer is punished less
                  "token"   mean over all tokens: prompts with long answers count more

    Call it once for the whole step. Micro-batches take rows of it, and their losses add up."""
    _check_choice("aggregation", aggregation, AGGREGATIONS)
    assert mask.dtype == torch.bool and mask.ndim == 2, (mask.dtype, mask.shape)
    assert prompt_index.shape == mask.shape[:1], (prompt_index.shape, mask.shape)
    sample_tokens = mask.sum(1)  # (N,)
    if aggregation == "token":
        denominator = sample_tokens.sum().expand_as(sample_tokens)
    elif aggregation == "sample":
        denominator = sample_tokens * (sample_tokens > 0).sum()
    else:
        prompts, prompt_of = prompt_index.unique(return_inverse=True)  # (P,), (N,) in 0..P-1
        prompt_tokens = sample_tokens.new_zeros(len(prompts))
        prompt_tokens.index_add_(0, prompt_of, sample_tokens)
        denominator = prompt_tokens[prompt_of] * (prompt_tokens > 0).sum()
    return mask.float() / denominator.clamp(min=1)[:, None]  # clamp: no 0/0 in rows without tokens


# -- 4. The loss -----------------------------------------------------------------------------------

def policy_loss(logprobs, behavior_logprobs, advantages, weights, *, loss="cispo", eps_max=5.0,
                eps_low=0.2, eps_high=0.2, lags=None, entropy=None):
    """-J over some rows of a step, with the term that `loss` names.

    logprobs           (N, T)  log π, the trainer's now; only these receive a gradient
    behavior_logprobs  (N, T)  log μ as the sampler recorded it. The weights that drew the token
                               are gone; by the present ones every ratio would be 1.
    advantages         (N,)    Â
    weights            (N, T)  rows of `token_weights`, not a mask; weight 0: token is ignored
    loss               "cispo"      sg(min(ρ, eps_max)) · Â · log π
                       "cispo_masked"  the same, but a sample is dropped if Â < 0 and its mean of
                                    log μ/π is above eps_high (DeepSeek-V3.2's mask, 2512.02556;
                                    with CISPO: ours)
                       "dppo"       ρ Â, but a token is dropped if Â > 0 and π - μ > eps_high,
                                    or Â < 0 and π - μ < -eps_low (2602.04879)
                       "grpo"       min(ρ Â, clip(ρ, 1 - eps_low, 1 + eps_high) Â)
                       "dapo"       the same; in the paper eps_high is 0.26
                       "gspo"       the same with one ratio for a sequence, (Π_t ρ_t)^(1/|y|) (the
                                    root: GSPO's authors); set aggregation "sample", too
                       "reinforce"  Â · log π: no ratio (ours)
    eps_max            cispo's cap on the ratio itself
    eps_low, eps_high  how far the ratio may move from 1 (cispo_masked, dppo: see above). For gspo
                       3e-3 and 5e-3 (paper, A.17): a sequence's ratio is a mean, close to 1.
    lags, entropy      (N, T), optional: for the statistics alone

    Returns (loss, stats): a scalar, and floats for `merge_stats`. Raises ValueError for an unknown
    loss, an impossible clip, or a trained token whose log-prob or advantage is not finite."""
    _check_choice("loss", loss, LOSSES)
    if loss in ("cispo", "cispo_masked") and not eps_max >= 1:
        raise ValueError(f"eps_max = {eps_max}: it caps the ratio itself, not its distance from 1;"
                         " give at least 1 (the paper has 4 to 8)")
    if not (0 <= eps_low <= 1 and eps_high >= 0):
        raise ValueError(f"eps_low = {eps_low}, eps_high = {eps_high}: give 0 <= eps_low <= 1"
                         " and eps_high >= 0 (PPO's clip is to [1 - eps_low, 1 + eps_high])")
    N, T = logprobs.shape
    assert behavior_logprobs.shape == weights.shape == (N, T) and advantages.shape == (N,), (
        logprobs.shape, behavior_logprobs.shape, weights.shape, advantages.shape)

    mask = weights > 0
    weights = torch.where(mask, weights, 0).detach()
    A = _masked("advantages", advantages[:, None].expand(N, T), mask).detach()
    logprobs = _masked("logprobs", logprobs, mask)
    behavior_logprobs = _masked("behavior_logprobs", behavior_logprobs, mask).detach()

    log_ratio = logprobs - behavior_logprobs
    # The log ρ that is capped or clipped: in GSPO the sequence's, else the token's.
    log_rho = _sequence_log_ratio(log_ratio, mask) if loss == "gspo" else log_ratio
    if loss == "cispo":
        objective, clipped = _capped(logprobs, log_rho, A, eps_max)
    elif loss == "cispo_masked":
        clipped = mask & (A < 0) & (-_sequence_log_ratio(log_ratio.detach(), mask) > eps_high)
        objective = torch.where(clipped, 0, _capped(logprobs, log_rho, A, eps_max)[0])
    elif loss == "dppo":
        moved = logprobs.detach().exp() - behavior_logprobs.exp()  # π - μ
        clipped = ((moved > eps_high) & (A > 0)) | ((moved < -eps_low) & (A < 0))
        rho = torch.where(clipped | (A == 0), 0, log_rho).exp()  # exp of 0: `_clipped` says why
        objective = torch.where(clipped, 0, rho * A)
    elif loss in ("grpo", "dapo", "gspo"):
        objective, clipped = _clipped(log_rho, A, 1 - eps_low, 1 + eps_high)
    elif loss == "reinforce":
        objective, clipped = A * logprobs, torch.zeros_like(mask)

    stats = statistics(mask=mask, weights=weights, lags=lags, log_ratio=log_ratio, log_rho=log_rho,
                       clipped=clipped, token_loss=-objective, entropy=entropy)  # for the log
    return -(weights * objective).sum(), stats


def _capped(logprobs, log_rho, A, eps_max):
    """CISPO: (term of J, is it capped?) of each token, both (N, T).

    The stop-gradient (`detach`) is the idea: the ratio is only a weight. Over the cap a token keeps
    its gradient, with weight ε_max. PPO's clip gives it none if Â > 0, and if Â < 0 the weight ρ,
    however large. In the paper (A.17) the fitted ceiling depends on the clip's ε, not on ε_max."""
    ratio = log_rho.detach().exp()
    return ratio.clamp(max=eps_max) * A * logprobs, ratio > eps_max


def _sequence_log_ratio(log_ratio, mask):
    """GSPO, cispo_masked: log (Π_t ρ_t)^(1/|y|), the mean of log ρ over a row's trained tokens.
    (N, T), 0 where not trained -> (N, T), the same number in a whole row."""
    return (log_ratio.sum(1) / mask.sum(1).clamp(min=1))[:, None].expand_as(log_ratio)


def _clipped(log_rho, A, low, high):
    """GRPO, DAPO, GSPO: (term of J, is it clipped?) of each token, both (N, T).
    The gradient comes through the ratio, ∇ρ = ρ ∇log π. A clipped ratio is a constant: no gradient.
    A token is clipped only if it has moved too far in the direction of its advantage. PPO's lines:

    >>> log_rho, A = torch.randn(7, 5), torch.randn(7, 5)
    >>> ratio = log_rho.exp()
    >>> objective = torch.minimum(ratio * A, ratio.clamp(0.8, 1.2) * A)
    >>> torch.equal(objective, _clipped(log_rho, A, 0.8, 1.2)[0])
    True

    But e^89 is inf in fp32: a clipped token's gradient would be 0 · inf, which is nan. So tokens
    without a gradient get log ρ = 0 before `exp`."""
    ratio = log_rho.detach().exp()
    too_high, too_low = (ratio > high) & (A > 0), (ratio < low) & (A < 0)
    clipped = too_high | too_low
    constant = clipped | (A == 0)           # terms of J without a gradient
    live = torch.where(constant, 0, log_rho).exp()      # the ratio, with its gradient
    return torch.where(constant, ratio.clamp(low, high), live) * A, clipped


def _masked(name, x, mask):
    """x (N, T) where the mask is True, 0 elsewhere. ValueError if x is not finite where True."""
    bad = mask & ~x.isfinite()
    if bad.any():
        n, t = bad.nonzero()[0].tolist()
        raise ValueError(f"{name} of sample {n}, token {t} is {x[n, t].item()}: a trained token "
                         f"needs a finite value ({int(bad.sum())} such tokens)")
    return torch.where(mask, x, 0)  # not x * mask: 0 · nan is nan


def _check_choice(name, value, choices):
    if value not in choices:
        raise ValueError(f"{name} = {value!r}: give one of {', '.join(map(repr, choices))}")
