"""From the settings to the model: precision of the weights, and the words that end thinking."""

from types import SimpleNamespace

import pytest
import torch
from conftest import random_llama

from command import make_run as making
from config import Config
from engines import load
from tiny import toy


def test_a_checkpoint_of_16_bits_is_trained_with_fp32_weights(tmp_path, seed):
    """At the paper's learning rate a bf16 weight would round most updates away."""
    random_llama(vocab=41, dtype=torch.bfloat16).save_pretrained(tmp_path)
    toy.make_tokenizer().save_pretrained(tmp_path)
    model, _ = load.load_model(Config(model=str(tmp_path)))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_what_ends_this_models_thinking_reaches_the_sampler_and_the_phrase_has_no_start_token():
    """Some tokenizers put a start token before any text: in the middle of a sample it would be a
    token that the model has never seen there."""
    def tokenizer(text, add_special_tokens=True):
        return {"input_ids": [99] * add_special_tokens + [ord(c) for c in text]}
    rule = load.interruption_of(Config(think_min=3, think_max=5, answer_tokens=2,
                                       think_close="[/r]", interrupt_phrase="So [/r]"), tokenizer)
    assert rule.end == "[/r]" and rule.phrase_ids == tuple(map(ord, "So [/r]"))
    assert (rule.think_min, rule.think_max, rule.answer_tokens) == (3, 5, 2)


@pytest.mark.parametrize("named, ends", [([1, 2], {1, 2}), (5, {5}), (None, {9})])
def test_every_end_token_of_the_model_ends_a_sample(named, ends, llama):
    """Chat models often have two: <|im_end|> of a turn, and the end of the text. A list is all of
    them; a model that names none has its tokenizer's."""
    config = Config(model="m", engine="transformers", think_min=3, think_max=5, answer_tokens=2,
                    interrupt_phrase="", slots=16, eval_samples=4)
    llama.generation_config.eos_token_id = named
    trainer = SimpleNamespace(model=llama, tokenizer=SimpleNamespace(eos_token_id=9),
                              device="cpu", dtype=torch.float32)
    for sampler in making.make_samplers(config, trainer, 13):
        assert sampler.eos_ids == ends and set(sampler.ends.tolist()) == ends
