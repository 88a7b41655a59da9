"""callback.py: the forecast of a run's end, from within a Hugging Face trainer (TRL, transformers).

    trainer.add_callback(ForecastCallback(trainer, "eval_reward", reward_range=(-1, 1)))

From the sixth evaluation on it prints a line with the verdict, and logs forecast/end, /low, /high
as rewards. Evaluate at step 0 too (eval_on_start=True): without that R0 has to be fitted."""
import re

import numpy as np
from transformers import Trainer, TrainerCallback

from fitting.forecast import forecast_line


class ForecastCallback(TrainerCallback):
    def __init__(self, trainer, metric="eval_reward", reward_range=(0.0, 1.0)):
        self.trainer, self.metric, (self.lo, self.hi) = trainer, metric, reward_range

    def on_evaluate(self, args, state, control, **_):
        found = {row["step"]: rate for row in state.log_history
                 if row.get(self.metric) is not None and np.isfinite(           # TRL logs None, too
                     rate := (row[self.metric] - self.lo) / ((self.hi - self.lo) or np.nan))}
        if found and self.metric not in state.log_history[-1]:
            return                              # it was another one of several evaluation sets
        line = forecast_line([*found], [*found.values()], state.max_steps)
        if not found or not all(0 <= rate <= 1 for rate in found.values()):
            line = f"no forecast: {self.metric} is no number in [{self.lo:g}, {self.hi:g}] so far"
        if line and state.is_world_process_zero:
            print(f"{self.lo:g} to {self.hi:g} as 0 to 1: " * ((self.lo, self.hi) != (0, 1)) + line)
        if numbers := re.match(r"end (\S+)(?: \[(\S+), (\S+)\])?", line):
            Trainer.log(self.trainer, {     # TRL's own would print its completions again
                f"forecast/{name}": self.lo + (self.hi - self.lo) * float(text)
                for name, text in zip(("end", "low", "high"), numbers.groups()) if text})
