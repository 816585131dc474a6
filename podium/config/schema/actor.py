"""What is trained, and the loss that trains it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from podium.config.schema.model import DeepSpeedConfig, FSDPConfig, MegatronConfig, ModelConfig, OptimConfig
from podium.config.schema.names import LossAggMode


@dataclass
class PolicyLossConfig:
    loss_mode: str = "vanilla"
    """A registered policy loss, or `module:function`."""
    tau_pos: float = 1.0
    """sapo: temperature for positive advantages."""
    tau_neg: float = 1.05
    """sapo: temperature for negative advantages."""
    clip_cov_ratio: float = 2e-4
    """clip_cov: share of tokens to exclude."""
    clip_cov_lb: float = 1.0
    """clip_cov: lower bound of the covariance band."""
    clip_cov_ub: float = 5.0
    """clip_cov: upper bound of the covariance band."""
    kl_cov_ratio: float = 2e-4
    """kl_cov: share of tokens to penalize."""
    ppo_kl_coef: float = 1.0
    """kl_cov: weight κ of the penalty."""
    dro_beta: float = 0.1
    """dro: weight β of the quadratic term."""


@dataclass
class ActorConfig:
    strategy: Literal["fsdp", "deepspeed", "megatron"] = "fsdp"
    """The train engine of actor and critic. `fsdp` is also a lone device's; `megatron` splits the reference too."""
    ppo_epochs: int = 1
    """Passes over each batch of rollouts."""
    ppo_mini_batch_size: int | None = None
    """Prompts per optimizer step. Null: the whole batch (strictly on-policy with one epoch)."""
    max_tokens_per_micro_batch: int = 16384
    """Tokens a device takes at once; decides speed and memory, never the result."""
    micro_batch_size_per_gpu: int | None = None
    """Samples a device takes at once; overrides the token budget."""
    clip_ratio: float = 0.2
    """PPO's ε, both sides."""
    clip_ratio_low: float | None = None
    """ε below 1. Null: `clip_ratio`."""
    clip_ratio_high: float | None = None
    """ε above 1. Null: `clip_ratio`."""
    clip_ratio_c: float = 3.0
    """Dual clip: bound of the loss at negative advantages."""
    policy_loss: PolicyLossConfig = field(default_factory=PolicyLossConfig)
    loss_agg_mode: LossAggMode = "token-mean"
    """How token losses become one number."""
    use_kl_loss: bool = False
    """Add KL(π‖reference) to the loss."""
    kl_loss_coef: float = 0.001
    """Its weight."""
    kl_loss_type: str = "low_var_kl"
    """Its estimator: kl, abs, mse, low_var_kl (k1, k2, k3); a trailing + takes k2's gradient."""
    entropy_coeff: float = 0.0
    """Weight of the entropy bonus."""
    grad_clip: float = 1.0
    """Largest gradient norm."""
    state_masking: bool = True
    """Leave what an environment wrote out of loss, KL, entropy, advantages and values."""
    shuffle: bool = False
    """Visit the mini-batches in another order each epoch."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    fsdp: FSDPConfig = field(default_factory=FSDPConfig)
    deepspeed: DeepSpeedConfig = field(default_factory=DeepSpeedConfig)
    megatron: MegatronConfig = field(default_factory=MegatronConfig)


@dataclass
class CriticConfig:
    enable: bool | None = None
    """Null: on when the advantage estimator needs values."""
    model: ModelConfig = field(default_factory=lambda: ModelConfig(path=""))
    """An empty path: the actor's."""
    ppo_epochs: int | None = None
    """Null: the actor's."""
    ppo_mini_batch_size: int | None = None
    """Prompts per optimizer step. Null: the actor's."""
    max_tokens_per_micro_batch: int | None = None
    """Null: the actor's."""
    micro_batch_size_per_gpu: int | None = None
    """Null: the actor's."""
    cliprange_value: float = 0.5
    """How far a value may move from its old one before the loss is clipped."""
    loss_agg_mode: LossAggMode = "token-mean"
    grad_clip: float = 1.0
    optim: OptimConfig = field(default_factory=lambda: OptimConfig(lr=1e-5))
    fsdp: FSDPConfig = field(default_factory=FSDPConfig)
    deepspeed: DeepSpeedConfig = field(default_factory=DeepSpeedConfig)
    megatron: MegatronConfig = field(default_factory=MegatronConfig)


@dataclass
class RefConfig:
    path: str = ""
    """The reference's folder. Empty: the actor's, which it then is at the start."""
    max_tokens_per_micro_batch: int | None = None
    """Null: the actor's."""
