from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podium.algorithms import get_seqlen_balanced_partitions, sequence_cost


def lognormal(seed: int, number: int) -> list[int]:
    return (np.exp(np.random.default_rng(seed).normal(6.0, 0.8, number)).astype(int) + 1).tolist()


def loads(costs: list[float], parts: list[list[int]]) -> np.ndarray:
    return np.array([sum(costs[item] for item in part) for part in parts])


@pytest.mark.parametrize("equal_size", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_lognormal_lengths_are_spread_within_two_percent(seed: int, equal_size: bool) -> None:
    lengths = lognormal(seed, 1024)
    cut = [min(length, 4096) for length in lengths]
    for costs in (lengths, [sequence_cost(length, 4000.0) for length in cut]):
        load = loads(costs, get_seqlen_balanced_partitions(costs, 32, equal_size))
        assert load.max() / load.mean() <= 1.02


def test_a_giant_is_alone_with_the_cheapest_and_the_rest_is_still_balanced() -> None:
    costs = [*lognormal(4, 255), 10**6]
    free = np.sort(loads(costs, get_seqlen_balanced_partitions(costs, 8)))
    assert free[-1] == 10**6 and free[-2] / free[:-1].mean() <= 1.02
    equal = np.sort(loads(costs, get_seqlen_balanced_partitions(costs, 8, equal_size=True)))
    assert equal[-1] == 10**6 + sum(sorted(costs)[:31]) and equal[-2] / equal[:-1].mean() <= 1.02


@given(
    st.lists(st.one_of(st.integers(0, 5), st.integers(0, 5000)), max_size=60),
    st.integers(1, 9),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_every_item_is_in_exactly_one_part(costs: list[int], k: int, equal_size: bool) -> None:
    parts = get_seqlen_balanced_partitions(costs, k, equal_size)
    assert len(parts) == k
    assert sorted(item for part in parts for item in part) == list(range(len(costs)))
    assert all(part == sorted(part) for part in parts)
    sizes = [len(part) for part in parts]
    if equal_size:
        assert max(sizes) - min(sizes) <= 1
    if len(costs) >= k:
        assert min(sizes) >= 1
    assert parts == get_seqlen_balanced_partitions(costs, k, equal_size)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=40), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_no_part_exceeds_the_mean_by_more_than_the_largest_item(costs: list[int], k: int) -> None:
    load = loads(costs, get_seqlen_balanced_partitions(costs, k, equal_size=False))
    assert load.max() <= sum(costs) / k + max(costs)


def test_an_instance_where_greedy_fails_is_solved() -> None:
    costs = [8, 7, 6, 5, 4]
    assert loads(costs, get_seqlen_balanced_partitions(costs, 2)).tolist() in ([16, 14], [14, 16])
    costs = [9, 8, 7, 6, 5, 5]
    assert set(loads(costs, get_seqlen_balanced_partitions(costs, 2, equal_size=True)).tolist()) == {20}


@pytest.mark.parametrize("equal_size", [False, True])
@pytest.mark.parametrize("kind", ["lognormal", "equal", "two sizes"])
def test_ten_thousand_items_over_64_parts_take_less_than_a_second(equal_size: bool, kind: str) -> None:
    costs = {"lognormal": lognormal(1, 10_000), "equal": [7] * 10_000, "two sizes": [1, 1000] * 5000}[kind]
    start = time.process_time()
    get_seqlen_balanced_partitions(costs, 64, equal_size)
    assert time.process_time() - start < 1.0


def test_the_cost_of_a_sequence_is_linear_plus_quadratic() -> None:
    assert sequence_cost(10, 3.0) == 130.0
