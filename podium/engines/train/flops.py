"""Floating-point operations from a model's shape: for MFU, and for balancing work by cost.

Counted: matrix products of blocks and head (2 per weight and token) and causal attention (half of the score matrix).
Not counted: norms, activations, the optimizer, and what gradient checkpointing computes twice.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn
from transformers import PreTrainedConfig

from podium.algorithms.balance import sequence_cost
from podium.models.load import backbone

PEAK_FLOPS = {
    "H200": 989e12,
    "H100": 989e12,
    "H800": 989e12,
    "GH200": 989e12,
    "H20": 148e12,
    "B200": 2250e12,
    "A100": 312e12,
    "A800": 312e12,
    "L40": 181e12,
    "L4": 121e12,
    "A10": 125e12,
}
"""Dense bfloat16 matrix products per second, by a word of the device's name."""


@dataclass(frozen=True)
class Work:
    """What goes through the model; no padding, and a prompt that samples share once."""

    tokens: float
    head_tokens: float
    """Tokens that are scored."""
    pairs: float
    """Σ L² of sequences of L tokens."""

    @staticmethod
    def of(lengths: Sequence[int], head_tokens: int | None = None) -> Work:
        tokens = sum(lengths)
        scored = tokens if head_tokens is None else head_tokens
        return Work(tokens, scored, sum(length * length for length in lengths))


@dataclass(frozen=True)
class FlopsEstimate:
    block_weights: int
    """Weights each token meets in the blocks."""
    head_weights: int
    """Weights of the output head, met by the tokens that are scored."""
    attention_width: int
    """Layers × heads × head size."""
    frozen_block_weights: int = 0
    frozen_head_weights: int = 0
    """Weights that get no gradient of their own: the backward pass only goes through them."""

    def forward(self, lengths: Sequence[int], head_tokens: int | None = None) -> float:
        """Of one forward pass over sequences of these lengths; `head_tokens`: scored tokens, all by default."""
        return self.forward_work(Work.of(lengths, head_tokens))

    def update(self, lengths: Sequence[int], head_tokens: int | None = None) -> float:
        """Of forward and backward."""
        return self.update_work(Work.of(lengths, head_tokens))

    def forward_work(self, work: Work) -> float:
        linear = self.block_weights * work.tokens + self.head_weights * work.head_tokens
        return 2.0 * (linear + self.attention_width * work.pairs)

    def update_work(self, work: Work) -> float:
        frozen = self.frozen_block_weights * work.tokens + self.frozen_head_weights * work.head_tokens
        return 3.0 * self.forward_work(work) - 2.0 * frozen

    @property
    def cost_factor(self) -> float:
        """`a` in the cost a·L + L² of L tokens: at L = a, attention costs as much as the rest."""
        return (self.block_weights + self.head_weights) / max(self.attention_width, 1)

    def cost(self, length: int) -> float:
        return sequence_cost(length, self.cost_factor)


def estimate_flops(module: nn.Module) -> FlopsEstimate:
    """From the parameters of a causal LM or value model (sharded or not) and its configuration."""
    body = backbone(module)
    config: PreTrainedConfig = body.config.get_text_config()  # type: ignore[union-attr,operator]
    embedding = body.get_input_embeddings()  # type: ignore[operator]
    embedding_ids = {id(parameter) for parameter in embedding.parameters()}
    body_ids = {id(parameter) for parameter in body.parameters()} | embedding_ids
    blocks = [
        (_active(name, config) * parameter.numel(), parameter.requires_grad)
        for name, parameter in body.named_parameters()
        if id(parameter) not in embedding_ids and parameter.dim() > 1 and _is_used(name)
    ]
    head = [
        (parameter.numel(), parameter.requires_grad)
        for name, parameter in module.named_parameters()
        if id(parameter) not in body_ids and parameter.dim() > 1 and _is_used(name)
    ]
    if not head and getattr(config, "tie_word_embeddings", False):
        head = [(embedding.weight.numel(), embedding.weight.requires_grad)]
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return FlopsEstimate(
        block_weights=int(sum(count for count, _ in blocks)),
        head_weights=sum(count for count, _ in head),
        attention_width=config.num_hidden_layers * heads * size,
        frozen_block_weights=int(sum(count for count, trained in blocks if not trained)),
        frozen_head_weights=sum(count for count, trained in head if not trained),
    )


def _is_used(name: str) -> bool:
    """Not a layer that a trained copy stands in for (LoRA's modules_to_save)."""
    return ".original_module." not in name


def _active(name: str, config: PreTrainedConfig) -> float:
    """The share of a tensor that one token meets: less than 1 for a mixture's experts."""
    if ".experts." not in name:
        return 1.0
    total = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None) or 1
    return float(getattr(config, "num_experts_per_tok", total)) / float(total)


def peak_flops(device: torch.device | str) -> float | None:
    """What the device can do per second in bfloat16; None when it is not known (a CPU, an unlisted GPU)."""
    device = torch.device(device)
    if device.type != "cuda":
        return None
    words = torch.cuda.get_device_name(device).replace("-", " ").split()
    return next((PEAK_FLOPS[word] for word in words if word in PEAK_FLOPS), None)


@cache
def reachable_flops(device: torch.device) -> float:
    """`peak_flops`, or where that is not known what a plain matrix product reaches on the device."""
    known = peak_flops(device)
    if known is not None:
        return known
    size = 1024
    # not by chance: a resumed run, which measures again, would draw other numbers than the unbroken one from here on
    left, right = (torch.full((size, size), 0.1, device=device) for _ in range(2))
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        (left @ right)[0, 0].item()
        seconds.append(time.perf_counter() - start)
    return 2.0 * size**3 / min(seconds)
