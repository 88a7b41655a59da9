"""grade.py: the points of a students' tree (`make grade`).

    python -m course.grade student --json grade.json   # an instructor's: points
    python -m course.grade .                           # in a students' tree: the public checks
    python -m course.grade student --only 3 --seed 7   # one exercise, with inputs seen before

Points are given for values (hidden/values.py): the submission runs in a sandbox and answers, this
process asks and compares, and never imports it. Of the students' files those of the exercises
count, and modules that are new; each exercise runs by itself, beside our bodies of all others.
Where no sandbox can be made nothing is graded. Exercises 8 and 11 are graded from their runs, one
of which is made again in part (hidden/replay.py).

In a students' tree there are no hidden values and no points: the public checks run, as in `make
check`, and say what is wrong.
"""
import argparse
import codecs
import functools
import importlib
import io
import json
import os
import stat
import subprocess
import sys
import textwrap
import time
import tokenize
from contextlib import nullcontext
from pathlib import Path

from course.forms import FORMS
from course.student import (MANIFEST, ROOT, BadInput, body_of, by_file, chosen, exercises,
                            handed_out, own_modules, unwritten, without_bodies)
from tasks.sandbox import SandboxError, failure

LIMIT_S = 240           # of one exercise; the project's own bodies need 30 s
MOST = 1 << 20          # bytes of one file that is handed in
NEW = 200               # modules of their own
MOST_NEW = 4 << 20      # bytes of all of them together


# ---------------------------------------------------------------------- 1. what a student wrote
def handed_in(folder, name):
    """The text of a file of theirs: a regular one that lies in their folder itself (a link may lead
    to the answers), of sensible size. Raises BadInput."""
    try:
        path = folder / name
        what = os.lstat(path)
        if not stat.S_ISREG(what.st_mode) or what.st_size > MOST or (
                path.resolve() != folder.resolve() / name):
            raise BadInput(f"{name} is no ordinary file of at most {MOST:,} bytes")
        # As Python reads it: a line "coding: latin-1" counts, a mark of the byte order does not.
        data = path.read_bytes()
        coding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        if codecs.lookup(coding).name in ("punycode", "idna"):      # of domains: quadratic
            raise BadInput(f"{name} is in {coding}, no coding of programs")
        return data.decode(coding).replace("\r\n", "\n").replace("\r", "\n")
    except (OSError, ValueError, LookupError, SyntaxError) as error:
        if isinstance(error, BadInput):
            raise
        said = str(error).replace(f"{folder}/", "")
        raise BadInput(f"{name} cannot be read: {said}") from None


def new_modules(folder, files):
    """({path: text} of the modules in a students' folder that we did not hand out, notes)."""
    found, notes, left = {}, [], MOST_NEW
    mine = [path for path in own_modules(folder)
            if path.relative_to(folder).as_posix() not in files]
    for path in sorted(mine, key=lambda path: path.lstat().st_size):    # small ones are helpers
        name = path.relative_to(folder).as_posix()
        left -= path.lstat().st_size
        if len(found) == NEW or left < 0:
            notes.append(f"of new modules {NEW} are used, and {MOST_NEW:,} bytes of all together: "
                         f"not {name}, and no larger one")
            break
        try:
            found[name] = handed_in(folder, name)
        except BadInput as error:
            notes.append(f"{error}: it is not used")
    return found, notes


@functools.lru_cache(64)            # the same file is asked for in each exercise
def without_work(source, path):
    """A student's file without the bodies of all exercises; "" where they cannot be found."""
    try:
        return without_bodies(source, by_file(exercises())[path], path)
    except (ValueError, LookupError, RecursionError, MemoryError):      # no Python, or twice
        return ""


def stubs(row, sources):
    """The functions of an exercise whose bodies are those that were handed out."""
    found = []
    for path, name in (each.split("::") for each in row["functions"]):
        given = ours()[path].decode()
        try:
            if body_of(sources.get(path, given), name, path) == body_of(given, name, path):
                found.append(name)
        except (ValueError, LookupError, RecursionError, MemoryError):
            continue
    return found


def untouched(row, sources, extra):
    """Would the sandbox meet, in this exercise, nothing but what was handed out? The bodies of
    other exercises are ours there. A new module may do anything: it need not be imported here."""
    return (not extra and len(stubs(row, sources)) == len(row["functions"])
            and all(without_work(text, path) == ours()[path].decode()
                    for path, text in sources.items()))


# ------------------------------------------------------------------------------- 2. the points
def grade(folder, seed, only=(), limit_s=LIMIT_S, plans=None, replay=None, box=None):
    """A students' folder -> {"exercises": [...], "points", "of", "seed", "notes"}. Electives add to
    the points and not to what they are of. plans: {"experiment": bytes of plan.md, ...}, if plans
    were collected before the runs; one that was not handed in then is b"". replay: so many steps of
    a run of exercises 8 and 11 are made again. box: a sandbox that waits already.
    Raises BadInput, and SandboxError where nothing can be graded."""
    if not (folder / MANIFEST).exists():
        raise BadInput(f"{folder} is no students' tree: {folder / MANIFEST} is missing")
    if cause := failure("bubblewrap"):
        raise SandboxError(f"nothing can be graded without bubblewrap: {cause}")
    rows, asked, files = exercises(), chosen(only), ours()
    sources, notes = {}, []
    for path in by_file(rows):
        try:
            sources[path] = handed_in(folder, path)
        except BadInput as error:
            notes.append(f"{error}: ours is used, without its bodies")
    for path in sorted({*files} - {*by_file(rows)}):
        if path.endswith((".py", ".toml")) and (folder / path).exists():
            try:
                edited = handed_in(folder, path) != files[path].decode()
            except BadInput:
                edited = True
            notes += [f"{path} was edited: ours is used"] * edited
    extra, said = new_modules(folder, files)
    notes += said
    from course.hidden import values
    notes += [f"{path} has the name of a library: it is not used" for path in extra
              if values.hides_a_library(path)]
    with nullcontext(box) if box else values.Sandbox(limit_s) as box:
        before = box.spent_s() + values.Sandbox.total_s
        graded = [grade_one(row, rows, folder, sources, extra, seed, limit_s, plans, replay, box)
                  for row in asked]
        spent = time.process_time() + box.spent_s() + values.Sandbox.total_s - before
    return dict(folder=str(folder), seed=seed, exercises=graded, notes=notes,
                cpu_s=round(spent, 1),
                points=round(sum(row["points"] for row in graded), 1),
                of=sum(row["of"] for row in graded if not row["elective"]))


def grade_one(row, rows, folder, sources, extra, seed, limit_s, plans=None, steps=None, box=None):
    """One exercise -> its row of the table."""
    number = row["number"]
    result = dict(number=number, title=row["title"], points=0.0, of=row["points"], notes=[],
                  parts=[], elective=row.get("elective", False))
    if not row["functions"]:
        from course.hidden import replay
        points, notes = replay.points(
            folder, row["folder"], row["points"], seed, functools.partial(of_a_run, rows, box),
            (plans or {}).get(row["folder"]), steps or replay.STEPS)
        return result | dict(points=points, notes=notes)
    if untouched(row, sources, extra):
        return result | dict(notes=[f"not written: {', '.join(stubs(row, sources))}"])
    from course.hidden import values
    asked = importlib.import_module(f"course.hidden.values_{number}")
    with service(box, row, rows, sources, extra, limit_s,
                 getattr(asked, "MEMORY", None)) as process:
        found = values.earned(asked.PARTS, process, seed, result["notes"])
    weights = sum(part.weight for part in asked.PARTS)
    for part, why in found:
        of = row["points"] * part.weight / weights
        result["parts"].append(dict(part=part.name, of=round(of, 2), why=why,
                                    points=round(of, 2) if not why else 0.0))
    lost = [why for _, why in found if why]
    earned = sum(part.weight for part, why in found if not why)
    result["points"] = round(row["points"] * earned / weights, 1)
    # A stub may stand above the function that takes its place. What the sandbox says decides.
    if any(f"NotImplementedError: exercise {number}" in why for why in lost) and (
            left := stubs(row, sources)):
        result["notes"].append(f"not written: {', '.join(left)}")
        if len(left) == len(row["functions"]) and not earned:
            result["parts"] = []                # each would say the same
    result["notes"] += [f"this line did not run: {said}" for said in process.problems if lost]
    return result


def service(box, row, rows, sources, extra, limit_s, memory=None):
    """A student's files in the sandbox, beside our bodies of all exercises but this one (and those
    that it is to do without)."""
    from course.hidden import values
    gone = [row["number"], *row.get("without", [])]
    names = {path: [name for name, other in functions.items() if other not in gone]
             for path, functions in by_file(rows).items()}
    tree = {path: text.decode() for path, text in ours(*gone).items() if path.endswith(".py")
            and (not path.startswith("course/") or path in names or path == "course/__init__.py")}
    return values.Service(box, tree, sources, names, extra, limit_s, memory or values.MEMORY)


@functools.cache
def ours(*gone):
    """handed_out(), for all trees that this process and its children grade."""
    return handed_out(gone)


def of_a_run(rows, box, sources):
    """The service of a run of exercise 8 or 11: the exercises' files as its source/ has them, and
    ours. Raises BadInput where it had other code besides."""
    from course.hidden import replay, values
    tree = {path: (ROOT / path).read_bytes().decode() for path in handed_out()
            if path.endswith(".py") and not path.startswith("course/")
            or path.startswith(("tasks/", "fitting/"))}             # with their tables
    own = {path: text for path, text in sources.items() if path in by_file(rows)}
    for path in sorted({*sources} & {*tree} - {*own}):
        if sources[path] != tree[path]:
            raise BadInput(f"its source/{path} is not the one that was handed out")
    extra = {path: text for path, text in sources.items()
             if path not in tree and path not in own and not path.startswith("course/")}
    own = {path: text for path, text in own.items() if path in tree}
    return values.Service(box, tree, own, {}, extra, replay.LIMIT_S)


# ------------------------------------------------------------- 3. in a student's own tree
def public(folder, only, seed):
    """Runs the public checks -> lines to read."""
    env = os.environ | ({} if seed is None else {"COURSE_SEED": str(seed)})
    left = unwritten(folder)
    for row in chosen(only, folder):
        path = folder / "course" / "checks" / f"test_{row['number']}.py"
        title = f"{row['number']} {textwrap.shorten(row['title'], 50, placeholder=' ...'):<52}"
        if not path.exists():
            yield f"{title}from its runs: make check EX={row['number']}"
            continue
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:xdist",
                               str(path)], cwd=folder, env=env, text=True, capture_output=True)
        last = (done.stdout.strip().splitlines() or ["no output"])[-1].strip("= ")
        yield title + last
        if row["number"] in left:
            yield f"  not written: {', '.join(left[row['number']])}"
    yield "what a check has to say: make check EX=N; the points are your instructor's to give"


# ------------------------------------------------------------------------------- 4. the table
def table(told):
    """Lines to read."""
    yield f"{'exercise':<62}{'points':>12}"
    for row in told["exercises"]:
        title = textwrap.shorten(row["title"], 59, placeholder=" ...")
        yield (f"{row['number']:>2} {title:<59}{row['points']:>6} / {row['of']:>3}"
               + "  (elective)" * row["elective"])
        for part in row["parts"]:
            if part["why"]:
                yield f"    -{part['of']:<5} {part['part']}: {part['why']}"
        for note in row["notes"]:
            yield f"    {note}"
    yield f"{'all':<62}{told['points']:>6} / {told['of']:>3}"
    yield from (f"note: {note}" for note in told["notes"])
    if any(part["why"] for row in told["exercises"] for part in row["parts"]):
        yield "in the student's tree `make check EX=N` may tell what the mistake is"
    yield f"seed {told['seed']}: `make grade SEED={told['seed']}` draws the same inputs"


def serve():
    """For batch.py: a lane that grades one tree after the other. It imports what all need, keeps a
    sandbox, and forks for each tree: a line {"argv": [...], "stdout": path, "stderr": path} in, the
    exit code out."""
    from course.hidden import values
    ours()
    for row in exercises():
        if row["functions"]:
            asked = importlib.import_module(f"course.hidden.values_{row['number']}")
            ours(row["number"], *row.get("without", []))
            getattr(asked, "others", ours)()            # exercise 10's, the same for all trees
    import transformers
    transformers.LlamaForCausalLM, transformers.DynamicCache        # loaded by their first use
    box = values.Sandbox(LIMIT_S)
    for line in sys.stdin:
        asked = json.loads(line)
        if box.process is None or box.process.poll() is not None:
            box.stop()
            try:
                box.start()
            except SandboxError:
                pass                        # grade() will say it
        child = os.fork()
        if not child:
            code = 1
            try:
                for stream, name in ((sys.stdout, "stdout"), (sys.stderr, "stderr")):
                    os.dup2(os.open(asked[name], os.O_WRONLY | os.O_CREAT), stream.fileno())
                code = main(asked["argv"], box) or 0
                sys.stdout.flush()
            except BaseException as error:
                print(f"grade.py: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            finally:
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def main(argv=None, box=None):
    p = argparse.ArgumentParser(prog="grade.py", description=__doc__.split("\n")[0])
    p.add_argument("folder", type=Path, help="a students' tree")
    p.add_argument("--json", type=Path, metavar="FILE", help="the table for programs")
    for form in FORMS:
        p.add_argument(f"--{form}", type=Path, metavar="FILE", help=f"and for {form}")
    p.add_argument("--seed", type=int, help="of the inputs (default: a fresh one)")
    p.add_argument("--only", type=int, nargs="+", default=[], metavar="N", help="these exercises")
    p.add_argument("--plans", type=Path, metavar="FOLDER", help="what this student handed in "
                   "before the runs: FOLDER/experiment/plan.md, FOLDER/ablation/plan.md")
    p.add_argument("--replay", type=int, metavar="STEPS", help="of exercises 8 and 11 so many "
                   "steps of a run are made again; 1000: all")
    p.add_argument("--limit", type=int, default=LIMIT_S, metavar="S", help="seconds an exercise")
    args = p.parse_args(argv)
    try:
        if (ROOT / MANIFEST).exists():
            print(*public(args.folder.resolve(), args.only, args.seed), sep="\n")
            return 0
        seed = int.from_bytes(os.urandom(3), "big") if args.seed is None else args.seed
        plans = {row["folder"]: plan.read_bytes() if plan.is_file() else b"" for row in exercises()
                 if "folder" in row and (plan := args.plans / row["folder"] / "plan.md")
                 } if args.plans else None
        told = grade(args.folder.resolve(), seed, args.only, args.limit, plans,
                     args.replay, box)
    except SandboxError as error:
        print(f"grade.py: nothing is graded: {error}", file=sys.stderr)
        return 3
    except (BadInput, OSError) as error:
        print(f"grade.py: {error}", file=sys.stderr)
        return 2
    print(*table(told), sep="\n")
    if args.json:
        args.json.write_text(json.dumps(told, indent=1) + "\n")
    for form, made in FORMS.items():
        if path := getattr(args, form):
            path.write_text(json.dumps(made(told), indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(serve() if sys.argv[1:] == ["--serve"] else main())
