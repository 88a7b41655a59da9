"""The README's picture of a step has a command that draws it, or says why it does not."""

import json
import sys

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
