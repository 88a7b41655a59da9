"""layers.py: how the layers of a model run while it is trained.

`recompute_layers` (activation checkpointing) trades time for memory, `compile_layers` a start-up
minute for speed: torch.compile makes one kernel of the many small steps between two products. The
sampler's forward passes stay as they are.
"""

import sys
import types

import torch
import torch._functorch.config
from torch._dynamo.exc import TorchDynamoException
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from engines import packed


def checkpoint_and_compile(model, *, recompute=False, compiled=False):
    """Replace the forward method of the model's layers in place; parameters keep their names.

    recompute   run each layer again in the backward pass instead of keeping its activations: a
                third more arithmetic, and memory that no longer grows with layers x tokens
    compiled    by torch.compile, once for all layers and lengths, or a warning where that fails.
                Attention stays out of it: its masks are others in every micro-batch.
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
    train = {kind: kind.forward for kind in map(type, layers)}      # one function for each class
    if compiled:
        AttentionInterface.register("packed", torch.compiler.disable(packed.packed_attention))
        for kind in list(train):
            train[kind] = compiled_or_plain(kind, train)

    def forward(layer, *args, **kwargs):
        # FSDP2 derives a class of its own from the layer's.
        kind = next(kind for kind in type(layer).__mro__ if kind in train)
        if not torch.is_grad_enabled():
            return kind.forward(layer, *args, **kwargs)
        if not recompute:
            return train[kind](layer, *args, **kwargs)
        # No random numbers to keep for the second run: there is no dropout.
        kwargs |= {"use_reentrant": False, "preserve_rng_state": False}
        output = checkpoint(step := train[kind], layer, *args, **kwargs)
        if step is train[kind]:
            return output
        # The compiler has just failed, half-way perhaps: what is kept so far fits no second run.
        return checkpoint(train[kind], layer, *args, **kwargs)
    for layer in layers:
        layer.forward = types.MethodType(forward, layer)


def compiled_or_plain(kind, train):
    """The forward method of the class `kind` by torch.compile. If the compiler fails, train[kind]
    becomes the method as it is, with a warning. Layers that were compiled before the failure are
    computed again as they were the first time."""
    # The backward pass is compiled in the forward pass too, and fails there if it must. A later
    # torch may have no such switch.
    if hasattr(torch._functorch.config, "force_non_lazy_backward_lowering"):
        torch._functorch.config.force_non_lazy_backward_lowering = True
    step, plain = torch.compile(kind.forward, dynamic=True), kind.forward

    def call(*args, **kwargs):
        try:
            return step(*args, **kwargs)
        except TorchDynamoException as error:
            cause = getattr(error, "inner_exception", error)
            print(f"warning: layers are not compiled, training is slower: {type(cause).__name__}: "
                  f"{str(cause).partition(chr(10))[0]}", file=sys.stderr)
            train[kind] = plain
            return plain(*args, **kwargs)
    return call
