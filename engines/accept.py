"""accept.py: which models can be computed here, and how? No model that is accepted may be wrong.

Many families mix tokens otherwise than by attention over all earlier ones: packed rows would
compute another model, in silence. These are computed by their own forward pass, or refused. Some
settings tell; for the rest a few tokens are scored in three ways (docs/models.md)."""
import inspect
import math
import random

import torch

from engines.head import TokenLogprobs
from engines.kv_cache import make_cache
from engines.own_forward import CAUSAL, Rows, cap, is_packed, text_config
from engines.packed import Pack

# In a token's log-prob, fp32, as weights are trained. Rounding was up to 3e-4 (Qwen3-Next; 101
# other families up to 5e-5), a forgotten final softcap 0.01, samples that saw each other 0.3 up.
LARGEST = 1e-3
STEPS = 5                   # tokens that are decoded; each reads all weights once
WINDOWS = ("sliding_window", "window_size", "attention_window_size", "keep_window_size")
# What a dry run, which has no numbers, could not tell (transformers 5.19; bench/families.py): their
# decoding is not their full pass, has another cache, or shapes do not tell memory and FLOPs; what
# Emu3 saves transformers cannot read, the last correction of Zaya's router it reads as -1.
NEITHER = {"axk1", "bamba", "bart", "biogpt", "blenderbot", "blenderbot-small", "cpmant",
           "emu3_text_model", "gemma3n_text", "jetmoe", "longcat_flash", "marian", "mbart",
           "minimax", "mllama_text_model", "moshi", "openai-gpt", "pegasus", "plbart",
           "prophetnet", "recurrent_gemma", "rwkv", "zamba2", "zaya"}


def refuse(found, more=""):
    """Raises ValueError for the first of these settings that is set."""
    for name, value in found.items():
        if value:
            raise ValueError(f"its config has {name}" + f" = {value}" * (value is not True) + more)


def check_any(model):
    """Raises ValueError for what neither way computes, by settings: a dry run has no numbers."""
    if (head := model.get_output_embeddings()) is None:
        raise ValueError(f"{type(model).__name__} does not name its output head")
    config = text_config(model)
    unknown = set(getattr(config, "layer_types", None) or ()) - CAUSAL
    # Frequencies that depend on the longest sequence of a batch: all others would change with it.
    ropes = [kind for kind in ("longrope", "dynamic")
             if f"'{kind}'" in str(getattr(config, "rope_parameters", ""))]
    time_steps = tuple(getattr(config, "time_step_limit", None) or (0, math.inf))
    refuse({"model_type": config.model_type if config.model_type in NEITHER else "",
            "layer_types": ", ".join(sorted(unknown)), "rope_type": ", ".join(ropes),
            # Full passes alone would cut the time steps of Mamba layers: decoding never does.
            "time_step_limit": time_steps if time_steps != (0, math.inf) else "",
            "no num_attention_heads": not hasattr(config, "num_attention_heads"),
            "a head with a bias": getattr(head, "bias", None) is not None}, ": not computed here")


def check_packed(model):
    """Raises ValueError for what few tokens need not show: a window, a cap, layers that mix."""
    config = text_config(model)
    types = set(getattr(config, "layer_types", None) or ())
    mixers = types - {"full_attention", "attention"}
    source = code(model)        # a window may be set that neither it nor a layer uses
    spared = types and not mixers and "layer_types" in source
    windows = () if spared else [name for name in WINDOWS if name in source]
    caps = [name for name in vars(config) if "softcap" in name or "soft_cap" in name]
    refuse({name: getattr(config, name, None) for name in (*windows, *caps, "kv_lora_rank")} | {
        "layer_types": ", ".join(sorted(mixers)),
        "attention of its own": not model._supports_attention_backend,
        "more than a language model in it": config is not model.config})


def prepare(model):
    """Have `model` (a transformers causal LM, fp32) computed in packed rows, or by its own forward
    pass, in place and without dropout. Returns it. Raises ValueError: either would be wrong."""
    # vLLM computes some families (OLMo 2, SmolLM3, ...) by transformers' class, whose __call__ it
    # replaces: in one process, that of our instance as well, which then asks for this.
    model.base_model.do_not_compile = True
    before = model.eval().config._attn_implementation
    check_any(model)
    # transformers 5.19 alone cuts Nemotron-H's time steps at `time_step_min`, in full passes.
    for module in model.modules():
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = (0.0, math.inf)
    try:
        check_packed(model)
        compare(model, "packed")
    except ValueError as error:
        # Without types of layers, transformers' cache forgets what the layers would still look at.
        config = text_config(model)
        refuse({name: getattr(config, name, None) for name in WINDOWS
                if name not in code(model) and not getattr(config, "layer_types", None)},
               ", which its layers do not read: not computed here")
        model.set_attn_implementation(before)
        compare(model, before)
        model.slow_because = str(error)
    return model


def code(model):
    """The file with the layers of its language model."""
    return inspect.getsource(inspect.getmodule(type(model.get_decoder())))


@torch.no_grad()
def compare(model, attention):
    """Switch the model to this attention. Raises ValueError unless outputs are scored in a batch,
    and token by token from the cache, as the model does it with each alone."""
    head, name = model.get_output_embeddings().weight, type(model).__name__
    if head.is_meta:
        model.set_attn_implementation(attention)
        return
    # Its own generator: a run draws the same numbers as if nothing had been checked.
    ids = random.Random(0).choices(range(len(head)), k=60)
    prompts, outputs = [ids[:21], ids[21:30]], [ids[30:43], ids[43:51], ids[51:]]
    prompt_of = [0, 0, 1]
    def scores(hidden, tokens):         # by the head of training
        return TokenLogprobs.apply(hidden, head, tokens, 1.0, 64, head.dtype, True, cap(model))[0]
    try:
        alone = torch.cat([
            model(torch.tensor([prompts[p] + output], device=head.device), use_cache=False)
            .logits[0, len(prompts[p]) - 1: -1] for p, output in zip(prompt_of, outputs)])
        model.set_attn_implementation(attention)
        if model.config._attn_implementation != attention:
            raise ValueError("it cannot be switched to other attention")
        rows = (Pack if is_packed(model) else Rows)(prompts, outputs, prompt_of, dtype=head.dtype,
                                                    device=head.device)
        alone = alone.log_softmax(-1).gather(1, rows.targets[:, None])[:, 0]
        batch = alone - scores(rows.states(model)[rows.predict], rows.targets)
        cache = make_cache(model, 3, 40)
        hidden, steps = cache.prefill(model, prompts, [2, 1])[prompt_of], []
        for step in range(STEPS):
            at = rows.column == step                                    # (K,), three are true
            steps.append(alone[at] - scores(hidden, rows.targets[at]))
            hidden = cache.decode(model, rows.targets[at])
    except Exception as error:          # of any class: other people's forward passes
        raise ValueError(f"{name} cannot be computed in a batch ({error!r:.200})") from None
    for how, differences in ("in a batch", batch), ("from the cache", torch.cat(steps)):
        if not (worst := differences.abs().max()) <= LARGEST:
            raise ValueError(f"{name} scores a sample otherwise {how} than alone: its "
                             f"log-probs are off by up to {worst:.2g}")
