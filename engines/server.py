"""server.py: one vLLM server: its routes over HTTP, its settings, its part in a weight push.

Nothing in vLLM is replaced: its token route, its pause, its weight transfer, its record of the
weights behind each token. A CPU build cannot receive weights; vllm_worker.py adds that.
Everything here runs in the asyncio loop of server_pool.py.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import re
import threading
import time
from urllib.parse import urlsplit

import aiohttp

from engines.vllm_inprocess import HEAD
from engines.weight_transfer import GlooChannel, NcclChannel

PAUSE_S = 30.0                          # to pause for a push: the other servers stand still so long
SEND_S = 120.0                          # for a broadcast over gloo: the same
# vLLM's count of requests that have got a first token, ever; preempted ones count once.
FIRST_TOKENS = "time_to_first_token_seconds_count"


class ServerError(RuntimeError):
    """No server can go on: one sentence with the phase, the server, the version, where to look."""


class ServerFailed(Exception):
    """Internal: a server did not do what it was asked."""


class ServerRefused(ServerFailed, ValueError):
    """Internal: it never will, started as it is: HTTP status 4xx."""


def metric(name, metrics):
    """One of vLLM's own figures in its /metrics, summed over its engines; 0: not there."""
    return sum(map(float, re.findall(rf"^vllm:{name}{{.*}} (\S+)$", metrics, re.MULTILINE)))


async def transfer(request, work, timeout_s):
    """An HTTP request and work() in a thread at once: the two ends of a transfer. Raises
    ServerFailed as soon as one fails; a thread that waits for ever is left behind."""
    request, done = asyncio.ensure_future(request), concurrent.futures.Future()
    done.set_running_or_notify_cancel()     # nobody can cancel it, only stop waiting

    def run():
        try:
            done.set_result(work())
        except Exception as error:          # the loop raises it
            done.set_exception(error)
    threading.Thread(target=run, daemon=True).start()   # the process may end without it
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(request, asyncio.wrap_future(done))
    except TimeoutError:
        raise ServerFailed(f"no transfer of weights within {timeout_s:g} s") from None
    except (RuntimeError, AssertionError) as error:     # of gloo or NCCL
        raise ServerFailed(str(error) or repr(error)) from None
    finally:
        request.cancel()


class Server:
    """One server. state: see server_pool.py; why: the reason for "lost"."""

    def __init__(self, url, session, deadline_s):
        self.url, self.session, self.deadline_s = url.rstrip("/"), session, deadline_s
        self.state, self.why = "lost", "no answer yet"
        self.version = self.label = None    # of the last whole push since it was connected
        self.channel, self.workers = None, 0
        self.connections = 0            # ever
        self.slots = 0                  # requests in flight, at most
        self.requests = {}              # in flight: {task: (sampler, sample)}
        self.gone = 0                   # requests that had a first token and are in flight no more
        self.tokens, self.progress = 0.0, 0.0   # its own count of tokens; the time it last grew

    async def get(self, path):
        return await self.post(path, method="GET")

    async def post(self, path, body=None, total_s=0.0, method="POST"):
        """What a route says, JSON or text. total_s: how long it may take; None: for ever, 0: the
        deadline. Raises ServerFailed."""
        seconds = self.deadline_s if total_s == 0 else total_s
        limits = aiohttp.ClientTimeout(total=seconds, sock_connect=self.deadline_s)
        try:
            async with self.session.request(method, self.url + path, json=body, timeout=limits,
                                            allow_redirects=False) as response:
                said = await response.text(errors="replace")
        except TimeoutError:
            raise ServerFailed(f"{path}: no answer for {seconds or self.deadline_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ServerFailed(f"{path}: {error or type(error).__name__}") from None
        if response.status != 200:
            kind = ServerRefused if 400 <= response.status < 500 else ServerFailed
            raise kind(f"{path} answered {response.status}: {said[:300]}")
        with contextlib.suppress(ValueError):
            return json.loads(said)
        return said

    async def connect(self, pool):
        """Check its settings and meet its workers. Raises ServerFailed: try again later;
        ValueError: it has to be started in another way."""
        try:
            version = (await self.get("/version"))["version"]
            if not version.startswith(("0.32.", "0.33.")):
                raise ValueError(f"its vllm is {version}, this run needs 0.32 or 0.33")
            config = (await self.get("/server_info?config_format=json"))["vllm_config"]
            if wrong := wrong_settings(pool, config):
                raise ValueError("; ".join(wrong))
            self.slots = min(pool.slots, config["scheduler_config"]["max_num_seqs"]
                             * config["parallel_config"]["data_parallel_size"])
            self.gone = metric(FIRST_TOKENS, await self.get("/metrics"))
            self.workers = (await self.get("/get_world_size"))["world_size"]
        except (KeyError, TypeError, AttributeError) as error:      # a web page, another server
            raise ValueError(f"not a vLLM server that this code knows ({error!r})") from None
        if config["weight_transfer_config"]["backend"] == "gloo":
            self.channel = GlooChannel(urlsplit(self.url), 1 + self.workers,
                                       min(self.deadline_s, SEND_S))
        else:
            try:
                self.channel = NcclChannel(1 + self.workers)
            except ImportError as error:
                raise ValueError(f"the trainer's end of NCCL is vLLM's, which cannot be used here "
                                 f"({error}): run `make vllm`") from None
        await transfer(self.post("/init_weight_transfer_engine",
                                 {"init_info": self.channel.init_info}),
                       self.channel.meet, self.deadline_s)
        self.connections += 1

    def disconnect(self):
        if self.channel:
            self.channel.close()
        self.channel = self.version = None

    async def pause(self):
        """Begin a push: stop generating (running sequences keep their keys and values) and open
        an update."""
        await self.post("/pause?mode=keep&clear_cache=false", total_s=min(PAUSE_S, self.deadline_s))
        if self.version is None:        # a trainer that was killed may have left an update open
            with contextlib.suppress(ServerFailed):
                await self.post("/start_weight_update")
            await self.post("/finish_weight_update")    # loads nothing, or what will be replaced
        await self.post("/start_weight_update")

    async def receive(self, info, packed):
        """One bucket. info: names, types and shapes; packed: {class of channel: its data}."""
        await transfer(self.post("/update_weights", {"update_info": info}),
                       lambda: self.channel.send(packed[type(self.channel)]), self.deadline_s)

    async def resume(self, version, label):
        """End a push: load what came, under the name `label`, and generate again."""
        await self.post("/finish_weight_update", {"weight_version": label})
        await self.post("/resume")
        self.version, self.label, self.progress = version, label, time.monotonic()

    @property
    def salt(self):
        """Of its prefix cache: a block is found under the weights alone that computed it. After
        a loss the salt is new: blocks from before may be of somebody else's weights."""
        return f"{self.label}-{self.connections}"

    async def check_health(self):
        """Raises ServerFailed: silent, without the weights it should have, or at a stand."""
        info, metrics = await asyncio.gather(self.get("/weight_info"), self.get("/metrics"))
        if info["weight_version"] != self.label:
            raise ServerFailed("it has other weights than were pushed: it was started again, or "
                               "another trainer uses it")
        tokens, now = metric("generation_tokens_total", metrics), time.monotonic()
        if tokens != self.tokens or not self.requests:
            self.tokens, self.progress = tokens, now
        elif now - self.progress > self.deadline_s:
            raise ServerFailed(f"neither an answer nor a new token for {self.deadline_s:.0f} s, "
                               f"with {len(self.requests)} requests in flight")


def wrong_settings(pool, config):
    """A sentence for each setting that does not fit the run. A server does not tell its model's
    sizes: another model is noticed in the first push."""
    model, run_dtype = config["model_config"], str(pool.dtype).removeprefix("torch.")
    dtype = model["dtype"].removeprefix("torch.")
    head = (model["hf_overrides"] or {}).get("head_dtype", "model")
    settings = {                        # what it has; what fits
        "--logprobs-mode": (model["logprobs_mode"], ["processed_logprobs"]),
        "--dtype": (dtype, [run_dtype]),
        "--quantization": (model["quantization"], [None]),
        "--kv-cache-dtype": (config["cache_config"]["cache_dtype"], ["auto", run_dtype]),
        "--speculative-config": (config["speculative_config"], [None]),  # it gets no new weights
        "--generation-config": (model["generation_config"], ["vllm"]),
        "head_dtype in --hf-overrides": (dtype if head == "model" else head,
                                         [HEAD[pool.head_fp32]]),
        "backend in --weight-transfer-config": (
            (config["weight_transfer_config"] or {}).get("backend"),
            ["nccl", "gloo"] if pool.cuda else ["gloo"]),
    }
    wrong = [f"{name} is {has}, this run needs {' or '.join(map(str, fits))}"
             for name, (has, fits) in settings.items() if has not in fits]
    if model["max_model_len"] < pool.length:
        wrong.append(f"--max-model-len is {model['max_model_len']}, this run needs at least "
                     f"{pool.length}")
    return wrong
