"""resume.py: what a run must keep, so that a resumed one goes on as one that never stopped.

The five files know nothing of checkpoints: the state of their objects is taken, and given back,
between two steps. The engines on vLLM have state() and load_state() of their own: its cache cannot
be saved, so they save which samples are unfinished, and these start again.
"""

from collections import Counter, deque
from dataclasses import asdict

import torch

from sampler import Group, Request, Rollout


class Stopped(Exception):
    """Somebody has asked for the end: Ctrl-C, or a scheduler's signal."""


COUNTERS = ("step", "version", "evaluated", "best", "generated")            # of a Run
COSTS = ("flops", "tokens", "hours")                                        # of its Compute


def state_of(run):
    """(tensors, plain) of all of a run but weights and optimizer; plain is JSON."""
    tensors, plain = sampler_state(run.sampler)
    groups = [asdict(group) for group in run.pacer.groups.values()]
    return {"sampler": tensors, "random": {"torch": torch.get_rng_state()}}, {
        "sampler": plain, "curriculum": vars(run.curriculum),
        "pacer": vars(run.pacer) | {"groups": groups},
        "compute": {name: getattr(run.compute, name) for name in COSTS},
        **{name: getattr(run, name) for name in COUNTERS}}


def load_state(run, tensors, plain):
    torch.set_rng_state(tensors["random"]["torch"])
    load_sampler_state(run.sampler, tensors["sampler"], plain["sampler"])
    vars(run).update({name: plain[name] for name in COUNTERS})
    vars(run.curriculum).update(plain["curriculum"])
    vars(run.compute).update(plain["compute"])
    groups = [Group(**fields) for fields in plain["pacer"]["groups"]]
    for group in groups:
        group.rollouts = [restored(Rollout, fields) for fields in group.rollouts]
    vars(run.pacer).update(plain["pacer"] | {"groups": {g.group_id: g for g in groups}})
    run.push_weights()              # the sampler may have a copy of its own, still untrained


def untrain(run, groups, rewards):
    """Give back to the pacer what a step had taken, as if its rewards (P, G) were not known. A
    truncated or wrong sample earns -1, a right one 0 at least."""
    for group, row in zip(groups, rewards):
        run.pacer.groups[group.group_id] = group
        run.curriculum.record(group.prompt_id, -int((row > -1).sum()), -len(row))
    run.pacer.collecting = False                # of a round of PPO: it was complete


def sampler_state(sampler):
    """(tensors, plain values that JSON knows) of an engine. The cache of a `TransformersSampler` is
    saved, because older weights computed a part of it, and they are gone."""
    if hasattr(sampler, "state"):
        return sampler.state()
    n = len(sampler.running)                    # the running sequences fill the first slots
    tensors = {name: column[:n].clone() for name, column in vars(sampler.rows).items()}
    tensors |= sampler.cache.state() | {"random": sampler.random.get_state()}
    plain = {"version": sampler.version, "decoded": dict(sampler.decoded),
             "running": [asdict(request) for request in sampler.running],
             "waiting": [asdict(request) for request in sampler.waiting]}
    return tensors, plain


def load_sampler_state(sampler, tensors, plain):
    if hasattr(sampler, "load_state"):
        sampler.load_state(tensors, plain)
        return
    sampler.running = [restored(Request, fields) for fields in plain["running"]]
    sampler.waiting = deque(restored(Request, fields) for fields in plain["waiting"])
    sampler.in_flight = len(sampler.running) + sum(r.samples for r in sampler.waiting)
    sampler.version, sampler.decoded = plain["version"], Counter(plain["decoded"])
    for name, column in vars(sampler.rows).items():
        column[: len(sampler.running)] = tensors[name]
    sampler.cache.load_state(tensors)
    sampler.random.set_state(tensors["random"])


def restored(kind, fields):
    """A `Request` or a `Rollout` from a checkpoint's fields. JSON knows lists, but no tuples."""
    return kind(**{**fields, "prompt_ids": tuple(fields["prompt_ids"])})
