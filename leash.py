"""leash.py: run a command whose whole tree of processes ends when it should, whatever happens.

    python leash.py [--ranks] COMMAND ...

The launcher starts every server and trainer through this file. They start processes in turn:
vLLM its engine and workers, torchrun its ranks, each in a session of its own, where neither a
process group nor the terminal reaches them. So this process declares itself their subreaper
(Linux): whatever loses its parent below it becomes its child, and nothing below it is ever lost.

Its standard input is the line to whoever started it. One letter is one order:

  i            Ctrl-C: SIGINT to the command; with --ranks, to the one of its children that is
               rank 0, for torchrun itself would end its ranks, checkpoint or not
  t            end: SIGTERM to the command, and GRACE_S later SIGKILL to what is left
  end of file  whoever started it is gone, by SIGKILL perhaps: SIGKILL to all, now

When the command ends by itself, what it left behind is killed as well, and only then does this
process end: with the command's exit status, or 128 + the signal that ended it.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36        # <linux/prctl.h>
GRACE_S = 10.0
LIBC = ctypes.CDLL(None)


def children():
    """{pid: its children's pids} of this machine, as /proc shows it at this moment."""
    found = {}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                # The name, in brackets, may hold anything; state and parent follow it.
                parent = int(file.read().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue                                    # ended since the listing
        found.setdefault(parent, []).append(int(pid))
    return found


def is_rank_0(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return b"RANK=0" in file.read().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass                                            # ended already: what was wanted


def reap(status):
    """Wait for every child that has ended: {pid: exit status} added to `status`. False when no
    child is left."""
    try:
        while True:
            pid, code = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return True
            status[pid] = os.waitstatus_to_exitcode(code)
    except ChildProcessError:
        return False


def kill_all(status):
    """SIGKILL to all below, again and again: a process may fork while its siblings are killed."""
    while reap(status):
        tree, below = children(), [os.getpid()]
        for pid in below:
            below += tree.get(pid, [])
        for pid in below[1:]:
            send(pid, signal.SIGKILL)
        time.sleep(0.02)


def main(argv):
    ranks = argv[:1] == ["--ranks"]
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    asked = []
    # A no-op for Ctrl-C, not SIG_IGN, which the command would inherit.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: asked.append("kill"))
    command = subprocess.Popen(
        argv[ranks:], stdin=subprocess.DEVNULL,
        # If this process itself gets a SIGKILL, the command at least does not outlive it.
        preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)).pid
    status, deadline = {}, float("inf")
    while reap(status) and command not in status and not asked and time.monotonic() < deadline:
        if not select.select([0], [], [], 0.1)[0]:
            continue
        order = os.read(0, 1)
        if order == b"i":
            for pid in filter(is_rank_0, children().get(command, [])) if ranks else [command]:
                send(pid, signal.SIGINT)
        elif order == b"t":
            send(command, signal.SIGTERM)
            deadline = time.monotonic() + GRACE_S
        else:
            break
    kill_all(status)
    code = status.get(command, -signal.SIGKILL)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
