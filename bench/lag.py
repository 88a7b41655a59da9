"""How the mean lag grows with `slots`: the real pacer, samples of lognormal lengths, no model.

    python bench/lag.py                 # the paper's batch: 48 prompts of 16 samples, pipeline-8
    python bench/lag.py --k 4 --slots 64 128 --sigma 0.5

Generation and training take turns, as in one process. Time is counted in decode steps: each gives
every running sample a token, so a sample of n tokens takes n of them, and training takes none.
Printed: the mean lag (lag/mean) over 40 steps after the first 20, a row for each `slots`, a column
for each spread of the lengths (sigma of their logarithm; 0: all samples are equally long).
"""
import argparse
import heapq
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from scalerl import PipelinePacer                                               # noqa: E402


def mean_lag(slots, sigma, *, k=8, prompts=48, samples=16, tokens=6000, first=20, steps=40, seed=0):
    """The mean lag of the tokens that steps first .. first + steps consume."""
    rng, pacer = np.random.default_rng(seed), PipelinePacer(k, prompts)
    begins = [0]                        # the decode step at which each version of the weights began
    running, clock, lags = [], 0, []    # running: (its last decode step, group, its first one)
    while len(begins) <= first + steps:
        while pacer.may_admit() and len(running) + samples <= slots:
            group = pacer.admit("prompt", len(begins) - 1, samples)
            for n in rng.lognormal(np.log(tokens) - sigma ** 2 / 2, sigma, samples):
                heapq.heappush(running, (clock + max(1, round(n)), group.group_id, clock))
        taken = pacer.take(len(begins) - 1)
        if not taken:
            clock, group_id, start = heapq.heappop(running)
            pacer.groups[group_id].rollouts.append((start, clock))
            continue
        edges = np.array([*begins, np.inf])                     # of versions, in decode steps
        start, end = np.array([span for group in taken for span in group.rollouts]).T[:, :, None]
        written = np.clip(np.minimum(end, edges[1:]) - np.maximum(start, edges[:-1]), 0, None)
        lag = len(begins) - 1 - np.arange(len(begins))          # of a token of each version
        lags.append((written * lag).sum() / written.sum())
        begins.append(clock)
    return float(np.mean(lags[first:]))


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--slots", type=int, nargs="+", default=[256, 512, 1024, 2048, 6912])
    p.add_argument("--sigma", type=float, nargs="+", default=[0.0, 0.4, 0.6, 0.8, 1.0])
    for name, default in {"k": 8, "prompts": 48, "samples": 16, "tokens": 6000, "seed": 0}.items():
        p.add_argument(f"--{name}", type=int, default=default)
    args = p.parse_args()
    batch = {name: getattr(args, name) for name in ("k", "prompts", "samples", "tokens", "seed")}
    if min(args.slots) < args.samples:
        p.error(f"--slots {min(args.slots)}: a prompt has {args.samples} samples")
    print("| slots |" + "".join(f" sigma {sigma:g} |" for sigma in args.sigma))
    print("|--:|" + "--:|" * len(args.sigma))
    for slots in args.slots:
        print(f"| {slots} |" + "".join(f" {mean_lag(slots, sigma, **batch):.2f} |"
                                       for sigma in args.sigma), flush=True)


if __name__ == "__main__":
    main()
