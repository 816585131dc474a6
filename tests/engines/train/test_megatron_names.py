"""Where Hugging Face tensors lie in Megatron's parameters; needs no Megatron."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from train_cases import FAMILIES as CASES
from train_cases import make_plain
from transformers import PreTrainedConfig

from podium.engines.train.megatron_names import FAMILIES, cut_for, place_of
from podium.errors import ConfigError, ModelError


def shapes(config: PreTrainedConfig, size: int) -> dict[str, tuple[int, ...]]:
    """Megatron's parameters on one rank, for a model with biases on queries, keys and values."""
    cut = cut_for(config, 0, size)
    qkv = (cut.heads + 2 * cut.kv_heads) * cut.head_dim // size
    rows, hidden = cut.vocabulary_rows, config.hidden_size
    found: dict[str, tuple[int, ...]] = {
        "embedding.word_embeddings.weight": (rows, hidden),
        "output_layer.weight": (rows, hidden),
        "decoder.final_layernorm.weight": (hidden,),
        "value_head.weight": (1, hidden),
    }
    for layer in range(config.num_hidden_layers):
        found |= {
            f"decoder.layers.{layer}.self_attention.linear_qkv.weight": (qkv, hidden),
            f"decoder.layers.{layer}.self_attention.linear_qkv.bias": (qkv,),
            f"decoder.layers.{layer}.self_attention.linear_proj.weight": (hidden, cut.heads * cut.head_dim // size),
            f"decoder.layers.{layer}.self_attention.q_layernorm.weight": (cut.head_dim,),
            f"decoder.layers.{layer}.self_attention.k_layernorm.weight": (cut.head_dim,),
            f"decoder.layers.{layer}.mlp.linear_fc1.weight": (2 * cut.intermediate // size, hidden),
            f"decoder.layers.{layer}.mlp.linear_fc2.weight": (hidden, cut.intermediate // size),
            f"decoder.layers.{layer}.input_layernorm.weight": (hidden,),
            f"decoder.layers.{layer}.pre_mlp_layernorm.weight": (hidden,),
        }
    return found


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_cut_for_the_ranks_fill_their_parameters_and_come_back(family: str, size: int) -> None:
    """Four ranks, a vocabulary of 97: every number of a parameter is written once, but for rows of no token."""
    model = make_plain(family, num_attention_heads=8, num_key_value_heads=4)
    whole = {name: parameter.detach() for name, parameter in model.named_parameters()}
    parts: dict[str, list[Tensor]] = {name: [] for name in whole}
    for rank in range(size):
        cut = cut_for(model.config, rank, size)
        held = {name: torch.full(shape, torch.nan) for name, shape in shapes(model.config, size).items()}
        for name, tensor in whole.items():
            piece = place_of(name, cut)
            piece.write(held[piece.parameter], piece.part_of(tensor, rank, size))
            parts[name].append(piece.read(held[piece.parameter]))
        used = {place_of(name, cut).parameter for name in whole}
        empty = {name: int(held[name].isnan().sum()) for name in used}
        spare = (cut.vocabulary_rows - cut.own_tokens) * model.config.hidden_size
        vocabulary = {"embedding.word_embeddings.weight", "output_layer.weight"}
        assert empty == {name: spare if name in vocabulary else 0 for name in used}
    for name, tensor in whole.items():
        dim = place_of(name, cut).dim
        assert torch.equal(parts[name][0] if dim is None else torch.cat(parts[name], dim), tensor), name


def test_a_group_of_heads_has_its_queries_its_key_and_its_value_one_below_the_other() -> None:
    """Eight heads of one row, four of keys and values: rank 1 of 2 has the groups 2 and 3."""
    config = make_plain("llama", hidden_size=8, num_attention_heads=8, num_key_value_heads=4).config
    cut, local = cut_for(config, 1, 2), torch.zeros(8, 8)
    for start, name in ((0, "q_proj"), (10, "k_proj"), (20, "v_proj")):
        piece = place_of(f"model.layers.0.self_attn.{name}.weight", cut)
        rows = torch.arange(start, start + (8 if name == "q_proj" else 4))[:, None].expand(-1, 8).float()
        piece.write(local, piece.part_of(rows, 1, 2))
    assert local[:, 0].tolist() == [4, 5, 12, 22, 6, 7, 13, 23]


@pytest.mark.parametrize("family", sorted(set(CASES) - {*FAMILIES, "smollm2"}))
def test_other_families_are_refused_beside_those_that_work(family: str) -> None:
    with pytest.raises(ConfigError, match="it has llama, mistral, qwen2, qwen3"):
        cut_for(make_plain(family).config, 0, 2)


@pytest.mark.parametrize(
    "shape, says",
    [
        ({"num_attention_heads": 8, "num_key_value_heads": 1}, "has 1 key-value heads"),
        ({"num_attention_heads": 1, "num_key_value_heads": 1}, "has 1 attention heads"),
        ({"intermediate_size": 33}, "has 33 MLP columns"),
    ],
)
def test_a_model_that_the_ranks_cannot_share_equally_is_refused(shape: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        cut_for(make_plain("llama", **shape).config, 0, 2)


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.o_proj.bias", "model.layers.0.mlp.gate_proj.bias", "score"])
def test_a_tensor_without_a_place_is_named(name: str) -> None:
    with pytest.raises(ModelError, match=f"'{name}' has no place"):
        place_of(name, cut_for(make_plain("llama").config, 0, 2))
