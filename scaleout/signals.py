"""scaleout/signals.py: Ctrl-C, SIGTERM and SIGUSR1 end a run: with a checkpoint, between two decode
steps or micro-batches; without one after HEED_S, at a second signal, and where none has begun."""
import contextlib
import os
import signal
import socket
import sys
import threading
import time

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
HEED_S = 30.0                       # longest time to heed the first: schedulers then kill
TWICE_S = 2.0                       # a scheduler and torchrun may both send the same signal
REQUEUE = 75                        # EX_TEMPFAIL: the same command goes on from the checkpoint


def exit_code(number):          # of a run that this signal has ended
    return 128 + number if number == signal.SIGINT else REQUEUE


class Signals:
    """Those that have come. first: the number of the first one, 0: none; second: of a later one."""

    def __init__(self):
        self.first, self.second, self.at, self.team = 0, 0, 0.0, None

    def note(self, number, _=None):
        if not self.first:
            self.first, self.at = number, time.monotonic()
        elif number == signal.SIGINT or number != self.first or \
                time.monotonic() - self.at > TWICE_S:
            self.second = number

    def heed(self, number, _):
        """A trainer's handler: its team stops, at the next place where it can."""
        if self.team and not self.team.stop:
            self.team.stop = number
            print("\nstopping, with a checkpoint; a second signal stops at once", file=sys.stderr)

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
                print("scalerl.py: stopped at once, without a checkpoint; the same command goes on "
                      "from the newest one, or begins", file=sys.stderr, flush=True)
                sys.stdout.flush()
                os._exit(exit_code(self.first))
