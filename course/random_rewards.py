"""Exercise 12's control: a run whose rewards are coins.

    python -m course.random_rewards --config configs/stress.toml --name coins --seed 0

All options are scalerl.py's, but for those of several processes. Each sample earns +1 or -1 by
chance, whatever it says. Evaluations, and `pass_rate` in the log, still tell the truth; so does the
curriculum, which may retire prompts. Whatever such a run gains, no reward has taught it.
"""
import random
import sys

import torch

import scalerl
from artifacts.run_folder import RunFolder
from command.main import main
from study import in_one_process


def reward_by_coins():
    """From now on runs in this process are trained on coins: others for each seed of a run, and for
    each of its steps, so that a resumed run tosses alike."""
    true, bad_step = scalerl.Run.reward, RunFolder.bad_step

    def reward(self, groups):
        rollouts, rewards, log = true(self, groups)
        self.true_rewards = rewards
        number = random.Random(f"{self.config.seed}/{self.step}").randrange(2 ** 63)
        coins = torch.randint(2, rewards.shape, generator=torch.Generator().manual_seed(number))
        return rollouts, coins * 2.0 - 1.0, log
    scalerl.Run.reward = reward
    # A step that is stopped half-way takes from the curriculum what was noted there: the truth.
    RunFolder.bad_step = lambda folder, run, groups, _, kept: bad_step(
        folder, run, groups, run.true_rewards, kept)


if __name__ == "__main__":
    reward_by_coins()
    sys.exit(main(in_one_process(sys.argv[1:])))
