"""team.py: the processes that train one model together. One process or many, one code path.

The trainer in scalerl.py is written for one process. It has a `team`, and asks it for the five
things that differ when there are more:

    mine(batches)       the micro-batches that this process computes
    backward(loss)      the gradient of one of them
    finish_gradients()  after the last one: every process has the gradient of the whole step
    all(value)          every process's value, in a list
    whole(tensor)       the full tensor behind a shard

 1. `Alone` is the team of one process, in which nothing is shared. `Deadline` ends a process that
    hangs, and `stop_on_signals` says how a run ends early.
 2. `Ranks` is the team of several processes. accelerate's launcher or torchrun starts them, with
    RANK and WORLD_SIZE in the environment. On GPUs accelerate shards the model (FSDP2: fp32
    weights, fp32 reduction). On CPUs every rank has the whole model, and gloo sums the gradients.
 3. Rank 0 runs the training loop with a `SharedTrainer`: each call of it is sent to the other
    ranks, and they make the same call of their own trainers (`Ranks.serve`). Only JSON is sent:
    nothing is unpickled.

Ours: the paper names neither a framework nor a layout.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from config import ConfigError
from engines.load import compute_dtype, device_of, longest_tokens
from engines.policy import cost_tokens
from sampler import Rollout, restored
from scaleout.memory import Estimate, device_here, is_short, short_of_memory


class TeamError(RuntimeError):
    """What has ended the run, in one sentence: rank, phase, version, cause."""


def make_team(config):
    """The `Alone` or `Ranks` of this process, from the environment that its launcher has set."""
    return Ranks(config) if int(os.environ.get("WORLD_SIZE", 1)) > 1 else Alone(config)


# ---------------------------------------------------------------------------------------------
# 1. One process


class Alone:
    """The team of one process: the simplest form of everything that a team is asked for."""
    rank, size, name = 0, 1, ""             # name: the first words of its sentences

    def __init__(self, config):
        self.config, self.version = config, 0
        self.deadline = Deadline(config.deadline_s)
        self.memory = None                  # an `Estimate`, as soon as there is a model

    def prepare(self, policy, optimizer, tokenizer):
        """(policy, optimizer) as the team computes with them."""
        config, model = self.config, policy.model
        self.memory = Estimate(
            config, model, *longest_tokens(config, tokenizer, model), policy.dtype,
            device_here(device_of(config) == "cuda"), alone=not config.vllm_url)
        return policy, optimizer

    def mine(self, batches, rollouts):
        """Yield (micro-batch, share): a list of indices of `rollouts`, and 1.0 or 0.0, the factor
        of its loss."""
        costs = [cost_tokens(rollouts, batch) for batch in batches]
        for item in deal(batches, costs, self.size)[self.rank]:
            self.deadline.renew()
            yield item

    def backward(self, loss):
        loss.backward()

    def finish_gradients(self, policy):
        """Called once a step, after the last micro-batch and before the clip."""

    def all(self, value):
        """[value of rank 0, of rank 1, ...] on every rank; values are JSON."""
        return [value]

    def whole(self, tensor):
        """The full tensor, on every rank that asks at the same time."""
        return tensor

    def lead(self, trainer):
        """The trainer that the training loop calls."""
        return trainer

    @contextlib.contextmanager
    def during(self, doing, version=None):
        """Around what may hang or run out of memory: a deadline, and a sentence for each. doing:
        "start", "generate", "train", ...; version: of the weights, None: as before."""
        self.version = self.version if version is None else version
        limit = 3 if doing == "start" else 1
        with self.deadline(f"{self.name}{doing}, version {self.version}", limit):
            try:
                yield
            except RuntimeError as error:
                if not is_short(error):
                    raise
                raise TeamError(self.sentence(error, doing)) from None

    def sentence(self, error, doing):
        if is_short(error):
            text = short_of_memory(error, doing, self.memory, self.size)
        else:                               # without gloo's path in its source, and its advice
            text = re.sub(r"^\[\S*/gloo/\S*\] |[.] This is typically.*", "", str(error).strip())
            text = (text.splitlines() or ["no reason given"])[0]
        return f"{self.name}{doing}, version {self.version}: {text}"

    def cause(self, sentence):
        """Called with the sentence that ends a run: other processes say the same."""
        return sentence

    def close(self):
        """The run is over and all went well."""


def deal(batches, costs, size):
    """[each rank's (micro-batch, share) pairs]: equally many, because the ranks meet in each one.

    batches   lists of sample indices, with their costs in tokens
    share     1.0; or 0.0 where nothing was left for a rank: it repeats the cheapest micro-batch,
              without any effect

    Dealt out from the largest to the smallest, those of one round are of similar cost: a round
    takes as long as its largest.
    """
    order = sorted(range(len(batches)), key=lambda i: (-costs[i], i))
    ranks = [[(batches[i], 1.0) for i in order[rank::size]] for rank in range(size)]
    for mine in ranks:
        if len(mine) < len(ranks[0]):
            mine.append((batches[order[-1]], 0.0))
    return ranks


class Deadline:
    """Ends this process, with a sentence and exit code 1, when it makes no progress for `seconds`.

        with deadline("train, version 3"): ...      `deadline.renew()` inside: some progress

    A kernel or an engine that hangs cannot be interrupted in any other way. Nothing is lost: the
    last checkpoint is on the disk. Ticks are counted and not seconds, because a process that was
    stopped (Ctrl-Z, a sleeping laptop) has not been hanging.
    """
    TICKS = 20

    def __init__(self, seconds):
        self.seconds, self.where, self.limit, self.left = seconds, "", math.inf, math.inf
        # One thread for all that is watched: a thread for each decode step would cost percents.
        threading.Thread(target=self._watch, daemon=True).start()

    @contextlib.contextmanager
    def __call__(self, where, times=1):
        """where: the sentence's first words;  times: as many deadlines, before it ends."""
        before = self.where, self.limit
        self.where, self.limit = where, times * self.TICKS
        self.renew()
        try:
            yield
        finally:
            self.where, self.limit = before
            self.renew()

    def renew(self):
        self.left = self.limit

    def _watch(self):
        while True:
            time.sleep(self.seconds / self.TICKS)
            self.tick()

    def tick(self):
        self.left -= 1
        if self.left < 0:
            frame = sys._current_frames()[threading.main_thread().ident]
            print(f"scalerl.py: {self.where}: no progress for "
                  f"{self.seconds * self.limit / self.TICKS:g} s, at "
                  f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}; if nvidia-smi "
                  "and dmesg show a healthy machine that is only slow, raise deadline_s; --resume "
                  "goes on from the last checkpoint", file=sys.stderr, flush=True)
            os._exit(1)


def stop_on_signals(run):
    """The first Ctrl-C or SIGTERM ends `run` with a checkpoint; a second one ends it at once."""
    def interrupt(number, _):
        run.stop = run.stop or number
        signal.signal(number, signal.default_int_handler)
        print("\nstopping, with a checkpoint; Ctrl-C again stops at once", file=sys.stderr)
    for number in (signal.SIGINT, signal.SIGTERM):
        # Of several ranks, SIGTERM has a handler already: there it means that another has ended.
        # SIGINT is taken also where a shell has made it ignored, as it does for background jobs.
        if number == signal.SIGINT or signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, interrupt)


# ---------------------------------------------------------------------------------------------
# 2. Several processes

LOST_S = 5.0                                # a rank waits so long for the cause of a lost line


class Ranks(Alone):
    """One of several processes, as it sees the others.

    No collective waits longer than deadline_s. If one rank fails, all end with the same sentence:
    the first cause that a rank has left in the store of the rendezvous. A rank that has left none
    is named as dead, stuck or cut off. Raises ConfigError: no servers.
    """

    def __init__(self, config):
        super().__init__(config)
        if not config.vllm_url:
            raise ConfigError("vllm_url = '': several trainer processes need servers to generate; "
                              "give their addresses, or let --trainers and --servers start both")
        from accelerate import Accelerator, FullyShardedDataParallelPlugin, InitProcessGroupKwargs
        from torch.distributed.fsdp import MixedPrecisionPolicy
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.name = f"rank {self.rank}: "
        # A collective's own deadline says more, so the process's comes later.
        self.deadline.seconds = 2 * config.deadline_s + 10
        cuda = device_of(config) == "cuda"
        # Explicit, because accelerate's own policy for bf16 reduces gradients in bf16 and casts
        # the forward's output, our fp32 log-probs, to bf16.
        self.plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", reshard_after_forward=True,
            activation_checkpointing=False, cpu_ram_efficient_loading=False,
            mixed_precision_policy=MixedPrecisionPolicy(param_dtype=compute_dtype(config, cuda),
                                                        reduce_dtype=torch.float32))
        timeout = datetime.timedelta(seconds=config.deadline_s)
        with self.during("start"):
            self.accelerator = Accelerator(
                cpu=not cuda, mixed_precision="no", fsdp_plugin=self.plugin,
                kwargs_handlers=[InitProcessGroupKwargs(timeout=timeout)])
            # Calls travel apart from gradients, over TCP on every machine. The wait for the next
            # one has a group of its own, without a limit.
            self.group = dist.new_group(backend="gloo", timeout=timeout)
            self.calls = dist.new_group(backend="gloo", timeout=datetime.timedelta(days=365))
            self.store = dist.PrefixStore("team", dist.distributed_c10d._get_default_store())

    def prepare(self, policy, optimizer, tokenizer):
        super().prepare(policy, optimizer, tokenizer)
        with self.together("start"):
            # A node may have to download the model that others have: wait for the last one.
            limit = datetime.timedelta(seconds=self.config.start_deadline_s)
            dist.monitored_barrier(self.group, limit, wait_all_ranks=True)
            if self.sharded:
                policy, optimizer = self.accelerator.prepare(policy, optimizer)
                optimizer = optimizer.optimizer
        return policy, optimizer

    @property
    def sharded(self):
        """Has accelerate FSDP2 here, or has every rank the whole model?"""
        return str(self.accelerator.distributed_type).endswith("FSDP")

    # -- what the trainer asks for (`mine` is that of `Alone`) ----------------------------------

    def backward(self, loss):
        # The weights of a step sum to 1, so gradients are summed; FSDP2 takes their mean.
        (loss * self.size if self.sharded else loss).backward()

    def finish_gradients(self, policy):
        if not self.sharded:                # FSDP2 has reduced them in every backward pass
            for parameter in policy.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad, group=self.group)

    def all(self, value):
        data = to_bytes(value)
        sizes = [torch.zeros(1, dtype=torch.long) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(data)]), group=self.group)
        rows = [torch.zeros(int(max(sizes)), dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(rows, torch.nn.functional.pad(data, (0, len(rows[0]) - len(data))),
                        group=self.group)
        return [from_bytes(row[: int(size)]) for row, size in zip(rows, sizes)]

    def whole(self, tensor):
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def lead(self, trainer):
        """Rank 0 gets a trainer that stands for all of them. The others serve until the end."""
        if self.rank:
            sys.exit(self.serve(trainer))
        signal.signal(signal.SIGTERM, self._terminated)
        return SharedTrainer(trainer, self)

    # -- calls --------------------------------------------------------------------------------

    def call(self, name, **arguments):
        """Rank 0: all others call this method of their trainers with these arguments, next."""
        data = to_bytes([name, self.version, arguments])
        dist.broadcast(torch.tensor([len(data)]), 0, group=self.calls)
        dist.broadcast(data, 0, group=self.group)

    def receive(self):
        """The others: (name, version, arguments) of rank 0's next call. It may be hours away. gloo
        notices at once that rank 0 has died; that the network is gone, only a question to the store
        does: it has no answer then, and the deadline ends this process."""
        with self.together("wait for rank 0"):
            size = torch.zeros(1, dtype=torch.long)
            work = dist.broadcast(size, 0, group=self.calls, async_op=True)
            asked = time.monotonic()
            while not work.is_completed():
                time.sleep(0.01)
                if time.monotonic() > asked + 1:        # not oftener: all ranks ask one store
                    self.store.check(["cause"])
                    self.deadline.renew()
                    asked = time.monotonic()
            work.wait()
            data = torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(data, 0, group=self.group)
            return from_bytes(data)

    def serve(self, trainer):
        """The others: make the calls that rank 0 makes, until the end. Returns the exit code."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)        # rank 0 hears it, and ends the run
        while True:
            name, version, arguments = self.receive()
            if name == "close":
                dist.destroy_process_group()
                return 0
            with self.together(PHASES.get(name, name), version):
                try:
                    getattr(trainer, name)(**arguments)
                except FloatingPointError as error:
                    # Rank 0 has the same error, and writes the samples to a file. A launcher ends
                    # all ranks as soon as one ends, so this one waits for rank 0's end.
                    with contextlib.suppress(TeamError):
                        self.receive()
                    raise TeamError(str(error)) from None

    def close(self):
        if self.rank == 0:
            with self.together("close"):
                self.call("close")
                dist.destroy_process_group()

    # -- failure ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def together(self, doing, version=None):
        """`during`, for what all ranks do at the same time: whatever ends it is a TeamError."""
        with self.during(doing, version):
            try:
                yield
            except TeamError:
                raise
            except (RuntimeError, OSError) as error:
                # gloo and NCCL report a lost line to another rank: the cause is there.
                lost = isinstance(error, dist.DistError) or (
                    type(error) is RuntimeError and "/gloo/" in str(error))
                raise TeamError(self.cause(self.sentence(error, doing), lost)) from error

    def _terminated(self, number, frame):
        raise TeamError(self.cause(f"{self.deadline.where or self.name + 'train'}: SIGTERM from "
                                   "outside, has another rank ended?"))

    def cause(self, sentence, lost=False):
        """The first cause that any rank has left in the store; `sentence`, if there is none yet.

        lost    `sentence` tells only of a lost line: wait a few seconds for a better one
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)       # it is being said already
        with self.deadline(sentence), contextlib.suppress(dist.DistError):
            if lost:
                self.store.set(f"rank {self.rank}", "lost")
                end = time.monotonic() + LOST_S
                while not self.store.check(["cause"]) and time.monotonic() < end:
                    time.sleep(0.1)
                silent = [str(rank) for rank in range(self.size) if rank != self.rank
                          and not self.store.check([f"rank {rank}"])]
                if silent:
                    sentence += (f": rank {' or '.join(silent)} is dead, stuck or cut off, look at "
                                 "its log")
            return self.store.compare_set("cause", "", sentence).decode()
        return sentence                                     # the store is gone as well


# ---------------------------------------------------------------------------------------------
# 3. Calls of all ranks

PHASES = {"step": "train"}                  # what sentences call a method of the trainer


class SharedTrainer:
    """Rank 0's trainer, as the training loop calls it: each call is one of all ranks. The same
    methods and attributes as `scalerl.Trainer`."""

    def __init__(self, trainer, team):
        self.trainer, self.team = trainer, team

    def __getattr__(self, name):        # model, tokenizer, dtype, device
        return getattr(self.trainer, name)

    def _call(self, name, own=None, **arguments):
        """own: more arguments, of rank 0's trainer alone."""
        with self.team.together(PHASES.get(name, name), arguments.get("version")):
            self.team.call(name, **arguments)
            return getattr(self.trainer, name)(**arguments, **(own or {}))

    def step(self, rollouts, rewards, version):
        return self._call("step", rollouts=rollouts, rewards=rewards, version=version)

    def logprobs(self, rollouts, head_fp32):
        return self._call("logprobs", rollouts=rollouts, head_fp32=head_fp32)

    def weights(self, dtype=None):
        """A few layers at a time: all ranks gather them, and nobody begins the next before the
        caller asks for it. What the caller does in between, such as a send to the servers, is
        never interleaved with a collective of the ranks, which would hang."""
        for number in range(self.trainer.weight_groups):
            yield from self._call("gather", number=number, dtype=dtype)

    def save(self, folder, **story):
        self._call("save", own=story, folder=folder)

    def load(self, folder):
        self._call("load", folder=folder)


def to_bytes(value):
    """`value` as JSON in a tensor of bytes. Beside plain values it may hold what `decode` makes."""
    return torch.frombuffer(bytearray(json.dumps(value, default=encode).encode()),
                            dtype=torch.uint8)


def from_bytes(data):
    return json.loads(data.numpy().tobytes(), object_hook=decode)


def encode(value):
    if isinstance(value, Rollout):
        return {"Rollout": vars(value)}
    if isinstance(value, torch.Tensor):
        return {"Tensor": [value.flatten().tolist(), list(value.shape)]}
    if isinstance(value, torch.dtype):
        return {"torch": str(value).removeprefix("torch.")}
    return {"Path": str(value)}


def decode(found):
    match found:
        case {"Rollout": fields}:
            return restored(Rollout, fields)
        case {"Tensor": [numbers, shape]}:
            return torch.tensor(numbers).view(shape)
        case {"torch": name}:
            return getattr(torch, name)
        case {"Path": path}:
            return Path(path)
    return found
