"""scaleout/launch.py: start the processes of one machine, or say what would be started.

Its trainers run scalerl.py again, with the environment of torchrun and --vllm-url. On several
machines others start the trainers, and this file the servers of each (--serve-only)."""
import importlib.util
import json
import os
import secrets
import shlex
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

import torch
from torch.distributed import TCPStore

from artifacts.settings import LAUNCHED
from config import ConfigError
from engines import load
from engines.vllm_inprocess import BLOCK_TOKENS, HEAD, block_bytes
from scaleout.memory import (CACHE_SHARE, VLLM_MEMORY_SHARE, Estimate, cores_here, device_here,
                             host_memory)
from scaleout.placement import LOOPBACK, Placement, make_placement
from scaleout.supervise import Child, Supervisor, say

ROOT = Path(__file__).resolve().parent.parent


def plan_alone(config):
    """Raises ConfigError for what would fail later in this process; a rank has been planned."""
    # Micro-batches differ in length: without it a GPU's freed memory falls into pieces that none
    # fits. torch reads it when the first GPU memory is taken; what the user has set wins.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    check_machine(config)
    if not started():
        estimate = plan(config)
        estimate.refuse(1, 0)
        config.recompute_layers = estimate.recompute


def wanted(config):
    """Does this command ask for more than the one process it runs in?"""
    return not started() and asks_for_several(config)


def asks_for_several(config):
    return config.gpus > 1 or config.servers > 0 or config.trainers > 1


def started():
    """Has a launcher, ours or another, started this process as one of the trainer's ranks?"""
    return "RANK" in os.environ


def plan(config, address=""):
    """The `Estimate` of this run. Settles `gpus`, `engine`, `vllm_url`. Raises ConfigError."""
    if address:
        config.vllm_url = ""                # the trainers' word, where both have the same ones
    several = bool(address) or wanted(config)
    if config.gpus == -1 and several:
        config.gpus = torch.cuda.device_count()
    cuda = torch.cuda.is_available() if config.gpus == -1 else config.gpus > 0
    load.settle_engine(config, servers=several)
    model, tokenizer = load.load_model(config, shapes_only=True)
    output, length = load.longest_tokens(config, tokenizer, model)
    estimate = Estimate(config, model, output, length, load.compute_dtype(config, cuda),
                        device_here(cuda), alone=not (several or config.vllm_url))
    estimate.recompute |= not several and cuda and not estimate.trainer_fits(1)
    return estimate


def check_machine(config, servers=()):
    """Raises ConfigError: the command asks for GPUs that are not here, or vLLM is not."""
    found = torch.cuda.device_count()                       # also where CUDA does not start
    needed = min(config.gpus, 1) if started() else config.gpus      # a rank may be shown one alone
    if found < needed or (config.gpus and found and not torch.cuda.is_available()):
        why = (f"is the driver new enough for CUDA {torch.version.cuda} (nvidia-smi)?" if found
               or torch.version.cuda else f"torch {torch.__version__} is built for CPUs.")
        raise ConfigError(
            f"gpus = {config.gpus}: torch finds {found} here; {why} gpus = 0: the CPU")
    several = asks_for_several(config) or int(os.environ.get("WORLD_SIZE", 1)) > 1
    if started() and several and not config.vllm_url:
        raise ConfigError("RANK is set here, so this is one rank that somebody else has started: "
                          "it takes --vllm-url; or unset RANK")
    nccl = config.vllm_url and load.device_of(config) == "cuda"     # vLLM has the other end's code
    if (servers or nccl) and importlib.util.find_spec("vllm") is None:
        raise ConfigError("servers need vllm, which is not installed here: run `make vllm`")


def visible(devices):
    """CUDA_VISIBLE_DEVICES for these GPUs among those that we may use ourselves."""
    ours = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return ",".join(ours[i] if ours[0] and i < len(ours) else str(i) for i in devices)


def server_command(config, *, length, slots, dtype, url, device=""):
    """(argv, environment) of one server. length: tokens of the longest sequence; slots: sequences
    decoded at once; device: as CUDA_VISIBLE_DEVICES has them, "0,1"; "": the CPU."""
    parts = urlsplit(url)
    argv = [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server",
            "--model", config.model,            # -P: a loss.py where the user stands is not ours
            "--host", parts.hostname, "--port", str(parts.port),
            "--seed", str(secrets.randbits(32)), "--dtype", str(dtype).removeprefix("torch."),
            "--max-model-len", str(length), "--max-num-seqs", str(slots),
            "--hf-overrides", json.dumps({"head_dtype": HEAD[config.head_fp32]}),
            "--logprobs-mode", "processed_logprobs",        # after temperature
            "--generation-config", "vllm",                  # not the model's own top-p and top-k
            "--enable-prefix-caching",                      # the client salts it with the version
            "--enable-scale-out",                           # the route of token ids in and out
            "--skip-tokenizer-init",                        # ids alone: no text
            "--weight-transfer-config", json.dumps({"backend": "nccl" if device else "http"}),
            "--tensor-parallel-size", str(max(1, config.tensor_parallel)),
            "--disable-uvicorn-access-log", "--uvicorn-log-level", "warning"]
    env = {**os.environ, "VLLM_SERVER_DEV_MODE": "1",       # the routes of pause and weights
           "VLLM_NO_USAGE_STATS": "1",
           "VLLM_HOST_IP": LOOPBACK,         # its inner process groups: all are on this machine
           "VLLM_LOGGING_LEVEL": "INFO", "VLLM_LOG_STATS_INTERVAL": "60",
           "VLLM_ENABLE_V1_MULTIPROCESSING": "1",           # an engine in this process sets it to 0
           # vLLM's worker processes import servers.worker, from whatever folder they run in.
           "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    if device:
        env["CUDA_VISIBLE_DEVICES"] = device
        argv += ["--gpu-memory-utilization", str(VLLM_MEMORY_SHARE)]
    else:
        # Nothing compiled, and a cache for all sequences: engines/vllm_inprocess.py says why.
        blocks = slots * -(-length // BLOCK_TOKENS) + 1
        memory = min(blocks * block_bytes(config.model, dtype), int(CACHE_SHARE * host_memory()))
        argv += ["--enforce-eager", "--block-size", str(BLOCK_TOKENS),
                 "--kv-cache-memory-bytes", str(memory),
                 "--worker-extension-cls", "servers.worker.Worker"]       # http is ours
        env["TORCH_COMPILE_DISABLE"] = "1"      # one comparison a step: seconds, for nothing
        env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"     # else all servers take the same cores
    return argv + shlex.split(config.vllm_args), env


def commands(config, argv, placement, estimate, logs, port):
    """(trainers, servers): Children to start. port: of the store on loopback where ranks meet."""
    ranks, urls = placement.trainers, list(placement.servers)
    threads = max(1, cores_here() // max(1, ranks + len(urls)))     # for all, a thread a core
    env = {"OMP_NUM_THREADS": str(threads), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    servers = []
    for index, (url, devices) in enumerate(placement.servers.items()):
        command, its_env = server_command(config, length=estimate.length, slots=estimate.slots(),
                                          dtype=estimate.dtype, url=url, device=visible(devices))
        servers.append(Child(f"server {index} ({url})", command, env | its_env,
                             log=logs / f"server_{index}.log", hangs=Path(
                                 "runs", config.name, "logs", f"{urlsplit(url).netloc}.hangs")))
    script = [sys.executable, str(ROOT / "scalerl.py"), *(w for w in argv if w != "--dry-run")]
    if urls:
        script += ["--vllm-url", ",".join(urls)]
    if estimate.recompute and not config.recompute_layers:
        script += ["--recompute-layers", "true"]
    env = env | os.environ | {              # what the user has set wins
        LAUNCHED: ",".join(urls), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True"}     # the store is ours, so it outlives every rank
    if config.gpus > 0:
        env["CUDA_VISIBLE_DEVICES"] = visible(range(ranks))
    return [Child(f"rank {i}", script, env | {"RANK": str(i), "LOCAL_RANK": str(i)},
                  log=logs / f"rank_{i}.log" if i else None) for i in range(ranks)], servers


def launch(config, argv, address="", begin=None):
    """Start what `config` asks for and run until it ends. Returns the exit status. address: for
    --serve-only, servers alone; "": a whole run. begin: called once nothing is refused any more."""
    path = Path("runs", config.name, f"servers_{address}.txt")
    path.unlink(missing_ok=True)                # of a start that was killed
    estimate = plan(config, address)
    placement = make_placement(config, estimate, address)
    check_machine(config, placement.servers)
    estimate.refuse(placement.trainers, len(placement.servers))
    if begin:
        begin()
    logs = path.parent / "logs" / address
    logs.mkdir(parents=True, exist_ok=True)
    say(f"{placement.why}; logs in {logs}")
    listener = socket.create_server((LOOPBACK, 0))      # torch's own would be at every address
    store = TCPStore(LOOPBACK, listener.getsockname()[1], None, True, wait_for_workers=False,
                     master_listen_fd=listener.detach())
    supervisor = Supervisor(*commands(config, argv, placement, estimate, logs, store.port))
    if address:
        aside = path.with_suffix(".tmp")
        aside.write_text("".join(f"{url}\n" for url in placement.servers))
        aside.replace(path)                     # whoever waits for it finds all of them
        say(f"{', '.join(placement.servers)}; trainers find them with --vllm-url @{path}; whoever "
            "else reaches them can change the weights")
    try:
        return supervisor.run()
    finally:
        path.unlink(missing_ok=True)


def describe(config, argv, address=""):
    """Print --dry-run, and then refuse what `launch` would. Without a GPU: for another machine."""
    estimate, several = plan(config, address), address or wanted(config)
    placement = make_placement(config, estimate, address) if several else Placement(
        1, {}, f"One process for trainer{'' if config.vllm_url else ' and sampler'}, on "
               f"{['the CPU', 'GPU 0'][estimate.cuda]}.")
    counts = placement.trainers, len(placement.servers)
    print(f"{placement.why}\n\n{estimate.text(*counts)}")
    if several:
        print("\nThe processes (a run takes free ports of its own):")
        logs = Path("runs", config.name, "logs", address)
        for child in sum(commands(config, argv, placement, estimate, logs, "PORT"), []):
            env = [f"{name}={shlex.quote(value)}" for name, value in child.env.items()
                   if os.environ.get(name) != value]
            print(f"  {child.name}, log: {child.log or 'the terminal'}\n   ", *env,
                  shlex.join(map(str, child.argv)))
    if torch.cuda.device_count():
        check_machine(config, placement.servers)
    estimate.refuse(*counts)
