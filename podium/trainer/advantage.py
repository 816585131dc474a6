"""From scores to advantages: the glue between a DataProto and the pure functions of podium.algorithms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from podium.algorithms import (
    KLController,
    get_adv_estimator_fn,
    masked_whiten,
    schedule_weight,
)
from podium.algorithms.kl import subtract_kl
from podium.config.schema import AlgorithmConfig, Config
from podium.protocol import DataProto


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
    assert data.batch is not None
    data.batch["token_level_rewards"] = rewards
    return data, {"actor/reward_kl_penalty": current_kl, "actor/reward_kl_penalty_coeff": beta}


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
    tensors = data.tensors()
    columns: dict[str, Any] = {k: v for k, v in tensors.items() if k not in ("token_level_rewards", "response_mask")}
    parts = {k.removeprefix("reward/"): v for k, v in data.non_tensor_batch.items() if k.startswith("reward/")}
    advantages, returns = get_adv_estimator_fn(adv_estimator)(
        tensors["token_level_rewards"],
        tensors["response_mask"],
        index=data.non_tensor_batch.get("uid"),
        gamma=gamma,
        lam=lam,
        norm_adv_by_std_in_grpo=norm_adv_by_std_in_grpo,
        config=config,
        reward_parts={k: torch.tensor([float(x) for x in v]) for k, v in parts.items()} if parts else None,
        **columns,
    )
    assert data.batch is not None
    data.batch["advantages"], data.batch["returns"] = advantages, returns
    return data
