"""scaleout/launch.py: start a run of several processes, or say what would be started.

The trainers that it starts run scalerl.py again, with the servers' addresses as --vllm-url.
"""

import contextlib
import importlib.util
import os
import shlex
import socket
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import psutil
import torch
from torch.distributed import DistError, TCPStore

from artifacts.run_folder import RunFolder
from artifacts.settings import LAUNCHED, check, to_toml
from config import ConfigError
from engines import load
from scaleout.memory import Estimate, device_here
from scaleout.placement import make_placement
from scaleout.server_command import server_command
from scaleout.supervise import Child, LaunchError, Supervisor, say

ROOT = Path(__file__).parent.parent
ASK_S = 1.0                         # between two questions to the first host
LATER_S = 20.0                      # the trainers' own deadlines, and their sentences, come first
ANSWER_S = timedelta(seconds=5)     # of the store, where torch has a limit at all


def plan_alone(config, resume=False):
    """The same for a run in this process, which may itself be one that our launcher has started:
    then it has been planned. Raises ConfigError for what would fail minutes later."""
    check_machine(config)
    if not started():
        estimate, _ = plan(config, resume)
        estimate.refuse(1, 0)
        config.recompute_layers = estimate.recompute


def wanted(config):
    """Does this command ask for more than the one process it runs in?"""
    return not started() and bool(
        config.gpus > 1 or config.servers or config.trainers > 1 or config.hosts)


def started():
    """Has our launcher, torchrun or accelerate started this process?"""
    return LAUNCHED in os.environ or "RANK" in os.environ


def plan(config, resume=False):
    """(memory.py's `Estimate` of this run, its folder). Settles `gpus` and `engine` in `config`.
    Raises ConfigError for what the run itself would refuse minutes later."""
    check(config)
    if sentence := load.untested():
        print(sentence, file=sys.stderr)
    if config.gpus == -1 and wanted(config):
        config.gpus = torch.cuda.device_count()
    cuda = torch.cuda.is_available() if config.gpus == -1 else config.gpus > 0
    model, tokenizer = load.load_model(config, shapes_only=True)
    load.settle_engine(config, servers=wanted(config), family=model.config.model_type)
    output, length = load.longest_tokens(config, tokenizer, model)
    estimate = Estimate(config, model, output, length, load.compute_dtype(config, cuda),
                        device_here(cuda), alone=not (wanted(config) or config.vllm_url))
    # If not even the most trainers that are possible have room, the layers are recomputed.
    hosts, rest = len(config.hosts.split(",")), (config.servers or 1) * config.tensor_parallel
    most = config.trainers or max(1, hosts * config.gpus - (0 if config.vllm_url else rest))
    estimate.recompute |= cuda and not estimate.trainer_fits(most if wanted(config) else 1)
    return estimate, RunFolder(config, resume).path


def check_machine(config):
    """Raises ConfigError: the command asks for what this machine has not. A trainer's process asks
    it too: without its GPU it would compute on the CPU, for days."""
    found, needed = torch.cuda.device_count(), max(config.gpus, 0)
    if started():                               # a rank is shown its node's trainers' GPUs alone
        needed = min(needed, 1)
    # They are counted even where CUDA does not start.
    if found < needed or (config.gpus and found and not torch.cuda.is_available()):
        raise ConfigError(f"gpus = {config.gpus}: torch finds {found} here; is the driver "
                          f"(nvidia-smi) new enough for CUDA {torch.version.cuda}? gpus = 0 "
                          "computes on the CPU")


def check_vllm(servers):
    """Raises ConfigError: there are servers to start, and this machine has no vLLM."""
    if servers and importlib.util.find_spec("vllm") is None:
        raise ConfigError("servers need vllm, which is not installed here: run `make vllm`")


def interface_of(host):
    """The name of this machine's network interface with that address, or None."""
    with contextlib.suppress(socket.gaierror):          # a name that is not known here
        address = socket.gethostbyname(host)
        return next((name for name, addresses in psutil.net_if_addrs().items()
                     if any(each.address == address for each in addresses)), None)


def visible(devices):
    """CUDA_VISIBLE_DEVICES for these GPUs, numbered among those that we may use ourselves."""
    ours = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return ",".join(ours[i] if ours[0] and i < len(ours) else str(i) for i in devices)


def commands(config, argv, placement, estimate, folder, port):
    """(trainers, servers) of this node: Children that have not started.

    argv    the command line of scalerl.py, passed on to the trainers
    port    of the store on the first host in which the ranks meet
    """
    node, logs = config.node_rank, folder / "logs"
    ranks, urls = placement.trainers[node], [server.url for server in placement.servers]
    here = [(i, server) for i, server in enumerate(placement.servers) if server.node == node]
    # With a thread a core each, processes would stand in each other's way.
    threads = max(1, len(os.sched_getaffinity(0)) // max(1, ranks + len(here)))
    env = {"OMP_NUM_THREADS": str(threads), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    # gloo and NCCL would take the address of the machine's name, or its first interface: often not
    # the network that `hosts` means.
    if len(placement.hosts) > 1 and (interface := interface_of(placement.hosts[node])):
        env |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    servers = []
    for index, server in here:
        command, its_env = server_command(
            config, model=config.model, length=estimate.length, slots=estimate.slots,
            dtype=estimate.dtype, host=placement.hosts[node], port=server.port,
            device=visible(server.devices) if server.devices else None)
        servers.append(Child(f"server {index} ({server.url})", command, env | its_env,
                             log=logs / f"server_{index}.log"))
    script = [sys.executable, str(ROOT / "scalerl.py"), *(w for w in argv if w != "--dry-run")]
    if urls:
        script += ["--vllm-url", ",".join(urls)]
    if estimate.recompute and not config.recompute_layers:
        script += ["--recompute-layers", "true"]
    env = env | os.environ | {LAUNCHED: ",".join(urls)}         # what the user has set wins
    if placement.gpus:
        env["CUDA_VISIBLE_DEVICES"] = visible(range(ranks))
    if sum(placement.trainers) == 1:
        return [Child("the trainer", script, env)] * ranks, servers
    # What torchrun would set. The store is the launcher's, so it outlives every rank.
    env |= {"WORLD_SIZE": str(sum(placement.trainers)), "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": placement.hosts[0], "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True"}
    first = sum(placement.trainers[:node])
    return [Child(f"rank {rank}", script, env | {"RANK": str(rank), "LOCAL_RANK": str(i)},
                  log=logs / f"rank_{rank}.log" if rank else None)
            for i, rank in enumerate(range(first, first + ranks))], servers


def launch(config, argv, resume=False):
    """Start what `config` asks for on this node and run until it ends. Returns the exit status."""
    check_machine(config)
    estimate, folder = plan(config, resume)
    placement = make_placement(config, estimate)
    check_vllm(placement.servers)
    estimate.refuse(sum(placement.trainers), len(placement.servers))
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    say(f"{placement.why}; logs in {folder / 'logs'}")
    link, status = Link(config, placement.hosts), 1
    try:
        trainers, servers = commands(config, argv, placement, estimate, folder, link.port)
        status = Supervisor(trainers, servers, link).run()
    finally:
        link.close(status)
    return status


class Link:
    """Between the launchers of several nodes, which end together.

    The first host serves a torch TCPStore on `port`, which is also the rendezvous of the trainers'
    ranks. In the end its launcher leaves the exit status of the run there, as "ended"; all others
    ask for it. A TCPStore knows neither TLS nor passwords: private networks only. Raises OSError:
    the first host cannot listen on its address.
    """

    def __init__(self, config, hosts):
        self.hosts, self.rank = hosts, config.node_rank
        self.port = config.port if config.hosts else 0      # 0: a free one
        self.limit_s = config.start_deadline_s + LATER_S
        self.ended, self.heard = None, time.monotonic()
        if self.rank == 0:              # torch itself would listen on all of its addresses
            listener = socket.create_server((hosts[0], self.port))
            self.port = listener.getsockname()[1]
            self.store = TCPStore(hosts[0], self.port, is_master=True, wait_for_workers=False,
                                  timeout=ANSWER_S, master_listen_fd=listener.detach())
        else:
            # A thread, because behind a cut cable a call of the store may have no end.
            threading.Thread(target=self.ask, daemon=True).start()

    def ask(self):
        """Ask the first host every second; connect again whenever the connection is lost."""
        address, store, met = (self.hosts[0], self.port), None, False
        while self.ended is None:
            try:
                if store is None:
                    socket.create_connection(address, timeout=5).close()    # torch's try is noisy
                    store = TCPStore(*address, is_master=False, wait_for_workers=False,
                                     timeout=ANSWER_S)
                if store.check(["ended"]):
                    self.ended = int(store.get("ended"))
                self.heard, met = time.monotonic(), True
            except (OSError, DistError) as error:
                store = None            # not there yet, or cut off: `watch` counts how long
                if met and isinstance(error, ConnectionRefusedError):   # a port without a listener
                    say("the first host's launcher is gone, perhaps by SIGKILL: this node ends")
                    self.ended = 1      # its GPUs and ports are free for the next start
            time.sleep(ASK_S)

    def watch(self):
        """The exit status of the run, None while it goes on. Raises LaunchError: the first host has
        been silent for as long as a start may take, and a little longer."""
        if self.rank and time.monotonic() - self.heard > self.limit_s:
            raise LaunchError(f"the first host, {self.hosts[0]}, has not been heard of for "
                              f"{self.limit_s:g} s: is its launcher running, and the network up?")
        return self.ended

    def close(self, status):
        """Leave the exit status to all nodes, and some seconds to read it."""
        if self.rank == 0:
            self.store.set("ended", str(status))
            time.sleep(3 * ASK_S * (len(self.hosts) > 1))
            self.store = None


def describe(config, argv, resume=False):
    """Print --dry-run, and then refuse what `launch` would. Where there is no GPU, a run on
    another machine is described."""
    estimate, folder = plan(config, resume)
    counts, children = (1, 0), []
    if wanted(config):
        placement = make_placement(config, estimate)
        trainers, servers = commands(config, argv, placement, estimate, folder, config.port)
        counts, children = (sum(placement.trainers), len(placement.servers)), trainers + servers
        print(placement.why)
    else:
        print("One process for trainer and sampler, on", "GPU 0." if estimate.cuda else "the CPU.")
    print("\n" + estimate.text(*counts))
    if children:
        print("\nOn this node (without --hosts a run takes free ports of its own):")
    for child in children:
        env = [f"{name}={shlex.quote(value)}" for name, value in child.env.items()
               if os.environ.get(name) != value]
        print(f"  {child.name}, log: {child.log or 'the terminal'}\n   ", *env,
              shlex.join(map(str, child.argv)))
    if torch.cuda.device_count():
        check_machine(config)
        check_vllm(counts[1])
    estimate.refuse(*counts)
