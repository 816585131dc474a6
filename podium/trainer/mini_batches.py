"""Which optimizer step and which rank each row of a batch belongs to.

The composition of a mini-batch depends on the prompts alone, never on the number of ranks; only then are loss and
gradients the same for every world size. Rows of one prompt stay together. Ranks share each mini-batch by cost, so that
none waits for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from podium.algorithms import get_seqlen_balanced_partitions
from podium.protocol import DataProto


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
    for number in np.unique(mini_batch):
        rows = np.flatnonzero(mini_batch == number).tolist()
        if balance and len(rows) >= ranks:
            shares = get_seqlen_balanced_partitions([costs[row] for row in rows], ranks, equal_size=False)
        else:
            shares = [share.tolist() for share in np.array_split(np.arange(len(rows)), ranks)]
        for part, share in zip(parts, shares, strict=True):
            part.extend(rows[i] for i in share)
    return parts


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
