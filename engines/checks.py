"""checks.py: is this model ready for this task?  python scalerl.py --check --config ...

One line for each check, before a run: "ok"; "look": it may work, the figure says what to doubt;
"bad". It asks a scalerl.Run for its prompts, samples and rewards, and lets it train with the smoke
reward, so what is checked is what would run. docs/is-it-working.md explains each line.
"""

import contextlib
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

from artifacts.run_folder import Progress
from artifacts.step_log import Stopwatch
from engines.self_test import HEALTHY_KL, NAMES, self_test

PROMPTS = 32                # that are asked: a standard error of the pass rate of .09 at most


def check(run, steps):
    """Print a line for each check of `run`, a scalerl.Run before its first step, the last one after
    `steps` steps (0: without). Returns the exit code: 1 if something is bad, else 0."""
    status = 0
    for verdict, sentence in checks(run, steps):
        print(f"{verdict:4}  {sentence}", flush=True)
        status |= verdict == "bad"
    run.team.close()
    return int(status)


def grade(value, look, bad):
    """The verdict on a value that had better be low."""
    return "bad" if value > bad else "look" if value > look else "ok"


def checks(run, steps):
    """Yield (verdict, sentence) of each check, in the order in which a sample goes its way."""
    config, problems, tokenizer = run.config, run.problems, run.trainer.tokenizer
    run.push_weights()                              # servers may have other ones
    asked = {i: problems.train[i] for i in [*problems.train][:PROMPTS]}
    G, counts = config.samples_per_prompt, {
        name.removeprefix("problems/"): n for name, n in problems.log.items()}

    # 1. Prompts. Blanks apart: some tokenizers decode others than they were given.
    texts = {i: tokenizer.decode(problems.prompts[i]) for i in asked}
    arrived = sum("".join(p.question.split()) in "".join(texts[i].split())
                  for i, p in asked.items())
    twice = sum(len(set(problems.prompts[i][:2])) == 1 and
                problems.prompts[i][0] in tokenizer.all_special_ids for i in asked)
    template = "the model's own" if tokenizer.chat_template else "none, as for a base model"
    yield ("bad" if arrived < len(asked) or twice else "look" if not tokenizer.chat_template
           else "ok"), (f"chat template: {template}; the question arrives in {arrived} of "
                        f"{len(asked)} prompts, {twice} begin with a special token twice; they end "
                        f"in {texts[next(iter(asked))][-24:]!r}")
    # 2. Problems. Too many bad ones have already ended the command, with a sentence.
    usable, out = counts["train"] + counts["heldout"], counts["bad_gold"] + counts["bad_records"]
    yield grade(out, 0, usable), (f"gold answers: {usable + counts['too_long']} pass their own "
                                  f"verifier, {out} do not or could not be read")
    yield grade(counts["too_long"], 0, usable), (
        f"prompts: the longest of {usable} has {problems.prompt_tokens} tokens, prompt_tokens = "
        f"{config.prompt_tokens}; {counts['too_long']} are too long and left out")

    # 3. Answers to training problems, as the sampler writes them.
    rollouts = run.answers(run.eval_sampler, asked, G)
    rewards, columns = run.verifier.rewards(rollouts, asked, tokenizer)
    right = defaultdict(int)
    for rollout, reward in zip(rollouts, rewards):
        right[rollout.prompt_id] += reward > 0
    rates = [right[i] / G for i in asked]
    mean, error = statistics.fmean(rates), statistics.pstdev(rates) / len(rates) ** 0.5
    equal = sum(rate in (0, 1) for rate in rates) / len(rates)
    yield ("bad" if mean in (0, 1) else grade(equal, 0.8, 1)), (
        f"base pass rate: {mean:.3f} ± {error:.3f} ({len(asked)} prompts x {G} samples); groups of "
        f"equal rewards, which teach nothing: {equal:.0%}")
    n = len(rollouts)
    cut = sum(r.finish_reason == "length" for r in rollouts) / n
    yield grade(cut, 0.05, 0.5), (f"answers end: {1 - cut:.1%}, the others are truncated "
                                  f"(answer_tokens = {config.answer_tokens})")
    forced = sum(r.interrupted for r in rollouts) / n
    yield grade(forced, 0.5, 1), (f"thinking ends: {1 - forced:.1%}, the others are interrupted at "
                                  f"{config.think_min} to {config.think_max} tokens")
    late, unread = columns["verifier/timeout_frac"], columns["verifier/error_frac"]
    yield grade(max(late, unread), 0.02, 0.2), (
        f"verifier: {late:.1%} of the answers late, {unread:.1%} unreadable, "
        f"{columns['time/check_ms']:.1f} ms an answer")

    # 4. The two sides of the importance ratio.
    with contextlib.redirect_stdout(None):          # it has a sentence of its own
        kl, most = (self_test(run)[f"mismatch/{NAMES[config.head_fp32]}/{name}"]
                    for name in ("kl_k3", "max_abs_dlogp"))
    yield grade(kl, HEALTHY_KL, HEALTHY_KL), (
        f"self-test: sampler and trainer differ by a KL of {kl:.1e} (healthy: below {HEALTHY_KL}), "
        f"at most {most:.1e} in a log-prob")
    if steps:
        yield smoke(run, steps, asked, rollouts)


def smoke(run, steps, asked, before):
    """Train with +1 for an answer shorter than the median of `before`, the samples of `asked`, and
    ask again. It needs no skill of the model: if it is not learned, the loop is broken; or it had
    no chance, which is said."""
    decode, lines = run.trainer.tokenizer.decode, []
    limit = max(2, round(statistics.median(len(decode(r.output_ids[:-1])) for r in before)))
    run.problems.train = {i: p.shorter_than(limit) for i, p in run.problems.train.items()}
    with tempfile.TemporaryDirectory() as folder, Progress(steps) as progress:
        run.folder.path = Path(folder)
        while len(lines) < steps and (watch := Stopwatch()) and (groups := run.generate()):
            watch.lap("generate")
            lines.append(run.train_on(groups, watch))
            progress.update(1)
    run.push_weights(run.eval_sampler)
    after = run.answers(run.eval_sampler, asked, run.config.samples_per_prompt)
    shares, tokens = [], []                         # before and after, of each prompt; of all
    for rollouts in (before, after):
        rewards, _ = run.verifier.rewards(rollouts, run.problems.train, run.trainer.tokenizer)
        shares.append([statistics.fmean(reward > 0 for r, reward in zip(rollouts, rewards)
                                        if r.prompt_id == i) for i in asked])
        tokens.append(statistics.fmean(len(r.output_ids) for r in rollouts))
    gains = [new - old for old, new in zip(*shares)]
    gain, error = statistics.fmean(gains), statistics.stdev(gains) / len(gains) ** 0.5
    varied = 1 - statistics.fmean(line["frac_reward_zero_std"] for line in lines)
    lr = max(line.get("lr", 0) for line in lines)
    chance = varied > 0.2 and lr == run.config.lr
    verdict = "ok" if gain > 3 * error else "bad" if chance or gain < -3 * error else "look"
    return verdict, (
        f"smoke reward: answers below {limit} characters went from {statistics.fmean(shares[0]):.0%}"
        f" to {statistics.fmean(shares[1]):.0%} in {len(lines)} steps (+/- {error:.0%}), from "
        f"{tokens[0]:.1f} to {tokens[1]:.1f} tokens; {varied:.0%} of the groups varied, lr {lr:g}"
        + {"ok": "", "bad": ": not learned: its steps are too few or too small, or the loop is "
           "broken", "look": ": it had little chance, try more steps, "
           "--warmup-steps 0, a higher --lr or --temperature"}[verdict])
