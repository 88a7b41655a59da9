"""Exercise 5: a pacer with the naive rule, `replay` to run a pacer over a schedule of events, and
`counterexample`, which is for the student to write. Called by the checks of exercise 5. The class
is plain on purpose and shares nothing with scalerl.PipelinePacer but the record `Group`.
"""

from scalerl import Group


class NaivePacer:
    """Waits only for groups at their deadline: they started at version - k, or before.

    Admission is that of PipelinePacer, and a step takes the P oldest finished groups. Only the
    rule of waiting differs.
    """

    def __init__(self, k, prompts_per_step):
        self.k, self.P = k, prompts_per_step
        self.groups, self.admitted = {}, 0          # outstanding groups by id, oldest first

    def may_admit(self):
        return len(self.groups) < (self.k + 1) * self.P

    def admit(self, prompt_id, version, size):
        self.groups[self.admitted] = Group(self.admitted, prompt_id, version, size)
        self.admitted += 1

    def take(self, version):
        groups = list(self.groups.values())
        if any(group.start + self.k <= version and not group.finished for group in groups):
            return None                             # the naive rule
        taken = [group for group in groups if group.finished][: self.P]
        if len(taken) < self.P:
            return None
        for group in taken:
            del self.groups[group.group_id]
        return taken


def replay(pacer, schedule):
    """Run a pacer over a schedule -> {group id: lag in steps} of the groups that were trained on.

    schedule   a list of lists of group ids. Entry t holds the groups that finish just before the
               trainer asks for the t-th time. (One that has not started yet finishes as it starts.)

    Before each entry the pacer starts all groups that it admits; ids count from 0 in this order.
    After it the trainer asks once. If the pacer says None, the trainer waits: the version stays.
    """
    version, lags, done = 0, {}, set()
    for finishing in schedule:
        for _ in range((pacer.k + 1) * pacer.P):    # more may never be outstanding
            if pacer.may_admit():
                pacer.admit("p", version, 1)
        done |= set(finishing)
        for group in pacer.groups.values():
            if group.group_id in done and not group.finished:
                group.rollouts.append("a sample")
        taken = pacer.take(version)
        if taken is not None:
            lags |= {group.group_id: version - group.start for group in taken}
            version += 1
    return lags


def counterexample(k, P):
    """A schedule for `replay` with which NaivePacer(k, P) trains on a group that is more than k
    steps old; k is 2 or more, P is 1 or more."""
    first = (k + 1) * P                             # groups of version 0: ids 0 to first - 1
    quick = [list(range(first - P + t * P, first + t * P)) for t in range(k)]
    # For k steps, only the youngest groups finish. Then k * P slow ones are at their deadline
    # together: they take k steps, and only the first of these comes in time.
    return [*quick, list(range(k * P)), *([] for _ in range(k - 1))]
