"""Queries of many callers in few calls: whoever waits at the moment goes along.

While a call is under way further queries gather, and leave together as the next one. A few calls may be under way at
once, so that a slow one holds up only the queries in it. Used on both ends: by a server over its index, and by a client
over its server.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")
Call = Callable[[list[str]], Awaitable[list[T]]]
"""One answer per query, in order."""


class Batcher(Generic[T]):
    def __init__(self, call: Call[T], max_batch: int = 64, max_calls: int = 4) -> None:
        self._call, self._max_batch, self._max_calls = call, max_batch, max_calls
        self._waiting: deque[tuple[str, asyncio.Future[T]]] = deque()
        self._calls: set[asyncio.Task[None]] = set()
        self._is_due = False

    async def ask(self, query: str) -> T:
        """The answer to one query."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._waiting.append((query, answer))
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._send)  # whoever is ready in this round of the loop comes along
        return await answer

    async def close(self) -> None:
        """Let go of whoever still waits."""
        for call in list(self._calls):
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        for _, answer in self._waiting:
            answer.cancel()
        self._waiting.clear()

    def _send(self) -> None:
        self._is_due = False
        while self._waiting and len(self._calls) < self._max_calls:
            batch = [self._waiting.popleft() for _ in range(min(self._max_batch, len(self._waiting)))]
            batch = [(query, answer) for query, answer in batch if not answer.done()]
            if not batch:
                continue
            call = asyncio.get_running_loop().create_task(self._run(batch))
            self._calls.add(call)
            call.add_done_callback(self._done)

    def _done(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._send()

    async def _run(self, batch: list[tuple[str, asyncio.Future[T]]]) -> None:
        try:
            answers = await self._call([query for query, _ in batch])
            assert len(answers) == len(batch), "one answer per query"
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001 (fault boundary: told to everybody in the batch)
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
