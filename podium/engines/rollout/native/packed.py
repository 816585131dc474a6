"""Weights in the order in which oneDNN reads them: on a CPU a product with few rows takes a third to two thirds of the
time then.

A packed weight is a copy. It is made once per publish, and `changes` tells when the parameters were written since.
It is freed while the engine sleeps. Where oneDNN is absent, in other types, and for models whose copy would
be large, weights stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LARGEST_COPY = 2 << 30
"""Bytes of weights beyond which a second copy is worth more than the time it saves."""
_ROWS = 16  # the order is chosen for so many rows; it serves any number


def can_pack(module: nn.Module, dtype: torch.dtype) -> bool:
    """Whether the weights of `module`, computing in `dtype`, are packed."""
    if dtype != torch.float32 or not torch.backends.mkldnn.is_available():
        return False
    num_bytes = 0
    for parameter in module.parameters():
        if parameter.device.type != "cpu" or parameter.dtype != torch.float32:
            return False
        num_bytes += parameter.numel() * parameter.element_size()
    return num_bytes <= LARGEST_COPY


def pack(weight: Tensor) -> Tensor:
    """A copy of `weight` [out, in] that only `linear` understands."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _ROWS)
    return packed


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear of rows [T, in], with a weight that may be packed."""
    if not weight.is_mkldnn:
        return F.linear(x, weight, bias)
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def changes(parameters: Iterable[nn.Parameter]) -> tuple[int, ...]:
    """How often each was written in place, as far as torch counts: through `.data` it does not."""
    return tuple(parameter._version for parameter in parameters)
