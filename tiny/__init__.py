"""Models that need no hub, as ordinary folders: toy.py makes a toy that reasons a little and
wrongly, smollm2.py takes a real small model out of a Python package. Training calls neither.
"""
