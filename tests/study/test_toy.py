"""What toy.py promises: an ordinary folder, lossless tokens, honest noise, a general warm start.

The models here are smaller still than the toy, so that the file takes seconds; that the toy itself
learns is measured when it is made (`python -m study.toy` prints it).
"""

import json
import random
import re
from collections import Counter

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from tasks import problems as tasks
from config import Config
from study import toy
from tasks.problems import Problem, TaskError, load_task
from tasks.sources import make_problem
from tasks.verifier import verify

SHORT = {"min_digits": 2, "max_digits": 4, "size": 90}


@pytest.fixture(scope="module")
def tokenizer():
    return toy.make_tokenizer()


@pytest.fixture(scope="module")
def problems():
    return tasks.load_task("toy", "train", heldout=30, options=SHORT)


def micro(tokenizer, seed=0):
    return toy.make_model(tokenizer, seed, hidden=32, layers=1)


# ------------------------------------------------------------------------------------------------
# The tokenizer


@pytest.mark.parametrize(
    "text",
    ["6+3=9;9+9=8</think>8", "<think>1+1=2</think>2", Config.interrupt_phrase,
     "6+3=9;9+" + Config.interrupt_phrase + "9", "14 - 3 = 11. \n"],
)  # fmt: skip
def test_text_and_tokens_are_one_to_one(tokenizer, text):
    """A tokenizer that joins with blanks turns "6+3" into "6 + 3", and no answer is exact."""
    ids = toy.encode(tokenizer, text)
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == text


def test_each_digit_is_one_token_and_the_phrase_about_fifteen(tokenizer):
    """The phrase letter by letter would cost more tokens than the thinking it interrupts."""
    assert len(toy.encode(tokenizer, "6+3=9;</think>")) == 7
    assert 14 <= len(toy.encode(tokenizer, Config.interrupt_phrase)) <= 18


def test_decoding_without_special_tokens_keeps_the_end_of_thinking(tokenizer):
    """As a special token, </think> would vanish, and the thinking would be marked as the answer."""
    ids = toy.encode(tokenizer, "6+1=7</think>7") + [tokenizer.eos_token_id, tokenizer.pad_token_id]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "6+1=7</think>7"


def test_the_prompt_ends_with_the_start_of_thinking(tokenizer, problems):
    """The model's turn begins inside its thoughts."""
    prompt = tokenizer.decode(tasks.prompt_ids(tokenizer, problems[0]))
    assert prompt == problems[0].question + "<think>"


# ------------------------------------------------------------------------------------------------
# The folder


def test_the_folder_is_an_ordinary_one(tokenizer, tmp_path):
    """Loaded by name alone, offline, with the same logits and the same tokens."""
    model = micro(tokenizer)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    ids = torch.tensor([toy.encode(again, "6+3=9;9+9=8</think>8")])
    assert ids[0].tolist() == toy.encode(tokenizer, "6+3=9;9+9=8</think>8")
    assert torch.equal(model.eval()(ids).logits, loaded(ids).logits)
    assert again.decode(ids[0]) == "6+3=9;9+9=8</think>8"
    assert again.chat_template == tokenizer.chat_template
    assert loaded.generation_config.eos_token_id == again.eos_token_id
    assert loaded.generation_config.pad_token_id == again.pad_token_id
    assert loaded.dtype == torch.float32
    assert loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight


def test_the_toy_has_less_than_a_million_parameters(tokenizer):
    """And room for a prompt, the longest trace, the phrase and an answer."""
    model = toy.make_model(tokenizer, 0)
    assert 600_000 < model.num_parameters() < 1_000_000
    assert model.config.max_position_embeddings >= 256


def test_two_of_the_experts_are_as_wide_as_the_dense_toys_mlp(tokenizer):
    """So a token meets as many weights, but for the router's and the norms of queries and keys."""
    dense, mixture = (toy.make_model(tokenizer, 0, hidden=64, layers=2, experts=n)
                      for n in (0, 5))
    others = 2 * ((5 - 2) * 3 * 64 * 64 + 5 * 64 + 2 * toy.HEAD_DIM)
    assert mixture.num_parameters() == dense.num_parameters() + others
    assert mixture.config.num_experts_per_tok == 2


# ------------------------------------------------------------------------------------------------
# Noisy traces


def walk(trace):
    """[(before, term, result)] and the answer of a toy trace, read without toy.py."""
    thinking, answer = trace.split("</think>")
    return [tuple(map(int, re.split(r"[+=]", step))) for step in thinking.split(";")], int(answer)


def test_toy_traces_are_right_at_every_step():
    """A warm start copies the traces, so one wrong step in them would be taught as truth."""
    for problem in load_task("toy", "heldout", heldout=70):
        thinking, answer = toy.worked_trace(problem).split("</think>")
        digits, total = problem.question.split("+"), 0
        for i, step in enumerate(thinking.split(";")):
            left, result = step.split("=")
            before, term = left.split("+")
            assert term == digits[i + 1] and before == (digits[0] if i == 0 else total)
            total = result
            assert (int(before) + int(term)) % 10 == int(result)
        assert i == len(digits) - 2 and answer == total == problem.answer


def test_chain_sum_traces_agree_with_python():
    """The trace must reach the same number step by step."""
    for problem in load_task("reasoning_gym:chain_sum", "train", heldout=13, options={
            "size": 60, "min_terms": 2, "max_terms": 5}):
        trace = toy.worked_trace(problem)
        steps = trace.partition("</think>")[0].split("; ")
        assert all(eval(step.replace("=", "==")) for step in steps)
        assert len(steps) + 1 == problem.level
        assert verify(trace, problem.answer) == (1.0, "correct")
    for problem in load_task("reasoning_gym:chain_sum", "train", heldout=13, options={
            "size": 60, "min_terms": 2, "max_terms": 5, "allow_negation": True}):
        assert toy.worked_trace(problem).endswith(f"</think>{problem.answer}"), problem.question


def test_without_noise_the_trace_is_the_worked_one(problems):
    """Noise 0 is the clean stage."""
    for problem in problems[:20]:
        trace = toy.worked_trace(problem)
        assert toy.noisy_trace(trace, 0.0, random.Random(0), digits=True) == trace


def test_steps_are_wrong_as_often_as_asked_and_carried_on(problems):
    """An error that the next step corrects would teach that results do not matter."""
    rng, wrong, total = random.Random(3), 0, 0
    for problem in problems * 30:
        steps, answer = walk(toy.noisy_trace(toy.worked_trace(problem), 0.3, rng, digits=True))
        carried = int(problem.question[0])
        for (before, term, result), digit in zip(steps, problem.question[2::2], strict=True):
            assert before == carried and term == int(digit) and 0 <= result <= 9
            wrong += result != (before + term) % 10
            carried, total = result, total + 1
        assert answer == carried
    assert abs(wrong / total - 0.3) < 4 * (0.3 * 0.7 / total) ** 0.5  # four standard errors


def test_noise_of_one_makes_every_step_wrong(problems):
    """A "wrong" result drawn from all ten digits is right once in ten."""
    for problem in problems:
        steps, _ = walk(toy.noisy_trace(toy.worked_trace(problem), 1.0, random.Random(problem.id),
                                        digits=True))
        assert all((before + term) % 10 != result for before, term, result in steps)


def test_each_pair_of_digits_is_added_as_its_habit_says():
    """Right by habit, else any digit; a mislearned pair has one wrong result, always."""
    habits, rng, counts = toy.habits(7), random.Random(8), Counter()
    assert len(habits) == 100 and habits == toy.habits(7) != toy.habits(8)
    digits = [rng.randrange(10) for _ in range(40_001)]
    trace = toy.worked_trace(Problem("toy/x", "toy", "+".join(map(str, digits)), "0"))
    for before, term, result in walk(toy.noisy_trace(trace, habits, rng, digits=True))[0]:
        counts[before, term, result] += 1
    misses = []
    for (a, b), (chance, wrong) in habits.items():
        seen = [counts[a, b, result] for result in range(10)]
        expected = [sum(seen) * (1 - chance) / 10 for _ in seen]
        expected[(a + b) % 10] += sum(seen) * chance
        if wrong is not None:
            assert chance == 0 and wrong != (a + b) % 10 and seen[wrong] == sum(seen) > 100
        else:
            misses += [(n - m) / m ** 0.5 for n, m in zip(seen, expected)]
    chances = sorted(chance for chance, wrong in habits.values() if wrong is None)
    assert len(chances) == 100 - 100 * toy.MISLEARNED
    assert (chances[0], chances[-1]) == pytest.approx(toy.CHANCE)
    assert abs(sum(misses)) < 4 * len(misses) ** 0.5 and max(map(abs, misses)) < 6


def test_noise_works_on_subtraction_and_larger_numbers():
    """The same function serves chain_sum, whose results are not taken modulo 10."""
    trace = "14 - 3 = 11; 11 - 19 = -8</think>-8"
    assert toy.worked_trace(Problem(
        "x/1", "reasoning_gym:chain_sum", "What is: 14 - 3 - 19 =", "-8")) == trace
    assert toy.noisy_trace(trace, 1e-12, random.Random(0)) == trace
    step = re.compile(r"(-?\d+) - (\d+) = (-?\d+)")
    noisy = toy.noisy_trace(trace, 1.0, random.Random(0))
    (a, b, c), (d, e, f) = [tuple(map(int, found)) for found in step.findall(noisy)]
    assert (a, b, e) == (14, 3, 19) and c != 11 and d == c and f != d - e
    assert noisy.endswith(f"</think>{f}")


def test_a_cut_trace_teaches_the_answer_and_not_the_phrase(tokenizer, problems):
    """Trained on the phrase, the model would interrupt itself."""
    phrase = Config.interrupt_phrase
    for prompt, completion in toy.make_pairs(
        tokenizer, problems, 200, noise=0.0, cut_share=1.0, seed=0
    ):
        prompt, completion = tokenizer.decode(prompt), tokenizer.decode(completion)
        question, kept = prompt.removesuffix(phrase).split("<think>")
        problem = next(p for p in problems if p.question == question)
        assert prompt.endswith(phrase) and phrase not in completion
        thinking = toy.worked_trace(problem).partition("</think>")[0]
        assert kept and thinking.startswith(kept) and kept != thinking
        running = re.findall(r"=(\d)", kept) or [kept[0]]
        assert completion == running[-1] + "<eos>"


def test_as_many_traces_are_cut_as_asked_and_all_problems_are_used(tokenizer, problems):
    """90 problems, 900 pairs: ten traces each."""
    pairs = toy.make_pairs(tokenizer, problems, 900, noise=0.4, cut_share=0.1, seed=0)
    texts = [tokenizer.decode(prompt) for prompt, _ in pairs]
    assert 60 < sum(Config.interrupt_phrase in text for text in texts) < 120
    questions = [text.split("<think>")[0] for text in texts]
    assert {questions.count(problem.question) for problem in problems} == {10}


# ------------------------------------------------------------------------------------------------
# The warm start


def test_padding_is_not_trained_on_and_not_looked_at(tokenizer):
    """The naive form, one sequence at a time without padding, gives the same loss."""
    model = micro(tokenizer).eval()
    pairs = [([5, 6, 7], [8, 9, 1]), ([5], [6, 1]), ([9, 8, 7, 6, 5], [7, 7, 7, 7, 1])]
    ids, labels = toy.pad_batch(pairs, tokenizer.pad_token_id)
    assert ids.shape == labels.shape == (3, 10)
    total, tokens = 0.0, 0
    for prompt, completion in pairs:
        logprobs = model(torch.tensor([prompt + completion])).logits[0].log_softmax(-1)
        for t, token in enumerate(completion, start=len(prompt)):
            total, tokens = total - logprobs[t - 1, token].item(), tokens + 1
    assert tokens == 10
    loss = model(input_ids=ids, labels=labels).loss.item()
    assert loss == pytest.approx(total / tokens, abs=1e-5)


def test_only_the_completion_is_learned(tokenizer):
    """Through gradients: the model may not become a model of questions."""
    model = micro(tokenizer)
    pairs = [([5, 6, 7, 8], [9, 1]), ([6, 8, 5, 7], [10, 1])]
    losses = toy.warm_start(model, tokenizer, pairs, steps=40, lr=1e-2, batch=2, seed=0)
    ids, labels = toy.pad_batch(pairs, tokenizer.pad_token_id)
    logprobs = model(ids).logits.log_softmax(-1)
    completion = logprobs[0, 3, 9].exp().item()
    question = logprobs[0, 0, 6].exp().item()
    assert losses[-1] < 0.1 < losses[0]
    assert completion > 0.9 and question < 0.5


def test_the_same_seed_gives_the_same_model(tokenizer, problems):
    """And another seed another one."""
    weights = []
    for seed in (0, 0, 1):
        model = micro(tokenizer, seed)
        pairs = toy.make_pairs(tokenizer, problems, 40, noise=0.4, cut_share=0.1, seed=seed)
        toy.warm_start(model, tokenizer, pairs, steps=3, lr=1e-3, batch=8, seed=seed)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_the_warm_start_works_for_another_architecture(tokenizer, problems):
    """GPT-2 has dropout, learned positions and other module names."""
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=32,
                                       n_layer=1, n_head=2))
    pairs = toy.make_pairs(tokenizer, problems, 400, noise=0.0, cut_share=0.0, seed=0)
    losses = toy.warm_start(model, tokenizer, pairs, steps=40, lr=3e-3, batch=10, seed=0)
    assert len(losses) == 40 and losses[-1] < 0.75 * losses[0] and not model.training


# ------------------------------------------------------------------------------------------------
# The base rate, and the command


def test_the_base_rate_knows_right_from_wrong(tokenizer):
    """A model that has learned its questions by heart: what is right is known in advance."""
    right = make_problem("toy", "1+2", "3", kind="exact")
    wrong = make_problem("toy", "2+2+1", "5", kind="exact")
    endless = make_problem("toy", "3+3", "6", kind="exact")     # right, but without its end token
    end = [tokenizer.eos_token_id]
    pairs = [
        (tasks.prompt_ids(tokenizer, problem), toy.encode(tokenizer, text) + end)
        for problem, text in ((right, "1+2=3</think>3"), (wrong, "2+2=4</think>4"))
    ]
    pairs.append((tasks.prompt_ids(tokenizer, endless),
                  toy.encode(tokenizer, "3+3=6</think>6" + "\n" * 70)))
    model = micro(tokenizer)
    toy.warm_start(model, tokenizer, pairs, steps=80, lr=1e-2, batch=3, seed=0)
    assert toy.base_rate(model, tokenizer, [right, wrong]) == 0.5
    assert toy.base_rate(model, tokenizer, [right]) == 1
    assert toy.base_rate(model, tokenizer, [endless]) == 0


def run_toy(*arguments):
    """The exit code of the command, in this process: importing torch anew takes seconds."""
    try:
        return toy.main([str(argument) for argument in arguments]) or 0
    except SystemExit as ended:  # how argparse refuses
        return ended.code


def test_a_toy_that_has_not_learned_to_add_is_not_written(tmp_path, capsys):
    """RL would have nothing to reinforce, and its curve would be flat for no visible reason."""
    assert run_toy("--out", tmp_path / "made", "--hidden", 32, "--steps", 2,
                   "--task-options", json.dumps(SHORT), "--heldout", 20) == 3
    error = capsys.readouterr().err
    assert "toy.py: the toy has not learned to add (0." in error
    assert not (tmp_path / "made").exists()


@pytest.mark.days(4, turn=1)
def test_the_command_makes_a_folder_also_for_two_tasks(tmp_path, capsys, monkeypatch):
    """As `make toy` and `make mix`, on micro models."""
    monkeypatch.setattr(toy, "LEARNED", 0)
    small = ["--heldout", 20, "--hidden", 32, "--steps", 2]
    mix = "toy+reasoning_gym:chain_sum"
    options = {"toy": SHORT, "reasoning_gym:chain_sum": {"max_terms": 2, "size": 40}}
    for name, more in (("one", ["--task-options", json.dumps(SHORT)]),
                       ("two", ["--task", mix, "--clean-steps", 2, "--cut-share", 0.1,
                                "--task-options", json.dumps(options)])):
        assert run_toy("--out", tmp_path / name, *small, *more) == 0
        table = capsys.readouterr().out
        assert "greedy: " in table
        assert ("without errors: 2 steps" in table) == (name == "two")
        modes = {path.stat().st_mode for path in (tmp_path / name).iterdir()}
        assert len(modes) == 1              # a class shares its models: weights can be read, too
    one, two = (AutoModelForCausalLM.from_pretrained(tmp_path / n) for n in ("one", "two"))
    assert one.config.hidden_size == two.config.hidden_size == 32
    assert not torch.equal(one.get_input_embeddings().weight, two.get_input_embeddings().weight)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "tyo"], "task 'tyo' is unknown"),
        (["--task-options", "{max: 3"], "--task-options: invalid loads value: '{max: 3'"),
        (["--task", "reasoning_gym:count_bits", "--heldout", "5"], "no worked traces"),
        (["--heldout", "0"], "--heldout takes 1 or more"),
        (["--steps", "-1"], "--steps takes 0 or more"),
        (["--clean-steps", "-1"], "--clean-steps takes 0 or more"),
        (["--hidden", "33"], "--hidden takes a multiple of 32"),
    ],
)
def test_wrong_arguments_end_in_one_sentence(arguments, message, tmp_path, capsys):
    """Exit code 2, no traceback, nothing written."""
    assert run_toy("--out", tmp_path / "out", *arguments) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error and not (tmp_path / "out").exists()


def test_a_trace_that_noise_cannot_touch_is_an_error(tokenizer):
    """Not a silently clean trace."""
    problem = Problem("x/1", "x", "2+3?", "blue", kind="exact")
    with pytest.raises(TaskError, match="no worked traces with steps such as 2 [+] 3 = 5"):
        toy.make_pairs(tokenizer, [problem], 1, noise=0.4, cut_share=0, seed=0)
