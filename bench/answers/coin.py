"""The third set and the coin that parts it: half to mend by, half to be judged once."""

import json
import random
from pathlib import Path


def halves():
    """(work, aside): rows [kind, form, gold answer, text, question], each form halved."""
    rows = [json.loads(line) for line in
            (Path(__file__).parent / "third.jsonl").open(encoding="utf-8")]
    rng, work, aside = random.Random(28), [], []
    for key in dict.fromkeys((kind, form) for kind, form, *_ in rows):
        form = [row for row in rows if (row[0], row[1]) == key]
        rng.shuffle(form)
        work += form[:(len(form) + rng.randint(0, 1)) // 2]
        aside += [row for row in form if row not in work]
    return work, aside


if __name__ == "__main__":
    for name, half in zip(("work", "aside"), halves()):
        print(name, *(f"{kind} {sum(row[0] == kind for row in half)}"
                      for kind in ("right", "wrong", "hack")))
