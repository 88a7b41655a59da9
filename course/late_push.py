"""Exercise 9: which of three runs pushed its weights late? `which_pushed_late` is for the student.
Three logs are in course/late; `read` reads them."""
import json
import math
from pathlib import Path


def read(path):
    """The log of a run: {column: number} of each step, in order."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def which_pushed_late(logs):
    """The place, 0, 1 or 2, of the run whose sampler got the weights of each step one step late,
    under the number of the new ones.

    logs   three lists as `read` gives them. The columns are those of docs/metrics.md; one is
           missing in a step that has no such number (where no token has lag 0, say).
    """
    def moved(log):
        """How far trainer and sampler are apart at lag 0, as a share of what they are apart one
        step later: the median over the steps that have both."""
        apart = "mismatch/mean_abs_dlogp/lag_"
        shares = [line[apart + "0"] / line[apart + "1"] for line in log
                  if line.get(apart + "0") and line.get(apart + "1")]
        return sorted(shares)[len(shares) // 2] if shares else -math.inf
    return max(range(len(logs)), key=lambda place: moved(logs[place]))
