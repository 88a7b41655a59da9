"""values.py: grading by values, in two processes.

The submission runs in the sandbox of tasks/sandbox.py, as a service (service.py) that gets inputs
and returns plain numbers: no network, no files but its own and the libraries', no new process, a
limit on memory and one on time. This process never imports it. It draws the inputs, holds the truth
(the project's own functions, and plain formulas), and compares.

A `Part` of an exercise is a number of comparisons, fixed before; its weight is earned if that
number was made and every one holds. A submission that ends its process, hangs, or answers with
something else than the value asked for has lost this part, and the next one gets a fresh process.
"""
import json
import marshal
import os
import select
import signal
import subprocess
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from course.hidden import wire
from tasks import sandbox
from tasks.sandbox import SandboxError

HERE = Path(__file__).resolve().parent
START_S, ASK_S = 300, 60            # until a process is ready; for one answer, of 5 s at most
WAITING = 3             # seconds of waiting that count as one: a busy machine makes us wait as well
PACKAGES = sysconfig.get_path("purelib")
MEMORY = 3 << 30                    # bytes more than the libraries take
PROGRAM = """
import os, sys
os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
sys.path[:0] = ["/grader", {packages!r}]
exec(compile(open("/grader/service.py").read(), "/grader/service.py", "exec"))
"""


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


def library(path):
    """Would this new file of a student's lie in front of a library? Such a one is not taken."""
    return (Path(PACKAGES) / Path(path).parts[0]).exists()


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
        raise Wrong(f"{name}: {str(found)[:90]}, it must be {str(truth)[:90]}")
    return name


def holds(name, condition):
    if not condition:
        raise Wrong(name)
    return name


# ----------------------------------------------------------------------------- 2. the process
class Service:
    """A submission in the sandbox. tree: {path: text}, our files without this exercise's bodies;
    sources: {path: text}, the student's; others: {path: [functions that are not asked for]};
    extra: {path: text}, new files of theirs; folders: {name in the sandbox: folder}, to be read."""

    def __init__(self, tree, sources, others, extra, limit_s, memory=MEMORY, folders=()):
        self.process, self.problems, self.folders = None, [], dict(folders)
        self.limit_s, self.used_s = limit_s, 0.0        # in all; by processes that have ended
        self.patience = ASK_S           # halved by each question that was not answered in time
        extra = {path: text for path, text in extra.items() if not library(path)}
        self.folder = tempfile.TemporaryDirectory(prefix="grade-")
        root = Path(self.folder.name)
        for path, text in {**extra, **tree}.items():
            (root / "tree" / path).parent.mkdir(parents=True, exist_ok=True)
            (root / "tree" / path).write_text(text)
        (root / "grader").mkdir()
        for name in ("service.py", "calls.py", "wire.py"):
            (root / "grader" / name).write_text((HERE / name).read_text())
        (root / "grader" / "submission.json").write_text(json.dumps(dict(
            sources=sources, others=others, extra=[*extra], memory=memory)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        self.folder.cleanup()

    def command(self):
        """bubblewrap's, of the tasks' sandbox, with our folders and the libraries."""
        packages, root = PACKAGES, self.folder.name
        own = [path.name for path in (Path(root) / "tree").iterdir()]
        if there := [name for name in own if (Path(packages) / name).exists()]:
            raise SandboxError(f"{packages} holds a {there[0]}: where the project itself is "
                               "installed as a package the answers are in reach")
        command = sandbox.child_command("bubblewrap")
        at = command.index("--dev-bind")        # /tmp first: the project itself may lie in it
        command[at:at] = ["--size", str(64 << 20), "--tmpfs", "/tmp"]
        at = command.index("--remount-ro")
        command[at:at] = ["--dev-bind", "/dev/urandom", "/dev/urandom",
                          "--ro-bind", packages, packages]
        for name, path in {"/tree": f"{root}/tree", "/grader": f"{root}/grader",
                           **self.folders}.items():
            command[at:at] = ["--ro-bind", str(path), name]
        return command, PROGRAM.format(packages=packages)

    def start(self):
        command, program = self.command()
        limits = dict(CPU=int(self.limit_s) + 60, FSIZE=64 << 20, NOFILE=256, CORE=0)
        with tempfile.TemporaryFile() as request, tempfile.TemporaryFile() as complaint:
            marshal.dump((limits, sandbox.system_call_filter(os.uname().machine), program, None,
                          ""), request)
            request.seek(0)
            self.process = subprocess.Popen(
                [*command, str(request.fileno())], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                # Each large tensor is mapped, and given back where it ends: a heap that is torn to
                # pieces would count as memory that an honest loop has used.
                stderr=complaint, env=dict(MALLOC_MMAP_THRESHOLD_="65536"), cwd="/",
                start_new_session=True, bufsize=0, pass_fds=(request.fileno(),))
            for stream in (self.process.stdin, self.process.stdout):
                os.set_blocking(stream.fileno(), False)
            self.rest, self.begun = bytearray(), time.monotonic()
            try:
                ready = self.line(b"", START_S) == b'{"value": "ready"}'
            except Failed:
                ready = False
            if not ready:
                self.stop()
                why = os.pread(complaint.fileno(), 4000, 0).decode(errors="replace").strip()
                raise SandboxError("nothing can be graded: no sandbox can be made here ("
                                   f"{(why.splitlines() or ['no answer'])[-1]})")

    def clock(self):
        """Seconds that count: those of a processor that worked for the submission, and a part of
        those that we waited."""
        if not self.process:
            return self.used_s
        waited = time.monotonic() - self.begun
        return self.used_s + max(cpu_s(self.process.pid), waited / WAITING)

    def stop(self):
        if self.process:
            self.used_s = self.clock()
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout):
                stream.close()
        self.process = None

    def line(self, data, limit_s):
        """Write the bytes, read one line. Raises Failed."""
        deadline = min(self.clock() + limit_s, self.limit_s + START_S)
        into, out = self.process.stdin.fileno(), self.process.stdout.fileno()
        ended = b"\n" in self.rest
        while data or not ended:
            readable, writable, _ = select.select([out], [into] if data else [], [], 1)
            if self.clock() > deadline:
                self.patience = max(self.patience / 2, 5)
                raise Failed("no answer in time: an endless loop?")
            try:
                if writable:
                    data = data[os.write(into, data[:1 << 16]):]
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
        if self.process is None:
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
