"""resume.py: what a run must keep, so that a resumed one goes on as one that never stopped.

The five files know nothing of checkpoints: the state of their objects is taken, and given back,
between two steps. The engines on vLLM have state() and load_state() of their own.
"""

from collections import deque

import torch


class Stopped(Exception):
    """Somebody has asked for the end: Ctrl-C, or a scheduler's signal."""


COUNTERS = ("step", "version", "evaluated", "best", "generated")            # of a Run
COSTS = ("flops", "tokens", "hours")                                        # of its Compute
GENERATION = ("version", "decoded", "running", "in_flight")                 # of a sampler


def state_of(run):
    """All of a run but weights and optimizer: what `checkpoint.save` writes."""
    return {"random": torch.get_rng_state(), "sampler": sampler_state(run.sampler),
            "curriculum": vars(run.curriculum), "pacer": vars(run.pacer),
            "compute": {name: getattr(run.compute, name) for name in COSTS},
            **{name: getattr(run, name) for name in COUNTERS}}


def load_state(run, state):
    torch.set_rng_state(state["random"])
    load_sampler_state(run.sampler, state["sampler"])
    vars(run).update({name: state[name] for name in COUNTERS})
    for part in ("curriculum", "pacer", "compute"):
        vars(getattr(run, part)).update(state[part])
    run.push_weights()              # the sampler may have a copy of its own, still untrained


def untrain(run, groups, rewards):
    """Give back to the pacer what a step had taken, as if its rewards (P, G) were not known. A
    truncated or wrong sample earns -1, a right one 0 at least."""
    for group, row in zip(groups, rewards):
        run.pacer.groups[group.group_id] = group
        run.curriculum.record(group.prompt_id, -int((row > -1).sum()), -len(row))
    run.pacer.collecting = False                # of a round of PPO: it was complete


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
    sampler.waiting = deque(state["waiting"])
    for name, column in vars(sampler.rows).items():
        column[: len(sampler.running)] = state["rows"][name]
    sampler.cache.load_state(state["cache"])
    sampler.random.set_state(state["random"])
