"""Ranks that write a sharded tensor together, while something is wrong with a disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from podium.engines.train.state import save_state
from podium.errors import CheckpointError


def save_shards(folder: Path) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    tensor = distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Shard(0)])
    save_state(folder, {"model.w": tensor}, distributed=True)


def save_apart(folder: Path) -> None:
    """Each rank's own folder, as nodes without a common disk have."""
    save_shards(folder / f"node_{dist.get_rank()}" / "actor")


def save_with_one_full_disk(folder: Path) -> str:
    """What each rank says when the disk of rank 1 is full."""
    if dist.get_rank() == 1:
        os.fsync = full  # type: ignore[assignment]
    try:
        save_shards(folder)
    except CheckpointError as error:
        return str(error)
    return "saved"


def full(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
