"""student.py: the students' tree, made from this one (`make student`).

    python -m course.student                  # writes student/, all exercises
    python -m course.student --only 3 5       # the bodies of exercises 3 and 5 alone are taken out
    python -m course.student --restore        # puts the real bodies back into student/

A tree is the project without the bodies of the exercises' functions, which are found by name in
the syntax tree. Signatures and docstrings stay. Two trees of one project are equal byte for byte.
TAKEN says which files go along: what it does not name, a student does not get.
"""
import argparse
import ast
import functools
import hashlib
import json
import shutil
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# No tests/ and no bench/head.py: their oracles are the answers in plain lines. No hidden values,
# no mutants (patches quote the code), no guide, of results/ only logs that pages and fit.py read.
TAKEN = ("*.py", "*.toml", "constraints.txt", "Makefile", "LICENSE", ".gitignore", "tasks/*.*",
         "engines/*.*", "scaleout/*.*", "artifacts/*.*", "configs/**/*.*", "docs/*",
         "study/__init__.py", "study/toy.py", "study/smollm2.py", "bench/simulate.py",
         "results/demo/evals.csv", "results/stress/*.csv", "results/stress/PROTOCOL.md",
         "command/*.*", "fitting/*.*", "servers/*.*", "course/*.md", "course/*.ipynb",
         "course/*.py", "course/checks/*.py", "course/exercises.toml", "course/late/*.jsonl",
         "CONTRIBUTING.md")
KEPT_BACK = ("course/guide.md", "course/syllabus.md", "course/mutants.md", "course/mutants.py",
             "course/slides.md", "course/slides.py", "course/CHANGES.md", "course/tour.py")
MANIFEST = "course/handed_out.json"       # {path: sha256} of what was written: the rest is work
README = """\
# ScaleRL, to be written

This is the project with the bodies of {functions} functions taken out: the exercises of
[course/README.md](course/README.md). Each of them says `raise NotImplementedError("exercise 3")`,
its docstring says what it does, and a page in `course/` what to know. Do them in any order.

```bash
make check EX=3     # what is right and what is wrong with exercise 3
make grade          # the checks of all exercises, a line each (points are your instructor's)
make submit         # submission.zip, to be handed in
make toy            # a language model of 0.8M parameters, for runs
make demo           # train it and fit its curve: needs exercises 1 to 7
git init            # a history of your own
```

The first `make` puts what it needs in `.venv`; `make check EX=3 VENV=PATH` takes another place.
A run needs the functions of exercises 1 to 7; `make check` needs those of its own exercise. A run
that ends with "exercise 6" has met a function of exercise 6 that is not written; remove its folder
(`rm -r runs/NAME`) before you start it again.

Graded is what the functions in `course/exercises.toml` return, signatures as they are, for inputs
that nobody has seen. They run in a sandbox, without network and without files but yours and the
libraries'. Write them in any style: with helpers, constants, imports, new methods anywhere in the
same files, or in new modules: beside them, or in folders, two deep, of any name that no library
(nor Python itself) has. Edits of other files, and of the checks, are not taken. An exercise runs
beside our functions of all others; a line that raises costs what needs it, and one that ends
Python costs all exercises that import its file. A file is 1 MB at most, new modules are 200 at
most, and 4 MB together; a model that a run of exercise 8 or 11 began from is 32 MB at most.

Left out: the tests and the scripts of `bench/` (they repeat the functions in plain lines; only
`bench/simulate.py` is here), the project's figures (of `results/` only logs are here), its history,
the instructor's values and guide. The project's own README is [PROJECT.md](PROJECT.md);
what it says about these files does not hold here.
"""


class BadInput(ValueError):
    """Something that cannot be used. The text is one sentence for the person who gave it."""


# ---------------------------------------------------------------------------- 1. the syntax tree
def exercises(root=ROOT):
    """The rows of exercises.toml, in order."""
    return tomllib.loads((root / "course" / "exercises.toml").read_text())["exercise"]


def chosen(only, root=ROOT):
    """The rows of these exercises, or of all. Raises BadInput: there is no such exercise."""
    rows = exercises(root)
    if unknown := set(only) - {row["number"] for row in rows}:
        raise BadInput(f"there is no exercise {min(unknown)}: exercises.toml has {len(rows)}")
    return [row for row in rows if not only or row["number"] in only]


def by_file(rows):
    """{file: {function: exercise number}} of these exercises."""
    found = {}
    for row in rows:
        for name in row["functions"]:
            path, _, function = name.partition("::")
            found.setdefault(path, {})[function] = row["number"]
    return found


@functools.lru_cache(64)            # the same file is asked for each of its functions
def parsed(source, path):
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise BadInput(f"{path}, line {error.lineno} is no Python: {error.msg}") from None


def find(source, name, path):
    """The node of function `name`, "f" or "Class.f", in this source. Raises BadInput."""
    node = parsed(source, path)
    for part in name.split("."):
        found = [child for child in node.body if getattr(child, "name", None) == part]
        if len(found) != 1:
            raise BadInput(f"{path} has {len(found)} definitions of {name}: exactly one is needed")
        node, = found
    return node


def span(source, node):
    """(first, last) of the lines of a function's body, from 0, `last` not included: all below the
    docstring, or below the signature. None if the body begins on the line of the signature."""
    lines = source.splitlines()
    statements = node.body[ast.get_docstring(node, clean=False) is not None:]
    last = node.end_lineno
    if node.body != statements:
        first = node.body[0].end_lineno
    else:                                   # comments above the first statement belong to the body
        top = statements[0]
        if lines[top.lineno - 1][:top.col_offset].strip():
            return None
        first = min(each.lineno for each in (top, *getattr(top, "decorator_list", ()))) - 1
        while not lines[first - 1].strip() or lines[first - 1].lstrip().startswith("#"):
            first -= 1
    for number in range(last, len(lines)):  # so do comments below the last one
        line = lines[number]
        if line.strip() and not (line.lstrip().startswith("#")
                                 and len(line) - len(line.lstrip()) > node.col_offset):
            break
        last = number + 1 if line.strip() else last
    return first, last


def body_of(source, name, path):
    """The text of a function's body, its comments included."""
    node = find(source, name, path)
    where = span(source, node)
    if where is None:                       # def f(x): return x
        lines = source.splitlines()[node.body[0].lineno - 1:node.end_lineno]
        return " " * (node.col_offset + 4) + "\n".join([
            lines[0][node.body[0].col_offset:], *lines[1:]])
    return "\n".join(source.splitlines()[slice(*where)])


def with_bodies(source, bodies, path):
    """The source with these bodies {name: text} in place of its own."""
    for name, text in bodies.items():
        node = find(source, name, path)
        where = span(source, node)
        if where is None:
            raise BadInput(f"{path}: {name} has its body on the line of its signature")
        lines = source.splitlines()
        source = "\n".join([*lines[:where[0]], *([text] if text else []), *lines[where[1]:]]) + "\n"
        find(source, name, path)            # it is still Python
    return source


def without_bodies(source, numbers, path):
    """The source with `raise NotImplementedError("exercise 3")` for the bodies of {name: 3}."""
    return with_bodies(source, {
        name: " " * (find(source, name, path).col_offset + 4) + stub(number)
        for name, number in numbers.items()}, path)


def own_modules(folder):
    """The modules in a folder and in packages, two deep; without what runs and editors leave."""
    found = [*folder.glob("*.py"), *folder.glob("*/*.py"), *folder.glob("*/*/*.py")]
    return sorted(path for path in found if path.is_file() and not any(
        "." in part or part in ("runs", "models", "__MACOSX", "venv", "env")
        for part in path.relative_to(folder).parts[:-1]))


def unwritten(folder):
    """{exercise: what is not there yet} in a students' tree: functions whose body is the one that
    was handed out, or the folder of an experiment's plan.md."""
    found = {row["number"]: [f"{row['folder']}/plan.md"] for row in exercises(folder)
             if "folder" in row and not (folder / row["folder"] / "plan.md").is_file()}
    for path, numbers in by_file(exercises(folder)).items():
        with suppress(OSError):         # a file that is gone: the grader says so
            source = (folder / path).read_text("utf-8", "replace")
            for name, number in numbers.items():
                with suppress(BadInput):        # no Python, or renamed: that is work
                    if body_of(source, name, path).strip() == stub(number):
                        found.setdefault(number, []).append(name)
    return dict(sorted(found.items()))


def stub(number):
    return f'raise NotImplementedError("exercise {number}")'


# ----------------------------------------------------------------------------------- 2. the tree
def handed_out(only=(), root=ROOT):
    """{path: bytes} of a students' tree."""
    rows = chosen(only, root)
    paths = sorted({path.relative_to(root).as_posix() for pattern in TAKEN
                    for path in root.glob(pattern) if path.is_file()} - {*KEPT_BACK})
    files = {path: (root / path).read_bytes() for path in paths}
    for path, numbers in by_file(rows).items():
        if path not in files:
            raise BadInput(f"exercises.toml names {path}, which is not in the students' tree")
        files[path] = without_bodies(files[path].decode(), numbers, path).encode()
    count = sum(len(row["functions"]) for row in rows)
    files["PROJECT.md"] = (root / "README.md").read_bytes()
    files["README.md"] = README.format(functions=count).encode()
    files[MANIFEST] = json.dumps({path: digest(text) for path, text in files.items()},
                                 indent=0).encode()
    return files


def digest(data):
    return hashlib.sha256(data).hexdigest()


def work_in(folder, files):
    """The paths in `folder` that `files` would overwrite, and that hold something else than what
    was handed out."""
    manifest = folder / MANIFEST
    if folder.exists() and any(folder.iterdir()) and not manifest.exists():
        raise BadInput(f"{folder} was not made by `make student`: name another folder with --out")
    old = json.loads(manifest.read_text()) if manifest.exists() else {}
    return [path for path in sorted({*old, *files} - {MANIFEST}) if (folder / path).exists()
            and digest((folder / path).read_bytes()) not in
            (old.get(path), digest(files.get(path, b"")))]


def tracked(root):
    """The paths of the project's files, as git knows them: an instructor's folder has marks in it,
    too. Raises BadInput without git."""
    try:
        names = subprocess.run(["git", "ls-files", "-z"], cwd=root, text=True, check=True,
                               capture_output=True).stdout.split("\0")[:-1]
    except (OSError, subprocess.CalledProcessError) as error:
        raise BadInput(f"git must tell which files are the project's: {error}") from None
    if "loss.py" not in names:
        raise BadInput(f"git must tell which files are the project's: {root} is no clone")
    return names


def write(folder, only=(), force=False, root=ROOT):
    """Write a students' tree; files that were not handed out (runs/, .venv) are left as they are.
    Raises BadInput where a file that was handed out holds work."""
    files = handed_out(only, root)
    if (work := work_in(folder, files)) and not force:
        more = f" and {len(work) - 1} more" if work[1:] else ""
        raise BadInput(f"{folder} holds work, {work[0]}{more}: `python -m course.student --force` "
                       "overwrites it, --out FOLDER takes another place")
    old = json.loads((folder / MANIFEST).read_text()) if (folder / MANIFEST).exists() else {}
    for path in set(old) - set(files):
        (folder / path).unlink(missing_ok=True)
    try:
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
            if (root / path).exists():      # make compares times: an old .venv stays good
                shutil.copystat(root / path, folder / path)
    except OSError:
        for path in () if old else files:   # a full disk: half a tree would block the next one
            (folder / path).unlink(missing_ok=True)
        raise
    return files


def restore(folder, only=(), root=ROOT):
    """Put the real bodies back into a students' tree."""
    for path, numbers in by_file(chosen(only, root)).items():
        real, target = (root / path).read_text(), folder / path
        target.write_text(with_bodies(
            target.read_text(), {name: body_of(real, name, path) for name in numbers}, path))


def main(argv=None):
    p = argparse.ArgumentParser(prog="student.py", description=__doc__.split("\n")[0])
    p.add_argument("--out", type=Path, default=ROOT / "student", help="the folder (student)")
    p.add_argument("--only", type=int, nargs="+", default=[], metavar="N", help="these exercises")
    p.add_argument("--force", action="store_true", help="overwrite what students have written")
    p.add_argument("--restore", action="store_true", help="put the real bodies back")
    args = p.parse_args(argv)
    try:
        if (ROOT / MANIFEST).exists():
            raise BadInput("this is a students' tree: it does not have the answers")
        if args.restore:
            restore(args.out, args.only)
            print(f"{args.out}: the real bodies are back")
        else:
            files = write(args.out, args.only, args.force)
            print(f"{args.out}: {len(files)} files; next: its README.md")
    except (BadInput, OSError) as error:
        print(f"student.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
