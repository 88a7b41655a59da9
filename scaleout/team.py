"""team.py: the processes that train one model together: `Alone`, or several `Ranks`. Ours.

On GPUs accelerate shards the model (FSDP2: fp32 weights, fp32 reduction); on CPUs every rank has
all of it, and gloo sums the gradients. Rank 0 runs the training loop, and the other ranks repeat
the CALLS of its trainer. torch sends them pickled: private networks only."""
import contextlib
import copy
import datetime
import os
import signal
import time
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from artifacts.resume import Stopped
from engines.load import compute_dtype, device_of
from engines.packed import cost_tokens
from scaleout.supervise import SIGNALS

LOST_S = 5.0                                # a rank waits so long for the cause of a lost line
# `weights` gathers a few layers at a time: a send to the servers amid a collective would hang.
CALLS = ("update", "logprobs", "gather", "save", "load")


def make_team(config):
    """The `Alone` or `Ranks` of this process, from the environment that its launcher has set."""
    several = "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", 1)) > 1
    return Ranks(config) if several else Alone(config)


class Alone:
    """The team of one process: the simplest form of everything that a team is asked for."""
    rank, size = 0, 1

    def __init__(self, config):
        self.config, self.version = config, 0       # version: of the weights
        self.stop = 0                       # the signal that has asked for an end; 0: none has
        self.busy_saving = False            # it is heeded, or a checkpoint is being written
        self.share, self.error = 1.0, ""    # of the micro-batch; of the first that has failed
        self.scale = 1          # of a loss: a step's weights sum to 1, and FSDP2 takes the mean

    def prepare(self, policy, optimizer):
        """(policy, optimizer) as the team computes with them."""
        return policy, optimizer

    def my_batches(self, batches, rollouts):
        """Yield the micro-batches of this process: lists of indices of `rollouts`."""
        costs, self.error = [cost_tokens(rollouts, batch) for batch in batches], ""
        for batch, self.share in deal(batches, costs, self.size)[self.rank]:
            self.raise_if_stopped(self.all(self.stop)[0])   # on every rank at the same time
            yield batch

    def loss(self, function, logprobs, *arguments, **options):
        """function(logprobs, ...) -> (loss, stats) of a micro-batch. An error waits for
        `sum_gradients`: raised here, it would leave others waiting in `backward` for ever."""
        try:
            loss, stats = function(logprobs, *arguments, **options)
        except ValueError as error:
            self.error = self.error or str(error)
            return 0 * logprobs.sum(), {}
        return (loss * self.scale, stats) if self.share else (0 * logprobs.sum(), {})

    def sum_gradients(self, policy, stats):
        """The statistics of all micro-batches; every process has the whole gradient then. Raises
        FloatingPointError: a log-prob of one of them is not finite."""
        parts = self.all((stats, self.error))
        for _, error in parts:
            if error:
                raise FloatingPointError(f"version {self.version}: {error}")
        return [stat for stats, _ in parts for stat in stats]

    def all(self, value):
        """[value of rank 0, of rank 1, ...] on every rank."""
        return [value]

    def full_tensor(self, tensor):
        """The full tensor behind a shard, on every rank that asks at the same time."""
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def lead(self, trainer):
        return trainer

    def begin(self, part, version):
        """A part of a step begins. Raises Stopped: somebody has asked for the end."""
        self.version = version
        if part == "generate":              # between two decode steps
            self.raise_if_stopped(self.stop)

    def raise_if_stopped(self, stop):
        """Raises Stopped: somebody has asked for the end; what follows is a checkpoint."""
        if stop:
            self.busy_saving = True
            raise Stopped

    @contextlib.contextmanager
    def saving(self):
        """Around a checkpoint, which a first signal does not break off."""
        before, self.busy_saving = self.busy_saving, True
        try:
            yield
        finally:
            self.busy_saving = before

    def close(self):
        """The run is over and all went well."""


def deal(batches, costs, size):
    """[each rank's (micro-batch, share) pairs]: equally many, because the ranks meet in each one.
    batches: lists of sample indices, costs: their tokens. A round takes as long as its largest,
    hence the order. Share 0.0: nothing was left for a rank, it repeats the cheapest for nothing."""
    dealt = [(batch, 1.0) for _, batch in sorted(zip(costs, batches), key=lambda each: -each[0])]
    dealt += [(dealt[-1][0], 0.0)] * (-len(dealt) % size)
    return [dealt[rank::size] for rank in range(size)]


class Ranks(Alone):
    """One of several. Collectives have deadline_s (loading: 3 times), the wait for a call none."""

    def __init__(self, config):
        super().__init__(config)
        from accelerate import Accelerator, FullyShardedDataParallelPlugin, InitProcessGroupKwargs
        from torch.distributed.fsdp import MixedPrecisionPolicy
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        cuda = device_of(config) == "cuda"
        # Explicit: accelerate's own for bf16 reduces gradients in bf16, and casts log-probs to it.
        self.plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap",
            cpu_ram_efficient_loading=False, mixed_precision_policy=MixedPrecisionPolicy(
                param_dtype=compute_dtype(config, cuda), reduce_dtype=torch.float32))
        timeout = datetime.timedelta(seconds=config.deadline_s)
        self.accelerator = Accelerator(cpu=not cuda, mixed_precision="no", fsdp_plugin=self.plugin,
                                       kwargs_handlers=[InitProcessGroupKwargs(timeout=timeout)])
        # Calls travel apart from gradients, over TCP; the wait for the next one has no limit.
        self.group = dist.new_group(backend="gloo", timeout=timeout)
        self.calls = dist.new_group(backend="gloo", timeout=datetime.timedelta(days=365))

    def prepare(self, policy, optimizer):
        with self.together("start"):
            # A node may have to download the model that others have: wait for the last one.
            limit = datetime.timedelta(seconds=3 * self.config.deadline_s)
            dist.monitored_barrier(self.group, limit, wait_all_ranks=True)
            self.sharded = str(self.accelerator.distributed_type).endswith("FSDP")      # on GPUs
            if self.sharded:
                policy, optimizer = self.accelerator.prepare(policy, optimizer)
                optimizer, self.scale = optimizer.optimizer, self.size
        return policy, optimizer

    def sum_gradients(self, policy, stats):
        if not self.sharded:                # FSDP2 has reduced them in every backward pass
            for parameter in policy.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad, group=self.group)
        return super().sum_gradients(policy, stats)

    def all(self, value):
        values = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def lead(self, trainer):
        """Rank 0 gets a trainer that stands for all of them. The others serve until the end."""
        if self.rank:
            raise SystemExit(self.serve(trainer))
        leader = copy.copy(trainer)         # what a call itself calls is the trainer's own
        for name in CALLS:
            setattr(leader, name, partial(self.call_all, name, getattr(trainer, name)))
        return leader

    def call_all(self, name, method, *arguments, **own):        # own: of rank 0's trainer alone
        with self.together(name):
            self.call(name, *arguments)
            return method(*arguments, **own)

    def call(self, name=None, *arguments):
        """Rank 0: the others make this call next. They get [name, version, arguments] of it."""
        call = [name, self.version, arguments]
        dist.broadcast(torch.zeros(1), 0, group=self.calls)             # ends their wait
        dist.broadcast_object_list(call, 0, group=self.group)
        return call

    def serve(self, trainer):
        """The others: make the calls that rank 0 makes, until the end. Returns the exit code."""
        for number in SIGNALS:              # of torchrun and Slurm: rank 0 heeds them for all
            signal.signal(number, signal.SIG_IGN)
        while True:
            with self.together("wait for rank 0"):      # gloo notices at once that rank 0 has died
                name, self.version, arguments = self.call()
            if name == "close":
                dist.destroy_process_group()
                return 0
            # Rank 0 has the same error, writes the samples to a file and ends the run.
            with self.together(name), contextlib.suppress(FloatingPointError, Stopped):
                getattr(trainer, name)(*arguments)

    def close(self):                        # only rank 0 comes here
        with self.together("close"):
            self.call("close")
            dist.destroy_process_group()

    @contextlib.contextmanager
    def together(self, doing):
        """Around what all ranks do at the same time. Raises RuntimeError for what ends it. A rank
        that only lost the line waits: a launcher shows the words of the first that ends."""
        try:
            yield
        except (RuntimeError, OSError) as error:
            text, of_torch = str(error).strip(), isinstance(error, dist.DistError)
            # NCCL's cause is in its last line, before C++'s frames. /dev/shm is this rank's own.
            told = text.partition("Exception raised from")[0] if of_torch else text.split("\n")[0]
            line = f"rank {self.rank}: {doing}, version {self.version}: " + " ".join(told.split())
            if of_torch and "shm" not in told or type(error) is RuntimeError and "/gloo/" in text:
                line += ": another rank is dead, stuck or cut off, see its log"
                time.sleep(LOST_S)
            raise RuntimeError(line) from error
