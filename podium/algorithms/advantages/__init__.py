"""Advantage estimators, by name in a registry and under verl's function names."""

from podium.algorithms.advantages.outcome import (
    compute_gdpo_outcome_advantage,
    compute_gpg_outcome_advantage,
    compute_grpo_outcome_advantage,
    compute_grpo_passk_outcome_advantage,
    compute_opo_outcome_advantage,
    compute_reinforce_plus_plus_baseline_outcome_advantage,
    compute_rloo_outcome_advantage,
)
from podium.algorithms.advantages.registry import (
    AdvantageEntry,
    AdvantageEstimator,
    get_adv_estimator_fn,
    register_adv_est,
)
from podium.algorithms.advantages.tokenwise import (
    compute_gae_advantage_return,
    compute_optimal_token_baseline_advantage,
    compute_reinforce_plus_plus_outcome_advantage,
    compute_remax_outcome_advantage,
    compute_tir_optimal_token_baseline_advantage,
    reward_to_go,
)

__all__ = [
    "AdvantageEntry",
    "AdvantageEstimator",
    "compute_gae_advantage_return",
    "compute_gdpo_outcome_advantage",
    "compute_gpg_outcome_advantage",
    "compute_grpo_outcome_advantage",
    "compute_grpo_passk_outcome_advantage",
    "compute_opo_outcome_advantage",
    "compute_optimal_token_baseline_advantage",
    "compute_reinforce_plus_plus_baseline_outcome_advantage",
    "compute_reinforce_plus_plus_outcome_advantage",
    "compute_remax_outcome_advantage",
    "compute_rloo_outcome_advantage",
    "compute_tir_optimal_token_baseline_advantage",
    "get_adv_estimator_fn",
    "register_adv_est",
    "reward_to_go",
]
