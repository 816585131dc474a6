"""ResumableSampler: epochs, batches and exact resume."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podium.data.sampler import ResumableSampler, permutation
from podium.errors import ConfigError, DataError


@given(size=st.integers(1, 60), batch_size=st.integers(1, 60), seed=st.integers(0, 2**63), taken=st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_a_resumed_sampler_gives_the_batches_the_unbroken_one_gives(size, batch_size, seed, taken):
    if batch_size > size:
        return
    unbroken = ResumableSampler(size, batch_size, seed)
    for _ in range(taken):
        unbroken.next_batch()
    resumed = ResumableSampler(size, batch_size, seed=0)
    resumed.load_state_dict(unbroken.state_dict())
    assert [resumed.next_batch() for _ in range(15)] == [unbroken.next_batch() for _ in range(15)]


@given(size=st.integers(1, 60), batch_size=st.integers(1, 60), seed=st.integers(-5, 5))
@settings(max_examples=60, deadline=None)
def test_an_epoch_shows_every_row_at_most_once_and_drops_only_the_last_partial_batch(size, batch_size, seed):
    if batch_size > size:
        return
    sampler = ResumableSampler(size, batch_size, seed)
    for epoch in range(3):
        assert sampler.epoch == epoch
        batches = list(sampler)
        rows = [row for batch in batches for row in batch]
        assert len(batches) == len(sampler) and all(len(batch) == batch_size for batch in batches)
        assert len(set(rows)) == len(rows) == size - sampler.num_dropped
        assert set(rows) <= set(range(size))


def test_resume_in_the_middle_of_an_epoch_goes_on_with_the_rest_of_it():
    unbroken = ResumableSampler(10, 3, seed=1)
    expected = list(unbroken)
    started = ResumableSampler(10, 3, seed=1)
    first = started.next_batch()
    resumed = ResumableSampler(10, 3)
    resumed.load_state_dict(started.state_dict())
    assert [first, *resumed] == expected
    assert resumed.state_dict() == unbroken.state_dict() == {"seed": 1, "epoch": 1, "cursor": 0}


def test_the_order_depends_on_seed_and_epoch():
    orders = {tuple(permutation(50, seed, epoch)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


def test_the_order_is_pinned_so_that_old_runs_resume_after_an_upgrade():
    assert permutation(8, seed=1, epoch=0).tolist() == [2, 7, 1, 3, 0, 6, 4, 5]


def test_every_row_comes_first_equally_often():
    firsts = [int(permutation(10, seed=0, epoch=epoch)[0]) for epoch in range(5000)]
    assert all(400 < firsts.count(row) < 600 for row in range(10))


def test_without_shuffling_rows_come_in_order():
    sampler = ResumableSampler(7, 3, shuffle=False)
    assert [sampler.next_batch() for _ in range(3)] == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]
    assert sampler.epoch == 1


def test_fewer_rows_than_a_batch_is_an_error():
    with pytest.raises(ConfigError, match="5 rows do not fill one batch of 8"):
        ResumableSampler(5, 8)
    with pytest.raises(ConfigError, match="at least 1"):
        ResumableSampler(5, 0)


def test_a_state_of_larger_data_is_refused():
    with pytest.raises(DataError, match="does not fit 5 rows"):
        ResumableSampler(5, 1).load_state_dict({"seed": 0, "epoch": 0, "cursor": 6})
