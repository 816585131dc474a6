"""What the trainer does with multi-turn episodes: the loss mask, the numbers, and the limit on failures.

A batch of episodes has an `info_mask`; everything here passes over a batch without one. Which tokens count is settled
once, in `response_mask`, and every later part (KL, advantages, losses, critic) reads that.
"""

from __future__ import annotations

import torch

from podium.config.schema import Config
from podium.engines.rollout.base import StopReason
from podium.errors import TrainingError
from podium.protocol import DataProto

FINISHED = (StopReason.ANSWERED, StopReason.DONE)
EPISODE_COLUMNS = ("num_valid_actions", "num_calls", "num_tool_errors")
"""Columns that go along with a sample into the dumps."""


def prepare_episodes(batch: DataProto, config: Config) -> dict[str, float]:
    """Settle the loss mask of a training batch; the metrics of its episodes."""
    if "info_mask" not in batch.tensors():
        return {}
    check_failures(batch, config.agent.max_failure_rate)
    return episode_metrics(batch) | _create_loss_mask(batch, config.actor_rollout_ref.actor.state_masking)


def check_failures(batch: DataProto, max_failure_rate: float) -> None:
    """Stop when too many episodes ended with an error of their environment, with the first one's reason."""
    errors = [
        str(error)
        for reason, error in zip(
            batch.non_tensor_batch["stop_reason"], batch.non_tensor_batch.get("episode_error", []), strict=False
        )
        if reason == StopReason.ERROR
    ]
    if errors and len(errors) > max_failure_rate * len(batch):
        raise TrainingError(
            f"{len(errors)} of {len(batch)} episodes of this step failed, more than agent.max_failure_rate="
            f"{max_failure_rate} allows; the first: {errors[0]}"
        )


def _create_loss_mask(batch: DataProto, state_masking: bool) -> dict[str, float]:
    """Put `loss_mask` beside the batch and make it the `response_mask`: what the model wrote, or, without masking, what
    its environments wrote too. `coverage` is the share of response tokens that count."""
    tensors = batch.tensors()
    width = tensors["responses"].shape[1]
    real = tensors["attention_mask"][:, tensors["attention_mask"].shape[1] - width :].long()
    loss_mask = (
        (tensors["info_mask"] * real).long() if state_masking else real * (tensors["info_mask"].sum(-1) > 0)[:, None]
    )
    batch.put(loss_mask=loss_mask, response_mask=loss_mask)
    total = float(loss_mask.sum())
    return {"state_tokens/total": total, "state_tokens/coverage": total / max(1.0, float(real.sum()))}


def episode_metrics(batch: DataProto) -> dict[str, float]:
    """`env/*`, as Search-R1 names them. An action is a turn; a valid search is one that was really run."""
    columns = batch.non_tensor_batch
    if not len(batch):
        return {}
    turns = torch.tensor([float(n) for n in columns["num_turns"]])
    valid = torch.tensor([float(n) for n in columns["num_valid_actions"]])
    calls = torch.tensor([float(n) for n in columns["num_calls"]])
    reasons = [str(reason) for reason in columns["stop_reason"]]
    return {
        "env/number_of_actions/mean": float(turns.mean()),
        "env/number_of_actions/max": float(turns.max()),
        "env/number_of_actions/min": float(turns.min()),
        "env/finish_ratio": sum(reason in FINISHED for reason in reasons) / len(reasons),
        "env/number_of_valid_action": float(valid.mean()),
        "env/ratio_of_valid_action": float((valid / turns.clamp(min=1)).mean()),
        "env/number_of_valid_search": float(calls.mean()),
        "env/error_ratio": sum(reason == StopReason.ERROR for reason in reasons) / len(reasons),
    }
