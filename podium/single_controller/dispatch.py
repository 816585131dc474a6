"""How a call on a group becomes calls on its workers, and their results one result.

`@register` marks a worker's method; the group binds every marked method. This file decides who gets which rows and puts
results back in order. It does not know whether workers are objects in this process or Ray actors, and does not send
anything.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from podium.metric import Metric, Metrics, merge_metrics

if TYPE_CHECKING:
    from podium.protocol import DataProto

PARTITION_KEY = "dp_partition"
_MARK = "__podium_registration__"

Call = tuple[tuple[Any, ...], dict[str, Any]]
F = TypeVar("F", bound=Callable[..., Any])


class Dispatch(Enum):
    ONE_TO_ALL = "one_to_all"
    """Every worker gets the same arguments; a list with every worker's result comes back."""
    RANK_ZERO = "rank_zero"
    """Only rank 0 is called; its result comes back."""
    DP_COMPUTE_PROTO = "dp_compute_proto"
    """Batches are split over data-parallel ranks; the batches they return are joined in the original row order."""
    DP_COMPUTE_METRIC = "dp_compute_metric"
    """Batches are split the same way; the metrics that ranks return are merged."""


@dataclass(frozen=True)
class Registration:
    mode: Dispatch
    blocking: bool


def register(dispatch_mode: Dispatch = Dispatch.ONE_TO_ALL, blocking: bool = True) -> Callable[[F], F]:
    """Bind a worker's method to its group. With `blocking=False` the group's method returns a future.

    A data-parallel method is called on every rank, also when the rank's share of a small batch is empty, because ranks
    meet in collectives. Each batch in its arguments is split into contiguous, nearly equal parts, or as
    `meta_info["dp_partition"]` says (for each rank the list of its rows); all other arguments go to every rank.
    """
    if not isinstance(dispatch_mode, Dispatch):
        raise ValueError(f"dispatch_mode must be one of {[str(m) for m in Dispatch]}, got {dispatch_mode!r}")

    def mark(function: F) -> F:
        setattr(function, _MARK, Registration(dispatch_mode, blocking))
        return function

    return mark


def registered_methods(cls: type) -> dict[str, Registration]:
    """The marked methods of a class. A method that overrides a marked one keeps the mark unless it sets its own."""
    found: dict[str, Registration] = {}
    for base in reversed(inspect.getmro(cls)):
        for name, member in vars(base).items():
            registration = getattr(member, _MARK, None)
            if isinstance(registration, Registration):
                found[name] = registration
    return found


# ---- splitting


@dataclass(frozen=True)
class Split:
    """The calls of the data-parallel ranks, and what is needed to undo the split."""

    calls: list[Call]
    partition: list[list[int]] | None  # None: contiguous parts, whose order is the original one


def split_call(call: Call, num_parts: int) -> Split:
    """One call per data-parallel rank."""
    from podium.protocol import DataProto

    args, kwargs = call
    batches = [value for value in (*args, *kwargs.values()) if isinstance(value, DataProto)]
    sizes = {len(batch) for batch in batches}
    if len(sizes) > 1:
        raise ValueError(f"batches of one call must have equally many rows, got {[len(batch) for batch in batches]}")
    given = [batch.meta_info[PARTITION_KEY] for batch in batches if PARTITION_KEY in batch.meta_info]
    partition = _checked_partition(given, sizes.pop(), num_parts) if given else None

    def parts(value: Any) -> list[Any]:
        return _split_batch(value, num_parts, partition) if isinstance(value, DataProto) else [value] * num_parts

    columns = [parts(value) for value in args]
    named = {name: parts(value) for name, value in kwargs.items()}
    calls: list[Call] = [
        (tuple(column[part] for column in columns), {name: column[part] for name, column in named.items()})
        for part in range(num_parts)
    ]
    return Split(calls, partition)


def share(value: Any) -> Any:
    """A batch for a worker in this process: own columns and meta_info, shared tensors. Other values as they are."""
    from podium.protocol import DataProto

    return _with_own_columns(value) if isinstance(value, DataProto) else value


def _checked_partition(given: Sequence[Any], num_rows: int, num_parts: int) -> list[list[int]]:
    partition = [[int(row) for row in rows] for rows in given[0]]
    if any([[int(row) for row in rows] for rows in other] != partition for other in given[1:]):
        raise ValueError(f"batches of one call carry different meta_info[{PARTITION_KEY!r}]; keep it in one of them")
    if len(partition) != num_parts:
        raise ValueError(
            f"meta_info[{PARTITION_KEY!r}] has {len(partition)} parts, but there are {num_parts} data-parallel ranks"
        )
    if sorted(row for rows in partition for row in rows) != list(range(num_rows)):
        raise ValueError(f"meta_info[{PARTITION_KEY!r}] must name each of the {num_rows} rows exactly once")
    return partition


def _split_batch(batch: DataProto, num_parts: int, partition: list[list[int]] | None) -> list[DataProto]:
    if num_parts == 1 and (partition is None or partition[0] == list(range(len(batch)))):
        return [_with_own_columns(batch)]
    if partition is None:
        return [_with_own_columns(part) for part in batch.chunk(num_parts)]
    return [_with_own_columns(batch.select_idxs(rows)) for rows in partition]


def _with_own_columns(batch: DataProto) -> DataProto:
    """Another batch over the same tensors. The partition stays behind: it speaks of the whole batch's rows."""
    from podium.protocol import DataProto

    return DataProto(
        batch=None if batch.batch is None else batch.batch.copy(),
        non_tensor_batch=dict(batch.non_tensor_batch),
        meta_info={key: value for key, value in batch.meta_info.items() if key != PARTITION_KEY},
    )


# ---- gathering


def gather_batches(results: Sequence[Any], split: Split, method: str) -> DataProto | None:
    """One batch in the original row order. A rank may return k rows per row it got, the same k on all ranks."""
    from podium.protocol import DataProto

    if all(result is None for result in results):
        return None
    for rank, result in enumerate(results):
        if not isinstance(result, DataProto):
            raise ValueError(
                f"{method}() is registered as DP_COMPUTE_PROTO and must return a DataProto on every rank; "
                f"data-parallel rank {rank} returned {type(result).__name__}"
            )
    if len(results) == 1 and split.partition is None:
        return results[0]  # type: ignore[no-any-return]
    joined = DataProto.concat(list(results))
    _join_metrics(joined, results)
    return joined if split.partition is None else _restore_order(joined, results, split.partition, method)


def _join_metrics(joined: DataProto, results: Sequence[DataProto]) -> None:
    """`concat` keeps the first rank's meta_info; metrics belong to all ranks."""
    parts = [result.meta_info["metrics"] for result in results if "metrics" in result.meta_info]
    if parts and all(isinstance(metric, Metric) for part in parts for metric in part.values()):
        joined.meta_info["metrics"] = merge_metrics(parts)


def _restore_order(
    joined: DataProto, results: Sequence[DataProto], partition: list[list[int]], method: str
) -> DataProto:
    import numpy as np

    num_rows = sum(len(rows) for rows in partition)
    per_row = len(joined) // num_rows if num_rows else 0
    if any(len(result) != per_row * len(rows) for result, rows in zip(results, partition, strict=True)):
        raise ValueError(
            f"{method}() must return the same number of rows for each row it gets, so that the order can be restored; "
            f"ranks got {[len(rows) for rows in partition]} rows and returned {[len(result) for result in results]}"
        )
    position = np.argsort(np.array([row for rows in partition for row in rows], dtype=np.int64))
    return joined.select_idxs((position[:, None] * per_row + np.arange(per_row)).reshape(-1))


def gather_metrics(results: Sequence[Any], method: str) -> Metrics:
    for rank, result in enumerate(results):
        if not isinstance(result, Mapping) or not all(isinstance(metric, Metric) for metric in result.values()):
            raise ValueError(
                f"{method}() is registered as DP_COMPUTE_METRIC and must return a dict of Metric values on every rank "
                f"(Metric.mean, Metric.sum, ...); data-parallel rank {rank} returned {_describe(result)}"
            )
    return merge_metrics(results)


def _describe(result: Any) -> str:
    if not isinstance(result, Mapping):
        return type(result).__name__
    return str({name: type(value).__name__ for name, value in result.items() if not isinstance(value, Metric)})
