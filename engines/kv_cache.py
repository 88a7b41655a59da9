"""kv_cache.py: keys and values of the sequences that are being generated, one slot a sequence.

Axes: S slots, n running sequences, m new prompts, C longest prompt, J key-value heads of size D."""
import torch

from engines.own_forward import GroupCaches, is_packed, text_config
from engines.packed import DenseAttention, MaskedAttention, forward, heads, padded, take


def make_cache(model, slots, length):
    return Slots(model, slots, length) if is_packed(model) else GroupCaches(model, slots)


class Slots:
    """Key-value cache of up to `slots` sequences of `length` tokens, in the dtype of the weights.

    keys, values   (layers, S, J, length, D), so that attention reads each head in one piece
    lengths (S,)   tokens in the cache
    active         running sequences, always the first slots (`keep` sees to it), as a view
    width          tokens of the longest of them; the CPU knows it without waiting for a GPU"""

    def __init__(self, model, slots, length):
        _, J, D = heads(text_config(model))
        shape = (2, model.config.num_hidden_layers, slots, J, length, D)
        self.dtype, self.device = model.dtype, model.device
        # Zeros, not empty: a mask multiplies what lies behind it by zero, and NaN * 0 is NaN.
        self.keys, self.values = torch.zeros(shape, dtype=self.dtype, device=self.device)
        self.lengths = torch.zeros(slots, dtype=torch.long, device=self.device)
        self.active, self.width, self.slots = 0, 0, slots

    def prefill(self, model, prompts, samples):
        """Compute each of m prompts (lists of ids) once; copy it to new slots for its samples (m
        ints). Returns the last hidden state of each prompt, (m, hidden)."""
        ids = torch.tensor([token for prompt in prompts for token in prompt], device=self.device)
        rows = torch.arange(len(ids)).split([len(prompt) for prompt in prompts])
        attention = DenseAttention(rows, rows, self.dtype, self.device)
        places, lengths = padded(rows, self.device)                             # (m, C), (m,)
        prompt_of = torch.repeat_interleave(torch.tensor(samples, device=self.device))
        new, C = slice(self.active, self.active + len(prompt_of)), places.shape[1]
        def attend(layer, q, k, v, scaling):
            self.keys[layer][new, :, :C] = take(k, [places])[0][prompt_of]
            self.values[layer][new, :, :C] = take(v, [places])[0][prompt_of]
            return attention(layer, q, k, v, scaling)
        positions = torch.cat([torch.arange(len(row)) for row in rows]).to(self.device)
        hidden = forward(model, ids, positions, attend)
        self.lengths[new] = lengths[prompt_of]
        self.active, self.width = new.stop, max(self.width, C)
        return hidden[lengths.cumsum(0) - 1]

    def decode(self, model, tokens):
        """Feed one token to each active sequence, tokens (n,); returns (n, hidden)."""
        n = self.active
        row, column = torch.arange(n, device=self.device), self.lengths[:n].clone()
        width = self.width = self.width + 1
        seen = torch.arange(width, device=self.device) <= column[:, None]               # (n, width)
        attention = MaskedAttention(seen[:, None, None], self.dtype)            # (n, 1, 1, width)
        def attend(layer, q, k, v, scaling):
            self.keys[layer][row, :, column] = k
            self.values[layer][row, :, column] = v
            k, v = (x[layer][:n, :, :width] for x in (self.keys, self.values))
            return attention(q[:, :, None], k, v, scaling)[:, :, 0]
        hidden = forward(model, tokens, column, attend)
        self.lengths[:n] += 1
        return hidden

    def keep(self, active, sources, targets):
        """Keep so many sequences, after whole ones were copied from slots `sources` to `targets`
        (int64 tensors) to fill the holes that finished ones leave."""
        if len(sources):
            for layer in (*self.keys, *self.values):    # one at a time: the copy is temporary
                layer[targets, :, : self.width] = layer[sources, :, : self.width]
            self.lengths[targets] = self.lengths[sources]
        self.active, self.width = active, int(self.lengths[:active].max()) if active else 0

    def state(self):
        """Tensors for a checkpoint: the active sequences, as far as they are filled."""
        parts = (slice(None), slice(self.active), slice(None), slice(self.width))
        # To the CPU: a GPU whose memory the cache was given has no room for it twice.
        tensors = {"lengths": self.lengths[: self.active], "keys": self.keys[parts],
                   "values": self.values[parts]}
        return {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}

    def load_state(self, tensors):
        _, n, _, width, _ = tensors["keys"].shape
        self.lengths[:n], self.active, self.width = tensors["lengths"], n, width
        self.keys[:, :n, :, :width] = tensors["keys"]
        self.values[:, :n, :, :width] = tensors["values"]
