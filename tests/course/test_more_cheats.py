"""Thirty more ways to points without work, in all exercises: none gives a point that is not there.

Each is (exercise, bodies, lines at the top of its first file, new modules). Functions that a cheat
does not name say "not written", so all of the exercise's points would be the cheat's.
"""
import json
import os
import re
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from grading import ROWS, graded, handed_out, sandboxed, tree

from course import experiment, grade, student
from course.hidden import replay, values, wire
from course.hidden.values_9 import LOGS
from course.late_push import read

HEAD = ["engines/head.py::TokenLogprobs.forward", "engines/head.py::TokenLogprobs.backward"]
LOSSES = ["loss.py::_capped", "loss.py::_sequence_log_ratio", "loss.py::_clipped"]
ALL = {number: row["functions"] for number, row in ROWS.items()}

# An array of nothing, as large as a memory: (10^12, 0) is a list of 10^12 empty lists.
VOID = '{"value": {"array": "float32", "shape": [1000000000000, 0], "data": ""}}'
EVERY_FD = """
import os
for fd in range(3, 64):
    try: os.write(fd, LINE + bytes([10]))
    except OSError: pass
raise ValueError
"""
OURS = """
import ast, os, sys
def ours(name):
    'The body of a function, from any file on this disk that has one.'
    for top, _, names in os.walk("/"):
        for file in names:
            if file.endswith(".py") and "site-packages" not in top and "/usr" not in top:
                try: text = open(os.path.join(top, file)).read()
                except Exception: continue
                if f"def {name}(" in text and 'NotImplementedError("exercise' not in \\
                        text.split(f"def {name}(")[1][:3000]:
                    space = dict(sys.modules[__name__].__dict__)
                    exec(text, space)
                    if name in space: return space[name]
    raise LookupError(name)
"""
CHEATS = {
    "the whole table at once": (1, {HEAD[0]: """
z = hidden.double() @ weight.double().T / temperature
p = z.log_softmax(1)
ctx.mark_non_differentiable(e := -(p.exp() * p).sum(1).to(hidden.dtype))
return p.gather(1, targets[:, None])[:, 0].to(hidden.dtype) * 0, e * 0"""}, "", {}),
    "log-probs of a uniform model": (1, {HEAD[0]: """
ctx.mark_non_differentiable(e := hidden.new_full((len(targets),), float(len(weight))).log())
return -e, e""", HEAD[1]: "return g * 0 if 0 else None, None, *[None] * 6"}, "", {}),
    "a head that gives what is asked for": (1, dict.fromkeys(HEAD, "return Any(), Any()"), """
class Any:
    def __getattr__(self, name): return self
    def __call__(self, *a, **k): return self
    def __iter__(self): return iter([])
""", {}),
    "torch's autograd replaced": (1, dict.fromkeys(HEAD, "return hidden, hidden"), """
import torch
torch.autograd.grad = lambda outputs, inputs, *a, **k: [torch.zeros_like(x) for x in inputs]
torch.autograd.Function.apply = classmethod(lambda cls, h, *a: (h.sum(1), h.sum(1)))
""", {}),
    "an empty array as large as a memory": (2, dict.fromkeys(ALL[2], EVERY_FD),
                                            f"LINE = {VOID.encode()!r}", {}),
    "a shape in place of numbers": (2, dict.fromkeys(ALL[2], """
import torch
return torch.empty(0).expand(0, 5)"""), "", {}),
    "numbers as text": (2, dict.fromkeys(ALL[2], "return [[str(x) for x in row] for row in "
                                         "(rewards if 'rewards' in dir() else mask).tolist()]"),
                        "", {}),
    "equal by hash": (4, dict.fromkeys(ALL[4], "return Same(0)"), """
class Same(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
    def __iter__(self): return iter([])
""", {}),
    "each ratio is one": (3, {LOSSES[0]: "return logprobs * A, log_rho > 9e9",
                              LOSSES[1]: "return log_ratio",
                              LOSSES[2]: "return (log_rho - log_rho.detach()) * A, log_rho > 9e9"},
                          "", {}),
    "the loss of the caller": (3, dict.fromkeys(LOSSES, """
import sys
return sys._getframe(1).f_locals.get("terms"), sys._getframe(1).f_locals.get("where")"""), "", {}),
    "an optimizer that finds the answer": (3, dict.fromkeys(LOSSES, """
import torch
x = torch.nn.Parameter(torch.zeros(9, 9))
for _ in range(5): (x ** 2).sum().backward()
return x, x > 0"""), "", {}),
    "all bodies of a folder of libraries": (3, dict.fromkeys(LOSSES, """
import importlib
for name in ("trl", "transformers", "engines.head", "scaleout.team", "course.grade"):
    for key, f in vars(importlib.import_module(name)).items():
        if "clip" in key: return f(log_rho, A, low, high)"""), "", {}),
    "ours, found by its name": (3, {f: f"return ours({f.split('::')[1]!r})(*args())" for f in
                                    LOSSES}, OURS + """
def args():
    names = sys._getframe(1).f_locals
    return list(names.values())
""", {}),
    "ours, of the exercise before": (4, {
        "scalerl.py::Curriculum.next": "from keep import find; return find('next')(self)",
        "scalerl.py::Curriculum.learned": "from keep import find; return find('learned')(self, 1)"},
        "", {"keep.py": OURS.replace("sys.modules[__name__].__dict__", "{}")
             + "\nfind = ours\n"}),
    "what another exercise has left": (4, {
        "loss.py::zero_variance": """
import glob, os
for place in ("/tmp", "/var/tmp", "/dev/shm", "/run"):
    for path in glob.glob(place + "/**", recursive=True):
        if path.endswith(".stash"): exec(open(path).read())
return True"""}, "", {}),
    "no prompt is ever asked": (4, {"scalerl.py::Curriculum.next": "return None",
                                    "scalerl.py::Curriculum.learned": "return True",
                                    "scalerl.py::Curriculum.record": "return None"}, "", {}),
    "a log without numbers": (4, {"scalerl.py::effective_batch": """
import collections
return rollouts, rewards, collections.defaultdict(float)"""}, "", {}),
    "it never waits, and never takes": (5, {
        "scalerl.py::PipelinePacer.take": "return None",
        "scalerl.py::PipelinePacer.leaves_enough_time": "return False",
        "scalerl.py::PipelinePacer.may_admit": "return False"}, "", {}),
    "as good as a coin": (5, {
        "scalerl.py::PipelinePacer.leaves_enough_time": "return version % 2",
        "course/naive_pacer.py::counterexample":
            "import random\nreturn [[random.randrange(9)] for _ in range(50)]"}, "", {}),
    "the longest schedule": (5, {"course/naive_pacer.py::counterexample":
                                 "return [list(range(2000))] * 2000"}, "", {}),
    "the naive rule's class replaced": (5, {"course/naive_pacer.py::counterexample": """
NaivePacer.take = lambda self, version: list(self.groups.values())[-1:]
return [[0]] * 50"""}, "", {}),
    "the budgets' mean": (6, {"sampler.py::Interruption.draw_budgets":
                              "return torch.full((count,), self.think_min + 2)"},
                          "", {}),
    "the likeliest token": (6, {"sampler.py::TransformersSampler._choose": """
z = head_logits(hidden, self.head)
return z.argmax(1), z.log_softmax(1).amax(1)"""}, "", {}),
    "tokens beyond the vocabulary": (6, {"sampler.py::TransformersSampler._choose": """
n = len(hidden)
return torch.full((n,), 10**12), torch.zeros(n)"""}, "", {}),
    "the script read from the caller": (6, {"sampler.py::TransformersSampler._record": """
import sys
seen = sys._getframe(3).f_locals.get("scripts")
return list(range(len(token))) if seen else []"""}, "", {}),
    "weights by reference": (6, {"sampler.py::TransformersSampler.push_weights": """
for name, x in named_tensors:
    path, leaf = name.rsplit(".", 1)
    setattr(self.model.get_submodule(path), leaf, torch.nn.Parameter(x))
self.version = version"""}, "", {}),
    "a line through the points": (7, {"fit.py::law_at": "return np.full(np.shape(C), R0)",
                                      "fit.py::compare_laws": "return {}",
                                      "fit.py::Search.starts": "return [[0.0, 0.0]] * 4"}, "", {}),
    "a bootstrap of one number": (7, {"fit.py::replicates": """
return Replicates(search.law, np.tile(theta, (bootstrap, 1)), R * 0)"""},
                                  "", {}),
    "nan is not unequal": (7, dict.fromkeys(ALL[7], "return np.float64('nan')"), "", {}),
    "always the first run": (9, {ALL[9][0]: "return 0"}, "", {}),
    "the largest mismatch": (9, {ALL[9][0]: """
return max(range(3), key=lambda i: sum(x.get("mismatch/kl_k3/lag_0", 0) for x in logs[i]))"""},
                             "", {}),
    "the largest mismatch of the last step": (9, {ALL[9][0]: """
return max(range(3), key=lambda i: logs[i][-1].get("mismatch/mean_abs_dlogp/lag_0", 0))"""},
                                              "", {}),
    "a mismatch above a threshold": (9, {ALL[9][0]: """
apart = "mismatch/mean_abs_dlogp/lag_0"
return next((i for i in range(3) if max(x.get(apart, 0) for x in logs[i]) > 0.006), 0)"""},
                                     "", {}),
    "the course's constant": (10, {ALL[10][0]: "return 0.85"}, "", {}),
    "the last value": (10, {ALL[10][0]: "return float(R[-1])"}, "", {}),
    "the file of answers": (10, {ALL[10][0]: f"""
import csv
rows = list(csv.DictReader(open({str(student.ROOT / "results/study/evals.csv")!r})))
return float(rows[-1]["eval/toy/mean@1"])"""}, "", {}),
    "with replacement": (12, {ALL[12][0]: "return 1 - (1 - np.asarray(right) / samples) ** k",
                              ALL[12][1]: "return 0.0, -1.0, 1.0"}, "", {}),
    "an interval that is always right": (12, {ALL[12][1]: "return 0.0, -9e9, 9e9"}, "", {}),
}


@pytest.fixture(autouse=True)
def not_patient(monkeypatch):
    monkeypatch.setattr(values, "ASK_S", 20)


@sandboxed
@pytest.mark.days(6)
@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_of_another_exercise_earns_nothing(name):
    number, bodies, top, extra = CHEATS[name]
    where = next(iter(bodies)).split("::")[0]
    lines = tree(bodies, top, where=where) if top else tree(bodies)
    row = graded(number, lines, extra)
    assert row["points"] == 0, [part["part"] for part in row["parts"] if not part["why"]]


@sandboxed
def test_a_child_finds_nothing_of_the_one_before():
    """What exercise 3's process leaves on the disk is gone when exercise 4's begins."""
    leave = dict.fromkeys(LOSSES, """
import os
os.makedirs("/tmp/deep/er", exist_ok=True)
open("/tmp/deep/er/x.stash", "w").write("raise SystemExit")
open("/tmp/y.stash", "w").write("x")
os.symlink("/tmp", "/tmp/loop")
return 0""")
    assert graded(3, tree(leave))["points"] == 0
    look = dict.fromkeys(ROWS[4]["functions"], """
import glob
raise RuntimeError(str(sorted(glob.glob("/tmp/*"))))""")
    why = graded(4, tree(look))["parts"][0]["why"]
    assert "'/tmp/tree'" in why and not re.search("deep|stash|loop", why), why


@sandboxed
def test_a_submission_cannot_end_the_process_that_others_wait_for():
    body = """
import ctypes, os, signal
for pid in range(0, 40):
    try: os.kill(pid, signal.SIGKILL)
    except OSError: pass
ctypes.CDLL(None).ptrace(16, 2, 0, 0)
os.fork()
return 0"""
    assert graded(3, tree(dict.fromkeys(LOSSES, body)))["points"] == 0
    row = graded(2, tree(real=[2]))
    assert row["points"] == row["of"]


def test_an_array_of_nothing_may_not_be_large():
    """As a list it would take 56 GB of the grader's memory for each 10^9 rows."""
    for shape in ([10**12, 0], [0, 10**12], [1 << 21, 0]):
        line = json.dumps({"array": "float32", "shape": shape, "data": ""}).encode()
        with pytest.raises(ValueError):
            wire.decode(line)
    assert wire.decode(wire.encode(np.zeros((9, 0)))).shape == (9, 0)


@pytest.mark.days(4, turn=3)
@sandboxed
def test_a_module_with_the_name_of_a_library_costs_nobody_his_points(tmp_path):
    """It would lie in front of the library; and it must not look like a project that is installed
    as a package, where nothing can be graded, not of others either."""
    student.write(tmp_path / "tree")
    student.restore(tmp_path / "tree", [2])
    (tmp_path / "tree" / "six.py").write_text("raise SystemExit")
    (tmp_path / "tree" / "torch.py").write_text("raise SystemExit")         # of a package
    (tmp_path / "tree" / "random.py").write_text("raise SystemExit")        # of Python's own
    (tmp_path / "tree" / "numpy").mkdir()
    (tmp_path / "tree" / "numpy" / "mine.py").write_text("x = 1")
    (tmp_path / "tree" / "loss.py.d").mkdir()
    (tmp_path / "tree" / "loss.py.d" / "x.py").write_text("x = 1")
    told = grade.grade(tmp_path / "tree", 3, only=[2])
    assert told["points"] == 10
    assert {f"{path} has the name of a library: it is not used" for path in (
        "six.py", "torch.py", "random.py", "numpy/mine.py")} <= {*told["notes"]}


@pytest.mark.days(4, turn=0)
@sandboxed
def test_modules_of_many_megabytes_stop_nobodys_grading(tmp_path):
    """A small archive may unpack to them. The smallest are used, and the rest is said."""
    student.write(tmp_path / "tree")
    student.restore(tmp_path / "tree", [2])
    for i in range(6):
        (tmp_path / "tree" / f"a{i}.py").write_text("#" + chr(1) * (grade.MOST - 1))
    (tmp_path / "tree" / "z.py").write_text("x = 1\n")
    found, said = grade.new_modules(tmp_path / "tree", student.handed_out())
    assert {*found} == {"z.py", "a0.py", "a1.py", "a2.py"} and "not a3.py" in said[0]
    told = grade.grade(tmp_path / "tree", 3, only=[2])
    assert told["points"] == 10 and said[0] in told["notes"]


class Pipes(values.Sandbox):
    """A sandbox whose children are pipes: `read` is called with all that came, and answers."""
    process = None

    def __init__(self, read):
        self.read = read

    def fork(self):
        (theirs, into), (out, back) = os.pipe(), os.pipe()
        self.process = SimpleNamespace(pid=os.getpid())

        def child():
            with os.fdopen(theirs, "rb") as questions, os.fdopen(back, "wb") as answers:
                answers.write(self.read(questions.readline()))
        self.child = threading.Thread(target=child)
        self.child.start()
        return into, out

    def end(self):
        self.child.join()


def service_of(read, extra):
    return values.Service(Pipes(read), {}, {}, {}, extra, 100)


def test_what_is_sent_to_the_sandbox_is_not_copied_at_each_write():
    """Else the time would grow with the square of what a student hands in."""
    class Counted(bytearray):
        copied = 0

        def __getitem__(self, at):
            Counted.copied += 1
            return super().__getitem__(at)
    service = service_of(lambda line: b"%d\n" % len(line), {})
    service.pipes, service.rest, service.begun = service.sandbox.fork(), bytearray(), 0
    for each in service.pipes:
        os.set_blocking(each, False)
    service.clock = lambda: 0
    assert service.line(Counted(b"x" * (1 << 20) + b"\n"), 100) == b"%d" % ((1 << 20) + 1)
    assert Counted.copied == 0


def test_files_that_the_sandbox_cannot_take_in_cost_their_exercise_and_nobody_else():
    """Where it would not be ready without them either, nothing can be graded."""
    ready = b'{"value": "ready"}\n'
    service = service_of(lambda line: b"" if b"heavy" in line else ready, {"heavy.py": ""})
    with pytest.raises(values.Failed, match="too much for the sandbox"):
        service.ask("head")
    with pytest.raises(values.SandboxError):
        service_of(lambda line: b"", {"heavy.py": ""}).ask("head")


def test_the_code_and_the_model_of_a_run_are_not_read_if_they_are_too_large(
        tmp_path, monkeypatch):
    """512 MB of it may be handed in, and all would go to the sandbox as one line."""
    plan = tmp_path / "experiment" / "plan.md"
    plan.parent.mkdir()
    plan.write_text("base: configs/stress.toml\nchanged: eps_max = 2.0\nmeasure: end\n"
                    "smallest: 0.05\nexpected: no difference\nseeds: 0 1 2 3 4\n")
    (tmp_path / "models" / "toy").mkdir(parents=True)
    (tmp_path / "models" / "toy" / "config.json").write_text("{}")
    for name in (name for pair in experiment.run_names(experiment.read_plan(plan.parent))
                 for name in pair):
        (tmp_path / "runs" / name / "source").mkdir(parents=True)
        (tmp_path / "runs" / name / "source" / "loss.py").write_text("x = 1\n")
        (tmp_path / "runs" / name / "config.toml").write_text(
            f'name = "{name}"\nsteps = 10\neval_every = 10\nseed = 0\n')
    monkeypatch.setattr(replay, "MOST_MODEL", 1)
    with pytest.raises(student.BadInput, match="models/toy has more than 1 bytes"):
        replay.same_again(plan.parent, 3, None)
    monkeypatch.setattr(replay, "MOST_SOURCE", 5)
    with pytest.raises(student.BadInput, match="more than 5 bytes of programs"):
        replay.same_again(plan.parent, 3, None)


def test_a_file_in_a_coding_of_domain_names_is_not_decoded(tmp_path):
    """A megabyte of it takes a minute."""
    (tmp_path / "x.py").write_bytes(b"# coding: Punycode\n" + b"a" * 9 + b"-b")
    with pytest.raises(student.BadInput, match="no coding of programs"):
        grade.handed_in(tmp_path, "x.py")


@pytest.mark.days(4)
@sandboxed
@pytest.mark.parametrize("text", ["-" * 100_000 + "1", "(" * 5000, "x = '\\0'\0", "\0",
                                  "lambda: " * 5000 + "1", "x = " + "[" * 200 + "]" * 200])
def test_a_file_that_breaks_the_parser_costs_its_own_exercises_alone(tmp_path, text):
    student.write(tmp_path / "tree")
    student.restore(tmp_path / "tree", [2])
    (tmp_path / "tree" / "fit.py").write_text(text + "\n")
    told = grade.grade(tmp_path / "tree", 3, only=[2, 7])
    assert [row["points"] for row in told["exercises"]] == [10, 0]


NUMBERS = {"the last": lambda v: v[-1], "the largest": max, "the smallest": min,
           "the mean": np.mean, "the median": np.median, "the sum": sum}


def test_no_single_number_says_which_run_pushed_late():
    """Of each column some late run has less than a punctual one, and some late run more. So a draw
    of exercise 9 may have both, and neither the largest number, nor the smallest, nor a threshold
    names the late one. It takes two columns."""
    logs = {path.stem: read(path) for path in sorted(LOGS.glob("*.jsonl"))}
    late = [name for name in logs if name.startswith("late")]
    columns = {name for log in logs.values() for line in log for name in line}
    assert "mismatch/mean_abs_dlogp/lag_0" in columns and len(late) == len(logs) / 4
    for column in columns:
        for what, number in NUMBERS.items():
            found = {name: number([line[column] for line in log if column in line] or [0])
                     for name, log in logs.items()}
            mine = [found.pop(name) for name in late]
            assert min(mine) <= max(found.values()), (what, column)
            assert max(mine) >= min(found.values()), (what, column)


def test_every_exercise_with_functions_is_cheated_on():
    assert {number for number, *_ in CHEATS.values()} == {n for n, f in ALL.items() if f}
    assert len(CHEATS) >= 30 and handed_out()
