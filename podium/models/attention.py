"""Attention for packed tokens: one plug into every Hugging Face family.

A model that went through `install_attention` is called with all its tokens in one row and an `attention_plan` that says
which token sees which:

    model(input_ids=[1, T], position_ids=[1, T], attention_plan=plan, use_cache=False)

`PackedAttention` is the plan of training and scoring (whole sequences, causal inside each); a rollout engine brings a
plan of its own that reads a KV cache. No attention mask is ever built, `attention_mask` must stay None, and dropout is
not applied: a policy's log-probs have to be reproducible.

Not supported, and refused with a `ModelError`: soft-capped attention scores (Gemma 2), attention sinks, chunked, linear
or bidirectional layers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from podium.errors import ModelError
from podium.models.vision import attention_by_part

ATTENTION_NAME = "podium"

SUPPORTED_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})

SHORT_TOKENS = 64
"""On a CPU, explicit scores beat the flash kernel up to this length (and lose from twice this length on)."""

_varlen: Callable[..., Any] = varlen_attn
_VARLEN_TAKES_GQA = "enable_gqa" in inspect.signature(varlen_attn).parameters  # older torch needs no word for it


class AttentionPlan(Protocol):
    """Which token sees which, for one forward pass over T packed tokens."""

    def __call__(
        self,
        layer_idx: int,
        query: Tensor,  # [1, H, T, D]
        key: Tensor,  # [1, Hkv, T, D]
        value: Tensor,  # [1, Hkv, T, D]
        scaling: float,
        window: int | None,
    ) -> Tensor: ...  # [1, T, H, D]


def install_attention(model: PreTrainedModel) -> None:
    """Route every attention layer of `model` through the plan it is called with."""
    if ATTENTION_NAME not in AttentionInterface._global_mapping:
        AttentionInterface.register(ATTENTION_NAME, _planned_attention)
    AttentionMaskInterface.register(ATTENTION_NAME, _no_mask)
    name = type(model).__name__
    if not model._can_set_attn_implementation():
        raise ModelError(
            f"{name} does not use transformers' attention interface, so its attention cannot be packed. "
            "Use a model family that does (Llama, Qwen2, Qwen3, Mistral, Gemma, Phi, SmolLM2, ...)."
        )
    config = model.config.get_text_config()
    if getattr(config, "attn_logit_softcapping", None) is not None:
        raise ModelError(
            f"{name} soft-caps its attention scores (attn_logit_softcapping={config.attn_logit_softcapping}), which "
            "the packed kernels cannot do. Use a model without it, for example Gemma 3 in place of Gemma 2."
        )
    unknown = set(getattr(config, "layer_types", None) or ()) - SUPPORTED_LAYER_TYPES
    if unknown:
        raise ModelError(
            f"{name} has layers of type {', '.join(sorted(unknown))}. Packed attention supports "
            f"{' and '.join(sorted(SUPPORTED_LAYER_TYPES))}; use a model made of those."
        )
    model.set_attn_implementation(attention_by_part(model.config, ATTENTION_NAME))


def keep_attention_eager() -> None:
    """For models whose blocks are compiled: the plan is called as it is, between two compiled pieces."""
    AttentionInterface.register(ATTENTION_NAME, torch.compiler.disable(_planned_attention))


def _no_mask(*_args: object, **_kwargs: object) -> None:
    """The plan knows the structure; transformers builds no mask."""


def _planned_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    attention_plan: AttentionPlan | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_kwargs: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer."""
    assert attention_mask is None, "packed calls carry no attention_mask: the plan says who sees whom"
    if attention_plan is None:
        raise ModelError(
            f"{type(module).__name__} was called without attention_plan=. A model prepared by install_attention takes "
            "packed tokens with a plan; for plain calls use model.set_attn_implementation('sdpa') first."
        )
    if softcap is not None or s_aux is not None or not getattr(module, "is_causal", True):
        raise ModelError(
            f"{type(module).__name__} needs soft-capped scores, attention sinks or bidirectional attention; packed "
            "attention is causal and has neither. Use another model family."
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer_idx = getattr(module, "layer_idx", 0)
    return attention_plan(layer_idx, query, key, value, scale, sliding_window), None


class PackedAttention:
    """Causal attention inside each of the packed sequences; `lengths` in packed order.

    CUDA in half precision: one variable-length flash call. Elsewhere: neighbours of equal length are one batched call,
    so a caller that packs its sequences sorted by length pays one call per distinct length and no copy.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device | str) -> None:
        self.lengths = list(lengths)
        assert self.lengths and min(self.lengths) > 0, "a pack needs at least one sequence, and no sequence is empty"
        self.device = torch.device(device)
        self.max_length = max(self.lengths)
        self.groups = [(len(list(same)), length) for length, same in groupby(self.lengths)]
        self._masks: dict[tuple[int, int | None, torch.dtype], Tensor] = {}
        ends = torch.tensor([0, *self.lengths]).cumsum(0).to(torch.int32)
        self.cu_seqlens = ends.to(self.device, non_blocking=True)

    def __call__(
        self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))  # [T, heads, D]
        if window is not None and window >= self.max_length:
            window = None
        if q.is_cuda and q.dtype in (torch.float16, torch.bfloat16):
            return self._varlen(q, k, v, scaling, window).unsqueeze(0)
        return self._grouped(q, k, v, scaling, window).unsqueeze(0)

    def _varlen(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, window: int | None) -> Tensor:
        cu, longest = self.cu_seqlens, (self.max_length, self.max_length)
        return varlen_attention(q, k, v, cu, cu, longest, scaling, window)

    def _grouped(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, window: int | None) -> Tensor:
        # split, not slices: the backward of a slice fills a whole [T, heads, D] tensor, once per group
        sizes = [count * length for count, length in self.groups]
        outs = []
        for (count, length), *parts in zip(self.groups, *(x.split(sizes) for x in (q, k, v)), strict=True):
            gq, gk, gv = (x.unflatten(0, (count, length)).transpose(1, 2) for x in parts)  # [n, heads, L, D]
            gw = window if window is not None and window < length else None
            if length <= SHORT_TOKENS and not q.is_cuda:
                out = explicit_attention(gq, gk, gv, self._mask(length, gw, q), scaling)
            else:
                out = self._sdpa(gq, gk, gv, scaling, gw)
            outs.append(out.transpose(1, 2).flatten(0, 1))
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _sdpa(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, window: int | None) -> Tensor:
        gqa = q.shape[1] != k.shape[1]
        if window is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=gqa)
        mask = self._mask(q.shape[2], window, q)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling, enable_gqa=gqa)

    def _mask(self, length: int, window: int | None, like: Tensor) -> Tensor:
        """Made once, used by all layers."""
        entry = (length, window, like.dtype)
        if entry not in self._masks:
            self._masks[entry] = causal_mask(length, length, window, like)
        return self._masks[entry]


def window_of(attention: Any) -> int | None:
    """Tokens that a module's attention reaches back, None: all; Mistral has one number for all layers."""
    config = attention.config
    default = getattr(config, "sliding_window", None) if config.model_type == "mistral" else None
    window: int | None = getattr(attention, "sliding_window", default)
    return window


def varlen_attention(
    q: Tensor,  # [tokens, heads, D]
    k: Tensor,
    v: Tensor,
    cu_queries: Tensor,
    cu_keys: Tensor,
    longest: tuple[int, int],
    scaling: float,
    window: int | None,
) -> Tensor:
    """One flash call over sequences of unequal length, ends aligned; CUDA, half precision."""
    extra = {"enable_gqa": q.shape[1] != k.shape[1]} if _VARLEN_TAKES_GQA else {}
    sees = (-1 if window is None else window - 1, 0)
    out: Tensor = _varlen(q, k, v, cu_queries, cu_keys, *longest, scale=scaling, window_size=sees, **extra)
    return out


def explicit_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """Scores in full, [n, heads, L, D]; the query heads that share a KV head are folded into its rows."""
    n, heads, queries, dim = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    rows = heads // kv_heads * queries
    scores = torch.baddbmm(
        mask.repeat(heads // kv_heads, 1).expand(n * kv_heads, rows, keys),
        q.reshape(n * kv_heads, rows, dim),
        k.reshape(n * kv_heads, keys, dim).transpose(1, 2),
        alpha=scaling,
    )
    return torch.bmm(scores.softmax(-1), v.reshape(n * kv_heads, keys, -1)).view(n, heads, queries, -1)


def causal_mask(queries: int, keys: int, window: int | None, like: Tensor) -> Tensor:
    """Additive [queries, keys]: 0 where a token sees another, -inf elsewhere; ends are aligned."""
    mask = torch.full((queries, keys), float("-inf"), dtype=like.dtype, device=like.device).triu(keys - queries + 1)
    if window is not None:
        mask += torch.full_like(mask, float("-inf")).tril(keys - queries - window)
    return mask
