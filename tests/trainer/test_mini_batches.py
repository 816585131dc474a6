from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from podium.protocol import DataProto
from podium.trainer.mini_batches import assign_mini_batches, group_index, partition_over_ranks, seqlen_metrics


def make_batch(groups: list[int]) -> DataProto:
    uids = [f"u{i}" for i, size in enumerate(groups) for _ in range(size)]
    return DataProto.from_dict({"x": torch.arange(len(uids))}, {"uid": uids})


def test_groups_are_numbered_by_first_appearance() -> None:
    assert group_index(["b", "a", "b", "c"]).tolist() == [0, 1, 0, 2]


def test_a_mini_batch_holds_whole_groups_in_order() -> None:
    batch = make_batch([2, 3, 1, 2])
    assert assign_mini_batches(batch, 2) == 2
    assert batch.tensors()["mini_batch"].tolist() == [0, 0, 0, 0, 0, 1, 1, 1]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=8), st.integers(1, 4), st.integers(1, 5), st.booleans())
@settings(max_examples=60, deadline=None)
def test_ranks_share_out_every_mini_batch_and_lose_no_row(
    groups: list[int], per_mini_batch: int, ranks: int, balance: bool
) -> None:
    batch = make_batch(groups)
    count = assign_mini_batches(batch, per_mini_batch)
    costs = np.random.default_rng(0).integers(1, 100, len(batch)).tolist()
    parts = partition_over_ranks(batch, costs, ranks, balance)
    assert sorted(row for part in parts for row in part) == list(range(len(batch)))
    numbers = batch.tensors()["mini_batch"]
    for number in range(count):
        rows = [sum(int(numbers[row]) == number for row in part) for part in parts]
        assert sum(rows) == int((numbers == number).sum())
        if sum(rows) >= ranks:
            assert min(rows) >= 1, "no rank idles while another has two rows"


def test_balancing_evens_out_the_tokens_of_ranks() -> None:
    lengths = np.random.default_rng(1).lognormal(5, 1, 512).astype(int).tolist()
    batch = make_batch([8] * 64)
    assign_mini_batches(batch, 64)
    metrics = seqlen_metrics(lengths, partition_over_ranks(batch, lengths, 8, balance=True))
    assert metrics["global_seqlen/balanced_max"] <= 1.02 * metrics["global_seqlen/mean"]
    assert (
        metrics["global_seqlen/minmax_diff"]
        > metrics["global_seqlen/balanced_max"] - metrics["global_seqlen/balanced_min"]
    )
