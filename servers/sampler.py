"""sampler.py: samples from a pool of vLLM servers, which generate while the trainer trains."""

import contextlib
import queue

from engines.two_requests import TwoRequests
from sampler import Request, Rollout


class ServerSampler(TwoRequests):
    """An engine. weights(dtype): (Hugging Face name, full tensor) pairs for a server that
    comes back; ahead: samples that may wait here for a slot, so that servers stay busy; more: as of
    `TwoRequests`. Only the pool's thread touches `waiting`."""

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
        """Waits a second at most. Raises ServerError: no server was ready for the deadline."""
        pool = self.pool
        if pool.needs_push:
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
