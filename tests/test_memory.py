"""What fills a trainer's memory; and when it is full, the sentence that says what to shrink."""

import copy
import random
import re

import pytest
import torch
from conftest import random_llama
from test_scalerl import arguments
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config

import packed
import scalerl
from config import Config
from memory import GIB, Memory, host_memory, short_of_memory
from policy import Policy
from ranks import RankError, Ranks
from sampler import Rollout


def memory_of(folder, *, length=16_000, output=14_000, alone=True, **settings):
    """The `Memory` of a GPU trainer of the model whose config.json is there."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    return Memory(Config(model=str(folder), **settings), model, output, length, torch.bfloat16,
                  cuda=True, alone=alone)


def need(memory, trainers):
    return sum(memory.trainer_memory(trainers).values())


def test_what_is_advised_makes_it_fit(eight, seed):
    """Whatever the sizes: each option alone, taken at its word, brings the need below the room;
    as many trainers as are asked for have room, and one fewer has not."""
    rng, kinds = random.Random(seed), set()
    base = memory_of(eight)
    for _ in range(400):
        memory = copy.copy(base)
        memory.alone = rng.random() < 0.5
        trainers = 1 if memory.alone else rng.choice([1, 2, 5, 8])
        memory.recompute, memory.flash = rng.random() < 0.5, rng.random() < 0.5
        memory.config = Config(
            micro_batch_tokens=rng.choice([4096, 32_768, 131_072]), slots=rng.choice([16, 40, 256]),
            logits_chunk_tokens=rng.choice([512, 16_384]), attention="dense")
        room = need(memory, trainers) * rng.uniform(0.2, 0.99)
        advice = memory.cure(trainers, room)
        assert len(advice.splitlines()) == 1
        for option in advice.split(" or "):
            changed, more = copy.copy(memory), re.search(r"trainers = (\d+)", option)
            changed.config = copy.copy(memory.config)
            for name, old, new in re.findall(r"lower (\w+) from (\d+) to (\d+)", option):
                assert getattr(memory.config, name) == int(old) > int(new)
                setattr(changed.config, name, int(new))
                kinds.add(name)
            if "recompute_layers = true" in option:
                assert not memory.recompute
                changed.recompute = True
                kinds.add("recompute_layers")
            if more:
                changed.alone = False
                kinds.add("trainers")
                assert need(changed, int(more[1]) - 1) > room or int(more[1]) == trainers + 1
            if "smaller model" in option or "no single one" in option:
                continue
            assert need(changed, int(more[1]) if more else trainers) <= room, option
    assert kinds == {"micro_batch_tokens", "slots", "logits_chunk_tokens", "recompute_layers",
                     "trainers"}


@pytest.mark.parametrize("layers, kv_heads", [(2, 6), (7, 2)])
def test_what_a_forward_keeps_until_the_backward_pass_is_what_was_estimated(layers, kv_heads,
                                                                            tmp_path, seed):
    """Masks above all, with grouped heads: one copy a layer would be most of it. The oracle is
    what autograd saves, each storage once."""
    model = random_llama(vocab=31, heads=6, kv_heads=kv_heads, layers=layers)
    model.config.save_pretrained(tmp_path)
    prompt, output = 17, 1100
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logprobs, _ = Policy(packed.prepare(model))([Rollout(
            "", 0, (3,) * prompt, [5] * output, [0.0] * output, [0] * output, [True] * output,
            "stop", False)])
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    parts = Memory(Config(model=str(tmp_path), micro_batch_tokens=prompt + output), model, output,
                   prompt + output, torch.float32, cuda=False, alone=False).trainer_memory(1)
    measured = sum(size for place, size in kept.items() if place not in weights)
    estimated = parts["activations"] + parts["attention mask"]
    assert parts["attention mask"] > estimated / (2 + 2 * layers)
    assert 0.5 < measured / estimated < 2, (measured, parts)
    del logprobs                                # until here, what it has kept is alive


def test_the_memory_of_a_model_that_does_not_name_all_its_sizes_is_estimated_too(tmp_path):
    """A start would fail for the sake of a sentence that nobody may ever need."""
    GPT2Config(n_embd=64, n_head=4, n_layer=3, vocab_size=99).save_pretrained(tmp_path)
    assert need(memory_of(tmp_path, length=90), 1) > 0


def test_memory_that_the_control_group_does_not_give_is_not_counted_on(tmp_path):
    """What Slurm and Kubernetes give a job: its own limit, or one above it."""
    machine = host_memory(tmp_path, tmp_path / "no file")
    own, group = tmp_path / "cgroup", tmp_path / "a" / "b"
    own.write_text("3:cpu:/other\n0::/a/b\n")
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    assert host_memory(tmp_path, own) == machine > 2**20
    (group.parent / "memory.max").write_text(f"{2**20}\n")
    assert host_memory(tmp_path, own) == 2**20


def test_what_has_to_be_there_and_has_no_room_is_said_so(eight):
    lonely = memory_of(eight, alone=False)
    assert "trainers = 2 and recompute_layers = true would do" in lonely.cure(1, 100 * GIB)
    assert "a smaller model would do" in lonely.cure(1, GIB)


# The words of torch 1.13, 2.1 and 2.9 on a GPU, as people have reported them, and of a CPU's.
FULL = {
    "CUDA out of memory. Tried to allocate 2.50 GiB (GPU 0; 79.10 GiB total capacity; 74.11 GiB "
    "already allocated; 896.00 MiB free; 76.24 GiB reserved in total by PyTorch)":
        "1.62 GiB short of 79.10;",
    "CUDA out of memory. Tried to allocate 32.00 MiB. GPU 0 has a total capacty of 79.00 GiB of "
    "which 0 bytes is free. Of the allocated memory 2.93 GiB is allocated by PyTorch, and 2.30 GiB "
    "is reserved by PyTorch but unallocated.": "0.03 GiB short of 79.00;",
    "CUDA out of memory. Tried to allocate 1.95 GiB. GPU 0 has a total capacity of 79.57 GiB of "
    "which 1.58 GiB is free. Process 2493055 has 12.02 GiB memory in use. Process 7 has 1.00 GiB "
    "memory in use. Including non-PyTorch memory, this process has 966.00 MiB memory in use. Of "
    "the allocated memory 734.07 MiB is allocated by PyTorch, and 33.93 MiB is reserved by PyTorch "
    "but unallocated.":
        "0.37 GiB short of 79.57; other processes use 13.02 GiB of this device;",
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 5368709120 bytes. Error code 12 (Cannot allocate memory)": "5.00 GiB short;"}


@pytest.mark.parametrize("words", FULL, ids=range(len(FULL)))
def test_torchs_words_of_any_version_give_how_much_is_missing_and_each_buffer(words, eight,
                                                                              monkeypatch):
    """Without a micro-batch under way its activations are not to blame, nor without a sampler on
    the device its cache."""
    monkeypatch.setattr("memory.host_memory", lambda: 100 * GIB)
    memory = memory_of(eight, length=3000, alone=False, micro_batch_tokens=32_768)
    error = torch.OutOfMemoryError(words)
    sentence = short_of_memory(error, "train", memory, 5)
    assert sentence.startswith(f"out of memory, {FULL[words]} of about ")
    sizes = memory.buffers(5)
    for size, name in re.findall(r"([\d.]+) for ([^,:]+(?:, gradients and Adam)?)", sentence):
        assert float(size) == pytest.approx(sizes.pop(name) / GIB, rel=0.01)
    assert sizes == {"the sampler's cache": 0}
    assert "lower micro_batch_tokens from 32768 to " in sentence
    assert "or set recompute_layers = true" in sentence and len(sentence.splitlines()) == 1
    memory.alone = True
    sentence = short_of_memory(error, "gather", memory, 5)
    assert "activations" not in sentence and " for the sampler's cache: " in sentence


@pytest.mark.parametrize("doing", ["train", "generate", "start"])
def test_an_allocation_that_fails_on_the_cpu_ends_in_the_sentence(doing, eight):
    ranks = Ranks()
    ranks.memory = memory_of(eight)
    with pytest.raises(RankError, match=f"{doing}, version 7: out of memory, 1048576 GiB short; "
                       "of about .* for weights, gradients and Adam, "):
        with ranks.phase(doing, 7):
            torch.empty(2**50, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="shape"):        # what is no such error stays itself
        with ranks.phase(doing, 7):
            torch.empty(2, 3) @ torch.empty(2, 3)


def test_a_cache_that_this_machine_cannot_hold_is_named_before_the_first_step(
        micro, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert scalerl.main(arguments(micro, name="n", slots=10**9)) == 1
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1 and "start, version 0: out of memory, " in error[0]
    found = re.search(r"for the sampler's cache: lower slots from 1000000000 to (\d+)$", error[0])
    assert 4 < int(found[1]) < 10**9
