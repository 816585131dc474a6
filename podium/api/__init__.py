"""The few-lines Python door: PPOTrainer and GRPOTrainer with TRL's names, onto the trainer of `podium train`."""

from __future__ import annotations

import os

# As in `podium train`: OpenMP reads it when torch is loaded, which is just now unless the program did that before.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from podium.api.arguments import GRPOConfig, PPOConfig
from podium.api.base import TrainOutput
from podium.api.callbacks import TrainerControl, TrainerState
from podium.api.helpers import PolicyAndValueWrapper, null_ref_context, selective_log_softmax, truncate_response
from podium.api.trainers import GRPOTrainer, PPOTrainer

__all__ = [
    "GRPOConfig",
    "GRPOTrainer",
    "PPOConfig",
    "PPOTrainer",
    "PolicyAndValueWrapper",
    "TrainOutput",
    "TrainerControl",
    "TrainerState",
    "null_ref_context",
    "selective_log_softmax",
    "truncate_response",
]
