"""mutants.py: real bugs, put in one at a time, and the tests that notice them.

    python -m course.mutants                           all of mutants.toml; the table is mutants.md
    python -m course.mutants group_std R0_forgotten    these two alone, and their rows of the table
    python -m course.mutants --deal 7 --out mystery    a project with a silent bug
    python -m course.mutants --logs --model models/toy-8           the logs that are dealt out

A mutant is applied in a temporary copy of the project, never in the tree itself, and only the tests
that it names are run there: the whole suite for each would take many hours. Two copies at a time.
It is killed if each of these tests fails on an assertion. A test that dies of an error, or never
begins, has not noticed the bug: it has met a crash. First all tests run on an unchanged copy.
"""

import argparse
import datetime
import json
import multiprocessing
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from course.student import BadInput, tracked

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "course"
LIMIT_S = 900                       # for the tests of one mutant, and for each run of --logs
NOT_COPIED = ("results",)
# What a dealt project lacks: the tests, which would say it, and the course, which has the answers.
NOT_DEALT = ("tests", "course")
# Importing torch takes longer than most tests: a server imports it once, and forks for each mutant.
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["pytest", "scipy.optimize", "torch", "transformers", "accelerate"])
ASSERTION = re.compile(r"assert |AssertionError|Failed: ")          # how pytest's messages begin
# The silent runs: lag, micro-batches, epochs and a temperature, so that each bug has its effect.
RUN = ("--config", "configs/stress.toml", "--steps", "40", "--lr", "1e-4", "--temperature", "0.8",
       "--seed", "3", "--task-options", '{"size": 300}', "--heldout-prompts", "256",
       "--micro-batch-tokens", "1024", "--allow-mismatch", "true", "--name", "run")
BY_LAG = [f"{name}/lag_{lag}" for lag in (0, 4, 8)
          for name in ("ratio/mean", "mismatch/kl_k3", "mismatch/mean_abs_dlogp")]
COLUMNS = ("step", "version", "reward/std", "pass_rate", "frac_reward_zero_std",
           "prompts/consumed", "prompts/trained", "loss", "grad_norm", "lr", "entropy", "ess",
           "ratio/mean", "ratio/max", "ratio/clipped_frac", *BY_LAG, "lag/mean", "lag/max",
           "completions/mean_length", "completions/truncated_frac",
           "completions/interrupted_frac", "tokens/generated", "tokens/trained", "tokens/forced",
           "curriculum/epoch", "curriculum/retired", "compute/flops", "compute/tokens",
           "eval/toy/mean@1")


@dataclass(frozen=True)
class Mutant:
    """A row of mutants.toml, which says what each field is."""
    name: str
    file: str
    old: str
    new: str
    story: str
    tests: list
    silent: bool = False

    def apply(self, folder):
        """Put the bug into the project in `folder`; the file keeps its time, which would tell."""
        path = folder / self.file
        times = path.stat()
        found = path.read_text().count(self.old)
        if found != 1:
            raise BadInput(f"mutant {self.name}: its `old` occurs {found} times in {self.file}, "
                           "and must exactly once: mend mutants.toml")
        path.write_text(path.read_text().replace(self.old, self.new))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def load(path=HERE / "mutants.toml"):
    """{name: Mutant}"""
    rows = [Mutant(**row) for row in tomllib.loads(path.read_text())["mutant"]]
    return {mutant.name: mutant for mutant in rows}


def copy_project(folder, mutant=None, leave_out=()):
    """A copy of the project, as far as git knows its files, in the new folder `folder`, with the
    mutant's bug. Raises BadInput without git."""
    for name in tracked(ROOT):
        top = name.split("/")[0]
        if top not in (*NOT_COPIED, *leave_out) and top[0] != "." and (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    if mutant:
        mutant.apply(folder)


# ----------------------------------------------------------------------------------- the tests
def pytest_in(folder, tests):
    """pytest, as a process of its own in this copy of the project. Of ROOT nothing is imported."""
    import pytest
    with open(folder / "output", "w") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    os.chdir(folder)
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != ROOT]
    for name in [name for name in sys.modules if name.partition(".")[0] == "course"]:
        del sys.modules[name]
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--tb=line", "-o",
                          "junit_family=xunit1", "--junitxml=report.xml", *tests]))


def run_tests(folder, tests, limit_s=LIMIT_S):
    """({test: message, "" where it has passed}, how the run ended if it did not end normally).

    A named test stands for all of its cases. A case that is skipped has not passed."""
    report, process = folder / "report.xml", FORK.Process(target=pytest_in, args=(folder, tests))
    process.start()
    process.join(limit_s)
    if process.exitcode is None:
        process.kill()
        process.join()
        return {}, f"not over after {limit_s} s"
    cases = {}
    if report.exists():
        for case in ElementTree.parse(report).iter("testcase"):
            bad = [f"{'' if child.tag == 'failure' else child.tag + ': '}{child.get('message')}"
                   for child in case if child.tag in ("failure", "error", "skipped")]
            cases[f"{case.get('file')}::{case.get('name')}"] = "".join(bad)
    found = {}
    for test in tests:
        messages = [x for case, x in cases.items() if case == test or case.startswith(f"{test}[")]
        if messages:                            # an assertion first, if there is any
            found[test] = max(messages, key=lambda x: (bool(ASSERTION.match(x)), bool(x)))
    if process.exitcode in (0, 1):
        return found, ""
    said = " ".join((folder / "output").read_text().split())[-200:]
    return found, f"pytest ended with {process.exitcode}: {said}"


def judge(mutant, found, ended):
    """(verdict, why) of the tests' run on a mutant: "killed", "crashed" or "survived"."""
    for test in mutant.tests:
        if test not in found:
            return "crashed", f"{test} did not run: {ended or 'no such test'}"
        if not found[test]:
            return "survived", f"{test} passes"
        if not ASSERTION.match(found[test]):
            return "crashed", f"{test}: {found[test].splitlines()[0]}"
    return "killed", ", ".join(test.rpartition("::")[2] for test in mutant.tests)


def check(mutants, tell=print):
    """{name: (verdict, why)} of these mutants. Raises BadInput: a test fails without any bug."""
    with tempfile.TemporaryDirectory() as folder:
        healthy = Path(folder, "healthy")
        copy_project(healthy)
        for mutant in mutants:                  # before minutes of tests: can each be applied?
            text = (healthy / mutant.file).read_text()
            mutant.apply(healthy)
            (healthy / mutant.file).write_text(text)
        tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
        tell(f"{len(tests)} tests on the unchanged project")
        found, ended = run_tests(healthy, tests, 4 * LIMIT_S)
        for test in tests:
            if found.get(test, ended or "no such test"):
                raise BadInput(f"{test} does not pass on the unchanged project: "
                               f"{found.get(test, ended or 'no such test').splitlines()[0]}")

        def one(mutant):
            copy = Path(folder, mutant.name)
            copy_project(copy, mutant)
            verdict = judge(mutant, *run_tests(copy, mutant.tests))
            shutil.rmtree(copy)
            tell(f"{verdict[0]:9} {mutant.name:32} {mutant.file:20} {verdict[1]}")
            return verdict
        with ThreadPoolExecutor(2) as pool:
            return dict(zip([mutant.name for mutant in mutants], pool.map(one, mutants)))


def table(mutants, verdicts, before=""):
    """mutants.md; of mutants that were not run, the last cell is that of the table before, and with
    them the day."""
    ends = {line.split()[1]: line.rpartition(" | ")[2].rstrip(" |")
            for line in before.splitlines() if line.startswith("| ")}
    ends |= {name: why if verdict == "killed" else f"{verdict}: {why}"
             for name, (verdict, why) in verdicts.items()}
    mutants = [mutant for mutant in mutants if mutant.name in ends]
    killed = sum(": " not in ends[mutant.name] for mutant in mutants)
    rows = "".join(f"| {m.name}{' (silent)' * m.silent} | `{m.file}` | {m.story} "
                   f"| {ends[m.name]} |\n" for m in mutants)
    last = (f", last on {datetime.date.today()}, with Python\n{platform.python_version()} on "
            f"{os.cpu_count()} cores ({platform.system()}, {platform.machine()})")
    if not {mutant.name for mutant in mutants} <= verdicts.keys() and (
            found := re.search(r"Made by `make mutants`(.*?)\. The patches", before, re.S)):
        last = found[1]
    return f"""\
# What the tests notice

{len(mutants)} real bugs, put into the project one at a time: {killed} are killed, each by all
of the tests beside it, on an assertion. Only these tests are run on a mutant: the whole suite for
each would take many hours. Made by `make mutants`{last}. The patches are in `mutants.toml`.
Silent ones are dealt out for [an exercise](silent_bugs.md), so this page is the instructor's.

| bug | file | what goes wrong, and where it was seen | killed by |
|---|---|---|---|
{rows}"""


# ------------------------------------------------------------------------ the silent-bug exercise
def bug_of(seed):
    """The name of the silent bug that a seed deals out."""
    return random.Random(f"silent {seed}").choice(
        sorted(name for name, mutant in load().items() if mutant.silent))


def deal(seed, out):
    """A project with the silent bug of this seed in the new folder `out`, and in out/logs a short
    run with it beside one without."""
    if out.exists():
        raise BadInput(f"{out} is there already: name another folder with --out")
    name = bug_of(seed)
    copy_project(out, load()[name], NOT_DEALT)
    shutil.copy(HERE / "silent_bugs.md", out / "TASK.md")
    for run, log in (("healthy", "healthy"), ("mystery", name)):
        (out / "logs" / run).mkdir(parents=True)
        shutil.copyfile(HERE / "silent" / f"{log}.jsonl", out / "logs" / run / "metrics.jsonl")


def short(value):
    """Four digits are enough to look at; counts stay whole."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def log_of(mutant, model, limit_s=LIMIT_S):
    """The thinned metrics.jsonl of a short run with this bug (None: without), as text; the rows of
    evaluated steps also have the evaluation's pass rate."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder, "project")
        copy_project(project, mutant)
        done = subprocess.run(
            [sys.executable, "scalerl.py", *RUN, "--model", model.resolve()], cwd=project,
            text=True, capture_output=True, timeout=limit_s)
        if done.returncode:
            raise BadInput(f"the run of {mutant.name if mutant else 'the healthy project'} ended "
                           f"with {done.returncode}: {done.stderr.strip()[-300:]}")
        rows = {name: [json.loads(line) for line in open(project / "runs" / "run" / name)]
                for name in ("metrics.jsonl", "evals.jsonl")}
    scores = {row["step"]: {"eval/toy/mean@1": row["eval/toy/mean@1"]}
              for row in rows["evals.jsonl"]}
    rows = [row | scores.get(row["step"], {}) for row in rows["metrics.jsonl"]]
    return "".join(json.dumps({name: short(row[name]) for name in COLUMNS if name in row}) + "\n"
                   for row in rows)


def write_logs(model, names=()):
    """course/silent/: a log for each silent bug, and one without any."""
    if not (model / "config.json").exists():
        raise BadInput(f"{model} is no model: make models/toy-8/config.json makes one")
    (HERE / "silent").mkdir(exist_ok=True)
    runs = {"healthy": None} | {name: m for name, m in load().items() if m.silent}
    for name in names or runs:
        if name not in runs:
            raise BadInput(f"{name} is no silent bug: {', '.join(runs)} are")
        (HERE / "silent" / f"{name}.jsonl").write_text(log_of(runs[name], model))
        print(f"course/silent/{name}.jsonl")


def main(argv=None):
    """Returns the exit code: 0 all killed, 1 some not, 2 wrong input."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of mutants; none: all")
    parser.add_argument("--deal", type=int, metavar="SEED", help="deal out a silent bug")
    parser.add_argument("--out", type=Path, help="with --deal: the new folder")
    parser.add_argument("--logs", action="store_true", help="make the logs of the silent bugs")
    parser.add_argument("--model", type=Path, default=Path("models/toy-8"), help="with --logs")
    args = parser.parse_args(argv)
    try:
        if args.deal is not None:
            if args.out is None:
                raise BadInput("--deal needs --out, the folder to make")
            deal(args.deal, args.out)
            print(f"{args.out}/TASK.md says what to do")
            return 0
        if args.logs:
            write_logs(args.model, args.names)
            return 0
        mutants = load()
        if unknown := [name for name in args.names if name not in mutants]:
            raise BadInput(f"no mutant is called {unknown[0]}")
        chosen = [mutants[name] for name in args.names or mutants]
        verdicts = check(chosen, lambda line: print(line, flush=True))
    except (BadInput, OSError, subprocess.TimeoutExpired) as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2
    path = HERE / "mutants.md"
    path.write_text(table(mutants.values(), verdicts, path.read_text() if path.exists() else ""))
    left = [name for name, (verdict, _) in verdicts.items() if verdict != "killed"]
    print(f"{len(chosen) - len(left)} of {len(chosen)} killed"
          + f"; not killed: {', '.join(left)}" * bool(left))
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
