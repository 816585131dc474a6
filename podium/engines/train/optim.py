"""Optimizers by name, and the learning rate of each step.

The rate is a pure function of the number of steps taken, so there is no scheduler state to save: a resumed run asks for
the same step and gets the same rate. Warm-up reaches the peak at step `lr_warmup_steps`, and the first step already
learns; then the rate stays, or falls to `min_lr_ratio` of the peak at the last step.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from podium.algorithms.schedules import schedule_shape
from podium.config.schema import OptimConfig
from podium.errors import ConfigError
from podium.plugins import closest

FUSED = ("Adam", "AdamW")
"""Whose fused form works on shards too."""


def make_optimizer(parameters: Iterable[Tensor], config: OptimConfig) -> torch.optim.Optimizer:
    """The optimizer that `config.name` says, fused where it can be."""
    if len(config.betas) != 2:
        raise ConfigError(f"optim.betas is {config.betas}; it takes two numbers, for example [0.9, 0.999].")
    kind = find_optimizer(config.name)
    taken = inspect.signature(kind).parameters
    settings: dict[str, Any] = {"betas": tuple(config.betas), "weight_decay": config.weight_decay}
    usual = OptimConfig()
    for key in settings.keys() - taken.keys():
        if getattr(config, key) != getattr(usual, key):
            raise ConfigError(f"optim.{key} is {getattr(config, key)}, but {kind.__name__} has no such argument.")
    if kind.__name__ in FUSED:
        settings["fused"] = True
    chosen = {key: value for key, value in settings.items() if key in taken} | {"lr": config.lr} | dict(config.kwargs)
    try:
        optimizer: torch.optim.Optimizer = kind(list(parameters), **chosen)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"optim.name = {config.name} with {chosen}: {error}") from error
    return optimizer


def find_optimizer(name: str) -> type[torch.optim.Optimizer]:
    """By its class's name, in any spelling of capitals."""
    known = _optimizers(torch.optim)
    if importlib.util.find_spec("torchao") is not None:
        known = _optimizers(importlib.import_module("torchao.optim")) | known
    spelt = {key.lower(): kind for key, kind in known.items()}
    if name.lower() in spelt:
        return spelt[name.lower()]
    near = closest(name, known)
    hint = f"did you mean {near}?" if near else f"Known: {', '.join(sorted(known))}."
    raise ConfigError(f"optim.name is {name!r}, no optimizer of torch.optim or of an installed torchao. {hint}")


def _optimizers(module: ModuleType) -> dict[str, type[torch.optim.Optimizer]]:
    """Those that take a gradient of every parameter in one step: no closures, no sparse gradients."""
    found = {
        name: kind
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    return {name: kind for name, kind in found.items() if name not in ("Optimizer", "LBFGS", "SparseAdam")}


def check_schedule(config: OptimConfig, total_steps: int | None) -> None:
    """Raise when the schedule needs to know how long the run is, and nobody said."""
    if config.lr_decay != "constant" and total_steps is None:
        raise ConfigError(
            f"optim.lr_decay is {config.lr_decay!r}, which needs the total number of optimizer steps, but it is "
            "unknown. Set trainer.total_training_steps, or optim.lr_decay=constant."
        )


def lr_factor(config: OptimConfig, step: int, total_steps: int | None) -> float:
    """The share of the peak rate for the step after `step` earlier ones."""
    warmup = config.lr_warmup_steps
    if step < warmup:
        return schedule_shape(config.warmup_schedule, (step + 1) / warmup)
    if config.lr_decay == "constant":
        return 1.0
    assert total_steps is not None, "check_schedule refuses this"
    progress = min(1.0, (step - warmup) / max(1, total_steps - 1 - warmup))
    left = 1.0 - progress if config.lr_decay == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.min_lr_ratio + (1.0 - config.min_lr_ratio) * left


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
