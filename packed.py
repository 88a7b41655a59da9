"""packed.py: one row of tokens, no padding, each prompt computed once.

A step's batch is P prompts with G samples each. Laid out as N = P*G padded rows, most of the
work is waste: short samples are padded to the longest, and each prompt is computed G times.
Here a batch is ONE row instead,

    [ prompt 0 | prompt 1 | ... | output 0 | output 1 | output 2 | ... ]        (1, T)

so the matrix products, nearly all of the arithmetic, see each real token exactly once. Only
attention has to know who may look at whom. transformers hands that decision to us: any model
that uses its attention interface calls `attend` below, layer by layer, with a *plan*:

  1. `Pack`   (training)    outputs look at their own prompt and at their own past;
  2. `Slots`  (generation)  a key-value cache with one slot a sequence. `Slots.prefill` computes
                            new prompts once and copies them to all their samples' slots,
                            `Slots.decode` adds one token to every running sequence.

Both plans do the same arithmetic on the same weights in the same precision, so the sampler's
log-probs and the trainer's agree to rounding (1e-5 in fp32, tested): no engine mismatch.

Rotary and other position information comes from `position_ids`, so where a token lies in the
row does not matter. What this layout cannot do is refused by `prepare`: sliding windows shorter
than the context, soft-capped logits, layers other than attention that mix tokens (convolutions,
Mamba, linear attention), models that bypass the attention interface.

Ours: the paper does not say how its trainer lays out a batch.

Axes: m prompts, n outputs (samples), T tokens in the row, H query heads, J key-value heads,
D head size, C / R longest prompt (the context) / output, L = C + R.
"""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

# ---------------------------------------------------------------------------------------------
# 1. The hook into transformers


def attend(module, query, key, value, attention_mask=None, *, scaling=None, plan=None, **_):
    """The attention interface's function: pass this layer's q, k, v to the plan of this forward.

    query (1, H, T, D), key and value (1, J, T, D) as every transformers model makes them; returns
    (1, T, H, D) and no attention weights. `_` takes what other back ends need (dropout, window).
    """
    if plan is None:
        raise RuntimeError("the attention 'packed' needs a plan: call forward(model, ids, "
                           "positions, plan), or load the model with attn_implementation='sdpa'")
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))       # each (T, heads, D)
    return plan.attend(module.layer_idx, q, k, v, scaling)[None], None


AttentionInterface.register("packed", attend)


def prepare(model):
    """Switch `model` (a transformers causal LM) to packed attention, in place; returns it.

    Raises ValueError for models whose arithmetic this layout would change in silence, and leaves
    them as they were: those with a setting that it knows to be one, and those that score two
    outputs of a dozen tokens otherwise in a row than one by one. That costs three forwards, read
    once each from memory (0.4 s for 135M weights on one core); on the meta device, where there are
    no numbers, they are left out.
    """
    config = model.config
    if config._attn_implementation == "packed":
        return model
    for name in ("final_logit_softcapping", "attn_logit_softcapping"):
        if getattr(config, name, None):
            raise ValueError(f"model config has {name} = {getattr(config, name)}: not supported")
    for name in ("logits_scaling", "logit_scale"):
        if getattr(config, name, 1.0) not in (None, 1.0):
            raise ValueError(f"model config has {name} = {getattr(config, name)}: not supported")
    if getattr(config, "use_sliding_window", True) and getattr(config, "sliding_window", None):
        raise ValueError(f"model config has sliding_window = {config.sliding_window}: packed "
                         "attention sees the whole context; set it to null if yours is shorter")
    others = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "attention"}
    if others:
        raise ValueError(f"model config has layer_types {', '.join(sorted(others))}: not "
                         "supported, in a packed row only full attention knows whose a token is")
    if (getattr(config, "rope_parameters", None) or {}).get("rope_type") == "longrope":
        raise ValueError("model config has rope_parameters of type longrope: not supported, its "
                         "frequencies depend on the longest sequence beside which one is computed")
    head = model.get_output_embeddings()
    if getattr(head, "bias", None) is not None:
        raise ValueError("the LM head has a bias: not supported")
    if head.weight.is_meta:
        model.set_attn_implementation("packed")
        return model
    own, training = config._attn_implementation, [m for m in model.modules() if m.training]
    model.eval()                                    # dropout would make the two sides differ
    try:
        _check_scores(model)
    except BaseException:
        model.set_attn_implementation(own)
        raise
    finally:
        for module in training:
            module.training = True
    return model


@torch.no_grad()
def _check_scores(model):
    """Switch to packed attention. Raises ValueError: then samples of one row see each other."""
    weight, name = model.get_output_embeddings().weight, type(model).__name__
    # Its own generator: a run draws the same numbers as if nothing had been checked.
    ids = random.Random(0).choices(range(len(weight)), k=12)
    prompt, outputs = ids[:4], [ids[4:9], ids[9:]]
    # The two sides round differently: by 6e-6 in fp32 and by 0.3 in bf16 on a model of 135M. What
    # crosses from one sample to the next showed as 0.7 to 4.3.
    tolerance = 0.01 if weight.dtype.itemsize > 2 else 1.0
    try:
        alone = torch.cat([
            model(torch.tensor([prompt + output], device=weight.device), use_cache=False)
            .logits[0, len(prompt) - 1: -1] for output in outputs])
        model.set_attn_implementation("packed")
        pack = Pack([prompt], outputs, [0, 0], dtype=weight.dtype, device=weight.device)
        hidden = forward(model, pack.input_ids, pack.position_ids, pack)
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot compute a packed row ({error!r:.200})") from None
    scores = [logits.float().log_softmax(-1).gather(1, pack.targets[:, None])
              for logits in (alone, F.linear(hidden[pack.predict], weight))]
    worst = (scores[0] - scores[1]).abs().max().item()
    if not worst <= tolerance:
        raise ValueError(f"{name} scores a sample otherwise in a packed row than alone, its "
                         f"log-probs are off by up to {worst:.2g}: something other than full "
                         "attention mixes tokens or changes logits")


def heads(config):
    """(H, J, D) of a transformers config: query heads, key-value heads, and their size."""
    H = config.num_attention_heads
    return (H, getattr(config, "num_key_value_heads", None) or H,
            getattr(config, "head_dim", None) or config.hidden_size // H)


def forward(model, input_ids, position_ids, plan):
    """Hidden states (T, hidden) of one row, input_ids and position_ids (T,), under `plan`."""
    backbone = getattr(model, model.base_model_prefix)
    output = backbone(input_ids=input_ids[None], position_ids=position_ids[None], plan=plan,
                      use_cache=False)
    return output.last_hidden_state[0]


def _attention(q, k, v, mask, scaling):
    """softmax(q k' * scaling + mask) v for q (n, H, R, D), k and v (n, J, L, D), and a `_Mask`.

    With grouped heads (H = g*J) the g queries that share a key head are laid side by side on the
    query axis. Repeating keys and values g times instead would move g times the memory, and
    moving memory is what decoding spends its time on.
    """
    (n, H, R, D), J = q.shape, k.shape[1]
    q = q.reshape(n, J, (H // J) * R, D)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.grouped(H // J), scale=scaling)
    return out.reshape(n, H, R, D)


class _Mask:
    """allowed (n, 1, R, L), True: may look, as the number added to the scores.

    Finite, not -inf: a padded query that may look nowhere would otherwise turn into NaN, and
    NaN * 0 is NaN. Rows lie a multiple of 8 numbers apart: a mask whose rows do not, torch's GPU
    kernel pads into a fresh copy, in every layer.
    """

    def __init__(self, allowed, dtype):
        self.groups, (self.queries, self.keys) = 1, allowed.shape[2:]
        allowed = F.pad(allowed, (0, -self.keys % 8))
        self.added = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(
            ~allowed, torch.finfo(dtype).min)

    def grouped(self, groups):
        """(n, 1, groups * R, L), one and the same tensor for all layers: each keeps what it was
        given until the backward pass, and at 16k tokens one copy a layer would be gigabytes."""
        if groups != self.groups:
            self.added = self.added[:, :, : self.queries].repeat(1, 1, groups, 1)
            self.groups = groups
        return self.added[..., : self.keys]


# ---------------------------------------------------------------------------------------------
# 2. Training: prompts once, outputs after them


class _Scatter(torch.autograd.Function):
    """Rows x (T, ...) to a zeroed buffer at distinct places (T,): its transpose is a gather.

    Autograd's own rules would be right too, but the backward of a gather is an `index_add_`,
    which on the CPU costs a microsecond a row; as places are distinct, a copy is enough.
    """

    @staticmethod
    def forward(ctx, x, places, size):
        ctx.save_for_backward(places)
        return x.new_zeros(size, *x.shape[1:]).index_copy_(0, places, x)

    @staticmethod
    def backward(ctx, grad):
        return grad.index_select(0, ctx.saved_tensors[0]), None, None


class _Gather(torch.autograd.Function):
    """The transpose of `_Scatter`: rows of x (size, ...) at distinct places (T,)."""

    @staticmethod
    def forward(ctx, x, places):
        ctx.save_for_backward(places)
        ctx.size = x.shape[0]
        return x.index_select(0, places)

    @staticmethod
    def backward(ctx, grad):
        places, = ctx.saved_tensors
        return grad.new_zeros(ctx.size, *grad.shape[1:]).index_copy_(0, places, grad), None


class _Ragged:
    """Where the tokens of sequences of different lengths lie in a padded (rows, width) block."""

    def __init__(self, lengths, device):
        self.lengths = torch.as_tensor(lengths, dtype=torch.long)
        self.rows, self.width = len(lengths), int(self.lengths.max()) if len(lengths) else 0
        self.tokens = int(self.lengths.sum())
        row = torch.repeat_interleave(torch.arange(self.rows), self.lengths)
        start = torch.cumsum(self.lengths, 0) - self.lengths
        self.column = torch.arange(self.tokens) - start[row]
        self.places = (row * self.width + self.column).to(device)
        self.row, self.column, self.start = row.to(device), self.column.to(device), start.to(device)
        self.lengths = self.lengths.to(device)

    def pad(self, x):
        """(tokens, heads, D) -> (rows, heads, width, D)"""
        x = _Scatter.apply(x, self.places, self.rows * self.width)
        return x.view(self.rows, self.width, *x.shape[1:]).transpose(1, 2)

    def unpad(self, x):
        """(rows, heads, width, D) -> (tokens, heads, D)"""
        x = x.transpose(1, 2).reshape(self.rows * self.width, x.shape[1], x.shape[3])
        return _Gather.apply(x, self.places)


def uses_flash(attention, dtype, device):
    """Does `Pack` take the kernel without masks? attention: the setting; "auto": where it can.
    Raises ValueError where there is no such kernel."""
    can = torch.device(device).type == "cuda" and dtype.itemsize == 2 and (
        torch.cuda.get_device_capability()[0] >= 8 if torch.cuda.is_available() else True)
    if attention == "flash" and not can:
        raise ValueError(f'attention = "flash": its kernel needs a GPU (Ampere or newer) and 16 '
                         f'bits, not {dtype} on {device}; use "auto" or "dense"')
    return can and attention != "dense"


class Pack:
    """A micro-batch of outputs and the prompts they share, and the plan of its forward.

    prompts     m lists of token ids, none empty
    outputs     n lists of token ids, none empty
    prompt_of   n indices: output i continues prompts[prompt_of[i]]
    flash       attention without masks and padding, by a kernel that only GPUs have, in bf16 and
                fp16. Not run on a GPU so far: a test runs its indices with a kernel in plain
                Python.

    input_ids, position_ids (T,)   the row. An output's last token predicts nothing: left out.
    predict (K,)                   place in the row whose hidden state predicts each output token
    targets, sample, column (K,)   the token, its output's index i, its position t in the output
    """

    def __init__(self, prompts, outputs, prompt_of, *, dtype=torch.float32, device="cpu",
                 flash=False):
        assert prompts and outputs and all(prompts) and all(outputs)
        self.prompt_of = torch.as_tensor(prompt_of, device=device)
        self.prompts = _Ragged([len(p) for p in prompts], device)
        self.inputs = _Ragged([len(o) - 1 for o in outputs], device)    # without the last token
        full = _Ragged([len(o) for o in outputs], device)
        ids = [t for p in prompts for t in p] + [t for o in outputs for t in o[:-1]]
        self.input_ids = torch.tensor(ids, device=device)
        prompt_length = self.prompts.lengths[self.prompt_of]                         # (n,)
        self.position_ids = torch.cat([
            self.prompts.column, self.inputs.column + prompt_length[self.inputs.row]])

        # Token 0 of an output is predicted by its prompt's last token, which G samples share;
        # token t > 0 by the output's own token t - 1. Getting this shift wrong by one is the
        # classic silent bug; the test compares with a plain forward of each sequence.
        last_of_prompt = (self.prompts.start + self.prompts.lengths - 1)[self.prompt_of]
        first_input = self.prompts.tokens + self.inputs.start
        self.sample, self.column = full.row, full.column
        self.predict = torch.where(self.column == 0, last_of_prompt[self.sample],
                                   first_input[self.sample] + self.column - 1)
        self.targets = torch.tensor([t for o in outputs for t in o], device=device)

        self.dtype, self.flash = dtype, flash
        if flash:
            self._index_keys()
            return
        # Masks, made once and used by every layer. Prompts: causal. Outputs: all of the own
        # prompt (not its padding), then causal among themselves.
        C, R = self.prompts.width, self.inputs.width
        arange = lambda size: torch.arange(size, device=device)                    # noqa: E731
        causal_C = arange(C)[:, None] >= arange(C)
        self.prompt_mask = _Mask(causal_C[None, None], dtype)
        if R:
            real = arange(C) < prompt_length[:, None]                                # (n, C)
            causal_R = (arange(R)[:, None] >= arange(R)).expand(len(outputs), R, R)
            allowed = torch.cat([real[:, None].expand(-1, R, -1), causal_R], -1)     # (n, R, C+R)
            self.output_mask = _Mask(allowed[:, None], dtype)

    def _index_keys(self):
        """For `_flash`: the place in the row of each sequence's keys, an output's after its
        prompt's, and where each sequence's queries and keys end."""
        real = self.inputs.lengths > 0                  # an output of one token has no query
        prompt = self.prompt_of[real]
        r, p = self.inputs.lengths[real], self.prompts.lengths[prompt]
        start = torch.stack([self.prompts.start[prompt],
                             self.prompts.tokens + self.inputs.start[real]], 1).flatten()
        start = torch.cat([self.prompts.start, start])
        length = torch.cat([self.prompts.lengths, torch.stack([p, r], 1).flatten()])
        first = torch.cumsum(length, 0) - length
        self.keys = torch.repeat_interleave(start - first, length)
        self.keys += torch.arange(len(self.keys), device=self.keys.device)
        queries = torch.cat([self.prompts.lengths, r])
        keys = torch.cat([self.prompts.lengths, p + r])
        self.ends = [F.pad(torch.cumsum(n, 0), (1, 0)).int() for n in (queries, keys)]
        self.longest = [int(n.max()) for n in (queries, keys)]

    def _flash(self, q, k, v, scaling):
        """One call for the whole row: torch's FlashAttention for sequences of different lengths.

        A window of (-1, 0) is causal, counted from each sequence's end: the first token of an
        output sees its prompt and itself. Queries come in the order of the row.
        """
        from torch.nn.attention.varlen import varlen_attn           # its kernel is CUDA's alone
        k, v = (x.to(self.dtype).index_select(0, self.keys) for x in (k, v))
        return varlen_attn(q.to(self.dtype), k, v, *self.ends, *self.longest, scale=scaling,
                           window_size=(-1, 0), enable_gqa=q.shape[1] != k.shape[1])

    def attend(self, layer, q, k, v, scaling):
        """q (T, H, D), k and v (T, J, D) -> (T, H, D). Every layer is alike to this plan."""
        if self.flash:
            return self._flash(q, k, v, scaling)
        tp = self.prompts.tokens
        qp, kp, vp = (self.prompts.pad(x[:tp]) for x in (q, k, v))     # (m, heads, C, D)
        out = self.prompts.unpad(_attention(qp, kp, vp, self.prompt_mask, scaling))
        if not self.inputs.tokens:                      # every output is a single token
            return out
        qo, ko, vo = (self.inputs.pad(x[tp:]) for x in (q, k, v))      # (n, heads, R, D)
        # The prompt's keys and values serve all its samples; backward sums their gradients.
        ko = torch.cat([kp.index_select(0, self.prompt_of), ko], 2)    # (n, J, C+R, D)
        vo = torch.cat([vp.index_select(0, self.prompt_of), vo], 2)
        return torch.cat([out, self.inputs.unpad(_attention(qo, ko, vo, self.output_mask,
                                                            scaling))])


# ---------------------------------------------------------------------------------------------
# 3. Generation: one slot a sequence


class Slots:
    """Key-value cache of up to `slots` sequences of up to `length` tokens each.

    keys, values: per layer (slots, J, length, D). The running sequences are always the first
    `active` slots (`move` keeps it so), and attention reads them only up to the longest one, as
    a view: nothing is copied to decode, and nobody decodes for a sequence that has ended.
    """

    def __init__(self, config, slots, length, *, dtype=torch.float32, device="cpu"):
        _, J, D = heads(config)
        shape = (slots, J, length, D)
        layers = range(config.num_hidden_layers)
        # Zeros, not empty: a mask multiplies what lies behind it by zero, and NaN * 0 is NaN.
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in layers]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in layers]
        self.lengths = torch.zeros(slots, dtype=torch.long, device=device)  # tokens in the cache
        self.active, self.slots, self.length = 0, slots, length
        self.dtype, self.device = dtype, device

    def prefill(self, model, prompts, samples):
        """Compute `prompts` (m lists of ids) once each; give each `samples[i]` new slots at the
        end of the active ones. Returns each prompt's last hidden state (m, hidden)."""
        self._ragged = _Ragged([len(p) for p in prompts], self.device)
        self._mask = _Mask(torch.ones(self._ragged.width, self._ragged.width,
                               dtype=torch.bool, device=self.device).tril()[None, None], self.dtype)
        self._owner = torch.repeat_interleave(torch.arange(len(prompts)),
                                              torch.tensor(samples)).to(self.device)
        new = slice(self.active, self.active + len(self._owner))
        assert new.stop <= self.slots, f"{new.stop} sequences, {self.slots} slots"
        self._new, self._step = new, self._attend_prefill
        ids = torch.tensor([t for p in prompts for t in p], device=self.device)
        hidden = forward(model, ids, self._ragged.column, self)
        self.lengths[new] = self._ragged.lengths[self._owner]
        self.active = new.stop
        return hidden[self._ragged.start + self._ragged.lengths - 1]

    def _attend_prefill(self, layer, q, k, v, scaling):
        q, k, v = (self._ragged.pad(x) for x in (q, k, v))               # (m, heads, C, D)
        width = self._ragged.width
        self.keys[layer][self._new, :, :width] = k[self._owner]
        self.values[layer][self._new, :, :width] = v[self._owner]
        return self._ragged.unpad(_attention(q, k, v, self._mask, scaling))

    def decode(self, model, tokens):
        """Feed one token to each active sequence, tokens (active,); returns (active, hidden)."""
        n = self.active
        self._places = (torch.arange(n, device=self.device), self.lengths[:n].clone())
        self._width = int(self._places[1].max()) + 1
        seen = torch.arange(self._width, device=self.device) <= self._places[1][:, None]
        self._mask = _Mask(seen[:, None, None], self.dtype)          # (n, 1, 1, width)
        self._step = self._attend_decode
        hidden = forward(model, tokens, self._places[1], self)
        self.lengths[:n] += 1
        return hidden

    def _attend_decode(self, layer, q, k, v, scaling):
        row, column = self._places
        self.keys[layer][row, :, column] = k                             # k (n, J, D)
        self.values[layer][row, :, column] = v
        n, width = len(row), self._width
        out = _attention(q[:, :, None], self.keys[layer][:n, :, :width],
                         self.values[layer][:n, :, :width], self._mask, scaling)
        return out[:, :, 0]                                              # (n, H, D)

    def attend(self, layer, q, k, v, scaling):
        return self._step(layer, q, k, v, scaling)

    def move(self, sources, targets):
        """Copy whole sequences between slots: to close the holes that finished ones leave."""
        if len(sources):
            width = int(self.lengths[: self.active].max())
            for cache in (*self.keys, *self.values):
                cache[targets, :, :width] = cache[sources, :, :width]
            self.lengths[targets] = self.lengths[sources]
