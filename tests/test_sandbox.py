"""What sandbox.py promises: right programs score, no other does, and none does harm.

Each hostile program is run in the real box, as the user the tests run as. Where the machine allows
no namespaces these tests are skipped, out loud, and code cannot be marked there either.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

import box
import sandbox
from sandbox import Limits, SandboxError, UnitTests, check_box, parse_tests, run_tests
from verify import Marker, verify

try:
    check_box()
    BOXED = True
except SandboxError as error:
    BOXED, WHY = False, str(error)
boxed = pytest.mark.skipif(not BOXED, reason=BOXED or WHY)
# For programs that end by themselves: a busy machine must not make them late.
PATIENT = Limits(cpu_s=20, wall_s=100.0, memory_bytes=256 << 20)
# For the others: small, so that a program which only waits does not make the tests wait.
TIGHT = Limits(cpu_s=1, wall_s=1.0, memory_bytes=256 << 20, processes=4, file_bytes=1 << 20)
PRODUCT = UnitTests(("6\n7\n", "-3\n5\n"), ("42\n", "-15\n"))
RIGHT = "a = int(input())\nb = int(input())\nprint(a * b)"


# ------------------------------------------------------------------------------------------------
# Right and wrong programs


@boxed
def test_a_right_program_passes_and_a_wrong_one_does_not():
    """On standard input and output. One failed test is enough to fail."""
    assert run_tests(RIGHT, PRODUCT, PATIENT) == ("correct", "2 of 2 tests")
    assert run_tests(RIGHT.replace("*", "+"), PRODUCT, PATIENT)[0] == "wrong"
    lucky = run_tests("print(42)", PRODUCT, PATIENT)
    assert lucky[0] == "wrong" and "test 2 of 2" in lucky[1]


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


@boxed
@pytest.mark.parametrize(("program", "right"), FUNCTIONS)
def test_functions_are_called_and_their_values_compared(program, right):
    """As in LeetCode's problems: a function or a method of Solution, values as JSON."""
    tests = UnitTests(([[1, 2, 3], 2], [[], 5]), (12, [0]), "total")  # [0]: as TACO wraps it
    assert (run_tests(program, tests, PATIENT)[0] == "correct") == right


def test_outputs_are_compared_word_by_word():
    """A missing newline at the end is not a wrong answer; a missing word is."""
    assert sandbox.same_output("1 2\n3", "1 2 \n3\n")
    assert not sandbox.same_output("1 2", "1 2 3")
    assert sandbox.same_output("0.3333333", "0.33333333333")
    assert not sandbox.same_output("0.334", "0.333")
    assert not sandbox.same_output("3.0000001", "3")  # an integer is exact
    assert not sandbox.same_output("nan", "0.5") and not sandbox.same_output("yes", "0.5")


def test_values_are_compared_by_type_and_value():
    """In Python True == 1: a program that answers yes or no has not counted."""
    assert not sandbox.same_value(True, 1) and not sandbox.same_value(1, True)
    assert sandbox.same_value([1, {"a": 0.1 + 0.2}], [1, {"a": 0.3}])
    assert not sandbox.same_value([1, 2], [1, 2, 3]) and not sandbox.same_value("1", 1)
    assert not sandbox.same_result("no JSON", 1)


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
    "writes into the box's own file": "open('{root}/box.py', 'a').write('#')",
    "kills the parent": "import os\nfor p in ({parent}, os.getppid(), -1):\n"
    "    try: os.kill(p, 9)\n    except OSError: pass",
    "kills its process group": "import os\nos.killpg(0, 9)",
    "opens a socket": "import socket\n"
    "socket.create_connection(('127.0.0.1', {port}), 1).send(b'x')",
    "asks for a name": "import socket\nprint(socket.getaddrinfo('example.com', 80))",
    "runs a shell": "import os\nassert os.system('echo 42') == 0",
    "leaves a daemon behind": "import os, time, ctypes\n"
    "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
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
    before = library.stat().st_mtime_ns, (ROOT / "box.py").stat().st_mtime_ns
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
    assert before == (library.stat().st_mtime_ns, (ROOT / "box.py").stat().st_mtime_ns)
    assert name not in running()


def running():
    """Names of all processes that this user can see."""
    names = set()
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            names.add(path.read_text().strip())
        except OSError:  # it ended between the two looks
            continue
    return names


@boxed
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_program_does_no_harm_and_does_not_score(what, harm):
    """It comes to an end, the world outside is as it was, and the mark is not "correct"."""
    program = HOSTILE[what]
    for key, value in harm.items():
        program = program.replace("{" + key + "}", str(value))
    reason, detail = run_tests(program, UnitTests(("6\n7\n",), ("42",)), TIGHT)
    assert reason in ("wrong", "timeout"), detail
    assert "secret" not in detail.replace("secret.txt", "")


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
for path in (b"/", b"/usr/lib", b"/lib64", os.__file__.rpartition("/python")[0].encode()):
    tried(f"remount {path}", lambda: libc.mount(None, path, None, remount, None))
    tried(f"unmount {path}", lambda: libc.umount2(path, 2))
tried("mount", lambda: libc.mount(b"none", b"/tmp", b"tmpfs", ctypes.c_ulong(0), None))
tried("chroot", lambda: os.chroot("/tmp"))
tried("become root", lambda: os.setuid(0) if os.getuid() else libc.setgroups(0, None))
tried("hostname", lambda: socket.sethostname("owned"))
tried("nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))
tried("device", lambda: os.mknod("/tmp/disk", 0o060666, os.makedev(8, 0)))
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


@boxed
def test_inside_the_box_no_right_is_left():
    """The namespaces are made by their root: one right forgotten opens them from inside."""
    assert run_tests(RIGHTS, UnitTests(("",), ("",)), PATIENT) == ("correct", "1 of 1 tests")


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


@boxed
@pytest.mark.parametrize("what", HOSTILE_FUNCTIONS)
def test_a_hostile_function_does_not_score(what):
    """The value is compared out here, as plain JSON: there is no object of theirs to compare."""
    tests = UnitTests(([21],), (42.0,), "f")
    assert run_tests("def f(x): return 2 * x", tests, PATIENT)[0] == "correct"
    assert run_tests(HOSTILE_FUNCTIONS[what], tests, PATIENT)[0] == "wrong"


@boxed
def test_the_box_shuts_for_ordinary_users_as_well():
    """As root the box needs no user namespace, otherwise it does: both ways must be shut."""
    python = "/usr/bin/python3"
    if os.geteuid() != 0:
        pytest.skip("these tests already run as an ordinary user")
    if not Path(python).exists() or not os.access(ROOT, os.X_OK):
        pytest.skip("no system Python to run as another user")
    programs = ["print(42)", "print(open('/etc/passwd').read())",
                "import os; print(os.listdir('/home'))",
                "import os; open(os.__file__, 'a')", "import os\nwhile True: os.fork()",
                "import ctypes; print(ctypes.CDLL(None).umount2(b'/', 2) or 42)",
                "import socket; socket.create_connection(('127.0.0.1', 22))"]
    code = ("import json, sys\nsys.path.insert(0, sys.argv[1])\nsys.dont_write_bytecode = True\n"
            "from sandbox import *\ncheck_box()\nlimits = Limits(cpu_s=20, wall_s=100.0)\n"
            "for p in json.loads(sys.argv[2]):\n"
            "    print(run_tests(p, UnitTests(('',), ('42',)), limits)[0])")
    programs.append(RIGHTS.replace("import ctypes", "print(42)\nimport ctypes", 1))
    command = [python, "-c", code, ROOT, json.dumps(programs)]
    out = subprocess.run(command, user=65534, group=65534, extra_groups=[],
                         capture_output=True, text=True, timeout=500, cwd="/", env={})
    if "SyntaxError" in out.stderr or "Permission denied" in out.stderr:
        pytest.skip(f"another user cannot run it here: {out.stderr[-200:]}")
    assert out.stdout.split() == ["correct", *["wrong"] * 6, "correct"], out.stdout + out.stderr


@boxed
def test_the_box_shuts_for_the_root_of_a_container_as_well():
    """Called root, but of one user id: the program cannot become another user there."""
    code = "from sandbox import *; check_box(); import sys; " \
           "print(run_tests(sys.argv[1], UnitTests(('',), ('',)), Limits(20, 100.0)))"
    done = subprocess.run(["unshare", "--user", "--map-root-user", sys.executable, "-c", code,
                           RIGHTS], capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.stdout.startswith("('correct'"), done.stdout + done.stderr


# ------------------------------------------------------------------------------------------------
# Where there is no box


def test_without_namespaces_code_is_refused_with_a_way_out(monkeypatch):
    """Many containers allow none. Silently running such programs bare would be worse than not."""
    monkeypatch.setattr(sandbox, "run_tests", lambda *_, **__: ("wrong", "unshare: not permitted"))
    with pytest.raises(SandboxError, match="not permitted.*unsafe_code = true"):
        check_box()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SandboxError, match="there is no 'unshare'"):
        check_box()
    monkeypatch.undo()
    check_box(unsafe=True)


@pytest.mark.parametrize("call", ["prctl", "capset"])
def test_a_kernel_that_refuses_the_last_lock_gets_no_program(call, monkeypatch):
    """A filter or a drop of rights that failed in silence would leave an open box."""
    class Refusing:
        prctl = capset = staticmethod(lambda *_: 0)
    monkeypatch.setattr(Refusing, call, staticmethod(lambda *_: -1))
    monkeypatch.setattr(box, "LIBC", Refusing)
    with pytest.raises(OSError, match="the kernel takes no filter|could not be dropped"):
        box.drop_rights(0)
        box.filter_system_calls(bytes(8))
    with pytest.raises(SandboxError, match="cannot be marked on vax, only on x86_64 and aarch64"):
        sandbox.system_call_filter("vax")


@boxed
def test_a_box_that_breaks_is_an_error_and_no_wrong_program(monkeypatch):
    """-1 for every program with no word in the log: the curve would fall, and nobody know why.

    The program cannot say so itself: the word is given before it begins, and out of its reach.
    """
    which = shutil.which
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "which", lambda name: which({"unshare": "false"}.get(name, name)))
        reason, detail = run_tests(RIGHT, PRODUCT, PATIENT)
        assert reason == "error" and "the box failed before the program began" in detail
        with pytest.raises(SandboxError, match="there is no box here .*the box failed"):
            check_box()
    forger = "import os\nfor fd in range(20):\n    try: os.ftruncate(fd, 0)\n" \
             "    except OSError: pass\nos._exit(1)"
    assert run_tests(forger, PRODUCT, PATIENT)[0] == "wrong"
    assert run_tests(forger, PRODUCT, PATIENT, unsafe=True)[0] == "wrong"


@pytest.mark.parametrize("what", ["endless loop", "sleeps for ever", "memory bomb",
                                  "endless output", "exits before the checks",
                                  "patches the checker", "reads the trainer's environment",
                                  "holds memory that is nobody's"])
def test_limits_hold_without_the_box_as_well(what, monkeypatch):
    """`unsafe` gives up the walls, not the limits, the deadline, or the empty environment."""
    monkeypatch.setenv("SECRET_TOKEN", "42")
    tests = UnitTests(("",), ("42",))
    assert run_tests("print(42)", tests, PATIENT, unsafe=True)[0] == "correct"
    segments = Path("/proc/sysvipc/shm").read_text()
    assert run_tests(HOSTILE[what], tests, TIGHT, unsafe=True)[0] in ("wrong", "timeout")
    assert Path("/proc/sysvipc/shm").read_text() == segments    # they outlive their process


# ------------------------------------------------------------------------------------------------
# As a kind of answer


@boxed
def test_code_is_a_kind_of_answer():
    """The last block of the text after the thinking; a program in the thinking is a draft."""
    answer = PRODUCT.to_json()
    block, wrong = f"```python\n{RIGHT}\n```", "```python\nprint(0)\n```"
    assert verify(f"{wrong}</think>Here:\n{block}\nDone.", answer, "code") == (1.0, "correct")
    items = [(text, answer, "code") for text in
             (block, f"{wrong}\n{block}", f"{block}\n{wrong}", f"{block}</think>Done.", RIGHT, "")]
    with Marker() as marker:
        marks = marker.mark([*items, (r"\boxed{7}", "7", "math")])
        assert marks.rewards == [1.0, 1.0, -1.0, -1.0, -1.0, -1.0, 1.0]
        assert marks.reasons[3:6] == ["no answer"] * 3
        assert all(worker.process is None for worker in marker.workers)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([1], 'must be an object with "inputs"'),
        ({"inputs": ["1"]}, 'must be an object with "inputs"'),
        ({"inputs": [], "outputs": []}, "and not empty"),
        ({"inputs": ["1", "2"], "outputs": ["1"]}, "2 inputs and 1 outputs"),
        ({"inputs": [1], "outputs": ["1"]}, "must be of type str"),
        ({"inputs": ["1"], "outputs": [1]}, "must be text"),
        ({"inputs": ["1"], "outputs": [1], "fn_name": "f"}, "must be of type list"),
        ({"inputs": [[1]], "outputs": [1], "fn_name": "f()"}, "is no name of a function"),
    ],
)
def test_unit_tests_in_another_form_are_one_sentence(fields, message):
    """Tests that cannot be run would make every program wrong."""
    with pytest.raises(ValueError, match=message):
        parse_tests(json.dumps(fields))
    with pytest.raises(ValueError, match="not JSON"):
        parse_tests("{")
    assert parse_tests(PRODUCT.to_json()) == PRODUCT
