"""Attention over a sequence that several ranks hold in pieces (Ulysses).

Each rank has a stretch of the packed tokens and all their heads. Before attention an all-to-all gives it all tokens of
some heads; the plan computes those; another all-to-all brings the result back to stretches. Everything else in a model
works token by token and needs no exchange. How tokens are cut into stretches is the train engine's matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from podium.models.attention import AttentionPlan


@dataclass(frozen=True)
class UlyssesAttention:
    """`plan` over `num_tokens` tokens, of which each of `size` ranks holds as many; the last ones may be padding."""

    plan: AttentionPlan
    num_tokens: int
    size: int
    group: dist.ProcessGroup

    def __call__(
        self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        own = query.shape[2]
        parts = [self._by_rank(x) for x in (query, self._shareable(key, query), self._shareable(value, query))]
        sizes = [part.shape[1] for part in parts]
        whole = exchange(torch.cat(parts, dim=1), self.group)  # [ranks, heads of this rank, t, D]
        whole = whole.transpose(0, 1).flatten(1, 2)[None, :, : self.num_tokens]  # [1, heads, T, D]
        q, k, v = whole.split(sizes, dim=1)
        out = self.plan(layer_idx, q, k, v, scaling, window).squeeze(0)  # [T, heads, D]
        out = F.pad(out, (0, 0, 0, 0, 0, own * self.size - self.num_tokens))
        back = exchange(out.unflatten(0, (self.size, own)), self.group)  # [ranks, t, heads, D]
        return back.transpose(0, 1).flatten(1, 2)[None]

    def _by_rank(self, heads: Tensor) -> Tensor:
        """[1, H, t, D] -> [ranks, H / ranks, t, D]: what each rank is to compute."""
        by_rank: Tensor = heads.squeeze(0).unflatten(0, (self.size, -1))
        return by_rank

    def _shareable(self, kv: Tensor, query: Tensor) -> Tensor:
        """Fewer key-value heads than ranks, or a number that does not divide: as many copies as needed."""
        heads, kv_heads = query.shape[1], kv.shape[1]
        if kv_heads % self.size == 0:
            return kv
        wanted = self.size if self.size % kv_heads == 0 else heads
        return kv.repeat_interleave(wanted // kv_heads, dim=1)


def exchange(parts: Tensor, group: dist.ProcessGroup) -> Tensor:
    """parts[r] goes to rank r; what comes back has at [r] the part that rank r sent. Differentiable."""
    received: Tensor = _Exchange.apply(parts, group)
    return received


class _Exchange(torch.autograd.Function):
    """Its own transpose: the gradient of what was received goes back to who sent it."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _all_to_all(parts, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _all_to_all(grads[0], ctx.group), None


def _all_to_all(parts: Tensor, group: dist.ProcessGroup) -> Tensor:
    received = torch.empty_like(parts, memory_format=torch.contiguous_format)
    dist.all_to_all_single(received, parts.contiguous(), group=group)
    return received
