"""Pages of an episode between two of its turns.

When a request that is to be continued ends, its pages are kept here instead of freed; the next turn, whose prompt
begins with all that was computed, takes them over and computes the rest. Kept pages are the first to go when others
need room: the next turn is then computed from its beginning, with the same result. Accounting only, as in blocks.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from podium.engines.rollout.native.blocks import BlockTables, IntArray
from podium.engines.rollout.request import Array, Request


@dataclass(frozen=True)
class _Kept:
    pages: IntArray
    tokens: Array
    """What the pages hold."""


class HeldPages:
    def __init__(self, tables: BlockTables) -> None:
        self.tables = tables
        self._kept: dict[Request, _Kept] = {}  # the oldest first
        self.fewest_tokens = 0
        """What is not worth keeping: shorter sequences are sooner computed again than continued one by one."""
        self.num_reused = 0
        """Prompt tokens that did not have to be computed again."""

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, request: Request, slot: int, written: Array) -> None:
        """Take the pages of a slot whose request has written `written`; the last token was never read by the model."""
        tokens = np.concatenate([request.prompt, written])[:-1]
        if tokens.size < self.fewest_tokens:
            return
        pages, num_tokens = self.tables.detach(slot, tokens.size)
        self._kept[request] = _Kept(pages, tokens[:num_tokens])

    def give(self, request: Request | None, slot: int, prompt: Array) -> int:
        """Put a request's pages into an empty slot; how many tokens of `prompt` they hold."""
        kept = self._kept.pop(request, None) if request is not None else None
        if kept is None:
            return 0
        if kept.tokens.size >= prompt.size or not np.array_equal(kept.tokens, prompt[: kept.tokens.size]):
            self.tables.pool.release(kept.pages)
            return 0
        self.tables.attach(slot, kept.pages, kept.tokens.size)
        self.num_reused += kept.tokens.size
        return int(kept.tokens.size)

    def release(self, request: Request) -> None:
        """Nobody will go on from this request."""
        if (kept := self._kept.pop(request, None)) is not None:
            self.tables.pool.release(kept.pages)

    def make_room(self, num_pages: int, spared: Request | None = None) -> None:
        """Give up kept pages, the oldest first, until so many are free or none is left."""
        if self.tables.pool.num_free >= num_pages:
            return
        for request in [kept for kept in self._kept if kept is not spared]:
            self.release(request)
            if self.tables.pool.num_free >= num_pages:
                return

    def release_all(self) -> None:
        for request in list(self._kept):
            self.release(request)
