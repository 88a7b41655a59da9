"""scaleout/supervise.py: the processes of a run end together, however it ends.

vLLM starts an engine and workers in sessions of their own, which neither the terminal's Ctrl-C nor
a SIGKILL of the launcher reaches. So every command runs under `python supervise.py COMMAND ...`,
the reaper, a process that Linux calls a subreaper: a descendant that loses its parent becomes the
reaper's own child, so psutil finds all of them. The reaper's standard input is a pipe from the
launcher. A byte on it is the number of a signal for the command. Its end means that the launcher is
gone, or has lost patience: everything is killed. Ours; nothing large is imported, for each command
has a reaper.
"""

import contextlib
import ctypes
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36        # <linux/prctl.h>
LIBC = ctypes.CDLL(None)
GRACE_S = 15.0                      # between SIGTERM and SIGKILL
# A dead server is started again, but not after its third death within so many seconds.
DEATHS_WITHIN_S = 600.0
# Of a trainer that was stopped and has written its checkpoint.
STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)


def reap(argv):
    """Run the command `argv`, and kill what it leaves behind. Returns its exit status, or 128 + n
    if signal n ended it."""
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # A scheduler signals every process of a job, but only the launcher decides what follows. Not
    # SIG_IGN, because the command would inherit that.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    command = subprocess.Popen(         # if this process gets a SIGKILL, so does the command
        argv, stdin=subprocess.DEVNULL,
        preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))

    def obey():
        while order := os.read(0, 1):
            command.send_signal(order[0])
        command.kill()
    threading.Thread(target=obey, daemon=True).start()
    status = command.wait()
    while left := psutil.Process().children(recursive=True):    # one may fork while others die
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1)
    return status if status >= 0 else 128 - status


class Child:
    """One command under its reaper, with everything that the command starts. log: file for its
    output; None: our own terminal."""

    def __init__(self, name, argv, env=None, *, log=None):
        self.name, self.argv, self.env, self.log = name, argv, env, log
        self.hangs = log and Path(log).with_suffix(".hangs")    # a file, when the trainer says so
        self.process, self.log_start, self.deaths = None, 0, []

    def start(self):
        if self.hangs:
            self.hangs.unlink(missing_ok=True)              # of an earlier process
        with open(self.log, "ab", 0) if self.log else contextlib.nullcontext() as output:
            self.log_start = output.tell() if output else 0     # after what an earlier start wrote
            self.process = subprocess.Popen(
                [sys.executable, __file__, *map(str, self.argv)], env=self.env, bufsize=0,
                stdin=subprocess.PIPE, stdout=output, stderr=output,
                start_new_session=True)         # the terminal's Ctrl-C is ours to pass on

    @property
    def status(self):
        """None while it runs; then its exit status, 128 + n if signal n ended it."""
        return self.process.poll()

    def send(self, number):
        with contextlib.suppress(BrokenPipeError, ValueError):      # it has ended, or will
            self.process.stdin.write(bytes([number]))

    def kill(self):
        self.process.stdin.close()

    def ending(self, lines=12):
        """How it has ended, with the last lines of its log."""
        words = f"{self.name} has ended with exit status {self.status}" + (
            " (killed; out of memory? dmesg would say)" if self.status == 137 else "")
        if not self.log:
            return words
        text = Path(self.log).read_bytes()[self.log_start:].decode(errors="replace").strip()
        return "\n    ".join([f"{words}; the end of {self.log}:", *text.splitlines()[-lines:]])

    def restart(self):
        """Start it again, unless it has ended too often. Says what it does, and returns it."""
        now = time.monotonic()
        self.deaths = [then for then in self.deaths if now - then < DEATHS_WITHIN_S] + [now]
        if len(self.deaths) == 3:
            say(f"for the third time in {DEATHS_WITHIN_S / 60:g} minutes {self.ending()}")
            return False
        say(f"is started again: {self.ending(lines=1)}")
        if "--seed" in self.argv:               # with the old one it would draw the same samples
            self.argv[self.argv.index("--seed") + 1] = str(secrets.randbits(32))
        self.start()
        return True


def say(sentence):
    print(f"launcher: {sentence}", file=sys.stderr, flush=True)


class Supervisor:
    """One machine's trainers (rank 0 first) and servers, from start to end: lists of Children.

    Ctrl-C, or the SIGTERM of a cluster's scheduler, goes on to rank 0, which ends its step, writes
    a checkpoint and ends; so it does when the run cannot go on. A second signal ends all at once.
    Without trainers (--serve-only) the first signal does, and so does a server that ends: the
    trainers are others', and wait for it no longer than their deadline. After a SIGKILL to this
    process the reapers end all.
    """

    def __init__(self, trainers, servers):
        self.trainers, self.servers = trainers, servers
        self.signals = []               # all that have come
        self.status = None              # the run's, from when it is to end with a checkpoint

    def run(self):
        """Returns the exit status of the run when every process has ended."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: self.signals.append(number))
        try:
            for child in (*self.servers, *self.trainers):
                child.start()
            while (status := self.look()) is None:
                time.sleep(0.1)
            return status
        finally:
            self.end()

    def look(self):
        """One look at everybody: the exit status of the run, None while it goes on."""
        if len(self.signals) > 1 or self.signals and not self.trainers:
            return 128 + self.signals[-1]
        ended = [trainer for trainer in self.trainers if trainer.status is not None]
        stopping = self.signals or self.status is not None
        for trainer in ended:
            # By a signal that nobody has sent to the launcher, a trainer has failed.
            if trainer.status and not (stopping and trainer.status in STOPPED):
                say(trainer.ending())
                return 2 if trainer.status == 2 else 1              # 2: bad input
        if self.trainers and len(ended) == len(self.trainers):
            return self.status or ended[0].status
        if self.signals and self.status is None:
            self.finish(128 + self.signals[0])
        for server in self.servers:
            if server.hangs and server.hangs.exists():
                say(f"{server.name} hangs, and is ended")
                server.hangs.unlink()
                server.kill()
            if server.status is None or self.status is not None:
                continue
            if not self.trainers:
                say(server.ending())
                return 1
            if not server.restart():
                self.finish(1)

    def finish(self, status):
        """The run ends with this status as soon as rank 0 has saved what it has. One that hangs
        ends by its own deadline."""
        self.status = status
        say("waiting for rank 0's last checkpoint; Ctrl-C again ends every process at once")
        self.trainers[0].send(signal.SIGINT)

    def end(self):
        """End all of them, at once after a second signal; returns when they are gone."""
        children = [child for child in (*self.servers, *self.trainers) if child.process]
        deadline = time.monotonic() + GRACE_S
        for child in children:
            child.send(signal.SIGTERM)
        while any(child.status is None for child in children):
            if len(self.signals) > 1 or time.monotonic() > deadline:
                for child in children:
                    child.kill()
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(reap(sys.argv[1:]))
