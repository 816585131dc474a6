"""From sums on a device to metrics, with one transfer for all of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from podium.metric import Metric, Metrics


def mean_metrics(sums: Mapping[str, tuple[Tensor, Tensor]]) -> Metrics:
    """Name -> (total, weight) as mean metrics that merge exactly over parts."""
    if not sums:
        return {}
    pairs = torch.stack([x.detach().double() for pair in sums.values() for x in pair]).view(-1, 2).tolist()
    return {name: Metric.mean(total, weight) for name, (total, weight) in zip(sums, pairs, strict=True)}
