"""scaleout/memory.py: does a run fit? From its model's shapes alone, a tenth to spare. Ours."""
import os
from collections import namedtuple
from pathlib import Path

import psutil
import torch

from config import ConfigError
from engines.compute import experts_met
from engines.head import logits_chunk
from engines.own_forward import text_config
from engines.packed import heads, uses_flash
from engines.vllm_inprocess import BLOCK_TOKENS, block_bytes

GIB = 2 ** 30
CACHE_SHARE = 0.25                  # of a CPU's memory, for one server's cache at most
VLLM_MEMORY_SHARE = 0.9             # of a GPU's memory, what a server takes
SERVER_OVERHEAD = 2 * GIB           # CUDA context, activations, graphs

Device = namedtuple("Device", "name memory cuda")       # memory in bytes
ASSUMED = Device("an H100 (assumed: no GPU here to ask)", 79 * GIB, cuda=True)


def device_here(cuda):
    """The first GPU as a Device, or the CPU; an assumption where there is none to ask."""
    if not cuda:
        return Device(f"a CPU of {cores_here()} cores", host_memory(), cuda=False)
    here = torch.cuda.is_available() and torch.cuda.get_device_properties(0)
    return Device(here.name, here.total_memory, cuda=True) if here else ASSUMED


def cores_here():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def host_memory(limit="/sys/fs/cgroup/memory.max"):
    """Bytes of this machine's own memory, or what its container may use of them."""
    text = Path(limit).read_text().strip() if Path(limit).exists() else ""      # may be "max"
    return min(psutil.virtual_memory().total, int(text) if text.isdecimal() else 2**63)


CURES = {                           # the buffers of a trainer, and what makes each of them smaller
    "weights, gradients and Adam": "take a smaller model, or more GPUs, whose trainers share it",
    "a micro-batch's activations":
        "set recompute_layers = true, or lower micro_batch_tokens or think_max",
    "logits and the head's gradient": "take a model of fewer words",
    "the sampler's cache": "lower slots or think_max"}
FIXED, ACTIVATIONS, LOGITS, CACHE = CURES


class Estimate:
    """What a run needs in memory. output: tokens of the longest output, length: with its prompt;
    alone: the sampler shares the trainer's device."""

    def __init__(self, config, model, output, length, dtype, device, *, alone):
        self.config, self.shape = config, text_config(model)
        self.device, self.alone = device, alone
        self.output, self.length, self.dtype, self.itemsize = output, length, dtype, dtype.itemsize
        self.cuda, self.recompute = device.cuda, config.recompute_layers
        self.flash = uses_flash(dtype, "cuda" if self.cuda else "cpu", heads(self.shape)[2])
        self.weights = sum(p.numel() for p in model.parameters())
        head = model.get_output_embeddings().weight.numel()
        self.kv = heads(self.shape)[1]                      # heads of keys and values
        self.root = head if model.config.tie_word_embeddings else 2 * head  # embedding and head
        self.kv_token = block_bytes(config.model, dtype) / BLOCK_TOKENS     # bytes, all layers
        self.sequence = length * self.kv_token              # bytes of the longest one's cache
        # Assumed: prompt and output are half as long as they may be, the latter half written.
        self.mean_length = (length - output) / 2 + output / 4

    def trainer_memory(self, trainers, recompute=False):
        """{buffer: bytes} of one trainer of so many."""
        c, s = self.config, self.shape
        layers, hidden = s.num_hidden_layers, s.hidden_size
        H, J, D = heads(s)
        # In fp32: weights 4, gradients 4, Adam's moments 8. On several GPUs FSDP2 shards them, but
        # embedding and head are whole during a micro-batch, gradient included, and two layers are.
        # One process alone rounds its weights to bf16 by autocast, a copy.
        fixed, sharded = 16 * self.weights / (trainers if self.cuda else 1), trainers > 1
        if self.cuda and sharded:
            two_layers = 2 * (self.weights - self.root) / layers
            fixed += self.root * (self.itemsize + 4) + two_layers * self.itemsize
        rounded = self.itemsize < 4
        copies = (rounded and not sharded) + (self.alone and (c.engine == "vllm" or rounded))
        fixed += copies * self.weights * self.itemsize      # the trainer's and the sampler's own
        tokens = max(c.micro_batch_tokens, self.length)     # one sample is never cut
        inner = getattr(s, "intermediate_size", None) or 4 * hidden         # GPT-2 does not say
        mlp = 4 * inner * self.itemsize
        # Also each expert's input and output; the tokens' order by expert, the router's outputs.
        if experts := experts_met(s):
            inner = getattr(s, "moe_intermediate_size", None) or inner
            mlp = experts * ((4 * inner + 2 * hidden) * (self.itemsize if sharded else 4) + 24)
        # Bytes of a token in a layer: two norms, fp32 inside, with what they hand to the products,
        # the MLP's four, then q, k, v and the output, with norms of q and k as in Qwen3. Compiled
        # layers keep about two thirds of it: not counted on, since the compiler may fail.
        layer = tokens * ((16 if rounded else 24) * hidden + 4 * (H + J) * D
                          + 3 * (H + J) * D * self.itemsize + mlp)
        kept = layer + layers * tokens * hidden * self.itemsize \
            if recompute or self.recompute else layers * layer
        if not self.flash:                                  # an attention mask for each sample
            kept += tokens * self.output * self.itemsize * H / J
        # Logits and their gradients; a rounded head's gradient and what is added to it, in fp32.
        head = rounded * (4 if sharded else 8) * hidden     # of several, `root` has the gradient
        logits = (8 * logits_chunk(s.vocab_size) + head) * s.vocab_size
        # vLLM has one cache; over transformers, evaluations have their own. On a GPU, vLLM's and
        # that of evaluations take what is left, if it holds the samples of a prompt.
        least = max(c.samples_per_prompt, c.eval_samples) if self.cuda else c.slots
        sequences = least + (0 if c.engine == "vllm" else c.slots)
        return {FIXED: fixed, ACTIVATIONS: kept, LOGITS: logits,
                CACHE: sequences * self.sequence * self.alone}

    def sequences_left(self, free):
        """Whole sequences for which a GPU has room. free: its bytes beside the fp32 weights."""
        sizes = self.trainer_memory(1)
        needed = sum(sizes.values()) - sizes[CACHE] - 4 * self.weights
        return max(0, int((0.9 * free - needed) // self.sequence))

    def trainer_fits(self, trainers, recompute=False):
        return sum(self.trainer_memory(trainers, recompute).values()) <= 0.9 * self.device.memory

    def server_memory(self, size=0):
        """({part: bytes} of one of a server's `size` GPUs, sequences that fit); 0: configured."""
        size = size or max(1, self.config.tensor_parallel)
        # With fewer heads of keys and values than GPUs, some GPUs have a copy of others' heads.
        weights, sequence = self.weights * self.itemsize / size, self.sequence / min(size, self.kv)
        share = VLLM_MEMORY_SHARE if self.cuda else CACHE_SHARE
        room = share * self.device.memory - self.cuda * (SERVER_OVERHEAD + weights)
        fits = max(0, int(room // sequence))
        return {"weights": weights, "the cache of one sequence": sequence,
                "the cache of what fits": min(fits, self.config.slots) * sequence}, fits

    def slots(self, size=0):
        """Sequences that a server decodes at once: as asked, or as its cache has half finished."""
        _, fits = self.server_memory(size)
        return min(self.config.slots, int(fits * self.length / self.mean_length))

    def decode_rate(self, size):
        """Tokens for each byte, of weights, keys and values, that a server of `size` GPUs reads."""
        n, copies = self.slots(size), max(1, size / self.kv)
        return n / (self.weights * self.itemsize + n * self.mean_length * self.kv_token * copies)

    def refuse(self, trainers, servers):
        """Raises ConfigError for what cannot fit in a run of so many, with numbers and a cure."""
        have = f"does not fit, {self.device.name} has {self.device.memory / GIB:.0f} GiB"
        if trainers and not self.trainer_fits(trainers):
            sizes = self.trainer_memory(trainers)
            largest = max(sizes, key=sizes.get)
            raise ConfigError(f"a trainer {have}: {listed(sizes)}; the largest is {largest}: "
                              f"{CURES[largest]}")
        parts, fits = self.server_memory()
        if servers and not fits:
            raise ConfigError(f"a server {have}: {listed(parts)}; "
                              + ("raise tensor_parallel" if self.cuda else "lower think_max"))
        whole = trainers * sum(self.trainer_memory(max(1, trainers)).values()) + servers * max(
            1, self.config.tensor_parallel) * (parts["weights"] + parts["the cache of what fits"])
        if not self.cuda and whole > 0.9 * self.device.memory:     # which all of them share
            raise ConfigError(f"all processes together, {whole / GIB:.0f} GiB, {have}: take fewer "
                              "trainers or servers, or fewer slots")

    def text(self, trainers, servers):
        """All of it in words, for --dry-run."""
        text = f"Estimates for {self.device.name} of {self.device.memory / GIB:.0f} GiB:"
        if trainers:
            more = "; layers are recomputed in the backward pass" if self.recompute else ""
            text += f"\n  trainer   {listed(self.trainer_memory(trainers))}{more}"
        if servers:
            parts, fits = self.server_memory()
            text += (f"\n  server    {listed(parts)}; {fits} whole sequences fit; {self.slots()} "
                     f"are decoded at once, of slots = {self.config.slots}")
        return text


def listed(sizes):
    return ", ".join(f"{size / GIB:.2f} GiB for {what}" for what, size in sizes.items() if size)
