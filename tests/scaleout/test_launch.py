"""The launcher: what it would start, what it starts, and that nothing is left.

The last tests start real servers and real trainers, in seconds to minutes.
"""

import contextlib
import json
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

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
from artifacts.run_folder import RunFolder
from artifacts.settings import LAUNCHED
from command.options import parse
from config import Config, ConfigError
from scaleout import launch, memory, team
from servers.server import CALL_S
from study import toy

# ---------------------------------------------------------------------------------------------
# What would be started, and what is refused


def test_a_world_size_without_a_rank_is_nobodys_job(monkeypatch):
    """A scheduler's shell may have it set; without RANK this process is one of one."""
    made = []
    monkeypatch.setattr(team, "Ranks", lambda config: made.append("ranks"))
    for environment, expected in (({"WORLD_SIZE": "2"}, 0), ({"RANK": "0"}, 0),
                                  ({"RANK": "0", "WORLD_SIZE": "1"}, 0),
                                  ({"RANK": "1", "WORLD_SIZE": "2"}, 1)):
        monkeypatch.delenv("RANK", raising=False)
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        found = team.make_team(Config(model="m"))
        assert len(made) == expected and (found is None) == bool(expected)


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
                 "whole sequences fit", "no GPU here to ask",
                 "CUDA_VISIBLE_DEVICES=0,1,2,3", "CUDA_VISIBLE_DEVICES=7",
                 "WORLD_SIZE=4", " -P -m vllm.entrypoints.openai.api_server"):
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
    monkeypatch.setattr(launch, "plan", lambda *_: estimate)
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
    assert main([*command, "--task", "nowhere.jsonl"]) == 2
    assert capsys.readouterr().err == ("scalerl.py: task 'nowhere.jsonl' cannot be read: there is "
                                       "no such file\n")


def test_a_model_that_the_trainer_would_refuse_is_refused_before_anything_starts(eight, tmp_path):
    shutil.copytree(eight, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    settings = json.loads(path.read_text())
    del settings["layer_types"]                 # Qwen3's: a config of Bamba takes none
    path.write_text(json.dumps(settings | {"model_type": "bamba", "mamba_n_heads": 128}))
    with pytest.raises(ConfigError, match=r"^model = '.*': its config has model_type = bamba"):
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
    monkeypatch.setattr(launch, "plan", lambda *_: estimate)
    with pytest.raises(ConfigError, match="is the driver"):
        launch.describe(config, [])


@pytest.mark.parametrize("start", ["launch", "describe"])
def test_servers_without_vllm_are_refused_where_there_are_gpus(start, monkeypatch, eight):
    """A description too: --dry-run on the machine of the run."""
    config, estimate = estimate_of(eight, gpus=8, trainers=4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(launch, "plan", lambda *_: estimate)
    with pytest.raises(ConfigError, match="^servers need vllm, which is not installed here"):
        getattr(launch, start)(config, [])


def test_a_trainer_on_a_gpu_needs_vllm_for_the_servers_of_others_too(monkeypatch):
    """Of its NCCL channel. On a CPU weights go over HTTP."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda _: None)
    for cuda in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)       # noqa: B023
        with pytest.raises(ConfigError, match="^servers need vllm") if cuda else \
                contextlib.nullcontext():
            launch.check_machine(Config(vllm_url="@servers.txt", gpus=-1 if cuda else 0))


def test_a_rank_that_was_given_gpus_and_finds_none_ends(monkeypatch):
    """Each sees those of its own node's trainers, fewer than `gpus`."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    config = Config(gpus=8, vllm_url="http://a:8000")
    with pytest.raises(ConfigError, match="gpus = 8: torch finds 0 here"):
        launch.check_machine(config)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    launch.check_machine(config)
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


@pytest.mark.parametrize("rank", [None, "1"])
def test_every_trainer_asks_torch_for_segments_that_grow_unless_the_user_has_set_it(
        rank, monkeypatch):
    """One process, a rank of ours and one of torchrun: all come this way, before a model."""
    if rank:
        monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(launch, "check_machine", lambda _: None)
    monkeypatch.setattr(launch, "plan", lambda _: SimpleNamespace(
        refuse=lambda *_: None, recompute=False))
    for before, after in ((None, "expandable_segments:True"), ("mine:1", "mine:1")):
        with monkeypatch.context() as m:
            m.setenv("PYTORCH_ALLOC_CONF", before or "")        # so that it is put back
            if not before:
                m.delenv("PYTORCH_ALLOC_CONF")
            launch.plan_alone(Config())
            assert os.environ["PYTORCH_ALLOC_CONF"] == after


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


def test_ranks_are_started_as_torchrun_would_start_them_beside_their_servers(eight, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7,3,2,9,1")
    monkeypatch.setenv("RANK", "5")
    config, estimate = estimate_of(eight, gpus=6, trainers=2, tensor_parallel=2)
    placement = launch.make_placement(config, estimate)
    estimate.recompute = True
    trainers, servers = launch.commands(config, ["--dry-run", "--lr", "1e-6"], placement, estimate,
                                        Path("f"), 9000)
    urls = ",".join(placement.servers)
    assert len(trainers) == len(servers) == 2
    for rank, trainer in enumerate(trainers):
        words, env = " ".join(map(str, trainer.argv)), trainer.env
        assert trainer.name == f"rank {rank}"
        assert trainer.log == (Path(f"f/rank_{rank}.log") if rank else None)
        assert words.endswith(f"scalerl.py --lr 1e-6 --vllm-url {urls} --recompute-layers true")
        assert [env[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
                                       "MASTER_ADDR", "MASTER_PORT")] == \
            [str(rank), str(rank), "2", "2", "127.0.0.1", "9000"]
        assert env["CUDA_VISIBLE_DEVICES"] == "6,7" and env[LAUNCHED] == urls
    assert [server.env["CUDA_VISIBLE_DEVICES"] for server in servers] == ["3,2", "9,1"]
    for i, (server, url) in enumerate(zip(servers, placement.servers)):
        assert server.log == Path(f"f/server_{i}.log") and LAUNCHED not in server.env
        assert server.hangs == Path(f"runs/none/logs/{url[7:]}.hangs")      # as the pool calls it
        words = " ".join(map(str, server.argv))
        assert f"--port {url[-5:]} " in words
        assert f"--gpu-memory-utilization {memory.VLLM_MEMORY_SHARE} " in f"{words} "


def test_servers_that_others_started_are_not_taken_for_the_launchers_own(eight):
    """Else a run that goes on would not know them any more, and start its own."""
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


def test_only_a_process_that_nobody_has_started_as_a_rank_launches(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    several = [Config(gpus=2), Config(servers=1), Config(trainers=2)]
    assert all(map(launch.wanted, several))
    assert not any(launch.wanted(Config(gpus=gpus, trainers=1)) for gpus in (-1, 0, 1))
    monkeypatch.setenv("RANK", "0")
    assert not any(map(launch.wanted, several))


def test_a_rank_of_somebody_else_s_job_does_not_forget_what_it_was_asked_for(monkeypatch):
    """Kubeflow sets RANK in every pod: --gpus 8 trained on one."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for config in (Config(gpus=2), Config(servers=1), Config(trainers=2)):
        with pytest.raises(ConfigError, match="^RANK is set here"):
            launch.check_machine(config)
    launch.check_machine(Config(gpus=0, servers=1, vllm_url="http://a:8000"))
    launch.check_machine(Config(gpus=0))            # alone, as torchrun --nproc-per-node 1
    monkeypatch.setenv("WORLD_SIZE", "2")           # who would generate?
    with pytest.raises(ConfigError, match="^RANK is set here"):
        launch.check_machine(Config(gpus=0))


def test_the_slurm_script_serves_on_some_nodes_and_hands_each_rank_every_word_whole(tmp_path):
    """Over stand-ins for Slurm's commands: there is no cluster here. A rank that fails does not
    make Slurm kill the others, who have a sentence to say first."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    srun = """
        while [[ $1 == --* ]]; do
            [[ $1 == --nodelist=* ]] && nodes=${1#*=}
            echo "$1" >> "options $nodes"
            shift
        done
        export SLURM_PROCID=9 SLURM_LOCALID=1
        # The script ends the servers when the trainers have ended: not before theirs are written.
        while [[ $nodes == *,* && ! ( -e "done n3" && -e "done n4" ) ]]; do sleep 0.05; done
        "$@" > "words $nodes"
        touch "done $nodes" """
    python = """printf '%s\\n' "$@"
        env | grep -E '^(RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR)=' | sort"""
    for name, body in {"scontrol": "printf '%s\\n' n1 n2 n3 n4", "srun": srun,
                       "getent": "[ $2 = n3 ] || printf '10.0.0.4 STREAM n4\\n10.0.0.4 DGRAM\\n'",
                       ".venv/bin/python": python}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    given = ["--model", "a b", "--task-options", '{"x": 1}']
    subprocess.run(
        ["bash", ROOT / "configs/cluster/slurm.sh", *given], cwd=tmp_path, check=True,
        timeout=LIMIT_S, env={name: value for name, value in os.environ.items()
                              if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")} | {
            "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "n[1-4]",
            "SLURM_GPUS_ON_NODE": "8", "SLURM_CPUS_ON_NODE": "64", "SLURM_JOB_NAME": "big",
            "SLURM_JOB_ID": "77", "GENERATE": "2"})

    def words(nodes):
        script, *words = (tmp_path / f"words {nodes}").read_text().splitlines()
        assert script == "scalerl.py" and words[:4] == given
        return words
    for node, address in (("n3", "n3"), ("n4", "10.0.0.4")):    # by its address, where one is found
        config, flags = parse(words(node))
        assert (flags.serve_only, config.gpus, config.name) == (address, 8, "big")
    *trainer, local, master, rank, size = words("n1,n2")
    assert [local, master, rank, size] == ["LOCAL_RANK=1", "MASTER_ADDR=n1", "RANK=9",
                                           "WORLD_SIZE=16"]
    config, flags = parse(trainer)
    assert not flags.serve_only and config.name == "big"
    assert config.vllm_url == "@runs/big/servers_n3.txt,@runs/big/servers_10.0.0.4.txt"
    assert {"--nodes=2", "--ntasks=16", "--kill-on-bad-exit=0"} <= set(
        (tmp_path / "options ").read_text().splitlines()
        + (tmp_path / "options n1,n2").read_text().splitlines())


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


def test_no_server_is_started_for_a_run_that_another_process_trains(eight, tmp_path, monkeypatch,
                                                                    capsys):
    """It was said after a minute, when a whole server stood beside the first one."""
    monkeypatch.chdir(tmp_path)
    words = ["--model", str(eight), "--name", "r", "--gpus", "0", "--engine", "vllm"]
    folder = RunFolder(parse(words)[0])
    folder.make("cpu")                                  # and holds its lock
    monkeypatch.setattr(launch, "launch", lambda *_: pytest.fail("it starts"))
    assert main([*words, "--servers", "1"]) == 2
    assert capsys.readouterr().err == "scalerl.py: runs/r: another process is training it\n"
    folder.close()
    monkeypatch.setattr(launch, "launch", lambda *_: 7)
    assert main([*words, "--servers", "1"]) == 7


def text_of(path):
    """Of a file that may be removed, or not yet be there."""
    with contextlib.suppress(FileNotFoundError):
        return path.read_text()
    return ""


def steps(folder):
    """Of its log, without a last line that is being written."""
    lines = text_of(folder / "runs" / "r" / "metrics.jsonl").split("\n")[:-1]
    return [json.loads(line)["step"] for line in lines]


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
    outstanding = pickle.loads(state["pacer"]["groups"].numpy().tobytes())
    assert sorted([*trained, *outstanding]) == list(range(state["pacer"]["admitted"]))
    # And of every outstanding one all samples: finished ones, and those to be asked for again.
    unfinished = {r.group_id: r.samples for r in state["sampler"]["requests"]}
    assert all(len(group.rollouts) + unfinished.get(i, 0) == group.size
               for i, group in outstanding.items())


def find(processes, word):
    """The processes, reapers aside, with this word in their command."""
    found = []
    for p in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            line = p.cmdline()
            if any(word in part for part in line) and not any("reaper.py" in w for w in line):
                found.append(p)
    return found


@pytest.mark.days(6, turn=1)
def test_a_lost_server_is_replaced_and_no_end_leaves_a_process_of_vllm(micro, tmp_path, seed):
    """One run: its server killed, the next one stopped (SIGSTOP), then Ctrl-C; resumed on two
    ranks, a rank killed while vLLM is still starting (in the middle of a run: test_ranks.py).
    A server that is stopped in the middle of a push has CALL_S, elsewhere LOOK_S, to answer.
    THOROUGH: between the two, the whole tree of processes is killed at ten random moments, with two
    ranks and two servers or one of each by turns; the set of groups and samples stays complete."""
    with running(tmp_path, command(micro)) as (process,):
        steps_reach(tmp_path, process, 4)
        processes = tree(process)
        server, = find(processes, "api_server")
        assert find(processes, "EngineCore")
        server.kill()
        for restarts in (1, 2):
            until(lambda: (tmp_path / "launcher.log").read_text().count(    # noqa: B023
                "is started again: server 0") == restarts, f"restart {restarts}", CALL_S + LIMIT_S)
            steps_reach(tmp_path, process, len(steps(tmp_path)) + 9)    # beyond what was in flight
            processes += tree(process)
            if restarts == 1:
                for word in ("api_server", "EngineCore"):
                    for p in find(tree(process), word):
                        p.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
        assert gone(processes)
    nothing_is_lost(tmp_path)
    rng = random.Random(seed)
    for kill in range(10 if THOROUGH else 0):
        several = 2 - kill % 2
        words = command(micro, servers=several, trainers=several, save_minutes=0.01)
        moment = len(steps(tmp_path)) + rng.randint(1, 6)
        early = time.monotonic() + rng.uniform(0, 60) if rng.random() < 0.3 else float("inf")
        with running(tmp_path, words) as (process,):
            until(lambda: len(steps(tmp_path)) >= moment or time.monotonic() > early,   # noqa: B023
                  f"kill {kill}", 300)
            assert process.poll() is None
            time.sleep(rng.random() * rng.choice([0.1, 1, 5]))
        print(f"kill {kill}: {several} ranks and servers, {len(steps(tmp_path)) - 1} steps")
    if THOROUGH:
        with running(tmp_path, command(micro)) as (process,):
            steps_reach(tmp_path, process, len(steps(tmp_path)) + 9)
            process.send_signal(signal.SIGINT)
            assert process.wait(LIMIT_S) == 130
        nothing_is_lost(tmp_path)
    assert 'vllm_url = ""' in (tmp_path / "runs" / "r" / "config.toml").read_text()

    again = command(micro, trainers=2)
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
def machines():
    """Three network namespaces on a switch, as three machines: [(the words before a command on it,
    its address)], and cable("down"), which cuts the last one off. Where namespaces are not allowed,
    loopback three times, and None."""
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
            for name, address in zip(names, addresses):
                ip("-n", name, "addr", "add", f"{address}/24", "dev", "wire")
                ip("-n", name, "link", "set", "wire", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"no network namespaces here: {getattr(error, 'stderr', error)}")
            yield [([], "127.0.0.1")] * 3, None
            return
        # torch would take the address of the machine's name.
        inside = ["env", "GLOO_SOCKET_IFNAME=wire"]
        yield [(["ip", "netns", "exec", name, *inside], address)
               for name, address in zip(names, addresses)], lambda state: ip(
                   "-n", names[0], "link", "set", "toc", state)
    finally:
        with contextlib.suppress(FileNotFoundError):        # no `ip` at all
            for name in names:
                ip("netns", "del", name, check=False)


def test_servers_on_one_machine_and_torchrun_on_two_others(micro, machines, tmp_path):
    """The commands of configs/cluster/two_machines.sh, which wait for each other. A run of two
    steps ends well on both. Resumed on the same servers, it has the servers' cable cut: it pauses,
    and goes on. A SIGTERM to every process of torchrun's, as from a scheduler, brings a checkpoint.
    Resumed again, it loses the servers for good: every process ends at the deadline, and rank 0
    says which server, which version, and what it has saved. Nothing is lost or done twice."""
    (first, second, (inside, server)), cable = machines
    (tmp_path / "scalerl.py").symlink_to(ROOT / "scalerl.py")
    settings = command(micro, deadline_s=40, eval_every=3)[2:]
    file = tmp_path / "runs" / "r" / f"servers_{server}.txt"

    def script(side, before, torchrun="", **changes):
        more = [w for name, value in changes.items() for w in (f"--{name}", value)]
        return [*before, "env", f"PYTHON={sys.executable}", f"TORCHRUN={torchrun}",
                ROOT / "configs/cluster/two_machines.sh", side, server, "r", *settings, *more]

    def trainers(**changes):
        return [script("train", before, f"--nproc-per-node 1 --nnodes 2 --node-rank {node} "
                       f"--master-addr {first[1]} --master-port 29511", **changes)
                for node, (before, _) in enumerate((first, second))]

    def ended(processes, limit_s):
        until(lambda: all(process.poll() is not None for process in processes), "the end", limit_s)
        return [process.returncode for process in processes]

    with running(tmp_path, *trainers(steps=2), script("serve", inside)) as (*ranks, serving):
        assert ended(ranks, 300) == [0, 0], (tmp_path / "launcher.log").read_text()[-3000:]
        assert steps(tmp_path) == [0, 1, 2] and serving.poll() is None
        assert file.read_text().startswith(f"http://{server}:")

        again = trainers(steps=5000)
        with running(tmp_path, *again) as ranks:
            steps_reach(tmp_path, ranks[0], 6)
            if cable:
                cable("down")
                time.sleep(10)                  # a pause, far below the deadline
                during = len(steps(tmp_path))
                cable("up")
                steps_reach(tmp_path, ranks[0], during + 6)
            for p in [p for process in ranks for p in tree(process)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    p.send_signal(signal.SIGTERM)
            ended(ranks, LIMIT_S)
        nothing_is_lost(tmp_path)

        step = len(steps(tmp_path))
        with running(tmp_path, *again) as ranks:
            steps_reach(tmp_path, ranks[0], step + 3)
            left = tree(serving)
            assert find(left, "EngineCore")
            serving.kill()
            until(lambda: gone(left), "the end of the servers")
            assert 0 not in ended(ranks, 120)
        said = (tmp_path / "launcher.log").read_text()
        sentence = re.findall("^scalerl.py: step .*", said, re.MULTILINE)[-1]
        found = re.search(rf"generate, version \d+: no server is ready since 40 s; http://{server}"
                          r":\d+ is lost: .*; the same command goes on from runs/r/checkpoints/"
                          r"step_(\d+)$", sentence)
        assert found and int(found[1]) == steps(tmp_path)[-1], sentence
        nothing_is_lost(tmp_path)


SRUN = """#!%s
import json, os, signal, subprocess, sys
words, given = sys.argv[1:], {}
while words[0].startswith("--"):
    name, _, given[name] = words.pop(0).partition("=")
nodes, count = given["--nodelist"].split(","), int(given["--ntasks"])
machines = json.load(open("m"))
tasks = [subprocess.Popen(
    machines[nodes[i * len(nodes) // count]] + words, start_new_session=True,
    env=os.environ | {"SLURM_PROCID": str(i), "SLURM_LOCALID": "0"}) for i in range(count)]
def everybody(number, _):
    for task in tasks:
        if task.poll() is None:
            task.send_signal(number)
signal.signal(signal.SIGTERM, everybody)
print(*(task.pid for task in tasks), file=open("tasks", "a"))
sys.exit(max(code if code >= 0 else 128 - code for code in [task.wait() for task in tasks]))
""" % sys.executable


def test_a_slurm_job_is_signaled_asks_to_be_queued_again_and_then_goes_on_to_its_end(
        micro, machines, tmp_path):
    """The script with real servers and ranks on three nodes; Slurm's own commands are stand-ins,
    and a node's one GPU is its CPU. A rank's SIGTERM comes twice, from the scheduler and srun.
    THOROUGH: the job is also run again."""
    nodes = {address: before for before, address in machines[0]}
    addresses = [address for _, address in machines[0]]
    (tmp_path / "m").write_text(json.dumps(nodes))
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / "scalerl.py").symlink_to(ROOT / "scalerl.py")
    for name, text in {
            "srun": SRUN, "scontrol": '#!/bin/bash\ncase $1 in show) printf "%s\\n" $NODES;; '
            '*) echo "$@" >> queued;; esac\n',
            ".venv/bin/python": '#!/bin/bash\nwords=("$@")\nfor i in ${!words[@]}; do '
            '[ "${words[i]}" = --gpus ] && words[i+1]=0; done\n'
            f'exec {sys.executable} "${{words[@]}}"\n'}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def job(steps):
        return ["env", f"PATH={tmp_path}:{os.environ['PATH']}", f"NODES={' '.join(addresses)}",
                "SLURM_JOB_NODELIST=n", "SLURM_JOB_NAME=r", "SLURM_GPUS_ON_NODE=1",
                "SLURM_CPUS_ON_NODE=1", "SLURM_JOB_ID=77", "GENERATE=1",
                "bash", ROOT / "configs/cluster/slurm.sh", *command(micro, steps=steps)[2:]]

    with running(tmp_path, job(5000)) as (process,):
        steps_reach(tmp_path, process, 4)
        for pid in (tmp_path / "tasks").read_text().split():        # of every step of the job
            os.kill(int(pid), signal.SIGTERM)
        everything = tree(process)
        for p in find(everything, "srun"):
            p.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 75, (tmp_path / "launcher.log").read_text()[-3000:]
        assert gone(everything)
    assert (tmp_path / "queued").read_text() == "requeue 77\n"
    nothing_is_lost(tmp_path)
    if not THOROUGH:
        return
    before = len(steps(tmp_path))
    with running(tmp_path, job(before + 1)) as (process,):
        everything = until(lambda: len(tree(process)) > 6 and tree(process), "its processes")
        assert process.wait(300) == 0, (tmp_path / "launcher.log").read_text()[-3000:]
        assert gone(everything)
    assert steps(tmp_path) == list(range(before + 2)) and (tmp_path / "queued").read_text().count(
        "requeue") == 1


@pytest.mark.days(4, turn=2)
def test_serve_only_ends_with_its_file_when_it_is_stopped(micro, tmp_path):
    """And its address is loopback as long as nobody says another one."""
    file = tmp_path / "runs" / "r" / "servers_127.0.0.1.txt"
    file.parent.mkdir(parents=True)
    file.write_text("")                                 # of a start that was killed
    with running(tmp_path, [*command(micro), "--serve-only"]) as (process,):
        url = until(lambda: text_of(file).strip(), "the addresses")
        assert re.fullmatch(r"http://127.0.0.1:\d+", url)
        until(lambda: find(tree(process), "api_server"), "a server")
        processes = tree(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
        assert gone(processes) and not file.exists()
    said = (tmp_path / "launcher.log").read_text()
    assert f"{url}; trainers find them with --vllm-url @runs/r/servers_127.0.0.1.txt" in said
    assert (tmp_path / "runs/r/logs/127.0.0.1/server_0.log").exists()
