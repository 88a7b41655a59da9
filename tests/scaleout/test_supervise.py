"""The supervisor: what it does when something ends, and that nothing is left.

The real supervisor runs over stand-ins, a few lines of Python each, with real signals and real
trees of processes.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
from conftest import ROOT
from processes import LIMIT_S, ended, gone, tree, until

from scaleout.supervise import Child

# Writes its pid and starts a child in a session of its own, as vLLM and accelerate do; then BODY.
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


@contextlib.contextmanager
def launcher(folder, trainer, *servers, others=()):
    """The supervisor in a process of its own, over these stand-ins. Kills what a failed test
    would leave, and says so. trainer: None: servers alone; others: further ranks, with logs of
    their own."""
    script = folder / "launcher.py"
    script.write_text(textwrap.dedent(f"""
        import pathlib, sys
        from scaleout.supervise import Child, Supervisor
        def children(name, paths):
            return [Child(f"{{name}} {{i}}", [sys.executable, path], log=f"{{path}}.log",
                          hangs=pathlib.Path(f"{{path}}.hangs"))
                    for i, path in enumerate(paths)]
        trainers = [Child("trainer", [sys.executable, {str(trainer)!r}])][:{bool(trainer):d}]
        trainers += children("another rank,", {[str(o) for o in others]})
        sys.exit(Supervisor(trainers, children("server", {[str(s) for s in servers]})).run())
    """))
    process = subprocess.Popen([sys.executable, script], cwd=ROOT, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=os.environ | {"PYTHONPATH": str(ROOT)},
                               # Tests run by nohup would hand it a deaf ear.
                               preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
    process.seen = []
    try:
        yield process
    finally:
        left = [p for p in {*process.seen, *tree(process)} if not ended(p)]
        for p in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                p.kill()
        process.communicate(timeout=LIMIT_S)


def all_up(process, *paths):
    """Wait until all of the stand-ins have said "up"; then the whole tree below the launcher."""
    for path in paths:
        until(lambda: any(n[0] == "up" for n in notes(path)), f"{path.name} up")
    process.seen = tree(process)
    # launcher; reaper, stand-in and its child for each
    assert len(process.seen) == 1 + 3 * len(paths)
    return process.seen


def pid_of(path):
    """The process of this stand-in that came up last."""
    return int([n[-1] for n in notes(path) if n[0] == "up"][-1])


SERVES = "note('up'); time.sleep(600)"


def test_a_server_whose_reaper_is_killed_does_not_keep_its_port(tmp_path):
    """Nobody else would end it, and the one that is started again found its address in use. (What
    the server has put into sessions of its own is left: vLLM's workers end with it.)"""
    trainer, server = (stand_in(tmp_path, name, SERVES) for name in ("trainer", "server"))
    with launcher(tmp_path, trainer, server) as process:
        all_up(process, trainer, server)
        old = psutil.Process(pid_of(server))
        psutil.Process(old.ppid()).kill()
        until(lambda: gone([old]), "the old server's end")
        until(lambda: pid_of(server) != old.pid, "a new server")


# Ends with the status that it finds in the file beside it, or like scalerl.py after Ctrl-C.
TRAINS = """
stop = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, _: stop.append(number))
note("up")
end = sys.argv[0] + ".end"
while not stop and not (os.path.exists(end) and os.path.getsize(end)):
    time.sleep(0.02)
if stop:
    time.sleep(0.5)
    note("checkpoint")
    sys.exit(130 if stop[0] == signal.SIGINT else 75)
print("the cause, on standard error", file=sys.stderr)
sys.exit(int(open(end).read()))
"""


def ends_and_the_run_goes_on(process, path):
    """This stand-in for a rank ends well, and its launcher waits for something else."""
    rank = psutil.Process(pid_of(path))
    path.with_name(path.name + ".end").write_text("0")
    until(lambda: gone([rank]), "the rank's end")
    time.sleep(0.5)                             # the supervisor looks a few times
    assert process.poll() is None


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


@pytest.mark.parametrize("status, code", [(1, 1), (2, 2), (255, 1)])
def test_a_trainer_that_fails_ends_the_run_with_its_own_words(status, code, parts, tmp_path):
    with launcher(tmp_path, *parts) as process:
        processes = all_up(process, *parts)
        (tmp_path / "trainer.py.end").write_text(str(status))
        assert process.wait(LIMIT_S) == code
        assert gone(processes)
        error = process.stderr.read()
        assert error.startswith("the cause, on standard error")
        assert f"with exit status {status}" in error


def test_a_rank_that_fails_ends_the_run_with_what_it_wrote_in_this_run(parts, tmp_path):
    """Logs are appended to: a resumed run's cause is not the earlier one's."""
    other = stand_in(tmp_path, "other", TRAINS)
    (tmp_path / "other.py.log").write_text("what ended the run before\n")
    with launcher(tmp_path, *parts, others=[other]) as process:
        processes = all_up(process, *parts, other)
        (tmp_path / "other.py.end").write_text("2")
        assert process.wait(LIMIT_S) == 2               # the status of the first that failed
        assert gone(processes)
        error = process.stderr.read()
        assert "another rank, 0 has ended with exit status 2; the end of " in error
        assert "other.py.log:\n    the cause, on standard error" in error and "before" not in error
    assert (tmp_path / "other.py.log").read_text() == (
        "what ended the run before\nthe cause, on standard error\n")


def test_the_run_goes_on_until_the_last_rank_has_ended(parts, tmp_path):
    other = stand_in(tmp_path, "other", TRAINS)
    with launcher(tmp_path, *parts, others=[other]) as process:
        processes = all_up(process, *parts, other)
        ends_and_the_run_goes_on(process, other)
        (tmp_path / "trainer.py.end").write_text("0")
        assert process.wait(LIMIT_S) == 0
        assert gone(processes)


def test_a_killed_trainer_leaves_no_server(parts, tmp_path):
    with launcher(tmp_path, *parts) as process:
        processes = all_up(process, *parts)
        os.kill(pid_of(parts[0]), signal.SIGKILL)
        assert process.wait(LIMIT_S) == 1
        assert gone(processes)
        assert "trainer has ended with exit status 137 (killed; out of" in process.stderr.read()


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_rank_that_ended_by_a_signal_of_somebody_else_has_failed(number, who, parts, tmp_path):
    """Whoever waits for the run would take it for one that was stopped on purpose."""
    codes = {signal.SIGINT: 130, signal.SIGTERM: 75}
    other = stand_in(tmp_path, "other", "note('up'); signal.signal(2, signal.SIG_DFL)\n"
                     "while True: time.sleep(1)")
    with launcher(tmp_path, *parts, others=[other]) as process:
        processes = all_up(process, *parts, other)
        os.kill(pid_of((parts[0], other)[who]), number)
        assert process.wait(LIMIT_S) == 1
        assert gone(processes)
        assert f"has ended with exit status {(codes[number], 128 + number)[who]}" in (
            process.stderr.read())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_the_first_ctrl_c_or_sigterm_lets_the_trainer_write_its_checkpoint(number, parts, tmp_path):
    with launcher(tmp_path, *parts) as process:
        processes = all_up(process, *parts)
        process.send_signal(number)
        assert process.wait(LIMIT_S) == (130 if number == signal.SIGINT else 75)
        assert gone(processes)
        assert notes(parts[0])[-1][0] == "checkpoint"


def test_a_scheduler_that_signals_every_process_of_a_job_gets_a_checkpoint_too(parts, tmp_path):
    """Slurm does: launcher, reapers, trainer and servers."""
    with launcher(tmp_path, *parts) as process:
        processes = all_up(process, *parts)
        for p in processes:
            with contextlib.suppress(psutil.NoSuchProcess):     # the run may be over already
                p.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 75
        assert gone(processes)
        assert notes(parts[0])[-1][0] == "checkpoint"


def test_of_several_ranks_only_rank_0_gets_the_ctrl_c(parts, tmp_path):
    """It makes the others end; one that ends alone would hang them."""
    other = stand_in(tmp_path, "other", f"""
        signal.signal(signal.SIGINT, lambda *_: os._exit(3))
        note("up")
        notes = {str(parts[0]) + ".notes"!r}
        while not os.path.exists(notes) or "checkpoint" not in open(notes).read(): time.sleep(0.02)
    """)
    with launcher(tmp_path, *parts, others=[other]) as process:
        processes = all_up(process, *parts, other)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
        assert gone(processes)
        assert [n[0] for n in notes(other)] == ["child", "up"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_ctrl_c_or_sigterm_ends_all_at_once(number, parts, tmp_path):
    stubborn = stand_in(tmp_path, "stubborn", """
        signal.signal(signal.SIGINT, lambda *_: note("interrupted"))
        signal.signal(signal.SIGTERM, lambda *_: note("asked to end"))
        note("up")
        while True: time.sleep(1)
    """)
    with launcher(tmp_path, stubborn, parts[1]) as process:
        processes = all_up(process, stubborn, parts[1])
        process.send_signal(signal.SIGINT)
        until(lambda: notes(stubborn)[-1][0] == "interrupted", "the first Ctrl-C passed on")
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(LIMIT_S) == 130             # of the first
        assert gone(processes)


SLOW = """
asked = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: asked.append(note("asked")))
note("up")
while not (asked and os.path.exists(sys.argv[0] + ".end")): time.sleep(0.02)
note("checkpoint")
sys.exit(130)
"""


def test_a_stopped_run_ends_with_rank_0_though_another_rank_still_waits_for_it(parts, tmp_path):
    """Signaled while they load: rank 0 ends at once, and another one waits for it to join."""
    other = stand_in(tmp_path, "other", SERVES)
    with launcher(tmp_path, *parts, others=[other]) as process:
        processes = all_up(process, *parts, other)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 75
        assert gone(processes) and notes(parts[0])[-1][0] == "checkpoint"


def test_a_server_that_ends_with_the_run_is_not_started_again(tmp_path):
    """A scheduler's SIGTERM reaches all: servers may end before the last checkpoint is written."""
    slow = stand_in(tmp_path, "slow", SLOW)
    server = stand_in(tmp_path, "server", f"""
        note("up")
        while not os.path.exists({str(slow) + ".notes"!r}): time.sleep(0.02)
        while "asked" not in open({str(slow) + ".notes"!r}).read(): time.sleep(0.02)
        sys.exit(5)
    """)
    with launcher(tmp_path, slow, server) as process:
        processes = all_up(process, slow, server)
        ended = psutil.Process(pid_of(server))
        process.send_signal(signal.SIGTERM)
        until(lambda: gone([ended]), "the server's end")
        time.sleep(0.5)                         # the supervisor looks a few times
        (tmp_path / "slow.py.end").write_text("")
        assert process.wait(LIMIT_S) == 75
        assert [n[0] for n in notes(slow)] == ["child", "up", "asked", "checkpoint"]
        assert "started again" not in process.stderr.read()
        assert gone(processes)


@pytest.mark.days(4)
@pytest.mark.parametrize("trains", [True, False])
def test_a_server_that_does_not_heed_its_signal_holds_no_end_up_for_long(trains, parts, tmp_path):
    """As vLLM while it loads. A scheduler waits 30 s, and whoever is killed cannot say 75."""
    deaf = stand_in(tmp_path, "deaf", "signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SERVES)
    with launcher(tmp_path, parts[0] if trains else None, deaf) as process:
        all_up(process, *parts[:trains], deaf)
        start = time.monotonic()
        process.terminate()
        assert process.wait(LIMIT_S) == 75
        assert time.monotonic() - start < 15
        assert gone(process.seen)


def test_a_server_that_hangs_is_ended_and_started_again(parts, tmp_path):
    """SIGSTOP: its processes stay, and heed no other signal. The trainer sees it and leaves a file
    beside the log; one of an earlier run says nothing of this server."""
    hangs = tmp_path / "server0.py.hangs"
    hangs.touch()
    with launcher(tmp_path, *parts) as process:
        all_up(process, *parts)
        stopped = [psutil.Process(pid_of(parts[1])),
                   *psutil.Process(pid_of(parts[1])).children(recursive=True)]
        assert len(notes(parts[1])) == 2 and len(stopped) == 2
        for one in stopped:
            one.send_signal(signal.SIGSTOP)
        hangs.touch()
        until(lambda: [n[0] for n in notes(parts[1])].count("up") == 2, "the server, again")
        assert gone(stopped) and not hangs.exists() and len(notes(parts[2])) == 2
        processes = tree(process)
        (tmp_path / "trainer.py.end").write_text("0")
        assert process.wait(LIMIT_S) == 0
        assert gone(processes)
        assert "server 0 hangs, and is ended" in process.stderr.read()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_machine_that_only_serves_ends_at_the_first_signal(number, parts, tmp_path):
    """There is no checkpoint to wait for."""
    with launcher(tmp_path, None, *parts[1:]) as process:
        processes = all_up(process, *parts[1:])
        process.send_signal(number)
        assert process.wait(LIMIT_S) == (130 if number == signal.SIGINT else 75)
        assert gone(processes)


def test_a_machine_that_only_serves_starts_a_server_again(parts, tmp_path):
    with launcher(tmp_path, None, *parts[1:]) as process:
        all_up(process, *parts[1:])
        first = pid_of(parts[2])
        os.kill(first, signal.SIGKILL)
        until(lambda: pid_of(parts[2]) != first, "started again")
        processes = tree(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
        assert gone(processes)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_no_end_of_the_launcher_leaves_a_process(number, parts, tmp_path):
    """With SIGKILL it can do nothing itself: each reaper sees the end of its pipe."""
    with launcher(tmp_path, *parts) as process:
        processes = all_up(process, *parts)
        process.send_signal(number)
        assert process.wait(LIMIT_S) == -number
        until(lambda: gone(processes), "no process left")


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
        assert "is started again: server 1 has ended with exit status 137" in process.stderr.read()


def test_a_server_that_is_started_again_has_another_seed(tmp_path):
    """With the old one it would draw the numbers of its first life again. No other word changes."""
    server = Child("server", [sys.executable, "-c", "import sys; print(*sys.argv[1:])", "--seed",
                              "7", "--port", "7"], log=tmp_path / "log")
    for start in (server.start, server.restart, server.restart):
        start()
        until(lambda: server.status is not None, "its end")
    words = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert len({seed for _, seed, _, _ in words}) == 3 and words[0][1] == "7"
    assert {(*line[:1], *line[2:]) for line in words} == {("--seed", "--port", "7")}


def test_a_server_whose_log_and_folder_somebody_has_removed_is_started_again(tmp_path, capfd):
    """As `--fresh` of a trainer does beside --serve-only. Of a huge log the end alone is read."""
    log = tmp_path / "logs" / "server.log"
    server = Child("server 0", [sys.executable, "-c", "print('x' * 10**6); print('the end')"],
                   log=log, hangs=log.with_suffix(".hangs"))
    server.start()
    until(lambda: server.status is not None, "its end")
    assert server.ending(1).endswith("\n    the end") and len(server.ending()) < 200_000
    shutil.rmtree(log.parent)
    assert server.restart()
    until(lambda: server.status is not None, "its end")
    assert "is started again: server 0 has ended with exit status 0\n" in capfd.readouterr().err
    assert log.exists()


def test_a_rank_that_hangs_after_rank_0_has_ended_well_is_ended(tmp_path):
    """It has nothing left to do: CUDA's or a process group's teardown may hang for ever."""
    deaf = stand_in(tmp_path, "deaf", 'note("up"); time.sleep(600)')
    done = stand_in(tmp_path, "done", f"""
        while not (os.path.exists({str(deaf) + ".notes"!r}) and
                   "up" in open({str(deaf) + ".notes"!r}).read()): time.sleep(0.02)
    """)
    with launcher(tmp_path, done, others=[deaf]) as process:
        until(lambda: notes(deaf)[1:], "the rank is up")
        process.seen = tree(process)
        assert process.wait(LIMIT_S) == 0
        assert not {int(n[-1]) for n in notes(deaf)} & set(psutil.pids())


def test_a_server_that_keeps_ending_ends_the_run_with_its_log_and_a_checkpoint(parts, tmp_path):
    bad = stand_in(tmp_path, "bad", f"""
        note("up")
        while not os.path.exists({str(parts[0]) + ".notes"!r}): time.sleep(0.02)
        time.sleep(0.3)                     # the trainer is up by then, and says so
        print("no room for the cache")
        sys.exit(5)
    """)
    with open(f"{bad}.log", "w") as log:
        log.write("what ended an earlier run\n")
    with launcher(tmp_path, parts[0], parts[1], bad) as process:
        assert process.wait(LIMIT_S) == 1
        error = process.stderr.read()
        assert "for the third time in 10 minutes server 1 has ended with exit status 5" in error
        assert f"the end of {bad}.log:\n    no room for the cache\n" in error
        assert notes(parts[0])[-1][0] == "checkpoint"
        assert [n[0] for n in notes(bad)].count("up") == 3
        pids = {int(n[-1]) for path in parts for n in notes(path)}
        assert not pids & set(psutil.pids())


