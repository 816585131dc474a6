"""The optimizer steps of one batch: epochs × mini-batches, the same number on every rank.

Rows carry the number of their mini-batch, given by the controller, so that a mini-batch has the same rows whatever the
number of ranks. A rank without rows in a mini-batch still takes the step: its peers meet it in collectives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from podium.config.schema import ActorConfig, CriticConfig, DataConfig
from podium.engines.train.meter import MFU
from podium.metric import Metrics, merge_metrics
from podium.protocol import DataProto


def optimizer_steps(data: DataProto, epochs: int, shuffle: bool, seed: int) -> Iterator[DataProto]:
    """This rank's rows of each optimizer step, in order."""
    numbers = data.tensors()["mini_batch"]
    count = int(data.meta_info["num_mini_batches"])
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(count, generator=generator) if shuffle else torch.arange(count)
        for number in order.tolist():
            yield data.select_idxs(numbers == number)


def total_optimizer_steps(training_steps: int, role: ActorConfig | CriticConfig, data: DataConfig) -> int:
    """What the learning-rate schedule counts."""
    assert role.ppo_mini_batch_size is not None and role.ppo_epochs is not None, "resolved by load_config"
    return training_steps * role.ppo_epochs * math.ceil(data.train_batch_size / role.ppo_mini_batch_size)


def run_updates(steps: Iterator[DataProto], update: Callable[[DataProto], Metrics], prefix: str) -> Metrics:
    """The metrics of all steps, merged, under their full names."""
    return full_names(merge_metrics(update(step) for step in steps), prefix)


def full_names(metrics: Metrics, role: str) -> Metrics:
    """The engine's own metrics (grad_norm, lr, ...) belong to the role whose model it is."""
    own = {MFU: f"perf/mfu/{role}"}
    return {own.get(name, name if "/" in name else f"{role}/{name}"): metric for name, metric in metrics.items()}


def gather_rows(columns: dict[str, Tensor]) -> tuple[dict[str, Tensor], slice]:
    """The columns of all ranks, one below the other, and where this rank's rows are among them."""
    rows = len(next(iter(columns.values())))
    if not dist.is_initialized():
        return columns, slice(0, rows)
    parts: list[dict[str, Tensor]] = [{}] * dist.get_world_size()
    dist.all_gather_object(parts, {key: value.cpu() for key, value in columns.items()})
    start = sum(len(part["response_mask"]) for part in parts[: dist.get_rank()])
    device = columns["response_mask"].device
    return {key: torch.cat([part[key] for part in parts]).to(device) for key in columns}, slice(start, start + rows)
