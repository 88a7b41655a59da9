"""scaleout/nodes.py: the launchers of several nodes end together.

Every address follows from `hosts` and `port`, so no node has to be told where anything is. One fact
is left: the run goes on, or it has ended. The first host serves a torch TCPStore on `port`, which
is also the rendezvous of the trainers' ranks. Its launcher has two keys in it, for all others:

    start       a random id of this start of the run
    ended       the exit status of the run

The first host asks for nothing: its trainer notices when a rank or a server is gone. A TCPStore
knows neither TLS nor passwords: private networks only. A cut network is waited out until the
deadline. Ours.
"""

import secrets
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


def serve_store(host, port=0):
    """A TCPStore that listens on this address; torch alone would take all of the machine's."""
    return TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=ANSWER_S,
                    master_listen_fd=socket.create_server((host, port)).detach())


class Link:
    """Between the launchers: the first host says how the run has ended, all others ask it.

    A first host that was killed says nothing. The launcher that listens there next has another id:
    then the others end, so that their GPUs and ports are free for the new start. Raises
    ConfigError: the first host cannot listen on its address.
    """

    def __init__(self, config, hosts):
        self.config, self.hosts, self.rank = config, hosts, config.node_rank
        self.ended, self.heard, self.silent = None, time.monotonic(), False
        if self.rank == 0:
            try:
                self.store = serve_store(hosts[0], config.port)
            except OSError as error:
                raise ConfigError(f"hosts = {config.hosts!r}, port = {config.port}: this machine, "
                                  f"the first, cannot listen there ({error})") from None
            self.store.set("start", secrets.token_hex(8))
        else:
            # A thread, because behind a cut cable a call of the store may have no end.
            threading.Thread(target=self.ask, daemon=True).start()

    def ask(self):
        """Ask the first host every second; connect again whenever the connection is lost."""
        address, store, start = (self.hosts[0], self.config.port), None, None
        while self.ended is None:
            try:
                if store is None:
                    socket.create_connection(address, timeout=5).close()    # torch's try is noisy
                    store = TCPStore(*address, is_master=False, wait_for_workers=False,
                                     timeout=ANSWER_S)
                    start = start or store.get("start")
                    if store.get("start") != start:
                        say("the first host has been started again: this node ends")
                        self.ended = 1
                elif store.check(["ended"]):
                    self.ended = int(store.get("ended"))
                self.heard = time.monotonic()
            except (OSError, DistError):
                store = None            # not there yet, or cut off: `watch` counts how long
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
            time.sleep(3 * ASK_S)
            self.store = None
