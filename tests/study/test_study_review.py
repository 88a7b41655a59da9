"""A retired prompt is asked again, at a given share, and comes back if it fails."""
from collections import Counter

import scalerl
from study.review import Review

PROMPTS = [f"p{i}" for i in range(7)]


def asked(curriculum, groups, right):
    """The prompts of so many groups; each has `right(prompt)` of 8 samples right."""
    order = []
    for _ in range(groups):
        order.append(curriculum.next())
        if order[-1] is None:
            break
        curriculum.record(order[-1], right(order[-1]), 8)
    return order


def test_without_a_review_the_order_is_scalerls(seed):
    right = lambda prompt: 8 if prompt in ("p1", "p4") else 3                    # noqa: E731
    assert asked(Review(PROMPTS, 0.9, seed), 50, right) \
        == asked(scalerl.Curriculum(PROMPTS, 0.9, seed), 50, right)


def test_reviews_ask_retired_prompts_alone_at_their_share(seed, monkeypatch, capsys):
    monkeypatch.setattr(Review, "share", 0.25)
    right = lambda prompt: 8 if prompt == "p1" else 0                            # noqa: E731
    order = asked(Review(PROMPTS, 0.9, seed), 2000, right)
    reviews = capsys.readouterr().out.count("review: 8 of 8 right\n")
    assert 400 < reviews < 600
    counts = Counter(order)                     # one group before it retires, or one more
    assert reviews < counts["p1"] < reviews + 3


def test_a_prompt_that_fails_its_review_is_asked_in_the_next_epoch(seed, monkeypatch):
    curriculum = Review(PROMPTS, 0.9, seed)
    asked(curriculum, len(PROMPTS) + 1, lambda prompt: 8 if prompt == "p1" else 0)
    assert "p1" not in curriculum.order
    curriculum.record("p1", 0, 8)               # what a failed review tells
    order = asked(curriculum, 2 * len(PROMPTS), lambda _: 0)
    assert "p1" in order
