"""Whole runs of sharded ranks beside real vLLM servers, killed and resumed with other numbers."""

import json
import os
import pickle
import random
import time
import urllib.request

import pytest
import safetensors.torch
import torch
from conftest import THOROUGH
from ranks import answers, shard_on_cpu, started, wait_for
from served import Served
from conftest import SMALL, arguments, lines
from transformers import AutoModelForCausalLM

from command import main as command_main
from artifacts import checkpoint
from servers.pool import ServerPool
from scaleout.team import Ranks, make_team


def run_main(words, folder):
    """scalerl.py on this rank, sharded. After every push it notes what was sent, and what weights
    the servers have."""
    os.chdir(folder)

    def sharded_team(config):
        team = make_team(config)
        if isinstance(team, Ranks):
            shard_on_cpu(team.plugin)
        return team
    command_main.make_team, push = sharded_team, ServerPool.push

    def push_and_note(pool, named_tensors, version):
        sent = {}
        push(pool, ((name, sent.setdefault(name, tensor.clone()))
                     for name, tensor in named_tensors), version)
        if sent:
            note = folder / f"push_{len(list(folder.glob('push_*.json')))}"
            safetensors.torch.save_file(sent, note.with_suffix(".safetensors"))
            note.with_suffix(".tmp").write_text(json.dumps({
                "version": version, "servers": [checksums(s.url) for s in pool.servers
                                                if s.version == version]}))
            note.with_suffix(".tmp").rename(note.with_suffix(".json"))      # killed any moment
    ServerPool.push = push_and_note
    return command_main.main(words)


def checksums(url):
    """vLLM's own, of the weights as its layers hold them."""
    request = urllib.request.Request(url + "/weight_checker", b'{"action": "checksum"}',
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["checksums"]


@pytest.mark.days(6, turn=4)
def test_sharded_ranks_beside_two_servers_are_killed_and_go_on_with_other_numbers(
        micro, tmp_path, seed):
    """2 ranks with real FSDP2, 2 vLLM servers; SIGKILL to the ranks in the middle. Resumed with
    other numbers of ranks and of servers, and killed again at a random moment (THOROUGH: ten times
    in all); in the end one rank goes on to the last step. After every push of any of them each
    server has, bit for bit, what was sent: the weights of the two ranks' checkpoint among them,
    and in the end those of `model/`. Every group that was ever admitted has been trained once, all
    its samples, or is outstanding."""
    rng, kills = random.Random(seed), 10 if THOROUGH else 2
    servers = [Served(micro, tmp_path / f"server_{i}.log") for i in range(2)]
    folder = tmp_path / "runs" / "s"

    def words(count):
        return arguments(micro, name="s", engine="vllm", steps=6 * kills, eval_every=2,
                         retire_at=1.5, deadline_s=60, gpus=0, slots=20,
                         vllm_url=",".join(server.url for server in servers[:count]))
    try:
        for server in servers:
            server.wait()
        with started(2, run_main, words(2), tmp_path) as (_, results):
            wait_for(folder / "checkpoints" / "step_4", results)
        first = {path.name for path in (folder / "checkpoints" / "step_4").glob("model*")}
        assert first == {"model.00000-of-00002.safetensors", "model.00001-of-00002.safetensors"}
        sharded = AutoModelForCausalLM.from_pretrained(micro, dtype=torch.float32)
        checkpoint.load_training_state(folder / "checkpoints" / "step_4", sharded,
                                       torch.optim.AdamW(sharded.parameters()))
        for kill in range(1, kills):            # by turns 3 or 1 ranks and 1 server, 2 and 2
            size, count = ((3, 1), (2, 2), (1, 1), (2, 2))[(kill - 1) % 4]
            with started(size, run_main, words(count), tmp_path) as (_, results):
                log, deadline = folder / "metrics.jsonl", time.monotonic() + 300
                step = log.read_text().count("\n") + rng.randint(0, 5)
                while log.read_text().count("\n") < step and results.empty():
                    assert time.monotonic() < deadline, folder
                    time.sleep(0.02)
                time.sleep(rng.random())
        with started(1, run_main, words(2), tmp_path) as (children, results):
            assert answers(children, results, {0}) == {0: 0}
        found = [checksums(server.url) for server in servers]
        model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
        pool = ServerPool([server.url for server in servers], slots=4, length=134,
                          vocab=model.config.vocab_size, dtype=torch.float32)
        pool.push(model.named_parameters(), 0)
        assert [checksums(server.url) for server in servers] == found
        # Sent again, last one first and by one process: what the push before leaves is another's.
        pushes = sorted(tmp_path.glob("push_*.json"), key=os.path.getmtime, reverse=True)
        whole = dict(sharded.named_parameters())
        versions, of_checkpoint, before = set(), 0, None
        for number, path in enumerate(pushes, 1):
            note = json.loads(path.read_text())
            sent = safetensors.torch.load_file(path.with_suffix(".safetensors"))
            pool.push(sent.items(), number)
            now = [checksums(server.url) for server in servers]
            assert note["servers"] and all(weights == now[0] == now[1]
                                           for weights in note["servers"])
            assert before is None or (now[0] != before[0]) == any(
                not torch.equal(tensor, before[1][name]) for name, tensor in sent.items())
            before = now[0], sent
            versions.add(note["version"])
            of_checkpoint += all(torch.equal(tensor, whole[name]) for name, tensor in sent.items())
        pool.close()
    finally:
        for server in servers:
            server.kill()

    self_test, *steps = lines(folder)
    assert self_test["mismatch/fp32_head/max_abs_dlogp"] < 1e-4
    assert [r["step"] for r in steps] == list(range(1, 6 * kills + 1))
    assert {r["version"] for r in steps} <= versions and of_checkpoint > 0
    assert max(r["lag/max"] for r in steps) in (1, 2)
    assert steps[0]["lag/max"] == 0
    trained = [g for line in lines(folder, "groups.jsonl") for g in line["groups"]]
    assert all(len(group["rewards"]) == SMALL["samples_per_prompt"] for group in trained)
    pacer = checkpoint.read_state(folder / "checkpoints" / f"step_{6 * kills}")["pacer"]
    outstanding = pickle.loads(pacer["groups"].numpy().tobytes())
    assert sorted([*(group["id"] for group in trained), *outstanding]) == list(
        range(pacer["admitted"]))
