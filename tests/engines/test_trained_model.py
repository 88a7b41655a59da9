"""Layers computed again, and compiled: when they run, on which weights, with which result."""

import copy
import random
import shutil
from types import SimpleNamespace

import pytest
import torch
from conftest import random_llama, rollouts_of
from transformers import AttentionInterface

from config import ConfigError
from engines import accept
from engines.trained_model import TrainedModel, checkpoint_and_compile
from scalerl import Policy


def test_a_model_whose_layers_have_no_name_is_refused(llama):
    llama._no_split_modules = None
    with pytest.raises(ConfigError, match="transformers names no layers of LlamaForCausalLM"):
        checkpoint_and_compile(llama, recompute=True, compiled=False)


@pytest.fixture
def compilers_own():
    """What compiling changes for the whole process is put back."""
    attention = AttentionInterface._global_mapping["packed"]
    suppress = torch._dynamo.config.suppress_errors
    yield
    torch._dynamo.config.suppress_errors = suppress
    AttentionInterface.register("packed", attention)
    torch._dynamo.reset()


def gradient(model, rollouts, dtype):
    """Log-probs of a forward pass, and the gradient of all weights of a backward pass."""
    model.zero_grad()
    logprobs, _ = Policy(model, dtype=dtype)(rollouts)
    logprobs.sum().backward()
    return torch.cat([logprobs.detach().flatten(), *(p.grad.flatten() for p in model.parameters())])


@pytest.mark.days(4)
@pytest.mark.gpu_rehearsal
@pytest.mark.parametrize("compiler", ["g++", "nowhere"])
def test_compiled_layers_compute_the_same_and_without_a_compiler_plain_ones_say_so(
        compiler, seed, compilers_own, caplog):
    """In bf16, as on a GPU. The compiler leaves out some of the roundings between two products, so
    the oracle is fp32: compiled layers are about as far from it. Of rows of other lengths nothing
    is compiled again. A machine without a compiler trains, only slower, instead of ending."""
    if compiler == "g++" and not shutil.which(compiler):
        pytest.skip("no g++ here")
    model = accept.prepare(random_llama(layers=2))
    with torch.no_grad():               # larger weights: bf16 rounds off up to 15% of a gradient
        for parameter in model.parameters():
            parameter *= 0.5 if parameter.ndim > 1 else 1
    exact, compiled = copy.deepcopy(model), copy.deepcopy(model)
    broken = compiler == "nowhere"
    checkpoint_and_compile(compiled, recompute=broken, compiled=True)
    for G in (3, 4):
        rollouts = rollouts_of(2, G, random.Random(G))
        plain = gradient(model, rollouts, torch.bfloat16)
        with torch._inductor.config.patch({"cpp.cxx": (compiler,)}):
            found = gradient(compiled, rollouts, torch.bfloat16)
        oracle = gradient(exact, rollouts, torch.float32)
        assert torch.equal(found, plain) == broken
        assert 0 < (found - oracle).norm() < 1.5 * (plain - oracle).norm() < 0.1 * oracle.norm()
    assert ("WON'T CONVERT" in caplog.text) == ("No working C++ compiler" in caplog.text) == broken


@pytest.mark.days(4)
@pytest.mark.parametrize("failing", [1, 2, 3])
def test_layers_whose_compiler_fails_half_way_are_recomputed_as_plain_ones(
        failing, seed, compilers_own, monkeypatch, caplog):
    """An attention that is not compiled cuts a layer in two graphs, and the second may fail after
    the first has kept tensors for the backward pass."""
    compiled, graphs = torch.compile, []

    def backend(graph, _):
        graphs.append(graph)
        if len(graphs) == failing:
            raise RuntimeError("no such kernel")
        return graph.forward
    monkeypatch.setattr(torch, "compile", lambda step, **choices: compiled(
        step, backend=backend, **choices))
    plain = accept.prepare(random_llama(layers=3))
    model = copy.deepcopy(plain)
    checkpoint_and_compile(model, recompute=True, compiled=True)
    for G in (3, 4):
        rollouts = rollouts_of(2, G, random.Random(G))
        want, found = (gradient(m, rollouts, torch.float32) for m in (plain, model))
        assert (found - want).norm() < 1e-5 * want.norm()
    assert len(graphs) >= failing
    assert "RuntimeError: no such kernel" in caplog.text


def test_layers_are_recomputed_for_the_backward_pass_and_never_while_sampling(seed):
    """In a copy (the sampler's, in bf16) it is the copy's own weights that are used."""
    model = random_llama(layers=3)
    checkpoint_and_compile(model, recompute=True, compiled=False)
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


def test_a_push_yields_every_parameter_once_and_lists_them_once():
    """A mixture of experts has 18,000: to list them for each few would take minutes of a push."""
    trained, walks = TrainedModel(), []
    trained.model = torch.nn.Sequential(*(torch.nn.Linear(2, 3) for _ in range(20)))
    trained.team = SimpleNamespace(full_tensor=lambda tensor: tensor)
    expected = dict(trained.model.named_parameters())
    walk = trained.model.named_parameters
    trained.model.named_parameters = lambda: walks.append(1) or walk()
    for _ in range(2):
        pushed = list(trained.weights(torch.bfloat16))
        assert [name for name, _ in pushed] == list(expected)
        assert all(tensor.dtype == torch.bfloat16 and torch.equal(
            tensor, expected[name].bfloat16()) for name, tensor in pushed)
    assert len(walks) == 1
