"""packed.py: a micro-batch is one row of tokens, without padding, and has each prompt once.

A step's batch is P prompts with G samples each. In P*G padded rows most of the work would be waste,
and each prompt would be computed G times. Here a micro-batch is ONE row,

    [ prompt 0 | prompt 1 | ... | output 0 | output 1 | output 2 | ... ]        (1, T)

so the matrix products, nearly all of the arithmetic, see each real token once. Only attention needs
to know where a sequence begins: a token of an output attends to its whole prompt, and to its output
up to itself. Each layer of transformers calls `packed_attention`, and that a function `attend`
which came with the forward pass, from `Pack` in training, from `Slots` (kv_cache.py) in generation.
So both agree to rounding (1e-5 in fp32). The layout is ours: the paper does not tell its own.
Axes: m prompts, n outputs (samples), T tokens in the row, K output tokens, H query heads, J
key-value heads, D head size, R queries and L keys of the longest sequence of a block."""
import copy
import math

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface

from engines import own_forward

# -- 1. The hook into transformers -----------------------------------------------------------------
@torch.compiler.disable         # of a layer that is compiled: masks change
def packed_attention(module, query, key, value, attention_mask=None, *, attend, scaling=None, **_):
    """Give q, k and v of this layer to `attend`: query (1, H, T, D), key and value (1, J, T, D) ->
    (1, T, H, D) and no attention weights. `_`: what other back ends need."""
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))       # each (T, heads, D)
    return attend(module.layer_idx, q, k, v, scaling)[None], None


AttentionInterface.register("packed", packed_attention)


def forward(model, input_ids, position_ids, attend):
    """Hidden states (T, hidden) of one row, input_ids and position_ids (T,).
    attend: a function (layer, q (T, H, D), k and v (T, J, D), scaling) -> (T, H, D)."""
    out = model.base_model(input_ids=input_ids[None], position_ids=position_ids[None],
                           attend=attend, use_cache=False)
    return own_forward.scaled(model, out.last_hidden_state[0])


def heads(config):
    """(H, J, D) of a text config: query heads, key-value heads, their size; most of any layer."""
    layers = config.per_layer_config if config.is_heterogeneous else [config]
    H = config.num_attention_heads
    return (H, max(getattr(layer, "num_key_value_heads", None) or H for layer in layers),
            max(getattr(layer, "head_dim", None) or config.hidden_size // H for layer in layers))


def rounded_copy(model, dtype):
    """A copy with weights of `dtype`. Buffers stay fp32, which `.to(dtype)` would round: rotary
    frequencies of 8 bits would turn position 10,000 by radians."""
    twin = copy.deepcopy(model)
    for parameter in twin.parameters():
        parameter.data = parameter.data.to(dtype)
    return twin


# -- 2. The row ------------------------------------------------------------------------------------
class Pack:
    """A micro-batch in one row: outputs, and the prompts that they share.

    prompts, outputs (m, n lists of ids, none empty); output i continues prompts[prompt_of[i]]

    input_ids, position_ids (T,)   the row. An output's last token predicts nothing: left out.
    attend                         its attention, for `forward`; head: the size of one
    predict (K,)                   place in the row whose hidden state predicts each output token
    targets, sample, column (K,)   the token, its output's index i, its position t in the output"""

    def __init__(self, prompts, outputs, prompt_of, *, dtype=torch.float32, device="cpu", head=64):
        assert prompts and outputs and all(prompts) and all(outputs)
        rows = [*prompts, *(output[:-1] for output in outputs)]
        places = torch.arange(sum(map(len, rows))).split([len(row) for row in rows])
        asked, answers = places[:len(prompts)], places[len(prompts):]   # of each prompt and output
        positions = [torch.arange(len(prompt)) for prompt in prompts]
        positions += [len(prompts[p]) + torch.arange(len(a)) for p, a in zip(prompt_of, answers)]
        # Token 0 of an output is predicted by its prompt's last token, which G samples share.
        predict = [x for p, answer in zip(prompt_of, answers) for x in (asked[p][-1:], answer)]
        self.input_ids = torch.tensor([t for row in rows for t in row], device=device)
        self.targets = torch.tensor([t for output in outputs for t in output], device=device)
        self.position_ids, self.predict, self.column = (torch.cat(x).to(device) for x in (
            positions, predict, [torch.arange(len(output)) for output in outputs]))
        self.sample = torch.repeat_interleave(torch.tensor([*map(len, outputs)])).to(device)
        queries = [*asked, *filter(len, answers)]       # an output of one token asks nothing
        keys = [*asked, *(torch.cat([asked[p], a]) for p, a in zip(prompt_of, answers) if len(a))]
        kind = flash_attention if uses_flash(dtype, device, head) else DenseAttention
        self.attend = kind(queries, keys, dtype, device)

    def states(self, model):
        return forward(model, self.input_ids, self.position_ids, self.attend)   # (T, hidden)


def pack_rollouts(model, rollouts, dtype):
    """The `Pack` of some rollouts, or of a model that cannot be packed their `own_forward.Rows`."""
    prompts = {r.group_id: r.prompt_ids for r in rollouts}
    place = {group_id: i for i, group_id in enumerate(prompts)}
    kind = Pack if own_forward.is_packed(model) else own_forward.Rows
    return kind([*prompts.values()], [r.output_ids for r in rollouts],
                [place[r.group_id] for r in rollouts], dtype=dtype, device=model.device,
                head=heads(own_forward.text_config(model))[2])


# -- 3. Attention by masks, anywhere ---------------------------------------------------------------
def padded(places, device):
    """n tensors -> (n, longest), zeros behind each, and their lengths (n,)."""
    return (pad_sequence(places, batch_first=True).to(device),
            torch.tensor([len(x) for x in places], device=device))


def take(x, blocks):
    """x (tokens, heads, D), blocks of places (n, L) -> (n, heads, L, D) each. All are read at once,
    or backward would add up a gradient of all of x for each block."""
    parts = x.index_select(0, torch.cat([places.flatten() for places in blocks]))
    return [part.view(*places.shape, *x.shape[1:]).transpose(1, 2) for part, places in
            zip(parts.split([places.numel() for places in blocks]), blocks)]


class MaskedAttention:
    """softmax(q k' * scaling + mask) v for q (n, H, R, D), k and v (n, J, L, D).
    allowed (n, 1, R, L): may a query attend?

    The mask is finite: with -inf, a query that attends to nothing would be NaN. The queries that
    share a key head lie side by side on the query axis: no key is repeated."""

    def __init__(self, allowed, dtype):
        self.mask = torch.where(allowed, torch.zeros((), dtype=dtype), torch.finfo(dtype).min)

    def __call__(self, q, k, v, scaling):
        (n, H, R, D), J = q.shape, k.shape[1]
        q = q.reshape(n, J, H // J * R, D)
        if self.mask.shape[2] < q.shape[2]:     # once for all layers, which keep it for backward
            self.mask = self.mask.repeat(1, 1, H // J, 1)
        return F.scaled_dot_product_attention(q, k, v, self.mask, scale=scaling).reshape(n, H, R, D)


class DenseAttention:
    """Attention of n sequences in blocks of similar lengths: most of a single one would be padding.
    queries, keys: n tensors each, places in the row. The last keys are the queries."""

    def __init__(self, queries, keys, dtype, device):
        blocks, tokens = [], 0
        self.where = torch.empty(sum(map(len, queries)), dtype=torch.long, device=device)
        sizes = [(len(q).bit_length(), len(k).bit_length()) for q, k in zip(queries, keys)]
        for size in sorted(set(sizes)):         # none is padded to more than twice its length
            (q, R), (k, L) = (padded([x for x, its in zip(places, sizes) if its == size], device)
                              for places in (queries, keys))
            column, key = (torch.arange(x.shape[1], device=device) for x in (q, k))
            allowed = key <= (L - R)[:, None, None] + column[:, None]   # (n, R, L)
            blocks.append((q, k, MaskedAttention(allowed[:, None], dtype)))
            real = (column < R[:, None]).flatten().nonzero()[:, 0]
            self.where[q.flatten()[real]] = tokens + real
            tokens += q.numel()
        self.queries, self.keys, self.attentions = zip(*blocks)

    def __call__(self, layer, q, k, v, scaling):
        parts = take(q, self.queries), take(k, self.keys), take(v, self.keys)
        out = [attention(*block, scaling).transpose(1, 2)
               for attention, *block in zip(self.attentions, *parts)]
        return torch.cat([x.flatten(0, 1) for x in out]).index_select(0, self.where)    # (T, H, D)


# -- 4. Attention on GPUs, in 16 bits: a kernel for sequences of different lengths -----------------
def uses_flash(dtype, device, head=64):
    """Is there a kernel without masks? True for 16 bits on a GPU, Ampere or newer, and heads of
    this size: torch asks for a multiple of 8, and 256 at most."""
    fits = dtype.itemsize == 2 and head % 8 == 0 and head <= 256
    return fits and torch.device(device).type == "cuda" and (
        torch.cuda.get_device_capability()[0] >= 8 if torch.cuda.is_available() else True)


def flash_attention(queries, keys, dtype, device):
    """The `attend` of a whole row in one call of torch's FlashAttention; arguments as above. Tests
    without a GPU run these indices with a kernel in plain Python."""
    from torch.nn.attention.varlen import varlen_attn               # its kernel is CUDA's alone
    lengths = [[len(x) for x in places] for places in (queries, keys)]
    ends = [F.pad(torch.tensor(n).cumsum(0), (1, 0)).int().to(device) for n in lengths]
    longest, places = [max(n) for n in lengths], torch.cat(keys).to(device)
    def attend(layer, q, k, v, scaling):
        k, v = (x.to(dtype).index_select(0, places) for x in (k, v))
        # A window of (-1, 0) is causal, counted from the end of each sequence.
        return varlen_attn(q.to(dtype), k, v, *ends, *longest, scale=scaling,
                           window_size=(-1, 0), enable_gqa=q.shape[1] != k.shape[1])
    return attend


# -- 5. How many samples fit into one row ---------------------------------------------------------
def micro_batches(rollouts, budget_tokens):
    """Indices of `rollouts`, cut into lists of about `budget_tokens` tokens, prompts counted once.
    Groups of similar length come together, since their attention can share a block."""
    longest = dict(sorted((r.group_id, len(r.output_ids)) for r in rollouts))   # the last stays
    order = sorted(range(len(rollouts)),
                   key=lambda i: (longest[rollouts[i].group_id], rollouts[i].group_id, i))
    batches, tokens, group = [], math.inf, None
    for i in order:
        r = rollouts[i]
        cost = len(r.output_ids) + (len(r.prompt_ids) if r.group_id != group else 0)
        if tokens + cost > budget_tokens:
            batches.append([])
            tokens, cost = 0, len(r.output_ids) + len(r.prompt_ids)
        batches[-1].append(i)
        tokens, group = tokens + cost, r.group_id
    return batches


def cost_tokens(rollouts, indices):
    """Tokens that these samples cost in one micro-batch: each prompt once, each output."""
    prompts = {rollouts[i].group_id: len(rollouts[i].prompt_ids) for i in indices}
    return sum(prompts.values()) + sum(len(rollouts[i].output_ids) for i in indices)


# -- 6. Rounding -----------------------------------------------------------------------------------
def round_between_products(model, dtype):
    """Have embeddings and norms hand on `dtype`, as weights in `dtype` do in vLLM and FSDP2.
    Autocast rounds operands of products alone: the residual stream would be fp32, twice as big."""
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding) or "Norm" in type(module).__name__:
            module.register_forward_hook(lambda _, __, output: output.to(dtype))
