"""Signals in a trainer's process: heeded by the run, or by the clock."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from conftest import ROOT

from scaleout import signals
from scaleout.signals import Signals

# Never comes to a place where it could stop, as in a kernel. The time limits are shortened.
BUSY = """
import sys, time
from types import SimpleNamespace
from scaleout import signals
signals.HEED_S, signals.LAST_S = 0.5, 0.5
mine = signals.Signals()
with mine.heeded():
    mine.team = SimpleNamespace(stop=0, busy_saving=sys.argv[1] == "saving")
    print("up", flush=True)
    while True:
        try:
            time.sleep(0.1)
            if mine.team.stop and sys.argv[1] == "saved": break
        except KeyboardInterrupt:
            print("interrupted", flush=True)
time.sleep(2)
print("end")
"""


def started(how):
    process = subprocess.Popen([sys.executable, "-c", BUSY, how], cwd=ROOT, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == "up\n"
    return process


@pytest.mark.parametrize("number, code", [
    (signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 130)])
def test_a_signal_that_nothing_heeds_ends_the_process_all_the_same(number, code):
    """A compiler, a collective or a verifier can take longer than a scheduler waits."""
    process = started("busy")
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == code
    assert "stopped without a checkpoint" in error and "the same command goes on" in error


def test_a_checkpoint_on_its_way_has_its_time_and_a_second_signal_ends_it():
    """Which raises KeyboardInterrupt first, so that other processes are told and ended."""
    process = started("saving")
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(3)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 75 and "interrupted" in out


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


def test_before_there_is_a_run_the_first_signal_ends_it():
    mine = Signals()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), mine.heeded():
        os.kill(os.getpid(), signal.SIGTERM)
        signal.sigtimedwait([], 5)
    assert mine.first == signal.SIGTERM and signal.getsignal(signal.SIGTERM) == before
    with mine.heeded():
        mine.team = SimpleNamespace(stop=0, busy_saving=True)
        mine.heed(15, None)
        assert mine.team.stop == 15
