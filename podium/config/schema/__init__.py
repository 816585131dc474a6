"""The configuration: one dataclass per part, one docstring per field, one file per room.

These files say what can be set and what the default is. They do not say whether settings fit together (checks.py) nor
how files and `a.b=c` words become these objects (load.py). Defaults are resolved once, by load.py; nobody calls `.get`
with a default of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from podium.config.schema.actor import ActorConfig, CriticConfig, PolicyLossConfig, RefConfig
from podium.config.schema.agent import AgentConfig, RetrieverConfig
from podium.config.schema.algorithm import (
    AlgorithmConfig,
    FilterGroupsConfig,
    KLControlConfig,
    OverlongBufferConfig,
    RefAlignmentConfig,
    RefQualityConfig,
    ReprAlignConfig,
    RolloutCorrectionConfig,
)
from podium.config.schema.data import DataConfig
from podium.config.schema.model import DeepSpeedConfig, FSDPConfig, MegatronConfig, ModelConfig, OptimConfig
from podium.config.schema.names import LossAggMode, ScheduleName
from podium.config.schema.rewards import RewardConfig, RewardModelConfig
from podium.config.schema.rollout import RolloutConfig, ValSamplingConfig
from podium.config.schema.trainer import TrainerConfig

__all__ = [
    "ActorConfig",
    "ActorRolloutRefConfig",
    "AgentConfig",
    "AlgorithmConfig",
    "Config",
    "CriticConfig",
    "DataConfig",
    "DeepSpeedConfig",
    "FSDPConfig",
    "FilterGroupsConfig",
    "KLControlConfig",
    "LossAggMode",
    "MegatronConfig",
    "ModelConfig",
    "OptimConfig",
    "OverlongBufferConfig",
    "PolicyLossConfig",
    "RefAlignmentConfig",
    "RefConfig",
    "RefQualityConfig",
    "ReprAlignConfig",
    "RetrieverConfig",
    "RewardConfig",
    "RewardModelConfig",
    "RolloutConfig",
    "RolloutCorrectionConfig",
    "ScheduleName",
    "TrainerConfig",
    "ValSamplingConfig",
]


@dataclass
class ActorRolloutRefConfig:
    model: ModelConfig = field(default_factory=ModelConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    ref: RefConfig = field(default_factory=RefConfig)


@dataclass
class Config:
    data: DataConfig = field(default_factory=DataConfig)
    actor_rollout_ref: ActorRolloutRefConfig = field(default_factory=ActorRolloutRefConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    reward_model: RewardModelConfig = field(default_factory=RewardModelConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    do_search: bool = False
    """Search mode: the model may look things up between its turns, by Search-R1's protocol."""
    max_turns: int = 2
    """Turns of an episode that are answered; one last turn follows them."""
    retriever: RetrieverConfig = field(default_factory=RetrieverConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    extra: dict[str, Any] = field(default_factory=dict)
    """Free settings for your own functions; Podium carries them and reads none."""

    @property
    def has_tools(self) -> bool:
        return bool(self.agent.tools or self.agent.mcp_servers)

    @property
    def is_multi_turn(self) -> bool:
        return self.do_search or self.has_tools or bool(self.agent.environment)
