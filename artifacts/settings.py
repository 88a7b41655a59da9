"""settings.py: a run's settings as a TOML file, and what is refused of them."""
import contextlib
import dataclasses
import json
import math
import shlex
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import get_args, get_type_hints

from config import Config, ConfigError


@contextlib.contextmanager
def refused(about="", errors=ValueError):
    """These errors of what is called inside are the user's wrong input: a ConfigError."""
    try:
        yield
    except errors as error:
        raise ConfigError(about + (" ".join(str(error).split())[:300] or repr(error))) from None


def check(config):
    """Raises ConfigError for what cannot work; GPUs and model are checked later."""
    def refuse(name, right):
        raise ConfigError(f"{name} = {getattr(config, name)!r}: {right}")
    for rule, holds, names in (     # of numbers; a nan is refused: it fails every comparison
        ("above zero", lambda x: 0 < x < math.inf, "steps prompts_per_step micro_batch_tokens "
         "slots prompt_tokens think_max answer_tokens eval_every eval_samples heldout_prompts "
         "temperature lr grad_clip adam_eps deadline_s save_minutes"),
        ("zero or above", lambda x: 0 <= x < math.inf,
         "warmup_steps weight_decay servers trainers tensor_parallel"),
        ("in [0, 1)", lambda x: 0 <= x < 1, "beta1 beta2 eps_low eps_high"),
        ("in [0, 1]", lambda x: 0 <= x <= 1, "max_unusable"),
        ("1 or above", lambda x: 1 <= x < math.inf, "eps_max"),     # the ratio starts at 1
        ("above zero; above 1 no prompt retires", lambda x: x > 0, "retire_at"),
        ("from 0 to 2^32 - 2, as vLLM asks", lambda x: 0 <= x < 2**32 - 1, "seed"),
        ("-1 (one if there is one), 0, or their number", lambda x: x >= -1, "gpus"),
    ):
        for name in names.split():
            if not holds(getattr(config, name)):
                refuse(name, f"must be {rule}")
    # Settings that only make sense together: (name, what is wrong, what would be right).
    config.schedule()
    group, longest = config.samples_per_prompt, config.think_max + config.answer_tokens
    for name, wrong, right in (
        ("samples_per_prompt", group < 2, "must be 2 or more: an advantage compares samples"),
        ("slots", group > config.slots, f"must hold the {group} samples of a prompt"),
        ("think_min", not 1 <= config.think_min <= config.think_max,
         f"must lie in 1..think_max = {config.think_max}"),
        ("length_penalty", not 0 <= config.length_penalty <= longest,
         f"must lie in 0..think_max + answer_tokens = {longest}"),
        ("advantage_norm", config.advantage_norm == "mean" and config.length_penalty,
         "it divides by 2 p, which is for rewards of +-1: use another, or no length_penalty"),
        ("think_close", not config.think_close, "must be text: the verifier reads what follows"),
        ("interrupt_phrase", config.interrupt_phrase and
         config.think_close not in config.interrupt_phrase,
         f"must hold think_close = {config.think_close!r}, or be empty"),
        ("eps_high", config.loss == "dapo" and config.eps_low >= config.eps_high,
         "dapo's upper clip is the wider one, 0.26 in the paper"),
        ("eps_high", config.loss == "gspo" and max(config.eps_low, config.eps_high) > 0.05,
         "for gspo give eps_low = 3e-3, eps_high = 5e-3 (paper), or near"),
        ("model", not config.model, "give a Hugging Face folder or name, as models/toy"),
        ("name", Path(config.name).name != config.name or config.name == ".." or
         "," in config.name, "must name one folder, to be made in runs/, without vllm_url's comma"),
        ("vllm_args", any(word.startswith(("--tensor", "-tp")) for word in
                          config.vllm_args.split()), "use the setting tensor_parallel"),
    ):
        if wrong:
            refuse(name, right)
    with refused(f"vllm_args = {config.vllm_args!r}: cannot be split into options: "):
        shlex.split(config.vllm_args)
    to_toml(config)                           # refuses what a resumed run could not read


LAUNCHED = "SCALERL_LAUNCHED"       # of launch.py's trainers: their servers' addresses

# Where, how fast and how long a run computes may differ when its command is repeated; else nothing.
PLACE = {"steps", "save_minutes", "micro_batch_tokens", "recompute_layers", "compile_layers",
         "gpus", "servers", "trainers", "tensor_parallel", "vllm_args", "vllm_url", "deadline_s",
         "allow_mismatch"}


def typed(name, value, kind):
    """`value`, from TOML or the command line, as the type of its field; an int can be a float."""
    if choices := get_args(kind):                   # a Literal
        if value not in choices:
            raise ConfigError(f"{name} = {value!r}: use one of {', '.join(choices)}")
        return value
    found = float(value) if kind is float and type(value) is int else value
    if isinstance(value, str) and kind is not str:
        with contextlib.suppress(ValueError):       # not readable: still text, refused below
            found = {int: int, float: float}.get(kind, json.loads)(value)
    if type(found) is not kind:                     # not isinstance: True is an int
        right = {bool: ": true or false", dict: ', as {"max_digits": 3}'}.get(kind, "")
        raise ConfigError(f"{name} = {value!r}: should be of type {kind.__name__}{right}")
    return found


def read_toml(path):
    """The settings in a TOML file, as {name: value}."""
    with refused(f"{path}: cannot be read as TOML: ", (OSError, ValueError)):   # no file, no text
        values = tomllib.loads(Path(path).read_text("utf-8-sig"))
    if unknown := [name for name in values if name not in vars(Config())]:
        near = [f"; is it {key}?" for key in get_close_matches(unknown[0], vars(Config()), 1)]
        raise ConfigError("".join([f"{path}: unknown key {unknown[0]!r}; --help lists all", *near]))
    return values


def make_config(values):
    """A Config with these {name: value} over the defaults; a run without a name gets one."""
    kinds = get_type_hints(Config)
    config = Config(**{name: typed(name, value, kinds[name]) for name, value in values.items()})
    if not config.name:
        name = f"{Path(config.model).name}-{config.task}-seed{config.seed}"
        config.name = "".join("-" if c in ":/," else c for c in name)[-200:]    # a file's: 255
    return config


def to_toml(config):
    """All settings as TOML. Raises ConfigError for null, which TOML does not have."""
    import tomli_w          # here, not above: --help and typos need no package
    try:
        return tomli_w.dumps(dataclasses.asdict(config))
    except TypeError:
        raise ConfigError("options cannot hold null: leave it out, or write text") from None
