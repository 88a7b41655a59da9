"""Generation: how prompts become samples (ScaleRL, sections 2, 3.1 and 4).

A sampler gets prompts and weights, and returns samples. It knows nothing about rewards or the bound
of the lag.

  1. Records        a `Request` asks for G samples of one prompt; each comes back as a `Rollout`.
  2. Interruption   a sample that thinks too long gets a fixed phrase, and answers. The policy did
                    not choose the phrase: `sampled=False`, never trained on.
  3. An engine      `TransformersSampler`. Two more, on vLLM, have the same methods
                    (CONTRIBUTING.md).

In-flight updates (PipelineRL, paper section 3.1). One `step()` decodes one token of every running
sequence. Between two steps the caller may push new weights. Running sequences go on, and their keys
and values are not computed again: the next tokens read what older weights have computed. A sample
has tokens of several versions, so each token records its own.

Where the paper is silent ("ours"):
 a. Each sample draws its own thinking budget, uniformly.
 b. A sample that ends its thinking early may spend the rest of its budget on its answer.
 c. There is no top-p and no top-k. They cut rare tokens, so μ of all others is larger than π: at
    top-p 0.8 the mean ratio π/μ was 0.896 on a small model, not 1.

Axes: n running sequences, V vocabulary. A slot is room for one sequence; the first n are used."""

from collections import Counter, deque
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch

from engines.kv_cache import make_cache
from engines.own_forward import cap
from loss import head_logits

# -- 1. Records ------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Request:
    """One group: `samples` samples of one prompt."""
    group_id: int
    prompt_id: str                      # names the problem
    prompt_ids: tuple[int, ...]         # the prompt's token ids
    samples: int
    task: str = ""


@dataclass
class Rollout:
    """One sample, with the origin of every token (four lists of equal length)."""
    prompt_id: str
    group_id: int
    prompt_ids: tuple[int, ...]
    output_ids: list[int]
    behavior_logprobs: list[float]      # log μ of the sampler, with temperature; 0 if forced
    versions: list[int]         # of the weights that wrote the token
    sampled: list[bool]         # False: forced by the interruption
    finish_reason: str          # "stop": ended by itself | "length": truncated
    interrupted: bool           # the phrase was appended
    task: str = ""
    ended: int = 0              # the decode step of its end, for `make timeline`; 0: not known


@dataclass
class Group:
    """For the pacer: one prompt's samples, from request to the step on them."""
    group_id: int
    prompt_id: str
    start: int                  # the weights' version at admission
    size: int                   # G
    rollouts: list[Rollout] = field(default_factory=list)       # the finished samples

    @property
    def finished(self):
        return len(self.rollouts) == self.size


# -- 2. Interruption -------------------------------------------------------------------------------

@dataclass(frozen=True)
class Interruption:
    """How long a sample may think and answer, in tokens (paper, sec. 2, 4, A.10).

    think_min, think_max   thinking budget, both bounds included; 1 or more (paper: 10k and 12k)
    answer_tokens          1 or more; the most that are sampled after the budget (paper: 2,048)
    phrase_ids             of the forced phrase, which contains `end`. Empty: no interruption, and
                           every budget is think_max.
    end                    the text that ends the thinking

    If `end` is not in the text when the budget is spent, the phrase is appended, and at most
    `answer_tokens` more are sampled. Otherwise a sample has at most budget + answer_tokens tokens.

    Budget 5, phrase p q r, answer_tokens 3, E: an id that ends a sample:
        x x x x x p q r a b E     no `end` within 5 tokens: the phrase, then at most 3 more
        x x </think> a b c d E    `end` in time: no phrase, at most 5 + 3 tokens in all"""
    think_min: int
    think_max: int
    answer_tokens: int
    phrase_ids: tuple[int, ...] = ()
    end: str = "</think>"

    @property
    def longest(self) -> int:
        """Tokens of the longest output."""
        return self.think_max + len(self.phrase_ids) + self.answer_tokens

    def draw_budgets(self, count, generator):
        """Thinking budgets: int64 (count,)."""
        if not self.phrase_ids:
            return torch.full((count,), self.think_max, device=generator.device)
        return torch.randint(self.think_min, self.think_max + 1, (count,), generator=generator,
                             device=generator.device)


# -- 3. The engine that needs nothing but transformers ---------------------------------------------

class TransformersSampler:
    """Continuous batching on the model's own forward pass, driven by the caller.

    model           a causal LM, maybe the trainer's own
    slots           sequences decoded at once
    prompt_tokens   the longest prompt
    eos_ids         ids that end a sample
    seed            of its own generator, for budgets and tokens"""
    devices = 0                 # GPUs of its own: it shares the trainer's

    def __init__(self, model, tokenizer, interruption: Interruption, *, slots, prompt_tokens,
                 eos_ids, temperature=1.0, seed=0, head_fp32=True, version=0):
        self.model, self.tokenizer, self.interruption = model, tokenizer, interruption
        self.head = model.get_output_embeddings().weight                        # (V, hidden)
        self.temperature, self.head_fp32, self.version = temperature, head_fp32, version
        self.device, longest = self.head.device, interruption.longest
        self.random = torch.Generator(self.device).manual_seed(seed)
        self.eos_ids = set(eos_ids)
        self.ends = torch.tensor(sorted(eos_ids), device=self.device)        # eos_ids, as a tensor
        self.phrase = torch.tensor(interruption.phrase_ids, dtype=torch.long, device=self.device)
        self.decoded = Counter()            # "steps", "sequences": for log(); "clock": all steps
        self.waiting: deque[Request] = deque()          # groups that wait for slots
        self.running: list[Request] = []                # the request of each slot
        self.in_flight = 0              # samples, running and waiting
        self.cache = make_cache(model, slots, prompt_tokens + longest)

        # What a slot remembers about its sequence: a row of each tensor.
        def zeros(*shape, dtype=torch.long):
            return torch.zeros(shape, dtype=dtype, device=self.device)
        self.rows = SimpleNamespace(
            last=zeros(slots),                  # newest token, not yet in the cache
            count=zeros(slots),                 # output tokens so far
            limit=zeros(slots),                 # output tokens at which it is truncated
            think=zeros(slots),                 # its thinking budget
            phrase_left=zeros(slots),           # forced tokens to come; 0: the next one is sampled
            interrupted=zeros(slots, dtype=torch.bool),
            # A column for each output token.
            ids=zeros(slots, longest), versions=zeros(slots, longest),
            behavior_logprobs=zeros(slots, longest, dtype=torch.float32),
            sampled=zeros(slots, longest, dtype=torch.bool))

    @property
    def free_slots(self):
        return self.cache.slots - self.in_flight

    def submit(self, request: Request):
        self.waiting.append(request)
        self.in_flight += request.samples

    def push_weights(self, named_tensors, version):
        """Names are transformers'. The trainer's own model needs no copy."""
        assert version >= self.version, f"version {version} pushed after {self.version}"
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, tensor in named_tensors:
                if own[name].data_ptr() != tensor.data_ptr():
                    own[name].copy_(tensor)
        self.version = version

    @torch.no_grad()
    def step(self) -> list[Rollout]:
        """One token more for each running sequence; waiting groups that fit begin. Returns the
        samples that have ended."""
        states = []         # hidden states in the order of the slots; each predicts a next token
        if self.running:
            states.append(self.cache.decode(self.model, self.rows.last[: len(self.running)]))
        starting = self._waiting_that_fit()
        if starting:
            states.append(self._start(starting))
        if not states:
            return []
        token, logprob = self._choose(torch.cat(states))
        self.decoded.update(clock=1, steps=1, sequences=len(token))     # a Counter's update adds
        ended = self._record(token, logprob)
        return self._release(ended) if ended else []

    def finished(self) -> list[Rollout]:
        return []               # only servers go on between two calls of `step`

    def reseed(self, seed):
        self.random.manual_seed(seed)

    def log(self):
        """Decode steps since the last call, and their mean number of sequences."""
        steps, sequences = (self.decoded.pop(name, 0) for name in ("steps", "sequences"))
        return {"decode/clock": self.decoded["clock"], "decode/steps": steps,
                "decode/batch": sequences / max(1, steps)}

    def close(self):
        """Nothing to end: only the engines on vLLM have processes."""

    # -- the parts of a step, in their order -------------------------------------------------------

    def _waiting_that_fit(self):
        """Take waiting groups, in order, up to the first that does not fit as a whole."""
        starting, free = [], self.cache.slots - len(self.running)
        while self.waiting and self.waiting[0].samples <= free:
            starting.append(self.waiting.popleft())
            free -= starting[-1].samples
        return starting

    def _start(self, requests):
        """Give slots to the samples of these groups. Returns the last hidden state of each
        sample's prompt, (new sequences, hidden)."""
        samples = [request.samples for request in requests]
        hidden = self.cache.prefill(self.model, [r.prompt_ids for r in requests], samples)

        n, rows = len(self.running), self.rows
        new = slice(n, n + sum(samples))        # their slots
        self.running += [request for request in requests for _ in range(request.samples)]
        rows.think[new] = self.interruption.draw_budgets(sum(samples), self.random)
        rows.limit[new] = rows.think[new] + self.interruption.answer_tokens
        rows.count[new], rows.phrase_left[new], rows.interrupted[new] = 0, 0, False
        return hidden.repeat_interleave(torch.tensor(samples, device=self.device), 0)

    def _choose(self, hidden):
        """Sample from softmax(logits / temperature): (n, hidden) -> token (n,), log-prob (n,).

        The draw is the first token whose cumulative probability exceeds u, uniform in [0, 1). With
        torch.multinomial it would be 2 to 8 times slower. The sum is in float64: in fp32,
        probabilities below 3e-8 would not change it."""
        logits = head_logits(hidden, self.head, head_fp32=self.head_fp32, softcap=cap(self.model))
        logprobs = torch.log_softmax(logits.div_(self.temperature), -1)                 # (n, V)
        cumulative = torch.exp(logprobs).cumsum(-1, dtype=torch.float64)                # (n, V)
        u = torch.rand(len(hidden), 1, dtype=torch.float64, generator=self.random,
                       device=self.device)
        # The sum need not be 1. right=True: a token of probability zero is never drawn.
        token = torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True)      # (n, 1)
        token.clamp_(max=logits.shape[1] - 1)   # NaN logits give V; the trainer raises
        return token[:, 0], logprobs.gather(1, token)[:, 0]

    def _record(self, token, logprob):
        """Write down one token of each sequence; returns the slots of the ended ones."""
        n, rows = len(token), self.rows
        sampled = rows.phrase_left[:n] == 0
        if len(self.phrase):    # p q r: phrase_left 3 2 1 is index -3 -2 -1 (0: `where` drops it)
            token = torch.where(sampled, token, self.phrase[-rows.phrase_left[:n]])
            logprob = torch.where(sampled, logprob, 0.0)        # the draw is not used
            rows.phrase_left[:n] -= (~sampled).long()
        place = torch.arange(n, device=self.device), rows.count[:n]
        rows.ids[place], rows.versions[place] = token, self.version
        rows.behavior_logprobs[place], rows.sampled[place] = logprob, sampled
        rows.last[:n] = token
        rows.count[:n] += 1

        stopped = torch.isin(token, self.ends) & sampled
        truncated = rows.count[:n] == rows.limit[:n]
        due = (rows.count[:n] == rows.think[:n]) & ~stopped     # budget spent just now
        # One transfer to the CPU for both: each transfer waits for the GPU.
        ended, due = torch.stack([stopped | truncated, due]).tolist()
        if len(self.phrase):
            self._interrupt([slot for slot in range(n) if due[slot]])
        return [slot for slot in range(n) if ended[slot]]

    def _interrupt(self, due):
        """Start the phrase in due slots that still think: the text has no `end` (some tokens)."""
        rows = self.rows
        for slot in due:
            ids = rows.ids[slot, : rows.count[slot]].tolist()
            if self.interruption.end not in self.tokenizer.decode(ids):
                rows.phrase_left[slot], rows.interrupted[slot] = len(self.phrase), True
                rows.limit[slot] += len(self.phrase)

    def _release(self, slots):
        """Return the rollouts of ended sequences. The last running ones move into their slots."""
        rows, ended = self.rows, torch.tensor(slots, device=self.device)
        counts, interrupted = rows.count[ended].tolist(), rows.interrupted[ended].tolist()
        rollouts, longest = [], max(counts)     # later columns hold nothing of these
        ids, logprobs, versions, sampled = (column[:, :longest][ended].tolist() for column in (
            rows.ids, rows.behavior_logprobs, rows.versions, rows.sampled))
        for i, slot in enumerate(slots):
            n = counts[i]
            rollouts.append(self._rollout(self.running[slot], ids[i][:n], logprobs[i][:n],
                                          versions[i][:n], sampled[i][:n], interrupted[i]))

        n_left = len(self.running) - len(slots)
        holes = [slot for slot in slots if slot < n_left]   # if 1 and 4 of 0-4 end: hole 1, mover 3
        movers = sorted({*range(n_left, len(self.running))} - {*slots})     # as many as holes
        for mover, hole in zip(movers, holes):
            self.running[hole] = self.running[mover]
        del self.running[n_left:]
        self.in_flight -= len(slots)
        holes, movers = torch.tensor([holes, movers], dtype=torch.long, device=self.device)
        self.cache.keep(n_left, movers, holes)
        for column in vars(rows).values():
            column[holes] = column[movers]
        return rollouts

    def _rollout(self, request, output_ids, behavior_logprobs, versions, sampled, interrupted):
        """The record of an ended sequence: "stop" even if the last allowed token ended it."""
        reason = "stop" if output_ids[-1] in self.eos_ids else "length"
        return Rollout(request.prompt_id, request.group_id, request.prompt_ids, output_ids,
                       behavior_logprobs, versions, sampled, reason, interrupted, request.task,
                       self.decoded["clock"])
