"""scalerl.py: train a language model with the ScaleRL recipe (arXiv 2510.13786).

    python scalerl.py --config configs/demo.toml               a toy model, on a laptop, in minutes
    python scalerl.py --model Qwen/Qwen3-8B --task polaris-53k --gpus 8
    python fit.py runs/demo                                    fit its curve, predict more compute

The model (the policy) answers each prompt G times: a group of samples. A verifier marks each answer
right or wrong. A step trains on P groups. The advantage of an answer is its reward minus the mean
reward of its group, divided by the group's std. A positive advantage makes the answer's tokens more
likely, a negative one less likely. That is GRPO. ScaleRL is GRPO, but:

    paper   here                what
    3.1     part 2              new weights arrive in the middle of a sample. A token is trained on
                                at most k = 8 steps after it was drawn. The loss weighs it by the
                                importance ratio π/μ, p(now) / p(when drawn).
    3.2     parts 1 and 3       learned prompts retire; groups of equal rewards leave the batch
    3.2     loss.py             CISPO: the ratio is a weight, capped at ε_max; a token above the cap
                                still learns. Advantages are divided by the batch's std.
                                Mean over a prompt's tokens, then over prompts.
                                fp32 logits, in the sampler too.
    2       loss.py             no KL penalty (GRPO has one), no entropy bonus
    4       sampler.py          a sample that thinks too long is interrupted, and has to answer

"Ours" marks what the paper does not say, or does differently. For example, the x of the curve is
the FLOPs of generation and training, without evaluations (the paper has GPU-hours).

Order of the five files: this head, config.py, the rest of this file, loss.py, sampler.py, fit.py.

Axes: P prompts in a step (after the filter: those kept), G samples of a prompt, N = P*G samples, T
tokens of the longest output. The version of the weights is the number of optimizer steps taken (a
step of the loop without a token to train on takes none); lag and warm-up count these. A `Rollout`
is one sample, with the log-prob and the version of every token."""

if __name__ == "__main__":      # answer help and typos before the slow import of torch
    from command.options import answer_at_once
    answer_at_once()

import math
import random
import time
from collections import Counter, deque
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import fmean

import torch

from loss import (advantages, length_penalty, merge_stats, policy_loss, token_logprobs,
                  token_weights, zero_variance)
from sampler import Group, Request, Rollout
# Machinery: skip it at first.
from artifacts.run_folder import Progress
from artifacts.step_log import Stopwatch, log_evaluation, log_step
from engines import load, own_forward, packed
from engines.agreement import self_test
from engines.compute import Compute
from engines.head import logits_chunk
from engines.trained_model import TrainedModel

# ------------------------------------------------------------------------------- 1. Curriculum
class Curriculum:
    """Epochs over the prompts in random order, with No-Positive-Resampling (paper, sec. 3.2).

    When an epoch begins, a prompt leaves for good if its pass rate is `retire_at` (0.9) or higher.
    The pass rate is over all its samples that steps have consumed (ours): after 4 right of 16 it
    takes seven epochs without a mistake; a group still in flight counts at the next epoch. At .9
    little is left to learn: of its groups of 16, 19% (.9^16) have no mistake, 60% one or two."""

    def __init__(self, prompts, retire_at, seed):
        self.retire_at, self.seed = retire_at, seed
        self.active = list(prompts)                 # their ids
        self.order, self.cursor, self.epoch = [], 0, 0
        self.history = {}                           # prompt id -> [correct samples, all samples]

    def next(self):
        """The next prompt's id, or None when all have retired."""
        if self.cursor == len(self.order):          # an epoch is over, or none has begun
            self.active = [prompt for prompt in self.active if not self.learned(prompt)]
            if not self.active:
                return None
            self.epoch += 1
            rng = random.Random(f"{self.seed}/{self.epoch}")
            self.order, self.cursor = rng.sample(self.active, len(self.active)), 0
        self.cursor += 1
        return self.order[self.cursor - 1]

    def learned(self, prompt):
        """Has its pass rate reached `retire_at`?"""
        correct, samples = self.history.get(prompt, (0, 0))
        return samples > 0 and correct / samples >= self.retire_at

    def record(self, prompt, correct, samples):
        """Add the result of a group: `correct` of its `samples` were right."""
        old = self.history.get(prompt, (0, 0))
        self.history[prompt] = [old[0] + correct, old[1] + samples]


# ------------------------------------------------------------------------------------ 2. Pacer
# The step on weights v makes version v + 1. There a token's lag is v minus the version that wrote
# it. Lag 0 is not yet ratio 1: the token may have read older keys and values (head of sampler.py).
class PipelinePacer:
    """PipelineRL-k: weights change in the middle of samples; no token is over k versions old.

    deadline    A group is outstanding from its start, at version s, until a step consumes it. Its
                tokens are of s or later: the step on weights s + k must consume it at the latest.
    admission   A group may start while fewer than (k + 1) * P are outstanding. The k + 1 steps on
                weights s, s + 1, .. s + k take P groups each. For one group more there would be
                no step in time.
    a step      takes the P finished groups that started first; so long samples tend to have larger
                lags. It waits, and generation goes on, if later steps of P groups could not
                take all others in time. (Ours: the paper's trainer waits when k steps ahead.)

    Admission and waiting keep every deadline: nothing is dropped for being old."""

    def __init__(self, k, prompts_per_step):
        self.k, self.P, self.largest_lag = k, prompts_per_step, k
        self.groups: dict[int, Group] = {}          # outstanding, in order of admission
        self.admitted = 0                           # so far: also the next group's id

    def may_admit(self):
        return len(self.groups) < (self.k + 1) * self.P

    def admit(self, prompt_id, version, size):
        group = Group(self.admitted, prompt_id, version, size)
        self.groups[group.group_id] = group
        self.admitted += 1
        return group

    def no_more_prompts(self):
        """Every prompt has retired. Only `PPOPacer` has something to do then."""

    def take(self, version):
        """The P groups of the step on weights `version`, or None: keep generating."""
        finished = sorted((g for g in self.groups.values() if g.finished),
                          key=lambda g: (g.start, g.group_id))
        taken = finished[: self.P]
        if len(taken) < self.P or not self.leaves_enough_time(taken, version):
            return None
        for group in taken:
            del self.groups[group.group_id]
        return taken

    def leaves_enough_time(self, taken, version):
        """Can all other groups be consumed by their deadlines if this step takes `taken`?

        Sort the groups left behind by deadline, i = 0, 1, .. The step at version + 1 takes the
        first P, and so on: group i is consumed at version + 1 + i // P. Is that in time?

        Example, k = 2 and P = 1. Groups a, b (slow) and c (quick) start at version 0: deadline 2.
        The step at version 0 takes c. Group d (quick) starts at version 1. The step at version 1
        may not take d, because a and b would both need the step at version 2. The trainer waits
        until a or b has finished."""
        chosen = {group.group_id for group in taken}
        deadlines = sorted(g.start + self.k for g in self.groups.values()
                           if g.group_id not in chosen)
        return all(version + 1 + i // self.P <= deadline for i, deadline in enumerate(deadlines))


class PPOPacer(PipelinePacer):
    """PPO-off-policy-k, the usual practice: generate k * P groups with frozen weights, then train
    k steps on them. The lag goes from 0 in the first step to k - 1 in the last."""

    def __init__(self, k, prompts_per_step):
        super().__init__(k, prompts_per_step)
        self.largest_lag = k - 1
        self.collecting = True                      # groups of this round may still start

    def may_admit(self):
        return self.collecting

    def admit(self, prompt_id, version, size):
        group = super().admit(prompt_id, version, size)
        self.collecting = len(self.groups) < self.k * self.P
        return group

    def no_more_prompts(self):
        """The last round has fewer groups; training on it may begin."""
        self.collecting = False

    def take(self, version):
        if self.collecting or not all(g.finished for g in self.groups.values()):
            return None
        taken = super().take(version)
        self.collecting = not self.groups           # all consumed: the next round begins
        return taken

    def leaves_enough_time(self, taken, version):
        return True                                 # a round is consumed before the next one starts


def make_pacer(config):
    """The pacer of `off_policy`: "pipeline-8", "pipeline-0" (on-policy), or "ppo-8"."""
    scheme, k = config.schedule()
    return (PPOPacer if scheme == "ppo" else PipelinePacer)(k, config.prompts_per_step)


# ------------------------------------------------------------------------------------ 3. Batch
def effective_batch(rollouts, rewards, config):
    """(rollouts, rewards) of the groups that are trained on, and metrics of all P groups.

    rollouts (P*G), group by group; rewards (P, G). Groups of equal rewards leave before any mean:
    their zero advantages would shrink the loss, and the std by which all advantages are divided.
    No new groups replace them (paper, sec. 3.2)."""
    P, G = rewards.shape
    equal = zero_variance(rewards)                                                  # (P,)
    keep = ~(equal & config.zero_variance_filter)
    kept = [r for p in range(P) if keep[p] for r in rollouts[p * G: (p + 1) * G]]
    log = {"reward/mean": rewards.mean().item(), "reward/std": rewards.std().item(),
           "frac_reward_zero_std": equal.float().mean().item(),
           "prompts/consumed": P, "prompts/trained": int(keep.sum())}
    return kept, rewards[keep], log


def padded(rollouts, name, dtype):
    """One list of each rollout, for example `versions`, as a tensor (N, T) padded with zeros."""
    rows = [torch.tensor(getattr(r, name), dtype=dtype) for r in rollouts]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


@dataclass
class Batch:
    """The samples of one optimizer step, a row each."""
    rollouts: list[Rollout]             # N of them
    behavior_logprobs: torch.Tensor     # (N, T) log μ, as the sampler recorded it
    lags: torch.Tensor                  # (N, T) the version now minus the token's
    advantages: torch.Tensor            # (N,)   one for all tokens of a sample
    token_weights: torch.Tensor         # (N, T) share of each token in the loss; 0: not trained on

    def rows(self, indices, device):
        """A micro-batch: the rows with these indices, cut to their longest output."""
        rollouts = [self.rollouts[i] for i in indices]
        T = max(len(r.output_ids) for r in rollouts)
        return Batch(rollouts, *(x.to(device) for x in (
            self.behavior_logprobs[indices, :T], self.lags[indices, :T], self.advantages[indices],
            self.token_weights[indices, :T])))


def make_batch(rollouts, rewards, version, config):
    """The `Batch` of the next optimizer step. Means over the step are computed here, so any split
    into micro-batches and processes gives the same gradient.

    rollouts (P*G), group by group; rewards (P, G), P: groups kept; version: before the step."""
    P, G = rewards.shape
    # True for tokens that the policy sampled, False for the forced phrase and for padding.
    mask = padded(rollouts, "sampled", torch.bool)                                      # (N, T)
    # A truncated sample has no gradient (paper, A.15); its -1 counts in mean and std (ours).
    if config.overlong_filter:
        mask &= torch.tensor([[r.finish_reason == "stop"] for r in rollouts])           # (N, 1)
    return Batch(
        rollouts, padded(rollouts, "behavior_logprobs", torch.float32),
        lags=version - padded(rollouts, "versions", torch.long),
        advantages=advantages(rewards, norm=config.advantage_norm).flatten(),
        token_weights=token_weights(mask, torch.arange(P).repeat_interleave(G),
                                    aggregation=config.aggregation))


# ----------------------------------------------------------------------- 4. Policy and trainer
class Policy(torch.nn.Module):
    """log π of the tokens that were sampled: one forward pass over some rollouts.

    model        a transformers causal LM with fp32 weights
    temperature  the sampler's
    dtype        of the computation: the weights' own, or bfloat16
    head_fp32    logits in fp32 (paper, sec. 3.2), or as a bf16 head would round them

    A Module, because FSDP2 (scaleout/team.py) gathers sharded weights in `forward` alone. Give it
    no method `get_input_embeddings`: accelerate would shard the embedding table separately."""

    def __init__(self, model, *, temperature=1.0, dtype=torch.float32, head_fp32=True):
        super().__init__()
        self.model = model
        self.temperature, self.dtype, self.head_fp32 = temperature, dtype, head_fp32
        self._no_split_modules = model._no_split_modules        # the layers that FSDP2 shards
        if dtype == torch.bfloat16:
            packed.round_between_products(model, dtype)     # where vLLM rounds to bf16

    def forward(self, rollouts):
        """log π, and entropy without a gradient, of n rollouts, (n, T) float32; 0: forced, padding.
        rollouts: in a deque, as FSDP2 looks at every token in a list (.1 s for 14,000)."""
        rollouts = list(rollouts)
        head = self.model.get_output_embeddings().weight                                # (V, H)
        # One row of tokens: each prompt once, then the outputs without their last tokens, which
        # predict nothing. Attention keeps outputs apart (engines/packed.py). Of prompt [p q] and
        # outputs [a b], [c] the row is p q a. The targets a b c have predict 1 2 1 (places of q, a,
        # q in the row), sample 0 0 1 and column 0 1 0 (their places in the result).
        pack = packed.pack_rollouts(self.model, rollouts, self.dtype)
        # Forced tokens need no log-prob. O: all output tokens.
        drawn = torch.tensor([s for r in rollouts for s in r.sampled], device=head.device)  # (O,)
        with torch.autocast(head.device.type, self.dtype, enabled=self.dtype == torch.bfloat16):
            hidden = pack.states(self.model)                            # (tokens of the row, H)
            # The shift by one: the state of a token predicts the next token.
            logprobs, entropy = token_logprobs(
                hidden[pack.predict[drawn]], head, pack.targets[drawn],
                temperature=self.temperature, head_fp32=self.head_fp32,
                softcap=own_forward.cap(self.model), chunk_tokens=logits_chunk(len(head)))
        where = pack.sample[drawn], pack.column[drawn]          # back to the shape of `Batch`
        zeros = logprobs.new_zeros(len(rollouts), max(len(r.output_ids) for r in rollouts))
        return zeros.index_put(where, logprobs), zeros.index_put(where, entropy)


class Trainer(TrainedModel):
    """The model, its optimizer, and a step of training. `TrainedModel` adds weights, save and load.

    team    the processes that train together (scaleout/team.py): they share the micro-batches and
            add gradients. With one process, `my_batches` are all, `full_tensor(x)` is x, `loss(f,
            ...)` is f(...), and `sum_gradients(_, stats)` is stats. An error in `loss` is raised
            there, so that no process waits for another. Stopped: the run is to end."""

    def __init__(self, config, team):
        self.config, self.team = config, team
        torch.manual_seed(config.seed)
        # fp32 weights and moments of Adam (ours): at lr 5e-7 a bf16 weight hardly ever changes.
        self.model, self.tokenizer, self.device, self.dtype = load.load_trained(config, team.size)
        policy = Policy(self.model, temperature=config.temperature, dtype=self.dtype,
                        head_fp32=config.head_fp32)
        optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.lr, betas=(config.beta1, config.beta2),
            eps=config.adam_eps, weight_decay=config.weight_decay, fused=True)
        self.policy, self.optimizer = team.prepare(policy, optimizer)

    def update(self, rollouts, rewards, version):
        """Update the weights. Returns (1, metrics), or (0, metrics) without a token to train on.

        rollouts, rewards, version as in `make_batch`. Raises FloatingPointError when a log-prob,
        the loss or the gradient is not finite."""
        config = self.config
        batch = make_batch(rollouts, rewards, version, config) if rollouts else None
        if batch is None or not batch.token_weights.any():
            return 0, {"tokens/trained": 0}

        # 1. The gradient of the step is the sum over its micro-batches.
        stats = []
        for indices in self.team.my_batches(
                packed.micro_batches(rollouts, config.micro_batch_tokens), rollouts):
            part = batch.rows(indices, self.device)
            logprobs, entropy = self.policy(deque(part.rollouts))   # (N, T) of this micro-batch
            if config.behavior == "recomputed":
                # Ablation: log μ is the log π of this pass, so each ratio is 1.
                part.behavior_logprobs = logprobs.detach()
            loss, stat = self.team.loss(
                policy_loss, logprobs, part.behavior_logprobs, part.advantages, part.token_weights,
                loss=config.loss, eps_max=config.eps_max, eps_low=config.eps_low,
                eps_high=config.eps_high, lags=part.lags, entropy=entropy)
            loss.backward()
            stats.append(stat)
        log = merge_stats(self.team.sum_gradients(self.policy, stats))

        # 2. Clip the global norm (ours).
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), config.grad_clip)
        norm = self.team.full_tensor(norm).item()
        if not (math.isfinite(norm) and math.isfinite(log["loss"])):
            raise FloatingPointError(f"version {version}: loss {log['loss']}, gradient norm {norm}")

        # 3. AdamW. Linear warm-up over optimizer steps, then constant (paper: 100 steps, 5e-7).
        lr = config.lr * min(1.0, (version + 1) / max(1, config.warmup_steps))
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return 1, log | {"tokens/trained": int((batch.token_weights > 0).sum()), "grad_norm": norm,
                         "lr": lr}


# -------------------------------------------------------------------------------------- 5. Run
class Run:
    """One training run: its parts, and the loop over its steps.

    trainer                a `Trainer`, or an object that calls the Trainers of all processes
    problems               `train`, `heldout` {id: Problem}, `prompts` {id: token ids}
    verifier               is an answer right? (tasks/verifier.py)
    sampler, eval_sampler  generation (sampler.py), for training and for evaluations
    folder                 runs/NAME (artifacts/run_folder.py)"""

    def __init__(self, config, trainer, problems, verifier, sampler, eval_sampler, folder):
        self.config, self.trainer, self.team, self.folder = config, trainer, trainer.team, folder
        self.problems, self.verifier = problems, verifier
        self.sampler, self.eval_sampler = sampler, eval_sampler
        self.curriculum = Curriculum(problems.train, config.retire_at, config.seed)
        self.pacer = make_pacer(config)
        devices = self.team.size + sampler.devices      # of training and of generation
        self.compute = Compute(trainer.model, devices, trainer.device)
        self.step = 0                   # steps of this loop so far
        self.version = 0                # optimizer steps taken
        self.evaluated = None           # the step of the last evaluation
        self.best = -1.0                # pass rate of the best evaluation
        self.generated = 0              # sampled tokens of samples finished in this step

    def train(self):
        """Train until `steps`, or until every prompt has retired. Returns the closing sentence."""
        if self.evaluated is None:              # a new run
            self.push_weights()
            agreement = self_test(self)         # do sampler and trainer compute alike?
            self.folder.append("metrics.jsonl", {"step": 0, "version": 0} | self.problems.log
                               | agreement)
        if self.evaluated != self.step and self.step % self.config.eval_every == 0:
            self.evaluate()             # of step 0, or one that was broken off
        with Progress(self.config.steps, self.step) as progress:
            while self.step < self.config.steps:
                line = self.train_step()
                if line is None:
                    break
                progress.show(line)
                if self.step % self.config.eval_every == 0:
                    self.folder.save(self)
                    self.evaluate()
        if self.evaluated != self.step:         # no evaluation fell on the last step
            self.folder.save(self)
            self.evaluate()
        self.folder.save(self)
        self.folder.save_model(self.trainer, "model")
        if self.step >= self.config.steps:
            return f"Done: {self.step} steps."
        return (f"Done after {self.step} steps: every prompt has retired (pass rate >= "
                f"{self.config.retire_at}); {len(self.pacer.groups)} groups, fewer than a step's "
                "worth, are left untrained.")

    def train_step(self):
        """One step, from prompts to new weights. Returns its line in the log; None: no prompts."""
        watch, config = Stopwatch(), self.config
        # 1. Generate, for later steps too. vLLM servers go on in 2 and 3, and pause in 4. A sampler
        #    in this process generates in 1 alone: its weights change in 4, between two tokens.
        groups = self.generate()
        watch.lap("generate")
        if groups is None:
            return None

        # 2. Reward: +1 for a right answer, -1 for any other.
        rollouts, rewards, log = self.reward(groups)
        watch.lap("verify")

        # The pacer's rule is about groups. Check it for every token.
        versions = [version for rollout in rollouts for version in rollout.versions]
        lag, mean_lag = self.version - min(versions), self.version - fmean(versions)
        assert lag <= self.pacer.largest_lag, f"lag {lag}, at most {self.pacer.largest_lag}"

        # 3. Train on what is left after the filter. If this raises, the samples go to a file.
        kept, kept_rewards, metrics = effective_batch(rollouts, rewards, config)
        self.team.begin("train", self.version)
        with self.folder.bad_step(self, groups, rewards, kept):
            stepped, train_log = self.trainer.update(kept, kept_rewards, self.version)
        watch.lap("train")

        # 4. Push the weights, in flight (PipelineRL): running sequences keep the keys and values of
        #    older weights. Push unchanged weights, too: a restarted server has none yet.
        self.version += stepped
        self.push_weights()
        watch.lap("sync")

        # 5. Write it down. x of the curve: the FLOPs of a forward pass over `rollouts` (generation)
        #    and of three such passes over `kept` (a backward pass costs two).
        self.step += 1
        self.compute.add_step(rollouts, kept if stepped else [], config.samples_per_prompt,
                              self.generated, watch.total)
        log |= metrics | train_log | {
            "optimizer_step": stepped, "lag/max": lag, "lag/mean": mean_lag}
        line = log_step(self, groups, rewards, log, watch)
        self.generated = 0
        return line

    def generate(self):
        """Generate until the pacer has the next step's groups. None: the prompts have run out."""
        # On servers, samples have finished while the trainer trained.
        self.team.begin("generate", self.version)
        self.collect(self.sampler.finished())
        while True:
            self.folder.save(self, self.config.save_minutes)    # a step may take longer
            self.admit()
            groups = self.pacer.take(self.version)
            if groups or not self.sampler.in_flight:    # nothing runs: no prompt was left
                return groups
            self.collect(self.decode(self.sampler))

    def admit(self):
        """Start groups as far as pacer and free slots allow."""
        G = self.config.samples_per_prompt
        while self.pacer.may_admit() and self.sampler.free_slots >= G:
            prompt_id = self.curriculum.next()
            if prompt_id is None:
                self.pacer.no_more_prompts()
                return
            group = self.pacer.admit(prompt_id, self.version, G)
            self.sampler.submit(Request(group.group_id, prompt_id, self.problems.prompts[prompt_id],
                                        G, self.problems.train[prompt_id].task))

    def decode(self, sampler):
        """One decode step: a token more for every running sequence. Returns finished samples."""
        self.team.begin("generate", self.version)           # here a run can be stopped
        return sampler.step()

    def collect(self, rollouts):
        """Hand finished samples to their groups."""
        for rollout in rollouts:
            self.pacer.groups[rollout.group_id].rollouts.append(rollout)
            self.generated += sum(rollout.sampled)

    def reward(self, groups):
        """(rollouts (P*G), rewards (P, G), metrics). The verifier marks a truncated sample as
        wrong, whatever its text says (ours)."""
        config, G = self.config, self.config.samples_per_prompt
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        verdicts, log = self.verifier.rewards(rollouts, self.problems.train, self.trainer.tokenizer)
        right = torch.tensor(verdicts).view(-1, G) > 0                                  # (P, G)
        for group, row in zip(groups, right):
            self.curriculum.record(group.prompt_id, int(row.sum()), G)
        rewards = torch.where(right, 1.0, -1.0)     # paper, A.3; your own reward: right if > 0
        if config.length_penalty:       # the paper's ablation, for correct samples alone
            lengths = torch.tensor([sum(r.sampled) for r in rollouts]).float().view(-1, G)
            rewards += right * length_penalty(lengths, l_cache=config.length_penalty,
                                              l_max=config.think_max + config.answer_tokens)
        return rollouts, rewards, {"pass_rate": right.float().mean().item()} | log

    def push_weights(self, sampler=None):
        """Copy the trainer's weights to a sampler (default: training's)."""
        self.team.begin("push", self.version)
        (sampler or self.sampler).push_weights(self.trainer.weights(self.trainer.dtype),
                                               self.version)

    # -- evaluation ---------------------------------------------------------------------------

    def evaluate(self):
        """Answer the held-out prompts with another sampler; training's samples wait or go on."""
        start, config, heldout = time.perf_counter(), self.config, self.problems.heldout
        self.push_weights(self.eval_sampler)
        self.eval_sampler.reseed(config.seed + 1000 + self.step)    # other draws than training's
        rollouts = self.answers(self.eval_sampler, heldout, config.eval_samples)
        verdicts, metrics = self.verifier.rewards(rollouts, heldout, self.trainer.tokenizer)
        correct = Counter(r.prompt_id for r, verdict in zip(rollouts, verdicts) if verdict > 0)
        result = mean_at_k(correct, heldout, config.eval_samples)
        # eval_tasks count for neither the curve nor the best model.
        mean = fmean(result[task] for task in self.problems.curve_tasks)
        self.evaluated = self.step
        log_evaluation(self, rollouts, correct, result, mean, metrics, time.perf_counter() - start)
        if mean > self.best:
            self.best = mean
            self.folder.save_model(self.trainer, "checkpoints/best")

    def answers(self, sampler, problem_ids, samples):
        """The rollouts of `samples` answers to each problem."""
        for i, problem_id in enumerate(problem_ids):
            sampler.submit(Request(i, problem_id, self.problems.prompts[problem_id], samples))
        rollouts = []
        with Progress(len(problem_ids) * samples, unit="sample") as progress:
            while sampler.in_flight:
                rollouts += self.decode(sampler)
                progress.update(len(rollouts) - progress.n)
        return rollouts

    def close(self):
        """End the processes and close the files, whatever fails to close."""
        with ExitStack() as stack:
            for part in (self.folder, self.sampler, self.verifier):     # closed in reverse order
                stack.callback(part.close)


def mean_at_k(correct, problems, k):
    """{task: mean@k}: the pass rate over k samples of each held-out problem (paper, sec. 2.1 and
    A.5: 1,000 prompts, k = 16). The y of the curve is its mean over the training tasks (ours).

    correct: Counter {problem id: right samples of k}; problems {id: Problem}"""
    solved = {}                                     # task -> right samples of each problem
    for problem in problems.values():
        solved.setdefault(problem.task, []).append(correct[problem.id])
    return {task: sum(counts) / k / len(counts) for task, counts in solved.items()}


if __name__ == "__main__":
    from command.main import main       # the command line, and how a run ends
    raise SystemExit(main())
