"""Where each Hugging Face tensor lies in Megatron's model on one tensor-parallel rank.

Megatron keeps queries, keys and values of a group of heads together, and a layer's gate above its up projection. So a
tensor is a piece of one parameter, and a rank has an equal part of it along one dimension, in the order in which
`torch.chunk` would cut it. Plain names and shapes: nothing here needs Megatron.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from transformers import PreTrainedConfig

from podium.errors import ConfigError, ModelError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Model types that Megatron's GPTModel can be, tensor for tensor."""

_LAYER = re.compile(r"^(?:.*\.)?layers\.(\d+)\.(.+)$")


@dataclass(frozen=True)
class Cut:
    """A model's sizes, and the rank whose part of it is meant."""

    rank: int
    size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int

    @property
    def vocabulary_rows(self) -> int:
        """Rows of the embedding on each rank; the last ranks may have some that stand for no token."""
        return -(-self.vocabulary // self.size)

    @property
    def own_tokens(self) -> int:
        """Rows that stand for a token."""
        return max(0, min(self.vocabulary_rows, self.vocabulary - self.rank * self.vocabulary_rows))


@dataclass(frozen=True)
class Piece:
    """Rows `start` to `stop` of each of a parameter's `groups` of rows."""

    parameter: str
    dim: int | None = None
    """The tensor's dimension that the ranks share; None: every rank has all of it."""
    groups: int = 1
    start: int = 0
    stop: int | None = None
    sees: Literal["all", "heads", "stretch"] = "all"
    """What a rank uses it for, where every rank has all of it: everything, its own heads, or with sequence parallelism
    its own stretch of the tokens. The gradient of less than everything is a sum over the ranks."""

    def read(self, local: Tensor) -> Tensor:
        """The rank's part of the tensor; of one group a view, of several a copy."""
        return self._view(local).flatten(0, 1)

    def write(self, local: Tensor, part: Tensor) -> None:
        view = self._view(local)
        if part.data_ptr() != view.data_ptr():  # else it is what `read` gave, written in place
            view.copy_(part.reshape(view.shape))

    def _view(self, local: Tensor) -> Tensor:
        grouped: Tensor = local.unflatten(0, (self.groups, -1))
        return grouped[:, self.start : self.stop]

    def part_of(self, whole: Tensor, rank: int, size: int) -> Tensor:
        """What `read` gives on that rank."""
        if self.dim is None:
            return whole
        rows = -(-whole.shape[self.dim] // size)
        start = min(rank * rows, whole.shape[self.dim])
        return whole.narrow(self.dim, start, min(rows, whole.shape[self.dim] - start))


def cut_for(config: PreTrainedConfig, rank: int, size: int) -> Cut:
    """Raises for a model that cannot be cut into `size` equal parts."""
    if config.model_type not in FAMILIES:
        raise ConfigError(
            f"strategy=megatron does not have the model family {config.model_type!r}; it has {', '.join(FAMILIES)}. "
            "Use strategy=fsdp for this model."
        )
    heads = config.num_attention_heads
    cut = Cut(
        rank,
        size,
        heads,
        getattr(config, "num_key_value_heads", None) or heads,
        getattr(config, "head_dim", None) or config.hidden_size // heads,
        config.intermediate_size,
        config.vocab_size,
    )
    counts = {"attention heads": heads, "key-value heads": cut.kv_heads, "MLP columns": cut.intermediate}
    for what, count in counts.items():
        if count % size:
            raise ConfigError(
                f"megatron.tensor_model_parallel_size is {size}, but the model has {count} {what}; each rank takes an "
                "equal share of them, so the size must divide their number."
            )
    return cut


def place_of(name: str, cut: Cut) -> Piece:
    """The piece that holds the Hugging Face tensor `name`."""
    layer = _LAYER.match(name)
    piece = _in_layer(layer[2], f"decoder.layers.{layer[1]}.", cut) if layer else _outside(name, cut)
    if piece is None:
        raise ModelError(
            f"The model's tensor {name!r} has no place in Megatron's GPTModel. Use strategy=fsdp for this model."
        )
    return piece


def _outside(name: str, cut: Cut) -> Piece | None:
    if name.startswith("value_head."):
        return Piece(name)
    places = {
        "embed_tokens.weight": Piece("embedding.word_embeddings.weight", 0, stop=cut.own_tokens),
        "lm_head.weight": Piece("output_layer.weight", 0, stop=cut.own_tokens),
        "norm.weight": Piece("decoder.final_layernorm.weight", sees="stretch"),
    }
    return places.get(name.removeprefix("model."))


def _in_layer(name: str, layer: str, cut: Cut) -> Piece | None:
    kind = name.rpartition(".")[2]
    groups, queries, size = cut.kv_heads // cut.size, cut.heads // cut.kv_heads * cut.head_dim, cut.head_dim
    fused, half = f"{layer}self_attention.linear_qkv.{kind}", cut.intermediate // cut.size
    qkv = {
        "q_proj": Piece(fused, 0, groups, 0, queries),
        "k_proj": Piece(fused, 0, groups, queries, queries + size),
        "v_proj": Piece(fused, 0, groups, queries + size, queries + 2 * size),
    }
    places = {f"self_attn.{part}.{kind}": piece for part, piece in qkv.items() if kind in ("weight", "bias")} | {
        "self_attn.o_proj.weight": Piece(f"{layer}self_attention.linear_proj.weight", 1),
        "self_attn.q_norm.weight": Piece(f"{layer}self_attention.q_layernorm.weight", sees="heads"),
        "self_attn.k_norm.weight": Piece(f"{layer}self_attention.k_layernorm.weight", sees="heads"),
        "mlp.gate_proj.weight": Piece(f"{layer}mlp.linear_fc1.weight", 0, stop=half),
        "mlp.up_proj.weight": Piece(f"{layer}mlp.linear_fc1.weight", 0, start=half),
        "mlp.down_proj.weight": Piece(f"{layer}mlp.linear_fc2.weight", 1),
        "input_layernorm.weight": Piece(f"{layer}input_layernorm.weight", sees="stretch"),
        "post_attention_layernorm.weight": Piece(f"{layer}pre_mlp_layernorm.weight", sees="stretch"),
    }
    return places.get(name)
