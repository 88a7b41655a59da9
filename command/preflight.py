"""preflight.py: what a run will need, tried in its first minutes, before an evaluation of hours.

One line each, with seconds and bytes: the disk, a checkpoint, the longest rows through a training
step of learning rate 0, a push of the weights. The checkpoint is written first and read last, so
that nothing is left of the step: a run with and one without a preflight write the same numbers.
What fails ends the run with the setting to change. Ours.
"""

import contextlib
import shutil
import time

import torch

from artifacts.run_folder import KEPT
from engines import load
from sampler import Rollout

GB = 1e9
ADAM, PLAIN = 12, 4             # bytes of a parameter in a checkpoint, and in an ordinary folder


def preflight(run):
    """Try `run`, a new scalerl.Run, and print a line for each part. Raises RuntimeError, naming
    the part and what to change, for whatever fails."""
    size = sum(p.numel() for p in run.trainer.model.parameters())
    folder, trainer = run.folder.checkpoints / "preflight", run.trainer
    with part("disk", "put runs/ on a larger disk: a link will do") as told:
        needed = size * ((KEPT + 1) * ADAM + 2 * PLAIN)
        free = shutil.disk_usage(run.folder.path).free
        told.append(f"{KEPT} checkpoints of {size * ADAM / GB:.3g} GB, one being written, best and "
                    f"model: {needed / GB:.3g} GB, {free / GB:.3g} GB free")
        if free < needed:
            raise OSError(told[0])
    try:
        with part("checkpoint", "all trainers must be able to write to runs/") as told:
            trainer.save(folder, tensors={}, plain={})
            told.append(f"{size * PLAIN / GB:.3g} GB written, without Adam's moments")
        with part("longest rows", "set recompute_layers = true, or lower micro_batch_tokens or "
                  "think_max") as told, run.team.during("train", 0):
            rollouts, rewards = longest_rows(run)
            trainer.update(rollouts, rewards, -1)       # version -1: the warm-up is at rate 0
            told.append(f"{len(rollouts)} samples of {longest(run)} tokens, forward, backward and "
                        f"AdamW{peak(trainer.device)}")
        with part("read back", "all trainers must be able to read runs/") as told:
            trainer.load(folder)
            told.append("the checkpoint, by every trainer")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    with part("push", "look at the servers' logs") as told:
        run.push_weights()
        pool = getattr(run.sampler, "pool", None)
        servers = pool.servers if pool else []
        told.append(f"{size * trainer.dtype.itemsize / GB:.3g} GB to "
                    + (f"{len(servers)} servers" if pool else "the sampler in this process"))
        if lost := [f"{s.url}: {s.why}" for s in servers if s.state != "ready"]:
            raise OSError("; ".join(lost))


@contextlib.contextmanager
def part(name, cure):
    """Around a part, which fills a list with what was done; then its line is printed."""
    start, told = time.perf_counter(), []
    try:
        yield told
    except (RuntimeError, OSError, FloatingPointError) as error:        # OutOfMemoryError is one
        reason = str(error).partition("\n")[0]
        raise RuntimeError(f"preflight, {name}: {reason}; {cure}; --no-preflight begins without "
                           "it") from error
    print(f"Preflight: {name:13}{time.perf_counter() - start:8.1f} s  {told[0]}", flush=True)


def longest(run):
    """Tokens of the longest sample of this run, prompt included."""
    output, _ = load.longest_tokens(run.config, run.trainer.tokenizer, run.trainer.model,
                                    run.problems.prompt_tokens)
    return run.problems.prompt_tokens + output


def longest_rows(run):
    """(rollouts, rewards (P, G)): groups of the longest samples that are possible, enough to fill
    a micro-batch of every trainer, but no more than a step has."""
    config, length, prompt = run.config, longest(run), run.problems.prompt_tokens
    G, output = config.samples_per_prompt, length - prompt
    samples = run.team.size * -(-config.micro_batch_tokens // length)
    P = min(config.prompts_per_step, -(-samples // G))
    rollouts = [Rollout("", p, (1,) * prompt, [1] * output, [-1.0] * output, [-1] * output,
                        [True] * output, "stop", False) for p in range(P) for _ in range(G)]
    return rollouts, torch.tensor([1.0, -1.0]).repeat(P, G)[:, :G]


def peak(device):
    if device != "cuda":
        return ""
    return (f"; {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB of this GPU at most, "
            f"{torch.cuda.mem_get_info()[0] / 2**30:.1f} GiB are free")
