"""Memory of trainers and servers, and the setting that shrinks what has no room."""

import copy
import importlib
import random
from types import SimpleNamespace

import pytest
import torch
from conftest import random_llama
from estimates import estimate_of
from transformers import (AutoConfig, AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen3Config,
                          Qwen3MoeConfig)

import scalerl
from artifacts.step_log import describe
from artifacts.settings import make_config
from command import make_run as making
from command.make_run import make_samplers
from config import Config, ConfigError
from engines import accept, load
from scaleout.memory import (ACTIVATIONS, ASSUMED, CACHE, CURES, FIXED, GIB, Estimate, device_here,
                             host_memory)
from scalerl import Policy
from scaleout.team import Alone
from sampler import Rollout
from study import toy


def memory_of(folder, *, length=16_000, output=14_000, alone=True, **settings):
    """The `Estimate` of a GPU trainer of the model whose config.json is there."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    return Estimate(Config(model=str(folder), **settings), model, output, length, torch.bfloat16,
                    ASSUMED, alone=alone)


def need(memory, trainers):
    return sum(memory.trainer_memory(trainers).values())


def test_estimates_of_memory_are_those_counted_by_hand(eight):
    config, estimate = estimate_of(eight, gpus=8, slots=64)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(Qwen3Config.from_pretrained(eight))
    weights = sum(p.numel() for p in model.parameters())
    assert weights == estimate.weights == 8_190_735_360           # Qwen3-8B's own number
    alone, three = estimate.trainer_memory(1), estimate.trainer_memory(3)
    whole = 2 * 151936 * 4096               # embedding and head: in bf16, and fp32 gradients
    assert alone[FIXED] == 18 * weights                          # one process: and rounded
    assert three[FIXED] == pytest.approx(
        16 * weights / 3 + 6 * whole + 2 * 2 * (weights - whole) / 36)
    parts, fits = estimate.server_memory()
    assert parts["weights"] == 2 * weights
    phrase = toy.make_tokenizer()(config.interrupt_phrase, add_special_tokens=False)["input_ids"]
    sequence = 2 * 36 * 8 * 128 * 2 * (2048 + 12288 + 2048 + len(phrase))   # K and V, bf16
    assert parts["the cache of one sequence"] == sequence
    assert fits == int(((0.9 * 79 - 2) * GIB - 2 * weights) / sequence)
    assert parts["the cache of what fits"] == min(fits, 64) * sequence


def test_processes_of_one_cpu_share_its_memory(eight):
    """One 8B trainer in fp32 and one server have room in 700 GiB; three and two have not."""
    _, estimate = estimate_of(eight, gpus=0, servers=2, trainers=3, slots=16)
    estimate.device = estimate.device._replace(memory=700 * GIB)
    assert not estimate.cuda
    estimate.refuse(1, 1)
    with pytest.raises(ConfigError, match="^all processes together, .* GiB, does not fit"):
        estimate.refuse(3, 2)


@pytest.mark.parametrize("name", ["num_experts_per_tok", "top_k_experts", "moe_topk"])
def test_experts_are_counted_by_any_of_their_names(eight, name):
    _, estimate = estimate_of(eight, gpus=8)
    dense = estimate.trainer_memory(1)[ACTIVATIONS]
    setattr(estimate.shape, name, 8)
    assert estimate.trainer_memory(1)[ACTIVATIONS] > 2 * dense


def test_of_servers_of_others_nothing_is_estimated(eight):
    config, estimate = estimate_of(eight, gpus=8, vllm_url="http://127.0.0.1:1")
    assert "server" not in estimate.text(8, 0)
    for ours in ("server", "whole sequences fit"):
        assert ours in estimate.text(8, 1)
    assert "trainer" not in estimate.text(0, 8)
    estimate.refuse(0, 8)                                   # of servers alone


def test_a_server_decodes_no_more_at_once_than_its_cache_holds_of_half_finished_samples(eight):
    """Qwen3-8B on an H100: 23 sequences of the longest fit, 81 that are half finished, and not
    the 256 that are asked for."""
    config, estimate = estimate_of(eight, gpus=8)
    _, fits = estimate.server_memory()
    assert (fits, config.slots, estimate.slots()) == (23, 256, 81)
    assert "81 are decoded at once, of slots = 256" in estimate.text(3, 5)
    estimate.sequence /= 4
    assert estimate.slots() == 256
    estimate.sequence *= 400
    assert estimate.slots() == 0                            # not one fits: refused elsewhere
    _, few = estimate_of(eight, gpus=8, slots=32)
    assert few.slots() == 32 and "32 are decoded at once, of slots = 32" in few.text(3, 5)


def test_a_run_says_before_a_long_first_evaluation_that_it_comes(eight, monkeypatch):
    _, estimate = estimate_of(eight, gpus=8)

    def said(**changes):
        run = SimpleNamespace(
            config=estimate.config, evaluated=None, trainer=SimpleNamespace(
                device="cuda", tokenizer=SimpleNamespace(decode=lambda ids: f"<unk>{ids}\n")),
            problems=SimpleNamespace(train={}, heldout=dict.fromkeys(range(1030)),
                                     prompts={"a": (3, 4), "b": (5,)}),
            folder=SimpleNamespace(path="runs/r"))
        vars(run).update(changes)
        return describe(run)
    assert said().endswith("\nFirst it is evaluated: 16,480 samples.")
    assert "evaluated" not in said(evaluated=0)                     # resumed
    assert r"A prompt: '<unk>(3, 4)\n'" in said()       # a wrong template or tokenizer shows there
    assert "on cuda. Log" in said()
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    assert "on cuda. Log" in said()                     # of eight, as estimate_of asks
    estimate.config.gpus = -1                           # nothing asked: seven would stand still
    assert "on cuda (one GPU of several: --gpus N). Log" in said()


@pytest.mark.parametrize("vllm, caches", [(None, 2), ("there", 1)])
def test_a_dry_run_counts_the_caches_of_the_engine_that_the_run_would_take(vllm, caches, eight,
                                                                           monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: vllm)
    config, estimate = estimate_of(eight, gpus=0, slots=17)
    assert config.engine == ("vllm" if vllm else "transformers")
    assert estimate.trainer_memory(1)[CACHE] == \
        caches * 17 * estimate.length * estimate.kv_token


def test_the_advice_names_the_largest_buffer_and_shrinks_it(eight, seed):
    """Whatever the sizes: of the settings that the advice names for a buffer, each one makes that
    buffer smaller."""
    rng, kinds = random.Random(seed), set()
    base = memory_of(eight, recompute_layers=False)
    for _ in range(200):
        memory = copy.copy(base)
        memory.alone, memory.flash = rng.random() < 0.5, rng.random() < 0.5
        trainers = 1 if memory.alone else rng.choice([2, 5, 80])
        memory.config = Config(micro_batch_tokens=rng.choice([4096, 32_768, 131_072]),
                               slots=rng.choice([16, 40, 256]))
        sizes = memory.trainer_memory(trainers)
        buffer = max(sizes, key=lambda name: sizes[name])
        memory.device = ASSUMED._replace(memory=1)
        with pytest.raises(ConfigError, match=f"; the largest is {buffer}: {CURES[buffer]}$"):
            memory.refuse(trainers, 0)
        kinds.add(buffer)
        shrunk = [copy.copy(memory) for _ in range(3)]
        shrunk[0].recompute = True
        shrunk[1].config = Config(micro_batch_tokens=1, slots=memory.config.slots)
        shrunk[1].length = shrunk[1].output = 1000              # as with a lower think_max
        shrunk[1].sequence = 1000 * memory.kv_token
        shrunk[2].config = Config(micro_batch_tokens=memory.config.micro_batch_tokens, slots=15)
        names = {ACTIVATIONS: shrunk[:2], CACHE: shrunk[1:], FIXED: []}[buffer]
        assert all(other.trainer_memory(trainers)[buffer] < sizes[buffer] for other in names)
    assert kinds == {FIXED, ACTIVATIONS, CACHE}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layers, heads, kv_heads, family", [
    (2, 6, 6, LlamaConfig), (7, 6, 2, LlamaConfig), (3, 8, 4, Qwen3Config)])
def test_what_a_forward_keeps_until_the_backward_pass_is_what_was_estimated(
        layers, heads, kv_heads, family, dtype, tmp_path, seed):
    """Masks above all, with grouped heads: one copy a layer would be most of it. The oracle is
    what autograd saves, each storage once; the padding of dense attention is not estimated."""
    model = random_llama(vocab=31, heads=heads, kv_heads=kv_heads, layers=layers, family=family)
    model.config.save_pretrained(tmp_path)
    prompt, output = 17, 1100
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logprobs, _ = Policy(accept.prepare(model), dtype=dtype)([Rollout(
            "", 0, (3,) * prompt, [5] * output, [0.0] * output, [0] * output, [True] * output,
            "stop", False)])
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    memory = Estimate(Config(model=str(tmp_path), micro_batch_tokens=prompt + output), model,
                      output, prompt + output, dtype, device_here(False), alone=False)
    measured = sum(size for place, size in kept.items() if place not in weights)
    estimated = memory.trainer_memory(1)[ACTIVATIONS]
    memory.flash = True
    masks = estimated - memory.trainer_memory(1)[ACTIVATIONS]
    assert masks > estimated / (2 + 2 * layers)
    assert 0.7 < measured / estimated < 1.4, (measured, estimated, masks)
    del logprobs                                # until here, what it has kept is alive


@pytest.mark.parametrize("hidden, trainers, found", [(2048, 1, 112_862), (1024, 1, 71_902),
                                                     (2048, 2, 112_862)])
def test_the_activations_of_two_real_models_are_those_that_were_counted(hidden, trainers, found,
                                                                        tmp_path):
    """Bytes a token and layer, counted by hooks on Qwen3-1.7B and 0.6B with flash attention."""
    Qwen3Config(vocab_size=1000, hidden_size=hidden, intermediate_size=3 * hidden, head_dim=128,
                num_hidden_layers=7, num_attention_heads=16, num_key_value_heads=8,
                architectures=["Qwen3ForCausalLM"]).save_pretrained(tmp_path)
    sizes = memory_of(tmp_path, length=9000, micro_batch_tokens=10_000).trainer_memory(trainers)
    assert sizes[ACTIVATIONS] / 7 / 10_000 == pytest.approx(found, rel=0.02)


def kept_by_a_forward(model, dtype, tokens, ranks):
    """Bytes that autograd keeps of one forward pass, parameters and their copies apart. ranks: the
    weights are bf16, as FSDP2 gathers them."""
    policy, kept, alive = Policy(accept.prepare(model), dtype=dtype), {}, []
    for parameter in policy.parameters() if ranks > 1 else ():
        parameter.data = parameter.data.to(dtype)
    sizes = {tuple(sorted(p.shape)) for p in model.parameters()}

    def keep(tensor):
        if tuple(sorted(tensor.shape)) not in sizes:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        alive.append(tensor)
        return tensor
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        policy([Rollout("", 0, (3,) * 10, [5] * (tokens - 10), [0.0] * (tokens - 10),
                        [0] * (tokens - 10), [True] * (tokens - 10), "stop", False)])
    return sum(kept.values())


@pytest.mark.parametrize("dtype, ranks", [(torch.bfloat16, 1), (torch.bfloat16, 2),
                                          (torch.float32, 1)])
def test_what_experts_keep_is_estimated_within_a_tenth(dtype, ranks, tmp_path, seed):
    """They were counted as one small MLP: 1.5 to 2.4 times too little. The oracle is what autograd
    saves; that of the same model with a plain MLP is taken away, and with it all of attention."""
    rng = random.Random(seed)
    shared = {"vocab_size": 31, "hidden_size": rng.choice([96, 160]), "num_attention_heads": 4,
              "num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 16,
              "intermediate_size": 56, "tie_word_embeddings": True}
    configs = {"dense": Qwen3Config(**shared), "experts": Qwen3MoeConfig(
        **shared, moe_intermediate_size=rng.choice([72, 88]), num_experts=rng.choice([9, 13]),
        num_experts_per_tok=rng.choice([3, 7]))}
    found, wanted = {}, {}
    for name, shape in configs.items():
        shape.save_pretrained(tmp_path / name)
        model = AutoModelForCausalLM.from_config(shape, attn_implementation="eager")
        wanted[name] = Estimate(
            Config(model=str(tmp_path / name), micro_batch_tokens=310), model, 300, 310, dtype,
            device_here(False), alone=False).trainer_memory(ranks)[ACTIVATIONS]
        found[name] = kept_by_a_forward(model, dtype, 310, ranks)
    ratio = (found["experts"] - found["dense"]) / (wanted["experts"] - wanted["dense"])
    assert 0.9 < ratio < 1.1, ratio


def test_the_memory_of_a_model_that_does_not_name_all_its_sizes_is_estimated_too(tmp_path):
    """A start would fail for the sake of a sentence that nobody may ever need."""
    GPT2Config(n_embd=64, n_head=4, n_layer=3, vocab_size=99).save_pretrained(tmp_path)
    assert need(memory_of(tmp_path, length=90), 1) > 0


def test_memory_that_a_container_does_not_give_is_not_counted_on(tmp_path):
    machine, limit = host_memory(tmp_path / "no file"), tmp_path / "memory.max"
    for text, expected in (("max\n", machine), (f"{2**20}\n", 2**20), (f"{2**60}\n", machine)):
        limit.write_text(text)
        assert host_memory(limit) == expected > 2**19


def samplers_on_a_gpu(monkeypatch, folder, free, **settings):
    """make_samplers, as with `free` bytes left on a GPU; all is computed on the CPU."""
    config = make_config({"model": str(folder), "gpus": 0, "dtype": "float32", "think_min": 5,
                          "think_max": 9, "prompt_tokens": 40, "answer_tokens": 3,
                          "samples_per_prompt": 4, "eval_samples": 3} | settings)
    trainer = scalerl.Trainer(config, Alone(config))
    output, length = load.longest_tokens(config, trainer.tokenizer, trainer.model)
    memory = Estimate(config, trainer.model, output, length, trainer.dtype, ASSUMED, alone=True)
    trainer.device = "cuda"
    need = sum(memory.trainer_memory(1).values()) - memory.trainer_memory(1)[CACHE]
    need += free * memory.length * memory.kv_token - 4 * memory.weights
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (need / 0.9, None))
    return make_samplers(config, trainer, 40)


@pytest.mark.gpu_rehearsal
def test_caches_on_a_gpu_are_as_large_as_what_training_leaves(micro, monkeypatch, capsys):
    """Over transformers the training's has its slots, and the evaluation's the rest. vLLM's one
    cache, which both share, has as many slots as fit."""
    for free, left in ((13.5, 5), (40.5, 8)):
        training, evaluation = samplers_on_a_gpu(monkeypatch, micro, free, slots=8,
                                                 engine="transformers")
        assert (training.cache.slots, evaluation.cache.slots) == (8, left)
    assert capsys.readouterr().err.count("room for 5 sequences at once") == 1
    with pytest.raises(ConfigError, match="samples_per_prompt = 4, eval_samples = 3: .* room for 3 "
                                          "sequences of .* lower slots or think_max$"):
        samplers_on_a_gpu(monkeypatch, micro, 11.5, slots=8, engine="transformers")

    monkeypatch.setattr(making, "VllmSampler", lambda *_, slots, **__: SimpleNamespace(
        beside=lambda seed: slots))
    for free, slots in ((5.5, 5), (40.5, 8)):
        assert samplers_on_a_gpu(monkeypatch, micro, free, slots=8, engine="vllm")[1] == slots
    with pytest.raises(ConfigError, match="room for 3 sequences of .* lower slots or think_max$"):
        samplers_on_a_gpu(monkeypatch, micro, 3.5, slots=8, engine="vllm")


@pytest.mark.parametrize("words, eager", [("", False), ("--enforce-eager", True)])
def test_vllm_in_the_trainers_process_can_be_asked_to_do_without_graphs(
        words, eager, micro, monkeypatch):
    monkeypatch.setattr(making, "VllmSampler", lambda *_, eager, **__: SimpleNamespace(
        beside=lambda seed: eager))
    assert samplers_on_a_gpu(monkeypatch, micro, 40.5, slots=8, engine="vllm",
                             vllm_args=words)[1] is eager


def test_vllm_in_the_trainers_process_has_the_temperature_head_and_seed_of_the_run(
        micro, monkeypatch):
    """At another temperature, or with another head, than the trainer's, it is another policy. Of
    one seed for all runs, runs would be no replicates."""
    made = []
    monkeypatch.setattr(making, "VllmSampler", lambda *_, **named: made.append(named) or (
        SimpleNamespace(beside=lambda seed: made.append({"seed": seed}))))
    for head_fp32, temperature, seed in ((True, 0.7, 3), (False, 1.3, 8)):
        samplers_on_a_gpu(monkeypatch, micro, 40.5, slots=8, engine="vllm", seed=seed,
                          head_fp32=head_fp32, temperature=temperature)
        training, evaluation = made[-2:]
        assert (training["head_fp32"], training["temperature"], training["seed"]) == (
            head_fp32, temperature, seed)
    assert len({named["seed"] for named in made}) == 4
