"""Statistics within groups of rows: the samples of one prompt.

Rows of a group may stand anywhere in the batch. Everything is a scatter over group numbers, in float64, so that neither
the order of rows nor the size of the rewards shows in the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

DEGENERATE_TOLERANCE = 1e-6
"""Rewards of a group are equal when they differ by no more than this, relative to max(1, |R|)."""

Index = np.ndarray[Any, np.dtype[Any]] | Tensor | Sequence[Any]
"""One group key per row: an object array of uids, an integer tensor, or a list."""


@dataclass(frozen=True)
class Groups:
    """`ids` [B] int64 numbers the groups from 0; `count` says how many there are."""

    ids: Tensor
    count: int

    @staticmethod
    def of(index: Index, device: torch.device) -> Groups:
        if isinstance(index, Tensor):
            distinct, ids = torch.unique(index, return_inverse=True)
            return Groups(ids.to(device), len(distinct))
        keys = np.asarray(index)
        if keys.dtype == object:
            keys = keys.astype(str)
        unique, inverse = np.unique(keys, return_inverse=True)
        return Groups(torch.from_numpy(inverse.reshape(-1).astype(np.int64)).to(device), len(unique))

    def sum(self, values: Tensor) -> Tensor:
        """[B, ...] -> [G, ...]."""
        return values.new_zeros((self.count, *values.shape[1:])).index_add(0, self.ids, values)

    def extreme(self, values: Tensor, which: Literal["amax", "amin"]) -> Tensor:
        """[B] -> [G]: the largest or smallest value."""
        start = values.new_full((self.count,), float("-inf") if which == "amax" else float("inf"))
        return start.scatter_reduce(0, self.ids, values, which)

    def size(self) -> Tensor:
        """[G] float64: rows of each group."""
        return self.sum(torch.ones_like(self.ids, dtype=torch.float64))

    def mean(self, values: Tensor) -> Tensor:
        """[B] -> [G]."""
        return self.sum(values) / self.size()

    def std(self, values: Tensor) -> Tensor:
        """[B] -> [G]: the sample standard deviation (n − 1); 0 for a group of one."""
        squares = (values - self.mean(values)[self.ids]).square()
        return (self.sum(squares) / (self.size() - 1).clamp(min=1)).sqrt()

    def degenerate(self, returns: Tensor) -> Tensor:
        """[B] -> [G] bool: all rewards equal within the tolerance. A group of one is."""
        largest, smallest = self.extreme(returns, "amax"), self.extreme(returns, "amin")
        scale = torch.maximum(largest.abs(), smallest.abs()).clamp(min=1.0)
        return largest - smallest <= DEGENERATE_TOLERANCE * scale


def degenerate_groups(returns: Tensor, index: Index) -> Tensor:
    """[B] bool: rows whose group's returns [B] are all equal, which therefore teach nothing (DAPO's dynamic sampling).

    Equal means within 1e-6·max(1, |R|). A group of one is degenerate. Yu et al., 2025, arXiv:2503.14476.
    """
    groups = Groups.of(index, returns.device)
    return groups.degenerate(returns.double())[groups.ids]


def zero_std_groups(returns: Tensor, index: Index) -> int:
    """How many groups are degenerate: the metric `critic/zero_std_groups`."""
    groups = Groups.of(index, returns.device)
    return int(groups.degenerate(returns.double()).sum())
