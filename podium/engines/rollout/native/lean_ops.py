"""The elementwise parts of a lean step in plain torch; gpu/elementwise.py has the same functions as Triton kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

Rotary = tuple[Tensor, Tensor, Tensor]
"""cos and sin, and the row of each token in them."""
HeadNorms = tuple[Tensor, Tensor, float]
"""RMS norm weights [D] of queries and keys, and epsilon."""


def embed(ids: Tensor, weight: Tensor) -> Tensor:
    """Rows of `weight` [V, H] for `ids` [T]."""
    return F.embedding(ids, weight)


def add_rms_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """x += delta (in place), then the RMS norm of x; x and delta [T, H]."""
    if delta is not None:
        x += delta
    return F.rms_norm(x, weight.shape, weight, eps)


def rows_of_rotary(cos: Tensor, sin: Tensor, positions: Tensor) -> Rotary:
    """The tables [positions, D / 2] made ready for tokens at `positions` [T]; once per pass, for all layers."""
    return cos[positions].unsqueeze(1), sin[positions].unsqueeze(1), positions


def rotate_and_store(
    qkv: Tensor,  # [T, H + 2·Hkv, D], rotated in place
    places: Tensor,  # [T] in the layer's cache; below 0: not stored, and then none is
    rotary: Rotary,
    norms: HeadNorms | None,
    cache: Tensor,  # [2, Hkv, pages, page size, D]
) -> None:
    """Queries and keys are normed (where the family does) and rotated; keys and values go into the cache."""
    num_kv, dim = cache.shape[1], qkv.shape[2]
    num_queries = qkv.shape[1] - 2 * num_kv
    if norms is not None:
        for part, weight in ((qkv[:, :num_queries], norms[0]), (qkv[:, num_queries:-num_kv], norms[1])):
            part.copy_(F.rms_norm(part, weight.shape, weight, norms[2]))
    cos, sin, _ = rotary
    low, high = qkv[:, :-num_kv].split(dim // 2, dim=2)
    rotated_low = torch.addcmul(low * cos, high, sin, value=-1)
    rotated_high = torch.addcmul(high * cos, low, sin)
    low.copy_(rotated_low)
    high.copy_(rotated_high)
    if cache.shape[2] > 0:
        keys, values = cache.flatten(2, 3)
        keys.index_copy_(1, places, qkv[:, num_queries:-num_kv].transpose(0, 1).to(keys.dtype))
        values.index_copy_(1, places, qkv[:, -num_kv:].transpose(0, 1).to(values.dtype))


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) · up of [T, 2·I]: [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
