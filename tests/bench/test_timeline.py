"""The README's picture of a step has a command that draws it, or says why it does not."""

import json
import sys
from collections import Counter

import numpy as np
import pytest
from conftest import ROOT

sys.path.append(str(ROOT / "bench"))      # last: bench/fit.py is not fit.py
import timeline                                                             # noqa: E402


def test_the_picture_is_of_the_step_that_most_versions_have_written(tmp_path, capsys):
    lines = [{"step": step, "timeline": [{"ended": 9, "versions": [[v, 2] for v in range(versions)],
                                          "forced": []}]} for step, versions in ((10, 1), (20, 3))]
    (tmp_path / "groups.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "metrics.jsonl").write_text('{"step": 20, "decode/clock": 9}\n')
    timeline.main([str(tmp_path), "--out", str(tmp_path / "step.png")])
    assert (tmp_path / "step.png").read_bytes()[1:4] == b"PNG"
    assert "step.png: Step 20 was trained on 1 samples" in capsys.readouterr().out


@pytest.mark.parametrize("log, why", [
    ("", "has no log of a run"), ('{"step": 3, "decode/clock": 9}\n', "every 10th has one"),
    ('{"step": 3}\n', "none of vLLM's")])
def test_without_a_recorded_step_it_says_why_and_draws_nothing(log, why, tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text(log)
    with pytest.raises(SystemExit) as end:
        timeline.main([str(tmp_path), "--out", str(tmp_path / "step.png")])
    assert end.value.code == 2 and why in capsys.readouterr().err
    assert not (tmp_path / "step.png").exists()


def test_each_token_stands_where_it_was_decoded(tmp_path, seed):
    """A decode step each, the last at `ended`; and a push stands between the tokens of two
    versions."""
    rng = np.random.default_rng(seed)

    def sample(begun, pushed):
        tokens = int(rng.integers(9, 30))
        written = [2 + sum(begun + t >= push for push in pushed) for t in range(tokens)]
        return {"ended": begun + tokens, "forced": [4, 3] if begun % 2 else [],
                "versions": [[v, written.count(v)] for v in sorted(set(written))]}
    few, many = ([sample(int(rng.integers(0, 60)), pushed) for _ in range(200)]
                 for pushed in ((30,), (25, 40, 60)))
    lines = [{"step": 3, "groups": []}, {"step": 10, "groups": [], "timeline": few},
             {"step": 20, "groups": [], "timeline": many}]
    (tmp_path / "groups.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    steps = [{"step": i, "decode/clock": clock} for i, clock in enumerate((25, 40, 60, 89), 17)]
    figure, said = timeline.one_step(tmp_path / "groups.jsonl", steps)
    assert said.startswith("Step 20 was trained on 200 samples") and "100 are drawn" in said
    shown = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert shown[:4] == [f"weights {v}" for v in (2, 3, 4, 5)]
    (ax,) = figure.axes
    zero = min(s["ended"] - sum(n for _, n in s["versions"]) for s in many[::2])
    pushes = [line.get_xdata()[0] + zero for line in ax.lines]
    assert pushes == [25, 40, 60, 89]
    colors = sorted({bar.get_facecolor() for bar in ax.patches if bar.get_height() > .5})
    assert len(colors) == 4
    tokens = Counter()
    for bar in ax.patches:
        if bar.get_height() > .5:               # the bar of one version: between two pushes
            tokens[bar.get_y()] += bar.get_width()
            begin, end = bar.get_x() + zero, bar.get_x() + bar.get_width() + zero
            assert sum(begin >= p for p in pushes[:3]) == sum(end > p for p in pushes[:3])
    assert sorted(tokens.values()) == sorted(sum(n for _, n in s["versions"]) for s in many[::2])
    forced = [bar for bar in ax.patches if bar.get_height() < .5]
    assert len(forced) == sum(bool(s["forced"]) for s in many[::2])
    assert all(bar.get_width() == 3 for bar in forced)
