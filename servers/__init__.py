"""vLLM servers, which generate on other GPUs while the trainer trains. A reader of the method needs
none of it: sampler.py is an engine as any other, over pool.py."""
