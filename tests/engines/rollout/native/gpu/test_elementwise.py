from __future__ import annotations

import pytest
import torch

from podium.engines.rollout.native import lean_ops
from podium.engines.rollout.native.gpu import elementwise


def like(expected: torch.Tensor) -> dict[str, float]:
    return {"atol": 1e-5, "rtol": 1e-5} if expected.dtype == torch.float32 else {"atol": 2e-2, "rtol": 2e-2}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [32, 896, 1000])
@pytest.mark.parametrize("with_delta", [True, False])
def test_norm_and_residual_are_those_of_torch(
    dtype: torch.dtype, width: int, with_delta: bool, device: torch.device
) -> None:
    x, delta = torch.randn(2, 7, width, device=device).to(dtype)
    weight = torch.randn(width, device=device).to(dtype)
    mine, theirs = x.clone(), x.clone()
    out = elementwise.add_rms_norm(mine, delta if with_delta else None, weight, 1e-6)
    expected = lean_ops.add_rms_norm(theirs, delta if with_delta else None, weight, 1e-6)
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(out, expected, **like(expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gate_times_up_is_that_of_torch(dtype: torch.dtype, device: torch.device) -> None:
    gate_up = torch.randn(5, 2 * 1300, device=device).to(dtype)
    expected = lean_ops.silu_mul(gate_up.clone())
    torch.testing.assert_close(elementwise.silu_mul(gate_up), expected, **like(expected))


@pytest.mark.parametrize("with_norms", [True, False])
@pytest.mark.parametrize(("queries", "kv_heads", "dim"), [(14, 2, 64), (16, 8, 128), (4, 2, 24)])
def test_rotation_norms_and_store_are_those_of_torch(
    with_norms: bool, queries: int, kv_heads: int, dim: int, device: torch.device
) -> None:
    tokens, pages, size = 6, 5, 4
    qkv = torch.randn(tokens, queries + 2 * kv_heads, dim, device=device)
    angles = torch.randn(50, dim // 2, device=device)
    norms = (torch.randn(dim, device=device), torch.randn(dim, device=device), 1e-6) if with_norms else None
    positions = torch.randint(50, (tokens,), device=device)
    places = torch.randperm(pages * size, device=device)[:tokens]
    results = []
    for ops in (elementwise, lean_ops):
        mine = qkv.clone()
        cache = torch.zeros(2, kv_heads, pages, size, dim, device=device)
        ops.rotate_and_store(mine, places, ops.rows_of_rotary(angles.cos(), angles.sin(), positions), norms, cache)
        results.append((mine, cache))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_a_token_without_a_place_is_not_stored(device: torch.device) -> None:
    cache = torch.zeros(2, 2, 3, 4, 8, device=device)
    qkv = torch.randn(2, 8, 8, device=device)
    angles = torch.zeros(3, 4, device=device)
    positions = torch.zeros(2, dtype=torch.int64, device=device)
    places = torch.tensor([-1, 5], device=device)
    rotary = elementwise.rows_of_rotary(angles.cos(), angles.sin(), positions)
    elementwise.rotate_and_store(qkv, places, rotary, None, cache)
    elementwise.store(qkv[:, 4:6], qkv[:, 6:], torch.tensor([7, -1], device=device), cache)
    flat = cache.flatten(2, 3)
    written = flat.abs().sum((0, 1, 3)).nonzero().squeeze(1)
    assert written.tolist() == [5, 7]
    torch.testing.assert_close(flat[:, :, 7], torch.stack([qkv[0, 4:6], qkv[0, 6:]]))


def test_embedding_takes_rows(device: torch.device) -> None:
    weight = torch.randn(50, 40, device=device)
    ids = torch.tensor([3, 49, 0, 3], device=device)
    assert elementwise.embed(ids, weight).equal(weight[ids])
