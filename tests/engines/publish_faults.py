"""A small model, and the faults that published weights may meet on their way; each transport must catch them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from podium.config.schema import RolloutConfig
from podium.engines.rollout.native.engine import NativeEngine
from podium.models.load import prepare

SMALL = RolloutConfig(max_num_seqs=8, kv_cache_gb=0.01)
UP_0, UP_1 = (f"model.layers.{i}.mlp.up_proj.weight" for i in range(2))
Weights = Iterable[tuple[str, Tensor]]


def make_model(seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
        initializer_range=0.3,
        tie_word_embeddings=True,
        eos_token_id=1,
        bos_token_id=None,
        pad_token_id=None,
    )
    model = Qwen2ForCausalLM(config)
    prepare(model)
    return model


class FaultyEngine(NativeEngine):
    """Does something to the weights on their way in, and says nothing."""

    fault: Callable[[Weights], Weights] = staticmethod(lambda weights: weights)

    def load_weights(self, weights: Weights, version: int) -> None:
        super().load_weights(self.fault(weights), version)


def corrupted(weights: Weights) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in weights:
        yield name, tensor + 0.01 if name == UP_1 else tensor


def skipped(weights: Weights) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in weights:
        yield name, make_model(seed=1).state_dict()[name] if name == UP_1 else tensor


def swapped(weights: Weights) -> Iterator[tuple[str, Tensor]]:
    named = dict(weights)
    named[UP_0], named[UP_1] = named[UP_1], named[UP_0]
    yield from named.items()


def dropped(weights: Weights) -> Iterator[tuple[str, Tensor]]:
    return ((name, tensor) for name, tensor in weights if name != UP_1)
