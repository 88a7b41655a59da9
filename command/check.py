"""check.py: is this model ready for this task?

`python scalerl.py --check --config ...` prints a line for each check: "ok"; "look": the figure says
what to doubt; or "bad". All of them ask a scalerl.Run for its prompts, samples and rewards, so what
is checked is what would run. docs/is-it-working.md explains the lines. All of it is ours.
"""

import contextlib
from collections import Counter
from itertools import islice
from statistics import fmean, pstdev

from engines.agreement import HEALTHY_KL, disagreement

PROMPTS = 32                # that are asked: a standard error of the pass rate of .09 at most


def check(run):
    """Print a line for each check of `run`, a scalerl.Run before its first step. Returns the exit
    code: 1 if something is bad, else 0."""
    verdicts = []
    for verdict, sentence in checks(run):
        print(f"{verdict:4}  {sentence}", flush=True)
        verdicts.append(verdict)
    run.team.close()
    return int("bad" in verdicts)


def checks(run):
    """Yield (verdict, sentence) of each check, in the order in which a sample goes its way."""
    config, problems, tokenizer = run.config, run.problems, run.trainer.tokenizer
    asked = dict(islice(problems.train.items(), PROMPTS))
    n, G = len(asked), config.samples_per_prompt

    def grade(value, look, bad):                    # of a value that had better be low
        return "bad" if value > bad else "look" if value > look else "ok"

    # 1. Prompts. Blanks apart: some tokenizers decode others than they were given.
    texts = [tokenizer.decode(problems.prompts[i]) for i in asked]
    arrived = sum("".join(p.question.split()) in "".join(text.split())
                  for p, text in zip(asked.values(), texts))
    template = "the model's own" if tokenizer.chat_template else "none, as for a base model"
    yield grade(2 * (n - arrived) + (not tokenizer.chat_template), 0, 1), (
        f"chat template: {template}; the question arrives in {arrived} of {n} prompts; they end in "
        f"{texts[0][-24:]!r}")

    # 2. Problems. Too many unusable ones have already ended the command, with a sentence.
    log = problems.log
    used, long = log["problems/train"] + log["problems/heldout"], log["problems/too_long"]
    bad = log["problems/bad_gold"] + log["problems/bad_records"]
    yield grade(bad + long, 0, used), (
        f"problems: {used} are used; left out are {bad} whose gold answer fails its own verifier, "
        f"or cannot be read, and {long} of more than prompt_tokens = {config.prompt_tokens}")

    # 3. Answers to training problems.
    run.push_weights()                              # servers may have other ones
    rollouts, rates, log = ask(run, asked)
    mean, equal = fmean(rates), fmean(rate in (0, 1) for rate in rates)
    yield "bad" if mean in (0, 1) else grade(equal, 0.8, 1), (
        f"base pass rate: {mean:.3f}, standard error {pstdev(rates) / n ** 0.5:.3f} ({n} prompts x "
        f"{G} samples); groups of equal rewards: {equal:.0%}")
    cut = fmean(r.finish_reason == "length" for r in rollouts)
    yield grade(cut, 0.05, 0.5), f"answers: {cut:.1%} are truncated"
    forced = fmean(r.interrupted for r in rollouts)
    yield grade(forced, 0.5, 1), (f"thinking: {forced:.1%} is interrupted, at {config.think_min} "
                                  f"to {config.think_max} tokens")
    late, unread = log["verifier/timeout_frac"], log["verifier/error_frac"]
    yield grade(max(late, unread), 0.02, 0.2), (
        f"verifier: {late:.1%} late, {unread:.1%} unreadable, {log['time/check_ms']:.1f} ms each")

    # 4. The two sides of the importance ratio.
    with contextlib.redirect_stdout(None):          # it prints a sentence of its own
        apart, _, kl = disagreement(run).values()
    yield "ok" if kl < HEALTHY_KL and apart < 0.03 else "bad", (
        f"self-test: sampler and trainer differ by {apart:.1e} in a token's log-prob, healthy is "
        f"below 0.03, and by a KL of {kl:.1e}, healthy is below {HEALTHY_KL}")


def ask(run, asked):
    """(samples of the problems `asked`, each one's pass rate, the verifier's columns)."""
    G = run.config.samples_per_prompt
    rollouts = run.answers(run.eval_sampler, asked, G)
    rewards, log = run.verifier.rewards(rollouts, asked, run.trainer.tokenizer)
    right = Counter(r.prompt_id for r, reward in zip(rollouts, rewards) if reward > 0)
    return rollouts, [right[i] / G for i in asked], log
