"""vllm_inprocess.py: vLLM, stepped by the loop in the trainer's process, as a `Sampler`.

Weights are swapped between two decode steps, and running sequences keep their cache (PipelineRL).
The version of each token is vLLM's own record. Unlike `TransformersSampler` it draws from the
global generators of torch and numpy, and starts unfinished samples again when a run is resumed."""
import copy
import itertools
import os
from collections import Counter

import numpy as np
import torch
from transformers import AutoConfig

from engines.packed import heads
from engines.two_requests import Sample, TwoRequests
from sampler import Request, Rollout

BLOCK_TOKENS = 32           # of a block of the cache; the CPU build wants multiples of 32
# The LM head's dtype by `head_fp32`, whatever the rest has: trainer and sampler must round alike.
HEAD = {True: "float32", False: "bfloat16"}


def load_vllm(model, **options):
    """vLLM's `LLM` in this process. Raises ValueError: not installed, or another version."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"          # the engine in this process
    os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")          # its process group: loopback only
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")           # tell nobody
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        import vllm
        if not vllm.__version__.startswith(("0.32.", "0.33.")):
            raise ImportError(f"vllm {vllm.__version__} is installed, known are 0.32 and 0.33")
    except ImportError as error:
        raise ValueError(f"engine = 'vllm': {error}; run `make vllm`") from None
    return vllm.LLM(model, **options)


def repack(model):
    """Pack head and experts of a vLLM model again after a reload: the CPU build multiplies with
    packed copies, and would keep the old ones of a tied head and of experts."""
    head = getattr(model, "lm_head", None)
    if hasattr(head, "quant_method"):               # not so in all models and pipeline stages
        head.quant_method.process_weights_after_loading(head)
    for layer in model.modules():
        if kernel := getattr(getattr(layer, "quant_method", None), "moe_kernel", None):
            kernel.fused_experts.process_weights_after_loading(layer)


def block_bytes(model, dtype):
    """Bytes of one block of the cache of a Hugging Face model: keys and values of every layer."""
    config = AutoConfig.from_pretrained(model).get_text_config(decoder=True)
    _, J, D = heads(config)
    return 2 * config.num_hidden_layers * J * D * BLOCK_TOKENS * dtype.itemsize


class VllmSampler(TwoRequests):
    """An engine. dtype: of all but the LM head; eager: no CUDA graphs; more: of `TwoRequests`."""
    devices = 0

    def __init__(self, model, tokenizer, interruption, *, slots, seed=0, head_fp32=True,
                 dtype=torch.float32, eager=False, **more):
        super().__init__(tokenizer, interruption, slots=slots, seed=seed, **more)
        self.decoded = Counter()                        # "steps", "sequences": for log()
        self.running: dict[str, tuple[VllmSampler, Sample]] = {}    # by vLLM's name of the request
        self.names = map(str, itertools.count())        # of requests
        length = self.prompt_tokens + interruption.longest
        # Short of room vLLM computes a sequence anew, by other weights. One block is vLLM's own.
        blocks = slots * -(-length // BLOCK_TOKENS) + 1
        self.llm = load_vllm(
            str(model), skip_tokenizer_init=True, dtype=str(dtype).removeprefix("torch."),
            hf_overrides={"head_dtype": HEAD[head_fp32]},
            logprobs_mode="processed_logprobs",         # after temperature
            generation_config="vllm",                   # not the model's own top-p and top-k
            # On a CPU a swap packs weights anew, and compiled code would keep the old ones.
            enforce_eager=eager or not torch.cuda.is_available(),
            async_scheduling=False,     # a step in flight at a swap would get the new label
            enable_prefix_caching=True, block_size=BLOCK_TOKENS, max_model_len=length,
            max_num_seqs=slots, seed=seed, kv_cache_memory_bytes=blocks * block_bytes(model, dtype),
            gpu_memory_utilization=0.01,                # unused, but must not exceed what is free
            use_tqdm_on_load=False, disable_log_stats=True)
        self.engine = self.llm.llm_engine
        self.engine.set_weight_version("0")

    def beside(self, seed):
        """A second sampler on the same engine, for evaluations: a step of one is a step of both."""
        other = copy.copy(self)
        other.random, other.decoded = torch.Generator().manual_seed(seed), Counter()
        other.empty()
        return other

    def submit(self, request: Request):
        self.waiting.extend(self.new_samples(request))

    def push_weights(self, named_tensors, version):
        weights = [(name, tensor.detach()) for name, tensor in named_tensors]
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
        if weights[0][1].device.type == "cpu":
            self.llm.apply_model(repack)
        self.engine.set_weight_version(str(version))
        self.version = version

    def step(self) -> list[Rollout]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind
        while self.waiting and len(self.running) < self.slots:
            name, sample = next(self.names), self.waiting.popleft()
            self.running[name] = self, sample
            # ignore_eos: only our ids end a sample. logprobs=0: of the sampled token alone.
            self.engine.add_request(name, {"type": "token", "cache_salt": str(self.version),
                                           "prompt_token_ids": sample.ids}, SamplingParams(
                temperature=self.temperature, max_tokens=self.budget(sample),
                stop_token_ids=self.eos_ids, ignore_eos=True, logprobs=0, flat_logprobs=True,
                detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY))
        if not self.running:
            return self.finished()
        self.decoded.update(steps=1, sequences=len(self.running))
        for output in self.engine.step():
            owner, sample = self.running.pop(output.request_id)
            answer = output.outputs[0]
            ids, logprobs = list(answer.token_ids), list(answer.logprobs.logprobs)
            versions = [int(span.version) for span in answer.weight_versions
                        for _ in range(span.start, span.end)]
            assert len(ids) == len(logprobs) == len(versions) > 0
            owner.absorb(sample, ids, logprobs, versions, self.version)
        return self.finished()

    def reseed(self, seed):
        super().reseed(seed)
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)                    # on a GPU each request's seed comes from it

    def load_state(self, state):
        super().load_state(state)
        np.random.seed(state["random"].numpy())         # vLLM seeds it alike at each start

    def log(self):
        steps, sequences = (self.decoded.pop(name, 0) for name in ("steps", "sequences"))
        return {"decode/steps": steps, "decode/batch": sequences / max(1, steps)}

    def close(self):
        self.engine.engine_core.shutdown()
