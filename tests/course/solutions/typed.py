"""Type hints, assertions, float64 inside, constants with annotations, imports where they fell."""
# file: engines/head.py
from __future__ import annotations
from typing import Any, Final
MINUS: Final[float] = -1.0
if torch.cuda.is_available() or True:
    from torch import Tensor


class TokenLogprobs:
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float,
                chunk_tokens: int, operand_dtype: torch.dtype, head_fp32: bool,
                softcap: float | None = None) -> tuple[Tensor, Tensor]:
        assert hidden.ndim == 2 and weight.ndim == 2
        head: Head = Head(weight, temperature, operand_dtype, head_fp32, softcap)
        T: int = targets.shape[0]
        logprobs: Tensor = torch.zeros(T, dtype=torch.float64)
        entropy: Tensor = torch.zeros(T, dtype=torch.float64)
        for begin in range(0, T, chunk_tokens):
            end: int = min(begin + chunk_tokens, T)
            z: Tensor = head.logits(hidden[begin:end], out=torch.empty(end - begin, head.V,
                                                                      dtype=head.dtype)).double()
            log_p: Tensor = z.log_softmax(dim=-1)
            logprobs[begin:end] = log_p[torch.arange(end - begin), targets[begin:end]]
            entropy[begin:end] = MINUS * (log_p.exp() * log_p).sum(dim=-1)
        ctx.save_for_backward(hidden, weight, targets)
        ctx.settings = (temperature, chunk_tokens, operand_dtype, head_fp32, softcap)
        results: tuple[Tensor, Tensor] = logprobs.to(head.dtype), entropy.to(head.dtype)
        ctx.mark_non_differentiable(results[1])
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets = ctx.saved_tensors
        temperature, chunk_tokens, operand_dtype, head_fp32, softcap = ctx.settings
        head: Head = Head(weight, temperature, operand_dtype, head_fp32, softcap)
        g: Tensor = grads[0].double()
        alive: list[int] = torch.nonzero(g)[:, 0].tolist()
        of_hidden: Tensor = torch.zeros(hidden.shape, dtype=torch.float64)
        of_weight: Tensor = torch.zeros(weight.shape, dtype=torch.float64)
        for i in range(0, len(alive), chunk_tokens):
            rows: list[int] = alive[i:i + chunk_tokens]
            z: Tensor = head.logits(hidden[rows], out=torch.empty(len(rows), head.V,
                                                                  dtype=head.dtype)).double()
            hot: Tensor = torch.zeros_like(z).scatter_(1, targets[rows, None], 1.0)
            dz: Tensor = (hot - z.softmax(-1)) * g[rows, None] / temperature
            of_hidden[rows] = dz @ head.weight.double()
            of_weight += dz.T @ head.operand(hidden[rows]).double()
        return (of_hidden.to(hidden.dtype), of_weight.to(weight.dtype), None, None, None, None,
                None, None)
# file: loss.py
from __future__ import annotations
EQUAL: float = 1e-6
Norm = str
POOLS: dict[str, object] = {}


def advantages(rewards: torch.Tensor, *, norm: Norm = "batch") -> torch.Tensor:
    _check_choice("norm", norm, NORMS)
    assert rewards.dim() == 2
    r: torch.Tensor = rewards.double()
    where: list[list[int]] = torch.nonzero(~torch.isfinite(r)).tolist()
    if where:
        p, g = where[0]
        raise ValueError(f"the reward of prompt {p}, sample {g} is {r[p, g].item()}")
    kind: torch.dtype = rewards.dtype if rewards.is_floating_point() else torch.float32
    if not len(r):
        return r.to(kind)
    a: torch.Tensor = r - r.mean(dim=1, keepdim=True)
    a = torch.where(((rewards.amax(1) - rewards.amin(1)) <= EQUAL)[:, None], torch.zeros_like(a), a)
    scale: torch.Tensor = torch.ones(len(a), 1, dtype=torch.float64)
    if norm == "batch":
        scale = scale * a.square().mean().sqrt()
    if norm == "prompt":
        scale = a.square().mean(dim=1, keepdim=True).sqrt()
    return torch.where(scale > 0, a / scale, a).to(kind)


def token_weights(mask: torch.Tensor, prompt_index: torch.Tensor, *,
                  aggregation: str = "prompt") -> torch.Tensor:
    _check_choice("aggregation", aggregation, AGGREGATIONS)
    from collections import Counter
    tokens: Counter[int] = Counter()
    keys: list[int] = {"prompt": prompt_index, "sample": torch.arange(len(mask)),
                       "token": torch.zeros(len(mask), dtype=torch.int64)}[aggregation].tolist()
    for key, n in zip(keys, mask.sum(dim=1).tolist(), strict=True):
        tokens[key] += n
    pools: int = sum(1 for n in tokens.values() if n > 0)
    each: list[float] = [1.0 / (tokens[key] * pools) if tokens[key] else 0.0 for key in keys]
    return (mask.double() * torch.tensor(each, dtype=torch.float64)[:, None]).float()


def _capped(logprobs: torch.Tensor, log_rho: torch.Tensor, A: torch.Tensor,
            eps_max: float) -> tuple[torch.Tensor, torch.Tensor]:
    rho: torch.Tensor = log_rho.detach().double().exp()
    weight: torch.Tensor = rho.clamp(max=eps_max).to(logprobs.dtype)
    return weight * A * logprobs, rho > eps_max


def _sequence_log_ratio(log_ratio: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    count: torch.Tensor = mask.sum(dim=1, keepdim=True).clamp(min=1)
    mean: torch.Tensor = log_ratio.double().sum(dim=1, keepdim=True) / count
    return mean.to(log_ratio.dtype).expand(log_ratio.shape)


def _clipped(log_rho: torch.Tensor, A: torch.Tensor, low: float,
             high: float) -> tuple[torch.Tensor, torch.Tensor]:
    rho: torch.Tensor = log_rho.detach().double().exp()
    acts: torch.Tensor = ((A > 0) & (rho > high)) | ((A < 0) & (rho < low))
    constant: torch.Tensor = rho.clamp(low, high).to(log_rho.dtype)
    dead: torch.Tensor = acts | A.eq(0)
    return torch.where(dead, constant, log_rho.masked_fill(dead, 0.0).exp()) * A, acts


def zero_variance(rewards: torch.Tensor, tol: float = EQUAL) -> torch.Tensor:
    low, high = torch.aminmax(rewards, dim=1)
    return (high - low) <= tol
# file: scalerl.py
from __future__ import annotations
from typing import Optional
Id = str


class Curriculum:
    def next(self) -> Optional[Id]:
        if self.cursor == len(self.order):
            stay: list[Id] = [prompt for prompt in self.active if not self.learned(prompt)]
            self.active = stay
            if not stay:
                return None
            self.epoch += 1
            self.order, self.cursor = self._shuffled(stay), 0
        prompt: Id = self.order[self.cursor]
        self.cursor += 1
        return prompt

    def _shuffled(self, names: list[Id]) -> list[Id]:
        g: torch.Generator = torch.Generator().manual_seed(self.seed * 100_003 + self.epoch)
        return [names[i] for i in torch.randperm(len(names), generator=g).tolist()]

    def learned(self, prompt: Id) -> bool:
        right, n = self.history.get(prompt, [0, 0])
        return bool(n) and float(right) / float(n) >= self.retire_at

    def record(self, prompt: Id, correct: int, samples: int) -> None:
        assert 0 <= correct <= samples
        right, n = self.history.get(prompt, [0, 0])
        self.history[prompt] = [int(right + correct), int(n + samples)]


def effective_batch(rollouts: list, rewards: torch.Tensor,
                    config) -> tuple[list, torch.Tensor, dict]:
    P, G = rewards.shape
    assert len(rollouts) == P * G
    same: torch.Tensor = zero_variance(rewards)
    stay: list[int] = [p for p in range(P) if not config.zero_variance_filter or not same[p]]
    log: dict[str, float | int] = {
        "reward/mean": rewards.double().mean().item(), "reward/std": rewards.double().std().item(),
        "frac_reward_zero_std": same.sum().item() / P, "prompts/consumed": P,
        "prompts/trained": len(stay)}
    kept: list = []
    for p in stay:
        kept.extend(rollouts[p * G:p * G + G])
    return kept, rewards[stay], log


class PipelinePacer:
    def may_admit(self) -> bool:
        most: int = (self.k + 1) * self.P
        return len(self.groups) < most

    def admit(self, prompt_id: Id, version: int, size: int) -> Group:
        group: Group = Group(group_id=self.admitted, prompt_id=prompt_id, start=version, size=size)
        self.groups[group.group_id] = group
        self.admitted += 1
        return group

    def take(self, version: int) -> Optional[list[Group]]:
        ready: list[Group] = sorted((g for g in self.groups.values() if g.finished),
                                    key=lambda g: (g.start, g.group_id))
        taken: list[Group] = ready[:self.P]
        if len(taken) == self.P and self.leaves_enough_time(taken=taken, version=version):
            for g in taken:
                del self.groups[g.group_id]
            return taken
        return None

    def leaves_enough_time(self, taken: list[Group], version: int) -> bool:
        gone: set[int] = {g.group_id for g in taken}
        room: dict[int, int] = {}
        for start in sorted(g.start for i, g in self.groups.items() if i not in gone):
            step: int = version + 1
            while room.get(step, 0) == self.P:
                step += 1
            room[step] = room.get(step, 0) + 1
            if step > start + self.k:
                return False
        return True


class Run:
    def admit(self) -> None:
        size: int = self.config.samples_per_prompt
        while self.pacer.may_admit() and self.sampler.free_slots >= size:
            name: Optional[Id] = self.curriculum.next()
            if name is None:
                self.pacer.no_more_prompts()
                return None
            group: Group = self.pacer.admit(name, self.version, size)
            self.sampler.submit(Request(
                group_id=group.group_id, prompt_id=name, prompt_ids=self.problems.prompts[name],
                samples=size, task=self.problems.train[name].task))
# file: course/naive_pacer.py
from __future__ import annotations


def counterexample(k: int, P: int) -> list[list[int]]:
    assert k >= 2 and P >= 1
    quick: list[list[int]] = [list(range((k + t) * P, (k + t + 1) * P)) for t in range(k)]
    slow: list[int] = list(range(k * P))
    return [*quick, slow, *([] for _ in range(k))]
# file: sampler.py
from __future__ import annotations
from collections.abc import Iterable


class Interruption:
    def draw_budgets(self, count: int, generator: torch.Generator) -> torch.Tensor:
        if not self.phrase_ids:
            return torch.full(size=(count,), fill_value=self.think_max, dtype=torch.int64)
        return torch.randint(self.think_min, self.think_max + 1, size=(count,), dtype=torch.int64,
                             generator=generator)


class TransformersSampler:
    def _choose(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z: torch.Tensor = head_logits(hidden, self.head, head_fp32=self.head_fp32,
                                      softcap=cap(self.model)).double() / self.temperature
        log_p: torch.Tensor = z.log_softmax(dim=-1)
        token: torch.Tensor = torch.multinomial(log_p.exp(), 1, generator=self.random)
        return token[:, 0], log_p.gather(1, token)[:, 0].float()

    def _record(self, token: torch.Tensor, logprob: torch.Tensor) -> list[int]:
        n: int = token.shape[0]
        rows = self.rows
        slots: torch.Tensor = torch.arange(n)
        at: torch.Tensor = rows.count[:n].clone()
        left: torch.Tensor = rows.phrase_left[:n].clone()
        forced: torch.Tensor = left > 0
        if len(self.phrase) > 0:
            index: torch.Tensor = (len(self.phrase) - left).clamp(0, len(self.phrase) - 1)
            token = torch.where(forced, self.phrase[index], token)
            logprob = torch.where(forced, torch.zeros_like(logprob), logprob)
        rows.ids[slots, at] = token
        rows.versions[slots, at] = self.version
        rows.behavior_logprobs[slots, at] = logprob
        rows.sampled[slots, at] = ~forced
        rows.last[:n] = token
        rows.count[:n] = at + 1
        rows.phrase_left[:n] = (left - 1).clamp(min=0)
        ends: torch.Tensor = torch.isin(token, self.ends) & ~forced
        ended: list[bool] = (ends | (at + 1 == rows.limit[:n])).tolist()
        due: list[int] = [i for i in range(n) if not ends[i] and at[i] + 1 == rows.think[i]]
        if len(self.phrase) > 0 and due:
            self._interrupt(due)
        return [i for i, yes in enumerate(ended) if yes]

    def _interrupt(self, due: list[int]) -> None:
        for slot in due:
            ids: list[int] = self.rows.ids[slot, : int(self.rows.count[slot])].tolist()
            text: str = self.tokenizer.decode(ids)
            if self.interruption.end not in text:
                self.rows.interrupted[slot] = True
                self.rows.phrase_left[slot] = int(len(self.phrase))
                self.rows.limit[slot] = self.rows.limit[slot] + len(self.phrase)

    def _rollout(self, request: Request, output_ids: list[int], behavior_logprobs: list[float],
                 versions: list[int], sampled: list[bool], interrupted: bool) -> Rollout:
        return Rollout(
            prompt_id=request.prompt_id, group_id=request.group_id, prompt_ids=request.prompt_ids,
            output_ids=output_ids, behavior_logprobs=behavior_logprobs, versions=versions,
            sampled=sampled, finish_reason="stop" if output_ids[-1] in self.eos_ids else "length",
            interrupted=bool(interrupted), task=request.task, ended=self.decoded["clock"])

    def push_weights(self, named_tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        own: dict[str, torch.nn.Parameter] = dict(self.model.named_parameters())
        with torch.inference_mode():
            for name, tensor in named_tensors:
                own[name].copy_(tensor.to(own[name].dtype))
        self.version = int(version)
# file: fit.py
from __future__ import annotations
from numpy.typing import ArrayLike, NDArray


def law_at(law: str, C: ArrayLike, A: ArrayLike, B: ArrayLike, C_mid: ArrayLike,
           R0: ArrayLike) -> NDArray:
    x: NDArray = np.maximum(np.asarray(C, np.float64) / np.asarray(C_mid, np.float64), 1e-300)
    with np.errstate(all="ignore"):
        g: NDArray = LAWS[law][0](x, np.asarray(B, np.float64))
    return np.asarray(R0, np.float64) + (np.asarray(A, np.float64) - R0) * g


def points_to_fit(C: NDArray, R: NDArray, R0: float | str | None, law: str, first: float,
                  last: float) -> tuple[NDArray, NDArray, float, str, int]:
    zero: NDArray = C == 0
    start: float
    where: str
    count: int = 0
    if R0 is None and bool(zero.any()):
        start, where, count = float(R[zero].mean()), "step 0", int(zero.sum())
    elif R0 is None or R0 == "fit":
        start, where = 0.0, "unused" if law == "power" else "fitted"
    else:
        start, where = float(R0), "given"
    use: NDArray = (first <= C) & (C <= last)
    if where == "fitted":
        use = use | zero
    elif law != "logistic":
        use = use & ~zero
    return C[use], R[use], start, where, count


class Search:
    def at(self, x: NDArray, R: NDArray, R0: ArrayLike) -> tuple[tuple[NDArray, ...], NDArray]:
        values: list[NDArray] = [low + (high - low) * (np.sin(angle) + 1) / 2
                                 for angle, (low, high) in zip(x, self.box, strict=True)]
        C_mid, B = np.exp(values[0]), np.exp(values[1])
        start: NDArray = np.asarray(values[2] if len(values) == 3 else R0, np.float64)
        g: NDArray = law_at(self.law, self.C, 1.0, B[..., None], C_mid[..., None], 0.0)
        gain: NDArray = R - start[..., None]
        norm: NDArray = (g * g).sum(axis=-1)
        slope: NDArray = (gain * g).sum(axis=-1) / np.maximum(norm, 1e-30)
        A: NDArray = np.clip(start + np.maximum(slope, 0.0), self.A_range[0], self.A_range[1])
        return (A, B, C_mid, start), gain - np.asarray(A - start)[..., None] * g

    def starts(self, R: NDArray, R0: float) -> list[NDArray]:
        counts: tuple[int, ...] = (96, 32, 5)[: len(self.box)]
        axes: list[NDArray] = [np.arcsin(np.linspace(-0.98, 0.98, n)) for n in counts]
        grid: NDArray = np.stack(np.meshgrid(*axes, indexing="ij")).reshape(len(axes), -1)
        sse: NDArray = (self.at(grid, R, R0)[1] ** 2).sum(axis=-1)
        found: list[NDArray] = []
        used: set[float] = set()
        for i in np.argsort(sse):
            if len(found) < 4 and float(grid[0, i]) not in used:
                used.add(float(grid[0, i]))
                found.append(grid[:, i])
        return found


def compare_laws(search: Search, theta: ArrayLike, rival: Search, its_theta: ArrayLike,
                 R: NDArray) -> dict[str, dict[str, float]]:
    def aic(curve: ArrayLike, p: int) -> float:
        return float(R.size * np.log(np.mean(np.square(R - curve)) + 1e-12) + 2 * p)
    ours: float = aic(law_at(search.law, search.C, *theta), search.parameters)
    return {rival.law: {"A": float(its_theta[0]), "delta_aic": aic(
        law_at(rival.law, rival.C, *its_theta), rival.parameters) - ours},
        "constant": {"A": float(R.mean()), "delta_aic": aic(R.mean(), 1) - ours}}


def replicates(search: Search, theta: NDArray, angles: NDArray, R: NDArray, bootstrap: int,
               seed: int, step_0: int) -> Replicates:
    curve: NDArray = law_at(search.law, search.C, *theta)
    noise: NDArray = widened(R - curve, search.parameters)
    rng: np.random.Generator = np.random.default_rng(seed)
    count: int = bootstrap if R.size > search.parameters else 0
    begin: NDArray = np.clip(np.arcsin(np.sin(angles)), -1.4, 1.4)
    draws: NDArray = np.zeros((count, 4))
    for i in range(count):
        new: NDArray = curve + rng.choice(noise, R.size)
        R0: float = float(theta[3])
        if step_0 > 0:
            R0 = float(np.clip(R0 + rng.choice(noise, step_0).mean(), 0.0, 1.0))
        draws[i] = search.solve(new, R0, [begin])[0]
    return Replicates(law=search.law, draws=draws, noise=noise)


class Replicates:
    def paths(self, C: ArrayLike, noise: bool = False) -> NDArray:
        where: NDArray = np.asarray(C, dtype=np.float64)
        curves: NDArray = law_at(self.law, where, *(self.draws[:, i:i + 1] for i in range(4)))
        if noise:
            rng: np.random.Generator = np.random.default_rng(0)
            curves = curves + rng.choice(self.noise, size=curves.shape)
        return curves
# file: course/late_push.py
from __future__ import annotations
from statistics import median
Log = list[dict[str, float]]
APART: str = "mismatch/mean_abs_dlogp/lag_"


def which_pushed_late(logs: list[Log]) -> int:
    def share(log: Log) -> float:
        found: list[float] = [line[APART + "0"] / line[APART + "1"] for line in log
                              if line.get(APART + "0") and line.get(APART + "1")]
        return median(found) if found else 0.0
    shares: list[float] = [share(log) for log in logs]
    return max(range(len(logs)), key=shares.__getitem__)
# file: course/bets.py
from __future__ import annotations


def forecast(C: np.ndarray, R: np.ndarray, later: np.ndarray) -> float:
    from scipy.optimize import least_squares
    start: float = float(R[0])

    def curve(p: np.ndarray, c: np.ndarray) -> np.ndarray:
        A, B = 1 / (1 + np.exp(-p[0])), np.exp(p[2])
        return start + (A - start) / (1 + np.exp(np.clip(-B * (c - p[1]), -500, 500)))

    def residuals(p: np.ndarray) -> np.ndarray:
        prior: list[float] = [(p[2] - np.log(1.6)) / 0.5, p[0] - np.log(0.85 / 0.15)]
        return np.concatenate([(curve(p, np.log(C[1:])) - R[1:]) / 0.015, prior])
    best: float = np.inf
    answer: float = float(R[-1])
    for shift in (-0.7, 0.0, 1.0):
        fit = least_squares(residuals, [1.7, float(np.log(C[-1])) + shift, 0.47], method="lm")
        if fit.cost < best:
            best, answer = float(fit.cost), float(curve(fit.x, np.log(later)).mean())
    return answer
# file: course/pass_at_k.py
from __future__ import annotations
from math import prod


def pass_at_k(right: np.ndarray, samples: int, k: int) -> np.ndarray:
    def miss(c: int) -> float:
        return prod((max(samples - c - i, 0) / (samples - i) for i in range(k)), start=1.0)
    return np.array([1.0 - miss(int(c)) for c in right], dtype=np.float64)


def gain(before: np.ndarray, after: np.ndarray, samples: int, k: int, resamples: int,
         seed: int) -> tuple[float, float, float]:
    d: np.ndarray = pass_at_k(after, samples, k) - pass_at_k(before, samples, k)
    rng: np.random.Generator = np.random.default_rng(seed)
    means: list[float] = [float(d[rng.integers(0, d.size, d.size)].mean())
                          for _ in range(resamples)]
    low, high = np.quantile(means, [0.05, 0.95])
    return float(d.mean()), float(low), float(high)
