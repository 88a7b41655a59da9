"""Interruption by two requests, without vLLM: an engine that answers with random tokens."""

import copy
import random
from collections import Counter, deque

import pytest
from conftest import EOS, V, WORDS, check_cut_thinking, drain, requests

from engines.two_requests import TwoRequests
from sampler import Interruption, Request

PHRASE = (30, 31, 7)


class RandomEngine(TwoRequests):
    """Answers one request a step: random tokens, until an end or the budget."""

    def __init__(self, phrase=PHRASE, *, think=(9, 17), seed=5, ends=(EOS,)):
        super().__init__(WORDS, Interruption(*think, 4, phrase), slots=60, prompt_tokens=110,
                         eos_ids=ends, temperature=1.0, seed=seed)
        self.queue, self.asked = deque(), []

    def submit(self, request):
        self.queue.extend(self.new_samples(request))

    def step(self):
        sample = self.queue.popleft()
        self.asked.append(self.budget(sample))
        ids = []
        while len(ids) < self.asked[-1] and not (ids and ids[-1] in self.eos_ids):
            ids.append(random.randrange(V))
        self.absorb(sample, ids, [-1.5] * len(ids), [self.version] * len(ids), self.version)
        self.queue.extend(self.waiting)
        self.waiting.clear()
        return self.finished()


def test_thinking_is_cut_at_a_random_budget_and_the_phrase_is_not_sampled(seed):
    random.seed(seed)
    rollouts = drain(RandomEngine(), requests(30, samples=12))
    assert Counter(r.group_id for r in rollouts) == {i: 12 for i in range(30)}
    check_cut_thinking(rollouts)
    assert all(p == (-1.5 if sampled else 0) for r in rollouts
               for p, sampled in zip(r.behavior_logprobs, r.sampled))


def test_without_a_phrase_one_request_has_both_budgets(seed):
    """The limit is think_max + answer_tokens, as for the engine that sees its samples grow."""
    engine = RandomEngine(phrase=(), ends=(99,))
    rollouts = drain(engine, requests(5))
    assert engine.asked == [17 + 4] * 15
    assert {(len(r.output_ids), r.finish_reason, r.interrupted) for r in rollouts} == {
        (21, "length", False)}
    assert all(all(r.sampled) for r in rollouts)


def absorbed(engine, thinking, *, think=12, versions=3, current=5):
    """(sample, is it done?) after a first request that produced `thinking`."""
    engine.interruption = Interruption(think, think, 4, PHRASE)
    sample, = engine.new_samples(Request(0, "p", (8, 9), 1, "math"))
    assert engine.budget(sample) == think
    return sample, engine.absorb(sample, list(thinking), [-1.0] * len(thinking),
                                 [versions] * len(thinking), current)


def test_forced_tokens_have_the_version_at_which_they_were_put_in():
    """The weights may have changed since the last sampled token: the run's lag is counted from
    these versions."""
    sample, done = absorbed(RandomEngine(), [20] * 12)
    assert not done and sample.ids == [8, 9] + [20] * 12 + [30, 31, 7]
    assert sample.rollout.versions == [3] * 12 + [5] * 3
    assert sample.rollout.sampled == [True] * 12 + [False] * 3 and sample.rollout.interrupted


@pytest.mark.parametrize("last", [7, 20])
def test_thinking_that_has_ended_gets_no_phrase_but_the_answers_budget(last):
    """The end may be the very last token of the thinking budget."""
    engine = RandomEngine()
    sample, done = absorbed(engine, [20] * 10 + [7] + [last])
    rollout = sample.rollout
    assert not done and len(rollout.output_ids) == 12 and not rollout.interrupted
    assert engine.budget(sample) == 4
    assert engine.absorb(sample, [20, EOS], [-1.0] * 2, [6] * 2, 6)
    assert rollout.finish_reason == "stop" and rollout.versions == [3] * 12 + [6] * 2
    assert (rollout.prompt_ids, rollout.task, rollout.interrupted) == ((8, 9), "math", False)


def test_a_sample_that_ends_with_its_first_request_is_not_interrupted():
    for thinking in ([20, EOS], [20] * 11 + [EOS]):         # early, and as its last token
        sample, done = absorbed(RandomEngine(), thinking)
        rollout = sample.rollout
        assert done and rollout.output_ids == thinking and rollout.finish_reason == "stop"
        assert not rollout.interrupted and all(rollout.sampled)


def test_a_sample_out_of_both_budgets_is_truncated():
    engine = RandomEngine()
    sample, _ = absorbed(engine, [20] * 12)
    assert engine.absorb(sample, [21] * 4, [-1.0] * 4, [6] * 4, 6)
    rollout = sample.rollout
    assert rollout.finish_reason == "length" and len(rollout.output_ids) == 12 + 3 + 4


def test_unfinished_samples_are_asked_for_again_and_nothing_comes_twice(seed):
    random.seed(seed)
    group = requests(9, samples=7)
    engine = RandomEngine()
    for request in group:
        engine.submit(request)
    done = [r for _ in range(55) for r in engine.step()]
    assert done and len({r.group_id for r in done}) < 9
    state = copy.deepcopy(engine.state())                   # as a checkpoint keeps it
    resumed = RandomEngine(seed=99)
    resumed.load_state(state)
    assert resumed.in_flight == 63 - len(done)
    rollouts = done + drain(resumed)
    assert Counter(r.group_id for r in rollouts) == {i: 7 for i in range(9)}
    assert all(r.prompt_ids == group[r.group_id].prompt_ids for r in rollouts)


def budgets(engine, n=40):
    return [sample.first for sample in engine.new_samples(Request(0, "p", (1, 2), n))]


def test_budgets_go_on_after_a_resume_and_repeat_after_a_reseed():
    engine, resumed = RandomEngine(), RandomEngine(seed=99)
    first = budgets(engine)
    assert len(set(first)) > 2 and set(first) <= set(range(9, 18))
    engine.unfinished.clear()
    resumed.load_state(engine.state())
    assert budgets(resumed) == budgets(engine) != first
    engine.reseed(5)
    assert budgets(engine) == first
