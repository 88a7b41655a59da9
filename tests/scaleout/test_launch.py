"""The launcher: what it would start, what it starts, and that nothing is left.

The last tests start real servers and real trainers, in seconds to minutes.
"""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from conftest import ROOT, THOROUGH
from estimates import estimate_of
from processes import LIMIT_S, gone, tree, until
from transformers import Qwen3Config

from command import main as command_main
from command.main import main
from artifacts import checkpoint
from artifacts.settings import LAUNCHED
from command.options import parse
from config import Config, ConfigError
from scaleout import launch, memory
from tiny import toy

# ---------------------------------------------------------------------------------------------
# What would be started, and what is refused


@pytest.mark.gpu_rehearsal
def test_a_dry_run_says_who_would_run_where_and_starts_and_writes_nothing(eight, tmp_path,
                                                                          monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(a))
    assert main(["--model", str(eight), "--gpus", "8", "--trainers", "4", "--dry-run",
                         "--name", "paper"]) == 0
    text = capsys.readouterr().out
    assert not started and not list(tmp_path.iterdir())
    for part in ('name = "paper"', "8 GPUs: 4 train, 4 generate (4 servers): as asked for",
                 "rank 0, log: the terminal", "rank 3, log: runs/paper/logs/rank_3.log",
                 "runs/paper/logs/server_3.log",
                 "whole sequences fit", "s to train; ", "at the same time", "no GPU here to ask",
                 "CUDA_VISIBLE_DEVICES=0,1,2,3", "CUDA_VISIBLE_DEVICES=7",
                 "WORLD_SIZE=4", "vllm.entrypoints.openai.api_server"):
        assert part in text, part


@pytest.mark.parametrize("settings, sentence", [
    (["--gpus", "2"], r"a trainer does not fit, an H100 .* has 79 GiB: \d+\.\d\d GiB for .*; the "
     "largest is weights"),
    (["--gpus", "8", "--trainers", "7", "--config", "wide.toml"],
     r"a server does not fit, .* weights, \d+\.\d\d GiB for the cache of one .* raise tensor_par"),
])
def test_what_cannot_fit_is_refused_with_the_number_and_the_cure(settings, sentence, eight,
                                                                 tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(memory, "VLLM_MEMORY_SHARE", 0.2)
    (tmp_path / "wide.toml").write_text("prompt_tokens = 99999")
    assert main(["--model", str(eight), *settings, "--dry-run"]) == 2
    assert re.search(sentence, capsys.readouterr().err)


def test_a_dry_run_refuses_what_the_run_would(eight, tmp_path, monkeypatch, capsys):
    """GPUs that torch does not find, even beyond those named in CUDA_VISIBLE_DEVICES; outputs that
    the model has no place for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3")
    config, estimate = estimate_of(eight, gpus=4, trainers=3)
    monkeypatch.setattr(launch, "plan", lambda *_: (estimate, tmp_path))
    launch.describe(config, [])                             # no GPU here: planned for elsewhere
    assert "CUDA_VISIBLE_DEVICES=5,3,2 " in capsys.readouterr().out
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="gpus = 4: torch finds 2 here"):
        launch.describe(config, [])
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    command = ["--model", str(eight), "--gpus", "0", "--servers", "1", "--dry-run"]
    assert main([*command, "--think-max", "41000"]) == 2
    assert re.search(r"think_max = 41000: .* may take \d+ tokens, the model has 40960: lower "
                     r"think_max or answer_tokens by \d+$", capsys.readouterr().err.strip())


def test_a_model_that_the_trainer_would_refuse_is_refused_before_anything_starts(eight, tmp_path):
    shutil.copytree(eight, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {
        "use_sliding_window": True, "sliding_window": 4096}))
    with pytest.raises(ConfigError, match=r"^model = '.*': model config has sliding_window = 4096"):
        estimate_of(tmp_path / "model", gpus=8)


@pytest.mark.gpu_rehearsal
def test_gpus_that_are_there_but_do_not_start_are_refused(monkeypatch, eight):
    """As with a driver too old for torch's CUDA: the devices are counted, but none can be used,
    and a trainer would compute on the CPU for days."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    for gpus in (-1, 1, 8):
        with pytest.raises(ConfigError, match=rf"gpus = {gpus}: .* finds 8 here; is the driver"):
            launch.check_machine(Config(gpus=gpus))
    launch.check_machine(Config(gpus=0))
    config, estimate = estimate_of(eight, gpus=8, trainers=4)
    monkeypatch.setattr(launch, "plan", lambda *_: (estimate, ROOT / "runs" / "none"))
    with pytest.raises(ConfigError, match="is the driver"):
        launch.describe(config, [])


@pytest.mark.parametrize("start", ["launch", "describe"])
def test_servers_without_vllm_are_refused_where_there_are_gpus(start, monkeypatch, eight):
    """A description too: --dry-run on the machine of the run."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda _: None)
    config, estimate = estimate_of(eight, gpus=8, trainers=4)
    monkeypatch.setattr(launch, "plan", lambda *_: (estimate, ROOT / "runs" / "none"))
    with pytest.raises(ConfigError, match="^servers need vllm, which is not installed here"):
        getattr(launch, start)(config, [])


def test_a_rank_that_was_given_gpus_and_finds_none_ends(monkeypatch):
    """Each sees those of its own node's trainers, fewer than `gpus`."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match="gpus = 8: torch finds 0 here"):
        launch.check_machine(Config(gpus=8))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    launch.check_machine(Config(gpus=8))
    launch.check_machine(Config(gpus=-1))


@pytest.mark.gpu_rehearsal
def test_one_gpu_can_be_planned_without_one_as_eight_can(eight, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    command = ["--model", str(eight), "--gpus", "1", "--name", "one", "--slots", "16"]
    assert main([*command, "--dry-run"]) == 2           # 8B and its moments on one H100
    out, error = capsys.readouterr()
    assert "trainer and sampler, on GPU 0" in out and "no GPU here to ask" in out
    assert "a trainer does not fit" in error and not list(tmp_path.iterdir())


def test_one_gpu_recomputes_layers_where_that_makes_room_for_the_default_lengths(tmp_path,
                                                                               monkeypatch):
    """Qwen3-0.6B on an H100: 14k tokens' activations would leave no room for the samples of a
    prompt. What was planned is what runs."""
    toy.make_tokenizer().save_pretrained(tmp_path)
    Qwen3Config(vocab_size=151936, hidden_size=1024, intermediate_size=3072, head_dim=128,
                num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
                max_position_embeddings=40960, tie_word_embeddings=True,
                architectures=["Qwen3ForCausalLM"]).save_pretrained(tmp_path)
    monkeypatch.setattr(launch, "check_machine", lambda _: None)
    for words, recompute in (([], True), (["--think-min", "9", "--think-max", "512"], False)):
        config, _ = parse(["--model", str(tmp_path), "--gpus", "1", "--engine", "vllm",
                                 "--name", "none", *words])
        launch.plan_alone(config)
        assert config.recompute_layers == recompute


def test_one_process_refuses_what_its_dry_run_refuses_and_loads_nothing(eight, tmp_path,
                                                                        monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command_main, "make_run",
                        lambda *_: pytest.fail("it would have been loaded"))
    for more in (["--dry-run"], []):
        assert main(["--model", str(eight), "--gpus", "0", "--slots", str(10**7),
                             "--name", "one", *more]) == 2
        assert re.fullmatch(r"scalerl.py: a trainer does not fit, a CPU .* has \d+ GiB: .*; the "
                            "largest is the sampler's cache: lower slots or think_max",
                            capsys.readouterr().err.strip())
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------------------------------
# Commands


def test_every_node_starts_its_own_ranks_and_servers_and_all_know_each_other(eight, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7,3,2")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ours")
    monkeypatch.setattr(launch, "interface_of", lambda host: f"to {host}")
    hosts = [f"10.0.0.{i}" for i in (1, 2, 3)]
    config, estimate = estimate_of(eight, gpus=4, hosts=",".join(hosts), tls="none", trainers=8,
                                   tensor_parallel=2, port=9000)
    placement = launch.make_placement(config, estimate)
    given = ["--dry-run", "--lr", "1e-6"]

    def on(node):
        config.node_rank = node
        return launch.commands(config, given, placement, estimate, Path("f"), 9000)
    for node in (0, 1):
        estimate.recompute = bool(node)
        trainers, servers = on(node)
        assert not servers and len(trainers) == 4
        for i, trainer in enumerate(trainers):
            rank, words, env = 4 * node + i, " ".join(map(str, trainer.argv)), trainer.env
            assert trainer.name == f"rank {rank}"
            assert trainer.log == (Path(f"f/logs/rank_{rank}.log") if rank else None)
            assert words.endswith("scalerl.py --lr 1e-6 --vllm-url http://10.0.0.3:9010,http://10."
                                  "0.0.3:9011" + " --recompute-layers true" * node)
            assert [env[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
                                           "MASTER_ADDR", "MASTER_PORT")] == \
                [str(rank), str(i), "8", "4", "10.0.0.1", "9000"]
            assert env["CUDA_VISIBLE_DEVICES"] == "6,7,3,2"
            assert env[LAUNCHED] == "http://10.0.0.3:9010,http://10.0.0.3:9011"
            assert env["GLOO_SOCKET_IFNAME"] == f"to {hosts[node]}"
            assert env["NCCL_SOCKET_IFNAME"] == "ours"
    trainers, servers = on(2)
    assert not trainers and len(servers) == 2
    assert [server.env["CUDA_VISIBLE_DEVICES"] for server in servers] == ["6,7", "3,2"]
    for i, server in enumerate(servers):
        assert server.log == Path(f"f/logs/server_{i}.log") and LAUNCHED not in server.env
        assert f"--port {9010 + i} " in " ".join(map(str, server.argv))
        assert server.env["GLOO_SOCKET_IFNAME"] == "to 10.0.0.3"


def test_servers_that_others_started_are_not_taken_for_the_launchers_own(eight):
    """Else --resume would not know them any more, and start its own."""
    config, estimate = estimate_of(eight, gpus=0, trainers=2, vllm_url="http://127.0.0.1:1")
    placement = launch.make_placement(config, estimate)
    trainers, servers = launch.commands(config, [], placement, estimate, Path("f"), 1)
    assert not servers and [trainer.env[LAUNCHED] for trainer in trainers] == ["", ""]
    assert not any("--vllm-url" in trainer.argv for trainer in trainers)    # argv has the user's


def test_processes_that_share_a_machines_cores_share_them_evenly(eight, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(11))
    config, estimate = estimate_of(eight, gpus=0, servers=2, trainers=1)
    placement = launch.make_placement(config, estimate)
    (trainer,), servers = launch.commands(config, [], placement, estimate, Path("f"), None)
    assert [child.env["OMP_NUM_THREADS"] for child in (trainer, *servers)] == ["3"] * 3
    assert trainer.argv[1].endswith("scalerl.py") and "RANK" not in trainer.env     # only one


def test_only_one_process_launches(monkeypatch):
    for name in ("RANK", LAUNCHED):
        monkeypatch.delenv(name, raising=False)
    several = [Config(gpus=2), Config(servers=1), Config(trainers=2), Config(hosts="a,b")]
    assert all(map(launch.wanted, several))
    assert not any(launch.wanted(Config(gpus=gpus, trainers=1)) for gpus in (-1, 0, 1))
    for name in ("RANK", LAUNCHED):
        monkeypatch.setenv(name, "0")
        assert not any(map(launch.wanted, several))
        monkeypatch.delenv(name)


def test_the_slurm_script_hands_each_node_its_own_rank_and_every_word_whole(tmp_path):
    """Over stand-ins for Slurm's commands: there is no cluster here. A node that fails does not
    make Slurm kill the others, who have a checkpoint to write first."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    srun = 'test "$1 $2" = "--kill-on-bad-exit=0 --cpu-bind=none" && shift 2 && exec "$@"'
    for name, body in {"scontrol": "printf '%s\\n' n1 n2", "srun": srun,
                       ".venv/bin/python": "printf '%s\\n' \"$@\""}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    given = ["--model", "a b", "--task-options", '{"x": 1}']
    done = subprocess.run(
        ["bash", ROOT / "configs/slurm.sh", *given], cwd=tmp_path, check=True, text=True,
        capture_output=True, timeout=LIMIT_S, env=os.environ | {
            "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_GPUS_ON_NODE": "8", "SLURM_NODEID": "1"})
    script, *words = done.stdout.splitlines()
    config, _ = parse(words)
    assert script == "scalerl.py" and words[4:8] == given
    assert (config.hosts, config.node_rank, config.gpus, config.tls) == ("n1,n2", 1, 8, "certs")


# ---------------------------------------------------------------------------------------------
# Real servers, real trainers


def command(micro, **changes):
    settings = {"model": micro, "name": "r", "gpus": 0, "servers": 1, "trainers": 1,
                "steps": 5000, "prompts_per_step": 3, "samples_per_prompt": 4, "slots": 16,
                "think_min": 8, "think_max": 22, "answer_tokens": 3, "prompt_tokens": 40,
                "heldout_prompts": 8, "eval_samples": 2, "eval_every": 5000,
                "off_policy": "pipeline-3", "lr": 1e-5,
                "retire_at": 1.1, "deadline_s": 300} | changes
    return [sys.executable, ROOT / "scalerl.py", *(
        str(word) for name, value in settings.items()
        for word in (f"--{name.replace('_', '-')}", value))]


@contextlib.contextmanager
def running(folder, *commands):
    """These launchers, killed at the end with all below them. Yields [Popen]; what they say is
    in launcher.log, launcher1.log, ... in `folder`, where they all run."""
    processes, seen = [], set()
    try:
        for i, words in enumerate(commands):
            with open(folder / f"launcher{i or ''}.log", "ab") as log:
                processes.append(subprocess.Popen(
                    [*map(str, words)], cwd=folder, stdout=log, stderr=log,
                    env=os.environ | {"OMP_NUM_THREADS": "1"}))
        yield processes
    finally:
        for process in processes:
            seen.update(tree(process))
        for p in seen:
            with contextlib.suppress(psutil.NoSuchProcess):
                p.kill()
        for process in processes:
            process.wait(LIMIT_S)


def steps(folder):
    path = folder / "runs" / "r" / "metrics.jsonl"
    return [json.loads(line)["step"] for line in path.read_text().splitlines()] \
        if path.exists() else []


def steps_reach(folder, process, count, limit_s=300):
    """Wait for `count` lines in the log."""
    def reached():
        assert process.poll() is None, (folder / "launcher.log").read_text()
        return len(steps(folder)) >= count
    until(reached, f"{count} steps; {folder / 'launcher.log'}:\n"
          + (folder / "launcher.log").read_text()[-2000:], limit_s)


def nothing_is_lost(folder, step=None):
    """Every group that was ever admitted has been trained once or is in the checkpoint: of this
    step, or of the last one in the log."""
    run, last = folder / "runs" / "r", steps(folder)[-1] if step is None else step
    assert [s for s in steps(folder) if s <= last] == list(range(last + 1))
    state = checkpoint.read_state(run / "checkpoints" / f"step_{last}")
    assert not list(run.glob("**/.*.tmp"))              # nor is anything half-written
    lines = map(json.loads, (run / "groups.jsonl").read_text().splitlines())
    trained = [group["id"] for line in lines if line["step"] <= last for group in line["groups"]]
    assert sorted(trained + [group["group_id"] for group in state["pacer"]["groups"]]) == list(
        range(state["pacer"]["admitted"]))
    # And of every outstanding one all samples: finished ones, and those to be asked for again.
    unfinished = {r["group_id"]: r["samples"] for r in state["sampler"]["requests"]}
    assert all(len(group["rollouts"]) + unfinished.get(group["group_id"], 0) == group["size"]
               for group in state["pacer"]["groups"])


def find(processes, word):
    """The processes, reapers aside, with this word in their command."""
    found = []
    for p in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            line = p.cmdline()
            if any(word in part for part in line) and not any("supervise.py" in w for w in line):
                found.append(p)
    return found


def test_a_killed_server_is_replaced_and_no_end_leaves_a_process_of_vllm(micro, tmp_path, seed):
    """One run: its server killed, then Ctrl-C; resumed on two ranks, a rank killed while vLLM is
    still starting (in the middle of a run: test_ranks.py). THOROUGH: between the two, the whole
    tree of processes is killed at ten random moments, with two ranks and two servers or one of
    each by turns; the set of groups and samples stays complete."""
    with running(tmp_path, command(micro)) as (process,):
        steps_reach(tmp_path, process, 4)
        processes = tree(process)
        server, = find(processes, "api_server")
        assert find(processes, "EngineCore")
        server.kill()
        until(lambda: "is started again: server 0" in (tmp_path / "launcher.log").read_text(),
              "a restart")
        steps_reach(tmp_path, process, len(steps(tmp_path)) + 9)    # beyond what was in flight
        processes += tree(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
        assert gone(processes)
    nothing_is_lost(tmp_path)
    rng = random.Random(seed)
    for kill in range(10 if THOROUGH else 0):
        several = 2 - kill % 2
        words = command(micro, servers=several, trainers=several, eval_every=2)
        moment = len(steps(tmp_path)) + rng.randint(1, 6)
        early = time.monotonic() + rng.uniform(0, 60) if rng.random() < 0.3 else float("inf")
        with running(tmp_path, [*words, "--resume"]) as (process,):
            until(lambda: len(steps(tmp_path)) >= moment or time.monotonic() > early,   # noqa: B023
                  f"kill {kill}", 300)
            assert process.poll() is None
            time.sleep(rng.random() * rng.choice([0.1, 1, 5]))
        print(f"kill {kill}: {several} ranks and servers, {len(steps(tmp_path)) - 1} steps")
    if THOROUGH:
        with running(tmp_path, [*command(micro), "--resume"]) as (process,):
            steps_reach(tmp_path, process, len(steps(tmp_path)) + 9)
            process.send_signal(signal.SIGINT)
            assert process.wait(LIMIT_S) == 130
        nothing_is_lost(tmp_path)
    assert 'vllm_url = ""' in (tmp_path / "runs" / "r" / "config.toml").read_text()

    again = [*command(micro, trainers=2), "--resume"]
    with running(tmp_path, again) as (process,):
        def rank_1():
            with contextlib.suppress(psutil.NoSuchProcess):     # a parent wins over its fork
                ranks = {p.environ().get("RANK"): p
                         for p in reversed(find(tree(process), "scalerl.py"))}
                return {"0", "1"} <= set(ranks) and find(tree(process), "EngineCore") and ranks["1"]
        rank = until(rank_1, (tmp_path / "launcher.log").read_text(), 300)
        processes = tree(process)
        rank.kill()
        assert process.wait(LIMIT_S) == 1
        assert gone(processes)
    assert steps(tmp_path) == list(range(len(steps(tmp_path))))
    log = (tmp_path / "launcher.log").read_text()
    assert "rank 1 has ended with exit status 137 (killed" in log and "Traceback" not in log


@pytest.fixture
def hosts():
    """Three network namespaces on a switch, as three machines: (names, addresses, cable), where
    cable("c", "down") cuts the last one off. Skips where namespaces are not allowed."""
    names = [f"scalerl{os.getpid()}{side}" for side in "abc"]
    addresses = ["10.77.0.1", "10.77.0.2", "10.77.0.3"]

    def ip(*words, check=True):
        return subprocess.run(["ip", *words], check=check, capture_output=True, text=True,
                              timeout=LIMIT_S)
    try:
        try:
            for name in names:
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
            ip("-n", names[0], "link", "add", "wire", "type", "bridge")
            for name in names[1:]:
                port = f"to{name[-1]}"
                ip("link", "add", port, "netns", names[0], "type", "veth", "peer", "name", "wire",
                   "netns", name)
                ip("-n", names[0], "link", "set", port, "master", "wire", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {getattr(error, 'stderr', error)}")
        for name, address in zip(names, addresses):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "wire")
            ip("-n", name, "link", "set", "wire", "up")
        yield names, addresses, lambda side, state: ip("-n", names[0], "link", "set", f"to{side}",
                                                       state)
    finally:
        for name in names:
            ip("netns", "del", name, check=False)


@pytest.fixture
def certs(tmp_path):
    """`make certs` for the addresses of these tests."""
    folder = tmp_path / "certs"
    subprocess.run(["make", "-s", "certs", "HOSTS=127.0.0.1,10.77.0.1,10.77.0.2,10.77.0.3",
                    f"CERTS={folder}"], cwd=ROOT, check=True, capture_output=True, timeout=LIMIT_S)
    assert {p.name for p in folder.iterdir()} == {"ca.pem", "cert.pem", "key.pem"}
    return folder


def test_three_hosts_with_mutual_tls_wait_out_a_cut_cable_and_end_if_it_stays_cut(
        micro, hosts, certs, tmp_path):
    """Two with a trainer rank each, one with a server, nothing but a network between them. The
    server's cable is cut: the run pauses with a sentence. Back again, it goes on. Cut for good,
    every launcher ends at the deadline, and rank 0 says which server, which version, and what it
    has saved. Resumed, the other trainer's cable is cut: nobody can save then, so the sentence
    says which rank and where it can go on from. Nothing is lost, nothing is done twice."""
    names, addresses, cable = hosts
    words = command(micro, hosts=",".join(addresses), tls=certs, trainers=2, deadline_s=40,
                    eval_every=3)
    launchers = [["ip", "netns", "exec", names[i], *words, "--node-rank", i] for i in range(3)]
    said = lambda: (tmp_path / "launcher.log").read_text()                     # noqa: E731

    def cut_for_good(side):
        """Returns the step that the run says it can go on from, and its sentence."""
        seen = [p for process in processes for p in tree(process)]
        assert find(seen, "EngineCore")
        cable(side, "down")
        until(lambda: all(process.poll() is not None for process in processes), said(), 240)
        assert [process.returncode for process in processes] == [1, 1, 1]
        assert gone(seen)
        cable(side, "up")
        sentence, = re.findall("^scalerl.py: step .*", said(), re.MULTILINE)[-1:]
        found = re.search(r"; --resume goes on from runs/r/checkpoints/step_(\d+)$", sentence)
        return int(found[1]), sentence

    with running(tmp_path, *launchers) as processes:
        steps_reach(tmp_path, processes[0], 4)
        cable("c", "down")
        time.sleep(15)                      # a pause, far below the deadline
        during = len(steps(tmp_path))
        cable("c", "up")
        steps_reach(tmp_path, processes[0], during + 9)
        step, sentence = cut_for_good("c")
    assert re.search(r"generate, version \d+: no server is ready since 40 s; "
                     r"https://10.77.0.3:8110 is lost: ", sentence)
    assert step == steps(tmp_path)[-1]
    nothing_is_lost(tmp_path)

    again = [[*words, "--resume"] for words in launchers]
    with running(tmp_path, *again) as processes:
        steps_reach(tmp_path, processes[0], step + 9)
        later, sentence = cut_for_good("b")
    assert re.search(r"version \d+: .*rank 1 is dead, stuck or cut off", sentence)
    last = steps(tmp_path)[-1]
    assert step < later and later in (last // 3 * 3, last - 3)      # or it was being written
    nothing_is_lost(tmp_path, later)

    if THOROUGH:
        with running(tmp_path, *again) as processes:
            steps_reach(tmp_path, processes[0], later + 9)
            processes[0].send_signal(signal.SIGINT)
            assert [process.wait(LIMIT_S) for process in processes] == [130, 130, 130]
        nothing_is_lost(tmp_path)
