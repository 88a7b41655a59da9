"""weight_transfer.py: how weights travel from the trainer to the workers of one vLLM server.

Rank 0 and the workers of one server form a process group of their own, so a dead server breaks no
other: gloo between CPUs (the other end is worker.py), NCCL between GPUs (vLLM's own). Neither knows
passwords or encryption: private networks only.
"""

import base64
import socket
import threading
from datetime import timedelta

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

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


def own_address(host, port):
    """This machine's address as `host` sees it: loopback for loopback. Sends nothing."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as unsent:
        unsent.connect(address)
        return unsent.getsockname()[0]


def gloo_group(store, rank, address, port, world_size, timeout_s):
    """A process group beside torch's default one, which listens at one address alone."""
    options, own = ProcessGroupGloo._Options(), own_address(address, port)
    options._devices = [ProcessGroupGloo.create_device(hostname=own)]
    options._timeout = timedelta(seconds=timeout_s)
    return ProcessGroupGloo(PrefixStore("weights", store), rank, world_size, options)


def listening_store(address, timeout_s=300.0):
    """A TCPStore on a free port of this address, not of every address of the machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family)
    port = listener.getsockname()[1]
    return TCPStore(address, port, None, True, timedelta(seconds=timeout_s),
                    wait_for_workers=False, master_listen_fd=listener.detach())


class GlooChannel:
    """The trainer's end towards a server's workers on CPUs. url: the server's, from urlsplit."""

    def __init__(self, url, world_size, timeout_s):
        self.store = listening_store(own_address(url.hostname, url.port), timeout_s)
        self.init_info = {"address": self.store.host, "port": self.store.port,
                          "world_size": world_size, "timeout_s": timeout_s}

    def meet(self):
        self.group = gloo_group(self.store, 0, **self.init_info)

    def send(self, data):
        self.group.broadcast(data.cpu(), 0).wait()

    def close(self):
        self.store = self.group = None  # with the last reference its port and threads end


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
