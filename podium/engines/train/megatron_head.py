"""The output head over a vocabulary that several ranks share: logprobs.py's chunks, each rank with its own columns.

A rank computes the logits of its tokens alone; what a token's statistics need of the others is one maximum and four
sums, added over the ranks a chunk at a time. Going back, a rank knows the gradient of its own columns; that of the
hidden states is a sum over the ranks, which the caller's graph takes (Megatron's copy into the region).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from podium.engines.train.logprobs import (
    CHUNK_TOKENS,
    ChunkedHead,
    Columns,
    Grads,
    Head,
    HeadOutputs,
    Kept,
    gradient_of_logits,
)
from podium.models.load import LogitTransform


def vocab_parallel_log_probs(
    hidden: Tensor,  # [T, H], the same on every rank of the group
    weight: Tensor,  # [V of this rank, H]
    labels: Tensor,  # [T]
    temperature: float,
    *,
    first: int,
    group: dist.ProcessGroup,
    chunk: int = CHUNK_TOKENS,
    with_entropy: bool = False,
    with_sum_pi_squared: bool = False,
) -> HeadOutputs:
    """What the whole head says about `labels`. `first`: the token of this rank's first row. Collective over `group`."""
    transform = LogitTransform()
    head = _SharedHead(temperature, transform, chunk, with_entropy, with_sum_pi_squared, first, group)
    log_probs, entropy, squares = ChunkedHead.apply(hidden, weight, None, labels - first, head)
    return HeadOutputs(log_probs, entropy if with_entropy else None, squares if with_sum_pi_squared else None)


@dataclass(frozen=True)
class _SharedHead(Head):
    first: int
    group: dist.ProcessGroup

    def statistics(self, z: Tensor, labels: Tensor, out: Columns) -> None:
        lse, log_probs, entropy, squares = out
        if not len(labels):
            return
        own, places = self._own(z, labels)
        top = z.amax(-1) if z.shape[1] else z.new_full((len(labels),), float("-inf"))
        dist.all_reduce(top, dist.ReduceOp.MAX, self.group)
        sums = torch.zeros(4, len(labels), dtype=top.dtype, device=top.device)
        total, at_label, square, weighted = sums
        if z.shape[1]:
            at_label.copy_(torch.where(own, z.gather(-1, places[:, None]).squeeze(-1), 0.0))
            z.sub_(top[:, None])
            e = z.exp()
            total.copy_(e.sum(-1))
            if self.with_sum_pi_squared:
                square.copy_(e.square().sum(-1))
            if self.with_entropy:
                weighted.copy_(e.mul_(z).sum(-1))
        dist.all_reduce(sums, group=self.group)
        lse.copy_(top + total.log())
        log_probs.copy_(at_label - lse)
        squares.copy_(square / total.square())
        entropy.copy_(total.log() - weighted / total)

    def gradients(self, z: Tensor, labels: Tensor, kept: Kept, grads: Grads) -> Tensor:
        if not z.shape[1]:
            return z
        own, places = self._own(z, labels)
        grad = gradient_of_logits(z, places, *kept, *grads, own=own)
        return grad if self.temperature == 1.0 else grad.div_(self.temperature)

    @staticmethod
    def _own(z: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Which labels are this rank's, and a place in its columns for each; any place for the others."""
        columns = z.shape[1]
        own = (labels >= 0) & (labels < columns)
        return own, labels.clamp(0, max(columns - 1, 0))
