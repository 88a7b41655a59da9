"""Random settings: each is a setting, most runs are possible, and a fault is found."""

import sys

import pytest

from artifacts.settings import check, make_config
from bench import random_settings
from config import Config, ConfigError


def test_what_is_drawn_are_settings_every_choice_is_drawn_and_nine_of_ten_runs_begin(seed):
    drawn = [random_settings.draw(seed + i) for i in range(600)]
    assert drawn[0] == random_settings.draw(seed)                   # again by its seed
    names = {name for settings in drawn for name in settings}
    assert names <= {*vars(Config())}
    for choices in (random_settings.ALWAYS, random_settings.SOMETIMES):
        for name, values in choices.items():
            for value in values if name != "task_options" else ():
                assert any(settings.get(name) == value for settings in drawn), (name, value)
    refused = 0
    for settings in drawn:
        try:
            check(make_config({"model": "m", "name": "r"} | settings))
        except ConfigError:
            refused += 1
    assert 0 < refused < 90             # 41 +- 6 of 600


@pytest.mark.parametrize("code, found", [
    ("raise ValueError('x')", "a traceback"), ("print('fine')", ""),
    ("while True: pass", "no end")])
def test_a_traceback_or_a_command_without_an_end_is_a_fault(code, found, tmp_path, monkeypatch):
    monkeypatch.setattr(random_settings, "LIMIT_S", 3)
    command = [sys.executable, "-c", code]
    if found:
        with pytest.raises(RuntimeError, match=found):
            random_settings.said(command, tmp_path)
    else:
        assert random_settings.said(command, tmp_path) == (0, "fine\n", "")
