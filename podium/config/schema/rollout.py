"""The rollout engine and its sampling."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


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
    name: Literal["native", "hf", "vllm", "sglang"] = "native"
    """The rollout engine. `hf` is plain transformers `generate`: slow, for comparison. `vllm` and `sglang` run in a
    process of their own."""
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
    stop_token_ids: list[int] = field(default_factory=list)
    """Tokens that end a response, beside the model's end-of-sequence tokens."""
    ignore_eos: bool = False
    """Write on past the end-of-sequence token."""
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
    nnodes: int = 0
    """Nodes of a pool that only generates; weights are broadcast to it. 0: each training worker generates too."""
    n_gpus_per_node: int = 1
    """Rollout workers per node of that pool: one engine each."""
    python: str = ""
    """The Python that has vLLM or SGLang, so that their pins need not fit the trainer's. Empty: the trainer's own."""
    url: str = ""
    """With `sglang`: a running server to use instead of starting an engine; see `weights_dir`."""
    weights_dir: str = ""
    """With `url`: a folder that the server sees too; each publish is a model folder in it. Empty: a temporary one."""
    tensor_model_parallel_size: int = 1
    """Workers that share one copy of the model, inside a vLLM or SGLang engine."""
    engine_kwargs: dict[str, Any] = field(default_factory=dict)
    """Further arguments of vLLM or SGLang, by their own names."""
    free_cache_engine: bool = True
    """vLLM and SGLang beside the trainer on a GPU give their memory back while it trains."""
    engine_start_timeout_s: float = 600.0
    """The longest a vLLM or SGLang engine may take to start."""
    engine_timeout_s: float = 300.0
    """A vLLM or SGLang engine that gives no sign of life for so long is replaced."""
    max_engine_restarts: int = 3
    """Replacements in a row, with no request finished in between, before the run gives up."""
    keep_weights: bool = True
    """With a pool of its own and `trainer.max_staleness`: keep the weights of samples made ahead, in the trainer's host
    memory, so that lost rollout workers can draw them again. False: losing them costs a restart of the whole run."""
    val_kwargs: ValSamplingConfig = field(default_factory=ValSamplingConfig)

    @property
    def is_unfiltered(self) -> bool:
        """Whether tokens are drawn from the policy itself; with filters, sampler and trainer differ by design."""
        return self.top_p == 1.0 and self.top_k == -1 and self.min_p == 0.0
