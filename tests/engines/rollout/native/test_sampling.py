from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from podium.engines.rollout.native.sampling import SamplingRows, sample_tokens, uniform


def make_rows(
    count: int, temperature: float = 1.0, top_k: int = -1, top_p: float = 1.0, min_p: float = 0.0, seed: int = 0
) -> SamplingRows:
    numbers = uniform(torch.full((count,), seed), torch.zeros(count, dtype=torch.long), torch.arange(count))
    return SamplingRows(
        temperature=torch.full((count,), temperature),
        top_k=torch.full((count,), top_k),
        top_p=torch.full((count,), top_p),
        min_p=torch.full((count,), min_p),
        uniform=numbers,
        greedy=temperature == 0,
        tempered=temperature not in (0, 1),
        filtered=top_k > 0 or top_p < 1 or min_p > 0,
    )


def chi_square(counts: Tensor, expected: Tensor) -> float:
    """How many standard deviations the statistic is above its mean."""
    freedom = len(expected) - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("vocab_size", [12, 5000], ids=["one running sum", "sums of blocks"])
def test_sampled_frequencies_follow_the_distribution(vocab_size: int) -> None:
    draws = 20_000
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(12, generator=generator)
    wide = torch.full((vocab_size,), -30.0)
    places = torch.randperm(vocab_size, generator=generator)[:12]
    wide[places] = logits
    parts = [sample_tokens(wide.expand(2000, -1), make_rows(draws)[slice(a, a + 2000)]) for a in range(0, draws, 2000)]
    tokens = torch.cat([part[0] for part in parts])
    counts = torch.bincount(tokens, minlength=vocab_size)[places].double()
    assert counts.sum() == draws
    assert chi_square(counts, logits.double().softmax(-1) * draws) < 4


@pytest.mark.parametrize(
    ("options", "warpers"),
    [
        ({"temperature": 0.7}, [TemperatureLogitsWarper(0.7)]),
        ({"top_k": 5}, [TopKLogitsWarper(5)]),
        ({"top_p": 0.6}, [TopPLogitsWarper(0.6)]),
        ({"min_p": 0.3}, [MinPLogitsWarper(0.3)]),
        (
            {"temperature": 1.5, "top_k": 8, "top_p": 0.7, "min_p": 0.1},
            [TemperatureLogitsWarper(1.5), TopKLogitsWarper(8), TopPLogitsWarper(0.7), MinPLogitsWarper(0.1)],
        ),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_filters_give_the_distribution_transformers_gives(
    options: dict[str, Any], warpers: list[LogitsProcessor]
) -> None:
    logits = torch.randn(16, generator=torch.Generator().manual_seed(2)).mul(2).expand(4000, -1)
    warped = logits[:1]
    for warper in warpers:
        warped = warper(None, warped)
    expected = warped.log_softmax(-1)[0]
    tokens, log_probs, raw = sample_tokens(logits, make_rows(4000, **options))
    torch.testing.assert_close(log_probs, expected[tokens], atol=1e-5, rtol=0)
    torch.testing.assert_close(raw, logits[0].log_softmax(-1)[tokens], atol=1e-5, rtol=0)
    possible = expected > -math.inf
    counts = torch.bincount(tokens, minlength=16)
    assert counts[~possible].sum() == 0
    if possible.sum() > 1:
        assert chi_square(counts[possible].double(), expected[possible].double().exp() * 4000) < 4


def test_greedy_takes_the_likeliest_with_certainty() -> None:
    logits = torch.randn(50, 30)
    tokens, log_probs, raw = sample_tokens(logits, make_rows(50, temperature=0.0))
    assert tokens.equal(logits.argmax(-1))
    assert log_probs.eq(0).all()
    torch.testing.assert_close(raw, logits.log_softmax(-1).amax(-1))


def test_rows_of_a_mixed_batch_sample_as_they_would_alone() -> None:
    kinds: list[dict[str, Any]] = [{}, {"temperature": 0.0}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.5}]
    logits = torch.randn(len(kinds), 40)
    alone = [make_rows(1, seed=i, **kind) for i, kind in enumerate(kinds)]
    mixed = SamplingRows(
        *(torch.cat([getattr(rows, name) for rows in alone]) for name in ("temperature", "top_k", "top_p", "min_p")),
        uniform=torch.cat([rows.uniform for rows in alone]),
        greedy=True,
        tempered=True,
        filtered=True,
    )
    together = sample_tokens(logits, mixed)
    for i, rows in enumerate(alone):
        for ours, theirs in zip(together, sample_tokens(logits[i : i + 1], rows), strict=True):
            torch.testing.assert_close(ours[i : i + 1], theirs)


@pytest.mark.parametrize("vocab_size", [3, 4096])
def test_a_token_without_probability_is_never_drawn(vocab_size: int) -> None:
    logits = torch.full((2, vocab_size), -math.inf)
    logits[:, vocab_size // 2] = 0.0
    rows = make_rows(2)
    rows = SamplingRows(**(vars(rows) | {"uniform": torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)}))
    assert sample_tokens(logits, rows)[0].tolist() == [vocab_size // 2] * 2


def test_random_numbers_are_even_and_independent_of_their_neighbours() -> None:
    seeds, samples, positions = (x.reshape(-1) for x in torch.meshgrid(*[torch.arange(40)] * 3, indexing="ij"))
    numbers = uniform(seeds, samples, positions)
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert len(numbers.unique()) == len(numbers)
    counts = torch.histc(numbers.float(), bins=64, min=0, max=1).double()
    assert chi_square(counts, torch.full((64,), len(numbers) / 64, dtype=torch.float64)) < 4
    grid = numbers.view(40, 40, 40).numpy()
    for axis in range(3):
        first, second = np.take(grid, range(39), axis).ravel(), np.take(grid, range(1, 40), axis).ravel()
        assert abs(np.corrcoef(first, second)[0, 1]) < 0.02


def test_random_numbers_are_the_same_on_every_machine() -> None:
    numbers = uniform(torch.tensor([0, -1, 7]), torch.tensor([0, 3, 1]), torch.tensor([0, 5, 2]))

    def reference(*parts: int) -> float:
        mask, bits = (1 << 64) - 1, 0
        for part in parts:
            bits = (bits ^ (part + 0x9E3779B97F4A7C15)) & mask
            bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & mask
            bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & mask
            bits ^= bits >> 31
        return (bits >> 11) * 2.0**-53

    assert numbers.tolist() == [reference(0, 0, 0), reference(-1, 3, 5), reference(7, 1, 2)]
