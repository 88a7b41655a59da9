"""vLLM servers: the promises of the other engines over HTTP, and what a network adds to them.

First a small HTTP server of our own says what it likes, and must not be believed; then real vLLM
servers, killed, stopped and cut off for real. They need `make vllm`; `make test` has it done.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from types import SimpleNamespace

import psutil
import pytest
import torch
from aiohttp import web
from conftest import (EOS, ROOT, WORDS, check_cut_thinking, drain, errors, moved,
                      plain_logprobs, requests, run_command, swapped_logprobs)
from transformers import AutoModelForCausalLM

import servers
from sampler import Interruption
from config import Config
from servers import (BadAnswer, Fleet, GlooLink, ServerError, ServerSampler, check_answer,
                     server_command)


def until(condition, seconds=60, what="the condition"):
    """Poll; a wait without a deadline would hang the suite instead of failing a test."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not come within {seconds} s"
        time.sleep(0.05)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def connect():
    """Fleet and sampler on these addresses, with budgets 9..17 and 4; closed afterwards."""
    fleets = []

    def connect(*urls, slots=20, phrase=(30, 31, 7), eos=(EOS,), length=134, prompt_tokens=110,
                vocabulary=38, tokenizer=WORDS, deadline_s=60.0, seed=0, ahead=0, temperature=1.0,
                dtype=torch.float32, **more):
        fleets.append(Fleet(urls, slots=slots, length=length, dtype=dtype, deadline_s=deadline_s,
                            **more))
        return ServerSampler(fleets[-1], tokenizer, Interruption(9, 17, 4, phrase),
                             prompt_tokens=prompt_tokens, eos_ids=eos, vocabulary=vocabulary,
                             seed=seed, ahead=ahead, temperature=temperature)
    yield connect
    for fleet in fleets:
        fleet.close()


def some(sampler):
    """The first rollouts that come."""
    end = time.monotonic() + 60
    while not (rollouts := sampler.step()):
        assert time.monotonic() < end, "no sample came"
    return rollouts


def keep_going(sampler, model, version, so_far=(), seconds=120):
    """All rollouts of what is in flight; a server that comes back gets the weights, as in
    `Run.decode`."""
    rollouts, end = list(so_far), time.monotonic() + seconds
    while sampler.in_flight:
        assert time.monotonic() < end, f"{sampler.in_flight} samples are still missing"
        rollouts += sampler.step()
        if sampler.needs_push:
            sampler.push_weights(model.named_parameters(), version)
    return rollouts


# ---------------------------------------------------------------------------------------------
# What a server says is checked


def honest(asked=6, versions=((0, 0, 6),), ids=(5, 6, 7, 8, 9, 10), reason="length"):
    return {"choices": [{
        "token_ids": list(ids), "finish_reason": reason,
        "logprobs": {"content": [{"logprob": -0.25 * (i + 1)} for i in range(len(ids))]},
        "weight_versions": [{"version": f"run-{v}", "start": a, "end": b}
                            for v, a, b in versions]}]}


def look(answer, asked=6):
    return check_answer(answer, asked=asked, eos_ids=[EOS], vocabulary=38, newest=3,
                        version_of=lambda name: {f"run-{v}": v for v in range(9)}.get(name))


def test_an_honest_answer_is_taken_apart():
    ids, logprobs, versions = look(honest(versions=((1, 0, 2), (3, 2, 6))))
    assert ids == [5, 6, 7, 8, 9, 10] and versions == [1, 1, 3, 3, 3, 3]
    assert logprobs == [-0.25, -0.5, -0.75, -1.0, -1.25, -1.5]
    ids, _, versions = look(honest(ids=(5, EOS), versions=((2, 0, 2),), reason="stop"))
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


@pytest.mark.parametrize("change, words", [
    (broken(token_ids=[5, 6, 7]), "log-probs for 3 tokens"),
    (broken(token_ids=[5] * 7), "not 1 to 6 tokens"),
    (broken(token_ids=[]), "not 1 to 6 tokens"),
    (broken(token_ids="567890"), "not 1 to 6 tokens"),
    (broken(token_ids=[5, 6, 7, 8, 9, 38]), "out of range"),
    (broken(token_ids=[5, 6, 7, 8, 9, -1]), "out of range"),
    (broken(token_ids=[5, 6, 7, 8, 9, 1.0]), "out of range"),
    (broken(token_ids=[5, 6, 7, 8, 9, True]), "out of range"),
    (broken(token_ids=[5, EOS, 7, 8, 9, 10]), "tokens after the end"),
    (broken(finish_reason="abort"), "ended by 'abort'"),
    (broken(token_ids=[5, 6, 7, 8, 9], logprobs={"content": [{"logprob": -1.0}] * 5}),
     "after 5 of 6 tokens"),
    (broken(logprobs=None), "not an answer"),
    (broken(weight_versions=None), "not an answer"),
    (logprob(float("nan")), "log-prob that is none"),
    (logprob(float("-inf")), "log-prob that is none"),
    (logprob(0.5), "log-prob that is none"),
    (logprob(-10**400), "log-prob that is none"),
    (logprob(-105.0), "log-prob that is none"),
    (logprob(None), "log-prob that is none"),
    (logprob("-1"), "log-prob that is none"),
    (spans((0, 0, 5)), "5 versions for 6 tokens"),
    (spans((0, 0, 7)), "gaps"),
    (spans((0, 0, 3), (1, 4, 6)), "gaps"),
    (spans((0, 1, 6)), "gaps"),
    (spans((2, 0, 3), (1, 3, 6)), "gaps"),
    (spans((4, 0, 6)), "'run-4', which this run never pushed"),
    (broken(weight_versions=[{"version": "default", "start": 0, "end": 6}]), "'default'"),
    (lambda answer: answer.update(choices=[]), "not an answer"),
    (lambda answer: answer.update(choices=answer["choices"] * 2), "not an answer"),
])
def test_an_answer_that_cannot_be_is_refused_with_the_reason(change, words):
    answer = honest()
    look(answer)                                            # honest before it was changed
    change(answer)
    with pytest.raises(BadAnswer, match=words):
        look(answer)


class Fake:
    """An HTTP server with vLLM's routes, in a thread; what it generates is up to the test.

    say(body, number) -> JSON of an answer, or bytes to send as they are.
    """
    def __init__(self, say, ssl=None, **config):
        self.say = say
        self.config = {
            "model_config": {"max_model_len": 134, "logprobs_mode": "processed_logprobs",
                             "generation_config": "vllm", "dtype": "torch.float32",
                             "quantization": None,
                             "hf_overrides": {"head_dtype": "float32"}},
            "scheduler_config": {"max_num_seqs": 20}, "speculative_config": None,
            "cache_config": {"cache_dtype": "auto"},
            "parallel_config": {"data_parallel_size": 1,
                                "worker_extension_cls": "weight_wire.Worker"},
            "weight_transfer_config": {"backend": "gloo"}}
        for path, value in config.items():
            section, name = path.split("__")
            self.config[section][name] = value
        self.version, self.vllm, self.paused = "default", "0.32.0", False
        self.asked, self.pushes, self.seeds = [], [], []
        self.looks, self.count = 0, lambda look: 0.0        # tokens generated, at each look
        self.redirect = ""              # where requests for samples are sent on to
        self.queued, self.sizes = 0, {}         # requests it has not begun; its model's numbers
        self.hung = set()               # paths that are never answered
        self.failing = {}               # {path: status}
        self.tries = Counter()          # {path: requests}
        self.updating, self.closing = False, set()
        self.open = asyncio.Event()
        self.open.set()
        self.loop, self.port = asyncio.new_event_loop(), free_port()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        self.runner = web.AppRunner(app)
        self.loop.run_until_complete(self.runner.setup())
        self.loop.run_until_complete(
            web.TCPSite(self.runner, "127.0.0.1", self.port, ssl_context=ssl).start())
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.url = f"http{'s' if ssl else ''}://127.0.0.1:{self.port}"

    def stop(self):
        asyncio.run_coroutine_threadsafe(self.runner.cleanup(), self.loop).result(10)

    async def answer(self, request):
        path = request.path
        self.tries[path] += 1
        if request.transport in self.closing:
            request.transport.close()
        while path in self.hung:
            await asyncio.sleep(0.05)
        body = await request.json() if request.can_read_body else {}
        if path == "/inference/v1/generate" and path not in self.failing:
            if not body:
                return web.json_response({"error": "empty"}, status=400)
            self.asked.append(body)
            number = len(self.asked)
            if self.redirect:
                raise web.HTTPTemporaryRedirect(self.redirect + path)
            await self.open.wait()
            said = self.say(body, number)
            if isinstance(said, bytes):
                return web.Response(body=said, content_type="application/json")
            for span in said["choices"][0]["weight_versions"] or []:
                span["version"] = span["version"].replace("run-0", self.version)
            return web.json_response(said)
        if path in self.failing or path == "/start_weight_update" and self.updating:
            self.closing.add(request.transport)         # as uvicorn does, a moment after a 500
            return web.json_response({"error": "no"}, status=self.failing.get(path, 500))
        self.updating = path == "/start_weight_update" or (
            self.updating and path != "/finish_weight_update")
        if path == "/collective_rpc" and body["method"] == "sizes":
            return web.json_response({"results": self.sizes if isinstance(self.sizes, list) else [
                [self.sizes[name] for name in body["args"][0].split()]]})
        if path == "/collective_rpc":
            assert body["method"] == "reseed"
            self.seeds += body["args"]
        if path == "/finish_weight_update" and body:
            self.version = body["weight_version"]
            self.pushes.append(self.version)
        self.paused = {"/pause": True, "/resume": False}.get(path, self.paused)
        if path == "/metrics":
            self.looks += 1
            return web.Response(text=f"vllm:generation_tokens_total{{}} {self.count(self.looks)}\n"
                                     f"vllm:num_requests_waiting{{}} {self.queued}\n")
        return web.json_response({
            "/version": {"version": self.vllm}, "/server_info": {"vllm_config": self.config},
            "/get_world_size": {"world_size": 1}, "/is_paused": {"is_paused": self.paused},
            "/weight_info": {"weight_version": self.version}}.get(path, {}))


@pytest.fixture
def fake(monkeypatch):
    """Makes fake servers; their links carry nothing."""
    monkeypatch.setattr(servers, "GlooLink", lambda *_: SimpleNamespace(
        checks=False, packed=False, init_info={}, meet=lambda: None, send=lambda tensors: None,
        close=lambda: None))
    made = []

    def make(*args, **kwargs):
        made.append(Fake(*args, **kwargs))
        return made[-1]
    yield make
    for server in made:
        server.hung.clear()
        server.loop.call_soon_threadsafe(server.open.set)
        with contextlib.suppress(RuntimeError, TimeoutError):
            server.stop()


WEIGHT = [("w", torch.ones(2, 3))]


def whole(body, number):
    """An honest answer of as many tokens as were asked for, none of them an end."""
    n = body["sampling_params"]["max_tokens"]
    return honest(ids=[2 + (number + i) % 4 for i in range(n)], versions=((0, 0, n),))


def test_bad_answers_are_refused_counted_and_asked_again(fake, connect):
    """Six of the first twenty, each bad in another way; all samples come all the same."""
    def huge(answer):
        return b"[" + b"1," * 10**6 + b"1]"
    bad = [broken(token_ids=[38]), logprob(float("nan")), spans(("0" + "9" * 5000, 0, 1)), huge,
           lambda answer: b"\x80\x04not json", lambda answer: b"[" * 10**5]

    def say(body, number):
        answer = whole(body, number)
        return bad[number // 3 - 1](answer) or answer if number in range(3, 21, 3) else answer
    server = fake(say)
    server.open.clear()
    sampler = connect(server.url)
    sampler.push_weights(WEIGHT, 0)
    for request in requests(7, samples=5):
        sampler.submit(request)
    until(lambda: len(server.asked) == 20)      # so that none of the six is asked for again
    server.loop.call_soon_threadsafe(server.open.set)
    rollouts = drain(sampler)
    assert Counter(r.group_id for r in rollouts) == {i: 5 for i in range(7)}
    assert all(set(r.versions) == {0} and max(r.output_ids) < 32 for r in rollouts)
    log = sampler.fleet.log()
    assert log["servers/refused_answers"] == 6 and log["servers/losses"] == 0
    assert sampler.fleet.log()["servers/refused_answers"] == 0          # counted once


def test_three_bad_answers_for_one_sample_end_the_run_with_the_reason(fake, connect):
    def say(body, number):
        answer = whole(body, number)
        spans((5, 0, 1))(answer)
        return answer
    sampler = connect(fake(say).url)
    sampler.push_weights(WEIGHT, 0)
    with pytest.raises(ServerError, match="version 0: http.* three times .*never pushed"):
        drain(sampler, requests(2, samples=3))


def test_the_samples_of_a_group_go_to_one_server_and_servers_are_kept_equally_busy(fake, connect):
    """One server has their prompt in its cache then. Answers are held back, so what was sent is
    seen: 2 x 7 slots, four groups of three, and the fifth split over the two that are left."""
    fakes = [fake(whole), fake(whole)]
    for server in fakes:
        server.open.clear()
    sampler = connect(*(server.url for server in fakes), slots=7, phrase=(), ahead=5)
    sampler.push_weights(WEIGHT, 0)
    for request in requests(6, samples=3):
        sampler.submit(request)
    assert sampler.free_slots == 14 + 5 - 18
    until(lambda: sum(len(server.asked) for server in fakes) == 14)
    for server in fakes:
        prompts = Counter(tuple(body["token_ids"]) for body in server.asked)
        assert sorted(prompts.values()) == [1, 3, 3]
    assert sampler.in_flight == 18
    for server in fakes:
        server.loop.call_soon_threadsafe(server.open.set)
    assert len(drain(sampler)) == 18 and all(server.asked for server in fakes)


def test_servers_work_while_the_trainer_does_not_look(fake, connect):
    """Answers are taken and new requests sent with no call of `step`: twice for each sample, with
    slots for a third of them."""
    server = fake(whole)
    sampler = connect(server.url, slots=7, ahead=13)
    sampler.push_weights(WEIGHT, 0)
    for request in requests(4, samples=5):
        sampler.submit(request)
    until(lambda: sampler.done.qsize() == 20)
    assert len(server.asked) == 40 and len(sampler.finished()) == 20


def test_a_server_is_started_in_the_shape_and_with_the_locks_that_were_asked_for(micro):
    config = Config(model=str(micro), tensor_parallel=2, pipeline_parallel=3, data_parallel=5,
                    tls="certs")
    argv, env = server_command(config, model=micro, length=134, slots=20, dtype=torch.bfloat16,
                               host="10.0.0.7", port=8100, device="4,6")
    given = dict(zip(argv, argv[1:]))
    assert [given[f"--{name}-parallel-size"] for name in ("tensor", "pipeline", "data")] == \
        ["2", "3", "5"]
    assert given["--ssl-cert-reqs"] == str(int(ssl.CERT_REQUIRED))      # without one, nobody
    assert given["--ssl-ca-certs"] == os.path.join("certs", "ca.pem")
    assert given["--host"] == "10.0.0.7" and env["CUDA_VISIBLE_DEVICES"] == "4,6"


def test_nothing_is_sent_during_a_push_and_the_salt_is_the_version(fake, connect):
    """The tensors are asked for one by one while the gate is closed; behind them, with several
    trainer ranks, are collectives that must never meet a send."""
    server = fake(whole)
    sampler = connect(server.url)
    seen = []

    def tensors():
        sampler.submit(requests(1, samples=4)[0])
        for i in range(3):
            seen.append((len(server.asked), server.paused))
            yield f"w{i}", torch.ones(2)
    sampler.push_weights(tensors(), 0)
    assert seen == [(0, True)] * 3
    assert len(drain(sampler)) == 4 and not server.paused
    assert {body["cache_salt"] for body in server.asked} == {f"{server.version}-1"}
    assert server.version.endswith("-0") and server.version != "0"


def test_a_server_that_fails_in_a_push_is_left_paused_until_a_whole_push_succeeds(fake, connect):
    """The other one goes on. The trainer's own failure in the middle leaves none serving."""
    good, bad = fake(whole), fake(whole)
    sampler = connect(good.url, bad.url)
    sampler.push_weights(WEIGHT, 0)
    link = next(s for s in sampler.fleet.servers if s.url == bad.url).link

    def fail(tensors):
        raise RuntimeError("Connection closed by peer")
    link.send = fail
    sampler.push_weights(WEIGHT, 1)
    assert bad.paused and bad.version.endswith("-0") and good.version.endswith("-1")
    assert not good.paused and len(good.pushes) == 2 and len(bad.pushes) == 1
    asked = len(bad.asked)
    assert len(keep_going(sampler, SimpleNamespace(named_parameters=lambda: WEIGHT), 1, drain(
        sampler, requests(1)))) == 3
    until(lambda: sampler.needs_push)                       # it was connected again
    assert bad.paused and len(bad.asked) == asked
    sampler.push_weights(WEIGHT, 1)
    assert not bad.paused and bad.version == good.version and len(good.pushes) == 2

    def breaking():
        yield WEIGHT[0]
        raise MemoryError("gather failed")
    with pytest.raises(MemoryError):
        sampler.push_weights(breaking(), 2)
    assert good.paused and bad.paused and good.version.endswith("-1")


def test_a_server_that_gets_on_with_nothing_is_given_up_and_its_samples_are_asked_of_another(
        fake, connect, monkeypatch, capfd):
    """It answers every probe, but no request. One that is only slow, and counts tokens, is left in
    peace for longer than the deadline: thirty looks, a tenth of a second apart at least."""
    monkeypatch.setattr(servers, "PROBE_S", 0.1)
    stuck, slow = fake(whole), fake(whole)
    stuck.open.clear()
    slow.open.clear()

    def count(look):
        if look == 30:
            slow.open.set()
        return look
    slow.count = count
    sampler = connect(stuck.url, slow.url, deadline_s=2, slots=5)
    sampler.push_weights(WEIGHT, 0)
    rollouts = drain(sampler, requests(2, samples=5))
    assert Counter(r.group_id for r in rollouts) == {0: 5, 1: 5} and slow.looks >= 30
    assert stuck.asked and sampler.fleet.log()["servers/losses"] == 1
    assert f"{stuck.url} is lost: neither an answer nor a new token for 2 s" in \
        capfd.readouterr().err


def test_a_connection_that_the_network_forgot_is_noticed_by_the_kernel(fake, connect):
    made = connect(fake(whole).url, deadline_s=7).fleet._socket(
        socket.getaddrinfo("127.0.0.1", 1, type=socket.SOCK_STREAM)[0])
    with made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7000
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30


def test_a_silent_server_takes_no_other_down_in_a_push(fake, connect, monkeypatch, capfd):
    """First it is silent in the send: workers wait from the request on, so the other's have given
    up if theirs begins only after it. Then it does not answer the pause."""
    silent, good = fake(whole), fake(whole)
    sampler = connect(silent.url, good.url)
    sampler.push_weights(WEIGHT, 0)
    links = {s.url: s.link for s in sampler.fleet.servers}
    sent, late = threading.Event(), threading.Event()

    def hang(tensors):
        if not sent.wait(20):
            late.set()
        raise RuntimeError("Timed out")

    def send(tensors):
        if late.is_set():
            raise RuntimeError("Connection closed by peer")
        sent.set()
    links[silent.url].send, links[good.url].send = hang, send
    sampler.push_weights(WEIGHT, 1)
    assert silent.version.endswith("-0") and good.version.endswith("-1") and not good.paused

    monkeypatch.setattr(servers, "STEER_S", 0.5)
    until(lambda: sampler.needs_push)
    silent.hung.add("/pause")
    sampler.push_weights(WEIGHT, 2)
    assert silent.version.endswith("-0") and good.version.endswith("-2") and not good.paused
    assert f"{silent.url} is lost: push of version 2: not paused" in capfd.readouterr().err


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
    stream = SimpleNamespace(synchronize=lambda: None)
    for name, value in {"is_available": True, "current_device": 0, "Stream": stream,
                        "current_stream": stream, "device": contextlib.nullcontext(),
                        "stream": contextlib.nullcontext()}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(servers, "find_spec", lambda name: True)
    return SimpleNamespace(made=made, join=join, joined=joined)


def test_a_server_that_dies_in_a_push_over_nccl_holds_nobody_up_and_leaves_no_memory(
        fake, connect, nccl, capfd):
    """NCCL waits for a dead worker for ever; each communicator holds memory of the trainer's GPU
    until it is destroyed."""
    server = fake(whole, weight_transfer_config__backend="nccl")
    sampler = connect(server.url, deadline_s=500)
    sampler.push_weights(WEIGHT, 0)
    first, = nccl.made
    first.broadcast = lambda *_: first.destroyed.wait(60)
    server.failing["/update_weights"] = 500
    sampler.push_weights(WEIGHT, 1)
    assert first.destroyed.is_set() or first.destroyed.wait(10)
    assert "push of version 1: /update_weights answered 500" in capfd.readouterr().err
    del server.failing["/update_weights"]
    until(lambda: sampler.needs_push)                       # it was connected again
    sampler.push_weights(WEIGHT, 1)
    assert server.version.endswith("-1") and len(nccl.made) == 2
    server.version = "someone-elses"                        # lost without a push: the same
    until(lambda: nccl.made[1].destroyed.is_set())


def test_workers_that_do_not_come_to_nccl_are_awaited_until_the_deadline_alone(
        fake, connect, nccl, monkeypatch):
    """And if they come after it, theirs is a communicator that nobody uses."""
    late = threading.Event()
    monkeypatch.setattr(nccl.joined, "uid_init_process_group",
                        lambda *_: late.wait(60) and nccl.join())
    server = fake(whole, weight_transfer_config__backend="nccl")
    with pytest.raises(ServerError, match="did not meet the trainer .not all workers came for 1 s"):
        connect(server.url, deadline_s=1, start_deadline_s=2.4)
    late.set()
    until(lambda: nccl.made and all(group.destroyed.is_set() for group in nccl.made))


def test_another_who_steers_the_server_is_noticed(fake, connect, monkeypatch):
    monkeypatch.setattr(servers, "PROBE_S", 0.1)
    server = fake(whole)
    sampler = connect(server.url)
    sampler.push_weights(WEIGHT, 0)
    drain(sampler, requests(1))
    server.version = "someone-elses"
    until(lambda: sampler.needs_push)                       # lost, and connected again
    sampler.push_weights(WEIGHT, 0)
    drain(sampler, requests(1))
    # Blocks that were filled before this was noticed may be of other weights: never found again.
    assert len({body["cache_salt"] for body in server.asked}) == 2
    assert server.version.endswith("-0") and sampler.fleet.log()["servers/losses"] == 1


def test_no_two_servers_draw_the_same_numbers_nor_does_one_twice(fake, connect, monkeypatch):
    """Whoever started them, on whatever hosts; and one that was lost gets a new seed when it is
    back, for it may have been started again."""
    monkeypatch.setattr(servers, "PROBE_S", 0.1)
    fakes = [fake(whole), fake(whole)]
    sampler = connect(*(server.url for server in fakes))
    sampler.push_weights(WEIGHT, 0)
    fakes[0].version = "default"
    until(lambda: sampler.needs_push)
    assert [len(server.seeds) for server in fakes] == [2, 1]
    assert len({int(seed) for server in fakes for seed in server.seeds}) == 3


@pytest.mark.parametrize("change, words", [
    ({"model_config__max_model_len": 133}, "133 tokens at most, this run needs 134"),
    ({"model_config__logprobs_mode": "raw_logprobs"}, "leave out the temperature"),
    ({"model_config__generation_config": "auto"}, "top-p or top-k"),
    ({"model_config__dtype": "torch.bfloat16"}, "weights in torch.bfloat16"),
    ({"model_config__hf_overrides": {"head_dtype": "bfloat16"}}, 'head_dtype": "float32"'),
    ({"scheduler_config__max_num_seqs": 19}, "19 x 1 sequences at once, fewer than slots = 20"),
    ({"model_config__quantization": "fp8"}, "quantized weights"),
    ({"cache_config__cache_dtype": "fp8"}, "keys and values in fp8"),
    ({"parallel_config__worker_extension_cls": ""}, "--worker-extension-cls weight_wire.Worker"),
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
    with contextlib.nullcontext() if fits else pytest.raises(ValueError, match="an LM head in"):
        connect(server.url, dtype=dtype, head_fp32=fp32)


def test_a_server_with_another_model_is_refused_with_what_differs(fake, connect):
    mine = SimpleNamespace(num_hidden_layers=3, hidden_size=64, vocab_size=38)
    server = fake(whole)
    server.sizes = vars(mine) | {"num_hidden_layers": 5}
    with pytest.raises(ValueError, match="another model: its num_hidden_layers is 5, this run's 3"):
        connect(server.url, model=mine)
    for nonsense in ([], [None], [[]], [3]):
        server.sizes = nonsense
        with pytest.raises(ValueError, match="does not tell its model's sizes"):
            connect(server.url, model=mine)
    server.sizes = vars(mine)
    server.failing["/collective_rpc"] = 500                 # workers with yesterday's code
    with pytest.raises(ValueError, match="start it again with this code's weight_wire.py"):
        connect(server.url, model=mine)
    server.failing.clear()
    assert connect(server.url, model=mine).fleet.workers == 1


def test_what_a_server_has_not_begun_at_a_push_is_asked_again_after_it(fake, connect):
    """Its cache has room for seven of twelve: the five that were sent last are its queue."""
    server = fake(whole)
    sampler = connect(server.url)
    sampler.push_weights(WEIGHT, 0)
    server.open.clear()
    for request in requests(3, samples=4):
        sampler.submit(request)
    until(lambda: len(server.asked) == 12)
    begun, server.queued = server.asked[:7], 5
    sampler.push_weights(WEIGHT, 1)
    server.queued = 0
    until(lambda: len(server.asked) == 17)
    again = server.asked[12:]
    server.loop.call_soon_threadsafe(server.open.set)
    assert Counter(r.group_id for r in drain(sampler)) == {i: 4 for i in range(3)}
    asked = Counter(tuple(body["token_ids"]) for body in begun + again)
    assert sorted(asked.values()) == [4, 4, 4]
    assert {body["cache_salt"] for body in again} == {f"{server.version}-1"}
    assert sampler.fleet.log()["servers/taken_back"] == 5


def test_nobody_is_followed_to_another_address(fake, connect):
    """A redirect would take prompts anywhere, past what was said of TLS."""
    server, other = fake(whole), fake(whole)
    sampler = connect(server.url)
    sampler.push_weights(WEIGHT, 0)
    server.redirect = other.url
    with pytest.raises(ServerError, match="answered three times what was not asked for"):
        drain(sampler, requests(1))
    assert not other.tries


def test_a_garbled_count_of_a_servers_tokens_is_no_end(fake, connect, monkeypatch):
    monkeypatch.setattr(servers, "PROBE_S", 0.05)
    server = fake(whole)
    server.count, server.queued = lambda look: "7.1.3e", "1e999"
    sampler = connect(server.url)
    sampler.push_weights(WEIGHT, 0)
    until(lambda: server.looks > 4)
    assert len(drain(sampler, requests(1))) == 3


def test_a_key_or_a_link_that_the_trainer_does_not_have_is_said(fake, connect):
    server = fake(whole)
    server.failing["/inference/v1/generate"] = 401
    with pytest.raises(ValueError, match="without --api-key"):
        connect(server.url)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="the trainer needs a GPU"):
            connect(fake(whole, weight_transfer_config__backend="nccl").url)


def test_connecting_in_vain_leaves_no_threads_and_no_ports_and_ends_with_a_sentence(
        fake, connect, monkeypatch):
    """Its workers fail at once, again and again, and in the end do not answer at all."""
    server, path, process = fake(whole), "/init_weight_transfer_engine", psutil.Process()
    monkeypatch.setattr(servers, "GlooLink", GlooLink)      # the real one again
    server.failing[path] = 500
    threads, told = process.num_threads(), []

    def attempt():
        try:
            connect(server.url, deadline_s=12)
        except ServerError as error:
            told.append(str(error))
    trainer = threading.Thread(target=attempt)
    trainer.start()
    until(lambda: server.tries[path] == 5)
    server.hung.add(path)
    trainer.join(60)
    assert "is not to be had within 12 s (/init_weight_transfer_engine answered 500" in told[0]
    # Five tries: each would have left a waiting thread and those of a store.
    until(lambda: process.num_threads() <= threads + 4, 30, "their end")


def test_a_push_that_another_trainer_left_open_is_closed_first(fake, connect):
    """It was killed in the middle of it. The server's refusal to start another closes the
    connection: what follows must not be sent into that."""
    server = fake(whole)
    server.updating = True
    sampler = connect(server.url)
    sampler.push_weights(WEIGHT, 0)
    assert sampler.fleet.servers[0].state == "ready" and not server.updating
    assert sampler.fleet.log()["servers/losses"] == 0


def test_servers_of_another_kind_or_version_are_refused(fake, connect, monkeypatch):
    server = fake(whole)
    server.vllm = "0.31.2"
    with pytest.raises(ValueError, match="it runs vllm 0.31.2"):
        connect(server.url)
    server.vllm, server.config = "0.32.1", {}
    with pytest.raises(ValueError, match="not a vLLM server that this code knows"):
        connect(server.url)
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ServerError, match=f"connect: {url} is not to be had within 1 s"):
        connect(url, deadline_s=1)


@pytest.mark.parametrize("url, words", [
    ("http://10.0.0.7:8000", "whoever reaches that port can change the weights"),
    ("https://127.0.0.1:8000", "https needs tls"),
    ("127.0.0.1:8000", "give addresses like"), ("http://127.0.0.1", "give addresses like"),
    ("ftp://127.0.0.1:21", "give addresses like"),
    ("http://127.0.0.1:21 http://127.0.0.1:21/", "named twice, it is one server")])
def test_addresses_that_are_not_safe_or_not_two_are_refused(url, words, connect):
    with pytest.raises(ValueError, match=words):
        connect(*url.split())


def test_with_tls_both_sides_show_a_certificate(fake, connect, tmp_path):
    """A trainer of another authority does not get in, and does not talk to the server either."""
    for name in ("mine", "other"):
        run = subprocess.run(["make", "certs", f"CERTS={tmp_path / name}", "HOSTS=127.0.0.1"],
                             cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stderr
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tmp_path / "mine/ca.pem")
    context.load_cert_chain(tmp_path / "mine/cert.pem", tmp_path / "mine/key.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    server = fake(whole, ssl=context)
    trusting, said = ssl.create_default_context(cafile=tmp_path / "mine/ca.pem"), b""
    with contextlib.suppress(OSError), trusting.wrap_socket(
            socket.create_connection(("127.0.0.1", server.port), 20),
            server_hostname="127.0.0.1") as nobody:         # it shows none
        nobody.sendall(b"GET /version HTTP/1.0\r\n\r\n")
        said = nobody.recv(1)
    assert not said and not server.tries
    sampler = connect(server.url, tls=str(tmp_path / "mine"))
    sampler.push_weights(WEIGHT, 0)
    assert len(drain(sampler, requests(1))) == 3
    with pytest.raises(ServerError, match="certificate"):
        connect(server.url, tls=str(tmp_path / "other"), deadline_s=4)
    with pytest.raises(ValueError, match="cannot be read"):
        connect(server.url, tls=str(tmp_path), deadline_s=1)


# ---------------------------------------------------------------------------------------------
# The real thing


class Served:
    """A real vLLM server of a model folder, in a session of its own."""

    def __init__(self, model, log):
        self.model, self.log, self.port = model, log, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        config = Config(model=str(self.model), threads=1)
        argv, env = server_command(config, model=self.model, length=134, slots=20,
                                   dtype=torch.float32, host="127.0.0.1", port=self.port)
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(argv, env=env, stdout=log, stderr=log,
                                            start_new_session=True)

    def wait(self):
        def up():
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            with contextlib.suppress(OSError), socket.create_connection(
                    ("127.0.0.1", self.port), 1):
                return True
        until(up, 240, f"the server ({self.log})")

    @property
    def tree(self):
        return [psutil.Process(self.process.pid),
                *psutil.Process(self.process.pid).children(recursive=True)]

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


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
    sampler.push_weights(plain.named_parameters(), 0)
    return sampler


def get(sampler, path):
    fleet = sampler.fleet
    return fleet._wait(fleet._post(fleet.servers[0], path, method="GET"))


def hold(sampler):
    """Pause the server behind the client's back, until the next push: however fast it is, what
    is unfinished stays so. (The client would notice at its next look, PROBE_S.)"""
    fleet = sampler.fleet
    fleet._wait(fleet._post(fleet.servers[0], "/pause?mode=keep&clear_cache=false"))


def test_log_probs_are_those_of_a_full_forward_before_and_after_a_push(served, connect, plain):
    """fp32, lag 0, temperature included. The workers compare the first push bit for bit."""
    sampler, new = connect(served.url, temperature=0.8), moved(plain, 0.1)
    for model, version in ((plain, 0), (new, 1)):
        sampler.push_weights(model.named_parameters(), version)
        rollouts = drain(sampler, requests(9, samples=4))
        assert {v for r in rollouts for v in r.versions} == {version}
        assert Counter(r.group_id for r in rollouts) == {i: 4 for i in range(9)}
        assert errors(model, rollouts, 0.8).mean() <= 1e-5
        assert errors(model, rollouts, 0.8).max() < 1e-4
    assert errors(plain, rollouts, 0.8).mean() > 1e-2       # the weights did differ
    until(lambda: sampler.fleet.servers[0].tokens > 0)      # its own count is found
    log = sampler.fleet.log()
    assert 0 < log["off_policy/busy_share"] <= 1 and log["off_policy/waited_s"] > 0
    assert not any(value for name, value in log.items() if name.startswith("servers/"))


def test_what_a_server_samples_depends_on_the_seed_it_was_told(sampler, plain):
    request, fleet = requests(1, samples=1), sampler.fleet
    sampler.eos_ids, sampler.interruption = [], Interruption(20, 20, 4, ())
    with torch.no_grad():                   # less sure, or two draws might well be the same
        plain.model.norm.weight *= 0.2
    sampler.push_weights(plain.named_parameters(), 1)

    def draws(seed):
        fleet._wait(fleet._post(fleet.servers[0], "/collective_rpc", {
            "method": "reseed", "args": [str(seed)]}))
        rollout, = drain(sampler, request)
        return rollout.output_ids
    assert draws(5) == draws(5) != draws(6)


def test_thinking_is_cut_at_a_random_budget_and_the_phrase_is_not_sampled(sampler, plain):
    with torch.no_grad():                   # less sure, or it would nearly always end by itself
        plain.model.norm.weight *= 0.2
    sampler.push_weights(plain.named_parameters(), 1)
    rollouts = drain(sampler, requests(20, samples=12))
    assert len(rollouts) == 240
    check_cut_thinking(rollouts)
    assert errors(plain, rollouts).max() < 1e-4         # the answers are conditioned on the phrase


def test_a_push_in_flight_is_in_the_versions_and_running_sequences_keep_their_cache(
        served, connect, plain, monkeypatch):
    """Nobody waits for anybody: samples that began under the old weights come back with spans of
    both, and log-probs of new weights over keys and values of the old ones. (The answer is a
    second request, whose keys and values are computed anew.) On a busy machine the engine may be
    done with all that it had before the pause reaches it: then once more."""
    monkeypatch.setattr(servers, "PROBE_S", 1e6)        # before the first look is planned
    sampler, new = connect(served.url, eos=()), moved(plain, 0.3)
    sampler.interruption = Interruption(20, 100, 4, (30, 31, 7))
    mixed, gaps = 0, []
    for old in range(0, 20, 2):
        if mixed > 3:
            break
        sampler.push_weights(plain.named_parameters(), old)
        for request in requests(9, samples=5, length=7):    # of 20 to 100 tokens, 20 at a time
            sampler.submit(request)
        rollouts = some(sampler)            # the shortest budgets are over, the others run
        hold(sampler)
        sampler.push_weights(new.named_parameters(), old + 1)
        rollouts += drain(sampler)
        assert Counter(r.group_id for r in rollouts) == {i: 5 for i in range(9)}
        for r in rollouts:
            assert r.versions == sorted(r.versions) and set(r.versions) <= {old, old + 1}
            first = r.sampled.index(False) if r.interrupted else len(r.versions) - 4
            n = r.versions.index(old + 1) if old + 1 in r.versions else len(r.versions)
            logprobs, kept = torch.tensor(r.logprobs), min(n, first)
            assert torch.allclose(logprobs[:kept], plain_logprobs(plain, r)[:kept], atol=1e-4)
            if 0 < n < first:               # new weights came in the middle of its thinking
                mixed += 1
                expected = swapped_logprobs(plain, new, r, n)[: first - n]
                assert torch.allclose(logprobs[n: first], expected, atol=1e-4)
                gaps.append((expected - plain_logprobs(new, r)[n: first]).abs().max())
    assert mixed > 3 and max(gaps) > 1e-3
    assert not get(sampler, "/is_paused")["is_paused"]


def test_a_request_that_began_under_newer_weights_than_its_salt_is_asked_again(
        served, connect, plain, monkeypatch):
    """It could have been served blocks computed under other weights."""
    monkeypatch.setattr(servers, "PROBE_S", 1e6)
    sampler, new = connect(served.url), moved(plain, 0.3)
    sampler.push_weights(plain.named_parameters(), 0)
    hold(sampler)
    for request in requests(3, samples=4, length=100):
        sampler.submit(request)
    until(lambda: len(sampler.fleet.servers[0].tasks) == 12)
    sampler.push_weights(new.named_parameters(), 1)
    rollouts = drain(sampler)
    assert {v for r in rollouts for v in r.versions} == {1} and len(rollouts) == 12
    assert errors(new, rollouts).max() < 1e-4
    assert sampler.fleet.log()["servers/late_starts"] == 12


def test_a_push_that_arrives_changed_or_breaks_off_leaves_nothing_serving_mixed_weights(
        sampler, plain, monkeypatch):
    """Half of the buckets arrive. The server stays paused with its old weights, whole; only a
    complete push lets it go on, and then the samples under way are all there."""
    new = moved(plain, 0.3)
    monkeypatch.setattr(servers, "BUCKET_BYTES", 30_000)
    label = get(sampler, "/weight_info")["weight_version"]
    for request in requests(5, samples=4):
        sampler.submit(request)
    rollouts = some(sampler)

    def breaking():
        for i, pair in enumerate(new.named_parameters()):
            if i == 9:
                raise MemoryError("gather failed")
            yield pair
    with pytest.raises(MemoryError):
        sampler.push_weights(breaking(), 1)
    until(lambda: sampler.needs_push)
    assert get(sampler, "/is_paused")["is_paused"]
    assert get(sampler, "/weight_info")["weight_version"] == label

    honestly = servers.sha256
    monkeypatch.setattr(servers, "sha256", lambda tensor: honestly(tensor + 1e-9))
    sampler.fleet.push(new.named_parameters(), 1, verify=True)      # one bit is enough
    monkeypatch.setattr(servers, "sha256", honestly)
    assert "another checksum" in sampler.fleet.servers[0].why
    until(lambda: sampler.needs_push)
    assert get(sampler, "/is_paused")["is_paused"]
    rollouts = keep_going(sampler, new, 1, rollouts)
    assert Counter(r.group_id for r in rollouts) == {i: 4 for i in range(5)}
    fresh = [r for r in rollouts if set(r.versions) == {1} and not r.interrupted]
    fresh += drain(sampler, requests(5))
    assert errors(new, fresh).max() < 1e-4


def test_a_server_that_stops_answering_is_given_up_after_the_deadline(
        served, connect, plain, monkeypatch, capfd):
    """SIGSTOP: its connections stay open, nothing ever fails by itself. When it goes on, all its
    samples come, once."""
    monkeypatch.setattr(servers, "PROBE_S", 0.2)
    sampler = connect(served.url, deadline_s=4)
    sampler.push_weights(plain.named_parameters(), 0)
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
    assert "is silent; waiting up to 4 s" in capfd.readouterr().err
    until(lambda: sampler.needs_push, 120, "the server")
    rollouts = keep_going(sampler, plain, 0, rollouts)
    assert Counter(r.group_id for r in rollouts) == {i: 5 for i in range(8)}
    assert errors(plain, rollouts).max() < 1e-4


def run(served, cwd, *more, start=()):
    """A small run of scalerl.py on the server, k = 2, by `start`; returns (process, lines of its
    log)."""
    done = run_command([
        *start, ROOT / "scalerl.py", "--model", served.model, "--vllm-url", served.url, "--gpus", 0,
        "--prompts-per-step", 4, "--samples-per-prompt", 4, "--slots", 12, "--think-min", 8,
        "--think-max", 22, "--answer-tokens", 3, "--eval-prompts", 8, "--eval-samples", 2,
        "--eval-every", 3, "--checkpoint-every", 2, "--lr", 1e-3, "--warmup-steps", 2,
        "--off-policy", "pipeline-2", "--heldout-prompts", 64, "--threads", 1, "--deadline-s", 60,
        "--name", "r", *more], cwd)
    log = cwd / "runs" / "r" / "metrics.jsonl"
    return done, [json.loads(line) for line in log.read_text().splitlines()]


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
        assert r["time/wait_s"] == r["time/generate_s"] >= 0 and r["servers/losses"] == 0
    evals = (tmp_path / "runs/r/evals.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in evals] == [0, 3, 6]
    shutil.rmtree(tmp_path / "runs/r/checkpoints/step_6")
    done, again = run(served, tmp_path, "--steps", 7, "--resume")
    assert done.returncode == 0, done.stderr
    assert "unfinished samples start again" in done.stdout
    assert [r["step"] for r in again] == list(range(8)) and again[:5] == log[:5]
    assert again[5]["lag/max"] <= 2


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
    assert (tmp_path / "runs/r/logs/rank_1.log").read_text() == ""


def test_a_server_that_breaks_off_a_load_ends_and_started_again_loses_no_sample(
        served, connect, plain, monkeypatch):
    """Some layers are new by then and some old, so its worker kills its first process, with
    SIGKILL; the others, which vLLM leaves behind, end with it. The server that takes its place has
    the folder's weights until it gets the current ones. The last group is held back,
    so some are unfinished for sure."""
    monkeypatch.setattr(servers, "PROBE_S", 20)
    sampler, new = connect(served.url, deadline_s=240), moved(plain, 0.3)
    sampler.push_weights(new.named_parameters(), 5)
    processes = served.tree
    assert len(processes) > 2
    *first, last = requests(9, samples=5)
    for request in first:
        sampler.submit(request)
    rollouts = some(sampler)
    hold(sampler)
    sampler.submit(last)
    until(lambda: len(sampler.fleet.servers[0].tasks) >= 5)
    bad = {name: tensor[1:] if "layers.1.mlp" in name else tensor
           for name, tensor in new.named_parameters()}
    sampler.push_weights(bad.items(), 6)
    served.process.wait(30)
    assert "loading weights broke off" in served.log.read_text()
    gone, alive = psutil.wait_procs(processes, 30)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    served.start()
    rollouts = keep_going(sampler, new, 6, rollouts, 240)
    assert Counter(r.group_id for r in rollouts) == {i: 5 for i in range(9)}
    assert {v for r in rollouts for v in r.versions} == {5, 6}
    assert errors(new, rollouts).max() < 1e-4
    log = sampler.fleet.log()
    assert log["servers/losses"] == 1 and 0 < log["servers/resubmitted"] <= 20


def test_a_server_killed_during_the_send_serves_nobody(
        served, connect, plain, monkeypatch, capfd):
    """After the first bucket of several. Nothing is left that could serve what arrived, and the
    run ends with a sentence once nobody has come back."""
    monkeypatch.setattr(servers, "BUCKET_BYTES", 30_000)
    sampler = connect(served.url)
    sampler.push_weights(plain.named_parameters(), 0)
    early, late = requests(6, samples=4)[:5], requests(6, samples=4)[5]
    for request in early:
        sampler.submit(request)
    link, sent = sampler.fleet.servers[0].link, []
    send = link.send

    def send_and_kill(tensors):
        if sent:
            served.kill()
        sent.append(len(tensors))
        send(tensors)
    link.send = send_and_kill
    sampler.push_weights(moved(plain, 0.3).named_parameters(), 1)
    assert len(sent) == 2 and sampler.fleet.servers[0].state == "lost"
    sampler.submit(late)            # the early ones may all have been answered before the push
    sampler.fleet.deadline_s = 2
    assert "is lost: push of version 1: " in capfd.readouterr().err
    with pytest.raises(ServerError, match="generate, version 1: no server is ready since 2 s"):
        while sampler.in_flight:
            sampler.step()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", served.port), 1)
