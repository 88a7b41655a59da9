"""vllm_engine.py: vLLM, stepped by the trainer's loop, behind the `Sampler` protocol.

The second engine of sampler.py: the same `submit`, `step`, `push_weights`, the same `Rollout`s.
vLLM lives in the trainer's process and decodes one token of every running sequence a `step()`,
so decode steps and optimizer steps alternate as they do with `TransformersSampler`. What it adds
is vLLM's kernels; what it must keep, each point with its test in tests/test_vllm.py:

  1. Weights are swapped between two steps. Running sequences keep their keys and values and go
     on (PipelineRL), and every token carries the version that produced it: vLLM's own record.
  2. A log-prob is of the distribution sampled from: temperature included, fp32 head, no top-p.
  3. The G samples of a prompt share its keys and values through vLLM's prefix cache, and no
     block computed under other weights is ever served. Each request is salted with the version
     at which its first step runs. So a block under salt v is looked up only while v is current,
     and everything found there was computed under v. That needs requests never to wait inside
     vLLM, or a swap would come between salt and step: they wait here, and are handed over only
     when slots, cache and the token budget of the coming step have room for them.
  4. Interruption takes two requests. The first may think; if `</think>` is missing when its
     budget is spent, the phrase is appended and a second request goes on from there.

How it differs from `TransformersSampler`: the second request looks its tokens up in the prefix
cache, so keys and values older than the current weights are computed again; tokens are drawn from
torch's global generator, not one of its own; and vLLM's cache cannot be saved, so a checkpoint
keeps what was asked for and a resumed run starts unfinished samples again.

vLLM is imported when an engine is made: whoever has none can read and run all the rest.
"""

from __future__ import annotations

import os
from collections import deque

import torch
from transformers import AutoConfig

from packed import heads
from sampler import Interruption, Request, Rollout, Sample, TwoRequests, check_fits

# Tokens in a block of the cache. Only whole blocks are shared, so small ones share more of a
# prompt; the CPU build wants multiples of 32.
BLOCK_TOKENS = 32
# The LM head's dtype by `head_fp32`, whatever the rest has: trainer and sampler must round alike.
HEAD = {True: "float32", False: "bfloat16"}


def load_vllm(model, **options):
    """vLLM's `LLM` in this process. Raises ValueError: not installed, or another version.

    vLLM changes three things for the whole process that the trainer needs left alone: the worker
    replaces `torch.set_num_threads` by a function that refuses, and its settings come from the
    environment. The first is put back; the second cannot be had otherwise.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"          # the engine in this process
    os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")          # its process group: loopback only
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")           # tell nobody
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        import vllm
    except ImportError as error:
        raise ValueError(f"engine = 'vllm': vllm cannot be imported ({error}); run `make vllm`, or "
                         "use engine = 'transformers'") from None
    if not vllm.__version__.startswith(("0.32.", "0.33.")):
        raise ValueError(f"engine = 'vllm': vllm {vllm.__version__} is installed, this code knows "
                         "0.32 and 0.33; run `make vllm`, or use engine = 'transformers'")
    set_num_threads = torch.set_num_threads
    try:
        return vllm.LLM(model, **options)
    finally:
        torch.set_num_threads = set_num_threads


def refresh_tied_head(model):
    """Repack the LM head of a vLLM model on the CPU after its weights were reloaded.

    The CPU build multiplies with a packed copy of each weight. A reload packs again the layers
    it loads, but a tied head is loaded as the embedding, and its packed copy stays as it was:
    new hidden states, old logits, no error (mean |dlogp| 0.19 on a small model).
    """
    # None: a model that multiplies with its embedding itself. No method: a pipeline's other stages.
    head = getattr(model, "lm_head", None)
    if hasattr(head, "quant_method"):
        head.quant_method.process_weights_after_loading(head)


def block_bytes(model, dtype):
    """Bytes of one block of the cache of a Hugging Face model: keys and values of every layer."""
    config = AutoConfig.from_pretrained(model)
    _, J, D = heads(config)
    return 2 * config.num_hidden_layers * J * D * BLOCK_TOKENS * dtype.itemsize


class VllmSampler(TwoRequests):
    """Caller-driven vLLM in this process. Implements `Sampler`.

    model, tokenizer   a Hugging Face folder or name, and its tokenizer
    slots              sequences decoded at once, at most; fewer where memory is short
    prompt_tokens      the longest prompt (with the interruption, gives the size of the cache)
    eos_ids            ids that end a sample
    dtype              of weights and cache; the LM head's is fp32 if head_fp32, else bf16
    kv_bytes           memory for the cache, at most; 0: as much as all slots can ever fill
    seed               of the thinking budgets, and of torch's global generator

    Raises ValueError: no usable vLLM; no room for one sequence; from `submit`, a prompt or group
    that cannot fit.
    """

    def __init__(self, model, tokenizer, interruption: Interruption, *, slots, prompt_tokens,
                 eos_ids, temperature=1.0, seed=0, head_fp32=True, dtype=torch.float32, version=0,
                 kv_bytes=0):
        super().__init__(tokenizer, interruption, slots=slots, prompt_tokens=prompt_tokens,
                         eos_ids=eos_ids, temperature=temperature, seed=seed, version=version)
        self.dtype, self._head_fp32 = dtype, head_fp32
        self.waiting: deque[Request] = deque()          # groups not yet begun
        self.resuming: deque[Sample] = deque()          # samples between their two requests
        self.running: dict[str, Sample] = {}            # by vLLM's name of the request under way
        self.requests = 0                               # ever: the next one's name

        length = prompt_tokens + interruption.longest
        # As many sequences as can all grow to the end. More would sometimes have to be thrown
        # out and computed again, under weights that may have changed since. One block is vLLM's.
        per_slot = -(-length // BLOCK_TOKENS)                   # blocks of the longest sequence
        size = block_bytes(model, dtype)
        most = (slots * per_slot + 1) * size
        kv_bytes = min(kv_bytes or most, most)
        self.slots = slots = min(slots, (kv_bytes // size - 1) // per_slot)
        if slots < 1:
            raise ValueError(f"kv_bytes = {kv_bytes:,}: the cache of one sequence, {length} "
                             f"tokens, takes {(per_slot + 1) * size:,}: lower think_max or "
                             "answer_tokens, or generate on other GPUs (servers)")
        # Room in one step for every running sequence and for the longest second request, or for
        # a whole new group, whose prompt costs at most one block more for each further sample.
        self.step_tokens = slots + max(8192, length, prompt_tokens + slots * BLOCK_TOKENS)
        self.llm = load_vllm(
            str(model), skip_tokenizer_init=True, dtype=str(dtype).removeprefix("torch."),
            hf_overrides={"head_dtype": HEAD[head_fp32]},
            logprobs_mode="processed_logprobs",         # after temperature
            generation_config="vllm",                   # not the model's own top-p and top-k
            enforce_eager=True,                         # weights change: nothing may be baked in
            # With a step in flight at a swap, its tokens would get the new version's label.
            async_scheduling=False,
            enable_prefix_caching=True, block_size=BLOCK_TOKENS, max_model_len=length,
            max_num_seqs=slots, max_num_batched_tokens=self.step_tokens, seed=seed,
            kv_cache_memory_bytes=kv_bytes,
            gpu_memory_utilization=0.01,                # unused, but must not exceed what is free
            use_tqdm_on_load=False, disable_log_stats=True)
        self.engine = self.llm.llm_engine
        self.engine.set_weight_version(str(version))

    @property
    def head_fp32(self):
        return self._head_fp32

    @head_fp32.setter
    def head_fp32(self, value):
        """Switch the LM head's precision between two steps (the self-test compares both)."""
        self._head_fp32 = value
        dtype = getattr(torch, HEAD[value])
        self.llm.apply_model(lambda model: setattr(model.logits_processor, "head_dtype", dtype))

    @property
    def in_flight(self):
        return (len(self.running) + len(self.resuming)
                + sum(request.samples for request in self.waiting))

    @property
    def free_slots(self):
        return self.slots - self.in_flight

    def submit(self, request: Request):
        check_fits(request, self.prompt_tokens, self.slots)
        self.waiting.append(request)

    def push_weights(self, named_tensors, version):
        """New weights under transformers' names; running sequences keep their cache."""
        assert version >= self.version, f"version {version} pushed after {self.version}"
        weights = [(name, tensor.detach()) for name, tensor in named_tensors]
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
        if weights[0][1].device.type == "cpu":
            self.llm.apply_model(refresh_tied_head)
        self.engine.set_weight_version(str(version))
        self.version = version

    def step(self) -> list[Rollout]:
        """Decode one token of every running sequence, start waiting ones; return the finished."""
        self._start()
        if not self.running:
            return []
        return [rollout for output in self.engine.step()
                if (rollout := self._collect(output)) is not None]

    def close(self):
        """Forget what is under way and give vLLM's memory back."""
        self.engine.abort_request(list(self.running))
        for queue in (self.waiting, self.resuming, self.running):
            queue.clear()
        self.engine.engine_core.shutdown()

    # -- the parts of a step, in their order --------------------------------------------------

    def _start(self):
        """Hand over what the coming step can take whole: second requests first, then groups.

        Nothing may be left waiting inside vLLM when the step is over (header, point 3).
        """
        room = self.step_tokens - len(self.running)
        while self.resuming:
            sample = self.resuming[0]
            cost = len(sample.request.prompt_ids) + len(sample.ids)     # if no block is found
            if cost > room:
                return
            room -= cost
            self._request(self.resuming.popleft())
        while self.waiting:
            request = self.waiting[0]
            cost = len(request.prompt_ids) + (request.samples - 1) * BLOCK_TOKENS
            if cost > room or len(self.running) + request.samples > self.slots:
                return
            room -= cost
            self.waiting.popleft()
            for sample in self.new_samples(request):
                self._request(sample)

    def _request(self, sample):
        """Ask vLLM for more of this sample, under the current version's salt."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind
        self.requests += 1
        name = str(self.requests)
        # Ends are ours alone: what the model's folder calls its end is not asked. Log-probs of the
        # sampled token alone (0 more), as flat lists instead of a dictionary a token. Everything
        # is returned once, when the request is over.
        parameters = SamplingParams(
            temperature=self.temperature, max_tokens=self.budget(sample),
            stop_token_ids=self.eos_ids, ignore_eos=True, logprobs=0, flat_logprobs=True,
            detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)
        prompt = {"type": "token", "cache_salt": str(self.version),
                  "prompt_token_ids": [*sample.request.prompt_ids, *sample.ids]}
        self.engine.add_request(name, prompt, parameters)
        self.running[name] = sample

    def _collect(self, output):
        """A finished request: the sample's rollout, or None if it goes on with its second one."""
        sample, answer = self.running.pop(output.request_id), output.outputs[0]
        ids, logprobs = list(answer.token_ids), list(answer.logprobs.logprobs)
        versions = [int(span.version) for span in answer.weight_versions
                    for _ in range(span.start, span.end)]
        asked = self.budget(sample)
        if not len(ids) == len(logprobs) == len(versions) <= asked or not ids:
            raise RuntimeError(f"vllm returned {len(ids)} tokens, {len(logprobs)} log-probs and "
                               f"{len(versions)} versions for a request of {asked}")
        rollout = self.absorb(sample, ids, logprobs, versions, self.version)
        if rollout is None:
            self.resuming.append(sample)
        return rollout

    # -- checkpoint ---------------------------------------------------------------------------

    def state(self):
        """(tensors, plain): what was asked for and has not been returned yet."""
        return self.unfinished_state([*self.running.values(), *self.resuming], self.waiting)

    def load_state(self, tensors, plain):
        """Ask again for everything unfinished, from the start."""
        self.waiting = deque(self.unfinished_requests(tensors, plain))
        self.version = plain["version"]
        self.engine.set_weight_version(str(self.version))
