"""preflight.py: what a run will need, tried in its first minutes, before an evaluation of hours.

A line each, with seconds and bytes; what fails ends the run with what to change. The checkpoint is
written before the step of rate 0 and read after it, so that nothing of it is left. Ours."""
import contextlib
import shutil
import time

import torch

from artifacts.run_folder import KEPT
from engines import load
from sampler import Rollout
from scaleout.memory import ACTIVATIONS, CURES

ADAM, PLAIN = 12e-9, 4e-9       # GB of a parameter in a checkpoint, and in an ordinary folder


def preflight(run):
    """Try `run`, a new scalerl.Run. Raises RuntimeError, naming the part and what to change."""
    trainer, folder = run.trainer, run.folder.checkpoints / "preflight"
    size = sum(p.numel() for p in trainer.model.parameters())
    with part("disk", "put runs/ on a larger disk: a link will do") as told:
        needed = size * ((KEPT + 1) * ADAM + 2 * PLAIN)
        free = shutil.disk_usage(run.folder.path).free / 1e9
        told.append(f"{KEPT} checkpoints of {size * ADAM:.3g} GB, one being written, best and "
                    f"model: {needed:.3g} GB, {free:.3g} GB free")
        if free < needed:
            raise OSError(told[0])
    try:
        with part("checkpoint", "all trainers must be able to write to runs/") as told:
            trainer.save(folder)
            told.append(f"{size * PLAIN:.3g} GB written, without Adam's moments")
        with part("longest rows", CURES[ACTIVATIONS]) as told:
            rollouts, rewards = longest_rows(run)
            trainer.update(rollouts, rewards, -1)       # version -1: the warm-up is at rate 0
            r = rollouts[0]
            told.append(f"{len(rollouts)} samples of {len(r.prompt_ids) + len(r.output_ids)} "
                        "tokens, forward, backward and AdamW")
            if trainer.device == "cuda":
                told[0] += f"; {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most"
        with part("read back", "all trainers must be able to read runs/") as told:
            trainer.load(folder)
            told.append(f"{size * PLAIN:.3g} GB, by every trainer")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    with part("push", "look at the servers' logs") as told:
        run.push_weights()
        servers = run.sampler.pool.servers if hasattr(run.sampler, "pool") else []
        told.append(f"{size * trainer.dtype.itemsize / 1e9:.3g} GB to "
                    + (f"{len(servers)} servers" if servers else "the sampler in this process"))
        if lost := [f"{s.url}: {s.why}" for s in servers if s.state != "ready"]:
            raise OSError("; ".join(lost))


@contextlib.contextmanager
def part(name, cure):
    """Around a part, which says in a list what was done; then its line is printed."""
    start, told = time.perf_counter(), []
    try:
        yield told
    except (RuntimeError, OSError, FloatingPointError) as error:        # OutOfMemoryError is one
        cure = "" if isinstance(error, NotImplementedError) else f"{cure}; "    # code is missing
        raise RuntimeError(f"preflight, {name}: {str(error).splitlines()[0]}; {cure}"
                           "--no-preflight begins without it") from error
    print(f"Preflight: {name:13}{time.perf_counter() - start:8.1f} s  {told[0]}", flush=True)


def longest_rows(run):
    """(rollouts, rewards (P, G)): the longest samples, a micro-batch of every trainer full."""
    config, prompt, G = run.config, run.problems.prompt_tokens, run.config.samples_per_prompt
    output, _ = load.longest_tokens(config, run.trainer.tokenizer, run.trainer.model, prompt)
    samples = run.team.size * -(-config.micro_batch_tokens // (prompt + output))
    P = min(config.prompts_per_step, -(-samples // G))
    rollouts = [Rollout("", p, (1,) * prompt, [1] * output, [-1.0] * output, [-1] * output,
                        [True] * output, "stop", False) for p in range(P) for _ in range(G)]
    return rollouts, torch.tensor([1.0, -1.0]).repeat(P, G)[:, :G]
