"""Functions of functions: recursion, reduce, map, generators, closures, a decorator."""
# file: engines/head.py
import functools
import itertools
import operator


def each_chunk(function):
    """function(head, h, y, ...) of all rows -> its results, a chunk at a time."""
    @functools.wraps(function)
    def of_all(head, size, *columns):
        for start in itertools.takewhile(lambda s: s < len(columns[0]), itertools.count(0, size)):
            yield function(head, *(x[start: start + size] for x in columns))
    return of_all


def distribution(head, h):
    return torch.log_softmax(head.logits(h, out=h.new_empty(len(h), head.V, dtype=head.dtype)), 1)


@each_chunk
def ahead(head, h, y):
    log_p = distribution(head, h)
    return log_p.gather(1, y[:, None])[:, 0], torch.special.entr(log_p.exp()).sum(1)


@each_chunk
def back(head, h, y, g):
    p = distribution(head, h).exp()
    dz = head.operand(g[:, None] * (torch.nn.functional.one_hot(y, head.V) - p))
    return dz @ head.weight, (dz.T @ head.operand(h)).to(head.dtype)


class TokenLogprobs:
    @staticmethod
    def forward(ctx, hidden, weight, targets, temperature, chunk_tokens, *more):
        make = functools.partial(Head, temperature=temperature, **dict(zip(
            ("operand_dtype", "head_fp32", "softcap"), more)))
        ctx.save_for_backward(hidden, weight, targets)
        ctx.make, ctx.size, ctx.temperature = make, chunk_tokens, temperature
        head = make(weight)
        empty = [(hidden.new_zeros(0, dtype=head.dtype),) * 2]
        results = [torch.cat(x) for x in zip(*empty, *ahead(head, chunk_tokens, hidden, targets))]
        ctx.mark_non_differentiable(results[1])
        return tuple(results)

    @staticmethod
    def backward(ctx, g, _):
        hidden, weight, targets = ctx.saved_tensors
        alive = (g != 0).nonzero(as_tuple=True)[0]
        head = ctx.make(weight)
        gh = torch.zeros_like(hidden)

        def step(total, found):
            parts, gw = total
            return [*parts, found[0].to(gh.dtype)], gw.add_(found[1])
        parts, gw = functools.reduce(
            step, back(head, ctx.size, *map(operator.itemgetter(alive),
                                            (hidden, targets, g / ctx.temperature))),
            ([], torch.zeros_like(weight, dtype=head.dtype)))
        gh[alive] = torch.cat([gh[:0], *parts])
        return gh, gw.to(weight.dtype), *itertools.repeat(None, 6)
# file: loss.py
from functools import reduce


def advantages(rewards, *, norm="batch"):
    _check_choice("norm", norm, NORMS)
    bad = next(((p, g) for p, row in enumerate(rewards.tolist()) for g, r in enumerate(row)
                if r != r or abs(r) == float("inf")), None)
    if bad:
        raise ValueError("prompt %d, sample %d" % bad)

    def center(row):
        equal = row.max() - row.min() <= 1e-6
        return row * 0 if equal else row - row.mean()

    def over(std):
        return lambda a: a / std(a) if std(a) > 0 else a
    a = torch.stack([*map(center, rewards.float())]) if len(rewards) else rewards.float()
    std = functools_std
    scale = {"batch": over(std), "none": lambda a: a, "mean": lambda a: a,
             "prompt": lambda a: torch.stack([*map(over(std), a)])}
    return scale[norm](a) if len(a) else a


def functools_std(x):
    return x.square().mean().sqrt()


def token_weights(mask, prompt_index, *, aggregation="prompt"):
    _check_choice("aggregation", aggregation, AGGREGATIONS)
    key = {"prompt": lambda n: int(prompt_index[n]), "sample": lambda n: n,
           "token": lambda n: 0}[aggregation]

    def add(table, n):
        return {**table, key(n): table.get(key(n), 0) + int(mask[n].sum())}
    table = {p: n for p, n in reduce(add, range(len(mask)), {}).items() if n}
    rows = [mask[n] / table[key(n)] / len(table) if key(n) in table else mask[n] * 0.0
            for n in range(len(mask))]
    return torch.stack(rows).float() if rows else torch.zeros(mask.shape)


def fixed(function):
    """Without a gradient."""
    @torch.no_grad()
    def inner(*args):
        return function(*args)
    return inner


ratio = fixed(lambda log_rho: log_rho.exp())
over = fixed(lambda rho, A, low, high: ((rho > high) & (A > 0)) | ((rho < low) & (A < 0)))


def _capped(logprobs, log_rho, A, eps_max):
    return reduce(torch.mul, (ratio(log_rho).clip(max=eps_max), A, logprobs)), \
        ratio(log_rho) > eps_max


def _sequence_log_ratio(log_ratio, mask):
    def mean(row, on):
        return (row.sum() / on.sum() if on.any() else row.sum() * 0).repeat(len(row))
    return torch.stack([*map(mean, log_ratio, mask)])


def _clipped(log_rho, A, low, high):
    rho = ratio(log_rho)
    acts = over(rho, A, low, high)

    def terms(x):
        return torch.where(acts, rho.clip(low, high), x) * A
    return terms(torch.where(acts | (A == 0), 0.0, log_rho).exp()), acts


def zero_variance(rewards, tol=1e-6):
    return torch.tensor([*map(lambda row: max(row) - min(row) <= tol, rewards.tolist())],
                        dtype=torch.bool)
# file: scalerl.py
from itertools import chain, compress, islice, repeat


class Curriculum:
    def next(self):
        """By itself again at the end of an epoch."""
        left = self.order[self.cursor:]
        if left:
            self.cursor += 1
            return left[0]
        self.active = list(filter(lambda p: not self.learned(p), self.active))
        if not self.active:
            return None
        self.epoch += 1
        key = {p: random.Random(f"{p} {self.seed} {self.epoch}").random() for p in self.active}
        self.order, self.cursor = sorted(self.active, key=key.get), 0
        return self.next()

    def learned(self, prompt):
        return (lambda right, n: n > 0 and right / n >= self.retire_at)(
            *self.history.get(prompt, (0, 0)))

    def record(self, prompt, correct, samples):
        self.history[prompt] = list(map(sum, zip(self.history.get(prompt, (0, 0)),
                                                 (correct, samples))))


def effective_batch(rollouts, rewards, config):
    P, G = rewards.shape
    same = zero_variance(rewards)
    stay = [not (s and config.zero_variance_filter) for s in same.tolist()]
    kept = list(compress(rollouts, chain.from_iterable(repeat(s, G) for s in stay)))
    numbers = {"reward/mean": rewards.mean(), "reward/std": rewards.std(),
               "frac_reward_zero_std": same.float().mean()}
    return kept, rewards[torch.tensor(stay, dtype=torch.bool)], {
        **{name: x.item() for name, x in numbers.items()}, "prompts/consumed": P,
        "prompts/trained": sum(stay)}


class PipelinePacer:
    def may_admit(self):
        return sum(1 for _ in self.groups) + 1 <= (self.k + 1) * self.P

    def admit(self, prompt_id, version, size):
        return self.groups.setdefault(self._number(), Group(self.admitted - 1, prompt_id, version,
                                                            size))

    def _number(self):
        self.admitted += 1
        return self.admitted - 1

    def take(self, version):
        order = sorted(self.groups.values(), key=lambda g: (g.start, g.group_id))
        taken = list(islice(filter(lambda g: g.finished, order), self.P))
        if len(taken) == self.P and self.leaves_enough_time(taken, version):
            return list(map(self.groups.pop, map(lambda g: g.group_id, taken)))

    def leaves_enough_time(self, taken, version):
        gone = set(map(lambda g: g.group_id, taken))

        def fits(deadlines, step):
            head, tail = deadlines[:self.P], deadlines[self.P:]
            return not head or (head[0] >= step and fits(tail, step + 1))
        return fits(sorted(g.start + self.k for i, g in self.groups.items() if i not in gone),
                    version + 1)


class Run:
    def admit(self):
        G = self.config.samples_per_prompt

        def names():
            while self.pacer.may_admit() and self.sampler.free_slots >= G:
                yield self.curriculum.next()
        for name in names():
            if name is None:
                self.pacer.no_more_prompts()
                return
            group = self.pacer.admit(name, self.version, G)
            self.sampler.submit(Request(group.group_id, name, self.problems.prompts[name], G,
                                        self.problems.train[name].task))
# file: course/naive_pacer.py
from itertools import accumulate, repeat


def counterexample(k, P):
    def quick():
        yield from (list(range(first, first + P))
                    for first in accumulate(repeat(P, k - 1), initial=k * P))
    return [*quick(), list(range(k * P)), *map(list, repeat((), k))]
# file: sampler.py
from functools import reduce


class Interruption:
    def draw_budgets(self, count, generator):
        def one(_):
            return int(torch.randint(self.think_min, self.think_max + 1, (), generator=generator))
        return torch.tensor(list(map(one if self.phrase_ids else lambda _: self.think_max,
                                     range(count))), dtype=torch.int64)


class TransformersSampler:
    def _choose(self, hidden):
        z = head_logits(hidden, self.head, head_fp32=self.head_fp32, softcap=cap(self.model))
        log_p = torch.log_softmax(z / self.temperature, -1)

        def draw(row):
            u = torch.rand((), generator=self.random, dtype=torch.float64)
            sums = row.double().exp().cumsum(0)
            return torch.searchsorted(sums, u * sums[-1], right=True).clamp(max=len(row) - 1)
        token = torch.stack([*map(draw, log_p)])
        return token, torch.stack([*map(lambda row, t: row[t], log_p, token)])

    def _record(self, token, logprob):
        def write(found, slot):
            ended, due = found
            stop, full, spent = self._write(slot, int(token[slot]), float(logprob[slot]))
            return ended + [slot] * (stop or full), due + [slot] * (spent and not stop)
        ended, due = reduce(write, range(len(token)), ([], []))
        if len(self.phrase):
            self._interrupt(due)
        return ended

    def _write(self, slot, token, logprob):
        rows = self.rows
        at, left = (int(column[slot]) for column in (rows.count, rows.phrase_left))
        token, logprob = (int(self.phrase[-left]), 0.0) if left else (token, logprob)
        for column, value in zip((rows.ids, rows.versions, rows.behavior_logprobs, rows.sampled),
                                 (token, self.version, logprob, not left)):
            column[slot, at] = value
        for column, value in zip((rows.last, rows.count, rows.phrase_left),
                                 (token, at + 1, left - bool(left))):
            column[slot] = value
        return (not left and token in self.eos_ids, at + 1 == int(rows.limit[slot]),
                at + 1 == int(rows.think[slot]))

    def _interrupt(self, due):
        def thinks(slot):
            ids = self.rows.ids[slot, : int(self.rows.count[slot])]
            return self.interruption.end not in self.tokenizer.decode(ids.tolist())
        for slot in filter(thinks, due):
            self.rows.phrase_left[slot], self.rows.interrupted[slot] = len(self.phrase), True
            self.rows.limit[slot] += len(self.phrase)

    def _rollout(self, request, *lists):
        *lists, interrupted = lists
        reason = {True: "stop", False: "length"}[lists[0][-1] in self.eos_ids]
        return Rollout(request.prompt_id, request.group_id, request.prompt_ids, *lists, reason,
                       interrupted, request.task, self.decoded["clock"])

    def push_weights(self, named_tensors, version):
        own = dict(self.model.named_parameters())
        copy = torch.no_grad()(lambda pair: own[pair[0]].copy_(pair[1]))
        all(copy(pair) is not None for pair in named_tensors)
        self.version = version
# file: fit.py
from functools import partial
from itertools import product


def law_at(law, C, A, B, C_mid, R0):
    quiet = np.errstate(all="ignore")
    g = quiet(LAWS[law][0])(np.maximum(C / C_mid, 1e-300), B)
    return R0 + (A - R0) * g


def points_to_fit(C, R, R0, law, first, last):
    def origin():
        if R0 is None and 0 in C:
            return float(R[C == 0].mean()), "step 0", list(C).count(0)
        if R0 is None or R0 == "fit":
            return 0.0, ("fitted", "unused")[law == "power"], 0
        return R0, "given", 0
    start, name, n = origin()
    rule = {"fitted": lambda c: c == 0 or first <= c <= last}.get(
        name, lambda c: first <= c <= last and (c > 0 or law == "logistic"))
    use = np.fromiter(map(rule, C), bool, len(C))
    return C[use], R[use], start, name, n


class Search:
    def at(self, x, R, R0):
        def value(angle, ends):
            return ends[0] + (ends[1] - ends[0]) * (np.sin(angle) + 1) / 2
        log_mid, log_B, *third = map(value, x, self.box)
        C_mid, B, start = np.exp(log_mid), np.exp(log_B), np.asarray(third[0] if third else R0)
        C_, B_, R_ = (np.expand_dims(v, -1) for v in (C_mid, B, start))
        g = law_at(self.law, self.C, 1.0, B_, C_, 0.0)
        slope = np.vectorize(lambda u, v: max(u / max(v, 1e-30), 0.0), otypes=[float])(
            ((R - R_) * g).sum(-1), (g * g).sum(-1))
        A = np.clip(start + slope, *self.A_range)
        return (A, B, C_mid, start), R - R_ - np.expand_dims(A - start, -1) * g

    def starts(self, R, R0):
        sines = [np.linspace(-0.98, 0.98, n) for n in (96, 32, 5)[:len(self.box)]]

        def best(first):
            nodes = np.arcsin(np.array([*product([first], *sines[1:])]).T)
            sse = (self.at(nodes, R, R0)[1] ** 2).sum(-1)
            return sse.min(), first, nodes[:, sse.argmin()]
        return [x for *_, x in sorted(map(best, sines[0]), key=lambda found: found[:2])][:4]


def compare_laws(search, theta, rival, its_theta, R):
    def aic(p, curve):
        return R.size * np.log(np.mean((R - curve) ** 2) + 1e-12) + 2 * p

    def of(one, t):
        return aic(one.parameters, law_at(one.law, one.C, *t))
    told = partial(lambda ours, A, its: {"A": float(A), "delta_aic": float(its - ours)},
                   of(search, theta))
    return {rival.law: told(its_theta[0], of(rival, its_theta)),
            "constant": told(R.mean(), aic(1, R.mean()))}


def replicates(search, theta, angles, R, bootstrap, seed, step_0):
    curve = law_at(search.law, search.C, *theta)
    noise = widened(R - curve, search.parameters)
    choose = partial(np.random.default_rng(seed).choice, noise)
    inside = [np.clip(np.arcsin(np.sin(angles)), -1.4, 1.4)]

    def made():
        for _ in range(bootstrap * (R.size > search.parameters)):
            R0 = np.clip(theta[3] + choose(step_0).mean(), 0, 1) if step_0 else theta[3]
            yield curve + choose(R.size), R0

    rows = np.array([search.solve(*pair, inside)[0] for pair in made()]).reshape(-1, 4)
    return Replicates(search.law, rows, noise)


class Replicates:
    def paths(self, C, noise=False):
        curves = np.array([*map(lambda t: law_at(self.law, np.asarray(C, float), *t), self.draws)])
        draw = np.random.default_rng(0).choice
        return curves + (draw(self.noise, curves.shape) if noise else 0.0)
# file: course/late_push.py
from functools import reduce


def which_pushed_late(logs):
    def ratio(line):
        a, b = (line.get(f"mismatch/mean_abs_dlogp/lag_{lag}") for lag in (0, 1))
        return [a / b] if a and b else []

    def middle(shares):
        return sorted(shares)[len(shares) // 2] if shares else -1.0
    found = [middle(reduce(lambda all_, line: all_ + ratio(line), log, [])) for log in logs]
    return reduce(lambda i, j: j if found[j] > found[i] else i, range(len(logs)))
# file: course/bets.py
def forecast(C, R, later):
    def curve(A, B, mid):
        return lambda c: R[0] + (A - R[0]) / (1 + (mid / c) ** B)

    def cost(p):
        A, B, mid = p
        return sum(((curve(*p)(c) - r) / 0.015) ** 2 for c, r in zip(C[1:], R[1:])) + (
            np.log(B / 1.6) / 0.5) ** 2 + (np.log(A / (1 - A)) - 1.73) ** 2

    def search(center, width, depth):
        """The best node of a table, and around it again."""
        nodes = [np.linspace(c - w, c + w, 9) for c, w in zip(center, width)]
        table = [(1 / (1 + np.exp(-a)), np.exp(b), np.exp(m))
                 for a in nodes[0] for b in nodes[1] for m in nodes[2]]
        A, B, mid = best = min(table, key=cost)
        return best if depth == 0 else search(
            [np.log(A / (1 - A)), np.log(B), np.log(mid)], [w / 2 for w in width], depth - 1)
    start = [1.4, 0.47, np.log(C[-1]) + 0.5]
    return float(curve(*search(start, [1.6, 1.0, 2.0], 6))(later).mean())
# file: course/pass_at_k.py
from functools import reduce


def pass_at_k(right, samples, k):
    def miss(wrong, samples, k):
        return 1.0 if k == 0 else 0.0 if wrong <= 0 else \
            wrong / samples * miss(wrong - 1, samples - 1, k - 1)
    return np.array([1 - miss(samples - int(c), samples, k) for c in right])


def gain(before, after, samples, k, resamples, seed):
    d = np.subtract(*map(lambda x: pass_at_k(x, samples, k), (after, before)))
    draw = np.random.default_rng(seed).choice
    means = [*map(lambda _: draw(d, len(d)).mean(), range(resamples))]
    return reduce(lambda x, q: (*x, np.quantile(means, q)), (0.05, 0.95), (d.mean(),))
