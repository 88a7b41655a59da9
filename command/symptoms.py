"""symptoms.py: what a run's log says against it. python scalerl.py --report runs/demo

symptoms.toml has a name, the rule that sees it, its likely cause and what to try, for each row of
the table of docs/is-it-working.md; it explains the rules' language as well.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fitting import readers

TERM = re.compile(r"(mean|median|first|best|last|)(\d*)\[([^\]]+)\]")


@dataclass(frozen=True)
class Symptom:
    name: str
    rule: str
    cause: str
    advice: str

    @property
    def columns(self):
        return list(dict.fromkeys(column for _, _, column in TERM.findall(self.rule)))

    def steps(self, rows):
        """The steps of rows [{column: number}] in which the rule holds."""
        def of(kind, n, column):
            x = np.array([row.get(column, np.nan) for row in rows], float)
            at = np.isfinite(x).nonzero()[0]            # means are over the steps that have it
            if kind == "" or len(at) < n:
                return x if kind == "" else np.nan * x
            if kind in ("first", "last"):
                return x[at[:n]].mean() if kind == "first" else x[at[-1]]
            windows, x = np.lib.stride_tricks.sliding_window_view(x[at], n), np.nan * x
            x[at[n - 1:]] = (np.median if kind == "median" else np.mean)(windows, 1)
            return np.fmax.accumulate(x) if kind == "best" else x
        rule = TERM.sub(lambda m: f"of({m[1]!r}, {m[2] or 1}, {m[3]!r})", self.rule)
        holds = eval(rule, {"of": of, "abs": abs})      # a rule of ours, never of a log
        return [int(row["step"]) for row, here in zip(rows, holds) if here]


SYMPTOMS = [Symptom(**entry) for entry in tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text())["symptom"]]


def read(folder):
    """The rows of a run's logs, one a step; "held_out" is the mean over its evaluated tasks."""
    rows = {}
    for name in ("metrics.jsonl", "evals.jsonl"):
        path = Path(folder) / name
        for row in readers.read_jsonl(path)[0] if path.is_file() else ():
            row = {k: v for k, v in row.items() if isinstance(v, int | float)}
            rates = [v for k, v in row.items() if re.match("eval/.*/mean@", k)]
            rows.setdefault(row["step"], {}).update(
                row | ({"held_out": np.mean(rates)} if rates else {}))
    return [rows[step] for step in sorted(rows)]


def found(rows):
    """[(symptom, its steps)] of those that the rows show."""
    return [(s, steps) for s in SYMPTOMS if (steps := s.steps(rows))]


def ranges(steps):
    """Steps in words.

    >>> ranges([1, 2, 3, 7, 9])
    '1-3, 7, 9'
    """
    starts = [s for s in steps if s - 1 not in steps]
    ends = [s for s in steps if s + 1 not in steps]
    words = [f"{a}-{b}" if a < b else f"{a}" for a, b in zip(starts, ends)]
    return ", ".join(words[:5]) + f" and {len(words) - 5} times more" * (len(words) > 5)


def told(folder):
    """Sentences for a terminal and a page: one for each symptom that a run's folder shows."""
    return [f"symptom: {s.name}, step {ranges(steps)} ({s.rule}). Likely: {s.cause}. Try: "
            f"{s.advice}." for s, steps in found(read(folder))
            ] or ["no symptom of docs/is-it-working.md"]
