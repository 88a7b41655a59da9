"""An evaluation that is killed and begun again: what is kept, and that this favors nothing."""

import json
import random
from statistics import fmean
from types import SimpleNamespace

import pytest

from artifacts.resume import KeptAnswers
from command import make_run as making
from config import Config
from sampler import Request, Rollout


class Engine:
    """Decodes `slots` samples at once, a token each a step; their lengths are drawn."""

    def __init__(self, rng, slots=7):
        self.rng, self.slots, self.version, self.asked = rng, slots, 3, []
        self.waiting, self.running, self.seeds = [], [], []

    @property
    def in_flight(self):
        return len(self.waiting) + len(self.running)

    def reseed(self, seed):
        self.seeds.append(seed)

    def submit(self, request):
        self.asked.append(request.group_id)
        self.waiting += [request] * request.samples

    def step(self):
        while self.waiting and len(self.running) < self.slots:
            length = 1 + int(self.rng.expovariate(1 / 20))
            self.running.append([self.waiting.pop(0), length, length])
        done = []
        for sample in self.running:
            sample[1] -= 1
            if not sample[1]:
                done.append(sample)
        self.running = [sample for sample in self.running if sample[1]]
        return [Rollout(r.prompt_id, r.group_id, r.prompt_ids, [5] * length, [-0.5] * length,
                        [3] * length, [True] * length, "stop", False, "t") for r, _, length in done]


def ask(sampler, problems, samples, stop_at=float("inf")):
    """What Run.answers does; stopped after so many rollouts: a kill."""
    for i in range(problems):
        sampler.submit(Request(i, f"p{i}", (1, 2), samples))
    rollouts = []
    while sampler.in_flight and len(rollouts) < stop_at:
        rollouts += sampler.step()
    return rollouts


@pytest.fixture
def rng(seed):
    return random.Random(seed)


def test_what_finished_before_the_first_unfinished_problem_is_kept_and_the_rest_asked_again(
        rng, tmp_path):
    first = KeptAnswers(Engine(rng), tmp_path / "e.jsonl")
    first.reseed(1030)
    before = ask(first, 31, 3, stop_at=40)
    counts = [sum(r.group_id == i for r in before) for i in range(31)]
    whole = next(i for i in range(31) if counts[i] < 3)
    again = KeptAnswers(Engine(rng), tmp_path / "e.jsonl")
    again.reseed(1030)
    after = ask(again, 31, 3)
    assert again.sampler.asked == list(range(whole, 31)) and again.sampler.seeds == [1030]
    assert sorted((r.group_id, r.prompt_id) for r in after) == [
        (i, f"p{i}") for i in range(31) for _ in range(3)]
    kept = [r for r in before if r.group_id < whole]
    assert [(r.output_ids, r.finish_reason) for r in after if r.group_id < whole] == [
        (r.output_ids, "stop") for r in sorted(kept, key=lambda r: r.group_id)]
    third = KeptAnswers(Engine(rng), tmp_path / "e.jsonl")      # killed once it had finished
    third.reseed(1030)
    assert len(ask(third, 31, 3)) == 93 and third.sampler.asked == []


def test_a_kept_answer_has_its_prompt_again_and_is_of_the_problem_that_asks(rng, tmp_path):
    """The verifier reads in the prompt whether thinking was open: without it, unfinished thinking
    is graded as an answer. Problems that have moved get no answer of another one."""
    first = KeptAnswers(Engine(rng), tmp_path / "e.jsonl")
    first.reseed(1030)
    ask(first, 13, 3)
    for shift, asked in ((0, []), (4, list(range(13)))):
        again = KeptAnswers(Engine(rng), tmp_path / "e.jsonl")
        again.reseed(1030)
        for i in range(13):
            again.submit(Request(i, f"p{i + shift}", (1, 2, i), 3))
        rollouts = []
        while again.in_flight:
            rollouts += again.step()
        assert again.sampler.asked == asked
        assert {(r.prompt_id, *r.prompt_ids) for r in rollouts} == {
            (f"p{i + shift}", 1, 2, i) for i in range(13)}


def test_a_file_that_cannot_be_written_ends_no_evaluation(rng, tmp_path):
    sampler = KeptAnswers(Engine(rng), tmp_path / "gone" / "e.jsonl")
    sampler.reseed(1030)
    assert len(ask(sampler, 7, 3)) == 21


@pytest.mark.parametrize("change", ["seed", "version", "file", "cut"])
def test_answers_of_another_evaluation_or_of_other_weights_are_not_taken(change, rng, tmp_path):
    first = KeptAnswers(Engine(rng), tmp_path / "e.jsonl")
    first.reseed(1030)
    ask(first, 9, 2)
    text = (tmp_path / "e.jsonl").read_text()
    if change in ("file", "cut"):           # the last answer is cut off in the middle of a number
        (tmp_path / "e.jsonl").write_text("?" if change == "file" else text[:-40])
    again = KeptAnswers(Engine(rng), tmp_path / "e.jsonl")
    again.sampler.version += change == "version"
    again.reseed(1040 if change == "seed" else 1030)
    assert len(ask(again, 9, 2)) == 18
    cut = json.loads(text.splitlines()[-1])["group_id"]
    assert again.sampler.asked == list(range(cut if change == "cut" else 0, 9))


def test_a_stop_between_a_resume_and_its_first_answer_loses_nothing(rng, tmp_path):
    """A stop is heeded before the first step, which takes seconds: hours of answers were gone."""
    path = tmp_path / "e.jsonl"
    for stop_at in (180, 0):
        sampler = KeptAnswers(Engine(rng), path)
        sampler.reseed(7)
        ask(sampler, 60, 4, stop_at)
    sampler = KeptAnswers(engine := Engine(rng), path)
    sampler.reseed(7)
    assert len(ask(sampler, 60, 4)) == 240 and engine.asked[0] > 0


def test_a_self_test_is_not_kept(rng, tmp_path):
    sampler = KeptAnswers(Engine(rng), tmp_path / "e.jsonl")
    ask(sampler, 4, 2)
    assert not (tmp_path / "e.jsonl").exists()
    sampler.reseed(7)
    ask(sampler, 4, 2)
    size = (tmp_path / "e.jsonl").stat().st_size
    ask(sampler, 4, 2)
    assert (tmp_path / "e.jsonl").stat().st_size == size


@pytest.mark.days(4, turn=0)
def test_an_evaluation_that_goes_on_favors_no_length_as_one_that_keeps_all_would(rng, tmp_path):
    """Lengths are exponential: what is under way at a random moment is twice as long as the mean.
    Kept all, and only those drawn again, the mean of all would fall by about 7 of 60 samples x
    its excess. Ours stays within five standard errors."""
    ours, naive, truth = [], [], []
    for trial in range(300):
        path = tmp_path / f"{trial}.jsonl"
        first = KeptAnswers(Engine(rng), path)
        first.reseed(0)
        before = ask(first, 20, 3, stop_at=rng.randrange(8, 52))
        again = KeptAnswers(Engine(rng), path)
        again.reseed(0)
        ours.append(fmean(len(r.output_ids) for r in ask(again, 20, 3)))
        missing = 60 - len(before)
        naive.append((sum(len(r.output_ids) for r in before) + sum(
            1 + int(rng.expovariate(1 / 20)) for _ in range(missing))) / 60)
        truth.append(fmean(1 + int(rng.expovariate(1 / 20)) for _ in range(60)))
    error = (sum((x - fmean(truth)) ** 2 for x in truth) / 300 / 300 * 2) ** 0.5
    assert fmean(naive) < fmean(truth) - 5 * error < fmean(ours)


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_a_run_on_vllm_keeps_the_answers_of_its_evaluations_and_no_others(
        engine, tmp_path, monkeypatch):
    """Over transformers they would be drawn again, and could not be equal to the last digit."""
    both = object(), object()
    monkeypatch.setattr(making, "load_problems", lambda *_: SimpleNamespace(prompt_tokens=3))
    monkeypatch.setattr(making, "make_samplers", lambda *_: both)
    monkeypatch.setattr(making, "Run", lambda *parts: parts)
    _, _, _, verifier, sampler, eval_sampler, _ = making.make_run(
        Config(model="m", engine=engine), SimpleNamespace(tokenizer=None),
        SimpleNamespace(path=tmp_path))
    verifier.close()
    assert sampler is both[0]
    if engine == "vllm":
        assert isinstance(eval_sampler, KeptAnswers) and eval_sampler.sampler is both[1]
        assert eval_sampler.path == tmp_path / "evaluation.jsonl"
    else:
        assert eval_sampler is both[1]
