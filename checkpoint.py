"""checkpoint.py: what a run writes so that nothing is lost, and how it is read back.

    checkpoints/step_N/
        model[.RANK-of-RANKS].safetensors       {name: rows of the parameter}
        optimizer[.RANK-of-RANKS].safetensors   {name.exp_avg, name.exp_avg_sq: rows; name.step}
        sampler.safetensors, random.safetensors, state.json      rank 0's: the story so far
        checksums.json                                           SHA-256 of every file
    checkpoints/best/, model/                   an ordinary Hugging Face folder and checksums.json

Every rank writes its own rows, so the whole is nowhere in memory; any number of ranks reads them
back, because rows are simply counted through the files. A checkpoint is written aside, flushed,
and renamed when all ranks are done: a process killed at any moment leaves the one before whole
(`recover` puts it back where it was).

No pickle anywhere: torch's distributed checkpoints and accelerate's `save_state` keep their
metadata, or all of it, in pickles, and a checkpoint is a file that people send to each other.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor

MOMENTS = ("exp_avg", "exp_avg_sq")                             # of AdamW, shaped as the parameter
CHECKSUMS = "checksums.json"


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(path):
    """To the disk itself: a renamed file whose blocks are still in memory may come back empty."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


# ---------------------------------------------------------------------------------------------
# 1. Rows


def my_rows(tensor, ranks):
    """The rows of `tensor` that this rank keeps: its shard, or its share of what all have."""
    if isinstance(tensor, DTensor):
        return tensor.to_local()
    if not tensor.ndim:
        return tensor if ranks.rank == 0 else tensor.new_empty(0)
    rows = -(-len(tensor) // ranks.size)                        # as FSDP2 cuts: rounded up
    return tensor[ranks.rank * rows: (ranks.rank + 1) * rows]


def training_state(model, optimizer, ranks):
    """{"model": {name: rows}, "optimizer": {name.moment: rows, name.step: ()}} of this rank."""
    state = {"model": {}, "optimizer": {}}
    for name, parameter in model.named_parameters():
        state["model"][name] = my_rows(parameter.detach(), ranks)
        if moments := optimizer.state.get(parameter):
            for moment in MOMENTS:
                state["optimizer"][f"{name}.{moment}"] = my_rows(moments[moment], ranks)
            if ranks.rank == 0:
                state["optimizer"][f"{name}.step"] = moments["step"]
    return state


class _Rows:
    """The tensors of one kind of file, however many ranks wrote them."""

    def __init__(self, folder, kind):
        paths = sorted(folder.glob(f"{kind}*.safetensors"))
        if not paths:
            raise FileNotFoundError(f"{folder} is not there: all ranks need to see the same files")
        self.files = [safe_open(path, "pt") for path in paths]
        self.names = set().union(*(file.keys() for file in self.files))

    def read_into(self, name, tensor):
        """Fill `tensor`, whole or a shard of the rows, with the rows that belong there."""
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if not tensor.ndim:
            local.copy_(self.files[0].get_tensor(name))
            return
        first = 0
        if isinstance(tensor, DTensor):
            mesh = tensor.device_mesh
            first = mesh.get_local_rank() * -(-len(tensor) // mesh.size())
        at, filled = 0, 0               # row of the whole where the file's begin; rows read
        for file in self.files:
            rows = file.get_slice(name)
            count = rows.get_shape()[0]
            start, stop = max(first - at, 0), min(first + len(local) - at, count)
            if start < stop:
                local[filled: filled + stop - start] = rows[start:stop].to(local.device)
                filled += stop - start
            at += count
        if at != len(tensor) or filled != len(local):
            raise ValueError(f"{name} has {at} rows in the checkpoint, {len(tensor)} in the model")


@torch.no_grad()
def load_training_state(folder, model, optimizer):
    """Parameters and Adam's moments from a checkpoint of any number of ranks, one at a time."""
    weights, moments = _Rows(folder, "model"), _Rows(folder, "optimizer")
    for name, parameter in model.named_parameters():
        weights.read_into(name, parameter)
        if f"{name}.step" not in moments.names:                 # no step has been taken yet
            continue
        state = optimizer.state[parameter] = {
            # Adam's fused kernel counts its steps on the device, the plain one on the CPU.
            "step": torch.zeros((), device=parameter.device if optimizer.defaults["fused"]
                                else "cpu"),
            **{moment: torch.zeros_like(parameter) for moment in MOMENTS}}
        for key, tensor in state.items():
            moments.read_into(f"{name}.{key}", tensor)


# ---------------------------------------------------------------------------------------------
# 2. All or nothing


def save(folder, state, ranks, tensors=None, plain=None):
    """Write a checkpoint to `folder`, all ranks together; a file for each group of tensors.

    state     `training_state`, on every rank
    tensors   {file: {name: tensor}} and `plain` (JSON): rank 0's

    Raises OSError, on every rank, if a rank cannot write; RuntimeError if one is gone. The
    checkpoints before are untouched, and nothing half-written stays.
    """
    aside = folder.with_name(f".{folder.name}.tmp")
    part = f".{ranks.rank:05}-of-{ranks.size:05}" if ranks.size > 1 else ""
    files = {f"{name}{part}.safetensors": group for name, group in state.items()}
    files |= {f"{name}.safetensors": group for name, group in (tensors or {}).items()}
    if ranks.rank == 0:
        shutil.rmtree(aside, ignore_errors=True)
    try:
        failed = _write(folder, aside, files, ranks, plain)
    finally:
        if ranks.rank == 0:
            shutil.rmtree(aside, ignore_errors=True)    # once renamed, it is not there any more
    if failed:
        raise OSError(f"checkpoint {folder} could not be written ({'; '.join(failed)})")


def _write(folder, aside, files, ranks, plain):
    """`save`, all ranks together, without the cleaning up. Returns what went wrong, by rank."""
    ranks.gather(None)                                  # nobody writes into what is being removed
    written, error = {}, ""
    try:
        aside.mkdir(parents=True, exist_ok=True)
        for name, group in files.items():
            save_file({key: value.contiguous() for key, value in group.items()}, aside / name)
            flush(aside / name)
            written[name] = sha256(aside / name)
        if plain is not None:
            (aside / "state.json").write_text(json.dumps(plain))
            flush(aside / "state.json")
            written["state.json"] = sha256(aside / "state.json")
    except (OSError, SafetensorError) as failure:
        error = str(failure)
    parts = ranks.gather({"written": written, "error": error})
    if ranks.rank == 0 and not any(part["error"] for part in parts):
        sums = {name: value for part in parts for name, value in part["written"].items()}
        try:
            for name in sums:
                if not (aside / name).exists():
                    raise OSError(f"{name} of another rank is not to be seen here: checkpoints "
                                  "need a file system that all ranks share")
            write_checksums(aside, sums)
            replace(aside, folder)
        except OSError as failure:
            parts[0]["error"] = str(failure)
    return [f"rank {rank}: {part['error']}" for rank, part in enumerate(parts) if part["error"]]


def replace(aside, folder):
    """Give `aside` the name `folder`. A process killed between the two renames leaves the folder
    before as .NAME.old, where `recover` finds it."""
    old = folder.with_name(f".{folder.name}.old")
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    aside.rename(folder)
    flush(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover(parent):
    """After a kill: what `replace` had moved away gets its name back, unless it was replaced, and
    what was half-written goes."""
    for aside in filter(Path.is_dir, parent.glob(".*.tmp")):
        shutil.rmtree(aside)
    for old in parent.glob(".*.old"):
        folder = old.with_name(old.name[1:].removesuffix(".old"))
        if folder.exists():
            shutil.rmtree(old)
        else:
            old.rename(folder)


def write_checksums(folder, sums):
    (folder / CHECKSUMS).write_text(json.dumps(sums))
    flush(folder / CHECKSUMS)
    flush(folder)


def check(folder):
    """Raises ValueError, naming the file, unless every file is as it was written."""
    try:
        sums = json.loads((folder / CHECKSUMS).read_text())
        wrong = [name for name, expected in sums.items() if sha256(folder / name) != expected]
    except (OSError, ValueError, AttributeError) as error:      # no file, no text, no dictionary
        raise ValueError(f"{folder} cannot be read ({error})") from None
    if wrong:
        raise ValueError(f"{folder / wrong[0]} does not match its checksum")


def read_state(folder):
    """The plain part of a checkpoint. Raises ValueError, naming the file, if it is damaged."""
    check(folder)
    return json.loads((folder / "state.json").read_text())


def load_tensors(folder, name):
    """One of rank 0's groups of tensors."""
    return load_file(folder / f"{name}.safetensors")


def set_aside(folder):
    """Rename a damaged checkpoint: it is not one of `saved` any more. Returns its new path."""
    aside = folder.with_name(f"{folder.name}.damaged")
    shutil.rmtree(aside, ignore_errors=True)
    return folder.rename(aside)


def saved(folder):
    """Checkpoint folders below `folder`, newest first."""
    return sorted(folder.glob("step_*[0-9]"), key=lambda path: -int(path.name.split("_")[1]))


def save_model(model, tokenizer, named_tensors, folder):
    """Weights and tokenizer as an ordinary Hugging Face folder with checksums, written aside, then
    renamed.

    named_tensors   full tensors under their Hugging Face names; model gives the configuration
    """
    aside = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    state = {name: tensor.to("cpu") for name, tensor in named_tensors}
    try:
        model.save_pretrained(aside, state_dict=state)
        tokenizer.save_pretrained(aside)
        files = [path for path in aside.rglob("*") if path.is_file()]
        for path in files:
            flush(path)
        write_checksums(aside, {str(path.relative_to(aside)): sha256(path) for path in files})
        replace(aside, folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise OSError(f"{folder} could not be written: {error}") from None


def cut_log(path, step):
    """Drop the lines after `step`, and a last line that a killed process left half-written."""
    path = Path(path)
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            if json.loads(line)["step"] > step:
                break
        except (json.JSONDecodeError, KeyError, TypeError):
            break
        kept.append(line + "\n")
    aside = path.with_suffix(".tmp")
    aside.write_text("".join(kept))
    aside.replace(path)
