"""Random settings, stopped at random: is the resumed run the one that was never stopped?

    python bench/random_settings.py --count 40 --out results/chaos     # half an hour on two cores
    python bench/random_settings.py --first 17 --count 1               # the settings of one again

bench/chaos.py throws hundreds of faults at the demo's settings. Here each run has its own: every
scheme and lag, batches, lengths, losses, norms, filters, tasks, drawn from the seed --first + i.
The same command runs whole, and once more with up to four signals, each at a random moment
(SIGKILL, SIGTERM, SIGINT, SIGUSR1), repeated until it is done. Then the logs must be equal to the
last digit, fields of time apart; no command may end but by its signal or well, and none, nor
--report and fit.py on the whole run, may print a traceback. Settings that are refused count apart.
The moments depend on how fast the machine is. It needs models/toy (`make toy`).
"""
import argparse
import csv
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from bench.chaos import same                        # noqa: E402

SIGNALS = signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1
STOPPED = 75, 130           # exit codes of a run that a signal has stopped
LIMIT_S = 600               # of one command
ALWAYS = {                  # each run draws these
    "off_policy": [f"pipeline-{k}" for k in (0, 1, 2, 5, 8)] + ["ppo-1", "ppo-2", "ppo-8"],
    "prompts_per_step": (1, 2, 3, 5, 8), "samples_per_prompt": (2, 3, 4, 8),
    "slots": (8, 9, 16, 40, 128), "steps": (1, 3, 5, 7, 12), "eval_every": (1, 2, 3, 5, 20),
    "eval_samples": (1, 2, 5), "heldout_prompts": (1, 2, 7, 20), "think_min": (1, 5, 17),
    "answer_tokens": (1, 2, 4, 9), "prompt_tokens": (64, 40, 30)}
SOMETIMES = {               # and none to eight of these
    "interrupt_phrase": ("", "stop </think>", "</think>"), "length_penalty": (1, 5, 20),
    "overlong_filter": (False,), "retire_at": (0.01, 0.2, 0.5, 1.0),
    "zero_variance_filter": (False,),
    "advantage_norm": ("prompt", "mean", "none"), "aggregation": ("sample", "token"),
    "loss": ("cispo_masked", "dppo", "grpo", "dapo", "gspo", "reinforce"),
    "behavior": ("recomputed",), "temperature": (0.5, 0.9, 1.3), "head_fp32": (False,),
    "dtype": ("bfloat16",), "recompute_layers": (True,), "micro_batch_tokens": (1, 20, 100, 1000),
    "weight_decay": (0.0, 0.1), "lr": (1e-3, 1e-6), "warmup_steps": (0, 3, 100),
    "grad_clip": (0.01, 1e9), "adam_eps": (1e-8,), "save_minutes": (0.01, 0.05),
    "eps_max": (1.0, 8.0), "eps_low": (0.01,), "eps_high": (0.3,), "think_open": ("<think>\n",),
    "instruction": ("Add.",), "eval_tasks": ("mine.jsonl",), "seed": (1, 5, 10 ** 6),
    "task_options": ({"size": 4}, {"size": 30, "max_digits": 2}, {"size": 60}),
    "task": ("toy+mine.jsonl", "mine.jsonl", "toy+own.py", "own.py")}
OWN = '''problems = [{"question": f"{a}+{b}+{a}+1", "sum": (2 * a + b + 1) % 10}
            for a in range(6) for b in range(7)]
def reward(problem, answer_text):
    return 1.0 if str(problem["sum"]) in answer_text else -0.5
'''


def draw(seed):
    """{setting: value} of one run."""
    rng = random.Random(seed)
    chosen = {name: rng.choice(values) for name, values in ALWAYS.items()}
    chosen["think_max"] = chosen["think_min"] + rng.choice((0, 1, 4, 11))
    for name in rng.sample(sorted(SOMETIMES), rng.choice((0, 2, 3, 5, 8))):
        chosen[name] = rng.choice(SOMETIMES[name])
    if "task" in chosen:
        chosen["task_options"] = {"toy": {"size": 20}} if "toy+m" in chosen["task"] else {}
    return chosen


def words(settings, name, model):
    text = {key: json.dumps(value) if isinstance(value, (dict, bool)) else str(value)
            for key, value in settings.items()}
    return [sys.executable, ROOT / "scalerl.py", "--model", model, "--engine", "transformers",
            "--gpus", "0", "--name", name, *(w for key, value in text.items()
                                             for w in (f"--{key.replace('_', '-')}", value))]


def said(command, folder, signals=(), after=0.0):
    """(exit code, what it printed, the signal that it got or ""). Raises RuntimeError: a traceback,
    or no end within LIMIT_S."""
    process = subprocess.Popen(command, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"},
                               text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    sent = ""
    try:
        if signals:
            try:
                process.wait(after)
            except subprocess.TimeoutExpired:
                sent = signals[0].name
                process.send_signal(signals[0])
        text, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise RuntimeError("no end") from None
    finally:
        process.kill()
    if "Traceback" in text:
        raise RuntimeError(f"a traceback: {text[-1500:]}")
    return process.returncode, text, sent


def one(seed, model, folder):
    """The row of one seed."""
    settings, rng, faults = draw(seed), random.Random(f"faults {seed}"), []
    row = {"seed": seed, "settings": json.dumps(settings)}
    try:
        start = time.monotonic()
        code, text, _ = said(words(settings, f"whole{seed}", model), folder)
        took = time.monotonic() - start
        if code:
            return row | {"outcome": f"refused: {text.strip()[-200:]}" if code == 2
                          else f"FAULT: exit code {code}: {text[-500:]}"}
        for _ in range(4):
            code, text, sent = said(words(settings, f"stopped{seed}", model), folder,
                                    rng.sample(SIGNALS, 1), rng.uniform(3, max(took, 6)))
            faults += [sent] * bool(sent)
            if code not in (*STOPPED, *(-number for number in SIGNALS)):
                break
        else:
            code, text, _ = said(words(settings, f"stopped{seed}", model), folder)
        runs = [SimpleNamespace(folder=folder / "runs" / f"{name}{seed}")
                for name in ("whole", "stopped")]
        other = f"ended with {code}: {text[-500:]}" if code else same(*runs)
        for more in ([ROOT / "scalerl.py", "--report", runs[0].folder],
                     [ROOT / "fit.py", runs[0].folder, "--out", "none", "--bootstrap", "10"]):
            if (code := said([sys.executable, *more], folder)[0]) not in (0, 2):  # few evaluations
                other = other or f"{Path(more[0]).name} ended with {code}"
    except RuntimeError as error:
        other = str(error)
    return row | {"outcome": f"FAULT: {other}" if other else "equal", "signals": " ".join(faults)}


def main():
    p = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    p.add_argument("--first", type=int, default=0, help="the first seed")
    p.add_argument("--count", type=int, default=40)
    p.add_argument("--model", default=str(ROOT / "models" / "toy"))
    p.add_argument("--out", help="a folder, for random_settings.csv")
    args = p.parse_args()
    rows = []
    if not Path(args.model, "config.json").exists():
        sys.exit(f"{args.model} is no model: `make toy`")
    if args.out:
        Path(args.out).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "mine.jsonl").write_text("".join(json.dumps(
            {"question": f"{a}+{b}+{a * b % 10}", "answer": str((a + b + a * b % 10) % 10)}) + "\n"
            for a in range(7) for b in range(6)))
        (folder / "own.py").write_text(OWN)
        for seed in range(args.first, args.first + args.count):
            rows.append({"signals": ""} | one(seed, str(Path(args.model).resolve()), folder))
            print(seed, rows[-1]["outcome"], rows[-1]["signals"], flush=True)
    if args.out:
        with open(Path(args.out, "random_settings.csv"), "w", newline="") as file:
            table = csv.DictWriter(file, ["seed", "outcome", "signals", "settings"],
                                   lineterminator="\n")
            table.writeheader()
            table.writerows(rows)
    equal, refused = (sum(row["outcome"].startswith(how) for row in rows)
                      for how in ("equal", "refused"))
    print(f"{equal} runs equal after {sum(len(row['signals'].split()) for row in rows)} signals, "
          f"{refused} refused, {len(rows) - equal - refused} with a fault")
    return equal + refused < len(rows)


if __name__ == "__main__":
    sys.exit(main())
