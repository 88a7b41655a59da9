"""Exercise 2 by values: random rewards and masks; loops over lists are the truth."""
import statistics
from fractions import Fraction

import numpy as np

from course.hidden.values import close, equal, holds, parts

PARTS, part = parts()


def truth(rewards, norm):
    rows = [[r - statistics.fmean(row) for r in row] for row in rewards.tolist()]
    rows = [[0.0] * len(row) if max(given) - min(given) <= 1e-6 else row
            for row, given in zip(rows, rewards.tolist())]
    batch = statistics.pstdev([a for row in rows for a in row])
    std = {"batch": [batch] * len(rows), "prompt": [statistics.pstdev(row) for row in rows],
           "none": [1.0] * len(rows)}[norm]
    return [[a / (s or 1.0) for a in row] for row, s in zip(rows, std)]


def drawn(rng, partial):
    P, G = rng.integers(8, 13), rng.integers(4, 8)
    rewards = rng.random((P, G)) if partial else rng.choice([-1.0, 1.0], (P, G))
    rewards[:, :2] = 1, -1
    return rewards.astype(np.float32)


def of_norm(norm):
    @part(f"advantages, norm {norm!r}", 1.5, 12)
    def work(rng, ask):
        for partial in (False, True, False, True):
            rewards = drawn(rng, partial)
            yield close("advantages", ask("advantages", rewards=rewards, norm=norm),
                        truth(rewards, norm), 2e-6, 1e-6)
            G, value = rewards.shape[1], rng.random()
            same = np.full((3, G), value, np.float32)
            same[1] += np.linspace(0, 4e-7, G, dtype=np.float32)
            mixed = np.concatenate([rewards, same])
            found = ask("advantages", rewards=mixed, norm=norm)
            yield close("advantages beside groups of equal rewards", found, truth(mixed, norm),
                        1e-5, 1e-6)
            yield holds("groups of equal rewards have advantages of exactly 0",
                        bool((found[-3:] == 0).all()))


for each in ("batch", "prompt", "none"):
    of_norm(each)


@part("advantages: odd batches, and what is refused", 1, 12)
def odd(rng, ask):
    rewards = drawn(rng, True)
    for norm in ("batch", "prompt", "none"):
        yield close("advantages", ask("advantages", rewards=rewards, norm=norm),
                    truth(rewards, norm), 2e-6, 1e-6)
        one = ask("advantages", rewards=np.array([[1.0], [-1.0], [0.3]], np.float32), norm=norm)
        yield close("groups of one", one, [[0.0]] * 3)
    yield equal("an empty batch", ask("advantages", rewards=rewards[:0], norm="batch").shape,
                rewards[:0].shape)
    whole = ask("advantages", rewards=np.array([[1, -1, -1]]), norm="none")
    yield close("whole numbers", whole, [[4 / 3, -2 / 3, -2 / 3]])
    for bad in (np.nan, np.inf):
        large = rng.normal(size=(25, 45)).astype(np.float32)
        p, g = int(rng.integers(10, 25)), int(rng.integers(30, 45))
        large[p, g] = bad
        kind, text = ask("advantages_refused", rewards=large, norm="prompt")
        yield holds(f"a reward of {bad} at {p}, {g} is a ValueError that says where",
                    kind == "ValueError" and str(p) in text and str(g) in text)
    for norm in ("std", "group"):
        kind, _ = ask("advantages_refused", rewards=rewards, norm=norm)
        yield equal("an unknown norm", kind, "ValueError")


def weights(mask, prompts, aggregation):
    pool = {"prompt": prompts.tolist(), "sample": [*range(len(mask))], "token": [0] * len(mask)}
    pool, count = pool[aggregation], {}
    for p, row in zip(pool, mask.tolist()):
        count[p] = count.get(p, 0) + sum(row)
    pools = sum(n > 0 for n in count.values())
    return [[float(Fraction(1, count[p] * pools)) if m else 0.0 for m in row]
            for p, row in zip(pool, mask.tolist())]


def of_aggregation(aggregation):
    @part(f"token weights, {aggregation!r}", 1.5, 13)
    def work(rng, ask):
        for _ in range(4):
            N, T = rng.integers(17, 30), rng.integers(7, 14)
            prompts = rng.choice(rng.choice(10**6, 6, replace=False), N)
            mask = rng.random((N, T)) < rng.choice([0, 0.3, 0.9, 1], (N, 1))
            mask[0], mask[1] = True, False
            found, dtype, after = ask("token_weights", mask=mask, prompts=prompts,
                                      aggregation=aggregation)
            yield close("weights", found, weights(mask, prompts, aggregation), 1e-5, 1e-9)
            yield equal("their dtype", dtype, "torch.float32")
            yield equal("the caller's mask", after, mask)
        kind, _ = ask("token_weights_refused", mask=mask, prompts=prompts, aggregation="mean")
        yield equal("an unknown aggregation", kind, "ValueError")


for each in ("prompt", "sample", "token"):
    of_aggregation(each)


@part("token weights: steps without tokens, padding", 0.5, 4)
def empty(rng, ask):
    mask, prompts = rng.random((13, 9)) < 0.6, np.arange(13) // 4
    for name in ("prompt", "sample"):
        wide = np.pad(mask, ((0, 0), (0, 4)))
        found = ask("token_weights", mask=wide, prompts=prompts, aggregation=name)[0]
        yield close("weights with padding", found, weights(wide, prompts, name), 1e-5, 1e-9)
    found = ask("token_weights", mask=mask & False, prompts=prompts, aggregation="prompt")[0]
    yield close("a step without tokens", found, np.zeros((13, 9)))
    found = ask("token_weights", mask=mask[:0], prompts=prompts[:0], aggregation="prompt")[0]
    yield equal("no samples", found.shape, (0, 9))
