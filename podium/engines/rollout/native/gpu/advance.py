# mypy: ignore-errors
"""The two ends of a decode step, on the device's own state: what goes into the model, and what came out of it.

`read_inputs` turns each row's slot into a token, its position and its place in the cache; `record_tokens` writes the
drawn token down, decides whether the sequence ends with it, and moves the slot on. A slot of length 0 has ended.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from podium.engines.rollout.stopping import IS_EOS, IS_STOP

_IS_EOS, _IS_STOP = tl.constexpr(IS_EOS), tl.constexpr(IS_STOP)


def read_inputs(
    slots: Tensor,  # [B]
    lengths: Tensor,  # [slots]
    last_token: Tensor,  # [slots]
    table: Tensor,  # [slots, width] int32
    page_size: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, positions and cache places [B]; an ended slot reads token 0 at position 0 and has place -1."""
    out = torch.empty(3, slots.shape[0], dtype=torch.int64, device=slots.device)
    rows = slots.shape[0]
    block = min(128, triton.next_power_of_2(rows))
    _read_inputs[(triton.cdiv(rows, block),)](
        slots, lengths, last_token, table, out, rows, table.stride(0), PAGE=page_size, BLOCK=block, num_warps=1
    )
    return out[0], out[1], out[2]


@triton.jit
def _read_inputs(
    slots_ptr, lengths_ptr, last_token_ptr, table_ptr, out_ptr, rows, table_row, PAGE: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    slot = tl.load(slots_ptr + row, mask=inside, other=0)
    length = tl.load(lengths_ptr + slot, mask=inside, other=0)
    runs = inside & (length > 0)
    position = tl.where(runs, length - 1, 0)
    page = tl.load(table_ptr + slot * table_row + position // PAGE, mask=runs, other=0).to(tl.int64)
    token = tl.load(last_token_ptr + slot, mask=runs, other=0)
    tl.store(out_ptr + row, token, mask=inside)
    tl.store(out_ptr + rows + row, position, mask=inside)
    tl.store(out_ptr + 2 * rows + row, tl.where(runs, page * PAGE + position % PAGE, -1), mask=inside)


def record_tokens(
    tokens: Tensor,  # [B]
    log_probs: Tensor,  # [B]
    raw_log_probs: Tensor,  # [B]
    slots: Tensor,  # [B]
    lengths: Tensor,  # [slots]
    last_token: Tensor,  # [slots]
    written: Tensor,  # [slots]
    max_tokens: Tensor,  # [slots]
    rule: Tensor,  # [slots]
    rules: Tensor,  # [rules, V] int8
    ring: tuple[Tensor, Tensor, Tensor],  # tokens int64, log-probs, raw log-probs [slots, columns]
) -> None:
    """Token number w of a slot goes to column w modulo the ring's width."""
    rows = slots.shape[0]
    block = min(128, triton.next_power_of_2(rows))
    _record_tokens[(triton.cdiv(rows, block),)](
        tokens,
        log_probs,
        raw_log_probs,
        slots,
        lengths,
        last_token,
        written,
        max_tokens,
        rule,
        rules,
        *ring,
        rows,
        rules.stride(0),
        RING=ring[0].shape[1],
        BLOCK=block,
        num_warps=1,
    )


@triton.jit
def _record_tokens(
    tokens_ptr,
    log_probs_ptr,
    raw_ptr,
    slots_ptr,
    lengths_ptr,
    last_token_ptr,
    written_ptr,
    max_tokens_ptr,
    rule_ptr,
    rules_ptr,
    ring_tokens_ptr,
    ring_log_probs_ptr,
    ring_raw_ptr,
    rows,
    rules_row,
    RING: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    slot = tl.load(slots_ptr + row, mask=inside, other=0)
    length = tl.load(lengths_ptr + slot, mask=inside, other=0)
    runs = inside & (length > 0)
    token = tl.load(tokens_ptr + row, mask=runs, other=0)
    written = tl.load(written_ptr + slot, mask=runs, other=0)
    here = slot * RING + written % RING
    tl.store(ring_tokens_ptr + here, token, mask=runs)
    tl.store(ring_log_probs_ptr + here, tl.load(log_probs_ptr + row, mask=runs, other=0.0), mask=runs)
    tl.store(ring_raw_ptr + here, tl.load(raw_ptr + row, mask=runs, other=0.0), mask=runs)
    rule = tl.load(rule_ptr + slot, mask=runs, other=0)
    meaning = tl.load(rules_ptr + rule * rules_row + token, mask=runs, other=0)
    limit = tl.load(max_tokens_ptr + slot, mask=runs, other=0)
    ends = (meaning == _IS_EOS) | (meaning == _IS_STOP) | (written + 1 >= limit)
    tl.store(last_token_ptr + slot, token, mask=runs)
    tl.store(written_ptr + slot, written + 1, mask=runs)
    tl.store(lengths_ptr + slot, tl.where(ends, 0, length + 1), mask=runs)
