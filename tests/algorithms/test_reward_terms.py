from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from podium.algorithms import (
    best_at_n,
    maj_at_n,
    missing_eos_penalty,
    overlong_penalty,
    pass_at_k,
    whiten_rewards,
    worst_at_n,
)
from podium.errors import ConfigError


def test_the_overlong_penalty_rises_over_the_buffer() -> None:
    lengths = torch.tensor([10, 80, 90, 100])
    assert overlong_penalty(lengths, max_length=100, buffer_length=20, factor=2.0).tolist() == [0.0, 0.0, -1.0, -2.0]


def test_the_eos_penalty_falls_on_the_last_model_token_of_unfinished_rows() -> None:
    responses = torch.tensor([[5, 2, 0, 0], [5, 2, 9, 5], [2, 9, 9, 7], [0, 0, 0, 0]])
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]])
    scores = torch.zeros(4, 4)
    penalized = missing_eos_penalty(scores, responses, mask, 2, penalty=1.5)
    assert penalized.tolist() == [[0.0] * 4, [0.0, 0.0, 0.0, -1.5], [0.0] * 4, [0.0] * 4]
    assert scores.abs().sum() == 0.0
    either = missing_eos_penalty(scores, responses, mask, [2, 5], penalty=1.5)
    assert either.abs().sum() == 0.0


def test_whitened_rewards_keep_mean_and_a_terminal_observations_reward() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    whitened = whiten_rewards(torch.tensor([[0.0, 0.0, 4.0], [0.0, 1.0, 0.0]]), mask)
    folded = torch.tensor([0.0, 4.0, 0.0, 1.0, 0.0])
    expected = (folded - folded.mean()) / (folded.var() + 1e-8).sqrt() + folded.mean()
    torch.testing.assert_close(whitened[mask.bool()], expected)
    assert whitened[0, 2] == 0.0


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
@settings(max_examples=30, deadline=None)
def test_pass_at_k_counts_all_draws(correct: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(correct)))
    draws = list(itertools.combinations(correct, k))
    assert pass_at_k(len(correct), sum(correct), k) == pytest.approx(sum(map(any, draws)) / len(draws))


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=7), st.data())
@settings(max_examples=30, deadline=None)
def test_best_and_worst_are_means_over_all_draws(scores: list[float], data: st.DataObject) -> None:
    n = data.draw(st.integers(1, len(scores)))
    draws = list(itertools.combinations(scores, n))
    assert best_at_n(scores, n) == pytest.approx(math.fsum(map(max, draws)) / len(draws), abs=1e-9)
    assert worst_at_n(scores, n) == pytest.approx(math.fsum(map(min, draws)) / len(draws), abs=1e-9)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([0.0, 1.0])), min_size=1, max_size=7), st.data())
@settings(max_examples=40, deadline=None)
def test_the_majority_is_the_mean_over_all_draws(samples: list[tuple[str, float]], data: st.DataObject) -> None:
    n = data.draw(st.integers(1, len(samples)))
    answers, scores = zip(*samples, strict=True)
    mean_score = {a: math.fsum(s for b, s in samples if a == b) / answers.count(a) for a in set(answers)}

    def vote(draw: tuple[str, ...]) -> float:
        top = max(draw.count(a) for a in draw)
        winners = [a for a in set(draw) if draw.count(a) == top]
        return sum(mean_score[a] for a in winners) / len(winners)

    draws = list(itertools.combinations(answers, n))
    assert maj_at_n(answers, scores, n) == pytest.approx(sum(map(vote, draws)) / len(draws))


def test_more_than_there_is_cannot_be_drawn() -> None:
    for call in (lambda: pass_at_k(4, 1, 5), lambda: best_at_n([1.0], 2), lambda: maj_at_n(["a"], [1.0], 0)):
        with pytest.raises(ConfigError, match="cannot draw"):
            call()
