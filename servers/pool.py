"""pool.py: the vLLM servers of a run, connected, watched, given weights and samples.

A server is lost (not connected), stale (without the current weights), paused (in a push) or ready:
only then it gets requests. A push is: pause (running sequences keep their keys and values), send,
finish, resume. If any of it fails, the server is lost, and its unfinished samples are asked again
elsewhere. A request has no deadline; a server that counts no new token for one is lost."""
import asyncio
import base64
import contextlib
import queue
import re
import resource
import secrets
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from aiohttp import ClientSession, TCPConnector

from engines.two_requests import TwoRequests
from sampler import Request, Rollout
from servers.server import BadAnswer, Server, ServerError, ServerFailed, buckets

HEALTH_S = 2.0                          # between two looks at a server
RETRY_S = 1.0                           # between two tries to connect one
LATE_S = 10.0                           # in a push; longer the others do not wait for one


def say(sentence):
    print(f"servers: {sentence}", file=sys.stderr, flush=True)


def read_addresses(vllm_url, limit_s):
    """The addresses that `vllm_url` names, by commas: "http://a:8000", or "@FILE", which is waited
    for. Raises TimeoutError after limit_s; ValueError: something else."""
    urls, end = [], time.monotonic() + limit_s
    for part in map(str.strip, vllm_url.split(",")):
        if not part.startswith("@"):
            urls.append(part)
            continue
        path = Path(part[1:])
        if path.is_dir():                       # "@" alone, too
            raise ValueError(f"vllm_url = {vllm_url!r}: {path} is a folder, not a file")
        if not path.is_file():
            say(f"waiting for {path}, which --serve-only writes")
        while not path.is_file():
            if time.monotonic() > end:
                raise TimeoutError(f"start: {path} has not appeared for {limit_s:g} s: does "
                                   "--serve-only run, in a folder that both see?")
            time.sleep(0.2)
        urls += path.read_text(errors="replace").split() or [""]
    for url in urls:
        if not re.fullmatch(r"https?://[\w.:\[\]-]+:[1-9]\d*/?", url):
            raise ValueError(f"vllm_url = {vllm_url!r}: should give addresses like "
                             f"http://10.0.0.2:8100, not {url!r:.60}")
    return list(dict.fromkeys(url.rstrip("/") for url in urls))     # named twice: one server


class ServerPool:
    """The servers and the requests in flight at them, in an asyncio loop in a thread of its own:
    the methods below `_open`. Those above are for the trainer's thread.

    slots       requests in flight at each server, at most; it may be started for fewer
    length      tokens of the longest sequence;  vocab: every token id is below
    cuda        the tensors that are sent are on a GPU, so NCCL can send them
    logs        folder of the run's logs, where a launcher looks for HOST:PORT.hangs of its servers

    Raises ServerError: not all came up; one of them, a ValueError: it was started wrongly."""

    def __init__(self, urls, *, slots, length, vocab, dtype, head_fp32=True, cuda=False,
                 deadline_s=600.0, logs=None):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]    # each request is a connection
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.slots, self.length, self.vocab, self.logs = slots, length, vocab, logs
        self.dtype, self.head_fp32, self.cuda, self.deadline_s = dtype, head_fp32, cuda, deadline_s
        self.run_id, self.version = secrets.token_hex(4), -1    # none pushed yet
        self.pushed = {}                # {name of a version on the servers: version}
        self.samplers = []              # the last one's samples come first
        self.counters = Counter()               # since the last `log`
        self.busy_s = self.decoding_s = 0.0     # since then: seconds of slots, of servers
        self.counted_at = self.logged_at = self.ready_until = time.monotonic()
        self.error = None               # for the trainer's thread to raise
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.wait(self._open(urls))
        try:
            while self.check():                 # they load, compile, capture graphs: for minutes
                time.sleep(0.05)
        except BaseException:
            self.close()
            raise

    def check(self):
        """The lost servers. Raises ServerError: all, or at the start any one, for too long."""
        if self.error:
            raise self.error
        lost, starting = [s for s in self.servers if s.state == "lost"], self.version < 0
        limit = (3 if starting else 1) * self.deadline_s
        if (len(lost) == len(self.servers) or starting and lost) \
                and time.monotonic() - self.ready_until > limit:
            words = "connect: not every" if starting else f"generate, version {self.version}: no"
            raise ServerError(f"{words} server is ready since {limit:.0f} s; " + "; ".join(
                f"{s.url} is lost: {s.why}" for s in lost) + "; look at the servers' logs")
        return lost

    def push(self, named_tensors, version):
        """Bring every connected server to these weights, (Hugging Face name, full tensor) pairs.
        They are advanced only while no send is under way (but one that was given up): behind them
        may be collectives, which would hang in its midst. Not touched if nobody waits."""
        if self.version < 0:            # to load a checkpoint may have taken longer than deadline_s
            self.ready_until = time.monotonic()
        label = f"{self.run_id}-{version}"      # two runs never share the name of a version
        servers = [s for s in self.servers if s.state != "lost" and s.version != version]
        servers = self._each(servers, version, Server.pause)
        for info, data in buckets(named_tensors, self.dtype) if servers else ():
            text = "" if all(server.channel for server in servers) else base64.b64encode(
                data.cpu().numpy()).decode()    # once, for all servers without NCCL
            servers = self._each(servers, version,
                                 lambda s: s.receive(info, data, text))         # noqa: B023
        self.version = self.pushed[label] = version     # before a token of it can come back
        self._each(servers, version, lambda s: s.resume(version, label))

    def _each(self, servers, version, step):
        """step(server) of a push, of all at once. One that fails is lost, or that is late: twice
        the time of the first one that has ended, and LATE_S more. Returns the others."""
        async def one(server):
            try:
                await step(server)
                return True
            except Exception as error:          # of HTTP, NCCL: the others go on
                self._lose(server, f"push of version {version}: {str(error) or repr(error)}")

        async def every():
            start, tasks = time.monotonic(), {s: asyncio.ensure_future(one(s)) for s in servers}
            await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            limit = LATE_S + 2 * (time.monotonic() - start)
            await asyncio.wait(tasks.values(), timeout=limit)
            for server in [s for s in servers if not tasks[s].done()]:
                tasks[server].cancel()
                self.restart(server)
                self._lose(server, f"push of version {version}: {limit:.0f} s behind another")
            return [s for s in servers if tasks[s].done() and tasks[s].result()]
        return self.wait(every()) if servers else []

    def close(self):
        async def end():
            # Until all have heard: aiohttp 3.14 loses a cancel that meets its own timeout.
            while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks, timeout=0.1)
            for server in self.servers:
                server.disconnect()
            await self.session.close()
            self.loop.call_soon(self.loop.stop)
        if not self.session.closed:
            self.wait(end())
            for thread in [t for t in threading.enumerate() if t.name == "destroy"]:
                thread.join(3)          # a process that ends amid NCCL's work may crash

    def wait(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    # -- the loop's thread: connections --------------------------------------------------------

    async def _open(self, urls):
        # vLLM's server closes a silent connection; a request into a closing one fails.
        self.session = ClientSession(connector=TCPConnector(limit=0, force_close=True))
        self.servers = [Server(url, self) for url in urls]
        for server in self.servers:
            self.task(self._watch(server))

    async def _watch(self, server):
        """Connect a server, look at it now and then, connect it again when it is lost."""
        while True:
            try:
                if server.state == "lost":
                    await server.connect()
                await asyncio.sleep(HEALTH_S)
                await server.check_health()
            except (ServerError, ImportError):
                raise
            except Exception as error:          # of HTTP, NCCL: it may be starting
                self._lose(server, str(error) or repr(error))
                await asyncio.sleep(RETRY_S)

    def restart(self, server):
        """Have a launcher that sees this folder start a silent server again. Before the first push
        only one whose workers hang, since it has answered: it does not merely start."""
        if self.logs and (self.version >= 0 or server.workers):
            with contextlib.suppress(OSError):
                self.logs.mkdir(exist_ok=True)          # --fresh may have taken it away
                (self.logs / f"{server.url.rpartition('/')[2]}.hangs").touch()

    def _lose(self, server, why):
        if server.state != "lost":
            say(f"{server.url} is lost: {why}; its {len(server.requests)} samples wait for another")
            self.counters.update(losses=1, resubmitted=len(server.requests))
        elif why != server.why:
            say(f"{server.url} is awaited: {why}")
        server.why = why
        server.set_state("lost")
        server.disconnect()
        for task, (sampler, sample) in reversed(server.requests.items()):
            task.cancel()
            sampler.waiting.appendleft(sample)
        server.requests.clear()
        self.dispatch()

    def task(self, coroutine):
        """A task of the loop. The trainer hears of its failure, instead of waiting."""
        def look(task):
            self.error = self.error or (None if task.cancelled() else task.exception())
        task = self.loop.create_task(coroutine)
        task.add_done_callback(look)
        return task

    # -- the loop's thread: requests -----------------------------------------------------------

    def dispatch(self):
        """Send what waits; the last sampler, the evaluation's, comes first."""
        for sampler in reversed(self.samplers):
            while sampler.waiting and (room := [s for s in self.servers if s.state == "ready"
                                                and len(s.requests) < s.slots]):
                sample = sampler.waiting.popleft()
                # A group stays at one server: its samples share the blocks of their prompt.
                home = self.servers[sample.request.group_id % len(self.servers)]
                server = home if home in room else min(room, key=lambda s: len(s.requests))
                self.count_time()
                task = self.task(self._generate(sampler, server, sample))
                server.requests[task] = sampler, sample

    async def _generate(self, sampler, server, sample):
        version = server.version
        try:
            answer = await server.generate(sampler, sample)
        except ServerFailed as error:
            sample.refused += isinstance(error, BadAnswer)
            self.counters["bad_answers"] += isinstance(error, BadAnswer)
            if sample.refused == 3:
                raise ServerError(f"generate, version {self.version}: {server.url}: a sample has "
                                  f"got three bad answers: {error}") from None
            self._lose(server, str(error))      # this sample waits again, as the others do
            return
        self.count_time()
        del server.requests[asyncio.current_task()]
        self.counters["late_starts"] += answer[2][0] > version      # begun after a push
        sampler.absorb(sample, *answer, self.version)
        self.dispatch()

    def count_time(self):
        """Add up the time of busy slots of ready servers; called before their number changes."""
        now = time.monotonic()
        for n in [len(s.requests) for s in self.servers if s.state == "ready"]:
            self.busy_s += n * (now - self.counted_at)
            self.decoding_s += (n > 0) * (now - self.counted_at)
            self.ready_until = now
        self.counted_at = now

    async def log(self):
        """Columns of metrics.jsonl, since the last call (docs/metrics.md)."""
        self.count_time()
        seconds = max(self.counted_at - self.logged_at, 1e-9)
        busy = self.busy_s / sum(server.slots for server in self.servers) / seconds
        log = {"off_policy/busy_share": busy, "off_policy/waited_s": seconds * (1 - busy),
               "off_policy/decoding_share": self.decoding_s / len(self.servers) / seconds,
               **{f"servers/{name}": self.counters[name]
                  for name in ("late_starts", "bad_answers", "resubmitted", "losses")}}
        self.busy_s, self.decoding_s, self.logged_at = 0.0, 0.0, self.counted_at
        self.counters.clear()
        return log


class ServerSampler(TwoRequests):
    """An engine. weights(dtype): (Hugging Face name, full tensor) pairs for a server that comes
    back; ahead: samples that may wait here for a slot; more: as of `TwoRequests`."""

    def __init__(self, pool, tokenizer, interruption, *, weights, ahead=0, **more):
        super().__init__(tokenizer, interruption, **more,
                         slots=sum(server.slots for server in pool.servers) + ahead)
        self.pool, self.weights = pool, weights
        self.devices = sum(server.workers for server in pool.servers)
        pool.samplers.append(self)

    def submit(self, request: Request):
        loop = self.pool.loop
        loop.call_soon_threadsafe(self.waiting.extend, self.new_samples(request))
        loop.call_soon_threadsafe(self.pool.dispatch)

    def step(self) -> list[Rollout]:
        """Waits a second at most, and for a push that a server has missed. Raises ServerError."""
        pool = self.pool
        if any(server.state == "stale" for server in pool.servers):
            self.push_weights(self.weights(pool.dtype), max(self.version, pool.version))
        rollouts = self.finished()
        if self.in_flight and not rollouts:
            pool.check()
            with contextlib.suppress(queue.Empty):
                rollouts = self.returned([self.done.get(timeout=1.0)])
        return rollouts

    def push_weights(self, named_tensors, version):
        """See `ServerPool.push`: the servers that have this version already are left alone."""
        self.pool.push(named_tensors, version)
        self.version = version

    def log(self):
        return self.pool.wait(self.pool.log())

    def close(self):
        self.pool.close()
