"""`make grade`: all points for right work of any style; a line that fails costs its exercise."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from conftest import ROOT
from grading import ROWS, graded, handed_out, sandboxed, tree

from course import grade, student

NUMBERS = [number for number, row in ROWS.items() if row["functions"]]


@pytest.mark.days(4)
@sandboxed
@pytest.mark.parametrize("number", NUMBERS)
def test_the_projects_own_bodies_of_one_exercise_have_all_points(number):
    """With no other exercise's bodies in the tree, and inputs that are fresh in every run."""
    seed = int(os.environ.get("SEED") or int.from_bytes(os.urandom(3), "big"))
    row = graded(number, tree(real=[number]), seed=seed)
    assert row["points"] == row["of"] == ROWS[number]["points"], (seed, row["parts"])
    assert all(note.startswith("forecasts: ") for note in row["notes"])
    assert len(row["parts"]) >= (5 if number < 8 else 1)


# Right solutions in other words: loops, numpy, other torch functions, helpers of all kinds.
STYLES = {
    "loops over lists": (2, {
        "loss.py::advantages": """
if norm not in NORMS:
    raise ValueError(norm)
import math, statistics
rows = rewards.tolist()
for p, row in enumerate(rows):
    for g, r in enumerate(row):
        if not math.isfinite(r):
            raise ValueError(f"reward {p}, {g} is {r}")
out = [[0.0] * len(row) if max(row) - min(row) <= 1e-6 else
       [r - statistics.fmean(row) for r in row] for row in rows]
flat = [a for row in out for a in row]
for i, row in enumerate(out):
    s = (statistics.pstdev(flat) if norm == "batch" else statistics.pstdev(row)
         if norm == "prompt" else 1)
    out[i] = [a / s if s else 0.0 for a in row]
return torch.tensor(out).reshape(rewards.shape)""",
        "loss.py::token_weights": """
if aggregation not in AGGREGATIONS:
    raise ValueError(aggregation)
pool = {"prompt": prompt_index.tolist(), "sample": list(range(len(mask))),
        "token": [0] * len(mask)}[aggregation]
count = {}
for p, n in zip(pool, mask.sum(1).tolist()):
    count[p] = count.get(p, 0) + n
pools = sum(n > 0 for n in count.values())
return torch.tensor([[m / max(count[p], 1) / max(pools, 1) for m in row]
                     for p, row in zip(pool, mask.tolist())],
                    dtype=torch.float32).reshape(mask.shape)"""}, "", {}),
    "numpy, constants with annotations, a helper under if": (2, {
        "loss.py::advantages": """
check(norm)
x = rewards.numpy().astype(float)
if not np.isfinite(x).all():
    raise ValueError(str(np.argwhere(~np.isfinite(x))[0].tolist()))
A = np.where(np.ptp(x, 1, keepdims=True) <= TOLERANCE, 0, x - x.mean(1, keepdims=True)) \\
    if x.size else x
axis = {"batch": None, "prompt": 1}.get(norm)
s = A.std(axis, keepdims=True) if norm != "none" and x.size else np.ones(1)
return torch.from_numpy(A / np.where(s > 0, s, 1)).float()""",
        "loss.py::token_weights": """
_check_choice("aggregation", aggregation, AGGREGATIONS)
ids = {"prompt": prompt_index, "sample": torch.arange(len(mask)),
       "token": torch.zeros(len(mask), dtype=torch.long)}[aggregation]
same = (ids[:, None] == ids).double()
tokens = same @ mask.sum(1).double()
pools = ((1 / same.sum(1)) * (tokens > 0)).sum().round()
print("weights", pools)
return (mask / (tokens * pools).clamp(min=1)[:, None]).float()"""}, '''
import numpy as np
TOLERANCE: float = 1e-6
if TOLERANCE:
    def check(norm, *, names: tuple[str, ...] = ("batch", "prompt", "none")):
        if norm not in names:
            raise ValueError(norm)
''', {}),
    "functions of a module of their own": (3, {
        "loss.py::_capped": "return mine.cispo(logprobs, log_rho, A, eps_max)",
        "loss.py::_clipped": "return clip_them(log_rho, A, low, high)",
        "loss.py::_sequence_log_ratio": """
total = torch.einsum("nt->n", log_ratio)
return torch.stack([total / mask.float().sum(-1).clamp_min(1)] * log_ratio.shape[1], dim=-1)"""},
        "import mine; from mine import clip_them", {"mine.py": """
import torch
from torch import where
def cispo(log_pi, log_rho, A, cap):
    with torch.no_grad():
        rho = torch.exp(log_rho)
        weight = torch.minimum(rho, torch.tensor(cap, dtype=rho.dtype))
    return weight * A * log_pi, rho > cap
def clip_them(log_rho, A, low, high):
    r = log_rho.detach().exp()
    off = (A > 0) & (r > high) | (A < 0) & (r < low)
    still = off | (A == 0)
    ratio = torch.exp(log_rho.masked_fill(still, 0.0))
    return where(still, r.clamp(low, high), ratio) * A, off
"""}),
    "a counter and a numpy generator": (4, {
        "scalerl.py::Curriculum.next": """
if not self.order[self.cursor:]:
    left = []
    for prompt in self.active:
        if not self.learned(prompt):
            left.append(prompt)
    self.active = left
    if not left:
        return None
    import numpy as np
    self.epoch = self.epoch + 1
    rng = np.random.default_rng([self.seed, self.epoch, 77])
    self.order, self.cursor = [left[i] for i in rng.permutation(len(left))], 0
prompt = self.order[self.cursor]
self.cursor += 1
return prompt""",
        "scalerl.py::Curriculum.learned": """
right, n = self.history.get(prompt) or [0, 0]
return bool(n) and right >= self.retire_at * n - 1e-9""",
        "scalerl.py::Curriculum.record": """
entry = self.history.setdefault(prompt, [0, 0])
entry[0] += correct
entry[1] += samples""",
        "loss.py::zero_variance": """
low, high = rewards.double().aminmax(dim=1)
return high - low <= tol""",
        "scalerl.py::effective_batch": """
P, G = rewards.shape
same = zero_variance(rewards).tolist()
stay = [p for p in range(P) if not (same[p] and config.zero_variance_filter)]
import numpy as np
flat = rewards.numpy().ravel()
return ([rollouts[p * G + g] for p in stay for g in range(G)], rewards[stay],
        {"reward/mean": float(flat.mean()), "reward/std": float(flat.std(ddof=1)),
         "frac_reward_zero_std": sum(same) / P, "prompts/consumed": P,
         "prompts/trained": len(stay)})"""}, "", {}),
    "a plan of the next steps": (5, {
        "scalerl.py::PipelinePacer.may_admit":
            "return not len(self.groups) >= self.P + self.k * self.P",
        "scalerl.py::PipelinePacer.admit": """
i = self.admitted
self.admitted = i + 1
self.groups[i] = Group(group_id=i, prompt_id=prompt_id, start=version, size=size)
return self.groups[i]""",
        "scalerl.py::PipelinePacer.take": """
import heapq
ready = heapq.nsmallest(self.P, [g for g in self.groups.values() if g.finished],
                        key=lambda g: (g.start, g.group_id))
if len(ready) == self.P and self.leaves_enough_time(ready, version):
    for g in ready:
        self.groups.pop(g.group_id)
    return ready""",
        "scalerl.py::PipelinePacer.leaves_enough_time": """
gone = [id(g) for g in taken]
left = sorted(g.start for g in self.groups.values() if id(g) not in gone)
return all(version + 1 + i // self.P <= start + self.k for i, start in enumerate(left))""",
        "scalerl.py::Run.admit": """
G = self.config.samples_per_prompt
while True:
    if not self.pacer.may_admit() or self.sampler.free_slots < G:
        break
    name = self.curriculum.next()
    if name is None:
        self.pacer.no_more_prompts()
        break
    g = self.pacer.admit(name, self.version, G)
    self.sampler.submit(Request(group_id=g.group_id, prompt_id=name, samples=G,
                                prompt_ids=self.problems.prompts[name],
                                task=self.problems.train[name].task))""",
        "course/naive_pacer.py::counterexample": """
slow, plan = set(range(k * P)), []
for t in range(k):
    plan.append([k * P + t * P + i for i in range(P)])
return plan + [sorted(slow)] + [[]] * (2 * k)"""}, "", {}),
    "torch.multinomial and plain loops": (6, {
        "sampler.py::Interruption.draw_budgets": """
if len(self.phrase_ids) == 0:
    return torch.tensor([self.think_max] * count)
width = self.think_max - self.think_min + 1
u = torch.rand(count, generator=generator, dtype=torch.float64)
return self.think_min + (u * width).long().clamp(max=width - 1)""",
        "sampler.py::TransformersSampler._choose": """
logits = head_logits(hidden, self.head, head_fp32=self.head_fp32) / self.temperature
token = torch.multinomial(logits.softmax(-1), 1, generator=self.random)
return token.squeeze(1), logits.log_softmax(-1).gather(1, token).squeeze(1)""",
        "sampler.py::TransformersSampler._record": """
rows, ended, due = self.rows, [], []
for slot in range(len(token)):
    left, at = int(rows.phrase_left[slot]), int(rows.count[slot])
    new, lp = int(token[slot]), float(logprob[slot])
    if left:
        new, lp = int(self.phrase[-left]), 0.0
        rows.phrase_left[slot] = left - 1
    rows.ids[slot, at], rows.versions[slot, at] = new, self.version
    rows.behavior_logprobs[slot, at], rows.sampled[slot, at] = lp, left == 0
    rows.last[slot], rows.count[slot] = new, at + 1
    stopped = left == 0 and new in self.eos_ids
    if stopped or at + 1 == int(rows.limit[slot]):
        ended.append(slot)
    if at + 1 == int(rows.think[slot]) and not stopped:
        due.append(slot)
if len(self.phrase):
    self._interrupt(due)
return ended""",
        "sampler.py::TransformersSampler._interrupt": """
for s in due:
    text = self.tokenizer.decode(self.rows.ids[s][:self.rows.count[s]])
    if text.find(self.interruption.end) < 0:
        self.rows.interrupted[s] = True
        self.rows.phrase_left[s] = len(self.interruption.phrase_ids)
        self.rows.limit[s] = self.rows.limit[s] + len(self.interruption.phrase_ids)""",
        "sampler.py::TransformersSampler._rollout": """
return Rollout(
    prompt_id=request.prompt_id, group_id=request.group_id, prompt_ids=request.prompt_ids,
    output_ids=output_ids, behavior_logprobs=behavior_logprobs, versions=versions,
    sampled=sampled, interrupted=interrupted, task=request.task,
    finish_reason=("length", "stop")[output_ids[-1] in self.eos_ids])""",
        "sampler.py::TransformersSampler.push_weights": """
mine = self.model.state_dict(keep_vars=True)
for name, x in named_tensors:
    mine[name].data.copy_(x.detach())
self.version = version"""}, "", {}),
    "scipy's laws and a finer table": (7, {
        "fit.py::law_at": """
C = np.maximum(np.asarray(C, float), 1e-300 * np.asarray(C_mid))
with np.errstate(all="ignore"):
    c = C / C_mid
    if law == "sigmoid":
        g = 1 / (1 + np.exp(-B * np.log(np.maximum(c, 1e-300))))
    elif law == "stretched":
        g = 1 - 2.0 ** -(c ** B)
    elif law == "power":
        g = 1 - c ** -B
    else:
        g = 1 / (1 + np.exp(-B * (c - 1)))
return R0 + (A - R0) * g""",
        "fit.py::points_to_fit": """
zero = C == 0
if R0 is not None and R0 != "fit":
    told = (R0, "given", 0)
elif R0 is None and zero.any():
    told = (float(np.mean(R[zero])), "step 0", int(zero.sum()))
else:
    told = (0.0, "unused" if law == "power" else "fitted", 0)
inside = np.array([c_min <= c <= c_max for c in C])
if told[1] == "fitted":
    inside = inside | zero
elif law != "logistic":
    inside = inside & ~zero
return C[inside], R[inside], *told""",
        "fit.py::Search.at": """
def between(angle, row):
    return row[0] + (row[1] - row[0]) * 0.5 * (1 + np.sin(angle))
C_mid, B = (np.exp(between(x[i], self.box[i])) for i in (0, 1))
start = between(x[2], self.box[2]) if len(self.box) == 3 else np.float64(R0)
g = law_at(self.law, self.C, 1.0, np.asarray(B)[..., None], np.asarray(C_mid)[..., None], 0.0)
gain = R - np.asarray(start)[..., None]
with np.errstate(all="ignore"):
    slope = np.nan_to_num(np.einsum("...n,...n->...", gain, g) / (g * g).sum(axis=-1))
A = np.minimum(np.maximum(start + np.where(slope > 0, slope, 0), self.A_range[0]),
               self.A_range[1])
return (A, B, C_mid, start), gain - np.asarray(A - start)[..., None] * g""",
        "fit.py::Search.starts": """
best = []
for a in np.arcsin(np.linspace(-0.97, 0.97, 60)):
    rest = np.meshgrid(*[np.arcsin(np.linspace(-0.97, 0.97, n))
                         for n in (30, 5)[:len(self.box) - 1]], indexing="ij")
    x = np.stack([np.full(rest[0].size, a), *[r.ravel() for r in rest]])
    sse = np.square(self.at(x, R, R0)[1]).sum(-1)
    best.append((sse.min(), x[:, sse.argmin()]))
return [x for _, x in sorted(best, key=lambda pair: pair[0])[:4]]""",
        "fit.py::compare_laws": """
def aic(r, p):
    return len(R) * np.log(np.mean(r ** 2) + 1e-12) + 2 * p
mine = aic(R - law_at(search.law, search.C, *theta), search.parameters)
its = aic(R - law_at(rival.law, rival.C, *its_theta), rival.parameters)
return {"constant": {"A": float(np.mean(R)), "delta_aic": float(aic(R - R.mean(), 1) - mine)},
        rival.law: {"A": float(its_theta[0]), "delta_aic": float(its - mine)}}""",
        "fit.py::replicates": """
curve = law_at(search.law, search.C, *theta)
noise = widened(R - curve, search.parameters)
S = bootstrap if len(R) > search.parameters else 0
rng, draws = np.random.default_rng([seed, 4]), []
for _ in range(S):
    R0 = theta[3]
    if step_0:
        R0 = min(max(R0 + np.mean(rng.choice(noise, step_0)), 0), 1)
    new = curve + noise[rng.integers(len(noise), size=len(noise))]
    draws.append(search.solve(new, R0, [np.clip(np.arcsin(np.sin(angles)), -1.4, 1.4)])[0])
return Replicates(search.law, np.array(draws).reshape(-1, 4), noise)""",
        "fit.py::Replicates.paths": """
rng = np.random.default_rng(12)
rows = np.array([law_at(self.law, np.asarray(C, float), *draw) for draw in self.draws])
return rows + rng.choice(self.noise, rows.shape) if noise else rows"""}, "", {}),
    "the head by checkpointed chunks": (1, {
        "engines/head.py::TokenLogprobs.forward": """
head = Head(weight, temperature, operand_dtype, head_fp32, softcap)
lp, ent = [], []
for h, y in zip(hidden.split(chunk_tokens), targets.split(chunk_tokens)):
    z = head.logits(h, out=hidden.new_empty(len(h), head.V, dtype=head.dtype))
    p = z.log_softmax(-1)
    lp.append(p.gather(1, y[:, None])[:, 0])
    ent.append(-(p.exp() * p).sum(-1))
ctx.save_for_backward(hidden, weight, targets)
ctx.rest = temperature, chunk_tokens, operand_dtype, head_fp32, softcap
lp, ent = torch.cat(lp), torch.cat(ent)
ctx.mark_non_differentiable(ent)
return lp, ent""",
        "engines/head.py::TokenLogprobs.backward": """
hidden, weight, targets = ctx.saved_tensors
temperature, chunk, operand_dtype, head_fp32, softcap = ctx.rest
head = Head(weight, temperature, operand_dtype, head_fp32, softcap)
dh, dw = torch.zeros_like(hidden), torch.zeros_like(weight, dtype=head.dtype)
alive = torch.nonzero(grad_logprobs).flatten()
for rows in alive.split(chunk) if len(alive) else ():
    h, g = hidden[rows], grad_logprobs[rows] / temperature
    z = head.logits(h, out=hidden.new_empty(len(h), head.V, dtype=head.dtype))
    p = z.softmax(-1)
    dz = torch.nn.functional.one_hot(targets[rows], head.V).to(p.dtype).sub_(p).mul_(g[:, None])
    dz = dz * (1 - (z * temperature / softcap) ** 2) if softcap else dz
    dz = dz.to(head.weight.dtype)
    dh[rows] = (dz @ head.weight).to(dh.dtype)
    dw += (dz.T @ head.operand(h)).to(dw.dtype)
return dh, dw.to(weight.dtype), *[None] * 6"""}, "", {}),
}


@pytest.mark.days(4)
@sandboxed
@pytest.mark.parametrize("name", STYLES)
def test_a_right_solution_in_other_words_has_all_points(name):
    number, bodies, top, extra = STYLES[name]
    row = graded(number, tree(bodies, top), extra)
    assert row["points"] == row["of"], [p for p in row["parts"] if p["why"]] + row["notes"]


OVERRIDDEN = {
    "a plain import": "from my_pass import pass_at_k, gain",
    "a star": "from my_pass import *",
    "a star, with the names in __all__": '__all__ = ["pass_at_k", "gain"]\nfrom my_pass import *',
    "a loop over globals()": """
import my_pass
for f in (my_pass.pass_at_k, my_pass.gain):
    globals()[f.__name__] = f"""}


@sandboxed
@pytest.mark.parametrize("number, where, old, new, why", [
    (2, "loss.py::advantages", "", "return advantages_of(rewards, norm).numpy()",
     "tensors were asked for, a ndarray came"),
    (2, "loss.py::advantages", "centered = rewards - rewards.mean(1, keepdim=True)",
     "centered = rewards.sub_(rewards.mean(1, keepdim=True))", "argument 1 was changed in place"),
    (3, "loss.py::_capped", ".detach().exp()", ".detach().exp_()",
     "argument 2 was changed in place")])
def test_what_the_trainer_could_not_use_earns_nothing(number, where, old, new, why):
    """Right values in an array that is not torch's, or at the price of an input of the caller's:
    the public check fails there, so points would be a surprise."""
    path, name = where.split("::")
    given = tree(real=[number])
    body = textwrap.dedent(student.body_of(given[path], name, path))
    if old:
        assert body.count(old) == 1
        sources = tree({where: body.replace(old, new)}, real=[number])
    else:
        helper = "def advantages_of(rewards, norm):\n" + textwrap.indent(body, "    ")
        sources = tree({where: new}, real=[number])
        sources[path] += "\n\n" + helper + "\n"
    row = graded(number, sources)
    lost = [part for part in row["parts"] if part["why"]]
    assert lost and any(why in part["why"] for part in lost), row["parts"]
    assert 0 < row["points"] < row["of"]


@sandboxed
@pytest.mark.parametrize("name", OVERRIDDEN)
def test_a_stub_that_is_left_and_overridden_below_costs_nothing(name):
    """Which name takes a stub's place is known to who runs the file, not to who reads it."""
    sources = tree()
    sources["course/pass_at_k.py"] += "\n" + OVERRIDDEN[name] + "\n"
    row = graded(12, sources, {"my_pass.py": (ROOT / "course/pass_at_k.py").read_text()})
    assert row["points"] == row["of"] and row["notes"] == [], row


@sandboxed
def test_methods_that_a_decorator_puts_into_their_class_have_all_points():
    lines = (ROOT / "engines/head.py").read_text().split("\n")
    sources = tree()
    sources["engines/head.py"] += """

def put(f):
    setattr(TokenLogprobs, f.__name__, staticmethod(f))

"""
    for name in ("forward", "backward"):
        node = student.find("\n".join(lines), f"TokenLogprobs.{name}", "engines/head.py")
        sources["engines/head.py"] += "@put\n" + textwrap.dedent(
            "\n".join(lines[node.lineno - 1:node.end_lineno])) + "\n\n"
    row = graded(1, sources)
    assert row["points"] == row["of"], row


@sandboxed
@pytest.mark.parametrize("number", NUMBERS)
def test_an_exercise_that_was_left_out_says_so_in_one_line(number):
    """Also where another exercise's work, or a comment, has changed the files."""
    path = ROWS[number]["functions"][0].split("::")[0]
    row = graded(number, tree(top="# my line", where=path), {"mine.py": "x = 1\n"})
    names = [name.split("::")[1] for name in ROWS[number]["functions"]]
    assert row["points"] == 0 and row["parts"] == []
    assert row["notes"] == [f"not written: {', '.join(names)}"]


def test_work_on_other_exercises_alone_asks_no_sandbox():
    """Their bodies are the project's own while this exercise is graded."""
    for number in NUMBERS:
        sources = tree(real=[n for n in NUMBERS if n != number])
        assert grade.untouched(ROWS[number], sources, {})
        assert not grade.untouched(ROWS[number], sources, {"random.py": ""})
        sources["fit.py"] += "# more\n"
        assert not grade.untouched(ROWS[number], sources, {})


@sandboxed
def test_a_submission_may_read_its_own_source():
    """torch.jit.script does: it compiles the text. And inspect shows no text of ours."""
    sources = tree(real=[2])
    sources["loss.py"] += """

@torch.jit.script
def share(mask, count: int):
    return mask / float(max(count, 1))

import inspect, sys                     # if a text is another one, the stubs are back
if "the stubs are back" not in inspect.getsource(sys.modules[__name__]):
    del advantages, token_weights
if "where(variance > 0" not in inspect.getsource(advantages):
    del advantages, token_weights
"""
    row = graded(2, sources)
    assert row["points"] == row["of"] and row["notes"] == [], row


# -- a line that fails

def parts_of(row):
    return {part["part"]: part["why"] for part in row["parts"]}


@sandboxed
def test_a_line_that_raises_costs_its_exercise_alone_and_is_named_with_its_number():
    real = [2, 3]
    sources = tree(top="SCALE = 1 / 0\nHALF = 0.5", real=real)
    line = sources["loss.py"].split("\n").index("SCALE = 1 / 0") + 1
    sources["loss.py"] = sources["loss.py"].replace(
        "return centered / torch", "return SCALE * centered / torch")
    row = graded(2, sources)
    assert 0 < row["points"] < row["of"]
    assert row["notes"] == [f"this line did not run: loss.py, line {line}: ZeroDivisionError: "
                            "division by zero"]
    assert "NameError: name 'SCALE'" in parts_of(row)["advantages, norm 'batch'"]
    assert not any(why for part, why in parts_of(row).items() if part.startswith("token weights"))
    row = graded(3, sources)
    assert row["points"] == row["of"] and row["notes"] == []


@sandboxed
@pytest.mark.parametrize("broken", ["    x = (1,\n", "    return return\n", '    x = """\n',
                                    "  y = 1\n x = 2\n"])
def test_what_is_no_python_costs_the_function_that_it_stands_in(broken):
    sources = tree(real=[2, 3, 4])
    head, rest = sources["loss.py"].split("    ratio = log_rho.detach().exp()\n", 1)
    number = head.count("\n") + 1
    sources["loss.py"] = head + broken + "    ratio = log_rho.detach().exp()\n" + rest
    row = graded(2, sources)
    if '"""' not in broken:                 # an open string may swallow what stands below it
        assert row["points"] == row["of"], row["parts"]
    row = graded(3, sources)
    assert row["points"] < row["of"] and "SyntaxError" in row["notes"][0]
    if '"""' not in broken:
        said = row["notes"][0]
        assert any(f"loss.py, line {number + i}:" in said for i in range(3)), said


@sandboxed
def test_an_import_that_fails_costs_those_who_need_it():
    sources = tree(top="import torch, no_such_module", real=[2])
    assert graded(2, sources)["points"] == 10


@sandboxed
def test_a_function_that_was_renamed_is_missing_and_the_others_are_graded():
    sources = tree(real=[2])
    sources["loss.py"] = sources["loss.py"].replace("def advantages(", "def advantage(")
    row = graded(2, sources)
    why = parts_of(row)
    assert why["advantages, norm 'batch'"] and not why["token weights, 'token'"]


# -- the whole

@pytest.mark.days(4, turn=2)
@sandboxed
def test_a_tree_has_a_table_with_its_seed_and_edited_checks_have_no_effect(tmp_path):
    folder = tmp_path / "a student's träe"
    student.write(folder)
    student.restore(folder, [2])
    (folder / "course" / "checks" / "test_3.py").write_text("def test_all():\n    pass\n")
    done = subprocess.run(
        [sys.executable, "-B", "-m", "course.grade", str(folder), "--json",
         str(tmp_path / "grade.json"), "--seed", "7", "--only", "2", "3"], cwd=ROOT, text=True,
        capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "grade.json").read_text())
    assert [row["points"] for row in told["exercises"]] == [10, 0] and told["points"] == 10
    assert told["seed"] == 7 and "seed 7" in done.stdout
    assert "course/checks/test_3.py was edited: ours is used" in told["notes"]
    assert told["exercises"][1]["notes"] == [
        "not written: _capped, _sequence_log_ratio, _clipped"]


@pytest.mark.days(4, turn=1)
def test_in_a_students_tree_the_public_checks_run_and_no_points_are_given(tmp_path):
    student.write(tmp_path / "tree")
    student.restore(tmp_path / "tree", [2, 4])
    done = subprocess.run(
        [sys.executable, "-B", "-m", "course.grade", ".", "--only", "2", "3", "11"],
        cwd=tmp_path / "tree", text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    two, three, left, eleven, last = done.stdout.strip().split("\n")
    assert "passed" in two and "failed" not in two and "failed" in three
    assert left == "  not written: _capped, _sequence_log_ratio, _clipped"
    assert eleven.endswith("from its runs: make check EX=11") and "your instructor's" in last


def test_a_folder_that_is_no_students_tree_is_refused(tmp_path):
    done = subprocess.run([sys.executable, "-B", "-m", "course.grade", str(tmp_path)], cwd=ROOT,
                          text=True, capture_output=True, timeout=100)
    assert done.returncode == 2 and "is no students' tree" in done.stderr


def test_the_sandbox_gets_no_body_of_the_exercise_and_no_truth():
    rows = [*ROWS.values()]
    for number in NUMBERS:
        gone = {number, *ROWS[number].get("without", [])}
        with grade.service(None, ROWS[number], rows, handed_out(), {}, 10) as service:
            tree = service.submission["tree"]
            assert not [name for name in tree if "values" in name or "checks" in name]
            for path, functions in student.by_file(rows).items():
                text = tree[path]
                for name, other in functions.items():
                    stub = f'raise NotImplementedError("exercise {other}")'
                    assert (student.body_of(text, name, path).strip() == stub) == (other in gone)


def test_making_a_students_tree_needs_no_package_and_touches_no_environment(tmp_path):
    done = subprocess.run(["make", "-n", "student", "VENV=" + str(tmp_path / "shared")], cwd=ROOT,
                          text=True, capture_output=True, timeout=60)
    assert "pip" not in done.stdout and "venv" not in done.stdout and "-S" not in done.stdout
    done = subprocess.run([sys.executable, "-I", "-S", "-B", "-c",
                           f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
                           "from course import student; student.main(['--out', sys.argv[1]])",
                           str(tmp_path / "student")], text=True, capture_output=True, timeout=60)
    assert done.returncode == 0 and (tmp_path / "student" / "README.md").exists(), done.stderr
