"""One requested sample: what was asked, what has been written so far, and the handle to wait on.

A request can be awaited from any event loop while the engine steps in another thread. How it is scheduled is the
engine's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from podium.engines.rollout.base import Completion, SamplingParams, StopReason

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Written:
    """What a request that is not running has written so far."""

    token_ids: Array  # [written] int64
    log_probs: Array  # [written] float32
    raw_log_probs: Array  # [written] float32
    version: int

    @staticmethod
    def nothing(version: int) -> Written:
        return Written(np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(0, np.float32), version)

    def completion(self, stop_reason: StopReason) -> Completion:
        return Completion(
            self.token_ids.tolist(),
            self.log_probs.tolist(),
            self.raw_log_probs.tolist(),
            stop_reason,
            self.version,
        )


class Request:
    """Sample number `sample` of a prompt. `await request` gives its Completion; cancelling the await aborts it."""

    __slots__ = (
        *("_engine", "_error", "_watchers", "completion", "images", "is_continued", "params", "previous", "prompt"),
        *("sample", "seed", "written"),
    )

    def __init__(self, engine: Watched, prompt: Array, params: SamplingParams, seed: int, sample: int) -> None:
        self.prompt, self.params, self.seed, self.sample = prompt, params, seed, sample
        self.written: Written | None = None
        self.completion: Completion | None = None
        self.images: Any = None
        """What stands at the image tokens of the prompt."""
        self.is_continued = False
        """Whether another turn may follow, so that what was computed is worth keeping."""
        self.previous: Request | None = None
        """The turn before this one, of the same episode."""
        self._error: BaseException | None = None
        self._engine = engine
        self._watchers: list[asyncio.Future[None]] = []

    @property
    def done(self) -> bool:
        return self.completion is not None or self._error is not None

    def result(self) -> Completion:
        """The completion; raises what ended the request if that was an error."""
        if self._error is not None:
            raise self._error
        assert self.completion is not None, "the request is still running"
        return self.completion

    def finish(self, completion: Completion) -> None:
        self.completion = completion
        self._wake_watchers()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._wake_watchers()

    def __await__(self) -> Generator[Any, None, Completion]:
        return self._wait().__await__()

    async def _wait(self) -> Completion:
        if not self.done:
            watcher = asyncio.get_running_loop().create_future()
            self._watchers.append(watcher)
            # the engine may have finished between the test and the append: it sets the result first, then looks here
            if not self.done:
                self._engine.ensure_driven()
                try:
                    await watcher
                except asyncio.CancelledError:
                    if not self.done:
                        self._engine.abort(self)
                    raise
        return self.result()

    def _wake_watchers(self) -> None:
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            loop = watcher.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_wake, watcher)


@dataclass(frozen=True)
class Watched:
    """What a request needs of its engine."""

    ensure_driven: Callable[[], None]
    abort: Callable[[Request], None]


def _wake(watcher: asyncio.Future[None]) -> None:
    if not watcher.done():
        watcher.set_result(None)
