# mypy: ignore-errors
"""Attention of one new token per sequence over its KV pages, split along the sequence.

One program serves the query heads of one KV head (as the rows of one tile) over one part of one sequence, so each key
and value is read once. Parts are put together by a second kernel through their log-sums. Where the projections come
unrotated, the program of the last part also rotates the new key, stores it with its value, and starts from them. A
sequence of length 0 costs nothing. Prompts do not come here: they go through packed attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from podium.engines.rollout.native.lean_ops import HeadNorms, Rotary

MAX_SPLITS = 16
MANY_PROGRAMS = 1400

Tiling = tuple[int, int, int]
"""Tokens read at once, warps, and stages of the pipeline."""


def choose_splits(num_rows: int, num_kv_heads: int, dim: int, num_processors: int) -> int:
    """Parts per sequence that keep the processors busy; small heads have less to read, and putting parts together costs
    them more. Seen on an H200."""
    enough = num_processors * (1.5 if dim <= 64 else 2.9)
    splits = 1
    while splits < MAX_SPLITS and num_rows * num_kv_heads * splits < enough:
        splits *= 2
    return splits


def choose_tiling(programs: int, dim: int, itemsize: int) -> Tiling:
    """The fastest of a sweep on an H200 (14/2 heads of 64; 16/8 of 128). Small tiles let several programs share a
    processor, which evens out sequences of different length; with very many programs the smallest do it best. Wide
    heads must fit."""
    if dim * itemsize <= 128:
        return 128, 4, 3
    if dim * itemsize <= 256:
        return (32, 1, 4) if programs >= MANY_PROGRAMS else (64, 2, 3)
    return (64, 4, 3) if dim * itemsize <= 512 else (32, 4, 3)


@dataclass(frozen=True)
class Pages:
    """A layer's cache and who is where in it."""

    cache: Tensor  # [2, Hkv, pages, page size, D]
    table: Tensor  # [slots, width] int32
    slots: Tensor  # [B]
    lengths: Tensor  # [slots], the new token counted
    splits: int


def paged_attention(
    query: Tensor, pages: Pages, scaling: float, window: int | None, tiling: Tiling | None = None
) -> Tensor:
    """[B, H, D] of `query` [B, H, D], any strides but the last; the new token is in the cache. A row of length 0 gets
    zeros."""
    return _launch(query, query.shape[1], pages, scaling, window, None, None, tiling)


def rotate_and_attend(
    qkv: Tensor,  # [B, H + 2·Hkv, D]
    pages: Pages,
    rotary: Rotary,
    norms: HeadNorms | None,
    scaling: float,
    window: int | None,
    tiling: Tiling | None = None,
) -> Tensor:
    """[B, H, D]; the new keys, rotated (and normed), and values are stored on the way."""
    num_heads = qkv.shape[1] - 2 * pages.cache.shape[1]
    return _launch(qkv, num_heads, pages, scaling, window, rotary, norms, tiling)


def _launch(
    rows: Tensor,
    num_heads: int,
    pages: Pages,
    scaling: float,
    window: int | None,
    rotary: Rotary | None,
    norms: HeadNorms | None,
    tiling: Tiling | None,
) -> Tensor:
    count, dim, cache, splits = rows.shape[0], rows.shape[2], pages.cache, pages.splits
    num_kv, group = cache.shape[1], num_heads // cache.shape[1]
    block, warps, stages = tiling or choose_tiling(count * num_kv * splits, dim, cache.element_size())
    out = rows.new_empty(count, num_heads, dim)
    parts, sums = out, out
    if splits > 1:
        parts = rows.new_empty(count, num_heads, splits, dim, dtype=torch.float32)
        sums = rows.new_empty(count, num_heads, splits, dtype=torch.float32)
    cos, sin, _ = rotary or (rows, rows, rows)
    query_norm, key_norm, eps = norms or (rows, rows, 0.0)
    padded = max(16, triton.next_power_of_2(dim))
    _attend[(num_kv, splits, count)](  # rows last: the longest sequences, which the scheduler puts first, start first
        rows,
        cache,
        pages.table,
        pages.slots,
        pages.lengths,
        cos,
        sin,
        query_norm,
        key_norm,
        parts,
        sums,
        scaling * 1.4426950408889634,  # to powers of two
        window if window is not None else 1 << 30,
        eps,
        rows.stride(0),
        rows.stride(1),
        cache.stride(0),
        cache.stride(1),
        pages.table.stride(0),
        ROTATES=rotary is not None,
        NORMS=norms is not None,
        GROUP=group,
        ROWS=max(16, triton.next_power_of_2(group)),
        DIM=dim,
        PADDED=padded,
        PAGE=cache.shape[3],
        BLOCK=block,
        SPLITS=splits,
        num_warps=warps,
        num_stages=stages,
    )
    if splits > 1:
        _combine[(count, num_heads)](parts, sums, out, DIM=dim, PADDED=padded, SPLITS=splits, num_warps=1)
    return out


# fmt: off
@triton.jit
def _attend(
    rows_ptr, cache_ptr, table_ptr, slots_ptr, lengths_ptr, cos_ptr, sin_ptr, query_norm_ptr, key_norm_ptr, out_ptr,
    sums_ptr, scale, window, eps, row_stride, row_head, value_stride, head_stride, table_row,
    ROTATES: tl.constexpr, NORMS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr,
    PADDED: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):
    # fmt: on
    kv_head, split, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    num_kv = tl.num_programs(0)
    slot = tl.load(slots_ptr + row)
    length = tl.load(lengths_ptr + slot).to(tl.int32)
    member = tl.arange(0, ROWS)
    cols = tl.arange(0, PADDED)
    head = kv_head * GROUP + member
    dtype = cache_ptr.dtype.element_ty
    rows_ptr += row * row_stride
    table_ptr += slot * table_row
    keys_ptr = cache_ptr + kv_head.to(tl.int64) * head_stride
    values_ptr = keys_ptr + value_stride
    is_query = member < GROUP
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, PADDED], tl.float32)
    if ROTATES:
        past = tl.maximum(length - 1, 0)
        angle = (past * (DIM // 2)).to(tl.int64)
        key_head = num_kv * GROUP + kv_head + tl.zeros([1], tl.int32)
        one = tl.zeros([1], tl.int32) == 0
        cos_ptr, sin_ptr = cos_ptr + angle, sin_ptr + angle
        query = _rotated(
            rows_ptr, row_head, head, is_query, cos_ptr, sin_ptr, query_norm_ptr, eps, NORMS, DIM, PADDED
        )
        key = _rotated(rows_ptr, row_head, key_head, one, cos_ptr, sin_ptr, key_norm_ptr, eps, NORMS, DIM, PADDED)
        value_ptr = rows_ptr + (num_kv * GROUP + num_kv + kv_head) * row_head
        value = tl.load(value_ptr + cols, mask=cols < DIM, other=0.0)[None, :]
        owns = (split == SPLITS - 1) & (length > 0)
        new_page = tl.load(table_ptr + past // PAGE).to(tl.int64)
        new_place = ((new_page * PAGE + past % PAGE) * DIM + cols)[None, :]
        kept = (cols < DIM)[None, :] & owns
        tl.store(keys_ptr + new_place, key.to(dtype), mask=kept)
        tl.store(values_ptr + new_place, value.to(dtype), mask=kept)
        score = tl.sum(query.to(tl.float32) * key.to(tl.float32), axis=1) * scale
        highest = tl.where(owns, score, highest)
        total = tl.where(owns, 1.0, total)
        mixed = tl.where(owns, mixed + value.to(tl.float32), mixed)
    else:
        past = length
        inside = is_query[:, None] & (cols < DIM)[None, :]
        query = tl.load(rows_ptr + head[:, None] * row_head + cols[None, :], mask=inside, other=0.0)
    query = query.to(dtype)

    first = tl.minimum(tl.maximum(length - window, 0), past)
    share = tl.cdiv(tl.cdiv(past - first, SPLITS), BLOCK) * BLOCK
    start = first + split * share
    end = tl.minimum(start + share, past)
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

    here = row * num_kv * GROUP + head
    _write(out_ptr, sums_ptr, here, split, is_query, mixed, highest, total, DIM, PADDED, SPLITS)


@triton.jit
def _write(
    out_ptr,
    sums_ptr,
    here,
    split,
    is_query,
    mixed,
    highest,
    total,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """The result itself, or this part of it with its log-sum."""
    cols = tl.arange(0, PADDED)
    safe = tl.where(total > 0, total, 1.0)
    mixed = mixed / safe[:, None]
    written = is_query[:, None] & (cols < DIM)[None, :]
    if SPLITS == 1:
        tl.store(out_ptr + here[:, None] * DIM + cols[None, :], mixed.to(out_ptr.dtype.element_ty), mask=written)
    else:
        part = here * SPLITS + split
        tl.store(out_ptr + part[:, None] * DIM + cols[None, :], mixed, mask=written)
        log_total = tl.where(total > 0, highest + tl.log2(safe), float("-inf"))
        tl.store(sums_ptr + part, log_total, mask=is_query)


@triton.jit
def _rotated(
    rows_ptr,
    row_head,
    head,
    exists,
    cos_ptr,
    sin_ptr,
    norm_ptr,
    eps,
    NORMS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Heads [n, DIM] of one token, normed where NORMS, then rotated; in their own type."""
    cols = tl.arange(0, PADDED)
    in_dim = cols < DIM
    is_low = cols < DIM // 2
    partner = tl.where(is_low, cols + DIM // 2, cols - DIM // 2)
    mask = exists[:, None] & in_dim[None, :]
    own = tl.load(rows_ptr + head[:, None] * row_head + cols[None, :], mask=mask, other=0.0)
    other = tl.load(rows_ptr + head[:, None] * row_head + partner[None, :], mask=mask, other=0.0)
    dtype = own.dtype
    own, other = own.to(tl.float32), other.to(tl.float32)
    if NORMS:
        scale = tl.rsqrt(tl.sum(own * own, axis=1) / DIM + eps)[:, None]
        for_own = tl.load(norm_ptr + cols, mask=in_dim, other=0.0).to(tl.float32)[None, :]
        for_other = tl.load(norm_ptr + partner, mask=in_dim, other=0.0).to(tl.float32)[None, :]
        own = ((own * scale).to(dtype).to(tl.float32) * for_own).to(dtype).to(tl.float32)
        other = ((other * scale).to(dtype).to(tl.float32) * for_other).to(dtype).to(tl.float32)
    angle = tl.where(is_low, cols, partner)
    cos = tl.load(cos_ptr + angle, mask=in_dim, other=0.0)[None, :]
    sin = tl.load(sin_ptr + angle, mask=in_dim, other=0.0)[None, :]
    return (own * cos + other * tl.where(is_low[None, :], -sin, sin)).to(dtype)


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
