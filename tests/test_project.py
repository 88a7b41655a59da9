"""The project keeps its own promises: rooms, arrows, examples, documentation."""

import ast
import doctest
import importlib
import json
import re
import subprocess
import sys

import pytest
from conftest import ROOT, run_command

FILES = sorted(path.name for path in ROOT.glob("*.py"))
OURS = {name.removesuffix(".py") for name in FILES}
README = (ROOT / "README.md").read_text()

# Who may import whom (README, "Reading order"). fit.py stands alone; nothing imports the story.
ARROWS = {"scalerl": {"checkpoint", "config", "launch", "loss", "packed", "ranks", "report",
                      "sampler", "sandbox", "servers", "tasks", "verify", "vllm_engine"},
          "launch": {"leash", "servers", "vllm_engine"}, "leash": set(),
          "config": {"tasks"}, "ranks": {"loss", "packed", "sampler"}, "checkpoint": set(),
          "sampler": {"loss", "packed"}, "vllm_engine": {"sampler"}, "toy": {"tasks"},
          "tasks": {"generated", "sandbox", "verify"}, "verify": {"generated", "sandbox"},
          "generated": set(), "sandbox": set(), "box": set(),
          "loss": set(), "packed": set(), "fit": set(),
          "report": {"fit"}, "smollm2": set(),
          "servers": {"sampler", "vllm_engine"}, "weight_wire": {"servers", "vllm_engine"}}
# What a room must never import, at any depth of the file.
BANNED = {"loss": {"transformers", "vllm", "numpy"}, "tasks": {"torch"},
          "verify": {"torch", "transformers"}, "sandbox": {"torch"},
          "fit": {"torch", "transformers"}, "scalerl": {"vllm", "matplotlib"},
          "packed": {"vllm"}}


def imports(name):
    found = set()
    for node in ast.walk(ast.parse((ROOT / f"{name}.py").read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module.split(".")[0])
    return found


def test_files_import_only_along_the_arrows():
    assert set(ARROWS) == OURS
    for name in OURS:
        assert imports(name) & OURS <= ARROWS[name], name
        assert not imports(name) & BANNED.get(name, set()), name


@pytest.mark.parametrize("name", sorted(OURS))
def test_examples_in_docstrings_are_true(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_every_file_is_in_the_readme_and_every_function_it_names_exists():
    for name in FILES:
        assert f"`{name}`" in README, f"{name} is not in the reading order"
    for file, name in re.findall(r"`(\w+\.py)::(\w+)`", README):
        tree = ast.parse((ROOT / file).read_text())
        assert name in {node.name for node in tree.body if hasattr(node, "name")}, (file, name)


def test_every_option_in_the_readme_exists():
    """A renamed option would leave a reader with a command that fails."""
    help_of = {}
    for line in re.findall(r"^(?:\.venv/bin/)?python (\w+\.py) (.*?)(?:#.*)?$", README, re.M):
        file, rest = line
        if file not in help_of:
            help_of[file] = subprocess.run([sys.executable, ROOT / file, "--help"], check=True,
                                           capture_output=True, text=True, timeout=120).stdout
        for option in re.findall(r"--[a-zA-Z0][\w-]*", rest):
            assert option in help_of[file], line
    assert {"scalerl.py", "fit.py"} <= set(help_of)


def test_every_target_in_the_readme_is_in_the_makefile():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"^make (\w+)", README, re.M)) <= targets


def test_no_line_is_wider_than_100_columns():
    files = [p for p in (*ROOT.glob("*.py"), *ROOT.glob("tests/*.py"), *ROOT.glob("bench/*.py"))]
    wide = [f"{path.name}:{number}" for path in files
            for number, line in enumerate(path.read_text().splitlines(), 1) if len(line) > 100]
    assert files and not wide


def test_the_gpu_check_runs_on_a_cpu_too_and_writes_its_table(tmp_path):
    done = run_command([ROOT / "bench" / "gpu.py", "--device", "cpu", "--hidden", 128,
                        "--layers", 2, "--vocab", 300, "--lengths", 44, 20, "--tokens", 90,
                        "--steps", 1, "--out", tmp_path], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert len(rows) == 10 and all(row["tokens_per_s"] > 0 for row in rows)
    assert all(0 <= row["mismatch/mean_abs_dlogp"] < 0.02 for row in rows)      # bf16's rounding
    table = (tmp_path / "README.md").read_text()
    assert table.count("\n| ") == 11 and "a CPU" in table
