from __future__ import annotations

import pytest
import torch

from podium.algorithms import alignment_active, repr_align_bonus, repr_align_inactive

MASK = torch.tensor([[1, 1, 0], [1, 0, 1], [1, 1, 1], [0, 0, 0]])
RESPONSE = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [1.0, 0.0]])
TRUTH = torch.tensor([[2.0, 0.0], [0.0, -1.0], [float("nan"), 0.0], [1.0, 0.0]])
HAS_TRUTH = torch.tensor([True, True, False, True])


def test_the_bonus_is_the_weighted_cosine_at_the_last_model_token() -> None:
    bonus, metrics = repr_align_bonus(RESPONSE, TRUTH, MASK, HAS_TRUTH, weight=0.2)
    torch.testing.assert_close(bonus, torch.tensor([[0.0, 0.2, 0.0], [0.0, 0.0, -0.2], [0.0] * 3, [0.0] * 3]))
    values = {name: metric.result() for name, metric in metrics.items()}
    assert values == pytest.approx(
        {"repr_align/active": 1.0, "repr_align/weight": 0.2, "repr_align/cos_mean": 0.0, "repr_align/skipped": 2.0}
    )


def test_a_hidden_state_of_zero_points_nowhere() -> None:
    bonus, _ = repr_align_bonus(torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1, 1), torch.tensor([True]), 1.0)
    assert bonus.tolist() == [[0.0]]


def test_the_bonus_is_only_for_uncertain_steps() -> None:
    assert alignment_active(0.21, 0.2) and not alignment_active(0.2, 0.2)
    assert repr_align_inactive(0.1)["repr_align/active"].result() == 0.0
