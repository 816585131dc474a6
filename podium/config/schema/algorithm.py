"""Advantages, penalties and corrections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from podium.config.schema.names import ScheduleName


@dataclass
class KLControlConfig:
    type: Literal["fixed", "adaptive"] = "fixed"
    kl_coef: float = 0.001
    """β at the start."""
    target_kl: float = 0.1
    """adaptive: the KL to hold."""
    horizon: int = 10000
    """adaptive: trajectories over which β adapts."""
    schedule: ScheduleName | None = None
    """fixed: raise β from 0 to `kl_coef` in this shape."""
    warmup_ratio: float = 0.1
    """With `schedule`: the share of training the rise takes."""


@dataclass
class RefQualityConfig:
    enable: bool = False
    """Blend the reference model's likelihood of a response into its reward."""
    max_weight: float = 0.3
    warmup_ratio: float = 0.7
    schedule: ScheduleName = "linear"
    steps: int = 3
    """schedule step: number of steps."""
    granularity: Literal["sequence", "token"] = "sequence"


@dataclass
class RefAlignmentConfig:
    enable: bool = True
    max_weight: float = 0.2
    warmup_ratio: float = 0.7
    schedule: ScheduleName = "sigmoid"
    steps: int = 3
    entropy_high_threshold: float = 0.2
    """Active on a step whose mean token entropy is above this."""


@dataclass
class ReprAlignConfig:
    enable: bool = False
    """Reward responses whose hidden states point where the ground truth's do, while the policy is uncertain."""
    ref_alignment: RefAlignmentConfig = field(default_factory=RefAlignmentConfig)


@dataclass
class FilterGroupsConfig:
    enable: bool = False
    """DAPO's dynamic sampling: drop groups whose rewards are all equal and sample again."""
    max_num_gen_batches: int = 10
    """Generation rounds before the step goes on with what it has."""


@dataclass
class OverlongBufferConfig:
    enable: bool = False
    """DAPO's soft penalty on responses near the length limit."""
    len: int = 64
    """Tokens before the limit over which the penalty rises."""
    penalty_factor: float = 1.0


@dataclass
class RolloutCorrectionConfig:
    mode: Literal["off", "token", "sequence"] = "off"
    """Importance weights for the gap between the sampler's and the trainer's log-probs."""
    truncate: Literal["clip", "mask"] = "clip"
    threshold: float = 2.0
    """C: weights above it are clipped, or tokens outside [1/C, C] masked."""
    reject_low: float | None = None
    """Drop sequences whose geometric-mean ratio is below this."""
    reject_high: float | None = None
    """Drop sequences whose geometric-mean ratio is above this."""


@dataclass
class AlgorithmConfig:
    adv_estimator: str = "grpo"
    """A registered advantage estimator, or `module:function`."""
    gamma: float = 1.0
    lam: float = 1.0
    norm_adv_by_std_in_grpo: bool = True
    """False: Dr. GRPO."""
    use_kl_in_reward: bool = False
    """Subtract β·KL(π‖reference) from the token rewards."""
    kl_penalty: str = "kl"
    """Its estimator, as `actor.kl_loss_type`."""
    kl_ctrl: KLControlConfig = field(default_factory=KLControlConfig)
    missing_eos_penalty: float | None = None
    """Subtracted from the score of a response without an end-of-sequence token."""
    whiten_rewards: bool = False
    """Scale token rewards to unit variance, keeping their mean."""
    reward_weights: dict[str, float] = field(default_factory=dict)
    """gdpo: weight of each reward part by name."""
    ref_quality_score: RefQualityConfig = field(default_factory=RefQualityConfig)
    repr_align: ReprAlignConfig = field(default_factory=ReprAlignConfig)
    filter_groups: FilterGroupsConfig = field(default_factory=FilterGroupsConfig)
    overlong_buffer: OverlongBufferConfig = field(default_factory=OverlongBufferConfig)
    rollout_correction: RolloutCorrectionConfig = field(default_factory=RolloutCorrectionConfig)
