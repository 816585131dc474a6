from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from podium.engines.rollout.native import kv
from podium.engines.rollout.native.kv import KVShape, PagedAttention, PagedKV
from podium.engines.rollout.native.scheduler import Chunk

HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 8, 4
NOBODY = np.zeros(0, dtype=np.int64)


def dense(query: Tensor, keys: Tensor, values: Tensor, position: int, scaling: float, window: int | None) -> Tensor:
    """Attention of one token [H, D] over [L, Hkv, D], written out."""
    first = 0 if window is None else max(0, position - window + 1)
    k, v = (x[first : position + 1].repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (keys, values))
    weights = (torch.einsum("hd,lhd->hl", query, k) * scaling).softmax(-1)
    return torch.einsum("hl,lhd->hd", weights, v)


@pytest.mark.parametrize("window", [None, 3, 100])
@pytest.mark.parametrize("tile_bytes", [1, 1 << 20], ids=["a tile per sequence", "one tile"])
def test_paged_attention_equals_attention_written_out(
    window: int | None, tile_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv, "CPU_TILE_BYTES", tile_bytes)
    torch.manual_seed(0)
    lengths = [13, 9, 8, 1]  # decoding, with the new token; longest first
    chunks = [(0, 3), (0, 6), (5, 11)]  # two whole prompts, and the rest of a longer one
    totals = [*lengths, *(end for _, end in chunks)]
    tables = np.random.default_rng(0).permutation(40)[: 7 * 4].reshape(7, 4)
    cache = PagedKV(KVShape(1, KV_HEADS, DIM, torch.float32), 40, BLOCK, torch.device("cpu"))
    keys, values = ([torch.randn(total, KV_HEADS, DIM) for total in totals] for _ in range(2))
    news = [range(total - 1, total) for total in lengths] + [range(*chunk) for chunk in chunks]
    for table, k, v, new in zip(tables, keys, values, news, strict=True):
        past = torch.arange(new.start)
        places = torch.from_numpy(table)[past // BLOCK] * BLOCK + past % BLOCK
        cache.store(0, places, k[past].transpose(0, 1), v[past].transpose(0, 1))

    plan = PagedAttention(
        cache,
        tables,
        np.array(lengths),
        [Chunk(i, start, np.zeros(end - start, dtype=np.int64), NOBODY) for i, (start, end) in enumerate(chunks)],
    )
    num_tokens = sum(map(len, news))
    query = torch.randn(num_tokens, HEADS, DIM)
    packed = [torch.cat([x[new.start : new.stop] for x, new in zip(xs, news, strict=True)]) for xs in (keys, values)]
    q, k, v = (x.transpose(0, 1)[None] for x in (query, *packed))
    out = plan(0, q, k, v, 0.3, window)

    expected, row = torch.empty(num_tokens, HEADS, DIM), 0
    for k, v, new in zip(keys, values, news, strict=True):
        for position in new:
            expected[row] = dense(query[row], k, v, position, 0.3, window)
            row += 1
    torch.testing.assert_close(out[0], expected, atol=1e-5, rtol=1e-5)


def test_copied_pages_hold_the_same_tokens_in_every_layer() -> None:
    cache = PagedKV(KVShape(3, KV_HEADS, DIM, torch.float32), 6, BLOCK, torch.device("cpu"))
    for layer in cache.layers:
        layer.normal_()
    cache.copy_blocks(torch.tensor([0, 1, 1]), torch.tensor([3, 4, 5]))
    for layer in cache.layers:
        assert layer[:, :, 3].equal(layer[:, :, 0])
        assert layer[:, :, 4].equal(layer[:, :, 1]) and layer[:, :, 5].equal(layer[:, :, 1])


def test_bytes_per_token_count_keys_and_values_of_all_layers() -> None:
    assert KVShape(3, 2, 8, torch.bfloat16).bytes_per_token() == 2 * 3 * 2 * 8 * 2
