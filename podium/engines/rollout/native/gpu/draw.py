# mypy: ignore-errors
"""Sampling on the device: two passes over the vocabulary's logits, no sort, no float32 copy of them.

The first pass sums exp(logit / temperature) of a stretch of the vocabulary; the second finds the stretch where u times
the total falls, and the token inside it. u is the hash of (seed, sample, position) that `native/sampling.py` defines,
so a draw depends on its own row alone. Log-probs come from the same sums. Rows with top-k, top-p or min-p are not for
these kernels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

STRETCH = 4096


def draw_tokens(
    logits: Tensor,  # [M, V]
    source: Tensor,  # [B] int32: each row's logits
    slots: Tensor,  # [B]
    lengths: Tensor,  # [slots]; rows of length 0 are skipped
    numbers: tuple[Tensor, Tensor, Tensor],  # seed, sample, tokens written [slots]
    temperature: Tensor,  # [slots] float32
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [B], their log-probs under the sampling distribution, and under the model. Skipped rows are undefined."""
    rows, vocab_size = slots.shape[0], logits.shape[1]
    stretches = triton.cdiv(vocab_size, STRETCH)
    parts = torch.empty(3, rows, stretches, dtype=torch.float32, device=logits.device)
    likeliest = torch.empty(rows, stretches, dtype=torch.int32, device=logits.device)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    log_probs = torch.empty(2, rows, dtype=torch.float32, device=logits.device)
    shared = (logits, source, slots, lengths, temperature)
    _sum_stretches[(rows, stretches)](
        *shared, parts, likeliest, vocab_size, logits.stride(0), parts.stride(0), STRETCH=STRETCH, num_warps=8
    )
    _draw[(rows,)](
        *shared,
        *numbers,
        parts,
        likeliest,
        tokens,
        log_probs,
        vocab_size,
        stretches,
        logits.stride(0),
        parts.stride(0),
        log_probs.stride(0),
        STRETCHES=triton.next_power_of_2(stretches),
        STRETCH=STRETCH,
        num_warps=8,
    )
    return tokens, log_probs[0], log_probs[1]


@triton.jit
def _sum_stretches(
    logits_ptr,
    source_ptr,
    slots_ptr,
    lengths_ptr,
    temperature_ptr,
    parts_ptr,
    likeliest_ptr,
    vocab_size,
    logits_row,
    parts_kind,
    STRETCH: tl.constexpr,
):
    row, stretch = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots_ptr + row)
    if tl.load(lengths_ptr + slot) == 0:
        return
    temperature = tl.load(temperature_ptr + slot)
    token = stretch * STRETCH + tl.arange(0, STRETCH)
    here = logits_ptr + tl.load(source_ptr + row).to(tl.int64) * logits_row + token
    logits = tl.load(here, mask=token < vocab_size, other=float("-inf")).to(tl.float32)
    highest = tl.max(logits, axis=0)
    below = tl.where(logits > float("-inf"), logits - highest, float("-inf"))
    total = tl.sum(tl.exp(below), axis=0)
    sampled = total
    if temperature == 0.0:
        place = tl.argmax(logits, axis=0)
        tl.store(likeliest_ptr + row * tl.num_programs(1) + stretch, stretch * STRETCH + place)
    elif temperature != 1.0:
        sampled = tl.sum(tl.exp(below / temperature), axis=0)
    part = parts_ptr + row * tl.num_programs(1) + stretch
    tl.store(part, highest)
    tl.store(part + parts_kind, total)
    tl.store(part + 2 * parts_kind, sampled)


@triton.jit
def _mix(bits):
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    return bits ^ (bits >> 31)


@triton.jit
def _uniform(seed, sample, position):
    golden: tl.constexpr = 0x9E3779B97F4A7C15
    bits = _mix(seed.to(tl.uint64, bitcast=True) + golden)
    bits = _mix(bits ^ (sample.to(tl.uint64, bitcast=True) + golden))
    bits = _mix(bits ^ (position.to(tl.uint64, bitcast=True) + golden))
    return (bits >> 11).to(tl.float64) * (2.0**-53)


@triton.jit
def _draw(
    logits_ptr,
    source_ptr,
    slots_ptr,
    lengths_ptr,
    temperature_ptr,
    seed_ptr,
    sample_ptr,
    written_ptr,
    parts_ptr,
    likeliest_ptr,
    tokens_ptr,
    log_probs_ptr,
    vocab_size,
    stretches,
    logits_row,
    parts_kind,
    log_probs_kind,
    STRETCHES: tl.constexpr,
    STRETCH: tl.constexpr,
):
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row)
    if tl.load(lengths_ptr + slot) == 0:
        return
    temperature = tl.load(temperature_ptr + slot)
    divisor = tl.where(temperature == 0.0, 1.0, temperature)
    stretch = tl.arange(0, STRETCHES)
    known = stretch < stretches
    part = parts_ptr + row * stretches + stretch
    highs = tl.load(part, mask=known, other=float("-inf"))
    highest = tl.max(highs, axis=0)
    below = tl.where(highs > float("-inf"), highs - highest, float("-inf"))
    plain_total = tl.sum(tl.load(part + parts_kind, mask=known, other=0.0) * tl.exp(below), axis=0)
    sums = tl.load(part + 2 * parts_kind, mask=known, other=0.0) * tl.exp(below / divisor)
    sums = tl.where(sums > 0.0, sums, 0.0).to(tl.float64)
    running = tl.cumsum(sums, axis=0)
    total = tl.sum(sums, axis=0)
    seed, sample = tl.load(seed_ptr + slot), tl.load(sample_ptr + slot)
    target = _uniform(seed, sample, tl.load(written_ptr + slot)) * total
    last_stretch = tl.max(tl.where(sums > 0.0, stretch, 0), axis=0)
    chosen = tl.minimum(tl.sum((running <= target).to(tl.int32), axis=0), last_stretch)
    target -= tl.sum(tl.where(stretch < chosen, sums, 0.0), axis=0)

    logits_ptr += tl.load(source_ptr + row).to(tl.int64) * logits_row
    inner = tl.arange(0, STRETCH)
    token = chosen * STRETCH + inner
    logits = tl.load(logits_ptr + token, mask=token < vocab_size, other=float("-inf")).to(tl.float32)
    weights = tl.exp(tl.where(logits > float("-inf"), logits - highest, float("-inf")) / divisor)
    inner_running = tl.cumsum(weights, axis=0)
    last = tl.max(tl.where(weights > 0.0, inner, 0), axis=0)
    place = tl.minimum(tl.sum((inner_running <= target.to(tl.float32)).to(tl.int32), axis=0), last)
    picked = chosen * STRETCH + place
    if temperature == 0.0:
        best = tl.min(tl.where(highs == highest, stretch, STRETCHES), axis=0)
        picked = tl.load(likeliest_ptr + row * stretches + tl.minimum(best, stretches - 1))
    picked = tl.minimum(tl.maximum(picked, 0), vocab_size - 1)
    logit = tl.load(logits_ptr + picked).to(tl.float32) - highest
    sampled_log_prob = tl.where(temperature == 0.0, 0.0, logit / divisor - tl.log(total.to(tl.float32)))
    tl.store(tokens_ptr + row, picked.to(tl.int64))
    tl.store(log_probs_ptr + row, sampled_log_prob)
    tl.store(log_probs_ptr + log_probs_kind + row, logit - tl.log(plain_total))
