"""What the tests of grading share: trees that are handed in, made of bodies, and their points."""
import functools

import pytest
from conftest import ROOT

from course import grade, student
from tasks.sandbox import failure

WHY = failure("bubblewrap")
sandboxed = pytest.mark.skipif(bool(WHY), reason=WHY or "a sandbox can be made")

ROWS = {row["number"]: row for row in student.exercises()}


@functools.cache
def handed_out():
    files = student.handed_out()
    return {path: files[path].decode() for path in student.by_file([*ROWS.values()])}


def tree(bodies=(), top="", real=(), where="loss.py"):
    """{path: text} of the exercises' files: real bodies of the exercises `real`, these bodies
    {"loss.py::advantages": text}, and lines put at the top of the file `where`."""
    sources = dict(handed_out())
    for path, functions in student.by_file([*ROWS.values()]).items():
        text = (ROOT / path).read_text()
        mine = {name: student.body_of(text, name, path) for name, number in functions.items()
                if number in real}
        for each, body in dict(bodies).items():
            file, name = each.split("::")
            if file == path:
                depth = 4 * (1 + name.count("."))
                mine[name] = "\n".join(" " * depth + line if line else "" for line in
                                       body.strip("\n").split("\n"))
        sources[path] = student.with_bodies(sources[path], mine, path)
    lines = sources[where].split("\n")
    at = next(i for i, line in enumerate(lines) if line.startswith("import "))
    sources[where] = "\n".join([*lines[:at], *top.split("\n"), *lines[at:]]) if top else \
        sources[where]
    return sources


def graded(number, sources, extra=None, seed=3, limit_s=100):
    """The row of one exercise."""
    return grade.grade_one(ROWS[number], [*ROWS.values()], ROOT, sources, extra or {}, seed,
                           limit_s)
