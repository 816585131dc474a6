"""What is allowed and works, but may not be what was meant: said at the start of a run, refused never.

One function per part of the settings, each a list of sentences that name the setting and what becomes of it. Nothing
here needs torch, a model or a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from podium.config.ranges import ESTIMATORS
from podium.config.resolve import num_workers
from podium.config.schema import Config
from podium.config.secrets import scrub

Notes = Iterator[str]

FIXED_AGGREGATION = {"gspo": "seq-mean-token-mean", "geo_mean": "seq-mean-token-mean"}
"""Policy losses that aggregate in one way alone."""


def config_notes(config: Config, total_steps: int | None = None) -> list[str]:
    """`total_steps`: the steps of the run where they are known; else what `trainer.total_training_steps` says."""
    total_steps = total_steps or config.trainer.total_training_steps
    parts = (_about_algorithm(config), _about_batches(config), _about_search(config), _about_run(config, total_steps))
    return [text for part in parts for text in part]


def _about_algorithm(config: Config) -> Notes:
    actor, algorithm = config.actor_rollout_ref.actor, config.algorithm
    if actor.use_kl_loss and algorithm.use_kl_in_reward:
        yield "KL to the reference counts twice: in the reward (use_kl_in_reward) and in the loss (use_kl_loss)"
    if algorithm.kl_ctrl.type == "adaptive" and not algorithm.use_kl_in_reward:
        yield "algorithm.kl_ctrl has no effect: algorithm.use_kl_in_reward is off"
    if actor.clip_ratio not in (actor.clip_ratio_low, actor.clip_ratio_high):
        yield "actor.clip_ratio has no effect: clip_ratio_low and clip_ratio_high are both set"
    if config.critic.enable and algorithm.adv_estimator in ESTIMATORS and algorithm.adv_estimator != "gae":
        yield f"the critic is trained but {algorithm.adv_estimator} does not use its values"
    mode, fixed = actor.loss_agg_mode, FIXED_AGGREGATION.get(actor.policy_loss.loss_mode)
    if fixed and mode not in (type(actor).loss_agg_mode, fixed):
        yield (
            f"actor.loss_agg_mode={mode} has no effect: policy_loss.loss_mode={actor.policy_loss.loss_mode} always "
            f"aggregates by {fixed}"
        )


def _about_batches(config: Config) -> Notes:
    actor, data = config.actor_rollout_ref.actor, config.data
    ref = config.actor_rollout_ref.ref.max_tokens_per_micro_batch
    if config.actor_rollout_ref.model.lora_rank and ref not in (None, actor.max_tokens_per_micro_batch):
        yield "ref.max_tokens_per_micro_batch has no effect with LoRA: the actor scores for the reference"
    longest = data.max_prompt_length + data.max_response_length
    if actor.micro_batch_size_per_gpu is None and actor.max_tokens_per_micro_batch < longest:
        yield (
            f"a sequence may have {longest} tokens, more than actor.max_tokens_per_micro_batch "
            f"({actor.max_tokens_per_micro_batch}); it is then a micro-batch of its own"
        )


def _about_search(config: Config) -> Notes:
    """Settings of episodes in a run that has none."""
    given = [] if config.do_search else _changed(config.retriever, "retriever.")
    if not config.is_multi_turn:
        given += [] if config.max_turns == Config.max_turns else [f"max_turns={config.max_turns}"]
        limit = config.data.max_obs_length
        given += [] if limit == type(config.data).max_obs_length else [f"data.max_obs_length={limit}"]
    if given:
        run = "an agent's, without search" if config.is_multi_turn else "single-turn"
        yield f"{', '.join(given)}: no effect, the run is {run}; set do_search=true to search"


def _about_run(config: Config, total_steps: int | None) -> Notes:
    trainer = config.trainer
    if not config.data.val_files:
        asked = [f"test_freq={trainer.test_freq}"] if trainer.test_freq > 0 else []
        asked += [f"best_metric={trainer.best_metric}"] if trainer.best_metric else []
        if asked:
            yield f"trainer.{', trainer.'.join(asked)}: no effect, there are no validation rows; set data.val_files"
    strategy = config.actor_rollout_ref.actor.strategy
    if strategy != "fsdp" and num_workers(config) == 1:
        yield f"actor.strategy={strategy} has no effect: one worker has nobody to share with, and trains as with fsdp"
    elif strategy == "megatron" and config.actor_rollout_ref.actor.megatron.tensor_model_parallel_size == 1:
        yield "actor.megatron.tensor_model_parallel_size=1: every worker holds the whole model"
    if trainer.best_metric and trainer.max_ckpt_to_keep is None:
        yield f"trainer.best_metric={trainer.best_metric} has no effect: without max_ckpt_to_keep all checkpoints stay"
    if total_steps is not None and trainer.critic_warmup >= total_steps and config.critic.enable:
        yield (
            f"the policy is never trained: trainer.critic_warmup={trainer.critic_warmup} steps train the critic alone "
            f"and the run has {total_steps}; lower critic_warmup or raise total_training_steps"
        )
    if trainer.ray_dashboard and trainer.runtime == "local":
        yield "trainer.ray_dashboard has no effect: the run is local, without Ray; set trainer.runtime=ray"
    late = [step for step in trainer.profile_steps if total_steps is not None and step > total_steps]
    if late:
        yield f"trainer.profile_steps={trainer.profile_steps}: the run has only {total_steps} steps"
    if config.critic.enable is None:
        yield (
            f"whether {config.algorithm.adv_estimator} needs a critic is known once its file is loaded; "
            "critic.enable=true or false settles it"
        )


def _changed(section: Any, prefix: str) -> list[str]:
    """`key=value` of what is not as by default."""
    default = type(section)()
    pairs = {item.name: getattr(section, item.name) for item in fields(section)}
    return [f"{prefix}{name}={scrub(value, name)}" for name, value in pairs.items() if value != getattr(default, name)]
