"""Trackers: further readers of a run's numbers. A slow, failing or absent one never holds up a step.

A tracker gets its numbers on a thread of its own through a bounded queue. What does not fit is dropped and counted, a
tracker that raises is switched off with a warning: the run folder has everything anyway. The trackers themselves (W&B
and the like) register here by name; the console is not one of them.
"""

from __future__ import annotations

import importlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from podium.config.schema import Config
from podium.errors import ConfigError
from podium.plugins import closest
from podium.tracking.runlog import Sample

log = logging.getLogger(__name__)


class Tracker(Protocol):
    """It may also have `samples(step, samples)` for tables of generations, `run_id` and `resume(run_id)`.

    Whatever may wait for a network belongs into `log`, `samples` and `close`, which run on the tracker's own thread.
    """

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


TrackerFactory = Callable[[Config], Tracker]
_FACTORIES: dict[str, TrackerFactory] = {}
BUILT_IN = {name: f"podium.tracking.{name}" for name in ("tensorboard", "wandb", "swanlab", "mlflow")}
"""Imported when asked for."""


def register_tracker(name: str) -> Callable[[TrackerFactory], TrackerFactory]:
    """Make a tracker available under a name of `trainer.logger`."""

    def add(factory: TrackerFactory) -> TrackerFactory:
        _FACTORIES[name] = factory
        return factory

    return add


def make_trackers(config: Config) -> list[BackgroundTracker]:
    """The trackers of `trainer.logger`, each in the background. The console and the run folder are made elsewhere."""
    trackers: list[BackgroundTracker] = []
    for name in config.trainer.logger:
        if str(name) == "console":
            continue
        if name not in _FACTORIES and name in BUILT_IN:
            importlib.import_module(BUILT_IN[name])  # registers itself
        if name not in _FACTORIES:
            known = ["console", *{**BUILT_IN, **_FACTORIES}]
            near = closest(name, known)
            hint = f"did you mean {near}?" if near else f"known are {', '.join(known)}"
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
        self._queue: queue.Queue[tuple[str, int, Any] | None] = queue.Queue(max_waiting)
        self._failed = False
        self._thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    @property
    def run_id(self) -> str | None:
        """Under which the tracker knows this run; saved with checkpoints."""
        run_id = getattr(self._tracker, "run_id", None)
        return None if run_id is None else str(run_id)

    def resume(self, run_id: str) -> None:
        """Go on with the run of that id, if the tracker can; before anything is logged."""
        if hasattr(self._tracker, "resume"):
            self._tracker.resume(run_id)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._put("log", step, dict(metrics))

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Show generations, if the tracker has a place for them."""
        if hasattr(self._tracker, "samples"):
            self._put("samples", step, list(samples))

    def _put(self, method: str, step: int, content: Any) -> None:
        if self._failed:
            return
        try:
            self._queue.put_nowait((method, step, content))
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
                method, step, content = item
                getattr(self._tracker, method)(step, content)
            self._tracker.close()
        except Exception as error:  # noqa: BLE001 (fault boundary: a tracker is other people's code)
            self._failed = True
            log.warning("tracker %s failed and is switched off: %s: %s", self.name, type(error).__name__, error)
