"""The launcher: what it starts, what it does when something ends, and that nothing is left.

Most tests run the real supervisor over stand-ins, a few lines of Python each, with real signals
and real trees of processes.
"""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
from conftest import ROOT

import launch

LIMIT_S = 60                                # nothing here takes longer; a hang fails

# Writes its pid and starts a child in a session of its own, as vLLM and torchrun do; then BODY.
STAND_IN = """
import os, signal, subprocess, sys, time
def note(word):
    with open(sys.argv[0] + ".notes", "a") as file:
        file.write(f"{word} {os.getpid()}\\n")
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
note(f"child {child.pid} of")
"""


def stand_in(folder, name, body):
    path = folder / f"{name}.py"
    path.write_text(STAND_IN + textwrap.dedent(body))
    return path


def notes(path):
    """[(word, pid)] that a stand-in has written."""
    file = path.with_name(path.name + ".notes")
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def until(true, what, limit_s=LIMIT_S):
    deadline = time.monotonic() + limit_s
    while not (result := true()):
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.02)
    return result


def tree(process):
    """All that runs below it, with it. A process keeps its identity here even if its pid is used
    again later."""
    try:
        root = psutil.Process(process.pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@contextlib.contextmanager
def launcher(folder, trainer, *servers, ranks=False):
    """The supervisor in a process of its own, over these stand-ins. Kills what a failed test
    would leave, and says so."""
    script = folder / "launcher.py"
    script.write_text(textwrap.dedent(f"""
        import sys
        import launch
        command = lambda path: [sys.executable, path]
        servers = [launch.Child(f"server {{i}}", command(path), log=f"{{path}}.log")
                   for i, path in enumerate({[str(s) for s in servers]})]
        trainer = {str(trainer) if trainer else None!r}
        trainer = trainer and launch.Child("trainer", command(trainer), ranks={ranks})
        sys.exit(launch.supervise(trainer, servers))
    """))
    process = subprocess.Popen([sys.executable, script], cwd=ROOT, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=os.environ | {"PYTHONPATH": str(ROOT)})
    process.seen = []
    try:
        yield process
    finally:
        left = [p for p in {*process.seen, *tree(process)} if p.is_running()
                and p.status() != psutil.STATUS_ZOMBIE]
        for p in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                p.kill()
        process.communicate(timeout=LIMIT_S)


def gone(processes):
    return all(not p.is_running() or p.status() == psutil.STATUS_ZOMBIE for p in processes)


def all_up(process, *paths):
    """Wait until all of the stand-ins have said "up"; then the whole tree below the launcher."""
    for path in paths:
        until(lambda: any(n[0] == "up" for n in notes(path)), f"{path.name} up")
    process.seen = tree(process)
    # launcher; leash, stand-in and its child for each
    assert len(process.seen) == 1 + 3 * len(paths)
    return process.seen


def pid_of(path):
    """The process of this stand-in that came up last."""
    return int([n[-1] for n in notes(path) if n[0] == "up"][-1])


SERVES = "note('up'); time.sleep(600)"
# Ends with the status that it finds in the file beside it, or like scalerl.py after Ctrl-C.
TRAINS = """
stop = []
signal.signal(signal.SIGINT, lambda *_: stop.append(1))
note("up")
while not stop and not os.path.exists(sys.argv[0] + ".end"):
    time.sleep(0.02)
if stop:
    time.sleep(0.5)
    note("checkpoint")
    sys.exit(0)
print("the cause, on standard error", file=sys.stderr)
sys.exit(int(open(sys.argv[0] + ".end").read()))
"""


@pytest.fixture
def parts(tmp_path):
    """A trainer and two servers."""
    return stand_in(tmp_path, "trainer", TRAINS), *(
        stand_in(tmp_path, f"server{i}", SERVES) for i in range(2))


def test_when_the_trainer_ends_the_servers_and_all_they_started_end(parts, tmp_path):
    with launcher(tmp_path, *parts) as process:
        processes = all_up(process, *parts)
        (tmp_path / "trainer.py.end").write_text("0")
        assert process.wait(LIMIT_S) == 0
        assert gone(processes)


@pytest.mark.parametrize("status, code", [(1, 1), (2, 2), (77, 1)])
def test_a_trainer_that_fails_ends_the_run_with_its_own_words(status, code, parts, tmp_path):
    with launcher(tmp_path, *parts) as process:
        processes = all_up(process, *parts)
        (tmp_path / "trainer.py.end").write_text(str(status))
        assert process.wait(LIMIT_S) == code
        assert gone(processes)
        error = process.stderr.read()
        assert error.startswith("the cause, on standard error")
        assert (f"exit status {status}" in error) == (status != 2)


def test_a_killed_trainer_leaves_no_server(parts, tmp_path):
    with launcher(tmp_path, *parts) as process:
        processes = all_up(process, *parts)
        os.kill(pid_of(parts[0]), signal.SIGKILL)
        assert process.wait(LIMIT_S) == 1
        assert gone(processes)
        assert "trainer ended by SIGKILL: out of memory?" in process.stderr.read()


def test_the_first_ctrl_c_lets_the_trainer_write_its_checkpoint(parts, tmp_path):
    with launcher(tmp_path, *parts) as process:
        processes = all_up(process, *parts)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0
        assert gone(processes)
        assert notes(parts[0])[-1][0] == "checkpoint"


def test_of_several_ranks_only_rank_0_gets_the_ctrl_c(parts, tmp_path):
    """torchrun would end its ranks at once, and a rank that ends alone hangs the others."""
    agent = tmp_path / "agent.py"
    agent.write_text(textwrap.dedent(f"""
        import os, signal, subprocess, sys
        signal.signal(signal.SIGINT, lambda *_: os._exit(3))
        ranks = [subprocess.Popen([sys.executable, {str(parts[0])!r}, r], start_new_session=True,
                                  env=os.environ | {{"RANK": r}}) for r in "10"]
        open(sys.argv[0] + ".notes", "w").write("".join(f"up {{p.pid}}\\n" for p in ranks))
        assert ranks[1].wait() == 0
        os.kill(ranks[0].pid, signal.SIGINT)
        sys.exit(ranks[0].wait())
    """))
    with launcher(tmp_path, agent, parts[1], ranks=True) as process:
        until(lambda: len([n for n in notes(parts[0]) if n[0] == "up"]) == 2, "both ranks up")
        process.seen = tree(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0
        assert gone(process.seen)
        one, zero = (int(n[1]) for n in notes(agent))
        assert [int(n[1]) for n in notes(parts[0]) if n[0] == "checkpoint"] == [zero, one]


def test_a_second_ctrl_c_ends_all_at_once(parts, tmp_path):
    stubborn = stand_in(tmp_path, "stubborn", """
        signal.signal(signal.SIGINT, lambda *_: note("interrupted"))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note("up")
        while True: time.sleep(1)
    """)
    with launcher(tmp_path, stubborn, parts[1]) as process:
        processes = all_up(process, stubborn, parts[1])
        process.send_signal(signal.SIGINT)
        until(lambda: notes(stubborn)[-1][0] == "interrupted", "the first Ctrl-C passed on")
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 128 + signal.SIGINT
        assert gone(processes)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_no_end_of_the_launcher_leaves_a_process(number, parts, tmp_path):
    """With SIGKILL it can do nothing itself: each leash sees that its other end is gone."""
    with launcher(tmp_path, *parts) as process:
        processes = all_up(process, *parts)
        process.send_signal(number)
        assert process.wait(LIMIT_S) == (143 if number == signal.SIGTERM else -number)
        until(lambda: gone(processes), "no process left")


def test_a_leash_that_is_killed_itself_takes_its_command_along(parts, tmp_path):
    with launcher(tmp_path, *parts) as process:
        processes = all_up(process, *parts)
        server = psutil.Process(pid_of(parts[1]))
        server.parent().kill()
        until(lambda: gone([server]), "the server gone")
        (tmp_path / "trainer.py.end").write_text("0")
        assert process.wait(LIMIT_S) == 0
        # Only what the command had started in a session of its own may be left: one process.
        assert sum(not gone([p]) for p in processes) <= 1


def test_a_dead_server_is_started_again_and_nothing_of_the_first_is_left(parts, tmp_path):
    with launcher(tmp_path, *parts) as process:
        processes = all_up(process, *parts)
        first = psutil.Process(pid_of(parts[2]))
        child = first.children()[0]
        first.kill()
        until(lambda: pid_of(parts[2]) != first.pid, "started again")
        assert gone([first, child])             # a half-dead server would keep its GPU and port
        process.seen += tree(process)
        (tmp_path / "trainer.py.end").write_text("0")
        assert process.wait(LIMIT_S) == 0
        assert gone([*processes, *process.seen])
        assert "server 1 has ended by SIGKILL; it is started again" in process.stderr.read()


def test_a_server_that_keeps_ending_ends_the_run_with_the_end_of_its_log(parts, tmp_path):
    bad = stand_in(tmp_path, "bad", "note('up'); print('no room for the cache'); sys.exit(5)")
    with launcher(tmp_path, parts[0], parts[1], bad) as process:
        assert process.wait(LIMIT_S) == 1
        error = process.stderr.read()
        assert "server 1 has ended 3 times within 10 minutes, now with exit status 5" in error
        assert error.rstrip().endswith("no room for the cache") and f"{bad}.log" in error
        assert [n[0] for n in notes(bad)].count("up") == 3
        pids = {int(n[-1]) for path in parts for n in notes(path)}
        assert not pids & set(psutil.pids())
