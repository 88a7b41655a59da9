"""ranks.py: what one or several trainer processes do together.

With one process there is nothing to agree on, and every function here does nothing or the plain
thing: one process, DDP and FSDP2 are one code path. With several (`torchrun` or `accelerate
launch` has set RANK and WORLD_SIZE):

  1. `Policy`   tokens in, log-probs out, in one module's forward: FSDP2 gathers the head's weight
                only inside it, and reduces its gradient rightly only from there;
  2. `deal`     who computes which micro-batch: the same number for everybody, or a collective
                would wait for a rank that has nothing left to do;
  3. `Ranks`    rank 0 tells the story and `tell`s what comes next; the others `hear` and take
                part. Everything that travels is JSON or safetensors: nothing is unpickled;
  4. `full_tensors`   the whole weights, from shards, for the generators and for `model/`.

accelerate makes the process group and shards the model: FSDP2 with fp32 masters and fp32
reduction on GPUs, DDP on a CPU (where accelerate shards nothing).

Ours: the paper names neither a framework nor a layout.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

import packed
from loss import token_logprobs
from sampler import Rollout


class RankError(RuntimeError):
    """What ended a run of several ranks, in a sentence: phase, rank, version, where to look."""


# ---------------------------------------------------------------------------------------------
# 1. Log-probs as one module's forward


def table(rollouts, name, dtype):
    """One per-token list of each rollout as a zero-padded (N, T) tensor."""
    rows = [torch.tensor(getattr(r, name), dtype=dtype) for r in rollouts]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


class Policy(torch.nn.Module):
    """Log-probs of rollouts under a causal LM: what the trainer runs, in every placement.

    model         a transformers causal LM after `packed.prepare`; fp32 masters
    temperature   the sampler's
    dtype         of the computation: the weights' own, or bfloat16 (by autocast; FSDP2 gathers
                  weights in it as well)
    head_fp32     fp32 logits, or as a bf16 head would round them

    The head is read here and not by the caller, since outside this forward its weight is a shard.
    A wrapper without `get_input_embeddings` also keeps accelerate from giving embedding and head
    FSDP groups of their own, which would be gathered only around calls of `lm_head`: never. In
    the root's group, tied or not, they are whole from here until the end of the backward pass.
    """

    def __init__(self, model, *, temperature=1.0, dtype=torch.float32, head_fp32=True):
        super().__init__()
        self.model = model
        self.temperature, self.dtype, self.head_fp32 = temperature, dtype, head_fp32
        self._no_split_modules = model._no_split_modules        # accelerate: the layers to shard

    def forward(self, rollouts, head_fp32=None):
        """Log-probs and entropies, each (n, T) float32, of the n rollouts' tokens; zero where a
        token was not sampled. Entropies carry no gradient."""
        head_fp32 = self.head_fp32 if head_fp32 is None else head_fp32
        weight = self.model.get_output_embeddings().weight
        device = weight.device
        prompts = {r.group_id: r.prompt_ids for r in rollouts}
        place = {group: i for i, group in enumerate(prompts)}
        pack = packed.Pack(list(prompts.values()), [r.output_ids for r in rollouts],
                           [place[r.group_id] for r in rollouts], dtype=self.dtype, device=device)
        with torch.autocast(device.type, self.dtype, enabled=self.dtype == torch.bfloat16):
            hidden = packed.forward(self.model, pack.input_ids, pack.position_ids, pack)
        sampled = table(rollouts, "sampled", torch.bool).to(device)[pack.sample, pack.column]
        predict, targets, place = (x[sampled] for x in (
            pack.predict, pack.targets, torch.stack([pack.sample, pack.column], 1)))
        # The head's operands as the sampler has them: rounded to bf16 where it computes in bf16.
        values = token_logprobs(hidden[predict].to(self.dtype), weight.to(self.dtype), targets,
                                temperature=self.temperature, head_fp32=head_fp32)
        T = max(len(r.output_ids) for r in rollouts)
        return tuple(x.new_zeros(len(rollouts), T).index_put(tuple(place.T), x) for x in values)


# What a rank computes when it has no micro-batch left: the same collectives, no gradient.
BLANK = Rollout("", 0, (0,), [0], [0.0], [0], [True], "stop", False)


def recompute_layers(model):
    """Recompute each layer in the backward pass instead of keeping its activations, in place: a
    third more arithmetic for memory that no longer grows with layers x tokens. The method is
    replaced and not the module, so that parameters keep their names."""
    def recomputing(forward):
        def wrapped(*args, **kwargs):
            if not torch.is_grad_enabled():                         # the sampler's decode steps
                return forward(*args, **kwargs)
            return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False,
                              **kwargs)                             # there is no dropout
        return wrapped
    for layer in model.modules():
        if type(layer).__name__ in model._no_split_modules:
            layer.forward = recomputing(layer.forward)


# ---------------------------------------------------------------------------------------------
# 2. Who computes what


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
# 3. Rank 0 and the others


class Ranks:
    """The processes that train one model together, as one of them sees them.

    rank, size     this process and how many there are; size 1 (no launcher): nothing is sent
    deadline_s     no collective waits longer; while rank 0 waits for samples it says so every
                   few seconds, so that the others' wait for it can be as short
    dtype          compute in bfloat16 (FSDP2 gathers weights in it, reduces gradients in fp32)

    Raises RankError from every method when another rank is dead, stuck or cut off.
    """

    def __init__(self, *, deadline_s=600.0, cpu=True, dtype=torch.float32):
        self.rank, self.size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.deadline_s = deadline_s
        self.doing, self.version = "start", 0
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
        self.accelerator = Accelerator(
            cpu=cpu, mixed_precision="no", fsdp_plugin=self.plugin,
            kwargs_handlers=[InitProcessGroupKwargs(timeout=timeout)])
        # Commands travel apart from gradients, over TCP on every machine.
        self.group = dist.new_group(backend="gloo", timeout=timeout)

    def prepare(self, policy, optimizer):
        """(policy, optimizer) as all ranks share them; as they were if there is one rank."""
        if self.size == 1:
            return policy, optimizer
        policy, optimizer = self.accelerator.prepare(policy, optimizer)
        return policy, optimizer.optimizer

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


def meets(policy, last):
    """Context of a micro-batch's forward and backward. DDP sums gradients over the ranks once a
    step, at the last; FSDP2 each time, because an unsharded gradient is what it has no room for."""
    ddp = isinstance(policy, torch.nn.parallel.DistributedDataParallel)
    return policy.no_sync() if ddp and not last else contextlib.nullcontext()


def whole(tensor):
    """The full tensor behind shards, on every rank; a plain tensor as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
