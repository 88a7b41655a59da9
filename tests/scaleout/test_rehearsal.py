"""The path of a GPU, as far as a machine without one can walk it (make gpu-rehearsal)."""

import functools
import json
import re

from types import SimpleNamespace

import pytest
import torch
from conftest import THOROUGH, arguments, lines
from estimates import estimate_of
from pretend_gpu import OnCpu, OnGpu, PretendGpu
from ranks import answers
from test_launch import command, running
from test_team import models                                                      # noqa: F401
from transformers import (AutoModelForCausalLM, Olmo2Config, Qwen2Config, Qwen3Config,
                          Qwen3MoeConfig)

import test_team
from command.main import main
from study import toy
from scaleout import launch
from scaleout.placement import make_placement

pytestmark = pytest.mark.gpu_rehearsal


def test_tensors_of_two_devices_in_one_call_are_refused_and_what_cuda_allows_is_not(monkeypatch):
    """Without this the rehearsal below would say nothing."""
    with PretendGpu(monkeypatch) as gpu:
        far, near = torch.arange(6.0, device="cuda"), torch.arange(6.0)
        assert far.device.type == "cuda" and far.is_cuda and not near.is_cuda
        for call in (lambda: far + near, lambda: torch.cat([near, far]), lambda: near[far.long()],
                     lambda: far.__setitem__(near.long(), near), lambda: near.add_(far * 2)):
            with pytest.raises(RuntimeError, match="on the GPU and on the CPU"):
                call()
        assert isinstance(far[near.long()] + near.sum(), OnGpu)
        assert isinstance(far.to("cpu") + near, OnCpu)
        far[:3] = near[:3]                              # a copy
        far.requires_grad_()
        (far * near.to("cuda")).sum().backward()
        assert torch.equal(far.grad.as_subclass(torch.Tensor), near.as_subclass(torch.Tensor))
        assert not gpu.syncs["tolist"] and far.tolist() and gpu.syncs["tolist"] == 1


@pytest.mark.days(4)
@pytest.mark.parametrize("off_policy", ["pipeline-2", "ppo-1"])
def test_a_whole_run_on_one_gpu_mixes_no_devices(off_policy, micro, tmp_path, monkeypatch):
    """Loading, the self-test, generation with interruption, forward, backward, AdamW, the push of
    weights, evaluation and checkpoint, in bf16, without masks and with CUDA's products. Sampler
    and trainer agree as closely as on a CPU in bf16: 2e-3, and 1e-2 is one kernel gone wrong."""
    monkeypatch.chdir(tmp_path)
    with PretendGpu(monkeypatch) as gpu:
        assert main(arguments(
            micro, name="r", gpus=1, steps=3, zero_variance_filter="false", off_policy=off_policy,
            compile_layers="off")) == 0
    assert gpu.calls["backward"] and gpu.calls["_fused_adamw_"] and gpu.calls["copy_"]
    log = lines(tmp_path / "runs" / "r")
    assert [row["version"] for row in log] == [0, 1, 2, 3]      # 0: the self-test
    assert json.loads((tmp_path / "runs" / "r" / "versions.json").read_text())[
        "device"] == "NVIDIA H100 80GB HBM3"
    assert "compute/gpu_hours" in log[-1]
    assert 0 < log[1]["mismatch/mean_abs_dlogp/lag_0"] < 5e-3


@pytest.mark.days(4, turn=0)
@pytest.mark.parametrize("words", [{}, {"trainers": 4, "tensor_parallel": 2}, {
    "vllm_args": "--enforce-eager", "tensor_parallel": 2, "servers": 2}])
def test_the_main_commands_servers_have_command_lines_that_the_installed_vllm_takes(
        words, eight, monkeypatch):
    """Its own parser, and its own checks of what it has parsed. A renamed option would end each of
    eight servers after a minute, and the run after the third start."""
    pytest.importorskip("vllm")
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers import cli_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    config, estimate = estimate_of(eight, gpus=8, name="main", **words)
    placement = make_placement(config, estimate)
    _, servers = launch.commands(config, [], placement, estimate, launch.ROOT / "runs", 1)
    devices = []
    for (url, gpus), child in zip(placement.servers.items(), servers):
        interpreter, *how, module, argv = *map(str, child.argv[:4]), [*map(str, child.argv[4:])]
        assert (*how, module) == ("-P", "-m", "vllm.entrypoints.openai.api_server")
        parsed = cli_args.make_arg_parser(FlexibleArgumentParser()).parse_args(argv)
        cli_args.validate_parsed_serve_args(parsed)
        engine = AsyncEngineArgs.from_cli_args(parsed)
        assert f"http://{parsed.host}:{parsed.port}" == url
        assert (engine.model, engine.dtype) == (str(eight), "bfloat16")
        assert (engine.max_model_len, engine.max_num_seqs) == (estimate.length, estimate.slots())
        assert engine.hf_overrides == {"head_dtype": "float32"} and engine.enable_prefix_caching
        assert engine.logprobs_mode == "processed_logprobs" and engine.generation_config == "vllm"
        assert engine.weight_transfer_config.backend == "nccl" and engine.skip_tokenizer_init
        assert engine.tensor_parallel_size == config.tensor_parallel
        assert len(gpus) == config.tensor_parallel
        assert engine.enforce_eager == ("--enforce-eager" in config.vllm_args)
        devices += child.env["CUDA_VISIBLE_DEVICES"].split(",")
        assert child.env["VLLM_SERVER_DEV_MODE"] == "1"
    assert sorted(devices) == [str(i) for i in range(placement.trainers, 8)]


# The shapes of the models of configs/gsm8k_*.toml, as their pages have them.
QWEN, OLMO = (kind(**sizes, architectures=[f"{name}ForCausalLM"]) for kind, name, sizes in (
    (Qwen2Config, "Qwen2", {
        "vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "max_position_embeddings": 32_768, "tie_word_embeddings": True}),
    (Olmo2Config, "Olmo2", {
        "vocab_size": 100_352, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 16,
        "max_position_embeddings": 4096, "tie_word_embeddings": False, "pad_token_id": 100_277,
        "eos_token_id": 100_257})))
QWEN_06B = {
    "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072, "head_dim": 128,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
    "max_position_embeddings": 40_960, "tie_word_embeddings": True,
    "architectures": ["Qwen3ForCausalLM"]}
CARDS = {"NVIDIA GeForce RTX 4090": (23.5, (8, 9)), "NVIDIA A100-SXM4-80GB": (79.1, (8, 0)),
         "NVIDIA H100 80GB HBM3": (79.1, (9, 0))}       # as torch names them; GiB, capability


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("name, shape, weights, small", [("gsm8k_1gpu", QWEN, 494_032_768, True),
                                                  ("gsm8k_1gpu_olmo2", OLMO, 1_484_916_736, False)])
def test_the_gsm8k_configs_are_accepted_on_their_cards_and_only_there(
        name, shape, weights, small, card, engine, tmp_path, monkeypatch, capsys):
    """The device is played back: what torch says of such a card. fp32 masters and AdamW of 1.5B
    weights, 24 GB, have no room on the small one, and that is said before anything is loaded."""
    monkeypatch.chdir(tmp_path)
    shape.save_pretrained("model")
    toy.make_tokenizer().save_pretrained("model")
    gib, capability = CARDS[card]
    for what, value in (("is_available", True), ("device_count", 1),
                        ("get_device_capability", capability), ("get_device_properties",
                         SimpleNamespace(name=card, total_memory=int(gib * 2**30)))):
        monkeypatch.setattr(torch.cuda, what, lambda *_, value=value: value)
    path = launch.ROOT / "configs" / f"{name}.toml"
    code = main(["--config", str(path), "--model", "model", "--gpus", "1", "--engine",
                         engine, "--dry-run"])
    out, error = capsys.readouterr()
    assert f"Estimates for {card} of {gib:.0f} GiB" in out and "GPU 0" in out
    assert not small or "layers are recomputed" not in out
    assert (code, "a trainer does not fit" in error) == (
        (0, False) if small or gib > 30 else (2, True))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape)
    assert sum(p.numel() for p in model.parameters()) == weights


def test_the_commands_of_the_first_gpu_run_are_accepted_and_print_what_is_promised(
        eight, tmp_path, monkeypatch, capsys):
    """Each is planned as on H100s; a line that nothing prints any more leads astray."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    text = (launch.ROOT / "docs" / "first-gpu-run.md").read_text()
    Qwen3Config(**QWEN_06B).save_pretrained("small")
    toy.make_tokenizer().save_pretrained("small")
    small = re.search('SMALL="(.*?)"', text, re.S)[1]
    commands = re.findall(r"^\.venv/bin/python scalerl\.py ([^#]*?) *(?:#.*)?$", text, re.M)
    assert len(commands) == 5
    for command in commands:
        words = command.replace("$SMALL", small).split()
        words[words.index("--model") + 1] = "small" if "$SMALL" in command else str(eight)
        gpus = int(words[words.index("--gpus") + 1])
        assert main([*words, "--engine", "vllm", "--dry-run"]) == 0
        out = capsys.readouterr().out
        assert ("The processes" in out) == (gpus > 1)
        if "--trainers" in words:
            assert "3 GPUs: 2 train, 1 generate (1 servers): as asked for" in out
    printed = "".join(path.read_text() for folder in ("", "engines", "scaleout", "artifacts")
                      for path in (launch.ROOT / folder).glob("*.py"))
    for line in ("Self-test: sampler and trainer differ in log-prob by", "samples a step",
                 "launcher: ", "Done: ", "held out", "as asked for", "; logs in ",
                 "sampler and trainer disagree before the first step"):
        assert line in text and line in printed, line


def test_eight_processes_of_a_model_of_experts_make_a_whole_run(tmp_path, request):
    """The main command's five servers and three ranks, on CPUs: preflight, self-test, evaluation
    before the first step, steps with pushes to five servers, a checkpoint, an evaluation, the
    model. Once more, the same command says that it is finished."""
    if not (THOROUGH or request.config.option.markexpr):
        pytest.skip("eight processes take two minutes and a half: `make gpu-rehearsal` runs them")
    tokenizer = toy.make_tokenizer()
    tokenizer.save_pretrained(tmp_path / "experts")
    model = AutoModelForCausalLM.from_config(Qwen3MoeConfig(
        vocab_size=len(tokenizer), hidden_size=96, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=2, head_dim=32, max_position_embeddings=512,
        num_experts=5, num_experts_per_tok=2, moe_intermediate_size=64,
        eos_token_id=tokenizer.eos_token_id, tie_word_embeddings=False))
    model.save_pretrained(tmp_path / "experts")
    words = command(tmp_path / "experts", servers=5, trainers=3, steps=3, prompts_per_step=6,
                    samples_per_prompt=4, zero_variance_filter="false", deadline_s=600)
    with running(tmp_path, words) as (process,):
        assert process.wait(1800) == 0, (tmp_path / "launcher.log").read_text()[-3000:]
    said = (tmp_path / "launcher.log").read_text()
    assert "no GPU: 3 train, 5 servers generate" in said and "Done: 3 steps." in said
    assert re.search(r"Preflight: push +\S+ s  \S+ GB to 5 servers", said)
    folder = tmp_path / "runs" / "r"
    self_test, *log = lines(folder)
    assert self_test["mismatch/fp32_head/kl_k3"] < 1e-6
    assert [r["version"] for r in log] == [1, 2, 3] and max(r["lag/max"] for r in log) > 0
    # The weights arrive: a token of the newest version is as likely for the trainer.
    newest = [r["mismatch/mean_abs_dlogp/lag_0"] for r in log
              if "mismatch/mean_abs_dlogp/lag_0" in r]      # a late step may have none
    assert newest and max(newest) < 1e-3
    assert len(list((folder / "checkpoints" / "step_3").glob("model*"))) == 3
    assert (folder / "model" / "config.json").exists() and len(lines(folder, "evals.jsonl")) == 2
    with running(tmp_path, words) as (process,):
        assert process.wait(300) == 0
    assert "runs/r is finished. Done: 3 steps." in (tmp_path / "launcher.log").read_text()


@pytest.mark.days(6, turn=5)
def test_the_real_compiler_under_fsdp2_has_the_gradient_of_one_process(models, seed, monkeypatch):
    """test_team.py leaves the compiler out, which takes a minute: once, here, it is not. Its fused
    kernels round otherwise than the plain process beside them: 1.8e-6 of a gradient was seen."""
    monkeypatch.setattr(test_team, "ROUNDING", 1e-5)
    monkeypatch.setattr(test_team, "without_compiler", None)
    monkeypatch.setattr(test_team, "answers", functools.partial(answers, timeout=1800))
    monkeypatch.setitem(test_team.CASES, "compiled",
                        test_team.CASES["compiled"] | {"deadline_s": 600.0})
    test_team.test_any_number_of_ranks_has_the_gradient_and_the_log_of_one(
        2, True, "compiled", models, seed)
