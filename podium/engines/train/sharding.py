"""How a model lies over the ranks: FSDP2 over a mesh, and the few collectives an engine needs of its own.

Each decoder block is one sharding unit and the rest (embeddings, last norm, head) is the root's. Parameters must be the
same on every rank when `shard` is called. A lone process needs none of this and no process group.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from podium.errors import ConfigError, ModelError
from podium.models.load import backbone


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


def shard(root: nn.Module, model: nn.Module, mesh: DeviceMesh, dtype: torch.dtype, reshard: bool) -> FSDPModule:
    """Shard `root` (which holds `model`) in place; float32 parameters compute in `dtype`, gradients add in float32."""
    policy = MixedPrecisionPolicy()
    if dtype != next(model.parameters()).dtype:
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in decoder_blocks(model):
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    return fully_shard(root, mesh=mesh, mp_policy=policy, reshard_after_forward=False)


def decoder_blocks(model: nn.Module) -> list[nn.Module]:
    body = backbone(model)
    names = set(getattr(body, "_no_split_modules", None) or ())
    blocks = [part for part in body.modules() if type(part).__name__ in names]
    if not blocks:
        raise ModelError(
            f"{type(body).__name__} does not name its decoder blocks (_no_split_modules); cannot shard it."
        )
    return blocks


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor (collective), or the tensor itself."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_part(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
