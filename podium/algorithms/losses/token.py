"""Policy losses that stand token by token: PPO and its relatives.

A advantage, ℓ log-prob now, ℓ_old log-prob at sampling time, ρ = exp(clamp(ℓ − ℓ_old, ±20)), lo and hi the clip range,
sg stop gradient. Every function returns a sum and metrics, as registry.py says; entropy and KL come elsewhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

from podium.algorithms.aggregation import agg_loss
from podium.algorithms.losses.common import clip_range, finish_policy_loss, log_ratio
from podium.algorithms.losses.registry import register_policy_loss
from podium.algorithms.masking import inside, masked_mean
from podium.config.schema import ActorConfig
from podium.errors import ConfigError
from podium.metric import Metrics

_MAX_DPPO_RATIO = 20.0


def ppo_token_losses(
    difference: Tensor, advantages: Tensor, low: float, high: float, dual: float | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """PPO's clipped token losses from log-ratios, with the dual clip at `dual`; which tokens each clip binds."""
    ratio = difference.exp()
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1.0 - low, 1.0 + high)
    losses, clipped = torch.maximum(plain, bounded), bounded > plain
    if dual is None:
        return losses, clipped, torch.zeros_like(clipped)
    ceiling = -dual * advantages
    binds = (advantages < 0) & (losses > ceiling)
    return torch.where(binds, ceiling, losses), clipped, binds


@register_policy_loss("vanilla", proportional=True)
def compute_policy_loss_vanilla(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    config: ActorConfig,
    rollout_is_weights: Tensor | None = None,
    l_max: float | None = None,
) -> tuple[Tensor, Metrics]:
    """PPO with dual clip: M = max(−Aρ, −A·clip(ρ, 1−lo, 1+hi)); where A < 0: min(M, −cA).

    Schulman et al., "Proximal Policy Optimization Algorithms", 2017, arXiv:1707.06347; dual clip: Ye et al., 2019,
    arXiv:1912.09729; lo ≠ hi: Yu et al., "DAPO", 2025, arXiv:2503.14476.
    """
    old_log_prob, log_prob, advantages = inside(response_mask, old_log_prob, log_prob, advantages)
    difference = log_ratio(log_prob, old_log_prob)
    losses, clipped, lower = ppo_token_losses(difference, advantages, *clip_range(config), config.clip_ratio_c)
    above = difference > 0
    return finish_policy_loss(
        losses, response_mask, loss_agg_mode, l_max, difference, rollout_is_weights, clipped, lower, above
    )


def compute_policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    cliprange: float | None = None,
    cliprange_low: float | None = None,
    cliprange_high: float | None = None,
    clip_ratio_c: float = 3.0,
    loss_agg_mode: str = "token-mean",
    l_max: float | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """PPO's loss of a whole batch in verl's shape: (pg_loss, pg_clipfrac, ppo_kl, pg_clipfrac_lower), all means.

    The same formula as `vanilla`. Schulman et al., 2017, arXiv:1707.06347.
    """
    low = cliprange if cliprange_low is None else cliprange_low
    high = cliprange if cliprange_high is None else cliprange_high
    if low is None or high is None:
        raise ConfigError("compute_policy_loss needs cliprange, or both cliprange_low and cliprange_high")
    if clip_ratio_c <= 1.0:
        raise ConfigError(f"clip_ratio_c bounds the loss of bad tokens and must be above 1; got {clip_ratio_c}")
    old_log_prob, log_prob, advantages = inside(response_mask, old_log_prob, log_prob, advantages)
    difference = log_ratio(log_prob, old_log_prob)
    losses, clipped, lower = ppo_token_losses(difference, advantages, low, high, clip_ratio_c)
    pg_loss = agg_loss(losses, response_mask, loss_agg_mode, l_max)
    means = [masked_mean(x.float(), response_mask) for x in (clipped, -difference.detach(), lower)]
    return pg_loss, means[0], means[1], means[2]


@register_policy_loss("sapo", proportional=True)
def compute_policy_loss_sapo(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    config: ActorConfig,
    rollout_is_weights: Tensor | None = None,
    l_max: float | None = None,
) -> tuple[Tensor, Metrics]:
    """SAPO, a soft gate instead of a clip: −A·σ(τ(ρ−1))·4/τ, τ = tau_pos where A > 0, else tau_neg.

    Gao et al., "Soft Adaptive Policy Optimization", 2025, arXiv:2511.20347.
    """
    old_log_prob, log_prob, advantages = inside(response_mask, old_log_prob, log_prob, advantages)
    difference = log_ratio(log_prob, old_log_prob)
    tau = torch.full_like(advantages, config.policy_loss.tau_neg)
    tau = tau.masked_fill(advantages > 0, config.policy_loss.tau_pos)
    losses = -advantages * torch.sigmoid(tau * (difference.exp() - 1.0)) * 4.0 / tau
    return finish_policy_loss(losses, response_mask, loss_agg_mode, l_max, difference, rollout_is_weights)


@register_policy_loss("cispo", proportional=True)
def compute_policy_loss_cispo(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    config: ActorConfig,
    rollout_is_weights: Tensor | None = None,
    l_max: float | None = None,
) -> tuple[Tensor, Metrics]:
    """CISPO, clip the weight and keep every gradient: −sg(clip(ρ, 1−lo, 1+hi))·A·ℓ.

    MiniMax, "MiniMax-M1", 2025, arXiv:2506.13585.
    """
    old_log_prob, log_prob, advantages = inside(response_mask, old_log_prob, log_prob, advantages)
    difference = log_ratio(log_prob, old_log_prob)
    low, high = clip_range(config)
    ratio = difference.detach().exp()
    bounded = ratio.clamp(1.0 - low, 1.0 + high)
    losses = -bounded * advantages * log_prob
    return finish_policy_loss(
        losses, response_mask, loss_agg_mode, l_max, difference, rollout_is_weights, clipped=bounded != ratio
    )


@register_policy_loss("gpg", proportional=True)
def compute_policy_loss_gpg(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    config: ActorConfig,
    rollout_is_weights: Tensor | None = None,
    l_max: float | None = None,
) -> tuple[Tensor, Metrics]:
    """GPG, the plain policy gradient: −A·ℓ. Chu et al., 2025, arXiv:2504.02546."""
    old_log_prob, log_prob, advantages = inside(response_mask, old_log_prob, log_prob, advantages)
    difference = log_ratio(log_prob, old_log_prob)
    return finish_policy_loss(
        -advantages * log_prob, response_mask, loss_agg_mode, l_max, difference, rollout_is_weights
    )


@register_policy_loss("reinforce", proportional=True)
def compute_policy_loss_reinforce(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    config: ActorConfig,
    rollout_is_weights: Tensor | None = None,
    l_max: float | None = None,
) -> tuple[Tensor, Metrics]:
    """REINFORCE with the sampler as the old policy: −sg(w)·ℓ·A, w the rollout correction's weight (1 without one).

    Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", 1992.
    """
    old_log_prob, log_prob, advantages = inside(response_mask, old_log_prob, log_prob, advantages)
    difference = log_ratio(log_prob, old_log_prob)
    return finish_policy_loss(
        -log_prob * advantages, response_mask, loss_agg_mode, l_max, difference, rollout_is_weights
    )


@register_policy_loss("dro")
def compute_policy_loss_dro(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    config: ActorConfig,
    rollout_is_weights: Tensor | None = None,
    l_max: float | None = None,
) -> tuple[Tensor, Metrics]:
    """DRO, a quadratic pull to the old policy: −(ℓA − ½β(ℓ − ℓ_old)²).

    Richemond et al., "Offline Regularised Reinforcement Learning for Large Language Models Alignment", 2024,
    arXiv:2405.19107.
    """
    old_log_prob, log_prob, advantages = inside(response_mask, old_log_prob, log_prob, advantages)
    difference = log_ratio(log_prob, old_log_prob)
    pull = 0.5 * config.policy_loss.dro_beta * (log_prob - old_log_prob).square()
    losses = pull - log_prob * advantages
    return finish_policy_loss(losses, response_mask, loss_agg_mode, l_max, difference, rollout_is_weights)


def _dppo_losses(difference: Tensor, log_prob: Tensor, advantages: Tensor, kept: Tensor) -> Tensor:
    ratio = difference.detach().exp().clamp(max=_MAX_DPPO_RATIO)
    return torch.where(kept, -advantages * ratio * log_prob, 0.0)


@register_policy_loss("dppo_tv", proportional=True)
def compute_policy_loss_dppo_tv(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    config: ActorConfig,
    rollout_is_weights: Tensor | None = None,
    l_max: float | None = None,
) -> tuple[Tensor, Metrics]:
    """DPPO, a trust region in probability: −A·sg(min(ρ, 20))·ℓ on tokens with π − π_old ≤ hi (A > 0), ≥ −lo (A ≤ 0).

    Qi et al., "Rethinking the Trust Region in LLM Reinforcement Learning", 2026, arXiv:2602.04879.
    """
    old_log_prob, log_prob, advantages = inside(response_mask, old_log_prob, log_prob, advantages)
    difference = log_ratio(log_prob, old_log_prob)
    low, high = clip_range(config)
    moved = log_prob.detach().exp() - old_log_prob.exp()
    kept = torch.where(advantages > 0, moved <= high, moved >= -low)
    losses = _dppo_losses(difference, log_prob, advantages, kept)
    return finish_policy_loss(
        losses, response_mask, loss_agg_mode, l_max, difference, rollout_is_weights, clipped=~kept
    )


@register_policy_loss("dppo_kl", proportional=True)
def compute_policy_loss_dppo_kl(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    config: ActorConfig,
    rollout_is_weights: Tensor | None = None,
    l_max: float | None = None,
) -> tuple[Tensor, Metrics]:
    """DPPO with the binary KL D = π_old·log(π_old/π) + (1−π_old)·log((1−π_old)/(1−π)).

    −A·sg(min(ρ, 20))·ℓ on tokens with D ≤ hi or π ≤ π_old (A > 0), D ≤ lo or π ≥ π_old (A ≤ 0).
    Qi et al., 2026, arXiv:2602.04879.
    """
    old_log_prob, log_prob, advantages = inside(response_mask, old_log_prob, log_prob, advantages)
    difference = log_ratio(log_prob, old_log_prob)
    low, high = clip_range(config)
    now, before = (x.detach().double().exp().clamp(1e-12, 1.0 - 1e-12) for x in (log_prob, old_log_prob))
    divergence = before * (before / now).log() + (1 - before) * ((1 - before) / (1 - now)).log()
    kept = torch.where(advantages > 0, (divergence <= high) | (now <= before), (divergence <= low) | (now >= before))
    losses = _dppo_losses(difference, log_prob, advantages, kept)
    return finish_policy_loss(
        losses, response_mask, loss_agg_mode, l_max, difference, rollout_is_weights, clipped=~kept
    )
