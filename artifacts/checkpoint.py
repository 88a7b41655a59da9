"""checkpoint.py: what a run writes so that nothing is lost, and how it is read back.

    checkpoints/step_N/
        model[.RANK-of-SIZE].safetensors    {name: rows of the parameter, and of AdamW's
                                            name.exp_avg, name.exp_avg_sq, name.step}
        state.pt                            rank 0's: the rest of the run
        checksums.json                      {file: SHA-256}
    checkpoints/best/, model/               an ordinary Hugging Face folder and checksums.json

Every rank writes its own rows, and any number of ranks reads them back. A folder is written under
another name and renamed when it is whole: a kill leaves the checkpoint before. (What a power cut
leaves empty, its checksum tells.) Reading one runs no code in it: of state.pt, a pickle, torch
reads tensors, plain values and the records of sampler.py alone, as resume.Records does."""
import hashlib
import itertools
import json
import shutil
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from config import ConfigError
from sampler import Group, Request, Rollout

CHECKSUMS = "checksums.json"


def tensors_of(model, optimizer):
    """Yield (name, tensor) of every parameter and, after its first step, of AdamW's state of it."""
    for name, parameter in model.named_parameters():
        yield name, parameter.detach()
        for key, tensor in optimizer.state.get(parameter, {}).items():
            yield f"{name}.{key}", tensor


def my_rows(tensor, team):
    """The rows that this rank writes: its shard; of a whole tensor, as AdamW's step, rank 0 all."""
    if isinstance(tensor, DTensor):
        return tensor.to_local()
    return torch.atleast_1d(tensor)[:0 if team.rank else None]


@torch.no_grad()
def load_training_state(folder, model, optimizer):
    """Read parameters and AdamW's state from a checkpoint of any number of ranks, in place."""
    files = [safe_open(path, "pt") for path in sorted(folder.glob("model*.safetensors"))]
    if not files:
        raise FileNotFoundError(f"{folder} is not there: all ranks need to see the same files")
    optimizer.state.clear()                     # of a step after it was written
    stored = {name for file in files for name in file.keys()}               # noqa: SIM118
    for name, parameter in model.named_parameters():
        if f"{name}.step" in stored:                            # else no step has been taken yet
            # Where Adam's fused kernel counts its steps; the plain one would on the CPU.
            step = torch.zeros((), device=parameter.device)
            optimizer.state[parameter] = {"step": step, "exp_avg": torch.zeros_like(parameter),
                                          "exp_avg_sq": torch.zeros_like(parameter)}
    for name, tensor in tensors_of(model, optimizer):
        try:
            whole = torch.cat([file.get_tensor(name) for file in files]).view(tensor.shape)
        except (SafetensorError, RuntimeError) as error:
            raise OSError(f"{folder}: {name} does not fit the model ({error})") from None
        if isinstance(tensor, DTensor):             # cut as FSDP2 cuts: equal parts, rounded up
            mesh, tensor = tensor.device_mesh, tensor.to_local()
            first = mesh.get_local_rank() * -(-len(whole) // mesh.size())
            whole = whole[first: first + len(tensor)]
        tensor.copy_(whole)


def save(folder, model, optimizer, team, state=None):
    """Write a checkpoint, all ranks together. state: of rank 0, all the rest. Raises OSError."""
    part = f".{team.rank:05}-of-{team.size:05}" if team.size > 1 else ""    # sorts as text
    with replacing(folder, team.rank == 0) as aside:
        team.all(None)              # rank 0 has made the folder; others see it or cannot write
        save_file({name: my_rows(tensor, team).contiguous() for name, tensor in
                   tensors_of(model, optimizer)}, aside / f"model{part}.safetensors")
        if state is not None:
            try:
                torch.save(state, aside / "state.pt")
            except RuntimeError as error:                   # so torch calls a full disk
                raise OSError(str(error).strip() + ": is the disk full?") from None
        team.all(None)              # all have written


def save_model(model, tokenizer, named_tensors, folder):
    """Weights, as pairs (name, full tensor), what else the model keeps (buffers: the correction of
    a router, the scale of a layer), and tokenizer, as an ordinary Hugging Face folder."""
    kept = model.state_dict().keys()
    buffers = ((name, buffer) for name, buffer in model.named_buffers() if name in kept)
    state = {name: tensor.to("cpu") for name, tensor in itertools.chain(named_tensors, buffers)}
    with replacing(folder) as aside:
        model.save_pretrained(aside, state_dict=state)
        tokenizer.save_pretrained(aside)


def saved(folder):
    """Checkpoint folders below `folder`, newest first."""
    found = {int(p.name[5:]): p for p in folder.glob("step_*") if p.name[5:].isdecimal()}
    return [found[step] for step in sorted(found, reverse=True)]


def read_state(folder):
    """What rank 0 has written of a run. Raises ConfigError, naming the file, if it is damaged."""
    check(folder)
    with torch.serialization.safe_globals([Group, Request, Rollout]):
        return torch.load(folder / "state.pt", map_location="cpu")


@contextmanager
def replacing(folder, first=True):
    """Give a folder to write to, which takes the place of `folder` once all is in it. `first`: of
    several ranks, one makes and renames it. With its checksums it is whole, see `recover`."""
    aside = folder.with_name(f".{folder.name}.tmp")
    try:
        if first:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
        yield aside
        if first:
            sums = {path.name: sha256(path) for path in aside.iterdir() if path.is_file()}
            (aside / "sums.tmp").write_text(json.dumps(sums))
            for name in sums:           # safetensors' files only their owner may read
                shutil.copymode(aside / "sums.tmp", aside / name)
            (aside / "sums.tmp").rename(aside / CHECKSUMS)
            shutil.rmtree(folder, ignore_errors=True)
            aside.rename(folder)
    except (OSError, SafetensorError) as error:
        raise OSError(f"{folder} could not be written: {error}") from None
    finally:
        if first and not (aside / CHECKSUMS).exists():  # whole, but not renamed: left to `recover`
            shutil.rmtree(aside, ignore_errors=True)


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def recover(parent):
    """After a kill: a whole folder of `replacing` takes its place; what is half-written goes."""
    for aside in filter(Path.is_dir, parent.glob(".*.tmp")):
        with suppress(ConfigError):
            check(aside)
            folder = parent / aside.name[1:].removesuffix(".tmp")
            shutil.rmtree(folder, ignore_errors=True)
            aside.rename(folder)
        shutil.rmtree(aside, ignore_errors=True)


def check(folder):
    """Raises ConfigError, naming the file, unless every file is as it was written."""
    try:
        sums = json.loads((folder / CHECKSUMS).read_text())
        wrong = [name for name, expected in sums.items() if sha256(folder / name) != expected]
    except (OSError, ValueError, AttributeError) as error:      # no file, no text, no dictionary
        raise ConfigError(f"{folder} cannot be read ({error})") from None
    if wrong:
        raise ConfigError(f"{folder / wrong[0]} does not match its checksum")
