# mypy: ignore-errors
"""Attention of one new token per sequence over its KV pages, split along the sequence.

One program serves the query heads of one KV head (as the rows of one tile) over one part of one sequence, so each key
and value is read once. Parts are put together by a second kernel through their log-sums. A sequence of length 0 costs
nothing. Prompts do not come here: they go through packed attention.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_SPLITS = 16


def choose_splits(num_rows: int, num_kv_heads: int, num_processors: int) -> int:
    """Parts per sequence that keep the processors busy: about four programs for each."""
    splits = 1
    while splits < MAX_SPLITS and num_rows * num_kv_heads * splits < 3 * num_processors:
        splits *= 2
    return splits


def paged_attention(
    query: Tensor,  # [B, H, D], any strides but the last
    cache: Tensor,  # [2, Hkv, pages, page size, D]
    table: Tensor,  # [slots, width] int32
    slots: Tensor,  # [B]
    lengths: Tensor,  # [slots], the new token counted
    scaling: float,
    window: int | None,
    splits: int,
    block: int = 64,
    warps: int = 4,
    stages: int = 3,
) -> Tensor:
    """[B, H, D]; a row of length 0 gets zeros."""
    rows, heads, dim = query.shape
    num_kv, page_size = cache.shape[1], cache.shape[3]
    group = heads // num_kv
    out = query.new_empty(rows, heads, dim)
    if splits == 1:
        parts, sums = out, out
    else:
        parts = query.new_empty(rows, heads, splits, dim, dtype=torch.float32)
        sums = query.new_empty(rows, heads, splits, dtype=torch.float32)
    padded = triton.next_power_of_2(dim)
    _attend[(rows, num_kv, splits)](
        query,
        cache,
        table,
        slots,
        lengths,
        parts,
        sums,
        scaling * 1.4426950408889634,  # to powers of two
        window if window is not None else 1 << 30,
        query.stride(0),
        query.stride(1),
        cache.stride(0),
        cache.stride(1),
        table.stride(0),
        GROUP=group,
        ROWS=max(16, triton.next_power_of_2(group)),
        DIM=dim,
        PADDED=padded,
        PAGE=page_size,
        BLOCK=block,
        SPLITS=splits,
        num_warps=warps,
        num_stages=stages,
    )
    if splits > 1:
        _combine[(rows, heads)](parts, sums, out, DIM=dim, PADDED=padded, SPLITS=splits, num_warps=1)
    return out


@triton.jit
def _attend(
    query_ptr,
    cache_ptr,
    table_ptr,
    slots_ptr,
    lengths_ptr,
    out_ptr,
    sums_ptr,
    scale,
    window,
    query_row,
    query_head,
    value_stride,
    head_stride,
    table_row,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
):
    row, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    slot = tl.load(slots_ptr + row)
    length = tl.load(lengths_ptr + slot).to(tl.int32)
    member = tl.arange(0, ROWS)
    cols = tl.arange(0, PADDED)
    head = kv_head * GROUP + member
    inside = (member < GROUP)[:, None] & (cols < DIM)[None, :]
    query = tl.load(query_ptr + row * query_row + head[:, None] * query_head + cols[None, :], mask=inside, other=0.0)

    first = tl.maximum(length - window, 0)
    share = tl.cdiv(tl.cdiv(length - first, SPLITS), BLOCK) * BLOCK
    start = first + split * share
    end = tl.minimum(start + share, length)

    keys_ptr = cache_ptr + kv_head.to(tl.int64) * head_stride
    values_ptr = keys_ptr + value_stride
    table_ptr += slot * table_row
    dtype = cache_ptr.dtype.element_ty
    query = query.to(dtype)
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, PADDED], tl.float32)
    for begin in tl.range(start, end, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        seen = place < end
        page = tl.load(table_ptr + place // PAGE, mask=seen, other=0).to(tl.int64)
        offset = ((page * PAGE + place % PAGE) * DIM)[:, None] + cols[None, :]
        readable = seen[:, None] & (cols < DIM)[None, :]
        keys = tl.load(keys_ptr + offset, mask=readable, other=0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_highest[:, None])
        shrink = tl.exp2(highest - new_highest)
        total = total * shrink + tl.sum(weights, axis=1)
        values = tl.load(values_ptr + offset, mask=readable, other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(dtype), values, input_precision="ieee")
        highest = new_highest

    safe = tl.where(total > 0, total, 1.0)
    mixed = mixed / safe[:, None]
    num_heads = tl.num_programs(1) * GROUP
    if SPLITS == 1:
        here = out_ptr + (row * num_heads + head)[:, None] * DIM + cols[None, :]
        tl.store(here, mixed.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        part = (row * num_heads + head) * SPLITS + split
        tl.store(out_ptr + part[:, None] * DIM + cols[None, :], mixed, mask=inside)
        log_total = tl.where(total > 0, highest + tl.log2(safe), float("-inf"))
        tl.store(sums_ptr + part, log_total, mask=member < GROUP)


@triton.jit
def _combine(parts_ptr, sums_ptr, out_ptr, DIM: tl.constexpr, PADDED: tl.constexpr, SPLITS: tl.constexpr):
    here = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    split = tl.arange(0, SPLITS)
    cols = tl.arange(0, PADDED)
    sums = tl.load(sums_ptr + here * SPLITS + split)
    highest = tl.max(sums, axis=0)
    weights = tl.where(sums > float("-inf"), tl.exp2(sums - highest), 0.0)
    total = tl.sum(weights, axis=0)
    parts = tl.load(
        parts_ptr + (here * SPLITS + split)[:, None] * DIM + cols[None, :], mask=(cols < DIM)[None, :], other=0.0
    )
    mixed = tl.sum(parts * weights[:, None], axis=0) / tl.where(total > 0, total, 1.0)
    tl.store(out_ptr + here * DIM + cols, mixed.to(out_ptr.dtype.element_ty), mask=cols < DIM)


def copy_pages(layers: Tensor, sources: Tensor, destinations: Tensor) -> None:
    """Copy pages [n] to pages [n] in every layer of [L, 2, Hkv, pages, page size, D]."""
    planes = layers.shape[0] * layers.shape[1] * layers.shape[2]
    size = layers.shape[4] * layers.shape[5]
    _copy_pages[(len(sources), planes)](
        layers, sources, destinations, layers.stride(2), SIZE=size, BLOCK=triton.next_power_of_2(size), num_warps=4
    )


@triton.jit
def _copy_pages(layers_ptr, sources_ptr, destinations_ptr, plane, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    source = tl.load(sources_ptr + tl.program_id(0))
    destination = tl.load(destinations_ptr + tl.program_id(0))
    here = layers_ptr + tl.program_id(1).to(tl.int64) * plane + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < SIZE
    tl.store(here + destination * SIZE, tl.load(here + source * SIZE, mask=inside), mask=inside)
