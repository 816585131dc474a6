"""The attention plan of a decode step: one new token per row, pages through the device's own table."""

from __future__ import annotations

from torch import Tensor

from podium.engines.rollout.native.gpu.elementwise import store
from podium.engines.rollout.native.gpu.paged_attention import Pages, paged_attention, rotate_and_attend
from podium.engines.rollout.native.gpu.state import DeviceState
from podium.engines.rollout.native.kv import PagedKV
from podium.engines.rollout.native.lean_ops import HeadNorms, Rotary


class DecodePlan:
    """Reads nothing from the host, so that a CUDA graph can hold it."""

    def __init__(self, cache: PagedKV, state: DeviceState, rows: Tensor, places: Tensor, splits: int) -> None:
        self.cache, self.state, self.rows, self.places, self.splits = cache, state, rows, places, splits

    def cache_of(self, layer_idx: int) -> Tensor:
        return self.cache.layers[layer_idx]

    def _pages(self, layer_idx: int) -> Pages:
        state = self.state
        return Pages(self.cache.layers[layer_idx], state.table, self.rows, state.integers["lengths"], self.splits)

    def rotate_and_attend(
        self, layer_idx: int, qkv: Tensor, rotary: Rotary, norms: HeadNorms | None, scaling: float, window: int | None
    ) -> Tensor:
        """[B, H, D] from the projections [B, H + 2·Hkv, D]."""
        return rotate_and_attend(qkv, self._pages(layer_idx), rotary, norms, scaling, window)

    def attend(
        self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """[B, H, D]; the new keys and values are in the cache already."""
        return paged_attention(query, self._pages(layer_idx), scaling, window)

    def __call__(
        self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """As the Hugging Face module calls it: [1, heads, B, D] in, [1, B, H, D] out."""
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        store(k, v, self.places, self.cache.layers[layer_idx])
        return self.attend(layer_idx, q, k, v, scaling, window).unsqueeze(0)
