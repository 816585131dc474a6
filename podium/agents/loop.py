"""An event loop in a thread of its own: episodes run there, whatever thread asks for them.

A worker's methods are plain functions, called from a main thread, a Ray actor or a notebook that has a loop already.
What episodes share (connections, sessions) belongs to this one loop and lives as long as it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from podium.stop_points import result_of

T = TypeVar("T")
GRACE_S = 5.0


class LoopThread:
    def __init__(self, name: str = "podium-episodes") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Wait for a coroutine; one whose waiting is left is cancelled."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return result_of(future, timeout_s)
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancel what is under way and end the thread; safe to call twice."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(timeout=GRACE_S)
        if not self._thread.is_alive():
            self._loop.close()

    def _stop(self) -> None:
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        gathered = asyncio.gather(*tasks, return_exceptions=True)
        gathered.add_done_callback(lambda _: self._loop.stop())
