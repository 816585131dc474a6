"""The scheduler alone, with a stand-in for the model that writes tokens as it likes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podium.engines.rollout.base import SamplingParams, StopReason
from podium.engines.rollout.native.blocks import BlockPool, BlockTables
from podium.engines.rollout.native.scheduler import Batch, Scheduler
from podium.engines.rollout.native.slots import Slots
from podium.engines.rollout.request import Request, Watched
from podium.engines.rollout.stopping import StopRules
from podium.errors import RolloutError

EOS = 0
WATCHED = Watched(lambda: None, lambda request: None)


def make_scheduler(
    num_slots: int = 16, num_blocks: int = 64, budget: int = 64, block_size: int = 4, window: int = 1
) -> Scheduler:
    rules = StopRules(vocab_size=10, eos_token_ids=(EOS,), tokenizer=None)
    tables = BlockTables(BlockPool(num_blocks, block_size), num_slots)
    return Scheduler(Slots(num_slots, rules), tables, budget, window)


def make_group(prompt_tokens: int, n: int = 1, max_tokens: int = 4) -> list[Request]:
    prompt = np.arange(prompt_tokens) % 9 + 1
    return [Request(WATCHED, prompt, SamplingParams(max_tokens=max_tokens), seed=0, sample=k) for k in range(n)]


def run(scheduler: Scheduler, token: int = 5) -> Batch:
    """One pass in which everybody writes `token`."""
    batch = scheduler.schedule(version=1)
    assert batch is not None and batch.num_tokens <= scheduler.max_num_batched_tokens
    commit(scheduler, batch, token)
    return batch


def commit(scheduler: Scheduler, batch: Batch, token: int = 5) -> list[Request]:
    zeros = np.zeros((batch.sampling_slots().size, batch.steps), np.float32)
    return scheduler.commit(batch, np.full(zeros.shape, token), zeros, zeros)


def test_samples_of_a_prompt_compute_it_once_and_share_its_pages() -> None:
    scheduler = make_scheduler()
    scheduler.waiting.append(make_group(prompt_tokens=10, n=6))
    batch = run(scheduler)
    assert batch.num_tokens == 10 and batch.sampling_slots().size == 6
    pool, tables = scheduler.tables.pool, scheduler.tables.table
    assert pool.num_blocks - pool.num_free == 3
    run(scheduler)
    assert len(np.unique(tables[:6, :2])) == 2, "full pages stay shared"
    assert len(np.unique(tables[:6, 2])) == 6, "each sample writes into a page of its own"
    assert pool.num_blocks - pool.num_free == 2 + 6


def test_prompts_join_while_others_decode() -> None:
    scheduler = make_scheduler()
    scheduler.waiting.append(make_group(3))
    run(scheduler)
    scheduler.waiting.append(make_group(5))
    batch = run(scheduler)
    assert batch.decode.size == 1 and [chunk.tokens.size for chunk in batch.chunks] == [5]


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    scheduler = make_scheduler(budget=16)
    scheduler.waiting.append(make_group(40, n=2))
    sizes = [[(c.start, c.end, c.samples.size) for c in run(scheduler).chunks] for _ in range(3)]
    assert sizes == [[(0, 16, 0)], [(16, 32, 0)], [(32, 40, 2)]]


def test_no_more_sequences_than_slots_run_at_once() -> None:
    scheduler = make_scheduler(num_slots=4)
    groups = [make_group(2, max_tokens=3) for _ in range(10)]
    scheduler.waiting.extend(list(group) for group in groups)
    while scheduler.has_work():
        assert run(scheduler).sampling_slots().size <= 4
    assert all(group[0].result().stop_reason is StopReason.LENGTH for group in groups)


def test_a_group_larger_than_the_slots_enters_in_parts() -> None:
    scheduler = make_scheduler(num_slots=16)
    group = make_group(3, n=40)
    scheduler.waiting.append(list(group))
    while scheduler.has_work():
        run(scheduler)
    assert [len(request.result().token_ids) for request in group] == [4] * 40


def test_the_youngest_gives_way_when_pages_run_out_and_comes_back() -> None:
    scheduler = make_scheduler(num_blocks=6, block_size=4)
    old, young = make_group(8, max_tokens=12), make_group(8, max_tokens=12)
    scheduler.waiting.extend([list(old), list(young)])
    while not old[0].done:
        run(scheduler)
    assert scheduler.num_preempted >= 1 and not young[0].done
    written = young[0].written
    assert written is not None and written.token_ids.size > 0
    while scheduler.has_work():
        run(scheduler)
    assert young[0].result().token_ids == [5] * 12


def test_a_request_that_can_never_fit_is_refused_with_the_arithmetic() -> None:
    scheduler = make_scheduler(num_blocks=5, block_size=4)
    scheduler.check_fits(10, SamplingParams(max_tokens=10))
    with pytest.raises(
        RolloutError, match=r"10 tokens with max_tokens=11 needs 6 KV pages of 4 tokens.* 5 \(20 tokens"
    ):
        scheduler.check_fits(10, SamplingParams(max_tokens=11))


def test_aborting_one_of_a_group_whose_prompt_is_under_way_leaves_the_others() -> None:
    scheduler = make_scheduler(budget=8)
    group = make_group(20, n=3)
    scheduler.waiting.append(list(group))
    run(scheduler)
    scheduler.abort(group[0], version=1)
    assert group[0].result().token_ids == [] and group[0].result().stop_reason is StopReason.ABORTED
    while scheduler.has_work():
        run(scheduler)
    assert [len(request.result().token_ids) for request in group] == [0, 4, 4]
    assert scheduler.tables.pool.num_free == scheduler.tables.pool.num_blocks


def test_a_window_gives_prompts_passes_of_their_own_and_decodes_several_tokens_in_one() -> None:
    scheduler = make_scheduler(window=8)
    scheduler.waiting.extend([make_group(5, max_tokens=20), make_group(3, max_tokens=4)])
    assert [(b.decode.size, len(b.chunks)) for b in [run(scheduler)]] == [(0, 2)]
    scheduler.waiting.append(make_group(7, max_tokens=20))
    assert [(b.decode.size, len(b.chunks)) for b in [run(scheduler)]] == [(0, 1)]
    batch = run(scheduler)
    assert batch.steps == 8 and sorted(batch.counts.tolist()) == [3, 8, 8], "nobody writes past its limit"
    lengths = scheduler.tables.lengths
    assert sorted(lengths[lengths > 0].tolist()) == [5 + 8, 7 + 8]


def test_the_next_pass_is_planned_before_the_last_ones_tokens_are_known() -> None:
    scheduler = make_scheduler(window=4)
    group = make_group(6, n=2, max_tokens=9)
    scheduler.waiting.append(list(group))
    passes = []
    while (batch := scheduler.schedule(version=1)) is not None:
        passes.append(batch)
    assert [(b.steps, b.first.tolist()) for b in passes] == [(1, [0, 0]), (4, [1, 1]), (4, [5, 5])]
    for batch in passes:
        commit(scheduler, batch)
    assert [request.result().token_ids for request in group] == [[5] * 9] * 2
    assert scheduler.tables.pool.num_free == scheduler.tables.pool.num_blocks


def test_what_was_planned_for_a_sequence_that_ended_is_dropped_even_if_its_slot_has_a_new_owner() -> None:
    scheduler = make_scheduler(num_slots=1, window=4)
    old, new = make_group(3, max_tokens=30), make_group(3, max_tokens=30)
    scheduler.waiting.append(list(old))
    run(scheduler)
    first, second = scheduler.schedule(1), scheduler.schedule(1)
    assert first is not None and second is not None
    assert commit(scheduler, first, token=EOS) == old and old[0].result().token_ids == [5, EOS]
    scheduler.waiting.append(list(new))
    run(scheduler)
    assert commit(scheduler, second, token=7) == []
    assert scheduler.slots.written(0).token_ids.tolist() == [5]


def test_scarce_pages_shorten_the_window_before_they_push_anyone_out() -> None:
    scheduler = make_scheduler(num_blocks=7, block_size=4, window=8)
    scheduler.waiting.extend([make_group(8, max_tokens=12), make_group(8, max_tokens=12)])
    run(scheduler)
    batch = scheduler.schedule(1, may_preempt=False)
    assert batch is not None and batch.steps == 4 and scheduler.num_preempted == 0
    commit(scheduler, batch)
    scheduler.tables.pool.allocate(scheduler.tables.pool.num_free)
    assert scheduler.schedule(1, may_preempt=False) is None, "passes under way must land before anyone is pushed out"


ACTIONS = st.one_of(
    st.tuples(st.just("submit"), st.integers(1, 20), st.integers(1, 5), st.integers(1, 12)),
    st.tuples(st.just("step"), st.integers(0, 9)),
    st.tuples(st.just("abort"), st.integers(0, 50)),
    st.tuples(st.just("preempt"), st.integers(0, 50)),
    st.tuples(st.just("publish")),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(ACTIONS, min_size=10, max_size=60), st.integers(8, 20), st.integers(6, 40), st.sampled_from([1, 3, 8]))
def test_every_request_ends_once_and_every_page_comes_back(
    actions: list[tuple[str | int, ...]], num_blocks: int, budget: int, window: int
) -> None:
    scheduler = make_scheduler(num_slots=6, num_blocks=num_blocks, budget=budget, window=window)
    requests: list[Request] = []
    for name, *numbers in actions:
        values = [int(number) for number in numbers]
        if name == "submit":
            tokens, n, max_tokens = values
            group = make_group(min(tokens, 4 * num_blocks - max_tokens), n, max_tokens)
            scheduler.check_fits(group[0].prompt.size, group[0].params)
            requests += group
            scheduler.waiting.append(list(group))
        elif name == "step" and scheduler.has_work():
            run(scheduler, token=values[0])
        elif name == "abort" and requests:
            target = requests[values[0] % len(requests)]
            was_done = target.done
            scheduler.abort(target, version=1)
            assert target.done
            assert was_done or target.result().stop_reason is StopReason.ABORTED
        elif name == "preempt" and scheduler.slots.state.any():
            running = np.flatnonzero(scheduler.slots.state)
            scheduler.preempt(int(running[values[0] % running.size]))
        elif name == "publish":
            scheduler.preempt_all()
            assert scheduler.tables.pool.num_free == num_blocks
    for _ in range(2000):
        if not scheduler.has_work():
            break
        run(scheduler)
    assert all(request.done for request in requests)
    assert scheduler.tables.pool.num_free == num_blocks
    assert not scheduler.tables.pool.ref_counts.any()
    for request in requests:
        completion = request.result()
        ended = completion.stop_reason
        assert (ended is StopReason.EOS) == (completion.token_ids[-1:] == [EOS])
        assert (ended is not StopReason.LENGTH) or len(completion.token_ids) == request.params.max_tokens
