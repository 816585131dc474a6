"""A worker's part of a checkpoint: written at once, or copied and written beside the training.

In the background a thread first copies the tensors into host buffers, which are kept from save to save, and then writes
them; on a GPU through pinned memory and a stream of its own, so that generation does not queue behind it. Generation
and scoring leave weights alone and go on meanwhile; an update waits in `settle` until the copy is made. Ranks that
share a model write together, over a process group of their own so that they never mix with the training's collectives.
Publishing the result is the controller's matter.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from podium.checkpoint import rng
from podium.checkpoint.export import export_adapter, export_hf
from podium.engines.train import state
from podium.engines.train.torch import TorchEngine
from podium.models.lora import PEFT_PREFIX

PIN_BYTES = 1 << 20
"""Buffers from this size on are pinned; smaller ones may share a page with others."""


class CheckpointWriter:
    """One per worker; one save at a time."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._copied: dict[tuple[int, int, torch.dtype], tuple[Tensor, Tensor]] = {}  # the live tensor and its copy
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._group: dist.ProcessGroup | None = None
        self._stream: torch.cuda.Stream | None = None
        self._settled = threading.Event()
        self._settled.set()

    def _copy_state(self, tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """The tensors as they are now, in host memory."""
        copies = {}
        for name, tensor in tensors.items():
            copies[name] = self._fill_buffer(f"{prefix}/{name}", tensor.detach())
            if not isinstance(tensor, DTensor):
                self._copied[_place(tensor)] = (tensor, copies[name])
        return copies

    def _copy_full(self, name: str, tensor: Tensor) -> Tensor:
        """A model's tensor in full; one that `_copy_state` has copied for this save is not copied again."""
        if tensor.numel() and _place(tensor) in self._copied:
            return self._copied[_place(tensor)][1].view(tensor.shape)
        return self._fill_buffer(f"hf/{name}", tensor.detach())

    def _fill_buffer(self, name: str, tensor: Tensor) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            if isinstance(tensor, DTensor):
                buffer = tensor.to("cpu", copy=True)
            else:
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype)
                if tensor.is_cuda:
                    _pin(buffer)
            self._buffers[name] = buffer
        _local(buffer).copy_(_local(tensor), non_blocking=True)
        return buffer

    def save(
        self,
        engine: TorchEngine,
        folder: Path,
        background: bool,
        full: Mapping[str, Tensor] | None = None,
        export: Callable[[Mapping[str, Tensor]], None] | None = None,
    ) -> None:
        """Write the engine's state to `folder`, and let `export` write the model's `full` tensors."""
        self.settle()
        full, tensors = full or {}, engine.state_tensors()
        if not background:
            self._write(engine, folder, tensors, full, export, None)
            return
        group = self._own_group() if engine.sharded else None
        self._settled.clear()
        changed = torch.cuda.Event() if engine.device.type == "cuda" else None
        if changed is not None:
            changed.record()  # after whatever still changes the tensors

        def work() -> None:
            try:
                with self._aside(changed, engine.device):
                    copies = self._copy_state(tensors, folder.name)
                    fresh = engine.sharded or engine.adapted
                    copied = {name: t if fresh else self._copy_full(name, t) for name, t in full.items()}
                self._copied.clear()
                self._settled.set()
                self._write(engine, folder, copies, copied, export, group)
            except BaseException as error:  # noqa: BLE001 (fault boundary: `written` raises it in the caller's thread)
                self._error = error
            finally:
                self._settled.set()

        self._error = None
        self._thread = threading.Thread(target=work, name="checkpoint-writer", daemon=True)
        self._thread.start()

    def _write(
        self,
        engine: TorchEngine,
        folder: Path,
        tensors: dict[str, Tensor],
        full: Mapping[str, Tensor],
        export: Callable[[Mapping[str, Tensor]], None] | None,
        group: dist.ProcessGroup | None,
    ) -> None:
        if export is not None:
            export(full)
        state.save_state(folder, tensors, engine.sharded, group)

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


def _pin(buffer: Tensor) -> None:
    """Lock a large buffer's pages, so that copies into it run beside the device's work; exactly its size, where torch's
    own pinned memory may take twice as much."""
    size = buffer.numel() * buffer.element_size()
    if size >= PIN_BYTES:
        cudart: Any = torch.cuda.cudart()
        torch.cuda.check_error(int(cudart.cudaHostRegister(buffer.data_ptr(), size, 0)))
        weakref.finalize(buffer, cudart.cudaHostUnregister, buffer.data_ptr())


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _place(tensor: Tensor) -> tuple[int, int, torch.dtype]:
    """Where a tensor's memory is; unique among tensors that are alive."""
    return tensor.data_ptr(), tensor.numel(), tensor.dtype


def model_files(
    engine: TorchEngine, tokenizer: Any, target: Path, rank: int
) -> tuple[dict[str, Tensor], Callable[[Mapping[str, Tensor]], None] | None]:
    """The model's tensors in full on rank 0 (gathering them is collective), and what writes them.

    `hf/` holds the plain model, adapters merged; `hf_adapter/` the adapter of a causal LM that has one.
    """
    streams = [engine.weights(dtype=torch.float32)]
    if engine.adapted and isinstance(engine.module, PreTrainedModel):
        streams.append(engine.adapter())
    fresh = engine.sharded or engine.adapted  # not the live tensors
    full = {}
    for name, tensor in chain.from_iterable(streams):
        if rank == 0:
            full[name] = tensor.cpu() if fresh else tensor

    def export(tensors: Mapping[str, Tensor]) -> None:
        adapter = {name: tensor for name, tensor in tensors.items() if name.startswith(PEFT_PREFIX)}
        plain = {name: tensor for name, tensor in tensors.items() if name not in adapter}
        export_hf(plain.items(), engine.module.config, tokenizer, target / "hf")
        if adapter:
            export_adapter(adapter, engine.module, target / "hf_adapter")

    return full, export if rank == 0 else None


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
