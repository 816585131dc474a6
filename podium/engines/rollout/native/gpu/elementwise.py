# mypy: ignore-errors
"""The small kernels between the matrix products of a step, each one pass over its data.

Embedding, residual add + RMS norm, rotary embedding + KV store, gated activation, copies of KV pages. Roundings are
those of the Hugging Face modules: sums in float32, results in the model's own type. Nothing here knows of sequences.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from podium.engines.rollout.native.lean_ops import HeadNorms, Rotary


def add_rms_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """x += delta (in place), then the RMS norm of x; x and delta [T, H]."""
    out = torch.empty_like(x)
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    _add_rms_norm[(rows,)](
        x,
        x if delta is None else delta,
        weight,
        out,
        eps,
        width,
        HAS_DELTA=delta is not None,
        BLOCK=block,
        num_warps=min(16, max(1, block // 256)),
    )
    return out


@triton.jit
def _add_rms_norm(x_ptr, delta_ptr, weight_ptr, out_ptr, eps, width, HAS_DELTA: tl.constexpr, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    inside = cols < width
    here = tl.program_id(0).to(tl.int64) * width + cols
    weight = tl.load(weight_ptr + cols, mask=inside, other=0.0)
    x = tl.load(x_ptr + here, mask=inside, other=0.0)
    if HAS_DELTA:
        delta = tl.load(delta_ptr + here, mask=inside, other=0.0)
        x = (x.to(tl.float32) + delta.to(tl.float32)).to(x.dtype)
        tl.store(x_ptr + here, x, mask=inside)
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / width + eps)
    normed = (wide * scale).to(x.dtype).to(tl.float32)
    tl.store(out_ptr + here, (normed * weight.to(tl.float32)).to(x.dtype), mask=inside)


def rows_of_rotary(cos: Tensor, sin: Tensor, positions: Tensor) -> Rotary:
    """The tables [positions, D / 2] made ready for tokens at `positions` [T]: each program reads its own row."""
    return cos, sin, positions


def rotate_and_store(
    qkv: Tensor,  # [T, H + 2·Hkv, D], rotated in place
    places: Tensor,  # [T] in the layer's cache; below 0: not stored
    rotary: Rotary,
    norms: HeadNorms | None,
    cache: Tensor,  # [2, Hkv, pages, page size, D]
) -> None:
    """Queries and keys are normed (where the family does) and rotated; keys and values go into the cache."""
    num_tokens, num_heads, dim = qkv.shape
    num_kv = cache.shape[1]
    query_norm, key_norm, eps = norms if norms is not None else (rotary[0], rotary[0], 0.0)
    heads_block = 16
    _rotate_and_store[(num_tokens, triton.cdiv(num_heads, heads_block))](
        qkv,
        rotary[2],
        places,
        rotary[0],
        rotary[1],
        query_norm,
        key_norm,
        cache,
        eps,
        cache.stride(1),
        NUM_QUERIES=num_heads - 2 * num_kv,
        NUM_KV=num_kv,
        DIM=dim,
        HALF=triton.next_power_of_2(dim // 2),
        HAS_NORM=norms is not None,
        HEADS=heads_block,
        num_warps=4,
    )


@triton.jit
def _rotate_and_store(
    qkv_ptr,
    positions_ptr,
    places_ptr,
    cos_ptr,
    sin_ptr,
    query_norm_ptr,
    key_norm_ptr,
    cache_ptr,
    eps,
    head_stride,
    NUM_QUERIES: tl.constexpr,
    NUM_KV: tl.constexpr,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HEADS: tl.constexpr,
):
    token = tl.program_id(0)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)  # queries, then keys, then values
    half = tl.arange(0, HALF)
    in_half = half < DIM // 2
    inside = (head < NUM_QUERIES + 2 * NUM_KV)[:, None] & in_half[None, :]
    here = qkv_ptr + (token.to(tl.int64) * (NUM_QUERIES + 2 * NUM_KV) + head)[:, None] * DIM + half[None, :]
    low = tl.load(here, mask=inside, other=0.0)
    high = tl.load(here + DIM // 2, mask=inside, other=0.0)
    dtype = low.dtype
    low, high = low.to(tl.float32), high.to(tl.float32)
    is_rotated = (head < NUM_QUERIES + NUM_KV)[:, None]
    if HAS_NORM:
        is_key = (head >= NUM_QUERIES)[:, None]
        scale = tl.rsqrt((tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)) / DIM + eps)[:, None]
        for_query_low = tl.load(query_norm_ptr + half, mask=in_half, other=0.0).to(tl.float32)[None, :]
        for_query_high = tl.load(query_norm_ptr + DIM // 2 + half, mask=in_half, other=0.0).to(tl.float32)[None, :]
        for_key_low = tl.load(key_norm_ptr + half, mask=in_half, other=0.0).to(tl.float32)[None, :]
        for_key_high = tl.load(key_norm_ptr + DIM // 2 + half, mask=in_half, other=0.0).to(tl.float32)[None, :]
        normed_low = (low * scale).to(dtype).to(tl.float32) * tl.where(is_key, for_key_low, for_query_low)
        normed_high = (high * scale).to(dtype).to(tl.float32) * tl.where(is_key, for_key_high, for_query_high)
        low = tl.where(is_rotated, normed_low.to(dtype).to(tl.float32), low)
        high = tl.where(is_rotated, normed_high.to(dtype).to(tl.float32), high)
    position = tl.load(positions_ptr + token)
    cos = tl.load(cos_ptr + position * (DIM // 2) + half, mask=in_half, other=0.0)[None, :]
    sin = tl.load(sin_ptr + position * (DIM // 2) + half, mask=in_half, other=0.0)[None, :]
    out_low = tl.where(is_rotated, low * cos - high * sin, low).to(dtype)
    out_high = tl.where(is_rotated, high * cos + low * sin, high).to(dtype)
    tl.store(here, out_low, mask=inside & is_rotated)
    tl.store(here + DIM // 2, out_high, mask=inside & is_rotated)
    place = tl.load(places_ptr + token)
    kept = inside & (head >= NUM_QUERIES)[:, None] & (place >= 0)
    row = cache_ptr + (head - NUM_QUERIES).to(tl.int64)[:, None] * head_stride + place * DIM + half[None, :]
    tl.store(row, out_low, mask=kept)
    tl.store(row + DIM // 2, out_high, mask=kept)


def store(key: Tensor, value: Tensor, places: Tensor, cache: Tensor) -> None:
    """Keys and values [T, Hkv, D], any strides but the last, into the layer's cache at `places` [T]."""
    num_tokens, num_kv, dim = key.shape
    _store[(num_tokens, num_kv)](
        key,
        value,
        places,
        cache,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        cache.stride(0),
        cache.stride(1),
        DIM=dim,
        BLOCK=triton.next_power_of_2(dim),
        num_warps=1,
    )


@triton.jit
def _store(
    key_ptr,
    value_ptr,
    places_ptr,
    cache_ptr,
    key_token,
    key_head,
    value_token,
    value_head,
    value_stride,
    head_stride,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    place = tl.load(places_ptr + token)
    cols = tl.arange(0, BLOCK)
    kept = (cols < DIM) & (place >= 0)
    key = tl.load(key_ptr + token * key_token + head * key_head + cols, mask=kept)
    value = tl.load(value_ptr + token * value_token + head * value_head + cols, mask=kept)
    row = cache_ptr + head * head_stride + place * DIM + cols
    tl.store(row, key.to(cache_ptr.dtype.element_ty), mask=kept)
    tl.store(row + value_stride, value.to(cache_ptr.dtype.element_ty), mask=kept)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) · up of [T, 2·I]: [T, I]."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    block = min(1024, triton.next_power_of_2(width))
    _silu_mul[(rows, triton.cdiv(width, block))](gate_up, out, width, BLOCK=block, num_warps=4)
    return out


@triton.jit
def _silu_mul(gate_up_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cols < width
    gate = tl.load(gate_up_ptr + row * 2 * width + cols, mask=inside, other=0.0)
    up = tl.load(gate_up_ptr + row * 2 * width + width + cols, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    activated = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    tl.store(out_ptr + row * width + cols, (activated * up.to(tl.float32)).to(gate.dtype), mask=inside)


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


def embed(ids: Tensor, weight: Tensor) -> Tensor:
    """Rows of `weight` [V, H] for `ids` [T]."""
    width = weight.shape[1]
    out = weight.new_empty(len(ids), width)
    _embed[(len(ids),)](ids, weight, out, width, BLOCK=triton.next_power_of_2(width), num_warps=4)
    return out


@triton.jit
def _embed(ids_ptr, weight_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    inside = cols < width
    token = tl.load(ids_ptr + row)
    tl.store(out_ptr + row * width + cols, tl.load(weight_ptr + token * width + cols, mask=inside), mask=inside)
