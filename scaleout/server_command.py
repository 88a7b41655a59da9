"""server_command.py: the command line of a stock vLLM server for a run."""

import json
import os
import secrets
import shlex
import sys
from pathlib import Path
from urllib.parse import urlsplit

from servers.addresses import LOOPBACK
from engines.vllm_inprocess import BLOCK_TOKENS, HEAD, block_bytes
from scaleout.memory import CACHE_SHARE, host_memory

ROOT = Path(__file__).resolve().parent.parent


def server_command(config, *, length, slots, dtype, url, device=None):
    """(argv, environment) of one server. length: tokens of the longest sequence; slots: sequences
    decoded at once; device: as CUDA_VISIBLE_DEVICES has them, "0,1"; None: the CPU."""
    parts = urlsplit(url)
    argv = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", config.model,
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
           # Its log tells how far a start is, then how fast it is once a minute.
           "VLLM_LOGGING_LEVEL": "INFO", "VLLM_LOG_STATS_INTERVAL": "60",
           "VLLM_ENABLE_V1_MULTIPROCESSING": "1",           # an engine in this process sets it to 0
           # vLLM's worker processes import servers.worker, from whatever folder they run in.
           "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    if device:
        env["CUDA_VISIBLE_DEVICES"] = str(device)
    else:
        # Weights are prepacked there, so nothing compiled may hold on to them. The cache has room
        # for every slot to grow to the end, in at most a quarter of the memory: short of it, vLLM
        # throws a sequence out and computes its keys and values again, under newer weights.
        blocks = slots * -(-length // BLOCK_TOKENS) + 1
        memory = int(CACHE_SHARE * host_memory())
        argv += ["--enforce-eager", "--block-size", str(BLOCK_TOKENS), "--kv-cache-memory-bytes",
                 str(min(blocks * block_bytes(config.model, dtype), memory)),
                 "--worker-extension-cls", "servers.worker.Worker"]       # http is ours
        # Threads bound to cores would put every server of a machine on the same ones.
        env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    return argv + shlex.split(config.vllm_args), env
