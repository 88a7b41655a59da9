"""compute.py: what training has cost so far, the x of the curve.

    a matrix product    2 FLOPs for each weight and token; of a layer of experts, only the experts
                        that a token is sent to (its router and shared experts: every token)
    attention           4 * layers * heads * head size for each token and each token it attends to
    a training step     three forward passes (one forward, two for the backward pass)

So FLOPs are the same on every machine. What is computed twice (to save memory, after an
interruption) counts once; evaluation and padding do not count. Ours: the paper's x axis is
GPU-hours, and it does not say what is in them.
"""

import torch

from engines.packed import heads


class ModelFlops:
    """FLOPs of one forward pass of `model`, a transformers causal LM; its shapes alone are read."""

    def __init__(self, model):
        config, weights = model.config, 0
        for name, parameter in model.named_parameters():
            # transformers keeps the experts of a layer in one tensor; its first axis counts them.
            experts = len(parameter) if ".experts." in name and parameter.ndim == 3 else 1
            active = getattr(config, "num_experts_per_tok", experts) if experts > 1 else 1
            weights += parameter.numel() * active / experts
        if not config.tie_word_embeddings:      # looking up an embedding multiplies nothing
            weights -= model.get_input_embeddings().weight.numel()
        H, _, D = heads(config)
        self.per_token = 2 * round(weights)
        self.per_attended_token = 4 * config.num_hidden_layers * H * D

    def of_group(self, prompt, outputs):
        """FLOPs of a prompt of `prompt` tokens, computed once, and of outputs of these lengths. A
        token attends to itself and to all tokens before it: n tokens to n (n + 1) / 2."""
        tokens = prompt + sum(outputs)
        attended = prompt * (prompt + 1) // 2 + sum(n * prompt + n * (n + 1) // 2 for n in outputs)
        return self.per_token * tokens + self.per_attended_token * attended


class Compute:
    """Training compute so far: FLOPs of generation and training, tokens sampled, and devices *
    hours (GPU-hours as in the paper; on a CPU core-hours, and named so)."""

    def __init__(self, model, processes, device):
        cuda = device == "cuda"
        self.model_flops = ModelFlops(model)
        self.devices = processes * (1 if cuda else torch.get_num_threads())
        self.hours_name = f"compute/{'gpu' if cuda else 'core'}_hours"
        self.flops, self.tokens, self.hours = 0, 0, 0.0

    def add_step(self, generated, trained, samples_per_prompt, tokens, seconds):
        """A step has generated these rollouts and trained on those, group after group."""
        self.flops += self.group_flops(generated, samples_per_prompt) \
            + 3 * self.group_flops(trained, samples_per_prompt)
        self.tokens += tokens
        self.hours += self.devices * seconds / 3600

    def group_flops(self, rollouts, samples_per_prompt):
        """FLOPs of one forward pass over groups of rollouts, one after another."""
        starts = range(0, len(rollouts), samples_per_prompt)
        return sum(self.model_flops.of_group(
            len(rollouts[i].prompt_ids),
            [len(r.output_ids) for r in rollouts[i: i + samples_per_prompt]]) for i in starts)

    def log(self):
        return {"compute/flops": self.flops, "compute/tokens": self.tokens,
                self.hours_name: self.hours}

    def state(self):
        return {"flops": self.flops, "tokens": self.tokens, "hours": self.hours}

    def load_state(self, state):
        vars(self).update(state)
