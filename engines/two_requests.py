"""two_requests.py: interruption on vLLM, which is only told how many tokens a request may have.

A sample is two requests:

  1. prompt -> thinking. It has the thinking budget. Often the sample ends by itself here.
  2. prompt + thinking (+ phrase, if it has not ended) -> answer. It has the answer's budget.

Without a phrase nothing can be interrupted, and one request has both budgets.
"""

from dataclasses import asdict, dataclass, field, replace

import torch

from sampler import Interruption, Request, Rollout, restored


@dataclass
class Sample:
    """One sample on its way: what its requests have produced so far."""
    request: Request
    think: int                          # its thinking budget
    last_request: bool                  # the request under way, or due next, is its last one
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    interrupted: bool = False
    refused: int = 0                    # on servers: its answers that were thrown away

    def add(self, ids, logprobs, versions, sampled):
        self.ids += ids
        self.logprobs += logprobs
        self.versions += versions
        self.sampled += [sampled] * len(ids)


class TwoRequests:
    """What the samplers on vLLM share: the rule above, and a checkpoint that asks again for what
    is unfinished. Each keeps its own queues. Arguments as of `TransformersSampler`."""

    def __init__(self, tokenizer, interruption: Interruption, *, slots, prompt_tokens, eos_ids,
                 temperature, seed):
        self.tokenizer, self.interruption, self.slots = tokenizer, interruption, slots
        self.prompt_tokens, self.eos_ids = prompt_tokens, sorted(eos_ids)
        self.temperature, self.version = temperature, 0
        self.random = torch.Generator().manual_seed(seed)       # of the thinking budgets

    def reseed(self, seed):
        self.random.manual_seed(seed)

    def new_samples(self, request):
        """The samples of a new request, each with a thinking budget of its own."""
        budgets = self.interruption.draw_budgets(request.samples, self.random).tolist()
        return [Sample(request, think, last_request=not self.interruption.phrase_ids)
                for think in budgets]

    def budget(self, sample):
        """Tokens that the sample's next request may have."""
        if not sample.last_request:
            return sample.think
        # A first request that is also the last one thinks and answers: both budgets in one.
        return self.interruption.answer_tokens + (0 if sample.ids else sample.think)

    def absorb(self, sample, ids, logprobs, versions, current):
        """Add the tokens of a finished request: lists of equal length, not empty. Returns the
        rollout, or None: a second one is due. current: version now, the label of forced tokens."""
        sample.add(ids, logprobs, versions, sampled=True)
        ended = ids[-1] in self.eos_ids
        if not ended and not sample.last_request:
            sample.last_request = True
            if self.interruption.end not in self.tokenizer.decode(sample.ids):
                phrase = self.interruption.phrase_ids
                sample.add(phrase, [0.0] * len(phrase), [current] * len(phrase), sampled=False)
                sample.interrupted = True
            return None
        r = sample.request
        return Rollout(r.prompt_id, r.group_id, r.prompt_ids, sample.ids, sample.logprobs,
                       sample.versions, sample.sampled, "stop" if ended else "length",
                       sample.interrupted, r.task)

    # -- checkpoint --------------------------------------------------------------------------------

    def unfinished_state(self, requests):
        """(tensors, plain values) for a checkpoint. requests: for what is unfinished, also what has
        begun, whose keys and values cannot be saved; those of one group become one."""
        groups = {}
        for request in requests:
            before = groups[request.group_id].samples if request.group_id in groups else 0
            groups[request.group_id] = replace(request, samples=request.samples + before)
        plain = {"version": self.version, "requests": [asdict(r) for r in groups.values()]}
        return {"random": self.random.get_state()}, plain

    def unfinished_requests(self, tensors, plain):
        """The requests of `unfinished_state`, to be submitted again; also restores the seed."""
        self.random.set_state(tensors["random"])
        return [restored(Request, fields) for fields in plain["requests"]]
