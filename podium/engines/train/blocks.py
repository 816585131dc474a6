"""The decoder blocks of a model, and two things an engine may do with them: compile them, and keep what their backward
pass needs in host memory.

Compiling fuses what lies between the matrix products: less time and less memory on a GPU, a minute of waiting at the
start. Attention stays out of it, since every micro-batch brings a plan of its own. Sharding is sharding.py's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from podium.errors import ModelError
from podium.models.attention import keep_attention_eager
from podium.models.load import backbone

MIN_OFFLOAD_BYTES = 1 << 20
"""Smaller tensors stay: moving them costs more than they weigh."""


def decoder_blocks(model: nn.Module) -> list[nn.Module]:
    body = backbone(model)
    names = set(getattr(body, "_no_split_modules", None) or ())
    blocks = [part for part in body.modules() if type(part).__name__ in names]
    if not blocks:
        raise ModelError(
            f"{type(body).__name__} does not name its decoder blocks (_no_split_modules); cannot shard or compile it."
        )
    return blocks


def compile_blocks(model: nn.Module, backend: str = "inductor") -> None:
    """In place, one program for all blocks and all numbers of tokens; the module keeps its parts and their names."""
    keep_attention_eager()
    for block in decoder_blocks(model):
        block.forward = torch.compile(block.forward, backend=backend, dynamic=True)


@contextmanager
def activations_on_host(device: torch.device) -> Iterator[None]:
    """Inside, what the backward pass needs is kept in host memory and comes back when it is used; weights stay."""
    if device.type == "cpu":
        yield
        return

    def pack(tensor: Tensor) -> Tensor | tuple[torch.device, Tensor]:
        large = tensor.numel() * tensor.element_size() >= MIN_OFFLOAD_BYTES
        if tensor.device.type == "cpu" or not large or _is_weight(tensor):
            return tensor
        kept = torch.empty(tensor.shape, dtype=tensor.dtype, layout=tensor.layout, pin_memory=True)
        return tensor.device, kept.copy_(tensor, non_blocking=True)

    def unpack(kept: Tensor | tuple[torch.device, Tensor]) -> Tensor:
        return kept if isinstance(kept, Tensor) else kept[1].to(kept[0], non_blocking=True)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


def _is_weight(tensor: Tensor) -> bool:
    """A parameter or a view of one, such as the transpose that a linear layer keeps."""
    return isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter) or tensor.is_leaf
