"""Floating-point operations from a model's shape: for MFU, and for balancing work by cost.

Counted: matrix products of blocks and head (2 per weight and token) and causal attention (half of the score matrix).
Not counted: norms, activations, the optimizer, and what gradient checkpointing computes twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
class FlopsEstimate:
    block_weights: int
    """Weights each token meets in the blocks."""
    head_weights: int
    """Weights of the output head, met by the tokens that are scored."""
    attention_width: int
    """Layers × heads × head size."""

    def forward(self, lengths: Sequence[int], head_tokens: int | None = None) -> float:
        """Of one forward pass over sequences of these lengths; `head_tokens`: scored tokens, all by default."""
        tokens = sum(lengths)
        scored = tokens if head_tokens is None else head_tokens
        pairs = sum(length * length for length in lengths)
        return 2.0 * (self.block_weights * tokens + self.head_weights * scored + self.attention_width * pairs)

    def update(self, lengths: Sequence[int], head_tokens: int | None = None) -> float:
        """Of forward and backward."""
        return 3.0 * self.forward(lengths, head_tokens)

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
    body_names = {id(parameter) for parameter in body.parameters()}
    embedding_names = {id(parameter) for parameter in embedding.parameters()}
    blocks = sum(
        _active(name, config) * parameter.numel()
        for name, parameter in body.named_parameters()
        if id(parameter) not in embedding_names and parameter.dim() > 1
    )
    head = sum(p.numel() for p in module.parameters() if id(p) not in body_names and p.dim() > 1)
    if head == 0 and getattr(config, "tie_word_embeddings", False):
        head = sum(p.numel() for p in embedding.parameters())
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return FlopsEstimate(int(blocks), head, config.num_hidden_layers * heads * size)


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
