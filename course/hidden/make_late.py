"""make_late.py: the logs of exercise 9: `python -m course.hidden.make_late models/toy-8 3 4 5 6 7`.

For each seed four short runs: `on_time`; `bf16`, whose head rounds in trainer and sampler; `old`,
with twice the slots, so that samples wait longer; and `late`, whose sampler gets each step's
weights one step late, under the number of the new ones. The first seed's go to course/late, in an
order drawn from it, without `old`; the others' to course/hidden/late. A new term needs new seeds.

The hidden ones learn at two rates, and a draw mixes them: a punctual run at the high one is further
from its sampler than a late run at the low one, so the size of a mismatch does not tell them apart.
"""
import copy
import json
import os
import random
import sys
import tempfile
from pathlib import Path

import sampler
from command.main import main as scalerl
from course.mutants import COLUMNS, short

COURSE = Path(__file__).resolve().parents[1]
KINDS = {"on_time": [], "bf16": ["--head-fp32", "false"], "old": ["--slots", "512"], "late": []}
RATES = ["3e-4", "6e-4", "7e-5", "6e-4", "7e-5"]        # of the seeds, in order
RUN = ["--config", "configs/stress.toml", "--steps", "16", "--eval-every", "16", "--slots", "256",
       "--heldout-prompts", "16", "--allow-mismatch", "true"]
KEPT = [name for name in COLUMNS if not name.startswith(("eval/", "compute/"))]
KEPT += ["mismatch/mean_abs_dlogp/lag_1", "mismatch/mean_abs_dlogp/lag_2", "ratio/mean/lag_1"]


def a_step_late(push):
    """push_weights that sends what it was given the time before; the first time, this. In one
    process trainer and sampler share their weights: first the sampler gets a model of its own."""
    kept = {}

    def late(self, named, version):
        if id(self) not in kept:
            self.model = copy.deepcopy(self.model)
            self.head = self.model.get_output_embeddings().weight
        new = [(name, x.detach().clone()) for name, x in named]
        push(self, iter(kept.get(id(self), new)), version)
        kept[id(self)] = new
    return late


def log_of(kind, seed, rate, model):
    """The thinned log of a run, as text."""
    right, root = sampler.TransformersSampler.push_weights, os.getcwd()
    config = str(COURSE.parent / RUN[1])
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            if kind == "late":
                sampler.TransformersSampler.push_weights = a_step_late(right)
            code = scalerl([RUN[0], config, *RUN[2:], *KINDS[kind], "--seed", seed, "--lr", rate,
                            "--model", str(model), "--name", "run"])
            assert not code, f"the run {kind} of seed {seed} failed"
            lines = [json.loads(line) for line in open("runs/run/metrics.jsonl")]
        finally:
            sampler.TransformersSampler.push_weights = right
            os.chdir(root)
    return "".join(json.dumps({name: short(line[name]) for name in KEPT if name in line}) + "\n"
                   for line in lines if line["step"])


def main(model, *seeds):
    for number, (seed, rate) in enumerate(zip(seeds, RATES, strict=True)):
        kinds = [*KINDS] if number else ["on_time", "bf16", "late"]
        random.Random(f"late {seed}").shuffle(kinds)
        for place, kind in enumerate(kinds):
            name = (f"hidden/late/{kind}_{seed}" if number else f"late/run_{place}") + ".jsonl"
            (COURSE / name).write_text(log_of(kind, seed, rate, Path(model).resolve()))
            print(kind, name, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
