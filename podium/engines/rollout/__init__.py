"""Rollout engines: prompts in, completions out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from podium.config.schema import RolloutConfig
    from podium.engines.rollout.base import RolloutEngine


def make_rollout_engine(
    config: RolloutConfig,
    module: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None = None,
    dtype: torch.dtype | None = None,
) -> RolloutEngine:
    """The engine `rollout.name` asks for, on `module`; `dtype` is its compute type (None: the module's own)."""
    if config.name == "hf":
        from podium.engines.rollout.hf import HFEngine

        return HFEngine(module, config, tokenizer)
    from podium.engines.rollout.native.engine import NativeEngine

    return NativeEngine(module, config, tokenizer, dtype)
