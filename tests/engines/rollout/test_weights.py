from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from podium.engines.rollout.base import SamplingParams
from podium.engines.rollout.native.engine import NativeEngine
from podium.engines.rollout.weights import SLICE_VALUES, load_tensors, named_tensors, sample_values
from podium.errors import PublishError, RolloutError

NAME = "model.layers.1.mlp.up_proj.weight"


def weights_of(model: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_a_complete_set_is_copied(make_lm: Any) -> None:
    target, source = make_lm(seed=0), weights_of(make_lm(seed=1))
    num_bytes = load_tensors(target, source.items())
    assert all(tensor.equal(source[name]) for name, tensor in named_tensors(target))
    assert num_bytes == sum(4 * tensor.numel() for tensor in source.values())


def test_a_tied_tensor_may_come_under_either_name_or_both(make_lm: Any) -> None:
    source = weights_of(make_lm(seed=1, tie_word_embeddings=True))
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= source.keys()
    for left_out in ("lm_head.weight", "model.embed_tokens.weight", None):
        target = make_lm(seed=0, tie_word_embeddings=True)
        load_tensors(target, ((name, tensor) for name, tensor in source.items() if name != left_out))
        assert all(tensor.equal(source[name]) for name, tensor in named_tensors(target))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("missing", f"Tensor {NAME} was not published"),
        ("unexpected", r"Tensor model.layers.1.mlp.up_proj.weigth was published.*nearest name it has is model"),
        ("shape", rf"Tensor {NAME} was published with shape \[48, 33\]; .* \[48, 32\]"),
        ("twice", f"Tensor {NAME} was published twice"),
    ],
)
def test_a_set_with_a_fault_is_refused_by_the_tensors_name_until_a_good_one(
    fault: str, message: str, make_lm: Any
) -> None:
    engine = NativeEngine(make_lm())
    source = weights_of(make_lm(seed=1))
    faulty = list(source.items())
    if fault == "missing":
        faulty = [(name, tensor) for name, tensor in faulty if name != NAME]
    elif fault == "unexpected":
        faulty = [(name.replace(NAME, NAME[:-2] + "th"), tensor) for name, tensor in faulty]
    elif fault == "shape":
        faulty = [(name, torch.zeros(48, 33) if name == NAME else tensor) for name, tensor in faulty]
    else:
        faulty.append((NAME, source[NAME]))
    with pytest.raises(PublishError, match=message):
        engine.load_weights(faulty, version=3)
    with pytest.raises(RolloutError, match="loading version 3 did not finish"):
        engine.generate([[2]], SamplingParams(max_tokens=1))
    engine.load_weights(source.items(), version=4)
    assert engine.generate([[2]], SamplingParams(max_tokens=1))[0][0].version == 4


@pytest.mark.parametrize("numel", [0, 1, SLICE_VALUES, SLICE_VALUES + 1, 100_000])
def test_sampled_values_are_few_spread_out_and_move_with_the_version(numel: int) -> None:
    tensor = torch.arange(numel)
    values = sample_values(tensor, version=1)
    assert len(values) <= SLICE_VALUES and len(values) >= min(numel, SLICE_VALUES // 2)
    if numel == 100_000:
        assert not set(values.tolist()) & set(sample_values(tensor, version=2).tolist())
        seen = {int(v) for version in range(400) for v in sample_values(tensor, version)}
        assert len(seen) > 99_000, "in time every value is looked at"
