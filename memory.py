"""memory.py: what fills the memory of a trainer's device, and what to make smaller.

Four buffers: weights, gradients and Adam, which have to be there; a micro-batch's activations;
the fp32 head's chunk of logits; and the sampler's cache, where sampler and trainer share a device.
launch.py asks before a run whether they fit. A run that is out of memory all the same says, by
the same arithmetic, which of them to shrink, and to what.

From the shapes of the model alone: within a factor of two, not exact. Ours.
"""

from __future__ import annotations

import copy
import os
import re
from pathlib import Path

import torch

from packed import heads, uses_flash
from vllm_engine import BLOCK_TOKENS, block_bytes

GIB = 2 ** 30
CACHE_SHARE = 0.25                  # of a CPU's memory, for one server's cache at most

# buffer: its parts in `Memory.trainer_memory`, and the setting that it shrinks with
FIXED, ACTIVATIONS, LOGITS, CACHE = (
    "weights, gradients and Adam", "a micro-batch's activations", "the chunk of logits",
    "the sampler's cache")
BUFFERS = {
    FIXED: (("parameters", "gradients", "Adam", "gathered", "sampler's copies"), None),
    ACTIVATIONS: (("activations", "attention mask"), "micro_batch_tokens"),
    LOGITS: (("logits chunk",), "logits_chunk_tokens"),
    CACHE: (("sampler's caches",), "slots")}


class Memory:
    """What a trainer keeps in memory, from the shapes of its model.

    model    the transformers model, on the meta device if need be: shapes, no memory
    output   tokens of the longest output;  length: of the longest sequence, prompt included
    dtype    of the computation, and of the generators' weights and cache
    cuda     on GPUs, where several trainers shard;  alone: the sampler shares the device
    Raises ValueError: no such attention on this device.
    """

    def __init__(self, config, model, output, length, dtype, *, cuda, alone):
        self.config, self.shape, self.cuda, self.alone = config, model.config, cuda, alone
        self.output, self.length, self.itemsize = output, length, dtype.itemsize
        self.weights = sum(p.numel() for p in model.parameters())
        head = model.get_output_embeddings().weight.numel()
        self.root = head if model.config.tie_word_embeddings else 2 * head  # embedding and head
        self.kv_token = block_bytes(config.model, dtype) / BLOCK_TOKENS     # bytes, all layers
        self.recompute = config.recompute_layers
        self.flash = uses_flash(config.attention, dtype, "cuda" if cuda else "cpu")

    def trainer_memory(self, trainers):
        """{what: bytes} of one trainer. On several GPUs FSDP2 shards fp32 masters, gradients and
        Adam's moments; embedding and head are whole, gradient included, during a micro-batch."""
        c, s = self.config, self.shape
        shards = trainers if self.cuda else 1
        tokens = max(c.micro_batch_tokens, self.length)     # one sample is never cut
        hidden, layers = s.hidden_size, s.num_hidden_layers
        H, J, _ = heads(s)
        inner = getattr(s, "intermediate_size", None) or 4 * hidden         # GPT-2 does not say
        layer = tokens * (12 * hidden + 4 * inner) * self.itemsize
        kept = layer + layers * tokens * hidden * self.itemsize if self.recompute else \
            layers * layer
        samples = tokens / self.length
        # The sampler and, unless vLLM is the one that trains, its twin for evaluations.
        caches = 2 - (c.engine == "vllm")
        return {
            "parameters": 4 * self.weights / shards, "gradients": 4 * self.weights / shards,
            "Adam": 8 * self.weights / shards,
            "gathered": 0 if shards == 1 else self.root * (self.itemsize + 4)
            + 2 * (self.weights - self.root) / layers * self.itemsize,
            "activations": kept,
            "attention mask": 0 if self.flash else samples * self.output * self.length
            * self.itemsize * H / J,
            "logits chunk": 2 * c.logits_chunk_tokens * s.vocab_size * 4,
            "sampler's copies": 2 * self.weights * self.itemsize * (self.alone and self.cuda),
            "sampler's caches": caches * c.slots * self.length * self.kv_token * self.alone}

    def buffers(self, trainers):
        """The same as {one of the four buffers: bytes}."""
        parts = self.trainer_memory(trainers)
        return {buffer: sum(parts[name] for name in names)
                for buffer, (names, _) in BUFFERS.items()}

    def cure(self, trainers, room, short=0.0, computing=True):
        """What to change for a trainer to need `short` bytes less, and `room` at most.

        computing   while it computes on a micro-batch; else its activations and logits are gone
        """
        sizes = self.buffers(trainers)
        if not computing:
            sizes[ACTIVATIONS] = sizes[LOGITS] = 0
        # If neither torch nor the estimate knows how much is too much: a tenth.
        excess = max(short, sum(sizes.values()) - room)
        excess = excess if excess > 0 else 0.1 * sum(sizes.values())
        found = self.lower(sizes, excess)
        recomputed = copy.copy(self)
        recomputed.recompute = True
        saved = sizes[ACTIVATIONS] - recomputed.buffers(trainers)[ACTIVATIONS]
        if saved > 0:
            sizes[ACTIVATIONS] -= saved
            if saved >= excess:
                found += ["set recompute_layers = true"]
            elif not found:
                found = [f"set recompute_layers = true and {text}"
                         for text in self.lower(sizes, excess - saved)]
        if found:
            return " or ".join(found)
        recomputed.alone = False                # several trainers need servers
        more = next((n for n in range(trainers + 1, 4097) if self.cuda and sum(
            recomputed.buffers(n).values()) <= room), None)
        if more:
            return (f"nothing else is large enough to make room: trainers = {more}"
                    + " and recompute_layers = true" * (saved > 0)
                    + f" would do, which share {FIXED}")
        if sizes[FIXED] < room and sizes[ACTIVATIONS] > 0:
            return ("no single one can shrink enough: lower micro_batch_tokens, think_max, "
                    "answer_tokens and slots" + ", and set recompute_layers = true" * (saved > 0))
        return f"{FIXED} have to be there, and have no room: a smaller model would do"

    def lower(self, sizes, excess):
        """[the setting of the largest buffer that can give `excess` bytes, and its new value]"""
        c = self.config
        # One sample is never cut, and a prompt's samples are decoded together.
        least = {ACTIVATIONS: self.length, LOGITS: 16, CACHE: c.samples_per_prompt}
        for buffer in sorted(least, key=lambda name: -sizes[name]):
            name = BUFFERS[buffer][1]
            value = max(getattr(c, name), least[buffer])
            if sizes[buffer] > excess:
                lower = int(value * (1 - excess / sizes[buffer]))
                lower -= lower % 10 ** max(0, len(str(lower)) - 2)          # two digits will do
                if least[buffer] <= lower < value:
                    return [f"lower {name} from {value} to {lower}"]
        return []


def host_memory(groups="/sys/fs/cgroup", own="/proc/self/cgroup"):
    """Bytes of this machine's own memory that this process may use: Slurm, Kubernetes and Docker
    let it have less than there is, by a limit on its control group (v2) or one above that."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    path = re.search("^0::/(.*)$", Path(own).read_text(), re.M) if Path(own).exists() else None
    folder = Path(path[1] if path else "")
    for group in (folder, *folder.parents):
        file = Path(groups) / group / "memory.max"          # a number, or "max": no limit
        if file.exists() and (text := file.read_text().strip()).isdecimal():
            limits.append(int(text))
    return min(limits)


def is_short(error):
    """Is this how torch says that memory is full? On a CPU it has no class of its own."""
    return isinstance(error, torch.OutOfMemoryError) or \
        "DefaultCPUAllocator: can't allocate" in str(error)


def short_of_memory(error, doing, memory, trainers):
    """What to make smaller, and by how much: torch's words and our estimate in one sentence.

    doing    the phase;  memory: the trainer's `Memory`, None before there is a model
    """
    units = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": GIB}

    def said(*patterns):
        """Bytes that torch names there, the sum of all places; None: it does not say."""
        found = [float(number) * units[unit] for pattern in patterns for number, unit in re.findall(
            pattern.replace("N", r"([\d.]+) (bytes|KiB|MiB|GiB)"), str(error))]
        return sum(found) if found else None
    wanted = said("ried to allocate N") or 0.0
    free = said("of which N is free", "; N free;")          # torch from 2.1 on, and before
    total = said("total capaci?ty of N", "; N total capacity")
    others = said("Process \\d+ has N memory in use") or 0.0
    short = wanted - free if free is not None and free < wanted else wanted
    gib = lambda size: f"{size / GIB:.{2 if size < 100 * GIB else 0}f}"            # noqa: E731
    sentence = f"out of memory, {gib(short)} GiB short" + (f" of {gib(total)}" if total else "")
    if others > short:
        sentence += f"; other processes use {gib(others)} GiB of this device"
    if memory is None:
        return f"{sentence}: the model alone has no room here"
    computing = doing in ("train", "logprobs")
    sizes = [f"{gib(size)} for {name}" for name, size in memory.buffers(trainers).items()
             if size and (computing or name in (FIXED, CACHE))]
    room = (total or host_memory()) - others
    return (f"{sentence}; of about {', '.join(sizes)}: "
            + memory.cure(trainers, 0.9 * room, 1.1 * short, computing))
