"""config.py: every setting of a run, its default, and the two ways to change it.

    Config            the settings; each comment says whose the default is, the paper's or "ours"
    --config FILE     a TOML file with differences from the defaults; of several the last wins
    --SETTING VALUE   wins over every file

Defaults are the recipe of ScaleRL (arXiv 2510.13786, sec. 4 and appendix A), with its batch of 48
prompts x 16 samples and its 14k output tokens. Where we differ from the paper:

1. The paper does not give some numbers: Adam's betas, the gradient clip, the temperature, how many
   sequences are decoded at once, how many steps a run takes. We chose these, marked "ours".
2. The paper's own problems, model and verifier are not published. `model` and `task` have no
   default that could repeat its 8B run; configs/scalerl.toml comes closest.

A run writes all its settings to runs/NAME/config.toml. --resume reads them back; only those in
FREE_TO_CHANGE may then change. Where to go next: docs/, or a folder of your choice.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import importlib.util
import inspect
import json
import math
import re
import shlex
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args, get_type_hints

PHRASE = "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"


class ConfigError(ValueError):
    """Wrong input: one sentence with the field, the value, and what would be right. Exit code 2."""


# ------------------------------------------------------------------------- 1. The settings
@dataclass
class Config:
    """All settings, in groups. The comment beside a setting is also its text in --help, and says
    whose the default is: "paper" or "ours". "the paper: X" is the paper's other value. --help
    placement shows the groups named placement, --help the others."""

    # -- model and problems
    model: str = ""                     # Hugging Face folder or name; the paper: its own 8B model
    task: str = "toy"                   # ours; the paper: "polaris-53k"; a mix: "a:0.7+b:0.3"
    # A mix (70 and 30% of its problems from two tasks) and eval_tasks have several parts: each has
    # its own table of options, under its name.
    task_options: dict = field(default_factory=dict)    # ours; as JSON; for a mix: {part: options}
    eval_tasks: str = ""                # ours; more problems, only evaluated: "aime-24+math-500"
    heldout_prompts: int = 1000         # paper; never trained on, all of them evaluated
    # A prompt is never cut: a question without its end has another answer, or none.
    max_unusable: float = 0.02          # ours; share of problems that may be left out: their gold
                                        # answer cannot be read, or their prompt is too long
    unsafe_code: bool = False           # ours; run the model's programs even without a sandbox
    instruction: str = ""               # ours; stands before every question
    template_options: dict = field(default_factory=dict)    # ours; switches of the chat template
    think_open: str = ""                # ours; appended to every prompt, as "<think>\n"
    think_close: str = "</think>"       # paper; the verifier reads only what follows it

    # -- run
    name: str = ""                      # ours; the folder runs/NAME; "": from model, task, seed
    seed: int = 0                       # ours; of sampling and of the order of prompts
    steps: int = 100                    # ours; training steps, also those whose groups are all
                                        # filtered out; the paper's runs take thousands
    eval_every: int = 100               # paper; steps; a checkpoint is written as often (ours)
    eval_samples: int = 16              # paper; for each held-out prompt; the curve is their mean
    log_with: Literal["", "tensorboard", "wandb", "trackio"] = ""   # ours; also write the log there

    # -- batch and asynchrony
    prompts_per_step: int = 48          # paper; P in the code
    samples_per_prompt: int = 16        # paper; G; a group: the samples of one prompt
    # Lag of a token: optimizer steps between the weights that wrote it and those now trained.
    off_policy: str = "pipeline-8"      # paper; "pipeline-K": lag <= K, 0 is on-policy; "ppo-K":
                                        # frozen weights write the samples of the next K steps
    slots: int = 256                    # ours; sequences decoded at once, by each server; fewer if
                                        # its cache is full; more: faster, but a larger mean lag

    # -- length, in tokens
    prompt_tokens: int = 2048           # paper; a problem with a longer prompt is left out
    # Each sample draws its own thinking budget from [think_min, think_max]. If it still thinks when
    # the budget is spent, the phrase interrupts it, and it has answer_tokens for its answer.
    think_min: int = 10240              # paper: interrupted at a random point in [10k, 12k]
    think_max: int = 12288              # paper
    answer_tokens: int = 2048           # paper
    interrupt_phrase: str = PHRASE      # paper; "" turns interruption off
    length_penalty: int = 0             # paper: off; its ablation: 2048, the last tokens cost more
    overlong_filter: bool = False       # ours: a truncated sample earns -1; true: it is masked

    # -- rewards and loss
    temperature: float = 1.0            # ours; of sampling, and of every log-prob
    retire_at: float = 0.9              # paper; from this pass rate prompts retire; above 1: none
    zero_variance_filter: bool = True   # paper; leaves out groups with equal rewards
    advantage_norm: Literal["batch", "prompt", "none"] = "batch"    # paper; divide by the std of
                                        # the batch; prompt: of its samples (GRPO); none: Dr. GRPO
    aggregation: Literal["prompt", "sample", "token"] = "prompt"    # paper; mean over the tokens of
                                        # a prompt, then over prompts; sample: GRPO
    # "dapo" needs an eps_high above eps_low: see configs/rivals. GSPO clips the ratio of whole
    # sequences, which stays close to 1: its eps_low and eps_high are about 1e-3.
    loss: Literal["cispo", "grpo", "dapo", "gspo", "reinforce"] = "cispo"   # paper
    behavior: Literal["sampler", "recomputed"] = "sampler"  # paper; whose log-probs are the ratio's
                                        # denominator; recomputed: the trainer's own, ratio 1
    eps_max: float = 5.0                # paper: 4, 5, 8 do equally well; caps the ratio of CISPO
    eps_low: float = 0.2                # paper: of its grpo and dapo; clips the ratio at 1 - this
    eps_high: float = 0.2               # paper: of its grpo, at 1 + this; its dapo has 0.26
    head_fp32: bool = True              # paper; logits in fp32, in trainer and sampler

    # -- optimizer (AdamW)
    lr: float = 5e-7                    # paper, constant after warm-up
    warmup_steps: int = 100             # paper, linear
    beta1: float = 0.9                  # ours, the usual one
    beta2: float = 0.95                 # ours, as usual for language models
    adam_eps: float = 1e-15             # paper
    weight_decay: float = 0.01          # paper
    grad_clip: float = 1.0              # ours, of the global norm

    # -- placement: memory and speed
    micro_batch_tokens: int = 8192      # ours; of one forward and backward; not the result
    recompute_layers: bool = False      # ours; recompute in backward: slower, far less memory
    compile_layers: Literal["auto", "on", "off"] = "auto"   # ours; torch.compile in training, a
                                        # minute to begin; auto: on a GPU
    gpus: int = -1                      # ours; -1: one if there is one; 0: none
    engine: Literal["auto", "vllm", "transformers"] = "auto"    # ours; auto: vllm if installed
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"      # ours; to compute in; auto:
                                        # bfloat16 on a GPU, float32 on a CPU

    # -- placement: several processes or machines
    servers: int = 0                    # ours; vLLM servers to start; 0: by the launcher's rule
    trainers: int = 0                   # ours; trainer processes; 0: by the launcher's rule
    tensor_parallel: int = 1            # ours; GPUs that share every layer of a server's model
    vllm_args: str = ""                 # ours; more options of each server, for example
                                        # "--max-num-batched-tokens 4096"; in the trainer's
                                        # process "--enforce-eager" alone counts
    vllm_url: str = ""                  # ours; servers that others started, "http://a:8000,..."
    hosts: str = ""                     # ours; the machines, trainers first, as "a,b,c"
    node_rank: int = 0                  # ours; which of the hosts this machine is, from 0
    port: int = 8100                    # ours; the first port that the machines use
    tls: str = ""                       # ours; folder with ca.pem, cert.pem, key.pem (make certs);
                                        # "none": hosts without it, on a network you trust
    deadline_s: float = 600.0           # ours; longest wait for a process; 3 times that to start

    @property
    def start_deadline_s(self):
        """Seconds for all processes to start: to download, to load, to compile."""
        return 3 * self.deadline_s

    @property
    def tls_folder(self):
        """The folder of the certificates; "" for plain connections."""
        return "" if self.tls == "none" else self.tls

    def schedule(self):
        """(scheme, k) of `off_policy`, as ("pipeline", 8). Raises ConfigError: it is neither."""
        scheme, _, k = self.off_policy.partition("-")
        if scheme not in ("pipeline", "ppo") or not k.isdecimal() or (scheme, k) == ("ppo", "0"):
            raise ConfigError(f'off_policy = {self.off_policy!r}: use "pipeline-K" (K = 0: '
                              'on-policy) or "ppo-K" with K >= 1')
        return scheme, int(k)

    def check(self):
        """Raises ConfigError for what cannot work, one sentence each. `typed` has already checked
        types and choices. The GPUs of this machine and the model are checked later."""
        def refuse(name, right):
            raise ConfigError(f"{name} = {getattr(self, name)!r}: {right}")

        # 1. Numbers: what each must be. A nan is refused: it fails every comparison.
        for rule, holds, names in (
            ("above zero", lambda x: 0 < x < math.inf, "steps prompts_per_step micro_batch_tokens "
             "slots prompt_tokens think_max answer_tokens eval_every eval_samples heldout_prompts "
             "temperature lr eps_max grad_clip tensor_parallel deadline_s"),
            ("zero or above", lambda x: 0 <= x < math.inf,
             "warmup_steps weight_decay adam_eps node_rank servers trainers"),
            ("in [0, 1)", lambda x: 0 <= x < 1, "beta1 beta2 eps_low eps_high"),
            ("a share, in [0, 1]", lambda x: 0 <= x <= 1, "max_unusable"),
            ("above zero; above 1 no prompt retires", lambda x: x > 0, "retire_at"),
            ("-1 (one if there is one), 0, or their number", lambda x: x >= -1, "gpus"),
            ("in 1..64999: the ports after it are used too", lambda x: 0 < x < 65000, "port"),
        ):
            for name in names.split():
                if not holds(getattr(self, name)):
                    refuse(name, f"must be {rule}")

        # 2. Settings that only make sense together: (name, what is wrong, what would be right).
        self.schedule()
        group, longest = self.samples_per_prompt, self.think_max + self.answer_tokens
        phrase, clips = self.interrupt_phrase, (self.eps_low, self.eps_high)
        for name, wrong, right in (
            ("samples_per_prompt", group < 2, "must be 2 or more: an advantage compares samples"),
            ("slots", group > self.slots, f"must hold the {group} samples of a prompt"),
            ("think_min", not 1 <= self.think_min <= self.think_max,
             f"must lie in 1..think_max = {self.think_max}"),
            ("length_penalty", not 0 <= self.length_penalty <= longest,
             f"must lie in 0..think_max + answer_tokens = {longest}"),
            ("think_close", not self.think_close, "must be text: the verifier reads what follows"),
            ("interrupt_phrase", phrase and self.think_close not in phrase,
             f"must hold think_close = {self.think_close!r}, or be empty"),
            ("eps_max", self.eps_max < 1, "must be 1 or above: the ratio starts at 1"),
            ("eps_high", self.loss == "dapo" and clips[0] >= clips[1], "dapo's upper clip is the "
             f'wider one, 0.26 in the paper; with eps_low = {clips[0]} it is loss = "grpo"'),
            # GSPO clips a geometric mean over the sequence, which hardly leaves 1.
            ("eps_high", self.loss == "gspo" and max(clips) > 0.05,
             "for gspo give eps_low and eps_high of about 1e-3 (paper)"),
            ("model", not self.model, "give a Hugging Face folder or name, as models/toy"),
            ("name", Path(self.name).name != self.name or self.name == "..",
             "must name one folder, which is made in runs/"),
        ):
            if wrong:
                refuse(name, right)

        # 3. What others read: a tracker, vLLM's command line, a resumed run.
        for package in ("accelerate", self.log_with) if self.log_with else ():
            if importlib.util.find_spec(package) is None:   # accelerate would drop it in silence
                refuse("log_with", f"needs a package: pip install {package}")
        try:
            words = shlex.split(self.vllm_args)
        except ValueError as error:
            refuse("vllm_args", f"cannot be split into options ({error})")
        if any(re.match(r"--tensor.parallel.size|-tp\b", word) for word in words):
            refuse("vllm_args", "the tensor parallel size has its own setting, tensor_parallel")
        to_toml(self)                           # refuses what a resumed run could not read


# An environment variable of every trainer that scaleout/launch.py has started: the addresses of its
# servers, for this start only. A trainer that has this variable starts no processes.
LAUNCHED = "SCALERL_LAUNCHED"

# What --resume may change. The others have already shaped the run: its data, its samples.
FREE_TO_CHANGE = {"steps", "eval_every", "log_with", "lr", "warmup_steps", "grad_clip", "eps_max",
                  "eps_low", "eps_high", "micro_batch_tokens", "recompute_layers",
                  "compile_layers", "gpus", "servers", "trainers", "tensor_parallel", "vllm_args",
                  "vllm_url", "hosts", "node_rank", "port", "tls", "deadline_s"}

# Settings of earlier versions: what became of each. The text completes an error message.
REPLACED = {
    "max_bad_gold": "was merged into max_unusable, with long_prompts",
    "long_prompts": "was merged into max_unusable, a share, with max_bad_gold",
    "eval_prompts": "was merged into heldout_prompts: all held-out prompts are evaluated",
    "checkpoint_every": "was merged into eval_every: a checkpoint is written at each evaluation",
    "eval_task_options": "was merged into task_options: one table for each part, by its name",
    "insecure_network": 'was merged into tls: tls = "none"',
    "pipeline_parallel": "is gone: start such servers yourself and name them in vllm_url",
    "data_parallel": "is gone: start such servers yourself and name them in vllm_url",
    "start_deadline_s": "was merged into deadline_s: a start may take 3 times as long",
    "threads": "is gone: set OMP_NUM_THREADS in the environment",
    "top_p": "is gone: anything but 1 would bias every importance ratio",
}


# ----------------------------------------------------------------- 2. From files, and back
def did_you_mean(word, known, form="{!r}", otherwise=""):
    """The question to add to "... is unknown", with the nearest known word; else `otherwise`.

    >>> did_you_mean("toi", ["toy", "math"])
    ", did you mean 'toy'?"
    """
    near = difflib.get_close_matches(word, known, 1)
    return f", did you mean {form.format(near[0])}?" if near else otherwise


def typed(name, value, kind):
    """`value`, from TOML or the command line, as the type of its field; an int counts as a float.

    >>> typed("lr", "1e-6", float), typed("steps", "7", int), typed("lr", 1, float)
    (1e-06, 7, 1.0)
    """
    if choices := get_args(kind):                   # a Literal
        if value not in choices:
            names = ", ".join(choice or '""' for choice in choices)
            raise ConfigError(f"{name} = {value!r}: use one of {names}")
        return value
    found = float(value) if kind is float and type(value) is int else value
    if isinstance(value, str) and kind is not str:
        read = {int: int, float: float, dict: json.loads,
                bool: {"true": True, "false": False}.get}[kind]
        with contextlib.suppress(ValueError):       # not readable: still text, refused below
            found = read(value)
    if type(found) is not kind:                     # not isinstance: True is an int
        raise ConfigError(f"{name} = {value!r}: should be of type {kind.__name__}")
    return found


def read_toml(path):
    """The settings in a TOML file, as {name: value}. Raises ConfigError: there is no file, it is
    not TOML, or one of its keys is no setting."""
    try:
        values = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ValueError as error:                     # no TOML, or no text
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    known = [f.name for f in dataclasses.fields(Config)]
    for name in (name for name in values if name not in known):
        raise ConfigError(f"{path}: " + (
            f"{name} {REPLACED[name]}" if name in REPLACED else
            f"unknown key {name!r}{did_you_mean(name, known)}"))
    return values


def make_config(values):
    """A Config with these {name: value} over the defaults; a run without a name gets one."""
    kinds = get_type_hints(Config)
    config = Config(**{name: typed(name, value, kinds[name]) for name, value in values.items()})
    if not config.name:
        config.name = "-".join([Path(config.model).name, config.task.replace(":", "-"),
                                f"seed{config.seed}"]).replace("/", "-")
    return config


def to_toml(config):
    """All settings as TOML. Strings are written as in JSON. TOML can read them, if characters
    beyond ASCII are not escaped. Raises ConfigError for null, which TOML does not have."""
    def render(value):
        if value is None:
            raise ConfigError("options cannot hold null: leave the option out")
        if isinstance(value, dict):
            return "{" + ", ".join(f"{render(k)} = {render(v)}" for k, v in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(map(render, value)) + "]"
        return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
    return "".join(f"{k} = {render(v)}\n" for k, v in dataclasses.asdict(config).items())


# --------------------------------------------------------------------- 3. The command line
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
        help="print what would run where, what memory and time it would take, and stop")
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


FLAGS = ("resume", "dry_run", "print_config", "report", "check")    # options that are no settings


def parse(argv, about=""):
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
