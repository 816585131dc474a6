"""Advantages that differ from token to token: recursions over a response, right to left.

Observation tokens (mask 0) are skipped: the recursion carries over them unchanged, and a reward that sits on one counts
for the model token before it. No function here loops over rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from podium.algorithms.advantages.registry import AdvantageEstimator, register_adv_est
from podium.algorithms.groups import Groups, Index
from podium.algorithms.masking import fold_rewards, inside, masked_whiten, model_token_index


def _columns(x: Tensor) -> tuple[Tensor, ...]:
    """[B, R] -> R tensors [B], each contiguous: a long recursion over strided columns is several times slower."""
    return x.T.contiguous().unbind(0)


def reward_to_go(token_level_rewards: Tensor, response_mask: Tensor, gamma: float = 1.0) -> Tensor:
    """G_t = r_t + γ·G_{t+1} over model tokens [B, R], 0 outside the mask."""
    keep = response_mask.bool()
    rewards = fold_rewards(token_level_rewards, keep)
    if gamma == 1.0:
        return inside(keep, rewards.flip(-1).cumsum(-1).flip(-1))[0]
    carried = rewards.new_zeros(len(rewards))
    steps: list[Tensor] = []
    for reward, here in reversed(list(zip(_columns(rewards), _columns(keep), strict=True))):
        carried = torch.where(here, reward + gamma * carried, carried)
        steps.append(carried)
    return inside(keep, torch.stack(steps[::-1]).T)[0] if steps else rewards


@register_adv_est(AdvantageEstimator.GAE)
def compute_gae_advantage_return(
    token_level_rewards: Tensor, values: Tensor, response_mask: Tensor, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """GAE, right to left with the next model token's value V⁺ (0 at the end) and advantage Â⁺:

        δ_t = r_t + γV⁺ − V_t,  Â_t = δ_t + γλÂ⁺,  returns = Â + V,  then A = whiten(Â) over the batch.

    Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation", 2015,
    arXiv:1506.02438.
    """
    keep = response_mask.bool()
    rewards = fold_rewards(token_level_rewards, keep)
    (values,) = inside(keep, values)
    next_value = carried = values.new_zeros(len(values))
    steps: list[Tensor] = []
    columns = zip(_columns(rewards), _columns(values), _columns(keep), strict=True)
    for reward, value, here in reversed(list(columns)):
        delta = reward + gamma * next_value - value
        carried = torch.where(here, delta + gamma * lam * carried, carried)
        next_value = torch.where(here, value, next_value)
        steps.append(carried)
    raw = inside(keep, torch.stack(steps[::-1]).T)[0] if steps else rewards
    return masked_whiten(raw, keep), raw + values


@register_adv_est(AdvantageEstimator.REINFORCE_PLUS_PLUS)
def compute_reinforce_plus_plus_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, gamma: float = 1.0
) -> tuple[Tensor, Tensor]:
    """REINFORCE++: G_t = r_t + γG_{t+1}, A = whiten(G)·m over the batch; returns = G.

    Hu, "REINFORCE++: A Simple and Efficient Approach for Aligning Large Language Models", 2025, arXiv:2501.03262.
    """
    returns = reward_to_go(token_level_rewards, response_mask, gamma)
    return masked_whiten(returns, response_mask), returns


@register_adv_est(AdvantageEstimator.REMAX)
def compute_remax_outcome_advantage(
    token_level_rewards: Tensor, reward_baselines: Tensor, response_mask: Tensor, gamma: float = 1.0
) -> tuple[Tensor, Tensor]:
    """ReMax: A_t = G_t − b_i, b_i [B] the score of one greedy rollout of the same prompt; returns = G.

    Li et al., "ReMax", 2023, arXiv:2310.10505.
    """
    returns = reward_to_go(token_level_rewards, response_mask, gamma)
    return inside(response_mask, returns - reward_baselines.to(returns).unsqueeze(-1))[0], returns


def _token_baseline(returns: Tensor, energy: Tensor, keep: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
    """Per row and position: B_t = ΣG_tW_tm/(ΣW_tm + 1e-8) of its group [B, R], and how many rows stand there."""
    total, weighted, present = (groups.sum(x) for x in inside(keep, energy, energy * returns, torch.ones_like(energy)))
    baseline = weighted / (total + 1e-8)
    return baseline[groups.ids], present[groups.ids]


def _energy(old_log_probs: Tensor, sum_pi_squared: Tensor, keep: Tensor) -> Tensor:
    """W_t = Σ_{s≤t} (1 − 2π_s + Σ_v π_v²)·m_s in float64: the squared gradient norm so far, as seen at the logits."""
    log_probs, squares = inside(keep, old_log_probs.double(), sum_pi_squared.double())
    return inside(keep, 1.0 - 2.0 * log_probs.exp() + squares)[0].cumsum(-1)


@register_adv_est(AdvantageEstimator.OPTIMAL_TOKEN_BASELINE)
def compute_optimal_token_baseline_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    old_log_probs: Tensor,
    sum_pi_squared: Tensor,
    gamma: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Optimal token baseline: w_t = 1 − 2π_t + Σ_vπ_v², W_t = Σ_{s≤t} w_s m_s; per group and position

        B_t = ΣG_tW_tm/(ΣW_tm + 1e-8),  A = (G − B)·m;  returns = G.

    Li et al., "The Optimal Token Baseline: Variance Reduction for Long-Horizon LLM-RL", 2026, arXiv:2602.07078.
    """
    keep = response_mask.bool()
    returns = reward_to_go(token_level_rewards, keep, gamma)
    energy = _energy(old_log_probs, sum_pi_squared, keep)
    groups = Groups.of(index, returns.device)
    baseline, _ = _token_baseline(returns.double(), energy, keep, groups)
    return inside(keep, (returns - baseline).to(returns.dtype))[0], returns


@register_adv_est(AdvantageEstimator.TIR_OPTIMAL_TOKEN_BASELINE)
def compute_tir_optimal_token_baseline_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    old_log_probs: Tensor,
    sum_pi_squared: Tensor,
    gamma: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The optimal token baseline for tool use: rows are aligned by model-token number instead of position.

    The k-th model token of each row is compared with the k-th of the others. Past the second-longest row of a group the
    longest stands alone and its baseline is 0. A group of one therefore keeps A = G.
    Li et al., 2026, arXiv:2602.07078.
    """
    keep = response_mask.bool()
    owner = model_token_index(keep)

    def compact(x: Tensor) -> Tensor:
        return torch.zeros_like(x).scatter_add(-1, owner, inside(keep, x)[0])

    returns = reward_to_go(token_level_rewards, keep, gamma)
    energy = _energy(old_log_probs, sum_pi_squared, keep)
    written = compact(keep.double()) > 0
    groups = Groups.of(index, returns.device)
    baseline, present = _token_baseline(compact(returns.double()), compact(energy), written, groups)
    baseline = torch.where(present > 1, baseline, 0.0).gather(-1, owner)
    return inside(keep, (returns - baseline).to(returns.dtype))[0], returns
