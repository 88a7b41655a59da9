"""The study's comparisons by hand, and its page, whose numbers are those of the kept logs."""

import csv
import math

import numpy as np
import pytest
from scipy import stats

from study import figures, logs
from study.run import Job


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


def jobs_of(bases, variants, toys):
    return {job.name: job for base in bases for variant in variants for toy in toys
            for job in [Job(base, variant, toy, toy + 7, ())]}


def test_a_cell_of_the_grid_is_the_mean_of_its_pairs_and_counts_what_fell():
    jobs = jobs_of(["low", "high"], ["lag_0", "lag_5"], [13, 14])
    rows = {name: dict(end=0.5 + 0.2 * i / len(jobs), lag=3.0, collapsed=float(i == 7), failed=0)
            for i, name in enumerate(jobs)}
    lines = figures.grid_of(jobs, rows).split("\n")
    assert len(lines) == 4 and lines[2].startswith("| `low` | 0.512 (least 0.500), lag 3.0 | ")
    assert lines[3].endswith("0.663 (least 0.650), lag 3.0, **1 of 2 fell** |")


def test_the_line_through_the_smaller_sizes_is_straight_in_the_logarithm():
    """Each size is foretold from those below it, by pairs that have them all."""
    jobs = jobs_of(["calm"], figures.SIZES, [13, 14])
    rows = {job.name: dict(end=0.3 + 0.1 * math.log(figures.SIZES[job.variant])) for job in
            jobs.values()}
    rows["calm-hidden_576-toy14-seed21"]["end"] = math.nan
    lines = figures.sizes_of(jobs, rows).split("\n")[2:]
    for line, before, size, toys in zip(lines, (0.78, 3.1), (3.1, 10.0), (2, 1), strict=True):
        end, naive = 0.3 + 0.1 * math.log(size), 0.1 * math.log(size / before)
        ends = ", ".join([f"{end:.3f}"] * toys)
        assert line == f"| {size:g}M | {toys} | {ends} | 0.000 | {naive:.3f} |"


def test_each_of_two_tasks_has_its_own_curve(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "KEPT", tmp_path)
    jobs, C = jobs_of(["mix"], ["two_tasks"], [13, 14]), np.arange(17) * 1e9
    laws = {"toy": (0.9, 2.0), "reasoning_gym:chain_sum": (0.7, 1.5)}
    R = {task: 0.2 + (A - 0.2) / (1 + np.divide(4e9, C, out=np.full(17, np.inf), where=C > 0) ** B)
         for task, (A, B) in laws.items()}
    logs.write(tmp_path / "evals.csv", [
        {"run": job.name, "step": i, "compute/flops": C[i]}
        | {f"eval/{task}/mean@4": rates[i] for task, rates in R.items()}
        for job in jobs.values() for i in range(17)])
    table, curves = figures.tasks_of(jobs)
    for line, (task, (A, B)) in zip(table.split("\n")[2:], laws.items(), strict=True):
        end = R[task][-3:].mean()
        cells = [f"{value:.3f} [{value:.3f}, {value:.3f}]" for value in (0.2, end, A, B)]
        assert line == f"| `{task}` | 2 | " + " | ".join(cells) + " |"
        assert len(curves[f"two tasks: {task}"]) == 2
        np.testing.assert_allclose(curves[f"two tasks: {task}"][0][1], R[task])


def test_of_a_base_of_the_second_round_that_is_not_finished_nothing_is_told():
    jobs = jobs_of(["calm", "stress"], ["scalerl", "grpo"], [13, 14, 15])
    assert figures.of_finished_bases(jobs, {*jobs}) == jobs
    missing = "calm-grpo-toy15-seed22"
    told = figures.of_finished_bases(jobs, {*jobs} - {missing})
    assert told == jobs_of(["stress"], ["scalerl", "grpo"], [13, 14, 15])


def test_tables_go_between_their_marks_and_nothing_else_changes():
    page = "a\n<!-- x -->\nold\n<!-- end -->\nb\n<!-- y -->\n<!-- end -->\n"
    assert figures.filled(page, {"x": "new"}) == page.replace("old", "new")
    with pytest.raises(SystemExit, match="<!-- z -->"):
        figures.filled(page, {"z": ""})


def test_the_pages_tables_and_rows_are_those_of_the_kept_logs(results):
    rows, tables, _ = results
    page = figures.PAGE.read_text()
    assert tables and figures.filled(page, tables) == page
    with open(figures.KEPT / "runs.csv", newline="") as file:
        committed = list(csv.DictReader(file))
    assert len(committed) == len(rows)
    for row, now in zip(committed, rows.values(), strict=True):
        assert row["variant"] == now["variant"]
        for name in ("end", "A", "collapsed"):
            assert float(row[name]) == pytest.approx(now[name], abs=2e-3, nan_ok=True)


def test_a_run_of_the_page_by_hand(results):
    """The end of a run from its rows of the table, without our readers."""
    rows, _, _ = results
    name, row = next((name, row) for name, row in rows.items() if not row["failed"])
    titles, *lines = (figures.KEPT / "evals.csv").read_text().splitlines()
    column = titles.split(",").index("eval/toy/mean@1")
    rates = [float(line.split(",")[column]) for line in lines if line.startswith(f"{name},")]
    assert row["end"] == pytest.approx(np.mean(rates[-3:]))
    assert row["start"] == rates[0]
