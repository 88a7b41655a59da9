"""What a rollout claims is what happened: its log-probs, its versions, its interruption."""

import ast
import copy
from collections import Counter
from dataclasses import replace

import pytest
import torch
from scipy import stats
from conftest import (ROOT, check_cut_thinking, drain, methods_of_an_engine, packed_copy,
                      plain_logprobs, swapped_logprobs)

from artifacts.resume import load_sampler_state, sampler_state
from loss import head_logits
from sampler import Interruption, Request, TransformersSampler

EOS = 36


class Letters:
    """A tokenizer of one letter a token; token 7 ends the thinking."""

    def decode(self, ids):
        return "".join("</think>" if i == 7 else chr(97 + i % 26) for i in ids)


def make(model, *, think=(9, 17), answer=4, phrase=(30, 31, 7), slots=11, **settings):
    rule = Interruption(*think, answer, tuple(phrase))
    return TransformersSampler(model, Letters(), rule, slots=slots, prompt_tokens=13,
                               **{"eos_ids": {EOS}, "seed": 5, **settings})


def requests(count, samples=3):
    return [Request(i, f"p{i}", tuple(torch.randint(0, 36, (int(torch.randint(2, 13, ())),))
                                      .tolist()), samples) for i in range(count)]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_recorded_logprobs_are_those_of_a_full_forward(llama, temperature):
    """11 slots for 24 samples of mixed lengths, so slots are reused and sequences move. The
    temperature is part of the policy: log-probs without it are off by tenths."""
    rollouts = drain(make(packed_copy(llama), temperature=temperature), requests(8))
    assert len(rollouts) == 24
    for rollout in rollouts:
        expected = plain_logprobs(llama, rollout, temperature)
        for mine, truth, sampled in zip(rollout.behavior_logprobs, expected, rollout.sampled):
            assert not sampled or abs(mine - truth) < 1e-4


def test_on_a_model_of_usual_scale_they_are_those_of_float64_to_2e_5(micro, seed):
    """A trained model (the one above is random and large). fp32's own rounding was 8.9e-6 at most
    over 500 seeds (2026-11-27), and 1e-5 was beyond the bound for one seed in 1,500."""
    from transformers import AutoModelForCausalLM
    plain = AutoModelForCausalLM.from_pretrained(micro, dtype=torch.float32).eval()
    exact = AutoModelForCausalLM.from_pretrained(micro, dtype=torch.float64).eval()
    sampler = make(packed_copy(plain), phrase=())
    sampler.eos_ids, sampler.ends = {1}, torch.tensor([1])
    rollouts = drain(sampler, requests(5))
    errors = [abs(a - b) for r in rollouts
              for a, b in zip(r.behavior_logprobs, plain_logprobs(exact, r, 1.0))]
    assert max(errors) < 2e-5 and sum(errors) / len(errors) < 2e-6


def test_after_a_swap_running_sequences_follow_new_weights_over_the_old_cache(llama):
    """PipelineRL's in-flight update. The oracle is transformers' own cache: keys and values of
    the first tokens from the old weights, of the later ones from the new. Recomputing the cache,
    or restarting the sequence, gives different numbers; the test sees the difference."""
    old, new = copy.deepcopy(llama), copy.deepcopy(llama)
    with torch.no_grad():
        for parameter in new.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    # No end token: a sequence that is over before the swap has nothing to show.
    sampler = make(packed_copy(llama), phrase=(), eos_ids={99})
    sampler.submit(Request(0, "p", (1, 2, 3, 4), 2))
    for _ in range(5):
        rollouts = sampler.step()
    assert not rollouts and sampler.in_flight == 2
    sampler.push_weights(new.named_parameters(), version=1)
    for rollout in drain(sampler):
        n = len(rollout.output_ids)
        assert rollout.versions == [0] * 5 + [1] * (n - 5)
        expected = swapped_logprobs(old, new, rollout, 5)
        fresh = plain_logprobs(new, rollout)[5:]
        assert torch.allclose(torch.tensor(rollout.behavior_logprobs[5:]), expected, atol=1e-4)
        assert not torch.allclose(expected, fresh, atol=1e-3)


def test_weights_pushed_under_the_current_version_are_used(llama):
    """A resumed run does this: its sampler was made with the initial weights, its version is read
    from the checkpoint, and then it gets the trained weights of the same version."""
    new = copy.deepcopy(llama)
    with torch.no_grad():
        for parameter in new.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    sampler, group = make(packed_copy(llama), phrase=(), version=3), requests(2)
    sampler.push_weights(new.named_parameters(), version=3)
    for rollout in drain(sampler, group):
        assert set(rollout.versions) == {3}
        assert torch.allclose(torch.tensor(rollout.behavior_logprobs),
                              plain_logprobs(new, rollout), atol=1e-4)
        assert not torch.allclose(plain_logprobs(new, rollout), plain_logprobs(llama, rollout),
                                  atol=1e-3)


def test_every_token_keeps_its_own_version_while_sequences_move_between_slots(llama):
    """A push after every step: a sequence gets one token of each version, forced ones too. The lag
    bound is asserted from these numbers."""
    sampler = make(packed_copy(llama))
    for request in requests(8):
        sampler.submit(request)
    rollouts = []
    while sampler.in_flight:
        rollouts += sampler.step()
        sampler.push_weights([], sampler.version + 1)
    assert len(rollouts) == 24 and any(r.interrupted for r in rollouts)
    assert all(r.versions == list(range(r.versions[0], r.versions[0] + len(r.output_ids)))
               for r in rollouts)


def test_thinking_is_cut_at_a_random_budget_and_the_phrase_is_not_sampled(llama):
    model = packed_copy(llama)
    with torch.no_grad():       # nearly uniform: so each of the budgets is spent by some samples
        model.model.norm.weight *= 0.2
    rollouts = drain(make(model, slots=60), requests(20, samples=24))
    check_cut_thinking(rollouts, EOS)


def test_an_end_token_inside_the_phrase_does_not_end_the_sample(llama):
    """It is forced, not drawn: the whole phrase follows, and an answer of its own length."""
    rule = Interruption(9, 17, 4, (30, EOS, 7), end="never written")
    sampler = make(packed_copy(llama), phrase=rule.phrase_ids, slots=40)
    sampler.interruption = rule
    cut = [r for r in drain(sampler, requests(10, samples=4)) if r.interrupted]
    assert cut
    for r in cut:
        start = r.sampled.index(False)
        assert r.output_ids[start: start + 3] == [30, EOS, 7]
        assert r.sampled[start:] == [False] * 3 + [True] * (len(r.sampled) - start - 3)
        answer = r.output_ids[start + 3:]
        assert len(answer) == 4 if r.finish_reason == "length" else answer[-1] == EOS


@pytest.mark.parametrize("last, reason", [(EOS, "stop"), (20, "length")])
def test_a_sample_that_ends_itself_with_its_last_allowed_token_is_not_truncated(llama, last,
                                                                                reason):
    """It gave an answer of full length. As "length" it would count as wrong."""
    sampler = make(packed_copy(llama), phrase=(), think=(9, 9))
    draws = iter([20] * 12 + [last])
    sampler._choose = lambda hidden: (torch.tensor([next(draws)]), torch.zeros(1))
    rollout, = drain(sampler, requests(1, samples=1))
    assert len(rollout.output_ids) == 9 + 4 and rollout.finish_reason == reason


def test_without_a_phrase_nothing_is_interrupted(llama):
    rollouts = drain(make(packed_copy(llama), phrase=()), requests(6))
    assert not any(r.interrupted for r in rollouts) and all(all(r.sampled) for r in rollouts)
    assert max(len(r.output_ids) for r in rollouts) == 17 + 4


def test_each_sample_of_a_group_draws_its_own_thinking_budget(llama):
    """The paper's random point is a sample's. One point for a whole group would interrupt all of
    its samples alike, and their advantages could not tell a good point from a bad one."""
    sampler = make(packed_copy(llama), slots=50, eos_ids={99})
    sampler.interruption = Interruption(9, 17, 4, (30, 31, 7), end="never written")
    rollouts = drain(sampler, requests(1, samples=50))
    assert set(r.sampled.index(False) for r in rollouts) <= set(range(9, 18))
    assert len({r.sampled.index(False) for r in rollouts}) > 2


def test_the_head_rounds_as_it_is_asked_to(llama):
    """A sampler that kept its fp32 head in the bf16 ablation would be a one-sided head: the ratio
    would show the rounding of the other side. States differ in their last digits, so a rounded
    logit may fall on either side; on average the right head is far nearer than the other."""
    for asked in (True, False):
        sampler = make(packed_copy(llama), phrase=(), head_fp32=asked)
        gaps, weight = {True: [], False: []}, llama.lm_head.weight
        for r in drain(sampler, requests(6)):
            ids = torch.tensor([[*r.prompt_ids, *r.output_ids]])
            with torch.no_grad():
                hidden = llama.model(ids).last_hidden_state[0, len(r.prompt_ids) - 1: -1]
                for head_fp32, found in gaps.items():
                    logprobs = head_logits(hidden, weight, head_fp32=head_fp32).log_softmax(-1)
                    own = logprobs.gather(1, torch.tensor(r.output_ids)[:, None])[:, 0]
                    found.append((own - torch.tensor(r.behavior_logprobs)).abs())
        mean = {head_fp32: torch.cat(found).mean() for head_fp32, found in gaps.items()}
        assert mean[asked] < 0.3 * mean[not asked]


@torch.no_grad()
def test_tokens_are_drawn_from_the_softmax(llama):
    """Pearson's chi-square of 4,000 draws against the model's own probabilities."""
    sampler = make(packed_copy(llama), temperature=0.8)
    hidden = torch.randn(1, 48)
    token, _ = sampler._choose(hidden.expand(4000, -1))
    p = (hidden @ llama.lm_head.weight.T / 0.8).softmax(-1)[0]
    counts = torch.bincount(token, minlength=37)
    enough = p * 4000 >= 5
    chi2 = ((counts - 4000 * p) ** 2 / (4000 * p))[enough].sum()
    assert stats.chi2.sf(chi2.item(), int(enough.sum())) > 1e-9


def test_a_token_of_probability_zero_is_never_drawn(llama):
    sampler = make(packed_copy(llama))
    sampler.head = torch.zeros(37, 48)                        # all logits 0 ...
    hidden = torch.ones(500, 48)
    sampler.head[::2] = -torch.inf                            # ... every other one impossible
    token, logprob = sampler._choose(hidden)
    assert (token % 2 == 1).all() and torch.isfinite(logprob).all()


@torch.no_grad()
def test_a_draw_is_exact_at_both_ends_where_rounding_decides(llama, monkeypatch):
    """One token has all but 1e-7 of the probability, and the first and the last have none. Each of
    the others has its turn, at a u in the middle of its share: between 0 and 1e-7 or just below 1,
    where fp32 has no numbers, and where a sum that is not quite 1 moves the ends."""
    sampler, likely = make(packed_copy(llama)), 5
    for least in range(-25, -19):
        sampler.head = torch.zeros(37, 48)
        sampler.head[:, 0] = least + torch.rand(37)
        sampler.head[likely, 0], sampler.head[[0, 36], 0] = 0, -torch.inf
        p = sampler.head[:, 0].double().softmax(0)
        below, above = p.cumsum(0) - p / 2, p.flip(0).cumsum(0).flip(0) - p / 2
        u = torch.where(torch.arange(37) <= likely, below, 1 - above)[1:36]
        u = torch.cat([torch.zeros(1, dtype=u.dtype), u])
        monkeypatch.setattr(torch, "rand", lambda *_, dtype=torch.float32, u=u, **__: (
            u[:, None].to(dtype)))
        token, _ = sampler._choose(torch.eye(48)[:1].expand(36, -1))
        monkeypatch.undo()
        assert token.tolist() == [1, *range(1, 36)]


@torch.no_grad()
def test_logits_that_are_no_number_give_some_token_and_a_log_prob_that_tells(llama):
    """The trainer ends the run, with the step's samples in a file: no draw may end it before."""
    token, logprob = make(packed_copy(llama))._choose(torch.full((3, 48), torch.nan))
    assert ((0 <= token) & (token < 37)).all() and logprob.isnan().all()


def test_each_of_several_end_tokens_ends_a_sample_by_itself(llama):
    """Chat models have two, and `sampler.py` may meet either."""
    model = packed_copy(llama)
    with torch.no_grad():
        model.model.norm.weight *= 0.2          # nearly uniform: both are drawn
    rollouts, ended = drain(make(model, eos_ids={3, EOS}, phrase=()), requests(11, samples=7)), []
    for r in rollouts:
        assert not {3, EOS} & {*r.output_ids[:-1]}
        assert (r.finish_reason == "stop") == (r.output_ids[-1] in (3, EOS))
        ended.append(r.output_ids[-1])
    assert {3, EOS} < {*ended}


def test_the_same_seed_gives_the_same_rollouts_and_another_seed_others(llama):
    group = requests(4)
    first, again, other = (drain(make(packed_copy(llama), seed=s), group) for s in (5, 5, 6))
    assert first == again != other


def test_reseeded_an_engine_repeats_itself(llama):
    """Evaluations of the same weights are compared: they must not differ by luck alone."""
    sampler, group = make(packed_copy(llama)), requests(4)
    results = []
    for seed in (3, 4, 3):
        sampler.reseed(seed)
        results.append([replace(r, ended=0) for r in drain(sampler, group)])    # its clock goes on
    assert results[0] == results[2] != results[1]


def test_the_log_counts_decode_steps_and_the_sequences_in_them(llama):
    """Full slots are what makes generation fast. 11 slots hold three groups of three; the last of
    the four waits. Each sequence gets one token a step it takes part in."""
    sampler = make(packed_copy(llama), phrase=(), eos_ids={99}, think=(9, 9))
    assert sampler.log() == {"decode/clock": 0, "decode/steps": 0, "decode/batch": 0}
    rollouts = drain(sampler, requests(4))
    assert {len(r.output_ids) for r in rollouts} == {9 + 4}
    assert sampler.log() == {"decode/clock": 26, "decode/steps": 13 + 13,
                             "decode/batch": (9 + 3) / 2}
    assert sampler.log()["decode/steps"] == 0
    assert sampler.finished() == [] and sampler.step() == [] and sampler.devices == 0
    assert sampler.log()["decode/steps"] == 0               # nothing ran in that step


@pytest.mark.parametrize("inside_the_phrase", [False, True])
def test_a_saved_state_goes_on_exactly_running_sequences_included(llama, inside_the_phrase):
    """The cache is part of the state: half of it was computed under weights that are gone. So is
    the place in the phrase: a sample that forgot it would draw the rest."""
    group = requests(7)
    new = copy.deepcopy(llama)
    with torch.no_grad():
        new.model.layers[0].mlp.up_proj.weight.mul_(1.5)

    def engine(model, **settings):
        made = make(packed_copy(model), eos_ids={99} if inside_the_phrase else {EOS}, **settings)
        if inside_the_phrase:           # all samples are interrupted
            made.interruption = Interruption(9, 17, 4, (30, 31, 7), end="never written")
        return made
    sampler = engine(llama)
    for request in group:
        sampler.submit(request)
    done = [r for _ in range(6) for r in sampler.step()]
    sampler.push_weights(new.named_parameters(), 1)
    done += sampler.step()
    while inside_the_phrase and not {1, 2} & {*sampler.rows.phrase_left[:9].tolist()}:
        done += sampler.step()
    state = copy.deepcopy(sampler_state(sampler))       # as a checkpoint keeps it
    expected = drain(sampler)
    resumed = engine(new, seed=99)
    load_sampler_state(resumed, state)
    assert resumed.in_flight == 21 - len(done) > 0
    assert drain(resumed) == expected and resumed.log() == sampler.log()


def test_every_sample_comes_back_once_and_groups_start_in_order_of_submission(llama):
    """Last in, first out, old groups would wait until their deadline. A push after every step
    gives a token's version the number of its step."""
    group, rollouts = requests(9, samples=4), []
    sampler = make(packed_copy(llama), slots=10)
    for request in group:
        sampler.submit(request)
    while sampler.in_flight:
        rollouts += sampler.step()
        sampler.push_weights([], sampler.version + 1)
    assert Counter(r.group_id for r in rollouts) == {i: 4 for i in range(9)}
    assert all(r.prompt_ids == group[r.group_id].prompt_ids for r in rollouts)
    starts = [{r.versions[0] for r in rollouts if r.group_id == i} for i in range(9)]
    assert all(len(steps) == 1 for steps in starts)             # a group starts as a whole
    starts = [step for steps in starts for step in steps]
    assert starts == sorted(starts) and starts[-1] > starts[0]


def test_samples_that_wait_for_a_slot_are_in_flight_and_leave_fewer_than_none_free(llama):
    """The loop admits new groups by these two numbers."""
    sampler = make(packed_copy(llama), eos_ids={99})
    for request in requests(2, samples=8):                  # 11 slots: one group runs, one waits
        sampler.submit(request)
        sampler.step()
    assert sampler.in_flight == 16 and sampler.free_slots == 11 - 16


def test_a_small_group_does_not_overtake_one_that_waits_for_more_slots(llama):
    """Else a large one would wait as long as small ones come."""
    sampler = make(packed_copy(llama), eos_ids={99})
    for request, samples in zip(requests(3), (8, 5, 2)):        # 11 slots
        sampler.submit(replace(request, samples=samples))
    sampler.step()
    assert [request.group_id for request in sampler.running] == [0] * 8


def test_the_table_of_methods_has_all_that_the_trainer_uses_and_the_engine_has_them(llama):
    """A student who writes a fourth engine reads the table in CONTRIBUTING.md, not the trainer."""
    named = methods_of_an_engine()
    owners = [n for name in ("scalerl.py", "artifacts/run_folder.py", "artifacts/step_log.py")
              for n in ast.walk(ast.parse((ROOT / name).read_text()))
              if isinstance(n, ast.Attribute)]
    used = {n.attr for n in owners if getattr(n.value, "id", getattr(n.value, "attr", ""))
            in ("sampler", "eval_sampler")}
    engine = make(packed_copy(llama))
    assert {"step", "free_slots", "reseed"} < used <= named | {"slots"}
    assert all(hasattr(engine, name) for name in named)
