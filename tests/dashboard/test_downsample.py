"""A long curve keeps its ends and its peaks in few points."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from podium.dashboard.downsample import bucket_edges, bucket_means, clip_range, min_max, smooth, to_json

curves = arrays.arrays(np.float64, st.integers(0, 500), elements=st.one_of(st.floats(-1e6, 1e6), st.just(float("nan"))))


@given(curves, st.integers(4, 100))
def test_the_shown_points_are_points_of_the_curve_with_its_extremes(values: np.ndarray, points: int) -> None:
    steps = np.arange(len(values)) * 3
    at, shown = min_max(steps, values, points)
    assert len(at) <= points + 4
    assert bool((np.diff(at) > 0).all())
    assert np.array_equal(values[at // 3], shown, equal_nan=True)
    if len(values):
        assert (at[0], at[-1]) == (steps[0], steps[-1])
    if not np.isnan(values).all():
        assert np.nanmax(shown) == np.nanmax(values)
        assert np.nanmin(shown) == np.nanmin(values)


def test_a_short_curve_is_shown_as_it_is() -> None:
    steps, values = np.arange(5), np.array([1.0, 2.0, np.nan, 4.0, 5.0])
    assert min_max(steps, values, 10)[1] is values


@given(arrays.arrays(np.float64, st.integers(1, 300), elements=st.floats(-1e3, 1e3)), st.floats(0, 0.99))
def test_smoothing_stays_between_the_extremes_and_keeps_constants(values: np.ndarray, weight: float) -> None:
    soft = smooth(values, weight)
    assert soft.min() >= values.min() - 1e-6
    assert soft.max() <= values.max() + 1e-6
    assert np.allclose(smooth(np.full(50, 3.0), weight), 3.0)


def test_smoothing_keeps_gaps_and_is_not_pulled_by_them() -> None:
    soft = smooth(np.array([2.0, np.nan, 2.0]), 0.9)
    assert np.isnan(soft[1])
    assert soft[[0, 2]].tolist() == [2.0, 2.0]


def test_a_range_keeps_one_point_beyond_each_end() -> None:
    steps = np.arange(10)
    assert clip_range(steps, steps * 1.0, 3, 5)[0].tolist() == [2, 3, 4, 5, 6]
    assert clip_range(steps, steps * 1.0, None, None)[0].tolist() == list(range(10))


def test_bucket_means_leave_gaps_out() -> None:
    values = np.array([1.0, np.nan, 3.0, 5.0, np.nan, np.nan])
    means = bucket_means(values, bucket_edges(np.arange(6), 3))
    assert means[:2].tolist() == [1.0, 4.0]
    assert np.isnan(means[2])


def test_what_is_not_a_number_becomes_null() -> None:
    assert to_json(np.array([1.0, np.nan, np.inf])) == [1.0, None, None]
