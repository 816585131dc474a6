"""A value model starts at zero on any causal LM's backbone and survives a save."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from podium.config.schema import ModelConfig
from podium.models.attention import PackedAttention
from podium.models.value import ValueModel, load_value_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def values(model: ValueModel) -> Tensor:
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    return model(ids, torch.tensor([[0, 1, 2, 0, 1]]), PackedAttention([3, 2], "cpu"))


def test_a_new_value_model_has_the_folders_backbone_and_predicts_zero(folder: Path) -> None:
    model = load_value_model(ModelConfig(path=str(folder)))
    policy = LlamaForCausalLM.from_pretrained(folder)
    assert not values(model).any()
    assert torch.equal(model.base_model.embed_tokens.weight, policy.model.embed_tokens.weight)
    names = set(model.state_dict())
    assert names - {"value_head.weight", "value_head.bias"} == set(policy.state_dict()) - {"lm_head.weight"}


def test_a_saved_value_model_comes_back_with_its_head(folder: Path, tmp_path: Path) -> None:
    model = load_value_model(ModelConfig(path=str(folder)))
    torch.nn.init.normal_(model.value_head.weight)
    model.save(tmp_path / "critic")
    again = load_value_model(ModelConfig(path=str(tmp_path / "critic")))
    assert values(model).any()
    assert torch.equal(values(again), values(model))
    assert load_value_model(ModelConfig(path=str(tmp_path / "critic")), torch.bfloat16).value_head.bias.dtype == (
        torch.bfloat16
    )
