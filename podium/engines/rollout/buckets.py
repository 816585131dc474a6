"""Many named tensors as a few flat ones: what travels between processes when weights are published.

A bucket is one array of bytes and a list that says what lies where in it. A tensor larger than a bucket gets one of its
own. How buckets travel is channels.py's matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BUCKET_BYTES = 128 << 20
_ALIGNMENT = 16

DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.bfloat16, torch.float16)}
DTYPES |= {str(dtype).removeprefix("torch."): dtype for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool)}


@dataclass(frozen=True)
class Bucket:
    entries: list[tuple[str, list[int], str]]
    """Name, shape and type of each tensor, in the order of their bytes."""
    data: Tensor  # [bytes] uint8

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors, as views of the bytes."""
        start = 0
        for name, shape, kind in self.entries:
            dtype = DTYPES[kind]
            size = torch.Size(shape).numel() * dtype.itemsize
            yield name, self.data[start : start + size].view(dtype).view(shape)
            start += _aligned(size)

    def describe(self) -> dict[str, Any]:
        return {"entries": self.entries, "bytes": self.data.numel()}


def into_buckets(weights: Iterable[tuple[str, Tensor]], bucket_bytes: int = BUCKET_BYTES) -> Iterator[Bucket]:
    """Fill buckets in the order of the stream; a bucket's bytes are its own."""
    waiting: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in weights:
        step = _aligned(tensor.numel() * tensor.element_size())
        if waiting and size + step > bucket_bytes:
            yield _fill(waiting, size)
            waiting, size = [], 0
        waiting.append((name, tensor.detach()))
        size += step
    if waiting:
        yield _fill(waiting, size)


def _fill(named: list[tuple[str, Tensor]], size: int) -> Bucket:
    data = torch.empty(size, dtype=torch.uint8, device=named[0][1].device)
    entries = [(name, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in named]
    bucket = Bucket(entries, data)
    for (_, source), (_, target) in zip(named, bucket.tensors(), strict=True):
        target.copy_(source)
    return bucket


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
