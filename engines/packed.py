"""packed.py: one row of tokens, no padding, each prompt computed once.

A step's batch is P prompts with G samples each. In P*G padded rows most of the work would be waste,
and each prompt would be computed G times. Here it is ONE row,

    [ prompt 0 | prompt 1 | ... | output 0 | output 1 | output 2 | ... ]        (1, T)

so the matrix products, nearly all of the arithmetic, see each real token exactly once. Only
attention needs to know where a sequence begins: a token of a prompt attends to its prompt up to
itself, a token of an output to the whole of its own prompt and to its own output up to itself.
transformers lets us compute this: each layer of a model calls `packed_attention` below, and that
calls a function `attend` which came with the forward pass, from `Pack` in training, from `Slots`
(kv_cache.py) in generation. So sampler and trainer agree to rounding (1e-5 in fp32, tested).

Ours: the paper does not say how its trainer lays out a batch.
Axes: m prompts, n outputs (samples), T tokens in the row, K output tokens, H query heads, J
key-value heads, D head size, C / R longest prompt (the context) / output, L = C + R.
"""

import copy
import functools
import importlib.util
import random

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

# -- 1. The hook into transformers -----------------------------------------------------------------

def packed_attention(module, query, key, value, attention_mask=None, *, attend, scaling=None, **_):
    """Give q, k and v of this layer to `attend`: query (1, H, T, D), key and value (1, J, T, D) ->
    (1, T, H, D) and no attention weights. `_` is what other back ends need (dropout, window)."""
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))       # each (T, heads, D)
    return attend(module.layer_idx, q, k, v, scaling)[None], None


AttentionInterface.register("packed", packed_attention)


def forward(model, input_ids, position_ids, attend):
    """Hidden states (T, hidden) of one row, input_ids and position_ids (T,).
    attend: a function (layer, q (T, H, D), k and v (T, J, D), scaling) -> (T, H, D)."""
    return model.base_model(input_ids=input_ids[None], position_ids=position_ids[None],
                            attend=attend, use_cache=False).last_hidden_state[0]


def heads(config):
    """(H, J, D) of a transformers config: query heads, key-value heads, and their size."""
    H = config.num_attention_heads
    return (H, getattr(config, "num_key_value_heads", None) or H,
            getattr(config, "head_dim", None) or config.hidden_size // H)


def rounded_copy(model, dtype):
    """A copy of the model with weights of `dtype`. Its buffers stay fp32: rotary frequencies of 8
    bits would turn position 10,000 by radians, which `.to(dtype)` does in silence."""
    twin = copy.deepcopy(model)
    for parameter in twin.parameters():
        parameter.data = parameter.data.to(dtype)
    return twin


# -- 2. The row ------------------------------------------------------------------------------------

class Pack:
    """A micro-batch in one row: outputs, and the prompts that they share.

    prompts, outputs (m, n lists of ids, none empty); output i continues prompts[prompt_of[i]]
    flash                          attention by a kernel without masks. None: where there is one

    input_ids, position_ids (T,)   the row. An output's last token predicts nothing: left out.
    attend                         its attention, for `forward`
    predict (K,)                   place in the row whose hidden state predicts each output token
    targets, sample, column (K,)   the token, its output's index i, its position t in the output
    """

    def __init__(self, prompts, outputs, prompt_of, *, dtype=torch.float32, device="cpu",
                 flash=None):
        assert prompts and outputs and all(prompts) and all(outputs)
        prompt_of = torch.as_tensor(prompt_of, device=device)
        in_prompts = Padding([len(p) for p in prompts], device)
        inputs = Padding([len(o) - 1 for o in outputs], device)         # without the last token
        full = Padding([len(o) for o in outputs], device)
        ids = [t for p in prompts for t in p] + [t for o in outputs for t in o[:-1]]
        self.input_ids = torch.tensor(ids, device=device)
        prompt_length = in_prompts.lengths[prompt_of]                                   # (n,)
        self.position_ids = torch.cat([
            in_prompts.column, inputs.column + prompt_length[inputs.row]])

        # Token 0 of an output is predicted by its prompt's last token, which G samples share;
        # token t > 0 by the output's own token t - 1.
        last_of_prompt = (in_prompts.start + in_prompts.lengths - 1)[prompt_of]
        first_input = in_prompts.tokens + inputs.start
        self.sample, self.column = full.row, full.column
        self.predict = torch.where(self.column == 0, last_of_prompt[self.sample],
                                   first_input[self.sample] + self.column - 1)
        self.targets = torch.tensor([t for o in outputs for t in o], device=device)
        flash = uses_flash(dtype, device) if flash is None else flash
        self.attend = (FlashAttention if flash else DenseAttention)(
            in_prompts, inputs, prompt_of, dtype)


class Padding:
    """Places of the tokens of sequences of different lengths in a padded block (rows, width).

    lengths, start (rows,)   tokens of each sequence; place of its first token among all tokens
    row, column (tokens,)    each token's sequence, and its place in that sequence
    """

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
        x = x.new_zeros(self.rows * self.width, *x.shape[1:]).index_copy_(0, self.places, x)
        return x.view(self.rows, self.width, *x.shape[1:]).transpose(1, 2)

    def unpad(self, x):
        """(rows, heads, width, D) -> (tokens, heads, D)"""
        x = x.transpose(1, 2).reshape(self.rows * self.width, x.shape[1], x.shape[3])
        return x.index_select(0, self.places)


# -- 3. Attention by masks: anywhere. Sequences are padded to blocks, masks hide the padding -------

def attention(q, k, v, mask, scaling):
    """softmax(q k' * scaling + mask) v for q (n, H, R, D), k and v (n, J, L, D).

    With grouped heads (H = g*J) the g queries that share a key head are laid side by side on the
    query axis. Repeating keys and values would move g times the memory, the cost of decoding.
    """
    (n, H, R, D), J = q.shape, k.shape[1]
    q = q.reshape(n, J, (H // J) * R, D)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.grouped(H // J), scale=scaling)
    return out.reshape(n, H, R, D)


class AttentionMask:
    """allowed (n, 1, R, L), True where a query may attend, as a number added to the scores.

    Finite, not -inf: a padded query that attends to nothing would turn into NaN. Rows lie a
    multiple of 8 numbers apart, or torch's GPU kernel would copy the mask again in every layer.
    """

    def __init__(self, allowed, dtype):
        self.groups, (self.queries, self.keys) = 1, allowed.shape[2:]
        allowed = F.pad(allowed, (0, -self.keys % 8))
        self.added = torch.where(allowed, torch.zeros((), dtype=dtype), torch.finfo(dtype).min)

    def grouped(self, groups):
        """(n, 1, groups * R, L): one tensor for all layers, which keep it for the backward pass."""
        if groups != self.groups:
            self.added = self.added[:, :, : self.queries].repeat(1, 1, groups, 1)
            self.groups = groups
        return self.added[..., : self.keys]


class DenseAttention:
    """Prompts in one padded block, outputs without their last tokens in another one, behind the
    keys of their prompts; prompts, outputs: their `Padding`s."""

    def __init__(self, prompts, outputs, prompt_of, dtype):
        self.prompts, self.outputs, self.prompt_of = prompts, outputs, prompt_of
        C, R, device = prompts.width, outputs.width, prompt_of.device
        in_prompt, in_output = torch.arange(C, device=device), torch.arange(R, device=device)
        causal = in_prompt[:, None] >= in_prompt                                        # (C, C)
        self.prompt_mask = AttentionMask(causal[None, None], dtype)
        if R:
            # All of the own prompt but not its padding, then causal in the own output.
            real = in_prompt < prompts.lengths[prompt_of][:, None]                      # (n, C)
            causal = (in_output[:, None] >= in_output).expand(outputs.rows, R, R)
            allowed = torch.cat([real[:, None].expand(-1, R, -1), causal], -1)          # (n, R, L)
            self.output_mask = AttentionMask(allowed[:, None], dtype)

    def __call__(self, layer, q, k, v, scaling):
        prompts, outputs, first = self.prompts, self.outputs, self.prompts.tokens
        qp, kp, vp = (prompts.pad(x[:first]) for x in (q, k, v))                # (m, heads, C, D)
        out = prompts.unpad(attention(qp, kp, vp, self.prompt_mask, scaling))
        if not outputs.tokens:                          # every output is a single token
            return out
        qo, ko, vo = (outputs.pad(x[first:]) for x in (q, k, v))                # (n, heads, R, D)
        # The prompt's keys and values serve all its samples; backward sums their gradients.
        ko = torch.cat([kp.index_select(0, self.prompt_of), ko], 2)             # (n, J, L, D)
        vo = torch.cat([vp.index_select(0, self.prompt_of), vo], 2)
        return torch.cat([out, outputs.unpad(attention(qo, ko, vo, self.output_mask, scaling))])


# -- 4. Attention on GPUs, in 16 bits: a kernel for sequences of different lengths -----------------

def uses_flash(dtype, device):
    """Is there a kernel without masks? True for 16 bits on a GPU, Ampere or newer."""
    return torch.device(device).type == "cuda" and dtype.itemsize == 2 and (
        torch.cuda.get_device_capability()[0] >= 8 if torch.cuda.is_available() else True)


@functools.cache
def take_newest_flash():
    """Have torch call FlashAttention 3, made for Hopper alone, where its package is installed."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0) \
            and importlib.util.find_spec("flash_attn_interface"):
        torch.nn.attention.activate_flash_attention_impl("FA3")


class FlashAttention:
    """The same in one call of torch's FlashAttention for a whole row. The keys of an output are
    those of its prompt followed by its own. Not run on a GPU so far: a test runs these indices with
    a kernel in plain Python."""

    def __init__(self, prompts, outputs, prompt_of, dtype):
        take_newest_flash()
        self.dtype = dtype
        real = outputs.lengths > 0                      # an output of one token has no query
        prompt = prompt_of[real]
        r, p = outputs.lengths[real], prompts.lengths[prompt]
        # Pieces of the row that hold keys: all prompts; then, for each output, prompt and output.
        start = torch.stack([prompts.start[prompt], prompts.tokens + outputs.start[real]], 1)
        start = torch.cat([prompts.start, start.flatten()])
        length = torch.cat([prompts.lengths, torch.stack([p, r], 1).flatten()])
        first = torch.cumsum(length, 0) - length        # of each piece, among all keys
        self.keys = torch.repeat_interleave(start - first, length)
        self.keys += torch.arange(len(self.keys), device=self.keys.device)      # places in the row
        queries, keys = torch.cat([prompts.lengths, r]), torch.cat([prompts.lengths, p + r])
        self.ends = [F.pad(torch.cumsum(n, 0), (1, 0)).int() for n in (queries, keys)]
        self.longest = [int(n.max()) for n in (queries, keys)]

    def __call__(self, layer, q, k, v, scaling):
        from torch.nn.attention.varlen import varlen_attn           # its kernel is CUDA's alone
        k, v = (x.to(self.dtype).index_select(0, self.keys) for x in (k, v))
        # A window of (-1, 0) is causal, counted from the end of each sequence.
        return varlen_attn(q.to(self.dtype), k, v, *self.ends, *self.longest, scale=scaling,
                           window_size=(-1, 0), enable_gqa=q.shape[1] != k.shape[1])


# -- 5. Which models can be computed so ------------------------------------------------------------

def prepare(model):
    """Switch `model` (a transformers causal LM) to packed attention, in place; returns it. It is in
    eval mode then: with dropout sampler and trainer would differ.

    Raises ValueError for a model that this layout cannot compute. Settings tell, and numbers: two
    short outputs are scored in a row and one by one.
    """
    if model.config._attn_implementation == "packed":
        return model
    _check_settings(model)
    model.eval()
    if model.get_output_embeddings().weight.is_meta:
        model.set_attn_implementation("packed")
    else:
        _check_scores(model)
    return model


def _check_settings(model):
    """Raises ValueError for a setting that packed attention, or our head, would ignore."""
    if getattr(model.get_output_embeddings(), "bias", None) is not None:
        raise ValueError("the LM head has a bias: not supported")
    config, plain = model.config, {"final_logit_softcapping": 0, "attn_logit_softcapping": 0,
                                   "logits_scaling": 1, "logit_scale": 1, "sliding_window": 0}
    ignored = {name: value for name in plain
               if (value := getattr(config, name, None)) not in (None, plain[name])}
    if types := set(getattr(config, "layer_types", None) or ()) - {"full_attention", "attention"}:
        ignored["layer_types"] = ", ".join(sorted(types))           # they mix the tokens of a row
    if (getattr(config, "rope_parameters", None) or {}).get("rope_type") == "longrope":
        ignored["rope_parameters"] = "longrope"         # looks at the longest sequence of a batch
    for name, value in ignored.items():
        raise ValueError(f"model config has {name} = {value}: packed attention ignores it")


@torch.no_grad()
def _check_scores(model):
    """Switch to packed attention. Raises ValueError: samples of one row would see each other."""
    weight, name = model.get_output_embeddings().weight, type(model).__name__
    # Its own generator: a run draws the same numbers as if nothing had been checked.
    ids = random.Random(0).choices(range(len(weight)), k=12)
    prompt, outputs = ids[:4], [ids[4:9], ids[9:]]
    # Rounding was 6e-6 in fp32 and 0.3 in bf16 (135M); of samples that saw each other, 0.7 to 4.3.
    tolerance = 0.01 if weight.dtype.itemsize > 2 else 1.0
    try:
        alone = torch.cat([
            model(torch.tensor([prompt + output], device=weight.device), use_cache=False)
            .logits[0, len(prompt) - 1: -1] for output in outputs])
        model.set_attn_implementation("packed")
        pack = Pack([prompt], outputs, [0, 0], dtype=weight.dtype, device=weight.device)
        hidden = forward(model, pack.input_ids, pack.position_ids, pack.attend)
    except torch.OutOfMemoryError:              # no fault of the model's
        raise
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot compute a packed row ({error!r:.200})") from None
    scores = [logits.float().log_softmax(-1).gather(1, pack.targets[:, None])
              for logits in (alone, F.linear(hidden[pack.predict], weight))]
    worst = (scores[0] - scores[1]).abs().max().item()
    if not worst <= tolerance:
        raise ValueError(f"{name} scores a sample otherwise in a packed row than alone: its "
                         f"log-probs are off by up to {worst:.2g}")
