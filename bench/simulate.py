"""How many generators to how many trainers? A discrete-event model of an asynchronous run.

    python bench/simulate.py --calibrate runs/a                     predicted beside measured
    python bench/simulate.py --calibrate runs/a --against runs/b    another run, at the rates of a
    python bench/simulate.py --calibrate runs/a --devices 8 64 1024 --prompts 512
                                                                    the best split of so many
    python bench/simulate.py --fleet 8 64 1024 10000                effective time, with failures

  1. Work        what a run does and what each part of it costs, measured
  2. Generator   a batch of slots; one decode step gives every sequence in it a token
  3. Model       generators, trainers and the real pacer, on simpy's clock
  4. Calibrate   rates and lengths of a run's metrics.jsonl
  5. Split       the best g : t, beside the closed form
  6. Failures    what of the time is effective, and how often to save

Events are samples that end, steps and pushes, not tokens: between two events a generator's batch is
constant, and so is its speed. So the cost grows with the samples of a step, not with their tokens
nor with the number of devices. What is left out: prefill is part of the decode rate, the pass rate
does not change, prompts do not retire, t trainers divide a step's tokens evenly, and all devices of
a kind are alike.

Axes: g generators, t trainers, P prompts a step, G samples a prompt, v the trainer's version.
"""

import argparse
import dataclasses
import heapq
import json
import sys
import tomllib
from bisect import bisect_right
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

try:
    import simpy
except ImportError:
    sys.exit(f"{Path(__file__).name}: needs simpy: .venv/bin/pip install -e .[test]")

sys.path.insert(0, str(Path(__file__).parent.parent))

from artifacts.settings import make_config
from config import Config, ConfigError                         # noqa: E402
from scalerl import make_pacer                                                  # noqa: E402

PHRASE_TOKENS = 20          # at most, of the interruption phrase: a sample may be so much longer

# ---------------------------------------------------------------------------------------------
# 1. Work


@dataclass(frozen=True)
class Work:
    """A run, as this model sees it. Every field is an option that goes before what was measured."""
    prompts: int                # P, groups a step
    samples: int                # G, samples a group
    off_policy: str             # as in Config
    slots: int                  # sequences that one generator decodes at once
    ahead: int                  # samples that may be queued beyond the slots
    shared: bool                # one process: generators stand still while the trainer trains
    mean_length: float          # tokens a sample
    std_length: float           # over all samples
    longest_of_group: float     # mean over groups; says how much of that is within a group
    max_length: int             # no sample is longer
    kept: float                 # share of groups that are trained on: the others agree in reward
    decode_s: float             # of a decode step, however empty its batch
    decode_sequence_s: float    # and for each sequence in it
    train_s: float              # of a train step, whatever its size: marks, optimizer
    train_token_s: float        # and for each token of a group that is trained on, on one trainer
    train_noise: float          # std of a train step's seconds, as a share of them
    push_s: float               # of a push, for which generators stand still

    def decode_time(self, batch):
        return self.decode_s + self.decode_sequence_s * batch

    def rates(self):
        """(generated, trained on) tokens a second of one device that is never in want of work."""
        tokens = self.prompts * self.samples * self.mean_length
        return (self.slots / self.decode_time(self.slots),
                tokens / (self.train_s + self.train_token_s * self.kept * tokens + self.push_s))

    def lengths(self, rng, groups):
        """(groups, G) whole tokens: log-normal, with a part that is a group's own and one that is
        each sample's, so that the mean, the std and the longest of a group come out as given."""
        spread = np.sqrt(np.log1p((self.std_length / self.mean_length) ** 2))
        z = np.random.default_rng(0).standard_normal((2000, self.samples))
        low, high = 0.0, spread
        for _ in range(30):                 # the longest of a group grows with the inner spread
            inner = (low + high) / 2
            ratio = np.exp(inner * z.max(1) - inner ** 2 / 2).mean()
            low, high = (inner, high) if ratio * self.mean_length < self.longest_of_group else (
                low, inner)
        outer = np.sqrt(spread ** 2 - inner ** 2)
        logs = (outer * rng.standard_normal((groups, 1))
                + inner * rng.standard_normal((groups, self.samples)))
        drawn = np.exp(logs)
        for _ in range(5):                  # the cut at max_length lowers the mean: undo that
            drawn *= self.mean_length / np.clip(drawn, 1, self.max_length).mean()
        return np.clip(np.rint(drawn), 1, self.max_length)


# ---------------------------------------------------------------------------------------------
# 2. Generator


class Generator:
    """Decodes up to `slots` sequences at once. Its clock counts decode steps, so a sample of n
    tokens that starts at clock c ends at c + n, however often the batch changes meanwhile."""

    def __init__(self, index, env, work, ended):
        self.index, self.env, self.work, self.ended = index, env, work, ended
        self.clock, self.since, self.moving = 0.0, env.now, True
        self.running = []                   # heap of (end, order, start, group)
        self.waiting = deque()              # (length, group)
        self.order = self.plan = 0
        self.began = [0.0]                  # the clock at which version 0, 1, ... arrived
        self.tokens = self.busy_s = self.slots_s = 0.0

    @property
    def in_flight(self):
        return len(self.running) + len(self.waiting)

    def submit(self, group, lengths):
        self.catch_up()
        self.waiting.extend((length, group) for length in lengths)
        self.start()
        self.replan()

    def start(self):
        while self.waiting and len(self.running) < self.work.slots:
            length, group = self.waiting.popleft()
            self.order += 1
            heapq.heappush(self.running, (self.clock + length, self.order, self.clock, group))

    def catch_up(self):
        """Bring the clock to now."""
        seconds, self.since = self.env.now - self.since, self.env.now
        if self.moving and self.running:
            batch = len(self.running)
            steps = seconds / self.work.decode_time(batch)
            self.clock += steps
            self.tokens += batch * steps
            self.busy_s += seconds
            self.slots_s += batch * seconds

    def replan(self):
        """Wake up when the next sample ends; what was planned before is void."""
        self.plan += 1
        if self.moving and self.running:
            steps = max(0.0, self.running[0][0] - self.clock)
            event = self.env.timeout(steps * self.work.decode_time(len(self.running)), self.plan)
            event.callbacks.append(self.wake)

    def wake(self, event):
        if event.value != self.plan:
            return
        self.catch_up()
        self.clock, done = max(self.clock, self.running[0][0]), []      # rounding
        while self.running and self.running[0][0] <= self.clock + 1e-9:
            done.append(heapq.heappop(self.running))
        self.start()
        self.replan()
        for end, _, start, group in done:
            self.ended(self, group, start, end)

    def stand(self, still):
        """Stop or go on; running sequences are kept."""
        self.catch_up()
        self.moving = not still
        self.replan()


# ---------------------------------------------------------------------------------------------
# 3. Model


class Model:
    """g generators, t trainers, and the pacer between them. Raises ConfigError for a Work that
    could never take a step."""

    def __init__(self, work, generators, trainers, seed=0):
        self.work, self.t = work, trainers
        config = Config(off_policy=work.off_policy, prompts_per_step=work.prompts)
        if work.slots + work.ahead < work.samples:
            raise ConfigError(f"slots = {work.slots}: no room for a group of {work.samples}")
        self.env, self.pacer = simpy.Environment(), make_pacer(config)
        self.generators = [Generator(i, self.env, work, self.ended) for i in range(generators)]
        self.emptiest = [(0, i) for i in range(generators)]     # heap; old entries are skipped
        self.room = generators * work.slots + work.ahead
        self.rng, self.drawn = np.random.default_rng(seed), []
        self.version = self.in_flight = self.finished = 0
        self.waits = None                   # the event that the trainer waits for
        self.lags = Counter()               # tokens by lag

    def admit(self):
        G = self.work.samples
        while self.pacer.may_admit() and self.in_flight + G <= self.room:
            if not self.drawn:
                self.drawn = self.work.lengths(self.rng, 1000).tolist()
            while True:
                load, i = heapq.heappop(self.emptiest)
                if load == self.generators[i].in_flight:
                    break
            self.in_flight += G
            self.generators[i].submit(self.pacer.admit("", self.version, G), self.drawn.pop())
            heapq.heappush(self.emptiest, (self.generators[i].in_flight, i))

    def ended(self, generator, group, start, end):
        """One sample is done."""
        group.rollouts.append((generator, start, end))
        self.in_flight -= 1
        heapq.heappush(self.emptiest, (generator.in_flight, generator.index))
        self.finished += group.finished
        if self.waits:                      # the trainer's loop admits only while it generates
            self.admit()
            if group.finished and not self.waits.triggered:
                self.waits.succeed()

    def lag(self, groups):
        """Count the tokens of a step by how many versions ago they were made."""
        for group in groups:
            for generator, start, end in group.rollouts:
                began, made = generator.began, bisect_right(generator.began, start) - 1
                while start < end:
                    until = min(end, began[made + 1]) if made + 1 < len(began) else end
                    self.lags[self.version - made] += until - start
                    start, made = until, made + 1

    def train(self, steps, warmup):
        """The trainer's loop, as in scalerl.Run; a simpy process. Fills self.log, a row a step."""
        work, env, self.log = self.work, self.env, []
        for step in range(steps):
            if step == warmup:
                self.lags.clear()
            start, patience = env.now, 0
            while True:
                self.admit()
                # The pacer looks at all groups: ask it only when there may be something to take.
                groups = self.pacer.take(self.version) if self.finished >= patience and (
                    self.finished >= work.prompts) else None
                if groups:
                    break
                if self.finished >= work.prompts:
                    patience = self.finished + max(1, work.prompts // 64)
                if not self.in_flight:
                    groups = self.pacer.take(self.version)
                    break
                self.waits = env.event()
                yield self.waits
                self.waits = None
            waited = env.now - start
            self.finished -= len(groups)
            self.lag(groups)
            tokens = sum(end - start for group in groups if self.rng.random() < work.kept
                         for _, start, end in group.rollouts)
            if work.shared:
                self.still(True)
            seconds = work.train_s + work.train_token_s * tokens / self.t
            if work.train_noise:            # gamma: its mean is 1
                seconds *= self.rng.gamma(work.train_noise ** -2, work.train_noise ** 2)
            yield env.timeout(seconds)
            self.still(True)
            yield env.timeout(work.push_s)
            self.version += 1
            for generator in self.generators:
                generator.began.append(generator.clock)
            self.still(False)
            self.log.append((env.now - start, waited, *(
                sum(getattr(g, name) for g in self.generators)
                for name in ("busy_s", "slots_s", "tokens", "clock"))))

    def still(self, still):
        for generator in self.generators:
            generator.stand(still)


@dataclass(frozen=True)
class Prediction:
    """Of a step, once the run is past its start."""
    step_s: float
    tokens_s: float             # generated
    trainer_idle: float         # share of time that the trainers wait for samples
    generator_idle: float       # share of time that a generator has no sequence, or stands still
    busy_share: float           # of all slots and all time
    batch: float                # sequences in a decode step
    lag_mean: float             # optimizer steps, over tokens
    lag_max: int
    lag_quantiles: tuple        # 50, 90 and 99% of tokens are at most so old


def simulate(work, generators=1, trainers=1, steps=40, seed=0):
    """A Prediction from `steps` steps after a start of k + 4 that is left out."""
    model = Model(work, generators, trainers, seed)
    warmup = model.pacer.k + 4
    model.env.run(model.env.process(model.train(warmup + steps, warmup)))
    step_s, waited, busy, slots, tokens, clock = np.array(model.log).T
    total = step_s[warmup:].sum()
    since = lambda column: column[-1] - column[warmup - 1]                      # noqa: E731
    lags = sorted(model.lags)
    share = np.cumsum([model.lags[lag] for lag in lags]) / sum(model.lags.values())
    return Prediction(
        *map(float, (total / steps, since(tokens) / total, waited[warmup:].sum() / total,
                     1 - since(busy) / (generators * total),
                     since(slots) / (generators * work.slots * total),
                     since(tokens) / since(clock))),
        sum(lag * n for lag, n in model.lags.items()) / sum(model.lags.values()), lags[-1],
        tuple(lags[int(np.searchsorted(share, q - 1e-9))] for q in (0.5, 0.9, 0.99)))


# ---------------------------------------------------------------------------------------------
# 4. Calibrate


def read_run(folder):
    """(config, rows) of a run folder: its steps past the start, which fills empty slots.
    Raises ConfigError: no run, or too short a one."""
    folder = Path(folder)
    try:
        settings = tomllib.loads((folder / "config.toml").read_text())
        # Logs of earlier versions have settings that are gone: none changes what is read here.
        config = make_config({k: v for k, v in settings.items() if k in vars(Config())})
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    except (OSError, ConfigError, ValueError) as error:
        raise ConfigError(f"{folder} is no run that can be read: {error}") from None
    rows = [row for row in rows if row["step"] > config.schedule()[1] + 4]
    if len(rows) < 10 or "completions/longest_of_group" not in rows[0]:
        raise ConfigError(f"{folder}: {len(rows)} steps past its start, and 10 are needed, with "
                          "completions/longest_of_group in the log")
    return config, rows


def table(rows, *names):
    """One array a column."""
    return [np.array([row[name] for row in rows], float) for name in names]


def on_servers(rows):
    return "off_policy/busy_share" in rows[0]


def decoding(config, rows):
    """(decode steps, sequences in each, seconds they took), arrays: of each step in process, where
    the log has all three, of each ten steps on servers. A server's decode steps are not seen from
    outside, but how many of its slots are busy is, and that is its batch; its tokens are counted
    when they arrive, which may be a step later.
    """
    if not on_servers(rows):
        return table(rows, "decode/steps", "decode/batch", "time/generate_s")
    busy, share, step_s, made, forced = table(
        rows, "off_policy/busy_share", "off_policy/decoding_share", "time/step_s",
        "tokens/generated", "tokens/forced")
    ten = lambda column: column[: len(rows) // 10 * 10].reshape(-1, 10).sum(1)  # noqa: E731
    seconds = ten(share * step_s)
    batch = ten(busy * step_s) * config.slots / seconds
    return ten(made + forced) / max(1, config.servers) / batch, batch, seconds


def kept_tokens(config, rows):
    """Tokens of the groups that each step trained on, forced ones too: those cost as much."""
    same, length = table(rows, "frac_reward_zero_std", "completions/mean_length")
    return (1 - same * config.zero_variance_filter) * length * (
        config.prompts_per_step * config.samples_per_prompt)


def calibrate(folders):
    """The rates of Work, as a dict, from the steps of all these runs.

    What two runs with batches of different sizes tell about a decode step, one alone can hardly.
    """
    runs = [read_run(folder) for folder in folders]
    rows = [row for _, part in runs for row in part]
    steps, batch, seconds = map(np.concatenate, zip(*(decoding(*run) for run in runs)))
    train_s, verify_s, sync_s = table(rows, "time/train_s", "time/verify_s", "time/sync_s")
    tokens = np.concatenate([kept_tokens(*run) for run in runs])
    decode, train = fit(seconds, steps, steps * batch), fit(train_s, np.ones(len(rows)), tokens)
    noise = np.std(train_s - train[0] - train[1] * tokens) / train_s.mean()
    return {"decode_s": decode[0], "decode_sequence_s": decode[1],
            "train_s": train[0] + verify_s.mean(), "train_token_s": train[1],
            "train_noise": noise, "push_s": sync_s.mean()}


def fit(seconds, *columns):
    """What each unit of the columns costs: least squares, none below 0, the total as measured."""
    costs, _ = nnls(np.stack(columns, 1), seconds)
    return costs * seconds.sum() / (np.stack(columns, 1) @ costs).sum()


def work_of(folder, rates):
    """The Work of a run: its own settings, lengths and filtered share, at these rates."""
    config, rows = read_run(folder)
    mean, std, longest, same = table(rows, "completions/mean_length", "completions/std_length",
                                     "completions/longest_of_group", "frac_reward_zero_std")
    ahead = config.prompts_per_step * config.samples_per_prompt if on_servers(rows) else 0
    return Work(config.prompts_per_step, config.samples_per_prompt, config.off_policy,
                config.slots, ahead, not on_servers(rows), mean.mean(),
                float(np.sqrt((std ** 2).mean() + mean.var())), longest.mean(),
                config.think_max + config.answer_tokens + PHRASE_TOKENS,
                1 - same.mean() * config.zero_variance_filter, **rates)


def measured(folder):
    """What the run's log says of the numbers that `simulate` predicts."""
    config, rows = read_run(folder)
    steps, batch, _ = decoding(config, rows)
    step_s, wait_s, lag, most = table(rows, "time/step_s", "time/generate_s", "lag/mean", "lag/max")
    found = {"step_s": step_s.mean(), "trainer_idle": wait_s.sum() / step_s.sum(),
             "batch": (steps * batch).sum() / steps.sum(), "lag_mean": lag.mean(),
             "lag_max": most.max()}
    if on_servers(rows):
        busy, share = table(rows, "off_policy/busy_share", "off_policy/decoding_share")
        found |= {"generator_idle": 1 - (share * step_s).sum() / step_s.sum(),
                  "busy_share": (busy * step_s).sum() / step_s.sum()}
    return found


# ---------------------------------------------------------------------------------------------
# 5. Split


def split(devices, generate_rate, train_rate):
    """(g, t) of the closed form. The rates are tokens a second of one device.

    Both sides work at the same time, so the slower one sets the pace of the run. At the ideal, g/t
    = train_rate / generate_rate, neither waits.

    >>> split(8, generate_rate=1000, train_rate=3000)
    (6, 2)
    """
    trainers = max(range(1, devices), key=lambda t: min((devices - t) * generate_rate,
                                                        t * train_rate))
    return devices - trainers, trainers


def best_split(work, devices):
    """((g, t), {g: Prediction}): the split with the shortest step, and all that were tried: every
    one of few devices; of many, the launcher's and those of a golden-section search, which fits,
    since the step is long at both ends."""
    seen = {}

    def step_s(g):
        if g not in seen:
            seen[g] = simulate(work, g, devices - g, 20 if devices <= 64 else 8)
        return seen[g].step_s

    low, high = 1, devices - 1
    if devices < 2:
        raise ConfigError(f"devices = {devices}: no room for a server and a trainer")
    step_s(split(devices, *work.rates())[0])
    while high - low > max(8, devices // 32):
        a, b = round(high - 0.618 * (high - low)), round(low + 0.618 * (high - low))
        low, high = (low, b) if step_s(a) <= step_s(b) else (a, high)
    for g in range(low, high + 1) if devices <= 256 else ():
        step_s(g)
    g = min(seen, key=step_s)
    return (g, devices - g), seen


# ---------------------------------------------------------------------------------------------
# 6. Failures


@dataclass(frozen=True)
class Faults:
    """Failures that come at any moment, independent of each other (a Poisson process)."""
    device_hours: float = 50_676.0  # between two of one device: Llama 3's 419 unforeseen ends in
    #                                 54 days on 16,384 GPUs (2407.21783, sec. 3.3.4)
    checkpoint_s: float = 60.0      # the trainer stands still
    restart_s: float = 300.0        # from a trainer's failure to its next step; a server's, too
    save_s: float = 900.0           # between two checkpoints: `save_minutes`


def expected(faults, devices):
    """The effective share of the time if a failure of any of `devices` ends the run: exact for
    exponential times between failures (Daly 2006, eq. 15, whose restart can fail as well)."""
    M, R, d, tau = (3600 * faults.device_hours / devices, faults.restart_s, faults.checkpoint_s,
                    faults.save_s)
    return float(tau / (M * np.exp(R / M) * np.expm1((tau + d) / M)))


def stormed(faults, devices, seed=0, segments=20_000):
    """The same by drawing failures: the oracle of `expected`, and it of this."""
    rng, M, now = np.random.default_rng(seed), 3600 * faults.device_hours / devices, 0.0
    for _ in range(segments):               # a segment: work up to the next whole checkpoint
        need = faults.save_s + faults.checkpoint_s
        while (life := rng.exponential(M)) < need:
            now += life                     # all of it is lost, and then it restarts
            need = faults.save_s + faults.checkpoint_s + faults.restart_s
        now += need
    return segments * faults.save_s / now


def best_interval(faults, devices):
    """(Young's, Daly's) seconds between two checkpoints: sqrt(2 d M), and with its next terms."""
    M, d = 3600 * faults.device_hours / devices, faults.checkpoint_s
    young = (2 * d * M) ** 0.5
    return young, (young * (1 + (d / (2 * M)) ** 0.5 / 3 + d / (18 * M)) - d if d < 2 * M else M)


TRAINER_SHARE = 1 / 4           # of a fleet's devices


def fleet(devices, faults):
    """Print the effective time of runs on so many devices: if any failure ends the run, and as it
    is here, where only a trainer's does; a server's, of one device, stops that one."""
    alive = 1 - faults.restart_s / (3600 * faults.device_hours)
    print(f"a device fails each {faults.device_hours:,.0f} h, a checkpoint takes "
          f"{faults.checkpoint_s:g} s, a restart {faults.restart_s:g} s; {TRAINER_SHARE:.0%} of "
          "the devices train")
    print(f"{'devices':>8} {'failure each':>13} {'any ends it':>12} {'servers survive':>16} "
          f"{'Young s':>8} {'Daly s':>8} {'at Daly':>8}")
    for n in devices:
        trainers = max(1, round(n * TRAINER_SHARE))
        young, daly = best_interval(faults, trainers)
        best = dataclasses.replace(faults, save_s=daly)
        print(f"{n:8} {faults.device_hours / n:11.1f} h {expected(faults, n):12.3f} "
              f"{alive * expected(faults, trainers):16.3f} {young:8.0f} {daly:8.0f} "
              f"{alive * expected(best, trainers):8.3f}")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calibrate", nargs="+", metavar="RUN", help="run folders: their rates")
    parser.add_argument("--fleet", nargs="+", type=int, metavar="DEVICES", help="with failures")
    for field in dataclasses.fields(Faults):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=float, default=field.default)
    parser.add_argument("--against", nargs="+", metavar="RUN", help="runs to predict; the same")
    parser.add_argument("--devices", nargs="+", type=int, default=[], help="find the best split")
    for field in dataclasses.fields(Work):
        parser.add_argument(f"--{field.name.replace('_', '-')}", help="not the measured one",
                            metavar=field.type.__name__.upper(),
                            type=json.loads if field.type is bool else field.type)
    args = parser.parse_args(argv)
    if not (args.fleet or args.calibrate):
        parser.error("--calibrate or --fleet: of which runs?")
    if args.fleet:
        fleet(args.fleet, Faults(*(getattr(args, f.name) for f in dataclasses.fields(Faults))))
    try:
        if args.calibrate:
            report(args)
    except ConfigError as error:
        print(f"simulate.py: {error}", file=sys.stderr)
        return 2
    return 0


def report(args):
    """Print what was asked for. Raises ConfigError: a run that cannot be read."""
    rates = calibrate(args.calibrate)
    print("  ".join(f"{name} {value:.3g}" for name, value in rates.items()))
    given = {f.name: getattr(args, f.name) for f in dataclasses.fields(Work)
             if getattr(args, f.name) is not None}
    if not args.devices:
        print(f"{'run':24} {'':>14} {'predicted':>10} {'measured':>10} {'error':>8}")
        for folder in args.against or args.calibrate:
            found = simulate(dataclasses.replace(work_of(folder, rates), **given))
            for name, value in measured(folder).items():
                guess = getattr(found, name)
                error = f"{guess / value - 1:+8.1%}" if value else ""
                print(f"{Path(folder).name:24} {name:>14} {guess:10.3f} {value:10.3f} {error}")
    for devices in args.devices:
        work = dataclasses.replace(work_of(args.calibrate[0], rates), shared=False, **given)
        rate_g, rate_t = work.rates()
        (g, t), seen = best_split(work, devices)
        rule = split(devices, rate_g, rate_t)
        more = seen[rule[0]].step_s / seen[g].step_s - 1
        print(f"\n{devices} devices, {work.prompts} x {work.samples} samples a step, "
              f"{work.off_policy}: best {g} : {t}. The closed form is {rate_t / rate_g:.2f} : 1, "
              f"in whole devices {rule[0]} : {rule[1]}, whose step takes {more:+.1%}")
        print(f"{'g : t':>12} {'step s':>9} {'tokens/s':>10} {'g idle':>7} {'t idle':>7} "
              f"{'batch':>7} {'lag mean':>9} {'max':>4} {'50 90 99%':>10}")
        for one, p in sorted(seen.items()):
            print(f"{one:5} : {devices - one:<4} {p.step_s:9.3f} {p.tokens_s:10,.0f} "
                  f"{p.generator_idle:7.2f} {p.trainer_idle:7.2f} {p.batch:7.1f} {p.lag_mean:9.2f} "
                  f"{p.lag_max:4} {' '.join(map(str, p.lag_quantiles)):>10}")


if __name__ == "__main__":
    sys.exit(main())
