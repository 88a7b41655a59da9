"""calls.py: what the grader may ask of a submission. Runs in the sandbox, beside it (service.py).

Each function gets plain values and returns plain values. No truth is in here.
"""
import json
import random
from types import SimpleNamespace

import torch


def tensors(*arrays, grad=False):
    return [torch.from_numpy(x).requires_grad_(grad) for x in arrays]


def refused(call):
    """The error of a call that must be refused, [type, text]; or that it went through."""
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)[:300]]
    return ["no error", "it went through"]


def answered(function, *inputs, **settings):
    """What it returns for these inputs. Raises TypeError: an array that is not torch's, which the
    trainer could not use; ValueError: an input was changed in place, though its caller needs it."""
    before = [x.detach().clone() for x in inputs]
    found = function(*inputs, **settings)
    for each in found if isinstance(found, (tuple, list)) else [found]:
        if not isinstance(each, (torch.Tensor, dict)):
            raise TypeError(f"tensors were asked for, a {type(each).__name__} came")
    for number, (x, old) in enumerate(zip(inputs, before), start=1):
        if not torch.equal(x.detach().nan_to_num(7), old.nan_to_num(7)):
            raise ValueError(f"argument {number} was changed in place: its caller still needs it")
    return found


# ------------------------------------------------------------------------------------ exercise 1
def head(hidden, weight, targets, g, bf16=False, twice=False, frozen="", **settings):
    """log-probs, entropies, their dtype, the two gradients (None of a frozen operand)."""
    from loss import token_logprobs
    hidden, weight = (x.bfloat16() if bf16 else x for x in tensors(hidden, weight))
    operands = dict(hidden=hidden.requires_grad_(frozen != "hidden"),
                    weight=weight.requires_grad_(frozen != "weight"))
    logprobs, entropy = answered(
        token_logprobs, hidden, weight, torch.from_numpy(targets), **settings)
    wanted = [x for x in operands.values() if x.requires_grad]
    passes = [torch.autograd.grad(logprobs, wanted, torch.from_numpy(g).to(logprobs.dtype),
                                  retain_graph=True) for _ in range(1 + twice)]
    found = dict(zip([name for name, x in operands.items() if x.requires_grad], passes[-1]))
    return dict(logprobs=logprobs, entropy=entropy, dtype=str(logprobs.dtype),
                carries=entropy.requires_grad, hidden=found.get("hidden"),
                weight=found.get("weight"), gradient=[str(x.dtype) for x in passes[-1]])


def head_forward(hidden, weight, targets, **settings):
    from loss import token_logprobs
    return token_logprobs(*tensors(hidden, weight, targets), **settings)


def head_sum(tokens):
    """The gradient that so many tokens, a chunk each, give a weight of zeros (5, 3)."""
    from loss import token_logprobs
    weight = torch.zeros(5, 3).bfloat16().requires_grad_()
    token_logprobs(torch.ones(tokens, 3).bfloat16(), weight, torch.zeros(tokens).long(),
                   chunk_tokens=1)[0].sum().backward()
    return [str(weight.grad.dtype), weight.grad]


# ------------------------------------------------------------------------------------ exercise 2
def advantages(rewards, norm):
    from loss import advantages
    return answered(advantages, torch.from_numpy(rewards), norm=norm)


def advantages_refused(rewards, norm):
    from loss import advantages
    return refused(lambda: advantages(torch.from_numpy(rewards), norm=norm))


def token_weights(mask, prompts, aggregation):
    from loss import token_weights
    mask, prompts = tensors(mask, prompts)
    found = answered(token_weights, mask, prompts, aggregation=aggregation)
    return [found, str(found.dtype), mask]


def token_weights_refused(mask, prompts, aggregation):
    from loss import token_weights
    return refused(lambda: token_weights(*tensors(mask, prompts), aggregation=aggregation))


# ------------------------------------------------------------------------------------ exercise 3
def slope(value, x):
    if not value.requires_grad:
        return torch.zeros_like(x)
    found, = torch.autograd.grad(value.sum(), x, allow_unused=True)
    return torch.zeros_like(x) if found is None else found


def capped(log_pi, behavior, A, cap):
    from loss import _capped
    log_pi, behavior, A = tensors(log_pi, behavior, A)
    log_pi.requires_grad_()
    terms, where = answered(lambda *x: _capped(*x, cap), log_pi, log_pi - behavior, A)
    return [terms, where, slope(terms, log_pi)]


def clipped(log_rho, A, low, high):
    from loss import _clipped
    log_rho, A = tensors(log_rho, A)
    log_rho.requires_grad_()
    terms, where = answered(lambda *x: _clipped(*x, low, high), log_rho, A)
    return [terms, where, slope(terms, log_rho)]


def sequence_ratio(log_ratio, mask, g):
    from loss import _sequence_log_ratio
    log_ratio, mask, g = tensors(log_ratio, mask, g)
    log_ratio.requires_grad_()
    found = answered(_sequence_log_ratio, log_ratio, mask)
    return [found, slope(found * g, log_ratio)]


def policy_loss(log_pi, behavior, A, weights, **settings):
    from loss import policy_loss
    log_pi, behavior, A, weights = tensors(log_pi, behavior, A, weights)
    log_pi.requires_grad_()
    value, stats = answered(policy_loss, log_pi, behavior, A, weights, **settings)
    return [value, slope(value, log_pi), float(stats[""]["ratio/clipped_frac"])]


# ------------------------------------------------------------------------------------ exercise 4
def zero_variance(rewards, **more):
    from loss import zero_variance
    return answered(zero_variance, torch.from_numpy(rewards), **more)


def effective_batch(rewards, keep_all):
    from scalerl import effective_batch
    rollouts = [f"{i}" for i in range(rewards.size)]
    rewards = torch.from_numpy(rewards)
    before = rewards.clone()
    kept, rest, log = effective_batch(rollouts, rewards,
                                      SimpleNamespace(zero_variance_filter=not keep_all))
    return [[int(each) for each in kept], rest, dict(log), before.equal(rewards)]


def curriculum(prompts, retire_at, seed, calls, results, late, save_at=()):
    """`calls` times next(), the result of each prompt's visits `late` calls later
    -> [asked, epoch after each call], history, active."""
    from scalerl import Curriculum
    one, asked, visits, flying = Curriculum(prompts, retire_at, seed), [], {}, []
    for place in range(calls):
        prompt = one.next()
        asked.append([prompt, one.epoch])
        if prompt is not None:
            visit = visits[prompt] = visits.get(prompt, -1) + 1
            flying.append((prompt, *results[prompt][visit]))
        while len(flying) > late or flying and prompt is None:
            one.record(*flying.pop(0))
        if place in save_at:
            state = json.loads(json.dumps(vars(one)))
            one = Curriculum(prompts, retire_at, seed)
            vars(one).update(state)
    return [asked, {name: list(n) for name, n in one.history.items()}, list(one.active)]


def orders(prompts, seed, epochs, noise):
    from scalerl import Curriculum
    random.seed(noise), torch.manual_seed(noise)
    one = Curriculum(prompts, 0.9, seed)
    return [[one.next() for _ in prompts] for _ in range(epochs)]


def learned(retire_at, results):
    """Is each prompt learned after these visits, [[correct, samples], ...]? And the history."""
    from scalerl import Curriculum
    one = Curriculum([f"p{i}" for i in range(len(results))], retire_at, 0)
    for i, visits in enumerate(results):
        for correct, samples in visits:
            one.record(f"p{i}", correct, samples)
    return [[bool(one.learned(f"p{i}")) for i in range(len(results))],
            {name: list(n) for name, n in one.history.items()}]


# ------------------------------------------------------------------------------------ exercise 5
def make_pacer(k, P, groups, kind=None):
    """groups: [[id, start, finished], ...]"""
    from sampler import Group
    from scalerl import PipelinePacer
    pacer = (kind or PipelinePacer)(k, P)
    pacer.groups = {i: Group(i, f"p{i}", start, 2, ["a sample"] * 2 * bool(finished))
                    for i, start, finished in groups}
    pacer.admitted = 1 + max([i for i, *_ in groups], default=-1)
    return pacer


def may_admit(states):
    return [bool(make_pacer(k, P, [[i, 0, i % 2] for i in range(n)]).may_admit())
            for k, P, n in states]


def admit(k, P, versions, size, gone):
    """Admit at these versions; `gone` of the groups leave in the middle."""
    pacer, told = make_pacer(k, P, []), []
    for i, version in enumerate(versions):
        group = pacer.admit(f"prompt {i}", version, size)
        told.append([group.group_id, group.prompt_id, group.start, group.size, group.rollouts,
                     pacer.groups.get(group.group_id) is group])
        if i == gone:
            for key in list(pacer.groups)[:gone]:
                del pacer.groups[key]
    return [told, sorted(pacer.groups)]


def take(k, P, groups, version, answer):
    """take() where leaves_enough_time gives `answer` -> what it was asked, taken, left."""
    from scalerl import PipelinePacer
    asked = []

    class Asked(PipelinePacer):
        def leaves_enough_time(self, taken, version):
            asked.append([[g.group_id for g in taken], version])
            return answer
    pacer = make_pacer(k, P, groups, Asked)
    taken = pacer.take(version)
    return [asked, taken and [g.group_id for g in taken], sorted(pacer.groups)]


def leaves_enough_time(states):
    """[[k, P, groups, ids of taken, version], ...]"""
    answers = []
    for k, P, groups, taken, version in states:
        pacer = make_pacer(k, P, groups)
        answers.append(bool(pacer.leaves_enough_time([pacer.groups[i] for i in taken], version)))
    return answers


def drive(k, P, schedule, scheme="PipelinePacer"):
    """A run: entry t of the schedule holds the groups that finish before the t-th take()
    -> a row for each: [outstanding ids, [[id, start], ...] of those taken, or None]."""
    import scalerl
    pacer, version, done, rows = getattr(scalerl, scheme)(k, P), 0, set(), []
    for finishing in schedule:
        for _ in range((k + 2) * P):
            if pacer.may_admit():
                pacer.admit(f"p{pacer.admitted}", version, 1)
        done |= {*finishing}
        for group in pacer.groups.values():
            if (group.group_id in done or scheme == "PPOPacer") and not group.finished:
                group.rollouts.append("a sample")
        held = sorted(pacer.groups)
        taken = pacer.take(version)
        rows.append([held, taken and [[g.group_id, g.start] for g in taken]])
        version += taken is not None
    return rows


def counterexample(k, P):
    from course.naive_pacer import counterexample
    return counterexample(k, P)


def run_admit(G, version, step, may, slots, prompts):
    """Run.admit around stand-ins that count."""
    from sampler import Group
    from scalerl import Run
    seen = SimpleNamespace(admitted=[], submitted=[], told=0, asked=0)

    def next_prompt():
        seen.asked += 1
        if seen.asked > 99:
            raise RuntimeError("Run.admit asks for prompts without end")
        return f"q{seen.asked}" if seen.asked <= prompts else None

    def admit(prompt_id, at, size):
        seen.admitted.append([prompt_id, at, size])
        return Group(7 * len(seen.admitted), prompt_id, at, size)

    def submit(request):
        seen.submitted.append([request.group_id, request.prompt_id, list(request.prompt_ids),
                               request.samples, request.task])
        sampler.free_slots -= request.samples

    def told():
        seen.told += 1
    sampler = SimpleNamespace(free_slots=slots, submit=submit)
    names = [f"q{i}" for i in range(120)]
    run = Run.__new__(Run)              # with all its methods: admit may call itself, or helpers
    vars(run).update(
        config=SimpleNamespace(samples_per_prompt=G), version=version, step=step, sampler=sampler,
        curriculum=SimpleNamespace(next=next_prompt),
        pacer=SimpleNamespace(may_admit=lambda: len(seen.admitted) < may, admit=admit,
                              no_more_prompts=told),
        problems=SimpleNamespace(prompts={name: (i, 3) for i, name in enumerate(names)},
                                 train={name: SimpleNamespace(task=name * 2) for name in names}))
    run.admit()
    return vars(seen)


# ------------------------------------------------------------------------------------ exercise 6
class Words:
    """A tokenizer of these words; all other tokens are written w."""

    def __init__(self, words):
        self.words = words

    def decode(self, ids):
        return "".join(self.words.get(str(int(i)), "w") for i in ids)


def make_model(settings, weights):
    from transformers import LlamaConfig, LlamaForCausalLM
    model = LlamaForCausalLM(LlamaConfig(**settings, attn_implementation="eager")).eval()
    model.load_state_dict({name: torch.from_numpy(x) for name, x in weights.items()}, strict=False)
    return model


def make_sampler(settings, weights, rule, words=None, kind=None, **more):
    from engines import packed                  # noqa: F401  it gives the attention its name
    from sampler import Interruption, TransformersSampler
    rule = dict(rule, phrase_ids=tuple(rule.get("phrase_ids", ())))
    model = make_model(settings, weights)
    # accept.prepare() does this as well, and first compares both ways: a third of the time here.
    model.set_attn_implementation("packed")
    return TransformersSampler(
        model, Words(words or {}), (kind or Interruption)(**rule), **{"prompt_tokens": 17, **more})


def told(r):
    return dict(group=r.group_id, prompt=r.prompt_id, prompt_ids=list(r.prompt_ids),
                ids=list(r.output_ids), logprobs=list(r.behavior_logprobs),
                versions=list(r.versions), sampled=list(r.sampled), reason=r.finish_reason,
                interrupted=r.interrupted, task=r.task)


def budgets(low, high, phrase, count, seeds):
    """draw_budgets twice for each seed, where the global generators differ."""
    from sampler import Interruption
    rule, found = Interruption(low, high, 2, tuple(phrase)), []
    for noise, seed in enumerate(seeds):
        torch.manual_seed(noise), random.seed(noise)
        drawn = rule.draw_budgets(count, torch.Generator().manual_seed(seed))
        found.append([drawn, str(drawn.dtype)])
    return found


@torch.no_grad()
def choose(settings, weights, hidden, head=None, noise=0, **more):
    """_choose -> tokens, log-probs; `head` takes the place of the model's."""
    sampler = make_sampler(settings, weights, dict(think_min=3, think_max=5, answer_tokens=2),
                           slots=4, eos_ids={2}, **more)
    if head is not None:
        sampler.head = torch.from_numpy(head)
    torch.manual_seed(noise), random.seed(noise)
    token, logprob = sampler._choose(torch.from_numpy(hidden))
    return [token, logprob]


def scripted(settings, weights, rule, words, slots, ends, scripts, budgets, prompts):
    """The slot loop where draws and budgets are those of a script; the version rises by 2 after
    each step -> the rollouts."""
    from sampler import Interruption, Request
    queue, drawn = list(budgets), {}

    class Rule(Interruption):
        def draw_budgets(self, count, generator):
            return torch.tensor([queue.pop(0) for _ in range(count)])
    sampler = make_sampler(settings, weights, rule, words, Rule, slots=slots, eos_ids={*ends},
                           seed=0)

    def choose(hidden):
        groups = [request.group_id for request in sampler.running]
        places = [drawn.get(i, 0) for i in groups]
        drawn.update({i: place + 1 for i, place in zip(groups, places)})
        return (torch.tensor([scripts[i][place] for i, place in zip(groups, places)]),
                torch.tensor([-0.5 - place for place in places]))
    sampler._choose = choose
    for i, ids in enumerate(prompts):
        sampler.submit(Request(i, f"q{i}", tuple(ids), 1, f"task {i}"))
    rollouts = []
    for _ in range(3000):
        if not sampler.in_flight:
            break
        rollouts += sampler.step()
        sampler.version += 2
    return [told(r) for r in rollouts]


def pushed(settings, weights, rule, slots, ends, prompts, samples, pushes, steps, **more):
    """Samples of the student's own draws, with weights pushed before these steps
    -> the rollouts. pushes: [[step, {name: array}], ...]"""
    from sampler import Request
    sampler = make_sampler(settings, weights, rule, slots=slots, eos_ids={*ends}, **more)
    for i, ids in enumerate(prompts):
        sampler.submit(Request(i, f"q{i}", tuple(ids), samples))
    rollouts, at = [], {step: (version, new) for version, (step, new) in enumerate(pushes, 1)}
    for step in range(steps):
        if step in at:
            version, new = at[step]
            sampler.push_weights(iter([(n, torch.from_numpy(x)) for n, x in new.items()]), version)
        rollouts += sampler.step()
    return [told(r) for r in rollouts]


def push(settings, weights, names, values):
    """Weights after a push of `values`, which the trainer then changes: [they, head, version, do
    the parameters and the head lie where they lay?]"""
    sampler = make_sampler(settings, weights, dict(think_min=3, think_max=5, answer_tokens=2),
                           slots=4, eos_ids={2})
    own = dict(sampler.model.named_parameters())
    places = {name: x.data_ptr() for name, x in own.items()}
    head = sampler.head.data_ptr()
    given = [(name, torch.nn.Parameter(torch.from_numpy(values[name]))) for name in names]
    sampler.push_weights(iter(given), 3)
    with torch.no_grad():
        for _, x in given:
            x += 1
    after = dict(sampler.model.named_parameters())
    first = {name: after[name].detach().clone() for name in after}
    version = sampler.version
    sampler.push_weights(sampler.model.named_parameters(), 4)
    return [first, sampler.head, version, sampler.version,
            all(after[name].data_ptr() == place for name, place in places.items())
            and sampler.head.data_ptr() == head,
            all(first[name].equal(after[name]) for name in after)]


# ------------------------------------------------------------------------------------ exercise 7
def law_at(law, C, A, B, C_mid, R0):
    from fit import law_at
    return law_at(law, C, A, B, C_mid, R0)


def points_to_fit(C, R, R0, law, first, last):
    from fit import points_to_fit
    return list(points_to_fit(C, R, R0, law, first, last))


def search(law, C, A_range, box):
    from fit import Search
    return Search(law, C, tuple(A_range), box)


def search_at(law, C, A_range, box, x, R, R0):
    theta, residual = search(law, C, A_range, box).at(x, R, R0)
    return [list(theta), residual]


def starts(law, C, A_range, box, R, R0):
    """The starts, and the fit that the project's own search makes of them."""
    one = search(law, C, A_range, box)
    found = [list(map(float, x)) for x in one.starts(R, R0)]
    return [found, one.solve(R, R0, one.starts(R, R0))[0]]


def fit_runs(runs, **settings):
    """[[C, R], ...] -> [n, R0, A, B, C_mid, rmse] of each."""
    from fit import fit_curve
    found = [fit_curve(C, R, bootstrap=0, **settings) for C, R in runs]
    return [[f.n, f.R0, f.A, f.B, f.C_mid, f.rmse] for f in found]


def compare_laws(law, C, A_range, box, theta, rival, its_theta, R):
    from fit import compare_laws
    return compare_laws(search(law, C, A_range, box), theta, search(rival, C, A_range, box),
                        its_theta, R)


def replicates(law, C, A_range, box, theta, angles, R, bootstrap, seed, step_0):
    from fit import replicates
    found = replicates(search(law, C, A_range, box), theta, angles, R, bootstrap, seed, step_0)
    return [found.draws, found.noise, found.law]


def paths(law, draws, noise, C, with_noise):
    from fit import Replicates
    return Replicates(law, draws, noise).paths(C, noise=with_noise)


# ------------------------------------------------------------------------- exercises 9, 10 and 12
def which_pushed_late(logs):
    from course.late_push import which_pushed_late
    return which_pushed_late(logs)


def forecast(C, R, later):
    from course.bets import forecast
    return forecast(C, R, later)


def pass_at_k(right, samples, k):
    from course.pass_at_k import pass_at_k
    return pass_at_k(right, samples, k)


def gain(before, after, samples, k, resamples, seed):
    from course.pass_at_k import gain
    return list(gain(before, after, samples, k, resamples, seed))


# ------------------------------------------------------------------------------ exercises 8 and 11
def replay(config, model, steps):
    """The first steps of a run with these settings, again -> the lines of both logs. model: {name
    of a file: base64}. The checkpoint at the end may be larger than the sandbox has room for: the
    logs are written by then."""
    import base64
    import contextlib
    import io
    import os
    import shutil
    from command import main
    # Neither sockets nor modes of files in here, and no signals to heed.
    shutil.copymode = lambda *_, **__: None
    main.Signals.heeded = contextlib.nullcontext
    os.chdir("/tmp")
    os.mkdir("model")
    for name, data in model.items():
        with open(f"model/{name}", "wb") as file:
            file.write(base64.b64decode(data))
    with open("replay.toml", "w") as file:
        file.write(config)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = main.main(["--config", "replay.toml", "--model", "model", "--name", "replay",
                          "--steps", str(steps)])
    if code and not os.path.exists("runs/replay/evals.jsonl"):
        raise RuntimeError(said.getvalue().strip().split("\n")[-1])
    found = {}
    for name in ("metrics.jsonl", "evals.jsonl"):
        with open(f"runs/replay/{name}") as file:
            found[name] = [json.loads(line) for line in file]
    return found
