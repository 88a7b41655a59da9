"""self_test.py: how far are the log-probs of sampler and trainer apart, before the first step?

If the two compute differently, the importance ratio is wrong before anything is stale. The cure is
an fp32 LM head on both sides (paper, section 3.2). Measured with it, and with a bf16 head.
"""

import sys

import torch

from engines.policy import table
from loss import k3

HEALTHY_KL = 0.015          # mean k3 KL at lag 0 in healthy runs (ours, from other projects' logs)
NAMES = {True: "fp32_head", False: "bf16_head"}


def self_test(run):
    """Score two answers to each of eight held-out prompts with the trainer of `run`, a scalerl.Run
    before its first step. Where the engine can, its head is switched to bf16 and back.

    Returns {"mismatch/fp32_head/kl_k3": ..., ...} for the log, prints one sentence, and warns on
    stderr if the two sides disagree.
    """
    sampler = run.eval_sampler              # it is reseeded before each evaluation
    prompts = list(run.problems.heldout)[:8]
    log, found, own_head = {}, [], sampler.head_fp32
    for head_fp32 in sampler.heads:
        sampler.head_fp32 = head_fp32
        rollouts = run.answers(sampler, prompts, samples=2)
        log_ratio = (run.trainer.logprobs(rollouts, head_fp32).cpu()
                     - table(rollouts, "logprobs", torch.float32))                  # (n, T)
        log_ratio = log_ratio[table(rollouts, "sampled", torch.bool)]               # (tokens,)
        mean, name = log_ratio.abs().mean().item(), NAMES[head_fp32]
        found.append(f"{mean:.1e} with a{'n fp32' if head_fp32 else ' bf16'} head")
        log |= {f"mismatch/{name}/mean_abs_dlogp": mean,
                f"mismatch/{name}/max_abs_dlogp": log_ratio.abs().max().item(),
                f"mismatch/{name}/kl_k3": k3(log_ratio).mean().item()}
    sampler.head_fp32 = own_head
    sampler.log()                       # its decode steps belong to no training step
    print(f"Self-test: sampler and trainer differ in log-prob by {', '.join(found)} (mean over "
          f"{len(log_ratio)} tokens, no lag)", flush=True)
    kl = log[f"mismatch/{NAMES[own_head]}/kl_k3"]
    if kl > HEALTHY_KL:
        print(f"warning: sampler and trainer disagree before the first step (mean k3 KL {kl:.3f}, "
              f"healthy is below {HEALTHY_KL})", file=sys.stderr)
    return log
