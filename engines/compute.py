"""compute.py: what training has cost, the x of the curve: FLOPs of samples that steps consume.

    a matrix product    2 FLOPs for each weight and token; of a layer of experts, only the experts
                        that a token is sent to (its router and shared experts: every token)
    attention           4 * heads * head size for each layer, token and token that it attends to
    a recurrent state   2 for each of its numbers and each token that reads it: Mamba once, the
                        delta rule twice, before it writes and after. What is done number by number
                        (to decay, to write) is not counted, as in norms
    a training step     three forward passes (one forward, two for the backward pass)

Ours: every token counts through all weights, the head too; what is computed twice counts once,
evaluation and padding never. The paper's x axis is GPU-hours; it does not say what is in them."""
from collections import Counter

import torch
from transformers import AutoModelForCausalLM

from engines.own_forward import hidden_states, is_packed, text_config
from engines.packed import heads

EXPERTS = ("num_experts_per_tok", "moe_topk", "moe_top_k", "top_k_experts")     # that a token meets


def experts_met(config):
    """How many experts of a layer a token meets; 0: it has none."""
    return next((getattr(config, name) for name in EXPERTS if getattr(config, name, None)), 0)


class ModelFlops:
    """FLOPs of one forward pass of `model`, a transformers causal LM; its shapes alone are read."""

    def __init__(self, model):
        config, head, weights = text_config(model), model.get_output_embeddings(), 0
        # Tables are looked up: only one that is the head as well, tied, multiplies.
        tables = {m.weight for m in model.modules() if isinstance(m, torch.nn.Embedding)}
        parameters = {p: name for part in (model.get_decoder(), head)       # without a tower
                      for name, p in part.named_parameters() if p is head.weight or p not in tables}
        for parameter, name in parameters.items():
            # transformers keeps the experts of a layer in one tensor; its first axis counts them.
            experts = len(parameter) if ".experts." in name and parameter.ndim == 3 else 0
            weights += parameter.numel() * ((experts_met(config) or 1) / experts if experts else 1)
        self.attention, states = Counter(), 0   # {(FLOPs of a pair of tokens, window): layers}
        if is_packed(model):
            H, _, D = heads(config)
            self.attention[4 * H * D, None] = config.num_hidden_layers
        else:           # from the cache of one token on the meta device: by shapes alone
            with torch.device("meta"):          # bf16: experts of other types are not known there
                twin = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
                cache = hidden_states(twin, torch.zeros(1, 1, dtype=torch.long), True)[1]
            latent = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")     # MLA caches no keys
            kinds = []
            for layer in cache.layers:
                if (keys := getattr(layer, "keys", None)) is not None:
                    sizes = [getattr(config, name) for name in latent] if getattr(
                        config, "kv_lora_rank", None) else [keys.shape[-1], layer.values.shape[-1]]
                    window = getattr(layer, "sliding_window", None)
                    kinds.append((2 * config.num_attention_heads * sum(sizes), window))
                states += sum(x.numel() for x in getattr(layer, "recurrent_states", {}).values()
                              if x is not None)
            # The last layers of Gemma 4 look at keys and values of the last before of their type.
            if shared := getattr(config, "num_kv_shared_layers", None):
                last = dict(zip(config.layer_types, kinds))
                kinds += [last[name] for name in config.layer_types[-shared:]]
            self.attention.update(kinds)
        delta_rule = any(name.startswith("linear_") for name in vars(config))
        self.per_token = 2 * round(weights) + (4 if delta_rule else 2) * states

    def of_group(self, prompt, outputs):
        """FLOPs of a prompt of `prompt` tokens, computed once, and of outputs of these lengths."""
        flops = self.per_token * (prompt + sum(outputs))
        for (each, window), layers in self.attention.items():
            before = attended(prompt, window)
            flops += each * layers * (before + sum(attended(prompt + n, window) - before
                                                   for n in outputs))
        return flops


def attended(n, window):
    """Tokens that the first n tokens attend to, in sum: 1 + 2 + ... + n, each at most `window`."""
    seen = min(n, window or n)
    return seen * (seen + 1) // 2 + (n - seen) * seen


class Compute:
    """Training compute so far: FLOPs, tokens sampled, and devices * hours (on a CPU core-hours)."""

    def __init__(self, model, processes, device):
        cuda = device == "cuda"
        self.model_flops = ModelFlops(model)
        self.devices = processes * (1 if cuda else torch.get_num_threads())
        self.hours_name = f"compute/{'gpu' if cuda else 'core'}_hours"
        self.flops, self.tokens, self.hours = 0, 0, 0.0

    def add_step(self, generated, trained, samples_per_prompt, tokens, seconds):
        """A step has consumed `generated` and trained on `trained`, rollouts group after group."""
        self.flops += self.group_flops(generated, samples_per_prompt) \
            + 3 * self.group_flops(trained, samples_per_prompt)
        self.tokens += tokens
        self.hours += self.devices * seconds / 3600

    def group_flops(self, rollouts, samples_per_prompt):
        """FLOPs of one forward pass over groups of rollouts, one after another."""
        starts = range(0, len(rollouts), samples_per_prompt)
        return sum(self.model_flops.of_group(len(rollouts[i].prompt_ids), [
            len(r.output_ids) for r in rollouts[i: i + samples_per_prompt]]) for i in starts)

    def log(self):
        return {"compute/flops": self.flops, "compute/tokens": self.tokens,
                self.hours_name: self.hours}
