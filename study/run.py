"""make study: the runs of the experiments that are still missing, two at a time.

    python -m study.run                            # all experiments, in the order of their files
    python -m study.run study/3_lag.toml --lanes 1
    python -m study.run --list                     # what there is to do; starts nothing

An experiment is a TOML file:

    question = "one sentence"
    pairs = ["13:20", "14:21"]                     # toy:seed; a comparison is paired by them
    [bases]                                        # lists of config files and of single settings
    stress = ["configs/stress.toml"]
    [variants]                                     # what is put on top of a base
    scalerl = []
    lag_4 = [{off_policy = "pipeline-4"}]

Where it is needed, `program = ["-m", "study.article"]` stands for scalerl.py; a variant has a toy
of its own: `[toys]` with `wide = ["--hidden", "320"]`, options of study/toy.py; or no toy is
trained: `model = "models/smollm2-135m"`, and `pairs = ["20", "21"]` are seeds. `gpu = true`: left
out, and told, where there is no GPU.

Its runs are all bases, for each all pairs, for each all variants: whenever the series is stopped,
a base's pairs are complete but for the last one. A run is named BASE-VARIANT-toyT-seedS, or
BASE-VARIANT-seedS.
Experiments share runs of one name and settings; one name with two settings is refused.

A run works in runs/study-NAME. When it is finished, what is read of its logs is kept in the tables
of results/study (logs.py), and it is never made again. A killed run resumes from its checkpoint. A
run that fails after its first step (a gradient that is not finite, say) is a result: its last line
of output is kept in failed.csv. One that fails before (a package is missing) ends the series.
"""
import argparse
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

from config import ConfigError
from study import logs

HERE = Path(__file__).parent
KEPT = HERE.parent / "results/study"
DIGITS = 4                  # of what is kept of each step


@dataclass(frozen=True)
class Job:
    """One run of an experiment."""
    base: str
    variant: str
    toy: int | None           # None: `other_model` is trained
    seed: int
    options: tuple            # of the command line: ("--config", "configs/stress.toml", ...)
    program: tuple = ("scalerl.py",)
    toy_options: tuple = ()
    other_model: str = ""
    gpu: bool = False

    @property
    def pair(self):
        return f"seed{self.seed}" if self.toy is None else f"toy{self.toy}-seed{self.seed}"

    @property
    def name(self):
        return f"{self.base}-{self.variant}-{self.pair}"

    @property
    def model(self):
        own = f"-{self.variant}" if self.toy_options else ""
        return Path(self.other_model or f"models/toy-{self.toy}{own}")

    @property
    def folder(self):
        """Where it works. (Its logs are kept elsewhere.)"""
        return Path("runs") / f"study-{self.name}"

    def command(self):
        return [sys.executable, *self.program, *self.options, "--model", str(self.model), "--seed",
                str(self.seed), "--name", self.folder.name]


def options_of(layers):
    """Config files and tables of settings -> options of the command line."""
    for layer in layers:
        if isinstance(layer, str):
            yield from ("--config", layer)
        else:
            for name, value in layer.items():
                value = str(value).lower() if isinstance(value, bool) else str(value)
                yield from ("--" + name.replace("_", "-"), value)


def read_experiment(path):
    """The jobs of an experiment's file, in order. Raises ConfigError: it is not of the form above.
    """
    try:
        told = tomllib.loads(Path(path).read_text())
        model = told.get("model", "")
        pairs = [(None, int(pair)) if model else tuple(map(int, pair.split(":")))
                 for pair in told["pairs"]]
        if not all(len(pair) == 2 for pair in pairs):
            raise ValueError("a pair is toy:seed")
        if not all(isinstance(layers, list) for key in ("bases", "variants")
                   for layers in told[key].values()):
            raise ValueError("a base or a variant is a list (a name with a dot needs quotes)")
        grid = itertools.product(told["bases"].items(), pairs, told["variants"].items())
        program, toys = tuple(told.get("program", Job.program)), told.get("toys", {})
        return [Job(base, variant, toy, seed, tuple(options_of(below + above)), program,
                    tuple(toys.get(variant, ())), model, bool(told.get("gpu")))
                for (base, below), (toy, seed), (variant, above) in grid]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: no experiment of the form in study/run.py: "
                          f"{type(error).__name__} {error}") from None


def experiments(paths=()):
    """{file's stem: its jobs}, of all files in study/ by their numbers, unless some are named."""
    found = {Path(path).stem: read_experiment(path) for path in paths or sorted(
        HERE.glob("*.toml"), key=lambda path: int(path.stem.partition("_")[0]))}
    known = {}
    for job in itertools.chain(*found.values()):
        if known.setdefault(job.name, job) != job:
            raise ConfigError(f"{job.name} has two settings: {shlex.join(job.options)} and "
                              f"{shlex.join(known[job.name].options)}")
    return found


def done():
    """({runs that are kept}, {runs that failed})"""
    return logs.read(KEPT / "evals.csv").keys(), logs.read_failed(KEPT).keys()


def table(found, seconds, lanes):
    """The progress table: an experiment a line, and the time left."""
    lines, ended = [], done()
    for stem, jobs in found.items():
        kept, failed = (sum(job.name in names for job in jobs) for names in ended)
        lines.append(f"{stem:24}{kept + failed:4} of {len(jobs):4}"
                     + (f"   {failed} failed" if failed else ""))
    left = len({job.name for jobs in found.values() for job in jobs} - ended[0] - ended[1])
    if seconds:
        seconds = sum(seconds) / len(seconds)
        lines.append(f"{left} runs left, {seconds:.0f} s each: "
                     f"{left * seconds / lanes / 60:.0f} minutes")
    return "\n".join(lines)


def make_toy(folder, seed, options=(), env=None):
    """Make a toy unless it is there. Returns "", or the sentence with which it was refused."""
    if (folder / "config.json").exists():
        return ""
    made = subprocess.run([sys.executable, "-m", "study.toy", "--seed", str(seed), "--out",
                           str(folder), *options], env=env, text=True, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE)
    said = made.stderr.strip().split("\n")[-1]
    if made.returncode not in (0, 3):           # 3: it has not learned; anything else is no result
        sys.exit(said or f"study/toy.py ended with status {made.returncode}")
    return said if made.returncode else ""


def start(job):
    """The process of a job; its toy is made first if it is missing. None: the toy was refused,
    which is a result like a failed run."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    refused = "" if job.other_model else make_toy(job.model, job.toy, job.toy_options, env)
    if refused:
        fail(job, refused)
        return None
    log = open(f"{job.folder}.log", "w")                    # noqa: SIM115: the child's
    # A session of its own: Ctrl-C reaches us alone, and each run gets one signal, from `work`.
    return subprocess.Popen(job.command(), stdout=log, stderr=subprocess.STDOUT, env=env,
                            start_new_session=True)


def finish(job, code):
    """Keep what a run of exit code `code` has left. One that somebody stopped or killed, or that
    runs elsewhere, is no result: it ends the program, and the same command goes on with it."""
    if code == 0:
        logs.keep(job.folder, KEPT, job.name, DIGITS)
        shutil.rmtree(job.folder / "checkpoints")
    else:
        last = Path(f"{job.folder}.log").read_text().strip().split("\n")[-1]
        if code in STOPPED or "another process is training it" in last \
                or re.search(r"\[Errno (5|28|30)\]", last):        # of a disk
            sys.exit(f"{job.name} was stopped; the same command goes on: {last}")
        metrics = job.folder / "metrics.jsonl"          # its first line is of the self-test
        if not metrics.exists() or '"pass_rate"' not in metrics.read_text():
            sys.exit(f"{job.name} did not take one step: {last}")
        fail(job, last)


# By a signal with a checkpoint, or without one (by Python's numbers; others are a crash).
STOPPED = (75, 130, -signal.SIGHUP, -signal.SIGINT, -signal.SIGKILL, -signal.SIGTERM)


def fail(job, why):
    failed = logs.read_failed(KEPT) | {job.name: why}
    logs.write(KEPT / "failed.csv", [{"run": run, "why": why} for run, why in failed.items()])
    print(f"{job.name} failed: {why}")


def work(found, lanes):
    """Run what is missing. Ctrl-C and SIGTERM stop the runs with a checkpoint each."""
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.default_int_handler)
    kept, failed = done()
    todo = [job for job in dict.fromkeys(itertools.chain(*found.values()))
            if job.name not in kept | failed]
    if any(job.gpu for job in todo) and not shutil.which("nvidia-smi"):     # as the Makefile asks
        print(f"{sum(job.gpu for job in todo)} runs are left out: they need a GPU, none is here")
        todo = [job for job in todo if not job.gpu]
    running, seconds = {}, []
    Path("runs").mkdir(exist_ok=True)
    try:
        while todo or running:
            while todo and len(running) < lanes:
                job = todo.pop(0)
                if process := start(job):
                    running[job] = process, time.monotonic()
            time.sleep(0.2)
            for job, (process, begun) in list(running.items()):
                if process.poll() is not None:
                    del running[job]
                    finish(job, process.returncode)
                    seconds.append(time.monotonic() - begun)
                    print(f"\n{job.name}: {seconds[-1]:.0f} s\n{table(found, seconds, lanes)}",
                          flush=True)
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.wait()


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("experiments", nargs="*", help="their files; without: all in study/")
    p.add_argument("--lanes", type=int, default=2, help="runs at a time, a core each")
    p.add_argument("--list", action="store_true", help="print what there is; start nothing")
    args = p.parse_args()
    if args.lanes < 1:
        p.error("--lanes takes 1 or more")
    try:
        found = experiments(args.experiments)
    except ConfigError as error:
        sys.exit(str(error))
    print(table(found, [], args.lanes))
    if not args.list:
        try:
            work(found, args.lanes)
        except KeyboardInterrupt:
            sys.exit("stopped; the same command goes on")


if __name__ == "__main__":
    main()
