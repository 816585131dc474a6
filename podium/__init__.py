"""Podium: reinforcement learning for language models, from a laptop CPU to a Ray cluster.

The public names load on first use, so that `import podium` costs nothing: neither torch nor ray is imported here.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "DataProto": "podium.protocol",
    "GRPOConfig": "podium.api.arguments",
    "GRPOTrainer": "podium.api",
    "Metric": "podium.metric",
    "PPOConfig": "podium.api.arguments",
    "PPOTrainer": "podium.api",
    "PodiumError": "podium.errors",
    "PolicyAndValueWrapper": "podium.api",
    "RayPPOTrainer": "podium.trainer.ray_trainer",
    "ResourcePoolManager": "podium.single_controller",
    "Role": "podium.single_controller",
    "load_config": "podium.config",
    "null_ref_context": "podium.api",
    "run_ppo": "podium.trainer.main_ppo",
    "selective_log_softmax": "podium.api",
    "truncate_response": "podium.api",
}

__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'podium' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
