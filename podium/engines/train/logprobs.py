"""Log-probs, entropy and Σπ² of chosen tokens straight from hidden states, a chunk of tokens at a time.

The logits of one chunk exist at a time, in the forward pass and again in the backward pass, which recomputes them: peak
memory is chunk × vocabulary, whatever the number of tokens. Sums run in float32 (or wider) when the model runs in
bfloat16. With z = transform(h·Wᵀ + b) / temperature and p = softmax(z):

    log-prob   ℓ = z_y − lse(z)        ∂ℓ/∂z_j = 1[j = y] − p_j
    entropy    H = −Σ p log p          ∂H/∂z_j = −p_j (log p_j + H)
    Σπ²        S = Σ p²                ∂S/∂z_j = 2 p_j (p_j − S)

On a GPU with Triton the arithmetic beside the matrix products is fused (fused_head.py). The sampler's filters (top-p,
top-k, min-p) are not applied here.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from podium.models.load import LogitTransform

CHUNK_TOKENS = 1024
FUSED_CHUNK_TOKENS = 2048
"""Larger where no float32 logits exist: each chunk adds its part to the whole gradient of the weight."""


@dataclass(frozen=True)
class HeadOutputs:
    """Per token, float32 (or wider); None where not asked for."""

    log_probs: Tensor  # [T]
    entropy: Tensor | None  # [T]
    sum_pi_squared: Tensor | None  # [T]


def chunked_log_probs(
    hidden: Tensor,  # [T, H]
    weight: Tensor,  # [V, H]
    bias: Tensor | None,  # [V]
    labels: Tensor,  # [T]
    temperature: float,
    *,
    chunk: int | None = None,
    with_entropy: bool = False,
    with_sum_pi_squared: bool = False,
    transform: LogitTransform | None = None,
) -> HeadOutputs:
    """What the head says about `labels`, with gradients to hidden, weight and bias."""
    transform = transform or LogitTransform()
    fused = hidden.is_cuda and hidden.dtype != torch.float64 and transform.softcap is None and _has_triton()
    chunk = chunk or (FUSED_CHUNK_TOKENS if fused else CHUNK_TOKENS)
    head = (_FusedHead if fused else Head)(temperature, transform, chunk, with_entropy, with_sum_pi_squared)
    log_probs, entropy, squares = ChunkedHead.apply(hidden, weight, bias, labels, head)
    return HeadOutputs(log_probs, entropy if with_entropy else None, squares if with_sum_pi_squared else None)


Columns = tuple[Tensor, Tensor, Tensor, Tensor]
"""lse, log-prob, entropy, Σπ² of a chunk."""
Kept = tuple[Tensor, Tensor, Tensor]
"""lse, entropy, Σπ²."""
Grads = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Of log-prob, entropy, Σπ²."""


@dataclass(frozen=True)
class Head:
    """The head's settings, and what is done to a chunk: logits, their statistics, and the way back through them."""

    temperature: float
    transform: LogitTransform
    chunk: int
    with_entropy: bool
    with_sum_pi_squared: bool

    def logits(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """[chunk, H] -> [chunk, V], divided by the temperature, in float32 or wider."""
        z = torch.nn.functional.linear(hidden, weight, bias)
        z = z.to(torch.promote_types(z.dtype, torch.float32))
        z = self.transform(z)
        return z if self.temperature == 1.0 else z.div_(self.temperature)

    def statistics(self, z: Tensor, labels: Tensor, out: Columns) -> None:
        """Fill lse, log-prob, and what is asked of entropy and Σπ²; `z` is used up."""
        lse, log_probs, entropy, squares = out
        lse.copy_(torch.logsumexp(z, -1))
        log_probs.copy_(z.gather(-1, labels[:, None]).squeeze(-1) - lse)
        if self.with_entropy or self.with_sum_pi_squared:
            log_p = z.sub_(lse[:, None])
            p = log_p.exp()
            if self.with_sum_pi_squared:
                squares.copy_(p.square().sum(-1))
            if self.with_entropy:
                entropy.copy_(-p.mul_(log_p).sum(-1))

    def gradients(self, z: Tensor, labels: Tensor, kept: Kept, grads: Grads) -> Tensor:
        """∂/∂(h·Wᵀ + b) of one chunk, [chunk, V]; `z` is used up."""
        grad = gradient_of_logits(z, labels, *kept, *grads)
        cap = self.transform.softcap
        if cap is not None:  # z·temperature = cap·tanh(x/cap), whose slope is 1 − tanh²
            grad.mul_(1.0 - (z * (self.temperature / cap)).square_())
        factor = self.transform.scale / self.temperature
        return grad if factor == 1.0 else grad.mul_(factor)


class _FusedHead(Head):
    """The same with one kernel each way; z is the product as it is, temperature and scale are in the kernels."""

    def logits(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.nn.functional.linear(hidden, weight, bias)

    def statistics(self, z: Tensor, labels: Tensor, out: Columns) -> None:
        from podium.engines.train.fused_head import head_statistics

        head_statistics(z, labels, self.transform.scale / self.temperature, out)

    def gradients(self, z: Tensor, labels: Tensor, kept: Kept, grads: Grads) -> Tensor:
        from podium.engines.train.fused_head import logit_gradients_

        return logit_gradients_(z, labels, self.transform.scale / self.temperature, kept, grads)


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


class ChunkedHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, head: Head
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        empty = [torch.empty(hidden.shape[0], dtype=dtype, device=hidden.device) for _ in range(4)]
        lse, log_probs, entropy, squares = empty
        start = 0
        for h, y in zip(hidden.split(head.chunk), labels.split(head.chunk), strict=True):
            at = slice(start, start := start + len(y))
            head.statistics(head.logits(h, weight, bias), y, (lse[at], log_probs[at], entropy[at], squares[at]))
        ctx.set_materialize_grads(False)
        ctx.head = head
        ctx.save_for_backward(hidden, weight, bias, labels, lse, entropy, squares)
        return log_probs, entropy if head.with_entropy else None, squares if head.with_sum_pi_squared else None

    @staticmethod
    def backward(
        ctx: Any, grad_log_probs: Tensor | None, grad_entropy: Tensor | None, grad_squares: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        hidden, weight, bias, labels, lse, entropy, squares = ctx.saved_tensors
        need_hidden, need_weight, need_bias = ctx.needs_input_grad[:3]
        head: Head = ctx.head
        wide = lse.dtype
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        grad_weight = torch.zeros(weight.shape, dtype=wide, device=weight.device) if need_weight else None
        grad_bias = torch.zeros(weight.shape[0], dtype=wide, device=weight.device) if need_bias else None
        for start in range(0, hidden.shape[0], head.chunk):
            at = slice(start, start + head.chunk)
            h = hidden[at]
            kept = (lse[at], entropy[at], squares[at])
            first, second, third = (g if g is None else g[at] for g in (grad_log_probs, grad_entropy, grad_squares))
            z = head.logits(h, weight, bias)
            raw = head.gradients(z, labels[at], kept, (first, second, third)).to(hidden.dtype)
            if grad_hidden is not None:
                torch.mm(raw, weight, out=grad_hidden[at])
            if grad_weight is not None:
                _add_outer_(grad_weight, raw, h)
            if grad_bias is not None:
                grad_bias += raw.sum(0, dtype=wide)
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, grad_bias if grad_bias is None else grad_bias.to(weight.dtype), None, None


def _add_outer_(total: Tensor, rows: Tensor, columns: Tensor) -> None:
    """total += rowsᵀ · columns; the sum over chunks stays in total's type."""
    if rows.dtype == total.dtype:
        total.addmm_(rows.t(), columns)
    else:
        total.add_(rows.t() @ columns)


def gradient_of_logits(
    z: Tensor,
    labels: Tensor,
    lse: Tensor,
    entropy: Tensor,
    squares: Tensor,
    grad_log_probs: Tensor | None,
    grad_entropy: Tensor | None,
    grad_squares: Tensor | None,
    own: Tensor | None = None,
) -> Tensor:
    """∂/∂z of one chunk, [chunk, V]; `z` is left as it is. `own` [chunk]: which labels are among these columns."""
    log_p = z - lse[:, None]
    p = log_p.exp()
    # every term is p_j times something, except the label's own +1
    factor: Tensor | None = None
    if grad_entropy is not None:
        factor = log_p.add_(entropy[:, None]).mul_(-grad_entropy[:, None])
    if grad_squares is not None:
        term = (p - squares[:, None]).mul_(2.0 * grad_squares[:, None])
        factor = term if factor is None else factor.add_(term)
    if grad_log_probs is not None:
        negative = -grad_log_probs[:, None]
        factor = negative if factor is None else factor.sub_(grad_log_probs[:, None])
    grad = p.mul_(factor) if factor is not None else p.zero_()
    if grad_log_probs is not None:
        at_label = grad_log_probs if own is None else grad_log_probs * own
        grad.scatter_add_(1, labels[:, None], at_label[:, None])
    return grad
