"""What prompt_ids promises: the question, whole, in the model's own chat format."""

import jinja2
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tasks.problems import Problem, prompt_ids

SYSTEM = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<bot>{% endif %}"
)
DROPS_SYSTEM = "{% for m in messages if m.role == 'user' %}<user>{{ m.content }}{% endfor %}<bot>"
REFUSES = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
REFUSES_SYSTEM = REFUSES + SYSTEM


def letters_tokenizer(template=None):
    """A tokenizer of single characters, so that decoding shows the prompt as it is."""
    vocabulary = {chr(i): i for i in range(1, 128)} | {"<unk>": 0}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", model_max_length=16
    )
    fast.chat_template = template
    return fast


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (SYSTEM, "<system>Think.<user>1+1<bot>"),
        (DROPS_SYSTEM, "<user>Think.\n\n1+1<bot>"),
        (REFUSES_SYSTEM, "<user>Think.\n\n1+1<bot>"),
        (None, "Think.\n\n1+1\n\nAnswer:"),
    ],
)
def test_the_instruction_arrives_whatever_the_template(template, expected):
    """Some templates drop a system message silently: the model would never be told to think."""
    tokenizer = letters_tokenizer(template)
    ids = prompt_ids(tokenizer, Problem("x/1", "x", "1+1", "2"), "Think.")
    assert "".join(map(chr, ids)) == expected and all(type(i) is int for i in ids)


@pytest.mark.parametrize("template", [SYSTEM, DROPS_SYSTEM, REFUSES_SYSTEM])
def test_without_an_instruction_the_prompt_is_the_question_alone(template):
    """An empty system message is not the same as none."""
    ids = prompt_ids(letters_tokenizer(template), Problem("x/1", "x", "1+1", "2"))
    assert "".join(map(chr, ids)) == "<user>1+1<bot>"


def test_a_prompt_does_not_hold_the_day_on_which_it_is_made():
    """Templates of Llama 3.2 and others do: a run resumed on another day had other prompts."""
    template = "{{ strftime_now('%d %b %Y') }} " + SYSTEM
    ids = prompt_ids(letters_tokenizer(template), Problem("x/1", "x", "1+1", "2"))
    assert "".join(map(chr, ids)) == "26 Jul 2024 <user>1+1<bot>"


def test_a_tokenizer_that_ends_every_text_does_not_end_the_prompt():
    """Then a base model would begin a new text instead of an answer."""
    tokenizer = letters_tokenizer()
    tokenizer.eos_token = "\x03"
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        "$A \x03", special_tokens=[("\x03", 3)])
    ids = prompt_ids(tokenizer, Problem("x/1", "x", "1+1", "2"))
    assert "".join(map(chr, ids)) == "1+1\n\nAnswer:"


@pytest.mark.parametrize("template", [SYSTEM, None])
def test_a_long_prompt_is_never_cut(template):
    """model_max_length is 16 here; a question cut in silence cannot be answered."""
    ids = prompt_ids(letters_tokenizer(template), Problem("x/1", "x", "1+" * 500 + "1", "501"))
    assert len(ids) > 1000


# The templates of three families, shortened to what can go wrong with them: Qwen's has a default
# system message, a switch for thinking, and no token at the start; Llama's writes the token at the
# start itself, which its tokenizer adds as well; SmolLM's puts a system message of its own where
# there is none.
QWEN = (
    "{% if messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n"
    "{% endif %}{% for m in messages if m.role != 'system' %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}"
    "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
SMOL = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM<|im_end|>\n{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FAMILIES = {
    "qwen": (QWEN, ["<|im_start|>", "<|im_end|>", "<think>", "</think>"], None, "<|im_end|>"),
    "llama": (LLAMA, ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                      "<|eot_id|>"],
              "<|begin_of_text|>", "<|eot_id|>"),
    "smollm": (SMOL, ["<|im_start|>", "<|im_end|>", "<|endoftext|>"], None, "<|im_end|>"),
}  # fmt: skip


def family_tokenizer(name, base=False):
    """Byte-level pairs and special tokens, as all three have; a base model has no template."""
    template, special, start, end = FAMILIES[name]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(["What is 3 plus 4? Think step by step. assistant user system"],
                                  trainers.BpeTrainer(special_tokens=special, vocab_size=330,
                                                      show_progress=False, initial_alphabet=
                                                      pre_tokenizers.ByteLevel.alphabet()))
    if start:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{start} $A", special_tokens=[(start, tokenizer.token_to_id(start))])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=start, eos_token=end)
    fast.chat_template = None if base else template
    return fast


@pytest.mark.parametrize("instruction", ["", "Think step by step."])
@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_gets_its_own_format_and_every_special_token_once(name, instruction):
    """Two tokens at the start, the classic slip with Llama, are a prompt the model never saw."""
    tokenizer = family_tokenizer(name)
    template, special, start, end = FAMILIES[name]
    problem = Problem("x/1", "x", "What is 3 plus 4? \u03c0 \u2260 3", "7")
    ids = prompt_ids(tokenizer, problem, instruction)
    text = tokenizer.decode(ids)
    messages = [{"role": "user", "content": problem.question}]
    if instruction:
        messages.insert(0, {"role": "system", "content": instruction})
    environment = jinja2.Environment()
    environment.filters["trim"] = str.strip
    assert text == environment.from_string(template).render(
        messages=messages, add_generation_prompt=True, bos_token=start)
    assert text.rstrip("\n").endswith(("assistant", "assistant<|end_header_id|>"))
    for token in special:       # each is one token of the vocabulary, not a spelling of it
        assert ids.count(tokenizer.convert_tokens_to_ids(token)) == text.count(token)
    assert start is None or text.count(start) == 1
    assert instruction in text and text.count(problem.question) == 1


@pytest.mark.parametrize("name", FAMILIES)
def test_a_base_model_of_each_family_gets_the_plain_format(name):
    """No template, no roles; the token at the start where the tokenizer has one."""
    tokenizer = family_tokenizer(name, base=True)
    start = FAMILIES[name][2] or ""
    ids = prompt_ids(tokenizer, Problem("x/1", "x", "What is 3 plus 4?", "7"), "Think.")
    assert tokenizer.decode(ids) == f"{start}Think.\n\nWhat is 3 plus 4?\n\nAnswer:"


def test_thinking_is_opened_once_whoever_opens_it():
    """A setting for templates that leave it to the model; a switch for those that have one."""
    tokenizer = family_tokenizer("qwen")
    problem = Problem("x/1", "x", "What is 3 plus 4?", "7")
    opened = tokenizer.decode(prompt_ids(tokenizer, problem, think_open="<think>\n"))
    assert opened.endswith("assistant\n<think>\n")
    tokenizer.chat_template = QWEN.replace("assistant\n", "assistant\n<think>\n", 1)
    again = tokenizer.decode(prompt_ids(tokenizer, problem, think_open="<think>\n"))
    assert again == opened
    tokenizer.chat_template = QWEN
    off = tokenizer.decode(prompt_ids(tokenizer, problem,
                                      template_options={"enable_thinking": False}))
    assert off.endswith("assistant\n<think>\n\n</think>\n\n")
