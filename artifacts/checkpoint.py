"""checkpoint.py: what a run writes so that nothing is lost, and how it is read back.

    checkpoints/step_N/
        model[.RANK-of-SIZE].safetensors        {name: rows of the parameter}
        optimizer[.RANK-of-SIZE].safetensors    {name.exp_avg, name.exp_avg_sq, name.step: rows}
        sampler.safetensors, random.safetensors, state.json      rank 0's: the rest of the run
        checksums.json                                           {file: SHA-256}
    checkpoints/best/, model/                   an ordinary Hugging Face folder and checksums.json

Every rank writes its own rows, and any number of ranks reads them back: rows are counted through
the files. A folder is written under another name and renamed when it is whole: a kill leaves the
checkpoint before. (A power cut may leave files empty: their checksums tell, and a run keeps two
checkpoints.) No pickle, which torch's own have: reading one runs the code in it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor

STATE = ("exp_avg", "exp_avg_sq", "step")       # of AdamW, for each parameter
CHECKSUMS = "checksums.json"

# -- 1. Rows: the part of a tensor that a rank writes and reads


def with_rows(tensor):
    """A number (AdamW's step) as a view with one row, every other tensor as it is."""
    return tensor if tensor.ndim else tensor[None]


def my_rows(tensor, team):
    """The rows that this rank writes, cut as FSDP2 cuts: into equal parts, rounded up."""
    if isinstance(tensor, DTensor):
        return tensor.to_local()
    count = -(-len(with_rows(tensor)) // team.size)
    return with_rows(tensor)[team.rank * count: (team.rank + 1) * count]


def training_state(model, optimizer, team):
    """{"model": {name: rows}, "optimizer": {name.key: rows}} of this rank, for `save`."""
    state = {"model": {}, "optimizer": {}}
    for name, parameter in model.named_parameters():
        state["model"][name] = my_rows(parameter.detach(), team)
        for key in STATE if parameter in optimizer.state else ():       # after its first step
            state["optimizer"][f"{name}.{key}"] = my_rows(optimizer.state[parameter][key], team)
    return state


def read_into(tensor, files, name):
    """Fill `tensor`, whole or this rank's shard, with its rows of what is stored as `name`."""
    first, mine = 0, with_rows(tensor)
    total = len(mine)
    if isinstance(tensor, DTensor):
        first = tensor.device_mesh.get_local_rank() * -(-total // tensor.device_mesh.size())
        mine = tensor.to_local()
    before = 0                                      # rows in the files before this one
    for file in files:
        rows = file.get_slice(name)
        count = rows.get_shape()[0]
        start, stop = (min(max(row - before, 0), count) for row in (first, first + len(mine)))
        at = before + start - first                 # the place of row `start` in `mine`
        mine[at: at + stop - start] = rows[start:stop].to(mine.device)
        before += count
    if before != total:
        raise ValueError(f"{name} has {before} rows in the checkpoint, {total} in the model")


@torch.no_grad()
def load_training_state(folder, model, optimizer):
    """Read parameters and AdamW's state from a checkpoint of any number of ranks, in place."""
    weights, moments = (                            # in the order of the ranks that wrote them
        [safe_open(path, "pt") for path in sorted(folder.glob(f"{kind}*.safetensors"))]
        for kind in ("model", "optimizer"))
    if not weights:
        raise FileNotFoundError(f"{folder} is not there: all ranks need to see the same files")
    for name, parameter in model.named_parameters():
        read_into(parameter, weights, name)
        if f"{name}.step" not in moments[0].keys():             # no step has been taken yet
            continue
        # Adam's fused kernel counts its steps on the device, the plain one on the CPU.
        device = parameter.device if optimizer.defaults["fused"] else "cpu"
        state = {key: torch.zeros_like(parameter) for key in STATE[:2]}
        optimizer.state[parameter] = state | {"step": torch.zeros((), device=device)}
        for key in STATE:
            read_into(optimizer.state[parameter][key], moments, f"{name}.{key}")


# -- 2. A checkpoint, a model


def save(folder, state, team, tensors=None, plain=None):
    """Write a checkpoint to `folder`, all ranks together: a file for each group of tensors.

    state: `training_state`, every rank's; tensors: {file: {name: tensor}} and plain (JSON): rank
    0's alone. Raises OSError, naming the rank, if one cannot write; nothing half-written stays.
    """
    aside = folder.with_name(f".{folder.name}.tmp")
    rank = f".{team.rank:05}-of-{team.size:05}" if team.size > 1 else ""    # sorts as text
    groups = {name + rank: group for name, group in state.items()} | (tensors or {})
    if team.rank == 0:
        shutil.rmtree(aside, ignore_errors=True)
    try:
        team.all(None)                           # nobody writes into what is being removed
        parts = team.all(write_files(aside, groups, plain))
        sums = {name: value for part, _ in parts for name, value in part.items()}
        errors = [f"rank {i}: {error}" for i, (_, error) in enumerate(parts) if error]
        if team.rank == 0 and not errors:
            errors = [f"{name} of another rank is not to be seen here: checkpoints need a file "
                      "system that all ranks share" for name in sums if not (aside / name).exists()]
        if errors:
            raise OSError(f"checkpoint {folder} could not be written ({'; '.join(errors)})")
        if team.rank == 0:
            publish(aside, folder, sums)
    finally:
        if team.rank == 0:
            shutil.rmtree(aside, ignore_errors=True)    # once renamed, it is not there any more


def write_files(folder, groups, plain):
    """A file for each group of tensors, and state.json. Returns {file: checksum} and, if it cannot
    write, the reason."""
    sums = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, group in groups.items():
            path = folder / f"{name}.safetensors"
            save_file({key: tensor.contiguous() for key, tensor in group.items()}, path)
            sums[path.name] = sha256(path)
        if plain is not None:
            (folder / "state.json").write_text(json.dumps(plain))
            sums["state.json"] = sha256(folder / "state.json")
        return sums, ""
    except (OSError, SafetensorError) as error:
        return sums, str(error)


def save_model(model, tokenizer, named_tensors, folder):
    """Weights, as pairs (name, full tensor), and tokenizer as an ordinary Hugging Face folder with
    checksums; `model` gives the configuration. Raises OSError."""
    aside = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    state = {name: tensor.to("cpu") for name, tensor in named_tensors}
    try:
        model.save_pretrained(aside, state_dict=state)
        tokenizer.save_pretrained(aside)
        publish(aside, folder, {str(path.relative_to(aside)): sha256(path)
                                for path in aside.rglob("*") if path.is_file()})
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise OSError(f"{folder} could not be written: {error}") from None


def saved(folder):
    """Checkpoint folders below `folder`, newest first."""
    return sorted(folder.glob("step_*[0-9]"), key=lambda path: -int(path.name.split("_")[1]))


def read_state(folder):
    """The plain part of a checkpoint. Raises ValueError, naming the file, if it is damaged."""
    check(folder)
    return json.loads((folder / "state.json").read_text())


def load_tensors(folder, name):
    """One of rank 0's groups of tensors."""
    return load_file(folder / f"{name}.safetensors")


# -- 3. Folders that are whole, or not there


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def publish(aside, folder, sums):
    """Give `aside` the name `folder`. A process killed between the two renames leaves the folder
    before as .NAME.old, where `recover` finds it."""
    (aside / CHECKSUMS).write_text(json.dumps(sums))
    old = folder.with_name(f".{folder.name}.old")
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    aside.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def recover(parent):
    """After a kill: a folder that `publish` had moved away gets its name back; the rest goes."""
    for aside in filter(Path.is_dir, parent.glob(".*.tmp")):
        shutil.rmtree(aside)
    for old in parent.glob(".*.old"):
        folder = old.with_name(old.name[1:].removesuffix(".old"))
        shutil.rmtree(old) if folder.exists() else old.rename(folder)


def set_aside(folder):
    """Rename a damaged folder: it is not one of `saved` any more. Returns its new path."""
    damaged = folder.with_name(f"{folder.name}.damaged")
    shutil.rmtree(damaged, ignore_errors=True)
    return folder.rename(damaged)


def check(folder):
    """Raises ValueError, naming the file, unless every file is as it was written."""
    try:
        sums = json.loads((folder / CHECKSUMS).read_text())
        wrong = [name for name, expected in sums.items() if sha256(folder / name) != expected]
    except (OSError, ValueError, AttributeError) as error:      # no file, no text, no dictionary
        raise ValueError(f"{folder} cannot be read ({error})") from None
    if wrong:
        raise ValueError(f"{folder / wrong[0]} does not match its checksum")
