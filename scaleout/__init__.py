"""More than one process: trainer ranks that share a model, and the vLLM servers beside them.

`launch.py` is the command with `--gpus 8`, or `--serve-only`: it decides what runs where on this
machine (`placement.py`), says whether that fits into memory (`memory.py`), starts everything, and
ends everything (`supervise.py`). Each rank then runs `scalerl.py` again, and `team.py` is what its
trainer knows of the other ranks. On several machines torchrun, accelerate or Slurm start the ranks.

On a first reading all of it may be ignored: it changes where something is computed, never what.
"""
