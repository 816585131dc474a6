"""Metric: a number that knows how it is reduced.

A metric is made where the number is known (a loss, an engine, the controller) and merged over micro-batches, ranks and
optimizer steps without anyone guessing a reduction from its name. It does not average means: a mean is a sum and a
weight until the very end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Reduction = Literal["mean", "sum", "max", "min", "last"]


@dataclass(frozen=True, slots=True)
class Metric:
    """`value` is a running sum for "mean" and "sum", else the extreme or the newest value seen."""

    reduction: Reduction
    value: float
    weight: float = 1.0

    @staticmethod
    def mean(total: float, weight: float) -> Metric:
        """The mean of what summed to `total` over `weight` items (tokens, rows, ...)."""
        return Metric("mean", float(total), float(weight))

    @staticmethod
    def sum(value: float) -> Metric:
        return Metric("sum", float(value))

    @staticmethod
    def max(value: float) -> Metric:
        return Metric("max", float(value))

    @staticmethod
    def min(value: float) -> Metric:
        return Metric("min", float(value))

    @staticmethod
    def last(value: float) -> Metric:
        return Metric("last", float(value))

    def merge(self, other: Metric) -> Metric:
        assert self.reduction == other.reduction, f"cannot merge {self.reduction} with {other.reduction}"
        match self.reduction:
            case "mean":
                return Metric("mean", self.value + other.value, self.weight + other.weight)
            case "sum":
                return Metric("sum", self.value + other.value)
            case "max":
                return self if self.value >= other.value else other
            case "min":
                return self if self.value <= other.value else other
            case "last":
                return other

    def result(self) -> float:
        if self.reduction == "mean":
            return self.value / self.weight if self.weight else 0.0
        return self.value


Metrics = dict[str, Metric]


def merge_metrics(parts: Iterable[Mapping[str, Metric]]) -> Metrics:
    """Merge name by name; a name that only some parts carry keeps what it has."""
    merged: Metrics = {}
    for part in parts:
        for name, metric in part.items():
            merged[name] = merged[name].merge(metric) if name in merged else metric
    return merged


def reduce_metrics(metrics: Mapping[str, Metric | float]) -> dict[str, float]:
    """The plain numbers, for the run log."""
    return {name: m.result() if isinstance(m, Metric) else float(m) for name, m in metrics.items()}
