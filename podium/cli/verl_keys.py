"""verl's settings in Podium's words: which key becomes which, with what value, and why some have no counterpart.

A key that both have under one name and meaning is not listed. `translate` takes dotted keys and values and gives
settings and what was left behind; it reads no file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from podium.config.names import leaves, nearest

ACTOR, REF, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "ref", "rollout", "model"))

Values = Mapping[str, Any]
Rule = Callable[[Any, Values], dict[str, Any]]


@dataclass
class Translation:
    settings: dict[str, Any] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    """Keys without a counterpart, and why."""


def _to(key: str, change: Callable[[Any], Any] = lambda value: value) -> Rule:
    return lambda value, _: {} if value is None else {key: change(value)}


def _to_positive(key: str) -> Rule:
    """verl writes -1 for a number that is not set."""
    return lambda value, _: {key: value} if value and value > 0 else {}


def _micro_batch(role: str) -> Rule:
    def rule(value: Any, values: Values) -> dict[str, Any]:
        return (
            {}
            if value is None or values.get(f"{role}.use_dynamic_bsz")
            else {f"{role}.micro_batch_size_per_gpu": value}
        )

    return rule


def _global_micro_batch(role: str) -> Rule:
    """verl's older key counts samples over all devices."""

    def rule(value: Any, values: Values) -> dict[str, Any]:
        devices = (values.get("trainer.nnodes") or 1) * (values.get("trainer.n_gpus_per_node") or 8)
        return {f"{role}.micro_batch_size_per_gpu": max(1, value // devices)}

    return rule


def _strategy(value: Any, values: Values) -> dict[str, Any]:
    return {f"{ACTOR}.strategy": "fsdp" if value in ("fsdp", "fsdp2") else value}


def _token_budget(role: str, switch: str = "use_dynamic_bsz") -> Rule:
    def rule(value: Any, values: Values) -> dict[str, Any]:
        used = values.get(f"{role}.{switch}", values.get(f"{ACTOR}.use_dynamic_bsz"))
        return {f"{role}.max_tokens_per_micro_batch": value} if used and value is not None else {}

    return rule


def _reward_function(value: Any, values: Values) -> dict[str, Any]:
    name = values.get("custom_reward_function.name") or "compute_score"
    return {} if not value else {"reward.custom_reward_function": f"{value}:{name}"}


def _warmup(role: str) -> Rule:
    def rule(value: Any, values: Values) -> dict[str, Any]:
        steps = values.get("trainer.total_training_steps")
        return {f"{role}.optim.lr_warmup_steps": round(value * steps)} if value and value > 0 and steps else {}

    return rule


def _resume(value: Any, values: Values) -> dict[str, Any]:
    path = values.get("trainer.resume_from_path")
    return {"trainer.resume_mode": path if value == "resume_path" and path else value}


def _trackers(value: Any) -> Any:
    names = value if isinstance(value, list) else [value]
    known = ("console", "tensorboard", "wandb", "swanlab", "mlflow")
    return [name for name in names if name in known]


RULES: dict[str, Rule] = {
    "data.truncation": lambda value, _: {"data.overlong_prompts": "truncate_left"} if value == "left" else {},
    "data.filter_overlong_prompts": lambda value, _: {"data.overlong_prompts": "drop"} if value else {},
    "data.train_max_samples": _to_positive("data.train_data_num"),
    "data.val_max_samples": _to_positive("data.val_data_num"),
    "data.trust_remote_code": _to(f"{MODEL}.trust_remote_code"),
    "data.seed": _to("trainer.seed"),
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": _micro_batch(ACTOR),
    f"{ACTOR}.ppo_micro_batch_size": _global_micro_batch(ACTOR),
    "critic.ppo_micro_batch_size": _global_micro_batch("critic"),
    f"{ACTOR}.strategy": _strategy,
    f"{ACTOR}.ppo_max_token_len_per_gpu": _token_budget(ACTOR),
    f"{REF}.log_prob_max_token_len_per_gpu": _token_budget(REF, "log_prob_use_dynamic_bsz"),
    "critic.ppo_micro_batch_size_per_gpu": _micro_batch("critic"),
    "critic.ppo_max_token_len_per_gpu": _token_budget("critic"),
    "custom_reward_function.path": _reward_function,
    "custom_reward_function.name": lambda value, values: {},
    "reward_model.overlong_buffer.enable": _to("algorithm.overlong_buffer.enable"),
    "reward_model.overlong_buffer.len": _to("algorithm.overlong_buffer.len"),
    "reward_model.overlong_buffer.penalty_factor": _to("algorithm.overlong_buffer.penalty_factor"),
    "trainer.resume_mode": _resume,
    "trainer.resume_from_path": lambda value, values: {},
    "trainer.logger": _to("trainer.logger", _trackers),
    "trainer.max_actor_ckpt_to_keep": _to("trainer.max_ckpt_to_keep"),
    "trainer.default_hdfs_dir": _to("trainer.default_hdfs_dir"),
    "trainer.val_freq": _to("trainer.test_freq"),
    "reward_model.micro_batch_size_per_gpu": lambda value, values: {},
}
for _role in (ACTOR, "critic"):
    _fsdp = f"{_role}.fsdp_config" if _role == ACTOR else "critic.model.fsdp_config"
    RULES |= {
        f"{_fsdp}.{name}": _to(f"{_role}.fsdp.{name}")
        for name in ("param_offload", "optimizer_offload", "fsdp_size", "reshard_after_forward", "forward_prefetch")
    }
    RULES |= {
        f"{_role}.optim.lr_warmup_steps_ratio": _warmup(_role),
        f"{_role}.optim.warmup_style": _to(f"{_role}.optim.lr_decay"),
        f"{_role}.optim.lr_scheduler_type": _to(f"{_role}.optim.lr_decay"),
        f"{_role}.optim.lr_warmup_steps": _to_positive(f"{_role}.optim.lr_warmup_steps"),
        f"{_role}.use_dynamic_bsz": lambda value, values: {},
    }

NO_COUNTERPART: dict[str, str] = {
    "use_remove_padding": "padding never reaches the model",
    "log_prob_micro_batch_size": "scoring uses the token budget (max_tokens_per_micro_batch)",
    "log_prob_use_dynamic_bsz": "scoring always uses a token budget",
    "log_prob_max_token_len_per_gpu": "scoring uses the actor's token budget",
    "forward_micro_batch_size": "scoring uses the token budget",
    "forward_max_token_len_per_gpu": "scoring uses the token budget",
    "strategy": "every role uses the actor's (actor_rollout_ref.actor.strategy)",
    "grad_offload": "gradients are freed after each optimizer step",
    "offload_policy": "set actor.fsdp.param_offload and optimizer_offload",
    "rollout_n": "it is actor_rollout_ref.rollout.n",
    "checkpoint": "a checkpoint always has model, optimizer and the Hugging Face folder",
    "input_tokenizer": "a reward model reads the policy's tokens",
    "tokenizer_path": "the critic reads the policy's tokens",
    "total_training_steps": "the schedule's length follows from trainer.total_training_steps or total_epochs",
    "custom_cls": "rows come from files; data.sampler takes a class of yours",
    "return_raw_input_ids": "a reward model reads the policy's tokens",
    "multi_turn": "set do_search, agent.tools or agent.environment, and max_turns",
    "hybrid_engine": "actor, rollout and reference always share their devices",
    "free_cache_engine": "the KV cache is freed while the trainer works",
    "enforce_eager": "the native engine decides by itself",
    "enable_chunked_prefill": "prompts are always chunked by max_num_batched_tokens",
    "disable_log_stats": "there is nothing to switch off",
    "load_format": "weights come from the trainer",
    "max_model_len": "it is max_prompt_length + max_response_length",
    "prompt_length": "it is data.max_prompt_length",
    "response_length": "it is data.max_response_length",
    "reward_fn_key": "the column is always data_source",
    "return_raw_chat": "the conversation is always kept",
    "use_torch_compile": "set actor.fsdp.use_torch_compile",
    "entropy_from_logits_with_chunking": "log-probs and entropy always come from a chunked head",
    "fused_kernel_options": "log-probs and entropy always come from a chunked head",
    "use_fused_kernels": "log-probs and entropy always come from a chunked head",
    "use_liger": "log-probs and entropy always come from a chunked head",
    "reward_manager": "a reward function's form is found by looking at it",
    "launch_reward_fn_async": "rewards always run beside generation",
    "ray_wait_register_center_timeout": "set trainer.worker_start_timeout_s",
    "max_critic_ckpt_to_keep": "actor and critic are one checkpoint: trainer.max_ckpt_to_keep",
    "del_local_ckpt_after_load": "set trainer.max_ckpt_to_keep",
    "wrap_policy": "each block of the model is a unit of FSDP",
    "model_dtype": "master weights are float32; model.dtype is the type to compute in",
    "override_config": "change the model's config.json",
    "external_lib": "name your functions as module:function",
    "filter_overlong_prompts_workers": "prompts are tokenized when they are drawn",
    "metric": "groups are filtered by their score",
    "defaults": "Hydra's composition; give the resolved file or the command line",
    "_target_": "Hydra's",
    "ray_init": "set RAY_ADDRESS to join a cluster",
    "ray_kwargs": "set RAY_ADDRESS to join a cluster",
    "global_profiler": "there is no profiler setting",
    "profiler": "there is no profiler setting",
    "mode": "the rollout engine is driven by requests either way",
    "do_sample": "training always samples; validation has val_kwargs.do_sample",
    "dtype": "the rollout engine computes in model.dtype",
    "nccl_timeout": "set trainer.worker_timeout_s",
    "image_key": "only text prompts are read",
    "video_key": "only text prompts are read",
}
"""By the last part of a key, or by any part of it; the reason."""


DEFAULTS: dict[str, Any] = {
    "algorithm.adv_estimator": "gae",
    "data.train_batch_size": 1024,
    f"{ACTOR}.ppo_mini_batch_size": 256,
    f"{ROLLOUT}.n": 1,
    f"{ROLLOUT}.name": "vllm",
    "trainer.total_epochs": 30,
    "trainer.n_gpus_per_node": 8,
    "trainer.project_name": "verl_examples",
    "trainer.experiment_name": "gsm8k",
}
"""verl's defaults where Podium's differ: a script that leaves them out means these."""


def with_defaults(values: Values) -> dict[str, Any]:
    return DEFAULTS | {key: value for key, value in values.items() if value is not None or key not in DEFAULTS}


def translate(values: Values) -> Translation:
    """verl's dotted keys and values as settings, and what has no counterpart."""
    known, result = leaves(), Translation()
    for key, value in values.items():
        if value is None:
            continue  # not set: Podium's default holds
        if key in RULES:
            result.settings |= RULES[key](value, values)
        elif key in known or any(key.startswith(f"{name}.") for name in ("extra",)):
            result.settings[key] = value
        else:
            result.left[key] = _reason(key)
    return result


def _reason(key: str) -> str:
    parts = key.split(".")
    for part in (parts[-1], *parts):
        short = part.removesuffix("_per_gpu")
        if part in NO_COUNTERPART or short in NO_COUNTERPART:
            return NO_COUNTERPART.get(part) or NO_COUNTERPART[short]
    near = nearest(key)
    return f"unknown here; the nearest setting is {near[0]}" if near else "unknown here"
