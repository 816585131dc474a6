"""CallbackTrainer: RayPPOTrainer with callbacks around its phases and TRL's metrics beside its own.

The loop is RayPPOTrainer's and is not repeated here: the methods it calls in each step are extended.
"""

from __future__ import annotations

from typing import Any

import torch

from podium.algorithms.kl import kl_penalty
from podium.api.callbacks import CallbackList
from podium.metric import Metric, reduce_metrics
from podium.protocol import DataProto
from podium.trainer.ray_trainer import RayPPOTrainer, StepMetrics
from podium.trainer.validation import ValidationResult

ALSO_CALLED = {
    "actor/ppo_kl_k2": "policy/approxkl_avg",
    "actor/ratio": "val/ratio",
    "actor/pg_clipfrac": "policy/clipfrac_avg",
    "actor/pg_loss": "loss/policy_avg",
    "critic/vf_loss": "loss/value_avg",
    "critic/vf_clipfrac": "val/clipfrac_avg",
    "actor/lr": "lr",
}
"""Our metrics under TRL's names."""


class CallbackTrainer(RayPPOTrainer):
    callbacks: CallbackList
    """Set right after the trainer is made."""

    def _collect_rollouts(self, metrics: StepMetrics, timing: dict[str, float]) -> DataProto:
        self.callbacks.call("on_step_begin")
        batch = super()._collect_rollouts(metrics, timing)
        self.callbacks.call("on_rollout_end", samples=self.step_samples)
        return batch

    def _record(self, batch: DataProto, metrics: StepMetrics, timing: dict[str, float]) -> None:
        episodes = self.global_steps * self.config.data.train_batch_size * self.config.actor_rollout_ref.rollout.n
        numbers = reduce_metrics(metrics)
        metrics |= {name: numbers[ours] for ours, name in ALSO_CALLED.items() if ours in numbers}
        metrics |= objective_metrics(batch, self.config.algorithm, self.tokenizer.eos_token_id)
        metrics |= {"episode": float(episodes), "eps": len(batch) / timing["step"]}
        super()._record(batch, metrics, timing)
        state, control = self.callbacks.state, self.callbacks.control
        state.global_step, state.episode = self.global_steps, episodes
        state.epoch = self.global_steps / len(self.train_sampler)
        logs = reduce_metrics(metrics) | {"step": float(self.global_steps)}
        state.log_history.append(logs)
        self.callbacks.call("on_log", logs=logs)
        self.callbacks.call("on_step_end", metrics=logs)
        control = self.callbacks.control
        if control.should_training_stop:
            self.total_training_steps = self.global_steps
        if control.should_evaluate:
            control.should_evaluate = False
            self._validate()
        if control.should_save:
            control.should_save = False
            self._save_checkpoint()

    def _validate(self) -> ValidationResult | None:
        result = super()._validate()
        if result is not None:
            logs = evaluation_metrics(result)
            self.callbacks.state.log_history.append(logs | {"step": float(self.global_steps)})
            self.callbacks.call("on_evaluate", metrics=logs)
        return result

    def _save_checkpoint(self) -> None:
        super()._save_checkpoint()
        self.callbacks.call("on_save")


def evaluation_metrics(result: ValidationResult) -> dict[str, float]:
    """The validation's metrics, and the mean score as `eval_score`."""
    scores = [sample.score for sample in result.samples if sample.score is not None]
    mean = sum(scores) / len(scores) if scores else float("nan")
    return {"eval_score": mean, "eval_samples": float(len(result.samples))} | result.metrics


def objective_metrics(batch: DataProto, algorithm: Any, eos_token_id: int) -> dict[str, float | Metric]:
    """`objective/*`, the entropy and the end tokens of a batch: sums over real tokens, means over rows."""
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
            metrics["objective/kl"] = (old - reference).sum(-1).mean()
            penalty = kl_penalty(old, reference, algorithm.kl_penalty) * mask
            metrics["objective/non_score_reward"] = -algorithm.kl_ctrl.kl_coef * penalty.sum(-1).mean()
            metrics["objective/rlhf_reward"] = metrics["objective/non_score_reward"] + scores
    if "entropys" in tensors:
        metrics["policy/entropy_avg"] = (tensors["entropys"] * mask).sum() / mask.sum().clamp(min=1)
    return {name: float(value) for name, value in metrics.items()}
