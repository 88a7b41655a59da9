"""scaleout/nodes.py: the launchers of several nodes end together.

Every address follows from `hosts` and `port`, so no node has to be told where anything is. One fact
is left: the run goes on, or it has ended. The first host serves a torch TCPStore on `port`, which
is also the rendezvous of the trainers' ranks. In the end its launcher leaves the exit status of the
run there, as "ended", for all others. The first host asks for nothing: its trainer notices when a
rank or a server is gone. A TCPStore knows neither TLS nor passwords: private networks only. A cut
network is waited out until the deadline. Ours.
"""

import socket
import threading
import time
from datetime import timedelta

from torch.distributed import DistError, TCPStore

from config import ConfigError
from scaleout.supervise import LaunchError, say

ASK_S = 1.0
SILENT_S = 10.0                     # after so long we say that we wait
LATER_S = 20.0                      # the trainers' own deadlines, and their sentences, come first
ANSWER_S = timedelta(seconds=5)     # of the store, where torch has a limit at all


class Link:
    """Between the launchers: the first host says how the run has ended, all others ask it. `port`
    is the store's on the first host. Raises ConfigError: that one cannot listen on its address."""

    def __init__(self, config, hosts):
        self.config, self.hosts, self.rank = config, hosts, config.node_rank
        self.ended, self.heard, self.silent = None, time.monotonic(), False
        self.port = config.port if config.hosts else 0      # 0: a free one
        if self.rank == 0:
            try:            # torch itself would listen on all of the machine's addresses
                listener = socket.create_server((hosts[0], self.port))
            except OSError as error:
                raise ConfigError(f"hosts = {config.hosts!r}, port = {config.port}: this machine, "
                                  f"the first, cannot listen there ({error})") from None
            self.port = listener.getsockname()[1]
            self.store = TCPStore(hosts[0], self.port, is_master=True, wait_for_workers=False,
                                  timeout=ANSWER_S, master_listen_fd=listener.detach())
        else:
            # A thread, because behind a cut cable a call of the store may have no end.
            threading.Thread(target=self.ask, daemon=True).start()

    def ask(self):
        """Ask the first host every second; connect again whenever the connection is lost."""
        address, store, met = (self.hosts[0], self.port), None, False
        while self.ended is None:
            try:
                if store is None:
                    socket.create_connection(address, timeout=5).close()    # torch's try is noisy
                    store = TCPStore(*address, is_master=False, wait_for_workers=False,
                                     timeout=ANSWER_S)
                if store.check(["ended"]):
                    self.ended = int(store.get("ended"))
                self.heard, met = time.monotonic(), True
            except (OSError, DistError) as error:
                store = None            # not there yet, or cut off: `watch` counts how long
                if met and isinstance(error, ConnectionRefusedError):   # a port without a listener
                    say("the first host's launcher is gone, perhaps by SIGKILL: this node ends")
                    self.ended = 1      # its GPUs and ports are free for the next start
            time.sleep(ASK_S)

    def watch(self):
        """The exit status of the run, None while it goes on. Raises LaunchError: the first host has
        been silent for as long as a start may take, and a little longer."""
        silent_s, limit = time.monotonic() - self.heard, self.config.start_deadline_s + LATER_S
        if self.rank and silent_s > limit:
            raise LaunchError(f"the first host, {self.hosts[0]}, has not been heard of for "
                              f"{limit:g} s: is its launcher running, and the network up?")
        if self.rank and silent_s > SILENT_S and not self.silent:
            say(f"the first host, {self.hosts[0]}, is silent; waiting for it, {limit:g} s at most")
        self.silent = silent_s > SILENT_S
        return self.ended

    def close(self, status):
        """Leave the exit status to all nodes, and some seconds to read it."""
        if self.rank == 0:
            self.store.set("ended", str(status))
            time.sleep(3 * ASK_S * (len(self.hosts) > 1))
            self.store = None
