"""scaleout/supervise.py: the processes of a run end together, however it ends. Every command runs
under a reaper (reaper.py), which ends what it has started. Ctrl-C, SIGTERM and SIGUSR1 end a run:
with a checkpoint, between two decode steps or micro-batches; without one after HEED_S, at a second
signal, and where none has begun. Ours."""
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
HEED_S = 30.0                       # longest time to heed the first: schedulers then kill
TWICE_S = 2.0                       # a scheduler and torchrun may both send the same signal
REQUEUE = 75                        # EX_TEMPFAIL: the same command goes on from the checkpoint
REAPER = Path(__file__).with_name("reaper.py")
GRACE_S = 30.0                      # between SIGTERM and SIGKILL, while a trainer runs
SERVERS_S = 5.0                     # for servers alone: one that loads is deaf for a minute
DEATHS_WITHIN_S = 600.0             # after three deaths within it a server is not started again


def exit_code(number):          # of a run that this signal has ended
    return 128 + number if number == signal.SIGINT else REQUEUE


class Signals:
    """Those that have come. first: the number of the first one, 0: none; second: of a later one."""

    def __init__(self):
        self.first, self.second, self.at, self.team = 0, 0, 0.0, None

    def note(self, number, _=None):
        now = time.monotonic()
        if not self.first:
            self.first, self.at = number, now
        elif number == signal.SIGINT or number != self.first or now > self.at + TWICE_S:
            self.second = number

    def heed(self, number, _):
        """A trainer's handler: its team stops, at the next place where it can."""
        if self.team and not self.team.stop:
            self.team.stop = number
            print("\nstopping, with a checkpoint if an evaluation has ended; a second signal stops "
                  "at once", file=sys.stderr)

    def over(self):
        """While Python unloads, our handlers are gone: a late signal would change the exit code."""
        for number in SIGNALS if self.first else ():
            signal.signal(number, signal.SIG_IGN)

    @contextlib.contextmanager
    def heeded(self):
        before = {number: signal.signal(number, self.heed) for number in SIGNALS}
        # Python's handlers wait for the end of a kernel or a collective. These bytes do not.
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        fd = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self.watch, args=[ours], daemon=True).start()
        try:
            yield self
        finally:
            signal.set_wakeup_fd(fd)
            theirs.close()
            for number, handler in before.items():
                signal.signal(number, handler)

    def watch(self, ours):
        """In a thread: end this process where the run does not heed the signal in time."""
        ours.settimeout(1.0)
        while True:
            with contextlib.suppress(TimeoutError):
                number = ours.recv(1)
                if not number:                      # all is done
                    return ours.close()
                if number[0] in SIGNALS:
                    self.note(number[0])
            late = time.monotonic() > self.at + HEED_S and self.team and not self.team.busy_saving
            if self.first and (self.second or not self.team or late):
                how = f"stopped: no place to stop came within {HEED_S:g} s" if late and \
                    not self.second else "stopped at once"
                print(f"scalerl.py: {how}; the same command, without --fresh, goes on from the "
                      "newest checkpoint, or begins", file=sys.stderr, flush=True)
                sys.stdout.flush()
                os._exit(exit_code(self.first))


class Child:
    """One command under its reaper. log: file for its output; None: our own terminal; hangs: a
    file, which is there when a trainer says that it hangs."""

    def __init__(self, name, argv, env=None, *, log=None, hangs=None):
        self.name, self.argv, self.env, self.log, self.hangs = name, argv, env, log, hangs
        self.process, self.deaths = None, []

    def start(self):
        if self.log:
            Path(self.log).parent.mkdir(parents=True, exist_ok=True)    # --fresh may take it away
        if self.hangs:
            self.hangs.unlink(missing_ok=True)              # of an earlier process
        with open(self.log, "ab", 0) if self.log else contextlib.nullcontext() as output:
            self.log_start = output.tell() if output else 0     # after what an earlier start wrote
            self.process = subprocess.Popen(    # in a session: Ctrl-C is ours to pass on
                [sys.executable, REAPER, *map(str, self.argv)], env=self.env, bufsize=0,
                stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True)

    @property
    def status(self):
        """None while it runs; then its exit status, 128 + n if signal n ended it."""
        if self.process.returncode is None and self.process.poll() == -signal.SIGKILL:
            # Its reaper was killed: end what that ran. Once: the number may be another's later.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.returncode

    def send(self, number):
        with contextlib.suppress(BrokenPipeError, ValueError):      # it has ended, or will
            self.process.stdin.write(bytes([number]))

    def ending(self, lines=12):
        """How it has ended, with the last lines of its log."""
        words = f"{self.name} has ended with exit status {self.status}" + (
            " (killed; out of memory? dmesg would say)" if self.status == 137
            and not self.process.stdin.closed else "")          # else it was ended here: it hung
        if self.log and os.path.exists(self.log):       # somebody may have removed it
            with open(self.log, "rb") as file:          # or it is huge
                file.seek(max(self.log_start, os.path.getsize(self.log) - 100_000))
                told = file.read().decode(errors="replace").strip().splitlines()[-lines:]
            words = "\n    ".join([f"{words}; the end of {self.log}:", *told])
        return words

    def restart(self):
        """Start it again, unless it has ended too often. Says and returns what it does."""
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
    """One machine's trainers (rank 0 first) and servers: lists of Children. A first signal goes on
    to rank 0, which writes a checkpoint and ends; a second one, or without trainers the first, ends
    all at once. After a SIGKILL of this process the reapers end all."""

    def __init__(self, trainers, servers):
        self.trainers, self.servers = trainers, servers
        self.signals, self.stopping = Signals(), False

    def run(self):
        """Returns the exit status of the run when every process has ended."""
        for number in SIGNALS:
            signal.signal(number, self.signals.note)
        try:
            for child in (*self.servers, *self.trainers):
                child.start()
            while (status := self.look()) is None:
                time.sleep(0.1)
            return status
        finally:
            self.end()
            self.signals.over()

    def look(self):
        """The exit status of the run; None while it goes on."""
        first = self.signals.first
        if self.signals.second or first and not self.trainers:
            return exit_code(first)
        ended = [trainer for trainer in self.trainers if trainer.status is not None]
        # What rank 0 has said, or what ended it while it loaded.
        stopped = (exit_code(first), 128 + first, 130) if first else ()
        for trainer in ended:
            if trainer.status and trainer.status not in stopped:    # it has failed
                say(trainer.ending())
                return 2 if trainer.status == 2 else 1              # 2: bad input
        # Rank 0's end is the end: others would wait for it while they load, and one may hang.
        if ended and ended[0] is self.trainers[0]:
            return exit_code(first) if first else ended[0].status
        if first and not self.stopping:
            self.stopping = True
            say("waiting for rank 0's last checkpoint; Ctrl-C again ends every process at once")
            self.trainers[0].send(first)
        for server in self.servers:
            if server.hangs and server.hangs.exists():
                say(f"{server.name} hangs, and is ended")
                server.hangs.unlink(missing_ok=True)
                server.process.stdin.close()        # its reaper kills it
            if server.status is not None and not first and not server.restart():
                return 1

    def end(self):
        """End all: with a checkpoint of rank 0's, if it takes less than GRACE_S."""
        children = [child for child in (*self.servers, *self.trainers) if child.process]
        start = time.monotonic()
        for child in children:
            child.send(signal.SIGTERM)
        while any(child.status is None for child in children):
            training = any(t.process and t.status is None for t in self.trainers)
            late = time.monotonic() > start + (GRACE_S if training else SERVERS_S)
            if self.signals.second or late:
                for child in children:
                    child.process.stdin.close()
            time.sleep(0.05)
