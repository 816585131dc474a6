"""How a model lies over the ranks: FSDP2 over a mesh, and the few collectives an engine needs of its own.

Each decoder block is one sharding unit and the rest (embeddings, last norm, head) is the root's. Parameters must be the
same on every rank when `shard` is called. A lone process needs none of this and no process group.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from podium.engines.train.blocks import decoder_blocks
from podium.errors import ConfigError
from podium.models.streamed import fill, parameter_names, weight_files


class Ranks:
    """The data-parallel ranks that share one model; alone when there is no process group."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.size = dist.get_world_size() if dist.is_initialized() else 1
        self.rank = dist.get_rank() if dist.is_initialized() else 0

    def sum(self, value: float) -> float:
        return self._reduce(value, dist.ReduceOp.SUM)

    def max(self, value: float) -> float:
        return self._reduce(value, dist.ReduceOp.MAX)

    def _reduce(self, value: float, operation: dist.ReduceOp.RedOpType) -> float:
        if self.size == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, operation)
        return float(tensor.item())


def make_mesh(device: torch.device, num_ranks: int, fsdp_size: int) -> DeviceMesh:
    """One axis when all ranks share the parameters, else replicas × shards."""
    size = num_ranks if fsdp_size == -1 else fsdp_size
    if not 1 <= size <= num_ranks or num_ranks % size:
        raise ConfigError(
            f"fsdp_size is {fsdp_size} with {num_ranks} ranks; it must be -1 (all) or divide the number of ranks."
        )
    if size == num_ranks:
        return init_device_mesh(device.type, (size,), mesh_dim_names=("shard",))
    return init_device_mesh(device.type, (num_ranks // size, size), mesh_dim_names=("replicate", "shard"))


def shard(
    root: nn.Module, model: nn.Module, mesh: DeviceMesh, dtype: torch.dtype, reshard: bool, prefetch: bool = False
) -> FSDPModule:
    """Shard `root` (which holds `model`) in place; float32 parameters compute in `dtype`, gradients add in float32.

    `prefetch`: while a block computes, the next one's parameters are gathered, asked for before it starts. A model
    without values gets them here, a block at a time, so that no rank ever holds all of it.
    """
    files, names, device = weight_files(model), parameter_names(model), torch.device(mesh.device_type)
    policy = MixedPrecisionPolicy()
    if any(parameter.dtype != dtype for parameter in model.parameters()):
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    blocks = []
    for block in decoder_blocks(model):
        if files is not None:
            fill(block, names, files, device)
        blocks.append(fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard))
    if files is not None:
        fill(root, names, files, device)
    if prefetch:
        for earlier, later in pairwise(blocks):
            earlier.set_modules_to_forward_prefetch([later])
            later.set_modules_to_backward_prefetch([earlier])
    return fully_shard(root, mesh=mesh, mp_policy=policy, reshard_after_forward=False)


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor (collective), or the tensor itself."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_part(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
