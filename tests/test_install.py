"""`pip install .` brings the tool that fits curves; the rest is installed in fixed versions. What
an image and a notebook elsewhere would do first is done here."""
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
from conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def name_of(requirement):
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


@pytest.mark.days(4, turn=3)
def test_the_fitting_tool_needs_no_package_that_its_installation_does_not_bring():
    """Nobody who fits a log should load gigabytes of torch for it."""
    assert {name_of(r) for r in PROJECT["project"]["dependencies"]} == {
        "numpy", "scipy", "matplotlib"}
    module, function = PROJECT["project"]["scripts"]["scalerl-fit"].split(":")
    loaded = subprocess.run(
        [sys.executable, "-c", f"import sys, fit, {module}; assert {module}.{function}; "
         "print(*{name.split('.')[0] for name in sys.modules})"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=300).stdout.split()
    assert {"numpy", "scipy", "matplotlib"} <= set(loaded)
    assert not {"torch", "transformers", "pandas", "tensorboard", "wandb", "google"} & set(loaded)
    ours = {path.parent.name for path in ROOT.glob("*/*.py")} & set(loaded)
    tool = PROJECT["tool"]["setuptools"]
    assert ours | {"fit"} == {*tool["packages"], *tool["py-modules"]}


def test_every_package_that_the_project_names_has_one_version_within_its_bounds():
    """A lock that misses a package or contradicts the bounds is found when somebody installs."""
    from packaging.requirements import Requirement
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    versions = {name_of(name): version for name, version in locked.items()}
    assert len(versions) == len(locked) > 100
    extras = PROJECT["project"]["optional-dependencies"]
    named = [Requirement(text) for texts in (PROJECT["project"]["dependencies"], *extras.values())
             for text in texts if not text.startswith(("scalerl", "vllm>"))]
    for requirement in named:
        version = versions[name_of(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement}, locked: {version}"


def test_the_pythons_that_are_declared_are_those_of_which_the_page_says_what_was_checked():
    """docs/machines.md has a row for each; make refuses all others in a sentence."""
    page = (ROOT / "docs" / "machines.md").read_text().partition("\n## Python\n")[2]
    checked = re.findall(r"^\| (3\.\d+) \|", page, re.MULTILINE)
    assert [name.rpartition(" ")[2] for name in PROJECT["project"]["classifiers"]] == checked
    first, last = (int(version.removeprefix("3.")) for version in (checked[0], checked[-1]))
    assert PROJECT["project"]["requires-python"] == f">=3.{first},<3.{last + 1}"
    assert f"(3, {first}) <= sys.version_info[:2] <= (3, {last})" in (ROOT / "Makefile").read_text()


def test_make_installs_the_locked_versions_unless_it_is_told_otherwise(tmp_path):
    for words, locked in (([], True), (["LOCKED=0"], False)):
        said = subprocess.run(["make", "-n", f"VENV={tmp_path}/venv", "test", *words], cwd=ROOT,
                              capture_output=True, text=True, check=True, timeout=60).stdout
        installs = [line for line in said.splitlines() if "pip install" in line]
        assert len(installs) == 3                               # torch, the tests' packages, vLLM
        assert [("--constraint constraints.txt" in line) for line in installs] == [locked] * 3


@pytest.mark.days(6, turn=2)
def test_the_images_commands_run_on_what_is_copied_into_it(micro, tmp_path):
    """docker itself is not run here. The gate gives the image's `make` for its packages on a bare
    checkout; here its last command runs whole, on a toy of the tests and in a dozen short steps."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    packages, = [line.removeprefix("RUN ") for line in lines if line.startswith("RUN make")]
    assert packages in (ROOT / ".ci" / "run").read_text().splitlines()
    command = json.loads(lines[-1].removeprefix("CMD "))
    left_out = (ROOT / ".dockerignore").read_text().split()
    shutil.copytree(ROOT, tmp_path / "scalerl", symlinks=True,
                    ignore=shutil.ignore_patterns(*left_out, ".git"))
    shutil.copytree(micro, tmp_path / "scalerl" / "models" / "toy")
    demo = tmp_path / "scalerl" / "configs" / "demo.toml"
    short = {"steps": 12, "eval_every": 1, "heldout_prompts": 8, "prompts_per_step": 4, "slots": 32}
    text = demo.read_text()
    for name, value in short.items():
        text, n = re.subn(rf"^{name} = \d+", f"{name} = {value}", text, flags=re.MULTILINE)
        assert n == 1, name
    demo.write_text(text)
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    done = subprocess.run(
        [*command, f"VENV={tmp_path}/venv", "-o", f"{tmp_path}/venv/base"],     # -o: is installed
        cwd=tmp_path / "scalerl", text=True, capture_output=True, timeout=600,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PIP_NO_INDEX": "1", "PIP_DRY_RUN": "1"})
    assert done.returncode == 0, done.stderr
    assert "Done: 12 steps." in done.stdout and "naive forecast" in done.stdout
    assert (tmp_path / "scalerl" / "runs" / "demo" / "curve.png").exists()


@pytest.mark.days(4, turn=1)
def test_the_notebooks_first_cell_clones_this_tree_and_pip_has_all_that_it_asks_for(tmp_path):
    """As on Colab, but for the network: git and pip are the real ones. pip is told to install
    nothing; it reads the clone's project file and looks for each package of it here."""
    notebook = json.loads((ROOT / "course" / "tour.ipynb").read_text())
    first = next("".join(cell["source"]) for cell in notebook["cells"]
                 if cell["cell_type"] == "code")
    first = first.replace('REPOSITORY = ""', f'REPOSITORY = "file://{ROOT}"')
    offline = {"PIP_DRY_RUN": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    done = subprocess.run(
        [sys.executable, "-c", f"{first}\nimport fit\nprint(ROOT, fit.__file__)"], cwd=tmp_path,
        text=True, capture_output=True, timeout=300, env=os.environ | offline)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] == [f"{tmp_path}/scalerl", f"{tmp_path}/scalerl/fit.py"]


def test_make_demo_goes_on_with_a_stopped_run_and_never_into_a_finished_one(tmp_path):
    for path in ROOT.iterdir():
        if path.name != "runs":
            (tmp_path / path.name).symlink_to(path)

    def named(*words):
        told = subprocess.run(["make", "-n", *words], cwd=tmp_path, capture_output=True, text=True,
                              check=True, env=os.environ | {"MAKEFLAGS": ""}).stdout
        return re.search(r"scalerl\.py .*--name (\S+)", told)[1]
    for name, target in (("demo", ["demo"]), ("mix", ["mix"])):
        assert named(*target) == name
        (tmp_path / "runs" / name).mkdir(parents=True)
        assert named(*target) == name                                   # it goes on
        assert named(*target, "SEED=3") == f"{name}-seed3"              # another seed: another run
        (tmp_path / "runs" / name / "done").touch()
        for other in "2gpu", "20260102-030405-old-1":
            (tmp_path / "runs" / f"{name}-{other}").mkdir()
        assert re.fullmatch(rf"{name}-\d+-\d+", named(*target))
        (tmp_path / "runs" / f"{name}-20260102-030405").mkdir()
        assert named(*target) == f"{name}-20260102-030405"              # the second goes on, too
