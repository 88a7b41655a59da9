"""evaluation.py: an evaluation of hours goes on where a kill has left it, from evaluation.jsonl.

Begun again on the same weights, it takes from there the problems before the first one with an
unfinished answer. Not all: to keep every finished answer would favor short ones. Ours. Not over
transformers, whose runs repeat to the last digit.
"""

import contextlib
import json
from dataclasses import asdict

from sampler import Rollout

FOR_TRAINING = {"prompt_ids": (), "behavior_logprobs": [], "versions": [], "sampled": []}


class KeptAnswers:
    """The sampler of evaluations, with a file. All that is not below is the sampler's own."""

    def __init__(self, sampler, path):
        self.sampler, self.path, self.writes = sampler, path, False     # a self-test is not kept
        self.kept, self.ready = {}, []  # group id -> its answers; what the next step returns

    def __getattr__(self, name):
        return getattr(self.sampler, name)

    @property
    def in_flight(self):
        return self.sampler.in_flight + len(self.ready)

    def reseed(self, seed):
        """An evaluation begins. The seed tells its step, the version its weights."""
        self.sampler.reseed(seed)
        head, lines, self.kept = {"seed": seed, "version": self.sampler.version}, [], {}
        with contextlib.suppress(OSError, ValueError), open(self.path) as file:
            lines.extend(map(json.loads, file))         # up to one that a kill has cut off
        for fields in lines[1:] if lines[:1] == [head] else ():
            self.kept.setdefault(fields["group_id"], []).append(fields)
        self.path.write_text(json.dumps(head) + "\n")
        self.writes = True

    def submit(self, request):
        answers = self.kept.get(request.group_id, [])
        if len(answers) == request.samples:
            self.ready += [Rollout(**fields) for fields in answers]
        else:
            self.kept = {}              # nor any problem that comes later
            self.sampler.submit(request)

    def step(self):
        rollouts, self.ready = self.ready or self.sampler.step(), []
        if self.writes:
            with open(self.path, "a") as file:
                file.writelines(json.dumps(asdict(r) | FOR_TRAINING) + "\n" for r in rollouts)
        self.writes &= self.in_flight > 0
        return rollouts
