"""The mathematics of ScaleRL (arXiv 2510.13786, section 4), and nothing else.

    J = E_x [ 1/Σ_i|y_i| · Σ_i Σ_t  sg(min(ρ_it, ε_max)) · Â_i · log π(y_it) ]
    ρ_it = π(y_it) / μ(y_it)

π is the trainer's policy now, μ the probability that the sampler recorded when it drew the token,
x a prompt, y_i one of its G samples, Â_i the sample's advantage, sg the stop-gradient. The file
goes through the equation from right to left: log π, Â, the weights 1/Σ|y|, the loss, and what to
watch while it trains. Pure functions of tensors: no configuration, no files, no state.

What the paper leaves open and what we do differently, marked "ours" where it happens:
 1. The std of the advantages is the population's. "Equal rewards" means equal within 1e-6.
 2. E_x is a mean over the prompts that have at least one trained token. All denominators are
    counted once over the whole step, so micro-batches and ranks add up, whatever they hold.
 3. Forced tokens (the interruption phrase) have weight zero: no loss, no ratio, no statistic.
 4. FP32 logits: the operands keep their dtype (bf16 on a GPU), their products are summed and kept
    in fp32. In the backward pass the logits' gradient is rounded to the operands' dtype.
 5. GSPO's root is the number of trained tokens. REINFORCE is there as the loss without a ratio.
 6. KL to a reference and an entropy bonus exist because a widely copied account of the paper
    claims them. The paper has neither; both are off by default.

Axes: P prompts in a step, G samples of a prompt, N = P·G samples, T tokens, H hidden, V vocabulary.

From rewards to a gradient, for two prompts of two samples each (run by tests/test_loss.py):

>>> rewards = torch.tensor([[1.0, -1.0], [1.0, 1.0]])                # (P, G)
>>> kept = ~zero_variance(rewards)                                   # prompt 1 teaches nothing
>>> A = advantages(rewards[kept], norm="batch").flatten()            # (N,)
>>> A.tolist()
[1.0, -1.0]
>>> mask = torch.tensor([[True, True, False], [True, True, True]])   # (N, T), lengths 2 and 3
>>> w = token_weights(mask, torch.tensor([0, 0]), aggregation="prompt")
>>> w.mul(10).tolist()                                               # 1/5 each, 0 off the mask
[[2.0, 2.0, 0.0], [2.0, 2.0, 2.0]]
>>> log_mu = torch.full((2, 3), -1.0)
>>> log_pi = log_mu.clone().requires_grad_()                         # no lag: every ratio is 1
>>> loss, stats = policy_loss(log_pi, log_mu, A, w, loss="cispo", eps_max=5.0)
>>> loss.backward()
>>> log_pi.grad.mul(10).tolist()                                     # -ρ·w·Â: right answers rise
[[-2.0, -2.0, 0.0], [2.0, 2.0, 2.0]]
>>> merge_stats([stats])["ess"]
1.0
"""

import torch

AGGREGATIONS = ("prompt", "sample", "token")
NORMS = ("batch", "prompt", "none")
LOSSES = ("cispo", "grpo", "dapo", "gspo", "reinforce")


# --------------------------------------------------------------------------------------------------
# 1. log π: the language-model head, in fp32, without a (T, V) tensor
# --------------------------------------------------------------------------------------------------
# 16,384 tokens of a 152k vocabulary are 10 GB of fp32 logits, and plain autograd holds three such
# tensors at once, to keep one number a token. Here logits exist for `chunk_tokens` tokens at a
# time, and the backward pass computes them again: four matrix products instead of three. Two things
# pay for the fourth: less memory traffic, and the last chunk, whose logits are still in the buffer
# when the backward pass begins. Up to `chunk_tokens` tokens nothing is computed twice.
#
# Elementwise passes go block by block, so that a block is still in the cache when max, exp and the
# sums visit it. On two CPU cores with V = 49,152 the forward's passes over 4,096 tokens fell from
# 1.0 s to 0.16 s. On a GPU a block need only be large enough to hide the launch of a kernel.
BLOCK_ELEMENTS_CPU = 2**19  # 2 MB of fp32: the L2 of one core
BLOCK_ELEMENTS_GPU = 2**24  # 64 MB


def token_logprobs(
    hidden, weight, targets, *, temperature=1.0, chunk_tokens=1024, head_fp32=True
):
    """log π(target) and the policy's entropy at every token, from the last hidden states.

    hidden   (..., H)  float; the state that predicts the target (the caller shifts by one)
    weight   (V, H)    float; the head, tied to the embedding or not
    targets  (...)     int64 in [0, V)
    temperature        the sampler's: log-probs at another one belong to another policy
    chunk_tokens       logits in memory at a time, (chunk_tokens, V); a call holds them until its
                       backward pass, so many calls before one backward would hold many
    head_fp32          False: logits rounded to bf16, as a bf16 linear layer returns them. The
                       paper's ablation (A falls from .61 to .52), not a way to save memory.
    Returns (logprobs, entropy), each (...), float32; float64 where an operand is float64, so that
    gradients can be checked. Entropy is a diagnostic and carries no gradient.

    Operands are used in the dtype they have; where the two differ, in the wider one. Under
    torch.autocast both are rounded to its dtype, as in any other linear layer; the logits are not,
    and an fp32 weight still receives its gradient in fp32. So a bf16 generator is matched either
    by autocast or by bf16 tensors. Tokens whose log-prob gets no gradient cost nothing in the
    backward pass, and whatever garbage their hidden state holds does not reach the weight.
    """
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

    with torch.autocast(device, enabled=False):  # or it would round the fp32 products once more
        logprobs, entropy = _TokenLogprobs.apply(
            hidden.reshape(-1, hidden.shape[-1]), weight, targets.reshape(-1),
            temperature, chunk_tokens, operand_dtype, head_fp32,
        )
    return logprobs.view(targets.shape), entropy.view(targets.shape)


def head_logits(hidden, weight, *, head_fp32=True):
    """(n, H), (V, H) -> (n, V) fp32 logits, by the same products as `token_logprobs`.

    For a sampler, which needs a whole row to draw from, but only for the tokens of one decode step.
    Both sides must round alike: an fp32 head on one of them alone does not cure the ratio.
    """
    operand_dtype = torch.promote_types(hidden.dtype, weight.dtype) if head_fp32 else torch.bfloat16
    head = _Head(weight, 1.0, operand_dtype, head_fp32)
    return head.logits(hidden, out=hidden.new_empty(len(hidden), head.V, dtype=head.dtype))


class _TokenLogprobs(torch.autograd.Function):
    """z = h Wᵀ / temperature;  log π(y) = z_y - log Σ_v exp z_v;  dz = g · (onehot(y) - softmax z).

    T counts the tokens of all leading axes, c those of one chunk. The casts happen in here and not
    before: autograd would otherwise round the head's gradient to the operands' dtype.
    """

    @staticmethod
    def forward(ctx, hidden, weight, targets, temperature, chunk_tokens, operand_dtype, head_fp32):
        head = _Head(weight, temperature, operand_dtype, head_fp32)
        T, dtype = len(targets), head.dtype
        logprobs, entropy, log_z = (hidden.new_empty(T, dtype=dtype) for _ in range(3))
        logits_buffer = hidden.new_empty(min(chunk_tokens, T), head.V, dtype=dtype)
        exp_buffer = torch.empty_like(logits_buffer[: head.block_rows])

        for start in range(0, T, chunk_tokens):
            chunk = slice(start, start + chunk_tokens)
            logits = head.logits(hidden[chunk], out=logits_buffer)  # (c, V)
            outputs = (x[chunk, None].split(head.block_rows)
                       for x in (targets, logprobs, entropy, log_z))
            for z, y, logprob, ent, lz in zip(logits.split(head.block_rows), *outputs):
                # z (rows, V), the others (rows, 1)
                peak = z.amax(1, keepdim=True)  # (rows, 1)
                e = torch.sub(z, peak, out=exp_buffer[: len(z)]).exp_()  # cannot overflow
                Z = e.sum(1, keepdim=True)
                lz.copy_(Z.log() + peak)
                logprob.copy_(z.gather(1, y) - lz)
                ent.copy_(lz - torch.linalg.vecdot(e, z)[:, None] / Z)  # log Z - Σ p z

        ctx.save_for_backward(hidden, weight, targets, log_z)
        ctx.logits_buffer = logits_buffer if any(ctx.needs_input_grad[:2]) else None
        ctx.settings = temperature, chunk_tokens, operand_dtype, head_fp32
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_logprobs, _):
        hidden, weight, targets, log_z = ctx.saved_tensors
        temperature, chunk_tokens, operand_dtype, head_fp32 = ctx.settings
        hidden_wanted, weight_wanted = ctx.needs_input_grad[:2]
        # backward() may be called inside an autocast region, which would round our products.
        with torch.autocast(hidden.device.type, enabled=False):
            head = _Head(weight, temperature, operand_dtype, head_fp32)
            # fp32 while chunks are added up: in bf16 the sum stops growing after some 256 chunks.
            grad_weight = torch.zeros_like(weight, dtype=head.dtype) if weight_wanted else None
            # Padding, clipped tokens, samples without advantage: no gradient, no matrix product.
            T, live = len(targets), grad_logprobs.nonzero().squeeze(1)
            if len(live) < T:
                hidden, targets, log_z, grad_logprobs = (
                    x[live] for x in (hidden, targets, log_z, grad_logprobs)
                )
            grad_hidden = torch.empty_like(hidden) if hidden_wanted else None
            # The forward pass left the last chunk's logits, good for one use: they are overwritten.
            logits_buffer, ctx.logits_buffer = ctx.logits_buffer, None
            still_there = logits_buffer is not None and len(live) == T
            if logits_buffer is None:
                logits_buffer = log_z.new_empty(min(chunk_tokens, len(live)), head.V)

            for start in reversed(range(0, len(live), chunk_tokens)):
                chunk = slice(start, start + chunk_tokens)
                if still_there:
                    logits, still_there = logits_buffer[: len(live) - start], False
                else:
                    logits = head.logits(hidden[chunk], out=logits_buffer)  # (c, V)
                g = (grad_logprobs[chunk] / temperature)[:, None]  # (c, 1)
                blocks = (x.split(head.block_rows) for x in (logits, log_z[chunk, None], g))
                for z, lz, g_rows in zip(*blocks):
                    z.sub_(lz).exp_().mul_(-g_rows)  # -g · softmax(z), in place
                logits.scatter_add_(1, targets[chunk, None], g)  # + g · onehot(y)
                grad_logits = logits.to(head.weight.dtype)  # bf16 where the head is, else no copy
                if hidden_wanted:
                    head.matmul(grad_logits, head.weight, out=grad_hidden[chunk])
                if weight_wanted:
                    head.add_matmul(grad_weight, grad_logits.t(), head.operand(hidden[chunk]))

            if hidden_wanted and len(live) < T:
                zeros = grad_hidden.new_zeros(T, grad_hidden.shape[1])
                grad_hidden = zeros.index_copy_(0, live, grad_hidden)
        grad_weight = grad_weight.to(weight.dtype) if weight_wanted else None
        return grad_hidden, grad_weight, None, None, None, None, None


class _Head:
    """The three matrix products of the head, each in the precision asked for."""

    def __init__(self, weight, temperature, operand_dtype, head_fp32):
        self.V = len(weight)
        self.temperature, self.operand_dtype, self.head_fp32 = temperature, operand_dtype, head_fp32
        self.dtype = torch.float64 if operand_dtype == torch.float64 else torch.float32
        # CUDA multiplies bf16 operands straight into fp32. Elsewhere torch cannot (2.13), so the
        # rounded operands are held in fp32: the same numbers, at the price of one fp32 head.
        self.widen = head_fp32 and not weight.is_cuda
        self.weight = self.operand(weight)
        block_elements = BLOCK_ELEMENTS_CPU if weight.device.type == "cpu" else BLOCK_ELEMENTS_GPU
        self.block_rows = max(1, block_elements // self.V)

    def operand(self, x):
        x = x.to(self.operand_dtype)
        return x.to(self.dtype) if self.widen else x

    def logits(self, hidden, out):
        """(c, H) -> (c, V) in the first c rows of `out`."""
        logits = self.matmul(self.operand(hidden), self.weight.t(), out=out[: len(hidden)])
        return logits if self.temperature == 1 else logits.div_(self.temperature)

    def matmul(self, a, b, out):
        """out = a @ b. Only a bf16 head (head_fp32=False) rounds before it reaches an fp32 out."""
        if a.dtype == out.dtype:
            return torch.mm(a, b, out=out)
        if self.sums_in_fp32(a) and out.dtype == self.dtype:
            return torch.mm(a, b, out_dtype=self.dtype, out=out)
        return out.copy_(torch.mm(a, b))

    def add_matmul(self, total, a, b):
        """total += a @ b, without a (V, H) temporary where the dtypes allow it."""
        if a.dtype == total.dtype:
            total.addmm_(a, b)
        elif self.sums_in_fp32(a):
            total += torch.mm(a, b, out_dtype=self.dtype)
        else:
            total += torch.mm(a, b)

    def sums_in_fp32(self, a):
        return self.head_fp32 and a.dtype != self.dtype


# --------------------------------------------------------------------------------------------------
# 2. Â: from rewards to advantages
# --------------------------------------------------------------------------------------------------
def length_penalty(lengths, *, l_max, l_cache):
    """clip((L_max - |y|) / L_cache - 1, -1, 0), to be added to the reward of a correct sample.

    Only an ablation in the paper (L_max 14k, L_cache 2k); ScaleRL interrupts instead, so it is off
    unless called. Free up to L_max - L_cache tokens, then linear, -1 from L_max on.
    """
    return ((l_max - lengths) / l_cache - 1).clamp(-1, 0)


def zero_variance(rewards, tol=1e-6):
    """(P, G) -> (P,) bool: True where all samples of a prompt earned the same, within tol (ours).

    Such a prompt has no gradient. It leaves the batch before any denominator is counted (paper,
    section 4), else it would still dilute the mean over prompts and the std over the batch. A
    tolerance, because a verifier that averages partial credits seldom returns the same float twice.
    """
    assert rewards.ndim == 2, rewards.shape
    return rewards.amax(1) - rewards.amin(1) <= tol


def advantages(rewards, *, norm="batch"):
    """Â = r - mean(group), divided by a std: (P, G) -> (P, G).

    norm  "batch"   the std of all advantages in the batch (ScaleRL): one scale for all prompts,
                    so prompts that are nearly always or nearly never solved stay quiet.
          "prompt"  the std of the group (GRPO): every prompt is as loud as the next, and one
                    success among 16 counts sqrt(15) standard deviations.
          "none"    no division (Dr. GRPO).
    Population std (ours). Equal rewards give exact zeros, and so does a group of one; drop such
    groups by `zero_variance` first, or "batch" counts their zeros in its std. Raises ValueError
    for an unknown norm or a reward that is not finite.
    """
    _check_choice("norm", norm, NORMS)
    assert rewards.ndim == 2, rewards.shape
    rewards = rewards if rewards.is_floating_point() else rewards.float()
    if not rewards.isfinite().all():
        p, g = (~rewards.isfinite()).nonzero()[0].tolist()
        raise ValueError(f"reward of prompt {p}, sample {g} is {rewards[p, g]}: it must be finite")

    centered = rewards - rewards.mean(1, keepdim=True)
    # The mean of equal floats may differ from them in the last digit, and a division by the std
    # of such residues would turn them into advantages of size one.
    centered = centered.masked_fill(zero_variance(rewards)[:, None], 0)
    if norm == "none":
        return centered
    # Every group is centered, so the mean is zero and the std is the root mean square.
    variance = centered.square()
    variance = variance.mean() if norm == "batch" else variance.mean(1, keepdim=True)
    return centered / torch.where(variance > 0, variance, 1).sqrt()


# --------------------------------------------------------------------------------------------------
# 3. 1/Σ|y|: how much each token counts
# --------------------------------------------------------------------------------------------------
def token_weights(mask, prompt_index, *, aggregation="prompt"):
    """Each token's share of the step's loss: (N, T) float32, summing to 1, zero off the mask.

    mask          (N, T) bool; True for tokens that the policy sampled and that are trained on
    prompt_index  (N,) int64; equal for the samples of one prompt, any numbers
    aggregation   "prompt"  mean over a prompt's tokens, all samples pooled, then over prompts:
                            1/Σ|y| in J (ScaleRL, and DAPO as the paper sets it up)
                  "sample"  mean over a sample's tokens, then over samples (GRPO). A token of a
                            long sample weighs less: rambling to a wrong answer is cheap.
                  "token"   mean over all tokens. A prompt with long answers outweighs the others.

    Call it once for the whole step, before the step is dealt to micro-batches and ranks; they take
    rows of the result, and their losses simply add up. A denominator counted in each micro-batch
    would make the gradient depend on how the samples were dealt.
    """
    _check_choice("aggregation", aggregation, AGGREGATIONS)
    assert mask.dtype == torch.bool and mask.ndim == 2, (mask.dtype, mask.shape)
    assert prompt_index.shape == mask.shape[:1], (prompt_index.shape, mask.shape)
    sample_tokens = mask.sum(1)  # (N,)
    if aggregation == "token":
        denominator = sample_tokens.sum().expand_as(sample_tokens)
    elif aggregation == "sample":
        denominator = sample_tokens * (sample_tokens > 0).sum()
    else:
        prompts, row = prompt_index.unique(return_inverse=True)  # (P,), (N,) in 0..P-1
        prompt_tokens = sample_tokens.new_zeros(len(prompts)).index_add_(0, row, sample_tokens)
        denominator = prompt_tokens[row] * (prompt_tokens > 0).sum()
    return mask.float() / denominator.clamp(min=1)[:, None]  # 0 only where there is no token


# --------------------------------------------------------------------------------------------------
# 4. The loss
# --------------------------------------------------------------------------------------------------
def policy_loss(
    logprobs, behavior_logprobs, advantages, weights, *, loss="cispo",
    eps_max=5.0, eps_low=0.2, eps_high=0.2, lags=None, entropy=None,
    reference_logprobs=None, kl_coef=0.0, entropy_coef=0.0,
):
    """-J over some rows of a step, to be minimized; micro-batch losses add up to the step's.

    logprobs           (N, T)  log π, the trainer's now; the only argument to receive a gradient
    behavior_logprobs  (N, T)  log μ as the sampler recorded it. If the trainer recomputed it, the
                               ratio would be 1 and no clip would ever bite.
    advantages         (N,)    Â
    weights            (N, T)  rows of `token_weights`; a token of weight 0 does not exist
    loss               "cispo"      sg(min(ρ, eps_max)) · Â · log π
                       "grpo"       min(ρ Â, clip(ρ, 1 - eps_low, 1 + eps_high) Â)
                       "dapo"       the same; DAPO is eps_high = 0.26 and another aggregation
                       "gspo"       the same with one ratio for a sequence: (Π_t ρ_t)^(1/|y|).
                                    It stays near 1, so eps is some 1e-3; at 1e-4 nothing learns.
                       "reinforce"  Â · log π, as if there were no lag
    eps_max            caps the ratio itself (the paper: 4, 5 and 8 are alike); no lower bound
    eps_low, eps_high  how far the ratio may move from 1 before the clip: for a token's 0.2 is a
                       fifth more or less likely, for a sequence's, an average, 0.2 never bites
    lags               (N, T) int, optional: optimizer steps since the token was sampled. Then all
                       statistics are also given by lag.
    entropy            (N, T), optional: averaged into the statistics, as the loss is
    reference_logprobs, kl_coef, entropy_coef
                       not in the paper, off by default; comments below say what they do

    Returns (loss, stats): a scalar, and plain floats for `merge_stats`. Raises ValueError for an
    unknown loss, an impossible clip, or a trained token with an infinite or undefined log-prob.
    """
    _check_choice("loss", loss, LOSSES)
    if loss == "cispo" and not eps_max >= 1:
        raise ValueError(
            f"eps_max = {eps_max}: it caps the ratio itself, not its distance from 1;"
            " give at least 1 (the paper: 4 to 8)"
        )
    if not (0 <= eps_low <= 1 and eps_high >= 0):
        raise ValueError(
            f"eps_low = {eps_low}, eps_high = {eps_high}: the ratio is clipped to"
            " [1 - eps_low, 1 + eps_high]; give 0 <= eps_low <= 1 and eps_high >= 0"
        )
    N, T = logprobs.shape
    assert behavior_logprobs.shape == weights.shape == (N, T) and advantages.shape == (N,), (
        logprobs.shape, behavior_logprobs.shape, weights.shape, advantages.shape)

    alive = weights > 0
    _check_finite("advantages", advantages[:, None].expand(N, T), alive)
    # where, not a product with the mask: 0 · nan is nan, in the loss and again in the gradient.
    weights = torch.where(alive, weights, 0).detach()
    A = torch.where(alive.any(1), advantages, 0).detach()[:, None]  # (N, 1)
    log_pi = _alive("logprobs", logprobs, alive)
    log_mu = _alive("behavior_logprobs", behavior_logprobs, alive).detach()

    log_ratio = log_rho = log_pi - log_mu  # of every token
    if loss == "gspo":
        length = alive.sum(1, keepdim=True).clamp(min=1)  # |y|, trained tokens only (ours)
        log_rho = (log_ratio.sum(1, keepdim=True) / length).expand(N, T)  # of its sequence
    ratio = log_rho.detach().exp()

    if loss == "cispo":
        # The stop-gradient is the idea (`detach` above): the ratio only weighs the token, and a
        # capped token still pushes with weight ε_max, where PPO's clip would have silenced it.
        J = ratio.clamp(max=eps_max) * A * log_pi
        clipped = ratio > eps_max
    elif loss == "reinforce":
        J = A * log_pi
        clipped = torch.zeros_like(alive)
    else:
        # Here the gradient comes through the ratio, ∇ρ = ρ ∇log π, and a clipped ratio is constant.
        # The min clips only tokens that have already moved the way their advantage points.
        low, high = 1 - eps_low, 1 + eps_high
        clipped = ((ratio > high) & (A > 0)) | ((ratio < low) & (A < 0))
        # What stays silent leaves before exp: above a log-ratio of 88 e^x is inf, and 0 · inf nan.
        silent = clipped | (A == 0) | ~alive
        moving = torch.where(silent, 0, log_rho).exp()
        J = torch.where(silent, ratio.clamp(low, high), moving) * A

    means = {  # statistics that are averages over tokens, weighted as the loss is
        "ratio/clipped_frac": clipped,
        "mismatch/mean_abs_dlogp": log_ratio.abs(),
        "mismatch/kl_k3": k3(log_ratio.detach().double()),  # KL(μ ‖ π): the samples are μ's
    }

    if kl_coef and reference_logprobs is None:
        raise ValueError(f"kl_coef = {kl_coef} needs reference_logprobs")
    if reference_logprobs is not None:
        # k3, as GRPO has it. As a loss term its expected gradient is that of KL(reference ‖ π).
        kl = k3(_alive("reference_logprobs", reference_logprobs, alive).detach() - log_pi)
        J = J - kl_coef * kl if kl_coef else J  # without a coefficient it is only watched
        means["kl"] = kl
    if entropy_coef:
        # ∇ entropy = -E_π[log π ∇log π], one draw of it a token; unbiased only without lag.
        J = J - entropy_coef * log_pi.detach() * log_pi
    if entropy is not None:
        means["entropy"] = entropy

    stats = _statistics(-J, means, log_rho, log_ratio, weights, alive, lags)
    return -(weights * J).sum(), stats


def k3(log_ratio):
    """exp(x) - 1 - x for x = log(p/q): each sample of q is >= 0, and the mean is KL(q ‖ p).

    In float64, returned in the dtype of x: for x = 1e-4 three digits of x²/2 would survive in
    fp32, and for 1e-7 not even its sign.
    """
    x = log_ratio.double()
    return (x.expm1() - x).to(log_ratio.dtype)


def _alive(name, x, alive):
    """x where tokens are alive, 0 elsewhere; an error that names the token if x is not finite."""
    _check_finite(name, x, alive)
    return torch.where(alive, x, 0)


def _check_finite(name, x, alive):
    bad = alive & ~x.isfinite()
    if bad.any():
        n, t = bad.nonzero()[0].tolist()
        raise ValueError(
            f"{name} of sample {n}, token {t} is {x[n, t].item()}: a trained token needs a finite"
            f" value ({int(bad.sum())} such tokens in {int(bad.any(1).sum())} samples)"
        )


def _check_choice(name, value, choices):
    if value not in choices:
        raise ValueError(f"{name} = {value!r}: give one of {', '.join(map(repr, choices))}")


# --------------------------------------------------------------------------------------------------
# 5. What to watch
# --------------------------------------------------------------------------------------------------
# A step is many micro-batches on many ranks. The mean of their means is wrong once they differ
# in size, and the last one's is a lottery. So `policy_loss` returns sums, minima and maxima, which
# merge exactly, and only `merge_stats` divides.
@torch.no_grad()
def _statistics(token_loss, means, log_rho, log_ratio, weights, alive, lags):
    """{"": parts of all tokens, "/lag_0": parts of those of lag 0, ...}; plain floats.

    parts = {"sum": {name: Σ w x, ...}, "min": {...}, "max": {...}}, over the tokens that are alive.
    In float64, because the square of a ratio of e^80 is no float32.
    """
    ratio = log_rho.double().exp()
    columns = {"weight": torch.ones_like(ratio), "loss": token_loss, **means,
               "ratio/mean": ratio, "ratio_squared": ratio.square()}  # each (N, T)
    groups = {"": alive}
    if lags is not None:
        assert lags.shape == alive.shape, (lags.shape, alive.shape)
        groups |= {f"/lag_{k}": alive & (lags == k) for k in lags[alive].unique().tolist()}

    stats = {}
    for suffix, group in groups.items():
        w, rho, distance = weights[group].double(), ratio[group], log_ratio[group].abs().double()
        if len(w) == 0:
            continue  # a micro-batch of nothing says nothing
        numbers = [(w * x[group]).sum() for x in columns.values()]
        numbers = torch.stack([*numbers, rho.min(), rho.max(), distance.max()]).tolist()
        *sums, rho_min, rho_max, distance_max = numbers  # one transfer from the device for them all
        stats[suffix] = {
            "sum": dict(zip(columns, sums)),
            "min": {"ratio/min": rho_min},
            "max": {"ratio/max": rho_max, "mismatch/max_abs_dlogp": distance_max},
        }
    return stats


def merge_stats(stats_list):
    """The metrics of a step from the `stats` of its micro-batches, in any order and from all ranks.

    loss                  the step's. It need not fall: it is a gradient's carrier, not a distance.
    ratio/mean|min|max    ρ, for "gspo" the sequence's. E_μ ρ = 1: a mean far from 1 is a bias.
    ratio/clipped_frac    tokens capped by eps_max, or left without gradient by the clip
    ess                   (Σwρ)² / (Σw Σwρ²) in (0, 1]: the share of the batch that still counts
    mismatch/kl_k3        KL(μ ‖ π). Above 0.015 at lag 0, trainer and sampler compute differently.
    mismatch/mean_abs_dlogp, mismatch/max_abs_dlogp
                          |log π - log μ| of tokens
    entropy, kl           if `policy_loss` was given the entropy, or a reference
    All but `loss` again as NAME/lag_k where lags were given. All weighted as the loss is. A step
    without a trained token has no metrics: {}.
    """
    merged = {}  # suffix -> "sum" | "min" | "max" -> name -> float
    combine = {"sum": lambda a, b: a + b, "min": min, "max": max}
    for stats in stats_list:
        for suffix, parts in stats.items():
            for kind, numbers in parts.items():
                into = merged.setdefault(suffix, {}).setdefault(kind, {})
                for name, x in numbers.items():
                    into[name] = combine[kind](into[name], x) if name in into else x

    metrics = {}
    for suffix, parts in sorted(merged.items()):
        sums = dict(parts["sum"])
        weight, loss, squared = (sums.pop(name) for name in ("weight", "loss", "ratio_squared"))
        if suffix == "":
            metrics["loss"] = loss  # already a sum over the step, not to be divided
        metrics |= {name + suffix: x / weight for name, x in sums.items()}
        metrics["ess" + suffix] = sums["ratio/mean"] ** 2 / (weight * squared)
        metrics |= {name + suffix: x for name, x in (parts["min"] | parts["max"]).items()}
    return metrics
