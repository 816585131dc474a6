"""Importance weights for the gap between the policy that sampled and the policy that trains.

The rollout engine and the train engine compute the log-probs of the same tokens with different kernels, precision or
weights: log r = ℓ_train − ℓ_roll, clamped to ±20. Weights correct the loss for it, rejection drops sequences that are
too far off, and the `rollout_corr/*` metrics say how large the gap is, always. Log-probs of both sides must be of the
same distribution: with top_p or top_k use the sampler's processed log-probs on both sides, or no correction.

Truncation: Espeholt et al., "IMPALA", 2018, arXiv:1802.01561; for rollout engines: Yao et al., "Your Efficient RL
Framework Secretly Brings You Off-Policy RL Training", 2025.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from podium.algorithms.masking import inside, masked_mean
from podium.algorithms.reporting import mean_metrics
from podium.config.schema import RolloutCorrectionConfig
from podium.metric import Metric, Metrics

MAX_PROB_DIFFERENCE = 0.01
"""A mean |π_train − π_roll| above this deserves a warning."""
MAX_STALE_DIFFERENCE = 0.1
"""The same where samples lag behind the policy and are weighted for it: a gap is expected, one this large is not."""


@dataclass(frozen=True)
class RolloutCorrection:
    """`weights` [B, R]: detached, 0 outside the mask, None when off. `response_mask` [B, R]: without rejected rows."""

    weights: Tensor | None
    response_mask: Tensor
    metrics: Metrics


def rollout_correction(
    old_log_probs: Tensor, rollout_log_probs: Tensor, response_mask: Tensor, config: RolloutCorrectionConfig
) -> RolloutCorrection:
    """Weights, rejection and metrics from the trainer's and the sampler's log-probs of the same tokens [B, R].

    token     w_t = exp(log r_t)             sequence  w = exp(Σ_t m·log r), the same for all tokens of a row
    clip      w ← min(w, C)                  mask      w ← 0 outside [1/C, C]
    reject    keep a row if exp(mean_t log r) ∈ [reject_low, reject_high]
    """
    with torch.no_grad():
        keep = response_mask.bool()
        train, roll = inside(keep, old_log_probs.float(), rollout_log_probs.float())
        log_r = (train - roll).clamp(-20.0, 20.0)
        raw = _raw_weights(log_r, keep, config.mode)
        weights = None if config.mode == "off" else inside(keep, _truncate(raw, config).expand(keep.shape))[0]
        geometric = masked_mean(log_r, keep, axis=-1).exp()
        accepted = torch.ones_like(geometric, dtype=torch.bool)
        if config.reject_low is not None:
            accepted &= geometric >= config.reject_low
        if config.reject_high is not None:
            accepted &= geometric <= config.reject_high
        metrics = rollout_correction_metrics(old_log_probs, rollout_log_probs, response_mask, config.mode)
        rows = keep.any(-1)
        metrics["rollout_corr/rejected"] = Metric.mean(int((rows & ~accepted).sum()), int(rows.sum()))
        return RolloutCorrection(weights, response_mask * accepted.unsqueeze(-1).to(response_mask.dtype), metrics)


def observed_as_agreed(rollout_log_probs: Tensor, log_probs: Tensor, info_mask: Tensor | None) -> Tensor:
    """The sampler's log-probs [B, R]; where nobody sampled (an observation) the trainer's own: no gap to correct."""
    if info_mask is None:
        return rollout_log_probs
    return torch.where(info_mask.bool(), rollout_log_probs, log_probs.detach())


def _raw_weights(log_r: Tensor, keep: Tensor, mode: str) -> Tensor:
    """Before truncation: [B, R] by token (and when off), [B, 1] by sequence."""
    if mode == "sequence":
        return inside(keep, log_r)[0].sum(-1, keepdim=True).clamp(-20.0, 20.0).exp()
    return log_r.exp()


def _truncate(weights: Tensor, config: RolloutCorrectionConfig) -> Tensor:
    if config.truncate == "clip":
        return weights.clamp(max=config.threshold)
    outside = (weights > config.threshold) | (weights < 1.0 / config.threshold)
    return weights.masked_fill(outside, 0.0)


def rollout_correction_metrics(
    old_log_probs: Tensor, rollout_log_probs: Tensor, response_mask: Tensor, mode: str = "token"
) -> Metrics:
    """`rollout_corr/*`: how far the trainer's log-probs are from the sampler's; of use without any correction too.

    kl         mean ℓ_roll − ℓ_train                 k3_kl   mean r − log r − 1
    prob_diff  mean |π_train − π_roll|               ppl_ratio  mean over rows, perplexity of trainer over sampler's
    ess, max   (Σw)²/(N·Σw²) and maximum of the weights before truncation, by token or by sequence
    """
    with torch.no_grad():
        keep = response_mask.bool()
        train, roll = inside(keep, old_log_probs.float(), rollout_log_probs.float())
        log_r = (train - roll).clamp(-20.0, 20.0)
        tokens, rows = keep.sum(), keep.any(-1)
        raw = _raw_weights(log_r, keep, mode)
        units = keep if raw.shape == keep.shape else rows.unsqueeze(-1)
        (w,) = inside(units, raw.double())
        size = units.sum()
        # The share (Σw)²/(N·Σw²) with weight N: its total is (Σw)²/Σw².
        ess = w.sum().square() / w.square().sum().clamp(min=1e-30)
        ppl_ratio = inside(rows, (-masked_mean(log_r, keep, axis=-1)).exp())[0]
        metrics = mean_metrics(
            {
                "rollout_corr/kl": (-log_r.sum(), tokens),
                "rollout_corr/k3_kl": ((log_r.expm1() - log_r).sum(), tokens),
                "rollout_corr/prob_diff": ((train.exp() - roll.exp()).abs().sum(), tokens),
                "rollout_corr/ppl_ratio": (ppl_ratio.sum(), rows.sum()),
                "rollout_corr/ess": (ess, size),
            }
        )
        return metrics | {"rollout_corr/max": Metric.max(float(w.max()) if w.numel() else 0.0)}


def mismatch_warning(gap: float, mode: str = "off", staleness: int = 0) -> str | None:
    """What to tell the user when a step's `rollout_corr/prob_diff` is past the limit, else None.

    `mode` is the correction's; `staleness` how many updates the step's samples lag behind.
    """
    expected = staleness > 0 and mode != "off"
    limit = MAX_STALE_DIFFERENCE if expected else MAX_PROB_DIFFERENCE
    if gap <= limit:
        return None
    said = f"token probabilities differ by {gap:.4f} on average, more than {limit}"
    lag = f"the samples lag {staleness} update{'' if staleness == 1 else 's'} behind the policy: {said}"
    if expected:
        return (
            f"{lag}, which is much even so. Lower trainer.max_staleness or the learning rate; "
            f"algorithm.rollout_correction.mode={mode} bounds what such samples weigh"
        )
    if staleness > 0:
        return (
            f"{lag}, and nothing corrects for it. Set algorithm.rollout_correction.mode=token, or "
            "trainer.max_staleness=0"
        )
    check = f"trainer and sampler disagree: {said}. Check dtype, temperature and weight version"
    if mode != "off":
        return f"{check}; algorithm.rollout_correction.mode={mode} weighs the loss for it meanwhile"
    return f"{check}, or set algorithm.rollout_correction.mode"
