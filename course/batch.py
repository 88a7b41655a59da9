"""batch.py: what is handed in, packed (`make submit`) and graded by the hundred (`make grade-all`).

    python -m course.batch --pack submission.zip                # in a student's tree
    python -m course.batch handed_in --out graded --seed 2027   # an instructor's: a folder of
                                                                # archives (zip, tar) or trees
    python -m course.batch --autograder autograder.zip          # an instructor's: for Gradescope

Of --out: table.csv, a row for each; bets.csv, exercise 10's table of the class; and in feedback/
for each NAME.txt, the table that a student may read, and NAME.json in Gradescope's form of
results.json. Each file that is not hidden is a row: what cannot be opened is one with its reason,
and has feedback, too. Each is graded by a process of its own (grade.py, forked from a lane that has
imported the libraries), with the same seed. --plans: a folder of archives of the same names, handed
in before the runs of exercises 8 and 11, whose plans must be the same.
"""
import argparse
import csv
import errno
import json
import os
import queue
import re
import select
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path

from course.forms import gradescope
from course.student import (MANIFEST, ROOT, BadInput, by_file, chosen, digest, exercises,
                            handed_out, own_modules, tracked, unwritten)

MOST_FILES, MOST_BYTES = 20_000, 1 << 30        # of an archive, unpacked
ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")    # in any case
NAME = 60                       # characters of a file of feedback
LIMIT_S = 4 * 3600              # of a tree: more than the limits of all its exercises together
RUN = ("config.toml", "versions.json", "metrics.jsonl", "evals.jsonl", "source/**/*.py")


# ----------------------------------------------------------------------------- 1. a student's side
def pack(tree, target):
    """Write what is graded to an archive -> the paths in it. Raises BadInput."""
    if not (tree / MANIFEST).exists():
        raise BadInput(f"{tree} is no students' tree: there is nothing to hand in")
    old = json.loads((tree / MANIFEST).read_text())
    paths = {tree / MANIFEST, *(tree / path for path in by_file(exercises(tree)))}
    paths |= {path for path in own_modules(tree)
              if old.get(path.relative_to(tree).as_posix()) != digest(path.read_bytes())}
    for pattern in ("experiment/*", "ablation/*", "models/toy*/*",
                    *(f"runs/*-seed*/{name}" for name in RUN)):
        paths |= {*tree.glob(pattern)}
    names = sorted(path.relative_to(tree).as_posix() for path in paths if path.is_file())
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for name in names:
            archive.write(tree / name, name)
    return names


# ------------------------------------------------------------------------ 2. an instructor's side
def unpacked(path, place):
    """The students' tree in an archive, or in a folder. Raises BadInput."""
    if path.is_dir():
        place = path
    else:
        try:
            with open_archive(path) as archive:
                members = (archive.infolist() if hasattr(archive, "infolist")
                           else archive.getmembers())
                size = sum(getattr(each, "file_size", getattr(each, "size", 0))
                           for each in members)
                if len(members) > MOST_FILES or size > MOST_BYTES:
                    raise BadInput("too large to be unpacked")
                # Both refuse or mend what would lie outside; zipfile makes no links.
                archive.extractall(place, **({} if hasattr(archive, "infolist")
                                             else dict(filter="data")))
        except Exception as error:      # of a damaged one zlib, lzma, struct ... say what they like
            said = (str(error).splitlines() or [type(error).__name__])[0]
            raise BadInput(f"cannot be opened: {said}") from None
    found = [place / top / MANIFEST for top in (".", "*", "*/*")]
    found = [each for pattern in found
             for each in place.glob(pattern.relative_to(place).as_posix())]
    if not found:
        raise BadInput(f"holds no students' tree: {MANIFEST} is missing")
    return found[0].parents[1]


def open_archive(path):
    if not path.is_file() or not path.name.lower().endswith(ENDINGS):
        raise BadInput(f"it is none of {', '.join(ENDINGS)}")
    return zipfile.ZipFile(path) if path.suffix.lower() == ".zip" else tarfile.open(path)


class Lane:
    """A process that grades one tree at a time (grade.py's `serve`)."""
    process = None

    def grade(self, argv, place):
        """(exit code, stdout, stderr) of grade.py with these words. Raises BadInput."""
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [sys.executable, "-B", "-m", "course.grade", "--serve"], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, cwd=ROOT, env=os.environ | dict(OMP_NUM_THREADS="1"))
        asked = dict(argv=argv, stdout=f"{place}/stdout", stderr=f"{place}/stderr")
        try:
            self.process.stdin.write(json.dumps(asked).encode() + b"\n")
            self.process.stdin.flush()
            ready, *_ = select.select([self.process.stdout], [], [], LIMIT_S)
            code = int(self.process.stdout.readline() or 1) if ready else None
        except OSError:
            code = 1
        if code is None:
            self.end()
            raise BadInput(f"took more than {LIMIT_S} s")
        said = [Path(asked[name]).read_text(errors="replace") if Path(asked[name]).exists() else ""
                for name in ("stdout", "stderr")]
        return code, *said

    def end(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close(), self.process.stdout.close()
        self.process = None


def grade_one(path, out, seed, lanes, plans=None, only=()):
    """One row of the table, of these exercises or of all. Raises BadInput where nothing can be
    graded at all."""
    # A name in another encoding than this machine's: its bytes are written as \\xfc.
    name = os.fsencode(path.name).decode(errors="backslashreplace")
    row = dict(name=name, points="", note="")
    with tempfile.TemporaryDirectory(prefix="handed-in-") as place:
        report = Path(place) / "report.json"
        try:
            tree = unpacked(path, Path(place) / "tree")
            more = ["--plans", plans_of(plans / path.name, Path(place))] if plans else []
            more += ["--only", *only] if only else []
            lane = lanes.get()
            try:
                code, text, why = lane.grade([str(tree), "--json", str(report), "--seed",
                                              str(seed), *map(str, more)], place)
            finally:
                lanes.put(lane)
        except (BadInput, OSError) as error:
            if getattr(error, "errno", None) == errno.ENOSPC:       # as for all that follow
                raise BadInput(f"no space left in {tempfile.gettempdir()}: name a folder with "
                               "room in TMPDIR") from None
            row["note"] = f"not graded: {error}".replace(f"{place}/", "")
        else:
            if code == 3:
                raise BadInput(why.strip())
            if code:
                said = (why.strip().splitlines() or ["?"])[-1]
                row["note"] = f"not graded: {said}".replace(f"{place}/", "")
            else:
                told = json.loads(report.read_text())
                row |= dict({"points": told["points"], "cpu s": told["cpu_s"]},
                            **{f"exercise {each['number']}": each["points"]
                               for each in told["exercises"]})
                row["bets"] = next((note for each in told["exercises"] for note in each["notes"]
                                    if note.startswith("forecasts: ")), "")
    if row["note"]:
        form = not_graded(row["note"])
        text = form["output"] + "\n"
    else:
        form = gradescope(told)
    for ending, words in (("txt", text), ("json", json.dumps(form, indent=1))):
        (out / "feedback" / f"{short(name)}.{ending}").write_text(words)
    return row


def short(name):
    """The name of its feedback. A file's name has 255 bytes at most; two names may begin alike."""
    return name if len(name) <= NAME else f"{name[:NAME]}-{digest(name.encode())[:8]}"


def not_graded(why):
    """Gradescope's results.json of what cannot be graded."""
    return dict(score=0, output=f"{why}; `make submit` makes an archive that can be graded",
                tests=[])


def for_gradescope(submission, results):
    """Grade what Gradescope has unpacked -> exit code. Raises SandboxError."""
    from course.grade import grade, table       # not for `make submit`, which has no packages
    try:
        told = grade(unpacked(submission, None), int.from_bytes(os.urandom(3), "big"))
        print(*table(told), sep="\n")
        form = gradescope(told)
    except BadInput as error:
        form = not_graded(f"not graded: what was handed in {error}")
    results.write_text(json.dumps(form, indent=1) + "\n")
    return 0


def plans_of(path, place):
    """A folder with the plans in an archive that was handed in before the runs; a plan that is not
    in it, or an archive that is not there, is a plan that was not handed in."""
    (place / "plans").mkdir()
    try:
        tree = unpacked(path, place / "early")
    except BadInput:
        return place / "plans"
    for row in exercises():
        if "folder" in row and (plan := tree / row["folder"] / "plan.md").is_file():
            (place / "plans" / row["folder"]).mkdir()
            (place / "plans" / row["folder"] / "plan.md").write_bytes(plan.read_bytes())
    return place / "plans"


def table_of_bets(rows):
    """Lines of bets.csv: everyone's error in exercise 10, and those that it is held against."""
    found = {}
    for row in rows:
        if told := re.search(r"mean absolute error (\S+); (.*)", row.pop("bets", "")):
            found |= {row["name"]: told[1]} | {
                name: error for name, error in re.findall(r"([a-z. ]+?) (\d\.\d+)", told[2])}
    return sorted(({"name": name.strip(), "error": error} for name, error in found.items()),
                  key=lambda line: float(line["error"]))


def grade_all(folder, out, seed, lanes, plans=None, only=()):
    """The rows of the table, by name. It is written as it grows, in the order in which trees are
    done: one that hangs hides no other. Raises BadInput."""
    paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    if not paths:
        raise BadInput(f"{folder} is empty: it should hold archives ({', '.join(ENDINGS)}) or "
                       "trees")
    chosen(only)                            # or they are refused, before a tree is unpacked
    (out / "feedback").mkdir(parents=True, exist_ok=True)
    columns = ["name", "points", *(f"exercise {row['number']}" for row in exercises()), "cpu s",
               "note"]

    def begun(file):
        """A writer of the table, with its header."""
        writer = csv.DictWriter(file, columns, restval="", extrasaction="ignore")
        writer.writeheader()
        return writer
    rows, all_lanes, free = [], [Lane() for _ in range(lanes)], queue.SimpleQueue()
    for lane in all_lanes:
        free.put(lane)
    with open(out / "table.csv", "w", newline="") as file, ThreadPoolExecutor(lanes) as pool, \
            ExitStack() as last:
        for lane in all_lanes:
            last.callback(lane.end)
        from tqdm import tqdm           # `make submit` has no packages
        writer = begun(file)
        place = {pool.submit(grade_one, path, out, seed, free, plans, only): i
                 for i, path in enumerate(paths)}
        try:
            for graded in tqdm(as_completed(place), total=len(paths), unit="tree"):
                row = graded.result()
                writer.writerow(row)
                file.flush()
                rows.append((place[graded], row))
                tqdm.write(f"{row['points']!s:>5}  {row['name']}  {row['note']}")
        except BaseException:           # a full disk, no sandbox: no other tree is begun
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        rows = [row for _, row in sorted(rows, key=lambda pair: pair[0])]
    aside = out / "table.csv.tmp"           # a full disk leaves the table as it grew
    with open(aside, "w", newline="") as file:
        begun(file).writerows(rows)
    aside.replace(out / "table.csv")
    with open(out / "bets.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["name", "error"])
        writer.writeheader()
        writer.writerows(table_of_bets(rows))
    return rows


def write_autograder(target):
    """Gradescope's autograder.zip: this project, and its two scripts at the top. -> paths in it"""
    given = handed_out()                # their digests tell what is work
    left_out = ("tests/", "bench/", "docs/", "results/", "configs/cluster/", "study/")
    names = {name: name for name in tracked(ROOT)
             if name in given or not name.startswith(left_out)}
    names |= {name: name for name in ("README.md", "results/study/evals.csv")}
    names |= {name: f"course/autograder/{name}" for name in ("setup.sh", "run_autograder")}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for name, path in names.items():
            archive.write(ROOT / path, name)        # with its mode: both scripts can be executed
    return [*names]


def main(argv=None):
    p = argparse.ArgumentParser(prog="batch.py", description=__doc__.split("\n")[0])
    p.add_argument("folder", type=Path, nargs="?", help="of archives or trees")
    p.add_argument("--out", type=Path, default=Path("graded"), help="the folder of results")
    p.add_argument("--pack", type=Path, metavar="FILE", help="hand in the tree in this folder")
    p.add_argument("--autograder", type=Path, metavar="FILE", help="write Gradescope's archive")
    p.add_argument("--gradescope", type=Path, nargs=2, metavar=("FOLDER", "FILE"),
                   help="grade the submission in FOLDER, write its results.json")
    p.add_argument("--plans", type=Path, metavar="FOLDER", help="archives from before the runs")
    p.add_argument("--seed", type=int, help="of all inputs (default: a fresh one)")
    p.add_argument("--only", type=int, nargs="+", default=[], metavar="N", help="these exercises")
    p.add_argument("--lanes", type=int, default=os.cpu_count(), help="trees at a time")
    args = p.parse_args(argv)
    try:
        if args.pack:
            names = pack(ROOT, args.pack)
            print(f"{args.pack}: {len(names)} files")
            for number, parts in unwritten(ROOT).items():
                print(f"  exercise {number}: not written: {', '.join(parts)}")
            return 0
        if args.gradescope:
            return for_gradescope(*args.gradescope)
        if args.autograder:
            print(f"{args.autograder}: {len(write_autograder(args.autograder))} files")
            return 0
        if args.plans and not args.plans.is_dir():
            raise BadInput(f"{args.plans} is no folder of archives")
        if not args.folder or not args.folder.is_dir():
            raise BadInput("name the folder of what was handed in: make grade-all DIR=FOLDER")
        seed = int.from_bytes(os.urandom(3), "big") if args.seed is None else args.seed
        rows = grade_all(args.folder, args.out, seed, args.lanes, args.plans, args.only)
        print(f"{args.out}/table.csv: {len(rows)} rows, seed {seed}")
    except (BadInput, OSError, RuntimeError) as error:          # SandboxError is one
        print(f"batch.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
