"""The recipe of a widely copied article about the paper, as four changes of ScaleRL.

    python -m study.article --config configs/stress.toml --model models/toy-13 --seed 20

The article gives ScaleRL an entropy bonus (.01), a KL penalty (.05), a cosine learning rate, a
curriculum from easy to hard, and a value network. None of that is in the paper. A value network
has no place here: advantages come from the group, as in GRPO. All else stays ScaleRL's, so that
the difference is that of these four. Options are those of scalerl.py.
"""
import copy
import math
import sys
from dataclasses import replace
from functools import partial

import torch

import scalerl
from command.main import main
from study import in_one_process
from loss import k3

KL, ENTROPY = 0.05, 0.01


class ArticleTrainer(scalerl.Trainer):
    """Entropy bonus and KL penalty in the loss, and a learning rate that falls as a cosine."""

    def __init__(self, config, team):
        super().__init__(config, team)
        # The reference: the model as it was before training.
        self.reference = scalerl.Policy(copy.deepcopy(self.policy.model), dtype=self.policy.dtype,
                                temperature=self.policy.temperature).requires_grad_(False)
        self.policy.register_forward_hook(self.ask_reference)

    def ask_reference(self, _, inputs, __):
        """After each forward pass of the policy: the reference's log-probs of the same rollouts."""
        scalerl.policy_loss = partial(article_loss, self.reference(inputs[0])[0])

    def update(self, rollouts, rewards, version):
        constant = self.config
        share = 0.5 * (1 + math.cos(math.pi * min(1.0, version / constant.steps)))
        self.config = replace(constant, lr=constant.lr * share)
        try:
            return super().update(rollouts, rewards, version)
        finally:
            self.config = constant


class EasyFirst(scalerl.Curriculum):
    """Each epoch from easy to hard: by the problem's level, at random within one."""

    def __init__(self, problems, retire_at, seed):
        super().__init__(problems, retire_at, seed)
        self.levels = {prompt: problem.level for prompt, problem in problems.items()}

    def next(self):
        prompt = super().next()
        if prompt is not None and self.cursor == 1:                 # an epoch has begun
            self.order.sort(key=self.levels.get)
            prompt = self.order[0]
        return prompt


def article_loss(log_ref, log_pi, behavior_logprobs, advantages, weights, **settings):
    """loss.policy_loss + KL k3 + a term whose gradient is that of -ENTROPY entropy, averaged by the
    same weights; log_ref (N, T).

    k3 is GRPO's: as a loss term its expected gradient is that of KL(reference || policy). The
    gradient of the entropy is -E[log π ∇log π] over the policy's samples; each token is one of
    them, without bias where there is no lag."""
    loss, stats = LOSS(log_pi, behavior_logprobs, advantages, weights, **settings)
    mask = weights > 0
    log_pi, log_ref = (torch.where(mask, x, 0) for x in (log_pi, log_ref.detach()))
    terms = KL * k3(log_ref - log_pi) + ENTROPY * log_pi.detach() * log_pi
    extra = (weights.detach() * terms).sum()
    if stats:                           # else no token is trained
        stats[""]["loss"] += extra.item()
    return loss + extra, stats


LOSS = scalerl.policy_loss

if __name__ == "__main__":
    scalerl.Curriculum = EasyFirst
    sys.exit(main(in_one_process(sys.argv[1:]), make_trainer=ArticleTrainer))
