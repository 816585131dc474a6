"""What the trainer's side and the engine's process say to each other, and what an engine there must offer.

Both ends are ours and one is the parent of the other, on a private pair of sockets: messages are pickled tuples.

    to the engine      ("submit", [Ask, ...])   ("abort", [id, ...])   ("call", id, method, arguments)
    from the engine    ("done", Done)   ("failed", id, text)   ("answer", id, value)   ("error", id, text)   ("beat",)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from podium.engines.rollout.base import SamplingParams


@dataclass(frozen=True)
class HostSettings:
    """All an engine's process is told before it starts its engine."""

    engine: str
    """vllm, sglang, or a backend of one's own as module:class."""
    model: str
    dtype: str
    device: str
    """cpu or cuda."""
    vocab_size: int
    max_positions: int
    """Tokens a sequence may have."""
    eos_token_ids: tuple[int, ...]
    trust_remote_code: bool
    tensor_parallel_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    kv_cache_gb: float
    sleeps: bool
    """Whether memory is to be given back between generating."""
    engine_kwargs: dict[str, Any] = field(default_factory=dict)
    """The user's own settings of the engine, by its names."""
    path: str = ""
    """Where a backend of one's own is found."""
    folder: str = ""
    """A folder of the process's own, removed when it ends."""


@dataclass(frozen=True)
class Ask:
    """One sample to draw."""

    id: int
    prompt: list[int]
    params: SamplingParams
    seed: int


@dataclass(frozen=True)
class Done:
    """One sample drawn."""

    id: int
    token_ids: list[int]
    log_probs: list[float]
    raw_log_probs: list[float]
    stop_reason: str
    version: int


@dataclass(frozen=True)
class WeightFile:
    """Some tensors as bytes in shared memory: where, how many, and what lies in them (see rollout.buckets)."""

    path: str
    num_bytes: int
    entries: list[tuple[str, list[int], str]]


Received = dict[str, str]
"""Of each tensor an engine's worker took in: a digest of sampled values."""


class Backend(Protocol):
    """An engine inside its process. Each method is a coroutine of the process's one event loop."""

    async def start(self) -> dict[str, Any]:
        """Load the model; returns facts: `version` of the package, `max_model_len`."""

    async def generate(self, ask: Ask) -> Done: ...

    async def abort(self, ids: list[int]) -> None:
        """End requests now; their `generate` returns what they have."""

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def load(self, files: list[WeightFile], version: int) -> list[Received]:
        """Take a complete set of weights, drop what was computed from the old ones; what each worker received."""

    async def probe(self, tokens: list[int]) -> list[float]:
        """Log-probs of tokens 1 to P-1."""

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...

    async def check_alive(self) -> None:
        """Returns when the engine itself, not only this process, has answered."""

    async def close(self) -> None: ...
