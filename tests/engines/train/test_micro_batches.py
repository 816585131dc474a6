"""Micro-batches hold every row once, keep to their limits, and are as many as asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podium.engines.train.micro_batches import MicroBatchLimits, cut_into_micro_batches, stretch_to
from podium.errors import ConfigError


def cost(length: int) -> float:
    return 100.0 * length + length * length


def costs_of(lengths: list[int]) -> list[float]:
    return [cost(length) for length in lengths]


def rows_of(parts: list[list[int]]) -> list[int]:
    return sorted(row for part in parts for row in part)


@given(lengths=st.lists(st.integers(0, 50), max_size=40), budget=st.integers(1, 200))
def test_a_token_budget_is_kept_except_by_a_row_that_exceeds_it_alone(lengths: list[int], budget: int) -> None:
    parts = cut_into_micro_batches(lengths, MicroBatchLimits(max_tokens=budget), costs_of(lengths))
    assert rows_of(parts) == list(range(len(lengths)))
    assert all(len(part) == 1 or sum(lengths[row] for row in part) <= budget for part in parts)


@given(lengths=st.lists(st.integers(0, 50), max_size=40), size=st.integers(1, 10))
def test_a_row_limit_is_kept(lengths: list[int], size: int) -> None:
    parts = cut_into_micro_batches(lengths, MicroBatchLimits(max_tokens=1, max_rows=size), costs_of(lengths))
    assert rows_of(parts) == list(range(len(lengths)))
    assert all(len(part) <= size for part in parts)
    assert len(parts) == -(-len(lengths) // size)


@given(
    lengths=st.lists(st.integers(1, 50), max_size=30),
    limits=st.one_of(
        st.builds(MicroBatchLimits, max_tokens=st.integers(10, 200)),
        st.builds(MicroBatchLimits, max_rows=st.integers(1, 10)),
    ),
    extra=st.integers(0, 12),
)
def test_stretching_gives_exactly_as_many_and_loses_no_row(
    lengths: list[int], limits: MicroBatchLimits, extra: int
) -> None:
    parts = cut_into_micro_batches(lengths, limits, costs_of(lengths))
    stretched = stretch_to(parts, len(parts) + extra, lengths, limits, costs_of(lengths))
    assert len(stretched) == len(parts) + extra
    assert rows_of(stretched) == list(range(len(lengths)))
    if limits.max_rows is None:
        assert all(len(p) <= 1 or sum(lengths[row] for row in p) <= limits.max_tokens for p in stretched)


def test_few_micro_batches_of_like_cost_come_out() -> None:
    lengths = [(37 * i) % 200 + 1 for i in range(300)]
    parts = cut_into_micro_batches(lengths, MicroBatchLimits(max_tokens=8000), costs_of(lengths))
    assert len(parts) <= sum(lengths) // 8000 + 2
    costs = [sum(cost(lengths[row]) for row in part) for part in parts]
    assert max(costs) / min(costs) < 1.02
    assert costs == sorted(costs, reverse=True)


def test_limits_below_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="micro_batch_size_per_gpu is 0"):
        MicroBatchLimits(max_rows=0)
