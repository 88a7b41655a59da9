"""make_class.py: a class of a hundred, to try `make grade-all` and to time it.

    python tests/course/make_class.py handed_in [--experiment TREE]

60 have right solutions, in the styles of solutions/ and the project's own, whole or with exercises
left out; 28 cheat in one exercise and have the project's bodies in all others; 2 hang; 10 archives
are broken. Names have spaces and umlauts; a few are tar archives or plain folders. --experiment: a
tree whose experiment/, runs/ and models/ go into every second right one.
"""
import argparse
import io
import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (0, 1, 2)]

from grading import ROWS, SOLUTIONS, solution, tree      # noqa: E402
from test_cheats import CHEATS, cheating                 # noqa: E402
from test_more_cheats import CHEATS as MORE              # noqa: E402

from course import batch, student                        # noqa: E402

NUMBERS = [number for number, row in ROWS.items() if row["functions"]]
NAMES = ["Anna Groß", "Jörg Müller", "Łukasz Żak", "Renée d'Été", "O'Neil, Pat", "李 雷", "Ana-María",
         "Øystein Ås", "Zoë (2)", "X Æ 12"]
LEFT_OUT = [(), (), (7,), (5, 6), (9, 10, 12)]


def submissions():
    """(name, {path: text}, {path: text} of new modules)"""
    styles = [path for path in SOLUTIONS if path.stem != "habits"]
    for i in range(60):
        missing = LEFT_OUT[i % len(LEFT_OUT)]
        where = i % (len(styles) + 1)
        if where < len(styles) and not missing:
            yield f"{styles[where].stem}", *solution(styles[where])
        elif where < len(styles):
            mine = tree(real=[n for n in NUMBERS if n not in missing])
            yield f"{styles[where].stem}", mine, {}
        else:
            yield "own", tree(real=[n for n in NUMBERS if n not in missing]), {}
    for name in [*CHEATS][:6]:
        yield "cheat 2 " + name, real_beside(cheating(*CHEATS[name]), [2]), {}
    for name in [*MORE][:22]:
        number, bodies, top, extra = MORE[name]
        where = next(iter(bodies)).split("::")[0]
        yield (f"cheat {number} {name}", tree(bodies, top, where=where, real=[
            n for n in NUMBERS if n != number]), extra)
    for function in ("loss.py::zero_variance", "loss.py::token_weights"):
        yield "hangs", tree({function: "while True: pass"}, real=NUMBERS), {}


def real_beside(sources, numbers):
    """The project's bodies of all exercises that another file holds."""
    ours = tree(real=[n for n in NUMBERS if n not in numbers])
    return ours | {"loss.py": sources["loss.py"]}


def broken(folder, whole):
    """Ten archives of kinds that one gets."""
    data = whole.read_bytes()
    (folder / "11 leer.zip").write_bytes(b"")
    (folder / "12 half of it.zip").write_bytes(data[: len(data) // 2])
    (folder / "13 kein Archiv.zip").write_bytes(b"PK nothing")
    flipped = bytearray(data)
    flipped[2000:3000] = bytes(1000)
    (folder / "14 ein Bit – gekippt.zip").write_bytes(flipped)
    with zipfile.ZipFile(folder / "15 other things.zip", "w") as archive:
        archive.writestr("homework.docx", "x")
    with tarfile.open(folder / "16 outside.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("../../outside")
        info.size = 1
        archive.addfile(info, io.BytesIO(b"x"))
    (folder / "17 wrong name.tar").write_bytes(data)
    with zipfile.ZipFile(folder / "18 too large.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for i in range(batch.MOST_FILES + 1):
            archive.writestr(f"{i}", "")
    (folder / "19 Ordner").mkdir()
    (folder / "20 cut.tar.gz").write_bytes(b"\x1f\x8b\x08" + bytes(100))


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("folder", type=Path)
    p.add_argument("--experiment", type=Path)
    args = p.parse_args(argv)
    args.folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as place:
        places = [Path(place, kind) for kind in ("without", "with")]
        for each in places:
            student.write(each)
        if args.experiment:
            for part in ("experiment", "runs", "models"):
                shutil.copytree(args.experiment / part, places[1] / part)
        for i, (style, sources, extra) in enumerate(submissions()):
            name = f"{i:02d} {NAMES[i % len(NAMES)]} {style}"
            place = places[i < 60 and i % 2 == 0]
            for path, text in {**sources, **extra}.items():
                (place / path).parent.mkdir(parents=True, exist_ok=True)
                (place / path).write_text(text)
            target = args.folder / f"{name}.zip"
            batch.pack(place, target)
            for path in extra:
                (place / path).unlink()
            if i % 10 == 7:                     # unpacked; in a folder of its own, as many zip it
                with zipfile.ZipFile(target) as archive:
                    archive.extractall(args.folder / name / "submission")
                target.unlink()
            if i % 10 == 3:
                with tarfile.open(args.folder / f"{name}.tar.gz", "w:gz") as archive, \
                        zipfile.ZipFile(target) as old:
                    for member in old.namelist():
                        info = tarfile.TarInfo(member)
                        info.size = old.getinfo(member).file_size
                        archive.addfile(info, old.open(member))
                target.unlink()
    broken(args.folder, next(args.folder.glob("00*.zip")))
    print(f"{args.folder}: {len([*args.folder.iterdir()])} submissions")


if __name__ == "__main__":
    main()
