"""Public checks of exercise 6, the sampler (course/6_interruption.md). Run: make check EX=6"""

import copy
import random
from collections import Counter

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from engines import accept
from loss import head_logits
from sampler import Interruption, Request, TransformersSampler

V, EOS, PHRASE = 31, 1, (4, 5, 7)
WORDS = {7: "</think>", 8: "</th", 9: "ink>"}       # token 7, or 8 and then 9, end the thinking


class Words:
    """A tokenizer: all other tokens are written x."""

    def decode(self, ids):
        return "".join(WORDS.get(int(i), "x") for i in ids)


def random_model(seed):
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=V, hidden_size=24, intermediate_size=40, num_hidden_layers=2, head_dim=8,
        num_attention_heads=3, num_key_value_heads=1, max_position_embeddings=128,
        tie_word_embeddings=True, eos_token_id=EOS, attn_implementation="eager")).eval()
    for parameter in model.parameters():            # the default weights predict almost nothing
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture(scope="module")
def model():
    return random_model(3)


def make(model, rule=Interruption(5, 9, 3, PHRASE), slots=7, **settings):
    return TransformersSampler(accept.prepare(copy.deepcopy(model)), Words(), rule, slots=slots,
                               prompt_tokens=11, **{"eos_ids": {EOS}, "seed": 5, **settings})


def requests(count, samples=1):
    rng = random.Random(count)
    return [Request(i, f"p{i}", tuple(rng.randrange(10, V) for _ in range(2 + i % 9)), samples)
            for i in range(count)]


def drain(sampler, submit=(), after=lambda: None):
    for request in submit:
        sampler.submit(request)
    rollouts, steps = [], 0
    while sampler.in_flight:
        rollouts += sampler.step()
        after()
        steps += 1
        assert steps < 2000, "Some sample never ends: does it end at its limit, rows.limit?"
    return rollouts


# -- draw_budgets ----------------------------------------------------------------------------------

def test_budgets_are_whole_numbers_between_both_bounds():
    rule = Interruption(5, 8, 3, PHRASE)
    budgets = rule.draw_budgets(4000, torch.Generator().manual_seed(0))
    assert budgets.shape == (4000,) and budgets.dtype == torch.int64, (
        "int64 (count,), one a sample.")
    found = Counter(budgets.tolist())
    assert len(found) > 1, ("All budgets of one call are equal. Each sample draws its own: with "
                            "one "
                            "budget for a group, its advantages cannot tell a good point from a "
                            "bad.")
    assert 8 in found, "think_max = 8 was never drawn in 4,000: the upper bound is included."
    assert set(found) == {5, 6, 7, 8}, f"Budgets {sorted(found)} were drawn between 5 and 8."
    assert min(found.values()) > 850, f"They are not uniform: {dict(found)} in 4,000 draws."


def test_budgets_come_from_the_generator_and_without_a_phrase_there_is_one():
    rule = Interruption(5, 800, 3, PHRASE)
    torch.manual_seed(1)
    one = rule.draw_budgets(9, torch.Generator().manual_seed(7)).tolist()
    torch.manual_seed(2)
    assert one == rule.draw_budgets(9, torch.Generator().manual_seed(7)).tolist(), (
        "The same generator state gave other budgets: pass generator=generator to torch.")
    without = Interruption(5, 8, 3).draw_budgets(6, torch.Generator()).tolist()
    assert without == [8] * 6, ("Without a phrase nothing is interrupted, and the budget is "
                                "think_max "
                                f"= 8 for all; you drew {without}.")


# -- _choose ---------------------------------------------------------------------------------------

@torch.no_grad()
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_log_prob_is_that_of_the_policy_at_its_temperature(model, temperature):
    sampler, hidden = make(model, temperature=temperature), torch.randn(41, 24)
    token, logprob = sampler._choose(hidden)
    assert token.shape == logprob.shape == (41,), (
        f"token has shape {tuple(token.shape)}, log-prob {tuple(logprob.shape)}: both are (n,).")
    logits = (hidden.double() @ model.lm_head.weight.double().T)
    error = {t: (logprob - (logits / t).log_softmax(-1).gather(1, token[:, None])[:, 0]).abs().max()
             for t in {temperature, 1.0, 1 / temperature, temperature ** 2}}
    hints = {1.0: "Yours is the log-prob at temperature 1: divide the logits before the softmax.",
             1 / temperature: "You multiply by the temperature: divide.",
             temperature ** 2: "You divide by the temperature twice."}
    right = error.pop(temperature)
    hint = "".join(hints[t] for t, found in error.items() if found < 1e-4)
    assert right < 1e-4, f"At temperature {temperature} the log-prob is wrong. {hint}"


@torch.no_grad()
def test_tokens_are_drawn_from_the_softmax(model):
    sampler, hidden = make(model, temperature=0.8), torch.randn(1, 24)
    token, _ = sampler._choose(hidden.expand(6000, -1))
    count = torch.bincount(token, minlength=V)
    assert (count > 0).sum() > 1, "6,000 draws, one token: is this argmax? A token has to be drawn."
    logits = hidden @ model.lm_head.weight.T

    def chi2(p):                                    # Pearson's, of tokens expected 5 times or more
        enough = p * 6000 >= 5
        return ((count - 6000 * p) ** 2 / (6000 * p))[enough].sum() - enough.sum() < 6 * (
            2 * enough.sum()) ** 0.5
    hint = "They fit temperature 1." if chi2(logits.softmax(-1)[0]) else ""
    assert chi2((logits / 0.8).softmax(-1)[0]), (
        f"6,000 draws at temperature 0.8 are not from softmax(logits / 0.8). {hint}")


@torch.no_grad()
def test_an_impossible_token_is_never_drawn(model, monkeypatch):
    sampler = make(model)
    sampler.head = torch.zeros(V, 24)
    sampler.head[::3] = -torch.inf                  # tokens 0, 3, 6, ... 30; all others alike
    for end in (None, 0, 1):                        # and at the two ends of what torch.rand gives
        def rand(*size, generator=None, dtype=torch.float32, device=None):
            size = size[0] if isinstance(size[0], tuple) else size
            return torch.full(size, end * (1 - torch.finfo(dtype).eps / 2), dtype=dtype)
        if end is not None:
            monkeypatch.setattr(torch, "rand", rand)
        token, logprob = sampler._choose(torch.ones(900, 24))
        monkeypatch.undo()
        when = "" if end is None else f" when torch.rand gives {end}" + " minus a rounding" * end
        assert (token < V).all() and (token % 3 > 0).all(), (
            f"A token of probability 0 was drawn{when}: searchsorted needs right=True.")
        assert torch.isfinite(logprob).all(), f"A drawn token's log-prob is not finite{when}."


@torch.no_grad()
def test_draws_come_from_the_engines_own_generator(model):
    hidden, draws = torch.randn(50, 24), []
    for seed, others in ((5, 1), (5, 2), (6, 2)):
        sampler = make(model, seed=seed)
        torch.manual_seed(others)
        draws.append(sampler._choose(hidden)[0].tolist())
    assert draws[0] == draws[1], ("Two engines of one seed drew differently: pass "
                                  "generator=self.random, or a run cannot be repeated.")
    assert draws[1] != draws[2], "Engines of two seeds drew the same tokens."


@torch.no_grad()
def test_the_head_rounds_as_it_is_asked_to(model):
    hidden = torch.randn(30, 24)
    for head_fp32 in (True, False):
        sampler = make(model, head_fp32=head_fp32)
        token, logprob = sampler._choose(hidden)
        right = head_logits(hidden, sampler.head, head_fp32=head_fp32).log_softmax(-1)
        assert (right.gather(1, token[:, None])[:, 0] - logprob).abs().max() < 1e-4, (
            f"head_fp32 = {head_fp32} and the log-prob is another head's: pass self.head_fp32 to "
            "head_logits. Trainer and sampler have to round alike.")


# -- _record, _interrupt, _rollout -----------------------------------------------------------------

UNENDED = ("It should have ended at its limit, budget + answer_tokens, to which `_interrupt` adds "
           "the "
           "phrase once.")


def plain(script, budget, answer, phrase):
    """The oracle: one sample in a list, token by token. script[i] is the draw of its i-th step."""
    ids, logprobs, sampled, limit, left, cut = [], [], [], budget + answer, [], False
    for draw, token in enumerate(script):
        sampled.append(not left)
        logprobs.append(0.0 if left else -1.0 - draw)
        ids.append(left.pop(0) if left else token)
        if sampled[-1] and ids[-1] == EOS:
            return ids, logprobs, sampled, "stop", cut
        if len(ids) == limit:
            return ids, logprobs, sampled, "length", cut
        if len(ids) == budget and phrase and "</think>" not in Words().decode(ids):
            left, cut, limit = list(phrase), True, limit + len(phrase)
    raise AssertionError("the script is too short")


def scripted(model, scripts, budgets, answer, phrase, slots=7):
    """Finished rollouts by group, where `_choose` and the budgets are not yours but a script's. The
    weights' version is the number of the step."""
    budgets = list(budgets)

    class Rule(Interruption):
        def draw_budgets(self, count, generator):
            return torch.tensor([budgets.pop(0) for _ in range(count)])

    sampler = make(model, Rule(1, max(budgets), answer, phrase), slots=slots)
    draws = Counter()

    def choose(hidden):
        tokens, logprobs = [], []
        for request in sampler.running:
            script, place = scripts[request.group_id], draws[request.group_id]
            assert place < len(script), f"A sample has {place} tokens and goes on. {UNENDED}"
            tokens.append(script[place])
            logprobs.append(-1.0 - draws[request.group_id])
            draws[request.group_id] += 1
        return torch.tensor(tokens), torch.tensor(logprobs)

    def next_version():
        sampler.version += 1
    sampler._choose = choose
    try:
        return {r.group_id: r for r in drain(sampler, requests(len(scripts)), next_version)}
    except IndexError as error:                     # a row of self.rows is full
        pytest.fail(f"{UNENDED} ({error})", pytrace=False)


x = 20                                              # a token that means nothing
CASES = {       # name: draws, budget, answer_tokens, phrase, what a mistake here would be
    "still thinking at the budget": (
        [x] * 4 + [21] * 3 + [22, EOS], 4, 3, PHRASE,
        "After exactly `budget` tokens the phrase follows, then the answer is sampled."),
    "thinking closed before the budget": (
        [x, x, 7, 22, 22, 22, EOS], 5, 3, PHRASE,
        "It had closed its thinking (</think> is in its text): no phrase."),
    "closed by two tokens": (
        [x, 8, 9, 22, 22, 22, EOS], 5, 3, PHRASE,
        "</think> was written by two tokens: look for `end` in the decoded text, not for a token."),
    "closed by the last token of the budget": (
        [x, x, x, 7, 22, 22, EOS], 4, 3, PHRASE,
        "The token that spends the budget closes the thinking: look after it is written, no "
        "phrase."),
    "ended by the last token of the budget": (
        [x, x, x, EOS], 4, 3, PHRASE,
        "The token that spends the budget is the end token: the sample is over, no phrase."),
    "ended before the budget": ([x, EOS], 4, 3, PHRASE, "The end token ends a sample at once."),
    "an end token is drawn where the phrase stands": (
        [x] * 4 + [21, EOS, 21] + [22, 22, EOS], 4, 3, PHRASE,
        "A draw that a forced token replaces is thrown away: it must not end the sample."),
    "the phrase holds the end token": (
        [x] * 3 + [21] * 2 + [22, 22, 22], 3, 3, (EOS, 7), "A forced token never ends a sample."),
    "interrupted and never ended": (
        [x] * 20, 4, 3, PHRASE,
        "After the phrase there are answer_tokens more: budget + phrase + answer_tokens in all."),
    "closed and never ended": (
        [x, 7] + [x] * 20, 4, 3, PHRASE, "Without the phrase: budget + answer_tokens in all."),
    "the end token is the last that fits": (
        [x] * 4 + [21] * 3 + [22, 22, EOS], 4, 3, PHRASE,
        "It ended by itself with its last token: `stop`, not `length`."),
    "no phrase is given": (
        [x] * 20, 4, 3, (), "With an empty phrase nothing is interrupted."),
}


def compare(rollout, expected, story):
    ids, logprobs, sampled, reason, cut = expected
    assert rollout.output_ids == ids, (
        f"{story} The output is {rollout.output_ids}, it should be {ids} (end token {EOS}).")
    assert all(rollout.sampled) == all(sampled), (
        f"{story} Forced tokens are marked as sampled: they would be trained on, though the policy "
        "never chose them." if all(rollout.sampled) else
        f"{story} Tokens are marked as forced that were sampled.")
    assert rollout.sampled == sampled, (
        f"{story} sampled is {rollout.sampled}, it should be {sampled}: False for the phrase, and "
        "only "
        "there; it begins after `think` tokens.")
    for t, (mine, right) in enumerate(zip(rollout.behavior_logprobs, logprobs)):
        assert mine == right, (
            f"{story} Token {t} is {'' if sampled[t] else 'not '}sampled and has the log-prob "
            f"{mine}; it "
            f"should be {right}: " + ("that of its own draw." if sampled[t] else
                                      "0 for a token that nobody drew."))
    assert len(rollout.behavior_logprobs) == len(rollout.versions) == len(ids), (
        "Four lists of equal length.")
    assert rollout.finish_reason == reason, f"{story} finish_reason is {rollout.finish_reason!r}."
    assert isinstance(rollout.interrupted, bool) and rollout.interrupted == cut, (
        f"{story} interrupted is {rollout.interrupted!r}.")
    first = rollout.versions[0]
    hint = ("one version for the whole sample: each token keeps the one it was made with."
            if len(set(rollout.versions)) == 1 else "check at which step it is written.")
    assert rollout.versions == list(range(first, first + len(ids))), (
        f"{story} The version rose by 1 after each step, and the tokens' versions are "
        f"{rollout.versions}: {hint}")


@pytest.mark.parametrize("name", CASES)
def test_one_sample(model, name):
    script, budget, answer, phrase, story = CASES[name]
    rollout = scripted(model, [script + [x] * 20], [budget], answer, phrase)[0]
    compare(rollout, plain(script, budget, answer, phrase), f"Case: {name} (budget {budget}, "
            f"answer_tokens {answer}, phrase {phrase}). {story}")
    assert rollout.versions[0] == 0, (
        f"The first token was made by version 0 and is marked {rollout.versions[0]}: a token has "
        "the "
        "version of the weights that made it, not of the next ones.")


def test_a_slot_forgets_its_last_sample(model):
    scripts, budgets = [[x] * 9 + [7] + [x] * 20, [x] * 30], [12, 3]
    rollouts = scripted(model, scripts, budgets, 4, PHRASE, slots=1)
    for i in range(2):
        compare(rollouts[i], plain(scripts[i], budgets[i], 4, PHRASE),
                f"Two samples, one after the other in one slot, sample {i}. The row still holds "
                "what the "
                "last sample wrote behind `count`: look at the first `count` ids alone.")


def test_twenty_samples_of_all_kinds_in_seven_slots(model, seed):
    """Slots are reused and sequences move, so each row has to be written at its own place."""
    rng = random.Random(seed)
    scripts = [[rng.choice([x] * 8 + [7, 8, 9, EOS]) for _ in range(30)] for _ in range(20)]
    budgets = [rng.randrange(3, 10) for _ in scripts]
    rollouts = scripted(model, scripts, budgets, 4, PHRASE)
    assert len(rollouts) == 20
    for i, script in enumerate(scripts):
        compare(rollouts[i], plain(script, budgets[i], 4, PHRASE),
                f"Many samples at once, sample {i}, budget {budgets[i]}.")
        assert rollouts[i].prompt_ids == requests(20)[i].prompt_ids, "Another sample's prompt."


# -- push_weights ----------------------------------------------------------------------------------

def test_pushed_weights_are_copied_into_the_engines_own_tensors(model):
    sampler, new = make(model), random_model(4)
    before, pushed = dict(sampler.model.named_parameters()), dict(new.named_parameters())
    sampler.push_weights(((name, tensor) for name, tensor in pushed.items()), 3)
    after = dict(sampler.model.named_parameters())
    assert all(torch.equal(after[name], tensor) for name, tensor in pushed.items()), (
        "After the push the model has other weights than those pushed.")
    assert sampler.version == 3, f"Version 3 was pushed; sampler.version is {sampler.version}."
    assert torch.equal(sampler.head, pushed["model.embed_tokens.weight"]), (
        "sampler.head still has the old weights: it is a reference to a tensor of the model. Write "
        "into the tensors (copy_), do not replace them.")
    assert all(after[name] is before[name] for name in after), (
        "push_weights has replaced parameters of the model; others hold references to them.")
    with torch.no_grad():
        for tensor in pushed.values():
            tensor += 1
    assert not any(torch.equal(after[name], tensor) for name, tensor in pushed.items()), (
        "The trainer changed its weights after the push, and the sampler's changed too: without a "
        "push, and without a new version. Copy the numbers.")


def test_only_what_is_pushed_changes(model):
    sampler = make(model)
    before = {name: tensor.clone() for name, tensor in sampler.model.named_parameters()}
    name = "model.layers.1.mlp.up_proj.weight"
    sampler.push_weights([(name, before[name] + 1)], 1)
    for other, tensor in sampler.model.named_parameters():
        assert torch.equal(tensor, before[other] + (other == name)), (
            f"{other} is wrong after a push.")
    sampler.push_weights(sampler.model.named_parameters(), 2)       # its own: nothing to copy
    sampler.push_weights([], 3)
    assert sampler.version == 3, f"Version 3 was pushed; sampler.version is {sampler.version}."


def test_running_sequences_keep_their_keys_and_values(model):
    sampler = make(model, Interruption(12, 12, 3), eos_ids={99})
    for request in requests(3, samples=2):
        sampler.submit(request)
    for _ in range(4):
        sampler.step()
    keys = [layer.clone() for layer in sampler.cache.keys]
    lengths, count = sampler.cache.lengths.clone(), sampler.rows.count.clone()
    sampler.push_weights(random_model(4).named_parameters(), 1)
    assert sampler.in_flight == 6, (
        "The push has dropped running sequences: they go on (PipelineRL).")
    assert torch.equal(sampler.rows.count, count), "The push has restarted running sequences."
    assert torch.equal(sampler.cache.lengths, lengths) and all(
        map(torch.equal, sampler.cache.keys, keys)), (
        "The push has changed keys and values in the cache. An in-flight update leaves them as the "
        "old weights computed them: to compute them again would cost what it is meant to save.")


@torch.no_grad()
def test_after_a_push_the_new_weights_read_the_old_cache(model):
    """The oracle is transformers' own cache: 5 tokens from old weights, the rest from new ones."""
    old, new = random_model(3), random_model(3)
    for parameter in new.parameters():
        parameter += 0.1 * torch.randn_like(parameter)
    sampler = make(model, Interruption(12, 12, 3), eos_ids={99})
    sampler.submit(Request(0, "p", (11, 12, 13), 4))
    for _ in range(5):
        sampler.step()
    sampler.push_weights(new.named_parameters(), 1)
    for r in drain(sampler):
        assert r.versions == [0] * 5 + [1] * 10, (
            f"5 tokens were made before the push, 10 after it; versions: {r.versions}.")
        cache, ids = DynamicCache(), torch.tensor([[*r.prompt_ids, *r.output_ids]])
        n = len(r.prompt_ids) + 4                   # the new weights read the fifth token
        old(ids[:, :n], past_key_values=cache, use_cache=True)
        logits = new(ids[:, n: -1], past_key_values=cache, use_cache=True).logits[0]
        right = logits.log_softmax(-1).gather(1, ids[0, n + 1:, None])[:, 0]
        mine = torch.tensor(r.behavior_logprobs[5:])
        fresh = new(ids[:, :-1]).logits[0, n:].log_softmax(-1).gather(1, ids[0, n + 1:, None])[:, 0]
        assert (mine - fresh).abs().max() > 1e-3, (
            "After the push, log-probs are those of a cache that the new weights computed. Keep "
            "the "
            "old one.")
        assert (mine - right).abs().max() < 1e-4, (
            "After the push, log-probs are not those of the new weights over the old cache.")


# -- all together ----------------------------------------------------------------------------------

@torch.no_grad()
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_recorded_log_probs_are_those_of_a_full_forward_pass(model, temperature):
    rollouts = drain(make(model, temperature=temperature), requests(9, samples=2))
    assert len(rollouts) == 18, f"18 samples are asked for, {len(rollouts)} came back."
    assert any(r.interrupted for r in rollouts), "Nothing was interrupted: is `interrupted` marked?"
    for r in rollouts:
        ids = torch.tensor([[*r.prompt_ids, *r.output_ids]])
        right = (model(ids).logits[0, :-1] / temperature).log_softmax(-1).gather(
            1, ids[0, 1:, None])[len(r.prompt_ids) - 1:, 0]
        for t, sampled in enumerate(r.sampled):
            assert not sampled or abs(r.behavior_logprobs[t] - right[t]) < 1e-4, (
                f"Token {t} of {len(r.sampled)}, recorded log-prob {r.behavior_logprobs[t]:.4f}; "
                "the model "
                "says "
                f"{right[t]:.4f} at temperature {temperature}. Is it another token's, or another "
                "slot's?")
