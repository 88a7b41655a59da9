"""Nothing grows faster than its work: counted in operations, never in seconds."""

import re
import sys
from collections import Counter, deque

import pytest
import torch
from conftest import ROOT

from command import symptoms
from fitting import readers
from sampler import Request
from scalerl import PipelinePacer

sys.path.append(str(ROOT / "bench"))      # last: bench/fit.py is not fit.py
import growth                                                                  # noqa: E402

COMPARED = Counter()


class CountedInt(int):
    """A step of a log that counts how often it is compared."""
    __hash__ = int.__hash__

    def __eq__(self, other):
        COMPARED["int"] += 1
        return int(self) == int(other)


class CountedFloat(float):
    __hash__ = float.__hash__

    def __eq__(self, other):
        COMPARED["float"] += 1
        return float(self) == float(other)


def test_steps_are_told_without_comparing_each_with_each():
    """With lists where sets belong, 3 x 10^4 steps took 7 s."""
    COMPARED.clear()
    assert symptoms.ranges([CountedInt(i) for i in range(0, 4000, 2)]).startswith("0, 2, 4")
    assert COMPARED["int"] < 20 * 2000


def test_evaluations_are_read_without_comparing_each_with_each():
    COMPARED.clear()
    rows = [{"step": float(i), "C": CountedFloat(i), "R": CountedFloat(.5)} for i in range(1500)]
    compute, _, _ = readers.evaluations(rows, "C", "R", "a log")
    assert len(compute) == 1500 and COMPARED["float"] < 20 * 1500


def test_a_look_at_a_sampler_walks_over_no_queue():
    """An evaluation looks before every decode step, and 10^5 prompts may be waiting."""
    class Unwalked(deque):
        def __iter__(self):
            raise AssertionError("walked")
    growth.MODEL = growth.tiny_model()
    sampler = growth.TransformersSampler(growth.MODEL, None, growth.Interruption(3, 3, 2), slots=6,
                                         prompt_tokens=4, eos_ids=())
    sampler.waiting = Unwalked()
    for i in range(5):
        sampler.submit(Request(i, str(i), (1, 2), 3))
    seen, rollouts = [], []
    while sampler.in_flight:
        seen.append((sampler.in_flight, sampler.free_slots))
        rollouts += sampler.step()
        assert sampler.in_flight == 15 - len(rollouts)
    assert seen[0] == (15, -9) and len(rollouts) == 15


@pytest.mark.parametrize("k", [3, 30])
def test_the_pacer_looks_at_each_group_once_however_large_k_is(k):
    """With a look for each of the k next steps, k = 64 and P = 512 took 40 ms a decode step."""
    pacer, looks = PipelinePacer(k, 5), Counter()

    class Seen:
        def __init__(self, group):
            self.group_id, self.group = group.group_id, group

        @property
        def start(self):
            looks[self.group_id] += 1
            return self.group.start
    while pacer.may_admit():
        pacer.admit("p", pacer.admitted // 5, 2)
    taken = [*pacer.groups.values()][:5]
    pacer.groups = {i: Seen(group) for i, group in pacer.groups.items()}
    assert pacer.leaves_enough_time(taken, 0)
    assert len(looks) == 5 * k and set(looks.values()) == {1}


@pytest.mark.parametrize("row", growth.ROWS)
def test_every_row_of_the_bench_can_be_measured(row):
    growth.MODEL = growth.tiny_model()
    torch.manual_seed(0)
    assert growth.cost(row, growth.ROWS[row][0], 64 if "problems" not in row else 2000) >= 0


def test_the_bench_prints_a_row_with_its_exponent(capsys, monkeypatch):
    monkeypatch.setattr(growth, "ROWS", {"squares (s)": (int, (10, 1000))})
    monkeypatch.setattr(growth, "cost", lambda row, make, size: make(size) ** 2)
    monkeypatch.setattr(sys, "argv", ["growth.py"])
    growth.main()
    assert re.search(r"squares \(s\) \| 10: 100, 1,000: 1e\+06 \| 2\.00 \*\*above its work\*\*",
                     capsys.readouterr().out)
