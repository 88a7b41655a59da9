"""Real vLLM servers: the promises of the other engines over HTTP, and what a network adds to them.
Servers are killed, stopped and cut off for real. They need `make vllm`; `make test` has it done."""

import json
import re
import shutil
import signal
import socket
import time
from collections import Counter

import psutil
import pytest
import torch
from conftest import (ROOT, VLLM_FAMILIES, check_cut_thinking, drain, errors, moved, of_family,
                      plain_logprobs, requests, run_command, swapped_logprobs)
from served import Served, connect, drained, needs_push, push, some, until  # noqa: F401
from transformers import AutoModelForCausalLM

from servers.server import ServerError
from engines.vllm_inprocess import block_bytes
from sampler import Interruption


@pytest.fixture(scope="module")
def served(micro, tmp_path_factory):
    server = Served(micro, tmp_path_factory.mktemp("served") / "log")
    try:
        server.wait()
        yield server
    finally:
        server.kill()


@pytest.fixture
def plain(micro, seed):
    return AutoModelForCausalLM.from_pretrained(micro, dtype=torch.float32).eval()


@pytest.fixture
def sampler(served, connect, plain):
    """A sampler on the server, which has the weights of `plain` under version 0."""
    sampler = connect(served.url)
    push(sampler, plain.named_parameters(), 0)
    return sampler


def ask(sampler, method, *args):
    """A request of the pool's own, behind its back."""
    pool = sampler.pool
    return pool.wait(getattr(pool.servers[0], method)(*args))


def hold(sampler):
    """Pause the server until the next push: however fast it is, the unfinished stays so. (The
    pool would notice at its next look, HEALTH_S.)"""
    ask(sampler, "post", "/pause?mode=keep&clear_cache=false")


def test_log_probs_are_those_of_a_full_forward_before_and_after_a_push(served, connect, plain):
    """fp32, lag 0, temperature included."""
    sampler, new = connect(served.url, temperature=0.8), moved(plain, 0.1)
    for model, version in ((plain, 0), (new, 1)):
        push(sampler, model.named_parameters(), version)
        rollouts = drain(sampler, requests(9, samples=4))
        assert {v for r in rollouts for v in r.versions} == {version}
        assert Counter(r.group_id for r in rollouts) == {i: 4 for i in range(9)}
        assert errors(model, rollouts, 0.8).mean() <= 1e-5
        assert errors(model, rollouts, 0.8).max() < 1e-4
    assert errors(plain, rollouts, 0.8).mean() > 1e-2       # the weights did differ
    until(lambda: sampler.pool.servers[0].tokens > 0)      # its own count is found
    log = sampler.log()
    assert 0 < log["off_policy/busy_share"] <= 1 and log["off_policy/waited_s"] > 0
    assert not any(value for name, value in log.items() if name.startswith("servers/"))


@pytest.mark.days(4)
@pytest.mark.parametrize("family", VLLM_FAMILIES)
def test_experts_and_olmo_2_agree_before_and_after_a_push(family, seed, tmp_path, connect):
    """As in the trainer's process. Experts are packed on the first load only: after a push they
    would be read as nonsense, .4 nats off and more. The same weights are pushed twice."""
    old = of_family(family, tmp_path / "model")
    new = moved(old, 0.3)
    server = Served(tmp_path / "model", tmp_path / "log")
    try:
        server.wait()
        sampler = connect(server.url, phrase=())
        for version, model in enumerate((old, new, new)):
            push(sampler, model.named_parameters(), version)
            rollouts = drain(sampler, requests(4))
            assert {v for r in rollouts for v in r.versions} == {version}
            assert len(rollouts) == 12 and errors(model, rollouts).max() < 1e-4
        assert errors(old, rollouts).mean() > 1e-2          # the weights did differ
    finally:
        server.kill()


@pytest.mark.days(4, turn=2)
def test_thinking_is_cut_at_a_random_budget_and_the_phrase_is_not_sampled(sampler, plain):
    with torch.no_grad():                   # less sure, or it would nearly always end by itself
        plain.model.norm.weight *= 0.2
    push(sampler, plain.named_parameters(), 1)
    rollouts = drain(sampler, requests(20, samples=12))
    assert len(rollouts) == 240
    check_cut_thinking(rollouts)
    assert errors(plain, rollouts).max() < 1e-4         # the answers are conditioned on the phrase


def test_a_push_in_flight_is_in_the_versions_and_running_sequences_keep_their_cache(
        served, connect, plain, monkeypatch):
    """Nobody waits for anybody: samples that began under the old weights come back with spans of
    both, and log-probs of new weights over keys and values of the old ones. (The answer is a
    second request, whose keys and values are computed anew.) Of 405 samples 20 run at a time: so
    there are some whenever the pause reaches the engine."""
    monkeypatch.setattr("servers.pool.HEALTH_S", 1e6)     # before the first look
    sampler, new = connect(served.url, eos=()), moved(plain, 0.3)
    sampler.interruption = Interruption(20, 100, 4, (30, 31, 7))
    mixed, gaps = 0, []
    for old in range(0, 20, 2):         # all 20 may have been at their answers
        if mixed > 3:
            break
        push(sampler, plain.named_parameters(), old)
        for request in requests(27, samples=15, length=7):      # of 20 to 100 tokens
            sampler.submit(request)
        rollouts = some(sampler)            # the shortest budgets are over, others run
        hold(sampler)
        push(sampler, new.named_parameters(), old + 1)
        rollouts += drain(sampler)
        assert Counter(r.group_id for r in rollouts) == {i: 15 for i in range(27)}
        for r in rollouts:
            assert r.versions == sorted(r.versions) and set(r.versions) <= {old, old + 1}
            first = r.sampled.index(False) if r.interrupted else len(r.versions) - 4
            n = r.versions.index(old + 1) if old + 1 in r.versions else len(r.versions)
            logprobs, kept = torch.tensor(r.behavior_logprobs), min(n, first)
            assert torch.allclose(logprobs[:kept], plain_logprobs(plain, r)[:kept], atol=1e-4)
            if 0 < n < first:               # new weights came in the middle of its thinking
                mixed += 1
                expected = swapped_logprobs(plain, new, r, n)[: first - n]
                assert torch.allclose(logprobs[n: first], expected, atol=1e-4)
                gaps.append((expected - plain_logprobs(new, r)[n: first]).abs().max())
    assert mixed > 3 and max(gaps) > 1e-3
    assert not ask(sampler, "get", "/is_paused")["is_paused"]


@pytest.mark.days(6, turn=2)
def test_what_a_full_cache_has_preempted_goes_on_after_a_push(micro, connect, plain, tmp_path,
                                                              monkeypatch):
    """Eight blocks for twenty samples of two to four: vLLM throws out what it has begun, and takes
    it up again. None is asked for a second time. (On a busy machine the
    engine may be done with all twenty before the pause reaches it: then twenty more.)"""
    monkeypatch.setattr("servers.pool.HEALTH_S", 1e6)
    blocks = 9 * block_bytes(micro, torch.float32)                  # one is vLLM's own
    server = Served(micro, tmp_path / "log", f"--kv-cache-memory-bytes {blocks}")
    try:
        server.wait()
        sampler = connect(server.url, eos=(), phrase=())
        sampler.interruption = Interruption(40, 100, 4, ())
        push(sampler, plain.named_parameters(), 0)
        hold(sampler)

        def counted(name):
            metrics = ask(sampler, "get", "/metrics")
            return sum(map(float, re.findall(rf"^vllm:{name}{{.*}} (\S+)$", metrics, re.MULTILINE)))
        sent, earlier, preempted = sampler.pool.servers[0], [], False
        while not preempted:
            assert len(earlier) < 200, "ten times twenty, and nothing was preempted"
            for i, request in enumerate(requests(20, samples=1, length=7)):
                sampler.submit(request)                             # one after another: in order
                until(lambda: len(sent.requests) == i + 1)          # noqa: B023
                time.sleep(0.02)
            begun = 0
            while begun < 20 and not preempted:
                ask(sampler, "post", "/resume")
                hold(sampler)                                      # a few steps of the engine later
                time.sleep(0.1)                                     # its last step is counted
                begun = counted("time_to_first_token_seconds_count") - len(earlier)
                preempted = counted("num_requests_waiting") > 20 - begun > 0
            if not preempted:
                ask(sampler, "post", "/resume")
                earlier = drained(sampler, earlier)
                hold(sampler)
        done = [*sampler.finished()]
        push(sampler, moved(plain, 0.1).named_parameters(), 1)
        rollouts = drained(sampler, done)
        assert Counter(r.group_id for r in rollouts) == dict.fromkeys(range(20), 1)
        assert sum({0, 1} == set(r.versions) for r in rollouts) == begun - len(done)
        assert sampler.log()["servers/late_starts"] == 20 - begun
    finally:
        server.kill()


def test_a_request_that_began_under_newer_weights_than_its_salt_keeps_its_tokens(
        served, connect, plain, monkeypatch):
    """All of them wait while the weights change. No block of their prompts was there, so they are
    the new weights' alone."""
    monkeypatch.setattr("servers.pool.HEALTH_S", 1e6)
    sampler, new = connect(served.url), moved(plain, 0.3)
    push(sampler, plain.named_parameters(), 0)
    hold(sampler)
    for request in requests(3, samples=4, length=100):
        sampler.submit(request)
    until(lambda: len(sampler.pool.servers[0].requests) == 12)
    push(sampler, new.named_parameters(), 1)
    rollouts = drain(sampler)
    assert {v for r in rollouts for v in r.versions} == {1} and len(rollouts) == 12
    assert errors(new, rollouts).max() < 1e-4
    assert sampler.log()["servers/late_starts"] == 12


def test_a_push_that_breaks_off_leaves_nothing_serving_mixed_weights(
        served, sampler, connect, plain, monkeypatch):
    """Half of the buckets arrive. The server stays paused with its old weights, whole; only a
    complete push, of the next trainer, lets it go on."""
    new = moved(plain, 0.3)
    monkeypatch.setattr("servers.server.BUCKET_BYTES", 30_000)
    label = ask(sampler, "get", "/weight_info")["weight_version"]
    for request in requests(5, samples=4):
        sampler.submit(request)

    def breaking():
        for i, pair in enumerate(new.named_parameters()):
            if i == 9:
                raise MemoryError("gather failed")
            yield pair
    with pytest.raises(MemoryError):
        sampler.push_weights(breaking(), 1)
    assert ask(sampler, "get", "/is_paused")["is_paused"]
    assert ask(sampler, "get", "/weight_info")["weight_version"] == label
    sampler.close()
    resumed = connect(served.url)
    push(resumed, new.named_parameters(), 1)
    assert errors(new, drain(resumed, requests(5, samples=4))).max() < 1e-4


@pytest.mark.days(4, turn=0)
def test_a_server_that_stops_answering_is_given_up_after_the_deadline(
        served, connect, plain, monkeypatch):
    """SIGSTOP: its connections stay open, nothing ever fails by itself. When it goes on, all its
    samples come, once."""
    monkeypatch.setattr("servers.pool.HEALTH_S", 0.2)
    sampler = connect(served.url, deadline_s=4)
    push(sampler, plain.named_parameters(), 0)
    for request in requests(6, samples=5):
        sampler.submit(request)
    rollouts = some(sampler)
    processes = served.tree
    try:
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        # Those under way may all have been answered in that moment; these cannot be.
        for request in requests(8, samples=5)[6:]:
            sampler.submit(request)
        with pytest.raises(ServerError, match=f"no server is ready since 4 s; {served.url} is "
                                              "lost: .*no answer for 4 s"):
            while sampler.in_flight:
                rollouts += sampler.step()
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)
    until(lambda: needs_push(sampler), 120, "the server")
    rollouts = drained(sampler, rollouts)
    assert Counter(r.group_id for r in rollouts) == {i: 5 for i in range(8)}
    assert errors(plain, rollouts).max() < 1e-4


def run(served, cwd, *more, start=()):
    """A small run of scalerl.py on the server, k = 2, by `start`; returns (process, lines of its
    log)."""
    done = run_command([
        *start, ROOT / "scalerl.py", "--model", served.model, "--vllm-url", served.url, "--gpus", 0,
        "--prompts-per-step", 4, "--samples-per-prompt", 4, "--slots", 12, "--think-min", 8,
        "--think-max", 22, "--answer-tokens", 3, "--eval-samples", 2,
        "--eval-every", 3, "--lr", 1e-3, "--warmup-steps", 2,
        "--off-policy", "pipeline-2", "--heldout-prompts", 8, "--deadline-s", 60,
        "--name", "r", *more], cwd)
    log = cwd / "runs" / "r" / "metrics.jsonl"
    return done, [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.days(6, turn=4)
def test_a_whole_run_on_a_server_keeps_the_lag_at_most_k_and_goes_on_after_a_stop(
        served, tmp_path):
    """scalerl.py asserts lag <= k for every token. Resumed on the same server, whose weights and
    cached blocks are another run's by then."""
    done, log = run(served, tmp_path, "--steps", 6)
    assert done.returncode == 0, done.stderr
    assert [r["step"] for r in log] == list(range(7))
    assert log[0]["mismatch/fp32_head/mean_abs_dlogp"] < 1e-5
    assert log[1]["lag/max"] == 0 and abs(log[1].get("ratio/mean", 1) - 1) < 1e-4
    assert all(r["lag/max"] <= 2 for r in log[1:]) and any(r["lag/max"] for r in log[1:])
    assert sum(r["completions/interrupted_frac"] for r in log[1:]) > 0
    for r in log[1:]:
        assert 0 < r["off_policy/busy_share"] <= r["off_policy/decoding_share"] <= 1
        assert r["off_policy/waited_s"] >= 0
        assert r["time/generate_s"] >= 0 and r["servers/losses"] == 0
    evals = [*map(json.loads, (tmp_path / "runs/r/evals.jsonl").read_text().splitlines())]
    assert [row["step"] for row in evals] == [0, 3, 6]
    assert all(row["off_policy/waited_s"] > 0 for row in evals)         # their time is not a step's
    shutil.rmtree(tmp_path / "runs/r/checkpoints/step_6")
    done, again = run(served, tmp_path, "--steps", 7)
    assert done.returncode == 0, done.stderr
    assert "unfinished samples start again" in done.stdout
    assert [r["step"] for r in again] == list(range(8)) and again[:4] == log[:4]
    assert again[4]["lag/max"] <= 2


@pytest.mark.days(4, turn=2)
def test_what_our_accelerate_file_says_of_starting_trainers_beside_a_server_is_so(
        served, tmp_path):
    """The command in the file's own comment, of two processes, with --gpus 0: two ranks, which
    take as many steps as they were asked for and export the model."""
    done, log = run(served, tmp_path, "--steps", 3, start=[
        "-m", "accelerate.commands.launch", "--config_file",
        ROOT / "configs/accelerate/fsdp2.yaml", "--num_processes", 2])
    assert done.returncode == 0, done.stderr
    assert [r["step"] for r in log] == list(range(4))
    saved = tmp_path / "runs/r/checkpoints/step_3"
    assert len(list(saved.glob("model.0000*-of-00002.safetensors"))) == 2
    assert (tmp_path / "runs/r/model/config.json").exists()
    assert done.stdout.count("step    1/3") == 1            # rank 0 alone tells


@pytest.mark.days(6, turn=0)
def test_a_server_that_breaks_off_a_load_ends_and_started_again_loses_no_sample(
        served, connect, plain, monkeypatch):
    """Some layers are new by then and some old, so its worker ends, and vLLM ends the rest. The
    server that takes its place has the folder's weights until it gets the current ones. The last
    group is held back, so some are unfinished for sure."""
    monkeypatch.setattr("servers.pool.HEALTH_S", 20)
    sampler, new = connect(served.url, deadline_s=240), moved(plain, 0.3)
    push(sampler, new.named_parameters(), 5)
    processes = served.tree
    assert len(processes) > 2
    *first, last = requests(9, samples=5)
    for request in first:
        sampler.submit(request)
    rollouts = some(sampler)
    hold(sampler)
    sampler.submit(last)
    until(lambda: len(sampler.pool.servers[0].requests) >= 5)
    bad = {name: tensor[1:] if "layers.1.mlp" in name else tensor
           for name, tensor in new.named_parameters()}
    sampler.push_weights(bad.items(), 6)        # version 6 is named, and no server has it
    served.process.wait(30)
    assert 'servers/worker.py", line' in served.log.read_text()
    gone, alive = psutil.wait_procs(processes, 30)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    served.start()
    sampler.weights.tensors = list(new.named_parameters())
    rollouts = drained(sampler, rollouts, 240)
    assert Counter(r.group_id for r in rollouts) == {i: 5 for i in range(9)}
    assert {v for r in rollouts for v in r.versions} == {5, 6}
    assert errors(new, rollouts).max() < 1e-4
    log = sampler.log()
    assert log["servers/losses"] == 1 and 0 < log["servers/resubmitted"] <= 20


def test_a_server_killed_during_the_send_serves_nobody(
        served, connect, plain, monkeypatch, capfd):
    """After the first bucket of several. Nothing is left that could serve what arrived, and the
    run ends with a sentence once nobody has come back."""
    monkeypatch.setattr("servers.server.BUCKET_BYTES", 30_000)
    sampler = connect(served.url)
    push(sampler, plain.named_parameters(), 0)
    early, late = requests(6, samples=4)[:5], requests(6, samples=4)[5]
    for request in early:
        sampler.submit(request)
    server, sent = sampler.pool.servers[0], []
    receive = server.receive

    async def send_and_kill(info, *data):
        sent.append(info)
        if len(sent) == 2:
            served.kill()
        await receive(info, *data)
    server.receive = send_and_kill
    sampler.push_weights(moved(plain, 0.3).named_parameters(), 1)
    assert len(sent) == 2 and sampler.pool.servers[0].state == "lost"
    sampler.submit(late)            # the early ones may all have been answered before the push
    sampler.pool.deadline_s = 2
    assert f"{served.url} is lost: " in capfd.readouterr().err
    with pytest.raises(ServerError, match="generate, version 1: no server is ready since 2 s"):
        while sampler.in_flight:
            sampler.step()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", served.port), 1)
