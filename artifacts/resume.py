"""resume.py: what a run must keep, so that a resumed one goes on as one that never stopped.
This state is taken, and given back, between two tokens. Engines on vLLM have a method for each."""
import contextlib
import hashlib
import io
import json
import pickle

import torch

from sampler import Group, Rollout


class Stopped(Exception):
    """Somebody has asked for the end: Ctrl-C, or a scheduler's signal."""


COUNTERS = ("step", "version", "evaluated", "best", "generated")            # of a Run
COSTS = ("flops", "tokens", "hours")                                        # of its Compute
GENERATION = ("version", "decoded", "running", "in_flight")                 # of a sampler


def state_of(run):
    """All of a run but weights and optimizer: what `checkpoint.save` writes."""
    return {"random": torch.get_rng_state(), "problems": problems_hash(run),
            "sampler": sampler_state(run.sampler), "curriculum": vars(run.curriculum),
            "pacer": vars(run.pacer) | {"groups": torch.frombuffer(
                bytearray(pickle.dumps(run.pacer.groups)), dtype=torch.uint8)},
            "compute": {key: getattr(run.compute, key) for key in COSTS},
            **{name: getattr(run, name) for name in COUNTERS}}


class Records(pickle.Unpickler):
    """Reads groups and rollouts alone: no code of a file runs. torch.load takes 40 times longer."""

    def find_class(self, module, name):
        return {"Group": Group, "Rollout": Rollout}[name]


def problems_hash(run):
    """Of all ids (hashes of questions) and gold answers, 1 s a million; then of 1,000 prompts."""
    told = [(p.id, p.answer if p.kind[:6] != "reward" else p.answer.partition(", ")[2])  # no path
            for part in (run.problems.train, run.problems.heldout) for p in part.values()]
    asked = [list(ids) for ids, _ in zip(run.problems.prompts.values(), range(1000))]
    return "".join(hashlib.sha256(repr(part).encode()).hexdigest() for part in (told, asked))


def load_state(run, state):
    torch.set_rng_state(state["random"])
    load_sampler_state(run.sampler, state["sampler"])
    vars(run).update({name: state[name] for name in COUNTERS})
    for part in ("curriculum", "pacer", "compute"):
        vars(getattr(run, part)).update(state[part])
    if isinstance(groups := run.pacer.groups, torch.Tensor):        # else of an older checkpoint
        run.pacer.groups = Records(io.BytesIO(groups.numpy().tobytes())).load()
    run.push_weights()              # the sampler may have a copy of its own, still untrained


def sampler_state(sampler):
    """The cache of a `TransformersSampler` is saved: weights that are gone computed part of it."""
    if hasattr(sampler, "state"):
        return sampler.state()
    n = len(sampler.running)                    # the running sequences fill the first slots
    return {name: getattr(sampler, name) for name in GENERATION} | {
        "rows": {name: column[:n].clone() for name, column in vars(sampler.rows).items()},
        "cache": sampler.cache.state(), "random": sampler.random.get_state(),
        "waiting": list(sampler.waiting)}


def load_sampler_state(sampler, state):
    if hasattr(sampler, "load_state"):
        return sampler.load_state(state)
    vars(sampler).update({name: state[name] for name in GENERATION})
    sampler.waiting.extend(state["waiting"])
    for name, column in vars(sampler.rows).items():
        column[: len(sampler.running)] = state["rows"][name]
    sampler.cache.load_state(state["cache"])
    if len(state["random"]) == len(sampler.random.get_state()):     # else of a GPU, here a CPU
        sampler.random.set_state(state["random"])


class KeptAnswers:
    """The sampler of evaluations, with a file. An evaluation of hours that is begun again on the
    same weights takes from there the problems before the first one with an unfinished answer. (All
    finished ones favor the short.) Ours; not over transformers. All else is the sampler's own."""
    FOR_TRAINING = {"prompt_ids": (), "behavior_logprobs": [], "versions": [], "sampled": []}

    def __init__(self, sampler, path):
        self.sampler, self.path, self.writes = sampler, path, False     # a self-test is not kept
        self.kept, self.ready = {}, []  # group id -> its answers; what the next step returns
        self.head = ""                  # of a file that the next step begins

    def __getattr__(self, name):
        return getattr(self.sampler, name)

    @property
    def in_flight(self):
        return self.sampler.in_flight + len(self.ready)

    def reseed(self, seed):
        """An evaluation begins. The seed tells its step, the version its weights."""
        self.sampler.reseed(seed)
        head, lines, self.kept = {"seed": seed, "version": self.sampler.version}, [], {}
        with contextlib.suppress(OSError, ValueError), open(self.path) as file:
            lines.extend(map(json.loads, file))         # up to one that a kill has cut off
        for fields in lines[1:] if lines[:1] == [head] else ():
            self.kept.setdefault(fields["group_id"], []).append(fields)
        self.head, self.writes = json.dumps(head) + "\n", True

    def submit(self, request):
        answers = self.kept.get(request.group_id, [])
        if [r["prompt_id"] for r in answers] == [request.prompt_id] * request.samples:
            self.ready += [Rollout(**r | {"prompt_ids": request.prompt_ids}) for r in answers]
        else:
            self.kept = {}              # nor any problem that comes later
            self.sampler.submit(request)

    def step(self):
        rollouts, self.ready = self.ready or self.sampler.step(), []
        if self.writes and rollouts:
            # A full disk ends no evaluation: what can be taken later ends before what it has lost.
            with contextlib.suppress(OSError), open(self.path, "w" if self.head else "a") as file:
                file.write(self.head)
                file.writelines(json.dumps(vars(r) | self.FOR_TRAINING) + "\n" for r in rollouts)
                self.head = ""
        self.writes &= self.in_flight > 0
        return rollouts
