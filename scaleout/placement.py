"""scaleout/placement.py: which process runs on which host and device.

On GPUs the trainers take part of the first node, or whole nodes, and servers fill the rest. On CPUs
the last hosts have the servers. Ports count from `port`: the launchers and the trainers' rendezvous
on it (nodes.py), servers from the tenth after it. Every node computes the same placement from the
same command. Ours: the paper gives 64 GPUs to generation and 16 to training, and names no rule.
"""

from __future__ import annotations

from dataclasses import dataclass

from config import ConfigError
from engines.load import refused
from engines.tls import LOOPBACK, tls_context


def split(gpus, generate_rate, train_rate, size=1, allowed=lambda trainers: True):
    """(servers, trainers) that use all `gpus` GPUs and make the most tokens a second.

    The rates are tokens a second of one GPU; size: GPUs of one server; allowed: which numbers of
    trainers the hosts and their memory leave possible.

    Both sides work at the same time, so the slower one sets the pace of the run. At the ideal, g/t
    = train_rate / generate_rate, neither waits. Raises ConfigError: no split is possible.

    >>> split(8, generate_rate=1000, train_rate=3000)
    (6, 2)
    """
    choices = [(servers, gpus - servers * size) for servers in range(1, gpus)
               if gpus - servers * size > 0 and allowed(gpus - servers * size)]
    if not choices:
        raise ConfigError(f"gpus = {gpus}: no room for a server of {size} and a trainer")
    return max(choices, key=lambda c: min(c[0] * size * generate_rate, c[1] * train_rate))


@dataclass(frozen=True)
class Server:
    """One vLLM server: its node and address; devices: GPUs of the node, () on a CPU."""
    node: int
    host: str
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


def make_placement(config, estimate, free_port=lambda: 0):
    """The `Placement` that `config` asks for. Raises ConfigError: it does not add up.

    estimate    memory.py's;  free_port: gives a port for a server that listens on loopback
    """
    c = config
    hosts = tuple(host.strip() for host in c.hosts.split(",")) if c.hosts else ("127.0.0.1",)
    if not all(hosts) or len(set(hosts)) < len(hosts):
        raise ConfigError(f"hosts = {c.hosts!r}: should be different addresses, by commas")
    if c.node_rank >= len(hosts):
        raise ConfigError(f"node_rank = {c.node_rank}: should be one of 0..{len(hosts) - 1}, "
                          f"the position of this machine in hosts = {c.hosts!r}")
    if c.tls_folder:
        with refused():
            tls_context(c.tls)
    elif not c.tls and not set(hosts) <= set(LOOPBACK):
        raise ConfigError(f"hosts = {c.hosts!r}: servers that other machines can reach need "
                          'tls = FOLDER (make certs), or tls = "none" on a network you trust')
    if c.engine == "transformers":
        raise ConfigError("engine = 'transformers': it works in the trainer's process alone; "
                          "servers are vLLM's, so use engine = \"vllm\" or \"auto\"")
    if c.vllm_url and c.servers:
        raise ConfigError(f"servers = {c.servers}: vllm_url names servers that others have "
                          "started; give one of the two")
    gpus, size = max(0, c.gpus), estimate.server_gpus
    trainers, counts, why = on_gpus(c, estimate, len(hosts), gpus, size) if gpus \
        else on_cpus(c, len(hosts))
    servers = []
    for node, count in enumerate(counts):
        for i in range(count):
            first = trainers[node] + i * size       # trainers come first on a node that has both
            port = c.port + 10 + i if c.hosts else free_port()
            url = f"http{'s' * bool(c.tls_folder)}://{hosts[node]}:{port}"
            servers.append(Server(node, hosts[node], port, url,
                                  tuple(range(first, first + size)) if gpus else ()))
    return Placement(hosts, gpus, tuple(trainers), tuple(servers), why)


def on_gpus(c, estimate, hosts, gpus, size):
    """(trainers on each node, servers on each node, why)."""
    total = hosts * gpus

    def fill(trainers):
        return [min(gpus, max(0, trainers - node * gpus)) for node in range(hosts)]

    def possible(trainers):
        """Part of the first node or whole nodes; servers fill the rest of each."""
        return (0 < trainers < gpus or trainers % gpus == 0 < trainers <= total) \
            and all((gpus - used) % size == 0 for used in fill(trainers))

    if c.trainers or c.servers or c.vllm_url:
        trainers, why = c.trainers or total - c.servers * size, "as asked for"
    else:
        # With more trainers the shards are smaller. So if even all GPUs but one server's have no
        # room for the model, no split has, and the estimate refuses with the numbers.
        roomy = estimate.trainer_fits(max(1, total - size))
        _, trainers = split(total, estimate.generate_rate, estimate.train_rate, size,
                            lambda t: possible(t) and (estimate.trainer_fits(t) or not roomy))
        ideal = estimate.train_rate / (estimate.train_rate + estimate.generate_rate)
        why = (f"a GPU generates about {estimate.generate_rate:,.0f} tokens a second and trains "
               f"on {estimate.train_rate:,.0f}, so {ideal:.0%} of them should generate, as far as "
               "memory allows; --servers and --trainers override this estimate")
    servers = (total - trainers) // size
    if not possible(trainers) or c.servers not in (0, servers) or bool(servers) == bool(c.vllm_url):
        raise ConfigError(
            f"servers = {c.servers}, trainers = {c.trainers}: {total} GPUs are to be all in use, "
            + ("by trainers" if c.vllm_url else "by trainers on part of the first node or on whole "
               f"nodes, and servers of {size} on the rest"))
    return fill(trainers), [(gpus - used) // size for used in fill(trainers)], (
        f"{total} GPUs: {trainers} train, {servers * size} generate ({servers} servers): {why}; a "
        f"server decodes up to {estimate.slots} sequences at once")


def on_cpus(c, hosts):
    """The same, for hosts without GPUs: of several the last one has the servers."""
    servers, trainers = 0 if c.vllm_url else c.servers or 1, c.trainers or 1
    nodes = max(1, hosts - bool(servers))
    if trainers % nodes:
        raise ConfigError(f"trainers = {trainers}: {nodes} of {hosts} hosts should have equally "
                          "many; the last one has the servers")
    return ([trainers // nodes] * nodes + [0] * (hosts - nodes), [0] * (hosts - 1) + [servers],
            f"no GPU: {trainers} train, {servers} servers generate")
