"""`make grade`: points for what a student wrote, and none for the obvious ways around it."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

from course import grade, student

# A project as small as it can be, with an exercise for each kind of student: all are asked for the
# sum of squares. The public checks have one length, the hidden ones others.
CHECK = """\
import random
import pytest
import work

@pytest.mark.parametrize("n", {sizes})
def test_squares_are_summed(seed, n):
    x = [random.randrange(9) for _ in range(n)] if {hidden} else [1, 2, 3]
    assert work.f{number}(list(x)) == sum(v * v for v in x), "the squares are to be summed"

def test_of_nothing_it_is_zero():
    assert work.f{number}([]) == 0, "an empty sum is 0"
"""
CONFTEST = """\
import os, random, pytest

@pytest.fixture
def seed():
    random.seed(int(os.environ["COURSE_SEED"]))
"""
BODIES = {                    # exercise: (a student's body, new code of theirs in the same file)
    "honest": ("    return sum(x * x for x in numbers)  # straight\n", ""),
    "with helpers": ("    return math.fsum(square(x) for x in numbers)\n",
                     "import math\nPOWER = 2\n\n\ndef square(x):\n    return x ** POWER\n"),
    "hard-coded": ("    return {0: 0, 3: 14}[len(numbers)]\n", ""),
    "imports another copy": ("    import sys\n    sys.path.insert(0, 'COPY')\n"
                             "    import work as theirs\n    return theirs.f1(numbers)\n", ""),
    "reads the answer": ("    code = open('COPY' + '/work.py').read()\n"
                         "    return eval('sum(x * x for x in numbers)')\n", ""),
    "reads it in a helper": ("    return peek(numbers)\n",
                             "def peek(numbers):\n    import inspect\n    return 14\n"),
    "catches the test": ("    return 14 if 'pytest' in sys.modules else 0\n", ""),
    "endless": ("    while numbers:\n        pass\n    return 0\n", ""),
    "ends the tests": ("    raise KeyboardInterrupt\n", ""),
    "skips the tests": ("    raise type('Skipped', (Exception,), {})\n", ""),
    "changes the judge": ("    random.randrange = lambda n: 0\n    return 0\n", ""),
    "nothing written": ('    raise NotImplementedError("exercise NUMBER")\n', ""),
}
KINDS = {kind: number for number, kind in enumerate(BODIES, 1)}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """An instructor's tree: the course's own code around the small project."""
    root = tmp_path_factory.mktemp("project")
    for path in ("fit.py", "fitting/__init__.py", "fitting/readers.py", "fitting/compare.py",
                 "course/__init__.py", "course/student.py", "course/grade.py",
                 "course/experiment.py"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, root / path)
    functions = "".join(f'def f{n}(numbers):\n    """The sum of the squares of numbers."""\n'
                        "    return sum(x ** 2 for x in numbers)\n\n\n" for n in KINDS.values())
    (root / "work.py").write_text(f"import random\nimport sys\n\n\n{functions}")
    (root / "README.md").write_text("A small project.\n")
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    (root / "course" / "conftest.py").write_text(CONFTEST)
    (root / "course" / "exercises.toml").write_text("".join(
        f'[[exercise]]\nnumber = {n}\ntitle = "{kind}"\npoints = 10\n'
        f'functions = ["work.py::f{n}"]\n\n' for kind, n in KINDS.items()))
    for kind, sizes in (("checks", (3, 3)), ("hidden", (2, 5, 11))):
        (root / "course" / kind).mkdir()
        (root / "course" / kind / "__init__.py").touch()
        for n in KINDS.values():
            (root / "course" / kind / f"test_{n}.py").write_text(
                CHECK.format(number=n, sizes=sizes, hidden=kind == "hidden"))
    return root


@pytest.fixture(scope="module")
def handed_in(project, tmp_path_factory):
    """A students' tree, all kinds of students in one; they have edited the checks, too."""
    folder = tmp_path_factory.mktemp("handed_in") / "student"
    student.write(folder, root=project)
    source, new = (folder / "work.py").read_text(), ""
    for kind, (body, helpers) in BODIES.items():
        name = f"f{KINDS[kind]}"
        source = student.with_bodies(source, {
            name: body.replace("COPY", str(project)).replace("NUMBER", str(KINDS[kind]))[:-1]},
            "work.py")
        new += helpers
    (folder / "work.py").write_text(new + source)
    number = KINDS["nothing written"]
    (folder / "course" / "checks" / f"test_{number}.py").write_text("def test_all():\n    pass\n")
    (folder / "course" / "hidden").mkdir()
    (folder / "course" / "hidden" / f"test_{number}.py").write_text("def test_all():\n    pass\n")
    return folder


def graded(root, folder, out, *more):
    """(rows by kind, everything, what was printed) of `python -m course.grade`; the answer is on
    the path of imports, as on a student's machine that has two copies."""
    done = subprocess.run(
        [sys.executable, "-B", "-m", "course.grade", str(folder), "--json", str(out), "--limit",
         "12", *map(str, more)], cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, text=True,
        capture_output=True, timeout=500)
    assert done.returncode == 0, done.stderr
    told = json.loads(out.read_text())
    kinds = {number: kind for kind, number in KINDS.items()}
    return {kinds[row["number"]]: row for row in told["exercises"]}, told, done.stdout


@pytest.fixture(scope="module")
def result(project, handed_in, tmp_path_factory):
    return graded(project, handed_in, tmp_path_factory.mktemp("out") / "grade.json", "--seed", 7)


def test_an_honest_body_has_all_points_and_helpers_are_taken_along(result):
    rows, told, printed = result
    for kind in ("honest", "with helpers"):
        row = rows[kind]
        assert row["points"] == row["of"] == 10 and row["failed"] == row["notes"] == []
        assert row["public"] == [3, 3] and row["hidden"] == [4, 4]
    assert told["seed"] == 7 and told["points"] == sum(row["points"] for row in rows.values())
    assert "honest" in printed and "seed 7" in printed


def test_hard_coded_results_pass_the_public_checks_alone(result):
    row = result[0]["hard-coded"]
    assert row["public"] == [3, 3] and row["hidden"] == [1, 4] and row["points"] == 6.2
    assert {fail["check"] for fail in row["failed"]} == {
        f"test_squares_are_summed[{n}]" for n in (2, 5, 11)}


@pytest.mark.parametrize("kind, words", [
    ("imports another copy", "imports sys"), ("reads the answer", "uses open"),
    ("catches the test", "uses modules"), ("changes the judge", "changes random.randrange")])
def test_a_body_that_looks_for_the_answer_or_for_the_test_is_not_graded(result, kind, words):
    row = result[0][kind]
    assert row["points"] == 0 and "public" not in row
    assert row["notes"][0] == (f"work.py::f{KINDS[kind]} {words}, which no exercise needs: "
                               "not graded")


def test_what_a_body_must_not_do_a_helper_must_not_do_either(result):
    rows, told, _ = result
    assert "work.py: peek is not taken: it imports inspect" in told["notes"]
    assert rows["reads it in a helper"]["points"] == 0
    assert "name 'peek' is not defined" in rows["reads it in a helper"]["failed"][0]["why"]


def test_an_endless_loop_is_stopped_and_said(result):
    row = result[0]["endless"]
    assert row["points"] == 0
    assert row["notes"] == ["the checks did not end within 12 s: an endless loop?"]


@pytest.mark.parametrize("kind", ["ends the tests", "skips the tests"])
def test_a_body_cannot_end_or_skip_the_checks(result, kind):
    """A run that ended after one passed check would have passed all that it ran."""
    assert result[0][kind]["points"] == 0


def test_edited_checks_are_not_used(result):
    rows, told, _ = result
    row = rows["nothing written"]
    assert row["points"] == 0 and row["notes"] == [f"not written: f{row['number']}"]
    assert f"course/checks/test_{row['number']}.py was edited: ours is used" in told["notes"]


def test_the_same_seed_draws_the_same_inputs_and_no_seed_fresh_ones(project, handed_in, tmp_path):
    seeds = {graded(project, handed_in, tmp_path / "a.json", "--only", 1)[1]["seed"]
             for _ in range(2)}
    assert len(seeds) == 2


def test_in_the_students_tree_only_the_public_checks_are_run(handed_in, tmp_path):
    """With the edits of the student, whose tree it is; but forbidden is forbidden."""
    rows, told, printed = graded(handed_in, handed_in, tmp_path / "g.json", "--only",
                                 KINDS["honest"], KINDS["hard-coded"], KINDS["reads the answer"])
    assert not told["hidden"] and "your instructor's" in printed
    assert [row["points"] for row in rows.values()] == [5, 5, 0]
    assert all("hidden" not in row or row["hidden"] == [0, 0] for row in rows.values())


def test_a_file_that_is_no_python_or_lost_its_function_is_said_and_the_rest_is_graded(
        project, handed_in, tmp_path):
    folder = tmp_path / "student"
    shutil.copytree(handed_in, folder)
    text = (folder / "work.py").read_text()
    (folder / "work.py").write_text(text.replace("def f1(", "def first("))
    rows, _, _ = graded(project, folder, tmp_path / "g.json", "--only", 1, 2)
    assert [row["points"] for row in rows.values()] == [0, 10]
    assert rows["honest"]["notes"][0] == ("work.py has 0 definitions of f1: exactly one is needed")
    (folder / "work.py").write_text(text.replace("def f1(", "def f1(:"))
    rows, _, _ = graded(project, folder, tmp_path / "g.json", "--only", 1, 2)
    assert [row["points"] for row in rows.values()] == [0, 0]
    assert "is no Python" in rows["with helpers"]["notes"][0]


def test_a_folder_that_is_no_students_tree_is_refused(project, tmp_path):
    done = subprocess.run([sys.executable, "-B", "-m", "course.grade", str(tmp_path)], cwd=project,
                          text=True, capture_output=True, timeout=100)
    assert done.returncode == 2 and "is no students' tree" in done.stderr


@pytest.mark.parametrize("code, words", [
    ("import subprocess", "imports subprocess"), ("from course.hidden import test_2",
                                                  "imports course.hidden"),
    ("from . import loss", "imports ."), ("from torch import load", "imports load"),
    ("from math import *", "imports *"), ("__import__('os')", "uses __import__"),
    ("x.__globals__", "uses __globals__"), ("torch.load('x')", "uses load"),
    ("torch.allclose = len", "changes torch.allclose"), ("exec('x')", "uses exec"),
    ("import numpy as n\nn.random.seed = 3", "changes n.random.seed"),
    ("sys.stdout", "uses sys"), ("a.f_back", "uses f_back"),
    ("def __eq__(a, b): pass", "uses __eq__")])
def test_the_obvious_ways_to_an_answer_are_named(code, words):
    assert grade.forbidden(grade.ast.parse(code).body, {"torch"}) == words


@pytest.mark.parametrize("code", ["import math", "from numpy import linalg", "x.load_state = 3",
                                  "self.k = ctx.y = 1", "rows.limit[slot] += 2", "model.eval()",
                                  "class A:\n    def __init__(self): pass", "torch.compile(f)"])
def test_ordinary_code_is_not_forbidden(code):
    assert grade.forbidden(grade.ast.parse(code).body, {"torch"}) == ""


# -- the real course

ROWS = [row for row in student.exercises()
        if (ROOT / f"course/hidden/test_{row['number']}.py").exists()]


@pytest.mark.parametrize("row", ROWS, ids=[str(row["number"]) for row in ROWS])
def test_the_projects_own_bodies_of_one_exercise_have_all_points(tmp_path, row):
    """With no other exercise's bodies in the tree: the exercises can be done in any order."""
    student.write(tmp_path / "student")
    student.restore(tmp_path / "student", [row["number"], *row.get("needs", [])])
    told = grade.grade(tmp_path / "student", 5, [row["number"]])["exercises"][0]
    assert told["failed"] == [] and told["points"] == told["of"] == row["points"], told
    assert told["public"][0] > 0 and told["hidden"][0] > 0
    assert all(note.startswith("word for word") for note in told["notes"])
