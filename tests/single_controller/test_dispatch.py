"""Splitting and gathering, without any worker."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from controller_toys import make_batch
from hypothesis import given, settings
from hypothesis import strategies as st

from podium.metric import Metric
from podium.protocol import DataProto
from podium.single_controller.dispatch import (
    Dispatch,
    Registration,
    gather_batches,
    gather_metrics,
    register,
    registered_methods,
    split_call,
)


def ids(batch: DataProto) -> list[str]:
    return list(batch.non_tensor_batch["id"])


@given(num_rows=st.integers(0, 9), num_parts=st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_contiguous_parts_are_nearly_equal_and_join_to_the_original(num_rows: int, num_parts: int) -> None:
    batch = make_batch(num_rows)
    split = split_call(((batch,), {}), num_parts)
    parts = [args[0] for args, _ in split.calls]
    assert len(parts) == num_parts
    assert max(len(part) for part in parts) - min(len(part) for part in parts) <= 1
    joined = gather_batches(parts, split, "method")
    assert joined is not None
    assert ids(joined) == ids(batch)
    assert torch.equal(joined.batch["x"], batch.batch["x"])


@given(data=st.data(), num_rows=st.integers(0, 9), num_parts=st.integers(1, 4), per_row=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_a_given_partition_is_followed_and_undone(
    data: st.DataObject, num_rows: int, num_parts: int, per_row: int
) -> None:
    owner = [data.draw(st.integers(0, num_parts - 1)) for _ in range(num_rows)]
    order = data.draw(st.permutations(range(num_rows)))
    partition = [[row for row in order if owner[row] == part] for part in range(num_parts)]
    batch = make_batch(num_rows, dp_partition=partition)
    split = split_call(((), {"batch": batch}), num_parts)
    parts = [kwargs["batch"] for _, kwargs in split.calls]
    assert [ids(part) for part in parts] == [[f"row {row}" for row in rows] for rows in partition]
    assert all("dp_partition" not in part.meta_info for part in parts)
    assert "dp_partition" in batch.meta_info
    joined = gather_batches([part.repeat(per_row) for part in parts], split, "method")
    assert joined is not None
    assert ids(joined) == ids(batch.repeat(per_row))


@pytest.mark.parametrize(
    ("partition", "complaint"),
    [
        ([[0, 1, 2]], "1 parts, but there are 2"),
        ([[0, 1], [1, 2]], "each of the 3 rows exactly once"),
        ([[0], [2]], "each of the 3 rows exactly once"),
        ([[0, 1], [3]], "each of the 3 rows exactly once"),
    ],
)
def test_a_partition_that_loses_or_doubles_rows_is_refused(partition: list[list[int]], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        split_call(((make_batch(3, dp_partition=partition),), {}), 2)


def test_all_batches_of_a_call_are_split_alike_and_other_arguments_go_to_all() -> None:
    split = split_call(((make_batch(3, dp_partition=[[2], [0, 1]]), "text"), {"more": make_batch(3), "flag": 1}), 2)
    for args, kwargs in split.calls:
        assert ids(args[0]) == ids(kwargs["more"])
        assert (args[1], kwargs["flag"]) == ("text", 1)


def test_batches_of_different_length_cannot_be_split_together() -> None:
    with pytest.raises(ValueError, match=r"equally many rows, got \[3, 2\]"):
        split_call(((make_batch(3), make_batch(2)), {}), 2)


def test_a_part_has_columns_and_meta_info_of_its_own_but_the_same_memory() -> None:
    batch = make_batch(4, note="kept")
    ((part,), _) = split_call(((batch,), {}), 1).calls[0]
    assert part.batch["x"].data_ptr() == batch.batch["x"].data_ptr()
    part.batch["new"] = torch.zeros(4)
    part.meta_info["new"] = 1
    part.non_tensor_batch["new"] = part.non_tensor_batch["id"]
    assert "new" not in batch.batch and "new" not in batch.meta_info and "new" not in batch.non_tensor_batch


def test_ranks_that_return_uneven_numbers_of_rows_cannot_be_put_back_in_order() -> None:
    batch = make_batch(4, dp_partition=[[0, 2], [1, 3]])
    split = split_call(((batch,), {}), 2)
    parts = [args[0] for args, _ in split.calls]
    with pytest.raises(ValueError, match=r"shrink\(\).*ranks got \[2, 2\] rows and returned \[2, 1\]"):
        gather_batches([parts[0], parts[1].slice(0, 1)], split, "shrink")


def test_results_of_the_wrong_kind_are_named() -> None:
    split = split_call(((make_batch(2),), {}), 2)
    with pytest.raises(ValueError, match=r"work\(\) .* rank 1 returned int"):
        gather_batches([make_batch(1), 3], split, "work")
    with pytest.raises(ValueError, match=r"work\(\) .* rank 0 returned \{'loss': 'float'\}"):
        gather_metrics([{"loss": 1.0}], "work")
    assert gather_batches([None, None], split, "work") is None


def test_metrics_are_merged_over_ranks_and_not_averaged_per_rank() -> None:
    merged = gather_metrics([{"loss": Metric.mean(9, 3)}, {"loss": Metric.mean(1, 1), "only": Metric.max(2)}], "work")
    assert merged["loss"].result() == 2.5
    assert merged["only"].result() == 2


def test_an_overriding_method_keeps_its_registration() -> None:
    class Base:
        @register(Dispatch.RANK_ZERO)
        def first(self) -> None: ...

        @register(Dispatch.ONE_TO_ALL, blocking=False)
        def second(self) -> None: ...

    class Derived(Base):
        def first(self) -> None: ...

        @register(Dispatch.RANK_ZERO)
        def second(self) -> None: ...

    assert registered_methods(Derived) == {
        "first": Registration(Dispatch.RANK_ZERO, True),
        "second": Registration(Dispatch.RANK_ZERO, True),
    }


def test_an_unknown_dispatch_mode_is_refused() -> None:
    mode: Any = "dp"
    with pytest.raises(ValueError, match=r"Dispatch.ONE_TO_ALL"):
        register(mode)
