"""Packed attention sees what padded attention sees, family by family, and refuses what it cannot do."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from podium.errors import ModelError
from podium.models.attention import PackedAttention, install_attention


def dense_attention(q: Tensor, k: Tensor, v: Tensor, lengths: list[int], scaling: float, window: int | None) -> Tensor:
    """The formula, with a [T, T] mask."""
    total = sum(lengths)
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    distance = torch.arange(total)[:, None] - torch.arange(total)[None]
    sees = (sequence[:, None] == sequence[None]) & (distance >= 0)
    if window is not None:
        sees &= distance < window
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).transpose(2, 3) * scaling
    weights = scores.masked_fill(~sees, float("-inf")).softmax(-1)
    return (weights @ v.repeat_interleave(group, 1)).transpose(1, 2)


def qkv(total: int, heads: int = 4, kv_heads: int = 2, dim: int = 8, device: str = "cpu") -> list[Tensor]:
    g = torch.Generator().manual_seed(total)
    shapes = ((1, total, heads, dim), (1, total, kv_heads, dim), (1, total, kv_heads, dim))
    return [torch.randn(shape, generator=g).to(device).transpose(1, 2).requires_grad_() for shape in shapes]


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.one_of(st.integers(1, 12), st.integers(60, 70)), min_size=1, max_size=6),
    window=st.one_of(st.none(), st.integers(1, 80)),
    kv_heads=st.sampled_from([1, 2, 4]),
    ordered=st.booleans(),
)
def test_packed_attention_and_its_gradients_equal_the_dense_formula(
    lengths: list[int], window: int | None, kv_heads: int, ordered: bool
) -> None:
    lengths = sorted(lengths) if ordered else lengths
    inputs = qkv(sum(lengths), kv_heads=kv_heads)
    wanted = dense_attention(*inputs, lengths, 0.3, window)
    ours = PackedAttention(lengths, "cpu")(0, *inputs, 0.3, window)
    torch.testing.assert_close(ours, wanted, atol=1e-5, rtol=1e-4)
    upstream = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(0))
    got = torch.autograd.grad(ours, inputs, upstream)
    torch.testing.assert_close(got, torch.autograd.grad(wanted, inputs, upstream), atol=1e-4, rtol=1e-3)


def test_sequences_of_one_length_are_one_group() -> None:
    assert PackedAttention([3, 3, 3, 5, 5, 3], "cpu").groups == [(3, 3), (2, 5), (1, 3)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("window", [None, 5])
def test_flash_varlen_equals_the_dense_formula(window: int | None) -> None:
    lengths = [7, 30, 70]
    inputs = [x.detach().bfloat16().requires_grad_() for x in qkv(sum(lengths), dim=64, device="cuda")]
    plain = [x.detach().float().cpu().requires_grad_() for x in inputs]
    wanted = dense_attention(*plain, lengths, 0.125, window)
    ours = PackedAttention(lengths, "cuda")(0, *inputs, 0.125, window)
    torch.testing.assert_close(ours.float().cpu(), wanted, atol=3e-2, rtol=3e-2)
    got = torch.autograd.grad(ours.sum(), inputs)
    for a, b in zip(got, torch.autograd.grad(wanted.sum(), plain), strict=True):
        torch.testing.assert_close(a.float().cpu(), b, atol=8e-2, rtol=5e-2)


SHAPE = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "head_dim": 8}


def llama() -> PreTrainedModel:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPE, num_attention_heads=2, num_key_value_heads=1)).eval()


def test_a_packed_call_gives_each_sequence_its_own_result() -> None:
    model = llama()
    first, second = torch.tensor([[5, 6, 7]]), torch.tensor([[8, 9, 10, 11, 12]])
    alone = torch.cat([model(first).logits, model(second).logits], 1)
    install_attention(model)
    packed = model(
        input_ids=torch.cat([first, second], 1),
        position_ids=torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]]),
        attention_plan=PackedAttention([3, 5], "cpu"),
        use_cache=False,
    ).logits
    torch.testing.assert_close(packed, alone, atol=1e-5, rtol=1e-4)


def test_a_call_without_a_plan_is_refused() -> None:
    model = llama()
    install_attention(model)
    with pytest.raises(ModelError, match="without attention_plan"):
        model(torch.tensor([[1, 2]]))


def test_families_with_other_attention_are_refused() -> None:
    shape = SHAPE | {"num_attention_heads": 2, "num_key_value_heads": 1}
    with pytest.raises(ModelError, match="soft-caps its attention"):
        install_attention(Gemma2ForCausalLM(Gemma2Config(**shape)))
    sinks = GptOssForCausalLM(GptOssConfig(**shape, num_local_experts=2, num_experts_per_tok=1))
    install_attention(sinks)
    with pytest.raises(ModelError, match="attention sinks"):
        sinks(torch.tensor([[1, 2]]), attention_plan=PackedAttention([2], "cpu"), use_cache=False)
    model = llama()
    model.config.layer_types = ["full_attention", "chunked_attention"]
    with pytest.raises(ModelError, match="layers of type chunked_attention"):
        install_attention(model)
