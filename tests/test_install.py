"""`pip install .` brings the tool that fits curves; the rest is installed in fixed versions."""
import re
import subprocess
import sys
import tomllib

from conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def name_of(requirement):
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


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


def test_make_installs_the_locked_versions_unless_it_is_told_otherwise(tmp_path):
    for words, locked in (([], True), (["LOCKED=0"], False)):
        said = subprocess.run(["make", "-n", f"VENV={tmp_path}/venv", "test", *words], cwd=ROOT,
                              capture_output=True, text=True, check=True, timeout=60).stdout
        installs = [line for line in said.splitlines() if "pip install" in line]
        assert len(installs) == 3                               # torch, the tests' packages, vLLM
        assert [("--constraint constraints.txt" in line) for line in installs] == [locked] * 3
