"""The model in the form an engine keeps it: shards of a mesh, or whole on one device with masters beside it.

    several ranks                 float32 shards, gathered block by block in the compute type
    one device, float32           the module's own parameters
    one device, bfloat16          bfloat16 parameters and float32 masters (masters.py)
    frozen beside adapters        parameters in the compute type (on several ranks: shards of them)
    an engine that only scores    the same, and nothing else

It takes a module with its parameters loaded, the same on every rank, or still without values and with the files they
are in (models/streamed.py). It does not compute.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from podium.config.schema import FSDPConfig
from podium.engines.train.blocks import compile_blocks
from podium.engines.train.forward import PackedModel
from podium.engines.train.masters import MasterWeights, cast_parameters
from podium.engines.train.sharding import Ranks, full_tensor, make_mesh, shard
from podium.models.lora import has_adapters, merged_tensors
from podium.models.streamed import fill, parameter_names, weight_files
from podium.models.value import ValueModel


class PlacedModel:
    def __init__(
        self,
        module: PreTrainedModel | ValueModel,
        ranks: Ranks,
        fsdp: FSDPConfig,
        dtype: torch.dtype,
        trainable: bool,
    ) -> None:
        self.module, self.device = module, ranks.device
        self.root = PackedModel(module)
        self.sharded = ranks.size > 1
        self.adapted = has_adapters(module)
        self.masters: MasterWeights | None = None
        if not trainable:
            module.requires_grad_(False)
        cast_parameters((p for p in module.parameters() if not p.requires_grad), dtype)
        if fsdp.use_torch_compile:
            compile_blocks(module)
        if self.sharded:
            mesh = make_mesh(self.device, ranks.size, fsdp.fsdp_size)
            shard(self.root, module, mesh, dtype, fsdp.reshard_after_forward, fsdp.forward_prefetch)
            return
        if (files := weight_files(module)) is not None:
            fill(module, parameter_names(module), files, self.device)
        self.root.to(self.device)
        if trainable and dtype != torch.float32:
            self.masters = MasterWeights(module, dtype)

    def named_weights(self) -> dict[str, Tensor]:
        """Every weight by its name in the module: the master where there is one, else the parameter."""
        return dict(self.module.named_parameters()) | (self.masters.masters if self.masters else {})

    def trained_weights(self) -> dict[str, Tensor]:
        """What an optimizer moves."""
        return {name: tensor for name, tensor in self.named_weights().items() if tensor.requires_grad}

    def saved_weights(self) -> dict[str, Tensor]:
        """What a checkpoint holds: all weights, or those trained beside a frozen model, which is on disk already."""
        return self.trained_weights() if self.adapted else self.named_weights()

    def stream(self, dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
        """Every weight in full, and the buffers a checkpoint keeps; one at a time, tied ones once, collective."""
        yield from merged_tensors(self.module, self.named_weights() | self._kept_buffers(), full_tensor, dtype)

    def unmerged(self) -> dict[str, Tensor] | None:
        """What `stream` starts from; None where it cannot be merged without the module's own collectives."""
        return {name: tensor.detach() for name, tensor in (self.named_weights() | self._kept_buffers()).items()}

    def _kept_buffers(self) -> dict[str, Tensor]:
        kept = self.module.state_dict().keys()
        return {name: buffer for name, buffer in self.module.named_buffers() if name in kept}

    def reshard(self) -> None:
        """Bring every parameter back to its shard: after a forward pass the root's are still whole, and not those that
        the optimizer knows."""
        for module in self.root.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def weights_changed(self) -> None:
        """After a step or a load: bring the module up to date."""
        if self.masters is not None:
            self.masters.publish()

    def sync_replicas(self, last: bool) -> None:
        """With replicas of the shards, add gradients over replicas once per step and not once per micro-batch."""
        if isinstance(self.root, FSDPModule):
            self.root.set_requires_all_reduce(last)

    def backward(self, loss: Tensor, factor: float) -> None:
        """Add the gradients of `loss` times `factor`; a factor of 0 means that nothing counts on any rank."""
        (loss * factor).backward()

    def gradients_done(self) -> None:
        """After the last backward pass of a step. FSDP has added gradients over the ranks by then."""

    def gradient_norm(self, named: dict[str, Tensor]) -> float:
        """Of all gradients of the whole model; collective where it is sharded."""
        grads = [tensor.grad for tensor in named.values() if tensor.grad is not None]
        return float(full_tensor(torch.nn.utils.get_total_norm(grads)).item())

    def move(self, device: torch.device) -> None:
        self.root.to(device)
        for master in self.masters.masters.values() if self.masters else ():
            master.data = master.data.to(device, non_blocking=True)


def move_optimizer_state(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    for kept in optimizer.state.values():
        kept.update({key: v.to(device, non_blocking=True) for key, v in kept.items() if isinstance(v, Tensor)})
