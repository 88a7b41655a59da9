"""The slow way, of models that no packed row can serve: right in every number that a run uses.

The oracle is the model's own logits, of each sample alone.
"""

import copy
import random
import sys

import pytest
import torch
from conftest import ROOT, packed_copy, plain_logprobs, random_llama, rollouts_of
from transformers import Qwen3Config

from artifacts.resume import load_sampler_state, sampler_state
from engines import accept, own_forward
from sampler import Interruption, Request, TransformersSampler
from scalerl import Policy

sys.path.append(str(ROOT / "bench"))      # last: bench/fit.py is not fit.py
import families                                                                # noqa: E402

# Windows of 8 tokens, which the samples below outgrow.
SLOW = ["qwen3_5_text", "qwen3_5", "qwen3_5_moe", "gemma2", "gemma3_text", "gemma3", "gpt_oss",
        "olmo3", "granitemoehybrid", "mistral", "ministral", "cohere2", "deepseek_v2",
        "deepseek_v3", "falcon_h1", "lfm2", "nemotron_h"]
EOS = 96


@pytest.fixture
def pair(request, seed, monkeypatch):
    """(a tiny random model of the family after `accept.prepare`, the same one as it was)."""
    monkeypatch.setitem(families.ALSO, "mistral", {})               # with a window, as version 0.1
    model, _ = families.build(request.param)
    for parameter in model.parameters():        # mostly sure of its next token, as a trained one
        parameter.data *= 0.7
    plain = copy.deepcopy(model).eval()
    assert not own_forward.is_packed(accept.prepare(model)) and model.slow_because
    return model, plain


def make(model, **settings):
    class Letters:
        def decode(self, ids):
            return "".join("</think>" if i == 7 else "x" for i in ids)
    return TransformersSampler(model, Letters(), Interruption(9, 17, 4, (30, 31, 7)), slots=7,
                               prompt_tokens=13, **{"eos_ids": {EOS}, "seed": 5, **settings})


def requests(count, samples=3):
    return [Request(i, f"p{i}", tuple(torch.randint(2, 96, (3 + 2 * i,)).tolist()), samples)
            for i in range(count)]


def drain(sampler, steps=10**6):
    rollouts = []
    while sampler.in_flight and steps:
        rollouts, steps = rollouts + sampler.step(), steps - 1
    return rollouts


def worst(plain, rollouts):
    return max((plain_logprobs(plain, r) - torch.tensor(r.behavior_logprobs))[
        torch.tensor(r.sampled)].abs().max().item() for r in rollouts)


@pytest.mark.days(4, turn=0)
@pytest.mark.parametrize("pair", SLOW, indirect=True)
def test_log_probs_and_gradients_are_those_of_autograd_on_the_models_own_logits(pair):
    """Prompts and outputs of many lengths in one batch. 1e-4 for the delta rule, whose chunks of 64
    tokens are padded otherwise in a batch than alone."""
    model, plain = pair
    rollouts = rollouts_of(3, 3, random.Random(5), vocab=90)
    found, entropy = Policy(model, temperature=0.7)(rollouts)
    weight = torch.randn(found.shape)
    (found * weight).sum().backward()
    total = 0
    for r, row, w, ent in zip(rollouts, found, weight, entropy):
        logits = plain(torch.tensor([[*r.prompt_ids, *r.output_ids]])).logits[0, :-1] / 0.7
        logits = logits[len(r.prompt_ids) - 1:].log_softmax(-1)
        expected = logits.gather(1, torch.tensor(r.output_ids)[:, None])[:, 0]
        sampled = torch.tensor(r.sampled)
        at = range(len(r.output_ids))
        torch.testing.assert_close(row[at][sampled], expected[sampled], atol=1e-4, rtol=0)
        assert (ent[at][sampled] + (logits.exp() * logits).sum(-1)[sampled]).abs().max() < 1e-3
        total = total + (expected * w[at])[sampled].sum()
    total.backward()
    difference, size = 0.0, 0.0
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        if theirs.grad is not None:
            difference += (ours.grad - theirs.grad).square().sum().item()
            size += theirs.grad.square().sum().item()
    assert (difference / size) ** 0.5 < (1e-4 if "qwen3_5" in model.config.model_type else 1e-5)


@pytest.mark.days(4)
@pytest.mark.parametrize("pair", SLOW, indirect=True)
def test_a_sampler_writes_down_the_models_own_log_probs_and_goes_on_from_a_checkpoint(pair):
    """7 slots for 15 samples of mixed lengths: sequences end, move, and groups wait. The phrase is
    forced. Stopped between two tokens, a second sampler writes the same rollouts, bit for bit."""
    model, plain = pair
    sampler = make(model)
    for request in requests(5):
        sampler.submit(request)
    rollouts = drain(sampler, steps=14)
    state = copy.deepcopy(sampler_state(sampler))
    assert state["cache"] and all(held for _, layers in state["cache"] for held in layers)
    other = make(model, seed=6)
    load_sampler_state(other, state)
    rest = drain(sampler)
    assert rest == drain(other)
    rollouts += rest
    assert len(rollouts) == 15 and any(r.interrupted for r in rollouts)
    assert all(r.output_ids[r.sampled.index(False):][:3] == [30, 31, 7]
               for r in rollouts if r.interrupted)
    assert worst(plain, rollouts) < 2e-4
    # The self-test of a run: the trainer's forward pass against what the sampler wrote down.
    with torch.no_grad():
        trained, _ = Policy(model)(rollouts)
    apart = torch.cat([(row[: len(r.output_ids)] - torch.tensor(r.behavior_logprobs))[
        torch.tensor(r.sampled)].abs() for row, r in zip(trained, rollouts)])
    assert apart.mean() < 1e-5


@pytest.mark.parametrize("pair", SLOW, indirect=True)
def test_new_weights_in_flight_go_on_over_the_cache_that_the_old_ones_filled(pair):
    """The oracle reads the same tokens with a cache of its own, and changes models half-way. A
    cache that is computed again with the new weights gives other numbers."""
    model, old = pair
    new = copy.deepcopy(old)
    with torch.no_grad():
        for parameter in new.parameters():
            parameter += 0.05 * parameter.abs().mean() * torch.randn_like(parameter)
    sampler = make(model, eos_ids={-1})
    sampler.submit(requests(1)[0])
    assert not drain(sampler, steps=5)
    sampler.push_weights(new.named_parameters(), version=1)
    for r in drain(sampler):
        assert r.versions == [0] * 5 + [1] * (len(r.versions) - 5)
        expected, cache = [], None
        with torch.no_grad():
            for t in range(len(r.output_ids)):
                ids = r.prompt_ids if t == 0 else r.output_ids[t - 1: t]
                out = (old if t < 5 else new)(torch.tensor([ids]), past_key_values=cache,
                                              use_cache=True)
                cache = out.past_key_values
                expected.append(out.logits[0, -1].log_softmax(-1)[r.output_ids[t]].item())
        sampled = torch.tensor(r.sampled)
        found, expected = (torch.tensor(x)[sampled] for x in (r.behavior_logprobs, expected))
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
        assert not torch.allclose(found[5:], plain_logprobs(new, r)[sampled][5:], atol=1e-3)


def test_of_qwen3_both_ways_give_the_same_log_probs_and_gradient(seed):
    """The simplest alternative to the packed row, and its oracle. In float64 (but for norms, which
    transformers computes in float32): parts of a gradient may cancel, and in float32 one of some
    hundred runs was off by 1.07e-5 of the largest element. So 150 seeds stay below 2e-6."""
    plain = random_llama(vocab=41, family=Qwen3Config).double()
    rollouts = rollouts_of(3, 4, random.Random(7))
    results = []
    for model in (packed_copy(plain), copy.deepcopy(plain)):
        logprobs, _ = Policy(model, dtype=torch.float64)(rollouts)
        (logprobs * torch.arange(1.0, 13)[:, None]).sum().backward()
        results.append([logprobs, *(p.grad for p in model.parameters())])
    assert not own_forward.is_packed(plain)
    for packed, slow in zip(*results):
        assert packed.dtype == torch.float64
        torch.testing.assert_close(packed, slow, atol=1e-5 * float(slow.detach().abs().max()),
                                   rtol=0)


def test_a_group_is_one_forward_pass_and_a_prompt_is_computed_once(seed, monkeypatch):
    """What the slow way costs: a pass for each running group in each step."""
    model, _ = families.build("gemma3_text")
    sampler, shapes = make(accept.prepare(model), eos_ids={-1}), []    # no sample ends by itself
    inner = own_forward.hidden_states
    monkeypatch.setattr(own_forward, "hidden_states", lambda model, ids, cache=None: (
        shapes.append(tuple(ids.shape)), inner(model, ids, cache))[1])
    for request in requests(2):
        sampler.submit(request)
    sampler.step()
    assert shapes == [(1, 3), (1, 5)]
    sampler.step()
    assert shapes[2:] == [(3, 1), (3, 1)]
