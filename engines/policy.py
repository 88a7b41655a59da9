"""policy.py: log-probs of rollouts in one forward pass, on one device.

Sharing the work among processes is in scaleout/. Axes: n samples, T tokens (padded).
"""

import math
from collections import Counter

import torch

from engines import packed
from loss import token_logprobs


def table(rollouts, name, dtype):
    """One per-token list of each rollout as a zero-padded (n, T) tensor."""
    rows = [torch.tensor(getattr(r, name), dtype=dtype) for r in rollouts]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def logits_chunk(vocab_size):
    """Tokens whose fp32 logits exist at a time: 512 MiB of them. A matter of memory only."""
    return min(8192, max(16, 2**27 // vocab_size))


def round_between_products(model, dtype):
    """Have embeddings and norms hand on `dtype`, as weights in `dtype` would make them do.

    Autocast rounds the operands of products alone. With fp32 masters the residual stream, norms and
    rotary positions would be fp32: twice the memory and its traffic, and other numbers than those
    of vLLM and of several ranks (FSDP2), whose weights are 16 bits there.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding) or "Norm" in type(module).__name__:
            module.register_forward_hook(lambda _, __, output: output.to(dtype))


class Policy(torch.nn.Module):
    """Log-probs of rollouts under a causal LM: the trainer's forward pass, on every number of GPUs.

    model        a transformers causal LM after `packed.prepare`; fp32 masters
    dtype        of the computation: the weights' own, or bfloat16 (by autocast)
    head_fp32    fp32 logits, or as a bf16 head would round them

    FSDP2 gathers the weight of the head only inside a module's `forward`, so log-probs are computed
    there. This wrapper has no `get_input_embeddings`: accelerate would make FSDP groups of
    embedding and head alone, gathered around calls of `lm_head`, which nobody calls.
    """

    def __init__(self, model, *, temperature=1.0, dtype=torch.float32, head_fp32=True):
        super().__init__()
        self.model = model
        self.temperature, self.dtype, self.head_fp32 = temperature, dtype, head_fp32
        self._no_split_modules = model._no_split_modules        # accelerate: the layers to shard
        if dtype == torch.bfloat16:
            round_between_products(model, dtype)

    def forward(self, rollouts):
        """Log-probs and entropies (no gradient), each (n, T) float32; zero where a token was not
        sampled."""
        weight = self.model.get_output_embeddings().weight
        device = weight.device
        prompts = {r.group_id: r.prompt_ids for r in rollouts}      # each once, for its samples
        place = {group: i for i, group in enumerate(prompts)}
        pack = packed.Pack(list(prompts.values()), [r.output_ids for r in rollouts],
                           [place[r.group_id] for r in rollouts], dtype=self.dtype, device=device)
        # Forced tokens are part of the row, but nobody needs their log-probs.
        sampled = torch.tensor([s for r in rollouts for s in r.sampled], device=device)     # (K,)
        sample, column, predict, targets = (
            x[sampled] for x in (pack.sample, pack.column, pack.predict, pack.targets))
        with torch.autocast(device.type, self.dtype, enabled=self.dtype == torch.bfloat16):
            hidden = packed.forward(self.model, pack.input_ids, pack.position_ids, pack.attend)
            # Autocast rounds the head's operands to bf16, as in the sampler; the gradient is fp32.
            values = token_logprobs(hidden[predict], weight, targets,
                                    temperature=self.temperature, head_fp32=self.head_fp32,
                                    chunk_tokens=logits_chunk(len(weight)))
        T = max(len(r.output_ids) for r in rollouts)
        return tuple(x.new_zeros(len(rollouts), T).index_put((sample, column), x) for x in values)


def micro_batches(rollouts, budget_tokens, ranks=1):
    """Indices of `rollouts`, cut into lists of about `budget_tokens` tokens, prompts counted once.

    Groups of similar length come together, since attention pads to the longest sample. The number
    of lists is a multiple of the ranks where smaller lists allow it: then no rank is idle.
    """
    longest = Counter()
    for r in rollouts:
        longest[r.group_id] = max(longest[r.group_id], len(r.output_ids))
    order = sorted(range(len(rollouts)),
                   key=lambda i: (longest[rollouts[i].group_id], rollouts[i].group_id, i))

    def cut(budget):
        batches, tokens, group = [], math.inf, None
        for i in order:
            r = rollouts[i]
            cost = len(r.output_ids) + (len(r.prompt_ids) if r.group_id != group else 0)
            if tokens + cost > budget:
                batches.append([])
                tokens, cost = 0, len(r.output_ids) + len(r.prompt_ids)
            batches[-1].append(i)
            tokens, group = tokens + cost, r.group_id
        return batches

    batches = cut(budget_tokens)
    wanted = len(batches) + -len(batches) % ranks       # the next multiple of the ranks
    smaller = cost_tokens(rollouts, order) / wanted
    while len(batches) < wanted and smaller < budget_tokens:
        if len(even := cut(smaller)) <= wanted:
            return even
        smaller *= 1.06                 # a few tries up to the budget, none much too large
    return batches


def cost_tokens(rollouts, indices):
    """Tokens that these samples cost in one micro-batch: each prompt once, each output."""
    prompts = {rollouts[i].group_id: len(rollouts[i].prompt_ids) for i in indices}
    return sum(prompts.values()) + sum(len(rollouts[i].output_ids) for i in indices)
