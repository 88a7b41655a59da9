"""server.py: one vLLM server, all in the loop of pool.py: its routes, its part in a push. Weights
travel to its workers between CPUs inside the request, to worker.py, between GPUs over NCCL. Rank 0
and the workers of one server are a group, so a dead server breaks no other."""
import asyncio
import base64
import concurrent.futures
import contextlib
import itertools
import json
import re
import secrets
import threading
import time

import aiohttp
import torch

from engines.vllm_inprocess import HEAD

CALL_S = 120.0      # for all but generation; in a push the other servers wait less (LATE_S)
LOOK_S = 30.0       # for a look and a pause, which cost a server little: it hangs if it is silent
# vLLM sends the first for nan, -inf and none; a sure token's may come out above 0 by rounding.
NO_LOGPROB, ROUNDING = -9999.0, 1e-3
# One request announces so much, or one larger tensor: vLLM's NCCL buffer takes 1 GiB, or that.
BUCKET_BYTES = 256 * 2**20


class ServerError(RuntimeError):
    """No server can go on: one sentence with the phase, the server, the version."""


class ServerRefused(ServerError, ValueError):
    """Started as it is, this server will never do what it is asked."""


class ServerFailed(Exception):
    """Internal: a server did not do what it was asked."""


class BadAnswer(ServerFailed):
    """Internal: it has answered, with an error or with what cannot be right."""


class Server:
    """One server of a pool. state: see pool.py; why: the reason for "lost"."""

    def __init__(self, url, pool):
        self.url, self.pool = url, pool
        self.call_s = min(CALL_S, pool.deadline_s)
        self.state, self.why = "lost", "no answer yet"
        self.version = self.label = None    # of the last whole push since it was connected
        self.channel, self.workers = None, 0
        self.connection = ""            # a new name whenever it is connected
        self.slots = 0                  # requests in flight, at most
        self.requests = {}              # in flight: {task: (sampler, sample)}
        self.tokens, self.progress = 0.0, 0.0   # its own count of tokens; the time it last grew

    async def get(self, path):
        return await self.post(path, limit_s=LOOK_S, method="GET")

    async def post(self, path, body=None, limit_s=CALL_S, method="POST"):
        """What a route says, JSON or text. limit_s: 0: none. Raises ServerFailed; ServerRefused:
        HTTP status 4xx before the first connection."""
        limits = aiohttp.ClientTimeout(min(limit_s, self.call_s), sock_connect=self.call_s)
        try:
            async with self.pool.session.request(method, self.url + path, json=body,
                                                 timeout=limits) as response:
                said = await response.text(errors="replace")
        except TimeoutError:
            self.pool.restart(self)
            raise ServerFailed(f"{path}: no answer for {limits.total or self.call_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ServerFailed(f"{path}: {error or type(error).__name__}") from None
        if response.status != 200:
            wrong = 400 <= response.status < 500 and not self.connection
            raise (ServerRefused if wrong else BadAnswer)(
                f"{self.url}{path} answered {response.status}: {said[:300]}")
        try:
            return json.loads(said) if said.startswith("{") else said
        except (ValueError, RecursionError) as error:       # cut off, or nested without end
            raise BadAnswer(f"{path} answered no JSON ({error!s:.80}): {said[:80]!r}") from None

    async def transfer(self, path, body, work):
        """A request, and work() in a thread: the two ends of a transfer. Raises what either
        raises; a thread that waits for ever, as NCCL's may, is left behind."""
        done = concurrent.futures.Future()
        done.set_running_or_notify_cancel()     # nobody can cancel it, only stop waiting

        def run():
            try:
                done.set_result(work())
            except Exception as error:          # the loop raises it
                done.set_exception(error)
        threading.Thread(target=run, daemon=True).start()   # the process may end without it
        told = asyncio.ensure_future(self.post(path, body))
        try:            # the first failure is the reason; the request's tells the launcher, too
            await asyncio.gather(told, asyncio.wait_for(        # 1.5: aiohttp rounds its limit up
                asyncio.wrap_future(done), self.call_s + 1.5))
        finally:
            told.cancel()

    async def connect(self):
        """Check its settings, meet its workers. Raises ServerRefused; anything else: try again."""
        version = (await self.get("/version"))["version"]       # the next one runs pip list: 8 s
        config = (await self.post("/server_info?config_format=json", method="GET"))["vllm_config"]
        if wrong := wrong_settings(self.pool, version, config):
            raise ServerRefused(f"{self.url}: {'; '.join(wrong)}; start it as --dry-run prints it")
        self.slots = min(self.pool.slots, config["scheduler_config"]["max_num_seqs"]
                         * config["parallel_config"]["data_parallel_size"])
        self.workers = (await self.get("/get_world_size"))["world_size"]
        # vLLM keeps the group of an earlier connection, and its memory, until it is told. Inside an
        # update that a killed trainer has left it refuses: the next connection's turn then.
        with contextlib.suppress(ServerFailed, ServerRefused):
            await self.post("/shutdown_weight_transfer_engine")
        if config["weight_transfer_config"]["backend"] == "nccl":
            self.channel = NcclChannel(1 + self.workers)
            await self.transfer("/init_weight_transfer_engine",
                                {"init_info": self.channel.init_info}, self.channel.meet)
        else:
            await self.post("/init_weight_transfer_engine", {"init_info": {}})
        self.connection, self.version = secrets.token_hex(4), None
        self.set_state("stale")

    def set_state(self, state):
        self.pool.count_time()              # the time under the old state
        self.state = state

    def disconnect(self):
        if self.channel:
            self.channel.close()
        self.channel = self.version = None
        self.workers = 0

    async def pause(self):
        """Begin a push: no new requests, stop generating, open an update."""
        if self.state == "lost":        # since the push chose it
            raise ServerFailed(self.why)
        self.set_state("paused")
        await self.post("/pause?mode=keep&clear_cache=false", limit_s=LOOK_S)
        with contextlib.suppress(ServerFailed):     # a trainer that was killed has left one open
            await self.post("/start_weight_update")
            if self.version is not None:
                return
        # Or layers, half loaded, of a push that failed on the server: vLLM 0.32 would add the next
        # push to them. The end of an update loads nothing, or what will be replaced.
        await self.post("/finish_weight_update")
        await self.post("/start_weight_update")

    def check_paused(self):
        """A server that was lost amid a push, perhaps for a request, and is connected again has
        thrown away what it had received: the rest would be loaded among older weights."""
        if self.state != "paused":
            raise ServerFailed("it was lost meanwhile")

    async def receive(self, info, data, text):  # of `buckets`; text: the data where HTTP takes it
        self.check_paused()
        if self.channel:
            await self.transfer("/update_weights", {"update_info": info},
                                lambda: self.channel.send(data))
        else:
            await self.post("/update_weights", {"update_info": info | {"data": text}})

    async def resume(self, version, label):
        """End a push: load what came, under the name `label`, and go on."""
        self.check_paused()
        await self.post("/finish_weight_update", {"weight_version": label})
        self.check_paused()
        await self.post("/resume")
        self.check_paused()
        self.version, self.label, self.progress = version, label, time.monotonic()
        self.set_state("ready")
        self.pool.dispatch()

    async def generate(self, sampler, sample):
        """(ids, log-probs, versions) that continue sample.ids; see `check_answer`."""
        asked, name, version = sampler.budget(sample), secrets.token_hex(8), self.version
        # With the salt a cached block is found under the weights alone that computed it.
        answer = await self.post("/inference/v1/generate", {
            "request_id": name, "cache_salt": f"{self.label}-{self.connection}",
            "token_ids": sample.ids, "sampling_params": {
                "temperature": sampler.temperature, "max_tokens": asked, "logprobs": 0,
                "stop_token_ids": sampler.eos_ids, "ignore_eos": True, "detokenize": False}},
            limit_s=0)
        return check_answer(answer, name=name, asked=asked, vocab=self.pool.vocab,
                            eos_ids=sampler.eos_ids, pushed=self.pool.pushed, oldest=version)

    async def check_health(self):
        """Raises ServerFailed: silent, without the weights it should have, or at a stand."""
        if self.state != "ready":
            return
        label = self.label
        info, metrics = await asyncio.gather(self.get("/weight_info"), self.get("/metrics"))
        if info["weight_version"] != label == self.label:       # else a push has come meanwhile
            raise ServerFailed("it has other weights than were pushed: started again, or shared?")
        counts = re.findall(r"^vllm:generation_tokens_total{.*} (\S+)$", metrics, re.MULTILINE)
        tokens, now = sum(map(float, counts)), time.monotonic()
        if tokens != self.tokens or not self.requests or not counts:    # --disable-log-stats
            self.tokens, self.progress = tokens, now
        elif now - self.progress > self.pool.deadline_s:
            self.pool.restart(self)
            raise ServerFailed(f"no new token for {self.pool.deadline_s:.0f} s, with "
                               f"{len(self.requests)} requests in flight")


def wrong_settings(pool, version, config):
    """A sentence for each setting that does not fit the run."""
    model, run_dtype = config["model_config"], str(pool.dtype).removeprefix("torch.")
    dtype, length = model["dtype"].removeprefix("torch."), model["max_model_len"]
    head = (model["hf_overrides"] or {}).get("head_dtype", "model")
    backend = (config["weight_transfer_config"] or {}).get("backend")
    settings = [                        # name; what it has; what fits
        ("vllm", version[:4], ["0.32", "0.33"]),
        ("--logprobs-mode", model["logprobs_mode"], ["processed_logprobs"]),
        ("--dtype", dtype, [run_dtype]),
        ("--generation-config", model["generation_config"], ["vllm"]),
        ("--max-model-len", length, [max(length, pool.length)]),
        ("head_dtype in --hf-overrides", dtype if head == "model" else head,
         [HEAD[pool.head_fp32]]),
        ("backend in --weight-transfer-config", backend, ["nccl", "http"][not pool.cuda:])]
    return [f"{name} is {has}, this run needs {' or '.join(map(str, fits))}"
            for name, has, fits in settings if has not in fits]


def check_answer(answer, *, name, asked, vocab, eos_ids, pushed, oldest):
    """(ids, log-probs, versions) of the answer to request `name`. pushed: {name: version} of this
    run's weights; oldest: the server's when it was asked. Raises BadAnswer with what is wrong."""
    try:
        choice, = answer["choices"]
        ids, spans = list(choice["token_ids"]), choice["weight_versions"]
        behavior_logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        labels = ((place, pushed[span["version"]]) for span in spans
                  for place in range(span["start"], span["end"]))
        # However long a span says it is, no more is read than was asked for.
        places, versions = zip(*itertools.islice(labels, asked + 1), strict=True)
    except (KeyError, TypeError, ValueError) as error:
        raise BadAnswer(f"not an answer with weights of this run ({error!r:.300})") from None
    ends = [token in eos_ids for token in ids]
    no_ids = [token for token in ids if type(token) is not int or not 0 <= token < vocab]
    no_logprobs = [p for p in behavior_logprobs
                   if type(p) not in (float, int) or not NO_LOGPROB < p < ROUNDING]
    wrong = [words for words, is_so in (
        ("of another request", not str(answer.get("request_id")).endswith(name)),
        (f"token ids {no_ids[:3]!s:.60}", no_ids),
        (f"log-probs {no_logprobs[:3]!s:.60}", no_logprobs),
        ("number of tokens", not 0 < len(ids) == len(behavior_logprobs) <= asked),
        ("end", any(ends[:-1]) or len(ids) < asked and not any(ends)),
        ("weights", places != tuple(range(len(ids))) or list(versions) != sorted(versions)
         or versions[0] < oldest)) if is_so]
    if wrong:
        raise BadAnswer(f"wrong {', '.join(wrong)}; {len(ids)} tokens of {asked}, "
                        f"{len(behavior_logprobs)} log-probs, weights {spans!s:.200}")
    return ids, behavior_logprobs, list(versions)


def buckets(named_tensors, dtype):
    """Yield (names, types and shapes; one tensor of bytes) of about BUCKET_BYTES each."""
    bucket, size = {}, 0
    for name, tensor in named_tensors:
        bucket[name] = tensor.detach().to(dtype)
        size += bucket[name].nbytes
        if size >= BUCKET_BYTES:
            yield packed(bucket)
            bucket, size = {}, 0
    if bucket:
        yield packed(bucket)


def packed(bucket):
    tensors = bucket.values()
    info = {"names": list(bucket), "shapes": [list(tensor.shape) for tensor in tensors],
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]}
    return info, torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in tensors])


class NcclChannel:
    """The trainer's end towards vLLM's own NCCL engine. `meet` and `send` may never return. Its id
    goes over HTTP: a TCPStore would unpickle what it gets. Not run on a GPU yet."""

    def __init__(self, world_size):
        from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary
        self.world_size, self.device = world_size, torch.cuda.current_device()
        self.stream = torch.cuda.Stream(self.device)    # a silent server must not delay others
        self.id = bytes(NCCLLibrary().ncclGetUniqueId().internal)
        self.init_info = {"nccl_unique_id_b64": base64.b64encode(self.id).decode(),
                          "rank_offset": 1, "world_size": world_size, "packed": True}
        self.group = None

    def meet(self):
        from vllm.distributed.weight_transfer.nccl_common import uid_init_process_group
        with torch.cuda.device(self.device):
            self.group = uid_init_process_group(self.id, 0, self.world_size, self.device)

    def send(self, data):
        # vLLM's own sender has one pair of streams for all groups.
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            self.stream.wait_stream(torch.cuda.default_stream())    # which computes the data
            self.group.broadcast(data, 0, self.stream)
            self.stream.synchronize()

    def close(self):
        """The communicator gives its GPU memory back; that ends a waiting `send`."""
        if self.group:
            threading.Thread(target=self.group.destroy, name="destroy", daemon=True).start()
