from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from podium.config.schema import RolloutConfig
from podium.engines.rollout.native import packed
from podium.engines.rollout.native.body import Model
from podium.engines.rollout.native.engine import NativeEngine
from podium.engines.rollout.native.packed import can_pack, linear, pack
from podium.models.attention import install_attention

TOKENS = [5, 9, 40, 7, 7, 61, 3, 88, 12]
SMALL = RolloutConfig(max_num_seqs=4, max_num_batched_tokens=64, kv_cache_gb=0.01)

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


@needs_onednn
@pytest.mark.parametrize("rows", [1, 3, 16, 100])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_packed_product_is_the_plain_one_for_any_number_of_rows(rows: int, has_bias: bool) -> None:
    x, weight, bias = torch.randn(rows, 24), torch.randn(40, 24), torch.randn(40) if has_bias else None
    expected = F.linear(x, weight, bias)
    torch.testing.assert_close(linear(x, pack(weight), bias), expected, atol=1e-5, rtol=1e-5)
    assert linear(x, weight, bias).equal(expected)
    strided = torch.randn(rows, 48)[:, ::2]
    torch.testing.assert_close(linear(strided, pack(weight)), F.linear(strided, weight), atol=1e-5, rtol=1e-5)


def make_model(module: Any) -> Model:
    install_attention(module)
    return Model(module, torch.float32)


def log_probs(model: Model) -> torch.Tensor:
    model.refresh()
    return model.log_probs(TOKENS)


@needs_onednn
@pytest.mark.parametrize("family", ["qwen2", "gemma"])
def test_weights_that_were_written_in_place_are_packed_anew(family: str, make_lm: Any) -> None:
    module, other = make_lm(family), make_lm(family, seed=4)
    model = make_model(module)
    before = log_probs(model)
    with torch.no_grad():
        for parameter, new in zip(module.parameters(), other.parameters(), strict=True):
            parameter.copy_(new)
    assert not log_probs(model).allclose(before)
    torch.testing.assert_close(log_probs(model), log_probs(make_model(other)), atol=1e-5, rtol=1e-5)


@needs_onednn
def test_a_new_version_is_packed_even_when_torch_did_not_count_the_writes(make_lm: Any) -> None:
    module, other = make_lm("qwen2"), make_lm("qwen2", seed=4)
    engine = NativeEngine(module, SMALL)
    engine.set_version(1)
    engine.probe()
    for parameter, new in zip(module.parameters(), other.parameters(), strict=True):
        parameter.data.copy_(new.data)
    engine.set_version(2)
    torch.testing.assert_close(engine.probe(), NativeEngine(other, SMALL).probe(), atol=1e-5, rtol=1e-5)


@needs_onednn
def test_a_sleeping_engine_holds_no_packed_copy(make_lm: Any) -> None:
    module = make_lm("qwen2")
    engine = NativeEngine(module, SMALL)
    before = engine.probe()
    body: Any = engine.runner.model.body
    assert body.layers[0].down.is_mkldnn
    engine.sleep()
    assert body.layers == [] and engine.runner.model._packed_head is None
    engine.wake()
    assert engine.probe().equal(before)


def test_large_models_other_types_and_machines_without_onednn_keep_their_weights_as_they_are(
    make_lm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = make_lm("qwen2")
    expected = log_probs(make_model(make_lm("qwen2")))
    assert not can_pack(module, torch.bfloat16)
    monkeypatch.setattr(packed, "LARGEST_COPY", 1000)
    assert not can_pack(module, torch.float32)
    model: Any = make_model(module)
    assert model.body.layers[0].down.data_ptr() == module.model.layers[0].mlp.down_proj.weight.data_ptr()
    torch.testing.assert_close(log_probs(model), expected, atol=1e-5, rtol=1e-5)
    monkeypatch.undo()
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not can_pack(module, torch.float32)
