"""The clock of the benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def timed(action: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    action()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
