"""sampler.py: samples from a pool of vLLM servers, with the methods of every engine.

The servers generate while the trainer trains: pool.py, in a thread of its own, keeps their
slots filled from the queue here. A sample may take two requests (two_requests.py). Its record is
what vLLM reports: ids, log-probs of the distribution sampled from, versions of the weights.
"""

import contextlib
import math
import queue

from engines.kv_cache import check_fits
from engines.two_requests import TwoRequests
from sampler import Request, Rollout


class ServerSampler(TwoRequests):
    """Samples from a pool of servers. Implements `Sampler`.

    pool      may serve several samplers; they share its slots
    weights   function: torch dtype -> (Hugging Face name, full tensor) pairs, called inside `step`
              for a server that comes back
    ahead     samples that may wait here for a slot, so that servers stay busy meanwhile
    more      as of `TwoRequests`. Only the pool's thread touches `waiting`.
    """

    def __init__(self, pool, tokenizer, interruption, *, weights, ahead=0, **more):
        super().__init__(tokenizer, interruption, **more,
                         slots=sum(server.slots for server in pool.servers) + ahead)
        self.pool, self.weights = pool, weights
        self.devices = sum(server.workers for server in pool.servers)
        pool.samplers.append(self)

    def submit(self, request: Request):
        check_fits(request, self.prompt_tokens, math.inf)           # some may wait for a slot
        samples = self.new_samples(request)

        def enqueue():
            self.waiting.extend(samples)
            self.pool.dispatch()
        self.pool.loop.call_soon_threadsafe(enqueue)

    def step(self) -> list[Rollout]:
        """Waits for a finished rollout, a second at most, so that the caller can see to other
        things. Raises ServerError: no server was ready for the deadline."""
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
        """Closes the pool, and with it the other sampler that shares it."""
        self.pool.close()
