"""ScaleRL with the learning rate scaled by sqrt(ESS), as VCPO (2602.17616) proposes under lag.

    python -m study.ess_rate --config configs/stress.toml --model models/toy-13 --seed 20

ESS, the effective sample size, is E[ρ]² / E[ρ²] over the tokens of the step (the log's column
`ess`): 1 without lag, small where a few tokens carry the whole gradient. All else stays ScaleRL's.
The log's `lr` is the rate before the factor.
"""
import math
import sys

import scalerl
from command.main import main
from study import in_one_process


class EssTrainer(scalerl.Trainer):
    """The learning rate of each optimizer step times sqrt(ESS) of that step's samples."""

    def __init__(self, config, team):
        super().__init__(config, team)
        scalerl.merge_stats = self.remember_ess
        self.optimizer.register_step_pre_hook(self.scale_rate)

    def remember_ess(self, stats):
        log = MERGE_STATS(stats)
        self.ess = log.get("ess", 1.0)          # no token is trained: {}
        return log

    def scale_rate(self, optimizer, *_):
        for group in optimizer.param_groups:
            group["lr"] *= math.sqrt(self.ess)


MERGE_STATS = scalerl.merge_stats

if __name__ == "__main__":
    sys.exit(main(in_one_process(sys.argv[1:]), make_trainer=EssTrainer))
