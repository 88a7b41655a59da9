"""Hidden checks of exercise 2: other sizes, partial credits, prompts of unequal size."""

import random
import statistics
from fractions import Fraction

import pytest
import torch

from loss import advantages, token_weights


@pytest.fixture(autouse=True)
def fresh_inputs(seed):
    random.seed(seed)


@pytest.mark.parametrize("norm", ["batch", "prompt", "none"])
@pytest.mark.parametrize("kind", ["right or wrong", "partial credit"])
def test_advantages_of_random_rewards(norm, kind):
    P, G = random.randint(8, 12), random.randint(4, 7)
    draw = (lambda: random.choice([-1.0, 1.0])) if kind == "right or wrong" else random.random
    rows = [[draw() for _ in range(G)] for _ in range(P)]
    rows = [[1.0, -1.0, *row[2:]] for row in rows]
    centered = [[r - statistics.fmean(row) for r in row] for row in rows]
    batch = statistics.pstdev([a for row in centered for a in row])
    std = {"batch": [batch] * P, "prompt": [statistics.pstdev(row) for row in rows],
           "none": [1.0] * P}[norm]
    truth = torch.tensor([[a / s for a in row] for row, s in zip(centered, std)])
    found = advantages(torch.tensor(rows), norm=norm)
    assert found.shape == (P, G) and torch.allclose(found, truth, 2e-6, 1e-6), (
        f"norm {norm!r}, {kind}, {P} x {G}: off by {(found - truth).abs().max():.2g}.")


@pytest.mark.parametrize("norm", ["batch", "prompt", "none"])
def test_equal_groups_are_exactly_zero_and_do_count_in_the_batchs_std(norm):
    """`advantages` drops nothing: that is the filter's, before it."""
    G = random.randint(5, 9)
    value = random.random()
    rewards = torch.cat([torch.tensor([[1.0] + [-1.0] * (G - 1)]), torch.full((3, G), value)])
    rewards[2] += torch.linspace(0, 4e-7, G)                    # equal but for rounding
    found = advantages(rewards, norm=norm)
    assert (found[1:] == 0).all(), f"norm {norm!r}: groups equal within 1e-6 are not all 0."
    alone = advantages(rewards[:1], norm=norm)
    factor = 2 if norm == "batch" else 1                        # sqrt(4 groups / 1)
    assert torch.allclose(found[0], alone[0] * factor, 1e-5), (
        f"norm {norm!r}: the std is that of all P groups given, zeros included.")
    assert not rewards.requires_grad and advantages(rewards[:0], norm=norm).shape == (0, G)


def test_bad_rewards_are_named():
    P, G = random.randint(20, 30), random.randint(40, 50)
    for bad in (float("nan"), float("inf")):
        rewards = torch.randn(P, G)
        p, g = random.randrange(10, P), random.randrange(30, G)
        rewards[p, g] = bad
        with pytest.raises(ValueError) as error:
            advantages(rewards, norm="prompt")
        assert str(p) in str(error.value) and str(g) in str(error.value), (
            f"reward ({p}, {g}) is {bad}, and the message does not say so: {error.value}")
    for call in (lambda: advantages(torch.ones(2, 2), norm="std"),
                 lambda: token_weights(torch.ones(2, 2).bool(), torch.zeros(2).long(),
                                       aggregation="mean")):
        with pytest.raises(ValueError):
            call()


@pytest.mark.parametrize("aggregation", ["prompt", "sample", "token"])
@pytest.mark.parametrize("number", range(3))
def test_weights_of_random_masks(aggregation, number):
    """In fractions. Some samples have no token, prompts have one sample or many, ids are large."""
    N, T = random.randint(17, 29), random.randint(7, 13)
    ids = random.sample(range(10**6), 6)
    prompts = [random.choice(ids) for _ in range(N)]
    share = [random.choice([0, 0.3, 0.9, 1]) for _ in range(N)]
    mask = [[random.random() < share[n] for _ in range(T)] for n in range(N)]
    mask[0] = [True] * T
    pool = {"prompt": prompts, "sample": range(N), "token": [0] * N}[aggregation]
    count = {}
    for p, row in zip(pool, mask):
        count[p] = count.get(p, 0) + sum(row)
    pools = sum(n > 0 for n in count.values())
    truth = torch.tensor([[float(Fraction(1, count[p] * pools)) if m else 0.0 for m in row]
                          for p, row in zip(pool, mask)])
    given = torch.tensor(mask)
    found = token_weights(given, torch.tensor(prompts), aggregation=aggregation)
    assert found.dtype == torch.float32 and given.tolist() == mask
    assert torch.allclose(found, truth, 1e-5, 1e-9), (
        f"{aggregation!r}, {N} x {T}: off by {(found - truth).abs().max():.2g}, their sum is "
        f"{found.sum():.4f}.")
    order = torch.randperm(N)
    again = token_weights(given[order], torch.tensor(prompts)[order], aggregation=aggregation)
    assert torch.allclose(again, truth[order], 1e-5, 1e-9), "another order, other weights."


def test_micro_batches_of_the_weights_add_up_to_one():
    mask = torch.rand(13, 9) < 0.6
    mask[:, 0] = True
    weights = token_weights(mask, torch.arange(13) // 4)
    parts = [rows.sum().item() for rows in weights.split([6, 1, 4, 2])]
    assert sum(parts) == pytest.approx(1, abs=1e-5), f"parts of a step weigh {parts}."
    assert token_weights(torch.zeros(0, 5).bool(), torch.zeros(0).long()).shape == (0, 5)
