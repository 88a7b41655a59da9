"""scaleout/supervise.py: the processes of a run end together, however it ends.

vLLM starts an engine and workers in sessions of their own. Neither a process group nor the
terminal's Ctrl-C reaches them, and a SIGKILL of the launcher would leave them on their GPUs. So
every command runs under `python supervise.py COMMAND ...`, the reaper, a process that Linux calls a
subreaper: a descendant that loses its parent becomes the reaper's own child, so psutil finds all
of them. The reaper's standard input is a pipe from the launcher. A byte on it is the number of a
signal for the command. Its end means that the launcher is gone, perhaps by SIGKILL, or has lost
patience: everything is killed. Ours; nothing large is imported, for each command has a reaper.
"""

import contextlib
import ctypes
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36        # <linux/prctl.h>
LIBC = ctypes.CDLL(None)
STARTED = "--- started ---"         # stands in a log before what each start writes
GRACE_S = 15.0                      # between SIGTERM and SIGKILL
# A dead server is started again, but not after its third death within so many seconds.
DEATHS_WITHIN_S = 600.0

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
    status, over = None, False
    while True:
        try:
            ended, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:                       # nobody is left
            return status if status >= 0 else 128 - status
        if ended == command.pid:
            status = os.waitstatus_to_exitcode(code)
        if ended:
            continue
        if status is not None or over:  # again and again: one may fork while others are killed
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(0.02)
        elif select.select([0], [], [], 0.1)[0]:
            order = os.read(0, 1)
            over = not order
            if order:
                os.kill(command.pid, order[0])


class LaunchError(RuntimeError):
    """A process that the run needs is gone for good: the sentence names it and its log."""


class Child:
    """One command under its reaper, with everything that the command starts.

    name   for people: "server 1";  log: file for its output; None: our own terminal
    """

    def __init__(self, name, argv, env=None, *, log=None):
        self.name, self.argv, self.env, self.log = name, argv, env, log
        self.process, self.deaths = None, []

    def start(self):
        with open(self.log, "ab", 0) if self.log else contextlib.nullcontext() as output:
            if output:
                output.write(f"{STARTED}\n".encode())
            self.process = subprocess.Popen(
                [sys.executable, __file__, *map(str, self.argv)], env=self.env, bufsize=0,
                stdin=subprocess.PIPE, stdout=output, stderr=output,
                start_new_session=True)         # the terminal's Ctrl-C is ours to pass on

    @property
    def status(self):
        """None while it runs; then its exit status, 128 + n if signal n ended it."""
        return self.process.poll()

    def send(self, number):
        with contextlib.suppress(BrokenPipeError):      # it has just ended
            self.process.stdin.write(bytes([number]))

    def kill(self):
        self.process.stdin.close()

    def ending(self, lines=12):
        """How it has ended, with the last lines of its log."""
        words = f"{self.name} has ended with exit status {self.status}" + (
            " (killed; out of memory? dmesg would say)" if self.status == 137 else "")
        if not self.log:
            return words
        text = Path(self.log).read_text(errors="replace").rpartition(STARTED)[2].strip()
        return "\n    ".join([f"{words}; the end of {self.log}:", *text.splitlines()[-lines:]])

    def restart(self):
        """Start it again. Raises LaunchError if it has ended too often."""
        now = time.monotonic()
        self.deaths = [then for then in self.deaths if now - then < DEATHS_WITHIN_S] + [now]
        if len(self.deaths) == 3:
            raise LaunchError(f"for the third time in {DEATHS_WITHIN_S / 60:g} minutes "
                              + self.ending())
        say(f"is started again: {self.ending(lines=1)}")
        self.kill()
        if "--seed" in self.argv:               # with the old one it would draw the same samples
            self.argv[self.argv.index("--seed") + 1] = str(secrets.randbits(32))
        self.start()


def say(sentence):
    print(f"launcher: {sentence}", file=sys.stderr, flush=True)


class Supervisor:
    """One node's trainers (rank 0 first) and servers, from start to end: lists of Children.

    link    to the other nodes, nodes.py's `Link`

    Ctrl-C, or the SIGTERM of a cluster's scheduler, goes on to rank 0, which ends its step, writes
    a checkpoint and ends; so it does when the run cannot go on. A second signal ends all at once.
    The other nodes end with the first, whose launcher has to get the signal too. After a SIGKILL to
    this process the reapers end all.
    """

    def __init__(self, trainers, servers, link):
        self.trainers, self.servers, self.link = trainers, servers, link
        self.leads = link.rank == 0
        self.signals = []               # all that have come
        self.last = None                # the run's exit status, once the last checkpoint is written

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
        if len(self.signals) > 1:
            say(f"{signal.Signals(self.signals[1]).name}: ending every process of this run")
            return 128 + self.signals[1]
        if (status := self.verdict()) is not None:
            return status
        if self.signals and self.last is None:
            self.finish(128 + self.signals[0])
        try:
            for server in self.servers:
                # After the last checkpoint it is not needed, which only the first host knows.
                if server.status is not None and not (self.leads and self.last is not None):
                    server.restart()
            return self.link.watch()
        except LaunchError as error:
            print(f"scalerl.py: {error}", file=sys.stderr, flush=True)
            if not self.leads:
                return 1
            say("asking the trainer for a checkpoint; Ctrl-C twice ends it at once")
            self.finish(1)

    def verdict(self):
        """The trainers' exit statuses as the run's, None while it goes on: 2 is bad input, 128 + n
        the signal that asked for the end, 1 every other failure. One that fails fails the run."""
        fine = (0, 128 + signal.SIGINT, 128 + signal.SIGTERM) if self.last else (0,)
        for trainer in self.trainers:
            if trainer.status not in (None, *fine):
                if trainer.log or trainer.status != 2:      # else its sentence is in the terminal
                    say(trainer.ending())
                return 2 if trainer.status == 2 else 1
        # On another node than rank 0's, only the first host can say how the run has ended.
        if self.leads and all(trainer.status is not None for trainer in self.trainers):
            return self.last or 0

    def finish(self, status):
        """The run ends with this status as soon as the trainers have saved what they have. One that
        hangs ends by its own deadline."""
        self.last = status
        if self.leads:
            self.trainers[0].send(signal.SIGINT)
        else:
            say("this node waits for the first host's end; a second signal ends it at once")

    def end(self):
        """End all of them, at once after a second signal; returns when they are gone."""
        children = [child for child in (*self.servers, *self.trainers) if child.process]
        deadline = time.monotonic() + GRACE_S
        for child in children:
            child.kill() if len(self.signals) > 1 else child.send(signal.SIGTERM)
        while any(child.status is None for child in children):
            if len(self.signals) > 1 or time.monotonic() > deadline:
                for child in children:
                    child.kill()
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(reap(sys.argv[1:]))
