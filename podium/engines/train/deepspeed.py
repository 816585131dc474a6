"""DeepSpeedEngine: TorchEngine with DeepSpeed's ZeRO in the place of FSDP2, for `strategy: deepspeed`.

ZeRO-2 shares gradients, float32 masters and the optimizer's state among the ranks; ZeRO-3 the parameters too. Scoring,
packing, micro-batches, losses and the learning rate are TorchEngine's; DeepSpeed gathers parameters, reduces gradients,
clips and steps. Weights and checkpoints have the names and forms of FSDP's, so either engine loads what the other
saved, on any number of ranks. A lone device has nothing to share and models that only score have no state: both are
TorchEngine's (workers/engines.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from podium.config.schema import DeepSpeedConfig, OptimConfig
from podium.engines.train import state
from podium.engines.train.sharding import full_tensor
from podium.engines.train.torch import TorchEngine
from podium.engines.train.zero import WholeWeights, ZeroModel, itself
from podium.errors import ConfigError
from podium.metric import Metric, Metrics
from podium.models.lora import adapter_tensors
from podium.models.value import ValueModel

logger = logging.getLogger(__name__)


class DeepSpeedEngine(TorchEngine):
    """See `TrainEngine`."""

    placed: ZeroModel

    def __init__(
        self, module: PreTrainedModel | ValueModel, *, deepspeed: DeepSpeedConfig | None = None, **settings: Any
    ) -> None:
        """`settings`: TorchEngine's, with an `optim`; several ranks in a process group."""
        self.zero = deepspeed or DeepSpeedConfig()
        super().__init__(module, **settings)

    def _place(self) -> ZeroModel:
        assert self.optim is not None and self.ranks.size > 1, "TorchEngine is for scoring and for a lone device"
        if self.fsdp.ulysses_sequence_parallel_size > 1:
            raise ConfigError("fsdp.ulysses_sequence_parallel_size needs strategy=fsdp; with deepspeed it must be 1.")
        return ZeroModel(self.module, self.ranks, self.zero, self.dtype, self.optim, self.grad_clip)

    def _make_optimizer(self, optim: OptimConfig) -> torch.optim.Optimizer:
        return self.placed.optimizer  # type: ignore[no-any-return]

    def _step(self, lr: float, bad_loss: str | None, nothing: bool) -> Metrics:
        """Clip and step; DeepSpeed skips on all ranks when the gradients' norm is not finite (see `backward`)."""
        norm, skip = self.placed.step(lr)
        if nothing:
            logger.warning("Step %d has no token to learn from on any rank; the weights stay.", self.step_count + 1)
            norm, skip = 0.0, False
        elif skip:
            self._skip(bad_loss, bad_gradient=None)  # DeepSpeed keeps the gradients to itself
        else:
            self.step_count += 1
        # one rank speaks for all, so that the sum over ranks counts a skipped step once
        skipped = float(skip and self.ranks.rank == 0)
        return {"grad_norm": Metric.last(norm), "lr": Metric.last(lr), "skipped_updates": Metric.sum(skipped)}

    def adapter(self) -> Iterator[tuple[str, Tensor]]:
        yield from adapter_tensors(self.module, WholeWeights(self.placed, torch.float32), itself)

    def state_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds, as copies in host memory: of each tensor this rank's rows."""
        placed = self.placed
        tensors: dict[str, Tensor] = {state.STEP_COUNT: torch.tensor(self.step_count)}
        for name, parameter in placed.saved_weights().items():
            tensors[f"{state.MODEL}{name}"] = placed.rows_of(placed.master(parameter))
            for key, value in placed.optimizer_state().items() if parameter.requires_grad else ():
                whole = placed.moment(parameter, key) if value.ndim else value.clone()
                tensors[f"{state.OPTIMIZER}{name}.{key}"] = placed.rows_of(whole)
        return tensors

    def load(self, folder: Path) -> None:
        """What this engine or FSDP's saved, on any number of ranks."""
        placed, saved = self.placed, state.saved_names(folder)
        if placed.optimizer_state() or any(name.startswith(state.OPTIMIZER) for name in saved):
            placed.create_optimizer_state()
        tensors = self.state_tensors()
        state.require_model_tensors(folder, set(tensors), saved)
        state.load_state(folder, {name: tensor for name, tensor in tensors.items() if name in saved}, distributed=True)
        for name in tensors.keys() - saved:  # of an optimizer that had not stepped yet
            tensors[name].zero_()
        for name, parameter in placed.saved_weights().items():
            placed.set_master(parameter, full_tensor(tensors[f"{state.MODEL}{name}"]))
            for key in placed.optimizer_state() if parameter.requires_grad else ():
                placed.set_moment(parameter, key, full_tensor(tensors[f"{state.OPTIMIZER}{name}.{key}"]))
        placed.masters_changed()
        self.step_count = int(tensors[state.STEP_COUNT].item())
