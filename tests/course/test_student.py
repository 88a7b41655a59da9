"""`make student`: a tree without the answers, which works on its own."""

import ast
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from conftest import ROOT, run_command

from course import student

ROWS = [row for row in student.exercises() if row["functions"]]
CHECKED = [row for row in ROWS if (ROOT / f"course/checks/test_{row['number']}.py").exists()]


def names(rows):
    return [str(row["number"]) for row in rows]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("students") / "student"
    student.write(folder)
    return folder


def test_two_trees_are_equal_byte_for_byte(tree, tmp_path):
    done = run_command(["-m", "course.student", "--out", tmp_path / "student"], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    files = [{path.relative_to(folder).as_posix(): path.read_bytes()
              for path in folder.rglob("*") if path.is_file()}
             for folder in (tree, tmp_path / "student")]
    assert files[0] == files[1] and len(files[0]) > 100


def test_signature_and_docstring_stay_and_only_the_bodies_go(tree):
    for path, numbers in student.by_file(ROWS).items():
        ours, theirs = ((folder / path).read_text() for folder in (ROOT, tree))
        for name, number in numbers.items():
            mine, left = (student.find(text, name, path) for text in (ours, theirs))
            assert ast.dump(mine.args) == ast.dump(left.args)
            assert ast.get_docstring(mine) == ast.get_docstring(left)
            assert [ast.dump(d) for d in mine.decorator_list] == [
                ast.dump(d) for d in left.decorator_list]
            assert student.body_of(theirs, name, path).strip() == \
                f'raise NotImplementedError("exercise {number}")'
        assert student.without_bodies(ours, numbers, path) == theirs


def test_the_real_bodies_make_the_real_files_again(tmp_path):
    student.write(tmp_path / "student")
    student.restore(tmp_path / "student")
    for path in student.by_file(ROWS):
        assert (tmp_path / "student" / path).read_text() == (ROOT / path).read_text()


def test_nothing_in_the_tree_gives_an_answer_away(tree):
    """No file of the instructor's, nothing compiled; and no long line of a removed body is anywhere
    in the tree, in code, pages, or figures."""
    for path in tree.rglob("*"):
        inside = path.relative_to(tree).as_posix()
        assert not re.search(r"\.git/|\.git$|__pycache__|\.pyc$|hidden|mutant|guide|syllabus|"
                             r"^tests|^runs|^student", inside), inside
    texts = {path: path.read_text(errors="replace") for path in tree.rglob("*") if path.is_file()}
    checked = 0
    for path, numbers in student.by_file(ROWS).items():
        ours = (ROOT / path).read_text()
        for name in numbers:
            lines = student.body_of(ours, name, path).splitlines()
            for line in lines if len(lines) > 1 else ():    # one line is what its page says anyway
                line = line.split("  #")[0].strip()
                if len(line) < 45 or line.startswith(("#", "assert")):
                    continue
                checked += 1
                assert not [path for path, text in texts.items() if line in text], (name, line)
    assert checked > 50


@pytest.mark.days(4, turn=1)
def test_what_is_left_can_be_imported(tree):
    modules = [".".join(path.relative_to(tree).with_suffix("").parts)
               for path in sorted(tree.rglob("*.py"))
               if path.stem not in ("__init__", "vllm_worker", "conftest")    # needs vLLM
               and "checks" not in path.parts and path.parent.name != "bench"]
    code = "import importlib\n" + "".join(f"importlib.import_module({m!r})\n" for m in modules)
    done = subprocess.run([sys.executable, "-B", "-c", code], cwd=tree, text=True, timeout=300,
                          capture_output=True)
    assert done.returncode == 0 and len(modules) > 40, done.stderr


@pytest.fixture(scope="module")
def failures(tree, tmp_path_factory):
    """{exercise: [what its failed checks say]} in the tree as it is handed out."""
    log = tmp_path_factory.mktemp("log") / "checks.xml"
    done = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
         f"--junitxml={log}", "course/checks"], cwd=tree, text=True, timeout=600,
        capture_output=True)
    assert done.returncode == 1, done.stdout
    found = {}
    for case in ElementTree.parse(log).iter("testcase"):
        number = int(re.search(r"test_(\d+)", case.get("classname"))[1])
        found.setdefault(number, []).extend(child.text or "" for child in case)
    return found


@pytest.mark.days(6, turn=5)
@pytest.mark.parametrize("row", CHECKED, ids=names(CHECKED))
def test_without_its_bodies_an_exercise_fails_and_says_which_it_is(failures, row):
    """And it never comes upon a function of another exercise."""
    raised = {int(number) for text in failures[row["number"]] for number in
              re.findall(r"NotImplementedError: exercise (\d+)", text)}
    assert row["number"] in raised <= {row["number"], *row.get("needs", [])}


def test_make_check_and_grade_know_where_they_are(tree):
    """In the students' tree there are no tests of the project, and `make check` is the course's."""
    def said(folder, *words):
        env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
        return subprocess.run(
            ["make", "-n", "-o", "V/test", "-o", "V/base", "VENV=V", *words], cwd=folder, env=env,
            text=True, capture_output=True, check=True).stdout.replace("\\\n", "").split()

    for folder in (ROOT, tree):
        assert said(folder, "check", "EX=3")[-6:] == [
            "pytest", "-q", "--tb=short", "-o", "faulthandler_timeout=120",
            "course/checks/test_3.py"]
        assert said(folder, "check", "EX=3 5")[-2:] == [
            "course/checks/test_3.py", "course/checks/test_5.py"]
        assert said(folder, "check", "EX=8")[-2:] == ["course.experiment", "experiment"]
    assert "tests/test_loss.py" in said(ROOT, "check")
    assert said(tree, "check")[-1] == "course/checks"
    assert said(ROOT, "grade")[-3:] == ['"student"', "--json", "grade.json"]
    assert said(tree, "grade")[-3:] == ['"."', "--json", "grade.json"]
    assert said(ROOT, "grade", "STUDENT=ada", "SEED=7")[-5:] == [
        '"ada"', "--json", "grade.json", "--seed", "7"]
    assert said(ROOT, "student", "EX=3 5")[-3:] == ["--only", "3", "5"]


def test_every_command_of_the_trees_page_has_what_it_needs(tree):
    """`make -n` fails where a file that a rule needs is not in the tree, as constraints.txt was
    not once: then nothing at all can be installed there. No script of the project's is missing."""
    commands = re.findall(r"^make (.*?)(?:  +#.*)?$", student.README, re.M)
    for command in commands:
        done = subprocess.run(["make", "-n", "VENV=elsewhere", *command.split()], cwd=tree,
                              text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        for script in re.findall(r"python (\w[\w/]*\.py)", done.stdout):
            assert (tree / script).is_file(), script
    assert {"toy", "demo", "grade", "submit"} <= {*commands}


def test_an_environment_that_is_a_link_is_others_too_and_nothing_is_installed(tree, tmp_path):
    """The guide has one for a class: an installation would make it this student's."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((tree / name).read_bytes())
    shared, checks = tmp_path / "shared", tmp_path / "course" / "checks"
    (shared / "bin").mkdir(parents=True)
    checks.mkdir(parents=True)
    (checks / "test_2.py").touch()
    for name in ("bin/python", "torch", "base", "test"):
        (shared / name).touch()
        os.utime(shared / name, (1, 1))             # older than the tree
    (tmp_path / ".venv").symlink_to(shared)
    done = subprocess.run(["make", "-n", "check", "EX=2"], cwd=tmp_path, text=True,
                          capture_output=True)
    assert done.returncode == 0 and "pytest" in done.stdout and "install" not in done.stdout
    # With packages of the demo alone it lacks those of the checks. Whose it is, its `fit` says.
    (shared / "test").unlink()
    for owner, code in (("/srv/class", 2), (tmp_path, 0)):
        (shared / "bin" / "python").write_text(f'''#!/bin/sh
case "$*" in *fit.__file__*) echo {owner}/fit.py ;; *) echo "$@" >> {tmp_path}/ran ;; esac
''')
        (shared / "bin" / "python").chmod(0o755)
        done = subprocess.run(["make", "check", "EX=2"], cwd=tmp_path, text=True,
                              capture_output=True)
        assert done.returncode == code
        assert code == 0 or "belongs to /srv/class: make" in " ".join(done.stdout.split())
        assert (tmp_path / "ran").exists() == (shared / "test").exists() == (code == 0)
    assert "pip install" in (tmp_path / "ran").read_text()


@pytest.mark.days(4, turn=0)
def test_a_tree_that_holds_work_is_not_overwritten(tmp_path):
    folder = tmp_path / "student"

    def make(*more):
        return run_command(["-m", "course.student", "--out", folder, *more], cwd=ROOT)

    assert make().returncode == make().returncode == 0
    (folder / "runs" / "mine").mkdir(parents=True)
    (folder / "runs" / "mine" / "evals.jsonl").write_text("{}\n")
    with (folder / "loss.py").open("a") as file:
        file.write("# my work\n")
    refused = make()
    assert refused.returncode == 2 and "# my work" in (folder / "loss.py").read_text()
    assert refused.stderr == (
        f"student.py: {folder} holds work, loss.py: `python -m course.student --force` overwrites "
        "it, --out FOLDER takes another place\n")
    assert make("--force").returncode == 0
    assert "# my work" not in (folder / "loss.py").read_text()
    assert (folder / "runs" / "mine" / "evals.jsonl").exists()          # never touched
    other = tmp_path / "thesis"
    other.mkdir()
    (other / "chapter.md").write_text("a year of work\n")
    done = run_command(["-m", "course.student", "--out", other], cwd=ROOT)
    assert done.returncode == 2 and "was not made by `make student`" in done.stderr
    assert [*other.iterdir()] == [other / "chapter.md"]


def test_one_exercise_alone_leaves_the_other_bodies(tmp_path):
    student.write(tmp_path / "student", only=[2])
    left = "".join((tmp_path / "student" / path).read_text() for path in student.by_file(ROWS))
    assert set(re.findall(r'NotImplementedError\("exercise (\d+)"\)', left)) == {"2"}
    done = run_command(["-m", "course.student", "--out", tmp_path / "x", "--only", 99], cwd=ROOT)
    assert done.stderr == "student.py: there is no exercise 99: exercises.toml has 12\n"


@pytest.mark.parametrize("source, body", [
    ("def f(x):\n    return x\n", "    return x"),
    ('def f(x):\n    """Doc."""\n    # why\n    return x  # y\n    # end\n\nz = 1\n',
     "    # why\n    return x  # y\n    # end"),
    ("def f(\n    x,\n):  # note\n\n    # why\n    @g\n    def h():\n        return x\n"
     "    return h\n# of the file\n",
     "\n    # why\n    @g\n    def h():\n        return x\n    return h"),
    ("def f(x): return x\n", "    return x"),
])
def test_a_body_is_cut_out_with_its_comments_and_nothing_else(source, body):
    assert student.body_of(source, "f", "x.py") == body
    if "): return" not in source:
        cut = student.without_bodies(source, {"f": 3}, "x.py")
        assert body not in cut and student.with_bodies(cut, {"f": body}, "x.py") == source
        assert ("# of the file" in cut) == ("# of the file" in source)


def test_what_is_no_exercise_is_said_in_a_sentence():
    for source, name, words in (("def f(:", "f", "line 1 is no Python"),
                                ("def f(): pass\ndef f(): pass", "f", "2 definitions of f"),
                                ("class A: pass", "A.g", "0 definitions of A.g")):
        with pytest.raises(student.BadInput, match=re.escape(words)):
            student.find(source, name, "x.py")
