"""The forecast from within a Hugging Face trainer: what it logs is what it prints."""
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainingArguments

from fitting.callback import ForecastCallback
from fitting.forecast import forecast_line
from made_runs import made


class Tiny(torch.nn.Module):
    """A model as transformers' Trainer takes one."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x, labels):
        return {"loss": (self.weight * x - labels).square().mean(), "logits": self.weight * x}


def trainer_of(rewards, folder, steps=16, **words):
    """A trainer of `steps` steps with an evaluation before the first and after every second."""
    data, rewards = [{"x": torch.ones(1), "labels": torch.zeros(1)}] * 4, iter(rewards)
    trainer = Trainer(
        Tiny(), TrainingArguments(
            str(folder), max_steps=steps, eval_strategy="steps", eval_steps=2, eval_on_start=True,
            logging_steps=3, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True),
        train_dataset=data, eval_dataset=data,
        compute_metrics=lambda _: {"reward": next(rewards)})
    trainer.add_callback(ForecastCallback(trainer, **words))
    return trainer


def test_after_each_evaluation_the_line_is_printed_and_its_numbers_are_logged(tmp_path, capsys):
    """From the sixth on, and not at the end of the run. Rewards of ±1, mapped onto [0, 1]."""
    C, R = made(end=16, n=9, A=0.9, B=1.5, C_mid=5.0, R0=0.2, seed=int.from_bytes(
        np.random.bytes(3), "big"))
    trainer = trainer_of(2 * R - 1, tmp_path, reward_range=(-1, 1))
    trainer.train()
    wanted = [forecast_line(C[:n], R[:n], 16) for n in range(1, 10)]
    assert [bool(line) for line in wanted] == [n in (6, 7, 8) for n in range(1, 10)]
    printed = [line for line in capsys.readouterr().out.splitlines() if "naive" in line]
    assert printed == [f"-1 to 1 as 0 to 1: {line}" for line in wanted if line]
    logged = [row for row in trainer.state.log_history if "forecast/end" in row]
    assert [row["step"] for row in logged] == [10, 12, 14]
    for row, line in zip(logged, printed, strict=True):
        end, low, high = re.search(r"end (\S+) \[(\S+), (\S+)\]", line).groups()
        assert [row[f"forecast/{name}"] for name in ("end", "low", "high")] == pytest.approx(
            [2 * float(text) - 1 for text in (end, low, high)])     # in a chart with eval_reward


@pytest.mark.parametrize("words,told", [
    ({"metric": "eval_score"}, "no forecast: eval_score is no number in [0, 1]"),
    ({"reward_range": (1, 1)}, "no forecast: eval_reward is no number in [1, 1]"),
    ({"reward_range": (0, 0.5)}, "no forecast: eval_reward is no number in [0, 0.5]")])
def test_a_reward_that_is_not_there_or_out_of_its_range_is_told(words, told, tmp_path, capsys):
    """And training goes on: a forecast is worth no run."""
    trainer = trainer_of([0.7, 0.8], tmp_path, steps=2, **words)
    assert trainer.train().global_step == 2
    assert capsys.readouterr().out.count(told) == 2
    assert not any("forecast/end" in row for row in trainer.state.log_history)


@pytest.mark.days(4)
@pytest.mark.parametrize("sets", [("easy", "hard"), ("hard", "easy")])
def test_of_two_evaluation_sets_each_forecast_is_made_once_and_of_its_own_step(
        sets, tmp_path, capsys):
    """transformers calls back after each set: the forecast of the step before was logged again as
    this one's, or this one's twice."""
    C, R = made(end=16, n=9, A=0.9, B=1.5, C_mid=5.0, R0=0.2)
    trainer = trainer_of(R[np.arange(18) // 2], tmp_path, metric="eval_easy_reward")
    trainer.eval_dataset = dict.fromkeys(sets, trainer.eval_dataset)
    trainer.train()
    printed = [line for line in capsys.readouterr().out.splitlines()
               if "naive" in line or "no forecast" in line]
    early = ["no forecast: eval_easy_reward is no number in [0, 1] so far"] * (sets[0] == "hard")
    assert printed == early + [forecast_line(C[:n], R[:n], 16) for n in (6, 7, 8)]
    assert [row["step"] for row in trainer.state.log_history if "forecast/end" in row] == [
        10, 12, 14]


def test_a_second_training_is_forecast_like_the_first(tmp_path, capsys):
    _, R = made(end=16, n=9, A=0.9, B=1.5, C_mid=5.0, R0=0.2)
    trainer = trainer_of(np.concatenate([R, R]), tmp_path)
    for _ in range(2):
        trainer.train()
        assert capsys.readouterr().out.count("naive") == 3


def test_a_trainers_own_log_is_left_alone(tmp_path):
    """TRL's prints a table of completions whenever it logs."""
    _, R = made(end=16, n=9, A=0.9, B=1.5, C_mid=5.0, R0=0.2)
    trainer, logged = trainer_of(R, tmp_path), []
    trainer.log = lambda logs, *more: (logged.append(logs), Trainer.log(trainer, logs, *more))
    trainer.train()
    assert not any("forecast/end" in logs for logs in logged)
    assert any("forecast/end" in row for row in trainer.state.log_history)


def test_an_evaluation_that_is_nan_is_left_out_and_the_forecasts_go_on(tmp_path, capsys):
    """One of them ended all forecasts of the run, with the sentence of a wrong range."""
    C, R = made(end=16, n=9, A=0.9, B=1.5, C_mid=5.0, R0=0.2)
    trainer_of([np.nan if i == 3 else r for i, r in enumerate(R)], tmp_path).train()
    printed = [line for line in capsys.readouterr().out.splitlines() if "naive" in line]
    kept = np.arange(9) != 3
    assert printed == [forecast_line(C[:n][kept[:n]], R[:n][kept[:n]], 16) for n in (7, 8)]


def test_an_evaluation_without_a_number_ends_no_run(tmp_path):
    """TRL logs None where a reward function has judged no sample."""
    state = SimpleNamespace(max_steps=9, is_world_process_zero=True, log_history=[
        {"step": step, "eval_reward": reward} for step, reward in enumerate((0.1, None, 0.0, 0.3))])
    ForecastCallback(None).on_evaluate(None, state, None)
