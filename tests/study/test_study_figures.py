"""The study's comparisons by hand, and its page, whose numbers are those of the kept logs."""

import csv
import math
import re

import numpy as np
import pytest
from scipy import stats

from study import figures


@pytest.fixture(scope="module")
def results():
    """(rows, tables, figures) of the kept logs."""
    return figures.results()


def test_an_interval_is_students_over_the_pairs():
    d = np.array([0.03, 0.05, 0.01, 0.04, 0.02])
    mean, low, high, n = figures.paired([*d, math.nan])
    expected = stats.t.interval(0.9, 4, loc=d.mean(), scale=stats.sem(d))
    assert (mean, low, high, n) == pytest.approx((0.03, *expected, 5))
    assert figures.paired([0.1])[3] == 1 and math.isnan(figures.paired([0.1])[1])


@pytest.mark.parametrize(("d", "low", "high", "expected"), [
    (0.03, 0.01, 0.05, "differs"), (-0.03, -0.05, -0.01, "differs"),
    (0.015, 0.012, 0.018, "same"), (0.015, 0.005, 0.025, "not decided"),
    (0.03, -0.01, 0.07, "not decided"), (0.0, -0.02, 0.02, "same")])
def test_a_verdict_needs_the_papers_bound_and_the_interval(d, low, high, expected):
    assert figures.verdict(d, low, high) == expected


def test_the_forecasts_of_the_table_are_those_of_a_cut_by_hand():
    C = np.arange(21) * 1e9
    R = 0.3 + 0.5 / (1 + np.divide(8e9, C, out=np.full(21, np.inf), where=C > 0) ** 2.0)
    row = figures.extrapolation({"made": [(C, R)]}).split("\n")[figures.CUTS.index(0.5) + 2]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:3] == ["made", "1", "0.5"] and float(cells[3]) < 1e-3     # the true law
    assert float(cells[6]) == pytest.approx(R[-3:].mean() - R[8:11].mean(), abs=6e-4)


def test_tables_go_between_their_marks_and_nothing_else_changes():
    page = "a\n<!-- x -->\nold\n<!-- end -->\nb\n<!-- y -->\n<!-- end -->\n"
    assert figures.filled(page, {"x": "new"}) == page.replace("old", "new")
    with pytest.raises(SystemExit, match="<!-- z -->"):
        figures.filled(page, {"z": ""})


def test_the_pages_tables_and_rows_are_those_of_the_kept_logs(results):
    rows, tables, _ = results
    page = figures.PAGE.read_text()
    assert tables and figures.filled(page, tables) == page
    with open(figures.KEPT.parent / "runs.csv", newline="") as file:
        committed = list(csv.DictReader(file))
    assert len(committed) == len(rows)
    for row, now in zip(committed, rows.values(), strict=True):
        assert row["variant"] == now["variant"]
        for name in ("end", "A", "collapsed"):
            assert float(row[name]) == pytest.approx(now[name], abs=2e-3, nan_ok=True)


def test_a_run_of_the_page_by_hand(results):
    """The end of a run from its log, without our readers."""
    rows, _, _ = results
    name, row = next((name, row) for name, row in rows.items() if not row["failed"])
    text = (figures.KEPT / name / "evals.jsonl").read_text()
    rates = [float(rate) for rate in re.findall(r'"eval/toy/mean@1": ([0-9.e-]+)', text)]
    assert row["end"] == pytest.approx(np.mean(rates[-3:]))
    assert row["start"] == rates[0]
