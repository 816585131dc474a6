"""The rollout engine and its sampling."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass
class ValSamplingConfig:
    do_sample: bool = False
    """False: greedy."""
    n: int = 1
    """Samples per validation prompt."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1


@dataclass
class RolloutConfig:
    name: Literal["native", "hf"] = "native"
    """The rollout engine. `hf` is plain transformers `generate`: slow, for comparison."""
    n: int = 8
    """Samples per prompt: the group of GRPO and RLOO."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    """-1: off."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the likeliest. 0: off."""
    stop: list[str] = field(default_factory=list)
    """Strings that end a response."""
    max_num_seqs: int = 256
    """Sequences decoded at once."""
    max_num_batched_tokens: int = 8192
    """Tokens one forward pass may hold."""
    block_size: int = 16
    """Tokens per KV page."""
    gpu_memory_utilization: float = 0.5
    """Share of a GPU's memory the engine's KV cache may take."""
    kv_cache_gb: float = 2.0
    """Size limit of the KV cache on a CPU."""
    val_kwargs: ValSamplingConfig = field(default_factory=ValSamplingConfig)

    @property
    def is_unfiltered(self) -> bool:
        """Whether tokens are drawn from the policy itself; with filters, sampler and trainer differ by design."""
        return self.top_p == 1.0 and self.top_k == -1 and self.min_p == 0.0
