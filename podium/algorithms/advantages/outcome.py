"""Advantages from one number per trajectory: its return R_i, summed over all positions, observations included.

A_{i,t} = A_i·m_{i,t} ("broadcast"), returns = advantages, unless a function says otherwise. The group G(i) is the
samples of one prompt. A group whose rewards are all equal, or a group of one, gets exactly 0. No values and no γ here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from podium.algorithms.advantages.registry import AdvantageEstimator, register_adv_est
from podium.algorithms.groups import Groups, Index
from podium.algorithms.masking import inside, masked_whiten
from podium.errors import ConfigError
from podium.plugins import nearest


def _outcome(token_level_rewards: Tensor, index: Index) -> tuple[Tensor, Groups]:
    """R [B] in float64, and the groups."""
    return token_level_rewards.double().sum(-1), Groups.of(index, token_level_rewards.device)


def _centered(returns: Tensor, groups: Groups, baseline: Tensor | None = None) -> Tensor:
    """R_i minus its group's baseline (the mean unless given) [B]; exactly 0 in degenerate groups."""
    baseline = groups.mean(returns) if baseline is None else baseline
    flat = groups.degenerate(returns)[groups.ids]
    return torch.where(flat, torch.zeros_like(returns), returns - baseline[groups.ids])


def _grpo(returns: Tensor, groups: Groups, epsilon: float, by_std: bool) -> Tensor:
    scores = _centered(returns, groups)
    return scores / (groups.std(returns)[groups.ids] + epsilon) if by_std else scores


def _broadcast(scores: Tensor, response_mask: Tensor, like: Tensor) -> Tensor:
    return inside(response_mask, scores.to(like.dtype).unsqueeze(-1).expand(response_mask.shape))[0]


def _pair(advantages: Tensor) -> tuple[Tensor, Tensor]:
    """Advantages and, as their own tensor, returns."""
    return advantages, advantages.clone()


@register_adv_est(AdvantageEstimator.GRPO)
def compute_grpo_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
) -> tuple[Tensor, Tensor]:
    """GRPO: A_i = (R_i − μ_G)/(σ_G + ε). Without the division by σ it is Dr. GRPO: A_i = R_i − μ_G.

    Shao et al., "DeepSeekMath", 2024, arXiv:2402.03300; Liu et al., "Understanding R1-Zero-Like Training", 2025,
    arXiv:2503.20783.
    """
    returns, groups = _outcome(token_level_rewards, index)
    scores = _grpo(returns, groups, epsilon, norm_adv_by_std_in_grpo)
    return _pair(_broadcast(scores, response_mask, token_level_rewards))


@register_adv_est(AdvantageEstimator.GRPO_PASSK)
def compute_grpo_passk_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
) -> tuple[Tensor, Tensor]:
    """Pass@k: only the best sample of a group gets its lead over the second, (R₍₁₎ − R₍₂₎)[/(σ_G + ε)]; the rest 0.

    Tang et al., "Optimizing Language Models for Inference Time Objectives using RL", 2025, arXiv:2503.19595.
    """
    returns, groups = _outcome(token_level_rewards, index)
    best = groups.extreme(returns, "amax")
    is_best = returns == best[groups.ids]
    second = groups.extreme(returns.masked_fill(is_best, float("-inf")), "amax")
    tied = groups.sum(is_best.double()) > 1
    lead = torch.where(tied | groups.degenerate(returns), 0.0, best - second)
    if norm_adv_by_std_in_grpo:
        lead = lead / (groups.std(returns) + epsilon)
    scores = torch.where(is_best, lead[groups.ids], 0.0)
    return _pair(_broadcast(scores, response_mask, token_level_rewards))


@register_adv_est(AdvantageEstimator.RLOO)
def compute_rloo_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Index
) -> tuple[Tensor, Tensor]:
    """RLOO, leave one out: A_i = R_i − mean_{j≠i} R_j = n/(n−1)·(R_i − μ_G).

    Ahmadian et al., "Back to Basics", 2024, arXiv:2402.14740; Kool et al., 2019.
    """
    returns, groups = _outcome(token_level_rewards, index)
    size = groups.size()
    scores = _centered(returns, groups) * (size / (size - 1).clamp(min=1))[groups.ids]
    return _pair(_broadcast(scores, response_mask, token_level_rewards))


@register_adv_est(AdvantageEstimator.OPO)
def compute_opo_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Index
) -> tuple[Tensor, Tensor]:
    """OPO, the length-weighted baseline: A_i = R_i − Σ_j |y_j|R_j / Σ_j |y_j|.

    Hao et al., "On-Policy RL with Optimal Reward Baseline", 2025, arXiv:2505.23585.
    """
    returns, groups = _outcome(token_level_rewards, index)
    lengths = response_mask.bool().sum(-1).double()
    baseline = groups.sum(lengths * returns) / groups.sum(lengths).clamp(min=1)
    return _pair(_broadcast(_centered(returns, groups, baseline), response_mask, token_level_rewards))


@register_adv_est(AdvantageEstimator.GPG)
def compute_gpg_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Index
) -> tuple[Tensor, Tensor]:
    """GPG: A_i = α·(R_i − μ_G), α = B/max(number of nonzero R, 1) over the batch.

    Chu et al., "GPG: A Simple and Strong Reinforcement Learning Baseline for Model Reasoning", 2025, arXiv:2504.02546.
    """
    returns, groups = _outcome(token_level_rewards, index)
    alpha = len(returns) / (returns != 0).sum().clamp(min=1).double()
    return _pair(_broadcast(alpha * _centered(returns, groups), response_mask, token_level_rewards))


@register_adv_est(AdvantageEstimator.REINFORCE_PLUS_PLUS_BASELINE)
def compute_reinforce_plus_plus_baseline_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Index
) -> tuple[Tensor, Tensor]:
    """REINFORCE++ with a group baseline: A = whiten((R_i − μ_G)·m)·m over all tokens of the batch.

    Hu, "REINFORCE++", 2025, arXiv:2501.03262.
    """
    returns, groups = _outcome(token_level_rewards, index)
    scores = _broadcast(_centered(returns, groups), response_mask, token_level_rewards)
    return _pair(masked_whiten(scores, response_mask))


@register_adv_est(AdvantageEstimator.GDPO)
def compute_gdpo_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    reward_parts: Mapping[str, Any],
    reward_weights: Mapping[str, float] | None = None,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
) -> tuple[Tensor, Tensor]:
    """GDPO, several rewards: A_k = GRPO of each part k within the group, A = whiten(Σ_k w_k·A_k) over all tokens.

    `reward_parts` maps a name to [B] numbers (or [B, R] token rewards). Without weights every part counts 1; with
    weights exactly the parts they name count. Only the shape of `token_level_rewards` is used.
    Liu et al., "GDPO: Group reward-Decoupled Normalization Policy Optimization", 2026, arXiv:2601.05242.
    """
    weights = dict(reward_weights) if reward_weights else dict.fromkeys(reward_parts, 1.0)
    groups = Groups.of(index, token_level_rewards.device)
    total = torch.zeros(len(token_level_rewards), dtype=torch.float64, device=token_level_rewards.device)
    for name, weight in weights.items():
        if name not in reward_parts:
            raise ConfigError(
                f"algorithm.reward_weights: the rewards have no part {name!r}{nearest(name, reward_parts)}"
            )
        part = reward_parts[name]
        part = part if isinstance(part, Tensor) else torch.from_numpy(np.asarray(part, dtype=np.float64))
        part = part.to(total)
        part = part.sum(-1) if part.dim() == 2 else part
        total = total + weight * _grpo(part, groups, epsilon, norm_adv_by_std_in_grpo)
    return _pair(masked_whiten(_broadcast(total, response_mask, token_level_rewards), response_mask))
