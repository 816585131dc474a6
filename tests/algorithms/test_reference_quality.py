from __future__ import annotations

import math

import pytest
import torch

from podium.algorithms import ref_quality_metrics
from podium.algorithms.reference_quality import _blend_ref_quality_score, _compute_ref_quality_score
from podium.errors import ConfigError

REF = torch.tensor([[0.5, 0.9, 0.125], [0.25, 1.0, 1.0]]).log()
MASK = torch.tensor([[1, 0, 1], [1, 0, 0]])


def test_a_sequences_quality_is_its_geometric_mean_probability_at_the_last_token() -> None:
    quality = _compute_ref_quality_score(REF, MASK)
    torch.testing.assert_close(quality, torch.tensor([[0.0, 0.0, 0.25], [0.25, 0.0, 0.0]]))


def test_token_quality_is_each_tokens_probability() -> None:
    quality = _compute_ref_quality_score(REF, MASK, "token")
    torch.testing.assert_close(quality, torch.tensor([[0.5, 0.0, 0.125], [0.25, 0.0, 0.0]]))


def test_nan_outside_the_mask_and_rows_without_tokens_have_no_quality() -> None:
    ref = torch.where(MASK.bool(), REF, float("nan"))
    for granularity in ("sequence", "token"):
        torch.testing.assert_close(
            _compute_ref_quality_score(ref, MASK, granularity), _compute_ref_quality_score(REF, MASK, granularity)
        )
    assert _compute_ref_quality_score(REF, torch.zeros_like(MASK)).abs().sum() == 0.0


def test_the_blend_is_linear_in_its_weight_and_scales_every_score() -> None:
    scores = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 2.0]])  # row 1: on a terminal observation
    quality = _compute_ref_quality_score(REF, MASK)
    torch.testing.assert_close(_blend_ref_quality_score(scores, quality, MASK, 0.0), scores)
    torch.testing.assert_close(
        _blend_ref_quality_score(scores, quality, MASK, 0.2),
        torch.tensor([[0.0, 0.0, 0.85], [0.05, 0.0, 1.6]]),
    )
    torch.testing.assert_close(_blend_ref_quality_score(scores, quality, MASK, 1.0), quality)


def test_metrics_are_over_rows() -> None:
    ref = torch.tensor([[0.5, 0.5], [0.1, 0.9], [0.2, 0.2]]).log()
    metrics = ref_quality_metrics(ref, torch.tensor([[1, 1], [1, 0], [0, 0]]), 0.3)
    values = {name: metric.result() for name, metric in metrics.items()}
    expected = {"mean": 0.3, "min": 0.1, "max": 0.5, "weight": 0.3}
    assert values == pytest.approx({f"ref_quality/{k}": v for k, v in expected.items()}, abs=1e-6)
    assert all(math.isfinite(v) for v in values.values())


def test_an_unknown_granularity_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'sequence'"):
        _compute_ref_quality_score(REF, MASK, "sequenc")
