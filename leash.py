"""leash.py: processes that end together, whatever happens.

  1. The leash        runs one command, and ends its whole tree of processes when it should
  2. The supervisor   starts a trainer and servers, each on a leash; restarts a dead server; ends
                      all when the trainer ends, also at Ctrl-C, SIGTERM, and even SIGKILL

Why a leash: servers and trainers start processes in turn, vLLM its engine and workers, accelerate
its ranks, each in a session of its own, where neither a process group nor the terminal reaches
them. So every command runs under

    python leash.py [--ranks] COMMAND ...

which declares itself their subreaper (Linux): whatever loses its parent below it becomes its
child, and nothing below it is ever lost. Its standard input is the line to whoever started it.
One letter is one order:

  i            Ctrl-C: SIGINT to the command; with --ranks, to the one of its children that is
               rank 0, for accelerate launch itself would end its ranks, checkpoint or not
  t            end: SIGTERM to the command, and GRACE_S later SIGKILL to what is left
  end of file  whoever started it is gone, by SIGKILL perhaps: SIGKILL to all, now

When the command ends by itself, what it left behind is killed as well, and only then does the
leash end: with the command's exit status, or 128 + the signal that ended it.

Ours. It imports nothing but Python's own library: one leash a process should cost little.
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
# A server that ends is started again, unless it has ended so often within so many seconds.
DEATHS, DEATHS_WITHIN_S = 3, 600.0

# ---------------------------------------------------------------------------------------------
# 1. The leash


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
    """The leash itself. Returns the exit status."""
    ranks = argv[:1] == ["--ranks"]
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Schedulers signal every process of a job: what follows is the launcher's to say. A no-op, not
    # SIG_IGN, which the command would inherit.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    command = subprocess.Popen(
        argv[ranks:], stdin=subprocess.DEVNULL,
        # If this process itself gets a SIGKILL, the command at least does not outlive it.
        preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    pid, status, deadline = command.pid, {}, float("inf")       # waited for by `reap` alone
    while reap(status) and pid not in status and time.monotonic() < deadline:
        if not select.select([0], [], [], 0.1)[0]:
            continue
        order = os.read(0, 1)
        if order == b"i":
            for target in filter(is_rank_0, children().get(pid, [])) if ranks else [pid]:
                send(target, signal.SIGINT)
        elif order == b"t":
            send(pid, signal.SIGTERM)
            deadline = time.monotonic() + GRACE_S
        else:
            break
    kill_all(status)
    code = status.get(pid, -signal.SIGKILL)
    return code if code >= 0 else 128 - code


# ---------------------------------------------------------------------------------------------
# 2. The supervisor


class LaunchError(RuntimeError):
    """A process that the run needs is gone for good: the sentence names it and its log."""


class Child:
    """One command on its leash, with everything that it starts.

    name    for people: "server 1"
    log     file that gets its output, after what is there; None: our own terminal
    ranks   the command starts ranks, as accelerate launch does: Ctrl-C is for rank 0
    """

    def __init__(self, name, argv, env=None, *, log=None, ranks=False):
        self.name, self.argv, self.env, self.log, self.ranks = name, argv, env, log, ranks
        self.process, self.deaths = None, []

    def start(self):
        output = open(self.log, "ab") if self.log else None
        self.log_start = size(self.log) if self.log else 0
        self.process = subprocess.Popen(
            [sys.executable, __file__,
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
                              f"{self.log}:\n{tail(self.log, self.log_start)}")
        say(f"{self.name} has ended {ended}; it is started again. Its log: {self.log}")
        self.kill()
        self.start()


def say(sentence):
    print(f"launcher: {sentence}", file=sys.stderr, flush=True)


def ending(status):
    signals = {128 + number: number.name for number in signal.Signals}
    return f"by {signals[status]}" if status in signals else f"with exit status {status}"


def size(path):
    return os.path.getsize(path) if os.path.exists(path) else 0


def tail(path, start, lines=12):
    """The last lines of a log, indented; from byte `start` on, for before it stands what earlier
    runs wrote."""
    with open(path, "rb") as file:
        file.seek(max(start, size(path) - 16384))
        text = file.read().decode(errors="replace").splitlines()[-lines:]
    return "\n".join("    " + line for line in text) or "    (empty)"


def supervise(trainer, servers, *, watch=lambda: None, logs=(), checkpoint_s=600.0,
              failed=lambda why: None, leads=True):
    """Run until the trainer ends. Returns the exit status for the whole run.

    trainer   Child, or None on a node that has only servers: then `watch` ends it
    servers   Children that are started again when they end
    watch     called a few times a second: an exit status ends the run, LaunchError fails it
    logs      files to show the end of if the trainer fails: the other ranks' output
    checkpoint_s   how long a trainer may take to end with a checkpoint when the run cannot go on:
              its step under way, its longest wait for others, and the writing
    failed    called with the reason when the run cannot go on, before that wait: if rank 0 is on
              another node, it is there that somebody has to ask for the checkpoint
    leads     rank 0 is on this node

    Ctrl-C or SIGTERM, as a cluster's scheduler sends it, goes on to the trainer, which ends its
    step, writes a checkpoint and ends; the second one ends all at once. A SIGTERM to another node
    than rank 0's fails the run, with a checkpoint. A SIGKILL to this process ends all: the leashes.
    """
    asked, first = [], None
    before = {number: signal.signal(number, lambda number, _: asked.append(number))
              for number in (signal.SIGINT, signal.SIGTERM)}
    everyone = [*servers, *([trainer] if trainer else [])]
    graceful, logs = False, {log: size(log) for log in logs}
    try:
        for child in everyone:
            child.start()
        while True:
            while asked:
                number = asked.pop(0)
                if first:
                    say(f"{signal.Signals(number).name}: ending every process of this run")
                    return 128 + number
                first = number
                if leads:
                    trainer.order(b"i")
                elif number == signal.SIGTERM:
                    raise LaunchError("this node's launcher was told to end (SIGTERM)")
                else:
                    say("Ctrl-C on the first of the hosts ends the run with a checkpoint; here, "
                        "again, it ends this node's processes")
            if trainer and trainer.status() is not None:
                graceful = True
                return verdict(trainer, logs, first)
            for server in servers:
                if server.status() is not None and not first:     # the last checkpoint needs none
                    server.restart()
            status = watch()
            if status is not None:
                graceful = True
                return status
            time.sleep(0.1)
    except LaunchError as error:
        print(f"scalerl.py: {error}", file=sys.stderr, flush=True)
        if trainer and trainer.process and trainer.status() is None:
            say(f"asking {trainer.name} for a checkpoint, {checkpoint_s:.0f} s at most; Ctrl-C "
                "ends it at once")
            failed(str(error).splitlines()[0])
            if not (leads and first):           # else it is at it, and a second would stop it
                trainer.order(b"i")
            deadline = time.monotonic() + checkpoint_s
            # A scheduler's first SIGTERM, to all nodes, wants that checkpoint too.
            while trainer.status() is None and time.monotonic() < deadline and (
                    not asked or not first and asked == [signal.SIGTERM]):
                time.sleep(0.05)
        return 1
    finally:
        end([child for child in everyone if child.process], asked, graceful)
        for number, handler in before.items():
            signal.signal(number, handler)


def verdict(trainer, logs, asked):
    """The trainer's exit status as the run's: 2 is bad input, 128 + the signal that `asked` for
    its end, 1 all other failures. logs: {file: its size when this run began}."""
    status = trainer.status()
    if asked and status in (0, 128 + signal.SIGINT, 128 + signal.SIGTERM):
        return 128 + asked
    if status in (0, 2):                    # 2: its one sentence has been read already
        return status
    say(f"{trainer.name} ended {ending(status)}"
        + (": out of memory? The kernel's log (dmesg) would say" if status == 137 else ""))
    for log, start in logs.items():
        if size(log) > start:
            say(f"the last lines of {log}:\n{tail(log, start)}")
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
