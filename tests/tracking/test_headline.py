"""Which numbers a person sees, and how they are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podium.tracking.headline import (
    duration,
    headline_values,
    mean_score,
    number,
    sparkline,
    took,
    trend,
    validation_scores,
)

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def test_headlines_come_from_the_named_metrics() -> None:
    metrics = {"critic/score/mean": 0.5, "actor/kl_loss": 0.1, "actor/ppo_kl": 0.2, "actor/entropy": float("nan")}
    metrics |= {"response_length/mean": 7.0, "perf/total_num_tokens": 900.0, "perf/time_per_step": 3.0}
    assert headline_values(metrics) == {"reward": 0.5, "KL": 0.1, "length": 7.0, "tokens/s": 300.0}
    assert headline_values({}) == {}


def test_validation_takes_the_accuracy_of_each_source() -> None:
    metrics = {"val-core/addition/acc/mean@1": 0.5, "val-core/addition/reward/mean@1": 9.0}
    metrics |= {"val-core/a/b/score/mean@4": 1.0, "val-core/a/b/score/best@4": 1.0, "val-aux/addition/x/mean@1": 5.0}
    assert validation_scores(metrics) == {"addition": 0.5, "a/b": 1.0}
    assert mean_score(metrics) == 0.75
    assert mean_score({"val/test_score/nq": 0.25}) == 0.25
    assert mean_score({"critic/score/mean": 1.0}) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0.000"), (0.0123, "0.012"), (1.234, "1.23"), (12.34, "12.3"), (123.4, "123"), (1830.2, "1,830")),
        *((0.0004, "4.0e-04"), (-0.5, "-0.500"), (2.5e7, "2.50e+07")),
    ],
)
def test_numbers_have_about_three_digits(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (65.4, "1:05"), (3661, "1:01:01"), (-3, "0:00")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_sparkline_rises_with_its_values() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline(list(range(800)), 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([3, 3, 3], 8) == "▁▁▁"
    assert sparkline([1], 8) == ""


@given(st.lists(FINITE, max_size=60), st.integers(0, 40))
def test_a_sparkline_fits_its_width_whatever_the_values(values: list[float], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) <= width
    assert set(line) <= set("▁▂▃▄▅▆▇█")


def test_the_trend_tells_up_down_and_level() -> None:
    assert trend([0, 1, 2, 3, 4, 5]) == "↗"
    assert trend([5, 4, 3, 2, 1, 0]) == "↘"
    assert trend([0, 10, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5]) == "→"
    assert trend([1]) == " "


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (4.25, "4.2 s"), (48.3, "48 s"), (119, "119 s"), (150, "2.5 minutes"), (9000, "2.5 hours")],
)
def test_how_long_a_run_took_has_a_unit_that_fits(seconds: float, text: str) -> None:
    assert took(seconds) == text
