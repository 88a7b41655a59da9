"""servers.py: vLLM servers, near or far, behind the `Sampler` protocol.

  1. `server_command`: how a stock vLLM server is started for a run. Whoever starts it (the
     launcher, a person, a cluster) runs this command; the trainer only ever knows its URL.

Nothing in vLLM is replaced: its token route, its pause, its weight transfer. What it lacks on a
CPU, a transfer engine over gloo, is weight_wire.py, loaded by the server's own option for that.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from vllm_engine import BLOCK_TOKENS, block_bytes

LOOPBACK = ("127.0.0.1", "localhost", "::1")

# ---------------------------------------------------------------------------------------------
# 1. Starting one


def server_command(config, *, model, length, slots, dtype, host, port, device=None):
    """(argv, environment) of one stock vLLM server for this run.

    model    the folder or name that the run trains
    length   tokens of the longest sequence: prompt, thinking, phrase and answer
    slots    sequences that each of its data-parallel copies decodes at once
    dtype    torch dtype of weights and cache; the head is fp32 where config.head_fp32
    host     the address it listens on;  port: its HTTP port
    device   its GPUs as CUDA_VISIBLE_DEVICES has them, "0,1"; None: the CPU

    The environment is this process's with what vLLM needs on top; pass it whole to the child.
    Give the child a process group of its own: vLLM starts workers, and they must end with it.
    """
    name = str(dtype).removeprefix("torch.")
    argv = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
            "--host", host, "--port", str(port), "--dtype", name,
            "--max-model-len", str(length), "--max-num-seqs", str(slots),
            "--hf-overrides",
            json.dumps({"head_dtype": "float32" if config.head_fp32 else "model"}),
            "--logprobs-mode", "processed_logprobs",        # after temperature
            "--generation-config", "vllm",                  # not the model's own top-p and top-k
            "--enable-prefix-caching",                      # salted with the version by the client
            "--enable-scale-out",                           # the route of token ids in and out
            "--weight-transfer-config", json.dumps({"backend": "nccl" if device else "gloo"}),
            "--worker-extension-cls", "weight_wire.Worker",
            "--tensor-parallel-size", str(config.tensor_parallel),
            "--pipeline-parallel-size", str(config.pipeline_parallel),
            "--data-parallel-size", str(config.data_parallel),
            # Two servers of one seed would draw the same random numbers.
            "--seed", str(config.seed + port),
            "--disable-uvicorn-access-log", "--uvicorn-log-level", "warning"]
    env = {**os.environ, "VLLM_SERVER_DEV_MODE": "1",       # the routes of pause and weights
           "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING",
           # weight_wire.py is imported by vLLM's worker processes, whatever their folder is.
           "PYTHONPATH": os.pathsep.join(filter(None, (
               str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH"))))}
    if host in LOOPBACK:
        env["VLLM_HOST_IP"] = "127.0.0.1"                   # its inner process groups as well
    if config.tls:
        folder = Path(config.tls)
        argv += ["--ssl-keyfile", str(folder / "key.pem"),
                 "--ssl-certfile", str(folder / "cert.pem"),
                 "--ssl-ca-certs", str(folder / "ca.pem"), "--ssl-cert-reqs", "2"]
    if device:
        env["CUDA_VISIBLE_DEVICES"] = str(device)
    else:
        # Weights are prepacked there, so nothing compiled may hold on to them. The cache has room
        # for every slot to grow to the end, in at most a quarter of the memory: short of it, vLLM
        # throws a sequence out and computes its keys and values again, under newer weights.
        blocks = slots * -(-length // BLOCK_TOKENS) + 1
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
        argv += ["--enforce-eager", "--block-size", str(BLOCK_TOKENS), "--kv-cache-memory-bytes",
                 str(min(blocks * block_bytes(model, dtype), memory))]
        # Threads bound to cores would put every server of a machine on the same ones.
        env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        if config.threads:
            env["OMP_NUM_THREADS"] = str(config.threads)
    return argv, env
