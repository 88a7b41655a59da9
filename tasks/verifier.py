r"""Rewards: is the answer in this text the right one, and why (paper, A.3: +1 or -1).

The paper grades with SymPy and Math-Verify. Ours: one answer is read, from a fixed place
(answers.py), where Math-Verify tries several and a policy learns to fill them all; a gold number
wants a number, and no formula of the question is an answer; batches go through worker processes
with a deadline, as Math-Verify's own works in the main thread only.

    >>> verify(r"It is \boxed{[2, 3)}.", r"x \in [2,3)")
    (1.0, 'correct')"""
import ast
import contextlib
import functools
import gc
import json
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

from tasks import answers, own_reward, sandbox
from tasks.own_reward import TaskError

THINK_TAGS = ("<think>", "</think>")
START_S = 120.0  # for a worker to start and to import what it needs; far more than that takes
GRACE_S = 5.0  # after its deadline a worker is gone by itself, unless somebody has stopped it
WRONG = "no answer", "wrong", "several answers"  # by their number, if they are not all right
Scores = namedtuple("Scores", "rewards reasons log")  # in the order of the batch

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time limit is off


def verify(text, answer, kind="math", question=""):
    """(reward, reason) of a completion: +1.0 for "correct", else -1.0.

    kind: "math" compares values with the gold answer, "exact" the stripped text. "code": the last
    program passes all unit tests, which are the answer, as JSON. "reward", "reward_func": above 0
    by the function of that name (own_reward.py).
    reason: "correct", "wrong", "no answer" or "several answers"; or, where it could not be judged,
    "unreadable", "bad reward", "timeout" or "error".
    Without a deadline: a model's samples go through `Verifier`. Raises TaskError: unknown kind."""
    if kind == "code":  # UnitTests, or tests as data sets have them; or either as JSON
        tests = json.loads(answer) if isinstance(answer, str) else answer
        first = tests[0] if isinstance(tests, list | tuple) and tests else None
        answer = json.dumps(tests if isinstance(first, list) else sandbox.read_tests(tests))
    job = read(text, str(answer), kind, question)
    reason = job if isinstance(job, str) else grade(*job)
    return (1.0 if reason == "correct" else -1.0), reason


def read(text, answer, kind, question="", think_tags=THINK_TAGS):
    """A reason where that can be said at once, else a job: the arguments of `grade`."""
    opens, closes = think_tags
    if kind != "reward_func":  # TRL's read all of it, and some the tags of the thinking
        text = text.rpartition(closes)[2].partition(opens)[0].strip()
    if kind in own_reward.FUNCTIONS:  # an empty text has none: a truncated sample is never right
        return (kind, answer, (text,)) if text else "no answer"
    if kind == "exact":
        return "correct" if text == answer.strip() else "wrong" if text else "no answer"
    if kind == "code":
        program = sandbox.last_program(text)
        return "no answer" if program is None else (kind, answer, (program,))
    if kind != "math":
        raise TaskError(f"verifier kind = {kind!r} is unknown: use math, exact or code")
    if own := answers.RE.lettered.fullmatch(answers.RE.text.sub(r"\1", answers.clean(answer))):
        answer, question = own[2], f"{question}\n({own[1]}) {own[2]}"  # \textbf{(C)}\ 9
    parts, right = answers.judged(text, answer, question[-2_000:])  # of 22,000 it takes .4 s
    if None not in right or False in right:
        return "correct" if right and all(right) else WRONG[min(2, len(right))]
    return kind, answer, tuple(parts), answers.formulas_of(question)


def grade(kind, answer, parts, asked=()):
    """The reason for the parts of a text. asked: the formulas of the question."""
    if kind == "code":
        return sandbox.run_tests(parts[0], sandbox.UnitTests(*json.loads(answer)))
    if kind in own_reward.FUNCTIONS:
        return own_reward.judge(kind, answer, parts[0])
    asked = tuple(asked)  # of JSON a list
    if (gold := expression(answer, asked)) is None:
        return "error"
    shown = functools.cache(lambda: [one for one in map(expression, asked) if one is not None])
    if "=" not in answer and not answers.RE.tens.search(answer) and answers.plain_number(
            answer) and any(same(gold, one) for one in shown()):
        return "wrong"  # 4^5, too, is no answer to "compute 2^{10}"
    for part in parts:  # the first wrong one ends it: each, like each one shown, costs milliseconds
        one = expression(part, asked)
        if one is None or not (same(gold, one) and is_answer(one, gold, shown())):
            return "unreadable" if one is None else WRONG[min(2, len(parts))]
    return "correct"


@functools.cache
def reader():
    """Math-Verify's `parse`. Its parser tries ANTLR's quick prediction (SLL) and, where that ends
    in an error, the full one (LL): equal trees, by ANTLR's rule, in less than half of the time."""
    from antlr4 import PredictionMode
    from latex2sympy2_extended import latex2sympy2
    from math_verify import parse, verify
    class Reader(latex2sympy2.PSParser):
        def math(self):
            self._input.fill()  # all of the text becomes tokens first: an error there is final
            try:
                self._interp.predictionMode = PredictionMode.SLL
                return super().math()
            except Exception:  # it raises no narrower class
                self.reset()  # back to the first token
                self._interp.predictionMode = PredictionMode.LL
                return super().math()
    if latex2sympy2.PSParser.__name__ != "Reader":  # another thread was first
        latex2sympy2.PSParser = Reader
    first = (parse(f"${x}$", parsing_timeout=None) for x in ("x^2-1", "(x-1)(x+1)"))
    verify(*first, timeout_seconds=None)  # the first use takes .2 s, which no answer should pay
    return parse


@functools.lru_cache(maxsize=1024)
def expression(text, asked=()):
    """The SymPy expression of a LaTeX text; None if Math-Verify cannot read it."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig
    # Without its list of units: that has t and m, and would read 3t^2-4t as 3t^2-4.
    config = LatexExtractionConfig(normalization_config=NormalizationConfig(
        malformed_operators=True, nits=True))
    whole = answers.RE.primed.sub(lambda x: f"{x[1]}_{{{'p' * len(x[2])}}}", answers.clean(text))
    unit = answers.RE.unit_at_end.search(whole)
    rest = whole[:unit.start()] if unit else whole
    letter = unit and answers.RE.letter.fullmatch(unit[0])  # \pi r^2 h ends in a height, no hour
    variable = letter and (letter[1] in asked or letter[2] or answers.RE.variable.search(rest))
    text = whole if variable else rest
    found = reader()(f"${text}$", [config], "no_fallback", parsing_timeout=None)
    return getattr(found[0], "as_immutable", lambda: found[0])() if found else None  # a matrix's


def same(gold, found):
    """Math-Verify's comparison, of decimals as fractions (none is a root) and of one i, not two.
    It simplifies, so what needs a tenth of the time comes first: an interval is no number and no
    list of formulas; two formulas (no symbol, which may be a word) differ if they do at a point."""
    from math_verify import verify
    from sympy import (And, Derivative, Eq, Expr, FiniteSet, Float, Function, I, Integral,
                       Interval, Product, Rational, Sum, Symbol, UnevaluatedExpr, exp, pi)
    if {type(gold), type(found)} == {Eq} and (gold.lhs == found.lhs or not gold.free_symbols):
        return gold.lhs == found.lhs and same(gold.rhs, found.rhs)  # f(2) = 7 and 5: both "false"
    if isinstance(found, And) and all(isinstance(x, Eq) for x in found.args):  # a = b = c
        found = getattr(found, "_unsorted_args", found.args)[-1]
    def apart(*pair):  # two formulas, at a point
        with contextlib.suppress(Exception):  # not numbers
            place = {letter: Rational(23 + sum(map(ord, letter.name)) % 97, 10)
                     for x in pair for letter in x.free_symbols}
            a, b = (x.xreplace(place).evalf(30) for x in pair)
            return bool(abs(a - b) > 1e-6 * (abs(a) + abs(b)))
    powers = {str(letter) for x in (gold, found) for power in x.atoms(exp)
              for letter in power.free_symbols if letter in gold.free_symbols}
    a, b = (getattr(x, "rhs", x).free_symbols for x in (gold, found))
    if len(a - b) == len(b - a) == 1 and {"nu"} < {str(x) for x in a ^ b} <= {"nu", *"kmn"}:
        found = found.xreplace(dict(zip(b - a, a - b)))  # k\pi where n\pi had an integer n
    i = I if "i" in powers else Symbol("i")  # e^{i\pi/3}; but i(2-i) is still to be worked out
    one, two = pair = [(x.as_dummy() if hasattr(x, "as_dummy") else x).xreplace({
        a: Rational(str(a)) if a.is_Float else i for a in x.atoms(Float, Symbol)
        if (1e-9 < abs(a) < 1e9 if a.is_Float else a.name == "i")}) for x in (gold, found)]
    if any(isinstance(x, Interval) for x in pair) and any(isinstance(x, Expr) or isinstance(
            x, FiniteSet) and not all(isinstance(arg, Expr) for arg in x.args) for x in pair) or (
            isinstance(two, Eq) and isinstance(one, Expr) and not two.has(Function, Integral, Sum)
            and not two.has(pi) and two.lhs.free_symbols <= two.rhs.free_symbols
            and apart(*(side.xreplace({Symbol("i"): I}) for side in two.args))):
        return False  # the latter: 5 = x, 2i = 3i; but \sin 30, 30 = \pi/6 may be of degrees
    if one != two and all(isinstance(x, Expr) and type(x) is not Symbol and not x.has(
            Derivative, Integral, Product, Sum, UnevaluatedExpr) for x in pair) and apart(*pair):
        return False
    how = dict(float_rounding=15, timeout_seconds=None, allow_set_relation_comp=True)
    return one == two or verify(gold, found, **how) or two != found and verify(one, two, **how)


def is_answer(found, gold, asked):
    """Whether a formula with the gold value is worked out: no inequality to solve, no derivative,
    not what was asked in any order, nor of its kind (a product, to expand) if the gold is not."""
    from sympy import Abs, Add, Derivative, Expr, Mul, Number, Pow, Rel, Set
    def worked_out(one):  # x^2 of the tree x*x; powers of numbers may be huge, and stay
        return one.func(*map(worked_out, one.args)) if one.args and one.free_symbols else one
    def formula(one):  # of y = 2x and x > 3 the right side; of what is to be solved all
        solved = isinstance(one, Rel) and any(hasattr(side, "name") for side in one.args)
        return one.rhs if solved else one
    def alike(one, two):
        return one == two or type(one) is type(two) and one.args and set(one.args) == set(two.args)
    side, wanted = (getattr(one, "rhs", one) for one in (found, gold))
    unsolved = side.has(Derivative) > wanted.has(Derivative) or isinstance(gold, Set) and any(
        len(one.free_symbols) == 1 and all(isinstance(
            arg.args[0] if isinstance(arg, Abs) else arg, (Add, Mul, Number, Pow))
            for arg in one.args) for one in found.atoms(Rel))
    return alike(side, wanted) or not (unsolved or any(
        alike(part, one) or isinstance(wanted, Expr) and type(worked_out(part)) is type(
            worked_out(one)) is not type(worked_out(wanted)) and same(one, gold)
        for part in (formula(found), side) if part.args for one in map(formula, asked)))


class Verifier(contextlib.AbstractContextManager):
    """Scores lists of (text, answer, kind); the slow ones in worker processes with a deadline.

    think_tags: what opens and closes the thinking in this model's texts.
    workers: processes, started when slow items come. 0: one a core.
    deadline_s: for one formula or own reward. Math-Verify needs .01 to .2 s for nearly all."""

    def __init__(self, think_tags=THINK_TAGS, workers=0, deadline_s=10.0):
        self.think_tags, self.deadline_s = think_tags, deadline_s
        self.workers = workers or min(32, max(2, os.cpu_count() or 2))
        self.idle = []  # worker processes that wait for a job

    def close(self, *_):
        while self.idle:
            with self.idle.pop() as worker:
                worker.kill()

    __exit__ = close

    def rewards(self, rollouts, problems, tokenizer):
        """(list of -1.0 or +1.0, log) of rollouts; problems {id: Problem}. Truncated ones: -1."""
        items, opens = [], self.think_tags[0]
        for rollout in rollouts:
            problem, text = problems[rollout.prompt_id], ""
            if rollout.finish_reason == "stop":
                text = tokenizer.decode(rollout.output_ids[:-1])  # without the end token
                # Some prompts open the thinking; a character of that has 4 tokens at most.
                end = tokenizer.decode(rollout.prompt_ids[-4 * len(opens):]).rstrip()
                text = opens + text if text and end.endswith(opens) else text
            items.append((text, problem.answer, problem.kind, problem.question))
        scores = self.score(items)
        return scores.rewards, scores.log

    def score(self, items):
        """The Scores of (text, answer, kind) or (text, answer, kind, question)."""
        start = time.perf_counter()
        found = [read(text, answer, kind, *question or [""], self.think_tags)
                 for text, answer, kind, *question in items]
        graded = self.grade(dict.fromkeys(job for job in found if isinstance(job, tuple)))
        reasons = [graded.get(job, job) for job in found]
        n, bad = max(1, len(items)), ("error", "unreadable", "bad reward")
        return Scores([1.0 if r == "correct" else -1.0 for r in reasons], reasons, {
            "verifier/error_frac": sum(r in bad for r in reasons) / n,
            "verifier/bad_reward_frac": reasons.count("bad reward") / n,
            "verifier/timeout_frac": reasons.count("timeout") / n,
            "verifier/slow_frac": sum(job in graded for job in found) / n,
            "time/check_ms": 1000 * (time.perf_counter() - start) / n})

    def grade(self, jobs):
        """{job: reason}. What cannot be started, and what somebody kills, is tried once more."""
        def ask(job):
            for wait_s in (0.0, 1.0):
                time.sleep(wait_s)
                try:                # a program has processes of its own, one for every test
                    return grade(*job) if job[0] == "code" else self.ask_worker(job)
                except (OSError, sandbox.SandboxError) as error:
                    late = isinstance(error, (TimeoutError, sandbox.Killed))
                    reason = "timeout" if late else "error"
            return reason
        with ThreadPoolExecutor(self.workers) as pool:  # its threads only wait for processes
            told = tqdm(pool.map(ask, jobs), f"{self.workers} at a time are judged", len(jobs),
                        leave=False, delay=20, mininterval=0.1 if sys.stderr.isatty() else 20)
            return dict(zip(jobs, told))

    def ask_worker(self, job):
        """The reason of a worker process; "timeout" if it was late, "error" if it failed. OSError:
        it cannot be started, or was killed; TimeoutError: its clock was stopped. Somebody may have
        done that. `multiprocessing` would bring torch into it, or fork a GPU's process."""
        patience_s, failure = self.deadline_s + GRACE_S, OSError("killed")
        try:  # "if self.idle" is too early: other threads pop, too
            worker = self.idle.pop()
        except IndexError:
            patience_s = START_S
            ours, theirs = socket.socketpair()
            with theirs:
                # In a session of its own: Ctrl-C in a terminal is for the trainer.
                # In the trainer's folder, as own rewards name files; -P: no module there is ours.
                places = str(Path(__file__).parents[1].resolve()), os.environ.get("PYTHONPATH")
                worker = subprocess.Popen(
                    [sys.executable, "-P", "-c", "from tasks.verifier import serve; serve()"],
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places))},
                    start_new_session=True, stdin=theirs, stdout=theirs)
            worker.stdout = ours  # as for a pipe, `with worker` closes it
        try:
            worker.stdout.settimeout(patience_s)
            worker.stdout.sendall(json.dumps([self.deadline_s, *job]).encode() + b"\n")
            with worker.stdout.makefile() as replies:
                replies.readline()  # "ready"; "" where the worker has ended
                worker.stdout.settimeout(self.deadline_s + GRACE_S)
                if reason := replies.readline().strip():
                    self.idle.append(worker)
                    return reason
        except (ConnectionError, TimeoutError) as error:
            failure = error
        with worker:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(1.0)  # where its end of the line is closed, it is ending
            with contextlib.suppress(OSError):  # nothing is left of its process group, of which
                os.killpg(worker.pid, signal.SIGKILL)  # it is the first, with all its children
        if (status := worker.wait()) < 0 and status != -signal.SIGALRM:
            raise failure
        reason = "timeout" if status < 0 else "error"
        if job[0] in own_reward.FUNCTIONS:
            own_reward.tell(ast.literal_eval(job[1])[0], reason,
                            f"no end within {self.deadline_s:g} s" if status < 0 else
                            f"it has ended its process, with status {status}")
        return reason


def serve():
    """The worker's side: a line with a job comes in, "ready" and its reason go out. The kernel has
    the deadline: the default action of its signal ends a process wherever it is. What Math-Verify
    did not foresee ends this process, too, and the next one is started."""
    with contextlib.suppress(ValueError):  # macOS has no such limit; 10**10**10 wants all there is
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    # A rule of others that prints or reads, or a program that it starts, is not on our line: it
    # gives no reasons, takes no jobs, and does not hold the line open when this process ends.
    jobs, out = os.fdopen(os.dup(0)), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the trainer was killed
        for line in jobs:
            deadline_s, *job = json.loads(line)
            # Before the clock starts: this takes seconds. The trainer itself does not import it.
            if job[0] in own_reward.FUNCTIONS:
                own_reward.run_file(ast.literal_eval(job[1])[0])
            elif not reader.cache_info().currsize:
                reader()
                gc.freeze()  # no collection walks SymPy's many objects again
            os.write(out, b"ready\n")
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a rule of others may have changed it
            signal.setitimer(signal.ITIMER_REAL, deadline_s)
            reason = grade(*job)
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.write(out, reason.encode() + b"\n")
