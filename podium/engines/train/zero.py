"""A model as DeepSpeed's ZeRO keeps it: parts of it on each rank, and DeepSpeed's engine around it.

The placement of deepspeed.py's engine, as placement.py's is of torch.py's. It knows DeepSpeed's settings, reads whole
tensors out of its parts and writes them back. DeepSpeed is imported when a model is placed, never before.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from transformers import PreTrainedModel

from podium.config.schema import DeepSpeedConfig, OptimConfig
from podium.engines.train import state
from podium.engines.train.forward import PackedModel
from podium.engines.train.masters import cast_parameters
from podium.engines.train.optim import find_optimizer, make_optimizer, set_lr
from podium.engines.train.placement import PlacedModel
from podium.engines.train.sharding import Ranks
from podium.errors import ConfigError
from podium.models.lora import has_adapters, merged_tensors
from podium.models.streamed import fill, parameter_names, weight_files
from podium.models.value import ValueModel

BY_SHAPE = ("Adafactor", "Muon")
"""Optimizers that look at a parameter's shape; ZeRO shows them long vectors of many parameters."""


class ZeroModel(PlacedModel):
    """The model as DeepSpeed keeps it."""

    def __init__(
        self,
        module: PreTrainedModel | ValueModel,
        ranks: Ranks,
        settings: DeepSpeedConfig,
        dtype: torch.dtype,
        optim: OptimConfig,
        grad_clip: float | None,
    ) -> None:
        self.module, self.device, self.ranks, self.dtype = module, ranks.device, ranks, dtype
        self.sharded, self.adapted, self.masters = True, has_adapters(module), None
        self.mesh = init_device_mesh("cpu", (ranks.size,), mesh_dim_names=("shard",))
        self.parts_parameters = settings.zero_stage == 3
        self.has_gradients = False
        check_optimizer(optim)
        self.deepspeed = import_deepspeed(self.device)
        if (files := weight_files(module)) is not None:
            fill(module, parameter_names(module), files, torch.device("cpu"))
        exact = {p: p.data for p in module.parameters() if p.requires_grad and dtype != torch.float32}
        cast_parameters(module.parameters(), dtype)
        packed = PackedModel(module)
        optimizer = make_optimizer([p for p in module.parameters() if p.requires_grad], optim)
        try:
            self.engine, self.optimizer, *_ = self.deepspeed.initialize(
                model=packed, optimizer=optimizer, config=zero_settings(settings, dtype, grad_clip)
            )
        except ValueError as error:
            raise ConfigError(
                f"DeepSpeed refuses deepspeed.zero_kwargs={dict(settings.zero_kwargs)}: {error}"
            ) from error
        self.root: nn.Module = _Root(self.engine)  # type: ignore[assignment]
        if self.parts_parameters and isinstance(module, PreTrainedModel):
            for parameter in module.get_output_embeddings().parameters():  # used by PackedModel, not by its own layer
                self.deepspeed.zero.register_external_parameter(packed, parameter)
        for parameter, value in exact.items():
            self.set_master(parameter, value)

    # ---- one step

    def sync_replicas(self, last: bool) -> None:
        """The step comes after the `last` micro-batch."""
        self.engine.set_gradient_accumulation_boundary(last)

    def backward(self, loss: Tensor, factor: float) -> None:
        """A loss that is not finite, or that nothing counts in, becomes gradients that DeepSpeed will not step with."""
        kept = torch.where(loss.detach().isfinite(), factor or torch.nan, torch.nan)
        self.engine.backward(loss * kept, scale_wrt_gas=False)
        self.has_gradients = True

    def step(self, lr: float) -> tuple[float, bool]:
        """The norm of the gradients before they were clipped, and whether the step was skipped for it.

        Without a row on any rank there was no backward pass: nothing moves, as with gradients that are None.
        """
        if not self.has_gradients:
            return 0.0, False
        self.has_gradients = False
        set_lr(self.optimizer, lr)
        self.engine.step()
        return float(self.engine.get_global_grad_norm()), bool(self.optimizer.overflow)

    # ---- whole tensors; all ranks call these, in the same order

    def stream(self, dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
        yield from merged_tensors(self.module, WholeWeights(self, dtype or torch.float32), itself, dtype)
        yield from merged_tensors(self.module, self._kept_buffers(), itself, dtype)

    def unmerged(self) -> None:
        """Only DeepSpeed gathers its parameters."""

    def rounded(self, parameter: Tensor) -> Tensor:
        """The parameter in the compute type; nothing is sent when each rank has all of it."""
        with self.deepspeed.zero.GatheredParameters([parameter], enabled=self.parts_parameters):
            return parameter.detach().clone()

    def master(self, parameter: Tensor) -> Tensor:
        """In float32; a frozen parameter has no master."""
        if not parameter.requires_grad:
            return self.rounded(parameter)
        whole: Tensor = self.deepspeed.utils.safe_get_full_fp32_param(parameter)
        return whole

    def moment(self, parameter: Tensor, key: str) -> Tensor:
        """What the optimizer knows of a parameter."""
        whole: Tensor = self.deepspeed.utils.safe_get_full_optimizer_state(parameter, key)
        return whole

    def rows_of(self, whole: Tensor) -> Tensor:
        """This rank's rows, in host memory, as part of the whole that FSDP would save."""
        if whole.ndim == 0:
            return whole.cpu()
        chunks = whole.chunk(self.ranks.size)
        mine = chunks[self.ranks.rank] if self.ranks.rank < len(chunks) else whole[:0]
        local, shape, stride = mine.to("cpu", copy=True), whole.shape, whole.stride()
        return DTensor.from_local(local, self.mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)

    # ---- writing state

    def set_master(self, parameter: Tensor, value: Tensor) -> None:
        if not parameter.requires_grad:
            self._set_rounded(parameter, value)
        elif self.parts_parameters:
            self.deepspeed.utils.safe_set_local_fp32_param(parameter, self._part(parameter, value))
        else:
            self.deepspeed.utils.safe_set_full_fp32_param(parameter, value.to(self.device))

    def set_moment(self, parameter: Tensor, key: str, value: Tensor) -> None:
        if value.ndim == 0:  # a count of steps, the same for all
            for flat in self._flat_masters():
                self._base.state[flat][key].copy_(value)
        elif self.parts_parameters:
            self.deepspeed.utils.safe_set_local_optimizer_state(parameter, self._part(parameter, value), key)
        else:
            self.deepspeed.utils.safe_set_full_optimizer_state(parameter, value.to(self.device), key)

    def masters_changed(self) -> None:
        """Round the masters into the parameters the model computes with."""
        if not self.parts_parameters:
            self.optimizer.update_lp_params()
            return
        for parameter in self.trained_weights().values():
            self._set_rounded(parameter, self.master(parameter))

    def _set_rounded(self, parameter: Tensor, value: Tensor) -> None:
        with self.deepspeed.zero.GatheredParameters([parameter], modifier_rank=0, enabled=self.parts_parameters):
            parameter.data.copy_(value)

    def _part(self, parameter: Any, value: Tensor) -> Tensor:
        """This rank's part of a parameter under ZeRO-3: equal pieces of the flat tensor, the last filled with zeros."""
        size = parameter.ds_tensor.numel()
        flat = value.to(self.device, torch.float32).flatten()
        mine = flat[self.ranks.rank * size : (self.ranks.rank + 1) * size]
        return torch.nn.functional.pad(mine, (0, size - mine.numel()))

    # ---- the optimizer under DeepSpeed's, which moves flat vectors

    @property
    def _base(self) -> torch.optim.Optimizer:
        return self.optimizer.optimizer  # type: ignore[no-any-return]

    def _flat_masters(self) -> list[Tensor]:
        zero = self.optimizer
        return list(
            zero.fp32_partitioned_groups_flat if self.parts_parameters else zero.single_partition_of_fp32_groups
        )

    def optimizer_state(self) -> dict[str, Tensor]:
        """The tensors kept for a flat vector: as long as it, or a count of steps. Nothing before the first step."""
        kept = self._base.state.get(self._flat_masters()[0], {})
        return {key: value for key, value in kept.items() if isinstance(value, Tensor)}

    def create_optimizer_state(self) -> None:
        """Make the tensors that a load fills; again is harmless."""
        if self.optimizer_state():
            return
        flats, group = self._flat_masters(), self._base.param_groups[0]
        kept, gradients = group["params"], [flat.grad for flat in flats]
        group["params"] = flats
        state.create_optimizer_state(self._base)
        group["params"] = kept
        for flat, gradient in zip(flats, gradients, strict=True):  # DeepSpeed's own, with an optimizer on the host
            flat.grad = gradient
        if not self.parts_parameters:
            self.optimizer._lazy_init_hp_params_optimizer_state()


class WholeWeights(Mapping[str, Tensor]):
    """Every weight by its name, gathered when it is asked for; all ranks ask in the same order."""

    def __init__(self, placed: ZeroModel, dtype: torch.dtype) -> None:
        self.placed, self.named = placed, dict(placed.module.named_parameters())
        self.read = placed.rounded if dtype == placed.dtype else placed.master

    def __getitem__(self, name: str) -> Tensor:
        return self.read(self.named[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.named)

    def __len__(self) -> int:
        return len(self.named)


class _Root(nn.Module):
    """What TorchEngine runs: DeepSpeed's engine, with a `training` that is true to its module's."""

    def __init__(self, engine: nn.Module) -> None:
        super().__init__()
        self.engine = engine
        self.train(engine.module.training)  # type: ignore[union-attr]

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self.engine(*inputs, **options)


def zero_settings(settings: DeepSpeedConfig, dtype: torch.dtype, grad_clip: float | None) -> dict[str, Any]:
    """DeepSpeed's own configuration. Micro-batches and their sum are TorchEngine's: to DeepSpeed each counts as one."""
    zero: dict[str, Any] = {"stage": settings.zero_stage}
    if settings.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    chosen: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": grad_clip or 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": dict(settings.zero_kwargs) | zero,
        "steps_per_print": None,
    }
    if dtype == torch.bfloat16:
        chosen |= {"bf16": {"enabled": True, "check_grad_overflow": True}, "communication_data_type": "fp32"}
        chosen["data_types"] = {"grad_accum_dtype": "fp32"}
    return chosen


def check_optimizer(optim: OptimConfig) -> None:
    """Raise for an optimizer that does not treat each number on its own."""
    kind = find_optimizer(optim.name)
    if kind.__name__ in BY_SHAPE or not kind.__module__.startswith("torch.optim"):
        raise ConfigError(
            f"optim.name={optim.name} does not work with strategy=deepspeed: it needs whole parameters, and ZeRO cuts "
            "vectors of them. Choose AdamW or another elementwise optimizer, or strategy=fsdp."
        )


def import_deepspeed(device: torch.device) -> Any:
    """The package, told to be quiet, which device is ours, and on a CPU not to compile what gloo does already."""
    os.environ["LOCAL_RANK"] = str(device.index or 0)
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    try:
        import deepspeed
    except ImportError as error:
        raise ConfigError(
            f"strategy=deepspeed needs {error.name}, which is not installed: pip install 'podium[deepspeed]'"
        ) from error
    deepspeed.utils.logger.setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", r"`torch\.distributed\.", FutureWarning)  # names that torch 2.13 has renamed
    if device.type == "cpu":
        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    return deepspeed


def itself(tensor: Tensor) -> Tensor:
    return tensor
