"""What a worker raises reaches the controller in words, whatever its type."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from podium.single_controller.ray_calls import _outcome
from podium.single_controller.ray_process import Failure, WorkerProcess
from podium.single_controller.worker import Worker


class NotAnException(BaseException):
    """Like torch's CheckpointException."""


class Failing(Worker):
    def fail(self, error: BaseException) -> None:
        raise error


def process() -> WorkerProcess:
    made = WorkerProcess.__new__(WorkerProcess)
    made._worker = Failing()
    return made


def test_an_error_that_is_not_an_exception_comes_back_as_a_failure() -> None:
    failure = process().invoke(None, "fail", 1, (), NotAnException("no space"))
    assert isinstance(failure, Failure) and failure.cause == "NotAnException: no space"
    assert "NotAnException" in failure.traceback


def test_what_ends_a_process_ends_it() -> None:
    with pytest.raises(SystemExit):
        process().invoke(None, "fail", 1, (), SystemExit(3))


@pytest.mark.parametrize("cause", [NotAnException("no space"), ValueError("no space")])
def test_an_error_that_ray_carries_is_shown_with_its_own_name(
    monkeypatch: pytest.MonkeyPatch, cause: BaseException
) -> None:
    error = ray.exceptions.RayTaskError("f", "Traceback of the worker", cause, "worker", 1, "127.0.0.1")

    def get(ref: Any) -> None:
        raise error.as_instanceof_cause()

    monkeypatch.setattr(ray, "get", get)
    ref: Any = None
    failure = _outcome(ref)
    assert isinstance(failure, Failure) and failure.cause == f"{type(cause).__name__}: no space"
    assert "of the worker" in failure.traceback or "127.0.0.1" in failure.traceback
