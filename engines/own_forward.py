"""own_forward.py: a model by its own forward pass and its own cache. Slow, but right.

For models that a packed row cannot serve: sliding windows, linear attention, convolutions, Mamba.

    training     a row for each sample, padded on the RIGHT and without a mask: a token looks to
                 the left alone
    generation   one cache for each group, whose samples grow together: nothing is padded

What it costs: docs/models.md. Axes: n rows, T tokens of the longest."""
from types import SimpleNamespace

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils._pytree import tree_map_only

# Layers that never look to the right, whatever stands there, by transformers' names. Unknown ones
# are refused: layers that choose among blocks of tokens count the padding.
CAUSAL = {"full_attention", "attention", "sliding_attention", "hybrid", "linear_attention", "mamba",
          "conv", "mlp", "moe"}


def is_packed(model):
    """Does `accept.prepare` have this model computed in packed rows?"""
    return model.config._attn_implementation == "packed"


def scaled(model, states):
    """Hidden states times what the model multiplies its logits by (Granite, Cohere, Falcon-H1)."""
    scale, multiplier, divisor = (getattr(text_config(model), name, None) or 1.0 for name in (
        "logit_scale", "lm_head_multiplier", "logits_scaling"))
    if model.config.model_type == "hyperclovax":            # its logits_scaling multiplies
        divisor = 1 / divisor
    scale = scale * multiplier / divisor
    return states if scale == 1 else states * scale         # no copy for nothing


def cap(model):
    """c, if logits are c tanh(h W' / c) (Gemma 2), or None."""
    return getattr(text_config(model), "final_logit_softcapping", None)


def text_config(model):
    """The config of the language model; that of the whole, unless there is a tower beside it."""
    return model.config.get_text_config(decoder=True)


def hidden_states(model, ids, cache=None):
    """(hidden states (n, T, hidden), cache). ids (n, T) go on from `cache`; True: a new one; None:
    without. Neither mask nor positions: transformers would look for packed sequences in these."""
    more = {} if cache in (None, True) else {"past_key_values": cache}
    out = model.base_model(input_ids=ids, use_cache=cache is not None, **more)
    return scaled(model, out.last_hidden_state), getattr(out, "past_key_values", None)


class Rows:
    """A micro-batch, a row for each sample; arguments and fields as of `packed.Pack`."""

    def __init__(self, prompts, outputs, prompt_of, *, dtype=None, device="cpu", head=None):
        rows = [torch.tensor([*prompts[p], *output[:-1]]) for p, output in zip(prompt_of, outputs)]
        self.input_ids = pad_sequence(rows, batch_first=True).to(device)                # (n, T)
        T = self.input_ids.shape[1]
        # An output's first token is predicted by the last one of its prompt.
        places = [(i, t, i * T + len(prompts[p]) - 1 + t, token) for i, (p, output) in enumerate(
            zip(prompt_of, outputs)) for t, token in enumerate(output)]
        self.sample, self.column, self.predict, self.targets = torch.tensor(places).T.to(device)

    def states(self, model):
        return hidden_states(model, self.input_ids)[0].flatten(0, 1)            # (n * T, hidden)


class GroupCaches:
    """What `kv_cache.Slots` is, in caches that the model makes itself. groups: of each its
    transformers cache, and the slots of its rows."""

    def __init__(self, model, slots):
        self.model, self.slots, self.device, self.groups = model, slots, model.device, []

    def prefill(self, model, prompts, samples):
        """As `Slots.prefill`: -> (m, hidden). Each prompt is computed once, its cache copied."""
        states = []
        for prompt, n in zip(prompts, samples):
            hidden, cache = hidden_states(model, torch.tensor([prompt], device=self.device), True)
            cache.reorder_cache(torch.zeros(n, dtype=torch.long, device=self.device))
            first = sum(len(group.slots) for group in self.groups)
            self.groups.append(SimpleNamespace(cache=cache, slots=[*range(first, first + n)]))
            states.append(hidden[:, -1])
        return torch.cat(states)

    def decode(self, model, tokens):
        """As `Slots.decode`: tokens (n,) -> (n, hidden), in the order of the slots."""
        states, order = [], []
        for group in self.groups:
            hidden, group.cache = hidden_states(model, tokens[group.slots][:, None], group.cache)
            states.append(hidden[:, -1])
            order += group.slots
        return torch.cat(states)[torch.tensor(order, device=self.device).argsort()]

    def keep(self, active, sources, targets):
        """As `Slots.keep`. Rows are selected: windows and recurrent states cannot be cropped."""
        sources, targets = sources.tolist(), targets.tolist()
        place = {slot: slot for slot in {*range(active)} - {*targets}} | dict(zip(sources, targets))
        for group in self.groups:
            rows = [row for row, slot in enumerate(group.slots) if slot in place]
            if 0 < len(rows) < len(group.slots):
                group.cache.reorder_cache(torch.tensor(rows, device=self.device))
            group.slots = [place[group.slots[row]] for row in rows]
        self.groups = [group for group in self.groups if group.slots]

    def state(self):
        """For a checkpoint: of each group its slots, and a CPU's copy of what its layers hold."""
        kept = torch.Tensor | int | dict
        return tree_map_only(torch.Tensor, lambda x: x.to("cpu", copy=True), [(group.slots, [
            {name: value for name, value in vars(layer).items() if isinstance(value, kept)}
            for layer in group.cache.layers]) for group in self.groups])

    @torch.no_grad()
    def load_state(self, groups):
        """A cache of the model's own kind comes from a forward pass over one token."""
        self.groups, token = [], torch.zeros(1, 1, dtype=torch.long, device=self.device)
        for slots, layers in groups:
            _, cache = hidden_states(self.model, token, True)
            for layer, held in zip(cache.layers, layers, strict=True):
                vars(layer).update(tree_map_only(torch.Tensor, lambda x: x.to(self.device), held))
            self.groups.append(SimpleNamespace(cache=cache, slots=slots))
