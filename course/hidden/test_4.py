"""Hidden checks of exercise 4: a simulated run with late results, beside plain counters."""

import json
import random
from collections import deque
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch

from loss import zero_variance
from scalerl import Curriculum, effective_batch


@pytest.fixture(autouse=True)
def fresh_inputs(seed):
    random.seed(seed)


@pytest.mark.parametrize("number", range(5))
def test_epochs_and_retirement_of_a_run_whose_results_come_late(number):
    prompts = [f"prompt-{i}" for i in range(random.randint(5, 19))]
    retire_at = random.choice([0.5, 0.8, 0.9])
    skill = {p: random.choice([0.2, 0.7, 0.9, 1.0]) for p in prompts}
    curriculum = Curriculum(prompts, retire_at, seed=random.randrange(1000))
    active, flying, counts = list(prompts), deque(), {p: [0, 0] for p in prompts}
    for epoch in range(random.randint(4, 7)):
        active = [p for p in active if not counts[p][1]
                  or Fraction(*counts[p]) < Fraction(str(retire_at))]
        if not active:
            assert curriculum.next() is None and curriculum.next() is None, "all have retired: None"
            return
        asked = []
        for _ in range(len(active)):
            asked.append(curriculum.next())
            assert asked[-1] is not None, f"None, and {len(active)} prompts have not retired."
            flying.append(asked[-1])
            while len(flying) > 3:                          # a group is three visits late
                p, G = flying.popleft(), random.randint(2, 8)
                right = sum(random.random() < skill[p] for _ in range(G))
                counts[p][0] += right
                counts[p][1] += G
                curriculum.record(p, right, G)
        assert sorted(asked) == sorted(active), (
            f"epoch {epoch + 1} asked {sorted(set(asked))}; not retired were {sorted(active)} "
            f"(retire_at {retire_at}, [right, all]: {counts}).")
        if random.random() < 0.5:
            state = json.loads(json.dumps(vars(curriculum)))
            curriculum = Curriculum(prompts, retire_at, curriculum.seed)
            vars(curriculum).update(state)
    assert {p: list(n) for p, n in curriculum.history.items() if n[1]} == {
        p: n for p, n in counts.items() if n[1]}, "history is not [right, all] of every prompt."


def test_orders_are_new_in_each_epoch_and_the_seeds_own(monkeypatch):
    monkeypatch.setattr("scalerl.hash", lambda x: random.getrandbits(60), raising=False)
    prompts = [f"{i}" for i in range(31)]

    def orders(seed):
        random.seed(random.getrandbits(32))
        curriculum = Curriculum(prompts, 0.9, seed)
        return [tuple(curriculum.next() for _ in prompts) for _ in range(4)]
    a, b, c = orders(11), orders(11), orders(12)
    assert a == b, "one seed, two orders."
    assert len({tuple(prompts), *a, *c}) == 9, "two epochs, or two seeds, have the same order."


@pytest.mark.parametrize("keep_all", [False, True])
def test_effective_batch_of_random_groups(keep_all):
    P, G = random.randint(9, 14), random.randint(3, 6)
    rows = [[random.choice([-1.0, 0.0, 0.5, 1.0])] * G if random.random() < 0.5 else
            [1.0, -1.0] + [random.choice([-1.0, 0.0, 0.5, 1.0]) for _ in range(G - 2)]
            for _ in range(P)]
    rollouts = [object() for _ in range(P * G)]
    rewards = torch.tensor(rows)
    equal = [len(set(row)) == 1 for row in rows]
    assert zero_variance(rewards).tolist() == equal, "zero_variance of random groups"
    kept, kept_rewards, log = effective_batch(
        rollouts, rewards, SimpleNamespace(zero_variance_filter=not keep_all))
    stay = [p for p in range(P) if keep_all or not equal[p]]
    assert list(kept) == [rollouts[p * G + g] for p in stay for g in range(G)], "the rollouts kept"
    assert kept_rewards.tolist() == [rows[p] for p in stay], "the rewards kept"
    flat = [r for row in rows for r in row]
    mean = sum(flat) / len(flat)
    assert log == pytest.approx({
        "reward/mean": mean,
        "reward/std": (sum((r - mean) ** 2 for r in flat) / (len(flat) - 1)) ** 0.5,
        "frac_reward_zero_std": sum(equal) / P, "prompts/consumed": P,
        "prompts/trained": len(stay)}, rel=1e-4, abs=1e-6), "the columns"


def test_zero_variance_within_a_tolerance():
    G, base = random.randint(3, 7), random.uniform(-1, 1)
    spread = torch.linspace(0, 1, G)[torch.randperm(G)].double()
    for width, tol, truth in ((4e-7, 1e-6, True), (4e-6, 1e-6, False), (0.01, 0.02, True),
                              (0.03, 0.02, False), (0.0, 0.0, True)):
        found = zero_variance((base + width * spread)[None], tol).tolist()
        assert found == [truth], f"rewards over a range of {width} with tol {tol}: {found}."
