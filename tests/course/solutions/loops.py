"""Loops over lists, as somebody writes who learned Python before torch."""
# file: engines/head.py
class TokenLogprobs:
    @staticmethod
    def forward(ctx, hidden, weight, targets, temperature, chunk_tokens, operand_dtype, head_fp32,
                softcap):
        head = Head(weight, temperature, operand_dtype, head_fp32, softcap)
        logprobs = torch.zeros(len(targets), dtype=head.dtype)
        entropy = torch.zeros(len(targets), dtype=head.dtype)
        i = 0
        while i < len(targets):
            rows = hidden[i: i + chunk_tokens]
            z = head.logits(rows, out=torch.empty(len(rows), head.V, dtype=head.dtype))
            for j in range(len(rows)):
                log_z = torch.logsumexp(z[j], 0)
                logprobs[i + j] = z[j][targets[i + j]] - log_z
                p = torch.exp(z[j] - log_z)
                entropy[i + j] = log_z - torch.sum(p * z[j])
            i += chunk_tokens
        ctx.save_for_backward(hidden, weight, targets)
        ctx.more = (temperature, chunk_tokens, operand_dtype, head_fp32, softcap)
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx, grad_logprobs, grad_entropy):
        hidden, weight, targets = ctx.saved_tensors
        temperature, chunk_tokens, operand_dtype, head_fp32, softcap = ctx.more
        head = Head(weight, temperature, operand_dtype, head_fp32, softcap)
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros(weight.shape, dtype=head.dtype)
        places = []
        for t in range(len(targets)):
            if grad_logprobs[t] != 0:
                places.append(t)
        for start in range(0, len(places), chunk_tokens):
            some = places[start: start + chunk_tokens]
            h = hidden[some]
            z = head.logits(h, out=torch.empty(len(some), head.V, dtype=head.dtype))
            dz = -torch.softmax(z, 1)
            for row, t in enumerate(some):
                dz[row, targets[t]] += 1
                dz[row] *= grad_logprobs[t] / temperature
            dz = head.operand(dz)
            grad_hidden[some] = (dz @ head.weight).to(hidden.dtype)
            grad_weight += (dz.T @ head.operand(h)).to(head.dtype)
        return grad_hidden, grad_weight.to(weight.dtype), None, None, None, None, None, None


# file: loss.py
def advantages(rewards, *, norm="batch"):
    if norm not in NORMS:
        raise ValueError("unknown norm " + str(norm))
    rows = rewards.tolist()
    result = []
    for p in range(len(rows)):
        for g in range(len(rows[p])):
            if rows[p][g] != rows[p][g] or rows[p][g] in (float("inf"), float("-inf")):
                raise ValueError("prompt %d, sample %d has no finite reward" % (p, g))
        mean = sum(rows[p]) / len(rows[p])
        if max(rows[p]) - min(rows[p]) <= 1e-6:
            result.append([0.0 for _ in rows[p]])
        else:
            result.append([r - mean for r in rows[p]])
    if norm == "batch":
        square, n = 0.0, 0
        for row in result:
            for a in row:
                square += a * a
                n += 1
        if square > 0:
            result = [[a / (square / n) ** 0.5 for a in row] for row in result]
    elif norm == "prompt":
        for p, row in enumerate(result):
            square = sum(a * a for a in row)
            if square > 0:
                result[p] = [a / (square / len(row)) ** 0.5 for a in row]
    if not result:
        return torch.zeros(rewards.shape)
    return torch.tensor(result)


def token_weights(mask, prompt_index, *, aggregation="prompt"):
    if aggregation not in AGGREGATIONS:
        raise ValueError("unknown aggregation " + str(aggregation))
    N, T = mask.shape
    weights = torch.zeros(N, T)
    rows = mask.tolist()
    if aggregation == "prompt":
        names = prompt_index.tolist()
    elif aggregation == "sample":
        names = [n for n in range(N)]
    else:
        names = ["all"] * N
    tokens = {}
    for n in range(N):
        for t in range(T):
            if rows[n][t]:
                tokens[names[n]] = tokens.get(names[n], 0) + 1
    for n in range(N):
        for t in range(T):
            if rows[n][t]:
                weights[n, t] = 1 / tokens[names[n]] / len(tokens)
    return weights


def _capped(logprobs, log_rho, A, eps_max):
    terms, capped = [], []
    for lp, lr, a in zip(logprobs, log_rho, A):
        ratio = lr.detach().exp()
        terms.append(torch.where(ratio > eps_max, eps_max, ratio) * a * lp)
        capped.append(ratio > eps_max)
    return torch.stack(terms), torch.stack(capped)


def _sequence_log_ratio(log_ratio, mask):
    rows = []
    for n in range(len(log_ratio)):
        count = int(mask[n].sum())
        total = log_ratio[n].sum() / max(count, 1)
        rows.append(torch.stack([total] * log_ratio.shape[1]))
    return torch.stack(rows)


def _clipped(log_rho, A, low, high):
    N, T = log_rho.shape
    terms, clipped = [], torch.zeros(N, T, dtype=torch.bool)
    for n in range(N):
        for t in range(T):
            a, ratio = A[n, t], torch.exp(log_rho[n, t].detach())
            if (ratio > high and a > 0) or (ratio < low and a < 0):
                clipped[n, t] = True
                terms.append((high if a > 0 else low) * a)
            elif a == 0:
                terms.append(0 * a)
            else:
                terms.append(torch.exp(log_rho[n, t]) * a)
    return torch.stack(terms).reshape(N, T), clipped


def zero_variance(rewards, tol=1e-6):
    answers = []
    for row in rewards.tolist():
        smallest = largest = row[0]
        for r in row[1:]:
            smallest = min(smallest, r)
            largest = max(largest, r)
        answers.append(largest - smallest <= tol)
    return torch.tensor(answers, dtype=torch.bool)


# file: scalerl.py
class Curriculum:
    def next(self):
        if self.cursor >= len(self.order):
            still = []
            for prompt in self.active:
                if not self.learned(prompt):
                    still.append(prompt)
            self.active = still
            if len(still) == 0:
                return None
            self.epoch += 1
            self.order = list(still)
            random.Random("seed %d, epoch %d" % (self.seed, self.epoch)).shuffle(self.order)
            self.cursor = 0
        prompt = self.order[self.cursor]
        self.cursor += 1
        return prompt

    def learned(self, prompt):
        if prompt not in self.history:
            return False
        right, tried = self.history[prompt]
        if tried == 0:
            return False
        return right / tried >= self.retire_at

    def record(self, prompt, correct, samples):
        if prompt not in self.history:
            self.history[prompt] = [0, 0]
        self.history[prompt][0] += correct
        self.history[prompt][1] += samples


def effective_batch(rollouts, rewards, config):
    P, G = rewards.shape
    equal = zero_variance(rewards).tolist()
    kept, rows, zeros = [], [], 0
    for p in range(P):
        if equal[p]:
            zeros += 1
            if config.zero_variance_filter:
                continue
        rows.append(p)
        for g in range(G):
            kept.append(rollouts[p * G + g])
    log = {}
    log["reward/mean"] = float(rewards.mean())
    log["reward/std"] = float(rewards.std())
    log["frac_reward_zero_std"] = zeros / P
    log["prompts/consumed"] = P
    log["prompts/trained"] = len(rows)
    return kept, rewards[rows], log


class PipelinePacer:
    def may_admit(self):
        outstanding = 0
        for _ in self.groups:
            outstanding += 1
        return outstanding < self.P * (self.k + 1)

    def admit(self, prompt_id, version, size):
        group = Group(self.admitted, prompt_id, version, size)
        self.groups[self.admitted] = group
        self.admitted += 1
        return group

    def take(self, version):
        ready = []
        for group in self.groups.values():
            if group.finished:
                ready.append((group.start, group.group_id))
        ready.sort()
        if len(ready) < self.P:
            return None
        taken = []
        for start, i in ready[:self.P]:
            taken.append(self.groups[i])
        if not self.leaves_enough_time(taken, version):
            return None
        for group in taken:
            del self.groups[group.group_id]
        return taken

    def leaves_enough_time(self, taken, version):
        left = []
        for group in self.groups.values():
            if group not in taken:
                left.append(group.start + self.k)
        left.sort()
        step = version
        while left:
            step += 1
            for _ in range(self.P):
                if left:
                    deadline = left.pop(0)
                    if deadline < step:
                        return False
        return True


class Run:
    def admit(self):
        G = self.config.samples_per_prompt
        while self.pacer.may_admit():
            if self.sampler.free_slots < G:
                return
            name = self.curriculum.next()
            if name is None:
                self.pacer.no_more_prompts()
                return
            group = self.pacer.admit(name, self.version, G)
            ids = self.problems.prompts[name]
            task = self.problems.train[name].task
            self.sampler.submit(Request(group.group_id, name, ids, G, task))


# file: course/naive_pacer.py
def counterexample(k, P):
    schedule = []
    new = k * P
    for step in range(k):
        row = []
        for _ in range(P):
            row.append(new)
            new += 1
        schedule.append(row)
    row = []
    for slow in range(k * P):
        row.append(slow)
    schedule.append(row)
    for _ in range(k):
        schedule.append([])
    return schedule


# file: sampler.py
class Interruption:
    def draw_budgets(self, count, generator):
        budgets = torch.zeros(count, dtype=torch.long)
        for i in range(count):
            if len(self.phrase_ids) == 0:
                budgets[i] = self.think_max
            else:
                budgets[i] = torch.randint(self.think_min, self.think_max + 1, (1,),
                                           generator=generator)[0]
        return budgets


class TransformersSampler:
    def _choose(self, hidden):
        logits = head_logits(hidden, self.head, head_fp32=self.head_fp32,
                             softcap=cap(self.model)) / self.temperature
        logprobs = torch.log_softmax(logits, dim=1)
        tokens, chosen = [], []
        for row in logprobs:
            token = torch.multinomial(row.exp(), 1, generator=self.random)
            tokens.append(token[0])
            chosen.append(row[token[0]])
        return torch.stack(tokens), torch.stack(chosen)

    def _record(self, token, logprob):
        rows, ended, due = self.rows, [], []
        for slot in range(len(token)):
            column = int(rows.count[slot])
            left = int(rows.phrase_left[slot])
            if left > 0:
                new = int(self.phrase[len(self.phrase) - left])
                rows.phrase_left[slot] -= 1
                rows.behavior_logprobs[slot, column] = 0.0
                rows.sampled[slot, column] = False
            else:
                new = int(token[slot])
                rows.behavior_logprobs[slot, column] = logprob[slot]
                rows.sampled[slot, column] = True
            rows.ids[slot, column] = new
            rows.versions[slot, column] = self.version
            rows.last[slot] = new
            rows.count[slot] = column + 1
            if left == 0 and new in self.eos_ids:
                ended.append(slot)
                continue
            if column + 1 == int(rows.limit[slot]):
                ended.append(slot)
            if column + 1 == int(rows.think[slot]) and len(self.phrase) > 0:
                due.append(slot)
        self._interrupt(due)
        return ended

    def _interrupt(self, due):
        for slot in due:
            text = self.tokenizer.decode(self.rows.ids[slot, :int(self.rows.count[slot])].tolist())
            if self.interruption.end in text:
                continue
            self.rows.phrase_left[slot] = len(self.phrase)
            self.rows.limit[slot] += len(self.phrase)
            self.rows.interrupted[slot] = True

    def _rollout(self, request, output_ids, behavior_logprobs, versions, sampled, interrupted):
        reason = "length"
        for end in self.eos_ids:
            if output_ids[-1] == end:
                reason = "stop"
        return Rollout(request.prompt_id, request.group_id, request.prompt_ids, output_ids,
                       behavior_logprobs, versions, sampled, reason, interrupted, request.task)

    def push_weights(self, named_tensors, version):
        with torch.no_grad():
            for name, tensor in named_tensors:
                for own, parameter in self.model.named_parameters():
                    if own == name:
                        parameter.copy_(tensor)
        self.version = version


# file: fit.py
def law_at(law, C, A, B, C_mid, R0):
    with np.errstate(all="ignore"):
        share = LAWS[law][0](np.maximum(np.asarray(C) / C_mid, 1e-300), B)
    return R0 + (A - R0) * share


def points_to_fit(C, R, R0, law, first, last):
    before = [r for c, r in zip(C, R) if c == 0]
    count = 0
    if R0 is None and before:
        R0, where, count = float(np.mean(before)), "step 0", len(before)
    elif R0 is None or R0 == "fit":
        R0, where = 0.0, "fitted"
        if law == "power":
            where = "unused"
    else:
        where = "given"
    chosen = []
    for i, c in enumerate(C):
        inside = first <= c <= last
        if c == 0:
            if where == "fitted":
                inside = True
            elif law != "logistic":
                inside = False
        if inside:
            chosen.append(i)
    return C[chosen], R[chosen], R0, where, count


class Search:
    def at(self, x, R, R0):
        found = []
        for angle, (low, high) in zip(x, self.box):
            found.append(low + (high - low) * (np.sin(angle) + 1) / 2)
        C_mid, B = np.exp(found[0]), np.exp(found[1])
        if len(found) == 3:
            R0 = found[2]
        R0 = np.asarray(R0, float)
        top, bottom, residual = 0.0, 1e-30, []
        for c, r in zip(self.C, R):
            g = law_at(self.law, c, 1.0, B, C_mid, 0.0)
            top = top + g * (r - R0)
            bottom = bottom + g * g
        A = np.clip(R0 + np.maximum(top / bottom, 0), self.A_range[0], self.A_range[1])
        for c, r in zip(self.C, R):
            residual.append(r - law_at(self.law, c, A, B, C_mid, R0))
        return (A, B, C_mid, R0), np.stack(residual, -1)

    def starts(self, R, R0):
        best = []
        thirds = [()] if len(self.box) == 2 else [(s,) for s in np.linspace(-0.9, 0.9, 5)]
        for s in np.linspace(-0.98, 0.98, 60):
            lowest = None
            for third in thirds:
                x = np.array([np.full(40, s), np.linspace(-0.98, 0.98, 40),
                              *(np.full(40, t) for t in third)])
                x = np.arcsin(x)
                sse = (self.at(x, R, R0)[1] ** 2).sum(1)
                i = int(np.argmin(sse))
                if lowest is None or sse[i] < lowest[0]:
                    lowest = (sse[i], list(x[:, i]))
            best.append(lowest)
        best.sort(key=lambda pair: pair[0])
        return [np.array(x) for _, x in best[:4]]


def compare_laws(search, theta, rival, its_theta, R):
    def aic(curve, p):
        total = 0.0
        for r, c in zip(R, curve):
            total += (r - c) ** 2
        return len(R) * np.log(total / len(R) + 1e-12) + 2 * p
    mine = aic(law_at(search.law, search.C, *theta), search.parameters)
    its = aic(law_at(rival.law, rival.C, *its_theta), rival.parameters)
    flat = sum(R) / len(R)
    result = {}
    result[rival.law] = {"A": float(its_theta[0]), "delta_aic": float(its - mine)}
    result["constant"] = {"A": float(flat), "delta_aic": float(aic([flat] * len(R), 1) - mine)}
    return result


def replicates(search, theta, angles, R, bootstrap, seed, step_0):
    rng = np.random.default_rng(seed)
    curve = law_at(search.law, search.C, *theta)
    noise = widened(R - curve, search.parameters)
    start = np.clip(np.arcsin(np.sin(angles)), -1.4, 1.4)
    draws = []
    if len(R) > search.parameters:
        for _ in range(bootstrap):
            made = np.array([c + noise[rng.integers(len(noise))] for c in curve])
            R0 = theta[3]
            if step_0 > 0:
                R0 += np.mean([noise[rng.integers(len(noise))] for _ in range(step_0)])
                R0 = min(max(R0, 0.0), 1.0)
            draws.append(search.solve(made, R0, [start])[0])
    return Replicates(search.law, np.array(draws).reshape(len(draws), 4), noise)


class Replicates:
    def paths(self, C, noise=False):
        rng = np.random.default_rng(0)
        paths = np.zeros((len(self.draws), len(C)))
        for s, (A, B, C_mid, R0) in enumerate(self.draws):
            for i, c in enumerate(C):
                paths[s, i] = law_at(self.law, c, A, B, C_mid, R0)
                if noise:
                    paths[s, i] += self.noise[rng.integers(len(self.noise))]
        return paths


# file: course/late_push.py
def which_pushed_late(logs):
    best, place = -1.0, 0
    for i, log in enumerate(logs):
        shares = []
        for line in log:
            zero = line.get("mismatch/mean_abs_dlogp/lag_0", 0)
            one = line.get("mismatch/mean_abs_dlogp/lag_1", 0)
            if zero and one:
                shares.append(zero / one)
        shares.sort()
        if shares and shares[len(shares) // 2] > best:
            best, place = shares[len(shares) // 2], i
    return place


# file: course/bets.py
def forecast(C, R, later):
    best = None
    for A in np.linspace(0.5, 0.99, 50):
        for B in (0.8, 1.0, 1.3, 1.6, 2.0, 2.5, 3.0):
            for C_mid in C[-1] * np.geomspace(0.2, 8, 30):
                curve = R[0] + (A - R[0]) / (1 + (C_mid / C[1:]) ** B)
                cost = (((curve - R[1:]) / 0.015) ** 2).sum() + (np.log(B / 1.6) / 0.5) ** 2
                cost += (np.log(A / (1 - A)) - np.log(0.85 / 0.15)) ** 2
                if best is None or cost < best[0]:
                    best = (cost, (R[0] + (A - R[0]) / (1 + (C_mid / later) ** B)).mean())
    return best[1]


# file: course/pass_at_k.py
def pass_at_k(right, samples, k):
    result = []
    for c in right:
        miss = 1.0
        for i in range(k):
            miss *= max(samples - int(c) - i, 0) / (samples - i)
        result.append(1 - miss)
    return np.array(result)


def gain(before, after, samples, k, resamples, seed):
    rng = np.random.default_rng(seed)
    one, two = pass_at_k(before, samples, k), pass_at_k(after, samples, k)
    d = [b - a for a, b in zip(one, two)]
    means = []
    for _ in range(resamples):
        means.append(np.take(d, rng.integers(len(d), size=len(d))).mean())
    means.sort()
    return sum(d) / len(d), means[int(0.05 * resamples)], means[int(0.95 * resamples)]
