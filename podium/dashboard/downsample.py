"""Long curves as few points: pure functions on arrays.

Peaks are what people look for, so each bucket of a curve keeps its lowest and its highest point. Means are for bars,
where the height of one step says little.
"""

from __future__ import annotations

import math
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SMOOTH_POINTS = 500
"""Smoothing means the same to the eye at any length: a longer curve is smoothed as if it had so many points."""


def clip_range(steps: Ints, values: Floats, first: int | None, last: int | None) -> tuple[Ints, Floats]:
    """The part of a curve between two steps, and one point beyond each end so that lines reach the edge."""
    start = 0 if first is None else max(0, int(np.searchsorted(steps, first, "left")) - 1)
    end = len(steps) if last is None else int(np.searchsorted(steps, last, "right")) + 1
    return steps[start:end], values[start:end]


def min_max(steps: Ints, values: Floats, points: int) -> tuple[Ints, Floats]:
    """About `points` points: the lowest and highest of each bucket, in order, with both ends of the curve.

    A bucket without a single number becomes one gap.
    """
    if len(steps) <= max(points, 4):
        return steps, values
    edges = np.linspace(0, len(steps), max(points // 2, 2) + 1).astype(np.int64)
    low, high = np.where(np.isnan(values), np.inf, values), np.where(np.isnan(values), -np.inf, values)
    keep = [0, len(steps) - 1]
    for start, end in pairwise(edges.tolist()):
        keep += [start + int(low[start:end].argmin()), start + int(high[start:end].argmax())]
    at = np.unique(np.array(keep, dtype=np.int64))
    return steps[at], values[at]


def bucket_edges(steps: Ints, buckets: int) -> Ints:
    return np.linspace(0, len(steps), min(buckets, max(len(steps), 1)) + 1).astype(np.int64)


def bucket_means(values: Floats, edges: Ints) -> Floats:
    """The mean of each bucket, numbers only; not-a-number where there is none."""
    present = ~np.isnan(values)
    sums = np.concatenate(([0.0], np.cumsum(np.where(present, values, 0.0))))
    counts = np.concatenate(([0], np.cumsum(present)))
    total, number = sums[edges[1:]] - sums[edges[:-1]], counts[edges[1:]] - counts[edges[:-1]]
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


def smooth(values: Floats, weight: float) -> Floats:
    """Exponential moving average that starts unbiased. Gaps stay gaps and do not pull."""
    if not weight or not len(values):
        return values
    decay = weight ** min(1.0, SMOOTH_POINTS / len(values))
    present = ~np.isnan(values)
    numbers = values[present].tolist()
    averages = np.array(list(accumulate(numbers, lambda mean, new: mean * decay + new * (1 - decay), initial=0.0))[1:])
    averages /= 1 - decay ** np.arange(1, len(numbers) + 1)
    result = np.full(len(values), np.nan)
    result[present] = averages
    return result


def to_json(values: Floats) -> list[float | None]:
    """Plain numbers; null for what is not one."""
    return [value if math.isfinite(value) else None for value in values.tolist()]
