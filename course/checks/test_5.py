"""Public checks of exercise 5, the pacer (course/5_pacer.md). Run: make check EX=5"""

import random
from types import SimpleNamespace

import pytest

from course.naive_pacer import NaivePacer, counterexample, replay
from scalerl import Group, PipelinePacer, Run

SIZES = [(0, 3), (1, 2), (2, 1), (3, 4), (5, 2), (8, 3)]        # k, P


def group(group_id, start, finished=False):
    return Group(group_id, f"prompt {group_id}", start, 2, ["a sample"] * 2 * finished)


def pacer_with(k, P, groups):
    """A pacer with these outstanding groups, whether `admit` is written yet or not."""
    pacer = PipelinePacer(k, P)
    pacer.groups = {g.group_id: g for g in groups}
    pacer.admitted = 1 + max((g.group_id for g in groups), default=-1)
    return pacer


def in_time(left, version, k, P):
    """The oracle: plan the next steps by hand. Of the groups left behind (their starts), the step
    at version + 1 gets the first P, the step at version + 2 the next P, and so on."""
    for place, start in enumerate(sorted(left)):
        if version + 1 + place // P > start + k:
            return False
    return True


# -- may_admit and admit ---------------------------------------------------------------------------

@pytest.mark.parametrize("k, P", SIZES)
def test_k_plus_1_steps_worth_of_groups_may_be_outstanding(k, P):
    pacer = PipelinePacer(k, P)
    while pacer.may_admit() and len(pacer.groups) < 1000:
        pacer.groups[len(pacer.groups)] = group(len(pacer.groups), 0)
    count, right = len(pacer.groups), (k + 1) * P
    hint = {k * P: "That is k * P. One step's worth is being finished, k more may be under way; "
                   "with "
                   "k = 0 yours would never start a group.",
            right + 1: "That is one too many: compare with <, not <=.",
            2 * right: "That counts samples: it is groups that are counted."}
    assert count == right, (f"k = {k}, P = {P}: may_admit lets {count} groups be outstanding, it "
                            f"should be (k + 1) * P = {right}. {hint.get(count, '')}")
    for each in pacer.groups.values():
        each.rollouts = ["a sample"] * each.size
    assert not pacer.may_admit(), (
        "All groups are finished, none is consumed, and may_admit says yes. A finished group is "
        "outstanding until a step takes it: finished groups grow old too.")


def test_a_group_remembers_the_version_at_which_it_was_admitted():
    pacer = PipelinePacer(3, 2)
    versions = [0, 0, 4, 4, 5, 9]
    groups = [pacer.admit(f"prompt {i}", version, 7) for i, version in enumerate(versions)]
    assert all(isinstance(g, Group) for g in groups), "admit returns the new Group."
    assert [g.start for g in groups] == versions, (
        f"start is {[g.start for g in groups]} for groups admitted at the versions {versions}: it "
        "is the version that admit is given.")
    assert [(g.prompt_id, g.size, g.rollouts) for g in groups] == [
        (f"prompt {i}", 7, []) for i in range(6)], "Check prompt_id, size = G, and no rollouts yet."
    assert list(pacer.groups.values()) == groups, (
        "The pacer does not hold the groups that it admitted: self.groups maps the id to the "
        "group.")
    del pacer.groups[groups[0].group_id]            # a step has taken the first one
    late = pacer.admit("prompt 6", 9, 7)
    assert late.group_id not in [g.group_id for g in groups], (
        f"Id {late.group_id} was given twice: the number of outstanding groups is no id, because "
        "it "
        "falls when a step takes groups. Count all that were ever admitted (self.admitted).")


# -- take ------------------------------------------------------------------------------------------

def test_a_step_needs_p_finished_groups():
    groups = [group(i, 0, finished=i in (1, 4)) for i in range(6)]
    pacer = pacer_with(5, 3, groups)
    taken = pacer.take(0)
    assert taken is None, ("Two groups are finished, a step needs P = 3, and take returned "
                           f"{taken}. "
                           "It returns None until there are P of them.")
    assert list(pacer.groups.values()) == groups, (
        "take returned None and has removed groups: these would never be trained on.")


def test_a_step_takes_the_oldest_finished_groups_and_forgets_them():
    groups = [group(i, start, finished=i != 2) for i, start in enumerate((1, 1, 2, 2, 3, 3, 3))]
    shuffled = [groups[i] for i in (5, 2, 3, 0, 6, 1, 4)]
    pacer = pacer_with(6, 3, shuffled)
    taken = pacer.take(3)
    assert taken is not None, (
        "k = 6 leaves plenty of time, five groups are finished: no need to wait.")
    assert len(taken) == 3, f"A step has P = 3 groups, take returned {len(taken)}."
    ids = [g.group_id for g in taken]
    assert 2 not in ids, "take returned a group whose samples are not all finished."
    assert sorted(ids) == [0, 1, 3], (
        f"take returned the groups that started at {[g.start for g in taken]}; the oldest finished "
        "ones started at [1, 1, 2]. Young groups can wait, old ones cannot.")
    assert ids == [0, 1, 3], "The right groups, but not oldest first (ties: by group_id)."
    assert sorted(pacer.groups) == [2, 4, 5, 6], (
        f"After the step the outstanding groups are {sorted(pacer.groups)}, not [2, 4, 5, 6]: a "
        "taken group leaves self.groups, and only a taken one.")


def test_take_asks_leaves_enough_time_once_it_has_chosen():
    """PPOPacer, the other scheme, overrides that method: so `take` must call it."""
    asked = []

    class Asked(PipelinePacer):
        def leaves_enough_time(self, taken, version):
            asked.append(([g.group_id for g in taken], version))
            return self.answer

    for answer in (False, True):
        pacer = Asked(2, 2)
        pacer.groups, pacer.answer = {i: group(i, 0, finished=i > 1) for i in range(5)}, answer
        taken = pacer.take(0)
        assert asked, "take never called self.leaves_enough_time(taken, version)."
        assert asked.pop() == ([2, 3], 0), (
            "leaves_enough_time gets the groups of this step, version.")
        assert (taken is not None) == answer, (
            f"leaves_enough_time said {answer} and take returned {'a step' if taken else 'None'}.")
        assert len(pacer.groups) == (3 if answer else 5), "None is returned: remove no group."


# -- leaves_enough_time ----------------------------------------------------------------------------

def count(groups, v, k):
    return sum(g.start + k <= v for g in groups)


def by_rule(needed, available, first=0):
    """For all v, the groups `needed` by v find room in `available`: -> answer, as below."""
    return lambda left, all_left, version, k, P: all(
        needed(left, all_left, v, k) <= available(v - version, P)
        for v in range(version + first, version + k))


# What is often written instead: (groups left, all groups, version, k, P) -> answer.
MISTAKES = {
    "You look only at groups whose deadline is this very version, or only at the oldest one. That "
    "is "
    "the naive rule: the page shows how more than P groups reach their deadline together.":
        lambda left, all_left, version, k, P: count(left, version, k) == 0,
    "You count one step too many, or the deadline is one version late. `taken` fills the step at "
    "`version`: for the others the steps at version + 1 to v are left, v - version of them.":
        by_rule(lambda left, _, v, k: count(left, v, k), lambda steps, P: (steps + 1) * P),
    "You count one step too few. The step at version v is still in time for the deadline v.":
        by_rule(lambda left, _, v, k: count(left, v, k), lambda steps, P: max(steps - 1, 0) * P),
    "You count steps where groups are meant: a step consumes P groups.":
        by_rule(lambda left, _, v, k: count(left, v, k), lambda steps, P: steps),
    "You also count the groups of `taken` among those left behind.":
        by_rule(lambda _, all_left, v, k: count(all_left, v, k), lambda steps, P: steps * P),
    "You count only unfinished groups; finished ones that are left behind need room as well.":
        by_rule(lambda left, _, v, k: count([g for g in left if not g.finished], v, k),
                lambda steps, P: steps * P),
    "Your deadline is one version too early: a group that started at s has it at s + k.":
        by_rule(lambda left, _, v, k: count(left, v, k - 1), lambda steps, P: steps * P),
    "You leave out the groups at this very version: v begins with `version` itself.":
        by_rule(lambda left, _, v, k: count(left, v, k), lambda steps, P: steps * P, first=1),
    "You let no group overtake an older one: then each step waits for the slowest sample.":
        lambda left, all_left, version, k, P: left == all_left[P:],
    "It always says yes.": lambda left, all_left, version, k, P: True,
}


def states(k, P, rng, many=150):
    """Random states that admission allows: (groups, taken, version)."""
    for _ in range(many):
        version = rng.randrange(k, k + 5)
        starts = sorted(rng.randrange(version - k, version + 1) for _ in range((k + 1) * P))
        groups = [group(i, start, finished=rng.random() < 0.7) for i, start in enumerate(starts)]
        finished = [g for g in groups if g.finished]
        if len(finished) >= P:
            yield groups, finished[:P], version


def test_the_groups_left_behind_can_still_be_consumed_in_time(seed):
    seen, sentence = [], None
    for k, P in SIZES:
        for groups, taken, version in states(k, P, random.Random(f"{seed}/{k}")):
            answer = bool(pacer_with(k, P, groups).leaves_enough_time(taken, version))
            others = [g for g in groups if g not in taken]
            left = [g.start for g in others]
            right = in_time(left, version, k, P)
            seen.append((answer, (others, groups, version, k, P)))
            if answer != right and sentence is None:
                sentence = (
                    f"k = {k}, P = {P}, version {version}: after this step the groups left behind "
                    f"started at {left}. leaves_enough_time says {answer}, but P a step, oldest "
                    f"first, they {'are all' if right else 'are not all'} consumed at start + k or "
                    "earlier.")
    if sentence is not None:
        found = [mistake for mistake, wrong in MISTAKES.items()
                 if all(answer == wrong(*state) for answer, state in seen)]
        pytest.fail(" ".join([sentence, *found[:1]]), pytrace=False)


# -- all together ----------------------------------------------------------------------------------

def drive(k, P, rng, steps=40):
    """A run with a random order of finishing, some groups slow. -> the lag of every group taken."""
    pacer, version, lags = PipelinePacer(k, P), 0, []
    while version < steps:
        started = 0
        while pacer.may_admit():
            pacer.admit(f"prompt {pacer.admitted}", version, 1)
            started += 1
            assert started <= (k + 1) * P, (
                f"may_admit still says yes after {started} groups have started. Does admit keep "
                "each group in self.groups, under an id of its own?")
        assert len(pacer.groups) <= (k + 1) * P, (        # else this loop would not end
            f"{len(pacer.groups)} groups are outstanding, at most {(k + 1) * P} may be: a finished "
            "group is outstanding until a step takes it.")
        taken = pacer.take(version)
        if taken is not None:
            lags += [version - g.start for g in taken]
            assert lags[-P:] == sorted(lags[-P:], reverse=True), "A step is oldest first."
            version += 1
            continue
        groups = sorted(pacer.groups.values(), key=lambda g: (g.start, g.group_id))
        finished = [g for g in groups if g.finished]
        needless = len(finished) >= P and in_time(
            [g.start for g in groups if g not in finished[:P]], version, k, P)
        assert not needless, (
            f"k = {k}, P = {P}, version {version}: the trainer waits and need not. Outstanding "
            "groups "
            f"started at {[g.start for g in groups]}, those that are finished at "
            f"{[g.start for g in finished]}. The P oldest of these could be taken: all others "
            "would "
            "still be in time.")
        unfinished = [g for g in groups if not g.finished]
        assert unfinished, (
            f"k = {k}, P = {P}, version {version}: deadlock. All {len(groups)} groups are "
            f"finished, started at {[g.start for g in groups]}, and take says None.")
        slow = rng.random() < 0.15                  # the oldest ones linger
        rng.choice(unfinished if slow else unfinished[len(unfinished) // 2:]).rollouts.append("x")
    assert pacer.admitted == len(lags) + len(pacer.groups), (
        "Some groups were admitted and then lost.")
    return lags


@pytest.mark.parametrize("k, P", SIZES)
def test_no_group_is_trained_on_more_than_k_steps_late_and_none_waits_needlessly(k, P, seed):
    for trial in range(10):
        lags = drive(k, P, random.Random(f"{seed}/{trial}"))
        assert max(lags) <= k, (f"k = {k}, P = {P}: a group was trained on {max(lags)} steps after "
                                "its "
                                "start. take lets a step go although those left behind are too "
                                "many.")


def test_two_slow_groups_with_one_deadline():
    """k = 2, P = 1. Groups 0 and 1 are slow, 2 is quick; version 0 takes 2. Now 3 is quick too."""
    groups = [group(0, 0), group(1, 0), group(3, 1, finished=True)]
    pacer = pacer_with(2, 1, groups)
    assert pacer.take(1) is None, (
        "k = 2, P = 1, version 1: groups 0 and 1 started at version 0 and are not finished, group "
        "3 is. "
        "If this step takes group 3, both others need the one step at version 2. The trainer has "
        "to "
        "wait, although no group is at its deadline yet.")
    groups[0].rollouts = ["a sample"] * 2
    assert pacer.take(1) == [groups[0]], "Group 0 is finished now: it goes first, group 1 has time."


# -- the naive rule --------------------------------------------------------------------------------

@pytest.mark.parametrize("k, P", [(2, 1), (2, 3), (3, 2), (5, 4)])
def test_your_schedule_breaks_the_naive_rule(k, P):
    schedule = counterexample(k, P)
    assert isinstance(schedule, list) and all(isinstance(entry, list) for entry in schedule), (
        "counterexample returns a list of lists of group ids.")
    lags = replay(NaivePacer(k, P), schedule)
    assert lags, (f"k = {k}, P = {P}: with your schedule the naive pacer takes no step at all: P "
                  "groups "
                  "have to be finished, and none at its deadline may be missing.")
    assert max(lags.values()) > k, (
        f"k = {k}, P = {P}: with your schedule the naive pacer takes {len(lags) // P} steps, and "
        "the "
        f"oldest group in them is {max(lags.values())} steps old: the bound k holds. Let the young "
        "groups finish first, for as long as no group is at its deadline; how many are at it then?")


@pytest.mark.parametrize("k, P", [(2, 1), (3, 2)])
def test_your_pacer_keeps_the_bound_on_your_schedule(k, P):
    everything = [list(range(9 * k * P))] * 2 * k   # in the end all groups finish
    lags = replay(PipelinePacer(k, P), [*counterexample(k, P), *everything])
    assert lags and max(lags.values()) <= k, (
        f"Your schedule breaks your PipelinePacer({k}, {P}) as well: its largest lag is "
        f"{max(lags.values(), default=None)}.")


# -- Run.admit: who calls the pacer ----------------------------------------------------------------

class Fake:
    """A run with G = 4 around stand-ins that count: so many groups may start, so many slots are
    free, so many prompts are left. `step` and `version` differ, as they do after a step in which
    every group was filtered out."""
    G, step, version = 4, 9, 7

    def __init__(self, groups, slots, prompts):
        self.config = SimpleNamespace(samples_per_prompt=self.G)
        self.pacer = self.curriculum = self
        self.may_start, self.free_slots, self.prompts_left = groups, slots, prompts
        self.sampler = self
        self.asked, self.admitted, self.requests, self.told = 0, [], [], 0
        self.problems = SimpleNamespace(
            prompts={f"p{i}": (i, i + 1) for i in range(50)},
            train={f"p{i}": SimpleNamespace(task=f"task {i % 3}") for i in range(50)})

    def may_admit(self):
        return self.may_start > 0

    def admit(self, prompt_id, version, size):
        self.may_start -= 1
        self.admitted.append((prompt_id, version, size))
        return Group(100 + len(self.admitted), prompt_id, version, size)

    def no_more_prompts(self):
        self.told += 1

    def next(self):
        self.asked += 1
        assert self.asked < 50, "Run.admit asks the curriculum for prompts without end."
        if self.prompts_left == 0:
            return None
        self.prompts_left -= 1
        return f"p{self.asked}"

    def submit(self, request):
        self.requests.append(request)
        self.free_slots -= request.samples


def start_groups(fake):
    """Run.admit of a real Run: it may call itself, or other methods that you have added."""
    run = Run.__new__(Run)
    vars(run).update(vars(fake), step=fake.step, version=fake.version)
    run.admit()


@pytest.mark.parametrize("groups, slots, prompts, expected, why", [
    (3, 99, 99, 3, "the pacer allows 3 more groups"),
    (9, 11, 99, 2, "11 slots are free and a group needs G = 4 of them: a third group would only "
                   "wait for slots, and its prompt is better chosen later"),
    (9, 8, 99, 2, "8 slots are free, and two groups of G = 4 fit exactly"),
    (9, 99, 5, 5, "the curriculum has 5 prompts left"),
    (0, 99, 99, 0, "the pacer allows none"),
    (9, 3, 99, 0, "a group needs G = 4 slots, 3 are free")])
def test_groups_start_while_pacer_slots_and_prompts_allow_it(groups, slots, prompts, expected, why):
    run = Fake(groups, slots, prompts)
    start_groups(run)
    assert len(run.admitted) == len(run.requests) == expected, (
        f"{len(run.admitted)} groups were admitted and {len(run.requests)} requests submitted; it "
        f"should be {expected} of both: {why}.")
    assert run.asked <= expected + (prompts == expected), (
        f"The curriculum was asked {run.asked} times for {expected} groups. A prompt that is asked "
        "for "
        "and not started is lost for this epoch: look at pacer and slots first.")
    assert bool(run.told) == (prompts == expected), (
        "next() returned None: every prompt has retired. Tell the pacer with no_more_prompts(), or "
        "PPOPacer waits for ever for the rest of its round." if prompts == expected else
        "no_more_prompts() was called although the curriculum still has prompts.")


def test_a_group_starts_at_the_version_and_not_at_the_step():
    run = Fake(2, 99, 99)
    start_groups(run)
    for (prompt_id, version, size), request in zip(run.admitted, run.requests):
        assert version != run.step, (
            f"The group was admitted at {run.step}, the number of the step; it should be the "
            "version, "
            f"{run.version}. A step that trains on nothing counts as a step and makes no version.")
        assert version == run.version, (
            f"Admitted at {version}; the weights have version {run.version}.")
        assert size == run.G, f"A group has G = {run.G} samples, not {size}."
        assert request.prompt_id == prompt_id and request.samples == run.G, (
            "Wrong prompt or samples.")
        assert request.prompt_ids == run.problems.prompts[prompt_id], (
            "prompt_ids: of another prompt.")
        assert request.task == run.problems.train[prompt_id].task, "task: that of the problem."
    assert [r.group_id for r in run.requests] == [101, 102], (
        "A request carries the id of the group that pacer.admit returned: by it the finished "
        "samples "
        "find their group.")
