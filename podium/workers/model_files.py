"""The Hugging Face folders of a checkpoint: `hf/` with the plain model, adapters merged, and `hf_adapter/` with the
adapter of a causal LM that has one.

They are written from the copies of a save, beside the training: each tensor is gathered on the first rank, merged and
written, and then forgotten. Frozen weights are not among the copies and are read where they are. Engines that only give
whole tensors (`unmerged` is None) gather them at once instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from podium.checkpoint.export import export_adapter, export_hf
from podium.engines.train.state import MODEL
from podium.engines.train.torch import TorchEngine
from podium.engines.train.whole import Gatherer
from podium.models.lora import PEFT_PREFIX, adapter_tensors, merged_tensors


@dataclass(frozen=True)
class ModelFiles:
    """What is to be written of a model, as it is now."""

    module: Any
    tokenizer: Any
    target: Path
    has_adapter: bool
    live: dict[str, Tensor] | None
    """By their names in the module, as this rank holds them; None: see `whole`."""
    whole: dict[str, Tensor]
    """On the first rank, under Hugging Face's and peft's names."""
    adapter_names: list[tuple[str, str]]
    """Of each of the adapter's tensors: peft's name, and the one in `live`."""

    @staticmethod
    def of(engine: TorchEngine, tokenizer: Any, target: Path) -> ModelFiles:
        """All ranks call this."""
        has_adapter = engine.adapted and isinstance(engine.module, PreTrainedModel)
        live, whole = engine.unmerged(), dict[str, Tensor]()
        if live is None:
            adapter = engine.adapter() if has_adapter else ()
            for name, tensor in chain(engine.weights(dtype=torch.float32), adapter):
                if engine.ranks.rank == 0:
                    whole[name] = tensor.cpu()
        names = _adapter_names(engine.module) if has_adapter and live is not None else []
        return ModelFiles(engine.module, tokenizer, target, has_adapter, live, whole, names)

    def take(self, copies: Mapping[str, Tensor]) -> None:
        """Write these, of the engine's state, instead of the live weights; frozen ones have none and stay."""
        if self.live is not None:
            self.live.update({name: copies.get(f"{MODEL}{name}", tensor) for name, tensor in self.live.items()})

    def write(self, full: Gatherer) -> None:
        """All ranks call this."""
        if self.live is None:
            plain = iter([item for item in self.whole.items() if not item[0].startswith(PEFT_PREFIX)])
            adapter = iter([item for item in self.whole.items() if item[0].startswith(PEFT_PREFIX)])
        else:
            live = self.live
            plain = merged_tensors(self.module, live, full, torch.float32)
            adapter = ((theirs, full(live[ours]).clone()) for theirs, ours in self.adapter_names)
        try:
            if full.rank == 0:
                generation = getattr(self.module, "generation_config", None)
                export_hf(plain, self.module.config, self.tokenizer, self.target / "hf", generation)
                if self.has_adapter:
                    export_adapter(dict(adapter), self.module, self.target / "hf_adapter")
        finally:  # also after a full disk: the other ranks still send
            deque(chain(plain, adapter), maxlen=0)


def _adapter_names(module: Any) -> list[tuple[str, str]]:
    """To be asked for at the save and not while it is written: a forward pass puts others into a sharded module."""
    names = [name for name, _ in module.named_parameters()]
    numbers = {name: torch.tensor(number) for number, name in enumerate(names)}
    return [(theirs, names[int(number)]) for theirs, number in adapter_tensors(module, numbers, lambda whole: whole)]
