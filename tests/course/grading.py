"""What the tests of grading share: trees that are handed in, made of bodies, and their points."""
import ast
import atexit
import functools
import re

import pytest
from conftest import ROOT

from course import grade, student
from course.hidden import values
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
    if top:
        at = next(i for i, line in enumerate(lines) if line.startswith("import "))
        sources[where] = "\n".join([*lines[:at], *top.split("\n"), *lines[at:]])
    return sources


@functools.cache
def box():
    """One sandbox for all tests of this process."""
    made = values.Sandbox(100)
    atexit.register(made.__exit__)
    return made


def graded(number, sources, extra=None, seed=3, limit_s=100):
    """The row of one exercise."""
    return grade.grade_one(ROWS[number], [*ROWS.values()], ROOT, sources, extra or {}, seed,
                           limit_s, box=box())


# Right solutions of all exercises, each in a style of its own (solutions/*.py): after a line
# `# file: loss.py` stand the functions that a student wrote into that file, helpers and all.
SOLUTIONS = sorted((ROOT / "tests" / "course" / "solutions").glob("*.py"))


def solution(path):
    """({path: text} of the exercises' files, {path: text} of new modules) of such a file."""
    sources, extra = dict(handed_out()), {}
    _, *sections = re.split(r"^# file: (.+)\n", path.read_text(), flags=re.M)
    for file, text in zip(sections[::2], sections[1::2]):
        if file in sources:
            sources[file] = written_into(sources[file], text)
        else:
            extra[file] = text
    return sources, extra


def written_into(source, text):
    """`text` in the student's file `source`: a definition takes the place of the one of its name, a
    class gives its members to the class of its name; what stands above the first of these goes
    below the imports, all else to the end; all below a line `# -- below` just to the end."""
    text, _, below = text.partition("# -- below\n")
    lines, top, end = source.split("\n"), [], []
    edits = []                                  # (first line, last line, new lines), from 0
    old = {node.name: node for node in ast.parse(source).body if hasattr(node, "name")}
    for node, mine in pieces(text):
        own = old.get(getattr(node, "name", None))
        if own is None:
            (end if edits else top).extend(mine)
        elif isinstance(node, ast.ClassDef) and not node.decorator_list and not node.bases:
            members = {each.name: each for each in own.body if hasattr(each, "name")}
            for member, its in pieces("\n".join(mine), node.body):
                there = members.get(getattr(member, "name", None))
                edits.append((first(there), there.end_lineno, its) if there else
                             (own.end_lineno, own.end_lineno, its))
        else:
            edits.append((first(own), own.end_lineno, mine))
    for start, stop, its in sorted(edits, key=lambda edit: edit[0], reverse=True):
        lines[start:stop] = its
    at = max(node.end_lineno for node in ast.parse(source).body
             if isinstance(node, (ast.Import, ast.ImportFrom)))
    early = [line for line in top if line.startswith("from __future__")]
    lines[at:at] = [line for line in top if line not in early]
    at = ast.parse(source).body[0].end_lineno
    return "\n".join([*lines[:at], *early, *lines[at:], *end, *below.split("\n"), ""])


def first(node):
    return min(each.lineno for each in (node, *getattr(node, "decorator_list", ()))) - 1


def pieces(text, body=None):
    """(node, its lines with the comments above it) of each statement."""
    lines, last = text.split("\n"), None
    for node in ast.parse(text).body[0].body if body else ast.parse(text).body:
        start = first(node) if last is None else last
        yield node, lines[start:node.end_lineno]
        last = node.end_lineno
