"""Train engines by the name of `actor.strategy`."""

from __future__ import annotations

from typing import Any

from podium.engines.train.torch import TorchEngine

TRAIN_ENGINES = {"fsdp": TorchEngine}


def make_train_engine(strategy: str, module: Any, **settings: Any) -> TorchEngine:
    """An engine that trains `module`, or only scores with it when no `optim` is among the settings."""
    return TRAIN_ENGINES[strategy](module, **settings)
