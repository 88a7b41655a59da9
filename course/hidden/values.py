"""values.py: grading by values, in two processes.

The submission runs in the sandbox of tasks/sandbox.py, as a service (service.py) that gets inputs
and returns plain numbers: no network, no files but its own and the libraries', no new process, a
limit on memory and one on time. This process never imports it. It draws the inputs, holds the truth
(the project's own functions, and plain formulas), and compares.

A `Part` of an exercise is a number of comparisons, fixed before; its weight is earned if that
number was made and every one holds. A submission that ends its process, hangs, or answers with
something else than the value asked for has lost this part, and the next one gets a fresh process.
"""
import base64
import marshal
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from course.hidden import wire
from tasks import sandbox
from tasks.sandbox import SandboxError, system_call_filter

HERE = Path(__file__).resolve().parent
START_S, ASK_S = 300, 45            # until a process is ready; for one answer, of 5 s at most
WAITING = 3             # seconds of waiting that count as one: a busy machine makes us wait as well
PACKAGES = sysconfig.get_path("purelib")
MEMORY = 3 << 30                    # bytes more than the libraries take
PROGRAM = """
import os, sys
os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
sys.path[:0] = ["/grader", {packages!r}]
CONTROL = {control}
exec(compile(open("/grader/service.py").read(), "/grader/service.py", "exec"))
"""
ALLOW_ALL = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)     # a filter of system calls, of one step


class Failed(Exception):
    """The submission gave no value: one sentence."""


class Wrong(Exception):
    """A comparison does not hold: one sentence."""


@dataclass(frozen=True)
class Part:
    """A share of an exercise's points. `work(rng, ask)` makes `count` comparisons: it yields the
    name of each that holds, and raises Wrong at the first one that does not."""
    name: str
    weight: float
    count: int
    work: object


def hides_a_library(path):
    """Would this new file of a student's lie in front of a library? Such a one is not taken."""
    name = Path(path).parts[0].removesuffix(".py")
    return name in sys.stdlib_module_names or any(
        (Path(PACKAGES) / f"{name}{end}").exists() for end in ("", ".py"))


def parts():
    """([], a decorator that adds to it)."""
    found = []

    def part(name, weight, count):
        def keep(work):
            found.append(Part(name, weight, count, work))
            return work
        return keep
    return found, part


# ------------------------------------------------------------------------------- 1. comparisons
def plain(x):
    """Arrays as lists, down to the numbers."""
    if isinstance(x, (np.ndarray, np.generic)):
        return x.tolist()
    if isinstance(x, (list, tuple)):
        return [plain(each) for each in x]
    return {key: plain(each) for key, each in x.items()} if isinstance(x, dict) else x


def numbers(x):
    """A float64 array of an array or of (nested) lists of numbers. Raises Wrong."""
    try:
        return np.asarray(x if isinstance(x, np.ndarray) else plain(x), dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise Wrong(f"numbers were asked for, {str(x)[:60]!r} came") from None


def clean(text):
    """A sentence of the submission's, for a terminal."""
    return "".join(c if c.isprintable() else "?" for c in str(text)[:400])


def close(name, found, truth, rtol=1e-5, atol=1e-7):
    """Equal shapes, and equal numbers within rtol, atol. -> name; raises Wrong."""
    found, truth = numbers(found), np.asarray(getattr(truth, "tolist", lambda: truth)(), float)
    if found.shape != truth.shape:
        raise Wrong(f"{name}: the shape is {found.shape}, it must be {truth.shape}")
    bad = ~np.isclose(found, truth, rtol, atol)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise Wrong(f"{name}: {int(bad.sum())} of {bad.size} numbers are wrong; the first, at "
                    f"{list(where)}, is {found[where]:.6g} and must be {truth[where]:.6g}")
    return name


def equal(name, found, truth):
    """The same plain value, type for type but for int and float. -> name; raises Wrong."""
    found, truth = plain(found), plain(truth)
    if found != truth:
        one, two = str(found), str(truth)           # both from shortly before they differ
        same = len(os.path.commonprefix([one, two]))
        one, two = (f"... {text[same - 20:][:90]}" if same > 60 else text[:90] or "nothing"
                    for text in (one, two))
        raise Wrong(f"{name}: {one}, it must be {two}")
    return name


def holds(name, condition):
    if not condition:
        raise Wrong(name)
    return name


# ----------------------------------------------------------------------------- 2. the process
class Sandbox:
    """The walls, and in them a process that has imported the libraries and waits (service.py). Of
    it each exercise gets a child of its own, as it would be after a minute of imports."""
    total_s = 0.0                           # seconds of a processor, of all that have ended

    def __init__(self, limit_s):
        self.limit_s, self.process = limit_s, None
        self.grader = tempfile.TemporaryDirectory(prefix="grade-")
        for name in ("service.py", "calls.py", "wire.py"):
            Path(self.grader.name, name).write_text((HERE / name).read_text())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        self.grader.cleanup()

    def command(self):
        """bubblewrap's, of the tasks' sandbox, with our folder and the libraries."""
        command = sandbox.child_command("bubblewrap")
        at = command.index("--dev-bind")        # /tmp first: the project itself may lie in it
        command[at:at] = ["--size", str(64 << 20), "--tmpfs", "/tmp"]
        at = command.index("--remount-ro")
        command[at:at] = ["--dev-bind", "/dev/urandom", "/dev/urandom",
                          "--ro-bind", PACKAGES, PACKAGES]
        for path in ("/proc/cpuinfo", "/sys/devices/system/cpu", "/proc/meminfo"):
            # Without the first two torch takes its slowest kernels, which also round otherwise; a
            # run that is made again looks how much memory there is.
            command[at:at] = ["--ro-bind-try", path, path]
        command[at:at] = ["--ro-bind", self.grader.name, "/grader"]
        return command

    def start(self):
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = PROGRAM.format(packages=PACKAGES, control=theirs.fileno())
        limits = dict(CPU=int(self.limit_s) + 60, FSIZE=64 << 20, NOFILE=256, CORE=0)
        with tempfile.TemporaryFile() as request, tempfile.TemporaryFile() as complaint, theirs:
            # The waiting process may fork, and runs no line of a student's; its children may not.
            marshal.dump((limits, ALLOW_ALL, program, None, "", None), request)
            request.seek(0)
            self.process = subprocess.Popen(
                [*self.command(), str(request.fileno())], stdin=subprocess.DEVNULL,
                # Each large tensor is mapped, and given back where it ends: a heap that is torn to
                # pieces would count as memory that an honest loop has used.
                stdout=complaint, stderr=complaint, env=dict(MALLOC_MMAP_THRESHOLD_="65536"),
                cwd="/", start_new_session=True, pass_fds=(request.fileno(), theirs.fileno()))
            theirs.close()
            if self.told(START_S) != b"ready":
                self.stop()
                why = os.pread(complaint.fileno(), 4000, 0).decode(errors="replace").strip()
                raise SandboxError("nothing can be graded: no sandbox can be made here ("
                                   f"{(why.splitlines() or ['no answer'])[-1]})")

    def spent_s(self):
        return cpu_s(self.process.pid) if self.process else 0.0

    def told(self, limit_s):
        """What the waiting process says, b"" if it has ended or is late."""
        self.control.settimeout(limit_s)
        try:
            return self.control.recv(100)
        except OSError:
            return b""

    def fork(self):
        """A child -> the ends of two pipes, to write to it and to read from it."""
        for _ in range(2):                      # the second time with a new process
            if self.process is None:
                self.start()
            (read, into), (out, write) = os.pipe(), os.pipe()
            try:
                socket.send_fds(self.control, [b"fork"], [read, write])
            except OSError:
                self.stop()
            for each in (read, write):
                os.close(each)
            if self.process and self.told(START_S) == b"forked":
                return into, out
            self.stop()
            os.close(into), os.close(out)
        raise SandboxError("nothing can be graded: the sandbox makes no process")

    def end(self):
        """End the child, and take away what it left. If that takes long, all ends."""
        try:
            self.control.send(b"end")
            ended = self.told(10) == b"ended"
        except OSError:
            ended = False
        if not ended:
            self.stop()

    def stop(self):
        if self.process:
            Sandbox.total_s += self.spent_s()
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()
            self.control.close()
        self.process = None


class Service:
    """A submission in a sandbox. tree: {path: text}, our files without this exercise's bodies;
    sources: {path: text}, the student's; others: {path: [functions that are not asked for]};
    extra: {path: text}, new files of theirs."""

    def __init__(self, sandbox, tree, sources, others, extra, limit_s, memory=MEMORY):
        self.sandbox, self.pipes, self.problems = sandbox, None, []
        self.limit_s, self.used_s = limit_s, 0.0        # in all; by processes that have ended
        self.patience = ASK_S           # a third of it after each question not answered in time
        self.submission = dict(
            tree=tree, sources=sources, others=others, memory=memory,
            extra={path: text for path, text in extra.items() if not hides_a_library(path)},
            steps=base64.b64encode(system_call_filter(os.uname().machine)).decode())
        # A library beside the project itself: where it is installed as a package.
        if there := [path for path in tree if hides_a_library(path)]:
            raise SandboxError(f"{PACKAGES} holds a {there[0]}: where the project itself is "
                               "installed as a package the answers are in reach")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        """A process that waits for questions. Raises Failed where the student's files are too much
        for it, and SandboxError where it would not do without them either."""
        if self.ready(self.submission):
            return
        used_s, self.used_s = self.used_s, 0.0
        able = self.ready(self.submission | dict(sources={}, extra={}))
        self.stop()
        self.used_s += used_s
        if not able:
            raise SandboxError("nothing can be graded: the sandbox's process does not answer")
        raise Failed("these files are too much for the sandbox: it does not become ready")

    def ready(self, submission):
        """Does a process that gets these files say that it is ready? If not, it is stopped."""
        self.pipes = self.sandbox.fork()
        for each in self.pipes:
            os.set_blocking(each, False)
        self.rest, self.begun = bytearray(), time.monotonic()
        self.cpu_s = cpu_s(self.sandbox.process.pid)
        try:
            if self.line(wire.encode(submission), START_S) == b'{"value": "ready"}':
                return True
        except Failed:
            pass
        self.stop()
        return False

    def clock(self):
        """Seconds that count: those of a processor that worked for the submission, and a part of
        those that we waited."""
        if not self.pipes:
            return self.used_s
        worked = cpu_s(self.sandbox.process.pid) - self.cpu_s if self.sandbox.process else 0.0
        return self.used_s + max(worked, (time.monotonic() - self.begun) / WAITING)

    def stop(self):
        if self.pipes:
            self.used_s = self.clock()
            for each in self.pipes:
                os.close(each)
            self.sandbox.end()
        self.pipes = None

    def line(self, data, limit_s):
        """Write the bytes, read one line. Raises Failed."""
        deadline = min(self.clock() + limit_s, self.limit_s + START_S)
        into, out = self.pipes
        ended, looked = b"\n" in self.rest, time.monotonic()
        data, sent = memoryview(data), 0                # a rest of bytes would be a copy each time
        while sent < len(data) or not ended:
            unsent = [into] if sent < len(data) else []
            readable, writable, _ = select.select([out], unsent, [], 1)
            if time.monotonic() > looked + 0.5:         # the clock reads files: not at each byte
                looked = time.monotonic()
                if self.clock() > deadline:
                    self.patience = max(self.patience / 3, 5)
                    raise Failed("no answer in time: an endless loop?")
            try:
                if writable:
                    sent += os.write(into, data[sent:sent + (1 << 16)])
                if readable:
                    more = os.read(out, 1 << 20)
                    if not more:
                        raise Failed("its process has ended")
                    self.rest += more
                    ended = ended or b"\n" in more
            except OSError:
                raise Failed("its process has ended") from None
            if len(self.rest) > wire.LONGEST:
                raise Failed("an answer without end")
        answer, self.rest = self.rest.split(b"\n", 1)
        return bytes(answer)

    def ask(self, call, **args):
        """The value of a function of calls.py. Raises Failed, SandboxError."""
        if self.clock() > self.limit_s:
            raise Failed(f"the exercise has used its {self.limit_s} s")
        if self.pipes is None:
            self.start()
        try:
            answer = wire.decode(self.line(wire.encode(dict(call=call, args=args)),
                                           min(self.patience, self.limit_s - self.clock())))
        except (Failed, ValueError, RecursionError) as error:
            self.stop()                     # the next question gets a fresh process
            raise Failed(str(error) if isinstance(error, Failed) else "no value came") from None
        if not isinstance(answer, dict):
            raise Failed("no value came")
        if isinstance(said := answer.get("problems"), list):
            self.problems = [clean(each) for each in said[:20]]
        if "value" not in answer:
            raise Failed(answer.get("error"))
        return answer["value"]


def cpu_s(pid):
    """Seconds of a processor that a process and its children have used so far."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:                         # it has ended, or this system does not tell
        return 0.0
    return sum(map(int, line[11:15])) / os.sysconf("SC_CLK_TCK") + sum(map(cpu_s, children))


# -------------------------------------------------------------------------------- 3. the points
def earned(all_parts, service, seed, notes=None):
    """[(part, "" or why it is not earned)]. What a part yields as "note: ..." is added to `notes`
    and counts as no comparison. Raises SandboxError."""
    result = []
    for place, part in enumerate(all_parts):
        why, made = "", 0
        try:
            for said in part.work(np.random.default_rng([seed, place]), service.ask):
                noted = said.startswith("note: ")
                made += not noted
                if noted and notes is not None:
                    notes.append(clean(said.removeprefix("note: ")))
            if made != part.count:
                why = f"{made} comparisons were made, {part.count} were expected"
        except (Failed, Wrong) as error:
            why = str(error)
        except SandboxError:
            raise
        except Exception as error:          # a value of another kind than was asked for
            why = f"no value of the kind asked for ({type(error).__name__}: {str(error)[:100]})"
        result.append((part, clean(why)))
    return result
