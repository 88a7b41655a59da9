"""scaleout/reaper.py: python reaper.py COMMAND ... runs a command, and leaves none of its children.

vLLM starts workers in sessions of their own, which no signal of ours reaches. A subreaper becomes
the parent of every orphan below it, so psutil finds all. A byte on standard input, a pipe from the
launcher, is a signal for the command; its end kills everything.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading

import psutil

PR_SET_CHILD_SUBREAPER = 36         # <linux/prctl.h>


def reap(argv):
    """Run the command `argv`, and kill what it leaves behind. Returns its exit status, or 128 + n
    if signal n ended it."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # A scheduler signals every process of a job, but only the launcher decides what follows. Not
    # SIG_IGN, because the command would inherit that.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    command = subprocess.Popen(argv, stdin=subprocess.DEVNULL)

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


if __name__ == "__main__":
    sys.exit(reap(sys.argv[1:]))
