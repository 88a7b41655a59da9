"""Signals in a trainer's process: heeded by the run, or by the clock."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from conftest import ROOT

from scaleout import supervise as signals
from scaleout.supervise import Signals

# Never comes to a place where it could stop, as in a kernel. The time limits are shortened.
BUSY = """
import sys, time
from types import SimpleNamespace
from scaleout import supervise as signals
signals.HEED_S = 0.5
mine = signals.Signals()
with mine.heeded():
    if sys.argv[1] != "loading":
        mine.team = SimpleNamespace(stop=0, busy_saving=sys.argv[1] == "saving")
    print("up", flush=True)
    while not (mine.team and mine.team.stop and sys.argv[1] == "saved"):
        time.sleep(0.1)
time.sleep(2)
print("end")
"""


def started(how):
    process = subprocess.Popen([sys.executable, "-c", BUSY, how], cwd=ROOT, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == "up\n"
    return process


def test_the_wait_for_a_place_to_stop_is_what_the_documents_say():
    """Schedulers kill soon after; the tests below shorten it."""
    assert signals.HEED_S == 30
    assert "| 30 s later, if the run has come to no place to stop" in (
        ROOT / "docs" / "placement.md").read_text()


@pytest.mark.parametrize("how", ["busy", "loading"])
@pytest.mark.parametrize("number, code", [
    (signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 130)])
def test_a_signal_that_nothing_heeds_ends_the_process_all_the_same(number, code, how):
    """A compiler, a collective or a verifier can take longer than a scheduler waits; and where no
    run has begun there is nothing to wait for."""
    process = started(how)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == code
    words = "stopped: no place to stop came within" if how == "busy" else "stopped at once;"
    assert error.count(words) == 1
    assert error.count("; the same command, without --fresh, goes on from the newest") == 1
    assert ("stopping, with a checkpoint" in error) == (how == "busy")


def test_a_checkpoint_on_its_way_has_its_time_and_a_second_signal_ends_it():
    process = started("saving")
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(3)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 75 and "stopped at once" in error


def test_after_the_run_nothing_counts_down():
    process = started("saved")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "end\n")


def test_the_same_signal_twice_at_once_is_one_but_ctrl_c_is_not(monkeypatch):
    """Slurm and torchrun send a SIGTERM each."""
    now = [10.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    for numbers, second in (([15, 15], 0), ([10, 10], 0), ([15, 10], 10), ([15, 2], 2),
                            ([2, 2], 2)):
        mine = Signals()
        for number in numbers:
            mine.note(number)
        assert (mine.first, mine.second) == (numbers[0], second)
    mine = Signals()
    mine.note(15)
    now[0] += signals.TWICE_S + 0.1
    mine.note(15)
    assert mine.second == 15


def test_a_team_is_asked_to_stop_and_afterwards_the_handlers_are_those_of_before():
    mine, before = Signals(), signal.getsignal(signal.SIGTERM)
    mine.team = SimpleNamespace(stop=0, busy_saving=True)
    with mine.heeded():
        os.kill(os.getpid(), signal.SIGTERM)
        assert mine.team.stop == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_that_comes_while_python_unloads_does_not_change_the_exit_code():
    """A second or two, with torch: a launcher whose SIGUSR1 came again then ended with 138."""
    process = subprocess.Popen([sys.executable, "-c", """
import signal, sys, time
from scaleout.supervise import SIGNALS, Signals
class Slow:
    def __del__(self, sleep=time.sleep, say=print):
        say("unloading", flush=True)
        sleep(3)
slow, signals = Slow(), Signals()
for number in SIGNALS:
    signal.signal(number, signals.note)
signal.raise_signal(signal.SIGUSR1)
signals.over()
sys.exit(75)
"""], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "unloading\n"
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        process.send_signal(number)
    assert process.wait(60) == 75
