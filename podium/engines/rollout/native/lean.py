"""A lean forward pass for the common decoder block, over the same parameters as the Hugging Face module.

Llama, Qwen2, Qwen3 and Mistral share one block: RMS norm, attention with rotary embedding (and per-head norms in
Qwen3), RMS norm, gated MLP. Here that block is eight calls, with the projections of one input fused. Any other family,
or a module that was changed (adapters, quantized layers), runs through the Hugging Face module: `lean_body` says which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from podium.engines.rollout.native import lean_ops
from podium.engines.rollout.native.fused import fuse, storages
from podium.engines.rollout.native.lean_ops import HeadNorms, Rotary
from podium.engines.rollout.native.packed import linear, pack
from podium.models.attention import window_of
from podium.models.load import backbone
from podium.models.vision import is_vision_model

LEAN_TYPES = frozenset({"llama", "qwen2", "qwen3", "mistral"})
STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings that depend on a token's position alone, not on the length of its sequence."""


class Plan(Protocol):
    """Attention over packed tokens: who sees whom, and where keys and values are kept."""

    places: Tensor  # [T]

    def cache_of(self, layer_idx: int) -> Tensor:
        """[2, Hkv, pages, page size, D]; no pages when nothing is kept."""
        ...

    def attend(
        self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """[T, H, D] from [T, H, D] and [T, Hkv, D]; keys and values are in the cache already."""
        ...


@runtime_checkable
class RotatingPlan(Protocol):
    """A plan that rotates and stores on its way, from the projections [T, H + 2·Hkv, D]."""

    def rotate_and_attend(
        self, layer_idx: int, qkv: Tensor, rotary: Rotary, norms: HeadNorms | None, scaling: float, window: int | None
    ) -> Tensor: ...


@dataclass(frozen=True)
class _Layer:
    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    head_norms: HeadNorms | None
    out: Tensor
    out_bias: Tensor | None
    post_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    scaling: float
    window: int | None


class LeanBody:
    """From token ids to last hidden states. `ops` are the elementwise functions of the device."""

    def __init__(self, module: PreTrainedModel, ops: Any = lean_ops, packs: bool = False) -> None:
        """`packs`: keep a packed copy of the projections (packed.py)."""
        self.module, self.ops = module, ops
        self._kept = pack if packs else _itself
        config: Any = module.config.get_text_config()
        self.num_kv_heads = config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.eps = float(config.rms_norm_eps)
        self._rotary: tuple[Tensor, Tensor] | None = None
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Take the parameters as they lie now."""
        body: Any = backbone(self.module)
        self.embedding: Tensor = body.embed_tokens.weight.data
        self.layers = [self._layer(layer) for layer in body.layers]
        self.norm: Tensor = body.norm.weight.data
        if self._rotary is None or self._rotary[0].device != self.embedding.device:
            self._rotary = self._rotary_table(body.rotary_emb)
        self.parameters = list(self.module.parameters())
        self.storages = storages(self.parameters)

    def forget(self) -> None:
        """Let go of the parameters, so that their memory can be freed."""
        self.layers = []
        self.embedding = self.norm = torch.empty(0)

    def is_current(self) -> bool:
        return bool(self.layers) and storages(self.parameters) == self.storages

    def _rotary_table(self, rotary_emb: nn.Module) -> tuple[Tensor, Tensor]:
        """cos and sin of every position, rounded as the module rounds them."""
        count = int(self.module.config.get_text_config().max_position_embeddings)
        positions = torch.arange(count, device=self.embedding.device)[None]
        tables = rotary_emb(self.embedding[:1], positions)
        cos, sin = (table[0, :, : self.head_dim // 2].float().contiguous() for table in tables)
        return cos, sin

    def _layer(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        projections = [attention.q_proj, attention.k_proj, attention.v_proj]
        norms = None
        if hasattr(attention, "q_norm"):
            norms = (attention.q_norm.weight.data, attention.k_norm.weight.data, self.eps)
        return _Layer(
            layer.input_layernorm.weight.data,
            self._kept(fuse([linear.weight for linear in projections])),
            _fused_bias(projections),
            norms,
            self._kept(attention.o_proj.weight.data),
            _data(attention.o_proj.bias),
            layer.post_attention_layernorm.weight.data,
            self._kept(fuse([mlp.gate_proj.weight, mlp.up_proj.weight])),
            _fused_bias([mlp.gate_proj, mlp.up_proj]),
            self._kept(mlp.down_proj.weight.data),
            _data(mlp.down_proj.bias),
            float(attention.scaling),
            window_of(attention),
        )

    def __call__(self, ids: Tensor, positions: Tensor, plan: Plan) -> Tensor:
        """Last hidden states [T, hidden] of packed tokens [T]."""
        ops, eps, num_kv = self.ops, self.eps, self.num_kv_heads
        assert self._rotary is not None
        rotary = ops.rows_of_rotary(*self._rotary, positions)
        fused = plan.rotate_and_attend if isinstance(plan, RotatingPlan) else None
        x = ops.embed(ids, self.embedding)
        delta: Tensor | None = None
        for i, layer in enumerate(self.layers):
            h = ops.add_rms_norm(x, delta, layer.input_norm, eps)
            qkv = linear(h, layer.qkv, layer.qkv_bias).unflatten(1, (-1, self.head_dim))
            if fused is not None:
                mixed = fused(i, qkv, rotary, layer.head_norms, layer.scaling, layer.window)
            else:
                ops.rotate_and_store(qkv, plan.places, rotary, layer.head_norms, plan.cache_of(i))
                query, key, value = qkv.split([qkv.shape[1] - 2 * num_kv, num_kv, num_kv], dim=1)
                mixed = plan.attend(i, query, key, value, layer.scaling, layer.window)
            delta = linear(mixed.flatten(1), layer.out, layer.out_bias)
            h = ops.add_rms_norm(x, delta, layer.post_norm, eps)
            gated = ops.silu_mul(linear(h, layer.gate_up, layer.gate_up_bias))
            delta = linear(gated, layer.down, layer.down_bias)
        hidden: Tensor = ops.add_rms_norm(x, delta, self.norm, eps)
        return hidden


def _itself(weight: Tensor) -> Tensor:
    return weight


def _data(parameter: nn.Parameter | None) -> Tensor | None:
    return None if parameter is None else parameter.data


def _fused_bias(linears: list[nn.Linear]) -> Tensor | None:
    biases = [linear.bias for linear in linears if linear.bias is not None]
    return fuse(biases) if biases else None


def is_lean(module: PreTrainedModel, dtype: torch.dtype) -> bool:
    """Whether `LeanBody` computes what this module computes, in `dtype`."""
    config: Any = module.config.get_text_config()
    if is_vision_model(module.config):
        return False
    if config.model_type not in LEAN_TYPES or config.hidden_act != "silu":
        return False
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in STATIC_ROPE or rope.get("partial_rotary_factor", 1.0) != 1.0:
        return False
    body: Any = backbone(module)
    plain = all(
        type(linear) is nn.Linear and not linear._forward_hooks and not linear._forward_pre_hooks
        for layer in body.layers
        for linear in (
            *(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj, layer.self_attn.o_proj),
            *(layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj),
        )
    )
    return plain and all(parameter.dtype == dtype for parameter in module.parameters())
