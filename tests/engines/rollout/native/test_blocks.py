from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from podium.engines.rollout.native.blocks import BlockPool, BlockTables

NUM_BLOCKS, BLOCK_SIZE, NUM_SLOTS = 24, 4, 6


def make_tables(num_blocks: int = NUM_BLOCKS) -> BlockTables:
    return BlockTables(BlockPool(num_blocks, BLOCK_SIZE), NUM_SLOTS)


def blocks_of(tables: BlockTables, slot: int) -> list[int]:
    return tables.table[slot, : tables.num_blocks[slot]].tolist()


def test_children_share_every_page_of_the_parent() -> None:
    tables = make_tables()
    tables.extend(0, 10)
    tables.fork(0, np.array([1, 2]))
    assert blocks_of(tables, 1) == blocks_of(tables, 2) == blocks_of(tables, 0)
    assert tables.pool.num_free == NUM_BLOCKS - 3


def test_a_partial_page_is_copied_when_its_sharers_write_and_the_last_one_keeps_it() -> None:
    tables = make_tables()
    tables.extend(0, 10)
    tables.fork(0, np.array([1, 2]))
    shared = blocks_of(tables, 0)
    sources, destinations = tables.append(np.array([0, 1, 2]))
    assert sources.tolist() == [shared[2]] * 2
    lasts = [blocks_of(tables, slot)[2] for slot in range(3)]
    assert sorted(lasts) == sorted([shared[2], *destinations.tolist()])
    assert all(blocks_of(tables, slot)[:2] == shared[:2] for slot in range(3))
    assert tables.append(np.array([0, 1, 2]))[0].size == 0, "nobody shares a partial page any more"


def test_full_pages_are_never_copied() -> None:
    tables = make_tables()
    tables.extend(0, 8)
    tables.fork(0, np.array([1]))
    assert tables.append(np.array([0, 1]))[0].size == 0
    assert tables.pool.num_free == NUM_BLOCKS - 4


def test_a_lone_writer_leaves_the_page_to_a_sharer_that_rests() -> None:
    tables = make_tables()
    tables.extend(0, 2)
    tables.fork(0, np.array([1]))
    before = blocks_of(tables, 1)
    sources, _ = tables.append(np.array([0]))
    assert sources.tolist() == before
    assert blocks_of(tables, 1) == before != blocks_of(tables, 0)


def test_releasing_a_free_page_is_caught() -> None:
    pool = BlockPool(4, BLOCK_SIZE)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(AssertionError, match="released"):
        pool.release(blocks)


class RandomTables(RuleBasedStateMachine):
    """Submit, fork, append, and finish (or abort, or preempt: all free a slot) in any order, with contents followed."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = make_tables()
        self.written: dict[int, list[int]] = {}  # slot -> a stamp for each of its tokens
        self.memory: dict[tuple[int, int], int] = {}  # (page, offset) -> stamp
        self.stamp = 0

    def free_slots(self) -> list[int]:
        return [slot for slot in range(NUM_SLOTS) if slot not in self.written]

    def write(self, slot: int) -> None:
        self.stamp += 1
        place = len(self.written[slot])
        self.written[slot].append(self.stamp)
        self.memory[blocks_of(self.tables, slot)[place // BLOCK_SIZE], place % BLOCK_SIZE] = self.stamp

    @precondition(lambda self: self.free_slots())
    @rule(tokens=st.integers(1, 14))
    def submit(self, tokens: int) -> None:
        if self.tables.blocks_for(tokens) <= self.tables.pool.num_free:
            slot = self.free_slots()[0]
            self.tables.extend(slot, tokens)
            self.written[slot] = []
            for _ in range(tokens):
                self.write(slot)

    @precondition(lambda self: self.written and self.free_slots())
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(sorted(self.written)))
        children = self.free_slots()[: data.draw(st.integers(1, 3))]
        self.tables.fork(parent, np.array(children))
        for child in children:
            self.written[child] = list(self.written[parent])

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        slots = np.array(sorted(data.draw(st.sets(st.sampled_from(sorted(self.written)), min_size=1))))
        need, free = self.tables.blocks_to_append(slots), self.tables.pool.num_free
        if need > free:
            return
        sources, destinations = self.tables.append(slots)
        assert free - self.tables.pool.num_free <= need
        assert not set(destinations.tolist()) & set(sources.tolist())
        copied = {
            (target, offset): self.memory[source, offset]
            for source, target in zip(sources.tolist(), destinations.tolist(), strict=True)
            for offset in range(BLOCK_SIZE)
            if (source, offset) in self.memory
        }
        self.memory |= copied
        for slot in slots.tolist():
            self.write(slot)

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        slots = sorted(data.draw(st.sets(st.sampled_from(sorted(self.written)), min_size=1)))
        self.tables.free(np.array(slots))
        for slot in slots:
            del self.written[slot]

    @invariant()
    def every_page_is_counted_once_per_table(self) -> None:
        counts = np.zeros(NUM_BLOCKS, dtype=np.int64)
        for slot in self.written:
            np.add.at(counts, blocks_of(self.tables, slot), 1)
        pool = self.tables.pool
        assert (counts == pool.ref_counts).all()
        assert pool.num_free == (counts == 0).sum()
        assert sorted(pool._free[: pool.num_free].tolist()) == np.flatnonzero(counts == 0).tolist()

    @invariant()
    def every_sequence_still_reads_what_it_wrote(self) -> None:
        for slot, stamps in self.written.items():
            assert self.tables.lengths[slot] == len(stamps)
            pages = blocks_of(self.tables, slot)
            read = [self.memory[pages[i // BLOCK_SIZE], i % BLOCK_SIZE] for i in range(len(stamps))]
            assert read == stamps


TestRandomTables = RandomTables.TestCase
TestRandomTables.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
