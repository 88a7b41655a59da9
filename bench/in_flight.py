"""What a pool of servers costs the trainer's process: requests in flight, long answers, over HTTP.

    python bench/in_flight.py                       # 2,500 in flight, 10,000 tokens each, a minute

The real pool and sampler, against a server in another process that only holds requests back and
answers at a given rate with ready-made tokens (the tests' fake one). Printed: seconds of CPU of the
trainer's process for sending all requests, its share of a core while answers come at this rate, and
beside it the share that `json.loads` of the same answers alone would take.
"""
import argparse
import asyncio
import json
import multiprocessing
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "servers")]

import torch                                                        # noqa: E402
from served import Fake                                             # noqa: E402

from sampler import Interruption, Request                           # noqa: E402
from servers.pool import ServerPool, ServerSampler                  # noqa: E402

EOS, PROMPT, SAMPLES = 1, 500, 16


def answer_of(tokens, request="", version="v"):
    """The JSON of an answer as vLLM forms it, with the end of sequence as its last token."""
    entry = {"token": "token_id:70000", "logprob": -1.2345678901234567, "bytes": None,
             "top_logprobs": []}
    return {"request_id": f"generate-tokens-{request}", "choices": [{
        "token_ids": [70_000] * (tokens - 1) + [EOS], "finish_reason": "stop",
        "weight_versions": [{"start": 0, "end": tokens, "version": version}],
        "logprobs": {"content": [entry] * tokens}}]}


class Pace:
    """In place of the fake server's `open` event: one answer after another, `pause_s` apart."""

    def __init__(self, pause_s):
        self.pause_s, self.turn = pause_s, asyncio.Lock()

    async def wait(self):
        async with self.turn:
            await asyncio.sleep(self.pause_s)


def serve(tokens, rate, pipe):
    fake = Fake(lambda body, number: json.dumps(
        answer_of(tokens, body["request_id"], fake.version)).encode(),
        model_config__max_model_len=10 * tokens)
    fake.count, fake.open = float, Pace(tokens / rate)      # at each look one token more
    pipe.send(fake.url)
    time.sleep(3600)


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    p.add_argument("--requests", type=int, default=2500)
    p.add_argument("--tokens", type=int, default=10_000)
    p.add_argument("--rate", type=float, default=12_000, help="tokens a second")
    p.add_argument("--seconds", type=float, default=60)
    args = p.parse_args(argv)
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(args.tokens, args.rate, there), daemon=True)
    server.start()
    pool = ServerPool([here.recv()], slots=args.requests, length=2 * args.tokens,
                      dtype=torch.float32, vocab=100_000)
    sampler = ServerSampler(pool, None, Interruption(args.tokens, args.tokens, 1),
                            weights=lambda dtype: [], prompt_tokens=PROMPT, eos_ids={EOS})
    sampler.push_weights(iter([("w", torch.zeros(3))]), 0)

    def submit(group):
        sampler.submit(Request(group, str(group), tuple(range(2, 2 + PROMPT)), SAMPLES))

    groups, start = 0, time.process_time()
    while sampler.free_slots >= SAMPLES:
        submit(groups)
        groups += 1
    while sum(len(s.requests) for s in pool.servers) < sampler.in_flight:
        time.sleep(0.01)
    time.sleep(2.0)                         # all are sent
    sent = time.process_time() - start
    print(f"{sampler.in_flight} requests of {PROMPT} tokens sent: {sent:.2f} s of CPU, "
          f"{1000 * sent / sampler.in_flight:.2f} ms each", flush=True)
    done, wall, start = 0, time.monotonic(), time.process_time()
    while time.monotonic() < wall + args.seconds:
        done += len(sampler.step())
        if sampler.free_slots >= SAMPLES:
            submit(groups)
            groups += 1
    wall, used = time.monotonic() - wall, time.process_time() - start
    body, start = json.dumps(answer_of(args.tokens)), time.process_time()
    for _ in range(10):
        json.loads(body)
    alone = (time.process_time() - start) / 10
    print(f"{done} answers of {args.tokens} tokens in {wall:.0f} s "
          f"({done * args.tokens / wall:,.0f} tokens/s): {used / wall:.3f} of a core; json.loads "
          f"alone {alone * done / wall:.3f}; ratio {used / (alone * done):.2f}")
    pool.close()
    server.terminate()


if __name__ == "__main__":
    main()
