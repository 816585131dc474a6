"""The heartbeat: a dead rank is reported once, a busy one never."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from podium.errors import WorkerDied
from podium.single_controller.supervise import Heartbeat

LIMIT_S = 600.0


class Group:
    """A group whose ranks die when the test says so; `looks` counts how often it was asked."""

    role = "worker"

    def __init__(self) -> None:
        self.dead: list[int] = []
        self.failure: Exception | None = None
        self.looks = 0
        self.asked = threading.Condition()

    def dead_ranks(self) -> list[int]:
        with self.asked:
            self.looks += 1
            self.asked.notify_all()
        if self.failure is not None:
            raise self.failure
        return list(self.dead)

    def wait_for_looks(self, more: int) -> None:
        """Until so many further looks are begun: all but the last of them are over."""
        with self.asked:
            wanted = self.looks + more
            assert self.asked.wait_for(lambda: self.looks >= wanted, LIMIT_S)


@pytest.fixture
def group() -> Group:
    return Group()


def watch(group: Any, told: list[list[int]]) -> Heartbeat:
    return Heartbeat(group, 0.001, told.append)


def test_each_dead_rank_is_reported_once_and_one_that_is_busy_not(group: Group) -> None:
    told: list[list[int]] = []
    heartbeat = watch(group, told)
    try:
        group.wait_for_looks(3)
        assert told == [], "nobody is dead: those that answer late are busy"
        group.dead = [1]
        group.wait_for_looks(4)
        assert told == [[1]]
        group.dead = [1, 2]
        group.wait_for_looks(4)
        assert told == [[1], [2]]
    finally:
        heartbeat.stop()


def test_after_the_end_nothing_is_reported(group: Group) -> None:
    told: list[list[int]] = []
    heartbeat = watch(group, told)
    group.wait_for_looks(1)
    heartbeat.stop()
    looks, group.dead = group.looks, [0]
    assert not heartbeat._thread.is_alive() and group.looks == looks and told == []


def test_a_group_that_cannot_be_asked_ends_the_heartbeat_and_nothing_else(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    group.failure = WorkerDied("worker", 0, "ping", "gone")
    heartbeat = watch(group, [])
    heartbeat._thread.join(LIMIT_S)
    assert not heartbeat._thread.is_alive() and "the heartbeat of worker ended" in caplog.text
    heartbeat.stop()
