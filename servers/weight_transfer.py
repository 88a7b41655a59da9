"""weight_transfer.py: how weights travel from the trainer to the workers of one vLLM server:
between CPUs inside the request, to worker.py; between GPUs over NCCL, to vLLM's own other end. Rank
0 and the workers of one server are a group, so a dead server breaks no other."""
import base64
import threading

import torch

# One request announces so much. vLLM expects less than its NCCL buffer, 1 GiB, in one broadcast.
BUCKET_BYTES = 256 * 2**20


def buckets(named_tensors, dtype):
    """Yield (names, types and shapes; one tensor of bytes) of about BUCKET_BYTES each."""
    bucket, size = {}, 0
    for name, tensor in named_tensors:
        bucket[name] = tensor.detach().to(dtype)
        size += bucket[name].nbytes
        if size >= BUCKET_BYTES:
            yield packed(bucket)
            bucket, size = {}, 0
    if bucket:
        yield packed(bucket)


def packed(bucket):
    tensors = bucket.values()
    info = {"names": list(bucket), "shapes": [list(tensor.shape) for tensor in tensors],
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]}
    return info, torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in tensors])


class NcclChannel:
    """The trainer's end towards vLLM's own NCCL engine. `meet` and `send` may never return. Its id
    goes over HTTP: a TCPStore would unpickle what it gets. Not run on a GPU yet."""

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
