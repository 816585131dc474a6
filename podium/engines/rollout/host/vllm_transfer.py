"""In vLLM's worker processes: weights out of shared memory, through vLLM's own weight-transfer API.

The trainer's worker writes a set of tensors once into shared memory of its own; every vLLM worker maps it and takes
what its part of the model needs. Nothing has to meet anybody, so a restarted engine gets its weights the same way.
Importing this module registers the engine; vLLM imports it in each worker because `Receiver` is its worker extension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from podium.engines.rollout.buckets import Bucket
from podium.engines.rollout.host.records import Received
from podium.engines.rollout.remote import digest
from podium.engines.rollout.weights import sample_values

BACKEND = "podium_shared_memory"


@dataclass
class Nothing(WeightTransferInitInfo):  # type: ignore[misc]
    """There is nobody to meet."""


@dataclass
class FileInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    path: str
    num_bytes: int
    entries: list[Any]
    version: int


class SharedMemoryEngine(WeightTransferEngine[Nothing, FileInfo]):  # type: ignore[misc]
    """Checkpoint-format tensors from mapped files, by layers as vLLM reloads them."""

    init_info_cls = Nothing
    update_info_cls = FileInfo

    def init_transfer_engine(self, init_info: Nothing) -> None: ...

    def start_weight_update(self) -> None:
        self.received: Received = {}
        self.loaded: set[str] | None = set()
        self.wanted = {name for name, _ in self.model.named_parameters()}
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """The base class synchronizes an accelerator that a CPU does not have."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: FileInfo) -> None:
        data = torch.from_file(update_info.path, shared=False, size=update_info.num_bytes, dtype=torch.uint8)
        tensors = list(Bucket([tuple(entry) for entry in update_info.entries], data).tensors())
        for name, tensor in tensors:
            self.received[name] = digest(sample_values(tensor, update_info.version))
        loaded = self.model.load_weights(iter(tensors))
        self.loaded = None if loaded is None or self.loaded is None else self.loaded | set(loaded)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        left = set() if self.loaded is None or self.model_config.quantization else self.wanted - self.loaded
        if left:
            raise ValueError(f"vLLM kept the old value of {min(left)} and {len(left) - 1} more tensors")

    def shutdown(self) -> None: ...


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, SharedMemoryEngine)


class Receiver:
    """Mixed into vLLM's worker class."""

    weight_transfer_engine: SharedMemoryEngine

    def podium_received(self) -> Received:
        """Of each tensor of the last update: a digest."""
        return self.weight_transfer_engine.received
