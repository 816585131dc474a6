"""What changed, as server-sent events: one watcher looks at the sizes and times of files, every subscriber is told.

It looks only while somebody listens. A subscriber that does not keep up misses nothing that matters: messages carry the
newest summary of a run, and a full queue is replaced by one word to fetch everything again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.concurrency import run_in_threadpool

from podium.dashboard.runs import RunStore

POLL_S = 0.4
STATUS_POLLS = 12
"""A run that falls silent changes its status and no file: every so many looks, all that still run are told."""
HEARTBEAT_S = 15.0
MAX_WAITING = 100

Message = tuple[str, Any]


class Watcher:
    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._queues: set[asyncio.Queue[Message]] = set()
        self._seen: dict[str, dict[str, str]] = {}
        self._statuses: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._task = asyncio.create_task(self._watch(), name="dashboard-watcher")
        try:
            yield
        finally:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def subscribe(self) -> AsyncIterator[str]:
        """Messages in the form of server-sent events, for as long as the browser stays."""
        queue: asyncio.Queue[Message] = asyncio.Queue(MAX_WAITING)
        self._queues.add(queue)
        try:
            yield "retry: 1000\nevent: hello\ndata: {}\n\n"
            while True:
                try:
                    kind, data = await asyncio.wait_for(queue.get(), HEARTBEAT_S)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                yield f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
        finally:
            self._queues.discard(queue)

    async def _watch(self) -> None:
        looks = 0
        while True:
            await asyncio.sleep(POLL_S)
            if not self._queues:
                self._seen.clear()
                continue
            looks += 1
            changed, gone = await run_in_threadpool(self._look, looks % STATUS_POLLS == 0)
            if changed or gone:
                self._tell(("runs", {"changed": changed, "gone": gone}))

    def _look(self, with_statuses: bool) -> tuple[list[dict[str, Any]], list[str]]:
        """Summaries of runs whose files changed since the last look, and the ids of runs that are gone."""
        found = {run.name: run for run in self._store.runs()}
        versions = {name: word for name, run in found.items() if (word := run.versions())}
        runs = {name: found[name] for name in versions}  # a run without a file was moved away
        gone = [name for name in self._seen if name not in runs]
        due = {name for name in runs if versions[name] != self._seen.get(name)}
        if with_statuses:
            due |= {name for name in runs if self._statuses.get(name, "running") == "running"}
        self._seen = versions
        summaries = [runs[name].summary() for name in sorted(due)]
        self._statuses |= {summary["id"]: summary["status"] for summary in summaries}
        return summaries, gone

    def _tell(self, message: Message) -> None:
        for queue in self._queues:
            if not queue.full():
                queue.put_nowait(message)
                continue
            while not queue.empty():
                queue.get_nowait()
            queue.put_nowait(("resync", {}))
