"""Ranks in processes of their own, for tests: started as torchrun would, ended with the test."""

import contextlib
import os
import time

import torch
import torch.distributed as dist
from conftest import SPAWN


def shard_on_cpu(plugin):
    """accelerate ignores FSDP on a CPU; with this its real FSDP2 path runs over gloo."""
    from accelerate import DistributedType
    from accelerate.state import AcceleratorState, PartialState
    for state in (AcceleratorState, PartialState):
        state._shared_state["distributed_type"] = DistributedType.FSDP
    AcceleratorState._shared_state["fsdp_plugin"] = plugin


def _child(rank, size, port, results, all_here, run, args):
    all_here.wait(300)      # imports take seconds on a busy machine, deadlines here are short
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size),
                   "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
                   "TORCHELASTIC_USE_AGENT_STORE": "True"}      # as torchrun has it
    torch.set_num_threads(1)
    try:
        answer = run(*args)
    except SystemExit as end:                   # of a rank that has served
        answer = end.code
    except (RuntimeError, FloatingPointError, OSError) as error:
        answer = str(error)
    results.put((rank, answer))


@contextlib.contextmanager
def started(size, run, *args):
    """(children, results): run(*args) in each process; results is a queue of (rank, what it
    returned, its exit code, or the sentence with which it ended). None outlives this."""
    results, store = SPAWN.SimpleQueue(), dist.TCPStore("127.0.0.1", 0, is_master=True,
                                                        wait_for_workers=False)
    all_here = SPAWN.Barrier(size)
    children = [SPAWN.Process(target=_child, daemon=True, args=(
        rank, size, store.port, results, all_here, run, args)) for rank in range(size)]
    try:
        for child in children:
            child.start()
        yield children, results
    finally:
        for child in children:
            if child.pid:
                child.kill()
                child.join()


def answers(children, results, wanted, timeout=300):
    """{rank: answer} of the `wanted` ranks, in the order in which they came."""
    found, deadline = {}, time.monotonic() + timeout
    while wanted - set(found):
        if not results.empty():
            rank, value = results.get()
            found[rank] = value
            continue
        dead = [rank for rank in wanted - set(found) if children[rank].exitcode]
        assert not dead, f"rank {dead[0]} ended with {children[dead[0]].exitcode}"
        assert time.monotonic() < deadline, f"only ranks {sorted(found)} have answered: {found}"
        time.sleep(0.02)
    return found


def wait_for(path, results=None, timeout=300):
    deadline = time.monotonic() + timeout
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path}"
        assert results is None or results.empty(), results.get()
        time.sleep(0.02)
