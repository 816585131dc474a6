"""Five ways for a weight to grow from 0 to its maximum during the first part of training.

With warmup_steps = max(1, int(total·clamp(warmup_ratio, 1e-6, 1))) and p = clamp(step/warmup_steps, 0, 1):

    linear   p                     exp      (e^{5p} − 1)/(e⁵ − 1)
    cosine   ½(1 − cos πp)         step     ⌊p·steps⌋/steps
    sigmoid  (σ(k(p−½)) − σ(−k/2)) / (σ(k/2) − σ(−k/2)), k = 10

times max_weight. `schedule_shape` is the bare curve, for learning rates and KL coefficients. Decay is not done here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from podium.errors import ConfigError
from podium.plugins import nearest

_SIGMOID_STEEPNESS = 10.0
_EXP_RATE = 5.0


def _progress(current_step: float, total_steps: int, warmup_ratio: float) -> float:
    warmup_steps = max(1, int(total_steps * min(1.0, max(1e-6, warmup_ratio))))
    return min(1.0, max(0.0, current_step) / warmup_steps)


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def _sigmoid_shape(progress: float, steps: int) -> float:
    low, high = _sigmoid(-_SIGMOID_STEEPNESS / 2), _sigmoid(_SIGMOID_STEEPNESS / 2)
    return (_sigmoid(_SIGMOID_STEEPNESS * (progress - 0.5)) - low) / (high - low)


def _step_shape(progress: float, steps: int) -> float:
    if steps < 1:
        raise ConfigError(f"schedule step needs at least one step; got steps={steps}")
    return math.floor(progress * steps + 1e-9) / steps  # the margin: 0.29 · 100 is a hair below 29


SCHEDULES: dict[str, Callable[[float, int], float]] = {
    "linear": lambda progress, steps: progress,
    "cosine": lambda progress, steps: 0.5 * (1.0 - math.cos(math.pi * progress)),
    "sigmoid": _sigmoid_shape,
    "exp": lambda progress, steps: math.expm1(_EXP_RATE * progress) / math.expm1(_EXP_RATE),
    "step": _step_shape,
}
"""Name -> curve of (progress in [0, 1], steps) with value 0 at 0 and 1 at 1. Add your own by assignment."""


def schedule_shape(name: str, progress: float, steps: int = 3) -> float:
    """The curve `name` at `progress`, clamped to [0, 1]."""
    if name not in SCHEDULES:
        raise ConfigError(f"schedule {name!r} is unknown{nearest(name, SCHEDULES)}")
    return float(SCHEDULES[name](min(1.0, max(0.0, progress)), steps))


def schedule_weight(
    name: str, step: float, total: int, max_weight: float, warmup_ratio: float, steps: int = 3
) -> float:
    """The weight at `step` of `total`: max_weight · shape(p)."""
    return float(max_weight * schedule_shape(name, _progress(step, total, warmup_ratio), steps))


def _linear_schedule(current_step: float, total_steps: int, max_weight: float, warmup_ratio: float) -> float:
    """max_weight · p."""
    return schedule_weight("linear", current_step, total_steps, max_weight, warmup_ratio)


def _cosine_schedule(current_step: float, total_steps: int, max_weight: float, warmup_ratio: float) -> float:
    """max_weight · ½(1 − cos πp): slow at both ends."""
    return schedule_weight("cosine", current_step, total_steps, max_weight, warmup_ratio)


def _sigmoid_schedule(current_step: float, total_steps: int, max_weight: float, warmup_ratio: float) -> float:
    """max_weight · the logistic curve, stretched so that it starts at 0 and ends at 1."""
    return schedule_weight("sigmoid", current_step, total_steps, max_weight, warmup_ratio)


def _exp_schedule(current_step: float, total_steps: int, max_weight: float, warmup_ratio: float) -> float:
    """max_weight · (e^{5p} − 1)/(e⁵ − 1): small for long, then fast."""
    return schedule_weight("exp", current_step, total_steps, max_weight, warmup_ratio)


def _step_schedule(
    current_step: float, total_steps: int, max_weight: float, warmup_ratio: float, steps: int = 3
) -> float:
    """max_weight · ⌊p·steps⌋/steps: a staircase."""
    return schedule_weight("step", current_step, total_steps, max_weight, warmup_ratio, steps)
