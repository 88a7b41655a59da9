"""What the fp32 head costs: peak memory and time of log π, forward and backward, in four forms.

    plain       F.linear -> float -> log_softmax -> gather: holds (T, V) three times
    checkpoint  the same over chunks of tokens under torch.utils.checkpoint
    ours        loss.token_logprobs; the only one that also returns the entropy
    liger       Liger's LigerFusedLinearGRPOLoss, if installed (its logits keep the operands' dtype)

How to run, from the root of the repository:

    python bench/head.py                              # all sizes, a table and one line of JSON
    python bench/head.py --hidden 576 --vocab 49152   # one of them
    python bench/head.py --device cuda --tokens 16384 # on a GPU: bf16 operands

How it measures:
 1. Every figure comes from a fresh process, because a peak cannot be taken back. It allocates the
    inputs, runs once on a few tokens so that libraries and thread pools exist, notes the memory it
    holds, and runs forward and backward once.
 2. "Extra" memory is the peak minus what was held before, minus the two gradients that every form
    must return. On a CPU the peak is the process's resident set, on a GPU torch's allocator.
 3. Rounds interleave the forms, so that a busy minute hits all of them; time is the best round,
    memory the worst. Ratios are taken within one invocation only. On a shared machine read the CPU
    seconds of one thread (OMP_NUM_THREADS=1): neighbors stretch the wall clock more than those.
    Forms that did not compute the same gradient are an error: a fast wrong answer is none.
 4. A form that would not fit is skipped and said so, not tried: it might take others down with it.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from loss import token_logprobs  # noqa: E402

MIB = 2**20
SEQUENCE = 512  # tokens of one sample: Liger wants (samples, tokens), the others do not care


# --------------------------------------------------------------------------------------------------
# 1. The forms. Each returns -1/T Σ_t Â_t log π(y_t), so each must give the same gradients.
# --------------------------------------------------------------------------------------------------
def plain_logprobs(hidden, weight, targets):
    logits = F.linear(hidden, weight).float()
    return logits.log_softmax(-1).gather(-1, targets[:, None]).squeeze(-1)


def plain(hidden, weight, targets, A, chunk_tokens):
    return -(plain_logprobs(hidden, weight, targets) * A).mean()


def checkpointed(hidden, weight, targets, A, chunk_tokens):
    logprobs = [checkpoint(plain_logprobs, h, weight, y, use_reentrant=False)
                for h, y in zip(hidden.split(chunk_tokens), targets.split(chunk_tokens))]
    return -(torch.cat(logprobs) * A).mean()


def ours(hidden, weight, targets, A, chunk_tokens):
    logprobs, _ = token_logprobs(hidden, weight, targets, chunk_tokens=chunk_tokens)
    return -(logprobs * A).mean()


def liger(hidden, weight, targets, A, chunk_tokens):
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    rows = lambda x: x.view(-1, min(SEQUENCE, len(targets)), *x.shape[1:])
    # CISPO without old log-probs has ratio 1: the same objective as the other forms.
    loss = LigerFusedLinearGRPOLoss(
        beta=0.0, compiled=False, use_ref_model=False, loss_type="cispo", epsilon_high=5.0,
        chunk_size=max(1, chunk_tokens // SEQUENCE))
    return loss(rows(hidden), weight, rows(targets), torch.ones_like(rows(targets)),
                rows(A)[:, 0].contiguous(), num_items_in_batch=len(targets))[0]


FORMS = {"plain": plain, "checkpoint": checkpointed, "ours": ours, "liger": liger}


# --------------------------------------------------------------------------------------------------
# 2. One measurement, in its own process
# --------------------------------------------------------------------------------------------------
def held_and_peak(device):
    """Bytes held now, and the most held since the last reset (CPU: since the process began)."""
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return resident_pages * resource.getpagesize(), peak


def measure(form, T, H, V, chunk_tokens, device):
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    hidden = torch.randn(T, H, device=device, dtype=dtype).requires_grad_()
    weight = torch.randn(V, H, device=device, dtype=dtype).mul_(2 / H**0.5).requires_grad_()
    targets = torch.randint(V, (T,), device=device)
    A = torch.randn(T // SEQUENCE, device=device).repeat_interleave(SEQUENCE)

    def run(tokens):
        """Forward and backward for the first `tokens` tokens: wall and CPU seconds."""
        hidden.grad = weight.grad = None
        start = time.perf_counter(), time.process_time()
        FORMS[form](hidden[:tokens], weight, targets[:tokens], A[:tokens], chunk_tokens).backward()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start[0], time.process_time() - start[1]

    run(8)
    if device == "cuda":
        run(T)  # kernels are chosen and the allocator grows at the full size, outside the clock
    hidden.grad = weight.grad = None
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    held, peak_before = held_and_peak(device)
    seconds, cpu_seconds = run(T)
    _, peak = held_and_peak(device)
    assert peak > peak_before or device == "cuda", "the warm-up was larger than the measured run"
    gradients = (hidden.numel() + weight.numel()) * weight.element_size()
    if device == "cuda":
        seconds = min(seconds, *(run(T)[0] for _ in range(4)))
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "extra_mib": (peak - held - gradients) / MIB,
        "fingerprint": [hidden.grad.float().norm().item(), weight.grad.float().norm().item(),
                        hidden.grad.float()[T // 3, H // 3].item()],
    }


# --------------------------------------------------------------------------------------------------
# 3. All of them, side by side
# --------------------------------------------------------------------------------------------------
BEST = {"extra_mib": max, "seconds": min, "cpu_seconds": min}  # of several rounds


def plain_would_fit(T, V, device):
    needed = 3 * T * V * 4
    if device == "cuda":
        return needed < torch.cuda.mem_get_info()[0]
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return needed < 0.8 * int(lines["MemAvailable"].split()[0]) * 1024


def child(form, size, chunk_tokens, device):
    command = [sys.executable, __file__, "--child", form, "--device", device,
               "--chunk-tokens", str(chunk_tokens), "--tokens", str(size[0]),
               "--hidden", str(size[1]), "--vocab", str(size[2])]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{form} at {size} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(size, forms, rounds, chunk_tokens, device):
    """{form: {key: figure, key + "_of_plain": ratio, ...}} at one size, for each key of BEST."""
    results = {}
    for _ in range(rounds):
        for form in forms:
            new = child(form, size, chunk_tokens, device)
            old = results.setdefault(form, new)
            for key, best in BEST.items():
                old[key] = best(old[key], new[key])
    reference = results[forms[0]]["fingerprint"]
    tolerance = 2e-2 if device == "cuda" else 1e-4  # bf16 gradients, fp32 gradients
    for form, result in results.items():
        fingerprint = result.pop("fingerprint")
        for a, b in zip(fingerprint, reference):
            assert abs(a - b) <= tolerance * abs(b), (form, fingerprint, reference)
    if "plain" in results:
        plain = dict(results["plain"])
        for result in results.values():
            result |= {f"{key}_of_plain": result[key] / plain[key] for key in BEST}
    return results


def machine(device):
    if device == "cuda":
        return torch.cuda.get_device_name()
    names = [line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")]
    return f"{names[0] if names else 'CPU'}, {torch.get_num_threads()} threads"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096],
                        help=f"T, multiples of {SEQUENCE}")
    parser.add_argument("--hidden", type=int, nargs="+", default=[576, 1024], help="H")
    parser.add_argument("--vocab", type=int, nargs="+", default=[49152, 151936], help="V")
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=FORMS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--chunk-tokens", type=int, default=1024)
    parser.add_argument("--device", choices=["cpu", "cuda"],
                        default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--child", choices=FORMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if bad := [T for T in args.tokens if T % SEQUENCE]:
        parser.error(f"--tokens {bad[0]}: give a multiple of {SEQUENCE}")

    if args.child:
        size = args.tokens[0], args.hidden[0], args.vocab[0]
        return print(json.dumps(measure(args.child, *size, args.chunk_tokens, args.device)))

    forms = list(args.forms)
    if "liger" in forms:
        try:
            import liger_kernel.chunked_loss  # noqa: F401
        except ImportError:
            forms.remove("liger")
    print(f"{machine(args.device)}; torch {torch.__version__}; {args.rounds} rounds; "
          f"chunks of {args.chunk_tokens} tokens; {time.strftime('%Y-%m-%d')}\n")
    print("| T | H | V | form | extra MiB | of plain | wall s | of plain | CPU s | of plain |")
    print("|--:|--:|--:|:--|--:|--:|--:|--:|--:|--:|")
    rows = []
    for size in [(T, H, V) for T in args.tokens for H in args.hidden for V in args.vocab]:
        fits = plain_would_fit(size[0], size[2], args.device)
        chosen = [form for form in forms if form != "plain" or fits]
        for form, result in compare(
                size, chosen, args.rounds, args.chunk_tokens, args.device).items():
            rows.append({"T": size[0], "H": size[1], "V": size[2], "form": form, **result})
            cells = [f"{x:,}" for x in size] + [form]
            for key, digits in (("extra_mib", 0), ("seconds", 2), ("cpu_seconds", 2)):
                ratio = result.get(f"{key}_of_plain")
                cells += [f"{result[key]:,.{digits}f}",
                          "plain does not fit" if ratio is None else f"{ratio:.2f}"]
            print("| " + " | ".join(cells) + " |", flush=True)
    print("\n" + json.dumps(rows))


if __name__ == "__main__":
    main()
