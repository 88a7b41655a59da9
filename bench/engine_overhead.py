"""Generated tokens a second: our loop over vLLM against vLLM's own `LLM.generate`, same run.

    python bench/engine_overhead.py --model models/smollm2-135m

One vLLM engine with one set of weights; --prompts x --samples sequences of exactly --tokens
tokens each (no end token), log-probs on, by turns, the prefix cache emptied before each. Beside
them the engine that needs nothing but transformers, on the same work, and ours with interruption:
the phrase forced into every sample at half of its length, so that each takes two requests; and
the same work over HTTP from a server of its own on loopback, client included.
Ratios are of tokens a second of CPU time (all threads, the server's processes too), round by
round: what else the machine is doing then weighs less than in tokens a second of the clock.
"""

import argparse
import os
import statistics
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engines import accept  # noqa: E402
from tasks import problems as tasks  # noqa: E402
from overlap import served  # noqa: E402
from sampler import Interruption, Request, TransformersSampler  # noqa: E402
from config import Config  # noqa: E402
from servers.pool import ServerPool, ServerSampler  # noqa: E402
from engines.vllm_inprocess import VllmSampler  # noqa: E402


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="models/toy")
    p.add_argument("--task", default="toy")
    p.add_argument("--prompts", type=int, default=8)
    p.add_argument("--samples", type=int, default=8)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)           # of the server
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    plain = accept.prepare(AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32))
    problems = tasks.load_task(args.task, "train", heldout=8)
    ids = [tasks.prompt_ids(tokenizer, problem) for problem in problems[: args.prompts]]
    longest = max(map(len, ids))
    config = Config(model=args.model, slots=args.prompts * args.samples)
    with served(config, longest + args.tokens + 1) as (process, url):
        measure(args, tokenizer, plain, ids, process, url)


def measure(args, tokenizer, plain, ids, process, url):
    half = args.tokens // 2
    whole, cut = (Interruption(args.tokens - 1, args.tokens - 1, 1),
                  Interruption(half, half, args.tokens - half - 1, phrase_ids=(ids[0][0],)))
    settings = dict(slots=args.prompts * args.samples, prompt_tokens=max(map(len, ids)), eos_ids=())
    ours = VllmSampler(args.model, tokenizer, whole, **settings)
    slots = TransformersSampler(plain, tokenizer, whole, **settings)
    length = settings["prompt_tokens"] + args.tokens + 1
    pool = ServerPool([url], slots=settings["slots"], length=length, dtype=torch.float32,
                      vocab=plain.get_input_embeddings().num_embeddings)
    server = ServerSampler(pool, tokenizer, whole, weights=lambda _: plain.named_parameters(),
                           prompt_tokens=settings["prompt_tokens"], eos_ids=())
    server.push_weights(plain.named_parameters(), 0)
    tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    from vllm import SamplingParams
    parameters = SamplingParams(temperature=1.0, max_tokens=args.tokens, ignore_eos=True,
                                logprobs=0, flat_logprobs=True, detokenize=False)

    def generate():
        outputs = ours.llm.generate([{"prompt_token_ids": x} for x in ids
                                     for _ in range(args.samples)], parameters, use_tqdm=False)
        assert all(len(o.outputs[0].logprobs) == args.tokens for o in outputs)
        return sum(len(o.outputs[0].token_ids) for o in outputs)

    def loop(sampler, interruption):
        def run():
            sampler.interruption = interruption
            for i, x in enumerate(ids):
                sampler.submit(Request(i, str(i), tuple(x), args.samples))
            tokens = 0
            while sampler.in_flight:
                tokens += sum(sum(r.sampled) for r in sampler.step())
            return tokens
        return run

    runs = {"LLM.generate": generate, "vllm_engine": loop(ours, whole),
            "  interrupted": loop(ours, cut), "transformers": loop(slots, whole),
            "server": loop(server, whole)}

    def cpu_seconds():
        return time.process_time() + sum(sum(p.cpu_times()[:2]) for p in tree)
    rates, work = {name: [] for name in runs}, {name: [] for name in runs}
    for round_ in range(args.rounds + 1):
        for name in (list(runs), list(reversed(runs)))[round_ % 2]:
            ours.llm.reset_prefix_cache()
            urllib.request.urlopen(urllib.request.Request(f"{url}/reset_prefix_cache",
                                                          method="POST"), timeout=30).close()
            begin, cpu = time.perf_counter(), cpu_seconds()
            tokens = runs[name]()
            if round_:                                # the first round warms up
                rates[name].append(tokens / (time.perf_counter() - begin))
                work[name].append(tokens / (cpu_seconds() - cpu))
    pool.close()
    print(f"{args.model}, {args.prompts} x {args.samples} sequences of {args.tokens} tokens, "
          f"{args.threads} threads, median of {args.rounds} [min, max]")
    for name, values in rates.items():
        ratios = sorted(x / y for x, y in zip(work[name], work["LLM.generate"]))
        print(f"{name:13} {statistics.median(values):8,.0f} tokens/s "
              f"[{min(values):,.0f}, {max(values):,.0f}]  {statistics.median(ratios):.3f} x "
              f"LLM.generate [{ratios[0]:.2f}, {ratios[-1]:.2f}]")


if __name__ == "__main__":
    main()
