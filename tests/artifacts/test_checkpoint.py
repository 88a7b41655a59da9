"""Checkpoints: every row comes back, whoever wrote it; whole or not there; no code runs."""

import contextlib
import functools
import itertools
import json
import os
import pickle
import random
import resource
import shutil
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from artifacts import checkpoint
from sampler import Group, Request, Rollout


class Team:
    """One rank of several that are threads of this process."""

    def __init__(self, rank=0, size=1, shared=None):
        self.rank, self.size = rank, size
        self.barrier, self.values = shared or (threading.Barrier(1), [None])

    def all(self, value):
        self.values[self.rank] = json.dumps(value)
        self.barrier.wait(30)
        found = [json.loads(text) for text in self.values]
        self.barrier.wait(30)
        return found


def together(size, work):
    """[what work(team) returned or raised] of `size` ranks."""
    shared, found = (threading.Barrier(size), [None] * size), [None] * size

    def run(rank):
        try:
            found[rank] = work(Team(rank, size, shared))
        except OSError as error:
            found[rank] = error
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


class Model(torch.nn.Module):
    """Rows fewer than ranks, more than ranks, in no multiple of them; and one number."""

    def __init__(self):
        super().__init__()
        for name, shape in (("wide", (59, 3)), ("short", (2, 5)), ("line", (13,)), ("number", ())):
            setattr(self, name, torch.nn.Parameter(torch.randn(shape)))


def trained(steps, fused=False):
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
    for _ in range(steps):
        sum((p ** 2).sum() * torch.rand(()) for p in model.parameters()).backward()
        optimizer.step()
    return model, optimizer


def moments(model, optimizer):
    return {f"{name}.{key}": value for name, p in model.named_parameters()
            for key, value in optimizer.state[p].items()}


def save(folder, model, optimizer, size=1, **rank_0):
    return together(size, lambda team: checkpoint.save(
        folder, model, optimizer, team, **(rank_0 if team.rank == 0 else {})))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("fused", [False, True])
def test_what_any_number_of_ranks_wrote_one_reads_back(size, fused, tmp_path, seed):
    """From 11 ranks on their files must not be sorted 0, 1, 10, 2: rows would change places."""
    model, optimizer = trained(3, fused)
    group = Group(7, "p", 2, 3, [Rollout("p", 7, (1, 2), [3], [-0.5], [2], [True], "stop", False)])
    state = {"step": 3, "random": torch.arange(5), "groups": {7: group},
             "waiting": [Request(8, "q", (1,), 3)], "decoded": Counter(steps=9)}
    save(tmp_path / "step_3", model, optimizer, size, state=state)
    assert len(list((tmp_path / "step_3").glob("model*"))) == size
    read, fresh = trained(0, fused)
    checkpoint.load_training_state(tmp_path / "step_3", read, fresh)
    for name, parameter in model.named_parameters():
        assert torch.equal(dict(read.named_parameters())[name], parameter), name
    want, got = moments(model, optimizer), moments(read, fresh)
    assert set(got) == set(want) and len(want) == 12
    for key in want:
        assert torch.equal(got[key], want[key]) and got[key].dtype == want[key].dtype, key
    assert got["wide.step"] == 3
    found = checkpoint.read_state(tmp_path / "step_3")
    assert torch.equal(found.pop("random"), state.pop("random")) and found == state
    both = []                               # and both go on alike
    for m, o in ((model, optimizer), (read, fresh)):
        for p in m.parameters():
            p.grad = p.detach().clone()
        o.step()
        both.append([p.detach().clone() for p in m.parameters()])
    assert all(map(torch.equal, *both))


def shard_of(tensor, rank, size):
    """This rank's shard as FSDP2 has it, in a process group of which only this process exists."""
    mesh = init_device_mesh("cpu", (size,))
    count = -(-len(tensor) // size)
    return DTensor.from_local(tensor[rank * count: (rank + 1) * count].clone(), mesh, [Shard(0)],
                              run_check=False, shape=tensor.shape, stride=tensor.stride())


@contextlib.contextmanager
def as_rank(rank, size):
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("writers, readers", [(1, 3), (3, 4), (5, 2), (12, 5)])
def test_each_rank_reads_the_rows_of_its_own_shard(writers, readers, tmp_path, seed):
    """Shards are uneven, and the last ranks may have none at all."""
    model, optimizer = trained(2)
    del model.number
    save(tmp_path / "step_2", model, optimizer, writers)
    for rank in range(readers):
        with as_rank(rank, readers):
            read = Model()
            del read.number
            for name, p in list(read.named_parameters()):
                setattr(read, name, torch.nn.Parameter(shard_of(p.detach(), rank, readers)))
            fresh = torch.optim.AdamW(read.parameters(), fused=False)
            checkpoint.load_training_state(tmp_path / "step_2", read, fresh)
            for name, p in model.named_parameters():
                got = dict(read.named_parameters())[name]
                pairs = [(p.detach(), got.detach())] + [
                    (optimizer.state[p][key], fresh.state[got][key])
                    for key in ("exp_avg", "exp_avg_sq")]
                for whole, part in pairs:
                    want = shard_of(whole, rank, readers).to_local()
                    assert torch.equal(part.to_local(), want), name
                assert fresh.state[got]["step"] == 2


def test_a_shard_is_written_as_it_is(tmp_path, seed):
    whole = torch.randn(7, 3)
    for rank in range(3):
        with as_rank(rank, 3):
            rows = checkpoint.my_rows(shard_of(whole, rank, 3), Team(rank, 3))
            assert torch.equal(rows, whole[3 * rank: 3 * rank + 3])


def test_before_the_first_step_there_is_no_state_of_the_optimizer(tmp_path):
    save(tmp_path / "step_0", *trained(0), size=2)
    model, optimizer = trained(0)
    checkpoint.load_training_state(tmp_path / "step_0", model, optimizer)
    assert not optimizer.state


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    save(tmp_path / "step_1", *trained(1), size=2)
    other, optimizer = trained(0)
    other.wide = torch.nn.Parameter(torch.zeros(31, 3))
    with pytest.raises(OSError, match=r"step_1: wide does not fit the model .*\[31, 3\]"):
        checkpoint.load_training_state(tmp_path / "step_1", other, optimizer)
    other.new = torch.nn.Parameter(torch.zeros(2))
    del other.wide
    with pytest.raises(OSError, match="step_1: new does not fit the model"):
        checkpoint.load_training_state(tmp_path / "step_1", other, optimizer)
    with pytest.raises(OSError, match="all ranks need to see the same files"):
        checkpoint.load_training_state(tmp_path / "step_2", other, optimizer)


class Trap:
    """Writes a file when it is read back: what a pickle from a stranger may do."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_what_is_no_record_of_ours_is_not_read_and_so_no_code_runs(tmp_path):
    """Reading a pickle runs whatever is in it."""
    save(tmp_path / "step_1", *trained(1), size=2, state={"step": Trap(str(tmp_path / "ran"))})
    files = {path.name for path in (tmp_path / "step_1").iterdir()}
    assert files == {"model.00000-of-00002.safetensors", "model.00001-of-00002.safetensors",
                     "state.pt", "checksums.json"}
    sums = json.loads((tmp_path / "step_1" / "checksums.json").read_text())
    assert set(sums) == files - {"checksums.json"}
    with pytest.raises(pickle.UnpicklingError, match="open"):
        checkpoint.read_state(tmp_path / "step_1")
    assert not (tmp_path / "ran").exists()


# ---------------------------------------------------------------------------------------------
# All or nothing


@contextlib.contextmanager
def disk_with_room_for(size):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_files_of_a_checkpoint_can_be_read_by_whom_the_umask_lets(mask, tmp_path):
    """safetensors makes them for their owner alone: a colleague was told that there is no file."""
    old = os.umask(mask)
    try:
        save(tmp_path / "step_1", *trained(1), state={"step": 1})
    finally:
        os.umask(old)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "step_1").iterdir()}
    assert len(modes) == 3 and set(modes.values()) == {0o666 & ~mask}, modes


def test_a_disk_that_is_full_leaves_what_was_there_and_nothing_else(tmp_path):
    model, optimizer = trained(1)
    save(tmp_path / "step_1", model, optimizer, state={"step": 1})
    with disk_with_room_for(600):
        error, = save(tmp_path / "step_2", model, optimizer, state={"step": 2})
        pretend = SimpleNamespace(
            state_dict=dict, named_buffers=list, save_pretrained=lambda path, **_: (
                path / "model.safetensors").write_bytes(bytes(1000)))
        (tmp_path / "best").mkdir()
        with pytest.raises(OSError, match="best could not be written: .*File too large"):
            checkpoint.save_model(pretend, pretend, [], tmp_path / "best")
    assert "step_2 could not be written: " in str(error) and "File too large" in str(error)
    assert checkpoint.read_state(tmp_path / "step_1") == {"step": 1}
    assert {path.name for path in tmp_path.iterdir()} == {"step_1", "best"}


@pytest.mark.parametrize("missing", [50_000, 15_000, 400, 1])
def test_a_disk_that_is_full_while_the_state_is_written_is_said_to_be(missing, tmp_path):
    """Torch's own words are of a position in a container. Full early, late, or at its very end."""
    def save(number):
        return together(1, lambda team: checkpoint.save(
            tmp_path / f"step_{number}", *trained(1), team, {"cache": torch.zeros(20_000)}))
    assert save(1) == [None]
    with disk_with_room_for((tmp_path / "step_1" / "state.pt").stat().st_size - missing):
        error, = save(2)
    assert isinstance(error, OSError) and "step_2 could not be written: " in str(error)
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]


@pytest.mark.parametrize("what", ["checkpoint", "model"])
def test_killed_at_any_point_of_a_replacement_one_of_the_two_is_there_whole(what, tmp_path,
                                                                            monkeypatch):
    """The folder before, or the new one: killed just before each removal, each renaming, and each
    file that is written, the list of checksums as well."""
    class Killed(BaseException):
        pass

    def write(folder, number):
        def pretrained(path, **_):
            path.mkdir(exist_ok=True, parents=True)
            torch.save(number, path / "state.pt")
        if what == "checkpoint":
            checkpoint.save(folder, *trained(0), Team(), state=number)
        else:
            pretend = SimpleNamespace(state_dict=dict, named_buffers=list,
                                      save_pretrained=pretrained)
            checkpoint.save_model(pretend, pretend, [], folder)
    found = []
    for moment in itertools.count():
        folder, acts = tmp_path / str(moment) / "step_5", []

        def act(*args, do, **options):
            acts.append(do)                                                     # noqa: B023
            if len(acts) > moment:                                              # noqa: B023
                raise Killed
            return do(*args, **options)
        write(folder, 1)
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            patch.setattr(type(folder), "rename",
                          functools.partialmethod(act, do=type(folder).rename))
            patch.setattr(type(folder), "write_text",
                          functools.partialmethod(act, do=type(folder).write_text))
            patch.setattr(shutil, "rmtree", functools.partial(act, do=shutil.rmtree))
            write(folder, 2)
        checkpoint.recover(folder.parent)
        found.append(checkpoint.read_state(folder))
        assert {path.name for path in folder.parent.iterdir()} == {"step_5"}
        if len(acts) <= moment:
            break
    assert found == sorted(found) and found[0] == 1 and found[-1] == 2 and moment > 2


def replaced(folder, text):
    with checkpoint.replacing(folder) as aside:
        (aside / "weights").write_text(text)


@pytest.mark.parametrize("name", ["checksums.json", "weights"])
def test_a_new_folder_that_is_not_whole_does_not_take_the_place_of_the_old_one(name, tmp_path):
    """After a power cut a file may be there, and empty: of the new folder, that is."""
    for folder in ("best", ".best.tmp"):
        replaced(tmp_path / folder, folder)
    (tmp_path / ".best.tmp" / name).write_text("")
    checkpoint.recover(tmp_path)
    checkpoint.check(tmp_path / "best")
    assert (tmp_path / "best" / "weights").read_text() == "best"
    assert [path.name for path in tmp_path.iterdir()] == ["best"]



def test_checksums_that_cannot_be_written_leave_no_half_checkpoint(tmp_path, monkeypatch):
    """A full disk would stay full: nobody looks for what is left before the next start."""
    def full(path, text):
        with open(path, "w") as file:
            file.write(text[:9])
        raise OSError("No space left on device")
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="step_1 could not be written: No space left"), \
            checkpoint.replacing(tmp_path / "step_1") as aside:
        (aside / "model").touch()
    assert not [*tmp_path.iterdir()]


def test_a_new_folder_that_cannot_be_renamed_is_kept_for_the_next_start(tmp_path, monkeypatch):
    """A network disk keeps a name in a folder whose files are open somewhere: it is not empty, and
    by then the old files are gone."""
    replaced(tmp_path / "best", "old")
    remove = shutil.rmtree

    def leave_a_name(path, **options):
        if path.name == "best":
            (path / "weights").rename(path / ".nfs1")
        else:
            remove(path, **options)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", leave_a_name)
        with pytest.raises(OSError, match="best could not be written"):
            replaced(tmp_path / "best", "new")
    checkpoint.recover(tmp_path)
    assert (tmp_path / "best" / "weights").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


# ---------------------------------------------------------------------------------------------
# Damage, and order


def test_one_wrong_bit_anywhere_is_found_and_its_file_named(tmp_path, seed):
    rng = random.Random(seed)
    save(tmp_path / "step_1", *trained(1), size=2, state={"step": 1})
    checkpoint.check(tmp_path / "step_1")
    for path in sorted((tmp_path / "step_1").iterdir()):
        if path.name == checkpoint.CHECKSUMS:
            continue
        good = path.read_bytes()
        data = bytearray(good)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        with pytest.raises(ValueError, match=f"{path.name} does not match its checksum"):
            checkpoint.read_state(tmp_path / "step_1")
        path.unlink()
        with pytest.raises(ValueError, match=f"step_1 cannot be read .*{path.name}"):
            checkpoint.read_state(tmp_path / "step_1")
        path.write_bytes(good)
    checkpoint.check(tmp_path / "step_1")


@pytest.mark.parametrize("damage", [b"[]", b"\xff", b"{", None])
def test_a_list_of_checksums_that_is_none_is_said(damage, tmp_path):
    save(tmp_path / "step_1", *trained(1), state={})
    path = tmp_path / "step_1" / checkpoint.CHECKSUMS
    path.unlink() if damage is None else path.write_bytes(damage)
    with pytest.raises(ValueError, match="step_1 cannot be read"):
        checkpoint.check(tmp_path / "step_1")


def test_the_newest_is_the_one_with_the_largest_number_and_unfinished_ones_do_not_count(tmp_path):
    for name in ("step_9", "step_10", "step_2", ".step_12.tmp", "best", "step_9_copy1",
                 "step_best1"):
        (tmp_path / name).mkdir()
    assert [path.name for path in checkpoint.saved(tmp_path)] == ["step_10", "step_9", "step_2"]
