"""The stress regime's numbers are what its committed logs give, and what its page says."""

import csv
import json
import re
import sys

import numpy as np
import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import stress                                                               # noqa: E402

STRESS = ROOT / "results" / "stress"
RECIPES = ("scalerl", "reinforce_loss", "recomputed_ratio", "grpo_loss", "on_policy")


def committed():
    with open(STRESS / "runs.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_the_rows_are_all_runs_of_the_protocol():
    """A run that is left out because of its result would be a lie."""
    pairs = re.findall(r"\b(\d+):(\d+)\b", (STRESS / "PROTOCOL.md").read_text())
    wanted = {(recipe, toy, seed) for recipe in RECIPES for toy, seed in pairs}
    assert len(wanted) == 25
    assert {(row["recipe"], row["toy"], row["seed"]) for row in committed()} == wanted
    assert {path.name for path in STRESS.glob("*-toy*")} == {
        f"{recipe}-toy{toy}-seed{seed}" for recipe, toy, seed in wanted}


def test_each_row_is_what_its_logs_say():
    """By hand, from the lines: the mean of the last three, and of the best three in a row."""
    for row in committed():
        folder = STRESS / f"{row['recipe']}-toy{row['toy']}-seed{row['seed']}"
        evals = [json.loads(line)["eval/toy/mean@1"]
                 for line in (folder / "evals.jsonl").read_text().splitlines()]
        steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert len(evals) == 15 and [step["step"] for step in steps if "pass_rate" in step] == [
            *range(1, 141)]
        end, best = np.mean(evals[-3:]), max(np.mean(evals[i: i + 3]) for i in range(13))
        ess = [step["ess"] for step in steps if "ess" in step]
        expected = [evals[0], best, end, float(end < best / 2), min(ess), np.median(ess)]
        assert [float(row[name]) for name in ("start", "best", "end", "collapsed", "ess_least",
                                              "ess_median")] == pytest.approx(expected, abs=6e-4)


def test_what_is_kept_of_a_log_gives_the_same_row(tmp_path):
    folder = STRESS / "scalerl-toy8-seed15"
    stress.keep(folder, tmp_path / folder.name)
    assert stress.row_of(tmp_path / folder.name) == stress.row_of(folder)


def test_the_table_of_the_page_is_that_of_the_rows():
    """A cell is a run: its end, bold where it collapsed."""
    rows = {(row["recipe"], row["toy"]): row for row in committed()}
    page = (STRESS / "README.md").read_text()
    for recipe in RECIPES:
        cells = re.search(rf"^\| `{recipe}` \|(.*)\|$", page, re.M)[1].split("|")
        of_recipe = [rows[recipe, str(toy)] for toy in range(8, 13)]
        assert [cell.strip() for cell in cells[:5]] == [
            ("**{:.3f}**" if float(row["collapsed"]) else "{:.3f}").format(float(row["end"]))
            for row in of_recipe]
        assert float(cells[5]) == pytest.approx(
            np.mean([float(row["end"]) for row in of_recipe]), abs=6e-4)


def test_the_readmes_figures_are_those_of_the_rows():
    ends = {recipe: np.mean([float(row["end"]) for row in committed() if row["recipe"] == recipe])
            for recipe in RECIPES}
    told = " ".join((ROOT / "README.md").read_text().split())
    for words, recipe in (("ScaleRL ends at", "scalerl"), ("correction of the lag",
                          "reinforce_loss"), ("PPO's clip", "grpo_loss"), ("without lag",
                          "on_policy")):
        assert f"{words} {ends[recipe]:.3f}".replace(" 0.", " .") in told
