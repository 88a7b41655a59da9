"""evaluation.py: an evaluation of hours goes on where a kill has left it.

Its answers are written to runs/NAME/evaluation.jsonl as they finish, without what training alone
needs. The same evaluation, begun again on the same weights, takes the problems from there that come
before the first one with an unfinished answer; all others are asked anew. To keep every finished
answer would favor short ones: an answer that was under way at a random moment is longer than the
mean, and is drawn again. Ours. Not over transformers, whose runs repeat to the last digit.
"""

import json
from dataclasses import asdict

from artifacts.resume import restored
from sampler import Rollout

UNUSED = {"behavior_logprobs": [], "versions": [], "sampled": []}


class KeptAnswers:
    """The sampler of evaluations, with a file. All that is not below is the sampler's own."""

    def __init__(self, sampler, path):
        self.sampler, self.path = sampler, path
        self.kept = {}                  # group id -> its answers in the file
        self.ready = []                 # of those, what the next step returns
        self.writes = False             # an evaluation is under way, no self-test

    def __getattr__(self, name):
        return getattr(self.sampler, name)

    @property
    def in_flight(self):
        return self.sampler.in_flight + len(self.ready)

    def reseed(self, seed):
        """An evaluation begins. The seed tells its step, the version its weights."""
        self.sampler.reseed(seed)
        head, self.kept, self.writes = {"seed": seed, "version": self.sampler.version}, {}, True
        lines = read_lines(self.path)
        if lines[:1] == [head]:
            for fields in lines[1:]:
                self.kept.setdefault(fields["group_id"], []).append(fields)
        self.path.write_text(json.dumps(head) + "\n")

    def submit(self, request):
        answers = self.kept.get(request.group_id, [])
        if len(answers) == request.samples:
            self.ready += [restored(Rollout, fields) for fields in answers]
        else:
            self.kept = {}              # nor any problem that comes later
            self.sampler.submit(request)

    def step(self):
        rollouts, self.ready = self.ready or self.sampler.step(), []
        if self.writes and rollouts:
            with open(self.path, "a") as file:
                file.writelines(json.dumps(asdict(r) | UNUSED) + "\n" for r in rollouts)
        self.writes &= self.in_flight > 0
        return rollouts


def read_lines(path):
    """The objects in a file of JSON lines, up to one that a kill has cut off; [] without a file."""
    found = []
    try:
        with open(path) as file:
            found.extend(map(json.loads, file))
    except (OSError, ValueError):
        pass
    return found
