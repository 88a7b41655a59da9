"""`make submit` and `make grade-all`: archives in, a table and feedback out."""

import csv
import io
import json
import tarfile
import zipfile

import pytest
from grading import sandboxed

from course import batch, student


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
    with pytest.raises(student.BadInput, match="is no students' tree"):
        batch.pack(tmp_path, tmp_path / "b.zip")


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
    assert not (tmp_path / "outside").exists()
    told = json.loads((tmp_path / "out" / "feedback" / "Jörg Müller.zip.json").read_text())
    assert told["score"] == 10 and sum(t["max_score"] for t in told["tests"]) == 100
    assert "advantages" in (tmp_path / "out" / "feedback" / "Jörg Müller.zip.txt").read_text()


def test_an_archive_that_unpacks_to_too_much_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(batch, "MOST_BYTES", 1000)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x", "0" * 2000)
    with pytest.raises(student.BadInput, match="too large"):
        batch.unpacked(tmp_path / "a.zip", tmp_path / "tree")


def test_where_nothing_can_be_graded_the_batch_ends_and_says_so(tree, tmp_path, monkeypatch,
                                                                capsys):
    handed = tmp_path / "handed"
    handed.mkdir()
    batch.pack(tree, handed / "a.zip")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert batch.main([str(handed), "--out", str(tmp_path / "out")]) == 2
    assert "nothing is graded" in capsys.readouterr().err
