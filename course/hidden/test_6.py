"""Hidden checks of exercise 6: fresh random scripts, sizes and weights (COURSE_SEED). The oracle
keeps each sample in a list of its own."""

import copy
import math
import os
import random
from collections import Counter, defaultdict

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from course.checks.test_6 import drain
from engines import accept
from sampler import Interruption, Request, TransformersSampler

SEED = int(os.environ.get("COURSE_SEED") or 0)
RNG = random.Random(SEED)
V = RNG.randrange(40, 60)
ENDS, SHUT, OPEN, CLOSE = {2, 3}, 5, 6, 8           # SHUT, or OPEN and then CLOSE, end the thinking


class Words:
    def decode(self, ids):
        words = {SHUT: "y</think>", OPEN: "</thi", CLOSE: "nk>z"}
        return "".join(words.get(int(i), "w") for i in ids)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=V, hidden_size=32, intermediate_size=56, num_hidden_layers=3, head_dim=8,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
        tie_word_embeddings=False, attn_implementation="eager")).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    return model


def make(model, rule, slots, **settings):
    return TransformersSampler(accept.prepare(copy.deepcopy(model)), Words(), rule, slots=slots,
                               prompt_tokens=17, **{"eos_ids": ENDS, "seed": SEED, **settings})


def requests(count, samples=1):
    return [Request(i, f"q{i}", tuple(RNG.randrange(9, V) for _ in range(RNG.randrange(1, 18))),
                    samples, f"task {i}") for i in range(count)]


def plain(draws, budget, answer, phrase):
    """One sample, step by step: (token, log-prob, sampled) of each, and why it ended."""
    tokens, queue, budget_left, answer_left, cut = [], [], budget, answer, False
    for i, draw in enumerate(draws):
        if queue:
            tokens.append((queue.pop(0), 0.0, False))
            continue
        tokens.append((draw, -0.5 - i, True))
        if draw in ENDS:
            return tokens, "stop", cut
        if budget_left:
            budget_left -= 1
            thinks = "</think>" not in Words().decode(t for t, *_ in tokens)
            if budget_left == 0 and phrase and thinks:
                queue, cut = list(phrase), True
        else:
            answer_left -= 1
            if answer_left == 0:
                return tokens, "length", cut


@pytest.mark.parametrize("trial", range(5))
def test_random_scripts_through_the_slot_loop(model, trial):
    rng = random.Random(f"{SEED}/{trial}")
    count, slots, answer = rng.randrange(12, 40), rng.randrange(3, 11), rng.randrange(1, 6)
    phrase = tuple(rng.choice([9, 10, 11, SHUT, *ENDS]) for _ in range(rng.randrange(not trial, 5)))
    letters = [12, 13, 14] * 3 + [SHUT, OPEN, CLOSE] * 1 + [2, 3] * (trial % 2)
    scripts = [[rng.choice(letters) for _ in range(60)] for _ in range(count)]
    queue, budgets = [], [rng.randrange(1, 14) for _ in range(count)]
    queue += budgets

    class Rule(Interruption):
        def draw_budgets(self, count, generator):
            return torch.tensor([queue.pop(0) for _ in range(count)])

    sampler, drawn = make(model, Rule(1, 14, answer, phrase), slots), Counter()

    def choose(hidden):
        groups = [request.group_id for request in sampler.running]
        result = (torch.tensor([scripts[i][drawn[i]] for i in groups]),
                  torch.tensor([-0.5 - drawn[i] for i in groups]))
        drawn.update(groups)
        return result

    def push():
        sampler.version += 2
    sampler._choose = choose
    asked = requests(count)
    for request in asked:
        sampler.submit(request)
    rollouts = {r.group_id: r for r in drain(sampler, after=push)}
    for i in range(count):
        r, (tokens, reason, cut) = rollouts[i], plain(scripts[i], budgets[i], answer, phrase)
        story = (f"{count} samples in {slots} slots, sample {i}: budget {budgets[i]}, answer "
                 f"{answer}, "
                 f"phrase {phrase}, end tokens {ENDS}. ")
        assert r.output_ids == [t for t, *_ in tokens], (
            f"{story}The output is {r.output_ids}, it should be {[t for t, *_ in tokens]}.")
        assert r.sampled == [s for *_, s in tokens], (
            f"{story}sampled marks the wrong tokens: {r.sampled}.")
        assert r.behavior_logprobs == [lp for _, lp, _ in tokens], (
            f"{story}Log-probs are of other draws: {r.behavior_logprobs}.")
        assert (r.finish_reason, r.interrupted) == (reason, cut), (
            f"{story}{r.finish_reason}, {r.interrupted}.")
        first = r.versions[0]
        assert first % 2 == 0 and r.versions == list(range(first, first + 2 * len(tokens), 2)), (
            f"{story}The version rose by 2 after each step; the tokens' versions are {r.versions}.")
        assert (r.prompt_id, r.prompt_ids, r.task) == (f"q{i}", asked[i].prompt_ids, f"task {i}"), (
            f"{story}The rollout has another prompt's fields.")


@torch.no_grad()
@pytest.mark.parametrize("temperature", [round(RNG.uniform(*ends), 2)
                                         for ends in ((0.5, 0.9), (1.1, 1.5))])
def test_log_probs_and_pushes_against_transformers(model, temperature):
    """Pushed after each of a few random steps; every sample is checked over a cache that is made of
    as many parts as there were versions."""
    rng = random.Random(f"{SEED}/{temperature}")
    weights = [copy.deepcopy(model) for _ in range(4)]
    for i, other in enumerate(weights[1:], 1):
        for name, parameter in other.named_parameters():
            parameter += 0.05 * i * torch.randn_like(parameter)
    budget, answer = rng.randrange(9, 14), 4
    rule = Interruption(budget, budget, answer)
    sampler = make(model, rule, 9, temperature=temperature, eos_ids={V})
    for request in requests(3, samples=3):
        sampler.submit(request)
    rollouts, when = [], sorted(rng.sample(range(1, budget), 3))
    for step in range(budget + answer):
        if step in when:
            at = when.index(step) + 1
            sampler.push_weights(iter(weights[at].named_parameters()), at)
        rollouts += sampler.step()
    assert len(rollouts) == 9, "Nine samples of one length end in the same step."
    versions = [sum(step >= w for w in when) for step in range(budget + answer)]
    for r in rollouts:
        assert r.versions == versions, (
            f"Pushes came before the steps {when}; the tokens' versions are {r.versions}.")
        ids = torch.tensor([[*r.prompt_ids, *r.output_ids]])
        cache, prompt = DynamicCache(), len(r.prompt_ids)
        logits = weights[0](ids[:, :prompt], past_key_values=cache, use_cache=True).logits[:, -1:]
        for t, version in enumerate(versions):
            if t:
                logits = weights[version](ids[:, prompt + t - 1: prompt + t], past_key_values=cache,
                                          use_cache=True).logits
            right = (logits[0, -1] / temperature).log_softmax(-1)[r.output_ids[t]].item()
            assert abs(right - r.behavior_logprobs[t]) < 2e-4, (
                f"Token {t} (version {version}) has the log-prob {r.behavior_logprobs[t]:.4f}; "
                "weights of that "
                f"version over the older keys and values give {right:.4f} at temperature "
                f"{temperature}.")


@torch.no_grad()
def test_draws_at_a_temperature_and_of_a_steep_head(model):
    temperature = RNG.uniform(0.4, 0.7)
    sampler = make(model, Interruption(3, 5, 2), 4, temperature=temperature)
    hidden = torch.randn(1, 32)
    token, logprob = sampler._choose(hidden.expand(8000, -1))
    p = (hidden.double() @ model.lm_head.weight.double().T / temperature).softmax(-1)[0]
    assert (logprob - p[token].log()).abs().max() < 1e-4, (
        f"Log-probs at temperature {temperature:.2f}.")
    count, enough = torch.bincount(token, minlength=V), p * 8000 >= 5
    chi2 = ((count - 8000 * p) ** 2 / (8000 * p))[enough].sum()
    assert chi2 < enough.sum() + 6 * math.sqrt(2 * enough.sum()), (
        f"8,000 draws at temperature {temperature:.2f} do not follow the softmax (chi-square "
        f"{chi2:.0f} "
        f"with {int(enough.sum())} tokens).")
    sampler.head = torch.full((V, 32), -torch.inf)
    sampler.head[V - 1] = 0.0
    token, logprob = sampler._choose(torch.ones(500, 32))
    assert (token == V - 1).all() and (logprob == 0).all(), (
        "Only the last token is possible, and another id was drawn (or one beyond the vocabulary).")


def test_budgets_at_other_bounds():
    low = RNG.randrange(3, 30)
    high = low + RNG.randrange(1, 6)
    rule, per = Interruption(low, high, 2, (4,)), defaultdict(int)
    for value in rule.draw_budgets(6000, torch.Generator().manual_seed(SEED)).tolist():
        per[value] += 1
    assert set(per) == set(range(low, high + 1)), (
        f"From {low} to {high}, both included: {dict(per)}")
    assert min(per.values()) > 0.8 * 6000 / len(per), f"Not uniform: {dict(per)}"
    assert Interruption(low, high, 2).draw_budgets(3, torch.Generator()).tolist() == [high] * 3
    rule, twice = Interruption(low, 10 ** 6, 2, (4,)), []
    for others in range(2):
        torch.manual_seed(others)
        twice.append(rule.draw_budgets(5, torch.Generator().manual_seed(SEED)).tolist())
    assert twice[0] == twice[1], "Budgets come from the generator that is given, and from no other."
