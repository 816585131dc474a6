"""Megatron on a CPU: for tests and laptops.

Its sequence-parallel layers make their buffers on `torch.cuda.current_device()`, whatever device their tensors are on.
Where torch has no CUDA at all, that question is answered with the CPU, since otherwise it only raises. On a machine
with CUDA nothing here acts.
"""

from __future__ import annotations

import torch


def run_without_cuda() -> None:
    """For the rest of the process; calling it again changes nothing."""
    if not torch.cuda.is_available():
        torch.cuda.current_device = _cpu  # type: ignore[assignment]


def _cpu() -> torch.device:
    return torch.device("cpu")
