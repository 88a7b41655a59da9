"""--check: what it says of a model and a task, and that a broken loop does not learn the smoke
reward which a working one learns."""

import re

import pytest
from conftest import arguments

import scalerl
from command.main import main
from sampler import TransformersSampler

# Long steps at a temperature at which answers have many lengths: a tenth of a second each.
SMOKE = {"temperature": 2, "lr": 3e-3, "warmup_steps": 0, "eval_samples": 1, "retire_at": 2,
         "think_max": 40, "task_options": '{"size": 300}'}
NAMES = ["chat template", "problems", "base pass rate", "answers", "thinking",
         "verifier", "self-test", "smoke reward"]


@pytest.fixture
def check(micro, tmp_path, monkeypatch, capsys):
    """Returns (exit code, {name: (verdict, sentence)}) of --check with these settings."""
    monkeypatch.chdir(tmp_path)

    def run(steps=0, **settings):
        code = main([*arguments(micro, **settings), "--gpus", "0", "--check", str(steps)])
        lines = [re.fullmatch(r"(ok|look|bad) +([\w -]+): (.*)", line).groups()
                 for line in capsys.readouterr().out.splitlines()]
        assert code == any(verdict == "bad" for verdict, _, _ in lines)
        assert not list(tmp_path.iterdir())                     # nothing is written
        return code, {name: (verdict, sentence) for verdict, name, sentence in lines}
    return run


def test_a_check_has_a_line_for_each_thing_with_its_figure(check):
    code, found = check()
    assert code == 0 and list(found) == NAMES[:-1]
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
    ({"task_options": '{"size": 24, "shorter_than": 2}'}, "base pass rate", "bad"),     # never
    ({"task_options": '{"size": 24, "shorter_than": 999}', "think_max": 60, "think_min": 60},
     "base pass rate", None),                                                           # nearly all
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


def test_a_working_loop_learns_the_smoke_reward(check, capsys):
    code, found = check(30, **SMOKE)
    verdict, sentence = found["smoke reward"]
    before, after = map(int, re.search(r"(\d+)% -> (\d+)%", sentence).groups())
    assert code == 0 and verdict == "ok" and after > before + 20, sentence


@pytest.mark.parametrize("bug", ["wrong sign", "never pushed"])
def test_a_broken_loop_does_not_learn_the_smoke_reward(check, monkeypatch, bug):
    if bug == "wrong sign":
        right = scalerl.advantages
        monkeypatch.setattr(scalerl, "advantages", lambda *a, **k: -right(*a, **k))
    else:
        init = TransformersSampler.__init__

        def apart(self, model, *args, **settings):
            own = type(model)(model.config)
            own.load_state_dict(model.state_dict())
            init(self, scalerl.load.accept.prepare(own), *args, **settings)
        monkeypatch.setattr(TransformersSampler, "__init__", apart)
        monkeypatch.setattr(TransformersSampler, "push_weights",
                            lambda self, weights, version: setattr(self, "version", version))
    code, found = check(30, **SMOKE)
    assert code == 1 and found["smoke reward"][0] == "bad", found["smoke reward"]
    assert "not learned" in found["smoke reward"][1]


def test_without_a_chance_to_learn_the_loop_is_not_blamed(check):
    """A run with a long warm-up, as the paper's, hardly moves in thirty steps."""
    code, found = check(4, **SMOKE | {"warmup_steps": 1000, "lr": 1e-6})
    assert code == 0 and found["smoke reward"][0] == "look"
    assert "--warmup-steps 0" in found["smoke reward"][1]

