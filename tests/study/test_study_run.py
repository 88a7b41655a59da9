"""The study's runner: what is missing is run, what is there is left alone, a kill loses nothing."""

import os
import signal
import subprocess
import sys
import time
import tomllib

import pytest
from conftest import ROOT

from artifacts.settings import check, make_config, read_toml
from config import ConfigError
from study import run as study

EXPERIMENT = """
question = "?"
pairs = ["0:7"]
[bases]
small = ["configs/stress.toml", {lr = 1e-3}]
[variants]
scalerl = []
clip = ["configs/loo/grpo_loss.toml", {eps_low = 0.1, zero_variance_filter = false}]
"""
# Stands in for scalerl.py: a run that takes as long as the test wants, and can be resumed.
TRAINER = '''
import json, pathlib, signal, sys, time
def stop(*_):
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
name = sys.argv[sys.argv.index("--name") + 1]
run = pathlib.Path("runs") / name
resumed = (run / "checkpoints").exists()
(run / "checkpoints/step_1").mkdir(parents=True, exist_ok=True)
with open("started.txt", "a") as file:
    file.write(name + (" resumed" if resumed else "") + "\\n")
while pathlib.Path("hold").exists() and not resumed:
    time.sleep(0.05)
if pathlib.Path("broken").exists():
    sys.exit("No module named torch")
row = {"step": 1, "pass_rate": 0.5, "ess": 0.9, "time/step_s": 3.0}
(run / "metrics.jsonl").write_text(json.dumps(row) + "\\n")
if pathlib.Path("fail").exists() and "clip" in name:
    sys.exit("step 3: the gradient is nan")
(run / "evals.jsonl").write_text(json.dumps({"step": 0, "eval/toy/mean@1": 0.25}) + "\\n")
'''


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder in which the runner works: a stand-in trainer and a toy."""
    (tmp_path / "models/toy-0").mkdir(parents=True)
    (tmp_path / "models/toy-0/config.json").touch()
    (tmp_path / "scalerl.py").write_text(TRAINER)
    (tmp_path / "one.toml").write_text(EXPERIMENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study, "KEPT", tmp_path / "kept")
    return tmp_path


def test_every_committed_experiment_is_of_known_settings():
    """A wrong setting would be found out after hours."""
    own = {"-m study.reuse": {"uses"}, "-m study.controls": {"reward"},
           "-m study.review": {"review"}}
    found = study.experiments()
    assert len(found) >= 5
    for job in {job for jobs in found.values() for job in jobs}:
        values, words = {}, list(job.options)
        while words:
            name, value, *words = words
            values |= read_toml(ROOT / value) if name == "--config" else {
                name[2:].replace("-", "_"): value}
        theirs = own.get(" ".join(job.program), set())
        check(make_config({name: value for name, value in values.items() if name not in theirs}
                          | {"model": "models/toy"}))
        assert int(tomllib.loads((ROOT / "configs/stress.toml").read_text())["steps"]) == 140


def test_runs_are_pair_by_pair_and_a_setting_is_an_option(place):
    jobs = study.read_experiment("one.toml")
    assert [job.name for job in jobs] == ["small-scalerl-toy0-seed7", "small-clip-toy0-seed7"]
    assert jobs[1].options == (
        "--config", "configs/stress.toml", "--lr", "0.001", "--config",
        "configs/loo/grpo_loss.toml", "--eps-low", "0.1", "--zero-variance-filter", "false")


def test_an_experiment_may_have_its_own_program_and_a_variant_its_own_toy(place):
    (place / "own.toml").write_text(EXPERIMENT.replace("[bases]", 'program = ["-m", "x"]\n[bases]')
                                    + '[toys]\nclip = ["--hidden", "96"]\n')
    plain, wide = study.read_experiment("own.toml")
    assert plain.command()[1:3] == wide.command()[1:3] == ["-m", "x"]
    assert (str(plain.model), str(wide.model)) == ("models/toy-0", "models/toy-0-clip")
    assert wide.toy_options == ("--hidden", "96") and "models/toy-0-clip" in wide.command()


def test_an_experiment_may_train_another_model_from_seed_to_seed(place):
    (place / "own.toml").write_text(EXPERIMENT.replace('"0:7"', '"7", "8"').replace(
        "[bases]", 'model = "models/small"\n[bases]'))
    study.work(study.experiments(["own.toml"]), lanes=2)       # and no toy is made
    assert sorted(study.logs.read("kept/evals.csv")) == [
        f"small-{name}-seed{seed}" for name in ("clip", "scalerl") for seed in (7, 8)]
    assert "models/small" in study.read_experiment("own.toml")[0].command()


def test_what_is_finished_is_kept_and_never_run_again(place):
    found = study.experiments(["one.toml"])
    study.work(found, lanes=2)
    study.work(study.experiments(["one.toml"]), lanes=2)
    assert sorted((place / "started.txt").read_text().split()) == [
        "study-small-clip-toy0-seed7", "study-small-scalerl-toy0-seed7"]
    titles, *lines = (place / "kept/steps.csv").read_text().splitlines()
    assert titles == "run,step,ess" and sorted(lines) == [
        "small-clip-toy0-seed7,1,0.9", "small-scalerl-toy0-seed7,1,0.9"]
    assert "2 of    2" in study.table(found, [], 2)


def test_a_failed_run_is_a_result_with_its_last_words(place, capsys):
    (place / "fail").touch()
    found = study.experiments(["one.toml"])
    study.work(found, lanes=1)
    assert study.logs.read_failed("kept") == {
        "small-clip-toy0-seed7": "step 3: the gradient is nan"}
    assert "clip-toy0-seed7 failed: step 3" in capsys.readouterr().out
    assert "1 failed" in study.table(found, [], 1)


@pytest.mark.parametrize("code", [75, 130, -9])
def test_a_run_that_somebody_stops_or_kills_is_no_result(place, code):
    """The OOM killer's runs stood in failed.csv for good."""
    job = next(iter(study.experiments(["one.toml"]).values()))[0]
    job.folder.mkdir(parents=True)
    (job.folder / "metrics.jsonl").write_text('{"step": 1, "pass_rate": 0.5}\n')
    job.folder.with_suffix(".log").write_text("Stopped at step 1.\n")
    with pytest.raises(SystemExit, match="was stopped; the same command goes on: Stopped at"):
        study.finish(job, code)
    assert study.logs.read_failed("kept") == {}


def test_a_toy_that_is_refused_is_a_result_and_any_other_failure_of_it_ends_the_series(place):
    (place / "study").mkdir()
    toy = place / "study/toy.py"
    toy.write_text("import sys; print('toy.py: it has not learned to add', file=sys.stderr); "
                   "sys.exit(3)")
    (place / "one.toml").write_text(EXPERIMENT.replace("0:7", "1:7"))
    study.work(study.experiments(["one.toml"]), lanes=2)
    assert study.logs.read_failed("kept") == {
        f"small-{name}-toy1-seed7": "toy.py: it has not learned to add"
        for name in ("scalerl", "clip")}
    assert not (place / "started.txt").exists()
    toy.write_text("import nowhere")
    (place / "one.toml").write_text(EXPERIMENT.replace("0:7", "2:7"))
    with pytest.raises(SystemExit, match="No module named .nowhere"):
        study.work(study.experiments(["one.toml"]), lanes=2)


def test_a_run_that_takes_no_step_ends_the_series_and_is_no_result(place):
    """Else one missing package would turn hundreds of runs into failures within a minute."""
    (place / "broken").touch()
    with pytest.raises(SystemExit, match="clip|scalerl.*did not take one step: No module named"):
        study.work(study.experiments(["one.toml"]), lanes=2)
    assert not (place / "kept").exists()


def test_after_a_kill_the_same_command_resumes_what_had_begun(place):
    (place / "hold").touch()
    code = ("import sys, pathlib; from study import run; run.KEPT = pathlib.Path('kept'); "
            "sys.argv[1:] = ['one.toml']; run.main()")
    process = subprocess.Popen([sys.executable, "-c", code],
                               env=os.environ | {"PYTHONPATH": str(ROOT)})
    end = time.monotonic() + 60
    while not (place / "started.txt").exists() or len(
            (place / "started.txt").read_text().split()) < 2:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 1
    (place / "hold").unlink()
    assert not (place / "kept").exists()
    study.work(study.experiments(["one.toml"]), lanes=2)
    assert sorted((place / "started.txt").read_text().split("\n")[2:-1]) == [
        "study-small-clip-toy0-seed7 resumed", "study-small-scalerl-toy0-seed7 resumed"]
    assert "small-scalerl-toy0-seed7" in study.logs.read("kept/evals.csv")


@pytest.mark.parametrize(("text", "words"), [
    ("pairs = 3", "TypeError"), ("pairs = ['1']", "toy:seed"), ("pairs = []", "'bases'"),
    ("pairs = ['1:2']\n[bases]\na.b = []\n[variants]\nx = []", "a name with a dot"),
    ("no toml", "TOMLDecodeError")])
def test_a_wrong_experiment_is_refused_in_a_sentence(place, text, words):
    (place / "bad.toml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        study.read_experiment("bad.toml")


def test_one_name_with_two_settings_is_refused(place):
    (place / "two.toml").write_text(EXPERIMENT.replace("1e-3", "1e-4"))
    with pytest.raises(ConfigError, match="two settings"):
        study.experiments(["one.toml", "two.toml"])


def test_a_table_that_names_each_run_once_is_read_as_one_that_repeats_it(tmp_path):
    tables = {once: tmp_path / f"{once}.csv" for once in (True, False)}
    for once, path in tables.items():
        for run, n in (("a", 3), ("b", 2), ("a", 4)):
            study.logs.add(path, run, [{"step": i, "ess": 0.5 + i} for i in range(n)], once=once)
    assert study.logs.read(tables[True]) == study.logs.read(tables[False])
    assert tables[True].read_text().count("a,") == 1
    assert len(study.logs.read(tables[True])["a"]) == 4
