"""Twelve right solutions of each exercise, in styles of their own, keep all points; and so does a
file as Windows, or an old editor, writes it. Some each day; `make grading-check`: all."""
import os
from collections import Counter

import pytest
from grading import ROWS, SOLUTIONS, graded, handed_out, sandboxed, solution, written_into
from test_grade import STYLES

from course import grade, student

NUMBERS = [number for number, row in ROWS.items() if row["functions"]]


def solved(path):
    """The exercises that a file of solutions solves."""
    return [9, 10, 12] if path.stem == "habits" else NUMBERS


CASES = [(path, number) for path in SOLUTIONS for number in solved(path)]


@pytest.mark.days(24)
@sandboxed
@pytest.mark.parametrize("path, number", CASES, ids=lambda x: getattr(x, "stem", x))
def test_a_right_solution_of_any_style_has_all_points(path, number):
    """With fresh inputs. All exercises of the style are in the file, as a student hands it in."""
    seed = int(os.environ.get("SEED") or int.from_bytes(os.urandom(3), "big"))
    row = graded(number, *solution(path), seed=seed)
    assert row["points"] == row["of"], (seed, [p for p in row["parts"] if p["why"]], row["notes"])
    assert all(note.startswith("forecasts: ") for note in row["notes"])


def test_each_exercise_has_twelve_right_solutions():
    """The project's own, those of test_grade.py, and those of solutions/: no two are alike."""
    count = Counter(NUMBERS) + Counter({number for number, *_ in STYLES.values()})
    count += Counter(number for _, number in CASES)
    assert all(count[number] >= 12 for number in NUMBERS), count


def test_the_splicer_keeps_what_it_does_not_replace():
    source = '"""Doc."""\nimport os\n\nX = 1\n\n\nclass A:\n    def f(self):\n        pass\n\n' \
             '    def g(self):\n        return 2\n\n\ndef h():\n    pass\n'
    text = "from __future__ import annotations\nY = 3\n\n\nclass A:\n    def f(self):\n" \
           "        return Y\n\n    def more(self):\n        return 4\n\n\ndef h():\n    return 5\n"
    space = {}
    exec(compile(written_into(source, text), "x", "exec", dont_inherit=True), space)
    a = space["A"]()
    assert [a.f(), a.g(), a.more(), space["h"](), space["X"]] == [3, 2, 4, 5, 1]


FORMS = {"a mark of the byte order": lambda text: b"\xef\xbb\xbf" + text.encode(),
         "lines that end as on Windows": lambda text: text.replace("\n", "\r\n").encode(),
         "latin-1": lambda text: ("# -*- coding: latin-1 -*-\n# Für Jörg\n" + text.encode(
             "ascii", "replace").decode()).encode("latin-1"),
         "tabs": lambda text: text.replace("    ", "\t").encode()}


@pytest.mark.days(4)
@sandboxed
@pytest.mark.parametrize("form", FORMS)
def test_a_file_in_another_form_has_all_points(tmp_path, form):
    student.write(tmp_path)
    sources, _ = solution(next(path for path in SOLUTIONS if path.stem == "loops"))
    for name in ("loss.py", "engines/head.py"):
        (tmp_path / name).write_bytes(FORMS[form](sources[name]))
    told = grade.grade(tmp_path, 3, only=[2, 3])
    assert [row["points"] for row in told["exercises"]] == [10, 12], told


@pytest.mark.days(4)
@sandboxed
@pytest.mark.parametrize("place", ["Helpers/mine.py", "_own/mine.py", "a/b/mine.py", "mine.py"])
def test_a_helper_may_lie_anywhere(tmp_path, place):
    student.write(tmp_path)
    student.restore(tmp_path, [2])
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_text("def same(x):\n    return x\n")
    text = (tmp_path / "loss.py").read_text()
    module = place.removesuffix(".py").replace("/", ".")
    (tmp_path / "loss.py").write_text(
        text.replace("import torch\n", f"import torch\nfrom {module} import same\n", 1)
        .replace("return centered / torch", "return same(centered) / torch"))
    told = grade.grade(tmp_path, 3, only=[2])
    assert told["points"] == 10, told
    assert handed_out()["loss.py"] != text
