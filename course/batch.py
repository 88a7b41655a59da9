"""batch.py: what is handed in, packed (`make submit`) and graded by the hundred (`make grade-all`).

    python -m course.batch --pack submission.zip                # in a student's tree
    python -m course.batch handed_in --out graded --seed 2027   # an instructor's: a folder of
                                                                # archives (zip, tar) or trees

Of --out: table.csv, a row for each; and in feedback/ for each NAME.txt, the table that a student
may read, and NAME.json in Gradescope's form of results.json. An archive that cannot be opened is a
row, too. Each is graded by a process of its own (grade.py), with the same seed.
"""
import argparse
import csv
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from course.student import MANIFEST, ROOT, BadInput, by_file, digest, exercises

MOST_FILES, MOST_BYTES = 20_000, 1 << 30        # of an archive, unpacked
ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz")
LIMIT_S = 1800                                  # of a tree
RUN = ("config.toml", "versions.json", "metrics.jsonl", "evals.jsonl", "source/**/*.py")


# ----------------------------------------------------------------------------- 1. a student's side
def pack(tree, target):
    """Write what is graded to an archive -> the paths in it. Raises BadInput."""
    if not (tree / MANIFEST).exists():
        raise BadInput(f"{tree} is no students' tree: there is nothing to hand in")
    old = json.loads((tree / MANIFEST).read_text())
    paths = {tree / MANIFEST, *(tree / path for path in by_file(exercises(tree)))}
    paths |= {path for pattern in ("*.py", "[a-z]*/*.py") for path in tree.glob(pattern)
              if old.get(path.relative_to(tree).as_posix()) != digest(path.read_bytes())}
    for pattern in ("experiment/*", "models/toy*/*", *(f"runs/*-seed*/{name}" for name in RUN)):
        paths |= {*tree.glob(pattern)}
    names = sorted(path.relative_to(tree).as_posix() for path in paths if path.is_file())
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
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
        except (OSError, EOFError, RuntimeError, ValueError, NotImplementedError,
                zipfile.BadZipFile, tarfile.TarError) as error:
            raise BadInput(f"cannot be opened: {error}") from None
    found = [place / top / MANIFEST for top in (".", "*", "*/*")]
    found = [each for pattern in found
             for each in place.glob(pattern.relative_to(place).as_posix())]
    if not found:
        raise BadInput(f"holds no students' tree: {MANIFEST} is missing")
    return found[0].parents[1]


def open_archive(path):
    return zipfile.ZipFile(path) if path.suffix == ".zip" else tarfile.open(path)


def grade_one(path, out, seed):
    """One row of the table. Raises BadInput where nothing can be graded at all."""
    name = path.name
    row = dict(name=name, points="", note="")
    with tempfile.TemporaryDirectory(prefix="handed-in-") as place:
        report = Path(place) / "report.json"
        try:
            tree = unpacked(path, Path(place) / "tree")
            done = subprocess.run(
                [sys.executable, "-B", "-m", "course.grade", str(tree), "--json", str(report),
                 "--seed", str(seed)], cwd=ROOT, text=True, capture_output=True, timeout=LIMIT_S)
        except (BadInput, subprocess.TimeoutExpired) as error:
            row["note"] = f"not graded: {error}"
        else:
            if done.returncode == 3:
                raise BadInput(done.stderr.strip())
            if done.returncode:
                row["note"] = f"not graded: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
            else:
                told = json.loads(report.read_text())
                row |= dict(points=told["points"],
                            **{f"exercise {each['number']}": each["points"]
                               for each in told["exercises"]})
                (out / "feedback" / f"{name}.txt").write_text(done.stdout)
                (out / "feedback" / f"{name}.json").write_text(
                    json.dumps(gradescope(told), indent=1))
    return row


def gradescope(told):
    """A table of grade.py as Gradescope's results.json."""
    return dict(score=told["points"], tests=[
        dict(number=str(row["number"]), name=row["title"], score=row["points"],
             max_score=row["of"], output="\n".join(
                 [f"{part['part']}: {part['why']}" for part in row["parts"] if part["why"]]
                 + row["notes"])) for row in told["exercises"]])


def grade_all(folder, out, seed, lanes):
    """The rows of the table, which is written as it grows. Raises BadInput."""
    paths = sorted(path for path in folder.iterdir() if not path.name.startswith(".")
                   and (path.is_dir() or path.name.endswith(ENDINGS)))
    if not paths:
        raise BadInput(f"{folder} holds no archive ({', '.join(ENDINGS)}) and no folder")
    (out / "feedback").mkdir(parents=True, exist_ok=True)
    columns = ["name", "points", *(f"exercise {row['number']}" for row in exercises()), "note"]
    rows = []
    with open(out / "table.csv", "w", newline="") as file, ThreadPoolExecutor(lanes) as pool:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        for number, row in enumerate(pool.map(lambda path: grade_one(path, out, seed), paths), 1):
            writer.writerow(row)
            file.flush()
            rows.append(row)
            print(f"{number}/{len(paths)}  {row['points']!s:>5}  {row['name']}  {row['note']}",
                  flush=True)
    return rows


def main(argv=None):
    p = argparse.ArgumentParser(prog="batch.py", description=__doc__.split("\n")[0])
    p.add_argument("folder", type=Path, nargs="?", help="of archives or trees")
    p.add_argument("--out", type=Path, default=Path("graded"), help="the folder of results")
    p.add_argument("--pack", type=Path, metavar="FILE", help="hand in the tree in this folder")
    p.add_argument("--seed", type=int, help="of all inputs (default: a fresh one)")
    p.add_argument("--lanes", type=int, default=os.cpu_count(), help="trees at a time")
    args = p.parse_args(argv)
    try:
        if args.pack:
            names = pack(ROOT, args.pack)
            print(f"{args.pack}: {len(names)} files")
            return 0
        if not args.folder or not args.folder.is_dir():
            raise BadInput("name the folder of what was handed in: make grade-all DIR=FOLDER")
        seed = int.from_bytes(os.urandom(3), "big") if args.seed is None else args.seed
        rows = grade_all(args.folder, args.out, seed, args.lanes)
        print(f"{args.out}/table.csv: {len(rows)} rows, seed {seed}")
    except (BadInput, OSError) as error:
        print(f"batch.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
