"""Places where a run that was told to stop may be left: long waits call `stop_point`, the trainer answers.

A signal comes anywhere: inside a lock, between the start of a thread and its registration. An exception raised there
leaves the lock held or the thread forgotten, and the process may never end. So the handler only takes a note, and the
note is acted upon here: between two tokens, two looks at a worker, two calls. In other threads and in processes without
a trainer a stop point does nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
LOOK_S = 0.2

_asked: list[Callable[[], None]] = []


def stop_point() -> None:
    """Raises here what the trainer of this process wants raised, if it was told to stop."""
    if _asked and threading.current_thread() is threading.main_thread():
        _asked[-1]()


def on_stop_point(ask: Callable[[], None]) -> None:
    """From now on stop points call `ask`, until `off_stop_point`; the newest one wins."""
    _asked.append(ask)


def off_stop_point(ask: Callable[[], None]) -> None:
    _asked.remove(ask)


def result_of(future: Future[T], timeout_s: float | None = None) -> T:
    """`future.result(timeout_s)` that can be left."""
    left_s = float("inf") if timeout_s is None else timeout_s
    while not future.done() and left_s > 0:
        stop_point()
        look_s = min(LOOK_S, left_s)
        try:
            return future.result(look_s)
        except TimeoutError:  # ours, or the work's own: then the future is done
            left_s -= look_s
    return future.result(0)
