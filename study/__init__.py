"""What makes results/study: the paper's findings, looked for on a laptop.

PLAN.md was committed before the runs: what is compared, and which rule decides. Each experiment is
a TOML file. `make study` (run.py) makes the runs that are missing, `make study-figures`
(figures.py) every table and figure from the tables of the runs in results/study. retired.py asks
retired prompts again. Its models need no hub: toy.py makes one that reasons a little, smollm2.py
gets a real one. Only bench/, course/ and tests import this folder; on a first reading it may be
ignored.
"""
import sys


def in_one_process(argv):
    """The words of a command line for command.main, from a program that changes classes first. Ends
    the program where they ask for several processes: these would be plain scalerl.py."""
    from command.options import parse
    from config import ConfigError
    from scaleout import launch
    try:
        config, flags = parse(argv)
    except ConfigError:                     # of which main tells
        return argv
    if config and (flags.serve_only or launch.wanted(config)):
        sys.exit("one process only, as others would train plain ScaleRL: leave out --servers, "
                 "--trainers, --serve-only and --gpus above 1")
    return argv
