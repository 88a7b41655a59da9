"""Generation: how prompts become samples (ScaleRL, sections 2, 3.1 and 4).

A sampler gets prompts and weights, and returns samples. It knows nothing about rewards, advantages
or the limit on stale samples: the loop in scalerl.py decides about those.

  1. Records        a `Request` asks for G samples of one prompt; each comes back as a `Rollout`.
  2. Interruption   a sample that thinks beyond its random budget gets a fixed phrase, and answers.
                    The policy did not choose these tokens: `sampled=False`, never trained on.
  3. The protocol   `Sampler`: what the loop needs from an engine.
  4. An engine      `TransformersSampler`. The folder engines/ has two more, both on vLLM.

In-flight updates (PipelineRL, paper section 3.1). One `step()` decodes one token of every running
sequence. Between two steps the caller may push new weights. Running sequences go on: the new
weights read the keys and values that the old weights computed. So one sample can hold tokens of
several versions, and every token has its own version.

What the paper leaves open, and what is ours:
 a. Each sample draws its own thinking budget from all whole numbers between two bounds.
 b. A sample that ends its thinking early may spend the rest of its budget on its answer.
 c. Top-p and top-k are not offered, only a temperature. They renormalize the sampler's
    probabilities, but not the trainer's. The importance ratio, trainer's probability / sampler's,
    would be biased for every token (0.896 on average at top-p 0.8 on a small model).

Where to go next: fit.py, what the curve of a run says.

Axes: n running sequences, V vocabulary. A slot is room for one sequence: the running ones fill the
first n slots.
"""

import functools
from collections import Counter, deque
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Iterable, Protocol

import torch

from engines.kv_cache import Slots
from loss import head_logits

# -- 1. Records ------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Request:
    """A request for one group: the `samples` samples of one prompt."""
    group_id: int
    prompt_id: str              # of the problem
    prompt_ids: tuple[int, ...]                         # its tokens
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
    versions: list[int]         # the number of optimizer steps that its weights had taken
    sampled: list[bool]         # False: forced by the interruption
    finish_reason: str          # "stop": ended by itself | "length": truncated at its limit
    interrupted: bool           # the phrase was appended
    task: str = ""


def restored(kind, fields):
    """A `Request` or a `Rollout` from a checkpoint's fields. JSON knows lists, but no tuples."""
    return kind(**{**fields, "prompt_ids": tuple(fields["prompt_ids"])})


def check_fits(request, prompt_tokens, slots):
    """Raises ValueError for a prompt or a group that an engine has no room for."""
    if len(request.prompt_ids) > prompt_tokens:
        raise ValueError(f"prompt {request.prompt_id} has {len(request.prompt_ids)} tokens, "
                         f"more than prompt_tokens = {prompt_tokens}")
    if request.samples > slots:
        raise ValueError(f"{request.samples} samples a prompt, {slots} slots")


# -- 2. Interruption -------------------------------------------------------------------------------

@dataclass(frozen=True)
class Interruption:
    """How long a sample may think and answer, in tokens (paper, section 4).

    think_min, think_max   bounds of the thinking budget, both included (the paper: 10k to 12k).
                           Each sample draws its own budget, uniformly.
    answer_tokens          tokens that may follow after the budget, at least 1 (the paper: 2,048)
    phrase_ids             the forced phrase, which itself ends the thinking. Empty: nothing is
                           interrupted, and an output has at most think_max + answer_tokens.
    end                    the text that ends the thinking

    When the budget is spent and `end` is not in the text, the phrase is appended. With or
    without it at most `answer_tokens` more are sampled, then the sample is truncated.

    Budget 5, phrase p q r, answer_tokens 3, end token E:
        x x x x x p q r a b E     no `end` within 5 tokens: the phrase, then at most 3 more
        x x </think> a b c d E    `end` in time: no phrase, at most 5 + 3 tokens
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

    def draw_budgets(self, count, generator):
        """`count` thinking budgets: int64 (count,), on the generator's device."""
        if not self.phrase_ids:
            return torch.full((count,), self.think_max, device=generator.device)
        return torch.randint(self.think_min, self.think_max + 1, (count,), generator=generator,
                             device=generator.device)


# -- 3. The protocol -------------------------------------------------------------------------------

class Sampler(Protocol):
    """What the loop needs from an engine: one in this process, or servers, which never stop."""
    version: int                # of the weights that the next token will come from
    devices: int                # that servers use; 0 in process: only the trainer's

    @property
    def in_flight(self) -> int:
        """Samples submitted and not yet returned."""

    @property
    def free_slots(self) -> int:
        """Slots minus samples in flight. Below zero: some samples are waiting for a slot."""

    def submit(self, request: Request) -> None:
        """Queue a request; they start in this order. Raises ValueError for one that never fits."""

    def step(self) -> list[Rollout]:
        """Decode one token of every sequence (servers: wait up to a second until a sample ends).
        Returns the samples that have ended."""

    def finished(self) -> list[Rollout]:
        """Samples that ended since the last step, without waiting; mostly for servers."""

    def push_weights(self, named_tensors: Iterable, version: int) -> None:
        """Tokens from now on come from these weights; running sequences keep their cache."""

    def reseed(self, seed: int) -> None:
        """Draw from this seed from now on, so that an evaluation can be repeated."""

    def log(self) -> dict:
        """The engine's own columns of metrics.jsonl: what happened since the last call."""

    def state(self) -> tuple[dict, dict]:
        """(tensors, plain values) for a checkpoint; `load_state` of a new engine goes on from them.
        vLLM's cache cannot be saved, so on vLLM unfinished samples start again."""

    def load_state(self, tensors: dict, plain: dict) -> None: ...

    def close(self) -> None:
        """End the engine, or leave the servers; unfinished samples are dropped."""


def decode_log(counts: Counter) -> dict:
    """The log of an engine in process, from its counted steps and sequences; empties the counts."""
    log = {"decode/steps": counts["steps"],
           "decode/batch": counts["sequences"] / max(1, counts["steps"])}   # mean per step
    counts.clear()
    return log


# -- 4. The engine that needs nothing but transformers ---------------------------------------------

class TransformersSampler:
    """Continuous batching on the model's own forward, driven by the caller. Implements `Sampler`.

    model           a causal LM after `engines.packed.prepare`, maybe the trainer's own
    slots           sequences decoded at once
    prompt_tokens   the longest prompt; a slot of the cache holds this and the longest output
    eos_ids         ids that end a sample
    seed            of the engine's own generator. It draws all budgets, and one number for each
                    token, in the order of the slots. Thus a CPU run repeats bit by bit, and
                    `state()` / `load_state()` continue it exactly.
    """
    devices = 0

    def __init__(self, model, tokenizer, interruption: Interruption, *, slots, prompt_tokens,
                 eos_ids, temperature=1.0, seed=0, head_fp32=True, version=0):
        self.model, self.tokenizer, self.interruption = model, tokenizer, interruption
        self.head = model.get_output_embeddings().weight                        # (V, hidden)
        self.temperature, self.head_fp32, self.version = temperature, head_fp32, version
        device, longest = self.head.device, interruption.longest
        self.device, self.prompt_tokens = device, prompt_tokens
        self.random = torch.Generator(device).manual_seed(seed)
        self.eos_ids = set(eos_ids)
        self.ends = torch.tensor(sorted(eos_ids), device=device)        # the same
        self.phrase = torch.tensor(interruption.phrase_ids, dtype=torch.long, device=device)
        self.decoded = Counter()                        # "steps", "sequences": for log()
        self.waiting: deque[Request] = deque()          # groups that must wait for slots
        self.running: list[Request] = []                # the request of the sequence in each slot
        self.cache = Slots(model.config, slots, prompt_tokens + longest, device=device,
                           dtype=self.head.dtype)

        # What a slot remembers about its sequence: one row of each of these tensors.
        integers = functools.partial(torch.zeros, dtype=torch.long, device=device)
        self.rows = SimpleNamespace(
            last=integers(slots),               # the newest token, not yet in the cache
            count=integers(slots),              # output tokens so far
            limit=integers(slots),              # output tokens at which the sample is truncated
            think=integers(slots),              # its thinking budget
            forced=integers(slots) - 1,         # the next token's index in the phrase;
                                                # -1: the next token is sampled
            interrupted=integers(slots).bool(),
            ids=integers(slots, longest), versions=integers(slots, longest),
            behavior_logprobs=torch.zeros(slots, longest, device=device))
        self.forcing = 0                        # steps that may still force tokens

    @property
    def in_flight(self):
        return len(self.running) + sum(request.samples for request in self.waiting)

    @property
    def free_slots(self):
        return self.cache.slots - self.in_flight

    def submit(self, request: Request):
        check_fits(request, self.prompt_tokens, self.cache.slots)
        self.waiting.append(request)

    def push_weights(self, named_tensors, version):
        """Names are those of transformers. Weights that the model already shares are not copied."""
        assert version >= self.version, f"version {version} pushed after {self.version}"
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, tensor in named_tensors:
                if own[name].data_ptr() != tensor.data_ptr():
                    own[name].copy_(tensor)
        self.version = version

    @torch.no_grad()
    def step(self) -> list[Rollout]:
        # The states that predict the next tokens, in the order of the slots: running sequences
        # first, then new ones.
        last = self.rows.last[: len(self.running)]
        hidden = [self.cache.decode(self.model, last)] if self.running else []
        hidden += self._start_waiting()
        if not hidden:
            return []
        token, logprob = self._choose(torch.cat(hidden))
        self.decoded.update(steps=1, sequences=len(token))
        ended = self._record(token, logprob)
        return self._release(ended) if ended else []

    def finished(self) -> list[Rollout]:
        return []

    def reseed(self, seed):
        self.random.manual_seed(seed)

    def log(self):
        return decode_log(self.decoded)

    def close(self):
        self.waiting.clear()
        self.running.clear()

    # -- the parts of a step, in their order -------------------------------------------------------

    def _start_waiting(self):
        """Start the waiting groups that fit as a whole, in order. Returns [] or [states]: for each
        new sequence the last hidden state of its prompt, (new sequences, hidden)."""
        starting, first = [], len(self.running)
        while self.waiting and len(self.running) + self.waiting[0].samples <= self.cache.slots:
            starting.append(self.waiting.popleft())
            self.running += [starting[-1]] * starting[-1].samples
        if not starting:
            return []
        n, samples = len(self.running), [request.samples for request in starting]
        hidden = self.cache.prefill(self.model, [r.prompt_ids for r in starting], samples)

        new, rows = slice(first, n), self.rows          # the slots of the new sequences
        rows.think[new] = self.interruption.draw_budgets(n - first, self.random)
        rows.limit[new] = rows.think[new] + self.interruption.answer_tokens
        rows.count[new], rows.forced[new], rows.interrupted[new] = 0, -1, False
        return [hidden.repeat_interleave(torch.tensor(samples, device=self.device), 0)]

    def _choose(self, hidden):
        """Sample from softmax(logits / temperature): (n, hidden) -> token (n,), log-prob (n,).

        Inverse-CDF sampling: the first token whose cumulative probability exceeds a uniform u. One
        random number per sequence; torch.multinomial draws V, and was 8 times slower (64 sequences,
        V = 49k). The sum is in float64: in fp32 a sum of 50k numbers loses the small ones.
        """
        logits = head_logits(hidden, self.head, head_fp32=self.head_fp32)
        logprobs = torch.log_softmax(logits.div_(self.temperature), -1)                 # (n, V)
        cumulative = torch.exp(logprobs).cumsum(-1, dtype=torch.float64)                # (n, V)
        u = torch.rand(len(hidden), 1, dtype=torch.float64, generator=self.random,
                       device=self.device)
        # right=True: a token of probability zero is never drawn.
        token = torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True)      # (n, 1)
        token.clamp_(max=logits.shape[1] - 1)   # for u just below 1, rounding may give V itself
        return token[:, 0], logprobs.gather(1, token)[:, 0]

    def _record(self, token, logprob):
        """Write down one token of each running sequence; returns the slots of the ended ones."""
        n, rows = len(token), self.rows
        count, forced = rows.count[:n], rows.forced[:n]         # views: written in place
        is_forced = forced >= 0
        if self.forcing:                                        # the phrase replaces the draw
            self.forcing -= 1
            token = torch.where(is_forced, self.phrase[forced.clamp(min=0)], token)
            logprob = logprob.masked_fill(is_forced, 0.0)
            forced.add_(is_forced)
            forced.masked_fill_(forced == len(self.phrase), -1)
        here = (torch.arange(n, device=self.device), count)
        rows.ids[here], rows.versions[here] = token, self.version
        rows.behavior_logprobs[here] = logprob
        rows.last[:n] = token
        count += 1
        stopped = torch.isin(token, self.ends) & ~is_forced
        due = (count == rows.think[:n]) & ~stopped              # the budget is spent just now
        # One transfer a step: to read a number, the CPU waits until the GPU has finished its queue.
        ended, due = torch.stack([stopped | (count == rows.limit[:n]), due]).tolist()
        if len(self.phrase):
            self._interrupt([slot for slot in range(n) if due[slot]])
        return [slot for slot in range(n) if ended[slot]]

    def _interrupt(self, due):
        """Start the phrase in each of these slots that still thinks: its budget is spent just now.
        We look for `end` in the text, so it may be any number of tokens."""
        rows = self.rows
        for slot in due:
            ids = rows.ids[slot, : rows.count[slot]].tolist()
            if self.interruption.end not in self.tokenizer.decode(ids):
                rows.forced[slot], rows.interrupted[slot] = 0, True
                rows.limit[slot] += len(self.phrase)
                self.forcing = len(self.phrase)

    def _release(self, slots):
        """Free the slots of ended sequences and return their rollouts. The last running sequences
        move into the holes: so the running ones always fill the first slots, and a decode step
        computes no others."""
        ended, rows = torch.tensor(slots, device=self.device), self.rows
        end = int(rows.count[ended].max())          # the longest of them: the rest is not copied
        columns = (rows.count, rows.think, rows.interrupted,
                   rows.ids[:, :end], rows.behavior_logprobs[:, :end], rows.versions[:, :end])
        rollouts = list(map(self._rollout, [self.running[slot] for slot in slots],
                            *(column[ended].tolist() for column in columns)))
        n_left = len(self.running) - len(slots)
        holes = [slot for slot in slots if slot < n_left]
        movers = sorted({*range(n_left, len(self.running))} - {*slots})
        for mover, hole in zip(movers, holes):
            self.running[hole] = self.running[mover]
        del self.running[n_left:]
        holes, movers = torch.tensor([holes, movers], dtype=torch.long, device=self.device)
        self.cache.keep(n_left, movers, holes)
        for column in vars(rows).values():
            column[holes] = column[movers]
        return rollouts

    def _rollout(self, request, count, think, interrupted, ids, logprobs, versions):
        """What a slot remembers of an ended sequence (numbers and lists) -> its `Rollout`."""
        sampled = [True] * count
        if interrupted:                                         # then the phrase stands here
            sampled[think: think + len(self.phrase)] = [False] * len(self.phrase)
        reason = "stop" if ids[count - 1] in self.eos_ids else "length"
        return Rollout(request.prompt_id, request.group_id, request.prompt_ids, ids[:count],
                       logprobs[:count], versions[:count], sampled, reason, bool(interrupted),
                       request.task)

    # -- checkpoint --------------------------------------------------------------------------------

    def state(self):
        """(tensors, plain values): with the weights, all that is needed to go on exactly. The cache
        must be saved, because older weights computed it, and they are gone."""
        n = len(self.running)
        tensors = {name: column[:n].clone() for name, column in vars(self.rows).items()}
        tensors |= self.cache.state() | {"random": self.random.get_state()}
        plain = {"version": self.version, "decoded": dict(self.decoded),
                 "running": [asdict(request) for request in self.running],
                 "waiting": [asdict(request) for request in self.waiting]}
        return tensors, plain

    def load_state(self, tensors, plain):
        self.running = [restored(Request, fields) for fields in plain["running"]]
        self.waiting = deque(restored(Request, fields) for fields in plain["waiting"])
        self.version, self.decoded = plain["version"], Counter(plain["decoded"])
        for name, column in vars(self.rows).items():
            column[: len(self.running)] = tensors[name]
        self.cache.load_state(tensors)
        self.forcing = len(self.phrase)         # an upper bound
        self.random.set_state(tensors["random"])
