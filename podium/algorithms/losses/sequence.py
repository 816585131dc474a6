"""Policy losses whose ratio belongs to the sequence: GSPO and GMPO. Both are means over sequences by definition."""

from __future__ import annotations

import torch
from torch import Tensor

from podium.algorithms.losses.common import clip_range, finish_policy_loss, log_ratio
from podium.algorithms.losses.registry import register_policy_loss
from podium.algorithms.masking import inside, masked_mean
from podium.config.schema import ActorConfig
from podium.metric import Metrics


@register_policy_loss("gspo", fixed_agg_mode="seq-mean-token-mean", proportional=True)
def compute_policy_loss_gspo(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    config: ActorConfig,
    rollout_is_weights: Tensor | None = None,
    l_max: float | None = None,
) -> tuple[Tensor, Metrics]:
    """GSPO, token form: s_i = exp(mean_t(ℓ − ℓ_old)), ρ_t = exp(min(ℓ − sg ℓ + sg log s_i, 10)),

    max(−Aρ, −A·clip(ρ, 1−lo, 1+hi)), aggregated by seq-mean-token-mean. Clip ranges are small here: 3e-4 and 4e-4 in
    the paper. Zheng et al., "Group Sequence Policy Optimization", 2025, arXiv:2507.18071.
    """
    old_log_prob, log_prob, advantages = inside(response_mask, old_log_prob, log_prob, advantages)
    difference = log_ratio(log_prob, old_log_prob)
    log_s = masked_mean(difference, response_mask, axis=-1).detach().unsqueeze(-1)
    ratio = (log_prob - log_prob.detach() + log_s).clamp(max=10.0).exp()
    low, high = clip_range(config)
    plain, bounded = -advantages * ratio, -advantages * ratio.clamp(1.0 - low, 1.0 + high)
    losses, clipped, mode = torch.maximum(plain, bounded), bounded > plain, "seq-mean-token-mean"
    return finish_policy_loss(
        losses, response_mask, mode, l_max, difference, rollout_is_weights, clipped, above=log_s > 0
    )


@register_policy_loss("geo_mean", fixed_agg_mode="seq-mean-token-mean", proportional=True)
def compute_policy_loss_geo_mean(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    config: ActorConfig,
    rollout_is_weights: Tensor | None = None,
    l_max: float | None = None,
) -> tuple[Tensor, Metrics]:
    """GMPO, the geometric mean of clipped token ratios; d = ℓ − ℓ_old, s = sgn A: d* = s·min(sd, s·clip(d, −lo, hi)),

    ρ_i = exp(mean_t d*), loss −Ā_i·ρ_i per sequence, mean over sequences. Importance weights enter by their geometric
    mean over the tokens that have one. Zhao et al., "Geometric-Mean Policy Optimization", 2025, arXiv:2507.20673.
    """
    old_log_prob, log_prob, advantages = inside(response_mask, old_log_prob, log_prob, advantages)
    difference = log_ratio(log_prob, old_log_prob)
    low, high = clip_range(config)
    sign = advantages.sign()
    bounded = sign * torch.minimum(sign * difference, sign * difference.clamp(-low, high))
    ratio = masked_mean(bounded, response_mask, axis=-1).exp()
    losses = -masked_mean(advantages, response_mask, axis=-1) * ratio
    if rollout_is_weights is not None:
        losses = losses * _geometric_mean(rollout_is_weights.detach(), response_mask)
    clipped = (bounded != difference) & (advantages != 0)
    # Spread over its tokens, a sequence's loss comes back whole from their mean.
    spread = losses.unsqueeze(-1).expand(response_mask.shape)
    return finish_policy_loss(spread, response_mask, "seq-mean-token-mean", l_max, difference, clipped=clipped)


def _geometric_mean(weights: Tensor, mask: Tensor) -> Tensor:
    """[B]: over tokens with a positive weight; 0 where there is none."""
    positive = mask.bool() & (weights > 0)
    logs = torch.where(positive, weights, 1.0).log()
    return masked_mean(logs, positive, axis=-1).exp() * positive.any(-1)
