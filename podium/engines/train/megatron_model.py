"""Megatron's GPTModel called with packs: from tokens to numbers per response token, on one rank.

Layers, embedding and their communication are Megatron's. Rotation and attention are those of the other engines: the
family's own rotary embedding and the pack's attention plan, so that no padding reaches the model and samples share
their prompts. The head is megatron_head.py's. Building the model is megatron_build.py's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from podium.engines.train.forward import spread
from podium.engines.train.megatron_head import vocab_parallel_log_probs
from podium.engines.train.megatron_names import Cut
from podium.engines.train.packing import Pack
from podium.models.attention import AttentionPlan


@dataclass(frozen=True)
class Tokens:
    """What attention needs to know of a pack; it goes through Megatron's layers in the place of a mask."""

    attention: AttentionPlan
    count: int
    """Real tokens; with sequence parallelism some without meaning may follow them."""
    cos: Tensor  # [1, T, D]
    sin: Tensor

    def heads(self, x: Tensor) -> Tensor:
        """[T and more, 1, heads, D] -> [1, heads, T, D]"""
        return x[: self.count].permute(1, 2, 0, 3)

    def rotated(self, x: Tensor) -> Tensor:
        x = self.heads(x)
        left, right = x.chunk(2, dim=-1)
        return x * self.cos.unsqueeze(1) + torch.cat((-right, left), dim=-1) * self.sin.unsqueeze(1)


class PlannedAttention(nn.Module):
    """Megatron's core attention: the heads of this rank, by the plan of the pack."""

    def __init__(self, config: Any, layer_number: int, **_settings: Any) -> None:
        super().__init__()
        self.layer = layer_number - 1
        self.scaling: float = config.softmax_scale
        self.window: int | None = None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, tokens: Tokens, **_options: Any) -> Tensor:
        q, k, v = tokens.rotated(query), tokens.rotated(key), tokens.heads(value)
        out = tokens.attention(self.layer, q, k, v, self.scaling, self.window)  # [1, T, heads, D]
        out = out.transpose(0, 1).flatten(2)  # [T, 1, heads · D]
        more = query.shape[0] - tokens.count
        return F.pad(out, (0, 0, 0, 0, 0, more)) if more else out


class Norm(nn.RMSNorm):
    """Megatron's own wrapper of it refuses sequence parallelism."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_settings: Any) -> None:
        super().__init__(hidden_size, eps=eps)


class MegatronModel(nn.Module):
    """What an engine runs: this rank's part of a causal LM or value model, from a pack to numbers per token."""

    def __init__(self, gpt: Any, cut: Cut, group: dist.ProcessGroup, regions: Any, rotary: nn.Module) -> None:
        super().__init__()
        self.gpt, self.cut, self.group, self.rotary = gpt, cut, group, rotary
        self.regions = regions
        """Megatron's ways into and out of what ranks share."""
        self.sequence_parallel: bool = gpt.config.sequence_parallel
        self.value_head: nn.Linear | None = None

    def forward(
        self,
        pack: Pack,
        *,
        hidden_only: bool = False,
        temperature: float = 1.0,
        with_entropy: bool = False,
        with_sum_pi_squared: bool = False,
    ) -> dict[str, Tensor]:
        """As `PackedModel`'s; the same on every rank of a tensor-parallel group."""
        every = hidden_only or self.value_head is not None
        hidden = self._hidden(pack, in_parts=not every).index_select(0, pack.sources)  # [N, H]
        if hidden_only:
            return {"hidden": hidden}
        if self.value_head is not None:
            return {"values": pack.spread(self.value_head(hidden).squeeze(-1).float())}
        outputs = vocab_parallel_log_probs(
            hidden,
            self._head()[: self.cut.own_tokens],
            pack.labels,
            temperature,
            first=self.cut.rank * self.cut.vocabulary_rows,
            group=self.group,
            with_entropy=with_entropy,
            with_sum_pi_squared=with_sum_pi_squared,
        )
        return spread(outputs, pack)

    def _hidden(self, pack: Pack, in_parts: bool) -> Tensor:
        """The last hidden states [T, H] on every rank. `in_parts`: what follows gives each rank a part of their
        gradient; else every rank has all of it. Layers are called one by one: their dropout, and with it Megatron's
        random states, is not needed."""
        count = pack.input_ids.shape[1]
        more = -count % self.cut.size if self.sequence_parallel else 0
        tokens = Tokens(pack.attention, count, *self.rotary(self._head(), pack.position_ids))
        words = self.gpt.embedding.word_embeddings
        hidden = words(F.pad(pack.input_ids, (0, more)))  # [1, T, H]; with sequence parallelism [own T, 1, H]
        hidden = hidden if self.sequence_parallel else hidden.transpose(0, 1).contiguous()
        for layer in self.gpt.decoder.layers:
            hidden, _ = layer(hidden_states=hidden, attention_mask=tokens)
        hidden = self.gpt.decoder.final_layernorm(hidden).squeeze(1)
        if self.sequence_parallel:
            hidden = self.regions.gather_from_sequence_parallel_region(hidden, in_parts, group=self.group)[:count]
        elif in_parts:
            hidden = self.regions.copy_to_tensor_model_parallel_region(hidden, group=self.group)
        whole: Tensor = hidden
        return whole

    def _head(self) -> Tensor:
        own: Tensor | None = self.gpt.output_layer.weight
        return self.gpt.embedding.word_embeddings.weight if own is None else own
