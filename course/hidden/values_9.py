"""Exercise 9 by values: logs of other seeds, one of each three from a run that pushed late. The
three may have different seeds and learning rates (make_late.py)."""
from pathlib import Path

from course.hidden.values import equal, parts
from course.late_push import read

PARTS, part = parts()
LOGS = Path(__file__).resolve().parent / "late"


@part("which run pushed late", 1, 30)
def late(rng, ask):
    """By luck one in 3^30."""
    kinds = {kind: sorted(LOGS.glob(f"{kind}_*.jsonl"))
             for kind in ("late", "on_time", "bf16", "old")}
    for _ in range(30):
        others = [str(kind) for kind in rng.choice(["on_time", "bf16", "old"], 2, replace=False)]
        paths = [kinds[kind][rng.integers(len(kinds[kind]))] for kind in ("late", *others)]
        order = rng.permutation(3)
        found = ask("which_pushed_late", logs=[read(paths[i]) for i in order])
        yield equal("the run that pushed late", found, int(order.argmin()))
