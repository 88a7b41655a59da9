"""Classes for everything: base classes, mixins, dataclasses, properties."""
# file: engines/head.py
import dataclasses


@dataclasses.dataclass
class Chunk:
    head: object
    h: torch.Tensor
    y: torch.Tensor

    def __post_init__(self):
        self.z = self.head.logits(self.h, out=self.h.new_empty(len(self.h), self.head.V,
                                                               dtype=self.head.dtype))
        self.log_z = self.z.logsumexp(1)

    @property
    def logprob(self):
        return self.z[torch.arange(len(self.y)), self.y] - self.log_z

    @property
    def entropy(self):
        return self.log_z - ((self.z - self.log_z[:, None]).exp() * self.z).sum(1)

    def slope(self, g):
        dz = -(self.z - self.log_z[:, None]).exp()
        dz[torch.arange(len(self.y)), self.y] += 1
        return self.head.operand(dz * g[:, None])


class TokenLogprobs:
    @staticmethod
    def forward(ctx, hidden, weight, targets, temperature, chunk_tokens, operand_dtype, head_fp32,
                softcap):
        ctx.save_for_backward(hidden, weight, targets)
        ctx.head = lambda w: Head(w, temperature, operand_dtype, head_fp32, softcap)
        ctx.size, ctx.temperature = chunk_tokens, temperature
        head = ctx.head(weight)
        logprobs, entropy = (torch.empty(len(targets), dtype=head.dtype) for _ in "ab")
        for start in range(0, len(targets), chunk_tokens):
            end = start + chunk_tokens
            chunk = Chunk(head, hidden[start:end], targets[start:end])
            logprobs[start:end], entropy[start:end] = chunk.logprob, chunk.entropy
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx, g, _):
        hidden, weight, targets = ctx.saved_tensors
        head, alive = ctx.head(weight), torch.where(g != 0)[0]
        total = Total(hidden, weight, head)
        for rows in alive.split(ctx.size) if alive.numel() else ():
            chunk = Chunk(head, hidden[rows], targets[rows])
            total.add(rows, chunk, chunk.slope(g[rows] / ctx.temperature))
        return total.hidden, total.weight.to(weight.dtype), *(None for _ in range(6))


class Total:
    def __init__(self, hidden, weight, head):
        self.hidden = torch.zeros_like(hidden)
        self.weight, self.head = torch.zeros_like(weight, dtype=head.dtype), head

    def add(self, rows, chunk, dz):
        self.hidden[rows] = self.head.matmul(dz, self.head.weight,
                                             out=self.hidden.new_empty(len(rows),
                                                                       self.hidden.shape[1]))
        self.head.add_matmul(self.weight, dz.t(), self.head.operand(chunk.h))
# file: loss.py
class Groups:
    """Rewards of P prompts."""

    def __init__(self, rewards):
        self.r = rewards if rewards.dtype.is_floating_point else rewards.float()
        bad = torch.isfinite(self.r).logical_not().nonzero()
        if len(bad):
            raise ValueError("prompt {}, sample {}".format(*bad[0].tolist()))

    @property
    def centered(self):
        out = self.r - self.r.mean(1, keepdim=True)
        if len(out):
            out[(self.r.max(1)[0] - self.r.min(1)[0]) <= 1e-6] = 0.0
        return out

    def batch(self, a):
        return a.pow(2).mean().sqrt()

    def prompt(self, a):
        return a.pow(2).mean(1, keepdim=True).sqrt()

    def none(self, a):
        return torch.ones(1)

    mean = none


def advantages(rewards, *, norm="batch"):
    _check_choice("norm", norm, NORMS)
    groups = Groups(rewards)
    a = groups.centered
    std = getattr(groups, norm)(a)
    return a / (std + (std == 0)) if a.numel() else a


class Pools:
    def __init__(self, mask):
        self.mask, self.n = mask, mask.sum(1)

    def weights(self, ids):
        table = torch.zeros(int(ids.max()) + 1 if len(ids) else 1, dtype=self.n.dtype)
        table.scatter_add_(0, ids, self.n)
        full = (table > 0).sum()
        return torch.where(self.mask, 1 / (table[ids] * full).clamp(min=1)[:, None].float(), 0.0)


class ByPrompt(Pools):
    def ids(self, prompt_index):
        return torch.unique(prompt_index, return_inverse=True)[1]


class BySample(Pools):
    def ids(self, prompt_index):
        return torch.arange(len(prompt_index))


class ByToken(Pools):
    def ids(self, prompt_index):
        return torch.zeros_like(prompt_index)


def token_weights(mask, prompt_index, *, aggregation="prompt"):
    _check_choice("aggregation", aggregation, AGGREGATIONS)
    pools = {"prompt": ByPrompt, "sample": BySample, "token": ByToken}[aggregation](mask)
    return pools.weights(pools.ids(prompt_index))


class Ratio:
    def __init__(self, log_rho):
        self.log_rho, self.value = log_rho, log_rho.detach().exp()

    def cap(self, top):
        return self.value.clamp_max(top), self.value > top

    def outside(self, A, low, high):
        return torch.where(A > 0, self.value > high, (A < 0) & (self.value < low))


def _capped(logprobs, log_rho, A, eps_max):
    weight, acts = Ratio(log_rho).cap(eps_max)
    return weight * (A * logprobs), acts


def _sequence_log_ratio(log_ratio, mask):
    return log_ratio.sum(1, True).div(mask.sum(1, True).clamp(min=1)) + torch.zeros_like(log_ratio)


def _clipped(log_rho, A, low, high):
    ratio = Ratio(log_rho)
    outside = ratio.outside(A, low, high)
    moving = log_rho.masked_fill(outside | (A == 0), 0).exp()
    return torch.where(outside, ratio.value.clamp(low, high), moving) * A, outside


class Spread:
    def __init__(self, rewards):
        self.range = rewards.max(dim=1).values - rewards.min(dim=1).values


def zero_variance(rewards, tol=1e-6):
    return Spread(rewards).range.le(tol)
# file: scalerl.py
class _Asking:
    def next(self):
        if self.over:
            self.retire()
            if not self.active:
                return None
            self.begin()
        self.cursor += 1
        return self.order[self.cursor - 1]

    @property
    def over(self):
        return self.cursor == len(self.order)

    def retire(self):
        self.active = [*filter(lambda p: not self.learned(p), self.active)]

    def begin(self):
        self.epoch += 1
        rng = random.Random(f"{self.seed}:{self.epoch}")
        self.order, self.cursor = sorted(self.active, key=lambda p: rng.random()), 0


class _Remembering:
    def learned(self, prompt):
        right, n = self.history.get(prompt, [0, 0])
        return n != 0 and right / n >= self.retire_at

    def record(self, prompt, correct, samples):
        right, n = self.history.get(prompt, [0, 0])
        self.history[prompt] = [right + correct, n + samples]


class Curriculum(_Asking, _Remembering):
    def __init__(self, prompt_ids, retire_at, seed):
        self.retire_at, self.seed, self.active = retire_at, seed, list(prompt_ids)
        self.order, self.cursor, self.epoch, self.history = [], 0, 0, {}

    state = property(lambda self: {k: v for k, v in vars(self).items()
                                   if k not in ("retire_at", "seed")})


class Step:
    def __init__(self, rewards, config):
        self.rewards, self.same = rewards, zero_variance(rewards)
        self.stay = ~(self.same & config.zero_variance_filter)

    def log(self):
        return {"reward/mean": self.rewards.mean().item(), "reward/std": self.rewards.std().item(),
                "frac_reward_zero_std": self.same.sum().item() / len(self.same),
                "prompts/consumed": len(self.same), "prompts/trained": self.stay.sum().item()}


def effective_batch(rollouts, rewards, config):
    step, G = Step(rewards, config), rewards.shape[1]
    kept = [r for i, r in enumerate(rollouts) if step.stay[i // G]]
    return kept, rewards[step.stay], step.log()


class PipelinePacer:
    @property
    def full(self):
        return len(self.groups) >= self.k * self.P + self.P

    def may_admit(self):
        return not self.full

    def admit(self, prompt_id, version, size):
        group = Group(self.admitted, prompt_id, version, size)
        self.groups[self.admitted] = group
        self.admitted = self.admitted + 1
        return group

    def take(self, version):
        plan = Plan(self, [g for g in self.groups.values() if g.finished])
        if not plan.complete or not self.leaves_enough_time(plan.taken, version):
            return None
        return [self.groups.pop(g.group_id) for g in plan.taken]

    def leaves_enough_time(self, taken, version):
        return Plan(self, self.groups.values()).without(taken).in_time(version)


class Plan:
    def __init__(self, pacer, groups):
        self.pacer, self.groups = pacer, sorted(groups, key=lambda g: (g.start, g.group_id))

    @property
    def taken(self):
        return self.groups[:self.pacer.P]

    @property
    def complete(self):
        return len(self.taken) == self.pacer.P

    def without(self, taken):
        return Plan(self.pacer, [g for g in self.groups if not any(g is t for t in taken)])

    def in_time(self, version):
        return not any(version + 1 + i // self.pacer.P > g.start + self.pacer.k
                       for i, g in enumerate(self.groups))


class Admission:
    def __init__(self, run):
        self.run, self.G = run, run.config.samples_per_prompt

    def __bool__(self):
        return self.run.pacer.may_admit() and self.run.sampler.free_slots >= self.G

    def __call__(self, name):
        run, (ids, problem) = self.run, (self.run.problems.prompts[name],
                                         self.run.problems.train[name])
        group = run.pacer.admit(name, run.version, self.G)
        run.sampler.submit(Request(group.group_id, name, ids, self.G, problem.task))


class Run:
    def admit(self):
        start = Admission(self)
        while start:
            if (name := self.curriculum.next()) is None:
                self.pacer.no_more_prompts()
                break
            start(name)
# file: course/naive_pacer.py
class Schedule(list):
    def __init__(self, k, P):
        self.k, self.P = k, P
        super().__init__(self.quick(t) for t in range(k))
        self.append([*range(k * P)])
        self.extend([] for _ in range(k))

    def quick(self, t):
        return [self.k * self.P + t * self.P + i for i in range(self.P)]


def counterexample(k, P):
    return Schedule(k, P)
# file: sampler.py
class Budget:
    def __init__(self, rule):
        self.low = rule.think_min if rule.phrase_ids else rule.think_max
        self.high = rule.think_max

    def draw(self, count, generator):
        out = torch.empty(count, dtype=torch.int64)
        return out.random_(self.low, self.high + 1, generator=generator)


class Interruption:
    def draw_budgets(self, count, generator):
        return Budget(self).draw(count, generator)


class TransformersSampler:
    def _choose(self, hidden):
        z = head_logits(hidden, self.head, head_fp32=self.head_fp32, softcap=cap(self.model))
        log_p = (z / self.temperature).log_softmax(-1)
        noise = torch.empty_like(log_p).exponential_(generator=self.random)
        token = (log_p.exp() / noise).argmax(-1)
        return token, log_p.gather(-1, token.unsqueeze(-1)).squeeze(-1)

    def _record(self, token, logprob):
        return Writer(self, len(token)).write(token, logprob)

    def _interrupt(self, due):
        for slot in due:
            if not Writer(self, 0).has_ended_thinking(slot):
                self.rows.phrase_left[slot].fill_(len(self.interruption.phrase_ids))
                self.rows.limit[slot].add_(len(self.interruption.phrase_ids))
                self.rows.interrupted[slot].fill_(True)

    def _rollout(self, request, output_ids, behavior_logprobs, versions, sampled, interrupted):
        return Rollout(request.prompt_id, request.group_id, request.prompt_ids, output_ids,
                       behavior_logprobs, versions, sampled,
                       ["length", "stop"][output_ids[-1] in self.eos_ids], interrupted,
                       request.task, self.decoded["clock"])

    def push_weights(self, named_tensors, version):
        for name, tensor in named_tensors:
            *path, leaf = name.split(".")
            owner = self.model.get_submodule(".".join(path))
            getattr(owner, leaf).data.copy_(tensor.data)
        self.version = version


class Writer:
    def __init__(self, sampler, n):
        self.sampler, self.rows, self.n = sampler, sampler.rows, n

    def has_ended_thinking(self, slot):
        ids = self.rows.ids[slot].tolist()[:self.rows.count[slot].item()]
        return self.sampler.interruption.end in self.sampler.tokenizer.decode(ids)

    def write(self, token, logprob):
        s, rows, n = self.sampler, self.rows, self.n
        left, count = rows.phrase_left[:n], rows.count[:n]
        forced = left.bool()
        if len(s.phrase):
            token = torch.where(forced, s.phrase[(len(s.phrase) - left) % len(s.phrase)], token)
        column = count[:, None]
        for name, value in dict(ids=token, behavior_logprobs=logprob.masked_fill(forced, 0),
                                sampled=~forced,
                                versions=torch.full_like(token, s.version)).items():
            table = getattr(rows, name)[:n]
            table.scatter_(1, column, value[:, None].to(table.dtype))
        rows.last[:n] = token
        rows.phrase_left[:n] = (left - 1).clamp(min=0)
        rows.count[:n] = count + 1
        stop = torch.isin(token, s.ends) & ~forced
        full = rows.count[:n] >= rows.limit[:n]
        if s.interruption.phrase_ids:
            s._interrupt(((rows.count[:n] == rows.think[:n]) & ~stop).nonzero()[:, 0].tolist())
        return (stop | full).nonzero()[:, 0].tolist()
# file: fit.py
class Share:
    def __init__(self, C, C_mid):
        self.x = np.maximum(np.asarray(C) / C_mid, 1e-300)

    def sigmoid(self, B):
        return 1 / (1 + self.x ** -B)

    def stretched(self, B):
        return 1 - 2.0 ** -(self.x ** B)

    def power(self, B):
        return 1 - self.x ** -B

    def logistic(self, B):
        return 1 / (1 + np.exp(-B * (self.x - 1)))


def law_at(law, C, A, B, C_mid, R0):
    with np.errstate(all="ignore"):
        return R0 + (A - R0) * getattr(Share(C, C_mid), law)(B)


class Origin:
    def __init__(self, C, R, R0, law):
        self.value, self.name, self.n = R0, "given", 0
        if R0 is None and (C == 0).any():
            self.value, self.name, self.n = float(R[C == 0].mean()), "step 0", sum(C == 0)
        elif R0 is None or isinstance(R0, str):
            self.value, self.name = 0.0, {"power": "unused"}.get(law, "fitted")

    def use(self, C, law):
        if self.name == "fitted":
            return lambda inside: inside | (C == 0)
        return lambda inside: inside if law == "logistic" else inside & (C > 0)


def points_to_fit(C, R, R0, law, first, last):
    origin = Origin(C, R, R0, law)
    use = origin.use(C, law)((C >= first) & (C <= last))
    return C[use], R[use], origin.value, origin.name, origin.n


class Search:
    class Place:
        def __init__(self, search, x, R0):
            low, high = search.box.T
            where = [lo + (hi - lo) * (np.sin(a) / 2 + 0.5) for lo, hi, a in zip(low, high, x)]
            self.C_mid, self.B = np.exp(where[0]), np.exp(where[1])
            self.R0 = np.asarray(where[2] if len(where) == 3 else R0) + 0 * self.B
            self.g = law_at(search.law, search.C, 1.0, self.B[..., None], self.C_mid[..., None], 0.)

        def ceiling(self, gain, bounds):
            square = (self.g ** 2).sum(-1)
            rise = np.where(square > 0, (self.g * gain).sum(-1) / np.maximum(square, 1e-30), 0)
            return np.clip(self.R0 + rise.clip(0), *bounds)

    def at(self, x, R, R0):
        place = self.Place(self, x, R0)
        gain = R - place.R0[..., None]
        A = place.ceiling(gain, self.A_range)
        return (A, place.B, place.C_mid, place.R0), gain - (A - place.R0)[..., None] * place.g

    def starts(self, R, R0):
        sides = [np.arcsin(np.linspace(-.98, .98, n)) for n in (100, 40, 5)[:len(self.box)]]
        rows = []
        for first in sides[0]:
            x = np.stack(np.broadcast_arrays(first, *np.meshgrid(*sides[1:], indexing="ij")))
            x = x.reshape(len(sides), -1)
            sse = (self.at(x, R, R0)[1] ** 2).sum(-1)
            rows.append((sse.min(), x[:, sse.argmin()]))
        return [x for _, x in sorted(rows, key=lambda row: row[0])[:4]]


class Score:
    def __init__(self, R, curve, parameters, A):
        self.aic = R.size * np.log(np.mean((R - curve) ** 2) + 1e-12) + 2 * parameters
        self.A = A

    def minus(self, other):
        return {"A": float(self.A), "delta_aic": float(self.aic - other.aic)}


def compare_laws(search, theta, rival, its_theta, R):
    ours, theirs = (Score(R, law_at(one.law, one.C, *t), one.parameters, t[0])
                    for one, t in ((search, theta), (rival, its_theta)))
    return {rival.law: theirs.minus(ours), "constant": Score(R, R.mean(), 1, R.mean()).minus(ours)}


class Bootstrap:
    def __init__(self, search, theta, angles, R, seed):
        self.search, self.theta, self.rng = search, theta, np.random.default_rng(seed)
        self.curve = law_at(search.law, search.C, *theta)
        self.noise = widened(R - self.curve, search.parameters)
        self.start = np.clip(np.arcsin(np.sin(angles)), -1.4, 1.4)

    def draw(self, n):
        return self.noise[(self.rng.random(n) * len(self.noise)).astype(int)]

    def one(self, step_0):
        R, R0 = self.curve + self.draw(len(self.noise)), self.theta[3]
        if step_0:
            R0 = np.clip(R0 + self.draw(step_0).mean(), 0, 1)
        return self.search.solve(R, R0, [self.start])[0]


def replicates(search, theta, angles, R, bootstrap, seed, step_0):
    made = Bootstrap(search, theta, angles, R, seed)
    count = bootstrap if R.size > search.parameters else 0
    rows = np.array([made.one(step_0) for _ in range(count)]).reshape(count, 4)
    return Replicates(search.law, rows, made.noise)


class Replicates:
    def paths(self, C, noise=False):
        C = np.asarray(C, float)
        paths = np.concatenate([law_at(self.law, C, *theta)[None] for theta in self.draws])
        if noise:
            paths += np.random.default_rng(0).choice(self.noise, paths.size).reshape(paths.shape)
        return paths
# file: course/late_push.py
class Log:
    def __init__(self, lines):
        self.lines = lines

    def apart(self, line, lag):
        return line.get(f"mismatch/mean_abs_dlogp/lag_{lag}") or math.nan

    def __float__(self):
        shares = [self.apart(line, 0) / self.apart(line, 1) for line in self.lines]
        shares = sorted(x for x in shares if not math.isnan(x))
        return shares[len(shares) // 2] if shares else 0.0


def which_pushed_late(logs):
    shares = [float(Log(lines)) for lines in logs]
    return shares.index(max(shares))
# file: course/bets.py
class Bet:
    """A table of sigmoids, each with its weight: what it says of the points, and the habit."""

    def __init__(self, R0):
        self.A, self.B, self.shift = np.meshgrid(np.linspace(0.5, 0.99, 60),
                                                 np.geomspace(0.6, 4, 25), np.linspace(-2, 3, 60))
        self.R0 = R0
        self.cost = ((np.log(self.B) - np.log(1.6)) / 0.5) ** 2
        self.cost += (np.log(self.A / (1 - self.A)) - np.log(0.85 / 0.15)) ** 2

    def curve(self, c):
        return self.R0 + (self.A - self.R0) / (1 + np.exp(-self.B * (c - self.shift)))

    def see(self, c, r):
        self.cost += ((self.curve(c) - r) / 0.015) ** 2


def forecast(C, R, later):
    bet, scale = Bet(R[0]), np.log(C[-1])
    for c, r in zip(np.log(C[1:]) - scale, R[1:]):
        bet.see(c, r)
    best = np.unravel_index(bet.cost.argmin(), bet.cost.shape)
    return float(np.mean([bet.curve(c)[best] for c in np.log(later) - scale]))
# file: course/pass_at_k.py
class Problem:
    def __init__(self, right, samples):
        self.wrong, self.samples = int(samples - right), samples

    def solved(self, k):
        miss = 1.0
        for i in range(k):
            miss = miss * (self.wrong - i) / (self.samples - i) if self.wrong > i else 0.0
        return 1 - miss


def pass_at_k(right, samples, k):
    return np.fromiter((Problem(c, samples).solved(k) for c in right), float)


class Paired:
    def __init__(self, before, after):
        self.d = after - before

    def resampled(self, rng):
        return self.d[rng.integers(0, len(self.d), len(self.d))].mean()


def gain(before, after, samples, k, resamples, seed):
    pair, rng = Paired(*(pass_at_k(x, samples, k) for x in (before, after))), \
        np.random.default_rng(seed)
    means = np.array([pair.resampled(rng) for _ in range(resamples)])
    return pair.d.mean(), *np.quantile(means, (0.05, 0.95))
