from __future__ import annotations

import math

import pytest
import torch

from podium.algorithms import (
    at_last_token,
    fold_rewards,
    last_token_mask,
    masked_mean,
    masked_sum,
    masked_var,
    masked_whiten,
    selective_log_softmax,
)
from podium.algorithms import masking as masking_module

NAN = float("nan")


def test_what_lies_outside_the_mask_never_matters() -> None:
    clean = torch.tensor([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0]])
    dirty = torch.tensor([[1.0, 2.0, NAN], [3.0, float("inf"), NAN]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    for function in (masked_sum, masked_mean, masked_var, masked_whiten):
        torch.testing.assert_close(function(dirty, mask), function(clean, mask))


def test_no_gradient_comes_from_outside_the_mask() -> None:
    values = torch.tensor([[1.0, NAN], [3.0, NAN]], requires_grad=True)
    masked_mean(values, torch.tensor([[1, 0], [1, 0]])).backward()
    torch.testing.assert_close(values.grad, torch.tensor([[0.5, 0.0], [0.5, 0.0]]))


@pytest.mark.parametrize("axis", [None, -1])
def test_the_mean_of_an_empty_mask_is_zero(axis: int | None) -> None:
    assert masked_mean(torch.full((1, 2), NAN), torch.zeros(1, 2), axis=axis).sum() == 0.0


def test_mean_and_variance_are_those_of_the_values_inside() -> None:
    values, mask = torch.tensor([[1.0, 5.0, 9.0], [7.0, 2.0, 2.0]]), torch.tensor([[1, 0, 1], [1, 1, 0]])
    kept = torch.tensor([1.0, 9.0, 7.0, 2.0])
    torch.testing.assert_close(masked_mean(values, mask), kept.mean())
    torch.testing.assert_close(masked_var(values, mask), kept.var())
    torch.testing.assert_close(masked_var(values, mask, unbiased=False), kept.var(unbiased=False))
    torch.testing.assert_close(masked_mean(values, mask, axis=-1), torch.tensor([5.0, 4.5]))


def test_whitened_values_have_mean_zero_and_unit_variance() -> None:
    values, mask = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)) * 3 + 2, torch.ones(5, 7)
    whitened = masked_whiten(values, mask)
    assert abs(float(whitened.mean())) < 1e-6
    assert float(whitened.var()) == pytest.approx(1.0, abs=1e-5)
    torch.testing.assert_close(masked_whiten(values, mask, shift_mean=False), whitened + values.mean())


def test_one_value_cannot_be_scaled_only_centred() -> None:
    mask = torch.tensor([[0, 1, 0]])
    assert masked_whiten(torch.tensor([[7.0, 3.0, 7.0]]), mask).tolist() == [[0.0, 0.0, 0.0]]
    assert masked_whiten(torch.tensor([[7.0, 3.0, 7.0]]), mask, shift_mean=False).tolist() == [[0.0, 3.0, 0.0]]


def test_the_last_token_is_the_last_the_model_wrote() -> None:
    mask = torch.tensor([[1, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
    assert last_token_mask(mask).long().tolist() == [[0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert at_last_token(torch.tensor([5.0, 6.0, 7.0]), mask).tolist() == [[0, 0, 5.0, 0], [6.0, 0, 0, 0], [0, 0, 0, 0]]


def test_rewards_on_observations_move_to_the_model_token_before() -> None:
    mask = torch.tensor([[0, 1, 0, 0, 1, 0]])
    rewards = torch.tensor([[1.0, 2.0, 4.0, 8.0, 16.0, 32.0]])
    assert fold_rewards(rewards, mask).tolist() == [[0.0, 15.0, 0.0, 0.0, 48.0, 0.0]]


@pytest.mark.parametrize("chunk_elements", [1, 40, 10**6])
def test_selective_log_softmax_equals_the_full_one_with_its_gradient(
    chunk_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking_module, "CHUNK_ELEMENTS", chunk_elements)
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 5, 11, generator=generator).requires_grad_()
    full = logits.detach().clone().requires_grad_()
    ids = torch.randint(0, 11, (3, 5), generator=generator)
    weight = torch.randn(3, 5, generator=generator)
    ours, theirs = selective_log_softmax(logits, ids), full.log_softmax(-1).gather(-1, ids[..., None]).squeeze(-1)
    torch.testing.assert_close(ours, theirs)
    (ours * weight).sum().backward()
    (theirs * weight).sum().backward()
    torch.testing.assert_close(logits.grad, full.grad)


def test_selective_log_softmax_holds_no_float32_copy_of_bfloat16_logits() -> None:
    logits = torch.randn(64, 1000).bfloat16().requires_grad_()
    saved: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        out = selective_log_softmax(logits, torch.zeros(64, dtype=torch.long))
    assert out.dtype is torch.float32
    assert all(x.numel() <= 64 for x in saved if x.dtype is torch.float32)
    out.sum().backward()
    assert logits.grad is not None and logits.grad.dtype is torch.bfloat16


def test_selective_log_softmax_is_right_for_a_known_distribution() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log() + 7.0
    assert float(selective_log_softmax(logits, torch.tensor([1]))) == pytest.approx(math.log(0.3), abs=1e-6)
