"""A model and how it is held, sharded and optimized."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from podium.config.schema.names import ScheduleName


@dataclass
class ModelConfig:
    path: str = "builtin:tiny"
    """A Hugging Face folder, or `builtin:tiny`."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Compute type. Auto: bfloat16 on a GPU, float32 on a CPU. Master weights are float32 either way."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model folder."""
    enable_gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, a third more time."""


@dataclass
class OptimConfig:
    lr: float = 1e-6
    """Peak learning rate."""
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    """AdamW's decay rates."""
    weight_decay: float = 0.01
    """AdamW's decoupled weight decay."""
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
