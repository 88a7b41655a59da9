"""As few statements as can be: einsum, masks, broadcasting."""
# file: engines/head.py
class TokenLogprobs:
    @staticmethod
    def forward(ctx, hidden, weight, targets, temperature, chunk_tokens, operand_dtype, head_fp32,
                softcap):
        head, F = Head(weight, temperature, operand_dtype, head_fp32, softcap), torch.nn.functional
        ctx.save_for_backward(hidden, weight, targets), setattr(
            ctx, "x", (head, chunk_tokens, temperature, softcap))
        z = (head.logits(h, out=h.new_empty(len(h), head.V, dtype=head.dtype))
             for h in hidden.split(chunk_tokens) if len(h))
        pairs = [(-F.cross_entropy(c, y, reduction="none"), -F.softmax(c, 1).mul(
            F.log_softmax(c, 1)).sum(1)) for c, y in zip(z, targets.split(chunk_tokens))]
        out = tuple(map(torch.cat, zip(*pairs))) or (hidden.new_zeros(0, dtype=head.dtype),
                                                     hidden.new_zeros(0, dtype=head.dtype))
        ctx.mark_non_differentiable(out[1])
        return out

    @staticmethod
    def backward(ctx, g, _):
        (hidden, weight, targets), (head, c, temperature, softcap) = ctx.saved_tensors, ctx.x
        gh, gw = torch.zeros_like(hidden), torch.zeros_like(weight, dtype=head.dtype)
        for i in (i for i in torch.where(g != 0)[0].split(c) if len(i)):
            z = head.logits(hidden[i], out=hidden.new_empty(len(i), head.V, dtype=head.dtype))
            hot = targets[i, None] == torch.arange(head.V)
            dz = (hot.to(z.dtype) - z.softmax(1)) * (g[i, None] / temperature)
            dz = head.operand(dz * (1 - (z * temperature / softcap) ** 2) if softcap else dz)
            gh[i] = torch.einsum("tv,vh->th", dz, head.weight).to(gh.dtype)
            gw += torch.einsum("tv,th->vh", dz, head.operand(hidden[i])).to(gw.dtype)
        return gh, gw.to(weight.dtype), None, None, None, None, None, None
# file: loss.py
def advantages(rewards, *, norm="batch"):
    _check_choice("norm", norm, NORMS)
    r = rewards + torch.zeros(())
    if not r.isfinite().all():
        raise ValueError("no finite reward: [prompt, sample] = %s" % (
            (~r.isfinite()).nonzero()[0].tolist()))
    a = (r - r.mean(1, True)) * ((r[:, :, None] - r[:, None]).abs().amax((1, 2))[:, None] > 1e-6) \
        if len(r) else r
    v = {"batch": torch.einsum("pg,pg->", a, a) / max(a.numel(), 1),
         "prompt": torch.einsum("pg,pg->p", a, a)[:, None] / r.shape[1]}.get(norm, torch.ones(()))
    return a * torch.where(v > 0, v, 1).rsqrt()


def token_weights(mask, prompt_index, *, aggregation="prompt"):
    _check_choice("aggregation", aggregation, AGGREGATIONS)
    n = mask.sum(1).double()
    same = {"prompt": prompt_index[:, None] == prompt_index, "sample": torch.eye(len(n)).bool(),
            "token": torch.ones(len(n), len(n)).bool()}[aggregation].double()
    pool = same @ n
    pools = ((pool > 0) / same.sum(1).clamp(min=1)).sum()
    return (mask / (pool * pools).clamp(min=0.5)[:, None]).float()


def _capped(logprobs, log_rho, A, eps_max):
    return (log_rho.exp().clamp(max=eps_max).detach() * A * logprobs,
            log_rho.detach() > torch.log(torch.tensor(eps_max, dtype=torch.float64)))


def _sequence_log_ratio(log_ratio, mask):
    return torch.einsum("nt,ns->ns", log_ratio, (1 / mask.sum(1).clamp(min=1).to(
        log_ratio.dtype))[:, None].expand_as(log_ratio))


def _clipped(log_rho, A, low, high):
    rho, s = log_rho.detach().exp(), A.sign()
    acts = torch.where(s > 0, rho > high, rho < low) & (s != 0)
    return (torch.where(acts | (s == 0), rho.clamp(low, high).nan_to_num(), 0)
            + torch.where(acts | (s == 0), -torch.inf, log_rho).exp()) * A, acts


def zero_variance(rewards, tol=1e-6):
    return (rewards[:, :, None] - rewards[:, None, :]).abs().amax(dim=(1, 2)) <= tol
# file: scalerl.py
class Curriculum:
    def next(self):
        if self.cursor == len(self.order):
            self.active = [p for p in self.active if not self.learned(p)]
            self.epoch, self.cursor = self.epoch + bool(self.active), 0
            self.order = random.Random(f"{self.seed}#{self.epoch}").sample(self.active,
                                                                           len(self.active))
        self.cursor += bool(self.order)
        return self.order[self.cursor - 1] if self.order else None

    def learned(self, prompt):
        return (h := self.history.get(prompt, [0, 0]))[1] > 0 and h[0] / h[1] >= self.retire_at

    def record(self, prompt, correct, samples):
        self.history[prompt] = [x + y for x, y in zip(self.history.get(prompt, [0, 0]),
                                                      [correct, samples])]


def effective_batch(rollouts, rewards, config):
    same = zero_variance(rewards)
    stay = ~same | (not config.zero_variance_filter)
    return ([rollouts[i] for i in stay.repeat_interleave(rewards.shape[1]).nonzero()[:, 0]],
            rewards[stay], {
        "reward/mean": rewards.mean().item(), "reward/std": rewards.std().item(),
        "frac_reward_zero_std": same.double().mean().item(), "prompts/consumed": len(same),
        "prompts/trained": stay.sum().item()})


class PipelinePacer:
    def may_admit(self):
        return len(self.groups) < self.P + self.P * self.k

    def admit(self, prompt_id, version, size):
        self.admitted, i = self.admitted + 1, self.admitted
        return self.groups.setdefault(i, Group(i, prompt_id, version, size))

    def take(self, version):
        t = sorted([g for g in self.groups.values() if g.finished],
                   key=lambda g: (g.start, g.group_id))[:self.P]
        return [self.groups.pop(g.group_id) for g in t] if (
            len(t) == self.P and self.leaves_enough_time(t, version)) else None

    def leaves_enough_time(self, taken, version):
        s = sorted(g.start for g in self.groups.values() if g not in taken)
        t = torch.tensor(s)
        return bool((t + self.k >= version + 1 + torch.arange(len(s)) // self.P).all())


class Run:
    def admit(self):
        G, name = self.config.samples_per_prompt, ""
        while name is not None and self.pacer.may_admit() and self.sampler.free_slots >= G:
            if (name := self.curriculum.next()) is not None:
                self.sampler.submit(Request(
                    self.pacer.admit(name, self.version, G).group_id, name,
                    self.problems.prompts[name], G, self.problems.train[name].task))
        if name is None:
            self.pacer.no_more_prompts()
# file: course/naive_pacer.py
def counterexample(k, P):
    return [[k * P + i for i in range(t * P, t * P + P)] for t in range(k)] + [
        [i for i in range(k * P)]] + [[] for _ in range(k)]
# file: sampler.py
class Interruption:
    def draw_budgets(self, count, generator):
        return (torch.randint(self.think_min, self.think_max + 1, (count,), generator=generator)
                if self.phrase_ids else torch.tensor(self.think_max).repeat(count))


class TransformersSampler:
    def _choose(self, hidden):
        log_p = (head_logits(hidden, self.head, head_fp32=self.head_fp32, softcap=cap(self.model))
                 / self.temperature).log_softmax(1)
        noise = torch.empty_like(log_p).exponential_(generator=self.random)
        token = (log_p - noise.log()).argmax(1)
        return token, log_p[range(len(token)), token]

    def _record(self, token, logprob):
        n, r = len(token), self.rows
        left, at = r.phrase_left[:n].clone(), (torch.arange(n), r.count[:n].clone())
        free = left == 0
        token = torch.where(free, token, self.phrase[-left.clamp(min=1)] if len(self.phrase)
                            else token)
        r.ids[at], r.versions[at], r.sampled[at] = token, torch.tensor(self.version), free
        r.behavior_logprobs[at] = torch.where(free, logprob, 0)
        r.last[:n], r.count[:n], r.phrase_left[:n] = token, at[1] + 1, left - (~free).long()
        stop = free & (token[:, None] == self.ends).any(-1)
        full, due = r.count[:n] == r.limit[:n], (r.count[:n] == r.think[:n]) & ~stop
        self._interrupt(due.nonzero()[:, 0].tolist() if len(self.phrase) else [])
        return (stop | full).nonzero()[:, 0].tolist()

    def _interrupt(self, due):
        on = [s for s in due if self.interruption.end not in self.tokenizer.decode(
            self.rows.ids[s, :self.rows.count[s]].tolist())]
        self.rows.phrase_left[on], self.rows.interrupted[on] = len(self.phrase), True
        self.rows.limit[on] += len(self.phrase)

    def _rollout(self, request, output_ids, behavior_logprobs, versions, sampled, interrupted):
        return Rollout(request.prompt_id, request.group_id, request.prompt_ids, output_ids,
                       behavior_logprobs, versions, sampled, ("length", "stop")[
                           bool({output_ids[-1]} & self.eos_ids)], interrupted, request.task)

    def push_weights(self, named_tensors, version):
        own, self.version = dict(self.model.named_parameters()), version
        [own[name].data.copy_(x.detach()) for name, x in named_tensors]
# file: fit.py
def law_at(law, C, A, B, C_mid, R0):
    with np.errstate(all="ignore"):
        return R0 + (A - R0) * LAWS[law][0](np.maximum(C / C_mid, 1e-300), B)


def points_to_fit(C, R, R0, law, first, last):
    z, n = C == 0, int((C == 0).sum())
    R0, name, n = ((float(R[z].mean()), "step 0", n) if R0 is None and n else
                   (0.0, "unused" if law == "power" else "fitted", 0) if R0 in (None, "fit") else
                   (R0, "given", 0))
    use = ((C >= first) & (C <= last) | z & (name == "fitted")) & (
        ~z | (name == "fitted") | (law == "logistic"))
    return C[use], R[use], R0, name, n


class Search:
    def at(self, x, R, R0):
        low, high = np.reshape(self.box.T, (2, len(self.box), *[1] * (np.ndim(x) - 1)))
        v = low + (high - low) * (np.sin(x) + 1) / 2
        C_mid, B, s = np.exp(v[0]), np.exp(v[1]), np.asarray(v[2] if len(v) > 2 else R0)
        g = 1.0 * law_at(self.law, self.C, 1.0, B[..., None], C_mid[..., None], 0.0)
        A = np.clip(s + np.maximum(((R - s[..., None]) * g).sum(-1) / np.maximum(
            (g * g).sum(-1), 1e-30), 0), *self.A_range)
        return (A, B, C_mid, s), R - s[..., None] - (A - s)[..., None] * g

    def starts(self, R, R0):
        x = np.stack(np.meshgrid(*(np.arcsin(np.linspace(-.98, .98, n)) for n in (
            96, 32, 5)[:len(self.box)]), indexing="ij")).reshape(len(self.box), 96, -1)
        e = np.square(self.at(x, R, R0)[1]).sum(-1)
        return [x[:, i, e[i].argmin()] for i in e.min(1).argsort()[:4]]


def compare_laws(search, theta, rival, its_theta, R):
    one, two, three = (R.size * np.log(np.mean((R - c) ** 2) + 1e-12) + 2 * p for c, p in (
        (law_at(search.law, search.C, *theta), search.parameters),
        (law_at(rival.law, rival.C, *its_theta), rival.parameters), (np.mean(R), 1)))
    return {rival.law: dict(A=float(its_theta[0]), delta_aic=float(two - one)),
            "constant": dict(A=float(np.mean(R)), delta_aic=float(three - one))}


def replicates(search, theta, angles, R, bootstrap, seed, step_0):
    curve, rng = law_at(search.law, search.C, *theta), np.random.default_rng(seed)
    noise, S = widened(R - curve, search.parameters), bootstrap * (R.size > search.parameters)
    new = curve + rng.choice(noise, (S, R.size))
    R0 = np.clip(theta[3] + rng.choice(noise, (S, step_0)).mean(1), 0, 1) if step_0 else \
        np.full(S, theta[3])
    draws = np.array([search.solve(y, r, [np.arcsin(np.sin(angles)).clip(-1.4, 1.4)])[0]
                      for y, r in zip(new, R0)]).reshape(S, 4)
    return Replicates(search.law, draws, noise)


class Replicates:
    def paths(self, C, noise=False):
        p = law_at(self.law, np.array(C, float)[None], *self.draws.T[:, :, None])
        return p + noise * np.random.default_rng(0).choice(self.noise, p.shape)
# file: course/late_push.py
def which_pushed_late(logs):
    name = "mismatch/mean_abs_dlogp/lag_"
    shares = [sorted(x[name + "0"] / x[name + "1"] for x in log
                     if x.get(name + "0") and x.get(name + "1")) or [0] for log in logs]
    return max(range(3), key=lambda i: shares[i][len(shares[i]) // 2])
# file: course/bets.py
def forecast(C, R, later):
    A, B, s = np.meshgrid(np.linspace(.45, .98, 80), np.geomspace(.6, 4, 30),
                          np.linspace(-2, 3, 80))
    A, B, s = A[..., None], B[..., None], s[..., None]

    def curve(x):
        return R[0] + (A - R[0]) / (1 + np.exp(-B * (x - s)))
    cost = (((curve(np.log(C[1:] / C[-1])) - R[1:]) / .015) ** 2).sum(-1) + (
        (np.log(B / 1.6) / .5) ** 2 + (np.log(A / (1 - A)) - 1.73) ** 2)[..., 0]
    return curve(np.log(later / C[-1])).mean(-1).flat[cost.argmin()]
# file: course/pass_at_k.py
def pass_at_k(right, samples, k):
    n, i = samples - np.asarray(right)[:, None], np.arange(k)
    with np.errstate(divide="ignore"):
        return -np.expm1((np.log(np.maximum(n - i, 0)) - np.log(samples - i)).sum(1))


def gain(before, after, samples, k, resamples, seed):
    d = pass_at_k(after, samples, k) - pass_at_k(before, samples, k)
    boot = np.random.default_rng(seed).choice(d, (resamples, len(d))).mean(1)
    return [d.mean(), *np.quantile(boot, [.05, .95])]
