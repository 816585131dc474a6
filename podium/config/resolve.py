"""Nulls become values, once: whatever is derived from another setting is derived here and nowhere else.

`resolve` changes no file and asks no library. What it cannot settle (a micro-batch given twice, say) it leaves in place
for checks.py to report. The device stays `auto` until torch can be asked.
"""

from __future__ import annotations

import copy
import os
from typing import Protocol

from podium.config.schema import Config, CriticConfig, TrainerConfig

TASK_PREFIX = "task:"


def resolve(config: Config) -> Config:
    """A copy of the config in which every derived setting has its value. Resolving twice changes nothing more."""
    config = copy.deepcopy(config)
    _expand_home(config)
    _resolve_accumulation(config)
    _resolve_actor(config)
    _resolve_critic(config.critic, config)
    if config.reward_model.max_tokens_per_micro_batch is None:
        config.reward_model.max_tokens_per_micro_batch = config.actor_rollout_ref.actor.max_tokens_per_micro_batch
    _resolve_trainer(config)
    _resolve_retriever(config)
    data = config.data
    if not data.val_files:
        data.val_files = [word for word in data.train_files if word.startswith(TASK_PREFIX)]
    return config


def _expand_home(config: Config) -> None:
    """A shell leaves `a.b=~/file` alone, so the tilde arrives here."""
    data, trainer, reward = config.data, config.trainer, config.reward
    data.train_files = [os.path.expanduser(path) for path in data.train_files]
    data.val_files = [os.path.expanduser(path) for path in data.val_files]
    for model in (config.actor_rollout_ref.model, config.critic.model, config.reward_model.model):
        model.path = os.path.expanduser(model.path)
    trainer.default_local_dir = os.path.expanduser(trainer.default_local_dir)
    trainer.rollout_data_dir = os.path.expanduser(trainer.rollout_data_dir)
    trainer.validation_data_dir = os.path.expanduser(trainer.validation_data_dir)
    trainer.resume_mode = os.path.expanduser(trainer.resume_mode)
    config.agent.environment = _absolute(config.agent.environment)
    config.agent.tools = [_absolute(tool) for tool in config.agent.tools]
    if config.retriever.corpus and not config.retriever.corpus.startswith(TASK_PREFIX):
        config.retriever.corpus = os.path.abspath(os.path.expanduser(config.retriever.corpus))
    if reward.custom_reward_function is not None:
        reward.custom_reward_function = _absolute(reward.custom_reward_function)
    loss, algorithm = config.actor_rollout_ref.actor.policy_loss, config.algorithm
    loss.loss_mode, algorithm.adv_estimator = _absolute(loss.loss_mode), _absolute(algorithm.adv_estimator)


def _absolute(reference: str) -> str:
    """`file.py:function` with the file's full path, since a worker may run in another folder."""
    source, _, name = reference.rpartition(":")
    return f"{os.path.abspath(os.path.expanduser(source))}:{name}" if source.endswith(".py") else reference


def _resolve_accumulation(config: Config) -> None:
    """`trainer.micro_batch_size` and `trainer.gradient_accumulation_steps` move onto the actor's and critic's keys."""
    trainer, actor, critic = config.trainer, config.actor_rollout_ref.actor, config.critic
    micro, steps = trainer.micro_batch_size, trainer.gradient_accumulation_steps
    if micro is None:
        return
    if any(given not in (None, micro) for given in (actor.micro_batch_size_per_gpu, critic.micro_batch_size_per_gpu)):
        return
    if steps is not None:
        samples = steps * micro * num_workers(config)
        prompts, rest = divmod(samples, max(1, config.actor_rollout_ref.rollout.n))
        if rest or prompts < 1 or actor.ppo_mini_batch_size not in (None, prompts):
            return
        actor.ppo_mini_batch_size = prompts
    actor.micro_batch_size_per_gpu = critic.micro_batch_size_per_gpu = micro
    trainer.micro_batch_size = trainer.gradient_accumulation_steps = None


def _resolve_actor(config: Config) -> None:
    actor, ref = config.actor_rollout_ref.actor, config.actor_rollout_ref.ref
    if actor.ppo_mini_batch_size is None:
        actor.ppo_mini_batch_size = config.data.train_batch_size
    if actor.clip_ratio_low is None:
        actor.clip_ratio_low = actor.clip_ratio
    if actor.clip_ratio_high is None:
        actor.clip_ratio_high = actor.clip_ratio
    ref.path = os.path.expanduser(ref.path) or config.actor_rollout_ref.model.path
    if ref.max_tokens_per_micro_batch is None:
        ref.max_tokens_per_micro_batch = actor.max_tokens_per_micro_batch


def _resolve_retriever(config: Config) -> None:
    retriever, searches = config.retriever, [w for w in config.data.train_files if w.startswith(f"{TASK_PREFIX}search")]
    if config.do_search and not retriever.url and not retriever.corpus and searches:
        retriever.corpus = f"{TASK_PREFIX}search"


def _resolve_critic(critic: CriticConfig, config: Config) -> None:
    model, actor = config.actor_rollout_ref.model, config.actor_rollout_ref.actor
    if critic.enable is None:
        estimator = config.algorithm.adv_estimator
        if ":" not in estimator:  # what a function of the user's own needs is known once it is loaded
            critic.enable = estimator == "gae"
    if not critic.model.path:
        critic.model.path = model.path
        critic.model.trust_remote_code |= model.trust_remote_code
    if critic.ppo_epochs is None:
        critic.ppo_epochs = actor.ppo_epochs
    if critic.ppo_mini_batch_size is None:
        critic.ppo_mini_batch_size = actor.ppo_mini_batch_size
    if critic.max_tokens_per_micro_batch is None:
        critic.max_tokens_per_micro_batch = actor.max_tokens_per_micro_batch
        if (
            critic.micro_batch_size_per_gpu is None
        ):  # a budget of the critic's own is not overridden by the actor's rows
            critic.micro_batch_size_per_gpu = actor.micro_batch_size_per_gpu


def _resolve_trainer(config: Config) -> None:
    trainer = config.trainer
    if trainer.runtime == "auto":
        apart = config.actor_rollout_ref.rollout.nnodes or (config.reward_model.enable and config.reward_model.nnodes)
        alone = num_workers(config) == 1 and not apart
        trainer.runtime = "local" if alone else "ray"
    resolve_folders(config)


def resolve_folders(config: RunSettings) -> None:
    trainer = config.trainer
    for name, folder in derived_folders(config).items():
        if not getattr(trainer, name):
            setattr(trainer, name, folder)


class RunSettings(Protocol):
    """The settings of any command that leaves a run folder."""

    trainer: TrainerConfig


def derived_folders(config: RunSettings) -> dict[str, str]:
    """What `trainer`'s folder settings are when left empty."""
    trainer = config.trainer
    run = trainer.default_local_dir or f"runs/{trainer.project_name}/{trainer.experiment_name}"
    return {
        "default_local_dir": f"runs/{trainer.project_name}/{trainer.experiment_name}",
        "rollout_data_dir": f"{run}/rollouts",
        "validation_data_dir": f"{run}/validation",
    }


def num_workers(config: Config) -> int:
    return config.trainer.nnodes * config.trainer.n_gpus_per_node
