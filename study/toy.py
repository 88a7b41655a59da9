"""The sandbox: a model of under a million parameters that reasons a little, and often wrongly.

RL can only reinforce what a model already does now and then (paper, sec. 2). So a small Llama is
trained on worked traces with errors, which the next steps carry on. How often it is right depends
on the two digits that a step adds (`habits`): some pairs RL learns soon, some late, and a few are
always added wrongly, which sets the ceiling. All of it is ours.

    python -m study.toy                              # models/toy, about a minute on two cores

The warm start keeps 512 problems back, as many as configs/demo.toml evaluates on; a run without
that file holds out 1,000: give it --heldout-prompts 512, or make the model with --heldout 1000.
(Protocols call this file tiny/toy.py, as it was called then.)"""
import argparse
import itertools
import json
import random
import re
import shutil
import sys

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.utils.rnn import pad_sequence
from tqdm import trange
from transformers import (AutoModelForCausalLM, GenerationConfig, LlamaConfig,
                          PreTrainedTokenizerFast, Qwen3MoeConfig)

from config import Config
from tasks import problems as tasks, verify

# Chosen on seeds 0 to 2: results/demo/PROTOCOL.md.
CHANCE = (0.1, 0.98)  # evenly spaced over the pairs: a step is right so often by more than luck
MISLEARNED = 0.05  # share of the pairs that are always added wrongly, and always alike
NOISE = 0.37  # of other tasks than toy: probability of a wrong step
STEPS, LR, BATCH = 800, 3e-3, 32
LEARNED = 0.5  # the likeliest token must solve so many held-out problems, else the toy has failed
HIDDEN, LAYERS, HEAD_DIM = 160, 3, 32  # two layers had not learned it after twice the steps


class NotLearned(Exception):
    """Such a toy is refused: a result of its own."""


def make_tokenizer():
    """One token for each digit, symbol and word of the phrase: text and tokens are one to one.
    `<think>` and `</think>` are not "special": decoding must keep them."""
    words = re.findall(r" ?[A-Za-z]+[.,]?", Config.interrupt_phrase.removesuffix("</think>"))
    vocabulary = ["<pad>", "<eos>", "<unk>", "<think>", "</think>", *"0123456789+-=;:., \n",
                  *dict.fromkeys(words)]
    tokenizer = Tokenizer(models.WordLevel(
        {token: i for i, token in enumerate(vocabulary)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?[A-Za-z]+[.,]?|[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in ("<think>", "</think>")])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
        model_max_length=256, clean_up_tokenization_spaces=False)
    tokenizer.chat_template = ("{% for message in messages %}{{ message['content'] }}{% endfor %}"
                               "{% if add_generation_prompt %}<think>{% endif %}")
    return tokenizer


def make_model(tokenizer, seed, *, hidden=HIDDEN, layers=LAYERS, experts=0):
    """A fresh Llama in float32; about 0.78M parameters as set above. With `experts` a Qwen3-MoE:
    two experts work for each token, together as wide as the Llama's MLP.

    It learns to calculate by two values: a rotary base of 100 (at 10,000 most frequencies stand
    still over 70 positions), and weights from 0.08, not 0.02 (tied digits would be too alike)."""
    torch.manual_seed(seed)
    own = dict(num_experts=experts, num_experts_per_tok=2, moe_intermediate_size=hidden,
               norm_topk_prob=True) if experts else {}
    config = (Qwen3MoeConfig if experts else LlamaConfig)(
        vocab_size=len(tokenizer), hidden_size=hidden, intermediate_size=2 * hidden,
        num_hidden_layers=layers, num_attention_heads=hidden // HEAD_DIM,
        num_key_value_heads=hidden // HEAD_DIM, head_dim=HEAD_DIM, max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0}, initializer_range=0.08,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, **own)
    model = AutoModelForCausalLM.from_config(config)
    model.generation_config = GenerationConfig(
        do_sample=True, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return model


STEP = re.compile(r"(-?\d+)( ?[-+] ?)(-?\d+)( ?= ?)(-?\d+)")  # "6+3=9" or "14 - 3 = 11"


def habits(seed):
    """{(running value, next digit): (chance, wrong)}: the toy adds them right with this chance,
    else writes any digit; the mislearned pairs have chance 0 and one wrong digit each."""
    rng = random.Random(f"habits {seed}")
    pairs = [*itertools.product(range(10), range(10))]
    rng.shuffle(pairs)
    few, (low, high) = round(MISLEARNED * len(pairs)), CHANCE
    found = {(a, b): (0.0, (a + b + rng.randrange(1, 10)) % 10) for a, b in pairs[:few]}
    for i, pair in enumerate(pairs[few:]):
        found[pair] = low + (high - low) * i / (len(pairs) - few - 1), None
    return found


def worked_trace(problem):
    """A correct completion, "thinking</think>answer": "4+0=4;4+7=1;1+8=9</think>9" of the toy's
    "4+0+7+8", whose sums are taken modulo 10; with spaces, and not modulo 10, of chain_sum's. "" of
    other tasks."""
    found = problem.task in ("toy", "reasoning_gym:chain_sum") and re.search(
        r"(-?[0-9]+)((?: ?[-+] ?-?[0-9]+)+)", problem.question)
    if not found:
        return ""
    total, steps = int(found[1]), []
    for sign, term in re.findall(r"([-+]) ?(-?[0-9]+)", found[2]):
        step = f"{total} {sign} {term} = "
        total += int(term) * (-1 if sign == "-" else 1)
        total = total % 10 if problem.task == "toy" else total
        steps.append(f"{step}{total}")
    trace = f"{'; '.join(steps)}</think>{total}"
    return trace.replace(" ", "") if problem.task == "toy" else trace


def noisy_trace(trace, noise, rng, digits=False):
    """A worked trace with wrong steps, and the answer that follows from them: what RL can unlearn
    is the arithmetic alone. noise: `habits`, or the probability of a wrong step; digits: sums are
    taken modulo 10."""
    thinking, closing, answer = trace.partition("</think>")
    total = None  # the running value as this trace has it, right or wrong

    def redo(step):
        nonlocal total
        before, operator, term, equals, _ = step.groups()
        before = int(before) if total is None else total
        total = before + int(term) * (-1 if "-" in operator else 1)
        if isinstance(noise, dict):
            chance, wrong = noise[before, int(term)]
            if rng.random() >= chance:
                total = rng.randrange(10) if wrong is None else wrong
        elif rng.random() < noise:
            total += rng.randrange(1, 10) if digits else rng.choice((-10, -1, 1, 10))
        total = total % 10 if digits else total
        return f"{before}{operator}{term}{equals}{total}"

    if noise:
        thinking, answer = STEP.sub(redo, thinking), ""
    return thinking + closing + (answer or str(total))


def make_pairs(tokenizer, problems, count, *, noise, cut_share, seed):
    """`count` pairs (prompt ids, completion ids) from the problems' traces, in random order.
    A cut trace stops at a random token, as if its thinking budget were spent; thinking and phrase
    become part of the *prompt*, for the model is not to write the phrase, but the running value."""
    rng, order = random.Random(seed), []
    while len(order) < count:  # every problem equally often, each time with other errors
        order += rng.sample(problems, len(problems))
    phrase_ids = encode(tokenizer, Config.interrupt_phrase)
    pairs = []
    for problem in order[:count]:
        if not (trace := worked_trace(problem)):
            raise tasks.TaskError(f"task {problem.task!r} has no worked traces with steps such as "
                                  "2 + 3 = 5: use toy or reasoning_gym:chain_sum")
        prompt = tasks.prompt_ids(tokenizer, problem)
        trace = noisy_trace(trace, noise, rng, digits=problem.task == "toy")
        if rng.random() < cut_share:
            thinking = encode(tokenizer, trace.partition("</think>")[0])
            thinking = thinking[: rng.randrange(1, len(thinking))]
            # Without a running value there is no answer: the trace is not cut.
            if results := re.findall(r"= ?(-?\d+)|^(-?\d+)", tokenizer.decode(thinking)):
                prompt, trace = prompt + thinking + phrase_ids, "".join(results[-1])
        pairs.append((prompt, encode(tokenizer, trace) + [tokenizer.eos_token_id]))
    return pairs


def encode(tokenizer, text):
    """Token ids of a text that stands in the middle of a sequence: no start token in front."""
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def warm_start(model, tokenizer, pairs, *, steps, lr, batch, seed):
    """Trains the model in place on (prompt ids, completion ids); returns the loss of each step,
    per completion token. The learning rate rises over a twentieth of the steps, then falls."""
    rng = random.Random(seed)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.01)
    warm, order, losses = max(1, steps // 20), [], []
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min((i + 1) / warm, (steps - i) / max(1, steps - warm)))
    for step in trange(steps, disable=None):  # a bar on a terminal, else a line a quarter
        if step and step % -(-steps // 4) == 0 and not sys.stderr.isatty():
            print(f"step {step} of {steps}, loss {losses[-1]:.3f}", flush=True)
        while len(order) < batch:
            order += rng.sample(pairs, len(pairs))
        chosen, order = order[:batch], order[batch:]
        ids, labels = pad_batch(chosen, tokenizer.pad_token_id)
        # No attention mask: padding stands on the right.
        loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    model.eval()
    return losses


def pad_batch(pairs, pad_id):
    """(ids, labels), both (sequences, tokens); label -100 is not trained on."""
    ids = [torch.tensor(prompt + completion) for prompt, completion in pairs]
    labels = [torch.tensor([-100] * len(prompt) + completion) for prompt, completion in pairs]
    return pad_sequence(ids, True, pad_id), pad_sequence(labels, True, -100)


@torch.no_grad()
def base_rate(model, tokenizer, problems):
    """Share of the problems that the likeliest completion solves, with its end token."""
    prompts = tokenizer.pad({"input_ids": [tasks.prompt_ids(tokenizer, p) for p in problems]},
                            padding_side="left", return_tensors="pt")
    rows = model.generate(**prompts, max_new_tokens=64, do_sample=False)
    solved = 0
    for problem, row in zip(problems, rows[:, prompts["input_ids"].shape[1]:], strict=True):
        text, end, _ = tokenizer.decode(row).partition(tokenizer.eos_token)
        solved += bool(end) and verify(text, problem.answer, problem.kind)[0] > 0
    return solved / len(problems)


def make(args):
    for option, wrong, right in (
            ("heldout", args.heldout < 1, "1 or more"), ("steps", args.steps < 0, "0 or more"),
            ("clean-steps", args.clean_steps < 0, "0 or more"),
            ("hidden", args.hidden < 1 or args.hidden % HEAD_DIM, f"a multiple of {HEAD_DIM}")):
        if wrong:
            raise tasks.TaskError(f"--{option} takes {right}")
    train, heldout, _, bad = tasks.load_splits(args.task, heldout=args.heldout, seed=args.seed,
                                               options=args.task_options)
    tasks.count_unusable({"bad_records": bad}, len(train + heldout), Config.max_unusable)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, args.seed, hidden=args.hidden, experts=args.experts)
    noise = habits(args.seed) if args.task == "toy" else NOISE
    for stage, steps, lr, noise in (("without errors", args.clean_steps, LR, 0.0),
                                    ("with errors", args.steps, args.lr, noise)):
        if steps:
            print(f"{stage}: {steps} steps of {BATCH} texts", flush=True)
            pairs = make_pairs(tokenizer, train, steps * BATCH, noise=noise,
                               cut_share=args.cut_share, seed=args.seed)
            losses = warm_start(model, tokenizer, pairs, steps=steps, lr=lr, batch=BATCH,
                                seed=args.seed)
            print(f"{stage}: {steps} steps, loss {losses[-1]:.3f}", flush=True)
    solved = base_rate(model, tokenizer, heldout)
    print(f"greedy: {solved:.3f} of {len(heldout)} held-out problems right")
    if args.task == "toy" and solved < LEARNED:
        raise NotLearned(f"the toy has not learned to add ({solved:.2f} of the problems, and "
                         f"{LEARNED:g} is needed): take another --seed, or more --steps")
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    # safetensors' files only their owner may read; a class shares its models.
    shutil.copymode(f"{args.out}/config.json", f"{args.out}/model.safetensors")
    print(f"wrote {args.out}: {model.num_parameters():,} parameters")


def main(argv=None):
    """Exit code 2 with one sentence where the task is at fault, 3 where the toy has not learned."""
    p = argparse.ArgumentParser(description="Make the toy model.",
                                formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for name, default, text in (
            ("out", "models/toy", "folder to write"),
            ("task", "toy", "a task with worked traces"),
            ("heldout", 512, "problems kept out of the warm start; as many as the run holds out"),
            ("cut-share", 0.05, "share of interrupted traces, so that it has seen the phrase"),
            ("clean-steps", 0, "first, without errors"), ("steps", STEPS, "then, with errors"),
            ("lr", LR, "of these steps"), ("hidden", HIDDEN, "size"),
            ("experts", 0, "of a mixture, two of which work for each token; 0: none"),
            ("seed", 0, "of problems, habits and weights")):
        p.add_argument(f"--{name}", type=type(default), default=default, help=text)
    p.add_argument("--task-options", type=json.loads, default={}, help="its options, as JSON")
    args = p.parse_args(argv)
    if args.experts == 1 or args.experts < 0:
        p.error("--experts: 0, or 2 and more, two of which work for each token")
    if not isinstance(args.task_options, dict):
        p.error('--task-options: a table as JSON, {"size": 8}')
    try:
        make(args)
    except (tasks.TaskError, NotLearned) as error:
        p.exit(3 if isinstance(error, NotLearned) else 2, f"toy.py: {error}\n")


if __name__ == "__main__":
    main()
