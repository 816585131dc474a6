from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from podium.engines.rollout.native import lean_ops
from podium.engines.rollout.native.gpu.elementwise import copy_pages
from podium.engines.rollout.native.gpu.paged_attention import Pages, choose_splits, paged_attention, rotate_and_attend

PAGE = 4


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(14, 2, 64), (4, 4, 24), (16, 8, 128), (32, 1, 64)])
@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_equals_scaled_dot_product_attention(
    heads: int, kv_heads: int, dim: int, splits: int, window: int | None, dtype: torch.dtype, device: torch.device
) -> None:
    if device.type == "cpu" and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter does not multiply bfloat16 matrices")
    torch.manual_seed(0)
    lengths = [1, 130, 0, 37, 64]
    slots = torch.tensor([3, 0, 5, 2, 4], device=device)  # row -> slot
    width = -(-max(lengths) // PAGE)
    pages = 6 * width
    cache = torch.randn(2, kv_heads, pages, PAGE, dim, device=device).to(dtype)
    table = torch.randperm(pages, device=device).view(6, width).to(torch.int32)
    known = torch.full((6,), 999, device=device)
    known[slots] = torch.tensor(lengths, device=device)
    wide = torch.randn(len(lengths), heads + 3, dim, device=device).to(dtype)
    query = wide[:, :heads]
    out = paged_attention(query, Pages(cache, table, slots, known, splits), 0.2, window)
    for row, length in enumerate(lengths):
        if length == 0:
            assert out[row].eq(0).all()
            continue
        first = 0 if window is None else max(0, length - window)
        keys, values = cache[:, :, table[slots[row]].long()].flatten(2, 3)[:, :, first:length].float()
        expected = F.scaled_dot_product_attention(
            query[row, :, None].float(), keys, values, scale=0.2, enable_gqa=True
        ).squeeze(1)
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(out[row].float(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(14, 2, 64), (4, 2, 24), (16, 8, 128)])
@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("with_norms", [True, False])
def test_rotating_storing_and_attending_in_one_equals_one_after_the_other(
    heads: int, kv_heads: int, dim: int, splits: int, window: int | None, with_norms: bool, device: torch.device
) -> None:
    torch.manual_seed(0)
    lengths = torch.tensor([1, 130, 0, 37, 64, 5], device=device)
    slots = torch.tensor([3, 1, 2, 0], device=device)
    caches = torch.randn(2, kv_heads, 6 * 33, PAGE, dim, device=device).expand(2, -1, -1, -1, -1, -1).clone()
    table = torch.randperm(6 * 33, device=device).view(6, 33).to(torch.int32)
    qkv = torch.randn(4, heads + 2 * kv_heads, dim, device=device)
    angles = torch.randn(200, dim // 2, device=device)
    norms = (torch.randn(dim, device=device), torch.randn(dim, device=device), 1e-6) if with_norms else None
    out = rotate_and_attend(
        qkv.clone(),
        Pages(caches[0], table, slots, lengths, splits),
        (angles.cos(), angles.sin(), slots),
        norms,
        0.2,
        window,
    )
    runs = lengths[slots] > 0
    position = (lengths[slots] - 1)[runs]
    places = table[slots[runs], position // PAGE].long() * PAGE + position % PAGE
    rotary = lean_ops.rows_of_rotary(angles.cos(), angles.sin(), position)
    rotated = qkv[runs].clone()
    lean_ops.rotate_and_store(rotated, places, rotary, norms, caches[1])
    expected = paged_attention(rotated[:, :heads], Pages(caches[1], table, slots[runs], lengths, splits), 0.2, window)
    torch.testing.assert_close(out[runs], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(caches[0], caches[1], atol=1e-5, rtol=1e-5)
    assert out[~runs].eq(0).all()


def test_small_batches_are_split_until_the_processors_have_work() -> None:
    assert choose_splits(256, 8, 128, 132) == choose_splits(256, 2, 64, 132) == 1
    assert choose_splits(16, 2, 64, 132) * 16 * 2 > 132
    assert choose_splits(32, 8, 128, 132) > choose_splits(128, 8, 128, 132)
    assert choose_splits(1, 1, 128, 132) <= 16


def test_pages_are_copied_in_every_layer(device: torch.device) -> None:
    layers = torch.randn(3, 2, 2, 6, PAGE, 8, device=device)
    before = layers.clone()
    copy_pages(layers, torch.tensor([0, 1, 1], device=device), torch.tensor([3, 4, 5], device=device))
    assert layers[:, :, :, 3].equal(before[:, :, :, 0])
    assert layers[:, :, :, 4].equal(before[:, :, :, 1]) and layers[:, :, :, 5].equal(before[:, :, :, 1])
    assert layers[:, :, :, :3].equal(before[:, :, :, :3])
