"""KL estimates per token, the KL penalty in the reward, and the controllers of its coefficient β.

What is here acts on log-probs of the sampled tokens only; the exact KL over the vocabulary is not computed.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from podium.algorithms.masking import inside, masked_mean
from podium.algorithms.schedules import schedule_weight
from podium.config.schema import KLControlConfig
from podium.errors import ConfigError
from podium.plugins import nearest

KL_PENALTIES = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")


def _estimate(logprob: Tensor, ref_logprob: Tensor, name: str) -> Tensor:
    difference = logprob - ref_logprob
    match name:
        case "kl" | "k1":
            return difference
        case "abs":
            return difference.abs()
        case "mse" | "k2":
            return 0.5 * difference.square()
        case "low_var_kl" | "k3":
            kappa = (-difference).clamp(-20.0, 20.0)
            return (torch.expm1(kappa) - kappa).clamp(-10.0, 10.0)
    allowed = [*KL_PENALTIES, *(f"{known}+" for known in KL_PENALTIES)]
    raise ConfigError(f"KL estimator {name!r} is unknown{nearest(name, allowed)}")


def kl_penalty(logprob: Tensor, ref_logprob: Tensor, kl_penalty: str) -> Tensor:
    """An estimate of KL(π‖π_ref) per token, from tokens that π sampled; x = ℓ − ℓ_ref.

        kl, k1           x                                 unbiased, may be negative
        abs              |x|
        mse, k2          ½x²                               its gradient is that of the KL
        low_var_kl, k3   e^{−x} + x − 1, at most 10        unbiased, never negative

    A trailing `+` keeps the value and takes the gradient of k2: k2 − sg(k2) + sg(value).
    Schulman, "Approximating KL divergence", 2020.
    """
    if not kl_penalty.endswith("+"):
        return _estimate(logprob, ref_logprob, kl_penalty)
    value = _estimate(logprob, ref_logprob, kl_penalty[:-1])
    surrogate = _estimate(logprob, ref_logprob, "k2")
    return surrogate - surrogate.detach() + value.detach()


def subtract_kl(
    token_level_scores: Tensor,
    old_log_probs: Tensor,
    ref_log_prob: Tensor,
    response_mask: Tensor,
    beta: float,
    kind: str = "kl",
) -> tuple[Tensor, float]:
    """The KL penalty in the reward: r = score − β·kl(ℓ_old, ℓ_ref)·m, and current_kl = mean_i masked_mean_t kl.

    Scores outside the mask (a terminal observation) stay where they are. Ziegler et al., 2019, arXiv:1909.08593.
    """
    old, ref = inside(response_mask, old_log_probs, ref_log_prob)
    (kld,) = inside(response_mask, kl_penalty(old, ref, kind))
    current_kl = masked_mean(kld, response_mask, axis=-1).mean() if len(kld) else kld.new_zeros(())
    return token_level_scores - beta * kld, float(current_kl)


class KLController(Protocol):
    """Holds β. `value_at` is the coefficient to use, `update` tells it what came of it."""

    value: float

    def value_at(self, step: int, total: int) -> float: ...

    def update(self, current_kl: float, n_steps: int) -> None: ...

    def state_dict(self) -> dict[str, float]: ...

    def load_state_dict(self, state: dict[str, float]) -> None: ...


class FixedKLController:
    """β = kl_coef, or, with a schedule, growing from 0 to kl_coef over the first `warmup_ratio` of training."""

    def __init__(self, kl_coef: float, schedule: str | None = None, warmup_ratio: float = 0.1) -> None:
        self.value = kl_coef
        self.schedule, self.warmup_ratio = schedule, warmup_ratio

    def value_at(self, step: int, total: int) -> float:
        if self.schedule is None:
            return self.value
        return schedule_weight(self.schedule, step, total, self.value, self.warmup_ratio)

    def update(self, current_kl: float, n_steps: int) -> None:
        """Nothing to adapt."""

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """β is a setting, not a state: what the config says now holds."""


class AdaptiveKLController:
    """β ← β·(1 + clip(kl/target − 1, ±0.2)·n_steps/horizon), n_steps = trajectories seen.

    One update never shrinks β below a tenth, so that a horizon far below the batch cannot turn it to 0 or negative; a
    non-finite KL leaves it as it is.
    Ziegler et al., "Fine-Tuning Language Models from Human Preferences", 2019, arXiv:1909.08593.
    """

    def __init__(self, init_kl_coef: float, target_kl: float, horizon: float) -> None:
        if target_kl <= 0 or horizon <= 0:
            raise ConfigError(f"kl_ctrl: target_kl and horizon must be positive; got {target_kl} and {horizon}")
        self.value = init_kl_coef
        self.target, self.horizon = target_kl, horizon

    def value_at(self, step: int, total: int) -> float:
        return self.value

    def update(self, current_kl: float, n_steps: int) -> None:
        if not math.isfinite(current_kl):
            return
        error = min(0.2, max(-0.2, current_kl / self.target - 1.0))
        self.value *= max(0.1, 1.0 + error * n_steps / self.horizon)

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = float(state["value"])


def get_kl_controller(kl_ctrl: KLControlConfig) -> KLController:
    """The controller that `algorithm.kl_ctrl` describes."""
    match kl_ctrl.type:
        case "fixed":
            return FixedKLController(kl_ctrl.kl_coef, kl_ctrl.schedule, kl_ctrl.warmup_ratio)
        case "adaptive":
            return AdaptiveKLController(kl_ctrl.kl_coef, kl_ctrl.target_kl, kl_ctrl.horizon)
    raise ConfigError(f"kl_ctrl.type {kl_ctrl.type!r} is unknown{nearest(kl_ctrl.type, ['fixed', 'adaptive'])}")
