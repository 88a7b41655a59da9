"""On macOS: what is missing there is taken away, in every process of a command, and what a page
promises for it is run. No Mac has run it: docs/machines.md says so."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT, arguments, lines, run_command

from command.main import check_platform
from config import Config, ConfigError
from scaleout.memory import cores_here
from tasks import sandbox

# Python runs such a file before all else, also in processes that a command starts.
MISSING = {
    "affinity": """
import os
del os.sched_getaffinity
""",
    "the limit of memory": """
import resource
def setrlimit(what, limits, real=resource.setrlimit):
    if what == resource.RLIMIT_AS:
        raise ValueError("current limit exceeds maximum limit")
    real(what, limits)
resource.setrlimit = setrlimit
""",
    "prctl and namespaces": """
import ctypes
class Library(ctypes.CDLL):
    def __getattr__(self, name):
        if name in ("prctl", "unshare", "setns"):
            raise AttributeError(f"dlsym(RTLD_DEFAULT, {name}): symbol not found")
        return super().__getattr__(name)
ctypes.CDLL = Library
"""}
PRETENDED = """
import sys
import psutil, sysconfig, urllib.request        # these ask for whom they were built
sysconfig.get_config_vars()
sys.platform = "darwin"
""" + "".join(MISSING.values())
# Found before anything is imported that is not there; argparse asks for the size of a terminal.
WINDOWS = "import sys, shutil, subprocess\nsys.platform = 'win32'"


@pytest.fixture
def elsewhere(tmp_path):
    """Runs a command as on another system: macOS, or what is written instead."""
    def run(*words, pretended=PRETENDED, **more):
        (tmp_path / "site").mkdir(exist_ok=True)
        (tmp_path / "site" / "sitecustomize.py").write_text(pretended)
        env = os.environ | more | {"PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}",
                                   "OMP_NUM_THREADS": "1"}
        return subprocess.run([sys.executable, *map(str, words)], cwd=tmp_path, env=env, text=True,
                              capture_output=True, timeout=600)
    return run


@pytest.mark.days(6, turn=2)
def test_the_demo_is_trained_resumed_and_fitted_and_its_numbers_are_linuxs(
        elsewhere, micro, tmp_path):
    """Short. auto must not take the vLLM that is installed here."""
    demo = [ROOT / "scalerl.py", "--config", ROOT / "configs/demo.toml", *arguments(
        micro, name="demo", eval_every=2)]
    done = elsewhere(*demo, "--engine", "auto", "--steps", 3)
    assert done.returncode == 0, done.stderr
    done = elsewhere(ROOT / "scalerl.py", "--config", "runs/demo/config.toml", "--steps", 6)
    assert done.returncode == 0 and "Done: 6 steps." in done.stdout, done.stderr
    there = tmp_path / "runs" / "demo"
    assert 'engine = "transformers"' in (there / "config.toml").read_text()
    here = tmp_path / "here"
    here.mkdir()
    assert run_command([*demo, "--steps", 6], here).returncode == 0
    for one, two in zip(lines(there), lines(here / "runs" / "demo"), strict=True):
        assert [one.get(name) for name in ("step", "pass_rate", "loss", "grad_norm")] == [
            two.get(name) for name in ("step", "pass_rate", "loss", "grad_norm")]
    table = "".join(f"{x},{.1 + .7 / (1 + (9 / x) ** 1.3)}\n" for x in range(1, 60))
    (tmp_path / "log.csv").write_text("flops,rate\n" + table)
    done = elsewhere(ROOT / "fit.py", "log.csv", "--x", "flops", "--y", "rate", "--until", 0.5)
    assert done.returncode == 0 and "predicted from the first part" in done.stdout, done.stderr
    assert list(tmp_path.rglob("*.png"))


@pytest.mark.days(4)
@pytest.mark.parametrize("call", MISSING)
def test_a_linux_that_lacks_one_call_trains_as_well(elsewhere, micro, call):
    """A container may deny each of them by itself. One process needs none."""
    done = elsewhere(ROOT / "scalerl.py", *arguments(micro, steps=1, heldout_prompts=3),
                     pretended=MISSING[call])
    assert done.returncode == 0 and "Done: 1 step" in done.stdout, done.stderr


@pytest.mark.days(4)
@pytest.mark.parametrize("bwrap", [None, "echo 'bwrap: setting up uid map: denied' >&2; exit 1"])
def test_without_namespaces_landlock_is_told_or_code_refused_in_a_sentence(
        elsewhere, micro, tmp_path, bwrap):
    """Nothing of that name, or one that may make no namespaces: Ubuntu 24.04, Docker's default."""
    (tmp_path / "bin").mkdir()
    if bwrap:
        (tmp_path / "bin" / "bwrap").write_text(f"#!/bin/sh\n{bwrap}\n")
        (tmp_path / "bin" / "bwrap").chmod(0o755)
    (tmp_path / "code.jsonl").write_text("".join(json.dumps(
        {"question": f"{i}?", "answer": {"inputs": ["1"], "outputs": ["2"]}, "kind": "code"}) + "\n"
        for i in range(30)))
    done = elsewhere(ROOT / "scalerl.py", *arguments(
        micro, task="code.jsonl", task_options="{}", heldout_prompts=4, steps=1), pretended="",
        PATH=str(tmp_path / "bin"))
    if sandbox.failure("Landlock") is None:  # this kernel has it, and nothing is refused
        assert done.returncode == 0 and done.stderr.startswith("programs run behind Landlock")
        return
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert ("uid map: denied" if bwrap else "bubblewrap") in done.stderr


def test_the_verifier_of_mathematics_works_without_the_limit_of_memory(elsewhere):
    items = [(r"\boxed{2x}", "x+x", "math"), (r"\boxed{3x}", "x+x", "math")]
    done = elsewhere("-c", "from tasks import Verifier\nwith Verifier(workers=1) as verifier:\n"
                     f"    print(verifier.score({items}).reasons)")
    assert done.stdout.strip() == "['correct', 'wrong']", done.stderr


@pytest.mark.days(6, turn=4)
def test_what_needs_linux_is_refused_in_one_sentence(elsewhere, micro, tmp_path):
    """The command first; then each setting, where a second of its own would tell nothing more."""
    done = elsewhere(ROOT / "scalerl.py", *arguments(micro, trainers=2, gpus=0))
    assert done.returncode == 2 and "need Linux" in done.stderr and done.stderr.count("\n") == 1
    (tmp_path / "code.jsonl").write_text("".join(json.dumps(
        {"question": f"{i}?", "answer": {"inputs": ["1"], "outputs": ["2"]}, "kind": "code"}) + "\n"
        for i in range(30)))
    code = [*arguments(micro, task="code.jsonl+toy", task_options="{}")]
    done = elsewhere(ROOT / "scalerl.py", *code)
    assert done.returncode == 2 and "the sandbox needs Linux" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("settings", [
    {"engine": "vllm"}, {"vllm_url": "http://a:1"}, {"servers": 1}, {"gpus": 8}, {"trainers": 2}])
def test_each_setting_that_needs_linux_is_refused(settings, monkeypatch):
    config = Config(model="x", **settings)
    check_platform(config)
    assert config == Config(model="x", **settings)
    monkeypatch.setattr(sys, "platform", "darwin")
    sentence = "several processes .* need Linux"
    with pytest.raises(ConfigError, match=sentence):
        check_platform(config)
    plain = Config(model="x")
    with pytest.raises(ConfigError, match=sentence):
        check_platform(plain, serve_only="a:8000")
    with monkeypatch.context() as patch, pytest.raises(ConfigError, match=sentence):
        patch.setenv("RANK", "1")
        check_platform(plain)
    check_platform(plain)
    assert plain.engine == "transformers"
    sandbox.which_walls.cache_clear()
    with pytest.raises(sandbox.SandboxError, match="needs Linux"):
        sandbox.which_walls()


@pytest.mark.days(4, turn=1)
def test_the_plan_of_a_cluster_can_be_made_without_linux(elsewhere, eight):
    """--dry-run starts nothing."""
    done = elsewhere(ROOT / "scalerl.py", "--model", eight, "--gpus", 8, "--dry-run")
    assert done.returncode == 0 and "trainer" in done.stdout, done.stderr


def test_cores_are_those_that_this_process_may_use_or_all(monkeypatch):
    assert cores_here() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cores_here() == os.cpu_count()


def test_windows_is_one_sentence_that_names_wsl(elsewhere):
    """For what would run; the help is the same everywhere."""
    for words in (["--config", ROOT / "configs" / "demo.toml"], ["--model", "m"]):
        done = elsewhere(ROOT / "scalerl.py", *words, pretended=WINDOWS)
        assert done.returncode and done.stderr.count("\n") == 1, done.stderr
        assert "use WSL, the Windows Subsystem for Linux" in done.stderr
    assert elsewhere(ROOT / "scalerl.py", "--help", pretended=WINDOWS).returncode == 0
