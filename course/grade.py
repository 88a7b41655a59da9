"""grade.py: the points of a students' tree (`make grade`).

    python -m course.grade student --json grade.json   # an instructor's: public and hidden checks
    python -m course.grade .                           # in a students' tree: the public checks
    python -m course.grade student --only 3 --seed 7   # one exercise, with inputs seen before

Of the students' files only the bodies of the exercises' functions count, and what is new at the top
level of the same files: functions, classes, imports, constants. They are put into a fresh tree that
has no answers in it, with our checks: edits of checks and of other code have no effect. Public and
hidden checks give half of an exercise's points each; exercise 8 is graded by experiment.py.

What a body must not do is found by reading it (`forbidden`), not by a sandbox. It stops the obvious
ways to the answer, not a person who is set on cheating: whoever grades others reads their code.
"""
import argparse
import ast
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from course import experiment
from course.student import (MANIFEST, ROOT, BadInput, body_of, by_file, exercises, find, handed_out,
                            parsed, with_bodies, without_bodies)

LIMIT_S = 120           # of one exercise's checks; they need 20 s
# A body may import these, and the project's own files, which have no answers in the graded tree.
MODULES = {"torch", "numpy", "scipy", "math", "random", "itertools", "functools", "collections",
           "operator", "heapq", "bisect", "statistics", "dataclasses", "typing", "loss", "fit",
           "sampler", "scalerl", "config", "engines", "tasks"}
NAMES = {"open", "exec", "eval", "compile", "globals", "locals", "setattr", "delattr", "sys", "os",
         "inspect", "importlib", "subprocess", "pathlib", "Path", "shutil", "pytest", "unittest"}
ATTRIBUTES = {"load", "fromfile", "loadtxt", "genfromtxt", "memmap", "hub", "modules", "environ",
              "_getframe", "read_text", "read_bytes", "tb_frame", "f_back", "f_globals"}


# ---------------------------------------------------------------------- 1. what a student wrote
def forbidden(nodes, modules=()):
    """Why these statements are not graded, or "". modules: names of imported modules."""
    modules = {*modules}
    for node in (each for top in nodes for each in ast.walk(top)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                if bad := {"*", *NAMES, *ATTRIBUTES} & {*names}:
                    return f"imports {bad.pop()}"
                names = ["." * node.level + (node.module or "")]
            if bad := [name for name in names if name.split(".")[0] not in MODULES]:
                return f"imports {bad[0]}"
            modules |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        if isinstance(node, ast.Attribute):
            root = node
            while isinstance(root, ast.Attribute):
                root = root.value
            if not isinstance(node.ctx, ast.Load) and getattr(root, "id", None) in modules:
                return f"changes {ast.unparse(node)}"
        name = next((vars(node)[field] for field in ("id", "attr", "name") if field in vars(node)),
                    None) or ""
        if (isinstance(node, ast.Name) and name in NAMES
                or isinstance(node, ast.Attribute) and name in ATTRIBUTES
                or re.fullmatch("__(?!init|len|name).*__", name)):
            return f"uses {name}"
    return ""


def names_of(node):
    """The names that a statement at the top level of a file defines."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name for alias in node.names}
    if isinstance(node, ast.Assign):
        return {name.id for name in ast.walk(node)
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
    return {getattr(node, "name", "")} - {""}


def imported(tree):
    return {name.split(".")[0] for node in ast.walk(tree)
            if isinstance(node, (ast.Import, ast.ImportFrom)) for name in names_of(node)}


def graft(path, source, ours, numbers):
    """`ours`, our file without bodies, with those of a student's `source` and what is new there
    -> (text, {exercise: [reasons why a body is not taken]}, [notes]). Raises BadInput."""
    tree, text, refused, notes = parsed(source, path), ours, {}, []
    for name, number in numbers.items():
        try:
            node = find(source, name, path)
            if reason := forbidden(node.body, imported(tree)):
                raise BadInput(f"{path}::{name} {reason}, which no exercise needs: not graded")
            text = with_bodies(text, {name: body_of(source, name, path)}, path)
        except BadInput as error:
            refused.setdefault(number, []).append(str(error))
    known = set().union(*map(names_of, ast.parse(ours).body))
    for node in tree.body:
        names = names_of(node)
        if not names or names & known:
            continue
        if reason := forbidden([node], imported(tree)):
            notes.append(f"{path}: {', '.join(names)} is not taken: it {reason}")
        else:
            text += f"\n\n{ast.unparse(node)}\n"
    return text, refused, notes


def undone(text, name, number, path):
    return body_of(text, name, path).strip() == f'raise NotImplementedError("exercise {number}")'


def copied(text, name, path):
    """Is this body the project's own, word for word? Of short ones nobody can tell."""
    mine, real = (list(map(ast.dump, find(source, name, path).body))
                  for source in (text, (ROOT / path).read_text()))
    return mine == real and len("".join(real)) > 2000


# ------------------------------------------------------------------------------ 2. the checks
def run_checks(tree, number, seed, limit_s):
    """An exercise's checks in a process of its own
    -> {"public": [(check, "" or why it failed)], "hidden": ...}, and a note if there are none."""
    paths = [path for kind in ("checks", "hidden")
             if (tree / (path := f"course/{kind}/test_{number}.py")).exists()]
    if not paths:
        return {}, f"there are no checks of exercise {number}"
    log = tree / f"checks_{number}.xml"
    env = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR")
           if name in os.environ} | {"COURSE_SEED": str(seed), "OMP_NUM_THREADS": "1",
                                     "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
         f"--junitxml={log}", *paths], cwd=tree, env=env, start_new_session=True, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return {}, f"the checks did not end within {limit_s} s: an endless loop?"
    if process.returncode not in (0, 1) or not log.exists():
        last = (output.strip().splitlines() or ["no output"])[-1]
        return {}, f"the checks ended early (exit code {process.returncode}): {last}"
    found = {"public": [], "hidden": []}
    for case in ElementTree.parse(log).iter("testcase"):
        kind = "hidden" if "course.hidden" in case.get("classname", "") else "public"
        why = next((str(child.get("message")).removeprefix("AssertionError: ").split("\n")[0]
                    for child in case if child.tag in ("failure", "error", "skipped")), "")
        found[kind].append((case.get("name"), why))
    return found, ""


def grade(folder, seed, only=(), limit_s=LIMIT_S):
    """A students' folder -> {"exercises": [...], "points", "of", "seed", "hidden", "notes"}.
    Raises BadInput."""
    handed = folder / MANIFEST
    if not handed.exists():
        raise BadInput(f"{folder} is no students' tree: {handed} is missing")
    ours = not (ROOT / MANIFEST).exists()                   # an instructor's tree
    rows, refused, texts = exercises(), {}, {}
    files = handed_out() if ours else {
        path: (ROOT / path).read_bytes() for path in json.loads(handed.read_text())}
    notes = [f"{path} was edited: ours is used" for path in sorted(files) if ours
             and path.startswith("course/") and path.endswith((".py", ".toml"))
             and path not in by_file(rows) and (folder / path).exists()
             and (folder / path).read_bytes() != files[path]]
    for path, numbers in by_file(rows).items():
        try:
            texts[path], reasons, new = graft(path, (folder / path).read_text(), without_bodies(
                files[path].decode(), numbers, path), numbers)
        except (BadInput, OSError, UnicodeDecodeError) as error:
            reasons, new = {number: [f"{path}: {error}"] for number in numbers.values()}, []
        notes += new
        for number, why in reasons.items():
            refused.setdefault(number, []).extend(why)
    with tempfile.TemporaryDirectory() as place:
        tree = Path(place)
        if ours:
            files |= {f"course/hidden/{path.name}": path.read_bytes()
                      for path in (ROOT / "course" / "hidden").glob("*.py")}
        files |= {path: text.encode() for path, text in texts.items()}
        for path, data in files.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(data)
        graded = [grade_one(row, folder, tree, texts, refused, seed, limit_s, ours)
                  for row in rows if not only or row["number"] in only]
    return dict(folder=str(folder), seed=seed, hidden=ours, exercises=graded, notes=notes,
                points=round(sum(row["points"] for row in graded), 1),
                of=sum(row["of"] for row in graded))


def grade_one(row, folder, tree, texts, refused, seed, limit_s, ours):
    """One exercise -> its row of the table."""
    number, result = row["number"], dict(number=row["number"], title=row["title"], points=0.0,
                                         of=row["points"], notes=[], failed=[])
    if not row["functions"]:
        done, why = experiment.grade(folder)
        return result | dict(points=round(row["points"] * len(done) / experiment.PARTS, 1),
                             public=[len(done), experiment.PARTS],
                             notes=[*done, *([why] if why else experiment.RUBRIC)])
    result["notes"] += refused.get(number, [])
    functions = [name.split("::") for name in row["functions"]]
    written = [each for each in functions if each[0] in texts
               and not undone(texts[each[0]], each[1], number, each[0])]
    if missing := [name for path, name in functions if [path, name] not in written]:
        result["notes"].append(f"not written: {', '.join(missing)}")
    if ours and (same := [name for path, name in written if copied(texts[path], name, path)]):
        result["notes"].append(f"word for word the project's own: {', '.join(same)}")
    if not written:
        return result
    found, note = run_checks(tree, number, seed, limit_s)
    result["notes"] += [note] * bool(note)
    for kind, cases in found.items():
        passed = sum(not why for _, why in cases)
        result[kind] = [passed, len(cases)]
        result["points"] += row["points"] / 2 * passed / max(len(cases), 1)
        result["failed"] += [dict(check=check, why=why) for check, why in cases if why]
    result["points"] = round(result["points"], 1)
    return result


# ------------------------------------------------------------------------------- 3. the table
def table(told):
    """Lines to read."""
    part = "points" if told["hidden"] else "public half"
    yield f"{'exercise':<62}{'public':>8}{'hidden':>8}{part:>12}"
    for row in told["exercises"]:
        public, hidden = ("/".join(map(str, row[kind])) if row.get(kind, [0, 0])[1] else "-"
                          for kind in ("public", "hidden"))
        title = textwrap.shorten(row["title"], 59, placeholder=" ...")
        yield (f"{row['number']} {title:<60}{public:>8}{hidden:>8}"
               f"{row['points']:>6} / {row['of']:>3}")
        for each in row["failed"]:
            yield f"    {each['check']}: {each['why']}"
        for note in row["notes"]:
            yield f"    {note}"
    yield f"{'all':<62}{'':>16}{told['points']:>6} / {told['of']:>3}"
    yield from (f"note: {note}" for note in told["notes"])
    yield f"seed {told['seed']}: `make grade SEED={told['seed']}` draws the same inputs"
    if not told["hidden"]:
        yield ("public checks give half of the points; the hidden ones, of other sizes, are your "
               "instructor's")


def main(argv=None):
    p = argparse.ArgumentParser(prog="grade.py", description=__doc__.split("\n")[0])
    p.add_argument("folder", type=Path, help="a students' tree")
    p.add_argument("--json", type=Path, metavar="FILE", help="the table for programs")
    p.add_argument("--seed", type=int, help="of the checks' inputs (default: a fresh one)")
    p.add_argument("--only", type=int, nargs="+", default=[], metavar="N", help="these exercises")
    p.add_argument("--limit", type=int, default=LIMIT_S, metavar="S", help="seconds an exercise")
    args = p.parse_args(argv)
    try:
        seed = int.from_bytes(os.urandom(3), "big") if args.seed is None else args.seed
        told = grade(args.folder.resolve(), seed, args.only, args.limit)
    except (BadInput, OSError) as error:
        print(f"grade.py: {error}", file=sys.stderr)
        return 2
    print(*table(told), sep="\n")
    if args.json:
        args.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
