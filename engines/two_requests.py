"""two_requests.py: interruption on vLLM, which is only told how many tokens a request may have.

A sample is two requests: prompt -> thinking, with the thinking budget; then prompt + thinking
(+ phrase, if it has not ended) -> answer, with the answer's budget. Without a phrase one request
has both budgets. The samples of a prompt share its keys and values through vLLM's prefix cache,
salted with the version: only one that a server begins late, after a push, finds older blocks."""
import queue
from collections import Counter, deque
from dataclasses import dataclass, replace

import torch

from sampler import Request, Rollout


@dataclass(eq=False)
class Sample:
    """One sample on its way. Its rollout holds what its requests have produced so far."""
    request: Request
    first: int                          # the budget of its first request
    rollout: Rollout
    refused: int = 0                    # on servers: times that its own request failed

    @property
    def ids(self):                      # what its next request continues
        return [*self.request.prompt_ids, *self.rollout.output_ids]

    def add(self, ids, behavior_logprobs, versions, sampled):
        self.rollout.output_ids += ids
        self.rollout.behavior_logprobs += behavior_logprobs
        self.rollout.versions += versions
        self.rollout.sampled += [sampled] * len(ids)


class TwoRequests:
    """What the samplers on vLLM share: the rule above. Arguments as of `TransformersSampler`."""

    def __init__(self, tokenizer, interruption, *, slots, prompt_tokens, eos_ids, temperature=1.0,
                 seed=0):
        self.tokenizer, self.interruption, self.slots = tokenizer, interruption, slots
        self.prompt_tokens, self.eos_ids = prompt_tokens, sorted(eos_ids)
        self.temperature, self.version = temperature, 0
        self.random = torch.Generator().manual_seed(seed)       # of the thinking budgets
        self.empty()

    def empty(self):
        self.unfinished = {}            # sample submitted and not yet returned -> its rollout
        self.waiting: deque[Sample] = deque()   # for a slot, or for a server with room
        self.done = queue.SimpleQueue()         # samples, not yet returned

    @property
    def in_flight(self):
        return len(self.unfinished)

    @property
    def free_slots(self):
        return self.slots - self.in_flight

    def reseed(self, seed):
        self.random.manual_seed(seed)

    def new_samples(self, request):
        """The samples of a new request, each with a thinking budget of its own."""
        rule, samples = self.interruption, []
        answer = 0 if rule.phrase_ids else rule.answer_tokens       # of the same request
        for think in rule.draw_budgets(request.samples, self.random).tolist():
            rollout = Rollout(request.prompt_id, request.group_id, request.prompt_ids, [], [], [],
                              [], "length", False, request.task)
            samples.append(Sample(request, think + answer, rollout))
        self.unfinished |= {sample: sample.rollout for sample in samples}
        return samples

    def budget(self, sample):           # tokens that its next request may have
        return self.interruption.answer_tokens if sample.rollout.output_ids else sample.first

    def absorb(self, sample, ids, behavior_logprobs, versions, current):
        """Add the tokens of a finished request. Returns whether the sample is done; else it waits
        for its second request. current: version now, the label of forced tokens."""
        rollout, phrase = sample.rollout, self.interruption.phrase_ids
        first = not rollout.output_ids
        sample.add(ids, behavior_logprobs, versions, sampled=True)
        if ids[-1] in self.eos_ids:
            rollout.finish_reason = "stop"
        elif first and phrase:
            if self.interruption.end not in self.tokenizer.decode(rollout.output_ids):
                sample.add(phrase, [0.0] * len(phrase), [current] * len(phrase), sampled=False)
                rollout.interrupted = True
            self.waiting.appendleft(sample)
            return False
        self.done.put(sample)
        return True

    def finished(self) -> list[Rollout]:
        return self.returned([self.done.get() for _ in range(self.done.qsize())])

    def returned(self, samples) -> list[Rollout]:
        return [self.unfinished.pop(sample) for sample in samples]

    # -- checkpoint: keys and values cannot be saved, so what has begun is asked for again --------

    def state(self):
        missing = Counter(sample.request for sample in self.unfinished)
        return {"version": self.version, "random": self.random.get_state(),
                "requests": [replace(r, samples=n) for r, n in missing.items()]}

    def load_state(self, state):
        self.random.set_state(state["random"])
        for request in state["requests"]:
            self.submit(request)
        self.version = state["version"]
