"""trained_model.py: what samplers and checkpoints ask of a trainer; how its layers run."""
from collections import deque
from functools import cache, cached_property, partial

import torch
import torch._functorch.config
from torch.distributed.fsdp import FSDPModule
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint as recomputed

from artifacts import checkpoint
from config import ConfigError
from engines import packed

GATHERED = 12               # parameters that the ranks gather at a time: about those of a layer


class TrainedModel:
    """Log-probs, weights and checkpoints of a scalerl.Trainer. With several processes each has one,
    and scaleout/team.py has all of them make the same call at the same time."""

    @torch.no_grad()
    def logprobs(self, rollouts):
        """(N, T) log-probs of the sampled tokens under the current weights; no gradient."""
        rows = {}
        for indices in packed.micro_batches(rollouts, self.config.micro_batch_tokens):
            rows |= zip(indices, self.policy(deque(rollouts[i] for i in indices))[0])
        if isinstance(self.policy, FSDPModule):
            self.policy.reshard()       # only a backward pass would
        return pad_sequence([rows[i] for i in range(len(rollouts))], batch_first=True)

    def weights(self, dtype=None):
        """Yield (name, full tensor) of every parameter, under transformers' names."""
        for start in range(0, len(self.named_parameters), GATHERED):
            yield from self.gather(start, dtype)

    @cached_property
    def named_parameters(self):
        """[(name, parameter)], listed once: a walk for each few took 1.3 s of a push of 2,595."""
        return [*self.model.named_parameters()]

    def gather(self, start, dtype=None):
        """[(name, full tensor)] of the next few; cast first, it halves the bytes."""
        return [(name, self.team.full_tensor(parameter.detach().to(dtype or parameter.dtype)))
                for name, parameter in self.named_parameters[start: start + GATHERED]]

    def save(self, folder, state=None):
        """Write weights and optimizer to a checkpoint; state: the rest of it (`RunFolder.save`)."""
        checkpoint.save(folder, self.model, self.optimizer, self.team, state)

    def load(self, folder):
        checkpoint.load_training_state(folder, self.model, self.optimizer)
        self.team.all(None)         # all have read it: the preflight removes it at once


def checkpoint_and_compile(model, recompute, compiled):
    """Replace the forward method of the model's layers in place, where a gradient is asked for.

    recompute   each layer runs again in the backward pass, and memory no longer grows with layers x
                tokens. transformers' own switch would turn on dropout, and off the caches.
    compiled    by torch.compile, once for all layers and lengths, without attention (packed.py)
    Raises ConfigError: transformers does not name the layers."""
    layers = [m for m in model.modules() if type(m).__name__ in (model._no_split_modules or ())]
    if not layers:
        raise ConfigError("recompute_layers, compile_layers: transformers names no layers of "
                          f"{type(model).__name__}; set them to false and off")
    if compiled:
        # Where the compiler fails, torch says so and runs the code as it is. The backward pass is
        # compiled with the forward pass, because a later failure would end the run.
        torch._dynamo.config.suppress_errors = True
        torch._functorch.config.force_non_lazy_backward_lowering = True
    @cache                                  # one function for each class of layers
    def training_forward(plain):
        step = torch.compile(plain, dynamic=True) if compiled else plain
        if recompute:       # no random numbers to keep for the second run: there is no dropout
            step = partial(recomputed, step, use_reentrant=False, preserve_rng_state=False)
        return lambda *args, **kwargs: (step if torch.is_grad_enabled() else plain)(*args, **kwargs)
    for layer in layers:
        layer.forward = training_forward(type(layer).forward).__get__(layer)    # bound to it
