"""Trackers: further readers of a run's numbers. A slow, failing or absent one never holds up a step.

A tracker gets its numbers on a thread of its own through a bounded queue. What does not fit is dropped and counted, a
tracker that raises is switched off with a warning: the run folder has everything anyway. The trackers themselves (W&B
and the like) register here by name; the console is not one of them.
"""

from __future__ import annotations

import difflib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from podium.config.schema import Config
from podium.errors import ConfigError

log = logging.getLogger(__name__)


class Tracker(Protocol):
    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


TrackerFactory = Callable[[Config], Tracker]
_FACTORIES: dict[str, TrackerFactory] = {}


def register_tracker(name: str) -> Callable[[TrackerFactory], TrackerFactory]:
    """Make a tracker available under a name of `trainer.logger`."""

    def add(factory: TrackerFactory) -> TrackerFactory:
        _FACTORIES[name] = factory
        return factory

    return add


def make_trackers(config: Config) -> list[Tracker]:
    """The trackers of `trainer.logger`, each in the background. The console and the run folder are made elsewhere."""
    trackers: list[Tracker] = []
    for name in config.trainer.logger:
        if str(name) == "console":
            continue
        if name not in _FACTORIES:
            known = ["console", *_FACTORIES]
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"trainer.logger: unknown tracker {name!r}; {hint}")
        trackers.append(BackgroundTracker(name, _FACTORIES[name](config)))
    return trackers


class BackgroundTracker:
    """Feeds a tracker from a thread."""

    def __init__(self, name: str, tracker: Tracker, *, max_waiting: int = 1000, close_timeout_s: float = 30.0) -> None:
        self.name = name
        self.dropped = 0
        self._tracker = tracker
        self._close_timeout_s = close_timeout_s
        self._queue: queue.Queue[tuple[int, dict[str, float]] | None] = queue.Queue(max_waiting)
        self._failed = False
        self._thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._failed:
            return
        try:
            self._queue.put_nowait((step, dict(metrics)))
        except queue.Full:
            if not self.dropped:
                log.warning(
                    "tracker %s is slow; it misses steps from %d on, the run folder has them all", self.name, step
                )
            self.dropped += 1

    def close(self) -> None:
        """Wait for what is queued, up to the limit."""
        deadline = time.monotonic() + self._close_timeout_s
        while self._thread.is_alive() and time.monotonic() < deadline:
            try:
                self._queue.put(None, timeout=0.05)
                break
            except queue.Full:
                continue
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            log.warning("tracker %s did not finish within %g s and is left behind", self.name, self._close_timeout_s)

    def _work(self) -> None:
        try:
            while (item := self._queue.get()) is not None:
                self._tracker.log(*item)
            self._tracker.close()
        except Exception as error:  # noqa: BLE001 (fault boundary: a tracker is other people's code)
            self._failed = True
            log.warning("tracker %s failed and is switched off: %s: %s", self.name, type(error).__name__, error)
