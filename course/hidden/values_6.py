"""Exercise 6 by values: random scripts through the slot loop, beside one list a sample; log-probs
and in-flight pushes against transformers' own cache, in this process."""
import numpy as np
import torch
from scipy import stats

from course.hidden.values import close, equal, holds, parts

PARTS, part = parts()
ENDS, SHUT, OPEN, CLOSE = (2, 3), 5, 6, 8           # SHUT, or OPEN and then CLOSE, end the thinking
WORDS = {str(SHUT): "y</think>", str(OPEN): "</thi", str(CLOSE): "nk>z"}
CHANCE = 1e-8                                       # of a right solution to fail a test of draws


def model_of(rng, layers=2):
    """(settings, {name: array})"""
    V = int(rng.integers(40, 60))
    settings = dict(vocab_size=V, hidden_size=32, intermediate_size=56, num_hidden_layers=layers,
                    head_dim=8, num_attention_heads=4, num_key_value_heads=2,
                    max_position_embeddings=128, tie_word_embeddings=False)
    shapes = {"model.embed_tokens.weight": (V, 32), "lm_head.weight": (V, 32),
              "model.norm.weight": (32,)}
    for i in range(layers):
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in {
            "self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32),
            "self_attn.v_proj": (16, 32), "self_attn.o_proj": (32, 32), "mlp.gate_proj": (56, 32),
            "mlp.up_proj": (56, 32), "mlp.down_proj": (32, 56), "input_layernorm": (32,),
            "post_attention_layernorm": (32,)}.items()}
    return settings, {name: (1 + 0 * rng.normal(size=shape) if len(shape) == 1 else
                             rng.normal(size=shape) * 0.25).astype(np.float32)
                      for name, shape in shapes.items()}


def prompts_of(rng, count, V):
    return [[int(i) for i in rng.integers(9, V, rng.integers(1, 18))] for _ in range(count)]


@part("draw_budgets", 2, 10)
def budgets(rng, ask):
    low = int(rng.integers(3, 30))
    high = low + int(rng.integers(2, 6))
    drawn = ask("budgets", low=low, high=high, phrase=[4], count=6000, seeds=[1, 2])
    for found, dtype in drawn:
        values, counts = np.unique(found, return_counts=True)
        yield equal("the budgets drawn", values, [*range(low, high + 1)])
        yield holds("they are uniform", stats.chisquare(counts).pvalue > CHANCE)
        yield equal("their dtype and shape", [dtype, list(found.shape)], ["torch.int64", [6000]])
    same = ask("budgets", low=low, high=10**6, phrase=[4], count=9, seeds=[7, 7, 8])
    yield equal("two of one generator's state", same[0], same[1])
    yield holds("two of two generators", plainly(same[1]) != plainly(same[2]))
    (without, _), = ask("budgets", low=low, high=high, phrase=[], count=4, seeds=[1])
    yield equal("without a phrase", without, [high] * 4)
    yield equal("and with one of equal bounds",
                ask("budgets", low=high, high=high, phrase=[4], count=3, seeds=[1])[0][0],
                [high] * 3)


def plainly(pair):
    return np.asarray(pair[0]).tolist()


@part("_choose", 3, 12)
def choose(rng, ask):
    settings, weights = model_of(rng, layers=1)             # the head alone is asked
    V, head = settings["vocab_size"], weights["lm_head.weight"].astype(float)
    for temperature in (1.0, float(rng.uniform(0.4, 0.8))):
        hidden = rng.normal(size=(40, 32)).astype(np.float32)
        token, logprob = ask("choose", settings=settings, weights=weights, hidden=hidden,
                             temperature=temperature, seed=3)
        right = torch.from_numpy(hidden.astype(float) @ head.T / temperature).log_softmax(-1)
        rows = np.arange(40), np.asarray(token).astype(int)
        yield close(f"log-probs at temperature {temperature:.2f}", logprob, right[rows], 0, 1e-4)
        many = np.repeat(rng.normal(size=(1, 32)).astype(np.float32), 8000, 0)
        token, _ = ask("choose", settings=settings, weights=weights, hidden=many,
                       temperature=temperature, seed=4)
        p = torch.from_numpy(many[:1].astype(float) @ head.T / temperature).softmax(-1)[0].numpy()
        token = np.asarray(token).astype(int)
        yield holds("tokens of the vocabulary", bool(((token >= 0) & (token < V)).all()))
        count = np.bincount(token, minlength=V)
        yield holds("8,000 draws follow the softmax", follows(count, p))
    coarse = ask("choose", settings=settings, weights=weights, hidden=hidden, head_fp32=False,
                 seed=3)
    rounded = [torch.from_numpy(x).bfloat16() for x in (hidden, weights["lm_head.weight"])]
    right = (rounded[0] @ rounded[1].T).float().log_softmax(-1)
    yield close("log-probs of a bf16 head", coarse[1],
                right[np.arange(40), np.asarray(coarse[0]).astype(int)], 0, 1e-3)
    steep = np.zeros((V, 32), np.float32)
    steep[::3] = -np.inf
    ones = np.ones((900, 32), np.float32)
    token, logprob = ask("choose", settings=settings, weights=weights, hidden=ones, head=steep)
    token = np.asarray(token)
    yield holds("an impossible token is never drawn",
                bool(((token >= 0) & (token < V) & (token % 3 > 0)).all()))
    yield close("log-probs beside impossible ones", logprob, [-np.log((~np.isin(
        np.arange(V), np.arange(0, V, 3))).sum())] * 900, 0, 1e-4)
    draws = [np.asarray(ask("choose", settings=settings, weights=weights, hidden=many[:200],
                            seed=seed, noise=noise)[0]).tolist()
             for seed, noise in ((5, 1), (5, 2), (6, 2))]
    yield equal("two engines of one seed", draws[0], draws[1])
    yield holds("two engines of two seeds", draws[1] != draws[2])
    yield holds("more than one token is drawn", len({*draws[0]}) > 1)


def follows(count, p):
    """Pearson's chi-square; tokens that are expected less than 5 times are pooled."""
    expected = p * count.sum()
    enough = expected >= 5
    seen = np.append(count[enough], count[~enough].sum())
    right = np.append(expected[enough], expected[~enough].sum())
    seen, right = (x[right > 0] for x in (seen, right))
    return stats.chisquare(seen, right * seen.sum() / right.sum()).pvalue > CHANCE


def one_sample(draws, budget, answer, phrase):
    """One sample, step by step -> (ids, log-probs, sampled, why it ended, was it cut)."""
    tokens, queue, budget_left, answer_left, cut = [], [], budget, answer, False
    for i, draw in enumerate(draws):
        if queue:
            tokens.append((queue.pop(0), 0.0, False))
            continue
        tokens.append((draw, -0.5 - i, True))
        if draw in ENDS:
            return *map(list, zip(*tokens)), "stop", cut
        if budget_left:
            budget_left -= 1
            text = "".join(WORDS.get(str(t), "w") for t, *_ in tokens)
            if budget_left == 0 and phrase and "</think>" not in text:
                queue, cut = list(phrase), True
        else:
            answer_left -= 1
            if answer_left == 0:
                return *map(list, zip(*tokens)), "length", cut
    raise AssertionError("the script is too short")


def of_scripts(name, weight, kinds):
    @part(f"the slot loop: {name}", weight, 2 * len(kinds))
    def work(rng, ask):
        settings, weights = model_of(rng, layers=1)         # what it draws is the script's
        for phrase, letters in kinds:
            count, slots, answer = (int(rng.integers(*ends))
                                    for ends in ((12, 40), (3, 11), (2, 6)))
            scripts = [[int(i) for i in rng.choice(letters, 60)] for _ in range(count)]
            budgets = [int(i) for i in rng.integers(1, 14, count)]
            prompts = prompts_of(rng, count, settings["vocab_size"])
            found = ask("scripted", settings=settings, weights=weights, words=WORDS, slots=slots,
                        rule=dict(think_min=1, think_max=14, answer_tokens=answer,
                                  phrase_ids=phrase),
                        ends=ENDS, scripts=scripts, budgets=budgets, prompts=prompts)
            yield equal("the groups that came back", sorted(r["group"] for r in found),
                        [*range(count)])
            for r in found:
                i = r["group"]
                ids, logprobs, sampled, reason, cut = one_sample(scripts[i], budgets[i], answer,
                                                                 phrase)
                first = r["versions"][0]
                equal(f"sample with budget {budgets[i]}, answer {answer}, phrase {phrase}", r, dict(
                    group=i, prompt=f"q{i}", prompt_ids=prompts[i], ids=ids, logprobs=logprobs,
                    versions=[*range(first, first + 2 * len(ids), 2)], sampled=sampled,
                    reason=reason, interrupted=cut, task=f"task {i}"))
            yield "every sample"


PLAIN, MARKS = [12, 13, 14] * 4, [12, 13, 14] * 3 + [SHUT, OPEN, CLOSE]
of_scripts("recorded tokens, nothing is interrupted", 2, [([], PLAIN), ([], PLAIN + [*ENDS])])
of_scripts("interruption", 3.5, [([9, SHUT], PLAIN), ([9, 10, SHUT], MARKS), ([2, SHUT], MARKS),
                                 ([9, 10, 11, SHUT], MARKS + [*ENDS]), ([10], MARKS + [*ENDS])])


@part("push_weights", 2.5, 12)
def push(rng, ask):
    settings, weights = model_of(rng)
    names = [*weights]
    for chosen in (names, names[1:2], [names[i] for i in rng.permutation(len(names))[:7]]):
        values = {name: (weights[name] + rng.normal(size=weights[name].shape)).astype(np.float32)
                  for name in chosen}
        after, head, *rest = ask("push", settings=settings, weights=weights, names=chosen,
                                 values=values)
        right = {name: values.get(name, weights[name]) for name in names}
        yield equal("the weights' names", sorted(after), sorted(names))
        for name in names:
            close(f"{name} after the push", after[name], right[name], 0, 0)
        yield "all weights"
        yield close("the head", head, right["lm_head.weight"], 0, 0)
        yield equal("[version, version, the parameters lie where they lay, its own change nothing]",
                    rest, [3, 4, True, True])


@part("log-probs over a cache of several versions", 2, 6)
@torch.no_grad()
def flight(rng, ask):
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
    for temperature in (1.0, float(rng.uniform(0.6, 0.9))):
        settings, weights = model_of(rng)
        budget, answer = int(rng.integers(9, 14)), 4
        when = sorted(int(i) for i in rng.choice(np.arange(1, budget), 3, replace=False))
        versions = [weights] + [
            {name: (x + 0.05 * i * rng.normal(size=x.shape)).astype(np.float32)
             for name, x in weights.items()} for i in (1, 2, 3)]
        models = []
        for each in versions:
            models.append(LlamaForCausalLM(LlamaConfig(
                **settings, attn_implementation="eager")).eval())
            models[-1].load_state_dict({n: torch.from_numpy(x) for n, x in each.items()},
                                       strict=False)
        prompts = prompts_of(rng, 3, settings["vocab_size"])
        found = ask("pushed", settings=settings, weights=weights, slots=9, ends=[10**6],
                    rule=dict(think_min=budget, think_max=budget, answer_tokens=answer),
                    prompts=prompts, samples=3, pushes=[*map(list, zip(when, versions[1:]))],
                    steps=budget + answer, temperature=temperature, seed=1)
        yield equal("samples that came back", len(found), 9)
        of = [sum(step >= w for w in when) for step in range(budget + answer)]
        yield equal("the tokens' versions", [r["versions"] for r in found], [of] * 9)
        equal("three samples of each prompt", sorted(r["group"] for r in found),
              [0, 0, 0, 1, 1, 1, 2, 2, 2])
        for group, prompt in enumerate(prompts):
            of_group = [r for r in found if r["group"] == group]
            ids = torch.tensor([[*prompt, *r["ids"]] for r in of_group])
            cache, n, right = DynamicCache(), len(prompt), []
            logits = models[0](ids[:, :n], past_key_values=cache, use_cache=True).logits
            for t, version in enumerate(of):
                if t:
                    logits = models[version](ids[:, n + t - 1: n + t], past_key_values=cache,
                                             use_cache=True).logits
                log_p = (logits[:, -1] / temperature).log_softmax(-1)
                right.append(log_p.gather(1, ids[:, n + t, None])[:, 0])
            close("recorded log-probs", [r["logprobs"] for r in of_group],
                  torch.stack(right, 1), 0, 2e-4)
        yield "log-probs"
