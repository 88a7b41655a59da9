"""Several trainer processes: the same step as one, nothing lost, loud when one of them dies."""

import functools
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from conftest import packed_copy, random_llama, rollouts_of
from ranks import answers, shard_on_cpu, started, wait_for
from torch.distributed.fsdp import FSDPModule
from transformers import AttentionInterface, AutoModelForCausalLM

from artifacts import checkpoint
from artifacts.run_folder import RunFolder
from command.preflight import part
from config import Config
from engines import load, trained_model
from engines.packed import cost_tokens, micro_batches
from scaleout import team as teams
from scaleout.team import Alone, Ranks, deal
from scalerl import Policy, Run, Trainer
from study import toy


def mixed_rollouts(P, G, rng):
    """Of two tasks; some samples interrupted, some truncated."""
    rollouts = rollouts_of(P, G, rng)
    for r in rollouts:
        r.finish_reason = rng.choice(["stop", "stop", "length"])
        r.interrupted, r.task = rng.random() < 0.3, f"task {r.group_id % 2}"
    return rollouts


def step_inputs(seed, P=5, G=3):
    """(rollouts, rewards) of an effective batch."""
    rng = random.Random(seed)
    rollouts = mixed_rollouts(P, G, rng)
    rollouts[0].finish_reason = "stop"
    rewards = torch.tensor([[rng.choice([-1.0, 1.0]) for _ in range(G)] for _ in range(P)])
    rewards[:, 0], rewards[:, 1] = 1, -1
    return rollouts, rewards


@pytest.fixture
def models(tmp_path, seed):
    """Two random Llamas as folders, with and without a head of their own."""
    paths = {}
    for name in ("tied", "untied"):
        model = random_llama(vocab=41)
        if name == "untied":
            model.config.tie_word_embeddings = False
            model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() * 0.9)
        paths[name] = str(tmp_path / name)
        model.save_pretrained(paths[name])
        toy.make_tokenizer().save_pretrained(paths[name])
    return paths


def settings(model, dtype="float64", **changes):
    """float64, so that sums in another order agree far below any mistake."""
    config = Config(**{"model": model, "warmup_steps": 0, "lr": 1e-2, "gpus": 0, "grad_clip": 1e9,
                       "micro_batch_tokens": 60, "deadline_s": 60.0, "interrupt_phrase": "",
                       "prompt_tokens": 20, "think_min": 5, "think_max": 9,
                       "answer_tokens": 4, "vllm_url": "http://nobody"} | changes)
    config.dtype = dtype                    # float64 is none of the choices
    return config


# ---------------------------------------------------------------------------------------------
# Trainers, in this process and in several


def trainer_of(config, team, prepare=None):
    """This process's own `Trainer`; prepare(trainer) may change it."""
    load_model = load.load_model
    if config.dtype == "float64":
        def in_float64(*args):
            model, tokenizer = load_model(*args)
            return model.double(), tokenizer
        load.load_model = in_float64
    try:
        trainer = Trainer(config, team)
    finally:
        load.load_model = load_model
    if prepare:
        prepare(trainer)
    return trainer


def one_process(config, prepare=None):
    return trainer_of(config, Alone(config), prepare)


def train_or_serve(body, config, sharded, before, prepare, *args):
    """What body(trainer, *args) returns, on rank 0; SystemExit on the others."""
    team = teams.make_team(config)
    if sharded:
        shard_on_cpu(team.plugin)
    if before:
        before(team)
    leader = team.lead(trainer_of(config, team, prepare))
    assert isinstance(leader.policy, FSDPModule) == sharded
    answer = body(leader, *args)
    team.close()
    return answer


def processes(body, size, config, *args, sharded=False, before=None, prepare=None):
    """`started` with a trainer each; before(team) and prepare(trainer) may change them."""
    return started(size, train_or_serve, body, config, sharded, before, prepare, *args)


def run_ranks(body, size, config, *args, **options):
    """What body(trainer, *args) returns on rank 0; the others have served to the end."""
    with processes(body, size, config, *args, **options) as (children, results):
        found = answers(children, results, set(range(size)))
    assert [found[rank] for rank in range(1, size)] == [0] * (size - 1), found
    return found[0]


# ---------------------------------------------------------------------------------------------
# Who computes what


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_every_rank_does_equally_many_micro_batches_and_all_are_done_once(size, seed):
    rng = random.Random(seed)
    rollouts = mixed_rollouts(9, 5, rng)
    for budget in (30, 90, 10_000):
        batches = micro_batches(rollouts, budget)
        costs = [cost_tokens(rollouts, b) for b in batches]
        assert all(cost <= budget or len(b) == 1 for cost, b in zip(costs, batches))
        dealt = deal(batches, costs, size)
        assert len(dealt) == size and len({len(mine) for mine in dealt}) == 1
        done = [batch for mine in dealt for batch, share in mine if share == 1]
        assert sorted(i for b in done for i in b) == list(range(len(rollouts)))
        fillers = [batch for mine in dealt for batch, share in mine if share == 0]
        assert len(fillers) + len(done) == sum(map(len, dealt)) and len(fillers) < size
        assert all(cost_tokens(rollouts, batch) == min(costs) for batch in fillers)
        assert all(mine[0][1] for mine in dealt) or len(batches) < size
        work = [sum(cost_tokens(rollouts, b) for b, share in mine if share) for mine in dealt]
        assert max(work) - min(work) <= max(costs)


# ---------------------------------------------------------------------------------------------
# The step of several ranks


def note_gradients(trainer):
    """trainer.seen: the whole gradients of its last step."""
    trainer.seen = {}
    trainer.optimizer.register_step_pre_hook(lambda *_: trainer.seen.update(
        (name, trainer.team.full_tensor(p.grad).numpy(force=True).copy())
        for name, p in trainer.model.named_parameters()))


def gradients(trainer, seed, P, G):
    """(gradients, the step's log, the log of a step without groups)."""
    rollouts, rewards = step_inputs(seed, P, G)
    stepped, log = trainer.update(rollouts, rewards, 3)
    assert stepped == 1
    return trainer.seen, log, trainer.update([], rewards[:0], 4)


CASES = {
    "tied": {"model": "tied"},
    "two samples": {"model": "tied"},           # for three ranks: one has nothing to do
    "untied": {"model": "untied", "micro_batch_tokens": 10_000, "overlong_filter": False},
    "recomputed": {"model": "tied", "micro_batch_tokens": 90, "aggregation": "sample",
                   "recompute_layers": True},
    "compiled": {"model": "tied", "micro_batch_tokens": 90, "recompute_layers": True,
                 "compile_layers": "on"}}


def without_compiler(_=None, graphs=None):
    """torch.compile without its compiler, which takes a minute: what it traced, run as it is."""
    compiled, graphs = torch.compile, [] if graphs is None else graphs
    torch.compile = lambda step, options=None, **choices: compiled(
        step, backend=lambda graph, _: graphs.append(graph) or graph.forward, **choices)


ROUNDING = 1e-6                 # of fp32 sums in another order; a wrong sum is off by its half


@pytest.mark.days(4)
@pytest.mark.parametrize("size, sharded, case", [
    (2, False, "tied"), (2, True, "untied"), (3, False, "untied"), (3, True, "recomputed"),
    (2, True, "compiled"), (3, False, "two samples"), (3, True, "two samples")])
def test_any_number_of_ranks_has_the_gradient_and_the_log_of_one(size, sharded, case, models, seed):
    """With whole models on CPUs and with real FSDP2; tied head or not; layers recomputed and
    compiled or not; samples masked by how they ended; with ranks that have nothing to do. A mean
    over ranks where a sum belongs, a head whose gradient is not reduced, a denominator counted on
    each rank, or a micro-batch done twice would show."""
    config = settings(**CASES[case] | {"model": models[CASES[case]["model"]]})
    inputs = (seed, 1, 2) if case == "two samples" else (seed, 5, 3)
    several = run_ranks(gradients, size, config, *inputs, sharded=sharded, prepare=note_gradients,
                        before=without_compiler if config.compile_layers == "on" else None)
    config.recompute_layers, config.compile_layers = False, "off"
    alone = gradients(one_process(config, note_gradients), *inputs)
    (expected, log, nothing), (got, got_log, got_nothing) = alone, several
    assert set(got) == set(expected) and got_nothing == nothing
    for name in expected:
        want, have = torch.tensor(expected[name]), torch.tensor(got[name])
        error = (want - have).norm() / want.norm()
        assert error < ROUNDING, f"{name}: {error}"             # FSDP2 reduces in fp32
    assert set(got_log) == set(log)
    for name in log:                # the loss sums terms of about 1 that cancel to about .01
        slack = ROUNDING / 10 if name == "loss" else 1e-9
        assert math.isclose(got_log[name], log[name], rel_tol=ROUNDING, abs_tol=slack), name


def bf16_logprobs(trainer, seed):
    """(log-probs, dtypes of masters and gradients) with bf16 arithmetic."""
    rollouts, rewards = step_inputs(seed)
    logprobs = trainer.logprobs(rollouts)
    dtypes = {p.dtype for p in trainer.model.parameters()}      # shards again, not bf16 wholes
    trainer.optimizer.register_step_pre_hook(lambda *_: dtypes.update(
        x.dtype for p in trainer.model.parameters() for x in (p, p.grad)))
    trainer.update(rollouts, rewards, 3)
    return logprobs.tolist(), sorted(map(str, dtypes))


@pytest.mark.days(4, turn=3)
@pytest.mark.gpu_rehearsal
def test_sharded_ranks_in_bf16_keep_fp32_masters_gradients_and_log_probs(models, seed):
    """accelerate's own FSDP2 policy for bf16 rounds the log-probs to bf16 (an error of 1e-2 at
    -5) and reduces gradients in it."""
    config = settings(models["tied"], dtype="bfloat16")         # several forwards
    exact = torch.tensor(bf16_logprobs(one_process(config), seed)[0])
    values, dtypes = run_ranks(bf16_logprobs, 2, config, seed, sharded=True)
    values = torch.tensor(values)
    assert dtypes == ["torch.float32"]
    sampled = values != 0
    assert (values != values.bfloat16().float())[sampled].float().mean() > 0.9
    assert (values - exact)[sampled].abs().mean() < 0.2         # the model is rounded, both times


@pytest.mark.days(4, turn=1)
@pytest.mark.parametrize("setting, value", [("compile_layers", "on"), ("recompute_layers", True)])
def test_a_setting_of_the_machine_changes_how_a_step_is_computed_and_not_its_result(
        setting, value, models, seed, monkeypatch):
    monkeypatch.setattr(torch, "compile", torch.compile)        # both are put back in the end
    monkeypatch.setattr(AttentionInterface, "_global_mapping",
                        dict(AttentionInterface._global_mapping))
    results, graphs, forwards = [], [], []
    without_compiler(graphs=graphs)
    for changes in ({}, {setting: value}):
        calls = []
        trainer = one_process(settings(models["tied"], **changes), note_gradients)
        trainer.model.model.norm.register_forward_pre_hook(lambda *_: calls.append("pass"))
        for module in trainer.model.modules():
            if type(module).__name__ == "LlamaMLP" and setting == "recompute_layers":
                module.register_forward_pre_hook(lambda *_: calls.append("layer"))  # noqa: B023
        trainer.update(*step_inputs(seed), 3)
        results.append(trainer.seen)
        forwards.append(calls.count("layer") / calls.count("pass"))
        assert bool(graphs) == (changes == {"compile_layers": "on"})
    assert forwards == ([3, 6] if setting == "recompute_layers" else [0, 0])
    for name, want in results[0].items():
        want, have = torch.tensor(want), torch.tensor(results[1][name])
        assert (want - have).norm() / want.norm() < 1e-5, name  # norms round to fp32 on the way


def test_bf16_compute_leaves_the_gradient_of_the_fp32_head_in_fp32(llama):
    """Rounding the weight outside `token_logprobs` would round its gradient as well."""
    model = packed_copy(llama)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())      # untied
    logprobs, _ = Policy(model, dtype=torch.bfloat16)(mixed_rollouts(3, 5, random.Random(7)))
    logprobs.sum().backward()
    gradient = model.lm_head.weight.grad
    assert gradient.dtype == torch.float32
    assert not torch.equal(gradient, gradient.bfloat16().float())


def test_a_tokens_lag_in_the_log_is_its_own_and_not_its_samples(models, seed):
    """A sample that was written by three versions of the weights counts in three columns, each
    token in its own. With "token", all sampled tokens weigh the same: plain means by hand."""
    trainer = one_process(settings(models["tied"], aggregation="token"))
    rollouts, rewards = step_inputs(seed)
    assert any(len(set(r.versions)) > 1 for r in rollouts)
    now = trainer.logprobs(rollouts)
    (_, log), distances = trainer.update(rollouts, rewards, 3), {}
    for rollout, row in zip(rollouts, now.tolist()):
        for logprob, old, version, sampled in zip(
                row, rollout.behavior_logprobs, rollout.versions, rollout.sampled):
            if sampled and rollout.finish_reason == "stop":
                distances.setdefault(3 - version, []).append(abs(logprob - old))
    assert {name for name in log if name.startswith("mismatch/mean_abs_dlogp/")} == {
        f"mismatch/mean_abs_dlogp/lag_{lag}" for lag in distances}
    for lag, values in distances.items():
        assert math.isclose(log[f"mismatch/mean_abs_dlogp/lag_{lag}"], sum(values) / len(values),
                            rel_tol=1e-5)


# ---------------------------------------------------------------------------------------------
# Checkpoints, weights for the servers, and the final model


def chain_link(trainer, seed, folder, before, step):
    """Load, take a step, save; then the weights as servers get them, and an exported model."""
    if before:
        trainer.load(before)
    trainer.update(*step_inputs(seed + step), step)
    trainer.save(folder, state={"step": step})
    pushed = {name: tensor.float().numpy() for name, tensor in trainer.weights(torch.bfloat16)}
    checkpoint.save_model(trainer.model, SimpleNamespace(save_pretrained=lambda path: None),
                          trainer.weights(), folder / "model")
    return pushed


def slow_to_read(trainer):
    if trainer.team.rank:
        load = trainer.load

        def slowly(folder):
            time.sleep(1)
            load(folder)
        trainer.load = slowly


def save_load_remove(trainer, folder):
    trainer.save(folder, state={})
    trainer.load(folder)
    shutil.rmtree(folder)


@pytest.mark.days(4, turn=3)
def test_a_checkpoint_may_be_removed_as_soon_as_rank_0_has_loaded_it(models, tmp_path):
    """The preflight does. Another rank may only begin to read it then."""
    run_ranks(save_load_remove, 2, settings(models["tied"]), tmp_path / "step_0",
              prepare=slow_to_read)


def small_groups(trainer):
    """The weights are gathered in many groups, as those of a large model are."""
    trained_model.GATHERED = 2


@pytest.mark.days(6, turn=5)
def test_a_checkpoint_of_any_number_of_ranks_goes_on_with_any_other(models, seed, tmp_path):
    """1, then 2 with FSDP2, 3 with whole models, 3 with FSDP2 (its shards are uneven), and 1
    again, a step each: weights, Adam's moments and its step counts are those of as many steps on
    one rank. What FSDP2's ranks sent to the servers and exported is bit for bit what they saved."""
    places = [(1, False), (2, True), (3, False), (3, True), (1, False)]
    folders = [tmp_path / f"step_{i}" for i in range(len(places))]
    config = settings(models["untied"])
    for i, (size, sharded) in enumerate(places):
        args = (seed, folders[i], folders[i - 1] if i else None, i)
        if size == 1:
            pushed = chain_link(one_process(config), *args)
        else:
            pushed = run_ranks(chain_link, size, config, *args, sharded=sharded,
                               prepare=small_groups)
        assert checkpoint.read_state(folders[i]) == {"step": i}
        assert len(list(folders[i].glob("model*.safetensors"))) == size
        read = one_process(config)
        read.load(folders[i])
        exported = AutoModelForCausalLM.from_pretrained(folders[i] / "model", dtype=torch.float64)
        exported = dict(exported.named_parameters())
        for name, parameter in read.model.named_parameters():
            assert torch.equal(parameter.bfloat16().float(), torch.tensor(pushed[name])), name
            assert torch.equal(parameter, exported[name]), name

    alone = one_process(config)
    for i in range(len(places)):
        alone.update(*step_inputs(seed + i), i)
    for (name, want), have in zip(alone.model.named_parameters(), read.model.parameters()):
        assert (want - have).norm() / want.norm() < 1e-5, name
        for moment in ("exp_avg", "exp_avg_sq"):
            a, b = alone.optimizer.state[want][moment], read.optimizer.state[have][moment]
            # Norms round to fp32 on the way; of squares one seed in many was off by 1.2e-5.
            assert (a - b).norm() / a.norm() < 1e-4, (name, moment)
        assert read.optimizer.state[have]["step"] == len(places)


# ---------------------------------------------------------------------------------------------
# Loud failure


def idle(trainer, flag):
    """Rank 0 waits for samples that never come; the others wait for it. Once `flag` is gone there
    is a step again."""
    trainer.team.begin("generate", 7)
    time.sleep(2)                               # until the others wait
    flag.touch()
    while flag.exists():
        time.sleep(0.02)
    return trainer.update(*step_inputs(0), 7)[0]


@pytest.mark.days(4)
@pytest.mark.parametrize("who, how", [(1, signal.SIGKILL), (1, signal.SIGSTOP),
                                      (0, signal.SIGKILL)])
def test_a_rank_that_dies_or_hangs_ends_all_others_in_a_sentence(who, how, models, tmp_path):
    """A dead one closes its connections; one that is stuck is noticed at the deadline, in the next
    collective."""
    flag = tmp_path / "flag"
    with processes(idle, 3, settings(models["tied"], deadline_s=6), flag) as (children, results):
        wait_for(flag, results)
        os.kill(children[who].pid, how)
        if who:
            flag.unlink()
        found = answers(children, results, {0, 1, 2} - {who})
    for rank, sentence in found.items():
        assert re.match(rf"rank {rank}: (update, version 7|wait for rank 0, version 0): .*: "
                        "another rank is dead, stuck or cut off, see its log$", sentence), found


@pytest.mark.parametrize("last, lost", [
    ("ncclSystemError: ...\nLast error:\nNo space left on device: /dev/shm/nccl-x", False),
    ("ncclRemoteError: A call failed, possibly by a remote process.\nLast error:\nclosed", True),
    ("[3] is setting up NCCL communicator, got error: Connection reset by peer, rank 0", True),
    ("NCCL communicator was aborted on rank 3.", True)])
def test_what_nccl_says_in_its_last_line_is_told_and_its_frames_are_not(last, lost, monkeypatch):
    """torch's first line names a file of its own. No other rank is to blame for a full disk."""
    team = object.__new__(Ranks)
    team.rank, team.version = 3, 7
    monkeypatch.setattr("scaleout.team.LOST_S", 0)
    error = dist.DistBackendError(f"NCCL error in: a.cpp:3690, unhandled, NCCL 2.29\n{last}\n"
                                  "Exception raised from x at a.cpp:3690\nframe #0: c10::Error")
    with pytest.raises(RuntimeError) as told, part("longest rows", "lower think_max"), \
            team.together("update"):
        raise error
    sentence = str(told.value)
    assert " ".join(last.split()) in sentence and "\n" not in sentence and "frame" not in sentence
    assert ("another rank is dead" in sentence) == lost


@pytest.mark.days(4, turn=0)
def test_ranks_that_are_idle_for_longer_than_the_deadline_go_on(models, tmp_path):
    flag = tmp_path / "flag"
    with processes(idle, 2, settings(models["tied"], deadline_s=3), flag) as (children, results):
        wait_for(flag, results)
        time.sleep(5)
        flag.unlink()
        assert answers(children, results, {0, 1}) == {0: 1, 1: 0}


def load_late(seconds, team):
    """The model of rank 1 is there later than that of the others."""
    time.sleep(seconds * team.rank)


def all_there(trainer):
    return "all there"


@pytest.mark.days(4)
@pytest.mark.parametrize("seconds, deadline_s", [(4, 3), (600, 4)])
def test_ranks_wait_for_the_last_model_three_times_as_long_as_for_anything_else(
        seconds, deadline_s, models):
    config = settings(models["tied"], deadline_s=float(deadline_s))
    with processes(all_there, 2, config, before=functools.partial(load_late, seconds)) as (
            children, results):
        found = answers(children, results, {0})[0]
    if seconds < 3 * deadline_s:
        assert found == "all there"
    else:
        assert re.match("rank 0: start, version 0: .*Ranks? 1 failed to pass", found)


def sabotage(how, folder, trainer):
    """What fails on rank 1 alone, later."""
    if how == "apart":                      # as on two machines without a shared file system
        (folder / str(trainer.team.rank)).mkdir()
        os.chdir(folder / str(trainer.team.rank))

    def fail(*_):
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "killed while saving":
            checkpoint.save_file = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        elif how == "memory":
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of "
                "79.10 GiB of which 896.00 MiB is free. Process 7 has 78.00 GiB memory in use.")
        elif how == "disk":
            resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
    if trainer.team.rank == 1:
        trainer.optimizer.register_step_post_hook(
            lambda *_: fail() if how in ("disk", "killed while saving")
            else trainer.policy.register_forward_hook(fail))


def update(run, rollouts, rewards):
    """What scalerl.Run.train_step does with an effective batch."""
    run.team.begin("train", run.version)
    with run.folder.bad_step(run, [], [], rollouts):
        return run.trainer.update(rollouts, rewards, run.version)


def save_step_save_step(trainer, how, folder):
    """A checkpoint, a step, and a second one of either. The ranks' samples are in a Run's hands."""
    folder = Path() if how == "apart" else folder
    run = Run.__new__(Run)
    run.trainer, run.team, run.step, run.version = trainer, trainer.team, 7, 5
    run.folder = RunFolder(Config(name="n"))
    run.folder.path = folder
    trainer.save(folder / "step_4", state={})
    update(run, *step_inputs(0))
    rollouts, rewards = step_inputs(1)
    if how == "infinite":           # of one sample: one rank has it, the other has not
        rollouts[3].behavior_logprobs[0] = math.inf
        dumps = json.dumps

        def slowly(row):            # rank 0 writes its samples down, while the other rank waits
            time.sleep(0.1)
            return dumps(row)
        json.dumps = slowly
    if how in ("disk", "killed while saving"):
        trainer.save(folder / "step_5", state={})
    update(run, rollouts, rewards)


@pytest.mark.days(4)
@pytest.mark.parametrize("how, sentence", [
    ("killed", "rank 0: update, version 5: .*: another rank is dead, stuck or cut off, see its"),
    ("killed while saving", "rank 0: save, version 5: .*: another rank is dead, stuck or cut"),
    ("infinite", "version 5: behavior_logprobs of sample"),
    ("memory", "rank 1: update, version 5: CUDA out of memory. Tried to allocate 2.50 GiB"),
    ("disk", "rank 1: save, version 5: .*step_5 could not be written: .*File too large"),
    ("apart", "rank 1: save, version 0: step_4 could not be written: .*No such file")])
def test_what_fails_on_one_rank_ends_all_and_the_one_that_knows_why_ends_first(
        how, sentence, models, tmp_path):
    """A launcher shows the words of the first. And what was saved before stays whole. The folder's
    name is no sign of a lost line."""
    tmp_path = tmp_path / "gloo"
    tmp_path.mkdir()
    with processes(save_step_save_step, 2, settings(models["tied"], deadline_s=20), how, tmp_path,
                   prepare=functools.partial(sabotage, how, tmp_path)) as (children, results):
        found = answers(children, results, {0, 1} - {1 if "killed" in how else 2})
    first, *others = found.values()
    assert re.search(sentence, first), found
    assert all(len(text.splitlines()) == 1 for text in found.values())
    assert how == "infinite" or all("another rank is dead" in text for text in others), found
    if how == "infinite":
        rows = [json.loads(line) for line in (tmp_path / "bad_step.jsonl").open()]
        assert list(found) == [0, 1]            # a launcher would have ended rank 0 too early
        assert len(rows) == 15 and math.isinf(rows[3]["behavior_logprobs"][0])
        assert found[0].startswith("version 5: behavior")
        assert f"the samples of step 8 are in {tmp_path}/bad_step.jsonl" in found[0]
    if how == "apart":
        assert not list(tmp_path.rglob("step_*"))
        return
    assert [path.name for path in checkpoint.saved(tmp_path)] == ["step_4"]
    assert checkpoint.read_state(tmp_path / "step_4") == {}
    assert [path.name for path in tmp_path.glob("*step_*")] == ["step_4"]
