from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podium.algorithms import SCHEDULES, schedule_shape, schedule_weight
from podium.algorithms.schedules import (
    _cosine_schedule,
    _exp_schedule,
    _linear_schedule,
    _sigmoid_schedule,
    _step_schedule,
)
from podium.errors import ConfigError

NAMED = {
    "linear": _linear_schedule,
    "cosine": _cosine_schedule,
    "sigmoid": _sigmoid_schedule,
    "exp": _exp_schedule,
    "step": _step_schedule,
}


@pytest.mark.parametrize("name", NAMED)
def test_a_schedule_starts_at_zero_and_stays_at_its_maximum(name: str) -> None:
    assert NAMED[name](0, 100, 0.3, 0.7) == pytest.approx(0.0, abs=1e-12)
    assert NAMED[name](-5, 100, 0.3, 0.7) == pytest.approx(0.0, abs=1e-12)
    for step in (70, 71, 100, 10_000):
        assert NAMED[name](step, 100, 0.3, 0.7) == pytest.approx(0.3)


@given(st.sampled_from(sorted(NAMED)), st.integers(1, 500), st.floats(0, 1), st.floats(0, 2))
@settings(max_examples=60, deadline=None)
def test_a_schedule_never_falls(name: str, total: int, max_weight: float, warmup_ratio: float) -> None:
    weights = [NAMED[name](step, total, max_weight, warmup_ratio) for step in range(0, total + 1, max(1, total // 20))]
    assert weights == sorted(weights) and weights[0] >= 0.0 and weights[-1] <= max_weight + 1e-12


def test_the_curves_are_those_of_the_formulas() -> None:
    p = 0.3  # step 21 of a warm-up of 70
    sigmoid = [1 / (1 + math.exp(-x)) for x in (10 * (p - 0.5), -5.0, 5.0)]
    expected = {
        "linear": p,
        "cosine": 0.5 * (1 - math.cos(math.pi * p)),
        "sigmoid": (sigmoid[0] - sigmoid[1]) / (sigmoid[2] - sigmoid[1]),
        "exp": (math.exp(5 * p) - 1) / (math.exp(5) - 1),
        "step": 0.0,
    }
    for name, value in expected.items():
        assert NAMED[name](21, 100, 2.0, 0.7) == pytest.approx(2.0 * value)
        assert schedule_weight(name, 21, 100, 2.0, 0.7) == pytest.approx(2.0 * value)


def test_the_staircase_has_as_many_steps_as_asked() -> None:
    weights = [_step_schedule(step, 100, 1.0, 1.0, steps=4) for step in range(101)]
    assert sorted(set(weights)) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert weights.index(0.25) == 25
    assert _step_schedule(29, 100, 1.0, 1.0, steps=100) == pytest.approx(0.29)


def test_a_ratio_of_zero_means_one_step_of_warm_up() -> None:
    assert _linear_schedule(1, 10, 0.5, 0.0) == 0.5


def test_the_bare_curve_serves_a_learning_rate() -> None:
    assert [schedule_shape("linear", p) for p in (-1.0, 0.25, 3.0)] == [0.0, 0.25, 1.0]


def test_an_unknown_schedule_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'cosine'"):
        schedule_weight("cosin", 1, 2, 1.0, 1.0)
    with pytest.raises(ConfigError, match="at least one step"):
        schedule_weight("step", 1, 2, 1.0, 1.0, steps=0)
    assert set(SCHEDULES) == set(NAMED)
