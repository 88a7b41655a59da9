"""What own_reward.py promises: a Python file is a task, and nothing that its function does ends a
run. The file of docs/tasks.md is the first one; the others are written here."""

import random
import re
import runpy
import signal
import subprocess
import sys
import time

import psutil
import pytest
from conftest import ROOT, arguments, lines, run_command
from made_tasks import AtOnce
from test_verifier import Chars, finished

from tasks import TaskError, Verifier, verifier as room
from tasks.problems import check_files, check_gold, load_splits
from tasks.sources import load_pool, own_problems
from config import Config

EXAMPLE = re.search(r"```python\n(\"\"\"Write a short.*?)```", (ROOT / "docs/tasks.md").read_text(),
                    re.S)[1]
PROBLEM = 'problems = [{"question": "q", "n": 5}]\n'


@pytest.fixture
def file(tmp_path):
    """Writes a task, and gives its path and its problems."""
    def write(text, name="mine.py"):
        path = tmp_path / name
        path.write_text(text)
        return str(path), load_pool(str(path), 0, 0, {})[0]
    return write


def reasons(problems, texts, deadline_s=60.0, workers=2):
    """(reasons, log, seconds) of texts for the first problem, by way of the workers."""
    problem, start = problems[0], time.monotonic()
    with Verifier(workers=workers, deadline_s=deadline_s) as verifier:
        scores = verifier.score([(text, problem.answer, problem.kind, problem.question)
                                 for text in texts])
    return scores.reasons, scores.log, time.monotonic() - start


def test_the_example_of_the_page_is_a_task_and_pays_right_sentences_alone(file, seed):
    """Fresh problems of it, by way of the verifier, against a plain count of words."""
    assert len(EXAMPLE.splitlines()) <= 15
    path, problems = file(EXAMPLE, "words.py")
    rng = random.Random(seed)
    assert len(problems) == 7 * 30 and check_gold(problems, AtOnce()) == {}
    assert load_splits(path, heldout=30) == load_splits(path, heldout=30)
    asked = {p.id: p for p in rng.sample(problems, 12)}
    rollouts, expected = [], []
    for name, problem in asked.items():
        n, word = re.search(r"at most (\d+) words with the word (\w+)", problem.question).groups()
        length, has = rng.choice([3, int(n), int(n) + 1]), rng.random() < 0.7
        said = [*rng.choices(["so", word + "s"], k=length - 1), word if has else "so"]
        rng.shuffle(said)
        sentence = " ".join(said).capitalize()
        rollouts += [finished(f"{word}</think> {sentence}.\n", name),
                     finished(word, name, reason="length"), finished("", name)]
        expected += [1.0 if has and length <= int(n) else -1.0, -1.0, -1.0]
    with Verifier(workers=2) as verifier:
        rewards, log = verifier.rewards(rollouts, asked, Chars)
    assert rewards == expected and log["verifier/slow_frac"] == pytest.approx(1 / 3)
    assert log["verifier/error_frac"] == log["verifier/bad_reward_frac"] == 0


@pytest.mark.parametrize(("value", "reason"), [
    ("True", "correct"), ("False", "wrong"), ("1", "correct"), ("0", "wrong"), ("-1.0", "wrong"),
    ("1e-9", "correct"), ("-0.3", "wrong"), ("__import__('numpy').float32(.5)", "correct"),
    ("__import__('numpy').bool_(True)", "correct"),
    ("float('nan')", "bad reward"), ("1.01", "bad reward"), ("-2", "bad reward"),
    ("float('inf')", "bad reward"), ("None", "bad reward"), ("'1'", "bad reward"),
    ("[1.0]", "bad reward"), ("1j", "bad reward"),
    ("1 / 0", "error"), ("problem['m']", "error"), ("problem.nothing", "error"),
    ("open('/nowhere')", "error"), ("[0] * 10 ** 12", "error"), ("reward(problem, text)", "error"),
])
def test_above_0_is_right_and_what_is_no_reward_is_counted_and_told(file, capfd, value, reason):
    """In a worker, as in a run. What could not be judged is -1 for its sample and no more."""
    _, problems = file(f"{PROBLEM}def reward(problem, text):\n"
                       f"    return {value} if text == 'a' else True")
    found, log, _ = reasons(problems, ["a", "b"], workers=1)
    assert found == [reason, "correct"]
    told = capfd.readouterr().err
    assert log["verifier/error_frac"] == (reason in ("error", "bad reward")) / 2
    assert log["verifier/bad_reward_frac"] == (reason == "bad reward") / 2
    assert told.count("counted as an error, and told once") == (reason in ("error", "bad reward"))
    assert told.count("cut at 0, and told once") == (value in ("1e-9", "-0.3", "__import__('numpy')"
                                                               ".float32(.5)"))


@pytest.mark.parametrize("code", ["sys.exit(0)", "os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_a_reward_that_ends_its_process_is_an_error_of_that_sample(file, code):
    _, problems = file(f"import os, sys\n{PROBLEM}def reward(problem, text):\n"
                       f"    if text == 'a': {code}\n    return True")
    assert reasons(problems, ["a", "b"])[0] == ["error", "correct"]


HANGS = {
    "a loop": "while True: pass",
    "sleep": "time.sleep(10 ** 6)",
    "a pattern, in C": "re.match('(a+)+b', 'a' * 99)",
    "it catches everything": "try: time.sleep(10 ** 6)\n        finally: time.sleep(10 ** 6)",
    "it has stopped the clock": "signal.alarm(0); time.sleep(10 ** 6)",
    "it has a clock of its own": "signal.signal(signal.SIGALRM, print); time.sleep(10 ** 6); "
                                 "time.sleep(10 ** 6)",
    "its child holds the pipes": "os.fork(); time.sleep(10 ** 6)",
    "its program waits": "subprocess.run(['sleep', '1000000'])",
}


@pytest.mark.days(4)
@pytest.mark.parametrize("what", HANGS)
def test_a_reward_that_does_not_end_costs_its_sample_and_leaves_no_process(file, what, monkeypatch):
    """Rewards from elsewhere call alarm() themselves, which takes the worker's clock away; and a
    child that holds the worker's pipe would keep the trainer waiting behind a worker that is gone.
    """
    monkeypatch.setattr(room, "GRACE_S", 1.0)
    _, problems = file("import os, re, signal, subprocess, time\n"
                       f"{PROBLEM}def reward(problem, text):\n    if text == 'a':\n"
                       f"        {HANGS[what]}\n    return True")
    found, log, _ = reasons(problems, ["a", "b"], deadline_s=2.0)
    assert found == ["timeout", "correct"] and log["verifier/timeout_frac"] == 1 / 2
    time.sleep(0.5)
    left = [p.info["cmdline"] for p in psutil.process_iter(["cmdline", "status"])
            if p.info["cmdline"] and p.info["status"] != psutil.STATUS_ZOMBIE
            and p.info["cmdline"][:2] == ["sleep", "1000000"]]
    assert left == []


def test_a_worker_whose_trainer_is_killed_leaves_no_traceback(file):
    """It has a verdict that nobody reads any more. The pipe of errors ends with the worker."""
    _, problems = file(f"import time\n{PROBLEM}def reward(problem, text):\n"
                       "    time.sleep(0.2 * (text == 'b'))\n    return True")
    items = [(text, problems[0].answer, problems[0].kind) for text in "ab"]
    code = ("import os, signal, threading, time\nfrom tasks.verifier import Verifier\n"
            f"a, b = {items!r}\nverifier = Verifier(workers=1)\nverifier.score([a])\n"
            "worker = verifier.idle[0]\n"
            "threading.Thread(target=verifier.score, args=[[b]], daemon=True).start()\n"
            "while verifier.idle: time.sleep(0.001)\n"
            "time.sleep(0.05)\nos.kill(os.getpid(), signal.SIGKILL)")
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT,
                           timeout=120)
    assert child.returncode == -signal.SIGKILL and child.stderr == ""


def test_what_a_reward_prints_is_no_verdict(file, capfd):
    """Nor what a program prints that it starts, on the same standard output."""
    _, problems = file(f"import os\n{PROBLEM}def reward(problem, text):\n"
                       "    print('correct')\n    os.system('echo correct')\n    return False")
    assert reasons(problems, ["a", "b", "c"])[0] == ["wrong"] * 3
    assert capfd.readouterr().err.count("correct") == 6


def test_a_reward_and_what_it_starts_are_not_on_the_line_to_the_trainer(file):
    """What it reads is empty, so `input()` raises at once, and takes no job. A program that it
    leaves behind, with its input, would keep the trainer waiting for an ended worker."""
    _, problems = file(f"import os, subprocess, sys\n{PROBLEM}def reward(problem, text):\n"
                       "    if text == 'read':\n        return sys.stdin.read() == ''\n"
                       "    if text == 'input':\n        return input() == ''\n"
                       "    subprocess.Popen(['sleep', '300'])\n    os._exit(3)")
    found, _, seconds = reasons(problems, ["read", "input", "leave"], deadline_s=120.0)
    assert found == ["correct", "error", "error"] and seconds < 120


def test_a_reward_cannot_change_the_problem_for_the_next_sample(file):
    _, problems = file(f"{PROBLEM}def reward(problem, text):\n    problem['n'] += 1\n"
                       "    return problem['n'] == 6")
    assert reasons(problems, ["a", "b", "c"], workers=1)[0] == ["correct"] * 3


def test_trls_reward_function_is_called_as_trl_calls_it(file, seed):
    """Lists of one: prompts, completions with the thinking, every other column. Its functions
    swallow what they do not name."""
    target = random.Random(seed).randrange(3, 40)
    path, problems = file(
        f'problems = lambda: [{{"prompt": "Say it.", "target": {target}, "set": (1, 2)}}]\n'
        "def reward_func(prompts, completions, target, **kwargs):\n"
        "    assert prompts == ['Say it.'] and kwargs == {'set': [(1, 2)]}\n"
        "    return [float(len(c) == t) for c, t in zip(completions, target)]\n")
    assert problems[0].question == "Say it." and problems[0].kind == "reward_func"
    texts = ["<think>" + "x" * (target + more - 15) + "</think>" for more in (15, 16)]
    texts += ["y" * target, "y" * (target + 1), ""]
    expected = ["correct" if len(text) == target else "wrong" if text else "no answer"
                for text in texts]
    assert reasons(problems, texts)[0] == expected and expected.count("correct") == 1
    _, problems = file(f"{PROBLEM}def reward_func(prompts, completions, ids, **_): return [1]")
    assert reasons(problems, ["a"])[0] == ["error"]


def test_to_a_prompt_of_messages_a_trl_function_gets_a_message_as_trl_has_it(file, seed):
    """Half of the reward functions in other people's repositories read completion[0]["content"]."""
    n = random.Random(seed).randrange(2, 9)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say it."}]
    _, problems = file(
        f"problems = [{{'prompt': {messages}, 'question': 'not this', 'n': {n}}}]\n"
        "def reward_func(prompts, completions, n, question, **kwargs):\n"
        f"    assert prompts == [{messages}] and question == ['not this'] and not kwargs\n"
        "    assert completions[0][0]['role'] == 'assistant'\n"
        "    return [len(c[0]['content']) == m for c, m in zip(completions, n)]\n")
    assert problems[0].question == "Be brief.\n\nSay it."
    assert reasons(problems, ["y" * n, "y" * (n + 1)])[0] == ["correct", "wrong"]
    _, problems = file("from trl.rewards import accuracy_reward as reward_func\n"
                       f"problems = [{{'prompt': {messages}, 'solution': '$\\\\frac12$'}}]",
                       "theirs.py")
    assert reasons(problems, [r"So \boxed{0.5}", r"So \boxed{0.6}"])[0] == ["correct", "wrong"]
    _, problems = file("problems = [{'prompt': ['Say it.']}]      # a list of one text is a text\n"
                       "def reward_func(prompts, completions):\n"
                       "    return [(prompts, completions) == (['Say it.'], ['it'])]\n", "text.py")
    assert reasons(problems, ["it", "no"])[0] == ["correct", "wrong"]


def test_a_trl_function_that_wants_messages_is_told_how_to_get_them(file, capfd):
    """TRL's own examples read completion[0]["content"]; to a prompt of text it is a text."""
    _, problems = file("""problems = [{"prompt": "q"}]
def reward_func(completions, **columns): return [float("5" in c[0]["content"]) for c in completions]
""")
    assert reasons(problems, ["5"], workers=1)[0] == ["error"]
    assert 'messages where "prompt" is a list of messages' in capfd.readouterr().err


def test_what_never_ends_or_ends_its_process_is_told_once_by_the_trainer(file, capfd):
    """Each late answer costs its deadline: without a word a run would only be slow."""
    path, problems = file("import os, time\n" + PROBLEM + "def reward(problem, text):\n"
                          "    time.sleep(60) if text[0] == 'l' else os._exit(3)\n")
    assert reasons(problems, ["late 1", "ends 1", "late 2", "ends 2"], deadline_s=0.5)[0] == [
        "timeout", "error"] * 2
    said = capfd.readouterr().err
    assert said.count(f"{path}: counted as an error, and told once: no end within 0.5 s") == 1
    assert said.count("it has ended its process, with status 3") == 1


def test_a_file_finds_what_lies_in_the_folder_of_the_run(file, tmp_path, monkeypatch):
    """At its top level, which workers run as well; a folder there that is named as ours does no
    harm."""
    (tmp_path / "words.txt").write_text("right")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "__init__.py").write_text("raise SystemExit('not ours')")
    monkeypatch.chdir(tmp_path)
    _, problems = file("word = open('words.txt').read()\n" + PROBLEM
                       + "def reward(problem, text):\n    return text == word\n")
    assert reasons(problems, ["right", "wrong"])[0] == ["correct", "wrong"]


def test_a_file_is_a_part_of_a_mix_and_can_be_evaluated(file, tmp_path):
    (tmp_path / "helper_of_mine.py").write_text("def right(text): return text == 'yes'\n")
    text = ("import dataclasses, helper_of_mine\n@dataclasses.dataclass\nclass One: n: int\n"
            "problems = [{'question': f'{i}?', 'n': i} for i in [*range(40), 7]]\n"
            "def reward(problem, text):\n"
            "    return helper_of_mine.right(text) and One(problem['n']).n >= 0")
    path, problems = file(text)
    assert len(problems) == 40 and reasons(problems, ["yes", "no"])[0] == ["correct", "wrong"]
    other, _ = file(text.replace("range(40)", "range(30, 50)"), "other.py")
    train, held, extra, bad = load_splits(f"{path}+toy", heldout=10, eval_spec=other)
    assert {p.kind for p in train} == {"reward", "exact"} == {p.kind for p in held} and not bad
    assert len(extra) == 21 and not {p.question for p in train} & {p.question for p in extra}
    with pytest.raises(TaskError, match="task option size = 3 is not one of"):
        load_pool(path, 0, 0, {"size": 3})


def test_a_file_with_a_plus_in_its_name_is_told_from_two_tasks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q+2.jsonl").write_text('{"question": "1", "answer": "1"}\n')
    with pytest.raises(TaskError, match=r"2.jsonl' .* no such file \(.\+. stands between"):
        check_files(Config(model="x", task="q+2.jsonl"))


REWARD = "def reward(problem, text): return True\n"
BAD_FILES = {
    # 80 of 100 were dropped, and nothing said so
    "a question again": (REWARD + "problems = [{'question': f'Above {n % 20}?', 'n': n} for n in "
                         "range(100)]", "asks 'Above 0.' again, with other fields"),
    "no file": (None, "cannot be run: FileNotFoundError"),
    "a bad line": (f"{PROBLEM}def reward(problem, text) return True", "SyntaxError"),
    "raises": (f"x = 1\n{PROBLEM}y = x / 0\n{REWARD}", "ZeroDivisionError.*by.*line 3$"),
    "ends": (f"import sys\n{PROBLEM}sys.exit('no data')\n{REWARD}", "SystemExit.*no data.*line 3$"),
    "its problems raise": (f"def problems(): return open('/no/data')\n{REWARD}",
                           "FileNotFoundError.*line 1$"),
    "no reward": (PROBLEM, "must define .*one function of reward, reward_func .it has none"),
    "a reward that is none": (PROBLEM + "reward = 1.0", "must define .*function of .*has none"),
    "both": (f"{PROBLEM}{REWARD}reward_func = reward", "has reward, reward_func."),
    "no problems": (REWARD, "must define problems"),
    "an empty list": ("problems = []\n" + REWARD, "must define problems"),
    "a number": ("problems = 7\n" + REWARD, "TypeError"),
    "texts": ("problems = ['a', 'b']\n" + REWARD, 'has a problem that is no table .*: number 1'),
    "no question": (f"problems = [{{'question': 'q'}}, {{'n': 5}}]\n{REWARD}",
                    "has a problem that is no table .*: number 2"),
    "a conversation": ("problems = [{'prompt': 2 * [{'role': 'user', 'content': 'q'}]}]\n" + REWARD,
                       "has a problem that is no table .*: number 1"),
    "an empty question": (f"problems = [{{'question': ' '}}]\n{REWARD}", "no table .*: number 1"),
    "half of a sign": (f"problems = [{{'question': '1 \\ud83d'}}]\n{REWARD}", "no table of "),
    "an object": (f"problems = [{{'question': 'q', 'f': print}}]\n{REWARD}", "no table of numbers"),
}


@pytest.mark.parametrize("what", BAD_FILES)
def test_a_bad_file_is_one_sentence_before_any_model_is_loaded(tmp_path, what):
    text, sentence = BAD_FILES[what]
    path = tmp_path / "bad.py"
    if text is not None:
        path.write_text(text)
    for settings in ({"task": str(path)}, {"task": f"toy+{path}"}, {"eval_tasks": str(path)}):
        with pytest.raises(TaskError, match=f"^'{re.escape(str(path))}' .*{sentence}"):
            check_files(Config(model="x", **settings))


@pytest.mark.days(4, turn=0)
def test_the_command_refuses_a_bad_file_and_trains_on_a_good_one(micro, tmp_path):
    """A whole run, small: the reward sees the toy's answers, and what it fails at is in the log."""
    (tmp_path / "bad.py").write_text(PROBLEM)
    start = [ROOT / "scalerl.py", *arguments(tmp_path / "no-model", task="bad.py")]
    done = run_command(start, tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("scalerl.py: 'bad.py' must define ")
    assert done.stderr.count("\n") == 1
    (tmp_path / "even.py").write_text(
        "problems = [{'question': f'{i // 10}+{i % 10}', 'last': i % 10} for i in range(60)]\n"
        "def reward(problem, text):\n"
        "    if problem['last'] == 3: return 1 / 0\n"
        "    if problem['last'] == 5: return 7.0\n"
        "    return 0.5 if text in '02468' else -0.5\n")
    done = run_command([ROOT / "scalerl.py", *arguments(
        micro, task="even.py", task_options="{}", steps=3, name="even")], tmp_path)
    assert done.returncode == 0, done.stderr
    steps = [line for line in lines(tmp_path / "runs" / "even") if line["step"]]
    assert len(steps) == 3 and any(0 < line["pass_rate"] < 1 for line in steps)
    assert max(line["verifier/error_frac"] for line in steps) > 0
    assert "ZeroDivisionError" in done.stderr and "7.0 is no reward" in done.stderr


def test_the_example_with_a_generators_own_rule_is_one(tmp_path):
    """What tasks/ no longer does by itself: a sudoku is judged by its generator."""
    block = re.findall(r"```python\n(import reasoning_gym.*?)```",
                       (ROOT / "docs/tasks.md").read_text(), re.S)[0].replace("=500", "=3")
    (tmp_path / "gym.py").write_text(block)
    made = runpy.run_path(str(tmp_path / "gym.py"))
    problem = made["problems"][2]
    gold = made["source"][2]["answer"]
    assert made["reward"](problem, gold) and not made["reward"](problem, gold.replace("1", "2"))
    assert own_problems(str(tmp_path / "gym.py"))[0].kind == "reward"
