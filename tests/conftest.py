"""Fixtures shared by the tests: small models made on the spot, and fresh random inputs."""

import copy
import datetime
import fcntl
import gc
import json
import multiprocessing
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace

# No test needs the hub; without this line, set before the hub's client is imported, a data set
# that is not there is looked for half a minute.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"            # of the processes that tests start

import pytest
import torch
from transformers import (AutoConfig, AutoModelForCausalLM, DynamicCache, LlamaConfig,
                          LlamaForCausalLM, Qwen3Config)

from bench.chaos import make_model
from engines import accept
from study import toy
from sampler import Request, Rollout

ROOT = Path(__file__).parent.parent
# THOROUGH=1 in the environment: by hand, minutes more of kills and starts than CI has time for.
THOROUGH = bool(int(os.environ.get("THOROUGH", "0")))
# The gate has twenty minutes: of the long tests it takes another part each day. EVERY=1: all.
EVERY = bool(int(os.environ.get("EVERY", "0")))
DAY = datetime.date.today().toordinal()         # not random: every process collects the same
ANOTHER_DAY = "it takes long, and its day is another (EVERY=1, or its file by name: all)"
torch.set_num_threads(1)
# Processes that need torch are forked from a server that has imported it once. The test process
# itself cannot be forked, because autograd's threads do not survive it.
SPAWN = multiprocessing.get_context("forkserver")
SPAWN.set_forkserver_preload(["torch", "transformers", "accelerate", "scalerl"])


def wait_for_their_day(items):
    """`@pytest.mark.days(4, turn=1)`: in the whole suite on each fourth day. Without `turn` the
    cases of a list have their days one after the other."""
    cases = Counter()
    for item in items:
        if mark := item.get_closest_marker("days"):
            turn = mark.kwargs.get("turn", cases[item.path, item.originalname])
            cases[item.path, item.originalname] += 1
            if (DAY + turn) % mark.args[0]:
                item.add_marker(pytest.mark.skip(reason=ANOTHER_DAY))


def pytest_collection_modifyitems(config, items):
    """A file goes to one process as a whole: the long ones first. With one of them at the end, one
    process works and the others have none left. Servers not beside the launcher."""
    if not (EVERY or THOROUGH or config.option.file_or_dir or config.option.markexpr):
        wait_for_their_day(items)
    first = [f"test_{name}.py" for name in (
        "launch vllm_inprocess run platforms fit cheats vllm_servers team sharded_run families "
        "tour solutions rehearsal server_pool sandbox own_reward").split()]
    items.sort(key=lambda item: first.index(item.path.name) if item.path.name in first else 99)


def pytest_collection_finish():
    """Modules and tests stay to the end: no collection of garbage need look at them again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()               # else triton's bindings tell of leaks while Python ends


def pytest_terminal_summary(terminalreporter):
    """One line: how many tests were skipped, and why; the reasons say what would run them."""
    reasons = Counter(report.longrepr[-1].removeprefix("Skipped: ")
                      for report in terminalreporter.stats.get("skipped", ()))
    if reasons:
        terminalreporter.write_line(f"{reasons.total()} skipped: " + "; ".join(
            f"{n}: {reason}" for reason, n in reasons.most_common()))


@pytest.fixture
def seed(request):
    """A fresh seed for every run, or that of SEED=; pytest prints it when the test fails."""
    value = int(os.environ.get("SEED") or int.from_bytes(os.urandom(3), "big"))
    print(f"seed {value}")
    torch.manual_seed(value)
    return value


def random_llama(*, vocab=37, heads=6, kv_heads=2, layers=3, head_dim=8, hidden=None,
                 dtype=torch.float32, family=LlamaConfig):
    """A random Llama, or a relative of it, with grouped heads, in eager attention; sizes pairwise
    different."""
    config = family(vocab_size=vocab, hidden_size=hidden or heads * head_dim,
                    intermediate_size=88, num_hidden_layers=layers, num_attention_heads=heads,
                    num_key_value_heads=kv_heads, head_dim=head_dim, max_position_embeddings=256,
                    tie_word_embeddings=True, attn_implementation="eager")
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    for parameter in model.parameters():            # the default init predicts almost nothing
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture
def llama(seed):
    return random_llama()


def packed_copy(model):
    """The same weights behind packed attention, to be compared with the plain model."""
    return accept.prepare(copy.deepcopy(model))


@pytest.fixture(scope="session")
def micro(tmp_path_factory):
    """A tiny toy model's folder: it answers in the right form, right about as often as chance.
    Made once, by the first of the test processes that asks for it; nobody writes into it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "micro"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)                # until the file is closed
        if not folder.exists():
            make_model(f"{folder}.tmp")
            os.rename(f"{folder}.tmp", folder)
    return folder


@pytest.fixture(scope="session")
def eight(tmp_path_factory):
    """The shape of an 8B model, config.json and a tokenizer: no weights."""
    folder = tmp_path_factory.mktemp("eight")
    Qwen3Config(vocab_size=151936, hidden_size=4096, intermediate_size=12288,
                num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
                max_position_embeddings=40960, tie_word_embeddings=False,
                architectures=["Qwen3ForCausalLM"]).save_pretrained(folder)
    toy.make_tokenizer().save_pretrained(folder)
    return folder


def rollouts_of(P, G, rng, vocab=30, version=3):
    """Groups of random samples with random provenance: the tokens of a sample are of several
    versions below `version`; every second sample was interrupted, every fifth was truncated."""
    rollouts = []
    for p in range(P):
        prompt = tuple(rng.randrange(vocab) for _ in range(rng.randrange(3, 9)))
        for g in range(G):
            interrupted, truncated = (p + g) % 2 == 1, (p + g) % 5 == 4
            n = rng.randrange(3 if interrupted else 2, 15)
            # The phrase: not the first token, and not the last.
            start, end = sorted(rng.sample(range(1, n), 2)) if interrupted else (n, n)
            sampled = [not start <= t < end for t in range(n)]
            rollouts.append(Rollout(
                f"p{p}", p, prompt, [rng.randrange(vocab) for _ in range(n)],
                [-rng.random() * 5 if s else 0.0 for s in sampled],
                [0, *sorted(rng.randrange(version) for _ in range(n - 2)), version - 1], sampled,
                "length" if truncated else "stop", interrupted))
    return rollouts


def run_command(args, cwd, **kwargs):
    """A command in a process of its own, as a user would; output captured, always bounded."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *map(str, args)], cwd=cwd, env=env, text=True,
                          capture_output=True, timeout=600, **kwargs)


# ---------------------------------------------------------------------------------------------
# What all engines promise: budgets 9..17 and 4, the phrase 30 31 7, and 7 is </think>

def methods_of_an_engine():
    """The names in the table of CONTRIBUTING.md."""
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## Add an engine")[2]
    return set(re.findall(r"^\| `(\w+)", section, re.MULTILINE))


V, EOS = 37, 1
WORDS = SimpleNamespace(decode=lambda ids: "".join("</think>" if i == 7 else "x" for i in ids))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random Llama as a folder, with grouped heads of a size that vLLM's CPU kernels have."""
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=V, hidden_size=96, intermediate_size=88, num_hidden_layers=2, head_dim=32,
        num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=512,
        tie_word_embeddings=True, eos_token_id=EOS))
    for parameter in model.parameters():            # the default init predicts almost nothing
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    path = tmp_path_factory.mktemp("llama")
    model.save_pretrained(path)
    return path


@pytest.fixture
def plain(folder, seed):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


# Families that vLLM computes in a way of their own: packed experts, and transformers' own class.
VLLM_FAMILIES = {"qwen3_moe": {"head_dim": 32, "num_experts": 5, "num_experts_per_tok": 2,
                               "moe_intermediate_size": 64},
                 "olmo2": {"hidden_size": 192}}


def of_family(family, folder):
    """A random model of another family of transformers, written to the folder."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{
        "vocab_size": V, "hidden_size": 96, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "eos_token_id": EOS, "bos_token_id": 0, "pad_token_id": 0} | VLLM_FAMILIES[family])).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(folder)
    return model


def requests(n, samples=3, length=None):
    return [Request(i, f"p{i}", tuple(torch.randint(2, V, (length or 3 + 5 * i,)).tolist()),
                    samples) for i in range(n)]


def drain(sampler, submit=()):
    for request in submit:
        sampler.submit(request)
    rollouts = []
    while sampler.in_flight:
        rollouts += sampler.step()
    return rollouts


@torch.no_grad()
def plain_logprobs(model, rollout, temperature=1.0):
    """Log-probs of the output tokens from one plain forward over prompt and output."""
    ids = torch.tensor([[*rollout.prompt_ids, *rollout.output_ids]])
    logprobs = (model(ids).logits[0, :-1] / temperature).log_softmax(-1)
    return logprobs.gather(1, ids[0, 1:, None])[len(rollout.prompt_ids) - 1:, 0]


@torch.no_grad()
def swapped_logprobs(old, new, rollout, n):
    """Log-probs of the output tokens from the n-th on, if it is the first that `new` produced:
    new weights read token n - 1 themselves, over transformers' own cache of what `old` computed
    for the prompt and the tokens before it."""
    cache = DynamicCache()
    prefix = torch.tensor([[*rollout.prompt_ids, *rollout.output_ids[:n - 1]]])
    old(prefix, past_key_values=cache, use_cache=True)
    rest = torch.tensor([rollout.output_ids[n - 1:-1]])
    mixed = new(rest, past_key_values=cache, use_cache=True).logits[0].log_softmax(-1)
    return mixed.gather(1, torch.tensor(rollout.output_ids[n:])[:, None])[:, 0]


def errors(model, rollouts, temperature=1.0):
    """|difference| of every sampled token's log-prob, engine against plain forward."""
    return torch.cat([
        (plain_logprobs(model, r, temperature) - torch.tensor(r.behavior_logprobs)).abs()[
            torch.tensor(r.sampled)] for r in rollouts])


def moved(model, by):
    """A copy with every weight moved by `by` of its tensor's standard deviation."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            if parameter.ndim > 1:
                parameter += by * parameter.std() * torch.randn_like(parameter)
    return other


def check_cut_thinking(rollouts, eos=EOS):
    """Some samples were interrupted at each of the nine budgets, at several in one group; the
    others ended their thinking by themselves; forced tokens, and only they, are marked; answers
    have their own budget."""
    cut, budgets, of_group = [r for r in rollouts if r.interrupted], Counter(), defaultdict(set)
    assert 0 < len(cut) < len(rollouts)
    for r in rollouts:
        assert len(r.output_ids) == len(r.behavior_logprobs) == len(r.versions) == len(r.sampled)
        assert r.interrupted == (not all(r.sampled))
        assert (r.finish_reason == "stop") == (r.output_ids[-1] == eos)
        if not r.interrupted and len(r.output_ids) > 17:
            assert 7 in r.output_ids[:17]
    for r in cut:
        start = r.sampled.index(False)
        budgets[start] += 1
        of_group[r.group_id].add(start)
        assert 9 <= start <= 17 and 7 not in r.output_ids[:start]
        assert r.output_ids[start: start + 3] == [30, 31, 7]
        assert r.sampled == [not start <= t < start + 3 for t in range(len(r.sampled))]
        assert r.behavior_logprobs[start: start + 3] == [0, 0, 0]
        answer = len(r.output_ids) - start - 3
        assert answer == 4 if r.finish_reason == "length" else 1 <= answer <= 4
    assert set(budgets) == set(range(9, 18))
    assert any(len(starts) > 1 for starts in of_group.values())


# ---------------------------------------------------------------------------------------------
# A run as small as it can be with something to do for every part of the recipe

SMALL = {"prompts_per_step": 4, "samples_per_prompt": 4, "slots": 24, "think_min": 8,
         "think_max": 22, "answer_tokens": 3, "prompt_tokens": 40, "heldout_prompts": 8,
         "eval_samples": 2, "eval_every": 3,
         "lr": 1e-3, "warmup_steps": 2, "steps": 8, "off_policy": "pipeline-2",
         "retire_at": 0.25, "task_options": '{"size": 24}',
         "engine": "transformers"}          # whose runs repeat bit for bit, killed or not


def arguments(model, **changes):
    """The command line of a small run."""
    settings = SMALL | {"model": model} | changes
    return [w for name, value in settings.items()
            for w in (f"--{name.replace('_', '-')}", str(value))]


def lines(folder, name="metrics.jsonl"):
    """A log of a run's folder."""
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]
