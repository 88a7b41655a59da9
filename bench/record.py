"""Time to .80: how long does a recipe need to solve 80% of the held-out problems?

    python bench/record.py                                 # the record's recipe on three fresh toys
    python bench/record.py --config mine.toml --times 5    # yours; the record beside it
    python bench/record.py --model models/smollm2-135m     # SmolLM2's, minutes a run

Makes toys of seeds that are drawn now (--seeds names them), trains the recipe and the record's on
each, one after the other in turns, and prints the seconds of both and their ratio. Another model is
trained as often with those seeds. Nothing else should run meanwhile. The rules, and who holds the
records: results/baselines.

The clock counts the steps of training: generation, verification, training, push. Evaluations and
the start are left out. It stops at the first of two evaluations in a row at .80 or above.
"""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from artifacts.settings import read_toml                                              # noqa: E402
from study.run import make_toy                                              # noqa: E402

GOAL = 0.80
TOY, SMOLLM2 = "", "models/smollm2-135m"
# The recipe that holds the record: its config files, the last one before the others.
RECORD = {TOY: ("configs/record.toml",),
          SMOLLM2: ("configs/smollm2.toml", "configs/record_smollm2.toml")}
SUMS = read_toml(ROOT / "configs/smollm2.toml")
# What an entry may not choose: the problems and the evaluation. Standard errors at .80: .018, and
# .022 at most.
BOTH = ["--temperature", "1", "--eval-tasks", "", "--servers", "0", "--trainers", "1", "--gpus",
        "-1", "--vllm-url", ""]
RULES = {TOY: [*BOTH, "--task", "toy", "--heldout-prompts", "512", "--eval-samples", "1",
               "--eval-every", "5", "--task-options", "{}"],
         SMOLLM2: [*BOTH, "--task", SUMS["task"], "--heldout-prompts", "40", "--eval-samples", "8",
                   "--eval-every", "4", "--task-options", json.dumps(SUMS["task_options"]),
                   "--instruction", SUMS["instruction"]]}


def seconds_to(goal, evals, steps):
    """Seconds of training until the first of two evaluations in a row at `goal`; None: never.

    evals, steps: the lines of evals.jsonl and metrics.jsonl, as dicts.

    >>> evals = [{"step": i, "eval/x/mean@1": rate} for i, rate in ((0, .8), (1, .7), (2, .9))]
    >>> steps = [{"step": 0}] + [{"step": i, "time/step_s": 1.5} for i in (1, 2, 3)]
    >>> seconds_to(.8, evals, steps), seconds_to(.8, evals + [evals[2] | {"step": 3}], steps)
    (None, 3.0)
    """
    above = [next(value for name, value in row.items() if "/mean@" in name) >= goal
             for row in evals]
    for row, now, after in zip(evals, above, above[1:], strict=False):
        if now and after:
            return sum(step["time/step_s"] for step in steps if 0 < step["step"] <= row["step"])
    return None


def run(recipe, model, seed, rules):
    """Train a recipe (config files) once; returns its seconds to the goal, or None."""
    name = f"record-{Path(recipe[-1]).stem}-{seed}"
    configs = [word for config in recipe for word in ("--config", config)]
    shutil.rmtree(Path("runs") / name, ignore_errors=True)
    command = [sys.executable, "scalerl.py", *configs, "--model", model, "--seed", str(seed),
               "--name", name, *rules]
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
        sys.exit(f"{name} ended with an error")
    evals, steps = ([json.loads(line) for line in (Path("runs") / name / log).open()]
                    for log in ("evals.jsonl", "metrics.jsonl"))
    wanted, found = rules[rules.index("--heldout-prompts") + 1], steps[0]["problems/heldout"]
    if str(found) != wanted:        # whatever has left some out: `prompt_tokens`, `max_unusable`
        sys.exit(f"{name}: it was evaluated on {found} problems, and the rules have {wanted}")
    return seconds_to(GOAL, evals, steps)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--model", choices=[SMOLLM2], default=TOY, help="instead of fresh toys")
    p.add_argument("--config", action="append", help="the recipe; without it the record's alone")
    p.add_argument("--times", type=int, default=3, help="how many fresh toys, or seeds")
    p.add_argument("--seeds", type=int, nargs="+", help="these seeds, instead of drawn ones")
    args = p.parse_args()
    for config in args.config or ():
        if not Path(config).is_file():
            p.error(f"no file {config}")
    recipes = list(dict.fromkeys([tuple(args.config or RECORD[args.model]), RECORD[args.model]]))
    found = {recipe: [] for recipe in recipes}
    print(f"{'seed':>8}", *(f"{Path(recipe[-1]).stem:>16}" for recipe in recipes), flush=True)
    for seed in args.seeds or [random.randrange(1000, 10**6) for _ in range(args.times)]:
        model = args.model or f"models/toy-{seed}"
        if not args.model and (refused := make_toy(Path(model), seed)):
            print(f"{seed:>8}  not counted: {refused}")
            continue
        for recipe in recipes:
            found[recipe].append(run(recipe, model, seed, RULES[args.model]))
        print(f"{seed:>8}", *(f"{'never':>16}" if (s := found[recipe][-1]) is None else
                              f"{s:>14.1f} s" for recipe in recipes), flush=True)
    middle = [median(float("inf") if s is None else s for s in seconds)
              for seconds in found.values() if seconds]
    if middle:
        print(f"{'median':>8}", *(f"{s:>14.1f} s" for s in middle),
              f"   ratio {middle[0] / middle[-1]:.2f}", f"   {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
