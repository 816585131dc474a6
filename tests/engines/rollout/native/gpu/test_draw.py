from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from podium.engines.rollout.native.gpu import draw
from podium.engines.rollout.native.sampling import SamplingRows, sample_tokens, uniform


def call(
    logits: Tensor, temperature: Tensor, seed: int = 0, source: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """A row per temperature, all different in their position."""
    rows = torch.arange(len(temperature), device=logits.device)
    source = rows if source is None else source
    numbers = (torch.full_like(rows, seed), torch.zeros_like(rows), rows)
    return draw.draw_tokens(logits, source.to(torch.int32), rows, torch.ones_like(rows), numbers, temperature)


def reference(logits: Tensor, temperature: Tensor, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    rows = torch.arange(len(temperature), device=logits.device)
    ones, zeros = torch.ones_like(temperature), torch.zeros_like(temperature)
    number = uniform(torch.full_like(rows, seed), torch.zeros_like(rows), rows)
    settings = SamplingRows(temperature, zeros.long() - 1, ones, zeros, number, True, True, False)
    return sample_tokens(logits, settings)


@pytest.mark.parametrize("vocab_size", [50, 300, 5000])
def test_tokens_and_log_probs_are_those_of_the_torch_sampler(
    vocab_size: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draw, "STRETCH", 128)
    torch.manual_seed(0)
    logits = torch.randn(24, vocab_size, device=device) * 3
    temperature = torch.tensor([1.0, 0.0, 0.7, 1.4] * 6, device=device)
    ours, theirs = call(logits, temperature, seed=-5), reference(logits, temperature, seed=-5)
    assert ours[0].equal(theirs[0])
    for mine, expected in zip(ours[1:], theirs[1:], strict=True):
        torch.testing.assert_close(mine, expected, atol=1e-5, rtol=1e-5)


def test_frequencies_follow_the_distribution(device: torch.device) -> None:
    draws = 20_000 if device.type == "cuda" else 400
    torch.manual_seed(1)
    logits = torch.randn(1, 12, device=device)
    source = torch.zeros(draws, dtype=torch.int64, device=device)
    tokens, log_probs, _ = call(logits, torch.ones(draws, device=device), source=source)
    expected = logits.double().softmax(-1)[0] * draws
    counts = torch.bincount(tokens, minlength=12).double()
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert (statistic - 11) / math.sqrt(22) < 4
    torch.testing.assert_close(log_probs, logits.log_softmax(-1)[0][tokens], atol=1e-5, rtol=0)


def test_what_cannot_be_drawn_never_is(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw, "STRETCH", 128)
    logits = torch.full((3, 1000), -math.inf, device=device)
    logits[:, 517] = 2.0
    tokens, log_probs, raw = call(logits, torch.tensor([1.0, 0.5, 0.0], device=device))
    assert tokens.tolist() == [517] * 3 and log_probs.abs().max() < 1e-6 and raw.abs().max() < 1e-6


def test_nan_gives_some_token_and_a_nan_log_prob(device: torch.device) -> None:
    logits = torch.full((2, 40), math.nan, device=device)
    tokens, _, raw = call(logits, torch.tensor([1.0, 0.0], device=device))
    assert ((tokens >= 0) & (tokens < 40)).all() and raw.isnan().all()
