"""A hosted engine around the toy backend, in a real process, and a module whose weights it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from podium.engines.rollout.host.records import HostSettings
from podium.engines.rollout.hosted import HostedEngine, Limits
from podium.engines.rollout.process import HostProcess
from podium.engines.rollout.shared_weights import Outline


class TinyModule(nn.Module):
    """Two layers, the second tied to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=True)
        self.tied = nn.Linear(3, 3, bias=False)
        self.tied.weight = self.first.weight


def start(
    silence_s: float = 300.0, max_restarts: int = 2, tensor_parallel_size: int = 1, **faults: Any
) -> HostedEngine:
    """An engine around the toy; `faults` are what its backend does wrong."""
    settings = HostSettings(
        engine="toy_backend:ToyBackend",
        model="",
        dtype="float32",
        device="cpu",
        vocab_size=1000,
        max_positions=10_000,
        eos_token_ids=(0,),
        trust_remote_code=False,
        tensor_parallel_size=tensor_parallel_size,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        gpu_memory_utilization=0.5,
        kv_cache_gb=1.0,
        sleeps=True,
        engine_kwargs=faults,
        path=str(Path(__file__).parent),
    )
    limits = Limits(start_s=600.0, silence_s=300.0, max_restarts=max_restarts)

    def process() -> HostProcess:
        return HostProcess(settings, "", limits.start_s, limits.silence_s)

    return HostedEngine(settings, process, Outline.of(TinyModule()), limits)
