"""options.py: the command line of scalerl.py, and its help."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
from pathlib import Path
from typing import get_args, get_type_hints

from artifacts.settings import (FREE_TO_CHANGE, REPLACED, did_you_mean, make_config, read_toml)
from config import Config, ConfigError


def documented_fields():
    """[(title, [[field, comment]])] of Config, read from its source: the comments are the help.

    A title is a line "# -- title". A comment stands after its field. Lines below it that hold only
    a comment, indented by 20 or more, belong to it.
    """
    fields, groups = {f.name: f for f in dataclasses.fields(Config)}, []
    for line in inspect.getsource(Config).splitlines():
        if title := re.fullmatch(r"    # -- (.*)", line):
            groups.append((title[1], []))
        elif more := re.fullmatch(r" {20,}# (.*)", line):
            groups[-1][1][-1][1] += " " + more[1]
        elif (entry := re.match(r"    (\w+): .*?  # (.*)", line)) and entry[1] in fields:
            groups[-1][1].append([fields[entry[1]], entry[2]])
    return groups


def make_parser(page, about=""):
    """An argument parser with an option for each setting. Its help shows the groups of one `page`,
    "recipe" or "placement"; it understands the options of both."""
    parser = argparse.ArgumentParser(
        prog="scalerl.py", usage="%(prog)s [--config FILE] [--SETTING VALUE ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter, description=about,
        epilog="Every setting is also a key of FILE. [in brackets]: the default.",
        allow_abbrev=False, add_help=False)
    add = parser.add_argument
    add("-h", "--help", nargs="?", const="recipe", metavar="placement",
        choices=["recipe", "placement"],
        help="print this text, or the settings of memory, processes and machines, and stop")
    add("--config", metavar="FILE", action="append", default=[],
        help="TOML file with differences from the defaults; of several the later wins")
    add("--resume", action="store_true", help="go on with runs/NAME")
    add("--report", metavar="RUN",
        help="write RUN/report.html, print which symptoms of docs/is-it-working.md it shows, stop")
    add("--check", metavar="STEPS", nargs="?", const=30, type=int,
        help="check model and task before a run, with so many steps of a reward that any loop "
             "learns [30], and stop")
    add("--print-config", action="store_true", help="print all settings and stop")
    add("--dry-run", action="store_true",
        help="print what would run where, what memory it would take, and stop")
    add("--serve-only", metavar="ADDRESS", nargs="?", const="127.0.0.1", default="",
        help="start only this machine's vLLM servers, at this address of it [127.0.0.1], and write "
             "theirs to runs/NAME/servers_ADDRESS.txt; trainers take --vllm-url @FILE")
    kinds = get_type_hints(Config)
    for title, entries in documented_fields():
        group = parser.add_argument_group(title)
        shown = title.startswith("placement") == (page == "placement")
        for f, comment in entries:
            default = str(getattr(Config(), f.name))[:40] or '""'
            metavar = "|".join(filter(None, get_args(kinds[f.name]))) or f.type.upper()
            text = f"{comment} [{default}]".replace("%", "%%")
            group.add_argument(f"--{f.name.replace('_', '-')}", metavar=metavar,
                               default=argparse.SUPPRESS, help=text if shown else argparse.SUPPRESS)
    return parser


# Options that are no settings.
FLAGS = ("resume", "dry_run", "serve_only", "print_config", "report", "check")


ABOUT = """Train a language model with the ScaleRL recipe (arXiv 2510.13786).

    python scalerl.py --config configs/demo.toml               a toy model, on a laptop, in minutes
    python scalerl.py --config configs/demo.toml --config configs/loo/dapo_loss.toml --name dapo
                                                               the same, one decision changed
    python scalerl.py --model Qwen/Qwen3-8B --task polaris-53k --gpus 8
    python fit.py runs/demo                                    fit its curve, predict more compute"""


def parse(argv, about=ABOUT):
    """(config, flags) from the command line; `about` begins its help. flags has the values of
    FLAGS. If flags.report, the folder of a run, is given, config is None.

    Raises ConfigError: an argument is unknown, the value of a setting is wrong, or --resume cannot
    change it. Raises SystemExit(0) after --help.
    """
    def refuse(message):
        raise ConfigError(message)
    parser = make_parser("recipe", about)
    parser.error = refuse
    options, unknown = parser.parse_known_args(argv)
    given = vars(options)
    if page := given.pop("help"):
        make_parser(page, about).print_help()
        raise SystemExit(0)
    if unknown:
        name = unknown[0].lstrip("-").split("=")[0].replace("-", "_")
        if name in REPLACED:
            refuse(f"{name} {REPLACED[name]}")
        known = [*FLAGS, "config", "help", *(f.name for f in dataclasses.fields(Config))]
        hint = did_you_mean(name, known, "--{}").replace("_", "-")
        refuse(f"unknown argument {unknown[0]!r}{hint}")
    flags = argparse.Namespace(**{key: given.pop(key) for key in FLAGS})
    if flags.report:
        return None, flags
    values = {}
    for path in given.pop("config"):
        values |= read_toml(path)
    values |= given
    config = make_config(values)
    if flags.check is not None:
        config.name += "-check"             # --check writes nothing: a run of this name may exist
    saved = Path("runs") / config.name / "config.toml"
    if flags.resume and saved.exists():     # a run goes on with its own settings, with changes
        before = dataclasses.asdict(make_config(read_toml(saved)))
        config = make_config(before | values)
        for name, value in dataclasses.asdict(config).items():
            if value != before[name] and name not in FREE_TO_CHANGE:
                refuse(f"{name} = {value!r}: {saved.parent} was made with {before[name]!r}, and "
                       "--resume cannot change it; start a new run")
    return config, flags
