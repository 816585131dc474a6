"""Which rows go through the model together.

Rows are cut into micro-batches of at most so many tokens (or rows), of about equal cost, the costliest first. How they
are cut decides speed and memory, never the result. Every rank needs the same number of micro-batches, because each one
is a round of collectives: `stretch_to` brings a rank to the number that the fullest one needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from podium.algorithms.balance import get_seqlen_balanced_partitions
from podium.errors import ConfigError


@dataclass(frozen=True)
class MicroBatchLimits:
    """A token budget, or a number of rows when given."""

    max_tokens: int = 16384
    max_rows: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens_per_micro_batch is {self.max_tokens}; it must be at least 1.")
        if self.max_rows is not None and self.max_rows < 1:
            raise ConfigError(f"micro_batch_size_per_gpu is {self.max_rows}; it must be at least 1, or null.")


def cut_into_micro_batches(lengths: Sequence[int], limits: MicroBatchLimits, costs: Sequence[float]) -> list[list[int]]:
    """Item numbers of each micro-batch, as few as the limits allow. An item past the budget gets one of its own.

    An item is a row, or rows that stay together (units.py); it has `lengths` tokens and a cost.
    """
    if not lengths:
        return []
    if limits.max_rows is not None:
        return _by_rows(lengths, limits.max_rows)
    num_parts = max(-(-sum(lengths) // limits.max_tokens), 1)
    while num_parts < len(lengths):
        parts = _balanced(costs, num_parts)
        if _fits(parts, lengths, limits.max_tokens):
            return parts
        num_parts += 1 + num_parts // 8
    return _balanced(costs, len(lengths))


def stretch_to(
    parts: list[list[int]],
    num_parts: int,
    lengths: Sequence[int],
    limits: MicroBatchLimits,
    costs: Sequence[float],
) -> list[list[int]]:
    """Exactly `num_parts` micro-batches, because another rank needs so many: cut finer, and leave the rest empty."""
    assert len(parts) <= num_parts
    if len(parts) < min(num_parts, len(lengths)):
        if limits.max_rows is not None:
            parts = _by_rows(lengths, -(-len(lengths) // num_parts))
        else:
            finer = _balanced(costs, min(num_parts, len(lengths)))
            parts = finer if _fits(finer, lengths, limits.max_tokens) else parts
    return parts + [[] for _ in range(num_parts - len(parts))]


def _fits(parts: list[list[int]], lengths: Sequence[int], max_tokens: int) -> bool:
    return all(len(rows) == 1 or sum(lengths[row] for row in rows) <= max_tokens for rows in parts)


def _by_rows(lengths: Sequence[int], max_rows: int) -> list[list[int]]:
    """Neighbours in length together: the longest rows of all ranks then fall into the same round."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    return [order[start : start + max_rows] for start in range(0, len(order), max_rows)]


def _balanced(costs: Sequence[float], num_parts: int) -> list[list[int]]:
    """Parts of about equal cost, the costliest first."""
    if num_parts == 1:
        return [list(range(len(costs)))]
    parts = get_seqlen_balanced_partitions(costs, num_parts, equal_size=False)
    return sorted(parts, key=lambda rows: -sum(costs[row] for row in rows))
