"""bench/lag.py, against a loop over single tokens."""
import runpy

import numpy as np
import pytest
from conftest import ROOT

from scalerl import PipelinePacer


def plain(slots, sigma, *, k, prompts, samples, tokens, first, steps, seed):
    """The same, a token at a time: each notes the version that writes it."""
    rng, pacer, version, lags = np.random.default_rng(seed), PipelinePacer(k, prompts), 0, []
    live, ended, clock = [], [], 0              # live: [last decode step, group, first, versions]
    while version < first + steps:
        while pacer.may_admit() and len(live) + len(ended) + samples <= slots:
            group = pacer.admit("prompt", version, samples)
            for n in rng.lognormal(np.log(tokens) - sigma ** 2 / 2, sigma, samples):
                live.append([clock + max(1, round(n)), group.group_id, clock, []])
        if taken := pacer.take(version):
            lags.append(np.mean([version - v for g in taken for one in g.rollouts for v in one]))
            version += 1
        elif ended:
            _, group_id, _, versions = ended.pop(0)
            pacer.groups[group_id].rollouts.append(versions)
        else:
            clock += 1
            for sample in live:
                sample[3].append(version)
            ended = sorted(sample for sample in live if sample[0] == clock)
            live = [sample for sample in live if sample[0] > clock]
    return np.mean(lags[first:])


@pytest.mark.parametrize("k, slots, sigma", [(0, 9, 0.5), (2, 6, 0.0), (2, 9, 0.7), (3, 40, 0.4)])
def test_the_mean_lag_is_that_of_a_loop_over_tokens(k, slots, sigma, seed):
    batch = dict(k=k, prompts=2, samples=3, tokens=20, first=4, steps=9, seed=seed)
    found = runpy.run_path(ROOT / "bench" / "lag.py")["mean_lag"](slots, sigma, **batch)
    assert found == pytest.approx(plain(slots, sigma, **batch), abs=1e-9)
    assert 0 <= found <= k
