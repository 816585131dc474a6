"""Rollout engines by the run's settings, for workers with a trainer beside them and without."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from podium.config.schema import Config
from podium.engines.rollout import make_rollout_engine
from podium.engines.rollout.base import RolloutEngine
from podium.engines.rollout.hosted import HostedEngine
from podium.engines.train.torch import TorchEngine
from podium.errors import ConfigError
from podium.metric import Metric
from podium.models.load import load_causal_lm, resolve_dtype
from podium.protocol import DataProto

EXTERNAL = ("vllm", "sglang")


def make_engine(
    config: Config, tokenizer: Any, device: torch.device, train_engine: TorchEngine | None = None
) -> RolloutEngine:
    """The engine `rollout.name` asks for; beside a trainer whose parameters are whole it shares its module."""
    settings = config.actor_rollout_ref
    dtype = resolve_dtype(settings.model.dtype, device) if train_engine is None else train_engine.dtype
    if settings.rollout.name in EXTERNAL:
        return _make_external(config, tokenizer, device, dtype, train_engine is not None)
    if train_engine is None or train_engine.sharded or train_engine.adapted:
        module: Any = load_causal_lm(settings.model, dtype, device)
    else:
        module = train_engine.module
    assert isinstance(module, PreTrainedModel)
    return make_rollout_engine(settings.rollout, module, tokenizer, dtype)


def _make_external(
    config: Config, tokenizer: Any, device: torch.device, dtype: torch.dtype, beside_trainer: bool
) -> RolloutEngine:
    settings = config.actor_rollout_ref
    size = settings.rollout.tensor_model_parallel_size
    if beside_trainer and size > 1 and device.type == "cuda":
        raise ConfigError(
            f"rollout.tensor_model_parallel_size={size} on GPUs needs a pool of its own: each training worker has one "
            "GPU. Set rollout.nnodes and rollout.n_gpus_per_node, or tensor_model_parallel_size=1."
        )
    from podium.engines.rollout.external import make_hosted_engine

    return make_hosted_engine(settings.rollout, settings.model, tokenizer, dtype, device)


def with_engine_metrics(output: DataProto, engine: RolloutEngine) -> DataProto:
    """The batch, saying how often its engine had to be replaced, if it was."""
    if isinstance(engine, HostedEngine) and engine.restarts:
        output.meta_info.setdefault("metrics", {})["rollout/engine_restarts"] = Metric.last(float(engine.restarts))
    return output


def close_engine(engine: Any) -> None:
    """End an engine that has processes of its own."""
    if isinstance(engine, HostedEngine):
        engine.close()
