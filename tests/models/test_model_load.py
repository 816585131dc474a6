"""Loading a folder gives a model ready for packed calls, and says clearly why when it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
)

from podium.config.schema import ModelConfig
from podium.errors import ModelError
from podium.models.attention import ATTENTION_NAME
from podium.models.load import (
    backbone,
    check_head,
    load_causal_lm,
    load_config,
    load_tokenizer,
    logit_transform,
    output_head,
    prepare,
    resolve_dtype,
    resolve_path,
)

SHAPE = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def test_a_folder_loads_with_packed_attention_in_the_asked_type(folder: Path) -> None:
    model = load_causal_lm(ModelConfig(path=str(folder)), torch.bfloat16)
    assert model.config._attn_implementation == ATTENTION_NAME
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert not model.training
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    assert torch.equal(output_head(model).weight, plain.lm_head.weight)
    assert backbone(model) is model.model
    assert load_config(str(folder)).vocab_size == 50


def test_every_embedding_can_learn_the_padding_id_too(folder: Path) -> None:
    model = load_causal_lm(ModelConfig(path=str(folder)))
    embedding = model.get_input_embeddings()
    embedding(torch.tensor([0])).sum().backward()
    assert embedding.weight.grad[0].any()


def test_dropout_is_off_even_in_training_mode() -> None:
    model = PhiForCausalLM(PhiConfig(**SHAPE, resid_pdrop=0.5, embd_pdrop=0.5))
    prepare(model)
    assert all(part.p == 0.0 for part in model.train().modules() if isinstance(part, torch.nn.Dropout))


def test_gradient_checkpointing_is_switched_on_when_asked(folder: Path) -> None:
    assert load_causal_lm(ModelConfig(path=str(folder), enable_gradient_checkpointing=True)).is_gradient_checkpointing
    assert not load_causal_lm(ModelConfig(path=str(folder))).is_gradient_checkpointing


def test_a_path_is_a_built_in_a_folder_or_a_hub_name(folder: Path, tmp_path: Path) -> None:
    assert resolve_path(str(folder)) == str(folder)
    assert resolve_path("org/name") == "org/name"
    with pytest.raises(ModelError, match="no built-in model 'builtin:huge'"):
        resolve_path("builtin:huge")
    with pytest.raises(ModelError, match="does not exist"):
        resolve_path(str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match=r"no config\.json"):
        resolve_path(str(tmp_path))


def test_a_folder_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_causal_lm(ModelConfig(path=str(folder)))


def test_pickled_weights_are_not_read(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_causal_lm(ModelConfig(path=str(folder)))


def test_auto_dtype_follows_the_device() -> None:
    assert resolve_dtype("auto", "cpu") is torch.float32
    assert resolve_dtype("auto", "cuda:0") is torch.bfloat16
    assert resolve_dtype("bfloat16", "cpu") is torch.bfloat16
    with pytest.raises(ModelError, match="float16"):
        resolve_dtype("float16", "cpu")


def test_a_family_that_scales_its_logits_is_known_and_an_unknown_change_is_refused() -> None:
    model = CohereForCausalLM(CohereConfig(**SHAPE, logit_scale=0.25))
    prepare(model)
    assert logit_transform(model).scale == 0.25
    check_head(model)

    class Shifted(LlamaForCausalLM):
        def forward(self, *args: object, **kwargs: object) -> object:
            out = super().forward(*args, **kwargs)
            out.logits = out.logits.flip(-1)
            return out

    strange = Shifted(LlamaConfig(**SHAPE))
    prepare(strange)
    with pytest.raises(ModelError, match="changes its logits"):
        check_head(strange)


def test_a_model_without_a_vocabulary_has_no_output_head() -> None:
    with pytest.raises(ModelError, match="no linear output head"):
        output_head(LlamaForCausalLM(LlamaConfig(**SHAPE)).model)


def test_the_default_model_needs_no_download() -> None:
    model = load_causal_lm(ModelConfig())
    tokenizer = load_tokenizer(ModelConfig().path)
    assert tokenizer.eos_token_id is not None and tokenizer.pad_token_id is not None
    assert len(tokenizer) <= output_head(model).out_features
