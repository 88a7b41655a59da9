"""trained_model.py: the model that is trained, without the training.

scalerl.Trainer adds the step. With several processes, each has one of these, and scaleout/team.py
has all of them make the same call at the same time.
"""

import torch

from artifacts import checkpoint
from engines import load
from engines.layers import checkpoint_and_compile
from engines.policy import Policy, logprobs_of


class TrainedModel:
    """A model with its tokenizer, its forward pass (`policy`) and its optimizer.

    config  the settings (config.py);  team: the processes that train together (scaleout/team.py)
    """

    def __init__(self, config, team):
        self.config, self.team = config, team
        self.device = load.device_of(config)
        self.dtype = load.compute_dtype(config, self.device == "cuda")
        torch.manual_seed(config.seed)
        # during: a deadline, and a clear sentence if the memory is full.
        with team.during("start"):
            self.model, self.tokenizer = load.load_model(config, team, self.device)
            with load.refused():
                compiled = config.compile_layers == "on" or (
                    config.compile_layers == "auto" and self.device == "cuda")
                checkpoint_and_compile(self.model, recompute=config.recompute_layers,
                                       compiled=compiled)
            policy = Policy(self.model, temperature=config.temperature, dtype=self.dtype,
                            head_fp32=config.head_fp32)
            # The weights are fp32 (load_model), and so are AdamW's moments.
            optimizer = torch.optim.AdamW(
                self.model.parameters(), lr=config.lr, betas=(config.beta1, config.beta2),
                eps=config.adam_eps, weight_decay=config.weight_decay, fused=True)
            self.policy, self.optimizer = team.prepare(policy, optimizer, self.tokenizer)

    def logprobs(self, rollouts, head_fp32):
        """(N, T) log-probs of the sampled tokens under the current weights, without a gradient."""
        return logprobs_of(self.policy, rollouts, head_fp32, self.config.micro_batch_tokens)

    def weights(self, dtype=None):
        """Yield (name, full tensor) of every parameter, under transformers' names."""
        for number in range(self.weight_groups):
            yield from self.gather(number, dtype)

    @property
    def weight_groups(self):
        return len(load.parameter_groups(self.model))

    def gather(self, number, dtype=None):
        """[(name, full tensor)] of the number-th few layers; cast first, it halves the bytes."""
        return [(name, self.team.whole(parameter.detach().to(dtype or parameter.dtype)))
                for name, parameter in load.parameter_groups(self.model)[number]]

    def save(self, folder, **story):
        """Write weights and optimizer to a checkpoint; story: the rest of it (`Run.save`)."""
        checkpoint.save(folder, checkpoint.training_state(self.model, self.optimizer, self.team),
                        self.team, **story)

    def load(self, folder):
        checkpoint.load_training_state(folder, self.model, self.optimizer)
