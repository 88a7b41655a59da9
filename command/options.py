"""options.py: the command line of scalerl.py, and its help."""
import argparse
import dataclasses
import inspect
import os
import re
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

from artifacts.settings import PLACE, make_config, read_toml
from config import Config, ConfigError

SOURCE = (Path(__file__).parents[1] / "scalerl.py").read_text("utf-8")
ABOUT = "\n\n".join(SOURCE.split('"""')[1].split("\n\n")[:2])     # what it is, three commands


def make_parser():
    # The fields of Config as its source has them: type, default, and a comment that explains.
    source = inspect.getsource(Config)
    fields = source[source.index("    # -- "):source.index("    def schedule")]
    settings = "settings, each also a key of FILE, as eval_every = 50:\n\n" + re.sub(
        r"(?m)^    (\w+):", lambda field: f"  --{field[1].replace('_', '-')}:",
        fields.replace("field(default_factory=dict)    #", "{}             #").replace(
            "PHRASE     ", '"Okay, ..."'))
    parser = argparse.ArgumentParser(
        prog="scalerl.py", usage="%(prog)s [--config FILE] [--SETTING VALUE ...]", epilog=settings,
        formatter_class=argparse.RawDescriptionHelpFormatter, description=ABOUT, allow_abbrev=False)
    add = parser.add_argument
    add("--config", metavar="FILE", action="append", default=[],
        help="TOML file with differences from the defaults; of several the later wins")
    add("--fresh", action="store_true",
        help="do not go on with the run that is there: it becomes runs/NAME-old-1")
    add("--no-preflight", action="store_true", help="do not try disk, memory and push first")
    add("--dry-run", action="store_true", help="print settings, processes and memory, and stop")
    add("--report", metavar="RUN", help="write RUN/report.html, print the symptoms found, stop")
    add("--serve-only", metavar="ADDRESS", nargs="?", const="127.0.0.1", default="",
        help="start only this machine's vLLM servers, at this address of it [127.0.0.1], and write "
             "theirs to runs/NAME/servers_ADDRESS.txt; trainers take --vllm-url @FILE")
    for flag in map("--{}".format, vars(Config())):     # --eval-every, or as in a file --eval_every
        add(flag.replace("_", "-"), flag, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


def parse(argv):
    """(config, flags): the settings, None with flags.report, and the other options. Raises
    ConfigError, also if runs/NAME has other settings."""
    def refuse(message):
        raise ConfigError(message)
    parser = make_parser()
    parser.error = lambda message: refuse(f"{message}; --help lists all options")
    flags = parser.parse_args(argv)
    if flags.report:
        return None, flags
    values = {}
    for path in map(Path, flags.config):
        values |= read_toml(path)
        if path.name == "config.toml" and path.resolve().parent.parent == Path("runs").resolve():
            values["name"] = path.resolve().parent.name     # also of a run that was copied or moved
    given = {name: vars(flags)[name] for name in vars(Config()) if name in flags}
    config = make_config(values | given)
    saved = Path("runs") / config.name / "config.toml"
    # A start that was refused has no line in the log yet: its settings may still be mended.
    began = saved.exists() and saved.with_name("metrics.jsonl").exists()
    if began and not (flags.fresh or flags.serve_only):
        before, values = (dataclasses.asdict(c) for c in (make_config(read_toml(saved)), config))
        before["name"] = config.name            # of a copied folder
        values = before | {name: value for name, value in values.items()
                           if value != "auto" or name in PLACE}     # "auto" was settled then
        config = make_config(values)
        other = [f"{name} = {value!r} (it has {before[name]!r})" for name, value in values.items()
                 if value != before[name] and name not in PLACE]
        if other:
            refuse(f"{', '.join(other)}: {saved.parent} exists with other settings; repeat its own "
                   f"command (--config {saved} --name {config.name}), or choose another --name; "
                   "--fresh starts over")
    return config, flags


def answer_at_once():
    """Print help, or what is wrong with the command line, and end; else set what torch asks for."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")     # else, on a busy CPU, 25 times slower
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:   # else the shell ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)    # until signals are heeded: no traceback
    try:
        parse(sys.argv[1:])
        if sys.platform == "win32":
            raise ConfigError("Windows has no locks, signals and limits as a run needs them: use "
                              "WSL, the Windows Subsystem for Linux")
        if find_spec("torch") is None:
            raise ConfigError("this Python has no torch: call .venv/bin/python, which `make` makes")
    except (ConfigError, OSError) as error:             # a name that is too long
        print(f"scalerl.py: {error}", file=sys.stderr)
        raise SystemExit(2) from None
