"""What each setting may be on its own: finite, in its range, a name that exists.

One table says the ranges. How settings fit together is in checks.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from podium.config.schema import Config
from podium.plugins import closest

GROUP_ESTIMATORS = (
    *("grpo", "grpo_passk", "rloo", "opo", "gpg", "reinforce_plus_plus_baseline"),
    *("optimal_token_baseline", "tir_optimal_token_baseline", "gdpo"),
)
"""Estimators that compare the samples of one prompt: with one sample every advantage is zero."""
ESTIMATORS = ("gae", "reinforce_plus_plus", "remax", *GROUP_ESTIMATORS)
POLICY_LOSSES = (
    *("vanilla", "gspo", "sapo", "cispo", "gpg", "clip_cov", "kl_cov", "geo_mean"),
    *("dppo_tv", "dppo_kl", "dro", "reinforce"),
)
PHASES = (
    *("gen", "old_log_prob", "ref", "values", "alignment", "update_critic", "update_actor", "update_weights"),
    *("reward_model", "save_checkpoint", "load_checkpoint"),
)
"""The phases of a step that wait for workers."""
KL_ESTIMATORS = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")

_RULES: tuple[tuple[Callable[[Any], bool], str, tuple[str, ...]], ...] = (
    (
        lambda x: x >= 1,
        "at least 1",
        (
            *("data.train_batch_size", "data.val_batch_size", "data.max_prompt_length", "data.max_response_length"),
            *("data.train_data_num", "data.val_data_num", "data.max_start_length", "data.max_obs_length"),
            *("retriever.max_batch", "retriever.breaker_failures"),
            *("actor_rollout_ref.actor.ppo_epochs", "actor_rollout_ref.actor.ppo_mini_batch_size"),
            "actor_rollout_ref.actor.max_tokens_per_micro_batch",
            "actor_rollout_ref.actor.micro_batch_size_per_gpu",
            *("actor_rollout_ref.rollout.n", "actor_rollout_ref.rollout.val_kwargs.n"),
            *("actor_rollout_ref.rollout.max_num_seqs", "actor_rollout_ref.rollout.max_num_batched_tokens"),
            *("actor_rollout_ref.rollout.block_size", "actor_rollout_ref.ref.max_tokens_per_micro_batch"),
            "actor_rollout_ref.rollout.n_gpus_per_node",
            "actor_rollout_ref.rollout.tensor_model_parallel_size",
            "actor_rollout_ref.actor.megatron.tensor_model_parallel_size",
            "critic.megatron.tensor_model_parallel_size",
            *("critic.ppo_epochs", "critic.ppo_mini_batch_size"),
            *("critic.max_tokens_per_micro_batch", "critic.micro_batch_size_per_gpu"),
            *("reward_model.max_tokens_per_micro_batch", "reward_model.n_gpus_per_node"),
            *("algorithm.kl_ctrl.horizon", "algorithm.ref_quality_score.steps"),
            *("algorithm.repr_align.ref_alignment.steps", "algorithm.filter_groups.max_num_gen_batches"),
            *("algorithm.overlong_buffer.len", "algorithm.rollout_correction.threshold"),
            *("trainer.nnodes", "trainer.n_gpus_per_node", "trainer.total_epochs", "trainer.total_training_steps"),
            *("trainer.logging_freq", "trainer.max_skipped_updates", "trainer.max_flat_steps"),
            "trainer.max_ckpt_to_keep",
            *("trainer.micro_batch_size", "trainer.gradient_accumulation_steps"),
        ),
    ),
    (
        lambda x: x >= 0,
        "at least 0",
        (
            *("actor_rollout_ref.actor.optim.lr", "critic.optim.lr"),
            *("actor_rollout_ref.actor.optim.weight_decay", "critic.optim.weight_decay"),
            *("actor_rollout_ref.actor.optim.lr_warmup_steps", "critic.optim.lr_warmup_steps"),
            *("reward_model.rule_weight", "reward_model.nnodes"),
            *("actor_rollout_ref.model.lora_rank", "critic.model.lora_rank"),
            *("actor_rollout_ref.actor.kl_loss_coef", "actor_rollout_ref.rollout.val_kwargs.temperature"),
            *("algorithm.kl_ctrl.kl_coef", "algorithm.repr_align.ref_alignment.max_weight"),
            *("algorithm.overlong_buffer.penalty_factor", "trainer.seed", "trainer.critic_warmup"),
            *("trainer.log_val_generations", "trainer.max_staleness", "trainer.max_restarts"),
            *("trainer.stop_grace_s", "trainer.esi_redundant_time", "data.max_bad_rows"),
            *("actor_rollout_ref.rollout.nnodes", "actor_rollout_ref.rollout.max_engine_restarts"),
            *("reward.num_processes", "reward.http_retries", "reward.http_max_per_second"),
            *("max_turns", "retriever.topk", "retriever.retries", "agent.max_tool_errors"),
        ),
    ),
    (
        lambda x: x > 0,
        "above 0",
        (
            *("actor_rollout_ref.actor.clip_ratio", "actor_rollout_ref.actor.clip_ratio_high"),
            *("actor_rollout_ref.actor.grad_clip", "critic.grad_clip", "critic.cliprange_value"),
            *("actor_rollout_ref.actor.policy_loss.tau_pos", "actor_rollout_ref.actor.policy_loss.tau_neg"),
            *("actor_rollout_ref.rollout.kv_cache_gb", "algorithm.kl_ctrl.target_kl"),
            "actor_rollout_ref.rollout.engine_start_timeout_s",
            "actor_rollout_ref.rollout.engine_timeout_s",
            *("trainer.worker_timeout_s", "trainer.worker_start_timeout_s", "trainer.heartbeat_s"),
            *("reward.timeout_s", "retriever.timeout_s", "retriever.breaker_s"),
            *("agent.tool_timeout_s", "agent.max_seconds"),
            *("actor_rollout_ref.model.lora_alpha", "critic.model.lora_alpha"),
        ),
    ),
    (
        lambda x: 0 <= x <= 1,
        "between 0 and 1",
        (
            *("algorithm.gamma", "algorithm.lam", "algorithm.ref_quality_score.max_weight", "reward.max_failure_rate"),
            "agent.max_failure_rate",
            *("actor_rollout_ref.actor.optim.min_lr_ratio", "critic.optim.min_lr_ratio"),
            "actor_rollout_ref.actor.policy_loss.clip_cov_ratio",
            "actor_rollout_ref.actor.policy_loss.kl_cov_ratio",
        ),
    ),
    (
        lambda x: 0 < x <= 1,
        "above 0 and at most 1",
        (
            *("actor_rollout_ref.rollout.top_p", "actor_rollout_ref.rollout.val_kwargs.top_p"),
            *("actor_rollout_ref.actor.clip_ratio_low", "actor_rollout_ref.rollout.gpu_memory_utilization"),
            *("algorithm.kl_ctrl.warmup_ratio", "algorithm.ref_quality_score.warmup_ratio"),
            "algorithm.repr_align.ref_alignment.warmup_ratio",
        ),
    ),
    (
        lambda x: len(x) == 2 and all(0 <= beta < 1 for beta in x),
        "two numbers, each at least 0 and below 1",
        ("actor_rollout_ref.actor.optim.betas", "critic.optim.betas"),
    ),
    (
        lambda x: x == -1 or x >= 1,
        "-1 (off) or at least 1",
        ("actor_rollout_ref.rollout.top_k", "actor_rollout_ref.rollout.val_kwargs.top_k"),
    ),
    (
        lambda x: x > 0,
        "above 0: greedy samples are all alike and teach nothing",
        ("actor_rollout_ref.rollout.temperature",),
    ),
    (lambda x: 0 <= x < 1, "at least 0 and below 1", ("actor_rollout_ref.rollout.min_p",)),
    (lambda x: x in (2, 3), "2 or 3", ("actor_rollout_ref.actor.deepspeed.zero_stage", "critic.deepspeed.zero_stage")),
    (lambda x: x > 1, "above 1", ("actor_rollout_ref.actor.clip_ratio_c",)),
    (lambda x: x == -1 or x >= 1, "-1 (only after the last step) or at least 1", ("trainer.test_freq",)),
    (lambda x: all(step >= 1 for step in x), "numbers of steps, each at least 1", ("trainer.profile_steps",)),
    (lambda x: x >= -1, "-1 (only after the last step), 0 (never) or at least 1", ("trainer.save_freq",)),
)


def check_each(config: Config) -> Iterator[str]:
    """The problems of single settings. Null is always right here: where it is not allowed, load.py said so."""
    values = dict(_values(config, ""))
    odd = [key for key, value in values.items() if isinstance(value, float) and not math.isfinite(value)]
    yield from (f"{key} = {values[key]} is not a finite number" for key in odd)
    for holds, allowed, keys in _RULES:
        for key in keys:
            if values[key] is not None and key not in odd and not holds(values[key]):
                yield f"{key} = {values[key]} must be {allowed}"
    yield from _check_names(config)


def _values(section: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for item in fields(section):
        value = getattr(section, item.name)
        if is_dataclass(value):
            yield from _values(value, f"{prefix}{item.name}.")
        else:
            yield f"{prefix}{item.name}", value


def _check_names(config: Config) -> Iterator[str]:
    actor, algorithm = config.actor_rollout_ref.actor, config.algorithm
    functions = {
        "algorithm.adv_estimator": (algorithm.adv_estimator, ESTIMATORS),
        "actor_rollout_ref.actor.policy_loss.loss_mode": (actor.policy_loss.loss_mode, POLICY_LOSSES),
    }
    for key, (name, known) in functions.items():
        if name not in known and ":" not in name:
            yield f"{key} = {name} is unknown; {_nearest(name, known)}, or name a function of yours as module:function"
    for phase, seconds in config.trainer.phase_timeout_s.items():
        if phase not in PHASES:
            yield f"trainer.phase_timeout_s.{phase} is no phase; {_nearest(phase, PHASES)}"
        elif not seconds > 0:
            yield f"trainer.phase_timeout_s.{phase} = {seconds} must be above 0"
    kinds = {"algorithm.kl_penalty": algorithm.kl_penalty, "actor_rollout_ref.actor.kl_loss_type": actor.kl_loss_type}
    for key, name in kinds.items():
        if name.removesuffix("+") not in KL_ESTIMATORS:
            yield f"{key} = {name} is unknown; {_nearest(name, KL_ESTIMATORS)} (a trailing + takes k2's gradient)"


def _nearest(name: str, known: tuple[str, ...]) -> str:
    near = closest(name, known)
    return f"did you mean {near}" if near else f"known are {', '.join(known)}"
