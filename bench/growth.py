"""How the cost of each part grows with its work: the exponents of results/speed_cpu.md.

    python bench/growth.py                  # a minute or two on an idle core
    python bench/growth.py --only push      # the rows with this word

A row gives the cost at a few sizes, and the exponent between the last two: 1 is linear, 2 is
quadratic. "s": seconds of CPU of one thread, the least of three; "MiB": the peak of what Python and
numpy allocate. An exponent of seconds is known to about 0.15; the tests count operations instead.
"""

import argparse
import contextlib
import io
import json
import math
import os
import random
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import numpy as np                                                                   # noqa: E402
import torch                                                                         # noqa: E402
from transformers import AutoModelForCausalLM, LlamaConfig                           # noqa: E402

import fit                                                                           # noqa: E402
from command import symptoms                                                         # noqa: E402
from engines import accept, packed                                                   # noqa: E402
from engines.trained_model import TrainedModel                                       # noqa: E402
from engines.two_requests import TwoRequests                                         # noqa: E402
from fitting import readers                                                          # noqa: E402
from sampler import Interruption, Request, Rollout, TransformersSampler              # noqa: E402
from scalerl import PipelinePacer, Policy                                            # noqa: E402
from servers.server import check_answer                                              # noqa: E402
from tasks import problems                                                           # noqa: E402

LIMIT = 1.2                 # above it a row is marked
THINK = Interruption(10**6, 10**6, 1)


def tiny_model(vocab=50):
    torch.manual_seed(0)
    return accept.prepare(AutoModelForCausalLM.from_config(LlamaConfig(
        vocab_size=vocab, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=2**16,
        tie_word_embeddings=True)))


def rollout(n, group_id=0):
    return Rollout(str(group_id), group_id, (1, 2, 3, 4), [5] * n, [-1.0] * n, [0] * n, [True] * n,
                   "stop", False)


def lengths(n, longest):
    """Log-uniform between 4 and the longest: most samples are short, as in a run."""
    rng = random.Random(0)
    return [longest] + [int(4 * (longest / 4) ** rng.random()) for _ in range(n - 1)]


# -- what is measured: a function of the size gives the call whose cost counts ---------------------

def ranges(n):
    steps = [*range(0, 2 * n, 2)]
    return lambda: symptoms.ranges(steps)


def evaluations(n):
    rows = [{"step": float(i), "C": float(i), "R": .5} for i in range(n)]
    return lambda: readers.evaluations(rows, "C", "R", "x")


def curve(n):
    C = np.geomspace(1, 1e3, n)
    R = fit.sigmoid(C, .8, 1.2, 30., .1) + np.random.default_rng(0).normal(0, .01, n)
    return lambda: fit.fit_curve(C, R, .1, bootstrap=0)


def push(n):
    trained = TrainedModel()
    trained.model = torch.nn.ParameterList([torch.zeros(1) for _ in range(n)])
    trained.team = SimpleNamespace(full_tensor=lambda tensor: tensor)

    def walk():
        trained.__dict__.pop("named_parameters", None)          # as in the first push of a run
        return sum(1 for _ in trained.weights())
    return walk


def read_problems(n):
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "own.jsonl"
    path.write_text("".join(json.dumps({"question": f"{i}+1=?", "answer": str(i + 1)}) + "\n"
                            for i in range(n)))

    def read(_=folder):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            problems.load_splits(str(path), heldout=1000)
    return read


def waiting(n):
    sampler = TransformersSampler(MODEL, None, Interruption(3, 3, 1), slots=8, prompt_tokens=4,
                                  eos_ids=())
    for i in range(n):
        sampler.submit(Request(i, str(i), (1, 2), 1))
    return lambda: [sampler.in_flight for _ in range(1000)]


def pacing(n):
    """A look of the pacer when n prompts a step are outstanding 9 times, and all but P finished."""
    pacer = PipelinePacer(8, n)
    for i in range(9 * n):
        pacer.admit(str(i), i // n, 1).rollouts += [None] * (i % n != 0)
    return lambda: pacer.leaves_enough_time([*pacer.groups.values()][:n], 0)


def lag(k):
    pacer = PipelinePacer(k, 64)
    for i in range(64 * (k + 1)):
        pacer.admit(str(i), i // 64, 1)
    return lambda: pacer.leaves_enough_time([*pacer.groups.values()][:64], 0)


def train(n):
    """Forward and backward of n samples of up to 64 tokens, by rows of 2,048 tokens."""
    rollouts = [rollout(T, i // 8) for i, T in enumerate(lengths(n, 64))]

    def step():
        for indices in packed.micro_batches(rollouts, 2048):
            Policy(MODEL)([rollouts[i] for i in indices])[0].sum().backward()
    return step


def decode(n):
    """Twenty tokens of each of n sequences."""
    sampler = TransformersSampler(MODEL, None, Interruption(19, 19, 1), slots=n, prompt_tokens=4,
                                  eos_ids=())

    def steps():
        for i in range(n // 8):
            sampler.submit(Request(i, str(i), (1, 2, 3), 8))
        while sampler.in_flight:
            sampler.step()
    return steps


def ragged(longest):
    """Forward and backward of 4,096 tokens of samples whose longest has so many."""
    rollouts = [rollout(T, i // 8) for i, T in enumerate(lengths(1000, longest))]
    total, kept = 0, []
    while total < 4096:
        kept.append(rollouts[len(kept)])
        total += len(kept[-1].output_ids)

    def step():
        for indices in packed.micro_batches(kept, 8192):
            Policy(MODEL)([kept[i] for i in indices])[0].sum().backward()
    return step


def answer(n):
    """A server's answer of n tokens: parsed, checked, added to its sample."""
    body = json.dumps({"request_id": "gen-a", "choices": [{
        "token_ids": [7] * n, "finish_reason": "length",
        "weight_versions": [{"start": 0, "end": n, "version": "v"}],
        "logprobs": {"content": [{"token": "token_id:7", "logprob": -1.25, "bytes": None,
                                  "top_logprobs": []} for _ in range(n)]}}]})

    def take():
        own = TwoRequests(None, THINK, slots=1, prompt_tokens=4, eos_ids={1})
        sample, = own.new_samples(Request(0, "0", (1, 2, 3), 1))
        own.absorb(sample, *check_answer(json.loads(body), name="a", asked=n, vocab=50,
                                         eos_ids=[1], pushed={"v": 0}, oldest=0), 0)
    return take


def in_flight(n):
    """n samples of 10 tokens on their way: submitted, absorbed, returned."""
    def take():
        own = TwoRequests(None, THINK, slots=n, prompt_tokens=4, eos_ids={1})
        for i in range(n // 10):
            for sample in own.new_samples(Request(i, str(i), (1, 2, 3), 10)):
                own.absorb(sample, [5] * 9 + [1], [-1.0] * 10, [0] * 10, 0)
        own.state()
        assert len(own.finished()) == n // 10 * 10
    return take


MODEL = None
ROWS = {
    "steps of a log, --report's ranges (s)": (ranges, (10**3, 10**4, 10**5)),
    "evaluations of a log, read (s)": (evaluations, (10**3, 10**4, 10**5)),
    "parameters of a push (s)": (push, (500, 2500, 20000)),
    "problems of a file, read and split (s)": (read_problems, (10**4, 10**5, 10**6)),
    "prompts waiting, 1,000 looks (s)": (waiting, (10**3, 10**5)),
    "prompts a step, a look of the pacer (s)": (pacing, (64, 512, 4096)),
    "k, a look of the pacer (s)": (lag, (8, 64, 512)),
    "tokens of a server's answer (s)": (answer, (1000, 10000, 32768)),
    "requests in flight (s)": (in_flight, (250, 2500)),
    "sequences trained, up to 64 tokens (s)": (train, (256, 1024, 4096)),
    "sequences decoded, 20 tokens (s)": (decode, (256, 1024, 4096)),
    "the longest of 4,096 tokens trained (s)": (ragged, (64, 256, 1024)),
    "points of a fit (s)": (curve, (300, 3000, 30000)),
    "points of a fit (MiB)": (curve, (300, 3000, 30000))}


def cost(row, make, size):
    """Of one row at one size, in the unit of its name."""
    call = make(size)
    if row.endswith("(MiB)"):
        tracemalloc.start()
        call()
        peak = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
        return peak
    took = []
    while len(took) < 3 and sum(took) < 20:
        start = time.process_time()
        call()
        took.append(time.process_time() - start)
    return min(took)


def main():
    global MODEL
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", default="", help="rows whose name has this text")
    args = p.parse_args()
    if not any(args.only in row for row in ROWS):
        p.error(f"--only {args.only!r}: none of {', '.join(ROWS)}")
    torch.set_num_threads(1)
    MODEL = tiny_model()
    print("| cost against | at the sizes | exponent |\n|---|---|---|")
    for row, (make, sizes) in ROWS.items():
        if args.only not in row:
            continue
        costs = [max(cost(row, make, size), 1e-7) for size in sizes]
        exponent = math.log(costs[-1] / costs[-2]) / math.log(sizes[-1] / sizes[-2])
        at = ", ".join(f"{size:,}: {c:.3g}" for size, c in zip(sizes, costs, strict=True))
        print(f"| {row} | {at} | {exponent:.2f}{' **above its work**' * (exponent > LIMIT)} |",
              flush=True)


if __name__ == "__main__":
    main()
