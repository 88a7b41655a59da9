"""More than one process: trainer ranks that share a model, and the vLLM servers beside them.

It changes where something is computed, never what: a first reader may ignore it. launch.py starts
what placement.py has decided and memory.py has room for; team.py is what a rank knows of others.
"""
