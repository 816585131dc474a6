"""A reward for responses whose hidden states point where the ground truth's do, while the policy is uncertain.

Bonus = w·cos(h(response), h(ground truth)), h the mean over tokens of the last hidden state, at the last model token.
Hidden states come from an engine, the weight from a schedule; here is only the arithmetic.
"""

from __future__ import annotations

import torch
from torch import Tensor

from podium.algorithms.masking import at_last_token
from podium.metric import Metric, Metrics


def alignment_active(mean_entropy: float, entropy_high_threshold: float) -> bool:
    """Whether a step gives the bonus: its mean token entropy is above the threshold."""
    return mean_entropy > entropy_high_threshold


def repr_align_bonus(
    response_hidden: Tensor, truth_hidden: Tensor, response_mask: Tensor, has_truth: Tensor, weight: float
) -> tuple[Tensor, Metrics]:
    """The bonus [B, R] to add to token-level rewards, and its metrics, from two [B, H] means of hidden states.

    Rows without a ground truth (`has_truth` [B] False) or without a model token get none and count in
    `repr_align/skipped`.
    """
    counted = has_truth.bool() & response_mask.bool().any(-1)
    cosine = torch.cosine_similarity(response_hidden.float(), truth_hidden.float(), dim=-1)
    cosine = torch.where(counted, cosine, 0.0)
    number = int(counted.sum())
    metrics = {
        "repr_align/active": Metric.last(1.0),
        "repr_align/weight": Metric.last(weight),
        "repr_align/cos_mean": Metric.mean(float(cosine.sum()), number),
        "repr_align/skipped": Metric.sum(len(counted) - number),
    }
    return at_last_token(weight * cosine, response_mask), metrics


def repr_align_inactive(weight: float) -> Metrics:
    """The metrics of a step whose entropy is too low for the bonus."""
    return {"repr_align/active": Metric.last(0.0), "repr_align/weight": Metric.last(weight)}
