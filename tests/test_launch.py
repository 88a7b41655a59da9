"""The launcher: what it starts, what it does when something ends, and that nothing is left.

Most tests run the real supervisor over stand-ins, a few lines of Python each, with real signals
and real trees of processes.
"""

import contextlib
import dataclasses
import json
import os
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
import torch
from conftest import ROOT, THOROUGH
from transformers import AutoModelForCausalLM, Qwen3Config

import checkpoint
import launch
import scalerl
import toy
from config import Config, make_config, parse
from launch import GIB, PlaceError, split
from leash import LaunchError


LIMIT_S = 60                                # nothing here takes longer; a hang fails

# Writes its pid and starts a child in a session of its own, as vLLM and accelerate do; then BODY.
STAND_IN = """
import os, signal, subprocess, sys, time
def note(word):
    with open(sys.argv[0] + ".notes", "a") as file:
        file.write(f"{word} {os.getpid()}\\n")
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
note(f"child {child.pid} of")
"""


def stand_in(folder, name, body):
    path = folder / f"{name}.py"
    path.write_text(STAND_IN + textwrap.dedent(body))
    return path


def notes(path):
    """[(word, pid)] that a stand-in has written."""
    file = path.with_name(path.name + ".notes")
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def until(true, what, limit_s=LIMIT_S):
    deadline = time.monotonic() + limit_s
    while not (result := true()):
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.02)
    return result


def tree(process):
    """All that runs below it, with it. A process keeps its identity here even if its pid is used
    again later."""
    try:
        root = psutil.Process(process.pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@contextlib.contextmanager
def launcher(folder, trainer, *servers, ranks=False, logs=(), leads=True):
    """The supervisor in a process of its own, over these stand-ins. Kills what a failed test
    would leave, and says so."""
    script = folder / "launcher.py"
    script.write_text(textwrap.dedent(f"""
        import sys
        import leash
        command = lambda path: [sys.executable, path]
        servers = [leash.Child(f"server {{i}}", command(path), log=f"{{path}}.log")
                   for i, path in enumerate({[str(s) for s in servers]})]
        trainer = {str(trainer) if trainer else None!r}
        trainer = trainer and leash.Child("trainer", command(trainer), ranks={ranks})
        sys.exit(leash.supervise(trainer, servers, leads={leads},
                                 failed=lambda why: print("told:", why),
                                 logs={[str(log) for log in logs]}))
    """))
    process = subprocess.Popen([sys.executable, script], cwd=ROOT, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=os.environ | {"PYTHONPATH": str(ROOT)},
                               # Tests run by nohup would hand it a deaf ear.
                               preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
    process.seen = []
    try:
        yield process
    finally:
        left = [p for p in {*process.seen, *tree(process)} if p.is_running()
                and p.status() != psutil.STATUS_ZOMBIE]
        for p in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                p.kill()
        process.communicate(timeout=LIMIT_S)


def gone(processes):
    return all(not p.is_running() or p.status() == psutil.STATUS_ZOMBIE for p in processes)


def all_up(process, *paths):
    """Wait until all of the stand-ins have said "up"; then the whole tree below the launcher."""
    for path in paths:
        until(lambda: any(n[0] == "up" for n in notes(path)), f"{path.name} up")
    process.seen = tree(process)
    # launcher; leash, stand-in and its child for each
    assert len(process.seen) == 1 + 3 * len(paths)
    return process.seen


def pid_of(path):
    """The process of this stand-in that came up last."""
    return int([n[-1] for n in notes(path) if n[0] == "up"][-1])


SERVES = "note('up'); time.sleep(600)"
# Ends with the status that it finds in the file beside it, or like scalerl.py after Ctrl-C.
TRAINS = """
stop = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: stop.append(1))
note("up")
end = sys.argv[0] + ".end"
while not stop and not (os.path.exists(end) and os.path.getsize(end)):
    time.sleep(0.02)
if stop:
    time.sleep(0.5)
    note("checkpoint")
    sys.exit(0 if "RANK" in os.environ else 130)
print("the cause, on standard error", file=sys.stderr)
sys.exit(int(open(end).read()))
"""


@pytest.fixture
def parts(tmp_path):
    """A trainer and two servers."""
    return stand_in(tmp_path, "trainer", TRAINS), *(
        stand_in(tmp_path, f"server{i}", SERVES) for i in range(2))


def test_when_the_trainer_ends_the_servers_and_all_they_started_end(parts, tmp_path):
    with launcher(tmp_path, *parts) as process:
        processes = all_up(process, *parts)
        (tmp_path / "trainer.py.end").write_text("0")
        assert process.wait(LIMIT_S) == 0
        assert gone(processes)


@pytest.mark.parametrize("status, code", [(1, 1), (2, 2), (255, 1)])
def test_a_trainer_that_fails_ends_the_run_with_its_own_words(status, code, parts, tmp_path):
    with launcher(tmp_path, *parts) as process:
        processes = all_up(process, *parts)
        (tmp_path / "trainer.py.end").write_text(str(status))
        assert process.wait(LIMIT_S) == code
        assert gone(processes)
        error = process.stderr.read()
        assert error.startswith("the cause, on standard error")
        assert (f"exit status {status}" in error) == (status != 2)


def test_of_the_logs_of_a_failure_only_what_this_run_wrote_is_shown(parts, tmp_path):
    """They are appended to: a resumed run's cause is not the earlier one's."""
    logs = [tmp_path / "rank_1.log", tmp_path / "rank_2.log", tmp_path / "rank_3.log"]
    for log in logs[:2]:
        log.write_text("what ended the run before\n")
    with launcher(tmp_path, *parts, logs=logs) as process:
        all_up(process, *parts)
        for log in logs[1:]:
            with open(log, "a") as file:
                file.write("what ended this run\n")
        (tmp_path / "trainer.py.end").write_text("1")
        assert process.wait(LIMIT_S) == 1
        error = process.stderr.read()
        assert "before" not in error and "rank_1.log" not in error
        assert error.count(".log:\n    what ended this run\n") == 2


def test_a_killed_trainer_leaves_no_server(parts, tmp_path):
    with launcher(tmp_path, *parts) as process:
        processes = all_up(process, *parts)
        os.kill(pid_of(parts[0]), signal.SIGKILL)
        assert process.wait(LIMIT_S) == 1
        assert gone(processes)
        assert "trainer ended by SIGKILL: out of memory?" in process.stderr.read()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_ctrl_c_or_sigterm_lets_the_trainer_write_its_checkpoint(number, parts, tmp_path):
    with launcher(tmp_path, *parts) as process:
        processes = all_up(process, *parts)
        process.send_signal(number)
        assert process.wait(LIMIT_S) == 128 + number
        assert gone(processes)
        assert notes(parts[0])[-1][0] == "checkpoint"


def test_a_scheduler_that_signals_every_process_of_a_job_gets_a_checkpoint_too(parts, tmp_path):
    """Slurm does: launcher, leashes, trainer and servers."""
    with launcher(tmp_path, *parts) as process:
        processes = all_up(process, *parts)
        for p in processes:
            p.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 143
        assert gone(processes)
        assert notes(parts[0])[-1][0] == "checkpoint"


def test_of_several_ranks_only_rank_0_gets_the_ctrl_c(parts, tmp_path):
    """accelerate's launcher would end its ranks at once; one that ends alone hangs the others."""
    agent = tmp_path / "agent.py"
    agent.write_text(textwrap.dedent(f"""
        import os, signal, subprocess, sys
        signal.signal(signal.SIGINT, lambda *_: os._exit(3))
        ranks = [subprocess.Popen([sys.executable, {str(parts[0])!r}, r], start_new_session=True,
                                  env=os.environ | {{"RANK": r}}) for r in "10"]
        open(sys.argv[0] + ".notes", "w").write("".join(f"up {{p.pid}}\\n" for p in ranks))
        assert ranks[1].wait() == 0
        os.kill(ranks[0].pid, signal.SIGINT)
        sys.exit(ranks[0].wait())
    """))
    with launcher(tmp_path, agent, parts[1], ranks=True) as process:
        until(lambda: len([n for n in notes(parts[0]) if n[0] == "up"]) == 2, "both ranks up")
        process.seen = tree(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
        assert gone(process.seen)
        one, zero = (int(n[1]) for n in notes(agent))
        assert [int(n[1]) for n in notes(parts[0]) if n[0] == "checkpoint"] == [zero, one]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_ctrl_c_or_sigterm_ends_all_at_once(number, parts, tmp_path):
    stubborn = stand_in(tmp_path, "stubborn", """
        signal.signal(signal.SIGINT, lambda *_: note("interrupted"))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note("up")
        while True: time.sleep(1)
    """)
    with launcher(tmp_path, stubborn, parts[1]) as process:
        processes = all_up(process, stubborn, parts[1])
        process.send_signal(signal.SIGINT)
        until(lambda: notes(stubborn)[-1][0] == "interrupted", "the first Ctrl-C passed on")
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(LIMIT_S) == 128 + number
        assert gone(processes)


SLOW = """
asked = []
signal.signal(signal.SIGINT, lambda *_: asked.append(note("asked")))
note("up")
while not (asked and os.path.exists(sys.argv[0] + ".end")): time.sleep(0.02)
note("checkpoint")
sys.exit(130)
"""


def test_a_server_that_ends_with_the_run_is_not_started_again(tmp_path):
    """A scheduler's SIGTERM reaches all: servers may end before the last checkpoint is written."""
    slow = stand_in(tmp_path, "slow", SLOW)
    server = stand_in(tmp_path, "server", f"""
        note("up")
        while not os.path.exists({str(slow) + ".notes"!r}): time.sleep(0.02)
        while "asked" not in open({str(slow) + ".notes"!r}).read(): time.sleep(0.02)
        sys.exit(5)
    """)
    with launcher(tmp_path, slow, server) as process:
        processes = all_up(process, slow, server)
        ended = psutil.Process(pid_of(server))
        process.send_signal(signal.SIGTERM)
        until(lambda: gone([ended]), "the server's end")
        (tmp_path / "slow.py.end").write_text("")
        assert process.wait(LIMIT_S) == 143
        assert [n[0] for n in notes(slow)] == ["child", "up", "asked", "checkpoint"]
        assert [n[0] for n in notes(server)].count("up") == 1
        assert gone(processes)


@pytest.mark.parametrize("number, last", [(signal.SIGTERM, "checkpoint"),
                                          (signal.SIGINT, "asked")])
def test_a_sigterm_after_a_failure_lets_the_checkpoint_be_written_and_ctrl_c_does_not(
        number, last, tmp_path):
    """A scheduler signals all nodes, and another node's failure may be heard of first."""
    slow = stand_in(tmp_path, "slow", SLOW)
    bad = stand_in(tmp_path, "bad", f"""
        while not os.path.exists({str(slow) + ".notes"!r}): time.sleep(0.02)
        while "up" not in open({str(slow) + ".notes"!r}).read(): time.sleep(0.02)
        sys.exit(5)
    """)
    with launcher(tmp_path, slow, bad) as process:
        until(lambda: any(n[0] == "asked" for n in notes(slow)), "asked for a checkpoint")
        processes = tree(process)
        process.send_signal(number)
        if number == signal.SIGTERM:
            (tmp_path / "slow.py.end").write_text("")
        assert process.wait(LIMIT_S) == 1
        assert notes(slow)[-1][0] == last and gone(processes)


def test_a_sigterm_to_another_node_than_rank_0_s_fails_the_run_with_a_checkpoint(parts, tmp_path):
    with launcher(tmp_path, *parts, leads=False) as process:
        processes = all_up(process, *parts)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 1
        assert gone(processes)
        assert notes(parts[0])[-1][0] == "checkpoint"
        assert "told: this node's launcher was told to end (SIGTERM)" in process.stdout.read()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_no_end_of_the_launcher_leaves_a_process(number, parts, tmp_path):
    """With SIGKILL it can do nothing itself: each leash sees that its other end is gone."""
    with launcher(tmp_path, *parts) as process:
        processes = all_up(process, *parts)
        process.send_signal(number)
        assert process.wait(LIMIT_S) == -number
        until(lambda: gone(processes), "no process left")


def test_a_leash_that_is_killed_itself_takes_its_command_along(parts, tmp_path):
    with launcher(tmp_path, *parts) as process:
        processes = all_up(process, *parts)
        server = psutil.Process(pid_of(parts[1]))
        server.parent().kill()
        until(lambda: gone([server]), "the server gone")
        (tmp_path / "trainer.py.end").write_text("0")
        assert process.wait(LIMIT_S) == 0
        # Only what the command had started in a session of its own may be left: one process.
        assert sum(not gone([p]) for p in processes) <= 1


def test_a_dead_server_is_started_again_and_nothing_of_the_first_is_left(parts, tmp_path):
    with launcher(tmp_path, *parts) as process:
        processes = all_up(process, *parts)
        first = psutil.Process(pid_of(parts[2]))
        child = first.children()[0]
        first.kill()
        until(lambda: pid_of(parts[2]) != first.pid, "started again")
        assert gone([first, child])             # a half-dead server would keep its GPU and port
        process.seen += tree(process)
        (tmp_path / "trainer.py.end").write_text("0")
        assert process.wait(LIMIT_S) == 0
        assert gone([*processes, *process.seen])
        assert "server 1 has ended by SIGKILL; it is started again" in process.stderr.read()


def test_a_server_that_keeps_ending_ends_the_run_with_its_log_and_a_checkpoint(parts, tmp_path):
    bad = stand_in(tmp_path, "bad", f"""
        note("up")
        while not os.path.exists({str(parts[0]) + ".notes"!r}): time.sleep(0.02)
        time.sleep(0.3)                     # the trainer is up by then, and says so
        print("no room for the cache")
        sys.exit(5)
    """)
    with launcher(tmp_path, parts[0], parts[1], bad) as process:
        assert process.wait(LIMIT_S) == 1
        error = process.stderr.read()
        assert "server 1 has ended 3 times within 10 minutes, now with exit status 5" in error
        assert "\n    no room for the cache\n" in error and f"{bad}.log" in error
        assert notes(parts[0])[-1][0] == "checkpoint"
        assert process.stdout.read().startswith("told: server 1 has ended 3 times")
        assert [n[0] for n in notes(bad)].count("up") == 3
        pids = {int(n[-1]) for path in parts for n in notes(path)}
        assert not pids & set(psutil.pids())


# ---------------------------------------------------------------------------------------------
# Who runs where, and whether it fits


def test_the_split_is_the_fastest_there_is_and_tends_to_the_ratio_of_the_rates(seed):
    rng = random.Random(seed)
    for _ in range(200):
        generate, train, size = rng.uniform(1, 9), rng.uniform(1, 40), rng.choice([1, 2, 4])
        gpus = rng.randrange(size + 1, 60)
        servers, trainers = split(gpus, generate, train, size)
        assert servers * size + trainers == gpus and servers > 0 and trainers > 0
        best = max(min((gpus - t) * generate, t * train) for t in range(1, gpus)
                   if (gpus - t) % size == 0)
        assert min(servers * size * generate, trainers * train) == pytest.approx(best)
    servers, trainers = split(10_000, generate, train)
    assert servers / trainers == pytest.approx(train / generate, rel=0.01)


def estimate_of(folder, **settings):
    """(config, Estimate) as the launcher makes them, on assumed H100s if there are GPUs."""
    config = make_config({"model": str(folder), "name": "none"} | settings)
    return config, scalerl.planned(config, False)["estimate"]


@pytest.mark.parametrize("settings, hosts, shape", [
    ({"gpus": 8}, 1, None), ({"gpus": 8, "tensor_parallel": 2, "pipeline_parallel": 2}, 1, None),
    ({"gpus": 8, "trainers": 3}, 1, (3, 5)), ({"gpus": 8, "servers": 2, "data_parallel": 3}, 1,
                                               (2, 2)),
    ({"gpus": 4}, 5, None), ({"gpus": 4, "trainers": 12, "tensor_parallel": 4}, 5, (12, 2)),
    ({"gpus": 4, "trainers": 2, "tensor_parallel": 2}, 2, (2, 3)),
    ({"gpus": 0, "servers": 3}, 1, (1, 3)), ({"gpus": 0, "servers": 1, "trainers": 2}, 3, (2, 1)),
    ({"gpus": 0, "servers": 3, "trainers": 1}, 3, (1, 3))])
def test_every_device_has_one_process_and_every_node_knows_the_same_places(settings, hosts, shape,
                                                                           eight):
    names = ",".join(f"10.0.0.{i + 1}" for i in range(hosts)) if hosts > 1 else ""
    config, estimate = estimate_of(eight, hosts=names, insecure_network=True, **settings)
    port = iter(range(5000, 6000)).__next__
    places = launch.place(config, estimate, port)
    if hosts > 1:
        for node in range(hosts):
            config.node_rank = node
            assert launch.place(config, estimate) == places
    if shape:
        assert (places.trainers, len(places.servers)) == shape
    assert sum(places.trainers_on(node) for node in range(hosts)) == places.trainers
    urls = [server.url(config) for server in places.servers]
    assert len(set(urls)) == len(urls) > 0
    for node in range(places.gpus and hosts):
        used = [*range(places.trainers_on(node))]
        for server in places.servers:
            used += server.devices if server.node == node else ()
        assert used == list(range(places.gpus))


@pytest.mark.parametrize("settings, sentence", [
    ({"gpus": 8, "servers": 3, "trainers": 4}, "8 GPUs are to be all in use"),
    ({"gpus": 8, "servers": 8}, "8 GPUs are to be all in use"),
    ({"gpus": 8, "servers": 2, "tensor_parallel": 3, "trainers": 3}, "servers of 3"),
    ({"gpus": 4, "tensor_parallel": 4}, "no room for a server of 4 and a trainer"),
    ({"gpus": 4, "hosts": "127.0.0.1,localhost", "trainers": 6}, "whole nodes"),
    ({"gpus": 0, "servers": 1, "trainers": 3, "hosts": "127.0.0.1,localhost,::1"}, "equally many"),
    ({"gpus": 8, "vllm_url": "http://127.0.0.1:1", "trainers": 5}, "8 GPUs are to be all in use"),
    ({"hosts": "127.0.0.1,127.0.0.1"}, "should be different names")])
def test_what_does_not_add_up_is_refused(settings, sentence, eight):
    config, estimate = estimate_of(eight, **settings)
    with pytest.raises(PlaceError, match=sentence):
        launch.place(config, estimate)


def test_a_name_that_is_loopback_here_is_refused_where_others_are_to_reach_it(eight, monkeypatch):
    """As Debian has it in /etc/hosts: servers would listen on 127.0.1.1, and all other nodes wait
    for minutes. Loopback that was asked for, by its address, is meant."""
    known = {"n0": "127.0.1.1", "n1": "10.0.0.2"}
    monkeypatch.setattr(socket, "gethostbyname", lambda host: known.get(host, host))
    for hosts, rank in (("n0,n1", 0), ("n1,n0", 1)):
        config, estimate = estimate_of(eight, gpus=4, hosts=hosts, node_rank=rank,
                                       insecure_network=True)
        with pytest.raises(PlaceError, match=r"'n0' is 127\.0\.1\.1, .*; give its address"):
            launch.place(config, estimate)
        config.node_rank = 1 - rank
        launch.place(config, estimate)
    config.hosts, config.node_rank = "127.0.0.1,127.0.0.3", 1
    launch.place(config, estimate)


def test_estimates_of_memory_are_those_counted_by_hand(eight):
    config, estimate = estimate_of(eight, gpus=8, slots=64)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(Qwen3Config.from_pretrained(eight))
    weights = sum(p.numel() for p in model.parameters())
    assert weights == estimate.weights == 8_190_735_360           # Qwen3-8B's own number
    alone, three = estimate.trainer_memory(1), estimate.trainer_memory(3)
    assert sum(alone[k] for k in ("parameters", "gradients", "Adam")) == 16 * weights
    assert three["Adam"] == pytest.approx(8 * weights / 3)
    parts, fits = estimate.server_memory()
    assert parts["weights"] == 2 * weights
    phrase = toy.make_tokenizer()(config.interrupt_phrase, add_special_tokens=False)["input_ids"]
    sequence = 2 * 36 * 8 * 128 * 2 * (2048 + 12288 + 2048 + len(phrase))   # K and V, bf16
    assert parts["cache, one sequence"] == sequence
    assert fits == int(((0.9 * 79 - 2) * GIB - 2 * weights) / sequence)
    assert parts["cache, what fits"] == min(fits, 64) * sequence


def test_a_trainer_has_time_for_its_step_and_for_a_checkpoint_of_its_size(eight, tmp_path,
                                                                          monkeypatch):
    """When a server is gone for good, an 8B model may be in the middle of a step of minutes, and
    its checkpoint is 98 GB."""
    config, estimate = estimate_of(eight, gpus=0, servers=1, deadline_s=70)
    estimate.device = dataclasses.replace(estimate.device, memory=1e15, flops=1e15, host=1e15)
    given = {}
    monkeypatch.setattr(launch, "supervise", lambda *_, **options: given.update(options) or 0)
    assert launch.launch(config, [], estimate, dtype=torch.bfloat16, folder=tmp_path) == 0
    tokens = config.prompts_per_step * config.samples_per_prompt * estimate.output
    train_s = tokens * 3 * 2 * 8.19e9 / (launch.TRAIN_SHARE * 1e15)
    assert train_s > 60 and given["checkpoint_s"] > 70 + train_s + 98e9 / 1e9


def test_ranks_that_each_load_the_model_need_so_much_memory_of_their_machine(eight, capsys):
    """4 bytes a weight for each, before FSDP2 shards them; of an assumed machine nothing is
    known."""
    config, estimate = estimate_of(eight, gpus=8, trainers=4)
    need = 4 * 4 * 8_190_735_360
    assert not estimate.refusals(4, 4, 4)
    options = dict(dtype=torch.bfloat16, folder=ROOT / "runs" / "none")
    estimate.device = dataclasses.replace(estimate.device, host=need + 1)
    launch.describe(config, [], estimate, **options)
    assert f"own memory: {need / GIB:.2f} = {need / 4 / GIB:.2f} for each of 4 trainers, of 122" \
        in capsys.readouterr().out
    estimate.device = dataclasses.replace(estimate.device, host=need - 1)
    with pytest.raises(PlaceError, match=r"^4 trainers on this machine, .* about 122\.1 GiB"):
        launch.describe(config, [], estimate, **options)


def test_a_dry_run_says_who_would_run_where_and_starts_and_writes_nothing(eight, tmp_path,
                                                                          monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(a))
    assert scalerl.main(["--model", str(eight), "--gpus", "8", "--trainers", "4", "--dry-run",
                         "--name", "paper"]) == 0
    text = capsys.readouterr().out
    assert not started and not list(tmp_path.iterdir())
    for part in ('name = "paper"', "8 GPUs: 4 train, 4 generate (4 servers): as asked for",
                 "trainer 3", "runs/paper/logs/rank_3.log", "runs/paper/logs/server_3.log",
                 "whole sequences fit", "s a step", "no GPU here to ask",
                 "8.19 billion weights",
                 "CUDA_VISIBLE_DEVICES=0,1,2,3", "CUDA_VISIBLE_DEVICES=7",
                 "--num_processes 4", "vllm.entrypoints.openai.api_server"):
        assert part in text, part


def test_the_rule_gives_an_8b_model_on_8_gpus_as_many_trainers_as_have_room_for_it(eight):
    """It generates slower than it trains, so one trainer would do: but not hold it."""
    config, estimate = estimate_of(eight, gpus=8)
    places = launch.place(config, estimate)
    assert not estimate.refusals(places.trainers, len(places.servers))
    assert estimate.refusals(places.trainers - 1, len(places.servers))


@pytest.mark.parametrize("settings, sentence", [
    (["--gpus", "2"], r"a trainer needs about \d\d\d\.\d GiB, a H100 has 79"),
    (["--gpus", "8", "--trainers", "7", "--config", "wide.toml"],
     r"weights and \d+\.\d\d for the cache of one sequence of 40960 tokens.* raise tensor_par"),
])
def test_what_cannot_fit_is_refused_with_the_number_and_the_cure(settings, sentence, eight,
                                                                 tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "VLLM_MEMORY_SHARE", 0.2)
    (tmp_path / "wide.toml").write_text("prompt_tokens = 99999")
    assert scalerl.main(["--model", str(eight), *settings, "--dry-run"]) == 2
    assert re.search(sentence, capsys.readouterr().err)


def test_a_dry_run_refuses_what_the_run_would(eight, tmp_path, monkeypatch, capsys):
    """GPUs that torch does not find, even beyond those named in CUDA_VISIBLE_DEVICES; outputs that
    the model has no place for; layers that cannot be compiled."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3")
    config, estimate = estimate_of(eight, gpus=4, trainers=3)
    options = dict(dtype=torch.bfloat16, folder=tmp_path)
    launch.describe(config, [], estimate, **options)        # no GPU here: planned for elsewhere
    assert "CUDA_VISIBLE_DEVICES=5,3,2 " in capsys.readouterr().out
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(PlaceError, match="gpus = 4: torch finds 2 here"):
        launch.describe(config, [], estimate, **options)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    command = ["--model", str(eight), "--gpus", "0", "--servers", "1", "--dry-run"]
    assert scalerl.main([*command, "--think-max", "41000"]) == 2
    assert re.search(r"think_max = 41000: .* may take \d+ tokens, the model has 40960; think_max = "
                     r"\d+ would fit$", capsys.readouterr().err.strip())
    if not THOROUGH:                            # else in a process of its own, for 10 s
        def run(argv, **_):
            with pytest.raises(ValueError) as found:
                exec(argv[2])
            return subprocess.CompletedProcess(argv, 1, stderr=f"...\nValueError: {found.value}\n")

        def compiled(*_, **__):
            raise RuntimeError("InvalidCxxCompiler: no\nand more")
        monkeypatch.setattr(subprocess, "run", run)
        monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert scalerl.main([*command, "--compile-layers", "true"]) == 2
    assert re.fullmatch(r"scalerl.py: compile_layers = true: torch.compile does not work here \("
                        r"InvalidCxx.*\)", capsys.readouterr().err.strip())


def test_trainers_on_one_cpu_share_its_memory_with_the_servers(eight):
    config, estimate = estimate_of(eight, gpus=0, servers=2)
    parts, need = estimate.server_memory()[0], sum(estimate.trainer_memory(3).values())
    estimate.config.slots = 1
    for spare, refused in ((1.01, False), (0.99, True)):
        servers = 2 * (parts["weights"] + parts["cache, one sequence"])
        memory = (3 * need * spare + servers) / 0.9
        estimate.device = dataclasses.replace(estimate.device, memory=memory, host=1e15)
        found = estimate.refusals(3, 2, 3, 2)
        assert bool(found) == refused
        assert not refused or "shared by 3 trainers and 2 servers: " in found[0]


def test_of_servers_of_others_nothing_is_estimated(eight):
    config, estimate = estimate_of(eight, gpus=8, vllm_url="http://127.0.0.1:1")
    text = estimate.text(8, 0, 8)
    assert text.count("unknown") == 2 and "to generate, " in text
    for ours in ("whole sequences fit", "both at once"):
        assert ours not in text and ours in estimate.text(8, 1, 8)


@pytest.mark.parametrize("vllm, caches", [(None, 2), ("there", 1)])
def test_a_dry_run_counts_the_caches_of_the_engine_that_the_run_would_take(vllm, caches, eight,
                                                                           monkeypatch):
    monkeypatch.setattr(scalerl.importlib.util, "find_spec", lambda name: vllm)
    config, estimate = estimate_of(eight, gpus=0, slots=17)
    assert config.engine == ("vllm" if vllm else "transformers")
    assert estimate.trainer_memory(1)["sampler's caches"] == \
        caches * 17 * estimate.length * estimate.kv_token


# ---------------------------------------------------------------------------------------------
# Several hosts


@pytest.fixture(scope="session")
def certs(tmp_path_factory):
    """`make certs` for the addresses of these tests."""
    folder = tmp_path_factory.mktemp("certs")
    subprocess.run(["make", "-s", "certs", "HOSTS=127.0.0.1,10.77.0.1,10.77.0.2,10.77.0.3",
                    f"CERTS={folder}"], cwd=ROOT, check=True, capture_output=True, timeout=LIMIT_S)
    assert {p.name for p in folder.iterdir()} == {"ca.pem", "cert.pem", "key.pem"}
    return folder


@pytest.fixture(params=["plain", "tls"])
def pair(request, certs):
    """The head's end and one node's, with what they are made of."""
    config = Config(hosts="127.0.0.1,127.0.0.3", port=next(launch.free_ports()),
                            deadline_s=9,
                            tls=str(certs) if request.param == "tls" else "")
    hosts = config.hosts.split(",")
    head, node = launch.Head(config, hosts), launch.Node(
        dataclasses.replace(config, node_rank=1), hosts)
    try:
        until(lambda: head.watch() or head.nodes, "the node at the head")
        yield head, node, config
    finally:
        node.close(0)
        head.close(0)


@pytest.mark.parametrize("status, result", [(0, 0), (1, 1), (130, 130), (137, 1)])
def test_a_node_ends_with_the_run_and_knows_how_it_ended(pair, status, result):
    head, node, _ = pair
    assert node.watch() is None
    head.close(status)
    assert until(lambda: [node.watch()] != [None] and [node.watch()], "the end") == [result]


def test_a_node_that_fails_fails_the_run_by_its_name(pair):
    head, node, _ = pair
    node.close(3)
    with pytest.raises(LaunchError, match=r"node 1 \(127.0.0.3\) has failed: .* exit status 3"):
        until(head.watch, "the failure")


def test_a_node_that_cannot_go_on_says_so_before_it_ends(pair):
    """Only rank 0, on the first host, can be asked for a checkpoint, and it takes all ranks."""
    head, node, _ = pair
    node.failed("server 1 has ended 3 times")
    with pytest.raises(LaunchError, match=r"node 1 \(127.0.0.3\) has failed: server 1 has ended 3"):
        until(head.watch, "the failure")
    assert node.watch() is None and not node.line.lost
    head.close(1)
    assert until(lambda: [node.watch()] != [None] and [node.watch()], "the end") == [1]


def test_a_lost_connection_is_made_again_and_nothing_is_missed(pair):
    head, node, _ = pair
    first = head.nodes[1]
    first.connection.shutdown(socket.SHUT_RDWR)
    until(lambda: head.watch() or head.nodes[1] is not first, "a second connection")
    head.close(0)
    assert until(lambda: [node.watch()] != [None] and [node.watch()], "the end") == [0]


def test_a_node_of_a_killed_run_says_nothing_to_the_next_run_and_ends(pair, capsys):
    """The next head's signs of life would keep it, and the GPUs and ports of its servers, for
    ever; and the end of its trainer would end that run as well."""
    head, node, config = pair
    head.listener.shutdown(socket.SHUT_RDWR)            # what a SIGKILL does
    head.listener.close()
    head.nodes[1].connection.shutdown(socket.SHUT_RDWR)
    until(lambda: node.line.lost, "the loss seen")
    following = launch.Head(config, config.hosts.split(","))
    try:
        assert until(lambda: [node.watch()] != [None] and [node.watch()], "its end") == [1]
        node.failed("its trainer ended")
        node.close(1)
        assert following.watch() is None and not following.nodes
        assert "127.0.0.1" in capsys.readouterr().err.split("has been started again")[0]
    finally:
        following.close(0)


def test_a_stranger_without_a_certificate_of_ours_is_not_heard(certs, tmp_path):
    """One who can say "fail" ends the run."""
    subprocess.run(["make", "-s", "certs", f"CERTS={tmp_path}"], cwd=ROOT, check=True,
                   capture_output=True, timeout=LIMIT_S)            # another authority's
    config = Config(hosts="127.0.0.1,127.0.0.3", port=next(launch.free_ports()),
                            deadline_s=9,
                            tls=str(certs))
    head = launch.Head(config, config.hosts.split(","))
    try:
        address = ("127.0.0.1", config.port)
        for tls in (None, ssl.create_default_context(cafile=certs / "ca.pem"),
                    launch.tls_context(tmp_path)):
            with contextlib.suppress(OSError), socket.create_connection(address, 5) as stranger:
                if tls:
                    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
                    stranger = tls.wrap_socket(stranger)
                stranger.sendall(b"node 1\nfail me\n")
                assert not stranger.recv(1)                         # hung up
        assert head.watch() is None and not head.nodes
    finally:
        head.close(0)


def test_whoever_is_silent_past_the_deadline_is_given_up_by_name(capsys, monkeypatch):
    monkeypatch.setattr(launch, "SILENT_S", 0.2)
    config = Config(hosts="127.0.0.1,127.0.0.3,127.0.0.4", port=next(launch.free_ports()),
                            start_deadline_s=2.0)
    hosts = config.hosts.split(",")
    alone = launch.Node(dataclasses.replace(config, node_rank=2), hosts)
    try:
        with pytest.raises(LaunchError, match=r"first host \(127.0.0.1:.* heard of for 2 s"):
            until(alone.watch, "giving up")
        head = launch.Head(config, hosts)
        try:
            with pytest.raises(LaunchError, match=r"node 1 \(127.0.0.3\) has not been heard"):
                until(head.watch, "giving up")
            assert 2 in head.nodes                              # which had come in time
        finally:
            head.close(1)
        assert "127.0.0.1" in capsys.readouterr().err.split("is silent; waiting for it, 2 s")[0]
    finally:
        alone.close(0)


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


@pytest.mark.parametrize("how, status", [("sys.exit(2)", 2), ("os.kill(os.getpid(), 9)", 137)])
def test_ranks_end_as_the_first_of_them_that_failed_and_no_traceback_follows(how, status, tmp_path):
    """2: bad input, said by rank 0; SIGKILL of rank 1 perhaps for want of memory."""
    rank = tmp_path / "rank.py"
    rank.write_text("import os, sys, time\n"
                    f"if os.environ['RANK'] == '{int(status != 2)}': {how}\n"
                    "time.sleep(600)")
    done = subprocess.run(
        [sys.executable, ROOT / "agent.py", "--multi_gpu", "--num_processes", "2",
         "--main_process_port", str(next(launch.free_ports())), "--num_machines", "1",
         "--mixed_precision", "no", "--dynamo_backend", "no", rank],
        capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == status and "Traceback" not in done.stderr


# ---------------------------------------------------------------------------------------------
# Real servers, real trainers


def command(micro, **changes):
    settings = {"model": micro, "name": "r", "gpus": 0, "servers": 1, "trainers": 1, "threads": 1,
                "steps": 5000, "prompts_per_step": 3, "samples_per_prompt": 4, "slots": 16,
                "think_min": 8, "think_max": 22, "answer_tokens": 3, "prompt_tokens": 40,
                "heldout_prompts": 64, "eval_prompts": 4, "eval_samples": 2, "eval_every": 5000,
                "checkpoint_every": 5000, "off_policy": "pipeline-3", "lr": 1e-5,
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
    assert sorted(trained + [group["group_id"] for group in state["groups"]]) == list(
        range(state["admitted"]))
    # And of every outstanding one all samples: finished ones, and those to be asked for again.
    unfinished = {r["group_id"]: r["samples"] for r in state["sampler"]["requests"]}
    assert all(len(group["rollouts"]) + unfinished.get(group["group_id"], 0) == group["size"]
               for group in state["groups"])


def find(processes, word):
    """The processes, leashes aside, with this word in their command."""
    found = []
    for p in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            line = p.cmdline()
            if any(word in part for part in line) and not any("leash.py" in w for w in line):
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
        until(lambda: "is started again" in (tmp_path / "launcher.log").read_text(), "a restart")
        steps_reach(tmp_path, process, len(steps(tmp_path)) + 9)    # beyond what was in flight
        processes += tree(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
        assert gone(processes)
    nothing_is_lost(tmp_path)
    rng = random.Random(seed)
    for kill in range(10 if THOROUGH else 0):
        several = 2 - kill % 2
        words = command(micro, servers=several, trainers=several, checkpoint_every=2)
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
    assert "the trainer (ranks 0 to 1) ended by SIGKILL" in log and "Traceback" not in log


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


def test_three_hosts_with_mutual_tls_wait_out_a_cut_cable_and_end_if_it_stays_cut(
        micro, hosts, certs, tmp_path):
    """Two with a trainer rank each, one with a server, nothing but a network between them. The
    server's cable is cut: the run pauses with a sentence. Back again, it goes on. Cut for good,
    every launcher ends at the deadline, and rank 0 says which server, which version, and what it
    has saved. Resumed, the other trainer's cable is cut: nobody can save then, so the sentence
    says which rank and where it can go on from. Nothing is lost, nothing is done twice."""
    names, addresses, cable = hosts
    words = command(micro, hosts=",".join(addresses), tls=certs, trainers=2, deadline_s=30,
                    start_deadline_s=300, checkpoint_every=3)
    launchers = [["ip", "netns", "exec", names[i], *words, "--node-rank", i] for i in range(3)]
    said = lambda: (tmp_path / "launcher.log").read_text()                     # noqa: E731

    def cut_for_good(side):
        """Returns the step that the run says it can go on from, and its sentence."""
        seen = [p for process in processes for p in tree(process)]
        assert find(seen, "EngineCore")
        cable(side, "down")
        until(lambda: all(process.poll() is not None for process in processes), said(), 120)
        assert [process.returncode for process in processes] == [1, 1, 1]
        assert gone(seen)
        cable(side, "up")
        sentence, = re.findall("^scalerl.py: step .*", said(), re.MULTILINE)[-1:]
        found = re.search(r"; --resume goes on from runs/r/checkpoints/step_(\d+)$", sentence)
        return int(found[1]), sentence

    with running(tmp_path, *launchers) as processes:
        steps_reach(tmp_path, processes[0], 4)
        cable("c", "down")
        until(lambda: "node 2 (10.77.0.3) is silent" in said(), "the pause, said")
        during = len(steps(tmp_path))
        cable("c", "up")
        steps_reach(tmp_path, processes[0], during + 9)
        assert "node 2 (10.77.0.3) is there" in said()
        step, sentence = cut_for_good("c")
    assert re.search(r"generate, version \d+: no server is ready since 30 s; "
                     r"https://10.77.0.3:8110 is lost: ", sentence)
    assert step == steps(tmp_path)[-1]
    nothing_is_lost(tmp_path)

    again = [[*words, "--resume"] for words in launchers]
    with running(tmp_path, *again) as processes:
        steps_reach(tmp_path, processes[0], step + 9)
        later, sentence = cut_for_good("b")
    assert re.search(r"version \d+: rank 1 is dead, stuck or cut off", sentence)
    assert re.search(r"rank 1: .*, version \d+: nor does the rendezvous answer",   # which has no
                     (tmp_path / "runs/r/logs/rank_1.log").read_text())            # end of its own
    last = steps(tmp_path)[-1]
    assert step < later and later in (last // 3 * 3, last - 3)      # or it was being written
    nothing_is_lost(tmp_path, later)

    if THOROUGH:
        with running(tmp_path, *again) as processes:
            steps_reach(tmp_path, processes[0], later + 9)
            processes[0].send_signal(signal.SIGINT)
            assert [process.wait(LIMIT_S) for process in processes] == [130, 130, 130]
        nothing_is_lost(tmp_path)
