"""What makes results/study: the paper's findings, looked for on a laptop.

PLAN.md was committed before the runs: what is compared, and which rule decides. Each experiment is
a TOML file. `make study` (run.py) makes the runs that are missing, `make study-figures`
(figures.py) every table and figure from the tables of the runs in results/study. retired.py asks
retired prompts again. Its models need no hub: toy.py makes one that reasons a little, smollm2.py
gets a real one. Only bench/, course/ and tests import this folder; on a first reading it may be
ignored.
"""
