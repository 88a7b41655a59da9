"""The demo's committed predictions are what its committed logs give, and what the README says."""

import csv
import re
import sys

import numpy as np
import pytest
from conftest import ROOT
from made_runs import made, write_run

sys.path.append(str(ROOT / "bench"))      # last: bench/fit.py is not fit.py
import held_out                                                             # noqa: E402
from fitting.readers import read_curves                                   # noqa: E402
from fit import fit_curve                                                   # noqa: E402

DEMO = ROOT / "results" / "demo"


def committed():
    with open(DEMO / "errors.csv", newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def test_the_rows_are_those_of_the_protocol_from_its_first_to_its_last():
    """A run that is left out because of its result would be a lie."""
    order = re.findall(r"\b(8|9|1[0-2]):(1[5-9])\b", (DEMO / "PROTOCOL.md").read_text())
    told = {(row["toy"], row["seed"]) for row in committed()}
    with open(DEMO / "evals.csv", newline="") as file:
        kept = {line["run"] for line in csv.DictReader(file)} - {"toy0-seed0"}
    assert len(set(order)) == 25
    assert told == {(int(toy), int(seed)) for toy, seed in order[:len(told)]}
    assert kept == {f"toy{toy}-seed{seed}" for toy, seed in order[:len(told)]}
    assert len(committed()) == 2 * len(told)


def test_every_error_is_that_of_a_fit_to_the_first_part_of_the_log():
    """The forecasts by hand: fit up to the cut, look at the last five; carry three forward."""
    for row in committed():
        (curve,) = read_curves([f"{DEMO}/evals.csv:toy{row['toy']:g}-seed{row['seed']:g}"])
        early = curve.C <= row["cut"] * curve.C[-1]
        fit = fit_curve(curve.C[early], curve.R[early], bootstrap=0)
        measured = np.mean(curve.R[-5:])
        assert row["measured"] == pytest.approx(measured, abs=6e-5)
        assert row["error"] == pytest.approx(fit.curve(curve.C[-5:]).mean() - measured, abs=6e-5)
        assert row["naive_error"] == pytest.approx(curve.R[early][-3:].mean() - measured, abs=6e-5)


def test_one_run_of_them_gives_its_whole_row_again():
    """With the intervals, which take two thousand fits each: another CPU rounds them otherwise."""
    *_, at_30, at_50 = committed()
    run = f"{DEMO}/evals.csv:toy{at_30['toy']:g}-seed{at_30['seed']:g}"
    for row, expected in zip(held_out.rows_of(run), (at_30, at_50), strict=True):
        assert row == pytest.approx(expected, abs=1e-3)


def test_the_table_of_the_page_is_that_of_the_rows():
    """A row of the page is a run: what was measured, then each cut's error and the naive one's."""
    rows = {(row["toy"], row["seed"], row["cut"]): row for row in committed()}
    page = re.findall(r"^\| (\d+) \| (\d+) \| (.*) \|$", (DEMO / "README.md").read_text(), re.M)
    assert 2 * len(page) == len(rows)
    for toy, seed, cells in page:
        measured, *cells = cells.split(" | ")
        for cut, (predicted, error, where, naive) in ((.3, cells[:4]), (.5, cells[4:])):
            row = rows[int(toy), int(seed), cut]
            inside = row["lo"] <= row["measured"] <= row["hi"]
            assert where == ("inside" if inside else "**outside**")
            numbers = [measured, *re.findall(r"[0-9.]+", predicted), error, naive]
            assert [float(number) for number in numbers] == pytest.approx(
                [row[name] for name in ("measured", "predicted", "lo", "hi", "error",
                                        "naive_error")], abs=6e-4)


def test_the_readmes_figures_are_those_of_the_rows():
    told = (ROOT / "README.md").read_text()
    n, law, naive, held = held_out.summary(committed(), 0.5)
    cells = re.search(r"^\| \[25 of the demo\]\(.*?\), 5 toys \| (.*) \|$", told, re.M)[1]
    ours, its, _, intervals = cells.split(" | ")              # _: the line: test_public.py
    assert (ours, its) == (f"{law:.3f}"[1:], f"{naive:.3f}"[1:])
    assert intervals == f"{held * n:.0f} of {n}"


@pytest.mark.days(4, turn=1)
def test_the_readmes_later_rows_have_every_run_of_their_kind_and_todays_intervals():
    """Those that were missed as well: the calm runs' intervals, and 30% of the demo's."""
    import forecast
    told, rows = " ".join((ROOT / "README.md").read_text().split()), {}
    for run, (C, R, _, _) in forecast.read().items():
        for cut in {"demo": (0.5, 0.3), "calm": (0.5,)}.get(run[:4], ()):
            early = fit_curve(C, R, c_max=cut * C[-1])
            it, ahead = held_out.held_out(C, R, early), C[C > early.C[-1]][-5:]
            late = slice(-max(3, early.C.size // 2), None)      # an evaluation an amount here
            slope = np.polyfit(np.log(early.C[late]), early.R[late], 1)
            line = np.clip(np.polyval(slope, np.log(ahead)), 0, 1)
            rows.setdefault((run[:4], cut), []).append(
                (it["error"], it["naive_error"], line.mean() - it["measured"],
                 it["lo"] <= it["measured"] <= it["hi"]))
    with open(ROOT / "results/forecast/study_later.csv", newline="") as file:
        for row in csv.DictReader(file):
            if row["cut"] == "0.5" and row["collapsed"] == "0.0" and row["measured"]:
                ends = [float(row[name] or "nan") for name in ("lo_today", "measured", "hi_today")]
                rows.setdefault(("study", 0.5), []).append(
                    [float(row[way]) for way in ("error", "naive", "line")]
                    + [ends[0] <= ends[1] <= ends[2] if row["lo_today"] else np.nan])
    found = {}
    for kind, some in rows.items():
        *errors, held = np.array(some, float).T
        found[kind] = [f"{np.abs(way).mean():.3f}"[1:] for way in errors] + [
            f"{np.nansum(held):.0f} of {np.sum(held == held)}"]
    assert f"27 toys | {' | '.join(found['demo', 0.5])} |" in told and len(rows["demo", 0.5]) == 54
    assert f"10 toys | {' | '.join(found['calm', 0.5])} |" in told and len(rows["calm", 0.5]) == 20
    assert f"20 toys | {' | '.join(found['study', 0.5])} |" in told and \
        len(rows["study", 0.5]) == 222
    law, _, line, held = found["demo", 0.3]
    assert f"{line} and {law} on the 54 runs ({held.split()[0]} intervals hold)" in told


def test_ones_own_error_is_shown_beside_the_committed_ones(tmp_path):
    """A newcomer's .012 says nothing without the spread of others. Only errors of the same cut
    compare: from 30% of the compute every prediction is worse."""
    table = tmp_path / "errors.csv"
    table.write_text("toy,seed,cut,predicted,lo,hi,measured,error,naive_error\n" + "".join(
        f"3,{i},{cut},.8,.7,.9,.8,{error},.3\n" for cut, errors in (
            (0.5, (-0.9, 0.8, 0.0, -0.7)), (0.3, (0.0,) * 9)) for i, error in enumerate(errors)))
    run = write_run(tmp_path / "r", *made(n=25))
    assert re.fullmatch(r"error [+-]0\.\d{3}: 75% of the 4 runs in .*errors.csv cut at 0.5 have "
                        r"one as large or larger \(median 0.750\)", held_out.beside(run, table))
