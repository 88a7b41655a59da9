"""options.py: the command line of scalerl.py, and its help."""

import argparse
import dataclasses
import inspect
import sys
from pathlib import Path
from typing import get_args, get_type_hints

from artifacts.settings import PLACE, did_you_mean, make_config, read_toml
from config import Config, ConfigError

# Options that are no settings.
FLAGS = ("fresh", "dry_run", "no_preflight", "serve_only", "report")

ABOUT = """Train a language model with the ScaleRL recipe (arXiv 2510.13786).

    python scalerl.py --config configs/demo.toml            a toy model, on a laptop, in minutes
    python scalerl.py --model Qwen/Qwen3-8B --task polaris-53k --gpus 8
    python fit.py runs/demo                                 fit its curve, predict more compute"""


def documented_fields():
    """{title: {name: comment}} of Config, read from its source: the comments are the help. A title
    is a line "# -- title"; a comment goes on in lines that are indented deeper than the fields."""
    names, groups = [f.name for f in dataclasses.fields(Config)], {}
    for line in inspect.getsource(Config).splitlines():
        code, _, comment = line.partition("# ")
        word = code.partition(":")[0].strip()
        if comment.startswith("-- "):
            group = groups[comment.removeprefix("-- ")] = {}
        elif word in names:
            name = word
            group[name] = comment
        elif comment and len(code) > len("    "):
            group[name] += " " + comment
    return groups


def make_parser():
    parser = argparse.ArgumentParser(
        prog="scalerl.py", usage="%(prog)s [--config FILE] [--SETTING VALUE ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter, description=ABOUT,
        epilog="Every setting is also a key of FILE. [in brackets]: the default.",
        allow_abbrev=False)
    add = parser.add_argument
    add("--config", metavar="FILE", action="append", default=[],
        help="TOML file with differences from the defaults; of several the later wins")
    for flag, text in (
            ("--fresh", "begin again: the run that is there becomes runs/NAME-old-1 (not "
             "under torchrun); else a command that is repeated goes on with its run"),
            ("--no-preflight", "do not try disk, memory and push before the first evaluation"),
            ("--dry-run", "print all settings, what would run where, what memory it would take, "
             "and stop")):
        add(flag, action="store_true", help=text)
    add("--report", metavar="RUN",
        help="write RUN/report.html, print which symptoms of docs/is-it-working.md it shows, stop")
    add("--serve-only", metavar="ADDRESS", nargs="?", const="127.0.0.1", default="",
        help="start only this machine's vLLM servers, at this address of it [127.0.0.1], and write "
             "theirs to runs/NAME/servers_ADDRESS.txt; trainers take --vllm-url @FILE")
    kinds = get_type_hints(Config)
    for title, comments in documented_fields().items():
        group = parser.add_argument_group(title)
        for name, comment in comments.items():
            kind, default = kinds[name], str(getattr(Config(), name))[:40] or '""'
            metavar = "|".join(get_args(kind)) or kind.__name__.upper()
            group.add_argument(option(name), metavar=metavar, default=argparse.SUPPRESS,
                               help=f"{comment} [{default}]".replace("%", "%%"))
    return parser


def option(name):
    return f"--{name.replace('_', '-')}"


def parse(argv):
    """(config, flags) from the command line; flags has the values of FLAGS, and with flags.report
    config is None. Raises ConfigError, also if runs/NAME was made with other settings."""
    def refuse(message):
        raise ConfigError(message)
    parser = make_parser()
    parser.error = refuse
    options, unknown = parser.parse_known_args(argv)
    given = vars(options)
    if unknown:
        names = [*FLAGS, "config", "help", *(f.name for f in dataclasses.fields(Config))]
        hint = did_you_mean(unknown[0].partition("=")[0], list(map(option, names)))
        refuse(f"unknown argument {unknown[0]!r}{hint}")
    flags = argparse.Namespace(**{key: given.pop(key) for key in FLAGS})
    if flags.report:
        return None, flags
    values = {}
    for path in given.pop("config"):
        values |= read_toml(path)
    values |= given
    config = make_config(values)
    saved = Path("runs") / config.name / "config.toml"
    if saved.exists() and not (flags.fresh or flags.serve_only):
        before, values = (dataclasses.asdict(c) for c in (make_config(read_toml(saved)), config))
        # "auto" was settled when the run began.
        values = before | {name: value for name, value in values.items() if value != "auto"}
        config = make_config(values)
        other = [f"{name} = {value!r} (it has {before[name]!r})" for name, value in values.items()
                 if value != before[name] and name not in PLACE]
        if other:
            refuse(f"{', '.join(other)}: {saved.parent} exists with other settings; repeat its own "
                   f"command (--config {saved} has them), or choose another --name; --fresh starts "
                   "over")
    return config, flags


def answer_at_once():
    """Print help, or what is wrong with the command line, and end the program; else do nothing."""
    try:
        parse(sys.argv[1:])
    except ConfigError as error:
        print(f"scalerl.py: {error}", file=sys.stderr)
        raise SystemExit(2) from None
