"""Train engines by the name of `actor.strategy`."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from podium.config.schema import DeepSpeedConfig, MegatronConfig
from podium.engines.train.torch import TorchEngine


def make_train_engine(
    strategy: str,
    module: Any,
    deepspeed: DeepSpeedConfig | None = None,
    megatron: MegatronConfig | None = None,
    **settings: Any,
) -> TorchEngine:
    """An engine that trains `module`, or only scores with it when no `optim` is among the settings.

    DeepSpeed shares what training needs among ranks; where there is nothing of it to share, the engine is FSDP's.
    Megatron splits the model itself, one that only scores too.
    """
    several = dist.is_initialized() and dist.get_world_size() > 1
    if strategy == "megatron" and several:
        from podium.engines.train.megatron import MegatronEngine

        return MegatronEngine(module, megatron=megatron, **settings)
    if strategy == "deepspeed" and several and settings.get("optim") is not None:
        from podium.engines.train.deepspeed import DeepSpeedEngine

        return DeepSpeedEngine(module, deepspeed=deepspeed, **settings)
    return TorchEngine(module, **settings)
