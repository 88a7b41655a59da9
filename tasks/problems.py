"""Problems and prompts: what the model is asked in a run.

The paper (sec. 2, 3) trains on math problems and holds 1,000 out to draw its curve."""
import contextlib
import datetime
import hashlib
import json
import sys
import warnings
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tqdm import tqdm

from config import Config, ConfigError
from tasks.sandbox import SandboxError, which_walls
from tasks.sources import FILES, Problem, load_pool, own_problems, question_hash
from tasks.verifier import TaskError


def load_splits(spec, *, heldout=1000, seed=0, options=None, eval_spec=""):
    """(training, held-out, evaluation sets' problems, sentences on records that are none), each in
    a fixed order, of which any prefix is a fair sample. Raises TaskError.

    spec: a task or a mix such as "a+b", and its options: docs/tasks.md; eval_spec: only evaluated.
    heldout: how many in total, of a mix equally many of each part; seed: of a generator's draws."""
    parts, evaluated = parts_of(spec), parts_of(eval_spec) if eval_spec else []
    options = options_by_part(options or {}, parts, evaluated)
    train, held, extra, bad, names = {}, {}, [], [], set()
    for part in (*parts, *evaluated):
        part_heldout = round(heldout / len(parts)) if part in parts else 0
        pool, unread = load_pool(part, part_heldout, seed, options.get(part, {}))
        bad += unread
        if pool[0].task in names:
            raise TaskError(f"task and eval_tasks name {pool[0].task!r} twice")
        names.add(pool[0].task)
        if part in parts:
            train[part], held[part] = split_pool(part, pool, part_heldout, unread)
        else:
            extra += pool
    # Two sources may share questions. What is held out or evaluated by one, no other trains on.
    asked = {question_hash(p.question) for part in (*held.values(), extra) for p in part}
    for part, problems in train.items():
        train[part] = [p for p in problems if question_hash(p.question) not in asked]
        if len(train[part]) < len(problems):
            warnings.warn(f"{len(problems) - len(train[part])} of {len(problems)} problems of "
                          f"{part!r} leave training: they are evaluated", stacklevel=2)
    return dealt(train.values()), dealt(held.values()), extra, bad


def load_task(spec, split, **arguments):
    """Its "train" or "heldout" problems; arguments and TaskError of the two functions it calls."""
    train, held, _, bad = load_splits(spec, **arguments)
    count_unusable({"bad_records": bad}, len(train + held), Config.max_unusable)
    return {"train": train, "heldout": held}[split]


def count_unusable(sentences, used, max_unusable):
    """{cause: how many} of {cause: a sentence for each problem that a run cannot use}; warns if
    there are any. Raises TaskError: they are more than max_unusable of all, with the `used`."""
    counts = {cause: len(told) for cause, told in sentences.items()}
    if out := sum(counts.values()):
        told = (f"{out} of {used + out} problems cannot be used {counts}; the first: "
                f"{next(told[0] for told in sentences.values() if told)}")
        if out > max_unusable * (used + out):
            raise TaskError(f"max_unusable = {max_unusable:g}: {told}")
        warnings.warn(told, stacklevel=3)
    return counts


def dealt(parts):
    """The parts of a mix in one list, each spread evenly over it: a prefix has all of them."""
    places = [((i + 0.5) / len(part), p) for part in parts for i, p in enumerate(part)]
    return [p for _, p in sorted(places, key=lambda place: place[0])]


def parts_of(spec):
    """["a", "b"] of the mix "a+b"."""
    return list(dict.fromkeys(part.strip() for part in spec.split("+")))


def options_by_part(options, parts, evaluated=()):
    """{part: its options}. A single task may take its own without its name: {"size": 300}."""
    known = [*parts, *evaluated]
    if len(parts) == 1 and not options.keys() <= set(known):
        options = {part: options for part in parts}
    for key, value in options.items():
        if key not in known or not isinstance(value, dict):
            raise TaskError(f"task option {key!r}: a mix takes options by part, of {known}")
    return options


def split_pool(name, pool, heldout, unread):
    """(train, heldout): the same share of every level (else the pass rate has the luck of the draw)
    is held out, lowest hashes first: whatever the seed, a question is on the same side."""
    if heldout >= len(pool):
        cause = f"; {len(unread)} records cannot, the first: {unread[0]}" if unread else ""
        raise TaskError(f"heldout_prompts = {heldout} leaves nothing to train on: {name!r} has "
                        f"{len(pool)} distinct problems that can be used{cause}")
    ranked = sorted(pool, key=lambda p: (p.level, p.id))
    order = dealt([[*level] for _, level in groupby(ranked, key=lambda p: p.level)])
    return order[heldout:], order[:heldout]


def check_gold(problems, verifier, kept=None):
    """{id: sentence} of problems whose gold answer their own verifier calls wrong: all get -1.
    kept: a file, what it has is not judged again."""
    judged = [p for p in problems if p.kind in ("math", "exact")]
    items = [(rf"\boxed{{{p.answer}}}" if p.kind == "math" else p.answer, p.answer, p.kind)
             for p in judged]
    known, reasons = {}, []  # {hash of 500 items: their reasons}
    with contextlib.suppress(OSError), open(kept or "") as file:
        for line in file:
            with contextlib.suppress(ValueError):  # empty, or cut off by a kill
                known |= json.loads(line)
    for start in tqdm(range(0, len(items), 500), "gold answers", unit="500", delay=5,
                      mininterval=0.1 if sys.stderr.isatty() else 60):
        part = items[start : start + 500]
        name = hashlib.sha256(repr(part).encode()).hexdigest()[:16]
        if name not in known:
            known[name] = verifier.score(part).reasons
            if kept and len(items) > 500:  # fewer take seconds, and a refused run leaves nothing
                kept.parent.mkdir(parents=True, exist_ok=True)
                with open(kept, "a") as file:
                    file.write("\n" + json.dumps({name: known[name]}) + "\n")
        reasons += known[name]
    return {p.id: f"problem {p.id}: its own answer {p.answer!r} is judged {reason!r} as {p.kind}"
            for p, reason in zip(judged, reasons, strict=True) if reason != "correct"}


def prompt_ids(tokenizer, problem, instruction="", *, think_open="", template_options=None):
    """Token ids of the question in the model's own chat format. Raises ConfigError: that fails.
    think_open ends the prompt, so that the model starts out thinking; not if the template has it.
    template_options: the template's own switches, such as {"enable_thinking": True} of Qwen3."""
    prefixed = f"{instruction}\n\n{problem.question}" if instruction else problem.question
    if tokenizer.chat_template is None:
        ids = list(tokenizer(f"{prefixed}\n\nAnswer:")["input_ids"])
        ids = ids[:-1] if ids[-1:] == [tokenizer.eos_token_id] else ids     # some end every text
    else:
        messages = [{"role": "system", "content": instruction},
                    {"role": "user", "content": problem.question}]  # fmt: skip
        shown = ""  # some templates raise on a system message, some drop it without a word
        with contextlib.suppress(Exception):
            shown = instruction and tokenizer.apply_chat_template(messages, tokenize=False)
        if not instruction or instruction.strip() not in shown:
            messages = [{"role": "user", "content": prefixed}]
        try:  # other people's programs: errors of any class
            ids = list(tokenizer.apply_chat_template(  # of one day: a run goes on on another
                messages, add_generation_prompt=True, return_dict=False,
                **{"strftime_now": datetime.date(2024, 7, 26).strftime} | (template_options or {})))
        except Exception as error:
            raise ConfigError(f"the model's chat template fails: {error!r:.200}") from None
    if think_open and not tokenizer.decode(ids).rstrip().endswith(think_open.strip()):
        ids += tokenizer(think_open, add_special_tokens=False)["input_ids"]
    return ids


@dataclass
class Problems:
    """The problems of one run, by id, and their prompts."""
    train: dict  # id -> Problem
    heldout: dict  # id -> Problem, to evaluate on: held-out ones, then those of evaluation sets
    curve_tasks: set  # of the held-out ones: their pass rate is the curve, the others are shown
    prompts: dict  # id -> token ids
    prompt_tokens: int  # of the longest prompt: it sizes the cache
    log: dict  # how many are kept and left out, for the first line of metrics


def check_files(config):
    """Before a model is loaded: look for the tasks' files, run Python ones. Raises TaskError."""
    for part in parts_of(f"{config.task}+{config.eval_tasks}"):
        if part.endswith(".py"):
            own_problems(part)
        elif part.endswith(FILES) and not Path(part).exists():
            several = ' ("+" stands between two tasks)' * ("+" in config.task + config.eval_tasks)
            raise TaskError(f"task {part!r} cannot be read: there is no such file{several}")


def load_problems(config, tokenizer, verifier, kept=None):
    """The Problems of a run; kept: see `check_gold`. Raises TaskError, ConfigError (prompt_ids)."""
    try:
        # Seed 0 whatever the run's: seeds of one recipe share their problems, held-out ones too.
        *parts, bad = load_splits(config.task, heldout=config.heldout_prompts,
                                  options=config.task_options, eval_spec=config.eval_tasks)
        problems = [p for part in parts for p in part]
        if any(p.kind == "code" for p in problems):
            which_walls()
        bad_gold = check_gold(problems, verifier, kept)
        prompts = {p.id: tuple(prompt_ids(
            tokenizer, p, config.instruction, think_open=config.think_open,
            template_options=config.template_options)) for p in problems if p.id not in bad_gold}
        unk = tokenizer.unk_token_id  # None, where a tokenizer knows all, is in no prompt
        if unknown := [i for i, ids in prompts.items() if unk in ids]:
            warnings.warn(f"the model's tokenizer does not know all characters of {len(unknown)} "
                          f"of {len(prompts)} prompts, and reads {tokenizer.unk_token}; the first: "
                          f"{tokenizer.decode(prompts[unknown[0]])!r}", stacklevel=1)
        if len(prompts) > 1 and all(map(next(iter(prompts.values())).__eq__, prompts.values())):
            raise ConfigError("the model's chat template leaves the question out of every prompt")
        long = {i: f"problem {i} has a prompt of {len(ids)} tokens, prompt_tokens = "
                f"{config.prompt_tokens}, and none is cut"
                for i, ids in prompts.items() if len(ids) > config.prompt_tokens}
        prompts = {i: ids for i, ids in prompts.items() if i not in long}
        counts = count_unusable({"bad_records": bad, "bad_gold": [*bad_gold.values()],
                                 "too_long": [*long.values()]}, len(prompts), config.max_unusable)
        train, heldout, extra = ({p.id: p for p in part if p.id in prompts} for part in parts)
        if not train or not heldout:
            raise TaskError(f"no {'held-out' if train else 'training'} problem is left of {counts}")
    except (TaskError, SandboxError) as error:
        known = str(error).startswith("task '")     # it names the task that it is of
        raise TaskError(f"{'' if known else f'task = {config.task!r}: '}{error}") from None
    counts |= {"train": len(train), "heldout": len(heldout | extra)}
    tasks, log = {p.task for p in heldout.values()}, {f"problems/{n}": k for n, k in counts.items()}
    return Problems(train, heldout | extra, tasks, prompts, max(map(len, prompts.values())), log)
