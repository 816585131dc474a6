"""The reference model's own opinion of a response, blended into the reward.

q_i = exp(masked_mean_t ℓ_ref) ∈ (0, 1] is the geometric-mean probability that the reference model gives the response's
tokens. It uses the `ref_log_prob` that the step has anyway; no forward pass happens here. The weight comes from a
schedule (schedules.py).
"""

from __future__ import annotations

from torch import Tensor

from podium.algorithms.masking import at_last_token, inside, masked_mean
from podium.errors import ConfigError
from podium.metric import Metric, Metrics
from podium.plugins import nearest


def _compute_ref_quality_score(ref_log_prob: Tensor, response_mask: Tensor, granularity: str = "sequence") -> Tensor:
    """[B, R]: `sequence`: q_i at the last model token, 0 elsewhere; `token`: exp(ℓ_ref) at each model token."""
    if granularity == "token":
        return inside(response_mask, ref_log_prob.exp())[0]
    if granularity != "sequence":
        raise ConfigError(
            f"ref_quality_score.granularity {granularity!r} is unknown{nearest(granularity, ['sequence', 'token'])}"
        )
    return at_last_token(masked_mean(ref_log_prob, response_mask, axis=-1).exp(), response_mask)


def _blend_ref_quality_score(
    token_level_scores: Tensor, ref_quality_scores: Tensor, response_mask: Tensor, weight: float
) -> Tensor:
    """blended = (1 − weight)·token_level_scores + weight·ref_quality_scores, quality on model tokens only.

    A score on a terminal observation is scaled like every other: it belongs to the trajectory.
    """
    return (1.0 - weight) * token_level_scores + weight * inside(response_mask, ref_quality_scores)[0]


def ref_quality_metrics(ref_log_prob: Tensor, response_mask: Tensor, weight: float) -> Metrics:
    """`ref_quality/{mean,min,max,weight}` of q_i over rows that have a model token."""
    rows = response_mask.bool().any(-1)
    quality = masked_mean(ref_log_prob, response_mask, axis=-1).exp()[rows].tolist()
    metrics = {"ref_quality/weight": Metric.last(weight)}
    if quality:
        metrics["ref_quality/mean"] = Metric.mean(sum(quality), len(quality))
        metrics["ref_quality/min"] = Metric.min(min(quality))
        metrics["ref_quality/max"] = Metric.max(max(quality))
    return metrics
