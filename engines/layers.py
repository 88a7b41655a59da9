"""layers.py: how the layers of a model run while it is trained.

`recompute_layers` (activation checkpointing) trades time for memory, `compile_layers` a start-up
minute for speed: torch.compile makes one kernel of the many small steps between two products. The
sampler's forward passes stay as they are.
"""

import sys
import types

import torch
import torch._functorch.config
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from engines import packed


def checkpoint_and_compile(model, *, recompute=False, compiled=False):
    """Replace the forward method of the model's layers in place; parameters keep their names.

    recompute   run each layer again in the backward pass instead of keeping its activations: a
                third more arithmetic, and memory that no longer grows with layers x tokens
    compiled    by torch.compile, once for all layers and lengths. Attention stays out of it: its
                masks are others in every micro-batch.
    Raises ValueError: transformers does not name the layers that are to be computed again.
    """
    if not (recompute or compiled):
        return
    layers = [m for m in model.modules() if type(m).__name__ in (model._no_split_modules or ())]
    if recompute and not layers:
        raise ValueError("recompute_layers needs to know the model's layers: transformers names "
                         f"none of {type(model).__name__}")
    if compiled and not layers:
        print("warning: layers are not compiled: transformers names none of "
              f"{type(model).__name__}", file=sys.stderr)
    if compiled:
        AttentionInterface.register("packed", torch.compiler.disable(packed.packed_attention))
        # Where the compiler fails, torch says so and runs the code as it is. The backward pass is
        # compiled with the forward pass, because a later failure would end the run.
        torch._dynamo.config.suppress_errors = True
        torch._functorch.config.force_non_lazy_backward_lowering = True
    forwards = {kind: training_forward(kind.forward, recompute, compiled)
                for kind in set(map(type, layers))}             # one function for each class
    for layer in layers:
        layer.forward = types.MethodType(forwards[type(layer)], layer)


def training_forward(plain, recompute, compiled):
    """The forward method `plain` of a class of layers, with both choices where a gradient is."""
    step = torch.compile(plain, dynamic=True) if compiled else plain

    def forward(layer, *args, **kwargs):
        if not torch.is_grad_enabled():
            return plain(layer, *args, **kwargs)
        if not recompute:
            return step(layer, *args, **kwargs)
        # No random numbers to keep for the second run: there is no dropout.
        return checkpoint(step, layer, *args, use_reentrant=False, preserve_rng_state=False,
                          **kwargs)
    return forward
