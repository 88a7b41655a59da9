"""The command line answers before anything is computed."""

import os
import signal
import subprocess
import sys

import pytest
from conftest import ROOT

from command import options


@pytest.mark.parametrize("words, code", [(["--help"], 0), (["--help", "placement"], 0),
                                         (["--stepz", "3"], 2), (["--steps", "many"], 2)])
def test_help_and_typos_import_none_of_the_packages_that_take_seconds(words, code):
    """torch and transformers are 5 s of imports on two cores; without them it is 0.1 s."""
    done = subprocess.run([sys.executable, "-X", "importtime", ROOT / "scalerl.py", *words],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == code
    imported = {line.rpartition("|")[2].strip().partition(".")[0]
                for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "config" in imported and not imported & {"torch", "transformers", "numpy", "scipy"}


def test_the_wrong_python_is_one_sentence(monkeypatch, capsys):
    """`python scalerl.py`, as the help has it, outside of the environment that make has made."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)          # this process goes on
    monkeypatch.setattr(sys, "argv", ["scalerl.py", "--model", "m", "--name", "none-of-these"])
    monkeypatch.setattr(options, "find_spec", lambda _: None)
    with pytest.raises(SystemExit) as ended:
        options.answer_at_once()
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "scalerl.py: this Python has no torch: call .venv/bin/python, which `make` makes\n")


@pytest.mark.parametrize("given", [None, "active"])
def test_threads_that_wait_sleep_unless_the_user_says_otherwise(tmp_path, given):
    """On two cores beside one other busy process a step of the toy took 10 s for .4 s: threads that
    spin wait for one that does not run. (torch reads this as it is imported; this is no torch.)"""
    (tmp_path / "torch.py").write_text("import os, sys\nsys.exit(os.environ['OMP_WAIT_POLICY'])\n")
    env = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, ROOT / "scalerl.py", "--model", "m", "--name", "none-of-these"],
        env=env | {"PYTHONPATH": str(tmp_path)} | ({"OMP_WAIT_POLICY": given} if given else {}),
        capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.stderr.strip() == (given or "passive")


def test_ctrl_c_while_torch_is_imported_is_no_traceback(tmp_path):
    """That takes seconds: the moment in which people change their minds. (This torch is no torch.)
    """
    (tmp_path / "torch.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n")
    done = subprocess.run(
        [sys.executable, ROOT / "scalerl.py", "--model", "m", "--name", "none-of-these"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=120,
        # A shell has its background jobs ignore Ctrl-C, and so has the gate perhaps.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
