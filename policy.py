"""policy.py: log-probs of rollouts in one forward, and what a forward is given.

What one device needs to train: `Policy` turns the sampler's tokens into log-probs, `micro_batches`
says which samples go through it together, `shape_layers` how its layers run. Everything that
several processes need, and one does not, is in ranks.py.

Log-probs are one module's forward because FSDP2 gathers the head's weight only inside it, and
reduces its gradient rightly only from there.

Ours: the paper names neither a framework nor a layout. Axes: n samples, T tokens.
"""

from __future__ import annotations

import math
import types
from collections import Counter

import torch
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

import packed
from loss import token_logprobs


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
    flash         `packed.Pack`'s;  chunk_tokens: `token_logprobs`'

    The head is read here and not by the caller, since outside this forward its weight is a shard.
    A wrapper without `get_input_embeddings` also keeps accelerate from giving embedding and head
    FSDP groups of their own, which would be gathered only around calls of `lm_head`: never. In
    the root's group, tied or not, they are whole from here until the end of the backward pass.
    """

    def __init__(self, model, *, temperature=1.0, dtype=torch.float32, head_fp32=True, flash=False,
                 chunk_tokens=1024):
        super().__init__()
        self.model, self.flash, self.chunk_tokens = model, flash, chunk_tokens
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
                           [place[r.group_id] for r in rollouts], dtype=self.dtype, device=device,
                           flash=self.flash)
        sampled = table(rollouts, "sampled", torch.bool).to(device)[pack.sample, pack.column]
        predict, targets, place = (x[sampled] for x in (
            pack.predict, pack.targets, torch.stack([pack.sample, pack.column], 1)))
        with torch.autocast(device.type, self.dtype, enabled=self.dtype == torch.bfloat16):
            hidden = packed.forward(self.model, pack.input_ids, pack.position_ids, pack)
            # Autocast gives the head its operands as the sampler has them, rounded to bf16 where
            # it computes in bf16; the gradient of the fp32 weight stays fp32.
            values = token_logprobs(hidden[predict], weight, targets,
                                    temperature=self.temperature, head_fp32=head_fp32,
                                    chunk_tokens=self.chunk_tokens)
        T = max(len(r.output_ids) for r in rollouts)
        return tuple(x.new_zeros(len(rollouts), T).index_put(tuple(place.T), x) for x in values)


@torch.no_grad()
def logprobs_of(policy, rollouts, head_fp32, budget_tokens):
    """Log-probs (n, T) without a gradient, a micro-batch at a time; with several ranks, all of
    them on all ranks together."""
    rows = [None] * len(rollouts)
    for indices in micro_batches(rollouts, budget_tokens):
        for i, row in zip(indices, policy([rollouts[i] for i in indices], head_fp32)[0]):
            rows[i] = row
    if isinstance(policy, FSDPModule):
        policy.reshard()        # only a backward pass would, and the next forward would use these
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def micro_batches(rollouts, budget_tokens, ranks=1):
    """Indices of `rollouts`, cut into lists of about `budget_tokens` tokens, prompts counted once.

    Groups of similar length come together (attention pads to the longest sample of a
    micro-batch), and a group stays together, so that its prompt is computed once. For several
    ranks, smaller ones if that makes their number a multiple of the ranks: nobody idles.
    """
    longest = Counter()
    for r in rollouts:
        longest[r.group_id] = max(longest[r.group_id], len(r.output_ids))
    order = sorted(range(len(rollouts)),
                   key=lambda i: (longest[rollouts[i].group_id], rollouts[i].group_id, i))

    def cut(budget):
        batches, tokens, groups = [], math.inf, set()
        for i in order:
            r = rollouts[i]
            cost = len(r.output_ids) + (len(r.prompt_ids) if r.group_id not in groups else 0)
            if tokens + cost > budget:
                batches.append([])
                tokens, groups, cost = 0, set(), len(r.output_ids) + len(r.prompt_ids)
            batches[-1].append(i)
            groups.add(r.group_id)
            tokens += cost
        return batches
    batches = cut(budget_tokens)
    if places := -len(batches) % ranks:
        smaller = cost_tokens(rollouts, order) / (places + len(batches))
        while smaller < budget_tokens:
            if len(even := cut(smaller)) <= places + len(batches):
                return even
            smaller *= 1.06             # a few tries up to the budget, none much too large
    return batches


def cost_tokens(rollouts, indices):
    """Tokens that these samples cost in one micro-batch: each prompt once, each output."""
    prompts = {rollouts[i].group_id: len(rollouts[i].prompt_ids) for i in indices}
    return sum(prompts.values()) + sum(len(rollouts[i].output_ids) for i in indices)


def check_compile(device):
    """Seconds now, or an error in the first step. Raises ValueError: nothing compiles here."""
    try:
        torch.compile(torch.sin, options={"fx_graph_cache": False})(torch.zeros(2, device=device))
    except RuntimeError as error:
        raise ValueError("compile_layers = true: torch.compile does not work here "
                         f"({str(error).splitlines()[0]})") from None


def shape_layers(model, device, *, recompute=False, compiled=False):
    """How the layers of `model` run while it is trained, in place; a sampler's steps stay as they
    are. The method is replaced and not the module, so that parameters keep their names.

    recompute   each layer again in the backward pass instead of keeping its activations: a third
                more arithmetic for memory that no longer grows with layers x tokens
    compiled    by torch.compile, once for all layers and lengths; attention, whose plan is another
                one for each micro-batch, stays out of it. device: where it will run
    Raises ValueError where nothing can be compiled, or no layers are known.
    """
    if not (recompute or compiled):
        return
    layers = [m for m in model.modules() if type(m).__name__ in (model._no_split_modules or ())]
    if not layers:
        raise ValueError("recompute_layers and compile_layers need to know the model's layers: "
                         f"transformers names none of {type(model).__name__}")
    train = {kind: kind.forward for kind in map(type, layers)}
    if compiled:
        check_compile(device)
        AttentionInterface.register("packed", torch.compiler.disable(packed.attend))
        train = {kind: torch.compile(step, dynamic=True) for kind, step in train.items()}

    def forward(layer, *args, **kwargs):
        kind = next(kind for kind in type(layer).__mro__ if kind in train)  # FSDP2 makes its own
        if not torch.is_grad_enabled():
            return kind.forward(layer, *args, **kwargs)
        if not recompute:
            return train[kind](layer, *args, **kwargs)
        return checkpoint(train[kind], layer, *args, use_reentrant=False, preserve_rng_state=False,
                          **kwargs)                                         # there is no dropout
    for layer in layers:
        layer.forward = types.MethodType(forward, layer)
