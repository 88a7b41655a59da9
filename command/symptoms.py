"""symptoms.py: what a run's log says against it. python scalerl.py --report runs/demo

The rules are Python, in a table of docs/is-it-working.md. Their thresholds come from runs of the
toy, healthy and broken on purpose (results/symptoms): ours, and a large model may need others."""
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fitting import readers

PAGE = Path(__file__).parents[1] / "docs" / "is-it-working.md"
WORDS = "now", "mean", "median", "first", "best"        # of the rules, as mean("ess", 10)


class Symptom(NamedTuple):
    """A row of the table. column: the one that shows it; rule: Python, over all steps at once."""
    name: str
    column: str
    rule: str
    cause: str
    advice: str

    def steps(self, rows):
        """The steps of rows [{column: number}] in which the rule holds."""
        def word(kind):
            return lambda column, n=1: term(
                kind, n, np.array([row.get(column, np.nan) for row in rows], float))
        holds = eval(self.rule, {"abs": abs} | {kind: word(kind) for kind in WORDS})
        return [int(row["step"]) for row, here in zip(rows, holds) if here]


def term(kind, n, x):
    """A word of a rule as an array, one number a step. x: the column, nan where a step has none,
    which makes every comparison false. "now" is a mean of one."""
    at, out = np.isfinite(x).nonzero()[0], np.full(len(x), np.nan)
    if len(at) < n:
        return out
    if kind == "first":
        return np.full(len(x), x[at[:n]].mean())
    statistic = np.median if kind == "median" else np.mean
    out[at[n - 1:]] = statistic(np.lib.stride_tricks.sliding_window_view(x[at], n), 1)
    return np.fmax.accumulate(out) if kind == "best" else out


SYMPTOMS = [Symptom(*(cell.strip(" `") if i in (1, 2) else cell.strip() for i, cell in enumerate(
    line.split("|")[1:-1]))) for line in PAGE.read_text(encoding="utf-8").splitlines()
            if line.startswith("| ") and '("' in line]


def read(folder):
    """The rows of a run's logs, one a step."""
    rows = {}
    for path in (Path(folder, "metrics.jsonl"), Path(folder, "evals.jsonl")):
        for row in readers.read_jsonl(path)[0] if path.is_file() else ():
            fields = row.items() if isinstance(row, dict) else ()
            row = {k: v for k, v in fields if isinstance(v, int | float)}
            if row.get("step", 0.5) % 1:
                raise readers.BadInput(f"{path} has a line without a step that is a whole number")
            rows.setdefault(row["step"], {}).update(row)
    return [rows[step] for step in sorted(rows)]


def found(rows):
    """[(symptom, its steps)] of those that the rows show."""
    return [(symptom, steps) for symptom in SYMPTOMS if (steps := symptom.steps(rows))]


def ranges(steps):
    """Steps in words, as "1-3, 7, 9"; at most five ranges of them."""
    rows = np.split(steps, np.flatnonzero(np.diff(steps) != 1) + 1)
    words = [f"{row[0]}-{row[-1]}" if len(row) > 1 else f"{row[0]}" for row in rows]
    return ", ".join(words[:5]) + f" and {len(words) - 5} times more" * (len(words) > 5)


def told(rows):
    """A sentence for each symptom that the rows of `read` show."""
    few = f", of {sum(row['step'] > 0 for row in rows)} steps; most rules need 10, some 60"
    return [f"symptom: {s.name}, step {ranges(steps)} ({s.rule}). Likely: {s.cause}. "
            f"Try: {s.advice}." for s, steps in found(rows)] or [
        f"no symptom of docs/is-it-working.md{few * (len(rows) <= 60)}"]
