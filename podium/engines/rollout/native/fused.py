"""Neighbouring weights as one: several linear layers of the same input become one matrix product.

The parameters themselves become views of one storage, so nothing is kept twice: an optimizer that moves them in place,
or a publish that copies into them, moves the fused matrix. Whoever gives a parameter another storage (moving a module
to the host and back) parts them again; `storages` tells.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


@torch.no_grad()
def fuse(parts: list[nn.Parameter]) -> Tensor:
    """The parameters stacked along their first dimension, sharing memory with every one of them."""
    whole = _as_one(parts)
    if whole is None:
        whole = torch.cat([part.data for part in parts])
        for part, view in zip(parts, whole.split([len(part) for part in parts]), strict=True):
            part.data = view
    return whole


def _as_one(parts: list[nn.Parameter]) -> Tensor | None:
    """The stacked tensor when the parameters already lie side by side in one storage."""
    first = parts[0].data
    place, storage = first.storage_offset(), first.untyped_storage()
    for part in parts:
        data = part.data
        same = data.untyped_storage().data_ptr() == storage.data_ptr() and data.dtype == first.dtype
        if not (same and data.storage_offset() == place and data.is_contiguous()):
            return None
        place += data.numel()
    size = (sum(len(part) for part in parts), *first.shape[1:])
    return torch.as_strided(first, size, first.stride(), first.storage_offset())


def storages(parameters: Iterable[nn.Parameter]) -> tuple[int, ...]:
    """Where each parameter lies; equal as long as no parameter was given another storage."""
    return tuple(parameter.data_ptr() for parameter in parameters)
