"""Generated tokens a second: our slot loop against transformers' model.generate, same run.

    python bench/sampler.py --model models/toy

Both sample at temperature 1 from the same prompts (--prompts x --samples sequences, at most
--tokens tokens each), on the same weights, threads and precision, by turns. Both report only the
tokens of samples, up to and including their end token: `generate` also computes rows that have
ended, which is its loss, not its tokens. Ours records log-probs and versions as well. Two
regimes of ours: `drain`, all sequences at once until the last one ends, which is what `generate`
does; and `stream`, new prompts filling the slots of ended ones, which is what training does.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engines import accept  # noqa: E402
from tasks import problems as tasks  # noqa: E402
from sampler import Interruption, Request, TransformersSampler  # noqa: E402


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="models/toy")
    p.add_argument("--task", default="toy")
    p.add_argument("--prompts", type=int, default=16)
    p.add_argument("--samples", type=int, default=16)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left")
    plain = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    ours = accept.prepare(AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32))
    problems = tasks.load_task(args.task, "train", heldout=8)
    ids = [tasks.prompt_ids(tokenizer, problem) for problem in problems[: args.prompts]]
    eos = plain.generation_config.eos_token_id
    eos = set(eos if isinstance(eos, list) else [eos])
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    slots = args.prompts * args.samples
    sampler = TransformersSampler(
        ours, tokenizer, Interruption(args.tokens - 1, args.tokens - 1, 1), slots=slots,
        prompt_tokens=max(map(len, ids)), eos_ids=eos)

    def fill(count):
        for i in range(count):
            sampler.submit(Request(i, str(i), tuple(ids[i % len(ids)]), args.samples))

    def drain():
        fill(args.prompts)
        tokens = 0
        while sampler.in_flight:
            tokens += sum(len(r.output_ids) for r in sampler.step())
        return tokens

    def stream():                       # always full: stop after 3 batches' worth of samples
        tokens = samples = 0
        while samples < 3 * slots:
            if sampler.in_flight < slots + args.samples:
                fill(args.prompts)
            for rollout in sampler.step():
                samples, tokens = samples + 1, tokens + len(rollout.output_ids)
        return tokens

    def generate():
        batch = tokenizer.pad({"input_ids": [x for x in ids for _ in range(args.samples)]},
                              return_tensors="pt")
        with torch.no_grad():
            out = plain.generate(**batch, max_new_tokens=args.tokens, do_sample=True,
                                 top_k=0, top_p=1.0, pad_token_id=tokenizer.pad_token_id)
        out = out[:, batch["input_ids"].shape[1]:]
        ended = torch.isin(out, torch.tensor(sorted(eos))).long().cumsum(1)
        return int((ended.cumsum(1) <= 1).sum())     # up to and including the first end token

    rates = {"drain": [], "stream": [], "generate": []}
    for round_ in range(args.rounds + 1):
        for name, run in (("drain", drain), ("stream", stream), ("generate", generate)):
            if name == "drain":                       # what the last stream left behind
                while sampler.in_flight:
                    sampler.step()
            start = time.perf_counter()
            tokens = run()
            if round_:                                # the first round warms up
                rates[name].append(tokens / (time.perf_counter() - start))
    median = {name: statistics.median(values) for name, values in rates.items()}
    print(f"{args.model}, {slots} sequences of up to {args.tokens} tokens, {args.threads} threads, "
          f"median of {args.rounds} [min, max]")
    for name, values in rates.items():
        print(f"{name:9} {median[name]:8,.0f} tokens/s [{min(values):,.0f}, {max(values):,.0f}]  "
              f"{median[name] / median['generate']:.2f} x generate")


if __name__ == "__main__":
    main()
