"""Replicas that share an optimizer's work: each keeps the state of some tensors, steps those and tells the others.

Gradients are the same on every replica by then. A tensor has one owner; on the others it has no gradient when the
optimizer steps, so nothing is kept of it there. Results are those of replicas that all step everything.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from podium.engines.train.megatron_place import buckets


def share_steps(optimizer: torch.optim.Optimizer, weights: dict[str, Tensor], group: dist.ProcessGroup) -> None:
    """From here on a step of `optimizer` moves all `weights` on every rank of `group`; collective."""
    owners = owners_of(weights, group.size())
    rank = group.rank()

    def drop_others(*_step: Any) -> None:
        for name, weight in weights.items():
            if owners[name] != rank:
                weight.grad = None

    @torch.no_grad()
    def tell(*_step: Any) -> None:
        for owner in range(group.size()):
            for bucket in buckets([weight for name, weight in weights.items() if owners[name] == owner]):
                flat = torch.cat([weight.reshape(-1) for weight in bucket])
                dist.broadcast(flat, group=group, group_src=owner)
                for weight, new in zip(bucket, flat.split([weight.numel() for weight in bucket]), strict=True):
                    weight.copy_(new.view_as(weight))

    optimizer.register_step_pre_hook(drop_others)
    optimizer.register_step_post_hook(tell)


def owners_of(weights: dict[str, Tensor], size: int) -> dict[str, int]:
    """About as many numbers for each: the largest tensors first, each to whoever has least."""
    held = [0] * size
    owners: dict[str, int] = {}
    for name in sorted(weights, key=lambda name: (-weights[name].numel(), name)):
        owners[name] = held.index(min(held))
        held[owners[name]] += weights[name].numel()
    return owners
