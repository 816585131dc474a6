"""What every policy loss shares: clip range, log-ratio, the step to a sum with metrics, the other loss terms."""

from __future__ import annotations

from torch import Tensor

from podium.algorithms.aggregation import agg_sum, count_tensor
from podium.algorithms.kl import kl_penalty
from podium.algorithms.masking import inside, masked_sum
from podium.algorithms.reporting import mean_metrics
from podium.config.schema import ActorConfig
from podium.metric import Metric, Metrics


def clip_range(config: ActorConfig) -> tuple[float, float]:
    """(lo, hi): `clip_ratio` on both sides, unless `clip_ratio_low` or `clip_ratio_high` says otherwise."""
    low = config.clip_ratio if config.clip_ratio_low is None else config.clip_ratio_low
    high = config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high
    return low, high


def log_ratio(log_prob: Tensor, old_log_prob: Tensor) -> Tensor:
    """clamp(ℓ − ℓ_old, ±20): e²⁰ is as large as a float32 ratio should get."""
    return (log_prob - old_log_prob).clamp(-20.0, 20.0)


def finish_policy_loss(
    losses: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    l_max: float | None,
    difference: Tensor,
    rollout_is_weights: Tensor | None = None,
    clipped: Tensor | None = None,
    clipped_lower: Tensor | None = None,
    above: Tensor | None = None,
) -> tuple[Tensor, Metrics]:
    """Token losses [B, R] -> (loss_sum, Metrics): importance weights on, then the sum half of the aggregation.

    Metrics: `actor/pg_loss` over the aggregation's count; over tokens, from `difference` = ℓ − ℓ_old, `actor/ppo_kl` =
    mean(ℓ_old − ℓ), `actor/ppo_kl_k2` = mean((ℓ − ℓ_old)² / 2), `actor/ratio` = mean(ρ) and `actor/ratio_deviation` =
    mean((ρ − 1)²), ρ = e^(ℓ − ℓ_old); and the shares of `clipped` and `clipped_lower` tokens where the loss has such.
    `above`: where the ratio that is clipped is above 1, for the share `actor/pg_clipfrac_high` of the upper bound.
    """
    if rollout_is_weights is not None:
        losses = losses * inside(response_mask, rollout_is_weights.detach())[0]
    loss_sum = agg_sum(losses, response_mask, loss_agg_mode, l_max)
    keep = response_mask.bool()
    difference = difference.detach()
    per_token = {"actor/ppo_kl": -difference, "actor/ppo_kl_k2": difference.square() / 2}
    per_token["actor/ratio"] = difference.clamp(max=20.0).exp()
    per_token["actor/ratio_deviation"] = (per_token["actor/ratio"] - 1.0).square()
    if clipped is not None:
        per_token["actor/pg_clipfrac"] = clipped
        if above is not None:
            per_token["actor/pg_clipfrac_high"] = clipped & above
    if clipped_lower is not None:
        per_token["actor/pg_clipfrac_lower"] = clipped_lower
    tokens = keep.sum()
    sums = {name: ((x.detach() * keep).sum(), tokens) for name, x in per_token.items()}
    sums["actor/pg_loss"] = (loss_sum, count_tensor(response_mask, loss_agg_mode, l_max))
    return loss_sum, mean_metrics(sums)


def add_regularizers(
    loss_sum: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    config: ActorConfig,
    *,
    log_prob: Tensor | None = None,
    ref_log_prob: Tensor | None = None,
    entropy: Tensor | None = None,
    l_max: float | None = None,
) -> tuple[Tensor, Metrics]:
    """total = pg − entropy_coeff·H + kl_loss_coef·KL(ℓ, ℓ_ref), all as sums over the same tokens.

    The entropy is reported per token whenever it is given and counts when its coefficient is not 0; the KL counts with
    `use_kl_loss`, and is reported as the loss has it (`actor/kl_loss`) and per token (`actor/kl`).
    """
    count = count_tensor(response_mask, loss_agg_mode, l_max)
    parts: dict[str, tuple[Tensor, Tensor]] = {}
    if entropy is not None:
        parts["actor/entropy"] = (masked_sum(entropy, response_mask), response_mask.bool().sum())
        if config.entropy_coeff:
            loss_sum = loss_sum - config.entropy_coeff * agg_sum(entropy, response_mask, loss_agg_mode, l_max)
    if config.use_kl_loss:
        assert log_prob is not None and ref_log_prob is not None, "use_kl_loss needs log_prob and ref_log_prob"
        log_prob, ref_log_prob = inside(response_mask, log_prob, ref_log_prob)
        kld = kl_penalty(log_prob, ref_log_prob, config.kl_loss_type)
        kl_sum = agg_sum(kld, response_mask, loss_agg_mode, l_max)
        parts["actor/kl_loss"] = (kl_sum, count)
        parts["actor/kl"] = (masked_sum(kld, response_mask), response_mask.bool().sum())
        loss_sum = loss_sum + config.kl_loss_coef * kl_sum
    metrics = mean_metrics(parts)
    if config.use_kl_loss:
        metrics["actor/kl_coef"] = Metric.last(config.kl_loss_coef)
    return loss_sum, metrics
