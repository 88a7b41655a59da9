"""Several trainer processes: the same step as one, nothing lost, loud when one of them dies."""

import math
import multiprocessing
import os
import random
import socket
import time

import pytest
import torch
from conftest import packed_copy, random_llama
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from test_scalerl import rollouts_of

import ranks
from ranks import Policy, Ranks, deal
from scalerl import Config, cost_tokens, micro_batches, train_step

# Children are forked from a server that has imported torch once; the test process itself cannot
# be forked, because autograd's threads do not survive it.
SPAWN = multiprocessing.get_context("forkserver")
SPAWN.set_forkserver_preload(["torch", "transformers", "accelerate", "ranks", "scalerl"])


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _child(body, rank, size, port, sharded, results, args):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size),
                   "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    group = Ranks(deadline_s=args.pop("deadline_s", 60),
                  dtype=args.pop("dtype", torch.float64))
    if sharded:
        shard_on_cpu(group.plugin)
    results.put((rank, body(group, **args)))


def shard_on_cpu(plugin):
    """accelerate ignores FSDP on a CPU; with this its real FSDP2 path runs over gloo. For tests."""
    from accelerate import DistributedType
    from accelerate.state import AcceleratorState, PartialState
    for state in (AcceleratorState, PartialState):
        state._shared_state["distributed_type"] = DistributedType.FSDP
    AcceleratorState._shared_state["fsdp_plugin"] = plugin


def run_ranks(body, size, sharded=False, timeout=120, **args):
    """[body(ranks, **args) of every rank], each in a process of its own; none outlives this."""
    results, port = SPAWN.SimpleQueue(), free_port()
    children = [SPAWN.Process(target=_child, daemon=True, args=(
        body, rank, size, port, sharded, results, dict(args))) for rank in range(size)]
    found = {}
    try:
        for child in children:
            child.start()
        deadline = time.monotonic() + timeout
        while len(found) < size:
            if not results.empty():
                rank, value = results.get()
                found[rank] = value
                continue
            dead = [i for i, c in enumerate(children) if c.exitcode and i not in found]
            assert not dead, f"rank {dead[0]} ended with {children[dead[0]].exitcode}"
            assert time.monotonic() < deadline, f"only ranks {sorted(found)} have answered"
            time.sleep(0.02)
    finally:
        for child in children:
            if child.pid:
                child.kill()
                child.join()
    return [found[rank] for rank in range(size)]


# ---------------------------------------------------------------------------------------------
# Who computes what


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_every_rank_does_equally_many_micro_batches_and_all_are_done_once(size, seed):
    rng = random.Random(seed)
    rollouts = rollouts_of(9, 5, rng)
    for budget in (30, 90, 10_000):
        batches = micro_batches(rollouts, budget, size)
        costs = [cost_tokens(rollouts, b) for b in batches]
        assert all(cost <= budget or len(b) == 1 for cost, b in zip(costs, batches))
        shares = deal(batches, costs, size)
        assert len(shares) == size and len({len(share) for share in shares}) == 1
        assert sorted(i for s in shares for b in s for i in b) == list(range(len(rollouts)))
        assert sum(not b for s in shares for b in s) < size         # fewer than a round
        assert all(share[0] for share in shares) or len(batches) < size
        loads = [sum(cost_tokens(rollouts, b) for b in share) for share in shares]
        assert max(loads) - min(loads) <= max(costs)


def test_a_step_that_one_micro_batch_could_hold_still_gives_every_rank_work(seed):
    rollouts = rollouts_of(9, 5, random.Random(seed))
    for size in (2, 3):
        batches = micro_batches(rollouts, 10_000, size)
        assert len(batches) == size
        costs = [cost_tokens(rollouts, b) for b in batches]
        assert min(costs) > max(costs) / 2
    assert len(micro_batches(rollouts, 10_000)) == 1


# ---------------------------------------------------------------------------------------------
# The step of several ranks


def step_inputs(seed, P=5, G=3):
    rng = random.Random(seed)
    rollouts = rollouts_of(P, G, rng)
    rewards = torch.tensor([[rng.choice([-1.0, 1.0]) for _ in range(G)] for _ in range(P)])
    rewards[:, 0], rewards[:, 1] = 1, -1
    rewards[2] = 1                                          # one group is filtered
    return rollouts, rewards


def gradients(group, seed, tied=True, dtype=torch.float64, **settings):
    """{name: gradient} and the log of one step whose weights stay where they are."""
    torch.manual_seed(seed)
    model = packed_copy(random_llama(dtype=dtype))
    if not tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() * 0.9)
    if settings.pop("recompute", False):
        ranks.recompute_layers(model)
    config = Config(model="x", lr=1e-30, grad_clip=1e9, warmup_steps=0, **settings)
    policy, optimizer = group.prepare(Policy(model, dtype=dtype),
                                      torch.optim.SGD(model.parameters(), lr=1.0))
    seen = {}
    assert isinstance(model.lm_head.weight, DTensor) == isinstance(policy, FSDPModule)
    optimizer.register_step_pre_hook(lambda *_: seen.update(
        (name, ranks.whole(p.grad).clone()) for name, p in model.named_parameters()))
    log = train_step(policy, optimizer, *step_inputs(seed), 3, config, group)
    return {n: g.numpy() for n, g in seen.items()}, log, type(policy).__name__


@pytest.mark.parametrize("size, sharded", [(2, False), (3, False), (2, True)])
def test_any_number_of_ranks_has_the_gradient_of_one(size, sharded, seed):
    cases = [{"micro_batch_tokens": 60}, {"micro_batch_tokens": 10_000, "tied": False},
             {"micro_batch_tokens": 90, "aggregation": "sample", "recompute": True}]
    alone = [gradients(Ranks(), seed, **case | {"recompute": False}) for case in cases]
    for found in run_ranks(_cases, size, sharded, seed=seed, cases=cases):
        for (expected, log, _), (got, got_log, kind) in zip(alone, found):
            assert kind == ("FSDPPolicy" if sharded else "DistributedDataParallel")
            assert set(got) == set(expected)
            for name in expected:
                want, have = torch.tensor(expected[name]), torch.tensor(got[name])
                error = (want - have).norm() / want.norm()
                assert error < 1e-6, f"{name}: {error}"     # logits are fp32, all else fp64
            assert set(got_log) == set(log)
            for name in log:
                assert math.isclose(got_log[name], log[name], rel_tol=1e-6, abs_tol=1e-9), name


def _cases(group, seed, cases):
    return [gradients(group, seed, **case) for case in cases]
