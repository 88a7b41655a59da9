"""Runs programs that a model wrote, against unit tests, in a sandbox (paper: math and code).

One process a test, in namespaces that bubblewrap (`bwrap`) makes or, where none are allowed (many
containers), behind Landlock: no network, no environment, nothing to write to, no files but Python's
library; with limits, without capabilities, behind a filter of system calls. The expected outputs
stay on this side. A program may start threads, but no process: so nothing can outlive it.
A sandbox is no proof: the kernel itself is in reach. sandbox_child.py goes on from here."""
import errno
import functools
import json
import marshal
import math
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
import time
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple


class SandboxError(RuntimeError):
    """No sandbox can be made here: one sentence with the cause and the way out."""


class Killed(SandboxError):
    """Before its time was up. By itself, perhaps: who is killed a second time, was late."""


class Limits(NamedTuple):
    """What one test may use. The paper is silent; 6 s a test is LiveCodeBench's, the rest ours."""
    cpu_s: int = 6
    wall_s: float = 10.0
    memory_bytes: int = 1 << 30  # of address space
    file_bytes: int = 8 << 20  # of one file, the output included


class UnitTests(NamedTuple):
    """Texts for standard input and from standard output or, with the name of a function (or method
    of a class Solution), lists of its arguments and of the values that are right."""
    inputs: list
    outputs: list
    fn_name: str | None = None


MOST_TESTS = 15  # DeepCoder's: a problem's longest inputs; all of them would take minutes


def read_tests(value, metadata=None):
    """UnitTests of the forms that data sets have; ValueError and the like for others.

    TACO, APPS:  {"inputs": [...], "outputs": [...], "fn_name": "f"}
    PrimeIntellect:  [{"input": [1], "output": 2, "fn_name": "f"}]
    LiveCodeBench:  [{"input": "1", "output": "2", "testtype": "functional"}], a JSON value a line,
        and {"func_name": "f"} in the record's metadata"""
    tests = json.loads(value) if isinstance(value, str) else value
    if isinstance(tests, dict):  # a text for a list is one test
        first, sides = tests, (tests["inputs"], tests["outputs"])
        pairs = zip(*([x] if isinstance(x, str) else x for x in sides), strict=True)
    else:
        first, pairs = tests[0], [(test["input"], test["output"]) for test in tests]
    name = first.get("fn_name") or None  # some have an empty text
    if first.get("testtype") == "functional":
        name = (json.loads(metadata) if isinstance(metadata, str) else metadata)["func_name"]
        pairs = [([json.loads(x) for x in i.splitlines()], [json.loads(o)]) for i, o in pairs]
    elif name:  # TACO and APPS have most values, not all, in a list of one
        pairs = [(i, [o, *o] if isinstance(o, list) and len(o) == 1 else [o]) for i, o in pairs]
    else:  # some have a list of lines
        pairs = [tuple("\n".join(x) if isinstance(x, list) else x for x in p) for p in pairs]
    pairs = sorted(pairs, key=lambda pair: -len(json.dumps(pair[0])))[:MOST_TESTS]
    if not pairs or not all(isinstance(i, list) if name else {type(i), type(o)} == {str}
                            for i, o in pairs):
        raise ValueError("unit tests must have texts as inputs and outputs, or the name of a "
                         "function and lists of its arguments")
    return UnitTests([i for i, _ in pairs], [o for _, o in pairs], name)


# The next fence must be bare, or the block was cut off. Without `++` some texts take minutes.
BLOCK = re.compile(r"^[ \t]*+(```|~~~)[`~]*+[ \t]*+([\w+-]*+).*+\n"
                   r"((?:(?![ \t]*+(?:\1|```)).*+\n)*+)[ \t]*+\1[`~]*+[ \t]*+$", re.M)


def last_program(text):
    """The last Python block, or else the last block without a language; None if there is none."""
    found = {}
    for _, language, block in BLOCK.findall(text.replace("\r\n", "\n")):
        language = "python" if language.lower() in ("py", "python3") else language.lower()
        found[language] = textwrap.dedent(block).rstrip("\n")
    return found.get("python", found.get(""))


KILLED = -signal.SIGKILL, 128 + signal.SIGKILL  # by clock or CPU time; the second by bwrap


def run_tests(program, tests, limits=Limits()):
    """"correct" if every test passes, else of the first failure "wrong" (or the program failed) or
    "timeout" (of clock or CPU time). SandboxError: the sandbox failed, and nothing is known."""
    same = same_result if tests.fn_name else same_output
    for given, expected in zip(tests.inputs, tests.outputs, strict=True):
        code, output, _ = run_program(program, tests.fn_name, given, limits, which_walls())
        if code in KILLED:
            return "timeout"
        if code != 0 or not same(output, expected):
            return "wrong"
    return "correct"


def same_output(found, expected):
    """Whether two texts agree word by word: 3.0 is 3 (LiveCodeBench); decimals to six digits."""
    found, expected = found.split(), expected.split()
    try:
        return len(found) == len(expected) and all(f == e or Decimal(f) == Decimal(e) or (
            "." in e and math.isclose(float(f), float(e), rel_tol=1e-6, abs_tol=1e-8))
            for f, e in zip(found, expected))
    except (ValueError, ArithmeticError):
        return False


def same_result(output, right):
    """Whether this JSON is one of the values that are right."""
    try:
        return any(same_value(json.loads(output), expected) for expected in right)
    except (ValueError, RecursionError, OverflowError):  # no JSON; too deep; beyond all floats
        return False


def same_value(found, expected):
    """Equality of JSON values; floats, wherever they stand, to nine digits; true is not 1."""
    if isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys():
        found, expected = [found[key] for key in expected], [*expected.values()]
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(same_value, found, expected))
    if type(expected) is float and type(found) in (int, float):
        return math.isclose(found, expected)
    return found == expected and isinstance(found, bool) == isinstance(expected, bool)


ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # <linux/audit.h>
DENIED = [line.split()[1:] for line in Path(__file__).with_name("system_calls.txt").read_text()
          .splitlines() if not line.startswith("#")]


@functools.cache
def system_call_filter(machine):
    """A seccomp filter: a program for the kernel's classic BPF machine, which loads words of struct
    seccomp_data (number at 0, architecture at 4, arguments from 16 on) and compares them."""
    if machine not in ARCHITECTURES:
        raise SandboxError(f"code cannot be verified on {machine}, only on "
                           f"{' and '.join(ARCHITECTURES)}: its system calls are not known")
    which = list(ARCHITECTURES).index(machine)
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06  # <linux/bpf_common.h>
    allow, kill, refuse = 0x7FFF0000, 0x80000000, 0x00050000  # <linux/seccomp.h>
    denied = (give, 0, 0, refuse | errno.EPERM)
    # What to do, steps to skip if true, if false, operand; at the end x86-64's second numbers.
    steps = [(load, 0, 0, 4), (equal, 1, 0, ARCHITECTURES[machine]), (give, 0, 0, kill),
             (load, 0, 0, 0), (at_least, 0, 1, 0x40000000), denied]  # fmt: skip
    tests = {"is": (equal, 0, 1), "is_not": (equal, 1, 0), "lacks": (any_bit, 1, 0)}
    for row in DENIED:
        test = []
        if row[2:]:
            place, how, value = row[2:]
            test = [(load, 0, 0, 16 + 8 * int(place)), (*tests[how], int(value))]
        steps += [(equal, 0, len(test) + 2, int(row[which])), *test, denied, (load, 0, 0, 0)]
    # clone3's flags are out of a filter's sight. Where it is absent, libc takes clone.
    steps += [(equal, 0, 1, 435), (give, 0, 0, refuse | errno.ENOSYS), (give, 0, 0, allow)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


@functools.cache
def which_walls():
    """"bubblewrap" or, as is told, "Landlock". Raises SandboxError: no program can be run."""
    if sys.platform != "linux":
        raise SandboxError("code cannot be verified here: the sandbox needs Linux; a container or "
                           "a virtual machine with Linux will do")
    if not (cause := failure("bubblewrap")):
        return "bubblewrap"
    if not (second := failure("Landlock")):
        print("programs run behind Landlock, as bubblewrap can make no namespaces here; they can "
              "see the names of files outside (docs/tasks.md)", file=sys.stderr)
        return "Landlock"
    raise SandboxError(
        f"code cannot be verified: no sandbox can be made here (bubblewrap: {cause}; Landlock: "
        f"{second}); docs/tasks.md says how to allow user namespaces, or take Linux 5.13 or later")


def failure(walls):
    """Why no program can be run behind these walls; None: it can."""
    try:
        code, output, complaint = run_program("print('ready')", None, "", Limits(), walls)
    except (OSError, SandboxError) as error:
        return str(error)
    why = complaint.rpartition("\n")[2]  # of a traceback the last line
    return None if output == "ready\n" else f"ended with {code}: {why}"


READABLE = ["/usr/lib", "/usr/lib64", "/lib", "/lib64", f"{sys.base_prefix}/lib"]  # to programs


def child_command(walls):
    """The command that starts sandbox_child.py, inside bubblewrap if that makes the walls."""
    python = os.path.realpath(sys.executable)  # not a virtual environment's link to it
    child = str(Path(__file__).resolve().with_name("sandbox_child.py"))
    # -I: no environment, no user's site; -S: no packages, on any machine; -B: writes no byte code.
    inner = [python, "-I", "-S", "-B", child]
    if walls != "bubblewrap":
        return inner
    if not (bwrap := shutil.which("bwrap")):
        raise SandboxError("bubblewrap is not installed")
    seen = [word for path in (*READABLE, python, child) for word in ("--ro-bind-try", path, path)]
    return [bwrap, "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session",
            "--cap-drop", "ALL", "--dev-bind", "/dev/null", "/dev/null", *seen,
            "--remount-ro", "/", "--chdir", "/", *inner]


def run_program(program, name, given, limits, walls):
    """(exit code, output, end of complaint) of a process with the text `given` on its input or,
    with a function's name, its list of arguments. The output goes to files: the kernel bounds them.
    SandboxError: the child did not empty the request, which it does when the program begins.
    Killed: somebody killed it, as a machine without memory does, before its time was up."""
    rlimits = {"CPU": limits.cpu_s, "AS": limits.memory_bytes, "FSIZE": limits.file_bytes,
               "NOFILE": 64, "CORE": 0}  # fmt: skip
    steps = system_call_filter(os.uname().machine)
    landlock = READABLE if walls == "Landlock" else None
    with TemporaryFile() as request, TemporaryFile() as stdout, TemporaryFile() as stderr:
        marshal.dump((rlimits, steps, program, name, given, landlock), request)
        request.seek(0)
        start = time.monotonic()
        try:
            code = subprocess.run(
                [*child_command(walls), str(request.fileno())], stdout=stdout, stderr=stderr,
                input=b"" if name else given.encode(errors="replace"), timeout=limits.wall_s,
                env={}, cwd="/", start_new_session=True, pass_fds=(request.fileno(),)).returncode
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        output, complaint = (os.pread(file.fileno(), limits.file_bytes, 0).decode(errors="replace")
                             for file in (stdout, stderr))
        complaint = complaint.strip()[-200:]
        if code in KILLED and time.monotonic() - start < min(limits.cpu_s, limits.wall_s):
            raise Killed("the program was killed before its time was up")
        if os.fstat(request.fileno()).st_size and code not in KILLED:
            raise SandboxError(f"the sandbox failed before the program began: {complaint}")
    return code, output, complaint
