"""launch.py: who runs where, and that all of it ends together.

`python scalerl.py --model M --gpus 8` is the whole command: this file splits the GPUs between
vLLM servers, which generate, and trainers; starts both, keeps them alive, and ends every process
it has started, however the run ends. It knows nothing of weights or samples: the trainer gets the
servers' addresses as --vllm-url, and all else is between the two.

  1. Split        how many GPUs generate, how many train, by a rule that is printed
  2. Places       every process with its host, devices and address: the same on every node
  3. Commands     how a server and the trainers are started
  4. Supervisor   starts, watches, restarts, ends; each child on its leash (leash.py)

Ours, all of it: the paper gives 64 GPUs to generation and 16 to training, and no rule.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

# A server that ends is started again, unless it has ended so often within so many seconds.
DEATHS, DEATHS_WITHIN_S = 3, 600.0


class PlaceError(ValueError):
    """What was asked for does not add up or does not fit: one sentence."""


class LaunchError(RuntimeError):
    """A process that the run needs is gone for good: the sentence names it and its log."""


# ---------------------------------------------------------------------------------------------
# 4. Supervisor


class Child:
    """One command on its leash, with everything that it starts.

    name    for people: "server 1"
    log     file that gets its output, after what is there; None: our own terminal
    ranks   the command starts ranks, as torchrun does: Ctrl-C is for rank 0
    """

    def __init__(self, name, argv, env=None, *, log=None, ranks=False):
        self.name, self.argv, self.env, self.log, self.ranks = name, argv, env, log, ranks
        self.process, self.deaths = None, []

    def start(self):
        output = open(self.log, "ab") if self.log else None
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("leash.py"),
             *(["--ranks"] if self.ranks else []), *map(str, self.argv)],
            stdin=subprocess.PIPE, stdout=output, stderr=output, env=self.env,
            start_new_session=True)             # the terminal's Ctrl-C is for us to pass on
        if output:
            output.close()

    def status(self):
        """None while it runs; then its exit status, 128 + n if signal n ended it."""
        return self.process.poll()

    def order(self, letter):
        """b"i" (Ctrl-C) or b"t" (end) to its leash."""
        try:
            self.process.stdin.write(letter)
            self.process.stdin.flush()
        except BrokenPipeError:
            pass                                # it has just ended: the next status() tells

    def kill(self):
        """Let go of the leash: everything below gets a SIGKILL."""
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass                                # an order that it did not live to read

    def restart(self):
        """Start it again. Raises LaunchError if it has ended too often."""
        ended, now = ending(self.status()), time.monotonic()
        self.deaths = [then for then in self.deaths if now - then < DEATHS_WITHIN_S] + [now]
        if len(self.deaths) == DEATHS:
            raise LaunchError(f"{self.name} has ended {DEATHS} times within "
                              f"{DEATHS_WITHIN_S / 60:g} minutes, now {ended}; the last lines of "
                              f"{self.log}:\n{tail(self.log)}")
        say(f"{self.name} has ended {ended}; it is started again. Its log: {self.log}")
        self.kill()
        self.start()


def say(sentence):
    print(f"launcher: {sentence}", file=sys.stderr, flush=True)


def ending(status):
    return f"by {signal.Signals(status - 128).name}" if status > 128 else \
        f"with exit status {status}"


def tail(path, lines=12):
    """The last lines of a log, indented."""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - 16384))
        text = file.read().decode(errors="replace").splitlines()[-lines:]
    return "\n".join("    " + line for line in text) or "    (empty)"


def supervise(trainer, servers, *, watch=lambda: None, logs=()):
    """Run until the trainer ends. Returns the exit status for the whole run.

    trainer   Child, or None on a node that has only servers: then `watch` ends it
    servers   Children that are started again when they end
    watch     called a few times a second: an exit status ends the run, LaunchError fails it
    logs      files to show the end of if the trainer fails: the other ranks' output

    Ctrl-C goes on to the trainer, which ends its step, writes a checkpoint and ends; the second
    one ends all at once, as SIGTERM does. A SIGKILL to this process ends all too: the leashes.
    """
    asked, interrupts = [], 0
    before = {number: signal.signal(number, lambda number, _: asked.append(number))
              for number in (signal.SIGINT, signal.SIGTERM)}
    everyone = [*servers, *([trainer] if trainer else [])]
    graceful = False
    try:
        for child in everyone:
            child.start()
        while True:
            while asked:
                number = asked.pop(0)
                interrupts += number == signal.SIGINT
                if number == signal.SIGTERM or interrupts == 2:
                    say(f"{signal.Signals(number).name}: ending every process of this run")
                    return 128 + number
                if trainer:
                    trainer.order(b"i")
                else:
                    say("Ctrl-C on the first of the hosts ends the run with a checkpoint; here, "
                        "again, it ends this node's servers")
            if trainer and trainer.status() is not None:
                graceful = True
                return verdict(trainer, logs)
            for server in servers:
                if server.status() is not None:
                    server.restart()
            status = watch()
            if status is not None:
                graceful = True
                return status
            time.sleep(0.1)
    except LaunchError as error:
        print(f"scalerl.py: {error}", file=sys.stderr, flush=True)
        return 1
    finally:
        end([child for child in everyone if child.process], asked, graceful)
        for number, handler in before.items():
            signal.signal(number, handler)


def verdict(trainer, logs):
    """The trainer's exit status as the run's: 2 is bad input, 1 all other failures."""
    status = trainer.status()
    if status in (0, 2):                    # 2: its one sentence has been read already
        return status
    say(f"{trainer.name} ended {ending(status)}"
        + (": out of memory? The kernel's log (dmesg) would say" if status == 137 else ""))
    for log in logs:
        if os.path.exists(log) and os.path.getsize(log):
            say(f"the last lines of {log}:\n{tail(log)}")
    return 1


def end(children, asked, graceful):
    """End all; returns when they are gone. `asked` fills with further signals: no more patience."""
    asked.clear()
    started = time.monotonic()
    for child in children:
        child.order(b"t") if graceful else child.kill()
    while any(child.status() is None for child in children):
        waited = time.monotonic() - started
        if waited > 30:
            say("still there: " + ", ".join(f"{child.name} (process {child.process.pid})"
                                            for child in children if child.status() is None))
            return
        if asked or waited > 15:
            for child in children:
                child.kill()
        time.sleep(0.05)
    for child in children:
        child.kill()                        # closes our end of the pipe


def free_port():
    """A port of the loopback that nobody listens on at this moment."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
