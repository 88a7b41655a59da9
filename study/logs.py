"""What is kept of a run: its evaluations, and the columns of metrics.jsonl that are looked at."""
import json
import shutil
from pathlib import Path

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
