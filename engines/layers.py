"""layers.py: how the layers of a model run while it is trained.

`recompute_layers` (activation checkpointing) trades time for memory, `compile_layers` a start-up
minute for speed. The sampler's forward passes stay as they are.
"""

import types

import torch
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from engines import packed


def checkpoint_and_compile(model, device, *, recompute=False, compiled=False):
    """Replace the forward method of the model's layers in place; parameters keep their names.

    device      where the model will run
    recompute   run each layer again in the backward pass instead of keeping its activations: a
                third more arithmetic, and memory that no longer grows with layers x tokens
    compiled    by torch.compile, once for all layers and lengths. Attention stays out of it: its
                masks are others in every micro-batch.
    Raises ValueError where nothing can be compiled, or transformers does not name the layers.
    """
    if not (recompute or compiled):
        return
    layers = [m for m in model.modules() if type(m).__name__ in (model._no_split_modules or ())]
    if not layers:
        raise ValueError("recompute_layers and compile_layers need to know the model's layers: "
                         f"transformers names none of {type(model).__name__}")
    train = {kind: kind.forward for kind in map(type, layers)}      # one function for each class
    if compiled:
        try:                        # now, and not in the first step
            torch.compile(torch.sin, options={"fx_graph_cache": False})(
                torch.zeros(2, device=device))
        except RuntimeError as error:
            raise ValueError("compile_layers = true: torch.compile does not work here "
                             f"({str(error).splitlines()[0]})") from None
        AttentionInterface.register("packed", torch.compiler.disable(packed.packed_attention))
        train = {kind: torch.compile(step, dynamic=True) for kind, step in train.items()}

    def forward(layer, *args, **kwargs):
        # FSDP2 derives a class of its own from the layer's.
        kind = next(kind for kind in type(layer).__mro__ if kind in train)
        if not torch.is_grad_enabled():
            return kind.forward(layer, *args, **kwargs)
        if not recompute:
            return train[kind](layer, *args, **kwargs)
        # No random numbers to keep for the second run: there is no dropout.
        return checkpoint(train[kind], layer, *args, use_reentrant=False, preserve_rng_state=False,
                          **kwargs)
    for layer in layers:
        layer.forward = types.MethodType(forward, layer)
