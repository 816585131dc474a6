"""Futures: what a `blocking=False` call returns.

A future can be waited for (`get`), asked (`done`) and handed on as an argument of another call; the group that receives
it takes its value first. It does not run callbacks and cannot be cancelled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class WorkerFuture(ABC, Generic[T]):
    """A result that workers are still busy with."""

    @abstractmethod
    def get(self, timeout: float | None = None, beside: WorkerFuture[Any] | None = None) -> T:
        """The result. Waits `timeout` seconds at most, by default as long as the group lets a call take.

        `beside` is a call that this one cannot end without: when it fails, that is raised, and nobody waits on.
        """

    @abstractmethod
    def done(self) -> bool:
        """Whether `get` would return (or raise) without waiting."""

    def then(self, function: Callable[[T], U]) -> WorkerFuture[U]:
        """A future of `function(result)`. The function runs once, in the process that calls `get`."""
        return _MappedFuture(self, function)


class CompletedFuture(WorkerFuture[T]):
    """A result that is already there."""

    def __init__(self, value: T) -> None:
        self._value = value

    def get(self, timeout: float | None = None, beside: WorkerFuture[Any] | None = None) -> T:
        return self._value

    def done(self) -> bool:
        return True

    def then(self, function: Callable[[T], U]) -> WorkerFuture[U]:
        return CompletedFuture(function(self._value))


class _MappedFuture(WorkerFuture[U], Generic[T, U]):
    def __init__(self, source: WorkerFuture[T], function: Callable[[T], U]) -> None:
        self._source: WorkerFuture[T] | None = source
        self._function = function
        self._value: list[U] = []  # empty until known, so that None can be a result

    def get(self, timeout: float | None = None, beside: WorkerFuture[Any] | None = None) -> U:
        if self._source is not None:
            self._value.append(self._function(self._source.get(timeout, beside)))
            self._source = None  # frees what the workers sent
        return self._value[0]

    def done(self) -> bool:
        return self._source is None or self._source.done()


def resolve(value: Any) -> Any:
    """A future's result; any other value as it is."""
    return value.get() if isinstance(value, WorkerFuture) else value
