"""numpy wherever numpy can do it, and torch only at the edges."""
# file: engines/head.py
import numpy as np


def _softmax(z):
    z = z - z.max(1, keepdims=True)
    e = np.exp(z)
    return e / e.sum(1, keepdims=True)


class TokenLogprobs:
    @staticmethod
    def forward(ctx, hidden, weight, targets, temperature, chunk_tokens, operand_dtype, head_fp32,
                softcap):
        head = Head(weight, temperature, operand_dtype, head_fp32, softcap)
        kind = np.float64 if head.dtype == torch.float64 else np.float32
        lp, ent = np.zeros(len(targets), kind), np.zeros(len(targets), kind)
        y = targets.numpy()
        for s in range(0, len(targets), chunk_tokens):
            rows = slice(s, min(s + chunk_tokens, len(targets)))
            z = head.logits(hidden[rows], out=torch.empty(rows.stop - s, head.V, dtype=head.dtype))
            p = _softmax(z.numpy())
            log_p = z.numpy() - z.numpy().max(1, keepdims=True)
            log_p = log_p - np.log(np.exp(log_p).sum(1, keepdims=True))
            lp[rows] = np.take_along_axis(log_p, y[rows, None], 1)[:, 0]
            ent[rows] = -(p * log_p).sum(1)
        lp, ent = torch.from_numpy(lp), torch.from_numpy(ent)
        ctx.mark_non_differentiable(ent)
        ctx.save_for_backward(hidden, weight, targets)
        ctx.args = temperature, chunk_tokens, operand_dtype, head_fp32, softcap
        return lp, ent

    @staticmethod
    def backward(ctx, g, _):
        hidden, weight, targets = ctx.saved_tensors
        temperature, chunk_tokens, *rest = ctx.args
        head = Head(weight, temperature, *rest)
        w = head.weight.to(head.dtype).numpy()
        alive = np.flatnonzero(g.numpy())
        gh, gw = np.zeros(hidden.shape, w.dtype), np.zeros(weight.shape, w.dtype)
        for where in np.array_split(alive, max(1, -(-len(alive) // chunk_tokens))):
            h = hidden[where]
            z = head.logits(h, out=torch.empty(len(where), head.V, dtype=head.dtype)).numpy()
            if not len(where):
                continue
            dz = -_softmax(z)
            dz[np.arange(len(where)), targets.numpy()[where]] += 1
            dz *= g.numpy()[where, None] / temperature
            dz = head.operand(torch.from_numpy(dz)).to(head.dtype).numpy()
            gh[where] = dz @ w
            gw += dz.T @ head.operand(h).to(head.dtype).numpy()
        return (torch.from_numpy(gh).to(hidden.dtype), torch.from_numpy(gw).to(weight.dtype),
                *[None] * 6)


# file: loss.py
import numpy as np


def advantages(rewards, *, norm="batch"):
    _check_choice("norm", norm, NORMS)
    r = rewards.numpy().astype(np.float64)
    if (~np.isfinite(r)).any():
        p, g = np.argwhere(~np.isfinite(r))[0]
        raise ValueError(f"reward [{p}, {g}] = {r[p, g]}")
    if r.size == 0:
        return rewards
    a = r - r.mean(axis=1, keepdims=True)
    a[np.ptp(r, axis=1) <= 1e-6] = 0
    std = {"batch": lambda: a.std(), "prompt": lambda: a.std(axis=1, keepdims=True),
           "none": lambda: np.float64(1), "mean": lambda: 1 + r.mean(1, keepdims=True)}[norm]()
    return torch.from_numpy(np.divide(a, std, out=np.zeros_like(a), where=std > 0)).float()


def token_weights(mask, prompt_index, *, aggregation="prompt"):
    _check_choice("aggregation", aggregation, AGGREGATIONS)
    m = mask.numpy()
    per_sample = m.sum(axis=1)
    if aggregation == "token":
        group = np.zeros(len(m), int)
    elif aggregation == "sample":
        group = np.arange(len(m))
    else:
        _, group = np.unique(prompt_index.numpy(), return_inverse=True)
    counts = np.bincount(group, weights=per_sample, minlength=1)
    pools = np.count_nonzero(counts)
    with np.errstate(all="ignore"):
        weight = 1 / counts[group] / pools
    return torch.from_numpy(np.where(m, weight[:, None], 0).astype("float32"))


def _capped(logprobs, log_rho, A, eps_max):
    ratio = np.exp(log_rho.detach().numpy())
    weight = torch.from_numpy(np.minimum(ratio, np.array(eps_max, ratio.dtype)))
    return weight * A * logprobs, torch.from_numpy(ratio > eps_max)


def _sequence_log_ratio(log_ratio, mask):
    share = mask.numpy() / np.maximum(mask.numpy().sum(1, keepdims=True), 1)
    share = np.where(mask.numpy().any(1, keepdims=True), share, 0)
    total = (log_ratio * torch.from_numpy(share).to(log_ratio.dtype)).sum(1, keepdim=True)
    return total.repeat(1, log_ratio.shape[1])


def _clipped(log_rho, A, low, high):
    rho, a = np.exp(log_rho.detach().numpy()), A.numpy()
    over, under = (rho > high) & (a > 0), (rho < low) & (a < 0)
    off = torch.from_numpy(over | under)
    constant = torch.from_numpy(np.where(over, high, low).astype(rho.dtype))
    still = off | (A == 0)
    moving = torch.exp(torch.where(still, torch.zeros_like(log_rho), log_rho))
    return torch.where(off, constant, moving) * A, off


def zero_variance(rewards, tol=1e-6):
    return torch.from_numpy(np.ptp(rewards.numpy(), axis=1) <= tol)


# file: scalerl.py
import numpy as np


class Curriculum:
    def next(self):
        if self.cursor == len(self.order):
            keep = np.array([not self.learned(p) for p in self.active], dtype=bool)
            self.active = [self.active[i] for i in np.flatnonzero(keep)]
            if not keep.any():
                return None
            self.epoch += 1
            rng = np.random.default_rng((self.seed, self.epoch))
            self.order = [self.active[i] for i in rng.permutation(len(self.active))]
            self.cursor = 0
        self.cursor += 1
        return self.order[self.cursor - 1]

    def learned(self, prompt):
        right, tried = np.array(self.history.get(prompt, [0, 0]))
        return bool(tried > 0 and right / max(tried, 1) >= self.retire_at)

    def record(self, prompt, correct, samples):
        old = np.array(self.history.get(prompt, [0, 0]))
        self.history[prompt] = (old + [correct, samples]).tolist()


def effective_batch(rollouts, rewards, config):
    r = rewards.numpy()
    P, G = r.shape
    same = zero_variance(rewards).numpy()
    keep = np.flatnonzero(~same) if config.zero_variance_filter else np.arange(P)
    kept = [rollouts[i] for i in (keep[:, None] * G + np.arange(G)).ravel()]
    log = dict(zip(["reward/mean", "reward/std", "frac_reward_zero_std", "prompts/consumed",
                    "prompts/trained"],
                   [float(r.mean()), float(r.std(ddof=1)), float(same.mean()), P, len(keep)]))
    return kept, rewards[torch.from_numpy(keep)], log


class PipelinePacer:
    def may_admit(self):
        return bool(np.less(len(self.groups), (self.k + 1) * self.P))

    def admit(self, prompt_id, version, size):
        number = self.admitted
        self.groups.update({number: Group(number, prompt_id, version, size)})
        self.admitted = number + 1
        return self.groups[number]

    def take(self, version):
        ready = [g for g in self.groups.values() if g.finished]
        if len(ready) < self.P:
            return None
        order = np.lexsort(([g.group_id for g in ready], [g.start for g in ready]))[:self.P]
        taken = [ready[i] for i in order]
        if self.leaves_enough_time(taken, version):
            for g in taken:
                self.groups.pop(g.group_id)
            return taken

    def leaves_enough_time(self, taken, version):
        gone = [g.group_id for g in taken]
        starts = np.sort([g.start for g in self.groups.values() if g.group_id not in gone])
        turns = version + 1 + np.arange(len(starts)) // self.P
        return bool((turns <= starts + self.k).all())


class Run:
    def admit(self):
        G, free = self.config.samples_per_prompt, self.sampler.free_slots
        for _ in range(int(np.floor(free / G))):
            if not self.pacer.may_admit():
                break
            if (prompt := self.curriculum.next()) is None:
                self.pacer.no_more_prompts()
                break
            group = self.pacer.admit(prompt, self.version, G)
            self.sampler.submit(Request(group.group_id, prompt, self.problems.prompts[prompt], G,
                                        self.problems.train[prompt].task))


# file: course/naive_pacer.py
import numpy as np


def counterexample(k, P):
    ids = np.arange((2 * k) * P).reshape(2 * k, P).tolist()
    slow, quick = ids[:k], ids[k:]
    return quick + [sum(slow, [])] + [[]] * (k + 1)


# file: sampler.py
import numpy as np


class Interruption:
    def draw_budgets(self, count, generator):
        low = self.think_min if len(self.phrase_ids) else self.think_max
        seed = torch.randint(1 << 40, (1,), generator=generator).item()
        return torch.from_numpy(np.random.default_rng(seed).integers(
            low, self.think_max, count, endpoint=True))


class TransformersSampler:
    def _choose(self, hidden):
        z = head_logits(hidden, self.head, head_fp32=self.head_fp32, softcap=cap(self.model))
        z = z.numpy().astype(np.float64) / self.temperature
        log_p = z - z.max(1, keepdims=True)
        log_p -= np.log(np.exp(log_p).sum(1, keepdims=True))
        u = torch.rand(z.shape, generator=self.random, dtype=torch.float64).numpy()
        with np.errstate(divide="ignore"):
            token = (log_p - np.log(-np.log(u))).argmax(1)              # Gumbel's
        return torch.from_numpy(token), torch.from_numpy(
            log_p[np.arange(len(z)), token]).float()

    def _record(self, token, logprob):
        n, rows = len(token), self.rows
        token, logprob = token.numpy().copy(), logprob.numpy().copy()
        left, count = rows.phrase_left[:n].numpy(), rows.count[:n].numpy()      # views
        forced = left > 0
        if forced.any():
            token[forced] = self.phrase.numpy()[-left[forced]]
            logprob[forced] = 0
        i = np.arange(n)
        rows.ids.numpy()[i, count] = token
        rows.versions.numpy()[i, count] = self.version
        rows.behavior_logprobs.numpy()[i, count] = logprob
        rows.sampled.numpy()[i, count] = ~forced
        rows.last[:n] = torch.from_numpy(token)
        left -= forced
        count += 1
        stop = np.isin(token, list(self.eos_ids)) & ~forced
        if len(self.phrase):
            spent = (count == rows.think[:n].numpy()) & ~stop
            limit = rows.limit[:n].numpy().copy()
            self._interrupt(np.flatnonzero(spent).tolist())
        else:
            limit = rows.limit[:n].numpy()
        return np.flatnonzero(stop | (count == limit)).tolist()

    def _interrupt(self, due):
        for slot in due:
            ids = self.rows.ids.numpy()[slot, :self.rows.count.numpy()[slot]]
            if self.interruption.end not in self.tokenizer.decode(ids):
                self.rows.interrupted.numpy()[slot] = True
                for column in (self.rows.phrase_left, self.rows.limit):
                    column.numpy()[slot] += len(self.phrase)

    def _rollout(self, request, output_ids, behavior_logprobs, versions, sampled, interrupted):
        ended = np.isin(output_ids[-1], sorted(self.eos_ids))
        return Rollout(request.prompt_id, request.group_id, request.prompt_ids, output_ids,
                       behavior_logprobs, versions, sampled, str(np.where(ended, "stop", "length")),
                       interrupted, request.task, self.decoded["clock"])

    def push_weights(self, named_tensors, version):
        own = {name: x.detach().numpy() for name, x in self.model.named_parameters()}
        for name, x in named_tensors:
            np.copyto(own[name], x.detach().numpy())
        self.version = version


# file: fit.py
def law_at(law, C, A, B, C_mid, R0):
    x = np.fmax(np.divide(C, C_mid), 1e-300)
    with np.errstate(all="ignore"):
        if law == "sigmoid":
            g = np.reciprocal(1 + np.power(x, np.negative(B)))
        elif law == "power":
            g = 1 - np.power(x, np.negative(B))
        elif law == "stretched":
            g = 1 - np.exp2(-np.power(x, B))
        else:
            g = np.reciprocal(1 + np.exp(np.multiply(B, 1 - x)))
    return R0 + np.subtract(A, R0) * g


def points_to_fit(C, R, R0, law, first, last):
    zero = np.equal(C, 0)
    inside = np.logical_and(np.greater_equal(C, first), np.less_equal(C, last))
    if isinstance(R0, (int, float)):
        name, steps = "given", 0
    elif R0 is None and zero.any():
        R0, name, steps = R[zero].mean(), "step 0", np.count_nonzero(zero)
    else:
        R0, name, steps = 0.0, "unused" if law == "power" else "fitted", 0
    if name == "fitted":
        inside = np.logical_or(inside, zero)
    elif law != "logistic":
        inside = np.logical_and(inside, ~zero)
    where = np.flatnonzero(inside)
    return C.take(where), R.take(where), R0, name, steps


class Search:
    def at(self, x, R, R0):
        x = np.asarray(x, float)
        low, high = (self.box[:, i].reshape(-1, *[1] * (x.ndim - 1)) for i in (0, 1))
        values = low + (high - low) * (1 + np.sin(x)) / 2
        C_mid, B = np.exp(values[:2])
        R0 = values[2] if len(values) == 3 else np.full(C_mid.shape, float(R0))
        g = law_at(self.law, self.C, 1.0, B[..., None], C_mid[..., None], 0.0)
        gain = R - R0[..., None]
        norm = np.einsum("...i,...i->...", g, g)
        rise = np.einsum("...i,...i->...", gain, g) / np.where(norm > 1e-30, norm, 1e-30)
        A = np.minimum(np.maximum(R0 + np.maximum(rise, 0), self.A_range[0]), self.A_range[1])
        return (A, B, C_mid, R0), gain - (A - R0)[..., None] * g

    def starts(self, R, R0):
        ends = [np.arcsin(np.linspace(-0.98, 0.98, n)) for n in (96, 32, 5)[:len(self.box)]]
        table = np.array(np.meshgrid(*ends, indexing="ij"))
        sse = np.square(self.at(table, R, R0)[1]).sum(-1).reshape(96, -1)
        inner = sse.argmin(1)
        rows = sse.min(1).argsort()[:4]
        return list(table.reshape(len(ends), 96, -1)[:, rows, inner[rows]].T)


def compare_laws(search, theta, rival, its_theta, R):
    curves = [law_at(search.law, search.C, *theta), law_at(rival.law, rival.C, *its_theta),
              np.full(R.shape, R.mean())]
    p = np.array([search.parameters, rival.parameters, 1])
    aic = len(R) * np.log(np.square(R - curves).mean(1) + 1e-12) + 2 * p
    return {rival.law: {"A": float(its_theta[0]), "delta_aic": float(aic[1] - aic[0])},
            "constant": {"A": float(R.mean()), "delta_aic": float(aic[2] - aic[0])}}


def replicates(search, theta, angles, R, bootstrap, seed, step_0):
    curve = law_at(search.law, search.C, *theta)
    noise = widened(R - curve, search.parameters)
    rng = np.random.default_rng(seed)
    S = bootstrap * (R.size > search.parameters)
    made = curve + noise[rng.integers(R.size, size=(S, R.size))]
    R0 = np.repeat(theta[3], S)
    if step_0:
        R0 = (R0 + noise[rng.integers(R.size, size=(S, step_0))].mean(1)).clip(0, 1)
    begin = np.clip(np.arctan2(np.sin(angles), np.abs(np.cos(angles))), -1.4, 1.4)
    draws = np.empty((S, 4))
    for s in range(S):
        draws[s] = search.solve(made[s], R0[s], [begin])[0]
    return Replicates(search.law, draws, noise)


class Replicates:
    def paths(self, C, noise=False):
        curves = law_at(self.law, np.asarray(C, float)[None], *np.hsplit(self.draws, 4))
        if not noise:
            return curves
        return curves + np.random.default_rng(0).choice(self.noise, size=curves.shape)


# file: course/late_push.py
import numpy as np


def which_pushed_late(logs):
    def column(log, name):
        return np.array([line.get(f"mismatch/mean_abs_dlogp/lag_{name}", np.nan) for line in log])
    with np.errstate(all="ignore"):
        shares = [column(log, 0) / np.where(column(log, 1) > 0, column(log, 1), np.nan)
                  for log in logs]
    return int(np.argmax([np.nanmedian(share) for share in shares]))


# file: course/bets.py
def forecast(C, R, later):
    from scipy.optimize import minimize
    x, y = np.log(C[1:]), R[1:]

    def curve(p, at):
        A = 1 / (1 + np.exp(-p[0]))
        return R[0] + (A - R[0]) / (1 + np.exp(np.clip(-np.exp(p[2]) * (at - p[1]), -300, 300)))

    def cost(p):
        return (np.square((curve(p, x) - y) / 0.015).sum() + np.square((p[2] - 0.47) / 0.5)
                + np.square(p[0] - 1.73))
    tries = [minimize(cost, [1.7, x[-1] + s, 0.47], method="Nelder-Mead",
                      options=dict(maxiter=4000, xatol=1e-6, fatol=1e-9)) for s in (-0.7, 0, 1)]
    best = min(tries, key=lambda t: t.fun)
    return np.mean(curve(best.x, np.log(later)))


# file: course/pass_at_k.py
def pass_at_k(right, samples, k):
    i = np.arange(k)
    factors = (samples - np.asarray(right)[:, None] - i).clip(0) / (samples - i)
    return 1.0 - np.multiply.reduce(factors, axis=1)


def gain(before, after, samples, k, resamples, seed):
    d = pass_at_k(after, samples, k) - pass_at_k(before, samples, k)
    counts = np.random.default_rng(seed).multinomial(d.size, np.ones(d.size) / d.size, resamples)
    return (d.mean(), *np.percentile(counts @ d / d.size, [5, 95]))
