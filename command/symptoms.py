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

PAGE = Path(__file__).parents[1] / "docs" / "is-it-working.md"


# A column is an array of a number a step; nan where a step has none: every comparison is false.
def mean(x, n, statistic=np.mean):
    """The mean of the last n numbers of x, in the steps that have one, from the n-th on."""
    at = np.isfinite(x).nonzero()[0]
    out = np.full(len(x), np.nan)
    if len(at) >= n:
        out[at[n - 1:]] = statistic(np.lib.stride_tricks.sliding_window_view(x[at], n), 1)
    return out


def best(x, n):
    """The highest mean of n numbers so far."""
    return np.fmax.accumulate(mean(x, n))


def first(x, n):
    """The mean of the first n numbers of the run, or nan: it has fewer."""
    numbers = x[np.isfinite(x)][:n]
    return numbers.mean() if len(numbers) == n else np.nan


@dataclass(frozen=True)
class Symptom:
    """A symptom and its rule. Cause and cure stand in the table of docs/is-it-working.md alone."""

    name: str
    columns: tuple      # that `holds` is called with; the first is the one that shows the symptom
    holds: Callable     # of the columns: in which steps it holds

    def steps(self, rows):
        """The steps of rows [{column: number}] in which the rule holds."""
        holds = self.holds(*(np.array([row.get(column, np.nan) for row in rows], float)
                             for column in self.columns))
        return [int(row["step"]) for row, here in zip(rows, holds) if here]


SYMPTOMS = [
    Symptom("nothing is ever right", ("pass_rate",), lambda rate: mean(rate, 10) == 0),
    Symptom("the pass rate stays flat", ("pass_rate", "step"),
            lambda rate, step: (step >= 60) & (mean(rate, 20) < first(rate, 20) + .02)),
    Symptom("the pass rate falls below its start", ("pass_rate",),
            lambda rate: mean(rate, 10) < .5 * first(rate, 10)),
    Symptom("the pass rate rose and fell", ("pass_rate",),
            lambda rate: ((mean(rate, 10) < .5 * best(rate, 10))
                          & (best(rate, 10) > 1.2 * first(rate, 10)))),
    Symptom("held-out problems lag behind", ("pass_rate", "held_out"),
            lambda rate, held_out: mean(rate, 20) - held_out > .2),
    Symptom("groups are all wrong", ("frac_reward_zero_std", "pass_rate"),
            lambda equal, rate: (mean(equal, 10) > .75) & (mean(rate, 10) < .2)),
    Symptom("groups are all right", ("frac_reward_zero_std", "pass_rate"),
            lambda equal, rate: (mean(equal, 10) > .75) & (mean(rate, 10) > .8)),
    Symptom("no optimizer steps", ("optimizer_step",), lambda taken: mean(taken, 10) < .5),
    Symptom("problems run out", ("curriculum/active", "curriculum/retired"),
            lambda active, retired: active < .1 * (active + retired)),
    Symptom("sampler and trainer disagree", ("mismatch/fp32_head/mean_abs_dlogp",),
            lambda apart: apart > .03),
    Symptom("they drift apart without lag", ("mismatch/kl_k3/lag_0", "step"),
            lambda kl, step: (step > 5) & (mean(kl, 20, np.median) > .015)),
    Symptom("the ratio's mean leaves 1", ("ratio/mean",),
            lambda ratio: abs(mean(ratio, 10) - 1) > .05),
    Symptom("the ratio is 1 under lag", ("lag/mean", "ratio/max", "ratio/min"),
            lambda lag, highest, lowest: (lag > .5) & (highest - lowest == 0)),
    Symptom("few samples carry the step", ("ess",), lambda ess: ess < .5),
    Symptom("many tokens are clipped", ("ratio/clipped_frac",),
            lambda clipped: mean(clipped, 10) > .05),
    Symptom("samples are old", ("lag/mean",), lambda lag: mean(lag, 10) > 8),
    Symptom("answers are cut off", ("completions/truncated_frac",),
            lambda truncated: mean(truncated, 10) > .1),
    Symptom("thinking is interrupted", ("completions/interrupted_frac",),
            lambda interrupted: mean(interrupted, 10) > .5),
    Symptom("answers grow", ("completions/mean_length",),
            lambda length: mean(length, 10) > 1.5 * first(length, 10)),
    Symptom("answers shrink", ("completions/mean_length",),
            lambda length: mean(length, 10) < .5 * first(length, 10)),
    Symptom("entropy rises", ("entropy",),
            lambda entropy: mean(entropy, 10) > 1.5 * first(entropy, 10)),
    Symptom("the gradient is zero", ("grad_norm", "tokens/trained"),
            lambda norm, tokens: (norm == 0) & (tokens > 0)),
    Symptom("checks come late", ("verifier/timeout_frac",), lambda late: late > .02),

]


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
    shown = set(steps)
    starts = [s for s in steps if s - 1 not in shown]
    ends = [s for s in steps if s + 1 not in shown]
    words = [f"{a}-{b}" if a < b else f"{a}" for a, b in zip(starts, ends)]
    more = f" and {len(words) - 5} times more" if len(words) > 5 else ""
    return ", ".join(words[:5]) + more


def explained():
    """{symptom: [its column, rule, likely cause, what to try]}: the page's table, among others."""
    return {name: cells for name, *cells in (
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|"))}


def told(folder):
    """Sentences for a terminal and a page: one for each symptom that a run's folder shows."""
    sentences, page = [], explained()
    for symptom, steps in found(read(folder)):
        _, rule, cause, advice = page[symptom.name]
        sentences.append(f"symptom: {symptom.name}, step {ranges(steps)} ({rule.strip('`')}). "
                         f"Likely: {cause}. Try: {advice}.")
    return sentences or ["no symptom of docs/is-it-working.md"]
