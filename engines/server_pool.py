"""server_pool.py: the vLLM servers of a run, near or far: connected, watched, kept up to date.

`push` brings all servers to new weights; samples reach them by dispatch.py. A server's states:

    lost    not connected: not there yet, ended, or silent for longer than the deadline
    stale   connected, but without the current weights: it gets no requests
    ready   has the current weights

A push is: no new requests, pause (running sequences keep their keys and values), send, finish,
resume. If any of it fails, the server is lost and stays paused until it was connected again and a
whole push has succeeded. Its unfinished samples are asked again elsewhere.

A long sample may take longer than any deadline, so a request has none. A server that has requests,
and gives no answer and counts no new token for the deadline, is lost.
"""

from __future__ import annotations

import asyncio
import resource
import secrets
import sys
import threading
import time
from pathlib import Path

import aiohttp

from engines.dispatch import Dispatcher
from engines.server import Server, ServerError, ServerFailed
from engines.tls import client_context
from engines.weight_transfer import buckets

HEALTH_S = 2.0                          # between two looks at a server
RETRY_S = 1.0                           # between two tries to connect one
SAY_S = 30.0                            # between two sentences on servers that are starting


def say(sentence):
    print(f"servers: {sentence}", file=sys.stderr, flush=True)


class ServerPool:
    """The vLLM servers of a run. All requests run in one asyncio loop in a thread of its own, with
    the methods below `_open`; those above are for the trainer's thread.

    slots       requests in flight at each server, at most; it may be started for fewer
    length      tokens of the longest sequence they must take
    dtype       torch dtype of their weights, and of the tensors that are sent
    head_fp32   their LM head must compute in fp32, else in bf16
    cuda        the tensors that are sent are on a GPU, so NCCL can send them
    deadline_s  no wait is longer, but start_deadline_s for all to come up; None: 3 x deadline_s
    logs        folder with the server_0.log, .. of those that our launcher has started

    Raises ValueError: a setting or an address of a server is wrong. ServerError: none came up.
    """

    def __init__(self, urls, *, slots, length, dtype, head_fp32=True, cuda=False, tls="",
                 deadline_s=600.0, start_deadline_s=None, logs=Path()):
        context = client_context(urls, tls)
        # Each request is a connection, and 1,024 open files are the usual soft limit. Beyond the
        # hard limit every server would be lost.
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        needed = slots * len(urls) + 64
        if needed > files != resource.RLIM_INFINITY:
            raise ValueError(f"slots = {slots}: {len(urls)} servers need up to {needed} open files "
                             f"and this process may open {files} (ulimit -Hn); lower slots")
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        self.slots, self.length, self.dtype, self.head_fp32 = slots, length, dtype, head_fp32
        self.cuda, self.deadline_s = cuda, deadline_s
        self.version = -1               # none pushed yet
        self.run_id = secrets.token_hex(4)
        self.pushed = {}                # {name of a version on the servers: version}
        self.servers = []
        self.error = None               # for the trainer's thread to raise
        self.ready_until = time.monotonic()     # the last time when a server was ready
        self.changed = threading.Condition()    # wakes the trainer's thread
        self.dispatcher = Dispatcher(self)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        try:
            self.wait(self._open(urls, context))
            self._wait_for_all(start_deadline_s or 3 * deadline_s, logs)
        except BaseException:
            self.close()
            raise

    def _wait_for_all(self, seconds, logs):
        """Servers download, load, compile, capture graphs: how far each is, is said."""
        start, passed = time.monotonic(), 0.0
        while self._lost() and not self.error and passed < seconds:
            with self.changed:
                self.changed.wait_for(lambda: self.error or not self._lost(),
                                      min(SAY_S, seconds - passed))
            passed = time.monotonic() - start
            for server in self._lost():
                log = Path(logs, f"server_{self.servers.index(server)}.log")
                text = log.read_text(errors="replace").strip() if log.exists() else ""
                last_line = text.splitlines()[-1][-200:] if text else server.why
                say(f"{server.url} is starting, {passed:.0f} s of {seconds:.0f} at most: "
                    f"{last_line}")
        if self.error or self._lost():
            self._give_up(f"connect: not every server is ready within {seconds:.0f} s")
        self.ready_until = time.monotonic()

    def _lost(self):
        return [server for server in self.servers if server.state == "lost"]

    def _give_up(self, words):
        raise self.error or ServerError(f"{words}; " + "; ".join(
            f"{s.url} is lost: {s.why}" for s in self._lost()) + "; look at the servers' logs")

    @property
    def needs_push(self):
        return any(server.state == "stale" for server in self.servers)

    def push(self, named_tensors, version):
        """Bring every connected server to these weights; running sequences go on afterwards.

        named_tensors   iterable of (Hugging Face name, full tensor). It is advanced only while no
                        send is under way: behind it may be collectives of all trainer ranks, and
                        interleaved with a send they would hang. Not touched if nobody waits.
                        Raises what it raises; the servers then stay paused.
        """
        assert version >= self.version, f"version {version} pushed after {self.version}"
        label = f"{self.run_id}-{version}"      # two runs never share the name of a version

        async def begin(server):
            self._set_state(server, "stale")    # no new requests
            await server.pause()
            await self.dispatcher.take_back(server)

        async def end(server):
            await server.resume(version, label)
            self._set_state(server, "ready")
            self.dispatcher.dispatch()
        servers = self._each([s for s in self.servers if s.version != version], version, begin)
        try:
            for bucket in buckets(named_tensors, self.dtype) if servers else ():
                tensors = list(bucket.values())
                info = {"names": list(bucket),
                        "dtype_names": [str(self.dtype).removeprefix("torch.")] * len(bucket),
                        "shapes": [list(tensor.shape) for tensor in tensors]}
                packed = {kind: kind.pack(tensors) for kind in {type(s.channel) for s in servers}}
                servers = self._each(servers, version, lambda s: s.receive(info, packed))
        except BaseException:
            for server in servers:
                self.loop.call_soon_threadsafe(self._lose, server, "a push was broken off")
            raise
        self.version = self.pushed[label] = version     # before a token of it can come back
        self._each(servers, version, end)

    def _each(self, servers, version, step):
        """step(server) of a push, of all servers at once: the workers of all wait from the same
        moment on. A server that fails is lost; returns the others."""
        async def one(server):
            if server.state != "lost":
                try:
                    await step(server)
                    return server
                except (ServerFailed, KeyError, TypeError, ValueError) as error:
                    # Also an answer of another form, a proxy's say: the others go on.
                    self._lose(server, f"push of version {version}: {str(error) or repr(error)}")

        async def every():
            return await asyncio.gather(*map(one, servers))
        return [server for server in self.wait(every()) if server]

    def check(self):
        """Raises ServerError: all servers have been lost for longer than the deadline."""
        if self.error or (len(self._lost()) == len(self.servers)
                          and time.monotonic() - self.ready_until > self.deadline_s):
            self._give_up(f"generate, version {self.version}: no server is ready since "
                          f"{self.deadline_s:.0f} s")

    def close(self):
        """A server ends what nobody waits for."""
        async def end():
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for server in self.servers:
                server.disconnect()
            await self.session.close()
        if self.thread.is_alive():
            self.wait(end())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(10)

    def wait(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    async def _open(self, urls, context):
        # A connection of its own for each request: vLLM's server closes one after 5 s of silence,
        # and a moment after it has answered 500; a request into a closing one fails.
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(
            limit=0, ssl=context or False, force_close=True))
        self.servers = [Server(url, self.session, self.deadline_s) for url in urls]
        for server in self.servers:
            self.task(self._watch(server))

    async def _watch(self, server):
        """Connect a server, look at it now and then, connect it again when it is lost."""
        while True:
            if server.state != "lost":
                await asyncio.sleep(HEALTH_S)
                await self.check_health(server)
                continue
            try:
                await server.connect(self)
                self._set_state(server, "stale")
                if server.connections > 1:
                    say(f"{server.url} is back; it gets version {self.version}")
            except (ServerFailed, ValueError, OSError) as error:
                if isinstance(error, ValueError) and not server.connections:
                    raise ValueError(f"{server.url}: {error}; start it as scaleout/"
                                     "server_command.py does") from None
                server.disconnect()
                server.why = str(error)
                await asyncio.sleep(RETRY_S)

    def _lose(self, server, why):
        """Expect nothing more of this server until it is connected again."""
        say(f"{server.url} is lost: {why}; its {len(server.requests)} samples are asked again as "
            "soon as a server is ready")
        server.why = why
        self._set_state(server, "lost")
        server.disconnect()
        self.dispatcher.counters.update(losses=1, resubmitted=len(server.requests))
        self.dispatcher.ask_again(server, list(server.requests))
        self.dispatcher.dispatch()

    def _set_state(self, server, state):
        self.dispatcher.count_time()
        if server.state == "ready":
            self.ready_until = time.monotonic()
        server.state = state
        self.wake()

    async def check_health(self, server):
        salt = server.salt
        try:
            if server.state == "ready":
                await server.check_health()
        except ServerFailed as error:
            if server.state == "ready" and server.salt == salt:   # no push has begun since
                self._lose(server, str(error))

    def task(self, coroutine):
        """A task of the loop. The trainer hears of its failure, instead of waiting."""
        def look(task):
            if not task.cancelled() and task.exception():
                error = task.exception()
                self.error = error if isinstance(error, (ServerError, ValueError)) else \
                    ServerError(f"the client of the servers failed: {error!r}")
                self.wake()
        task = self.loop.create_task(coroutine)
        task.add_done_callback(look)
        return task

    def wake(self):
        with self.changed:
            self.changed.notify_all()
