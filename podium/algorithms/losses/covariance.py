"""Clip-Cov and KL-Cov: losses that treat a few high-covariance tokens differently.

Which tokens is a question about the whole optimizer step, so it is answered once, before the step, by `select_*`; after
that the loss stands token by token. A token's draw is a hash of its row's key, its position and a seed: the same tokens
are selected whatever the order of rows, the padding or the number of ranks.

Cui et al., "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models", 2025, arXiv:2505.22617.
"""

from __future__ import annotations

import torch
from torch import Tensor

from podium.algorithms.losses.common import clip_range, finish_policy_loss, log_ratio
from podium.algorithms.losses.registry import register_policy_loss
from podium.algorithms.losses.token import ppo_token_losses
from podium.algorithms.masking import inside, masked_mean
from podium.config.schema import ActorConfig
from podium.metric import Metrics


def _signed(constant: int) -> int:
    """A 64-bit constant as the int64 with the same bits."""
    return constant - (1 << 64) if constant >= 1 << 63 else constant


def _mix(x: Tensor) -> Tensor:
    """A bijective scramble of int64 numbers (the finisher of splitmix64); products wrap around."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ _shifted(x, shift)) * _signed(factor)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _positions(mask: Tensor) -> Tensor:
    steps = torch.arange(1, mask.shape[-1] + 1, device=mask.device, dtype=torch.int64)
    return steps * _signed(0x9E3779B97F4A7C15)


def _row_keys(old_log_prob: Tensor, mask: Tensor) -> Tensor:
    """[B] int64 from a row's content: the bits of its log-probs with their positions."""
    bits = old_log_prob.detach().float().contiguous().view(torch.int32).long()
    return torch.where(mask.bool(), _mix(bits ^ _positions(mask)), 0).sum(-1)


def _draws(old_log_prob: Tensor, mask: Tensor, seed: int, row_keys: Tensor | None) -> Tensor:
    """[B, R] int64: one pseudo-random number per token."""
    keys = _row_keys(old_log_prob, mask) if row_keys is None else row_keys.to(mask.device, torch.int64)
    seeded = _mix(keys + _signed((seed * 0xD1342543DE82EF95) % (1 << 64)))
    return _mix(seeded.unsqueeze(-1) ^ _positions(mask))


def _covariance(log_prob: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """(A − Ā)(ℓ − ℓ̄) in float64, means over all valid tokens."""
    a, b = inside(mask, advantages.detach().double(), log_prob.detach().double())
    return (a - masked_mean(a, mask)) * (b - masked_mean(b, mask))


def _first(order: Tensor, candidates: Tensor, number: int) -> Tensor:
    """[B, R] bool: the first `number` candidates in `order`, a permutation of the flattened positions."""
    flat = candidates.reshape(-1)
    chosen = order[flat[order]][:number]
    return torch.zeros_like(flat).index_fill(0, chosen, True).view(candidates.shape)


def select_clip_cov(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    config: ActorConfig,
    seed: int = 0,
    row_keys: Tensor | None = None,
) -> Tensor:
    """[B, R] bool: max(1, ⌊clip_cov_ratio·N⌋) random tokens of those unclipped with clip_cov_lb < cov < clip_cov_ub."""
    settings = config.policy_loss
    log_prob, old_log_prob, advantages = inside(response_mask, log_prob, old_log_prob, advantages)
    _, clipped, _ = ppo_token_losses(log_ratio(log_prob, old_log_prob), advantages, *clip_range(config))
    covariance = _covariance(log_prob, advantages, response_mask)
    band = (covariance > settings.clip_cov_lb) & (covariance < settings.clip_cov_ub)
    number = max(1, int(settings.clip_cov_ratio * int(response_mask.bool().sum())))
    order = _draws(old_log_prob, response_mask, seed, row_keys).reshape(-1).argsort(stable=True)
    return _first(order, response_mask.bool() & band & ~clipped, number)


def select_kl_cov(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    config: ActorConfig,
    seed: int = 0,
    row_keys: Tensor | None = None,
) -> Tensor:
    """[B, R] bool: the max(1, ⌊kl_cov_ratio·N⌋) tokens of largest covariance; equals are ordered by their draws."""
    log_prob, old_log_prob, advantages = inside(response_mask, log_prob, old_log_prob, advantages)
    number = max(1, int(config.policy_loss.kl_cov_ratio * int(response_mask.bool().sum())))
    order = _draws(old_log_prob, response_mask, seed, row_keys).reshape(-1).argsort(stable=True)
    covariance = _covariance(log_prob, advantages, response_mask).reshape(-1)
    order = order[covariance[order].argsort(descending=True, stable=True)]
    return _first(order, response_mask.bool(), number)


@register_policy_loss("clip_cov", prepare=select_clip_cov, proportional=True)
def compute_policy_loss_clip_cov(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    config: ActorConfig,
    rollout_is_weights: Tensor | None = None,
    selection: Tensor | None = None,
    l_max: float | None = None,
) -> tuple[Tensor, Metrics]:
    """Clip-Cov: max(−Aρ, −A·clip(ρ, 1−lo, 1+hi)), with weight 0 on the selected tokens (see select_clip_cov).

    The paper's loss has no dual clip. Cui et al., 2025, arXiv:2505.22617.
    """
    assert selection is not None
    old_log_prob, log_prob, advantages = inside(response_mask, old_log_prob, log_prob, advantages)
    difference = log_ratio(log_prob, old_log_prob)
    losses, clipped, _ = ppo_token_losses(difference, advantages, *clip_range(config))
    losses = torch.where(selection.bool(), 0.0, losses)
    clipped = clipped | selection.bool()
    return finish_policy_loss(losses, response_mask, loss_agg_mode, l_max, difference, rollout_is_weights, clipped)


@register_policy_loss("kl_cov", prepare=select_kl_cov)
def compute_policy_loss_kl_cov(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    config: ActorConfig,
    rollout_is_weights: Tensor | None = None,
    selection: Tensor | None = None,
    l_max: float | None = None,
) -> tuple[Tensor, Metrics]:
    """KL-Cov: −Aρ, plus κ·|ℓ − ℓ_old| on the selected tokens (see select_kl_cov).

    Cui et al., 2025, arXiv:2505.22617.
    """
    assert selection is not None
    old_log_prob, log_prob, advantages = inside(response_mask, old_log_prob, log_prob, advantages)
    difference = log_ratio(log_prob, old_log_prob)
    penalty = torch.where(selection.bool(), config.policy_loss.ppo_kl_coef * difference.abs(), 0.0)
    losses = -advantages * difference.exp() + penalty
    return finish_policy_loss(losses, response_mask, loss_agg_mode, l_max, difference, rollout_is_weights)
