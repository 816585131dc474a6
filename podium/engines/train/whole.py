"""Whole tensors on the first rank, from the shards that each rank holds in host memory.

For work beside the training: over a process group of its own, one tensor at a time, so that no rank ever holds the
model. DTensor's own way would use the training's group and give every rank the whole.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

Place = tuple[tuple[int, ...], tuple[int, ...]]
"""Where a rank's piece begins in the whole, and its shape."""


class Gatherer:
    """Called by all ranks of the group with the same tensors in the same order."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self._places: dict[Any, list[Place | None]] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        """The whole on the first rank; elsewhere a tensor of its shape without values."""
        if not isinstance(tensor, DTensor):
            return tensor.cpu() if self.rank == 0 else tensor.to("meta")
        places, piece = self._places_of(tensor), tensor.to_local().cpu().contiguous()
        if self.rank > 0:
            if places[self.rank] is not None:
                dist.send(piece, group=self.group, group_dst=0)
            return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        whole = torch.empty(tensor.shape, dtype=tensor.dtype)
        for rank, place in enumerate(places):
            if place is not None:
                start, shape = place
                if rank > 0:
                    piece = torch.empty(shape, dtype=tensor.dtype)
                    dist.recv(piece, group=self.group, group_src=rank)
                whole[tuple(slice(a, a + size) for a, size in zip(start, shape, strict=True))] = piece
        return whole

    def _places_of(self, tensor: DTensor) -> list[Place | None]:
        """Of each rank; None for one whose piece an earlier one has too, or that has nothing."""
        layout = (tensor.shape, tensor.device_mesh, tensor.placements)
        if layout not in self._places:
            shape, start = compute_local_shape_and_global_offset(*layout)
            found: list[Any] = [None] * dist.get_world_size(self.group)
            dist.all_gather_object(found, (tuple(start), tuple(shape)), group=self.group)
            seen: set[Place] = set()
            places: list[Place | None] = []
            for place in found:
                is_new = place not in seen and 0 not in place[1]
                places.append(place if is_new else None)
                seen.add(place)
            self._places[layout] = places
        return self._places[layout]
