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

import scalerl
from engines.policy import Policy

KL, ENTROPY = 0.05, 0.01


class ArticleTrainer(scalerl.Trainer):
    """Entropy bonus and KL penalty in the loss, and a learning rate that falls as a cosine."""

    def __init__(self, config, team):
        super().__init__(config, team)
        # The reference: the model as it was before training.
        self.reference = Policy(copy.deepcopy(self.policy.model), dtype=self.policy.dtype,
                                temperature=self.policy.temperature).requires_grad_(False)
        self.policy.register_forward_hook(self.ask_reference)

    def ask_reference(self, _, inputs, __):
        """After each forward pass of the policy: the reference's log-probs of the same rollouts."""
        scalerl.policy_loss = partial(LOSS, reference_logprobs=self.reference(inputs[0])[0],
                                      kl_coef=KL, entropy_coef=ENTROPY)

    def step(self, rollouts, rewards, version):
        constant = self.config
        share = 0.5 * (1 + math.cos(math.pi * min(1.0, version / constant.steps)))
        self.config = replace(constant, lr=constant.lr * share)
        try:
            return super().step(rollouts, rewards, version)
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


LOSS = scalerl.policy_loss

if __name__ == "__main__":
    scalerl.Trainer, scalerl.Curriculum = ArticleTrainer, EasyFirst
    sys.exit(scalerl.main())
