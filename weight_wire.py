"""weight_wire.py: what a vLLM server's workers load to receive weights on a CPU.

A stock server imports it through its own option, `--worker-extension-cls weight_wire.Worker`, and
so learns a weight transfer backend "gloo" beside vLLM's "nccl". The trainer, rank 0, and all
workers of one server form one process group; one broadcast a tensor.

All or nothing: what arrives is kept aside and loaded when the trainer says that it was
everything. A push that breaks off, by whatever failure, leaves the weights as they were; if the
loading itself breaks off, the server ends, since a part of it would be worse than none.

Runs inside vLLM and nowhere else; the trainer's side is servers.py. Also here: a server's
processes end with its first one, whatever ends that; and a new seed when the trainer sends one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import sys
import threading
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import TCPStore
from vllm.distributed.weight_transfer.base import (WeightTransferEngine, WeightTransferInitInfo,
                                                   WeightTransferUpdateInfo)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import (finalize_layerwise_reload,
                                                     initialize_layerwise_reload)
from vllm.utils.torch_utils import set_random_seed

from servers import gloo_group, own_address, sha256
from vllm_engine import refresh_tied_head


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Where the trainer waits, and how many take part."""
    address: str                        # of the trainer's store
    port: int
    world_size: int                     # the trainer and all workers of this server
    timeout_s: float                    # of the rendezvous and of each broadcast


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """One bucket of tensors, in the order in which they are broadcast."""
    names: list[str]                    # Hugging Face's
    dtype_names: list[str]              # "float32"
    shapes: list[list[int]]
    sha256: list[str] | None = None     # of each tensor, to be compared with


class GlooEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """The receiving end in one worker. The methods are vLLM's, called in this order."""
    init_info_cls, update_info_cls = InitInfo, UpdateInfo

    def __init__(self, *args):
        super().__init__(*args)
        self.group, self.received = None, []
        watch_server()

    def init_transfer_engine(self, info: InitInfo):
        """Meet the trainer; a second call, of a trainer that came back, replaces the first."""
        config, timeout = self.parallel_config, timedelta(seconds=info.timeout_s)
        rank = 1 + config.data_parallel_index * config.world_size + config.rank
        self.received = []              # of a trainer that went away in the middle
        store = TCPStore(info.address, info.port, info.world_size, False, timeout)
        store.add("workers", 1)
        self.group = gloo_group(store, rank, info.world_size,
                                own_address(info.address, info.port), info.timeout_s)

    def start_weight_update(self):
        self.received = []

    def receive_weights(self, info: UpdateInfo):
        tensors = []
        try:
            for dtype, shape in zip(info.dtype_names, info.shapes, strict=True):
                tensors.append(torch.empty(shape, dtype=getattr(torch, dtype)))
                self.group.broadcast(tensors[-1], 0).wait()
            if info.sha256 is not None and info.sha256 != [sha256(t) for t in tensors]:
                raise RuntimeError("weights arrived with another checksum than they were sent with")
        except BaseException:
            self.shutdown()             # closes the connection: the trainer need not wait either
            raise
        self.received += zip(info.names, tensors, strict=True)

    def finish_weight_update(self):
        weights, self.received = self.received, []
        if not weights:                 # the end of an update that another trainer left open
            return
        try:
            initialize_layerwise_reload(self.model)
            self.model.load_weights(weights)
            finalize_layerwise_reload(self.model, self.model_config)
            refresh_tied_head(self.model)
        except BaseException as error:  # layers half loaded, and vLLM cannot begin them anew
            print(f"weight_wire: loading weights broke off ({error!r}): this server ends, start it "
                  "again", file=sys.stderr, flush=True)
            os.kill(api_server(vllm_processes()), signal.SIGKILL)       # and `die_with_server`
            raise

    def shutdown(self):
        self.group, self.received = None, []


def vllm_processes():
    """{pid: parent's pid} of the processes on this machine that call themselves VLLM::..."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):              # ended since the listing
            pid, _, rest = path.read_text().partition(" (")
            name, _, rest = rest.rpartition(") ")
            if name.startswith("VLLM::"):
                found[int(pid)] = int(rest.split()[1])
    return found


def api_server(parents):
    """The pid of the server's first process, from `vllm_processes`."""
    pid = os.getppid()
    while pid in parents:
        pid = parents[pid]
    return pid


def die_with_server():
    """Wait for the end of the API server's process and kill what is left of it: vLLM's engine
    processes do not notice a SIGKILL of the one that started them, and would keep the memory.

    Between it and this worker is an engine, unless the engine runs in it; beside that may be
    others, and their coordinator. Each worker sees to itself.
    """
    parents = vllm_processes()
    server = api_server(parents)
    ended = select.poll()
    ended.register(os.pidfd_open(server), select.POLLIN)
    ended.poll()
    started = {pid for pid, parent in parents.items() if parent == server}
    for pid in (started & set(vllm_processes())) - {os.getpid()}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


@functools.cache
def watch_server():
    threading.Thread(target=die_with_server, daemon=True).start()


class Worker:
    """What vLLM mixes into its own worker, for /collective_rpc; importing this file is the point
    as well."""

    def sizes(self, names):
        """The model's numbers of these names, as its config.json has them."""
        config = self.model_config.hf_text_config
        return [getattr(config, name, None) for name in names.split()]

    def reseed(self, seed):
        """Draw other random numbers from here on: each data-parallel copy its own, the workers of
        one copy the same. seed: digits."""
        watch_server()                  # with NCCL this is the first time that we are called
        set_random_seed(int(seed), self.parallel_config.data_parallel_index)


WeightTransferEngineFactory.register_engine("gloo", GlooEngine)
