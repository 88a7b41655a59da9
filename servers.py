"""servers.py: vLLM servers, near or far, behind the `Sampler` protocol.

  1. `server_command`: how a stock vLLM server is started for a run. Whoever starts it (the
     launcher, a person, a cluster) runs this command; the trainer only ever knows its URL.
  2. `check_answer`: nothing that comes from a server is trusted until it was looked at.
  3. Links: how tensors travel to one server's workers. Each server has a group of its own, so a
     dead one breaks no other. Neither torch's groups nor NCCL's know authentication: private
     networks only, whatever the HTTP side does.
  4. `Fleet`: the servers of a run: connecting, watching, and the weight push.
  5. `ServerSampler`: the client. Requests are in flight from a thread of its own, so servers
     generate while the trainer trains.

Nothing in vLLM is replaced: its token route, its pause, its weight transfer, its record of which
weights produced which token. What it lacks on a CPU, a transfer over gloo, is weight_wire.py,
loaded by the server's own option for that. Everything on the wire is JSON or plain tensors; no
pickle.

What a server goes through:

    lost    not connected: not there yet, died, or silent for longer than the deadline
    stale   connected, but without the current weights: it gets no requests
    ready   has the current weights

A push is: no new requests, pause (running sequences keep keys and values), send, finish, resume.
If any of it fails, the server is lost: nothing resumes it until it was connected again and a
whole push has succeeded. What it had not finished is asked for again, of whoever is ready.

A request has no deadline of its own: a long sample may rightly take longer than any. Progress is
what counts: a server is lost as well when, for the deadline, no answer has come from it and it
has counted no new token, although there are requests in flight. So an answer that never comes is
noticed once nothing else is left at its server, which the limit on the lag sees to.
"""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import queue
import re
import secrets
import socket
import ssl
import sys
import threading
import time
from collections import Counter, deque
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

from memory import CACHE_SHARE, host_memory
from sampler import Request, Rollout, Sample, TwoRequests, check_fits
from vllm_engine import BLOCK_TOKENS, HEAD, block_bytes

LOOPBACK = ("127.0.0.1", "localhost", "::1")

# ---------------------------------------------------------------------------------------------
# 1. Starting one


def server_command(config, *, model, length, slots, dtype, host, port, device=None):
    """(argv, environment) of one stock vLLM server for this run.

    model    the folder or name that the run trains
    length   tokens of the longest sequence: prompt, thinking, phrase and answer
    slots    sequences that each of its data-parallel copies decodes at once
    dtype    torch dtype of weights and cache; the head's is fp32 or, without head_fp32, bf16
    host     the address it listens on;  port: its HTTP port
    device   its GPUs as CUDA_VISIBLE_DEVICES has them, "0,1"; None: the CPU

    The environment is this process's with what vLLM needs on top; pass it whole to the child.
    Give the child a process group of its own: vLLM starts workers, and they must end with it.
    """
    name = str(dtype).removeprefix("torch.")
    argv = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
            "--host", host, "--port", str(port), "--dtype", name,
            "--max-model-len", str(length), "--max-num-seqs", str(slots),
            "--hf-overrides",
            json.dumps({"head_dtype": HEAD[config.head_fp32]}),
            "--logprobs-mode", "processed_logprobs",        # after temperature
            "--generation-config", "vllm",                  # not the model's own top-p and top-k
            "--enable-prefix-caching",                      # salted with the version by the client
            "--enable-scale-out",                           # the route of token ids in and out
            "--skip-tokenizer-init",                        # and nothing but ids
            "--weight-transfer-config", json.dumps({"backend": "nccl" if device else "gloo"}),
            "--worker-extension-cls", "weight_wire.Worker",
            "--tensor-parallel-size", str(config.tensor_parallel),
            "--pipeline-parallel-size", str(config.pipeline_parallel),
            "--data-parallel-size", str(config.data_parallel),
            "--disable-uvicorn-access-log", "--uvicorn-log-level", "warning"]
    env = {**os.environ, "VLLM_SERVER_DEV_MODE": "1",       # the routes of pause and weights
           "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING",
           "VLLM_ENABLE_V1_MULTIPROCESSING": "1",           # an engine in this process sets it to 0
           # weight_wire.py is imported by vLLM's worker processes, whatever their folder is.
           "PYTHONPATH": os.pathsep.join(filter(None, (
               str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH"))))}
    if host in LOOPBACK:
        env["VLLM_HOST_IP"] = "127.0.0.1"                   # its inner process groups as well
    if config.tls:
        folder = Path(config.tls)
        argv += ["--ssl-keyfile", str(folder / "key.pem"),
                 "--ssl-certfile", str(folder / "cert.pem"),
                 "--ssl-ca-certs", str(folder / "ca.pem"), "--ssl-cert-reqs", "2"]
    if device:
        env["CUDA_VISIBLE_DEVICES"] = str(device)
    else:
        # Weights are prepacked there, so nothing compiled may hold on to them. The cache has room
        # for every slot to grow to the end, in at most a quarter of the memory: short of it, vLLM
        # throws a sequence out and computes its keys and values again, under newer weights.
        blocks = slots * -(-length // BLOCK_TOKENS) + 1
        memory = int(CACHE_SHARE * host_memory())
        argv += ["--enforce-eager", "--block-size", str(BLOCK_TOKENS), "--kv-cache-memory-bytes",
                 str(min(blocks * block_bytes(model, dtype), memory))]
        # Threads bound to cores would put every server of a machine on the same ones.
        env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        if config.threads:
            env["OMP_NUM_THREADS"] = str(config.threads)
    return argv, env


# ---------------------------------------------------------------------------------------------
# 2. Answers


class ServerError(RuntimeError):
    """No server can go on: one sentence with the phase, the server, the version, where to look."""


class Broken(Exception):
    """Internal: this server cannot be used now, because of this."""

    def __init__(self, why, status=None):
        super().__init__(why)
        self.status = status            # of its HTTP answer, if there was one


class BadAnswer(Exception):
    """Internal: an answer that is not what was asked for."""


class LateStart(Exception):
    """Internal: a request that began under newer weights than it was salted with."""


def check_answer(answer, *, asked, eos_ids, vocabulary, version_of, newest):
    """(ids, log-probs, versions) of a server's answer to one request, or raises.

    asked       tokens it may have at most
    vocabulary  its ids lie in 0..vocabulary - 1
    version_of  reads this run's names of versions: "..." -> int, or None if it is none
    newest      version of the weights now; the oldest allowed is that of the salt, which the
                caller compares

    Raises BadAnswer with what is wrong.
    """
    def need(condition, what):
        if not condition:
            raise BadAnswer(what)

    def plain_int(x):
        return type(x) is int           # JSON's true is an int to Python
    try:
        choice, = answer["choices"]
        ids, reason = choice["token_ids"], choice["finish_reason"]
        logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        spans = [(span["version"], span["start"], span["end"])
                 for span in choice["weight_versions"]]
    except (KeyError, TypeError, ValueError) as error:
        raise BadAnswer(f"not an answer of vLLM's token route ({error!r})") from None
    need(isinstance(ids, list) and 0 < len(ids) <= asked, f"not 1 to {asked} tokens")
    need(all(plain_int(i) and 0 <= i < vocabulary for i in ids), "a token id out of range")
    need(len(logprobs) == len(ids), f"{len(logprobs)} log-probs for {len(ids)} tokens")
    # The sum of a softmax is 1 only up to rounding: a hair above zero is honest.
    # Compared before it is converted: JSON's integers have no bounds.
    # And no softmax in fp32 gives a token e^-104 or less, the smallest number it has: nobody
    # could have drawn it, and its ratio would blow up the step.
    need(all(type(x) in (int, float) and -104 < x <= 1e-3 for x in logprobs),
         "a log-prob that is none")
    need(not any(i in eos_ids for i in ids[:-1]), "tokens after the end")
    ended = ids[-1] in eos_ids
    need(reason in ("stop", "length") and (ended or len(ids) == asked),
         f"it ended by {reason!r} after {len(ids)} of {asked} tokens")
    versions = []
    for name, start, end in spans:
        version = version_of(name)
        need(version is not None and version <= newest,
             f"weights {name!r}, which this run never pushed")
        need(plain_int(start) and plain_int(end) and start == len(versions) < end <= len(ids)
             and (not versions or version > versions[-1]), "spans of versions with gaps")
        versions += [version] * (end - start)
    need(len(versions) == len(ids), f"{len(versions)} versions for {len(ids)} tokens")
    return ids, [min(0.0, float(x)) for x in logprobs], versions


async def bounded(response, limit):
    """A response's bytes, never more than `limit` of them."""
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > limit:
            raise BadAnswer(f"more than {limit:,} bytes")
    return bytes(data)


async def bounded_json(response, limit):
    data = await bounded(response, limit)
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise BadAnswer("not JSON") from None


def metric(name, metrics):
    """One of vLLM's own figures, from its /metrics, over all its engines; 0: it does not count.

    >>> metric("generation_tokens_total", b'vllm:generation_tokens_total{engine="0"} 7.0\\nx 5\\n')
    7.0
    """
    return sum(map(float, re.findall(rb"^vllm:%s{.*} (\d+(?:\.\d+)?(?:e\+?\d+)?)$" % name.encode(),
                                     metrics, re.MULTILINE)))


# ---------------------------------------------------------------------------------------------
# 3. Links


def own_address(host, port):
    """This machine's address as `host` sees it: loopback for loopback. Sends nothing."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return probe.getsockname()[0]


def gloo_group(store, rank, world_size, address, timeout_s):
    """A process group apart from torch's default one, listening at `address` alone."""
    options = ProcessGroupGloo._Options()
    options._devices = [ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = timedelta(seconds=timeout_s)
    return ProcessGroupGloo(PrefixStore("weights", store), rank, world_size, options)


def in_thread(work):
    """A future of work() in a thread that a process may end without waiting for."""
    future = concurrent.futures.Future()
    future.set_running_or_notify_cancel()   # nobody can cancel it, only stop waiting

    def run():
        try:
            future.set_result(work())
        except BaseException as error:  # whatever it is belongs to who waits
            future.set_exception(error)
    threading.Thread(target=run, daemon=True).start()
    return future


def sha256(tensor):
    return hashlib.sha256(tensor.cpu().view(-1).view(torch.uint8).numpy()).hexdigest()


class GlooLink:
    """Trainer's end of the group with one server's workers, on CPUs; weight_wire.py's peer."""
    checks, packed = True, False        # its workers compare checksums if they are sent

    def __init__(self, url, world_size, timeout_s):
        self.world_size, self.timeout_s = world_size, timeout_s
        self.address = own_address(url.hostname, url.port)
        # A store that opens its own port listens on every address of the machine.
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        listener = socket.create_server((self.address, 0), family=family)
        self.port = listener.getsockname()[1]
        self.store = TCPStore(self.address, self.port, None, True, timedelta(seconds=timeout_s),
                              wait_for_workers=False, master_listen_fd=listener.detach())
        self.closed = threading.Event()

    def close(self):
        """Nobody waits for the workers any more: `meet` ends, and the port with it."""
        self.closed.set()

    @property
    def init_info(self):
        return {"address": self.address, "port": self.port, "world_size": self.world_size,
                "timeout_s": self.timeout_s}

    def meet(self):
        """Wait for the workers; they are told by `init_info`, at the same time. Raises
        RuntimeError: not all came within `timeout_s`, or `close` was called."""
        end = time.monotonic() + self.timeout_s
        while (here := 1 + self.store.add("workers", 0)) < self.world_size:
            if self.closed.wait(0.05) or time.monotonic() > end:
                self.store = None       # its port and thread end here, not at some collection
                raise RuntimeError(f"{here - 1} of {self.world_size - 1} workers came")
        self.group = gloo_group(self.store, 0, self.world_size, self.address, self.timeout_s)

    def send(self, tensors):
        """Raises RuntimeError: a worker is gone, or silent for `timeout_s`."""
        for tensor in tensors:
            self.group.broadcast(tensor.cpu(), 0).wait()


class NcclLink:
    """Trainer's end towards vLLM's own NCCL engine, which takes a bucket as one tensor of bytes.
    Written from vLLM 0.32's source and not run on a GPU.

    The rendezvous is by a NCCL id sent over HTTP: vLLM's other way, a TCPStore, pickles.
    """
    checks, packed = False, True

    def __init__(self, world_size, timeout_s):
        from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary
        self.world_size, self.timeout_s = world_size, timeout_s
        self.device = torch.cuda.current_device()
        self.stream = torch.cuda.Stream(self.device)    # a silent server must not hold up others
        self.id = bytes(NCCLLibrary().ncclGetUniqueId().internal)
        self.group, self.closed, self.lock = None, threading.Event(), threading.Lock()

    @property
    def init_info(self):
        return {"nccl_unique_id_b64": base64.b64encode(self.id).decode(), "rank_offset": 1,
                "world_size": self.world_size, "packed": True}

    def meet(self):
        """Raises RuntimeError: not all workers came within `timeout_s`, or `close` was called."""
        from vllm.distributed.weight_transfer.nccl_common import uid_init_process_group

        def work():
            with torch.cuda.device(self.device):
                group = uid_init_process_group(self.id, 0, self.world_size, self.device)
            with self.lock:
                late = self.closed.is_set()
                self.group = None if late else group
            if late:
                group.destroy()
        self._wait(in_thread(work), "not all workers came")

    def close(self):
        """Nobody expects anything of the workers any more: whoever waits for them here is told
        so, and the communicator gives its memory back. NCCL itself would wait for ever."""
        with self.lock:
            self.closed.set()
            group, self.group = self.group, None
        if group:
            in_thread(group.destroy)    # which may take seconds

    def send(self, tensors):
        """Raises RuntimeError: a worker is gone, or silent for `timeout_s`."""
        group = self.group
        if not group:
            raise RuntimeError("the server was lost before")

        def work():                     # vLLM's own sender has one pair of streams for all groups
            with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
                for tensor in tensors:
                    group.broadcast(tensor, 0, self.stream)
                self.stream.synchronize()
        self._wait(in_thread(work), "no progress in NCCL")

    def _wait(self, done, what):
        end = time.monotonic() + self.timeout_s
        while not concurrent.futures.wait([done], 0.1).done:
            if self.closed.is_set():
                raise RuntimeError(f"{what} before the server was lost")
            if time.monotonic() > end:
                self.close()
                raise RuntimeError(f"{what} for {self.timeout_s:.0f} s")
        done.result()


# ---------------------------------------------------------------------------------------------
# 4. The fleet

# Tensors sent with one request: all but the last are less than vLLM's NCCL buffer of 1 GiB, so it
# expects them in one broadcast.
BUCKET_BYTES = 256 * 2**20
STEER_S = 30.0                          # to pause for a push: the healthy ones stand still so long
# What tells models apart whose weights could be mistaken for each other's.
SIZES = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
         "num_key_value_heads", "vocab_size")
PROBE_S = 2.0                           # between two looks at a server
SMALL = 2**20                           # bytes of an answer that is no sample


def backoff():
    """Seconds before each further attempt to connect: a server that starts has enough to do.

    >>> [seconds for seconds, _ in zip(backoff(), range(6))]
    [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    """
    seconds = 0.5
    while True:
        yield seconds
        seconds = min(2 * seconds, 4.0)


class Server:
    """One server, as the fleet sees it. All but `link` belongs to the fleet's thread."""

    def __init__(self, url):
        self.url = url.rstrip("/")
        self.state, self.why = "lost", "not connected yet"
        self.version = None             # of the last whole push since it was connected
        self.link, self.workers = None, 0
        self.connections = 0            # ever
        self.tasks = {}                 # requests in flight: {task: (sampler, sample)}
        self.lock = asyncio.Lock()      # a probe must not look in the middle of a push
        self.tokens, self.moved = 0.0, 0.0      # its own count of them; when it last got on
        self.heard = 0.0                # when its last answer came


class Fleet:
    """The vLLM servers of a run.

    urls         "http://host:port", or https with `tls`
    slots        requests in flight at each server, at most
    length       tokens of the longest sequence they must take
    dtype        torch dtype of their weights, and of the tensors on the wire
    head_fp32    their LM head must compute in fp32, else in bf16
    model        transformers' config of the model that they must have; None: any
    tls          folder with ca.pem, cert.pem, key.pem: both sides show a certificate
    deadline_s   no wait is longer: for a server to answer, to come back
    start_deadline_s   for all of them to come up at the start; None: deadline_s

    Raises ValueError: a setting of a server is wrong, or its address is not safe. ServerError: it
    cannot be reached within the deadline.
    """

    def __init__(self, urls, *, slots, length, dtype, head_fp32=True, model=None, tls="",
                 insecure_network=False, deadline_s=600.0, start_deadline_s=None):
        self.slots, self.length, self.dtype, self.head_fp32 = slots, length, dtype, head_fp32
        self.sizes = {name: getattr(model, name) for name in SIZES if hasattr(model, name)}
        self.deadline_s = deadline_s
        self.version = -1               # none pushed yet
        # Two runs never share a version's name.
        self.nonce = secrets.token_hex(4)
        self.counters = Counter()       # since the last `log`
        self.samplers = []
        self.error = None               # a ServerError for the trainer's thread to raise
        self.session, self.keepers = None, []
        now = time.monotonic()
        self.down_since = now           # the last time when a server was ready
        self.busy, self.decoding = 0.0, 0.0     # since the log: seconds of slots, of servers
        self.counted_at = self.logged_at = now
        self.changed = threading.Condition()            # wakes the trainer's thread
        context = ssl_context(urls, tls, insecure_network)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.servers = [Server(url) for url in urls]
        try:
            start_s = start_deadline_s or deadline_s
            self._wait(self._open(context, start_s), start_s + 10)
        except (ValueError, ServerError):
            self.close()
            raise

    # -- from the trainer's thread ------------------------------------------------------------

    @property
    def needs_push(self):
        """A server is connected and has not the current weights."""
        return any(server.state == "stale" for server in self.servers)

    @property
    def workers(self):
        """Processes that generate, each on a device of its own (on a CPU: with its threads)."""
        return sum(server.workers for server in self.servers)

    def push(self, named_tensors, version, *, verify=False):
        """Bring every connected server to these weights; running sequences go on afterwards.

        named_tensors   iterable of (Hugging Face name, full tensor), taken from only while no
                        send is under way: behind it may be collectives of all trainer ranks, and
                        interleaved with a send they would hang. Not touched if nobody waits.
        verify          let the workers compare a SHA-256 of each tensor (gloo only)

        A server that fails is lost, with a sentence on stderr; `needs_push` is set when it is
        back. Raises what `named_tensors` raises; the servers then stay paused.
        """
        assert version >= self.version, f"version {version} pushed after {self.version}"
        servers, complete = self._wait(self._begin_push(version)), False
        try:
            for bucket in self._buckets(named_tensors) if servers else ():
                sums = {"sha256": [sha256(t) for _, t in bucket]} if verify and all(
                    server.link.checks for server in servers) else {}
                info = {"names": [name for name, _ in bucket],
                        "dtype_names": [str(self.dtype).removeprefix("torch.")] * len(bucket),
                        "shapes": [list(t.shape) for _, t in bucket]} | sums
                tensors = [tensor for _, tensor in bucket]
                packed = None
                if any(server.link.packed for server in servers):
                    packed = [torch.cat([t.view(-1).view(torch.uint8) for t in tensors])]
                    torch.cuda.current_stream().synchronize()   # it is read on other streams
                # All at once: workers wait no longer than we do, so behind a silent server, one
                # after the other, those of the healthy ones would give up.
                sent = {server: in_thread(partial(
                    self._deliver, server, info, packed if server.link.packed else tensors))
                    for server in servers}
                for server, done in sent.items():
                    try:
                        done.result(4 * self.deadline_s)
                    except (RuntimeError, TimeoutError, Broken, BadAnswer) as error:
                        servers.remove(server)
                        why = str(error).split(". This is typically")[0]    # gloo's advice
                        self._wait(self._fail(server, f"push of version {version}: {why}"))
            complete = True
        finally:
            self._wait(self._end_push(servers, version, complete))

    def log(self):
        """The generators' side of a step, since the last call: counters for metrics.jsonl.

        waited_s is how long a slot stood empty, on average over all slots, pauses for pushes and
        lost servers included; busy_share is the rest, as a share of the time. decoding_share is the
        share of it that a server had anything to decode at all.
        """
        async def take():
            self._account()
            busy, decoding = self.busy, self.decoding
            self.busy = self.decoding = 0.0
            counters, self.counters = self.counters, Counter()
            seconds, self.logged_at = self.counted_at - self.logged_at, self.counted_at
            return seconds, busy, decoding / len(self.servers), counters
        seconds, busy, decoding, counters = self._wait(take())
        busy /= self.slots * len(self.servers)
        return {"off_policy/busy_share": busy / max(seconds, 1e-9),
                "off_policy/decoding_share": decoding / max(seconds, 1e-9),
                "off_policy/waited_s": max(0.0, seconds - busy),
                **{f"servers/{name}": counters[name]
                   for name in ("late_starts", "taken_back", "refused_answers", "resubmitted",
                                "losses")}}

    def close(self):
        """Drop what is in flight (servers abort it when the connection closes) and disconnect."""
        async def end():
            tasks = [*self.keepers, *(task for server in self.servers for task in server.tasks)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for server in self.servers:
                if server.link:
                    server.link.close()
                server.link = None
            if self.session:
                await self.session.close()
        self._wait(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)

    def check(self):
        """Raises ServerError: no server has been ready for longer than the deadline."""
        if self.error:
            raise self.error
        # A stale one is not awaited: it waits for the trainer.
        if all(server.state == "lost" for server in self.servers) and \
                time.monotonic() - self.down_since > self.deadline_s:
            raise ServerError(f"generate, version {self.version}: no server is ready since "
                              f"{self.deadline_s:.0f} s; " + "; ".join(
                                  f"{s.url} is {s.state}: {s.why}" for s in self.servers)
                              + "; look at the servers' logs")

    def _start(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def _wait(self, coroutine, timeout=None):
        return self._start(coroutine).result(timeout or 4 * self.deadline_s)

    def _deliver(self, server, info, tensors):
        """One bucket to one server, in a thread of its own."""
        call, link = self._start(self._post(server, "/update_weights", {"update_info": info})), \
            server.link
        # A server that has ended takes nothing any more, and NCCL would not notice.
        call.add_done_callback(lambda _: call.cancelled() or call.exception() and link.close())
        try:
            link.send(tensors)
            call.result(self.deadline_s)
        except RuntimeError:
            if call.done():
                call.result()           # the cause, if it has failed before
            raise
        finally:
            call.cancel()

    def _buckets(self, named_tensors):
        """Lists of (name, contiguous tensor of the wire's dtype), each complete before it is
        given out."""
        bucket, size = [], 0
        for name, tensor in named_tensors:
            tensor = tensor.detach().to(self.dtype).contiguous()
            bucket.append((name, tensor))
            size += tensor.nbytes
            if size >= BUCKET_BYTES:
                yield bucket
                bucket, size = [], 0
        if bucket:
            yield bucket

    # -- in the fleet's thread ----------------------------------------------------------------

    def label(self, version):
        """What a version is called on the servers."""
        return f"{self.nonce}-{version}"

    def salt(self, server):
        """Of its prefix cache: blocks are found under these weights alone. A server that was lost
        may have computed some under another's weights before that was noticed, so what it does
        after it was connected again has a salt of its own."""
        return f"{self.label(server.version)}-{server.connections}"

    def version_of(self, name):
        """The version that `label` calls so; None: a name of somebody else's."""
        number = str(name).removeprefix(f"{self.nonce}-")
        # Short enough for int(), and more than any run has steps.
        known = len(number) < 10 and number.isdecimal() and name == self.label(int(number))
        return int(number) if known else None

    async def _open(self, context, start_s):
        self.session = aiohttp.ClientSession(
            # A connection of its own for each request: vLLM's server closes one after 5 s of
            # silence, and a moment after it has answered 500; a request into a closing one fails.
            connector=aiohttp.TCPConnector(limit=0, ssl=context or False, force_close=True,
                                           socket_factory=self._socket))

        async def first(server):
            why = "no answer"
            try:
                async with asyncio.timeout(start_s):
                    for pause in backoff():
                        try:
                            return await self._connect(server)
                        except (Broken, BadAnswer) as error:
                            why = str(error)
                        await asyncio.sleep(pause)
            except TimeoutError:
                raise ServerError(
                    f"connect: {server.url} is not to be had within {start_s:.0f} s "
                    f"({why}); look at its log, or at vllm_url") from None
        await asyncio.gather(*map(first, self.servers))
        self.keepers = [self._task(self._keep(server)) for server in self.servers]
        self.counted_at = self.logged_at = time.monotonic()

    def _socket(self, address):
        """While we wait for an answer nothing is sent, and a network may forget the connection
        without a word. So the kernel asks, and gives up after the deadline, as all of us do."""
        made = socket.socket(*address[:3])
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * self.deadline_s))
        return made

    async def _keep(self, server):
        """Look at a server now and then; connect it again when it is back."""
        pauses = backoff()
        while True:
            if server.state != "lost":
                await asyncio.sleep(PROBE_S)
                await self._probe(server)
                continue
            await asyncio.sleep(next(pauses))
            try:
                await self._connect(server)
                pauses = backoff()
                self._say(f"{server.url} is back; it gets version {self.version}")
            except (Broken, BadAnswer, ValueError) as error:
                server.why = str(error)

    async def _post(self, server, path, body=None, method="POST", read=bounded_json):
        """JSON of one of the server's routes. Raises Broken with what went wrong, or BadAnswer."""
        try:
            async with self.session.request(
                    method, server.url + path, json=body, allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=self.deadline_s)) as response:
                answer = await read(response, SMALL)
                server.heard = time.monotonic()
                if response.status != 200:
                    raise Broken(f"{path} answered {response.status}: {str(answer)[:300]}",
                                 response.status)
                return answer
        except TimeoutError:
            raise Broken(f"{path}: no answer for {self.deadline_s:.0f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Broken(f"{path}: {error or type(error).__name__}") from None

    async def _connect(self, server):
        """Check the server and meet its workers. Raises Broken, or ValueError: wrong settings."""
        get = lambda path: self._post(server, path, method="GET")              # noqa: E731
        try:
            version = (await get("/version"))["version"]
            config = (await get("/server_info?config_format=json"))["vllm_config"]
            world_size = 1 + (await get("/get_world_size"))["world_size"]
            backend = (config["weight_transfer_config"] or {}).get("backend")
            wrong = self._wrong_settings(version, config, backend)
        except Broken as error:
            if error.status == 404:
                raise ValueError(f"{server.url}: {error}; start it with VLLM_SERVER_DEV_MODE=1 "
                                 "in its environment: it has no routes for weights") from None
            raise
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{server.url}: not a vLLM server that this code knows ({error!r})"
                             ) from None
        try:
            await self._post(server, "/inference/v1/generate", {})
        except Broken as error:         # it is meant to: an empty request. Off, it says so first.
            if error.status in (403, 404):
                wrong.append("the token route is off: start it with --enable-scale-out")
            elif error.status == 401:
                wrong.append("it wants a key: start it without --api-key, and with tls instead")
            elif not error.status:
                raise
        if self.sizes and not wrong:
            try:
                answer = await self._post(server, "/collective_rpc", {
                    "method": "sizes", "args": [" ".join(self.sizes)]})
                wrong = [f"another model: its {name} is {has}, this run's {mine}" for has, (
                    name, mine) in zip(answer["results"][0], self.sizes.items(), strict=True)
                    if has != mine]
            except (KeyError, IndexError, TypeError, ValueError):
                wrong = ["it does not tell its model's sizes"]
            except Broken as error:
                if error.status != 500:
                    raise
                wrong = [f"its workers cannot tell their model's sizes ({error}): start it again "
                         "with this code's weight_wire.py"]
        if wrong:
            raise ValueError(f"{server.url}: " + "; ".join(wrong))
        # Two servers of one seed would draw the same random numbers, and so would a server that
        # was started again. A route for arguments in strings alone.
        await self._post(server, "/collective_rpc", {
            "method": "reseed", "args": [str(secrets.randbits(32))]})
        timeout = min(self.deadline_s, 120)
        try:
            link = NcclLink(world_size, self.deadline_s) if backend == "nccl" else \
                GlooLink(urlsplit(server.url), world_size, timeout)
        except OSError as error:
            raise Broken(f"no address here to meet its workers at ({error})") from None
        told = asyncio.create_task(self._post(
            server, "/init_weight_transfer_engine", {"init_info": link.init_info}))
        meet = asyncio.wrap_future(in_thread(link.meet))
        try:
            done, _ = await asyncio.wait((meet, told), return_when=asyncio.FIRST_EXCEPTION)
            for half in done:
                half.result()
        except BaseException as error:  # a Broken of `told`, or that we end ourselves
            link.close()
            if isinstance(error, RuntimeError):
                raise Broken(f"its workers did not meet the trainer ({error})") from None
            raise
        finally:
            told.cancel()
            meet.cancel()
        server.workers = world_size - 1
        server.connections += 1
        server.link, server.version, server.state = link, None, "stale"
        server.why = "it waits for weights"
        self._wake()

    def _wrong_settings(self, version, config, backend):
        """A sentence for each setting of a server that does not fit this run."""
        model, scheduler = config["model_config"], config["scheduler_config"]
        copies = config["parallel_config"]["data_parallel_size"]
        name = str(self.dtype).removeprefix("torch.")
        head = (model["hf_overrides"] or {}).get("head_dtype", "model")
        head = name if head == "model" else head
        checks = [
            (version.startswith(("0.32.", "0.33.")),
             f"it runs vllm {version}, this code knows 0.32 and 0.33"),
            (model["max_model_len"] >= self.length,
             f"sequences of {model['max_model_len']} tokens at most, this run needs "
             f"{self.length}: --max-model-len {self.length}"),
            (scheduler["max_num_seqs"] * copies >= self.slots,
             f"{scheduler['max_num_seqs']} x {copies} sequences at once, fewer than slots = "
             f"{self.slots}: --max-num-seqs {-(-self.slots // copies)}"),
            (model["logprobs_mode"] == "processed_logprobs",
             "its log-probs leave out the temperature: --logprobs-mode processed_logprobs"),
            (model["generation_config"] == "vllm",
             "the model's own top-p or top-k may apply: --generation-config vllm"),
            (model["dtype"] == f"torch.{name}",
             f"weights in {model['dtype']}, this run has {name}: --dtype {name}"),
            (model["quantization"] is None,
             f"quantized weights ({model['quantization']}), the trainer's are whole"),
            (config["cache_config"]["cache_dtype"] in ("auto", name),
             f"keys and values in {config['cache_config']['cache_dtype']}: --kv-cache-dtype auto"),
            (config["speculative_config"] is None, "a draft model, which gets no new weights: "
             "start it without --speculative-config"),
            (head == HEAD[self.head_fp32], f"an LM head in dtype {head!r}: "
             f'--hf-overrides \'{{"head_dtype": "{HEAD[self.head_fp32]}"}}\''),
            (backend in ("nccl", "gloo"),
             f"no way to receive weights ({backend}): --weight-transfer-config with backend nccl "
             "on GPUs, or gloo"),
            (backend != "nccl" or torch.cuda.is_available() and find_spec("vllm"),
             "it takes weights over nccl, for which the trainer needs a GPU and vllm: "
             "--weight-transfer-config with backend gloo, or make vllm here"),
            (config["parallel_config"]["worker_extension_cls"] == "weight_wire.Worker",
             "it cannot be told a seed: --worker-extension-cls weight_wire.Worker"),
        ]
        return [sentence for fine, sentence in checks if not fine]

    async def _probe(self, server):
        """Ask a server how it is; lost if it is silent, or not as it was left."""
        async with server.lock:
            if server.state == "lost":
                return
            async def ask():
                return await asyncio.gather(
                    self._post(server, "/weight_info", method="GET"),
                    self._post(server, "/is_paused", method="GET"),
                    self._post(server, "/metrics", method="GET", read=bounded))
            asked = asyncio.create_task(ask())
            try:
                done, _ = await asyncio.wait([asked], timeout=min(5, self.deadline_s))
                if not done:
                    self._say(f"{server.url} is silent; waiting up to {self.deadline_s:.0f} s")
                info, paused, metrics = await asked
                if server.state == "ready" and (
                        info["weight_version"] != self.label(server.version)
                        or paused["is_paused"]):
                    raise Broken("it has other weights than were pushed, or was paused: it was "
                                 "started again, or someone else steers it")
                tokens, now = metric("generation_tokens_total", metrics), time.monotonic()
                if tokens != server.tokens or not server.tasks:
                    server.tokens, server.moved = tokens, now
                elif now - server.moved > self.deadline_s:
                    raise Broken(f"neither an answer nor a new token for {self.deadline_s:.0f} s, "
                                 f"with {len(server.tasks)} requests in flight")
            except (Broken, BadAnswer, KeyError, TypeError) as error:
                self._lose(server, str(error))
            finally:
                asked.cancel()

    def _lose(self, server, why):
        """Nothing more is expected of this server until `_connect` succeeds."""
        if server.state == "lost":
            return
        self._account()
        if server.state == "ready":     # a silent one has been awaited since its last answer
            self.down_since = max(self.down_since, server.heard)
        server.link.close()
        server.state, server.why, server.version, server.link = "lost", why, None, None
        self.counters["losses"] += 1
        self.counters["resubmitted"] += len(server.tasks)
        self._say(f"{server.url} is lost: {why}; its {len(server.tasks)} samples are asked for "
                  "again as soon as a server is ready")
        tasks, server.tasks = server.tasks, {}
        for task, (sampler, sample) in tasks.items():
            task.cancel()
            sampler.again.append(sample)
        self.dispatch()
        self._wake()

    async def _fail(self, server, why):
        """A server's push has failed."""
        self._lose(server, why)
        server.lock.release()

    async def _begin_push(self, version):
        """Close the gate, pause, start. Returns the servers that are now waiting for tensors."""
        self._account()
        servers = [s for s in self.servers if s.state != "lost" and s.version != version]
        for server in servers:
            if server.state == "ready":
                self.down_since = time.monotonic()
            server.state = "stale"      # the gate: no request is sent to it from here on

        async def steer(server):
            await server.lock.acquire()
            try:
                if server.state == "lost":
                    raise Broken(server.why)
                await self._post(server, "/pause?mode=keep&clear_cache=false")
                self._take_back(server, await self._post(server, "/metrics", method="GET",
                                                         read=bounded))
                if server.version is None:      # a push that broke off may have left one open
                    await self._close_update(server)
                await self._post(server, "/start_weight_update")
            except BaseException:
                server.lock.release()
                raise

        async def begin(server):
            limit = min(STEER_S, self.deadline_s)
            try:
                await asyncio.wait_for(steer(server), limit)
                return server
            except TimeoutError:
                self._lose(server, f"push of version {version}: not paused within {limit:.0f} s")
            except (Broken, BadAnswer) as error:
                self._lose(server, f"push of version {version}: {error}")
        return [s for s in await asyncio.gather(*map(begin, servers)) if s]

    def _take_back(self, server, metrics):
        """Ask again later for what a paused server has not begun: with a cache too small for all
        slots it has a queue, mostly of the requests sent last. Begun after the push they would not
        be what they are salted as, which is seen only when they are finished (`late_starts`, which
        also catch what this misses: several copies' queues are not in one order)."""
        queued = int(min(metric("num_requests_waiting", metrics), len(server.tasks)))
        self._account()
        for task in list(server.tasks)[max(0, len(server.tasks) - queued):]:
            sampler, sample = server.tasks.pop(task)
            task.cancel()
            sampler.again.append(sample)
            self.counters["taken_back"] += 1

    async def _close_update(self, server):
        """End an update that a trainer before us, or we, began and did not finish.

        Whether one is open cannot be asked, so one is opened if none is, and ended. With gloo
        nothing is loaded by it; with NCCL layers half loaded are put in order by it, and the whole
        push that follows, still paused, writes all of them.
        """
        try:
            await self._post(server, "/start_weight_update")
        except Broken:
            pass                        # one was open
        await self._post(server, "/finish_weight_update")

    async def _end_push(self, servers, version, complete):
        """Name the new version and resume, or leave paused what has not all the weights."""
        async def end(server):
            try:
                if not complete:
                    raise Broken("the trainer broke the push off")
                await self._post(server, "/finish_weight_update",
                                 {"weight_version": self.label(version)})
                server.version = version        # before a token of it can come back
                self.version = max(self.version, version)
                await self._post(server, "/resume")
                self._account()
                server.state, server.why, server.moved = "ready", "", time.monotonic()
                self.dispatch()
            except (Broken, BadAnswer) as error:
                self._lose(server, f"push of version {version}: {error}")
            finally:
                server.lock.release()
        await asyncio.gather(*map(end, servers))
        if complete:
            self.version = version

    # -- requests -----------------------------------------------------------------------------

    def _account(self):
        """Add up busy slots over time; to be called before either changes. None work in a push."""
        now = time.monotonic()
        busy = [len(s.tasks) for s in self.servers if s.state == "ready"]
        self.busy += sum(busy) * (now - self.counted_at)
        self.decoding += sum(map(bool, busy)) * (now - self.counted_at)
        self.counted_at = now

    def dispatch(self):
        """Send what waits to the servers with the fewest requests in flight, last sampler first:
        when there is one for evaluation, the trainer waits for it."""
        for sampler in reversed(self.samplers):
            while sampler.again or sampler.waiting:
                room = [s for s in self.servers if s.state == "ready" and len(s.tasks) < self.slots]
                if not room:
                    return
                server = min(room, key=lambda s: len(s.tasks))
                if sampler.again:
                    samples = [sampler.again.popleft()]
                    if samples[0].server in room:       # its blocks are there
                        server = samples[0].server
                else:
                    samples = sampler.next_of_group(self.slots - len(server.tasks))
                self._account()
                for sample in samples:
                    sample.server = server
                    task = self._task(self._request(sampler, server, sample))
                    server.tasks[task] = sampler, sample

    async def _request(self, sampler, server, sample):
        """One request of one sample, from sending to what becomes of its answer."""
        asked, version = sampler.budget(sample), server.version
        body = {"token_ids": [*sample.request.prompt_ids, *sample.ids],
                "cache_salt": self.salt(server), "sampling_params": {
                    "temperature": sampler.temperature, "max_tokens": asked, "logprobs": 0,
                    "stop_token_ids": sampler.eos_ids, "ignore_eos": True, "detokenize": False}}
        outcome, failed = None, None
        try:
            # No limit on its whole time: a sample is as long as it is. `_probe` watches.
            async with self.session.post(
                    f"{server.url}/inference/v1/generate", json=body, allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(sock_connect=self.deadline_s)) as response:
                answer = await bounded_json(response, SMALL + 1000 * asked)
                server.moved = server.heard = time.monotonic()
                if response.status != 200:
                    raise BadAnswer(f"status {response.status}: {str(answer)[:300]}")
            ids, logprobs, versions = check_answer(
                answer, asked=asked, eos_ids=sampler.eos_ids, vocabulary=sampler.vocabulary,
                version_of=self.version_of, newest=self.version)
            # Salted with v, its first token from v: versions only grow, so its whole prompt was
            # computed under v, and every block it found had been filled under v, since blocks
            # salted v are first filled by requests sent at v. Any other start proves nothing.
            if versions[0] != version:
                raise LateStart
            outcome = ids, logprobs, versions
        except LateStart:
            self.counters["late_starts"] += 1
        except BadAnswer as error:
            failed = str(error)
        except (aiohttp.ClientError, OSError) as error:
            failed = f"{error or type(error).__name__}"
        if failed:
            await self._probe(server)   # is it the server, or this one answer?
        task = asyncio.current_task()
        if task not in server.tasks:    # lost meanwhile: the sample is somebody else's by now
            return
        self._account()
        del server.tasks[task]
        if failed:
            self.counters["refused_answers"] += 1
            sample.refused += 1
            if self.counters["refused_answers"] <= 3:           # in a step; the log has them all
                self._say(f"{server.url}: an answer is refused: {failed}")
            if sample.refused == 3:
                self.error = ServerError(
                    f"generate, version {self.version}: {server.url} answered three times what "
                    f"was not asked for ({failed}); look at its log")
        if outcome:
            sampler.absorbed(sample, outcome)
        else:
            sampler.again.append(sample)
        self.dispatch()
        self._wake()

    def _task(self, coroutine):
        """A task whose failure, by a mistake of ours, the trainer hears of instead of waiting."""
        def look(task):
            if not task.cancelled() and task.exception():
                self.error = ServerError(f"generate, version {self.version}: the client failed "
                                         f"({task.exception()!r}); this is a bug")
                self.error.__cause__ = task.exception()
                self._wake()
        task = self.loop.create_task(coroutine)
        task.add_done_callback(look)
        return task

    def _wake(self):
        with self.changed:
            self.changed.notify_all()

    def _say(self, sentence):
        print(f"servers: {sentence}", file=sys.stderr, flush=True)


def ssl_context(urls, tls, insecure_network):
    """The context of mutual TLS, or None. Raises ValueError for an address that is not safe, or
    that stands there twice."""
    for i, url in enumerate(urls):
        if url.rstrip("/") in [other.rstrip("/") for other in urls[:i]]:
            raise ValueError(f"vllm_url = {url!r}: named twice, it is one server")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or not parts.port:
            raise ValueError(f"vllm_url = {url!r}: give addresses like http://127.0.0.1:8100")
        if parts.scheme == "https" and not tls:
            raise ValueError(f"vllm_url = {url!r}: https needs tls, a folder with ca.pem, "
                             "cert.pem and key.pem (make certs)")
        if parts.scheme == "http" and parts.hostname not in LOOPBACK and not insecure_network:
            raise ValueError(f"vllm_url = {url!r}: whoever reaches that port can change the "
                             "weights; use https with tls, or insecure_network = true on a "
                             "network you trust")
    if not any(url.startswith("https") for url in urls):
        return None
    return tls_context(tls)


def tls_context(folder, purpose=ssl.Purpose.SERVER_AUTH):
    """Mutual TLS: each side shows a certificate of the folder's authority. purpose: whom to
    check, as in ssl.create_default_context. Raises ValueError: not a folder of `make certs`."""
    try:
        context = ssl.create_default_context(purpose, cafile=Path(folder) / "ca.pem")
        context.load_cert_chain(Path(folder) / "cert.pem", Path(folder) / "key.pem")
    except OSError as error:            # ssl.SSLError is one
        raise ValueError(f"tls = {str(folder)!r}: ca.pem, cert.pem and key.pem (make certs) "
                         f"cannot be read from it ({error})") from None
    context.verify_mode = ssl.CERT_REQUIRED
    return context


# ---------------------------------------------------------------------------------------------
# 5. The client


class ServerSampler(TwoRequests):
    """Samples from a fleet. Implements `Sampler`.

    fleet        may serve several samplers; they share its slots
    vocabulary   number of token ids
    ahead        samples that may wait here for a slot, so that servers stay busy while the
                 trainer trains; only `free_slots` counts them

    Queues belong to the fleet's thread, everything public to the trainer's.
    Raises ValueError from `submit`: a prompt or group that cannot fit.
    """

    def __init__(self, fleet, tokenizer, interruption, *, prompt_tokens, eos_ids, vocabulary,
                 temperature=1.0, seed=0, ahead=0):
        slots = fleet.slots * len(fleet.servers)
        super().__init__(tokenizer, interruption, slots=slots, prompt_tokens=prompt_tokens,
                         eos_ids=eos_ids, temperature=temperature, seed=seed, version=0)
        self.fleet, self.vocabulary, self.ahead = fleet, vocabulary, ahead
        self.waiting: deque[Sample] = deque()   # never sent yet, whole groups one after another
        self.again: deque[Sample] = deque()     # due for another request
        self.done = queue.SimpleQueue()         # rollouts for the trainer
        self.owed = {}                          # {group: (request, samples not yet returned)}
        fleet.samplers.append(self)

    @property
    def in_flight(self):
        return sum(missing for _, missing in self.owed.values())

    @property
    def free_slots(self):
        return self.slots + self.ahead - self.in_flight

    @property
    def needs_push(self):
        """A server waits for the current weights: the caller should push them now."""
        return self.fleet.needs_push

    def submit(self, request: Request):
        check_fits(request, self.prompt_tokens, self.slots)
        self.owed[request.group_id] = request, request.samples
        samples = self.new_samples(request)

        def enqueue():
            self.waiting.extend(samples)
            self.fleet.dispatch()
        self.fleet.loop.call_soon_threadsafe(enqueue)

    def step(self) -> list[Rollout]:
        """Finished rollouts: waits a second for one; none if a server needs weights before that,
        or in time, so that the caller can see to other things.

        Raises ServerError: no server was ready for the deadline.
        """
        fleet = self.fleet
        if self.owed:
            with fleet.changed:
                fleet.changed.wait_for(
                    lambda: not self.done.empty() or fleet.needs_push or fleet.error, 1.0)
            fleet.check()
        return self.finished()

    def finished(self) -> list[Rollout]:
        """What has finished until now, without waiting."""
        rollouts = []
        while not self.done.empty():
            rollouts.append(self.done.get())
        for group in [rollout.group_id for rollout in rollouts]:
            request, missing = self.owed.pop(group)
            if missing > 1:
                self.owed[group] = request, missing - 1
        return rollouts

    def push_weights(self, named_tensors, version):
        """See `Fleet.push`: the servers that have this version already are left alone."""
        first = self.fleet.version < 0
        self.fleet.push(named_tensors, version, verify=first)
        self.version = version

    def close(self):
        self.fleet.close()

    # -- in the fleet's thread ----------------------------------------------------------------

    def next_of_group(self, room):
        """Up to `room` waiting samples of one group: at one server they share the prompt."""
        samples = [self.waiting.popleft()]
        while len(samples) < room and self.waiting and \
                self.waiting[0].request is samples[0].request:
            samples.append(self.waiting.popleft())
        return samples

    def absorbed(self, sample, outcome):
        rollout = self.absorb(sample, *outcome, current=self.fleet.version)
        if rollout is None:
            self.again.append(sample)
        else:
            self.done.put(rollout)

    # -- checkpoint ---------------------------------------------------------------------------

    def state(self):
        """(tensors, plain): what was asked for and has not been returned yet."""
        return self.unfinished_state([], [dataclasses.replace(request, samples=missing)
                                          for request, missing in self.owed.values()])

    def load_state(self, tensors, plain):
        """Ask again for everything unfinished, from the start."""
        for request in self.unfinished_requests(tensors, plain):
            self.submit(request)
        self.version = plain["version"]
