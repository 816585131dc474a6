from __future__ import annotations

import pytest
import torch

from podium.algorithms import LOSS_AGG_MODES, agg_count, agg_loss, agg_sum
from podium.errors import ConfigError

L = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
MASK = torch.tensor([[1, 1, 1], [1, 0, 0]])
GOLDEN = {
    "token-mean": 2.5,
    "seq-mean-token-sum": 5.0,
    "seq-mean-token-mean": 3.0,
    "seq-mean-token-sum-norm": 1.666667,
}


@pytest.mark.parametrize(("mode", "value"), GOLDEN.items())
def test_golden_values(mode: str, value: float) -> None:
    assert float(agg_loss(L, MASK, mode, l_max=3)) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("mode", LOSS_AGG_MODES)
def test_the_loss_is_the_sum_over_the_count(mode: str) -> None:
    expected = float(agg_sum(L, MASK, mode, 3)) / agg_count(MASK, mode, 3)
    assert float(agg_loss(L, MASK, mode, 3)) == pytest.approx(expected)


@pytest.mark.parametrize("mode", LOSS_AGG_MODES)
def test_rows_without_a_token_count_nowhere(mode: str) -> None:
    more = torch.cat([L, torch.full((1, 3), float("nan"))]), torch.cat([MASK, torch.zeros(1, 3, dtype=torch.long)])
    assert float(agg_loss(*more, mode, 3)) == pytest.approx(float(agg_loss(L, MASK, mode, 3)))


@pytest.mark.parametrize("mode", LOSS_AGG_MODES)
def test_a_batch_without_tokens_has_loss_zero_not_nan(mode: str) -> None:
    assert float(agg_loss(L, torch.zeros_like(MASK), mode, 3)) == 0.0


def test_an_unknown_mode_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'token-mean'"):
        agg_loss(L, MASK, "token_mean")


@pytest.mark.parametrize("l_max", [None, 0, -1])
def test_the_normed_mode_needs_its_constant(l_max: float | None) -> None:
    with pytest.raises(ConfigError, match="l_max"):
        agg_count(MASK, "seq-mean-token-sum-norm", l_max)
