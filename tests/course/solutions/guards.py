"""Early returns, match statements, the walrus, conditional expressions."""
# file: engines/head.py
class TokenLogprobs:
    @staticmethod
    def forward(ctx, hidden, weight, targets, temperature, chunk_tokens, operand_dtype, head_fp32,
                softcap):
        ctx.save_for_backward(hidden, weight, targets)
        ctx.saved_head = head = Head(weight, temperature, operand_dtype, head_fp32, softcap)
        ctx.chunk_tokens = chunk_tokens
        if not (T := len(targets)):
            nothing = torch.zeros(0, dtype=head.dtype)
            ctx.mark_non_differentiable(also := nothing.clone())
            return nothing, also
        logprobs, entropy = [], []
        while len(done := logprobs) * chunk_tokens < T:
            at = len(done) * chunk_tokens
            rows = hidden[at: at + chunk_tokens]
            z = head.logits(rows, out=rows.new_empty(len(rows), head.V, dtype=head.dtype))
            log_p = z - z.logsumexp(1, keepdim=True)
            logprobs += [log_p.gather(1, targets[at: at + chunk_tokens, None])[:, 0]]
            entropy += [-(log_p.exp() * log_p).nansum(1)]
        ctx.mark_non_differentiable(entropy := torch.cat(entropy))
        return torch.cat(logprobs), entropy

    @staticmethod
    def backward(ctx, g, _):
        (hidden, weight, targets), head = ctx.saved_tensors, ctx.saved_head
        need_hidden, need_weight, *_ = ctx.needs_input_grad
        gh = torch.zeros_like(hidden) if need_hidden else None
        gw = torch.zeros_like(weight, dtype=head.dtype) if need_weight else None
        if not g.any():
            return gh, gw if gw is None else gw.to(weight.dtype), *[None] * 6
        for rows in g.nonzero()[:, 0].split(ctx.chunk_tokens):
            h, y = hidden[rows], targets[rows]
            dz = head.logits(h, out=h.new_empty(len(h), head.V, dtype=head.dtype)).softmax(1)
            dz[range(len(rows)), y] -= 1
            dz = head.operand(dz * (-g[rows] / head.temperature)[:, None])
            if need_hidden:
                gh[rows] = (dz @ head.weight).to(gh.dtype)
            if need_weight:
                gw += (dz.mT @ head.operand(h)).to(gw.dtype)
        return gh, None if gw is None else gw.to(weight.dtype), *[None] * 6
# file: loss.py
def advantages(rewards, *, norm="batch"):
    if norm not in ("batch", "prompt", "none", "mean"):
        raise ValueError(norm)
    if not rewards.numel():
        return rewards.float()
    if len(bad := (~rewards.isfinite()).nonzero()):
        raise ValueError(f"not finite at {bad[0].tolist()}")
    a = (r := rewards.float()) - r.mean(1, keepdim=True)
    a = a.where((r.amax(1) - r.amin(1) > 1e-6)[:, None], torch.tensor(0.0))
    match norm:
        case "none":
            return a
        case "batch":
            return a if not (s := a.std(correction=0)) else a / s
        case "prompt":
            return a / s.where(s > 0, torch.tensor(1.)) if (
                s := a.std(1, correction=0, keepdim=True)).any() else a
        case _:
            return a / (1 + r.mean(1, keepdim=True)).clamp(1e-6)


def token_weights(mask, prompt_index, *, aggregation="prompt"):
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"{aggregation=}")
    if not (total := mask.sum()):
        return torch.zeros(mask.shape)
    if aggregation == "token":
        return mask / total
    if aggregation == "sample":
        n = mask.sum(1, keepdim=True)
        return (mask / n.clamp(min=1) / (n > 0).sum()).float()
    out = torch.zeros(mask.shape)
    pools = 0
    for p in set(prompt_index.tolist()):
        rows = prompt_index == p
        if not (n := mask[rows].sum()):
            continue
        pools += 1
        out[rows] = mask[rows] / n
    return out / pools


def _capped(logprobs, log_rho, A, eps_max):
    acts = (rho := log_rho.detach().exp()) > eps_max
    return A * logprobs * rho.where(~acts, torch.tensor(eps_max, dtype=rho.dtype)), acts


def _sequence_log_ratio(log_ratio, mask):
    if not mask.any():
        return log_ratio * 0
    n = mask.sum(1)
    return (log_ratio.sum(1) / n.where(n > 0, torch.ones_like(n)))[:, None].tile(
        log_ratio.shape[1])


def _clipped(log_rho, A, low, high):
    rho = log_rho.detach().exp()
    up, down = (A > 0) & (rho > high), (A < 0) & (rho < low)
    if not (acts := up | down).any() and A.all():
        return log_rho.exp() * A, acts
    free = ~acts & (A != 0)
    out = torch.zeros_like(rho)
    out[up], out[down] = high * A[up], low * A[down]
    out = out.masked_scatter(free, log_rho[free].exp() * A[free])
    return out, acts


def zero_variance(rewards, tol=1e-6):
    if rewards.shape[0] == 0:
        return torch.zeros(0, dtype=torch.bool)
    if rewards.shape[1] == 1:
        return torch.ones(len(rewards), dtype=torch.bool)
    return rewards.sort(1).values.diff(dim=1).sum(1) <= tol if tol == 0 else \
        (rewards.max(1).values - rewards.min(1).values) <= tol
# file: scalerl.py
class Curriculum:
    def next(self):
        if self.cursor < len(self.order):
            self.cursor += 1
            return self.order[self.cursor - 1]
        self.active = [p for p in self.active if not self.learned(p)]
        if not self.active:
            return None
        self.epoch += 1
        self.order = random.Random(repr((self.seed, self.epoch))).sample(
            self.active, k=len(self.active))
        self.cursor = 1
        return self.order[0]

    def learned(self, prompt):
        if (seen := self.history.get(prompt)) is None:
            return False
        match seen:
            case [_, 0]:
                return False
            case [right, n]:
                return right >= self.retire_at * n

    def record(self, prompt, correct, samples):
        if not samples:
            return
        if (seen := self.history.get(prompt)) is None:
            self.history[prompt] = [correct, samples]
            return
        seen[:] = seen[0] + correct, seen[1] + samples


def effective_batch(rollouts, rewards, config):
    same = zero_variance(rewards)
    log = {"reward/mean": float(rewards.float().mean()), "reward/std": float(rewards.std()),
           "frac_reward_zero_std": float(same.float().mean()), "prompts/consumed": len(rewards),
           "prompts/trained": len(rewards)}
    if not config.zero_variance_filter or not same.any():
        return rollouts, rewards, log
    log["prompts/trained"] = int((~same).sum())
    each = same.repeat_interleave(rewards.shape[1]).tolist()
    return [r for r, out in zip(rollouts, each) if not out], rewards[~same], log


class PipelinePacer:
    def may_admit(self):
        return False if len(self.groups) >= (self.k + 1) * self.P else True

    def admit(self, prompt_id, version, size):
        self.groups[self.admitted] = group = Group(self.admitted, prompt_id, version, size)
        self.admitted += 1
        return group

    def take(self, version):
        if sum(g.finished for g in self.groups.values()) < self.P:
            return None
        taken, others = [], dict(self.groups)
        while len(taken) < self.P:
            g = min((g for g in others.values() if g.finished),
                    key=lambda g: (g.start, g.group_id))
            taken.append(others.pop(g.group_id))
        if not self.leaves_enough_time(taken, version):
            return None
        self.groups = others
        return taken

    def leaves_enough_time(self, taken, version):
        if len(taken) >= len(self.groups):
            return True
        gone = {g.group_id for g in taken}
        left = [g.start + self.k for g in self.groups.values() if g.group_id not in gone]
        # By the deadline d no more may be left than the steps version + 1 ... d hold.
        for d in left:
            if sum(other <= d for other in left) > (d - version) * self.P:
                return False
        return True


class Run:
    def admit(self):
        if not self.pacer.may_admit():
            return
        if self.sampler.free_slots < (G := self.config.samples_per_prompt):
            return
        if (name := self.curriculum.next()) is None:
            return self.pacer.no_more_prompts()
        group = self.pacer.admit(name, self.version, G)
        self.sampler.submit(Request(group.group_id, name, self.problems.prompts[name], G,
                                    self.problems.train[name].task))
        return self.admit()
# file: course/naive_pacer.py
def counterexample(k, P):
    if k < 2:
        raise ValueError(k)
    rows = [[(k + t) * P + i for i in range(P)] for t in range(k)]
    rows.append([i for i in range(k * P)])
    while len(rows) < 2 * k + 2:
        rows.append([])
    return rows
# file: sampler.py
class Interruption:
    def draw_budgets(self, count, generator):
        if not self.phrase_ids or self.think_min == self.think_max:
            return torch.full([count], self.think_max)
        return torch.randint(self.think_min, 1 + self.think_max, [count], generator=generator)


class TransformersSampler:
    def _choose(self, hidden):
        z = head_logits(hidden, self.head, head_fp32=self.head_fp32, softcap=cap(self.model))
        log_p = torch.log_softmax(z if self.temperature == 1 else z / self.temperature, -1)
        u = torch.rand(len(z), 1, generator=self.random, dtype=torch.float64)
        token = (log_p.double().exp().cumsum(-1) <= u).sum(-1)
        if (over := token >= z.shape[-1]).any():
            token[over] = log_p[over].argmax(-1)
        return token, log_p[torch.arange(len(z)), token]

    def _record(self, token, logprob):
        rows, n = self.rows, len(token)
        if not n:
            return []
        slots, at = torch.arange(n), rows.count[:n].clone()
        forced = rows.phrase_left[:n] > 0
        if forced.any():
            token = token.clone()
            token[forced] = self.phrase[-rows.phrase_left[:n][forced]]
            logprob = logprob.clone()
            logprob[forced] = 0
        rows.ids[slots, at], rows.behavior_logprobs[slots, at] = token, logprob
        rows.sampled[slots, at], rows.versions[slots, at] = ~forced, self.version
        rows.last[:n], rows.phrase_left[:n] = token, rows.phrase_left[:n] - forced.long()
        rows.count[:n] += 1
        stop = ~forced & (token[:, None] == self.ends).any(1)
        full = rows.count[:n] == rows.limit[:n]
        ended = (stop | full).nonzero().flatten().tolist()
        if not len(self.phrase):
            return ended
        if due := (~stop & (rows.count[:n] == rows.think[:n])).nonzero().flatten().tolist():
            self._interrupt(due)
        return ended

    def _interrupt(self, due):
        for s in due:
            if self.interruption.end in self.tokenizer.decode(
                    self.rows.ids[s, : int(self.rows.count[s])].tolist()):
                continue
            self.rows.interrupted[s], self.rows.phrase_left[s] = True, len(self.phrase)
            self.rows.limit[s] += len(self.phrase)

    def _rollout(self, request, output_ids, behavior_logprobs, versions, sampled, interrupted):
        match output_ids:
            case [*_, last] if last in self.eos_ids:
                reason = "stop"
            case _:
                reason = "length"
        return Rollout(request.prompt_id, request.group_id, request.prompt_ids, output_ids,
                       behavior_logprobs, versions, sampled, reason, interrupted, request.task)

    def push_weights(self, named_tensors, version):
        own = dict(self.model.named_parameters())
        for name, tensor in named_tensors:
            if (mine := own[name]) is tensor:
                continue
            with torch.no_grad():
                mine[...] = tensor
        self.version = version
# file: fit.py
def law_at(law, C, A, B, C_mid, R0):
    x = np.maximum(C / C_mid, 1e-300)
    with np.errstate(all="ignore"):
        match law:
            case "sigmoid":
                return R0 + (A - R0) / (1 + x ** -B)
            case "stretched":
                return R0 + (A - R0) * (1 - 2.0 ** -x ** B)
            case "power":
                return A - (A - R0) * x ** -B
            case _:
                return R0 + (A - R0) / (1 + np.exp(B * (1 - x)))


def points_to_fit(C, R, R0, law, first, last):
    inside = (first <= C) & (C <= last)
    later = inside if law == "logistic" else inside & (C > 0)
    if R0 is not None and R0 != "fit":
        return C[later], R[later], R0, "given", 0
    if R0 is None and (n := np.count_nonzero(C == 0)):
        return C[later], R[later], float(np.mean(R[C == 0])), "step 0", n
    if law == "power":
        return C[later], R[later], 0.0, "unused", 0
    use = inside | (C == 0)
    return C[use], R[use], 0.0, "fitted", 0


class Search:
    def at(self, x, R, R0):
        def value(i):
            low, high = self.box[i]
            return low + (high - low) * (np.sin(x[i]) + 1) / 2
        C_mid, B = np.exp(value(0)), np.exp(value(1))
        R0 = np.asarray(value(2) if len(self.box) > 2 else R0)
        g = law_at(self.law, self.C, 1.0, B[..., None], C_mid[..., None], 0.0)
        gain = R - R0[..., None]
        if self.A_range[0] == self.A_range[1]:
            A = np.full(np.shape(B), self.A_range[0])
        else:
            A = np.clip(R0 + np.maximum((gain * g).sum(-1) / np.maximum((g * g).sum(-1), 1e-30), 0),
                        *self.A_range)
        return (A, B, C_mid, R0), gain - (A - R0)[..., None] * g

    def starts(self, R, R0):
        thirds = (None,) if len(self.box) < 3 else np.arcsin(np.linspace(-0.9, 0.9, 5))
        found = []
        for a in np.arcsin(np.linspace(-0.98, 0.98, 96)):
            b = np.arcsin(np.linspace(-0.98, 0.98, 32))
            tries = [np.array([np.full(32, a), b] + ([] if c is None else [np.full(32, c)]))
                     for c in thirds]
            scores = [(self.at(x, R, R0)[1] ** 2).sum(-1) for x in tries]
            which = min(range(len(tries)), key=lambda i: scores[i].min())
            found.append((scores[which].min(), a, tries[which][:, scores[which].argmin()]))
        return [x for *_, x in sorted(found, key=lambda f: f[:2])[:4]]


def compare_laws(search, theta, rival, its_theta, R):
    def delta(one, t):
        curve, p = (R.mean(), 1) if one is None else (law_at(one.law, one.C, *t), one.parameters)
        return R.size * np.log(((R - curve) ** 2).mean() + 1e-12) + 2 * p
    ours = delta(search, theta)
    return {rival.law: dict(A=float(its_theta[0]), delta_aic=float(delta(rival, its_theta) - ours)),
            "constant": dict(A=float(R.mean()), delta_aic=float(delta(None, None) - ours))}


def replicates(search, theta, angles, R, bootstrap, seed, step_0):
    curve = law_at(search.law, search.C, *theta)
    noise = widened(R - curve, search.parameters)
    if R.size <= search.parameters or not bootstrap:
        return Replicates(search.law, np.zeros((0, 4)), noise)
    rng = np.random.default_rng(seed)
    start = [np.clip(np.arcsin(np.sin(angles)), -1.4, 1.4)]
    draws = np.zeros((bootstrap, 4))
    made = curve + rng.choice(noise, size=(bootstrap, R.size), replace=True)
    for i, new in enumerate(made):
        R0 = theta[3] if not step_0 else min(1, max(0, theta[3] + rng.choice(noise, step_0).mean()))
        draws[i], _ = search.solve(new, R0, start)
    return Replicates(search.law, draws, noise)


class Replicates:
    def paths(self, C, noise=False):
        A, B, C_mid, R0 = (column[:, None] for column in self.draws.T)
        paths = law_at(self.law, np.asarray(C, float), A, B, C_mid, R0)
        return paths if not noise else paths + np.random.default_rng(0).choice(
            self.noise, size=paths.shape)
# file: course/late_push.py
def which_pushed_late(logs):
    def middle(log):
        if not (both := [line for line in log if line.get("mismatch/mean_abs_dlogp/lag_0")
                         and line.get("mismatch/mean_abs_dlogp/lag_1")]):
            return 0
        return sorted(line["mismatch/mean_abs_dlogp/lag_0"] / line["mismatch/mean_abs_dlogp/lag_1"]
                      for line in both)[len(both) // 2]
    return sorted(range(3), key=lambda i: middle(logs[i]))[-1]
# file: course/bets.py
def forecast(C, R, later):
    if len(R) < 3:
        return float(R[-1])
    x, y = np.log(C[1:] / C[-1]), R[1:]
    A, B, s = np.meshgrid(np.arange(0.42, 0.99, 0.01), np.arange(0.6, 4, 0.1),
                          np.arange(-2, 3, 0.05))
    cost = ((np.log(B / 1.6)) / 0.5) ** 2 + (np.log(A / (1 - A)) - 1.73) ** 2
    for xi, yi in zip(x, y):
        cost = cost + ((R[0] + (A - R[0]) / (1 + np.exp(-B * (xi - s))) - yi) / 0.015) ** 2
    i = cost.argmin()
    A, B, s = A.flat[i], B.flat[i], s.flat[i]
    return float((R[0] + (A - R[0]) / (1 + np.exp(-B * (np.log(later / C[-1]) - s)))).mean())
# file: course/pass_at_k.py
def pass_at_k(right, samples, k):
    def one(c):
        if samples - c < k:
            return 1.0
        return 1.0 - np.prod(1.0 - k / np.arange(samples - c + 1, samples + 1))
    return np.array([one(int(c)) for c in right])


def gain(before, after, samples, k, resamples, seed):
    rng, d = np.random.default_rng(seed), np.subtract(*[pass_at_k(x, samples, k) for x in
                                                        (after, before)])
    means = np.sort([rng.choice(d, d.size).mean() for _ in range(resamples)])
    if not resamples:
        return d.mean(), d.mean(), d.mean()
    return d.mean(), means[round(0.05 * (resamples - 1))], means[round(0.95 * (resamples - 1))]
