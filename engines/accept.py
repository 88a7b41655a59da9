"""accept.py: which models can be computed here? No model that is accepted may be wrong.

transformers has some 180 families of causal LMs. Many mix tokens otherwise than attention over all
earlier ones, or change the logits after the last product: packed rows (packed.py) and the cache of
generation (kv_cache.py) would compute another model, in silence. Settings tell some of it by name;
for the rest a few tokens are scored in three ways. docs/models.md has a table of families.
"""

import random

import torch
import torch.nn.functional as F

from engines.kv_cache import Slots
from engines.packed import Pack, forward

# In a token's log-prob. fp32, the largest: rounding was up to 2e-5 (42 families; 48 layers), a
# forgotten final softcap 0.01. 16 bits, the mean, since rounding sends a token to another expert
# now and then (1.04 off): rounding was up to 0.07, of samples that saw each other 0.28 to 2.5.
LARGEST, MEAN_16_BITS = 1e-3, 0.2
STEPS = 5                   # tokens that are decoded; each reads all weights once
WINDOWS = ("sliding_window", "window_size", "attention_window_size", "keep_window_size")


def check_settings(model):
    """Raises ValueError for what few tokens need not show: a window, a cap, layers that mix the
    tokens of a row, frequencies that depend on the longest sequence of a batch."""
    config = model.config.get_text_config(decoder=True)
    mixers = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "attention"}
    longrope = "longrope" in str(getattr(config, "rope_parameters", ""))
    caps = [name for name in vars(config) if "softcap" in name or "soft_cap" in name]
    found = {name: getattr(config, name, None) for name in (*WINDOWS, *caps)} | {
        "layer_types": ", ".join(sorted(mixers)), "rope_parameters": "longrope" if longrope else ""}
    if (head := model.get_output_embeddings()) is None:
        raise ValueError(f"{type(model).__name__} does not name its output head")
    if head.weight.is_meta:             # a dry run: no numbers, which would tell these
        found |= {"kv_lora_rank": getattr(config, "kv_lora_rank", None)} | {
            name: value for name in ("logits_scaling", "logit_scale")
            if (value := getattr(config, name, None)) != 1}
        found["the bias of its head"] = getattr(head, "bias", None) is not None
        found["attention of its own"] = not model._supports_attention_backend
    for name, value in found.items():
        if value:
            raise ValueError(f"model config has {name} = {value}, which is not computed here")
    if config is not model.config:
        raise ValueError(f"{type(model).__name__} is more than a language model: only its text "
                         f"part, {config.model_type}, in a folder of its own could be trained")


@torch.no_grad()
def prepare(model):
    """Switch `model` (a transformers causal LM) to packed attention, in place; returns it. It is in
    eval mode then: with dropout sampler and trainer would differ.

    Raises ValueError for a model that would be computed otherwise than by transformers. Settings
    tell, and numbers: outputs are scored alone, in a packed row, and token by token from the cache.
    """
    if model.config._attn_implementation == "packed":
        return model
    check_settings(model)
    # vLLM computes some families (OLMo 2, SmolLM3, ...) by transformers' class, whose __call__ it
    # replaces: in one process, that of our instance as well, which then asks for this.
    model.base_model.do_not_compile = True
    weight, name = model.eval().get_output_embeddings().weight, type(model).__name__
    if weight.is_meta:
        model.set_attn_implementation("packed")
        return model
    like = {"dtype": weight.dtype, "device": weight.device}
    # Its own generator: a run draws the same numbers as if nothing had been checked.
    ids = random.Random(0).choices(range(len(weight)), k=60)
    prompts, outputs = [ids[:21], ids[21:30]], [ids[30:43], ids[43:51], ids[51:]]
    prompt_of = [0, 0, 1]

    def scores(hidden, tokens):
        return F.linear(hidden, weight).float().log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    try:
        pack = Pack(prompts, outputs, prompt_of, **like)
        alone = torch.cat([
            model(torch.tensor([prompts[p] + output], device=weight.device), use_cache=False)
            .logits[0, len(prompts[p]) - 1: -1] for p, output in zip(prompt_of, outputs)])
        alone = alone.float().log_softmax(-1).gather(1, pack.targets[:, None])[:, 0]
        model.set_attn_implementation("packed")
        hidden = forward(model, pack.input_ids, pack.position_ids, pack.attend)
        row = alone - scores(hidden[pack.predict], pack.targets)
        slots = Slots(model.config, 3, 40, **like)
        hidden, cache = slots.prefill(model, prompts, [2, 1])[prompt_of], []
        for step in range(STEPS):
            at = pack.column == step                                    # (K,), three are true
            cache.append(alone[at] - scores(hidden, pack.targets[at]))
            hidden = slots.decode(model, pack.targets[at])
    except (AssertionError, AttributeError, LookupError, RuntimeError, TypeError,
            ValueError) as error:
        raise ValueError(f"{name} cannot compute a packed row ({error!r:.200})") from None
    tolerance = LARGEST if weight.dtype.itemsize > 2 else MEAN_16_BITS
    for how, differences in ("in a packed row", row), ("from the cache", torch.cat(cache)):
        off = differences.abs()
        if not (off.max() if weight.dtype.itemsize > 2 else off.mean()) <= tolerance:
            raise ValueError(f"{name} scores a sample otherwise {how} than alone: its "
                             f"log-probs are off by up to {off.max():.2g}")
    return model
