"""scaleout/reaper.py: python reaper.py COMMAND ... runs a command, and leaves none of its children.
vLLM starts workers in sessions of their own, but a subreaper becomes the parent of every orphan
below it. A byte on standard input is a signal for the command; its end kills everything."""
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
    """Run a command, kill what it leaves behind. Returns its status, or 128 + n of signal n."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # A scheduler signals all processes; the launcher decides. The command would inherit SIG_IGN.
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
