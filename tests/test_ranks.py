"""Several trainer processes: the same step as one, nothing lost, loud when one of them dies."""

import contextlib
import copy
import json
import math
import os
import random
import resource
import signal
import threading
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
from conftest import SPAWN, THOROUGH, packed_copy, random_llama
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import AttentionInterface, AutoModelForCausalLM
from test_packed import plain_varlen
from test_scalerl import SMALL, arguments, lines, rollouts_of
from test_servers import Served

import checkpoint
import packed
import policy
import ranks
import scalerl
from config import Config
from policy import Policy, cost_tokens, micro_batches
from ranks import Ranks, Watchdog, deal
from scalerl import Trainer, train_step
from servers import Fleet


def _child(body, rank, size, port, sharded, results, args):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size),
                   "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
                   "TORCHELASTIC_USE_AGENT_STORE": "True"}      # as torchrun has it
    torch.set_num_threads(1)
    try:
        group = Ranks(deadline_s=args.pop("deadline_s", 60),
                      start_deadline_s=args.pop("start_deadline_s", None),
                      dtype=args.pop("dtype", torch.float64))
        if sharded:
            shard_on_cpu(group.plugin)
        results.put((rank, body(group, **args)))
    except (RuntimeError, FloatingPointError, OSError) as error:
        results.put((rank, error.args[0]))


def shard_on_cpu(plugin):
    """accelerate ignores FSDP on a CPU; with this its real FSDP2 path runs over gloo. For tests."""
    from accelerate import DistributedType
    from accelerate.state import AcceleratorState, PartialState
    for state in (AcceleratorState, PartialState):
        state._shared_state["distributed_type"] = DistributedType.FSDP
    AcceleratorState._shared_state["fsdp_plugin"] = plugin


@contextlib.contextmanager
def processes(body, size, sharded=False, **args):
    """(children, results): a rank in each process, results a queue of (rank, what body returned,
    or the sentence with which it ended). None outlives this."""
    results, store = SPAWN.SimpleQueue(), dist.TCPStore("127.0.0.1", 0, is_master=True,
                                                        wait_for_workers=False)
    children = [SPAWN.Process(target=_child, daemon=True, args=(
        body, rank, size, store.port, sharded, results, dict(args))) for rank in range(size)]
    try:
        for child in children:
            child.start()
        yield children, results
    finally:
        for child in children:
            if child.pid:
                child.kill()
                child.join()


def answers(children, results, wanted, timeout=120):
    """{rank: answer} of the `wanted` ranks."""
    found, deadline = {}, time.monotonic() + timeout
    while wanted - set(found):
        if not results.empty():
            rank, value = results.get()
            found[rank] = value
            continue
        dead = [rank for rank in wanted - set(found) if children[rank].exitcode]
        assert not dead, f"rank {dead[0]} ended with {children[dead[0]].exitcode}"
        assert time.monotonic() < deadline, f"only ranks {sorted(found)} have answered"
        time.sleep(0.02)
    return found


def run_ranks(body, size, sharded=False, **args):
    """[body(ranks, **args) of every rank]."""
    with processes(body, size, sharded, **args) as (children, results):
        found = answers(children, results, set(range(size)))
    return [found[rank] for rank in range(size)]


# ---------------------------------------------------------------------------------------------
# Who computes what


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_every_rank_does_equally_many_micro_batches_and_all_are_done_once(size, seed):
    rng = random.Random(seed)
    rollouts = rollouts_of(9, 5, rng)
    for budget in (30, 90, 10_000):
        batches = micro_batches(rollouts, budget, size)
        costs = [cost_tokens(rollouts, b) for b in batches]
        assert all(cost <= budget or len(b) == 1 for cost, b in zip(costs, batches))
        shares = deal(batches, costs, size)
        assert len(shares) == size and len({len(share) for share in shares}) == 1
        assert sorted(i for s in shares for b in s for i in b) == list(range(len(rollouts)))
        assert sum(not b for s in shares for b in s) < size         # fewer than a round
        assert all(share[0] for share in shares) or len(batches) < size
        loads = [sum(cost_tokens(rollouts, b) for b in share) for share in shares]
        assert max(loads) - min(loads) <= max(costs)


def test_bf16_compute_leaves_the_gradient_of_the_fp32_head_in_fp32(llama):
    """Rounding the weight outside `token_logprobs` would round its gradient as well."""
    model = packed_copy(llama)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())      # untied
    logprobs, _ = Policy(model, dtype=torch.bfloat16)(rollouts_of(3, 5, random.Random(7)))
    logprobs.sum().backward()
    gradient = model.lm_head.weight.grad
    assert gradient.dtype == torch.float32
    assert not torch.equal(gradient, gradient.bfloat16().float())



def test_a_step_that_one_micro_batch_could_hold_still_gives_every_rank_work(seed):
    rollouts = rollouts_of(9, 5, random.Random(seed))
    for size in (2, 3):
        batches = micro_batches(rollouts, 10_000, size)
        assert len(batches) == size
        costs = [cost_tokens(rollouts, b) for b in batches]
        assert min(costs) > max(costs) / 2
    assert len(micro_batches(rollouts, 10_000)) == 1


def step_inputs(seed, P=5, G=3):
    rng = random.Random(seed)
    rollouts = rollouts_of(P, G, rng)
    rewards = torch.tensor([[rng.choice([-1.0, 1.0]) for _ in range(G)] for _ in range(P)])
    rewards[:, 0], rewards[:, 1] = 1, -1
    rewards[2] = 1                                          # one group is filtered
    return rollouts, rewards


def make_trainer(group, seed, tied=True, dtype=torch.float64, compute=None, **settings):
    """One rank's `Trainer` around a random model, in float64 so that sums in another order agree
    far below any mistake."""
    trainer = Trainer.__new__(Trainer)
    torch.manual_seed(seed)
    trainer.model = model = packed_copy(random_llama(dtype=dtype))
    if not tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() * 0.9)
    trainer.ranks, trainer.device, trainer.dtype = group, "cpu", compute or dtype
    trainer.config = Config(model="x", **{"warmup_steps": 0, "lr": 1e-2} | settings)
    trainer.prepare()
    assert isinstance(model.lm_head.weight, DTensor) == isinstance(trainer.policy, FSDPModule)
    return trainer


def rank_0(group, script, seed, *args, **settings):
    """script(trainer, *args) on rank 0, while the others follow: a run without its story."""
    trainer = make_trainer(group, seed, **settings)
    if group.rank:
        return trainer.follow()
    result = script(trainer, *args)
    with group.phase("end", 0):
        group.tell("end")
    return result


def take_step(trainer, seed, version=3):
    return train_step(trainer.policy, trainer.optimizer, *step_inputs(seed), version,
                      trainer.config, trainer.ranks)[0]


# ---------------------------------------------------------------------------------------------
# The step of several ranks


def counting_backend(graphs):
    """torch.compile without its compiler, which takes a minute: what it traced, run as it is."""
    compiled = torch.compile
    return lambda step, options=None, **choices: compiled(
        step, backend=lambda graph, _: graphs.append(graph) or graph.forward, **choices)


def all_gradients(group, seed, cases):
    found = []
    for case in cases:
        if case.get("compile_layers"):                  # in a process that ends with the test
            torch.compile = counting_backend([])
        trainer = make_trainer(group, seed, grad_clip=1e9, **case)
        seen = {}
        trainer.optimizer.register_step_pre_hook(lambda *_: seen.update(      # noqa: B023
            (n, ranks.whole(p.grad).numpy(force=True).copy())                 # noqa: B023
            for n, p in trainer.model.named_parameters()))                    # noqa: B023
        if group.rank:
            trainer.follow()
            continue
        log = take_step(trainer, seed)
        with group.phase("end", 0):
            group.tell("end")
        found.append((seen, log, type(trainer.policy).__name__))
    return found


@pytest.mark.parametrize("size, sharded", [(2, False), (3, False), (2, True), (3, True)])
def test_any_number_of_ranks_has_the_gradient_of_one(size, sharded, seed):
    """With DDP and with real FSDP2; tied head or not; layers recomputed and compiled or not; with
    rounds in which some have nothing to do. A mean over ranks where a sum belongs, a head whose
    gradient is not reduced, a denominator counted on each rank, or a micro-batch done twice would
    show."""
    cases = [{"micro_batch_tokens": 60}, {"micro_batch_tokens": 10_000, "tied": False},
             {"micro_batch_tokens": 90, "aggregation": "sample", "recompute_layers": True,
              "compile_layers": sharded and size == 2, "fused_adamw": False,
              "logits_chunk_tokens": 7}]
    plain = {"recompute_layers": False, "compile_layers": False}
    alone = all_gradients(Ranks(), seed, [case | plain for case in cases])
    several = run_ranks(all_gradients, size, sharded, seed=seed, cases=cases)[0]
    for (expected, log, _), (got, got_log, kind) in zip(alone, several, strict=True):
        assert kind == ("FSDPPolicy" if sharded else "DistributedDataParallel")
        assert set(got) == set(expected)
        for name in expected:
            want, have = torch.tensor(expected[name]), torch.tensor(got[name])
            error = (want - have).norm() / want.norm()
            assert error < 1e-6, f"{name}: {error}"             # FSDP2 reduces in fp32
        assert set(got_log) == set(log)
        for name in log:
            assert math.isclose(got_log[name], log[name], rel_tol=1e-6, abs_tol=1e-9), name


@pytest.mark.parametrize("setting, value", [
    ("attention", "flash"), ("compile_layers", True), ("fused_adamw", False),
    ("logits_chunk_tokens", 7), ("recompute_layers", True)])
def test_a_setting_of_the_machine_changes_how_a_step_is_computed_and_not_its_result(
        setting, value, seed, monkeypatch):
    """torch's compiler, which takes a minute, and its kernel for GPUs are stood in for."""
    trace = []

    def traced(function, seen=lambda **_: True):
        return lambda *args, **options: (seen(**options) and trace.append(1)) or function(
            *args, **options)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", traced(plain_varlen))
    monkeypatch.setattr(packed, "uses_flash", lambda attention, *_: attention == "flash")
    monkeypatch.setattr(torch, "compile", counting_backend(trace))
    monkeypatch.setattr(policy, "checkpoint", traced(policy.checkpoint))
    monkeypatch.setattr(policy, "token_logprobs", traced(
        policy.token_logprobs, lambda chunk_tokens, **_: chunk_tokens == 7))
    results = []
    for settings in ({}, {setting: value}):
        assert not trace
        trainer, found = make_trainer(Ranks(), seed, grad_clip=1e9, **settings), {}
        trainer.optimizer.register_step_pre_hook(lambda *_: found.update(         # noqa: B023
            (name, p.grad.clone()) for name, p in trainer.model.named_parameters()))  # noqa: B023
        take_step(trainer, seed)
        if setting == "fused_adamw":
            trace += [1] * (not trainer.optimizer.defaults["fused"])
            found = dict(trainer.model.named_parameters())
        results.append(found)
    assert trace
    AttentionInterface.register("packed", packed.attend)        # compiling has replaced it
    for name, want in results[0].items():
        error = (want - results[1][name]).norm() / want.norm()
        assert error < 1e-5, f"{name}: {error}"                 # norms round to fp32 on the way


def test_a_model_whose_layers_have_no_name_is_refused_only_where_they_are_needed(llama):
    llama._no_split_modules = None
    policy.shape_layers(llama, "cpu")
    with pytest.raises(ValueError, match="transformers names none of LlamaForCausalLM"):
        policy.shape_layers(llama, "cpu", recompute=True)


def test_layers_are_recomputed_for_the_backward_pass_and_never_while_sampling(seed):
    """In a copy (the sampler's, in bf16) it is the copy's own weights that are used."""
    model = random_llama(layers=3)
    policy.shape_layers(model, "cpu", recompute=True)
    calls = []
    for module in model.modules():
        if type(module).__name__ == "LlamaMLP":
            module.register_forward_pre_hook(lambda *_: calls.append(1))
    ids = torch.randint(0, 37, (1, 9))
    model(ids, use_cache=False).logits.sum().backward()
    assert len(calls) == 6
    with torch.no_grad():
        logits, twin = model(ids, use_cache=False).logits, copy.deepcopy(model)
        assert len(calls) == 9
        for parameter in model.parameters():
            parameter.zero_()
        assert torch.equal(twin(ids, use_cache=False).logits, logits)


def bf16_logprobs(group, seed):
    """(log-probs, dtypes of masters and gradients) with bf16 arithmetic."""
    trainer = make_trainer(group, seed, dtype=torch.float32, compute=torch.bfloat16,
                           micro_batch_tokens=60)               # several forwards
    if group.rank:
        return trainer.follow()
    rollouts, _ = step_inputs(seed)
    with group.phase("logprobs", 0):
        group.tell("logprobs", lambda: ranks.to_tensors(rollouts), head_fp32=True)
        logprobs = policy.logprobs_of(trainer.policy, rollouts, True, 60)
    dtypes = {p.dtype for p in trainer.model.parameters()}      # shards again, not bf16 wholes
    trainer.optimizer.register_step_pre_hook(lambda *_: dtypes.update(
        x.dtype for p in trainer.model.parameters() for x in (p, p.grad)))
    take_step(trainer, seed)
    with group.phase("end", 0):
        group.tell("end")
    return logprobs.tolist(), list(map(str, dtypes))


def test_sharded_ranks_in_bf16_keep_fp32_masters_gradients_and_log_probs(seed):
    """accelerate's own FSDP2 policy for bf16 rounds the log-probs to bf16 (an error of 1e-2 at
    -5) and reduces gradients in it."""
    exact = torch.tensor(bf16_logprobs(Ranks(), seed)[0])
    (values, dtypes), _ = run_ranks(bf16_logprobs, 2, True, dtype=torch.bfloat16, seed=seed)
    values = torch.tensor(values)
    assert dtypes == ["torch.float32"]
    sampled = values != 0
    assert (values != values.bfloat16().float())[sampled].float().mean() > 0.9
    assert (values - exact)[sampled].abs().mean() < 0.2         # the model is rounded, both times


# ---------------------------------------------------------------------------------------------
# Checkpoints, weights for the generators, and the final model


def chain_link(trainer, seed, folder, load, step):
    """Load, take a step, save; then the weights as generators get them, and an exported model."""
    group = trainer.ranks
    if load:
        with group.phase("load", step):
            group.tell("load", folder=str(load))
            checkpoint.load_training_state(load, trainer.model, trainer.optimizer)
    take_step(trainer, seed + step, step)
    with group.phase("save", step):
        group.tell("save", folder=str(folder))
        trainer.save_shard(folder, plain={"step": step}, tensors={"random": {}})
    pushed = {name: tensor.float().numpy() for name, tensor in ranks.full_tensors(
        trainer.model, group, step, torch.bfloat16)}
    tokenizer = SimpleNamespace(save_pretrained=lambda path: None)
    checkpoint.save_model(trainer.model, tokenizer,
                          ranks.full_tensors(trainer.model, group, step), folder / "model")
    return pushed


def test_a_checkpoint_of_any_number_of_ranks_goes_on_with_any_other(seed, tmp_path):
    """1, then 2 with FSDP2, 3 with DDP, 3 with FSDP2 (its shards are uneven), and 1 again, a step
    each: weights, Adam's moments and its step counts are those of as many steps on one rank. What
    FSDP2's ranks sent to the generators and exported is bit for bit what they saved."""
    places = [(1, False), (2, True), (3, False), (3, True), (1, False)]
    folders = [tmp_path / f"step_{i}" for i in range(len(places))]
    for i, (size, sharded) in enumerate(places):
        args = (seed, folders[i], folders[i - 1] if i else None, i)
        if size == 1:
            pushed = link_of_ranks(Ranks(), seed, args)
        else:
            pushed = run_ranks(link_of_ranks, size, sharded, seed=seed, args=args)[0]
        assert checkpoint.read_state(folders[i]) == {"step": i}
        assert len(list(folders[i].glob("model*.safetensors"))) == size
        read = make_trainer(Ranks(), seed)
        checkpoint.load_training_state(folders[i], read.model, read.optimizer)
        exported = AutoModelForCausalLM.from_pretrained(folders[i] / "model", dtype=torch.float64)
        exported = dict(exported.named_parameters())
        for name, parameter in read.model.named_parameters():
            assert torch.equal(parameter.bfloat16().float(), torch.tensor(pushed[name])), name
            assert torch.equal(parameter, exported[name]), name

    alone = make_trainer(Ranks(), seed, micro_batch_tokens=60)
    for i in range(len(places)):
        take_step(alone, seed + i, i)
    for (name, want), have in zip(alone.model.named_parameters(), read.model.parameters()):
        assert (want - have).norm() / want.norm() < 1e-5, name
        for moment in ("exp_avg", "exp_avg_sq"):
            a, b = alone.optimizer.state[want][moment], read.optimizer.state[have][moment]
            assert (a - b).norm() / a.norm() < 1e-5, (name, moment)
        assert read.optimizer.state[have]["step"] == len(places)


def link_of_ranks(group, seed, args):
    return rank_0(group, chain_link, seed, *args, micro_batch_tokens=60)


# ---------------------------------------------------------------------------------------------
# Loud failure


def waiting(group, seed, flag):
    """Rank 0 waits for samples that never come; the others wait for it."""
    trainer = make_trainer(group, seed)
    if group.rank:
        return trainer.follow()
    with group.phase("load", 7):
        group.tell("logprobs", lambda: ranks.to_tensors(step_inputs(seed)[0]),
                   head_fp32=True)
        policy.logprobs_of(trainer.policy, step_inputs(seed)[0], True, 8192)
    flag.touch()
    time.sleep(100)


@pytest.mark.parametrize("who, how", [(1, signal.SIGKILL), (0, signal.SIGKILL),
                                      (1, signal.SIGSTOP)])
def test_a_rank_that_dies_or_hangs_while_the_others_wait_is_named(who, how, seed, tmp_path):
    """A dead one closes its connections; one that hangs is noticed at the deadline. Rank 0 is
    woken although it waits for something else than its ranks."""
    flag = tmp_path / "flag"
    with processes(waiting, 3, seed=seed, flag=flag, deadline_s=4) as (children, results):
        deadline = time.monotonic() + 90
        while not flag.exists():
            assert time.monotonic() < deadline and results.empty(), results.get()
            time.sleep(0.02)
        os.kill(children[who].pid, how)
        found = answers(children, results, {0, 1, 2} - {who}, timeout=60)
    for sentence in found.values():
        assert f"rank {who} is dead, stuck or cut off" in sentence, found
        assert "wait" in sentence and "version" in sentence and len(sentence.splitlines()) == 1


def late(group, seed, seconds):
    """Rank 1's model is there later than the others'."""
    time.sleep(seconds * group.rank)
    make_trainer(group, seed)
    return "all there"


@pytest.mark.parametrize("seconds, start_deadline_s, said", [
    (4, 60, "all there"),
    (60, 2, "rank 0: start: rank 1 has not loaded the model in time (start_deadline_s), look at")])
def test_ranks_wait_for_the_last_model_as_long_as_a_start_may_take(seconds, start_deadline_s, said,
                                                                  seed):
    with processes(late, 2, seed=seed, seconds=seconds, deadline_s=2,
                   start_deadline_s=start_deadline_s) as (children, results):
        assert said in answers(children, results, {0})[0]


def failing(group, seed, how, folder):
    """A checkpoint, a step, and then a second one of either that fails on rank 1 alone."""
    if how == "apart":                      # as on two machines without a shared file system
        (folder / str(group.rank)).mkdir()
        os.chdir(folder / str(group.rank))
        folder = Path()
    trainer = make_trainer(group, seed, micro_batch_tokens=60)
    saves = how in ("disk", "killed while saving")

    def save(version):
        with group.phase("save", version):
            group.tell("save", folder=str(folder / f"step_{version}"))
            trainer.save_shard(folder / f"step_{version}", plain={})

    def fail(*_):
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "killed while saving":      # with a file written, and not yet flushed
            checkpoint.flush = lambda path: os.kill(os.getpid(), signal.SIGKILL)
        elif how == "memory":
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of "
                "79.10 GiB of which 896.00 MiB is free. Process 7 has 78.00 GiB memory in use.")
        elif how == "disk":
            resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
    if group.rank:
        trainer.optimizer.register_step_post_hook(
            lambda *_: fail() if saves else trainer.policy.register_forward_hook(fail))
        try:
            return trainer.follow()
        except FloatingPointError:
            (folder / "rank 1 has ended").touch()
            raise
    save(4)
    take_step(trainer, seed)
    rollouts, rewards = step_inputs(seed)
    if how == "infinite":           # of one sample: one rank has it, the other has not
        rollouts[3].logprobs[0] = math.inf
    if saves:
        save(5)
    try:
        return train_step(trainer.policy, trainer.optimizer, rollouts, rewards, 5, trainer.config,
                          group)
    except FloatingPointError:      # rank 0 writes its samples down, which takes a while
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline and not (folder / "rank 1 has ended").exists():
            time.sleep(0.05)
        assert not (folder / "rank 1 has ended").exists()
        raise


@pytest.mark.parametrize("how, sentence", [
    ("killed", "rank 0: train, version 5: rank 1 is dead, stuck or cut off, look at its log"),
    ("killed while saving", "rank 0: save, version 5: rank 1 is dead, stuck or cut off"),
    ("infinite", "version 5: behavior_logprobs of sample"),
    ("memory", "rank 1: train, version 5: out of memory, 1.62 GiB short of 79.10"),
    ("disk", "step_5 could not be written (rank 1: "),      # in a folder that is called nccl
    ("apart", "model.00001-of-00002.safetensors of another rank is not to be seen here")])
def test_what_fails_on_one_rank_ends_all_in_a_sentence_that_names_it(how, sentence, seed,
                                                                     tmp_path):
    """And what was saved before stays whole."""
    tmp_path = tmp_path / "nccl"
    tmp_path.mkdir()
    with processes(failing, 2, seed=seed, how=how, folder=tmp_path) as (children, results):
        found = answers(children, results, {0, 1} - {1 if "killed" in how else 2}, timeout=60)
    assert all(sentence in text and len(text.splitlines()) == 1 for text in found.values()), found
    if how == "apart":
        assert not list(tmp_path.rglob("step_*"))
        return
    assert [path.name for path in checkpoint.saved(tmp_path)] == ["step_4"]
    assert checkpoint.read_state(tmp_path / "step_4") == {}
    assert [path.name for path in tmp_path.glob("*step_*")] == ["step_4"]


def hanging(folder, where):
    """A run in one process, whose engine or whose training has no end."""
    for stream, name in ((1, "out"), (2, "error")):
        os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY), stream)
    hang = lambda *_: threading.Event().wait()                                  # noqa: E731
    run = scalerl.Run.__new__(scalerl.Run)
    run.ranks = Ranks(deadline_s=0.2)
    run.config = Config(model="x", engine="transformers", samples_per_prompt=3)
    run.step, run.version, run.k, run.stop, run.fleet = 6, 4, 8, 0, None
    if where == "generate":
        run.decode(SimpleNamespace(step=hang))
    elif where == "push":
        run.model = random_llama()
        run.push(SimpleNamespace(push_weights=hang))
    rollouts = rollouts_of(2, 3, random.Random(0))
    run.curriculum, run.policy = SimpleNamespace(record=hang), hang
    run.questions = SimpleNamespace(train=None)
    run.tokenizer = run.marker = run.optimizer = None
    scalerl.mark = lambda *_: ([1.0, -1.0, -1.0] * 2, {})
    run.curriculum.record = lambda *_: None
    run.train_on([scalerl.Group(g, "p", 0, 3, rollouts[3 * g: 3 * g + 3]) for g in (0, 1)])


@pytest.mark.parametrize("where", ["generate", "push", "train"])
def test_what_hangs_in_this_process_ends_it_at_the_deadline_with_a_sentence(where, tmp_path):
    """A kernel or an engine that never returns: no exception could be raised there."""
    child = SPAWN.Process(target=hanging, args=(tmp_path, where), daemon=True)
    child.start()
    child.join(60)
    child.kill()
    assert child.exitcode == 1
    error = (tmp_path / "error").read_text()
    assert error.startswith(f"scalerl.py: step 7: {where}, version 4, engine transformers: no "
                            "progress for 0.2 s, at ") and len(error.splitlines()) == 1


def test_a_step_of_many_micro_batches_is_in_time_as_long_as_each_of_them_is(seed, monkeypatch):
    """A whole step may rightly take longer than any wait for another. Time is played here."""
    trainer, ends, batches = make_trainer(Ranks(), seed, micro_batch_tokens=30), [], []
    dog, ticks = trainer.ranks.watchdog, Watchdog.TICKS - 1
    monkeypatch.setattr(os, "_exit", ends.append)

    def slow(*_):
        batches.append(1)
        for _ in range(ticks):
            dog.tick()
    trainer.policy.register_forward_hook(slow)
    with dog("a step"):
        take_step(trainer, seed)
    assert len(batches) > 3 and not ends
    slow(), slow()                                          # between two steps nobody is watched
    assert not ends
    ticks += 2
    with dog("a step"):
        take_step(trainer, seed)
    assert set(ends) == {1}


# ---------------------------------------------------------------------------------------------
# Whole runs on real servers


def run_main(group, words, folder):
    """scalerl.py on this rank, with the group (and its sharding) that it has already. After every
    push it notes what was sent, and what weights the servers have."""
    os.chdir(folder)
    scalerl.Ranks = lambda **_: group
    push = Fleet.push

    def push_and_note(fleet, named_tensors, version, **options):
        sent = {}
        push(fleet, ((name, sent.setdefault(name, tensor.clone()))
                     for name, tensor in named_tensors), version, **options)
        if sent:
            note = folder / f"push_{len(list(folder.glob('push_*.json')))}"
            safetensors.torch.save_file(sent, note.with_suffix(".safetensors"))
            note.with_suffix(".tmp").write_text(json.dumps({
                "version": version, "servers": [checksums(s.url) for s in fleet.servers
                                                if s.version == version]}))
            note.with_suffix(".tmp").rename(note.with_suffix(".json"))      # killed any moment
    Fleet.push = push_and_note
    return scalerl.main(words)


def checksums(url):
    """vLLM's own, of the weights as its layers hold them."""
    request = urllib.request.Request(url + "/weight_checker", b'{"action": "checksum"}',
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["checksums"]


def test_sharded_ranks_beside_two_servers_are_killed_and_go_on_with_other_numbers(
        micro, tmp_path, seed):
    """2 ranks with real FSDP2, 2 vLLM servers; SIGKILL to the ranks in the middle. Resumed with
    other numbers of ranks and of servers, and killed again at a random moment (THOROUGH: ten times
    in all); in the end one rank goes on to the last step. After every push of any of them each
    server has, bit for bit, what was sent: the weights of the two ranks' checkpoint among them,
    and in the end those of `model/`. Every group that was ever admitted has been trained once, all
    its samples, or is outstanding."""
    rng, kills = random.Random(seed), 10 if THOROUGH else 2
    servers = [Served(micro, tmp_path / f"server_{i}.log") for i in range(2)]
    folder = tmp_path / "runs" / "s"

    def words(count):
        return arguments(micro, name="s", engine="vllm", steps=6 * kills, checkpoint_every=2,
                         eval_every=100, retire_at=1.5, deadline_s=60, gpus=0, slots=20,
                         vllm_url=",".join(server.url for server in servers[:count]))
    try:
        for server in servers:
            server.wait()
        with processes(run_main, 2, sharded=True, dtype=torch.float32, words=words(2),
                       folder=tmp_path) as (children, results):
            deadline = time.monotonic() + 120
            while not (folder / "checkpoints" / "step_4").exists():
                assert time.monotonic() < deadline and results.empty(), (folder, results.get())
                time.sleep(0.02)
        first = {path.name for path in (folder / "checkpoints" / "step_4").glob("model*")}
        assert first == {"model.00000-of-00002.safetensors", "model.00001-of-00002.safetensors"}
        sharded = AutoModelForCausalLM.from_pretrained(micro, dtype=torch.float32)
        checkpoint.load_training_state(folder / "checkpoints" / "step_4", sharded,
                                       torch.optim.AdamW(sharded.parameters()))
        for kill in range(1, kills):            # by turns 3 or 1 ranks and 1 server, 2 and 2
            size, count = ((3, 1), (2, 2), (1, 1), (2, 2))[(kill - 1) % 4]
            with processes(run_main, size, sharded=size > 1, dtype=torch.float32,
                           words=[*words(count), "--resume"], folder=tmp_path) as (_, results):
                log, deadline = folder / "metrics.jsonl", time.monotonic() + 180
                step = log.read_text().count("\n") + rng.randint(0, 5)
                while log.read_text().count("\n") < step and results.empty():
                    assert time.monotonic() < deadline, folder
                    time.sleep(0.02)
                time.sleep(rng.random())
        assert run_ranks(run_main, 1, dtype=torch.float32, words=[*words(2), "--resume"],
                         folder=tmp_path) == [0]
        found = [checksums(server.url) for server in servers]
        model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
        fleet = Fleet([server.url for server in servers], slots=4, length=134,
                      dtype=torch.float32)
        fleet.push(model.named_parameters(), 0, verify=True)
        assert [checksums(server.url) for server in servers] == found
        # Sent again, last one first and by one process: what the push before leaves is another's.
        pushes = sorted(tmp_path.glob("push_*.json"), key=os.path.getmtime, reverse=True)
        whole = dict(sharded.named_parameters())
        versions, of_checkpoint, before = set(), 0, None
        for number, path in enumerate(pushes, 1):
            note = json.loads(path.read_text())
            sent = safetensors.torch.load_file(path.with_suffix(".safetensors"))
            fleet.push(sent.items(), number)
            now = [checksums(server.url) for server in servers]
            assert note["servers"] and all(weights == now[0] == now[1]
                                           for weights in note["servers"])
            assert before is None or (now[0] != before[0]) == any(
                not torch.equal(tensor, before[1][name]) for name, tensor in sent.items())
            before = now[0], sent
            versions.add(note["version"])
            of_checkpoint += all(torch.equal(tensor, whole[name]) for name, tensor in sent.items())
        fleet.close()
    finally:
        for server in servers:
            server.kill()

    self_test, *steps = lines(folder)
    assert self_test["mismatch/fp32_head/max_abs_dlogp"] < 1e-4
    assert [r["step"] for r in steps] == list(range(1, 6 * kills + 1))
    assert {r["version"] for r in steps} <= versions and of_checkpoint > 0
    assert max(r["lag/max"] for r in steps) in (1, 2)
    assert steps[0]["lag/max"] == 0
    trained = [g for line in lines(folder, "groups.jsonl") for g in line["groups"]]
    assert all(len(group["rewards"]) == SMALL["samples_per_prompt"] for group in trained)
    state = checkpoint.read_state(folder / "checkpoints" / f"step_{6 * kills}")
    outstanding = [group["group_id"] for group in state["groups"]]
    assert sorted([group["id"] for group in trained] + outstanding) == list(range(
        state["admitted"]))
