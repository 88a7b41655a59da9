"""What symptoms.py promises: rules mean what their language says, each is seen where it was made to
happen and not in a healthy run, and the documents show the same table."""

import json
import math
import random
import statistics
import sys

import pytest
from conftest import ROOT

from command.main import main
from command import symptoms
from command.symptoms import SYMPTOMS, Symptom
from study import logs

sys.path.insert(0, str(ROOT / "bench"))
import symptoms as made                                                     # noqa: E402

KEPT = made.read_kept()
PAGE = (ROOT / "docs" / "is-it-working.md").read_text()


@pytest.mark.parametrize("symptom", SYMPTOMS, ids=lambda symptom: symptom.name)
def test_each_symptom_was_made_to_happen_and_the_healthy_run_does_not_show_it(symptom):
    """The logs of results/symptoms: a rule that nobody has seen to fire is a guess."""
    shown = [run for run, rows in KEPT.items() if symptom.steps(rows)]
    assert shown and "healthy" not in shown
    assert set(symptom.columns) <= {column for row in KEPT[shown[0]] for column in row}


def test_what_a_broken_loop_shows_is_what_was_broken():
    """The run with a bug shows the row that names the bug; other rows may follow from it."""
    expected = {"wrong_sign": "the pass rate falls below its start",
                "shuffled": "the pass rate stays flat", "tiny_lr": "the pass rate stays flat",
                "one_sided": "sampler and trainer disagree",
                "never_pushed": "they drift apart without lag",
                "recomputed": "the ratio is 1 under lag", "no_gradient": "the gradient is zero",
                "huge_lr": "the pass rate rose and fell", "late": "checks come late"}
    for run, name in expected.items():
        assert name in [s.name for s, _ in symptoms.found(KEPT[run])], run


def test_runs_without_lag_or_mistakes_raise_no_alarm(tmp_path):
    """Kept parts of the logs of healthy runs. The columns that are not kept cannot show anything;
    results/symptoms tells what the whole logs showed."""
    results = ROOT / "results"
    evals = logs.read(results / "demo/evals.csv") | logs.read(results / "stress/evals.csv")
    steps = logs.read(results / "stress/steps.csv")
    healthy = [name for name in evals if name.startswith(("toy", "on_policy"))]
    assert len(healthy) > 15
    for name in healthy:
        (tmp_path / name).mkdir()
        for log, rows in (("metrics", steps.get(name, [])), ("evals", evals[name])):
            (tmp_path / name / f"{log}.jsonl").write_text(
                "".join(json.dumps(row) + "\n" for row in rows))
        rows = symptoms.read(tmp_path / name)
        assert rows and symptoms.found(rows) == [], name


def random_rows(n=40):
    """Rows with two columns, of which numbers are missing here and there."""
    return [{"step": i} | {name: random.uniform(-1, 1) for name in ("a/b", "c")
                           if random.random() < 0.8} for i in range(n)]


@pytest.mark.parametrize("kind", ["mean", "median", "best", "first", "last", ""])
def test_a_rule_reads_its_columns_as_the_file_says(kind, seed):
    """Against plain loops over the steps that have the number."""
    random.seed(seed)
    rows = random_rows()
    rows[-1] |= {"a/b": random.random(), "c": -2.0}     # at least the last step shows it
    n = random.randrange(2, 7) if kind not in ("last", "") else 1
    values, expected, best = [], [], -math.inf
    whole = [row["a/b"] for row in rows if "a/b" in row]
    for row in rows:
        value = math.nan
        if "a/b" in row:
            values.append(row["a/b"])
            if len(values) >= n:
                last = values[-n:]
                best = max(best, sum(last) / n)
                value = {"mean": sum(last) / n, "median": statistics.median(last),
                         "": last[-1]}.get(kind, best)
        elif kind == "best" and best > -math.inf:
            value = best                            # what it was before
        if kind in ("first", "last"):
            value = sum(whole[:n]) / n if kind == "first" else whole[-1]
        if value > row.get("c", math.nan):
            expected.append(row["step"])
    term = f"{kind}{n if kind not in ('last', '') else ''}[a/b]"
    assert Symptom("", f"{term} > [c]", "", "").steps(rows) == expected != []


def test_too_few_steps_and_missing_columns_show_nothing():
    """A run that has just begun, or another project's log: no number, no alarm."""
    assert symptoms.found([]) == []
    assert symptoms.found([{"step": i} for i in range(100)]) == []
    assert Symptom("", "mean10[x] > 0", "", "").steps([{"step": 1, "x": 1}] * 9) == []


def test_steps_are_told_as_ranges():
    steps = sorted(random.sample(range(60), 25))
    words = symptoms.ranges(steps).split(" and ")[0].split(", ")
    told = [step for word in words
            for step in range(int(word.split("-")[0]), int(word.split("-")[-1]) + 1)]
    assert told == steps[:len(told)] and len(words) <= 5


def test_the_page_has_a_row_for_each_symptom_and_no_other():
    table = [line for line in PAGE.splitlines() if line.startswith("| ") and "[" in line]
    assert table == [
        f"| {s.name} | `{next(c for c in s.columns if c != 'step')}` | `{s.rule}` | {s.cause} | "
        f"{s.advice} |" for s in SYMPTOMS] and len(table) >= 20


def test_the_table_of_the_runs_is_what_the_logs_say():
    assert made.table() in (ROOT / "results" / "symptoms" / "README.md").read_text()
    assert set(KEPT) == set(made.RUNS)


def test_a_report_says_which_symptoms_a_run_shows_and_at_which_steps(tmp_path, capsys):
    """On the terminal and on the page; the held-out pass rate comes from the other log."""
    rows = [{"step": 0, "mismatch/fp32_head/mean_abs_dlogp": 0.5}, *(
        {"step": step, "pass_rate": 0.5, "ess": 0.2 if step in (4, 5, 9) else 1.0,
         "completions/mean_length": 9.0} for step in range(1, 31))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "evals.jsonl").write_text(json.dumps({
        "step": 30, "compute/flops": 1.0, "eval/a/mean@4": 0.1, "eval/b/mean@4": 0.3}) + "\n")
    assert main(["--report", str(tmp_path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split(" (")[0] for line in out[1:]] == [
        "symptom: held-out problems lag behind, step 30",
        "symptom: sampler and trainer disagree, step 0",
        "symptom: few samples carry the step, step 4-5, 9"]
    assert "few samples carry the step, step 4-5, 9" in (tmp_path / "report.html").read_text()
    (tmp_path / "metrics.jsonl").write_text(json.dumps(rows[1]) + "\n")
    assert symptoms.told(tmp_path) == ["no symptom of docs/is-it-working.md"]
