"""What is kept of a run, its evaluations and some columns of metrics.jsonl; and how it ended."""
import json
import shutil
from pathlib import Path

import numpy as np

COLUMNS = ("step", "pass_rate", "lag/mean", "ess", "ratio/clipped_frac")


def keep(run, folder):
    """Write evals.jsonl and a thinned metrics.jsonl of the run folder `run` into `folder`."""
    run, folder = Path(run), Path(folder)
    folder.mkdir(parents=True)
    steps = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    (folder / "metrics.jsonl").write_text("".join(
        json.dumps({name: step[name] for name in COLUMNS if name in step}) + "\n"
        for step in steps))
    shutil.copy(run / "evals.jsonl", folder)        # last: with it the run counts as kept


def ends(R):
    """What a run's evaluations R (n,) say of its end, as {name: number}: the mean of the last three
    is its end, that of the best three in a row its best; it has collapsed below half of that."""
    best, end = np.convolve(R, np.ones(3) / 3, "valid").max(), R[-3:].mean()
    return dict(start=R[0], best=best, end=end, collapsed=float(end < best / 2))
