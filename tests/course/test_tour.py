"""What course/tour.ipynb claims: all of its cells run, in their order, and show what they say.

No Jupyter is needed: the cells are executed one after another in one namespace, in a process of
their own. It takes most of a minute, so it runs once, and all tests read what it has found.
"""

import ast
import base64
import json
import math
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from conftest import ROOT
from course import student, tour as tour_page
from sampler import Rollout

TOUR = ROOT / "course" / "tour.ipynb"
LIMIT_S = 900               # under a minute on two idle cores; a machine may be busy
CELLS = json.loads(TOUR.read_text())["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]

EXECUTE = """
import json, sys
import matplotlib
matplotlib.use("Agg")
from matplotlib.figure import Figure

cells, out = json.load(open(sys.argv[1])), sys.argv[2]
names = {}
for number, source in enumerate(cells):
    exec(compile(source, f"cell {number}", "exec"), names)

figures = {name: value for name, value in names.items() if isinstance(value, Figure)}
for name, figure in figures.items():
    figure.savefig(f"{out}/{name}.png", dpi=60)
run, mask = names["run"], names["mask"]
json.dump({
    "figures": {name: [[ax.get_xlabel(), ax.get_ylabel(), ax.get_title()] for ax in figure.axes]
                for name, figure in figures.items()},
    "cwd": str(names["Path"].cwd()), "root": str(names["ROOT"]),
    "lags": names["lags"], "k": run.pacer.k, "steps": run.step, "outputs": [
        [r.interrupted, r.sampled, names["tokenizer"].decode(r.output_ids)] for r in
        (names["by_itself"], names["interrupted"])],
    "seen": names["seen"].tolist(), "lengths": names["lengths"],
    "rewards": names["rewards"].tolist(), "kept": names["kept"].tolist(),
    "advantage": names["advantage"].tolist(),
    "weights": {name: w.tolist() for name, w in names["weights"].items()}, "mask": mask.tolist(),
    "sampled": [r.sampled for r in names["batch"]], "stats": names["stats"],
    "ratio": names["ratio"][mask].tolist(), "lag": names["lag"][mask].tolist(),
    "evals": open(names["folder"].path / "evals.jsonl").read(),
    "fit": {name: [getattr(names["early"], name), *names["early"].ci[name]]
            for name in ("A", "B", "C_mid")},
    "told": {name: float(value) for name, value in names["told"].items()},
    "errors": names["errors"], "naive": names["naive"],
}, open(out + "/facts.json", "w"))
"""


@pytest.fixture(scope="module")
def tour(tmp_path_factory):
    """What the notebook has computed, and `said`, what it has printed."""
    out = tmp_path_factory.mktemp("tour")
    (out / "cells.json").write_text(json.dumps(CODE))
    before = {path.name for path in ROOT.glob("course/*")}
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, out / "cells.json", out], cwd=ROOT / "course", text=True,
        capture_output=True, timeout=LIMIT_S, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert {path.name for path in ROOT.glob("course/*")} <= before | {"__pycache__"}
    facts = json.loads((out / "facts.json").read_text())
    return SimpleNamespace(**facts, said=done.stdout, pictures=list(out.glob("figure_*.png")))


# -- the file --------------------------------------------------------------------------------------

def test_outputs_and_pictures_are_stored_and_tell_nothing_of_a_machine():
    """Who opens the page before anything is installed sees it whole (course/tour.py)."""
    text, pictures = TOUR.read_text(), []
    for cell in CELLS:
        for output in cell.get("outputs", []):
            assert output["output_type"] != "error"
            pictures += [output["data"]["image/png"]] if "data" in output else []
    assert len(pictures) == 9 and len(text) < 600_000
    for picture in pictures:
        data = base64.b64decode(picture)
        assert data.startswith(b"\x89PNG") and len(data) > 3000
    said = "".join("".join(output.get("text", "")) for cell in CELLS
                   for output in cell.get("outputs", []))
    assert "naive forecast" in said and "step 100" in said
    assert str(ROOT) not in text and "/home/" not in text and "/root" not in text


def test_a_cell_runs_to_its_outputs():
    """What is stored is what a notebook would show: text, then each open figure, once."""
    outputs = tour_page.run(
        "import matplotlib.pyplot as plt\nprint(6 * 7)\nf = plt.figure()\nf", {})
    assert [each["output_type"] for each in outputs] == ["stream", "display_data"]
    assert outputs[0]["text"] == ["42\n"]
    assert tour_page.run("x = 1\nx", {}) == []


def test_no_cell_is_empty_or_commented_out():
    for cell in CELLS:
        assert "".join(cell["source"]).strip()
    for source in CODE:
        assert ast.parse(source).body, source
        for line in source.splitlines():
            if line.strip().startswith("#"):
                with pytest.raises(SyntaxError):        # English is no Python
                    ast.parse(line.strip("# "))


def test_every_code_cell_is_explained_and_the_lines_are_short():
    kinds = [cell["cell_type"] for cell in CELLS]
    assert kinds[0] == "markdown" and "codecodecodecode" not in "".join(kinds)
    for cell in CELLS:
        for line in cell["source"]:
            assert len(line.rstrip("\n")) <= 120, line
        assert len(cell["source"]) <= 40


def test_nothing_is_written_a_second_time():
    """The page imports the method. Its one function is the loop that a reader steps through."""
    tree = ast.parse("\n".join(CODE))
    assert [node.name for node in ast.walk(tree) if isinstance(
        node, (ast.FunctionDef, ast.ClassDef, ast.Lambda))] == ["train"]
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import)
               for alias in node.names} | {node.module for node in ast.walk(tree)
                                           if isinstance(node, ast.ImportFrom)}
    assert {"scalerl", "loss", "fit", "command.make_run"} <= modules
    assert "run.sampler" in "\n".join(CODE)             # sampler.py, by way of the run


# -- the first cell --------------------------------------------------------------------------------

def first_cell(monkeypatch, folder, repository=""):
    """Run the first cell in `folder`: the commands that it gives. A clone makes scalerl.py."""
    commands = []

    def run(command, check):
        assert check
        commands.append(command)
        if command[0] == "git":
            (folder / "scalerl" / "engines").mkdir(parents=True)
            for name in ("scalerl", "loss", "sampler", "fit", "engines/head"):
                (folder / "scalerl" / f"{name}.py").touch()
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.chdir(folder)
    names = {}
    exec(CODE[0].replace('REPOSITORY = ""', f'REPOSITORY = "{repository}"'), names)
    return commands, names["ROOT"], sys.path[0]


@pytest.mark.parametrize("folder", [".", "course", "tests/course"])
def test_in_a_checkout_the_first_cell_installs_nothing(folder, monkeypatch):
    assert first_cell(monkeypatch, ROOT / folder) == ([], ROOT, str(ROOT))


def test_without_a_checkout_it_says_what_is_missing_in_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="set REPOSITORY to the address"):
        first_cell(monkeypatch, tmp_path)


def test_where_exercises_are_not_written_it_says_so_and_an_address_helps(tmp_path, monkeypatch):
    """The page can come first in the tree that students get: to be read, or run elsewhere."""
    student.write(tmp_path / "student")
    with pytest.raises(SystemExit, match="loss, sampler, fit, engines/head are not written yet: "
                                         "read on"):
        first_cell(monkeypatch, tmp_path / "student" / "course")
    commands, root, _ = first_cell(monkeypatch, tmp_path / "student" / "course", "https://x/y.git")
    assert commands and root == (tmp_path / "student" / "course" / "scalerl").resolve()


def test_with_an_address_it_clones_and_installs_once(tmp_path, monkeypatch):
    commands, root, path = first_cell(monkeypatch, tmp_path, "https://example.org/x.git")
    assert [command[:2] for command in commands] == [["git", "clone"], [sys.executable, "-m"]]
    assert "https://example.org/x.git" in commands[0] and "./scalerl[train]" in commands[1]
    assert root == (tmp_path / "scalerl").resolve() and path == str(root)
    assert first_cell(monkeypatch, tmp_path, "https://example.org/x.git")[0] == []


# -- what it shows ---------------------------------------------------------------------------------

@pytest.mark.days(6, turn=3)
def test_every_picture_is_drawn_and_its_axes_are_labeled(tour):
    assert set(tour.figures) == {f"figure_{name}" for name in (
        "interruption row advantages weights versions ratios log curve errors").split()}
    assert len(tour.pictures) == 9 and all(p.stat().st_size > 4000 for p in tour.pictures)
    for name, axes in tour.figures.items():
        if name == "figure_curve":      # fit.py's own: upper and lower axes share their labels
            assert "compute/flops, log scale" in {x for x, *_ in axes}
            continue
        for x, y, title in axes:
            assert x and title and (y or name in (
                "figure_interruption", "figure_versions", "figure_errors")), name


@pytest.mark.days(6, turn=3)
def test_it_writes_into_a_folder_of_its_own(tour):
    assert tour.root == str(ROOT) and not tour.cwd.startswith(str(ROOT))
    assert not (ROOT / "course" / "runs").exists()


@pytest.mark.days(6, turn=3)
def test_the_row_shows_who_looks_at_whom(tour):
    """A token sees its own prompt, and in its own piece itself and what is before it."""
    assert len(tour.lengths) == 6
    pieces = [(piece, t) for piece, length in enumerate(tour.lengths) for t in range(length)]
    prompt_of = {2: 0, 3: 0, 4: 1, 5: 1}
    assert tour.seen == [[a == b and s <= t or prompt_of.get(a) == b for b, s in pieces]
                         for a, t in pieces]


@pytest.mark.days(6, turn=3)
def test_one_sample_is_interrupted_and_its_forced_tokens_are_marked(tour):
    (cut, sampled, text), (cut_2, sampled_2, text_2) = tour.outputs
    assert not cut and all(sampled) and "Okay, time is up." not in text
    assert cut_2 and not all(sampled_2) and "Okay, time is up." in text_2


@pytest.mark.days(6, turn=3)
def test_groups_of_equal_rewards_are_left_out_and_the_others_advantages_are_fair(tour):
    assert tour.kept == [len(set(row)) > 1 for row in tour.rewards]
    rewards = [row for row, kept in zip(tour.rewards, tour.kept) if kept]
    assert 0 < len(rewards) == len(tour.advantage)
    for row, advantage in zip(rewards, tour.advantage):
        assert sum(advantage) == pytest.approx(0, abs=1e-4)
        assert [a > 0 for a in advantage] == [r > 0 for r in row]
    flat = [a for row in tour.advantage for a in row]
    assert sum(a * a for a in flat) / len(flat) == pytest.approx(1, abs=1e-3)   # one std for all


@pytest.mark.days(6, turn=3)
def test_the_weights_of_a_step_add_up_to_one_and_forced_tokens_have_none(tour):
    assert set(tour.weights) == {"prompt", "sample", "token"}
    for rows in tour.weights.values():
        assert sum(map(sum, rows)) == pytest.approx(1, abs=1e-4)
        for row, sampled in zip(rows, tour.sampled):
            assert [w > 0 for w in row] == sampled + [False] * (len(row) - len(sampled))
    assert tour.weights["prompt"] != tour.weights["sample"] != tour.weights["token"]


@pytest.mark.days(6, turn=3)
def test_the_samples_are_stale_within_the_bound_and_the_ratio_moves_with_the_lag(tour):
    """At lag 0 it is not exactly 1: the cache still holds older weights' keys and values."""
    assert max(tour.lags) > 0 and len(set(tour.lags)) > 2
    assert max(tour.lags) <= tour.k == 8 and min(tour.lags) >= 0
    pairs = list(zip(tour.lag, tour.ratio, strict=True))
    youngest = [abs(ratio - 1) for lag, ratio in pairs if lag == min(tour.lag)]
    all_of_them = [abs(ratio - 1) for _, ratio in pairs]
    assert sum(youngest) / len(youngest) < sum(all_of_them) / len(all_of_them)
    assert max(all_of_them) > 0.01
    assert tour.stats["ratio/max"] == pytest.approx(max(tour.ratio), rel=1e-4)
    assert 0 < tour.stats["ess"] <= 1 and set(tour.lag) == {
        int(name.removeprefix("ess/lag_")) for name in tour.stats if name.startswith("ess/lag_")}


@pytest.mark.days(6, turn=3)
def test_the_model_learns_and_the_fit_has_finite_numbers(tour):
    rates = [json.loads(line)["eval/toy/mean@4"] for line in tour.evals.splitlines()]
    assert len(rates) == 21 and tour.steps == 100
    assert rates[0] > 0.1 and sum(rates[-5:]) / 5 > rates[0] + 0.2
    for value, low, high in tour.fit.values():
        assert all(map(math.isfinite, (value, low, high))) and low <= high
    assert all(map(math.isfinite, tour.told.values())) and "naive forecast" in tour.said


@pytest.mark.days(6, turn=3)
def test_the_25_runs_give_the_errors_that_results_demo_tells(tour):
    """The README's numbers: .019, and .184 for the naive forecast."""
    assert len(tour.errors) == 25
    assert sum(map(abs, tour.errors)) / 25 == pytest.approx(0.019, abs=0.0006)
    assert sum(map(abs, tour.naive)) / 25 == pytest.approx(0.184, abs=0.0006)
    assert "25 runs: mean absolute error 0.019, of the naive forecast 0.184" in tour.said


# -- the pictures ----------------------------------------------------------------------------------

def test_a_box_a_token_and_a_hatch_where_it_was_forced(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    from course import pictures
    rollouts = [Rollout("p", 0, (1,), [4, 5, 6], [0.0] * 3, [2, 2, 7], [True, False, True],
                        "stop", True),
                Rollout("p", 0, (1,), [4, 5], [0.0] * 2, [7, 7], [True, True], "stop", False)]
    for versions, texts in ((False, ["<4>", "<5>", "<6>", "<4>", "<5>"]), (True, list("22777"))):
        ax, = pictures.tokens(rollouts, lambda ids: f"<{ids[0]}>", "t", versions=versions).axes
        assert [text.get_text() for text in ax.texts] == texts
        assert [bool(box.get_hatch()) for box in ax.patches] == [False, True, False, False, False]
        shades = [box.get_facecolor()[0] for box in ax.patches]
        assert (shades[0] > shades[2]) == versions and shades[2] == shades[3]   # newer is darker
