"""replay.py: the points of exercises 8 and 11.

Logs can be made up. So the first steps of one of the runs, drawn by chance, are made again: in
the sandbox, from the settings, the code and the model that are handed in. Its log must tell the
same; without that no part of the exercise counts. (Two machines round differently: counts must be
equal, other numbers nearly. Who makes the first steps of all runs and invents the rest, or
whose own code writes an invented log, is not found by this.)
"""
import os
import random
import stat
import tempfile
from pathlib import Path

from course import experiment
from course.hidden.values import Failed, Wrong, clean, close
from course.student import BadInput

STEPS = 4
EQUAL = ("pass_rate", "reward/mean", "completions/mean_length", "tokens/trained")
NEAR = ("entropy", "grad_norm")
MOST_FILE, MOST = 32 << 20, 512 << 20           # bytes of a file, and of all
LIMIT_S = 300


def copied(folder, place, names):
    """Copy these subfolders: ordinary files, no links and no pipes."""
    left = MOST
    for name in names:
        for top, folders, files in os.walk(folder / name):
            folders[:] = [f for f in folders if not os.path.islink(os.path.join(top, f))
                          and f != "checkpoints"]
            for file in files:
                path = Path(top, file)
                what = os.lstat(path)
                if not stat.S_ISREG(what.st_mode) or what.st_size > min(MOST_FILE, left):
                    continue
                left -= what.st_size
                target = place / path.relative_to(folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())


def points(folder, name, of, seed, service, plan=None):
    """(points, notes). name: of the folder of the plan; plan: what was handed in before the runs,
    if plans were collected. `service(sources, folders)` makes the sandbox of a run's own code.
    Raises SandboxError."""
    with tempfile.TemporaryDirectory(prefix="experiment-") as place:
        place = Path(place)
        copied(folder, place, [each for each in (name, "runs", "models")
                               if (folder / each).is_dir() and not (folder / each).is_symlink()])
        try:
            done, why = experiment.grade(place / name)
            if done and plan is not None and plan != (place / name / "plan.md").read_bytes():
                done, why = [], "the plan is not the one that was handed in before the runs"
        except (ArithmeticError, AttributeError, LookupError, TypeError, RecursionError) as error:
            done, why = [], f"the runs cannot be read: {error!r}"
        if not done:
            return 0.0, [why]
        try:
            told = same_again(place / name, seed, service)
        except (BadInput, Failed, Wrong, OSError, LookupError, TypeError, ValueError) as error:
            said = f"{type(error).__name__}: {error}" if isinstance(error, LookupError) else error
            return 0.0, [*done, *[why] * bool(why),
                         f"no points: a run could not be made again: {clean(said)}"]
        rest = [why] if why else experiment.RUBRIC
        return round(of * len(done) / experiment.PARTS, 1), [told, *done, *rest]


def same_again(folder, seed, service):
    """A sentence about the run that was made again. Raises Wrong, Failed, BadInput."""
    plan, tree = experiment.read_plan(folder), folder.parent
    name = random.Random(f"replay/{seed}").choice(
        [name for pair in experiment.run_names(plan) for name in pair])
    run = tree / "runs" / name
    config = experiment.settings(run)
    wanted = str(config.get("model", "models/toy"))
    model = tree / wanted
    if model.resolve() != tree.resolve() / wanted or not (model / "config.json").exists():
        raise BadInput(f"{wanted}, the model of {name}, was not handed in")
    log = experiment.log(run, "metrics.jsonl")
    sources = {path.relative_to(run / "source").as_posix(): path.read_text()
               for path in (run / "source").glob("**/*.py")}
    with service(sources, {"/model": model, "/proc/meminfo": "/proc/meminfo"}) as process:
        lines = process.ask("replay", config=(run / "config.toml").read_text(), steps=STEPS)
    again = {line["step"]: line for line in lines}
    for step in range(1, STEPS + 1):
        for names, tolerance in ((EQUAL, 1e-6), (NEAR, 0.02)):
            close(f"{name}, step {step}: {', '.join(names)}", [log[step][key] for key in names],
                  [float(again[step][key]) for key in names], tolerance)
    return f"{name}: {STEPS} steps were made again, and are those of its log"
