"""run_folder.py: runs/NAME, what a run is and what happened in it; its files: docs/metrics.md."""
import contextlib
import dataclasses
import fcntl
import filecmp
import itertools
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from importlib.metadata import distributions
from pathlib import Path

import torch
from tqdm import tqdm

from artifacts import checkpoint
from artifacts.resume import Stopped, load_state, problems_hash, state_of
from artifacts.settings import LAUNCHED, to_toml
from config import ConfigError

CODE = Path(__file__).parent.parent
LOOKS = 150         # at a disk, at most, 0.2 s apart; a scheduler's SIGTERM waits with them
KEPT = 2            # checkpoints: the last, and one before it should that be damaged
EVALUATION = "evaluation.jsonl"             # the answers of the last one: `KeptAnswers`
LOGS = ("metrics.jsonl", "evals.jsonl", "groups.jsonl", "samples.jsonl")


class RunFolder:
    """runs/NAME of this config. Before `make` it holds kept gold answers and a launcher's logs."""

    def __init__(self, config, fresh=False):
        self.config, self.path, self.fresh = config, Path("runs") / config.name, fresh
        self.checkpoints = self.path / "checkpoints"
        self.locked, self.patient = None, True      # with the disk
        self.saved = None           # `progress` at the last checkpoint
        self.saved_at, self.training_s = time.monotonic(), 0.0

    @property
    def begun(self):                # the logs of a launcher are no run
        return (self.path / "config.toml").exists()

    def done(self):
        path = self.path / "done"
        steps, _, sentence = (path.read_text() if path.exists() else "").partition(" ")
        retired = "every prompt has retired" in sentence
        if not steps or int(steps) < self.config.steps and not retired:
            return ""
        more = "" if retired else f"The same command with --steps N, N above {steps}, trains on; "
        return f"{self.path} is finished. {sentence} {more}--fresh starts over."

    def set_aside(self):
        """The run that is there becomes runs/NAME-old-N. Raises ConfigError: it is in use."""
        self.lock()
        old = next(old for n in itertools.count(1)
                   if not (old := Path(f"{self.path}-old-{n}")).exists())
        self.path.rename(old)
        for addresses in old.glob("servers_*.txt"):     # of servers that may run
            self.path.mkdir(exist_ok=True)
            addresses.rename(self.path / addresses.name)
        self.close()
        print(f"{self.path} starts over; what it was is now {old}.", flush=True)

    def make(self, device):
        """The folder of a new run; device: the trainer's. It is a run once config.toml is there."""
        if self.log_sizes() and not self.begun:
            raise ConfigError(f"{self.path} has logs and no config.toml: choose another --name")
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        if self.locked is None or self.locked.closed:
            self.lock()
        shutil.rmtree(self.path / "source", ignore_errors=True)     # of a start that failed
        self.keep_source()
        (self.path / "versions.json").write_text(json.dumps({
            "python": platform.python_version(), "machine": platform.platform(),
            "device": torch.cuda.get_device_name() if device == "cuda"
            else f"CPU, {torch.get_num_threads()} threads", "git": commit(),
            # Of two of a name on the path Python imports the first, which is written last.
            **{each.name: each.version for each in reversed([*distributions()])}}, indent=1))
        self.write_config()

    def keep_source(self):
        """Copy the code and the files of own tasks; say where a copy of before is another one."""
        parts = f"{self.config.task}+{self.config.eval_tasks}".split("+")
        own = [Path(part.strip()).resolve() for part in parts if part.strip().endswith(".py")]
        code = (CODE.glob(name) for name in ("[!.]*.py", "[a-z]*/[!.]*.py", "[ft]*/[!.]*.t*"))
        for path in {*own, *itertools.chain.from_iterable(code)}:
            # Of an own task the whole path: two of them may have one name.
            name = Path("own", *path.parts[1:]) if path in own else path.relative_to(CODE)
            kept = self.path / "source" / name
            if not kept.exists():
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, kept)
            elif not (filecmp.cmp(path, kept) or path.parent.name in ("tests", "bench", "course")):
                shutil.copy(path, f"{kept}.changed")    # a trace, also if it is changed back
                print(f"warning: {path} has changed since this run began, and counts from here on; "
                      f"what it was: {kept}", file=sys.stderr)

    def lock(self):
        """Two processes in one folder would mix their logs."""
        self.locked = open(self.path / ".lock", "w")
        try:
            fcntl.flock(self.locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{self.path}: another process is training it") from None
        except OSError as error:                # Lustre and some NFS
            print(f"warning: {self.path}: no locks here ({error.strerror}), and two runs in it "
                  "would mix their logs", file=sys.stderr)

    def write_config(self):
        config = self.config
        if config.vllm_url == os.environ.get(LAUNCHED):     # the launcher's end with this run
            config = dataclasses.replace(config, vllm_url="")
        aside = self.path / ".config.toml.tmp"          # a kill leaves the old file or the new one
        aside.write_text(to_toml(config), encoding="utf-8")
        aside.replace(self.path / "config.toml")

    def wait_for_disk(self, needed=4096):
        """Until the disk takes so many bytes: one that is full or read-only for a moment ends no
        run. After 30 s, once in a run, return all the same: then the write says what is wrong."""
        for look in range(LOOKS if self.patient else 0):
            if os.access(self.path, os.W_OK) and shutil.disk_usage(self.path).free >= needed:
                return
            if look == 0:
                wanted = f"a disk that can be written, {needed / 1e6:.3g} MB" if \
                    self.path.exists() else "the folder to come back: was it moved or deleted?"
                print(f"{self.path}: waiting for {wanted}", file=sys.stderr, flush=True)
            time.sleep(0.2)
        self.patient = False

    def append(self, name, *lines):
        """Lines of JSON at the end of a log."""
        text = "".join(json.dumps(line) + "\n" for line in lines)
        self.wait_for_disk(len(text))
        with open(self.path / name, "a") as file:
            file.write(text)

    def log_sizes(self):
        """{log: its bytes}: a checkpoint has those of its moment."""
        return {p.name: p.stat().st_size for p in map(self.path.joinpath, LOGS) if p.exists()}

    def close(self):
        if self.locked:
            self.locked.close()

    @contextlib.contextmanager
    def bad_step(self, run, groups, rewards, rollouts):
        """Around a training step on `rollouts`, what is left of `groups` with `rewards` (P, G): a
        number that is not finite ends the run; one stopped half-way gives the pacer its groups."""
        try:
            yield
        except Stopped:                 # as if the rewards of these groups were not known
            for group, row in zip(groups, rewards):
                run.pacer.groups[group.group_id] = group
                # A truncated or wrong sample earns -1, a right one 0 at least.
                run.curriculum.record(group.prompt_id, -int((row > -1).sum()), -len(row))
            run.pacer.collecting = False            # of a round of PPO: it was complete
            raise
        except (FloatingPointError, ValueError) as error:
            path = self.path / "bad_step.jsonl"
            path.write_text("".join(json.dumps(dataclasses.asdict(r)) + "\n" for r in rollouts))
            raise RuntimeError(f"{error}; the samples of step {run.step + 1} are in {path}"
                               ) from None

    def rewind(self, problems=""):
        """Back to the newest whole checkpoint: what was logged after it is cut off, damaged ones
        are renamed. Returns (its folder, its state), (None, None) where there is none yet. Refuses,
        uncut, a run of other `problems` (their hash)."""
        self.wait_for_disk()
        self.lock()
        for parent in (self.path, self.checkpoints):
            checkpoint.recover(parent)
        shutil.rmtree(self.checkpoints / "preflight", ignore_errors=True)   # of one that was killed
        folder, state, damaged = None, None, {}
        for folder in checkpoint.saved(self.checkpoints):
            try:
                state = checkpoint.read_state(folder)
                break
            except ConfigError as error:
                damaged[folder] = error
        lost = not self.checkpoints.exists() or (self.path / "done").exists()
        if state is None and (damaged or lost or any(   # a second evaluation follows a checkpoint
                log.read_bytes().count(b"\n") > 1 for log in self.path.glob("evals.jsonl"))):
            why = next(iter(damaged.values()), f"{self.checkpoints} is empty or gone")
            raise ConfigError(f"{why}, and {self.path} has no other checkpoint; --fresh starts "
                              "over")
        for path, error in damaged.items():
            aside = path.with_name(f"damaged_{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
            print(f"warning: {error}; it is now {aside}", file=sys.stderr)
            (self.path / EVALUATION).unlink(missing_ok=True)    # of weights that are lost
        if state and state["step"] > self.config.steps:
            raise ConfigError(f"steps = {self.config.steps}: {self.path} is at step "
                              f"{state['step']} already; give a larger number")
        if state and not problems.startswith(state.get("problems", "")):
            raise ConfigError(f"task = {self.config.task!r}: problems, answers or prompts of "
                              f"{self.path} have changed; bring them back, or take another --name")
        for name in sorted((state["logs"] if state else {}).keys() - self.log_sizes().keys()):
            print(f"warning: {self.path / name} is gone; it begins again", file=sys.stderr)
        for name in self.log_sizes():
            path, size = self.path / name, state["logs"].get(name, 0) if state else 0
            with open(path, "rb+") as file:
                if size and os.pread(file.fileno(), 1, size - 1) != b"\n":  # a power cut, an editor
                    size = file.read(size).rfind(b"\n") + 1
                    print(f"warning: {path} has lost its last lines", file=sys.stderr)
                file.truncate(size)
        return folder, state

    def restore(self, run):
        """Bring a new `scalerl.Run` to the newest whole checkpoint. Returns a sentence about it."""
        folder, state = self.rewind(problems_hash(run))
        if folder is None:
            self.make(run.trainer.device)
            return f"{self.path} has no checkpoint yet: starting from the first step."
        self.keep_source()
        run.trainer.load(folder)
        load_state(run, state)
        self.saved = progress(run)
        self.write_config()             # last: after a resume that fails it has its old settings
        (self.path / "done").unlink(missing_ok=True)
        how = "go on where they were, 0 restarted" if self.config.engine == "transformers" else \
            "start again: vLLM's cache cannot be saved"
        return (f"Resumed {folder}: {len(run.pacer.groups)} groups outstanding, "
                f"{run.sampler.in_flight} unfinished samples {how}.")

    def newest(self):
        return next(iter(checkpoint.saved(self.checkpoints)), None)

    def save(self, run, minutes=0):
        """Write a checkpoint, if anything is new and the last one is (or soon is) `minutes` old."""
        young = 60 * minutes - min(self.training_s, 30 * minutes)   # no one asks while it trains
        if self.saved == progress(run) or time.monotonic() - self.saved_at < young:
            return
        last = self.newest()            # the next one is hardly larger, if that has Adam's moments
        self.wait_for_disk(1.1 * sum(path.stat().st_size for path in last.iterdir()) if last else 0)
        with run.team.saving():
            run.trainer.save(self.checkpoints / f"step_{run.step}",
                             state=state_of(run) | {"logs": self.log_sizes()})
        self.saved, self.saved_at = progress(run), time.monotonic()
        for old in checkpoint.saved(self.checkpoints)[KEPT:]:
            shutil.rmtree(old, ignore_errors=True)      # the next save tries it again

    def save_model(self, trainer, name):
        """Write an ordinary Hugging Face folder, which `vllm serve` can load."""
        self.wait_for_disk(4.4 * sum(p.numel() for p in trainer.model.parameters()))    # fp32
        checkpoint.save_model(trainer.model, trainer.tokenizer, trainer.weights(), self.path / name)

    def resume_hint(self):
        how = ", without --fresh," * self.fresh
        return f"the same command{how} goes on from {self.newest() or 'the first step'}"


def progress(run):
    """What has changed if a checkpoint is worth its time. clock: of samples that have not ended."""
    clock = getattr(run.sampler, "decoded", {}).get("clock")
    return run.step, run.evaluated, run.pacer.admitted, run.generated, clock


def commit():
    """The commit of this code, with "-dirty" if it was changed since; "" if git cannot say."""
    words = ["git", f"--git-dir={CODE / '.git'}", "describe", "--always", "--dirty", "--abbrev=40",
             "--exclude=*"]                         # .git: git would look further up as well
    with contextlib.suppress(OSError):
        return subprocess.run(words, cwd=CODE, text=True, capture_output=True).stdout.strip()
    return ""


class Progress(tqdm):
    """A bar if stderr is a terminal. If stdout or stderr is a file, a line on stdout for the first,
    every tenth and the last step; in a file an evaluation's bar every ten minutes."""

    def __init__(self, total, first=0, unit="step"):
        terminal, steps = sys.stderr.isatty(), unit == "step"
        super().__init__(total=total, initial=first, unit=unit, leave=steps, dynamic_ncols=True,
                         disable=steps and not terminal, delay=0 if terminal else 600,
                         mininterval=0.1 if terminal else 600)

    def show(self, r):
        text = (f"pass {r['pass_rate']:.3f}  len {r['completions/mean_length']:.1f}  "
                f"interrupted {r['completions/interrupted_frac']:.2f}  "
                f"lag {r['lag/mean']:.1f}/{r['lag/max']}  "
                + (f"ratio {r['ratio/mean']:.3f}  ess {r['ess']:.2f}  ent {r['entropy']:.2f}"
                   if r["optimizer_step"] else "no group to learn from: no optimizer step")
                + f"  left {r['curriculum/active']}")
        told = r["step"] in (1, self.total) or r["step"] % 10 == 0
        if told and (self.disable or not sys.stdout.isatty()):
            print(f"step {r['step']:>4}/{self.total}  {text}  {r['time/step_s']:.2f}s", flush=True)
        if not self.disable:
            self.set_postfix_str(text, refresh=False)
            self.update(1)
