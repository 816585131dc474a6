"""The model from token ids to hidden states and logits, the way the engine runs it.

Lean where the family allows (lean.py), else the Hugging Face module itself with the engine's attention plan; both read
the parameters of the one module. Nothing here samples.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from podium.engines.rollout.native import lean_ops
from podium.engines.rollout.native.fused import storages
from podium.engines.rollout.native.lean import LeanBody, Plan, is_lean
from podium.engines.rollout.native.packed import can_pack, changes, linear, pack
from podium.models.attention import PackedAttention
from podium.models.load import LogitTransform, backbone, logit_transform, output_head
from podium.models.vision import Images, image_features


@dataclass(frozen=True)
class Shown:
    """The images of the prompts in a pass: feature number `features[i]` of them stands at packed place `places[i]`."""

    images: list[Images]
    features: Tensor
    places: Tensor

    def embed(self, body: nn.Module, ids: Tensor) -> Tensor:
        table: Any = body.get_input_embeddings()  # type: ignore[operator]
        embeddings: Tensor = table(ids)
        seen = image_features(body, self.images)[self.features]
        return embeddings.index_put((self.places,), seen.to(embeddings.dtype))


class ModuleBody:
    """The Hugging Face module's own forward pass over packed tokens."""

    def __init__(self, module: PreTrainedModel) -> None:
        self.module = module
        self.refresh()

    def refresh(self) -> None:
        self.parameters = list(self.module.parameters())
        self.storages = storages(self.parameters)

    def forget(self) -> None:
        """It holds nothing but the module."""

    def is_current(self) -> bool:
        return storages(self.parameters) == self.storages

    def __call__(self, ids: Tensor, positions: Tensor, plan: Any, shown: Shown | None = None) -> Tensor:
        """Last hidden states [T, hidden] of packed tokens [T], with what is `shown` in the place of image tokens."""
        body = backbone(self.module)
        tokens = {"input_ids": ids[None]}
        if shown is not None:
            tokens = {"inputs_embeds": shown.embed(body, ids)[None]}
        out = body(**tokens, position_ids=positions[None], attention_plan=plan, use_cache=False)
        hidden: Tensor = out.last_hidden_state[0]
        return hidden


class Model:
    """Body and head of `module`, computing in `dtype`."""

    def __init__(self, module: PreTrainedModel, dtype: torch.dtype, ops: Any = lean_ops) -> None:
        self.module, self.dtype = module, dtype
        self.device = next(module.parameters()).device
        self._packs = can_pack(module, dtype)
        self.body = LeanBody(module, ops, self._packs) if is_lean(module, dtype) else ModuleBody(module)
        self.head, self.transform = output_head(module), logit_transform(module)
        self._packed_head: Tensor | None = None
        self._packed_at = self._written()
        self._is_expecting = False
        self.vocab_size = self.head.out_features
        self._casts = next(module.parameters()).dtype != dtype

    def refresh(self) -> None:
        """Follow the parameters where they went and in what they hold; `body.storages` says where they are."""
        if self._is_expecting or self._written() != self._packed_at or not self.body.is_current():
            self.body.refresh()
            self._packed_head, self._packed_at, self._is_expecting = None, self._written(), False
        if self._packs and self._packed_head is None:
            self._packed_head = pack(self.head.weight)

    def expect_new_weights(self) -> None:
        """Look at the module anew before the next pass; until then no copy of its weights is kept."""
        self._is_expecting = True
        if self._packs:
            self.body.forget()
            self._packed_head = None

    def _written(self) -> tuple[int, ...]:
        return changes(self.body.parameters) if self._packs else ()

    def hidden(self, ids: Tensor, positions: Tensor, plan: Plan, shown: Shown | None = None) -> Tensor:
        with self._autocast():
            if isinstance(self.body, ModuleBody):
                return self.body(ids, positions, plan, shown)
            assert shown is None, "a lean body has no vision tower"
            return self.body(ids, positions, plan)

    def logits(self, hidden: Tensor) -> Tensor:
        """[n, V] as the head gives them, in its type; a family's own transform is applied in float32."""
        with self._autocast():
            weight = self.head.weight if self._packed_head is None else self._packed_head
            logits = linear(hidden, weight, self.head.bias)
        return logits if self.transform == LogitTransform() else self.transform(logits.float())

    @torch.no_grad()
    def log_probs(self, tokens: list[int]) -> Tensor:
        """Log-probs [P-1] of tokens 1 to P-1, each given those before it."""
        ids = torch.tensor(tokens, device=self.device)
        positions = torch.arange(len(tokens), device=self.device)
        hidden = self.hidden(ids, positions, Uncached(len(tokens), self.module, self.device, self.dtype))
        log_probs = self.logits(hidden[:-1]).float().log_softmax(-1)
        return log_probs.gather(1, ids[1:, None]).squeeze(1)

    def _autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, dtype=self.dtype) if self._casts else nullcontext()


def layer_size(module: PreTrainedModel) -> float:
    """Parameters of a layer: as many multiplications does it take for a token."""
    layers = int(module.config.get_text_config().num_hidden_layers)
    return sum(parameter.numel() for parameter in backbone(module).parameters()) / max(layers, 1)


class Uncached:
    """The plan of one sequence that leaves nothing behind."""

    def __init__(self, length: int, module: PreTrainedModel, device: torch.device, dtype: torch.dtype) -> None:
        text: Any = module.config.get_text_config()
        num_kv = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        self.packed = PackedAttention([length], device)
        self.places = torch.full((length,), -1, device=device)
        self._cache = torch.empty(2, num_kv, 0, 1, 1, device=device, dtype=dtype)

    def cache_of(self, layer_idx: int) -> Tensor:
        return self._cache

    def attend(
        self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (query, key, value))
        return self.packed(layer_idx, q, k, v, scaling, window).squeeze(0)

    def __call__(
        self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        return self.packed(layer_idx, query, key, value, scaling, window)
