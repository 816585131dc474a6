"""A model and how it is held, sharded and optimized."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from podium.config.schema.names import ScheduleName


@dataclass
class ModelConfig:
    path: str = "builtin:tiny"
    """A Hugging Face folder, a GGUF file, or `builtin:tiny`."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Compute type. Auto: bfloat16 on a GPU, float32 on a CPU. Master weights are float32 either way."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model folder."""
    enable_gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, a third more time."""
    lora_rank: int = 0
    """Train adapters of this rank and leave the model's own weights as they are. 0: train all weights."""
    lora_alpha: float = 16.0
    """An adapter counts alpha / rank times."""
    target_modules: list[str] = field(default_factory=lambda: ["all-linear"])
    """The layers that get adapters, by the ends of their names; `all-linear`: every one but the output head."""
    exclude_modules: list[str] = field(default_factory=list)
    """Layers that get none all the same."""
    modules_to_save: list[str] = field(default_factory=list)
    """Layers trained in full beside the adapters, such as `embed_tokens` or `lm_head`."""


@dataclass
class OptimConfig:
    name: str = "AdamW"
    """A class of torch.optim, or of torchao.optim where that is installed."""
    lr: float = 1e-6
    """Peak learning rate."""
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    """Decay rates, for an optimizer that has them."""
    weight_decay: float = 0.01
    """Weight decay (AdamW: decoupled from the gradient)."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the class, such as `momentum: 0.9`."""
    lr_warmup_steps: int = 0
    """Optimizer steps until the peak is reached."""
    warmup_schedule: ScheduleName = "linear"
    """The shape of the warm-up."""
    lr_decay: Literal["constant", "cosine", "linear"] = "constant"
    """The shape after the warm-up."""
    min_lr_ratio: float = 0.0
    """The decay ends at this share of the peak."""


@dataclass
class FSDPConfig:
    fsdp_size: int = -1
    """Ranks that share one copy of the parameters. -1: all; fewer: hybrid sharding; 1: each rank has all of them."""
    param_offload: bool = False
    """Keep parameters in host memory while the engine rests."""
    optimizer_offload: bool = False
    """Keep the optimizer's state in host memory while the engine rests."""
    reshard_after_forward: bool = True
    """Free gathered parameters between forward and backward."""
    forward_prefetch: bool = False
    """Ask for the next block's parameters before the present one computes. Helps where the host is late."""
    activation_offload: bool = False
    """Keep what the backward pass needs in host memory: less device memory, more time. Best with checkpointing."""
    use_torch_compile: bool = False
    """Compile the decoder blocks: faster and leaner on a GPU, a minute later to start."""
    ulysses_sequence_parallel_size: int = 1
    """Neighbouring ranks that share each sequence, for contexts too long for one device."""


@dataclass
class DeepSpeedConfig:
    """Read with `actor.strategy: deepspeed`."""

    zero_stage: int = 3
    """2: ranks share gradients and optimizer state; 3: the parameters too."""
    offload_optimizer: bool = False
    """Keep float32 masters and the optimizer's state in host memory, and step there."""
    zero_kwargs: dict[str, Any] = field(default_factory=dict)
    """Further settings of DeepSpeed's `zero_optimization` section, such as `reduce_bucket_size: 50000000`."""


@dataclass
class MegatronConfig:
    """Read with `actor.strategy: megatron`."""

    tensor_model_parallel_size: int = 1
    """Neighbouring ranks that hold one model, each a part of every layer. 1: every rank holds all of it."""
    sequence_parallel: bool = True
    """Between a layer's matrix products each of them has its stretch of the tokens: less memory for activations."""
    use_distributed_optimizer: bool = True
    """Replicas share the optimizer's state: each keeps and steps a part of the tensors."""
