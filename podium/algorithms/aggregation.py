"""From token losses to one number, in two halves: a sum that adds up over micro-batches and ranks, and a count.

The loss of an optimizer step is Σ agg_sum / Σ agg_count over all its parts. Nothing here divides by the size of a part,
so the result does not depend on how the rows were cut, padded or ordered.

    mode                        sum                       count
    token-mean                  Σ L·m                     tokens
    seq-mean-token-sum          Σ L·m                     sequences with a token
    seq-mean-token-mean         Σ_i (Σ_t L·m / |y_i|)     sequences with a token
    seq-mean-token-sum-norm     Σ L·m                     sequences with a token × l_max
"""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from podium.config.schema import LossAggMode
from podium.errors import ConfigError
from podium.plugins import nearest

LOSS_AGG_MODES: tuple[str, ...] = get_args(LossAggMode)


def _check(mode: str) -> None:
    if mode not in LOSS_AGG_MODES:
        raise ConfigError(f"loss_agg_mode {mode!r} is unknown{nearest(mode, LOSS_AGG_MODES)}")


def agg_sum(loss_mat: Tensor, mask: Tensor, mode: str, l_max: float | None = None) -> Tensor:
    """The sum half of [B, R] token losses. `l_max` belongs to the count; it is taken here for symmetry."""
    _check(mode)
    keep = mask.bool()
    kept = torch.where(keep, loss_mat, torch.zeros_like(loss_mat))
    if mode == "seq-mean-token-mean":
        return (kept.sum(-1) / keep.sum(-1).clamp(min=1)).sum()
    return kept.sum()


def count_tensor(mask: Tensor, mode: str, l_max: float | None = None) -> Tensor:
    """The count half, still on its device."""
    _check(mode)
    keep = mask.bool()
    if mode == "token-mean":
        return keep.sum().double()
    sequences = keep.any(-1).sum().double()
    if mode != "seq-mean-token-sum-norm":
        return sequences
    if not l_max or l_max <= 0:
        raise ConfigError(
            f"loss_agg_mode seq-mean-token-sum-norm divides by a constant l_max; got {l_max}. Give a positive number, "
            "usually data.max_response_length"
        )
    return sequences * l_max


def agg_count(mask: Tensor, mode: str, l_max: float | None = None) -> float:
    """The count half: what the summed parts are divided by, once, when all of them are added up."""
    return float(count_tensor(mask, mode, l_max))


def agg_loss(loss_mat: Tensor, loss_mask: Tensor, loss_agg_mode: str, l_max: float | None = None) -> Tensor:
    """agg_sum / agg_count of a batch that is the whole optimizer step. Without any token: 0."""
    count = count_tensor(loss_mask, loss_agg_mode, l_max)
    count = torch.where(count > 0, count, torch.ones_like(count)).to(loss_mat.dtype)
    return agg_sum(loss_mat, loss_mask, loss_agg_mode, l_max) / count
