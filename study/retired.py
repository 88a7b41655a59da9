"""No-Positive-Resampling, looked at from the end: do retired prompts fail again?

    python -m study.retired runs/toy8-seed15 ... --csv results/study/retired.csv

Reads groups.jsonl of finished runs, finds the prompts that had retired (pass rate 0.9 or above over
all their samples), and lets the run's last model answer them again, 16 times each. ReMind
(arXiv 2606.03087) reports that about a fifth of retired prompts regress.

A prompt that is right in 70% of the attempts passes all of its first eight samples in 6% of the
cases, and retires by luck. Such a prompt never was learned, so failing again is not forgetting. To
tell the two apart, the same is done with the model before training.
"""
import argparse
import json
import os
from collections import Counter
from pathlib import Path

import numpy as np

from artifacts.run_folder import RunFolder
from bench.held_out import write_csv
from artifacts.settings import make_config, read_toml
from command.make_run import make_run
from scalerl import Curriculum, Trainer
from scaleout.team import make_team

SAMPLES = 16


def retired(groups, retire_at):
    """The ids of the prompts that had retired after these lines of groups.jsonl."""
    seen = Curriculum([], retire_at, seed=0)
    for step in groups:
        for group in step["groups"]:
            seen.record(group["prompt_id"], sum(reward > 0 for reward in group["rewards"]),
                        len(group["rewards"]))
    return [prompt for prompt in seen.history if seen.learned(prompt)]


def pass_rates(folder, model, prompts):
    """The pass rate of a model on each of a run's training prompts, as the run asked them."""
    config = make_config(read_toml(folder / "config.toml") | {
        "model": str(model), "name": "study-retired", "samples_per_prompt": SAMPLES})
    team = make_team(config)
    run = make_run(config, team.lead(Trainer(config, team)), RunFolder(config))
    try:
        run.push_weights(run.eval_sampler)
        run.eval_sampler.path = os.devnull      # on vLLM: no answers kept of another model
        run.eval_sampler.reseed(config.seed)
        asked = {prompt: run.problems.train[prompt] for prompt in prompts}
        rollouts = run.answers(run.eval_sampler, asked, SAMPLES)
        rewards, _ = run.verifier.rewards(rollouts, asked, run.trainer.tokenizer)
    finally:
        run.verifier.close()
    right = Counter(r.prompt_id for r, reward in zip(rollouts, rewards) if reward > 0)
    return np.array([right[prompt] / SAMPLES for prompt in prompts])


def row_of(folder):
    """What became of a run's retired prompts, as shares."""
    config = read_toml(folder / "config.toml")
    groups = map(json.loads, (folder / "groups.jsonl").read_text().splitlines())
    prompts = retired(groups, config["retire_at"])
    before, after = (pass_rates(folder, model, prompts)
                     for model in (config["model"], folder / "model"))
    return dict(run=folder.name, retired=len(prompts), before=before.mean(), after=after.mean(),
                below_90=(after < 0.9).mean(), below_50=(after < 0.5).mean(),
                worse=(after < before - 0.25).mean())


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("runs", nargs="+", type=Path)
    p.add_argument("--csv", help="write the rows to this file")
    args = p.parse_args()
    for folder in args.runs:
        if not (folder / "groups.jsonl").exists():
            p.error(f"{folder} is no run: it has no groups.jsonl")
    rows = []
    for folder in args.runs:
        rows.append({name: round(value, 4) if isinstance(value, float) else value
                     for name, value in row_of(folder).items()})
        print(*rows[-1].items(), flush=True)
    if args.csv:
        write_csv(args.csv, rows)


if __name__ == "__main__":
    main()
