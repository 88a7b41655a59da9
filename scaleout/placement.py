"""scaleout/placement.py: which processes a machine runs, and on which of its devices.

On GPUs trainers come first and servers fill the rest; a machine that only serves has no trainers.
The paper gives 64 GPUs to generation and 16 to training, and names no rule. Ours: its share of
trainers, or as many as the model needs. bench/simulate.py finds a better split from a run's log.
"""

import errno
import random
import socket
from collections import namedtuple

from config import ConfigError
from engines.load import refused
from servers.addresses import LOOPBACK, client_context

PAPERS_SHARE = 16 / 80              # of the GPUs trains


# One vLLM server: its address, and its devices: numbers of GPUs, () on a CPU.
Server = namedtuple("Server", "url devices")
# All processes of a machine: how many trainers, a tuple of Servers; and the reason in one line.
Placement = namedtuple("Placement", "trainers servers why")


def free_ports(count, host=LOOPBACK[0]):
    """Ports of this address that nobody listens on. Below 32768, where the kernel's range for
    outgoing connections starts: a client that calls a dead server again and again would one day be
    given the server's own port, connect to itself, and keep the server from coming back. Raises
    ConfigError: the address is not this machine's."""
    ports = set()
    while len(ports) < count:
        try:
            with socket.socket() as s:
                s.bind((host, random.randrange(10000, 32768)))
                ports.add(s.getsockname()[1])
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ConfigError(f"--serve-only {host}: give an address of this machine, on which "
                                  f"servers can listen ({error})") from None
    return ports


def make_placement(config, estimate, address=""):
    """The `Placement` that `config` asks for, by memory.py's `Estimate`. address: as of
    `launch.launch`. Raises ConfigError: it does not add up."""
    c, host = config, address or LOOPBACK[0]
    if c.vllm_url and c.servers:
        raise ConfigError(f"servers = {c.servers}: vllm_url names servers that others have "
                          "started; give one of the two")
    if c.gpus > 0:
        trainers, count, why = on_gpus(c, estimate, address)
    else:
        trainers = 0 if address else c.trainers or 1
        count = 0 if c.vllm_url else c.servers or 1
        why = f"no GPU: {trainers} train, {count} servers generate"
    urls = [f"{'https' if c.tls_folder else 'http'}://{host}:{port}"
            for port in free_ports(count, host)]
    with refused():     # on a network servers need tls = FOLDER, or tls = "none" in so many words
        client_context(urls, c.tls)
    size, devices = c.tensor_parallel, range(trainers, c.gpus)      # none on CPUs
    return Placement(trainers, tuple(
        Server(url, tuple(devices[i * size:(i + 1) * size])) for i, url in enumerate(urls)), why)


def on_gpus(c, estimate, address):
    """(trainers, servers, why)."""
    gpus, size = c.gpus, c.tensor_parallel
    asked = 0 if address else c.trainers
    possible = [t for t in ([0] if address else range(1, gpus + 1))
                if (gpus - t) % size == 0 and (t == gpus) == bool(c.vllm_url)
                and asked in (0, t) and c.servers in (0, (gpus - t) // size)]
    if not possible:
        raise ConfigError(
            f"servers = {c.servers}, trainers = {asked}: {gpus} GPUs are to be all in use, by "
            f"trainers and by servers of {size} on the rest (by trainers alone with vllm_url)")
    # With more trainers the shards are smaller. If no number has room, the estimate refuses.
    fitting = [t for t in possible if t and estimate.trainer_fits(t)]
    trainers = min(fitting or possible, key=lambda t: abs(t - PAPERS_SHARE * gpus))
    generators = gpus - trainers
    why = "as asked for" if address or c.trainers or c.servers or c.vllm_url else (
        "about the paper's share, 1 of 5, trains, or as many as the model needs; --servers and "
        "--trainers override this")
    return trainers, generators // size, (
        f"{gpus} GPUs: {trainers} train, {generators} generate ({generators // size} servers): "
        f"{why}")
