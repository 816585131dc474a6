"""AdamW and the learning rate of each step.

The rate is a pure function of the number of steps taken, so there is no scheduler state to save: a resumed run asks for
the same step and gets the same rate. Warm-up reaches the peak at step `lr_warmup_steps`, and the first step already
learns; then the rate stays, or falls to `min_lr_ratio` of the peak at the last step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from podium.algorithms.schedules import schedule_shape
from podium.config.schema import OptimConfig
from podium.errors import ConfigError


def make_optimizer(parameters: Iterable[Tensor], config: OptimConfig) -> torch.optim.Optimizer:
    if len(config.betas) != 2:
        raise ConfigError(f"optim.betas is {config.betas}; AdamW takes two numbers, for example [0.9, 0.999].")
    first, second = config.betas
    return torch.optim.AdamW(
        parameters, lr=config.lr, betas=(first, second), weight_decay=config.weight_decay, fused=True
    )


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
