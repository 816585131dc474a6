"""Generation in flight, at most `max_staleness` updates ahead of the one that is being made.

With 0 the queue holds nothing between steps and the loop is synchronous: each batch is sampled by the newest weights.
With k, generation of the next k batches is already under way while the trainer updates; their samples are at most k
versions old and say so. A checkpoint keeps what no update has used, and where the sampler stood before it (resume.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from podium.protocol import DataProto


class Future(Protocol):
    def get(self, timeout: float | None = None) -> Any: ...


@dataclass(frozen=True)
class PendingRollout:
    prompts: DataProto
    output: Future
    baseline: Future | None  # one greedy response per prompt, where the estimator asks for it
    sampler_state: dict[str, int]  # as it was before these prompts were drawn
    version: int  # the newest weights when generation started


class RolloutQueue:
    def __init__(self, submit: Callable[[], PendingRollout], max_staleness: int) -> None:
        self._submit, self._max_staleness = submit, max_staleness
        self._pending: deque[PendingRollout] = deque()

    def next(self, remaining: int) -> PendingRollout:
        """The oldest rollout; keeps as many more under way as staleness and the `remaining` steps allow."""
        while len(self._pending) < min(self._max_staleness + 1, max(remaining, 1)):
            self._pending.append(self._submit())
        return self._pending.popleft()

    @property
    def pending(self) -> tuple[PendingRollout, ...]:
        """Rollouts that no update has used, the oldest first."""
        return tuple(self._pending)

    def restore(self, pending: Iterable[PendingRollout]) -> None:
        self._pending = deque(pending)
