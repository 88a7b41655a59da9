"""Exercise 5 by values: random states and whole runs; the truth plans all later steps by hand."""
import numpy as np

from course.hidden.values import equal, holds, parts

PARTS, part = parts()


def sizes(rng):
    return [(int(rng.integers(low, high)), int(rng.integers(1, 7)))             # k, P
            for low, high in ((0, 1), (1, 2), (2, 4), (4, 7), (7, 12))]


def in_time(starts, version, k, P):
    return all(version + 1 + place // P <= start + k for place, start in enumerate(sorted(starts)))


@part("may_admit", 1, 1)
def may(rng, ask):
    states = [[k, P, n] for k, P in sizes(rng)
              for n in ((k + 1) * P + np.array([-P, -1, -1, 0, 0, 1, P])).tolist() if n >= 0]
    yield equal("may a group start", ask("may_admit", states=states),
                [n < (k + 1) * P for k, P, n in states])


@part("admit", 1, 6)
def admit(rng, ask):
    for k, P in sizes(rng)[2:]:
        versions = sorted(int(v) for v in rng.integers(0, 30, 8))
        size = int(rng.integers(2, 9))
        told, held = ask("admit", k=k, P=P, versions=versions, size=size, gone=3)
        ids = [each[0] for each in told]
        yield holds("every group has an id of its own, and lies under it",
                    len({*ids}) == 8 and {*held} == {*ids[3:]})
        yield equal("the groups", [each[1:] for each in told],
                    [[f"prompt {i}", v, size, [], True] for i, v in enumerate(versions)])


def state(rng, k, P):
    """Groups that admission allows, [[id, start, finished], ...], and a version."""
    version = int(rng.integers(k, k + 5))
    starts = sorted(rng.integers(version - k, version + 1, (k + 1) * P).tolist())
    return [[i, s, bool(rng.random() < 0.7)] for i, s in enumerate(starts)], version


@part("take", 2, 10)
def take(rng, ask):
    for trial in range(10):
        k, P = sizes(rng)[1 + trial % 4]
        groups, version = state(rng, k, P)
        if trial == 0:
            groups = [[i, s, i < P - 1] for i, s, _ in groups]          # one too few
        ready = [i for i, _, finished in groups if finished][:P]
        answer = bool(trial % 3)
        shuffled = [groups[i] for i in rng.permutation(len(groups))]
        found = ask("take", k=k, P=P, groups=shuffled, version=version, answer=answer)
        whole = len(ready) == P
        gone = ready if whole and answer else []
        right = [[[ready, version]] if whole else [], gone or None,
                 [i for i, *_ in groups if i not in gone]]
        yield equal("[[asked of leaves_enough_time], taken, left]", found, right)


@part("leaves_enough_time", 4, 3)
def enough(rng, ask):
    for _ in range(3):
        states, right, kinds = [], [], [0, 0]
        for k, P in [*sizes(rng)[1:], (2, 1), (3, 4), (5, 2), (8, 3)] * 60:
            groups, version = state(rng, k, P)
            taken = [i for i, _, finished in groups if finished][:P]
            left = [s for i, s, _ in groups if i not in taken]
            answer = in_time(left, version, k, P)
            if len(taken) == P and kinds[answer] < 60:          # as many of one as of the other
                kinds[answer] += 1
                states.append([k, P, groups, taken, version])
                right.append(answer)
        assert min(kinds) > 20, kinds
        yield equal("can those left behind be consumed in time",
                    ask("leaves_enough_time", states=states), right)


def planned(k, P, steps, lingering, rng):
    """A run of a plain pacer -> its schedule, and a row for each take()."""
    groups, version, count, schedule, rows = [], 0, 0, [[]], []
    while version < steps:
        while len(groups) < (k + 1) * P:
            groups.append([version, count, False])
            count += 1
        for group in groups:
            group[2] |= group[1] in schedule[-1]
        ready = [g for g in sorted(groups) if g[2]][:P]
        left = sorted(g for g in groups if g not in ready)
        held = sorted(g[1] for g in groups)
        if len(ready) == P and in_time([g[0] for g in left], version, k, P):
            rows.append([held, [[i, s] for s, i, _ in ready]])
            groups, version = left, version + 1
            schedule.append([])
        else:
            rows.append([held, None])
            open_ = [g for g in groups if not g[2]]
            schedule.append([open_[-1 if rng.random() > lingering else
                                   int(rng.integers(len(open_)))][1]])
    return schedule[:-1], rows


@part("whole runs", 2.5, 14)
def runs(rng, ask):
    for k, P in sizes(rng):
        for lingering in (0.05, 0.5):
            schedule, rows = planned(k, P, 12, lingering, rng)
            yield equal(f"a run with k = {k}, P = {P}: [outstanding, taken]",
                        ask("drive", k=k, P=P, schedule=schedule), rows)
    for k, P in sizes(rng)[1:]:
        found = ask("drive", k=k, P=P, schedule=[[]] * 3 * k, scheme="PPOPacer")
        lags = [v - start for v, (_, taken) in enumerate(found) for _, start in taken]
        yield equal("the lags of PPOPacer on these methods", lags,
                    [lag for _ in range(3) for lag in range(k) for _ in range(P)])


def naive_lags(k, P, schedule):
    """The naive rule over a schedule, as course/naive_pacer.py has it -> lags in steps."""
    version, count, groups, done, lags = 0, 0, [], set(), []
    for finishing in schedule:
        while len(groups) < (k + 1) * P:
            groups.append((version, count))
            count += 1
        done |= {*finishing}
        ready = [g for g in groups if g[1] in done][:P]
        if len(ready) == P and not any(s + k <= version and i not in done for s, i in groups):
            groups = [g for g in groups if g not in ready]
            lags += [version - s for s, _ in ready]
            version += 1
    return lags


@part("counterexample", 1.5, 8)
def schedule(rng, ask):
    for k, P in ((2, 1), (2, 3), (3, 2), (5, 4), (2, int(rng.integers(4, 9))), (4, 1),
                 (6, int(rng.integers(2, 6))), (9, 2)):
        found = ask("counterexample", k=k, P=P)
        good = isinstance(found, list) and len(found) <= 2000 and all(
            isinstance(row, list) and len(row) <= 2000 and all(type(i) is int for i in row)
            for row in found)
        yield holds(f"k = {k}, P = {P}: a schedule that breaks the naive rule",
                    good and max(naive_lags(k, P, found), default=0) > k)


@part("Run.admit", 2, 12)
def run_admit(rng, ask):
    cases = [(3, 99, 99), (9, 11, 99), (9, 99, 5), (0, 99, 99), (9, 3, 99), (4, 99, 4)]
    cases += [[int(n) for n in (rng.integers(1, 7), rng.integers(4, 40), rng.integers(1, 7))]
              for _ in range(6)]
    for may, slots, prompts in cases:
        G, version = int(rng.integers(2, 5)), int(rng.integers(50))
        count = max(0, min(may, slots // G, prompts))
        ran_out = count == prompts < min(may, max(slots // G, 0))
        found = ask("run_admit", G=G, version=version, step=version + 60, may=may, slots=slots,
                    prompts=prompts)
        found["told"] = bool(found["told"])
        yield equal(f"{may} groups may start, {slots} slots, {prompts} prompts", found, dict(
            admitted=[[f"q{i + 1}", version, G] for i in range(count)],
            submitted=[[7 * i + 7, f"q{i + 1}", [i + 1, 3], G, f"q{i + 1}" * 2]
                       for i in range(count)],
            told=ran_out, asked=count + ran_out))
