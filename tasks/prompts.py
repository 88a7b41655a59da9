"""The question in the model's own chat format."""


def prompt_ids(tokenizer, problem, instruction="", *, think_open="", template_options=None):
    """Token ids of the question in the model's own chat format, ready for the model's turn.

    instruction: the system message where the chat template shows one, else before the question.
    think_open: ends the prompt, so that the model starts out thinking; not twice, if the template
        itself ends with it.
    template_options: the template's own switches, such as {"enable_thinking": True} of Qwen3.

    A tokenizer without a template (a base model) gets "question, blank line, Answer:" (ours).
    Special tokens at the start come once, and nothing is truncated.
    """
    prefixed = f"{instruction}\n\n{problem.question}" if instruction else problem.question
    if tokenizer.chat_template is None:
        ids = list(tokenizer(f"{prefixed}\n\nAnswer:")["input_ids"])
        if ids and ids[-1] == tokenizer.eos_token_id:  # T5's tokenizer and its like end every text
            ids.pop()
    else:
        messages = [{"role": "system", "content": instruction},
                    {"role": "user", "content": problem.question}]  # fmt: skip
        if not instruction or not arrives(tokenizer, messages, instruction):
            messages = [{"role": "user", "content": prefixed}]
        ids = list(tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False, **(template_options or {})))
    if think_open and not tokenizer.decode(ids).rstrip().endswith(think_open.strip()):
        ids += tokenizer(think_open, add_special_tokens=False)["input_ids"]
    return ids


def arrives(tokenizer, messages, text):
    """Some templates raise on a system message, some drop it without a word: so we look."""
    from jinja2.exceptions import TemplateError

    try:
        return text.strip() in tokenizer.apply_chat_template(messages, tokenize=False)
    except TemplateError:
        return False
