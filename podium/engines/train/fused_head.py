# mypy: ignore-errors
"""The head's arithmetic on a GPU: one pass over the logits forward, one back, in the type the matrix product gave.

`logprobs.py` says what is computed; this is its way on CUDA with Triton, for heads without a soft cap. Logits are read
in their own type and summed in float32; the backward pass overwrites them with their gradient. No float32 copy of the
logits exists. The matrix products stay with cuBLAS.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

FORWARD_BLOCK = 4096
BACKWARD_BLOCK = 4096


def head_statistics(
    logits: Tensor,  # [C, V], before temperature and scale
    labels: Tensor,  # [C]
    scale: float,
    out: tuple[Tensor, Tensor, Tensor, Tensor],  # lse, log-prob, entropy, Σπ², each [C] float32
) -> None:
    """Fill `out` for z = scale · logits."""
    rows, size = logits.shape
    _statistics[(rows,)](logits, labels, *out, size, logits.stride(0), scale, BLOCK=FORWARD_BLOCK, num_warps=8)


def logit_gradients_(
    logits: Tensor,  # [C, V]
    labels: Tensor,
    scale: float,
    kept: tuple[Tensor, Tensor, Tensor],  # lse, entropy, Σπ²
    grads: tuple[Tensor | None, Tensor | None, Tensor | None],  # of log-prob, entropy, Σπ²
) -> Tensor:
    """Overwrite the logits with the gradient of the loss with respect to them."""
    rows, size = logits.shape
    given = [grad is not None for grad in grads]
    pointers = [kept[0] if grad is None else grad.contiguous() for grad in grads]
    grid = (rows, triton.cdiv(size, BACKWARD_BLOCK))
    _gradients[grid](
        logits,
        labels,
        *kept,
        *pointers,
        size,
        logits.stride(0),
        scale,
        WITH_LOG_PROB=given[0],
        WITH_ENTROPY=given[1],
        WITH_SQUARES=given[2],
        BLOCK=BACKWARD_BLOCK,
        num_warps=8,
    )
    return logits


@triton.jit
def _statistics(
    logits_ptr,
    labels_ptr,
    lse_ptr,
    log_prob_ptr,
    entropy_ptr,
    squares_ptr,
    size,
    stride,
    scale,
    BLOCK: tl.constexpr,
):
    """A running maximum; Σe, Σe·z and Σe² are rescaled when it rises (e = exp(z − maximum))."""
    row = tl.program_id(0).to(tl.int64)
    line = logits_ptr + row * stride
    top = float("-inf")
    total = 0.0
    weighted = 0.0
    squares = 0.0
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < size
        z = tl.load(line + at, mask=inside, other=float("-inf")).to(tl.float32) * scale
        z = tl.where(inside, z, float("-inf"))
        higher = tl.maximum(top, tl.max(z, 0))
        shrink = tl.exp(top - higher)
        e = tl.exp(z - higher)
        total = total * shrink + tl.sum(e, 0)
        weighted = weighted * shrink + tl.sum(e * tl.where(inside, z, 0.0), 0)
        squares = squares * shrink * shrink + tl.sum(e * e, 0)
        top = higher
    lse = top + tl.log(total)
    label = tl.load(labels_ptr + row)
    chosen = tl.load(line + label).to(tl.float32) * scale
    tl.store(lse_ptr + row, lse)
    tl.store(log_prob_ptr + row, chosen - lse)
    tl.store(entropy_ptr + row, lse - weighted / total)
    tl.store(squares_ptr + row, squares / (total * total))


@triton.jit
def _gradients(
    logits_ptr,
    labels_ptr,
    lse_ptr,
    entropy_ptr,
    squares_ptr,
    grad_log_prob_ptr,
    grad_entropy_ptr,
    grad_squares_ptr,
    size,
    stride,
    scale,
    WITH_LOG_PROB: tl.constexpr,
    WITH_ENTROPY: tl.constexpr,
    WITH_SQUARES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    place = logits_ptr + row * stride + at
    log_p = tl.load(place, mask=inside, other=0.0).to(tl.float32) * scale - tl.load(lse_ptr + row)
    p = tl.exp(log_p)
    grad = tl.zeros([BLOCK], dtype=tl.float32)
    if WITH_LOG_PROB:
        label = tl.load(labels_ptr + row)
        grad += tl.load(grad_log_prob_ptr + row) * (tl.where(at == label, 1.0, 0.0) - p)
    if WITH_ENTROPY:
        grad -= tl.load(grad_entropy_ptr + row) * p * (log_p + tl.load(entropy_ptr + row))
    if WITH_SQUARES:
        grad += tl.load(grad_squares_ptr + row) * 2.0 * p * (p - tl.load(squares_ptr + row))
    tl.store(place, (grad * scale).to(logits_ptr.dtype.element_ty), mask=inside)
