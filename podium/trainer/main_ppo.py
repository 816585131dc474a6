"""From a configuration to a finished run: builds the parts, hands them to RayPPOTrainer, cleans up."""

from __future__ import annotations

import torch

from podium.config import check_config
from podium.config.schema import Config
from podium.data.dataset import RLHFDataset
from podium.errors import ConfigError
from podium.models.load import load_tokenizer
from podium.rewards.manager import RewardManager
from podium.rewards.registry import get_score_fn
from podium.single_controller import LocalWorkerGroup, ResourcePoolManager, Role, Worker, WorkerGroup
from podium.trainer.ray_trainer import RayPPOTrainer
from podium.trainer.requirements import needs_reference_policy
from podium.workers.actor_rollout_ref import ActorRolloutRefWorker
from podium.workers.critic import CriticWorker


def run_ppo(config: Config) -> int:
    """Train as the resolved configuration says; returns the exit code."""
    check_config(config)
    trainer = build_trainer(config)
    try:
        trainer.init_workers()
        trainer.fit()
    finally:
        trainer.shutdown()
    return 0


def build_trainer(config: Config) -> RayPPOTrainer:
    """Everything but the workers, which `init_workers` starts."""
    device = resolve_device(config.trainer.device)
    model = config.actor_rollout_ref.model
    tokenizer = load_tokenizer(model.path, model.trust_remote_code)
    train_dataset = RLHFDataset(config.data.train_files, tokenizer, config.data, split="train")
    val_dataset = (
        RLHFDataset(config.data.val_files, tokenizer, config.data, split="val") if config.data.val_files else None
    )
    sources = data_sources(train_dataset) | (data_sources(val_dataset) if val_dataset else set())
    score_fn = get_score_fn(config.reward, sources)
    return RayPPOTrainer(
        config=config,
        tokenizer=tokenizer,
        role_worker_mapping=role_workers(config),
        resource_pool_manager=make_pools(config, device),
        ray_worker_group_cls=worker_group_class(config.trainer.runtime),
        reward_fn=RewardManager(tokenizer, score_fn, config.reward.max_failure_rate),
        train_dataset=train_dataset,
        val_dataset=val_dataset,
        device_name=device,
    )


def data_sources(dataset: RLHFDataset, looks: int = 64) -> set[str]:
    """The data sources of rows spread over the whole dataset."""
    step = max(1, len(dataset) // looks)
    return {str(dataset[row]["data_source"]) for row in range(0, len(dataset), step)}


def resolve_device(device: str) -> str:
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("trainer.device=cuda, but torch sees no GPU here; set trainer.device=auto or cpu")
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def role_workers(config: Config) -> dict[Role, type[Worker]]:
    actor_role = Role.ActorRolloutRef if needs_reference_policy(config) else Role.ActorRollout
    roles: dict[Role, type[Worker]] = {actor_role: ActorRolloutRefWorker}
    if config.critic.enable:
        roles[Role.Critic] = CriticWorker
    return roles


def make_pools(config: Config, device: str) -> ResourcePoolManager:
    """One pool that all roles share."""
    spec = {"global_pool": [config.trainer.n_gpus_per_node] * config.trainer.nnodes}
    return ResourcePoolManager(spec, dict.fromkeys(role_workers(config), "global_pool"), use_gpu=device == "cuda")


def worker_group_class(runtime: str) -> type[WorkerGroup]:
    if runtime == "local":
        return LocalWorkerGroup
    from podium.single_controller import RayWorkerGroup

    return RayWorkerGroup
