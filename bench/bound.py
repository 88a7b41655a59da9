"""Share of the arithmetic bound: how fast is a step, and how fast are its matrix products alone?

    python bench/bound.py                       # the toy's shapes, 16 x 16 samples, one core
    python bench/bound.py --hidden 576 --heads 9 --kv-heads 3 --inner 1536 --layers 4 --vocab 49152

The model has random weights, so its samples end by chance: about one token in 38 is an
end token. The bound: torch.mm of every weight of the model, 256 rows at a time as in
generation and 2,048 as in training. FLOPs as engines/compute.py counts them (attention too, padding
not). Seconds of CPU of one thread, the median of --rounds, each round with all three in turns.

--where: which operations take the time, by torch's profiler in one round more, and what share of
the bound would be reached if the products and torch's attention kernel took as long as they do, and
all else no time: no code around the same operations can be faster than that. And what the step
would reach if attention in generation read each sequence's own tokens alone (the mean length in
place of the longest one): no order of the sequences in the cache can read less.
"""

import argparse
import os
import random
import statistics
import sys
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import torch                                                                         # noqa: E402
from transformers import AutoModelForCausalLM, LlamaConfig                           # noqa: E402

from engines import accept, packed                                                   # noqa: E402
from engines.compute import Compute                                                  # noqa: E402
from engines.trained_model import checkpoint_and_compile                             # noqa: E402
from sampler import Interruption, Request, TransformersSampler                       # noqa: E402
from scalerl import Policy                                                           # noqa: E402


def products(model, rows):
    """FLOPs a second of CPU of the model's products, with so many rows."""
    weights = [p for p in model.parameters() if p.ndim == 2]
    operands = [torch.randn(rows, w.shape[1]) for w in weights]
    start, flops = time.process_time(), 0
    while time.process_time() - start < 0.5:
        for w, x in zip(weights, operands, strict=True):
            torch.mm(x, w.detach().t())
            flops += 2 * w.numel() * rows
    return flops / (time.process_time() - start)


def where(work):
    """(seconds in products, in attention, in all else) of a call of `work`, one thread. The whole
    is timed without the profiler, which costs the small operations most."""
    start = time.process_time()
    work()
    whole, seconds = time.process_time() - start, {"products": 0.0, "attention": 0.0}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        work()
    for event in profile.key_averages():
        kind = ("attention" if "scaled_dot_product" in event.key else
                "products" if event.key in ("aten::mm", "aten::addmm", "aten::bmm") else None)
        if kind:
            seconds[kind] += event.self_cpu_time_total / 1e6
    return *seconds.values(), whole - sum(seconds.values())


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"hidden": 160, "heads": 5, "kv-heads": 5, "inner": 320, "layers": 3,
                          "vocab": 38, "prompts": 16, "samples": 16, "tokens": 64,
                          "micro-batch-tokens": 8192, "rounds": 3}.items():
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--compile", action="store_true", help="compile_layers = on, in training")
    p.add_argument("--where", action="store_true", help="which operations take the time")
    args = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = accept.prepare(AutoModelForCausalLM.from_config(LlamaConfig(
        vocab_size=args.vocab, hidden_size=args.hidden, intermediate_size=args.inner,
        num_hidden_layers=args.layers, num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads, tie_word_embeddings=True)))
    policy, compute = Policy(model), Compute(model, 1, "cpu")
    if args.compile:
        checkpoint_and_compile(model, False, True)
    G, n, rng = args.samples, args.prompts * args.samples, random.Random(0)
    ends = set(range(max(1, args.vocab // 38)))

    def generate():
        """(CPU seconds, rollouts) of prompts x samples that end while the slots stay full; the same
        at each call, so that the whole and its parts can be compared."""
        rng.seed(0)
        budget = Interruption(args.tokens - 1, args.tokens - 1, 1)
        sampler = TransformersSampler(model, None, budget, slots=n, prompt_tokens=16, eos_ids=ends)
        done, asked, start = {}, 0, None
        while start is None or sum(len(g) == G for g in done.values()) < args.prompts:
            while sampler.free_slots >= G:
                prompt = tuple(rng.randrange(args.vocab) for _ in range(rng.randint(6, 16)))
                sampler.submit(Request(asked, str(asked), prompt, G))
                asked += 1
            if start is None and asked >= 3 * args.prompts:         # warm, and of all ages
                done, start = {}, time.process_time()
                sampler.decoded.clear()
            if args.where and (cache := sampler.cache).active:  # what the next decode step reads
                seen.append((cache.width, cache.lengths[: cache.active].float().mean().item()))
            for rollout in sampler.step():
                done.setdefault(rollout.group_id, []).append(rollout)
        seconds, tokens = time.process_time() - start, sampler.decoded["sequences"]
        rollouts = [r for g in done.values() if len(g) == G for r in g]
        return seconds, tokens, rollouts

    def train(rollouts):
        for indices in packed.micro_batches(rollouts, args.micro_batch_tokens):
            policy([rollouts[i] for i in indices])[0].sum().backward()

    def own_tokens(mean_length, longest):
        """Time of attention in a decode step over so many tokens, as a share of that over more."""
        D, seconds = args.hidden // args.heads, []
        for width in (mean_length, longest):
            q, k, v = (torch.randn(n, heads, tokens, D) for heads, tokens in (
                (args.heads, 1), (args.kv_heads, width), (args.kv_heads, width)))
            attention = packed.MaskedAttention(torch.ones(n, 1, 1, width).bool(), torch.float32)
            times = []
            for _ in range(50):
                start = time.process_time()
                attention(q, k, v, None)
                times.append(time.process_time() - start)
            seconds.append(statistics.median(times))
        return seconds[0] / seconds[1]

    speeds, seen = [], []
    for _ in range(args.rounds + 1):
        bounds = products(model, 256), products(model, 2048)
        seconds, tokens, rollouts = generate()
        mean = sum(len(r.output_ids) for r in rollouts) / len(rollouts)
        flops = compute.group_flops(rollouts, G)
        generated = flops * tokens / (mean * len(rollouts)) / seconds
        start = time.process_time()
        train(rollouts)
        trained = 3 * flops / (time.process_time() - start)
        # A step generates and trains the same samples: 1 + 3 parts of the FLOPs.
        step, limit = 4 / (1 / generated + 3 / trained), 4 / (1 / bounds[0] + 3 / bounds[1])
        speeds.append([generated, trained, step, bounds[0], bounds[1], limit])
    if args.where:
        for name, work, share in (
                ("generation", generate, lambda s: s[0] / s[3]),
                ("forward and backward", lambda: train(rollouts), lambda s: s[1] / s[4])):
            products_s, attention_s, rest_s = where(work)
            whole = products_s + attention_s + rest_s
            reached = statistics.median(map(share, speeds[1:]))
            if work is generate:
                longest, mean_length = (round(statistics.fmean(x)) for x in zip(*seen))
                saved = attention_s / whole * (1 - own_tokens(mean_length, longest))
                told = [1 / reached * (1 - saved)]      # times of one part of the FLOPs, in those
            else:                                       # of its products
                told.append(3 / reached)
            print(f"{name}: products {products_s / whole:.0%}, attention "
                  f"{attention_s / whole:.0%}, all else {rest_s / whole:.0%}; without all else "
                  f"{reached * whole / (products_s + attention_s):.0%} of the bound")
        print(f"attention in generation over the mean length, {mean_length}, in place of the "
              f"longest, {longest}: generation {1 / told[0]:.0%}, the step {4 / sum(told):.0%} of "
              "the bound")
    g, t, s, gb, tb, sb = (statistics.median(x) / 1e9 for x in zip(*speeds[1:], strict=True))
    print(f"{n} samples of up to {args.tokens} tokens ({mean:.1f} on average), one thread, GFLOP a "
          f"second of CPU (share of the products'):\n| generation | forward and backward | step |\n"
          f"|---|---|---|\n| {g:.1f} ({g / gb:.0%} of {gb:.0f}) | {t:.1f} ({t / tb:.0%} of "
          f"{tb:.0f}) | {s:.1f} ({s / sb:.0%} of {sb:.0f}) |")


if __name__ == "__main__":
    main()
