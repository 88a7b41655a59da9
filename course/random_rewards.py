"""Exercise 12's control: a run whose rewards are coins.

    python -m course.random_rewards --config configs/stress.toml --name coins --seed 0

All options are scalerl.py's. Each sample earns +1 or -1 by chance, whatever it says. Evaluations,
and `pass_rate` in the log, still tell the truth; so does the curriculum, which may retire prompts.
Whatever such a run gains, no reward has taught it.
"""
import sys

import torch

import scalerl
from command.main import main


def reward_by_coins(seed=0):
    """From now on runs in this process are trained on coins."""
    true, generator = scalerl.Run.reward, torch.Generator().manual_seed(seed)

    def reward(self, groups):
        rollouts, rewards, log = true(self, groups)
        coins = torch.randint(2, rewards.shape, generator=generator)
        return rollouts, coins * 2.0 - 1.0, log
    scalerl.Run.reward = reward


if __name__ == "__main__":
    reward_by_coins()
    sys.exit(main())
