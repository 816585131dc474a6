"""The critic's loss: clipped squared error, as a mean in verl's shape and as a sum for the engine."""

from __future__ import annotations

import torch
from torch import Tensor

from podium.algorithms.aggregation import agg_loss, agg_sum, count_tensor
from podium.algorithms.masking import inside, masked_mean
from podium.algorithms.reporting import mean_metrics
from podium.metric import Metrics


def _token_losses(
    vpreds: Tensor, returns: Tensor, values: Tensor, mask: Tensor, cliprange_value: float
) -> tuple[Tensor, Tensor]:
    vpreds, returns, values = inside(mask, vpreds, returns, values)
    bounded = torch.minimum(torch.maximum(vpreds, values - cliprange_value), values + cliprange_value)
    plain, clipped = (vpreds - returns).square(), (bounded - returns).square()
    return 0.5 * torch.maximum(plain, clipped), clipped > plain


def compute_value_loss(
    vpreds: Tensor,
    returns: Tensor,
    values: Tensor,
    response_mask: Tensor,
    cliprange_value: float,
    loss_agg_mode: str = "token-mean",
    l_max: float | None = None,
) -> tuple[Tensor, Tensor]:
    """(vf_loss, vf_clipfrac) of a whole batch: ½·agg(max((v − ret)², (clip(v, V ± cliprange_value) − ret)²)).

    Schulman et al., 2017, arXiv:1707.06347, in the form of its reference implementation.
    """
    losses, clipped = _token_losses(vpreds, returns, values, response_mask, cliprange_value)
    return agg_loss(losses, response_mask, loss_agg_mode, l_max), masked_mean(clipped.float(), response_mask)


def value_loss_sum(
    vpreds: Tensor,
    returns: Tensor,
    values: Tensor,
    response_mask: Tensor,
    cliprange_value: float,
    loss_agg_mode: str = "token-mean",
    l_max: float | None = None,
) -> tuple[Tensor, Metrics]:
    """The same loss as a sum that adds up over parts, with `critic/vf_loss` and `critic/vf_clipfrac`."""
    losses, clipped = _token_losses(vpreds, returns, values, response_mask, cliprange_value)
    loss_sum = agg_sum(losses, response_mask, loss_agg_mode, l_max)
    keep = response_mask.bool()
    count = count_tensor(response_mask, loss_agg_mode, l_max)
    sums = {"critic/vf_loss": (loss_sum, count), "critic/vf_clipfrac": ((clipped & keep).sum(), keep.sum())}
    return loss_sum, mean_metrics(sums)
