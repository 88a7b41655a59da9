"""scaleout/nodes.py: the launchers of several nodes end together.

Every address follows from `hosts` and `port`, so no node has to be told where anything is. One fact
is left: the run goes on, or it has ended. The first host serves a torch TCPStore on `port`, which
is also the rendezvous of the trainers' ranks. The launchers have four kinds of keys in it:

    start       a random id of this start of the run
    alive I     a counter that node I raises every second
    failed      the reason why some node cannot go on
    ended       the exit status of the run

A TCPStore knows neither TLS nor passwords: private networks only. A cut network is waited out
until the deadline. Ours.
"""

import secrets
import socket
import threading
import time
from datetime import timedelta

from torch.distributed import DistError, TCPStore

from config import ConfigError
from scaleout.supervise import LaunchError, say

BEAT_S = 1.0
SILENT_S = 10.0                     # after so long we say that we wait
# Beyond the trainer's own deadlines, one for an answer of a server and one for its return: the
# trainer's sentence comes first and names rank, server and version.
LATER_S = 20.0
ANSWER_S = timedelta(seconds=5)     # of the store, where torch has a limit at all


def serve_store(host, port=0):
    """A TCPStore that listens on this address; torch alone would take all of the machine's."""
    return TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=ANSWER_S,
                    master_listen_fd=socket.create_server((host, port)).detach())


class Link:
    """One launcher's link to the others: the first host hears every node, each of them the first.

    A first host that was killed says nothing. The launcher that listens there next has another id:
    all others tell it nothing and end, so that their GPUs and ports are free for the new start.
    Raises ConfigError: the first host cannot listen on its address.
    """

    def __init__(self, config, hosts):
        self.config, self.hosts, self.rank = config, hosts, config.node_rank
        others = [0] if self.rank else range(1, len(hosts))
        self.heard = {i: (0, time.monotonic()) for i in others}     # a counter, when it last moved
        self.silent = set()                         # those of whom we have said so
        self.failure = self.ended = self.why = None
        self.closing = threading.Event()
        if not self.rank:
            try:
                self.store = serve_store(hosts[0], config.port)
            except OSError as error:
                raise ConfigError(f"hosts = {config.hosts!r}, port = {config.port}: this machine, "
                                  f"the first, cannot listen there ({error})") from None
            self.store.set("start", secrets.token_hex(8))
        # A thread of its own, because behind a cut cable a call of the store may have no end.
        self.thread = threading.Thread(target=self.talk, daemon=True)
        self.thread.start()

    def talk(self):
        """Exchange signs of life; connect again whenever the connection is lost."""
        address, start, over = (self.hosts[0], self.config.port), None, False
        while not over and self.ended is None:
            try:
                socket.create_connection(address, timeout=5).close()    # torch's own try is noisy
                store = TCPStore(*address, is_master=False, wait_for_workers=False,
                                 timeout=ANSWER_S)
                start = start or store.get("start")
                if store.get("start") != start:
                    say("the first host has been started again: this node ends")
                    self.ended = 1
                    return
                while not over and self.ended is None:
                    over = self.closing.is_set()
                    self.exchange(store)
                    self.closing.wait(BEAT_S)
            except (OSError, DistError):
                over = self.closing.wait(0.5)   # not there yet, or cut off: `watch` counts how long

    def exchange(self, store):
        store.add(f"alive {self.rank}", 1)
        for i, (before, _) in self.heard.items():
            if (counter := store.add(f"alive {i}", 0)) != before:
                self.heard[i] = counter, time.monotonic()
                self.silent.discard(i)
        if self.why:
            store.set("failed", f"{self.name(self.rank)} has failed: {self.why}")
        if store.check(["failed"]):
            self.failure = store.get("failed").decode()
        if store.check(["ended"]):
            self.ended = int(store.get("ended"))

    def name(self, node):
        return f"node {node} ({self.hosts[node]})"

    def watch(self):
        """The exit status of the run, None while it goes on. Raises LaunchError: a node has failed,
        or is silent past the deadline; to start, all have three times as long."""
        if self.ended is not None:
            return self.ended if self.ended in (0, 130, 143) else 1
        if self.failure and not self.rank:      # the others' ranks are needed for a checkpoint
            raise LaunchError(self.failure)
        for i, (counter, moved) in self.heard.items():
            silent_s, who = time.monotonic() - moved, self.name(i)
            limit = (2 if counter else 3) * self.config.deadline_s + LATER_S * bool(counter)
            if silent_s > limit:
                raise LaunchError(f"{who} has not been heard of for {limit:g} s: is its launcher "
                                  "running, and is the network between us up?")
            if silent_s > SILENT_S and i not in self.silent:
                self.silent.add(i)
                say(f"{who} is silent; waiting for it, {limit:g} s at most")

    def failed(self, why):
        """Tell the first host, which asks rank 0 for a checkpoint; our ranks still take part."""
        self.why = self.rank and why

    def close(self, status):
        """Leave the exit status to all nodes, and some seconds to read it."""
        if self.rank and status and not self.why:
            self.why = f"its launcher ended with exit status {status}; its own output says why"
        self.closing.set()
        self.thread.join(5)
        if not self.rank:
            self.store.set("ended", str(status))
            time.sleep(3 * BEAT_S)
            self.store = None
