"""The native engine for many askers at once: submit, watch a response grow, abort when the asker is gone.

The engine steps in a thread for as long as anybody waits (rollout/front.py); here are only coroutines.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from podium.engines.rollout.base import Completion, SamplingParams
from podium.engines.rollout.native.engine import NativeEngine
from podium.engines.rollout.request import Request

LOOK_S = 0.02


@dataclass(frozen=True)
class Growth:
    """A response as far as it is written."""

    token_ids: list[int]
    log_probs: list[float]
    """The model's own, before temperature and filters."""
    completion: Completion | None
    """Set when it has ended."""


class Generator:
    """What the routes ask of the engine."""

    def __init__(self, engine: NativeEngine, tokenizer: Any, model_name: str) -> None:
        self.engine, self.tokenizer, self.model_name = engine, tokenizer, model_name
        self.seeds = 0
        self.running: dict[str, list[Request]] = {}
        """Requests under way by the name their asker gave them."""

    def next_seed(self) -> int:
        self.seeds += 1
        return self.seeds

    def submit(self, prompt: list[int], params: SamplingParams, n: int, seed: int) -> list[Request]:
        return self.engine.submit_group(prompt, params, n, seed)

    async def all(self, requests: list[Request]) -> list[Completion]:
        """Wait for every one; a caller that is cancelled takes its requests with it."""
        return list(await asyncio.gather(*requests))

    async def watch(self, request: Request) -> AsyncIterator[Growth]:
        """A response whenever it has grown, at last with its completion. Leaving early aborts it."""
        waiting = asyncio.ensure_future(_result(request))
        seen = 0
        try:
            while not waiting.done():
                await asyncio.wait([waiting], timeout=LOOK_S)
                if not waiting.done():
                    token_ids, log_probs = self._so_far(request)
                    if len(token_ids) > seen:
                        seen = len(token_ids)
                        yield Growth(token_ids, log_probs, None)
            done = waiting.result()
            yield Growth(done.token_ids, done.raw_log_probs, done)
        finally:
            if not request.done:
                waiting.cancel()
                self.engine.abort(request)

    def _so_far(self, request: Request) -> tuple[list[int], list[float]]:
        """Read beside the stepping thread: it writes tokens before it counts them."""
        slots = self.engine.scheduler.slots
        for slot, holder in enumerate(slots.requests):
            if holder is request:
                written = slots.written(slot)
                if slots.requests[slot] is request:
                    return written.token_ids.tolist(), written.raw_log_probs.tolist()
        return [], []


async def _result(request: Request) -> Completion:
    return await request
