"""Fixtures shared by the tests: small models made on the spot, and fresh random inputs."""

import copy
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

# No test needs the hub; without this line, set before the hub's client is imported, a data set
# that is not there is looked for half a minute.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import packed
import tasks
import toy

ROOT = Path(__file__).parent.parent
torch.set_num_threads(1)
# Processes that need torch are forked from a server that has imported it once. The test process
# itself cannot be forked, because autograd's threads do not survive it.
SPAWN = multiprocessing.get_context("forkserver")
SPAWN.set_forkserver_preload(["torch", "transformers", "accelerate", "scalerl"])


@pytest.fixture
def seed(request):
    """A fresh seed for every run; pytest prints it when the test fails."""
    value = int.from_bytes(os.urandom(3), "big")
    print(f"seed {value}")
    torch.manual_seed(value)
    return value


def random_llama(*, vocab=37, heads=6, kv_heads=2, layers=3, head_dim=8, dtype=torch.float32):
    """A random Llama with grouped heads, in eager attention; sizes pairwise different."""
    config = LlamaConfig(vocab_size=vocab, hidden_size=heads * head_dim, intermediate_size=88,
                         num_hidden_layers=layers, num_attention_heads=heads,
                         num_key_value_heads=kv_heads, head_dim=head_dim,
                         max_position_embeddings=256, tie_word_embeddings=True,
                         attn_implementation="eager")
    model = LlamaForCausalLM(config).to(dtype).eval()
    for parameter in model.parameters():            # the default init predicts almost nothing
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture
def llama(seed):
    return random_llama()


def packed_copy(model):
    """The same weights behind packed attention, to be compared with the plain model."""
    return packed.prepare(copy.deepcopy(model))


@pytest.fixture(scope="session")
def micro(tmp_path_factory):
    """A tiny toy model's folder: it answers in the right form, right about as often as chance."""
    folder = tmp_path_factory.mktemp("micro")
    tokenizer = toy.make_tokenizer()
    model = toy.make_model(tokenizer, seed=0, hidden=64, layers=2)
    problems = tasks.load_task("toy", "train", heldout=64)
    pairs = toy.make_pairs(tokenizer, problems, 2000, noise=0.3, cut_share=0.1, seed=0)
    toy.warm_start(model, tokenizer, pairs, steps=120, lr=3e-3, batch=64, seed=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run_command(args, cwd, **kwargs):
    """A command in a process of its own, as a user would; output captured, always bounded."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *map(str, args)], cwd=cwd, env=env, text=True,
                          capture_output=True, timeout=600, **kwargs)
