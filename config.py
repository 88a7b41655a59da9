"""config.py: every setting of a run, and the three ways to give one.

    Config          the settings, each with its default and whose it is: the paper's, or "ours"
    --config FILE   TOML with differences from the defaults; more files, the later one wins
    --SETTING VALUE wins over every file; made from Config, so nothing is written down twice

A run writes its resolved settings to runs/NAME/config.toml; --resume reads them back and lets
only those in FREE_TO_CHANGE change.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import inspect
import json
import math
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import torch

from loss import AGGREGATIONS, LOSSES, NORMS
from tasks import INTERRUPTION_PHRASE, did_you_mean


class ConfigError(ValueError):
    """Wrong input: one sentence with the field, the value, and what would be right. Exit code 2."""


@dataclass
class Config:
    """All knobs. Comments give the paper's value where the default is not it; "ours" where the
    paper is silent. Each stands alone, for it is also its option's help."""
    # -- what
    model: str = ""                     # a Hugging Face folder or name; the paper: an 8B model
    task: str = "toy"                   # ours; the paper: "polaris-53k"; see README, "Problems"
    task_options: dict = field(default_factory=dict)    # the task's own, as JSON; ours
    instruction: str = ""               # put before every question; ours
    template_options: dict = field(default_factory=dict)    # the chat template's switches; ours
    think_open: str = ""                # ends every prompt, as "<think>\n"; ours
    think_close: str = "</think>"       # paper; only what follows it is marked
    heldout_prompts: int = 1000         # paper; never trained on
    max_bad_gold: float = 0.02          # share of gold answers that may be unreadable; ours
    unsafe_code: bool = False           # run programs where there is no sandbox; ours
    name: str = ""                      # run folder runs/NAME; ours: model, task, seed
    seed: int = 0                       # of sampling and of the order of prompts; ours
    steps: int = 100                    # train steps; ours, the paper's runs take thousands
    # -- batch
    prompts_per_step: int = 48          # P, paper
    samples_per_prompt: int = 16        # G, paper
    micro_batch_tokens: int = 8192      # tokens a forward and backward; ours, memory only
    recompute_layers: bool = False      # in the backward pass: slower, far less memory; ours
    # -- asynchrony
    off_policy: str = "pipeline-8"      # paper; "pipeline-0" is on-policy; "ppo-8" the classic way
    slots: int = 256                    # sequences decoded at once; ours
    # -- length, in tokens
    prompt_tokens: int = 2048           # paper; a longer one is never cut, see long_prompts
    long_prompts: str = "refuse"        # over prompt_tokens: "refuse" to run, or "skip" it; ours
    think_min: int = 10240              # paper: interrupted at a random point in [10k, 12k]
    think_max: int = 12288              # paper
    answer_tokens: int = 2048           # paper
    length_penalty: int = 0             # off; the paper's ablation: 2048 tokens of slope
    overlong_filter: bool = False       # paper: a truncated sample earns -1; true: masked
    interrupt_phrase: str = INTERRUPTION_PHRASE         # paper; "" turns interruption off
    # -- sampling
    temperature: float = 1.0            # ours
    top_p: float = 1.0                  # ours, only 1: anything else biases every importance ratio
    # -- objective
    # "dapo" is GRPO's loss: what makes it DAPO's is a wider eps_high (configs/rivals). "gspo" clips
    # the ratio of whole sequences, which is close to 1: its eps are small ones.
    loss: str = "cispo"                 # paper; or grpo, dapo (set eps_high), gspo, reinforce
    behavior: str = "sampler"           # paper; "recomputed": the trainer's own, ratio always 1
    eps_max: float = 5.0                # paper: 4, 5, 8 alike; caps CISPO's ratio itself
    eps_low: float = 0.2                # paper's grpo and dapo: clip at 1 - this; gspo: about 1e-3
    eps_high: float = 0.2               # paper's grpo; its dapo runs: 0.26 (0.28 in DAPO's own)
    aggregation: str = "prompt"         # paper; or sample (GRPO), token
    advantage_norm: str = "batch"       # paper; or prompt (GRPO), none (Dr. GRPO)
    head_fp32: bool = True              # paper; both in trainer and sampler
    zero_variance_filter: bool = True   # paper
    retire_at: float = 0.9              # paper: No-Positive-Resampling; above 1: off
    # -- optimizer (AdamW)
    lr: float = 5e-7                    # paper, constant after warm-up
    warmup_steps: int = 100             # paper, linear
    beta1: float = 0.9                  # ours
    beta2: float = 0.95                 # ours
    adam_eps: float = 1e-15             # paper
    weight_decay: float = 0.01          # paper
    grad_clip: float = 1.0              # ours, of the global norm
    # -- evaluation, checkpoints
    eval_every: int = 100               # paper
    eval_prompts: int = 1000            # paper
    eval_samples: int = 16              # paper
    eval_tasks: str = ""                # further tasks to evaluate on, "aime-24+math-500"; ours
    eval_task_options: dict = field(default_factory=dict)   # of eval_tasks, as task_options; ours
    eval_think_tokens: int = 0          # thinking budget in evaluation; 0: training's; ours
    checkpoint_every: int = 100         # ours
    keep_checkpoints: int = 2           # ours; the best one is kept apart
    samples_logged: int = 4             # rollouts written to samples.jsonl a step; ours
    log_with: str = ""                  # also tensorboard, wandb or trackio; ours
    # -- machine
    gpus: int = -1                      # ours; -1: one if there is one
    engine: str = "auto"                # ours: vllm if it is installed (make vllm), or transformers
    dtype: str = "auto"                 # ours: compute in bfloat16 on a GPU, float32 on a CPU
    threads: int = 0                    # ours; CPU threads, 0: all cores
    attention: str = "auto"             # ours: "flash" on a GPU in 16 bits, else "dense"
    compile_layers: bool = False        # ours: torch.compile in training; takes a minute to begin
    fused_adamw: bool = True            # ours: one kernel for all weights
    logits_chunk_tokens: int = 1024     # ours: tokens whose logits exist at a time; memory only
    # -- places: more than one process, or more than one machine
    servers: int = 0                    # vLLM servers to start; ours, 0: by the launcher's rule
    trainers: int = 0                   # trainer processes; ours, 0: by the launcher's rule
    tensor_parallel: int = 1            # GPUs that share one copy of a server's model; ours
    pipeline_parallel: int = 1          # GPUs that share a server's layers, in stages; ours
    data_parallel: int = 1              # copies behind one server's address; ours
    vllm_url: str = ""                  # servers that others started, "http://a:8000,..."; ours
    hosts: str = ""                     # "a,b,c": the nodes, trainers first; ours
    node_rank: int = 0                  # which of the hosts this is; ours
    port: int = 8100                    # first of the ports that the nodes use; ours
    tls: str = ""                       # folder with ca.pem, cert.pem, key.pem (make certs); ours
    insecure_network: bool = False      # hosts without TLS, on a network you trust; ours
    deadline_s: float = 600.0           # no wait for another process is longer; ours
    start_deadline_s: float = 600.0     # all have so long to start: to load, to compile; ours

    def check(self):
        """Raises ConfigError for what cannot work, one sentence each."""
        def refuse(name, right):
            raise ConfigError(f"{name} = {getattr(self, name)!r}: {right}")
        choices = {"loss": LOSSES, "aggregation": AGGREGATIONS, "advantage_norm": NORMS,
                   "behavior": ("sampler", "recomputed"),
                   "long_prompts": ("refuse", "skip"),
                   "engine": ("auto", "vllm", "transformers"),
                   "dtype": ("auto", "float32", "bfloat16"),
                   "attention": ("auto", "flash", "dense"),
                   "log_with": ("", "tensorboard", "wandb", "trackio")}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                refuse(name, "use one of " + ", ".join(map(str, allowed)))
        for name in ("steps", "prompts_per_step", "samples_per_prompt", "micro_batch_tokens",
                     "logits_chunk_tokens", "slots", "prompt_tokens", "think_max",
                     "answer_tokens", "eval_every", "eval_prompts", "eval_samples",
                     "checkpoint_every", "keep_checkpoints", "heldout_prompts", "temperature",
                     "lr", "eps_max", "grad_clip", "tensor_parallel", "pipeline_parallel",
                     "data_parallel", "deadline_s", "start_deadline_s"):
            if not getattr(self, name) > 0 or not math.isfinite(getattr(self, name)):
                refuse(name, "must be above zero")
        for name in ("samples_logged", "threads", "warmup_steps", "weight_decay", "adam_eps",
                     "eval_think_tokens", "node_rank"):
            if not getattr(self, name) >= 0 or not math.isfinite(getattr(self, name)):
                refuse(name, "must be zero or above")
        for name in ("beta1", "beta2", "eps_low", "eps_high"):
            if not 0 <= getattr(self, name) < 1:
                refuse(name, "must lie in [0, 1)")
        if self.eps_max < 1:
            refuse("eps_max", "must be 1 or above: it caps the ratio itself, which starts at 1")
        if self.loss == "dapo" and self.eps_high <= self.eps_low:
            refuse("eps_high", "dapo's upper clip is the wider one, 0.26 in the paper's runs; with "
                   f'eps_low = {self.eps_low} on both sides it is loss = "grpo"')
        if self.loss == "gspo" and max(self.eps_low, self.eps_high) > 0.05:
            refuse("eps_high", "gspo clips a geometric mean over the sequence, which hardly leaves "
                   "1: give eps_low and eps_high of about 1e-3 (paper)")
        if self.samples_per_prompt < 2:
            refuse("samples_per_prompt", "must be 2 or more: an advantage compares samples")
        if self.top_p != 1:
            refuse("top_p", "must be 1: a truncated distribution biases every importance ratio")
        if not 1 <= self.think_min <= self.think_max:
            refuse("think_min", f"must lie in 1..think_max = {self.think_max}")
        if self.samples_per_prompt > self.slots:
            refuse("slots", f"must hold the {self.samples_per_prompt} samples of a prompt")
        if not self.retire_at > 0:
            refuse("retire_at", "must be above zero; above 1 no prompt retires")
        if not 0 <= self.max_bad_gold <= 1:
            refuse("max_bad_gold", "must be a share, in [0, 1]")
        if not self.think_close:
            refuse("think_close", "must be text: what follows it is marked")
        if self.interrupt_phrase and self.think_close not in self.interrupt_phrase:
            refuse("interrupt_phrase", f"must hold think_close = {self.think_close!r}, or be empty")
        if Path(self.name).name != self.name or self.name == "..":
            refuse("name", "must name one folder, which is made in runs/")
        if not self.model:
            refuse("model", "give a Hugging Face folder or name, as in --model models/toy")
        if not 0 <= self.length_penalty <= self.think_max + self.answer_tokens:
            refuse("length_penalty", "must lie in 0..think_max + answer_tokens")
        self.schedule()                         # refuses an off_policy that is none
        for package in filter(None, ("accelerate", self.log_with) if self.log_with else ()):
            if importlib.util.find_spec(package) is None:   # accelerate would drop it in silence
                refuse("log_with", f"needs a package: pip install {package}")
        to_toml(self)                           # refuses what a resumed run could not read
        for name in ("servers", "trainers"):
            if getattr(self, name) < 0:
                refuse(name, "must be zero (by the launcher's rule) or above")
        if self.gpus < -1:
            refuse("gpus", "use -1 (one if there is one), 0, or their number")
        if not 0 < self.port < 65000:
            refuse("port", "must lie in 1..64999: the ports after it are used as well")
        if self.gpus == 1 and not torch.cuda.is_available():
            refuse("gpus", "torch finds no GPU here; use 0")

    def schedule(self):
        """(scheme, k) of `off_policy`, ("pipeline", 8). Raises ConfigError: it is none."""
        scheme, _, k = self.off_policy.partition("-")
        if scheme not in ("pipeline", "ppo") or not k.isdecimal() or (scheme, k) == ("ppo", "0"):
            raise ConfigError(f'off_policy = {self.off_policy!r}: use "pipeline-K" (K = 0: '
                              'on-policy) or "ppo-K" with K >= 1')
        return scheme, int(k)


# What --resume may change: the rest is built into the state of the run.
FREE_TO_CHANGE = {"steps", "micro_batch_tokens", "recompute_layers", "attention",
                  "compile_layers", "fused_adamw", "logits_chunk_tokens", "lr", "warmup_steps",
                  "grad_clip", "eps_max", "eps_low", "eps_high", "eval_every",
                  "checkpoint_every", "keep_checkpoints", "samples_logged", "log_with", "threads",
                  "gpus", "servers", "trainers", "tensor_parallel", "pipeline_parallel",
                  "data_parallel", "vllm_url", "hosts", "node_rank", "port", "tls",
                  "insecure_network", "deadline_s", "start_deadline_s"}


def typed(name, value, kind):
    """`value` as the field's type, from TOML or the command line; an int is a fine float."""
    try:
        if isinstance(value, str) and kind != "str":
            value = {"int": int, "float": float, "dict": json.loads,
                     "bool": {"true": True, "false": False}.__getitem__}[kind](value)
    except (ValueError, KeyError):
        raise ConfigError(f"{name} = {value!r}: should be of type {kind}") from None
    if kind == "float" and type(value) is int:
        value = float(value)
    if type(value).__name__ != kind:
        raise ConfigError(f"{name} = {value!r}: should be of type {kind}")
    return value


def read_toml(path):
    """The settings in a TOML file. Raises ConfigError: no file, not TOML, an unknown key."""
    try:
        values = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    known = [f.name for f in dataclasses.fields(Config)]
    for name in values:
        if name not in known:
            raise ConfigError(f"{path}: unknown key {name!r}{did_you_mean(name, known)}")
    return values


def make_config(values):
    """A Config of these settings over the defaults; a run without a name gets one."""
    kinds = {f.name: f.type for f in dataclasses.fields(Config)}
    config = Config(**{name: typed(name, value, kinds[name]) for name, value in values.items()})
    if not config.name:
        config.name = "-".join([Path(config.model).name, config.task.replace(":", "-"),
                                f"seed{config.seed}"]).replace("/", "-")
    return config


def to_toml(config):
    """The resolved config as TOML. JSON's strings are TOML's, unless they escape what needs two
    code units in UTF-16. Raises ConfigError for a null in an option, which TOML has not."""
    def render(value):
        if value is None:
            raise ConfigError("options cannot hold null: leave the option out")
        if isinstance(value, dict):
            return "{" + ", ".join(f"{render(k)} = {render(v)}" for k, v in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(map(render, value)) + "]"
        return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
    return "".join(f"{k} = {render(v)}\n" for k, v in dataclasses.asdict(config).items())


# ---------------------------------------------------------------------------------------------
# The command line


def documented_fields():
    """[(title, [(field, comment)])] of Config: its comments, written once, are the help as well."""
    fields, groups = {f.name: f for f in dataclasses.fields(Config)}, []
    for line in inspect.getsource(Config).splitlines():
        if title := re.fullmatch(r"    # -- (.*)", line):
            groups.append((title[1], []))
        elif (entry := re.match(r"    (\w+): .*?  # (.*)", line)) and entry[1] in fields:
            groups[-1][1].append((fields[entry[1]], entry[2]))
    return groups


ASKED = ("resume", "dry_run", "print_config", "report")     # of this call, no settings of a run


def parse(argv, about=""):
    """(config, asked) from the command line; `about` begins its help. asked: the values of ASKED;
    report is the folder of a run (then config is None).

    Raises ConfigError: an unknown argument, a setting that is none, or one that --resume cannot
    change.
    """
    def refuse(message):
        raise ConfigError(message)
    parser = argparse.ArgumentParser(
        prog="scalerl.py", usage="%(prog)s [--config FILE] [--SETTING VALUE ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Every setting is also a key of FILE. [in brackets]: the default.",
        description=about, allow_abbrev=False)
    parser.error = refuse
    parser.add_argument("--config", metavar="FILE", action="append", default=[],
                        help="TOML file with differences from the defaults; given more than once, "
                        "the later file wins")
    parser.add_argument("--resume", action="store_true", help="go on with runs/NAME")
    parser.add_argument("--report", metavar="RUN", help="write RUN/report.html and stop")
    parser.add_argument("--print-config", action="store_true", help="print all settings and stop")
    parser.add_argument("--dry-run", action="store_true", help="print what would run where, what "
                        "memory and time it would take, and stop")
    for title, fields in documented_fields():
        group = parser.add_argument_group(title)
        for f, comment in fields:
            default = f.default_factory() if f.default is dataclasses.MISSING else f.default
            shown = "{}" if default == {} else str(default)[:40] or '""'
            group.add_argument(f"--{f.name.replace('_', '-')}", metavar=f.type.upper(),
                               default=argparse.SUPPRESS,
                               help=f"{comment} [{shown}]".replace("%", "%%"))
    options, unknown = parser.parse_known_args(argv)
    for word in unknown:
        name = word.lstrip("-").split("=")[0].replace("_", "-")
        known = [*ASKED, "config", "help", *(f.name for f in dataclasses.fields(Config))]
        known = [each.replace("_", "-") for each in known]
        refuse(f"unknown argument {word!r}" + did_you_mean(name, known, "--{}"))
    given = vars(options)
    asked = argparse.Namespace(**{key: given.pop(key) for key in ASKED})
    if asked.report:
        return None, asked
    values = {}
    for settings in (*map(read_toml, given.pop("config")), given):
        values |= settings
    config = make_config(values)
    saved = Path("runs") / config.name / "config.toml"
    if asked.resume and saved.exists():     # a run goes on with its own settings, with changes
        before = make_config(read_toml(saved))
        config = make_config(dataclasses.asdict(before) | values)
        for name, value in dataclasses.asdict(config).items():
            if value != getattr(before, name) and name not in FREE_TO_CHANGE:
                refuse(f"{name} = {value!r}: {saved.parent} was made with {getattr(before, name)!r}"
                       ", and --resume cannot change it; start a new run")
    return config, asked
