"""scaleout/placement.py: which processes a machine runs, and on which of its devices.

The paper gives 64 GPUs to generation and 16 to training, and names no rule. Ours: there both sides
are equally fast, and a step takes as long as the slower one."""
import contextlib
import random
import socket
from collections import namedtuple

from config import ConfigError

LOOPBACK = "127.0.0.1"              # servers listen here: whoever reaches one can change weights
TRAINING = 16 / 80                  # of a step's work, by the paper's split
RECOMPUTED = 4 / 3                  # of the work of training: a second forward pass
WORTH = 1.25                        # what a larger server must gain, for what its GPUs tell others
# How many trainers; {address of a server: numbers of its GPUs}; and the reason in one line.
Placement = namedtuple("Placement", "trainers servers why")


def free_ports(count, host):
    """Ports of this address that nobody listens on; below 32768, or a client that calls a dead
    server could be given its port, and connect to itself. Raises ConfigError."""
    ports = []
    for port in random.sample(range(10000, 32768), min(100 * count, 22768)):
        with contextlib.suppress(OSError), socket.socket() as s:
            s.bind((host, port))
            ports.append(port)
    if len(ports) < count:
        raise ConfigError(f"{len(ports)} ports are free for {count} servers" if ports else
                          f"--serve-only {host}: give an address of this machine")
    return ports[:count]


def make_placement(config, estimate, address=""):
    """The `Placement` that `config` asks for. Raises ConfigError: it does not add up."""
    c, host = config, address or LOOPBACK
    if c.vllm_url and c.servers:
        raise ConfigError(f"servers = {c.servers}: vllm_url names servers that others have "
                          "started; give one of the two")
    if c.gpus > 0:
        trainers, count, why = on_gpus(c, estimate, address)
    else:
        trainers = 0 if address else c.trainers or 1
        count = 0 if c.vllm_url else c.servers or 1
        why = f"no GPU: {trainers} train, {count or 'the given'} servers generate"
    size, devices = max(1, c.tensor_parallel), range(trainers, c.gpus)      # none on CPUs
    return Placement(trainers, {f"http://{host}:{port}": devices[i * size:(i + 1) * size]
                                for i, port in enumerate(free_ports(count, host))}, why)


def on_gpus(c, estimate, address):
    """(trainers, servers, why). Settles `tensor_parallel`, and whether layers are recomputed."""
    asked = 0 if address else c.trainers
    H, J = estimate.shape.num_attention_heads, estimate.kv      # as vLLM divides them
    sizes = [c.tensor_parallel] if c.tensor_parallel else [
        s for s in (1, 2, 4, 8) if H % s == 0 and (J % s == 0 or s % J == 0)]
    possible = {size: [
        t for t in ([0] if address else range(1, c.gpus + 1))
        if (c.gpus - t) % size == 0 and (t == c.gpus) == bool(c.vllm_url)
        and asked in (0, t) and c.servers in (0, (c.gpus - t) // size)] for size in sizes}
    sizes = [size for size in sizes if possible[size]]
    if not sizes:
        raise ConfigError(
            f"servers = {c.servers}, trainers = {asked}: one GPU a trainer and, without vllm_url, "
            f"{max(1, c.tensor_parallel)} a server must make {c.gpus} GPUs (0: what is left)")
    rates, best = {size: estimate.decode_rate(size) or 1e-30 for size in sizes}, sizes[0]
    for larger in sizes[1:]:
        best = larger if rates[larger] > WORTH * rates[best] else best
    def step(size, t, recompute):
        """A step's time on t trainers, in that of one GPU that does all, decoding as the best."""
        return max(TRAINING * (RECOMPUTED if recompute else 1) / t,
                   (1 - TRAINING) / (c.gpus - t) * rates[best] / rates[size] if t < c.gpus else 0)
    # More trainers have smaller shards. If none has room, even recomputing, the estimate refuses.
    plans = [(step(size, t, recompute), recompute, t, size)
             for size in sizes if size <= best for t in possible[size] if t
             for recompute in {estimate.recompute, True} if estimate.trainer_fits(t, recompute)]
    _, estimate.recompute, trainers, size = min(plans, default=(0, True, max(possible[best]), best))
    c.tensor_parallel = size
    count = (c.gpus - trainers) // size
    why = "as asked for" if address or c.trainers or c.servers or c.vllm_url else \
        "by the paper's split, 1 to 4, as far as the model's memory lets it"
    servers = f"{count} servers" + (f" of {size}" if size > 1 else "")
    return trainers, count, (
        f"{c.gpus} GPUs: {trainers} train, {count * size} generate ({servers}): {why}")
