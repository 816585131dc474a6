"""A complete set of weights in shared memory, written once and mapped by every process of an engine.

The memory belongs to this process and is gone with it; other processes open it by the path of its file descriptor.
Where the system has no such memory (anything but Linux) it is a temporary file. A set stays until the next one, so that
an engine that died can be given exactly what it had.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from podium.engines.rollout.buckets import Bucket, into_buckets
from podium.engines.rollout.host.records import WeightFile
from podium.errors import PublishError


class SharedFile:
    """Some bytes that other processes can map."""

    def __init__(self, num_bytes: int) -> None:
        self._name: str | None = None
        if hasattr(os, "memfd_create"):
            self._descriptor = os.memfd_create("podium-weights")
            self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        else:
            self._descriptor, self._name = tempfile.mkstemp(prefix="podium-weights-")
            self.path = self._name
        os.ftruncate(self._descriptor, num_bytes)
        self._map = mmap.mmap(self._descriptor, num_bytes)

    def write(self, data: Tensor) -> None:
        """Copy bytes [n] in."""
        target = torch.frombuffer(self._map, dtype=torch.uint8)
        target.copy_(data)

    def close(self) -> None:
        with contextlib.suppress(BufferError):  # a tensor over it is not collected yet: the descriptor's end is enough
            self._map.close()
        os.close(self._descriptor)
        if self._name is not None:
            os.unlink(self._name)


@dataclass
class SharedWeights:
    """One published set."""

    version: int
    files: list[WeightFile]
    _held: list[SharedFile]

    @staticmethod
    def write(weights: Iterable[tuple[str, Tensor]], version: int) -> SharedWeights:
        shared = SharedWeights(version, [], [])
        for bucket in into_buckets(weights):
            shared._add(bucket)
        return shared

    def _add(self, bucket: Bucket) -> None:
        file = SharedFile(bucket.data.numel())
        file.write(bucket.data)
        self._held.append(file)
        self.files.append(WeightFile(file.path, bucket.data.numel(), bucket.entries))

    def close(self) -> None:
        for file in self._held:
            file.close()
        self._held, self.files = [], []


@dataclass(frozen=True)
class Outline:
    """The names and shapes that a complete set has; names of one tied tensor share a number."""

    shapes: dict[str, torch.Size]
    tensor_of: dict[str, int]

    @staticmethod
    def of(module: nn.Module) -> Outline:
        tied: dict[int, int] = {}
        named: list[tuple[str, Tensor]] = list(module.named_parameters(remove_duplicate=False))
        saved = set(module.state_dict())
        named += [(name, b) for name, b in module.named_buffers(remove_duplicate=False) if name in saved]
        tensor_of = {name: tied.setdefault(id(tensor), len(tied)) for name, tensor in named}
        return Outline({name: tensor.shape for name, tensor in named}, tensor_of)

    def checked(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The same stream, a tied tensor under all its names; a PublishError when it is not exactly one complete set.

        An engine may hold each name in a place of its own: vLLM's output head on a CPU has a copy of the embedding.
        """
        seen: set[str] = set()
        shared = {number for number, count in Counter(self.tensor_of.values()).items() if count > 1}
        tied: dict[int, Tensor] = {}
        for name, tensor in weights:
            if name not in self.shapes:
                raise PublishError(f"Tensor {name} was published, but the rollout engine's model has none.")
            if name in seen:
                raise PublishError(f"Tensor {name} was published twice in one set.")
            if tensor.shape != self.shapes[name]:
                raise PublishError(
                    f"Tensor {name} was published with shape {list(tensor.shape)}; the rollout engine's model has "
                    f"{list(self.shapes[name])}. Both must come from the same model folder."
                )
            seen.add(name)
            if self.tensor_of[name] in shared:
                tied[self.tensor_of[name]] = tensor
            yield name, tensor
        given = {self.tensor_of[name] for name in seen}
        missing = [name for name, number in self.tensor_of.items() if number not in given]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise PublishError(
                f"Tensor {missing[0]}{more} was not published: the rollout engine would keep its old value."
            )
        for name, number in self.tensor_of.items():
            if name not in seen:
                yield name, tied[number]
