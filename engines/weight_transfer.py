"""weight_transfer.py: how weights travel from the trainer to the workers of vLLM servers.

They travel in buckets, each one tensor of bytes.

To GPUs over NCCL (the other end is vLLM's own). The trainer, rank 0, and the workers of one server
form a process group of their own, so a dead server breaks no other. While the trainer is in `meet`
or `send`, the server is told over HTTP the `init_info` or which tensors come. To CPUs as a file
(the other end is vllm_worker.py), in TMPDIR, which all servers of the run have to see.

NCCL knows neither passwords nor encryption: private networks only, even if HTTP has TLS.
"""

from __future__ import annotations

import base64
import threading

import torch

# One request announces so much. vLLM expects less than its NCCL buffer, 1 GiB, in one broadcast.
BUCKET_BYTES = 256 * 2**20


def buckets(named_tensors, dtype):
    """Yield (info, data) of about BUCKET_BYTES each. info: names, types and shapes of the tensors,
    as a server is told them; data: all of them, as `dtype`, in one tensor of bytes."""
    bucket, size = {}, 0
    for name, tensor in named_tensors:
        bucket[name] = tensor.detach().to(dtype)
        size += bucket[name].nbytes
        if size >= BUCKET_BYTES:
            yield packed(bucket, dtype)
            bucket, size = {}, 0
    if bucket:
        yield packed(bucket, dtype)


def packed(bucket, dtype):
    tensors = bucket.values()
    info = {"names": list(bucket), "shapes": [list(tensor.shape) for tensor in tensors],
            "dtype_names": [str(dtype).removeprefix("torch.")] * len(bucket)}
    return info, torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in tensors])


class NcclChannel:
    """The trainer's end towards one server.

    NCCL waits for a dead worker for ever: `meet` and `send` may never return. Its id is sent over
    HTTP: vLLM's other way to meet, a TCPStore, unpickles what it gets. Not run on a GPU yet.
    """

    def __init__(self, world_size):
        from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary
        self.world_size, self.device = world_size, torch.cuda.current_device()
        self.stream = torch.cuda.Stream(self.device)    # a silent server must not delay others
        self.id = bytes(NCCLLibrary().ncclGetUniqueId().internal)
        self.init_info = {"nccl_unique_id_b64": base64.b64encode(self.id).decode(),
                          "rank_offset": 1, "world_size": world_size, "packed": True}
        self.group = None

    def meet(self):
        from vllm.distributed.weight_transfer.nccl_common import uid_init_process_group
        with torch.cuda.device(self.device):
            self.group = uid_init_process_group(self.id, 0, self.world_size, self.device)

    def send(self, data):
        # vLLM's own sender has one pair of streams for all groups.
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            self.stream.wait_stream(torch.cuda.default_stream())    # which computes the data
            self.group.broadcast(data, 0, self.stream)
            self.stream.synchronize()

    def close(self):
        """The communicator gives its GPU memory back; that ends a waiting `send`."""
        if self.group:
            threading.Thread(target=self.group.destroy, daemon=True).start()    # takes seconds
