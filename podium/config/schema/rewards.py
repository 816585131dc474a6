"""What scores a response."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from podium.config.schema.model import ModelConfig


@dataclass
class RewardConfig:
    custom_reward_function: str | None = None
    """`path/to/file.py:function` or `module:function`; null: the built-in function of each row's `data_source`."""
    functions: dict[str, float] = field(default_factory=dict)
    """Several functions by weight: built-in names, `module:function`, `file.py:function`, http addresses; `default` is
    the function of each row's `data_source`. Overrides `custom_reward_function`."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for the reward functions that take them."""
    num_processes: int = 4
    """Reward processes per rollout worker, for all but cheap built-in functions. 0: in the trainer, no limits."""
    timeout_s: float = 30.0
    """Seconds a function may take for a response, or for a call that scores several; then its process is killed."""
    http_retries: int = 3
    """Further attempts of a remote reward, all within `timeout_s`."""
    http_max_per_second: float = 0.0
    """Requests to a remote reward per second and rollout worker. 0: no limit."""
    max_failure_rate: float = 0.5
    """Stop when a larger share of a step's rewards failed."""


@dataclass
class RewardModelConfig:
    enable: bool = False
    """Score responses with a reward model too."""
    model: ModelConfig = field(default_factory=lambda: ModelConfig(path=""))
    """What `podium train-reward` wrote, or a Hugging Face classifier with one label; it reads the policy's tokens."""
    weight: float = 1.0
    """A response's score is rule_weight · rule + weight · reward model."""
    rule_weight: float = 1.0
    """0: the reward model alone; the rule still scores the validation. Rows without a rule never have one."""
    max_tokens_per_micro_batch: int | None = None
    """Null: the actor's."""
    nnodes: int = 0
    """Nodes of a pool of the reward model's own. 0: it shares the workers of policy and critic."""
    n_gpus_per_node: int = 1
    """Its workers per node of that pool."""
