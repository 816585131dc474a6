"""A worker's part of a checkpoint: written at once, or copied and written beside the training.

In the background a thread first copies the tensors into host buffers, which are kept from save to save, and then writes
them; on a GPU with a stream of its own, and through pinned memory unless they are shards, so that generation does not
queue behind it. Generation and scoring leave weights alone and go on meanwhile; an update waits in `settle` until the
copy is made. Ranks that share a model write together, over a process group of their own so that they never mix with the
training's collectives. The Hugging Face folders are gathered, merged and written from the copies (model_files.py).
Publishing the result is the controller's matter.
"""

from __future__ import annotations

import json
import logging
import mmap
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from podium.checkpoint import rng
from podium.engines.train import state
from podium.engines.train.torch import TorchEngine
from podium.engines.train.whole import Gatherer
from podium.errors import CheckpointError
from podium.workers.model_files import ModelFiles

log = logging.getLogger(__name__)

PIN_BYTES = 1 << 20
"""Buffers from this size on are pinned; smaller ones would not be copied sooner."""


class CheckpointWriter:
    """One per worker; one save at a time."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._group: dist.ProcessGroup | None = None
        self._stream: torch.cuda.Stream | None = None
        self._settled = threading.Event()
        self._settled.set()

    def _copy_state(self, tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """The tensors as they are now, in host memory."""
        return {name: self._fill_buffer(f"{prefix}/{name}", tensor.detach()) for name, tensor in tensors.items()}

    def _fill_buffer(self, name: str, tensor: Tensor) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            if isinstance(tensor, DTensor):
                buffer = tensor.to("cpu", copy=True)
            else:
                pinned = tensor.is_cuda and tensor.numel() * tensor.element_size() >= PIN_BYTES
                buffer = _pinned_like(tensor) if pinned else torch.empty(tensor.shape, dtype=tensor.dtype)
            self._buffers[name] = buffer
        _local(buffer).copy_(_local(tensor), non_blocking=True)
        return buffer

    def save(self, engine: TorchEngine, folder: Path, background: bool, model: ModelFiles | None = None) -> None:
        """Write the engine's state to `folder`, and the `model` in Hugging Face's form."""
        self.settle()
        tensors = engine.state_tensors()
        group = self._own_group() if engine.sharded else None
        if not background:
            if model is not None:
                model.take(tensors)
            self._write(folder, tensors, model, group)
            return
        self._settled.clear()
        changed = torch.cuda.Event() if engine.device.type == "cuda" else None
        if changed is not None:
            changed.record()  # after whatever still changes the tensors

        def work() -> None:
            try:
                with self._aside(changed, engine.device):
                    copies = self._copy_state(tensors, folder.name)
                tensors.clear()  # what the engine offloads or drops from here on is not held until all is written
                if model is not None:
                    model.take(copies)
                self._settled.set()
                with self._aside(changed, engine.device):
                    self._write(folder, copies, model, group)
            except BaseException as error:  # noqa: BLE001 (fault boundary: `written` raises it in the caller's thread)
                self._error = error
            finally:
                self._settled.set()

        self._error = None
        self._thread = threading.Thread(target=work, name="checkpoint-writer", daemon=True)
        self._thread.start()

    def _write(
        self, folder: Path, tensors: dict[str, Tensor], model: ModelFiles | None, group: dist.ProcessGroup | None
    ) -> None:
        if model is not None:
            with _all_or_none(group):
                model.write(Gatherer(group))
        state.save_state(folder, tensors, group is not None, group)

    @contextmanager
    def _aside(self, after: torch.cuda.Event | None, device: torch.device) -> Iterator[None]:
        """On a GPU: in a stream of its own, from `after` on, and done at the end."""
        if after is None:
            yield
            return
        self._stream = self._stream or torch.cuda.Stream(device)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(after)
            yield
            self._stream.synchronize()

    def settle(self) -> None:
        """Until the tensors of a save in the background are copied; call it before they change."""
        self._settled.wait()

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


@contextmanager
def _all_or_none(group: dist.ProcessGroup | None) -> Iterator[None]:
    """When the body fails on one rank, all of them leave: what follows is collective."""
    failure: Exception | None = None
    try:
        yield
    except Exception as error:  # noqa: BLE001 (raised below, when the others know)
        failure = error
    failed = torch.tensor(float(failure is not None))
    if group is not None:
        dist.all_reduce(failed, group=group)
    if failure is not None:
        raise failure
    if failed > 0:
        raise CheckpointError("another rank could not write the model's files")


def _pinned_like(tensor: Tensor) -> Tensor:
    """A host buffer with locked pages, so that copies into it run beside the device's work; exactly its size, where
    torch's own pinned memory may take twice as much."""
    size = tensor.numel() * tensor.element_size()
    # pages of its own: what malloc gives may share one with another buffer, and a page is locked only once
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    buffer = torch.frombuffer(pages, dtype=tensor.dtype).view(tensor.shape)
    cudart: Any = torch.cuda.cudart()
    if code := int(cudart.cudaHostRegister(buffer.data_ptr(), size, 0)):
        _say_not_pinned(code)  # the copy is slower; a checkpoint that is not saved would be worse
    else:
        weakref.finalize(buffer, cudart.cudaHostUnregister, buffer.data_ptr())
    return buffer


@cache
def _say_not_pinned(code: int) -> None:
    log.warning("host memory for checkpoints cannot be locked (CUDA error %d): saves take longer to copy", code)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


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
