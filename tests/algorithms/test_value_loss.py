from __future__ import annotations

import pytest
import torch

from podium.algorithms import compute_value_loss, value_loss_sum

V, OLD, RETURNS = torch.tensor([[0.9, 0.2]]), torch.tensor([[0.3, 0.1]]), torch.tensor([[1.0, 0.0]])
MASK = torch.ones(1, 2)


def test_golden_values() -> None:
    loss, clipfrac = compute_value_loss(V, RETURNS, OLD, MASK, cliprange_value=0.5)
    assert float(loss) == pytest.approx(0.02) and float(clipfrac) == 0.5


def test_the_sum_form_is_the_mean_times_the_count() -> None:
    total, metrics = value_loss_sum(V, RETURNS, OLD, MASK, 0.5)
    assert float(total) == pytest.approx(0.04)
    assert metrics["critic/vf_loss"].result() == pytest.approx(0.02)
    assert metrics["critic/vf_clipfrac"].result() == 0.5


def test_a_value_clipped_on_the_far_side_has_no_gradient() -> None:
    v = torch.tensor([[2.0, 0.2]], requires_grad=True)
    value_loss_sum(v, torch.tensor([[5.0, 0.0]]), OLD, MASK, 0.5)[0].backward()
    assert v.grad is not None and v.grad[0].tolist() == pytest.approx([0.0, 0.2])


def test_nan_outside_the_mask_is_ignored() -> None:
    nan = torch.tensor([[float("nan")]])
    wide = [torch.cat([x, nan], 1) for x in (V, RETURNS, OLD)]
    loss, clipfrac = compute_value_loss(*wide, torch.tensor([[1, 1, 0]]), 0.5)
    assert float(loss) == pytest.approx(0.02) and float(clipfrac) == 0.5
