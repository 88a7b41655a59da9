"""worker.py: what the workers of a vLLM server load, to receive weights on a CPU: a weight transfer
backend "http". They come inside the requests (`Server.receive`)."""
import base64
import os
import traceback
from types import SimpleNamespace

import torch
from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import (finalize_layerwise_reload,
                                                     initialize_layerwise_reload)

from engines.vllm_inprocess import repack


class HttpEngine(WeightTransferEngine):
    """The receiving end in one worker, by the names that vLLM calls."""
    init_info_cls = update_info_cls = SimpleNamespace   # made from the JSON that the trainer sends

    def start_weight_update(self, _=None):
        self.received = []              # perhaps of a trainer that went away in the middle

    init_transfer_engine = shutdown = start_weight_update

    def receive_weights(self, info):
        """One bucket: tensors of one type, as `packed` of server.py packs them."""
        dtype = getattr(torch, info.dtype_names[0])
        data = torch.frombuffer(bytearray(base64.b64decode(info.data)), dtype=dtype)
        parts = data.split([torch.Size(shape).numel() for shape in info.shapes])
        self.received += zip(info.names, map(torch.Tensor.view, parts, info.shapes))

    def finish_weight_update(self):
        weights, self.received = self.received, []
        if not weights:                 # the end of an update that another trainer left open
            return
        try:
            initialize_layerwise_reload(self.model)
            self.model.load_weights(weights)
            finalize_layerwise_reload(self.model, self.model_config)
            repack(self.model)
        except BaseException:           # layers half loaded would be worse than none
            traceback.print_exc()
            os._exit(1)                 # vLLM ends the rest


class Worker:
    """vLLM mixes this into its own worker; to import it is enough."""


WeightTransferEngineFactory.register_engine("http", HttpEngine)
