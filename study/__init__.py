"""What makes results/study: the paper's findings, looked for on a laptop.

PLAN.md was committed before the runs: what is compared, and which rule decides. Each experiment is
a TOML file. `make study` (run.py) makes the runs that are missing, `make study-figures`
(figures.py) every table and figure from the tables of the runs in results/study. retired.py asks
retired prompts again. Nothing else imports this folder but scripts of bench/ and tests; a reader of
the method may ignore it.
"""
