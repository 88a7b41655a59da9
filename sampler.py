"""sampler.py: what turns prompts into samples while the trainer trains.

A sampler knows prompts, weights, and the version number of those weights. It does not know
rewards, advantages, filters, or how stale is too stale: the trainer paces (scalerl.py).

  1. The records: `Request` in (one prompt, G samples), `Rollout` out (one sample). A rollout
     carries, for every token, the log-probability the sampler gave it, the version of the weights
     that produced it, and whether it was sampled at all.
  2. `Interruption` (paper, section 4): each sample may think for a random number of tokens; if
     the thinking has not ended by then, a fixed phrase is appended for it and the answer begins.
     The phrase is not the policy's choice, so it is marked `sampled=False` and never trained on.
  3. `TwoRequests`: the same rule for engines that cannot look at a sample while it grows (vLLM).
     A request that may think, and if the thinking has not ended by then, a second one to answer.
  4. `TransformersSampler`: the engine that needs nothing but transformers. A slot loop driven by
     the caller: each `step()` decodes one token of every running sequence. Between two steps the
     weights may change, and running sequences go on, new weights over old keys and values: the
     in-flight update of PipelineRL.

Its randomness comes from one generator of its own, drawn once a token in slot order, so a run is
reproducible bit for bit, and `state()` / `load_state()` continue one exactly, cache included.

Sampling is by temperature alone. Top-p and top-k renormalize the distribution on the sampler's
side only, and the importance ratio of every token would be biased (0.896 on average at top-p 0.8
on a small model): they are not offered.

Axes: S slots, n running sequences (the first n slots), V vocabulary.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import asdict, dataclass, field, replace
from typing import Iterable, Protocol

import torch

from loss import head_logits
from packed import Slots

# ---------------------------------------------------------------------------------------------
# 1. Records


@dataclass(frozen=True)
class Request:
    """One group: `samples` answers wanted to one prompt."""
    group_id: int
    prompt_id: str
    prompt_ids: tuple[int, ...]
    samples: int
    task: str = ""


@dataclass
class Rollout:
    """One sample, with its provenance, token by token (four lists of equal length)."""
    prompt_id: str
    group_id: int
    prompt_ids: tuple[int, ...]
    output_ids: list[int]
    logprobs: list[float]       # log pi_gen(token), temperature included; 0 where not sampled
    versions: list[int]         # optimizer steps behind the weights that produced the token
    sampled: list[bool]         # False: forced by the interruption
    finish_reason: str          # "stop": ended by itself | "length": out of budget, truncated
    interrupted: bool
    task: str = ""


class Sampler(Protocol):
    """What the trainer needs from an engine: `TransformersSampler` below, `VllmSampler`, and
    `ServerSampler`, which alone has `finished()` as well, a step that does not wait."""
    version: int                # of the weights that the next token will come from
    needs_push: bool            # a server came back without the weights: push them now
    head_fp32: bool             # may change between two steps; servers keep what they began with
    generator: torch.Generator  # of what the engine draws itself: thinking budgets, or all

    @property
    def in_flight(self) -> int:
        """Samples submitted and not yet returned."""

    @property
    def free_slots(self) -> int:
        """Samples that could start at once; below zero where some wait."""

    def submit(self, request: Request) -> None:
        """Requests are started in the order submitted. Raises ValueError: it cannot ever fit."""

    def step(self) -> list[Rollout]:
        """Go on for a token, or for a second where servers do; return what has finished."""

    def push_weights(self, named_tensors: Iterable, version: int) -> None:
        """Tokens from now on come from these weights; running sequences keep their cache."""

    def state(self) -> tuple[dict, dict]:
        """(tensors, plain) for a checkpoint, from which `load_state` of a new engine goes on:
        exactly, or where a cache cannot be saved, with unfinished samples begun again."""

    def load_state(self, tensors: dict, plain: dict) -> None: ...

    def close(self) -> None:
        """Drop what is unfinished and give memory or servers back. A run just ends instead."""


def check_fits(request, prompt_tokens, slots):
    """Raises ValueError for a prompt or a group that an engine has no room for."""
    if len(request.prompt_ids) > prompt_tokens:
        raise ValueError(f"prompt {request.prompt_id} has {len(request.prompt_ids)} tokens, "
                         f"more than prompt_tokens = {prompt_tokens}")
    if request.samples > slots:
        raise ValueError(f"{request.samples} samples a prompt, {slots} slots")


def restored(kind, fields):
    """A `Request` or a `Rollout` from a checkpoint's fields: JSON knows no tuples."""
    return kind(**{**fields, "prompt_ids": tuple(fields["prompt_ids"])})


# ---------------------------------------------------------------------------------------------
# 2. Interruption


@dataclass(frozen=True)
class Interruption:
    """How long a sample may think and answer, in tokens (paper, section 4: 10k-12k and 2k).

    A sample draws its thinking budget uniformly from think_min..think_max, both included. At that
    many tokens, `end` not seen, `phrase_ids` are forced; seen or not, `answer_tokens` more may
    follow, then the sample is truncated. Ours: a sample that ends its thinking early may use what
    is left for its answer. It keeps the rule the same for engines that only count tokens.
    phrase_ids empty: no interruption, only the limit think_max + answer_tokens.
    """
    think_min: int
    think_max: int
    answer_tokens: int
    phrase_ids: tuple[int, ...] = ()
    end: str = "</think>"

    @property
    def longest(self) -> int:
        """Tokens of the longest possible output."""
        return self.think_max + len(self.phrase_ids) + self.answer_tokens


# ---------------------------------------------------------------------------------------------
# 3. Interruption by two requests


@dataclass
class Sample:
    """One sample on its way: what its requests so far have produced."""
    request: Request
    think: int                          # its thinking budget, in tokens
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    thought: bool = False               # the first request is over, or there is only one
    interrupted: bool = False
    server: object = None               # where its last request went, if to a server
    refused: int = 0                    # answers of servers that could not be believed


class TwoRequests:
    """The bookkeeping of an engine that is only told how many tokens a request may have.

    The first request of a sample has its thinking budget. If it runs out without `</think>`, the
    phrase is appended; seen or not, a second request has the answer's. An engine keeps its own
    queues and calls these; a sample that can never be interrupted is one request from the start.
    """
    needs_push = False

    def __init__(self, tokenizer, interruption: Interruption, *, slots, prompt_tokens, eos_ids,
                 temperature, seed, version):
        self.tokenizer, self.interruption, self.slots = tokenizer, interruption, slots
        self.prompt_tokens, self.eos_ids = prompt_tokens, sorted(eos_ids)
        self.temperature, self.version = temperature, version
        self.generator = torch.Generator().manual_seed(seed)    # of the thinking budgets

    def new_samples(self, request):
        rule, n = self.interruption, request.samples
        budgets = [rule.think_max] * n if not rule.phrase_ids else torch.randint(
            rule.think_min, rule.think_max + 1, (n,), generator=self.generator).tolist()
        return [Sample(request, think, thought=not (rule.phrase_ids and think))
                for think in budgets]

    def budget(self, sample):
        """Tokens that the sample's next request may have."""
        if not sample.thought:
            return sample.think
        # Without ids this is its only request, which thinks and answers: both budgets in one.
        return self.interruption.answer_tokens + sample.think * (not sample.ids)

    def absorb(self, sample, ids, logprobs, versions, current):
        """Add a finished request's tokens. Returns the rollout, or None: a second one is due.

        current   version of the weights now, which the forced tokens are labelled with
        """
        sample.ids += ids
        sample.logprobs += logprobs
        sample.versions += versions
        sample.sampled += [True] * len(ids)
        ended = ids[-1] in self.eos_ids
        if not ended and not sample.thought:
            sample.thought = True
            if self.interruption.end not in self.tokenizer.decode(sample.ids):
                phrase = self.interruption.phrase_ids
                sample.ids += phrase
                sample.logprobs += [0.0] * len(phrase)
                sample.versions += [current] * len(phrase)
                sample.sampled += [False] * len(phrase)
                sample.interrupted = True
            return None
        r = sample.request
        return Rollout(r.prompt_id, r.group_id, r.prompt_ids, sample.ids, sample.logprobs,
                       sample.versions, sample.sampled, "stop" if ended else "length",
                       sample.interrupted, r.task)

    def unfinished_state(self, samples, waiting):
        """(tensors, plain) for a checkpoint: the requests with as many samples as are missing.

        What the unfinished ones have so far is dropped, not counted: their keys and values
        cannot be saved, and `unfinished_requests` of a resumed run asks for them again.
        """
        missing, requests = Counter(), {}
        for request, n in (*((s.request, 1) for s in samples), *((r, r.samples) for r in waiting)):
            missing[request.group_id] += n
            requests.setdefault(request.group_id, request)
        plain = {"version": self.version,
                 "requests": [asdict(replace(requests[group], samples=n))
                              for group, n in missing.items()]}
        return {"generator": self.generator.get_state()}, plain

    def unfinished_requests(self, tensors, plain):
        """The requests of `unfinished_state`, to be submitted again; also sets the generator."""
        self.generator.set_state(tensors["generator"])
        return [restored(Request, fields) for fields in plain["requests"]]


# ---------------------------------------------------------------------------------------------
# 4. The engine that needs nothing but transformers


class TransformersSampler:
    """Caller-driven continuous batching on the model's own forward. Implements `Sampler`.

    model, tokenizer   after `packed.prepare(model)`. The trainer's own modules, or a copy.
    slots              sequences decoded at once
    prompt_tokens      the longest prompt (gives the size of the cache)
    eos_ids            ids that end a sample
    head_fp32          compute the logits in fp32 (the paper's fix), or as a bf16 layer would

    Raises ValueError from `submit` for a prompt that cannot fit.
    """

    needs_push = False
    # What each slot remembers, (S,) or (S, longest); moved as one when a hole is closed.
    COLUMNS = ("last", "count", "limit", "think", "forced", "interrupted",
               "ids", "logprobs", "versions", "sampled")

    def __init__(self, model, tokenizer, interruption: Interruption, *, slots, prompt_tokens,
                 eos_ids, temperature=1.0, seed=0, head_fp32=True, version=0):
        self.model, self.tokenizer, self.interruption = model, tokenizer, interruption
        self.head = model.get_output_embeddings().weight
        self.temperature, self.head_fp32, self.version = temperature, head_fp32, version
        device, longest = self.head.device, interruption.longest
        self.device, self.prompt_tokens = device, prompt_tokens
        self.generator = torch.Generator(device).manual_seed(seed)
        self.eos_ids = torch.tensor(sorted(eos_ids), device=device)
        self.phrase = torch.tensor(interruption.phrase_ids, dtype=torch.long, device=device)
        self.waiting: deque[Request] = deque()
        self.owner: list[Request] = []                  # request of each running sequence
        self.cache = Slots(model.config, slots, prompt_tokens + longest, device=device,
                           dtype=self.head.dtype)
        whole = lambda *shape: torch.zeros(shape, dtype=torch.long, device=device)  # noqa: E731
        self.last = whole(slots)                # the newest token, not yet in the cache
        self.count = whole(slots)               # output tokens so far
        self.limit = whole(slots)               # output tokens at which the sample is cut
        self.think = whole(slots)               # its thinking budget
        self.forced = whole(slots) - 1          # next token of the phrase; -1: none
        self.interrupted = whole(slots)         # 0 or 1
        self.ids, self.versions = whole(slots, longest), whole(slots, longest)
        self.logprobs = torch.zeros(slots, longest, device=device)
        self.sampled = torch.zeros(slots, longest, dtype=torch.bool, device=device)

    @property
    def in_flight(self):
        return len(self.owner) + sum(request.samples for request in self.waiting)

    @property
    def free_slots(self):
        return self.cache.slots - self.in_flight

    def submit(self, request: Request):
        check_fits(request, self.prompt_tokens, self.cache.slots)
        self.waiting.append(request)

    def push_weights(self, named_tensors, version):
        """New weights under transformers' names; running sequences keep their cache.

        Tensors that are the model's own (the trainer's modules are shared) are not copied.
        """
        assert version >= self.version, f"version {version} pushed after {self.version}"
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, tensor in named_tensors:
                if own[name].data_ptr() != tensor.data_ptr():
                    own[name].copy_(tensor)
        self.version = version

    @torch.no_grad()
    def step(self) -> list[Rollout]:
        """Decode one token of every running sequence, start waiting ones; return the finished."""
        hidden = [self.cache.decode(self.model, self.last[: len(self.owner)])] if self.owner else []
        hidden += self._start_waiting()
        if not hidden:
            return []
        token, logprob = self._choose(torch.cat(hidden))
        return self._retire(self._record(token, logprob))

    def close(self):
        self.waiting.clear()
        self.owner.clear()

    # -- the parts of a step, in their order --------------------------------------------------

    def _start_waiting(self):
        """Give slots to waiting groups, whole ones, as long as they fit; compute each prompt once.

        Returns [(new sequences, hidden)], each sequence's hidden state at its prompt's end.
        """
        starting, n = [], len(self.owner)
        while self.waiting and n + self.waiting[0].samples <= self.cache.slots:
            starting.append(self.waiting.popleft())
            n += starting[-1].samples
        if not starting:
            return []
        new = slice(len(self.owner), n)
        self.owner += [request for request in starting for _ in range(request.samples)]
        hidden = self.cache.prefill(self.model, [r.prompt_ids for r in starting],
                                    [r.samples for r in starting])
        rule = self.interruption
        self.think[new] = rule.think_max if not len(self.phrase) else torch.randint(
            rule.think_min, rule.think_max + 1, (n - new.start,), generator=self.generator,
            device=self.device)
        self.limit[new] = self.think[new] + rule.answer_tokens
        self.count[new], self.forced[new], self.interrupted[new] = 0, -1, 0
        return [hidden.repeat_interleave(
            torch.tensor([r.samples for r in starting], device=self.device), 0)]

    def _choose(self, hidden):
        """Sample from softmax(logits / temperature): (n, hidden) -> token (n,), log-prob (n,).

        By inverting the cumulative distribution: one random number a sequence, where the Gumbel
        trick needs V of them. In float64, because summing 50k numbers in fp32 loses the tail.
        """
        logits = head_logits(hidden, self.head, head_fp32=self.head_fp32)
        logprobs = torch.log_softmax(logits.div_(self.temperature), -1)               # (n, V)
        cumulative = torch.exp(logprobs).cumsum(-1, dtype=torch.float64)
        u = torch.rand(len(hidden), 1, dtype=torch.float64, generator=self.generator,
                       device=self.device)
        # `right`: a token of probability zero has the same sum as the one before, never chosen.
        token = torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True)
        token.clamp_(max=logits.shape[1] - 1)       # u just below 1: the product may be the sum
        return token[:, 0], logprobs.gather(1, token)[:, 0]

    def _record(self, token, logprob):
        """Write down one token of each running sequence; returns which have finished (n,)."""
        n = len(token)
        count, forced = self.count[:n], self.forced[:n]         # views: written in place
        is_forced = forced >= 0
        if is_forced.any():
            token = torch.where(is_forced, self.phrase[forced.clamp(min=0)], token)
            logprob = logprob.masked_fill(is_forced, 0.0)
            forced.add_(is_forced)
            forced.masked_fill_(forced == len(self.phrase), -1)
        place = (torch.arange(n, device=self.device), count.clone())
        self.ids[place], self.logprobs[place], self.versions[place] = token, logprob, self.version
        self.sampled[place] = ~is_forced
        self.last[:n] = token
        count += 1
        ended = torch.isin(token, self.eos_ids) & ~is_forced
        if len(self.phrase):
            self._interrupt((count == self.think[:n]) & ~ended)
        return ended | (count == self.limit[:n])

    def _interrupt(self, due):
        """Start the phrase in each sequence (n,) whose budget is spent while it still thinks.

        The text is looked at once a sample, so the marker may be any number of tokens.
        """
        for slot in due.nonzero()[:, 0].tolist():
            ids = self.ids[slot, : self.count[slot]].tolist()
            if self.interruption.end not in self.tokenizer.decode(ids):
                self.forced[slot], self.interrupted[slot] = 0, 1
                self.limit[slot] += len(self.phrase)

    def _retire(self, finished):
        """Hand out finished sequences and fill their slots with the last running ones."""
        slots = finished.nonzero()[:, 0].tolist()
        if not slots:
            return []
        done = [self._rollout(slot) for slot in slots]
        n, n_left = len(self.owner), len(self.owner) - len(slots)
        gone = set(slots)
        targets = [s for s in slots if s < n_left]
        sources = [s for s in range(n_left, n) if s not in gone]
        self.cache.move(sources, targets)
        for name in self.COLUMNS if sources else ():
            column = getattr(self, name)
            column[targets] = column[sources]
        for source, target in zip(sources, targets):
            self.owner[target] = self.owner[source]
        del self.owner[n_left:]
        self.cache.active = n_left
        return done

    def _rollout(self, slot):
        request, count = self.owner[slot], int(self.count[slot])
        ids, logprobs, versions, sampled = (
            getattr(self, name)[slot, :count].tolist()
            for name in ("ids", "logprobs", "versions", "sampled"))
        ended = sampled[-1] and bool((self.eos_ids == ids[-1]).any())
        return Rollout(request.prompt_id, request.group_id, request.prompt_ids, ids, logprobs,
                       versions, sampled, "stop" if ended else "length",
                       bool(self.interrupted[slot]), request.task)

    # -- checkpoint ---------------------------------------------------------------------------

    def state(self):
        """(tensors, plain): all that is needed to go on exactly, running sequences included.

        The cache of running sequences belongs to it: it was computed under weights that are gone,
        so no restart from token ids could reproduce it.
        """
        n = len(self.owner)
        width = int(self.cache.lengths[:n].max()) if n else 0
        tensors = {name: getattr(self, name)[:n].clone() for name in self.COLUMNS}
        tensors["lengths"] = self.cache.lengths[:n].clone()
        tensors["generator"] = self.generator.get_state()
        for layer, (key, value) in enumerate(zip(self.cache.keys, self.cache.values)):
            tensors[f"key.{layer}"] = key[:n, :, :width].clone()
            tensors[f"value.{layer}"] = value[:n, :, :width].clone()
        # Samples of one group share their request: store each request once.
        requests = list({id(r): r for r in self.owner}.values())
        index = {id(r): i for i, r in enumerate(requests)}
        plain = {"version": self.version, "requests": [asdict(r) for r in requests],
                 "owner": [index[id(r)] for r in self.owner],
                 "waiting": [asdict(r) for r in self.waiting]}
        return tensors, plain

    def load_state(self, tensors, plain):
        requests = [restored(Request, fields) for fields in plain["requests"]]
        self.owner = [requests[i] for i in plain["owner"]]
        self.waiting = deque(restored(Request, fields) for fields in plain["waiting"])
        self.version = plain["version"]
        n = len(self.owner)
        self.cache.active = n
        self.cache.lengths[:n] = tensors["lengths"]
        for name in self.COLUMNS:
            getattr(self, name)[:n] = tensors[name]
        for layer, (key, value) in enumerate(zip(self.cache.keys, self.cache.values)):
            width = tensors[f"key.{layer}"].shape[2]
            key[:n, :, :width] = tensors[f"key.{layer}"]
            value[:n, :, :width] = tensors[f"value.{layer}"]
        self.generator.set_state(tensors["generator"])
