"""Which models are computed in packed rows, which by their own forward pass, which not at all."""

import copy
import sys

import pytest
import torch
from conftest import ROOT, random_llama
from test_packed import random_model
from transformers import AutoConfig, AutoModelForCausalLM

from engines import accept, own_forward
from engines.own_forward import is_packed

sys.path.append(str(ROOT / "bench"))      # last: bench/fit.py is not fit.py
import families                                                                # noqa: E402


def test_a_model_whose_arithmetic_would_change_in_silence_is_not_packed(llama):
    llama.config.attn_logit_softcapping = 30.0
    with pytest.raises(ValueError, match="attn_logit_softcapping"):
        accept.check_packed(llama)


def test_a_window_counts_where_the_code_of_the_family_reads_it(llama):
    llama.config.sliding_window = 16
    accept.check_packed(llama)
    mistral = random_model("mistral", sliding_window=16)
    with pytest.raises(ValueError, match="sliding_window = 16"):
        accept.check_packed(mistral)


@pytest.mark.parametrize("family, sizes, scale", [
    ("granite", {"logits_scaling": 8.0}, 1 / 8), ("cohere", {"logit_scale": 0.0625}, 0.0625)])
def test_scaled_logits_are_packed_and_a_forgotten_scale_is_seen(family, sizes, scale, seed,
                                                                monkeypatch):
    model = random_model(family, **sizes)
    assert own_forward.scaled(model, torch.ones(1)) == scale
    assert is_packed(accept.prepare(copy.deepcopy(model)))
    monkeypatch.setattr(own_forward, "scaled", lambda model, states: states)
    with pytest.raises(ValueError, match="scores a sample otherwise in a batch"):
        accept.prepare(model)


@pytest.mark.parametrize("rope", ["longrope", "dynamic"])
def test_frequencies_that_depend_on_the_longest_sample_of_a_batch_are_refused(rope, llama):
    llama.config.rope_parameters = {"rope_type": rope}
    with pytest.raises(ValueError, match=f"rope_type = {rope}: not computed here"):
        accept.prepare(llama)


def test_a_bias_of_the_head_is_refused(seed):
    with pytest.raises(ValueError, match="its config has a head with a bias: not computed here"):
        accept.prepare(random_model("phi"))


def test_nemotron_h_is_computed_as_published_and_its_time_steps_are_not_cut(seed, monkeypatch):
    """transformers 5.19 cuts those below `time_step_min`, in its full passes alone: trainer and
    sampler would compute two models. The oracle is the class with the published limits. (.001 in
    published models; .5 to be seen in a few tokens.)"""
    monkeypatch.setitem(families.ALSO["nemotron_h"], "time_step_min", 0.5)
    model, _ = families.build("nemotron_h")
    published, cut = copy.deepcopy(model).eval(), copy.deepcopy(model).eval()
    for module in published.modules():
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = tuple(model.config.time_step_limit)
    accept.prepare(model)
    assert max(families.differences(model, published)) < 1e-4
    assert min(families.differences(model, cut)) > 1e-3


def test_time_steps_that_full_passes_alone_would_cut_are_refused(seed):
    model, _ = families.build("falcon_h1")
    accept.check_any(model)
    model.config.time_step_limit = (0.0, 0.1)
    with pytest.raises(ValueError, match=r"time_step_limit = \(0.0, 0.1\): not computed here"):
        accept.prepare(model)


def test_a_forgotten_final_softcap_of_a_few_hundredths_is_seen(seed, monkeypatch):
    """NanoChat's and Gemma 2's: .01 of a log-prob and up, the same on both sides, so that a
    comparison of the two would say nothing."""
    model, _ = families.build("nanochat")
    assert own_forward.cap(model) == 15 and accept.prepare(copy.deepcopy(model)).slow_because
    monkeypatch.setattr(accept, "cap", lambda model: None)
    with pytest.raises(ValueError, match="scores a sample otherwise in a batch"):
        accept.prepare(model)


@pytest.mark.parametrize("size", [0.01, 0.1])
def test_the_probe_sees_a_hundredth_in_the_log_prob_of_one_late_token(size, seed, monkeypatch):
    """An error as a window makes it: nothing but the tokens far from the beginning is wrong."""
    right = own_forward.Rows.states

    def wrong(rows, model):
        states, head = right(rows, model), model.get_output_embeddings().weight
        place, token = rows.predict[-1], rows.targets[-1]
        states[place] += size * 2 * head[token] / head[token].square().sum()
        return states
    model, _ = families.build("gemma3_text")
    accept.prepare(copy.deepcopy(model))
    monkeypatch.setattr(own_forward.Rows, "states", wrong)
    with pytest.raises(ValueError, match="scores a sample otherwise in a batch"):
        accept.prepare(model)


# Small ones of families whose layers, or some of them, are no attention that we are asked for.
MIXERS = {
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    "falcon_h1": {"mamba_d_ssm": 48, "mamba_n_heads": 6, "mamba_d_head": 8, "mamba_d_state": 8,
                  "mamba_chunk_size": 8, "head_dim": 8},
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention", "linear_attention"],
                   "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                   "shared_expert_intermediate_size": 24, "linear_num_value_heads": 4,
                   "linear_num_key_heads": 2, "linear_key_head_dim": 8, "head_dim": 8,
                   "linear_value_head_dim": 8},
}


def by_numbers_alone(monkeypatch):
    """As if no setting told anything: a family that comes with the next transformers."""
    for check in "check_packed", "check_any":
        monkeypatch.setattr(accept, check, lambda model: None)


@pytest.mark.parametrize("family", MIXERS)
def test_a_model_whose_samples_would_see_each_other_is_not_packed(family, seed, monkeypatch):
    """A convolution or a state walks along the row, from one sample into the next."""
    by_numbers_alone(monkeypatch)
    model = accept.prepare(random_model(family, 0.1, **MIXERS[family]))    # .3: its rounding grows
    assert not is_packed(model) and "scores a sample otherwise" in model.slow_because


@pytest.mark.parametrize("family, says", [("diffllama", "from the cache than alone"),
                                          ("hrm_text", "from the cache than alone"),
                                          ("nemotron", "cannot be computed in a batch"),
                                          ("bloom", "cannot be switched"),
                                          ("stablelm", "cannot be computed in a batch")])
def test_attention_that_is_more_than_it_hands_on_is_not_packed(family, says, seed, monkeypatch):
    """Layers that share a place in the cache; layers that compute it themselves. The latter say so:
    a dry run, without numbers, knows it."""
    model, _ = families.build(family)
    if family in ("bloom", "stablelm"):
        with pytest.raises(ValueError, match="attention of its own"):
            accept.check_packed(model)
    by_numbers_alone(monkeypatch)
    assert says in accept.prepare(model).slow_because


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "olmo2", "gpt2", "mixtral"])
def test_models_of_full_attention_are_packed_and_no_random_number_is_drawn(family, seed):
    """A run's numbers are those that it would draw without the check; dropout is off."""
    model = random_model(family, **{"gpt2": {"n_embd": 48, "n_layer": 3, "n_head": 6,
                                             "num_key_value_heads": 6},
                                    "mixtral": {"num_local_experts": 4}}.get(family, {}))
    model.train()
    weights = [parameter.clone() for parameter in model.parameters()]
    state = torch.get_rng_state()
    assert accept.prepare(model) is model
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module.training for module in model.modules())
    assert all(map(torch.equal, weights, model.parameters()))
    assert is_packed(model)


def test_a_text_model_inside_another_is_slow_and_its_window_is_seen(seed):
    config = AutoConfig.for_model("gemma3", vision_config={"num_hidden_layers": 1})
    config.text_config.num_hidden_layers = 2
    with torch.device("meta"):
        model = accept.prepare(AutoModelForCausalLM.from_config(config))
        assert model.slow_because == "its config has sliding_window = 4096"
        config.text_config.layer_types = ["full_attention"] * 2
        model = accept.prepare(AutoModelForCausalLM.from_config(config))
    assert not is_packed(model) and "more than a language model" in model.slow_because


def test_a_window_that_no_layer_looks_through_does_not_matter(seed):
    model = random_model("qwen3", sliding_window=16, use_sliding_window=True,
                         layer_types=["full_attention"] * 3)
    assert model.config.sliding_window and is_packed(accept.prepare(model))


def test_a_model_without_numbers_is_judged_by_its_settings_alone():
    with torch.device("meta"):
        assert is_packed(accept.prepare(AutoModelForCausalLM.from_config(random_llama().config)))
        model = accept.prepare(random_model("lfm2", **MIXERS["lfm2"]))
    assert not is_packed(model) and model.slow_because == "its config has layer_types = conv"
