"""What symptoms.py promises: rules do what the page writes, each is seen where it was made to
happen and not in a healthy run, and the documents show the same table."""

import functools
import json
import math
import random
import re
import statistics
import sys

import pytest
from conftest import ROOT

from command.main import main
from command import symptoms
from command.symptoms import SYMPTOMS
from study import logs

sys.path.append(str(ROOT / "bench"))      # last: bench/fit.py is not fit.py
import symptoms as made                                                     # noqa: E402

KEPT = made.read_kept()
PAGE = (ROOT / "docs" / "is-it-working.md").read_text()


@pytest.mark.parametrize("symptom", SYMPTOMS, ids=lambda symptom: symptom.name)
def test_each_symptom_was_made_to_happen_and_the_healthy_run_does_not_show_it(symptom):
    """The logs of results/symptoms: a rule that nobody has seen to fire is a guess."""
    shown = [run for run, rows in KEPT.items() if symptom.steps(rows)]
    assert shown and "healthy" not in shown
    assert made.columns_of(symptom) <= {column for row in KEPT[shown[0]] for column in row}


def test_what_a_broken_loop_shows_is_what_was_broken():
    """The run with a bug shows the row that names the bug; other rows may follow from it."""
    expected = {"wrong_sign": "the pass rate falls below its start",
                "shuffled": "the pass rate stays flat", "tiny_lr": "the pass rate stays flat",
                "one_sided": "sampler and trainer disagree",
                "never_pushed": "they drift apart without lag",
                "recomputed": "the ratio is 1 under lag", "no_gradient": "the gradient is zero",
                "two_kinds": "groups are all right or all wrong",
                "huge_lr": "the pass rate rose and fell", "late": "checks come late",
                "raises": "answers cannot be judged"}
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


def random_rows(columns, n):
    """Rows in which numbers are missing here and there. A column has the same order of magnitude
    for some steps, then another one: rules hold in some of them."""
    rows = []
    for step in range(n):
        if step % 8 == 0:
            size = {column: random.choice([0, *(2.0 ** k for k in range(-9, 6))])
                    for column in columns}
        rows.append({"step": step} | {column: size[column] * random.uniform(1, 1.2)
                                      for column in columns if random.random() < 0.9})
    return rows


def by_the_page(rule, row, before, rows):
    """Whether the rule, as the page writes and explains it, holds in `row`; before: the rows up to
    it. In plain loops, with statistics.mean where the program has windows of numpy."""
    def of(kind, column, n=1):
        def numbers(rows):
            return [row[column] for row in rows if column in row]
        so_far = numbers(before)
        if kind == "first":
            return statistics.mean(numbers(rows)[:n]) if len(numbers(rows)) >= n else math.nan
        if len(so_far) < n or kind != "best" and column not in row:
            return math.nan
        if kind == "best":
            return max(statistics.mean(so_far[i:i + n]) for i in range(len(so_far) - n + 1))
        return {"now": statistics.mean, "mean": statistics.mean,
                "median": statistics.median}[kind](so_far[-n:])
    kinds = ("now", "mean", "median", "first", "best")
    return eval(rule, {"abs": abs} | {kind: functools.partial(of, kind) for kind in kinds})


@pytest.mark.days(4, turn=2)
@pytest.mark.parametrize("symptom", SYMPTOMS, ids=lambda symptom: symptom.name)
def test_a_rule_does_what_the_page_writes(symptom, seed):
    """The program has windows of numpy."""
    random.seed(seed)
    rule = symptom.rule
    assert set(re.findall('"(.+?)"', rule)) == made.columns_of(symptom)
    made_up = [random_rows(made.columns_of(symptom) - {"step"}, random.randrange(15, 130))
               for _ in range(25)]
    for rows in (*KEPT.values(), *made_up):
        assert symptom.steps(rows) == [
            row["step"] for i, row in enumerate(rows)
            if by_the_page(rule, row, rows[:i + 1], rows)]


def test_too_few_steps_and_missing_columns_show_nothing():
    """A run that has just begun, or another project's log: no number, no alarm."""
    assert symptoms.found([]) == []
    assert symptoms.found([{"step": i} for i in range(100)]) == []
    assert SYMPTOMS[0].name == "nothing is ever right"
    assert SYMPTOMS[0].steps([{"step": i, "pass_rate": 0} for i in range(9)]) == []
    assert SYMPTOMS[0].steps([{"step": i, "pass_rate": 0} for i in range(11)]) == [9, 10]


def test_the_words_for_steps_cost_no_more_a_step_in_a_long_log():
    """Comparisons, not seconds: lists where sets belong would need the square of them."""
    class Step(int):
        compared = 0

        def __eq__(self, other):
            Step.compared += 1
            return int(self) == other
        __hash__ = int.__hash__
    cost = []
    for n in (1000, 4000):
        Step.compared = 0
        symptoms.ranges([Step(2 * i) for i in range(n)])
        cost.append(Step.compared)
    assert cost[1] <= 5 * cost[0] + 1000


def test_steps_are_told_as_ranges():
    steps = sorted(random.sample(range(60), 25))
    words = symptoms.ranges(steps).split(" and ")[0].split(", ")
    told = [step for word in words
            for step in range(int(word.split("-")[0]), int(word.split("-")[-1]) + 1)]
    assert told == steps[:len(told)] and len(words) <= 5


def test_each_row_of_the_pages_table_is_a_symptom():
    table = [line.split(" | ") for line in PAGE.splitlines()
             if line.startswith("| ") and '("' in line]
    assert [(cells[0][2:], cells[1], cells[2]) for cells in table] == [
        (s.name, f"`{s.column}`", f"`{s.rule}`") for s in SYMPTOMS] and len(table) >= 20
    assert all(len(cells) == 5 and all(cells) for cells in table)


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
        "step": 30, "compute/flops": 1.0, "eval/a/mean@4": 0.2, "held_out": 0.2}) + "\n")
    assert main(["--report", str(tmp_path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split(" (")[0] for line in out[1:]] == [
        "symptom: held-out problems lag behind, step 30",
        "symptom: sampler and trainer disagree, step 0",
        "symptom: few samples carry the step, step 4-5, 9"]
    assert "few samples carry the step, step 4-5, 9" in (tmp_path / "report.html").read_text()
    (tmp_path / "metrics.jsonl").write_text(json.dumps(rows[1]) + "\n")
    assert symptoms.told(symptoms.read(tmp_path)) == [
        "no symptom of docs/is-it-working.md, of 2 steps; most rules need 10, some 60"]


def test_a_reward_that_raises_for_every_answer_is_named_after_the_first_step(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps(
        {"step": 1, "pass_rate": 0.0, "verifier/error_frac": 1.0}) + "\n")
    (told,) = symptoms.told(symptoms.read(tmp_path))
    assert told.startswith("symptom: answers cannot be judged, step 1 (")


def test_a_gradient_of_zero_is_no_symptom_where_all_groups_of_a_step_are_equal(tmp_path):
    """GRPO without the filter trains on such a step: its advantages are 0."""
    for share, shown in (1.0, 0), (0.9, 1):
        (tmp_path / "metrics.jsonl").write_text(json.dumps({
            "step": 1, "grad_norm": 0., "tokens/trained": 7, "frac_reward_zero_std": share}) + "\n")
        assert len(symptoms.found(symptoms.read(tmp_path))) == shown


def test_harder_problems_that_are_only_evaluated_are_no_lag_of_the_held_out_ones(tmp_path):
    """`eval_tasks = "aime-24"` beside an easy training task: "learned by heart" was told of it."""
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(
        {"step": step, "pass_rate": 0.8}) + "\n" for step in range(1, 61)))
    row = {"eval/train/mean@4": 0.8, "eval/aime-24/mean@4": 0.1}
    for held_out, named in ((0.8, False), (0.3, True)):
        (tmp_path / "evals.jsonl").write_text("".join(json.dumps(
            {"step": step, "held_out": held_out} | row) + "\n" for step in range(0, 61, 20)))
        told = "\n".join(symptoms.told(symptoms.read(tmp_path)))
        assert ("held-out problems lag behind" in told) == named
