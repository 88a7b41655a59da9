"""Settings: where they come from, what is refused and in which words, and what the help says."""

import dataclasses
import json
import re
import subprocess
import sys
import tomllib
from typing import get_args, get_type_hints

import pytest
from conftest import ROOT

import loss
from artifacts.settings import PLACE, check, make_config, read_toml, to_toml
from command.options import parse
from config import Config, ConfigError

KINDS = get_type_hints(Config)
FIELDS = [f.name for f in dataclasses.fields(Config)]


def option(name):
    return f"--{name.replace('_', '-')}"


def refusal(arguments):
    """The sentence with which these words of a command line are refused."""
    with pytest.raises(ConfigError) as error:
        check(parse([*map(str, arguments)])[0])
    return str(error.value)


# ---------------------------------------------------------------------------------------------
# Where settings come from


def test_every_field_survives_toml_and_command_line(tmp_path):
    config = Config(model="m", name="n", lr=5e-7, task_options={"max_terms": 2, "s": ['a"b']})
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config))
    assert make_config(read_toml(path)) == config
    changed, flags = parse([
        "--config", str(path), "--name", "none", "--lr", "1e-4", "--head-fp32", "false",
        "--task-options", '{"a": 1}', "--fresh"])
    assert (changed.lr, changed.head_fp32, changed.task_options, flags.fresh) == (
        1e-4, False, {"a": 1}, True)


def test_what_toml_has_to_escape_is_read_back_as_it_was(tmp_path):
    text = 'a "b" \\ \n \t \x7f é 漢 😀 </think>'
    config = Config(model=text, name="n", task_options={text: [text, {"x": [1, 2.5, True]}]})
    for encoding in ("utf-8", "utf-8-sig"):     # with the mark that Windows writes before a text
        (tmp_path / "config.toml").write_text(to_toml(config), encoding=encoding)
        assert make_config(read_toml(tmp_path / "config.toml")) == config
    (tmp_path / "date.toml").write_text("model = 'm'\ntask_options = {since = 2024-01-02}\n")
    config, _ = parse(["--config", str(tmp_path / "date.toml"), "--name", "n"])
    check(config)
    (tmp_path / "again.toml").write_text(to_toml(config))
    assert make_config(read_toml(tmp_path / "again.toml")) == config


def test_of_several_config_files_the_later_wins_and_the_command_line_last(tmp_path):
    for name, text in (("a", "lr = 1e-3\nsteps = 7\nseed = 1\n"), ("b", "steps = 9\nseed = 2\n")):
        (tmp_path / f"{name}.toml").write_text(text)
    files = [w for name in "ab" for w in ("--config", str(tmp_path / f"{name}.toml"))]
    config, _ = parse([*files, "--seed", "3"])
    assert (config.lr, config.steps, config.seed) == (1e-3, 9, 3)


def test_a_run_without_a_name_is_called_after_what_it_is():
    config, _ = parse(["--model", "Qwen/Qwen3-8B", "--task", "hf:a/b", "--seed", "4"])
    assert config.name == "Qwen3-8B-hf-a-b-seed4"
    config, _ = parse(["--model", "models/a,b", "--task", "c,d.jsonl"])
    assert config.name == "a-b-c-d.jsonl-seed0"
    check(config)


def test_a_run_goes_on_under_its_own_settings_and_for_as_many_steps_as_asked(tmp_path, monkeypatch):
    """Another loss half-way would make a curve of two recipes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "r").mkdir(parents=True)
    before = Config(model="m", name="r", lr=3e-4, loss="grpo", steps=17, slots=64)
    (tmp_path / "runs" / "r" / "config.toml").write_text(to_toml(before))
    (tmp_path / "runs" / "r" / "metrics.jsonl").touch()
    own = ["--config", "runs/r/config.toml"]
    assert parse([*own, "--steps", "23"])[0] == dataclasses.replace(before, steps=23)
    assert parse([*own, "--loss", "grpo"])[0] == before
    (tmp_path / "runs" / "r").rename(tmp_path / "runs" / "s")       # copied, or set aside
    copied = parse(["--config", "runs/s/config.toml", "--name", "s", "--steps", "23"])[0]
    assert copied == dataclasses.replace(before, name="s", steps=23)
    assert parse(["--config", "runs/s/config.toml", "--steps", "23"])[0] == copied  # not runs/r
    (tmp_path / "config.toml").write_text('name = "elsewhere"\n')                   # no run's
    assert parse(["--config", "config.toml"])[0].name == "elsewhere"
    (tmp_path / "runs" / "s").rename(tmp_path / "runs" / "r")
    assert refusal([*own, "--loss", "cispo"]) == (
        "loss = 'cispo' (it has 'grpo'): runs/r exists with other settings; repeat its own command"
        " (--config runs/r/config.toml --name r), or choose another --name; --fresh starts over")
    assert set(FIELDS) > PLACE
    page = (ROOT / "docs" / "placement.md").read_text()
    told = page[page.index("* These may differ from call to call"):page.index("If another setting")]
    assert PLACE == {*re.findall(r"`(\w+)`", told)}
    assert not PLACE & {"seed", "task", "slots", "off_policy", "engine", "dtype"}


def test_a_command_is_repeated_as_it_is_and_every_other_setting_is_named(tmp_path, monkeypatch):
    """A scheduler starts it again, on another machine perhaps. A setting that was forgotten the
    second time, or another default, must not go on with a curve of two recipes."""
    monkeypatch.chdir(tmp_path)
    words = ["--model", "m", "--name", "r", "--lr", "3e-4"]
    assert parse(words)[0].lr == 3e-4                       # nothing there yet
    (tmp_path / "runs" / "r").mkdir(parents=True)
    began = dataclasses.replace(parse(words)[0], engine="vllm", gpus=8)     # as a run settles them
    (tmp_path / "runs" / "r" / "config.toml").write_text(to_toml(began))
    assert parse([*words, "--lr", "1e-4"])[0].lr == 1e-4    # refused before its first line
    (tmp_path / "runs" / "r" / "metrics.jsonl").touch()
    assert parse([*words, "--gpus", "4"])[0] == dataclasses.replace(began, gpus=4)
    assert parse([*words, "--engine", "vllm"])[0].engine == "vllm"
    assert refusal([*words, "--eval-every", "7", "--engine", "transformers"]).startswith(
        "eval_every = 7 (it has 100), engine = 'transformers' (it has 'vllm'): runs/r exists")
    assert refusal(words[:4]).startswith("lr = 5e-07 (it has 0.0003): runs/r exists")
    config, flags = parse([*words, "--steps", "7", "--fresh"])
    assert config.steps == 7 and flags.fresh
    assert not PLACE & {"lr", "eval_every", "eps_max"}


# ---------------------------------------------------------------------------------------------
# Shipped configs


CONFIGS = sorted((ROOT / "configs").rglob("*.toml"))
# Fields that are one decision of the recipe together.
DECISIONS = {"loss": "loss", "eps_low": "loss", "eps_high": "loss", "eps_max": "loss",
             "length_penalty": "length", "interrupt_phrase": "length"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_shipped_config_is_valid_and_repeats_no_default(path):
    config, _ = parse([] if path.parent.name == "configs" else [
        "--config", str(ROOT / "configs" / "scalerl.toml"), "--config", str(path)])
    check(make_config(dataclasses.asdict(config) | {"model": "m"} | read_toml(path)))
    for name, value in tomllib.loads(path.read_text()).items():
        assert value != getattr(Config(), name), f"{name} repeats the default"


def test_a_leave_one_out_config_changes_one_decision_and_each_otherwise():
    """Two decisions changed at once would show neither's effect (paper, sec. 5)."""
    files = {path.stem: read_toml(path) for path in CONFIGS if path.parent.name == "loo"}
    changed = {name: {DECISIONS.get(key, key) for key in file} for name, file in files.items()}
    assert len(changed) == 16 and all(len(decisions) == 1 for decisions in changed.values())
    assert len(set.union(*changed.values())) == 10
    assert len({str(sorted(file.items())) for file in files.values()}) == 16
    names = {name for path in CONFIGS if path.parent.name == "rivals" for name in read_toml(path)}
    assert {DECISIONS.get(name, name) for name in names} < set.union(*changed.values())


# ---------------------------------------------------------------------------------------------
# The help


def test_the_help_explains_every_setting_and_says_whose_default_it_is(capsys):
    """It is the text of Config: a setting without a comment would have no help either."""
    with pytest.raises(SystemExit, match="^0$"):
        parse(["--help"])
    text = capsys.readouterr().out
    _, *groups = re.split(r"^    # -- (.*)$", text, flags=re.M)
    found = {title: re.findall(r"^  (--[\w-]+):(?:[^#]|\n    #)*# (paper|ours)[;, ]?", body, re.M)
             for title, body in zip(groups[::2], groups[1::2])}
    assert [name for fields in found.values() for name, _ in fields] == list(map(option, FIELDS))
    assert max(map(len, text.splitlines())) <= 100
    assert "default_factory" not in text and "PHRASE" not in text        # names of the source
    for flag in ("fresh", "dry_run", "no_preflight", "serve_only", "report"):
        assert option(flag) in text
    # The recipe is in one list, and what only moves it in another.
    moves = sum(len(f) for title, f in found.items() if title.startswith("placement"))
    assert len(found) >= 8 and moves <= 15 and len(FIELDS) - moves <= 48


# ---------------------------------------------------------------------------------------------
# What is refused


BAD_INPUT = {
    "wrong type": (["--steps", "many"], "steps = 'many': should be of type int"),
    "a fraction of a step": (["--steps", "1.5"], "steps = '1.5': should be of type int"),
    "neither true nor false": (["--head-fp32", "yes"], "head_fp32 = 'yes': should be of type bool"),
    "missing file": (["--config", "none.toml"], "none.toml: cannot be read as TOML: "),
    "unknown option": (["--stepz", "1"], "unrecognized arguments: --stepz 1; --help lists all"),
    "no model": (["--model", ""], "model = '': give a Hugging Face folder or name"),
    "phrase without the tag": (["--think-close", "</r>"], "must hold think_close = '</r>'"),
    "no tag": (["--think-close", ""], "think_close = '': must be text"),
    "zero steps": (["--steps", "0"], "steps = 0: must be above zero"),
    "as a file spells it": (["--eval_every", "0"], "eval_every = 0: must be above zero"),
    "a rate that is none": (["--lr", "inf"], "lr = inf: must be above zero"),
    "no epsilon": (["--adam-eps", "0"], "adam_eps = 0.0: must be above zero"),
    "negative warm-up": (["--warmup-steps", "-1"], "warmup_steps = -1: must be zero or above"),
    "loss": (["--loss", "ppo"], "loss = 'ppo': use one of cispo, cispo_masked, dppo, grpo"),
    "dapo without its clip": (["--loss", "dapo"], "eps_high = 0.2: dapo's upper clip is"),
    "gspo with grpo's clip": (["--loss", "gspo"], "give eps_low = 3e-3, eps_high = 5e-3"),
    "retirement": (["--retire-at", "nan"], "retire_at = nan: must be above zero"),
    "unusable problems": (["--max-unusable", "-1"], "max_unusable = -1.0: must be in [0, 1]"),
    "more than all": (["--max-unusable", "1.01"], "max_unusable = 1.01: must be in [0, 1]"),
    "a seed that vLLM refuses": (["--seed", "-1"], "seed = -1: must be from 0 to 2^32 - 2"),
    "one beside it": (["--seed", str(2**32 - 1)], "must be from 0 to 2^32 - 2"),
    "no group": (["--samples-per-prompt", "1"], "an advantage compares samples"),
    "no room for a group": (["--slots", "15"], "slots = 15: must hold the 16 samples"),
    "beta": (["--beta1", "1.5"], "beta1 = 1.5: must be in [0, 1)"),
    "cap": (["--eps-max", "0.5"], "eps_max = 0.5: must be 1 or above"),
    "no thinking": (["--think-min", "0"], "think_min = 0: must lie in 1..think_max"),
    "penalty": (["--length-penalty", "14337"], "must lie in 0..think_max + answer_tokens"),
    "null": (["--template-options", '{"a": null}'], "options cannot hold null"),
    "schedule": (["--off-policy", "async"], "off_policy = 'async'"),
    "ppo of no steps": (["--off-policy", "ppo-0"], "off_policy = 'ppo-0'"),
    "the same, longer": (["--off-policy", "ppo-00"], "off_policy = 'ppo-00'"),
    "fewer than no GPUs": (["--gpus", "-2"], "gpus = -2: must be -1"),
    "fewer than no servers": (["--servers", "-1"], "servers = -1: must be zero"),
    "tensor parallel twice": (["--vllm-args=--tensor-parallel-size=2"],
                              "use the setting tensor_parallel"),
    "a divisor for +-1 alone": (["--advantage-norm", "mean", "--length-penalty", "4"],
                                "advantage_norm = 'mean': it divides by 2 p"),
    "an open quote": (["--vllm-args", "'-pp 2"], "cannot be split into options: No closing"),
    "a name that leads elsewhere": (["--name", "../x"], "must name one folder"),
    "a name of two addresses": (["--name", "a,b"], "without vllm_url's comma"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_what_cannot_work_is_refused_in_one_sentence(case, tmp_path, monkeypatch):
    arguments, sentence = BAD_INPUT[case]
    monkeypatch.chdir(tmp_path)
    said = refusal(arguments if "--model" in arguments else ["--model", "m", *arguments])
    assert sentence in said and len(said.splitlines()) == 1


@pytest.mark.parametrize("text, sentence", [
    ("epsmax = 4.0", "unknown key 'epsmax'; --help lists all; is it eps_max?"),
    ("colour = 4.0", "unknown key 'colour'; --help lists all"),
    ("steps = = 3", "cannot be read as TOML: Invalid value"),
    ("steps = true", "steps = True: should be of type int"),
    ("head_fp32 = 1", "head_fp32 = 1: should be of type bool: true or false"),
    ("lr = '5e-6x'", "lr = '5e-6x': should be of type float"),
    ("task_options = 3", "task_options = 3: should be of type dict, as {"),
    ("loss = 3", "loss = 3: use one of cispo")])
def test_what_is_wrong_in_a_file_is_refused_in_one_sentence(text, sentence, tmp_path):
    (tmp_path / "bad.toml").write_text(text)
    said = refusal(["--config", tmp_path / "bad.toml"])
    assert sentence in said and len(said.splitlines()) == 1


def test_the_choices_are_those_of_the_functions_they_choose():
    assert get_args(KINDS["loss"]) == tuple(loss.LOSSES)
    assert get_args(KINDS["aggregation"]) == tuple(loss.AGGREGATIONS)
    assert get_args(KINDS["advantage_norm"]) == tuple(loss.NORMS)


def test_reading_settings_takes_no_library_that_is_slow_to_import():
    """`--help` and a wrong word answer at once: torch alone takes seconds."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys, json, config; print(json.dumps(sorted(sys.modules)))"],
        cwd=ROOT, check=True, capture_output=True, text=True, timeout=120)
    modules = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert "config" in modules and not modules & {"torch", "transformers", "numpy", "loss", "tasks"}


def test_each_number_among_the_settings_has_a_rule_and_nan_is_refused():
    """A new one that nobody has written into artifacts/settings.py would train with -1, or with
    nan."""
    numbers = [f for f in dataclasses.fields(Config) if f.type in (int, float)]
    assert len(numbers) > 25
    for field in numbers:
        for wrong in (-2, float("nan"))[:1 if field.type is int else 2]:
            config = dataclasses.replace(Config(model="m", name="n"), **{field.name: wrong})
            with pytest.raises(ConfigError, match=field.name):
                check(config)
