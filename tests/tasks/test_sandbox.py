"""What sandbox.py promises: right programs score, no other does, and none does harm.

Each hostile program is run in the real sandbox, as the user the tests run as. Where there is no
bubblewrap these tests are skipped, out loud, and code cannot be verified there either.
"""

import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import ROOT

from tasks import sandbox, sandbox_child
from tasks.sandbox import Limits, SandboxError, UnitTests, run_tests, which_walls
from tasks.verifier import Verifier, verify

try:
    which_walls()
    SANDBOX = True
except SandboxError as error:
    SANDBOX, WHY = False, str(error)
sandboxed = pytest.mark.skipif(not SANDBOX, reason=SANDBOX or WHY)
# Walls of another kind where there are no namespaces; both are tested where both can be made.
LANDLOCK = sys.platform == "linux" and sandbox.failure("Landlock") is None
WALLS = [pytest.param("bubblewrap", marks=pytest.mark.skipif(
             sandbox.failure("bubblewrap") is not None, reason="no bubblewrap, or no namespaces")),
         pytest.param("Landlock", marks=pytest.mark.skipif(
             not LANDLOCK, reason="no Landlock in this kernel"))]
# For programs that end by themselves: a busy machine must not make them late.
PATIENT = Limits(cpu_s=20, wall_s=100.0, memory_bytes=256 << 20)
# For the others: small, so that a program which only waits does not make the tests wait.
TIGHT = Limits(cpu_s=1, wall_s=1.0, memory_bytes=256 << 20, file_bytes=1 << 20)
PRODUCT = UnitTests(["6\n7\n", "-3\n5\n"], ["42\n", "-15\n"])
RIGHT = "a = int(input())\nb = int(input())\nprint(a * b)"


# ------------------------------------------------------------------------------------------------
# Right and wrong programs


@sandboxed
def test_a_right_program_passes_and_a_wrong_one_does_not():
    """On standard input and output. One failed test is enough to fail."""
    assert run_tests(RIGHT, PRODUCT, PATIENT) == "correct"
    assert run_tests(RIGHT.replace("*", "+"), PRODUCT, PATIENT) == "wrong"
    assert run_tests("print(42)", PRODUCT, PATIENT) == "wrong"


FUNCTIONS = [
    ("def total(xs, k):\n    return sum(xs) * k", True),
    ("class Solution:\n    def total(self, xs: List[int], k: int) -> int:\n"
     "        return reduce(lambda a, b: a + b, xs, 0) * k", True),
    ("def total(xs, k):\n    print(sum(xs) * k)", False),  # printed, not returned
    ("def total(xs):\n    return 12", False),
    ("def other(xs, k):\n    return sum(xs) * k", False),
    ("def total(xs, k):\n    return [sum(xs) * k, 0]", False),
    ("def total(xs, k):\n    return str(sum(xs) * k)", False),
    ("def total(xs, k):\n    return sum(xs) * k == 12", False),
]  # fmt: skip


@sandboxed
@pytest.mark.parametrize(("program", "right"), FUNCTIONS)
def test_functions_are_called_and_their_values_compared(program, right):
    """As in LeetCode's problems: a function or a method of Solution, values as JSON."""
    tests = sandbox.read_tests({"fn_name": "total", "inputs": [[[1, 2, 3], 2], [[], 5]],
                                "outputs": [12, [0]]})  # [0]: as TACO wraps it
    assert (run_tests(program, tests, PATIENT) == "correct") == right


@sandboxed
def test_names_that_programs_take_for_granted_are_there():
    """exit() is no NameError, and pow is Python's: `from math import *` put another in its place.

    What LiveCodeBench imports in front of a solution is there for functions.
    """
    early = "print(int(input()) * 7)\n{}\nprint('more')"
    for leave in ("exit()", "quit()", "exit(0)", "import sys; sys.exit()"):
        assert run_tests(early.format(leave), UnitTests(("6",), ("42",)), PATIENT) == "correct"
    assert run_tests(early.format("exit(1)"), UnitTests(("6",), ("42",)), PATIENT) == "wrong"
    program = (
        "def f(x):\n    assert pow(3, 5, 7) == 5 and open is not os.open and sum([x]) == x\n"
        "    assert operator.add(1, 2) == 3 == len(string.digits) - 7 and copy.copy(x) == x\n"
        "    assert datetime.date(2024, 2, 29).day == 29 and deepcopy([x]) == [x]\n"
        "    assert Counter('aab')['a'] == 2 == gcd(4, 6) == math.gcd(4, 6)\n"
        "    assert statistics.mean([1, 3]) == 2 and list(accumulate([1, 2])) == [1, 3]\n"
        "    assert json.loads('1') == 1 and bisect_left([1, 5], 3) == 1 and re.match('a', 'ab')\n"
        "    assert random.random() < 1 and reduce(mul, [2, 3]) == 6 and sys.maxsize > 0\n"
        "    heap: List[Optional[int]] = []\n    heappush(heap, x)\n"
        "    def deep(n): return n and 1 + deep(n - 1)\n"
        "    return heap[0] + deep(20000)")
    tests = UnitTests(([3],), ([20003],), "f")
    assert run_tests("import os\n" + program, tests, PATIENT) == "correct"


# Each of these has the name of something that stands in front of a program.
OWN_NAMES = [
    ("search", "class Solution:\n    def search(self, xs, x): return xs.index(x)", [[4, 5], 5], 1),
    ("merge", "class Solution:\n    def merge(self, a, b): return sorted(a + b)", [[3], [1]],
     [1, 3]),
    ("add", "class Solution:\n    def __init__(self): self.add = lambda a, b: 10 * a + b", [1, 2],
     12),
    ("compress", "class Other: pass\ndef compress(s): return s[:1]", ["aab"], "a"),
    ("mode", "class Solution: pass\ndef mode(xs): return min(xs)", [[1, 2, 2]], 1),
]


@sandboxed
@pytest.mark.parametrize(("name", "program", "given", "value"), OWN_NAMES)
def test_what_is_called_is_the_program_s_and_first_of_all_a_method_of_solution(
        name, program, given, value):
    """re.search and heapq.merge were called instead: such a class Solution was always wrong."""
    assert run_tests(program, UnitTests([given], [[value]], name), PATIENT) == "correct"


@sandboxed
@pytest.mark.parametrize(("name", "given", "value"), [
    ("gcd", [4, 6], 2), ("factorial", [4], 24), ("median", [[1, 2, 9]], 2), ("sum", [[1, 2]], 3),
    ("sorted", [[2, 1]], [1, 2]), ("len", [[1]], 1), ("cache", [], None)])
def test_an_empty_program_is_not_paid_for_what_python_has(name, given, value):
    """A policy finds that nothing is a program, too."""
    for program in ("pass", "", "class Solution: pass"):
        assert run_tests(program, UnitTests([given], [[value]], name), PATIENT) == "wrong"
    right = f"import math\nfrom math import *\ndef {name}(*a): return {value!r}"
    assert run_tests(right, UnitTests([given], [[value]], name), PATIENT) == "correct"


@sandboxed
def test_integers_may_have_more_than_4300_digits():
    """Python 3.11 refuses to read or to write them: right programs were wrong."""
    tests = UnitTests(["9" * 6000, "8"], ["1" + "0" * 6000, "9"])
    assert run_tests("print(int(input()) + 1)", tests, PATIENT) == "correct"
    program = "def digits(n): return len(str(10 ** n)) + sum(map(int, str(int('7' * n))))"
    assert run_tests(program, UnitTests([[5000]], [[40001]], "digits"), PATIENT) == "correct"


@sandboxed
@pytest.mark.parametrize("walls", WALLS)
@pytest.mark.parametrize("source", [
    "open(0)", "open('/dev/stdin')", "open('/dev/stdin', encoding='utf-8')", "sys.stdin"])
def test_standard_input_can_be_opened_by_its_name(source, walls, monkeypatch):
    """Many programs of contests do; there is no such file in the sandbox."""
    monkeypatch.setattr(sandbox, "which_walls", lambda: walls)
    program = f"import sys\nsys.stdin = {source}\na, b = map(int, sys.stdin)\nprint(a * b)"
    assert run_tests(program, PRODUCT, PATIENT) == "correct"
    both = "with open('/dev/stdin') as f: a = int(f.readline())\nprint(a, input() or 'end')"
    assert run_tests(both, UnitTests(["6\n"], ["6"]), PATIENT) == "wrong"  # at its end


@sandboxed
def test_programs_that_read_standard_input_have_livecodebench_s_names_too():
    """Its imports stand in front of every solution, and 50,000 calls may be open."""
    program = ("def deep(n): return n and 1 + deep(n - 1)\n"
               "print(gcd(4, 6), Counter('aab')['a'], deep(20000), pow(3, 5, 7), sum([1]))")
    assert run_tests(program, UnitTests([""], ["2 2 20000 5 1"]), PATIENT) == "correct"


@sandboxed
def test_a_program_that_needs_too_much_cpu_time_is_late_and_not_wrong():
    """Its shares of the log are told apart: late programs ask for another limit, wrong ones do not.

    The clock has no part in it: the deadline is far away."""
    limits = Limits(cpu_s=1, wall_s=600.0)
    assert run_tests(HOSTILE["endless loop"], PRODUCT, limits) == "timeout"


def test_outputs_are_compared_word_by_word():
    """A missing newline at the end is not a wrong answer; a missing or a further word is."""
    assert sandbox.same_output("1 2\n3", "1 2 \n3\n")
    assert not sandbox.same_output("1 2", "1 2 3") and not sandbox.same_output("1 2 3", "1 2")
    assert sandbox.same_output("0.3333333", "0.33333333333")
    assert not sandbox.same_output("0.334", "0.333")
    assert not sandbox.same_output("3.0000001", "3")  # an integer is exact
    assert sandbox.same_output("3.0 1e2", "3 100")  # as LiveCodeBench's checker
    assert not sandbox.same_output("10000000000000001", "10000000000000000")
    assert sandbox.same_output("5.55e-17 -0.0", "0.0 0.0")  # as TACO's
    assert not sandbox.same_output("0.0000001", "0.0")
    assert not sandbox.same_output("nan", "0.5") and not sandbox.same_output("yes", "0.5")


def test_values_are_compared_by_type_and_value():
    """In Python True == 1: a program that answers yes or no has not counted."""
    assert not sandbox.same_value(True, 1) and not sandbox.same_value(1, True)
    assert sandbox.same_value([1, [0.1 + 0.2], {"a": 2}], [1, [0.3], {"a": 2}])
    assert not sandbox.same_value([1, 2], [1, 2, 3]) and not sandbox.same_value("1", 1)
    assert not sandbox.same_result("no JSON", [1])


def test_floats_of_a_function_agree_to_nine_digits_wherever_they_stand():
    """The checkers of LiveCodeBench and TACO compare all digits; a sum in another order loses the
    last of them. Six digits paid a wrong count of twelve millions."""
    assert sandbox.same_value({"a": [0.1 + 0.2]}, {"a": [0.3]})
    assert not sandbox.same_value({"a": 0.31}, {"a": 0.3})
    assert not sandbox.same_value({"a": 1}, {"a": True})
    assert not sandbox.same_value({"a": 0.3, "b": 0}, {"a": 0.3})
    assert not sandbox.same_value({"b": 0.3}, {"a": 0.3})
    assert not sandbox.same_value({}, []) and not sandbox.same_value([["a", 1]], {"a": 1})
    assert not sandbox.same_value(12345679.0, 12345678.0)


def test_a_dataclass_may_name_a_class_that_does_not_exist_yet():
    """LeetCode's nodes: dataclasses looks for the module of the class, in a function's test too."""
    program = ("from dataclasses import dataclass\n@dataclass\nclass Node:\n    val: int\n"
               "    next: 'Node' = None\ndef f(x):\n    return Node(x, Node(1)).next.val + x")
    tests = sandbox.read_tests({"fn_name": "f", "inputs": [[3]], "outputs": [[4]]})
    assert run_tests(program, tests) == "correct"



def test_only_where_values_may_be_wrapped_is_a_list_of_one_its_entry():
    """TACO and APPS write 5 as [5]; LiveCodeBench does not: 5 was paid for its [5]."""
    taco = sandbox.read_tests({"fn_name": "f", "inputs": [[1]], "outputs": [[5]]}).outputs[0]
    assert sandbox.same_result("5", taco) and sandbox.same_result("[5]", taco)
    metadata = json.dumps({"func_name": "f"})
    for written, right, wrong in (("[5]", "[5]", "5"), ("5", "5", "[5]"), ("[[5]]", "[[5]]", "[5]"),
                                  ("[]", "[]", "[[]]")):
        tests = sandbox.read_tests(
            [{"input": "1", "output": written, "testtype": "functional"}], metadata)
        assert sandbox.same_result(right, tests.outputs[0])
        assert not sandbox.same_result(wrong, tests.outputs[0])


@pytest.mark.parametrize(("text", "program"), [
    ("~~~python\nprint(1)\n~~~", "print(1)"),
    ("~~~\nprint(1)\n~~~~\n", "print(1)"),
    ("```python\nprint(1)\n```\n~~~ py\nprint(2)\n~~~", "print(2)"),
    ("```python\ns = '''\n~~~\n'''\n```", "s = '''\n~~~\n'''"),
    ("~~~markdown\n```python\nprint(1)\n```\n~~~", "print(1)"),
    ("~~~python\nprint(1)\n```", None), ("~~~python\nprint(1)", None),
    ("~~~python\nprint(1)\n~~~python\nprint(2)\n~~~", "print(2)"),
])
def test_a_block_may_stand_between_tildes(text, program):
    """Markdown's other fence; it closes what it has opened, and stands in strings, too."""
    assert sandbox.last_program(text) == program


# ------------------------------------------------------------------------------------------------
# Hostile programs

HOSTILE = {
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "fork bomb that also waits": "import os, time\n"
    "try:\n    while True:\n        if os.fork() == 0: time.sleep(60)\n"
    "except OSError: time.sleep(60)",
    "thread bomb": "import threading, time\n"
    "while True: threading.Thread(target=time.sleep, args=(60,)).start()",
    "memory bomb": "x = []\nwhile True: x.append(bytearray(10 << 20))",
    "one large integer": "x = 10 ** 10 ** 10",
    "endless output": "while True: print('x' * 100000)",
    "endless output past the limit": "import os\nwhile True:\n"
    "    try: os.write(1, b'x' * 100000)\n    except OSError: pass",
    "a file without end": "f = open('/tmp/big', 'wb')\nwhile True: f.write(b'x' * (1 << 20))",
    "files without number": "i = 0\nwhile True:\n    open(f'/tmp/{i}', 'w').write('x'); i += 1",
    "endless loop": "while True: pass",
    "sleeps for ever": "import time\ntime.sleep(10 ** 6)",
    "waits for input for ever": "import os, select\nselect.select([os.pipe()[0]], [], [])",
    "ignores every signal": "import signal, time\n"
    "for s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n"
    "    except (OSError, ValueError): pass\n"
    "time.sleep(60)",
    "raises its own limits": "import resource\n"
    "for r in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_NPROC):\n"
    "    try: resource.setrlimit(r, (-1, -1))\n    except (OSError, ValueError): pass\n"
    "x = bytearray(2 << 30); print(42)",
    "reads the user's files": "print(open('{canary}').read())",
    "reads passwords": "print(open('/etc/passwd').read())",
    "reads the trainer's environment": "import os\nprint(os.environ['SECRET_TOKEN'])",
    "reads other processes": "import os\nprint(open(f'/proc/{parent}/environ').read())",
    "writes outside": "open('{canary}', 'w').write('owned')",
    "deletes outside": "import shutil\nshutil.rmtree('{folder}')",
    "writes into Python's library": "import os\nopen(os.__file__, 'a').write('import os')",
    "writes into the sandbox's own file": "open('{root}/tasks/sandbox_child.py', 'a').write('#')",
    "kills the parent": "import os\nfor p in ({parent}, os.getppid(), -1):\n"
    "    try: os.kill(p, 9)\n    except OSError: pass",
    "kills its process group": "import os\nos.killpg(0, 9)",
    "opens a socket": "import socket\n"
    "socket.create_connection(('127.0.0.1', {port}), 1).send(b'x')",
    "asks for a name": "import socket\nprint(socket.getaddrinfo('example.com', 80))",
    "runs a shell": "import os\nassert os.system('echo 42') == 0",
    "leaves a daemon behind": "import os, time, ctypes\n"
    "if os.fork() == 0:\n    if os.fork() == 0:\n"
    "        ctypes.CDLL(None).prctl(15, b'{name}')\n        time.sleep(60)\n    os._exit(0)\n"
    "time.sleep(0.2)",
    "exits before the checks": "import sys\nsys.exit(0)",
    "exits hard": "import os\nos._exit(0)",
    "patches the checker": "import builtins, json, sys\n"
    "sys.modules['sandbox'] = sys.modules['__main__']\n"
    "for m in list(sys.modules.values()):\n"
    "    for n in ('same_output', 'same_word', 'run_tests', 'verdict', 'verify'):\n"
    "        try: setattr(m, n, lambda *a, **k: True)\n        except Exception: pass",
    "talks to the judge": "print('correct'); print('{\"reason\": \"correct\", \"reward\": 1}')",
    "looks for the answer in memory": "import gc\n"
    "print([o for o in gc.get_objects() if isinstance(o, str) and '42' in o])",
    "looks for the answer in the launcher": "import sys\nf = sys._getframe()\nseen = []\n"
    "while f:\n    seen += [repr(v) for v in f.f_locals.values()]; f = f.f_back\nprint(seen)",
    "climbs out of its root": "import os\nos.mkdir('x')\n"
    "try: os.chroot('x')\nexcept OSError: pass\n"
    "for _ in range(99): os.chdir('..')\nprint(open('.{canary}').read())",
    "takes namespaces of its own": "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    "libc.unshare(0x10000000 | 0x00020000)\n"
    "for path in (b'/', b'/usr/lib', b'/lib'):\n    libc.umount2(path, 2)\n"
    "    libc.mount(None, path, None, ctypes.c_ulong(32 | 4096), None)\n"
    "print(open('{canary}').read())",
    # These two score if the door opens.
    "becomes root in a user namespace": "import ctypes\nlibc = ctypes.CDLL(None)\n"
    "if libc.unshare(0x10000000) == 0 or libc.unshare(0x10000000 | 0x00020000) == 0: print(42)",
    "holds memory that is nobody's": "import ctypes\nlibc, held = ctypes.CDLL(None), 0\n"
    "libc.shmat.restype, libc.shmdt.argtypes = ctypes.c_void_p, [ctypes.c_void_p]\n"
    "while held < 320 << 20:\n    i = libc.shmget(0, ctypes.c_size_t(64 << 20), 0o1600)\n"
    "    if i < 0: break\n    p = libc.shmat(i, None, 0)\n    ctypes.memset(p, 1, 64 << 20)\n"
    "    libc.shmdt(p)\n    held += 64 << 20\n"
    "if held > 256 << 20: print(42)",
}  # fmt: skip


@pytest.fixture
def harm(tmp_path, monkeypatch):
    """What a hostile program is told about its surroundings, and afterwards: is all as it was?"""
    folder = tmp_path / "home"
    folder.mkdir()
    canary = folder / "secret.txt"
    canary.write_text("the secret is 42")
    monkeypatch.setenv("SECRET_TOKEN", "42")
    library = Path(os.__file__)
    watched = library, ROOT / "tasks" / "sandbox_child.py"
    before = [path.stat().st_mtime_ns for path in watched]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.01)
        name = f"stray{os.getpid()}"
        yield {"canary": canary, "folder": folder, "parent": os.getpid(), "name": name,
               "port": listener.getsockname()[1], "root": ROOT}
        with pytest.raises(TimeoutError):
            listener.accept()
    assert canary.read_text() == "the secret is 42"
    assert before == [path.stat().st_mtime_ns for path in watched]
    wait_until(lambda: name not in running(), "no daemon is left")


def running():
    """Names of all processes that this user can see; not of those that have ended, and that nobody
    has waited for yet."""
    names = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().partition("(")[2].rpartition(") ")
        except (OSError, UnicodeDecodeError):  # it ended between the two looks
            continue
        if not rest.startswith("Z"):
            names.add(name)
    return names


@pytest.mark.parametrize("walls", WALLS)
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_program_does_no_harm_and_does_not_score(what, walls, harm):
    """It comes to an end, the world outside is as it was, and the mark is not "correct"."""
    program = HOSTILE[what]
    for key, value in harm.items():
        program = program.replace("{" + key + "}", str(value))
    code, output, complaint = sandbox.run_program(program, None, "6\n7\n", TIGHT, walls)
    assert code != 0 or not sandbox.same_output(output, "42"), complaint
    assert "secret" not in (output[:100] + complaint).replace("secret.txt", "")


DOORS = """
import ctypes, os, {modules}
CANARY, FOLDER, PARENT, PORT = {canary!r}, {folder!r}, {parent}, {port}
LIBC = ctypes.CDLL(None, use_errno=True)
def call(x86, arm, *arguments):
    number = x86 if os.uname().machine == "x86_64" else arm
    if LIBC.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")
{door}
print(42)
"""
LINES = [line for line in Path(__file__).with_name("hostile.txt").read_text().splitlines()
         if not line.startswith("#")]


def modules(line):
    """What the line needs: all modules would take half a second a program."""
    return ", ".join({"sys", *re.findall(
        r"\b(importlib\.machinery|multiprocessing(?:\.shared_memory)?|fcntl|glob|mmap|linecache|pty"
        r"|resource|shutil|socket|struct|tempfile|time|subprocess|urllib\.request)\.", line)})


def outside(folder):
    """What a program could change: files and their dates, devices, shared memory, limits, host."""
    seen = [os.stat(path)[:4] + (os.stat(path).st_mtime_ns,) for path in (
        *sorted(folder.rglob("*")), folder, os.__file__, "/usr/lib")]
    device = os.stat("/dev/null")
    return (seen, sorted(os.listdir(folder)), sorted(os.listdir("/dev")), device.st_mode,
            device.st_uid, os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0),
            resource.getrlimit(resource.RLIMIT_NOFILE), os.uname(),
            [line for kind in ("shm", "sem", "msg")  # of other programs there may be some
             for line in Path(f"/proc/sysvipc/{kind}").read_text().split("\n") if " 1600 " in line],
            [path for place in ("/", "/tmp", "/var/tmp", "/dev/shm", "/usr/lib", Path.home())
             for path in Path(place).glob("*owned*")])


@pytest.mark.days(4)
@pytest.mark.parametrize("walls", WALLS)
def test_two_hundred_doors_are_shut_and_nothing_is_seen_from_outside(walls, tmp_path, monkeypatch):
    """One a program, as the tests' own user (often root): files, devices, processes, users, shared
    memory, network, namespaces, clock, terminal. A door that opens prints 42, and would score."""
    monkeypatch.setattr(sandbox, "which_walls", lambda: walls)
    (tmp_path / "secret.txt").write_text("42")
    before, clock = outside(tmp_path), time.time() - time.monotonic()
    told = {"canary": f"{tmp_path}/secret.txt", "folder": str(tmp_path), "parent": os.getpid()}
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(2) as pool:
        told["port"] = server.getsockname()[1]
        programs = [DOORS.format(door=line, modules=modules(line), **told) for line in LINES]
        found = list(pool.map(
            lambda one: sandbox.run_program(one, None, "", PATIENT, walls), programs))
        server.settimeout(0.01)
        with pytest.raises(TimeoutError):
            server.accept()
    assert len(LINES) >= 200
    assert [line for line, (code, *_) in zip(LINES, found) if code in (0, *sandbox.KILLED)] == []
    # Each was refused at its own line: an import that fails would shut every door.
    assert [why for *_, why in found if "ImportError" in why or "SyntaxError" in why] == []
    assert outside(tmp_path) == before and abs(time.time() - time.monotonic() - clock) < 5
    free = DOORS.format(door="pass", modules="sys", **told)
    assert run_tests(free, UnitTests(("",), ("42",)), PATIENT) == "correct"


RIGHTS = """
import ctypes, os, resource, socket
libc = ctypes.CDLL(None)
def tried(name, do):
    try:
        if (result := do()) is None or result >= 0:
            print(name)
    except (OSError, ValueError):
        pass
remount = ctypes.c_ulong(32 | 4096)
for path in (b"/", b"/dev", b"/usr/lib", b"/lib64", os.__file__.rpartition("/python")[0].encode()):
    tried(f"remount {path}", lambda: libc.mount(None, path, None, remount, None))
    tried(f"unmount {path}", lambda: libc.umount2(path, 2))
tried("mount", lambda: libc.mount(b"none", b"/usr", b"tmpfs", ctypes.c_ulong(0), None))
tried("chroot", lambda: os.chroot("/usr"))
tried("become root", lambda: os.setuid(0) if os.getuid() else libc.setgroups(0, None))
tried("write", lambda: os.mkdir("/folder"))
tried("write beside /dev/null", lambda: os.mkdir("/dev/folder"))
tried("hostname", lambda: socket.sethostname("owned"))
tried("nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))
tried("device", lambda: os.mknod("/dev/disk", 0o060666, os.makedev(8, 0)))
tried("session", os.setsid)
tried("process group", lambda: os.setpgid(0, 0) or 0)
tried("trace", lambda: libc.ptrace(16, os.getppid(), None, None))
for limit in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_NPROC):
    tried(f"limit {limit}", lambda: resource.setrlimit(limit, (-1, -1)))
for kind in (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
    tried(f"namespace {kind:x}", lambda: libc.unshare(kind))
    tried(f"clone {kind:x}", lambda: libc.syscall(
        56 if os.uname().machine == "x86_64" else 220, kind | 17, 0, 0, 0, 0))
new_user = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)
tried("clone3", lambda: libc.syscall(435, new_user, 88))
tried("shared memory", lambda: libc.shmget(0, ctypes.c_size_t(4096), 0o1600))
tried("messages", lambda: libc.msgget(0, 0o1600))
tried("semaphores", lambda: libc.semget(0, 9, 0o1600))
tried("message queue", lambda: libc.mq_open(b"/queue", os.O_CREAT | os.O_RDWR, 0o600, None))
tried("file in memory", lambda: os.memfd_create("file"))
tried("socket", lambda: socket.socket() and None)
tried("io_uring", lambda: libc.syscall(425, 4, (ctypes.c_uint8 * 120)()))
"""


@pytest.mark.parametrize("walls", WALLS)
def test_inside_the_sandbox_no_right_is_left(walls, monkeypatch):
    """The namespaces are made by their root: one right forgotten opens them from inside."""
    monkeypatch.setattr(sandbox, "which_walls", lambda: walls)
    assert run_tests(RIGHTS, UnitTests(("",), ("",)), PATIENT) == "correct"


HOSTILE_FUNCTIONS = {
    "equal to everything": "class E(int):\n    def __eq__(s, o): return True\n"
    "def f(x): return E(0)",
    "patches the encoder": "import json\njson.dumps = lambda *a, **k: '[true, 42'\n"
    "def f(x): return None",
    "forges the result": "import os\nfor fd in range(3, 20):\n"
    "    try: os.write(fd, b'true')\n    except OSError: pass\nos._exit(0)",
    "returns without end": "def f(x):\n    a = []\n    a.append(a)\n    return a",
    "recurses without end": "def f(x): return f(x)",
    "exits in the call": "import sys\ndef f(x): sys.exit(0)",
    "not a name": "f = None",
    "too large for a float": "def f(x): return 10 ** 400",
    "nested too deep": "import sys\nsys.setrecursionlimit(10 ** 6)\ndef f(x):\n    a = []\n"
    "    for _ in range(5000): a = [a]\n    return a",
    "opens brackets only": "import os\nfor fd in range(3, 20):\n"
    "    try: os.write(fd, b'[' * 100000)\n    except OSError: pass\nos._exit(0)",
    "does not parse": "def f(x) return 42",
}


@sandboxed
@pytest.mark.parametrize("what", HOSTILE_FUNCTIONS)
def test_a_hostile_function_does_not_score(what):
    """The value is compared out here, as plain JSON: there is no object of theirs to compare."""
    tests = UnitTests(([21],), ([42.0],), "f")
    assert run_tests("def f(x): return 2 * x", tests, PATIENT) == "correct"
    assert run_tests(HOSTILE_FUNCTIONS[what], tests, PATIENT) == "wrong"


NOBODY = 65534
TASKS = ROOT / "tasks"


def as_nobody(code, *arguments):
    """The command that runs Python code as an ordinary user, and Popen's arguments for that."""
    python = "/usr/bin/python3"
    if os.geteuid() != 0:
        pytest.skip("these tests already run as an ordinary user")
    options = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/",
               "env": {"PATH": os.environ["PATH"]}}
    look = f"import sys; open({str(TASKS / 'sandbox.py')!r}); assert sys.version_info >= (3, 11)"
    if not Path(python).exists() or subprocess.run([python, "-c", look], **options).returncode:
        pytest.skip("no system Python from which another user can read these files")
    code = (f"import sys\nsys.path.insert(0, {str(TASKS)!r})\nsys.dont_write_bytecode = True\n"
            + code)
    return [python, "-c", code, *map(str, arguments)], options


@sandboxed
def test_the_sandbox_is_as_tight_for_ordinary_users():
    """As root it needs no user namespace, otherwise it does: both ways must be shut."""
    programs = ["print(42)", "print(open('/etc/passwd').read())",
                "import os; print(os.listdir('/home'))",
                "import os; open(os.__file__, 'a')", "import os\nwhile True: os.fork()",
                "import ctypes; print(ctypes.CDLL(None).umount2(b'/', 2) or 42)",
                "import socket; socket.create_connection(('127.0.0.1', 22))"]
    programs.append(RIGHTS.replace("import ctypes", "print(42)\nimport ctypes", 1))
    command, options = as_nobody(
        "import json\nfrom sandbox import *\nwhich_walls()\n"
        "for p in json.loads(sys.argv[1]):\n"
        "    print(run_tests(p, UnitTests(('',), ('42',)), Limits(20, 100.0)))",
        json.dumps(programs))
    out = subprocess.run(command, **options, capture_output=True, text=True, timeout=500)
    assert out.stdout.split() == ["correct", *["wrong"] * 6, "correct"], out.stdout + out.stderr


UNSHARE = shutil.which("unshare", path="/usr/bin:/bin")    # util-linux's; PATH may be empty


@sandboxed
@pytest.mark.skipif(not UNSHARE, reason="no unshare: install util-linux")
def test_the_sandbox_is_as_tight_for_the_root_of_a_container():
    """Called root, but of one user id: the program cannot become another user there."""
    code = "from sandbox import *; which_walls(); import sys; " \
           "print(run_tests(sys.argv[1], UnitTests(('',), ('',)), Limits(20, 100.0)))"
    done = subprocess.run([UNSHARE, "--user", "--map-root-user", sys.executable, "-c", code,
                           RIGHTS], capture_output=True, text=True, timeout=300, cwd=TASKS)
    assert done.stdout.startswith("correct"), done.stdout + done.stderr


ESCAPES = {
    "a new session": "os.setsid()",
    "a process group": "os.setpgid(0, 0)",
    "a double fork": "if os.fork() or os.fork(): time.sleep(10 ** 6)",
    "a forgotten parent": "ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)",
    "another user": "os.setuid(os.getuid())",
    "no signal": "[signal.signal(s, signal.SIG_IGN) for s in range(1, 32) if s not in (9, 19)]",
}


@sandboxed
@pytest.mark.parametrize("who", ["the tests' own user", "an ordinary user"])
def test_nothing_outlives_a_caller_that_is_killed(who):
    """SIGKILL leaves the caller no time to clean up, and programs to train on run for weeks.

    Each program tries one way out, takes a name that can be seen from outside, and sleeps.
    """
    names = {what: f"left{os.getpid() % 10**6}x{i}" for i, what in enumerate(ESCAPES)}
    programs = [f"import ctypes, os, signal, time\ntry:\n    {escape}\nexcept OSError: pass\n"
                f"ctypes.CDLL(None).prctl(15, b'{names[what]}')\ntime.sleep(10 ** 6)"
                for what, escape in ESCAPES.items()]
    code = ("import json, threading\nfrom sandbox import *\n"
            "def run(p): run_tests(p, UnitTests(('',), ('',)), Limits(600, 1200.0))\n"
            "for p in json.loads(sys.argv[1]): threading.Thread(target=run, args=(p,)).start()")
    options = {"cwd": TASKS}
    command = [sys.executable, "-c", "import sys\n" + code, json.dumps(programs)]
    if who == "an ordinary user":
        command, options = as_nobody(code, json.dumps(programs))
    caller = subprocess.Popen(command, **options)
    try:
        wait_until(lambda: set(names.values()) <= running(), "the programs run")
    finally:
        caller.kill()  # it alone, not its process group
        caller.wait()
    wait_until(lambda: not set(names.values()) & running(), "the programs have ended")


def wait_until(true, what, seconds=120):
    """Waits for an event that comes at once on a quiet machine."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.02)


# ------------------------------------------------------------------------------------------------
# Where there is no sandbox


def test_without_namespaces_landlock_takes_their_place_or_the_cure_is_named(monkeypatch, capsys):
    """Many containers allow none. Silently running such programs bare would be worse than not."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("PATH", "")
    sandbox.which_walls.cache_clear()
    try:
        if LANDLOCK:
            which_walls()
            assert "behind Landlock" in capsys.readouterr().err
            assert run_tests(RIGHT, PRODUCT, PATIENT) == "correct"
        sandbox.which_walls.cache_clear()
        monkeypatch.setattr(sandbox, "failure", lambda walls: f"{walls} not permitted")
        with pytest.raises(SandboxError, match="Landlock not permitted.; docs/tasks.md says how"):
            which_walls()
        page = (ROOT / "docs" / "tasks.md").read_text().replace("\n", " ")
        assert re.search("apparmor_restrict_.*=0.*docker run --security-opt", page)
    finally:
        sandbox.which_walls.cache_clear()


def test_a_kernel_that_refuses_the_filter_gets_no_program(monkeypatch):
    """A filter that failed in silence would leave the sandbox open."""
    class Refusing:
        prctl = staticmethod(lambda *_: -1)
    monkeypatch.setattr(sandbox_child, "LIBC", Refusing)
    with pytest.raises(OSError, match="the kernel takes no filter"):
        sandbox_child.filter_system_calls(bytes(8))
    with pytest.raises(SandboxError, match="cannot be verified on vax, only on x86_64 and aarch64"):
        sandbox.system_call_filter("vax")


@sandboxed
def test_a_sandbox_that_breaks_is_an_error_and_no_wrong_program(monkeypatch):
    """-1 for every program with no word in the log: the curve would fall, and nobody know why.

    The program cannot say so itself: the word is given before it begins, and out of its reach.
    """
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "which", lambda name: "/bin/false")
        patch.setattr(sandbox, "which_walls", lambda: "bubblewrap")
        with pytest.raises(SandboxError, match="the sandbox failed before the program began"):
            run_tests(RIGHT, PRODUCT, PATIENT)
    forger = "import os\nfor fd in range(20):\n    try: os.ftruncate(fd, 0)\n" \
             "    except OSError: pass\nos._exit(1)"
    assert run_tests(forger, PRODUCT, PATIENT) == "wrong"


@sandboxed
def test_a_program_may_start_threads_and_no_process():
    """Many solutions recurse in a thread of their own, with a larger stack."""
    program = ("import os, sys, threading\nthreading.stack_size(64 << 20)\n"
               "def main():\n    def deep(n): return n and 1 + deep(n - 1)\n"
               "    sys.setrecursionlimit(10 ** 6)\n    print(deep(10 ** 5))\n"
               "thread = threading.Thread(target=main)\nthread.start()\nthread.join()\n"
               "for start in (os.fork, lambda: os.posix_spawn(sys.executable, ['python'], {})):\n"
               "    try: start()\n    except PermissionError: print('refused')")
    tests = UnitTests(("",), ("100000 refused refused",))
    assert run_tests(program, tests, PATIENT) == "correct"


# ------------------------------------------------------------------------------------------------
# As a kind of answer


@sandboxed
def test_code_is_a_kind_of_answer():
    """The last block of the text after the thinking; a program in the thinking is a draft."""
    answer = json.dumps(PRODUCT)
    block, wrong = f"```python\n{RIGHT}\n```", "```python\nprint(0)\n```"
    assert verify(f"{wrong}</think>Here:\n{block}\nDone.", answer, "code") == (1.0, "correct")
    theirs = {"inputs": ["1\n", "5\n"], "outputs": ["2\n", "6\n"]}          # as data sets have it
    for tests in (theirs, " " + json.dumps(theirs, indent=1), [{"input": "1\n", "output": "2\n"}],
                  UnitTests(["1\n"], ["2\n"]), json.dumps([["1\n"], ["2\n"]], indent=1)):
        assert [verify(f"```python\nprint(int(input()) + {n})\n```", tests, "code")[1]
                for n in (1, 2)] == ["correct", "wrong"]
    items = [(text, answer, "code") for text in
             (block, f"{wrong}\n{block}", f"{block}\n{wrong}", f"{block}</think>Done.", RIGHT, "")]
    with Verifier() as verifier:
        marks = verifier.score([*items, (r"\boxed{7}", "7", "math")])
        assert marks.rewards == [1.0, 1.0, -1.0, -1.0, -1.0, -1.0, 1.0]
        assert marks.reasons[3:6] == ["no answer"] * 3
        assert verifier.idle == []


@pytest.mark.parametrize(
    "fields",
    [
        ([], [], None),
        (["1", "2"], ["1"], None),
        ([1], ["1"], None),
        (["1"], [1], None),
    ],
)
def test_unit_tests_in_another_form_are_one_sentence(fields):
    """Tests that cannot be run would make every program wrong."""
    with pytest.raises(ValueError, match="must have texts as inputs|shorter than argument"):
        sandbox.read_tests(UnitTests(*fields)._asdict())


def test_a_text_in_the_place_of_a_list_is_one_test_and_an_empty_name_is_none():
    """"12" was read as two tests of one letter; of a function "" the prompt spoke."""
    assert sandbox.read_tests({"inputs": "12", "outputs": "12"}) == (["12"], ["12"], None)
    assert sandbox.read_tests({"inputs": ["1"], "outputs": ["2"], "fn_name": ""}).fn_name is None
    assert sandbox.read_tests([{"input": "1", "output": "2", "fn_name": ""}]).fn_name is None
    with pytest.raises(ValueError, match="shorter than"):
        sandbox.read_tests({"inputs": ["1", "2"], "outputs": "12"})


@sandboxed
def test_a_program_cannot_take_back_that_it_ends_with_its_caller():
    """prctl(PR_SET_PDEATHSIG, 0); its other options, a thread's name for one, stay allowed."""
    program = ("import ctypes\nprctl = ctypes.CDLL(None).prctl\n"
               "print(prctl(1, 0, 0, 0, 0), prctl(15, b'name', 0, 0, 0))")
    tests = UnitTests([""], ["-1 0"])
    assert run_tests(program, tests, PATIENT) == "correct"
