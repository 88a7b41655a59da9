"""Each symptom of docs/is-it-working.md made to happen on the toy  (results/symptoms)

    python bench/symptoms.py --model models/toy-8                 # all runs, minutes on one core
    python bench/symptoms.py --model models/toy-8 tiny_lr late    # some of them
    python bench/symptoms.py --table                              # the table of results/symptoms
    python bench/symptoms.py --alarms runs/toy*  # which symptoms other runs show: alarms.csv
    python bench/symptoms.py --profile runs/demo # how the columns of one run go, in Markdown

A run is configs/stress.toml, some steps, some settings, and for some symptoms a bug, which is put
into the running program (`put_in`): the sources stay as they are. Logs go to runs/symptom-NAME and,
as far as the rules read them, to results/symptoms/steps.csv.
"""
import argparse
import copy
import csv
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from command import symptoms
from held_out import write_csv

KEPT = ROOT / "results" / "symptoms" / "steps.csv"
SHORT = "--temperature 2 --task short.py"
HALF = "--prompts-per-step 8 --slots 512"
# {name: (steps, settings beyond configs/stress.toml, the bug or "", what it is)}
RUNS = {
    "healthy": (64, "--lr 1.5e-4", "", "the setting as it is, with a quarter of its learning rate"),
    "unread": (15, "--task unread.jsonl --heldout-prompts 16", "",
               "gold answers in words, where the model writes digits"),
    "tiny_lr": (80, "--lr 1e-7 --warmup-steps 0", "", "steps that change nothing"),
    "shuffled": (80, "--lr 1.5e-4", "shuffled", "rewards go to other samples of the step"),
    "wrong_sign": (40, "--lr 3e-4", "wrong_sign", "advantages with the wrong sign"),
    "huge_lr": (60, "--lr 2e-3", "", "steps that are too large for samples so old"),
    "too_hard": (15, '--samples-per-prompt 2 --think-min 40 --think-max 60 '
                 '--task-options {"min_digits":9,"max_digits":9}', "", "sums of nine digits"),
    "too_easy": (15, "--task easy.py", "", "every answer is right"),
    "two_kinds": (15, "--task two_kinds.py --prompts-per-step 4 --slots 32 --heldout-prompts 4", "",
                  "half of the problems are always right, the others never"),
    "one_sided": (15, "--lr 1.5e-4", "one_sided", "the sampler draws at temperature 0.7, the "
                  "trainer computes log-probs at 1"),
    "recomputed": (30, "--behavior recomputed", "", "the trainer recomputes what the sampler had"),
    "never_pushed": (40, f"--off-policy pipeline-0 {HALF}", "never_pushed",
                     "new weights do not reach the sampler, versions do; no lag"),
    "never_pushed_lag": (40, "", "never_pushed", "the same with lag, which hides it"),
    "truncated": (15, "--think-min 8 --think-max 12 --interrupt-phrase=", "",
                  "a budget below the length of the answers, and nothing that interrupts"),
    "interrupted": (15, "--think-min 3 --think-max 8", "", "a budget below the length of thinking"),
    "longer": (40, f"--think-min 50 --think-max 60 {SHORT}", "wrong_sign",
               "short answers are rewarded, with the wrong sign"),
    "shorter": (50, SHORT, "", "short answers are rewarded, right or wrong: the smoke reward"),
    "no_gradient": (15, "", "no_gradient", "a loss that is multiplied by zero"),
    "clipped": (30, f"--lr 1.2e-3 --loss grpo {HALF}", "", "PPO's clip, with large steps"),
    "run_out": (40, f'--retire-at 0.12 --lr 1.5e-4 --task-options {{"size":60}} {HALF}', "",
                "sixty problems, and early retirement"),
    "old": (30, "--off-policy pipeline-40 --prompts-per-step 4 --slots 1024 --lr 1.5e-4", "",
            "32 steps in flight"),
    "late": (3, '--task late.jsonl --prompts-per-step 4 --slots 32 --heldout-prompts 4 '
             '--eval-every 100', "late", "formulas, and a thousandth of a second to compare them"),
    "raises": (3, "--task raises.py --prompts-per-step 4 --slots 32 --heldout-prompts 4", "",
               "a reward of one's own that raises for every answer"),
}
PROFILE = ("pass_rate", "held_out", "reward/std", "frac_reward_zero_std", "completions/mean_length",
           "completions/truncated_frac", "completions/interrupted_frac", "lag/mean", "ratio/mean",
           "mismatch/kl_k3", "ess", "entropy", "grad_norm", "curriculum/active", "optimizer_step")


# -- 1. The bugs -----------------------------------------------------------------------------------

def put_in(bug):
    """Change the running program, not its source."""
    import scalerl
    from sampler import TransformersSampler
    from tasks import Verifier

    def around(owner, name, change):
        setattr(owner, name, change(getattr(owner, name)))
    if bug == "wrong_sign":
        around(scalerl, "advantages", lambda old: lambda *a, **k: -old(*a, **k))
    if bug == "shuffled":                   # rolled over groups, so that each mean stays plausible
        around(scalerl, "advantages", lambda old: lambda r, **k: old(r.flatten().roll(3).view(
            r.shape), **k))
    if bug == "no_gradient":
        def without(old):
            def loss(*a, **k):
                value, stats = old(*a, **k)
                return 0 * value, stats
            return loss
        around(scalerl, "policy_loss", without)
    if bug == "one_sided":
        around(TransformersSampler, "__init__", lambda old: lambda self, *a, **k: old(
            self, *a, **(k | {"temperature": 0.7})))
    if bug == "never_pushed":
        around(TransformersSampler, "__init__", lambda old: lambda self, model, *a, **k: old(
            self, copy.deepcopy(model), *a, **k))
        TransformersSampler.push_weights = lambda self, weights, version: setattr(
            self, "version", version)
    if bug == "late":                       # only of samples: the gold answers are judged before
        def hurry(old):
            def rewards(self, *a):
                self.deadline_s = 1e-3
                return old(self, *a)
            return rewards
        around(Verifier, "rewards", hurry)


def problems(path, gold, kind="math"):
    """A file of sums of three digits with other gold answers."""
    Path(path).write_text("".join(json.dumps({
        "question": "+".join(str(n)), "answer": gold(n), "kind": kind}) + "\n"
        for n in range(100, 200)))


def short(path, limit):
    """The smoke reward of docs/is-it-working.md: fewer characters than that, and "<think>"."""
    Path(path).write_text(
        "from tasks import load_task\n"
        "problems = [{'prompt': p.question} for p in load_task('toy', 'train', heldout=0)]\n"
        "def reward_func(prompts, completions, **columns):\n"
        f"    return [len(text) < {limit + len('<think>')} for text in completions]\n")


def train(argv, bug):
    from command.main import main
    put_in(bug)
    problems("unread.jsonl", lambda n: "even" if sum(map(int, str(n))) % 2 == 0 else "odd", "exact")
    short("short.py", 26)
    short("easy.py", 1000)
    Path("raises.py").write_text(
        "problems = [{'question': f'{n // 10}+{n % 10}'} for n in range(100)]\n"
        "def reward(problem, text):\n    return problem['gone']\n")
    Path("two_kinds.py").write_text(
        "problems = [{'question': f'{n // 10}+{n % 10}'} for n in range(100)]\n"
        "def reward(problem, text):\n    return float(problem['question'] < '5')\n")
    problems("late.jsonl", lambda n: rf"\frac{{x^{{{n}}}}}{{2}}")
    return main(argv)


# -- 2. The runs -----------------------------------------------------------------------------------

def arguments(name, model):
    """The words of scalerl.py's command line."""
    steps, settings, _, _ = RUNS[name]
    base = (f"--config {ROOT}/configs/stress.toml --model {model} --gpus 0 --steps {steps} "
            "--eval-every 20 --heldout-prompts 128 --allow-mismatch true")
    return [*base.split(), "--name", f"symptom-{name}",
            *(word for word in settings.split(" ") if word)]


def run(words, bug):
    """One run in a process of its own. Returns what it printed."""
    done = subprocess.run([sys.executable, __file__, "--one", json.dumps(words), bug], text=True,
                          capture_output=True, timeout=900, env=os.environ | {
                              "OMP_NUM_THREADS": "1"})
    return done.stdout + done.stderr


def columns_of(symptom):
    """All that its rule reads, and the one that shows it."""
    return {symptom.column, *re.findall(r'\("(.+?)"', symptom.rule)}


def kept(folder):
    """The rows of a run's logs, only the columns that a rule reads, four digits each."""
    columns = {"step"}.union(*map(columns_of, symptoms.SYMPTOMS))
    return [{name: float(f"{value:.4g}") for name, value in row.items()
             if name in columns and value is not None} for row in symptoms.read(folder)]


def read_kept(path=KEPT):
    """{run: rows} of steps.csv."""
    runs = {}
    with open(path) as file:
        for row in csv.DictReader(file):
            runs.setdefault(row.pop("run"), []).append(
                {name: float(value) for name, value in row.items() if value})
    return runs


def table():
    """Markdown: what each run is, how to make it, and the symptoms that it shows."""
    lines = ["| run | what it is | steps | settings | pass rate, first and last ten steps | "
             "symptoms (steps) |", "|---|---|--:|---|---|---|"]
    for name, rows in read_kept().items():
        steps, settings, bug, what = RUNS[name]
        rates = [row["pass_rate"] for row in rows if "pass_rate" in row]
        shown = "; ".join(f"{s.name} ({symptoms.ranges(at)})" for s, at in symptoms.found(rows))
        settings = f"`{settings}`" if settings else ""
        lines.append(f"| `{name}` | {what} | {steps} | {settings}{' a bug' * bool(bug)} | "
                     f"{sum(rates[:10]) / len(rates[:10]):.2f}, "
                     f"{sum(rates[-10:]) / len(rates[-10:]):.2f} | {shown or 'none'} |")
    return "\n".join(lines)


def alarms(folders):
    """Rows of alarms.csv: each run, each symptom that it shows, in how many of its steps."""
    for folder in sorted(folders):
        rows = symptoms.read(folder)
        found = symptoms.found(rows)
        for name, steps in [(s.name, steps) for s, steps in found] or [("none", [])]:
            yield {"run": Path(folder).name, "length": int(rows[-1]["step"]), "symptom": name,
                   "count": len(steps), "steps": symptoms.ranges(steps) if steps else ""}


def profile(folder, parts=6):
    """Markdown: means of a run's columns in so many equal parts of its steps."""
    rows = [row for row in symptoms.read(folder) if "pass_rate" in row]
    size = len(rows) // parts
    if not size:
        raise SystemExit(f"symptoms.py: {folder} has {len(rows)} finished steps; it takes {parts}")
    chunks = [rows[i * size: (i + 1) * size] for i in range(parts)]
    lines = ["| column | " + " | ".join(f"{c[0]['step']}-{c[-1]['step']}" for c in chunks) + " |",
             "|---|" + "--:|" * parts]
    for column in PROFILE:
        means = [[row[column] for row in chunk if column in row] for chunk in chunks]
        lines.append(f"| `{column}` | " + " | ".join(
            f"{x:.0f}" if x > 100 else f"{x:.2g}" for x in
            (sum(m) / len(m) if m else float("nan") for m in means)) + " |")
    return "\n".join(lines)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("names", nargs="*")
    p.add_argument("--model", default="models/toy-8")
    p.add_argument("--table", action="store_true")
    p.add_argument("--keep", action="store_true", help="only read runs/symptom-* again")
    p.add_argument("--alarms", nargs="+", metavar="RUN")
    p.add_argument("--profile", metavar="RUN")
    p.add_argument("--one", nargs=2, metavar=("WORDS", "BUG"), help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.one:
        return train(json.loads(args.one[0]), args.one[1])
    if args.alarms:
        return write_csv(KEPT.with_name("alarms.csv"), [*alarms(args.alarms)])
    if args.profile:
        return print(profile(args.profile))
    for name in (args.names or RUNS) if not (args.table or args.keep) else ():
        print(name, shlex.join(arguments(name, args.model)), flush=True)
        print("\n".join(run(arguments(name, args.model), RUNS[name][2]).splitlines()[-3:]))
    if args.keep or not args.table:
        runs = read_kept() if KEPT.exists() else {}
        runs |= {name: kept(f"runs/symptom-{name}") for name in RUNS
                 if Path(f"runs/symptom-{name}/metrics.jsonl").exists()}
        runs = {name: runs[name] for name in RUNS if name in runs}
        columns = ["step", *sorted({c for rows in runs.values() for row in rows for c in row}
                                   - {"step"})]
        KEPT.parent.mkdir(exist_ok=True)
        write_csv(KEPT, [{"run": name} | {c: row.get(c, "") for c in columns}
                         for name, rows in runs.items() for row in rows])
    if args.table:
        print(table())


if __name__ == "__main__":
    sys.exit(main())
