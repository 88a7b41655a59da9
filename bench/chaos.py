"""Faults by the hundred: a run that is killed, frozen, cut off, damaged, beside one that is not.

    python bench/chaos.py --faults 200                          one process, over transformers
    python bench/chaos.py --servers 2 --trainers 2              two vLLM servers, two ranks
    python bench/chaos.py --faults 0 --steps 3000               a soak: does anything grow?
    python bench/chaos.py --tell results/chaos                  the tables of what was kept

A seed makes the schedule: the kind of each fault, and seconds between two (exponential, mean
--every). The outer loop only repeats the command, as a scheduler does. What is measured: seconds
from a fault to the first step that was not there before it; steps to the goal beside a run of the
same seed without faults; whether that run's metrics came out, and every group was trained once;
what is left behind. Needs Linux and root, for a full disk, a read-only one and a network that is
cut; without root these kinds are left out, and that is said.

  1. Run        the command, its processes, what it has logged
  2. Faults     each one a function: harm, wait, undo
  3. Storm      faults at a run until it is done
  4. Soak       memory, descriptors, threads, log: slopes
"""

import argparse
import contextlib
import csv
import itertools
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
from scipy import stats

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from artifacts import checkpoint                                # noqa: E402
from artifacts.run_folder import LOGS                           # noqa: E402
from bench import simulate                                      # noqa: E402
from bench.chaos_site.sitecustomize import ANSWERS              # noqa: E402
from tasks import problems                                      # noqa: E402
from study import toy                                            # noqa: E402

DISK_MB = 256                   # of the disk that the run has for itself
SHORT_S = 10.0                  # a full or read-only disk, a frozen process
CUT_S = 60.0                    # the network
SAVE_MINUTES = 0.03             # between two checkpoints; one takes milliseconds here
GRACE_S = 30.0                  # from SIGTERM to SIGKILL, as Kubernetes gives
TASK = '''"""The toy's sums, judged in the verifier's workers, which a fault may kill."""
import itertools
problems = [{"question": "+".join(map(str, some)), "sum": sum(some)}
            for some in itertools.product(range(10), repeat=3)]
def reward(problem, answer_text):
    return answer_text == str(problem["sum"] % 10)
'''

# Besides sums there are programs to write, for sandboxes that a fault may kill. The toy cannot
# write one; but who thinks too long is interrupted, and this phrase is one, right for all of them.
PHRASE = "</think>\n```python\nprint(7)\n```\n"
PROGRAMS = "".join(json.dumps({"question": "+".join(map(str, some)), "kind": "code", "answer":
                               json.dumps({"inputs": [""], "outputs": ["7"]})}) + "\n"
                   for some in itertools.product(range(5), repeat=4))

# ---------------------------------------------------------------------------------------------
# 1. Run


def make_model(folder, programs=False):
    """A toy model of 2 layers that answers in the right form, right about as often as chance;
    programs: it has the tokens of PHRASE, too."""
    tokenizer = toy.make_tokenizer()
    if programs:
        tokenizer.add_tokens(["`", "(", ")", "python", "print"])
    model = toy.make_model(tokenizer, seed=0, hidden=64, layers=2)
    train = problems.load_task("toy", "train", heldout=64)
    pairs = toy.make_pairs(tokenizer, train, 2000, noise=0.3, cut_share=0.1, seed=0)
    toy.warm_start(model, tokenizer, pairs, steps=120, lr=3e-3, batch=64, seed=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Run:
    """One command, repeated in one folder; its processes carry a mark in their environment.
    programs: for a model that has the tokens, also problems whose answers run in a sandbox."""

    def __init__(self, cwd, model, steps, seed, servers=0, trainers=1,
                 minutes=SAVE_MINUTES, programs=False):
        self.cwd, self.folder, self.servers = cwd, cwd / "runs" / "c", servers
        self.mark = f"{os.getpid()}-{cwd.name}"
        (cwd / "task.py").write_text(TASK)
        (cwd / "programs.jsonl").write_text(PROGRAMS)
        settings = {
            "model": model, "name": "c", "seed": seed, "steps": steps, "task": "task.py",
            "heldout_prompts": 8, "eval_samples": 2, "eval_every": 100, "prompts_per_step": 4,
            "samples_per_prompt": 4, "slots": 24, "think_min": 8, "think_max": 22,
            "answer_tokens": 3, "prompt_tokens": 40, "warmup_steps": 2, "off_policy": "pipeline-2",
            "retire_at": 1.5, "save_minutes": minutes, "gpus": 0, "deadline_s": 300,
            **({"task": "task.py+programs.jsonl", "interrupt_phrase": PHRASE} if programs else {}),
            **({"engine": "vllm", "servers": servers, "trainers": trainers} if servers else
               {"engine": "transformers"})}
        self.words = [sys.executable, str(ROOT / "scalerl.py"), "--no-preflight", *(
            word for name, value in settings.items()
            for word in (f"--{name.replace('_', '-')}", str(value)))]
        self.process, self.sessions = None, set()

    def start(self):
        path = os.pathsep.join([str(ROOT / "bench" / "chaos_site"), str(ROOT)])
        env = os.environ | {"CHAOS": str(self.cwd), "CHAOS_MARK": self.mark, "PYTHONPATH": path,
                            "OMP_NUM_THREADS": "1"}
        with open(self.cwd / "log", "a") as log:
            self.log_start = log.tell()
            self.process = psutil.Popen(self.words, cwd=self.cwd, env=env, stdout=log, stderr=log,
                                        start_new_session=True)

    def ended(self):
        return self.process.poll() is not None

    def said(self):
        """What the command has said since it was started."""
        with open(self.cwd / "log") as log:
            log.seek(self.log_start)
            return log.read()

    def step(self):
        """The last step in the log; 0 before there is one."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            with open(self.folder / "metrics.jsonl", "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 16_384))
                return json.loads(file.read().rstrip(b"\n").rpartition(b"\n")[2])["step"]
        return 0

    def marked(self):
        """Every living process of this run, wherever in the tree: those with the mark, and those of
        their sessions. (vLLM's engines write their titles over their environment.)"""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get("CHAOS_MARK") == self.mark:
                    self.sessions.add(os.getsid(process.pid))
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if os.getsid(process.pid) in self.sessions \
                        and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        # An empty session is forgotten: its number will be some other program's, later.
        with contextlib.suppress(OSError):
            self.sessions = {os.getsid(process.pid) for process in found}
        return found

    def parts(self):
        """{kind of process: those of it}: launcher, rank, server, worker (a server's), verifier."""
        found = {}
        for process in self.marked():
            with contextlib.suppress(psutil.Error, OSError):
                words, env = " ".join(process.cmdline()), process.environ()
                kind = ("reaper" if "reaper.py" in words else
                        "server" if "api_server" in words else
                        "worker" if process.name().startswith("VLLM") or "EngineCore" in words else
                        "verifier" if "tasks.verifier" in words else
                        "rank" if "scalerl.py" in words and "RANK" in env else
                        "launcher" if "scalerl.py" in words else "other")
                found.setdefault(kind, []).append(process)
        if not self.servers:                    # one process: launcher and rank in one
            found["rank"] = found.pop("launcher", [])
        return found

    def checkpoints(self):
        """Newest first."""
        return checkpoint.saved(self.folder / "checkpoints")


# ---------------------------------------------------------------------------------------------
# 2. Faults: each takes the run and a generator of random numbers, and returns what it did; None:
#    there was nothing to harm at that moment, and another kind is drawn


def signal_to(kind, number, thaw=False):
    """One process of this kind gets the signal; thaw: it goes on after SHORT_S."""
    def fault(run, rng):
        if not (some := run.parts().get(kind)):
            return None
        victim = rng.choice(some)
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.send_signal(number)
            if thaw:
                time.sleep(SHORT_S)
                victim.send_signal(signal.SIGCONT)
        return f"pid of a {kind}"
    return fault


def kill_sandbox(run, rng):
    """A program's sandbox lives for a tenth of a second: the first one that is seen gets it."""
    ranks, deadline = run.parts().get("rank", []), time.monotonic() + SHORT_S
    while time.monotonic() < deadline:
        for rank in ranks:
            with contextlib.suppress(psutil.Error):
                for child in rank.children():
                    if "sandbox_child.py" in " ".join(child.cmdline()):
                        child.kill()
                        return "a program's sandbox"
        time.sleep(0.002)
    return None


def kill_all(run, rng=None):
    for process in run.marked():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return "every process"


def grace(number):
    """A scheduler's end: the command gets a signal, and after GRACE_S everything a SIGKILL."""
    def fault(run, rng):
        run.process.send_signal(number)
        with contextlib.suppress(psutil.TimeoutExpired):
            run.process.wait(GRACE_S)
            return "ended in time"
        kill_all(run, rng)
        return "killed after the grace"
    return fault


def damage(how):
    """Everything is killed, and a file of the newest checkpoint is not what it was."""
    def fault(run, rng):
        if len(run.checkpoints()) < 2:
            return None
        kill_all(run, rng)
        run.process.wait()
        newest = run.checkpoints()[0]
        victim = rng.choice([path for path in newest.iterdir() if path.stat().st_size])
        data = bytearray(victim.read_bytes())
        place = rng.randrange(len(data))
        if how == "truncated":
            data = data[:place]
        else:
            data[place] ^= 1 << rng.randrange(8)
        victim.write_bytes(data)
        return f"{newest.name}/{victim.name}, byte {place}"
    return fault


def disk_full(run, rng):
    ballast = run.cwd / "runs" / "ballast"
    with contextlib.suppress(OSError), open(ballast, "wb", 0) as file:
        while True:
            file.write(bytes(4096))
    time.sleep(SHORT_S)
    ballast.unlink()
    return f"for {SHORT_S:g} s"


def read_only(run, rng):
    if not run.folder.exists():
        return None
    subprocess.run(["mount", "--bind", run.folder, run.folder], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", run.folder], check=True)
        time.sleep(SHORT_S)
    finally:
        subprocess.run(["umount", "--lazy", run.folder], check=True)
    return f"for {SHORT_S:g} s"


def clock(run, rng):
    seconds = -rng.choice([1, 60, 3600, 86400])
    (run.cwd / "clock").write_text(str(seconds))
    return f"set back by {-seconds} s"


def network(run, rng):
    """The run is in a network namespace of its own (see `main`), where loopback is all there is."""
    subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
    time.sleep(CUT_S)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    return f"cut for {CUT_S:g} s"


def answers(kind):
    def fault(run, rng):
        if not run.parts().get("server"):
            return None
        (run.cwd / "answers").write_text(f"{kind} {rng.randint(1, 2)}")
        return kind
    return fault


KILL, STOP = signal.SIGKILL, signal.SIGSTOP
ALONE = {
    "SIGKILL, all": kill_all, "SIGKILL, trainer": signal_to("rank", KILL),
    "SIGTERM, 30 s of grace": grace(signal.SIGTERM), "SIGUSR1": grace(signal.SIGUSR1),
    "SIGSTOP, trainer": signal_to("rank", STOP, thaw=True),
    "SIGKILL, verifier": signal_to("verifier", KILL),
    "SIGSTOP, verifier": signal_to("verifier", STOP), "SIGKILL, sandbox": kill_sandbox,
    "checkpoint truncated": damage("truncated"), "checkpoint, a bit flipped": damage("flipped"),
    "clock set back": clock}
ROOTS = {"disk full": disk_full, "folder read-only": read_only}
SERVED = {
    "SIGKILL, launcher": signal_to("launcher", KILL), "SIGKILL, server": signal_to("server", KILL),
    "SIGKILL, server's worker": signal_to("worker", KILL),
    "SIGSTOP, server": signal_to("server", STOP, thaw=True),
    "SIGSTOP, server's worker": signal_to("worker", STOP, thaw=True),
    "SIGSTOP, launcher": signal_to("launcher", STOP, thaw=True),
    **{f"answers: {kind}": answers(kind) for kind in ANSWERS}}


def kinds_here(servers):
    """{name: fault} of what can be done on this machine to such a run."""
    root = os.geteuid() == 0
    if not root:
        print("without root: no full disk, no read-only folder, no cut network")
    return ALONE | (ROOTS if root else {}) | (SERVED if servers else {}) | (
        {"network cut": network} if servers and root else {})


# ---------------------------------------------------------------------------------------------
# 3. Storm


def orphans(run, limit_s=20.0):
    """How many processes of an ended command are still there after so many seconds; they go."""
    deadline = time.monotonic() + limit_s
    while (left := run.marked()) and time.monotonic() < deadline:
        time.sleep(0.05)
    kill_all(run)
    return len(left)


def storm(run, kinds, faults, every, rng, limit_s):
    """Run the command until it is done, with this many faults on the way; each kind comes before
    any comes again. Returns (a row for each fault, seconds, a row for each end of the command).

    Raises RuntimeError: an end that nobody has caused, a traceback, or no new step for limit_s.
    """
    rows, ends, left = [], [], []
    start = moved = time.monotonic()
    best, next_fault = 0, start + rng.expovariate(1 / every)
    run.start()
    while True:
        now, step = time.monotonic(), run.step()
        if step > best:
            best, moved = step, now
            for row in rows:
                if row["lost_s"] is None and step > row["step"]:
                    row["lost_s"] = round(now - start - row["at_s"], 2)
        if now - moved > limit_s:
            raise RuntimeError(f"no new step for {limit_s:g} s after {rows[-1:]}: "
                               f"{run.said()[-2000:]}")
        if run.ended():
            status, said = int(run.process.wait()), run.said().strip()
            ends.append({"at_s": round(now - start, 2), "status": status,
                         "said": said.rpartition("\n")[2][:300]})
            if "Traceback" in said:
                raise RuntimeError(f"a traceback after {rows[-1:]}: {said[-3000:]}")
            ends[-1]["orphans"] = orphans(run)
            if status == 0:
                return rows, time.monotonic() - start, ends
            if status == 2 or not rows:
                raise RuntimeError(f"ended with {status}: {said[-2000:]}")
            run.start()
        if len(rows) < faults and now >= next_fault:
            left = left or rng.sample(sorted(kinds), len(kinds))
            name = left.pop()
            row = {"number": len(rows) + 1, "kind": name, "at_s": round(now - start, 2),
                   "step": max(best, step), "lost_s": None}
            if (what := kinds[name](run, rng)) is not None:
                rows.append(row | {"what": what})
            next_fault = time.monotonic() + rng.expovariate(1 / every)
        time.sleep(0.02)


def of_time(key):
    return key.startswith(("time/", "throughput/", "compute/core_hours"))


def same(run, other):
    """Are the logs of two runs equal to the last digit, fields of time apart? The first that is
    not, or "" """
    for name in LOGS:
        mine, its = (
            [{k: v for k, v in json.loads(line).items() if not of_time(k)}
             for line in (each.folder / name).read_text().splitlines()] for each in (run, other))
        if mine != its:
            return name
    return ""


def curve(run):
    """The pass rates of a run's evaluations, in order, all tasks together."""
    rows = [json.loads(line) for line in (run.folder / "evals.jsonl").read_text().splitlines()]
    return [float(np.mean([row[name] for name in row if "/mean@" in name])) for row in rows]


def trained_once(run):
    """(groups trained, groups trained twice, samples missing in them)."""
    groups = [group for line in (run.folder / "groups.jsonl").read_text().splitlines()
              for group in json.loads(line)["groups"]]
    return (len(groups), len(groups) - len({group["id"] for group in groups}),
            sum(4 - len(group["rewards"]) for group in groups))


def lost(rows):
    """Seconds in which a fault was at work: from each to the first new step, overlaps
    counted once."""
    end = seconds = 0.0
    for row in sorted(rows, key=lambda row: row["at_s"]):
        start, stop = row["at_s"], row["at_s"] + (row["lost_s"] or 0)
        seconds += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return seconds


def table(rows):
    """Lines of Markdown: the kinds of faults and what each has cost, in seconds to a new step."""
    lines = ["| fault | n | median s | longest s |", "|---|--:|--:|--:|"]
    for kind in sorted({row["kind"] for row in rows}):
        lost = [row["lost_s"] for row in rows if row["kind"] == kind and row["lost_s"] is not None]
        lines.append(f"| {kind} | {sum(row['kind'] == kind for row in rows)} | "
                     + (f"{np.median(lost):.1f} | {max(lost):.1f} |" if lost else "- | - |"))
    return lines


# ---------------------------------------------------------------------------------------------
# 4. Soak

MEASURES = ("memory_mb", "descriptors", "threads", "log_mb", "step_s")


def watched(run, limit_s):
    """A run without faults. Returns (seconds, rows of MEASURES beside the step, once a second)."""
    rows, start = [], time.monotonic()
    run.start()
    while not run.ended():
        with contextlib.suppress(psutil.Error):
            processes = [p for some in run.parts().values() for p in some]
            rows.append({
                "step": run.step(), "at_s": time.monotonic() - start,
                "memory_mb": sum(p.memory_info().rss for p in processes) / 2**20,
                "descriptors": sum(p.num_fds() for p in processes),
                "threads": sum(p.num_threads() for p in processes),
                "log_mb": (run.cwd / "log").stat().st_size / 2**20})
        if time.monotonic() - start > limit_s:
            raise RuntimeError(f"not done after {limit_s:g} s: {run.said()[-2000:]}")
        time.sleep(1.0)
    if status := run.process.wait():
        raise RuntimeError(f"ended with {status}: {run.said()[-2000:]}")
    return time.monotonic() - start, rows


def slopes(run, rows):
    """{measure: (at the start, growth in 1,000 steps, half of its 90% interval)} of a soak; its
    first fifth warms up, and while it ends processes go."""
    steps = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["step"] < steps[-1]["step"]]
    columns = {name: [(row["step"], row[name]) for row in rows] for name in MEASURES[:-1]}
    columns["step_s"] = [(step["step"], step["time/step_s"]) for step in steps if step["step"]]
    found = {}
    for name, pairs in columns.items():
        x, y = np.array([pair for pair in pairs if pair[0] > steps[-1]["step"] / 5]).T
        line = stats.linregress(x, y)
        half = stats.t.ppf(0.95, len(x) - 2) * (line.stderr if np.ptp(y) else 0.0)
        found[name] = float(np.median(y[: len(y) // 10 + 1])), 1000 * line.slope, 1000 * half
    return found


# ---------------------------------------------------------------------------------------------


def disk(cwd):
    """A disk of its own for cwd/runs, so that it can be full; ends with this namespace."""
    (cwd / "runs").mkdir(parents=True)
    if os.geteuid() == 0:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", cwd / "runs"],
                       check=True)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--every", type=float, default=30.0, help="mean seconds between two")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--servers", type=int, default=0)
    parser.add_argument("--trainers", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", default=[], help="of faults; without: all")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds without a new step")
    parser.add_argument("--out", type=Path, help="folder for the tables")
    parser.add_argument("--tell", type=Path, metavar="FOLDER")
    args = parser.parse_args(argv)
    if args.tell:
        if not any(args.tell.glob("*.json")):
            parser.error(f"--tell {args.tell}: no results are there")
        print(*kept(args.tell), sep="\n")
        return 0
    # Mounts and a network of our own, which end with this process however it ends.
    if os.geteuid() == 0 and "CHAOS_ALONE" not in os.environ:
        alone = ["unshare", "-m", *(["-n"] if args.servers else []), "--"]
        return subprocess.run([*alone, sys.executable, __file__, *(argv or sys.argv[1:])],
                              env=os.environ | {"CHAOS_ALONE": "1"}).returncode
    if args.servers and os.geteuid() == 0:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    kinds = kinds_here(args.servers)
    if unknown := [kind for kind in args.kinds if kind not in kinds]:
        parser.error(f"--kinds {unknown[0]!r}: here are {', '.join(kinds)}")
    kinds = {name: kinds[name] for name in args.kinds or kinds}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        make_model(folder / "model", programs=True)
        runs = []
        for name in ("calm", "storm"):
            disk(folder / name)
            runs.append(Run(folder / name, folder / "model", args.steps, args.seed,
                            args.servers, args.trainers, programs=True))
        calm, stormed = runs
        try:
            calm_s, seen = watched(calm, limit_s=20 * args.limit)
            result = {"command": f"python bench/chaos.py {shlex.join(argv or sys.argv[1:])}",
                      "steps": args.steps, "calm_s": round(calm_s, 1), "orphans": orphans(calm),
                      "start_s": min(row["at_s"] for row in seen if row["step"]),
                      "save_s": 60 * SAVE_MINUTES,
                      "growth": slopes(calm, seen)}
            print(*told(result), sep="\n", flush=True)
            rows, ends = [], []
            if args.faults:
                rows, storm_s, ends = storm(stormed, kinds, args.faults, args.every,
                                            random.Random(args.seed), args.limit)
                groups, twice, missing = trained_once(stormed)
                asked = sum(json.loads(line).get("servers/resubmitted", 0)
                            for name in ("metrics.jsonl", "evals.jsonl")
                            for line in (stormed.folder / name).read_text().splitlines())
                result |= {
                    "storm_s": round(storm_s, 1), "faults": len(rows),
                    "statuses": dict(Counter(str(end["status"]) for end in ends)),
                    "curves": [curve(calm), curve(stormed)], "lost_s": round(lost(rows), 1),
                    "groups": groups, "twice": twice, "missing": missing, "asked_again": asked,
                    "orphans": result["orphans"] + sum(end["orphans"] for end in ends),
                    "equal": None if args.servers else not same(stormed, calm)}
                if args.kinds == ["SIGKILL, all"]:
                    result["foretold"] = foretold(result)
                print(*table(rows), *told(result), sep="\n")
            if args.out:
                name = ("soak" if not args.faults else "kills" if "foretold" in result else
                        "sandbox" if "SIGKILL, sandbox" in args.kinds else
                        "servers" if args.servers else f"process_{args.every:g}s")
                write(args.out, name, result, rows, ends)
        finally:
            for run in runs:
                orphans(run, 0)
                subprocess.run(["umount", "--lazy", run.cwd / "runs"], stderr=subprocess.DEVNULL)
    return int(any(result.get(name) for name in ("orphans", "twice", "missing"))
               or result.get("equal") is False)


def foretold(result):
    """The effective time by Daly's formula (simulate.py) for kills at this rate: a restart takes as
    long as the start of the run without faults, whose time holds its checkpoints already."""
    return simulate.expected(simulate.Faults(
        device_hours=result["storm_s"] / result["faults"] / 3600, checkpoint_s=0.0,
        restart_s=result["start_s"], save_s=60 * SAVE_MINUTES), devices=1)


def told(result):
    """Sentences about a `result`."""
    yield (f"without faults {result['steps']} steps took {result['calm_s']:.0f} s; from the "
           "first fifth on, in 1,000 steps:")
    for name, (at, slope, half) in result["growth"].items():
        yield f"  {name:12} {at:10.3f} {slope:+9.4f} +- {half:.4f}"
    if "faults" in result:
        yield (f"with {result['faults']} faults, one every "
               f"{result['storm_s'] / max(1, result['faults']):.0f} s, {result['storm_s']:.0f} s: "
               f"effective time {result['calm_s'] / result['storm_s']:.2f}; the command ended with "
               + ", ".join(f"{status} ({n} times)" for status, n in result["statuses"].items()))
        yield (f"{result['groups']} groups trained, {result['twice']} of them twice, "
               f"{result['missing']} of their samples missing, {result['asked_again']} samples "
               "asked again")
    if "lost_s" in result:
        yield (f"{result['lost_s']:.0f} s from a fault to the next new step, overlaps counted "
               f"once: {1 - result['lost_s'] / result['storm_s']:.2f} of the time was free of "
               "faults")
    if "curves" in result:
        calm, stormed = (np.array_split(rates, min(4, len(rates))) for rates in result["curves"])
        yield ("pass rate, means of quarters: without faults "
               + " ".join(f"{part.mean():.3f}" for part in calm) + ", with them "
               + " ".join(f"{part.mean():.3f}" for part in stormed))
    yield f"left behind: {result['orphans']} processes"
    if "foretold" in result:
        yield (f"a start takes {result['start_s']:.1f} s, a checkpoint comes each "
               f"{result['save_s']:g} s: Daly's formula gives {result['foretold']:.2f}")
    if result.get("equal") is not None:
        yield "every digit as without faults: " + ("yes" if result["equal"] else "NO")


def kept(folder):
    """The same lines of the results in a folder: results/chaos/README.md has them."""
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        yield f"`{result['command']}`:"
        faults = path.with_name(f"{path.stem}_faults.csv")
        if faults.exists():
            with open(faults, newline="") as file:
                yield from table([row | {"lost_s": float(row["lost_s"]) if row["lost_s"] else None}
                                  for row in csv.DictReader(file)])
        yield from told(result)


def write(folder, name, result, rows, ends):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    for what, some in (("faults", rows), ("ends", ends)):
        if some:
            with open(folder / f"{name}_{what}.csv", "w", newline="") as file:
                writer = csv.DictWriter(file, some[0].keys(), lineterminator="\n")
                writer.writeheader()
                writer.writerows(some)


if __name__ == "__main__":
    sys.exit(main())
