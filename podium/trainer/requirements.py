"""What a configuration needs: which models, and which extra passes over them."""

from __future__ import annotations

from dataclasses import replace

from podium.algorithms import get_adv_estimator_fn
from podium.config import check_config
from podium.config.schema import Config
from podium.errors import ConfigError


def settle_critic(config: Config) -> Config:
    """The configuration with `critic.enable` decided by what the estimator asks for, a user's own included."""
    estimator = get_adv_estimator_fn(config.algorithm.adv_estimator)
    if config.critic.enable is False and estimator.needs_values:
        raise ConfigError(
            f"algorithm.adv_estimator = {config.algorithm.adv_estimator} asks for `values`, which a critic computes, "
            "and critic.enable is false; set critic.enable=true, or leave it out"
        )
    if config.critic.enable is not None:
        return config
    settled = replace(config, critic=replace(config.critic, enable=estimator.needs_values))
    check_config(settled)
    return settled


def needs_reference_policy(config: Config) -> bool:
    """A reference model is loaded only when some term uses it."""
    algorithm = config.algorithm
    return (
        algorithm.use_kl_in_reward
        or config.actor_rollout_ref.actor.use_kl_loss
        or algorithm.ref_quality_score.enable
        or algorithm.repr_align.enable
    )


def is_strictly_on_policy(config: Config) -> bool:
    """One optimizer step per batch, on samples of the very weights it moves."""
    actor = config.actor_rollout_ref.actor
    assert actor.ppo_mini_batch_size is not None, "resolved by load_config"
    one_step = actor.ppo_epochs == 1 and actor.ppo_mini_batch_size >= config.data.train_batch_size
    return one_step and config.trainer.max_staleness == 0


def needs_old_log_probs(config: Config) -> bool:
    """Whether the log-probs of the policy before the update are computed in a pass of their own.

    Strictly on-policy they are the update's own, so the pass is left out unless something reads them earlier.
    """
    algorithm = config.algorithm
    estimator = get_adv_estimator_fn(algorithm.adv_estimator)
    correction = algorithm.rollout_correction
    corrects = correction.mode != "off" or correction.reject_low is not None or correction.reject_high is not None
    return (
        not is_strictly_on_policy(config)
        or algorithm.use_kl_in_reward
        or algorithm.repr_align.enable
        or corrects
        or estimator.needs_old_log_probs
        or estimator.needs_sum_pi_squared
    )
