"""Watching workers and deciding what a failure means.

`Heartbeat` asks a group every few seconds whether all of its processes live, also while nobody waits for them.
A `FailurePolicy` looks at a failure and says whether to make a new group or to give up; doing so is the trainer's.
Deadlines of single calls belong to the calls themselves (ray_calls.py).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from podium.errors import PodiumError, WorkerDied, WorkerError, WorkerTimeout
from podium.single_controller.group import WorkerGroup
from podium.single_controller.lost_peer import speaks_of_lost_peer

log = logging.getLogger(__name__)


class Decision(Enum):
    RESTART_GROUP = "restart_group"
    RAISE = "raise"


class FailurePolicy(Protocol):
    def decide(self, failure: PodiumError, progress: int) -> Decision:
        """What to do. `progress` is the newest saved step: a run that gets further deserves another try."""


class Raise:
    """Every failure ends the run."""

    def decide(self, failure: PodiumError, progress: int) -> Decision:
        return Decision.RAISE


class RestartGroup:
    """Lost or silent workers are replaced, at most `max_restarts` times without a newer checkpoint in between.

    What a worker's own code raises would be raised again and ends the run.
    """

    def __init__(self, max_restarts: int) -> None:
        self.max_restarts = max_restarts
        self.restarts = 0
        """Since the last progress."""
        self._progress = -1

    def decide(self, failure: PodiumError, progress: int) -> Decision:
        if progress > self._progress:
            self._progress, self.restarts = progress, 0
        if not is_lost(failure) or self.restarts >= self.max_restarts:
            return Decision.RAISE
        self.restarts += 1
        return Decision.RESTART_GROUP


def is_lost(failure: BaseException) -> bool:
    """Whether workers died or fell silent, as opposed to raising an error of their own."""
    if isinstance(failure, WorkerDied | WorkerTimeout):
        return True
    return isinstance(failure, WorkerError) and speaks_of_lost_peer(failure.cause)


class Heartbeat:
    """Looks at a group from a thread and reports each dead rank once."""

    def __init__(self, group: WorkerGroup, interval_s: float, report: Callable[[list[int]], None]) -> None:
        self.group, self._interval_s, self._report = group, interval_s, report
        self._ended = threading.Event()
        self._known: set[int] = set()
        self._thread = threading.Thread(target=self._watch, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Must come before the group is shut down, or that looks like deaths."""
        self._ended.set()
        self._thread.join(10.0)

    def _watch(self) -> None:
        while not self._ended.wait(self._interval_s):
            try:
                dead = [rank for rank in self.group.dead_ranks() if rank not in self._known]
            except Exception as error:  # noqa: BLE001 (fault boundary: whoever needs the group will see it fail)
                log.warning("the heartbeat of %s ended: %s", self.group.role, error)
                return
            if dead and not self._ended.is_set():
                self._known.update(dead)
                self._report(dead)
