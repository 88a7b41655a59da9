"""Servers for the tests of the server pool: fake ones that say what a test likes, and real ones."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections import Counter

import psutil
import pytest
import torch
from aiohttp import web
from conftest import EOS, WORDS

from config import Config
from servers.pool import ServerPool, ServerSampler
from sampler import Interruption
from scaleout.launch import server_command
from scaleout.placement import free_ports


def until(condition, seconds=60, what="the condition"):
    """Poll; a wait without a deadline would hang the suite instead of failing a test."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not come within {seconds} s"
        time.sleep(0.05)


def needs_push(sampler):
    """Is a server connected and without the current weights?"""
    return any(server.state == "stale" for server in sampler.pool.servers)


def free_port():
    """Not one that the kernel could give to a client before the server has it."""
    return free_ports(1, "127.0.0.1")[0]


class Weights:
    """The `weights` of a sampler: what a test sets, at each call counted."""

    def __init__(self):
        self.tensors, self.calls = [], 0

    def __call__(self, dtype):
        self.calls += 1
        return self.tensors


@pytest.fixture
def connect():
    """Pool and sampler on these addresses, with budgets 9..17 and 4; closed afterwards."""
    pools = []

    def connect(*urls, slots=20, phrase=(30, 31, 7), eos=(EOS,), length=134, prompt_tokens=110,
                tokenizer=WORDS, deadline_s=60.0, seed=0, ahead=0, temperature=1.0,
                dtype=torch.float32, vocab=10_000, **more):
        pools.append(ServerPool(urls, slots=slots, length=length, dtype=dtype,
                                vocab=vocab, deadline_s=deadline_s, **more))
        return ServerSampler(pools[-1], tokenizer, Interruption(9, 17, 4, phrase),
                             weights=Weights(), prompt_tokens=prompt_tokens, eos_ids=eos,
                             seed=seed, ahead=ahead, temperature=temperature)
    yield connect
    for pool in pools:
        pool.close()


def push(sampler, named_tensors, version):
    """A push by hand; a server that comes back gets the same weights."""
    sampler.weights.tensors = list(named_tensors)
    sampler.push_weights(iter(sampler.weights.tensors), version)


def some(sampler):
    """The first rollouts that come."""
    end = time.monotonic() + 60
    while not (rollouts := sampler.step()):
        assert time.monotonic() < end, "no sample came"
    return rollouts


def drained(sampler, so_far=(), seconds=120):
    """All rollouts of what is in flight, with those before."""
    rollouts, end = list(so_far), time.monotonic() + seconds
    while sampler.in_flight:
        assert time.monotonic() < end, f"{sampler.in_flight} samples are still missing"
        rollouts += sampler.step()
    return rollouts


class Fake:
    """An HTTP server with vLLM's routes, in a thread; what it generates is up to the test.

    say(body, number) -> JSON of an answer, or bytes to send as they are.
    """
    def __init__(self, say, **config):
        self.say = say
        self.config = {
            "model_config": {"max_model_len": 134, "logprobs_mode": "processed_logprobs",
                             "quantization": None, "generation_config": "vllm",
                             "dtype": "torch.float32",
                             "hf_overrides": {"head_dtype": "float32"}},
            "cache_config": {"cache_dtype": "auto"}, "speculative_config": None,
            "scheduler_config": {"max_num_seqs": 4000},
            "parallel_config": {"data_parallel_size": 1},
            "weight_transfer_config": {"backend": "http"}}
        for path, value in config.items():
            section, name = path.split("__")
            self.config[section][name] = value
        self.version, self.vllm, self.paused = "default", "0.32.0", False
        self.asked, self.pushes, self.updates = [], [], []
        self.looks, self.count = 0, lambda look: 0.0        # tokens generated, at each look
        self.redirect = ""              # where requests for samples are sent on to
        self.queued = 0                 # requests that wait: not begun, or preempted
        self.unbegun = 0                # requests, ever, that got no first token
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
            web.TCPSite(self.runner, "127.0.0.1", self.port, backlog=4096).start())
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.port}"

    def release(self):
        """Let the answers go that `open` holds back."""
        self.loop.call_soon_threadsafe(self.open.set)

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
            number, version = len(self.asked), self.version     # it begins at once
            if self.redirect:
                raise web.HTTPTemporaryRedirect(self.redirect + path)
            await self.open.wait()
            said = self.say(body, number)
            if isinstance(said, bytes):
                return web.Response(body=said, content_type="application/json")
            said.setdefault("request_id", f"generate-tokens-{body['request_id']}")
            for span in said.get("choices", [{}])[0].get("weight_versions") or []:
                span["version"] = span["version"].replace("run-0", version)
            return web.json_response(said)
        if path in self.failing or path == "/start_weight_update" and self.updating:
            self.closing.add(request.transport)         # as uvicorn does, a moment after a 500
            return web.json_response({"error": "no"}, status=self.failing.get(path, 500))
        self.updating = path == "/start_weight_update" or (
            self.updating and path != "/finish_weight_update")
        if path == "/update_weights":
            self.updates.append(body["update_info"])
        if path == "/finish_weight_update" and body:
            self.version = body["weight_version"]
            self.pushes.append(self.version)
        self.paused = {"/pause": True, "/resume": False}.get(path, self.paused)
        if path == "/metrics":
            self.looks += 1
            return web.Response(text=f"vllm:generation_tokens_total{{}} {self.count(self.looks)}\n"
                                     f"vllm:num_requests_waiting{{}} {self.queued}\n"
                                     "vllm:time_to_first_token_seconds_count{} "
                                     f"{len(self.asked) - self.unbegun}\n")
        return web.json_response({
            "/version": {"version": self.vllm}, "/server_info": {"vllm_config": self.config},
            "/get_world_size": {"world_size": 1}, "/is_paused": {"is_paused": self.paused},
            "/weight_info": {"weight_version": self.version}}.get(path, {}))


class Served:
    """A real vLLM server of a model folder, in a session of its own."""

    def __init__(self, model, log, vllm_args=""):
        self.model, self.log, self.port = model, log, free_port()
        self.vllm_args = vllm_args
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        config = Config(model=str(self.model), vllm_args=self.vllm_args)
        argv, env = server_command(config, length=134, slots=20,
                                   dtype=torch.float32, url=self.url)
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(argv, env=env | {"OMP_NUM_THREADS": "1"}, stdout=log,
                                            stderr=log, start_new_session=True)

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
