"""weight_wire.py: what a vLLM server's workers load to receive weights on a CPU.

A stock server imports it through its own option, `--worker-extension-cls weight_wire.Worker`, and
so learns a weight transfer backend "gloo" beside vLLM's "nccl". The trainer, rank 0, and all
workers of one server form one process group; one broadcast a tensor.

All or nothing: what arrives is kept aside and loaded when the trainer says that it was
everything. A push that breaks off, by whatever failure, leaves the weights as they were.

Runs inside vLLM and nowhere else; the trainer's side is servers.py. Also here: a worker dies
with the process that started it, which a server killed by SIGKILL cannot see to itself.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore
from vllm.distributed.weight_transfer.base import (WeightTransferEngine, WeightTransferInitInfo,
                                                   WeightTransferUpdateInfo)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import (finalize_layerwise_reload,
                                                     initialize_layerwise_reload)

from vllm_engine import refresh_tied_head


def gloo_group(store, rank, world_size, address, timeout_s):
    """A process group apart from torch's default one, listening at `address` alone."""
    options = ProcessGroupGloo._Options()
    options._devices = [ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = timedelta(seconds=timeout_s)
    return ProcessGroupGloo(PrefixStore("weights", store), rank, world_size, options)


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


class GlooEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """The receiving end in one worker. The methods are vLLM's, called in this order."""
    init_info_cls, update_info_cls = InitInfo, UpdateInfo

    def __init__(self, *args):
        super().__init__(*args)
        self.group, self.received = None, []
        die_with_parent()

    def init_transfer_engine(self, info: InitInfo):
        """Meet the trainer; a second call, of a trainer that came back, replaces the first."""
        config, timeout = self.parallel_config, timedelta(seconds=info.timeout_s)
        rank = 1 + config.data_parallel_index * config.world_size + config.rank
        store = TCPStore(info.address, info.port, info.world_size, False, timeout)
        # Listen where the trainer is reached from: on loopback if it is there.
        with socket.create_connection((info.address, info.port), info.timeout_s) as connection:
            own = connection.getsockname()[0]
        self.group = gloo_group(store, rank, info.world_size, own, info.timeout_s)

    def start_weight_update(self):
        self.received = []

    def receive_weights(self, info: UpdateInfo):
        for name, dtype, shape in zip(info.names, info.dtype_names, info.shapes, strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            self.group.broadcast(tensor, 0).wait()
            self.received.append((name, tensor))

    def finish_weight_update(self):
        weights, self.received = self.received, []
        initialize_layerwise_reload(self.model)
        self.model.load_weights(weights)
        finalize_layerwise_reload(self.model, self.model_config)
        refresh_tied_head(self.model)

    def shutdown(self):
        self.group, self.received = None, []


def die_with_parent():
    """Have the kernel kill this process when its parent ends (Linux)."""
    PR_SET_PDEATHSIG = 1
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:          # it ended just before
        os.kill(os.getpid(), signal.SIGKILL)


class Worker:
    """What vLLM mixes into its own worker: nothing. Importing this file is the point."""


WeightTransferEngineFactory.register_engine("gloo", GlooEngine)
