"""vLLM servers, which generate on other GPUs while the trainer trains. A reader of the method needs
none of it: `ServerSampler` in pool.py is an engine as any other."""
