"""The trainer on one GPU: tokens/s, MFU, peak memory, head share, sync time, mismatch.

    python bench/gpu.py --out results/gpu          Qwen3-0.6B in shape, random (make gpu-check)
    python bench/gpu.py --device cpu --hidden 64 --layers 2 --vocab 500 --lengths 96 40

For each length T: training steps (forward, backward, AdamW) on --tokens tokens in samples of T
tokens, prompts included, micro-batches of one longest sample; bf16 compute, fp32 masters, fp32
head. torch and transformers are enough. What is reported:

  tokens/s      trained and prompt tokens through the whole step
  MFU           the FLOPs of scalerl.py's `Compute` (attention included, each prompt once, three
                forwards a step, recomputation not counted) over the device's bf16 peak
  head share    token_logprobs alone, forward and backward, of the step's time
  sync          new weights into the bf16 sampler, as every step does it
  mismatch      mean |dlogp| and k3 KL between that sampler and the trainer, fp32 head on both

Each row changes one choice; the first is the default. A row that runs out of memory says so.
"""

import argparse
import copy
import datetime
import functools
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import packed  # noqa: E402
import scalerl  # noqa: E402
from config import Config  # noqa: E402
from launch import DEVICES  # noqa: E402
from loss import token_logprobs  # noqa: E402
from ranks import Policy, Ranks, logprobs_of, recompute_layers, table  # noqa: E402
from sampler import Interruption, Request, Rollout, TransformersSampler  # noqa: E402

PROMPT, GROUP = 256, 2                          # prompt tokens, samples of a prompt


# name: what it does to (model, AdamW's options); "dense" is seen to in `measure`.
CHOICES = {
    "default": lambda model, adamw: None,
    "recompute_layers": lambda model, adamw: recompute_layers(model),
    "dense attention": lambda model, adamw: None,
    "compiled MLPs": lambda model, adamw: [layer.mlp.compile(dynamic=True)
                                           for layer in model.model.layers],
    "plain AdamW": lambda model, adamw: adamw.update(fused=False),
}


def fake_rollouts(tokens, length, vocab, prompt):
    """Groups of random samples of `length` tokens, prompt included; `tokens` in all, about."""
    rollouts = []
    for i in range(max(GROUP, tokens // length // GROUP * GROUP)):
        ids = torch.randint(2, vocab, (length - prompt,)).tolist()
        shared = rollouts[-1].prompt_ids if i % GROUP else tuple(
            torch.randint(2, vocab, (prompt,)).tolist())
        rollouts.append(Rollout(str(i // GROUP), i // GROUP, shared, ids, [-12.0] * len(ids),
                                [0] * len(ids), [True] * len(ids), "stop", False))
    return rollouts


def timed(device, work):
    """Seconds that `work()` takes, the device's queue included."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start


def measure(weights, length, choice, peak, args):
    """The numbers of one row; {"error": ...} if it does not fit."""
    device, dtype = args.device, torch.bfloat16
    model = packed.prepare(copy.deepcopy(weights).to(device))
    adamw = {"fused": True}
    CHOICES[choice](model, adamw)
    policy = Policy(model, dtype=dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-9, **adamw)
    prompt = min(PROMPT, length // 4)
    config = Config(model="random", zero_variance_filter=False, samples_per_prompt=GROUP,
                            micro_batch_tokens=max(args.lengths))
    rollouts = fake_rollouts(args.tokens, length, args.vocab, prompt)
    rewards = torch.tensor([1.0, -1.0]).repeat(len(rollouts) // GROUP, 1)
    compute = scalerl.Compute(model, 1, "gpu")
    compute.add(rollouts, GROUP, passes=3)
    tokens = sum(len(r.output_ids) for r in rollouts) + len(rollouts) // GROUP * prompt
    ranks = Ranks()
    step = lambda: scalerl.train_step(policy, optimizer, rollouts, rewards, 0,      # noqa: E731
                                      config, ranks)
    pack = packed.Pack
    try:
        if choice == "dense attention":
            packed.Pack = functools.partial(pack, flash=False)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        timed(device, step)
        seconds = statistics.median(timed(device, step) for _ in range(args.steps))
        memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
    except torch.OutOfMemoryError as error:
        return {"error": str(error).split(". ")[0]}
    finally:
        packed.Pack = pack

    head = model.get_output_embeddings().weight
    n = config.micro_batch_tokens
    hidden = torch.randn(n, model.config.hidden_size, device=device, dtype=dtype,
                         requires_grad=True)
    targets = torch.randint(0, args.vocab, (n,), device=device)
    work = lambda: token_logprobs(hidden, head.to(dtype), targets)[0].sum().backward()  # noqa: E731
    timed(device, work)
    head_s = timed(device, work) / n * sum(len(r.output_ids) for r in rollouts)

    copied = copy.deepcopy(model).to(dtype)
    short = Interruption(24, 32, 8)
    sampler = TransformersSampler(copied, None, short, slots=16, prompt_tokens=prompt, eos_ids=[0])
    sync_s = timed(device, lambda: sampler.push_weights(model.named_parameters(), 1))
    sampler.submit(Request(0, "", rollouts[0].prompt_ids, 16))
    drawn = []
    while sampler.in_flight:
        drawn += sampler.step()
    log_ratio = (logprobs_of(policy, drawn, True).cpu() - table(drawn, "logprobs", torch.float32))[
        table(drawn, "sampled", torch.bool)]
    return {"tokens_per_s": tokens / seconds, "step_s": seconds,
            "mfu": compute.flops / seconds / peak if peak else None, "peak_memory_gib": memory,
            "head_share": head_s / seconds, "sync_s": sync_s,
            "mismatch/mean_abs_dlogp": log_ratio.abs().mean().item(),
            "mismatch/kl_k3": (log_ratio.exp() - 1 - log_ratio).mean().item()}


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    p.add_argument("--hidden", type=int, default=1024)
    p.add_argument("--layers", type=int, default=28)
    p.add_argument("--vocab", type=int, default=151936)
    p.add_argument("--lengths", type=int, nargs="+", default=[16384, 4096])
    p.add_argument("--tokens", type=int, default=65536, help="a step")
    p.add_argument("--steps", type=int, default=3, help="timed, after one that warms up")
    p.add_argument("--out", help="folder for gpu.json and README.md")
    args = p.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch finds no GPU here; --device cpu with a small model tries the script out")
    device = torch.cuda.get_device_name() if args.device == "cuda" else "a CPU"
    peak = next((known.flops for known in DEVICES if known.name in device), None)
    torch.manual_seed(0)
    heads = args.hidden // 64
    model = Qwen3ForCausalLM(Qwen3Config(
        vocab_size=args.vocab, hidden_size=args.hidden, intermediate_size=3 * args.hidden,
        num_hidden_layers=args.layers, num_attention_heads=heads, num_key_value_heads=heads // 2,
        head_dim=128, max_position_embeddings=40960, tie_word_embeddings=True,
        use_sliding_window=False)).eval()
    rows = []
    for length in args.lengths:
        for choice in CHOICES:
            rows.append({"length": length, "choice": choice}
                        | measure(model, length, choice, peak, args))
            print(json.dumps(rows[-1]), flush=True)
    if args.out:
        write(Path(args.out), rows, device, model)


def write(folder, rows, device, model):
    """gpu.json, with all that says what was run, and its table for a reader."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = sum(p.numel() for p in model.parameters())
    about = {"device": device, "date": str(datetime.date.today()), "torch": torch.__version__,
             "command": "python " + " ".join(sys.argv), "weights": weights, "rows": rows}
    (folder / "gpu.json").write_text(json.dumps(about, indent=1) + "\n")
    show = lambda value, form: "-" if value is None else format(value, form)        # noqa: E731
    lines = ["# The trainer on one device", "",
             f"`{about['command']}`, {device}, torch {torch.__version__}, {about['date']}, "
             f"{weights / 1e6:,.0f}M weights.", "",
             "| tokens a sample | choice | tokens/s | MFU | peak GiB | head share | sync s "
             "| mean abs. dlogp | KL (k3) |", "|--:|---|--:|--:|--:|--:|--:|--:|--:|"]
    for r in rows:
        lines.append(f"| {r['length']:,} | {r['choice']} | " + (r["error"] if "error" in r else
            " | ".join(show(r[name], form) for name, form in (
                ("tokens_per_s", ",.0f"), ("mfu", ".1%"), ("peak_memory_gib", ".1f"),
                ("head_share", ".1%"), ("sync_s", ".3f"), ("mismatch/mean_abs_dlogp", ".4f"),
                ("mismatch/kl_k3", ".5f")))) + " |")
    (folder / "README.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
