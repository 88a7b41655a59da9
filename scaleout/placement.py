"""scaleout/placement.py: which process runs on which host and device.

On GPUs the trainers take part of the first node, or whole nodes, and servers fill the rest. On CPUs
the last hosts have the servers. Ports count from `port`: the launchers and the trainers' rendezvous
on it, servers from the tenth after it. Every node computes the same placement from the
same command. Ours: the paper gives 64 GPUs to generation and 16 to training, and names no rule.
"""

import contextlib
import random
import socket
from dataclasses import dataclass

from config import ConfigError
from engines.load import refused
from servers.tls import client_context


def split(gpus, generate_rate, train_rate, choices=None):
    """(GPUs that generate, GPUs that train) that make the most tokens a second.

    The rates are tokens a second of one GPU; choices: possible numbers of those that train.

    Both sides work at the same time, so the slower one sets the pace of the run. At the ideal, g/t
    = train_rate / generate_rate, neither waits.

    >>> split(8, generate_rate=1000, train_rate=3000)
    (6, 2)
    """
    trainers = max(choices or range(1, gpus),
                   key=lambda t: min((gpus - t) * generate_rate, t * train_rate))
    return gpus - trainers, trainers


@dataclass(frozen=True)
class Server:
    """One vLLM server: its node and address; devices: GPUs of the node, () on a CPU."""
    node: int
    port: int
    url: str
    devices: tuple[int, ...]


@dataclass(frozen=True)
class Placement:
    """All processes of the run: trainers on each host, servers, and the reason in one line."""
    hosts: tuple[str, ...]
    gpus: int                           # of each host; 0: CPUs
    trainers: tuple[int, ...]
    servers: tuple[Server, ...]
    why: str


def free_ports(count):
    """Ports of the loopback that nobody listens on. Below 32768, where the kernel's range for
    outgoing connections starts: a client that calls a dead server again and again would one day be
    given the server's own port, connect to itself, and keep the server from coming back."""
    ports = set()
    while len(ports) < count:
        with contextlib.suppress(OSError), socket.socket() as s:
            s.bind(("127.0.0.1", random.randrange(10000, 32768)))
            ports.add(s.getsockname()[1])
    return ports


def make_placement(config, estimate):
    """The `Placement` that `config` asks for, by memory.py's `Estimate`. Raises ConfigError: it
    does not add up."""
    c = config
    hosts = tuple(host.strip() for host in c.hosts.split(",")) if c.hosts else ("127.0.0.1",)
    if not all(hosts) or len(set(hosts)) < len(hosts) or c.node_rank >= len(hosts):
        raise ConfigError(f"hosts = {c.hosts!r}, node_rank = {c.node_rank}: should be different "
                          "addresses, by commas, and the position of this machine, from 0")
    if c.vllm_url and c.servers:
        raise ConfigError(f"servers = {c.servers}: vllm_url names servers that others have "
                          "started; give one of the two")
    gpus, size = max(0, c.gpus), c.tensor_parallel
    trainers, counts, why = on_gpus(c, estimate, len(hosts)) if gpus else on_cpus(c, len(hosts))
    servers, ports = [], free_ports(sum(counts))
    for node, count in enumerate(counts):
        for i in range(count):
            first = trainers[node] + i * size       # trainers come first on a node that has both
            port = c.port + 10 + i if c.hosts else ports.pop()
            url = f"http{'s' * bool(c.tls_folder)}://{hosts[node]}:{port}"
            devices = tuple(range(first, first + size)) if gpus else ()
            servers.append(Server(node, port, url, devices))
    with refused():     # on a network servers need tls = FOLDER, or tls = "none" in so many words
        client_context([server.url for server in servers], c.tls)
    return Placement(hosts, gpus, tuple(trainers), tuple(servers), why)


def on_gpus(c, estimate, hosts):
    """(trainers on each node, servers on each node, why)."""
    gpus, size, total = c.gpus, c.tensor_parallel, hosts * c.gpus

    def fill(trainers):
        return [min(gpus, max(0, trainers - node * gpus)) for node in range(hosts)]

    # Part of the first node or whole nodes train; servers fill the rest of each node.
    possible = [
        t for t in range(1, total + 1)
        if (t < gpus or t % gpus == 0) and all((gpus - used) % size == 0 for used in fill(t))
        and (t == total) == bool(c.vllm_url)
        and c.trainers in (0, t) and c.servers in (0, (total - t) // size)]
    if not possible:
        raise ConfigError(
            f"servers = {c.servers}, trainers = {c.trainers}: {total} GPUs are to be all in use, "
            f"by trainers on part of the first node or on whole nodes, and by servers of {size} "
            "on the rest (by none with vllm_url)")
    # With more trainers the shards are smaller. If no number has room, the estimate refuses.
    fitting = [t for t in possible if estimate.trainer_fits(t)]
    generate, train = estimate.generate_rate, estimate.train_rate
    generators, trainers = split(total, generate, train, fitting or possible)
    why = "as asked for" if c.trainers or c.servers or c.vllm_url else (
        f"a GPU generates about {generate:,.0f} tokens a second and trains on {train:,.0f}; "
        "--servers and --trainers override this estimate")
    return fill(trainers), [(gpus - used) // size for used in fill(trainers)], (
        f"{total} GPUs: {trainers} train, {generators} generate ({generators // size} servers): "
        f"{why}")


def on_cpus(c, hosts):
    """The same, for hosts without GPUs: of several the last one has the servers."""
    servers, trainers = 0 if c.vllm_url else c.servers or 1, c.trainers or 1
    nodes = max(1, hosts - bool(servers))
    counts = [len(range(node, trainers, nodes)) for node in range(nodes)] + [0] * (hosts - nodes)
    return (counts, [0] * (hosts - 1) + [servers],
            f"no GPU: {trainers} train, {servers} servers generate")
