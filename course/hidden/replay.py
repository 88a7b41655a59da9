"""replay.py: the points of exercises 8 and 11.

Logs can be made up. So the first steps of one of the runs, drawn by chance, are made again: in the
sandbox, from the settings, the code and the model that are handed in. All numbers of both logs but
those that measure time must come out again, to the last bit, and of each evaluation every problem's
answers; without that no part of the exercise counts.

Another processor, or other threads, round otherwise. Then bits are not equal: with torch's kernels
without AVX in place of those with it, a run of configs/stress.toml had other digits from step 1 on,
by 3e-6 at most in 12 steps, and the same samples (2026-11-25, AMD EPYC). So where a bit differs,
the columns NUMBERS must agree within NEAR: in the first evaluation and the first step, before which
no update could have spread a difference, and in more than half of all that was made again, because
one sample that fell otherwise moves all that comes after it. Nobody invents such numbers.

Who makes the first steps of all runs and invents the rest, or whose own code writes an invented
log, is not found by this; `--replay 1000` makes a whole run again.
"""
import base64
import os
import random
import re
import stat
import tempfile
from pathlib import Path

from course import experiment
from course.experiment import NUMBERS
from course.hidden.values import Failed, Wrong, clean, close, holds
from course.student import BadInput

STEPS = 10                  # where the second evaluation of configs/stress.toml is
TIMED = re.compile("time/|throughput/|compute/.*hours|.*_s$|.*busy_share")      # columns
NEAR = 0.002                # on another processor: relative to the number, and of a pass rate
MOST_FILE, MOST = 32 << 20, 512 << 20           # bytes of a file, and of all
MOST_SOURCE, MOST_MODEL = 8 << 20, 32 << 20     # of a run's source/, of its model
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


def points(folder, name, of, seed, service, plan=None, steps=STEPS):
    """(points, notes). name: of the folder of the plan; plan: what was handed in before the runs,
    if plans were collected. `service(sources)` has a run's own code, in the sandbox.
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
        why = why.replace(f"{place}/", "")          # a student reads it, and has no such folder
        if not done:
            return 0.0, [why]
        try:
            told = same_again(place / name, seed, service, steps)
        except (BadInput, Failed, Wrong, OSError, LookupError, TypeError, ValueError) as error:
            said = f"{type(error).__name__}: {error}" if isinstance(error, LookupError) else error
            said = str(said).replace(f"{place}/", "")
            return 0.0, [*done, *[why] * bool(why),
                         f"no points: a run could not be made again: {clean(said)}"]
        rest = [why] if why else experiment.RUBRIC
        return round(of * len(done) / experiment.PARTS, 1), [told, *done, *rest]


def same_again(folder, seed, service, steps=STEPS):
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
    if config["steps"] < STEPS:
        raise BadInput(f"{name} has {config['steps']} steps: {STEPS} are made again")
    steps = min(steps, config["steps"])
    paths = [*(run / "source").glob("**/*.py")]
    if sum(path.stat().st_size for path in paths) > MOST_SOURCE:
        raise BadInput(f"the source/ of {name} has more than {MOST_SOURCE:,} bytes of programs")
    sources = {path.relative_to(run / "source").as_posix(): path.read_text() for path in paths}
    parts = [path for path in model.iterdir() if path.is_file()]
    if sum(path.stat().st_size for path in parts) > MOST_MODEL:
        raise BadInput(f"{wanted} has more than {MOST_MODEL:,} bytes")
    files = {path.name: base64.b64encode(path.read_bytes()).decode() for path in parts}
    with service(sources) as process:
        process.patience = process.limit_s
        again = process.ask("replay", config=(run / "config.toml").read_text(), model=files,
                            steps=steps)
    logs = {file: experiment.log(run, file).values() for file in ("evals.jsonl", "metrics.jsonl")}
    return compared(name, steps, pairs_of(logs, again, steps))


def pairs_of(logs, again, steps):
    """[(file, step, line of the log, line that was made again or {})] of the first steps."""
    made = {(file, line["step"]): line for file, lines in again.items() for line in lines}
    return [(file, line["step"], line, made.get((file, line["step"]), {}))
            for file, lines in logs.items() for line in lines if line["step"] <= steps
            if file == "evals.jsonl" or line["step"]]   # step 0 of metrics.jsonl: of the machine


def compared(name, steps, pairs):
    """pairs: [(file, step, line of the log, line that was made again)] -> a sentence; Wrong."""
    other = ""
    for file, step, line, one in pairs:
        holds(f"{file}, step {step} has other columns than a run with these settings",
              {*untimed(line)} == {*untimed(one)})
        unequal = [key for key, value in untimed(line).items() if one[key] != value]
        if unequal and not other:
            other = f"{file}, step {step}, {unequal[0]}"
    if not other:
        return f"{name}: {steps} steps were made again, bit by bit: they are those of its log"
    near = 0
    for file, step, line, one in pairs:
        try:
            for key, value in one.items():
                if "pass_rate" in key or re.fullmatch("eval/.*/mean@[0-9]+", key):
                    close(f"{file}, step {step}, {key}", line[key], value, 0, NEAR)
                elif key in NUMBERS:
                    close(f"{file}, step {step}, {key}", line[key], value, NEAR, 1e-9)
            near += 1
        except Wrong:
            if (file, step) in (("evals.jsonl", 0), ("metrics.jsonl", 1)):
                raise
    holds(f"{len(pairs) - near} of {len(pairs)} lines are other ones: the first is {other}",
          near > len(pairs) / 2)
    return (f"{name}: {steps} steps were made again; another processor, or other threads, had made "
            f"them: {other} has other digits; {near} of {len(pairs)} lines agree within {NEAR:g}")


def untimed(line):
    return {key: value for key, value in line.items() if not TIMED.match(key)}
