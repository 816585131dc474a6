"""verl's way to make a RayPPOTrainer and verl's names on it, for programs that were written for verl.

`completed` lets a constructor be called with as much or as little as verl's: what is not given comes from the
configuration. SeedNames has the attributes under verl's names. There is no behaviour of its own here, and the trainer
itself uses none of it; docs/decisions/062 says which of verl's names are not given, and what is there instead.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from podium.algorithms.masking import last_token_mask
from podium.config.schema import Config
from podium.data.dataset import Batch, RLHFDataset
from podium.data.mixing import make_sampler
from podium.data.sampler import ResumableSampler
from podium.models.load import load_processor, load_tokenizer
from podium.protocol import DataProto
from podium.rewards.manager import RewardManager
from podium.trainer.requirements import settle_critic


def completed(init: Callable[..., None]) -> Callable[..., None]:
    """A trainer's `__init__` that takes from the configuration what it is not given."""
    signature = inspect.signature(init)
    optional = [
        parameter if name in ("self", "config") else parameter.replace(default=None)
        for name, parameter in signature.parameters.items()
    ]

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        given = __init__.__signature__.bind(self, *args, **kwargs).arguments  # type: ignore[attr-defined]
        init(**{name: value for name, value in fill_in(given).items() if value is not None})

    __init__.__signature__ = signature.replace(parameters=optional)  # type: ignore[attr-defined]
    return __init__


def fill_in(given: dict[str, Any]) -> dict[str, Any]:
    """A trainer's arguments, complete: models, data, rewards, roles, pools and workers as the configuration says."""
    from podium.trainer import main_ppo  # it builds trainers, and so cannot be imported before there is one

    config = settle_critic(given["config"])
    parts = {name: value for name, value in given.items() if value is not None} | {"config": config}
    device = parts["device_name"] = parts.get("device_name") or main_ppo.resolve_device(config.trainer.device)
    model = config.actor_rollout_ref.model
    if "tokenizer" not in parts:
        parts["tokenizer"] = load_tokenizer(model.path, model.trust_remote_code)
        parts.setdefault("processor", load_processor(model.path, model.trust_remote_code))
    tokenizer, processor = parts["tokenizer"], parts.get("processor")
    own_reward = "reward_fn" in parts
    if "train_dataset" not in parts:
        parts["train_dataset"] = main_ppo.make_dataset(config, tokenizer, "train", processor, own_reward)
        if "train_sampler" not in parts:
            parts["train_sampler"] = make_sampler(config, parts["train_dataset"])
        if "val_dataset" not in parts and config.data.val_files:
            parts["val_dataset"] = main_ppo.make_dataset(config, tokenizer, "val", processor, own_reward)
    if "reward_fn" not in parts:
        parts["reward_fn"] = main_ppo.make_rewards(config, tokenizer, parts["train_dataset"], parts.get("val_dataset"))
    for name in ("reward_fn", "val_reward_fn"):
        if name in parts and not isinstance(parts[name], RewardManager):
            parts[name] = RewardManager(tokenizer, parts[name], config.reward.max_failure_rate)
        if name in parts:
            parts[name].datasets = [parts[key] for key in ("train_dataset", "val_dataset") if parts.get(key)]
    if "role_worker_mapping" not in parts:
        parts["role_worker_mapping"] = main_ppo.role_workers(config)
    if "resource_pool_manager" not in parts:
        parts["resource_pool_manager"] = main_ppo.make_pools(config, device)
    if "ray_worker_group_cls" not in parts:
        parts["ray_worker_group_cls"] = main_ppo.worker_group_class(config.trainer.runtime)
    return parts


class Batches:
    """What verl's dataloaders are to a loop: `for batch_dict in batches`, `len(batches)`."""

    def __init__(
        self,
        rows: Callable[[], Iterator[list[int]]],
        length: int,
        dataset: RLHFDataset,
        collate_fn: Callable[[list[dict[str, Any]]], Batch],
    ) -> None:
        self.dataset, self.collate_fn = dataset, collate_fn
        self._rows, self._length = rows, length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        return (self.collate_fn(self.dataset.fetch(rows)) for rows in self._rows())


def _rest_of_epoch(sampler: ResumableSampler) -> Iterator[list[int]]:
    return copy.deepcopy(sampler).epoch_batches()


class ReferenceGroup:
    """The workers in which the reference lives; their `compute_log_prob` would be the actor's."""

    def __init__(self, workers: Any) -> None:
        self.workers = workers
        self.world_size = workers.world_size

    def compute_ref_log_prob(self, batch: DataProto) -> DataProto:
        output: DataProto = self.workers.compute_ref_log_prob(batch)
        return output

    compute_log_prob = compute_ref_log_prob


class SeedNames:
    """verl's names of what a RayPPOTrainer has. Worker groups are there after `init_workers`."""

    config: Config
    train_dataset: RLHFDataset
    val_dataset: RLHFDataset | None
    train_sampler: ResumableSampler
    collate_fn: Callable[[list[dict[str, Any]]], Batch]
    use_reference_policy: bool
    actor_rollout_wg: Any
    reward_model_wg: Any

    @property
    def train_dataloader(self) -> Batches:
        """The rest of the epoch in batches; looking at them does not move the run on."""
        sampler = self.train_sampler
        rows = functools.partial(_rest_of_epoch, sampler)
        return Batches(rows, len(sampler), self.train_dataset, self.collate_fn)

    @property
    def val_dataloader(self) -> Batches | None:
        if self.val_dataset is None:
            return None
        rows = len(self.val_dataset)
        size = self.config.data.val_batch_size or rows
        parts = [list(range(start, min(start + size, rows))) for start in range(0, rows, size)]
        return Batches(lambda: iter(parts), len(parts), self.val_dataset, self.collate_fn)

    @property
    def use_rm(self) -> bool:
        return bool(self.config.reward_model.enable)

    @property
    def rm_wg(self) -> Any:
        return self.reward_model_wg

    @property
    def ref_policy_wg(self) -> ReferenceGroup | None:
        return ReferenceGroup(self.actor_rollout_wg) if self.use_reference_policy else None


def compute_reward(data: DataProto, reward_fn: RewardManager) -> tuple[Tensor, dict[str, Any]]:
    """verl's shape of a batch's rewards: [B, R], the score at each row's last token (NaN: unscored), and the rest."""
    result = reward_fn(data)
    last = last_token_mask(data.tensors()["response_mask"]).bool()
    return torch.where(last, result.scores.unsqueeze(-1), 0.0), dict(result.extra)
