"""The stubs stay where they are; the work stands below them and takes their names."""
# file: engines/head.py
# -- below
def _forward(ctx, hidden, weight, targets, *args):
    head = Head(weight, args[0], *args[2:])
    lp, ent = hidden.new_zeros(len(targets), dtype=head.dtype), []
    for n, rows in enumerate(torch.arange(len(targets)).split(args[1]) if len(targets) else []):
        z = head.logits(hidden[rows], out=torch.empty(len(rows), head.V, dtype=head.dtype))
        dist = torch.distributions.Categorical(logits=z, validate_args=False)
        lp[rows] = dist.log_prob(targets[rows])
        ent.append(dist.entropy())
    ent = torch.cat(ent) if ent else lp.clone()
    ctx.mark_non_differentiable(ent)
    ctx.save_for_backward(hidden, weight, targets)
    ctx.args = args
    return lp, ent


def _backward(ctx, g, _):
    """Autograd's own, a chunk at a time."""
    hidden, weight, targets = ctx.saved_tensors
    head = Head(weight, ctx.args[0], *ctx.args[2:])
    gh, gw = torch.zeros_like(hidden), torch.zeros(weight.shape, dtype=head.dtype)
    rows = g.nonzero().squeeze(1)
    for at in [rows[i: i + ctx.args[1]] for i in range(0, len(rows), ctx.args[1])]:
        with torch.enable_grad():
            h = head.operand(hidden[at]).detach().requires_grad_()
            w = head.weight.detach().requires_grad_()
            z = (h @ w.T).to(head.dtype)
            if head.softcap:
                z = head.softcap * torch.tanh(z / head.softcap)
            lp = torch.log_softmax(z / head.temperature, 1).gather(1, targets[at, None])[:, 0]
            one, two = torch.autograd.grad(lp, (h, w), g[at].to(lp.dtype))
        gh[at] = one.to(gh.dtype)
        gw += two.to(gw.dtype)
    return gh, gw.to(weight.dtype), *[None] * 6


TokenLogprobs.forward = staticmethod(_forward)
TokenLogprobs.backward = staticmethod(_backward)
# file: loss.py
# -- below
from functools import partial


def new(name):
    def keep(function):
        globals()[name] = function
        return function
    return keep


def my_advantages(rewards, *, norm="batch"):
    _check_choice("norm", norm, NORMS)
    r = rewards.to(torch.promote_types(rewards.dtype, torch.float32))
    finite = torch.isfinite(r)
    if finite.logical_not().any():
        i = int(finite.flatten().long().argmin())
        raise ValueError(f"prompt {i // r.shape[1]}, sample {i % r.shape[1]}")
    if r.shape[0] == 0:
        return r
    equal = (r.topk(1).values - r.topk(1, largest=False).values) <= 1e-6
    a = (r - r.mean(-1, keepdim=True)) * ~equal
    s = {"batch": a.var(unbiased=False).sqrt(), "none": torch.ones(()), "mean": torch.ones(()),
         "prompt": a.var(-1, unbiased=False, keepdim=True).sqrt()}[norm]
    return torch.nan_to_num(a / s)


def my_token_weights(mask, prompt_index, *, aggregation="prompt"):
    _check_choice("aggregation", aggregation, AGGREGATIONS)
    ids = dict(prompt=prompt_index, sample=torch.arange(mask.shape[0]),
               token=prompt_index * 0)[aggregation]
    tokens = (ids[:, None] == ids).float() @ mask.float().sum(1)        # (N,): of its pool
    share = mask / tokens[:, None].clamp(min=1)
    return share / share.sum().round().clamp(min=1)


def _my_clip(log_rho, A, low, high):
    rho = log_rho.detach().exp()
    acts = torch.where(A > 0, rho > high, torch.where(A < 0, rho < low, False))
    on = ~(acts | (A == 0))
    return torch.where(on, log_rho * on, 0).exp() * A * on + torch.where(
        acts, rho.clamp(low, high) * A, 0), acts


def _my_cap(logprobs, log_rho, A, eps_max, _stop=torch.Tensor.detach):
    rho = _stop(log_rho).clamp(max=50).exp()
    return rho.minimum(torch.as_tensor(eps_max, dtype=rho.dtype)) * A * logprobs, rho > eps_max


advantages, token_weights = my_advantages, my_token_weights
_clipped = partial(_my_clip)
_capped = _my_cap
_sequence_log_ratio = lambda log_ratio, mask: (                         # noqa: E731
    (log_ratio.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)).expand(
        *log_ratio.shape))


@new("zero_variance")
def ranges(rewards, tol=1e-6):
    return (rewards[:, :, None] - rewards[:, None]).abs().flatten(1).amax(1) <= tol
# file: scalerl.py
# -- below
def _next(self):
    if self.cursor == len(self.order):
        self.active = [p for p in self.active if not self.learned(p)]
        if self.active:
            self.epoch += 1
        self.order, self.cursor = list(self.active), 0
        random.Random(f"{self.seed}|{self.epoch}").shuffle(self.order)
    if self.order:
        self.cursor += 1
        return self.order[self.cursor - 1]


def _learned(self, prompt):
    right, n = self.history.get(prompt, (0, 0))
    return right > 0 and right / n >= self.retire_at


def _record(self, prompt, correct, samples):
    a, b = self.history.get(prompt, (0, 0))
    self.history |= {prompt: [a + correct, b + samples]}


for _name, _function in dict(next=_next, learned=_learned, record=_record).items():
    setattr(Curriculum, _name, _function)


def effective_batch(rollouts, rewards, config):
    P, G = rewards.shape
    same = zero_variance(rewards)
    stay = torch.arange(P)[~same] if config.zero_variance_filter else torch.arange(P)
    return ([rollouts[p * G + g] for p in stay.tolist() for g in range(G)], rewards[stay],
            {"reward/mean": rewards.mean().item(), "reward/std": rewards.std().item(),
             "frac_reward_zero_std": same.float().mean().item(), "prompts/consumed": P,
             "prompts/trained": len(stay)})


PipelinePacer.may_admit = lambda self: len(self.groups) // self.P <= self.k


def _admit(self, prompt_id, version, size):
    group = Group(self.admitted, prompt_id, version, size)
    self.groups |= {self.admitted: group}
    self.admitted += 1
    return group


def _take(self, version):
    ready = sorted([g for g in self.groups.values() if g.finished],
                   key=lambda g: (g.start, g.group_id))[:self.P]
    if len(ready) < self.P or not self.leaves_enough_time(ready, version):
        return
    for g in ready:
        del self.groups[g.group_id]
    return ready


def _leaves(self, taken, version):
    taken = {id(g) for g in taken}
    deadlines = sorted(g.start + self.k for g in self.groups.values() if id(g) not in taken)
    return not [d for i, d in enumerate(deadlines) if d < version + 1 + i // self.P]


PipelinePacer.admit, PipelinePacer.take = _admit, _take
PipelinePacer.leaves_enough_time = _leaves


def _admit_all(self):
    G = self.config.samples_per_prompt
    while self.pacer.may_admit() and self.sampler.free_slots >= G:
        name = self.curriculum.next()
        if name is None:
            self.pacer.no_more_prompts()
            break
        group = self.pacer.admit(name, self.version, G)
        self.sampler.submit(Request(group.group_id, name, self.problems.prompts[name], G,
                                    self.problems.train[name].task))


Run.admit = _admit_all
# file: course/naive_pacer.py
# -- below
counterexample = lambda k, P: (                                         # noqa: E731
    [[(k + t) * P + i for i in range(P)] for t in range(k)] + [list(range(k * P))] + [[]] * k)
# file: sampler.py
# -- below
class MyInterruption(Interruption):
    def draw_budgets(self, count, generator):
        low = self.think_min if self.phrase_ids else self.think_max
        u = torch.rand(count, generator=generator, dtype=torch.float64)
        return (low + u * (self.think_max + 1 - low)).floor().long()


Interruption.draw_budgets = MyInterruption.draw_budgets


class MySampler(TransformersSampler):
    def _choose(self, hidden):
        z = head_logits(hidden, self.head, head_fp32=self.head_fp32, softcap=cap(self.model))
        p = torch.softmax(z / self.temperature, -1)
        token = torch.multinomial(p, 1, True, generator=self.random)
        return token[:, 0], torch.log_softmax(z / self.temperature, -1).gather(1, token)[:, 0]

    def _record(self, token, logprob):
        rows, slots = self.rows, range(len(token))
        draws, lps, due, ended = token.tolist(), logprob.tolist(), [], []
        for s in slots:
            at, left = rows.count[s].item(), rows.phrase_left[s].item()
            t = self.interruption.phrase_ids[-left] if left else draws[s]
            rows.ids[s, at], rows.last[s], rows.versions[s, at] = t, t, self.version
            rows.behavior_logprobs[s, at], rows.sampled[s, at] = 0 if left else lps[s], not left
            rows.phrase_left[s], rows.count[s] = max(left - 1, 0), at + 1
            stop = not left and t in self.eos_ids
            if not stop and at + 1 == rows.think[s]:
                due += [s]
            if stop or at + 1 == rows.limit[s]:
                ended += [s]
        if self.interruption.phrase_ids:
            self._interrupt(due)
        return ended

    def _interrupt(self, due):
        for s in due:
            text = self.tokenizer.decode(self.rows.ids[s, :self.rows.count[s].item()].tolist())
            if text.count(self.interruption.end) == 0:
                self.rows.phrase_left[s] += len(self.phrase)
                self.rows.limit[s] += len(self.phrase)
                self.rows.interrupted[s] = True

    def _rollout(self, request, output_ids, behavior_logprobs, versions, sampled, interrupted):
        return Rollout(request.prompt_id, request.group_id, request.prompt_ids, output_ids,
                       behavior_logprobs, versions, sampled,
                       "stop" if output_ids[-1] in self.eos_ids else "length", interrupted,
                       task=request.task)

    def push_weights(self, named_tensors, version):
        new = dict(named_tensors)
        for name, own in self.model.named_parameters():
            if name in new:
                own.data[:] = new[name].data
        self.version = version


for _name in ("_choose", "_record", "_interrupt", "_rollout", "push_weights"):
    setattr(TransformersSampler, _name, vars(MySampler)[_name])
# file: fit.py
# -- below
def law_at(law, C, A, B, C_mid, R0):
    x, gain = np.maximum(C / C_mid, 1e-300), A - R0
    with np.errstate(all="ignore"):
        return {"sigmoid": lambda: R0 + gain * (1 + x ** -B) ** -1,
                "stretched": lambda: R0 + gain * (1 - np.exp(-np.log(2) * x ** B)),
                "power": lambda: A - gain * x ** -B,
                "logistic": lambda: R0 + gain / (1 + np.exp(-B * (x - 1)))}[law]()


def my_points(C, R, R0, law, first, last):
    zero, use = C == 0, (C >= first) & (C <= last)
    measured = R0 is None and zero.any()
    free = not measured and (R0 is None or R0 == "fit")
    name = ("step 0" if measured else "given" if not free else
            "unused" if law == "power" else "fitted")
    use = use | zero if name == "fitted" else use & (~zero | (law == "logistic"))
    return (C[use], R[use], float(R[zero].mean()) if measured else 0.0 if free else R0, name,
            int(measured and zero.sum()))


points_to_fit = my_points


def my_at(search, x, R, R0):
    low, high = search.box[:, 0], search.box[:, 1]
    value = [low[i] + (high[i] - low[i]) * (np.sin(x[i]) + 1) / 2 for i in range(len(search.box))]
    C_mid, B, R0 = np.exp(value[0]), np.exp(value[1]), np.asarray([R0, *value[2:]][-1])
    g = law_at(search.law, search.C, 1.0, B[..., None], C_mid[..., None], 0.0)
    up = R - R0[..., None]
    A = R0 + np.maximum((up * g).sum(-1) / np.maximum((g * g).sum(-1), 1e-30), 0)
    A = np.clip(A, search.A_range[0], search.A_range[1])
    return (A, B, C_mid, R0), up - (A - R0)[..., None] * g


def my_starts(search, R, R0):
    axes = [np.arcsin(np.linspace(-0.98, 0.98, n)) for n in (96, 32, 5)[:len(search.box)]]
    x = np.meshgrid(*axes, indexing="ij")
    sse = np.sum(search.at(np.array(x), R, R0)[1] ** 2, -1)
    best = sse.reshape(96, -1).min(1).argsort()[:4]
    rest = [np.unravel_index(sse[i].argmin(), sse[i].shape) for i in best]
    return [np.array([side[(i, *r)] for side in x]) for i, r in zip(best, rest)]


Search.at, Search.starts = my_at, my_starts


def compare_laws(search, theta, rival, its_theta, R):
    aic = [R.size * np.log(np.mean((R - c) ** 2) + 1e-12) + 2 * p for c, p in (
        (law_at(search.law, search.C, *theta), search.parameters),
        (law_at(rival.law, rival.C, *its_theta), rival.parameters), (R.mean(), 1))]
    return {name: {"A": float(A), "delta_aic": float(a - aic[0])} for name, A, a in (
        (rival.law, its_theta[0], aic[1]), ("constant", R.mean(), aic[2]))}


def replicates(search, theta, angles, R, bootstrap, seed, step_0):
    curve = law_at(search.law, search.C, *theta)
    noise, rng = widened(R - curve, search.parameters), np.random.default_rng(seed)
    S = bootstrap * int(R.size > search.parameters)
    starts = [np.clip(np.arcsin(np.sin(angles)), -1.4, 1.4)]
    new = [curve + rng.choice(noise, R.size) for _ in range(S)]
    R0 = [np.clip(theta[3] + rng.choice(noise, step_0).mean(), 0, 1) if step_0 else theta[3]
          for _ in range(S)]
    draws = [search.solve(n, r, starts)[0] for n, r in zip(new, R0)]
    return Replicates(search.law, np.array(draws).reshape(S, 4), noise)


Replicates.paths = lambda self, C, noise=False: (
    law_at(self.law, np.asarray(C, float), *self.draws.T[..., None])
    + (np.random.default_rng(0).choice(self.noise, (len(self.draws), len(C))) if noise else 0))
# file: course/late_push.py
# -- below
def mine(logs):
    keys = [f"mismatch/mean_abs_dlogp/lag_{lag}" for lag in "01"]
    pairs = [[(x[keys[0]], x[keys[1]]) for x in log if x.get(keys[0]) and x.get(keys[1])]
             for log in logs]
    share = [sorted(a / b for a, b in some)[len(some) // 2] if some else -1 for some in pairs]
    return share.index(max(share))


which_pushed_late = mine
# file: course/bets.py
# -- below
from itertools import product


def my_bet(C, R, later):
    def loss(A, B, mid):
        rest = R[0] + (A - R[0]) / (1 + (mid / C[1:]) ** B) - R[1:]
        return ((rest / 0.015) ** 2).sum() + (np.log(B / 1.6) / 0.5) ** 2 + (
            np.log(A / (1 - A)) - 1.73) ** 2
    A, B, mid = min(product(np.linspace(0.45, 0.98, 54), np.geomspace(0.7, 3.5, 18),
                            C[-1] * np.geomspace(0.15, 10, 40)), key=lambda p: loss(*p))
    return float((R[0] + (A - R[0]) / (1 + (mid / later) ** B)).mean())


forecast = my_bet
# file: course/pass_at_k.py
# -- below
def pass_at_k(right, samples, k):
    from fractions import Fraction
    from math import comb
    return np.array([float(1 - Fraction(comb(samples - int(c), k), comb(samples, k)))
                     for c in right])


def my_gain(before, after, samples, k, resamples, seed):
    d = pass_at_k(after, samples, k) - pass_at_k(before, samples, k)
    rows = np.random.default_rng(seed).integers(0, len(d), (len(d), resamples))
    return (d.mean(), *np.quantile(d[rows].mean(0), [0.05, 0.95]))


gain = my_gain
