"""From TRL's arguments to Podium's configuration: one dict of dotted keys, read as if typed on the command line.

`PPOConfig.settings` words come last and win. Nothing is loaded or started here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podium.api.arguments import GRPOConfig, PPOConfig, TrainingArguments
from podium.api.optim import one_of, optim_settings, read_dict, word_of
from podium.config import check_config, load_config
from podium.config.schema import Config
from podium.errors import ConfigError

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
NO_LIMIT = 1e6
"""In the place of a bound that is off."""
LOSSES = {
    "grpo": ("vanilla", "seq-mean-token-mean"),
    "bnpo": ("vanilla", "token-mean"),
    "dapo": ("vanilla", "token-mean"),
    "dr_grpo": ("vanilla", "seq-mean-token-sum-norm"),
    "cispo": ("cispo", "token-mean"),
    "sapo": ("sapo", "token-mean"),
}
LOADING = ("dtype", "torch_dtype", "attn_implementation", "use_cache", "device_map", "low_cpu_mem_usage")
"""Arguments of `from_pretrained` that are the train engine's matter."""
CORRECTIONS = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
TRACKERS = ("wandb", "swanlab", "tensorboard", "mlflow")

Settings = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """What the data say."""

    train_rows: int
    has_eval: bool


def make_config(args: TrainingArguments, settings: Mapping[str, Any]) -> Config:
    """The resolved and checked configuration."""
    words = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()]
    config = load_config(None, [*words, *args.settings])
    check_config(config)
    return config


def exact(name: str, total: int, parts: int, what: str) -> int:
    if parts < 1 or total % parts:
        raise ConfigError(f"{name}={parts} does not divide the {total} {what} of a step; choose one that does")
    return total // parts


def common_settings(args: TrainingArguments, total_steps: int, updates: int, steps_per_epoch: int) -> Settings:
    """What PPO and GRPO share. `updates`: optimizer steps per training step."""
    folder = Path(args.output_dir or "trainer_output")
    strategy = one_of("train_sampling_strategy", args.train_sampling_strategy, ("random", "sequential"))
    settings: Settings = {
        "trainer.default_local_dir": str(folder),
        "trainer.experiment_name": args.run_name or getattr(args, "exp_name", None) or folder.name or "run",
        "trainer.nnodes": args.nnodes,
        "trainer.n_gpus_per_node": args.n_gpus_per_node,
        "trainer.device": "cpu" if args.use_cpu else "auto",
        "trainer.seed": args.seed,
        "trainer.total_training_steps": total_steps,
        "trainer.logging_freq": _steps(args.logging_steps, total_steps),
        "trainer.logger": ["console", *_trackers(args.report_to)],
        "trainer.save_freq": _save_freq(args, total_steps, steps_per_epoch),
        "trainer.max_ckpt_to_keep": args.save_total_limit,
        "trainer.stop_grace_s": 0,  # a notebook's process outlives the run
        "data.train_files": ["memory://train"],
        "data.overlong_prompts": "truncate_left",
        "data.shuffle": strategy == "random",
        "data.val_batch_size": args.per_device_eval_batch_size * args.num_workers,
        f"{MODEL}.dtype": "auto" if args.bf16 is None else "bfloat16" if args.bf16 else "float32",
        f"{MODEL}.enable_gradient_checkpointing": args.gradient_checkpointing,
        f"{MODEL}.trust_remote_code": args.trust_remote_code,
        f"{ACTOR}.micro_batch_size_per_gpu": args.per_device_train_batch_size,
        f"{ACTOR}.grad_clip": args.max_grad_norm or NO_LIMIT,
        f"{ACTOR}.fsdp.use_torch_compile": args.torch_compile,
    }
    if args.project != "huggingface":
        settings["trainer.project_name"] = args.project
    optim = optim_settings(args, total_steps, updates)
    return settings | {f"{ACTOR}.optim.{name}": value for name, value in optim.items()}


def ppo_settings(args: PPOConfig, sizes: Sizes, eos_token_id: int) -> Settings:
    batch = args.batch_samples
    mini = exact("num_mini_batches", batch, args.num_mini_batches, "samples")
    steps_per_epoch = max(1, sizes.train_rows // batch)
    episodes = args.total_episodes or math.ceil(args.num_train_epochs * sizes.train_rows)
    total = args.max_steps if args.max_steps > 0 else math.ceil(episodes / batch)
    updates = args.num_ppo_epochs * args.num_mini_batches
    settings = common_settings(args, total, updates, steps_per_epoch)
    longest = args.max_prompt_length + args.response_length
    optim = {key: value for key, value in settings.items() if key.startswith(f"{ACTOR}.optim.")}
    settings |= {f"critic.optim.{key.rpartition('.')[2]}": value for key, value in optim.items()}
    settings |= {
        "data.train_batch_size": batch,
        "data.max_prompt_length": args.max_prompt_length,
        "data.max_response_length": args.response_length,
        f"{ACTOR}.ppo_mini_batch_size": mini,
        f"{ACTOR}.ppo_epochs": args.num_ppo_epochs,
        f"{ACTOR}.clip_ratio": args.cliprange,
        f"{ACTOR}.clip_ratio_c": NO_LIMIT,
        f"{ACTOR}.shuffle": True,
        f"{ROLLOUT}.n": 1,
        f"{ROLLOUT}.temperature": args.temperature,
        f"{ROLLOUT}.max_num_seqs": args.local_rollout_forward_batch_size,
        "actor_rollout_ref.ref.max_tokens_per_micro_batch": args.local_rollout_forward_batch_size * longest,
        "critic.model.dtype": settings[f"{MODEL}.dtype"],
        "critic.model.enable_gradient_checkpointing": args.gradient_checkpointing,
        "critic.fsdp.use_torch_compile": args.torch_compile,
        "critic.cliprange_value": args.cliprange_value,
        # AdamW does not see a factor before the loss; the clipping of the gradient does.
        "critic.grad_clip": (args.max_grad_norm or NO_LIMIT) / (args.vf_coef or 1.0),
        "algorithm.adv_estimator": "gae",
        "algorithm.gamma": args.gamma,
        "algorithm.lam": args.lam,
        "algorithm.use_kl_in_reward": True,
        "algorithm.kl_penalty": one_of("kl_estimator", args.kl_estimator, ("k1", "k3")),
        "algorithm.kl_ctrl.kl_coef": args.kl_coef,
        "algorithm.missing_eos_penalty": args.missing_eos_penalty,
        "algorithm.whiten_rewards": args.whiten_rewards,
    }
    if args.vf_coef == 0:
        settings["critic.optim.lr"] = 0.0
    return settings | _stop_settings(args, eos_token_id) | _ppo_validation(args, sizes, total, steps_per_epoch)


def _stop_settings(args: PPOConfig, eos_token_id: int) -> Settings:
    """TRL's default is no stop at all: a response then has `response_length` tokens."""
    if args.stop_token is not None and args.stop_token_id is not None:
        raise ConfigError(
            f"stop_token={args.stop_token!r} and stop_token_id={args.stop_token_id} are both set; drop one"
        )
    if args.missing_eos_penalty is not None and args.missing_eos_penalty <= 0:
        raise ConfigError(f"missing_eos_penalty={args.missing_eos_penalty} must be positive; it is subtracted")
    if args.stop_token is not None:
        one_of("stop_token", args.stop_token, ("eos",))
    if args.stop_token == "eos" or args.stop_token_id == eos_token_id:
        return {}
    stops = [] if args.stop_token_id is None else [args.stop_token_id]
    return {f"{ROLLOUT}.ignore_eos": True, f"{ROLLOUT}.stop_token_ids": stops}


def _ppo_validation(args: PPOConfig, sizes: Sizes, total: int, steps_per_epoch: int) -> Settings:
    every = _eval_freq(args, total, steps_per_epoch)
    shows = every == -1 and args.num_sample_generations > 0
    if shows:
        every = max(1, total // args.num_sample_generations)
    return _validation(sizes, every, args.eval_on_start or shows)


def grpo_settings(args: GRPOConfig, sizes: Sizes) -> Settings:
    samples = _generation_samples(args)
    prompts = exact("num_generations", samples, args.num_generations, "samples")
    mini = exact("num_generations", args.batch_samples, args.num_generations, "samples of an optimizer step")
    if prompts % mini:
        raise ConfigError(f"{samples} samples per generation are not a whole number of steps of {args.batch_samples}")
    steps_per_epoch = max(1, sizes.train_rows // prompts)
    total = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * steps_per_epoch)
    settings = common_settings(args, total, args.num_iterations * (prompts // mini), steps_per_epoch)
    loss_mode, agg_mode = LOSSES[one_of("loss_type", args.loss_type, LOSSES)]
    if one_of("importance_sampling_level", args.importance_sampling_level, ("token", "sequence")) == "sequence":
        loss_mode = "gspo"
    settings |= {
        "data.train_batch_size": prompts,
        "data.max_prompt_length": args.max_prompt_length,
        "data.max_response_length": args.max_completion_length,
        "data.apply_chat_template_kwargs": read_dict("chat_template_kwargs", args.chat_template_kwargs),
        f"{ACTOR}.ppo_mini_batch_size": mini,
        f"{ACTOR}.ppo_epochs": args.num_iterations,
        f"{ACTOR}.clip_ratio": args.epsilon,
        f"{ACTOR}.clip_ratio_high": args.epsilon_high,
        f"{ACTOR}.clip_ratio_c": args.delta or NO_LIMIT,
        f"{ACTOR}.policy_loss.loss_mode": loss_mode,
        f"{ACTOR}.loss_agg_mode": agg_mode,
        f"{ACTOR}.entropy_coeff": args.entropy_coef,
        f"{ACTOR}.use_kl_loss": args.beta > 0,
        f"{ACTOR}.kl_loss_coef": args.beta,
        f"{ACTOR}.kl_loss_type": "k3+" if args.use_bias_correction_kl else "k3",
        f"{ACTOR}.policy_loss.tau_pos": args.sapo_temperature_pos,
        f"{ACTOR}.policy_loss.tau_neg": args.sapo_temperature_neg,
        f"{ROLLOUT}.n": args.num_generations,
        f"{ROLLOUT}.temperature": args.temperature,
        f"{ROLLOUT}.top_p": args.top_p,
        f"{ROLLOUT}.top_k": args.top_k or -1,
        f"{ROLLOUT}.min_p": args.min_p or 0.0,
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": _scales(args.scale_rewards),
        "trainer.log_val_generations": (args.num_completions_to_print or 4) if args.log_completions else 0,
    }
    if not args.shuffle_dataset:
        settings["data.shuffle"] = False
    settings |= _model_settings(args) | _vllm_settings(args) | _eval_sampling(args)
    return settings | _validation(sizes, _eval_freq(args, total, steps_per_epoch), args.eval_on_start)


def _model_settings(args: GRPOConfig) -> Settings:
    """Of `model_init_kwargs`, what the train engine does not decide by itself."""
    given = read_dict("model_init_kwargs", args.model_init_kwargs)
    trust = {f"{MODEL}.trust_remote_code": True} if given.pop("trust_remote_code", False) else {}
    for name, value in given.items():
        if name not in LOADING and not (name == "revision" and value in (None, "main")):
            raise ConfigError(f"model_init_kwargs: {name!r} is not taken; load the model yourself and give it as model")
    return trust


def _vllm_settings(args: GRPOConfig) -> Settings:
    if not args.use_vllm:
        return {}
    settings: Settings = {
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.gpu_memory_utilization": args.vllm_gpu_memory_utilization,
        f"{ROLLOUT}.tensor_model_parallel_size": args.vllm_tensor_parallel_size,
    }
    extra: Settings = {"model_impl": args.vllm_model_impl} if args.vllm_model_impl != "vllm" else {}
    extra |= {"max_model_len": args.vllm_max_model_length} if args.vllm_max_model_length else {}
    if extra:
        settings[f"{ROLLOUT}.engine_kwargs"] = extra
    if args.vllm_importance_sampling_correction:
        mode = one_of("vllm_importance_sampling_mode", args.vllm_importance_sampling_mode, CORRECTIONS)
        level, _, bound = mode.partition("_")
        settings["algorithm.rollout_correction.mode"] = level
        settings["algorithm.rollout_correction.truncate"] = "clip" if bound == "truncate" else "mask"
        highest = args.vllm_importance_sampling_cap or args.vllm_importance_sampling_clip_max
        settings["algorithm.rollout_correction.threshold"] = highest
    return settings


def _eval_sampling(args: GRPOConfig) -> Settings:
    if args.num_generations_eval is None:
        return {}
    drawn = {"temperature": args.temperature, "top_p": args.top_p, "top_k": args.top_k or -1}
    drawn |= {"do_sample": True, "n": args.num_generations_eval}
    return {f"{ROLLOUT}.val_kwargs.{name}": value for name, value in drawn.items()}


def _generation_samples(args: GRPOConfig) -> int:
    if args.generation_batch_size is not None and args.steps_per_generation is not None:
        raise ConfigError("generation_batch_size and steps_per_generation are both set; drop one")
    if args.generation_batch_size is not None:
        return args.generation_batch_size
    steps = args.steps_per_generation or args.gradient_accumulation_steps
    return args.per_device_train_batch_size * args.num_workers * steps


def _scales(scale_rewards: str | bool) -> bool:
    if isinstance(scale_rewards, bool):
        return scale_rewards
    return one_of("scale_rewards", scale_rewards, ("group", "none")) == "group"


def _validation(sizes: Sizes, every: int, before: bool) -> Settings:
    if not sizes.has_eval:
        return {"trainer.val_before_train": False}
    return {"data.val_files": ["memory://eval"], "trainer.test_freq": every, "trainer.val_before_train": before}


def _eval_freq(args: TrainingArguments, total: int, steps_per_epoch: int) -> int:
    match one_of("eval_strategy", word_of(args.eval_strategy), ("no", "steps", "epoch")):
        case "steps":
            return _steps(args.eval_steps or args.logging_steps, total)
        case "epoch":
            return steps_per_epoch
        case _:
            return -1


def _save_freq(args: TrainingArguments, total: int, steps_per_epoch: int) -> int:
    match one_of("save_strategy", word_of(args.save_strategy), ("no", "steps", "epoch")):
        case "steps":
            return _steps(args.save_steps, total)
        case "epoch":
            return steps_per_epoch
        case _:
            return 0


def _steps(given: float, total: int) -> int:
    """A number of steps; below 1 it is a share of the total."""
    return max(1, math.ceil(given * total) if given < 1 else int(given))


def _trackers(report_to: str | list[str] | None) -> list[str]:
    words = report_to.split(",") if isinstance(report_to, str) else list(report_to or [])
    return [one_of("report_to", word.strip(), TRACKERS) for word in words if word.strip() not in ("", "none")]
