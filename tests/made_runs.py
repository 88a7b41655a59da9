"""Made runs for the tests of fit.py, its readers and its figures: curves with known parameters.

The paper prints neither R0 nor the noise of its evaluations.  Ours: R0 .35; sd .004, the most by
which the mean of its 16,000 samples (1,000 problems x 16) can scatter, sqrt(.25 / 16000).
"""
import json

import numpy as np

from fit import sigmoid

TRUTH = dict(A=0.61, B=1.92, C_mid=2542.0, R0=0.35)          # ScaleRL's row of the paper's Table 1


def made(end=16_000, n=81, sd=0.004, seed=0, exact_R0=True, **truth):
    """Compute (n,) and noisy rewards (n,) of a known curve, step 0 included."""
    truth = TRUTH | truth
    C = np.linspace(0, end, n)
    R = sigmoid(C, **truth) + np.random.default_rng(seed).normal(0, sd, n)
    if exact_R0:
        R[0] = truth["R0"]
    return C, np.clip(R, 0, 1)


def write_run(folder, C, R, **columns):
    """An evals.jsonl as the trainer writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"step": i, "version": i, "compute/flops": float(c),
                         "eval/toy/mean@4": float(r), "eval/toy/pass@4": 1.0} | columns)
             for i, (c, r) in enumerate(zip(C, R))]
    (folder / "evals.jsonl").write_text("\n".join(lines) + "\n")
    return folder
