"""loss_stats.py: what to watch while a policy is trained, from the tensors of `loss.policy_loss`.

The mean of the means of micro-batches is wrong when they differ in size. So `statistics` returns
sums, minima and maxima, which merge exactly, and only `merge_stats` divides."""
import operator

import torch

EXTREMES = {"ratio/min": min, "ratio/max": max, "mismatch/max_abs_dlogp": max}  # others: Σ w x


def k3(log_ratio):
    """exp(x) - 1 - x for x = log(p/q): never below 0; its mean over samples of q is KL(q ‖ p).
    (exp(x) - 1 - x in fp32 is rounding noise of both signs at 1e-4.) Returns the dtype of x."""
    x = log_ratio.double()
    return (x.expm1() - x).to(log_ratio.dtype)


@torch.no_grad()
def statistics(*, mask, weights, lags, log_ratio, log_rho, clipped, token_loss, entropy):
    """{"": {name: float, ...} of all tokens, "/lag_0": the same at lag 0, ...}.

    All are (N, T); lags and entropy may be None. mask: the trained tokens. log_rho: log of the
    ratio that the loss clips, for "gspo" the sequence's. Each float is Σ w x over the tokens of
    the mask, or one of the EXTREMES; in float64, for ratios of e^80."""
    ratio, distance = log_rho.double().exp(), log_ratio.abs().double()
    columns = {  # each (N, T), averaged with the weights of the loss
        "weight": torch.ones_like(ratio), "loss": token_loss, "ratio/clipped_frac": clipped,
        "mismatch/mean_abs_dlogp": distance,
        "mismatch/kl_k3": k3(log_ratio.double()),  # KL(μ ‖ π): the samples are μ's
        "ratio/mean": ratio, "ratio_squared": ratio.square()}
    if entropy is not None:
        columns["entropy"] = entropy
    groups = {"": mask}
    if lags is not None:
        assert lags.shape == mask.shape, (lags.shape, mask.shape)
        groups |= {f"/lag_{k}": mask & (lags == k) for k in lags[mask].unique().tolist()}
    stats = {}
    for suffix, group in groups.items():
        w, rho = weights[group].double(), ratio[group]
        if len(w) == 0:
            continue  # no trained token: no statistics
        numbers = {name: (w * x[group]).sum() for name, x in columns.items()}
        numbers |= {"ratio/min": rho.min(), "ratio/max": rho.max(),
                    "mismatch/max_abs_dlogp": distance[group].max()}
        # All numbers come from the device in one transfer.
        stats[suffix] = dict(zip(numbers, torch.stack([*numbers.values()]).tolist()))
    return stats


def merge_stats(stats_list):
    """The metrics of a step (docs/metrics.md) from its micro-batches' `stats`; {}: nothing trained.
    All but `loss` again as NAME/lag_k. ess: the effective sample size (Σwρ)² / (Σw Σwρ²)."""
    merged = {}  # suffix -> name -> float
    for suffix, numbers in (item for stats in stats_list for item in stats.items()):
        total = merged.setdefault(suffix, {})
        for name, x in numbers.items():
            merge = EXTREMES.get(name, operator.add)
            total[name] = merge(total[name], x) if name in total else x
    metrics = {}
    for suffix, sums in sorted(merged.items()):  # not yet divided: sums["ratio/mean"] is Σ w ρ
        weight, loss, squared = (sums.pop(name) for name in ("weight", "loss", "ratio_squared"))
        if suffix == "":
            metrics["loss"] = loss  # a sum over the step, and remains one
        denominator = weight * squared          # 0: even float64 has no such small ratios
        metrics["ess" + suffix] = sums["ratio/mean"] ** 2 / denominator if denominator else 0.0
        metrics |= {name + suffix: x if name in EXTREMES else x / weight
                    for name, x in sums.items()}
    return metrics
