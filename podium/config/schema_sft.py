"""The settings of `podium sft` and `podium train-reward`: what they share with `podium train` is the same dataclass.

Both learn from files of finished responses, so there is no rollout, no critic and no algorithm to set. Of `trainer`,
the settings that belong to reinforcement mean nothing here; `check_supervised` refuses them instead of ignoring them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from podium.config.load import load_settings
from podium.config.resolve import TASK_PREFIX, resolve_folders
from podium.config.schema import FSDPConfig, ModelConfig, OptimConfig, TrainerConfig
from podium.errors import ConfigError

C = TypeVar("C", bound="SupervisedConfig")

TRAINER_KEYS = {
    *("project_name", "experiment_name", "default_local_dir", "runtime", "device", "seed", "total_epochs"),
    *("nnodes", "n_gpus_per_node", "worker_start_timeout_s", "worker_timeout_s", "max_restarts"),
    *("total_training_steps", "val_before_train", "test_freq", "save_freq", "resume_mode", "async_save"),
    *("max_ckpt_to_keep", "best_metric", "best_metric_mode", "default_hdfs_dir", "stop_grace_s"),
    *("esi_redundant_time", "logging_freq", "logger", "max_skipped_updates", "rollout_data_dir", "validation_data_dir"),
}


@dataclass
class ResponseDataConfig:
    train_files: list[str] = field(default_factory=lambda: ["task:addition"])
    """Parquet or jsonl files, `datasets` folders, or built-in tasks as `task:<name>`."""
    val_files: list[str] = field(default_factory=list)
    """Validation files. Empty: the validation split of the built-in training tasks, or no validation."""
    train_batch_size: int = 64
    """Rows (examples, or pairs) per optimizer step."""
    val_batch_size: int = 256
    """Rows per validation batch."""
    max_length: int = 1024
    """Tokens of prompt and response together."""
    overlong: Literal["error", "drop", "truncate_right"] = "error"
    """What to do with a longer row."""
    shuffle: bool = True
    """Shuffle the training rows anew each epoch."""
    prompt_key: str = "prompt"
    response_key: str = "response"
    """The column of the response; without it `completion`, `answer`, or the last message of `messages`."""
    system_prompt: str | None = None
    """Put before every conversation that has no system message of its own."""
    apply_chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the chat template, such as `{enable_thinking: false}`."""


@dataclass
class SupervisedConfig:
    """What both commands have."""

    data: ResponseDataConfig = field(default_factory=ResponseDataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=lambda: OptimConfig(lr=1e-5))
    fsdp: FSDPConfig = field(default_factory=FSDPConfig)
    grad_clip: float = 1.0
    """Largest gradient norm."""
    max_tokens_per_micro_batch: int = 16384
    """Tokens a device takes at once; decides speed and memory, never the result."""
    trainer: TrainerConfig = field(default_factory=TrainerConfig)


@dataclass
class SFTConfig(SupervisedConfig):
    trainer: TrainerConfig = field(default_factory=lambda: TrainerConfig(experiment_name="sft"))


@dataclass
class RewardTrainingConfig(SupervisedConfig):
    """`data` has rows {prompt, chosen, rejected, margin?}."""

    center_coef: float = 0.0
    """Weight of (chosen + rejected)², which keeps the scores around zero: pairs say nothing about their level."""
    trainer: TrainerConfig = field(default_factory=lambda: TrainerConfig(experiment_name="reward-model"))


def load_sft_config(recipe: str | Path | None = None, overrides: list[str] | None = None) -> SFTConfig:
    return _finish(load_settings(SFTConfig, recipe, overrides or []))


def load_reward_config(recipe: str | Path | None = None, overrides: list[str] | None = None) -> RewardTrainingConfig:
    return _finish(load_settings(RewardTrainingConfig, recipe, overrides or []))


def _finish(config: C) -> C:
    """Derived settings get their values."""
    data, trainer = config.data, config.trainer
    data.train_files = [os.path.expanduser(path) for path in data.train_files]
    data.val_files = [os.path.expanduser(path) for path in data.val_files]
    config.model.path = os.path.expanduser(config.model.path)
    trainer.default_local_dir = os.path.expanduser(trainer.default_local_dir)
    trainer.resume_mode = os.path.expanduser(trainer.resume_mode)
    if trainer.runtime == "auto":
        trainer.runtime = "ray" if trainer.nnodes * trainer.n_gpus_per_node > 1 else "local"
    resolve_folders(config)
    return config


def check_supervised(config: SupervisedConfig) -> None:
    """Raise a ConfigError with every problem."""
    problems = list(_problems(config))
    if problems:
        raise ConfigError(problems[0] if len(problems) == 1 else "settings do not fit:\n- " + "\n- ".join(problems))


def _problems(config: SupervisedConfig) -> Iterator[str]:
    at_least_one = {
        "data.train_batch_size": config.data.train_batch_size,
        "data.val_batch_size": config.data.val_batch_size,
        "data.max_length": config.data.max_length,
        "max_tokens_per_micro_batch": config.max_tokens_per_micro_batch,
        "trainer.total_epochs": config.trainer.total_epochs,
        "trainer.logging_freq": config.trainer.logging_freq,
        "trainer.nnodes": config.trainer.nnodes,
        "trainer.n_gpus_per_node": config.trainer.n_gpus_per_node,
    }
    yield from (f"{key} = {value} must be at least 1" for key, value in at_least_one.items() if value < 1)
    for key, number in {"optim.lr": config.optim.lr, "grad_clip": config.grad_clip}.items():
        if not (math.isfinite(number) and number >= 0):
            yield f"{key} = {number} must be a finite number, at least 0"
    if config.trainer.max_restarts < 0:
        yield f"trainer.max_restarts = {config.trainer.max_restarts} must be at least 0"
    workers = config.trainer.nnodes * config.trainer.n_gpus_per_node
    if config.trainer.runtime == "local" and workers != 1:
        yield f"trainer.runtime = local is one process, and {workers} workers are asked for; set trainer.runtime=ray"
    usual = type(config)().trainer
    for item in fields(TrainerConfig):
        if item.name not in TRAINER_KEYS and getattr(config.trainer, item.name) != getattr(usual, item.name):
            yield f"trainer.{item.name} belongs to podium train and means nothing here; leave it out"
    for key, files in (("data.train_files", config.data.train_files), ("data.val_files", config.data.val_files)):
        missing = [path for path in files if not path.startswith(TASK_PREFIX) and not os.path.exists(path)]
        yield from (f"{key}: there is no file {path}" for path in missing)
    if not config.data.train_files:
        yield "data.train_files is empty; name a parquet or jsonl file"
