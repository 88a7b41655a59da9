"""Problems and prompts: what the model is asked in a run.

The paper (sec. 2, 3) trains on math problems, reward +1 for a correct answer and -1 for any other,
and holds 1,000 problems out to draw its curve. Ours are the toy and the generated problems.
load_splits reads a task, check_gold judges its gold answers, load_problems does all for a run.

    >>> load_task("toy", "train", heldout=512)[0].trace
    '4+0=4;4+7=1;1+8=9</think>9'
"""

import re
import warnings
from collections import defaultdict
from dataclasses import dataclass

from tasks.generated import gold_answer
from tasks.prompts import prompt_ids
from tasks.sandbox import SandboxError, check_sandbox
from tasks.sources import Problem, Unusable, load_pool, question_hash
from tasks.verifier import TaskError, accepted, verify

SOLUTIONS_CHECKED = 32


def load_task(spec, split, *, heldout=1000, seed=0, options=None, max_unusable=0.02):
    """The "train" or "heldout" problems of a task, in a fixed order; any prefix is a fair sample.

    spec: a task or a mix such as "a+b" or "a:0.7+b:0.3", and its options: docs/tasks.md.
    heldout: how many problems are held out in total (the paper: 1,000); a mix divides them by its
        shares, or equally, so that the mean over them is the pass rate of the mix.
    seed: which problems a generator draws. It does not touch a file, nor the hash of a question.
    max_unusable: the share that may be left out, with a warning. Raises TaskError.
    """
    unusable = Unusable()
    train, held, _ = load_splits(spec, unusable, heldout=heldout, seed=seed, options=options)
    unusable.check(max_unusable)
    problems = {"train": train, "heldout": held}[split]
    if not problems:
        raise TaskError(f"task {spec!r} has no {split} problems with heldout = {heldout}")
    return problems


def load_splits(spec, unusable, *, heldout=1000, seed=0, options=None, eval_spec=""):
    """(training, held-out, evaluation sets') problems, each source read once; else as load_task.
    eval_spec: only evaluated, "aime-24+math-500". unusable: gets the bad records."""
    weights, evaluated = parse_mix(spec), parse_mix(eval_spec) if eval_spec else {}
    options = options_by_part(options or {}, weights, evaluated)
    shares = {part: weight or 1.0 for part, weight in weights.items()}
    train, held, extra, names = {}, {}, [], set()
    for part in (*shares, *evaluated):
        part_heldout = round(heldout * shares.get(part, 0) / sum(shares.values()))
        pool = load_pool(part, part_heldout, seed, options[part], unusable)
        if pool[0].task in names:
            setting = "eval_tasks" if part in evaluated else "task"
            raise TaskError(f"{setting} names {pool[0].task!r} as well: each curve needs its name")
        names.add(pool[0].task)
        if part in shares:
            train[part], held[part] = split_pool(part, pool, part_heldout)
        else:
            extra += pool

    # Two sources may share questions. What is held out or evaluated by one, no other trains on.
    asked = {question_hash(p.question) for part in (*held.values(), extra) for p in part}
    for part, problems in train.items():
        train[part] = [p for p in problems if question_hash(p.question) not in asked]
        if len(train[part]) < len(problems):
            warnings.warn(f"{len(problems) - len(train[part])} of {len(problems)} problems of "
                          f"{part!r} leave training: they are evaluated", stacklevel=2)
    if None not in weights.values():
        whole = min(len(train[part]) / share for part, share in shares.items())
        for part, share in shares.items():
            count = round(whole * share)
            if count < len(train[part]):
                warnings.warn(f"task {spec!r}: {len(train[part]) - count} of {len(train[part])} "
                              f"problems of {part!r} are left out to keep the shares", stacklevel=2)
            train[part] = train[part][:count]
    return dealt(train.values()), dealt(held.values()), extra


def dealt(parts):
    """The parts of a mix in one list, each spread evenly over it: a prefix has all of them."""
    places = [((i + 0.5) / len(part), k, p) for k, part in enumerate(parts)
              for i, p in enumerate(part)]
    return [p for _, _, p in sorted(places, key=lambda place: place[:2])]


def parse_mix(spec):
    """{part: weight or None} of "a", "a+b" or "a:0.7+b:0.3"."""
    weights = {}
    for part in spec.split("+"):
        weighted = re.fullmatch(r"(.+):([0-9]*\.?[0-9]+)", part.strip())
        name, weight = weighted.groups() if weighted else (part.strip(), None)
        if name in weights:
            raise TaskError(f"task = {spec!r} names {name!r} twice: give each part once")
        weights[name] = None if weight is None else float(weight)
    if 0.0 in weights.values() or len({weight is None for weight in weights.values()}) > 1:
        raise TaskError(f"task = {spec!r}: give every part a weight above 0, or none of them")
    return weights


def options_by_part(options, parts, evaluated=()):
    """{part: its options}. A single task may take its own without its name: {"size": 300}."""
    known = [*parts, *evaluated]
    unknown = [key for key in options if key not in known or not isinstance(options[key], dict)]
    if unknown and len(parts) == 1:
        options = {part: options for part in parts}
    elif unknown:
        raise TaskError(f"task option {unknown[0]!r}: a mix takes options by part, a table for "
                        f"each of {known}")
    return {part: options.get(part, {}) for part in known}


def split_pool(name, pool, heldout):
    """(train, heldout): the same share of every level is held out, lowest hashes first.

    By a hash a question is on the same side in (nearly) every run, with another seed or size as
    well, and a smaller `heldout` is a subset of a larger one. Levels are ranked apart, else the
    pass rate would carry the luck of the draw of levels (a few hundred problems: 0.01).
    """
    if heldout >= len(pool):
        raise TaskError(f"heldout = {heldout} leaves nothing to train on: {name!r} has {len(pool)} "
                        "distinct problems that can be used")
    levels = defaultdict(list)
    for problem in pool:
        levels[problem.level].append(problem)
    order = dealt([sorted(levels[level], key=lambda p: p.id) for level in sorted(levels)])
    return order[heldout:], order[:heldout]


def check_gold(problems, verifier=None):
    """{id: sentence} of the problems whose gold answer or trace their own verifier calls wrong;
    they would give -1 to every completion. An answer takes microseconds for numbers, 0.01 to 0.2 s
    for formulas; that of a program is unit tests, and the first 32 solutions in `trace` are run.
    verifier: a Verifier, whose workers have a deadline; without one, this process does it.
    """
    claims = [(p, "answer", output) for p in problems for output in as_outputs(p)]
    solved = [p for p in problems if p.trace is not None]
    programs = [p for p in solved if p.kind == "code"][:SOLUTIONS_CHECKED]
    claims += [(p, "trace", p.trace) for p in solved if p.kind != "code" or p in programs]
    items = [(text, p.answer, p.kind) for p, _, text in claims]
    reasons = verifier.score(items).reasons if verifier else [verify(*item)[1] for item in items]
    return {p.id: f"problem {p.id}: its own {field} {text!r} is judged {reason!r}"
            for (p, field, text), reason in zip(claims, reasons, strict=True)
            if reason != "correct"}  # fmt: skip


def as_outputs(problem):
    """The gold answers as a model would give them; none where a generator tells none, nor for
    programs, where they are unit tests."""
    if problem.kind == "code":
        return []
    if problem.kind == "gym":
        return [gold for gold in [gold_answer(problem.answer)] if gold is not None]
    return [rf"\boxed{{{gold}}}" if problem.kind == "math" else gold
            for gold in accepted(problem.answer)]


@dataclass
class Problems:
    """The problems of one run, by id, and their prompts."""

    train: dict  # id -> Problem
    heldout: dict  # id -> Problem, to evaluate on: held-out ones, then those of evaluation sets
    curve_tasks: set  # of the held-out ones: their pass rate is the curve, the others are shown
    prompts: dict  # id -> token ids
    log: dict  # how many are kept and left out, for the first line of metrics

    @property
    def prompt_tokens(self):
        """Tokens of the longest prompt: it sizes the cache."""
        return max(len(self.prompts[i]) for i in [*self.train, *self.heldout])


def load_problems(config, tokenizer, verifier):
    """The Problems that a run's settings ask for. Raises TaskError, which names the setting."""
    unusable = Unusable()
    try:
        # Seed 0 whatever the run's: seeds of one recipe share their problems, held-out ones too.
        parts = load_splits(config.task, unusable, heldout=config.heldout_prompts,
                            options=config.task_options, eval_spec=config.eval_tasks)
        problems = [p for part in parts for p in part]
        if any(p.kind == "code" for p in problems):
            check_sandbox(config.unsafe_code)
        bad = check_gold(problems, verifier)
        prompts = {p.id: tuple(prompt_ids(
            tokenizer, p, config.instruction, think_open=config.think_open,
            template_options=config.template_options)) for p in problems if p.id not in bad}
        long = {i: f"problem {i} has a prompt of {len(ids)} tokens, prompt_tokens = "
                f"{config.prompt_tokens}, and none is cut"
                for i, ids in prompts.items() if len(ids) > config.prompt_tokens}
        unusable.sentences |= {"bad_gold": [*bad.values()], "too_long": [*long.values()]}
        counts = unusable.check(config.max_unusable)
        prompts = {i: ids for i, ids in prompts.items() if i not in long}
        train, heldout, extra = ({p.id: p for p in part if p.id in prompts} for part in parts)
        if not train or not heldout:
            raise TaskError(f"no {'held-out' if train else 'training'} problem is left of {counts}")
    except (TaskError, SandboxError) as error:
        raise TaskError(f"task = {config.task!r}: {error}") from None
    counts |= {"train": len(train), "heldout": len(heldout | extra)}
    return Problems(train, heldout | extra, {p.task for p in heldout.values()}, prompts,
                    {f"problems/{what}": count for what, count in counts.items()})
