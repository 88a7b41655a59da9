"""All families of transformers, as tiny random models: what is accepted is right (bench/families.py
makes the same table for docs/models.md)."""

import sys

import pytest
from conftest import ROOT
from transformers.utils import logging

from engines import accept

sys.path.insert(0, str(ROOT / "bench"))
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
    cells = [line.split("|")[1].split()[0] for line in page.splitlines() if line.startswith("| ")]
    left_out = page.splitlines()[-1].removeprefix("Not built: ").rstrip(".").split(", ")
    assert sorted(cells + left_out) == sorted([*(row["family"] for row in rows), "accepted",
                                               "refused"])
    assert f"{len(rows)} families" in page and page.count("FAILED") == 1
