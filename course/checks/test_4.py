"""Exercise 4: No-Positive-Resampling and the zero-variance filter.

Axes: P prompts, G samples of each; no two sizes are equal.
"""

import json
import random
from types import SimpleNamespace

import pytest
import torch

from loss import zero_variance
from scalerl import Curriculum, effective_batch


@pytest.fixture(autouse=True)
def fresh_inputs(seed):
    """Every check has new random inputs; pytest shows their seed when one fails."""
    random.seed(seed)


# ------------------------------------------------------------------------------------ zero variance
def test_zero_variance_is_true_where_all_rewards_of_a_prompt_are_equal():
    P, G = 5, 3
    rewards = torch.tensor([[1.0, 1, 1], [-1, -1, -1], [1, -1, 1], [-1, -1, 1], [0.25, 0.25, 0.25]])
    found = zero_variance(rewards)
    assert isinstance(found, torch.Tensor), f"a tensor with a bool for each prompt, not {found!r}."
    truth = [len(set(row)) == 1 for row in rewards.tolist()]
    assert found.dtype == torch.bool and found.shape == (P,), (
        f"one bool a prompt, shape ({P},): this is {found.dtype}, {tuple(found.shape)}. A group is "
        "a row, so compare over dim 1.")
    assert found.tolist() != [not t for t in truth], (
        "the wrong way round: True means equal rewards, a prompt that teaches nothing.")
    assert found.tolist()[:4] == truth[:4], f"for {rewards.tolist()} it says {found.tolist()}."
    assert found[4], ("three times 0.25 is zero variance as well. You look for all right or all "
                      "wrong: equal means equal to each other, whatever the value.")
    assert zero_variance(torch.tensor([[0.3], [1.0]])).tolist() == [True, True], (
        "a group of one sample has equal rewards (the std with n - 1 would be nan).")
    assert zero_variance(torch.zeros(0, G)).shape == (0,), "a batch without prompts: shape (0,)."


def test_zero_variance_has_a_tolerance():
    almost = torch.tensor([[0.5, 0.5 + 5e-7], [0.5, 0.501]])
    assert zero_variance(almost)[0], (
        "rewards that differ by 5e-7 are equal but for rounding (tol is 1e-6). With a tolerance of "
        "0 their noise would be divided by its own std, and become advantages of size one.")
    assert not zero_variance(almost)[1], "0.5 and 0.501 differ: the tolerance is 1e-6."
    assert zero_variance(almost, tol=1e-2).tolist() == [True, True], "`tol` is not used."
    assert zero_variance(torch.full((1, 3), 0.5), tol=0.0)[0], (
        "with tol = 0, equal rewards differ by exactly tol: they may differ by at most tol (<=).")
    spread = torch.tensor([[0.0, 0, 0, 0, 0, 0, 0, 0, 1.5e-6]])
    assert not zero_variance(spread)[0], (
        "the tolerance is for the largest minus the smallest reward, not for their std.")


# --------------------------------------------------------------------------------- effective batch
def batch():
    """Four groups of three: groups 1 and 2 have equal rewards. A length penalty makes the others
    numbers between -1 and 1."""
    rewards = torch.tensor([[1.0, 0, -1], [1, 1, 1], [-1, -1, -1], [0.25, -1, 0.5]])
    return [f"group {p}, sample {g}" for p in range(4) for g in range(3)], rewards


FILTER, KEEP = SimpleNamespace(zero_variance_filter=True), SimpleNamespace(
    zero_variance_filter=False)


def test_groups_of_equal_rewards_leave_with_all_their_samples():
    rollouts, rewards = batch()
    rows = list(rollouts)
    kept, kept_rewards, _ = effective_batch(rollouts, rewards, FILTER)
    kept = list(kept)
    assert kept != rows[3:9], ("kept and dropped are swapped: groups 1 and 2, whose rewards are "
                               "all equal, must leave.")
    assert kept != rows, "nothing was filtered: groups 1 and 2 have equal rewards and must leave."
    assert len(kept) != 12, "no new groups come in their place: the paper has no refill."
    assert kept == rows[:3] + rows[9:], (
        f"the rollouts kept are {kept}. They lie group by group, sample g of group p at p·G + g; "
        "groups 0 and 3 stay, in their order.")
    assert kept_rewards.shape == (2, 3), (
        f"the rewards kept have the shape {tuple(kept_rewards.shape)}: (groups kept, G) is (2, 3).")
    assert torch.equal(kept_rewards, rewards[[0, 3]]), (
        "the rewards kept must be those that came in, of groups 0 and 3. Centering and dividing is "
        "for later: normalized first, the dropped groups would be in the std.")
    assert rollouts == rows and torch.equal(rewards, batch()[1]), "the caller's inputs are changed."


def test_the_columns_are_about_all_groups_not_only_those_kept():
    rollouts, rewards = batch()
    log = effective_batch(rollouts, rewards, FILTER)[2]
    names = {"reward/mean", "reward/std", "frac_reward_zero_std", "prompts/consumed",
             "prompts/trained"}
    assert set(log) == names, f"the columns are {sorted(log)}, they must be {sorted(names)}."
    assert not any(isinstance(x, torch.Tensor) for x in log.values()), (
        "plain numbers, no tensors: `.item()`. They are written as JSON.")
    of_kept = rewards[[0, 3]]
    assert log["reward/mean"] != pytest.approx(of_kept.mean().item()), (
        "reward/mean is that of the groups kept. The columns tell of all groups consumed, or a run "
        "would seem to stand still while its prompts are learned.")
    assert log["reward/mean"] == pytest.approx(rewards.mean().item()), "reward/mean is wrong."
    assert log["reward/std"] == pytest.approx(rewards.std().item()), (
        f"reward/std is {log['reward/std']:.4f}, must be {rewards.std():.4f}: the std of all "
        "rewards (torch's default, it is only watched).")
    assert log["frac_reward_zero_std"] == 0.5, (
        f"frac_reward_zero_std is {log['frac_reward_zero_std']}: 2 of 4 groups have equal rewards.")
    assert (log["prompts/consumed"], log["prompts/trained"]) == (4, 2), (
        f"consumed {log['prompts/consumed']}, trained {log['prompts/trained']}: must be 4 and 2.")


def test_without_the_filter_all_stay_and_the_share_is_still_told():
    rollouts, rewards = batch()
    kept, kept_rewards, log = effective_batch(rollouts, rewards, KEEP)
    assert len(kept) == 12, (
        "config.zero_variance_filter is False, and groups are missing: nobody looks at the switch.")
    assert list(kept) == rollouts and torch.equal(kept_rewards, rewards), (
        "without the filter rollouts and rewards come back as they were, in their order.")
    assert (log["frac_reward_zero_std"], log["prompts/trained"]) == (0.5, 4), (
        f"without the filter frac_reward_zero_std is {log['frac_reward_zero_std']} and "
        f"prompts/trained {log['prompts/trained']}: must be 0.5, it is only counted, and 4.")


def test_a_step_whose_groups_all_teach_nothing_is_an_empty_batch():
    kept, rewards, log = effective_batch([f"{i}" for i in range(6)], torch.ones(2, 3), FILTER)
    assert list(kept) == [] and rewards.shape == (0, 3) and log["prompts/trained"] == 0, (
        f"all groups have equal rewards: the batch is empty, [] and (0, 3), not {kept}, "
        f"{tuple(rewards.shape)}.")


# -------------------------------------------------------------------------------------- curriculum
NAMES = [f"p{i}" for i in range(23)]


def epoch(curriculum, n=23):
    try:
        return [curriculum.next() for _ in range(n)]
    except (KeyError, ZeroDivisionError) as error:
        raise AssertionError(f"next() raises {error!r}: a prompt that was never asked is not in "
                             "history. Its pass rate is 0 of 0, and it is not learned.") from None


def test_an_epoch_asks_every_prompt_once_in_an_order_of_its_own():
    curriculum = Curriculum(NAMES, 0.9, seed=3)
    epochs = [epoch(curriculum) for _ in range(3)]
    for order in epochs:
        assert None not in order, ("next() gives None, and nobody has retired: a prompt that was "
                                   "never asked is not learned.")
        twice = [name for name in NAMES if order.count(name) > 1]
        assert not twice, (f"{twice[0]} is asked twice in an epoch: shuffle the prompts, do not "
                           "draw them one by one.")
        assert sorted(order) == sorted(NAMES), "an epoch must ask every active prompt once."
    assert epochs[0] != NAMES, "the first epoch asks the prompts in the order of the list: shuffle."
    assert epochs[0] != epochs[1], (
        "every epoch has the same order: the random generator is made anew from the seed alone. "
        "Put the number of the epoch into its seed.")
    assert curriculum.epoch == 3, f"after three epochs `epoch` is {curriculum.epoch}: it is logged."
    assert NAMES == [f"p{i}" for i in range(23)], "the caller's list of prompts was shuffled."


def test_the_order_depends_on_the_seed_alone(monkeypatch):
    # hash() of a text is another number in every process.
    monkeypatch.setattr("scalerl.hash", lambda x: random.getrandbits(60), raising=False)

    def order(seed, noise):
        random.seed(noise)
        torch.manual_seed(noise)
        curriculum = Curriculum(NAMES, 0.9, seed)
        return [(epoch(curriculum, 1)[0], random.random())[0] for _ in range(46)]
    assert order(5, 1) == order(5, 2), (
        "two runs with one seed ask in different orders: the order comes from the global random "
        "generator (or hash()). Make one of your own, random.Random(..), from seed and epoch.")
    assert order(5, 1) != order(6, 1), (
        "two seeds have the same order: self.seed is not used, and two seeds are no replicates.")


def test_another_seed_is_not_the_same_seed_some_epochs_later():
    """seed + epoch, seed * epoch and f"{seed}{epoch}" all fail: 11 epochs of seed 1, 1 of 11."""
    seen = {}
    for seed in (0, 1, 2, 11):
        curriculum = Curriculum(NAMES, 0.9, seed)
        for number in range(1, 13):
            old = seen.setdefault(tuple(epoch(curriculum)), (seed, number))
            assert old == (seed, number), (
                f"seed {seed} has in epoch {number} the order that seed {old[0]} has in epoch "
                f"{old[1]}. Make the generator from one text with both numbers and a mark between "
                "them: seed + epoch is the same for many pairs.")


def test_a_resumed_run_asks_the_same_prompts():
    """The attributes of a curriculum go to a checkpoint as JSON."""
    old = Curriculum(NAMES, 0.9, seed=3)
    for prompt in epoch(old, 31):
        old.record(prompt, random.randint(0, 4), 4)
    try:
        state = json.loads(json.dumps(vars(old)))
    except TypeError as error:
        raise AssertionError(f"the state is not JSON ({error}): keep no generator and no set in "
                             "self, only lists, dicts and numbers.") from None
    new = Curriculum(NAMES, 0.9, seed=3)
    vars(new).update(state)
    for prompt in ("p1", "p2"):
        old.record(prompt, 40, 40), new.record(prompt, 40, 40)
    assert [old.next() for _ in range(60)] == [new.next() for _ in range(60)], (
        "a resumed run asks other prompts: the order of an epoch, or who has retired, depends on "
        "something that is no attribute of the curriculum.")


def curriculum_with(*results, retire_at=0.9):
    """Prompt "a" with these results (correct, samples), beside "b" that is never right."""
    curriculum = Curriculum(["a", "b"], retire_at, seed=0)
    epoch(curriculum, 2)
    for correct, samples in results:
        curriculum.record("a", correct, samples)
    curriculum.record("b", 0, 10)
    return curriculum


@pytest.mark.parametrize("results, retires, sentence", [
    ([(9, 10)], True, "9 of 10 at retire_at 0.9 must retire: reached is enough, >= and not >."),
    ([(8, 10)], False, "8 of 10 must stay at retire_at 0.9."),
    ([(8, 10), (9, 9)], False, "8 of 10, then 9 of 9, is 17 of 19, below 0.9: one lucky group is "
     "not enough. All samples so far count, not the last visit's."),
    ([(9, 9), (8, 10)], False, "9 of 9, then 8 of 10, is 17 of 19, below 0.9: all samples so far "
     "count, not the best or the first visit's."),
    ([(30, 30), (5, 8)], True, "30 of 30, then 5 of 8, is 35 of 38, above 0.9: it must retire. Add "
     "up samples over all visits, not the last visit's, and not a mean of the visits' rates."),
    ([(1, 1), (16, 20)], False, "1 of 1, then 16 of 20, is 17 of 21, below 0.9. The mean of the "
     "two visits' rates is 0.9: add up the samples, not the rates."),
    ([], False, "a prompt without a sample so far must stay (0 of 0 is no pass rate)."),
], ids=["9 of 10", "8 of 10", "8 of 10 and 9 of 9", "9 of 9 and 8 of 10", "30 of 30 and 5 of 8",
        "1 of 1 and 16 of 20", "never asked"])
def test_a_prompt_retires_by_the_pass_rate_of_all_its_samples(results, retires, sentence):
    curriculum = curriculum_with(*results)
    following = set(epoch(curriculum, 1 if retires else 2))
    assert ("a" not in following) == retires, sentence
    assert curriculum.learned("a") == retires, f"`learned` disagrees with `next`: {sentence}"


def test_record_keeps_the_sums_of_a_prompts_samples():
    curriculum = curriculum_with((3, 8), (4, 8))
    assert list(curriculum.history["a"]) == [7, 16], (
        f"after 3 of 8 and 4 of 8, history['a'] is {list(curriculum.history['a'])}: it holds "
        "[correct samples, all samples] of all visits, [7, 16].")


def test_nobody_leaves_in_the_middle_of_an_epoch():
    curriculum = Curriculum(["a", "b", "c"], 0.9, seed=0)
    first, = epoch(curriculum, 1)
    for prompt in "abc":
        curriculum.record(prompt, 10, 10)
    rest = epoch(curriculum, 2)
    assert None not in rest and sorted([first, *rest]) == ["a", "b", "c"], (
        "a prompt that was learned in this epoch is left out of it already. It leaves the next "
        "ones: the order of an epoch is made once, at its start.")


def test_a_retired_prompt_does_not_come_back():
    """A group in flight when its prompt retired may bring the pass rate below 0.9 again."""
    curriculum = curriculum_with((10, 10))
    assert epoch(curriculum, 3) == ["b"] * 3, "10 of 10 must retire, and 0 of 10 must stay."
    curriculum.record("a", 0, 90)
    assert "a" not in epoch(curriculum, 5), (
        "a prompt that had retired is asked again, since a late group lowered its pass rate. It is "
        "gone for good: take it out of self.active.")
    assert curriculum.active == ["b"], (
        f"self.active is {curriculum.active}, it must be the prompts not retired: it is logged.")


def test_when_all_have_retired_the_answer_is_none_again_and_again():
    curriculum = Curriculum(["a", "b"], 0.9, seed=0)
    for prompt in epoch(curriculum, 2):
        curriculum.record(prompt, 10, 10)
    try:
        found = epoch(curriculum, 3)
    except (IndexError, RecursionError, ZeroDivisionError, ValueError) as error:
        raise AssertionError(f"when all prompts have retired, next() raises {error!r}: it must "
                             "return None, and the run ends in good order.") from None
    assert found == [None] * 3, f"when all prompts have retired, next() gives {found}, not None."
    assert curriculum.active == [], f"all have retired, and self.active is {curriculum.active}."
    assert curriculum.epoch == 1, (
        f"one epoch was asked and all have retired, and after three more calls `epoch` is "
        f"{curriculum.epoch}: it grows although no epoch begins. It is logged; return None first.")


def test_above_one_nobody_retires():
    curriculum = curriculum_with((10, 10), retire_at=1.01)
    assert sorted(epoch(curriculum, 2)) == ["a", "b"], (
        "with retire_at 1.01 a prompt retires: 0.9 is written into the code, use self.retire_at.")
