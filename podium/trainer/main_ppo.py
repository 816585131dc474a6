"""From a configuration to a finished run: builds the parts, hands them to RayPPOTrainer, cleans up."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import torch

from podium.agents.factory import environment_scores
from podium.config import check_config
from podium.config.schema import Config
from podium.data.agent_names import agent_loop
from podium.data.dataset import RLHFDataset
from podium.data.tasks import Split
from podium.errors import ConfigError, PodiumError
from podium.models.value import read_score_head
from podium.rewards.answers import answer_rule
from podium.rewards.manager import RewardManager
from podium.rewards.registry import check_sources
from podium.rewards.scorer import RewardScorer
from podium.single_controller import LocalWorkerGroup, ResourcePoolManager, Role, Worker, WorkerGroup
from podium.single_controller.runtime import dashboard_address, ensure_ray
from podium.single_controller.supervise import FailurePolicy
from podium.trainer.ray_trainer import RayPPOTrainer
from podium.trainer.requirements import needs_reference_policy, settle_critic
from podium.trainer.restarts import attempt, run_with_restarts
from podium.trainer.stopping import StopSignals
from podium.workers.actor_rollout_ref import ActorRolloutRefWorker
from podium.workers.critic import CriticWorker
from podium.workers.reward_model import RewardModelWorker
from podium.workers.rollout_worker import RolloutWorker

logger = logging.getLogger(__name__)


def run_ppo(config: Config) -> int:
    """Train as the resolved configuration says; returns the exit code. Lost workers are replaced."""
    check_config(config)
    return run_with_restarts(config.trainer, partial(run_once, config))


def run_once(
    config: Config, stopping: StopSignals, policy: FailurePolicy, before: PodiumError | None
) -> PodiumError | None:
    """Train to the end, or until workers are lost and the policy wants new ones: then that failure comes back.

    `before` is the failure that this attempt follows.
    """
    trainer = build_trainer(config)
    trainer.stopping, trainer.is_restart, trainer.failure_policy = stopping, before is not None, policy
    if config.trainer.runtime == "ray":  # it takes a while; the console shows nothing else until then
        count = config.trainer.nnodes * config.trainer.n_gpus_per_node
        trainer.recorder.console.message(f"starting Ray workers: {count}")
    return attempt(trainer, config.trainer, stopping, policy, lambda: trainer.actor_rollout_wg)


def build_trainer(config: Config) -> RayPPOTrainer:
    """Everything but the workers, which `init_workers` starts."""
    config = settle_critic(config)
    if config.reward_model.enable:
        read_score_head(config.reward_model.model)
    shows_ray = config.trainer.ray_dashboard and config.trainer.runtime == "ray"
    if shows_ray:
        ensure_ray(dashboard=True)
    trainer = RayPPOTrainer(config)
    if shows_ray:
        where = dashboard_address() or "none, the cluster at RAY_ADDRESS was started without it"
        trainer.recorder.announcements.append(f"Ray's dashboard: {where}")
    return trainer


def make_rewards(config: Config, tokenizer: Any, *datasets: RLHFDataset | None) -> RewardManager:
    """The functions that the configuration names, or those of the rows' data sources."""
    sources = set().union(*(data_sources(dataset) for dataset in datasets if dataset))
    has_model = config.reward_model.enable
    model_sources = check_sources(config.reward, sources, has_model or environment_scores(config))
    limit, scorer = config.reward.max_failure_rate, RewardScorer(config.reward)
    return RewardManager(tokenizer, scorer, limit, sources, model_sources, has_model)


def make_dataset(
    config: Config, tokenizer: Any, split: Split, processor: Any = None, own_reward: bool = False
) -> RLHFDataset:
    """One split, its first rows checked; rows that cannot be used go to the run folder's quarantine.

    `own_reward`: a Python program scores the responses, and nobody knows what it needs for that.
    """
    files = config.data.train_files if split == "train" else config.data.val_files
    quarantine = Path(config.trainer.default_local_dir) / "quarantine.jsonl"
    dataset = RLHFDataset(files, tokenizer, config.data, split, processor, quarantine)
    dataset.agent = agent_loop(config)
    if not own_reward and not environment_scores(config):
        for text in dataset.expect_answers(answer_rule(config)):
            logger.warning("%s", text)
    dataset.check_rows()
    return dataset


def data_sources(dataset: RLHFDataset, looks: int = 64) -> set[str]:
    """The data sources of rows spread over the whole dataset."""
    step = max(1, len(dataset) // looks)
    return {str(row["data_source"]) for row in dataset.fetch(range(0, len(dataset), step))}


def resolve_device(device: str) -> str:
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("trainer.device=cuda, but torch sees no GPU here; set trainer.device=auto or cpu")
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def role_workers(config: Config) -> dict[Role, type[Worker]]:
    actor_role = Role.ActorRolloutRef if needs_reference_policy(config) else Role.ActorRollout
    roles: dict[Role, type[Worker]] = {actor_role: ActorRolloutRefWorker}
    if config.critic.enable:
        roles[Role.Critic] = CriticWorker
    if config.reward_model.enable:
        roles[Role.RewardModel] = RewardModelWorker
    if config.actor_rollout_ref.rollout.nnodes:
        roles[Role.Rollout] = RolloutWorker
    return roles


def make_pools(config: Config, device: str) -> ResourcePoolManager:
    """One pool that all roles share, and one each for rollout workers and reward model where they are to be apart."""
    spec = {"global_pool": [config.trainer.n_gpus_per_node] * config.trainer.nnodes}
    mapping = dict.fromkeys(role_workers(config), "global_pool")
    rollout, gpus_per_worker = config.actor_rollout_ref.rollout, {}
    if rollout.nnodes:
        spec["rollout_pool"] = [rollout.n_gpus_per_node] * rollout.nnodes
        mapping[Role.Rollout] = "rollout_pool"
        gpus_per_worker["rollout_pool"] = rollout.tensor_model_parallel_size
    judge = config.reward_model
    if judge.enable and judge.nnodes:
        spec["reward_pool"] = [judge.n_gpus_per_node] * judge.nnodes
        mapping[Role.RewardModel] = "reward_pool"
    return ResourcePoolManager(spec, mapping, use_gpu=device == "cuda", gpus_per_worker=gpus_per_worker)


def worker_group_class(runtime: str) -> type[WorkerGroup]:
    if runtime == "local":
        return LocalWorkerGroup
    from podium.single_controller import RayWorkerGroup

    return RayWorkerGroup
