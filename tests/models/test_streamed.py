"""Models without values get them block by block, and are then what a plain load gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from podium.config.schema import ModelConfig, OptimConfig
from podium.engines.train.torch import TorchEngine
from podium.models.load import load_causal_lm
from podium.models.lora import add_lora
from podium.models.streamed import META, fill, parameter_names, weight_files
from podium.models.value import load_value_model

SHAPE = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 2, "num_key_value_heads": 1, "pad_token_id": 0}


@pytest.fixture(params=["tied", "untied", "in several files"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=request.param == "tied"))
    model.save_pretrained(tmp_path / "llama", max_shard_size="4KB" if request.param == "in several files" else "1GB")
    return tmp_path / "llama"


def test_a_filled_model_is_the_loaded_one(folder: Path) -> None:
    config = ModelConfig(path=str(folder))
    empty, whole = load_causal_lm(config, empty=True), load_causal_lm(config)
    assert {p.device for p in empty.parameters()} == {META}
    assert not any(buffer.device == META for buffer in empty.buffers())
    files = weight_files(empty)
    assert files is not None
    names = parameter_names(empty)
    fill(empty.model.layers[0], names, files, torch.device("cpu"))
    assert empty.model.layers[1].mlp.up_proj.weight.device == META, "a block at a time"
    fill(empty, names, files, torch.device("cpu"))
    for (name, ours), (_, wanted) in zip(empty.named_parameters(), whole.named_parameters(), strict=True):
        assert ours.equal(wanted) and ours.requires_grad, name
    tied = whole.lm_head.weight is whole.model.embed_tokens.weight
    assert (empty.lm_head.weight is empty.model.embed_tokens.weight) is tied
    for (name, ours), (_, wanted) in zip(empty.named_buffers(), whole.named_buffers(), strict=True):
        assert ours.equal(wanted), name


def test_an_engine_of_one_rank_fills_it_too_with_and_without_adapters(folder: Path) -> None:
    for settings in ({}, {"lora_rank": 2}, {"lora_rank": 2, "modules_to_save": ["lm_head"]}):
        config = ModelConfig(path=str(folder), **settings)  # type: ignore[arg-type]
        engines = []
        for empty in (True, False):
            module = load_causal_lm(config, empty=empty)
            add_lora(module, config)
            engines.append(TorchEngine(module, optim=OptimConfig()))
        ours, wanted = (dict(engine.placed.named_weights()) for engine in engines)
        assert ours.keys() == wanted.keys()
        assert all(tensor.equal(wanted[name]) for name, tensor in ours.items())


def test_a_value_models_body_is_filled_and_its_head_is_there_from_the_start(folder: Path) -> None:
    config = ModelConfig(path=str(folder))
    value = load_value_model(config, empty=True)
    assert not value.value_head.weight.is_meta and value.base_model.norm.weight.is_meta
    engine = TorchEngine(value, optim=OptimConfig())
    wanted = load_value_model(config).state_dict()
    assert all(tensor.equal(wanted[name]) for name, tensor in engine.weights())


def test_a_folder_that_does_not_name_its_tensors_so_is_loaded_whole(folder: Path) -> None:
    tensors = {}
    for file in folder.glob("model*"):
        tensors |= load_file(file) if file.suffix == ".safetensors" else {}
        file.unlink()
    renamed = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    module = load_causal_lm(ModelConfig(path=str(folder)), empty=True)
    assert weight_files(module) is None and not any(p.is_meta for p in module.parameters())
