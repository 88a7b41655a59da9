"""scalerl.py: train a language model with the ScaleRL recipe (arXiv 2510.13786).

    python scalerl.py --config configs/demo.toml               a toy model, on a laptop, in minutes
    python scalerl.py --config configs/demo.toml --config configs/loo/dapo_loss.toml --name dapo
                                                               the same, one decision changed
    python scalerl.py --model Qwen/Qwen3-8B --task polaris-53k --gpus 8
    python fit.py runs/demo                                    fit its curve, predict more compute

Reinforcement learning for language models, one step: the model answers P prompts, G times each; a
verifier marks each answer right or wrong; training makes the right ones more likely. ScaleRL is a
choice at each point of that loop. The parts of this file, in the order of a step:

  1. Curriculum   which prompt is asked next; learned prompts are not asked again (paper, sec. 3.2)
  2. Pacer        a token is at most k steps old when it is trained on            (sec. 3.1)
  3. Batch        groups of equal rewards are left out                            (sec. 3.2)
  4. Trainer      log-probs, advantages, CISPO, AdamW: one optimizer step         (sec. 2 to 4)
  5. Run          the loop: generate, reward, train, evaluate (the points of the curve)
  6. main         the command line, and how a run ends

"Ours" marks what the paper does not say: the pacer's rule (part 2), what counts as compute
(engines/compute.py), and some numbers (config.py). "Part" is a part of a file of ours, "sec." a
section of the paper.

Read next: loss.py, the mathematics of part 4; sampler.py, generation; fit.py, the curve.

Axes: P prompts in a step, G samples of a prompt, N = P*G samples, T tokens of the longest output
(shorter ones are padded on the right). The version of the weights is the number of optimizer steps
taken. A `Rollout` is one sample, with the log-prob and the version of every token.
"""

import math
import random
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from statistics import fmean

import torch

from artifacts import checkpoint
from artifacts import settings
from artifacts.resume import restored
from artifacts.run_folder import Progress, RunFolder
from artifacts.step_log import Stopwatch, describe, eval_metrics, log_step
from command.options import parse
from config import ConfigError
from engines import load
from command.check import check, self_test
from engines.compute import Compute
from engines.policy import micro_batches, table
from servers.pool import ServerError
from engines.trained_model import TrainedModel
from loss import (advantages, length_penalty, merge_stats, policy_loss, token_weights,
                  zero_variance)
from sampler import Request, Rollout
from scaleout.launch import instead_of_training
from scaleout.team import Stopped, make_team, stop_on_signals
from tasks import TaskError, Verifier, load_problems

# ------------------------------------------------------------------------------- 1. Curriculum
class Curriculum:
    """Epochs over the prompts in random order, with No-Positive-Resampling (paper, sec. 3.2).

    When an epoch begins, the prompts leave for good whose pass rate, over all samples that steps
    have consumed so far, is `retire_at` (0.9) or higher: most of their groups would have equal
    rewards, and part 3 would leave them out.
    """

    def __init__(self, prompts, retire_at, seed):
        self.retire_at, self.seed = retire_at, seed
        self.active = list(prompts)                 # their ids
        self.order, self.cursor, self.epoch = [], 0, 0
        self.history = {}                           # prompt id -> [correct samples, all samples]

    def next(self):
        """The next prompt's id, or None when all have retired. Each epoch is shuffled by (seed,
        epoch), so a resumed run visits the same prompts."""
        if self.cursor == len(self.order):          # an epoch is over
            self.active = [prompt for prompt in self.active if not self.learned(prompt)]
            if not self.active:
                return None
            self.epoch += 1
            order = random.Random(f"{self.seed}/{self.epoch}")
            self.order, self.cursor = order.sample(self.active, len(self.active)), 0
        self.cursor += 1
        return self.order[self.cursor - 1]

    def learned(self, prompt):
        """Has the pass rate over all samples so far reached `retire_at`? Never asked: no."""
        correct, samples = self.history.get(prompt, (0, 0))
        return samples > 0 and correct / samples >= self.retire_at

    def record(self, prompt, correct, samples):
        """Add the result of a group: `correct` of its `samples` earned +1."""
        old = self.history.get(prompt, (0, 0))
        self.history[prompt] = [old[0] + correct, old[1] + samples]

    def state(self):
        """For a checkpoint: all of it, as JSON."""
        return dict(vars(self))

    def load_state(self, state):
        vars(self).update(state)


# ------------------------------------------------------------------------------------ 2. Pacer
# Generation does not wait for training (paper, sec. 3.1), so most tokens come from older weights.
# The lag of a token: optimizer steps between the weights that produced it and the weights that the
# step updates. The paper's best runs allow up to k = 8. k is only the upper bound: the mean depends
# on how many sequences are decoded at once (`slots`). Simulated with P 48, G 16, k 8 and lognormal
# lengths, the mean lag is 1.2 with 256 slots, and 6.2 with 6,912 = (k + 1) * P * G, the most that
# the pacer admits.
@dataclass
class Group:
    """The G samples of one prompt, from admission until the trainer has consumed them."""
    group_id: int
    prompt_id: str
    start: int                                      # the weights' version at admission
    size: int                                       # G
    rollouts: list[Rollout] = field(default_factory=list)       # the finished samples

    @property
    def finished(self):
        return len(self.rollouts) == self.size


class PipelinePacer:
    """PipelineRL-k: generation goes on all the time, and no token is more than k versions old.

    admission   A group may start while fewer than (k + 1) * P groups are outstanding, that is,
                admitted and not yet consumed by a step. Why k + 1: a group that starts at version s
                may be trained on in steps s to s + k, and these consume (k + 1) * P groups.
    a step      takes the P finished groups with the oldest start, oldest first.
    deadline    A group that started at version s has to be in a step at version s + k, or earlier.

    To wait only for the groups at their deadline is not enough: if young, quick groups keep
    overtaking, more than P slow ones can reach the deadline together, and one step cannot hold
    them. So a step is taken only if the groups that it leaves behind can all still be consumed in
    time, P a step. Else the trainer waits for older groups to finish. (Ours: the paper only says
    that the trainer waits when it is k steps ahead.) Nothing is dropped for being old.
    """

    def __init__(self, k, prompts_per_step):
        self.k, self.P = k, prompts_per_step
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
        """Every prompt has retired. Only PPOPacer needs to know."""

    def take(self, version):
        """The P groups of the step on weights `version`. None: not yet, keep generating."""
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

        After this step, the steps up to version v consume (v - version) * P groups. So at most
        that many of the groups left behind may have a deadline of v or earlier (the test of
        earliest-deadline-first scheduling). For v >= version + k this always holds: admission
        leaves at most k * P groups behind.
        """
        chosen = {group.group_id for group in taken}
        deadlines = [g.start + self.k for g in self.groups.values() if g.group_id not in chosen]
        return all(sum(deadline <= v for deadline in deadlines) <= (v - version) * self.P
                   for v in range(version, version + self.k))

    def state(self):
        return vars(self) | {"groups": [asdict(group) for group in self.groups.values()]}

    def load_state(self, state):
        groups = [Group(**fields) for fields in state["groups"]]
        for group in groups:
            group.rollouts = [restored(Rollout, fields) for fields in group.rollouts]
        vars(self).update(state | {"groups": {group.group_id: group for group in groups}})


class PPOPacer(PipelinePacer):
    """PPO-off-policy-k, the usual practice: generate k * P groups with frozen weights, then train
    k steps on them. The lag goes from 0 in the first of these steps to k - 1 in the last."""

    def __init__(self, k, prompts_per_step):
        super().__init__(k, prompts_per_step)
        self.collecting = True                      # this round's groups are not complete yet

    def may_admit(self):
        return self.collecting

    def admit(self, prompt_id, version, size):
        group = super().admit(prompt_id, version, size)
        self.collecting = len(self.groups) < self.k * self.P
        return group

    def no_more_prompts(self):
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

    rollouts (P*G), group by group; rewards (P, G). Groups of equal rewards have zero advantages:
    they leave before the loss computes any mean or std, or they would dilute both. No new groups
    take their place (paper, sec. 3.2: no refill).
    """
    P, G = rewards.shape
    equal = zero_variance(rewards)                                                  # (P,)
    keep = ~equal if config.zero_variance_filter else torch.ones_like(equal)
    kept = [r for p in range(P) if keep[p] for r in rollouts[p * G: (p + 1) * G]]
    log = {"reward/mean": rewards.mean().item(), "reward/std": rewards.std().item(),
           # A correct sample has 1, less a length penalty of at most 1; a wrong one has -1.
           "pass_rate": (rewards >= 0).float().mean().item(),
           "frac_reward_zero_std": equal.float().mean().item(),
           "prompts/consumed": P, "prompts/trained": int(keep.sum())}
    return kept, rewards[keep], log


# ---------------------------------------------------------------------------------- 4. Trainer
class Trainer(TrainedModel):
    """One step of training. The base class (engines/trained_model.py) has model, tokenizer, device,
    `policy` (the forward pass) and `optimizer` (AdamW), and, for samplers and checkpoints: weights,
    log-probs, save, load.

    config  the settings (config.py)
    team    the processes that train together (scaleout/team.py). With one process,
            team.mine(batches, ...) is all batches, each with share 1; team.backward(loss) is
            loss.backward(); team.all(x) is [x]; team.whole(x) is x; finish_gradients does nothing.
    """

    def step(self, rollouts, rewards, version):
        """One optimizer step on an effective batch. Returns metrics of it.

        rollouts (P*G), group by group; rewards (P, G), P here: the groups that the filter has kept;
        version: of the weights before the step. Raises FloatingPointError when a log-prob, the loss
        or the gradient is not finite.
        """
        config, (P, G) = self.config, rewards.shape
        nothing = {"optimizer_step": 0, "tokens/trained": 0}      # the weights stay as they are
        if not rollouts:                # the filter has left no group
            return nothing
        # In the loss: tokens that the policy sampled, not those of the forced phrase. `table` makes
        # (N, T) of a list in each rollout, padded with zeros.
        mask = table(rollouts, "sampled", torch.bool)                                   # (N, T)
        if config.overlong_filter:      # ablation: a truncated sample gives no gradient, but it
                                        # still counts in the mean and the std of the rewards
            mask &= torch.tensor([[r.finish_reason == "stop"] for r in rollouts])       # (N, 1)
        if not mask.any():
            return nothing
        # Everything that is averaged over the step is computed here, once, over the whole step.
        # So it does not matter how its samples are divided among micro-batches and processes.
        advantage = advantages(rewards, norm=config.advantage_norm).flatten()           # (N,)
        weights = token_weights(mask, torch.arange(P * G) // G,
                                aggregation=config.aggregation)                         # (N, T)
        # The ratio's denominator: the log-probs that the sampler recorded (paper, sec. 2).
        behavior = table(rollouts, "behavior_logprobs", torch.float32)                  # (N, T)
        lags = version - table(rollouts, "versions", torch.long)                        # (N, T)

        # A micro-batch is what fits into memory together. The gradients add up to the step's.
        stats, error = [], ""
        batches = micro_batches(rollouts, config.micro_batch_tokens, self.team.size)
        for batch, share in self.team.mine(batches, rollouts):
            # batch: indices of rollouts. The forward pass (engines/policy.py) takes all tokens of
            # these as one row and ends in `loss.token_logprobs`, the fp32 head. share is 1.0, or
            # 0.0 for a repeated micro-batch: all processes must run equally many backward passes.
            logprobs, entropy = self.policy([rollouts[i] for i in batch])               # (n, t)
            # Column j is the same token in `table` and in logprobs, which is only cut to t tokens.
            log_mu, w, lag = (x[batch, : logprobs.shape[1]].to(logprobs.device)
                              for x in (behavior, weights, lags))                       # (n, t)
            if config.behavior == "recomputed":
                # Ablation: the log-probs of this same forward pass, so that the ratio is always 1.
                log_mu = logprobs.detach()
            try:
                loss, stat = policy_loss(
                    logprobs, log_mu, advantage[batch].to(logprobs.device), share * w,
                    loss=config.loss, eps_max=config.eps_max, eps_low=config.eps_low,
                    eps_high=config.eps_high, lags=lag, entropy=entropy)
            except ValueError as problem:
                # Raised after the loop, else other processes would wait in `backward` for ever.
                loss, stat, error = 0 * logprobs.sum(), {}, str(problem)
            self.team.backward(loss)            # adds to the gradient of the step
            stats.append(stat)
        self.team.finish_gradients(self.policy)         # the sum over all processes

        # Numbers for the log: sums, minima and maxima of each micro-batch, merged exactly.
        parts = self.team.all({"stats": stats, "error": error})
        if errors := [part["error"] for part in parts if part["error"]]:
            raise FloatingPointError(f"version {version}: {errors[0]}")
        log = merge_stats([stat for part in parts for stat in part["stats"]])
        # The clip of the global norm is ours.
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), config.grad_clip)
        norm = self.team.whole(norm).item()
        if not (math.isfinite(norm) and math.isfinite(log["loss"])):
            raise FloatingPointError(f"version {version}: loss {log['loss']}, gradient norm {norm}")

        # Linear warm-up over optimizer steps, then constant (paper: 100 steps, 5e-7).
        lr = config.lr * min(1.0, (version + 1) / max(1, config.warmup_steps))
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = lr
        self.optimizer.step()                           # AdamW
        self.optimizer.zero_grad(set_to_none=True)
        return log | {"optimizer_step": 1, "tokens/trained": int(mask.sum()), "grad_norm": norm,
                      "lr": lr}


# -------------------------------------------------------------------------------------- 5. Run
class Run:
    """One training run: its problems, trainer, samplers and folder, and the loop over its steps.
    The data flow: problem, request, rollout, reward, batch, gradient, weights, back to the sampler.

    trainer   a `Trainer`; with several processes a proxy that calls every process's Trainer
    folder    runs/NAME (artifacts/run_folder.py)
    """

    def __init__(self, config, trainer, folder):
        self.config, self.trainer, self.team, self.folder = config, trainer, trainer.team, folder
        tags = (config.think_open.strip() or "<think>", config.think_close)
        # Is an answer right?
        self.verifier = Verifier(unsafe_code=config.unsafe_code, think_tags=tags)
        # What is asked: `train`, `heldout` {id: Problem}, `prompts` {id: token ids}.
        self.problems = load_problems(config, trainer.tokenizer, self.verifier)
        # Generation. `during` puts a deadline on what could hang (scaleout/team.py).
        with self.team.during("start"):
            self.sampler, self.eval_sampler = load.make_samplers(
                config, trainer, self.problems.prompt_tokens)
        self.curriculum = Curriculum(self.problems.train, config.retire_at, config.seed)
        self.pacer = make_pacer(config)
        # The compute so far, x of the curve.
        self.compute = Compute(trainer.model, self.team.size + self.sampler.devices, trainer.device)
        self.step = 0                   # count of train steps; `train_on` adds one
        self.version = 0                # optimizer steps taken: a step without one is possible
        self.evaluated = None           # the step of the last evaluation
        self.best = -1.0                # pass rate of the best evaluation
        self.generated = 0              # tokens of the samples that finished since the last step
        self.stop = 0                   # the signal that has asked for an end; 0: none has

    # -- the loop -----------------------------------------------------------------------------

    def train(self):
        """Train until `steps`, or until every prompt has retired. Returns the closing sentence.

        Raises ServerError, after a checkpoint, when no server is left to generate.
        """
        self.folder.track()
        try:
            ending = self.loop()
        except (Stopped, ServerError) as why:       # between two decode steps, not in a train step
            if self.evaluated is not None:
                self.folder.save(self)
            if isinstance(why, Stopped):
                return f"Stopped at step {self.step}; {self.folder.resume_hint()}."
            raise
        self.save_model(self.folder.path / "model")
        return ending

    def loop(self):
        """All steps and evaluations that are left. Returns why there are no more."""
        config = self.config
        if self.evaluated is None:      # a new run: no evaluation so far
            self.push_weights()
            self.folder.append("metrics.jsonl", {"step": 0, "version": 0} | self.problems.log
                               | self_test(self))
        self.evaluate_if_due()
        with Progress(config.steps, self.step) as progress:
            while self.step < config.steps:
                watch = Stopwatch()
                # Samples of later steps are in flight already when this step's are complete.
                groups = self.generate()
                watch.lap("generate")
                if groups is None:
                    break
                progress.show(self.train_on(groups, watch))
                self.evaluate_if_due()
                if self.step % config.eval_every == 0:
                    self.folder.save(self)
        if self.evaluated != self.step:
            self.evaluate()
        self.folder.save(self)
        if self.step >= config.steps:
            return f"Done: {self.step} steps."
        return (f"Done after {self.step} steps: every prompt has retired (pass rate >= "
                f"{config.retire_at}); {len(self.pacer.groups)} groups, fewer than a step's worth, "
                "are left untrained.")

    def train_on(self, groups, watch):
        """One step on the P groups that the pacer has handed out. Returns its line in the log."""
        # 1. Reward: +1 for a right answer, -1 for any other.
        rollouts, rewards, log = self.reward(groups)
        watch.lap("verify")
        # The promise of the pacer is checked for every token, and not only for every sample.
        versions = [version for rollout in rollouts for version in rollout.versions]
        lag = self.version - min(versions)
        assert lag <= self.pacer.k, f"lag {lag}, but k = {self.pacer.k}"
        # 2. Train on what is left after the filter.
        batch, batch_rewards, metrics = effective_batch(rollouts, rewards, self.config)
        trained = self.train_step(batch, batch_rewards)
        log |= metrics | trained | {"lag/max": lag,
                                    "lag/mean": self.version - sum(versions) / len(versions)}
        watch.lap("train")
        # 3. Push the new weights, in flight: running sequences keep their keys and values, which
        #    older weights have computed, and go on with the new weights (PipelineRL).
        self.version += log["optimizer_step"]
        self.push_weights()
        watch.lap("sync")
        # 4. Write the step down.
        self.step += 1
        self.compute.add_step(rollouts, batch if log["optimizer_step"] else [],
                              self.config.samples_per_prompt, self.generated, watch.total)
        line = log_step(self, groups, rewards, log, watch)
        self.generated = 0
        return line

    def generate(self):
        """Generate until the pacer has the next step's groups. None: the prompts have run out."""
        if self.stop:
            raise Stopped
        # On servers, samples have finished while the trainer trained: their slots are free now.
        self.collect(self.sampler.finished())
        while True:
            self.admit()
            groups = self.pacer.take(self.version)
            if groups or not self.sampler.in_flight:        # none in flight: prompts ran out
                return groups
            self.collect(self.decode(self.sampler))

    def admit(self):
        """Start groups when the pacer and free slots allow it, not earlier: an epoch that begins
        later knows newer pass rates."""
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
        """One decode step: a token more for every running sequence in this process; on servers, a
        short wait. Returns the samples that have finished."""
        if self.stop:
            raise Stopped
        with self.team.during("generate", self.version):
            return sampler.step()

    def collect(self, rollouts):
        """Hand finished samples to their groups. Forced tokens are not counted as generated."""
        for rollout in rollouts:
            self.pacer.groups[rollout.group_id].rollouts.append(rollout)
            self.generated += sum(rollout.sampled)

    def reward(self, groups):
        """(rollouts (P*G), rewards (P, G), the verifier's metrics); also tells the curriculum."""
        config, G = self.config, self.config.samples_per_prompt
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        rewards, log = self.verifier.rewards(rollouts, self.problems.train, self.trainer.tokenizer)
        rewards = torch.tensor(rewards).view(-1, G)                                     # (P, G)
        for group, row in zip(groups, rewards):
            self.curriculum.record(group.prompt_id, int((row > 0).sum()), G)
        if config.length_penalty:       # the paper's ablation: correct samples alone pay for length
            lengths = torch.tensor([len(r.output_ids) for r in rollouts]).float().view(-1, G)
            rewards += (rewards > 0) * length_penalty(
                lengths, l_max=config.think_max + config.answer_tokens,
                l_cache=config.length_penalty)
        return rollouts, rewards, log

    def train_step(self, rollouts, rewards):
        """`Trainer.step`. If a number is not finite, the samples go to a file and the run ends."""
        try:
            with self.team.during("train", self.version):
                return self.trainer.step(rollouts, rewards, self.version)
        except (FloatingPointError, ValueError) as error:
            raise RuntimeError(f"step {self.step + 1} stopped: {error}; its samples are in "
                               f"{self.folder.write_bad_step(rollouts)}") from None

    def push_weights(self, sampler=None):
        """Copy the trainer's weights to a sampler (default: training's), between decode steps."""
        with self.team.during("push", self.version):
            (sampler or self.sampler).push_weights(self.trainer.weights(self.trainer.dtype),
                                                   self.version)

    # -- evaluation ---------------------------------------------------------------------------

    def evaluate_if_due(self):
        """Evaluate before the first step and after every `eval_every` steps, once each."""
        if self.evaluated != self.step and self.step % self.config.eval_every == 0:
            self.evaluate()

    def evaluate(self):
        """Answer the held-out prompts with a separate sampler. With transformers on a CPU, weights,
        seed and step determine the result. vLLM goes on with the running sequences meanwhile."""
        start, config, heldout = time.perf_counter(), self.config, self.problems.heldout
        self.push_weights(self.eval_sampler)
        self.eval_sampler.reseed(config.seed + 1000 + self.step)    # 1000: not training's numbers
        rollouts = self.answers(self.eval_sampler, heldout, config.eval_samples)
        rewards, metrics = self.verifier.rewards(rollouts, heldout, self.trainer.tokenizer)
        result = eval_metrics(rollouts, rewards, heldout, config.eval_samples)
        self.evaluated = self.step
        # Answers that could not be verified count as wrong, so their share is logged as well.
        self.folder.append("evals.jsonl", {"step": self.step, "version": self.version}
                           | self.compute.log() | result
                           | {f"eval/{name}": share for name, share in metrics.items()
                              if name.startswith("verifier/")}
                           | {"time/eval_s": time.perf_counter() - start})
        # The best model by the tasks of the curve alone: further evaluation sets are for testing.
        mean = fmean(result[f"eval/{task}/mean@{config.eval_samples}"]
                     for task in self.problems.curve_tasks)
        if mean > self.best:
            self.best = mean
            self.save_model(self.folder.checkpoints / "best")

    def answers(self, sampler, prompts, samples):
        """All finished rollouts of `samples` answers to each prompt, from an idle sampler."""
        for i, prompt_id in enumerate(prompts):
            sampler.submit(Request(i, prompt_id, self.problems.prompts[prompt_id], samples))
        rollouts = []
        with Progress(len(prompts) * samples, unit="sample") as progress:
            while sampler.in_flight:
                rollouts += self.decode(sampler)
                progress.update(len(rollouts) - progress.n)
        return rollouts

    def save_model(self, folder):
        """Write an ordinary Hugging Face folder, which `vllm serve` can load."""
        checkpoint.save_model(self.trainer.model, self.trainer.tokenizer, self.trainer.weights(),
                              folder)

    def close(self):
        """However the run ended: no process stays behind, and no log line is lost."""
        for part in (self.verifier, self.sampler, self.folder):
            part.close()


# ------------------------------------------------------------------------------------- 6. main
def main(argv=None):
    """Returns the exit code: 0 done, 1 failure, 2 wrong input, 128 + n: signal n has ended the run.
    (Of several processes rank 0 then returns 0, and its launcher 128 + n.)"""
    argv = sys.argv[1:] if argv is None else argv
    run = None
    try:
        config, flags = parse(argv, "\n\n".join(__doc__.split("\n\n")[:2]))
        # --report and the like; or several processes, which are started and run this file again.
        if (status := instead_of_training(config, flags, argv)) is not None:
            return status
        settings.check(config)                               # the settings, each alone and together
        load.settle_engine(config)                      # vLLM, or transformers alone
        folder = RunFolder(config, flags.resume)
        team = make_team(config)                        # the processes that train; mostly one
        # Of several processes only rank 0 returns from `lead`; the others stay and serve its calls.
        run = Run(config, team.lead(Trainer(config, team)), folder)
        if flags.check is not None:
            return check(run, flags.check)
        if flags.resume:
            print(folder.restore(run))
        else:
            folder.make(run.trainer.device)
        stop_on_signals(run)
        print(describe(run))
        print(run.train())
        team.close()
        # Stopped is not done: whoever wrote `&& python fit.py` should know.
        return 128 + run.stop if run.stop and team.size == 1 else 0
    except (ConfigError, TaskError) as error:
        print(f"scalerl.py: {error}", file=sys.stderr)
        return 2
    except (RuntimeError, OSError) as error:        # servers, processes, memory, the disk
        where = f"step {run.step + 1}: {error}; {run.folder.resume_hint()}" if run else error
        print(f"scalerl.py: {where}", file=sys.stderr)
        if run:
            run.team.cause(str(error))              # other processes end with the same sentence
        return 1
    except KeyboardInterrupt:
        where = f"step {run.step + 1}: stopped at once; {run.folder.resume_hint()}" if run else \
            "interrupted before the run had begun: nothing to save"
        print(f"scalerl.py: {where}", file=sys.stderr)
        return 128 + (run.stop if run and run.stop else signal.SIGINT)
    finally:
        if run:
            run.close()


if __name__ == "__main__":
    sys.exit(main())
