"""A model as Megatron keeps it: each tensor-parallel rank has a part of every layer, and groups of them are replicas.

The placement of megatron.py's engine, as placement.py's is of torch.py's. It builds the rank's part, fills it from the
Hugging Face model or its files a tensor at a time, and shows it under Hugging Face names again: as parts of whole
tensors for checkpoints, or whole, for everybody else. It does not compute.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from transformers import PreTrainedModel

from podium.engines.train.masters import MasterWeights, cast_parameters
from podium.engines.train.megatron_build import build
from podium.engines.train.megatron_names import Piece, cut_for, place_of
from podium.engines.train.placement import PlacedModel
from podium.engines.train.sharding import Ranks, full_tensor
from podium.errors import ConfigError
from podium.models.lora import has_adapters
from podium.models.streamed import META, weight_files
from podium.models.value import ValueModel

REDUCE_BYTES = 1 << 28
"""Gradients are added over replicas in buffers of about this size."""


class TensorParallelModel(PlacedModel):
    def __init__(
        self,
        module: PreTrainedModel | ValueModel,
        ranks: Ranks,
        mesh: DeviceMesh,
        dtype: torch.dtype,
        trainable: bool,
        sequence_parallel: bool,
    ) -> None:
        if has_adapters(module):
            raise ConfigError("LoRA needs strategy=fsdp or deepspeed; with strategy=megatron set lora_rank=0.")
        self.module, self.device, self.ranks, self.dtype = module, ranks.device, ranks, dtype
        self.sharded, self.adapted, self.masters = True, False, None
        self.mesh = mesh["replicate", "shard"]
        rank, size = self.mesh.get_local_rank("shard"), self.mesh["shard"].size()
        cut = cut_for(module.config, rank, size)
        self.shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
        self.pieces = {name: place_of(name, cut) for name in self.shapes}
        self.in_parts = {
            self.path(piece)
            for piece in self.pieces.values()
            if piece.sees == "heads" or (piece.sees == "stretch" and sequence_parallel and size > 1)
        }
        """Parameters that every rank has, whose gradient is a sum over what the ranks see."""
        self.root: nn.Module = build(module, cut, mesh, sequence_parallel)  # type: ignore[assignment]
        self._fill(rank, size)
        if not trainable:
            self.root.requires_grad_(False)
            cast_parameters(self.root.parameters(), dtype)
        self.root.to(self.device)
        if trainable and dtype != torch.float32:
            self.masters = MasterWeights(self.root, dtype)
        cast_parameters(module.parameters(), dtype)
        nn.Module.to(module, META)  # from here on it says what the model is, and holds nothing

    @torch.no_grad()
    def _fill(self, rank: int, size: int) -> None:
        """Every value from the module, or from the files of one that has none; rows of no token are zero."""
        files = weight_files(self.module)
        for parameter in self.root.parameters():
            parameter.zero_()
        held = self.named_weights()
        for name, parameter in self.module.named_parameters():
            whole: Tensor = parameter
            if parameter.device == META:
                assert files is not None
                whole = files.read(name)
            piece = self.pieces[name]
            piece.write(held[self.path(piece)], piece.part_of(whole, rank, size))

    def named_weights(self) -> dict[str, Tensor]:
        return dict(self.root.named_parameters()) | (self.masters.masters if self.masters else {})

    # ---- one step

    def backward(self, loss: Tensor, factor: float) -> None:
        """Gradients are added over replicas, not averaged."""
        (loss * (factor / self.ranks.size)).backward()

    def gradients_done(self) -> None:
        """Add what ranks have of the same gradients: over those that share a model, then over replicas."""
        weights = self.trained_weights()
        _add_up([weights[name] for name in sorted(self.in_parts & weights.keys())], self.mesh.get_group("shard"))
        _add_up(list(weights.values()), self.mesh.get_group("replicate"))

    def gradient_norm(self, named: dict[str, Tensor]) -> float:
        """Of the whole model: parts add up over the ranks, what every rank has counts once."""
        shared = {self.path(piece) for piece in self.pieces.values() if piece.dim is not None}
        parts: list[Tensor] = []
        same: list[Tensor] = []
        for name, tensor in named.items():
            if tensor.grad is not None:
                (parts if name in shared else same).append(tensor.grad)
        squares = torch.nn.utils.get_total_norm(parts).double().square().to(self.device)
        dist.all_reduce(squares, group=self.mesh.get_group("shard"))
        squares += torch.nn.utils.get_total_norm(same).double().square().to(self.device)
        return float(squares.sqrt().item())

    # ---- under Hugging Face names

    def unmerged(self) -> dict[str, Tensor]:
        weights = self.named_weights()
        return {
            name: self.shown(name, piece.read(weights[self.path(piece)].detach()))
            for name, piece in self.pieces.items()
        }

    def stream(self, dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
        weights = dict(self.root.named_parameters()) if dtype == self.dtype else self.named_weights()
        for name, piece in self.pieces.items():
            part = piece.read(weights[self.path(piece)].detach())
            yield name, full_tensor(self.shown(name, part if dtype is None else part.to(dtype)))

    def shown(self, name: str, part: Tensor) -> Tensor:
        """This rank's part of the tensor `name` (or of what an optimizer keeps of it) as a part of the whole."""
        dim, shape = self.pieces[name].dim, self.shapes[name]
        placements = [Replicate(), Replicate() if dim is None else Shard(dim)]
        stride = torch.empty(shape, device=META).stride()
        return DTensor.from_local(part.contiguous(), self.mesh, placements, run_check=False, shape=shape, stride=stride)

    @staticmethod
    def path(piece: Piece) -> str:
        """Of a piece's parameter in `named_weights`."""
        return piece.parameter if piece.parameter.startswith("value_head.") else f"gpt.{piece.parameter}"


def make_tensor_mesh(ranks: Ranks, size: int) -> DeviceMesh:
    """Neighbouring ranks share a model; `alone` is what Megatron asks for in dimensions that are not used."""
    if size < 1 or ranks.size % size:
        raise ConfigError(
            f"megatron.tensor_model_parallel_size is {size} with {ranks.size} ranks; it must divide their number."
        )
    return init_device_mesh(
        ranks.device.type, (ranks.size // size, size, 1), mesh_dim_names=("replicate", "shard", "alone")
    )


def _add_up(weights: list[Tensor], group: dist.ProcessGroup) -> None:
    """Make each gradient its sum over the group."""
    grads = [weight.grad for weight in weights if weight.grad is not None]
    if group.size() == 1:
        return
    for bucket in buckets(grads):
        flat = torch.cat([grad.reshape(-1) for grad in bucket])
        dist.all_reduce(flat, group=group)
        for grad, added in zip(bucket, flat.split([grad.numel() for grad in bucket]), strict=True):
            grad.copy_(added.view_as(grad))


def buckets(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Some at a time."""
    bucket: list[Tensor] = []
    held = 0
    for tensor in tensors:
        bucket.append(tensor)
        held += tensor.numel() * tensor.element_size()
        if held >= REDUCE_BYTES:
            yield bucket
            bucket, held = [], 0
    if bucket:
        yield bucket
