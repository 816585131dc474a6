"""Small terms around the reward: overlong penalty, missing end of sequence, whitening; and statistics of n samples."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from podium.algorithms.masking import at_last_token, fold_rewards, last_token_mask, masked_whiten
from podium.errors import ConfigError


def overlong_penalty(lengths: Tensor, max_length: int, buffer_length: int, factor: float) -> Tensor:
    """DAPO's soft length penalty [B]: min(−(len − (L_max − buf))/buf·factor, 0), to be added to R.

    Yu et al., "DAPO", 2025, arXiv:2503.14476.
    """
    exceeded = lengths.float() - (max_length - buffer_length)
    return (-exceeded / buffer_length * factor).clamp(max=0.0)


def missing_eos_penalty(
    token_level_scores: Tensor,
    responses: Tensor,
    response_mask: Tensor,
    eos_token_id: int | Sequence[int],
    penalty: float,
) -> Tensor:
    """Subtract `penalty`, at the last model token, from rows whose last model token does not end the sequence.

    As TRL's `missing_eos_penalty`. A row without model tokens is left alone.
    """
    ends = torch.tensor(
        [eos_token_id] if isinstance(eos_token_id, int) else list(eos_token_id), device=responses.device
    )
    ended = (torch.isin(responses, ends) & last_token_mask(response_mask)).any(-1)
    missing = (~ended).to(token_level_scores.dtype)
    return token_level_scores - at_last_token(missing * penalty, response_mask)


def whiten_rewards(token_level_rewards: Tensor, response_mask: Tensor) -> Tensor:
    """Token rewards at unit variance with their mean kept: masked_whiten(r, shift_mean=False).

    A reward on an observation counts for the model token before it. As TRL's `whiten_rewards`.
    """
    return masked_whiten(fold_rewards(token_level_rewards, response_mask), response_mask, shift_mean=False)


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """The chance that k of n samples hold a correct one, unbiased: 1 − C(n−c, k)/C(n, k).

    Chen et al., "Evaluating Large Language Models Trained on Code", 2021, arXiv:2107.03374.
    """
    _check_draw(num_samples, k)
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def best_at_n(scores: Sequence[float], n: int) -> float:
    """The expected maximum of n scores drawn without replacement: Σ_i C(i−1, n−1)·x_(i) / C(N, n), x ascending."""
    _check_draw(len(scores), n)
    ranked = sorted(scores)
    return math.fsum(math.comb(i, n - 1) / math.comb(len(ranked), n) * x for i, x in enumerate(ranked))


def worst_at_n(scores: Sequence[float], n: int) -> float:
    """The expected minimum of n scores drawn without replacement."""
    return -best_at_n([-x for x in scores], n)


def maj_at_n(answers: Sequence[Hashable], scores: Sequence[float], n: int) -> float:
    """The expected score of the majority answer among n samples drawn without replacement; ties are drawn evenly.

    Exact, by counting: an answer wins with v votes when no other has more, and with e others at v wins 1/(e+1) of the
    time. An answer's score is the mean score of its samples.
    """
    assert len(answers) == len(scores), f"{len(answers)} answers but {len(scores)} scores"
    _check_draw(len(answers), n)
    votes = Counter(answers)
    total: defaultdict[Hashable, float] = defaultdict(float)
    for answer, score in zip(answers, scores, strict=True):
        total[answer] += score
    wins = {count: _win_chance(count, votes, n) for count in set(votes.values())}
    return math.fsum(wins[count] * total[answer] / count for answer, count in votes.items())


def _win_chance(count: int, votes: Counter[Hashable], n: int) -> float:
    """The chance that a given answer with `count` samples is the majority of n drawn."""
    others = list(votes.values())
    others.remove(count)
    ways = 0.0
    draws = math.comb(sum(votes.values()), n)
    for own in range(1, min(count, n) + 1):
        # How many ways the others take n − own votes, none above `own`, by how many of them tie.
        table: dict[tuple[int, int], int] = {(0, 0): 1}
        for other in others:
            grown: defaultdict[tuple[int, int], int] = defaultdict(int)
            for (taken, ties), number in table.items():
                for take in range(min(other, own, n - own - taken) + 1):
                    grown[taken + take, ties + (take == own)] += number * math.comb(other, take)
            table = grown
        for (taken, ties), number in table.items():
            if taken == n - own:
                ways += math.comb(count, own) * number / draws / (ties + 1)
    return ways


def _check_draw(available: int, drawn: int) -> None:
    if not 1 <= drawn <= available:
        raise ConfigError(f"cannot draw {drawn} of {available} samples; draw between 1 and {available}")
