"""Exercise 2: advantages and token weights.

The truth is loops over Python lists. Axes: P prompts, G samples of each, N = P·G samples, T
tokens; no two are equal.
"""

import itertools
import math
import statistics
from functools import partial

import pytest
import torch

from course.checks import compare
from loss import advantages, token_weights

P, G, T = 7, 5, 11
same = partial(compare.same, rtol=1e-5, atol=1e-7)
check = partial(compare.check, rtol=1e-5, atol=1e-7)

# Every check has new random inputs; pytest shows their seed when one fails.
pytestmark = pytest.mark.usefixtures("seed")


# -------------------------------------------------------------------------------------- advantages
def some_rewards():
    """±1; prompts of different difficulty, from one to four right samples of five."""
    right = torch.tensor([1, 1, 2, 3, 4, 2, 1])[torch.randperm(P)]
    return torch.where(torch.rand(P, G).argsort(1) < right[:, None], 1.0, -1.0)


def centered(rewards):
    return [[r - statistics.fmean(row) for r in row] for row in rewards.tolist()]


HINT = "Â = (r - mean of the group) / std, see the docstring of loss.py::advantages."


def divided(rows, std):
    """`std` a number, or one a row."""
    stds = std if isinstance(std, list) else [std] * len(rows)
    return [[a / s for a in row] for row, s in zip(rows, stds)]


def test_without_a_norm_the_mean_of_each_group_is_subtracted():
    rewards = some_rewards()
    rows, truth = rewards.tolist(), centered(rewards)
    divisor = "divided by a std: norm=\"none\" divides by nothing."
    check('norm="none"', advantages(rewards.clone(), norm="none"), truth, {
        "these are the rewards: subtract the mean of each group.": rows,
        "you subtract the mean of the whole batch: every prompt has its own mean, over its G "
        "samples (dim 1).": (rewards - rewards.mean()).tolist(),
        "you subtract the mean over prompts (dim 0): a group is a row, so its mean is over dim 1.":
            (rewards - rewards.mean(0)).tolist(),
        divisor: divided(truth, statistics.pstdev(itertools.chain(*truth))),
        divisor + " ": divided(truth, [statistics.pstdev(row) for row in truth]),
    }, HINT)


def test_the_rewards_of_the_caller_stay_as_they_are():
    rewards = some_rewards()
    before = rewards.clone()
    advantages(rewards, norm="batch")
    assert rewards.equal(before), (
        "rewards itself was changed: `-=` and functions that end in _ write into the caller's "
        "tensor. Write rewards - ..., which makes a new one.")


def test_the_batchs_std_is_one_number_of_all_advantages():
    rewards = some_rewards()
    rows = centered(rewards)
    flat = list(itertools.chain(*rows))
    std = statistics.pstdev(flat)
    check('norm="batch"', advantages(rewards, norm="batch"), divided(rows, std), {
        "every group is divided by its own std. That is norm=\"prompt\" (GRPO); \"batch\" has one "
        "std for all prompts.": divided(rows, [statistics.pstdev(row) for row in rows]),
        "every group is divided by its own std, with n - 1. \"batch\" has one std for all prompts, "
        "and a population's.": divided(rows, [statistics.stdev(row) for row in rows]),
        "divided by the std of the rewards. It must be the std of the advantages, after the means "
        "are subtracted (TRL and others do what you did).":
            divided(rows, statistics.pstdev(itertools.chain(*rewards.tolist()))),
        "divided by the std of the rewards, with n - 1. It must be the population std of the "
        "advantages, after the means are subtracted.":
            divided(rows, statistics.stdev(itertools.chain(*rewards.tolist()))),
        "the std has n - 1 in it, torch's default. Ours is the population's: correction=0.":
            divided(rows, statistics.stdev(flat)),
        "divided by the variance: take its square root.": divided(rows, std**2),
        "not divided at all: these are those of norm=\"none\".": rows,
    } | {f"a constant of {c} is added to the divisor: divide by the std itself, and treat equal "
         "rewards apart.": divided(rows, std + c) for c in (1e-3, 1e-4, 1e-5)}, HINT, rtol=1e-6)


def test_the_prompts_std_is_that_of_each_group():
    rewards = some_rewards()
    rows = centered(rewards)
    check('norm="prompt"', advantages(rewards, norm="prompt"), divided(
        rows, [statistics.pstdev(row) for row in rows]), {
            "the std has n - 1 in it, torch's default. Ours is the population's: correction=0.":
                divided(rows, [statistics.stdev(row) for row in rows]),
            "all groups are divided by one std. That is norm=\"batch\"; \"prompt\" divides each "
            "group by its own.": divided(rows, statistics.pstdev(itertools.chain(*rows))),
            "not divided at all: these are those of norm=\"none\".": rows,
        } | {f"a constant of {c} is added to the divisor: divide by the std itself, and treat "
             "equal rewards apart.": divided(rows, [statistics.pstdev(row) + c for row in rows])
             for c in (1e-3, 1e-4, 1e-5)}, HINT, rtol=1e-6)


@pytest.mark.parametrize("norm", ["batch", "prompt", "none"])
def test_equal_rewards_have_advantages_of_exactly_zero(norm):
    """The float mean of seven times 0.1 is not always 0.1. Residue / residue is one."""
    for value in (-1.0, 0.1, 1 / 3, 0.7, 123.4):
        found = advantages(torch.full((3, 7), value), norm=norm)
        assert not found.isnan().any(), (
            f"a batch of rewards that are all {value:.3g} has advantages of nan, 0 / 0: where the "
            "std is zero, do not divide.")
        assert (found == 0).all(), (
            f"a batch of rewards that are all {value:.3g} has advantages of "
            f"{found.abs().max():.3g}: the float mean is off by a last digit, and that digit "
            "is divided by its own size. Set the advantages of groups with equal rewards (within "
            "1e-6) to 0 before any std.")
    mixed = torch.cat([some_rewards(), torch.full((4, G), 0.1)])
    found = advantages(mixed, norm=norm)
    assert found.isfinite().all() and (found[P:] == 0).all(), (
        "groups with equal rewards among others must have advantages of exactly 0.")
    nearly = torch.cat([some_rewards(), 0.5 + torch.linspace(0, 5e-7, G)[None]])
    found = advantages(nearly, norm=norm)[P]
    assert (found == 0).all(), (
        f"rewards that differ by 5e-7 have advantages up to {found.abs().max():.2g}, they must be "
        "exactly 0. Equal means within 1e-6, the largest minus the smallest reward of a group: "
        "rewards with a length penalty are seldom the same float twice.")


def test_groups_of_equal_rewards_count_in_the_batchs_std():
    rewards = torch.cat([some_rewards(), torch.full((1, G), -1.0)])
    rows = centered(rewards)                                        # the last group's are zeros
    flat = list(itertools.chain(*rows))
    check('norm="batch" with a group of equal rewards', advantages(rewards, norm="batch"), divided(
        rows, statistics.pstdev(flat)), {
            "the zeros of the group with equal rewards are left out of the std. Count them: "
            "`advantages` is given groups and drops none, leaving them out is the filter's work.":
                divided(rows, statistics.pstdev(flat[:-G]))}, HINT)


@pytest.mark.parametrize("norm", ["batch", "prompt", "none"])
def test_odd_batches_are_no_special_case(norm):
    one = advantages(torch.tensor([[1.0], [-1.0], [0.3]]), norm=norm)
    assert one.tolist() == [[0.0]] * 3, (
        f"groups of one sample have the advantages {one.flatten().tolist()}, they must be 0: a "
        "single sample is its own mean.")
    assert advantages(torch.zeros(0, G), norm=norm).shape == (0, G), "an empty batch stays (0, G)."
    try:
        whole = advantages(torch.tensor([[1, -1, -1]]), norm=norm)
    except RuntimeError as error:
        raise AssertionError(f"rewards of whole numbers fail ({error}): make them float.") from None
    assert whole.is_floating_point(), f"whole-number rewards give {whole.dtype}: make them float."


def test_a_reward_that_is_not_finite_is_refused_and_named():
    for bad in (math.nan, math.inf):
        rewards = some_rewards()
        rewards[4, 3] = bad
        try:
            found = advantages(rewards)
        except ValueError as error:
            assert "4" in str(error) and "3" in str(error), (
                f"reward of prompt 4, sample 3 is {bad}, and the error does not name it: {error}")
        else:
            raise AssertionError(f"a reward of {bad} passes in silence, and "
                                 f"{int(found.isnan().sum())} advantages are nan: raise "
                                 "ValueError.")


def test_an_unknown_choice_is_refused():
    for call in (lambda: advantages(some_rewards(), norm="group"),
                 lambda: token_weights(torch.ones(2, 3).bool(), torch.arange(2), aggregation="x")):
        with pytest.raises(ValueError):
            call()
            raise AssertionError("an unknown norm or aggregation is accepted: `_check_choice` in "
                                 "loss.py raises the ValueError for you.")


# ----------------------------------------------------------------------------------- token weights
def some_mask():
    """(N, T): lengths from 1 to T, with holes where a phrase was forced. Prompts, like 1000003,
    have long answers; samples come back in any order, and prompts have any numbers."""
    prompts = torch.tensor([40, 7, 1_000_003]).repeat(5)[torch.randperm(15)]
    top = torch.where(prompts == 1_000_003, T + 1, 6)
    lengths = torch.tensor([int(torch.randint(1, int(t), ())) for t in top])
    mask = torch.arange(T) < lengths[:, None]
    holes = torch.rand(15, T) < 0.2
    holes[:, 0] = False
    return mask & ~holes, prompts


def shares(mask, pool, pools, tokens=None):
    """Weights as loops: 1 / (tokens of a row's pool) / (number of pools)."""
    count = tokens or {p: sum(sum(row) for row, q in zip(mask.tolist(), pool) if q == p)
                       for p in set(pool)}
    return [[m / count[p] / pools if m else 0.0 for m in row]
            for row, p in zip(mask.tolist(), pool)]


def wrong_weights(mask, prompts, pool, pools):
    """What frequent mistakes give, by the sentence about them."""
    N, by_prompt, samples = len(mask), prompts.tolist(), list(range(len(mask)))
    in_turn = [n // 5 for n in samples]
    runs = list(itertools.accumulate(a != b for a, b in zip(by_prompt[1:], by_prompt)))
    runs = [0, *runs]                                       # what unique_consecutive counts
    neighbors = ("you took the samples of a prompt to be neighbors (`unique_consecutive`, "
                 "`arange // G`, `reshape(P, G)`): gather them by `prompt_index`.")
    return {
        "the denominator counts padding: N·T, or the padded length. Count the tokens of the mask.":
            (mask / mask.numel()).tolist(),
        "the denominator counts the padded length T of each sample. Count the tokens of the mask.":
            (mask / T / N).tolist(),
        "the denominator is the padded length of a prompt's samples. Count the tokens of the mask.":
            (mask / (5 * T) / 3).tolist(),
        "this is the mean over samples: one denominator a sample. See `aggregation`.":
            shares(mask, samples, N),
        "this is the mean over all tokens: one denominator. See `aggregation`.":
            shares(mask, [0] * N, 1),
        "this is the mean over prompts, all of a prompt's samples pooled. See `aggregation`.":
            shares(mask, by_prompt, 3),
        "the sum over the pools is not divided by their number: the weights of the whole step must "
        "add up to 1.": shares(mask, pool, 1),
        "divided by the number of samples N instead of the number of prompts.":
            shares(mask, pool, N),
        neighbors: shares(mask, in_turn, 3),
        neighbors + " ": shares(mask, runs, runs[-1] + 1),
        "prompt_index is used as a row number, so there seem to be 1000004 prompts. Its numbers "
        "may be any: `unique(return_inverse=True)` counts them.": shares(mask, pool, 1_000_004),
        "the last token of every sample has no weight. It is the end token: without it the model "
        "never learns to stop.": shares(mask & (mask.flip(1).cumsum(1).flip(1) > 1), pool, pools),
    }


WHERE = "See the docstring of loss.py::token_weights: one denominator for the whole step."


@pytest.mark.parametrize("aggregation", ["prompt", "sample", "token"])
def test_weights_are_one_over_the_tokens_of_the_pool_over_the_number_of_pools(aggregation):
    mask, prompts = some_mask()
    before = mask.clone(), prompts.clone()
    pool, pools = {"prompt": (prompts.tolist(), 3), "sample": (list(range(15)), 15),
                   "token": ([0] * 15, 1)}[aggregation]
    truth = shares(mask, pool, pools)
    try:
        found = token_weights(mask, prompts, aggregation=aggregation)
    except IndexError as error:
        raise AssertionError(f"{error}: prompt_index holds any numbers, here up to 1000003, and no "
                             "row numbers: `unique(return_inverse=True)` counts anew.") from None
    assert mask.equal(before[0]), "token_weights has written into the mask of its caller."
    assert prompts.equal(before[1]), "token_weights has written into its caller's prompt_index."
    check(f"{aggregation!r}", found, truth, wrong_weights(mask, prompts, pool, pools), WHERE)
    assert found.dtype == torch.float32, f"the weights are {found.dtype}, they must be float32."


@pytest.mark.parametrize("aggregation", ["prompt", "sample", "token"])
def test_padding_changes_nothing(aggregation):
    mask, prompts = some_mask()
    found = token_weights(mask, prompts, aggregation=aggregation)
    wider = token_weights(torch.nn.functional.pad(mask, (0, 4)), prompts, aggregation=aggregation)
    assert wider.shape == (15, T + 4) and same(wider[:, :T], found.tolist()), (
        "with four more columns of padding the weights change: a denominator counts padding.")


@pytest.mark.parametrize("aggregation", ["prompt", "sample", "token"])
def test_the_last_token_of_a_sample_counts(aggregation):
    mask = torch.arange(T) < torch.tensor([3, 11, 5])[:, None]
    found = token_weights(mask, torch.tensor([0, 0, 1]), aggregation=aggregation)
    assert all(row[n - 1] == row[0] > 0 for row, n in zip(found, (3, 11, 5))), (
        "the last token of a sample weighs less than its first: it is the end token, and without "
        "it the model never learns to stop.")


@pytest.mark.parametrize("aggregation", ["prompt", "sample"])
def test_a_pool_without_a_token_is_not_counted(aggregation):
    """Prompt 7 has no trained token at all, one sample of prompt 40 neither."""
    mask, prompts = some_mask()
    full = shares(mask, *((prompts.tolist(), 3) if aggregation == "prompt" else (range(15), 15)))
    assert same(token_weights(mask, prompts, aggregation=aggregation), full), (
        "wrong already where every sample has a token: mend what the checks above say first.")
    mask[prompts == 7] = False
    mask[(prompts == 40).nonzero()[0]] = False
    pool, pools = (prompts.tolist(), 2) if aggregation == "prompt" else (list(range(15)), 9)
    found = token_weights(mask, prompts, aggregation=aggregation)
    assert not found.isnan().any(), (
        f"{aggregation!r}: a {aggregation} without a trained token makes weights of nan, 0 / 0.")
    check(f"{aggregation!r} with a pool without tokens", found, shares(mask, pool, pools), {
        f"a {aggregation} without a trained token is counted in the denominator, so the others "
        f"weigh too little ({found.sum():.3f} in all, not 1).":
            shares(mask, pool, {"prompt": 3, "sample": 15}[aggregation])}, WHERE)


@pytest.mark.parametrize("aggregation", ["prompt", "sample", "token"])
def test_a_step_without_tokens_weighs_nothing(aggregation):
    found = token_weights(torch.zeros(3, 4).bool(), torch.arange(3), aggregation=aggregation)
    assert found.shape == (3, 4) and (found == 0).all(), "without a token all weights are 0."
