"""What the tests of problems and of their sources share."""

import json
from types import SimpleNamespace

from tasks.verifier import verify

# Options of reasoning_gym:chain_sum: problems that are quickly made.
SUMS = {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2, "size": 60}


class AtOnce:
    """A verifier in this process, without a deadline."""

    def score(self, items):
        return SimpleNamespace(reasons=[verify(*item)[1] for item in items])


def write_jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def questions(problems):
    return {problem.question for problem in problems}
