"""Masked statistics over [batch, width] tensors, and log-probs of chosen tokens.

A mask is 1 (or True) where the model wrote the token. What lies outside the mask never matters, not even a NaN. Nothing
here knows about rewards, policies or losses.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 24
"""Float32 elements `selective_log_softmax` may hold at once: 64 MiB."""


def inside(mask: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors with zeros outside the mask, so that neither values nor gradients out there can spread."""
    keep = mask.bool()
    return tuple(torch.where(keep, tensor, torch.zeros_like(tensor)) for tensor in tensors)


def masked_sum(values: Tensor, mask: Tensor, axis: int | None = None) -> Tensor:
    """Σ x·m, over everything or over one axis."""
    (kept,) = inside(mask, values)
    return kept.sum() if axis is None else kept.sum(dim=axis)


def masked_mean(values: Tensor, mask: Tensor, axis: int | None = None) -> Tensor:
    """Σ x·m / max(Σ m, 1). An empty mask gives 0."""
    count = mask.bool().sum() if axis is None else mask.bool().sum(dim=axis)
    return masked_sum(values, mask, axis) / count.clamp(min=1)


def masked_var(values: Tensor, mask: Tensor, unbiased: bool = True) -> Tensor:
    """The variance over the mask, with N/(N−1) when unbiased. One value or none gives 0."""
    count = mask.bool().sum()
    variance = masked_mean((values - masked_mean(values, mask)).square(), mask)
    if unbiased:
        variance = variance * count / (count - 1).clamp(min=1)
    return variance


def masked_whiten(values: Tensor, mask: Tensor, shift_mean: bool = True) -> Tensor:
    """(x − μ)/√(var + 1e-8) inside the mask, 0 outside; μ is added back when `shift_mean` is False.

    With one value or none there is no variance to divide by: x − μ.
    """
    mean = masked_mean(values, mask)
    scale = torch.where(mask.bool().sum() > 1, torch.rsqrt(masked_var(values, mask) + 1e-8), 1.0)
    whitened = (values - mean) * scale
    if not shift_mean:
        whitened = whitened + mean
    return inside(mask, whitened)[0]


def last_token_mask(mask: Tensor) -> Tensor:
    """[B, R] bool, True at each row's last model token only. A row without one is all False."""
    keep = mask.bool()
    remaining = keep.long().flip(-1).cumsum(-1).flip(-1)
    return keep & (remaining == 1)


def at_last_token(values: Tensor, mask: Tensor) -> Tensor:
    """[B] -> [B, R]: each row's value at its last model token, 0 elsewhere."""
    return values.unsqueeze(-1) * last_token_mask(mask).to(values.dtype)


def model_token_index(mask: Tensor) -> Tensor:
    """[B, R] int64: which model token of its row a position is, or belongs to.

    An observation belongs to the model token before it; what comes before the first model token belongs to the first.
    """
    return (mask.long().cumsum(-1) - 1).clamp(min=0)


def fold_rewards(token_level_rewards: Tensor, mask: Tensor) -> Tensor:
    """Move every reward that sits on an observation or past the end onto the model token it belongs to.

    The sum of a row does not change, unless the row has no model token at all. Recursions over model tokens (GAE,
    reward-to-go) therefore lose no reward, wherever an environment put it.
    """
    owner = model_token_index(mask)
    per_token = torch.zeros_like(token_level_rewards).scatter_add(-1, owner, token_level_rewards)
    return inside(mask, per_token.gather(-1, owner))[0]


class _SelectiveLogSoftmax(torch.autograd.Function):
    """log softmax at one id per row, chunk by chunk in both directions; saves the logits as given and [T] numbers."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor, rows: int) -> Tensor:
        log_probs = torch.empty(ids.shape, dtype=torch.float32, device=logits.device)
        log_norms = torch.empty_like(log_probs)
        for start in range(0, len(ids), rows):
            part = slice(start, start + rows)
            chunk = logits[part].float()
            log_norms[part] = chunk.logsumexp(-1)
            log_probs[part] = chunk.gather(-1, ids[part, None]).squeeze(-1) - log_norms[part]
        ctx.save_for_backward(logits, ids, log_norms)
        ctx.rows = rows
        return log_probs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None]:
        logits, ids, log_norms = ctx.saved_tensors
        (grad,) = grads
        grad_logits = torch.empty_like(logits)
        for start in range(0, len(ids), ctx.rows):
            part = slice(start, start + ctx.rows)
            upstream = grad[part, None].float()
            chunk = torch.exp(logits[part].float() - log_norms[part, None]).mul_(-upstream)
            chunk.scatter_add_(-1, ids[part, None], upstream)
            grad_logits[part] = chunk.to(logits.dtype)
        return grad_logits, None, None


def selective_log_softmax(logits: Tensor, ids: Tensor) -> Tensor:
    """log softmax(logits)[..., ids] in float32: logits [..., V], ids [...].

    Works through the rows in chunks, so that at most `CHUNK_ELEMENTS` float32 log-probs exist at once, in the forward
    and in the backward pass.
    """
    assert logits.shape[:-1] == ids.shape, f"logits {tuple(logits.shape)} do not fit ids {tuple(ids.shape)}"
    rows = max(1, CHUNK_ELEMENTS // logits.shape[-1])
    flat: Tensor = _SelectiveLogSoftmax.apply(logits.reshape(-1, logits.shape[-1]), ids.reshape(-1), rows)
    return flat.view(ids.shape)
