"""`make submit` and `make grade-all`: archives in, a table and feedback out."""

import csv
import io
import json
import os
import re
import subprocess
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT
from grading import sandboxed

from course import batch, forms, grade, student
from course.hidden import replay


@pytest.fixture
def tree(tmp_path):
    folder = tmp_path / "tree"
    student.write(folder)
    student.restore(folder, [2])
    (folder / "helper.py").write_text("x = 1\n")
    (folder / "runs" / "base-1-seed0" / "source").mkdir(parents=True)
    (folder / "runs" / "base-1-seed0" / "config.toml").write_text("a = 1\n")
    (folder / "runs" / "base-1-seed0" / "source" / "loss.py").write_text("")
    (folder / "runs" / "base-1-seed0" / "big").write_text("x")
    return folder


def test_an_archive_holds_what_is_graded_and_no_more(tree, tmp_path):
    names = batch.pack(tree, tmp_path / "a.zip")
    assert {"loss.py", "engines/head.py", "helper.py", "course/handed_out.json",
            "runs/base-1-seed0/config.toml", "runs/base-1-seed0/source/loss.py"} <= {*names}
    assert not {"config.py", "runs/base-1-seed0/big", "course/README.md"} & {*names}
    assert zipfile.ZipFile(tmp_path / "a.zip").namelist() == names
    os.utime(tree / "loss.py", (0, 0))      # before 1980, which a ZIP cannot say
    assert batch.pack(tree, tmp_path / "a.zip") == names
    with pytest.raises(student.BadInput, match="is no students' tree"):
        batch.pack(tmp_path, tmp_path / "b.zip")


def test_make_submit_says_what_is_not_written(tree, tmp_path, monkeypatch, capsys):
    """It said nothing: half a submission looked like a whole one."""
    monkeypatch.setattr(batch, "ROOT", tree)
    (tree / "sampler.py").unlink()                      # exercise 6's, gone: no traceback
    (tree / "fit.py").write_text("def sigmoid(:\n")     # exercise 7's, no Python: somebody's work
    assert batch.main(["--pack", str(tmp_path / "a.zip")]) == 0
    told = capsys.readouterr().out
    lines = dict(re.findall(r"  exercise (\d+): not written: (.+)", told))
    assert lines["3"] == "_capped, _sequence_log_ratio, _clipped"
    assert lines["8"] == "experiment/plan.md" and lines["11"] == "ablation/plan.md"
    assert not {"2", "6", "7"} & {*lines} and {"1", "4", "5", "9", "10", "12"} <= {*lines}
    (tree / "experiment").mkdir()
    (tree / "experiment" / "plan.md").write_text("")
    assert 8 not in student.unwritten(tree)


@pytest.mark.days(4, turn=2)
@sandboxed
def test_a_folder_of_archives_is_a_table_and_broken_ones_are_rows(tree, tmp_path, monkeypatch):
    handed = tmp_path / "handed in"
    handed.mkdir()
    batch.pack(tree, handed / "Jörg Müller.zip")
    (handed / "broken.zip").write_bytes(b"PK nothing")
    zipfile.ZipFile(handed / "empty.zip", "w").close()
    with tarfile.open(handed / "outside.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("../../outside")
        info.size = 1
        archive.addfile(info, io.BytesIO(b"x"))
    rows = batch.grade_all(handed, tmp_path / "out", 5, 2)
    with open(tmp_path / "out" / "table.csv", newline="") as file:
        table = {row["name"]: row for row in csv.DictReader(file)}
    assert len(table) == len(rows) == 4
    assert table["Jörg Müller.zip"]["points"] == "10.0"
    assert table["Jörg Müller.zip"]["exercise 2"] == "10.0"
    for name in ("broken.zip", "empty.zip", "outside.tar.gz"):
        assert table[name]["points"] == "" and table[name]["note"].startswith("not graded: ")
        assert table[name]["note"] in (tmp_path / "out" / "feedback" / f"{name}.txt").read_text()
        found = json.loads((tmp_path / "out" / "feedback" / f"{name}.json").read_text())
        assert found["score"] == 0 and "make submit" in found["output"]
    assert not (tmp_path / "outside").exists()
    told = json.loads((tmp_path / "out" / "feedback" / "Jörg Müller.zip.json").read_text())
    assert told["score"] == 10 and sum(
        t["max_score"] for t in told["tests"] if not t["name"].endswith(" (elective)")) == 100
    assert "advantages" in (tmp_path / "out" / "feedback" / "Jörg Müller.zip.txt").read_text()


def test_a_plan_of_before_the_runs_is_found_by_the_name_of_the_archive(tree, tmp_path):
    (tree / "experiment").mkdir()
    (tree / "experiment" / "plan.md").write_text("early")
    (tmp_path / "plans").mkdir()
    batch.pack(tree, tmp_path / "plans" / "a.zip")
    for name, there in (("a.zip", True), ("b.zip", False)):
        (tmp_path / f"place-{name}").mkdir()
        found = batch.plans_of(tmp_path / "plans" / name, tmp_path / f"place-{name}")
        assert (found / "experiment" / "plan.md").exists() == there
    assert (tmp_path / "place-a.zip" / "plans" / "experiment" / "plan.md").read_text() == "early"


def test_the_class_has_a_table_of_its_bets():
    note = "forecasts: mean absolute error {:.3f}; naive 0.300, best constant 0.200, fit.py 0.100"
    rows = [dict(name="a.zip", bets=note.format(0.15)), dict(name="b.zip", bets=""),
            dict(name="c.zip", bets=note.format(0.05)), dict(name="d.zip")]
    table = [(line["name"], line["error"]) for line in batch.table_of_bets(rows)]
    assert table == [("c.zip", "0.050"), ("fit.py", "0.100"), ("a.zip", "0.150"),
                     ("best constant", "0.200"), ("naive", "0.300")]


TOLD = dict(points=7.5, notes=["edited"], exercises=[
    dict(number=2, title="two", points=6.0, of=10, elective=False, notes=["said"],
         parts=[dict(part="p", why="wrong", of=4, points=0), dict(part="q", why="")]),
    dict(number=9, title="nine", points=1.5, of=6, elective=True, notes=[], parts=[])])


def test_other_systems_get_their_forms(monkeypatch):
    found = forms.gradescope(TOLD)
    assert found["score"] == 7.5 and found["output"] == "edited"
    assert [t["name"] for t in found["tests"]] == ["two", "nine (elective)"]
    assert found["tests"][0]["output"] == "p: wrong\nsaid"
    for name, value in dict(CLASSROOM="c", ASSIGNMENT="a", OWNER="o", SUBMISSION_TAG="submit/x",
                            COMMIT_URL="https://x/c", RELEASE_URL="https://x/r").items():
        monkeypatch.setenv(name, value)
    found = forms.classroom50(TOLD)
    assert {*found} == {"schema", "classroom", "assignment", "assignment_type", "owner",
                        "submission", "commit", "release", "review", "datetime", "score",
                        "max-score", "tests"}
    assert found["schema"] == "classroom50/result/v1" and found["owner"] == "o"
    assert found["score"] <= found["max-score"] == 16
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", found["datetime"])
    for test in found["tests"]:
        assert {"test-name", "passed", "score", "max-score"} <= {*test} and not test["passed"]


@sandboxed
@pytest.mark.days(6, turn=4)
def test_gradescopes_container_form_writes_results(tree, tmp_path):
    """Its archive, unpacked as /autograder/source is, grades what lies in submission/."""
    place = tmp_path / "autograder"
    names = batch.write_autograder(tmp_path / "autograder.zip")
    assert {"setup.sh", "run_autograder", "course/hidden/values_2.py", "fit.py"} <= {*names}
    assert {*names} >= {*student.handed_out()} - {student.MANIFEST, "PROJECT.md"}
    with zipfile.ZipFile(tmp_path / "autograder.zip") as archive:
        archive.extractall(place / "source")
        modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
    assert modes["run_autograder"] & modes["setup.sh"] & 0o100
    (place / "source" / ".venv").symlink_to(ROOT / ".venv")
    (place / "results").mkdir()
    tree.rename(place / "submission")
    done = subprocess.run(["bash", place / "source" / "run_autograder"], text=True,
                          capture_output=True, env=os.environ | {"AUTOGRADER": str(place)})
    assert done.returncode == 0, done.stderr
    found = json.loads((place / "results" / "results.json").read_text())
    assert found["score"] == 10 and len(found["tests"]) == 12


@pytest.mark.days(4, turn=0)
@sandboxed
def test_on_gradescope_what_is_no_tree_has_no_points_and_a_reason(tmp_path):
    """And a tree in a folder of its own, as many zip it by hand, is found."""
    (tmp_path / "submission").mkdir()
    (tmp_path / "submission" / "homework.txt").write_text("x")
    assert batch.main(["--gradescope", str(tmp_path / "submission"), str(tmp_path / "r.json")]) == 0
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["score"] == 0 and "make submit" in found["output"] and found["tests"] == []
    student.write(tmp_path / "submission" / "my tree")
    student.restore(tmp_path / "submission" / "my tree", [2])
    assert batch.main(["--gradescope", str(tmp_path / "submission"), str(tmp_path / "r.json")]) == 0
    assert json.loads((tmp_path / "r.json").read_text())["score"] == 10


def test_a_damaged_archive_is_unpacked_or_refused_and_raises_nothing_else(tree, tmp_path):
    """Bytes in the middle that are no deflate stream raise zlib.error, a damaged header others."""
    batch.pack(tree, tmp_path / "a.zip")
    data = (tmp_path / "a.zip").read_bytes()
    for at in range(0, len(data), len(data) // 40):
        (tmp_path / "b.zip").write_bytes(data[:at] + bytes(200) + data[at + 200:])
        try:
            batch.unpacked(tmp_path / "b.zip", tmp_path / f"tree-{at}")
        except student.BadInput:
            pass


def test_a_name_in_another_encoding_is_a_row(tmp_path):
    handed = tmp_path / "in"
    handed.mkdir()
    (handed / os.fsdecode(b"M\xfcller.zip")).write_bytes(b"PK")
    (handed / ("n" * 250 + ".zip")).write_bytes(b"PK")
    rows = batch.grade_all(handed, tmp_path / "out", 5, 1)
    assert sorted(row["name"] for row in rows) == ["M\\xfcller.zip", "n" * 250 + ".zip"]
    assert "M\\xfcller.zip" in (tmp_path / "out" / "table.csv").read_text()


class Deaf:
    """A lane that says of each tree what its manifest holds."""
    def grade(self, argv, place):
        told = dict(points=1.0, cpu_s=0, notes=[], exercises=[])
        Path(argv[2]).write_text(json.dumps(told))
        return 0, (Path(argv[0]) / "course" / "handed_out.json").read_text(), ""

    def end(self):
        pass


def archive(path, text="{}"):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("course/handed_out.json", text)


def test_every_file_that_is_not_hidden_is_a_row_and_has_feedback(tmp_path, monkeypatch):
    """A student whose archive ends in .ZIP, or in .rar, must not be missing without a word."""
    monkeypatch.setattr(batch, "Lane", Deaf)
    (tmp_path / "in").mkdir()
    archive(tmp_path / "in" / "Jörg Öztürk.ZIP")
    archive(tmp_path / "a.zip")
    with tarfile.open(tmp_path / "in" / "b.tar.xz", "w:xz") as file:
        info = tarfile.TarInfo("course/handed_out.json")
        info.size = 2
        file.addfile(info, io.BytesIO(b"{}"))
    for name in ("c.7z", "d.rar", "e", ".hidden"):
        (tmp_path / "in" / name).write_bytes(b"x")
    os.mkfifo(tmp_path / "in" / "pipe.zip")
    rows = {row["name"]: row for row in batch.grade_all(tmp_path / "in", tmp_path / "out", 5, 1)}
    good, bad = {"Jörg Öztürk.ZIP", "b.tar.xz"}, {"c.7z", "d.rar", "e", "pipe.zip"}
    assert {*rows} == good | bad
    assert all(rows[name]["points"] == 1 and not rows[name]["note"] for name in good)
    assert all("it is none of .zip, " in rows[name]["note"] for name in bad)
    assert {path.name for path in (tmp_path / "out" / "feedback").iterdir()} == {
        f"{name}.{ending}" for name in rows for ending in ("txt", "json")}


def test_two_long_names_that_begin_alike_have_feedback_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(batch, "Lane", Deaf)
    (tmp_path / "in").mkdir()
    for who in ("Anna", "Zoë"):
        archive(tmp_path / "in" / ("exercise sheet, " * 6 + who + ".zip"), who)
    batch.grade_all(tmp_path / "in", tmp_path / "out", 5, 1)
    assert sorted(path.read_text() for path in (tmp_path / "out" / "feedback").glob("*.txt")) == [
        "Anna", "Zoë"]


def test_feedback_names_no_folder_of_the_instructors(tmp_path):
    """Of what cannot be opened, of a file that cannot be read, and of a plan that is missing."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.zip").write_bytes(b"PK")
    batch.grade_all(tmp_path / "in", tmp_path / "out", 5, 1)
    said = (tmp_path / "out" / "feedback" / "a.zip.txt").read_text()
    with pytest.raises(student.BadInput) as error:
        grade.handed_in(tmp_path, "none.py")
    _, notes = replay.points(tmp_path, "experiment", 14, 3, None)
    for text in (said, str(error.value), *notes):
        assert "/tmp" not in text and str(tmp_path) not in text, text
    assert notes == ["experiment/plan.md is missing: course/8_experiment.md shows one"]


def test_an_archive_that_unpacks_to_too_much_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(batch, "MOST_BYTES", 1000)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x", "0" * 2000)
    with pytest.raises(student.BadInput, match="too large"):
        batch.unpacked(tmp_path / "a.zip", tmp_path / "tree")


def test_a_tree_that_takes_long_hides_no_other_and_the_table_is_by_name(tmp_path, monkeypatch):
    """The first one is not done before the row of the last one stands in the file."""
    for name in ("a.zip", "b.zip", "c.zip"):
        (tmp_path / "handed" / name).mkdir(parents=True)
    table, asked = tmp_path / "out" / "table.csv", []

    def one(path, out, seed, lanes, plans, only):
        asked.append((path.name, seed, only))
        while path.name == "a.zip" and "c.zip" not in table.read_text():
            assert not late.wait(0.02)
        return dict(name=path.name, points=1, note="")
    late = threading.Event()
    timer = threading.Timer(60, late.set)
    timer.start()
    monkeypatch.setattr(batch, "grade_one", one)
    rows = batch.grade_all(tmp_path / "handed", tmp_path / "out", 5, 2, None, [2, 3])
    timer.cancel()
    assert [row["name"] for row in rows] == ["a.zip", "b.zip", "c.zip"]
    with open(table, newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == ["a.zip", "b.zip", "c.zip"]
    assert sorted(asked) == [(f"{name}.zip", 5, [2, 3]) for name in "abc"]


def test_a_full_disk_ends_the_batch_before_another_tree_is_begun(tmp_path, monkeypatch):
    """Ten minutes of grading after it would be lost, and nothing said until then."""
    for name in "abcdef":
        (tmp_path / "handed" / name).mkdir(parents=True)
    asked, stopped = [], threading.Event()

    def one(path, *rest):
        asked.append(path.name)
        if path.name == "a":
            raise OSError(28, "No space left on device")
        assert stopped.wait(60)
        return dict(name=path.name, points=1, note="")
    real = batch.ThreadPoolExecutor.shutdown

    def shutdown(pool, wait=True, **more):
        real(pool, wait=False, **more)
        stopped.set()
        real(pool, wait=wait)
    monkeypatch.setattr(batch, "grade_one", one)
    monkeypatch.setattr(batch.ThreadPoolExecutor, "shutdown", shutdown)
    with pytest.raises(OSError, match="No space"):
        batch.grade_all(tmp_path / "handed", tmp_path / "out", 5, 1)
    assert asked in (["a"], ["a", "b"])


@pytest.mark.days(4, turn=0)
@sandboxed
def test_one_exercise_of_a_tree_that_has_our_bodies_of_all_others(tmp_path):
    """`make student EX=2`, handed in untouched: `--only 2` gives it nothing for the rest."""
    student.write(tmp_path / "handed" / "tree", only=[2])
    (row,) = batch.grade_all(tmp_path / "handed", tmp_path / "out", 5, 1, None, [2])
    assert row["points"] == 0 and row["exercise 2"] == 0 and "exercise 3" not in row


@pytest.mark.days(4, turn=2)
def test_where_nothing_can_be_graded_the_batch_ends_and_says_so(tree, tmp_path, monkeypatch,
                                                                capsys):
    handed = tmp_path / "handed"
    handed.mkdir()
    batch.pack(tree, handed / "a.zip")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert batch.main([str(handed), "--out", str(tmp_path / "out")]) == 2
    assert "nothing is graded" in capsys.readouterr().err
