"""--check: what it says of a model and a task."""

import re

import pytest
from conftest import arguments

from command.main import main
from sampler import TransformersSampler

NAMES = ["chat template", "problems", "base pass rate", "answers", "thinking",
         "verifier", "self-test"]


@pytest.fixture
def check(micro, tmp_path, tmp_path_factory, monkeypatch, capsys):
    """Returns (exit code, {name: (verdict, sentence)}) of --check with these settings."""
    monkeypatch.chdir(tmp_path)
    smoke = tmp_path_factory.mktemp("smoke") / "short.py"

    def run(shorter_than=None, **settings):
        if shorter_than:
            settings |= {"task": str(smoke), "task_options": "{}"}
            smoke.write_text(
                "from tasks import load_task\nproblems = [{'prompt': p.question} for p in "
                "load_task('toy', 'train', heldout=0, options={'size': 32})]\n"
                "def reward_func(prompts, completions, **_):\n"
                f"    return [len(text) < {shorter_than} for text in completions]\n")
        code = main([*arguments(micro, **settings), "--gpus", "0", "--check"])
        lines = [re.fullmatch(r"(ok|look|bad) +([\w -]+): (.*)", line).groups()
                 for line in capsys.readouterr().out.splitlines() if "judged by" not in line]
        assert code == any(verdict == "bad" for verdict, _, _ in lines)
        assert not list(tmp_path.iterdir())                     # nothing is written
        return code, {name: (verdict, sentence) for verdict, name, sentence in lines}
    return run


def test_a_check_has_a_line_for_each_thing_with_its_figure(check):
    code, found = check()
    assert code == 0 and list(found) == NAMES
    assert "arrives in 24 of 24 prompts" in found["chat template"][1]
    assert found["chat template"][0] == found["problems"][0] == found["self-test"][0] == "ok"
    assert found["problems"][1].startswith("32 are used")       # 24 of training, 8 held out
    assert re.match(r"0\.\d{3}, standard error 0\.\d{3} \(24 prompts x 4 samples\)",
                    found["base pass rate"][1])
    assert all(re.search(r"\d", sentence) for _, sentence in found.values())


def test_a_template_that_drops_the_question_is_bad(check, monkeypatch):
    """The commonest cause of runs that learn nothing: the model never sees what it is asked."""
    def dropped(self, messages, **_):
        return self("<think>")["input_ids"]
    monkeypatch.setattr("transformers.PreTrainedTokenizerBase.apply_chat_template", dropped)
    code, found = check()
    assert code == 1 and found["chat template"][0] == "bad"
    assert "arrives in 0 of 24 prompts" in found["chat template"][1]


@pytest.mark.parametrize("settings, name, verdict", [
    ({"shorter_than": 2}, "base pass rate", "bad"),                 # never
    ({"shorter_than": 999, "think_max": 60, "think_min": 60}, "base pass rate", None),  # nearly all
    ({"think_min": 1, "think_max": 1}, "thinking", "look"),
    ({"think_min": 1, "think_max": 1, "interrupt_phrase": "", "answer_tokens": 1}, "answers",
     "bad"),
])
def test_a_pass_rate_of_zero_and_answers_without_end_are_seen(check, settings, name, verdict):
    _, found = check(**settings)
    assert found[name][0] == (verdict or found[name][0])
    if verdict is None:
        assert float(found[name][1][:5]) > 0.9


def test_a_sampler_at_another_temperature_fails_the_self_test(check, monkeypatch):
    init = TransformersSampler.__init__
    monkeypatch.setattr(TransformersSampler, "__init__", lambda self, *args, **settings: init(
        self, *args, **(settings | {"temperature": 0.5})))
    code, found = check()
    assert code == 1 and found["self-test"][0] == "bad"
