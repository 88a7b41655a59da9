"""bench/chaos.py: three kinds of faults at a real run, and what would let a fault go unseen."""

import json
import os
import random
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import ROOT

sys.path.append(str(ROOT / "bench"))      # last: bench/fit.py is not fit.py
import chaos                                                                # noqa: E402
import simulate                                                             # noqa: E402


@pytest.mark.days(6, turn=2)
def test_three_kinds_of_faults_change_no_digit_and_leave_nothing_behind(micro, tmp_path, seed):
    """One process: the trainer killed, a worker of the verifier killed, a bit flipped in the
    newest checkpoint. The command is only repeated."""
    rng, runs = random.Random(seed), []
    for name in ("calm", "storm"):
        (tmp_path / name).mkdir()
        runs.append(chaos.Run(tmp_path / name, micro, steps=60, seed=0, minutes=0.01))
    calm, stormed = runs
    chaos.watched(calm, limit_s=400)
    kinds = {name: chaos.ALONE[name] for name in (
        "SIGKILL, trainer", "SIGKILL, verifier", "checkpoint, a bit flipped")}
    _, _, ends = chaos.storm(stormed, kinds, 3, 2.0, rng, limit_s=300)
    assert [end["orphans"] for end in ends] == [0] * len(ends) and chaos.orphans(calm) == 0
    assert chaos.same(calm, stormed) == ""
    assert chaos.trained_once(stormed) == (240, 0, 0)


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_group_trained_twice_a_lost_sample_and_another_digit_are_seen(tmp_path):
    runs = [SimpleNamespace(folder=tmp_path / name) for name in "ab"]
    for run in runs:
        run.folder.mkdir()
        for name in chaos.LOGS:
            lines(run.folder / name, [{"step": 1, "x": 0.1, "time/step_s": random.random()}])
    assert chaos.same(*runs) == ""
    lines(runs[1].folder / "metrics.jsonl", [{"step": 1, "x": np.nextafter(0.1, 1)}])
    assert chaos.same(*runs) == "metrics.jsonl"
    group = {"id": 1, "rewards": [1, 1, -1, -1]}
    lines(runs[0].folder / "groups.jsonl", [
        {"groups": [group, group | {"id": 2}]}, {"groups": [group | {"rewards": [1, 1, 1]}]}])
    assert chaos.trained_once(runs[0]) == (3, 1, 1)


def test_growth_is_seen_and_noise_is_none(tmp_path):
    """A line of slope 2 in 1,000 steps among noise of 1; and a run in which nothing grows."""
    rng = np.random.default_rng()
    run = SimpleNamespace(folder=tmp_path)
    lines(tmp_path / "metrics.jsonl", [
        {"step": step, "time/step_s": 0.1 + rng.normal(0, 0.01)} for step in range(5001)])
    rows = [{"step": step, "memory_mb": 500 + 0.002 * step + rng.normal(),
             "descriptors": 20, "threads": 8, "log_mb": 0.0} for step in range(0, 5001, 10)]
    found = chaos.slopes(run, rows)
    at, slope, half = found["memory_mb"]
    # `at`: the median of 41 values about step 1,200, so 502.4 within .2 (standard error).
    assert abs(slope - 2) < 3 * half < 0.6 and at == pytest.approx(502.4, abs=1)
    assert abs(found["step_s"][1]) < 4 * found["step_s"][2] < 0.01
    assert found["descriptors"][1:] == (0, 0) and set(found) == set(chaos.MEASURES)


def test_the_figures_of_the_pages_are_those_of_the_kept_faults(capsys):
    """The record has all lines, docs/reliability.md a row for each run; the fleet's are those of
    the closed form."""
    folder, page = ROOT / "results" / "chaos", (ROOT / "docs" / "reliability.md").read_text()
    assert "\n".join(chaos.kept(folder)) in (folder / "README.md").read_text()
    kept = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    stormed = [result for result in kept if "faults" in result]
    assert len(stormed) == 6
    for result in stormed:
        every, share = (result["storm_s"] / result["faults"], result["calm_s"] / result["storm_s"])
        assert f"| {result['faults']} | {every:.0f} s | {share:.2f} |" in page, result["command"]
    simulate.fleet([8, 64, 1024, 10_000], simulate.Faults())
    assert capsys.readouterr().out in page


def test_a_process_that_has_written_its_title_over_its_environment_is_found_too():
    """vLLM's engines do: a storm that does not see them leaves them behind, and says 0."""
    pytest.importorskip("setproctitle")
    engine = ("import setproctitle, time; setproctitle.setproctitle('VLLM::EngineCore'); "
              "print(flush=True); time.sleep(600)")
    server = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {engine!r}])"
    run = SimpleNamespace(mark=f"{os.getpid()}-title", sessions=set())
    with subprocess.Popen([sys.executable, "-c", server], stdout=subprocess.PIPE,
                          env=os.environ | {"CHAOS_MARK": run.mark},
                          start_new_session=True) as parent:
        parent.stdout.readline()
        found = {process.pid for process in chaos.Run.marked(run)}
        assert len(found) == 2 and parent.pid in found
        parent.kill()
        parent.wait()
        left, = chaos.Run.marked(run)
        left.kill()
        left.wait(60)
    assert left.pid in found
    # Numbers of processes come again: who has one later must not be taken for ours.
    assert chaos.Run.marked(run) == [] and run.sessions == set()


def test_the_seconds_of_faults_that_overlap_count_once():
    rows = [{"at_s": at, "lost_s": lost} for at, lost in ((10, 5), (12, 1), (14, 4), (30, None),
                                                          (40, 2))]
    assert chaos.lost(rows) == 5 + 3 + 0 + 2 and chaos.lost(rows[::-1]) == 10
