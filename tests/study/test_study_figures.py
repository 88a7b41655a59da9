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
    row = figures.extrapolation(figures.extrapolation_errors({"made": [(8, C, R)]})).split(
        "\n")[figures.CUTS.index(0.5) + 2]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:3] == ["made", "1", "0.5"] and float(cells[3]) < 1e-3     # the true law
    assert float(cells[6]) == pytest.approx(R[-3:].mean() - R[8:11].mean(), abs=6e-4)


def test_the_picture_of_the_forecasts_draws_the_means_of_the_table():
    rng = np.random.default_rng()
    found = {name: {cut: {"toy": [*rng.uniform(size=(n, 4))], "another": [rng.uniform(size=4)]}
                    for cut in (0.3, 0.5, 0.7)}
             for name, n in (("a", 3), ("b", 5), ("c", 2), ("d", 4))}
    axes = figures.plot_extrapolation(found).axes
    for ax, by_cut in zip(axes, found.values(), strict=True):
        drawn = np.array([line.get_ydata() for line in ax.lines])
        np.testing.assert_allclose(drawn.T, [np.mean(by_toy["toy"] + by_toy["another"], 0)
                                             for by_toy in by_cut.values()])
        assert "toys)" in ax.get_title()
        band, = ax.collections
        toys = [np.mean(by_toy["toy"], 0)[0] for by_toy in by_cut.values()]
        others = [by_toy["another"][0][0] for by_toy in by_cut.values()]
        low, high = (np.add(toys, others) / 2 + sign * 6.3138 * np.abs(np.subtract(toys, others))
                     / 2 for sign in (-1, 1))           # Student's 95% point for two toys
        ends = band.get_paths()[0].vertices[:, 1]
        assert ends.min() == pytest.approx(low.min(), abs=1e-4)
        assert ends.max() == pytest.approx(high.max(), abs=1e-4)


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
        np.testing.assert_allclose(curves[f"two tasks: {task}"][0][2], R[task])


def test_right_samples_are_kept_where_a_problem_has_many(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"step": 1, "pass_rate": 0.5, "ess": 0.25}\n')
    for name, k in ("many", 256), ("few", 4):
        (run / "evals.jsonl").write_text("".join(
            f'{{"step": {step}, "compute/flops": {step}, "eval/toy/mean@{k}": 0.5, '
            f'"eval/toy/right@{k}": [{step}, 2, 3]}}\n' for step in (0, 140)))
        logs.keep(run, tmp_path, name)
    assert logs.read_right(tmp_path / "right.csv") == {
        "many": {0: (256, [0, 2, 3]), 140: (256, [140, 2, 3])}}
    assert [*logs.read(tmp_path / "evals.csv")] == ["many", "few"]


def test_pass_at_k_is_the_share_of_draws_without_a_right_one():
    """By hand: of 4 samples, 1 right: a draw of 2 misses it in 3 of 6 cases."""
    found = figures.pass_at((1, 2, 4), 4, [0, 1, 4])
    np.testing.assert_allclose(found, [[0, 0, 0], [0.25, 0.5, 1], [1, 1, 1]])
    k, c, n = 40, 7, 5
    drawn = np.argsort(np.random.default_rng().random((40_000, k)))[:, :n] < c
    assert figures.pass_at((n,), k, [c])[0, 0] == pytest.approx(drawn.any(1).mean(), abs=0.012)


def test_the_controls_table_has_the_counts_before_and_after(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "KEPT", tmp_path)
    jobs, rng = jobs_of(["pass_256"], ["scalerl", "random"], [35, 36]), np.random.default_rng()
    counts = {job.name: {step: rng.integers(257, size=12).tolist() for step in (0, 140)}
              for job in jobs.values()}
    logs.write(tmp_path / "right.csv", [
        {"run": name, "step": step, "k": 256, "right": " ".join(map(str, right))}
        for name, found in counts.items() for step, right in found.items()])
    lines = figures.controls_of(jobs).split("\n")[2:]
    assert [line.split(" | ")[2] for line in lines[:4]] == [
        "before", "after", "gain, over toys", "gain, over problems"] and len(lines) == 8
    for i, variant in enumerate(("scalerl", "random")):
        ends = [[np.mean(found[step]) / 256 for name, found in counts.items() if variant in name]
                for step in (0, 140)]
        d, low, high, _ = figures.paired(np.subtract(*ends[::-1]))
        cells = [lines[4 * i + j].split(" | ")[3] for j in range(3)]
        assert cells == [f"{np.mean(ends[0]):.3f}", f"{np.mean(ends[1]):.3f}",
                         f"{d:+.3f} [{low:+.3f}, {high:+.3f}]"]


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


@pytest.mark.days(6, turn=0)
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


@pytest.mark.days(6, turn=0)
def test_a_run_of_the_page_by_hand(results):
    """The end of a run from its rows of the table, without our readers."""
    rows, _, _ = results
    name, row = next((name, row) for name, row in rows.items() if not row["failed"])
    titles, *lines = (figures.KEPT / "evals.csv").read_text().splitlines()
    column = titles.split(",").index("eval/toy/mean@1")
    rates = [float(line.split(",")[column]) for line in lines if line.startswith(f"{name},")]
    assert row["end"] == pytest.approx(np.mean(rates[-3:]))
    assert row["start"] == rates[0]
