"""step_log.py: what a step and an evaluation write to the logs, and what an evaluation shows.

Columns have the names of other projects where those have one, so that runs can be compared."""
import contextlib
import math
import time
from itertools import groupby
from statistics import fmean

import torch
from tqdm import tqdm

from config import ConfigError

SAMPLES_LOGGED = 4          # of a step, evenly spread over it, are written down to be read
TIMELINE_EVERY = 10         # steps: when each of their samples was decoded (make timeline)
REDRAW_S = 60               # curve.png is drawn again if it is older: it takes two seconds


class Stopwatch:
    """Where a step's seconds go: `lap("train")` is the time since the lap before."""

    def __init__(self):
        self.seconds, self.total, self.last = {}, 0.0, time.perf_counter()

    def lap(self, name):
        now = time.perf_counter()
        self.seconds[name], self.last = now - self.last, now
        self.total += self.seconds[name]


def describe(run):
    """What begins, for the terminal. The evaluation before a run's first step can take hours."""
    config, samples = run.config, len(run.problems.heldout) * run.config.eval_samples
    first = f"\nFirst it is evaluated: {samples:,} samples." if run.evaluated is None else ""
    prompt = run.trainer.tokenizer.decode(next(iter(run.problems.prompts.values())))
    one = config.gpus == -1 and not config.vllm_url and torch.cuda.device_count() > 1
    return (f"{config.model} on {config.task}: {len(run.problems.train)} problems, "
            f"{len(run.problems.heldout)} held out, {config.prompts_per_step} x "
            f"{config.samples_per_prompt} samples a step, {config.off_policy}, {config.engine} on "
            f"{run.trainer.device}{' (one GPU of several: --gpus N)' * one}. Log: "
            f"{run.folder.path}\nA prompt: {prompt!r:.400}{first}")


def log_step(run, groups, rewards, log, watch):
    """Write a step of scalerl.Run to its logs. Returns its line in metrics.jsonl. groups: the
    step's P groups; rewards (P, G); log: the columns known already; watch: Stopwatch."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    lengths = torch.tensor([float(len(r.output_ids)) for r in rollouts])
    seconds, servers = watch.seconds, run.sampler.devices > 0
    line = {"step": run.step, "version": run.version} | log | {
        "completions/mean_length": lengths.mean().item(),
        "completions/std_length": lengths.std(correction=0).item(),
        "completions/longest_of_group": lengths.view(rewards.shape).max(1).values.mean().item(),
        "completions/truncated_frac": fmean(r.finish_reason == "length" for r in rollouts),
        "completions/interrupted_frac": fmean(r.interrupted for r in rollouts),
        "tokens/forced": sum(not sampled for r in rollouts for sampled in r.sampled),
        "tokens/generated": run.generated, "off_policy/in_flight": run.sampler.in_flight,
        "off_policy/outstanding": len(run.pacer.groups),
        "curriculum/epoch": run.curriculum.epoch, "curriculum/active": len(run.curriculum.active),
        "curriculum/retired": len(run.problems.train) - len(run.curriculum.active),
        **{f"time/{part}_s": s for part, s in seconds.items()}, "time/step_s": watch.total,
        "throughput/generated_tok_s":
            run.generated / max(watch.total if servers else seconds["generate"], 1e-9),
        "throughput/trained_tok_s": log["tokens/trained"] / max(seconds["train"], 1e-9),
    } | run.sampler.log() | run.compute.log()
    run.folder.append("metrics.jsonl", line)
    run.folder.training_s = watch.total - seconds["generate"]       # in which none can be saved
    # Which samples were trained on: none may be lost, and none may be there twice.
    trained = {"step": run.step, "groups": [{"id": group.group_id, "prompt_id": group.prompt_id,
        "start": group.start, "rewards": row.tolist()} for group, row in zip(groups, rewards)]}
    if run.step % TIMELINE_EVERY == 0 and all(r.ended for r in rollouts):
        trained["timeline"] = [decoded(r) for r in rollouts]
    run.folder.append("groups.jsonl", trained)
    every = max(1, len(rollouts) // SAMPLES_LOGGED)
    shown = list(zip(rollouts, rewards.flatten().tolist()))[::every]
    decode = run.trainer.tokenizer.decode
    run.folder.append("samples.jsonl", *(
        {"step": run.step, "prompt_id": r.prompt_id, "reward": reward,
         "prompt": decode(r.prompt_ids), "output": decode(r.output_ids),
         "interrupted": r.interrupted, "finish_reason": r.finish_reason,
         "versions": [r.versions[0], r.versions[-1]]} for r, reward in shown[:SAMPLES_LOGGED]))
    return line


def decoded(rollout):
    """When a sample was decoded: the engine's steps at its end; [version of weights, tokens in a
    row that they wrote]; [first, number] of forced tokens."""
    forced = [rollout.sampled.index(False), n] if (n := rollout.sampled.count(False)) else []
    versions = [[version, len([*run])] for version, run in groupby(rollout.versions)]
    return {"ended": rollout.ended, "versions": versions, "forced": forced}


def log_evaluation(run, rollouts, correct, mean_at_k, held_out, metrics, seconds):
    """Write an evaluation of scalerl.Run to its log, and show it. rollouts: all samples; correct
    {problem id: right ones}; mean_at_k {task: pass rate}; held_out: of the training tasks; metrics:
    the verifier's. right@k: right samples of each problem, in one order, for `--by-problem`. Raises
    ConfigError, at step 0: no whole one could be judged, or too many got no reward."""
    k, heldout, rates = run.config.eval_samples, run.problems.heldout.values(), {}
    if run.step == 0 and all(problem.kind.startswith("reward") for problem in heldout):
        asked = metrics["verifier/slow_frac"]       # the texts that an own reward was asked about
        bad = metrics["verifier/error_frac"] + metrics["verifier/timeout_frac"]
        if 0 < asked <= bad + 1e-9 or \
                metrics["verifier/bad_reward_frac"] > run.config.max_unusable:
            raise ConfigError(f"task = {run.config.task!r}: {bad / asked:.0%} of the first answers "
                              "could not be judged; each first cause is told above")
    for task, mean in mean_at_k.items():
        rates[f"eval/{task}/mean@{k}"] = mean
        solved = [correct[problem.id] for problem in heldout if problem.task == task]
        rates |= {f"eval/{task}/pass@{n}": sum(pass_at_k(k, right, n) for right in solved)
                  / len(solved) for n in (2, 4, 8, 16, 32, 64, k) if n <= k}
        rates[f"eval/{task}/right@{k}"] = solved
    run.folder.append(
        "evals.jsonl", {"step": run.step, "version": run.version} | run.compute.log() | rates | {
            "eval/truncated_frac": fmean([r.finish_reason == "length" for r in rollouts]),
            "eval/mean_length": fmean([len(r.output_ids) for r in rollouts]), "held_out": held_out}
        # Answers that could not be verified count as wrong, so their share is logged as well.
        | {f"eval/{name}": share for name, share in metrics.items() if name.startswith("verifier/")}
        # Of servers: what they did meanwhile, which is not the next step's.
        | {"time/eval_s": seconds} | (run.sampler.log() if run.sampler.devices else {}))
    show_evaluation(run.folder.path, run.config.steps)


def show_evaluation(folder, steps):
    """Print the last evaluation in the log of a run of so many steps, above a terminal's moving
    line: each task's pass rate, its gain since the one before, from the sixth on the forecast of
    the run's end. Then FOLDER/curve.png is drawn again, of the first task, if it can be fitted."""
    from fitting import forecast, readers               # scipy: not before a run
    rows, _ = readers.read_jsonl(folder / "evals.jsonl")
    step, compute = ([row[name] for row in rows] for name in ("step", "compute/flops"))
    end = compute[-1]                   # of the run, if its steps go on to cost what they do now
    columns, told = [name for name in rows[-1] if "/mean@" in name], []
    if len(rows) > 1:
        end += (steps - step[-1]) * (compute[-1] - compute[-2]) / max(1, step[-1] - step[-2])
    for name in columns:
        *before, now = rates = [row[name] for row in rows]
        gain = f"({now - before[-1]:+.3f}) " if before else ""
        told.append(f"{name[5:].rpartition('/')[0]} {now:.3f} {gain}"
                    f"{forecast.forecast_line(compute, rates, end)}".strip())
    bad = sum(rows[-1].get(f"eval/verifier/{name}_frac", 0) for name in ("error", "timeout"))
    cut = rows[-1].get("eval/truncated_frac", 0)        # .05: docs/is-it-working.md
    with tqdm.external_write_mode():
        print(f"evaluation at step {step[-1]}/{steps}:", *told, f"at {compute[-1]:.3g} FLOPs",
              *[f"({bad:.0%} of the answers could not be judged)"] * (bad > .02),
              *[f"({cut:.0%} of the answers were cut off)"] * (cut > .05), flush=True)
    picture = folder / "curve.png"
    old = not picture.exists() or abs(time.time() - picture.stat().st_mtime) > REDRAW_S
    if old or step[-1] >= steps:
        from fitting.figures import plot_runs           # matplotlib: .4 s
        with contextlib.suppress(ValueError, OSError):
            curve = readers.load(str(folder), y=columns[0])
            plot_runs([curve], [forecast.fit_curve(curve.C, curve.R)]).savefig(picture, dpi=150)


def pass_at_k(n, correct, k):
    """The chance that k of n samples, drawn without replacement, hold a correct one. Unbiased;
    the plain 1 - (1 - correct/n)**k is too low (Chen et al. 2021, arXiv 2107.03374)."""
    return 1 - math.comb(n - correct, k) / math.comb(n, k)
