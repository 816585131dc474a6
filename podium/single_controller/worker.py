"""Worker: the base class of everything a group runs.

A worker knows its place (rank, world size, role, device), can join its peers in torch.distributed, and may say which
share of a split batch it stands for. It knows nothing of Ray, and imports torch only when asked for a device or a
process group.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class WorkerInfo:
    """A worker's place in its group. The defaults are those of a worker that is alone."""

    role: str = "worker"
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    """Rank among the group's workers on this node."""
    local_world_size: int = 1
    """The group's workers on this node."""
    node: str = "127.0.0.1"
    """This node's address."""
    master_addr: str = "127.0.0.1"
    """Where rank 0 waits for its peers."""
    master_port: int = 0
    use_gpu: bool | None = None
    """None: when there is one."""


@dataclass(frozen=True)
class DataParallel:
    """Which share of a split batch a worker computes."""

    rank: int
    size: int
    leader: bool = True
    """Of the workers with the same share (tensor-parallel peers), the leader's result counts."""


_place: ContextVar[WorkerInfo] = ContextVar("place")
_ALONE = WorkerInfo()


@contextmanager
def placed_at(info: WorkerInfo) -> Iterator[None]:
    """Workers made inside this context take that place."""
    token = _place.set(info)
    try:
        yield
    finally:
        _place.reset(token)


class Worker:
    """Subclass it and mark methods with `@register`. `__init__` is free; the place is known before it runs."""

    info: WorkerInfo
    _data_parallel: DataParallel | None
    _data_parallel_is_used: bool

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        worker = super().__new__(cls)
        worker.info = _place.get(_ALONE)
        worker._data_parallel = None
        worker._data_parallel_is_used = False
        return worker

    @property
    def role(self) -> str:
        return self.info.role

    @property
    def rank(self) -> int:
        return self.info.rank

    @property
    def world_size(self) -> int:
        return self.info.world_size

    @property
    def device(self) -> torch.device:
        """The device this worker computes on. On Ray each worker sees its own GPU only, as cuda:0."""
        import torch

        use_gpu = torch.cuda.is_available() if self.info.use_gpu is None else self.info.use_gpu
        return torch.device("cuda", torch.cuda.current_device()) if use_gpu else torch.device("cpu")

    # ---- peers

    def setup_distributed(self, timeout_s: float = 600.0) -> None:
        """Join the group's torch.distributed process group (gloo; nccl besides on a GPU).

        Every rank calls it; again is harmless. A worker that is alone makes no process group. `timeout_s` limits the
        meeting and every later collective.
        """
        if self.world_size > 1:
            from podium.single_controller.rendezvous import join_process_group

            join_process_group(self.info, self.device, timeout_s)

    # ---- shares

    @property
    def data_parallel(self) -> DataParallel:
        return self._data_parallel or DataParallel(self.rank, self.world_size)

    def set_data_parallel(self, rank: int, size: int, leader: bool = True) -> None:
        """Say which share of a split batch this worker computes; by default each rank has a share of its own.

        For engines that spread one model copy over several ranks. To be called before the first data-parallel call.
        """
        layout = DataParallel(rank, size, leader)
        if self._data_parallel_is_used and layout != self.data_parallel:
            raise ValueError("set_data_parallel() came after a data-parallel call; call it where the model is built")
        if not 0 <= rank < size:
            raise ValueError(f"data-parallel rank must be in [0, {size}), got {rank}")
        self._data_parallel = layout

    def use_data_parallel(self) -> DataParallel:
        """The share, from now on fixed. The group asks once, before its first data-parallel call."""
        self._data_parallel_is_used = True
        return self.data_parallel

    # ---- files

    def sees(self, path: str, limit_s: float = 5.0) -> bool:
        """Whether a file that the controller just wrote is here too; a network file system may need a moment."""
        deadline = time.monotonic() + limit_s
        while not os.path.exists(path):
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.1)
        return True

    # ---- end

    def close(self) -> None:
        """Called at shutdown, with little time: end what would outlive this process."""
