"""Exercise 4 by values: random groups, and simulated runs beside plain counters."""
import statistics
from fractions import Fraction

import numpy as np

from course.hidden.values import close, equal, holds, parts

PARTS, part = parts()


def groups(rng, P, G):
    """Half of them of equal rewards, of any value."""
    rewards = rng.choice([-1.0, 0.0, 0.25, 0.5, 1.0], (P, G))
    rewards[:, :2] = 1, -1
    same = rng.permutation(np.arange(P) % 2 == 0)
    rewards[same] = rng.choice([-1.0, 0.25, 1.0], same.sum())[:, None]
    return rewards.astype(np.float32), same


@part("zero_variance", 2, 12)
def variance(rng, ask):
    for _ in range(3):
        rewards, same = groups(rng, int(rng.integers(9, 15)), int(rng.integers(3, 7)))
        yield equal("groups of equal rewards", ask("zero_variance", rewards=rewards), same)
    G, base = int(rng.integers(3, 8)), rng.uniform(-1, 1)
    spread = rng.permutation(np.linspace(0, 1, G))
    for width, tol in ((4e-7, 1e-6), (4e-6, 1e-6), (0.01, 0.02), (0.03, 0.02), (0.0, 0.0)):
        found = ask("zero_variance", rewards=(base + width * spread)[None], tol=tol)
        yield equal(f"rewards over {width}, tol {tol}", found, [width <= tol])
    long = np.concatenate([np.zeros(8), [1.5e-6]])[None]
    yield equal("the range counts, not the std", ask("zero_variance", rewards=long), [False])
    one = np.array([[0.3], [1.0]], np.float32)
    yield equal("groups of one sample", ask("zero_variance", rewards=one), [True, True])
    yield equal("no groups", ask("zero_variance", rewards=one[:0]), [])
    mixed = np.array([[0.5, 0.5 + 5e-7], [0.5, 0.501]])
    yield equal("nearly equal", ask("zero_variance", rewards=mixed), [True, False])


@part("effective_batch", 2.5, 18)
def batch(rng, ask):
    for keep_all in (False, True, False):
        P, G = int(rng.integers(9, 15)), int(rng.integers(3, 7))
        rewards, same = groups(rng, P, G)
        kept, rest, log, whole = ask("effective_batch", rewards=rewards, keep_all=keep_all)
        stay = [p for p in range(P) if keep_all or not same[p]]
        yield equal("the rollouts kept", kept, [p * G + g for p in stay for g in range(G)])
        yield equal("the rewards kept", rest, rewards[stay])
        yield equal("the caller's rewards are as they were", whole, True)
        right = {"reward/mean": float(rewards.mean(dtype=float)),
                 "reward/std": statistics.stdev(rewards.flatten().tolist()),
                 "frac_reward_zero_std": same.mean(), "prompts/consumed": P,
                 "prompts/trained": len(stay)}
        yield equal("the columns' names", sorted(log), sorted(right))
        yield close("the columns", [log[name] for name in sorted(right)],
                    [right[name] for name in sorted(right)], 1e-4, 1e-6)
        equals, *_ = ask("effective_batch", rewards=rewards[same], keep_all=keep_all)
        yield equal("a step that teaches nothing", len(equals), keep_all * int(same.sum()) * G)


@part("Curriculum: epochs and retirement of a run", 2.5, 20)
def run(rng, ask):
    for trial in range(10):
        prompts = [f"prompt-{i}" for i in range(int(rng.integers(5, 20)))]
        retire_at, late = float(rng.choice([0.5, 0.8, 0.9])), int(rng.integers(0, 4))
        skill = {p: rng.choice([0.2, 0.7, 0.9, 1.0]) for p in prompts}
        results = {p: [[int((rng.random(G) < skill[p]).sum()), int(G)]
                       for G in rng.integers(2, 9, 200)] for p in prompts}
        if trial == 9:                  # all retire, and the answer is None again and again
            results = {p: [[8, 8]] * 200 for p in prompts}
        calls = len(prompts) * (5 if trial == 9 else int(rng.integers(3, 7)))
        asked, history, _ = ask(
            "curriculum", prompts=prompts, retire_at=retire_at, seed=int(rng.integers(1000)),
            calls=calls, results=results, late=late,
            save_at=[int(i) for i in rng.integers(0, calls, 2)])
        right = follow(prompts, retire_at, asked, results, late)
        yield equal("the prompts of each epoch, None when all have retired", "", right[0])
        yield equal("history, [right, all] of each prompt",
                    {p: n for p, n in history.items() if n[1]}, right[1])


def follow(prompts, retire_at, asked, results, late):
    """Plain counters beside the prompts that were asked -> ("" or what is wrong, history)."""
    active, epoch, left = list(prompts), 0, []
    counts, visits, flying = {p: [0, 0] for p in prompts}, dict.fromkeys(prompts, 0), []

    def landed(much):
        while len(flying) > much:
            p, right, samples = flying.pop(0)
            counts[p] = [counts[p][0] + right, counts[p][1] + samples]
    for place, (prompt, number) in enumerate(asked):
        if not left:
            active = [p for p in active if not counts[p][1]
                      or Fraction(*counts[p]) < Fraction(str(retire_at))]
            left = list(active)
            epoch += bool(left)
        if prompt not in left if left else prompt is not None:
            return f"call {place} gives {prompt}; not yet asked in this epoch: {left}", {}
        if number != epoch:
            return f"epoch is {number} after call {place}, it must be {epoch}", {}
        if prompt is None:
            landed(0)
            continue
        left.remove(prompt)
        flying.append((prompt, *results[prompt][visits[prompt]]))
        visits[prompt] += 1
        landed(late)
    return "", {p: n for p, n in counts.items() if n[1]}


@part("Curriculum: the order is the seed's own", 1.5, 4)
def orders(rng, ask):
    prompts = [f"{i}" for i in range(31)]
    seeds = [0, 1, 2, 11, int(rng.integers(100, 1000))]
    found = [ask("orders", prompts=prompts, seed=seed, epochs=12, noise=seed) for seed in seeds]
    again = [ask("orders", prompts=prompts, seed=seed, epochs=12, noise=99) for seed in seeds]
    yield equal("one seed has one order", found, again)
    epochs = [order for orders in found for order in orders]
    yield holds("every epoch asks all prompts once",
                all(sorted(order) == sorted(prompts) for order in epochs))
    yield equal("different orders of 5 seeds in 12 epochs", len({*map(tuple, epochs)}), 60)
    yield holds("shuffled", prompts not in epochs)


@part("Curriculum: learned and record", 1.5, 8)
def learned(rng, ask):
    fixed = [[[9, 10]], [[8, 10]], [[8, 10], [9, 9]], [[9, 9], [8, 10]], [[30, 30], [5, 8]],
             [[1, 1], [16, 20]], []]
    for retire_at in (0.9, 0.5, 0.8, 1.01):
        results = fixed + [[[int(rng.integers(0, G + 1)), int(G)] for G in rng.integers(2, 9, 3)]
                           for _ in range(30)] + [[[1, 1], [int(n), int(n)]] for n in (3, 8)]
        found, history = ask("learned", retire_at=retire_at, results=results)
        sums = [[sum(x) for x in zip(*visits)] for visits in results]
        right = [bool(n) and Fraction(*n) >= Fraction(str(retire_at)) for n in sums]
        yield equal(f"learned, retire_at {retire_at}", found, right)
        yield equal("history", {p: n for p, n in history.items() if n[1]},
                    {f"p{i}": n for i, n in enumerate(sums) if n})
