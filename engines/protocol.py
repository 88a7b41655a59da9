"""protocol.py: the methods by which the loop in scalerl.py knows an engine.

Three engines have them: `sampler.TransformersSampler`, `vllm_inprocess.py` and servers/sampler.py.
"""

from typing import Iterable, Protocol

from sampler import Request, Rollout


class Sampler(Protocol):
    """What the loop needs from an engine: one in this process, or servers, which never stop.

    A checkpoint takes what an engine must keep by artifacts/resume.py. An engine of one's own has
    `state()` and `load_state(tensors, plain)` for it, as two_requests.py.
    """
    version: int                # of the weights that the next token will come from
    devices: int                # that servers use; 0 in process: only the trainer's

    @property
    def in_flight(self) -> int:
        """Samples submitted and not yet returned."""

    @property
    def free_slots(self) -> int:
        """Slots minus samples in flight. Below zero: some samples are waiting for a slot."""

    def submit(self, request: Request) -> None:
        """Queue a request; they start in this order. Raises ValueError for one that never fits."""

    def step(self) -> list[Rollout]:
        """Decode one token of every sequence (servers: wait up to a second until a sample ends).
        Returns the samples that have ended."""

    def finished(self) -> list[Rollout]:
        """Samples that ended since the last step, without waiting; mostly for servers."""

    def push_weights(self, named_tensors: Iterable, version: int) -> None:
        """Tokens from now on come from these weights; running sequences keep their cache."""

    def reseed(self, seed: int) -> None:
        """Draw from this seed from now on, so that an evaluation can be repeated."""

    def log(self) -> dict:
        """The engine's own columns of metrics.jsonl: what happened since the last call."""

    def close(self) -> None:
        """End the engine, or leave the servers; unfinished samples are dropped."""
