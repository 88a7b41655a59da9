"""The server pool and its sampler against small HTTP servers of our own, which say what a test
likes, fail where it likes, and hold back what has to be unfinished. No vLLM is needed."""

import asyncio
import base64
import contextlib
import copy
import json
import re
import resource
import sys
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from conftest import EOS, V, WORDS, drain, requests
from transformers import AutoConfig
from served import Fake, connect, drained, free_port, needs_push, push, until  # noqa: F401

from config import Config, ConfigError
from command.make_run import make_samplers
from servers.server import ServerError, ServerFailed, check_answer
from servers.pool import ServerPool, ServerSampler
from sampler import Interruption
from scaleout.placement import free_ports
from scaleout.launch import server_command


# ---------------------------------------------------------------------------------------------
# An answer is checked


def honest(versions=((0, 0, 6),), ids=(5, 6, 7, 8, 9, 10), reason="length"):
    return {"choices": [{
        "token_ids": list(ids), "finish_reason": reason,
        "logprobs": {"content": [{"logprob": -0.25 * (i + 1)} for i in range(len(ids))]},
        "weight_versions": [{"version": f"run-{v}", "start": a, "end": b}
                            for v, a, b in versions]}]}


def checked(answer, asked=6, oldest=0):
    return check_answer({"request_id": "generate-tokens-mine"} | answer, name="mine", asked=asked,
                        vocab=V, eos_ids=[EOS], oldest=oldest,
                        pushed={f"run-{version}": version for version in range(4)})


def test_an_honest_answer_is_taken_apart():
    ids, logprobs, versions = checked(honest(versions=((1, 0, 2), (3, 2, 6))))
    assert ids == [5, 6, 7, 8, 9, 10] and versions == [1, 1, 3, 3, 3, 3]
    assert logprobs == [-0.25, -0.5, -0.75, -1.0, -1.25, -1.5]
    ids, _, versions = checked(honest(ids=(5, EOS), versions=((2, 0, 2),), reason="stop"))
    assert ids == [5, EOS] and versions == [2, 2]


def broken(**change):
    def apply(answer):
        answer["choices"][0].update(change)
    return apply


def spans(*triples):
    return broken(weight_versions=[{"version": f"run-{v}", "start": a, "end": b}
                                   for v, a, b in triples])


def logprob(value):
    def apply(answer):
        answer["choices"][0]["logprobs"]["content"][2]["logprob"] = value
    return apply


def token(value):
    def apply(answer):
        answer["choices"][0]["token_ids"][2] = value
    return apply


# What no server that does what it was asked can say: (the change of an honest answer, the words).
WRONG = [
    (lambda answer: answer.update(request_id="generate-tokens-yours"), "wrong of another request"),
    (lambda answer: answer.update(choices=[]), "not an answer"),
    (lambda answer: answer.update(choices=answer["choices"] * 2), "not an answer"),
    (lambda answer: answer.update(choices=3), "not an answer"),
    (broken(token_ids=[5, 6, 7]), "number of tokens, end, weights; 3 tokens of 6, 6 log-probs"),
    (broken(token_ids=[5] * 7), "number of tokens, weights; 7 tokens of 6"),
    (broken(token_ids=[]), "number of tokens, end, weights; 0 tokens of 6"),
    (broken(token_ids=None), "not an answer"),
    (token(V), rf"wrong token ids \[{V}\];"), (token(-1), r"token ids \[-1\]"),
    (token(5.0), r"token ids \[5.0\]"), (token("5"), r"token ids \['5'\]"),
    (token(True), r"token ids \[True\]"), (token([5]), r"token ids \[\[5\]\]"),
    (token(10**4000), "token ids"), (token(EOS), "wrong end; 6 tokens of 6"),
    (broken(finish_reason="abort", token_ids=[5, 6, 7, 8, 9],
            logprobs={"content": [{"logprob": -1.0}] * 5},
            weight_versions=[{"version": "run-0", "start": 0, "end": 5}]),
     "wrong end; 5 tokens of 6"),
    (broken(logprobs=None), "not an answer"), (broken(logprobs={"content": None}), "not an answer"),
    (logprob(0.25), r"wrong log-probs \[0.25\];"),
    (logprob(-9999.0), r"log-probs \[-9999.0\]"),         # vLLM's word for nan and none
    (logprob(float("nan")), r"log-probs \[nan\]"), (logprob(float("-inf")), r"log-probs \[-inf"),
    (logprob(None), r"log-probs \[None\]"), (logprob("-0.5"), r"log-probs \['-0.5'\]"),
    (logprob(False), r"log-probs \[False\]"),
    (broken(weight_versions=None), "not an answer"),
    (spans((0, 0, 5)), "wrong weights; 6 tokens of 6, .*weights .*'end': 5"),
    (spans((0, 0, 7)), "wrong weights; .*'end': 7"), (spans((0, 0, 10**15)), "wrong weights; "),
    (spans((0, 0, 3), (1, 4, 6)), "wrong weights; "),       # a gap
    (spans((0, 0, 4), (1, 3, 5)), "wrong weights; "),       # twice the same, and one is missing
    (spans((1, 0, 3), (0, 3, 6)), "wrong weights; "),       # older after newer
    (spans((0, "0", 6)), "not an answer"), (spans(), "not an answer"),
    (spans((4, 0, 6)), "not an answer with weights of this run .*'run-4'"),
    (broken(weight_versions=[{"version": "default", "start": 0, "end": 6}]), "'default'"),
]


@pytest.mark.parametrize("change, words", WRONG)
def test_an_answer_that_cannot_be_is_refused_with_the_reason(change, words):
    answer = honest()
    checked(answer)                                         # honest before it was changed
    change(answer)
    with pytest.raises(ServerFailed, match=words):
        checked(answer)


def test_an_answer_of_weights_that_were_replaced_before_it_was_asked_is_refused():
    assert checked(honest(versions=((1, 0, 6),)), oldest=1)
    with pytest.raises(ServerFailed, match="wrong weights"):
        checked(honest(versions=((0, 0, 3), (1, 3, 6))), oldest=1)


def test_the_log_prob_of_a_sure_token_may_be_above_zero_by_rounding():
    answer = honest()
    logprob(4e-6)(answer)
    assert checked(answer)[1][2] == 4e-6


# ---------------------------------------------------------------------------------------------
# The pool


@pytest.fixture
def fake():
    """Makes fake servers."""
    made = []

    def make(*args, **kwargs):
        made.append(Fake(*args, **kwargs))
        return made[-1]
    yield make
    for one in made:
        one.hung.clear()
        one.loop.call_soon_threadsafe(one.open.set)
        with contextlib.suppress(RuntimeError, TimeoutError):
            one.stop()


WEIGHT = [("w", torch.ones(2, 3))]


def breaking_off():
    """Weights that must not be asked for."""
    raise AssertionError("weights were asked for")
    yield


def whole(body, number):
    """An honest answer of as many tokens as were asked for, none of them an end."""
    n = body["sampling_params"]["max_tokens"]
    return honest(ids=[2 + (number + i) % 4 for i in range(n)], versions=((0, 0, n),))


@pytest.mark.parametrize("bad", [
    *(change for change, _ in WRONG[::3]), spans(("0" + "9" * 5000, 0, 1)), lambda answer: b" ",
    lambda answer: b"\x80\x04not json", lambda answer: b'{"choices": [{"token_ids": [1, 2',
    lambda answer: b"{" + b'"a":{' * 100_000, lambda answer: b'{"a": ' + b"9" * 5000,
    lambda answer: b"null", lambda answer: answer.clear()])
def test_a_server_that_answers_wrongly_is_connected_again_and_no_sample_is_lost(
        bad, fake, connect, monkeypatch):
    monkeypatch.setattr("servers.pool.HEALTH_S", 0.1)

    def say(body, number):
        answer = whole(body, number)
        return bad(answer) or answer if number == 3 else answer
    server = fake(say)
    server.open.clear()
    sampler = connect(server.url, vocab=V)
    push(sampler, WEIGHT, 0)
    for request in requests(7, samples=5):
        sampler.submit(request)
    until(lambda: len(server.asked) == 20)
    server.release()
    rollouts = drain(sampler)
    assert Counter(r.group_id for r in rollouts) == {i: 5 for i in range(7)}
    assert all(set(r.versions) == {0} and max(r.output_ids) < 32 for r in rollouts)
    log = sampler.log()
    assert log["servers/losses"] == log["servers/bad_answers"] == 1
    assert 0 < log["servers/resubmitted"] <= 20
    assert sampler.log()["servers/losses"] == 0             # counted once


def test_three_bad_answers_for_one_sample_end_the_run_with_the_reason(fake, connect):
    def say(body, number):
        answer = whole(body, number)
        spans((5, 0, 1))(answer)
        return answer
    sampler = connect(fake(say).url)
    push(sampler, WEIGHT, 0)
    with pytest.raises(ServerError, match="version 0: http.* three bad answers: .*'run-5'"):
        drain(sampler, requests(2, samples=3))


def test_a_mistake_of_the_clients_ends_the_run_instead_of_leaving_it_to_wait(
        fake, connect, monkeypatch):
    sampler = connect(fake(whole).url)
    push(sampler, WEIGHT, 0)
    monkeypatch.setattr(sampler, "absorb", lambda sample: None)
    with pytest.raises(TypeError, match="takes 1 positional argument but 5 were given"):
        drain(sampler, requests(1))


@pytest.mark.gpu_rehearsal
def test_two_thousand_requests_are_in_flight_at_once_where_1024_files_may_be_open(fake, connect):
    """The usual soft limit; each request is a connection. All are held back until all are there."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 5000:
        pytest.skip(f"this process may open {hard} files, client and servers need 5,000")
    fakes = [fake(whole, scheduler_config__max_num_seqs=1000) for _ in range(2)]
    for server in fakes:
        server.open.clear()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        sampler = connect(*(server.url for server in fakes), slots=1000, phrase=())
        push(sampler, WEIGHT, 0)
        for request in requests(8, samples=250):
            sampler.submit(request)
        until(lambda: [len(server.asked) for server in fakes] == [1000, 1000], 120)
        for server in fakes:
            server.release()
        assert Counter(r.group_id for r in drained(sampler)) == {i: 250 for i in range(8)}
        assert sampler.log()["servers/losses"] == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_samples_of_a_group_go_to_one_server_and_servers_are_kept_equally_busy(fake, connect):
    """One server has their prompt in its cache then. Answers are held back, so what was sent is
    seen: 2 x 7 slots, four groups of three, and the fifth split over the two that are left."""
    fakes = [fake(whole), fake(whole)]
    for server in fakes:
        server.open.clear()
    sampler = connect(*(server.url for server in fakes), slots=7, phrase=(), ahead=5)
    push(sampler, WEIGHT, 0)
    for request in requests(6, samples=3):
        sampler.submit(request)
    assert sampler.free_slots == 14 + 5 - 18
    until(lambda: sum(len(server.asked) for server in fakes) == 14)
    for server in fakes:
        prompts = Counter(tuple(body["token_ids"]) for body in server.asked)
        assert sorted(prompts.values()) == [1, 3, 3]
    assert sampler.in_flight == 18
    for server in fakes:
        server.release()
    assert len(drain(sampler)) == 18 and all(server.asked for server in fakes)


def test_the_second_request_of_a_sample_goes_to_the_server_of_its_first(fake, connect):
    """Which has the blocks of its prompt and thinking in the cache."""
    fakes = [fake(whole), fake(whole)]
    sampler = connect(*(server.url for server in fakes))
    push(sampler, WEIGHT, 0)
    groups = requests(8, samples=5)
    assert len(drain(sampler, groups)) == 40
    for server in fakes:
        sent = {tuple(body["token_ids"]) for body in server.asked}
        begun = sent & {group.prompt_ids for group in groups}
        assert begun and sent - begun
        assert all(any(ids[:len(prompt)] == prompt for prompt in begun) for ids in sent)


def test_servers_work_while_the_trainer_does_not_look(fake, connect):
    """Answers are taken and new requests sent with no call of `step`: twice for each sample, with
    slots for a third of them."""
    server = fake(whole)
    sampler = connect(server.url, slots=7, ahead=13)
    push(sampler, WEIGHT, 0)
    for request in requests(4, samples=5):
        sampler.submit(request)
    until(lambda: sampler.done.qsize() == 20)
    assert len(server.asked) == 40 and len(sampler.finished()) == 20


def test_a_sampler_pushes_the_first_weights_itself_if_nobody_has(fake, connect):
    """After a resume, too: under the version that it was restored with."""
    server = fake(whole)
    sampler = connect(server.url, temperature=0.7)
    sampler.weights.tensors, sampler.version = WEIGHT, 4
    assert {v for r in drain(sampler, requests(2)) for v in r.versions} == {4}
    assert server.version.endswith("-4") and sampler.weights.calls == 1
    assert {body["sampling_params"]["temperature"] for body in server.asked} == {0.7}


def test_two_samplers_share_the_servers_and_one_push_serves_both(fake, connect):
    """Evaluation goes first: the trainer waits for it, and for nothing else."""
    server = fake(whole)
    training = connect(server.url, slots=3, phrase=(), ahead=9)
    evaluation = ServerSampler(training.pool, WORDS, Interruption(9, 17, 4, ()),
                               weights=training.weights, prompt_tokens=110, eos_ids=[EOS])
    push(training, WEIGHT, 0)
    evaluation.push_weights(iter(()), 0)                    # nothing is sent a second time
    assert len(server.pushes) == 1
    server.open.clear()
    for request in requests(4, samples=3):
        training.submit(request)
    until(lambda: len(server.asked) == 3)
    evaluation.submit(*requests(1, samples=2, length=55))
    server.release()
    assert len(drain(evaluation)) == 2 and len(drain(training)) == 12
    order = [len(body["token_ids"]) for body in server.asked]
    assert order[3:5] == [55, 55] and 55 not in order[:3] + order[5:]
    assert training.devices == 1
    evaluation.close()
    training.close()                                        # once more, which does nothing


def test_a_checkpoint_asks_again_for_exactly_what_is_missing(fake, connect):
    """Two of a group's four samples have come, the others are held back at another server."""
    fast, held, rollouts = fake(whole), fake(whole), []
    held.open.clear()
    sampler = connect(fast.url, held.url, slots=2, phrase=())
    push(sampler, WEIGHT, 3)
    sampler.submit(requests(1, samples=4)[0])
    until(lambda: rollouts.extend(sampler.finished()) or len(rollouts) == 2)
    state = copy.deepcopy(sampler.state())
    resumed = connect(fast.url, slots=2, phrase=(), seed=5)
    resumed.load_state(state)
    assert (resumed.in_flight, resumed.version) == (2, 3)
    assert torch.equal(resumed.random.get_state(), sampler.random.get_state())
    resumed.weights.tensors = WEIGHT
    rollouts += drain(resumed)
    assert [(r.group_id, r.prompt_ids, set(r.versions)) for r in rollouts] == [
        (0, rollouts[0].prompt_ids, {3})] * 4


def test_busy_time_is_counted_by_slot_and_by_server(monkeypatch):
    """Three servers of four slots, by a clock of our own: 10 s with 3, 0 and (not ready) 1
    requests, then 20 s in which the first is lost and the second has 1."""
    now = [100.0]
    monkeypatch.setattr("servers.pool.time", SimpleNamespace(monotonic=lambda: now[0]))
    servers = [SimpleNamespace(state=state, requests=dict.fromkeys(range(n)), slots=4)
               for state, n in (("ready", 3), ("ready", 0), ("stale", 1))]
    pool = ServerPool.__new__(ServerPool)
    vars(pool).update(servers=servers, counters=Counter(), busy_s=0.0, decoding_s=0.0,
                      counted_at=100.0, logged_at=100.0)
    now[0] += 10
    pool.count_time()
    servers[0].state, servers[1].requests = "lost", {7: None}
    now[0] += 20
    log = asyncio.run(pool.log())
    assert log["off_policy/busy_share"] == pytest.approx((3 * 10 + 1 * 20) / (12 * 30))
    assert log["off_policy/decoding_share"] == pytest.approx((10 + 20) / (3 * 30))
    assert log["off_policy/waited_s"] == pytest.approx(30 - 50 / 12)
    now[0] += 5
    assert asyncio.run(pool.log())["off_policy/busy_share"] == pytest.approx(1 / 12)


def test_thinking_budgets_depend_on_the_seed_alone(fake, connect):
    server = fake(whole)
    sampler = connect(server.url)
    push(sampler, WEIGHT, 0)

    def budgets(seed):
        sampler.reseed(seed)
        return sorted(r.sampled.index(False) for r in drain(sampler, requests(1, samples=20)))
    assert budgets(3) == budgets(3) != budgets(5)


def test_a_server_is_started_in_the_shape_that_was_asked_for(micro):
    config = Config(model=str(micro), tensor_parallel=2,
                    vllm_args="--pipeline-parallel-size 3 --data-parallel-size 5")
    argv, env = server_command(config, length=134, slots=20, dtype=torch.bfloat16,
                               url="http://10.0.0.7:8100", device="4,6")
    given = dict(zip(argv, argv[1:]))
    assert [given[f"--{name}-parallel-size"] for name in ("tensor", "pipeline", "data")] == \
        ["2", "3", "5"]
    assert given["--host"] == "10.0.0.7" and env["CUDA_VISIBLE_DEVICES"] == "4,6"
    argv, _ = server_command(config, length=134, slots=20, dtype=torch.bfloat16,
                             url="http://10.0.0.7:8100")
    # Two servers with one seed would draw the same numbers.
    assert int(given["--seed"]) != int(argv[argv.index("--seed") + 1])


def test_nothing_is_sent_during_a_push_and_the_salt_is_the_version(fake, connect):
    """The tensors are asked for one by one while the gate is closed; behind them, with several
    trainer ranks, are collectives that must never meet a send."""
    server = fake(whole)
    sampler = connect(server.url)
    seen = []

    def tensors():
        sampler.submit(requests(1, samples=4)[0])
        sampler.log()                   # the pool's thread has got to the request by then
        for i in range(3):
            seen.append((len(server.asked), server.paused))
            yield f"w{i}", torch.ones(2)
    for version in range(2):            # to a server without weights, and to one at work
        before = len(server.asked)
        sampler.push_weights(tensors(), version)
        assert seen == [(before, True)] * 3
        seen.clear()
        assert len(drain(sampler)) == 4 and not server.paused
        assert {body["cache_salt"] for body in server.asked[before:]} == {
            f"{server.version}-{sampler.pool.servers[0].connection}"}
        assert server.version.endswith(f"-{version}") and server.version != str(version)


def test_tensors_travel_in_buckets_of_one_type_and_none_is_left_out(fake, connect, monkeypatch):
    monkeypatch.setattr("servers.server.BUCKET_BYTES", 30)
    server = fake(whole, model_config__dtype="torch.bfloat16")
    sampler = connect(server.url, dtype=torch.bfloat16)
    sampler.push_weights(((f"w{i}", torch.full((3, i + 1), i).T) for i in range(7)), 0)
    assert [info["names"] for info in server.updates] == [
        ["w0", "w1", "w2"], ["w3", "w4"], ["w5"], ["w6"]]
    assert [shape for info in server.updates for shape in info["shapes"]] == [
        [i + 1, 3] for i in range(7)]
    assert {name for info in server.updates for name in info["dtype_names"]} == {"bfloat16"}
    sent = bytearray(b"".join(base64.b64decode(info["data"]) for info in server.updates))
    sent = torch.frombuffer(sent, dtype=torch.bfloat16).tolist()
    assert sent == [i for i in range(7) for _ in range(3 * (i + 1))]


@pytest.mark.parametrize("connected_again", [True, False])
def test_a_server_that_is_lost_amid_a_push_gets_all_weights_again_before_it_serves(
        connected_again, fake, connect, monkeypatch):
    """For a bad answer to a request, say. Connected again, it has forgotten the first buckets: the
    others would be loaded among older weights, under the name of the new ones."""
    monkeypatch.setattr("servers.server.BUCKET_BYTES", 1)
    server = fake(whole)
    sampler = connect(server.url)
    push(sampler, [*WEIGHT, ("b", torch.ones(3))], 0)
    there = sampler.pool.servers[0]

    def weights():
        yield WEIGHT[0]
        connection, tries = there.connection, server.tries["/version"]
        sampler.pool.loop.call_soon_threadsafe(sampler.pool._lose, there, "a bad answer")
        if connected_again:
            until(lambda: there.connection != connection)
        else:
            server.hung.add("/version")
            until(lambda: server.tries["/version"] > tries)
        yield "b", torch.ones(3)
    sampler.push_weights(weights(), 1)
    assert there.state != "ready" and server.paused and server.version.endswith("-0")
    server.hung.clear()
    sampler.weights.tensors, sent = [*WEIGHT, ("b", torch.ones(3))], len(server.updates)
    until(lambda: needs_push(sampler))
    assert len(drain(sampler, requests(1))) == 3            # whole, by `step`
    assert server.version.endswith("-1") and not server.paused
    assert [info["names"] for info in server.updates[sent:]] == [[WEIGHT[0][0]], ["b"]]


def test_a_server_that_fails_in_a_push_stays_paused_until_a_whole_push_succeeds(fake, connect):
    """The other one goes on. The trainer's own failure in the middle leaves none serving."""
    good, bad = fake(whole), fake(whole)
    sampler = connect(good.url, bad.url)
    push(sampler, WEIGHT, 0)
    bad.failing["/update_weights"] = 500
    push(sampler, WEIGHT, 1)
    del bad.failing["/update_weights"]
    assert bad.paused and bad.version.endswith("-0") and good.version.endswith("-1")
    assert not good.paused and len(good.pushes) == 2 and len(bad.pushes) == 1
    asked = len(bad.asked)
    until(lambda: needs_push(sampler))  # connected again
    assert bad.paused and len(bad.asked) == asked
    assert len(drain(sampler, requests(1))) == 3            # and gets the weights in `step`
    assert sampler.weights.calls == 1
    assert not bad.paused and bad.version == good.version and len(good.pushes) == 2

    def breaking():
        yield WEIGHT[0]
        raise MemoryError("gather failed")
    with pytest.raises(MemoryError):
        sampler.push_weights(breaking(), 2)
    assert good.paused and bad.paused and good.version.endswith("-1")


def test_a_server_without_progress_is_lost_and_its_samples_are_asked_of_another(
        fake, connect, monkeypatch, capfd):
    """It answers every look, but no request. One that is only slow, and counts tokens, is left in
    peace for longer than the deadline: thirty looks, a tenth of a second apart at least."""
    monkeypatch.setattr("servers.pool.HEALTH_S", 0.1)
    stuck, slow = fake(whole), fake(whole)
    stuck.open.clear()
    slow.open.clear()

    def count(look):
        if look == 30:
            slow.open.set()
        return look
    slow.count = count
    sampler = connect(stuck.url, slow.url, deadline_s=2, slots=5)
    push(sampler, WEIGHT, 0)
    sampler.weights.tensors = breaking_off()                # the stuck one never comes back
    rollouts = []
    for request in requests(2, samples=5):
        sampler.submit(request)
    until(lambda: rollouts.extend(sampler.finished()) or not sampler.in_flight)
    assert Counter(r.group_id for r in rollouts) == {0: 5, 1: 5} and slow.looks >= 30
    assert stuck.asked and sampler.log()["servers/losses"] == 1
    assert f"{stuck.url} is lost: no new token for 2 s" in \
        capfd.readouterr().err


@pytest.mark.parametrize("path", ["/update_weights", "/pause"])
def test_a_silent_server_takes_no_other_down_in_a_push(path, fake, connect, capfd):
    silent, good = fake(whole), fake(whole)
    sampler = connect(silent.url, good.url)
    push(sampler, WEIGHT, 0)
    sampler.pool.servers[0].call_s = 2
    silent.hung.add(path)
    push(sampler, WEIGHT, 1)
    assert silent.version.endswith("-0") and good.version.endswith("-1") and not good.paused
    assert re.search(f"{silent.url} is lost: push of version 1: {path}.*: no answer for 2 s",
                     capfd.readouterr().err)


@pytest.mark.parametrize("path", ["/pause", "/update_weights", "/resume"])
def test_a_server_that_hangs_in_a_push_is_left_behind_by_those_that_are_done(
        path, fake, connect, tmp_path, monkeypatch, capfd):
    """Long before its own limit, and the launcher is told. A dead one is not waited for at all."""
    monkeypatch.setattr("servers.pool.LATE_S", 5.0)
    dead, hangs, good = fake(whole), fake(whole), fake(whole)
    sampler = connect(dead.url, hangs.url, good.url, logs=tmp_path)
    push(sampler, WEIGHT, 0)
    dead.stop()
    hangs.hung.add(path)
    push(sampler, WEIGHT, 1)
    said = capfd.readouterr().err
    assert f"{hangs.url} is lost: push of version 1: " in said and "s behind another" in said
    assert good.version.endswith("-1") and not good.paused and "no answer" not in said
    assert [path.name for path in tmp_path.iterdir()] == [f"{hangs.url[7:]}.hangs"]
    sampler.submit(*requests(1, samples=3))
    assert len(drained(sampler)) == 3


def test_the_only_server_of_a_push_is_left_its_own_limit(fake, connect, monkeypatch, capfd):
    """There is none for which it would be late."""
    monkeypatch.setattr("servers.pool.LATE_S", 0.0)
    slow = fake(whole)
    sampler = connect(slow.url)
    push(sampler, WEIGHT, 0)
    slow.hung.add("/pause")
    threading.Timer(1.0, slow.hung.clear).start()
    push(sampler, WEIGHT, 1)
    assert slow.version.endswith("-1") and "is lost" not in capfd.readouterr().err


def test_the_launcher_is_told_of_a_server_that_hangs_in_a_push_over_nccl(fake, connect, tmp_path):
    """Both ends hang then. aiohttp rounds a limit above 5 s up to a whole second, and only a
    request that has reached its own limit tells the launcher."""
    silent, held = fake(whole), threading.Event()
    sampler = connect(silent.url, logs=tmp_path / "logs")       # --fresh may have taken it away
    push(sampler, WEIGHT, 0)
    server = sampler.pool.servers[0]
    server.call_s = 6
    silent.hung.add("/update_weights")
    pending = asyncio.run_coroutine_threadsafe(
        server.transfer("/update_weights", {}, held.wait), sampler.pool.loop)
    with pytest.raises(ServerFailed, match="/update_weights: no answer for 6 s"):
        pending.result(60)
    held.set()
    assert (tmp_path / "logs" / f"{silent.url[7:]}.hangs").exists()


@pytest.mark.parametrize("path, words", [
    ("/weight_info", "no answer"), ("/metrics", "no answer"), (None, "no new token")])
def test_the_launcher_is_told_of_a_server_that_hangs_and_the_other_one_goes_on(
        path, words, fake, connect, monkeypatch, tmp_path, capfd):
    """Not of one that has ended, which the launcher sees itself. By the address: it may be another
    machine's, where --serve-only sees the same folder."""
    monkeypatch.setattr("servers.pool.HEALTH_S", 0.1)
    monkeypatch.setattr("servers.server.CALL_S", 0.5)
    dead, hangs, good = fake(whole), fake(whole), fake(whole)
    sampler = connect(dead.url, hangs.url, good.url, logs=tmp_path, deadline_s=30 if path else 2)
    push(sampler, WEIGHT, 0)
    dead.stop()
    good.count = float                                      # it counts a token at each look
    hangs.open.clear()
    hangs.hung |= {path} - {None}
    for request in requests(3, samples=4):
        sampler.submit(request)
    until((tmp_path / f"{hangs.url[7:]}.hangs").exists)
    assert len(drained(sampler)) == 12
    assert [path.name for path in tmp_path.iterdir()] == [f"{hangs.url[7:]}.hangs"]
    assert f"{hangs.url} is lost: " in (said := capfd.readouterr().err) and words in said


def test_a_server_that_is_silent_while_all_start_is_left_to_start(fake, connect, tmp_path):
    slow = fake(whole)
    slow.hung.add("/server_info")
    with pytest.raises(ServerError, match="no answer for 1 s"):
        connect(slow.url, logs=tmp_path, deadline_s=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["/shutdown_weight_transfer_engine",
                                  "/init_weight_transfer_engine"])
def test_workers_that_hang_since_an_earlier_trainer_was_killed_are_told_before_any_push(
        path, fake, connect, tmp_path):
    """In NCCL, where they wait for ever for the rest of its push; vLLM's API answers on."""
    stuck = fake(whole)
    stuck.hung |= {path, "/init_weight_transfer_engine"}
    with pytest.raises(ServerError, match="not every server is ready|no answer"):
        connect(stuck.url, logs=tmp_path, deadline_s=1)
    assert [path.name for path in tmp_path.iterdir()] == [f"{stuck.url[7:]}.hangs"]


def test_the_group_of_an_earlier_connection_is_given_up_before_a_new_one_is_made(fake, connect):
    """Else each connection would leave one on the server's GPU."""
    server = fake(whole)
    server.failing["/shutdown_weight_transfer_engine"] = 500    # inside an update: it refuses
    connect(server.url)
    assert server.tries["/shutdown_weight_transfer_engine"] == 1
    assert server.tries["/init_weight_transfer_engine"] == 1


def test_a_push_after_one_that_failed_on_the_server_ends_first_what_it_left(
        fake, connect, monkeypatch):
    """vLLM's own engines leave layers half loaded, and would add the next push to them."""
    monkeypatch.setattr("servers.pool.RETRY_S", 0.1)
    server, good = fake(whole), fake(whole)
    sampler = connect(server.url, good.url)
    push(sampler, WEIGHT, 0)
    first = server.tries["/start_weight_update"]
    push(sampler, WEIGHT, 1)
    assert server.tries["/start_weight_update"] == first + 1    # after a whole push: no more
    server.failing["/update_weights"] = 500
    push(sampler, WEIGHT, 2)
    del server.failing["/update_weights"]
    server.updating = False             # vLLM closes the update, and keeps the layers
    starts, ends = (server.tries[f"/{what}_weight_update"] for what in ("start", "finish"))
    until(lambda: sampler.pool.servers[0].state == "stale")     # connected again
    push(sampler, WEIGHT, 3)
    assert server.version.endswith("-3") and good.version.endswith("-3")
    assert server.tries["/start_weight_update"] == starts + 2
    assert server.tries["/finish_weight_update"] == ends + 2


def test_a_first_push_that_fails_after_a_long_start_is_made_again(fake, connect, monkeypatch):
    """To read a checkpoint of 98 GB takes longer than the deadline: the run ended at once, though
    its servers were well again. And the bytes for several are encoded once."""
    encode, encoded = base64.b64encode, []
    monkeypatch.setattr(base64, "b64encode", lambda data: (encoded.append(1), encode(data))[1])
    servers = [fake(whole) for _ in range(3)]
    sampler = connect(*(server.url for server in servers))
    sampler.pool.ready_until -= 10 * sampler.pool.deadline_s
    for server in servers:
        server.failing["/update_weights"] = 500
    push(sampler, WEIGHT, 0)
    assert len(encoded) == 1 and {server.state for server in sampler.pool.servers} == {"lost"}
    for server in servers:
        server.failing.clear()
    assert len(drain(sampler, requests(2, samples=3))) == 6


def test_a_pool_is_closed_though_a_servers_deadline_comes_at_the_same_moment(
        fake, connect, monkeypatch):
    """The loop is held until both are due. aiohttp takes the two for one, a timeout: the server was
    asked again, and `close` waited for ever; the gate stood still here twice."""
    slow = fake(whole)
    slow.hung.add("/server_info")
    monkeypatch.setattr(ServerPool, "check", lambda self: [])
    pool = connect(slow.url, deadline_s=1).pool
    until(lambda: slow.tries["/server_info"], what="the question")
    held = threading.Event()
    pool.loop.call_soon_threadsafe(lambda: (held.set(), time.sleep(1.5)))
    held.wait()
    closing = threading.Thread(target=pool.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive() and not pool.loop.is_running()


@pytest.fixture
def nccl(monkeypatch):
    """NCCL without a GPU: its communicators, each a stand-in whose `broadcast` may be set."""
    made, library = [], SimpleNamespace(ncclGetUniqueId=lambda: SimpleNamespace(internal=b"id"))

    def join(*_):
        group = SimpleNamespace(broadcast=lambda *_: None, destroyed=threading.Event())
        group.destroy = group.destroyed.set
        made.append(group)
        return group
    joined = SimpleNamespace(uid_init_process_group=join)
    for name, module in (("device_communicators.pynccl_wrapper", SimpleNamespace(
            NCCLLibrary=lambda: library)), ("weight_transfer.nccl_common", joined)):
        monkeypatch.setitem(sys.modules, f"vllm.distributed.{name}", module)
    stream = SimpleNamespace(synchronize=lambda: None, wait_stream=lambda _: None)
    for name, value in {"is_available": True, "current_device": 0, "Stream": stream,
                        "default_stream": stream, "device": contextlib.nullcontext(),
                        "stream": contextlib.nullcontext()}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    return SimpleNamespace(made=made, joined=joined)


@pytest.mark.gpu_rehearsal
def test_nccl_needs_tensors_on_a_gpu_and_vllm_in_the_trainers_process(fake, connect, nccl,
                                                                      monkeypatch):
    """With gpus = 0 there may be a GPU, but the weights are not on it."""
    server = fake(whole, weight_transfer_config__backend="nccl")
    with pytest.raises(ValueError, match="is nccl, this run needs http"):
        connect(server.url)
    wrapper = "vllm.distributed.device_communicators.pynccl_wrapper"
    monkeypatch.setitem(sys.modules, wrapper, None)
    with pytest.raises(ImportError, match=wrapper):
        connect(server.url, cuda=True)


def test_what_nccl_asserts_when_a_server_is_met_is_a_reason_to_try_again(fake, connect, nccl):
    def join(*_):
        raise AssertionError
    nccl.joined.uid_init_process_group = join
    with pytest.raises(ServerError, match="not every server is ready since 3 s; .*AssertionError"):
        connect(fake(whole, weight_transfer_config__backend="nccl").url, cuda=True, deadline_s=1)


@pytest.mark.gpu_rehearsal
def test_a_bucket_travels_over_nccl_as_one_tensor_of_bytes(fake, connect, nccl):
    server, sent = fake(whole, weight_transfer_config__backend="nccl"), []
    sampler = connect(server.url, cuda=True)
    nccl.made[0].broadcast = lambda data, root, stream: sent.append((data, root))
    tensors = [(f"w{i}", torch.randn(i + 2, 3)) for i in range(3)]
    push(sampler, tensors, 0)
    (data, root), = sent
    assert root == 0 and data.dtype == torch.uint8
    assert torch.equal(data.view(torch.float32), torch.cat([t.view(-1) for _, t in tensors]))


def test_a_failure_of_the_trainers_end_of_a_push_is_told_while_the_server_still_waits(
        fake, connect, nccl, capfd):
    """Its workers wait for the rest of the bucket, NCCL's for 30 minutes. The server's silence
    would hide the cause, and hold up the other servers for as long."""
    waits, good = (fake(whole, weight_transfer_config__backend="nccl") for _ in range(2))
    sampler = connect(waits.url, good.url, cuda=True)
    push(sampler, WEIGHT, 0)

    def fail(*_):
        raise RuntimeError("unhandled cuda error")
    sampler.pool.servers[0].channel.group.broadcast = fail
    waits.hung.add("/update_weights")
    push(sampler, WEIGHT, 1)
    assert f"{waits.url} is lost: push of version 1: unhandled cuda error;" in \
        capfd.readouterr().err
    assert good.version.endswith("-1") and not good.paused


def test_a_server_that_dies_in_a_push_over_nccl_holds_nobody_up_and_leaves_no_memory(
        fake, connect, nccl, capfd):
    """NCCL waits for a dead worker for ever; each communicator holds memory of the trainer's GPU
    until it is destroyed."""
    server = fake(whole, weight_transfer_config__backend="nccl")
    sampler = connect(server.url, cuda=True, deadline_s=500)
    push(sampler, WEIGHT, 0)
    first, = nccl.made
    first.broadcast = lambda *_: first.destroyed.wait(60)
    server.failing["/update_weights"] = 500
    push(sampler, WEIGHT, 1)
    assert first.destroyed.wait(10)
    assert f"push of version 1: {server.url}/update_weights answered 500" in capfd.readouterr().err
    del server.failing["/update_weights"]
    until(lambda: needs_push(sampler))  # connected again
    push(sampler, WEIGHT, 1)
    assert server.version.endswith("-1") and len(nccl.made) == 2
    server.version = "someone-elses"                        # lost without a push: the same
    until(lambda: nccl.made[1].destroyed.is_set())


def test_workers_that_do_not_come_to_nccl_are_awaited_until_the_deadline_alone(
        fake, connect, nccl, monkeypatch):
    late = threading.Event()
    monkeypatch.setattr(nccl.joined, "uid_init_process_group", lambda *_: late.wait(60))
    server = fake(whole, weight_transfer_config__backend="nccl")
    with pytest.raises(ServerError, match="not every server is ready since 3 s; .*TimeoutError"):
        connect(server.url, cuda=True, deadline_s=1)
    late.set()


def test_another_who_uses_the_server_is_noticed(fake, connect, monkeypatch):
    monkeypatch.setattr("servers.pool.HEALTH_S", 0.1)
    server = fake(whole)
    sampler = connect(server.url)
    push(sampler, WEIGHT, 0)
    drain(sampler, requests(1))
    server.version = "someone-elses"
    until(lambda: needs_push(sampler))  # connected again
    drain(sampler, requests(1))
    # Blocks that were filled before this was noticed may be of other weights: never found again.
    assert len({body["cache_salt"] for body in server.asked}) == 2
    assert server.version.endswith("-0") and sampler.log()["servers/losses"] == 1


@pytest.mark.parametrize("change, words", [
    ({"model_config__max_model_len": 133}, "--max-model-len is 133, this run needs 134"),
    ({"model_config__logprobs_mode": "raw_logprobs"},
     "--logprobs-mode is raw_logprobs, this run needs processed_logprobs"),
    ({"model_config__dtype": "torch.bfloat16"}, "--dtype is bfloat16, this run needs float32"),
    ({"model_config__hf_overrides": {"head_dtype": "bfloat16"}},
     "head_dtype in --hf-overrides is bfloat16, this run needs float32"),
    ({"weight_transfer_config__backend": "ipc"},
     "backend in --weight-transfer-config is ipc, this run needs .*http"),
])
def test_a_server_with_a_wrong_setting_is_refused_with_the_option_that_is_right(
        change, words, fake, connect):
    with pytest.raises(ValueError, match=words):
        connect(fake(whole, **change).url)


@pytest.mark.parametrize("head, dtype, fp32, fits", [
    ("model", torch.float32, True, True), ("model", torch.float32, False, False),
    ("model", torch.bfloat16, True, False), ("model", torch.bfloat16, False, True),
    ("bfloat16", torch.float32, False, True), ("float32", torch.bfloat16, True, True)])
def test_the_head_must_round_as_the_trainers_does(head, dtype, fp32, fits, fake, connect):
    server = fake(whole, model_config__hf_overrides={"head_dtype": head},
                  model_config__dtype=str(dtype))
    with contextlib.nullcontext() if fits else pytest.raises(ValueError, match="head_dtype in"):
        connect(server.url, dtype=dtype, head_fp32=fp32)


class Words:
    """A tokenizer of which nothing is known but the phrase."""
    decode, eos_token_id = staticmethod(WORDS.decode), EOS

    def __call__(self, text, **_):
        return {"input_ids": [30, 31, 7]}


@pytest.mark.parametrize("head_fp32, head", [(True, "float32"), (False, "bfloat16")])
def test_the_settings_of_a_run_reach_its_servers(head_fp32, head, fake, micro, seed):
    """Those of which the trainer's log-probs are made, for training and evaluation; and the seed:
    two seeds that interrupted their samples at the same points would be no replicates. The server
    is as our own command starts it, and one with the other head is refused."""
    config = Config(model=str(micro), head_fp32=head_fp32, temperature=0.7, think_min=9,
                    think_max=17, answer_tokens=4, samples_per_prompt=2, eval_samples=2, slots=20)
    trainer = SimpleNamespace(
        tokenizer=Words(), dtype=torch.float32, device="cpu", weights=lambda dtype: WEIGHT,
        model=SimpleNamespace(config=AutoConfig.from_pretrained(micro),
                              generation_config=SimpleNamespace(eos_token_id=EOS),
                              get_input_embeddings=lambda: SimpleNamespace(num_embeddings=V)))
    argv, _ = server_command(config, length=134, slots=20, dtype=torch.float32,
                             url="http://127.0.0.1:8100")
    started = json.loads(argv[argv.index("--hf-overrides") + 1])
    assert started == {"head_dtype": head}
    server = fake(whole, model_config__hf_overrides=started)

    def budgets(seed):
        """At which tokens 60 samples of each sampler are interrupted."""
        config.vllm_url, config.seed, points = server.url, seed, []
        training, evaluation = make_samplers(config, trainer, 110)
        with contextlib.closing(training):
            for sampler in (training, evaluation):
                sampler.push_weights(iter(WEIGHT), 0)
                points.append(sorted(r.sampled.index(False)
                                     for r in drain(sampler, requests(1, samples=60))))
        return points
    first, again, other = map(budgets, (seed, seed, seed + 1))
    assert first == again and first[0] != other[0] and first[1] != other[1]
    assert len(server.asked) == 3 * 2 * 2 * 60
    assert {body["sampling_params"]["temperature"] for body in server.asked} == {0.7}

    config.vllm_url = fake(whole, model_config__hf_overrides={
        "head_dtype": "bfloat16" if head_fp32 else "float32"}).url
    with pytest.raises(ConfigError, match=f"head_dtype in .* this run needs {head}"):
        make_samplers(config, trainer, 110)


def test_a_request_that_begins_after_a_push_keeps_its_tokens_and_is_counted(fake, connect):
    """The second of three: its server had not begun it when the push came, and may have found
    blocks of the older weights for its prompt, as the other two have. Thrown away, it would cost
    as many tokens again."""
    def say(body, number):
        answer = whole(body, number)
        if number == 2:                                     # whatever version is current then
            answer["choices"][0]["weight_versions"][0]["version"] = server.version
        return answer
    server = fake(say)
    sampler = connect(server.url, phrase=())
    push(sampler, WEIGHT, 0)
    server.open.clear()
    sampler.submit(requests(1, samples=3)[0])
    until(lambda: len(server.asked) == 3)
    push(sampler, WEIGHT, 1)
    server.release()
    assert sorted(r.versions[0] for r in drain(sampler)) == [0, 0, 1]
    salts = [body["cache_salt"] for body in server.asked]
    assert salts == salts[:1] * 3
    assert sampler.log()["servers/late_starts"] == 1


def test_a_server_that_was_started_for_fewer_slots_gets_no_more_requests_at_once(fake, connect):
    """Each of two copies of its weights takes three. A group that is larger waits in part."""
    small = fake(whole, scheduler_config__max_num_seqs=3, parallel_config__data_parallel_size=2)
    large = fake(whole)
    for server in (small, large):
        server.open.clear()
    sampler = connect(small.url, large.url, slots=11)
    push(sampler, WEIGHT, 0)
    assert sampler.slots == sampler.free_slots == 6 + 11
    sampler.submit(requests(1, samples=20)[0])
    until(lambda: len(small.asked) + len(large.asked) == 17)
    assert len(small.asked) == 6
    for server in (small, large):
        server.release()
    assert len(drain(sampler)) == 20


def test_a_server_that_is_locked_or_lacks_routes_is_refused(fake, connect):
    for status in (401, 404):
        server = fake(whole)
        server.failing["/server_info"] = status
        with pytest.raises(ValueError, match=f"{server.url}/server_info.* answered {status}"):
            connect(server.url)


def test_a_route_that_is_off_ends_the_run_with_the_servers_own_words(fake, connect):
    """Started without --enable-scale-out, vLLM answers 403 and names the option."""
    server = fake(whole)
    sampler = connect(server.url)
    push(sampler, WEIGHT, 0)
    server.failing["/inference/v1/generate"] = 403
    with pytest.raises(ServerError, match="generate answered 403: .*no"):
        drain(sampler, requests(1))


def test_a_push_that_another_trainer_left_open_is_closed_first(fake, connect):
    """It was killed in the middle of it. The server's refusal to start another closes the
    connection: what follows must not be sent into that."""
    server = fake(whole)
    server.updating = True
    sampler = connect(server.url)
    push(sampler, WEIGHT, 0)
    assert sampler.pool.servers[0].state == "ready" and not server.updating
    assert sampler.log()["servers/losses"] == 0


def test_while_servers_start_it_is_said_once_what_each_waits_for(connect, capfd):
    urls = [f"http://127.0.0.1:{port}" for port in free_ports(2, "127.0.0.1")]
    with pytest.raises(ServerError, match="not every server is ready since 3 s"):
        connect(*urls, deadline_s=1)
    said = capfd.readouterr().err
    assert all(said.count(f"{url} is awaited: /version: ") == 1 for url in urls)


def test_servers_of_another_kind_or_version_are_refused(fake, connect, monkeypatch):
    server = fake(whole)
    server.vllm = "0.31.2"
    with pytest.raises(ValueError, match="vllm is 0.31, this run needs 0.32 or 0.33"):
        connect(server.url)
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ServerError, match="connect: not every server is ready since 3 s; "
                                          f"{url} is lost: "):
        connect(url, deadline_s=1)
