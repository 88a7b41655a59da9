"""ScaleRL with a reward that knows nothing of the right answer: the skeptic's controls.

    python -m study.controls --reward random --config configs/stress.toml --model models/toy-35

    right     the verifier's, as always
    format    +1 if the thinking was closed and one whole number follows
    even      the same, and the number is even
    random    +1 by the toss of a coin, for each sample

Evaluations are graded by the verifier whatever `--reward` is. One process only: a launcher would
start plain trainers. (Ours; Spurious Rewards, 2506.10947,
found that random rewards improved Qwen2.5-Math and hardly any other model.)
"""
import argparse
import random
import re
import sys

import scalerl
from command import make_run
from command.main import main
from study import in_one_process

WHOLE_NUMBER = re.compile(r"\s*-?[0-9]+\s*")


class Control:
    """Stands for the verifier while the samples of a step are rewarded."""

    def __init__(self, kind, close, rng):
        self.kind, self.close, self.rng = kind, close, rng

    def rewards(self, rollouts, problems, tokenizer):
        texts = [tokenizer.decode(r.output_ids, skip_special_tokens=True) for r in rollouts]
        right = [self.rng.random() < 0.5 for _ in texts] if self.kind == "random" else [
            r.finish_reason == "stop" and self.pays(text)
            for r, text in zip(rollouts, texts)]
        return [1.0 if yes else -1.0 for yes in right], {}

    def pays(self, text):
        _, closed, answer = text.rpartition(self.close)
        form = closed and WHOLE_NUMBER.fullmatch(answer)
        return bool(form) and (self.kind == "format" or int(answer) % 2 == 0)


class ControlRun(scalerl.Run):
    kind = "right"

    def reward(self, groups):
        if self.kind == "right":
            return super().reward(groups)
        judge, config = self.verifier, self.config
        rng = random.Random(f"{config.seed}/{self.step}")       # a resumed run tosses alike
        self.verifier = Control(self.kind, config.think_close, rng)
        try:
            return super().reward(groups)
        finally:
            self.verifier = judge


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--reward", choices=("right", "format", "even", "random"), default="right")
    args, others = parser.parse_known_args()
    ControlRun.kind, make_run.Run = args.reward, ControlRun
    sys.exit(main(in_one_process(others)))
