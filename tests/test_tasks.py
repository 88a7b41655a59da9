"""What tasks.py promises about problems, splits and prompts; marks are in test_verify.py.

Each test is named after the claim it checks; its docstring says what would go wrong without it.
"""

import ast
import doctest
import json
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import jinja2
import pyarrow
import pyarrow.parquet
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

import generated
import tasks
from config import Config
from sandbox import UnitTests
from tasks import Problem, TaskError, check_gold, load_task, prompt_ids
from verify import Marker, boxed_parts, verify

SUMS = {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2, "size": 60}


def write_jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def questions(problems):
    return {problem.question for problem in problems}


# ------------------------------------------------------------------------------------------------
# Problems of the toy


def test_toy_answers_agree_with_plain_arithmetic():
    """The answer comes from worked_steps; here the question is simply added up."""
    for problem in load_task("toy", "train", heldout=70):
        digits = [int(digit) for digit in problem.question.split("+")]
        assert problem.answer == str(sum(digits) % 10)
        assert problem.level == len(digits)


def test_toy_traces_are_right_at_every_step():
    """A warm start copies the traces, so one wrong step in them would be taught as truth."""
    for problem in load_task("toy", "heldout", heldout=70):
        thinking, answer = problem.trace.split("</think>")
        digits, total = problem.question.split("+"), 0
        for i, step in enumerate(thinking.split(";")):
            left, result = step.split("=")
            before, term = left.split("+")
            assert term == digits[i + 1] and before == (digits[0] if i == 0 else total)
            total = result
            assert (int(before) + int(term)) % 10 == int(result)
        assert i == len(digits) - 2 and answer == total == problem.answer


def test_toy_has_the_sizes_it_was_asked_for_and_equal_levels():
    """Held-out problems of the short level alone would show a pass rate of another task."""
    train, held = (load_task("toy", split, heldout=512) for split in tasks.SPLITS)
    assert (len(train), len(held)) == (2000, 512)
    for problems in (train, held):
        counts = Counter(problem.level for problem in problems)
        assert sorted(counts) == [3, 4, 5, 6, 7, 8, 9]
        assert max(counts.values()) - min(counts.values()) <= 2


def test_any_prefix_of_the_heldout_problems_has_all_levels_in_equal_parts():
    """Someone who evaluates on the first 70 must not evaluate on one level."""
    counts = Counter(problem.level for problem in load_task("toy", "heldout", heldout=512)[:70])
    assert set(counts.values()) == {10}


def test_a_short_level_has_no_more_problems_than_there_are_questions():
    """Two digits make 100 questions; asking for more must not repeat one."""
    options = {"min_digits": 2, "max_digits": 3, "size": 600}
    problems = load_task("toy", "train", heldout=0, options=options)
    assert Counter(p.level for p in problems) == {2: 100, 3: 300}
    assert len(questions(problems)) == 400


# ------------------------------------------------------------------------------------------------
# Splits


@pytest.mark.parametrize(
    ("spec", "options"), [("toy", {"size": 300}), ("reasoning_gym:chain_sum", SUMS)]
)
def test_train_and_heldout_share_no_question(spec, options):
    """A held-out question that was trained on measures memory."""
    train, held = (
        load_task(spec, split, heldout=33, options=options) for split in ("train", "heldout")
    )
    assert len(held) == 33 and len(train) == options["size"]
    assert not questions(train) & questions(held)


def test_the_split_does_not_depend_on_the_seed():
    """A model warm-started with one seed must not have seen another seed's held-out questions.

    The border of the hash moves a little between pools, so a handful may cross; a shuffled split
    would put a fifth of the common questions on the other side.
    """
    # 500 of 1,000 questions: much overlap
    options = {"min_digits": 3, "max_digits": 3, "size": 400}
    train = questions(load_task("toy", "train", heldout=100, seed=1, options=options))
    held = questions(load_task("toy", "heldout", heldout=100, seed=2, options=options))
    common = held & (train | questions(load_task("toy", "heldout", heldout=100, seed=1,
                                                  options=options)))
    assert len(common) > 30
    assert len(held & train) <= 0.1 * len(common)


def test_a_smaller_heldout_set_is_part_of_a_larger_one(tmp_path):
    """A quick evaluation on fewer problems must not test on what the full one trains on."""
    lines = [{"question": f"{i}", "answer": "1"} for i in range(97)]
    path = write_jsonl(tmp_path / "a.jsonl", lines)
    small, large = (load_task(path, "heldout", heldout=n) for n in (7, 31))
    assert questions(small) < questions(large)


def test_the_split_of_a_file_ignores_the_order_of_its_lines(tmp_path):
    """Sorting or appending to a file must not move trained problems among the held-out ones."""
    records = [{"question": f"{i}+1", "answer": f"{i + 1}"} for i in range(53)]
    there = load_task(write_jsonl(tmp_path / "x.jsonl", records), "heldout", heldout=11)
    back = load_task(write_jsonl(tmp_path / "x.jsonl", records[::-1]), "heldout", heldout=11)
    assert there == back


def test_a_repeated_question_is_kept_once_and_said(tmp_path):
    """The naive split by line number puts the two copies on both sides."""
    records = [{"question": f"{i}  + 1", "answer": f"{i + 1}"} for i in range(20)]
    records += [{"question": f"{i} + 1", "answer": f"{i + 1}"} for i in range(5)]
    with pytest.warns(UserWarning, match="5 of 25 lines repeat a question"):
        train = load_task(write_jsonl(tmp_path / "r.jsonl", records), "train", heldout=6)
    with pytest.warns(UserWarning):
        held = load_task(str(tmp_path / "r.jsonl"), "heldout", heldout=6)
    seen = [" ".join(problem.question.split()) for problem in train + held]
    assert len(seen) == len(set(seen)) == 20


def test_ids_are_unique_and_the_same_in_every_process():
    """Pass rates are kept by id over a resume; Python's own hash() differs between processes."""
    code = "import tasks; print(*[p.id for p in tasks.load_task('toy', 'heldout', heldout=9)])"
    fresh = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                           cwd=tasks.__file__.removesuffix("tasks.py")).stdout.split()
    ours = [problem.id for problem in load_task("toy", "heldout", heldout=9)]
    assert fresh == ours and len(set(ours)) == 9


def test_both_splits_come_from_one_reading(tmp_path, monkeypatch):
    """DeepCoder is gigabytes: to read, parse and hash it again for the other half takes minutes."""
    a = write_jsonl(tmp_path / "a.jsonl", [{"question": f"{i}+1", "answer": "1"} for i in range(9)])
    read = []
    monkeypatch.setattr(tasks, "jsonl_records", lambda *args, reader=tasks.jsonl_records: (
        read.append(args) or reader(*args)))
    both = tasks.load_splits(a, heldout=4)
    assert len(read) == 1 and both == [load_task(a, split, heldout=4) for split in tasks.SPLITS]


def test_a_run_without_a_held_out_problem_short_enough_is_refused_whatever_else_is_evaluated(
        tmp_path):
    """The curve is theirs: its mean over none of them would fail after hours."""
    a = write_jsonl(tmp_path / "a.jsonl", [{"question": "x" * n, "answer": "1"}
                                           for n in range(1, 10)])
    b = write_jsonl(tmp_path / "b.jsonl", [{"question": "y", "answer": "1"}])

    class Letters:
        chat_template = eos_token_id = None

        def __call__(self, text):
            return {"input_ids": list(text)}
    tokenizer = Letters()
    held, = load_task(a, "heldout", heldout=1)
    longest = len(tokenizer(f"{held.question}\n\nAnswer:")["input_ids"])
    config = Config(task=a, heldout_prompts=1, eval_tasks=b, long_prompts="skip",
                    prompt_tokens=longest)
    found = tasks.questions_of(config, tokenizer, None)
    assert held.id in found.heldout and len(found.heldout) == 2 and found.curve_tasks == {"a"}
    assert found.counts["problems/too_long"] == 9 - len(held.question)
    config.prompt_tokens -= 1
    with pytest.raises(TaskError, match=f"prompt_tokens = {longest - 1}: no held-out problem"):
        tasks.questions_of(config, tokenizer, None)


# ------------------------------------------------------------------------------------------------
# Mixes


def two_files(tmp_path):
    for name, count in (("a", 90), ("b", 50)):
        records = [{"question": f"{name}{i}", "answer": str(i)} for i in range(count)]
        write_jsonl(tmp_path / f"{name}.jsonl", records)
    return f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl"


def test_an_unweighted_mix_trains_on_everything(tmp_path):
    """And holds out equally from both parts."""
    a, b = two_files(tmp_path)
    held = load_task(f"{a}+{b}", "heldout", heldout=20)
    train = load_task(f"{a}+{b}", "train", heldout=20)
    assert Counter(p.task for p in held) == {"a": 10, "b": 10}
    assert Counter(p.task for p in train) == {"a": 80, "b": 40}


def test_a_weighted_mix_has_its_shares_in_both_splits(tmp_path):
    """The mean over held-out problems must be the mean over the training distribution."""
    a, b = two_files(tmp_path)
    held = load_task(f"{a}:0.25+{b}:0.75", "heldout", heldout=20)
    with pytest.warns(UserWarning, match="73 of 85 problems of .* are left out to keep the shares"):
        train = load_task(f"{a}:0.25+{b}:0.75", "train", heldout=20)
    assert Counter(p.task for p in held) == {"a": 5, "b": 15}
    assert Counter(p.task for p in train) == {"a": 12, "b": 35}  # all 35 of b, a third of that of a


def test_a_question_held_out_by_one_part_is_trained_on_by_none(tmp_path):
    """Two files that overlap hold out different questions unless somebody looks."""
    both = [{"question": f"q{i}", "answer": str(i)} for i in range(40)]
    only_a = [{"question": f"a{i}", "answer": "1"} for i in range(40)]
    a = write_jsonl(tmp_path / "a.jsonl", both + only_a)
    b = write_jsonl(tmp_path / "b.jsonl", both)
    train, held = (load_task(f"{a}+{b}", split, heldout=30) for split in ("train", "heldout"))
    assert not questions(train) & questions(held)
    assert len(held) == 30


def test_options_of_a_mix_go_to_their_part():
    """"max_terms" means nothing to the toy."""
    options = {"toy": {"size": 30, "max_digits": 4}, "reasoning_gym:chain_sum": SUMS}
    mix = load_task("toy+reasoning_gym:chain_sum", "train", heldout=10, options=options)
    assert Counter(p.task for p in mix) == {"toy": 30, "reasoning_gym:chain_sum": 60}


# ------------------------------------------------------------------------------------------------
# Generated problems


def test_chain_sum_answers_and_traces_agree_with_python():
    """eval of the question is the oracle; the trace must reach the same number step by step."""
    for problem in load_task("reasoning_gym:chain_sum", "train", heldout=13, options=SUMS):
        expression = re.search(r"problem: (.*) =", problem.question).group(1)
        assert eval(expression) == int(problem.answer)
        steps = problem.trace.partition("</think>")[0].split("; ")
        assert all(eval(step.replace("=", "==")) for step in steps)
        assert len(steps) + 1 == problem.level == len(expression.split()) // 2 + 1
        assert verify(problem.trace, problem.answer) == (1.0, "correct")


def test_neighboring_seeds_draw_different_problems():
    """The generator's problem i of seed s is problem i - 1 of seed s + 1: naive seeds share all."""
    options = {"size": 50, "min_digits": 4}
    one, two = (
        questions(load_task("reasoning_gym:chain_sum", "train", heldout=5, seed=s, options=options))
        for s in (1, 2)
    )
    assert len(one & two) < 5


def test_a_generator_that_runs_dry_says_so():
    """Two one-digit terms have 200 questions; 300 cannot be had, and nobody should think so."""
    options = {"max_terms": 2, "max_digits": 1, "size": 300}
    with pytest.warns(UserWarning, match="only [0-9]+ distinct problems"):
        problems = load_task("reasoning_gym:chain_sum", "train", heldout=50, options=options)
    assert len(questions(problems)) == len(problems) <= 150


def test_whole_numbers_of_a_generator_are_marked_by_value_the_rest_by_its_own_rule():
    """The fast path is for numbers; "4b8" is none, though "418" from the same generator is one."""
    for name, kinds in (("count_bits", {"math"}), ("base_conversion", {"math", "gym"})):
        problems = load_task(f"reasoning_gym:{name}", "train", heldout=3, options={"size": 20})
        assert {p.kind for p in problems} == kinds
        assert check_gold(problems) == problems


NO_GOLD = {"boxnet", "rush_hour"}  # not even an example of a right answer
# What a lazy policy would find: each of the last three pleases some generator's own rule.
LAZY = ["No such answer.", "[]", "777.77", "0", "nan", "4*6*1*1"]


def parts(text):
    """"0.0" and "0", "6*4*1/1" and "4*6*1*1" are one answer here: the same numbers and words."""
    return {part.strip("0") for part in re.findall(r"\w+", text or "")}


@pytest.fixture(scope="module")
def of_all_generators():
    """{generator: two problems of it}, of all that there are but "composite"."""
    from reasoning_gym.factory import DATASETS

    seed = time.time_ns() % 10**5
    print("seed", seed)
    return {name: load_task(f"reasoning_gym:{name}", "train", heldout=0, seed=seed,
                            options={"size": 2}) for name in DATASETS if name != "composite"}


def test_every_generator_marks_its_own_answers_right_and_others_wrong(of_all_generators):
    """Most generators have many right answers to a problem, or answers in a form of their own.

    The gold answer alone, in a box where its braces allow one, and in a sentence where it is one
    line without a period; an answer in the thinking alone; and what is right for nothing.
    """
    assert len(of_all_generators) == 105
    without_gold = set()
    for name, problems in of_all_generators.items():
        golds = [tasks.as_output(p) if p.kind == "gym" else p.answer for p in problems]
        for problem, gold in zip(problems, golds, strict=True):
            if gold is None:
                without_gold.add(name)
                continue
            said = [f"<think>{LAZY[0]}</think>{gold}"]
            if boxed_parts(rf"\boxed{{{gold}}}") == [gold]:
                said += [rf"I am sure: \boxed{{{gold}}}."]
            if not re.search(r"[\n.$*`_]|^[-+:]|\\boxed", gold):
                said += [f"The answer is {gold}.", f"**Answer:** {gold}"]
            for text in said:
                assert verify(text, problem.answer, problem.kind)[1] == "correct", (name, text)
            draft = f"{gold}</think>{LAZY[0]}"
            assert verify(draft, problem.answer, problem.kind)[0] == -1, name
        for problem, gold in zip(problems, golds, strict=True):
            for wrong in LAZY:
                if parts(wrong) != parts(gold):
                    reward, _ = verify(wrong, problem.answer, problem.kind)
                    assert reward == -1, (name, wrong, problem)
    # The example of the one may be trivial, the integral of the other unsolved, once in 60 times.
    assert NO_GOLD <= without_gold <= NO_GOLD | {"propositional_logic", "intermediate_integration"}


def test_a_mix_of_mazes_without_gold_answers_passes_the_gold_check(of_all_generators):
    """There is nothing to check where the generator tells no answer, and no reason to stop."""
    problems = [p for name in (*NO_GOLD, "rubiks_cube", "sudoku") for p in of_all_generators[name]]
    assert check_gold(problems) == problems


def test_partial_credit_is_no_credit(of_all_generators):
    """The rules give 0.05 for a try and 0.9 for a sudoku in another layout; a reward is +1 or -1.

    Any order of moves that reaches the goal in as few is right, though only one is the gold answer.
    """
    import reasoning_gym

    problem = of_all_generators["quantum_lock"][0]
    sudoku = of_all_generators["sudoku"][0]
    spaced = tasks.as_output(sudoku).replace(" ", "  ")
    rule = reasoning_gym.create_dataset("sudoku", size=1, seed=1).score_answer
    assert 0 < rule(spaced, ast.literal_eval(sudoku.answer)["entry"]) < 1
    assert verify(spaced, sudoku.answer, "gym")[0] == -1
    integral = of_all_generators["simple_integration"][0]
    asked = ast.literal_eval(integral.answer)["entry"]["metadata"]
    restated = f"Integral({asked['integrand']}, {asked['variable']})"
    assert verify(restated, integral.answer, "gym")[0] == -1
    assert verify(r"\boxed{A} or \boxed{B}", problem.answer, "gym")[1] == "several answers"


HOSTILE_ANSWERS = {
    "countdown": "exec('import os; os.write(1, b\"correct\")')",
    "puzzle24": "(1).__class__.__base__.__subclasses__()",
    "simple_integration": "open('{canary}', 'w').write('x')",
    "intermediate_integration": "[f for f in [open('{canary}', 'w')]][0]",
    "polynomial_multiplication": "lambda: exit(0)",
    "n_queens": "[[open('{canary}', 'w')]]", "binary_matrix": "[[open('{canary}', 'w')]]",
    "spiral_matrix": "[open('{canary}', 'w')]", "string_insertion": "[str(open('{canary}', 'w'))]",
}  # fmt: skip


def test_no_rule_evaluates_an_answer_as_a_program(of_all_generators, tmp_path):
    """Nine rules call eval on what the model wrote: it could mark itself, or delete the run.

    Read in the source of the installed package, so that a tenth one is noticed.
    """
    import inspect

    from reasoning_gym.factory import DATASETS

    calls = re.compile(r"(?<![\w.])(?:eval|exec)\(answer|(?:sp|sympy)\.parse_expr\(answer"
                       r"|(?<![\w.])parse_expr\(answer|sympify\(|literal_eval\(")
    found = {name for name, (source, _) in DATASETS.items()
             if calls.search(inspect.getsource(source))}
    assert found == set(generated.EVALUATED) == set(HOSTILE_ANSWERS)
    canary = tmp_path / "canary"
    for name, text in HOSTILE_ANSWERS.items():
        for problem in of_all_generators[name]:
            assert not generated.score(text.replace("{canary}", str(canary)), problem.answer)
    assert not canary.exists()


def test_a_rule_that_does_not_end_costs_its_sample_and_no_other(of_all_generators):
    """The rules of others run in worker processes with a deadline, as SymPy does."""
    countdown, sudoku = (of_all_generators[name][0] for name in ("countdown", "sudoku"))
    items = [(tasks.as_output(sudoku), sudoku.answer, "gym"),
             ("9**9**9**9**9", countdown.answer, "gym")]
    with Marker(workers=1, deadline_s=2.0) as marker:
        assert marker.mark(items).reasons == ["correct", "timeout"]


def test_composite_is_refused_and_near_names_are_told():
    """It takes objects of Python as options, and a mix does the same."""
    for name, message in (("composite", "only deals out others: name them in a mix"),
                          ("sudokus", "did you mean 'reasoning_gym:sudoku'"),
                          ("nothing_like_it", "unknown: Reasoning Gym has 106 generators")):
        with pytest.raises(TaskError, match=message):
            load_task(f"reasoning_gym:{name}", "train", heldout=3, options={"size": 2})
    for spec, options, near in (("reasoning_gym:chain_sum", {"max_term": 2}, "max_terms"),
                                ("toy", {"max_digit": 2}, "max_digits"),
                                ("some.jsonl", {"anwser": "a"}, "answer")):
        with pytest.raises(TaskError, match=f"is unknown to '{spec}', did you mean '{near}'"):
            load_task(spec, "train", heldout=3, options=options)


# ------------------------------------------------------------------------------------------------
# Files and data sets. There is no hub here: folders of the same name and shape stand in for it.


def write_data_set(repository, files):
    """A data set as on the hub: {"config/split": rows}, with the page that names its configs."""
    page = "---\nconfigs:\n"
    for name, rows in files.items():
        config, split = name.split("/")
        path = Path(repository) / config / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    for config in dict.fromkeys(name.split("/")[0] for name in files):
        page += f"- config_name: {config}\n  data_files:\n"
        for split in (name.split("/")[1] for name in files if name.startswith(config + "/")):
            page += f"  - split: {split}\n    path: {config}/{split}-*\n"
    (Path(repository) / "README.md").write_text(page + "---\n")


ADD = "a = int(input())\nprint(a + 1)"
DATA_SETS = {
    "polaris-53k": ({"default/train": [
        {"problem": "What is 3/4 of 8?", "answer": "6", "difficulty": "3/8"},
        {"problem": "Solve $x^2=5$.", "answer": r"\pm\sqrt{5}", "difficulty": "7/8"}]},
        [("6", 3), (r"\pm\sqrt{5}", 7)]),
    "gsm8k": ({"main/train": [
        {"question": "Tom has 3 apples and 4 pears. How many?",
         "answer": "3 + 4 = <<3+4=7>>7\n#### 7"}], "main/test": [
        {"question": "And 1,200 more?", "answer": "#### 1,207"}]}, [("7", 0)]),
    "gsm8k-test": ({"main/train": [{"question": "a", "answer": "#### 1"}], "main/test": [
        {"question": "And 1,200 more?", "answer": "so\n#### 1,207"}]}, [("1,207", 0)]),
    "math": ({"default/train": [
        {"problem": "Half of one?", "level": "Level 5", "type": "Algebra",
         "solution": r"We halve. So $\boxed{\frac{1}{2}}$."}]}, [(r"\frac{1}{2}", 5)]),
    "math-500": ({"default/test": [
        {"problem": "Half of two?", "solution": r"$\boxed{1}$", "answer": "1", "subject": "Algebra",
         "level": 2, "unique_id": "test/algebra/1.json"}]}, [("1", 2)]),
    "dapo-17k": ({"en/train": [
        {"prompt": "How many?", "solution": "34", "data_source": "math_dapo",
         "reward_model": {"ground_truth": "34", "style": "rule"}}], "cn/train": [
        {"prompt": "?", "solution": "1", "data_source": "math_dapo",
         "reward_model": {"ground_truth": "1", "style": "rule"}}]}, [("34", 0)]),
    "aime-24": ({"default/train": [
        {"id": 60, "problem": "Find it.", "solution": "...", "answer": "204", "year": "2024"}]},
        [("204", 0)]),
    "aime-25": ({"default/test": [{"problem": "Find it.", "answer": "070", "id": "0"}]},
                [("070", 0)]),
    "deepcoder": ({
        "primeintellect/train": [
            {"problem": "Add one.", "solutions": [f"```python\n{ADD}\n```"], "tests": json.dumps([
                {"type": "stdin_stdout", "input": "1\n", "output": "2\n"},
                {"type": "stdin_stdout", "input": "41\n", "output": "42\n"}])},
            {"problem": "Write add.", "solutions": ["def add(a, b): return a + b"],
             "tests": json.dumps([{"type": "function_call", "fn_name": "add", "input": [1, 2],
                                   "output": 3}])}],
        "taco/train": [
            {"problem": "Write twice.", "solutions": ["def twice(x): return 2 * x"],
             "tests": json.dumps({"fn_name": "twice", "inputs": [[2], [3]],
                                  "outputs": [[4], [6]]})},
            {"problem": "Add one, in lines.", "solutions": [ADD], "tests": json.dumps(
                {"inputs": [["1"], ["2"]], "outputs": [["2"], ["3"]]})}],
        "lcbv5/train": [
            {"problem": "Write total.", "solutions": [
                "class Solution:\n    def total(self, xs, k): return sum(xs) + k"],
             "tests": json.dumps([{"testtype": "functional", "input": "[1, 2]\n4", "output": "7",
                                   "metadata": {"func_name": "total"}}])}]},
        [(UnitTests(("41\n", "1\n"), ("42\n", "2\n")).to_json(), 0),
         (UnitTests(([1, 2],), (3,), "add").to_json(), 0),
         (UnitTests(([2], [3]), ([4], [6]), "twice").to_json(), 0),
         (UnitTests(("1", "2"), ("2", "3")).to_json(), 0),
         (UnitTests(([[1, 2], 4],), (7,), "total").to_json(), 0)]),
}  # fmt: skip


@pytest.mark.parametrize("name", tasks.PRESETS)
def test_a_preset_reads_its_data_set(name, tmp_path, monkeypatch):
    """A column that was renamed, or the test split in training, would show in no error message.

    Every gold answer passes its own verifier; for programs that means that the solution which
    comes with the problem passes the unit tests in the form we have read them.
    """
    monkeypatch.chdir(tmp_path)
    files, expected = DATA_SETS[name]
    repository = tasks.PRESETS[name]["repository"]
    write_data_set(repository, files)
    problems = tasks.load_evaluation(name)
    assert [(p.answer, p.level) for p in problems] == expected
    assert {p.task for p in problems} == {name}
    for problem in problems:        # nobody can guess the name of the function that is called
        tests = json.loads(problem.answer) if problem.kind == "code" else {}
        assert f"`{tests['fn_name']}`" in problem.question if tests.get("fn_name") else (
            ("standard input" in problem.question) == (problem.kind == "code"))
    with Marker(unsafe_code=True) as marker:
        assert check_gold(problems, marker) == problems
    # By its own name on the hub it is read the same way, and shown under the short name.
    if tasks.PRESETS[name].get("split") != "test" or name == "aime-25":
        same = tasks.load_evaluation(f"hf:{repository}")
        assert [p.answer for p in same] == [p.answer for p in problems]
        assert {p.task for p in same} == {repository.split("/")[1]}


def test_any_data_set_is_read_with_names_of_columns(tmp_path, monkeypatch):
    """"prompt.0.content" looks into the lists and tables that data sets for chat have."""
    monkeypatch.chdir(tmp_path)
    write_data_set("someone/sums", {"default/validation": [
        {"messages": [{"role": "user", "content": f"{i} + 1?"}],
         "reward_model": {"ground_truth": str(i + 1)}} for i in range(30)]})
    options = {"split": "validation", "question": "messages.0.content",
               "answer": "reward_model.ground_truth"}
    train, held = (load_task("hf:someone/sums", split, heldout=7, options=options)
                   for split in ("train", "heldout"))
    assert (len(train), len(held)) == (23, 7) and not questions(train) & questions(held)
    for problem in train + held:
        assert int(problem.answer) == int(problem.question.split()[0]) + 1
    with pytest.raises(TaskError, match="cannot be loaded: .*train"):
        load_task("hf:someone/sums", "train", heldout=7)


def test_records_of_a_data_set_that_cannot_be_used_are_counted(tmp_path, monkeypatch):
    """Left out in silence, half a data set may be missing and nobody would know."""
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"q{i}", "answer": str(i)} for i in range(9)]
    rows += [{"question": "q3", "answer": "4"}, {"question": "", "answer": "1"},
             {"question": "none", "answer": None}, {"question": "q1", "answer": "1"}]
    write_data_set("someone/mess", {"default/train": rows})
    with pytest.warns(UserWarning, match="3 of 13 records are left out; the first: row 10: one qu"):
        problems = tasks.load_evaluation("hf:someone/mess")
    assert questions(problems) == {f"q{i}" for i in range(9) if i != 3}
    write_data_set("someone/nothing", {"default/train": rows[10:12]})
    with pytest.raises(TaskError, match="has no problem that can be used; the first: row 1: field"):
        tasks.load_evaluation("hf:someone/nothing")


def test_parquet_and_jsonl_are_the_same_problems(tmp_path):
    """A local file in either form, with the columns it happens to have."""
    rows = [{"problem": f"{i} + 1?", "solution": rf"so \boxed{{{i + 1}}}", "difficulty": f"{i}/8"}
            for i in range(12)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "mine.parquet")
    write_jsonl(tmp_path / "mine.jsonl", rows)
    options = {"question": "problem", "answer": "solution", "form": "boxed", "level": "difficulty"}
    one, two = (load_task(f"{tmp_path}/mine.{kind}", "train", heldout=5, options=options)
                for kind in ("parquet", "jsonl"))
    assert one == two and all(int(p.answer) == p.level + 1 for p in one)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(TaskError, match="broken.parquet' cannot be read"):
        load_task(f"{tmp_path}/broken.parquet", "train", heldout=5)


def test_long_lists_of_unit_tests_keep_their_longest_inputs():
    """As DeepCoder does: the small cases seldom fail a program that passes the large ones."""
    pairs = [{"input": "x" * i, "output": str(i)} for i in range(1, 40)]
    kept = tasks.unit_tests(pairs)
    assert kept.outputs == tuple(str(i) for i in range(39, 24, -1))


@pytest.mark.parametrize(
    ("value", "message"),
    [("{", "Expecting"), ({"tests": []}, 'a table with "inputs"'), ([], "call 0 functions"),
     ([1], "must be a table"), ({"inputs": ["1"], "outputs": None}, "zip"),
     ([{"type": "function_call", "fn_name": "f", "input": [1], "output": 1},
       {"input": "1", "output": "1"}], "call 2 functions"),
     ([{"input": "1"}], "must be text")],
)  # fmt: skip
def test_unit_tests_in_no_known_form_are_refused(value, message):
    """Guessing would mark every program wrong, or every program right."""
    with pytest.raises(ValueError, match=message):
        tasks.unit_tests(value)


def test_questions_of_an_evaluation_set_leave_training_and_it_says_so(tmp_path):
    """Training on the test is the oldest way to a good curve; copies differ in their spaces."""
    train = load_task(write_jsonl(tmp_path / "t.jsonl", [
        {"question": f"What is  {i}?", "answer": str(i)} for i in range(20)]), "train", heldout=3)
    asked = write_jsonl(tmp_path / "e.jsonl", [
        {"question": f"What is {i}?", "answer": str(i)} for i in range(15, 30)])
    evaluation = tasks.load_evaluation(asked)
    with pytest.warns(UserWarning, match="questions of an evaluation set"):
        kept = tasks.without(train, evaluation)
    assert {int(p.answer) for p in kept} == {int(p.answer) for p in train if int(p.answer) < 15}
    assert tasks.without(kept, evaluation) == kept


# ------------------------------------------------------------------------------------------------
# The gold answers


def test_the_gold_check_names_the_first_problem_that_fails():
    """A verifier that cannot mark its own gold answer right would train on noise."""
    good = Problem("x/1", "x", "3+4", "7")
    with pytest.raises(TaskError, match=r"problem x/2: its own answer .* is marked 'error'"):
        check_gold([good, *(Problem(f"x/{i}", "x", "1/3?", r"0.\overline{3}") for i in (2, 3))])
    with pytest.raises(TaskError, match=r"problem x/4: its own trace .* is marked 'wrong'"):
        check_gold([good, Problem("x/4", "x", "3+4", "7", trace="3+4=8</think>8")])
    check_gold([good, Problem("x/5", "x", "sky?", "blue", kind="exact")])


def test_a_share_of_bad_gold_answers_is_left_out_and_said():
    """Real data sets have answers that nobody can check; a run should not stop for one of them."""
    problems = [Problem(f"x/{i}", "x", f"{i}+1", str(i + 1)) for i in range(9)]
    bad = Problem("x/bad", "x", "see figure", r"0.\overline{3}")
    with pytest.warns(UserWarning, match="1 of 10 problems are left out.*x/bad"):
        assert check_gold([*problems[:4], bad, *problems[4:]], max_dropped=0.1) == problems
    with pytest.raises(TaskError, match="x/bad"):
        check_gold([*problems, bad], max_dropped=0.09)


def test_unit_tests_and_solutions_are_part_of_the_gold_check():
    """Unit tests in another form make every program wrong; so may a solution that fails them."""
    answer = UnitTests(("1",), ("2",)).to_json()
    problem = Problem("x/1", "x", "add one", answer, kind="code")
    assert check_gold([problem]) == [problem]
    with pytest.raises(TaskError, match="problem x/2: .* must be lists, and not empty"):
        check_gold([Problem("x/2", "x", "?", '{"inputs": [], "outputs": []}', kind="code")])
    for step, right in ((1, True), (2, False)):
        trace = f"</think>```python\nprint(int(input()) + {step})\n```"
        solved = [Problem("x/3", "x", "add one", answer, kind="code", trace=trace)]
        with Marker(unsafe_code=True) as marker:
            if right:
                assert check_gold(solved, marker) == solved
            else:
                with pytest.raises(TaskError, match="its own trace .* is marked 'wrong'"):
                    check_gold(solved, marker)


def test_an_empty_list_of_problems_fails_the_gold_check():
    """"All zero problems are right" is true and useless."""
    with pytest.raises(TaskError, match="the task is empty"):
        check_gold([])


# ------------------------------------------------------------------------------------------------
# Prompts

SYSTEM = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<bot>{% endif %}"
)
DROPS_SYSTEM = "{% for m in messages if m.role == 'user' %}<user>{{ m.content }}{% endfor %}<bot>"
REFUSES = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
REFUSES_SYSTEM = REFUSES + SYSTEM


def letters_tokenizer(template=None):
    """A tokenizer of single characters, so that decoding shows the prompt as it is."""
    vocabulary = {chr(i): i for i in range(1, 128)} | {"<unk>": 0}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", model_max_length=16
    )
    fast.chat_template = template
    return fast


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (SYSTEM, "<system>Think.<user>1+1<bot>"),
        (DROPS_SYSTEM, "<user>Think.\n\n1+1<bot>"),
        (REFUSES_SYSTEM, "<user>Think.\n\n1+1<bot>"),
        (None, "Think.\n\n1+1\n\nAnswer:"),
    ],
)
def test_the_instruction_arrives_whatever_the_template(template, expected):
    """Some templates drop a system message silently: the model would never be told to think."""
    tokenizer = letters_tokenizer(template)
    ids = prompt_ids(tokenizer, Problem("x/1", "x", "1+1", "2"), "Think.")
    assert "".join(map(chr, ids)) == expected and all(type(i) is int for i in ids)


@pytest.mark.parametrize("template", [SYSTEM, DROPS_SYSTEM, REFUSES_SYSTEM])
def test_without_an_instruction_the_prompt_is_the_question_alone(template):
    """An empty system message is not the same as none."""
    ids = prompt_ids(letters_tokenizer(template), Problem("x/1", "x", "1+1", "2"))
    assert "".join(map(chr, ids)) == "<user>1+1<bot>"


@pytest.mark.parametrize("template", [SYSTEM, None])
def test_a_long_prompt_is_never_cut(template):
    """model_max_length is 16 here; a question cut in silence cannot be answered."""
    ids = prompt_ids(letters_tokenizer(template), Problem("x/1", "x", "1+" * 500 + "1", "501"))
    assert len(ids) > 1000


# The templates of three families, shortened to what can go wrong with them: Qwen's has a default
# system message, a switch for thinking, and no token at the start; Llama's writes the token at the
# start itself, which its tokenizer adds as well; SmolLM's puts a system message of its own where
# there is none.
QWEN = (
    "{% if messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n"
    "{% endif %}{% for m in messages if m.role != 'system' %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}"
    "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
SMOL = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM<|im_end|>\n{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FAMILIES = {
    "qwen": (QWEN, ["<|im_start|>", "<|im_end|>", "<think>", "</think>"], None, "<|im_end|>"),
    "llama": (LLAMA, ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                      "<|eot_id|>"],
              "<|begin_of_text|>", "<|eot_id|>"),
    "smollm": (SMOL, ["<|im_start|>", "<|im_end|>", "<|endoftext|>"], None, "<|im_end|>"),
}  # fmt: skip


def family_tokenizer(name, base=False):
    """Byte-level pairs and special tokens, as all three have; a base model has no template."""
    template, special, start, end = FAMILIES[name]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(["What is 3 plus 4? Think step by step. assistant user system"],
                                  trainers.BpeTrainer(special_tokens=special, vocab_size=330,
                                                      show_progress=False, initial_alphabet=
                                                      pre_tokenizers.ByteLevel.alphabet()))
    if start:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{start} $A", special_tokens=[(start, tokenizer.token_to_id(start))])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=start, eos_token=end)
    fast.chat_template = None if base else template
    return fast


@pytest.mark.parametrize("instruction", ["", "Think step by step."])
@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_gets_its_own_format_and_every_special_token_once(name, instruction):
    """Two tokens at the start, the classic slip with Llama, are a prompt the model never saw."""
    tokenizer = family_tokenizer(name)
    template, special, start, end = FAMILIES[name]
    problem = Problem("x/1", "x", "What is 3 plus 4? \u03c0 \u2260 3", "7")
    ids = prompt_ids(tokenizer, problem, instruction)
    text = tokenizer.decode(ids)
    messages = [{"role": "user", "content": problem.question}]
    if instruction:
        messages.insert(0, {"role": "system", "content": instruction})
    environment = jinja2.Environment()
    environment.filters["trim"] = str.strip
    assert text == environment.from_string(template).render(
        messages=messages, add_generation_prompt=True, bos_token=start)
    assert text.rstrip("\n").endswith(("assistant", "assistant<|end_header_id|>"))
    for token in special:       # each is one token of the vocabulary, not a spelling of it
        assert ids.count(tokenizer.convert_tokens_to_ids(token)) == text.count(token)
    assert start is None or text.count(start) == 1
    assert instruction in text and text.count(problem.question) == 1


@pytest.mark.parametrize("name", FAMILIES)
def test_a_base_model_of_each_family_gets_the_plain_format(name):
    """No template, no roles; the token at the start where the tokenizer has one."""
    tokenizer = family_tokenizer(name, base=True)
    start = FAMILIES[name][2] or ""
    ids = prompt_ids(tokenizer, Problem("x/1", "x", "What is 3 plus 4?", "7"), "Think.")
    assert tokenizer.decode(ids) == f"{start}Think.\n\nWhat is 3 plus 4?\n\nAnswer:"


def test_thinking_is_opened_once_whoever_opens_it():
    """A setting for templates that leave it to the model; a switch for those that have one."""
    tokenizer = family_tokenizer("qwen")
    problem = Problem("x/1", "x", "What is 3 plus 4?", "7")
    opened = tokenizer.decode(prompt_ids(tokenizer, problem, think_open="<think>\n"))
    assert opened.endswith("assistant\n<think>\n")
    tokenizer.chat_template = QWEN.replace("assistant\n", "assistant\n<think>\n", 1)
    again = tokenizer.decode(prompt_ids(tokenizer, problem, think_open="<think>\n"))
    assert again == opened
    tokenizer.chat_template = QWEN
    off = tokenizer.decode(prompt_ids(tokenizer, problem,
                                      template_options={"enable_thinking": False}))
    assert off.endswith("assistant\n<think>\n\n</think>\n\n")


# ------------------------------------------------------------------------------------------------
# Bad input: one sentence, with the field, the value and what would be right


@pytest.mark.parametrize(
    ("spec", "arguments", "message"),
    [
        ("tyo", {}, "task 'tyo' is unknown, did you mean 'toy'? use \"toy\""),
        ("gsm-8k", {}, "did you mean 'gsm8k'?"),
        ("", {}, "task = '' must be text"),
        (None, {}, "task = None must be text"),
        ("toy:0.5+toy:0.5", {}, "names 'toy' twice"),
        ("toy:0.5+reasoning_gym:chain_sum", {}, "give every part a weight"),
        ("toy:0+reasoning_gym:chain_sum:1", {}, "a weight above 0"),
        ("hf:openai/gsm8k", {}, "task 'hf:openai/gsm8k' cannot be loaded: "),
        ("gsm8k", {"options": {"colum": "q"}}, "'colum' is unknown to 'gsm8k': it takes question"),
        ("gsm8k", {"options": {"split": 3}}, "task option split = 3 of 'gsm8k' must be text"),
        ("x.jsonl", {"options": {"form": "box"}}, "form = 'box' of 'x.jsonl': use one of"),
        ("x.jsonl", {"options": {"kind": "maths"}}, "kind = 'maths' of 'x.jsonl': use one of"),
        ("missing.parquet", {}, "task 'missing.parquet': there is no such file"),
        ("missing.jsonl", {}, "task 'missing.jsonl': there is no such file"),
        ("toy", {"split": "test"}, "split = 'test' is unknown"),
        ("toy", {"heldout": -1}, "heldout = -1 must be a whole number"),
        ("toy", {"heldout": 0, "split": "heldout"}, "has no heldout problems"),
        ("toy", {"options": {"digits": 3}}, "task option 'digits' is unknown to 'toy'"),
        ("toy", {"options": {"size": "many"}}, "size = 'many' of 'toy' must be a whole number"),
        ("toy", {"options": {"size": 0}}, "size = 0 of 'toy' must be a whole number above 0"),
        ("toy", {"options": {"min_digits": 5, "max_digits": 4}}, "min_digits <= max_digits"),
        ("toy", {"options": [3]}, "must be a table"),
        ("toy+a.jsonl", {"options": {"size": 3}}, "a mix takes options by part"),
        ("reasoning_gym:sums", {}, "task 'reasoning_gym:sums' is unknown"),
        ("reasoning_gym:chain_sum", {"options": {"terms": 2}}, "'terms'"),
        ("reasoning_gym:chain_sum", {"options": {"min_terms": 0}}, "min_terms must be positive"),
        ("reasoning_gym:chain_sum", {"options": {"size": -5}}, "size = -5"),
    ],
)
def test_a_wrong_task_is_one_sentence(spec, arguments, message):
    """The reader needs the field, the value and what would be right, not a traceback."""
    arguments = {"split": "train", **arguments}
    with pytest.raises(TaskError) as caught:
        load_task(spec, **arguments)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "1+1", "answer": "2"', "line 3 is not JSON"),
        ("", "line 3 is not JSON"),
        ('["1+1", "2"]', "line 3 must be an object"),
        ('{"question": "1+1"}', "line 3: field 'answer' is None and must be text"),
        ('{"question": "1+1", "answer": [2]}', "line 3: field 'answer' is [2] and must be text"),
        ('{"question": "1+1", "answer": true}', "line 3: field 'answer' is True and must be text"),
        ('{"question": "1+1", "answer": NaN}', "line 3: field 'answer' is nan and must be text"),
        ('{"question": " ", "answer": "2"}', "line 3: field 'question' is ' '"),
        ('{"question": "1+1", "answer": "2", "trace": 4}', "line 3: field 'trace' is 4"),
        ('{"question": "q1", "answer": "2"}', "lines 1 and 3: one question, two answers"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path, line, message):
    """In a file of 100,000 lines "invalid JSON" helps nobody."""
    good = [json.dumps({"question": f"q{i}", "answer": "1"}) for i in (1, 2)]
    (tmp_path / "p.jsonl").write_text("\n".join([*good, line, *good]) + "\n")
    with pytest.raises(TaskError) as caught:
        load_task(str(tmp_path / "p.jsonl"), "train", heldout=1)
    assert message in str(caught.value) and "p.jsonl" in str(caught.value)


def test_columns_that_mean_something_else_are_left_alone_and_said(tmp_path, monkeypatch):
    """Many data sets have a "kind" and a "level" of their own: "algebra", "easy". They refused
    every line of a file, and left every record of a data set out. Numbers as answers did the same.
    """
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"q{i}", "answer": i, "kind": "algebra", "level": "easy"}
            for i in range(11)]
    write_jsonl(tmp_path / "own.jsonl", rows)
    write_data_set("someone/own", {"default/train": rows})
    for spec in ("own.jsonl", "hf:someone/own"):
        with pytest.warns(UserWarning) as told:
            problems = load_task(spec, "train", heldout=3)
        assert {(p.question, p.kind, p.level) for p in problems} <= {
            (f"q{i}", "math", 0) for i in range(11)}
        assert len(problems) == 8 and all(p.question == f"q{p.answer}" for p in problems)
        for name, value in (("kind", "algebra"), ("level", "easy")):
            sentence = f"'{name}' of 11 of 11 records is not used, .* such as '{value}'"
            assert sum(bool(re.search(sentence, str(w.message))) for w in told) == 1
    write_jsonl(tmp_path / "named.jsonl", [row | {"grade": "easy"} for row in rows])
    with pytest.raises(TaskError, match="line 1: field 'grade' is 'easy' and has no whole number"):
        load_task("named.jsonl", "train", heldout=3, options={"level": "grade"})


def test_a_file_that_holds_nothing_or_no_text_is_an_error(tmp_path):
    """An empty file is a mistake somewhere upstream, not an epoch of zero steps."""
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    for name, message in (("empty", "is empty"), ("binary", "cannot be read as UTF-8")):
        with pytest.raises(TaskError, match=message):
            load_task(str(tmp_path / f"{name}.jsonl"), "train", heldout=0)


def test_holding_out_everything_is_an_error(tmp_path):
    """The default of 1,000 is more than a small file has."""
    lines = [{"question": f"{i}", "answer": "1"} for i in range(12)]
    path = write_jsonl(tmp_path / "s.jsonl", lines)
    for split in tasks.SPLITS:
        with pytest.raises(TaskError, match="has 12 distinct problems, so choose heldout below 12"):
            load_task(path, split)
    assert len(load_task(path, "train", heldout=11)) == 1


# ------------------------------------------------------------------------------------------------
# The file itself


def test_the_examples_in_the_docstrings_are_true():
    """An example that is not run is a rumor."""
    results = doctest.testmod(tasks)
    assert results.failed == 0 and results.attempted >= 1


def test_tasks_does_not_load_torch():
    """Verifiers run in worker processes, where a second of import per worker adds up."""
    code = "import sys, tasks; print('torch' in sys.modules, 'transformers' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                         cwd=tasks.__file__.removesuffix("tasks.py")).stdout
    assert out.split() == ["False", "False"]


def test_every_prefix_of_a_mix_has_its_parts_in_their_shares(tmp_path):
    """An evaluation on the first few held-out prompts must not be of the first part alone."""
    for name, n in (("a", 230), ("b", 410)):
        write_jsonl(tmp_path / f"{name}.jsonl",
                    [{"question": f"{name}{i}", "answer": "1"} for i in range(n)])
    spec = f"{tmp_path}/a.jsonl:0.25+{tmp_path}/b.jsonl:0.75"
    held = tasks.load_task(spec, "heldout", heldout=80)
    assert len(held) == 80
    for n in (8, 20, 52, 80):
        of_a = sum(p.question.startswith("a") for p in held[:n])
        assert abs(of_a - n / 4) <= 1
