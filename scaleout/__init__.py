"""More than one process: trainer ranks that share a model, and the vLLM servers beside them. It
changes where something is computed, never what: a first reader may ignore it."""
