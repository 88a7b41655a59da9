"""make_run.py: from the settings to a `scalerl.Run` with all of its parts."""
import functools
import sys
from pathlib import Path

import torch

from artifacts.resume import KeptAnswers
from artifacts.run_folder import EVALUATION
from artifacts.settings import refused
from config import ConfigError
from engines import load, packed
from engines.vllm_inprocess import VllmSampler
from sampler import TransformersSampler
from scalerl import Run
from scaleout.memory import Estimate, device_here
from servers.pool import ServerPool, ServerSampler, read_addresses
from tasks import Verifier, load_problems


def make_run(config, trainer, folder):
    """A `Run`. trainer: a `Trainer`, or what stands for one in each process; folder: RunFolder."""
    verifier = Verifier(think_tags=(config.think_open.strip() or "<think>", config.think_close))
    problems = load_problems(config, trainer.tokenizer, verifier, folder.path / "gold.jsonl")
    sampler, eval_sampler = make_samplers(config, trainer, problems.prompt_tokens)
    if config.engine == "vllm":
        eval_sampler = KeptAnswers(eval_sampler, folder.path / EVALUATION)
    return Run(config, trainer, problems, verifier, sampler, eval_sampler, folder)


def make_samplers(config, trainer, prompt_tokens):
    """(sampler of training, sampler of evaluation). prompt_tokens: of the longest prompt. Two: an
    evaluation must not disturb the sequences that are under way. On vLLM they share servers or
    engine; over transformers evaluation has a cache of what memory a GPU has left."""
    rule = load.interruption_of(config, trainer.tokenizer)
    output, length = load.longest_tokens(config, trainer.tokenizer, trainer.model, prompt_tokens)
    positions = prompt_tokens + output
    shared = dict(prompt_tokens=prompt_tokens, temperature=config.temperature,
                  eos_ids=load.end_ids(config, trainer.tokenizer, trainer.model))
    if config.vllm_url:
        with refused():
            pool = ServerPool(read_addresses(config.vllm_url, 3 * config.deadline_s),
                              slots=config.slots, length=positions, dtype=trainer.dtype,
                              vocab=trainer.model.get_input_embeddings().num_embeddings,
                              head_fp32=config.head_fp32, cuda=trainer.device == "cuda",
                              deadline_s=config.deadline_s, logs=Path("runs", config.name, "logs"))
        make = functools.partial(ServerSampler, pool, trainer.tokenizer, rule, **shared,
                                 weights=trainer.weights)
        # While the trainer trains, slots that fall free are filled from a step's worth in wait.
        ahead = config.prompts_per_step * config.samples_per_prompt
        return make(seed=config.seed, ahead=ahead), make(seed=config.seed + 1)
    slots = config.slots
    if trainer.device == "cuda":                    # a CPU's memory is not looked at
        left = Estimate(config, trainer.model, output, length, trainer.dtype, device_here(True),
                        alone=True).sequences_left(torch.cuda.mem_get_info()[0])
        slots = min(slots, left if config.engine == "vllm" else max(0, left - slots))
    together = max(config.samples_per_prompt, config.eval_samples)
    if slots < together:
        raise ConfigError(
            f"samples_per_prompt = {config.samples_per_prompt}, eval_samples = "
            f"{config.eval_samples}: the samples of a prompt run together, and there is room for "
            f"{slots} sequences of {positions} tokens (slots = {config.slots}): lower them, or "
            "raise slots; where memory is short, lower slots or think_max")
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
    generator = trainer.model if trainer.dtype == torch.float32 else packed.rounded_copy(
        trainer.model, trainer.dtype)               # bf16 weights of its own: masters are fp32
    make = functools.partial(TransformersSampler, generator, trainer.tokenizer, rule, **shared)
    return make(seed=config.seed, slots=config.slots), make(seed=config.seed + 1, slots=slots)
