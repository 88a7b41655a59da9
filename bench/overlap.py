"""What asynchrony wins: the same work synchronously, as PPO-off-policy-k and as PipelineRL-k.

    python bench/overlap.py --model models/toy

One vLLM server and one trainer, --threads CPU threads each, by turns under every scheme: the same
prompts a step, samples, budgets, learning rate and number of steps, a fresh model each time. What
is printed for a step, on average after the first --warmup:

  step     seconds of the clock, evaluation apart, and what they went to on the trainer's side:
  wait     blocked on generation;  train: marks and optimizer;  push: pause to resume, weights
  empty    seconds that a slot stood empty on average, and of these
    push     while weights were pushed (nothing decodes then)
    turn     while the trainer trained, if the scheme makes the two sides take turns
    tail     the rest: the long tail, waiting for the last samples of a batch
  batch    tokens of a decode step of the server, of --slots: vLLM's own count
  lag      of a token, on average and at most
  to PASS  seconds until the pass rate of the samples trained on, averaged over --window steps,
           is at --target (an evaluation in between would let the generators run ahead)

wait + train + push = step. Empty slots are the reason for asynchrony; a fuller decode batch is
worth less on a CPU than on a GPU, where a decode step costs nearly the same for 1 and for 64.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from config import Config  # noqa: E402
from scaleout.launch import server_command  # noqa: E402


@contextlib.contextmanager
def served(config, length):
    """(process, address) of one server on loopback, up; its whole process group ends with this."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv, env = server_command(config, length=length, slots=config.slots,
                               dtype=torch.float32, url=f"http://127.0.0.1:{port}")
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(argv, env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            end = time.monotonic() + 300
            while True:
                if time.monotonic() > end or process.poll() is not None:
                    log.seek(0)
                    raise SystemExit(f"the server did not come up:\n{log.read()[-3000:]}")
                with contextlib.suppress(OSError), \
                        socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.2)
            yield process, f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


def decoded(url):
    """(tokens generated, steps taken) by the server so far, as it counts them itself."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        text = response.read().decode()
    return [float(re.search(rf"^vllm:{name}{{.*}} (\S+)$", text, re.M)[1])
            for name in ("generation_tokens_total", "iteration_tokens_total_count")]


def measure(args, scheme, url, seed):
    """One run of scalerl.py; its averages a step."""
    name = f"{scheme}-{seed}"
    before = decoded(url)
    command = [sys.executable, ROOT / "scalerl.py", "--model", args.model, "--gpus", 0,
               "--vllm-url", url, "--off-policy", scheme, "--seed", seed, "--name", name,
               "--steps", args.steps, "--prompts-per-step", args.prompts, "--slots", args.slots,
               "--samples-per-prompt", args.samples, "--think-min", args.think[0], "--think-max",
               args.think[1], "--answer-tokens", 4, "--prompt-tokens", 64, "--lr", args.lr,
               "--warmup-steps", 5, "--heldout-prompts", args.heldout_prompts,
               "--eval-samples", 2, "--eval-every", 10**6]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=1200)
    if done.returncode:
        raise SystemExit(f"{scheme}: {done.stderr}")
    tokens, steps = (after - b for after, b in zip(decoded(url), before))
    lines = (Path("runs") / name / "metrics.jsonl").read_text().splitlines()
    log = [r for r in map(json.loads, lines) if r["step"]]
    rates = [r["pass_rate"] for r in log]
    passed = [sum(r["time/step_s"] for r in log[:i]) for i in range(args.window, len(log) + 1)
              if sum(rates[i - args.window: i]) >= args.target * args.window]
    log = log[args.warmup:]
    mean = lambda key: sum(r[key] for r in log) / len(log)                     # noqa: E731
    train, push, empty = (mean("time/train_s") + mean("time/verify_s"), mean("time/sync_s"),
                          mean("off_policy/waited_s"))
    turn = train if scheme == "pipeline-0" or scheme.startswith("ppo") else 0.0
    return {"step": mean("time/step_s"), "wait": mean("time/generate_s"), "train": train,
            "push": push, "empty": empty, "turn": turn, "tail": max(0.0, empty - push - turn),
            "batch": tokens / steps, "lag": mean("lag/mean"),
            "most": max(r["lag/max"] for r in log), "length": mean("completions/mean_length"),
            "last": sum(rates[-args.window:]) / args.window,
            "passed": passed[0] if passed else None}


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="models/toy")
    p.add_argument("--schemes", nargs="+", default=["pipeline-0", "ppo-4", "pipeline-4"])
    p.add_argument("--seeds", type=int, nargs="+", default=[0])
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--warmup", type=int, default=4)
    p.add_argument("--prompts", type=int, default=16)
    p.add_argument("--samples", type=int, default=8)
    p.add_argument("--slots", type=int, default=64)
    p.add_argument("--think", type=int, nargs=2, default=[24, 48])
    p.add_argument("--lr", type=float, default=2e-4)
    p.add_argument("--heldout-prompts", type=int, default=64)
    p.add_argument("--window", type=int, default=5)
    p.add_argument("--target", type=float, default=0.5)
    p.add_argument("--threads", type=int, default=1)
    args = p.parse_args()
    args.model = str(Path(args.model).resolve())
    os.environ["OMP_NUM_THREADS"] = str(args.threads)           # of the server and the trainers
    config = Config(model=args.model, slots=args.slots)
    with tempfile.TemporaryDirectory() as folder, served(
            config, 64 + args.think[1] + 32 + 4) as (_, url):
        os.chdir(folder)
        rows = [(scheme, seed, measure(args, scheme, url, seed))
                for seed in args.seeds for scheme in args.schemes]
    print(f"{args.model}, {args.prompts} x {args.samples} samples a step, {args.slots} slots, "
          f"{args.steps} steps, {args.threads} threads on each side")
    print(f"{'scheme':11} seed   step = wait + train + push   empty = push + turn + tail   batch  "
          f"length  lag/most  last pass  to {args.target}")
    for scheme, seed, r in rows:
        passed = "never" if r["passed"] is None else f"{r['passed']:.1f} s"
        print(f"{scheme:11} {seed:4} {r['step']:6.3f}  {r['wait']:5.3f}  {r['train']:6.3f}  "
              f"{r['push']:5.3f}   {r['empty']:5.3f}  {r['push']:5.3f}  {r['turn']:5.3f}  "
              f"{r['tail']:5.3f}   {r['batch']:5.1f}  {r['length']:6.1f}  {r['lag']:4.2f}/"
              f"{r['most']}     {r['last']:.3f}      {passed}")


if __name__ == "__main__":
    main()
