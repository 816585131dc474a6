"""A worker's part of a checkpoint: written at once, or copied at once and written beside the training.

In the background only the copy holds the step: the tensors go into host buffers that are kept from save to save, and a
thread writes them while the next step runs. Ranks that share a model write together, over a process group of their own
so that they never mix with the training's collectives. Publishing the result is the controller's matter.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from podium.checkpoint import rng
from podium.engines.train import state
from podium.engines.train.torch import TorchEngine


class CheckpointWriter:
    """One per worker; one save at a time."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._copied: dict[tuple[int, int, torch.dtype], tuple[Tensor, Tensor]] = {}  # the live tensor and its copy
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._group: dist.ProcessGroup | None = None

    def copy_state(self, tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """The tensors as they are now, in host memory."""
        copies = {}
        for name, tensor in tensors.items():
            copies[name] = self._fill_buffer(f"{prefix}/{name}", tensor.detach())
            if not isinstance(tensor, DTensor):
                self._copied[_place(tensor)] = (tensor, copies[name])
        return copies

    def copy_full(self, name: str, tensor: Tensor) -> Tensor:
        """A model's tensor in full; one that `copy_state` has copied for this save is not copied again."""
        if tensor.numel() and _place(tensor) in self._copied:
            return self._copied[_place(tensor)][1].view(tensor.shape)
        return self._fill_buffer(f"hf/{name}", tensor.detach())

    def _fill_buffer(self, name: str, tensor: Tensor) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = self._buffers[name] = tensor.to("cpu", copy=True)
        else:
            _local(buffer).copy_(_local(tensor))
        return buffer

    def engine_state(self, engine: TorchEngine, folder: Path, background: bool) -> Callable[[], None]:
        """A function that writes the engine's state as it is now."""
        tensors = engine.state_tensors()
        if not background:
            return lambda: state.save_state(folder, tensors, engine.sharded)
        copies = self.copy_state(tensors, folder.name)
        group = self._own_group() if engine.sharded else None
        return lambda: state.save_state(folder, copies, engine.sharded, group)

    def run(self, write: Callable[[], None], background: bool) -> None:
        """Write now, or in a thread whose outcome `written` tells."""
        self._copied.clear()
        self._error = None
        if not background:
            write()
            return

        def work() -> None:
            try:
                write()
            except BaseException as error:  # noqa: BLE001 (fault boundary: `written` raises it in the caller's thread)
                self._error = error

        self._thread = threading.Thread(target=work, name="checkpoint-writer", daemon=True)
        self._thread.start()

    def written(self) -> bool:
        """Whether the save is done; raises what it raised."""
        if self._thread is not None and self._thread.is_alive():
            return False
        self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return True

    def _own_group(self) -> dist.ProcessGroup:
        if self._group is None:
            self._group = dist.new_group(backend="gloo")
        assert self._group is not None
        return self._group


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _place(tensor: Tensor) -> tuple[int, int, torch.dtype]:
    """Where a tensor's memory is; unique among tensors that are alive."""
    return tensor.data_ptr(), tensor.numel(), tensor.dtype


def save_rng(folder: Path, rank: int) -> None:
    """The random states of this rank's process."""
    path = folder / "rng" / f"rank_{rank}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rng.capture()), encoding="utf-8")


def load_rng(folder: Path, rank: int) -> None:
    """Nothing to do for a rank that the saved run did not have."""
    path = folder / "rng" / f"rank_{rank}.json"
    if path.is_file():
        rng.restore(json.loads(path.read_text(encoding="utf-8")))
