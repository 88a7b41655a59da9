"""ScaleRL that trains on each group several times, where generating is what costs.

    python -m study.reuse --uses 2 --config configs/stress.toml --model models/toy-35 --seed 45

Each step of the run trains `--uses` times on its groups, an optimizer step each, before the weights
are pushed. The version of the weights, and with it the lag of the log, counts the steps of the run:
in optimizer steps a sample's lag is `uses` times that, and grows by one with each use.

The FLOPs of the log count a generated token GENERATION times: decoding reaches a small share of
what a GPU can multiply. With one use 80% of the compute would then be generation (a token costs 2
FLOPs a weight to generate, 6 to train on), more where groups of equal rewards are not trained on.
One process only: a launcher would start plain trainers. A run that a signal stops between two uses
has kept the first, and after the resume trains those groups from their first use again.
"""
import argparse
import sys

import scalerl
from command.main import main
from study import in_one_process

GENERATION = 12


class ReuseTrainer(scalerl.Trainer):
    uses = 1

    def update(self, rollouts, rewards, version):
        for _ in range(self.uses):
            result = super().update(rollouts, rewards, version)
        return result


class ReuseCompute(scalerl.Compute):
    def add_step(self, generated, trained, samples_per_prompt, tokens, seconds):
        super().add_step(GENERATION * generated, ReuseTrainer.uses * trained, samples_per_prompt,
                         tokens, seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--uses", type=int, default=1)
    args, others = parser.parse_known_args()
    if args.uses < 1:
        parser.error("--uses takes a whole number of at least 1")
    ReuseTrainer.uses, scalerl.Compute = args.uses, ReuseCompute
    sys.exit(main(in_one_process(others), make_trainer=ReuseTrainer))
