"""More than one process: trainer ranks that share a model, vLLM servers, several nodes.

`launch.py` is the command with `--gpus 8`: it decides what runs where (`placement.py`), says
whether that fits into memory (`memory.py`), starts everything, and ends everything
(`supervise.py`), on several hosts too. `scalerl.py` calls `launch.instead_of_training`. Each rank
then runs `scalerl.py` again, and `team.py` is what its trainer knows of the other ranks.

On a first reading all of it may be ignored: it changes where something is computed, never what.
"""
