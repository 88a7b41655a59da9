"""ranks.py: what only several trainer processes need. With one, nothing here sends or waits.

`torchrun` or `accelerate launch` has set RANK and WORLD_SIZE; without them there is one process,
and the same code runs: `deal` gives it every micro-batch, `tell` and `gather` have nobody to talk
to, `whole` finds no shards. What stays is `Ranks.phase`, which words a full device's memory, and
the `Watchdog`, which ends a process that hangs. So one process, DDP and FSDP2 are one code path.

  1. `deal`     who computes what: the same number of micro-batches for everybody, or a collective
                would wait for a rank that has nothing left to do
  2. `Ranks`    rank 0 tells the story and `tell`s what comes next; the others `hear` and take
                part. Everything that travels is JSON or safetensors: nothing is unpickled
  3. `full_tensors`   the whole weights, from shards, for the generators and for `model/`

accelerate makes the process group and shards the model: FSDP2 with fp32 masters and fp32
reduction on GPUs, DDP on a CPU (where accelerate shards nothing). The model's own forward is in
policy.py.

Ours: the paper names neither a framework nor a layout.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import signal
import struct
import sys
import threading
import time
from pathlib import Path

import safetensors.torch
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from memory import is_short, short_of_memory
from sampler import Rollout


class RankError(RuntimeError):
    """What ended a run of several ranks, in a sentence: phase, rank, version, where to look."""


# ---------------------------------------------------------------------------------------------
# 1. Who computes what

# What a rank computes when it has no micro-batch left: the same collectives, no gradient.
BLANK = Rollout("", 0, (0,), [0], [0.0], [0], [True], "stop", False)


def deal(batches, costs, size):
    """[each rank's list of micro-batches], all equally long; [] is an empty one, of weight zero.

    batches   micro-batches (lists of sample indices), costs their tokens. Rounds of alike ones,
    largest first: ranks meet in every round (FSDP2 gathers each layer together), so it costs what
    its largest costs. Within a round the rank with the least so far gets the most.
    """
    order = sorted(range(len(batches)), key=lambda i: (-costs[i], i))
    shares, load = [[] for _ in range(size)], [0] * size
    for start in range(0, len(order), size):
        lightest = sorted(range(size), key=lambda rank: (load[rank], rank))
        for place, rank in enumerate(lightest, start):
            i = order[place] if place < len(order) else None
            shares[rank].append([] if i is None else batches[i])
            load[rank] += 0 if i is None else costs[i]
    return shares


# ---------------------------------------------------------------------------------------------
# 2. Rank 0 and the others


class Ranks:
    """The processes that train one model together, as one of them sees them.

    rank, size     this process and how many there are; size 1 (no launcher): nothing is sent
    deadline_s     no collective waits longer. While rank 0 waits for samples or servers it says
                   so every few seconds, so the others' wait for it can be as short.
    start_deadline_s   but for all to have loaded the model; None: deadline_s
    cpu, dtype     compute on the CPU; in bfloat16 (FSDP2 gathers weights in it and reduces
                   gradients in fp32)

    Rank 0 `tell`s, the others `hear`, and then all do the same thing inside `phase`. Raises
    RankError, naming phase, version and rank, when another rank is dead, stuck or cut off. On a
    GPU a rank that hangs inside a gradient's own collective is ended by NCCL's watchdog after the
    same deadline: its words are in that rank's log.
    """

    def __init__(self, *, deadline_s=600.0, start_deadline_s=None, cpu=True, dtype=torch.float32):
        self.rank, self.size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.deadline_s, self.start_deadline_s = deadline_s, start_deadline_s or deadline_s
        self.doing, self.version = "start", 0
        self.lock, self.closed, self.beating = threading.RLock(), threading.Event(), False
        self.blaming = False
        # Collectives have a deadline of their own and tell more, once others were asked: `blame`.
        self.watchdog = Watchdog(deadline_s if self.size == 1 else 2 * deadline_s + 10)
        self.memory = None              # a `Memory`, as soon as there is a model
        if self.size == 1:
            return
        from accelerate import Accelerator, FullyShardedDataParallelPlugin, InitProcessGroupKwargs
        from torch.distributed.fsdp import MixedPrecisionPolicy
        # Explicit, because accelerate's own policy for bf16 reduces gradients in bf16 and casts
        # the forward's output, our fp32 log-probs, to bf16.
        self.plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", reshard_after_forward=True,
            activation_checkpointing=False, cpu_ram_efficient_loading=False,
            mixed_precision_policy=MixedPrecisionPolicy(param_dtype=dtype,
                                                        reduce_dtype=torch.float32))
        timeout = datetime.timedelta(seconds=deadline_s)
        with self.phase("start", 0):
            self.accelerator = Accelerator(
                cpu=cpu, mixed_precision="no", fsdp_plugin=self.plugin,
                kwargs_handlers=[InitProcessGroupKwargs(timeout=timeout)])
            # Commands travel apart from gradients, over TCP on every machine.
            self.group = dist.new_group(backend="gloo", timeout=timeout)

    def prepare(self, policy, optimizer):
        """(policy, optimizer) as all ranks share them; as they were if there is one rank."""
        if self.size == 1:
            return policy, optimizer
        with self.phase("start", 0):
            self._all_have_loaded()
            policy, optimizer = self.accelerator.prepare(policy, optimizer)
        if self.rank == 0 and not self.beating:
            self.beating = True
            signal.signal(signal.SIGTERM, self._ended)
            signal.signal(signal.SIGUSR1, self._ended)
            threading.Thread(target=self._beat, daemon=True).start()
        return policy, optimizer.optimizer

    def _all_have_loaded(self):
        """Wait for the last one: a node may have to download the model that others have."""
        store, end = dist.distributed_c10d._get_default_store(), time.monotonic() + max(
            self.deadline_s, self.start_deadline_s)
        store.set(f"loaded {self.rank}", "")
        missing = set(range(self.size))
        while missing := {rank for rank in missing if not store.check([f"loaded {rank}"])}:
            if time.monotonic() > end:
                raise RankError(f"rank {self.rank}: start: rank {min(missing)} has not loaded the "
                                "model in time (start_deadline_s), look at its log")
            time.sleep(0.1)

    # -- commands -----------------------------------------------------------------------------

    def tell(self, do, tensors=dict, **what):
        """Rank 0: send a command, {"do": do, "version": ..., **what} and tensors, to the others.
        `tensors` makes them, {name: tensor}, and is not called when there is nobody to hear."""
        if self.size == 1:
            return
        command = {"do": do, "version": self.version} | what
        data = torch.frombuffer(bytearray(safetensors.torch.save(
            tensors(), metadata={"command": json.dumps(command)})), dtype=torch.uint8)
        dist.broadcast(torch.tensor([len(data)]), 0, group=self.group)
        dist.broadcast(data, 0, group=self.group)

    def hear(self):
        """The others: (command, tensors) that rank 0 has told; waits for at most `deadline_s`."""
        with self.phase("wait for rank 0", self.version):
            while True:
                size = torch.zeros(1, dtype=torch.long)
                dist.broadcast(size, 0, group=self.group)
                data = torch.empty(int(size), dtype=torch.uint8)
                dist.broadcast(data, 0, group=self.group)
                data = data.numpy().tobytes()
                # A safetensors file begins with the length of its JSON header.
                header = json.loads(data[8: 8 + struct.unpack("<Q", data[:8])[0]])
                command = json.loads(header["__metadata__"]["command"])
                if command["do"] != "wait":
                    return command, safetensors.torch.load(data)

    def gather(self, value):
        """[rank 0's value, rank 1's, ...] on every rank; values are JSON."""
        if self.size == 1:
            return [value]
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.long) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(data)]), group=self.group)
        longest = int(max(sizes))
        rows = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(rows, torch.nn.functional.pad(data, (0, longest - len(data))),
                        group=self.group)
        return [json.loads(row[: int(n)].numpy().tobytes()) for row, n in zip(rows, sizes)]

    def close(self):
        """The end, if all is well: rank 0 tells the others, who have heard it and close as well."""
        if self.size == 1:
            return
        if self.rank == 0:
            with self.phase("end", self.version):
                self.closed.set()
                self.tell("end")
        dist.destroy_process_group()

    def _beat(self):
        """Rank 0's second thread: say that it is still there, unless a phase is under way."""
        while not self.closed.wait(min(5.0, self.deadline_s / 4)):
            if self.lock.acquire(blocking=False):
                try:
                    if not self.closed.is_set():
                        with self.phase("wait", self.version):
                            self.tell("wait")
                except RankError as error:
                    self.failure = error
                    # The main thread waits for something else; only a signal wakes it.
                    signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                    return
                finally:
                    self.lock.release()

    # -- failure ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def phase(self, doing, version):
        """What all ranks do together now: failures inside name it. One at a time."""
        with self.lock:
            self.doing, self.version = doing, version
            try:
                yield
            except (RuntimeError, OSError) as error:
                if is_short(error):
                    raise self.blame(short_of_memory(error, doing, self.memory,
                                                     self.size)) from None
                if self.size == 1 or isinstance(error, RankError):
                    raise
                raise self.blame(str(error)) from error

    def blame(self, error):
        """The RankError for a failure seen here, `error`: a cause, or what another's end causes.

        Every rank leaves its last words in the store of the rendezvous. Whose words tell a cause,
        or who has left none, is the one to look at.
        """
        self.blaming = True
        # Is it a cause of its own? Not if it speaks of the network; a folder, which Python names in
        # quotes, may be called so.
        told = not re.search("gloo|nccl|connection|SIGTERM", re.sub("'[^']*'", "", error), re.I)
        # gloo begins with a path in its source and ends with advice.
        lines = re.sub(r"^\[\S*/gloo/\S*\] |[.] This is typically.*", "", error.strip(),
                       flags=re.S).splitlines() or ["no reason given"]
        where = f"{self.doing}, version {self.version}"
        words, others = {}, set(range(self.size)) - {self.rank}
        found = ["nor does the rendezvous answer: has the launcher, or rank 0, ended, or is this "
                 "machine cut off?"]
        patience = min(5, self.deadline_s)

        def ask():
            self.last_words(f"{where}: {lines[0]}", told)
            end = time.monotonic() + (0 if told else patience)
            with contextlib.suppress(dist.DistError, ValueError):
                store = dist.distributed_c10d._get_default_store()
                while others - set(words) and time.monotonic() < end:
                    words.update({
                        rank: json.loads(store.get(f"last words {rank}"))
                        for rank in others - set(words) if store.check([f"last words {rank}"])})
                    time.sleep(0.1)
                silent = ", ".join(map(str, sorted(others - set(words))))
                found.append(f"rank {silent} is dead, stuck or cut off, look at its log" if silent
                             else "all ranks are there, but they do not reach each other")
        # In a thread, because behind a cut cable a call of torch's store has no end.
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(patience + 1)
        if told or self.size == 1:
            return RankError(f"rank {self.rank}: {where}: {lines[0]}")
        causes = [f"rank {rank}: {text}" for rank, (cause, text) in sorted(words.items()) if cause]
        return RankError("; ".join(causes)
                         or f"rank {self.rank}: {where}: {found[-1]} ({lines[0]})")

    def last_words(self, text, told=True):
        """Leave for the others why this rank ends; not `told`: only what another's end caused."""
        with contextlib.suppress(dist.DistError, ValueError):   # the store is gone, or never was
            dist.distributed_c10d._get_default_store().set(f"last words {self.rank}",
                                                           json.dumps([told, text]))

    def _ended(self, number, _):
        if number == signal.SIGUSR1:
            raise self.failure
        if not self.blaming:            # else it is being said already why this ends
            raise self.blame("SIGTERM from outside: has another rank ended?")


class Watchdog:
    """Ends this process when what is inside `with watchdog(doing):` makes no progress.

    doing        words for the sentence: step, phase, version, engine
    deadline_s   until then; `progress()` begins it anew

    What hangs in a kernel, or in an engine's own code, can be interrupted by nothing else; all it
    has to do is to let other threads run (a call that holds Python's lock for ever is not seen).
    Exit code 1 and one sentence. Nothing is being saved at such a time: the last checkpoint stays
    as it is. Ticks are counted instead of seconds, for a process that was stopped, by Ctrl-Z or
    with its machine, has not been hanging.
    """
    TICKS = 20                          # a deadline has

    def __init__(self, deadline_s):
        self.deadline_s, self.watched, self.thread = deadline_s, None, None

    @contextlib.contextmanager
    def __call__(self, doing):
        if not self.thread:             # one for good: a thread a step would cost something
            self.thread = threading.Thread(target=self._run, daemon=True)
            self.thread.start()
        self.watched = [doing, 0]
        try:
            yield
        finally:
            self.watched = None

    def progress(self):
        if self.watched:                # another list: the thread may be counting in the old one
            self.watched = [self.watched[0], 0]

    def _run(self):
        while True:
            time.sleep(self.deadline_s / self.TICKS)
            self.tick()

    def tick(self):
        watched = self.watched
        if not watched:
            return
        watched[1] += 1
        if watched[1] > self.TICKS and watched is self.watched:
            frame = sys._current_frames()[threading.main_thread().ident]
            print(f"scalerl.py: {watched[0]}: no progress for {self.deadline_s:g} s, at "
                  f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}; if nvidia-smi and "
                  "dmesg show a healthy machine that is only slow, raise deadline_s; --resume "
                  "goes on from the last checkpoint", file=sys.stderr, flush=True)
            os._exit(1)


def meets(policy, last):
    """Context of a micro-batch's forward and backward. DDP sums gradients over the ranks once a
    step, at the last; FSDP2 each time, because an unsharded gradient is what it has no room for."""
    ddp = isinstance(policy, torch.nn.parallel.DistributedDataParallel)
    return policy.no_sync() if ddp and not last else contextlib.nullcontext()


def whole(tensor):
    """The full tensor behind shards, on every rank; a plain tensor as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


# ---------------------------------------------------------------------------------------------
# 3. A step's samples as tensors; whole weights from shards


def to_tensors(rollouts):
    """Finished groups, one after another, as flat tensors: what the trainer needs of them.

    ids, logprobs, versions, sampled (sum of lengths);  lengths, group, stopped (N);  prompts
    (sum of prompt_lengths), prompt_lengths (P): each prompt once.
    """
    prompts = list({r.group_id: r.prompt_ids for r in rollouts}.values())
    flat = lambda name, dtype: torch.tensor(                                       # noqa: E731
        [x for r in rollouts for x in getattr(r, name)], dtype=dtype)
    return {"ids": flat("output_ids", torch.int32), "logprobs": flat("logprobs", torch.float32),
            "versions": flat("versions", torch.int32), "sampled": flat("sampled", torch.bool),
            "lengths": torch.tensor([len(r.output_ids) for r in rollouts]),
            "group": torch.tensor([r.group_id for r in rollouts]),
            "stopped": torch.tensor([r.finish_reason == "stop" for r in rollouts]),
            "prompts": torch.tensor([t for p in prompts for t in p], dtype=torch.int32),
            "prompt_lengths": torch.tensor([len(p) for p in prompts])}


def from_tensors(tensors):
    """The rollouts of `to_tensors`, without prompt ids and tasks, which only rank 0 needs."""
    lengths = tensors["lengths"].tolist()
    columns = [[x.tolist() for x in tensors[name].split(lengths)]
               for name in ("ids", "logprobs", "versions", "sampled")]
    groups = tensors["group"].tolist()
    prompts = dict(zip(dict.fromkeys(groups), (tuple(x.tolist()) for x in tensors["prompts"].split(
        tensors["prompt_lengths"].tolist()))))
    return [Rollout("", group, prompts[group], *columns, "stop" if stopped else "length", False)
            for group, stopped, *columns in zip(groups, tensors["stopped"].tolist(), *columns)]


GROUP_BYTES = 2**29             # of fp32 weights gathered at a time: a few layers


def gather_group(model, number, dtype=None):
    """[(name, full tensor)] of the number-th group of parameters; on all ranks together if they
    are shards. Cast before they are gathered: half the bytes. [] after the last group."""
    groups, size = [[]], 0
    for name, parameter in model.named_parameters():
        if size and size + 4 * parameter.numel() > GROUP_BYTES:
            groups.append([])
            size = 0
        groups[-1].append((name, parameter))
        size += 4 * parameter.numel()
    group = groups[number] if number < len(groups) else []
    tensors = [(name, whole(p.detach().to(dtype or p.dtype))) for name, p in group]
    if tensors and tensors[0][1].is_cuda:
        torch.cuda.synchronize()        # whatever is done with them runs in other streams
    return tensors


def full_tensors(model, ranks, version, dtype=None):
    """Rank 0: (Hugging Face name, full tensor) of every parameter, for generators and for files.

    From shards, group by group: all ranks gather one, and nobody begins the next before the
    caller asks for it. What it does in between, such as a send to the generators, is never
    interleaved with a collective of the ranks, which would hang. The others answer each "gather".
    """
    sharded = any(isinstance(p, DTensor) for p in model.parameters())
    number = 0
    while True:
        if sharded:
            with ranks.phase("gather", version):
                ranks.tell("gather", number=number, dtype=str(dtype or "").removeprefix("torch."))
                tensors = gather_group(model, number, dtype)
        else:
            tensors = gather_group(model, number, dtype)
        if not tensors:
            return
        yield from tensors
        number += 1
