"""Runs a program that nobody has read: unit tests for code, in a box (paper: math and code).

1. Limits, and the form of the tests
2. run_tests       a program and its tests -> (reason, detail)
3. the box         one process for one test: what it may use, what it can see

What happens in that process before the program gets it is in box.py.

What keeps a program from harm, and from marks it has not earned:

  * The expected outputs never enter the box. It prints what it likes, and this side compares. So
    there is no checker inside to patch, and `sys.exit(0)` before the checks is an empty output.
  * One process for one test, in namespaces of its own (util-linux `unshare`): no network device but
    a dead loopback, no process in sight but its own, and a file system that holds Python's library,
    read-only, and an empty /tmp in memory. No home, no /proc, no shell, no environment variables.
  * Limits of the kernel on CPU time, memory, processes, open files and file size, and a deadline by
    the clock. With the first process all others in the namespace die.
  * No rights, and no way to new ones: capabilities dropped, as root also another user id, and a
    filter of system calls (the kernel's seccomp) that knows no namespaces and no sockets, and none
    of the memory that such limits do not count: shared segments, message queues, memfd.

A box is no proof: the kernel itself is in reach of the program. Where namespaces are not allowed
(many containers), there is no box, and code is refused, unless somebody says `unsafe`: then only
process group, limits, filter, empty environment and temporary folder remain, and a program that
means harm can read and write what its user can.

    >>> run_tests("print(int(input()) + 1)", UnitTests(("1", "41"), ("2", "42")), unsafe=True)
    ('correct', '2 of 2 tests')
"""

import errno
import functools
import json
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

# ------------------------------------------------------------------------------------------------
# 1. Limits and tests


class SandboxError(RuntimeError):
    """There is no box here: one sentence with the cause and the way out."""


@dataclass(frozen=True)
class Limits:
    """What one test may use. The paper is silent; 6 s a test is LiveCodeBench's, the rest ours."""

    cpu_s: int = 6
    wall_s: float = 10.0
    memory_bytes: int = 1 << 30  # of address space, each process
    processes: int = 4  # threads count; together they may use four times the memory
    file_bytes: int = 8 << 20  # of one file, the output included


@dataclass(frozen=True)
class UnitTests:
    """Unit tests of one problem.

    Without fn_name each input is the text on standard input, each output the text expected on
    standard output. With it each input is the list of arguments of that function (or of that method
    of a class Solution), each output the value expected, both as JSON has them.
    """

    inputs: tuple
    outputs: tuple
    fn_name: str | None = None

    def to_json(self):
        return json.dumps(asdict(self))


def parse_tests(text):
    """UnitTests of their JSON. Raises ValueError with a sentence."""
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"unit tests are not JSON: {error}") from None
    if not isinstance(fields, dict) or not {"inputs", "outputs"} <= set(fields):
        raise ValueError('unit tests must be an object with "inputs" and "outputs"')
    inputs, outputs, name = fields["inputs"], fields["outputs"], fields.get("fn_name")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs:
        raise ValueError('"inputs" and "outputs" of unit tests must be lists, and not empty')
    if len(inputs) != len(outputs):
        raise ValueError(f"unit tests have {len(inputs)} inputs and {len(outputs)} outputs")
    wanted = str if name is None else list
    if not all(isinstance(entry, wanted) for entry in inputs):
        kind = wanted.__name__
        raise ValueError(f'"inputs" of unit tests with fn_name = {name!r} must be of type {kind}')
    if name is None and not all(isinstance(entry, str) for entry in outputs):
        raise ValueError('"outputs" of unit tests on standard output must be text')
    if name is not None and not (isinstance(name, str) and name.isidentifier()):
        raise ValueError(f"fn_name = {name!r} of unit tests is no name of a function")
    return UnitTests(tuple(inputs), tuple(outputs), name)


# ------------------------------------------------------------------------------------------------
# 2. The tests of one program


def run_tests(program, tests, limits=Limits(), unsafe=False):
    """(reason, detail): "correct" if every test passes, else the first failure's reason.

    reason: "correct", "wrong" (another output, or the program failed), "timeout", or "error": the
        box itself failed, which says nothing about the program.
    detail: which test, and what was seen.
    """
    for i, (given, expected) in enumerate(zip(tests.inputs, tests.outputs, strict=True), start=1):
        arguments = ""
        if tests.fn_name is not None:
            arguments, given = json.dumps(given), ""
        request = (tests.fn_name or "", arguments, program)
        code, output, complaint = run_boxed(request, given, limits, unsafe)
        where = f"test {i} of {len(tests.inputs)}"
        if code == "no box":
            cause = complaint.strip().rpartition("\n")[2][-200:] or "without a word"
            return "error", f"{where}: the box failed before the program began: {cause}"
        if code in ("late", -signal.SIGKILL, 128 + signal.SIGKILL):  # this side, or the kernel
            return "timeout", f"{where}: no end within {limits.cpu_s} s CPU, {limits.wall_s} s"
        if code != 0:
            return "wrong", f"{where}: ended with {code}: {complaint.strip()[-200:]}"
        if tests.fn_name is None:
            right = same_output(output, expected)
        else:
            right = same_result(output, expected)
        if not right:
            return "wrong", f"{where}: got {output[:100]!r}"
    return "correct", f"{len(tests.inputs)} of {len(tests.inputs)} tests"


def same_output(found, expected):
    """Whether two texts agree word by word; where a decimal is expected, to six digits."""
    found, expected = found.split(), expected.split()
    return len(found) == len(expected) and all(map(same_word, found, expected))


def same_word(found, expected):
    if found == expected:
        return True
    try:
        return "." in expected and math.isclose(float(found), float(expected), rel_tol=1e-6)
    except ValueError:
        return False


def same_result(output, expected):
    """Whether the JSON that the box wrote is the expected value.

    TACO and APPS wrap the value in a list of one, as if it were the arguments: both forms count.
    """
    try:
        found = json.loads(output)
    except (ValueError, RecursionError):  # no JSON, or nested deeper than any expected value
        return False
    wrapped = isinstance(expected, list) and len(expected) == 1
    return same_value(found, expected) or (wrapped and same_value(found, expected[0]))


def same_value(found, expected):
    """Equality of JSON values; floats to six digits, and true is not 1."""
    if isinstance(expected, bool) or isinstance(found, bool):
        return found is expected
    if isinstance(expected, list):
        same = isinstance(found, list) and len(found) == len(expected)
        return same and all(map(same_value, found, expected))
    if isinstance(expected, dict):
        same = isinstance(found, dict) and found.keys() == expected.keys()
        return same and all(same_value(found[key], expected[key]) for key in expected)
    if isinstance(expected, float) and isinstance(found, int | float):
        try:
            return math.isclose(found, expected, rel_tol=1e-6)
        except OverflowError:  # an integer beyond all floats
            return False
    return found == expected


# ------------------------------------------------------------------------------------------------
# 3. The box


# System calls that no program may make, by their numbers on x86-64 and on ARM64. A list of what is
# forbidden, not of what is allowed: the interpreter's own needs change with every version.
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # <linux/audit.h>
DENIED = {
    # Memory that no limit of setrlimit counts; System V's even outlives its process.
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "add_key": (248, 217),
    "io_uring_setup": (425, 425),
    # A new user namespace would bring back all capabilities inside it.
    "unshare": (272, 97), "setns": (308, 268),
    # Nobody to talk to, nobody to look into, and no further large doors into the kernel.
    "socket": (41, 198), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438), "request_key": (249, 218),
    "keyctl": (250, 219), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
}  # fmt: skip
CLONE, CLONE3, CLONE_NEW = (56, 220), (435, 435), 0x7E020080  # with flags for all new namespaces


@functools.cache
def system_call_filter(machine):
    """The kernel's seccomp filter that refuses DENIED, and a clone into new namespaces, as bytes.

    It is a program for the kernel's classic BPF machine, which loads 32-bit words of struct
    seccomp_data (number at 0, architecture at 4, first argument at 16), compares, returns.
    Raises SandboxError for a machine whose numbers we do not have.
    """
    if machine not in ARCHITECTURES:
        known = " and ".join(ARCHITECTURES)
        raise SandboxError(f"code cannot be marked on {machine}, only on {known}: the numbers of "
                           "its system calls, which the box has to refuse, are not known here")
    which = list(ARCHITECTURES).index(machine)
    allow, kill, refuse = 0x7FFF0000, 0x80000000, 0x00050000  # <linux/seccomp.h>
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06  # <linux/bpf_common.h>
    denied, absent = refuse | errno.EPERM, refuse | errno.ENOSYS
    steps = [  # (what, steps to skip if true, steps to skip if false, operand)
        (load, 0, 0, 4), (equal, 1, 0, ARCHITECTURES[machine]), (give, 0, 0, kill),
        (load, 0, 0, 0), (at_least, 0, 1, 0x40000000), (give, 0, 0, denied),  # x86-64's second set
    ]  # fmt: skip
    for numbers in DENIED.values():
        steps += [(equal, 0, 1, numbers[which]), (give, 0, 0, denied)]
    steps += [
        # clone3's flags are out of a filter's sight. Where it is absent, libc takes clone.
        (equal, 0, 1, CLONE3[which]), (give, 0, 0, absent),
        (equal, 0, 3, CLONE[which]), (load, 0, 0, 16), (any_bit, 0, 1, CLONE_NEW),
        (give, 0, 0, denied), (give, 0, 0, allow),
    ]  # fmt: skip
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def check_box(unsafe=False):
    """Makes sure once, before a run starts, that there is a box. Raises SandboxError."""
    way_out = "allow user namespaces, or set unsafe_code = true to run programs with limits only"
    for tool in () if unsafe else ("unshare", "setpriv"):
        if shutil.which(tool) is None:
            cause = f"there is no {tool!r} (util-linux)"
            raise SandboxError(f"code cannot be marked: {cause}; {way_out}")
    reason, detail = run_tests("print('ready')", UnitTests(("",), ("ready",)), unsafe=unsafe)
    if reason != "correct":
        out = "unsafe_code = true needs Linux with seccomp" if unsafe else way_out
        raise SandboxError(f"code cannot be marked: there is no box here ({detail}); {out}")


@functools.cache
def is_root():
    """Whether this is root with all user ids, and not only called so in a user namespace."""
    every_id = ["0", "0", "4294967295"]
    return os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split() == every_id


def run_boxed(request, given, limits, unsafe):
    """(exit code, output, complaint) of one process that got `given` on its input.

    The exit code is "late" past the deadline, and "no box" if the program was never begun.

    request: (name of the function or "", its arguments as JSON on one line, program).
    Input and output are files, not pipes: the kernel bounds a file, and nobody has to read along.
    """
    # -I: no environment, no user's site; -S: no packages at all, so the tests of a problem mean the
    # same on every machine; -B: nothing is written beside this file.
    inner = [sys.executable, "-I", "-S", "-B", str(Path(__file__).resolve().with_name("box.py"))]
    if unsafe:
        command = inner
    else:
        # Root may make the other namespaces without one for users.
        user = [] if is_root() else ["--user", "--map-root-user"]
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", *user, "--mount", "--net", "--ipc",
                   "--uts", "--pid", "--fork", "--kill-child=KILL", *inner]  # fmt: skip
        command[0] = shutil.which("setpriv")  # the environment, with its PATH, will be empty
        command[command.index("unshare")] = shutil.which("unshare")
    # As root the program becomes a user that nobody is, a fresh one each time: the kernel counts
    # processes by user, and a fork bomb must not use up the share of the program beside it.
    stranger = 1_000_000_000 + int.from_bytes(os.urandom(3), "big") if is_root() else 0
    with (
        tempfile.TemporaryDirectory(prefix="sandbox-") as folder,
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
        tempfile.TemporaryFile() as ready,  # one byte in it: the program was begun
    ):
        numbers = (ready.fileno(), int(unsafe), stranger, limits.cpu_s, limits.memory_bytes,
                   limits.processes, limits.file_bytes)  # fmt: skip
        steps = system_call_filter(os.uname().machine).hex()
        header = "\n".join((" ".join(map(str, numbers)), steps, *request)).encode(errors="replace")
        stdin.write(b"%12d" % len(header) + header + given.encode(errors="replace"))
        stdin.seek(0)
        process = subprocess.Popen(
            command, stdin=stdin, stdout=stdout, stderr=stderr, env={}, cwd=folder,
            start_new_session=True, pass_fds=(ready.fileno(),),
        )  # fmt: skip
        late = threading.Event()

        def end():
            late.set()
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(limits.wall_s, end)
        timer.start()
        try:
            # Not wait(timeout): it looks every 50 ms, which is longer than most programs take.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        finally:
            timer.cancel()
            timer.join()
            # Whatever it left behind; its number is still taken, since nobody has waited for it.
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        output, complaint = (read_bounded(file, limits.file_bytes) for file in (stdout, stderr))
        begun = read_bounded(ready, 1)
    return ("late" if late.is_set() else code if begun else "no box"), output, complaint


def read_bounded(file, size):
    file.seek(0)
    return file.read(size).decode(errors="replace")
