"""All work in a package and a module of one's own; the files only call it."""
# file: toolbox/__init__.py
from .curves import laws as shapes
# file: toolbox/curves/__init__.py
from toolbox.curves import laws
# file: toolbox/curves/laws.py
import numpy as np


def share(law, x, B):
    """g of each law, at x = C / C_mid."""
    with np.errstate(all="ignore"):
        return {"sigmoid": lambda: 1 / (1 + x ** -B), "power": lambda: 1 - x ** -B,
                "stretched": lambda: 1 - 0.5 ** (x ** B),
                "logistic": lambda: 1 / (1 + np.exp(B - B * x))}[law]()


def best_rise(gain, g):
    return (gain * g).sum(axis=-1) / ((g ** 2).sum(axis=-1) + 1e-30)
# file: Helpers/head.py
import torch


def chunks(T, size):
    for s in range(0, T, size):
        yield slice(s, min(T, s + size))


def forward_chunk(head, h, y):
    z = head.logits(h, out=torch.empty(h.shape[0], head.V, dtype=head.dtype))
    ce = torch.nn.functional.cross_entropy(z, y, reduction="none")
    p = z.softmax(-1)
    return -ce, ce + z.gather(1, y[:, None])[:, 0] - (p * z).sum(-1)


def backward_chunk(head, h, y, g, temperature):
    z = head.logits(h, out=torch.empty(h.shape[0], head.V, dtype=head.dtype))
    dz = torch.nn.functional.one_hot(y, head.V).to(z) - z.softmax(-1)
    dz = head.operand(dz * g.to(z)[:, None] / temperature)
    return (head.matmul(dz, head.weight, out=torch.empty(h.shape, dtype=head.dtype)),
            head.matmul(dz.T, head.operand(h), out=torch.empty(head.weight.shape,
                                                               dtype=head.dtype)))
# file: _mine.py
"""What several exercises need."""
import random
import torch


def group_by(keys, values):
    found = {}
    for key, value in zip(keys, values):
        found.setdefault(key, []).append(value)
    return found


def spread(x, dim=None):
    return x.square().mean() if dim is None else x.square().mean(dim, keepdim=True)


def shuffled(names, *seed):
    names = list(names)
    random.Random("-".join(map(str, seed))).shuffle(names)
    return names


def exp_where(x, on):
    return torch.exp(torch.where(on, x, torch.zeros((), dtype=x.dtype)))
# file: engines/head.py
from Helpers import head as my


class TokenLogprobs:
    @staticmethod
    def forward(ctx, hidden, weight, targets, *rest):
        temperature, chunk_tokens, operand_dtype, head_fp32, softcap = rest
        head = Head(weight, temperature, operand_dtype, head_fp32, softcap)
        ctx.save_for_backward(hidden, weight, targets)
        ctx.rest = rest
        out = [my.forward_chunk(head, hidden[c], targets[c])
               for c in my.chunks(len(targets), chunk_tokens)]
        out = out or [(torch.zeros(0, dtype=head.dtype),) * 2]
        logprobs, entropy = map(torch.cat, zip(*out))
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx, g, _):
        hidden, weight, targets = ctx.saved_tensors
        head = Head(weight, ctx.rest[0], *ctx.rest[2:])
        on = g != 0
        gh, gw = torch.zeros_like(hidden), torch.zeros(weight.shape, dtype=head.dtype)
        places = on.nonzero()[:, 0]
        for c in my.chunks(len(places), ctx.rest[1]):
            at = places[c]
            one, two = my.backward_chunk(head, hidden[at], targets[at], g[at], ctx.rest[0])
            gh[at] = one.to(gh.dtype)
            gw += two
        return gh, gw.to(weight.dtype), None, None, None, None, None, None
# file: loss.py
import _mine
from _mine import exp_where as safe_exp


def advantages(rewards, *, norm="batch"):
    _check_choice("norm", norm, NORMS)
    if not rewards.is_floating_point():
        rewards = rewards.to(torch.float32)
    for p, row in enumerate(rewards.tolist()):
        for g, r in enumerate(row):
            if not abs(r) < float("inf"):
                raise ValueError(f"{p}/{g}: {r}")
    if rewards.numel() == 0:
        return rewards.clone()
    low, high = rewards.min(1).values, rewards.max(1).values
    a = torch.where((high - low <= 1e-6)[:, None], 0, rewards - rewards.mean(1)[:, None])
    if norm in ("none", "mean"):
        return a
    variance = _mine.spread(a, 1 if norm == "prompt" else None)
    return a / torch.where(variance == 0, 1, variance).sqrt()


def token_weights(mask, prompt_index, *, aggregation="prompt"):
    _check_choice("aggregation", aggregation, AGGREGATIONS)
    keys = {"prompt": prompt_index.tolist, "sample": lambda: [*range(len(mask))],
            "token": lambda: [0] * len(mask)}[aggregation]()
    sums = {key: sum(n) for key, n in _mine.group_by(keys, mask.sum(1).tolist()).items()}
    pools = len([n for n in sums.values() if n])
    weight = [1 / (sums[key] * pools) if sums[key] else 0.0 for key in keys]
    return mask * torch.tensor(weight, dtype=torch.float32).reshape(-1, 1)


def _capped(logprobs, log_rho, A, eps_max):
    rho = safe_exp(log_rho.detach(), log_rho < 80).masked_fill(log_rho.detach() >= 80, eps_max * 2)
    return torch.minimum(rho, torch.full_like(rho, eps_max)) * A * logprobs, rho > eps_max


def _sequence_log_ratio(log_ratio, mask):
    n = torch.stack([row.sum() for row in mask]).clamp(1)
    return torch.broadcast_to(log_ratio.sum(-1, keepdim=True) / n[:, None], log_ratio.shape)


def _clipped(log_rho, A, low, high):
    rho = log_rho.detach().exp()
    off = torch.logical_or((rho > high).logical_and(A > 0), (rho < low).logical_and(A < 0))
    moving = safe_exp(log_rho, ~off & (A != 0))
    return torch.where(off, torch.where(A > 0, high, low) * A, moving * A), off


def zero_variance(rewards, tol=1e-6):
    return torch.tensor([bool(row.max() - row.min() <= tol) for row in rewards], dtype=torch.bool)
# file: scalerl.py
from _mine import shuffled


class Curriculum:
    def next(self):
        if not self.cursor < len(self.order):
            self.active = [p for p in self.active if not self.learned(p)]
            if self.active == []:
                return
            self.epoch, self.cursor = self.epoch + 1, 0
            self.order = shuffled(self.active, self.seed, "epoch", self.epoch)
        self.cursor += 1
        return self.order[self.cursor - 1]

    def learned(self, prompt):
        return self._rate(prompt) >= self.retire_at

    def _rate(self, prompt):
        right, n = self.history.get(prompt, (0, 0))
        return right / n if n else -1.0

    def record(self, prompt, correct, samples):
        self.history[prompt] = [a + b for a, b in zip(self.history.get(prompt, [0, 0]),
                                                      [correct, samples])]


def effective_batch(rollouts, rewards, config):
    P, G = rewards.shape
    same = zero_variance(rewards)
    keep = [p for p in range(P) if not (config.zero_variance_filter and same[p])]
    whole = {"mean": rewards.mean, "std": rewards.std}
    log = {f"reward/{name}": float(f()) for name, f in whole.items()}
    log.update({"frac_reward_zero_std": float(same.double().mean()), "prompts/consumed": P,
                "prompts/trained": len(keep)})
    groups = [rollouts[i:i + G] for i in range(0, P * G, G)]
    return [r for p in keep for r in groups[p]], rewards[torch.tensor(keep, dtype=torch.long)], log


class PipelinePacer:
    def may_admit(self):
        return self._room() > 0

    def _room(self):
        return (1 + self.k) * self.P - len(self.groups)

    def admit(self, prompt_id, version, size):
        self.admitted += 1
        group = Group(group_id=self.admitted - 1, prompt_id=prompt_id, start=version, size=size)
        return self.groups.setdefault(group.group_id, group)

    def _oldest(self, groups):
        return sorted(groups, key=lambda g: (g.start, g.group_id))

    def take(self, version):
        taken = self._oldest(g for g in self.groups.values() if g.finished)[:self.P]
        if len(taken) == self.P and self.leaves_enough_time(taken, version):
            self.groups = {i: g for i, g in self.groups.items() if g not in taken}
            return taken
        return None

    def leaves_enough_time(self, taken, version):
        ids = [g.group_id for g in taken]
        rest = self._oldest(g for g in self.groups.values() if g.group_id not in ids)
        steps = [rest[i:i + self.P] for i in range(0, len(rest), self.P)]
        return all(min(g.start for g in step) + self.k >= version + n
                   for n, step in enumerate(steps, 1))


class Run:
    def _start(self, prompt):
        G = self.config.samples_per_prompt
        group = self.pacer.admit(prompt, self.version, G)
        self.sampler.submit(Request(group.group_id, prompt, self.problems.prompts[prompt], G,
                                    self.problems.train[prompt].task))

    def admit(self):
        while self.pacer.may_admit() and self.config.samples_per_prompt <= self.sampler.free_slots:
            prompt = self.curriculum.next()
            if prompt is None:
                return self.pacer.no_more_prompts()
            self._start(prompt)
# file: course/naive_pacer.py
def _block(first, P):
    return [*range(first, first + P)]


def counterexample(k, P):
    slow = _block(0, k * P)
    return [_block((k + i) * P, P) for i in range(k)] + [slow] + [[] for _ in range(k)]
# file: sampler.py
class Interruption:
    def draw_budgets(self, count, generator):
        if self.phrase_ids == ():
            return torch.ones(count, dtype=torch.int64) * self.think_max
        return torch.randint(high=self.think_max - self.think_min + 1, size=[count],
                             generator=generator) + self.think_min


class TransformersSampler:
    def _distribution(self, hidden):
        z = head_logits(hidden, self.head, head_fp32=self.head_fp32, softcap=cap(self.model))
        return torch.distributions.Categorical(logits=z / self.temperature)

    def _choose(self, hidden):
        d = self._distribution(hidden)
        token = torch.multinomial(d.probs, 1, generator=self.random).squeeze(-1)
        return token, d.log_prob(token)

    def _forced(self, n):
        left = self.rows.phrase_left[:n]
        return [int(self.phrase[-x]) if x else None for x in left.tolist()]

    def _record(self, token, logprob):
        n, rows = len(token), self.rows
        forced = self._forced(n)
        drawn = torch.tensor([f is None for f in forced])
        token = torch.tensor([t if f is None else f for t, f in zip(token.tolist(), forced)])
        at = (torch.arange(n), rows.count[:n].clone())
        for column, value in ((rows.ids, token), (rows.behavior_logprobs, logprob * drawn),
                              (rows.sampled, drawn)):
            column[at] = value
        rows.versions[at] = self.version
        rows.phrase_left[:n] -= 1 - drawn.long()
        rows.last[:n], rows.count[:n] = token, rows.count[:n] + 1
        stop = [d and t in self.eos_ids for d, t in zip(drawn.tolist(), token.tolist())]
        full = (rows.count[:n] == rows.limit[:n]).tolist()
        spent = (rows.count[:n] == rows.think[:n]).tolist()
        if len(self.phrase):
            self._interrupt([i for i in range(n) if spent[i] and not stop[i]])
        return [i for i in range(n) if stop[i] or full[i]]

    def _text(self, slot):
        return self.tokenizer.decode(self.rows.ids[slot][:self.rows.count[slot]].tolist())

    def _interrupt(self, due):
        thinking = [s for s in due if self.interruption.end not in self._text(s)]
        if thinking:
            self.rows.phrase_left[thinking] = len(self.phrase)
            self.rows.limit[thinking] += len(self.phrase)
            self.rows.interrupted[thinking] = True

    def _rollout(self, request, output_ids, behavior_logprobs, versions, sampled, interrupted):
        given = dict(output_ids=output_ids, behavior_logprobs=behavior_logprobs, versions=versions,
                     sampled=sampled, interrupted=interrupted)
        same = {name: getattr(request, name) for name in ("prompt_id", "group_id", "prompt_ids",
                                                          "task")}
        stop = self.eos_ids.intersection(output_ids[-1:])
        return Rollout(**same, **given, finish_reason="stop" if stop else "length")

    def push_weights(self, named_tensors, version):
        self.model.load_state_dict(dict(named_tensors), strict=False)
        self.version = version
# file: fit.py
from toolbox import shapes


def law_at(law, C, A, B, C_mid, R0):
    return R0 + (A - R0) * shapes.share(law, np.maximum(np.true_divide(C, C_mid), 1e-300), B)


def points_to_fit(C, R, R0, law, first, last):
    return _window(C, R, *_origin(C, R, R0, law), law, first, last)


def _origin(C, R, R0, law):
    n = int((C == 0).sum())
    if R0 is None and n:
        return float(R[C == 0].mean()), "step 0", n
    if R0 in (None, "fit"):
        return 0.0, ("unused" if law == "power" else "fitted"), 0
    return R0, "given", 0


def _window(C, R, R0, origin, n, law, first, last):
    use = (C >= first) & (C <= last)
    use = use | (C == 0) if origin == "fitted" else use if law == "logistic" else use & (C != 0)
    return C[use], R[use], R0, origin, n


class Search:
    def at(self, x, R, R0):
        lo, hi = np.transpose(self.box)
        v = [a + (b - a) / 2 + (b - a) / 2 * np.sin(t) for a, b, t in zip(lo, hi, x)]
        theta = dict(C_mid=np.exp(v[0]), B=np.exp(v[1]), R0=np.asarray(v[2] if v[2:] else R0))
        wide = {name: t[..., None] for name, t in theta.items()}
        g = law_at(self.law, self.C, 1.0, wide["B"], wide["C_mid"], 0.0)
        rise = np.maximum(shapes_rise(R - wide["R0"], g), 0)
        A = np.clip(theta["R0"] + rise, *self.A_range)
        return ((A, theta["B"], theta["C_mid"], theta["R0"]),
                R - wide["R0"] - np.asarray(A - theta["R0"])[..., None] * g)

    def starts(self, R, R0):
        best = {}
        for s in np.linspace(-0.98, 0.98, 96):
            x = np.array(np.meshgrid(s, np.linspace(-0.98, 0.98, 32),
                                     np.linspace(-0.98, 0.98, 5))).reshape(3, -1)
            x = np.arcsin(x[:len(self.box)])
            sse = (self.at(x, R, R0)[1] ** 2).sum(-1)
            best[s] = (sse.min(), x[:, sse.argmin()])
        return [best[s][1] for s in sorted(best, key=lambda s: best[s][0])][:4]


def compare_laws(search, theta, rival, its_theta, R):
    ours = _aic(R - law_at(search.law, search.C, *theta), search.parameters)
    found = {rival.law: (its_theta[0], _aic(R - law_at(rival.law, rival.C, *its_theta),
                                            rival.parameters)),
             "constant": (R.mean(), _aic(R - R.mean(), 1))}
    return {name: {"A": float(A), "delta_aic": float(its - ours)}
            for name, (A, its) in found.items()}


def _aic(residual, p):
    return residual.size * np.log((residual ** 2).mean() + 1e-12) + 2 * p


def replicates(search, theta, angles, R, bootstrap, seed, step_0):
    noise = widened(R - law_at(search.law, search.C, *theta), search.parameters)
    rng, found = np.random.default_rng([seed, 1]), []
    inside = np.clip(np.arcsin(np.sin(angles)), -1.4, 1.4)
    for _ in range(bootstrap if len(R) > search.parameters else 0):
        found.append(_replicate(search, theta, inside, noise, rng, step_0))
    return Replicates(search.law, np.reshape(found, (-1, 4)), noise)


def _replicate(search, theta, inside, noise, rng, step_0):
    R = law_at(search.law, search.C, *theta) + rng.choice(noise, noise.size)
    R0 = np.clip(theta[3] + rng.choice(noise, step_0).mean(), 0, 1) if step_0 else theta[3]
    return search.solve(R, R0, [inside])[0]


class Replicates:
    def paths(self, C, noise=False):
        paths = np.stack([law_at(self.law, np.asarray(C, float), *draw) for draw in self.draws])
        return paths + self._noise(paths.shape) if noise else paths

    def _noise(self, shape):
        rng = np.random.default_rng(0)
        return self.noise[rng.integers(0, len(self.noise), shape)]


def shapes_rise(gain, g):
    from toolbox.curves.laws import best_rise
    return best_rise(gain, g)
# file: course/late_push.py
def which_pushed_late(logs):
    return max((_share(log), place) for place, log in enumerate(logs))[1]


def _share(log):
    apart = [[line.get(f"mismatch/mean_abs_dlogp/lag_{lag}") for line in log] for lag in (0, 1)]
    pairs = [(a, b) for a, b in zip(*apart) if a and b]
    return sum(a for a, _ in pairs) / sum(b for _, b in pairs) if pairs else 0.0
# file: course/bets.py
from scipy import optimize as opt


def forecast(C, R, later):
    def law(c, logit, mid, steep):
        A = 1 / (1 + np.exp(-logit))
        return R[0] + (A - R[0]) / (1 + np.exp(-np.exp(steep) * (np.log(c) - mid)))
    sure = np.array([0.015] * (len(C) - 1) + [1.0, 0.5])
    target = np.array([*R[1:], np.log(0.85 / 0.15), np.log(1.6)])

    def model(c, *p):
        return np.array([*law(C[1:], *p), p[0], p[2]])
    fits = []
    for shift in (-0.7, 0.0, 1.0):
        try:
            p, _ = opt.curve_fit(model, np.arange(len(target)), target, sigma=sure, maxfev=5000,
                                 p0=[1.7, np.log(C[-1]) + shift, 0.47])
            fits.append((np.sum(((model(None, *p) - target) / sure) ** 2), law(later, *p).mean()))
        except RuntimeError:
            continue
    return float(min(fits)[1]) if fits else float(R[-1])
# file: course/pass_at_k.py
from math import lgamma


def pass_at_k(right, samples, k):
    return np.array([_one(int(c), samples, k) for c in right])


def _one(c, n, k):
    if n - c < k:
        return 1.0
    return -np.expm1(sum(np.log1p(-c / (n - i)) for i in range(k)))


def gain(before, after, samples, k, resamples, seed):
    pairs = np.column_stack([pass_at_k(x, samples, k) for x in (before, after)])
    rng = np.random.default_rng(seed)
    means = [np.diff(pairs[rng.choice(len(pairs), len(pairs))].mean(0))[0]
             for _ in range(resamples)]
    return np.diff(pairs.mean(0))[0], np.quantile(means, 0.05), np.quantile(means, 0.95)
