r"""No-Positive-Resampling with a review: now and then a retired prompt is asked again.

    python -m study.review --review 0.02 --config configs/stress.toml --model models/toy-45 \
        --seed 55

A share `--review` of all groups is asked of retired prompts, drawn at random. A prompt whose pass
rate over all its samples then falls below `retire_at` is back from the next epoch on. Each reviewed
group is printed with its right samples. ReMind (arXiv 2606.03087) reports that about a fifth of
retired prompts regress. One process only: a launcher would start plain trainers.
"""
import argparse
import random
import sys
from collections import Counter

import scalerl
from command.main import main
from study import in_one_process


class Review(scalerl.Curriculum):
    """With share 0 it is ScaleRL's."""
    share = 0.0

    def __init__(self, prompts, retire_at, seed):
        super().__init__(prompts, retire_at, seed)
        self.all, self.asked, self.reviewing = list(prompts), 0, Counter()

    def next(self):
        self.asked += 1
        draw = random.Random(f"{self.seed}/review/{self.asked}")
        if draw.random() < self.share and (retired := [*filter(self.learned, self.all)]):
            prompt = draw.choice(retired)
            self.reviewing[prompt] += 1
            return prompt
        if self.cursor == len(self.order):
            self.active = self.all              # the method below leaves out those that are learned
        return super().next()

    def record(self, prompt, correct, samples):
        super().record(prompt, correct, samples)
        if self.reviewing[prompt]:
            self.reviewing[prompt] -= 1
            print(f"review: {correct} of {samples} right", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--review", type=float, default=0.0)
    args, others = parser.parse_known_args()
    if not 0 <= args.review < 1:
        parser.error("--review takes a share from 0 to below 1")
    Review.share, scalerl.Curriculum = args.review, Review
    sys.exit(main(in_one_process(others)))
