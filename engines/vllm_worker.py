"""vllm_worker.py: what the workers of a vLLM server load, to receive weights on a CPU.

A stock server imports it through its option `--worker-extension-cls engines.vllm_worker.Worker`.
It adds a weight transfer backend "file"; the trainer's end is server.Server.receive.

A worker loads what arrived when the trainer says that it was everything. If the loading itself
breaks off, the server ends: half of the new weights would be worse than none.
"""

from __future__ import annotations

import math
import os
import traceback
from types import SimpleNamespace

import numpy
import torch
from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import (finalize_layerwise_reload,
                                                     initialize_layerwise_reload)

from engines.vllm_inprocess import refresh_tied_head


class FileEngine(WeightTransferEngine):
    """The receiving end in one worker. vLLM calls the methods, in this order."""
    init_info_cls = update_info_cls = SimpleNamespace   # made from the JSON that the trainer sends
    received = ()

    def init_transfer_engine(self, info):
        self.received = []              # of a trainer that went away in the middle

    def start_weight_update(self):
        self.received = []

    def receive_weights(self, info):
        """One bucket: tensors of one type, as weight_transfer.packed packs them."""
        dtype = getattr(torch, info.dtype_names[0])
        data = torch.from_numpy(numpy.fromfile(info.file, numpy.uint8)).view(dtype)
        parts = data.split([math.prod(shape) for shape in info.shapes])
        self.received += [(name, part.view(shape))
                          for name, shape, part in zip(info.names, info.shapes, parts)]

    def finish_weight_update(self):
        weights, self.received = self.received, []
        if not weights:                 # the end of an update that another trainer left open
            return
        try:
            initialize_layerwise_reload(self.model)
            self.model.load_weights(weights)
            finalize_layerwise_reload(self.model, self.model_config)
            refresh_tied_head(self.model)
        except BaseException:           # layers half loaded, and vLLM cannot begin them anew
            traceback.print_exc()
            os._exit(1)                 # vLLM ends the rest

    def shutdown(self):
        self.received = []


class Worker:
    """vLLM mixes this into its own worker; to import it is enough."""


WeightTransferEngineFactory.register_engine("file", FileEngine)
