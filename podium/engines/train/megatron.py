"""MegatronEngine: TorchEngine with Megatron-core's tensor parallelism in the place of FSDP2, for `strategy: megatron`.

`tensor_model_parallel_size` neighbouring ranks hold one model, each a part of every layer, of the embedding and of the
head; groups of them are replicas with rows of their own. Packing, micro-batches, losses, optimizers and the learning
rate are TorchEngine's; so are the rows: a group takes those of all its ranks together, and nobody above the engine
needs to know (as with Ulysses). Weights and checkpoints have the names and forms of FSDP's, so either engine loads what
the other saved, on any number of ranks. Models that only score are split the same way. A lone device is TorchEngine's
(workers/engines.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel

from podium.config.schema import MegatronConfig, OptimConfig
from podium.engines.train import state
from podium.engines.train.megatron_place import TensorParallelModel, make_tensor_mesh
from podium.engines.train.megatron_steps import share_steps
from podium.engines.train.optim import find_optimizer
from podium.engines.train.packing import Pack
from podium.engines.train.sequence_parallel import SequenceParallel
from podium.engines.train.sharding import local_part
from podium.engines.train.torch import TorchEngine
from podium.engines.train.zero import BY_SHAPE
from podium.errors import ConfigError
from podium.models.value import ValueModel


class MegatronEngine(TorchEngine):
    """See `TrainEngine`."""

    placed: TensorParallelModel

    def __init__(
        self, module: PreTrainedModel | ValueModel, *, megatron: MegatronConfig | None = None, **settings: Any
    ) -> None:
        """`settings`: TorchEngine's; several ranks in a process group."""
        self.megatron = megatron or MegatronConfig()
        super().__init__(module, **settings)

    def _share_rows(self) -> SequenceParallel:
        self.mesh = make_tensor_mesh(self.ranks, self.megatron.tensor_model_parallel_size)
        return SharedRows(self.mesh)

    def _place(self) -> TensorParallelModel:
        if self.fsdp.ulysses_sequence_parallel_size > 1:
            raise ConfigError("fsdp.ulysses_sequence_parallel_size needs strategy=fsdp; with megatron it must be 1.")
        if self.optim is not None:
            check_optimizer(self.optim)
        trainable, sequence_parallel = self.optim is not None, self.megatron.sequence_parallel
        return TensorParallelModel(self.module, self.ranks, self.mesh, self.dtype, trainable, sequence_parallel)

    def _make_optimizer(self, optim: OptimConfig) -> torch.optim.Optimizer:
        optimizer = super()._make_optimizer(optim)
        if self.megatron.use_distributed_optimizer and self.mesh["replicate"].size() > 1:
            share_steps(optimizer, self.placed.trained_weights(), self.mesh.get_group("replicate"))
        return optimizer

    # ---- state

    def state_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds: of each tensor this rank's part; live, or a copy where Megatron keeps it fused."""
        self._ready(train=False)
        placed, tensors = self.placed, {state.STEP_COUNT: torch.tensor(self.step_count)}
        for name, weight, kept in self._named_state():
            piece = placed.pieces[name]
            tensors[f"{state.MODEL}{name}"] = placed.shown(name, piece.read(weight))
            for key, value in kept.items():
                shown = placed.shown(name, piece.read(value)) if value.ndim else value
                tensors[f"{state.OPTIMIZER}{name}.{key}"] = shown
        return tensors

    def _named_state(self) -> list[tuple[str, Tensor, dict[str, Tensor]]]:
        """Of each Hugging Face tensor: the weight that holds it, and what the optimizer keeps of that weight."""
        weights = self.placed.named_weights()
        found = []
        for name, piece in self.placed.pieces.items():
            weight = weights[self.placed.path(piece)]
            kept = {} if self.optimizer is None else self.optimizer.state.get(weight, {})
            found.append((name, weight.detach(), {k: v for k, v in kept.items() if isinstance(v, Tensor)}))
        return found

    def load(self, folder: Path) -> None:
        """What this engine or FSDP's saved, on any number of ranks. Without an optimizer it takes the model alone."""
        self._ready(train=False)
        saved = state.saved_names(folder)
        if self.optimizer is not None:
            self.optimizer.state.clear()
            if any(name.startswith(state.OPTIMIZER) for name in saved):
                state.create_optimizer_state(self.optimizer)
        tensors = self.state_tensors()
        state.require_model_tensors(folder, set(tensors), saved)
        state.load_state(folder, {name: tensor for name, tensor in tensors.items() if name in saved}, distributed=True)
        for name, weight, kept in self._named_state():
            piece = self.placed.pieces[name]
            piece.write(weight, local_part(tensors[f"{state.MODEL}{name}"]))
            for key, value in kept.items():
                if value.ndim:
                    piece.write(value, local_part(tensors[f"{state.OPTIMIZER}{name}.{key}"]))
        self.step_count = int(tensors[state.STEP_COUNT].item())
        self.placed.weights_changed()


class SharedRows(SequenceParallel):
    """Ranks that run the same rows through their parts of the model, and all know the results."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.size, self.rank = mesh["shard"].size(), mesh.get_local_rank("shard")
        self.group = mesh.get_group("shard") if self.size > 1 else None

    @property
    def budgets(self) -> int:
        """One: every rank takes all tokens of a micro-batch."""
        return 1

    def split(self, pack: Pack) -> Pack:
        return pack

    def add_up(self, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return outputs


def check_optimizer(optim: OptimConfig) -> None:
    """Raise for an optimizer that does not treat each number on its own."""
    kind = find_optimizer(optim.name)
    if kind.__name__ in BY_SHAPE or not kind.__module__.startswith("torch.optim"):
        raise ConfigError(
            f"optim.name={optim.name} does not work with strategy=megatron: it needs whole parameters, and a rank has "
            "parts of them. Choose AdamW or another elementwise optimizer, or strategy=fsdp."
        )
