"""From scores to advantages: the glue between a DataProto and the pure functions of podium.algorithms.

Each function reads and writes columns of the batch and returns metrics; none of them knows a worker.
"""

from __future__ import annotations

from typing import Any

import torch

from podium.algorithms import (
    KLController,
    _blend_ref_quality_score,
    _compute_ref_quality_score,
    at_last_token,
    get_adv_estimator_fn,
    missing_eos_penalty,
    observed_as_agreed,
    overlong_penalty,
    ref_quality_metrics,
    rollout_correction,
    schedule_weight,
    subtract_kl,
    whiten_rewards,
    zero_std_groups,
)
from podium.config.schema import AlgorithmConfig
from podium.metric import Metric
from podium.protocol import DataProto
from podium.trainer.episodes import FINISHED

StepMetrics = dict[str, float | Metric]


def apply_score_penalties(
    data: DataProto, algorithm: AlgorithmConfig, eos_token_id: int, max_response_length: int
) -> DataProto:
    """Penalties that are part of the score: no end of sequence, and DAPO's soft one on overlong responses.

    An episode that ended by its answer, or because its environment was done, is at its end without such a token.
    """
    tensors = data.tensors()
    scores, mask = tensors["token_level_scores"], tensors["response_mask"]
    if algorithm.missing_eos_penalty is not None:
        less = missing_eos_penalty(scores, tensors["responses"], mask, eos_token_id, algorithm.missing_eos_penalty)
        finished = torch.tensor([str(reason) in FINISHED for reason in data.non_tensor_batch["stop_reason"]])
        scores = torch.where(finished[:, None], scores, less)
    overlong = algorithm.overlong_buffer
    if overlong.enable:
        penalty = overlong_penalty(mask.sum(-1), max_response_length, overlong.len, overlong.penalty_factor)
        scores = scores + at_last_token(penalty, mask)
    return data.put(token_level_scores=scores)


def apply_rollout_correction(data: DataProto, algorithm: AlgorithmConfig) -> StepMetrics:
    """Measure the gap between sampler and trainer; correct for it where configured."""
    tensors = data.tensors()
    old, sampled = tensors["old_log_probs"], tensors["rollout_log_probs"]
    sampled = observed_as_agreed(sampled, old, tensors.get("info_mask"))
    outcome = rollout_correction(old, sampled, tensors["response_mask"], algorithm.rollout_correction)
    data.put(response_mask=outcome.response_mask)
    if outcome.weights is not None:
        data.put(rollout_is_weights=outcome.weights)
    return dict(outcome.metrics)


def apply_kl_penalty(
    data: DataProto, kl_ctrl: KLController, kl_penalty: str = "kl", step: int = 0, total_steps: int = 1
) -> tuple[DataProto, dict[str, float]]:
    """token_level_rewards = token_level_scores − β·KL(π‖reference), then the controller learns what the KL was."""
    tensors = data.tensors()
    beta = kl_ctrl.value_at(step, total_steps)
    rewards, current_kl = subtract_kl(
        tensors["token_level_scores"],
        tensors["old_log_probs"],
        tensors["ref_log_prob"],
        tensors["response_mask"],
        beta,
        kl_penalty,
    )
    kl_ctrl.update(current_kl=current_kl, n_steps=len(data))
    data.put(token_level_rewards=rewards)
    return data, {"actor/reward_kl_penalty": current_kl, "actor/reward_kl_penalty_coeff": beta}


def shape_rewards(
    data: DataProto, algorithm: AlgorithmConfig, kl_ctrl: KLController, step: int, total_steps: int
) -> StepMetrics:
    """From `token_level_scores` to `token_level_rewards`: KL penalty, reference quality, whitening, as configured."""
    metrics: StepMetrics = {}
    if algorithm.use_kl_in_reward:
        data, kl_metrics = apply_kl_penalty(data, kl_ctrl, algorithm.kl_penalty, step, total_steps)
        metrics |= kl_metrics
    else:
        data.put(token_level_rewards=data.tensors()["token_level_scores"])
    tensors, quality = data.tensors(), algorithm.ref_quality_score
    rewards, mask = tensors["token_level_rewards"], tensors["response_mask"]
    if quality.enable:
        weight = schedule_weight(
            quality.schedule, step, total_steps, quality.max_weight, quality.warmup_ratio, quality.steps
        )
        scores = _compute_ref_quality_score(tensors["ref_log_prob"], mask, quality.granularity)
        rewards = _blend_ref_quality_score(rewards, scores, mask, weight)
        metrics |= ref_quality_metrics(tensors["ref_log_prob"], mask, weight)
    if algorithm.whiten_rewards:
        rewards = whiten_rewards(rewards, mask)
    data.put(token_level_rewards=rewards)
    return metrics


def compute_advantage(
    data: DataProto,
    adv_estimator: str,
    gamma: float = 1.0,
    lam: float = 1.0,
    num_repeat: int = 1,
    norm_adv_by_std_in_grpo: bool = True,
    config: AlgorithmConfig | None = None,
) -> DataProto:
    """Add `advantages` and `returns` by the registered (or the user's own) estimator.

    `num_repeat` is verl's; ours reads the groups from `uid`, so that groups may differ in size.
    """
    columns: dict[str, Any] = data.tensors()
    parts = {k.removeprefix("reward/"): v for k, v in data.non_tensor_batch.items() if k.startswith("reward/")}
    numbers = {k: v for k, v in parts.items() if all(isinstance(x, bool | int | float) for x in v)}
    if numbers:
        columns["reward_parts"] = {k: torch.tensor([float(x) for x in v]) for k, v in numbers.items()}
    columns["norm_adv_by_std_in_grpo"] = norm_adv_by_std_in_grpo
    advantages, returns = get_adv_estimator_fn(adv_estimator)(
        columns.pop("token_level_rewards"),
        columns.pop("response_mask"),
        index=data.non_tensor_batch.get("uid"),
        gamma=gamma,
        lam=lam,
        config=config,
        **columns,
    )
    return data.put(advantages=advantages, returns=returns)


def count_zero_std_groups(data: DataProto) -> dict[str, float]:
    """Groups whose rewards are all equal, which teach nothing."""
    returns = data.tensors()["token_level_rewards"].sum(-1)
    return {"critic/zero_std_groups": float(zero_std_groups(returns, data.non_tensor_batch["uid"]))}
