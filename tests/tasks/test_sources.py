"""What sources.py promises: generators, files and data sets of the hub become problems.

Each test is named after the claim it checks; its docstring says what would go wrong without it.
"""

import contextlib
import csv
import json
import re
from collections import Counter
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from made_tasks import SUMS, AtOnce, questions, write_jsonl

from tasks import sandbox, sources
from tasks.problems import TaskError, check_gold, count_unusable, load_task
from tasks.sandbox import UnitTests
from tasks.verifier import verify


def everything(name, max_unusable=0.02, **options):
    """All problems of one file or data set."""
    problems, bad = sources.load_pool(name, 0, 0, options)
    count_unusable({"bad_records": bad}, len(problems), max_unusable)
    return problems


# ------------------------------------------------------------------------------------------------
# Problems of the toy


def test_toy_answers_agree_with_plain_arithmetic():
    """Here the question is read back and added up."""
    for problem in load_task("toy", "train", heldout=70):
        digits = [int(digit) for digit in problem.question.split("+")]
        assert problem.answer == str(sum(digits) % 10)
        assert problem.level == len(digits)


def test_toy_has_the_sizes_it_was_asked_for_and_equal_levels():
    """Held-out problems of the short level alone would show a pass rate of another task."""
    options = {"size": 2000, "min_digits": 3, "max_digits": 9}
    train, held = (load_task("toy", split, heldout=512, options=options)
                   for split in ("train", "heldout"))
    assert (len(train), len(held)) == (2000, 512)
    for problems in (train, held):
        counts = Counter(problem.level for problem in problems)
        assert sorted(counts) == [3, 4, 5, 6, 7, 8, 9]
        assert max(counts.values()) - min(counts.values()) <= 2


def test_any_prefix_of_the_heldout_problems_has_all_levels_in_equal_parts():
    """Someone who evaluates on the first 70 must not evaluate on one level."""
    options = {"size": 2000, "min_digits": 3, "max_digits": 9}
    problems = load_task("toy", "heldout", heldout=512, options=options)[:70]
    assert set(Counter(problem.level for problem in problems).values()) == {10}


def test_a_short_level_has_no_more_problems_than_there_are_questions():
    """Two digits make 100 questions; asking for more must not repeat one."""
    options = {"min_digits": 2, "max_digits": 3, "size": 600}
    problems = load_task("toy", "train", heldout=0, options=options)
    assert Counter(p.level for p in problems) == {2: 100, 3: 300}
    assert len(questions(problems)) == 400


# ------------------------------------------------------------------------------------------------
# Generated problems


def test_chain_sum_answers_agree_with_python():
    """eval of the question is the oracle."""
    for problem in load_task("reasoning_gym:chain_sum", "train", heldout=13, options=SUMS):
        expression = re.search(r"problem: (.*) =", problem.question).group(1)
        assert eval(expression) == int(problem.answer)
        assert problem.level == len(expression.split()) // 2 + 1


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


def test_a_generator_whose_answers_are_no_whole_numbers_is_refused():
    """Only its own rule can judge a sudoku: a task of a Python file may ask it."""
    problems = load_task("reasoning_gym:count_bits", "train", heldout=3, options={"size": 20})
    assert {p.kind for p in problems} == {"math"} and check_gold(problems, AtOnce()) == {}
    with pytest.raises(TaskError, match="'reasoning_gym:sudoku' has answers that are no whole .* "
                                        "in a task of a Python file"):
        load_task("reasoning_gym:sudoku", "train", heldout=3, options={"size": 20})


def test_an_unknown_generator_or_option_is_refused():
    """`composite` as well: it takes objects of Python as options, and a mix does the same."""
    for name, message in (("composite", "Must specify at least one dataset"),
                          ("nothing_like_it", "'nothing_like_it' not registered")):
        with pytest.raises(TaskError, match=message):
            load_task(f"reasoning_gym:{name}", "train", heldout=3, options={"size": 2})
    with pytest.raises(TaskError, match="unexpected keyword argument 'max_term'"):
        load_task("reasoning_gym:chain_sum", "train", heldout=3, options={"max_term": 2})
    for spec, options in (("toy", {"max_digit": 2}), ("some.jsonl", {"anwser": "a"})):
        with pytest.raises(TaskError, match=f"is not one of '{spec}': {{"):
            load_task(spec, "train", heldout=3, options=options)


# ------------------------------------------------------------------------------------------------
# Files and data sets. There is no hub here: folders of the same name and shape stand in for it.


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """`datasets` knows a folder by its relative name: it would find what another run has cached."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


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
             "starter_code": "class Solution:\n    def total(self, xs, k):\n        ",
             "metadata": {"func_name": "total"}, "tests": json.dumps([
                 {"testtype": "functional", "input": "[1, 2]\n4", "output": "7"}])}]},
        [(json.dumps(UnitTests(("41\n", "1\n"), ("42\n", "2\n"))), 0),
         (json.dumps(UnitTests(([1, 2],), ([3],), "add")), 0),
         (json.dumps(UnitTests(([2], [3]), ([[4], 4], [[6], 6]), "twice")), 0),
         (json.dumps(UnitTests(("1", "2"), ("2", "3"))), 0),
         (json.dumps(UnitTests(([[1, 2], 4],), ([7],), "total")), 0)]),
}  # fmt: skip


@pytest.mark.parametrize("name", sources.PRESETS)
def test_a_preset_reads_its_data_set(name, tmp_path, monkeypatch):
    """A column that was renamed, or the test split in training, would show in no error message.

    Every gold answer passes its own verifier, and every solution that comes with a problem passes
    the unit tests in the form we have read them.
    """
    monkeypatch.chdir(tmp_path)
    files, expected = DATA_SETS[name]
    write_data_set(sources.PRESETS[name]["repository"], files)
    problems = everything(name)
    assert [(p.answer, p.level) for p in problems] == expected
    assert {p.task for p in problems} == {name}
    for problem in problems:        # nobody can guess the name of the function that is called
        function = json.loads(problem.answer)[2] if problem.kind == "code" else None
        assert f"`{function}`" in problem.question if function else (
            ("standard input" in problem.question) == (problem.kind == "code"))
        assert ("def total(self" in problem.question) == (function == "total")
    assert check_gold(problems, AtOnce()) == {}
    rows = [row for part in files.values() for row in part if "solutions" in row]
    for row, problem in zip(rows, problems if rows else [], strict=True):
        program = row["solutions"][0].removeprefix("```python\n").removesuffix("\n```")
        with contextlib.suppress(sandbox.SandboxError):     # none can be made here
            tests = UnitTests(*json.loads(problem.answer))
            assert sandbox.run_tests(program, tests) == "correct"


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
    with pytest.raises(TaskError, match="cannot be read: .*train"):
        load_task("hf:someone/sums", "train", heldout=7)


def test_records_of_a_data_set_that_cannot_be_used_are_counted(tmp_path, monkeypatch):
    """Left out in silence, half a data set may be missing and nobody would know.

    Of records with one question the first is kept; another answer to it is a bad record.
    """
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"q{i}", "answer": str(i)} for i in range(9)]
    rows += [{"question": "q3", "answer": "4"}, {"question": "", "answer": "1"},
             {"question": "none", "answer": None}, {"question": "q1", "answer": "1"}]
    write_data_set("someone/mess", {"default/train": rows})
    with pytest.warns(UserWarning, match="3 of 12 problems cannot be used .*; the first: "
                                         "'hf:someone/mess', record 10 asks again, with another"):
        problems = everything("hf:someone/mess", 0.25)
    assert {p.question: p.answer for p in problems} == {f"q{i}": str(i) for i in range(9)}
    with pytest.raises(TaskError, match="max_unusable = 0.24: 3 of 12 problems"):
        everything("hf:someone/mess", 0.24)
    write_data_set("someone/nothing", {"default/train": rows[10:12]})
    with pytest.raises(TaskError, match="no record can be used; the first: .*, record 1 has no t"):
        everything("hf:someone/nothing", 1.0)


GSM8K = [{"question": f"Tom has {i} apples and 4 pears?", "answer": f"<<{i}+4>> so\n#### {i + 4}"}
         for i in range(7)]
MATH = [{"problem": f"{i} + 1?", "level": f"Level {i}", "type": "Algebra",
         "solution": rf"First $\boxed{{{99}}}$ is tried, but it is \boxed{{{i + 1}}}."}
        for i in range(7)]
MATH_500 = [row | {"answer": str(i + 1)} for i, row in enumerate(MATH)]
DAPO = [{"data_source": "math_dapo", "prompt": [{"role": "user", "content": f"{i} + 1?"}],
         "reward_model": {"ground_truth": str(i + 1), "style": "rule"}} for i in range(7)]
CHATS = [{"messages": [{"role": "system", "content": "Be short."},
                       {"role": "user", "content": f"{i} + 1?"}], "answer": i + 1}
         for i in range(7)]
PLAIN = [{"prompt": f"{i} + 1?", "solution": i + 1, "level": "easy"} for i in range(7)]


@pytest.mark.parametrize(("rows", "told", "first"), [
    (GSM8K, "read as question, answer after ####", ("Tom has 0 apples and 4 pears?", "4")),
    (MATH, r"read as problem, solution in the last \boxed{}, level", ("0 + 1?", "1")),
    (MATH_500, "read as problem, answer, level", ("0 + 1?", "1")),
    (DAPO, "read as prompt, reward_model.ground_truth", ("0 + 1?", "1")),
    (CHATS, "read as messages, answer", ("Be short.\n\n0 + 1?", "1")),
    (PLAIN, "read as prompt, solution", ("0 + 1?", "1")),
])  # fmt: skip
def test_a_usual_layout_is_recognized_by_its_columns_and_told(rows, told, first, tmp_path, capsys):
    """A newcomer's file needs no options, and the line shows what was understood.

    "level": "easy" is none that we know: it is neither used nor told.
    """
    problems = everything(write_jsonl(tmp_path / "my.jsonl", rows))
    assert (problems[0].question, problems[0].answer) == first and len(problems) == 7
    assert capsys.readouterr().out == (
        f"{tmp_path}/my.jsonl: 7 problems in 7 records, {told}\n")
    assert [p.level for p in problems] == (list(range(7)) if ", level" in told else [0] * 7)
    assert check_gold(problems, AtOnce()) == {}


def test_a_null_in_the_first_record_hides_no_column(tmp_path, capsys):
    """"No column of a usual name for the answer: it has question, answer", it said."""
    rows = [{"question": "0?", "answer": None}] + [
        {"question": f"{i}+{i}?", "answer": f"So #### {2 * i}"} for i in range(1, 30)]
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    problems, bad = sources.load_pool(str(path), 0, 0, {})
    assert [p.answer for p in problems] == [str(2 * i) for i in range(1, 30)] and len(bad) == 1
    assert "read as question, answer after ####" in capsys.readouterr().out
    for option in ("split", "config"):      # a data set's: on a file they did nothing, and test
        with pytest.raises(TaskError, match=f"task option {option} = 'test' is not one of"):
            sources.load_pool(str(path), 0, 0, {option: "test"})        # rows were trained on


def test_options_go_before_what_is_recognized(tmp_path, capsys):
    """The file may know better: a solution that boxes a step, an answer that is text about ####."""
    path = write_jsonl(tmp_path / "my.jsonl", [row | {"other": f"{i}/2"}
                                               for i, row in enumerate(MATH_500, start=3)])
    assert [p.answer for p in everything(path, answer="other")] == [f"{i}/2" for i in range(3, 10)]
    assert [p.answer for p in everything(path, answer="solution")] == [str(i + 1) for i in range(7)]
    plain = everything(path, answer="solution", kind="exact")
    assert plain[0].answer == MATH[0]["solution"] and plain[0].kind == "exact"
    assert "problem, other, level" in capsys.readouterr().out
    write_jsonl(tmp_path / "odd.jsonl", [{"q": "1+1", "a": "2"}])
    with pytest.raises(TaskError, match='usual name for the question: it has q, a; name it by'):
        everything(f"{tmp_path}/odd.jsonl")
    assert everything(f"{tmp_path}/odd.jsonl", question="q", answer="a")[0].answer == "2"
    with pytest.raises(TaskError, match="has no column dificulty: it has problem, level, "):
        everything(path, level="dificulty")         # else no problem has a level, without a word
    assert everything(path, level="other")[3].level == 6
    assert not any(problem.level for problem in everything(path, level=""))


@pytest.mark.parametrize("written", [
    "lines", "an array", "an array on many lines", "a byte-order mark", "an ending in capitals",
    "CSV", "CSV with a byte-order mark", "Parquet"])
def test_a_file_is_read_in_every_usual_form(written, tmp_path):
    """Spreadsheets write byte-order marks, pandas writes arrays; none of it is the user's fault.

    Text stays as it is: an answer "007" is not 7.
    """
    rows = [{"question": f'{i}, "or" {i}?\nSay which.', "answer": f"00{i}"} for i in range(5)]
    rows[3]["question"] += " Unit tests are long." * 7_000     # above csv's own 128 KiB
    path, mark = tmp_path / "my.jsonl", "\ufeff" * ("byte-order" in written)
    if "CSV" in written:
        path = tmp_path / "my.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            file.write(mark)
            table = csv.DictWriter(file, ["question", "answer"])
            table.writeheader()
            table.writerows(rows)
    elif written == "Parquet":
        path = tmp_path / "my.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif "array" in written:
        path = tmp_path / "my.json"
        path.write_text(json.dumps(rows, indent=2 if "many" in written else None))
    else:
        path = tmp_path / "my.JSONL" if "capitals" in written else path
        path.write_text(mark + "\n".join(map(json.dumps, rows)), encoding="utf-8")
    problems = everything(str(path))
    assert [(p.task, p.question, p.answer) for p in problems] == [
        ("my", row["question"], row["answer"]) for row in rows]


def test_parquet_and_jsonl_are_the_same_problems(tmp_path):
    """A local file in either form, with the columns it happens to have."""
    rows = [{"problem": f"{i} + 1?", "solution": rf"so \boxed{{{i + 1}}}", "difficulty": f"{i}/8"}
            for i in range(12)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "mine.parquet")
    write_jsonl(tmp_path / "mine.jsonl", rows)
    options = {"question": "problem", "answer": "solution", "level": "difficulty"}
    one, two = (load_task(f"{tmp_path}/mine.{kind}", "train", heldout=5, options=options)
                for kind in ("parquet", "jsonl"))
    assert one == two and all(int(p.answer) == p.level + 1 for p in one)
    (tmp_path / "mine.jsonl").rename(tmp_path / "mine.json")      # as many are written
    assert load_task(f"{tmp_path}/mine.json", "train", heldout=5, options=options) == one
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(TaskError, match="broken.parquet' cannot be read"):
        load_task(f"{tmp_path}/broken.parquet", "train", heldout=5)


def test_long_lists_of_unit_tests_keep_their_longest_inputs():
    """As DeepCoder does: the small cases seldom fail a program that passes the large ones."""
    pairs = [{"input": "x" * i, "output": str(i)} for i in range(1, 40)]
    kept = sandbox.read_tests(pairs)
    assert kept.outputs == [str(i) for i in range(39, 24, -1)]


@pytest.mark.parametrize(
    ("value", "message"),
    [("{", "Expecting"), ({"tests": []}, "'inputs'"), ([], "list index"),
     ([1], "not subscriptable"), ({"inputs": ["1"], "outputs": None}, "NoneType"),
     ([{"type": "function_call", "fn_name": "f", "input": [1], "output": 1},
       {"input": "1", "output": "1"}], "lists of its arguments"),
     ([{"input": "1"}], "'output'")],
)  # fmt: skip
def test_unit_tests_in_no_known_form_are_refused(value, message):
    """Guessing would mark every program wrong, or every program right."""
    with pytest.raises((AttributeError, LookupError, TypeError, ValueError), match=message):
        sandbox.read_tests(value)


# ------------------------------------------------------------------------------------------------
# Bad records


BAD_LINES = [
    ('{"question": "1+1", "answer": "2"', "is no JSON object: '{"),
    ('["1+1", "2"]', "is no JSON object: "),
    ("9" * 5_000, "is no JSON object: "), ("[" * 100_000, "is no JSON object: "),
    ('{"question": "Show it.", "answer": ["proof"]}', "has 'proof' for an answer"),
    ('{"question": "Show it.", "answer": "Proof."}', "has 'Proof.' for an answer"),
    ('{"question": "1+1"}', "has no text in 'answer': None"),
    ('{"question": "1+1", "answer": []}', "has no text in 'answer': []"),
    ('{"question": "1+1", "answer": [null]}', "has no text in 'answer': None"),
    ('{"question": "1+1", "answer": [" "]}', "has no text in 'answer': ' '"),
    ('{"question": "1+1", "answer": true}', "has no text in 'answer': True"),
    ('{"question": "1+1", "answer": NaN}', "has no text in 'answer': nan"),
    ('{"question": " ", "answer": "2"}', "has no text in 'question': ' '"),
    ('{"question": [{"role": "user", "content": "1"}, {"role": "user", "content": "2"}], '
     '"answer": "2"}', "has no text in 'question': None"),
    ('{"question": "1+1", "answer": "2", "kind": "code"}', "has no unit tests in 'answer': "),
    (r'{"question": "\ud800", "answer": "2"}', "cannot be read: 'utf-8' codec can't encode cha"),
    ('{"question": "1+1", "answer": "2", "level": "%s"}' % ("9" * 5_000),
     "cannot be read: Exceeds the limit (4300 digits)"),
    ('{"question": "1+1", "answer": "%s", "kind": "code"}' % ("[" * 100_000), "has no unit test"),
    ('{"question": "1+1", "answer": %s}' % ("[" * 900 + "]" * 900), ""),
    ('{"question": "1+1", "answer": %s, "kind": "code"}' % ("[" * 900 + "]" * 900), "has no unit "),
]


@pytest.mark.parametrize(("line", "message"), BAD_LINES)
def test_a_bad_record_is_left_out_with_its_number_and_too_many_stop_the_run(
        tmp_path, line, message):
    """In a file of 100,000 lines "a bad record" helps nobody, and one such line is no reason to
    stop. An empty line is no record."""
    good = [json.dumps({"question": f"q{i}", "answer": str(i)}) for i in (1, 2, 3, 4)]
    (tmp_path / "p.jsonl").write_text("\n".join([*good[:2], "", line, *good[2:]]) + "\n")
    path = str(tmp_path / "p.jsonl")
    message = f"{path!r}, line 4 {message}"
    with pytest.warns(UserWarning) as told:
        problems = everything(path, 1 / 5)
    assert questions(problems) == {"q1", "q2", "q3", "q4"}
    assert "1 of 5 problems cannot be used" in str(told[0].message)
    assert f"the first: {message}" in str(told[0].message)
    with pytest.raises(TaskError) as caught:
        everything(path, 0.99 / 5)
    assert message in str(caught.value) and "max_unusable = " in str(caught.value)


def test_a_list_of_one_answer_is_that_answer(tmp_path):
    """Of a longer one nobody knows whether all are asked or one is enough."""
    rows = [{"question": "a", "answer": [7]}, {"question": "b", "answer": ["1/3", "12"]}]
    path = write_jsonl(tmp_path / "l.jsonl", rows)
    (one,), (bad,) = sources.load_pool(path, 0, 0, {})
    assert one.answer == "7"
    assert "line 2 has no text in 'answer': ['1/3', '12']" in bad


def test_a_level_or_kind_of_another_meaning_is_left_alone(tmp_path):
    """"level" is often another word for "easy", and "kind" for a field of mathematics."""
    rows = [{"question": f"q{i}", "answer": i, "kind": "algebra", "level": "easy", "grade": "a"}
            for i in range(11)]
    path = write_jsonl(tmp_path / "own.jsonl", rows)
    assert {(p.question, p.answer, p.kind, p.level) for p in everything(path)} == {
        (f"q{i}", str(i), "math", 0) for i in range(11)}


@pytest.mark.parametrize(("name", "text"), [
    ("a.csv", "question;answer\nWhat is 2, 3 or 4?;5\nb;6\n"),
    ("b.csv", "question\tanswer\nWhat is 2, 3 or 4?\t5\nb\t6\n"),
    ("c.json", '{"version": 2, "data": [{"question": "What is 2, 3 or 4?", "answer": "5"},'
               ' {"question": "b", "answer": "6"}]}'),
    ("d.jsonl", '[\n{"question": "What is 2, 3 or 4?", "answer": "5"},\n'
                '{"question": "b", "answer": "6"}\n]\n')])
def test_other_marks_between_cells_and_lists_within_an_object_are_read(name, text, tmp_path):
    """"has no column of a usual name: it has question;answer" sent users to the wrong place."""
    (tmp_path / name).write_text(text)
    assert {p.question: p.answer for p in everything(str(tmp_path / name))} == {
        "What is 2, 3 or 4?": "5", "b": "6"}


def test_a_column_that_is_not_there_is_told_as_such(tmp_path):
    """Each record was called bad: "record 1 has no text in 'anser': None"."""
    (tmp_path / "a.csv").write_text("question,answer\na,7\n")
    with pytest.raises(TaskError, match="has no column anser: it has question, answer; name it"):
        load_task(str(tmp_path / "a.csv"), "train", heldout=0, options={"answer": "anser"})


def test_a_file_that_holds_nothing_or_no_text_is_an_error(tmp_path):
    """An empty file is a mistake somewhere upstream, not an epoch of zero steps."""
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "pretty.json").write_text('{\n"data": [\n]\n}')
    for name, message in (("empty", "holds no record"), ("pretty", "holds no record"),
                          ("binary", "cannot be read: 'utf-8'")):
        with pytest.raises(TaskError, match=message):
            load_task(str(next(tmp_path.glob(f"{name}.*"))), "train", heldout=0)


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a.json", b"5", "holds no record like"), ("a.json", b'"text"', "holds no record like"),
    ("a.json", b"[" * 100_000, "cannot be read: maximum recursion depth exceeded"),
    ("a.json", b'[{"question": "a", "answer": ' + b"9" * 5_000 + b"}]", "Exceeds the limit (4300"),
    ("a.jsonl", '{"question": "Wie groß?", "answer": "5"}'.encode("latin-1"),
     "can't decode byte 0xdf in position 21: invalid continuation byte: save it as UTF-8"),
    ("a.csv", "question,answer\na,7".encode("utf-16"), "'utf-8' codec can't decode"),
    ("a.csv", b'question,answer\na,7\n"b,8\nc,9\n',
     "cannot be read: after line 2: unexpected end of data"),
    ("a.csv", b'question,answer\na,7\n"b" ,8\nc,9\n',
     "cannot be read: after line 2: ',' expected"),
    ("a.csv", b'question,answer\na,7\n"b,8\nc,9\n"d,5\n',
     "cannot be read: after line 2: ',' expected"),
    ("a.csv", b"question,answer,answer\na,7,8\n",
     "cannot be read: its first line has the column 'answer' twice"),
])
def test_a_file_that_cannot_be_read_is_one_sentence_with_the_cure(name, content, message, tmp_path):
    """A traceback, a byte's position or "'int' object is not iterable" helps nobody."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskError) as caught:
        everything(str(tmp_path / name))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_columns_without_a_name_may_be_many(tmp_path):
    """Spreadsheets leave some at the end."""
    (tmp_path / "a.csv").write_text("question,answer,,\na,7,,\n")
    assert [p.answer for p in everything(str(tmp_path / "a.csv"))] == ["7"]


def test_a_table_without_rows_holds_nothing(tmp_path, monkeypatch):
    """`datasets` itself fails on it, with an error of its own class."""
    empty = pyarrow.schema([("question", pyarrow.string())]).empty_table()
    pyarrow.parquet.write_table(empty, tmp_path / "a.parquet")
    with pytest.raises(TaskError, match="holds no record like"):
        everything(f"{tmp_path}/a.parquet")
    monkeypatch.chdir(tmp_path)
    write_data_set("someone/none", {"default/train": []})
    with pytest.raises(TaskError, match="holds no record like|cannot be read: "):
        everything("hf:someone/none")


def test_an_answer_may_be_a_number_beyond_all_floats(tmp_path):
    """10**400 is no infinity: it ended in an OverflowError."""
    path = write_jsonl(tmp_path / "a.jsonl", [{"question": "a", "answer": 10**400},
                                              {"question": "b", "answer": [-10**400]}])
    problems = everything(path)
    assert [int(p.answer) for p in problems] == [10**400, -10**400]


@pytest.mark.parametrize("form", [
    '{"question": "q", "answer": %s}', '{"question": %s, "answer": "7"}',
    '{"question": "q", "kind": "code", "answer": {"inputs": ["1"], "outputs": %s}}',
    '{"question": "q", "kind": "code", "answer": {"inputs": [%s], "outputs": [1], "fn_name": "f"}}',
    '{"question": "q", "answer": "7", "level": %s}'])
def test_no_depth_of_lists_is_a_traceback(form, tmp_path):
    """Some are too deep to be read, others only to be written; in the first record as well."""
    for depth in (*range(0, 900, 100), *range(900, 1000, 3), 3_000):
        (tmp_path / "a.jsonl").write_text(form % ("[" * depth + '"5"' + "]" * depth))
        with contextlib.suppress(TaskError):
            everything(f"{tmp_path}/a.jsonl")


@pytest.mark.parametrize("kind", ["prose", "reward", "reward_func", "Math", ""])
def test_a_kind_that_no_rule_judges_is_refused_at_the_start(kind, tmp_path):
    """The run ended at its first reward. "reward" is judged, but only in a Python file."""
    path = write_jsonl(tmp_path / "a.jsonl", [{"question": "a", "answer": "7"}])
    with pytest.raises(TaskError, match=f"^task option kind = '{kind}' must be one of math, exact"):
        everything(path, kind=kind)


# ------------------------------------------------------------------------------------------------
# Files that were read half, and in silence


@pytest.mark.parametrize(("rows", "kept", "sentence"), [
    ([{"question": "a", "answer": "7"}, {"question": "a ", "answer": "8"}], 1,
     "line 2 asks again, with another answer: '8'"),
    ([{"question": "a", "answer": "7"}, {"question": "a", "answer": "7"}], 1, None),
    ([{"question": "a", "answer": "12,5"}, {"question": "b", "answer": "1, 2"}], 1,
     "line 1 has the answer '12,5': a decimal is 12.5, and a list 12, 5"),
    ([{"question": "a", "answer": "1 000 000"}, {"question": "b", "answer": 1e21}], 2, None),
    ([{"question": "a", "answer": "7"}, {"question": "b", "answer": "E", "choices": ["x", "y"]}], 1,
     "line 2 has options of multiple choice: write them into the question"),
    ([{"question": "a", "answer": "7"}, {"question": "b", "answer": "E", "options": "E) 4"}], 1,
     "line 2 has options of multiple choice: write them into the question"),
    ([{"prompt": [{"role": "user", "content": "2+3"}], "answer": "5"},
      {"prompt": [{"role": "user", "content": [{"type": "image"}]}], "answer": "5"}], 1,
     "line 2 has no text in 'prompt': None"),
])
def test_a_line_is_read_rightly_or_refused_with_its_number(rows, kept, sentence, tmp_path):
    """Each of these was read wrongly, without a word."""
    problems, bad = sources.load_pool(write_jsonl(tmp_path / "f.jsonl", rows), 0, 0, {})
    assert len(problems) == kept and len(bad) == (sentence is not None)
    assert sentence is None or sentence in bad[0]


def test_the_number_is_the_line_s_and_empty_lines_count(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_text('\ufeff{"question": "a", "answer": "7"}\n\n\nno JSON\n', "utf-8")
    problems, bad = sources.load_pool(str(path), 0, 0, {})
    assert [p.question for p in problems] == ["a"] and "line 4 is no JSON object" in bad[0]
    path = tmp_path / "f.csv"
    path.write_text("question,answer\na,7\nb,8,9\n")
    problems, bad = sources.load_pool(str(path), 0, 0, {})
    assert len(problems) == 1 and "record 2 has more fields than the first line: ['9']" in bad[0]


def test_ten_thousand_bad_lines_are_one_sentence(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_text('{"question": "a", "answer": "7"}\n' + "{" * 99 + "\n" * 2
                    + "half a line\n" * 10_000)
    with pytest.raises(TaskError) as caught:
        everything(str(path))
    assert "10001 of 10002 problems cannot be used" in str(caught.value)
    assert len(str(caught.value)) < 500
