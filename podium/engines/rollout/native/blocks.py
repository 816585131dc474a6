"""Who owns which KV page: block tables over reference-counted pages.

Accounting only: no tensor is touched here. A page (block) holds the KV of `block_size` tokens of one sequence. The
samples of a prompt share its pages; a shared page is copied when one of its owners is about to write into it, and
`reserve` says which page to copy where. Whether a new sequence may enter at all is the scheduler's decision.
"""

from __future__ import annotations

from typing import Any

import numpy as np

IntArray = np.ndarray[Any, np.dtype[np.int64]]


class BlockPool:
    """A fixed number of pages, each with the number of tables it is in. The page freed last is used first."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        assert num_blocks > 0 and block_size > 0
        self.num_blocks, self.block_size = num_blocks, block_size
        self.ref_counts = np.zeros(num_blocks, dtype=np.int64)
        self.num_free = num_blocks
        self._free = np.arange(num_blocks - 1, -1, -1, dtype=np.int64)  # a stack: [0, num_free) is free

    def allocate(self, count: int) -> IntArray:
        assert 0 <= count <= self.num_free, f"{count} pages asked for, {self.num_free} free"
        self.num_free -= count
        blocks = self._free[self.num_free : self.num_free + count][::-1].copy()
        self.ref_counts[blocks] = 1
        return blocks

    def share(self, blocks: IntArray, times: int) -> None:
        """`times` more tables hold these (distinct) pages."""
        assert (self.ref_counts[blocks] > 0).all(), "a free page cannot be shared"
        self.ref_counts[blocks] += times

    def release(self, blocks: IntArray) -> None:
        """One table less for each page in the list; a page may be listed once per table."""
        np.subtract.at(self.ref_counts, blocks, 1)
        left = self.ref_counts[blocks]
        assert (left >= 0).all(), "a page was released more often than it was taken"
        freed = blocks[left == 0]
        if freed.size > 1:
            freed = np.unique(freed)
        self._free[self.num_free : self.num_free + freed.size] = freed[::-1]
        self.num_free += freed.size


class BlockTables:
    """The pages of each slot, and how many tokens they hold. A slot is one running sequence."""

    def __init__(self, pool: BlockPool, num_slots: int) -> None:
        self.pool = pool
        self.lengths = np.zeros(num_slots, dtype=np.int64)
        self.num_blocks = np.zeros(num_slots, dtype=np.int64)
        self.table = np.zeros((num_slots, 8), dtype=np.int64)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.pool.block_size)

    def blocks_to_append(self, slots: IntArray, counts: IntArray | int = 1) -> int:
        """Fresh pages needed so that each slot can take `counts` more tokens (with copies of shared pages, at most)."""
        full = self.lengths[slots] == self.num_blocks[slots] * self.pool.block_size
        return int(self._missing(slots, counts).sum()) + self._shared_tails(slots[~full]).size

    def append(self, slots: IntArray, counts: IntArray | int = 1) -> tuple[IntArray, IntArray]:
        """Make room for `counts` (at least 1) more tokens in each slot; pages to copy before the first is written, as
        (sources, destinations)."""
        full = self.lengths[slots] == self.num_blocks[slots] * self.pool.block_size
        copies = self._copy_shared(self._shared_tails(slots[~full]))
        missing = self._missing(slots, counts)
        while (growing := slots[missing > 0]).size:
            column = self.num_blocks[growing]
            self._widen(int(column.max()) + 1)
            self.table[growing, column] = self.pool.allocate(growing.size)
            self.num_blocks[growing] += 1
            missing -= 1
        self.lengths[slots] += counts
        return copies

    def _missing(self, slots: IntArray, counts: IntArray | int) -> IntArray:
        """Pages short of `counts` more tokens, for each slot."""
        size = self.pool.block_size
        short: IntArray = -(-(self.lengths[slots] + counts) // size) - self.num_blocks[slots]
        return short

    def extend(self, slot: int, num_tokens: int) -> None:
        """Make room for `num_tokens` more in a slot that shares no page."""
        have = int(self.num_blocks[slot])
        need = self.blocks_for(int(self.lengths[slot]) + num_tokens)
        if need > have:
            self._widen(need)
            self.table[slot, have:need] = self.pool.allocate(need - have)
            self.num_blocks[slot] = need
        self.lengths[slot] += num_tokens

    def fork(self, parent: int, children: IntArray) -> None:
        """Children start with everything the parent holds, in the same pages."""
        assert (self.num_blocks[children] == 0).all(), "only an empty slot can become a child"
        count = int(self.num_blocks[parent])
        self.pool.share(self.table[parent, :count], children.size)
        self.table[children, :count] = self.table[parent, :count]
        self.num_blocks[children] = count
        self.lengths[children] = self.lengths[parent]

    def detach(self, slot: int, num_tokens: int) -> tuple[IntArray, int]:
        """Take the pages that hold the first `num_tokens` out of a slot and empty it; a last page with room that others
        share stays behind. The pages, and how many tokens they hold."""
        size, count = self.pool.block_size, self.blocks_for(num_tokens)
        held = self.table[slot, : int(self.num_blocks[slot])].copy()
        if num_tokens % size and self.pool.ref_counts[held[count - 1]] > 1:
            count, num_tokens = count - 1, num_tokens - num_tokens % size
        self.pool.release(held[count:])
        self.num_blocks[slot] = self.lengths[slot] = 0
        return held[:count], num_tokens

    def attach(self, slot: int, pages: IntArray, num_tokens: int) -> None:
        """Give an empty slot the pages that `detach` took."""
        assert self.num_blocks[slot] == 0, "only an empty slot can take pages over"
        self._widen(pages.size)
        self.table[slot, : pages.size] = pages
        self.num_blocks[slot], self.lengths[slot] = pages.size, num_tokens

    def free(self, slots: IntArray) -> None:
        counts = self.num_blocks[slots]
        width = int(counts.max(initial=0))
        held = np.arange(width) < counts[:, None]
        self.pool.release(self.table[slots, :width][held])
        self.num_blocks[slots] = 0
        self.lengths[slots] = 0

    def _shared_tails(self, slots: IntArray) -> IntArray:
        """Of slots whose last page has room: those that share it."""
        return slots[self.pool.ref_counts[self.table[slots, self.num_blocks[slots] - 1]] > 1]

    def _copy_shared(self, slots: IntArray) -> tuple[IntArray, IntArray]:
        """Give each slot a last page of its own; the last sharer keeps the original."""
        sources, destinations = [], []
        for slot in slots.tolist():
            column = self.num_blocks[slot] - 1
            block = self.table[slot, column]
            if self.pool.ref_counts[block] == 1:
                continue
            self.pool.ref_counts[block] -= 1
            self.table[slot, column] = self.pool.allocate(1)[0]
            sources.append(block)
            destinations.append(self.table[slot, column])
        return np.array(sources, dtype=np.int64), np.array(destinations, dtype=np.int64)

    def _widen(self, columns: int) -> None:
        width = self.table.shape[1]
        if columns > width:
            extra = max(columns, 2 * width) - width
            self.table = np.pad(self.table, ((0, 0), (0, extra)))
