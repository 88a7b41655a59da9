"""symptoms.py: what a run's log says against it. python scalerl.py --report runs/demo

All of it is ours: the thresholds come from runs of the toy, healthy ones and ones that were broken
on purpose (results/symptoms). A large model may need others.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fitting import readers


# ------------------------------------------------------------------------------ 1. Means of columns
# A column is an array of a number a step; nan where a step has none, which makes every comparison
# false.
def rolling(x, n, statistic):
    """`statistic` of the last n numbers of x, in the steps that have one, from the n-th on."""
    at = np.isfinite(x).nonzero()[0]
    out = np.full(len(x), np.nan)
    if len(at) >= n:
        out[at[n - 1:]] = statistic(np.lib.stride_tricks.sliding_window_view(x[at], n), 1)
    return out


def mean(x, n):
    return rolling(x, n, np.mean)


def median(x, n):
    return rolling(x, n, np.median)


def best(x, n):
    """The highest mean of n numbers so far."""
    return np.fmax.accumulate(mean(x, n))


def first(x, n):
    """The mean of the first n numbers of the run, or nan: it has fewer."""
    numbers = x[np.isfinite(x)][:n]
    return numbers.mean() if len(numbers) == n else np.nan


# ------------------------------------------------------------------------------------ 2. The table
@dataclass(frozen=True)
class Symptom:
    """One row of the table of docs/is-it-working.md, which explains the notation of `rule`."""

    name: str
    columns: tuple      # that `holds` is called with; the first is the one that shows the symptom
    rule: str           # `holds` as the page and the report write it
    holds: Callable     # of the columns: in which steps it holds
    cause: str
    advice: str

    def steps(self, rows):
        """The steps of rows [{column: number}] in which the rule holds."""
        holds = self.holds(*(np.array([row.get(column, np.nan) for row in rows], float)
                             for column in self.columns))
        return [int(row["step"]) for row, here in zip(rows, holds) if here]


SYMPTOMS = [
    Symptom("nothing is ever right", ("pass_rate",),
            "mean10[pass_rate] == 0",
            lambda rate: mean(rate, 10) == 0,
            "the answer is not found: chat template, `think_close`, its form; or the task is too "
            "hard",
            "read `samples.jsonl`; `--check`; easier problems, a warm start"),
    Symptom("the pass rate stays flat", ("pass_rate", "step"),
            "([step] >= 60) & (mean20[pass_rate] < first20[pass_rate] + .02)",
            lambda rate, step: (step >= 60) & (mean(rate, 20) < first(rate, 20) + .02),
            "steps too small; rewards that go to other samples; a model that cannot do it",
            "`--check`: is the smoke reward learned? then a tenfold `lr`"),
    Symptom("the pass rate falls below its start", ("pass_rate",),
            "mean10[pass_rate] < .5 * first10[pass_rate]",
            lambda rate: mean(rate, 10) < .5 * first(rate, 10),
            "a wrong sign: of advantages, loss or rewards; far too large steps; or only hard "
            "problems are left",
            "print a group's rewards and advantages; a tenth of the `lr`"),
    Symptom("the pass rate rose and fell", ("pass_rate",),
            "(mean10[pass_rate] < .5 * best10[pass_rate]) & "
            "(best10[pass_rate] > 1.2 * first10[pass_rate])",
            lambda rate: (mean(rate, 10) < .5 * best(rate, 10)) &
                         (best(rate, 10) > 1.2 * first(rate, 10)),
            "steps too large for samples so old",
            "a smaller `lr`; fewer `slots` (less lag); `checkpoints/best` has the model before"),
    Symptom("held-out problems lag behind", ("pass_rate", "held_out"),
            "mean20[pass_rate] - [held_out] > .2",
            lambda rate, held_out: mean(rate, 20) - held_out > .2,
            "few problems, seen often: they are learned by heart",
            "more problems; stop earlier"),
    Symptom("groups are all wrong", ("frac_reward_zero_std", "pass_rate"),
            "(mean10[frac_reward_zero_std] > .75) & (mean10[pass_rate] < .2)",
            lambda equal, rate: (mean(equal, 10) > .75) & (mean(rate, 10) < .2),
            "the problems are too hard",
            "easier problems; more samples a prompt; a warm start"),
    Symptom("groups are all right", ("frac_reward_zero_std", "pass_rate"),
            "(mean10[frac_reward_zero_std] > .75) & (mean10[pass_rate] > .8)",
            lambda equal, rate: (mean(equal, 10) > .75) & (mean(rate, 10) > .8),
            "the problems are too easy, or learned by now",
            "harder problems; stop here"),
    Symptom("samples of a group are alike", ("frac_reward_zero_std", "step"),
            "([step] == 10) & (first10[frac_reward_zero_std] > .75)",
            lambda equal, step: (step == 10) & (first(equal, 10) > .75),
            "a low `temperature`; one random seed for a group; or far too hard or easy problems",
            "`temperature = 1`; compare the outputs of a group"),
    Symptom("no optimizer steps", ("optimizer_step",),
            "mean10[optimizer_step] < .5",
            lambda taken: mean(taken, 10) < .5,
            "hardly a group is left after the filter",
            "see the rows on groups"),
    Symptom("problems run out", ("curriculum/active", "curriculum/retired"),
            "[curriculum/active] < .1 * ([curriculum/active] + [curriculum/retired])",
            lambda active, retired: active < .1 * (active + retired),
            "nearly all are learned: pass rate at `retire_at`",
            "more or harder problems; stop here"),
    Symptom("problems come back often", ("curriculum/epoch",),
            "[curriculum/epoch] > 25",
            lambda epoch: epoch > 25,
            "there are too few of them",
            "more problems; watch the held-out pass rate"),
    Symptom("sampler and trainer disagree", ("mismatch/fp32_head/mean_abs_dlogp",),
            "[mismatch/fp32_head/mean_abs_dlogp] > .03",
            lambda apart: apart > .03,
            "they compute differently before training: temperature, head, template, attention",
            "the same settings on both sides; log-probs of the policy that draws"),
    Symptom("they drift apart without lag", ("mismatch/kl_k3/lag_0", "step"),
            "([step] > 5) & (median20[mismatch/kl_k3/lag_0] > .015)",
            lambda kl, step: (step > 5) & (median(kl, 20) > .015),
            "new weights do not reach the sampler; or old keys and values in its cache, with large "
            "steps",
            '`off_policy = "pipeline-0"`: does it stay? then compare a weight on both sides after '
            "a push"),
    Symptom("they are far apart under lag", ("mismatch/kl_k3",),
            "mean10[mismatch/kl_k3] > .3",
            lambda kl: mean(kl, 10) > .3,
            "steps too large for samples so old; or new weights that do not reach the sampler",
            'a smaller `lr`; `off_policy = "pipeline-0"`: does it stay?'),
    Symptom("the ratio's mean leaves 1", ("ratio/mean",),
            "abs(mean10[ratio/mean] - 1) > .05",
            lambda ratio: abs(mean(ratio, 10) - 1) > .05,
            "mismatch, or samples too old for such steps",
            "the rows above; a smaller `lr`"),
    Symptom("the ratio is 1 under lag", ("lag/mean", "ratio/max", "ratio/min"),
            "([lag/mean] > .5) & ([ratio/max] - [ratio/min] == 0)",
            lambda lag, highest, lowest: (lag > .5) & (highest - lowest == 0),
            "the trainer's own log-probs stand in the denominator; or the weights do not move",
            '`behavior = "sampler"`'),
    Symptom("few samples carry the step", ("ess",),
            "[ess] < .5",
            lambda ess: ess < .5,
            "steps too large for samples so old",
            "a smaller `lr`; fewer `slots`; a lower `eps_max`"),
    Symptom("many tokens are clipped", ("ratio/clipped_frac",),
            "mean10[ratio/clipped_frac] > .05",
            lambda clipped: mean(clipped, 10) > .05,
            "PPO's clip takes away the gradient of old samples",
            '`loss = "cispo"`; a smaller `lr`'),
    Symptom("samples are old", ("lag/mean",),
            "mean10[lag/mean] > 8",
            lambda lag: mean(lag, 10) > 8,
            "more is in flight than the paper's 8 steps",
            "fewer `slots`; a lower K in `off_policy`"),
    Symptom("answers are cut off", ("completions/truncated_frac",),
            "mean10[completions/truncated_frac] > .1",
            lambda truncated: mean(truncated, 10) > .1,
            "small budgets, no `interrupt_phrase`, or a model that never ends",
            "larger budgets; is the end token the model's own?"),
    Symptom("thinking is interrupted", ("completions/interrupted_frac",),
            "mean10[completions/interrupted_frac] > .5",
            lambda interrupted: mean(interrupted, 10) > .5,
            "`think_max` is below what the model needs",
            "a larger `think_max`; read the samples"),
    Symptom("answers grow", ("completions/mean_length",),
            "mean10[completions/mean_length] > 1.5 * first10[completions/mean_length]",
            lambda length: mean(length, 10) > 1.5 * first(length, 10),
            "longer answers are paid, or being wrong at length is cheap",
            'read them; `aggregation = "prompt"`; `length_penalty`'),
    Symptom("answers shrink", ("completions/mean_length",),
            "mean10[completions/mean_length] < .5 * first10[completions/mean_length]",
            lambda length: mean(length, 10) < .5 * first(length, 10),
            "the model drops what is not needed, or the verifier pays answers without work",
            "read them"),
    Symptom("entropy rises", ("entropy",),
            "mean10[entropy] > 1.5 * first10[entropy]",
            lambda entropy: mean(entropy, 10) > 1.5 * first(entropy, 10),
            "the policy is being destroyed: wrong sign, or steps too large",
            "see the pass rate's rows"),
    Symptom("the gradient is zero", ("grad_norm", "tokens/trained"),
            "([grad_norm] == 0) & ([tokens/trained] > 0)",
            lambda norm, tokens: (norm == 0) & (tokens > 0),
            "the loss does not reach the weights: detached, frozen, or zero weights",
            "loss, mask and `requires_grad` of a micro-batch"),
    Symptom("still warming up at the end", ("lr", "step"),
            "([step] > 20) & ([step] == last[step]) & ([lr] > mean10[lr])",
            # step[-1:], not step[-1]: a log may be empty.
            lambda lr, step: (step > 20) & (step == step[-1:]) & (lr > mean(lr, 10)),
            "`warmup_steps` is longer than the run",
            "fewer `warmup_steps`, or more steps"),
    Symptom("checks come late", ("verifier/timeout_frac",),
            "[verifier/timeout_frac] > .02",
            lambda late: late > .02,
            "answers that are slow to judge; they count as wrong",
            "which ones? a simpler form; more cores"),
    Symptom("several answers in one", ("verifier/several_frac",),
            "mean10[verifier/several_frac] > .05",
            lambda several: mean(several, 10) > .05,
            "the model lists candidates, or its thinking is read as its answer",
            "is `think_close` the model's own? read the samples"),
    Symptom("the verifier takes the time", ("time/verify_s", "time/step_s"),
            "([time/verify_s] > 1) & ([time/verify_s] > .5 * [time/step_s])",
            lambda verify, whole: (verify > 1) & (verify > .5 * whole),
            "slow checks stand in the step's way",
            "simpler answers; more cores"),
]


# ------------------------------------------------------------------------------- 3. What is told
def read(folder):
    """The rows of a run's logs, one a step; "held_out" is the mean over its evaluated tasks."""
    rows = {}
    for name in ("metrics.jsonl", "evals.jsonl"):
        path = Path(folder) / name
        for row in readers.read_jsonl(path)[0] if path.is_file() else ():
            row = {k: v for k, v in row.items() if isinstance(v, int | float)}
            rates = [v for k, v in row.items() if re.match("eval/.*/mean@", k)]
            if rates:
                row["held_out"] = np.mean(rates)
            rows.setdefault(row["step"], {}).update(row)
    return [rows[step] for step in sorted(rows)]


def found(rows):
    """[(symptom, its steps)] of those that the rows show."""
    return [(symptom, steps) for symptom in SYMPTOMS if (steps := symptom.steps(rows))]


def ranges(steps):
    """Steps in words, at most five ranges of them.

    >>> ranges([1, 2, 3, 7, 9])
    '1-3, 7, 9'
    """
    starts = [s for s in steps if s - 1 not in steps]
    ends = [s for s in steps if s + 1 not in steps]
    words = [f"{a}-{b}" if a < b else f"{a}" for a, b in zip(starts, ends)]
    more = f" and {len(words) - 5} times more" if len(words) > 5 else ""
    return ", ".join(words[:5]) + more


def told(folder):
    """Sentences for a terminal and a page: one for each symptom that a run's folder shows."""
    sentences = [f"symptom: {s.name}, step {ranges(steps)} ({s.rule}). Likely: {s.cause}. "
                 f"Try: {s.advice}." for s, steps in found(read(folder))]
    return sentences or ["no symptom of docs/is-it-working.md"]
