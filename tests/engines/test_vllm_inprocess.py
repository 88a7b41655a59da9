"""vLLM in the trainer's process: the same promises as the other engine, on the real thing.

The oracle is transformers' plain forward, with its own cache where a swap is looked at. These
tests need `make vllm`; `make test` has it done.
"""

import copy
import gc
import json
import shutil
import sys
from collections import Counter

import numpy as np
import psutil
import pytest
import torch
from scipy import stats
from conftest import (EOS, ROOT, V, VLLM_FAMILIES, WORDS, check_cut_thinking, drain, errors,
                      methods_of_an_engine, moved, of_family, packed_copy, plain_logprobs, requests,
                      run_command, swapped_logprobs)
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from tasks import problems as tasks
from engines import vllm_inprocess as vllm_engine
from loss import head_logits
from sampler import Interruption, Request
from scalerl import Policy
from engines.vllm_inprocess import VllmSampler

SMOLLM2 = ROOT / "models" / "smollm2-135m"


@pytest.fixture
def make(folder, monkeypatch):
    """Engines on the random Llama with budgets 9..17 and 4; closed when the test is over."""
    # vLLM collects garbage eight times an engine: what outlives a test is kept out of that.
    monkeypatch.setattr(gc, "unfreeze", lambda: None)
    made = []

    def make(model=folder, *, phrase=(30, 31, 7), slots=60, prompt_tokens=110, eos=(EOS,), **more):
        made.append(VllmSampler(model, WORDS, Interruption(9, 17, 4, phrase), slots=slots,
                                prompt_tokens=prompt_tokens, eos_ids=eos, **more))
        return made[-1]
    yield make
    while made:
        made.pop().close()
    gc.collect()
    gc.freeze()


# ---------------------------------------------------------------------------------------------
# Log-probs and weights


@pytest.mark.parametrize("name", ["toy", pytest.param("smollm2", marks=pytest.mark.skipif(
    not SMOLLM2.exists(), reason="models/smollm2-135m is not there: make smollm2"))])
def test_log_probs_are_those_of_a_full_forward_before_and_after_a_swap(name, micro, seed, make):
    """fp32, lag 0: the README's figure, on trained models, temperature included.

    Both sides round. Noise in every weight of SmolLM2 leaves rounding of about 1e-5 in
    transformers' own log-probs, so there the figure is the distance from a float64 forward,
    against that of transformers in fp32.
    """
    path = {"toy": micro, "smollm2": SMOLLM2}[name]
    old = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    new = moved(old, 0.1)
    tokenizer = AutoTokenizer.from_pretrained(path)
    problems = tasks.load_task("toy", "train", heldout=8)[:5]
    sampler = make(path, phrase=(), eos={old.generation_config.eos_token_id}, temperature=0.8)
    for model, version in ((old, 0), (new, 1)):
        if version:
            sampler.push_weights(model.named_parameters(), version)
        rollouts = drain(sampler, [Request(i, p.id, tuple(tasks.prompt_ids(tokenizer, p)), 4)
                                   for i, p in enumerate(problems)])
        assert len(rollouts) == 20 and {v for r in rollouts for v in r.versions} == {version}
        if name == "smollm2" and version:
            some, exact = rollouts[::3], copy.deepcopy(model).double()
            own = torch.cat([plain_logprobs(model, r, 0.8) - plain_logprobs(exact, r, 0.8)
                             for r in some]).abs().mean()
            assert errors(exact, some, 0.8).mean() <= 2 * own and own < 2e-5
        else:
            assert errors(model, rollouts, 0.8).mean() <= 1e-5
    assert errors(old, rollouts, 0.8).mean() > 1e-2         # the weights did differ


def test_without_the_repacking_a_tied_head_would_be_stale(plain, make, monkeypatch):
    """What `repack` is for: vLLM's CPU build reloads everything but the head."""
    monkeypatch.setattr(vllm_engine, "repack", lambda model: None)
    sampler, new = make(), moved(plain, 0.3)
    sampler.push_weights(new.named_parameters(), 1)
    assert errors(new, drain(sampler, requests(5))).mean() > 1e-2


@pytest.mark.parametrize("family", VLLM_FAMILIES)
def test_families_with_a_way_of_their_own_agree_before_and_after_a_swap(
        family, seed, tmp_path, make, monkeypatch):
    """Experts are packed on the first load only: after a swap they would be read as nonsense.
    OLMo 2 is computed by transformers' own class, whose __call__ vLLM replaces: the trainer's
    too."""
    old = of_family(family, tmp_path)
    for name in ("__init__", "__call__"):                   # given back to the tests that follow
        monkeypatch.setattr(type(old.model), name, getattr(type(old.model), name))
    new = moved(old, 0.3)
    trainers = [packed_copy(model) for model in (old, new)]
    for model in (old, new):                        # the oracle must live beside vLLM as well
        model.model.do_not_compile = True
    sampler = make(tmp_path, phrase=(), slots=12)
    for version, (model, trainer) in enumerate(zip((old, new, new), (*trainers, trainers[1]))):
        if version:                                 # other weights, and then the same once more
            sampler.push_weights(trainer.named_parameters(), version)
        rollouts = drain(sampler, requests(4))
        assert {v for r in rollouts for v in r.versions} == {version}
        assert errors(model, rollouts).max() < 1e-4
        found, _ = Policy(trainer)(rollouts)
        recorded = [torch.tensor(r.behavior_logprobs) for r in rollouts]
        assert max((row[: len(r)] - r).abs().max() for row, r in zip(found, recorded)) < 1e-4
    assert errors(old, rollouts).mean() > 1e-2      # the weights did differ


def test_without_the_repacking_experts_would_be_read_as_nonsense(seed, tmp_path, make, monkeypatch):
    model = of_family("qwen3_moe", tmp_path)
    monkeypatch.setattr(vllm_engine, "repack", lambda model: None)
    sampler = make(tmp_path, phrase=())
    sampler.push_weights(model.named_parameters(), 1)       # the same weights
    assert errors(model, drain(sampler, requests(3))).mean() > 1e-2


@pytest.mark.gpu_rehearsal
def test_a_swap_copies_weights_to_where_the_old_ones_lay_so_that_graphs_of_a_gpu_stay_valid(
        plain, make, monkeypatch):
    """A captured graph knows addresses. The CPU build packs matrices anew, and has none."""
    def places(model):
        return {name: (p.data_ptr(), p.double().sum().item())
                for name, p in model.named_parameters() if p.numel()}
    sampler = make()
    before, = sampler.llm.apply_model(places)
    sampler.push_weights(moved(plain, 0.3).named_parameters(), 1)
    after, = sampler.llm.apply_model(places)
    assert {name: place for name, (place, _) in before.items()} == {
        name: place for name, (place, _) in after.items()}
    assert before["model.embed_tokens.weight"][1] != after["model.embed_tokens.weight"][1]

    options = {}
    monkeypatch.setattr(vllm_engine, "load_vllm",
                        lambda model, **given: options.update(given) or sampler.llm)
    for gpu in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)               # noqa: B023
        make()
        assert options["enforce_eager"] != gpu
        make(eager=True)
        assert options["enforce_eager"]


def test_after_a_swap_running_sequences_follow_new_weights_over_the_old_cache(plain, make):
    """PipelineRL's in-flight update. The oracle is transformers' own cache: keys and values of
    the first tokens from the old weights, of the later ones from the new. Recomputing the cache,
    or restarting the sequence, gives different numbers; the test sees the difference."""
    old, new = plain, moved(plain, 0.3)
    sampler = make(phrase=())
    for request in requests(7, samples=4):
        sampler.submit(request)
    early = [r for _ in range(5) for r in sampler.step()]
    sampler.push_weights(new.named_parameters(), version=1)
    rollouts = drain(sampler)
    assert len(early) + len(rollouts) == 28 and len(rollouts) > 5
    assert all(set(r.versions) == {0} for r in early)
    gaps = []
    for rollout in rollouts:
        n = len(rollout.output_ids)
        assert rollout.versions == [0] * 5 + [1] * (n - 5)
        expected = swapped_logprobs(old, new, rollout, 5)
        assert torch.allclose(torch.tensor(rollout.behavior_logprobs[5:]), expected, atol=1e-4)
        assert torch.allclose(torch.tensor(rollout.behavior_logprobs[:5]),
                              plain_logprobs(old, rollout)[:5], atol=1e-4)
        gaps.append((expected - plain_logprobs(new, rollout)[5:]).abs().max())
    assert max(gaps) > 1e-3


def test_the_head_can_be_computed_in_fp32_by_a_bf16_model(micro, seed, make):
    """With bf16 weights, fp32 logits of the same hidden states are nearer to a trainer's that
    does the same than bf16 logits are: the reason for the recipe's fp32 head."""
    model = AutoModelForCausalLM.from_pretrained(micro, dtype=torch.bfloat16).eval()
    tokenizer = AutoTokenizer.from_pretrained(micro)
    problems = tasks.load_task("toy", "train", heldout=8)[:12]
    mean = {}
    for fp32 in (True, False):
        sampler = make(micro, phrase=(), dtype=torch.bfloat16, head_fp32=fp32)
        rollouts = drain(sampler, [Request(i, p.id, tuple(tasks.prompt_ids(tokenizer, p)), 5)
                                   for i, p in enumerate(problems)])
        gaps = []
        for r in rollouts:
            ids = torch.tensor([[*r.prompt_ids, *r.output_ids]])
            with torch.no_grad():
                hidden = model.model(ids).last_hidden_state[0, len(r.prompt_ids) - 1: -1]
            kind = torch.float32 if fp32 else torch.bfloat16
            logits = (hidden.to(kind) @ model.lm_head.weight.to(kind).T).float()
            expected = logits.log_softmax(-1).gather(1, torch.tensor(r.output_ids)[:, None])[:, 0]
            gaps.append((expected - torch.tensor(r.behavior_logprobs)).abs())
        mean[fp32] = torch.cat(gaps).mean().item()
    print(mean)
    assert mean[True] < mean[False]


def test_a_bf16_head_is_the_engines_own_in_an_fp32_run_too(micro, seed, make):
    """The ablation's: trainer and sampler both round, or the ratio shows what only one of them
    does. `head_logits` is the trainer's head."""
    model = AutoModelForCausalLM.from_pretrained(micro, dtype=torch.float32).eval()
    sampler = make(micro, phrase=(), head_fp32=False)
    gaps = {True: [], False: []}
    for r in drain(sampler, requests(7, samples=3)):
        ids = torch.tensor([[*r.prompt_ids, *r.output_ids]])
        with torch.no_grad():
            hidden = model.model(ids).last_hidden_state[0, len(r.prompt_ids) - 1: -1]
            for fp32, found in gaps.items():
                logprobs = head_logits(hidden, model.lm_head.weight, head_fp32=fp32).log_softmax(-1)
                found.append(logprobs.gather(1, torch.tensor(r.output_ids)[:, None])[:, 0]
                             - torch.tensor(r.behavior_logprobs))
    two_sided, one_sided = (torch.cat(gaps[fp32]).abs().mean() for fp32 in (False, True))
    assert two_sided < 0.2 * one_sided and one_sided > 1e-4, (two_sided, one_sided)


def test_tokens_are_drawn_from_the_softmax(plain, make):
    """Pearson's chi-square of 4,000 first tokens against the model's own probabilities."""
    sampler = make(phrase=(), slots=500, prompt_tokens=9, temperature=0.7)
    sampler.interruption = Interruption(1, 1, 1, ())         # two tokens each
    prompt = tuple(torch.randint(2, V, (9,)).tolist())
    rollouts = drain(sampler, [Request(i, "p", prompt, 500) for i in range(8)])
    counts = torch.bincount(torch.tensor([r.output_ids[0] for r in rollouts]), minlength=V)
    with torch.no_grad():
        p = (plain(torch.tensor([prompt])).logits[0, -1] / 0.7).softmax(-1)
    enough = p * 4000 >= 5
    chi2 = ((counts - 4000 * p) ** 2 / (4000 * p))[enough].sum()
    assert len(rollouts) == 4000 and stats.chi2.sf(chi2.item(), int(enough.sum())) > 1e-9


# ---------------------------------------------------------------------------------------------
# The prefix cache


def spied(sampler):
    """The number of prompt tokens each finished request of vLLM took from the cache, as a list
    that grows with every step."""
    found, step = [], sampler.engine.step

    def spy():
        outputs = step()
        found.extend(output.num_cached_tokens for output in outputs)
        return outputs
    sampler.engine.step = spy
    return found


def test_samples_of_a_prompt_share_it_and_no_block_of_other_weights_is_served(plain, make):
    """100 tokens are three whole blocks of 32 and a bit: the first sample computes them, the
    others find them. After a swap the same prompt finds nothing, though its blocks lie there."""
    sampler, new = make(phrase=()), moved(plain, 0.3)
    found = spied(sampler)
    group = requests(1, samples=5, length=100)
    assert errors(plain, drain(sampler, group)).max() < 1e-4
    assert sorted(found) == [0, 96, 96, 96, 96]
    drain(sampler, group)
    assert found[5:] == [96] * 5                            # same weights: all are found again
    sampler.push_weights(new.named_parameters(), 1)
    assert errors(new, drain(sampler, group)).max() < 1e-4
    assert sorted(found[10:]) == [0, 96, 96, 96, 96]


def test_a_group_submitted_before_a_swap_and_begun_after_it_finds_no_old_block(plain, make):
    """It waits for slots while the weights change. Salted when submitted, it would be served
    blocks computed under the old weights, and its log-probs would be those of neither model."""
    sampler, new = make(phrase=(), slots=4, eos=()), moved(plain, 0.3)
    found = spied(sampler)
    first, = requests(1, samples=4, length=100)
    for group in (0, 1):
        sampler.submit(Request(group, "p", first.prompt_ids, 4))
    sampler.step()
    assert len(sampler.running) == 4 and len(sampler.waiting) == 4
    sampler.push_weights(new.named_parameters(), 1)
    rollouts = [r for r in drain(sampler) if r.group_id == 1]
    assert sorted(found) == [0, 0, 96, 96, 96, 96, 96, 96]
    assert errors(new, rollouts).max() < 1e-4


def test_a_request_whose_first_step_had_no_room_for_it_goes_on_after_a_swap(plain, make):
    """Half of its prompt was computed under the old weights, and no token. Its log-probs are those
    of the new weights over that cache, as for the other request, which had a token."""
    sampler, new = make(phrase=(), eos=()), moved(plain, 0.3)
    scheduler = sampler.engine.engine_core.engine_core.scheduler
    scheduler.max_num_scheduled_tokens = 150
    for request in requests(2, samples=1, length=100):
        sampler.submit(request)
    sampler.step()
    sampler.push_weights(new.named_parameters(), 1)
    first, second = sorted(drain(sampler), key=lambda rollout: rollout.group_id)
    assert first.versions[0] == 0 and set(second.versions) == {1}
    old_keys, (ids, output) = DynamicCache(), (second.prompt_ids, second.output_ids)
    with torch.no_grad():
        plain(torch.tensor([ids[:50]]), past_key_values=old_keys, use_cache=True)
        logits = new(torch.tensor([[*ids[50:], *output[:-1]]]), past_key_values=old_keys).logits[0]
    expected = logits[49:].log_softmax(-1).gather(1, torch.tensor(output)[:, None])[:, 0]
    assert (expected - torch.tensor(second.behavior_logprobs)).abs().max() < 1e-4
    assert errors(new, [second]).max() > 1e-3               # the halves are of different weights


def test_no_sequence_is_ever_thrown_out_of_the_cache(make):
    """(110 + 17 + 3 + 4) tokens are five blocks a slot. With fewer, vLLM would start as many
    sequences and compute some of them again."""
    sampler = make(slots=6)
    for request in requests(20, samples=6):
        sampler.submit(request)
    scheduler, returned = sampler.engine.engine_core.engine_core.scheduler, []
    while sampler.in_flight:
        returned += sampler.step()
        assert len(scheduler.waiting) == 0                  # where vLLM puts whom it throws out
    assert Counter(r.group_id for r in returned) == {i: 6 for i in range(20)}


# ---------------------------------------------------------------------------------------------
# Two samplers on one engine


def test_an_evaluation_on_the_same_engine_leaves_no_sample_of_the_training_behind(plain, make):
    """Training's sequences run on meanwhile; each sampler gets its own samples, in full, and a
    checkpoint has those that nobody has fetched yet."""
    sampler = make(slots=20)
    for request in requests(9, samples=7):
        sampler.submit(request)
    got = []
    while not any(sample.rollout.output_ids for _, sample in sampler.running.values()):
        got += sampler.step()
    evaluation = sampler.beside(seed=3)
    assert (evaluation.in_flight, sampler.in_flight) == (0, 63 - len(got))
    evaluation.push_weights(plain.named_parameters(), 0)    # once more, the same weights
    evaluated = drain(evaluation, requests(5, samples=4))
    assert Counter(r.group_id for r in evaluated) == {i: 4 for i in range(5)}
    assert errors(plain, evaluated).max() < 1e-4 and not evaluation.state()["requests"]
    # One has at most 4 tokens of its second request to go. If this evaluation was shorter, as for
    # few seeds, another one follows.
    for _ in range(40):
        if not sampler.done.qsize():
            drain(evaluation, requests(5, samples=4))
    assert sampler.done.qsize() and sampler.in_flight == 63 - len(got)
    missing = sum(request.samples for request in sampler.state()["requests"])
    assert missing == sampler.in_flight
    got += sampler.finished() + drain(sampler)
    assert Counter(r.group_id for r in got) == {i: 7 for i in range(9)}
    assert errors(plain, got).max() < 1e-4
    assert min(s.log()["decode/steps"] for s in (sampler, evaluation)) > 0


# ---------------------------------------------------------------------------------------------
# The two requests of an interrupted sample, checkpoints, errors


def test_thinking_is_cut_at_a_random_budget_and_the_phrase_is_not_sampled(plain, make):
    rollouts = drain(make(), requests(20, samples=24))
    assert len(rollouts) == 480
    check_cut_thinking(rollouts)
    assert errors(plain, rollouts).max() < 1e-4         # the answers are conditioned on the phrase


def test_without_a_phrase_nothing_is_interrupted(seed, make):
    rollouts = drain(make(phrase=()), requests(6))
    assert not any(r.interrupted for r in rollouts) and all(all(r.sampled) for r in rollouts)
    assert max(len(r.output_ids) for r in rollouts) <= 17 + 4


def test_a_swap_between_the_two_requests_is_in_the_versions_and_the_log_probs(plain, make):
    """The answer comes from the new weights over keys and values computed by them: the second
    request may not look at blocks that the first one left behind."""
    sampler, new = make(eos=(), prompt_tokens=100), moved(plain, 0.3)
    sampler.interruption = Interruption(12, 12, 4, (30, 31, 7))
    sampler.submit(Request(0, "p", tuple(torch.randint(8, V, (100,)).tolist()), 6))
    assert sampler.step() == [] and not sampler.waiting
    while not sampler.waiting:                              # for their second requests
        assert sampler.step() == []
    sampler.push_weights(new.named_parameters(), 1)
    for rollout in drain(sampler):
        asked = 15 if rollout.interrupted else 12
        assert rollout.versions == [0] * asked + [1] * (len(rollout.output_ids) - asked)
        logprobs = torch.tensor(rollout.behavior_logprobs)
        assert torch.allclose(logprobs[:12], plain_logprobs(plain, rollout)[:12], atol=1e-4)
        assert torch.allclose(logprobs[asked:], plain_logprobs(new, rollout)[asked:], atol=1e-4)


def test_a_resumed_engine_asks_again_for_what_was_unfinished_and_nothing_comes_twice(plain, make):
    group = requests(9, samples=7)
    sampler = make(slots=20)
    for request in group:
        sampler.submit(request)
    done = [r for _ in range(14) for r in sampler.step()]
    assert sampler.running and sampler.waiting and done
    state = copy.deepcopy(sampler.state())              # as a checkpoint keeps it
    resumed = make(slots=20, seed=99)
    resumed.load_state(state)
    assert resumed.in_flight == 63 - len(done)
    rollouts = done + drain(resumed)
    assert Counter(r.group_id for r in rollouts) == {i: 7 for i in range(9)}
    assert all(r.prompt_ids == group[r.group_id].prompt_ids for r in rollouts)


def test_the_same_seed_gives_the_same_rollouts_and_another_seed_others(seed, make):
    group = requests(4)
    first, again, other = (drain(make(seed=s), group) for s in (5, 5, 6))
    assert first == again != other


def test_a_resumed_sampler_gives_vllm_on_a_gpu_other_seeds_than_a_new_one(seed):
    """There the seed of each request is drawn from numpy, which vLLM seeds alike at every start."""
    draws = []
    for steps in (0, 3, 3):
        sampler = object.__new__(VllmSampler)
        sampler.random = torch.Generator().manual_seed(seed)
        torch.rand(steps, generator=sampler.random)
        np.random.seed(0)
        sampler.load_state({"random": sampler.random.get_state(), "requests": [], "version": 7})
        draws.append(np.random.randint(2**31))
        assert sampler.version == 7
    assert draws[0] != draws[1] == draws[2]


def test_reseeded_an_engine_repeats_itself_and_its_log_counts_its_steps(seed, make):
    sampler, group, found = make(phrase=(), eos=()), requests(4), []
    assert all(hasattr(sampler, name) for name in methods_of_an_engine())
    for seed in (3, 4, 3):
        sampler.reseed(seed)
        found.append([r.output_ids for r in drain(sampler, group)])
        assert sampler.log() == {"decode/steps": 17 + 4, "decode/batch": 12}
    assert found[0] == found[2] != found[1] and sampler.finished() == []


def test_the_engine_listens_on_loopback_only(make):
    """Even one process makes a process group, by default on the machine's public address."""
    make(slots=3)
    listening = [c.laddr.ip for c in psutil.Process().net_connections("inet")
                 if c.status == psutil.CONN_LISTEN]
    assert listening and set(listening) <= {"127.0.0.1", "::1"}


def test_what_cannot_work_is_refused_with_numbers(make, monkeypatch):
    import vllm
    monkeypatch.setattr(vllm, "__version__", "0.31.1")
    with pytest.raises(ValueError, match="vllm 0.31.1 is installed.*make vllm"):
        make()
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ValueError, match="import of vllm.*make vllm"):
        make()


# ---------------------------------------------------------------------------------------------
# Whole runs


def run(micro, cwd, *more):
    """A small run of scalerl.py, k = 2; returns (process, lines of its log)."""
    done = run_command([
        ROOT / "scalerl.py", "--model", micro, "--prompts-per-step", 4, "--samples-per-prompt", 4,
        "--slots", 24, "--think-min", 8, "--think-max", 22, "--answer-tokens", 3,
        "--eval-samples", 2, "--eval-every", 3, "--lr", 1e-3,
        "--warmup-steps", 2, "--off-policy", "pipeline-2", "--heldout-prompts", 8,
        "--name", "r", *more], cwd)
    assert done.returncode == 0, done.stderr
    log = (cwd / "runs" / "r" / "metrics.jsonl").read_text().splitlines()
    return done, [json.loads(line) for line in log]


@pytest.fixture(scope="module")
def first(micro, tmp_path_factory):
    """A run of six steps: (its working directory, process, log)."""
    cwd = tmp_path_factory.mktemp("first")
    return cwd, *run(micro, cwd, "--steps", 6)


def test_a_run_takes_vllm_by_itself_and_keeps_the_lag_at_most_k(first):
    """`auto` is vLLM where it is installed. scalerl.py asserts lag <= k for every token; that
    log-probs at lag 0 agree is in the start-up self-test and in the ratios of the first step."""
    cwd, done, log = first
    assert "vllm on cpu" in done.stdout and "with the fp32 head" in done.stdout
    assert log[0]["mismatch/fp32_head/mean_abs_dlogp"] < 1e-5
    assert [r["step"] for r in log] == list(range(7))
    assert all(r["lag/max"] <= 2 for r in log[1:]) and any(r["lag/max"] for r in log[1:])
    assert sum(r["completions/interrupted_frac"] for r in log[1:]) > 0
    assert log[1]["lag/max"] == 0 and abs(log[1].get("ratio/mean", 1) - 1) < 1e-4
    assert 'engine = "vllm"' in (cwd / "runs" / "r" / "config.toml").read_text()


@pytest.mark.days(4, turn=2)
def test_two_runs_of_one_seed_write_the_same_metrics(first, micro, tmp_path):
    """Decode and optimizer steps alternate in one process: nothing depends on the clock."""
    clocks = ("time/", "throughput/", "compute/core_hours")
    logs = [[{k: v for k, v in r.items() if not k.startswith(clocks)} for r in log]
            for log in (first[2], run(micro, tmp_path, "--steps", 6)[1])]
    assert logs[0] == logs[1]


@pytest.mark.days(6, turn=0)
def test_a_killed_run_goes_on_and_says_what_it_starts_again(first, micro, tmp_path):
    """From the checkpoint of step 3, as if killed after it; steps 4 to 6 are taken anew."""
    shutil.copytree(first[0] / "runs", tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / "r" / "checkpoints" / "step_6")
    resumed, log = run(micro, tmp_path, "--steps", 7)
    assert "unfinished samples start again" in resumed.stdout
    assert [r["step"] for r in log] == list(range(8)) and log[:4] == first[2][:4]
    assert all(r["lag/max"] <= 2 for r in log[1:])


def test_the_trained_model_is_an_ordinary_folder_for_vllm_and_for_transformers(first, micro, make):
    path = first[0] / "runs" / "r" / "model"
    trained, before = (AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
                       for folder in (path, micro))
    tokenizer = AutoTokenizer.from_pretrained(path)
    sampler = make(path, phrase=(), eos={trained.generation_config.eos_token_id})
    problems = tasks.load_task("toy", "train", heldout=8)[:5]
    rollouts = drain(sampler, [Request(i, p.id, tuple(tasks.prompt_ids(tokenizer, p)), 4)
                               for i, p in enumerate(problems)])
    assert errors(trained, rollouts).mean() <= 1e-5 < errors(before, rollouts).mean()
