"""The stress regime's numbers are what its committed logs give, and what its page says."""

import csv
import json
import re
import sys

import numpy as np
import pytest
from conftest import ROOT

sys.path.append(str(ROOT / "bench"))      # last: bench/fit.py is not fit.py
import stress                                                               # noqa: E402

STRESS = ROOT / "results" / "stress"
RECIPES = ("scalerl", "reinforce_loss", "recomputed_ratio", "grpo_loss", "on_policy")


def lines(table):
    with open(STRESS / f"{table}.csv", newline="") as file:
        return list(csv.DictReader(file))


def committed():
    return lines("runs")


def test_the_rows_are_all_runs_of_the_protocol():
    """A run that is left out because of its result would be a lie."""
    pairs = re.findall(r"\b(\d+):(\d+)\b", (STRESS / "PROTOCOL.md").read_text())
    wanted = {(recipe, toy, seed) for recipe in RECIPES for toy, seed in pairs}
    assert len(wanted) == 25
    assert {(row["recipe"], row["toy"], row["seed"]) for row in committed()} == wanted
    for table in ("evals", "steps"):
        assert {line["run"] for line in lines(table)} == {
            f"{recipe}-toy{toy}-seed{seed}" for recipe, toy, seed in wanted}


def test_each_row_is_what_its_logs_say():
    """By hand, from the lines: the mean of the last three, and of the best three in a row."""
    all_evals, all_steps = lines("evals"), lines("steps")
    for row in committed():
        run = f"{row['recipe']}-toy{row['toy']}-seed{row['seed']}"
        evals = [float(line["eval/toy/mean@1"]) for line in all_evals if line["run"] == run]
        steps = [line for line in all_steps if line["run"] == run]
        assert len(evals) == 15 and [int(step["step"]) for step in steps] == [*range(1, 141)]
        end, best = np.mean(evals[-3:]), max(np.mean(evals[i: i + 3]) for i in range(13))
        ess = [float(step["ess"]) for step in steps if step["ess"]]
        expected = [evals[0], best, end, float(end < best / 2), min(ess), np.median(ess)]
        assert [float(row[name]) for name in ("start", "best", "end", "collapsed", "ess_least",
                                              "ess_median")] == pytest.approx(expected, abs=6e-4)


def test_what_is_kept_of_a_run_is_its_logs_number_by_number(tmp_path):
    """Beside another run that was kept before, and in the place of its own earlier rows."""
    name, run = "scalerl-toy8-seed15", tmp_path / "scalerl-toy8-seed15"
    run.mkdir()
    logs = {log: [{key: json.loads(cell) for key, cell in line.items() if cell and key != "run"}
                  for line in lines(table) if line["run"] == name]
            for log, table in (("evals", "evals"), ("metrics", "steps"))}
    for log, rows in logs.items():
        (run / f"{log}.jsonl").write_text("".join(
            json.dumps(row | {"pass_rate": 0.5, "time/step_s": 3.0}) + "\n" for row in rows))
    for kept in ("other", name, name):
        stress.logs.keep(run, tmp_path, kept)
    evals, steps = (stress.logs.read(tmp_path / f"{table}.csv") for table in ("evals", "steps"))
    assert list(evals) == list(steps) == ["other", name]
    found = stress.row_of(name, evals[name], steps[name])
    (row,) = [row for row in committed() if (row["recipe"], row["toy"]) == ("scalerl", "8")]
    assert {key: str(value) for key, value in found.items()} == row


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
