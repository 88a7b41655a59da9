"""All families of transformers, as tiny random models: what is accepted is right (bench/families.py
makes the same table for docs/models.md)."""

import sys

import pytest
from conftest import ROOT
from transformers.utils import logging

from engines import accept

sys.path.append(str(ROOT / "bench"))      # last: bench/fit.py is not fit.py
import families                                                                # noqa: E402


@pytest.fixture(scope="module")
def rows():
    """A row for each family, as bench/families.py makes it."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    yield [families.judge(family) for family in families.FAMILIES]
    logging.set_verbosity(before)


def test_no_family_is_accepted_and_wrong_and_each_refusal_is_a_sentence(rows):
    built = [row for row in rows if row["verdict"] != "not built"]
    accepted = {row["family"]: row for row in built if row["verdict"] == "accepted"}
    assert len(built) >= 150 and len(accepted) >= 40
    assert {"llama", "qwen2", "qwen3", "qwen3_moe", "olmo2", "smollm3", "mixtral"} <= set(accepted)
    for row in built:
        assert row["verdict"] in ("accepted", "refused"), row
        assert (row["verdict"] == "accepted") == (not row["says"]) and "\n" not in row["says"]
    assert {name: row for name, row in accepted.items()
            if not max(row["rows"], row["slots"]) < 1e-3} == {}


# Settings of published checkpoints beyond their sizes: {model: (family, settings, accepted)}.
PUBLISHED = {
    "Qwen3-1.7B": ("qwen3", {"use_sliding_window": False, "max_window_layers": 28,
                             "tie_word_embeddings": True}, True),
    "Llama-3.2-1B": ("llama", {"tie_word_embeddings": True, "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}}, True),
    "SmolLM3-3B": ("smollm3", {"no_rope_layers": [1, 0], "use_sliding_window": False,
                               "tie_word_embeddings": True}, True),
    "OLMo-2-1B": ("olmo2", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, True),
    "Qwen2.5 with YaRN": ("qwen2", {"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0,
        "original_max_position_embeddings": 128}}, True),
    "Qwen2 with a window": ("qwen2", {"use_sliding_window": True, "sliding_window": 16,
                                      "max_window_layers": 1}, False),
    "Phi-3 of 128k": ("phi3", {"rope_parameters": {
        "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8,
        "long_factor": [2.0] * 8, "original_max_position_embeddings": 64}}, False),
    "Granite-3.3-2B": ("granite", {"logits_scaling": 8.0, "embedding_multiplier": 12.0}, False),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_settings_of_published_checkpoints_are_accepted_or_refused(name, monkeypatch):
    family, settings, accepted = PUBLISHED[name]
    monkeypatch.setitem(families.ALSO, family, settings)
    row = families.judge(family)
    assert row["verdict"] == ("accepted" if accepted else "refused"), row
    assert row["dry"] == (not accepted)
    assert not accepted or max(row["rows"], row["slots"]) < 1e-4


def test_what_short_outputs_show_is_seen_by_the_numbers_alone(rows, monkeypatch):
    """A family that comes with the next transformers may name its settings otherwise. Windows of
    thousands of tokens are not seen so, and not wrong in a hundred."""
    monkeypatch.setattr(accept, "check_settings", lambda model: None)
    again = [families.judge(row["family"]) for row in rows if row["dry"]]
    assert not [row for row in again if row["verdict"] not in ("accepted", "refused")]
    assert {row["family"]: row for row in again if row["verdict"] == "accepted"
            and not max(row["rows"], row["slots"]) < 1e-3} == {}


def test_the_table_has_every_family_once(rows):
    page = families.table(rows)
    accepted, refused = page.partition("| refused for")[::2]
    names = [line.split()[1] for line in accepted.splitlines() if "ForCausalLM`" in line
             or "LMHeadModel`" in line]
    names += [name for line in refused.splitlines() if line.endswith(" |")
              for name in line.rpartition(" | ")[2].removesuffix(" |").split(", ")]
    names += page.splitlines()[-1].removeprefix("Not built: ").rstrip(".").split(", ")
    assert sorted(names) == sorted([*(row["family"] for row in rows), "families"])
    assert f"{len(rows)} families" in page and page.count("FAILED") == 1
