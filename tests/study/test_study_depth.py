"""Compute by the steps of a problem: right samples by level, and a power law's exponent."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from artifacts.settings import make_config, to_toml
from fit import sigmoid
import fitting.figures
from study import depth, figures


def test_right_samples_are_counted_by_the_level_of_their_problem(tmp_path, monkeypatch):
    config = make_config({"model": "models/toy", "eval_samples": 2, "heldout_prompts": 5})
    (tmp_path / "config.toml").write_text(to_toml(config))
    (tmp_path / "evals.jsonl").write_text("".join(json.dumps(
        {"step": step, "compute/flops": 1e9 * step, "eval/toy/right@2": right}) + "\n"
        for step, right in ((0, [0, 1, 2, 0, 1]), (10, [2, 2, 1, 2, 0]))))
    problems = [SimpleNamespace(level=level) for level in (3, 2, 3, 4, 3)]
    monkeypatch.setattr(depth, "load_splits", lambda *_, **__: (None, problems, None))
    rows = depth.by_level(tmp_path)
    assert [(row["step"], row["level"], row["right"], row["asked"]) for row in rows] == [
        (0, 2, 1, 2), (0, 3, 3, 6), (0, 4, 0, 2), (10, 2, 2, 2), (10, 3, 3, 6), (10, 4, 2, 2)]


def test_a_power_law_gets_its_exponent_back(seed):
    """Curves that reach the pass rate at 3e9 * steps^1.7, by construction."""
    rng = np.random.default_rng(seed)
    C, kept = np.linspace(0, 1e11, 41), {}
    for run in "a", "b", "c":
        kept[run] = []
        for level in (2, 3, 4):
            A, B = rng.uniform(0.85, 0.95), rng.uniform(1.5, 2.5)
            g = (depth.PASS_RATE - 0.2) / (A - 0.2)
            C_mid = 3e9 * level ** 1.7 / (g / (1 - g)) ** (1 / B)
            kept[run] += [{"compute/flops": c, "level": level, "right": r, "asked": 1.0}
                          for c, r in zip(C, sigmoid(C, A, B, C_mid, 0.2))]
    found = {run: depth.compute_by_level(rows) for run, rows in kept.items()}
    assert found["a"] == pytest.approx(
        {level: 3e9 * level ** 1.7 for level in (2, 3, 4)}, rel=2e-2)
    lines = depth.table(found, figures.paired, figures.told).split("\n")
    assert len(lines) == 6 and lines[-1].count("|") == lines[0].count("|")
    assert float(lines[-1].split("|")[-2].split()[0]) == pytest.approx(1.7, abs=0.03)


def test_a_level_that_needs_no_compute_or_never_comes_there_says_nothing():
    two = {3: 2e9, 4: 2e9 * (4 / 3) ** 1.3}
    assert depth.exponent({2: 0.0} | two | {5: np.inf}) == pytest.approx(1.3)


def test_the_picture_of_depth_has_the_runs_and_the_mean_exponent():
    found = {"a": {2: 1e12, 3: 2e12, 4: 3e12}, "b": {2: 0.0, 3: 4e12, 4: 9e12}}
    lines = depth.plot(found, figures.paired, fitting.figures).axes[0].lines
    runs, law = lines[:2], lines[2]
    assert [len(line.get_xdata()) for line in runs] == [3, 2]      # a level at 0 is not drawn
    b = np.polyfit(np.log(law.get_xdata()), np.log(law.get_ydata()), 1)[0]
    assert b == pytest.approx(np.mean([depth.exponent(compute) for compute in found.values()]))
