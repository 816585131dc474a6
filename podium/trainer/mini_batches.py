"""Which optimizer step and which rank each row of a batch belongs to.

The composition of a mini-batch depends on the prompts alone, never on the number of ranks; only then are loss and
gradients the same for every world size. Rows of one prompt stay together in a mini-batch, and on one rank where that
does not unbalance the ranks, because a train engine computes their prompt once. Ranks share each mini-batch by cost, so
that none waits for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from podium.algorithms import get_seqlen_balanced_partitions
from podium.protocol import DataProto

MAX_IMBALANCE = 1.02
"""Whole prompts are shared out only while the costliest rank is at most this much above the mean."""


def group_index(uids: Sequence[Any] | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The number of each row's prompt, in order of first appearance."""
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(uid, len(numbers)) for uid in uids], dtype=np.int64)


def assign_mini_batches(batch: DataProto, prompts_per_mini_batch: int) -> int:
    """Give each row its `mini_batch` number; returns how many there are."""
    numbers = group_index(batch.non_tensor_batch["uid"]) // prompts_per_mini_batch
    batch.put(mini_batch=torch.from_numpy(numbers))
    return int(numbers.max()) + 1 if len(numbers) else 0


def partition_over_ranks(batch: DataProto, costs: Sequence[float], ranks: int, balance: bool) -> list[list[int]]:
    """The rows of each rank: every mini-batch is shared out over all ranks."""
    parts: list[list[int]] = [[] for _ in range(ranks)]
    mini_batch = batch.tensors()["mini_batch"].numpy()
    groups = group_index(batch.non_tensor_batch["uid"])
    for number in np.unique(mini_batch):
        rows = np.flatnonzero(mini_batch == number).tolist()
        by_prompt: dict[int, list[int]] = {}
        for row in rows:
            by_prompt.setdefault(int(groups[row]), []).append(row)
        shares = _share_out(list(by_prompt.values()), costs, ranks, balance)
        if len(by_prompt) < ranks or (balance and _imbalance(shares, costs) > MAX_IMBALANCE):
            shares = _share_out([[row] for row in rows], costs, ranks, balance)
        for part, share in zip(parts, shares, strict=True):
            part.extend(share)
    return parts


def _share_out(units: list[list[int]], costs: Sequence[float], ranks: int, balance: bool) -> list[list[int]]:
    """The rows of each rank, units kept whole."""
    if balance and len(units) >= ranks:
        unit_costs = [sum(costs[row] for row in unit) for unit in units]
        numbers = get_seqlen_balanced_partitions(unit_costs, ranks, equal_size=False)
    else:
        numbers = [share.tolist() for share in np.array_split(np.arange(len(units)), ranks)]
    return [[row for number in share for row in units[number]] for share in numbers]


def _imbalance(shares: Sequence[Sequence[int]], costs: Sequence[float]) -> float:
    """The costliest rank over the mean."""
    totals = [sum(costs[row] for row in share) for share in shares]
    return max(totals) * len(totals) / max(sum(totals), 1e-12)


def seqlen_metrics(
    lengths: Sequence[int], parts: Sequence[Sequence[int]], prefix: str = "global_seqlen"
) -> dict[str, float]:
    """Tokens per rank: before balancing (rows in order) and after."""
    plain = [float(sum(lengths[i] for i in share)) for share in np.array_split(np.arange(len(lengths)), len(parts))]
    balanced = [float(sum(lengths[i] for i in part)) for part in parts]
    return {
        f"{prefix}/min": min(plain),
        f"{prefix}/max": max(plain),
        f"{prefix}/minmax_diff": max(plain) - min(plain),
        f"{prefix}/balanced_min": min(balanced),
        f"{prefix}/balanced_max": max(balanced),
        f"{prefix}/mean": sum(balanced) / len(balanced),
    }
