"""experiment.py: exercise 8, an experiment of one's own (8_experiment.md), and exercise 11, an
ablation: the same with two or three changes, each on its own (11_ablation.md).

    python -m course.experiment experiment --commands    # the commands of its ten runs
    python -m course.experiment experiment               # what they say, and what is still missing
    python -m course.experiment ablation                 # the same for exercise 11

The plan is written and committed before the runs: their names hold a hash of it, and each run's
versions.json names a commit that must hold this very plan. The commit's id is the hash of what is
in it, so three objects of git (commits.json) prove that without any history. (Who forges the logs
can forge the name of a commit too; who collects the plans before the runs, `make grade-all
PLANS=FOLDER`, has a clock that is not the student's.)

What decides are five differences, one a seed: a run with one setting changed minus the run without.
The mean of five has a 90% interval by Student's t, which holds what differs from seed to seed; the
intervals of fit.py are those of a single run. `measure` says of what the difference is taken:
"end", the mean of the last five evaluations, or "A", the fitted ceiling, which fit.py also has to
call determined in each run.
"""
import argparse
import base64
import hashlib
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
from scipy.special import stdtrit

from fitting.readers import read_curves
from course.student import ROOT, BadInput
from fit import LAST, LEVEL, fit_curve
from fitting.compare import verdict

SEEDS = 5
BASES = ("configs/stress.toml", "configs/demo.toml")
# Columns of a step that another run cannot share by luck, and that measure no time.
NUMBERS = ("pass_rate", "loss", "grad_norm", "entropy", "tokens/trained", "compute/flops")
FIELDS = ("base", "changed", "measure", "smallest", "expected", "seeds")
VERDICTS = ("higher", "lower", "no difference", "not decided")
ARMS = {"ablation": (2, 3)}   # least and most changes of a folder's plan; else one
LONGEST = 100_000           # steps of a run, and characters of a text
PARTS = 7                   # of the points: five are found here, two are for whoever grades
RUBRIC = (
    "two parts of seven are given by hand:",
    "  does the plan say, with a reason and before the runs, what is expected and why it matters?",
    "  does the conclusion claim no more than the interval, and say what one toy cannot show?")


# --------------------------------------------------------------------------------- 1. the plan
def read_text(path):
    text = path.read_text("utf-8-sig")
    if len(text) > LONGEST:
        raise BadInput(f"{path.name} has {len(text):,} characters: a page is enough")
    return text


def read_plan(folder):
    """The fields of plan.md, and the hash that its runs are named by. Raises BadInput."""
    path = folder / "plan.md"
    if not path.exists():
        page = "11_ablation" if folder.name == "ablation" else "8_experiment"
        raise BadInput(f"{path} is missing: course/{page}.md shows one")
    text = read_text(path)
    plan = {name: value.strip() for name, value in re.findall(r"^(\w+):(.*\S)", text, re.M)}
    if missing := [name for name in FIELDS if name not in plan]:
        raise BadInput(f"{path} has no line `{missing[0]}: ...`")
    if plan["base"] not in BASES:
        raise BadInput(f"{path}: `base` is {' or '.join(BASES)}, and not {plan['base'][:60]}")
    least, most = ARMS.get(folder.name, (1, 1))
    try:
        changes = [*tomllib.loads(plan["changed"].replace(";", "\n")).items()]
        plan["seeds"] = [*map(int, plan["seeds"].split())]
        plan["smallest"] = float(plan["smallest"])
    except ValueError as error:
        raise BadInput(f'{path}: `changed` is one setting as in TOML (loss = "grpo"), `seeds` are '
                       f"whole numbers, `smallest` is a number ({error})") from None
    if not least <= len(changes) <= most:
        raise BadInput(f"{path}: `changed` has {len(changes)} settings, and must have "
                       + (f"{least} to {most}, with ; between them" if most > 1 else "one"))
    plan["expected"] = [each.strip() for each in plan["expected"].split(";")]
    if plan["measure"] not in ("end", "A") or {*plan["expected"]} - {*VERDICTS[:3]} or (
            len(plan["expected"]) != len(changes)):
        raise BadInput(f"{path}: `measure` is end or A, `expected` is for each change one of "
                       f"{', '.join(VERDICTS[:3])}")
    if len(set(plan["seeds"])) != SEEDS or len(plan["seeds"]) != SEEDS or plan["smallest"] <= 0:
        raise BadInput(f"{path}: {SEEDS} different seeds, and `smallest` above 0, are needed")
    return plan | dict(changes=changes,
                       hash=hashlib.sha256(text.encode()).hexdigest()[:8])


def arms(plan):
    """The names of what is run: base, changed; with several changes base, changed1, changed2."""
    many = len(plan["changes"]) > 1
    return ["base", *(f"changed{i}" if many else "changed"
                      for i in range(1, len(plan["changes"]) + 1))]


def run_names(plan):
    """[(base, changed, ...)], a tuple a seed."""
    return [tuple(f"{arm}-{plan['hash']}-seed{seed}" for arm in arms(plan))
            for seed in plan["seeds"]]


def commands(plan):
    options = [f" --{key.replace('_', '-')} "
               + shlex.quote(value if isinstance(value, str) else json.dumps(value))
               for key, value in plan["changes"]]
    for seed, names in zip(plan["seeds"], run_names(plan)):
        for name, more in zip(names, ("", *options)):
            yield f"python scalerl.py --config {plan['base']} --name {name} --seed {seed}{more}"


# ------------------------------------------------------------------------------- 2. its commit
COMMIT = "git add the plan, git commit -m plan, and only then the runs"


def commits_of(runs):
    """The commits that these runs were made at. Raises BadInput."""
    found = set()
    for run in runs:
        try:
            name = json.loads((run / "versions.json").read_text())["git"].removesuffix("-dirty")
        except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
            raise BadInput(f"{run.name}/versions.json names no commit ({error!r})") from None
        if not re.fullmatch("[0-9a-f]{40}", name):
            raise BadInput(f"{run.name} was run in a tree without a commit: {COMMIT}")
        found.add(name)
    return sorted(found)


def keep_commits(folder):
    """Write what proves that the plan lay in the runs' commits to commits.json beside it: of each
    the objects of the commit, of its tree and of that folder in it."""
    tree = folder.parent
    runs = [run for pair in run_names(read_plan(folder)) for run in pair]
    kept = {}
    for name in commits_of(tree / "runs" / run for run in runs if (tree / "runs" / run).exists()):
        asked = [f"{name}^{{commit}}", f"{name}^{{tree}}", f"{name}:{folder.name}"]
        kept[name] = []
        for kind, what in zip(("commit", "tree", "tree"), asked):
            done = subprocess.run(["git", "cat-file", kind, what], cwd=tree, capture_output=True)
            if done.returncode:
                raise BadInput(f"the runs' commit {name[:9]} has no {folder.name}/plan.md: "
                               f"{COMMIT}")
            kept[name].append(base64.b64encode(done.stdout).decode())
    (folder / "commits.json").write_text(json.dumps(kept, indent=1) + "\n")


def git_id(kind, data):
    """The id that git gives to these bytes."""
    return hashlib.sha1(f"{kind} {len(data)}\0".encode() + data).hexdigest()


def id_in(tree, name):
    """The id of the entry `name` in a tree object of git: "mode name\\0" and 20 bytes each."""
    while tree:
        head, _, rest = tree.partition(b"\0")
        if head.partition(b" ")[2] == name:
            return rest[:20].hex()
        tree = rest[20:]


def check_committed(folder, runs):
    """Each run was made at a commit that holds the plan as it is. -> a sentence; raises BadInput.
    Nothing is asked of git here, which would run what a strange folder's settings say."""
    names, plan = commits_of(runs), (folder / "plan.md").read_bytes()
    plans = git_id("blob", plan), git_id("blob", plan.replace(b"\r\n", b"\n"))   # core.autocrlf
    try:
        kept = json.loads((folder / "commits.json").read_text())
        for name in names:
            commit, root, inner = map(base64.b64decode, kept[name])
            same = (git_id("commit", commit) == name
                    and commit.startswith(f"tree {git_id('tree', root)}\n".encode())
                    and id_in(root, folder.name.encode()) == git_id("tree", inner)
                    and id_in(inner, b"plan.md") in plans)
            if not same:
                raise BadInput(f"the commit {name[:9]} that runs were made at does not hold this "
                               f"plan: {COMMIT}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{folder.name}/commits.json does not hold the runs' commits: `make check` "
                       f"writes it ({error!r})") from None
    return f"committed as {', '.join(name[:9] for name in names)} before them"


# --------------------------------------------------------------------------------- 3. the runs
def log(run, name):
    """The lines of a run's log, by step. Raises BadInput."""
    try:
        lines = [json.loads(line) for line in (run / name).read_text().splitlines()]
        return {line["step"]: line for line in lines}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{run / name} cannot be read: {error!r}") from None


def settings(run):
    try:
        config = tomllib.loads((run / "config.toml").read_text())
        if not all(type(config[name]) is int and 0 < config[name] <= LONGEST
                   for name in ("steps", "eval_every")) or type(config["seed"]) is not int:
            raise ValueError(f"steps and eval_every are whole numbers up to {LONGEST:,}")
        return config | dict(name=config["name"])
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"{run / 'config.toml'} cannot be read: {error!r}") from None


def check_logs(runs):
    """Every step and every evaluation is there, and no run is a copy of another seed's."""
    for number, arm in enumerate(run.name.partition("-")[0] for run in runs[0]):
        rewards = []
        for pair in runs:
            run, config = pair[number], settings(pair[number])
            steps, evals = log(run, "metrics.jsonl"), log(run, "evals.jsonl")
            due = {*range(0, config["steps"] + 1, config["eval_every"]), config["steps"]}
            for name, lines, wanted in (("step", steps, {*range(1, config["steps"] + 1)}),
                                        ("evaluation", evals, due)):
                if gone := sorted(wanted - {*lines}):
                    raise BadInput(f"{run.name} has no line of {name} {gone[0]} ({len(gone)} are "
                                   "missing): give its command again; a run that ended early "
                                   "because all of its prompts had retired cannot be graded")
            rewards.append([line.get("pass_rate") for line in steps.values()])
        if any(one == other for i, one in enumerate(rewards) for other in rewards[:i]):
            raise BadInput(f"two seeds of {arm} have the same pass rate in every step: a copy")
    return f"{sum(map(len, runs))} runs, every step and every evaluation is there"


def base_settings(plan):
    """What the base's config says, which was handed out; the model may be another toy."""
    given = tomllib.loads((ROOT / plan["base"]).read_text())
    return {key: value for key, value in given.items() if key not in ("name", "model")}


def check_pairs(plan, runs):
    """A changed run differs from its seed's base in the planned setting alone, in code not at
    all."""
    sources, given = set(), base_settings(plan)
    for seed, pair in zip(plan["seeds"], runs):
        base, *changed = configs = [*map(settings, pair)]
        if other := sorted(key for key in given if base.get(key, given[key]) != given[key]):
            raise BadInput(f"{pair[0].name} has {other[0]} = {base[other[0]]!r}, and "
                           f"{plan['base']} has {given[other[0]]!r}")
        for run, config in zip(pair, configs):
            if (config["name"], config["seed"]) != (run.name, seed):
                raise BadInput(f"{run.name} was run as {config['name']} with seed {config['seed']}")
            sources.add(tuple((str(path.relative_to(run)), path.read_bytes())
                              for path in sorted(run.glob("source/**/*.py"))))
        for config, (key, value) in zip(changed, plan["changes"]):
            differ = sorted({name for name in base if base[name] != config.get(name)} - {"name"})
            if differ != [key] or config[key] != value:
                raise BadInput(f"the runs of seed {seed} differ in "
                               f"{', '.join(differ) or 'nothing'}: the plan changes {key} to "
                               f"{value!r}")
    if len(sources) > 1:
        raise BadInput("the runs' source/ folders differ: all have to be of one code")
    for arm, (key, value) in enumerate(plan["changes"], 1):
        if all(steps_of(pair[arm]) == steps_of(pair[0]) for pair in runs):
            raise BadInput(f"{key} = {value!r} has no effect: with it every step of every seed has "
                           "the numbers of the base")
    return f"each pair differs in the planned setting alone ({plan['changed']})"


def steps_of(run):
    """NUMBERS of each step of a run."""
    lines = log(run, "metrics.jsonl")
    return [[lines[step].get(name) for name in NUMBERS]
            for step in range(1, settings(run)["steps"] + 1)]


# ------------------------------------------------------------------------------- 4. the result
def differences(runs, measure):
    """Changed minus base of each pair -> (differences, doubts about ceilings)."""
    found, doubts = [], []
    for pair in runs:
        curves = read_curves([str(run) for run in pair])
        if measure == "end":
            base, changed = (curve.R[-LAST:].mean() for curve in curves)
            found.append(changed - base)
            continue
        base, changed = (fit_curve(curve.C, curve.R, bootstrap=200, seed=i)
                         for i, curve in enumerate(curves))
        found.append(changed.A - base.A)
        rule, low, high = verdict(changed, base)
        if rule == "undetermined":
            doubts.append(f"A({curves[1].label}) - A({curves[0].label}) = {found[-1]:+.3f} "
                          f"[{low:+.3f}, {high:+.3f}]: undetermined")
    return np.array(found), doubts


def result(d, smallest, doubts=(), tries=1):
    """Five differences -> their mean, its interval, and one of VERDICTS. With several changes each
    has more than one chance to look like something: 10% of error are shared among them
    (Bonferroni)."""
    half = stdtrit(d.size - 1, 1 - (1 - LEVEL) / 2 / tries) * d.std(ddof=1) / d.size ** 0.5
    low, high = d.mean() - half, d.mean() + half
    verdict = ("not decided" if doubts else "no difference" if -smallest < low <= high < smallest
               else "higher" if low > 0 else "lower" if high < 0 else "not decided")
    return dict(mean=float(d.mean()), lo=float(low), hi=float(high), verdict=verdict)


def check_interval(text, told):
    """The conclusion prints both ends of an interval, to two digits or more."""
    found = re.findall(r"[-+]?(?<!\d)\d*\.\d{2,}", text.replace("−", "-"))
    # .005 to either side: "-0.045" and "-0.05" are both -.0452 as it may be printed.
    if not all(any(abs(float(x) - told[end]) < .0051 for x in found) for end in ("lo", "hi")):
        raise BadInput(f"conclusion.md does not print the interval [{told['lo']:+.3f}, "
                       f"{told['hi']:+.3f}]")


def check_verdict(text, told):
    said = [each.strip(" .").lower() for each in re.findall(r"(?mi)^verdict:(.*\S)", text)]
    if said != [each["verdict"] for each in told]:
        lines = ", ".join(f"`verdict: {each['verdict']}`" for each in told)
        raise BadInput(f"conclusion.md needs {len(told)} line{'s' * (len(told) > 1)} {lines}; it "
                       f"has {', '.join(said) or 'none'}")
    return "each verdict is that of its interval"


def parts(folder):
    """The five parts that a program can grade, in order: a sentence each. Raises ValueError."""
    plan, tree = read_plan(folder), folder.parent
    runs = [tuple(tree / "runs" / name for name in pair) for pair in run_names(plan)]
    if gone := [run.name for pair in runs for run in pair if not run.exists()]:
        raise BadInput(f"runs/{gone[0]} is missing ({len(gone)} are): the plan was changed after "
                       "its runs, or they were not made (--commands)")
    committed = check_committed(folder, [run for pair in runs for run in pair])
    yield f"{sum(map(len, runs))} runs bear the hash of the plan, {plan['hash']}, {committed}"
    yield check_logs(runs)
    said, told = [check_pairs(plan, runs)], []
    for arm, expected in enumerate(plan["expected"], 1):
        d, doubts = differences([(pair[0], pair[arm]) for pair in runs], plan["measure"])
        told.append(result(d, plan["smallest"], doubts, len(plan["changes"])))
        said.append(f"{plan['measure']}, {arms(plan)[arm]} minus base: "
                    f"{', '.join(f'{x:+.3f}' for x in d)}; mean {told[-1]['mean']:+.3f} "
                    f"[{told[-1]['lo']:+.3f}, {told[-1]['hi']:+.3f}]: {told[-1]['verdict']}, "
                    f"expected was {expected}" + "".join(f"; {doubt}" for doubt in doubts))
    yield "; ".join(said)
    path = folder / "conclusion.md"
    if not path.exists():
        raise BadInput(f"{path} is missing")
    for each in told:
        check_interval(read_text(path), each)
    yield "the conclusion prints each interval"
    yield check_verdict(read_text(path), told)


def grade(folder):
    """The folder of a plan -> (sentences of the parts that are done, why the next one is not)."""
    done = []
    try:
        done.extend(parts(folder))
    except (OSError, ValueError) as error:
        return done, str(error)
    return done, ""


def main(argv=None):
    p = argparse.ArgumentParser(prog="experiment.py", description=__doc__.split("\n")[0])
    p.add_argument("folder", type=Path, help="the folder of plan.md and conclusion.md")
    p.add_argument("--commands", action="store_true", help="print the commands of the ten runs")
    args = p.parse_args(argv)
    if args.commands:
        try:
            print(*commands(read_plan(args.folder)), sep="\n")
        except (ValueError, OSError) as error:
            print(f"experiment.py: {error}", file=sys.stderr)
            return 2
        return 0
    try:
        keep_commits(args.folder.resolve())
    except (ValueError, OSError) as error:
        print(f"note: {args.folder}/commits.json was not written: {error}")
    done, why = grade(args.folder.resolve())
    print(*(f"ok  {line}" for line in done), *([f"--  {why}"] if why else RUBRIC), sep="\n")
    return 2 if why else 0


if __name__ == "__main__":
    sys.exit(main())
