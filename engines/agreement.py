"""agreement.py: do sampler and trainer compute alike? Every run begins with this test."""
import sys

import torch

from engines.loss_stats import k3

HEALTHY_KL = 0.015          # mean k3 KL at lag 0 in healthy runs (ours, from other projects' logs)
# Mean |Δ log-prob| where both sides compute in fp32: rounding was up to 1e-5. A KL alone would let
# a wrong temperature pass where the policy is nearly uniform, as an untrained toy's.
HEALTHY_FP32 = 1e-3


def self_test(run):
    """How far are the log-probs of sampler and trainer apart, in two answers to each of eight
    held-out prompts? If they compute differently, the ratio is wrong before anything is stale. The
    cure is an fp32 LM head on both sides (paper, sec. 3.2). Returns {"mismatch/fp32_head/kl_k3":
    ..., ...} for the log. Raises RuntimeError: they disagree, unless `allow_mismatch` is set."""
    sampler, head = run.eval_sampler, "fp32" if run.config.head_fp32 else "bf16"
    rollouts = run.answers(sampler, list(run.problems.heldout)[:8], samples=2)
    sampler.log()                       # its decode steps belong to no training step
    trained = run.trainer.logprobs(rollouts).tolist()                                   # (n, T)
    log_ratio = torch.tensor([x - mu for row, r in zip(trained, rollouts) for x, mu, drawn in zip(
        row, r.behavior_logprobs, r.sampled) if drawn])
    distance = log_ratio.abs()
    mean, most, kl = distance.mean().item(), distance.max().item(), k3(log_ratio).mean().item()
    print(f"Self-test: sampler and trainer differ in log-prob by {mean:.1e} with the {head} head "
          f"(mean over {len(log_ratio)} tokens, no lag)", flush=True)
    fp32 = run.config.head_fp32 and run.trainer.dtype == torch.float32
    if not (kl <= HEALTHY_KL and (mean <= HEALTHY_FP32 or not fp32)):
        sentence = (f"sampler and trainer disagree before the first step (mean k3 KL {kl:.3f}, "
                    f"healthy is below {HEALTHY_KL}" + fp32 * (
                        f"; mean difference {mean:.1g}, below {HEALTHY_FP32}") + ")")
        if not run.config.allow_mismatch:
            raise RuntimeError(f"{sentence}; --allow-mismatch true begins nevertheless")
        print(f"warning: {sentence}", file=sys.stderr)
    return {f"mismatch/{head}_head/{name}": value for name, value in (
        ("mean_abs_dlogp", mean), ("max_abs_dlogp", most), ("kl_k3", kl))}
