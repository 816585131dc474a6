"""How fast an update was and what memory it took: the engine's own metrics.

MFU is the share of the device's peak that went into the model's FLOPs: true tokens only, a shared prompt once, nothing
for what gradient checkpointing computes twice. Where the peak is not known (a CPU) it is what a plain matrix product
reaches there. It measures whole updates, optimizer step and communication included.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterable

import torch
from tensordict import TensorDict

from podium.engines.train.flops import FlopsEstimate, Work, reachable_flops
from podium.engines.train.packing import response_tokens
from podium.engines.train.units import Unit
from podium.metric import Metric, Metrics

MFU = "mfu"
"""The role that updates gives it its place: `perf/mfu/<role>`."""


def work_of(rows: TensorDict, units: Iterable[Unit], flops: FlopsEstimate) -> Work:
    """A unit's cost is a·tokens + pairs."""
    units = list(units)
    tokens = float(sum(unit.tokens for unit in units))
    scored = float(response_tokens(rows).sum()) if len(rows) else 0.0
    return Work(tokens, scored, sum(unit.cost for unit in units) - flops.cost_factor * tokens)


class UpdateMeter:
    """Starts when it is made."""

    def __init__(self, flops: FlopsEstimate, device: torch.device) -> None:
        self.flops, self.device = flops, device
        self.peak = reachable_flops(device)
        self.start = time.perf_counter()

    def metrics(self, work: Work, share: float = 1.0) -> Metrics:
        """`share`: of the work, what this rank did."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        seconds = time.perf_counter() - self.start
        ideal = self.flops.update_work(work) * share / self.peak
        return {MFU: Metric.mean(ideal, seconds)} | memory_metrics(self.device)


def memory_metrics(device: torch.device) -> Metrics:
    """Peaks of this process, and of the device it drives."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    metrics = {"perf/cpu_memory_used_gb": Metric.max(peak / 2**30)}
    if device.type == "cuda":
        metrics["perf/max_memory_allocated_gb"] = Metric.max(torch.cuda.max_memory_allocated(device) / 2**30)
        metrics["perf/max_memory_reserved_gb"] = Metric.max(torch.cuda.max_memory_reserved(device) / 2**30)
    return metrics
