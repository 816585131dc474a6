"""A tracker gets every step it can take, and never holds up or breaks the run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

import pytest

from podium.config import Config
from podium.errors import ConfigError
from podium.tracking import make_trackers, register_tracker, trackers
from podium.tracking.trackers import BackgroundTracker


class Recording:
    def __init__(self) -> None:
        self.seen: list[tuple[int, dict[str, float]]] = []
        self.closed = False

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.seen.append((step, dict(metrics)))

    def close(self) -> None:
        self.closed = True


def test_every_step_arrives_in_order_and_close_waits_for_the_last() -> None:
    inner = Recording()
    tracker = BackgroundTracker("test", inner)
    for step in range(50):
        tracker.log(step, {"a": float(step)})
    tracker.close()
    assert inner.seen == [(step, {"a": float(step)}) for step in range(50)]
    assert inner.closed


def test_a_hanging_tracker_blocks_neither_steps_nor_the_end(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    class Hanging(Recording):
        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            release.wait(600)

    tracker = BackgroundTracker("slow", Hanging(), max_waiting=3, close_timeout_s=0.2)
    for step in range(100):
        tracker.log(step, {})
    tracker.close()
    assert not release.is_set() and tracker.dropped >= 96
    assert "did not finish" in caplog.text
    assert caplog.text.count("is slow") == 1
    release.set()


def test_a_failing_tracker_is_switched_off_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Recording):
        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            raise ConnectionError("no network")

    with caplog.at_level(logging.WARNING):
        tracker = BackgroundTracker("broken", Failing())
        for step in range(20):
            tracker.log(step, {})
        tracker.close()
    assert caplog.text.count("no network") == 1


def test_trackers_are_made_by_name_and_the_console_is_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "_FACTORIES", {})
    inner = Recording()
    register_tracker("recording")(lambda config: inner)
    config = Config()
    assert make_trackers(config) == []
    config.trainer.logger = ["console", "recording"]  # type: ignore[list-item]
    (made,) = make_trackers(config)
    made.log(1, {"a": 1.0})
    made.close()
    assert inner.seen == [(1, {"a": 1.0})]
    config.trainer.logger = ["recordign"]  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="did you mean recording"):
        make_trackers(config)
