"""Checkpointing of layers: when they run, and on which weights."""

import copy

import pytest
import torch
from conftest import random_llama

from engines.layers import checkpoint_and_compile


def test_a_model_whose_layers_have_no_name_is_refused_only_where_they_are_needed(llama):
    llama._no_split_modules = None
    checkpoint_and_compile(llama, "cpu")
    with pytest.raises(ValueError, match="transformers names none of LlamaForCausalLM"):
        checkpoint_and_compile(llama, "cpu", recompute=True)


def test_a_compiler_that_does_not_work_is_said_before_the_first_step(llama, monkeypatch):
    def compiled(*_, **__):
        raise RuntimeError("InvalidCxxCompiler: no\nand more")
    monkeypatch.setattr(torch, "compile", compiled)
    with pytest.raises(ValueError, match=r"^compile_layers = true: torch.compile does not work "
                                         r"here \(InvalidCxxCompiler: no\)$"):
        checkpoint_and_compile(llama, "cpu", compiled=True)


def test_layers_are_recomputed_for_the_backward_pass_and_never_while_sampling(seed):
    """In a copy (the sampler's, in bf16) it is the copy's own weights that are used."""
    model = random_llama(layers=3)
    checkpoint_and_compile(model, "cpu", recompute=True)
    calls = []
    for module in model.modules():
        if type(module).__name__ == "LlamaMLP":
            module.register_forward_pre_hook(lambda *_: calls.append(1))
    ids = torch.randint(0, 37, (1, 9))
    model(ids, use_cache=False).logits.sum().backward()
    assert len(calls) == 6
    with torch.no_grad():
        logits, twin = model(ids, use_cache=False).logits, copy.deepcopy(model)
        assert len(calls) == 9
        for parameter in model.parameters():
            parameter.zero_()
        assert torch.equal(twin(ids, use_cache=False).logits, logits)
