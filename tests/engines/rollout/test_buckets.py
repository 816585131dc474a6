from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from podium.engines.rollout.buckets import DTYPES, into_buckets

SHAPES = st.lists(st.integers(0, 9), max_size=3)


@given(st.lists(st.tuples(SHAPES, st.sampled_from(sorted(DTYPES))), max_size=12), st.integers(1, 400))
def test_what_goes_into_buckets_comes_out_in_order(tensors: list[tuple[list[int], str]], bucket_bytes: int) -> None:
    named = [(f"t{i}", (torch.rand(shape) * 200).to(DTYPES[kind])) for i, (shape, kind) in enumerate(tensors)]
    buckets = list(into_buckets(named, bucket_bytes))
    out = [pair for bucket in buckets for pair in bucket.tensors()]
    assert [name for name, _ in out] == [name for name, _ in named]
    assert all(a.equal(b) and a.dtype == b.dtype for (_, a), (_, b) in zip(out, named, strict=True))
    assert all(bucket.data.numel() <= bucket_bytes or len(bucket.entries) == 1 for bucket in buckets)


@pytest.mark.parametrize("stride", [(1, 8), (16, 2)])
def test_a_tensor_that_is_not_contiguous_arrives_as_its_values(stride: tuple[int, int]) -> None:
    tensor = torch.arange(200.0).as_strided((4, 6), stride)
    (bucket,) = into_buckets([("x", tensor)])
    assert next(bucket.tensors())[1].equal(tensor)
