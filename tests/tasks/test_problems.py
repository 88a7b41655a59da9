"""What problems.py promises: splits, mixes, the check of gold answers, the problems of a run.

Each test is named after the claim it checks; its docstring says what would go wrong without it.
"""

import json
import random
import re
import subprocess
import sys
import tomllib
import warnings
from collections import Counter
from types import SimpleNamespace

import pytest
from conftest import ROOT
from made_tasks import SUMS, AtOnce, questions, write_jsonl

from config import Config, ConfigError
from tasks import problems as tasks
from tasks.problems import (Problem, TaskError, check_gold, count_unusable, load_problems,
                            load_task)
from tasks.sandbox import UnitTests
from study import toy

# There are only 100 questions of two digits.
LONG = {"size": 300, "min_digits": 4, "max_digits": 6}


# ------------------------------------------------------------------------------------------------
# Splits


@pytest.mark.parametrize(
    ("spec", "options"), [("toy", LONG), ("reasoning_gym:chain_sum", SUMS)]
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


def test_a_repeated_question_is_kept_once_and_said(tmp_path, capsys):
    """The naive split by line number puts the two copies on both sides."""
    records = [{"question": f"{i}  + 1", "answer": f"{i + 1}"} for i in range(20)]
    records += [{"question": f"{i} + 1", "answer": f"{i + 1}"} for i in range(5)]
    train = load_task(write_jsonl(tmp_path / "r.jsonl", records), "train", heldout=6)
    held = load_task(str(tmp_path / "r.jsonl"), "heldout", heldout=6)
    assert capsys.readouterr().out.count("r.jsonl: 20 problems in 25 records") == 2
    seen = [" ".join(problem.question.split()) for problem in train + held]
    assert len(seen) == len(set(seen)) == 20


def test_ids_are_unique_and_the_same_in_every_process():
    """Pass rates are kept by id over a resume; Python's own hash() differs between processes."""
    code = "import tasks; print(*[p.id for p in tasks.load_splits('toy', heldout=9)[1]])"
    fresh = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                           cwd=ROOT).stdout.split()
    ours = [problem.id for problem in load_task("toy", "heldout", heldout=9)]
    assert fresh == ours and len(set(ours)) == 9


def test_both_splits_come_from_one_reading(tmp_path, monkeypatch):
    """DeepCoder is gigabytes: to read, parse and hash it again for the other half takes minutes."""
    a = write_jsonl(tmp_path / "a.jsonl", [{"question": f"{i}+1", "answer": "1"} for i in range(9)])
    read = []
    monkeypatch.setattr(tasks, "load_pool", lambda *args, load=tasks.load_pool: (
        read.append(args) or load(*args)))
    *both, extra, bad = tasks.load_splits(a, heldout=4)
    assert len(read) == 1 and not extra and not bad
    assert both == [load_task(a, split, heldout=4) for split in ("train", "heldout")]


def test_questions_of_an_evaluation_set_leave_training_and_it_says_so(tmp_path):
    """Training on the test is the oldest way to a good curve; copies differ in their spaces."""
    ours = write_jsonl(tmp_path / "t.jsonl", [
        {"question": f"What is  {i}?", "answer": str(i)} for i in range(20)])
    train, held = (load_task(ours, split, heldout=3) for split in ("train", "heldout"))
    asked = write_jsonl(tmp_path / "e.jsonl", [
        {"question": f"What is {i}?", "answer": str(i)} for i in range(15, 30)])
    with pytest.warns(UserWarning, match="of 17 problems .* leave training: they are evaluated"):
        kept, still, extra, _ = tasks.load_splits(ours, heldout=3, eval_spec=asked)
    assert kept == [p for p in train if int(p.answer) < 15] and still == held
    assert [int(p.answer) for p in extra] == list(range(15, 30))


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


def test_a_question_held_out_by_one_part_is_trained_on_by_none(tmp_path):
    """Two files that overlap hold out different questions unless somebody looks; it is said."""
    both = [{"question": f"q{i}", "answer": str(i)} for i in range(40)]
    only_a = [{"question": f"a{i}", "answer": "1"} for i in range(40)]
    a = write_jsonl(tmp_path / "a.jsonl", both + only_a)
    b = write_jsonl(tmp_path / "b.jsonl", both)
    with pytest.warns(UserWarning, match="problems of .* leave training: they are evaluated"):
        train, held = (load_task(f"{a}+{b}", split, heldout=30) for split in ("train", "heldout"))
    assert not questions(train) & questions(held)
    assert len(held) == 30


def test_options_of_a_mix_go_to_their_part():
    """"max_terms" means nothing to the toy."""
    options = {"toy": {"size": 30, "max_digits": 4}, "reasoning_gym:chain_sum": SUMS}
    mix = load_task("toy+reasoning_gym:chain_sum", "train", heldout=10, options=options)
    assert Counter(p.task for p in mix) == {"toy": 30, "reasoning_gym:chain_sum": 60}


def test_every_prefix_of_a_mix_has_equal_shares_of_its_parts(tmp_path):
    """An evaluation on the first few held-out prompts must not be of the first part alone."""
    for name, n in (("a", 230), ("b", 410)):
        write_jsonl(tmp_path / f"{name}.jsonl",
                    [{"question": f"{name}{i}", "answer": "1"} for i in range(n)])
    spec = f"{tmp_path}/a.jsonl+{tmp_path}/b.jsonl"
    held = load_task(spec, "heldout", heldout=80)
    assert len(held) == 80
    for n in (8, 20, 52, 80):
        of_a = sum(p.question.startswith("a") for p in held[:n])
        assert abs(of_a - n / 2) <= 1


# ------------------------------------------------------------------------------------------------
# The gold answers


def test_the_gold_check_names_the_problems_that_fail():
    """A verifier that cannot mark its own gold answer right would train on noise."""
    good = Problem("x/1", "x", "3+4", "7")
    bad = check_gold([
        good, *(Problem(f"x/{i}", "x", "1/3?", r"\frac{1}{") for i in (2, 3)),
        Problem("x/5", "x", "sky?", "blue", kind="exact")], AtOnce())
    assert list(bad) == ["x/2", "x/3"]
    assert re.search(r"problem x/2: its own answer .* is judged 'error'", bad["x/2"])


def test_what_was_said_of_gold_answers_is_kept_beside_the_run(tmp_path, seed):
    """1,234 of them, a part at a time: a killed check goes on with the part it was in, its
    cut-off line too; changed problems are judged anew."""
    rng, asked = random.Random(seed), []

    class Judge:
        def score(self, items):
            if len(asked) == self.last:
                raise KeyboardInterrupt
            asked.append(len(items))
            return SimpleNamespace(reasons=[
                "correct" if int(answer) % 7 else "error" for _, answer, _ in items])

    def check(last):
        judge, path = Judge(), tmp_path / "gold.jsonl"
        judge.last = last
        return [*check_gold(problems, judge, path)]

    problems = [Problem(f"x/{i}", "x", "q", str(rng.randint(10, 10**6))) for i in range(1234)]
    bad = [p.id for p in problems if int(p.answer) % 7 == 0]
    with pytest.raises(KeyboardInterrupt):
        check(last=2)
    with open(tmp_path / "gold.jsonl", "a") as file:
        file.write('\n{"half": ["corr')
    assert check(last=9) == bad and asked == [500, 500, 234]
    assert check(last=3) == bad and len(asked) == 3
    problems[700] = Problem("x/700", "x", "q", "77")
    assert check(last=4) == sorted({*bad, "x/700"}, key=lambda i: int(i[2:])) and asked[3:] == [500]


def test_what_cannot_be_used_is_counted_over_the_task_and_too_much_stops():
    """Real data sets have answers that nobody can check; a run should not stop for one of them."""
    assert count_unusable({"bad_records": [], "too_long": []}, 9, 0.0) == {
        "bad_records": 0, "too_long": 0}
    told = {"bad_records": ["line 4 is odd"], "bad_gold": [], "too_long": ["long 1", "long 2"]}
    with pytest.warns(UserWarning, match="3 of 10 problems cannot be used.*; the first: line 4 is"):
        counts = count_unusable(told, 7, 0.3)
    assert counts == {"bad_records": 1, "bad_gold": 0, "too_long": 2}
    with pytest.raises(TaskError, match="max_unusable = 0.29: 3 of 10 problems cannot be used"):
        count_unusable(told, 7, 0.29)


def test_unit_tests_are_no_part_of_the_gold_check():
    """They are no text that a model could have written."""
    answer = json.dumps(UnitTests(["1"], ["2"]))
    assert check_gold([Problem("x/1", "x", "add one", answer, kind="code")], AtOnce()) == {}


# ------------------------------------------------------------------------------------------------
# The problems of a run


class Letters:
    """A tokenizer of a base model: a token is a letter."""

    chat_template = eos_token_id = unk_token_id = None

    def __call__(self, text):
        return {"input_ids": list(text)}


@pytest.mark.parametrize("template, says", [
    ("{{ raise_exception('no system role') }}", "chat template fails: .*no system role"),
    ("{% for m in messages %}", "template fails"), ("{{ a.b }}", "template fails"),
    ("{{ 1 / 0 }}", "template fails: ZeroDivision"), (5, "template fails"),
    ("{# nothing #}", "template leaves the question out of every prompt"),
    # a template of content in parts, as of models that see
    ("{% for m in messages %}<|{{ m.role }}|>{% for part in m.content %}{{ part.text }}{% endfor %}"
     "{% endfor %}", "template leaves the question out of every prompt")])
def test_a_chat_template_that_fails_is_one_sentence(template, says, tmp_path):
    tokenizer = toy.make_tokenizer()
    tokenizer.chat_template = template
    path = write_jsonl(tmp_path / "a.jsonl", [{"question": str(n), "answer": "1"}
                                              for n in range(9)])
    with pytest.raises(ConfigError, match=says):
        load_problems(Config(task=path, heldout_prompts=3, think_open="<think>"), tokenizer,
                      AtOnce())


def test_prompts_that_the_tokenizer_cannot_spell_are_a_warning(tmp_path):
    """The toy knows digits and signs: a run on other questions would learn from "<unk>" alone."""
    rows = [{"question": f"{n}+{n}", "answer": "1"} for n in range(8)]
    for asked, lost in ((rows, 0), ([*rows, {"question": "Add Ω to 3!", "answer": "3"}], 1)):
        path = write_jsonl(tmp_path / f"{lost}.jsonl", asked)
        with warnings.catch_warnings(record=True) as told:
            load_problems(Config(task=path, heldout_prompts=3), toy.make_tokenizer(), AtOnce())
        assert [str(w.message).partition(", and reads")[0] for w in told] == [
            f"the model's tokenizer does not know all characters of 1 of {len(asked)} prompts"
        ] * lost


def test_a_run_trains_and_evaluates_on_what_is_sound_and_short_enough(tmp_path):
    """A bad gold answer in training gives -1 to every sample, and none of it is in any log."""
    rows = [{"question": "x" * n, "answer": str(n)} for n in range(1, 60)]
    rows[20]["answer"] = rows[50]["answer"] = r"\frac{1}{"
    rows.insert(30, {"question": "", "answer": "1"})
    a = write_jsonl(tmp_path / "a.jsonl", rows)
    with pytest.warns(UserWarning):
        fair = load_task(a, "heldout", heldout=13)
    asked_twice = min({"x" * n for n in range(1, 20)} - questions(fair))
    b = write_jsonl(tmp_path / "b.jsonl", [{"question": "y" * n, "answer": "1"} for n in (3, 90)]
                    + [{"question": asked_twice, "answer": str(len(asked_twice))}])
    config = Config(task=a, heldout_prompts=13, eval_tasks=b, max_unusable=0.25,
                    prompt_tokens=52 + len("\n\nAnswer:"))
    with pytest.warns(UserWarning) as told:
        found = load_problems(config, Letters(), AtOnce())
    texts = [str(warning.message) for warning in told]
    for sentence in ("1 of 46 problems of", "11 of 62 problems cannot be used"):
        assert sum(sentence in text for text in texts) == 1, texts
    bad = {"x" * 21, "x" * 51, ""} | {"x" * n for n in range(53, 60)} | {"y" * 90}
    held, asked = questions(fair) - bad, questions(found.heldout.values())
    assert asked == held | {"yyy", asked_twice} and found.curve_tasks == {"a"}
    assert questions(found.train.values()) == (
        {"x" * n for n in range(1, 60)} - bad - questions(fair) - {asked_twice})
    assert list(found.train) == [p.id for p in found.train.values()]
    assert {i: len(ids) for i, ids in found.prompts.items()} == {
        p.id: len(p.question) + len("\n\nAnswer:")
        for p in (*found.train.values(), *found.heldout.values())}
    assert found.log == {"problems/train": len(found.train), "problems/heldout": len(asked),
                         "problems/bad_records": 1, "problems/bad_gold": 2, "problems/too_long": 8}
    assert found.prompt_tokens == max(len(q) for q in asked | questions(found.train.values())) + 9


def test_the_math_and_code_run_leaves_long_prompts_out_and_counts_them(tmp_path):
    """Four of sixty statements are longer than prompt_tokens: by default a run would end there."""
    rows = [{"question": "x" * (900 if i % 20 == 3 else i), "answer": "1"} for i in range(1, 31)]
    parts = [write_jsonl(tmp_path / name, [row | {"question": letter + row["question"] + str(i)}
                                           for i, row in enumerate(rows)])
             for name, letter in (("math.jsonl", "m"), ("code.jsonl", "c"))]
    ours = tomllib.loads((ROOT / "configs" / "math_code.toml").read_text())
    assert ours["task"] == "polaris-53k+deepcoder"
    config = Config(task="+".join(parts), heldout_prompts=8, prompt_tokens=100)
    with pytest.raises(TaskError, match="max_unusable = 0.02: 4 of 60 problems cannot be used"):
        load_problems(config, Letters(), AtOnce())
    config.max_unusable = ours["max_unusable"]
    with pytest.warns(UserWarning, match="4 of 60 problems cannot be used .*'too_long': 4"):
        found = load_problems(config, Letters(), AtOnce())
    assert found.log["problems/too_long"] == 4
    assert len(found.train) + len(found.heldout) == 56


def test_held_out_problems_are_a_fair_sample_in_their_order(tmp_path):
    """Whoever shows the first few of them must show what the whole set is."""
    config = Config(task="toy", seed=3, heldout_prompts=70, task_options={"toy": LONG})
    found = load_problems(config, Letters(), AtOnce())
    fair = load_task("toy", "heldout", heldout=70, options=LONG)
    assert list(found.heldout.values()) == fair and len(found.train) == 300


def test_a_run_without_a_held_out_problem_short_enough_is_refused_whatever_else_is_evaluated(
        tmp_path):
    """The curve is theirs: its mean over none of them would fail after hours."""
    a = write_jsonl(tmp_path / "a.jsonl", [{"question": "x" * n, "answer": "1"}
                                           for n in range(1, 10)])
    b = write_jsonl(tmp_path / "b.jsonl", [{"question": "y", "answer": "1"}])
    held, = load_task(a, "heldout", heldout=1)
    longest = len(f"{held.question}\n\nAnswer:")
    config = Config(task=a, heldout_prompts=1, eval_tasks=b, max_unusable=1.0,
                    prompt_tokens=longest)
    found = load_problems(config, Letters(), AtOnce())
    assert held.id in found.heldout and len(found.heldout) == 2 and found.curve_tasks == {"a"}
    assert found.log["problems/too_long"] == 9 - len(held.question)
    config.prompt_tokens -= 1
    with pytest.raises(TaskError, match="no held-out problem is left of"):
        load_problems(config, Letters(), AtOnce())
    config.max_unusable = 0.0
    with pytest.raises(TaskError, match="max_unusable = 0: .* 'too_long': .* and none is cut"):
        load_problems(config, Letters(), AtOnce())


def test_options_go_to_the_parts_of_task_and_evaluation():
    """One table holds them all; a single task may take its own without its name."""
    options = {"toy": {"size": 30}, "m.jsonl": {"answer": "a"}}
    for given, parts, evaluated, expected in (
            (options, ["toy"], ["m.jsonl"], options),
            (options, ["toy", "n.csv"], ["m.jsonl"], options),
            ({"size": 30}, ["toy"], ["m.jsonl"], {"toy": {"size": 30}}),
            ({}, ["toy"], [], {})):
        assert tasks.options_by_part(given, parts, evaluated) == expected
    with pytest.raises(TaskError, match="task option 'size': a mix takes options by part"):
        tasks.options_by_part({"size": 30}, ["toy", "n.csv"], ["m.jsonl"])
    config = Config(task="toy", eval_tasks="toy", heldout_prompts=3)
    with pytest.raises(TaskError, match="task and eval_tasks name 'toy' twice"):
        load_problems(config, Letters(), AtOnce())


# ------------------------------------------------------------------------------------------------
# Bad input: one sentence, with the field, the value and what would be right


@pytest.mark.parametrize(
    ("spec", "arguments", "message"),
    [
        ("tyo", {}, "task 'tyo' is unknown: use toy, reasoning"),
        ("", {}, "task '' is unknown"),
        ("toy:0.5+reasoning_gym:chain_sum", {}, "task 'toy:0.5' is unknown"),
        ("hf:openai/gsm8k", {}, "task 'hf:openai/gsm8k' cannot be read: "),
        ("gsm8k", {"options": {"colum": "q"}}, "option colum = 'q' is not one of 'gsm8k': {"),
        ("gsm8k", {"options": {"split": 3}}, "task option split = 3 is not one of 'gsm8k': {"),
        ("missing.parquet", {}, "task 'missing.parquet' cannot be read: [Errno 2] Failed to open"),
        ("missing.jsonl", {}, "task 'missing.jsonl' cannot be read: [Errno 2] No such file"),
        ("toy", {"options": {"digits": 3}}, "task option digits = 3 is not one of 'toy': {"),
        ("toy", {"options": {"size": "many"}}, "size = 'many' is not one of 'toy': {"),
        ("toy", {"options": {"size": 0}}, "of 'toy': size is at least 1"),
        ("toy", {"options": {"min_digits": 5, "max_digits": 4}}, "2 <= min_digits <= max_digits"),
        ("toy", {"options": {"max_digits": 19}}, "2 <= min_digits <= max_digits <= 18"),
        ("toy+a.jsonl", {"options": {"size": 3}}, "a mix takes options by part"),
        ("reasoning_gym:sums", {}, "Dataset 'sums' not registered"),
        ("reasoning_gym:chain_sum", {"options": {"terms": 2}}, "'terms'"),
        ("reasoning_gym:chain_sum", {"options": {"min_terms": 0}}, "min_terms must be positive"),
        ("reasoning_gym:chain_sum", {"options": {"size": -5}}, "leaves nothing to train on"),
        ("reasoning_gym:chain_sum", {"options": {"seed": 3}}, "seed"),
    ],
)
def test_a_wrong_task_is_one_sentence(spec, arguments, message):
    """The reader needs the field, the value and what would be right, not a traceback."""
    arguments = {"split": "train", **arguments}
    with pytest.raises(TaskError) as caught:
        load_task(spec, **arguments)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_braces_in_a_question_make_no_new_line_of_a_json_file(tmp_path):
    """{"data": [...]} on one line was read as objects a line where a question has a fraction."""
    (tmp_path / "a.json").write_text(json.dumps({"data": [
        {"question": rf"\frac{{1}}{{2}} of {2 * i}?", "answer": str(i)} for i in range(9)]}))
    assert len(load_task(f"{tmp_path}/a.json", "train", heldout=2)) == 7


def test_a_column_may_have_a_dot_in_its_name(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [
        {"prompt": f"{i} + 1", "reward_model.ground_truth": str(i + 1)} for i in range(9)])
    assert len(load_task(path, "train", heldout=2)) == 7


def test_holding_out_everything_is_an_error(tmp_path):
    """The default of 1,000 is more than a small file has."""
    lines = [{"question": f"{i}", "answer": "1"} for i in range(12)]
    path = write_jsonl(tmp_path / "s.jsonl", lines)
    for split in ("train", "heldout"):
        with pytest.raises(TaskError, match="has 12 distinct problems that can be used"):
            load_task(path, split)
    assert len(load_task(path, "train", heldout=11)) == 1


def test_where_too_few_can_be_held_out_the_unread_records_are_told(tmp_path):
    """The first record decides where answers stand: if it is the odd one, no other can be read."""
    lines = [{"question": f"{i}", "answer": "calc #### 5" if i == 0 else "5"} for i in range(3001)]
    with pytest.raises(TaskError, match="has 1 distinct problems that can be used; 3000 records "
                                        "cannot, the first: .*line 2 has no #### .*, as the first"):
        load_task(write_jsonl(tmp_path / "s.jsonl", lines), "train")


# ------------------------------------------------------------------------------------------------
# The file itself


def test_tasks_does_not_load_torch():
    """Verifiers run in worker processes, where a second of import per worker adds up."""
    code = "import sys, tasks; print('torch' in sys.modules, 'transformers' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                         cwd=ROOT).stdout
    assert out.split() == ["False", "False"]


def test_a_generator_with_few_answers_that_are_no_whole_numbers_is_used_without_them():
    pool, bad = tasks.load_pool("reasoning_gym:gsm_symbolic", 64, 0, {"size": 2000})
    assert len(pool) == 2064 and all(re.fullmatch("-?[0-9]+", p.answer) for p in pool)
    assert 0 < len(bad) < 20 and "no whole numbers, such as '" in bad[0]
    with pytest.raises(TaskError, match="has answers that are no whole numbers, such as '[a-z-]+'"):
        tasks.load_pool("reasoning_gym:family_relationships", 64, 0, {})
