"""From the settings to the model: precision of the weights, and the words that end thinking."""

import json
import re
from types import SimpleNamespace

import pytest
import torch
from conftest import arguments, random_llama
from safetensors.torch import load_file, save_file
from transformers import MixtralConfig

from command import make_run as making
from command.main import main
from config import Config
from engines import load
from tiny import toy


def test_a_checkpoint_of_16_bits_is_trained_with_fp32_weights(tmp_path, seed):
    """At the paper's learning rate a bf16 weight would round most updates away."""
    random_llama(vocab=41, dtype=torch.bfloat16).save_pretrained(tmp_path)
    toy.make_tokenizer().save_pretrained(tmp_path)
    model, _ = load.load_model(Config(model=str(tmp_path)))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_what_ends_this_models_thinking_reaches_the_sampler_and_the_phrase_has_no_start_token():
    """Some tokenizers put a start token before any text: in the middle of a sample it would be a
    token that the model has never seen there."""
    def tokenizer(text, add_special_tokens=True):
        return {"input_ids": [99] * add_special_tokens + [ord(c) for c in text]}
    rule = load.interruption_of(Config(think_min=3, think_max=5, answer_tokens=2,
                                       think_close="[/r]", interrupt_phrase="So [/r]"), tokenizer)
    assert rule.end == "[/r]" and rule.phrase_ids == tuple(map(ord, "So [/r]"))
    assert (rule.think_min, rule.think_max, rule.answer_tokens) == (3, 5, 2)


@pytest.mark.parametrize("named, ends", [([1, 2], {1, 2}), (5, {5}), (None, {9})])
def test_every_end_token_of_the_model_ends_a_sample(named, ends, llama):
    """Chat models often have two: <|im_end|> of a turn, and the end of the text. A list is all of
    them; a model that names none has its tokenizer's."""
    config = Config(model="m", engine="transformers", think_min=3, think_max=5, answer_tokens=2,
                    interrupt_phrase="", slots=16, eval_samples=4)
    llama.generation_config.eos_token_id = named
    trainer = SimpleNamespace(model=llama, tokenizer=SimpleNamespace(eos_token_id=9),
                              device="cpu", dtype=torch.float32)
    for sampler in making.make_samplers(config, trainer, 13):
        assert sampler.eos_ids == ends and set(sampler.ends.tolist()) == ends


UP = "model.layers.1.mlp.up_proj.weight"


def without(folder, *names, **changed):
    """Write the weights again without some, or with others."""
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor for name, tensor in (tensors | changed).items() if name not in names},
              folder / "model.safetensors", metadata={"format": "pt"})


def settings(folder, **changed):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def only_gguf(folder):
    (folder / "config.json").unlink()
    (folder / "model-Q4_K_M.gguf").touch()


def adapter(folder, alone):
    (folder / "adapter_config.json").write_text("{}")
    if alone:
        (folder / "config.json").unlink()


# {what is wrong: (how to make it, what is said, does a dry run see it)}
WRONG = {
    "a tensor is missing": (lambda f: without(f, UP), f"lack 1 of its tensors.*{UP}", False),
    "six are missing": (lambda f: without(f, *(UP.replace("1", str(i)).replace("up", part)
                                               for i in range(3) for part in ("up", "down"))),
                        r"lack 6 of its tensors.*layers\.1\.mlp\.up_proj\.weight \.\.\.$", False),
    "another shape": (lambda f: without(f, **{UP: torch.ones(3, 5)}), "cannot be read", False),
    "an adapter beside a model": (lambda f: adapter(f, False), "an adapter.*merge it", True),
    "an adapter": (lambda f: adapter(f, True), "an adapter.*merge it", True),
    "GPTQ": (lambda f: settings(f, quantization_config={"quant_method": "gptq", "bits": 4}),
             r"quantized \(gptq\)", True),
    "FP8": (lambda f: settings(f, quantization_config={"quant_method": "fp8"}),
            r"quantized \(fp8\)", True),
    "GGUF": (only_gguf, "only GGUF files", True),
    "a larger tokenizer": (lambda f: random_llama(vocab=30).save_pretrained(f),
                           "the tokenizer has 38 tokens, the model rows for 30", True),
    "no causal language model": (lambda f: settings(f, model_type="t5"), "Unrecognized", True),
    "a size in words": (lambda f: settings(f, hidden_size="many"), "cannot be read", True),
    "a bias of the head": (lambda f: settings(f, model_type="phi"), "a head with a bias", True),
    "a cache that differs": (lambda f: settings(f, model_type="moshi"), "model_type = moshi", True),
    "Mamba layers that cut time steps": (
        lambda f: settings(f, model_type="falcon_h1", time_step_limit=[0.0, 0.1]),
        r"time_step_limit = \(0\.0, 0\.1\): not computed", True),
    "no attention": (lambda f: settings(f, model_type="rwkv"), "model_type = rwkv", True),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_folder_that_would_train_another_model_than_it_names_is_refused_in_a_sentence(
        what, tmp_path, seed, capsys, monkeypatch):
    make, says, dry = WRONG[what]
    random_llama(vocab=41).save_pretrained(tmp_path)
    toy.make_tokenizer().save_pretrained(tmp_path)
    monkeypatch.chdir(tmp_path)
    command = arguments(tmp_path, gpus=0)
    assert main([*command, "--dry-run"]) == 0
    make(tmp_path)
    capsys.readouterr()
    for more, seen in (["--dry-run"], dry), ([], True):
        assert main([*command, *more]) == (2 if seen else 0)
        said = capsys.readouterr().err.strip().splitlines()
        assert not seen or len(said) == 1
        assert bool(re.search(says, "".join(said))) == seen
    assert not (tmp_path / "runs").exists()


def test_a_gguf_file_is_refused_as_a_folder_of_them_is(tmp_path, capsys):
    (tmp_path / "model-Q4_K_M.gguf").touch()
    assert main([*arguments(tmp_path / "model-Q4_K_M.gguf", gpus=0), "--dry-run"]) == 2
    assert "only GGUF files" in capsys.readouterr().err


def test_an_adapter_on_the_hub_is_refused_though_it_has_a_config_of_its_own(tmp_path, monkeypatch,
                                                                            capsys):
    """transformers would look for it with peft installed alone, and else train what it finds."""
    monkeypatch.setattr(load, "find_adapter_config_file", lambda name: f"/cache/{name}")
    assert main([*arguments("somebody/adapter", gpus=0), "--dry-run"]) == 2
    assert "somebody/adapter': an adapter" in capsys.readouterr().err


def test_a_tied_head_is_not_missing_and_further_tensors_do_no_harm(tmp_path, seed):
    random_llama(vocab=41).save_pretrained(tmp_path)
    toy.make_tokenizer().save_pretrained(tmp_path)
    without(tmp_path, **{"vision.weight": torch.ones(2)})
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    model, _ = load.load_model(Config(model=str(tmp_path)))
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_families_that_vllm_keeps_wrong_after_a_push_are_refused_there_alone(
        tmp_path, seed, capsys, monkeypatch):
    random_llama(vocab=41, family=MixtralConfig).save_pretrained(tmp_path)
    toy.make_tokenizer().save_pretrained(tmp_path)
    monkeypatch.chdir(tmp_path)
    for engine, code in ("vllm", 2), ("transformers", 0):
        assert main([*arguments(tmp_path, gpus=0, engine=engine), "--dry-run"]) == code
        assert ('use engine = "transformers"' in capsys.readouterr().err) == (code == 2)
