"""The article's recipe changes what it says, and nothing else."""

import copy
import math
import random
from types import SimpleNamespace

import pytest
import torch
from conftest import packed_copy, rollouts_of

import scalerl
from config import Config
from scalerl import padded
from loss import token_weights
from scaleout.team import Alone
from study import article


def test_easy_problems_come_first_and_every_one_once_an_epoch():
    levels = {f"p{i}": random.randrange(5) for i in range(37)}
    problems = {prompt: SimpleNamespace(level=level) for prompt, level in levels.items()}
    order = article.EasyFirst(problems, 0.9, seed=random.randrange(1000))
    epochs = [[order.next() for _ in problems] for _ in range(2)]
    for epoch in epochs:
        assert [levels[prompt] for prompt in epoch] == sorted(levels.values())
        assert sorted(epoch) == sorted(problems)
    assert epochs[0] != epochs[1]               # at random within a level


def test_kl_entropy_and_the_cosine_are_all_that_differs_in_a_step(
        llama, tmp_path, monkeypatch, seed):
    """The loss differs by .05 of k3 to the model before training, and by -.01 of the entropy's
    one-sample estimate, whose value is .01 (log p)^2; the learning rate by the cosine."""
    llama.config.save_pretrained(tmp_path)
    config = Config(model=str(tmp_path), gpus=0, interrupt_phrase="", lr=1e-3, steps=40,
                    warmup_steps=0, micro_batch_tokens=10_000, think_min=5, think_max=17,
                    answer_tokens=3)
    rng, rewards = random.Random(seed), torch.tensor([[1.0, -1, 1], [-1, -1, 1]])
    rollouts, version = rollouts_of(2, 3, rng, version=7), 7
    first, logs = copy.deepcopy(llama), []
    for kind in (scalerl.Trainer, article.ArticleTrainer):
        monkeypatch.setattr(scalerl.load, "load_model", lambda *_: (packed_copy(first), None))
        monkeypatch.setattr(scalerl, "policy_loss", article.LOSS)
        trainer = kind(config, Alone(config))
        with torch.no_grad():                                       # training so far
            for p, q in zip(trainer.policy.model.parameters(), llama.parameters(), strict=True):
                p.copy_(q + 0.01 * q.sin())
        with torch.no_grad():
            log_p = trainer.policy(rollouts)[0]
        logs.append(trainer.update(rollouts, rewards, version)[1])
    with torch.no_grad():
        log_q = trainer.reference(rollouts)[0]
    mask = padded(rollouts, "sampled", torch.bool)
    weights = token_weights(mask, torch.arange(6) // 3, aggregation="prompt")
    k3 = (log_q - log_p).exp() - 1 - (log_q - log_p)
    extra = (weights * (0.05 * k3 + 0.01 * log_p.square())).sum().item()
    assert extra > 0
    assert logs[1]["loss"] - logs[0]["loss"] == pytest.approx(extra, rel=1e-3)
    assert logs[1]["lr"] / logs[0]["lr"] == pytest.approx((1 + math.cos(math.pi * 7 / 40)) / 2)
    assert trainer.config is config


@pytest.mark.parametrize("term", ["KL", "ENTROPY"])
def test_the_expected_gradient_of_the_kl_and_entropy_terms_is_what_the_comment_says(
        term, monkeypatch):
    """Enumerated over a vocabulary. Worth knowing: k3 as a loss pulls along KL(reference || π),
    although its value estimates KL(π || reference)."""
    for name in ("KL", "ENTROPY"):
        monkeypatch.setattr(article, name, float(name == term))
    theta = torch.randn(7, dtype=torch.float64, requires_grad=True)
    log_pi, log_ref = theta.log_softmax(0), torch.randn(7).double().log_softmax(0)
    pi = log_pi.detach().exp()
    value, stats = article.article_loss(log_ref[:, None], log_pi[:, None], log_pi.detach()[:, None],
                                        torch.zeros(7), pi[:, None])
    [wanted] = torch.autograd.grad((log_ref.exp() * (log_ref - log_pi)).sum() if term == "KL" else
                                   (log_pi.exp() * log_pi).sum(), theta, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(value, theta)[0], wanted)
    assert stats[""]["loss"] == pytest.approx(value.item())
