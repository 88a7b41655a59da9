"""Seconds a training step: scalerl.py, with each of its engines, against TRL's GRPOTrainer: the
same work, in the same run.

    python bench/step_vs_trl.py --model models/toy --engines transformers vllm
    python bench/step_vs_trl.py --model models/smollm2-135m --task reasoning_gym:chain_sum \\
        --prompts 4 --steps 3

The same: model, prompts, samples (--prompts x --samples), at most --tokens tokens a sample, the
verifier, temperature 1, CISPO, fp32, AdamW, gradient clip, CPU threads. Both sides train on every
sample: our zero-variance filter is off, or we would win by doing less (--filter turns it on). The
learning rate is too small to matter, so both sides generate samples of the same lengths
throughout. A step is everything from one step's end to the next: generation, marks, training,
log. The sides run by turns, each in a process of its own (--rounds), the first --warmup steps
of a round are left out, and the printed ratio is between medians.

What is not the same: ours is PipelineRL (--off-policy), so sequences of the next steps are in
flight and the decode batch stays full; TRL waits for its longest sample. That is the point.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
INSTRUCTION = "Think briefly, then write </think> and the answer as a number."


def ours(args):
    """End times of our steps, the lengths and the share of the time that generation took."""
    import scalerl
    import torch

    from command.main import main

    stamps, records = [], []

    def show(self, record):
        stamps.append(time.perf_counter())
        records.append(record)

    scalerl.Progress.show = show
    settings = {
        "model": args.model, "task": args.task, "task_options": args.task_options,
        "instruction": args.instruction, "name": "bench", "steps": args.steps + args.warmup + 1,
        "prompts_per_step": args.prompts, "samples_per_prompt": args.samples, "slots": args.slots,
        "think_min": args.tokens - 8, "think_max": args.tokens - 8, "answer_tokens": 8,
        "interrupt_phrase": "", "lr": 1e-12, "eval_samples": 1, "eval_every": 10**6,
        "heldout_prompts": 8, "retire_at": 2, "overlong_filter": "false",   # TRL trains all, too
        "zero_variance_filter": str(args.filter).lower(), "off_policy": args.off_policy,
        "engine": args.side,
        "micro_batch_tokens": args.micro_batch_tokens}
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(args.model).resolve()
        os.chdir(folder)
        settings["model"] = str(model)
        code = main([w for k, v in settings.items()
                     for w in (f"--{k.replace('_', '-')}", str(v))])
        assert code == 0, "scalerl.py failed"
    seconds = [b - a for a, b in zip(stamps, stamps[1:-1])][args.warmup - 1:]
    used = records[args.warmup: -1]
    return {"seconds": seconds,
            "tokens": statistics.mean(r["completions/mean_length"] for r in used),
            "generate_s": statistics.median(r["time/generate_s"] for r in used),
            "train_s": statistics.median(r["time/train_s"] for r in used),
            "generated_tok_s": statistics.median(
                r["tokens/generated"] / r["time/generate_s"] for r in used)}


def trl(args):
    """The same of TRL's trainer."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from tasks import problems as tasks, verify

    torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    problems = tasks.load_task(args.task, "train", heldout=8, options=json.loads(args.task_options))
    rows = [{"prompt": tokenizer.decode(tasks.prompt_ids(tokenizer, p, args.instruction)),
             "answer": p.answer, "kind": p.kind} for p in problems]

    def reward(completions, answer, kind, **_):
        return [verify(c, a, k)[0] for c, a, k in zip(completions, answer, kind)]

    lengths, stamps = [], []

    class Clock(TrainerCallback):
        def on_step_end(self, *_, **__):
            stamps.append(time.perf_counter())

        def on_log(self, _, __, ___, logs=None, **____):
            lengths.append(logs.get("completions/mean_length"))

    n = args.prompts * args.samples
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, per_device_train_batch_size=n,
            num_generations=args.samples, max_completion_length=args.tokens, temperature=1.0,
            beta=0.0, loss_type="cispo", epsilon_high=5.0, learning_rate=1e-12,
            lr_scheduler_type="constant", max_grad_norm=1.0, max_steps=args.steps + args.warmup,
            logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
            gradient_checkpointing=False)
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
        GRPOTrainer(model=model, reward_funcs=reward, args=config, processing_class=tokenizer,
                    train_dataset=Dataset.from_list(rows), callbacks=[Clock()]).train()
    seconds = [b - a for a, b in zip(stamps, stamps[1:])][args.warmup - 1:]
    known = [x for x in lengths if x is not None]
    return {"seconds": seconds, "tokens": statistics.mean(known[args.warmup:])}


def main():
    p = argparse.ArgumentParser(description=__doc__, allow_abbrev=False,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="models/toy")
    p.add_argument("--task", default="toy")
    p.add_argument("--task-options", default="{}", help="JSON")
    p.add_argument("--instruction", help="default: none for the toy task")
    p.add_argument("--prompts", type=int, default=16)
    p.add_argument("--samples", type=int, default=16)
    p.add_argument("--tokens", type=int, default=64, help="longest sample")
    p.add_argument("--off-policy", default="pipeline-8")
    p.add_argument("--engines", nargs="+", default=["transformers"], help="of ours: transformers, "
                   "vllm, or both", choices=("transformers", "vllm"))
    p.add_argument("--slots", type=int, default=256, help="our sequences in flight")
    p.add_argument("--micro-batch-tokens", type=int, default=8192)
    p.add_argument("--steps", type=int, default=8, help="timed steps a round")
    p.add_argument("--warmup", type=int, default=2)
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--filter", action="store_true", help="our zero-variance filter on")
    p.add_argument("--side", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.instruction is None:
        args.instruction = "" if args.task == "toy" else INSTRUCTION
    if args.side:
        print("RESULT " + json.dumps((trl if args.side == "trl" else ours)(args)))
        return

    sides = {side: [] for side in [*args.engines, "trl"]}
    for _ in range(args.rounds):
        for side, results in sides.items():
            done = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--side", side],
                                  text=True, capture_output=True)
            line = [x for x in done.stdout.splitlines() if x.startswith("RESULT ")]
            if done.returncode or not line:
                sys.exit(f"{side} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
            results.append(json.loads(line[0][7:]))
            print(f"{side:12} {' '.join(f'{s:.2f}' for s in results[-1]['seconds'])} s a step, "
                  f"{results[-1]['tokens']:.1f} tokens a sample", flush=True)
    median = {side: statistics.median(s for r in results for s in r["seconds"])
              for side, results in sides.items()}
    print(f"{args.model}, {args.prompts} x {args.samples} samples of up to {args.tokens} tokens, "
          f"{args.threads} threads; TRL {median['trl']:.3f} s a step")
    for side in args.engines:
        parts = {name: statistics.median(r[name] for r in sides[side])
                 for name in ("generate_s", "train_s", "generated_tok_s")}
        print(f"ours, {side}: {median[side]:.3f} s (generation {parts['generate_s']:.3f}, training "
              f"{parts['train_s']:.3f}; {parts['generated_tok_s']:,.0f} tokens/s generated), ratio "
              f"{median[side] / median['trl']:.3f}")


if __name__ == "__main__":
    main()
