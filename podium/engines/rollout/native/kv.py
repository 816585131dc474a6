"""The paged KV cache, and the attention plan that reads and writes it.

A plan serves one forward pass over packed tokens: one token for each decoding sequence, sequences of like length side
by side, then chunks of prompts. Decoding gathers the pages of a tile of sequences and runs two batched products, with
the query heads that share a KV head folded into rows. Whole prompts need no cache and go through PackedAttention.
Which page belongs to whom is decided in blocks.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PretrainedConfig

from podium.engines.rollout.native.blocks import IntArray
from podium.engines.rollout.native.scheduler import Chunk
from podium.engines.rollout.request import Array
from podium.models.attention import PackedAttention

CPU_TILE_BYTES = 3 << 20
"""Gathered KV of one tile: what stays in a core's cache between the gather and the products."""
CUDA_TILE_BYTES = 256 << 20


@dataclass(frozen=True)
class KVShape:
    """What one token takes."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @staticmethod
    def of(config: PretrainedConfig, dtype: torch.dtype) -> KVShape:
        text: Any = config.get_text_config()
        num_kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        return KVShape(text.num_hidden_layers, num_kv_heads, head_dim, dtype)

    def bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that take no memory on a CPU until they are written: torch.zeros would touch every page at once."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    num_bytes, alignment = math.prod(size) * dtype.itemsize, 64
    raw = np.zeros(num_bytes + alignment, dtype=np.uint8)
    start = -raw.ctypes.data % alignment
    return torch.from_numpy(raw[start : start + num_bytes]).view(dtype).view(size)


def to_device(values: Array, device: torch.device) -> Tensor:
    """A copy that does not make the host wait for the device."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


class PagedKV:
    """Keys and values of every layer, by page. Unwritten places are zero, so that a masked one never adds a NaN."""

    def __init__(self, shape: KVShape, num_blocks: int, block_size: int, device: torch.device) -> None:
        self.shape, self.num_blocks, self.block_size, self.device = shape, num_blocks, block_size, device
        size = (shape.num_layers, 2, shape.num_kv_heads, num_blocks, block_size, shape.head_dim)
        self.data = _zeros(size, shape.dtype, device)
        self.layers: list[Tensor] = list(self.data.unbind())
        self._scratch = torch.empty(0, dtype=shape.dtype, device=device)

    def copy_blocks(self, sources: Tensor, destinations: Tensor) -> None:
        for layer in self.layers:
            layer[:, :, destinations] = layer[:, :, sources]

    def clear(self) -> None:
        self.data.zero_()

    def store(self, layer_idx: int, places: Tensor, key: Tensor, value: Tensor) -> None:
        """Write key and value [Hkv, T, D] at `places` [T] (page times page size plus offset)."""
        keys, values = self.layers[layer_idx].flatten(2, 3)
        keys.index_copy_(1, places, key.to(keys.dtype))
        values.index_copy_(1, places, value.to(values.dtype))

    def gather(self, layer_idx: int, blocks: Tensor) -> Tensor:
        """Pages [n] of one layer, as [2, Hkv, n, block_size, D]; valid until the next gather."""
        layer = self.layers[layer_idx]
        numel = layer[:, :, :1].numel() * blocks.numel()
        if self._scratch.numel() < numel:
            self._scratch = self._scratch.new_empty(numel)
        pages = self._scratch[:numel].view(2 * self.shape.num_kv_heads, blocks.numel(), -1)
        torch.index_select(layer.flatten(3).flatten(0, 1), 1, blocks, out=pages)
        return pages.view(2, self.shape.num_kv_heads, blocks.numel(), self.block_size, -1)

    def tile_rows(self, blocks_per_row: int) -> int:
        """Sequences whose pages are gathered at once."""
        budget = CPU_TILE_BYTES if self.device.type == "cpu" else CUDA_TILE_BYTES
        row = 2 * self.shape.num_kv_heads * self.shape.head_dim * self.shape.dtype.itemsize * self.block_size
        return max(1, budget // (row * max(1, blocks_per_row)))


@dataclass(frozen=True)
class _Tile:
    """Decoding sequences [start, end) of the pack."""

    start: int
    end: int
    blocks: Tensor  # [n * width]
    lengths: Tensor  # [n]
    num_places: int


class PagedAttention:
    """The attention plan of one pass: stores the new keys and values, then attends through the pages."""

    def __init__(self, cache: PagedKV, tables: IntArray, lengths: IntArray, chunks: list[Chunk]) -> None:
        """`tables` [n + c, width] and `lengths` [n]: the pages of the n decoding sequences, longest first (with the new
        token), then of the chunks, whole prompts before the rest of longer ones."""
        self.cache = cache
        device, size = cache.device, cache.block_size
        num_decode = len(lengths)
        fresh = [chunk.tokens.size for chunk in chunks if chunk.start == 0]
        self.num_decode, self.num_fresh = num_decode, sum(fresh)
        self.packed = PackedAttention(fresh, device) if fresh else None

        last = lengths - 1
        places = [tables[np.arange(num_decode), last // size] * size + last % size]
        self.later: list[tuple[int, int, Tensor]] = []  # start, end in the prompt; its pages
        for table, chunk in zip(tables[num_decode:], chunks, strict=True):
            position = np.arange(chunk.start, chunk.end)
            places.append(table[position // size] * size + position % size)
            if chunk.start > 0:
                self.later.append((chunk.start, chunk.end, to_device(table[: -(-chunk.end // size)], device)))
        self.places = to_device(np.concatenate(places), device)
        self.tiles = self._cut_tiles(tables[:num_decode], lengths)
        self._masks: dict[tuple[int, int | None], Tensor] = {}

    def _cut_tiles(self, pages: IntArray, lengths: IntArray) -> list[_Tile]:
        tiles = []
        device = self.cache.device
        counts = (-(-lengths // self.cache.block_size)).tolist()
        start = 0
        while start < self.num_decode:
            width = counts[start]
            end = min(self.num_decode, start + self.cache.tile_rows(width))
            blocks = to_device(pages[start:end, :width].reshape(-1), device)
            places = width * self.cache.block_size
            tiles.append(_Tile(start, end, blocks, to_device(lengths[start:end], device), places))
            start = end
        return tiles

    def __call__(
        self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """As the Hugging Face module calls it: [1, heads, T, D] in, [1, T, H, D] out."""
        self.cache.store(layer_idx, self.places, key[0], value[0])
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        return self.attend(layer_idx, q, k, v, scaling, window).unsqueeze(0)

    def cache_of(self, layer_idx: int) -> Tensor:
        return self.cache.layers[layer_idx]

    def attend(
        self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """[T, H, D] from [T, heads, D]; the new keys and values are in the cache already."""
        if self.packed is not None and self.num_fresh == len(query):
            return self._fresh(layer_idx, query, key, value, scaling, window)
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        for tile in self.tiles:
            out[tile.start : tile.end] = self._decode(layer_idx, tile, query[tile.start : tile.end], scaling, window)
        row = self.num_decode
        if self.packed is not None:
            inside = slice(row, row + self.num_fresh)
            out[inside] = self._fresh(layer_idx, query[inside], key[inside], value[inside], scaling, window)
            row += self.num_fresh
        for start, end, blocks in self.later:
            inside = slice(row, row + end - start)
            out[inside] = self._chunk(layer_idx, query[inside].transpose(0, 1), start, end, blocks, scaling, window)
            row += end - start
        return out

    def _fresh(
        self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """Whole prompts, which see only themselves."""
        assert self.packed is not None
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (query, key, value))
        return self.packed(layer_idx, q, k, v, scaling, window).squeeze(0)

    def _decode(self, layer_idx: int, tile: _Tile, query: Tensor, scaling: float, window: int | None) -> Tensor:
        """One query [n, H, D] per sequence of the tile against its pages; [n, H, D]."""
        kv_heads, dim = self.cache.shape.num_kv_heads, self.cache.shape.head_dim
        n, places = tile.end - tile.start, tile.num_places
        keys, values = self.cache.gather(layer_idx, tile.blocks).view(2, kv_heads * n, places, dim)
        folded = (query * scaling).to(keys.dtype)
        folded = folded.unflatten(1, (kv_heads, -1)).transpose(0, 1).reshape(kv_heads * n, -1, dim)
        scores = torch.bmm(folded, keys.transpose(1, 2)).view(kv_heads, n, -1, places)
        scores += self._mask(tile, window)
        weights = scores.softmax(-1, dtype=torch.float32).to(values.dtype).view(kv_heads * n, -1, places)
        return torch.bmm(weights, values).view(kv_heads, n, -1, dim).transpose(0, 1).flatten(1, 2)

    def _mask(self, tile: _Tile, window: int | None) -> Tensor:
        """Additive [n, 1, places]: -inf past each sequence's end and before its window; made once for all layers."""
        entry = (tile.start, window)
        if entry not in self._masks:
            place = torch.arange(tile.num_places, device=tile.lengths.device)
            hidden = place >= tile.lengths[:, None]
            if window is not None:
                hidden |= place < tile.lengths[:, None] - window
            mask = torch.zeros(hidden.shape, dtype=self.cache.shape.dtype, device=hidden.device)
            self._masks[entry] = mask.masked_fill_(hidden, float("-inf")).unsqueeze(1)
        return self._masks[entry]

    def _chunk(
        self, layer_idx: int, query: Tensor, start: int, end: int, blocks: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """The rest of a prompt, or a part of it, against all its pages so far; [tokens, H, D]."""
        pages = self.cache.gather(layer_idx, blocks).flatten(2, 3)[:, :, :end].to(query.dtype)
        keys, values = pages.unsqueeze(1)
        position = torch.arange(start, end, device=query.device)[:, None]
        place = torch.arange(end, device=query.device)
        visible = place <= position
        if window is not None:
            visible &= place > position - window
        gqa = query.shape[0] != keys.shape[1]
        out = F.scaled_dot_product_attention(
            query.unsqueeze(0), keys, values, attn_mask=visible, scale=scaling, enable_gqa=gqa
        )
        return out.squeeze(0).transpose(0, 1)
