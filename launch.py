"""launch.py: who runs where, whether it fits, and that all of it ends together.

`python scalerl.py --model M --gpus 8` is the whole command: this file splits the GPUs between
vLLM servers, which generate, and trainers; starts both, keeps them alive, and ends every process
it has started, however the run ends. It knows nothing of weights or samples: the trainer gets the
servers' addresses as --vllm-url, and all else is between the two.

  1. Split        how many GPUs generate, how many train, by a rule that is printed
  2. Estimate     memory and time from the model's config.json alone; what cannot fit is refused
  3. Places       every process with its host, devices and address, the same on every node
  4. Nodes        several hosts: one line from each to the first, so that all end together
  5. Launch       the commands, and running them (under leash.py's supervisor)

Ours, all of it: the paper gives 64 GPUs to generation and 16 to training, and no rule.
"""

from __future__ import annotations

import fcntl
import importlib.util
import math
import os
import random
import secrets
import shlex
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from leash import Child, LaunchError, say, supervise
from memory import CACHE_SHARE, GIB, Memory, host_memory
from servers import LOOPBACK, server_command, tls_context

# In the environment of every trainer that the launcher has started: it starts nothing itself, and
# its --vllm-url is of this start alone.
LAUNCHED = "SCALERL_LAUNCHED"


class PlaceError(ValueError):
    """What was asked for does not add up or does not fit: one sentence."""


# ---------------------------------------------------------------------------------------------
# 1. Split


def split(gpus, generate_rate, train_rate, size=1, allowed=lambda trainers: True):
    """(servers, trainers) that use all `gpus` GPUs and make the most tokens a second.

    generate_rate   tokens a second that one GPU generates
    train_rate      generated tokens a second that one GPU trains on
    size            GPUs of one server
    allowed         which numbers of trainers the hosts' shape leaves possible

    Both sides work at the same time, so the slower one is the run's pace, and at the ideal, g/t =
    train_rate / generate_rate, neither waits. With few GPUs that ratio is seldom to be had.
    Raises PlaceError when no split is possible.

    >>> split(8, generate_rate=1000, train_rate=3000)
    (6, 2)
    >>> split(8, generate_rate=1000, train_rate=3000, size=4)
    (1, 4)
    """
    choices = [(servers, gpus - servers * size) for servers in range(1, gpus)
               if gpus - servers * size > 0 and allowed(gpus - servers * size)]
    if not choices:
        raise PlaceError(f"gpus = {gpus}: no room for a server of {size} and a trainer")
    return max(choices, key=lambda c: min(c[0] * size * generate_rate, c[1] * train_rate))


# ---------------------------------------------------------------------------------------------
# 2. Estimate


@dataclass(frozen=True)
class Device:
    """What the estimates need to know of a device; the numbers are its makers'."""
    name: str
    memory: float                   # bytes
    bandwidth: float                # bytes a second
    flops: float                    # dense, bf16, a second
    source: str = ""                # how they are known
    host: float = math.inf          # bytes of its machine's memory, if that is here to ask


DEVICES = [Device(name, gib * GIB, bandwidth, flops) for name, gib, bandwidth, flops in (
    ("H100", 79, 3.35e12, 989e12), ("H200", 140, 4.8e12, 989e12), ("B200", 178, 8e12, 2250e12),
    ("A100", 79, 2.0e12, 312e12), ("L40S", 44, 0.86e12, 362e12), ("4090", 23.5, 1.0e12, 165e12))]
# The shares of those numbers that are reached. Assumed, and printed as such.
DECODE_SHARE, TRAIN_SHARE, VLLM_MEMORY_SHARE = 0.5, 0.3, 0.9
SERVER_OVERHEAD = 2 * GIB           # CUDA context, activations, graphs
CHECKPOINT_RATE = 0.2e9             # bytes a second, of all ranks together: a slow network disk


def device_here(gpus):
    """The first GPU as a Device, or the CPU; an assumption where there is none to ask."""
    memory = host_memory()
    if not gpus:
        cores = len(os.sched_getaffinity(0))
        return Device("CPU", memory, 20e9, cores * 30e9,
                      f"a CPU of {cores} cores (20 GB/s, 30 GFLOP/s a core assumed)", memory)
    if not torch.cuda.is_available():
        return replace(DEVICES[0], source="an H100 (assumed: no GPU here to ask)")
    here = torch.cuda.get_device_properties(0)
    known = next((d for d in DEVICES if d.name in here.name), None)
    return replace(known or DEVICES[0], name=here.name, memory=here.total_memory, host=memory,
                   source=here.name + ("" if known else " (not in launch.py's table: an H100's "
                                       "speed assumed)"))


class Estimate(Memory):
    """Memory and time of a run, from the shapes of its model; within a factor of two, not exact.

    compute   scalerl.py's Compute of the model: FLOPs of a token and of looking at one
    device    what each process runs on; the others are `Memory`'s
    """

    def __init__(self, config, model, compute, output, length, dtype, device):
        super().__init__(config, model, output, length, dtype, cuda=device.name != "CPU",
                         alone=not wanted(config))
        self.compute, self.device = compute, device
        self.mean_output = output / 2                                       # assumed
        # Tokens that a token looks back at, on average; half of the prompt is assumed filled too.
        self.context = (length - output) / 2 + self.mean_output / 2
        self.server_gpus = config.tensor_parallel * config.pipeline_parallel \
            * config.data_parallel
        self.copy_gpus = config.tensor_parallel * config.pipeline_parallel
        # Shards shrink with more trainers, activations do not: if those alone are too many, the
        # trainers are told to recompute them.
        self.recompute |= not self.alone and self.cuda and not self.trainer_fits(4096)

    # -- memory, in bytes a device ------------------------------------------------------------

    @property
    def room(self):
        """A tenth of the device is left to what is not counted: fragments, CUDA itself."""
        return 0.9 * self.device.memory

    def trainer_fits(self, trainers, room=None):
        return sum(self.trainer_memory(trainers).values()) <= (room or self.room)

    def share(self, ranks, servers):
        """`room` of each of so many trainers beside so many servers: on CPUs they share one
        machine."""
        if self.cuda or not ranks:
            return self.room
        parts, _ = self.server_memory()
        return max(1.0, self.room - servers * (parts["weights"] + parts["cache, what fits"])) \
            / ranks

    def server_memory(self):
        """({what: bytes} of one GPU of a server, sequences that its cache holds to the end)."""
        c = self.config
        weights = self.weights * self.itemsize / self.copy_gpus
        sequence = self.kv_token * self.length / self.copy_gpus
        share = VLLM_MEMORY_SHARE if self.cuda else CACHE_SHARE
        room = share * self.device.memory - self.cuda * (SERVER_OVERHEAD + weights)
        fits = max(0, int(room // sequence))
        slots = -(-c.slots // c.data_parallel)
        return {"weights": weights, "cache, one sequence": sequence,
                "cache, what fits": min(fits, slots) * sequence}, fits

    def loading_memory(self, ranks):
        """Bytes of a node's own memory while so many ranks start: each loads the fp32 masters
        whole, before its shard of them goes to its device."""
        return 4 * self.weights * ranks

    def refusals(self, trainers, servers, ranks=0, beside=0):
        """Sentences on what cannot fit, each with its numbers and what to change. ranks: trainers
        on this node;  beside: servers on it."""
        found, have, room = [], self.device.memory, self.share(ranks, beside)
        if trainers and not self.trainer_fits(trainers, room):
            sizes = self.buffers(trainers)
            shared = "" if room == self.room else (
                f", shared by {counted(ranks, 'trainer')} and {counted(beside, 'server')}: "
                f"{room / GIB:.2f} for each trainer")
            parts = ", ".join(f"{size / GIB:.1f} for {name}"
                              for name, size in sizes.items() if size)
            found.append(f"a trainer needs about {sum(sizes.values()) / GIB:.1f} GiB, a "
                         f"{self.device.name} has {have / GIB:.0f}{shared}: {parts}; "
                         + self.cure(trainers, room))
        if self.loading_memory(ranks) > self.device.host:
            found.append(
                f"{counted(ranks, 'trainer')} on this machine, each loading the fp32 model, need "
                f"about {self.loading_memory(ranks) / GIB:.1f} GiB of its memory, which has "
                f"{self.device.host / GIB:.1f}: lower trainers, or spread them over more hosts")
        parts, fits = self.server_memory()
        if servers and not fits:
            found.append(
                f"a server needs about {parts['weights'] / GIB:.1f} GiB for its weights and "
                f"{parts['cache, one sequence'] / GIB:.2f} for the cache of one sequence of "
                f"{self.length} tokens, on a {self.device.name} of {have / GIB:.0f}: raise "
                f"tensor_parallel above {self.config.tensor_parallel}")
        return found

    # -- time ---------------------------------------------------------------------------------

    @property
    def generate_rate(self):
        """Tokens a second that one GPU of a server generates: a decode step reads all weights and
        caches, and computes; the slower of the two bounds it."""
        _, fits = self.server_memory()          # whole ones; on average they are not that long
        batch = max(1, min(fits * self.length / self.context,
                           -(-self.config.slots // self.config.data_parallel)))
        read = self.weights * self.itemsize + batch * self.context * self.kv_token
        compute = batch * (self.compute.token_flops + self.compute.look_flops * self.context)
        step_s = max(read / self.device.bandwidth, compute / self.device.flops) \
            / self.copy_gpus / DECODE_SHARE
        return batch / step_s / self.copy_gpus

    @property
    def train_rate(self):
        """Generated tokens a second that one GPU trains on: three forwards each, or four."""
        flops = self.compute.token_flops + self.compute.look_flops * self.context
        return TRAIN_SHARE * self.device.flops / (3 + self.recompute) / flops

    def step_s(self, trainers, server_gpus):
        """(generation, training) seconds of a step's tokens, each side alone."""
        c = self.config
        tokens = c.prompts_per_step * c.samples_per_prompt * self.mean_output
        return (tokens / self.generate_rate / max(1, server_gpus),
                tokens / self.train_rate / max(1, trainers))

    def checkpoint_s(self, trainers):
        """Seconds after which a trainer that was asked to stop is given up: its longest wait for
        others, the step under way (all outputs the longest, and twice slower than estimated), and
        fp32 weights and moments to the disk. Too long costs little, for a trainer's own deadlines
        end it if it hangs; too short costs the checkpoint."""
        _, train_s = self.step_s(trainers, 1)
        return self.config.deadline_s + 4 * train_s + 12 * self.weights / CHECKPOINT_RATE

    # -- both, in words -----------------------------------------------------------------------

    def text(self, trainers, servers, ranks):
        def gib(parts):
            return ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items() if size)
        needs, (parts, fits) = self.trainer_memory(trainers), self.server_memory()
        generate_s, train_s = self.step_s(trainers, servers * self.server_gpus)
        step = f"{generate_s + train_s:.3g} s a step, one after the other" if self.alone else \
            f"{max(generate_s, train_s):.3g} s a step, both at once"
        ours = self.alone or servers > 0        # else nothing is known of what generates
        return "\n".join([
            f"Estimates for {self.device.source} ({self.device.memory / GIB:.0f} GiB):",
            f"  {self.weights / 1e9:.3g} billion weights, sequences of up to {self.length} tokens, "
            f"outputs of {self.mean_output:.0f} on average (assumed: half the longest)",
            f"  a trainer, GiB: {sum(needs.values()) / GIB:.2f} = {gib(needs)}"
            + ("; layers are recomputed in the backward pass" if self.recompute else ""),
            f"  loading, GiB of this machine's own memory: "
            f"{self.loading_memory(ranks) / GIB:.2f} = {self.loading_memory(1) / GIB:.2f} for "
            f"each of {counted(ranks, 'trainer')}"
            + (f", of {self.device.host / GIB:.0f}" if self.device.host < math.inf else ""),
            f"  a server, GiB a device: {gib(parts)}; {fits} whole sequences fit, slots = "
            f"{-(-self.config.slots // self.config.data_parallel)}" if ours else
            "  a server: unknown, the servers are others'",
            f"  a step's tokens: {generate_s:.3g} s to generate, {train_s:.3g} s to train (at "
            f"{DECODE_SHARE:.0%} and {TRAIN_SHARE:.0%} of the device's speed, assumed): {step}"
            if ours else f"  a step's tokens: unknown to generate, {train_s:.3g} s to train (at "
            f"{TRAIN_SHARE:.0%} of the device's speed, assumed)"])


# ---------------------------------------------------------------------------------------------
# 3. Places


@dataclass(frozen=True)
class Server:
    """One vLLM server: its place and its address."""
    index: int
    node: int
    host: str
    port: int
    devices: tuple[int, ...]            # () on a CPU

    def url(self, config):
        return f"http{'s' * bool(config.tls)}://{self.host}:{self.port}"


@dataclass(frozen=True)
class Places:
    """Who runs where. Every node computes the same one from the same command."""
    hosts: tuple[str, ...]
    gpus: int                           # of each node; 0: CPUs
    trainers: int                       # of all nodes
    trainer_nodes: int                  # the first so many hosts have equally many each
    servers: tuple[Server, ...]
    why: str                            # the split and its reason, one line

    def trainers_on(self, node):
        return self.trainers // self.trainer_nodes if node < self.trainer_nodes else 0

    def servers_on(self, node):
        return sum(server.node == node for server in self.servers)


def wanted(config):
    """Does this command ask for more than the one process it runs in?"""
    started = LAUNCHED in os.environ or "RANK" in os.environ    # by us, torchrun or accelerate
    return not started and bool(
        config.gpus > 1 or config.servers or config.trainers > 1 or config.hosts)


def place(config, estimate, port=lambda: 0):
    """The `Places` that `config` asks for. `port()`: a free port of this machine, for servers on
    loopback. Raises PlaceError for what does not add up."""
    c = config
    hosts = tuple(h.strip() for h in c.hosts.split(",")) if c.hosts else ("127.0.0.1",)
    gpus = max(0, c.gpus)
    if not all(hosts) or len(set(hosts)) < len(hosts):
        raise PlaceError(f"hosts = {c.hosts!r}: should be different names or addresses, by commas")
    if not 0 <= c.node_rank < len(hosts):
        raise PlaceError(f"node_rank = {c.node_rank}: should be one of 0..{len(hosts) - 1}, the "
                         f"place of this machine in hosts = {c.hosts!r}")
    if c.engine == "transformers":
        raise PlaceError("engine = 'transformers': it works in the trainer's process alone; "
                         "servers are vLLM's, so use engine = \"vllm\" or \"auto\"")
    if c.vllm_url and c.servers:
        raise PlaceError(f"servers = {c.servers}: vllm_url names servers that others have "
                         "started; give one of the two")
    if c.tls:
        try:
            tls_context(c.tls)
        except ValueError as error:
            raise PlaceError(str(error)) from None
    elif not c.insecure_network and not set(hosts) <= set(LOOPBACK):
        raise PlaceError(f"hosts = {c.hosts!r}: servers that other machines can reach need tls = "
                         "FOLDER (make certs), or insecure_network = true on a network you trust")
    own = hosts[c.node_rank]
    if len(hosts) > 1 and (address_of(own) or own).startswith("127.") and not (
            own in LOOPBACK or own == address_of(own)):
        raise PlaceError(f"hosts = {c.hosts!r}: on this machine {own!r} is {address_of(own)}, "
                         "which no other one can reach (/etc/hosts?); give its address")
    size = estimate.server_gpus
    trainers, trainer_nodes, per_node, why = \
        on_gpus(c, estimate, hosts, gpus, size) if gpus else on_cpus(c, hosts)
    servers = []
    for node, count in enumerate(per_node):
        first = gpus - count * size         # trainers come first on a node that has both
        for i in range(count):
            devices = tuple(range(first + i * size, first + (i + 1) * size)) if gpus else ()
            servers.append(Server(len(servers), node, hosts[node],
                                  c.port + 10 + i if c.hosts else port(), devices))
    return Places(hosts, gpus, trainers, trainer_nodes, tuple(servers), why)


def on_gpus(c, estimate, hosts, gpus, size):
    """(trainers, nodes that have them, servers on each node, why)."""
    total = gpus * len(hosts)
    shape = f"{len(hosts)} x {gpus} GPUs" if len(hosts) > 1 else f"{gpus} GPUs"

    def fits(trainers):
        """Part of the first node, or whole nodes; servers fill the rest of each."""
        part = trainers % gpus
        return trainers > 0 and (not part or trainers < gpus) and (
            not part or (gpus - part) % size == 0) and (len(hosts) == 1 or gpus % size == 0)

    # More shards are smaller ones, so if all but one had no room for the model, none has, and the
    # refusal is the estimate's to word.
    roomy = estimate.trainer_fits(max(1, total - size))
    if c.vllm_url:
        trainers, why = c.trainers or total, "the servers are others'"
    elif c.trainers or c.servers:
        trainers, why = c.trainers or total - c.servers * size, "as asked for"
    else:
        _, trainers = split(total, estimate.generate_rate, estimate.train_rate, size,
                            lambda t: fits(t) and (estimate.trainer_fits(t) or not roomy))
        ideal = estimate.train_rate / estimate.generate_rate
        why = (f"a GPU generates about {estimate.generate_rate:,.0f} tokens a second and trains "
               f"on {estimate.train_rate:,.0f}, so {ideal / (1 + ideal):.0%} of them should "
               "generate; --servers and --trainers override this estimate")
    servers, left = divmod(total - trainers, size)
    if not (servers == left == 0 if c.vllm_url else
            servers > 0 and left == 0 and trainers > 0 and c.servers in (0, servers)):
        raise PlaceError(
            f"servers = {c.servers}, trainers = {c.trainers}: {shape} are to be all in use, by "
            f"{'trainers' if c.vllm_url else f'servers of {size} and trainers of 1'}")
    if not fits(trainers) and not c.vllm_url:
        raise PlaceError(
            f"trainers = {trainers}: on {shape} they take part of the first node, or whole nodes, "
            f"and servers of {size} GPUs the rest of each node")
    trainer_nodes = max(1, trainers // gpus)
    used = [min(gpus, max(0, trainers - node * gpus)) for node in range(len(hosts))]
    per_node = [0 if c.vllm_url else (gpus - n) // size for n in used]
    return trainers, trainer_nodes, per_node, (
        f"{shape}: {trainers} train, {servers * size} generate ({counted(servers, 'server')}): "
        + why)


def on_cpus(c, hosts):
    """The same, for hosts without GPUs."""
    servers = 0 if c.vllm_url else c.servers or 1
    trainers = c.trainers or 1
    server_nodes = min(servers, len(hosts) - 1)
    trainer_nodes = len(hosts) - server_nodes
    if trainers % trainer_nodes:
        raise PlaceError(f"trainers = {trainers}: {trainer_nodes} hosts should have equally many; "
                         f"the last {server_nodes} of {len(hosts)} have the servers")
    per_node = [0] * len(hosts)
    for i in range(servers):
        per_node[trainer_nodes + i % server_nodes if server_nodes else 0] += 1
    return trainers, trainer_nodes, per_node, (
        f"no GPU on {counted(len(hosts), 'host')}: {counted(trainers, 'trainer')}, "
        f"{counted(servers, 'server')}")


def counted(number, noun):
    return f"{number} {noun}{'s' * (number != 1)}"


# ---------------------------------------------------------------------------------------------
# 4. Nodes
#
# Every address follows from `hosts` and `port`, so no node has to be told anything. What is left
# is to end together: each launcher keeps one connection to that of the first host, the head. An
# empty line a second is a sign of life; "start ID" from the head says which start of a run this
# is, "end 0" is the run's exit status, "fail" to it means that a node cannot go on. A cut network
# is waited out until the deadline.

BEAT_S = 1.0
SILENT_S = 10.0                     # after so long we say whom we wait for
# Longer than the deadline: the trainer's own come first, and its sentence names rank and version.
LATER_S = 20.0


class Line:
    """One end of a connection between two launchers: lines of text, both ways."""

    def __init__(self, connection, *out):
        self.connection, self.heard = connection, time.monotonic()
        self.words, self.out = [], list(out)
        self.closing = self.lost = False
        connection.settimeout(BEAT_S / 5)
        self.thread = threading.Thread(target=self.talk, daemon=True)
        self.thread.start()

    def talk(self):
        """All of this connection's input and output: a TLS connection is one thread's."""
        beat, rest = 0.0, b""
        try:
            while not (self.closing and not self.out):
                while self.out:
                    self.connection.sendall(self.out[0].encode() + b"\n")
                    self.out.pop(0)
                if time.monotonic() - beat >= BEAT_S:
                    beat = time.monotonic()
                    self.connection.sendall(b"\n")
                try:
                    data = self.connection.recv(4096)
                except TimeoutError:
                    continue
                if not data or len(rest) > 4096:
                    break
                self.heard = time.monotonic()
                *lines, rest = (rest + data).split(b"\n")
                self.words += [line.decode(errors="replace") for line in lines if line]
        except OSError:
            pass                        # cut, reset, refused: a node connects again
        finally:
            self.connection.close()
            self.lost = True

    def close(self):
        """Say what is left to say, for a few seconds at most."""
        self.closing = True
        self.thread.join(5)


class Silence:
    """How long somebody has not been heard of: says so once, says when it is over, and raises
    LaunchError past the deadline."""

    def __init__(self, who, config):
        self.who, self.config, self.told = who, config, False
        self.began = time.monotonic()

    def look(self, heard):
        """heard: when, by time.monotonic(); None: never yet."""
        limit = self.config.start_deadline_s if heard is None else self.config.deadline_s + LATER_S
        silent = time.monotonic() - (self.began if heard is None else heard)
        if silent > limit:
            raise LaunchError(f"{self.who} has not been heard of for {limit:g} s: is its "
                              "launcher running, and is the network between us up?")
        if self.told != (silent > SILENT_S):
            self.told = not self.told
            say(f"{self.who} is silent; waiting for it, {limit:g} s at most" if self.told
                else f"{self.who} is there")


class Head:
    """The first host's side: `watch` fails the run with a node, `close` ends them with the run."""

    def __init__(self, config, hosts):
        self.context = tls_context(config.tls, ssl.Purpose.CLIENT_AUTH) if config.tls else None
        self.lines, self.nodes, self.id = [], {}, secrets.token_hex(8)
        self.silences = {i: Silence(f"node {i} ({host})", config)
                         for i, host in enumerate(hosts) if i}
        try:
            self.listener = socket.create_server((hosts[0], config.port))
        except OSError as error:
            raise PlaceError(f"hosts = {config.hosts!r}, port = {config.port}: this machine, the "
                             f"first, cannot listen there ({error})") from None
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, address = self.listener.accept()
            except OSError:
                return                                  # closed: the run is over
            try:
                if self.context:
                    connection.settimeout(5)            # for a handshake
                    connection = self.context.wrap_socket(connection, server_side=True)
                self.lines.append(Line(connection, f"start {self.id}"))
            except OSError as error:
                say(f"refused a connection from {address[0]}: {error}")
                connection.close()

    def watch(self):
        for line in self.lines:
            while line.words:
                word, _, rest = line.words.pop(0).partition(" ")
                if word == "node" and rest.isdecimal() and int(rest) in self.silences:
                    self.nodes[int(rest)] = line
                elif word == "fail":
                    who = [self.silences[i].who for i, known in self.nodes.items()
                           if known is line]
                    raise LaunchError(f"{', '.join(who) or 'a node'} has failed: {rest}")
        for i, silence in self.silences.items():
            silence.look(self.nodes[i].heard if i in self.nodes else None)

    def failed(self, why):
        """Rank 0 is on this node, and all others end with it."""

    def close(self, status):
        self.listener.close()
        for line in self.lines:
            line.out.append(f"end {status}")
            line.close()


class Node:
    """Another host's side: `watch` returns the run's exit status when the head says it.

    Of a first host that was killed nobody hears an end. The launcher that listens there next is
    another start's: not a word is said to that one, and this node ends, so that its servers leave
    their GPUs and ports.
    """

    def __init__(self, config, hosts):
        self.context = tls_context(config.tls) if config.tls else None
        self.address, self.rank = (hosts[0], config.port), config.node_rank
        self.silence = Silence(f"the first host ({hosts[0]}:{config.port})", config)
        self.heard, self.line, self.over = None, None, threading.Event()
        self.start, self.replaced = None, False
        threading.Thread(target=self.connect, daemon=True).start()

    def connect(self):
        """Keep a connection to the head; start again whenever it is lost."""
        while not self.over.wait(0.5):
            if self.line and not self.line.lost:
                continue
            try:
                connection = socket.create_connection(self.address, timeout=5)
                if self.context:
                    connection = self.context.wrap_socket(connection,
                                                          server_hostname=self.address[0])
            except ssl.SSLCertVerificationError as error:
                say(f"{self.silence.who} shows a certificate that is not its own: {error}")
            except OSError:
                pass                    # not there yet, or cut off: `watch` knows for how long
            else:
                line = Line(connection)
                while not (line.words or line.lost or self.over.wait(0.02)):
                    pass
                start = line.words[0] if line.words else None   # what a head says first
                if start and start == (self.start or start):
                    self.start = start
                    line.out.append(f"node {self.rank}")
                    self.line = line
                else:
                    line.close()
                    self.replaced = bool(start)

    def watch(self):
        line = self.line
        if self.replaced:
            say(f"{self.silence.who} has been started again: this node's part in the run before "
                "is over")
            return 1
        if line:
            self.heard = line.heard
            for word, _, rest in (words.partition(" ") for words in list(line.words)):
                if word == "end":
                    say(f"the run has ended with exit status {rest}")
                    return int(rest) if rest in ("0", "130", "143") else 1
        self.silence.look(self.heard)

    def failed(self, why):
        """Tell the head, which asks rank 0 for a checkpoint; our ranks are still there for it."""
        if self.line:
            self.line.out.append(f"fail {why}")

    def close(self, status):
        self.over.set()
        if self.line and status:
            self.line.out.append(f"fail its launcher ended with exit status {status}; its own "
                                 "output says why")
        if self.line:
            self.line.close()


# ---------------------------------------------------------------------------------------------
# 5. Launch


def free_ports():
    """Ports of the loopback that nobody listens on, each given once; another launcher that looks
    for some at this moment finds others. Below 32768, where the kernel's range for outgoing
    connections starts: a client that calls a dead server again and again would one day be given
    the server's own port, connect to itself, and keep the server from coming back."""
    while True:
        port = random.randrange(10000, 32768)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue                            # taken
        yield port


def address_of(host):
    """The IPv4 address that a name has on this machine, or None."""
    try:
        return socket.gethostbyname(host)
    except socket.gaierror:
        return None


def interface_of(host):
    """The name of this machine's network interface that has the host's address, or None: a name
    that is not known here, or another machine's.

    >>> interface_of("127.0.0.1")
    'lo'
    """
    address = address_of(host)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for _, name in socket.if_nameindex():
            try:        # <linux/sockios.h>: SIOCGIFADDR
                answer = fcntl.ioctl(s, 0x8915, struct.pack("256s", name.encode()))
            except OSError:
                continue                                # an interface without an IPv4 address
            if socket.inet_ntoa(answer[20:24]) == address:
                return name


def commands(config, argv, places, estimate, *, dtype, folder, port):
    """(trainer or None, servers, logs) of this node: Children, not started, and the log files of
    the ranks that have no terminal.

    argv    the command line of scalerl.py, passed on to the trainers
    dtype   the generators'
    port    () -> a free port, for the trainers' rendezvous on one machine
    """
    c, node, logs = config, config.node_rank, folder / "logs"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    # gloo and NCCL would take the address of the machine's name, or its first interface: often not
    # the network that `hosts` means.
    wire = interface_of(places.hosts[node]) if len(places.hosts) > 1 else None
    network = {name: os.environ.get(name, wire)
               for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")} if wire else {}

    def devices(numbers):               # of the GPUs that we may use, which may not start at 0
        return ",".join(visible[i] if visible[0] and i < len(visible) else str(i) for i in numbers)
    servers = []
    # A trainer and a server with a thread a core each would stand in each other's way.
    share = str(max(1, len(os.sched_getaffinity(0)) // (places.trainers_on(node)
                                                        + places.servers_on(node))))
    for server in places.servers:
        if server.node == node:
            command, env = server_command(
                c, model=c.model, length=estimate.length, slots=-(-c.slots // c.data_parallel),
                dtype=dtype, host=server.host, port=server.port,
                device=devices(server.devices) if server.devices else None)
            if not server.devices:
                env.setdefault("OMP_NUM_THREADS", share)
            servers.append(Child(f"server {server.index} ({server.url(c)})", command, env | network,
                                 log=logs / f"server_{server.index}.log"))
    here = places.trainers_on(node)
    if not here:
        return None, servers, []
    script = [str(Path(__file__).with_name("scalerl.py")),
              *(word for word in argv if word != "--dry-run")]
    if places.servers:
        script += ["--vllm-url", ",".join(s.url(c) for s in places.servers)]
    if estimate.recompute and not c.recompute_layers:
        script += ["--recompute-layers", "true"]
    env = os.environ | network | {LAUNCHED: "1"}
    if places.gpus:
        env["CUDA_VISIBLE_DEVICES"] = devices(range(here))
    else:                               # on the same cores as the servers
        env.setdefault("OMP_NUM_THREADS", share)
    if places.trainers == 1:
        return Child("the trainer", [sys.executable, *script], env), servers, []
    # --multi_gpu is what makes accelerate's launcher start several processes, without GPUs too:
    # with --cpu it starts one. ranks.py says what they compute on, and brings FSDP2's settings.
    start = [str(Path(__file__).with_name("agent.py")), "--multi_gpu", "--gpu_ids", "all",
             "--num_machines", str(places.trainer_nodes), "--machine_rank", str(node),
             "--num_processes", str(places.trainers), "--main_process_ip", places.hosts[0],
             "--main_process_port", str(c.port + 1 if c.hosts else port()),
             "--mixed_precision", "no", "--dynamo_backend", "no"]
    ranks = range(node * here, node * here + here)
    name = f"ranks {ranks[0]} to {ranks[-1]}" if here > 1 else f"rank {ranks[0]}"
    return (Child(f"the trainer ({name})", [sys.executable, *start, *script], env,
                  ranks=True), servers, [rank_log(folder, rank) for rank in ranks if rank])


def rank_log(folder, rank):
    return folder / "logs" / f"rank_{rank}.log"


def keep_quiet(folder):
    """Called by every trainer rank first: what ranks other than 0 print goes to a file, so that
    there is one progress line."""
    rank = int(os.environ.get("RANK", 0))
    if rank:
        rank_log(folder, rank).parent.mkdir(parents=True, exist_ok=True)
        with open(rank_log(folder, rank), "ab") as log:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)


def check_machine(config):
    """Raises PlaceError: what the command asks of this machine is not there."""
    if config.gpus > torch.cuda.device_count():
        raise PlaceError(f"gpus = {config.gpus}: torch finds {torch.cuda.device_count()} here")
    if wanted(config) and not config.vllm_url and importlib.util.find_spec("vllm") is None:
        raise PlaceError("servers need vllm, which is not installed here: run `make vllm`")


def probe_compile(config, device):
    """Before minutes of starting: does torch.compile work here? In a process of its own, for one
    that has touched a GPU keeps memory there until it ends. Raises PlaceError: it does not."""
    try:
        probe = subprocess.run(
            [sys.executable, "-c", f"import policy; policy.check_compile({device!r})"], text=True,
            cwd=Path(__file__).parent, capture_output=True, timeout=config.start_deadline_s)
    except subprocess.TimeoutExpired:
        raise PlaceError("compile_layers = true: torch.compile does not end within "
                         f"start_deadline_s = {config.start_deadline_s:g}") from None
    if probe.returncode:
        raise PlaceError(probe.stderr.strip().splitlines()[-1].removeprefix("ValueError: "))


def launch(config, argv, estimate, *, dtype, folder):
    """Start what `config` asks for on this node and run until it ends. Returns the exit status.
    Raises PlaceError for what does not add up or does not fit."""
    check_machine(config)
    ports, node = free_ports(), config.node_rank
    places = place(config, estimate, ports.__next__)
    if refusals := estimate.refusals(places.trainers, len(places.servers),
                                     places.trainers_on(node), places.servers_on(node)):
        raise PlaceError("; ".join(refusals))
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    trainer, servers, logs = commands(config, argv, places, estimate, dtype=dtype, folder=folder,
                                      port=ports.__next__)
    _, fits = estimate.server_memory()
    if places.servers and fits * config.data_parallel < config.slots:
        say(f"warning: about {fits * config.data_parallel} sequences of full length fit in a "
            f"server's cache, slots = {config.slots}: if more grow that long, vLLM throws some out "
            "and computes them again")
    link = None
    if len(places.hosts) > 1:
        link = (Node if config.node_rank else Head)(config, places.hosts)
    say(places.why)
    if servers:
        say(f"logs in {folder / 'logs'}; " + ", ".join(server.name for server in servers))
    status = 1
    try:
        status = supervise(trainer, servers, logs=logs, leads=not node,
                           checkpoint_s=estimate.checkpoint_s(places.trainers),
                           **{"watch": link.watch, "failed": link.failed} if link else {})
    finally:
        if link:
            link.close(status)
    return status


def describe(config, argv, estimate, *, dtype, folder):
    """Print --dry-run: who would run where, with what memory, how fast, by which commands. Raises
    PlaceError as `launch` does, but only after that."""
    places, children = None, []
    if wanted(config):
        places = place(config, estimate)
        trainer, children, _ = commands(config, argv, places, estimate, dtype=dtype,
                                        folder=folder, port=lambda: 0)
        children = [trainer] * bool(trainer) + children
        print(f"{places.why}. Port 0 below stands for a free one.\n")
        table = roles(config, places, folder)
    else:
        device = "GPU 0" if estimate.cuda else "CPU"
        table = [("process", "devices"), ("trainer and sampler, in this one", device)]
    widths = [max(map(len, column)) for column in zip(*table)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    node = config.node_rank
    trainers, servers, ranks, beside = (
        places.trainers, len(places.servers), places.trainers_on(node), places.servers_on(node)
    ) if places else (1, 1, 1, 0)
    print("\n" + estimate.text(trainers, servers, ranks))
    if children:
        print("\nCommands of this node:")
    for child in children:
        changed = {k: v for k, v in child.env.items() if os.environ.get(k) != v}
        print(" ", *(f"{k}={shlex.quote(v)}" for k, v in changed.items()),
              shlex.join(map(str, child.argv)))
    if torch.cuda.is_available():               # else a run on another machine is planned here
        check_machine(config)
    if refusals := estimate.refusals(trainers, servers if places else 0, ranks, beside):
        raise PlaceError("; ".join(refusals))


def roles(config, places, folder):
    """Rows of text: every process of the run, on all nodes."""
    rendezvous = "-" if places.trainers == 1 else f"{places.hosts[0]}:{config.port + 1}" \
        if config.hosts else "a free port"
    rows = [("process", "host", "devices", "address", "log")]
    each = places.trainers_on(0)
    for rank in range(places.trainers):
        rows.append((f"trainer {rank}", places.hosts[rank // each],
                     f"GPU {rank % each}" if places.gpus else "CPU", rendezvous,
                     str(rank_log(folder, rank)) if rank else "the terminal"))
    for server in places.servers:
        devices = "GPU " + ",".join(map(str, server.devices)) if server.devices else "CPU"
        rows.append((f"server {server.index}", server.host, devices,
                     server.url(config) if server.port else "a free port of the loopback",
                     str(folder / "logs" / f"server_{server.index}.log")))
    return rows
