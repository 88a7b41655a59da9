"""bench/simulate.py against closed forms, against the pacer's promise, and against real runs."""

import dataclasses
import random
import sys

import pytest
from conftest import ROOT

sys.path.append(str(ROOT / "bench"))      # last: bench/fit.py is not fit.py
import simulate                                                             # noqa: E402
from simulate import Model, Work, best_split                                # noqa: E402

# Lengths without spread, no filtering: everything can be worked out by hand.
EVEN = Work(prompts=6, samples=4, off_policy="pipeline-0", slots=24, ahead=0, shared=False,
            mean_length=20.0, std_length=1e-9, longest_of_group=20.0, max_length=50, kept=1.0,
            decode_s=0.01, decode_sequence_s=0.001, train_s=0.5, train_token_s=0.0007,
            train_noise=0.0, push_s=0.05)
STEP_TOKENS = 6 * 4 * 20
TRAIN_S = 0.5 + 0.0007 * STEP_TOKENS + 0.05                                 # with its push


def change(**changes):
    return dataclasses.replace(EVEN, **changes)


def test_on_policy_a_step_takes_the_sum_of_both():
    p = simulate.simulate(EVEN)
    generate = 20 * (0.01 + 0.001 * 24)
    assert p.step_s == pytest.approx(generate + TRAIN_S)
    assert (p.lag_mean, p.lag_max, p.batch) == (0, 0, pytest.approx(24))
    assert p.trainer_idle == pytest.approx(generate / p.step_s)
    assert p.generator_idle == pytest.approx(TRAIN_S / p.step_s)


def test_half_the_slots_take_two_waves():
    p = simulate.simulate(change(slots=12))
    assert p.step_s == pytest.approx(2 * 20 * (0.01 + 0.001 * 12) + TRAIN_S)


def test_in_one_process_both_sides_take_turns_however_far_apart():
    """Asynchrony wins no time when both sides share a machine: only a fuller batch."""
    p = simulate.simulate(change(shared=True, off_policy="pipeline-5"))
    assert p.step_s == pytest.approx(20 * (0.01 + 0.001 * 24) + TRAIN_S)


@pytest.mark.parametrize("trainers", [1, 3])
def test_apart_a_step_takes_as_long_as_the_slower_side(trainers):
    """With a queue beyond the slots, so that a generator has work while the trainer trains."""
    slow = change(off_policy="pipeline-4", ahead=24, decode_s=0.06)     # generation: 1.68 s a step
    p = simulate.simulate(slow, 1, trainers)
    assert p.step_s == pytest.approx(20 * (0.06 + 0.001 * 24) + slow.push_s, rel=0.02)
    fast = change(off_policy="pipeline-4", ahead=24, decode_s=0.001)    # generation: 0.5 s a step
    p = simulate.simulate(fast, 1, trainers)
    assert p.step_s == pytest.approx(0.5 + 0.0007 * STEP_TOKENS / trainers + 0.05, rel=0.02)
    assert p.trainer_idle < 0.02


def test_filtered_groups_cost_no_training():
    work = change(kept=0.25, train_s=0.0, push_s=0.0, prompts=60, slots=240)
    step = simulate.simulate(work, steps=60)
    generate = 20 * (0.01 + 0.001 * 240)
    assert step.step_s - generate == pytest.approx(0.25 * 0.0007 * 10 * STEP_TOKENS, rel=0.1)


@pytest.mark.parametrize("off_policy", ["pipeline-0", "pipeline-1", "pipeline-5", "ppo-1", "ppo-4"])
def test_no_token_is_ever_older_than_promised(off_policy, seed):
    """The pacer is the real one: whatever the speeds, lag is at most k."""
    rng = random.Random(seed)
    k = int(off_policy.partition("-")[2]) - off_policy.startswith("ppo")
    for _ in range(4):
        work = change(
            off_policy=off_policy, prompts=rng.randint(2, 9), samples=rng.randint(2, 5),
            slots=rng.randint(5, 40), ahead=rng.randint(0, 30), shared=rng.random() < 0.3,
            std_length=rng.uniform(1, 40), longest_of_group=rng.uniform(20, 50), max_length=200,
            kept=rng.random(), decode_s=10 ** rng.uniform(-3, -1), train_s=rng.random())
        p = simulate.simulate(work, rng.randint(1, 5), rng.randint(1, 5), steps=15, seed=seed)
        assert p.lag_max <= k and 0 <= p.trainer_idle <= 1 and 0 <= p.generator_idle <= 1


def test_every_token_of_every_consumed_sample_has_one_lag(seed):
    work = change(off_policy="pipeline-3", std_length=9.0, longest_of_group=28.0, ahead=24)
    model = Model(work, 2, 1, seed)
    model.env.run(model.env.process(model.train(25, 0)))
    made = sum(generator.tokens for generator in model.generators)
    unfinished = sum(generator.clock - start for generator in model.generators
                     for _, _, start, _ in generator.running)
    ready = sum(end - start for group in model.pacer.groups.values()
                for _, start, end in group.rollouts)
    assert sum(model.lags.values()) == pytest.approx(made - unfinished - ready)


def test_drawn_lengths_have_the_moments_that_were_measured(seed):
    import numpy as np
    work = change(samples=8, mean_length=300.0, std_length=120.0, longest_of_group=410.0,
                  max_length=2000)
    drawn = work.lengths(np.random.default_rng(seed), 20_000)
    assert drawn.mean() == pytest.approx(300, rel=0.02)
    assert drawn.std() == pytest.approx(120, rel=0.06)
    assert drawn.max(1).mean() == pytest.approx(410, rel=0.04)


def test_the_closed_form_is_the_fastest_there_is_and_tends_to_the_ratio_of_the_rates(seed):
    rng = random.Random(seed)
    for _ in range(200):
        generate, train, devices = rng.uniform(1, 9), rng.uniform(1, 40), rng.randrange(3, 60)
        generators, trainers = simulate.split(devices, generate, train)
        assert generators + trainers == devices
        best = max(min((devices - t) * generate, t * train) for t in range(1, devices))
        assert min(generators * generate, trainers * train) == pytest.approx(best)
    generators, trainers = simulate.split(10_000, generate, train)
    assert generators / trainers == pytest.approx(train / generate, rel=0.01)


def test_the_best_split_is_the_closed_forms_where_that_is_exact():
    """Even lengths, full batches, no fixed costs: n_g / n_t = rate_t / rate_g.

    One trainer takes in 6,000 tokens a second, one generator makes 2,000: 3 : 1.
    """
    work = change(prompts=288, slots=24, ahead=24 * 48, off_policy="pipeline-4", train_s=0.0,
                  push_s=0.0, train_token_s=1 / 6000, decode_s=0.0, decode_sequence_s=1 / 2000)
    assert work.rates() == pytest.approx((2000, 6000))
    (g, t), seen = best_split(work, 16)
    assert (g, t) == simulate.split(16, *work.rates()) == (12, 4)
    assert seen[12].trainer_idle < 0.1 and seen[12].generator_idle < 0.1


def test_thousands_of_devices_can_be_simulated_and_most_of_them_wait():
    """100 prompts are too few samples for 3,000 generators."""
    work = change(prompts=100, off_policy="pipeline-8", ahead=400)
    p = simulate.simulate(work, 3000, 1000, steps=5)
    assert p.batch == pytest.approx(4) and p.generator_idle > 0.9      # one group, or nothing


RUNS = sorted(path.parent for path in (ROOT / "results" / "simulate").glob("*/metrics.jsonl"))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_real_run_is_predicted_within_15_percent(run):
    """In process at the rates of two of the runs, on servers at those of one, so that for the
    others schedule or slots, or both, are new to the model (results/simulate). Lengths and the
    filtered share are the run's own: the model's input."""
    rates = ("process-pipeline-0", "process-pipeline-8") if run.name.startswith("process") else (
        "server-pipeline-8",)
    found = simulate.simulate(simulate.work_of(run, simulate.calibrate(
        [path for path in RUNS if path.name in rates])))
    measured = simulate.measured(run)
    for name in ("step_s", "batch", "lag_mean"):
        assert getattr(found, name) == pytest.approx(measured[name], rel=0.15), name
    for name in {"trainer_idle", "generator_idle", "busy_share"} & set(measured):
        assert getattr(found, name) == pytest.approx(measured[name], rel=0.15, abs=0.02), name
    assert abs(found.lag_max - measured["lag_max"]) <= 1        # the oldest of all tokens: luck


@pytest.mark.parametrize("words, sentence", [
    (["--calibrate", "nowhere"], "is no run that can be read"),
    (["--off-policy", "async"], "off_policy = 'async'"),
    (["--slots", "3"], "no room for a group of 8"),
    (["--devices", "1"], "no room for a server"),
])
def test_wrong_input_is_one_sentence(words, sentence, capsys):
    run = ROOT / "results" / "simulate" / "process-pipeline-8"
    assert simulate.main(["--calibrate", str(run), *words]) == 2
    message = capsys.readouterr().err
    assert sentence in message and len(message.splitlines()) == 1


def test_effective_time_is_that_of_drawn_failures_and_daly_s_interval_is_the_best():
    """The closed form beside 20,000 segments, rare failures and frequent ones; no interval of a
    fine grid is better than Daly's by more than a thousandth."""
    rng = random.Random()
    for devices in (10, 2000, 20_000):
        faults = simulate.Faults(rng.uniform(2e4, 8e4), rng.uniform(20, 90), rng.uniform(100, 600))
        assert simulate.expected(faults, devices) == pytest.approx(
            simulate.stormed(faults, devices, rng.randrange(10**6)), rel=0.02)
        young, daly = simulate.best_interval(faults, devices)
        best = max(simulate.expected(dataclasses.replace(faults, save_s=young * factor / 20),
                                     devices) for factor in range(2, 80))
        assert simulate.expected(dataclasses.replace(faults, save_s=daly), devices) > best - 1e-3


def test_without_failures_only_checkpoints_cost():
    never = simulate.Faults(device_hours=1e12, checkpoint_s=30.0, save_s=270.0)
    assert simulate.expected(never, 8) == pytest.approx(0.9)
