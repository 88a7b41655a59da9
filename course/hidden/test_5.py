"""Hidden checks of exercise 5: other sizes, fresh random runs (COURSE_SEED), a pacer in plain lists
beside the student's. Each message says what is wrong, as in the public checks."""

import os
import random
from types import SimpleNamespace

import pytest

from course.naive_pacer import NaivePacer, counterexample, replay
from scalerl import Group, PipelinePacer, PPOPacer, Run

SEED = int(os.environ.get("COURSE_SEED") or 0)
RNG = random.Random(SEED)
SIZES = [(RNG.randrange(low, high), RNG.randrange(1, 7))            # k, P
         for low, high in ((0, 1), (1, 2), (2, 4), (4, 7), (7, 12))]


class PlainPacer:
    """The oracle: [start, id, finished] in a list; it plans all later steps before it takes one."""

    def __init__(self, k, P):
        self.k, self.P, self.groups, self.count = k, P, [], 0

    def admit_all(self, version):
        while len(self.groups) < self.k * self.P + self.P:
            self.groups.append([version, self.count, False])
            self.count += 1

    def take(self, version):
        ready = [g for g in sorted(self.groups) if g[2]][: self.P]
        left = sorted(g for g in self.groups if g not in ready)
        late = [g for place, g in enumerate(left)
                if version + 1 + place // self.P - g[0] > self.k]
        if len(ready) < self.P or late:
            return None
        self.groups = left
        return [g[1] for g in ready]


@pytest.mark.parametrize("k, P", SIZES)
@pytest.mark.parametrize("lingering", [0.05, 0.5])
def test_a_random_run_takes_the_steps_of_a_plain_pacer(k, P, lingering):
    rng = random.Random(f"{SEED}/{k}/{P}/{lingering}")
    pacer, plain, version = PipelinePacer(k, P), PlainPacer(k, P), 0
    for asked in range(1500):
        plain.admit_all(version)
        started = 0
        while pacer.may_admit():
            new = pacer.admit(f"p{pacer.admitted}", version, 3)
            started += 1
            assert started <= (k + 1) * P, f"k = {k}, P = {P}: may_admit never says no."
            assert new.start == version, f"Admitted at version {version}, its start is {new.start}."
        assert sorted(pacer.groups) == sorted(g[1] for g in plain.groups), (
            f"k = {k}, P = {P}, version {version}: groups {sorted(pacer.groups)} are outstanding; "
            "it "
            f"should be {sorted(g[1] for g in plain.groups)}, (k + 1) * P of them.")
        expected, taken = plain.take(version), pacer.take(version)
        ids = None if taken is None else [g.group_id for g in taken]
        starts = {g[1]: g[0] for g in plain.groups}
        assert ids == expected, (
            f"k = {k}, P = {P}, version {version}: take gave {ids}, the plain pacer {expected}; "
            "None "
            f"means wait. Left outstanding by it, id: start = {starts}")
        if expected:
            lag = max(version - g.start for g in taken)
            assert lag <= k, f"k = {k}, P = {P}: a group is {lag} steps old."
            version += 1
        else:
            unfinished = [g for g in plain.groups if not g[2]]
            assert unfinished, "Deadlock: all groups are finished and nobody may be taken."
            one = unfinished[-1] if rng.random() > lingering else rng.choice(unfinished)
            one[2] = True
            pacer.groups[one[1]].rollouts += ["a sample"] * 3
    assert version > 3


@pytest.mark.parametrize("k, P", SIZES[1:])
def test_the_other_pacer_still_works_on_yours(k, P):
    """PPOPacer calls admit and take: rounds of k * P groups, lags 0 to k - 1."""
    pacer, lags, version = PPOPacer(k, P), [], 0
    while version < 3 * k:
        started = 0
        while pacer.may_admit():
            pacer.admit("p", version, 1).rollouts.append("a sample")
            started += 1
            assert started <= k * P, (
                "PPOPacer admits without end: does admit keep each group under an id of its own?")
        taken = pacer.take(version)
        assert taken is not None, (
            "PPOPacer waits for ever. Its take() calls yours: ask self.leaves_enough_time, which "
            "it "
            "overrides.")
        lags += [version - g.start for g in taken]
        version += 1
    assert lags == [lag for _ in range(3) for lag in range(k) for _ in range(P)], (
        "PPOPacer on your methods has other lags than 0 to k - 1, P of each.")


@pytest.mark.parametrize("k, "
                         "P", [(2, RNG.randrange(4, 9)), (4, 1), (6, RNG.randrange(2, 6)), (9, 2)])
def test_the_schedule_breaks_the_naive_rule_at_every_size(k, P):
    lags = replay(NaivePacer(k, P), counterexample(k, P))
    assert lags and max(lags.values()) > k, (
        f"k = {k}, P = {P}: with counterexample(k, P) the naive rule's oldest group is "
        f"{max(lags.values(), default=0)} steps old, not more than k. Does your schedule use k and "
        "P?")


@pytest.mark.parametrize("trial", range(8))
def test_run_admit_against_a_plain_loop(trial):
    rng = random.Random(f"{SEED}/{trial}")
    G, version, step = rng.randrange(2, 9), rng.randrange(50), 60 + rng.randrange(50)
    may, slots, prompts = rng.randrange(7), rng.randrange(-3, 40), rng.randrange(7)
    expected = max(0, min(may, slots // G, prompts))
    ran_out = expected == prompts < min(may, max(slots // G, 0))
    seen = SimpleNamespace(admitted=[], submitted=[], told=0, asked=0)

    def next_prompt():
        seen.asked += 1
        assert seen.asked < 99, "Run.admit asks for prompts without end."
        return f"q{seen.asked}" if seen.asked <= prompts else None

    def admit(prompt_id, at, size):
        seen.admitted.append((prompt_id, at, size))
        return Group(7 * len(seen.admitted), prompt_id, at, size)

    def submit(request):
        seen.submitted.append(request)
        sampler.free_slots -= request.samples

    def told():
        seen.told += 1

    sampler = SimpleNamespace(free_slots=slots, submit=submit)
    names = [f"q{i}" for i in range(99)]
    Run.admit(SimpleNamespace(
        config=SimpleNamespace(samples_per_prompt=G), version=version, step=step, sampler=sampler,
        curriculum=SimpleNamespace(next=next_prompt),
        pacer=SimpleNamespace(may_admit=lambda: len(seen.admitted) < may, admit=admit,
                              no_more_prompts=told),
        problems=SimpleNamespace(prompts={name: (i, 3) for i, name in enumerate(names)},
                                 train={name: SimpleNamespace(task=name * 2) for name in names})))
    assert seen.admitted == [(f"q{i + 1}", version, G) for i in range(expected)], (
        f"Admitted (prompt, version, size): {seen.admitted}. The pacer allows {may}, {slots} slots "
        "are "
        f"free, G = {G}, {prompts} prompts are left: {expected} groups, at version {version}.")
    assert [(r.group_id, r.prompt_id, r.prompt_ids, r.samples, r.task) for r in seen.submitted] == [
        (7 * i + 7, f"q{i + 1}", (i + 1, 3), G, f"q{i + 1}" * 2) for i in range(expected)], (
        "A request has its group's id, its prompt's id and tokens, G samples, its problem's task.")
    assert seen.asked == expected + ran_out, "A prompt was asked for and not started: it is lost."
    assert bool(seen.told) == ran_out, (
        "no_more_prompts() belongs where next() returns None, only there.")
