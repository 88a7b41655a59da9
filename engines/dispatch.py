"""dispatch.py: which vLLM server works on which sample, and how busy the servers are.

A sample waits in the queue of its sampler, is in flight at one server, and comes back with an
answer; without one it waits again. Everything here runs in the loop of the server pool.

Prefix caching and weight pushes must not meet: each request carries a salt with the version
current when it is sent. Its first token tells whether a push came before it began. If so, the
request is a late start, with blocks of older weights perhaps. It is sent again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter

from engines.server import FIRST_TOKENS, ServerError, ServerFailed, metric


def check_answer(answer, *, asked, eos_ids, pushed):
    """(ids, log-probs, versions) of a server's answer to a request for at most `asked` tokens.
    pushed: {name: version} of this run's weights. Raises ServerFailed with what is wrong."""
    try:
        choice, = answer["choices"]
        ids, spans = choice["token_ids"], choice["weight_versions"]
        logprobs = [float(entry["logprob"]) for entry in choice["logprobs"]["content"]]
        versions = [pushed[span["version"]] for span in spans
                    for _ in range(span["start"], span["end"])]
    except (KeyError, TypeError, ValueError) as error:
        raise ServerFailed(f"not an answer with weights of this run ({error!r})") from None
    finite = all(map(math.isfinite, logprobs))
    if (not 0 < len(ids) == len(logprobs) == len(versions) <= asked or not finite
            or len(ids) < asked and ids[-1] not in eos_ids):
        raise ServerFailed(f"{len(ids)} tokens of {asked}, ended by {choice['finish_reason']!r}, "
                           f"{len(logprobs)} log-probs, {'' if finite else 'not '}all finite, and "
                           f"weights {spans}")
    return ids, logprobs, versions


class Dispatcher:
    """The requests in flight of a pool of servers, which all `samplers` share."""

    def __init__(self, pool):
        self.pool, self.samplers = pool, []
        self.counters = Counter()               # since the last `log`
        self.busy_s = self.decoding_s = 0.0     # since then: seconds of slots, of servers
        self.counted_at = self.logged_at = time.monotonic()

    def dispatch(self):
        """Send what waits to the servers with the fewest requests in flight. The last sampler
        comes first: it is the evaluation's, and the trainer waits for it."""
        for sampler in reversed(self.samplers):
            while sampler.waiting:
                room = [s for s in self.pool.servers
                        if s.state == "ready" and len(s.requests) < s.slots]
                if not room:
                    return
                sample = sampler.waiting.popleft()
                # A group stays at one server: its samples share the blocks of their prompt.
                home = self.pool.servers[sample.request.group_id % len(self.pool.servers)]
                server = home if home in room else min(room, key=lambda s: len(s.requests))
                self.count_time()
                task = self.pool.task(self._generate(sampler, server, sample))
                server.requests[task] = sampler, sample

    async def _generate(self, sampler, server, sample):
        """One request of one sample, from sending to the use of its answer."""
        asked, version, task = sampler.budget(sample), server.version, asyncio.current_task()
        done, failure, answer = False, None, None
        try:
            answer = await server.post("/inference/v1/generate", {
                "token_ids": sample.ids, "cache_salt": server.salt, "sampling_params": {
                    "temperature": sampler.temperature, "max_tokens": asked, "logprobs": 0,
                    "stop_token_ids": sampler.eos_ids, "ignore_eos": True, "detokenize": False},
            }, total_s=None)
            answer = check_answer(answer, asked=asked, eos_ids=sampler.eos_ids,
                                  pushed=self.pool.pushed)
            server.progress = time.monotonic()
        except ServerFailed as error:
            failure = str(error)
            await self.pool.check_health(server)    # is it the server, or this one answer?
        if task not in server.requests:         # lost meanwhile: the sample waits already
            return
        self.count_time()
        del server.requests[task]
        server.gone += answer is not None       # an HTTP error may come before the first token
        if failure is None:
            # Versions only grow. If the first token is of the version in the salt, so is the whole
            # prompt, and so are all blocks that were found: requests with this salt filled them.
            if answer[2][0] == version:
                done = sampler.absorb(sample, *answer, current=self.pool.version)
            else:
                self.counters["late_starts"] += 1
                # In its place `take_back` dropped one that had begun: at most one a late start.
                server.gone += 1
        elif server.state == "ready":           # else it failed together with a push
            self.counters["refused_answers"] += 1
            sample.refused += 1
            if sample.refused == 3:
                raise ServerError(f"generate, version {self.pool.version}: {server.url} answered "
                                  f"three times what was not asked for ({failure})")
        if done:
            sampler.done.put(sample)
        else:                                   # for its second request, or the same one again
            sampler.waiting.appendleft(sample)
        self.dispatch()
        self.pool.wake()

    def ask_again(self, server, tasks):
        """Drop these requests of a server; their samples wait for another."""
        self.count_time()
        for task in reversed(tasks):
            sampler, sample = server.requests.pop(task)
            task.cancel()
            sampler.waiting.appendleft(sample)

    async def take_back(self, server):
        """Drop what a paused server has not begun, the last ones: all would be late starts. What it
        has begun and preempted waits there too, but vLLM keeps its tokens, and only computes their
        keys and values again (vllm/v1/core/sched/scheduler.py, `_preempt_request`)."""
        metrics, sent = await server.get("/metrics"), list(server.requests)
        begun = metric(FIRST_TOKENS, metrics) - server.gone
        tasks = sent[int(max(0, begun, len(sent) - metric("num_requests_waiting", metrics))):]
        self.counters["taken_back"] += len(tasks)
        self.ask_again(server, tasks)

    def count_time(self):
        """Add up the time of busy slots of ready servers; called before their number changes."""
        now = time.monotonic()
        for n in [len(s.requests) for s in self.pool.servers if s.state == "ready"]:
            self.busy_s += n * (now - self.counted_at)
            self.decoding_s += (n > 0) * (now - self.counted_at)
        self.counted_at = now

    async def log(self):
        """Columns of metrics.jsonl, since the last call. busy_share: the mean share of the time
        that a slot had a request; waited_s: the rest; decoding_share: that a server had any."""
        self.count_time()
        servers, seconds = len(self.pool.servers), max(self.counted_at - self.logged_at, 1e-9)
        busy = self.busy_s / sum(server.slots for server in self.pool.servers) / seconds
        log = {"off_policy/busy_share": busy, "off_policy/waited_s": seconds * (1 - busy),
               "off_policy/decoding_share": self.decoding_s / servers / seconds}
        log |= {f"servers/{name}": self.counters[name] for name in (
            "late_starts", "taken_back", "refused_answers", "resubmitted", "losses")}
        self.busy_s, self.decoding_s, self.logged_at = 0.0, 0.0, self.counted_at
        self.counters.clear()
        return log
