"""In place wherever torch and numpy allow it: out=, trailing underscores, buffers."""
# file: engines/head.py
class TokenLogprobs:
    @staticmethod
    def forward(ctx, hidden, weight, targets, temperature, chunk_tokens, operand_dtype, head_fp32,
                softcap):
        head = Head(weight, temperature, operand_dtype, head_fp32, softcap)
        T = len(targets)
        buffer = torch.empty(min(T, chunk_tokens), head.V, dtype=head.dtype)
        both = torch.empty(2, T, dtype=head.dtype)
        for a in range(0, T, chunk_tokens):
            b = min(a + chunk_tokens, T)
            z = head.logits(hidden[a:b], out=buffer)
            z.sub_(z.amax(1, keepdim=True))
            z.sub_(z.exp().sum(1, keepdim=True).log_())
            torch.gather(z, 1, targets[a:b, None], out=both[0, a:b, None])
            both[1, a:b].copy_(z.mul_(z.exp()).sum(1)).neg_()
        ctx.save_for_backward(hidden, weight, targets)
        ctx.c, ctx.make = chunk_tokens, (temperature, operand_dtype, head_fp32, softcap)
        logprobs, entropy = both[0].clone(), both[1].clone()
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx, g, _):
        hidden, weight, targets = ctx.saved_tensors
        head = Head(weight, *ctx.make)
        gh = torch.zeros_like(hidden)
        gw = torch.zeros(weight.shape, dtype=head.dtype)
        where = g.ne(0).nonzero().flatten()
        buffer = torch.empty(min(len(where), ctx.c), head.V, dtype=head.dtype)
        for at in torch.split(where, ctx.c):
            if not len(at):
                break
            h = hidden.index_select(0, at)
            z = head.logits(h, out=buffer)
            z.sub_(z.amax(1, keepdim=True)).exp_()
            z.div_(z.sum(1, keepdim=True)).neg_()
            z[torch.arange(len(at)), targets[at]] += 1
            z.mul_(g[at].div(ctx.make[0]).unsqueeze(1))
            dz = head.operand(z)
            gh.index_copy_(0, at, torch.mm(dz, head.weight).to(gh.dtype))
            gw.add_(torch.mm(dz.t(), head.operand(h)))
        return gh, gw.to(weight.dtype), None, None, None, None, None, None
# file: loss.py
def advantages(rewards, *, norm="batch"):
    _check_choice("norm", norm, NORMS)
    a = rewards.clone() if rewards.is_floating_point() else rewards.float()
    for p in range(a.shape[0]):
        for g in range(a.shape[1]):
            if not torch.isfinite(a[p, g]):
                raise ValueError(f"reward {p} {g} is not finite")
    if a.numel() == 0:
        return a
    flat = a.max(1).values.sub_(a.min(1).values).le_(1e-6).bool()
    a.sub_(a.mean(1, keepdim=True))
    a[flat] = 0
    if norm == "batch":
        s = a.norm().div_(a.numel() ** 0.5)
        a.div_(s if s > 0 else 1)
    elif norm == "prompt":
        s = a.norm(dim=1, keepdim=True).div_(a.shape[1] ** 0.5)
        s[s == 0] = 1
        a.div_(s)
    return a


def token_weights(mask, prompt_index, *, aggregation="prompt"):
    _check_choice("aggregation", aggregation, AGGREGATIONS)
    out = mask.to(torch.float32, copy=True)
    if aggregation == "token":
        return out.div_(out.sum().clamp_(min=1))
    n = out.sum(1)
    if aggregation == "sample":
        pools = n.count_nonzero()
    else:
        _, where = prompt_index.unique(return_inverse=True)
        totals = torch.zeros(len(n) + 1).index_add_(0, where, n)
        pools, n = totals.count_nonzero(), totals[where]
    n[n == 0] = 1
    out.div_(n[:, None])
    return out.div_(max(int(pools), 1))


def _capped(logprobs, log_rho, A, eps_max):
    rho = log_rho.detach().clone().exp_()
    acts = rho.gt(eps_max)
    rho[acts] = eps_max
    return rho.mul_(A) * logprobs, acts


def _sequence_log_ratio(log_ratio, mask):
    mean = log_ratio.sum(1)
    mean = mean / mask.sum(1).clamp_(min=1)
    out = torch.empty_like(log_ratio)
    out[:] = mean[:, None]
    return out


def _clipped(log_rho, A, low, high):
    rho = log_rho.detach().clone().exp_()
    acts = rho.gt(high).logical_and_(A > 0)
    acts.logical_or_(rho.lt(low).logical_and_(A < 0))
    safe = log_rho.clone()
    safe[acts | (A == 0)] = 0
    terms = safe.exp()
    terms = torch.where(acts, rho.clamp_(low, high), terms)
    return terms * A, acts


def zero_variance(rewards, tol=1e-6):
    low = rewards.new_full((len(rewards),), float("inf"))
    high = low.neg()
    for column in rewards.unbind(1):
        torch.minimum(low, column, out=low)
        torch.maximum(high, column, out=high)
    return high.sub_(low).le(tol)
# file: scalerl.py
class Curriculum:
    def next(self):
        if self.cursor == len(self.order):
            for prompt in self.active[:]:
                if self.learned(prompt):
                    self.active.remove(prompt)
            if not self.active:
                return None
            self.epoch += 1
            self.cursor = 0
            self.order[:] = self.active
            rng = random.Random(1_000_003 * self.seed + self.epoch)
            for i in range(len(self.order) - 1, 0, -1):
                j = rng.randint(0, i)
                self.order[i], self.order[j] = self.order[j], self.order[i]
        self.cursor += 1
        return self.order[self.cursor - 1]

    def learned(self, prompt):
        entry = self.history.setdefault(prompt, [0, 0])
        return entry[1] > 0 and entry[0] / entry[1] >= self.retire_at

    def record(self, prompt, correct, samples):
        entry = self.history.setdefault(prompt, [0, 0])
        for i, more in enumerate((correct, samples)):
            entry[i] += more


def effective_batch(rollouts, rewards, config):
    log = {}
    log["reward/mean"], log["reward/std"] = (x.item() for x in (rewards.mean(), rewards.std()))
    same = zero_variance(rewards)
    log["frac_reward_zero_std"] = same.float().mean().item()
    kept, rest = list(rollouts), rewards.clone()
    G = rewards.shape[1]
    if config.zero_variance_filter:
        for p in reversed(same.nonzero()[:, 0].tolist()):
            del kept[p * G:(p + 1) * G]
        rest = rest[same.logical_not_()]
    log["prompts/consumed"], log["prompts/trained"] = len(rewards), len(rest)
    return kept, rest, log


class PipelinePacer:
    def may_admit(self):
        return self.k * self.P + self.P - len(self.groups) > 0

    def admit(self, prompt_id, version, size):
        group = Group(self.admitted, prompt_id, version, size)
        self.groups[group.group_id] = group
        self.admitted += 1
        return group

    def take(self, version):
        ready = [g for g in self.groups.values() if g.finished]
        ready.sort(key=lambda g: g.group_id)
        ready.sort(key=lambda g: g.start)
        del ready[self.P:]
        if len(ready) < self.P or not self.leaves_enough_time(ready, version):
            return None
        for g in ready:
            del self.groups[g.group_id]
        return ready

    def leaves_enough_time(self, taken, version):
        left = dict(self.groups)
        for g in taken:
            del left[g.group_id]
        starts = [g.start for g in left.values()]
        starts.sort(reverse=True)
        while starts:
            version += 1
            if starts[-1] + self.k < version:
                return False
            del starts[-self.P:]
        return True


class Run:
    def admit(self):
        G, started = self.config.samples_per_prompt, []
        while self.pacer.may_admit() and self.sampler.free_slots >= G:
            started.append(self.curriculum.next())
            if started[-1] is None:
                started.pop()
                self.pacer.no_more_prompts()
                break
            group = self.pacer.admit(started[-1], self.version, G)
            request = Request(group.group_id, started[-1], (), G)
            request = type(request)(request.group_id, request.prompt_id,
                                    self.problems.prompts[started[-1]], G,
                                    self.problems.train[started[-1]].task)
            self.sampler.submit(request)
# file: course/naive_pacer.py
def counterexample(k, P):
    plan, n = [], k * P
    plan += [list(range(n + t * P, n + t * P + P)) for t in range(k)]
    plan += [list(range(n))]
    plan += [[]] * k
    return plan
# file: sampler.py
class Interruption:
    def draw_budgets(self, count, generator):
        out = torch.empty(count, dtype=torch.long).fill_(self.think_max)
        if self.phrase_ids:
            torch.randint(self.think_min, self.think_max + 1, (count,), generator=generator,
                          out=out)
        return out


class TransformersSampler:
    def _choose(self, hidden):
        z = head_logits(hidden, self.head, head_fp32=self.head_fp32, softcap=cap(self.model))
        z.div_(self.temperature).sub_(z.logsumexp(-1, keepdim=True))
        token = torch.empty(len(z), 1, dtype=torch.long)
        torch.multinomial(z.exp(), 1, generator=self.random, out=token)
        return token.squeeze_(1), z.gather(1, token[:, None]).squeeze_(1)

    def _record(self, token, logprob):
        n, rows = len(token), self.rows
        token, logprob = token.clone(), logprob.clone()
        left = rows.phrase_left[:n]
        forced = left > 0
        for slot in forced.nonzero()[:, 0].tolist():
            token[slot], logprob[slot] = self.phrase[-int(left[slot])], 0.0
        place = rows.count[:n].unsqueeze(1)
        rows.ids[:n].scatter_(1, place, token[:, None])
        rows.behavior_logprobs[:n].scatter_(1, place, logprob[:, None])
        rows.versions[:n].scatter_(1, place, self.version)
        rows.sampled[:n].scatter_(1, place, ~forced[:, None])
        left.sub_(forced.long())
        rows.last[:n].copy_(token)
        rows.count[:n].add_(1)
        ended = torch.isin(token, self.ends).logical_and_(~forced)
        due = rows.count[:n].eq(rows.think[:n]).logical_and_(~ended)
        ended.logical_or_(rows.count[:n].eq(rows.limit[:n]))
        if len(self.phrase):
            self._interrupt(torch.where(due)[0].tolist())
        return torch.where(ended)[0].tolist()

    def _interrupt(self, due):
        rows, more = self.rows, len(self.phrase)
        for slot in due:
            if self.interruption.end in self.tokenizer.decode(
                    rows.ids[slot].narrow(0, 0, int(rows.count[slot])).tolist()):
                due = [s for s in due if s != slot]
        index = torch.tensor(due, dtype=torch.long)
        rows.phrase_left.index_fill_(0, index, more)
        rows.interrupted.index_fill_(0, index, True)
        rows.limit.index_add_(0, index, torch.full_like(index, more))

    def _rollout(self, request, output_ids, behavior_logprobs, versions, sampled, interrupted):
        out = Rollout(request.prompt_id, request.group_id, request.prompt_ids, output_ids,
                      behavior_logprobs, versions, sampled, "length", interrupted, request.task,
                      self.decoded["clock"])
        if output_ids[-1] in self.eos_ids:
            out.finish_reason = "stop"
        return out

    @torch.no_grad()
    def push_weights(self, named_tensors, version):
        own = {name: x for name, x in self.model.named_parameters()}
        for name, x in named_tensors:
            own[name].zero_().add_(x) if x.data_ptr() != own[name].data_ptr() else None
        self.version = version
# file: fit.py
def law_at(law, C, A, B, C_mid, R0):
    x = np.array(np.divide(C, C_mid), dtype=float)
    np.maximum(x, 1e-300, out=x)
    with np.errstate(over="ignore"):
        g = LAWS[law][0](x, B)
    return np.add(np.multiply(np.subtract(A, R0), g), R0)


def points_to_fit(C, R, R0, law, first, last):
    use = np.ones(len(C), bool)
    use &= C >= first
    use &= C <= last
    zero, n, name = C == 0, 0, "given"
    if R0 is None and zero.any():
        R0, n, name = float(R[zero].mean()), int(zero.sum()), "step 0"
    elif R0 is None or R0 == "fit":
        R0, name = 0.0, "fitted" if law != "power" else "unused"
    if name == "fitted":
        use[zero] = True
    elif law != "logistic":
        use[zero] = False
    return C[use], R[use], R0, name, n


class Search:
    def at(self, x, R, R0):
        v = []
        for angle, (low, high) in zip(x, self.box):
            s = np.array(np.sin(angle), dtype=float)
            s += 1
            s *= (high - low) / 2
            s += low
            v.append(s)
        for s in v[:2]:
            np.exp(s, out=s)
        R0 = v[2] if len(v) == 3 else np.asarray(R0, float)
        g = law_at(self.law, self.C, 1.0, v[1][..., None], v[0][..., None], 0.0)
        residual = R - R0[..., None] + np.zeros_like(g)
        A = (residual * g).sum(-1)
        A = A / np.maximum((g * g).sum(-1), 1e-30)
        A = np.maximum(A, 0)
        A = A + R0
        A = np.clip(A, self.A_range[0], self.A_range[1])
        residual -= (A - R0)[..., None] * g
        return (A, v[1], v[0], R0), residual

    def starts(self, R, R0):
        shape = (96, 32, 5)[:len(self.box)]
        x = np.array(np.meshgrid(*[np.arcsin(np.linspace(-0.98, 0.98, n)) for n in shape],
                                 indexing="ij"))
        sse = (self.at(x, R, R0)[1] ** 2).sum(-1)
        out = []
        for _ in range(4):
            best = np.unravel_index(sse.argmin(), sse.shape)
            out.append(x[(slice(None), *best)])
            sse[best[0]] = np.inf
        return out


def compare_laws(search, theta, rival, its_theta, R):
    out = {}
    curve = law_at(search.law, search.C, *theta)
    curve -= R
    ours = R.size * np.log((curve ** 2).mean() + 1e-12)
    ours += 2 * search.parameters
    its = law_at(rival.law, rival.C, *its_theta)
    its -= R
    theirs = R.size * np.log((its ** 2).mean() + 1e-12)
    theirs += 2 * rival.parameters
    out[rival.law] = {"A": float(its_theta[0]), "delta_aic": float(theirs - ours)}
    flat = R.size * np.log(R.var() + 1e-12) + 2
    out["constant"] = {"A": float(R.mean()), "delta_aic": float(flat - ours)}
    return out


def replicates(search, theta, angles, R, bootstrap, seed, step_0):
    curve = law_at(search.law, search.C, *theta)
    noise = widened(R - curve, search.parameters)
    rng = np.random.default_rng(seed)
    S = 0 if R.size <= search.parameters else bootstrap
    start = np.array(angles, dtype=float)
    np.sin(start, out=start)
    np.arcsin(start, out=start)
    np.clip(start, -1.4, 1.4, out=start)
    draws = np.zeros((S, 4))
    for s in range(S):
        made = curve.copy()
        made += rng.choice(noise, R.size)
        R0 = theta[3]
        if step_0:
            R0 = float(np.clip(R0 + rng.choice(noise, step_0).mean(), 0, 1))
        draws[s] = search.solve(made, R0, [start])[0]
    return Replicates(search.law, draws, noise)


class Replicates:
    def paths(self, C, noise=False):
        out = np.empty((len(self.draws), len(C)))
        for row, theta in zip(out, self.draws):
            row[:] = law_at(self.law, np.asarray(C, float), *theta)
        if noise:
            rng = np.random.default_rng(0)
            for row in out:
                row += rng.choice(self.noise, len(row))
        return out
# file: course/late_push.py
def which_pushed_late(logs):
    best = [-1.0, None]
    for i, log in enumerate(logs):
        shares = []
        for line in log:
            line = dict(line)
            a = line.pop("mismatch/mean_abs_dlogp/lag_0", None)
            b = line.pop("mismatch/mean_abs_dlogp/lag_1", None)
            if a and b:
                shares.append(a / b)
        shares.sort()
        if shares and shares[len(shares) // 2] > best[0]:
            best[:] = shares[len(shares) // 2], i
    return best[1]
# file: course/bets.py
def forecast(C, R, later):
    """Newton's steps by hand, from three starts."""
    c, best = np.log(C[1:]), (np.inf, R[-1])

    def model(p, at):
        A = 1 / (1 + np.exp(-p[0]))
        return R[0] + (A - R[0]) / (1 + np.exp(np.clip(-np.exp(p[2]) * (at - p[1]), -50, 50)))

    def rest(p):
        return np.array([*(model(p, c) - R[1:]) / 0.015, (p[2] - 0.47) / 0.5, p[0] - 1.73])
    for shift in (-0.7, 0.0, 1.0):
        p, damping = np.array([1.7, c[-1] + shift, 0.47]), 1e-2
        for _ in range(200):
            r = rest(p)
            J = np.stack([(rest(p + 1e-5 * e) - r) / 1e-5 for e in np.eye(3)], 1)
            step = np.linalg.solve(J.T @ J + damping * np.eye(3), -J.T @ r)
            if (rest(p + step) ** 2).sum() < (r ** 2).sum():
                p += step
                damping *= 0.3
            else:
                damping *= 5
        cost = (rest(p) ** 2).sum()
        if cost < best[0]:
            best = cost, model(p, np.log(later)).mean()
    return float(best[1])
# file: course/pass_at_k.py
def pass_at_k(right, samples, k):
    wrong = np.array(samples - np.asarray(right), dtype=float)
    miss = np.ones_like(wrong)
    for i in range(k):
        miss *= wrong.clip(min=0)
        miss /= samples - i
        wrong -= 1
    np.subtract(1, miss, out=miss)
    return miss


def gain(before, after, samples, k, resamples, seed):
    d = pass_at_k(after, samples, k)
    d -= pass_at_k(before, samples, k)
    means, rng = np.empty(resamples), np.random.default_rng(seed)
    for i in range(resamples):
        means[i] = d.take(rng.integers(d.size, size=d.size)).mean()
    means.sort()
    return d.mean(), means[int(resamples * 0.05)], means[int(resamples * 0.95)]
