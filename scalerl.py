"""scalerl.py: train a language model with the ScaleRL recipe (arXiv 2510.13786).

    python scalerl.py --config configs/demo.toml                 the toy, on a laptop, in minutes
    python scalerl.py --config configs/smollm2.toml              a small language model that adds
    python scalerl.py --config configs/demo.toml --resume        go on where a run was cut off
    python scalerl.py --config configs/demo.toml --config configs/loo/dapo_loss.toml --name dapo
                                                                 the same with one decision changed
    python fit.py runs/demo                                      what more compute would buy

One step of the recipe, in the order of this file:

  1. Curriculum   which prompt next: epochs; prompts the model has learned retire  (paper, sec. 3.2)
  2. Pacer        PipelineRL-k: how far generation may run ahead of training         (sec. 3.1)
  3. Marks        +1 or -1 for each sample, and what the log says of them            (sec. 2)
  4. Train step   zero-variance filter, CISPO on the sampler's own log-probs, AdamW  (sec. 2-4)
  5. Evaluation   pass rate on held-out prompts: the y of the curve                  (sec. 2.2)
  6. Compute      FLOPs, tokens, device-hours: the x of the curve
  7. Trainer      a rank's model and optimizer, and what is refused before they are loaded
  8. Run          what rank 0 has besides: problems, engines, the loop, its state
  9. main

Every setting is in config.py, the mathematics in loss.py, the trainer's forward in policy.py, the
layout of a batch in packed.py, generation in sampler.py, on vLLM servers in servers.py, several
trainer processes in ranks.py, checkpoints in checkpoint.py, logs in run_folder.py, problems in
tasks.py, marks in verify.py. Without a GPU, or with one, sampler and trainer share a process:
decode steps and optimizer steps alternate, so a run is deterministic, and staleness is the same
algebra as on a cluster. With servers the two sides really overlap.

Axes: P prompts a step, G samples a prompt, N = P*G samples, T tokens, v trainer's version.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import importlib.util
import json
import math
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

import checkpoint
import launch
import packed
from checkpoint import save_model
from config import ConfigError, parse, to_toml
from loss import (advantages, k3, length_penalty, merge_stats, policy_loss, token_weights,
                  zero_variance)
from memory import Memory, is_short, short_of_memory
from policy import Policy, cost_tokens, logprobs_of, micro_batches, shape_layers, table
from ranks import (BLANK, RankError, Ranks, deal, from_tensors, full_tensors, gather_group, meets,
                   to_tensors, whole)
from run_folder import Progress, RunFolder
from sampler import Interruption, Request, Rollout, TransformersSampler, restored
from servers import Fleet, ServerError, ServerSampler
from tasks import TaskError, did_you_mean, questions_of
from verify import THINK_TAGS, Marker
from vllm_engine import VllmSampler

# ---------------------------------------------------------------------------------------------
# 1. Curriculum


class Curriculum:
    """Epochs over the prompts in seeded random order, with No-Positive-Resampling.

    A prompt whose pass rate over all its samples so far is at `retire_at` (0.9) or above leaves
    the next epochs for good: it has little left to teach, and its groups would mostly be filtered
    for zero variance anyway (paper, sec. 3.2).
    """

    def __init__(self, problem_ids, retire_at, seed):
        self.retire_at, self.seed = retire_at, seed
        self.active = list(problem_ids)
        self.order, self.cursor, self.epoch = [], 0, 0
        self.history = {}                       # prompt id -> [correct, samples]

    def next(self):
        """Next prompt's id, or None when every prompt has retired."""
        if self.cursor == len(self.order):
            self.active = [p for p in self.active if not self.learned(p)]
            if not self.active:
                return None
            self.epoch += 1
            self.order = random.Random(f"{self.seed}/{self.epoch}").sample(
                self.active, len(self.active))
            self.cursor = 0
        self.cursor += 1
        return self.order[self.cursor - 1]

    def learned(self, prompt):
        correct, samples = self.history.get(prompt, (0, 0))
        return samples > 0 and correct / samples >= self.retire_at

    def record(self, prompt, correct, samples):
        old = self.history.get(prompt, (0, 0))
        self.history[prompt] = [old[0] + correct, old[1] + samples]

    def state(self):
        return {name: getattr(self, name) for name in ("active", "order", "cursor", "epoch",
                                                       "history")}

    def load_state(self, state):
        vars(self).update(state)


# ---------------------------------------------------------------------------------------------
# 2. Pacer


@dataclass
class Group:
    """G samples of one prompt, from admission until the trainer has consumed them."""
    group_id: int
    prompt_id: str
    start: int                                  # trainer's version at admission
    size: int                                   # G
    rollouts: list[Rollout] = field(default_factory=list)

    @property
    def finished(self):
        return len(self.rollouts) == self.size


class Pacer:
    """Who may start, who is consumed, so that no token is ever more than k versions old.

    pipeline-k  A group is admitted while fewer than (k+1)*P are outstanding (admitted, not yet
                consumed), and each step consumes the P finished ones with the oldest start. A
                group that started at version s must be in a step by version s + k. Waiting for
                those at their last chance is not enough: if quick young groups keep overtaking,
                more than P slow ones reach it together. So a step is taken only if those it
                leaves behind still fit, P a step, into the steps before their last chance (an
                earliest-deadline-first schedule); else the trainer waits for older ones.
    ppo-k       Generate k*P groups with frozen weights, then k steps (lag 0 to k-1).

    Nothing is dropped for being old: the trainer waits instead.
    """

    def __init__(self, scheme, k, prompts_per_step):
        self.scheme, self.k, self.P = scheme, k, prompts_per_step
        self.groups: dict[int, Group] = {}      # outstanding, in order of admission
        self.admitted = 0                       # ever, and so the next group's id
        self.filling = True                     # ppo: still collecting this round's groups

    def may_admit(self):
        if self.scheme == "pipeline":
            return len(self.groups) < (self.k + 1) * self.P
        self.filling = (self.filling or not self.groups) and len(self.groups) < self.k * self.P
        return self.filling

    def admit(self, prompt_id, version, size):
        group = Group(self.admitted, prompt_id, version, size)
        self.groups[group.group_id] = group
        self.admitted += 1
        return group

    def take(self, version):
        """The next step's P groups, oldest start first; None: generate on."""
        finished = sorted((g for g in self.groups.values() if g.finished),
                          key=lambda g: (g.start, g.group_id))
        taken = finished[: self.P]
        if len(taken) < self.P:
            return None
        if self.scheme == "ppo":
            if self.filling or len(finished) < len(self.groups):
                return None
        else:
            chosen = {g.group_id for g in taken}
            left = [g.start for g in self.groups.values() if g.group_id not in chosen]
            # After this step, those of versions version + 1 to v consume (v - version) * P groups:
            # no more may have their last chance by v.
            for v in range(version, version + self.k):
                if sum(start + self.k <= v for start in left) > (v - version) * self.P:
                    return None
        for group in taken:
            del self.groups[group.group_id]
        return taken


# ---------------------------------------------------------------------------------------------
# 3. Marks


def mark(rollouts, problems, tokenizer, marker):
    """(rewards, counters): -1 or +1 for each rollout, and the marker's numbers for the log.

    A truncated sample has no answer, whatever its text says: -1.
    """
    ended = [i for i, r in enumerate(rollouts) if r.finish_reason == "stop"]
    items = []
    for i in ended:
        problem = problems[rollouts[i].prompt_id]
        # Some templates open the thinking in the prompt; the answer is then still after its end.
        text = tokenizer.decode(rollouts[i].output_ids[:-1])
        opens = marker.think_tags[0]
        if tokenizer.decode(rollouts[i].prompt_ids[-16:]).rstrip().endswith(opens):
            text = opens + text
        items.append((text, problem.answer, problem.kind))
    marks = marker.mark(items)
    rewards = [-1.0] * len(rollouts)
    for i, reward in zip(ended, marks.rewards):
        rewards[i] = reward
    return rewards, marks.counters


def sample_numbers(rollouts, samples_per_prompt):
    """The log's columns on a step's samples: how long they are, and how they ended."""
    n = len(rollouts)
    lengths = torch.tensor([len(r.output_ids) for r in rollouts]).float()
    return {
        "completions/mean_length": lengths.mean().item(),
        "completions/std_length": lengths.std(correction=0).item(),
        "completions/longest_of_group":
            lengths.view(-1, samples_per_prompt).max(1).values.mean().item(),
        "completions/truncated_frac": sum(r.finish_reason == "length" for r in rollouts) / n,
        "completions/interrupted_frac": sum(r.interrupted for r in rollouts) / n,
        "tokens/forced": sum(not s for r in rollouts for s in r.sampled)}


# ---------------------------------------------------------------------------------------------
# 4. Train step


def train_step(policy, optimizer, rollouts, rewards, version, config, ranks):
    """One optimizer step on the groups that have something to teach. Returns the log's numbers,
    and the rollouts that were trained on.

    rollouts   P*G, group by group;  rewards (P, G). On rank 0; the others do `optimizer_step`.
    """
    P, G = rewards.shape
    same = zero_variance(rewards)                                                   # (P,)
    log = {"reward/mean": rewards.mean().item(), "reward/std": rewards.std().item(),
           # 0 is a correct sample that paid the whole length penalty.
           "pass_rate": (rewards >= 0).float().mean().item(),
           "frac_reward_zero_std": same.float().mean().item(), "prompts/consumed": P}
    keep = ~same if config.zero_variance_filter else torch.ones(P, dtype=torch.bool)
    # The groups left are the effective batch: every mean and std below is over them alone.
    kept = [rollouts[p * G + g] for p in keep.nonzero()[:, 0].tolist() for g in range(G)]
    log["prompts/trained"] = int(keep.sum())
    log["tokens/trained"] = int(trained_tokens(kept, config).sum()) if kept else 0
    if not log["tokens/trained"]:
        return log | {"optimizer_step": 0}, []
    rewards = rewards[keep]
    with ranks.phase("train", version):
        ranks.tell("train", lambda: to_tensors(kept) | {"rewards": rewards})
        log |= optimizer_step(policy, optimizer, kept, rewards, version, config, ranks)
    return log, kept


def trained_tokens(rollouts, config):
    """(N, T) bool: the tokens whose log-probs are pushed up or down."""
    mask = table(rollouts, "sampled", torch.bool)
    if config.overlong_filter:          # in the advantages of its group, but not in the gradient
        mask &= torch.tensor([[r.finish_reason == "stop"] for r in rollouts])
    return mask


def optimizer_step(policy, optimizer, rollouts, rewards, version, config, ranks):
    """The gradient of the effective batch, on all ranks together, and one step along it.

    Every rank has the whole batch, rollouts N = P*G and rewards (P, G), and counts advantages and
    weights over all of it; then each computes its share of the micro-batches.
    """
    advantage = advantages(rewards, norm=config.advantage_norm).flatten()           # (N,)
    weights = token_weights(trained_tokens(rollouts, config),
                            torch.arange(len(rollouts)) // rewards.shape[1],
                            aggregation=config.aggregation)                         # (N, T)
    behavior = table(rollouts, "logprobs", torch.float32)
    lags = version - table(rollouts, "versions", torch.long)

    stats, error = [], None
    batches = micro_batches(rollouts, config.micro_batch_tokens, ranks.size)
    share = deal(batches, [cost_tokens(rollouts, b) for b in batches], ranks.size)[ranks.rank]
    for number, indices in enumerate(share, 1):
        ranks.watchdog.progress()
        with meets(policy, last=number == len(share)):
            logprobs, entropies = policy([rollouts[i] for i in indices] or [BLANK])
            cut = lambda x: x[indices, : logprobs.shape[1]].to(logprobs.device)     # noqa: E731
            loss = 0 * logprobs.sum()                       # of an empty micro-batch
            if indices:
                # The ratio's denominator is what the sampler recorded, stale weights and all
                # (paper). "recomputed" is the usual mistake, kept as an ablation: ratio 1, the
                # clip never bites.
                old = cut(behavior) if config.behavior == "sampler" else logprobs.detach()
                try:
                    loss, stat = policy_loss(
                        logprobs, old, advantage[indices].to(logprobs.device), cut(weights),
                        loss=config.loss, eps_max=config.eps_max, eps_low=config.eps_low,
                        eps_high=config.eps_high, lags=cut(lags), entropy=entropies)
                    stats.append(stat)
                except ValueError as bad:
                    error = str(bad)        # raised after the backward pass: other ranks wait in it
            # Weights sum to 1 over the step, so gradients add up; but ranks take their mean.
            (loss * ranks.size).backward()

    parts = ranks.gather({"stats": stats, "error": error})
    for rank, part in enumerate(parts):
        if part["error"]:
            raise FloatingPointError(f"rank {rank}, version {version}: {part['error']}")
    log = merge_stats([stat for part in parts for stat in part["stats"]])
    norm = whole(torch.nn.utils.clip_grad_norm_(policy.parameters(), config.grad_clip)).item()
    if not (math.isfinite(norm) and math.isfinite(log["loss"])):
        raise FloatingPointError(f"loss {log['loss']}, gradient norm {norm} at version {version}")
    for group in optimizer.param_groups:
        group["lr"] = config.lr * min(1.0, (version + 1) / max(1, config.warmup_steps))
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return log | {"optimizer_step": 1, "grad_norm": norm, "lr": optimizer.param_groups[0]["lr"]}


# ---------------------------------------------------------------------------------------------
# 5. Evaluation


def evaluate(sampler, decode, problems, prompts, tokenizer, marker, samples, seed):
    """Pass rates on held-out prompts by task: {"eval/<task>/mean@k": ..., "eval/<task>/pass@k"}.

    `sampler` is one apart, on the same weights: running sequences of the training sampler are not
    disturbed, and an evaluation depends on nothing but the weights and the seed (on servers, on
    what runs beside it as well). decode(sampler) is one step of it (`Run.decode`).
    """
    sampler.generator.manual_seed(seed)
    for i, prompt_id in enumerate(problems):
        sampler.submit(Request(i, prompt_id, prompts[prompt_id], samples))
    correct = Counter()
    rollouts = []
    while sampler.in_flight:
        rollouts += decode(sampler)
    rewards, marking = mark(rollouts, problems, tokenizer, marker)
    for rollout, reward in zip(rollouts, rewards):
        correct[rollout.prompt_id] += reward > 0
    result = {}
    for task in dict.fromkeys(p.task for p in problems.values()):
        rates = [correct[p.id] / samples for p in problems.values() if p.task == task]
        result[f"eval/{task}/mean@{samples}"] = sum(rates) / len(rates)
        for k in [k for k in (2, 4, 8, 16, 32, 64) if k < samples] + [samples]:
            solved = [pass_at_k(samples, correct[p.id], k) for p in problems.values()
                      if p.task == task]
            result[f"eval/{task}/pass@{k}"] = sum(solved) / len(solved)
    result["eval/truncated_frac"] = sum(r.finish_reason == "length"
                                        for r in rollouts) / len(rollouts)
    result["eval/mean_length"] = sum(len(r.output_ids) for r in rollouts) / len(rollouts)
    # A mark that could not be given is a -1: without its share, the curve would sink unexplained.
    return result | {f"eval/{name}": share for name, share in marking.items()
                     if name.startswith("verifier/")}


def pass_at_k(n, correct, k):
    """Chance that k of n samples, drawn without replacement, hold one of the `correct` ones.

    Unbiased for the chance of k fresh samples; 1 - (1 - correct/n)**k is too low (Chen et al.
    2021, arXiv 2107.03374).
    """
    return 1 - math.comb(n - correct, k) / math.comb(n, k)


# ---------------------------------------------------------------------------------------------
# 6. Compute


class Compute:
    """Cumulative training compute, evaluation apart (ours: the paper does not say).

    flops is analytic: a forward pass costs 2 FLOPs a weight and token in matrix products, and
    4*layers*hidden a token and token looked at in attention; training costs three forwards. Each
    prompt counts once for its samples, padding never; nor does what is computed twice to save
    memory (`recompute_layers`, the head in the backward pass) or after an interruption.
    """

    def __init__(self, model, devices, device_name):
        config = model.config
        weights = sum(p.numel() for p in model.parameters())
        if not config.tie_word_embeddings:      # looking up an embedding multiplies nothing
            weights -= model.get_input_embeddings().weight.numel()
        H, _, D = packed.heads(config)
        self.token_flops = 2 * weights
        self.look_flops = 4 * config.num_hidden_layers * H * D
        self.devices, self.hours_name = devices, f"compute/{device_name}_hours"
        self.flops, self.tokens, self.hours = 0, 0, 0.0

    def forward_flops(self, prompt, outputs):
        """FLOPs of one prompt of `prompt` tokens and of its outputs of these lengths."""
        tokens = prompt + sum(outputs)
        looks = prompt * (prompt + 1) // 2 + sum(n * prompt + n * (n + 1) // 2 for n in outputs)
        return self.token_flops * tokens + self.look_flops * looks

    def add(self, rollouts, samples_per_prompt, passes):
        for i in range(0, len(rollouts), samples_per_prompt):
            group = rollouts[i: i + samples_per_prompt]
            self.flops += passes * self.forward_flops(
                len(group[0].prompt_ids), [len(r.output_ids) for r in group])

    def log(self):
        return {"compute/flops": self.flops, "compute/tokens": self.tokens,
                self.hours_name: self.hours}


# ---------------------------------------------------------------------------------------------
# 7. Trainer


def compute_dtype(config, cuda):
    return {"auto": torch.bfloat16 if cuda else torch.float32,
            "bfloat16": torch.bfloat16, "float32": torch.float32}[config.dtype]


def load(what, config, **options):
    """transformers' `what` of the model. Raises ConfigError: no such model."""
    local = Path(config.model)
    if local.exists() and not (local / "config.json").exists():
        raise ConfigError(f"model = {config.model!r}: the folder has no config.json")
    near = did_you_mean(local.name, os.listdir(local.parent)) if local.parent.is_dir() else ""
    if not local.exists() and config.model.startswith("models/"):
        raise ConfigError(f"model = {config.model!r}: no such folder{near or ':'} `make toy` and "
                          "`make smollm2` make those of configs/")
    if not local.exists() and (near or config.model.count("/") != 1):
        raise ConfigError(f"model = {config.model!r}: no such folder, and a name on the hub "
                          f"reads OWNER/NAME{near}")
    try:
        return what.from_pretrained(config.model, **options)
    except (OSError, ValueError, SafetensorError) as error:     # the latter: of a damaged folder
        found = "cannot be read" if local.exists() else "is not to be had from the hub"
        raise ConfigError(f"model = {config.model!r}: {found}: {str(error).splitlines()[0]}"
                          ) from None


def interruptions(config, tokenizer):
    """(training's, evaluation's) rule of how long a sample may think."""
    phrase = tokenizer(config.interrupt_phrase, add_special_tokens=False)["input_ids"] \
        if config.interrupt_phrase else []
    training = Interruption(config.think_min, config.think_max, config.answer_tokens,
                            tuple(phrase), end=config.think_close)
    budget = config.eval_think_tokens
    return training, dataclasses.replace(training, think_min=budget, think_max=budget) \
        if budget else training


def longest_tokens(config, tokenizer, model):
    """Tokens of the longest output and sequence; how long prompts really are is known later."""
    output = max(rule.longest for rule in interruptions(config, tokenizer))
    length = config.prompt_tokens + output
    return output, min(length, getattr(model.config, "max_position_embeddings", None) or length)


def check_positions(config, model, positions):
    """Raises ConfigError: the model has no place for a sequence of so many tokens."""
    limit = getattr(model.config, "max_position_embeddings", None) or math.inf
    if positions > limit:
        fits = config.think_max - (positions - limit)
        raise ConfigError(
            f"think_max = {config.think_max}: prompt, thinking, phrase and answer may take "
            f"{positions} tokens, the model has {limit}; "
            + (f"think_max = {fits} would fit" if fits > 0 else "lower answer_tokens as well"))


def settle_engine(config):
    """engine = "auto" is vLLM if there are servers, or if this process can import it."""
    if config.engine == "auto":
        config.engine = "vllm" if config.vllm_url or launch.wanted(config) or \
            importlib.util.find_spec("vllm") else "transformers"


@contextlib.contextmanager
def refused(about=""):
    """What others refuse in a sentence of their own is wrong input as well: a ConfigError."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{about}{error}") from None


def check_attention(config, dtype, device):
    """Does a micro-batch's attention go without masks? Raises ConfigError: not on this device."""
    with refused():
        return packed.uses_flash(config.attention, dtype, device)


class Trainer:
    """One rank's part of the training: the model, its optimizer, and the way to the other ranks.
    Rank 0 is a `Run`, which tells the story; the others `follow`."""

    def __init__(self, config):
        self.config = config
        if int(os.environ.get("WORLD_SIZE", 1)) > 1 and not config.vllm_url:
            raise ConfigError("vllm_url = '': several trainer processes need servers to generate; "
                              "give their addresses, or let --trainers and --servers start both")
        cuda = torch.cuda.is_available() and config.gpus != 0
        self.device = "cuda" if cuda else "cpu"
        self.dtype = compute_dtype(config, cuda)
        check_attention(config, self.dtype, self.device)        # before minutes of loading
        torch.manual_seed(config.seed)
        self.ranks = Ranks(deadline_s=config.deadline_s, start_deadline_s=config.start_deadline_s,
                           cpu=not cuda, dtype=self.dtype)
        if config.threads:                  # after accelerate, which has its own idea of it
            torch.set_num_threads(config.threads)
        with self.ranks.phase("start", 0):
            self.load_model()
            self.prepare()

    def prepare(self):
        """The model and its optimizer as the settings want them, shared by all ranks."""
        config = self.config
        flash = check_attention(config, self.dtype, self.device)
        with refused():
            shape_layers(self.model, self.device, recompute=config.recompute_layers,
                         compiled=config.compile_layers)
        self.policy, self.optimizer = self.ranks.prepare(
            Policy(self.model, temperature=config.temperature, dtype=self.dtype,
                   head_fp32=config.head_fp32, flash=flash,
                   chunk_tokens=config.logits_chunk_tokens),
            torch.optim.AdamW(
                self.model.parameters(), lr=config.lr, betas=(config.beta1, config.beta2),
                eps=config.adam_eps, weight_decay=config.weight_decay, fused=config.fused_adamw))

    def load_model(self):
        config, folder = self.config, Path(self.config.model)
        self.tokenizer = load(AutoTokenizer, config)
        # fp32 masters: at lr 5e-7 a bf16 weight would round most updates away.
        self.model = load(AutoModelForCausalLM, config, dtype=torch.float32)
        with refused(f"model = {config.model!r}: "):
            if self.ranks.rank == 0 and (folder / checkpoint.CHECKSUMS).exists():
                checkpoint.check(folder)            # another run's `best` or `model`
            packed.prepare(self.model)
        self.ranks.memory = Memory(
            config, self.model, *longest_tokens(config, self.tokenizer, self.model), self.dtype,
            cuda=self.device == "cuda", alone=not config.vllm_url)
        if self.ranks.size == 1:            # several: shards go to the devices, not the whole
            self.model.to(self.device)
        # No dropout, ever: the ratio compares the trainer's forward with the sampler's.
        self.model.eval()

    def follow(self):
        """Every rank but 0: take part in what it tells, until the end."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)            # rank 0 hears it, and ends the run
        while True:
            command, tensors = self.ranks.hear()
            do, version = command["do"], command["version"]
            if do == "end":
                return
            with self.ranks.phase(do, version):
                if do == "train":
                    try:
                        optimizer_step(self.policy, self.optimizer, from_tensors(tensors),
                                       tensors["rewards"], version, self.config, self.ranks)
                    except FloatingPointError:
                        # Rank 0 has it too and writes down its samples; a launcher ends all ranks
                        # as soon as one ends. So this one waits for rank 0's end.
                        with contextlib.suppress(RankError):
                            self.ranks.hear()
                        raise
                elif do == "logprobs":
                    logprobs_of(self.policy, from_tensors(tensors), command["head_fp32"],
                                self.config.micro_batch_tokens)
                elif do == "gather":
                    gather_group(self.model, command["number"],
                                 getattr(torch, command["dtype"]) if command["dtype"] else None)
                elif do == "save":
                    self.save_shard(Path(command["folder"]))
                elif do == "load":
                    checkpoint.load_training_state(Path(command["folder"]), self.model,
                                                   self.optimizer)

    def save_shard(self, folder, **rank_0):
        checkpoint.save(folder, checkpoint.training_state(self.model, self.optimizer, self.ranks),
                        self.ranks, **rank_0)


# ---------------------------------------------------------------------------------------------
# 8. Run


class Stopped(Exception):
    """Ctrl-C or SIGTERM while servers generate: nothing there can be saved, they may be gone."""


class Run(Trainer):
    """One training run, told by rank 0: what it is made of, the loop, and its folder."""

    def __init__(self, config, resume):
        config.check()
        self.scheme, self.k = config.schedule()
        settle_engine(config)               # before it is written down: a resumed run keeps it
        if config.vllm_url and config.engine != "vllm":
            raise ConfigError(f"engine = {config.engine!r}: vllm_url names vLLM servers")
        self.folder = RunFolder(config, resume)
        super().__init__(config)
        self.load_questions()
        self.build()

    # -- what it is made of -------------------------------------------------------------------

    def load_questions(self):
        config = self.config
        tags = (config.think_open.strip() or THINK_TAGS[0], config.think_close)
        self.marker = Marker(unsafe_code=config.unsafe_code, think_tags=tags)
        try:
            self.questions = questions_of(config, self.tokenizer, self.marker)
        except TaskError as error:
            raise ConfigError(str(error)) from None

    def build(self):
        config, device = self.config, self.device
        interruption, evaluation = interruptions(config, self.tokenizer)
        positions = self.questions.prompt_tokens + max(interruption.longest, evaluation.longest)
        check_positions(config, self.model, positions)
        eos = self.model.generation_config.eos_token_id
        eos = self.tokenizer.eos_token_id if eos is None else eos
        eos = set(eos if isinstance(eos, list) else [eos])
        if None in eos:
            raise ConfigError(f"model = {config.model!r}: neither its generation config nor its "
                              "tokenizer names an end-of-sequence token")
        shared = dict(slots=config.slots, prompt_tokens=self.questions.prompt_tokens, eos_ids=eos,
                      temperature=config.temperature, head_fp32=config.head_fp32)
        self.fleet = None
        if config.vllm_url:
            self.sampler, self.eval_sampler = self.server_samplers(
                interruption, evaluation, positions, shared)
        else:
            with self.ranks.phase("start", 0):
                # On a CPU sampler and trainer share the very same weights: a push costs nothing.
                # With a bf16 sampler the fp32 masters need a rounded copy.
                generator = self.model if self.dtype == torch.float32 else copy.deepcopy(
                    self.model).to(self.dtype)
                make = functools.partial(TransformersSampler, generator, self.tokenizer, **shared)
                # Evaluation is on the trainer's own weights with either engine: nothing to push,
                # and running sequences are left alone.
                self.eval_sampler = make(evaluation, seed=config.seed + 1)
                self.sampler = make(interruption, seed=config.seed) \
                    if config.engine == "transformers" else self.vllm_sampler(interruption, shared)
        self.curriculum = Curriculum(self.questions.train, config.retire_at, config.seed)
        self.pacer = Pacer(self.scheme, self.k, config.prompts_per_step)
        devices = self.ranks.size + (self.fleet.workers if self.fleet else 0)
        devices *= 1 if device == "cuda" else torch.get_num_threads()
        self.compute = Compute(self.model, devices, "gpu" if device == "cuda" else "core")
        self.step = self.version = 0            # steps taken; optimizer steps taken (v)
        self.evaluated = None                   # the last step with an evaluation
        self.best = -1.0                        # pass rate of the best evaluation
        self.counters = Counter()               # since the last log line
        self.stop = 0                           # the signal that asked for an end

    def vllm_sampler(self, interruption, shared):
        """vLLM in this process, with its own copy of the weights."""
        kv_bytes = 0                    # on a CPU: what all slots need
        if self.device == "cuda":       # half of what gradients, Adam and two bf16 copies leave
            weights = sum(p.numel() for p in self.model.parameters())
            kv_bytes = max(1, (torch.cuda.mem_get_info()[0] - 16 * weights) // 2)
        with refused():
            sampler = VllmSampler(self.config.model, self.tokenizer, interruption, **shared,
                                  seed=self.config.seed, dtype=self.dtype, kv_bytes=kv_bytes)
        if sampler.slots < self.config.samples_per_prompt:
            raise ConfigError(f"samples_per_prompt = {self.config.samples_per_prompt}: vLLM's "
                              f"cache has room for {sampler.slots} sequences")
        if sampler.slots < self.config.slots:
            print(f"warning: vLLM's cache has room for {sampler.slots} sequences, fewer than "
                  f"slots = {self.config.slots}", file=sys.stderr)
        return sampler

    def server_samplers(self, interruption, evaluation, length, shared):
        """(training's, evaluation's) sampler on the servers that vllm_url names."""
        config = self.config
        urls = [url.strip() for url in config.vllm_url.split(",") if url.strip()]
        with refused():
            self.fleet = Fleet(urls, slots=config.slots, length=length, dtype=self.dtype,
                               head_fp32=config.head_fp32, model=self.model.config,
                               tls=config.tls, insecure_network=config.insecure_network,
                               deadline_s=config.deadline_s,
                               start_deadline_s=config.start_deadline_s)
        shared = {name: shared[name] for name in ("prompt_tokens", "eos_ids", "temperature")}
        shared["vocabulary"] = self.model.config.vocab_size
        # While the trainer trains, slots that fall free are filled from a step's worth in wait.
        ahead = config.prompts_per_step * config.samples_per_prompt
        return (ServerSampler(self.fleet, self.tokenizer, interruption, **shared,
                              seed=config.seed, ahead=ahead),
                ServerSampler(self.fleet, self.tokenizer, evaluation, **shared,
                              seed=config.seed + 1))

    # -- the loop -----------------------------------------------------------------------------

    def train(self):
        """Train until `steps`, or until every prompt has retired. Returns the closing sentence."""
        self.folder.track()
        ending = ""
        with contextlib.suppress(Stopped):
            ending = self.loop()
        if self.stop and self.evaluated is None:
            return "Stopped before the first evaluation was done: --resume starts from the first " \
                "step."
        if self.stop:
            if not self.saved():
                self.save()
            return f"Stopped at step {self.step}; the checkpoint is written, --resume goes on."
        self.save_model(self.folder.path / "model")
        return ending

    def loop(self):
        """All steps and evaluations that are left. Returns why there are no more."""
        config = self.config
        if self.evaluated is None:          # neither this run nor the one that it resumes has
            self.self_test()
        self.evaluate_if_due()              # nor has one that was stopped in an evaluation
        ending = f"Done: {max(config.steps, self.step)} steps."
        with Progress(config.steps, self.step) as progress:
            while self.step < config.steps and not self.stop:
                groups = self.generate()
                if groups is None:
                    ending = (f"Done after {self.step} steps: every prompt has retired (pass rate "
                              f">= {config.retire_at}); {len(self.pacer.groups)} groups, fewer "
                              "than a step's worth, are left untrained.")
                    break
                self.train_on(groups)
                self.evaluate_if_due()
                if self.step % config.checkpoint_every == 0 or self.step == config.steps:
                    self.save()
                progress.show(self.record)
        if not self.stop and self.evaluated != self.step:
            self.evaluate()
        if not self.stop and not self.saved():  # all retired: --resume must not train them again
            self.save()
        return ending

    def close(self):
        """However the run ended: no process stays behind, and no log line is lost."""
        self.marker.close()
        if self.fleet:
            self.fleet.close()
        self.folder.close()

    def push(self, sampler):
        """Bring a sampler to the trainer's weights."""
        with contextlib.nullcontext() if self.fleet else self.watched("push"):
            sampler.push_weights(full_tensors(self.model, self.ranks, self.version,
                                              self.dtype if self.fleet else None), self.version)

    def watched(self, phase):
        """A deadline for what this process computes; servers and ranks have theirs."""
        return self.ranks.watchdog(f"step {self.step + 1}: {phase}, version {self.version}, engine "
                                   f"{self.config.engine}")

    def decode(self, sampler):
        """One step of a sampler; then the weights, for a server that came back without them."""
        self.heed_stop()
        try:
            with self.watched("generate"):
                rollouts = sampler.step()
        except ServerError:                 # while samples are awaited, no step is half done
            if self.evaluated is not None:
                self.save()
            raise
        if sampler.needs_push:
            self.push(sampler)
        return rollouts

    def heed_stop(self):
        if self.stop and self.fleet:
            raise Stopped

    def generate(self):
        """Decode until the pacer hands out the next step's groups. None when prompts ran out."""
        start = time.perf_counter()
        if self.fleet:      # what servers finished meanwhile: its slots are free, its groups count
            self.collect(self.sampler.finished())
        while True:
            self.heed_stop()
            self.admit()
            groups = self.pacer.take(self.version)
            if groups or not self.sampler.in_flight:
                self.time_generate = time.perf_counter() - start
                return groups
            busy = self.sampler.in_flight + min(0, self.sampler.free_slots)     # the others wait
            self.collect(self.decode(self.sampler))
            if not self.fleet:          # a server takes its own steps
                self.counters.update({"decode/steps": 1, "decode/tokens": busy})

    def collect(self, rollouts):
        for rollout in rollouts:
            self.pacer.groups[rollout.group_id].rollouts.append(rollout)
            self.counters["tokens/generated"] += sum(rollout.sampled)

    def admit(self):
        """Start groups as the pacer and, for pipeline-k, free slots allow: a prompt that would
        only queue is better chosen later, when the curriculum knows more."""
        config = self.config
        G = config.samples_per_prompt
        while self.pacer.may_admit() and (self.scheme == "ppo" or self.sampler.free_slots >= G):
            prompt_id = self.curriculum.next()
            if prompt_id is None:
                self.pacer.filling = False
                return
            group = self.pacer.admit(prompt_id, self.version, G)
            self.sampler.submit(Request(group.group_id, prompt_id,
                                        self.questions.prompts[prompt_id], G,
                                        self.questions.train[prompt_id].task))

    def train_on(self, groups):
        """Mark, filter, train, push; then write the step down."""
        G = self.config.samples_per_prompt
        start = time.perf_counter()
        rollouts = [r for group in groups for r in group.rollouts]
        lags = [self.version - v for r in rollouts for v in r.versions]
        assert max(lags) <= self.k, f"lag {max(lags)}, the pacer promised at most {self.k}"
        rewards, marking = self.reward(groups, rollouts)
        marked = time.perf_counter()
        log, trained_on = self.take_step(rollouts, rewards)
        trained = time.perf_counter()
        self.version += log["optimizer_step"]
        self.push(self.sampler)
        pushed = time.perf_counter()

        self.step += 1
        seconds = {"generate": self.time_generate, "verify": marked - start,
                   "train": trained - marked, "sync": pushed - trained}
        self.compute.add(rollouts, G, passes=1)
        self.compute.add(trained_on, G, passes=3)
        self.compute.tokens += self.counters["tokens/generated"]
        self.compute.hours += self.compute.devices * sum(seconds.values()) / 3600
        log |= marking | sample_numbers(rollouts, G)
        log |= {"lag/mean": sum(lags) / len(lags), "lag/max": max(lags)}
        self.record = {"step": self.step, "version": self.version} | log \
            | self.run_numbers(seconds, log["tokens/trained"]) | self.compute.log()
        self.counters.clear()
        self.folder.append("metrics.jsonl", self.record)
        # What was trained on, sample by sample: none may be lost, none be there twice.
        self.folder.append("groups.jsonl", {"step": self.step, "groups": [
            {"id": group.group_id, "prompt_id": group.prompt_id, "start": group.start,
             "rewards": row.tolist()} for group, row in zip(groups, rewards)]})
        self.folder.append_samples(self.samples(rollouts, rewards.flatten().tolist()))

    def reward(self, groups, rollouts):
        """((P, G) rewards, the marker's numbers); the curriculum notes who passed."""
        G = self.config.samples_per_prompt
        rewards, marking = mark(rollouts, self.questions.train, self.tokenizer, self.marker)
        rewards = torch.tensor(rewards).view(-1, G)
        for group, row in zip(groups, rewards):
            self.curriculum.record(group.prompt_id, int((row > 0).sum()), G)
        if self.config.length_penalty:  # of correct samples only (paper's ablation)
            lengths = torch.tensor([len(r.output_ids) for r in rollouts]).float().view(-1, G)
            rewards += (rewards > 0) * length_penalty(
                lengths, l_max=self.config.think_max + self.config.answer_tokens,
                l_cache=self.config.length_penalty)
        return rewards, marking

    def take_step(self, rollouts, rewards):
        """`train_step`. Raises RuntimeError where a number is not finite, its samples on disk."""
        try:
            with self.watched("train"):
                return train_step(self.policy, self.optimizer, rollouts, rewards, self.version,
                                  self.config, self.ranks)
        except (FloatingPointError, ValueError) as error:
            path = self.folder.path / "bad_step.jsonl"
            path.write_text("".join(json.dumps(dataclasses.asdict(r)) + "\n" for r in rollouts))
            message = f"step {self.step + 1} stopped: {error}; its samples are in {path}"
            raise RuntimeError(message) from None

    def run_numbers(self, seconds, trained_tokens):
        """How the run stands after this step, and where the step's seconds went: for the log."""
        generated, whole = self.counters["tokens/generated"], sum(seconds.values())
        log = {
            "tokens/generated": generated,
            "off_policy/in_flight": self.sampler.in_flight,
            "off_policy/outstanding": len(self.pacer.groups),
            "curriculum/epoch": self.curriculum.epoch,
            "curriculum/active": len(self.curriculum.active),
            "curriculum/retired": len(self.questions.train) - len(self.curriculum.active),
            **{f"time/{part}_s": s for part, s in seconds.items()}, "time/step_s": whole,
            "throughput/generated_tok_s": generated / max(
                whole if self.fleet else seconds["generate"], 1e-9),
            "throughput/trained_tok_s": trained_tokens / max(seconds["train"], 1e-9)}
        if self.fleet:                          # each side's waiting
            return log | {"time/wait_s": seconds["generate"]} | self.fleet.log()
        steps = self.counters["decode/steps"]   # in process: how full they were
        return log | {"decode/steps": steps,
                      "decode/batch": self.counters["decode/tokens"] / max(1, steps)}

    def samples(self, rollouts, rewards):
        """`samples_logged` of the step's samples, evenly spread over it, to be read."""
        count = self.config.samples_logged
        every = max(1, len(rollouts) // max(1, count))
        return [{
            "step": self.step, "prompt_id": rollout.prompt_id, "reward": reward,
            "prompt": self.tokenizer.decode(rollout.prompt_ids),
            "output": self.tokenizer.decode(rollout.output_ids),
            "interrupted": rollout.interrupted, "finish_reason": rollout.finish_reason,
            "versions": [rollout.versions[0], rollout.versions[-1]]}
            for rollout, reward in list(zip(rollouts, rewards))[::every][:count]]

    def evaluate_if_due(self):
        if self.evaluated != self.step and (
                self.step % self.config.eval_every == 0 or self.step >= self.config.steps):
            self.evaluate()

    def evaluate(self):
        start = time.perf_counter()
        self.push(self.eval_sampler)
        result = evaluate(self.eval_sampler, self.decode, self.questions.heldout,
                          self.questions.prompts, self.tokenizer, self.marker,
                          self.config.eval_samples, self.config.seed + 1000 + self.step)
        self.evaluated = self.step
        self.folder.append("evals.jsonl", {"step": self.step, "version": self.version}
                           | self.compute.log() | result
                           | {"time/eval_s": time.perf_counter() - start})
        samples = self.config.eval_samples
        means = [result[f"eval/{task}/mean@{samples}"] for task in self.questions.curve_tasks]
        mean = sum(means) / len(means)
        if mean > self.best:
            self.best = mean
            self.save_model(self.folder.checkpoints / "best")

    def self_test(self):
        """Run a few prompts through sampler and trainer and log how far their log-probs differ,
        with the fp32 head and with a bf16 one: what the recipe's fp32 head buys on this model."""
        line = {"step": 0, "version": 0} | self.questions.counts
        # With vLLM the engine that generates, with transformers its twin, whose generator an
        # evaluation seeds anyway.
        sampler = self.sampler if self.config.engine == "vllm" else self.eval_sampler
        # A server's head cannot be switched from here: its own figures alone.
        for head_fp32 in (self.config.head_fp32,) if self.fleet else (True, False):
            sampler.head_fp32 = head_fp32
            for i, prompt_id in enumerate(list(self.questions.heldout)[:8]):
                sampler.submit(Request(i, prompt_id, self.questions.prompts[prompt_id], 2))
            rollouts = []
            while sampler.in_flight:
                rollouts += self.decode(sampler)
            with self.ranks.phase("logprobs", self.version):
                self.ranks.tell("logprobs", lambda: to_tensors(rollouts), head_fp32=head_fp32)
                logprobs = logprobs_of(self.policy, rollouts, head_fp32,
                                       self.config.micro_batch_tokens)
            log_ratio = (logprobs.cpu() - table(rollouts, "logprobs", torch.float32))[
                table(rollouts, "sampled", torch.bool)]
            name = "fp32_head" if head_fp32 else "bf16_head"
            line |= {f"mismatch/{name}/mean_abs_dlogp": log_ratio.abs().mean().item(),
                     f"mismatch/{name}/max_abs_dlogp": log_ratio.abs().max().item(),
                     f"mismatch/{name}/kl_k3": k3(log_ratio).mean().item()}
        sampler.head_fp32 = self.config.head_fp32
        self.folder.append("metrics.jsonl", line)
        found = [f"{line[key]:.1e} with {words}" for words, key in (
            ("the fp32 head", "mismatch/fp32_head/mean_abs_dlogp"),
            ("a bf16 head", "mismatch/bf16_head/mean_abs_dlogp")) if key in line]
        print(f"Self-test: sampler and trainer differ in log-prob by {', '.join(found)} (mean over "
              f"{len(log_ratio)} tokens, no lag)", flush=True)
        now = "fp32_head" if self.config.head_fp32 else "bf16_head"
        if line[f"mismatch/{now}/kl_k3"] > 0.015:
            print(f"warning: sampler and trainer disagree before the first step (mean k3 KL "
                  f"{line[f'mismatch/{now}/kl_k3']:.3f}, healthy is below 0.015)", file=sys.stderr)

    # -- its state ----------------------------------------------------------------------------

    def saved(self):
        return (self.folder.checkpoints / f"step_{self.step}").exists()

    def save(self):
        sampler_tensors, sampler_plain = self.sampler.state()
        plain = {
            "step": self.step, "version": self.version, "best": self.best,
            "evaluated": self.evaluated, "curriculum": self.curriculum.state(),
            "sampler": sampler_plain,
            "groups": [dataclasses.asdict(g) for g in self.pacer.groups.values()],
            "admitted": self.pacer.admitted, "filling": self.pacer.filling,
            "counters": self.counters,      # of a step cut off while servers generate
            "compute": {"flops": self.compute.flops, "tokens": self.compute.tokens,
                        "hours": self.compute.hours}}
        folder = self.folder.checkpoints / f"step_{self.step}"
        with self.ranks.phase("save", self.version):
            self.ranks.tell("save", folder=str(folder))
            self.save_shard(folder, plain=plain, tensors={
                "sampler": sampler_tensors, "random": {"torch": torch.get_rng_state()}})
        self.folder.drop_old_checkpoints()

    def save_model(self, folder):
        save_model(self.model, self.tokenizer,
                   full_tensors(self.model, self.ranks, self.version), folder)

    def restore(self):
        """Go on from the newest whole checkpoint. Returns the sentence that says what was found."""
        folder, plain = self.folder.rewind()
        if folder is None:
            return f"{self.folder.path} has no checkpoint yet: starting from the first step."
        with self.ranks.phase("load", plain["version"]):
            self.ranks.tell("load", folder=str(folder))
            checkpoint.load_training_state(folder, self.model, self.optimizer)
        torch.set_rng_state(checkpoint.load_tensors(folder, "random")["torch"])
        try:
            self.sampler.load_state(checkpoint.load_tensors(folder, "sampler"), plain["sampler"])
        except RuntimeError as error:
            if is_short(error):
                raise
            raise ConfigError(f"gpus = {self.config.gpus}: {folder} cannot go on here: its "
                              "sampler's random numbers and caches are of another kind of device "
                              f"({error})") from None
        self.version = plain["version"]
        self.push(self.sampler)
        self.curriculum.load_state(plain["curriculum"])
        for name in ("step", "version", "best", "evaluated"):
            setattr(self, name, plain[name])
        self.pacer.admitted, self.pacer.filling = plain["admitted"], plain["filling"]
        for fields in plain["groups"]:
            fields["rollouts"] = [restored(Rollout, r) for r in fields["rollouts"]]
            self.pacer.groups[fields["group_id"]] = Group(**fields)
        self.counters.update(plain["counters"])
        vars(self.compute).update(plain["compute"])
        if self.folder.best_is_damaged():
            self.best = -1.0
        unfinished = self.sampler.in_flight
        how = "go on where they were, 0 restarted" if self.config.engine == "transformers" else \
            "start again: vLLM's cache cannot be saved"
        return (f"Resumed {folder}: {len(self.pacer.groups)} groups outstanding, "
                f"{unfinished} unfinished samples {how}.")


# ---------------------------------------------------------------------------------------------
# 9. main


def planned(config, resume):
    """What launch.py is told of this run, from the shapes of its model: {"estimate": its Estimate,
    "dtype": the generators', "folder": the run's}."""
    config.check()
    if config.gpus == -1 and launch.wanted(config):
        config.gpus = torch.cuda.device_count()
    cuda = bool(torch.cuda.is_available() if config.gpus == -1 else config.gpus)
    tokenizer = load(AutoTokenizer, config)
    with torch.device("meta"):                      # shapes alone: no memory, no weights read
        model = AutoModelForCausalLM.from_config(load(AutoConfig, config))
    dtype, device = compute_dtype(config, cuda), "cuda" if cuda else "cpu"
    settle_engine(config)
    check_attention(config, dtype, device)
    output, length = longest_tokens(config, tokenizer, model)
    check_positions(config, model, output + 1)
    if config.compile_layers and (not cuda or torch.cuda.is_available()):
        launch.probe_compile(config, device)
    estimate = launch.Estimate(config, model, Compute(model, 1, "gpu"),
                               output, length, dtype, launch.device_here(cuda))
    return {"estimate": estimate, "dtype": dtype, "folder": RunFolder(config, resume).path}


def follow(config):
    """A trainer rank other than 0. Returns the exit code."""
    try:
        trainer = Trainer(config)
        trainer.follow()
        trainer.ranks.close()
    except (ConfigError, RuntimeError, OSError, FloatingPointError) as error:
        print(f"scalerl.py: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def main(argv=None):
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    argv = sys.argv[1:] if argv is None else argv
    try:
        config, asked = parse(argv, __doc__.split("One step of")[0])
        if asked.report:
            import report                   # matplotlib, which training never needs
            with refused():
                print(report.write_report(asked.report))
            return 0
        if asked.print_config or asked.dry_run:
            print(to_toml(config), end="\n" * asked.dry_run)
            if asked.dry_run:
                launch.describe(config, argv, **planned(config, asked.resume))
            return 0
        if launch.wanted(config):
            return launch.launch(config, argv, **planned(config, asked.resume))
        launch.keep_quiet(Path("runs") / config.name)
        if int(os.environ.get("RANK", 0)):
            return follow(config)
        run = Run(config, asked.resume)
        if asked.resume:
            print(run.restore())
            run.folder.write_config()
        else:
            run.folder.make(run.device)
    except (ConfigError, launch.PlaceError) as error:
        print(f"scalerl.py: {error}", file=sys.stderr)
        return 2
    except (ServerError, RankError, OSError) as error:      # the last: no room, no right to write
        print(f"scalerl.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:               # while servers are awaited, for minutes perhaps
        print("scalerl.py: interrupted before the run had begun: nothing to save", file=sys.stderr)
        return 128 + signal.SIGINT

    # Of several ranks, SIGTERM means that another one has ended (ranks.py); their launcher turns
    # its own into a SIGINT to rank 0.
    asking = [signal.SIGINT] + [signal.SIGTERM] * (run.ranks.size == 1)

    def interrupt(number, _):
        # The first Ctrl-C ends the step and writes a checkpoint; a second one kills. One of each is
        # one request: a scheduler signals this process, and its launcher, which passes it on.
        run.stop = run.stop or number
        signal.signal(number, signal.default_int_handler)
        print("\nstopping after this step, with a checkpoint; Ctrl-C again stops at once",
              file=sys.stderr)
    for number in asking:
        signal.signal(number, interrupt)
    print(f"{config.model} on {config.task}: {len(run.questions.train)} problems, "
          f"{len(run.questions.heldout)} held out, {config.prompts_per_step} x "
          f"{config.samples_per_prompt} samples a step, {config.off_policy}, {config.engine} on "
          f"{run.device}. Log: {run.folder.path}")
    try:
        print(run.train())
        run.ranks.close()
    except (RuntimeError, OSError) as error:
        if is_short(error):                                 # elsewhere `Ranks.phase` says it
            error = short_of_memory(error, "generate", run.ranks.memory, run.ranks.size)
        run.ranks.last_words(str(error))
        print(f"scalerl.py: step {run.step + 1}: {error}; {run.folder.way_on()}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"scalerl.py: step {run.step + 1}: stopped at once; {run.folder.way_on()}",
              file=sys.stderr)
        return 128 + (run.stop or signal.SIGINT)
    finally:
        run.close()
    # Stopped is not done, and whoever wrote `&& python fit.py` should know. accelerate would call
    # it a failure of rank 0; there the launcher says it.
    return 128 + run.stop if run.stop and run.ranks.size == 1 else 0


if __name__ == "__main__":
    sys.exit(main())
