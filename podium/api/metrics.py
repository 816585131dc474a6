"""TRL's metrics beside Podium's own: the same numbers under TRL's names, and those that only TRL has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from podium.algorithms.kl import kl_penalty
from podium.engines.rollout.base import StopReason
from podium.protocol import DataProto
from podium.trainer.scoring import num_groups
from podium.trainer.validation import ValidationResult

PPO_NAMES = {
    "actor/ppo_kl_k2": "policy/approxkl_avg",
    "actor/ratio": "val/ratio",
    "actor/pg_clipfrac": "policy/clipfrac_avg",
    "actor/pg_loss": "loss/policy_avg",
    "critic/vf_loss": "loss/value_avg",
    "critic/vf_clipfrac": "val/clipfrac_avg",
    "actor/lr": "lr",
}
GRPO_NAMES = {
    "actor/kl": "kl",
    "actor/entropy": "entropy",
    "actor/pg_clipfrac": "clip_ratio/region_mean",
    "actor/pg_clipfrac_high": "clip_ratio/high_mean",
    "actor/grad_norm": "grad_norm",
    "actor/lr": "learning_rate",
}


def renamed(numbers: Mapping[str, float], groups: bool) -> dict[str, float]:
    """A step's own metrics under TRL's names; `groups`: those of its GRPOTrainer too."""
    names = [*PPO_NAMES.items(), *(GRPO_NAMES.items() if groups else ())]
    metrics = {name: numbers[ours] for ours, name in names if ours in numbers}
    if "actor/ratio_deviation" in numbers:
        variance = numbers["actor/ratio_deviation"] - (numbers["actor/ratio"] - 1.0) ** 2
        metrics["val/ratio_var"] = max(0.0, variance)
    if "clip_ratio/high_mean" in metrics:
        metrics["clip_ratio/low_mean"] = metrics["clip_ratio/region_mean"] - metrics["clip_ratio/high_mean"]
    return metrics


def objective_metrics(
    batch: DataProto, algorithm: Any, eos_token_id: int, kl_coef: float | None = None
) -> dict[str, float]:
    """`objective/*`, the entropy and the end tokens of a batch: sums over real tokens, means over rows.

    `objective/kl` is by the estimator that the penalty in the reward has; `kl_coef`: the coefficient of this step.
    """
    tensors = batch.tensors()
    mask = tensors["response_mask"].float()
    scores = tensors["token_level_scores"].sum(-1).mean()
    metrics = {"objective/scores": scores}
    written = torch.where(mask.bool(), tensors["responses"], -1)
    metrics["val/num_eos_tokens"] = (written == eos_token_id).sum()
    if "old_log_probs" in tensors:
        old = tensors["old_log_probs"] * mask
        metrics["objective/entropy"] = -old.sum(-1).mean()
        if "ref_log_prob" in tensors:
            reference = tensors["ref_log_prob"] * mask
            kl = (kl_penalty(old, reference, algorithm.kl_penalty) * mask).sum(-1).mean()
            usual = algorithm.kl_ctrl.kl_coef if algorithm.use_kl_in_reward else 0.0
            metrics["objective/kl"] = kl
            metrics["objective/non_score_reward"] = -(usual if kl_coef is None else kl_coef) * kl
            metrics["objective/rlhf_reward"] = metrics["objective/non_score_reward"] + scores
    if "entropys" in tensors:
        metrics["policy/entropy_avg"] = (tensors["entropys"] * mask).sum() / mask.sum().clamp(min=1)
    return {name: float(value) for name, value in metrics.items()}


def group_metrics(batch: DataProto, zero_std_groups: float) -> dict[str, float]:
    """What TRL's GRPOTrainer says about rewards and completions."""
    if not len(batch):
        return {}
    tensors, columns = batch.tensors(), batch.non_tensor_batch
    width = tensors["responses"].shape[1]
    lengths = tensors["attention_mask"][:, -width:].sum(-1).float()
    cut = torch.tensor([reason == StopReason.LENGTH for reason in columns["stop_reason"]])
    finished = lengths[~cut] if bool((~cut).any()) else torch.zeros(1)
    metrics = _mean_and_std(tensors["token_level_scores"].sum(-1), "reward", "reward_std")
    metrics["frac_reward_zero_std"] = zero_std_groups / max(1, num_groups([batch]))
    metrics["completions/clipped_ratio"] = float(cut.float().mean())
    for name, part in {"length": lengths, "terminated_length": finished}.items():
        metrics[f"completions/mean_{name}"] = float(part.mean())
        metrics[f"completions/min_{name}"] = float(part.min())
        metrics[f"completions/max_{name}"] = float(part.max())
    for key, values in columns.items():
        name = key.removeprefix("reward/")
        if name != key and all(isinstance(value, bool | int | float) for value in values):
            parts = torch.tensor([float(value) for value in values])
            metrics |= _mean_and_std(parts, f"rewards/{name}/mean", f"rewards/{name}/std")
    return metrics


def _mean_and_std(values: Tensor, mean: str, std: str) -> dict[str, float]:
    return {mean: float(values.mean()), std: float(values.std()) if len(values) > 1 else 0.0}


def evaluation_metrics(result: ValidationResult) -> dict[str, float]:
    """The validation's metrics, and the mean score as `eval_score`."""
    scores = [sample.score for sample in result.samples if sample.score is not None]
    mean = sum(scores) / len(scores) if scores else float("nan")
    return {"eval_score": mean, "eval_samples": float(len(result.samples))} | result.metrics
